"""Small decisions of sums, batches, options and errors, each on a few numbers: which end, which of two, how many."""

import numpy as np
import pytest
import torch

from anisoscope import axes, doctor, errors, options, progress
from anisoscope.axes import Site
from anisoscope.batch import Batch, Stream
from anisoscope.errors import MeasureError, UsageError
from anisoscope.sums import classes, extremes, groups, jackknife, moments, reservoir


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
