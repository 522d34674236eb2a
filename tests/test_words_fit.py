"""The words of the program, of Python and of a corpus are the same everywhere."""

import numpy as np
import pytest
from typer.main import get_command

import anisoscope
from anisoscope import errors
from anisoscope.api.keywords import LearningClasses, LearningLanguage, Looking, Measuring, Written
from anisoscope.axes import plural_of
from anisoscope.cli.app import app
from anisoscope.options import leaves
from anisoscope.progress import counting, part_of, shown
from anisoscope.runs.job import Classes, Job
from anisoscope.wording import in_words

PLACED = {"output", "resume", "overwrite", "quiet", "format", "wide", "corpus", "model", "help"}
"""Options that are parameters of the functions, or of the terminal only."""
WRITTEN = Written.__annotations__.keys()
ELSEWHERE = {"measure": {"dry_run", "keep", "unit_column", "label_column"}, "classes": set()}
"""`series(keep=)`, `measure(units=, labels=)`."""
PYTHON_ONLY = {"measure": {"metrics", "sample_heads", "bins", "at"}, "classes": set()}
"""`at`: pooling of labelled sequences, of which only Python gives any to `measure`."""


@pytest.mark.parametrize(("command", "typed"), [("measure", Measuring), ("classes", Looking)])
def test_keywords_are_the_options_of_the_command(command, typed):
    """`documents` was an option of the command and no keyword of `measure`."""
    of_command = get_command(app).commands[command].params
    options = {option.opts[0].removeprefix("--").replace("-", "_") for option in of_command}
    assert options - PLACED - ELSEWHERE[command] == typed.__annotations__.keys() - WRITTEN - PYTHON_ONLY[command]
    declared = {field.keyword for kind in (Job, Classes) for field in leaves(kind)}
    assert typed.__annotations__.keys() - WRITTEN <= declared


@pytest.mark.parametrize(
    ("task", "typed", "only"),
    [
        ("masked-lm", LearningLanguage, set()),
        ("causal-lm", LearningLanguage, set()),
        ("classifier", LearningClasses, {"buckets"}),
    ],
)
def test_keywords_of_train_are_the_options_of_its_commands(task, typed, only):
    """They were any names at all to a type checker."""
    of_command = get_command(app).commands["train"].commands[task].params
    options = {option.opts[0].removeprefix("--").replace("-", "_") for option in of_command}
    assert options - {"help"} == typed.__annotations__.keys() - only


def test_documents_are_chosen_in_python_too(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n".join(f"{i}. The cat sat on the mat, and a dog barked." for i in range(30)))
    run = anisoscope.measure("builtin:minilm", corpus=str(path), documents="line", panel="hidden", sample=0)
    assert run.manifest["corpus"]["n_units"] == 30


def test_plurals():
    assert [plural_of(noun) for noun in ("token", "patch", "mel frame")] == ["tokens", "patches", "mel frames"]
    patches = in_words("all tokens, one token, special tokens", {"position": "patch"})
    assert patches == "all patches, one patch, special tokens"


def test_progress_counts_what_the_corpus_counts(capsys, monkeypatch):
    """Samples of sound and images were counted as tokens."""
    monkeypatch.setenv("CI", "true")
    with shown("a model") as progress:
        counting(progress, "images")
        progress(3, 3)
    assert "3/3 images" in capsys.readouterr().err


def test_progress_of_a_series_says_which_checkpoint_and_what_it_counts(capsys, monkeypatch):
    """It counted tokens, of speech too, and did not say that the bar was of all checkpoints."""
    monkeypatch.setenv("CI", "true")
    with shown("3 checkpoints × speech") as progress:
        part = part_of(progress, 2, 3, "checkpoint")
        counting(part, "frames")
        part(4, 4)
    assert "12/12 frames" in (line := capsys.readouterr().err)
    assert line.strip().endswith(": checkpoint 3 of 3: 3 checkpoints × speech")


def test_work_that_follows_has_its_own_count(capsys, monkeypatch):
    monkeypatch.setenv("CI", "true")
    with shown("a model") as progress:
        progress(9, 9)
        counting(progress, "passes", "attention replaced")
        progress(2, 2)
    assert capsys.readouterr().err.splitlines()[-1].endswith("attention replaced")


def test_vectors_are_not_called_tokens():
    """The page of vectors counted tokens."""
    run = anisoscope.measure(np.random.default_rng(0).normal(size=(60, 8)))
    assert run.manifest["corpus"]["words"]["counted"] == "vector"
    states = anisoscope.measure(np.random.default_rng(0).normal(size=(20, 5, 8)))
    assert states.manifest["corpus"]["words"]["position"] == "token"


def test_a_typo_of_corpus_is_recognised():
    """`corpu` was answered with `column`."""
    with pytest.raises(errors.UsageError, match="did you mean corpus"):
        anisoscope.measure("builtin:minilm", corpu="text.txt")
