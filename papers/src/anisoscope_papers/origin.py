"""Record which code of the papers made numbers, beside what the tool records of its own (`anisoscope.provenance`)."""

from pathlib import Path
from typing import Any

from anisoscope import provenance as tool

PACKAGE = Path(__file__).resolve().parent
STUDIES = (
    "judge",
    "study_names",
    "needs",
    "processes",
    "runner",
    "study",
    "networks",
    "godey2024",
    "fosse2023",
    "beyond",
)
"""Packages and modules whose code makes records and verdicts of studies. Trained models are found by their settings."""
JUDGING = ("judge", "study_names", "needs", "processes", "runner", "study")
"""Those of them that make no record: they start a study, judge and show what it measured."""
MEASURING = tuple(f"anisoscope.{name}" for name in ("measure", "metrics", "reads", "sums"))
"""Packages of the tool that look at models, and train none."""


def measuring_code(*modules: str) -> dict[str, str]:
    """Hash the code of `modules` that makes numbers, by module: it names a piece that was measured and kept."""
    passed_over = (PACKAGE.name, *(f"{PACKAGE.name}.{name}" for name in ("origin", *JUDGING)))
    return tool.hash_code(*modules, leave_out=passed_over)


def training_code(*modules: str) -> dict[str, str]:
    """Hash the code of `modules` that trains, by module, without what only measures: it names a training."""
    return {name: meaning for name, meaning in measuring_code(*modules).items() if not name.startswith(MEASURING)}


def is_code_of(noted: Any, code: dict[str, str]) -> bool:
    """Tell whether the code noted with a training is `code`; Older trainings noted the version of the tool alone:
    of those the versions are compared.
    """
    if isinstance(noted, str):
        return noted == str(tool.describe_code_version()["version"])
    return bool(noted == code)


def provenance() -> dict[str, Any]:
    """Versions of what computed the numbers, the machine's kind, and the command."""
    from anisoscope_papers import __version__  # which imports what this module names the code of

    own = {"version": __version__} | tool.find_commit(PACKAGE, (*STUDIES, "training"))
    return tool.describe_environment() | {"papers": own}
