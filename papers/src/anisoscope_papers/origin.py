"""Which code of the papers made numbers, beside what the tool says of its own (`anisoscope.provenance`)."""

from pathlib import Path
from typing import Any

from anisoscope import provenance as tool
from anisoscope_papers import __version__

PACKAGE = Path(__file__).resolve().parent
STUDIES = ("judge", "names", "needs", "processes", "runner", "study", "networks", "godey2024", "fosse2023", "beyond")
"""Packages and modules whose code makes records and verdicts of studies. Trained models are found by their settings."""
JUDGING = ("judge", "names", "needs", "processes", "runner", "study")
"""Those of them that make no record: they start a study, judge and show what it measured."""


def measuring_code(*modules: str) -> dict[str, str]:
    """What names a piece that `modules` measured and kept: hashes of their code that makes numbers, by module."""
    passed_over = (PACKAGE.name, *(f"{PACKAGE.name}.{name}" for name in ("origin", *JUDGING)))
    return tool.code_of(*modules, leave_out=passed_over)


def provenance() -> dict[str, Any]:
    """Versions of what computed the numbers, the machine's kind, and the command."""
    own = {"version": __version__} | tool.commit_of_sources(PACKAGE, (*STUDIES, "training"))
    return tool.provenance() | {"papers": own}
