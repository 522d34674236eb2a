"""Numbers that were silently wrong, and faults that ended badly: one test for each, by item of the issue's list."""

import copy
import gzip
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import soundfile
import tiny
import torch
from hub_server import Hub
from program import NO_PAGE, STOPPED, WITHOUT_PAGE, Ended
from quick import WARM, quick
from safetensors.torch import load_file
from torch import nn

import anisoscope
from anisoscope import provenance
from anisoscope.__main__ import main as typed_main
from anisoscope.batch import Batch, Stream
from anisoscope.data.opening import open_labelled
from anisoscope.data.speech import open_speech
from anisoscope.data.table_rows import read_table_rows
from anisoscope.data.text import open_text
from anisoscope.errors import (
    AnisoscopeError,
    CorpusError,
    MeasureError,
    OutputError,
    UsageError,
)
from anisoscope.measure.loop import Interrupted
from anisoscope.measure.settings import Settings
from anisoscope.models.load import load
from anisoscope.runs.job import Job
from anisoscope.runs.merge import merge_runs
from anisoscope.runs.run import run
from anisoscope.store import (
    KEYS,
    RunFolder,
    as_records,
    read_run,
    write_atomic,
    write_json,
    write_table,
)

SAME = 1e-9
"""What the order of additions may move in float64."""
PACKAGE = Path(anisoscope.__file__).parent


@pytest.fixture(scope="module")
def job(small_series, tmp_path_factory):
    """A tiny encoder, no parameter of it constant, on 20 documents: six batches."""
    folder = tmp_path_factory.mktemp("models")
    for step in (1, 10):
        shutil.copytree(
            small_series / "checkpoints" / "seed-0" / f"step-{step}",
            folder / f"step-{step}",
        )
        tiny.stirred(folder / f"step-{step}", step)
    text = str(small_series / "text.jsonl")
    settings = Settings(sample=40)
    return Job(
        str(folder / "step-1"),
        corpus=text,
        settings=settings,
        limit=20,
        batch_tokens=128,
        dtype="float64",
    )


@pytest.fixture(scope="module")
def whole(job, tmp_path_factory):
    return run(job, tmp_path_factory.mktemp("whole") / "run")


@pytest.fixture(scope="module")
def shards(job, tmp_path_factory):
    """{number of shards: run folders}."""
    folder = tmp_path_factory.mktemp("shards")

    def measured(part, parts):
        return run(
            replace(job, shard=(part, parts)), folder / f"{part}-of-{parts}"
        ).folder

    return {parts: [measured(i, parts) for i in range(parts)] for parts in (2, 3)}


def check_same(got: RunFolder, expected: RunFolder, close: float = SAME) -> None:
    """Row by row: keys equal and in order, values and ends of intervals within rounding."""
    ours, theirs = got.records, expected.records
    keys = [*KEYS, "n_vectors", "n_units"]
    pd.testing.assert_frame_equal(ours[keys], theirs[keys])
    for column in ("value", "low", "high"):
        np.testing.assert_allclose(
            ours[column], theirs[column], rtol=close, atol=close, err_msg=column
        )


def check_done(program, *words, **how):
    """The program does what it was told; how it ended."""
    ended = program(words, setup=NO_PAGE, **how)
    assert all(
        each.code == 0 for each in (ended if isinstance(ended, list) else [ended])
    ), ended
    return ended


def check_told(ended, code, says):
    """The program ended with this exit code and one line, with its cure, that holds these words."""
    lines = [
        line for line in ended.told.splitlines() if line.startswith("anisoscope: ")
    ]
    assert ended.code == code and len(lines) == 1 and "Traceback" not in ended.told, (
        ended
    )
    assert (
        "expected" in lines[0]
        and "Cure" in lines[0]
        and all(word in lines[0] for word in says)
    ), lines[0]


def check_refused(program, code, *words, says):
    check_told(program(words), code, says)


def measure_words(job, *more):
    return (
        "measure",
        job.model,
        "--corpus",
        job.corpus,
        "--panel",
        "hidden",
        "--sample",
        "0",
        "-q",
        *more,
    )


# ---- 1. a run goes on with any number of processes -------------------------------------------------------------------


def whole_words(job, *more):
    settings = (
        "--sample",
        job.settings.sample,
        "--batch-tokens",
        job.batch_tokens,
        "--dtype",
        job.dtype,
    )
    return (
        "measure",
        job.model,
        "--corpus",
        job.corpus,
        "--limit",
        job.limit,
        *settings,
        "-q",
        "-o",
        *more,
    )


@pytest.mark.parametrize("before, after", [(2, 1), (2, 3), (1, 2)])
def test_a_run_goes_on_with_another_number_of_processes(
    program, job, whole, tmp_path, before, after
):
    """2 processes, then 1: A was .4170 for .4213, with exit code 0; a state told how many batches, not which."""
    words = whole_words(job, tmp_path / "run")
    ended = program(words, setup=STOPPED.format(number="signal.SIGTERM"), ranks=before)
    assert {each.code for each in (ended if before > 1 else [ended])} == {143}, ended
    states = RunFolder(tmp_path / "run").states()
    assert len(states) == before and not RunFolder(tmp_path / "run").complete
    check_done(program, *words, "--resume", ranks=after)
    check_same(RunFolder(tmp_path / "run"), whole)


ONE_IS_TOLD = """
import os, signal, time
from pathlib import Path
from anisoscope.measure import loop
asked, looks, told = loop.find_stop_signal, [], Path({told!r})
there = told.with_name("there")
def find_stop_signal(own):
    looks.append(0)
    if len(looks) == 2 and os.environ["RANK"] == {rank!r}:
        while not there.exists():  # else a slow start of the other would end it before its first batch
            time.sleep(0.01)
        os.kill(os.getpid(), signal.{signal})
    while len(looks) == 2 and os.environ["RANK"] != {rank!r} and not told.exists():
        there.touch()
        time.sleep(0.01)
    number = asked(own)
    if number:
        told.touch()
    return number
loop.find_stop_signal = find_stop_signal
"""
"""What the program runs first so that a signal comes to one of two processes when both have measured one batch."""


@pytest.mark.parametrize(
    ("rank", "number", "code"), [("0", "SIGINT", 130), ("1", "SIGTERM", 143)]
)
def test_a_signal_to_one_process_ends_them_all_at_one_batch(
    program, job, whole, tmp_path, rank, number, code
):
    """The others measured their whole share, waited for the sums of one that had ended, and said that it had failed."""
    words = whole_words(job, tmp_path / "run")
    setup = ONE_IS_TOLD.format(told=str(tmp_path / "told"), rank=rank, signal=number)
    ended = program(words, setup=setup, ranks=2)
    assert [each.code for each in ended] == [code] * 2, ended
    assert all(
        "--resume" in each.told and "Traceback" not in each.told for each in ended
    ), ended
    states = [load_file(state) for state in RunFolder(tmp_path / "run").states()]
    assert [len(state["batches"]) for state in states] == [1, 1]
    check_done(program, *words, "--resume", ranks=2)
    check_same(RunFolder(tmp_path / "run"), whole, 1e-12)


def interrupted(job, folder, after=2):
    """A run that was told to end after so many batches."""
    calls = []

    def progress(done, _total):
        calls.append(done)
        if len(calls) == after:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted):
        run(job, folder, progress=progress)
    return RunFolder(folder)


def test_a_state_that_another_took_over_counts_once(job, whole, tmp_path):
    """Killed after the states were added up and before they were removed."""
    begun = interrupted(job, tmp_path / "run")
    shutil.copy(begun.state_path(0), begun.state_path(1))
    check_same(run(job, begun.folder, resume=True), whole)


# ---- 2. a merge knows what it merges ---------------------------------------------------------------------------------


def test_the_same_shard_twice_is_refused(program, shards, tmp_path):
    """Exit code 0, twice the vectors and another A."""
    first = shards[2][0]
    check_refused(
        program,
        5,
        "merge",
        first,
        first,
        "-o",
        tmp_path / "merged",
        says=["no batch in common", first.name],
    )
    assert not (tmp_path / "merged").exists()


@pytest.mark.parametrize(
    "chosen, says",
    [
        ([(2, 0), (3, 0)], "batches of .* holds too"),
        ([(3, 0), (3, 2)], "missing: 2/3.*--shard 2/3"),
        ([(3, 1)], "missing: 1/3, 3/3"),
    ],
)
def test_what_overlaps_or_is_missing_is_named(shards, tmp_path, chosen, says):
    with pytest.raises(MeasureError, match=says):
        merge_runs([shards[parts][i] for parts, i in chosen], tmp_path / "merged")


@pytest.mark.parametrize(
    "changed, says",
    [
        ({"settings": Settings(sample=40, groups=8)}, "settings.groups"),
        ({"limit": 12}, "limit, plan"),
        ({"model": "step-10"}, "model, weights_sha256"),
        ({"batch_tokens": 64}, "batch_tokens, plan"),
    ],
)
def test_shards_of_different_runs_are_refused(job, shards, tmp_path, changed, says):
    """Only model, weights and dtype were compared."""
    if "model" in changed:
        changed = {"model": str(Path(job.model).with_name(changed["model"]))}
    other = run(replace(job, shard=(1, 2), **changed), tmp_path / "other").folder
    with pytest.raises(MeasureError, match=says):
        merge_runs([shards[2][0], other], tmp_path / "merged")


def test_a_run_without_sums_is_refused(whole, shards, tmp_path):
    """The cure named an option that is not there."""
    with pytest.raises(
        MeasureError,
        match=r"sums that are merged in .*with --shard, or with --to-merge if the others are of other files$",
    ):
        merge_runs([whole.folder, shards[2][0]], tmp_path / "merged")


def test_shards_of_classes_are_refused(program, whole, tmp_path):
    """The cure named an option that `anisoscope classes` has not."""
    folder = shutil.copytree(whole.folder, tmp_path / "classes")
    identity = whole.identity() | {"classes": {"corpus": "synthetic"}}
    (folder / "identity.json").write_text(json.dumps(identity))
    says = ["a run of anisoscope classes", "in one go with anisoscope classes"]
    check_refused(
        program, 5, "merge", folder, folder, "-o", tmp_path / "merged", says=says
    )


# ---- 3. merged = whole -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [2, 3])
def test_merged_shards_are_the_whole(whole, shards, tmp_path, parts):
    """No rows of `partition`, and warnings and counts of the first shard alone."""
    merged = merge_runs(shards[parts][::-1], tmp_path / "merged")
    check_merged(merged, whole)


def check_merged(merged: RunFolder, whole: RunFolder) -> None:
    check_same(merged, whole)
    assert "partition" in set(merged.records["metric"])
    for name in ("warnings", "excluded", "corpus", "run", "settings", "weights_sha256"):
        assert merged.manifest[name] == whole.manifest[name], name
    assert merged.identity() == whole.identity()
    ours, theirs = (
        load_file(r.folder / "reservoir.safetensors") for r in (merged, whole)
    )
    assert ours.keys() == theirs.keys() and all(
        np.array_equal(ours[name], theirs[name]) for name in ours
    )


def test_uneven_and_empty_shards_merge_too(job, tmp_path):
    """Five shards of three batches, of six units: a shard without batches was an error; where it was named first, the
    run lost the warning that its spectrum has no intervals.
    """
    job = replace(
        job,
        limit=6,
        batch_tokens=160,
        settings=replace(job.settings, spectrum_groups=1),
    )
    whole = run(job, tmp_path / "whole")
    total = whole.manifest["corpus"]["n_batches"]
    assert 1 < total < 5 and any(
        "6 units only" in warning for warning in whole.manifest["warnings"]
    )
    parts = [run(replace(job, shard=(i, 5)), tmp_path / str(i)) for i in range(5)]
    empty = parts[-1]
    assert (
        set(empty.records["metric"]) == {"partition"}
        and empty.manifest["corpus"]["n_units"] == 0
    )
    assert any(
        warning.startswith("spectrum: ") for warning in whole.manifest["warnings"]
    )
    check_merged(
        merge_runs([part.folder for part in parts], tmp_path / "merged"), whole
    )
    check_merged(
        merge_runs([part.folder for part in parts[::-1]], tmp_path / "turned"), whole
    )


def test_an_empty_shard_is_shown_by_the_program(program, job, tmp_path):
    ended = program(
        measure_words(job, "--limit", 6, "--shard", "200/200", "-o", tmp_path / "run")
    )
    assert ended.code == 0 and "no batch" in ended.told, ended


# ---- 4. a changed formula finds no old run ---------------------------------------------------------------------------


def test_a_changed_formula_finds_no_old_run(program, job, tmp_path):
    """The identity held the version of the package, which no change of a formula moves."""
    words, folder = (
        measure_words(job, "--resume", "-o", tmp_path / "run"),
        tmp_path / "code",
    )
    check_done(program, *words)
    shutil.copytree(PACKAGE, folder / "anisoscope")

    def there():
        done = subprocess.run(
            [*quick(WARM), "-c", WITHOUT_PAGE, *map(str, words)],
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": str(folder)},
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    assert there().code == 0  # the same sources elsewhere: the same run
    formula = folder / "anisoscope" / "metrics" / "drift.py"
    formula.write_text(formula.read_text() + "\nFACTOR = 2\n")
    check_told(there(), 6, ["code.anisoscope.metrics.drift differ", "--overwrite"])


def test_a_changed_configuration_finds_no_old_run(job, tmp_path):
    """The identity knew the weights only: with half the heads a run was found again, and its shards were merged."""
    model = shutil.copytree(job.model, tmp_path / "model")
    ours = replace(job, model=str(model))
    first = run(replace(ours, shard=(0, 2)), tmp_path / "first").folder
    config = json.loads((model / "config.json").read_text())
    config["num_attention_heads"] //= 2
    (model / "config.json").write_text(json.dumps(config))
    with pytest.raises(OutputError, match="architecture differ"):
        run(replace(ours, shard=(0, 2)), first, resume=True)
    second = run(replace(ours, shard=(1, 2)), tmp_path / "second").folder
    with pytest.raises(MeasureError, match="architecture differs"):
        merge_runs([first, second], tmp_path / "merged")


def test_a_changed_module_of_one_s_own_finds_no_old_run(tmp_path):
    """Its weights were all that was known of a model made by a function: not what it does with them."""
    text = (
        "import sys, tiny\n"
        "class Own(type(tiny.build('bert'))):\n"
        "    def forward(self, *given, **named):\n"
        "        return super().forward(*given, **named)\n"
        "def make():\n"
        "    model = tiny.build('bert')\n"
        "    model.__class__ = Own\n"
        "    return model\n"
    )
    first, same, other = (
        form_of(x, tmp_path / name)
        for x, name in ((text, "a"), (text + "#\n", "b"), (text + "FACTOR = 2\n", "c"))
    )
    assert first == same != other


def form_of(text, folder):
    """What is known of the model of this source in a folder."""
    folder.mkdir()
    (folder / "own.py").write_text(text)
    sys.modules.pop("own", None)
    sys.path.insert(0, str(folder))
    try:
        return load("own:make").form
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("own", None)


# ---- 5: modes after an exception -------------------------------------------------------------------------------------


def partly_frozen():
    """An encoder in training, one block of which its user keeps in evaluation mode."""
    model = tiny.build("bert", torch.float32).train()
    model.encoder.layer[1].eval()
    return model, [module.training for module in model.modules()]


def one_batch(ids):

    mask = torch.ones(ids.shape[:2], dtype=torch.bool)
    stream = Stream(mask, torch.zeros_like(mask), torch.zeros(len(ids)).long())
    return [Batch({"input_ids": ids}, torch.arange(len(ids)), {"encoder": stream})]


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("who", ["pooled_vectors", "entropies"])
def test_5_modes_come_back_module_by_module(who, fails):
    """`model.train(before)` woke the frozen block, and an exception left all modules in evaluation mode."""
    from anisoscope.classes.cls_entropy import measure_entropies
    from anisoscope.classes.pooling import pool_vectors

    model, before = partly_frozen()
    run = {"pooled_vectors": pool_vectors, "entropies": measure_entropies}[who]
    ids = torch.full((2, 4), 10_000 if fails else 5)  # beyond the vocabulary
    if fails:
        with pytest.raises(IndexError):
            run(model, one_batch(ids))
    else:
        run(model, one_batch(ids))
    assert [module.training for module in model.modules()] == before


# ---- 6: entropy with attention sinks ---------------------------------------------------------------------------------


def with_sinks(**changes):
    """A tiny GPT-OSS: every head has a learnt logit in its softmax, which takes weight from the keys."""
    import transformers

    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    sizes |= {
        "head_dim": 8,
        "intermediate_size": 16,
        "vocab_size": 60,
        "num_local_experts": 2,
        "pad_token_id": 0,
    }
    torch.manual_seed(0)
    config = transformers.GptOssConfig(
        **sizes, num_experts_per_tok=1, layer_types=["full_attention"] * 2, **changes
    )
    model = (
        transformers.GptOssModel._from_config(
            config, attn_implementation="eager", experts_implementation="eager"
        )
        .double()
        .eval()
    )
    for i, layer in enumerate(model.layers):
        layer.self_attn.sinks.data = torch.tensor(
            [2.0, 0.0, -3.0, 150.0 * i], dtype=torch.float64
        )
    return model


def rows_by_hand(model, ids):
    """Weights [layer][sequence, head, query, key + sink] of each row, by the definition, in float64."""
    from anisoscope.capture import capture

    with torch.no_grad(), capture(model, ("query.rotated", "key.rotated")) as tap:
        model(input_ids=ids)
    found = []
    for i, layer in enumerate(model.layers, start=1):
        q, k = (tap[f"decoder.{i}.head.{name}.rotated"] for name in ("query", "key"))
        score = torch.einsum("bhqd,bhkd->bhqk", q, k.repeat_interleave(2, 1)) * 8**-0.5
        score = score.masked_fill(
            torch.ones(ids.shape[1], ids.shape[1]).triu(1).bool(), -torch.inf
        )
        sink = layer.self_attn.sinks.view(1, -1, 1, 1).expand(*score.shape[:3], 1)
        found.append(torch.cat((score, sink), -1).softmax(-1))
    return found


def test_6_normalised_entropy_counts_the_sink_on_both_sides():
    """H over keys and sink was divided by ln(keys) alone: 1.58 for a row of two keys; a row of one key was left out."""
    from anisoscope.store import select

    model, ids = (
        with_sinks(),
        torch.randint(3, 60, (3, 5), generator=torch.Generator().manual_seed(1)),
    )
    records = tiny.measure(model, [{"input_ids": ids}], ["attention"], sample=0)
    for layer, p in enumerate(rows_by_hand(model, ids), start=1):
        assert torch.allclose(p.sum(-1), torch.ones(()).double())
        outcomes = torch.arange(
            2, 7
        ).double()  # one key and the sink, two keys and the sink …
        expected = (-torch.xlogy(p, p).sum(-1) / outcomes.log()).mean((0, 2))
        got = select(records, metric="attention.entropy_normalised", layer=layer)[
            "value"
        ]
        assert (
            got.tolist() == pytest.approx(expected.tolist(), abs=1e-12)
            and got.max() <= 1
        )
        first = select(records, metric="attention.first_mass", layer=layer)["value"]
        assert first.tolist() == pytest.approx(
            p[..., 0].mean((0, 2)).tolist(), abs=1e-12
        )


def test_6_uniform_rows_with_a_sink_have_normalised_entropy_1():
    """ln 2 / ln 1 for one key, ln 3 / ln 2 = 1.58 for two: now 1, whatever the number of keys."""
    from anisoscope.capture.masking import Masking
    from anisoscope.capture.rows import attention_rows
    from anisoscope.sums.groups import sum_rows

    q, k = torch.zeros(1, 1, 3, 4).double(), torch.zeros(1, 1, 3, 4).double()
    rows = attention_rows(
        q, k, Masking(None, True, None), scale=1.0, sinks=torch.zeros(1)
    )
    sums = sum_rows(rows, torch.ones(1, 1, 3, dtype=torch.bool))
    assert (
        float(sums["entropy_normalised"]) == pytest.approx(3, abs=1e-14)
        and float(sums["normalised_rows"]) == 3
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_6_a_sink_far_above_the_scores_does_not_overflow(dtype):
    """exp(150) is infinite in float32: such rows were counted as not finite and left out."""
    from anisoscope.capture.masking import Masking
    from anisoscope.capture.rows import attention_rows

    q, k = (
        torch.randn(1, 1, 4, 8, generator=torch.Generator().manual_seed(i)).to(dtype)
        for i in (0, 1)
    )
    rows = attention_rows(
        q,
        k,
        Masking(None, False, None),
        scale=1.0,
        sinks=torch.tensor([150.0]),
        median=True,
    )
    assert all(
        bool(rows[name].isfinite().all())
        for name in ("entropy", "row_max", "first_mass", "row_median")
    )
    assert float(rows["entropy"].max()) < 1e-40 and float(rows["row_max"].max()) < 1e-40


def test_6_penalty_attribution_and_ablation_know_sinks():
    """Scores left the sink out: weights added up to 1 where the model's add up to less."""
    from anisoscope.capture.backends import intercept_attention
    from anisoscope.classes.cls_entropy import Watch

    model, ids = (
        with_sinks(),
        torch.randint(3, 60, (3, 5), generator=torch.Generator().manual_seed(1)),
    )
    expected = rows_by_hand(model, ids)
    weights, watch = [], Watch(torch.ones(3, 5), (), columns=True)

    def look(call):
        weights.append(call.weights())
        return (weights[-1] @ call.value.repeat_interleave(2, 1)).transpose(1, 2)

    with torch.no_grad(), intercept_attention(model, watch.look):
        plain = model(input_ids=ids, output_attentions=True)
        with intercept_attention(model, look):  # which stands in for the backend
            ours = model(input_ids=ids)
    for mine, theirs, by_hand in zip(weights, plain.attentions, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)
        torch.testing.assert_close(mine, by_hand[..., :-1], rtol=0, atol=1e-12)
    torch.testing.assert_close(
        ours.last_hidden_state, plain.last_hidden_state, rtol=0, atol=1e-10
    )
    row = torch.stack([p[:, :, 0] for p in expected]).mean(0)  # one key and the sink
    assert row.shape == (3, 4, 6)
    entropy = [-torch.xlogy(p[:, :, 0], p[:, :, 0]).sum(-1).mean(1) for p in expected]
    torch.testing.assert_close(
        watch.row_entropy(), sum(entropy) / 2 / math.log(6), rtol=0, atol=1e-12
    )


# ---- 7: gates taken for heads; what runs twice in a forward call -----------------------------------------------------


def gated(family):
    """Qwen's next models: one projection puts out query and gate."""
    import transformers

    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    sizes |= {
        "head_dim": 8,
        "intermediate_size": 16,
        "vocab_size": 60,
        "layer_types": ["full_attention"] * 2,
    }
    experts = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8}
    config = {
        "qwen3_next": lambda: transformers.Qwen3NextConfig(
            **sizes, **experts, shared_expert_intermediate_size=8
        ),
        "qwen3_5": lambda: transformers.Qwen3_5TextConfig(**sizes),
    }[family]()
    torch.manual_seed(0)
    return transformers.AutoModel.from_config(config).eval()


@pytest.mark.parametrize("family", ["qwen3_next", "qwen3_5"])
def test_7_raw_queries_are_no_gates(family):
    """`query.raw` had twice the heads, every other one a gate; the query norm's own input says what queries are."""
    from anisoscope.capture import capture

    model, given = gated(family), []
    for layer in model.layers:
        layer.self_attn.q_norm.register_forward_pre_hook(
            lambda _m, args: given.append(args[0]) or None
        )
    with torch.no_grad(), capture(model, ("query", "key")) as tap:
        model(input_ids=torch.randint(3, 60, (2, 7)))
    for layer, query in enumerate(given, start=1):
        assert torch.equal(
            tap[f"decoder.{layer}.head.query.raw"], query.transpose(1, 2)
        )
        assert tap[f"decoder.{layer}.head.key.raw"].shape == (2, 2, 7, 8)


class Twice(nn.Module):
    """An encoder that runs twice in one forward call: on two inputs, or looped on its own output."""

    def __init__(self, looped=False):
        super().__init__()
        self.encoder, self.looped = tiny.build("bert", torch.float32).encoder, looped

    def forward(self, x):
        once = self.encoder(x)[0]
        return (
            self.encoder(once)[0] if self.looped else once + self.encoder(x.flip(1))[0]
        )


def test_7_an_encoder_that_runs_on_two_inputs_is_refused():
    """Every vector counted twice: 2 · 2 · 5 of 2 · 5, with the intervals of as many."""
    from anisoscope.errors import MeasureError

    batches = [{"x": torch.randn(2, 5, 32)}]
    with pytest.raises(
        MeasureError,
        match=r"encoder\.layer\.0 run again on other input.*measure the encoder as a model of its own",
    ):
        tiny.measure(Twice(), batches, ["mean_cosine"], blocks=("BertLayer",))


def test_7_a_loop_s_rounds_are_layers():
    """Layers 1 to 3 were counted twice and 4 to 6 were not there."""
    from anisoscope.capture import capture

    model, x = Twice(looped=True).eval(), torch.randn(2, 5, 32)
    with torch.no_grad(), capture(model, ("hidden",), blocks=("BertLayer",)) as tap:
        output = model(x)
    assert tap.sites == [f"encoder.{i}.hidden" for i in range(7)]
    assert torch.equal(tap["encoder.6.hidden"], output)
    with (
        torch.no_grad(),
        capture(model.encoder, ("hidden",), blocks=("BertLayer",)) as tap,
    ):
        once = model.encoder(x)[0]
    assert torch.equal(tap["encoder.3.hidden"], once)


def test_7_shared_layers_in_groups_are_layers():
    """ALBERT with two groups of shared weights began at layer 0 again each time its first group ran."""
    import transformers

    from anisoscope.capture import capture

    sizes = {
        "embedding_size": 16,
        "hidden_size": 32,
        "num_attention_heads": 4,
        "intermediate_size": 48,
    }
    config = transformers.AlbertConfig(
        **sizes, vocab_size=60, num_hidden_layers=6, num_hidden_groups=2
    )
    model, ids = transformers.AlbertModel(config).eval(), torch.randint(3, 60, (2, 7))
    with torch.no_grad(), capture(model, ("hidden", "attention")) as tap:
        states = model(input_ids=ids, output_hidden_states=True).hidden_states
    assert [s for s in tap.sites if "hidden" in s] == [
        f"encoder.{i}.hidden" for i in range(7)
    ]
    assert [s for s in tap.sites if "attention" in s] == [
        f"encoder.{i}.attention" for i in range(1, 7)
    ]
    assert all(
        torch.equal(tap[f"encoder.{i}.hidden"], state) for i, state in enumerate(states)
    )


def test_7_two_attentions_in_one_place_are_refused():
    """A layer that attends twice gave both under one name."""
    from anisoscope.capture import capture
    from anisoscope.errors import MeasureError

    model = tiny.build("bert", torch.float32)
    inner = model.encoder.layer[1].attention.self
    inner.register_forward_hook(
        lambda m, args, kwargs, _out: m.forward(*args, **kwargs), with_kwargs=True
    )
    said = r"one call at encoder\.2\.attention.*--panel hidden,spectrum"
    with (
        pytest.raises(MeasureError, match=said),
        torch.no_grad(),
        capture(model, ("attention",)),
    ):
        model(input_ids=torch.randint(3, 60, (2, 7)))


# ---- 9: names of blocks; faults that are said at once ----------------------------------------------------------------


class Stack(nn.Module):
    """A model that knows nothing of transformers: blocks that return tuples, called by keyword."""

    class Block(nn.Module):
        def __init__(self, batch_first=True):
            super().__init__()
            self.attend, self.norm = (
                nn.MultiheadAttention(16, 2, batch_first=batch_first),
                nn.LayerNorm(16),
            )

        def forward(self, src):
            return self.norm(src + self.attend(src, src, src)[0]), {"more": 1}

    def __init__(self, batch_first=True):
        super().__init__()
        self.layers = nn.ModuleList(self.Block(batch_first) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = layer(src=x)[0]
        return x


def hidden_of(model, *inputs, **options):
    """Hidden states by layer, and the output."""
    from anisoscope.capture import capture

    with torch.no_grad(), capture(model, ("hidden", "final"), **options) as tap:
        output = model(*inputs)
    return tap.kept, output


@pytest.mark.parametrize(
    "typed, said",
    [("Nope", "Block"), ("Blok", "did you mean Block"), ("layer.*", r"layers\.\*")],
)
def test_9_blocks_that_fit_nothing_are_refused(typed, said):
    """`--blocks Nope` was ignored: the model's own blocks were measured without a word."""
    from anisoscope.errors import UsageError

    for model in (Stack(), tiny.model("bert")):
        with pytest.raises(
            UsageError,
            match=said
            if isinstance(model, Stack)
            else f"{re.escape(repr(typed))}, which",
        ):
            hidden_of(model, torch.randn(2, 5, 16), blocks=(typed,))


def test_9_blocks_nope_through_the_program(program, tmp_path):
    """Exit 0 and the numbers of other blocks."""
    done = program(
        [
            "measure",
            "builtin:minilm",
            "--blocks",
            "Nope",
            "--limit",
            "2",
            "-o",
            tmp_path / "run",
        ]
    )
    assert done.code == 2 and "Traceback" not in done.told
    assert (
        "'Nope', which matches no module" in " ".join(done.told.split())
        and "BertLayer" in done.told
    )


def test_9_blocks_by_class_or_by_name_pattern():
    """A pattern of module names was no way to name blocks, and a block called by keyword a KeyError."""
    model, x = Stack().eval(), torch.randn(2, 5, 16)
    for blocks in (("Block",), ("layers.*",), ("layers.0", "layers.[12]")):
        kept, output = hidden_of(model, x, blocks=blocks)
        assert list(kept) == [f"encoder.{i}.hidden" for i in range(4)]
        assert torch.equal(kept["encoder.0.hidden"], x) and torch.equal(
            kept["encoder.3.hidden"], output
        )
    assert list(hidden_of(model, x, blocks=("layers.[12]",))[0]) == [
        f"encoder.{i}.hidden" for i in range(3)
    ]


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
def test_9_torch_s_own_encoder(batch_first, norm_first):
    """Its layers were not found; by class they came as [token, sequence, dim] or, padded, as nested tensors."""
    from anisoscope.capture import capture

    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        16, 2, 32, batch_first=batch_first, norm_first=norm_first
    )
    model = nn.TransformerEncoder(
        layer, 3, norm=nn.LayerNorm(16), enable_nested_tensor=not norm_first
    ).eval()
    x = torch.randn(3, 5, 16)
    real = torch.arange(5) < torch.tensor([4, 3, 1])[:, None]
    given = x if batch_first else x.transpose(0, 1)
    with torch.no_grad(), capture(model, ("hidden", "final")) as tap:
        tap.real = {"encoder": real}
        output = model(given, src_key_padding_mask=~real)
    expected = [x]
    with torch.no_grad():
        for one in model.layers:
            y = expected[-1] if batch_first else expected[-1].transpose(0, 1)
            y = one(y, src_key_padding_mask=~real)
            expected.append(y if batch_first else y.transpose(0, 1))
    output = output if batch_first else output.transpose(0, 1)
    for i, state in enumerate(expected):
        assert tap[f"encoder.{i}.hidden"].shape == (3, 5, 16)
        torch.testing.assert_close(
            tap[f"encoder.{i}.hidden"][real], state[real], rtol=1e-5, atol=1e-5
        )
    torch.testing.assert_close(
        tap["encoder.final"][real], output[real], rtol=1e-5, atol=1e-5
    )


def test_9_torch_s_encoder_and_decoder_are_two_stacks():
    model = nn.Transformer(16, 2, 2, 3, 32, batch_first=True).eval()
    kept, output = hidden_of(model, torch.randn(2, 5, 16), torch.randn(2, 4, 16))
    names = [f"encoder.{i}.hidden" for i in range(3)] + [
        f"decoder.{i}.hidden" for i in range(4)
    ]
    assert [site for site in kept if "hidden" in site] == names
    assert kept["encoder.2.hidden"].shape == (2, 5, 16) and torch.equal(
        kept["decoder.final"], output
    )


@pytest.mark.parametrize("family", ["XLNet", "FSMT"])
def test_9_families_whose_blocks_pass_on_tokens_first(family):
    """As many tokens as sequences: the two axes were swapped, and no shape said so."""
    import transformers

    if family == "XLNet":
        config = transformers.XLNetConfig(
            d_model=32, n_layer=3, n_head=4, d_inner=48, vocab_size=60
        )
    else:
        sizes = {
            f"{side}_{name}": 2
            for side in ("encoder", "decoder")
            for name in ("layers", "attention_heads")
        }
        sizes |= {"encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "d_model": 32}
        config = transformers.FSMTConfig(
            langs=["a", "b"], src_vocab_size=60, tgt_vocab_size=60, **sizes
        )
    model, ids = (
        transformers.AutoModel.from_config(config).eval(),
        torch.randint(3, 60, (4, 4)),
    )
    kept, _ = hidden_of(model, ids)
    with torch.no_grad():
        states = model(ids, output_hidden_states=True)
    of_stacks = {
        "encoder": states.get("hidden_states", states.get("encoder_hidden_states"))
    }
    of_stacks |= {"decoder": states.decoder_hidden_states} if family == "FSMT" else {}
    for stack, own in of_stacks.items():
        assert all(
            torch.equal(kept[f"{stack}.{i}.hidden"], state)
            for i, state in enumerate(own)
        )
        assert f"{stack}.{len(own)}.hidden" not in kept


def test_9_a_batch_axis_that_cannot_be_known_is_asked_for():
    """Blocks of one's own around torch's attention, which takes tokens first: either could be meant."""
    from anisoscope.errors import MeasureError, UsageError

    model, x = Stack(batch_first=False).eval(), torch.randn(5, 2, 16)
    with pytest.raises(
        UsageError,
        match=r"Block around MultiheadAttention with batch_first=False.*tokens_first=True",
    ):
        hidden_of(model, x, blocks=("Block",))
    kept, output = hidden_of(model, x, blocks=("Block",), tokens_first=True)
    assert torch.equal(kept["encoder.3.hidden"], output.transpose(0, 1))
    batch = Batch({"x": x}, torch.tensor([0, 1]))
    with pytest.raises(
        MeasureError,
        match=r"vectors of 2 sequences at encoder\.0\.hidden.*tokens_first=True",
    ):
        tiny.measure(
            model, [batch], panel=("hidden",), blocks=("Block",), tokens_first=False
        )
    records = tiny.measure(
        model,
        [batch],
        ["mean_cosine"],
        blocks=("Block",),
        tokens_first=True,
        tokens=("all",),
    )
    assert set(records["n_vectors"]) == {10} and set(records["n_units"]) == {2}


def test_9_one_vector_per_example():
    """[sequence, dim] of a plain network was taken for something else: three axes were expected."""
    model, x = (
        nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4)),
        torch.randn(5, 8),
    )
    kept, output = hidden_of(model, x, blocks=("Linear",))
    assert torch.equal(kept["encoder.0.hidden"], x.unsqueeze(1)) and kept[
        "encoder.1.hidden"
    ].shape == (5, 1, 6)
    assert torch.equal(kept["encoder.2.hidden"], output.unsqueeze(1))


def test_9_maps_with_channels_last():
    """SAM passes on [sequence, height, width, channel]: heights were taken for channels."""
    import transformers

    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 32,
        "patch_size": 8,
    }
    config = transformers.SamVisionConfig(
        **sizes, output_channels=8, global_attn_indexes=[1], window_size=2
    )
    model, pixels = (
        transformers.SamVisionModel(config).eval(),
        torch.randn(2, 3, 32, 32),
    )
    kept, _ = hidden_of(model, pixels)
    with torch.no_grad():
        states = model(pixels, output_hidden_states=True).hidden_states
    assert [site for site in kept if "hidden" in site] == [
        f"encoder.{i}.hidden" for i in range(3)
    ]
    for i, state in enumerate(states[:3]):
        assert state.shape == (2, 4, 4, 16) and torch.equal(
            kept[f"encoder.{i}.hidden"], state.flatten(1, 2)
        )


def test_9_what_a_block_returns_is_told_where_it_is_no_vector():
    from anisoscope.errors import MeasureError

    class Odd(nn.Module):
        def forward(self, x):
            return {"logits": x}

    model = nn.Sequential(Odd())
    with pytest.raises(
        MeasureError,
        match=r"Odd to return a tensor of vectors.*got a mapping of logits",
    ):
        hidden_of(model, torch.randn(2, 5, 4), blocks=("Odd",))


# ---- faults that must end clearly ------------------------------------------------------------------------------------


class Unseen(nn.Module):
    """Attention by a kernel that no capture knows."""

    class SigmoidAttention(nn.Module):
        def forward(self, x):
            return torch.sigmoid(x @ x.mT) @ x

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(self.SigmoidAttention() for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def test_attention_that_is_not_seen_is_told_at_the_first_batch():
    """It was told after the whole pass, hours later. Where it was not asked for by name, the rest is measured."""
    from anisoscope.errors import MeasureError

    model, calls = Unseen().eval(), []
    model.register_forward_pre_hook(lambda *_: calls.append(1))
    batches = [{"x": torch.randn(4, 5, 16)}] * 3
    with pytest.raises(
        MeasureError,
        match=r"attention classes of Unseen: SigmoidAttention.*--panel hidden,spectrum",
    ):
        tiny.measure(
            model, batches, panel=("attention",), sample=0, blocks=("layers.*",)
        )
    assert len(calls) == 1
    records = tiny.measure(model, batches, sample=0, blocks=("layers.*",))
    assert set(records["layer"].dropna()) == {
        0,
        1,
        2,
    } and "attention.entropy" not in set(records["metric"])
    run = anisoscope.measure(model, batches[0], blocks=("layers.*",))
    assert any(
        "not seen" in warning and "attention" in warning
        for warning in run.manifest["warnings"]
    )


def test_a_module_without_transformers_is_measured_with_its_attention():
    """All panels asked attention of `nn.MultiheadAttention`, which could not show it, and nothing was measured."""
    records = tiny.measure(
        Stack(), [{"x": torch.randn(4, 5, 16)}], blocks=("layers.*",)
    )
    assert {"mean_cosine", "attention.entropy"} <= set(records["metric"])


def test_the_meta_device_is_refused_in_one_line(program):
    """It ended in "Cannot copy out of meta tensor"."""
    from anisoscope.errors import ModelError

    with torch.device("meta"):
        model = Stack()
    with pytest.raises(ModelError, match="whose weights have values"):
        tiny.measure(model, [{"x": torch.randn(4, 5, 16)}], blocks=("layers.*",))
    done = program(["measure", "builtin:minilm", "--device", "meta", "--limit", "2"])
    assert (
        done.code == 2
        and "Traceback" not in done.told
        and "did you mean" not in done.told
    )
    assert (
        "a device that computes; got 'meta', which knows shapes only. Cure: use --device cpu, cuda"
        in done.told
    )


def test_nan_in_outputs_is_counted_and_said():
    """Already so; it stays so: a model that puts out NaN is measured on the rest, which is counted."""
    from anisoscope.measure.inputs import GivenInputs
    from anisoscope.measure.loop import run_pass

    model = Stack().eval()
    x = torch.randn(4, 5, 16)
    x[2, 3] = torch.nan
    settings = Settings(panel=("hidden",), sample=0, blocks=("layers.*",))
    found = run_pass(model, GivenInputs([{"x": x}], model), settings).excluded()
    assert found["encoder.0.hidden"]["nonfinite"] == 1
    assert (
        found["encoder.1.hidden"]["nonfinite"] == 5
    )  # attention spreads it over its sequence


def test_built_once_modes_and_the_registration_with_the_attention_interface():
    """Evaluation mode was switched by hand in seven places, and attention functions registered in two."""
    from pathlib import Path

    import anisoscope

    sources = {
        path: path.read_text()
        for path in Path(anisoscope.__file__).parent.rglob("*.py")
    }
    switching = {
        path.name
        for path, text in sources.items()
        if re.search(r"\.train\(training|training = model\.", text)
    }
    registering = {
        path.name
        for path, text in sources.items()
        if "AttentionInterface.register(" in text
    }
    assert (
        not switching and not registering
    )  # the papers register attention other than softmax


def test_built_once_class_directions_take_the_road_of_every_metric(program, tmp_path):
    """They were computed beside it: refused by name, and not in what was merged. Processes and shards, through the
    program, give the whole; AUC is no sum, and a shard says that it has none.
    """
    rng = np.random.default_rng(3)
    x = rng.standard_normal((9000, 5))  # three batches
    np.savez(
        tmp_path / "x.npz",
        x=x,
        labels=rng.choice(["red", "green", "blue"], 9000),
        units=np.arange(9000) // 7,
    )
    words = ("measure", tmp_path / "x.npz", "--groups", "12", "-q", "--output")
    check_done(program, *words, tmp_path / "whole")
    parts = [tmp_path / f"{i}-of-3" for i in (1, 2, 3)]
    for i, part in enumerate(parts):
        check_done(program, *words, part, "--shard", f"{i + 1}/3")
    check_done(program, "merge", *parts, "--output", tmp_path / "merged")
    check_done(program, *words, tmp_path / "two", ranks=2)
    whole, merged, two = (
        RunFolder(tmp_path / name).records.query("metric == 'class_direction'")
        for name in ("whole", "merged", "two")
    )
    assert (
        len(whole) == 6
        and set(whole["n_units"]) == {1286}
        and set(whole["n_vectors"]) == {9000}
    )
    for found in (merged, two):
        assert found["component"].tolist() == whole["component"].tolist()
        for column in ("value", "low", "high"):
            np.testing.assert_allclose(found[column], whole[column], rtol=0, atol=SAME)
    assert any(
        "AUC" in warning
        for warning in RunFolder(tmp_path / "merged").manifest["warnings"]
    )


# ---- 9: labels, tables and other data of one's own; faults of files ------------------------------------------------

DEEP, LONG_INTEGER, HALF = (
    "[" * 100_000,
    f'{{"text": {"9" * 5000}}}',
    '{"text": "\\ud800 half"}',
)
GOOD = [
    json.dumps({"text": f"a good row {k}", "label": k % 2, "path": f"{k}.wav"})
    for k in range(40)
]


def written(path: Path, content: str | bytes) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def typed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str
) -> tuple[int, str]:
    """Exit code and last line of the program for what was typed."""
    monkeypatch.setattr(sys, "argv", ["anisoscope", *words])
    with pytest.raises(SystemExit) as ended:
        typed_main()
    return int(ended.value.code or 0), capsys.readouterr().err.strip().split("\n")[-1]


@pytest.mark.parametrize(
    ("labels", "named"),
    [
        ([0, 1] * 20 + [-1], "line 41 (-1)"),
        (["a", "b"] * 20 + ["nan", "NaN"], "line 41 (nan), bad.jsonl, line 42 (NaN)"),
        ([0.5, 1.5] * 20 + [float("nan")], "line 41 (nan)"),
        (["a", "b"] * 20 + ["1e400"], "line 41 (1e400)"),
        (["a", "b"] * 20 + ["<NA>", "inf"], "line 42 (inf)"),
    ],
)
def test_9_what_stands_for_no_label_is_no_class(tmp_path, labels, named):
    """−1, nan, 1e400 of a local table became classes."""
    rows = "\n".join(
        json.dumps({"text": f"x {k}", "label": label}) for k, label in enumerate(labels)
    )
    with pytest.raises(CorpusError, match="a label in every row") as caught:
        open_labelled(written(tmp_path / "bad.jsonl", rows))
    assert named in caught.value.got


def test_9_a_number_too_large_for_a_float_is_no_class(tmp_path):
    """JSON reads 1e400 as infinity, which became the class `inf`."""
    rows = "\n".join([*GOOD, '{"text": "x", "label": 1e400}'])
    with pytest.raises(CorpusError, match=r"1 faulty: t\.jsonl, line 41 \(inf\)"):
        open_labelled(written(tmp_path / "t.jsonl", rows))


def test_9_a_split_whose_labels_are_all_minus_one_has_none(tmp_path):
    """The hub's test splits without labels hold −1 in every row; they became a third class of two."""
    for split, label in (("train", None), ("test", -1)):
        rows = [
            {"text": f"word {k}", "label": k % 2 if label is None else label}
            for k in range(60)
        ]
        written(tmp_path / f"{split}.jsonl", "\n".join(map(json.dumps, rows)))
    found = open_labelled(str(tmp_path))
    assert found.labels == ("0", "1") and found.source["unlabelled"] == ["test"]


STRAY = [
    f'"bad film {k},0\ngood film {k}",1\nfilm {k} again,{k % 2}' for k in range(20)
]


def test_9_stray_quotes_swallow_no_rows(tmp_path):
    """A third of the rows became part of others' text; now the rows that open the marks are named."""
    path = written(tmp_path / "t.csv", "text,label\n" + "\n".join(STRAY))
    with pytest.raises(
        CorpusError,
        match=r"20 faulty: line 2: a quotation mark open until line 3, .*line 5",
    ):
        open_labelled(path)
    with pytest.raises(
        CorpusError, match=r"line 2: a quotation mark open until line 3"
    ):
        open_text(path)
    found = open_text(path, skip_bad=True)
    assert found.source["skipped"] == 20 and len(found.documents) == 40


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ("Hello, world,1", "3 columns, where the header has 2"),
        ("no label", "1 columns, where the header has 2"),
        ('"a "quoted" word",1', "a quotation mark inside a value"),
        ('"never closed,1', "a quotation mark"),
        ("nul \0,1", "NUL bytes"),
    ],
)
def test_9_rows_of_another_form_are_named(tmp_path, row, fault):
    """An unquoted comma made ` world` the label and 1 nothing."""
    lines = ["text,label", *(f"film {k},{k % 2}" for k in range(40)), row]
    with pytest.raises(
        CorpusError, match=rf"rows of a CSV table in .*1 faulty: line 42: {fault}"
    ):
        open_labelled(written(tmp_path / "t.csv", "\n".join(lines)))


def test_9_one_line_of_a_long_value_that_looks_like_a_row_is_part_of_the_value(
    tmp_path,
):
    """A mark is taken for one left open if at least half of the lines behind it look like rows."""
    value = "one\ntwo and more\nthree,1\nfour\nfive"
    rows_after = "\n".join(f"film {k},{k % 2}" for k in range(6))
    path = written(tmp_path / "t.csv", f'text,label\n"{value}",0\n{rows_after}\n')
    rows = list(read_table_rows(Path(path)))
    assert rows[0].columns == {"text": value, "label": "0"}
    assert len(rows) == 7


def test_9_rows_of_parquet_are_counted_from_one(tmp_path):
    pd.DataFrame({"text": ["a", "b"]}).to_parquet(tmp_path / "t.parquet")
    assert [row.place for row in read_table_rows(tmp_path / "t.parquet")] == [
        "row 1",
        "row 2",
    ]


def test_9_marks_that_belong_to_a_table_are_read(tmp_path):
    """Lines inside quotation marks, doubled marks, commas: nothing sound is refused."""
    text = 'label,text\n1,"Hello, dear\nfriend, bye"\n0,"say ""yes"""\n\n1,plain\n0,it\'s 5" long\n'
    rows = list(read_table_rows(Path(written(tmp_path / "t.csv", text))))
    assert [row.columns["text"] for row in rows] == [
        "Hello, dear\nfriend, bye",
        'say "yes"',
        "plain",
        "it's 5\" long",
    ]
    assert [row.place for row in rows] == ["line 2", "line 4", "line 6", "line 7"]
    tabs = 'path\tsentence\na.wav\t"What?" he said\nb.wav\t"Really ""so""?"\nc.wav\t"\n'
    rows = list(read_table_rows(Path(written(tmp_path / "t.tsv", tabs))))
    assert [row.columns["sentence"] for row in rows] == [
        '"What?" he said',
        'Really "so"?',
        '"',
    ]
    rows = list(
        read_table_rows(Path(written(tmp_path / "s.csv", "text;label\na, b;1\n")))
    )
    assert rows[0].columns == {"text": "a, b", "label": "1"}


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (LONG_INTEGER, "an integer of thousands of digits"),
        (DEEP, "brackets nested too deep"),
        (HALF, r"half a character \(a lone surrogate\)"),
        ('{"text": "nul \0"}', "NUL bytes"),
        ("5", "'5'"),
    ],
    ids=["digits", "brackets", "surrogate", "nul", "number"],
)
def test_9_lines_of_json_that_no_reader_takes(tmp_path, line, fault):
    """Each of the four readers of JSON lines ended in a traceback of its own; three could not skip such a line."""
    path = written(tmp_path / "t.jsonl", "\n".join([*GOOD, line]))
    with pytest.raises(
        CorpusError,
        match=f"one JSON object per line in .*; got line 41: {fault}.*--skip-bad",
    ):
        open_text(path)
    found = open_text(path, skip_bad=True)
    assert found.source["skipped"] == 1 and len(found.documents) == 40
    with pytest.raises(CorpusError, match=f"1 faulty: line 41: {fault}"):
        open_labelled(path)
    for k in range(40):
        soundfile.write(tmp_path / f"{k}.wav", np.zeros(800), 8000)
    with pytest.raises(
        CorpusError, match=rf"1 faulty: row of t\.jsonl \(line 41\) \({fault}"
    ):
        open_speech(path)
    assert open_speech(path, skip_bad=True).source["skipped"] == 1


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (
            "t.jsonl.gz",
            gzip.compress(b'{"text": "a"}\n' * 9999, mtime=0)[:-12],
            "a gzip file in",
        ),
        ("t.csv.gz", b"no gzip", "a gzip file in"),
        ("t.txt", b"a\0b", "NUL bytes"),
        ("t.csv", b"", "got no text"),
        ("t.tsv", b"text\n", "got no text"),
        (
            "t.csv",
            b"text,text\na,b",
            "a header of different names in .*several columns text",
        ),
        ("t.parquet", b"", "a parquet file in"),
        ("t.parquet", b"text\na", "a parquet file in"),
        ("t.parquet.gz", gzip.compress(b"text", mtime=0), "a parquet file in"),
        (
            "t.json",
            b'[{"text": "a"}, {"text"',
            "an array of JSON objects, or one per line, in",
        ),
        ("t.json", b"[]", "got no text"),
        ("t.jsonl", '{"text": "a"}'.encode("utf-16"), "got line 1: NUL bytes"),
        ("t.jsonl", b'{"text": "\xe9"}', "got line 1: bytes that are not UTF-8"),
    ],
)
def test_9_files_that_are_no_tables(
    tmp_path, monkeypatch, capsys, file, content, message
):
    path = written(tmp_path / file, content)
    with pytest.raises(CorpusError, match=message):
        open_text(path)
    code, line = typed(
        monkeypatch, capsys, "classes", "builtin:minilm", "--corpus", path
    )
    assert code in (2, 4) and line.startswith("anisoscope: expected ")


@pytest.mark.parametrize("name", ["t.jsonl", "t.txt", "t.csv", "t.parquet"])
def test_9_a_folder_in_the_place_of_a_file(tmp_path, name):
    """A folder is read as one, whatever its name; an empty one says what belongs there."""
    (tmp_path / name).mkdir()
    with pytest.raises(CorpusError, match="text files or tables"):
        open_text(str(tmp_path / name))
    with pytest.raises(CorpusError, match=r"train\.jsonl or train\.csv"):
        open_labelled(str(tmp_path / name))


@pytest.mark.usefixtures("no_page")
@pytest.mark.parametrize(
    "line", [LONG_INTEGER, DEEP, HALF], ids=["digits", "brackets", "surrogate"]
)
def test_9_such_lines_through_the_program(job, tmp_path, monkeypatch, capsys, line):
    """`measure` ended with 1 and a traceback; it ends with 4 and a line, or leaves the row out and says so."""
    rows = [json.dumps({"text": f"w{k} w1 w2", "label": k % 2}) for k in range(4)]
    path = written(tmp_path / "t.jsonl", "\n".join([*rows, line]))
    small = (
        "measure",
        job.model,
        "-c",
        path,
        "--panel",
        "hidden",
        "-q",
        "-o",
        str(tmp_path / "run"),
    )
    code, told = typed(monkeypatch, capsys, *small)
    assert code == 4 and "line 5" in told and "Cure: " in told
    assert (
        typed(monkeypatch, capsys, "classes", "builtin:minilm", "--corpus", path)[0]
        == 4
    )
    monkeypatch.setattr(sys, "argv", ["anisoscope", *small, "--skip-bad"])
    typed_main()
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["corpus"]["skipped"] == 1 and manifest["corpus"]["n_units"] == 4
    assert any("1 unreadable" in warning for warning in manifest["warnings"])


# 9 (word vectors, revisions of folders) stands in test_checkpoint_folders.py, failures of the hub in test_hub.py

# ---- 11: a body from a hub that is not what the hub announced --------------------------------------------------------


@pytest.fixture(scope="module")
def tiny_bert(tmp_path_factory):
    """A folder of a tiny BERT and its words."""
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder = tmp_path_factory.mktemp("tiny-bert")
    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *(f"w{k}" for k in range(95)),
    ]
    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    }
    torch.manual_seed(0)
    BertModel(BertConfig(vocab_size=100, **sizes)).save_pretrained(folder)
    BertTokenizerFast(vocab={word: k for k, word in enumerate(words)}).save_pretrained(
        folder
    )
    return folder


def loaded(hub, home):
    """Exit code, and weights or error, of one load in a process of its own."""
    code = """if True:
        import sys
        from anisoscope.errors import AnisoscopeError
        from anisoscope.models.load import load
        try:
            print(load("tester/tiny").weights_sha256)
        except AnisoscopeError as error:
            sys.exit(print(error) or error.exit_code)
    """
    done = subprocess.run(
        [*quick(), "-c", code],
        env=hub.environment(home),
        text=True,
        capture_output=True,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout.strip()


@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
def test_11_a_body_that_is_not_what_the_hub_announced_is_refused_and_not_kept(
    tiny_bert, tmp_path, file
):
    """A file with one byte changed on the way loaded as other weights, and served from the cache ever after."""
    from anisoscope.models.load import load

    with Hub() as hub:
        hub.add("tester/tiny", {"c" * 40: tiny_bert})
        hub.tampered.add(file)
        code, said = loaded(hub, tmp_path)
        assert (
            code == 3
            and f"{file} of tester/tiny with the hash that the hub announced" in said
        ), said
        assert (
            said.partition("got ")[2]
            .partition(".")[0]
            .endswith("…; removed from the cache")
        )
        assert not list(tmp_path.rglob(file)), "it stays in the cache"
        hub.tampered.clear()
        assert loaded(hub, tmp_path) == (0, load(str(tiny_bert)).weights_sha256)


def test_11_a_copy_in_the_cache_that_changed_since_is_refused(tiny_bert, tmp_path):
    """Without a network, too: the cache itself says what was announced."""
    with Hub() as hub:
        hub.add("tester/tiny", {"c" * 40: tiny_bert})
        assert loaded(hub, tmp_path)[0] == 0
    (kept,) = tmp_path.rglob("model.safetensors")
    body = bytearray(kept.read_bytes())
    body[-1] ^= 1
    kept.resolve().write_bytes(body)
    code, said = loaded(hub, tmp_path)
    assert (
        code == 3
        and "removed from the cache" in said
        and not list(tmp_path.rglob("model.safetensors"))
    )


# ---- 8, 10, 12: norms, intervals, ranks; single metrics --------------------------------------------------------------


def drifting(scale=1.0, dtype=torch.float32, n=40, d=16):
    x = (
        torch.randn(
            n, 3, d, generator=torch.Generator().manual_seed(0), dtype=torch.float64
        )
        + 0.7
    )
    return (x * scale).to(dtype)


@pytest.mark.parametrize("scale", [1e-30, 1e-24, 1e24], ids=str)
@pytest.mark.parametrize(
    "name", ["mean_cosine", "intra_sequence", "group_cosine", "calibrated"]
)
def test_8_directions_do_not_depend_on_the_scale_of_float32(name, scale):
    """Under norms of 1e-22 squares vanish in float32: A of such vectors was that of their rounding."""
    import anisoscope

    expected, got = (
        anisoscope.metric(name, drifting()),
        anisoscope.metric(name, drifting(scale)),
    )
    assert expected.keys() == got.keys()
    for key, estimate in expected.items():
        assert got[key] == pytest.approx(estimate, abs=1e-5, nan_ok=True), key


@pytest.mark.parametrize("scale", [1e-30, 1e-24, 1e24], ids=str)
def test_8_drift_norms_and_spectrum_scale_with_the_vectors(scale):
    import anisoscope

    lengths = {"drift", "norms.mean", "norms.std"}
    for name in ("drift", "norms", "spectrum"):
        expected, got = (
            anisoscope.metric(name, drifting()),
            anisoscope.metric(name, drifting(scale)),
        )
        for key, estimate in expected.items():
            factor = scale if key in lengths else 1
            assert [e / factor for e in got[key]] == pytest.approx(
                list(estimate), rel=1e-4, nan_ok=True
            ), key


@pytest.mark.parametrize(
    "name",
    ["mean_cosine", "drift", "norms", "spectrum", "calibrated", "intra_sequence"],
)
@pytest.mark.parametrize("units", [3, 4, 9])
@pytest.mark.parametrize("drift", [0.0, 30.0])
def test_10_intervals_lie_where_their_value_can_be(name, units, drift):
    """A cosine had [−1.90, 1.02], a share [.2, 1.05]: each metric says what its values can be."""
    import anisoscope
    from anisoscope import metrics

    x = torch.randn(units, 4, 5, generator=torch.Generator().manual_seed(units)) + drift
    declared = metrics.find_all()[name].bounds
    within = {"participation_ratio": (1, 5), "cosine_square": (0, 5)} | {
        f"effective_rank{kind}": (1, 5) for kind in ("", "_eigenvalues", "_uncentred")
    }
    for key, (value, low, high) in anisoscope.metric(name, x).items():
        value_name = key.removeprefix(name).removeprefix(".").partition(" ")[0]
        bounds = within.get(value_name, declared.get(value_name))
        if isinstance(bounds, tuple):
            assert not low < bounds[0] and not high > bounds[1], (key, low, value, high)


def test_10_two_units_have_no_interval_and_the_reason_is_said():
    import anisoscope
    from anisoscope.sums import jackknife

    assert all(
        math.isnan(e.low)
        for e in anisoscope.metric("mean_cosine", drifting(n=2)).values()
    )
    assert (
        jackknife.explain_no_interval(2) == "no intervals: 2 groups of units, 3 needed"
    )


def test_10_auc_of_few_utterances_is_a_probability():
    """Ten utterances of two mixed classes: AUC [−.85, 1.85]."""
    from anisoscope.metrics.class_direction import separability

    x = torch.randn(10, 4, generator=torch.Generator().manual_seed(2)).double().numpy()
    found = separability(x, torch.arange(10).numpy() % 2, 2)
    taken = found.pop("dimensions")
    assert taken.value == 1 and set(found) == {"auc", "nearest", "auc.0", "auc.1"}
    for estimate in found.values():
        assert (
            0 <= estimate.low <= estimate.value <= estimate.high <= 1
            and estimate.low < estimate.high
        )


def test_12_the_rank_of_few_vectors_does_not_depend_on_the_batch_size():
    """200 vectors in 384 dimensions, float32: the effective rank moved by 2e-4 to 3e-3 with the batch size."""
    import anisoscope
    from anisoscope.metrics import spectrum

    x = (
        torch.randn(200, 384, generator=torch.Generator().manual_seed(1))
        * torch.linspace(3, 0.01, 384)
        + 0.5
    )
    expected = spectrum.reference([x.double().numpy()])
    got = anisoscope.metric("spectrum", x)
    for key in ("effective_rank", "effective_rank_uncentred", "participation_ratio"):
        assert got[f"spectrum.{key}"].value == pytest.approx(expected[key], rel=1e-6), (
            key
        )


def test_nan_given_to_metric_is_an_error_or_counted():
    """All NaN gave {} without a word."""
    import anisoscope
    from anisoscope.errors import UsageError

    x = drifting()
    with pytest.raises(
        UsageError, match=r"120, of them 120 with NaN or infinity, 0 zero"
    ):
        anisoscope.metric("mean_cosine", torch.full_like(x, math.nan))
    with pytest.raises(UsageError, match="0 with NaN or infinity, 120 zero"):
        anisoscope.metric("mean_cosine", torch.zeros_like(x))
    x[3, 1, 2], x[5, 0] = math.nan, 0.0
    with pytest.warns(
        UserWarning,
        match="of 120 vectors, these were left out: 1 with NaN or infinity, 1 zero",
    ):
        got = anisoscope.metric("drift", x)
    assert 0 < got["drift"].value < 10


def test_metric_takes_arrays_and_tensors_of_any_float():
    import anisoscope

    x = drifting(dtype=torch.float64)
    expected = anisoscope.metric("mean_cosine", x)
    for same in (x.numpy(), x.numpy().astype(">f8"), x.clone().requires_grad_()):
        assert anisoscope.metric("mean_cosine", same) == expected
    for low in (torch.bfloat16, torch.float16):
        got = anisoscope.metric("mean_cosine", x.to(low))["mean_cosine"].value
        assert got == pytest.approx(expected["mean_cosine"].value, abs=0.01)


@pytest.mark.parametrize(
    "given, named, message",
    [
        (
            {"x": torch.ones(4, 3, dtype=torch.long)},
            {},
            "floating point.*Tensor of torch.int64",
        ),
        ({"x": [[1.0, 2.0]]}, {}, "got list"),
        ({"x": torch.ones(0, 3)}, {}, r"at least one vector; got shape \(0, 3\)"),
        ({"x": torch.ones(3)}, {}, r"\[token, dim\]; got shape \(3,\)"),
        (
            {"x": torch.ones(4, 3)},
            {"unit": [0, 1]},
            r"4 whole numbers as units.*shape \(2,\)",
        ),
        ({"x": torch.ones(4, 3)}, {"unit": torch.ones(4)}, "whole numbers as units"),
        (
            {"x": torch.ones(4, 2, 3)},
            {"mask": torch.ones(4, 3)},
            r"a mask of shape \(4, 2\); got \(4, 3\)",
        ),
        (
            {"x": torch.ones(4, 2, 3)},
            {"mask": torch.zeros(4, 2)},
            "a mask with a real token",
        ),
    ],
    ids=[
        "ints",
        "list",
        "empty",
        "one axis",
        "units too few",
        "units not whole",
        "mask",
        "nothing real",
    ],
)
def test_what_metric_cannot_take_is_said(given, named, message):
    import anisoscope
    from anisoscope.errors import UsageError

    with pytest.raises(UsageError, match=message):
        anisoscope.metric("mean_cosine", given["x"], **named)


# ---- 9: settings of a wrong type or out of range --------------------------------------------------------------------


@pytest.mark.parametrize(
    "field, value, says",
    [
        ("sample", -1, "at least 0"),
        ("sample", "three", "got .three"),
        ("bins", (1, 0), "each above the one before"),
        ("bins", (0.0, float("nan")), "got nan"),
        ("bins", (0,), "two finite edges"),
        ("medians", "x", ""),
        ("seed", 1 << 63, "at most 9,223,372,036,854,775,807"),
        ("seed", 1.5, "got 1.5"),
        ("groups", 1 << 64, "at most 65,536"),
        ("groups", True, "got True"),
        ("spectrum_groups", 0, "at least 1"),
        ("panel", "hiden", "did you mean hidden"),
        ("flatten", "images", "did you mean image"),
    ],
)
def test_9_settings_that_cannot_be_are_refused(field, value, says):
    """They were ignored, or failed deep inside."""
    with pytest.raises(UsageError, match=f"{field}.*{says}"):
        Settings(**{field: value})


def test_9_a_list_is_as_good_as_a_tuple():
    assert Settings(panel=["hidden"], bins=[0, 1]) == Settings(
        panel=("hidden",), bins=(0, 1)
    )


@pytest.mark.parametrize(
    "field, value",
    [("limit", 0), ("limit", "three"), ("shard", (2, 2)), ("dtype", "float23")],
)
def test_9_jobs_that_cannot_be_are_refused(field, value):
    with pytest.raises(UsageError, match=field):
        Job(**{field: value})


# ---- faults that end clearly: run folders ----------------------------------------------------------------------------


def cut(path: Path) -> None:
    """A file of which only the first half was written."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("name", ["records.parquet", "manifest.json"])
def test_a_truncated_file_of_a_run_is_told(program, job, tmp_path, name):
    """A traceback of the reader; `--resume`, `report` and `compare` (which reads no manifest) name file and cure."""
    folder = tmp_path / "run"
    words = measure_words(job, "-o", folder)
    check_done(program, *words)
    cut(folder / name)
    commands = [(*words, "--resume"), ("report", folder), ("compare", folder, folder)]
    for command in commands if name == "records.parquet" else commands[:2]:
        check_refused(program, 6, *command, says=[name, "--overwrite"])
    check_done(program, *words, "--overwrite")
    assert len(RunFolder(folder).records)


def test_a_truncated_table_of_a_series_is_told(tmp_path):
    """A traceback of the reader in `report` and `compare`."""
    manifest = {"model": "m", "seconds": 1}
    (tmp_path / "step-0").mkdir()
    RunFolder(tmp_path / "step-0").finish(as_records(pd.DataFrame()), manifest)
    write_json(
        tmp_path / "series.json", {"checkpoints": [{"step": 0, "folder": "step-0"}]}
    )
    write_table(tmp_path / "records.parquet", as_records(pd.DataFrame()))
    assert not len(read_run(tmp_path)[0])
    cut(tmp_path / "records.parquet")
    with pytest.raises(OutputError, match=r"records\.parquet.*damaged"):
        read_run(tmp_path)


def test_a_truncated_state_is_told(job, whole, tmp_path):
    """A traceback of safetensors; what the cure says gives the right numbers."""
    begun = interrupted(job, tmp_path / "run")
    shutil.copy(begun.state_path(0), tmp_path / "kept")
    cut(begun.state_path(0))
    with pytest.raises(
        OutputError, match=r"state\.0\.safetensors.*damaged.*remove the file"
    ):
        run(job, begun.folder, resume=True)
    begun.state_path(0).unlink()
    check_same(run(job, begun.folder, resume=True), whole)


def test_killed_while_the_identity_is_written(program, job, tmp_path):
    """The folder held a temporary file only, and could neither be resumed nor overwritten nor begun in."""
    folder = tmp_path / "run"
    folder.mkdir()
    dead = subprocess.run(
        [sys.executable, "-ISc", "import os; print(os.getpid())"],
        capture_output=True,
        check=True,
    )
    left = folder / f".identity.json.{int(dead.stdout)}"
    left.write_text('{"model": ')
    check_done(program, *measure_words(job, "-o", folder))
    assert not left.exists() and RunFolder(folder).complete


def test_a_damaged_identity_is_overwritten(job, tmp_path):
    """--overwrite, the cure that is told, failed on the same file."""
    interrupted(job, tmp_path / "run")
    cut(tmp_path / "run" / "identity.json")
    with pytest.raises(OutputError, match="--overwrite"):
        run(job, tmp_path / "run", resume=True)
    assert run(job, tmp_path / "run", overwrite=True).complete


@pytest.mark.parametrize(
    "place", ["file", "/dev/null", "/dev/null/run", "x" * 256, "y/" + "x" * 300]
)
def test_an_output_that_cannot_be_is_told(job, tmp_path, place):
    """The error was masked by another, of the temporary file that could not be removed."""
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"a folder for --output.*another --output"):
        run(job, tmp_path / place)


def test_an_output_below_a_file_is_told(program, job, tmp_path):
    (tmp_path / "file").write_text("")
    check_refused(
        program,
        6,
        *measure_words(job, "-o", tmp_path / "file" / "run"),
        says=["a folder for --output", "the file"],
    )


def test_what_cannot_be_written_is_told_as_it_is(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="Not a directory"):
        write_atomic(tmp_path / "file" / "run" / "x", lambda path: path.write_text("x"))


def test_what_a_killed_process_left_goes_when_the_file_is_written(tmp_path):
    """Pages of a reproduction that was killed twice stayed under their temporary names; another file's writer lives."""
    left, alive, other = (
        tmp_path / name
        for name in (".x.999999999", f".x.{os.getppid()}", ".y.999999999")
    )
    for path in (left, alive, other):
        path.touch()
    write_atomic(tmp_path / "x", lambda path: path.write_text("x"))
    assert {path.name for path in tmp_path.iterdir()} == {"x", alive.name, other.name}


@pytest.mark.parametrize("goes_on", [True, False])
def test_the_folder_is_removed_while_it_runs(job, whole, tmp_path, goes_on):
    """The run ended without its identity, or was begun with a state and no identity: it could not be resumed."""
    folder, calls = tmp_path / "run", []

    def progress(done, _total):
        calls.append(done)
        if len(calls) == 2:
            shutil.rmtree(folder)
            if not goes_on:
                os.kill(os.getpid(), signal.SIGTERM)

    if not goes_on:
        with pytest.raises(Interrupted):
            run(job, folder, progress=progress)
        run(job, folder, resume=True)
    else:
        run(job, folder, progress=progress)
    check_same(run(job, folder, resume=True), whole)


def test_an_overwritten_run_leaves_no_old_sums(job, tmp_path):
    """A merge would have taken the sums of the run before."""
    job = replace(job, shard=(0, 2))
    run(job, tmp_path / "run")
    changed = replace(job, limit=4, shard=(0, 1))
    assert not run(changed, tmp_path / "run", overwrite=True).sums_path.exists()


def test_a_process_that_dies_is_told_in_one_line(program, job, whole, tmp_path):
    """The others ended in a traceback of the backend; what they measured is kept."""
    dies = STOPPED.format(number="signal.SIGKILL if int(os.environ['RANK']) else 0")
    told, killed = program(whole_words(job, tmp_path / "run"), setup=dies, ranks=2)
    assert killed.code == -signal.SIGKILL
    check_told(told, 5, ["--resume"])
    check_same(run(job, tmp_path / "run", resume=True), whole)


# ---- faults that end clearly: batches --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "inputs",
    [
        {"input_ids": torch.zeros(0, 5).long()},
        {"input_ids": torch.full((2, 5), 3), "attention_mask": torch.ones(2, 4).long()},
        {"input_ids": torch.full((2, 5), 3), "unit": torch.zeros(3).long()},
    ],
)
def test_given_inputs_that_do_not_fit_together_are_refused(inputs):
    with pytest.raises(AnisoscopeError, match="Cure"):
        tiny.measure(tiny.model("bert"), [inputs], panel=("hidden",), sample=0)


# ---- where numbers came from -----------------------------------------------------------------------------------------


def test_a_record_says_dirty_for_what_makes_numbers_only(tmp_path):
    """Any change below the package, of a page or a help text, made the records say `dirty`."""
    shutil.copytree(
        PACKAGE, tmp_path / "anisoscope", ignore=shutil.ignore_patterns("__pycache__")
    )
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@x"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        subprocess.run([*git, *words], check=True)

    def told():
        code = "import json; from anisoscope.provenance import describe_code_version as v; print(json.dumps(v()))"
        there = {"cwd": tmp_path, "env": os.environ | {"PYTHONPATH": str(tmp_path)}}
        return json.loads(
            subprocess.run(
                [*quick(), "-c", code], capture_output=True, check=True, **there
            ).stdout
        )

    clean = told()
    assert "dirty" not in clean and len(clean["commit"]) == 40
    (tmp_path / "anisoscope" / "report" / "style.css").write_text("")
    (tmp_path / "anisoscope" / "cli" / "new.py").write_text("")
    assert told() == clean
    (tmp_path / "anisoscope" / "metrics" / "drift.py").write_text("")
    assert told()["dirty"] is True and told()["sources"] != clean["sources"]
    subprocess.run(
        [*git, "checkout", "-q", "--", "anisoscope/metrics/drift.py"], check=True
    )
    assert "dirty" not in told()
    with (tmp_path / "anisoscope" / "axes.py").open(
        "a"
    ) as file:  # a module, where others are packages
        file.write("\n")
    assert told()["dirty"] is True


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (
            {"rev-parse": " abc\n", "ls-files": "store.py", "status": ""},
            {"commit": "abc"},
        ),
        (
            {"rev-parse": "abc", "ls-files": "", "status": " M src/x.py"},
            {"commit": None},
        ),
        (
            {"rev-parse": "abc", "ls-files": "store.py", "status": " M src/x.py"},
            {"commit": "abc", "dirty": True},
        ),
        ({}, {"commit": None}),
    ],
)
def test_what_git_answers_is_what_a_record_says(answers, expected, monkeypatch):
    """Not a commit of which the package is no part; none where there is no git."""
    asked = []

    def answer(words, **_how):
        asked.append(words)
        if words[3] not in answers:
            raise OSError("no git")
        return answers[words[3]]

    monkeypatch.setattr(provenance.subprocess, "check_output", answer)
    found = provenance.describe_code_version.__wrapped__()
    assert {
        name: found[name] for name in found if name not in ("version", "sources")
    } == expected
    assert all(words[:3] == ("git", "-C", str(provenance.PACKAGE)) for words in asked)
    looked = [words for words in asked if words[3] == "status"]
    assert len(looked) == (expected["commit"] is not None)
    assert not looked or {"metrics", "sums", "runs"} <= set(looked[0])


def test_10_attention_with_nan_is_left_out_counted_and_told(tmp_path):
    """A model some of whose rows of attention are NaN ended in a traceback once it was measured."""
    model, (inputs, real) = (
        copy.deepcopy(tiny.model("gemma2")).double(),
        tiny.padded("gemma2", "right"),
    )
    done = anisoscope.measure(
        model, inputs, metrics=("attention",), output=tmp_path / "run"
    )
    with torch.no_grad():
        sound = (
            model(**inputs, output_hidden_states=True)
            .hidden_states[2]
            .isfinite()
            .all(-1)
        )
    rows = done.records.query("metric == 'attention.entropy' and layer == 3")
    kept = int((sound & real["decoder"]).sum())
    assert set(rows["n_vectors"]) == {kept} and 0 < kept < int(real["decoder"].sum())
    assert any(
        "NaN or Inf left out at decoder.3.attention" in line
        for line in done.manifest["warnings"]
    )


@pytest.mark.parametrize("units", [1, 2])
def test_10_where_an_interval_is_missing_its_reason_stands_in_the_run(
    job, tmp_path, units
):
    """Two units gave intervals as wide as the whole range; now there is none, and the run says why."""
    corpus = tmp_path / "texts.jsonl"
    corpus.write_text(
        "".join(f'{{"text": "w{i} w5 w6 w7 w8 w9"}}\n' for i in range(units))
    )
    done = run(
        Job(job.model, corpus=str(corpus), settings=Settings(metrics=("mean_cosine",))),
        tmp_path / "run",
    )
    assert done.records["low"].isna().all() and done.records["value"].notna().any()
    assert any(
        f"no intervals: {units} group" in warning
        for warning in done.manifest["warnings"]
    )
