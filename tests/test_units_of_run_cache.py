"""When a finished run may be used again, what a finding keeps, and how many classes a metric of classes needs."""

import json
import os
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from anisoscope.runs import finding, run_cache, vectors
from anisoscope.runs.job import Job


def test_a_stamp_has_the_path_the_size_and_the_time_of_a_change(tmp_path):
    for name, size, time in (("b", 3, 5_000), ("a", 1, 7_000)):
        (tmp_path / name).write_text("x" * size)
        os.utime(tmp_path / name, ns=(1, time))
    expected = [(str(tmp_path / "a"), 1, 7_000), (str(tmp_path / "b"), 3, 5_000)]
    assert run_cache._list_stamps([tmp_path]) == expected
    assert run_cache._list_stamps([tmp_path / "b", tmp_path / "none"]) == expected[1:]


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
