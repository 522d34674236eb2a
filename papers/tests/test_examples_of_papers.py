"""The examples of the papers run, each in a kernel of its own."""

import json
from pathlib import Path

import notebooks
import pytest
from test_examples import check_notebook

SCRIPTS = sorted(Path(__file__).parents[1].joinpath("examples").glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_the_notebook_is_its_script(script):
    written = json.loads(script.with_suffix(".ipynb").read_text("utf-8"))
    assert written == notebooks.notebook(script.read_text("utf-8")), (
        "make docs writes them"
    )


@pytest.mark.parametrize(
    "script",
    [
        # its calls are those of my_checkpoint.py and of the studies
        pytest.param(
            path,
            marks=pytest.mark.nightly if path.stem == "figure_1" else (),
            id=path.stem,
        )
        for path in SCRIPTS
    ],
)
def test_the_notebook_runs_and_shows_what_was_found(script, tmp_path, monkeypatch):
    monkeypatch.setenv(
        "MODELS", "builtin:minilm"
    )  # those of figure 1 come from the hub
    check_notebook(script, tmp_path, documents=40)  # fewer have no direction of a class
