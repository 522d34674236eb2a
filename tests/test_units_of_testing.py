"""What each law for metrics compares, on which data and with which words: each check alone, with values made up."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from anisoscope.metrics import (
    INVARIANCES,
    Metric,
    Vectors,
    cka,
    class_direction,
    drift,
    group_cosine,
    massive,
    mean_cosine,
    partition,
    procrustes,
    query_key,
    spectrum,
)
from anisoscope.reads.base import Batching, Reading
from anisoscope.testing import LAWS, laws as module, laws_of

FOREIGN = replace(drift.METRIC, name="foreign", panel="")
Broken = module._Broken


def drawn(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape)


def check_of(name: str) -> Any:
    """The check of the law whose name begins so."""
    (law,) = [law for law in LAWS if law.name.startswith(name)]
    return law.check


def broken_by(check: Any, metric: Metric) -> str:
    """What a check says of a metric; empty if its law holds."""
    try:
        with module.temporarily_register(metric):
            check(metric)
    except Broken as broken:
        return str(broken)
    return ""


# ---- two ways of computing -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("got", "expected", "tolerance", "words"),
    [
        ({"": 1.0}, {"": 1.0}, 0, ""),
        ({"a": np.nan}, {"a": np.nan}, 0, ""),
        ({"a": 0.0}, {"a": 0.05}, 0.1, ""),
        ({"a": 100.0}, {"a": 109.0}, 0.1, ""),
        ({"": 1.5}, {"": 2.25}, 0.1, "its value is 1.5 one way and 2.25 the other"),
        ({"a": np.nan}, {"a": 1.0}, 0.1, "its value 'a' is nan one way and 1 the other"),
        (
            {"b": np.array([[1.0, 2.0], [3.0, 4.0]])},
            {"b": np.array([[1.0, 2.0], [5.0, 6.0]])}, 0.1,
            "its value 'b' is 3 one way and 5 the other",
        ),
        ({"b": 1.0, "a": 1.0}, {"a": 1.0}, 0, "it gives ['a', 'b'] one way and ['a'] the other"),
        ({}, {"a": 1.0}, 0, "it gives [] one way and ['a'] the other"),
        (
            {"a": np.zeros((1, 2))}, {"a": np.zeros(2)}, 0,
            "its value 'a' has shape (1, 2) one way and (2,) the other",
        ),
    ],
)  # fmt: skip
def test_values_of_two_ways_are_compared_one_by_one(
    got: Any, expected: Any, tolerance: float, words: str
) -> None:
    how = "one way", "the other"
    if not words:
        module._require_equal(got, expected, how, tolerance)
        return
    with pytest.raises(Broken) as broken:
        module._require_equal(got, expected, how, tolerance)
    assert str(broken.value) == words


def test_a_value_is_named_as_the_reference_names_it() -> None:
    """Over all groups, of the first policy and head; components by the metric's names or by those of the classes."""
    reading = Reading(None, {}, np.zeros(0), ("x", "y", "z"))
    axes = np.arange(3 * 2 * 4.0).reshape(3, 2, 4)
    parts = np.arange(3 * 2 * 4 * 3.0).reshape(3, 2, 4, 3) + 100
    metric = replace(
        FOREIGN,
        components={"": tuple, "part": ("a", "b", "c")},
        compute=lambda _: {},
    )
    found = module.name_values(
        metric, reading, {"whole": axes, "part": parts, "": parts * 2, "free": parts}
    )
    assert found == {
        "whole": 0, "part a": 100, "part b": 101, "part c": 102,
        "x": 200, "y": 202, "z": 204, "free 0": 100, "free 1": 101, "free 2": 102,
    }  # fmt: skip


def test_functions_are_applied_to_both_sides_of_a_pair() -> None:
    pair, single = (np.ones((2, 3)), np.ones((4, 3)) * 5), np.ones((1, 3)) * 7
    changed = module.change_sides([pair, single], (lambda x: x + 1, lambda x: x * 2))
    assert [float(x[0, 0]) for x in (*changed[0], changed[1])] == [2, 10, 8]
    both = module.change_units([pair], lambda x: x - 1)
    assert [float(x[0, 0]) for x in both[0]] == [0, 4]
    assert module.list_sides(pair) is pair and len(module.list_sides(single)) == 1
    assert [module.count_vectors(unit) for unit in (pair, single)] == [2, 1]


@pytest.mark.parametrize(("units", "groups"), [(3, 32), (40, 40)])
def test_every_unit_of_test_data_is_a_group_and_every_vector_is_sampled(
    units: int, groups: int
) -> None:
    fed: list[Any] = []
    for labelled in (False, True):
        reads = SimpleNamespace(
            labelled=labelled, feed=lambda *given: fed.append(given)
        )
        metric: Any = SimpleNamespace(name="drift", reads=reads)
        data = [np.ones((1, 2))] * units
        done = module.run_test_pass(metric, data, batch=3, padding=2, filler=0.5)
        assert fed[-1] == (metric, data, Batching(3, 2, 0.5), done)
        of = done.settings
        assert (of.groups, of.spectrum_groups, of.tokens) == (groups, groups, ("all",))
        assert of.sample == 1 << 20 and of.metrics == ("drift",)
        names = tuple(str(n) for n in range(units)) if labelled else ()
        assert tuple(done.classes) == names


# ---- what a metric says of itself ------------------------------------------------------------------------------------

WORDS = """How long the mean of all vectors is.

Formula    the norm of the mean.
Range      from 0.
Unit       that of the activations.
Undefined  no vector.
Source     ours.
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (WORDS, ""),
        (
            WORDS.replace("Unit  ", "Units "),
            "{} has Formula, Range, Undefined, Source of its points; "
            "expected Formula, Range, Unit, Undefined, Source, in order",
        ),
        (
            WORDS.replace("Unit", "X").replace("Range", "Unit").replace("X", "Range"),
            "{} has Formula, Unit, Range, Undefined, Source of its points; "
            "expected Formula, Range, Unit, Undefined, Source, in order",
        ),
        ("", "{} has none of its points; expected Formula, Range, Unit, Undefined, Source, in order"),
        (WORDS.replace("How long the mean of all vectors is.", "How long."),
         "{} does not begin with a sentence that says what is measured"),
    ],
)  # fmt: skip
def test_a_docstring_has_five_points_in_order_and_a_sentence(
    text: str, words: str
) -> None:
    def compute(totals: Any) -> Any:
        return drift.compute(totals)

    compute.__module__, compute.__doc__ = "__main__", text
    check = check_of("it says what it is")
    found = broken_by(check, replace(FOREIGN, compute=compute))
    assert found == words.format("the docstring of its function")
    assert broken_by(check, drift.METRIC) == ""


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (
            {"bounds": {"": (0.0, 9.0), "part": (0.0, 1.0)}},
            "`bounds` names 'part', which it does not give (['', 'share'])",
        ),
        (
            {"counted": frozenset({"share", "b", "a"})},
            "`counted` names 'a', 'b', which it does not give (['', 'share'])",
        ),
        (
            {"extremes": {"part"}},
            "`extremes` names 'part', which it does not give (['', 'share'])",
        ),
        ({"bounds": {"row_median": (0.0, 1.0)}}, ""),
        (
            {"reference": None},
            "it has no reference, so that nothing says what its values should be",
        ),
        (
            {"panel": "hidden"},
            "it declares the panel 'hidden'; what another package adds is measured if it is named",
        ),
    ],
)
def test_a_declaration_names_only_what_is_given(how: Any, words: str) -> None:
    assert (
        broken_by(check_of("it declares what it has"), replace(FOREIGN, **how)) == words
    )
    assert broken_by(check_of("it declares what it has"), drift.METRIC) == ""


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (
            {"compute": lambda t: {"": t["n"].tolist()}},
            "its value is list, no array of float64",
        ),
        (
            {"compute": lambda t: {"": t["n"].astype(int)}},
            "its value is int64, no array of float64",
        ),
        (
            {"compute": lambda t: {"a": t["vector"][..., None]}},
            "its value 'a' has shape (6, 1, 1, 7, 1); expected [replicate, policy, head] or one component axis more",
        ),
        (
            {"compute": lambda t: {"": t["n"][1:]}},
            "its value has 5 replicates; expected 6: all groups, then each left out",
        ),
        (
            {"compute": lambda t: {"a": t["n"][:2]}, "extremes": {"a"}},
            "its value 'a' is declared an extreme and has 2 replicates; expected 1",
        ),
        (
            {"compute": lambda t: {"a": t["n"][:0]}, "extremes": {"a"}},
            "its value 'a' is declared an extreme and has 0 replicates; expected 1",
        ),
        ({"compute": lambda t: {"a": t["n"][:1]}, "extremes": {"a"}}, ""),
        (
            {
                "compute": lambda t: {"a": t["vector"][..., :2]},
                "components": {"a": ("x", "x")},
            },
            "its value 'a' has 2 components, named x, x",
        ),
        (
            {
                "compute": lambda t: {"a": t["vector"][..., :2]},
                "components": {"a": ("x", "y", "z")},
            },
            "its value 'a' has 2 components, named x, y, z",
        ),
        ({"compute": lambda t: {"a": t["vector"]}}, ""),
    ],
)
def test_values_have_the_axes_and_replicates_of_what_is_read(
    how: Any, words: str
) -> None:
    metric = replace(FOREIGN, bounds={}, **how)
    assert broken_by(check_of("its values have the axes"), metric) == words


def test_what_is_computed_of_a_matrix_may_have_one_replicate() -> None:
    require = module._require_replicates
    require(partition.METRIC, "", 1, 6)
    require(partition.METRIC, "", 6, 6)
    for metric, count in ((partition.METRIC, 2), (drift.METRIC, 1), (drift.METRIC, 7)):
        with pytest.raises(Broken, match=f"has {count} replicates; expected 6: all"):
            require(metric, "", count, 6)


# ---- what is compared, on which data ---------------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What `require_reference` was asked for: (units, tolerance, batching)."""
    calls: list[Any] = []

    def require(
        _metric: Any, units: Any, tolerance: float = 0.0, **batching: Any
    ) -> None:
        calls.append((units, tolerance, batching))

    monkeypatch.setattr(module, "require_reference", require)
    return calls


def test_a_definition_is_tried_on_three_draws(asked: Any) -> None:
    check_of("it equals its definition")(drift.METRIC)
    assert len(asked) == 3
    for (units, *_), seed in zip(asked, range(3), strict=True):
        for x, y in zip(units, drift.METRIC.reads.draw(seed), strict=True):
            np.testing.assert_array_equal(x, y)
    assert not np.array_equal(asked[0][0][0], asked[1][0][0])


def test_float32_is_tried_with_and_without_a_drift_and_with_its_own_tolerance(
    asked: Any,
) -> None:
    """√n·ε of 1,000 vectors; of second moments 1/(1 − A) times as much. The data are what float32 can hold."""
    for metric in (drift.METRIC, spectrum.METRIC):
        asked.clear()
        check_of("float32 activations")(metric)
        assert [batching for *_, batching in asked] == [{"dtype": torch.float32}] * 2
        middles = []
        for units, tolerance, _ in asked:
            x = np.concatenate(units)
            assert x.shape == (1000, 48) and len(units) == 3
            np.testing.assert_array_equal(x, x.astype(np.float32))
            middles.append(x.mean())
            plain = 1000**0.5 * 2.0**-23
            u = x / np.linalg.norm(x, axis=1, keepdims=True)
            a = (np.square(u.sum(0)).sum() - 1000) / (1000 * 999)
            factor = 1 / (1 - a) if metric is spectrum.METRIC else 1
            assert tolerance == pytest.approx(plain * factor)
        assert middles[1] - middles[0] == pytest.approx(20, abs=1e-5)


@pytest.mark.parametrize(
    ("before", "after", "declared", "words"),
    [
        (1.0, 1.0 + 1e-10, True, ""),
        (1.0, 1.0 + 1e-6, True, "it is declared invariant to scaling, which changes it by 1e-06"),
        (1e4, 1e4 + 1e-6, True, ""),
        (0.0, -1e-6, True, "it is declared invariant to scaling, which changes it by 1e-06"),
        (1.0, 1.1, False, ""),
        (1.0, 1.0 + 1e-6, False, "scaling changes it by 1e-06 only, and it is not declared invariant to it"),
        (1e4, 1e4 + 1, False, "scaling changes it by 0.0001 only, and it is not declared invariant to it"),
    ],
)  # fmt: skip
def test_a_change_is_relative_to_large_values(
    monkeypatch: pytest.MonkeyPatch, before: float, after: float, declared: bool, words: str,
) -> None:  # fmt: skip
    """Of all values that the reference names the one that changes most decides."""
    answers = iter([{"": before, "still": 3.0, "more": 1.0}, {"": after, "still": 3.0, "more": 9.0}])  # fmt: skip
    monkeypatch.setattr(module, "compute_values", lambda *_: next(answers))
    invariant = frozenset({"scaling"} if declared else {"rotation"})
    metric = replace(
        FOREIGN, invariant=invariant, reference=lambda _: {"still": 0.0, "": 0.0}
    )
    assert broken_by(check_of("it is invariant to scaling"), metric) == words


def test_test_data_are_turned_scaled_shifted_and_reordered() -> None:
    units = [(drawn(n, 4, seed=n), drawn(n, 4, seed=n + 9)) for n in (3, 5)]

    def change(metric: Metric, invariance: str, given: Any = units) -> Any:
        return module._transform_units(metric, given, invariance)

    def scores(pair: Any) -> Any:
        return pair[0] @ pair[1].T

    turned = change(query_key.METRIC, "rotation")
    apart = change(cka.METRIC, "rotation")
    for old, new, other in zip(units, turned, apart, strict=True):
        np.testing.assert_allclose(scores(new), scores(old), atol=1e-12)
        assert not np.allclose(scores(other), scores(old))
        for side in (0, 1):
            for each in (new, other):
                own = old[side] @ old[side].T
                np.testing.assert_allclose(each[side] @ each[side].T, own, atol=1e-12)
                assert not np.allclose(each[side], old[side])
    single = [x for x, _ in units]
    for old, new in zip(single, change(drift.METRIC, "scaling", single), strict=True):
        factors = new / old
        np.testing.assert_allclose(factors, factors[:, :1].repeat(4, 1))
        assert (factors > 0).all() and np.ptp(factors[:, 0]) > 0.1
    for old, new in zip(single, change(drift.METRIC, "translation", single), strict=True):  # fmt: skip
        np.testing.assert_allclose(new - old, [[1, 4 / 3, 5 / 3, 2]] * len(old))
    mixed = change(query_key.METRIC, "order")
    assert [len(pair[0]) for pair in mixed] == [5, 3]
    for old, new in zip(units, mixed[::-1], strict=True):
        places = [int(np.flatnonzero((old[0] == row).all(1))[0]) for row in new[0]]
        assert sorted(places) == list(range(len(old[0])))
        np.testing.assert_array_equal(old[1][places], new[1])
    assert any(
        not np.array_equal(old[0], new[0])
        for old, new in zip(units, mixed[::-1], strict=True)
    )
    for metric in (class_direction.METRIC, group_cosine.METRIC):
        assert [len(x) for x in change(metric, "order", single)] == [3, 5]


@pytest.fixture
def replicated(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What `compute_replicates` was asked for: (units, batching); every answer is alike."""
    calls: list[Any] = []

    def compute(_metric: Any, units: Any, **batching: Any) -> Any:
        calls.append((units, batching))
        return {"": np.zeros(2), "largest_position": np.full(1, len(calls))}

    monkeypatch.setattr(module, "compute_replicates", compute)
    return calls


def test_batches_and_padding_are_tried_in_each_size_and_with_each_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[Any] = []

    def compute(_metric: Any, units: Any, **batching: Any) -> Any:
        tried.append((len(units), batching))
        return {"": np.zeros(2)}

    monkeypatch.setattr(module, "compute_replicates", compute)
    check_of("batches do not matter")(FOREIGN)
    assert tried == [(5, {}), (5, {"batch": 1}), (5, {"batch": 2})]
    tried.clear()
    check_of("padding never counts")(FOREIGN)
    padded = [batching for _, batching in tried if batching]
    assert [p.pop("filler") for p in padded[:2]] == [1e3, pytest.approx(np.nan, nan_ok=True)]  # fmt: skip
    assert padded[2].pop("filler") == np.inf
    assert padded == [{"padding": 3, "batch": 2}] * 3 and len(tried) == 6


def test_vectors_of_zeros_and_nan_are_put_behind_the_second(replicated: Any) -> None:
    """Where the largest is has moved with them, and is not compared; other values are."""
    metric = replace(massive.METRIC, name="foreign", panel="")
    metric = replace(metric, extremes=frozenset({"largest_position", "largest"}))
    check = check_of("zero vectors and NaN never count")
    with pytest.raises(KeyError):
        # the names of all extremes are looked up that end so, and no others
        check(replace(metric, extremes=frozenset({"other_position"})))
    replicated.clear()
    check(metric)
    (spoilt, _), (plain, _) = replicated
    for x, y in zip(plain, spoilt, strict=True):
        at = min(2, len(x))
        np.testing.assert_array_equal(np.delete(y, [at, at + 1], axis=0), x)
        assert not y[at].any() and np.isnan(y[at + 1]).all()


def test_two_halves_are_every_other_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    fed: list[Any] = []
    run = module.run_test_pass

    def record(metric: Any, units: Any, **batching: Any) -> Any:
        fed.append(units)
        return run(metric, units, **batching)

    monkeypatch.setattr(module, "run_test_pass", record)
    check_of("two halves add up")(drift.METRIC)
    sizes = [[len(x) for x in units] for units in fed]
    assert sizes[:2] == [[9, 0, 1, 0, 12], [0, 5, 0, 7, 0]]


# ---- small inputs, groups, bounds ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "sizes", "numbers", "words"),
    [
        ("a", (2, 1), (1.0, np.nan, np.nan), ""),
        ("a", (2, 1), (1.0, 0.5, 1.5), "a: foreign.x has an interval of 2 groups"),
        ("a", (2, 1), (1.0, np.nan, 1.5), "a: foreign.x has an interval of 2 groups"),
        ("a", (1, 1, 1), (1.0, 0.5, 1.5), ""),
        ("b", (4,), (np.inf, np.nan, np.nan), "b: foreign.x is infinite"),
        ("b", (1, 1, 1), (1.0, 0.5, np.inf), "b: foreign.x is infinite"),
        ("nothing", (2, 1), (1.0, np.nan, np.nan), "nothing: it gives a value all the same"),
    ],
)  # fmt: skip
def test_small_inputs_have_numbers_without_intervals_of_two_groups(
    monkeypatch: pytest.MonkeyPatch, case: str, sizes: Any, numbers: Any, words: str
) -> None:
    value, low, high = numbers
    row = {"value": [value], "low": [low], "high": [high], "metric": ["foreign.x"]}
    monkeypatch.setattr(module, "build_columns", lambda *_: [(row, None)])
    found = broken_by(lambda metric: module.require_decided(metric, case, sizes), FOREIGN)  # fmt: skip
    assert found == words


def test_the_smallest_inputs_are_five_and_zero_vectors_are_zero(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(module, "read_test_data", lambda _, units: seen.append(units))
    check_of("the smallest inputs")(FOREIGN)
    assert [[len(x) for x in units] for units in seen] == [[0, 0], [1, 0], [1, 1], [6, 0], [3, 2]]  # fmt: skip
    assert [any(x.any() for x in units) for units in seen] == [False, True, True, True, False]  # fmt: skip


def test_a_warning_of_a_small_input_is_named_with_it() -> None:
    def compute(totals: Any) -> Any:
        return {"": 1 / (totals["n"] - 6)}

    found = broken_by(
        check_of("the smallest inputs"), replace(FOREIGN, compute=compute, bounds={})
    )
    assert found.startswith("one unit: it warns (divide by zero")


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ({"share": (0.0, 1.0)}, ""),
        ({"share": (0.0, 0.2)}, "its value 'share' is 0."),
        ({"share": (0.999999, 2.0)}, "its value 'share' is 0."),
        # a drift of 30 in each of five dimensions
        ({"": (0.0, 60.0)}, "its value is 6"),
        ({"": lambda totals: (0.0, totals["n"].size * 30.0)}, ""),
    ],
)  # fmt: skip
def test_values_leave_their_bounds_on_either_side(bounds: Any, words: str) -> None:
    metric = replace(FOREIGN, bounds=bounds)
    found = broken_by(check_of("values stay inside"), metric)
    assert found.startswith(words) if words else not found
    assert not words or found.endswith(", outside its bounds")


def test_bounds_are_tried_with_few_groups_and_with_more() -> None:
    groups: list[int] = []

    def note(totals: Any) -> Any:
        groups.append(totals.n_groups)
        return -np.inf, np.inf

    assert not broken_by(
        check_of("values stay inside"), replace(FOREIGN, bounds={"share": note})
    )
    assert groups == [3, 4, 9] * 2


def test_an_error_of_a_metric_is_the_cause_of_what_is_reported() -> None:
    error = ValueError("why")

    def compute(_totals: Any) -> Any:
        raise error

    compute.__module__ = FOREIGN.compute.__module__
    with pytest.raises(module.LawBroken, match="it raises ValueError: why") as caught:
        module.check_metric(replace(FOREIGN, compute=compute))
    assert caught.value.__cause__ is error


def test_each_replicate_is_compared_with_its_own_group_left_out() -> None:
    def rolled(totals: Any) -> Any:
        n = totals["n"]
        return {"": n[[0, *range(2, len(n)), 1][: len(n)]]}

    check = check_of("each replicate")
    found = broken_by(check, replace(FOREIGN, compute=rolled, bounds={}))
    assert found == (
        "its value is 29 without group 0, as replicate 1 and 25 of the other groups alone"
    )

    def last(totals: Any) -> Any:
        n = totals["n"].copy()
        n[5:6] += 1
        return {"": n}

    found = broken_by(check, replace(FOREIGN, compute=last, bounds={}))
    assert found.startswith("its value is 23 without group 4, as replicate 5 and 22 ")


def test_a_value_that_is_a_view_of_what_is_changed_is_seen() -> None:
    class Counting:
        """Data whose only array is written into by each call."""

        x = np.zeros(1)

    def compute(data: Any) -> Any:
        data.x += 1
        return {"": data.x}

    class Reads(Vectors):
        def readings(self, *_: Any) -> Any:
            yield Reading(Counting(), {}, np.zeros(1))

    metric = replace(FOREIGN, reads=Reads(), compute=compute)
    assert broken_by(check_of("it changes nothing"), metric) == (
        "its value is 2 the second time and 1 the first time"
    )


def test_alone_a_metric_gets_padded_tensors_with_their_mask(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both arrays of pairs; extremes need no interval, and others must lie in theirs."""
    given: list[Any] = []

    def alone(low: float, high: float) -> Any:
        def measure(metric: Metric, x: Any, mask: Any) -> Any:
            given.append((x, mask))
            assert metric.reference is not None
            values = metric.reference(metric.reads.draw(3))
            return {
                (f"{metric.name}.{key}" if key else metric.name): SimpleNamespace(
                    value=value, low=value + low, high=value + high
                )
                for key, value in values.items()
            }

        return measure

    check = check_of("alone on a tensor")
    for metric in (drift.METRIC, cka.METRIC):
        given.clear()
        monkeypatch.setattr(module, "measure_alone", alone(-1, 1))
        check(metric)
        ((x, mask),) = given
        units = metric.reads.draw(3)
        arrays = x if isinstance(x, tuple) else (x,)
        assert mask.sum(1).tolist() == [module.count_vectors(unit) for unit in units]
        assert len(arrays) == metric.reads.arrays
        for side, array in enumerate(arrays):
            assert bool(array[~mask].isnan().all()) and array.dtype == torch.float64
            for row, unit in enumerate(units):
                own = module.list_sides(unit)[side]
                np.testing.assert_array_equal(array[row][mask[row]].numpy(), own)
    for low, high in ((-2, -1), (1, 2)):
        monkeypatch.setattr(module, "measure_alone", alone(low, high))
        value = drift.METRIC.reference(drift.METRIC.reads.draw(3))[""]  # type: ignore[misc]
        ends = f"[{value + low}, {value + high}]"
        found = broken_by(check, drift.METRIC)
        assert found == f"its value is {value:.6g} with the interval {ends}"
    names = {
        name.split(" ")[0]
        for name in massive.METRIC.reference(massive.METRIC.reads.draw(3))
    }  # type: ignore[misc]
    check(replace(massive.METRIC, extremes=names))
    check(replace(massive.METRIC, extremes=frozenset(names), name="massive"))


# ---- which laws apply ------------------------------------------------------------------------------------------------


def test_laws_apply_to_what_can_keep_them() -> None:
    every = [law.name for law in LAWS]
    of_invariance = [f"it is invariant to {name}, or it is not, as it declares" for name in INVARIANCES]  # fmt: skip
    arrays = [
        "float32 activations keep six digits",
        "zero vectors and NaN never count",
        "alone on a tensor it is the same",
    ]
    halves = ["two halves add up to the whole"]
    no_reference = ["it equals its definition", *of_invariance, *arrays]
    for metric, missing in (
        (drift.METRIC, []),
        (mean_cosine.METRIC, []),
        (massive.METRIC, []),
        (cka.METRIC, []),
        (procrustes.METRIC, []),
        (query_key.METRIC, arrays),
        (group_cosine.METRIC, arrays + halves),
        (class_direction.METRIC, arrays + halves),
        (partition.METRIC, [*arrays, *halves, "each replicate leaves one group out"]),
        (replace(FOREIGN, reference=None), no_reference),
    ):
        names = [law.name for law in laws_of(metric)]
        assert names == [name for name in every if name not in missing], metric.name
    assert len(every) == len(set(every)) == 18
