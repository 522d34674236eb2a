"""`compare` of a measured series: every checkpoint with the first, paired by unit, under a name that can be read."""

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from test_across_runs import debiased_cka, procrustes
from typed import invoke

import anisoscope
from anisoscope.cli import comparing
from anisoscope.data.opening import open_plan
from anisoscope.errors import OutputError, UsageError
from anisoscope.measure.settings import Settings
from anisoscope.models.load import load
from anisoscope.models.series import expand
from anisoscope.runs.across import compare_layers
from anisoscope.runs.comparison import compare as compare_kept
from anisoscope.runs.differences import open_kept_run
from anisoscope.runs.job import Job
from anisoscope.runs.measured_series import expand_series, name_checkpoints
from anisoscope.runs.series import measure_series


@pytest.fixture(scope="module")
def folder(small_series, tmp_path_factory):
    """A folder with the series `one` of a single seed, and `two` of two seeds; and the checkpoints of both."""
    place = tmp_path_factory.mktemp("compared")
    shutil.copytree(small_series / "checkpoints", place / "checkpoints")
    job = Job(
        corpus=str(small_series / "text.jsonl"),
        settings=Settings(panel=("hidden",), sample=4096),
    )
    measure_series(expand(str(place / "checkpoints" / "seed-0")), job, place / "one")
    measure_series(expand(str(place / "checkpoints")), job, place / "two")
    return place


@pytest.fixture(autouse=True)
def here(folder, monkeypatch):
    monkeypatch.chdir(folder)


def test_every_checkpoint_is_compared_with_the_first(folder):
    found = anisoscope.compare("one").differences
    assert set(found["against"]) == {"step-0"} and list(
        dict.fromkeys(found["run"])
    ) == ["step-1", "step-10"]
    assert found["paired"].all()
    runs = sorted(
        (folder / "one").glob("seed-*"), key=lambda path: int(path.name.split("-")[3])
    )
    for run, name in zip(runs[1:], ("step-1", "step-10"), strict=True):
        alone = anisoscope.compare(runs[0], run).differences
        own = found[found["run"].eq(name)].reset_index(drop=True)
        for column in ("first", "second", "difference", "low", "high"):
            np.testing.assert_array_equal(own[column], alone[column])
    opened = anisoscope.compare(anisoscope.Run("one")).differences
    np.testing.assert_array_equal(opened["difference"], found["difference"])


def test_a_single_series_is_compared_as_it_is_typed():
    answer = invoke(["compare", "one", "--format", "json", "-q"])
    assert answer.exit_code == 0, answer.output
    told = [row["run"] for row in json.loads(answer.stdout)["records"]]
    assert list(dict.fromkeys(told)) == ["step-1", "step-10"]


def test_a_layer_that_lies_elsewhere_is_said_and_a_final_norm_is_one():
    """Behind 3 blocks and behind 5 it is the final norm of each."""
    place = {
        "second": 0.5,
        "second_low": 0.4,
        "second_high": 0.6,
        "difference": 0.1,
        "low": 0.0,
        "high": 0.2,
    }
    cells = {}
    for site, layer in (("hidden", 1.0), ("hidden", 2.0), ("final", 5.0)):
        row = SimpleNamespace(
            **place,
            site=site,
            layer=1.0 if site == "hidden" else 3.0,
            layer_other=layer,
        )
        cells[site, layer] = comparing._format_other_run(row, with_ends=False)[0]
    assert cells == {
        ("hidden", 1.0): ".500",
        ("hidden", 2.0): ".500 @2",
        ("final", 5.0): ".500",
    }


def test_a_series_stands_beside_other_runs(folder):
    (last,) = (folder / "two").glob("seed-1-step-10-*")
    names = ["step-0", "step-1", "step-10"]
    every = anisoscope.compare("one", last).differences
    assert list(dict.fromkeys(every["run"])) == [
        "one/seed-0-step-1",
        "one/seed-0-step-10",
        "two/seed-1-step-10",
    ]
    assert [run.name for run in _opened("one")] == names
    of_two_seeds = sorted((folder / "two").glob("seed-*-step-10-*"))
    assert [run.name for run in _opened(*of_two_seeds)] == [
        "seed-0-step-10",
        "seed-1-step-10",
    ]


def _opened(*names):
    expanded = expand_series([str(name) for name in names])
    return name_checkpoints([open_kept_run(Path(name)) for name in expanded], expanded)


@pytest.mark.parametrize("of", [((0, 0), (0, 10)), ((0, 10), (1, 10))])
def test_layers_of_two_checkpoints_are_compared_by_the_vectors_of_the_same_tokens(
    folder, small_series, of
):
    """Debiased CKA and Procrustes against plain formulas on what the checkpoints themselves return."""
    runs = [
        next((folder / "two").glob(f"seed-{seed}-step-{step}-*")) for seed, step in of
    ]
    vectors = [
        _hidden_states(
            folder / "checkpoints" / f"seed-{seed}" / f"step-{step}", small_series
        )
        for seed, step in of
    ]
    for metric, plain in (("cka", debiased_cka), ("procrustes", procrustes)):
        found = compare_layers(_opened(*runs), metric)
        hidden = found[found["site"].eq("hidden") & found["site_other"].eq("hidden")]
        assert len(hidden) == 9 and hidden["n_vectors"].eq(len(vectors[0][0])).all()
        for row in hidden.itertuples():
            expected = plain(vectors[0][row.layer], vectors[1][row.layer_other])
            assert row.value == pytest.approx(expected, abs=1e-5)


def _hidden_states(checkpoint, small_series):
    """All vectors [token, dim] of each layer, as the model itself returns them, in the order of the plan."""
    subject = load(str(checkpoint))
    plan, _ = open_plan(
        str(small_series / "text.jsonl"),
        subject.model,
        subject.processor,
        modality="text",
    )
    parts = []
    for batch in plan:
        with torch.no_grad():
            states = subject.model(
                **batch.inputs, output_hidden_states=True
            ).hidden_states
        mask = batch.inputs["attention_mask"].bool()
        parts.append([x[mask].double().numpy() for x in states])
    return [np.concatenate(of_layer) for of_layer in zip(*parts, strict=True)]


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (
            ["one", "one"],
            r"one series of checkpoints; got 2 \(one, one\).*name one checkpoint of each: one/seed-0-step-10",
        ),
        (
            ["two"],
            r"a series of one seed; got two, of the seeds 0, 1.*two/seed-0-step-\*",
        ),
        (
            ["checkpoints"],
            r"a series that was measured before; got the checkpoints checkpoints.*anisoscope measure checkpoints",
        ),
        (
            ["checkpoints/seed-0", "one"],
            r"the checkpoints checkpoints/seed-0.*then anisoscope compare series",
        ),
        (
            ["checkpoints/seed-0/step-{0,1}"],
            r"the checkpoints checkpoints/seed-0/step-\{0,1\}",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused_with_the_command_that_helps(names, told):
    with pytest.raises(UsageError, match=told):
        anisoscope.compare(*names)
    typed = invoke(["compare", *names, "-q"]).exception
    assert isinstance(typed, UsageError) and re.search(told, str(typed))


def test_checkpoints_come_by_their_steps_however_they_are_listed(tmp_path):
    """As numbers: 2 before 10."""
    listed = [
        {"step": step, "seed": 0, "folder": f"run-{step}"} for step in (100, 2, 10)
    ]
    (tmp_path / "series.json").write_text(json.dumps({"checkpoints": listed}))
    assert expand_series([str(tmp_path)]) == [
        str(tmp_path / f"run-{step}") for step in (2, 10, 100)
    ]


def test_a_damaged_list_of_checkpoints_is_told(folder, tmp_path):
    shutil.copytree(folder / "one", tmp_path / "damaged")
    (tmp_path / "damaged" / "series.json").write_text('{"checkpoints": [{"step": 1}]}')
    with pytest.raises(OutputError, match=r"a damaged series\.json"):
        anisoscope.compare(tmp_path / "damaged")


@pytest.mark.parametrize("width", [30, 50, 80, 200])
def test_a_comparison_of_many_fits_the_terminal(width):
    """Cells were folded into three lines each."""
    found = compare_kept(_opened("one"))
    wide, (table,) = (
        comparing.tabulate_comparison(found)[0],
        comparing.tabulate_comparison(found, width),
    )
    assert comparing._count_width(table.head, table.rows) <= width
    assert table.records.equals(wide.records), (
        "what JSON and CSV hold does not depend on the terminal"
    )
    if width == 200:
        assert table.rows == wide.rows and "difference" in table.head
    elif table.head[0] == "layer":
        assert table.head == ("layer", "step-0", "step-1", "step-10")
        clear = {
            (one.run, str(one.layer)): one.low > 0 or one.high < 0
            for one in found.table.itertuples()
        }
        for layer, _, *cells in table.rows:
            for run, cell in zip(("step-1", "step-10"), cells, strict=True):
                assert cell.endswith(comparing.STAR) == clear[run, layer]
    else:
        assert table.head[0] == "run" and [row[0] for row in table.rows] == [
            "step-0",
            "step-1",
            "step-10",
        ]
        assert table.head[-1] == wide.rows[-1][0], "of some layers the last is one"


@pytest.mark.parametrize("width", [50, 60, 200])
def test_layers_by_layers_fit_the_terminal(width):
    first, _, last = _opened("one")
    table = comparing.tabulate_layers(compare_layers([first, last], "cka"), width)
    assert comparing._count_width(table.head, table.rows) <= width
    assert len(table.rows) == len(
        comparing.tabulate_layers(compare_layers([first, last], "cka")).rows
    )
