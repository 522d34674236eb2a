"""Small decisions of the functions in Python: names of keywords, tables, units of a state, runs of a comparison."""

import json
import math
from collections import Counter
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
from anisoscope.batch import Batch
from anisoscope.cures.trial import Trials
from anisoscope.data import in_memory
from anisoscope.data.arrays import wrap_vectors
from anisoscope.errors import MeasureError, UsageError
from anisoscope.measure.inputs import LONGEST
from anisoscope.runs.finding import Finding
from anisoscope.runs.job import ClassesOptions, Job, OutputOptions
from anisoscope.store import as_records

# ---- keywords --------------------------------------------------------------------------------------------------------


def test_keywords_are_divided_into_settings_output_and_quiet(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    given = {"limit": 3, "output": "~/x", "resume": True, "quiet": False}
    job, output, quiet = keywords.read_keywords(Job, given)
    assert job.limit == 3 and quiet is False
    assert (output.output, output.resume, output.overwrite) == (
        tmp_path / "x",
        True,
        False,
    )
    assert given["quiet"] is False, "what was given stays as it is"
    assert keywords.read_keywords(Job, {})[1:] == (OutputOptions(), True)
    for name, here in (
        ("tokenizer", "processor"),
        ("dataset", "corpus"),
        ("metric", "metrics"),
    ):
        with pytest.raises(UsageError, match=f"{name!r}.*it is called {here} here"):
            keywords.read_keywords(Job, {name: 1})
    with pytest.raises(UsageError, match="did you mean overwrite"):
        keywords.read_keywords(Job, {"overwrit": True})


# ---- objects of other libraries --------------------------------------------------------------------------------------


def test_tables_are_known_by_their_class_and_its_bases():
    class Own(pd.DataFrame):
        pass

    assert in_memory.library_of(Own()) == "pandas" and in_memory.is_table(Own())
    assert in_memory.library_of(pd.Series([1])) == "pandas"
    assert not in_memory.is_table(pd.Series([1])) and not in_memory.is_table([{"a": 1}])
    assert in_memory.library_of(np.ones(2)) == "" == in_memory.library_of(None)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([{"text": "a"}], True),
        ([{"text": "a", "label": 1, "score": 0.5, "none": None}], True),
        ([{"messages": [{"content": "a"}]}], True),
        ([{"text": "a", "ids": [1, 2]}], False),
        ([{"label": 1}], False),
        ([{"text": "a"}, "b"], False),
        ([], False),
        ({"text": "a"}, False),
        (({"text": "a"},), True),
    ],
)
def test_rows_of_texts_are_told_from_inputs_of_a_model(rows, expected):
    assert in_memory._are_rows(rows) == expected


def test_texts_of_rows_and_columns():
    rows = [{"n": 1, "text": "a"}, {"n": 2}, {"text": [{"content": "b"}]}]
    assert in_memory.read_texts_of_table(rows, None) == ["a", "", "b"]
    two = [{"text": "a", "other": "b"}]
    assert in_memory.read_texts_of_table(two, "other") == ["b"]
    frame = pd.DataFrame({"n": [1, 2], "text": ["a", "b"]}, index=[5, 3])
    assert in_memory.read_texts_of_table(frame, None) == ["a", "b"]
    assert in_memory.read_texts_of_table(frame["text"], None) == ["a", "b"]
    assert in_memory._read_first_row(frame) == {"n": 1, "text": "a"}
    assert in_memory._read_first_row(frame[:0]) == {}
    other = [torch.ones(2)]
    assert in_memory.read_texts_of_table(other, None) is other


def test_units_and_labels_of_a_table_go_with_its_rows():
    table = pd.DataFrame({"d0": [0.1, 0.2, 0.4], "d1": [0.5, 0.6, 0.3]})
    found = in_memory.read_vectors_of_table(
        table, units=["x", "y", "x"], labels=[1, 0, 1]
    )
    assert found.shape[0] == 3 and found.units.tolist() == [0, 1, 0]
    assert list(found.labels) == [0, 1, 0]
    for role in ("unit", "label"):
        with pytest.raises(UsageError, match=f"{role}_column='d0'"):
            in_memory.read_vectors_of_table(table, **{f"{role}s": "d0"})


def test_a_pipeline_gives_its_model_and_a_processor_that_is_given_goes_first():
    pipeline = SimpleNamespace(
        model="m",
        preprocess=0,
        tokenizer=None,
        image_processor="i",
        feature_extractor="f",
    )
    with objects.unwrap_model(pipeline, None) as found:
        assert found == ("m", "i")
    with objects.unwrap_model(pipeline, "own") as found:
        assert found == ("m", "own")
    pipeline.image_processor = None
    assert objects._find_processor(pipeline) == "f"
    pipeline.tokenizer = "t"
    assert objects._find_processor(pipeline) == "t"
    with objects.unwrap_model("name", "p") as found:
        assert found == ("name", "p")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (np.ones((2, 3)), True),
        ([np.ones(3), torch.ones(3)], True),
        ([np.ones(3), "a"], False),
        ([], False),
        ({"a": 1}, True),
        (iter([]), True),
        (pd.DataFrame({"a": [1.0]}), True),
        (torch.nn.Linear(1, 1), False),
        ("bert-base", False),
    ],
)
def test_vectors_are_told_from_models(given, expected):
    assert functions.are_vectors(given) == expected


def test_arguments_that_do_not_go_together_are_named():
    functions._refuse_argument("a model", "vectors", inputs=None, corpus=None)
    with pytest.raises(
        UsageError, match=r"corpus only with a model; got vectors.*leave corpus out"
    ):
        functions._refuse_argument("a model", "vectors", inputs=None, corpus="x")
    functions._refuse_columns_of_vectors(Job())
    with pytest.raises(UsageError, match="label_column only with a file of vectors"):
        functions._refuse_columns_of_vectors(Job(label_column="x"))


# ---- a state ---------------------------------------------------------------------------------------------------------


def test_numbers_of_units_are_their_own_or_a_hash():
    assert [state._number_unit(name) for name in (0, 7, np.int64(9))] == [0, 7, 9]
    hashed = [state._number_unit(name) for name in (-1, True, 1.0, "1", "a", ("a", 1))]
    assert len({*hashed, 1}) == 7 and all(0 <= number < 1 << 63 for number in hashed)
    assert state._number_unit("a") == state._hash_name("a")
    # As in every process and version: the number is kept in files.
    assert state._hash_name("a") == state._hash_name("a") != state._hash_name(b"a")


def test_units_without_names_are_numbered_from_the_name_of_their_state():
    one = state.State()
    assert one._number_units(None, 3).tolist() == [0, 1, 2]
    assert one._number_units(None, 2).tolist() == [3, 4]
    named, other = state.State("x"), state.State("y")
    first = state._hash_name("x") % (1 << 22) * (1 << 40)
    assert named._number_units(None, 2).tolist() == [first, first + 1]
    assert other._number_units(None, 1)[0] != first and first < 1 << 62
    assert named._number_units(["a", 5], 2).tolist() == [state._hash_name("a"), 5]
    assert named._numbered == 2, "named units take no numbers"
    with pytest.raises(
        UsageError, match="a unit for each of 2 vectors or sequences; got 3"
    ):
        named._number_units(np.arange(3), 2)


def test_sequences_of_a_unit_get_places_far_apart():
    one = state.State()
    found = one._number_first_tokens(np.array([4, 7, 4]))
    assert found.tolist() == [0, 0, LONGEST]
    assert one._number_first_tokens(np.array([4, 7])).tolist() == [2 * LONGEST, LONGEST]
    named = state.State("x")
    begin = state._hash_name("x") % (1 << 20)
    found = named._number_first_tokens(np.array([4, 4]))
    assert found.tolist() == [begin * LONGEST, (begin + 1) * LONGEST]


def test_merged_states_add_up_and_go_on_behind_both():
    draw = np.random.default_rng(0)
    one = state.State("one").add(draw.normal(size=(4, 3)))
    two = state.State("two").add(draw.normal(size=(9, 3)))
    one.seconds, two.seconds = 2.0, 5.0
    one._seen, two._seen = Counter({1: 2, 5: 1}), Counter({1: 3})
    both = one.merge(two)
    assert (both.name, both.names) == ("one", {"one", "two"})
    assert (both.seconds, both.tokens, both.n_units) == (7.0, 13, 13)
    assert both._numbered == 9 == two.merge(one)._numbered
    assert both._seen == {1: 5, 5: 1}
    assert one.tokens == 4 and one.merge() is one
    described = both._describe()
    assert (described["sequences"], described["numbered"]) == (5, 9)
    assert described["names"] == ["one", "two"] and described["tokens"] == 13


def test_states_of_one_name_are_merged_unless_both_number_their_units():
    draw = np.random.default_rng(0)
    counted = state.State("x").add(draw.normal(size=(4, 3)))
    named = state.State("x").add(draw.normal(size=(3, 3)), units=["a", "b", "c"])
    assert counted.merge(named).n_units == named.merge(counted).n_units == 7
    other = state.State("x").add(draw.normal(size=(2, 3)))
    message = (
        "expected states of different data; got two called 'x' whose units have no names. "
        "Cure: name the data of each, State(name=…), or its units, units=…"
    )
    for first in (counted, counted.merge(named)):
        with pytest.raises(MeasureError) as refused:
            first.merge(other)
        assert str(refused.value) == message


def test_a_state_keeps_every_count_through_a_file(tmp_path):
    one = state.State("one", panel="hidden", groups=8)
    one.add(np.random.default_rng(0).normal(size=(6, 3)), units=[1, 1, 1, 2, 3, 4])
    one.seconds, one._numbered = 3.5, 17
    kept = state.State.load(one.save(tmp_path / "s"))
    for name in ("name", "names", "settings", "of", "seconds", "tokens", "_numbered"):
        assert getattr(kept, name) == getattr(one, name), name
    # How many sequences each unit had is not kept: all go on behind the one that had most.
    assert set(kept._seen) == {1, 2, 3, 4} and set(kept._seen.values()) == {3}


def test_batches_of_vectors_have_the_rows_that_are_asked_for():
    values = np.arange(24.0).reshape(4, 3, 2)
    mask = np.array([[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1]], bool)
    vectors = wrap_vectors({"a": values, "b": values + 100}, mask=mask)
    rows = np.array([1, 2])
    batch = state._make_batch_of_vectors(
        vectors, rows, np.array([7, 8]), np.array([30, 40])
    )
    assert batch.unit.tolist() == [7, 8]
    assert batch.inputs["b"][0].tolist() == (values[1] + 100).tolist()
    (stream,) = batch.streams.values()
    assert stream.mask.tolist() == mask[rows].tolist() and stream.start.tolist() == [
        30,
        40,
    ]
    assert not stream.special.any()
    plain = state._make_batch_of_vectors(
        wrap_vectors(values[:, 0]), rows, np.array([7, 8]), np.array([0, 0])
    )
    assert plain.streams["vectors"].mask.tolist() == [[True], [True]]


def test_batches_that_name_their_units_are_known():
    batch = Batch({"x": torch.ones(1, 1)}, torch.zeros(1, dtype=torch.int64))
    named = [
        state._names_units(item) for item in (batch, {"unit": 1}, {"a": 1}, (1, 2), 3)
    ]
    assert named == [True, True, False, False, False]


# ---- runs and comparisons --------------------------------------------------------------------------------------------


def test_texts_are_texts_in_their_order():
    assert runs_in_python.list_texts(pd.Series(["b", "a"])) == ["b", "a"]
    assert runs_in_python.list_texts(("x",)) == ["x"]
    with pytest.raises(UsageError, match="the columns a, b"):
        runs_in_python.list_texts(pd.DataFrame({"a": [1], "b": [2]}))
    with pytest.raises(UsageError, match="3 at index 1"):
        runs_in_python.list_texts(["x", 3])


def a_run(folder=None, model="m"):
    frame = as_records(pd.DataFrame([{"metric": "mean_cosine", "value": 0.5}]))
    made = anisoscope.Run(records=frame, manifest={"model": model})
    made.folder = folder
    return made


def test_runs_have_names_of_their_folders_or_models(tmp_path):
    assert a_run().name == "m" and a_run(tmp_path / "x").name == "x"
    assert a_run(Path("/")).name == "/"
    assert repr(a_run()) == "Run of m: 1 records, in memory"
    assert repr(a_run(Path("x"))) == "Run of m: 1 records, in x"
    (tmp_path / "series").mkdir()
    (tmp_path / "series" / "series.json").write_text("{}")
    one, of_series = a_run(), a_run(tmp_path / "series")
    named = working._name_runs([one, of_series, Path("p"), "q"])
    assert named == [one, str(tmp_path / "series"), "p", "q"]


def test_runs_of_a_comparison_keep_their_places(monkeypatch):
    asked = []

    def open_runs(names, measuring, wanted, _progress):
        asked.append((names, measuring.limit, wanted))
        return [f"opened {name}" for name in names]

    monkeypatch.setattr(working, "expand_series", list)
    monkeypatch.setattr(working, "open_or_measure", open_runs)
    monkeypatch.setattr(working, "Comparison", lambda found: found)
    monkeypatch.setattr(working, "compare_kept", lambda *given, **named: (given, named))
    monkeypatch.setattr(
        anisoscope.Run, "kept", property(lambda run: f"kept {run.name}")
    )
    one, two = a_run(model="one"), a_run(model="two")
    given, named = working.compare(
        "a", one, "b", two, metric="drift", tokens="content", heads=True, limit=5
    )
    assert given == (["opened a", "kept one", "opened b", "kept two"], "drift")
    assert named == {"tokens": "content", "heads": True}
    assert asked == [(["a", "b"], 5, ["drift"])]
    with pytest.raises(UsageError, match="at least two runs; got 1"):
        working.compare(one)


class Found:
    """What a comparison found, made up."""

    def __init__(self, met=()):
        place = {"run": "b", "stack": "encoder", "layer": 1, "layer_other": 1}
        place |= {"head": None, "site": "hidden", "component": None, "paired": True}
        ends = {"first": 0.1, "second": 0.4, "difference": 0.3, "low": 0.2, "high": 0.4}
        self.table = pd.DataFrame([place | ends, place | ends | {"layer": 2}])
        self.findings = [Finding("rule", "a <sentence>")]
        self.notes = ["a note"]
        self.names, self.metric = ["a", "b", "c"], "drift"
        self.met = met

    def judge(self, _condition):
        return self.met

    def across(self, metric):
        return f"across {metric}"


def test_a_comparison_says_what_it_is_and_what_is_met(monkeypatch):
    found = comparison.Comparison(Found())
    assert repr(found) == "Comparison of drift: b, c against a"
    columns = ["run", "layer", "first", "second", "difference", "low", "high"]
    assert list(found.table().columns) == columns
    assert found.across() == "across cka" and found.across("procrustes").endswith(
        "procrustes"
    )
    assert found.fails("x") is False and found.explain("x") == []
    monkeypatch.setattr(comparison, "describe_met", lambda *given: given)
    met = comparison.Comparison(Found([("b", ["1"]), ("c", ["2"])]))
    assert met.fails("A > 0") is True
    assert met.explain("A > 0") == [("A > 0", "b", ["1"]), ("A > 0", "c", ["2"])]
    monkeypatch.setattr(comparison, "has_extra", lambda _: False)
    html = found._repr_html_()
    assert "<li>a &lt;sentence&gt;</li><li>a note</li>" in html and "0.300" in html


def test_a_figure_of_a_comparison_is_found_by_name(monkeypatch):
    from anisoscope.charts import export

    monkeypatch.setattr(export, "show_alone", lambda drawn, title: (drawn, title))
    found = comparison.Comparison(Found())
    found.__dict__["_figures"] = {
        name: SimpleNamespace(
            name=name, title=f"of {name}", draw=lambda w, n=name: (n, w)
        )
        for name in ("one", "two")
    }
    assert found.figures == ["one", "two"]
    assert found.plot() == (("one", 640), "of one")
    assert found.plot("two", 300) == (("two", 300), "of two")
    with pytest.raises(UsageError, match="did you mean two"):
        found.plot("tow")


# ---- cures and classifiers -------------------------------------------------------------------------------------------


def cures_of(monkeypatch, chosen, named):
    fitted = []

    def fit(name, vectors, partner):
        fitted.append((name, vectors, partner))
        return SimpleNamespace(apply=lambda x: x + 1, name=name)

    monkeypatch.setattr(curing, "fit_to_use", fit)
    picked = (
        None if chosen is None else SimpleNamespace(fit=SimpleNamespace(name=chosen))
    )
    rows = []
    for cure, after in (("whiten", 0.2), ("centre", 0.3)):
        for score, before in (("A", 0.9), ("probe", 0.8)):
            rows.append(
                {"cure": cure, "score": score, "before": before, "after": after}
            )
    trials = SimpleNamespace(
        text="what <was> found",
        notes=("n",),
        chosen=picked,
        table=lambda: pd.DataFrame(rows),
    )
    return curing.Cures(trials, named, "vectors", "partner"), fitted


@pytest.mark.parametrize(
    ("chosen", "named", "used"),
    [
        ("whiten", ["centre", "whiten"], "whiten"),
        ("whiten", ["centre"], "centre"),
        (None, ["centre"], "centre"),
        (None, ["centre", "whiten"], None),
    ],
)
def test_the_cure_that_is_used_is_the_only_one_named_or_the_one_that_fits(
    chosen, named, used, monkeypatch
):
    found, fitted = cures_of(monkeypatch, chosen, named)
    assert found.chosen == chosen and found.notes == ["n"]
    if used is None:
        assert found.fit is None and fitted == []
        with pytest.raises(UsageError, match="a cure that works"):
            found.apply([1.0])
        return
    assert fitted == [(used, "vectors", "partner")]
    assert found.apply(torch.tensor([[1.0, 2.0]]).bfloat16()).tolist() == [[2, 3]]


def test_a_notebook_shows_cures_in_the_order_in_which_they_were_tried(monkeypatch):
    html = cures_of(monkeypatch, None, ["centre"])[0]._repr_html_()
    assert "<p>what &lt;was&gt; found</p>" in html
    places = [html.index(word) for word in ("as it is", "whiten", "centre")]
    assert places == sorted(places)
    before = html[places[0] : places[1]]
    assert "0.900" in before and "0.800" in before and "0.200" not in before
    assert isinstance(Trials, type)


def test_units_and_labels_go_with_arrays_alone(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.ones((4, 2)))
    for name in ("units", "labels"):
        with pytest.raises(UsageError, match="with an array"):
            curing.cure(path, **{name: [1, 2, 3, 4]})
    with pytest.raises(UsageError, match="got a run in memory"):
        curing.cure(a_run())


def test_names_of_classifiers_and_of_texts_in_memory():
    assert classifiers._name_model(Path("a/b"), None) == ("a/b", None)
    with pytest.raises(UsageError, match="leave processor out"):
        classifiers._name_model("a", "p")
    with pytest.raises(UsageError, match="a tokenizer for a model in memory"):
        classifiers._name_model(torch.nn.Linear(1, 1), None)
    name, subject = classifiers._name_model(torch.nn.Linear(1, 1), "p")
    assert name == "Linear" and subject.processor == "p"
    assert classifiers._name_corpus("c") == "c"
    assert classifiers._name_corpus([("a", "b")]) == "texts"


def test_pairs_of_text_and_label_are_a_table_and_a_file_for_a_while():
    table = classifiers._tabulate_pairs(iter([("a", "x"), ["b", "y"]]))
    assert table.to_dict("list") == {"text": ["a", "b"], "label": ["x", "y"]}
    for bad, place in (([("a", "x"), ("b",)], 1), ([(1, "x")], 0), (["ab"], 0)):
        with pytest.raises(UsageError, match=f"at index {place}"):
            classifiers._tabulate_pairs(bad)
    with pytest.raises(UsageError, match="got int"):
        classifiers._tabulate_pairs(3)
    with classifiers._write_temporary_file("name") as path:
        assert path is None
    with classifiers._write_temporary_file([("a", "x")]) as path:
        assert pd.read_parquet(path).to_dict("list") == {"text": ["a"], "label": ["x"]}
    assert not Path(path).exists()


def test_notes_on_the_classifier_come_before_those_on_the_text(monkeypatch):
    from anisoscope.classes import sentence

    frame = pd.DataFrame({"word": ["a"]})
    made = sentence.Explanation("x", 0.5, frame, frame, frame, 1, notes=["of the text"])
    monkeypatch.setattr(sentence, "explain", lambda _classifier, _text: made)
    found = classifiers._explain_one(None, "a", ["of the model"])
    assert found.notes == ["of the model", "of the text"]
    monkeypatch.setattr(classifiers, "_open", lambda *_: (None, ["of the model"]))
    several = classifiers.explain(torch.nn.Linear(1, 1), ["a", "b"], processor="p")
    assert [each.notes for each in several] == [["of the model", "of the text"]] * 2
    with pytest.raises(UsageError, match="explanation is returned"):
        classifiers.explain(torch.nn.Linear(1, 1), "a", processor="p", output="x")
    assert ClassesOptions().model


def test_a_copy_of_a_run_has_replicates_of_the_records_that_have_some(tmp_path):
    draw = np.random.default_rng(0)
    run = anisoscope.measure(
        draw.normal(size=(60, 4)) + 1, units=np.repeat(range(30), 2)
    )
    # One record without any, as maxima are, and one without that of one group.
    run.replicates[1], run.replicates[2, 5] = np.nan, np.nan
    copy = run.save(tmp_path / "copy")
    assert copy.folder == tmp_path / "copy"
    np.testing.assert_array_equal(copy.replicates, run.replicates)
    assert np.isnan(copy.replicates[1]).all() and np.isfinite(copy.replicates[2]).any()
    pd.testing.assert_frame_equal(copy.records, run.records)
    identity = json.loads((tmp_path / "copy" / "identity.json").read_text())
    assert identity == {"run": run.manifest["run"], "copy": True}
    assert math.isfinite(copy.table()["A"].item())


def test_sentences_of_a_run_quote_the_tokens_of_its_manifest():
    rows = [{"metric": "massive.rate", "value": 0.5}]
    for name, value in (("", 300.0), ("_position", 0), ("_token", 17)):
        metric = f"massive.largest{name}"
        rows.append({"metric": metric, "value": value, "component": "1"})
    place = {"stack": "encoder", "layer": 1, "site": "hidden"}
    kept = as_records(pd.DataFrame([row | place for row in rows]))
    for tokens, quoted in (({"17": "the", "0": "a"}, True), ({"0": "a"}, False)):
        run = anisoscope.Run(records=kept, manifest={"model": "m", "tokens": tokens})
        (found,) = run.findings
        assert (
            "position 0 (‘the’)" in found.text
        ) == quoted and "‘a’" not in found.text


# ---- inputs that are given -------------------------------------------------------------------------------------------


def test_batches_that_may_change_cannot_be_resumed():
    model = torch.nn.Linear(3, 3)
    subject = SimpleNamespace(model=model)
    batches = [torch.zeros(2, 3), torch.zeros(1, 3)]

    def read(inputs, *, resume, **job):
        given = (Job(**job), subject, inputs, None, None, {})
        return functions._open_inputs(*given, OutputOptions(resume=resume))

    loader = torch.utils.data.DataLoader(torch.zeros(3, 3), batch_size=2)
    for inputs in (batches, loader):
        job, _, opened = read(inputs, resume=False)
        assert job.corpus == opened.corpus["name"] == "inputs"
    job, _, opened = read(batches, resume=True, corpus="mine")
    assert job.corpus == opened.corpus["name"] == "mine"
    assert opened.corpus["kind"] == "list"
    with pytest.raises(UsageError, match="same each time"):
        read(loader, resume=True)


# ---- what the functions hand on --------------------------------------------------------------------------------------


def test_vectors_and_all_about_them_reach_their_reader(monkeypatch, tmp_path):
    from anisoscope.data import arrays, vector_files
    from anisoscope.runs import vectors as runs

    asked = {}

    def note(name):
        def called(*given, **named):
            asked[name] = (given, named)
            return name

        return called

    monkeypatch.setattr(arrays, "wrap_vectors", note("array"))
    monkeypatch.setattr(vector_files, "open_vectors", note("file"))
    monkeypatch.setattr(functions, "read_vectors_of_table", note("table"))
    monkeypatch.setattr(runs, "run_vectors", note("run"))
    output = OutputOptions(output=tmp_path, resume=True)
    about = ("units", "labels", "mask")
    job = Job(model="m", split="test")
    assert functions.measure_vectors(job, [[1.0]], output, True, *about) == "run"
    assert asked["array"] == (
        ([[1.0]],),
        {"units": "units", "labels": "labels", "mask": "mask"},
    )
    given, named = asked["run"]
    assert given == ("array", job) and named.pop("progress")
    assert named == {"output": tmp_path, "resume": True} | {
        name: value
        for name, value in vars(output).items()
        if name not in ("output", "resume")
    }
    named_columns = Job(columns="0-3", unit_column="u", label_column="l", split="test")
    frame = pd.DataFrame({"a": [1.0]})
    functions._open_vectors(named_columns, frame, "units", "labels", None)
    columns = {"columns": "0-3", "unit_column": "u", "label_column": "l"}
    assert asked["table"] == (
        (frame,),
        {"units": "units", "labels": "labels"} | columns,
    )
    functions._open_vectors(named_columns, "x.npy", None, None, None)
    assert asked["file"] == (("x.npy",), columns | {"split": "test"})
    for source, refused in ((frame, ("mask",)), ("x.npy", about)):
        for name in refused:
            given = [name if name == role else None for role in about]
            with pytest.raises(UsageError, match=f"{name} only with"):
                functions._open_vectors(Job(), source, *given)
    for column in columns:
        with pytest.raises(UsageError, match=f"{column} only with a file of vectors"):
            functions._open_vectors(Job(**{column: "c"}), [[1.0]], None, None, None)
    with pytest.raises(UsageError, match="no corpus with vectors; got the corpus c"):
        functions.measure_vectors(Job(corpus="c"), [[1.0]], output, True)


def test_what_measure_is_given_goes_its_own_way(monkeypatch):
    """Vectors with units, labels and mask; a model with a corpus, or with inputs, units and a call."""
    asked = []

    def vectors(job, model, where, quiet, *about):
        asked.append((job.limit, model, where.output, quiet, about))

    def model(job, where, quiet, subject, reading):
        asked.append((job.corpus, job.limit, where.output, quiet, subject, reading))

    def opened(job, subject, inputs, units, forward, options, output):
        asked.append((subject, inputs, units, forward, sorted(options), output.resume))
        return job, "subject", "reading"

    monkeypatch.setattr(
        functions, "run_to_folder_or_memory", lambda measure, output: measure(output)
    )
    monkeypatch.setattr(functions, "measure_vectors", vectors)
    monkeypatch.setattr(functions, "measure_job", model)
    monkeypatch.setattr(functions, "_open_inputs", opened)
    x = np.ones((3, 2))
    anisoscope.measure(x, units=[1], labels=[2], mask=[3], limit=4, quiet=False)
    assert asked.pop() == (4, x, None, False, ([1], [2], [3]))
    for refused in ({"inputs": 1}, {"corpus": "c"}, {"processor": 1}, {"forward": 1}):
        with pytest.raises(
            UsageError, match=f"{next(iter(refused))} only with a model"
        ):
            anisoscope.measure(x, **refused)
    module = torch.nn.Linear(1, 1).double()
    for refused in ({"labels": [1]}, {"mask": [1]}):
        with pytest.raises(
            UsageError, match=f"{next(iter(refused))} only with vectors"
        ):
            anisoscope.measure(module, [torch.ones(1, 1)], **refused)
    call = print
    inputs = [torch.ones(1, 1)]
    anisoscope.measure(module, inputs, units=[1], forward=call, resume=True, limit=2)
    *_, subject, reading = asked.pop()
    assert (subject, reading) == ("subject", "reading")
    subject, *rest = asked.pop()
    assert subject.model is module and rest == [
        inputs,
        [1],
        call,
        ["limit", "resume"],
        True,
    ]
    monkeypatch.setattr(functions, "check_model", lambda _: None)
    monkeypatch.setattr(functions, "check_corpus", lambda _: None)
    anisoscope.measure("m", corpus="c", limit=3)
    assert asked.pop() == ("c", 3, None, True, None, None)
    # a text in the place of inputs is the name of a corpus
    anisoscope.measure("m", "in-place", limit=3)
    assert asked.pop()[0] == "in-place"
    for refused in ({"units": [1]}, {"forward": call}):
        with pytest.raises(UsageError, match=f"{next(iter(refused))} only with inputs"):
            anisoscope.measure("m", corpus="c", **refused)
    texts = pd.DataFrame({"a": ["x"], "b": ["y"]})
    anisoscope.measure("m", texts, column="b")
    *_, reading = asked.pop()
    assert asked.pop()[1] == ["y"]
    assert asked == []


def test_a_model_in_memory_says_where_and_how_it_computes():
    module = torch.nn.Sequential(torch.nn.Embedding(2, 2), torch.nn.Linear(2, 2))
    module[0].weight = torch.nn.Parameter(
        torch.ones(2, 2, dtype=torch.int8), requires_grad=False
    )
    module[1].bfloat16()
    job, subject = functions._load_given_model(Job(), module, "p", {"limit": 3})
    assert (job.model, job.dtype, job.device) == ("Sequential", "bfloat16", "cpu")
    assert subject.model is module and subject.processor == "p"
    whole = torch.nn.Embedding(2, 2)
    whole.weight = torch.nn.Parameter(
        torch.ones(2, 2, dtype=torch.int8), requires_grad=False
    )
    job, _ = functions._load_given_model(Job(dtype="float32"), whole, None, {})
    assert (job.model, job.dtype) == ("Embedding", "float32")
    with pytest.raises(UsageError, match="dtype only with the name of a model"):
        functions._load_given_model(Job(), module, None, {"dtype": "float16"})
    with pytest.raises(UsageError, match=r"processor only with a torch\.nn\.Module"):
        functions._load_given_model(Job(), "builtin:minilm", "p", {})
    job, subject = functions._load_given_model(Job(), "builtin:minilm", None, {})
    assert (job.model, subject) == ("builtin:minilm", None)


def test_a_run_in_memory_keeps_replicates_and_a_sample_that_is_small(monkeypatch):
    draw = np.random.default_rng(0).normal(size=(60, 4)) + 1
    run = anisoscope.measure(draw)
    assert run.folder is None and run.replicates.shape[0] == len(run.records)
    assert run.sample and run.kept.sample is run.sample
    size = sum(x.numel() * x.element_size() for x in run.sample.values())
    monkeypatch.setattr(runs_in_python, "MOST_SAMPLED", size)
    assert anisoscope.measure(draw).sample is None


def of_heads():
    """Attention of two heads of a layer, and nothing else."""
    rows = []
    for head, value in ((0, 0.2), (1, 0.6)):
        place = {"stack": "encoder", "kind": "self", "layer": 1, "head": head}
        place |= {"site": "attention", "metric": "attention.entropy_normalised"}
        rows.append(place | {"value": value, "n_vectors": 8, "n_units": 4})
    return anisoscope.Run(
        records=as_records(pd.DataFrame(rows)), manifest={"model": "m"}
    )


def test_tables_of_a_run_fall_back_on_what_it_has():
    heads = of_heads()
    assert heads.attention(heads=True)["entropy"].tolist() == [0.2, 0.6]
    assert heads.attention()["entropy"].tolist() == [pytest.approx(0.4)]
    assert heads.table().equals(heads.attention())
    assert heads._repr_html_().count("<table") == 1
    draw = np.random.default_rng(0).normal(size=(60, 4)) + 1
    single = anisoscope.measure(draw, metrics=["norms"])
    values = ["norms.mean", "norms.std", "norms.variation"]
    assert single.table()["metric"].tolist() == values
    with pytest.raises(UsageError, match="a run folder; got none"):
        anisoscope.Run()


def test_figures_are_found_by_their_old_names(monkeypatch):
    run = anisoscope.measure(np.random.default_rng(0).normal(size=(60, 4)) + 1)
    assert isinstance(run.figures, list) and "top-dimensions" in run.figures
    monkeypatch.setitem(runs_in_python.FIGURES, "of-old", "top-dimensions")
    old, new = (
        run.plot("of-old", 300).to_dict(),
        run.plot("top-dimensions", 300).to_dict(),
    )
    assert old["title"] == new["title"] and old["width"] == 300


def test_figures_of_a_run_are_built_with_its_replicates(monkeypatch):
    """Without them means over heads would have no intervals, unlike on the page."""
    from anisoscope.report import sections

    built = []
    monkeypatch.setattr(sections, "build_sections", lambda found: built.append(found) or [])  # fmt: skip
    run = a_run()
    run.replicates = np.array([[0.25, 0.75]])
    assert run.figures == []
    (results,) = built
    assert results.records is run.records and results.manifest is run.manifest
    assert results.replicates is run.replicates


def test_texts_are_explained_with_the_notes_on_the_classifier_first(monkeypatch):
    from anisoscope.classes import sentence

    def explain(classifier, text):
        frame = pd.DataFrame()
        notes = [f"{classifier} of {text}"]
        return sentence.Explanation("x", 0.5, frame, frame, frame, 1, notes=notes)

    monkeypatch.setattr(sentence, "explain", explain)
    run = a_run()
    run.open_classifier = lambda: ("head", ["first"])
    assert run.explain("a").notes == ["first", "head of a"]
    found = run.explain(pd.Series(["b", "c"]))
    assert [one.notes[1] for one in found] == ["head of b", "head of c"]


def test_a_state_counts_masks_time_and_batches(tmp_path):
    draw = np.random.default_rng(0)
    mask = np.array([[1, 1, 0], [1, 0, 0]], bool)
    one = state.State(panel="hidden").add(draw.normal(size=(2, 3, 4)), mask=mask)
    assert one.tokens == 3 and one.seconds > 0 and state.State().n_units == 0
    with pytest.raises(UsageError, match="did you mean name"):
        state.State(nme="x")
    run = one.finish(tmp_path / "run", corpus="mine")
    assert run.manifest["corpus"]["name"] == "mine"
    with pytest.raises(Exception, match="overwrite"):
        one.finish(tmp_path / "run")
    assert one.finish(tmp_path / "run", overwrite=True).folder == tmp_path / "run"

    # sequences of several batches have the units and positions of their own places
    class Reads(torch.nn.Module):
        def forward(self, input_ids):
            return input_ids

    model = Reads()
    ids = [torch.ones(2, 3, dtype=torch.long), torch.ones(3, 3, dtype=torch.long)]
    units = ["a", "b", "a", "c", "a"]
    read = list(state.State()._read_batches(model, ids, units, None))
    numbers = [state._hash_name(unit) for unit in units]
    assert [batch.unit.tolist() for batch in read] == [numbers[:2], numbers[2:]]
    starts = [next(iter(batch.streams.values())).start.tolist() for batch in read]
    assert starts == [[0, 0], [LONGEST, 0, 2 * LONGEST]]


def test_a_classifier_is_opened_with_its_texts_and_its_model(monkeypatch):
    from anisoscope.classes import sentence
    from anisoscope.runs import classes as runs, explaining

    asked = []
    monkeypatch.setattr(
        explaining,
        "open_classifier",
        lambda *given: asked.append(given) or ("head", ["n"]),
    )
    frame = pd.DataFrame()
    monkeypatch.setattr(
        sentence,
        "explain",
        lambda *given: sentence.Explanation(
            given, 0.5, frame, frame, frame, 1, notes=["t"]
        ),
    )
    required = []
    monkeypatch.setattr(classifiers, "require_for_model", required.append)
    found, notes = classifiers.explain_text(ClassesOptions(model="m"), "a text", True)
    assert found.found == ("head", "a text") and notes == ["n"]
    assert asked.pop()[0].model == "m" and required == ["m"]
    module = torch.nn.Linear(1, 1)
    classifiers.explain(module, "a", corpus=[("x", 1)], processor="p", limit=3)
    settings, subject, path = asked.pop()
    assert (settings.limit, settings.corpus, subject.model) == (3, "texts", module)
    assert path.endswith(".parquet") and required == ["m"]
    classifiers.explain("named", "a", corpus="c")
    settings, subject, path = asked.pop()
    assert (settings.model, settings.corpus, subject, path) == (
        "named",
        "c",
        None,
        None,
    )
    assert required == ["m", "named"]
    monkeypatch.setattr(
        runs,
        "run_classes",
        lambda settings, **named: asked.append((settings, named)) or "run",
    )
    output = OutputOptions(resume=True)
    assert classifiers.measure_classes(settings, output, True, None, "file") == "run"
    given, named = asked.pop()
    assert given is settings and required[-1] == "named" and named["resume"] is True
    assert (named["subject"], named["corpus_file"]) == (None, "file")
    required.clear()
    classifiers.measure_classes(settings, output, True, "subject")
    assert asked.pop()[1]["subject"] == "subject" and required == []
