"""The laws that metrics undergo can fail: each of these mistakes is caught by the law named beside it, in words."""

from dataclasses import dataclass, replace
from itertools import count

import numpy as np
import pytest
import torch

from anisoscope import metrics
from anisoscope.errors import UsageError
from anisoscope.metrics import (
    Classes,
    Metric,
    QueryKey,
    Sample,
    Vectors,
    Weights,
    drift,
    norms,
)
from anisoscope.metrics.base import ratio
from anisoscope.reads.base import Keeper
from anisoscope.registry import list_entries_of, registered
from anisoscope.testing import LAWS, LawBroken, check_metric, laws_of

FOREIGN = replace(drift.METRIC, name="foreign", panel="")
"""A metric of somebody else that keeps every law."""
CALLS = count()


def changed(value, name=""):
    """The drift with one value computed in another way."""
    return lambda totals: drift.compute(totals) | {name: value(totals)}


def length(totals):
    return np.linalg.norm(totals["vector"], axis=-1)


def pair(totals):
    return np.stack([length(totals), totals["n"]], -1)


def doubling(totals):
    totals._terms["norm"] *= 2
    return drift.compute(totals)


def counting(totals):
    return {name: value + next(CALLS) for name, value in drift.compute(totals).items()}


MISTAKES = [
    (
        "it says what it is",
        {"compute": counting},
        "the docstring of test_laws has none of its points",
    ),
    (
        "it declares what it has",
        {"bounds": {"part": (0.0, 1.0)}},
        "`bounds` names 'part', which it does not give",
    ),
    ("it declares what it has", {"reference": None}, "it has no reference"),
    ("it declares what it has", {"panel": "hidden"}, "it declares the panel 'hidden'"),
    (
        "its values have the axes of what it reads",
        {"compute": changed(lambda t: length(t).sum(-1))},
        r"shape \(6, 1\); expected \[replicate, policy, head\]",
    ),
    (
        "its values have the axes of what it reads",
        {"compute": changed(lambda t: length(t)[:1])},
        "has 1 replicates; expected 6: all groups, then each left out",
    ),
    (
        "its values have the axes of what it reads",
        {"compute": changed(lambda t: t["n"].astype(np.float32))},
        "its value is float32, no array of float64",
    ),
    (
        "its values have the axes of what it reads",
        {"compute": changed(pair, "part"), "components": {"part": ("a",)}},
        "its value 'part' has 2 components, named a",
    ),
    (
        "its values have the axes of what it reads",
        {"compute": changed(pair, "part"), "components": {"part": ("a", "a")}},
        "its value 'part' has 2 components, named a, a",
    ),
    (
        "it equals its definition",
        {"compute": changed(lambda t: ratio(length(t), t["n"] - 1))},
        r"its value is \d\.\d+ as computed and \d\.\d+ by its definition",
    ),
    (
        "it equals its definition",
        {"reference": lambda _units: {"size": 1.0}},
        "names 'size', which it does not give",
    ),
    (
        "it equals its definition",
        {"reference": lambda _units: {}},
        "its reference names no value",
    ),
    (
        "float32 activations keep six digits",
        {
            "compute": changed(
                lambda t: ratio(length(t).astype(np.float16).astype(np.float64), t["n"])
            )
        },
        "as computed and",
    ),
    (
        "it is invariant to scaling, or it is not, as it declares",
        {"invariant": drift.METRIC.invariant | {"scaling"}},
        "it is declared invariant to scaling, which changes it by",
    ),
    (
        "it is invariant to rotation, or it is not, as it declares",
        {"invariant": frozenset({"order"})},
        "and it is not declared invariant to it",
    ),
    (
        "it is invariant to translation, or it is not, as it declares",
        {"invariant": drift.METRIC.invariant | {"translation"}},
        "it is declared invariant to translation, which changes it by",
    ),
    (
        # the group that is left out first is that of the unit that came first
        "it is invariant to order, or it is not, as it declares",
        {"compute": changed(lambda t: length(t) / t["n"][1:2])},
        "it is declared invariant to order, which changes it by",
    ),
    (
        "batches do not matter",
        {"compute": counting},
        "in batches of 1 and .* in one batch",
    ),
    (
        "two halves add up to the whole",
        {"compute": counting},
        "of two halves and .* of the whole",
    ),
    (
        "padding never counts",
        {"compute": counting},
        "with three positions of 1000.0 behind each sequence",
    ),
    (
        "zero vectors and NaN never count",
        {"compute": counting},
        "with zero vectors and NaN among others",
    ),
    (
        "the smallest inputs are decided",
        {"compute": changed(lambda t: 1 / (t["n"] - 1))},
        "one vector: it warns .divide by zero",
    ),
    (
        "each replicate leaves one group out",
        {"compute": changed(lambda t: length(t) / t["n"][:1])},
        "without group 0, as replicate 1 and .* of the other groups alone",
    ),
    (
        "values stay inside their bounds",
        {"bounds": {"share": (0.0, 0.1)}},
        "its value 'share' is .* outside its bounds",
    ),
    (
        "it changes nothing that it is given",
        {"compute": doubling},
        "the second time and .* the first time",
    ),
    (
        "alone on a tensor it is the same",
        {"compute": counting},
        "by anisoscope.metric and",
    ),
    (
        "padding never counts",
        {"compute": lambda _totals: 1 / 0},
        "it raises ZeroDivisionError: division by zero",
    ),
]


@pytest.mark.parametrize(
    ("name", "mistake", "words"),
    MISTAKES,
    ids=[f"{i}-{m[0]}" for i, m in enumerate(MISTAKES)],
)
def test_a_mistake_breaks_its_law_and_is_told(name, mistake, words):
    law = next(law for law in LAWS if law.name == name)
    law.hold(FOREIGN)
    with pytest.raises(LawBroken, match=words) as broken:
        law.hold(replace(FOREIGN, **mistake))
    assert str(broken.value).startswith(f"foreign breaks the law “{name}”: ")
    assert str(broken.value).endswith(f". Cure: {law.cure}")


@dataclass(frozen=True)
class MultipliedSums(Keeper):
    """Multiplies padding by 0, which leaves nothing of a number and NaN of NaN."""

    def join(self, other):  # noqa: ARG002
        return self

    def takes(self, site):
        return site.quantity == "hidden"

    def add(self, site, value, done):
        real = done.find_masks(site, value).real.double()
        length = torch.linalg.vector_norm(value, dim=-1) * real
        done.add_sums(
            site.name,
            {"n": real.sum(1)[:, None, None], "norm": length.sum(1)[:, None, None]},
        )


@dataclass(frozen=True)
class SumsOfTheBatch(MultipliedSums):
    """Gives each sequence the length of its whole batch, which is another one in half of the data."""

    def add(self, site, value, done):
        real = done.find_masks(site, value).real.double()
        length = torch.linalg.vector_norm(value, dim=-1).sum()
        sums = torch.ones(len(value), 1, 1) * length
        done.add_sums(site.name, {"n": real.sum(1)[:, None, None], "norm": sums})


class VectorsOfTheBatch(Vectors):
    def keepers(self, needs):  # noqa: ARG002
        yield SumsOfTheBatch()


class MultipliedVectors(Vectors):
    def keepers(self, needs):  # noqa: ARG002
        yield MultipliedSums()


def test_padding_is_tried_with_what_no_mask_of_zeros_takes_away():
    law = next(law for law in LAWS if law.name == "padding never counts")
    length = {
        "name": "foreign",
        "needs": {"n", "norm"},
        "compute": lambda totals: {"": totals["norm"] / totals["n"]},
    }
    law.hold(Metric(reads=Vectors(("hidden",)), **length))
    with pytest.raises(
        LawBroken,
        match=r"its value is nan with three positions of nan behind each sequence",
    ):
        law.hold(Metric(reads=MultipliedVectors(("hidden",)), **length))


def test_halves_are_compared_with_the_whole_and_not_with_themselves():
    """A metric that gives the same number each time it is asked, and another one for each way to share the data."""
    law = next(law for law in LAWS if law.name == "two halves add up to the whole")
    metric = Metric(
        name="foreign",
        reads=VectorsOfTheBatch(("hidden",)),
        needs={"n", "norm"},
        compute=lambda totals: {"": totals["norm"] / totals["n"]},
    )
    with pytest.raises(LawBroken, match=r"of two halves and .* of the whole"):
        law.hold(metric)


def test_every_law_has_a_mistake_that_breaks_it():
    assert {law.name for law in LAWS} == {name for name, *_ in MISTAKES}


def test_somebody_elses_metric_keeps_the_laws_and_is_not_known_afterwards():
    assert len(laws_of(FOREIGN)) == len(LAWS)
    check_metric(FOREIGN)
    assert "foreign" not in metrics.find_all()


def test_all_broken_laws_are_told_at_once():
    with pytest.raises(LawBroken) as broken:
        check_metric(
            replace(FOREIGN, compute=changed(lambda t: ratio(length(t), t["n"] - 1)))
        )
    told = str(broken.value).splitlines()
    assert all(line.startswith("foreign breaks the law “") for line in told)
    assert {"it equals its definition", "it says what it is"} <= {
        line.split("“")[1].split("”")[0] for line in told
    }


def test_a_name_that_is_taken_is_refused():
    with pytest.raises(
        UsageError, match="a name that is not taken among metrics; got 'drift'"
    ):
        check_metric(replace(FOREIGN, name="drift"))


REFUSED = [
    ({"name": "My metric"}, "a name for the metric.*got 'My metric'"),
    ({"reads": Vectors}, r"got .*Vectors.*, a class: call it"),
    ({"compute": 3}, "a function as `compute` of foreign; got 3"),
    (
        {"needs": {"unti"}},
        "`needs` of foreign among .*; got 'unti'. Cure: did you mean unit",
    ),
    ({"invariant": {"shift"}}, "`invariant` of foreign among"),
    ({"reads": Sample()}, "`needs` of foreign empty, since it reads no sums; got"),
    (
        {"needs": {"n", "moment"}},
        "second moments alone, or other sums; got moment with n",
    ),
    (
        {"needs": {"moment", "moment_n"}},
        "second moments and subsets of hidden states alone; got .* at hidden",
    ),
    ({"reads": QueryKey(), "needs": {"unit_square"}}, "`needs` of foreign among"),
]


@pytest.mark.parametrize(("mistake", "words"), REFUSED)
def test_a_declaration_that_contradicts_itself_is_refused(mistake, words):
    with pytest.raises(UsageError, match=words):
        replace(FOREIGN, **mistake)
    with pytest.raises(UsageError, match="vectors at some of hidden"):
        Vectors(("hiden",))


def test_what_follows_from_what_a_metric_reads():
    assert norms.METRIC.axes == ("policy", "head") and not norms.METRIC.first_policy
    spread = Metric("spread", Vectors(), norms.compute, needs={"moment", "moment_n"})
    assert spread.axes == ("head",) and spread.first_policy
    for reads in (
        Sample(),
        Classes(),
        Weights(lambda matrix: {"total": matrix.sum(keepdims=True)[None]}),
    ):
        assert Metric("spread", reads, norms.compute).axes == ()


@pytest.mark.parametrize("reads", [Vectors(), QueryKey()])
def test_another_seed_draws_other_data_and_the_same_seed_the_same(reads):
    """A law that holds of one draw alone would be seen as broken by no other."""
    first, again, other = (reads.draw(seed)[0] for seed in (1, 1, 2))
    assert all(map(np.array_equal, first, again))
    assert not any(map(np.array_equal, first, other))


def test_what_is_registered_is_known_while_inside():
    with registered(FOREIGN):
        assert (
            metrics.find_metric_by_name("foreign") is FOREIGN
            and list_entries_of("metrics")["foreign"] is FOREIGN
        )
    with pytest.raises(
        UsageError,
        match=r"the name of a metric; got 'foreign'.*module:NAME, or anisoscope\.register",
    ):
        metrics.find_metric_by_name("foreign")
