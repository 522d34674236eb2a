"""The untrained biased block: reference values, the experiment, scores by brute force, and fixed points."""

import os
import re
from collections.abc import Callable
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from anisoscope.capture import capture
from anisoscope.errors import UsageError
from anisoscope.store import COLUMNS, select
from anisoscope_papers import processes
from anisoscope_papers.godey2024 import biased_block, row_scores, untrained_models
from anisoscope_papers.godey2024.biased_block import (
    BlockSettings,
    Pass,
    measure_piece,
    run_experiment,
)
from anisoscope_papers.godey2024.untrained_models import (
    FAMILIES,
    READINGS,
    Size,
    build_untrained,
    label,
)
from anisoscope_papers.processes import run_in_parallel
from anisoscope_papers.study import Context

FULL, RAW = "bert:full-embedding", "bert:raw-table"
SMALL = Size(sequences=3, tokens=20, width=32, heads=4)


def context(folder: Path, **given: Any) -> Context:
    return Context(folder, folder / "cache", **given)


def hidden(ran: Pass) -> dict[int, dict[str, np.ndarray]]:
    """{layer: {metric: [norm]}}"""
    sites = [site for site in ran.sites.values() if site.quantity == "hidden"]
    return {
        site.layer or 0: {
            name: value[:, 0] for name, value in ran.vectors(site).items()
        }
        for site in sites
    }


# --- reference values at the full width ---


@pytest.fixture(scope="module")
def raw() -> dict[int, dict[str, np.ndarray]]:
    return hidden(
        Pass(
            build_untrained(RAW, Size(sequences=4), 0),
            (0.0, 1.0, 27.7),
            1024,
            norms_only=True,
        ).run()
    )


def test_raw_table_agrees_with_the_reference_ranges(
    raw: dict[int, dict[str, np.ndarray]],
) -> None:
    before, after = raw[0], raw[1]
    assert before["mean_cosine"][0] == pytest.approx(0, abs=5e-4)
    assert 0.010 <= after["mean_cosine"][0] <= 0.017
    assert after["norms.mean"] == pytest.approx(768**0.5, abs=5e-3)
    assert before["mean_cosine"][1] == pytest.approx(0.765, abs=5e-4)
    assert 0.766 <= after["mean_cosine"][1] <= 0.795
    assert 24.2 <= after["drift"][1] <= 24.8
    assert after["drift"][0] == pytest.approx(3, abs=0.5)


def test_raw_table_keeps_the_mean_at_its_fixed_point(
    raw: dict[int, dict[str, np.ndarray]],
) -> None:
    assert raw[1]["drift"][2] == pytest.approx(raw[0]["drift"][2], abs=0.02)
    assert 1e-6 < raw[1]["mean_cosine"][2] - raw[0]["mean_cosine"][2] < 1e-3


def test_full_embedding_agrees_with_the_reference_ranges() -> None:
    ran = hidden(
        Pass(
            build_untrained(FULL, Size(sequences=4), 0),
            (0.0, 5.5),
            1024,
            norms_only=True,
        ).run()
    )
    assert 0.32 < ran[0]["mean_cosine"][0] < 0.36
    assert 0.005 < ran[1]["mean_cosine"][0] - ran[0]["mean_cosine"][0] < 0.03
    assert ran[0]["norms.mean"][0] == pytest.approx(768**0.5, rel=1e-5)
    assert ran[0]["drift"][1] == pytest.approx(17.2, abs=0.6)


@pytest.mark.parametrize(
    ("reading", "query"), zip(READINGS, (0.0, 0.768, 0.0013, 0.339), strict=True)
)
def test_queries_without_bias_tell_the_readings_apart(
    reading: str, query: float
) -> None:
    ran = Pass(
        build_untrained(reading, Size(sequences=2, tokens=256), 1), (0.0, 1.0), 1024
    ).run()
    rows = pd.DataFrame(ran.rows())
    found = rows[
        (rows["site"] == "query.raw")
        & (rows["metric"] == "mean_cosine")
        & rows["head"].isna()
    ]
    assert found["value"].iloc[0] == pytest.approx(query, abs=0.03)


def test_float32_blocks_resolve_differences_of_a_millionth() -> None:
    grid, size = (0.0, 31.62, 316.2), Size(sequences=2, tokens=128)
    one = build_untrained(RAW, size, 2)
    precise = replace(
        one,
        model=build_untrained(RAW, size, 2).model.double(),
        fed=one.fed.double(),
        direction=one.direction.double(),
    )
    differences = [
        layers[1]["mean_cosine"] - layers[0]["mean_cosine"]
        for layers in (
            hidden(Pass(subject, grid, 1024, norms_only=True).run())
            for subject in (one, precise)
        )
    ]
    assert differences[1][2] < 1e-6
    np.testing.assert_allclose(*differences, rtol=1e-4, atol=1e-9)


# --- the experiment ---


@pytest.mark.parametrize("system", (*READINGS, *FAMILIES))
def test_first_block_reads_input_plus_bias(system: str) -> None:
    subject = build_untrained(system, SMALL, 0)
    with capture(subject.model, {"hidden"}) as tap, torch.no_grad():
        biased = subject.fed + 3 * subject.direction
        subject.run(slice(None), biased)
        (first,) = (tap[name] for name in tap.sites if name.endswith(".0.hidden"))
    assert torch.equal(first, biased)
    assert subject.direction.norm().item() == pytest.approx(1, abs=1e-6)
    token, mean = Pass(subject, (0.0, 3.0), 64).run().norm_pairs()
    assert token[1, 0] == pytest.approx(biased.norm(dim=-1).mean().item(), rel=1e-5)
    assert mean[1, 0] == pytest.approx(biased.mean((0, 1)).norm().item(), rel=1e-5)


def test_feeding_nothing_else_leaves_the_model_as_it_is() -> None:
    subject = build_untrained(FULL, SMALL, 0)
    with torch.no_grad():
        plain = subject.model(**subject.inputs).last_hidden_state
        fed = subject.run(slice(None), subject.fed).last_hidden_state
    assert torch.equal(plain, fed)
    assert not subject.model.encoder.layer[0]._forward_pre_hooks


def test_readings_differ_where_they_should() -> None:
    made = {reading: build_untrained(reading, SMALL, 0) for reading in READINGS}
    linear = {
        reading: subject.model.encoder.layer[0].attention.self.query
        for reading, subject in made.items()
    }
    assert all((linear[r].bias == 0).all() for r in (RAW, FULL))
    assert all((linear[r].bias != 0).all() for r in READINGS[1:3])
    assert linear[RAW].weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert linear[READINGS[1]].weight.abs().max().item() == pytest.approx(
        32**-0.5, rel=0.05
    )
    scale = [subject.fed.square().mean().sqrt().item() for subject in made.values()]
    assert scale == pytest.approx([0.02, 0.02, 1, 1], rel=0.1)
    assert torch.equal(made[RAW].inputs["input_ids"], made[FULL].inputs["input_ids"])
    assert torch.equal(made[RAW].direction, made[FULL].direction)


def test_same_seed_same_records_and_another_seed_others(tmp_path: Path) -> None:
    def once(seed: int, **given: Any) -> pd.DataFrame:
        return measure_piece(
            FULL, SMALL, seed, (0.0, 1.0, 100.0), context(tmp_path, **given)
        )

    first = once(0)
    pd.testing.assert_frame_equal(first, once(0))
    assert list(first.columns) == list(COLUMNS)
    other = once(1)
    shared = ["site", "layer", "head", "metric", "component"]
    moved = first.merge(other, on=shared, suffixes=("", "_other"))
    moved = moved[~moved["metric"].str.startswith(("attention.score_h", "fixed"))]
    assert (moved["value"] != moved["value_other"]).mean() > 0.95


def test_batches_of_any_size_agree(tmp_path: Path) -> None:
    one, many = (
        measure_piece(
            FULL, SMALL, 0, (0.0, 1.0, 31.62), context(tmp_path, batch_tokens=n)
        )
        for n in (20, 180)
    )
    plain = ~one["metric"].str.contains("histogram|fixed")
    np.testing.assert_allclose(
        one.loc[plain, "value"], many.loc[plain, "value"], rtol=2e-4, atol=2e-6
    )


def test_a_finished_piece_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = BlockSettings((FULL,), 2, (SMALL,), (0.0, 1.0), trained=())
    first = run_experiment(settings, context(tmp_path))
    assert sorted(first["seed"].unique()) == [0, 1]
    monkeypatch.setattr(
        biased_block, "measure_piece", lambda *_: pytest.fail("run again")
    )
    pd.testing.assert_frame_equal(first, run_experiment(settings, context(tmp_path)))
    with pytest.raises(pytest.fail.Exception, match="run again"):
        run_experiment(replace(settings, seeds=3), context(tmp_path))


def test_of_a_stack_the_last_block_of_each_model_is_kept() -> None:
    layers = pd.DataFrame(
        {"model": ["a", "a", "b", "b", "b"], "layer": [1, 2, 1, 1, 0]}
    )
    kept = biased_block.keep_last_block(layers)
    assert kept.to_numpy().tolist() == [
        ["a", 2],
        ["b", 1],
        ["b", 1],
    ] and kept.index.tolist() == [0, 1, 2]


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes begin as they do, but from one that has imported what they need, and nothing of this one."""
    server = get_context("forkserver")
    server.set_forkserver_preload(["anisoscope_papers.godey2024.biased_block"])
    monkeypatch.setattr(processes, "get_context", {"spawn": server}.__getitem__)


@pytest.mark.usefixtures("prepared")
def test_pieces_side_by_side_are_all_done_and_an_error_is_not_lost(
    tmp_path: Path,
) -> None:
    pieces = [(str(tmp_path / name),) for name in "abcde"]
    assert list(run_in_parallel(os.mkdir, pieces, 2)) == [1, 2, 3, 4, 5]
    assert all(Path(path).is_dir() for (path,) in pieces)
    for count in (1, 2):
        with pytest.raises(FileExistsError):
            list(run_in_parallel(os.mkdir, pieces[:2], count))


@pytest.mark.usefixtures("prepared")
def test_pieces_in_other_processes_are_the_same(tmp_path: Path) -> None:
    settings = BlockSettings(
        (FULL,), seeds=2, sizes=(SMALL,), norms=(0.0, 1.0), trained=()
    )
    threads = torch.get_num_threads()
    found = []
    for n in (1, 2):
        torch.set_num_threads(n)
        found.append(run_experiment(settings, context(tmp_path / str(n))))
    torch.set_num_threads(threads)
    pd.testing.assert_frame_equal(*found, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("device", "processes"), [("cpu", None), ("cuda", 1)])
def test_pieces_share_a_device_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, processes: int | None
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(
        biased_block, "run_in_parallel", lambda *given: asked.append(given) or []
    )
    settings = BlockSettings(
        (FULL,), seeds=2, sizes=(SMALL,), norms=(0.0, 1.0), trained=()
    )
    with pytest.raises(FileNotFoundError):  # nothing was measured
        run_experiment(settings, replace(context(tmp_path), device=device))
    ((_, pieces, asked_for),) = asked
    assert (len(pieces), asked_for) == (2, processes)


@pytest.mark.parametrize("family", [FULL, *FAMILIES])
def test_what_is_recorded_of_a_block(family: str) -> None:
    """Hidden states, and heads before any rotation; of each the metrics that its sums give."""
    ran = Pass(
        build_untrained(family, replace(SMALL, sequences=2), 0, "cpu", "float32"),
        (0.0, 1.0),
        1024,
    ).run()
    found: dict[str, set[str]] = {}
    for row in ran.rows():
        found.setdefault(row["site"], set()).add(row["metric"])
    assert found["hidden"] == {"mean_cosine", "norms.mean", "drift"}
    assert found["query.raw"] == found["key.raw"] == {"mean_cosine", "norms.mean"}
    assert set(found) == {"hidden", "query.raw", "key.raw", "attention"}


def test_a_stack_is_recorded_depth_by_depth(tmp_path: Path) -> None:
    size = replace(SMALL, blocks=3)
    records = measure_piece("gpt2", size, 0, (0.0, 10.0), context(tmp_path))
    assert records["model"].unique().tolist() == ["gpt2 × 3, width 32, heads 4"]
    a = select(records, metric="mean_cosine", site="hidden", component="10")
    assert a["layer"].tolist() == [0, 1, 2, 3]
    assert select(records, metric="attention.entropy", head=None, component="10")[
        "layer"
    ].tolist() == [1, 2, 3]


def test_initial_scale_multiplies_the_weights_of_the_blocks() -> None:
    for system, of in (
        (FULL, lambda m: m.encoder.layer[0].output.dense),
        (
            READINGS[1],
            lambda m: m.encoder.layer[0].output.dense,
        ),  # drawn by PyTorch, not by the library
        ("t5", lambda m: m.encoder.block[0].layer[0].SelfAttention.o),
    ):
        plain, wide = (
            of(build_untrained(system, replace(SMALL, scale=s), 0).model).weight
            for s in (1.0, 3.0)
        )
        torch.testing.assert_close(3 * plain, wide)


def test_unknown_systems_and_odd_heads_are_explained() -> None:
    with pytest.raises(UsageError, match=re.escape("did you mean bert:raw-table")):
        build_untrained("bert:raw-tabel", SMALL, 0)
    # A head of 64/3 dimensions, and one of an odd number.
    for width, heads in ((64, 3), (36, 12)):
        with pytest.raises(UsageError, match="even multiple of the number of heads"):
            Size(width=width, heads=heads)


def test_a_system_is_called_by_its_reading_and_keeps_its_size() -> None:
    sized = Size(blocks=2, heads=6, scale=0.5)
    for system, name in (
        (RAW, "raw table"),
        ("bert:no-type", "full embedding layer without type"),
        ("gpt2", "gpt2"),
    ):
        assert label(system) == name
        assert label(sized.named(system)) == f"{name} × 2, heads 6, scale 0.5"
        assert label(Size(width=96).named(system)) == f"{name}, width 96"


def test_every_family_has_the_shape_of_its_size_and_its_own_scores() -> None:
    size = Size(sequences=2, tokens=6, blocks=2, width=24, heads=4)
    found = {}
    for system in (FULL, *FAMILIES):
        state = torch.get_rng_state()
        made = build_untrained(system, size, 0)
        # Nobody else's draws change.
        assert torch.equal(torch.get_rng_state(), state)
        config = made.model.config
        assert (config.num_hidden_layers, config.num_attention_heads) == (2, 4)
        assert config.hidden_size == 24 and not made.model.training
        found[system] = (
            made.stage,
            made.attention_scale,
            made.causal,
            made.position_bias,
        )
        if system == "t5":
            assert (config.d_ff, config.d_kv) == (96, 6)
        elif system == "llama":
            assert (config.intermediate_size, config.num_key_value_heads) == (64, 4)
        elif system != "gpt2":
            assert config.intermediate_size == 96 and made.model.pooler is None
    scale = pytest.approx(6**-0.5)
    assert found == {
        FULL: ("raw", scale, False, False),
        "gpt2": ("raw", scale, True, False),
        "llama": ("rotated", scale, True, False),
        "t5": ("raw", 1.0, False, True),
        "vit": ("raw", scale, False, False),
    }


def test_long_inputs_have_positions_of_their_own() -> None:
    for family, least in (("bert", 512), ("gpt2", 1024)):
        for tokens in (least - 1, least + 8):
            size = Size(tokens=tokens, width=4, heads=2)
            config = untrained_models._build_model(family, size).config
            assert config.max_position_embeddings == max(least, tokens)


def test_tokens_are_uniform_over_the_vocabulary_and_pixels_normal() -> None:
    def drawn() -> torch.Generator:
        return torch.Generator().manual_seed(3)

    size = Size(sequences=3, tokens=40)
    model = SimpleNamespace(config=SimpleNamespace(vocab_size=5, image_size=6))
    found = untrained_models._draw_inputs(model, "bert", size, drawn())
    assert found["input_ids"].shape == (3, 40)
    assert found["input_ids"].unique().tolist() == [0, 1, 2, 3, 4]
    pixels = untrained_models._draw_inputs(model, "vit", size, drawn())["pixel_values"]
    assert torch.equal(pixels, torch.randn(3, 3, 6, 6, generator=drawn()))


def test_without_its_type_vector_an_embedding_is_still_normalised() -> None:
    made = build_untrained("bert:no-type", SMALL, 0)
    table = made.model.embeddings
    assert not table.token_type_embeddings.weight.any()
    assert table.position_embeddings.weight.any()
    torch.testing.assert_close(
        made.fed.square().mean(-1), torch.ones(3, 20), rtol=1e-3, atol=0
    )
    full = build_untrained(FULL, SMALL, 0).model.embeddings
    assert full.token_type_embeddings.weight.any()


# --- scores against brute force ---


@pytest.mark.parametrize("causal", (False, True))
def test_scores_equal_brute_force(causal: bool) -> None:
    drawn = torch.Generator().manual_seed(0)
    query, key = (torch.randn(2, 3, 48, 8, generator=drawn) + 5 for _ in range(2))
    sums = row_scores.sum_scores(query, key, 0.3, causal, torch.tensor([True, False]))
    terms = {name: value.double().numpy()[None].sum(1) for name, value in sums.items()}
    values = row_scores.compute_metrics(terms, position_bias=False)
    s = (query.double() @ key.double().transpose(2, 3)).numpy() * 0.3
    seen = np.tril(np.ones((48, 48), bool)) if causal else np.ones((48, 48), bool)
    for head in range(3):
        pooled = s[:, head][:, seen].ravel()
        rows = [s[i, head, q, seen[q]] for i in range(2) for q in range(48)]
        within = sum(len(row) * row.var() for row in rows) / len(pooled)
        assert values["attention.score"][0, head] == pytest.approx(
            pooled.mean(), rel=1e-6
        )
        assert values["attention.score_rms"][0, head] == pytest.approx(
            np.sqrt((pooled**2).mean()), rel=1e-6
        )
        assert values["attention.score_spread"][0, head] == pytest.approx(
            pooled.std(), rel=1e-4
        )
        assert values["attention.score_spread_within"][0, head] == pytest.approx(
            np.sqrt(within), rel=1e-5
        )
        some = [row for i, row in enumerate(rows) if i % 48 % 16 == 15]
        softmax = [
            np.exp(row - row.max()) / np.exp(row - row.max()).sum() for row in some
        ]
        entropy = [-(p * np.log(p)).sum() for p in softmax]
        assert values["attention.entropy"][0, head] == pytest.approx(
            np.mean(entropy), rel=1e-6
        )
        share = np.mean(
            [h / np.log(len(p)) for h, p in zip(entropy, softmax, strict=True)]
        )
        assert values["attention.entropy_normalised"][0, head] == pytest.approx(
            share, rel=1e-6
        )
        expected = np.mean([np.exp(np.median(np.log(p))) for p in softmax])
        assert values["attention.row_median"][0, head] == pytest.approx(
            expected, rel=1e-4
        )
    rows = [s[0, h, q, seen[q]] for h in range(3) for q in (15, 31, 47)]
    for name, chosen in (
        ("pooled", rows),
        ("centred", [row - row.mean() for row in rows]),
    ):
        expected = np.histogram(np.concatenate(chosen), row_scores.EDGES)[0]
        assert (
            np.abs(sums[name][0].numpy() - expected).sum() <= 6
        )  # float32 at the edges of bins
        assert not sums[name][1].any()


def test_entropy_resolves_weights_that_are_all_but_uniform() -> None:
    """Scores of spread σ = 10⁻⁴: the entropy is ln n − σ²/2, 5·10⁻⁹ below ln n = 5.5, past the digits of float32."""
    drawn = torch.Generator().manual_seed(2)
    query, key = (
        torch.ones(1, 1, 256, 1),
        1e-4 * torch.randn(1, 1, 256, 1, generator=drawn),
    )
    sums = row_scores.sum_scores(query, key, 1.0, False, torch.tensor([False]))
    entropy = (sums["entropy"] / sums["some_rows"]).item()
    assert np.log(256) - entropy == pytest.approx(
        key.double().var(correction=0).item() / 2, rel=1e-3
    )


def test_the_common_part_of_keys_moves_scores_but_not_their_spread_inside_rows() -> (
    None
):
    drawn = torch.Generator().manual_seed(1)
    query, key = (torch.randn(1, 2, 32, 8, generator=drawn) for _ in range(2))
    every = torch.tensor([True])
    values = []
    for shift in (0.0, 1000.0):
        sums = row_scores.sum_scores(query, key + shift, 1.0, False, every)
        values.append(
            row_scores.compute_metrics(
                {k: v.double().numpy() for k, v in sums.items()}, position_bias=False
            )
        )
    within = "attention.score_spread_within"
    np.testing.assert_allclose(values[0][within], values[1][within], rtol=1e-3)
    assert (
        values[1]["attention.score_spread"] > 100 * values[0]["attention.score_spread"]
    ).all()


# --- fixed points of functions that are known ---

GRID = (0.0, 0.1, 1.0, 10.0, 100.0)


def fixed(
    token: Callable[[float], float], mean: Callable[[float], float]
) -> dict[str, list[float]]:
    """{metric: values} for outputs of norm `token`(N) and `mean`(N), inputs of norm N."""

    def at(norms: tuple[float, ...]) -> biased_block.Norms:
        return (
            np.array([[n, token(n)] for n in norms], dtype=float),
            np.array([[n, mean(n)] for n in norms], dtype=float),
        )

    rows = biased_block.list_fixed_points(GRID, at(GRID), lambda n: at((n,)))
    found: dict[str, list[float]] = {}
    for row in rows:
        found.setdefault(row["metric"], []).append(row["value"])
    return found


def test_one_none_and_several_fixed_points_are_told_apart() -> None:
    found = fixed(lambda _n: 27.7, lambda n: n + 1)
    assert found["fixed_point.token_norm.crossings"] == [1]
    assert found["fixed_point.token_norm"] == pytest.approx([27.7], rel=2e-4)
    assert found["fixed_point.token_norm.norm"] == pytest.approx([27.7])
    assert found["fixed_point.mean_norm.crossings"] == [0]
    assert "fixed_point.mean_norm" not in found
    several = fixed(
        lambda n: n * (1 + (n - 0.5) * (n - 5) * (n - 50) / 1e6), lambda _n: 1.0
    )
    assert several["fixed_point.token_norm.crossings"] == [3]
    assert several["fixed_point.token_norm"] == pytest.approx([0.5, 5, 50], rel=2e-3)


def test_equal_norms_up_to_rounding_are_no_crossing() -> None:
    gap = np.array([-1e-6, 3e-6, -0.2, -2.0, -70.0])
    assert biased_block.find_brackets(GRID, gap, np.full(5, 27.7)) == []
    assert biased_block.find_brackets(
        GRID, gap * [1, 1e4, 1, 1, 1], np.full(5, 27.7)
    ) == [(0.1, 1.0)]


def test_fixed_point_of_the_block_itself(tmp_path: Path) -> None:
    size = Size(sequences=2, tokens=64, width=64, heads=4)
    records = measure_piece(RAW, size, 0, (0.0, 1.0, 4.0, 16.0), context(tmp_path))
    values = {
        name: rows["value"].tolist()
        for name, rows in records.groupby("metric")
        if name.startswith("fixed")
    }
    subject = build_untrained(RAW, size, 0)
    trivial = np.sqrt(64 - subject.fed.square().sum(-1).mean().item())
    assert values["fixed_point.token_norm"] == pytest.approx([trivial], rel=5e-3)
    token, mean = (
        Pass(subject, (values["fixed_point.mean_norm"][0],), 1024, norms_only=True)
        .run()
        .norm_pairs()
    )
    assert mean[0, 0] == pytest.approx(mean[0, 1], rel=1e-3)
    assert token[0, 1] == pytest.approx(8, rel=1e-3)
