"""One self-contained HTML page from a run folder, and its figures as SVG and PDF."""

from pathlib import Path

from anisoscope.report.page import render
from anisoscope.report.results import Results
from anisoscope.report.studies_page import build_studies
from anisoscope.store import RunFolder, write_atomic

__all__ = ["build", "build_studies"]


def build(folder: Path) -> Path:
    """Write `report.html` and `figures/` into a finished run folder; the same run always gives the same bytes."""
    run = RunFolder(folder)
    manifest = run.manifest
    page = render(Results(run.records, manifest), folder)
    path = folder / "report.html"
    write_atomic(path, lambda temporary: temporary.write_text(page, encoding="utf-8"))
    return path
