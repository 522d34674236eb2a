"""What functions in Python and commands refuse, in whole sentences: what was expected, what came, and the cure."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

import anisoscope
from anisoscope.api import (
    classifiers,
    curing,
    functions,
    keywords,
    run as runs_in_python,
    state,
    working,
)
from anisoscope.batch import Batch, Stream
from anisoscope.cli import answers, comparing
from anisoscope.data.in_memory import read_vectors_of_table
from anisoscope.errors import AnisoscopeError
from anisoscope.runs.job import Job, OutputOptions
from anisoscope.store import as_records

RECORDS = as_records(pd.DataFrame([{"metric": "mean_cosine", "value": 0.5}]))
X = np.arange(12.0).reshape(4, 3)


def in_memory():
    return anisoscope.Run(records=RECORDS, manifest={"model": "m"})


def no_cure():
    trials = SimpleNamespace(
        text="None fits.", notes=(), chosen=None, table=pd.DataFrame
    )
    return curing.Cures(trials, ["centre", "whiten"], X)


def refused_options():
    comparing._refuse_with_across({"--heads": True})


def chosen_of(text):
    trials = SimpleNamespace(chosen=None, text=text)
    return lambda: answers._choose_cure(trials, ["centre", "whiten"])


def batch(**fields):
    return lambda: Batch({}, torch.tensor([1, 2, 3]), **fields)


def stream(mask, start, **more):
    mask = torch.ones(mask, dtype=torch.bool)
    return Stream(mask, mask, torch.zeros(start, dtype=torch.int64), **more)


REFUSED = {
    "a run without a folder": (
        anisoscope.Run,
        "a run folder; got none. Cure: give the path of one, or measure something first",
    ),
    "a folder that is not there": (
        lambda: anisoscope.Run("/no/run"),
        "a run folder; got /no/run, which is not there. Cure: check the path",
    ),
    "a run in memory to cure": (
        lambda: curing.cure(in_memory()),
        "a run that is saved in a folder; got a run in memory. Cure: save it: run.save(folder), "
        "or give measure an output",
    ),
    "units with a file": (
        lambda: curing.cure("v.npy", units=[1]),
        "`units` and `labels` only with an array of vectors; got them with v.npy. Cure: leave units and labels out",
    ),
    "no cure that works": (
        lambda: no_cure().apply(X),
        "a cure that works; got None fits. Cure: to use a cure all the same, name it alone: cures='centre'",
    ),
    "no cure to save": (
        lambda: no_cure().save("x"),
        "a cure that works; got None fits. Cure: to use a cure all the same, name it alone: cures='centre'",
    ),
    "no cure to write": (
        chosen_of("None fits."),
        "a cure that works, to write or save; got none that works among those tried. Cure: to use a cure all the same, "
        "name it alone: --cures centre",
    ),
    "no need of a cure": (
        chosen_of("No cure is needed: all is well."),
        "a cure that works, to write or save; got vectors that need no cure. Cure: to use a cure all the same, name it "
        "alone: --cures centre",
    ),
    "heads with across": (
        refused_options,
        "--across alone; got --heads too. Cure: compare the runs twice, once without --across",
    ),
    "one run": (
        lambda: working.compare(in_memory()),
        "at least two runs; got 1. Cure: name one more run",
    ),
    "a table of texts": (
        lambda: runs_in_python.list_texts(pd.DataFrame({"a": [1], "b": [2]})),
        "texts; got a table with the columns a, b. Cure: choose a column: table[…]",
    ),
    "a number among texts": (
        lambda: runs_in_python.list_texts(["x", 3, 4]),
        "texts; got 3 at index 1. Cure: leave that item out",
    ),
    "a tokenizer with a name": (
        lambda: classifiers._name_model("m", "p"),
        "processor only with a torch.nn.Module; got a name. Cure: leave processor out",
    ),
    "a classifier without a tokenizer": (
        lambda: classifiers._name_model(torch.nn.Linear(1, 1), None),
        "a tokenizer for a model in memory; got none. Cure: give processor=, the model's tokenizer",
    ),
    "an output of an explanation": (
        lambda: classifiers.explain(
            torch.nn.Linear(1, 1), "a", processor="p", output="o"
        ),
        "no output with a text to explain, as the explanation is returned; got output. Cure: leave output out",
    ),
    "no pairs": (
        lambda: classifiers._tabulate_pairs(3),
        "a corpus: a name, a DataFrame, or a list of (text, label); got int. Cure: see help(anisoscope.classes)",
    ),
    "half a pair": (
        lambda: classifiers._tabulate_pairs([("a", "x"), ("b",)]),
        "a corpus: a name, a DataFrame, or a list of (text, label); got \"('b',)\" at index 1. Cure: see "
        "help(anisoscope.classes)",
    ),
    "a word of another library": (
        lambda: keywords.read_keywords(Job, {"max_len": 3}),
        "a known keyword; got 'max_len'. Cure: it is called max_length here",
    ),
    "labels of a column": (
        lambda: read_vectors_of_table(pd.DataFrame({"a": [1.0]}), labels="a"),
        "labels: an array with one entry per row; got 'a'. Cure: to name a column, give label_column='a'",
    ),
    "a corpus with vectors": (
        lambda: functions.measure_vectors(Job(corpus="c"), X, OutputOptions(), True),
        "no corpus with vectors; got the corpus c. Cure: leave corpus out: the vectors are measured as they are",
    ),
    "a mask with a table": (
        lambda: functions._open_vectors(
            Job(), pd.DataFrame({"a": [1.0]}), None, None, 1
        ),
        "mask only with a table, whose rows are vectors; got DataFrame. Cure: leave mask out",
    ),
    "labels with a file": (
        lambda: functions._open_vectors(Job(), "x.npy", None, [1], None),
        "labels only with vectors in memory; got a file: name its columns with unit_column and label_column. "
        "Cure: leave labels out",
    ),
    "a type for a model that is loaded": (
        lambda: functions._load_given_model(
            Job(), torch.nn.Linear(1, 1), None, {"dtype": "float16", "limit": 3}
        ),
        "dtype only with the name of a model; got a model that is loaded: change the model itself. "
        "Cure: leave dtype out",
    ),
    "a tokenizer for a name": (
        lambda: functions._load_given_model(Job(), "m", "p", {}),
        "processor only with a torch.nn.Module; got a name. Cure: leave processor out",
    ),
    "too few units": (
        lambda: state.State().add(X, units=[1, 2]),
        "a unit for each of 4 vectors or sequences; got 2. Cure: give one unit per vector or sequence",
    ),
    "an empty state": (
        lambda: state.State().finish(),
        "a state that something was added to; got an empty one. Cure: add vectors or a batch first",
    ),
    "an empty batch": (
        lambda: Batch({}, torch.zeros(0)),
        "a batch of at least one sequence; got an empty one. Cure: leave empty batches out of the plan",
    ),
    "labels of other sequences": (
        batch(label=torch.zeros(2)),
        "labels of 3 sequences, as many as there are units; got (2,). Cure: give one label per sequence, in order",
    ),
    "masks of other sequences": (
        batch(streams={"s": stream((2, 4), 2)}),
        "masks of 3 sequences, as many as there are units; got 2 in the stream s. Cure: give both the same number of "
        "sequences",
    ),
    "a mask without sequences": (
        lambda: stream((4,), 4),
        "a mask [sequence, token] and a start for each sequence; got a mask of (4,) and starts of (4,). Cure: "
        "give both the same number of sequences",
    ),
    "a field of another shape": (
        lambda: stream((2, 4), 2, image=torch.ones(2, 3)),
        "`image` of the mask's shape (2, 4); got (2, 3). Cure: give `image` that shape",
    ),
    "inputs that cannot be cut": (
        lambda: Batch({"x": torch.ones(2, 3)}, torch.tensor([1, 2, 3])).split(2),
        "inputs that can be cut into sequences, since memory is full; got a tensor [2, 3] for 3 sequences. Cure: give "
        "smaller batches",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused_is_answered_in_a_whole_sentence(what):
    act, sentence = REFUSED[what]
    with pytest.raises(AnisoscopeError) as caught:
        act()
    assert str(caught.value) == f"expected {sentence}"


def test_states_that_do_not_fit_say_of_what_each_is(tmp_path):
    one = state.State("a").add(X)
    with pytest.raises(AnisoscopeError) as caught:
        one.add(X[:, :2])
    assert caught.value.expected == (
        f"a state of one model or one kind of vectors ({one.of})"
    )
    assert "2}" in caught.value.got and caught.value.cure == "use one State per model"
    other = state.State("b").add(X[:, :2])
    with pytest.raises(AnisoscopeError) as caught:
        one.merge(other)
    error = caught.value
    assert error.exit_code == 5
    assert error.expected == f"states of the same model or vectors ({one.of})"
    assert (error.got, error.cure) == (
        str(other.of),
        "merge only states of the same model",
    )
    path = tmp_path / "x"
    path.write_text("no state")
    for wrong in (path, tmp_path / "none"):
        with pytest.raises(AnisoscopeError) as caught:
            state.State.load(wrong)
        error = caught.value
        assert error.exit_code == 6 and error.expected == "a file that State.save wrote"
        assert error.got.startswith(f"{wrong}, which is not such a file (")
        assert error.cure == "name another file"
    assert Path(one.save(tmp_path / "new" / "s")) == tmp_path / "new" / "s"
