"""Layers of two runs of the same inputs held against each other: equal to plain formulas, and refused if they are not
of the same tokens.
"""

import json
from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertModel
from typed import invoke

import anisoscope
from anisoscope.cli.comparing import tabulate_layers
from anisoscope.errors import OutputError, UsageError
from anisoscope.models.load import load
from anisoscope.runs.across import COLUMNS, compare_layers
from anisoscope.runs.differences import SAMPLE, open_kept_run
from anisoscope.sums.jackknife import jackknife_interval

TEXTS = [
    f"Document {i} says that {i * 7} of the {i + 40} words are words, and {i} more."
    for i in range(12)
]


def debiased_cka(x, y):
    """Song et al. 2012, eq. 4, term by term."""

    def common(k, m):
        n = len(k)
        k, m = k - np.diag(np.diag(k)), m - np.diag(np.diag(m))
        one = np.ones(n)
        cross = one @ k @ one * (one @ m @ one) / ((n - 1) * (n - 2))
        return (np.trace(k @ m) + cross - 2 / (n - 2) * one @ k @ m @ one) / (
            n * (n - 3)
        )

    k, m = x @ x.T, y @ y.T
    return common(k, m) / np.sqrt(common(k, k) * common(m, m))


def procrustes(x, y):
    """What the best rotation leaves, by the eigenvalues of the square of the shared matrix."""
    x, y = (
        (side - side.mean(0)) / np.linalg.norm(side - side.mean(0)) for side in (x, y)
    )
    return (
        2 - 2 * np.sqrt(np.clip(np.linalg.eigvalsh(x.T @ y @ y.T @ x), 0, None)).sum()
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two small encoders of different widths and depths, with one tokenizer, measured on the same texts."""
    folder = tmp_path_factory.mktemp("across")
    tokenizer = load("builtin:minilm").processor
    for seed, (name, width, layers) in enumerate((("a", 16, 2), ("b", 24, 3))):
        torch.manual_seed(seed)
        sizes = {
            "hidden_size": width,
            "num_hidden_layers": layers,
            "num_attention_heads": 2,
            "intermediate_size": 32,
        }
        BertModel(
            BertConfig(vocab_size=len(tokenizer), max_position_embeddings=64, **sizes),
            add_pooling_layer=False,
        ).save_pretrained(folder / f"model-{name}")
        tokenizer.save_pretrained(folder / f"model-{name}")
        how = {
            "max_length": 32,
            "metrics": ("neighbours", "drift"),
            "sample": 64,
            "groups": 6,
            "quiet": True,
        }
        anisoscope.measure(folder / f"model-{name}", TEXTS, output=folder / name, **how)
    return folder


def test_values_are_those_of_plain_formulas_on_the_vectors_that_the_runs_kept(runs):
    kept = [open_kept_run(runs / name) for name in ("a", "b")]
    ours, theirs = (load_file(runs / name / SAMPLE) for name in ("a", "b"))
    assert (
        torch.equal(ours["encoder hash"], theirs["encoder hash"])
        and len(ours["encoder hash"]) == 64
    )
    for metric, expected in (("cka", debiased_cka), ("procrustes", procrustes)):
        found = compare_layers(kept, metric)
        assert tuple(found.columns) == COLUMNS and len(found) == 3 * 4
        assert (found["low"] <= found["value"]).all() and (
            found["value"] <= found["high"]
        ).all()
        assert (
            found["low"].notna().all()
            and set(found["n_vectors"]) == {64}
            and set(found["n_units"]) == {12}
        )
        for row in found.itertuples():
            x = ours[f"encoder at encoder.{row.layer}.hidden"].double().numpy()
            y = theirs[f"encoder at encoder.{row.layer_other}.hidden"].double().numpy()
            assert row.value == pytest.approx(expected(x, y), rel=1e-7, abs=1e-9)


def test_the_interval_leaves_out_groups_of_units(runs):
    found = compare_layers([open_kept_run(runs / name) for name in ("a", "b")], "cka")
    ours, theirs = (load_file(runs / name / SAMPLE) for name in ("a", "b"))
    x, y = (
        ours["encoder at encoder.1.hidden"].double().numpy(),
        theirs["encoder at encoder.2.hidden"].double().numpy(),
    )
    group = ours["encoder unit"].numpy() % 6
    left_out = np.array([debiased_cka(x[group != g], y[group != g]) for g in range(6)])
    expected = jackknife_interval([debiased_cka(x, y), *left_out], bounds=(-1, 1))
    row = next(
        row for row in found.itertuples() if (row.layer, row.layer_other) == (1, 2)
    )
    assert (row.low, row.high) == pytest.approx((expected.low, expected.high), rel=1e-7)


def test_a_sample_of_other_size_or_order_is_matched_token_by_token(runs, tmp_path):
    """The tokens that both hold are compared, wherever they stand: the first run once with half of its tokens."""
    whole = open_kept_run(runs / "a")
    tensors = load_file(runs / "b" / SAMPLE)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(0))[:40]
    save_file(
        {name: tensor[order].contiguous() for name, tensor in tensors.items()},
        tmp_path / SAMPLE,
    )
    part = open_kept_run(runs / "b")
    found = compare_layers([whole, replace(part, sample=tmp_path / SAMPLE)], "cka")
    assert set(found["n_vectors"]) == {40}
    ours, theirs = load_file(runs / "a" / SAMPLE), tensors
    rows = torch.sort(order).values  # by hash, as both are sorted
    x, y = (
        side["encoder at encoder.2.hidden"][rows].double().numpy()
        for side in (ours, theirs)
    )
    row = next(
        row for row in found.itertuples() if (row.layer, row.layer_other) == (2, 2)
    )
    assert row.value == pytest.approx(debiased_cka(x, y), rel=1e-7)


def test_runs_in_memory_and_rows_of_vectors_are_compared_too(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(90, 5)) + 1
    y = np.concatenate(
        [x @ np.linalg.qr(rng.normal(size=(5, 5)))[0] * 3, rng.normal(size=(90, 2))], 1
    )
    in_memory = [
        anisoscope.measure(v, metrics=("uniformity",), quiet=True) for v in (x, y)
    ]
    found = anisoscope.compare(*in_memory, metric="uniformity")
    table = found.across("cka")
    assert table["value"].tolist() == pytest.approx([debiased_cka(x, y)], rel=1e-6)
    saved = in_memory[0].save(tmp_path / "x")
    assert (saved.folder / SAMPLE).is_file()
    again = anisoscope.compare(saved, in_memory[1], metric="uniformity")
    assert again.across("procrustes")["value"].tolist() == pytest.approx(
        [procrustes(x, y)], rel=1e-6
    )


def test_what_cannot_be_compared_is_refused_by_name(runs, tmp_path):
    a, b = open_kept_run(runs / "a"), open_kept_run(runs / "b")
    for name in ("drift", "uniformity"):
        with pytest.raises(
            UsageError,
            match=f"a metric of two layers; got {name}, of .*cka or procrustes",
        ):
            compare_layers([a, b], name)
    how = {
        "max_length": 32,
        "metrics": ("neighbours", "drift"),
        "sample": 64,
        "groups": 6,
        "quiet": True,
    }
    others = {
        "other inputs": TEXTS[:-1],
        "seeds 0 and 1": TEXTS,
        "which kept none": TEXTS,
    }
    more = {"seeds 0 and 1": {"seed": 1}, "which kept none": {"sample": 0}}
    for reason, texts in others.items():
        folder = tmp_path / reason.replace(" ", "-")
        anisoscope.measure(
            runs / "model-b", texts, output=folder, **how | more.get(reason, {})
        )
        with pytest.raises(UsageError, match=reason):
            compare_layers([a, open_kept_run(folder)], "cka")
    broken = tmp_path / "broken"
    anisoscope.Run(runs / "b").save(broken)
    (broken / SAMPLE).write_bytes(b"nothing")
    with pytest.raises(OutputError, match="the sample of vectors of broken"):
        compare_layers([a, open_kept_run(broken)], "cka")


def test_no_single_run_gives_a_metric_of_two():
    with pytest.raises(
        UsageError,
        match=r"procrustes, of pairs of runs.*compare RUN OTHER-RUN --across procrustes",
    ):
        anisoscope.measure(np.ones((9, 3)), metrics=("procrustes",))


def test_the_program_shows_layers_by_layers(runs, monkeypatch):
    monkeypatch.chdir(runs)
    shown = invoke("compare a b --across cka -q")
    assert (
        shown.exit_code == 0
        and "b 0" in shown.stdout
        and "64 tokens that both runs sampled" in shown.stderr
    )
    answer = json.loads(
        invoke("compare a b --across linear-cka --format json -q").stdout
    )
    assert (
        len(answer["records"]) == 12
        and {"layer", "layer_other", "low", "high"} <= answer["records"][0].keys()
    )
    refused = invoke(["compare", "a", "b", "--across", "cka", "--fail-if", "A > 1"])
    assert isinstance(refused.exception, UsageError) and "--across alone" in str(
        refused.exception
    )


def test_runs_of_equal_depth_show_the_same_layer_with_its_interval(runs):
    found = compare_layers(
        [open_kept_run(runs / "a"), open_kept_run(runs / "a")], "cka"
    )
    table = tabulate_layers(found)
    assert table.head == ("cka: a", "same layer", "a (2) 0", "1", "2")
    assert [row[1] for row in table.rows] == ["1.000"] * 3  # every replicate is 1


def test_a_large_sample_is_not_kept_in_memory(runs, monkeypatch):
    how = {
        "max_length": 32,
        "metrics": ("neighbours", "drift"),
        "sample": 64,
        "quiet": True,
    }
    size = (runs / "a" / SAMPLE).stat().st_size
    for most, kept in ((size * 2, True), (100, False)):
        monkeypatch.setattr("anisoscope.api.run.MOST_SAMPLED", most)
        assert (
            anisoscope.measure(runs / "model-a", TEXTS, **how).sample is not None
        ) == kept


def test_intervals_of_runs_with_unequal_groups_are_over_the_fewer(runs, tmp_path):
    how = {
        "max_length": 32,
        "metrics": ("neighbours", "drift"),
        "sample": 64,
        "quiet": True,
    }
    for groups in (4, 6):
        anisoscope.measure(
            runs / "model-b",
            TEXTS,
            output=tmp_path / f"b{groups}",
            groups=groups,
            **how,
        )
    anisoscope.measure(runs / "model-a", TEXTS, output=tmp_path / "a4", groups=4, **how)
    a4, b4, b6 = (open_kept_run(tmp_path / name) for name in ("a4", "b4", "b6"))
    ends = ["value", "low", "high"]
    expected = compare_layers([a4, b4], "cka")[ends]
    for pair in ([open_kept_run(runs / "a"), b4], [a4, b6]):
        pd.testing.assert_frame_equal(compare_layers(pair, "cka")[ends], expected)
    more = compare_layers([open_kept_run(runs / "a"), b6], "cka")[ends]
    assert not np.allclose(more["low"], expected["low"]) and np.allclose(
        more["value"], expected["value"]
    )


@pytest.mark.parametrize(("width", "shown"), [(None, 14), (60, 14), (40, 4)])
def test_of_many_layers_the_last_is_always_shown(width, shown):
    """Of 33 layers every third or a few, counted from the end."""
    layers = [*range(32), None]
    rows = []
    for ours, theirs in product(layers, layers):
        place = {
            "layer": ours,
            "site": "final" if ours is None else "hidden",
            "stack": "encoder",
        }
        other = {
            "layer_other": theirs,
            "site_other": "final" if theirs is None else "hidden",
        }
        rows.append(
            place
            | other
            | {"stack_other": "encoder", "run": "b", "against": "a", "metric": "cka"}
        )
    found = (
        pd.DataFrame(rows)
        .assign(value=0.5, low=0.4, high=0.6)
        .astype({"layer": "Int64", "layer_other": "Int64"})
    )
    table = tabulate_layers(found, width)
    names = [name.removeprefix("b ") for name in table.head[2:]]
    assert names[-1] == "final" and len(names) <= shown and len(table.rows) == 33
    numbers = [int(name) for name in names[:-1]]
    assert {*np.diff([*numbers, 32]).tolist()} == {32 - numbers[-1]}
