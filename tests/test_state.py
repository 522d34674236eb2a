"""`State`: sums that many workers add to, merge in any order, and finish to the run of one pass."""

import contextlib
import os
import pickle
import runpy
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest
import torch
from tiny import VOCABULARY, build, small_encoder

import anisoscope
from anisoscope.api.state import _renumber
from anisoscope.batch import Batch, Stream
from anisoscope.data.builtin import python_docs
from anisoscope.errors import MeasureError, OutputError, UsageError


def bert():
    torch.manual_seed(0)
    return build("bert").eval()


def texts_of(count, lengths=(9, 4, 12)):
    """So many batches of padded ids of sequences of these lengths."""
    draw = torch.Generator().manual_seed(1)
    batches = []
    for _ in range(count):
        ids = torch.randint(3, VOCABULARY, (len(lengths), max(lengths)), generator=draw)
        mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
        batches.append({"input_ids": ids * mask, "attention_mask": mask.long()})
    return batches


RNG = np.random.default_rng(5)
VECTORS = RNG.normal(size=(700, 12)) + 0.7
UNITS = np.repeat(np.arange(70), 10)


def values(run):
    """What a run found, but for what it is called."""
    keys = ["site", "layer", "head", "token_policy", "metric", "component"]
    rows = run.records[[*keys, "value", "low", "high", "n_vectors", "n_units"]]
    return rows.sort_values(keys, ignore_index=True)


def assert_same(one, other, *, within=1e-12):
    first, second = values(one), values(other)
    assert len(first) == len(second) and len(first) > 3
    for column in ("site", "layer", "metric", "component", "n_vectors", "n_units"):
        assert (
            first[column].astype(str).tolist() == second[column].astype(str).tolist()
        ), column
    for column in ("value", "low", "high"):
        np.testing.assert_allclose(
            first[column], second[column], rtol=within, atol=within, err_msg=column
        )


def parts_of_vectors(*cuts, **options):
    """A state for each part of the vectors."""
    for first, last in zip((0, *cuts), (*cuts, len(VECTORS)), strict=True):
        yield anisoscope.State(**options).add(
            VECTORS[first:last], units=UNITS[first:last]
        )


@pytest.mark.parametrize(
    "options", [{}, {"metrics": ("mean_cosine", "drift")}, {"panel": "spectrum"}]
)
def test_parts_of_vectors_add_up_to_the_run_of_all(options):
    whole = anisoscope.measure(VECTORS, units=UNITS, **options)
    first, *rest = parts_of_vectors(13, 205, 400, **options)
    run = first.merge(*rest).finish()
    assert_same(whole, run)
    assert run.records["n_units"].max() == 70 and run.records["n_vectors"].max() == 700


def test_the_order_of_merging_and_adding_changes_nothing():
    a, b, c = parts_of_vectors(200, 450)
    one = anisoscope.State()
    for start in (450, 0, 200):
        stop = {450: 700, 0: 200, 200: 450}[start]
        one.add(VECTORS[start:stop], units=UNITS[start:stop])
    assert_same(c.merge(a, b).finish(), a.merge(b.merge(c)).finish())
    assert_same(one.finish(), a.merge(b, c).finish())


def test_names_of_units_are_the_same_in_every_state_and_many_calls_are_one():
    names = [f"file-{unit}" for unit in UNITS]
    asked = {"metrics": ("mean_cosine", "drift", "norms")}
    halves = [
        anisoscope.State(**asked).add(VECTORS[i::2], units=names[i::2]) for i in (0, 1)
    ]
    run = halves[0].merge(halves[1]).finish()
    assert run.records["n_units"].max() == 70
    one = anisoscope.State(**asked)
    for i in range(0, 700, 10):
        one.add(VECTORS[i : i + 10], units=names[i : i + 10])
    assert_same(run, one.finish())


@pytest.mark.parametrize("panel", ["hidden", "attention", "extremes"])
def test_batches_of_a_model_add_up_to_the_run_of_all(panel):
    model, batches = bert(), texts_of(6)
    whole = anisoscope.measure(model, batches, panel=panel)
    parts = [anisoscope.State(panel=panel) for _ in range(2)]
    done = 0
    for i, batch in enumerate(batches):
        count = len(batch["input_ids"])
        parts[i % 2].add_batch(model, batch, units=range(done, done + count))
        done += count
    run = parts[1].merge(parts[0]).finish()
    assert_same(whole, run, within=1e-9)
    assert (
        run.manifest["capture"] is not None and run.manifest["corpus"]["n_tokens"] > 0
    )


@pytest.mark.parametrize("side", ["left", "right"])
def test_positions_count_from_the_first_real_token_on_either_side_of_the_padding(side):
    """A stream's start is the position of its first column, so that padding on the left puts it before the unit."""
    mask = torch.arange(6) < torch.tensor([6, 2, 4])[:, None]
    mask = mask.flip(1) if side == "left" else mask
    none = torch.zeros(3, dtype=torch.long)
    batch = Batch(
        {}, torch.arange(3), {"decoder": Stream(mask, torch.zeros_like(mask), none)}
    )
    placed = _renumber(batch, np.array([7, 8, 8]), np.array([0, 0, 2]))
    stream = placed.streams["decoder"]
    first = [
        int(start) + row.tolist().index(True)
        for start, row in zip(stream.start, mask, strict=True)
    ]
    assert placed.unit.tolist() == [7, 8, 8]
    assert first == [0, 0, 2]


def test_a_state_is_saved_loaded_and_sent_to_another_process(tmp_path):
    a, b = parts_of_vectors(300)
    kept = anisoscope.State.load(a.save(tmp_path / "new" / "a.state"))
    sent = pickle.loads(pickle.dumps(b))
    assert repr(kept) == repr(a) and sent.n_units == b.n_units
    assert_same(kept.merge(sent).finish(), a.merge(b).finish())
    empty = pickle.loads(pickle.dumps(anisoscope.State("x", panel="hidden")))
    assert (
        empty.name == "x"
        and empty.settings == anisoscope.State(panel="hidden").settings
    )
    assert empty.merge(a) is a and a.merge(empty) is a


def test_units_without_names_go_on_being_numbered_after_loading(tmp_path):
    """A worker that was begun anew would put its vectors into the units that it had before."""
    whole = anisoscope.State("a").add(VECTORS[:300]).add(VECTORS[300:])
    begun = anisoscope.State("a").add(VECTORS[:300])
    gone_on = anisoscope.State.load(begun.save(tmp_path / "a.state")).add(VECTORS[300:])
    assert gone_on.n_units == whole.n_units == 700
    assert_same(gone_on.finish(), whole.finish())


def test_a_finished_state_is_a_run_folder_with_a_page(tmp_path):
    (state,) = parts_of_vectors()
    run = state.finish(tmp_path / "run", corpus="my stream")
    assert (run.report()).is_file() and anisoscope.Run(tmp_path / "run").table()[
        "A"
    ].notna().all()
    assert run.manifest["corpus"]["name"] == "my stream"
    with pytest.raises(OutputError, match="overwrite"):
        state.finish(tmp_path / "run")
    more = state.add(VECTORS[:50] * 2, units=range(100, 150)).finish(
        tmp_path / "run", overwrite=True
    )
    assert more.records["n_units"].max() == 120


def test_units_without_names_need_states_with_names():
    one, other = (anisoscope.State().add(VECTORS[:100]) for _ in range(2))
    with pytest.raises(
        MeasureError, match=r"two called '' .*State\(name=…\), or its units, units="
    ):
        one.merge(other)
    named = anisoscope.State("second").add(VECTORS[100:200])
    run = one.merge(named).finish()
    assert run.records["n_units"].max() == 200


def test_what_does_not_fit_together_is_refused(tmp_path):
    (state,) = parts_of_vectors()
    with pytest.raises(UsageError, match="a state of one model or one kind of vectors"):
        state.add(VECTORS[:, :5])
    with pytest.raises(UsageError, match="one model"):
        state.add_batch(bert(), texts_of(1)[0])
    with pytest.raises(UsageError, match="a unit for each of 700"):
        anisoscope.State().add(VECTORS, units=[1, 2])
    with pytest.raises(UsageError, match="an empty one"):
        anisoscope.State().finish()
    with pytest.raises(UsageError, match="did you mean groups"):
        anisoscope.State(group=4)
    with pytest.raises(UsageError, match="groups = 32"):
        state.merge(anisoscope.State(groups=8).add(VECTORS))
    with pytest.raises(UsageError, match="alignment, which needs two passes"):
        anisoscope.State(panel="alignment").add_batch(bert(), texts_of(1)[0])
    other = tmp_path / "no.state"
    other.write_text("nothing")
    with pytest.raises(OutputError, match="which is not such a file"):
        anisoscope.State.load(other)


def test_another_model_is_refused_though_it_has_the_same_class():
    one, batch = bert(), texts_of(1)[0]
    state = anisoscope.State(panel="hidden").add_batch(
        one, batch, units=range(len(batch["input_ids"]))
    )
    other = bert()
    with torch.no_grad():
        next(other.parameters()).add_(1)
    with pytest.raises(UsageError, match="a state of one model"):
        state.add_batch(other, batch)
    second = anisoscope.State("b", panel="hidden").add_batch(other, batch)
    with pytest.raises(MeasureError, match="states of the same model"):
        state.merge(second)


SCALE = Path(__file__).parents[1] / "examples" / "scale"


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Tables of paragraphs in four files."""
    folder = tmp_path_factory.mktemp("scale")
    (folder / "texts").mkdir()
    found, _ = python_docs(8)
    for file in range(4):
        rows = []
        for n in range(2 * file, 2 * file + 2):
            rows += [
                (f"d{n}", text)
                for text in found.documents[n].split("\n\n")[:3]
                if text.strip()
            ]
        pd.DataFrame(rows, columns=["document", "text"]).to_parquet(
            folder / "texts" / f"{file}.parquet"
        )
    return folder


def run_script(folder, name, *words):
    """Run an example in this process."""
    with contextlib.chdir(folder), patch.object(sys, "argv", [name, *words]):
        runpy.run_path(str(SCALE / f"{name}.py"))


def run_alone(folder, states):
    """The run of one process on the texts of a folder."""
    run_script(folder, "job_array", "texts", states, "0", "1")
    run_script(folder, "job_array", "texts", states)
    return anisoscope.Run((folder / "run").rename(folder / f"run-{states}"))


def test_a_job_array_adds_up_to_one_process(texts, monkeypatch):
    small = anisoscope.load(small_encoder())
    small.processor.model_max_length = 64
    monkeypatch.setattr(anisoscope, "load", lambda _builtin: small)
    alone = run_alone(texts, "alone")
    for job in ("0", "1", "2"):
        run_script(texts, "job_array", "texts", "states", job, "3")
    run_script(texts, "job_array", "texts", "states")
    assert_same(alone, anisoscope.Run((texts / "run").rename(texts / "run-array")))


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(
            [
                "-m",
                "torch.distributed.run",
                "--standalone",
                "--nproc-per-node=2",
                "with_torchrun.py",
            ],
            marks=pytest.mark.nightly,  # `test_distributed.py` has two processes, too
        ),
        ["with_ray.py"],
    ],
)
def test_processes_of_torchrun_and_of_ray_add_up_to_one_process(texts, command):
    if "ray" in command[-1]:
        pytest.importorskip("ray")
    folder, alone = texts, run_alone(texts, f"alone-{len(command)}")
    words = [*command[:-1], str(SCALE / command[-1]), "texts"]
    environment = os.environ | {
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert_same(
        alone, anisoscope.Run((folder / "run").rename(folder / f"run-{len(words)}"))
    )


def test_the_package_is_pickled_by_its_name():
    """What functions of a script refer to: cloudpickle sends modules by name, and other objects whole."""
    assert pickle.loads(pickle.dumps(anisoscope)) is anisoscope
