"""Report pages: one self-contained HTML file from a run folder, and figures as SVG (PDF and PNG on request).

Everything on a page is read from records; nothing is computed again.

May import: `runs`, `charts`, and what is below them.
"""

from pathlib import Path

from anisoscope.report.page import write_run
from anisoscope.report.results import Results
from anisoscope.runs.differences import read_replicates
from anisoscope.store import read_run

__all__ = ["build_page"]


def build_page(folder: Path, formats: tuple[str, ...] = ("svg",)) -> Path:
    """Write `report.html` and `figures/` into the folder of a finished run or series, and return the page's path.

    The same run always gives the same bytes. `formats` are those of the figure files: svg, pdf, png.
    """
    records, manifest = read_run(folder)
    return write_run(
        Results(records, manifest, read_replicates(folder, len(records))),
        folder,
        formats,
    )
