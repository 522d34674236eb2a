"""`train` and `reproduce`, on the command line and in Python, call by call: what each option hands on, what is printed.

What trains and reproduces is a stand-in here, whose arguments are looked at; the rest is the program's own.
"""

import re
from importlib import import_module
from types import SimpleNamespace

import pandas as pd
import pytest
from papers_goldens import RESULTS
from test_commands import asked, runs, typed
from test_formats import check_answer
from typed import invoke

from anisoscope.errors import UsageError
from anisoscope.runs.job import OutputOptions
from anisoscope_papers import api, exporting
from anisoscope_papers.study import OUTCOMES

__all__ = ["asked", "runs"]  # fixtures
pytestmark = pytest.mark.usefixtures("runs")


@pytest.fixture
def reproduced(runs, asked):
    """A reproduction whose verdict is one line, and its page."""
    runner = import_module("anisoscope_papers.runner")
    (runs / "out/godey2024/paper").mkdir(parents=True)
    (runs / "out/godey2024/paper/report.html").touch()
    asked(runner, "explain_lacking", {"gated": "imagenet (in fig3b)"})
    asked(runner, "describe", ["fig1  a title", "fig2  another"])
    return asked(api, "run_studies", lambda *_: iter(["fig1 HOLDS"]))


def test_a_reproduction_prints_verdicts_and_on_stderr_what_it_is_without(reproduced):
    out, err = typed(
        "reproduce godey2024 --only fig1-2 --settings paper -o out -q --device mps",
        code=7,
    )
    assert out == ["fig1 HOLDS"]
    assert err == [
        "report: out/godey2024/paper/report.html (open it in a browser)",
        "left out: imagenet (in fig3b): gated",
    ]
    (((studies, folder, device, quiet), _),) = reproduced
    assert [study.name for study in studies] == ["fig1", "fig2"]
    assert (str(folder), device, quiet) == ("out/godey2024/paper", "mps", True)


@pytest.mark.parametrize("words", ["--data a=/x,b=/y", "--data a=/x --data b=/y"])
def test_copies_of_corpora_are_named_with_commas_or_one_by_one(
    reproduced, monkeypatch, words
):
    """With a comma the first had all the rest of the line as its folder."""
    local = import_module("anisoscope.data.local")
    given = []
    use_copies = local.use_copies
    monkeypatch.setattr(
        local, "use_copies", lambda copies: given.append(copies) or use_copies(copies)
    )
    typed(f"reproduce godey2024 --only fig1 -q {words}", code=7)
    assert given == [{"a": "/x", "b": "/y"}] and len(reproduced) == 1


@pytest.mark.usefixtures("reproduced")
def test_a_reproduction_that_lacks_nothing_ends_well(asked):
    asked(import_module("anisoscope_papers.runner"), "explain_lacking", {})
    assert typed("reproduce godey2024 --only fig1 -q") == (["fig1 HOLDS"], [])


@pytest.mark.usefixtures("reproduced")
def test_a_page_that_is_there_is_named_where_a_reproduction_ends_early(asked):
    def stopped(*_):
        raise UsageError("no", "such")
        yield

    asked(api, "run_studies", stopped)
    done = invoke("reproduce godey2024 --only fig1 --settings paper -o out -q")
    assert isinstance(done.exception, UsageError)
    assert done.stderr.splitlines() == [
        "report: out/godey2024/paper/report.html (open it in a browser)"
    ]


def test_a_dry_reproduction_describes_and_runs_nothing(reproduced):
    assert typed("reproduce godey2024 --only fig1 --dry-run -q") == (
        ["fig1  a title", "fig2  another"],
        [],
    )
    assert not reproduced


@pytest.mark.parametrize("task", ["masked-lm", "causal-lm"])
def test_training_prints_its_folder_and_what_comes_next(runs, asked, task):
    calls = asked(api, "train_language_model", runs / "series")
    out, err = typed(f"train {task} --preset tiny --steps 20 -o series --resume -q")
    assert out == [str(runs / "series")]
    assert err == ["next: anisoscope measure series --panel hidden"]
    (((training, place, quiet), _),) = calls
    assert (training.task, training.preset, training.steps) == (task, "tiny", 20)
    assert (str(place.output), place.resume, quiet) == ("series", True, True)


def test_training_a_classifier_prints_its_accuracy_and_warns_on_stderr(runs, asked):
    results = {"validation": {"accuracy": 0.91234, "n": 1200, "majority": 0.5}}
    counts = {
        split: {"a": n, "b": n}
        for split, n in (("train", 600), ("validation", 75), ("test", 75))
    }
    corpus = {
        "name": "t.csv",
        "counts": counts,
        "drawn": ["train", "validation", "test"],
    }
    training = {
        "results": results,
        "truncated": {"train": 1500, "test": 0},
        "corpus": corpus,
    }
    trained = SimpleNamespace(
        folder=runs / "my c", training=training, collapsed=True, max_length=64
    )
    calls = asked(api, "train_classifier", trained)
    out, err = typed(
        "train classifier --corpus synthetic --epochs 2 -o c --overwrite -q --device cuda:0"
    )
    assert out == [
        "validation: accuracy 0.912 (1,200 texts; majority rate 0.500)",
        str(runs / "my c"),
    ]
    assert err == [
        "t.csv has no splits: rows were drawn at random (--split-seed): 1,200 to train on, 150 to choose the epoch by, "
        "150 to test on",
        "collapsed: not above the majority rate on the test split; try --warmup 100 --clip 1",
        "train: 1,500 utterances cut at 64 tokens",
        "next: anisoscope classes 'my c'",
    ]
    (((recipe, place, quiet, device), _),) = calls
    assert (recipe.corpus, recipe.epochs, place.overwrite, quiet, device) == (
        "synthetic",
        2,
        True,
        True,
        "cuda:0",
    )
    trained.collapsed = False
    corpus["drawn"] = []
    assert len(typed("train classifier -q")[1]) == 2


def test_train_hands_on_its_keywords(runs, asked):
    calls = asked(api, "train_classifier", SimpleNamespace(folder=runs / "c"))
    assert (
        api.train(
            "classifier", corpus="synthetic", layers=2, device="cuda:1", resume=True
        )
        == runs / "c"
    )
    assert api.train("classifier") == runs / "c"
    (recipe, place, quiet, device), _ = calls[0]
    assert (recipe.corpus, recipe.layers, place, quiet, device) == (
        "synthetic",
        2,
        OutputOptions(resume=True),
        True,
        "cuda:1",
    )
    assert calls[1][0][-1] == "cpu"
    calls = asked(api, "train_language_model", runs / "s")
    assert api.train("causal-lm", steps=30, output="s", quiet=False) == runs / "s"
    (((training, place, quiet), _),) = calls
    assert (training.task, training.steps, str(place.output), quiet) == (
        "causal-lm",
        30,
        "s",
        False,
    )
    with pytest.raises(UsageError, match="a task"):
        api.train("masked")


def test_a_language_model_has_a_folder_by_its_task_and_corpus(asked):
    fit = asked(
        import_module("anisoscope_papers.training.language_model"), "train", "done"
    )
    assert (
        api.train("masked-lm", corpus="builtin:python-docs", preset="tiny", seed=3)
        == "done"
    )
    (_, folder), named = fit[0]
    assert str(folder) == "runs/masked-lm-tiny-python-docs/seed-3"
    assert (named["resume"], named["overwrite"]) == (False, False)


def test_a_table_of_verdicts_has_a_row_for_each(asked, monkeypatch):
    runner = import_module("anisoscope_papers.runner")
    studies = runner.choose("fosse2023", "table1,sec5")
    calls = asked(api, "run_studies", lambda *_: iter(["a line"]))
    monkeypatch.setattr(runner, "choose", lambda *_: studies)
    table = api.reproduce(
        "fosse2023", "table1,sec5", settings="finished", output=RESULTS, device="cuda"
    )
    assert table["study"].value_counts().to_dict() == {
        study.name: len(
            runner.open_finished(RESULTS / "fosse2023/finished" / study.name).verdicts
        )
        for study in studies
    }
    assert {"claim", "outcome", "value", "low", "high", "n", "p", "reason"} <= set(
        table
    )
    assert table.attrs["without"] == runner.explain_lacking(
        studies, RESULTS / "fosse2023/finished"
    )
    assert calls[0][0][1:] == (RESULTS / "fosse2023/finished", "cuda", True)


@pytest.mark.parametrize(("finished", "drawn"), [([], []), (["out/fig1"], ["out"])])
def test_what_was_finished_has_its_page_where_a_later_study_fails(
    runs, asked, monkeypatch, finished, drawn
):
    runner = import_module("anisoscope_papers.runner")
    # Imported before its names are replaced: it would keep the replacement for all tests.
    page = import_module("anisoscope_papers.studies_page")

    def broken(*_given, **_named):
        yield "fig1 HOLDS"
        raise UsageError("a corpus", "none")

    monkeypatch.setattr(runner, "reproduce", broken)
    monkeypatch.setattr(runner, "list_reproductions", lambda _folder: finished)
    pages = asked(page, "build_studies")
    told = api.run_studies([SimpleNamespace(name="fig1")], runs / "out", "cpu", True)
    assert next(told) == "fig1 HOLDS"
    with pytest.raises(UsageError):
        next(told)
    assert [given for given, _ in pages] == [(runs / place,) for place in drawn]


def stopped(*_given, **_named):
    """A generator, or a function, that Ctrl-C ends."""
    raise KeyboardInterrupt


def test_what_is_kept_is_counted_where_someone_ends_it(runs, monkeypatch):
    monkeypatch.setattr(import_module("anisoscope_papers.runner"), "reproduce", stopped)
    (runs / "out/fig1").mkdir(parents=True)
    (runs / "out/fig1/study.json").touch()
    studies = [SimpleNamespace(name=name) for name in ("fig1", "fig2", "fig3")]
    with pytest.raises(KeyboardInterrupt) as end:
        list(api.run_studies(studies, runs / "out", "cpu", True))
    assert end.value.__notes__ == [
        f"{runs}/out holds 1 of 3 studies, and what is done of the next",
        "",
    ]
    monkeypatch.setattr(
        import_module("anisoscope_papers.training.language_model"), "train", stopped
    )
    (runs / "lm/resume").mkdir(parents=True)
    with pytest.raises(KeyboardInterrupt) as end:
        api.train("masked-lm", output="lm")
    assert end.value.__notes__ == ["lm holds the last state", "--resume"]
    monkeypatch.setattr(
        import_module("anisoscope_papers.training.classifier"),
        "train_classifier",
        stopped,
    )
    for overwrite in (False, True):
        with pytest.raises(KeyboardInterrupt) as end:
            api.train("classifier", overwrite=overwrite)
        assert hasattr(end.value, "__notes__") is not overwrite


def test_answers_of_the_papers_are_as_published(tmp_path):
    """The JSON of `reproduce` by the schema; claims exported as a table, and as a page each."""
    words = f"reproduce godey2024 --only fig17 --output {tmp_path} -q --format json --export"
    done = invoke([*words.split(), "csv"])
    given = check_answer(done.stdout, "reproduce")
    assert {row["study"] for row in given["records"]} == {"fig17"}
    table = pd.read_csv(tmp_path / "godey2024" / "quick" / "claims.csv")
    assert list(table["claim"]) == [row["claim"] for row in given["records"]]
    assert set(table["status"]) == {"not evidence"} and set(table["outcome"]) == {
        "identity"
    }
    done = invoke([*words.split(), "html"])
    index = (tmp_path / "godey2024" / "quick" / "claims" / "index.html").read_text(
        "utf-8"
    )
    for page in re.findall(r'href="([^"]+)"', index):
        assert "not evidence" in (
            tmp_path / "godey2024" / "quick" / "claims" / page
        ).read_text("utf-8")
    assert len(re.findall(r"href=", index)) == len(table)


def test_every_outcome_has_a_word_of_other_tools():
    assert set(exporting.STATUS) == set(OUTCOMES)
    assert (
        exporting.STATUS["fails"] == "falsified"
        and exporting.STATUS["holds"] == "verified"
    )
