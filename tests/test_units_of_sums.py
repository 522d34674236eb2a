"""Small decisions of sums, batches, options and errors, each on a few numbers: which end, which of two, how many."""

import threading
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from anisoscope import axes, doctor, errors, options, progress
from anisoscope.axes import Site
from anisoscope.batch import Batch, Stream
from anisoscope.errors import MeasureError, UsageError
from anisoscope.sums import (
    classes,
    device,
    extremes,
    groups,
    jackknife,
    moments,
    on_chip,
    reservoir,
    threads,
)


def test_a_sequence_is_pooled_at_its_real_tokens():
    x = torch.tensor(
        [[[9.0], [1.0], [3.0], [8.0]], [[2.0], [float("nan")], [7.0], [7.0]]]
    )
    mask = torch.tensor([[False, True, True, False], [True, False, False, False]])
    pooled = {
        at: classes.pool_sequences(x, mask, at).flatten().tolist()
        for at in ("first", "last", "mean", "max")
    }
    assert pooled == {"first": [1, 2], "last": [3, 2], "mean": [2, 2], "max": [3, 2]}
    sums = groups.Sums(2)
    vectors = torch.tensor(
        [[3.0, 4.0], [0.0, 0.0], [0.0, 2.0], [1.0, 0.0]], dtype=torch.float64
    )
    classes.add_class_sums(
        sums, "s", vectors, torch.tensor([1, 0, 1, -1]), torch.tensor([0, 0, 1, 1]), 2
    )
    assert sums.terms["s", "class_n"].tolist() == [[0, 1], [0, 1]]
    assert sums.terms["s", "class_unit"][0, 1].tolist() == pytest.approx([0.6, 0.8])


def test_of_equal_values_the_earlier_place_is_kept():
    def at(*places):
        return torch.tensor([[*place, 0, 0] for place in places])

    values, where = extremes.take_larger(
        (torch.tensor([1.0, 2.0, 2.0, 2.0]), at((5, 5), (5, 5), (5, 5), (5, 5))),
        (torch.tensor([3.0, 2.0, 2.0, 2.0]), at((9, 9), (4, 9), (5, 4), (5, 6))),
    )
    assert values.tolist() == [3, 2, 2, 2] and where[:, :2].tolist() == [
        [9, 9],
        [4, 9],
        [5, 4],
        [5, 5],
    ]
    kept = extremes.Extremes()
    kept.offer("s", "t", torch.tensor([float("nan"), 1.0]), at((1, 1), (1, 1)))
    kept.offer("s", "t", torch.tensor([-7.0, float("-inf")]), at((2, 2), (2, 2)))
    assert kept.at("s")["t"][0].tolist() == [-7, 1] and kept.at("s")["t"][1][
        :, 0
    ].tolist() == [2, 1]
    assert kept.without(["s"]).terms == {}
    with pytest.raises(MeasureError, match="one width"):
        kept.offer("s", "t", torch.zeros(3), at((1, 1), (1, 1), (1, 1)))
    x = torch.tensor([[1.0, 5.0], [5.0, 2.0]])
    largest, place = extremes.find_largest_over_tokens(
        x, torch.tensor([[[7, 0, 0, 0], [7, 1, 1, 0]], [[3, 8, 0, 0], [3, 9, 1, 0]]])
    )
    assert largest.item() == 5 and place.tolist() == [3, 8, 0, 0]


def test_sums_leave_each_group_out_that_holds_anything():
    totals = groups.Totals(
        {"n": np.array([1.0, 0.0, 3.0]), "x": np.array([[2.0], [0.0], [4.0]])}
    )
    assert (
        totals["n"].tolist() == [4, 3, 1]
        and totals.groups("x").tolist() == [[2], [4]]
        and totals.n_groups == 2
    )
    assert totals.without(1)["n"].tolist() == [1, 0] and "x" in totals
    with pytest.raises(MeasureError, match="needs"):
        totals["y"]
    with pytest.raises(MeasureError, match="at least 2 groups"):
        groups.Sums(1)
    assert groups.as_slice(torch.tensor([1, 4, 7])) == slice(
        1, 8, 3
    ) and groups.as_slice(torch.tensor([5])) == slice(5, 6, 1)
    assert groups.as_slice(torch.tensor([1, 4, 6])).tolist() == [1, 4, 6]
    found = groups._cosine_inside_sequences(
        torch.tensor([2.0, 1.0]), torch.tensor([[1.0, 1.0], [1.0, 0.0]])
    )
    assert found["sequence_cosine"].tolist() == [0, 0] and found[
        "sequences"
    ].tolist() == [1, 0]
    parallel = groups._cosine_inside_sequences(
        torch.tensor([3.0]), torch.tensor([[3.0, 0.0]])
    )
    assert parallel["sequence_cosine"].item() == 1


def test_ends_of_intervals():
    free = jackknife.jackknife_interval([2.0, 1.0, 2.0, 3.0])
    half = 4.302653 * (2 / 3 * 2) ** 0.5
    assert (free.low, free.high) == (pytest.approx(2 - half), pytest.approx(2 + half))
    cut = jackknife.jackknife_interval([2.0, 1.0, 2.0, 3.0], bounds=(0.0, np.inf))
    assert cut.low == 0 and cut.high == free.high
    inside = jackknife.jackknife_interval([0.5, 0.4, 0.5, 0.6], bounds=(0.0, 1.0))
    assert (
        0 < inside.low < 0.5 < inside.high < 1
        and inside.high - 0.5 == pytest.approx(0.5 - inside.low)
    )
    assert np.isnan(jackknife.jackknife_interval([1.0, 2.0, 3.0]).low)
    assert jackknife.explain_no_interval(
        3
    ) is None and "1 group of units" in jackknife.explain_no_interval(1)
    low, high = jackknife.wilson_interval(0.0, 10)
    assert low == 0 and high == pytest.approx(0.27753, abs=1e-4)
    even = jackknife.jackknife_interval([1.0] * 5, counted=10)
    assert even.high == 1 and even.low == pytest.approx(1 - 0.27753, abs=1e-4)
    seeds = jackknife.estimate_over_seeds([1.0, 2.0, 3.0])
    assert seeds.high == pytest.approx(2 + 4.302653 / 3**0.5) and np.isnan(
        jackknife.estimate_over_seeds([1.0]).low
    )
    np.testing.assert_allclose(
        jackknife.holm([0.01, np.nan, 0.04, 0.03]), [0.03, np.nan, 0.06, 0.06]
    )
    assert (
        jackknife.estimate_mean([1.0, 1.0, 1.0]).low < 1
        and jackknife.estimate_mean([1.0, 1.0]).low != 1
    )


def test_moments_of_wide_sites_have_few_groups():
    def count(width, given=None, of_sums=32):
        return moments.Moments(groups.Sums(of_sums), given)._count_groups(width)

    assert [count(width) for width in (1024, 1025, 2048, 2049)] == [8, 1, 1, 0]
    assert count(4096, 1) == 1 and count(8, 16) == 16 and count(8, of_sums=4) == 4


def test_a_sample_is_that_of_the_smallest_hashes():
    def sampled(*batches, size=5):
        kept = reservoir.Reservoir(size, 3)
        for unit in batches:
            rows = torch.tensor(unit)
            kept.begin(
                rows,
                torch.zeros(len(rows), dtype=torch.int64),
                torch.ones(len(rows), 4, dtype=torch.bool),
            )
            kept.add("s", rows[:, None, None].expand(-1, 4, 2).float())
            kept.end()
        return kept

    whole, other = sampled([0, 1, 2, 3]), sampled([3], [1, 0], [2])
    assert torch.equal(whole.hash, other.hash) and torch.equal(
        whole.vectors["s"], other.vectors["s"]
    )
    assert len(whole.hash) == 5 and bool((whole.hash.diff() > 0).all())
    assert torch.equal(whole.vectors["s"][:, 0].long(), whole.unit)
    merged = sampled([0, 1]).merge(sampled([2, 3]))
    assert torch.equal(merged.hash, whole.hash)


def test_batches_are_cut_into_sequences():
    mask = torch.tensor([[True, True], [True, False], [True, True]])
    stream = Stream(mask, ~mask, torch.tensor([0, 5, 9]))
    batch = Batch(
        {"x": torch.arange(3), "in": {"y": torch.arange(6).view(3, 2)}, "n": 1},
        torch.tensor([4, 5, 6]),
        {"encoder": stream},
        label=torch.tensor([0, 1, 2]),
    )
    first, second = batch.split(2)
    assert (
        first.unit.tolist() == [4, 5]
        and second.label.tolist() == [2]
        and second.streams["encoder"].start.tolist() == [9]
    )
    assert second.inputs["in"]["y"].tolist() == [[4, 5]] and second.inputs["n"] == 1
    assert (batch.n_tokens, first.n_tokens) == (5, 3) and batch.split(1) == [batch]
    assert Batch({}, torch.tensor([1, 2])).n_tokens == 2
    for wrong in (
        lambda: Batch({}, torch.tensor([])),
        lambda: Batch({}, torch.tensor([1]), label=torch.tensor([1, 2])),
        lambda: Batch({}, torch.tensor([1]), {"encoder": stream}),
        lambda: Batch({"x": torch.ones(2)}, torch.tensor([1, 2, 3])).split(2),
        lambda: Stream(mask, mask[:, :1], torch.zeros(3)),
        lambda: Stream(mask, mask, torch.zeros(2)),
    ):
        with pytest.raises(UsageError):
            wrong()


def test_sites_and_plurals():
    names = {
        Site("encoder", 3, "hidden"): "encoder.3.hidden",
        Site("encoder", 3, "query", "raw"): "encoder.3.head.query.raw",
        Site("encoder", 3, "value"): "encoder.3.head.value",
        Site("decoder", 2, "attention", kind="cross"): "decoder.2.cross.attention",
        Site("decoder", None, "final"): "decoder.final",
    }
    assert {site: site.name for site in names} == names
    assert [axes.pluralise(noun) for noun in ("token", "patch", "class", "box")] == [
        "tokens",
        "patches",
        "classes",
        "boxes",
    ]
    assert (
        Site("e", 1, "stage").measured_as
        == Site("e", 1, "pre_relu").measured_as
        == "hidden"
    )


def test_names_near_and_too_long():
    assert (
        errors.suggest_names("mean_cosin", ["mean_cosine", "drift"])
        == "did you mean mean_cosine?"
    )
    assert (
        errors.suggest_names("zzz", ["b", "a"]) == "known names: a, b"
        and errors.suggest_names("q", [], all_names="x") == "x"
    )
    assert (
        not errors.is_too_long("a" * 255)
        and errors.is_too_long("a" * 256)
        and errors.is_too_long("é" * 128)
    )
    assert not errors.is_too_long("/".join(["a" * 255] * 16)) and errors.is_too_long(
        "/".join(["a" * 255] * 17)
    )


def test_devices_and_shortened_values():
    for name in ("auto", "cpu", "cuda:1", "privateuseone"):
        assert options.check_device(name) == name
    for name in ("gpu", "meta", "cuda:", "cuda:x", "cpux"):
        with pytest.raises(UsageError):
            options.check_device(name)
    assert options.separate_names(["a, b", "", "c"]) == ("a", "b", "c")
    assert options.truncate_repr(
        "x" * 58
    ) == "'" + "x" * 58 + "'" and "(61 characters)" in options.truncate_repr("x" * 59)
    assert options.truncate_repr(1 << 300) == "a number of 301 bits"
    assert [options._show_default(x) for x in (None, False, "", (), 0, (1, 2))] == [
        None,
        None,
        None,
        None,
        "0",
        "1,2",
    ]


def test_progress_of_pieces():
    seen = []
    scaled = progress.scale_progress(
        lambda done, total: seen.append((done, total)), 1, 4, "checkpoint"
    )
    scaled(5, 10)
    assert seen == [(15, 40)] and progress.scale_progress(None, 0, 2, "x") is None
    shown = progress.Shown(
        "work", "tokens", lambda *given: seen.append(given), seen.append
    )
    progress.scale_progress(shown, 0, 2, "part")(1, 3)
    assert seen[-1] == (1, 6, "part 1 of 2: work", "tokens")
    progress.remark(progress.scale_progress(shown, 1, 2, "part"), "said")
    assert seen[-1] != "said"
    progress.set_counted_unit(shown, "words")
    assert (shown.unit, shown.what) == ("words", "work")


def test_a_diagnosis_says_what_is_missing():
    def extra(name, *states):
        return doctor.Extra(
            name,
            tuple(
                doctor.Package(f"p{i}", "", "1.0+cpu", state)
                for i, state in enumerate(states)
            ),
            f"get {name}",
        )

    whole = doctor.Diagnosis(
        {},
        [],
        [extra("base", "ok"), extra("demo", "missing"), extra("data", "ok", "broken")],
    )
    text = doctor.render_diagnosis(whole)
    assert (
        "✔ base  p0 1.0" in text
        and "– demo  p0 missing" in text
        and "✘ data  p1 broken" in text
    )
    assert (
        text.endswith("Ready to measure.")
        and whole.as_dict()["extras"][1]["works"] is False
    )
    assert doctor.render_diagnosis(
        doctor.Diagnosis({}, [], [extra("base", "missing")])
    ).endswith("Not ready: get base")
    many = extra("m", *["ok"] * 6)
    assert doctor._describe_packages(many).endswith("p4 1.0 and 1 more")


@pytest.mark.parametrize("heads", [1, 3])
def test_sums_of_vectors_by_policy_and_subset_are_those_of_plain_loops(heads):
    """Two policies, three subsets, each with other tokens; one vector is zero, one is not finite."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(2, heads, 4, 5, generator=draw, dtype=torch.float64) + 1
    x[0, 0, 1], x[1, 0, 2, 3] = 0, float("inf")
    masks = torch.tensor([[[1, 1, 1, 0], [0, 1, 1, 0]], [[1, 1, 1, 1], [1, 0, 1, 0]]])
    subsets = torch.tensor([[[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]]] * 2)
    names = frozenset({"n", "vector", "unit", "norm", "norm_square", "unit_square"})
    names |= {"subset_n", "subset_unit"}
    found, inverse = groups.sum_vectors(x, masks.bool(), subsets.bool(), names)
    assert set(found) == names | groups.COUNTED
    assert set(groups.sum_vectors(x, masks.bool(), None, frozenset({"unit"}))[0]) == {
        "unit",
        *groups.COUNTED,
    }
    for s in range(2):
        assert int(found["zero"][s]) == (s == 0)
        assert int(found["nonfinite"][s]) == (s == 1)
        for h in range(heads):
            norms = x[s, h].norm(dim=-1)
            sound = norms.isfinite() & (norms > 0)
            units = x[s, h] / norms[:, None]
            for rows, prefix in ((masks[s], ""), (subsets[s], "subset_")):
                for p, row in enumerate(rows):
                    k = row.bool() & sound
                    expected = {"unit": units[k].sum(0)}
                    if not prefix:
                        expected |= {
                            "vector": x[s, h, k].sum(0),
                            "norm": norms[k].sum(),
                            "norm_square": (norms[k] ** 2).sum(),
                            "unit_square": (units[k] ** 2).sum(0),
                        }
                    expected["n"] = k.sum().double()
                    for name, value in expected.items():
                        got = found[f"{prefix}{name}"][s, p, h].double()
                        torch.testing.assert_close(
                            got, value.double(), rtol=1e-9, atol=1e-9
                        )
            expected = torch.where(sound, 1 / norms, 0.0)
            torch.testing.assert_close(inverse[s, h].double(), expected)


# ---- vectors of sequences and their classes


def test_the_maximum_over_tokens_may_be_negative_and_padding_lies_on_either_side():
    nan = float("nan")
    x = torch.tensor(
        [
            [[nan, 9.0], [-3.0, 1.0], [-2.0, -6.0], [nan, 9.0]],
            [[-5.0, -7.0], [9.0, 9.0], [-8.0, -1.0], [9.0, 9.0]],
        ]
    )
    mask = torch.tensor([[False, True, True, False], [True, False, True, False]])
    expected: dict[axes.At, list[list[float]]] = {
        "first": [[-3, 1], [-5, -7]],
        "last": [[-2, -6], [-8, -1]],
        "mean": [[-2.5, -2.5], [-6.5, -4]],
        "max": [[-2, 1], [-5, -1]],
    }
    for at, vectors in expected.items():
        found = classes.pool_sequences(x, mask, at)
        assert found.tolist() == vectors, at
        assert found.dtype == torch.float64


def test_sums_by_class_have_their_group_and_class_and_leave_out_what_has_no_direction():
    """Three groups and four classes; a label below 0, zero, not finite, and norms that have no square."""
    sums = groups.Sums(3)
    rows = [
        ([3.0, 4.0], 0, 2),
        ([0.0, 2.0], 3, 2),
        ([0.0, 5.0], 3, 2),
        ([-1.0, 0.0], 1, 0),
        ([1.0, 0.0], -1, 0),
        ([0.0, 0.0], 0, 0),
        ([1e154, 0.0], 0, 0),
        ([1e-154, 0.0], 0, 0),
        ([float("inf"), 0.0], 0, 0),
        ([float("nan"), 0.0], 0, 0),
    ]
    x = torch.tensor([row for row, _, _ in rows], dtype=torch.float64)
    label = torch.tensor([row[1] for row in rows])
    group = torch.tensor([row[2] for row in rows])
    for _ in range(2):
        classes.add_class_sums(sums, "s", x, label, group, 4)
    n = torch.zeros(3, 4)
    n[2, 0], n[2, 3], n[0, 1] = 2, 4, 2
    assert sums.terms["s", "class_n"].tolist() == n.tolist()
    unit = torch.zeros(3, 4, 2, dtype=torch.float64)
    unit[2, 0] = torch.tensor([1.2, 1.6])
    unit[2, 3, 1], unit[0, 1, 0] = 4, -2
    torch.testing.assert_close(sums.terms["s", "class_unit"], unit)


# ---- sums of vectors as an accelerator makes them


def test_an_accelerator_s_sums_of_vectors_are_those_of_plain_loops():
    """Two policies, three subsets, two heads, vectors of norms far apart; zero, too small, too large, not finite."""
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(2, 7, 2, 3, generator=draw, dtype=torch.float64) + 0.5
    x[0, 1, 0] = 0
    x[0, 2, 1] *= 1e-160
    x[0, 3, 0] *= 1e160
    x[0, 5, 1] *= 1e20
    x[1, 0, 0, 2] = float("inf")
    x[1, 1, 1, 0] = float("nan")
    x[1, 4, 0] = 0
    x[1, 6] *= 1e-9
    masks = torch.rand(2, 2, 7, generator=draw) < 0.7
    masks[:, 0] = True
    masks[1, 0, 1] = False
    subsets = torch.rand(2, 3, 7, generator=draw) < 0.5
    names = frozenset({"unit_square"})
    found, inverse = device.sum_on_device(x, masks, subsets, names)
    norms = x.norm(dim=-1)
    sound = norms.isfinite() & (norms > 1e-153) & (norms < 1e153)
    zero, lost = (norms <= 1e-153), ~(norms < 1e153)
    assert found["zero"].tolist() == [2, 1]
    assert found["nonfinite"].tolist() == [1, 1]
    assert bool((sound ^ zero ^ lost).all())
    kept = torch.where(sound.unsqueeze(-1), x, 0.0)
    norm = torch.where(sound, norms, 0.0)
    unit = kept / torch.where(sound, norms, 1.0).unsqueeze(-1)
    torch.testing.assert_close(inverse, torch.where(sound, 1 / norms, 0.0))
    assert "unit_square" not in device.sum_on_device(x, masks, subsets, frozenset())[0]
    for s in range(2):
        for rows, prefix in ((masks[s], ""), (subsets[s], "subset_")):
            for p, row in enumerate(rows):
                expected = {
                    "n": sound[s][row].sum(0).double(),
                    "unit": unit[s][row].sum(0),
                }
                if not prefix:
                    expected |= {
                        "vector": kept[s][row].sum(0),
                        "unit_square": unit[s][row].square().sum(0),
                        "norm": norm[s][row].sum(0),
                        "norm_square": norm[s][row].square().sum(0),
                    }
                for name, value in expected.items():
                    torch.testing.assert_close(
                        found[f"{prefix}{name}"][s, p], value, msg=f"{name} {p}"
                    )


def test_kernels_are_checked_for_each_form_of_a_call_by_itself(monkeypatch):
    """Type, width, numbers of policies and subsets, strides, squares: each may need other compiled code."""
    forms = []

    def note(form, _by_kernel, by_torch, *, what):
        forms.append((what, form))
        return by_torch()

    monkeypatch.setattr(device, "has_kernels", lambda *_: True)
    monkeypatch.setattr(device, "compute_checked", note)

    def call(x, policies=1, subsets=2, terms=(), dtype=torch.bool):
        weights = [torch.ones(2, n, 3, dtype=dtype) for n in (policies, subsets)]
        device.sum_on_device(x, *weights, frozenset(terms))

    x = torch.ones(2, 3, 1, 4)
    unlike = [
        lambda: call(x),
        lambda: call(x, 2),
        lambda: call(x, 1, 1),
        lambda: call(x, terms={"unit_square"}),
        lambda: call(x.double()),
        lambda: call(x[..., :3]),
        lambda: call(x.repeat(1, 1, 2, 1)),
        lambda: call(x.transpose(1, 3).contiguous().transpose(1, 3)),
    ]
    for each in unlike:
        each()
    assert len(set(forms)) == len(unlike)
    assert {what for what, _ in forms} == {"sums of vectors"}
    call(x, terms={"unit_square", "norm"})
    assert forms[-1] == forms[3]
    call(x, dtype=torch.float32)
    assert len(forms) == len(unlike) + 1, "a mask of numbers is no matter for kernels"


def test_weighted_sums_keep_heads_and_dimensions_apart():
    vectors = torch.arange(24.0).view(1, 4, 3, 2)
    rows = torch.tensor([[[1.0, 0, 0, 2], [0, 1, 0, 0]]])
    found = device.sum_weighted(rows, vectors)
    assert found.shape == (1, 2, 3, 2)
    assert torch.equal(found[0, 0], vectors[0, 0] + 2 * vectors[0, 3])
    assert torch.equal(found[0, 1], vectors[0, 1])


def test_half_precision_is_summed_as_float32():
    x = torch.tensor([[[[3.0, 4], [0, 0], [6, 8]]]])
    mask = torch.ones(1, 1, 3, dtype=torch.bool)
    for dtype in (torch.float16, torch.bfloat16):
        found, inverse = groups.sum_vectors(
            x.to(dtype), mask, None, frozenset({"n", "vector", "unit", "norm"})
        )
        assert found["vector"].flatten().tolist() == [9, 12]
        assert found["unit"].flatten().tolist() == pytest.approx([1.2, 1.6])
        assert found["norm"].item() == pytest.approx(15)
        assert found["n"].item() == 2 and found["zero"].item() == 1
        assert inverse.flatten().tolist() == pytest.approx([0.2, 0, 0.1])


def test_the_cosine_inside_of_sequences_is_that_of_each_policy():
    """Two vectors have one pair; one vector has none, and is no sequence."""
    x = torch.tensor([[[[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]]]]).double()
    masks = torch.tensor([[[1, 1, 1], [1, 0, 1], [0, 1, 1], [0, 0, 1]]]).bool()
    found, _ = groups.sum_vectors(
        x, masks, None, frozenset({"unit", "n", "sequence_cosine", "sequences"})
    )
    assert found["sequence_cosine"].flatten().tolist() == pytest.approx(
        [1 / 3, 1, 0, 0], abs=1e-12
    )
    assert found["sequences"].flatten().tolist() == [1, 1, 1, 0]


def test_ranges_of_norms_say_what_can_be_squared():
    check = groups._check_range_of_norms
    for x, usual, extreme in (
        ([[3.0, 4.0]], True, False),
        ([[0.0, 0.0], [1.0, 1.0]], False, False),
        ([[1e-13, 0.0], [1.0, 1.0]], False, True),
        ([[1e13, 0.0], [1.0, 1.0]], False, True),
        ([[1e-30, 0.0], [1.0, 1.0]], False, True),
        ([[float("nan"), 0.0], [1.0, 1.0]], False, True),
        ([[float("inf"), 0.0], [1.0, 1.0]], False, True),
    ):
        vectors = torch.tensor(x)
        found = check(vectors, torch.linalg.vector_norm(vectors, dim=-1))
        assert found == (usual, extreme), x
    assert check(torch.zeros(0, 2), torch.zeros(0)) == (True, False)
    assert check(torch.tensor([[1e-13, 0.0]]).double(), torch.tensor([1e-13])) == (
        True,
        False,
    )


def test_what_is_padding_is_reported_neither_as_zero_nor_as_not_finite():
    """The first policy says what is real, whatever other policies and subsets count."""
    x = torch.ones(1, 2, 5, 3)
    x[0, 0, 0], x[0, 1, 1, 2], x[0, :, 2] = 0, float("inf"), 0
    x[0, :, 3, 0] = float("nan")
    masks = torch.tensor([[[1, 1, 0, 0, 1], [0, 0, 1, 1, 1]]]).bool()
    found, inverse = groups.sum_vectors(x, masks, masks[:, 1:], frozenset({"n"}))
    assert (found["zero"].tolist(), found["nonfinite"].tolist()) == ([1], [1])
    assert found["n"][0].tolist() == [[2, 2], [1, 1]]
    assert (inverse[0] > 0).tolist() == [
        [False, True, False, False, True],
        [True, False, False, False, True],
    ]
    single = x[0, :1].transpose(0, 1)
    found, _, _ = groups.sum_single_vectors(
        single, masks[0].T.unsqueeze(2), None, frozenset({"n"}), torch.tensor([0] * 5)
    )
    assert (found["zero"].tolist(), found["nonfinite"].tolist()) == ([1], [0])


def test_norms_of_float32_are_squared_and_summed_in_float64():
    """Their variance is a small difference of large sums."""
    x = (1000 + torch.arange(64.0) / 1024).view(1, 1, 64, 1)
    found, _ = groups.sum_vectors(
        x, torch.ones(1, 1, 64, dtype=torch.bool), None, frozenset({"norm_square"})
    )
    exact = float(x.double().square().sum())
    assert found["norm_square"].item() == pytest.approx(exact, rel=1e-14)


# ---- sums by group


def test_sums_start_with_32_groups_and_are_added_in_float64():
    sums = groups.Sums()
    assert sums.groups == 32
    third = torch.tensor([1 / 3, 1 / 3, 1e-12], dtype=torch.float64)
    sums.add("a", {"n": third}, torch.tensor([31, 0, 31]))
    assert sums.terms["a", "n"][31].item() == 1 / 3 + 1e-12


def test_sums_of_one_accelerator_are_added_at_once_and_keep_their_sites_apart():
    """All terms of a site lie in one tensor, until one of them is replaced."""
    sums = groups.Sums(3)
    group = torch.tensor([2, 0, 2])
    values = {
        "n": torch.tensor([1.0, 2.0, 4.0]),
        "x": torch.arange(12.0).view(3, 2, 2),
    }

    def add(site, given):
        columns = groups._to_columns(given.values())
        sums._join(site, given).index_add_(0, group, columns)

    add("a", values)
    add("b", {name: value * 10 for name, value in values.items()})
    add("a", values)
    whole = sums._join("a", values)
    assert sums._join("a", values) is whole and sums._join("b", values) is not whole
    assert sums.terms["a", "n"].tolist() == [4, 0, 10]
    assert sums.terms["b", "n"].tolist() == [20, 0, 50]
    sums.terms["a", "n"] = torch.tensor([100.0, 0, 0], dtype=torch.float64)
    add("a", values)
    assert sums.terms["a", "n"].tolist() == [102, 0, 5]
    x = values["x"].double()
    assert torch.equal(sums.terms["a", "x"][2], 3 * (x[0] + x[2]))
    assert torch.equal(sums.terms["a", "x"][0], 3 * x[1])
    assert sums.terms["a", "x"].dtype == torch.float64


def test_errors_of_sums_name_both_shapes_and_both_numbers_of_groups():
    sums = groups.Sums(4)
    sums.buffer("encoder.1.hidden", "unit", (4, 2, 3))
    with pytest.raises(MeasureError) as raised:
        sums.buffer("encoder.1.hidden", "unit", (4, 3, 2))
    assert raised.value.expected == (
        "unit of shape (4, 2, 3) at encoder.1.hidden, as in the batches before"
    )
    assert raised.value.got == "(4, 3, 2)"
    with pytest.raises(MeasureError) as raised:
        sums.merge(groups.Sums(8))
    assert (raised.value.expected, raised.value.got) == ("sums over 4 groups", "8")
    other = groups.Sums(4)
    other.buffer("encoder.1.hidden", "unit", (4, 5))
    with pytest.raises(MeasureError) as raised:
        sums.merge(other)
    assert raised.value.expected == ("('encoder.1.hidden', 'unit') of shape (4, 2, 3)")
    assert raised.value.got == "(4, 5)"
    assert raised.value.cure == "merge runs of one model only"
    totals = groups.Totals({"unit": np.ones((2, 1)), "norm": np.ones((2, 1))})
    with pytest.raises(MeasureError, match=r"got 'nrm'\. Cure: did you mean norm\?"):
        totals.groups("nrm")


def test_merged_sums_share_no_memory_with_either_part():
    first, second = groups.Sums(2), groups.Sums(2)
    first.units, second.units = {1, 2}, {2, 5}
    for sums, site in ((first, "b"), (second, "a"), (first, "c"), (second, "c")):
        sums.buffer(site, "n", (2,)).add_(1)
    merged = first.merge(second)
    assert merged.units == {1, 2, 5} and merged.sites() == ["a", "b", "c"]
    assert merged.at("c")["n"].tolist() == [2, 2]
    for total in merged.terms.values():
        total += 10
    assert {key: x.tolist() for key, x in first.terms.items()} == {
        ("b", "n"): [1, 1],
        ("c", "n"): [1, 1],
    }
    assert second.terms["a", "n"].tolist() == [1, 1]
    assert merged.at("a", ["m", "n"]).keys() == {"n"} and merged.at("none") == {}


def test_the_index_of_a_group_counts_those_that_hold_data():
    totals = groups.Totals(
        {
            "n": np.array([0.0, 1, 0, 3, 5]),
            "x": np.array([[0.0], [2], [0], [4], [0]]),
        }
    )
    assert totals.n_groups == 3
    assert totals["n"].tolist() == [9, 8, 6, 4]
    assert totals.without(1)["n"].tolist() == [6, 5, 1]
    assert totals.without(0).groups("x").tolist() == [[4], [0]]
    assert totals.over(np.array([[1.0, 2], [3, 4]])).tolist() == [
        [4, 6],
        [3, 4],
        [1, 2],
    ]


def of_rows(**changed):
    """Statistics of two sequences, one head, three queries."""
    rows = {
        "entropy": torch.tensor([[[0.5, 0.0, 0.7]], [[0.1, 0.2, 0.3]]]),
        "score": torch.tensor([[[1.0, 2.0, 4.0]], [[8.0, 16.0, 32.0]]]),
        "row_max": torch.tensor([[[0.9, 1.0, 0.6]], [[0.5, 0.5, 0.5]]]),
        "row_min": torch.tensor([[[0.1, 1.0, 0.2]], [[0.5, 0.5, 0.5]]]),
        "first_mass": torch.tensor([[[0.3, 0.2, 0.1]], [[0.4, 0.4, 0.4]]]),
        "keys": torch.tensor([[[2.0, 1.0, 3.0]], [[2.0, 2.0, 2.0]]]),
        "outcomes": torch.tensor([[[2.0, 1.0, 3.0]], [[2.0, 2.0, 2.0]]]),
        "row_similarity": torch.tensor([[-0.25], [float("nan")]]).double(),
    }
    return {name: x.double() for name, x in (rows | changed).items()}


def test_sums_of_rows_count_real_and_sound_ones_alone():
    """A row that is padding is no row at all, whatever it holds; one of one outcome has no normalised entropy."""
    rows = of_rows()
    real = torch.tensor([[[True, True, True]], [[True, True, False]]])
    sound = groups.sum_rows(rows, real)
    assert sound["rows"].flatten().tolist() == [3, 2]
    assert sound["entropy"].flatten().tolist() == pytest.approx([1.2, 0.3])
    assert sound["nonfinite"].tolist() == [0, 0]
    rows["entropy"][1, 0, 2] = float("nan")
    rows["score"][1, 0, 0] = float("inf")
    found = groups.sum_rows(rows, real)
    expected = {
        "entropy": [1.2, 0.2],
        "score": [7, 16],
        "row_max": [2.5, 0.5],
        "row_min": [1.3, 0.5],
        "first_mass": [0.6, 0.4],
        "pairs": [6, 2],
        "rows": [3, 1],
        "normalised_rows": [2, 1],
        "entropy_normalised": [
            0.5 / np.log(2) + 0.7 / np.log(3),
            0.2 / np.log(2),
        ],
        "row_similarity": [-0.25, 0],
        "row_sequences": [1, 0],
    }
    for name, values in expected.items():
        assert found[name].flatten().tolist() == pytest.approx(values), name
    assert found["nonfinite"].tolist() == [0, 1]
    assert found.keys() == {*expected, "nonfinite"}


def test_a_sink_is_an_outcome_and_a_histogram_is_passed_on():
    histogram = torch.ones(2, 1, 4)
    rows = of_rows(score_histogram=histogram)
    rows["row_median"] = rows["row_max"] / 2
    rows["outcomes"] = rows["keys"] + 1
    found = groups.sum_rows(rows, torch.ones(2, 1, 3, dtype=torch.bool))
    assert found["normalised_rows"].flatten().tolist() == [3, 3]
    assert found["entropy_normalised"][0].item() == pytest.approx(
        0.5 / np.log(3) + 0.7 / np.log(4)
    )
    assert found["row_median"].flatten().tolist() == pytest.approx([1.25, 0.75])
    assert torch.equal(found["score_histogram"], histogram.double())


# ---- largest values


def test_largest_values_are_kept_by_site_and_term_and_come_back():
    def where(*units):
        return torch.tensor([[unit, unit + 1, unit + 2, unit + 3] for unit in units])

    kept = extremes.Extremes()
    kept.offer("e.1", "logit", torch.tensor([1.0, float("nan")]), where(5, 6))
    kept.offer("e.10", "logit", torch.tensor([2.0]), where(7))
    kept.offer("e.1", "size", torch.tensor([3.0]), where(8))
    assert kept.at("e.1").keys() == {"logit", "size"}
    assert kept.without(["e.1"]).terms.keys() == {("e.10", "logit")}
    assert kept.without(["logit"]).terms.keys() == kept.terms.keys()
    values, places = kept.at("e.1")["logit"]
    assert values.tolist() == [1, -np.inf]
    assert places.tolist() == [[5, 6, 7, 8], [*extremes.NOWHERE]]
    kept.offer("e.1", "none", torch.tensor([float("-inf")]), where(9))
    assert kept.at("e.1")["none"][1].tolist() == [[*extremes.NOWHERE]]
    del kept.terms["e.1", "none"]
    assert kept.nbytes == 4 * 8 + 4 * 4 * 8
    named = kept.tensors("largest ") | {"other e.9|logit|value": torch.ones(1)}
    back = extremes.Extremes()
    back.restore(named, "largest ")
    assert back.terms.keys() == kept.terms.keys()
    for key, (value, place) in kept.terms.items():
        assert torch.equal(back.terms[key][0], value)
        assert torch.equal(back.terms[key][1], place)
    other = extremes.Extremes()
    other.offer("e.1", "logit", torch.tensor([0.5, -9.0]), where(1, 2))
    for merged in (kept.merge(other), other.merge(kept)):
        assert merged.at("e.1")["logit"][0].tolist() == [1, -9]
        assert merged.at("e.1")["logit"][1][:, 0].tolist() == [5, 2]
        assert merged.terms.keys() == kept.terms.keys()
    with pytest.raises(MeasureError) as raised:
        kept.offer("e.10", "logit", torch.zeros(3), where(1, 2, 3))
    assert raised.value.expected == (
        "logit of shape (1,) at e.10, as in the batches before"
    )
    assert raised.value.got == "(3,)"


def test_the_first_of_equal_values_is_that_of_the_lowest_unit_and_number():
    """Tokens come in any order; a column of NaN, and ties within one unit, among them."""
    nan = float("nan")
    x = torch.tensor([[[5.0, 1.0, nan], [5.0, 2.0, nan]], [[5.0, 2.0, nan], [1, 2, 3]]])
    places = torch.tensor(
        [[[7, 9, 0, 1], [7, 4, 8, 2]], [[7, 5, 3, 3], [2, 6, 1, 4]]],
    )
    largest, found = extremes.find_largest_over_tokens(x, places)
    assert largest[:2].tolist() == [5, 2] and largest[2].isnan()
    assert found[0].tolist() == [7, 4, 8, 2] and found[1].tolist() == [2, 6, 1, 4]
    one = torch.ones(1)
    for other, wins in (
        ([6, 0], False),
        ([5, 3], False),
        ([5, 2], True),
        ([4, 9], True),
    ):
        _, place = extremes.take_larger(
            (one, torch.tensor([[5, 3, 0, 0]])), (one, torch.tensor([[*other, 0, 0]]))
        )
        assert place[0, :2].tolist() == (other if wins else [5, 3])
    in_order = torch.tensor(
        [[[2, 0, 0, 1], [2, 1, 8, 2]], [[3, 0, 3, 3], [3, 1, 1, 4]]]
    )
    _, found = extremes.find_largest_over_tokens(x, in_order)
    assert found[:2, 3].tolist() == [1, 2]
    for rows, sorted_already in (
        ([[1, 0], [1, 0], [1, 2], [4, 0]], True),
        ([[1, 2], [1, 1]], False),
        ([[2, 0], [1, 1]], False),
    ):
        tokens = torch.tensor([[*row, 0, 0] for row in rows])
        assert extremes._are_in_order(tokens) is sorted_already


# ---- second moments


def moments_of(rows):
    unit = rows / rows.norm(dim=1, keepdim=True)
    return {
        "moment": rows.T @ rows,
        "unit_moment": unit.T @ unit,
        "moment_vector": rows.sum(0),
        "moment_n": torch.tensor(float(len(rows)), dtype=torch.float64),
    }


@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize("single", [False, True])
def test_second_moments_of_two_sites_over_three_batches(monkeypatch, drawn, single):
    """Groups differ from batch to batch, and sites share what was drawn; in float64, and in float32 less a mean."""
    if single:
        monkeypatch.setattr(moments, "NARROW", 0)
        monkeypatch.setattr(moments, "FEW", 0)
    draw = torch.Generator().manual_seed(5)
    sums = groups.Sums(4)
    own = moments.Moments(sums, 3, share=0.5 if drawn else 1.0)
    kept: dict[tuple[str, int], list[torch.Tensor]] = {}
    for number in range(3):
        group = torch.tensor([[3, 1, 2, 0], [1, 1, 0, 2], [2, 0, 3, 3]][number])
        weight = torch.rand(4, 5, generator=draw) < 0.7
        chosen = torch.rand(4, 5, generator=draw) < 0.6 if drawn else None
        used = weight if chosen is None else weight & chosen
        own.begin(group)
        for site, centre in (("a", 2.0), ("b", -1.0)):
            x = torch.randn(4, 5, 3, generator=draw) + centre
            inverse = 1 / x.norm(dim=-1)
            sums.add(site, {"n": weight.sum(1)[:, None, None].double()}, group)
            own.add(site, x, weight, inverse, chosen)
            for s in range(4):
                rows = kept.setdefault((site, int(group[s]) % 3), [])
                rows.append(x[s][used[s]].double())
        if number == 1:
            own.flush()
    own.flush()
    own.flush()
    assert bool(own.pending) is single and own.groups == 3
    for (site, g), parts in kept.items():
        for term, expected in moments_of(torch.cat(parts)).items():
            torch.testing.assert_close(
                sums.terms[site, term][g, 0],
                expected,
                rtol=2e-6,
                atol=2e-6,
                msg=f"{site} {g} {term}",
            )


def test_two_stacks_of_a_batch_draw_their_own_vectors():
    sums = groups.Sums(2)
    own = moments.Moments(sums, 2)
    own.begin(torch.tensor([0, 1]))
    x = torch.arange(1.0, 9.0).view(2, 2, 2).double()
    weight = torch.tensor([[True, True], [True, False]])
    masks = {
        "a": torch.tensor([[True, False], [False, True]]),
        "b": torch.tensor([[False, True], [True, True]]),
    }
    for site, drawn in masks.items():
        sums.buffer(site, "n", (2, 1, 1)).add_(4)
        own.add(site, x, weight, 1 / x.norm(dim=-1), drawn)
    assert sums.terms["a", "moment_vector"].tolist() == [[[1, 2]], [[0, 0]]]
    assert sums.terms["b", "moment_vector"].tolist() == [[[3, 4]], [[5, 6]]]
    assert sums.terms["b", "moment_n"].tolist() == [[1], [1]]
    assert sums.terms["a", "moment"][0, 0].tolist() == [[1, 2], [2, 4]]
    torch.testing.assert_close(
        sums.terms["b", "unit_moment"][1, 0],
        torch.tensor([[25.0, 30.0], [30.0, 36.0]]).double() / 61,
    )


def test_narrow_sites_and_those_of_few_vectors_are_summed_in_float64():
    """By the vectors of all real tokens times the share that is added, and by the width."""
    sums = groups.Sums(2)

    def needs(dim, count, share=1.0, other=0):
        own = moments.Moments(sums, share=share)
        sums.terms["s", "n"] = torch.tensor(
            [[[count], [other]], [[0], [other]]]
        ).double()
        x = torch.ones(1, 1, dim)
        return own._needs_float64("s", x, torch.ones(1, 1))

    assert needs(128, 10**6) and not needs(129, 10**6)
    assert needs(200, 800) and not needs(200, 801)
    assert needs(200, 1600, share=0.5) and not needs(200, 1602, share=0.5)
    assert needs(200, 800, other=10**6)
    own = moments.Moments(sums)
    sums.terms["s", "n"] = torch.full((2, 1, 1), 10.0**6).double()
    x, inverse = torch.ones(1, 1, 200), torch.ones(1, 1)
    types = [
        (x, inverse, torch.float32),
        (x.half(), inverse, torch.float32),
        (x.double(), inverse, torch.float64),
        (x, inverse.double(), torch.float64),
    ]
    for vectors, inverses, dtype in types:
        assert own._choose_dtype("s", vectors, inverses) == dtype


def test_the_number_of_groups_of_moments_is_the_smallest_of_any_site():
    sums = groups.Sums(8)
    own = moments.Moments(sums)
    assert own.groups is None
    sums.buffer("a", "head_moment", (2, 1, 3, 3))
    assert own.groups is None
    sums.buffer("a", "moment", (8, 1, 3, 3))
    sums.buffer("b", "moment", (4, 1, 3, 3))
    assert own.groups == 4
    assert moments._compute_mean(torch.ones(4, 2) * 3, torch.tensor(2)).tolist() == [
        6,
        6,
    ]
    assert moments._compute_mean(torch.zeros(4, 2), torch.tensor(0)).tolist() == [0, 0]


# ---- samples


def test_a_sample_keeps_every_site_and_type_and_comes_back_by_its_prefix():
    def sampled(seed=3, units=(4, 7), starts=(0, 20)):
        kept = reservoir.Reservoir(3, seed)
        start = torch.tensor(starts)
        real = torch.tensor([[True, False, True], [True, True, False]])
        kept.begin(torch.tensor(units), start, real)
        index = start[:, None] + torch.arange(3)
        whole = torch.stack([torch.tensor(units)[:, None].expand(2, 3), index], -1)
        kept.add("a", whole.half())
        kept.add("b", whole.double().unsqueeze(2).repeat(1, 1, 2, 1) * 2)
        kept.add("c", -whole.double())
        kept.end()
        kept.add("a", whole.half() + 100)
        kept.add("c", whole.double() + 100)
        kept.end()
        return kept

    kept = sampled()
    tokens = [(4, 0), (4, 2), (7, 20), (7, 21)]
    ranked = sorted(
        tokens,
        key=lambda token: int(
            reservoir.hash_tokens(3, torch.tensor(token[0]), torch.tensor(token[1]))
        ),
    )[:3]
    assert [tuple(x) for x in kept.vectors["a"].int().tolist()] == ranked
    assert kept.unit.tolist() == [unit for unit, _ in ranked]
    assert kept.vectors["a"].dtype == torch.float32
    assert kept.vectors["b"].dtype == torch.float64
    assert kept.vectors["b"].shape == (3, 2, 2)
    assert torch.equal(kept.vectors["b"][:, 1], 2 * kept.vectors["a"].double())
    back = reservoir.Reservoir(3, 3)
    other = sampled(units=(5, 6)).tensors("decoder ")
    back.restore(kept.tensors("encoder ") | other, "encoder ")
    assert torch.equal(kept.vectors["c"], -kept.vectors["a"].double())
    assert back.vectors.keys() == {"a", "b", "c"}
    for name in ("a", "b", "c"):
        assert torch.equal(back.vectors[name], kept.vectors[name])
    assert torch.equal(back.hash, kept.hash) and torch.equal(back.unit, kept.unit)
    merged = kept.merge(sampled(units=(5, 6)))
    assert (merged.size, merged.seed, len(merged.hash)) == (3, 3, 3)
    assert not torch.equal(sampled(4).hash, kept.hash)


def test_a_sample_that_is_full_takes_only_smaller_hashes_and_one_that_is_not_takes_all():
    real = torch.ones(1, 4, dtype=torch.bool)
    hashes: list[int] = []
    for size in (6, 20):
        check_sample(reservoir.Reservoir(size, 0), real, hashes)
        hashes.clear()


def check_sample(kept, real, hashes):
    """Add batch after batch, and look at the sample in between; unit 0, which has the largest hash, comes last."""
    for unit in range(3, -1, -1):
        kept.begin(torch.tensor([unit]), torch.tensor([0]), real)
        kept.add("s", torch.full((1, 4, 1), float(unit)))
        kept.end()
        of_unit = reservoir.hash_tokens(0, torch.tensor(unit), torch.arange(4))
        hashes += of_unit.tolist()
        assert kept.hash.tolist() == sorted(hashes)[: kept.size]
        assert kept.vectors["s"][:, 0].long().tolist() == kept.unit.tolist()


def test_hashes_of_tokens_are_two_rounds_of_splitmix64():
    """In Python's own whole numbers; the sign bit is cut off."""
    whole, golden = (1 << 64) - 1, 0x9E3779B97F4A7C15

    def mix(x):
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & whole
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB & whole
        return x ^ (x >> 31)

    for seed, unit, index in ((0, 0, 0), (3, 0, 5), (7, 11, 0), (1, 2**40, 2**33)):
        inner = mix(unit * golden + seed & whole)
        exact = mix(inner + (index + 1) * golden & whole) & whole >> 1
        found = reservoir.hash_tokens(seed, torch.tensor(unit), torch.tensor(index))
        assert int(found) == exact


def test_a_share_of_tokens_is_that_of_the_smallest_hashes():
    unit, index = torch.arange(50)[:, None], torch.arange(40)
    hashes = reservoir.hash_tokens(7, unit, index)
    assert hashes.min() >= 0
    for share in (0.0, 0.2, 0.9, 1.0):
        drawn = reservoir.draw_tokens(share, 7, unit, index)
        limit = share * (2**63 - 1)
        assert drawn.tolist() == (hashes.double() < limit).tolist()
    few, more = (reservoir.draw_tokens(x, 7, unit, index) for x in (0.2, 0.5))
    assert not bool((few & ~more).any())
    assert not torch.equal(few, reservoir.draw_tokens(0.2, 8, unit, index))


# ---- intervals


def test_the_level_of_an_interval_reaches_every_kind():
    """Student's t of 2 freedoms at 90 % is 2.919986; a normal variable's quantile is 1.644854."""
    free = jackknife.jackknife_interval([2.0, 1.0, 2.0, 3.0], 0.9)
    assert free.high == pytest.approx(2 + 2.919986 * (2 / 3 * 2) ** 0.5)
    leaning = jackknife.jackknife_interval([2.0, 1.0, 2.0, 6.0], 0.9)
    half = 2.919986 * (2 / 3 * 14) ** 0.5  # around the mean of the replicates, 3
    assert leaning.low == pytest.approx(2 - half)
    seeds = jackknife.estimate_over_seeds([1.0, 2.0, 3.0], 0.9)
    assert seeds.low == pytest.approx(2 - 2.919986 / 3**0.5)
    two = jackknife.estimate_over_seeds([1.0, 3.0])
    assert two.high == pytest.approx(2 + 12.706205)
    bounded = jackknife.estimate_over_seeds([[1.0], [2.0], [3.0]], bounds=(0.0, np.inf))
    assert bounded.low.tolist() == [0.0]
    low, high = jackknife.wilson_interval(0.0, 10, 0.9)
    assert low == 0 and high == pytest.approx(1.644854**2 / (10 + 1.644854**2))
    share = jackknife.jackknife_interval([0.0] * 4, 0.9, counted=10, bounds=(0.0, 1.0))
    assert share.high == pytest.approx(high)
    half = jackknife.jackknife_interval([0.0, 0, 0, 1], counted=10)
    assert half.high > 1, "replicates that do not agree have no interval of a share"


def test_a_mean_leaves_each_of_its_groups_out_and_keeps_to_its_bounds():
    """Unit i is in group i mod 3: replicates of five values, by hand."""
    x = [1.0, 2.0, 6.0, 3.0, 8.0]
    expected = jackknife.jackknife_interval([4.0, 16 / 3, 10 / 3, 14 / 4])
    found = jackknife.estimate_mean(x, groups=3)
    assert found.value == 4
    assert found.low == pytest.approx(float(expected.low))
    assert found.high == pytest.approx(float(expected.high))
    assert jackknife.estimate_mean(x, groups=3, bounds=(0.0, np.inf)).low == 0
    assert jackknife.estimate_mean(x, groups=3, bounds=(-np.inf, 9.0)).high == 9
    reach = float(jackknife.wilson_interval(0.0, 4)[1])
    for value in (-1.0, 0.0, 1.0):
        found = jackknife.estimate_mean([value] * 4, bounds=(-1.0, 1.0))
        assert found.low == pytest.approx(max(-1, value - reach))
        assert found.high == pytest.approx(min(1, value + reach))
    other = jackknife.estimate_mean([0.5] * 4)
    assert (other.low, other.high) == (0.5, 0.5)
    for few in ([1.0], [1.0, 1.0]):
        found = jackknife.estimate_mean(few)
        assert np.isnan(found.low) and np.isnan(found.high)


def test_reasons_for_no_interval_count_their_groups():
    assert [jackknife.explain_no_interval(n) for n in (0, 1, 2, 3)] == [
        "no intervals: 0 groups of units, 3 needed",
        "no intervals: 1 group of units, 3 needed",
        "no intervals: 2 groups of units, 3 needed",
        None,
    ]


def test_an_interval_is_cut_at_either_bound_and_lies_around_its_value():
    value, error = np.array([0.5, 0.0, 1.0, 0.5]), np.array([1.0, 0.1, 0.1, 0.0])
    for bounds in ((-np.inf, 0.8), (0.2, np.inf)):
        found = jackknife._put_ends_inside_bounds(value, error, 2.0, bounds)
        low = np.maximum(value - 2 * error, bounds[0])
        high = np.minimum(value + 2 * error, bounds[1])
        assert found.low.tolist() == np.minimum(low, value).tolist()
        assert found.high.tolist() == np.maximum(high, value).tolist()
    found = jackknife._put_ends_inside_bounds(value, error, 2.0, (0.0, 1.0))
    assert bool(((found.low >= 0) & (found.high <= 1)).all())
    assert (found.low[3], found.high[3]) == (0.5, 0.5)
    # An error of 1 puts both edges at half the width: z ± 2 · (2 + 2), at most ± 500.
    assert found.low[0] == pytest.approx(1 / (1 + np.exp(8)))
    # At the bound, the slope is that of half the error from it.
    step = 2 * (0.1 / 0.05 + 0.1 / 0.95)
    assert found.high[1] == pytest.approx(1 - 0.95 / (0.95 + 0.05 * np.exp(step)))


def test_adjusted_p_values_never_fall_and_never_pass_one():
    given = [0.04, np.nan, 0.03, 0.6, 0.9, np.nan, 0.03]
    np.testing.assert_allclose(
        jackknife.holm(given), [0.15, np.nan, 0.15, 1.0, 1.0, np.nan, 0.15]
    )
    np.testing.assert_allclose(jackknife.holm([0.01, 0.011]), [0.02, 0.02])
    assert jackknife.holm([]).tolist() == []


def test_one_choice_of_vectors_serves_sites_and_batches_of_other_groups(monkeypatch):
    """Narrow sites have two groups and wide ones have one; the next batch has other groups."""
    monkeypatch.setattr(moments, "WIDE", 2)
    sums = groups.Sums(2)
    own = moments.Moments(sums)
    drawn = torch.tensor([[True, False], [True, True]])
    weight = torch.ones(2, 2, dtype=torch.bool)
    x = torch.arange(1.0, 5.0).view(2, 2, 1).double().repeat(1, 1, 3)
    for group in ([0, 1], [1, 1]):
        own.begin(torch.tensor(group))
        for site, width in (("narrow", 2), ("wide", 3)):
            sums.buffer(site, "n", (2, 1, 1)).add_(2)
            vectors = x[..., :width]
            own.add(site, vectors, weight, 1 / vectors.norm(dim=-1), drawn)
    found = {
        site: sums.terms[site, "moment_vector"][:, 0, 0].tolist()
        for site in ("narrow", "wide")
    }
    assert found == {"narrow": [1, 7 + 8], "wide": [16]}
    assert sums.terms["narrow", "moment_n"].flatten().tolist() == [1, 5]


def test_pending_products_come_back_by_their_prefix_alone():
    first, second = (moments.Moments(groups.Sums(2)) for _ in range(2))
    first.pending = {
        ("a", "moment", 1): torch.ones(2, 2),
        ("b", "shift", 0): torch.ones(2),
    }
    second.pending = {("c", "moment", 0): torch.zeros(2, 2)}
    state = first.tensors("one ") | second.tensors("two ")
    back = moments.Moments(groups.Sums(2))
    back.restore(state, "one ")
    assert back.pending.keys() == first.pending.keys()
    assert back.pending["a", "moment", 1] is first.pending["a", "moment", 1]


def test_moments_of_heads_leave_out_what_has_no_weight():
    """Whatever lies there; each group and head has its own product and count."""
    sums = groups.Sums(3)
    x = torch.tensor([[[[1.0, 2.0], [float("nan"), 0.0]], [[3.0, 0.0], [0.0, 5.0]]]])
    weight = torch.tensor([[[1, 0], [1, 1]]])
    moments.add_head_moments(sums, "s", x, weight, torch.tensor([1]), 2)
    assert sums.terms["s", "head_moment_n"].tolist() == [[0, 0], [1, 2]]
    assert sums.terms["s", "head_moment"][1].tolist() == [
        [[1, 2], [2, 4]],
        [[9, 0], [0, 25]],
    ]


# ---- kernels that prove themselves


def test_a_difference_is_a_share_of_the_largest_number():
    t = torch.tensor
    difference = on_chip.compute_difference
    assert difference(t([10.0, -30.0]), t([10.0, -40.0])) == 0.25
    assert difference(t([1.0, 9.0]), t([2.0, 9.0]), t([1.0, 2.0])) == pytest.approx(
        1 / 9
    )
    assert difference(t([1.0, 9.0]), t([2.0, 9.0]), t([0.0, 2.0])) == 0
    nan = float("nan")
    assert difference(t([1.0, nan]), t([1.0, nan])) == 0
    for found, expected in (([1.0, 2.0], [1.0, nan]), ([1.0, nan], [1.0, 2.0])):
        assert difference(t(found), t(expected)) == float("inf")


def test_kernels_are_used_for_their_own_form_once_they_were_right(monkeypatch):
    """The first call gives the plain numbers; a reason names each quantity by its own difference."""
    monkeypatch.setattr(on_chip, "CHECKED", {})
    plain = {"n": torch.tensor([2.0, 0.0]), "x": torch.tensor([5.0, 7.0])}
    near = {"n": plain["n"], "x": plain["x"] * (1 + 1e-6)}
    wrong = {"n": plain["n"] * 1.5, "x": plain["x"] * 1.01}
    lost = {"n": plain["n"], "x": torch.tensor([float("nan"), 7.0])}

    def compute(what, form, kernel):
        return on_chip.compute_checked(form, lambda: kernel, lambda: plain, what=what)

    assert compute("a", (1,), near) is plain and compute("a", (1,), near) is near
    assert compute("b", (1,), near) is plain, "another kernel of the same form"
    assert compute("a", (2,), near) is plain
    text = (
        "c are computed by plain operations, not by kernels of Triton, which is slower: "
        "they differ from plain operations in n by 5.0e-01, x by 1.0e-02 of the largest value"
    )
    with pytest.warns(RuntimeWarning) as warned:
        assert compute("c", (1,), wrong) is plain
    assert [str(each.message) for each in warned] == [text]
    assert compute("c", (1,), wrong) is plain
    with pytest.warns(RuntimeWarning, match="in x by inf of the largest value"):
        assert compute("d", (1,), lost) is plain

    def fail():
        raise ValueError("first line\nsecond line")

    with pytest.warns(RuntimeWarning) as warned:
        assert on_chip.compute_checked((1,), fail, lambda: plain, what="e") is plain
    assert str(warned[0].message).endswith("slower: ValueError: first line")
    assert on_chip.compute_checked((1,), fail, lambda: plain, what="e") is plain


def test_kernels_run_for_their_types_on_a_gpu(monkeypatch):
    monkeypatch.setattr(on_chip, "load_kernels", lambda module: module or None)
    monkeypatch.delenv(on_chip.INTERPRETED, raising=False)

    def has(dtype, kind, module="m"):
        x = SimpleNamespace(dtype=dtype, device=SimpleNamespace(type=kind))
        return on_chip.has_kernels(x, module)

    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        assert has(dtype, "cuda") and not has(dtype, "cpu") and not has(dtype, "mps")
    assert not has(torch.float64, "cuda") and not has(torch.float32, "cuda", "")
    monkeypatch.setenv(on_chip.INTERPRETED, "1")
    assert has(torch.float16, "cpu") and not has(torch.float64, "cpu")
    assert not has(torch.float16, "cuda")


# ---- threads


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    threads._get_pool.cache_clear()
    yield
    torch.set_num_threads(before)
    threads._get_pool.cache_clear()


@pytest.mark.usefixtures("three_threads")
def test_parts_of_an_accelerator_run_one_after_another_in_the_calling_thread():
    seen: list[tuple[int, int]] = []
    parts = [lambda n=n: seen.append((n, threading.get_ident())) for n in range(5)]
    threads.run_in_parallel(parts, torch.device("meta"))
    assert seen == [(n, threading.get_ident()) for n in range(5)]
    seen.clear()
    threads.run_in_parallel(parts)
    assert sorted(n for n, _ in seen) == [0, 1, 2, 3, 4]
    assert threading.get_ident() not in {thread for _, thread in seen}


@pytest.mark.usefixtures("three_threads")
def test_an_error_of_a_part_is_raised_and_parts_have_the_modes_of_their_caller():
    modes: list[tuple[bool, bool]] = []

    def note():
        modes.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled()))

    for context in (torch.no_grad, torch.enable_grad, torch.inference_mode):
        with context():
            threads.run_in_parallel([note] * 4)
    assert modes == [(False, False)] * 4 + [(True, False)] * 4 + [(False, True)] * 4

    begun: list[int] = []

    def fail():
        begun.append(1)
        raise ValueError("why")

    with pytest.raises(ValueError, match="why"):
        threads.run_in_parallel([fail] * 1000)
    assert 1 <= len(begun) <= 3, "one in each thread"


@pytest.mark.usefixtures("three_threads")
def test_threads_to_come_have_the_number_of_the_process():
    found: list[int] = []
    inside: list[int] = []
    parts = [lambda: inside.append(torch.get_num_threads())] * 6
    threads.run_in_parallel(parts)
    later = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    later.start()
    later.join()
    assert torch.get_num_threads() == 3
    assert inside == [1] * 6 and found == [3]
