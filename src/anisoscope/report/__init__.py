"""Pages: one self-contained HTML file from a run folder or from studies, and figures as SVG (PDF and PNG on request).
Everything on a page is read from records; nothing is computed again.

May import: `studies`, `runs`, `charts`, and what is below them.
"""

from pathlib import Path

from anisoscope.errors import OutputError
from anisoscope.report.page import write_run
from anisoscope.report.results import Results
from anisoscope.report.studies_page import build_studies
from anisoscope.store import RunFolder

__all__ = ["build", "build_studies"]


def build(folder: Path, formats: tuple[str, ...] = ("svg",)) -> Path:
    """Write `report.html` and `figures/` into a finished run folder; the same run always gives the same bytes.

    `formats` of the figures beside the page: svg, pdf, png.
    """
    if (folder / "series.json").exists():
        raise OutputError("a run folder", f"{folder}, a series of them", f"name a checkpoint: {folder}/seed-0-step-…")
    run = RunFolder(folder)
    manifest = run.manifest
    return write_run(Results(run.records, manifest), folder, formats)
