"""Record which code of the papers made the numbers, in addition to what the tool itself records
(`anisoscope.provenance`).
"""

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
    "gu2025",
    "machina2024",
    "beyond",
)
"""Packages and modules whose code makes records and verdicts of studies. Trained models are found by their settings."""
JUDGING = ("judge", "study_names", "needs", "processes", "runner", "study")
"""Those of them that make no record: they start a study, judge and show what it measured."""
MEASURING = tuple(
    f"anisoscope.{name}" for name in ("measure", "metrics", "reads", "sums")
)
"""Packages of the tool that look at models, and train none."""


def hash_measuring_code(*modules: str) -> dict[str, str]:
    """Return {module: hash} of the code that `modules` use to measure. The hashes are part of the name of a saved
    measurement.
    """
    # A new wording of a verdict must not make saved measurements invalid: what only
    # judges does not count, nor this module, which merely names the others.
    passed_over = [PACKAGE.name]
    for name in ("origin", *JUDGING):
        passed_over.append(f"{PACKAGE.name}.{name}")
    return tool.hash_code(*modules, leave_out=tuple(passed_over))


def hash_training_code(*modules: str) -> dict[str, str]:
    """Return {module: hash} of the code that `modules` use to train, by which a training is identified.

    Code that only measures is left out.
    """
    hashes = {}
    for name, meaning in hash_measuring_code(*modules).items():
        # A trained model stays valid if a metric changes.
        if not name.startswith(MEASURING):
            hashes[name] = meaning
    return hashes


def is_code_of(noted: Any, code: dict[str, str]) -> bool:
    """Return whether the code recorded with a training (`noted`) is `code`.

    Older trainings recorded only the version of the tool: for them the versions are compared.
    """
    if isinstance(noted, str):
        return noted == str(tool.describe_code_version()["version"])
    return bool(noted == code)


def describe_provenance() -> dict[str, Any]:
    """Return what computed the numbers, by name: versions, the kind of machine, the command, and this package's
    commit.
    """
    # Here, since the package imports what this module names the code of.
    from anisoscope_papers import __version__

    own = {"version": __version__} | tool.find_commit(PACKAGE, (*STUDIES, "training"))
    return tool.describe_environment() | {"papers": own}
