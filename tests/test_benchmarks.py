"""Every benchmark in miniature, so that none rots. Nothing is timed here."""

import importlib
import json
import shlex
import sys
from pathlib import Path

import attention_matrix as matrix
import numpy as np
import pytest
import torch
from quick import WARM, quick
from transformers import GPT2LMHeadModel

from anisoscope.capture.masking import Masking
from anisoscope.capture.rows import attention_rows
from anisoscope.models.load import load

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
SMALL = ["--pairs", "1"]
PEERS = [
    "--peers",
    "usual",
    "eager_causal",
    "--tokens",
    "64",
    "--window",
    "16",
    "--layers",
    "1",
    "--width",
    "32",
]
MINIATURES = {
    "overhead": [
        *SMALL,
        "--windows",
        "16",
        "causal",
        "demo",
        "--plan-pairs",
        "1",
        "--limit",
        "1",
        "--sequences",
        "1",
    ],
    "modalities": [*SMALL, "--models", "resnet-50", "--limit", "1"],
    "monitor": [*SMALL, "--presets", "tiny", "causal", "--windows", "2"],
    "exactness": ["--limit", "1", "--layers", "1"],
    "gpu": [
        "--tiny",
        "--only",
        "correctness,overhead,backends,agreement,long_context",
        "--device",
        "cpu",
    ],
    "same_records": ["--fused", "--families", "bert"],
    "scale": ["--sizes", "1", "--tokens", "2000", "--processes", "1", "--shards", "3"],
    "peers": [*SMALL, *PEERS],
    "limit": ["--seconds", "0.01"],
    "sizes": [
        *SMALL,
        "--models",
        "gpt2",
        "--lengths",
        "8",
        "--sides",
        "left",
        "--layers",
        "1",
    ],
    "fused_rows": ["--lengths", "16", "--pairs", "1"],
    "attention_shapes": ["--lengths", "16", "--pairs", "1"],
    "spectrum_intervals": [*SMALL, "--limit", "4", "--dims", "16"],
    "spectrum_share": ["--limit", "1", "--dims", "16"],
    "dtypes": [*SMALL, "--dtypes", "bfloat16", "--limit", "1", "--batch-tokens", "64"],
    "vectors": ["--count", "200", "--dim", "8"],
    "coverage": ["--units", "3", "--corpora", "4"],
    "paired": ["--units", "4", "--corpora", "3"],
    "planning": ["--files", "2", "--size", "1", "--shares", "1"],
}
KEPT = {
    "overhead",
    "modalities",
    "monitor",
    "scale",
    "peers",
    "limit",
    "sizes",
    "vectors",
    "fused_rows",
    "attention_shapes",
    "dtypes",
}
KEPT |= {"planning", "spectrum_intervals", "spectrum_share"}
BY_HAND = {"pairs", "first_answer"}
"""Modules that are no benchmark, or one of the program on a terminal (tests/test_terminal.py runs that)."""


@pytest.fixture
def benchmark(monkeypatch, tmp_path):
    """Modules by name; where they begin an interpreter it begins at once."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.join(quick(WARM))} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.syspath_prepend(BENCHMARKS)
    yield importlib.import_module
    forget(BENCHMARKS)


def forget(folder):
    """Modules of a folder are imported anew the next time."""
    for name in [
        name for name, module in sys.modules.items() if _lies_in(folder, module)
    ]:
        del sys.modules[name]


def one_layer(name):
    """The first layer of an encoder: all that is compared, a sixth of the time."""
    subject = load(name)
    subject.model.encoder.layer = subject.model.encoder.layer[:1]
    subject.model.config.num_hidden_layers = 1
    return subject


def _lies_in(folder, module):
    return str(getattr(module, "__file__", "") or "").startswith(str(folder))


def test_no_benchmark_is_left_out():
    assert {path.stem for path in BENCHMARKS.glob("*.py")} == {*MINIATURES} | BY_HAND


LONG = {
    "dtypes",
    "gpu",
    "modalities",
    "monitor",
    "overhead",
    "planning",
    "same_records",
    "spectrum_intervals",
    "spectrum_share",
}
"""Those that take seconds even in miniature; every day they are imported, and say their options."""


@pytest.mark.parametrize("name", sorted(LONG))
def test_a_long_benchmark_says_its_options(name, benchmark, capsys):
    with pytest.raises(SystemExit) as ended:
        benchmark(name).main(["--help"])
    assert ended.value.code == 0 and "usage:" in capsys.readouterr().out


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.nightly if name in LONG else ())
        for name in MINIATURES
    ],
)
def test_a_benchmark_runs(name, benchmark, tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("ANISOSCOPE_DATA", raising=False)
    given = ["--results", str(tmp_path / "results.json")] if name in KEPT else []
    module = benchmark(name)
    if name == "overhead":
        monkeypatch.setattr(module, "load", one_layer)
        monkeypatch.setattr(module, "LENGTHS", (131, 128, 5, 1))
    module.main([*MINIATURES[name], *given])
    assert capsys.readouterr().out.strip()
    check_rows(tmp_path / "results.json", name if given else "")


def check_rows(path, name):
    """What was kept says where it was measured, and its numbers are a median between quartiles."""
    for row in json.loads(path.read_text())[name] if name else ():
        assert {"machine", "load", "versions", "threads"} <= {*row}
        if "processor" in row:
            median, low, high = row["processor"]
            assert 0 < low <= median <= high


def test_ratios_are_medians_of_pairs_around_which_the_base_ran(benchmark, monkeypatch):
    pairs = benchmark("pairs")
    now = [0.0]
    monkeypatch.setattr(pairs, "CLOCKS", {"processor": lambda: now[0]})

    def takes(each):
        each = iter(each)
        return lambda _item: now.__setitem__(0, now[0] + next(each))

    # a pair: base, case, base, base (against itself), base; the first is not counted
    base = takes([9, 9, 9, 9, 2, 2, 4, 2, 1, 1, 1, 1])
    found = pairs.against(base, {"case": takes([9, 3, 1])}, [None], 2)
    assert found["case"]["processor"][0] == pytest.approx((3 / 2 + 1 / 1) / 2, abs=1e-4)
    assert found[pairs.BARE]["processor"] == pytest.approx(
        [(4 / 2 + 1) / 2, 1.25, 1.75], abs=1e-4
    )


def test_benchmarks_of_attention_have_causal_batches_of_unequal_lengths(benchmark):
    """All of them had full windows, and the default command crashed on any others."""
    for batch in (
        benchmark("overhead").causal_batch((131, 128, 5, 1), 0),
        *_batches_of_gpu(benchmark("gpu")),
    ):
        for stream in batch.streams.values():
            _is_padded_on_the_right(stream.mask)


def test_the_monitor_is_timed_on_causal_batches_of_unequal_lengths_too(benchmark):
    """Its looks had full windows of an encoder alone."""
    module = benchmark("monitor")
    assert isinstance(module.build_model(module.SIZES["causal"]), GPT2LMHeadModel)
    inputs = module.draw_inputs(module.SIZES["causal"], 6)
    _is_padded_on_the_right(inputs["attention_mask"].bool())


def test_peers_read_causal_batches_of_unequal_lengths_too(benchmark, tmp_path):
    """The statistic of both sides is then that of real tokens alone, each of which sees what came before it."""
    module = benchmark("peers")
    assert any(module.PEERS[peer][1] == "entropy" for peer in module.CAUSAL)
    module.prepare(tmp_path, 600, 150, 2, 64, causal=True)
    ids = list(torch.from_numpy(np.load(tmp_path / "ids.npy")))
    for batch in ids:
        _is_padded_on_the_right(module.mask_of(batch))
    mine = module.ours(module.loaded(tmp_path, "ours"), ids, "entropy")
    theirs = module.eager_causal(module.loaded(tmp_path, "eager_causal"), ids)
    assert len(mine) == 4
    assert mine == pytest.approx(theirs, abs=1e-5)


def _is_padded_on_the_right(mask):
    """Whether all lengths differ, and reach above the rows that are computed at a time and below them."""
    lengths = mask.sum(1)
    assert lengths.max() > 128 > lengths.min()
    assert len(set(lengths.tolist())) == len(lengths)
    assert (mask == (torch.arange(mask.shape[1]) < lengths[:, None])).all()


def test_without_a_gpu_it_says_what_it_would_do(benchmark):
    with pytest.raises(
        SystemExit, match=r"would run correctness, .*sharded.*make gpu DRY=1"
    ):
        benchmark("gpu").main(["--device", "cpu"])


# `test_in_step.py` and `test_tensor_parallel.py` spread and cut smaller models
@pytest.mark.nightly
def test_a_spread_decoder_in_miniature_has_the_records_of_one_process(benchmark):
    module = benchmark("gpu")
    found = module.sharded(torch.device("cpu"), tiny=True)
    assert found["processes"] == 2
    for way in ("fsdp2", "tensor-parallel"):
        assert (
            found[way]["records"] > 1000
            and found[way]["missing"] == 0
            and found[way]["largest"] < 1e-5
        )
    table = module.table_of({"torch": "2", "sharded": found})
    assert len(table.splitlines()) == 10 and "tensor-parallel largest" in table


def _batches_of_gpu(module):
    return module.batches(module.model_of("decoder-1b", tiny=True), 150, 4, 2)


def test_rows_are_replaced_where_they_are_of_the_same(benchmark, tmp_path):
    pairs, path = benchmark("pairs"), tmp_path / "results.json"
    pairs.keep(path, "one", [{"a": 1, "x": 1}, {"a": 2, "x": 1}], ("a",))
    pairs.keep(path, "two", [{"a": 1, "x": 1}], ("a",))
    pairs.keep(path, "one", [{"a": 2, "x": 5}], ("a",))
    held = json.loads(path.read_text())
    assert [(row["a"], row["x"]) for row in held["one"]] == [(1, 1), (2, 5)]
    assert len(held["two"]) == 1


@pytest.mark.parametrize(
    "how", ["same units, shifted", "same units, trained again", "other units"]
)
def test_intervals_of_differences_of_heads_cover_in_simulation(benchmark, how):
    """Of clustered units, for each head and for their mean: 500 corpora, whose share has a standard error of 1 %."""
    rows = list(benchmark("paired").cases_of_heads(np.random.default_rng(5), 40, 500))
    own = [row for row in rows if row["second run"] == how]
    assert {row["value"] for row in own} == {
        *(f"head {i}" for i in (1, 2, 3, 4)),
        "mean over heads",
    }
    assert 0.93 <= np.mean([row["coverage"] for row in own]) <= 0.97
    assert all(0.90 <= row["coverage"] <= 0.985 for row in own)
    assert all((row["width"] < 0.5) == (how != "other units") for row in own)


def test_shapes_that_are_timed_are_those_of_the_matrix(benchmark):
    """Every benchmark of attention had full windows, and the default command crashed on all others."""
    module = benchmark("attention_shapes")
    timed = module.list_shapes(matrix.LENGTHS, "")
    assert {shape.name for shape in timed} == {
        shape.name for shape in matrix.all_shapes() if shape.form == "boolean"
    }
    padded = module.list_shapes((300,), "causal-right-300-sinks-bfloat16")
    assert [shape.lengths() for shape in padded] == [(300, 149, 1)]


@pytest.mark.parametrize("name", ["minilm", "llama-like"])
def test_rows_of_fused_products_are_those_of_blocks(benchmark, name):
    """What is timed beside our blocks says the same of rows, so that the comparison is one."""
    module = benchmark("fused_rows")
    query, key = module.heads_of(name, 40, torch.float32)
    query, key, causal, scale = (
        query[:2],
        key[:2],
        module.MODELS[name][3],
        query.shape[-1] ** -0.5,
    )
    wanted = attention_rows(
        query.double(), key.double(), Masking(None, causal, None), scale=scale
    )
    repeated = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    rows = module.fused_rows(query, repeated, scale, causal=causal)
    torch.testing.assert_close(
        rows["entropy"].double(), wanted["entropy"], rtol=0, atol=1e-5
    )
    similarity = (rows["received"].double().square().sum(-1) - 40) / (40 * 39)
    torch.testing.assert_close(similarity, wanted["row_similarity"], rtol=1e-5, atol=0)
