"""Runs, states, cures and classifiers in Python: what each hands on, keeps, copies and refuses."""

import importlib
import json
import pickle
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

import anisoscope
from anisoscope.api import (
    classifiers,
    comparison,
    curing,
    functions,
    keywords,
    objects,
    run as runs_in_python,
    state,
    working,
)
from anisoscope.batch import Batch, Stream
from anisoscope.data import in_memory
from anisoscope.errors import MeasureError, OutputError, UsageError
from anisoscope.measure.inputs import LONGEST
from anisoscope.runs.finding import Finding
from anisoscope.runs.job import ClassesOptions, Job, OutputOptions
from anisoscope.store import as_records

DRAW = np.random.default_rng(0)


def a_run(folder=None, model="m", **manifest):
    frame = as_records(pd.DataFrame([{"metric": "mean_cosine", "value": 0.5}]))
    made = anisoscope.Run(records=frame, manifest={"model": model} | manifest)
    made.folder = folder
    return made


def stand_in(monkeypatch, module, *names, result="made"):
    """Replace functions of a module; what they are called with."""
    asked = []
    for name in names:

        def called(*given, of=name, **named):
            asked.append((of, given, named))
            return result

        monkeypatch.setattr(module, name, called)
    return asked


# ---- runs


def test_tables_are_of_the_policy_that_is_asked_for(monkeypatch):
    empty = pd.DataFrame()
    asked = stand_in(
        monkeypatch,
        runs_in_python,
        "short_table",
        "value_table",
        "attention_table",
        result=empty,
    )
    run = a_run()
    run.replicates = "replicates"
    assert run.table("content") is empty
    assert [(name, given[1:], named) for name, given, named in asked] == [
        ("short_table", ("content",), {}),
        ("value_table", ("content",), {}),
        ("attention_table", (), {"heads": False, "replicates": "replicates"}),
    ]
    asked.clear()
    run.attention(heads=True)
    assert asked[0][2] == {"heads": True, "replicates": "replicates"}
    found = stand_in(monkeypatch, runs_in_python, "findings", result=[])
    assert a_run(tokens={"7": "the"}).findings == []
    assert found[0][1][1] == {"7": "the"}


def test_a_run_in_a_folder_has_its_sample_there(monkeypatch, tmp_path):
    monkeypatch.setattr(runs_in_python, "find_sample", lambda folder: folder / "s")
    run = a_run(tmp_path)
    run.sample = "in memory"
    assert run.kept.sample == tmp_path / "s" and run.kept.name == tmp_path.name
    run.folder, run.replicates = None, np.ones((1, 4))
    kept = run.kept
    assert kept.sample == "in memory" and kept.name == "m"
    assert kept.records is run.records and kept.manifest == {"model": "m"}
    assert kept.replicates is run.replicates


def test_a_copy_of_a_run_has_its_sample_wherever_that_was(tmp_path):
    run = anisoscope.measure(DRAW.normal(size=(60, 4)) + 1)
    first = run.save(tmp_path / "first")
    second = first.save(tmp_path / "second")
    name = runs_in_python.SAMPLE
    assert (tmp_path / "first" / name).exists()
    for copy in (first, second):
        kept = runs_in_python._read_sample(copy.folder / name)
        assert set(kept) == set(run.sample)
        for key, vectors in kept.items():
            assert vectors.equal(run.sample[key]), key
    assert (tmp_path / "second" / name).read_bytes() == (
        tmp_path / "first" / name
    ).read_bytes()
    with pytest.raises(OutputError):
        run.save(tmp_path / "first")
    opened = anisoscope.Run(tmp_path / "second")
    np.testing.assert_array_equal(opened.replicates, run.replicates)
    with pytest.raises(OutputError, match="nowhere, which is not there"):
        anisoscope.Run(tmp_path / "nowhere")


def test_a_page_is_written_where_it_is_asked_for(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(
        importlib.import_module("anisoscope.report"),
        "build_page",
        lambda *given: asked.append(given) or "page",
    )
    monkeypatch.setattr(
        anisoscope.Run, "save", lambda _, folder: asked.append(("saved", folder))
    )
    run = a_run(tmp_path)
    assert run.report() == "page" and asked.pop() == (tmp_path, ("svg",))
    run.report(tmp_path, pdf=True)
    assert asked == [(tmp_path, ("svg", "pdf"))]
    asked.clear()
    run.report(tmp_path / "other")
    assert asked == [
        ("saved", tmp_path / "other"),
        (tmp_path / "other", ("svg",)),
    ]
    with pytest.raises(UsageError) as caught:
        a_run().report()
    assert str(caught.value) == (
        "expected a folder for the report; got a run in memory. Cure: name a folder: run.report('runs/mine')"
    )


def test_a_run_is_logged_under_its_name_or_another(monkeypatch, tmp_path):
    from anisoscope.monitor import trackers

    asked = stand_in(monkeypatch, trackers, "log_run", result=["there"])
    run = a_run(tmp_path / "mine")
    assert run.log("wandb", "trackio") == ["there"]
    run.log("wandb", name="other", folder=tmp_path)
    (_, given, named), (_, _, other) = asked
    assert given == (run.records, ("wandb", "trackio"))
    assert named == {"name": "mine", "folder": Path("runs/tensorboard")}
    assert other == {"name": "other", "folder": tmp_path}


def test_a_classifier_of_a_folder_is_opened_as_it_was_measured(monkeypatch, tmp_path):
    from anisoscope.runs import explaining

    asked = stand_in(
        monkeypatch, explaining, "open_classifier", result=("head", ["note"])
    )
    identity = {"classes": {"corpus": "c", "limit": 7, "columns": {"text": "body"}}}
    monkeypatch.setattr(
        runs_in_python,
        "RunFolder",
        lambda _: SimpleNamespace(identity=lambda: identity),
    )
    run = a_run(tmp_path, model="named")
    assert run._classifier == ("head", ["note"])
    ((_, (options,), _),) = asked
    assert isinstance(options, ClassesOptions)
    assert (options.model, options.corpus, options.limit) == ("named", "c", 7)
    assert "body" in vars(options).values()
    identity = {"other": 1}
    for folder in (tmp_path, None):
        with pytest.raises(UsageError, match=r"anisoscope\.classes\(model, corpus\)"):
            _ = a_run(folder)._classifier


def test_a_notebook_shows_a_run_with_its_own_name_and_sentences(monkeypatch):
    monkeypatch.setattr(runs_in_python, "has_extra", lambda _: False)
    monkeypatch.setattr(
        runs_in_python, "findings", lambda *_: [Finding("rule", "a < b")]
    )
    html = a_run(model="<m>")._repr_html_()
    assert "<b>&lt;m&gt;</b>" in html and "<li>a &lt; b</li>" in html
    monkeypatch.setattr(runs_in_python, "has_extra", lambda name: name == "report")
    monkeypatch.setattr(anisoscope.Run, "_draw_first_figure", lambda _: "FIGURE")
    assert 'background: white">FIGURE</div>' in a_run()._repr_html_()


def test_runs_of_one_model_are_compared_as_they_are(monkeypatch, tmp_path):
    """A folder is that of a series only if it says so."""
    one, plain = a_run(), a_run(tmp_path)
    assert working._name_runs([one, plain]) == [one, plain]
    pages = {}
    monkeypatch.setattr(working, "list_entries_of", lambda _: pages)
    monkeypatch.setattr(working, "require_extra", lambda *_: None)
    asked = []

    class Stand(anisoscope.Run):
        def __init__(self, folder):
            self.folder = folder

        def report(self, *given, **named):
            asked.append((self.folder, given, named))
            return "page"

    monkeypatch.setattr(working, "Run", Stand)
    assert working.report(Stand("mine"), tmp_path, pdf=True) == "page"
    assert working.report("a/run", tmp_path, pdf=True) == "page"
    assert asked == [
        ("mine", (tmp_path,), {"pdf": True}),
        ("a/run", (tmp_path,), {"pdf": True}),
    ]
    pages |= {"none": lambda _: None, "own": lambda folder: folder / "own.html"}
    assert working.report("a/run") == Path("a/run/own.html") and len(asked) == 2


# ---- a comparison


class Found:
    """What a comparison found, made up."""

    names, metric, notes, findings = ("a", "b"), "drift", ("a <note>",), ()

    def __init__(self, **columns):
        place = {"run": "b", "stack": "encoder", "layer": 1, "layer_other": 1}
        place |= {"head": None, "site": "hidden", "component": None}
        ends = {"first": 0.1, "second": 0.4, "difference": 0.3, "low": 0.2, "high": 0.4}
        self.table = pd.DataFrame([place | ends] * 2).assign(**columns)


def test_columns_of_a_comparison_are_shown_if_some_row_lacks_them():
    def shown(**columns):
        return list(comparison.Comparison(Found(**columns)).table())[:-5]

    assert shown() == ["run", "layer"]
    assert shown(component=["x", None]) == ["run", "layer", "component"]
    assert shown(head=[0, 1], stack=["e", "d"]) == ["run", "stack", "layer", "head"]
    assert shown(component=["x", "x"], layer_other=[1, 2]) == [
        "run",
        "layer",
        "layer_other",
    ]


def test_a_page_of_a_comparison_has_files_of_the_formats(monkeypatch, tmp_path):
    from anisoscope.report import comparison as page

    asked = stand_in(monkeypatch, page, "write_comparison", result="page")
    found = comparison.Comparison(Found())
    assert found.report(tmp_path) == "page"
    found.report(str(tmp_path), pdf=True)
    assert [given[1:] for _, given, _ in asked] == [
        (tmp_path, ("svg",)),
        (tmp_path, ("svg", "pdf")),
    ]
    monkeypatch.setattr(comparison, "has_extra", lambda _: False)
    assert "<li>a &lt;note&gt;</li>" in found._repr_html_()


# ---- cures


def test_cures_are_tried_on_what_was_given_with_all_about_it(monkeypatch, tmp_path):
    of_run = SimpleNamespace(vectors="x", units="u")
    opened = SimpleNamespace(units="own units", labels="own labels")
    asked = stand_in(monkeypatch, curing, "try_cures", "Cures", result="trials")
    monkeypatch.setattr(curing, "is_run_folder", lambda path: path.name == "run")
    monkeypatch.setattr(curing, "read_layer_of_run", lambda *_: of_run)
    monkeypatch.setattr(curing, "open_vectors", lambda _: opened)
    monkeypatch.setattr(
        curing, "read_layer_of_vectors", lambda _, layer: f"layer {layer}"
    )

    def cure(vectors, **how):
        asked.clear()
        curing.cure(vectors, cures="centre", layer="5", seed=3, **how)
        (_, (array, names), named), (_, made, _) = asked
        assert names == ["centre"] and made[0] == "trials" and named.pop("seed") == 3
        assert made[2] is array and made[3] is named["partner"]
        return array, named

    assert cure(tmp_path / "run") == (
        "x",
        {"units": "u", "labels": None, "partner": None},
    )
    about = {"units": "own units", "labels": "own labels"}
    # of a file of partners the same layer is read
    assert cure("v.npy", pairs="p.npy") == (
        "layer 5",
        about | {"partner": "layer 5"},
    )
    array, named = cure([[1, 2], [3, 4]], units=["u"], labels=["l"], pairs=[[5, 6]])
    assert array.dtype == np.float64 and named.pop("partner").tolist() == [[5, 6]]
    assert named == {"units": ["u"], "labels": ["l"]}
    run = a_run(tmp_path / "run")
    assert cure(run)[0] == "x"
    with pytest.raises(UsageError) as caught:
        curing.cure("v.npy", labels=[1])
    assert caught.value.got == "them with v.npy"
    assert caught.value.cure == "leave units and labels out"


def test_a_notebook_shows_scores_before_and_after_cures(monkeypatch):
    rows = [
        {"cure": "whiten", "score": "A", "before": 0.9, "after": 0.25},
        {"cure": "centre", "score": "A", "before": 0.9, "after": 0.5},
    ]
    trials = SimpleNamespace(
        text="t", notes=(), chosen=None, table=lambda: pd.DataFrame(rows)
    )
    monkeypatch.setattr(curing, "fit_to_use", lambda *_: None)
    html = curing.Cures(trials, ["whiten", "centre"], "v")._repr_html_()
    found = [html.index(number) for number in ("0.900", "0.250", "0.500")]
    assert found == sorted(found) and html.count("0.900") == 1


# ---- classifiers


def test_texts_in_memory_and_the_model_reach_the_measurement(monkeypatch):
    asked = stand_in(
        monkeypatch, classifiers, "measure_classes", result=SimpleNamespace(folder="f")
    )
    opened = stand_in(monkeypatch, classifiers, "_open", result=("head", []))
    monkeypatch.setattr(
        classifiers,
        "run_to_folder_or_memory",
        lambda measure, output: SimpleNamespace(made=measure(output)),
    )
    texts = [("a", "x"), ("b", "y")]
    module = torch.nn.Linear(1, 1)
    run = classifiers.classes(module, texts, processor="p", limit=3, resume=True)
    ((_, (settings, output, quiet, subject, path), _),) = asked
    assert (settings.model, settings.corpus, settings.limit) == ("Linear", "texts", 3)
    assert output.resume is True and quiet is True
    assert subject.model is module and path.endswith("texts.parquet")
    assert opened == [], "the model is opened once more only if it is asked to explain"
    assert run.open_classifier() == ("head", [])
    ((_, given, _),) = opened
    assert given == (settings, texts, subject)
    classifiers.classes("named", "c")
    assert asked[1][1][3:] == (None, None)


def test_a_loaded_model_needs_no_other_tokenizer(monkeypatch):
    from anisoscope.models.load import Subject

    loaded = Subject(torch.nn.Linear(1, 1), None, "name", None, "hash")
    assert classifiers._name_model(loaded, None) == ("name", loaded)
    assert classifiers._name_model(loaded, "p")[1].processor == "p"
    assert objects.wrap_module(loaded, None) is loaded
    assert objects.wrap_module(loaded, "p").processor == "p"
    assert loaded.processor is None
    for output in ({"resume": True}, {"overwrite": True}):
        with pytest.raises(UsageError, match="leave output out"):
            classifiers.explain(loaded, "a", **output)
    with pytest.raises(UsageError, match=r"\('a', 'x', 'z'\)\" at index 1"):
        classifiers._tabulate_pairs([("a", "x"), ("a", "x", "z")])
    required, titles = [], []
    monkeypatch.setattr(classifiers, "require_extra", lambda *of: required.append(of))

    def show(title, *, quiet):
        titles.append((title, quiet))
        raise StopIteration

    monkeypatch.setattr(classifiers, "show_progress", show)
    for corpus, title in (("c", "m × c"), ("", "m × what it was trained on")):
        with pytest.raises(StopIteration):
            classifiers.measure_classes(
                ClassesOptions(model="m", corpus=corpus), OutputOptions(), True, loaded
            )
        assert titles.pop() == (title, True)
        assert required.pop() == ("data", "to measure classes")


# ---- functions


def test_a_corpus_needs_a_tokenizer_of_texts_alone(monkeypatch):
    monkeypatch.setattr(functions, "check_corpus", lambda _: None)

    def subject(modality, processor=None):
        return SimpleNamespace(name="s", modality=modality, processor=processor)

    for of in (None, subject("image"), subject("text", "p")):
        assert functions._set_corpus(Job(), of, "c").corpus == "c"
    with pytest.raises(UsageError) as caught:
        functions._set_corpus(Job(), subject("text"), "c")
    assert str(caught.value) == (
        "expected a tokenizer that reads the corpus; got s without one. Cure: give processor= "
        "(the model's tokenizer), or inputs"
    )
    asked = stand_in(monkeypatch, functions, "run_to_folder_or_memory")
    monkeypatch.setattr(functions, "check_model", lambda _: None)
    named = []
    monkeypatch.setattr(
        functions, "_set_corpus", lambda job, _, corpus: named.append(corpus) or job
    )
    functions.measure("m", "in place", corpus="c")
    functions.measure("m", corpus="c")
    assert named == ["in place", "c"] and len(asked) == 2


def test_a_class_with_parameters_is_no_array():
    class Looks:
        shape, dtype = (2,), "float32"

    class Model(Looks):
        def parameters(self):
            return iter(())

    assert functions.are_vectors(Looks()) and not functions.are_vectors(Model())


def test_inputs_keep_their_units_warnings_and_ways_to_be_read(monkeypatch):
    from anisoscope.measure import calls, inputs as given_inputs

    asked = []

    class Plan:
        def __init__(self, *given, **named):
            asked.append((given, named))
            self.warnings, self.batches = ["a warning"], []

    monkeypatch.setattr(given_inputs, "GivenInputs", Plan)
    monkeypatch.setattr(calls, "check_module", lambda _: None)
    subject = SimpleNamespace(model="model", processor=None, name="s")
    batches = ({"x": 1},)

    def read(options=None):
        given = (Job(), subject, batches, "units", "forward", options or {})
        return functions._open_inputs(*given, OutputOptions())

    _, found, opened = read({"dtype": "float32"})
    how = {"units": "units", "forward": "forward"}
    assert asked == [((batches, "model"), how)] and found is subject
    assert opened.corpus == {
        "name": "inputs",
        "kind": "tuple",
        "warnings": ["a warning"],
    }
    for name in ("limit", "max_length"):
        with pytest.raises(UsageError, match=f"{name} only with a corpus or texts"):
            read({name: 5})


def test_labelled_texts_in_memory_are_written_without_the_index_of_their_table():
    from pyarrow import parquet

    table = pd.DataFrame({"text": ["b", "a"], "label": [1, 0]}, index=[7, 3])
    pairs = [("b", 1), ("a", 0)]
    for texts in (table, pairs):
        with classifiers._write_temporary_file(texts) as path:
            assert path is not None
            found = parquet.read_table(path)
        assert found.column_names == ["text", "label"]
        assert found.to_pydict() == {"text": ["b", "a"], "label": [1, 0]}
        assert not Path(path).exists()
    with classifiers._write_temporary_file("name") as path:
        assert path is None


def test_texts_in_memory_are_a_corpus_without_a_path(monkeypatch):
    from anisoscope.runs import run

    read = []

    def open_plan(job, _subject):
        lines = Path(job.corpus).read_text().splitlines()
        read.extend(json.loads(line)["text"] for line in lines)
        return "plan", {"name": job.corpus, "path": job.corpus, "kind": "documents"}

    monkeypatch.setattr(run, "open_plan_of", open_plan)
    subject = SimpleNamespace(
        name="s", processor=SimpleNamespace(tokenize=len), model="m"
    )
    texts = ["one\ntwo", "three"]
    job, _, opened = functions._open_inputs(
        Job(), subject, texts, None, None, {}, OutputOptions()
    )
    assert job.corpus == "texts" and read == texts
    assert opened.corpus == {"name": "texts", "kind": "documents"}
    assert opened.plan == "plan"
    with pytest.raises(UsageError, match="join the texts of a unit into one text"):
        functions._open_texts(Job(), subject, texts, ["u"])
    for processor, got in ((None, "s without one"), (3, "int")):
        subject.processor = processor
        with pytest.raises(UsageError) as caught:
            functions._open_texts(Job(), subject, texts, None)
        assert caught.value.got == got


def test_a_series_is_measured_as_it_was_asked_for(monkeypatch, tmp_path):
    from anisoscope.models import series as checkpoints
    from anisoscope.runs import series

    monkeypatch.chdir(tmp_path)
    asked = stand_in(monkeypatch, series, "measure_series", result="series")
    monkeypatch.setattr(functions, "require_for_model", lambda _: None)
    monkeypatch.setattr(checkpoints, "expand", lambda name: [name, "other"])
    hints = []

    def hint(count):
        hints.append(count)
        return functions.show_progress("x", quiet=True)

    monkeypatch.setattr(functions, "interrupt_hint", hint)
    job = Job(model="s", keep=7, skip_bad=True)
    output = OutputOptions(output=tmp_path / "o", overwrite=True)
    assert functions.measure_checkpoints(job, output, True) == "series"
    ((_, given, named),) = asked
    assert given == (["s", "other"], job, tmp_path / "o")
    assert named.pop("progress") and named == {
        "skip_bad": True,
        "keep": 7,
        "overwrite": True,
    }
    (count,) = hints
    assert count() == ""
    (tmp_path / "o" / "a").mkdir(parents=True)
    (tmp_path / "o" / "b").mkdir()
    (tmp_path / "o" / "a" / "manifest.json").touch()
    assert count() == f"{tmp_path / 'o'} holds 1 of 2 checkpoints"
    functions.measure_checkpoints(Job(model="s"), OutputOptions(), True)
    _, (*_, folder), named = asked[1]
    assert folder == Path("runs/series-s") and named["skip_bad"] is False
    asked = stand_in(monkeypatch, functions, "measure_checkpoints", result=a_run())
    monkeypatch.setattr(functions, "Run", lambda folder: folder)
    functions.series("s", "c", output=tmp_path, limit=3, quiet=False)
    ((_, (job, where, quiet), _),) = asked
    assert (job.model, job.corpus, job.limit, quiet) == ("s", "c", 3, False)
    assert where.output == tmp_path
    with pytest.raises(
        UsageError, match=r"the series s\. Cure: use anisoscope\.series"
    ):
        monkeypatch.setattr(checkpoints, "is_series", lambda _: True)
        functions.measure_job(Job(model="s"), output, True)


def test_a_keyword_that_these_settings_have_means_what_it_says():
    """Words of other libraries are known only where nothing is called so here."""
    for name, here in keywords.CALLED_HERE.items():
        with pytest.raises(UsageError) as caught:
            keywords.read_keywords(Job, {name: 1})
        assert caught.value.cure == f"it is called {here} here"
    from anisoscope.options import declare_settings

    @declare_settings
    class Own:
        dataset: str = ""

    settings, _, _ = keywords.read_keywords(Own, {"dataset": "x"})
    assert settings.dataset == "x"


# ---- objects


def test_a_table_without_rows_has_no_first_row():
    import pyarrow

    table = pyarrow.table({"text": ["a", "b"], "n": [1, 2]})
    assert in_memory._read_first_row(table) == {"text": "a", "n": 1}
    assert in_memory._read_first_row(table[:0]) == {}
    assert in_memory.read_texts_of_table(table, None) == ["a", "b"]


class Transformer(torch.nn.Module):
    """The first module of a model of sentence-transformers, as far as it is looked at."""

    def __init__(self, base):
        super().__init__()
        self.auto_model = base


class Sentences(torch.nn.Sequential):
    tokenizer, default_prompt_name = "tokenizer", None


Sentences.__module__ = "sentence_transformers"


def test_a_sentence_model_is_left_as_it_was(monkeypatch):
    from anisoscope.models import other_libraries

    monkeypatch.setattr(
        other_libraries, "try_text_pooling", lambda *given: [f"tried {given[1:]}"]
    )
    base = torch.nn.Linear(2, 2)
    model = Sentences(Transformer(base), torch.nn.Identity())
    with objects.unwrap_model(model, "p") as (subject, processor):
        assert subject.model is base and subject.processor == "tokenizer"
        assert processor == "p" and subject.name == "Sentences"
        assert len(base.sentence) == 1 and base.sentence[0] is model[1]
        assert subject.notes == ["tried ('tokenizer', 'Transformer, Identity')"]
    assert not hasattr(base, "sentence")
    model.default_prompt_name = "query"
    with pytest.raises(ZeroDivisionError), objects.unwrap_model(model, None) as found:
        assert found[0].notes[1] == (
            "texts are measured without the prompt that encode() would put first, 'query'"
        )
        raise ZeroDivisionError
    assert not hasattr(base, "sentence")
    with (
        pytest.raises(UsageError) as caught,
        objects.unwrap_model(Sentences(torch.nn.Identity()), None),
    ):
        pass
    assert caught.value.got == "a Sentences whose first module is Identity"


# ---- a state


class Reads(torch.nn.Module):
    def __init__(self, value=1.0):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((3,), value))

    def forward(self, input_ids):
        return input_ids


def test_what_a_state_is_of_tells_models_and_kinds_of_vectors_apart():
    one = state.State()
    of = one._describe_model(Reads())
    assert (of["model"], of["parameters"]) == ("Reads", 3)
    assert of == one._describe_model(Reads()) != one._describe_model(Reads(2.0))
    flat = state.wrap_vectors({"a": np.ones((4, 2)), "b": np.ones((4, 3))})
    assert one._describe_vectors(flat) == {
        "model": "vectors",
        "layers": {"a": 2, "b": 3},
        "sequences": False,
    }
    assert one._describe_vectors(state.wrap_vectors(np.ones((4, 1, 2))))["sequences"]
    one.add(np.ones((4, 2)) + DRAW.normal(size=(4, 2)))
    with pytest.raises(UsageError, match="use one State per model"):
        one.add(np.ones((4, 1, 2)))


def test_batches_of_which_one_names_its_units_are_numbered_by_what_they_say():
    ids = torch.ones(2, 3, dtype=torch.long)
    named = {"input_ids": ids, "unit": torch.tensor([7, 9])}
    one = state.State("x")
    read = list(one._read_batches(Reads(), [named, {"input_ids": ids}], None, None))
    assert read[0].unit.tolist() == [7, 9] and one._numbered == 0
    plain = list(one._read_batches(Reads(), [{"input_ids": ids}], None, None))
    assert one._numbered == 2 and plain[0].unit.tolist()[0] > 1 << 40


def test_units_that_come_again_have_their_later_tokens_behind_the_earlier_ones():
    """A dict names its units alone; a batch of the caller's own says where its tokens are, too."""
    one, starts = state.State(), []
    ids = torch.ones(2, 3, dtype=torch.long)
    named = {"input_ids": ids, "unit": torch.tensor([7, 9])}
    for given in (named, named, named | {"unit": torch.tensor([9, 9])}):
        (batch,) = one._read_batches(Reads(), [given], None, None)
        starts.append([x.start.tolist() for x in batch.streams.values()])
    for first, second, third in zip(*starts, strict=True):
        assert (first, second) == ([0, 0], [LONGEST, LONGEST])
        assert third == [2 * LONGEST, 3 * LONGEST]
    (kept,) = one._read_batches(Reads(), [batch], None, None)
    assert kept is batch


def test_padding_before_the_first_token_moves_no_position():
    mask = torch.tensor([[0, 1, 1], [1, 1, 0], [0, 0, 1]]).bool()
    stream = Stream(mask, torch.zeros_like(mask), torch.tensor([1, 2, 3]))
    batch = Batch({"x": 1}, torch.tensor([0, 0, 0]), {"encoder": stream}, print)
    made = state._renumber(batch, np.array([5, 6, 7]), np.array([100, 200, 300]))
    assert made.unit.tolist() == [5, 6, 7] and made.call is print
    assert made.streams["encoder"].start.tolist() == [99, 200, 298]
    assert made.streams["encoder"].mask is mask and batch.unit.tolist() == [0, 0, 0]


def test_blocks_of_vectors_have_their_own_units_and_places(monkeypatch):
    added = []
    monkeypatch.setattr(state, "ROWS", 2)
    monkeypatch.setattr(
        state,
        "measure_into",
        lambda _model, _measurement, batches: added.extend(batches),
    )
    one = state.State().add(np.arange(10.0).reshape(5, 2), units=[1, 1, 2, 1, 2])
    starts = [start for batch in added for start in batch.streams["vectors"].start]
    assert [unit for batch in added for unit in batch.unit.tolist()] == [1, 1, 2, 1, 2]
    assert [int(start) // LONGEST for start in starts] == [0, 1, 0, 2, 1]
    values = torch.cat([next(iter(batch.inputs.values())).flatten() for batch in added])
    assert values.tolist() == list(range(10)) and one.tokens == 5


def test_batches_of_a_model_add_up_in_tokens_and_prove_once(monkeypatch):
    asked = []

    def measure(_model, measurement, batches, *, prove):
        asked.append((len(batches), prove))
        measurement.proof = "proved"

    monkeypatch.setattr(state, "measure_into", measure)
    monkeypatch.setattr(
        state, "summarise_embeddings", lambda *_: asked.append("summary") or {"w": 1}
    )
    one = state.State(panel="hidden")
    ids = torch.ones(2, 3, dtype=torch.long)
    one.add_batch(Reads(), ids)
    one.add_batch(Reads(), [ids, ids])
    assert one.tokens == 18
    assert [call for call in asked if call != "summary"] == [(1, True), (2, False)]
    assert asked.count("summary") <= 1
    aligned = state.State(panel="alignment")
    with pytest.raises(UsageError, match="leave the panel alignment out"):
        aligned.add_batch(Reads(), ids)


def test_time_adds_up_and_a_text_says_what_there_is(monkeypatch):
    now = [10.0]
    monkeypatch.setattr(state.time, "monotonic", lambda: now[0])
    one = state.State()
    assert repr(one) == "State of nothing yet"
    for seconds in (2.0, 0.5):
        with one._count_seconds():
            now[0] += seconds
    assert one.seconds == 2.5
    one._measurement = SimpleNamespace(
        sums=SimpleNamespace(units=[1] * 1234), nbytes=2_560_000
    )
    one.of, one.tokens = {"model": "M"}, 5678
    assert repr(one) == "State of M: 1,234 units, 5,678 tokens, 2.6 MB"


def test_states_of_one_name_merge_if_one_of_them_names_its_units():
    x = DRAW.normal(size=(4, 3))
    plain = state.State("s").add(x)
    named = state.State("s").add(x, units=["a", "b", "c", "d"])
    assert plain.merge(named).n_units == 8
    with pytest.raises(MeasureError) as caught:
        plain.merge(state.State("s").add(x))
    assert caught.value.got == "two called 's' whose units have no names"
    assert "State(name=…)" in caught.value.cure
    other = state.State("t").add(DRAW.normal(size=(4, 2)))
    with pytest.raises(MeasureError, match="merge only states of the same model"):
        plain.merge(other)
    empty = state.State("e")
    assert plain.merge(empty) is plain and empty.merge(plain) is plain


def test_an_empty_state_is_sent_with_its_settings():
    one = state.State("n", groups=8, seed=5)
    sent = pickle.loads(pickle.dumps(one))
    assert sent.name == "n" and sent.settings == one.settings and sent.names == {"n"}
    full = state.State("n", groups=8).add(DRAW.normal(size=(20, 3)))
    again = pickle.loads(pickle.dumps(full))
    assert again.n_units == 20 and again.settings == full.settings
    assert again.tokens == 20 and again.names == {"n"}
    with pytest.raises(UsageError, match="add vectors or a batch first"):
        one.save("nowhere")


def test_a_finished_state_says_what_it_is_of_whenever_it_is_finished(tmp_path):
    x = DRAW.normal(size=(30, 3)) + 1
    both = state.State("a").add(x).merge(state.State("b").add(x + 0.5))
    both.seconds, both.tokens = 1.234, 77
    first = both.finish(tmp_path / "first", corpus="mine")
    both.seconds = 9.0
    second = both.finish(tmp_path / "second", corpus="mine")
    # how long it took is no part of what was measured
    assert first.manifest["run"] == second.manifest["run"]
    assert (first.manifest["seconds"], second.manifest["seconds"]) == (1.23, 9.0)
    manifest = first.manifest
    assert manifest["processes"] == 2 and manifest["model"] == "vectors"
    assert manifest["corpus"]["name"] == "mine"
    assert set(first.records["corpus"]) == {"mine"}
    assert manifest["corpus"]["n_tokens"] == 77 and both.n_units == 60
    assert manifest["parameters"] == 0 and manifest["weights_sha256"] is None
    both.of |= {"weights": "w", "parameters": 5}
    other = both.finish(tmp_path / "third", corpus="other")
    assert other.manifest["weights_sha256"] == "w"
    assert other.manifest["parameters"] == 5
    assert other.manifest["run"] != manifest["run"]
    assert (tmp_path / "third").is_dir() and both.finish().folder is None


# ---- more of what is handed on


def test_a_model_is_measured_under_its_name_and_that_of_its_corpus(monkeypatch):
    from contextlib import contextmanager

    from anisoscope.models import series
    from anisoscope.runs import run as runs

    asked = stand_in(monkeypatch, runs, "run", result="run")
    required, titles = [], []
    monkeypatch.setattr(functions, "require_for_model", required.append)
    monkeypatch.setattr(series, "is_series", lambda _: False)

    @contextmanager
    def show(title, unit="tokens", *, quiet):
        titles.append((title, unit, quiet))
        yield "progress"

    monkeypatch.setattr(functions, "show_progress", show)
    job = Job(model="m", corpus="c")
    output = OutputOptions(output=Path("o"), resume=True)
    assert functions.measure_job(job, output, False) == "run"
    assert required == ["m"]
    ((_, given, named),) = asked
    assert given == (job,) and named["output"] == Path("o")
    assert (named["resume"], named["overwrite"]) == (True, False)
    assert (named["progress"], named["subject"], named["reading"]) == (
        "progress",
        None,
        None,
    )
    functions.measure_job(Job(model="m"), output, True, "subject", "reading")
    named = asked[1][2]
    assert (named["subject"], named["reading"]) == ("subject", "reading")
    assert required == ["m"], "a model in memory needs no package"
    assert titles == [
        ("m × c", "tokens", False),
        ("m × the built-in corpus", "tokens", True),
    ]
    with pytest.raises(UsageError, match="unit_column only with a file of vectors"):
        functions.measure_job(Job(model="m", unit_column="u"), output, True)


def test_vectors_are_measured_under_the_name_of_their_file(monkeypatch):
    from contextlib import contextmanager

    from anisoscope.runs import vectors as runs

    titles = []

    @contextmanager
    def show(title, unit="tokens", *, quiet):
        titles.append((title, unit, quiet))
        yield "progress"

    monkeypatch.setattr(functions, "show_progress", show)
    monkeypatch.setattr(functions, "_open_vectors", lambda *given: given[1])
    asked = stand_in(monkeypatch, runs, "run_vectors", result="run")
    for vectors, title in ((Path("a/v.npy"), "a/v.npy"), ([[1.0]], "vectors")):
        functions.measure_vectors(Job(), vectors, OutputOptions(), True)
        assert titles.pop() == (title, "vectors", True)
        assert asked.pop()[1][0] == vectors


def test_columns_of_tables_of_other_libraries_are_named_by_texts():
    import pyarrow

    frame = pd.DataFrame({0: [1.0, 2.0], "b": ["x", "y"]}, index=[7, 8])
    content = in_memory.read_columns_of_table(frame)
    assert list(content.columns) == ["0", "b"], "without the index"
    arrow = in_memory.read_columns_of_table(pyarrow.table({"c": [1.5]}))
    assert list(arrow.columns) == ["c"]
    for table, library in ((frame, "pandas"), (pyarrow.table({}), "pyarrow")):
        assert in_memory.library_of(table) == library and in_memory.is_table(table)
    assert not in_memory.is_table(pyarrow.array([1]))


def test_a_page_is_of_the_records_of_its_folder_with_their_replicates(
    monkeypatch, tmp_path
):
    report = importlib.import_module("anisoscope.report")
    asked = []
    monkeypatch.setattr(report, "read_run", lambda _: ([1, 2, 3], {"m": 1}))
    monkeypatch.setattr(
        report, "read_replicates", lambda *given: asked.append(given) or "replicates"
    )
    monkeypatch.setattr(
        report, "write_run", lambda *given: asked.append(given) or "page"
    )
    assert report.build_page(tmp_path, ("svg", "png")) == "page"
    (read, (found, folder, formats)) = asked
    assert read == (tmp_path, 3) and (folder, formats) == (tmp_path, ("svg", "png"))
    assert found.records == [1, 2, 3] and found.manifest == {"m": 1}
    assert found.replicates == "replicates"


def test_a_name_that_is_no_figure_is_answered_with_those_near():
    run = a_run()
    run.__dict__["_figures"] = {"drift": None, "norms": None}
    assert run.figures == ["drift", "norms"]
    with pytest.raises(UsageError) as caught:
        run.plot("drfit")
    assert str(caught.value) == (
        "expected a figure of this run; got 'drfit'. Cure: did you mean drift?"
    )
    assert len(repr(run)) > 0 and repr(a_run(Path("a/b"))).endswith("in a/b")
    series = a_run()
    series.manifest = {}
    assert repr(series).startswith("Run of a series: 1 records")
    assert series.name == "run"


def test_a_merged_state_keeps_the_names_of_its_parts_through_a_file(tmp_path):
    x = DRAW.normal(size=(4, 3))
    both = state.State("a").add(x).merge(state.State("b").add(x))
    kept = state.State.load(both.save(tmp_path / "s"))
    assert (kept.name, kept.names) == ("a", {"a", "b"})
    # so that a part is not merged a second time
    with pytest.raises(MeasureError, match="two called 'b' whose units have no names"):
        kept.merge(state.State("b").add(x))
