"""Which code of the papers made numbers, beside what the tool says of its own (`anisoscope.provenance`)."""

from functools import cache
from pathlib import Path
from typing import Any

from anisoscope import provenance as tool
from anisoscope_papers import __version__

PACKAGE = Path(__file__).resolve().parent
STUDIES = ("judge", "names", "needs", "processes", "runner", "study", "networks", "godey2024", "fosse2023", "beyond")
"""Packages and modules whose code makes numbers of studies. Trained models are found by their settings."""


@cache
def measuring_code() -> dict[str, str]:
    """What names a piece that a study measured and kept: the code that makes numbers, the studies' own with it."""
    return tool.code_of() | {"studies": tool.hash_sources(PACKAGE, *STUDIES)}


def provenance() -> dict[str, Any]:
    """Versions of what computed the numbers, the machine's kind, and the command."""
    own = {"version": __version__} | tool.commit_of_sources(PACKAGE, (*STUDIES, "training"))
    return tool.provenance() | {"papers": own}
