"""When a finished run may be used again, what a finding keeps, and how many classes a metric of classes needs."""

import json
import os
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from anisoscope.data.items import Item
from anisoscope.runs import finding, run_cache, vectors
from anisoscope.runs.job import Job


def test_a_stamp_has_the_path_the_size_and_the_time_of_a_change(tmp_path):
    for name, size, time in (("b", 3, 5_000), ("a", 1, 7_000)):
        (tmp_path / name).write_text("x" * size)
        os.utime(tmp_path / name, ns=(1, time))
    expected = [(str(tmp_path / "a"), 1, 7_000), (str(tmp_path / "b"), 3, 5_000)]
    assert run_cache._list_stamps([tmp_path]) == expected
    assert run_cache._list_stamps([tmp_path / "b", tmp_path / "none"]) == expected[1:]
    (tmp_path / "inner").mkdir()
    (tmp_path / "b").rename(tmp_path / "inner" / "b")
    inner = (str(tmp_path / "inner" / "b"), 3, 5_000)
    assert run_cache._list_stamps([tmp_path]) == [expected[0], inner]


@pytest.mark.parametrize("kind", ["image", "speech", "text"])
def test_the_state_of_a_corpus_is_of_the_split_and_column_that_are_read(
    monkeypatch, tmp_path, kind
):
    """Pictures count as clips do, and so does why one of them cannot be read; a text is in the file itself."""
    asked = []
    for name in ("list.csv", "a.png"):
        (tmp_path / name).write_text("x")
        os.utime(tmp_path / name, ns=(1, 4_000))
    place = tmp_path / "list.csv"
    items = [
        Item("a", "u", tmp_path / "a.png"),
        Item("b", None, b"bytes", fault="torn"),
    ]

    def resolve(name, modality, options):
        asked.append((name, modality, options.split, options.column))
        return place

    def find(*given):
        asked.append(given)
        return SimpleNamespace(items=items)

    monkeypatch.setattr(run_cache, "resolve_corpus", resolve)
    monkeypatch.setattr(run_cache, "find_local_items", find)
    monkeypatch.setattr(run_cache, "detect_modality", lambda _: kind)
    found = run_cache.identify_corpus_state(Job(corpus="c", split="s", column="x"))
    first = ("c", "text", "s", "x")
    of_file = [(str(place), 1, 4_000)]
    if kind == "text":
        assert asked == [first] and found == [of_file, [], []]
    else:
        assert asked == [first, (place, kind, "x")]
        names = [("a", "u", ""), ("b", None, "torn")]
        assert found == [of_file, names, [(str(tmp_path / "a.png"), 1, 4_000)]]


def test_a_model_whose_own_code_is_trusted_has_no_key(monkeypatch):
    monkeypatch.setattr(run_cache, "identify_model_state", lambda _: ["model"])
    monkeypatch.setattr(run_cache, "identify_corpus_state", lambda _: ["corpus"])
    assert run_cache.make_key(Job("m", corpus="c")) is not None
    assert run_cache.make_key(Job("m", corpus="c", trust_remote_code=True)) is None


def test_an_entry_of_a_finding_can_be_written_as_json():
    row = dict.fromkeys(finding.ENTRIES, "x")
    row |= {"value": np.float64(0.5), "layer": np.int64(3), "component": pd.NA}
    found = finding.entry(SimpleNamespace(**row))
    assert (found["value"], found["layer"], found["component"]) == (0.5, 3, None)
    assert json.loads(json.dumps(found)) == found


@pytest.mark.parametrize(
    ("classes", "cure"),
    [
        ((), "give labels of two classes"),
        (("a",), "give labels of two classes"),
        (("a", "b"), ""),
        (("a", "b", "c"), ""),
    ],
)
def test_a_metric_of_classes_needs_two_of_them(classes, cure):
    reads = SimpleNamespace(
        of_layers=True, labelled=True, layers=1, is_of_sequences=lambda _: False
    )
    metric = SimpleNamespace(reads=reads, needs=())
    given = SimpleNamespace(classes=classes, layers=[0], are_sequences=False)
    assert vectors._explain_missing(metric, given) == cure  # type: ignore[arg-type]
