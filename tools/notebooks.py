"""Notebooks of the examples: `make docs` writes examples/NAME.ipynb from NAME.py, whose cells begin with `# %%`."""

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples", ROOT / "papers" / "examples"
MARK = "# %%\n"


def cells(script: str) -> list[str]:
    """The code of each cell of a script; its docstring, the first part, is no cell."""
    return [part.strip("\n") for part in script.split(MARK)[1:]]


def notebook(script: str) -> dict[str, Any]:
    """The notebook of a script: its docstring as a heading, then its cells, without outputs."""
    title = script.split('"""')[1].strip()
    made: list[dict[str, Any]] = [{"cell_type": "markdown", "id": "title", "metadata": {}, "source": [f"# {title}"]}]
    for number, code in enumerate(cells(script)):
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
    return {"cells": made, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def write() -> list[Path]:
    """A notebook beside every script of the examples; their paths."""
    paths = []
    for script in sorted(path for folder in EXAMPLES for path in folder.glob("*.py")):
        path = script.with_suffix(".ipynb")
        path.write_text(json.dumps(notebook(script.read_text("utf-8")), indent=1, ensure_ascii=False) + "\n", "utf-8")
        paths.append(path)
    return paths
