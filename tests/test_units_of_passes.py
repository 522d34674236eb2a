"""Small decisions of a pass over a corpus: masks, groups, rows of the table, sizes, which batch, which layer."""

import dataclasses
import math
from contextlib import nullcontext
from dataclasses import astuple, fields
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from anisoscope.axes import EVERYWHERE, LAYER_QUANTITIES, Site
from anisoscope.batch import Batch, Stream
from anisoscope.capture.masking import Masking
from anisoscope.capture.proof import OUTPUTS, Proof
from anisoscope.capture.rows import attention_rows
from anisoscope.capture.scores import sum_scores
from anisoscope.errors import CorpusError, Interrupted, MeasureError, UsageError
from anisoscope.measure import accumulator, cost, loop, tabulate, trial
from anisoscope.measure.accumulator import Measurement
from anisoscope.measure.masks import Masks, require_labels, to_accumulation_device
from anisoscope.measure.random_state import fork_random_state
from anisoscope.measure.settings import Settings
from anisoscope.measure.trial import MovedError, Trial
from anisoscope.metrics.base import Metric
from anisoscope.reads import Vectors
from anisoscope.reads.base import Reading
from anisoscope.sums.extremes import WHERE

CPU = torch.device("cpu")


def of_ones(*rows):
    return torch.tensor(rows).bool()


# ---- which tokens count

REAL = of_ones([0, 1, 1, 1, 1], [1, 1, 1, 0, 0])
SPECIAL = of_ones([1, 1, 0, 0, 1], [0, 0, 1, 1, 0])
STREAM = Stream(
    REAL,
    SPECIAL,
    torch.tensor([10, 20]),
    frequency=torch.tensor([[0, 1, 2, 0, 4], [3, 3, -1, 0, 0]]),
    punctuation=of_ones([1, 0, 1, 0, 0], [0, 1, 0, 1, 0]),
    image=of_ones([1, 0, 0, 1, 0], [0, 0, 1, 1, 0]),
)


def test_every_mask_of_a_stream_leaves_its_padding_out():
    ids = torch.arange(10).view(2, 5) + 100
    drawn = of_ones([1, 0, 1, 0, 1], [1, 0, 0, 0, 0])
    policies = ("no-first", "all", "content")
    masks = Masks.of(STREAM, policies, torch.tensor([7, 9]), ids, drawn)
    assert masks.policies.long().tolist() == [
        [[0, 0, 1, 1, 1], [0, 1, 1, 1, 1], [0, 0, 1, 1, 0]],
        [[0, 1, 1, 0, 0], [1, 1, 1, 0, 0], [1, 1, 0, 0, 0]],
    ]
    assert masks.special.long().tolist() == [[0, 1, 0, 0, 1], [0, 0, 1, 0, 0]]
    assert masks.punctuation.long().tolist() == [[0, 0, 1, 0, 0], [0, 1, 0, 0, 0]]
    assert masks.image.long().tolist() == [[0, 0, 0, 1, 0], [0, 0, 1, 0, 0]]
    assert masks.real is REAL and masks.drawn is drawn
    assert WHERE == ("unit", "index", "position", "token")
    assert masks.places[0].tolist() == [[7, 10 + k, k - 1, 100 + k] for k in range(5)]
    assert masks.places[1, 2].tolist() == [9, 22, 2, 107]
    for other in (ids.float(), ids[:, :4], None):
        unknown = Masks.of(STREAM, policies, torch.tensor([7, 9]), other)
        assert unknown.places[..., 3].unique().tolist() == [-1]
        assert not unknown.drawn.numel()
    plain = Masks.of(Stream(REAL, SPECIAL, STREAM.start), ("all",))
    assert not plain.places.numel() and not plain.image.any()
    assert not plain.punctuation.any() and not plain.subsets[:, 3:8].any()
    found = masks.subsets[0].long().tolist()
    assert found == [
        [0, 0, 0, 0, 1],  # special, but not the first
        [0, 1, 0, 0, 0],  # the first
        [0, 0, 1, 1, 0],  # others
        [0, 0, 0, 1, 0],  # by frequency, the rarest first
        [0, 1, 0, 0, 0],
        [0, 0, 1, 0, 0],
        [0, 0, 0, 0, 0],
        [0, 0, 0, 0, 1],
        [0, 1, 0, 0, 0],  # by position: 0, from 1, from 8 …
        [0, 0, 1, 1, 1],
        [0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0],
    ]


def test_positions_are_binned_from_each_edge_on():
    real = torch.ones(1, 130, dtype=torch.bool)
    masks = Masks.of(Stream(real, ~real, torch.zeros(1)), ("all",))
    bins = masks.subsets[0, 8:]
    first = [int(row.int().argmax()) for row in bins]
    assert first == [0, 1, 8, 32, 128] and bins.sum(1).tolist() == [1, 7, 24, 96, 2]


def test_masks_are_cut_and_copied_field_by_field():
    masks = Masks.of(
        STREAM, ("all", "content"), torch.tensor([7, 9]), drawn=torch.rand(2, 5) > 0.5
    )
    cut, copied = masks.cut(3), masks.to(CPU)
    for each in fields(masks):
        whole = getattr(masks, each.name)
        expected = whole[:, :3] if each.name == "places" else whole[..., :3]
        assert torch.equal(getattr(cut, each.name), expected), each.name
        assert torch.equal(getattr(copied, each.name), whole), each.name
    assert not Masks.of(STREAM, ("all",)).cut(3).places.numel()


def test_labels_of_a_batch_must_be_those_of_the_plan():
    def batch(label):
        return Batch({}, torch.arange(3), label=label)

    label = torch.tensor([1, -1, 0])
    assert require_labels(batch(label), ("a", "b")) is label
    for given, classes, words in (
        (None, ("a", "b"), "batches without labels"),
        (label, (), "no list of the classes"),
        (label, ("a",), "labels below 1.*got 1"),
        (label + 1, ("a", "b"), "labels below 2.*got 2"),
    ):
        with pytest.raises(UsageError, match=words):
            require_labels(batch(given), classes)
    x = torch.ones(1)
    found = to_accumulation_device({"a": x, "b": {"c": x}, "d": 3})
    assert found["a"] is x and found["b"]["c"] is x and found["d"] == 3


# ---- settings


def test_each_panel_captures_what_its_metrics_read():
    layers = {*LAYER_QUANTITIES}
    table = {
        ("hidden",): (layers, 2048, False),
        ("spectrum",): (layers, 0, False),
        ("attention",): ({"attention", "key", "query", "value"}, 0, False),
        ("alignment",): ({"centred", "key", "query", "scores"}, 0, False),
        ("extremes",): (layers | {"attention", "extremes"}, 2048, False),
        ("class",): (layers, 0, True),
        ("hidden", "attention"): (
            layers | {"attention", "key", "query", "value"},
            2048,
            False,
        ),
    }
    for panel, expected in table.items():
        found = Settings(panel=panel)
        assert (found.what, found.sampled, found.labelled) == expected, panel
    named = Settings(metrics=("floor",), panel=("attention",))
    assert named.what == layers, "values belong to the panel alone"
    both = Settings(panel=("hidden",), sample_heads=True).keepers
    assert [k.heads for k in both if type(k).__name__ == "KeptSample"] == [True]
    assert Settings(panel=("spectrum",), sample_heads=True, sample=7).sampled == 7
    assert "moment" in Settings(panel=("spectrum",)).list_terms("hidden")
    assert "moment" not in Settings(panel=("hidden",)).list_terms("hidden")
    kinds = [type(k).__name__ for k in Settings().keepers]
    assert len(kinds) == len(set(kinds)) and kinds[0] == "VectorSums"
    assert list(Settings(panel=("hidden",)).summaries) == ["partition"]
    assert Settings(panel=("attention",)).summaries == {}


class ToyAttention(nn.Module):
    pass


def test_what_a_model_may_lack():
    """All panels together, and extremes, go without attention; attention by name or alone does not."""
    plain, attends = nn.Linear(1, 1), nn.Sequential(ToyAttention())
    layers = {*LAYER_QUANTITIES}
    heads = {"attention", "key", "query", "value"}
    for model in (plain, attends):
        assert Settings().what_of(model) == (layers | heads, heads)
        floor = Settings(panel=("hidden", "spectrum", "attention", "floor"))
        assert floor.what_of(model) == (layers | heads, heads)
        assert Settings(panel=("hidden", "attention")).what_of(model)[1] == set()
        assert Settings(metrics=("attention",)).what_of(model)[1] == set()
    wide = ("hidden", "extremes", "alignment")
    assert "centred" not in Settings(panel=wide).what_of(plain)[0]
    assert "centred" in Settings(panel=wide).what_of(attends)[0]


def test_settings_that_measure_nothing_are_refused():
    for given, words in (
        ({"tokens": ()}, "token policy"),
        ({"panel": ()}, "panel"),
        ({"bins": (1.0,)}, "bins"),
        ({"bins": (1.0, 1.0)}, "bins"),
        ({"bins": (2.0, 1.0)}, "bins"),
        ({"metrics": ("mean_cosin",)}, "mean_cosine"),
    ):
        with pytest.raises(UsageError, match=words):
            Settings(**given)
    assert Settings(panel=(), metrics=("mean_cosine",)).panel == ()
    assert Settings(bins=(1.0, 2.0)).bins == (1.0, 2.0)


# ---- rows of the table


def a_metric(**how):
    return Metric("toy", Vectors(), lambda data: data, needs={"n"}, **how)


def table_of(values, metric, count, policies=("all", "content"), **columns):
    reading = Reading(values, columns, np.asarray(count, float), names=("u", "v"))
    return list(tabulate.build_columns(metric, reading, policies))


def test_a_value_has_a_row_for_each_policy_head_and_component():
    """Of components those that are undefined have none; each row has the count of its own policy and head."""
    value = np.arange(12.0).reshape(2, 3, 2)
    value[1, 0, 1] = np.nan
    replicates = np.stack([value, value + 1, value - 1, value + 3])
    metric = a_metric(components={"part": lambda names: tuple(n * 2 for n in names)})
    count = [[5, 6, 7.6], [8, 9, 10]]
    ((columns, left_out),) = table_of({"part": replicates}, metric, count, stack="enc")
    assert columns["metric"] == ["toy.part"] * 11 and columns["stack"] == ["enc"] * 11
    assert columns["component"] == ["uu", "vv"] * 3 + ["uu"] + ["uu", "vv"] * 2
    assert columns["token_policy"] == ["all"] * 6 + ["content"] * 5
    assert columns["head"] == [0, 0, 1, 1, 2, 2, 0, 1, 1, 2, 2]
    assert columns["n_vectors"] == [5, 5, 6, 6, 8, 8, 8, 9, 9, 10, 10]
    assert columns["value"] == [0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11]
    assert left_out.shape == (11, 3)
    assert left_out[:, 0].tolist() == [v + 1 for v in columns["value"]]
    assert left_out[:, 2].tolist() == [v + 3 for v in columns["value"]]


def test_of_very_many_components_no_replicates_are_kept():
    for components, kept in ((64, True), (65, False)):
        ((_, left_out),) = table_of(
            {"": np.ones((3, 1, 1, components))}, a_metric(), [[1]]
        )
        assert (left_out is not None) == kept
    ((columns, left_out),) = table_of(
        {"": np.full((1, 1, 1), np.nan)}, a_metric(), [[1]]
    )
    assert left_out is None and columns["metric"] == ["toy"]
    assert columns["component"] == [None] and math.isnan(columns["value"][0])


def test_shares_are_counted_and_ends_are_kept_inside():
    even = np.ones((6, 1, 1))
    plain = table_of({"": even}, a_metric(), [[10]])[0][0]
    assert plain["low"] == [1] and plain["high"] == [1]
    counted = table_of({"": even}, a_metric(counted=frozenset({""})), [[10]])[0][0]
    assert counted["low"][0] == pytest.approx(1 - 0.27753, abs=1e-4)
    wide = np.array([0.5, 0.1, 0.9, 0.5, 0.5]).reshape(5, 1, 1)
    free = table_of({"": wide}, a_metric(), [[10]])[0][0]
    bound = a_metric(bounds={"": lambda data: (0.0, 2.0) if "" in data else (0.0, 0.0)})
    inside = table_of({"": wide}, bound, [[10]])[0][0]
    assert free["low"][0] < 0 <= inside["low"][0]


def test_groups_that_hold_data_are_found_in_each_form():
    find = tabulate._list_present_groups
    flags = SimpleNamespace(present=np.array([True, False, True]))
    assert find(flags).tolist() == [0, 2]
    assert find(SimpleNamespace(first=flags, present=np.array([1]))).tolist() == [0, 2]
    assert find(SimpleNamespace(present=np.array([4, 1]))).tolist() == [4, 1]
    assert find(None).tolist() == []
    empty = tabulate.Replicates(3).arrays()
    assert empty[0].shape == (0,) and empty[1].shape == (0, 3)


# ---- what a pass keeps


def begun(streams, units=(0, 1), inputs=None, positions=None, **how):
    kept = Measurement(Settings(**({"metrics": ("mean_cosine",), "groups": 3} | how)))
    batch = Batch(inputs or {}, torch.tensor(units), streams)
    return kept, kept.begin(batch, CPU, positions)


def stream_of(*rows, start=0):
    real = of_ones(*rows)
    return Stream(real, ~real, torch.zeros(len(rows), dtype=torch.int64) + start)


def test_keys_of_cross_attention_have_the_encoder_s_masks():
    """Also if its padding is not passed on; real tokens must not be lost."""
    streams = {
        "encoder": stream_of([1, 1, 0, 0], [1, 1, 1, 0]),
        "decoder": stream_of([1, 0], [1, 1]),
    }
    kept, real = begun(streams)
    assert torch.equal(real["encoder"], streams["encoder"].mask)
    assert torch.equal(real["decoder"], streams["decoder"].mask)

    def masks(quantity, kind, tokens):
        site = Site("decoder", 1, quantity, kind=kind)
        return kept.find_masks(site, torch.zeros(2, 3, tokens, 5)).real.long().tolist()

    assert masks("query", "cross", 2) == [[1, 0], [1, 1]]
    assert masks("key", "self", 2) == [[1, 0], [1, 1]]
    assert masks("key", "cross", 4) == [[1, 1, 0, 0], [1, 1, 1, 0]]
    assert masks("value", "cross", 3) == [[1, 1, 0], [1, 1, 1]]
    for tokens in (2, 5):
        with pytest.raises(MeasureError, match=r"encoder sites of shape \(2, 4\)"):
            masks("key", "cross", tokens)
    site = Site("decoder", 1, "hidden")
    assert kept.find_masks(site, torch.zeros(2, 2, 5)).real.shape == (2, 2)
    with pytest.raises(MeasureError, match="2 sequences"):
        kept.find_masks(site, torch.zeros(3, 2, 5))
    tower = Site("vision", 1, "hidden")
    kept.find_masks(tower, torch.zeros(2, 9, 5))
    assert masks("key", "cross", 9) == [[1] * 9] * 2


def test_a_tower_without_a_stream_has_special_tokens_in_each_part():
    positions = SimpleNamespace(
        parts={"vision": 2},
        specials=lambda _site: 1,
        streams=lambda batch: batch.streams,
    )
    kept, _ = begun({}, positions=positions)
    found = kept.find_masks(Site("vision", 1, "hidden"), torch.zeros(2, 6, 3))
    assert found.special.long().tolist() == [[1, 0, 0, 1, 0, 0]] * 2
    assert found.real.all()
    whole = kept.find_masks(Site("audio", 1, "hidden"), torch.zeros(2, 5, 3))
    assert whole.special.long().tolist() == [[1, 0, 0, 0, 0]] * 2
    single = kept.find_masks(Site("vision", 2, "hidden"), torch.zeros(2, 1, 3))
    assert not single.special.any()
    plain, _ = begun({})
    assert not plain.find_masks(
        Site("vision", 1, "hidden"), torch.zeros(2, 6, 3)
    ).special.any()


def test_queries_are_located_in_their_stream_if_their_number_fits():
    streams = {"encoder": stream_of([0, 1, 1], [1, 1, 0], start=5)}
    ids = torch.arange(6).view(2, 3) + 40
    kept, _ = begun(streams, (3, 8), {"input_ids": ids}, metrics=("sinks",))
    site = Site("encoder", 1, "attention")
    keys = torch.zeros(2, 4, 3)
    assert kept.find_real_queries(site, keys).long().tolist() == [[0, 1, 1], [1, 1, 0]]
    assert kept.find_real_queries(site, torch.zeros(2, 4, 2)).all()
    assert kept.find_real_queries(Site("decoder", 1, "attention"), keys).shape == (2, 3)
    if kept._placed:
        assert kept.locate_queries(site, keys)[1, 2].tolist() == [8, 7, 1, 45]
    kept._placed = True
    other = kept.locate_queries(site, torch.zeros(2, 4, 2))
    assert other[1].tolist() == [[8, 5, 0, -1], [8, 6, 1, -1]]


def test_units_are_dealt_to_groups_and_batches_are_numbered():
    kept, _ = begun({}, (4, 5, 9))
    assert kept.group.tolist() == [1, 2, 0] and kept.sums.units == {4, 5, 9}
    kept.end()
    kept.end(7)
    kept.end()
    assert kept.batches == {0, 7, 2}
    kept.add_sums("s", {"n": torch.tensor([1.0, 2.0, 4.0])})
    assert kept.sums.terms["s", "n"].tolist() == [4, 1, 2]


def test_attention_that_is_given_up_is_given_up_everywhere():
    kept, _ = begun({})
    sites = [
        Site("encoder", 1, "attention"),
        Site("encoder", 1, "query", kind="cross"),
        Site("encoder", 2, "hidden"),
    ]
    for site in sites:
        kept.sites[site.name] = site
        kept.sums.terms[site.name, "n"] = torch.ones(3)
        kept.extremes.offer(
            site.name, "t", torch.ones(1), torch.ones(1, 4, dtype=torch.int64)
        )
    kept.refuse({("encoder", 1, "cross"): "a"})
    gone = sites[1].name
    assert gone not in kept.sites and (gone, "n") not in kept.sums.terms
    assert (gone, "t") not in kept.extremes.terms and len(kept.sites) == 2
    kept.receive(sites[1], torch.ones(2, 1, 1, 1))
    assert gone not in kept.sites
    kept.refuse({EVERYWHERE: "b"})
    assert list(kept.sites) == ["encoder.2.hidden"]
    assert {site for site, _ in kept.extremes.terms} == {"encoder.2.hidden"}
    assert kept.refused == {("encoder", 1, "cross"): "a", EVERYWHERE: "b"}


def full(seed=0, **how):
    """A measurement with every field unlike its default."""
    kept, _ = begun({"encoder": stream_of([1, 1], [1, 0])}, (seed, seed + 1), **how)
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(2, 2, 3, generator=draw, dtype=torch.float64)
    kept.receive(Site("encoder", 1, "hidden"), x)
    kept.add_sample(Site("encoder", 1, "hidden"), x)
    kept.sites["d"] = Site("d", 4, "key", "raw", "cross")
    kept.end(seed)
    kept.plan = f"plan {seed}"
    kept.weights = {f"embedding.{seed}": {"rows": torch.tensor([3.0 + seed])}}
    kept.classes = ("x", "y")
    kept.unseen = {f"unseen {seed}"}
    kept.refused = {("encoder", 7 + seed, "cross"): f"why {seed}"}
    kept.proof = Proof(0.5 + seed, limit=0.25)
    kept.pieces = 2 + seed
    kept.extremes.offer(
        "s", "t", torch.tensor([1.0 + seed]), torch.tensor([[seed, 2, 3, 4]])
    )
    return kept


SAMPLED = {"metrics": ("mean_cosine", "floor"), "sample": 8}


def test_every_field_of_a_measurement_is_kept_in_its_file(tmp_path):
    kept = full(**SAMPLED)
    kept.save(tmp_path / "x", {"more": "text"})
    again = Measurement.restore(tmp_path / "x", kept.settings)
    for name in ("plan", "batches", "classes", "unseen", "refused", "proof"):
        assert getattr(again, name) == getattr(kept, name), name
    assert again.weights["embedding.0"]["rows"].tolist() == [3]
    assert again.sums.units == {0, 1}
    assert [astuple(s) for s in again.sites.values()] == [
        astuple(s) for s in kept.sites.values()
    ]
    assert again.sums.terms.keys() == kept.sums.terms.keys()
    for key, value in kept.sums.terms.items():
        assert torch.equal(again.sums.terms[key], value)
    assert again.extremes.at("s")["t"][1].tolist() == [[0, 2, 3, 4]]
    sample, other = kept.reservoirs["encoder"], again.reservoirs["encoder"]
    assert len(sample.hash) == 3 and torch.equal(sample.hash, other.hash)
    assert torch.equal(sample.unit, other.unit)
    assert again.nbytes == kept.nbytes > kept.extremes.nbytes == 40


def test_every_field_of_two_measurements_is_joined():
    one, two = full(**SAMPLED), full(5, **SAMPLED)
    two.refused = {("encoder", 12, "cross"): "why 5"}
    both = one.merge(two)
    assert both.plan == "" and both.batches == {0, 5} and both.pieces == 7
    assert set(both.weights) == {"embedding.0", "embedding.5"}
    assert both.unseen == {"unseen 0", "unseen 5"} and both.classes == ("x", "y")
    assert set(both.refused.values()) == {"why 0", "why 5"}
    assert both.proof.outputs == 5.5 and both.sums.units == {0, 1, 5, 6}
    assert both.extremes.at("s")["t"][0].tolist() == [6]
    assert sorted(both.reservoirs["encoder"].unit.tolist()) == [0, 0, 1, 5, 5, 6]
    n = both.sums.terms["encoder.1.hidden", "n"]
    assert n.sum() == one.sums.terms["encoder.1.hidden", "n"].sum() * 2
    two.plan = one.plan
    assert one.merge(two).plan == "plan 0"
    two.plan = ""
    assert one.merge(two).plan == two.merge(one).plan == "plan 0"
    two.batches = {0}
    one.merge(two)
    two.plan = one.plan
    with pytest.raises(MeasureError, match="1 of the same batches"):
        one.merge(two)
    two.batches, two.classes = {3}, ("x", "z")
    with pytest.raises(MeasureError, match="x, z"):
        one.merge(two)
    two.classes = ()
    assert one.merge(two).classes == two.merge(one).classes == ("x", "y")


def test_vectors_left_out_are_counted_where_there_are_some():
    kept, _ = begun({})
    kept.sums.terms = {
        ("a", "zero"): torch.tensor([1.0, 2.0]),
        ("a", "nonfinite"): torch.zeros(2),
        ("b", "zero"): torch.zeros(2),
        ("c", "nonfinite"): torch.tensor([0.0, 4.0]),
        ("d", "n"): torch.ones(2),
    }
    assert kept.excluded() == {"a": {"zero": 3, "nonfinite": 0}, "c": {"nonfinite": 4}}


def test_names_of_older_files_are_today_s():
    rename = accumulator._rename_place
    assert rename("units") == "units"
    assert rename("sample encoder hash") == "sample encoder hash"
    assert rename("sums encoder.1.hidden|norm") == "sums encoder.1.hidden|norm"
    ids = torch.zeros(1)
    batch = Batch({"decoder_input_ids": [1], "input_ids": ids}, torch.zeros(1))
    assert accumulator._find_ids(batch, "decoder") is ids
    assert accumulator._find_ids(Batch({"x": ids}, ids), "decoder") is None


def test_the_spectrum_of_wide_vectors_is_measured_if_nothing_else_is():
    wide = Measurement(Settings(panel=("spectrum",))).moments
    mixed = Measurement(Settings(panel=("hidden", "spectrum"))).moments
    assert wide._count_groups(4096) > 0 and mixed._count_groups(4096) == 0


# ---- what a pass costs


def test_sites_are_chosen_by_quantity_or_stage_and_layer():
    shapes = {
        Site("e", 1, "query", "raw"): (2, 4),
        Site("e", 1, "query", "rotated"): (2, 4),
        Site("e", 2, "key", "raw"): (2, 4),
        Site("e", 2, "hidden"): (0, 8),
        Site("e", None, "final"): (0, 8),
        Site("d", 3, "hidden"): (0, 8),
    }

    def chosen(what, **how):
        found = cost._select_wanted(shapes, what, Settings(**how))
        return [(s.stack, s.layer, s.label) for s in found]

    assert chosen({"query.raw", "hidden"}) == [
        ("e", 1, "query.raw"),
        ("e", 2, "hidden"),
        ("d", 3, "hidden"),
    ]
    assert chosen({"final", "hidden"}, layers=(-1,)) == [
        ("e", 2, "hidden"),
        ("e", None, "final"),
        ("d", 3, "hidden"),
    ]
    assert chosen({"query"}, layers=(-2,)) == [
        ("e", 1, "query.raw"),
        ("e", 1, "query.rotated"),
    ]
    queries = {s: x for s, x in shapes.items() if s.quantity == "query"}
    queries[Site("e", 1, "query", kind="cross")] = (1, 3)
    queries[Site("e", 2, "query")] = (5, 2)
    assert cost._count_attention_flops(queries) == 4 * (8 + 3 + 10)


def test_alike_sites_are_estimated_together():
    sites = {
        Site("e", 1, "hidden"): (0, 8),
        Site("d", 2, "hidden"): (0, 8),
        Site("e", 3, "hidden"): (0, 9),
        Site("e", 1, "query", "raw"): (2, 4),
        Site("e", 1, "query", "rotated"): (2, 4),
        Site("e", 2, "query", "raw"): (2, 4),
    }
    shapes = cost.Shapes(sites, 1.0, 1.0, 4, 10, torch.float32)
    groups = cost._group_alike(shapes)
    assert [(shape, len(found)) for shape, found in groups] == [
        ((8,), 2),
        ((9,), 1),
        ((2, 4), 2),
        ((2, 4), 1),
    ]
    left = cost._leave_out_unestimated(
        Settings(
            panel=("class",), metrics=("class_direction", "drift"), sample_heads=True
        )
    )
    assert (left.panel, left.metrics, left.sample_heads) == (
        ("hidden",),
        ("drift",),
        False,
    )
    assert cost._leave_out_unestimated(Settings(panel=("class", "spectrum"))).panel == (
        "spectrum",
    )


def test_an_estimate_is_of_what_a_pass_allocates():
    """Each number by itself: sums, moments, sample, weights, the panels and what the model computes."""
    sites = {Site("e", layer, "hidden"): (0, 6) for layer in range(3)}
    shapes = cost.Shapes(sites, 50.0, 2.0, 4, 10, torch.bfloat16)
    settings = Settings(
        panel=("hidden", "spectrum"), groups=4, sample=5, spectrum_groups=2
    )
    found = cost.estimate_cost(shapes, settings, 8)
    assert (found.weights, found.tokens, found.model) == (20, 8, 50 + 2 * 8)
    assert found.sample == 5 * 3 * 6 * 4 and found.sites == 3
    kept = Measurement(settings)
    real = torch.ones(4, 8, dtype=torch.bool)
    kept.begin(
        Batch(
            {},
            torch.arange(4),
            {"e": Stream(real, ~real, torch.zeros(4, dtype=torch.int64))},
        ),
        CPU,
    )
    for site in sites:
        kept.receive(site, torch.randn(4, 8, 6))
    of_moments = of_sums = 0
    for (_, term), x in kept.sums.terms.items():
        if term in cost.MOMENTS:
            of_moments += x.nbytes
        else:
            of_sums += x.nbytes
    assert found.sums == of_sums
    assert of_moments <= found.moments <= 3 * of_moments
    assert list(found.panels) == ["hidden", "spectrum"] and found.panels["spectrum"] > 0
    # An added product, of which torch's own counter knows nothing.
    assert cost._count_added_flops(None, (5, 7), (7, 3)) == 2 * 5 * 7 * 3
    assert found.panels["spectrum"] >= 3 * 2 * 2 * 6 * 6
    half = cost.estimate_cost(
        shapes, dataclasses.replace(settings, spectrum_share=0.5), 8
    )
    assert half.panels["spectrum"] == found.panels["spectrum"] / 2
    assert half.panels["hidden"] == found.panels["hidden"]
    assert cost.estimate_cost(shapes, settings).tokens == 4
    wide = cost.Shapes(
        {Site("e", 9, "hidden"): (0, 3000)} | sites, 1.0, 1.0, 4, 1, torch.float32
    )
    assert cost.estimate_cost(wide, settings).unmeasured == 0
    free = Settings(panel=("hidden", "spectrum"), groups=4)
    assert cost.estimate_cost(wide, free).unmeasured == 1


def test_stand_ins_of_captured_tensors_have_the_shapes_of_captured_ones():
    x = torch.empty(1, 2, 5, 3, device="meta")
    settings = Settings(medians=True, bins=(0.0, 1.0))
    real = torch.randn(1, 2, 5, 3)
    masking = Masking(None, False, None)
    rows = attention_rows(
        real, real, masking, scale=1.0, median=True, histogram=torch.tensor([0.0, 1.0])
    )

    def shapes(tensors):
        return {name: tuple(t.shape) for name, t in tensors.items()}

    made = cost._make_captured(Site("e", 1, "attention"), x, settings)
    assert shapes(made) == shapes(rows)
    centred = cost._make_captured(Site("e", 1, "centred"), x, settings)
    assert list(centred) == ["plain", "query", "key"]
    sums = sum_scores(real, real, masking, scale=1.0)
    assert shapes(cost._make_captured(Site("e", 1, "scores"), x, settings)) == shapes(
        sums
    )
    extremes = cost._make_captured(Site("e", 1, "extremes"), x, settings)
    assert set(extremes) == {"mass", "seen", "query", "key", "value"}
    assert extremes["mass"].shape == (1, 2, 5)
    assert cost._make_captured(Site("e", 1, "query"), x, settings) is x
    plain = cost._make_captured(Site("e", 1, "attention"), x, Settings())
    assert not {"row_median", "score_histogram"} & plain.keys()


# ---- the loop


class Plan:
    def __init__(self, batches, tokens=()):
        self.batches, self.tokens = batches, tokens

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        return self.batches[index]


def test_batches_that_are_held_or_not_asked_for_are_not_built():
    built = []

    class Lazy(Plan):
        def __getitem__(self, index):
            built.append(index)
            return f"batch {index}"

    for plan in (Lazy([0] * 5), iter([f"batch {i}" for i in range(5)])):
        found = list(loop.pending_batches(plan, {1, 2, 4}, {2}))
        assert found == [(1, "batch 1"), (4, "batch 4")]
    assert built == [1, 4]
    assert [i for i, _ in loop.pending_batches(Lazy([0] * 3), None, {1})] == [0, 2]
    sizes = Plan([0] * 3, [5, 6, 7])
    assert loop._get_sizes(sizes, None) == {0: 5, 1: 6, 2: 7}
    assert (
        loop._get_sizes(sizes, {2, 0}) == {0: 5, 2: 7}
        and loop._get_sizes([1], None) == {}
    )
    assert loop._get_first_batch(Plan(["a", "b"])) == "a"
    assert loop._get_first_batch(iter(["c", "d"])) == "c"


def test_a_state_is_saved_after_a_minute_and_large_ones_later():
    due = loop._is_save_due
    small, large = SimpleNamespace(nbytes=0), SimpleNamespace(nbytes=1e9)
    assert not due(small, 60) and due(small, 60.1)
    assert not due(large, 200) and due(large, 200.1)
    with pytest.raises(CorpusError):
        loop._require_batches(SimpleNamespace(batches=set()), None)
    loop._require_batches(SimpleNamespace(batches=set()), {1})
    loop._require_batches(SimpleNamespace(batches={1}), None)


def test_a_pass_begins_with_its_state_and_without_attention_that_was_given_up(tmp_path):
    kept = full()
    kept.save(tmp_path / "x")
    plan = SimpleNamespace(fingerprint="plan 0", classes=("p", "q"))
    new = loop._begin_or_restore(plan, kept.settings, None, None)
    assert (new.plan, new.classes, new.batches, new.refused) == (
        "plan 0",
        (),
        set(),
        {},
    )
    labelled = loop._begin_or_restore(plan, Settings(panel=("class",)), None, None)
    assert labelled.classes == ("p", "q")
    missing = loop._begin_or_restore(plan, kept.settings, tmp_path / "y", "moved")
    assert missing.batches == set() and missing.refused == {EVERYWHERE: "moved"}
    again = loop._begin_or_restore(plan, kept.settings, tmp_path / "x", "moved")
    assert again.batches == {0} and again.refused[EVERYWHERE] == "moved"
    with pytest.raises(MeasureError, match="sums of another corpus"):
        loop._begin_or_restore(
            SimpleNamespace(fingerprint="z"), kept.settings, tmp_path / "x", None
        )
    for state in (None, tmp_path / "z"):
        with pytest.raises(Interrupted):
            loop._save_and_interrupt(kept, state, 15)
    assert Measurement.restore(tmp_path / "z", kept.settings).batches == {0}


def test_arrays_are_layers_from_either_end():
    def layers(**how):
        kept = Measurement(Settings(metrics=("norms",), tokens=("all",), **how))
        arrays = {str(n): torch.full((2, 1, 3), n + 1.0) for n in range(3)}
        loop._add_arrays(
            kept, Batch(arrays, torch.arange(2), {"vectors": stream_of([1], [1])}), 4
        )
        assert kept.batches == {4}
        found = {}
        for site in kept.sites.values():
            found[site.layer] = float(kept.sums.terms[site.name, "norm"].sum()) / 2
        return {layer: round(value**2 / 3) for layer, value in found.items()}

    assert layers() == {0: 1, 1: 4, 2: 9}
    assert layers(layers=(0, -1)) == {0: 1, 2: 9} and layers(layers=(-3,)) == {0: 1}
    for wrong in (3, -4):
        with pytest.raises(UsageError, match=f"0 to 2.*got {wrong}"):
            layers(layers=(0, wrong))


def test_tensors_are_moved_wherever_they_are():
    x = torch.ones(2)
    given = {"a": [x, (x, 1)], "b": "text", "c": None}
    found = loop._map_tensors(lambda t: t + 1, given)
    assert found["a"][0].tolist() == found["a"][1][0].tolist() == [2, 2]
    assert (
        type(found["a"][1]) is tuple and found["b"] == "text" and found["a"][1][1] == 1
    )
    assert loop.move_batch(x, CPU) is x
    assert list(loop.prefetch(iter([(3, "b")]), CPU)) == [(3, "b")]
    meta = nn.Linear(2, 2, device="meta")
    assert loop.find_device(meta) == CPU
    meta.child = nn.Identity()
    meta.child._hf_hook = SimpleNamespace(execution_device="meta")
    assert loop.find_device(meta) == torch.device("meta")
    assert loop.find_device(nn.Sequential(nn.Linear(1, 1))) == CPU
    partly = nn.Sequential(nn.Linear(1, 1, device="meta"), nn.Linear(1, 1))
    assert loop.find_device(partly) == CPU


class WithTables(nn.Module):
    def __init__(self, into, out=None):
        super().__init__()
        self.into, self.out = into, out

    def get_input_embeddings(self):
        return self.into

    def get_output_embeddings(self):
        if self.out is None:
            raise NotImplementedError
        return self.out


def test_embedding_matrices_are_found_inside_wrappers():
    inner = WithTables(nn.Embedding(5, 3), nn.Linear(3, 7, bias=False))
    wrapped = nn.Sequential(nn.Sequential(inner))
    assert loop.unwrap_single(wrapped, "get_input_embeddings") is inner
    two = nn.Sequential(nn.Identity(), inner)
    assert loop.unwrap_single(two, "get_input_embeddings") is two
    settings = Settings(panel=("hidden",))
    found = loop.summarise_embeddings(wrapped, settings)
    assert list(found) == ["embedding.input", "embedding.output"]
    assert list(loop.summarise_embeddings(two, settings)) == []
    assert list(loop.summarise_embeddings(WithTables(inner.into), settings)) == [
        "embedding.input"
    ]
    assert loop.summarise_embeddings(WithTables(inner.into.weight), settings) == {}
    assert loop._find_shape(inner.into) == (5, 3) and loop._find_shape(inner.out) == (
        7,
        3,
    )
    bare = nn.Module()
    assert loop._find_shape(bare) is None
    bare.weight = torch.zeros(4, 2)
    assert loop._find_shape(bare) == (4, 2)
    bare.weight = torch.zeros(4)
    assert loop._find_shape(bare) is None
    packed = nn.Embedding(5, 3)
    packed.weight = nn.Parameter(
        torch.zeros(5, 3, dtype=torch.int8), requires_grad=False
    )
    assert loop.summarise_embeddings(WithTables(packed), settings) == {}


def test_of_a_large_matrix_only_its_rows_are_counted(monkeypatch):
    model = WithTables(nn.Embedding(5, 3))
    monkeypatch.setattr(loop, "SLOW", 44)
    found = loop.summarise_embeddings(model, Settings(panel=("hidden",)))[
        "embedding.input"
    ]
    assert {name: x.tolist() for name, x in found.items()} == {"rows": [5]}
    named = loop.summarise_embeddings(model, Settings(metrics=("partition",)))
    assert len(named["embedding.input"]) > 1
    monkeypatch.setattr(loop, "SLOW", 45)
    whole = loop.summarise_embeddings(model, Settings(panel=("hidden",)))[
        "embedding.input"
    ]
    assert whole.keys() == named["embedding.input"].keys()


def test_embeddings_are_read_once_or_by_all_together(monkeypatch):
    calls = []
    monkeypatch.setattr(
        loop, "summarise_embeddings", lambda *_: calls.append(1) or {"x": 1}
    )
    monkeypatch.setattr(loop, "reshard", lambda _model: calls.append("reshard"))
    for panel, weights, together, expected in (
        ("hidden", {}, False, [1]),
        ("hidden", {"y": 1}, False, []),
        ("hidden", {"y": 1}, True, ["reshard", 1]),
        ("attention", {}, True, []),
    ):
        calls.clear()
        kept = SimpleNamespace(settings=Settings(panel=(panel,)), weights=weights)
        loop._add_embeddings(None, kept, together=together)
        assert calls == expected
        assert kept.weights == ({"x": 1} if expected else weights)


def test_means_of_heads_are_over_all_groups_and_by_their_own_counts(monkeypatch):
    """A head without a single query has a mean of zeros; only what decides about the sites is passed on."""
    site = Site("e", 3, "scores", kind="cross")
    by_group = {
        "query": [[[2.0, 4.0], [0.0, 0.0]], [[4.0, 2.0], [0.0, 0.0]]],
        "rows": [[1.0, 0.0], [2.0, 0.0]],
        "key": [[[1.0, 1.0], [3.0, 9.0]], [[5.0, 2.0], [5.0, 3.0]]],
        "keys": [[1.0, 2.0], [1.0, 2.0]],
    }
    terms = {(site.name, name): torch.tensor(x) for name, x in by_group.items()}
    kept = SimpleNamespace(sites={site.name: site}, sums=SimpleNamespace(terms=terms))
    asked = []
    monkeypatch.setattr(
        loop, "_measure_shared", lambda *given: asked.append(given) or kept
    )
    settings = Settings(
        blocks=("B",), tokens_first=True, layers=(1,), tokens=("content", "all")
    )
    means = loop.measure_head_means("model", ["plan"], settings)
    query, key = means["e", 3, "cross"]
    assert query.tolist() == [[2, 2], [0, 0]] and key.tolist() == [[3, 1.5], [2, 3]]
    ((model, plan, given),) = asked
    assert (model, plan) == ("model", ["plan"]) and given.metrics == ("score_terms",)
    assert (given.blocks, given.tokens_first, given.layers) == (("B",), True, (1,))
    assert given.tokens == ("content",) and given.groups == 2
    with pytest.raises(UsageError, match="an iterator"):
        loop.measure_head_means("model", iter([1]), settings)


def test_all_that_was_kept_is_handed_to_the_metrics():
    kept = full(**SAMPLED)
    found = kept.gather()
    for name in ("sums", "sites", "reservoirs", "weights", "classes", "extremes"):
        assert getattr(found, name) is getattr(kept, name), name


def test_a_process_without_batches_calls_the_model_until_all_are_ready():
    calls, answers = [], iter([(True, 0), (True, 0), (False, 0)])
    asked = []
    steps = SimpleNamespace(
        together=True, agree=lambda *given: asked.append(given) or next(answers)
    )
    model = nn.Linear(1, 1)
    batch = Batch(
        {"x": torch.ones(1)}, torch.zeros(1), call=lambda **given: calls.append(given)
    )
    assert loop._keep_in_step(model, batch, steps, []) == 0
    assert len(calls) == 3 and list(calls[0]) == ["x"] and asked == [(False, 0)] * 3
    answers = iter([(True, 9)])
    assert loop._keep_in_step(model, batch, steps, [15]) == 9
    assert asked[-1] == (False, 15) and len(calls) == 4


# ---- a trial of the first batch


class Counted(nn.Module):
    """Adds what `moves` says for each call in turn."""

    def __init__(self, *moves):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.moves = list(moves)
        self.drawn = []

    def forward(self, x):
        self.drawn.append(float(torch.rand(1)))
        move = self.moves.pop(0)
        if isinstance(move, Exception):
            raise move
        x *= -1  # inputs are its own to write into
        return x + move


def tried(*moves, gives_up=True, skipped="", fused=False, fails=False):
    model = Counted(*moves)
    tap = SimpleNamespace(
        model=model, detach=nullcontext, proof=None, receiver_failed=fails, fused=fused
    )
    own = Trial(tap, gives_up=gives_up, skipped=skipped)
    try:
        own(model, {"x": torch.tensor([1.0, 2.0])})
    finally:
        assert tap.proof is None
        # Drawn for the comparison alone, and given back.
        assert len(set(model.drawn[:2])) == 1
    return own.proof, len(model.drawn)


def test_what_a_trial_compares(monkeypatch):
    assert tried(0, 0) == (Proof(0.0), 2)
    assert tried(0, skipped="why") == (Proof(skipped="why"), 1)
    with pytest.raises(
        MovedError, match=r"moves the outputs by 5\.0e-01 of the largest"
    ):
        tried(0, 1.0, 0)
    proof, calls = tried(0, 1.0, 0, gives_up=False)
    assert (proof.outputs, proof.noise, proof.limit, calls) == (0.5, 0, 0, 3)
    proof, calls = tried(0, 1.0, 0.125)
    assert (proof.noise, proof.moved, calls) == (0.0625, False, 3)
    asked = []
    monkeypatch.setattr(
        trial,
        "fork_random_state",
        lambda devices: asked.append(set(devices)) or fork_random_state(devices),
    )
    proof, calls = tried(0, 1e-6, fused=True)
    assert asked == [{CPU}], "those of the model's weights"
    assert (proof.limit, calls) == (OUTPUTS[torch.float32], 2) and proof.outputs > 0


def test_which_errors_of_a_first_batch_blame_the_capture():
    error = ValueError("x")
    with pytest.raises(MovedError, match="ends with ValueError within the capture"):
        tried(0, error)
    for moves, how in (
        ((error,), {}),
        ((0, error), {"gives_up": False}),
        ((0, error), {"fails": True}),
        ((error,), {"skipped": "why"}),
    ):
        with pytest.raises(ValueError, match="x"):
            tried(*moves, **how)
    for other in (MeasureError("a", "b", "c"), torch.OutOfMemoryError("full")):
        with pytest.raises(type(other)):
            tried(0, other)


def test_random_numbers_go_on_as_if_nothing_was_drawn():
    torch.manual_seed(3)
    with fork_random_state([CPU, torch.device("meta")]):
        first = torch.rand(2)
    assert torch.equal(torch.rand(2), first)
    with pytest.raises(KeyError), fork_random_state([]):
        torch.rand(5)
        raise KeyError
    second = torch.rand(2)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(4)[2:], second)


def test_every_device_of_each_kind_keeps_its_random_numbers(monkeypatch):
    """One call for a kind with all its numbers; what has no state, or no number, is not asked for one."""
    kept, restored = [], []

    def fork_rng(devices, device_type="cuda"):
        kept.append((device_type, [*devices]))
        return nullcontext()

    monkeypatch.setattr(torch.random, "fork_rng", fork_rng)
    monkeypatch.setattr(torch.mps, "get_rng_state", lambda: "state")
    monkeypatch.setattr(torch.mps, "set_rng_state", restored.append)
    monkeypatch.setattr(torch, "xpu", SimpleNamespace(get_rng_state=None))
    monkeypatch.setattr(torch, "xla", SimpleNamespace(), raising=False)
    names = ("xpu:1", "cuda:2", "cuda:0", "cuda:2", "meta", "cpu", "mps", "xla:0")
    devices = [*map(torch.device, names), torch.device("xpu")]
    with fork_random_state(devices):
        assert restored == []
    assert kept == [("cuda", []), ("cuda", [0, 2]), ("xpu", [0, 1])]
    assert restored == ["state"]
