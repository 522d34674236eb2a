"""What a pass keeps for each kind of data, and the data that metrics are tested on: every number by plain loops."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from random_numbers import draw_array

from anisoscope.axes import Site
from anisoscope.errors import UsageError
from anisoscope.reads import (
    CentredRows,
    Classes,
    Keys,
    LayerPair,
    Logits,
    Modalities,
    QueryKey,
    Rows,
    Sample,
    Scores,
    Sequences,
    Vectors,
    Weights,
    extremes,
)
from anisoscope.reads.base import (
    Batching,
    Gathered,
    Reads,
    draw_cloud,
    draw_pairs,
    make_batch,
    make_totals,
    pad_pairs,
)
from anisoscope.reads.classes import ClassSums
from anisoscope.reads.extremes import KeySums, LogitExtremes, SequenceSums
from anisoscope.reads.modalities import ModalitySums
from anisoscope.reads.run_pairs import (
    RunPair,
    SampledStack,
    read_across,
    read_sampled_stacks,
)
from anisoscope.reads.sample import KeptSample, SampledVectors, is_usable
from anisoscope.reads.vectors import VectorSums
from anisoscope.reads.weights import summarise_matrix
from anisoscope.sums.extremes import Extremes
from anisoscope.sums.groups import Sums
from anisoscope.sums.reservoir import Reservoir

# ---- data that metrics are tested on ---------------------------------------------------------------------------------


def test_units_of_a_cloud_have_means_of_their_own_around_a_common_one() -> None:
    """Each part of a vector is about √d times its standard deviation long: .5 of all, .7 of a unit, .6 of a vector."""
    units = draw_cloud(3, (400,) * 40, 60)
    assert [unit.shape for unit in units] == [(400, 60)] * 40
    means = np.array([unit.mean(0) for unit in units])
    common = means.mean(0)
    assert np.linalg.norm(common) == pytest.approx(0.5 * 60**0.5, rel=0.25)
    apart = np.linalg.norm(means - common, axis=1).mean()
    assert apart == pytest.approx(0.7 * 60**0.5, rel=0.1)
    spread = np.concatenate(
        [unit - mean for unit, mean in zip(units, means, strict=True)]
    )
    assert spread.std() == pytest.approx(0.6, rel=0.02)
    assert [len(unit) for unit in draw_cloud(0, (2, 0, 5), 3)] == [2, 0, 5]


def test_the_second_of_a_pair_is_partly_a_linear_function_of_the_first() -> None:
    """One function for all units, another with another seed; what it leaves has the deviation .5."""

    def fit(seed: int) -> tuple[Any, Any]:
        pairs = draw_pairs(seed, (300, 500), 6)
        first, second = (np.concatenate([pair[k] for pair in pairs]) for k in (0, 1))
        with_one = np.column_stack([first, np.ones(len(first))])
        weights, *_ = np.linalg.lstsq(with_one, second, rcond=None)
        return weights[:-1], (second - with_one @ weights).std()

    weights, left = fit(1)
    other, _ = fit(2)
    assert left == pytest.approx(0.5, rel=0.05)
    assert np.abs(weights).max() > 0.3 and np.abs(weights - other).max() > 0.3
    first = [unit for unit, _ in draw_pairs(1, (3, 4), 6)]
    for one, same in zip(first, draw_cloud(1, (3, 4), 6), strict=True):
        np.testing.assert_array_equal(one, same)


def test_units_of_later_batches_go_on_counting_and_further_fields_are_kept() -> None:
    real = torch.tensor([[True, True], [True, False], [False, False]])
    label = torch.tensor([2, 0, 1])
    batch = make_batch(4, real, label=label)
    assert batch.unit.tolist() == [4, 5, 6] and batch.label is label
    (stream,) = batch.streams.values()
    assert list(batch.streams) == ["encoder"] and torch.equal(stream.mask, real)
    assert not stream.special.any() and stream.start.tolist() == [0, 0, 0]


def test_sums_of_a_site_are_totals_if_any_group_holds_data() -> None:
    assert make_totals({}) is None
    assert make_totals({"n": np.zeros((3, 1, 1))}) is None
    totals = make_totals({"n": np.array([[2.0], [0.0], [3.0]])})
    assert totals is not None and totals.n_groups == 2
    assert totals["n"].tolist() == [[5], [3], [2]]


def test_both_sides_of_a_pair_are_padded_alike() -> None:
    units = [
        (draw_array(2, 3), draw_array(2, 3, seed=1)),
        (draw_array(1, 3), draw_array(1, 3, seed=2)),
    ]
    first, second, real = pad_pairs(units, Batching(padding=2, filler=math.inf))
    assert real.long().tolist() == [[1, 1, 0, 0], [1, 0, 0, 0]]
    for x in (first, second):
        assert bool(x[~real].isposinf().all()) and bool(x[real].isfinite().all())


class Fed:
    """A measurement that remembers what it is fed: its batches, and the values of each."""

    def __init__(self) -> None:
        self.weights: dict[str, Any] = {}
        self.batches: list[Any] = []
        self.values: list[dict[str, Any]] = []
        self.sites: list[Site] = []
        self.ended = 0

    def begin(self, batch: Any, device: torch.device) -> None:
        assert device.type == "cpu" and self.ended == len(self.batches)
        self.batches.append(batch)
        self.values.append({})

    def receive(self, site: Site, value: Any) -> None:
        self.values[-1][site.name] = value
        self.sites.append(site)

    def end(self, index: int | None = None) -> None:
        assert index is None
        self.ended += 1


def feed(reads: Any, units: Any, needs: Any = (), **batching: Any) -> Fed:
    fed = Fed()
    metric = SimpleNamespace(name="m", needs=frozenset(needs))
    reads.feed(metric, units, Batching(**batching), fed)
    assert fed.ended == len(fed.batches)
    return fed


CLOUD = [draw_array(n, 2, seed=n) for n in (3, 1, 0, 2)]
PAIRS = [(draw_array(n, 2, seed=n), draw_array(n, 2, seed=n + 9)) for n in (3, 1, 0, 2)]


@pytest.mark.parametrize(
    ("reads", "sites", "of_heads"),
    [
        (Vectors(), ["encoder.1.hidden"], False),
        (Vectors(("final",)), ["encoder.final"], False),
        (Vectors(("value",)), ["encoder.1.head.value"], True),
        (Vectors(("value", "query")), ["encoder.1.head.query"], True),
        (Sequences(), ["encoder.1.hidden"], False),
        (Sample(), ["encoder.1.hidden"], False),
        (LayerPair(), ["encoder.1.hidden", "encoder.2.hidden"], False),
        (QueryKey(), ["encoder.1.head.query", "encoder.1.head.key"], True),
    ],
    ids=lambda given: type(given).__name__,
)
def test_each_unit_is_fed_as_a_sequence_of_its_own(
    reads: Any, sites: list[str], of_heads: bool
) -> None:
    """In batches of two with padding; a batch of empty units alone is left out, unless padding gives it a width."""
    units = CLOUD if len(sites) == 1 else PAIRS
    fed = feed(reads, units, batch=2, padding=1, filler=7.5)
    assert [batch.unit.tolist() for batch in fed.batches] == [[0, 1], [2, 3]]
    for values, batch in zip(fed.values, fed.batches, strict=True):
        assert list(values) == sites
        real = batch.streams["encoder"].mask
        for side, site in enumerate(sites):
            x = values[site].squeeze(1) if of_heads else values[site]
            assert x.dtype == torch.float64 and x.shape == (*real.shape, 2)
            assert bool((x[~real] == 7.5).all())
            for row, number in enumerate(batch.unit.tolist()):
                unit = units[number]
                whole = unit[side] if isinstance(unit, tuple) else unit
                np.testing.assert_array_equal(x[row][real[row]].numpy(), whole)
    assert fed.values[0][sites[0]].shape[-2] == 4
    alone = feed(reads, units[1:3], batch=1)
    assert [batch.unit.tolist() for batch in alone.batches] == [[0]]
    layers = {site.layer for site in fed.sites}
    assert layers == (
        {None}
        if sites == ["encoder.final"]
        else {*range(1, 1 + len(sites))} - ({2} if of_heads else set())
    )
    narrow = feed(reads, units, dtype=torch.float32)
    assert narrow.values[0][sites[-1]].dtype == torch.float32


def test_tokens_of_images_come_before_those_of_texts() -> None:
    units = [
        (draw_array(2, 3), draw_array(4, 3, seed=1)),
        (draw_array(3, 3, seed=2), draw_array(0, 3)),
        (draw_array(0, 3), draw_array(1, 3, seed=3)),
        (draw_array(0, 3), draw_array(0, 3)),
    ]
    fed = feed(Modalities(), units, batch=3, padding=1)
    assert [batch.unit.tolist() for batch in fed.batches] == [[0, 1, 2], [3]]
    stream = fed.batches[0].streams["encoder"]
    assert stream.image.long().tolist() == [
        [1, 1, 0, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0, 0],
    ]
    assert stream.mask.sum(1).tolist() == [6, 3, 1]
    (x,) = fed.values[0].values()
    np.testing.assert_array_equal(x[0, :6].numpy(), np.concatenate(units[0]))
    assert list(fed.values[0]) == ["encoder.1.hidden"]
    assert len(feed(Modalities(), units[3:]).batches) == 0


def test_each_unit_is_a_class_and_each_of_its_vectors_a_text() -> None:
    """Texts of one number are of one unit, whatever their class; the token behind is padding."""
    units = [draw_array(n, 2, seed=n) for n in (2, 3, 0)]
    fed = feed(Classes(), units, batch=3, padding=2, filler=9.0)
    assert [batch.unit.tolist() for batch in fed.batches] == [[0, 1, 0], [1, 2]]
    assert [batch.label.tolist() for batch in fed.batches] == [[0, 0, 1], [1, 1]]
    rows = np.concatenate([x[:, 0] for (x,) in map(dict.values, fed.values)])
    np.testing.assert_array_equal(rows, np.concatenate(units))
    for values, batch in zip(fed.values, fed.batches, strict=True):
        x = values["encoder.1.hidden"]
        assert x.shape[1] == 3 and bool((x[:, 1:] == 9).all())
        assert batch.streams["encoder"].mask.long().tolist() == [[1, 0, 0]] * len(x)
    assert feed(Classes(), [draw_array(0, 2)]).batches == []


def softmax(scores: Any) -> Any:
    e = np.exp(scores)
    return e / e.sum(-1, keepdims=True)


def test_attention_of_test_data_is_that_of_every_query_to_every_key_of_its_unit() -> (
    None
):
    """Rows, the three kinds of centred rows, logits, sums over keys: by the softmax of q·k, not scaled."""
    queries, keys = (np.concatenate([pair[k] for pair in PAIRS]) for k in (0, 1))
    means = queries.mean(0), keys.mean(0)
    for reads, site in ((Rows(), "attention"), (Logits(), "attention"), (CentredRows(), "centred")):  # fmt: skip
        fed = feed(reads, PAIRS, batch=3, padding=1)
        assert [batch.unit.tolist() for batch in fed.batches] == [[0, 1, 2], [3]]
        for values, batch in zip(fed.values, fed.batches, strict=True):
            assert list(values) == [f"encoder.1.{site}"]
            found = values[f"encoder.1.{site}"]
            sides = found if site == "centred" else {"plain": found}
            assert len(sides) == (3 if site == "centred" else 1)
            for side, rows in sides.items():
                for row, unit in enumerate(batch.unit.tolist()):
                    q, k = PAIRS[unit]
                    if side == "query":
                        q = q - means[0]
                    if side == "key":
                        k = k - means[1]
                    p = softmax(q @ k.T)
                    entropy = -(p * np.log(p)).sum(1)
                    got = rows["entropy"][row, 0, : len(q)].numpy()
                    np.testing.assert_allclose(got, entropy, atol=1e-9)
                    largest = rows["score"][row, 0, : len(q)].numpy()
                    np.testing.assert_allclose(largest, (q @ k.T).sum(1), atol=1e-9)
    fed = feed(Keys(), PAIRS, batch=3, padding=1)
    for values, batch in zip(fed.values, fed.batches, strict=True):
        found = values["encoder.1.extremes"]
        for row, unit in enumerate(batch.unit.tolist()):
            q, k = PAIRS[unit]
            n = len(q)
            mass = found["mass"][row, 0, :n].numpy()
            np.testing.assert_allclose(mass, softmax(q @ k.T).sum(0), atol=1e-9)
            assert found["seen"][row, 0, :n].tolist() == [n] * n
            for name, vectors in (("query", q), ("key", k), ("value", k)):
                np.testing.assert_array_equal(found[name][row, 0, :n].numpy(), vectors)
    fed = feed(Scores(), PAIRS, batch=3, padding=1)
    found = fed.values[0]["encoder.1.scores"]
    assert found["rows"][:, 0].tolist() == [3, 1, 0]
    variance = [(q @ k.T).var(1).sum() if len(q) else 0.0 for q, k in PAIRS[:3]]
    np.testing.assert_allclose(found["row_variance"][:, 0].numpy(), variance, atol=1e-9)
    for reads in (Rows(), Logits(), Keys(), Scores(), CentredRows()):
        assert feed(reads, [PAIRS[2]]).batches == []


def test_a_matrix_of_weights_has_the_vectors_of_all_units_as_rows() -> None:
    seen: list[Any] = []

    def summarise(matrix: Any) -> dict[str, Any]:
        seen.append(matrix)
        return {"total": matrix.sum(keepdims=True)[None].astype(np.float64)}

    fed = feed(Weights(summarise), CLOUD, dtype=torch.float32)
    (matrix,) = seen
    np.testing.assert_array_equal(matrix, np.concatenate(CLOUD).astype(np.float32))
    kept = fed.weights["embedding.input"]
    assert set(kept) == {"rows", "m.total"} and kept["rows"].tolist() == [6]
    assert kept["m.total"].dtype == kept["rows"].dtype == torch.float64
    more = summarise_matrix(matrix, {"m": summarise, "mx": summarise})
    kept_all = Gathered(Sums(2), {}, {}, {"embedding.output": more})
    metric = SimpleNamespace(name="m", needs=frozenset())
    (reading,) = Weights(summarise).readings(metric, kept_all)
    assert "total" in reading.data and "mx.total" not in reading.data
    assert reading.columns["site"] == "embedding.output" and reading.count == 6


# ---- what is kept of a batch -----------------------------------------------------------------------------------------


class Running:
    """A measurement of one batch: what keepers add, by site."""

    def __init__(
        self, *, flatten: str = "position", groups: int = 3, spectrum: int | None = 2,
        at: str = "last", **masks: Any,
    ) -> None:  # fmt: skip
        self.extremes, self.sums, self.added = Extremes(), Sums(max(groups, 2)), {}
        self.settings = SimpleNamespace(
            flatten=flatten, groups=groups, spectrum_groups=spectrum, at=at
        )
        self.group = masks.pop("group", None)
        self.label, self.classes = masks.pop("label", None), masks.pop("classes", ())
        none = torch.zeros(0, dtype=torch.bool)
        self.positions = SimpleNamespace(**{"drawn": none, "subsets": None} | masks)
        self.moments = self
        self.moved: list[Any] = []
        self.sampled: list[Any] = []

    def find_masks(self, _site: Any, _x: Any) -> Any:
        return self.positions

    def copy_to(self, item: Any, _device: Any) -> Any:
        return item

    def add_sums(self, site: str, values: Any) -> None:
        self.added.setdefault(site, {}).update(values)

    def add_sample(self, site: Site, x: Any) -> None:
        self.sampled.append((site, x))

    def add(self, *given: Any) -> None:
        self.moved.append(given)


def masks_of(*rows: str) -> Any:
    """Masks of tokens as text: x where one counts."""
    return torch.tensor([[letter == "x" for letter in row] for row in rows])


HIDDEN = Site("encoder", 2, "hidden")


def test_vectors_of_a_layer_are_summed_by_sequence_policy_and_subset() -> None:
    """One zero vector, padding of NaN; second moments are of the first policy, and of what is drawn."""
    x = torch.from_numpy(draw_array(2, 4, 3))
    x[0, 1] = 0
    x[1, 3] = math.nan
    policies = torch.stack([masks_of("xxxx", "xxx."), masks_of(".xxx", "..x.")], 1)
    subsets = torch.stack([masks_of("x...", "x.x."), masks_of("..xx", ".x..")], 1)
    terms = frozenset({"n", "vector", "subset_unit", "subset_n", "moment", "norm"})
    running = Running(policies=policies, subsets=subsets, real=policies[:, 0])
    VectorSums({"hidden": terms}).add(HIDDEN, x, running)
    found = running.added[HIDDEN.name]
    norm = x.norm(dim=-1)
    for s in range(2):
        for p in range(2):
            counted = policies[s, p] & (norm[s] > 0)
            assert float(found["n"][s, p, 0]) == int(counted.sum())
            torch.testing.assert_close(found["vector"][s, p, 0], x[s][counted].sum(0))
            length = float(found["norm"][s, p, 0])
            assert length == pytest.approx(float(norm[s][counted].sum()))
            of_subset = subsets[s, p] & (norm[s] > 0)
            assert float(found["subset_n"][s, p, 0]) == int(of_subset.sum())
    assert "unit" not in found and float(found["zero"].sum()) == 1
    ((site, moved, counted, inverse, share),) = running.moved
    assert site == HIDDEN.name and moved is x and share is None
    assert counted.tolist() == [[True, False, True, True], [True, True, True, False]]
    assert float(inverse[0, 0]) == pytest.approx(1 / float(norm[0, 0]))
    some = masks_of("x..x", ".x..")
    running = Running(policies=policies, real=policies[:, 0], drawn=some)
    VectorSums({"hidden": frozenset({"moment"})}).add(HIDDEN, x, running)
    assert running.moved[0][4] is some
    running = Running(policies=policies, subsets=subsets, real=policies[:, 0])
    VectorSums({"hidden": frozenset({"vector"})}).add(HIDDEN, x, running)
    assert not running.moved and set(running.added[HIDDEN.name]) == {
        "n", "vector", "zero", "nonfinite",
    }  # fmt: skip


def test_vectors_made_elsewhere_are_summed_by_the_group_of_their_unit() -> None:
    """Twelve sequences of one vector in three groups: straight into the sums, with both policies and all subsets."""
    x = torch.from_numpy(draw_array(12, 1, 3))
    x[4] = 0
    policies = torch.ones(12, 2, 1, dtype=torch.bool)
    policies[::2, 1] = False
    subsets = (torch.arange(12) % 4 == 1).view(12, 1, 1)
    group = torch.arange(12) // 2 % 3
    running = Running(
        policies=policies, subsets=subsets, real=policies[:, 0], group=group
    )
    terms = frozenset({"vector", "subset_n", "subset_unit", "moment"})
    VectorSums({"hidden": terms}).add(HIDDEN, x, running)
    assert not running.added and len(running.moved) == 1
    found = running.sums.at(HIDDEN.name)
    for g in range(3):
        for p in range(2):
            chosen = (group == g) & policies[:, p, 0] & (x[:, 0].norm(dim=1) > 0)
            assert found["n"][g, p, 0] == int(chosen.sum())
            total = x[chosen, 0].sum(0).numpy()
            np.testing.assert_allclose(found["vector"][g, p, 0], total)
        chosen = (group == g) & subsets[:, 0, 0]
        assert found["subset_n"][g, 0, 0] == int(chosen.sum())
    fewer = Running(policies=policies[:11], real=None, group=group[:11])
    VectorSums({"hidden": frozenset({"vector"})}).add(HIDDEN, x[:11], fewer)
    assert fewer.added[HIDDEN.name]["n"].shape == (11, 2, 1) and not fewer.sums.terms
    longer = Running(policies=policies.expand(12, 2, 2), real=None, group=group)
    VectorSums({"hidden": frozenset({"vector"})}).add(
        HIDDEN, x.expand(12, 2, 3), longer
    )
    assert longer.added[HIDDEN.name]["n"].shape == (12, 2, 1) and not longer.sums.terms


def test_whole_images_are_summed_in_eight_groups_whatever_the_policy() -> None:
    x = torch.from_numpy(draw_array(5, 1, 6))
    real = torch.tensor([[True], [True], [True], [True], [False]])
    policies = torch.zeros(5, 2, 1, dtype=torch.bool)
    group = torch.tensor([1, 9, 17, 30, 2])
    running = Running(
        flatten="image", groups=32, policies=policies, real=real, group=group
    )
    terms = frozenset({"vector", "norm_square", "moment", "unit_square", "subset_n"})
    VectorSums({"hidden": terms}).add(HIDDEN, x, running)
    assert not running.moved and not running.added
    found = running.sums.at(HIDDEN.name)
    assert set(found) == {"n", "zero", "nonfinite", "vector", "norm_square"}
    assert found["n"][:8, 0, 0].tolist() == [0, 3, 0, 0, 0, 0, 1, 0]
    assert not found["n"][8:].any()
    np.testing.assert_allclose(found["vector"][1, 0, 0], x[:3, 0].sum(0).numpy())
    tokens = Running(flatten="image", policies=torch.ones(2, 1, 3, dtype=torch.bool))
    VectorSums().add(HIDDEN, torch.ones(2, 3, 2), tokens)
    assert tokens.added[HIDDEN.name]["n"].flatten().tolist() == [3, 3]


@pytest.mark.parametrize(
    ("spectrum", "groups", "used"), [(2, 3, 2), (5, 3, 3), (None, 3, 3), (None, 12, 8)]
)
def test_second_moments_of_heads_are_of_the_first_policy_in_few_groups(
    spectrum: int | None, groups: int, used: int
) -> None:
    x = torch.from_numpy(draw_array(4, 2, 3, 2))
    x[1, 1, 0] = 0
    policies = torch.stack([masks_of("xx.", "xxx", "x..", ".x.")] * 2, 1)
    policies[:, 1] = False
    group = torch.tensor([0, 1, 2, 10]) % groups
    running = Running(spectrum=spectrum, groups=groups, policies=policies, group=group)
    site = Site("encoder", 1, "query", "raw")
    keeper = VectorSums({"query": frozenset({"head_moment", "vector", "unit_square"})})
    keeper.add(site, x, running)
    assert set(running.added[site.name]) == {"n", "vector", "zero", "nonfinite"}
    assert running.added[site.name]["n"][:, 0].tolist() == [
        [2, 2], [3, 2], [1, 1], [1, 1],
    ]  # fmt: skip
    found = running.sums.at(site.name)
    assert found["head_moment"].shape == (used, 2, 2, 2)
    for g in range(used):
        for head in range(2):
            rows = [
                x[s, head, t].numpy()
                for s in range(4)
                for t in range(3)
                if int(group[s]) % used == g and policies[s, 0, t] and x[s, head, t].any()
            ]  # fmt: skip
            assert found["head_moment_n"][g, head] == len(rows)
            exact = sum((np.outer(row, row) for row in rows), np.zeros((2, 2)))
            np.testing.assert_allclose(found["head_moment"][g, head], exact)


@pytest.mark.parametrize(("at", "tokens"), [("first", [0, 1, 0]), ("last", [1, 2, 0])])
def test_directions_of_texts_are_summed_by_their_group_and_class(
    at: str, tokens: list[int]
) -> None:
    """Of real tokens, special ones too; a text without a class is left out."""
    x = torch.from_numpy(draw_array(3, 3, 2))
    real = masks_of("xx.", ".xx", "x..")
    running = Running(
        at=at, real=real, policies=(~real).unsqueeze(1), classes=("a", "b"),
        group=torch.tensor([2, 0, 1]), label=torch.tensor([1, 0, -1]),
    )  # fmt: skip
    ClassSums().add(HIDDEN, x, running)
    found = running.sums.at(HIDDEN.name)
    assert found["class_n"].tolist() == [[1, 0], [0, 0], [0, 1]]
    for text, (g, label) in enumerate([(2, 1), (0, 0)]):
        vector = x[text, tokens[text]]
        unit = (vector / vector.norm()).numpy()
        np.testing.assert_allclose(found["class_unit"][g, label], unit)
    assert ClassSums().join(ClassSums()).takes(HIDDEN)


def test_heads_are_sampled_token_by_token_and_whole_images_not_at_all() -> None:
    running = Running()
    query = torch.from_numpy(draw_array(2, 3, 4, 5))
    sites = Site("encoder", 1, "query", "raw"), HIDDEN
    keeper = KeptSample(heads=True)
    keeper.add(sites[0], query, running)
    keeper.add(sites[1], query[:, 0], running)
    assert [site for site, _ in running.sampled] == list(sites)
    assert torch.equal(running.sampled[0][1], query.transpose(1, 2))
    assert torch.equal(running.sampled[1][1], query[:, 0])
    images = Running(flatten="image")
    keeper.add(HIDDEN, query[:, 0, :1], images)
    keeper.add(sites[0], query[:, :, :1], images)
    assert [site for site, _ in images.sampled] == [sites[0]]
    sums = Running(flatten="image", real=masks_of("x", "x"))
    SequenceSums(frozenset({"top"})).add(HIDDEN, query[:, 0, :1], sums)
    assert not sums.added and not sums.extremes.terms


def test_activations_in_half_precision_are_summed_in_full() -> None:
    """60,000 and 40,000 are within half precision, 2,000 · 60,000 / .5 is not; vectors of zeros count nowhere."""
    x = torch.tensor([[[6e4, 0.5, 0.25], [0.0, 0.0, 0.0]], [[0.0, 0.0, 0.0]] * 2])
    running = Running(
        real=masks_of("xx", "xx"), policies=masks_of("..", "..").unsqueeze(1),
        places=torch.zeros(2, 2, 4, dtype=torch.int64),
    )  # fmt: skip
    needs = Sequences.terms
    SequenceSums(needs).add(HIDDEN, x.half(), running)
    found = {name: x.tolist() for name, x in running.added[HIDDEN.name].items()}
    assert found["activation_sequences"] == [1, 0]
    assert found["over_median"] == [120000, 0] and found["massive"] == [1, 0]
    assert found["median"] == [0.5, 0] and found["matrix_sequences"] == [0, 0]
    assert found.keys() == needs
    assert {x.dtype for x in running.added[HIDDEN.name].values()} == {torch.float64}
    values, _ = running.extremes.at(HIDDEN.name)["activation"]
    assert values.tolist() == [6e4, 0.5, 0.25]


def test_batches_without_tokens_add_nothing() -> None:
    real = torch.zeros(2, 0, dtype=torch.bool)
    running = Running(
        real=real, special=real, punctuation=real,
        places=torch.zeros(2, 0, 4, dtype=torch.int64),
    )  # fmt: skip
    running.find_real_queries = lambda *_: real  # type: ignore[attr-defined]
    running.locate_queries = lambda *_: running.positions.places  # type: ignore[attr-defined]
    nothing = torch.zeros(2, 1, 0)
    rows = {"keys": nothing, "largest": nothing, "smallest": nothing}
    LogitExtremes().add(Site("encoder", 1, "attention"), rows, running)
    vectors = torch.zeros(2, 1, 0, 3)
    of_keys = dict.fromkeys(("mass", "seen"), nothing) | dict.fromkeys(
        ("query", "key", "value"), vectors
    )
    KeySums().add(Site("encoder", 1, "extremes"), of_keys, running)
    assert not running.added and not running.extremes.terms


@pytest.mark.parametrize(
    ("reads", "needs", "kept"),
    [
        (Vectors(("final", "key")), {"n", "norm"}, [("VectorSums", {"final": {"n", "norm"}, "key": {"n", "norm"}})]),
        (QueryKey(), {"vector"}, [("VectorSums", {"query": {"vector"}, "key": {"vector"}})]),
        (Sample(), set(), [("KeptSample", False), ("VectorSums", {"hidden": {"vector"}, "final": {"vector"}})]),
        (RunPair(), set(), [("KeptSample", False), ("VectorSums", {"hidden": {"vector"}, "final": {"vector"}})]),
        (Sequences(), {"top"}, [("SequenceSums", {"top"})]),
        (Classes(), set(), [("ClassSums", None)]),
        (Modalities(), set(), [("ModalitySums", None)]),
        (Logits(), set(), [("LogitExtremes", None)]),
        (Keys(), set(), [("KeySums", None)]),
        (Rows(), set(), [("RowSums", "attention")]),
        (CentredRows(), set(), [("CentredRowSums", "centred")]),
        (Scores(), set(), [("ScoreSums", "scores")]),
        (Weights(dict), set(), []),
    ],
    ids=lambda given: type(given).__name__,
)  # fmt: skip
def test_what_a_pass_keeps_for_each_kind_of_data(
    reads: Any, needs: set[str], kept: list[Any]
) -> None:
    found = []
    for keeper in reads.keepers(frozenset(needs)):
        detail = None
        for name in ("terms", "heads", "needs", "quantity"):
            detail = getattr(keeper, name, detail) if detail is None else detail
        found.append((type(keeper).__name__, detail))
        assert keeper.needs_places == (
            type(keeper).__name__ in ("SequenceSums", "LogitExtremes", "KeySums")
        )
    assert found == kept
    of_weights = isinstance(reads, Weights)
    assert (reads.summary() is not None) == of_weights
    assert reads.adds_up == (not isinstance(reads, Weights | CentredRows))
    assert reads.labelled == isinstance(reads, Classes)
    assert reads.layers == (2 if isinstance(reads, LayerPair) else 1)
    assert reads.runs == (2 if isinstance(reads, RunPair) else 1)
    assert reads.sides_turn_together == (not isinstance(reads, LayerPair))


def test_only_vectors_that_count_are_tokens_of_an_image_or_a_text() -> None:
    """A token of an image that is special is one of the image; a zero vector is none of either."""
    x = torch.tensor([[[3.0, 4], [0, 0], [0, 5], [1, 0]]])
    running = Running(
        real=masks_of("xxx."), image=masks_of("xx.."), special=masks_of("x...")
    )
    ModalitySums().add(Site("joint", None, "final"), x, running)
    found = running.added["joint.final"]
    assert found["modality_n"].tolist() == [[[1], [1]]]
    assert found["modality_unit"].flatten().tolist() == pytest.approx([0.6, 0.8, 0, 1])


# ---- samples of two runs ---------------------------------------------------------------------------------------------


def test_stacks_of_two_runs_are_named_each_by_its_own() -> None:
    hashes = np.arange(4)
    first = SampledStack(
        hashes, np.array([7, 7, 8, 9]), {Site("encoder", 2, "hidden"): draw_array(4, 2)}
    )
    second = SampledStack(
        hashes, hashes + 50, {Site("decoder", None, "final"): draw_array(4, 3, seed=1),
                              Site("decoder", 5, "hidden"): draw_array(4, 3, seed=2)},
    )  # fmt: skip
    rows = [r.columns for r in read_across(RunPair(), first, second, 4)]
    assert rows == [
        {
            "stack": "encoder", "layer": 2, "site": "hidden", "stack_other": "decoder",
            "layer_other": 5, "site_other": site, "n_units": 3,
        }
        for site in ("final", "hidden")
    ]  # fmt: skip


def test_tokens_unusable_in_either_run_are_left_out_of_every_layer() -> None:
    """A NaN in one layer of the second run; a zero vector in one of the first, whose unit goes with it."""
    x, y = draw_array(5, 2), draw_array(5, 2, seed=1)
    other, more = draw_array(5, 2, seed=2), draw_array(5, 2, seed=3)
    y[1], more[3, 0] = 0, math.nan
    hashes, units = np.arange(5), np.array([10, 11, 12, 13, 14])
    first = SampledStack(
        hashes, units, {Site("e", 1, "hidden"): x, Site("e", 2, "hidden"): y}
    )
    second = SampledStack(
        hashes, units, {Site("e", 0, "hidden"): other, Site("e", 1, "hidden"): more}
    )
    found = list(read_across(LayerPair(), first, second, 3))
    assert len(found) == 4
    for reading, (a, b) in zip(
        found, [(x, other), (x, more), (y, other), (y, more)], strict=True
    ):
        used = [0, 2, 4]
        assert reading.data.first.vectors.tolist() == a[used].tolist()
        assert reading.data.second.vectors.tolist() == b[used].tolist()
        assert reading.data.first.group.tolist() == [10 % 3, 12 % 3, 14 % 3]
        assert reading.data.first.groups == 3 and reading.count == 3
        middle = a[used].mean(0).tolist()
        assert reading.data.first.mean.tolist() == pytest.approx(middle)
    pair = [SampledStack(s.hash[:2], s.unit[:2], {Site("e", 1, "hidden"): v[:2]})
            for s, v in ((first, x), (second, other))]  # fmt: skip
    assert len(list(read_across(LayerPair(), *pair, 3))) == 1
    x[0] = 0
    assert list(read_across(LayerPair(), *pair, 3)) == []


def test_layers_of_a_sample_come_from_input_to_output() -> None:
    """Of two stacks, and of one that was sampled on its own under its own name."""
    kept = Reservoir(2, 0)
    # of a layer of a convolutional network maps before the ReLU are kept, too
    names = ("e.10.hidden", "e.final", "e.2.hidden", "e.2.head.query.raw", "e.3.preact")
    x = {name: torch.full((2, 1), k + 1.0) for k, name in enumerate(names)}
    kept._kept = torch.tensor([1, 2]), torch.tensor([5, 6]), x
    alone = Reservoir(1, 0)
    alone._kept = torch.tensor([3]), torch.tensor([4]), {"m.1.hidden": torch.ones(1, 1)}
    tensors = kept.tensors("e ") | alone.tensors("m.1.hidden ")
    stacks = read_sampled_stacks(tensors)
    assert list(stacks) == ["e"] and stacks["e"].depth == 10
    assert [site.layer for site in stacks["e"].layers] == [2, 10, None]
    assert [x[0, 0] for x in stacks["e"].layers.values()] == [3, 1, 2]
    assert stacks["e"].number_layer(Site("e", 0, "hidden")) == 0
    assert stacks["e"].number_layer(Site("e", None, "final")) == 10
    both = read_sampled_stacks(tensors, alone=True)
    assert list(both) == ["e", "m.1.hidden"]
    assert list(both["m.1.hidden"].layers) == [Site("m", 1, "hidden")]
    assert both["m.1.hidden"].unit.tolist() == [4]


def test_what_is_computed_of_a_sample_once_is_not_taken_for_a_part_of_it() -> None:
    sample = SampledVectors(draw_array(4, 2), np.array([0, 2, 2, 5]), 7, np.zeros(2))
    calls: list[int] = []

    def count(given: SampledVectors) -> int:
        calls.append(len(given))
        return len(given)

    assert [sample.get_cached(count) for _ in range(3)] == [4, 4, 4] and calls == [4]
    assert sample.get_cached(len) == 4
    without = sample.without(1)
    assert without.get_cached(count) == 2 and calls == [4, 2]
    assert without.group.tolist() == [0, 5] and without.groups == 7
    assert without.vectors.tolist() == sample.vectors[[0, 3]].tolist()
    assert without.mean is sample.mean


def test_a_pair_of_layers_reads_the_first_tokens_and_is_named_by_its_second() -> None:
    """The input of the first block, which came second, is layer 0; of six tokens two are read."""
    x = {
        name: draw_array(6, 2, seed=k)
        for k, name in enumerate(("e.1.hidden", "e.0.hidden"))
    }
    x["e.1.hidden"][4] = x["e.0.hidden"][5] = 0
    kept = Reservoir(6, 0)
    kept._kept = (
        torch.arange(6),
        torch.arange(6),
        {n: torch.from_numpy(v) for n, v in x.items()},
    )
    sums, sites = Sums(3), [Site("e", 1, "hidden"), Site("e", 0, "hidden")]
    for site in sites:
        sums.terms[site.name, "vector"] = torch.ones(3, 1, 1, 2, dtype=torch.float64)
        sums.terms[site.name, "n"] = torch.ones(3, 1, 1, dtype=torch.float64)
    gathered = Gathered(sums, {site.name: site for site in sites}, {"e": kept}, {})
    metric = SimpleNamespace(name="m", needs=frozenset())
    for most, used in ((2, [0, 1]), (5, [0, 1, 2, 3]), (None, [0, 1, 2, 3])):
        (reading,) = LayerPair(most).readings(metric, gathered)
        assert (
            reading.columns["component"] == "hidden 0" and reading.columns["layer"] == 1
        )
        assert reading.count == len(used)
        found = reading.data.second.vectors.tolist()
        assert found == x["e.0.hidden"][used].tolist()


def test_a_vector_is_usable_if_all_of_it_is_finite_and_some_of_it_is_not_zero() -> None:
    rows = [[1.0, 0], [0, 0], [math.inf, 1], [1, math.nan], [-math.inf, 0], [0, -2]]
    assert is_usable(np.array(rows)).tolist() == [
        True,
        False,
        False,
        False,
        False,
        True,
    ]
    kept = Reservoir(1, 0)
    kept._kept = (
        torch.tensor([3]),
        torch.tensor([4]),
        {
            "m.1.stage": torch.ones(1, 1),
            "m.2.hidden": torch.ones(1, 1),
        },
    )
    (stack,) = read_sampled_stacks(kept.tensors("m ")).values()
    assert list(stack.layers) == [Site("m", 2, "hidden")]


def test_a_metric_of_heads_that_asks_for_subsets_hears_which_sums_these_are() -> None:
    with pytest.raises(UsageError) as caught:
        Vectors(("query", "hidden")).list_axes(frozenset({"subset_n", "n", "unit"}))
    assert str(caught.value) == (
        "expected second moments and subsets of hidden states alone; got subset_n at query, hidden. "
        "Cure: leave heads out of `at`"
    )
    with pytest.raises(UsageError) as caught:
        Vectors().list_axes(frozenset({"moment", "unit", "moment_n", "n"}))
    assert str(caught.value) == (
        "expected second moments alone, or other sums; got moment, moment_n with n, unit. "
        "Cure: second moments have groups of their own: use moment_n and moment_vector with them"
    )


def test_the_input_of_the_first_block_is_layer_0_and_final_alone_is_of_layers() -> None:
    sites = [Site("e", 0, "hidden"), Site("e", 3, "hidden")]
    kept = Gathered(Sums(2), {site.name: site for site in sites}, {}, {})
    assert [kept.make_columns(site)["layer"] for site in sites] == [0, 3]
    of_layers: Any = Reads.of_layers
    for captured, expected in (
        ({"final", "key"}, True),
        ({"key"}, False),
        (set(), False),
    ):
        assert of_layers.fget(SimpleNamespace(captured=frozenset(captured))) == expected
    totals = make_totals({"n": np.array([1.0, 0, 3])})
    assert totals is not None
    assert extremes.SumsAndExtremes(totals, {}).present.tolist() == [True, False, True]


def test_padding_is_neither_largest_nor_in_place_of_what_is() -> None:
    """A dimension of zeros is that of a real token; three padded tokens hide no real one."""
    real = masks_of(".x", "..")
    places = torch.tensor(
        [[[4, k, k, 9] for k in (0, 1)], [[2, k, k, 9] for k in (0, 1)]]
    )
    running = Running(real=real, places=places)
    x = torch.tensor([[[7.0, 7.0], [0.0, 5.0]], [[7.0, 7.0], [7.0, 7.0]]])
    SequenceSums(frozenset({"activation_sequences"})).add(HIDDEN, x, running)
    values, where = running.extremes.at(HIDDEN.name)["activation"]
    assert values.tolist() == [0, 5] and where[:, :2].tolist() == [[4, 1], [4, 1]]
    row = torch.tensor([[[900.0, 1], [900, 1], [900, 1], [3, -4]]])
    counted = masks_of("...x")
    top = extremes._find_top(row, row.abs().amax(-1), counted)
    assert top.tolist() == [[4, 3, 0]]
    found = extremes._compute_matrix_entropy(torch.ones(1, 3, 1), masks_of("xxx"))
    assert all(value.tolist() == [0] for value in found.values())


def test_logits_that_overflow_and_sequences_without_any_do_not_count() -> None:
    running = Running(places=torch.zeros(2, 2, 4, dtype=torch.int64))
    running.find_real_queries = lambda *_: masks_of("xx", "..")  # type: ignore[attr-defined]
    running.locate_queries = lambda *_: running.positions.places  # type: ignore[attr-defined]
    rows = {
        "keys": torch.ones(2, 1, 2),
        "largest": torch.tensor([[[9.0, 2.0]], [[5.0, 5.0]]]),
        "smallest": torch.tensor([[[-math.inf, -3.0]], [[1.0, 1.0]]]),
    }
    site = Site("encoder", 1, "attention")
    LogitExtremes().add(site, rows, running)
    found = {name: x.tolist() for name, x in running.added[site.name].items()}
    assert found == {"logit_sequences": [[1], [0]], "largest_logit": [[2], [0]]}
    assert running.extremes.at(site.name)["negative_logit"][0].tolist() == [3]


def test_each_side_of_attention_has_masks_of_its_own_and_values_their_norms() -> None:
    running = Running()
    sides = {
        "query": SimpleNamespace(real=masks_of("x."), places=torch.zeros(1, 2, 4, dtype=torch.int64)),
        "key": SimpleNamespace(real=masks_of("xx"), places=torch.ones(1, 2, 4, dtype=torch.int64),
                               special=masks_of(".."), punctuation=masks_of("..")),
    }  # fmt: skip
    running.find_masks = lambda site, _: sides[site.quantity]  # type: ignore[method-assign]
    value = {
        "mass": torch.tensor([[[0.75, 0.25]]]), "seen": torch.ones(1, 1, 2),
        "query": torch.tensor([[[[2.0], [99.0]]]]), "key": torch.tensor([[[[3.0], [5.0]]]]),
        "value": torch.tensor([[[[6.0], [2.0]]]]),
    }  # fmt: skip
    site = Site("decoder", 1, "extremes", kind="cross")
    KeySums().add(site, value, running)
    kept = running.extremes.at(site.name)
    assert kept["query_norm"][0].tolist() == [2] and kept["key_norm"][0].tolist() == [5]
    assert kept["query_norm"][1].tolist() == [[0] * 4] and kept["key_norm"][
        1
    ].tolist() == [[1] * 4]
    # the first key is the strongest; its value is 6 long, the mean 4
    assert running.added[site.name]["value_ratio"].tolist() == [[1.5]]
    nothing = torch.zeros(1, 1, 2)
    real = masks_of("xx")
    parts = extremes._classify_keys(sides["key"])
    found = extremes._sum_keys(nothing, nothing, real, parts, torch.ones(1, 1, 2))
    assert not any(x.any() for x in found.values())
