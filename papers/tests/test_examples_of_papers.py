"""The example of a classifier runs, in a kernel of its own."""

import json
from pathlib import Path

import notebooks
from test_examples import check_notebook

SCRIPT = Path(__file__).parents[1] / "examples" / "my_classifier.py"


def test_the_notebook_is_its_script():
    written = json.loads(SCRIPT.with_suffix(".ipynb").read_text("utf-8"))
    assert written == notebooks.notebook(SCRIPT.read_text("utf-8")), "make docs writes them"


def test_the_notebook_runs_and_shows_what_was_found(tmp_path):
    check_notebook(SCRIPT, tmp_path)
