"""The examples run: each script's cells, as a notebook runs them, and every Python block of the documentation."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import notebooks
import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
GENERATED_BLOCKS = ("inputs.md",)
"""Pages whose code tests/test_inputs.py runs, kind by kind."""


def shown(value):
    """What a notebook shows of the last value of a cell."""
    for how in ("_repr_mimebundle_", "_repr_html_"):
        if hasattr(value, how):
            said = getattr(value, how)(*((None, None) if how == "_repr_mimebundle_" else ()))
            if said is not None:
                return said
    return repr(value)


def run_cell(code, names):
    """Run a cell; what its last expression shows, or None."""
    tree = ast.parse(code)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    if last is None:
        return None
    value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    return None if value is None else shown(value)


def test_there_is_an_example_for_each_of_the_four_questions():
    assert {path.stem for path in SCRIPTS} == {"my_checkpoint", "my_training_run", "my_classifier", "my_vectors"}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_notebook_is_its_script(script):
    written = json.loads(script.with_suffix(".ipynb").read_text("utf-8"))
    assert written == notebooks.notebook(script.read_text("utf-8")), "make docs writes them"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_every_cell_of_a_notebook_runs_and_shows_something(script, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cells = json.loads(script.with_suffix(".ipynb").read_text("utf-8"))["cells"]
    names = {"__name__": "__main__"}
    outputs = [run_cell("".join(cell["source"]), names) for cell in cells if cell["cell_type"] == "code"]
    assert any(outputs), "a notebook that shows nothing"
    assert any("<table" in str(output) or "vega" in str(output) for output in outputs)


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)


TYPED = [(page, i) for page in PAGES if page.name not in GENERATED_BLOCKS for i in range(len(blocks(page)))]


def test_every_block_of_the_documentation_runs_in_one_interpreter(tmp_path):
    """`anisoscope.capture` was a function, and a module once something was measured: README's own order failed."""
    code = "\n".join(blocks(page)[i] for page, i in TYPED)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize(("page", "i"), TYPED, ids=lambda x: x.stem if isinstance(x, Path) else str(x))
def test_every_block_runs_in_an_interpreter_of_its_own(page, i, tmp_path):
    first = "" if "import anisoscope" in blocks(page)[i] else "import anisoscope\n"
    code = first + blocks(page)[i]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
