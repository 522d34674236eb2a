"""Notebooks of the examples: `make docs` writes examples/NAME.ipynb from NAME.py, whose cells begin with `# %%`."""

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples", ROOT / "papers" / "examples"
MARK = "# %%\n"
NEEDS = re.compile(r"^# pip install (.+)$", re.MULTILINE)
"""The line of a script that says what a notebook of it installs, if that is not there: in Colab nothing is."""
INSTALL = """\
# In Colab or another empty environment; where anisoscope is installed this does nothing.
from importlib.util import find_spec

if find_spec("{module}") is None:
    %pip install --quiet {packages}"""


def cells(script: str) -> list[str]:
    """The code of each cell of a script; its docstring, the first part, is no cell."""
    return [part.strip("\n") for part in script.split(MARK)[1:]]


def install_cell(script: str) -> str:
    """The cell that installs what a script says it needs; empty if it says nothing."""
    needs = NEEDS.search(script.split(MARK)[0])
    if needs is None:
        return ""
    module = "anisoscope_papers" if "anisoscope-papers" in needs[1] else "anisoscope"
    return INSTALL.format(module=module, packages=needs[1])


def notebook(script: str) -> dict[str, Any]:
    """The notebook of a script: its docstring as a heading, a cell that installs, then its cells, without outputs."""
    title = script.split('"""')[1].strip()
    made: list[dict[str, Any]] = [
        {
            "cell_type": "markdown",
            "id": "title",
            "metadata": {},
            "source": [f"# {title}"],
        }
    ]
    install = install_cell(script)
    for number, code in enumerate(
        [install, *cells(script)] if install else cells(script)
    ):
        made.append(
            {
                "cell_type": "code",
                "execution_count": None,
                "id": f"cell-{number}",
                "metadata": {},
                "outputs": [],
                "source": code.splitlines(keepends=True),
            }
        )
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {
        "cells": made,
        "metadata": {"kernelspec": kernel},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def write() -> list[Path]:
    """A notebook beside every script of the examples; their paths."""
    paths = []
    for script in sorted(path for folder in EXAMPLES for path in folder.glob("*.py")):
        path = script.with_suffix(".ipynb")
        path.write_text(
            json.dumps(
                notebook(script.read_text("utf-8")), indent=1, ensure_ascii=False
            )
            + "\n",
            "utf-8",
        )
        paths.append(path)
    return paths
