"""Small decisions about runs, charts and models, each on a few numbers: which end, which of two, from how many on."""

import json
import types
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from anisoscope.axes import Site
from anisoscope.batch import Stream
from anisoscope.charts import builders, export, style
from anisoscope.data.arrays import wrap_vectors
from anisoscope.errors import MeasureError, ModelError, UsageError
from anisoscope.measure.settings import Settings
from anisoscope.models import (
    blocks,
    devices,
    families,
    formats,
    hub,
    hub_faults,
    hub_memory,
    identity,
    other_libraries,
)
from anisoscope.report import card
from anisoscope.runs import (
    across,
    attention,
    classes,
    comparison,
    curing,
    differences,
    extremes,
    findings,
    job,
    layers_of_heads,
    merge,
    run as of_runs,
    run_cache,
    series,
    short_tables,
    vectors as of_vectors,
)
from anisoscope.runs.differences import Difference, KeptRun
from anisoscope.store import as_records

NAN = float("nan")


def row(metric, layer=1, value=0.5, low=NAN, high=NAN, **more):
    found = {
        "metric": metric,
        "stack": "encoder",
        "kind": "self",
        "layer": layer,
        "site": "hidden",
    }
    return (
        found
        | {"value": value, "low": low, "high": high, "n_vectors": 1000, "n_units": 40}
        | more
    )


def head(metric, number, value, spread=0.01, **more):
    return row(
        metric,
        value=value,
        low=value - spread,
        high=value + spread,
        head=number,
        site="attention",
        **more,
    )


def records(rows):
    return as_records(pd.DataFrame(rows))


# ---- attention and extremes ------------------------------------------------------------------------------------------


def test_heads_are_named_if_the_whole_interval_lies_beyond():
    rows = [
        head("attention.first_mass", 0, 0.52),
        head("attention.first_mass", 1, 0.505),
    ]
    rows += [
        head("attention.entropy_normalised", 0, 0.97),
        head("attention.entropy_normalised", 1, 0.955),
    ]
    rows += [head("attention.row_max", 0, 0.95), head("attention.row_max", 1, 0.905)]
    aligned = {"site": "query.raw", "token_policy": "all"}
    rows += [
        head("query_key.cosine", 0, 0.85) | aligned,
        head("query_key.cosine", 1, -0.85) | aligned,
    ]
    rows += [head("query_key.cosine", 2, -0.79) | aligned]
    counts = attention.count_heads(records(rows))["encoder", "self", 1]
    assert counts == {
        "heads": 3,
        "sink": 1,
        "uniform": 1,
        "one-hot": 1,
        "aligned": 1,
        "opposite": 1,
    }
    table = attention.attention_table(records(rows), heads=True)
    assert table["kind of head"].tolist() == [
        "sink, uniform, one-hot, aligned",
        "opposite",
        "",
    ]
    layers = attention.attention_table(records(rows))
    assert layers["|query–key cosine|"].item() == pytest.approx(
        (0.85 + 0.85 + 0.79) / 3
    )
    assert layers["sink heads"].item() == 1 and layers[
        "first-token mass"
    ].item() == pytest.approx(0.5125)
    assert attention.uniform_line() == 0.95
    texts = [finding.text for finding in attention.attention_findings(records(rows))]
    assert texts[0].startswith(
        "1 of 3 heads gives more than half of its weight"
    ) and texts[0].endswith("in layer 1.")


def test_attention_of_a_series_is_that_of_its_last_step():
    rows = [
        head("attention.row_max", 0, 0.2, step=1),
        head("attention.row_max", 0, 0.95, step=10),
    ]
    assert attention.attention_heads(records(rows))["value"].tolist() == [0.95]
    raw = [
        head("query_key.cosine", 0, value) | {"site": site, "token_policy": policy}
        for value, site, policy in (
            (0.1, "query.raw", "all"),
            (0.2, "query", "all"),
            (0.3, "query.raw", "content"),
        )
    ]
    assert attention.attention_heads(records(raw))["value"].tolist() == [0.1]


def test_what_centring_the_queries_would_change():
    def said(*values):
        rows = [
            head("centred_attention.query_rise", i, value)
            for i, value in enumerate(values)
        ]
        found = [
            finding.text for finding in attention.attention_findings(records(rows))
        ]
        return [text for text in found if "Centring" in text]

    assert said(0.2, -0.3, 0.0)[0].startswith(
        "Centring the queries would change attention in 2 heads"
    )
    assert said(0.2, -0.3, 0.0)[0].endswith("most in head 1 of layer 1: −.30 nats.")
    assert "of no head" in said(0.05, -0.05)[0]
    assert said(0.105) == []


def test_layers_in_words():
    found = {
        (3,): "in layer 3",
        (1, 2): "in layers 1 and 2",
        (4, 1, 2, 3, 6, 6): "in layers 1–4 and 6",
        (8, 1): "in layers 1 and 8",
    }
    assert {
        layers: attention.describe_layer_numbers(list(layers)) for layers in found
    } == found


def test_means_over_heads_have_the_interval_of_the_mean():
    rows = records(
        [head("attention.row_max", i, value) for i, value in enumerate((0.2, 0.6, NAN))]
    )
    left_out = np.array([[0.1, 0.2, 0.3, 0.2], [0.5, 0.6, 0.7, 0.6], [NAN] * 4])
    means, replicates = layers_of_heads.average_heads(rows, left_out)
    assert means["value"].item() == pytest.approx(0.4) and means["head"].isna().all()
    np.testing.assert_allclose(replicates, [[0.3, 0.4, 0.5, 0.4]])
    assert means["low"].item() < 0.4 < means["high"].item()
    bare, none = layers_of_heads.average_heads(rows)
    assert none is None and bare["low"].isna().all()
    signed = records(
        [head("query_key.cosine", i, value) for i, value in enumerate((0.5, -0.3))]
    )
    assert layers_of_heads.average_heads(signed)[0]["value"].item() == pytest.approx(
        0.4
    )


def massive(layer, value, rate, **more):
    rows = [
        row("massive.largest", layer, value, component="1"),
        row("massive.rate", layer, rate),
    ]
    rows += [
        row("massive.median", layer, 0.5),
        row("massive.over_median", layer, 1500.0),
    ]
    return [
        *rows,
        *(
            row(f"massive.largest_{name}", layer, found, component="1")
            for name, found in more.items()
        ),
    ]


def test_the_largest_activation_is_told_with_its_place():
    rows = (
        massive(1, 50.0, 0.0)
        + massive(2, 900.0, 0.25, dimension=7, position=0, token=3)
        + massive(3, 500.0, 0.5)
    )
    (found,) = [
        each
        for each in extremes.extreme_findings(records(rows), {"3": "[CLS]"})
        if each.rule == "massive"
    ]
    assert "in layers 2 and 3, in up to 50" in found.text
    assert "900.0 at layer 2, dimension 7, position 0 (‘[CLS]’)" in found.text
    assert (
        "the largest coordinate of a sequence there is 1,500 times the median size."
        in found.text
    ), "as the table has it"
    after_norm = [
        each | {"site": "final"}
        for each in massive(2, 700.0, 0.25, dimension=1, position=5)
    ]
    both = {
        "norm first": [*after_norm, *rows],
        "norm last": [*rows, *after_norm],
    }  # one number of two sites
    told = [
        next(extremes.extreme_findings(records(order), {"3": "[CLS]"})).text
        for order in both.values()
    ]
    assert all(
        "900.0 at layer 2, dimension 7, position 0 (‘[CLS]’)" in text for text in told
    )
    section = card.write_model_card(records(rows), {"tokens": {"3": "[CLS]"}})
    assert f"- {found.text}" in section.splitlines(), "the word on a card too"
    (none,) = extremes.extreme_findings(records(massive(1, 50.0, 0.0)))
    assert none.rule == "massive_none" and "The largest coordinate is 50" in none.text
    table = extremes.activations_table(
        records([*rows, row("massive.rate", 3, 0.1, site="final")])
    )
    assert (
        table["layer"].tolist() == [1, 2, 3, 3]
        and table["site"].tolist()[-1] == "final"
    )
    assert table["dimension"].dropna().tolist() == [7] and table[
        "massive"
    ].tolist() == [0.0, 0.25, 0.5, 0.1]


def test_tails_are_heavy_from_a_kurtosis_of_ten_on():
    def said(*lows):
        rows = [
            row("kurtosis.largest", i, low + 1, low, low + 2)
            for i, low in enumerate(lows)
        ]
        rows += [row("kurtosis.dimension", i, 5 + i) for i in range(len(lows))]
        return [each.text for each in extremes.extreme_findings(records(rows))]

    assert said(10.0) == []
    assert said(11.0, 9.0, 15.0)[0].startswith(
        "Heavy tails in layers 0 and 2: kurtosis 16.0 [15.0, 17.0] of dimension 7"
    )


def test_heads_with_sinks_are_counted_by_the_kind_of_key():
    rows = [
        head("sinks.rate", i, value, component=".3")
        for i, value in enumerate((0.9, 0.8, 0.505, 0.7))
    ]
    rows += [head("sinks.rate", i, 0.9, component=".5") for i in range(4)]
    rows += [
        head("sinks.at", 0, 0.8, component="first"),
        head("sinks.at", 1, 0.505, component="last"),
    ]
    rows += [head("sinks.at", 3, 0.9, component="first")]
    rows += [
        head("sinks.value_norm", 0, 0.2),
        head("sinks.value_norm", 2, 0.1),
        head("sinks.value_norm", 1, 0.495),
    ]
    found = {each.rule: each.text for each in extremes.extreme_findings(records(rows))}
    assert found["sinks"].startswith("3 of 4 heads have a sink")
    assert (
        "in layer 1: 2 at the first token and 1 at keys of no one kind."
        in found["sinks"]
    )
    assert found["sinks_without_value"].startswith("In 1 of these heads")
    none = [
        each.rule
        for each in extremes.extreme_findings(
            records([head("sinks.rate", 0, 0.505, component=".3")])
        )
    ]
    assert none == ["sinks_none"]


def test_ends_of_logits_are_those_of_any_head():
    rows = [
        head(f"logits.{name}", i, value)
        for name, values in (("smallest", (-3.0, -8.0)), ("largest", (9.0, 4.0)))
        for i, value in enumerate(values)
    ]
    rows += [
        head("sinks.rate", i, value, component=".3")
        for i, value in enumerate((0.2, 0.6))
    ]
    (text,) = [
        each.text
        for each in extremes.extreme_findings(records(rows))
        if each.rule == "logits"
    ]
    assert text == "Logits reach from −8.0 (layer 1, head 1) to 9.0 (layer 1, head 0)."
    table = extremes.sinks_table(records(rows))
    assert table["smallest logit"].item() == -8 and table["largest logit"].item() == 9
    assert table["sink rate"].item() == pytest.approx(0.4)
    assert extremes.sinks_table(records(rows), heads=True)["sink rate"].tolist() == [
        0.2,
        0.6,
    ]
    assert extremes.has_extremes(records(rows)) and not extremes.has_extremes(
        records([row("drift")])
    )


def test_attention_of_several_kinds_is_told_apart():
    """The decoder of an encoder–decoder has heads of its own, and heads of cross-attention of the same numbers."""

    def texts(*rows):
        return [each.text for each in attention.attention_findings(records(rows))]

    sink = head("attention.first_mass", 0, 0.9, stack="decoder")
    crossing = head("attention.first_mass", 0, 0.1, stack="decoder", kind="cross")
    found = texts(sink, crossing)
    assert found[0].startswith("Decoder, cross-attention: No head is a sink")
    assert found[1].startswith("Decoder, self-attention: 1 of 1 head gives")
    other = head("attention.first_mass", 0, 0.1)
    assert [text.partition(":")[0] for text in texts(sink, other)] == [
        "Decoder, self-attention",
        "Encoder, self-attention",
    ]
    rate = head("sinks.rate", 0, 0.9, component=".3", stack="decoder")
    rates = [rate, rate | {"kind": "cross", "value": 0.1, "low": 0.1, "high": 0.1}]
    found = [each.text for each in extremes.extreme_findings(records(rates))]
    assert [text.partition(":")[0] for text in found] == [
        "Decoder, self-attention",
        "Decoder, cross-attention",
    ]


def test_a_head_whose_interval_reaches_over_a_line_of_centring_decides_nothing():
    def told(value, spread):
        rows = [head("centred_attention.query_rise", 0, value, spread)]
        found = attention.attention_findings(records(rows))
        return [each.text for each in found if "Centring" in each.text]

    for value, spread in ((-0.05, 0.1), (-0.15, 0.1), (0.05, 0.1), (0.15, 0.1)):
        assert told(value, spread) == [], value
    assert told(-0.25, 0.1) and told(0.25, 0.1) and told(0.0, 0.05)


def test_heads_of_attention_are_those_of_the_last_step_with_a_value_of_their_own():
    rows = [
        head("attention.row_max", 0, 0.95, step=10),
        head("attention.row_max", 1, NAN, step=10),
        head("attention.row_max", 0, 0.1, step=10, component="x"),
        head("attention.row_max", 0, 0.2, step=1),
    ]
    for order in (rows, rows[::-1]):
        assert attention.attention_heads(records(order))["value"].tolist() == [0.95]
        assert attention.count_heads(records(order))["encoder", "self", 1]["heads"] == 1


def test_replicates_of_other_records_give_no_interval():
    """Of filtered or merged records; row numbers would name the replicates of other rows."""
    of_heads = [head("attention.row_max", i, 0.2 + i / 10) for i in range(2)]
    of_sinks = [head("sinks.rate", i, 0.2, component=".3") for i in range(2)]
    own = np.array([[0.1, 0.2, 0.3, 0.2], [0.2, 0.3, 0.4, 0.3]])
    more = np.concatenate([own, own])
    for read, rows in (
        (attention.attention_layers, of_heads),
        (lambda r, x: extremes.sink_rows(r, replicates=x), of_sinks),
    ):
        assert read(records(rows), own)["low"].notna().all()
        assert read(records(rows), more)["low"].isna().all()


def test_extremes_of_a_series_are_those_of_its_last_step():
    rows = [*massive(1, 50.0, 0.0), *massive(1, 900.0, 0.5)]
    steps = [each | {"step": 1 + 9 * (i >= 4)} for i, each in enumerate(rows)]
    for order in (steps, steps[::-1]):
        found = extremes.activations_table(records(order))
        assert found["largest"].tolist() == [900.0]


def test_extremes_are_listed_by_stack_kind_and_layer():
    rows = massive(1, 50.0, 0.0) + massive(0, 60.0, 0.0)
    rows += [each | {"stack": "decoder"} for each in rows]
    table = extremes.activations_table(records(rows))
    assert [*zip(table["stack"], table["layer"], strict=True)] == [
        *(("decoder", 0), ("decoder", 1), ("encoder", 0), ("encoder", 1)),
    ]
    ends = []
    for metric in ("logits.largest", "sinks.query_norm", "sinks.key_norm"):
        for kind, values in (("self", (2.0, 5.0)), ("cross", (7.0, 3.0))):
            ends += [head(metric, i, x, kind=kind) for i, x in enumerate(values)]
    undefined = head("logits.largest", 2, NAN)
    rows = extremes.sink_rows(records([*ends, undefined]))
    assert rows["head"].isna().all(), "a row of a layer names no head"
    table = extremes.sinks_table(records([*ends, undefined])).set_index("kind")
    for name in ("largest logit", "longest query", "longest key"):
        assert table[name].to_dict() == {"self": 5.0, "cross": 7.0}, name
    by_head = extremes.sinks_table(records([*ends, undefined]), heads=True)
    assert by_head["head"].tolist() == [0, 1, 0, 1], "what is undefined has no row"


def test_sinks_without_an_interval_are_not_judged_and_rates_are_of_one_line():
    def told(*rows):
        found = extremes.extreme_findings(records(rows))
        return [each.text for each in found if "sink" in each.rule]

    bare = head("sinks.rate", 0, 0.9, NAN, component=".3")
    assert told(bare) == []
    sink = head("sinks.rate", 1, 0.9, component=".3")
    firsts = [
        head("sinks.first_rate", 1, x, component=line)
        for line, x in ((".3", 0.25), (".5", 0.05))
    ]
    (text,) = told(bare, sink, *firsts)
    assert text.startswith("1 of 1 head have a sink")
    assert text.endswith("the sink rate of the first token is .250.")
    # The head of another layer has no sink, however short its value is.
    short = head("sinks.value_norm", 1, 0.1)
    assert len(told(sink, short)) == 2
    assert len(told(sink, short | {"layer": 2})) == 1


def test_the_largest_activation_is_told_with_numbers_of_its_own_place():
    rows = massive(1, 900.0, 0.5) + massive(2, 800.0, 0.25)
    infinite = [
        each | ({"value": np.inf} if each["metric"].endswith("over_median") else {})
        for each in rows
    ]
    for given, has_ratio in ((rows, True), (infinite, False)):
        found = next(extremes.extreme_findings(records(given))).text
        assert "in up to 50" in found, "the highest rate, not that of the last layer"
        assert ("On average" in found) == has_ratio
    tails = [row("kurtosis.largest", 2, 20.0, 19.0, 21.0, site="final")]
    for site, dimension in (("hidden", 3), ("final", 8)):
        tails.append(row("kurtosis.dimension", 2, dimension, site=site))
    (found,) = extremes.extreme_findings(records(tails))
    assert "of dimension 8 at the final norm" in found.text


# ---- differences -----------------------------------------------------------------------------------------------------


def different(layer, value, spread=0.01, site="hidden", **where):
    place = (
        dict.fromkeys(differences.KEYS)
        | {"stack": "encoder", "layer": layer, "site": site, "metric": "m"}
        | where
    )
    return Difference(
        place, layer, 0.0, value, value, value - spread, value + spread, True
    )


@pytest.mark.parametrize(
    ("text", "met"),
    [
        ("m > .15", [2, 2]),
        ("m.any < 0", [0]),
        ("m.last > .3", [2]),
        ("m.first < -.05", [0]),
        ("m.max > .39", []),
        ("m.max > .38", [2]),
        ("m.min < -.095", []),
        ("m.1 > 0", [1]),
        ("m.2 > .25", [2]),
        ("m.last < .5", [2]),
        ("m > −.2", [0, 1, 2, 2]),
    ],
)
def test_a_condition_is_met_by_whole_intervals(text, met):
    found = [
        different(2, 0.4, site="final"),
        different(0, -0.1),
        different(2, 0.2),
        different(1, 0.05),
    ]
    assert differences.parse_condition(text).is_met(found)[1] == [] if not met else True
    assert [
        one.where["layer"] for one in differences.parse_condition(text).is_met(found)[1]
    ] == met


def test_conditions_are_parsed():
    def parse(text):
        found = differences.parse_condition(text)
        return found.metric, found.where, found.sign, found.limit

    assert parse("A.last > +.02") == ("mean_cosine", "last", ">", 0.02)
    assert parse("attention.entropy < −0.1") == ("attention.entropy", "any", "<", -0.1)
    assert parse("attention.entropy.3 > 1") == ("attention.entropy", "3", ">", 1.0)
    for text in ("A", "A > x", "A = 1", "> 1"):
        with pytest.raises(UsageError):
            differences.parse_condition(text)
    alone = different(1, 0.5, spread=NAN)
    assert differences.parse_condition("m > .4").is_met([alone])[0]
    assert not differences.parse_condition("m > .6").is_met([alone])[0]
    with pytest.raises(UsageError, match="layers are 1"):
        differences.parse_condition("m.4 > 0").is_met([alone])
    for nothing in ([], [different(1, NAN)]):
        with pytest.raises(MeasureError):
            differences.parse_condition("m > 0").is_met(nothing)


def test_a_metric_of_several_values_is_told_with_them():
    run = KeptRun(
        "a", records([row("norms.mean"), row("norms.variation"), row("mean_cosine")])
    )
    assert (
        differences.find_metric(run, "A")
        == differences.find_metric(run, "mean_cosine")
        == "mean_cosine"
    )
    with pytest.raises(
        UsageError, match=r"one value of norms.*name norms\.mean or norms\.variation"
    ):
        differences.find_metric(run, "norms")
    with pytest.raises(UsageError, match="a metric of a"):
        differences.find_metric(run, "mean_cosin")


def test_half_widths_of_differences():
    ours, theirs = np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 6.0])
    error = np.sqrt(2 / 3 * 2)  # of 1, 2, 3
    assert differences._estimate_error(ours) == (pytest.approx(error), 3)
    assert differences.half_width_paired(2.0, 4.0, ours, theirs) == pytest.approx(
        4.302653 * error
    )
    assert differences.half_width_paired(2.0, 4.0, ours, ours + 1) == pytest.approx(0)
    assert np.isnan(differences.half_width_paired(2.0, 4.0, ours[:2], theirs[:2]))
    gap = np.array(
        [NAN, 4.0, 6.0]
    )  # where a group holds nothing of one run, it changes nothing there
    assert differences.half_width_paired(2.0, 3.0, ours, gap) == pytest.approx(
        4.302653 * differences._estimate_error(np.array([3.0, 4.0, 6.0]) - ours)[0]
    )
    variance = error**2 * 5
    freedom = variance**2 / (error**4 * 17 / 2)
    from scipy import special

    assert differences.half_width_unpaired(ours, theirs) == pytest.approx(
        special.stdtrit(freedom, 0.975) * variance**0.5
    )
    assert differences.half_width_unpaired(np.ones(4), np.ones(4)) == 0
    assert np.isnan(differences.half_width_unpaired(ours, theirs[:2]))


def kept(
    name,
    layers,
    stack="encoder",
    units="u",
    replicates=True,
    site="hidden",
    manifest=None,
):
    rows = records(
        [
            row("drift", layer, value, value - 0.1, value + 0.1, stack=stack, site=site)
            for layer, value in layers
        ]
    )
    left_out = (
        np.tile(np.array([v for _, v in layers])[:, None], (1, 4))
        if replicates
        else None
    )
    return KeptRun(name, rows, left_out, units, manifest or {})


def test_layers_are_matched_by_number_or_by_depth():
    def matched(ours, theirs, **how):
        found = differences.compare_runs(
            kept("a", ours), kept("b", theirs, **how), "drift"
        )
        return [
            (one.where["layer"], one.layer_other, round(one.value, 3)) for one in found
        ]

    same = [(0, 0.1), (2, 0.5)]
    assert matched(same, [(0, 0.2), (2, 0.9)]) == [(0, 0, 0.1), (2, 2, 0.4)]
    assert matched(same, [(0, 0.2), (2, 0.3), (4, 0.9)]) == [(0, 0, 0.1), (2, 4, 0.4)]
    assert matched(same, [(0, 0.2), (4, 0.9)], stack="decoder") == [
        (0, 0, 0.1),
        (2, 4, 0.4),
    ]
    limited = {"settings": {"settings": {"layers": [0]}}}
    assert matched(same, [(0, 0.2), (4, 0.9)], manifest=limited) == [(0, 0, 0.1)]
    final = differences.compare_runs(
        kept("a", [(2, 0.1)], site="final"),
        kept("b", [(7, 0.3)], site="final"),
        "drift",
    )
    assert [one.layer_other for one in final] == [7]


def test_of_two_layers_that_are_equally_near_the_first_is_taken():
    """Depths were floating-point numbers: at 5/6 layer 3 of 3 was taken, at 1/6 layer 0."""
    ours = kept("a", [(layer, 0.1) for layer in range(7)])
    theirs = kept("b", [(layer, 0.2) for layer in range(4)])
    found = differences.compare_runs(ours, theirs, "drift")
    assert [one.layer_other for one in found] == [0, 0, 1, 1, 2, 2, 3]


def test_runs_are_paired_if_they_measured_the_same_units():
    a = kept("a", [(0, 0.1)])
    assert differences.are_paired(a, kept("b", [(0, 0.1)]))
    assert not differences.are_paired(a, kept("b", [(0, 0.1)], units="other"))
    assert not differences.are_paired(a, kept("b", [(0, 0.1)], replicates=False))
    assert not differences.are_paired(
        kept("a", [(0, 0.1)], units=None), kept("b", [(0, 0.1)], units=None)
    )
    wider = differences.KeptRun("b", a.records, np.ones((1, 5)), "u")
    assert not differences.are_paired(a, wider)
    said = differences.explain_pairing
    assert said(a, kept("b", [(0, 0.1)], replicates=False)).startswith(
        "Not paired: b kept no replicates"
    )
    assert "different units" in said(a, kept("b", [(0, 0.1)], units="o"))
    assert "not known" in said(a, kept("b", [(0, 0.1)], units=None))
    vectors = {"corpus": {"name": "vectors"}}
    assert said(kept("a", [(0, 0.1)], manifest=vectors), a).startswith("Paired by row")
    shard = KeptRun.of(
        "a", a.records, {"units": "u", "settings": {"shard": [1, 3]}}, None
    )
    assert shard.units == "u, shard 2/3"
    assert [
        run.name for run in differences.with_own_names([a, a, kept("b", [(0, 0.1)])])
    ] == ["a", "a (2)", "b"]


def test_units_are_identified_by_the_content_of_the_corpus():
    settings = types.SimpleNamespace(groups=8, spectrum_groups=4, seed=0)
    plan, other = (types.SimpleNamespace(fingerprint=name, unit=None) for name in "pq")
    documents, tokens = (
        {"fingerprint": "f"},
        {"fingerprint": "f", "documents": "blocks of 32 tokens"},
    )

    def of(corpus, plan=plan, settings=settings):
        return differences.identify_units(corpus, plan, settings)

    assert of(documents) == of(documents, other) and of(tokens) != of(tokens, other)
    assert of(documents | {"sequences": 3}) != of(documents | {"sequences": 3}, other)
    assert (
        len(
            {
                of(documents | more)
                for more in ({}, {"limit": 2}, {"split": "test"}, {"fingerprint": "g"})
            }
        )
        == 4
    )
    for name in ("groups", "spectrum_groups", "seed"):
        assert of(documents) != of(
            documents, settings=types.SimpleNamespace(**vars(settings) | {name: 9})
        )
    rows, others = (
        types.SimpleNamespace(fingerprint="p", unit=np.array(x))
        for x in ([0, 1], [0, 0])
    )
    assert of({"name": "vectors"}, rows) != of({"name": "vectors"}, others)
    assert (
        of({"name": "inputs"}) != of({"name": "inputs"}, other)
        and of({"name": "x"}) is None
    )


def test_a_difference_is_told_where_its_interval_excludes_zero():
    a, b = kept("a", [(0, 0.1)]), kept("b", [(0, 0.1)])
    found = [
        different(0, -0.2),
        different(1, 0.005),
        different(2, 0.1),
        different(3, 0.3),
    ]
    (said,) = comparison.differs(a, b, found, "drift")
    assert said.text.startswith(
        "b against a in drift: higher from layer 2 on, most at layer 3 (.300 against .000:"
    )
    assert (
        "; lower at layer 0 (−.200 against .000: " in said.text
        and said.text.endswith("; no clear difference at layer 1.")
    )
    (none,) = comparison.differs(a, b, found[1:2], "drift")
    assert none.text == "b against a in drift: no clear difference in any layer."
    heads = [different(1, value, head=i) for i, value in enumerate((0.2, 0.4, 0.0))]
    (said,) = comparison.differs(a, b, heads, "drift")
    assert (
        "higher in 2 heads of 3, most in head 1 of layer 1" in said.text
        and "no clear difference in 1 head." in said.text
    )
    assert comparison.describe_met("m > 0", "b", found[2:]).startswith(
        "m > 0 is met by ‘b’: +.300 ["
    )
    assert comparison.describe_met("m > 0", "b", found[2:]).endswith(
        "at layer 3 and 1 more"
    )


def cautions(ours, theirs):
    a, b = (
        kept(name, [(0, 0.1)], manifest=m) for name, m in (("a", ours), ("b", theirs))
    )
    return comparison.list_cautions(a, b, differences.compare_runs(a, b, "drift"))[1:]


def test_cautions_tell_what_else_may_differ():
    corpus = {"name": "c", "fingerprint": "f", "max_length": 8}
    assert cautions({"corpus": corpus}, {"corpus": corpus}) == []
    assert cautions({"corpus": corpus}, {"corpus": corpus | {"fingerprint": "g"}}) == [
        "Not the same part or version of the corpus c."
    ]
    limited = cautions({"corpus": corpus}, {"corpus": corpus | {"limit": 2000}})
    assert limited == ["Other --limit (a: none; b: 2,000)."]
    assert cautions({"dtype": "float32"}, {"dtype": "float64"}) == [
        "Another dtype (a: float32; b: float64)."
    ]
    ours = {"corpus": corpus, "plan": "p"}
    assert cautions(ours, ours | {"plan": "q"}) == [
        "The same text as other tokens (another tokenizer)."
    ]
    old = {"corpus": {"name": "c", "fingerprint": "f"}, "plan": "q"}
    assert cautions(ours, old) == cautions(ours, ours | {"plan": "q"})
    hashed = ours | {"tokens_hash": "t"}
    assert cautions(hashed, hashed | {"plan": "q"}) == []
    assert cautions(hashed, hashed | {"plan": "q", "tokens_hash": "u"}) == cautions(
        ours, ours | {"plan": "q"}
    )
    longer = {"corpus": corpus | {"max_length": 16}, "plan": "q"}
    assert cautions(ours, longer) == [
        "The same text as other tokens (windows of 8 and 16 tokens)."
    ]
    shard = cautions({}, {"settings": {"shard": [1, 4]}})
    assert shard == ["b is shard 2 of 4; merge the shards first."]
    seeds = [{"settings": {"settings": {"seed": seed}}} for seed in (0, 1)]
    assert cautions(*seeds) == ["Other vectors were sampled (--seed) (a: 0; b: 1)."]
    versions = [{"code": {"version": "1", "sources": source}} for source in "xy"]
    assert cautions(*versions)[0].startswith(
        "Measured by other code of the same version"
    )
    assert cautions({"code": {"version": "1"}}, {"code": {"version": "2"}}) == [
        "Measured by other versions (a: 1; b: 2)."
    ]


def test_cautions_name_what_both_runs_know_to_differ():
    corpus = {"name": "c", "fingerprint": "f", "max_length": 8}
    for name, words in (("split", "--split"), ("n_units", "numbers of units")):
        (said,) = cautions(
            {"corpus": corpus | {name: 1}}, {"corpus": corpus | {name: 2}}
        )
        assert said == f"Other {words} (a: 1; b: 2)."
    plans = [{"corpus": corpus, "plan": plan} for plan in "pq"]
    for name in ("documents", "sequences", "batch_tokens"):
        own = [plan | {"settings": {name: i}} for i, plan in enumerate(plans)]
        option = name.replace("_", "-")
        assert cautions(*own) == [
            f"The same text as other tokens (--{option} 0 and 1)."
        ], name
    known = {"settings": {"settings": {"seed": 0}}, "code": {"version": "1"}}
    assert cautions(plans[0] | known, {"corpus": corpus}) == [], (
        "what an old run does not say is not known to differ"
    )
    shard = {"settings": {"shard": [0, 4]}}
    assert cautions(shard, {}) == ["a is shard 1 of 4; merge the shards first."]


def test_stacks_of_other_kinds_and_depths_are_said():
    def said(*given, stack="encoder"):
        a, b = kept("a", given[0]), kept("b", given[1], stack=stack)
        return comparison.list_cautions(a, b, differences.compare_runs(a, b, "drift"))

    short, long = [(0, 0.1), (2, 0.2)], [(0, 0.1), (4, 0.2)]
    assert said(short, long)[1:] == [
        "Layers are matched by relative depth (2 and 4 layers)."
    ]
    assert said(short, short, stack="decoder")[1:] == [
        "Stacks of other kinds (a: encoder; b: decoder)."
    ]
    a = kept("a", short)
    both = pd.concat([kept("b", short).records, kept("b", short, "x").records])
    b = KeptRun("b", records(both), None, "u")
    found = differences.compare_runs(a, b, "drift")
    assert not any("kinds" in note for note in comparison.list_cautions(a, b, found))


def test_differences_of_stacks_and_components_have_a_sentence_each():
    a, b = kept("a", [(0, 0.1)]), kept("b", [(0, 0.1)])

    def told(*found, metric="drift"):
        return [each.text for each in comparison.differs(a, b, found, metric)]

    several = [different(1, 0.2, component=str(i)) for i in range(7)]
    assert told(*several) == [] and len(told(*several[:6])) == 6
    assert told(several[1], several[2])[0].startswith("b against a in drift (1): ")
    crossing = different(1, 0.2, stack="decoder", kind="cross")
    own = different(1, 0.2, stack="decoder", kind="self")
    assert [text.partition(":")[0] for text in told(crossing, own)] == [
        "Decoder, cross-attention",
        "Decoder",
    ]
    (text,) = told(different(0, -0.1), different(1, -0.3), metric="mean_cosine")
    assert "less anisotropic in every layer, most at layer 1 (" in text
    assert "more" not in text


def test_values_and_tables_of_a_comparison_are_those_that_were_asked_for():
    def made(name, values, shift=0.0):
        rows = [
            row("m", 1, x + shift, token_policy=policy, component=component)
            for policy, component, x in values
        ]
        left_out = np.array([[x + shift] * 4 for *_, x in values])
        return KeptRun(name, records(rows), left_out, "u")

    values = [("all", "x", 0.1), ("all", "y", 0.2), ("content", "x", 0.9)]
    runs = [made("a", values), made("b", values, 0.5), made("c", values, -0.5)]
    found = comparison.compare(runs, "m")
    assert sorted(found.values["value"].round(1)) == [-0.4, -0.3, 0.1, 0.2, 0.6, 0.7]
    table = found.table
    assert table["run"].tolist() == [*"bbcc"] and set(table["against"]) == {"a"}
    assert table["difference"].round(1).tolist() == [0.5, 0.5, -0.5, -0.5]
    assert table["first"].tolist() == [0.1, 0.2] * 2
    chosen = found.of_components(["y"])
    assert chosen.components == ("y",) and set(chosen.values["component"]) == {"y"}
    assert set(chosen.table["component"]) == {"y"} and len(chosen.findings) == 2
    assert len(found.findings) == 4
    assert [name for name, _ in found.judge("m > 0")] == ["b"]
    # One place beyond the limit is enough, and the others are not told.
    mixed = [different(1, 0.5), different(2, -0.5)]
    met, beyond = differences.parse_condition("m > 0").is_met(mixed)
    assert met and beyond == mixed[:1]
    asked = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparison, "find_metric", lambda *_: "other")
        patch.setattr(
            comparison, "compare_runs", lambda *_, **how: asked.append(how) or mixed
        )
        found.judge("other > 0")
    assert asked == [{"heads": False, "tokens": "all"}] * 2
    far = KeptRun("d", runs[0].records.assign(stack="s", site="z"), None, "u")
    empty = comparison.compare([runs[0], far], "m").table
    assert len(empty) == 0 and {"run", "difference"} <= {*empty.columns}


def test_records_of_one_model_and_policy_are_compared():
    def made(name, *rows):
        return KeptRun(name, records(rows), None, "u")

    one = row("m", 1, 0.1, token_policy="all")
    for name in ("step", "seed"):
        series_ = made("s", *(one | {name: i} for i in range(2)))
        with pytest.raises(UsageError, match="runs of one model"):
            differences.compare_runs(series_, made("b", one), "m")
    of_none = row("m", 2, 0.3)
    found = differences.compare_runs(
        made("a", one, of_none), made("b", one, of_none), "m", tokens="all"
    )
    assert [each.where["layer"] for each in found] == [1, 2]
    ends = made("a", one | {"low": 0.05, "high": 0.15})
    other = made("b", one | {"low": 0.01, "high": 0.19})
    (found,) = differences.compare_runs(ends, other, "m")
    assert found.first_ends == (0.05, 0.15) and found.second_ends == (0.01, 0.19)
    table = differences.tabulate_differences([found])
    assert table[["first_low", "second_low"]].iloc[0].tolist() == [0.05, 0.01]
    assert table[["first_high", "second_high"]].iloc[0].tolist() == [0.15, 0.19]
    for shard, units in (([0, 3], "u, shard 1/3"), ([0, 1], "u")):
        manifest = {"units": "u", "settings": {"shard": shard}}
        assert KeptRun.of("a", ends.records, manifest, None).units == units


def test_means_over_heads_have_the_replicates_of_their_own_heads():
    def made(name, shift):
        rows = [row("drift", 1, 0.5)]
        rows += [head("attention.row_max", i, 0.2 + shift) for i in range(2)]
        of_layer = [9.0 * (1 + shift), -9.0, 0.0, 4.0]
        left_out = np.array([of_layer, *[[0.2 + shift] * 4] * 2])
        return KeptRun(name, records(rows), left_out, "u")

    (found,) = differences.compare_runs(made("a", 0), made("b", 1), "attention.row_max")
    assert (found.low, found.high) == (pytest.approx(1), pytest.approx(1))


@pytest.mark.parametrize(
    ("ends", "shown"), [((-0.3, -0.1), True), ((-0.1, 0.1), False), ((0.1, 0.3), True)]
)
def test_shares_of_an_anisotropy_that_may_be_none_are_not_shown(ends, shown):
    """Of a clear one they are, below 0 too."""
    rows = [row("mean_cosine", 0, sum(ends) / 2, *ends, token_policy="all")]
    rows.append(row("mean_cosine.top_share", 0, 0.4, component="3", token_policy="all"))
    assert short_tables.short_table(records(rows))["top-3 share"].notna().tolist() == [
        shown
    ]


def test_the_short_table_chooses_its_rows():
    rows = [
        row("mean_cosine", 1, 0.2, 0.1, 0.3, token_policy="all"),
        row("mean_cosine", 0, 0.1, -0.1, 0.2, token_policy="all"),
    ]
    rows += [row("mean_cosine", 1, 0.9, token_policy="content")]
    rows += [
        row(
            "mean_cosine.top_share", layer, k / 10, component=str(k), token_policy="all"
        )
        for layer in (0, 1)
        for k in (1, 3)
    ]
    table = short_tables.short_table(records(rows))
    assert table["layer"].tolist() == [0, 1] and table["A"].tolist() == [0.1, 0.2]
    assert (
        table["top-3 share"].isna().tolist() == [True, False]
        and table["top-3 share"].iloc[1] == 0.3
    )
    assert short_tables.short_table(records(rows), "content")["A"].tolist() == [0.9]
    with pytest.raises(UsageError):
        short_tables.short_table(records(rows), "none")
    assert len(short_tables.value_table(records(rows))) == 6
    rows.append(row("gap", None, 0.7))
    named = short_tables.value_table(records(rows), "content")
    assert named["value"].tolist() == [0.9, 0.7], "a gap has no token policy"


def test_an_interval_that_ends_at_zero_includes_it():
    rows = []
    for layer, (low, high) in enumerate([(0.0, 0.3), (-0.3, 0.0), (0.01, 0.3)]):
        rows.append(row("mean_cosine", layer, 0.1, low, high))
        rows.append(row("mean_cosine.top_share", layer, 0.25, component="3"))
    shares = short_tables.short_table(records(rows))["top-3 share"]
    assert shares.isna().tolist() == [True, True, False] and shares[2] == 0.25


def test_models_of_several_seeds_without_steps_have_rows_of_their_own():
    rows = [
        row("mean_cosine", layer, (seed + layer) / 10, seed=seed)
        for seed in (3, 1)
        for layer in (2, 0)
    ]
    rows.append(row("mean_cosine", 4, NAN, seed=1))
    table = short_tables.short_table(records(rows))
    found = zip(table["seed"], table["layer"], table["A"], strict=True)
    assert [*found] == [(3, 0, 0.3), (3, 2, 0.5), (1, 0, 0.1), (1, 2, 0.3)]


# ---- runs ------------------------------------------------------------------------------------------------------------


def test_shards_are_parsed():
    assert (
        job.read_shard("2/4") == (1, 4)
        and job.read_shard(["1/1"]) == (0, 1)
        and job.read_shard((0, 2)) == (0, 2)
    )
    for bad in ("0/4", "5/4", "x", "1", "1/2/3", "1/0"):
        with pytest.raises(UsageError, match="--shard I/N"):
            job.read_shard(bad)


def test_names_of_run_folders():
    assert of_runs.make_slug("builtin:Python docs/1.5_x") == "python-docs-1.5-x"
    assert (
        of_runs.make_slug("/a" * 50) == ("-a" * 50)[-60:]
        and of_runs.make_slug("./x/") == "x"
    )


def test_a_layer_of_a_run_is_found_by_what_people_call_it():
    names = [
        "encoder layer 0",
        "encoder layer 5",
        "decoder layer 5",
        "encoder final norm",
    ]
    for asked, name in (
        ("0", 0),
        ("layer 0", 0),
        ("decoder 5", 2),
        ("decoder.5", 2),
        ("final", 3),
        ("encoder final", 3),
    ):
        assert curing._find_layer(asked, names) == names[name], asked
    with pytest.raises(UsageError, match="one layer"):
        curing._find_layer("5", names)
    with pytest.raises(UsageError, match="a layer of this run"):
        curing._find_layer("7", names)
    layers = {
        curing._name_of(site): (site, None, None)
        for site in (
            Site("encoder", 0, "hidden"),
            Site("encoder", 5, "hidden"),
            Site("encoder", None, "final"),
        )
    }
    assert list(layers) == [names[0], names[1], names[3]]
    rows = [
        row("mean_cosine", 0, 0.1),
        row("mean_cosine", 5, 0.3),
        row("mean_cosine", 5, 0.2, site="final"),
    ]
    assert curing._find_highest(records(rows), layers) == names[1]
    assert curing._find_highest(records([row("drift")]), layers) == names[3]


def test_an_order_of_classes_is_that_of_the_model():
    from anisoscope.data.labelled import Example, LabelledCorpus

    def config(*own):
        return types.SimpleNamespace(
            architectures=["XForSequenceClassification"],
            num_labels=len(own),
            id2label=dict(enumerate(own)),
        )

    corpus = LabelledCorpus(
        "c", ("no", "yes"), {"train": (Example(("a",), 0), Example(("b",), 1))}
    )
    turned, usable, notes = classes.match_class_order(config("Yes", "No"), corpus)
    assert (
        usable
        and not notes
        and turned.labels == ("yes", "no")
        and [e.label for e in turned.splits["train"]] == [1, 0]
    )
    _, usable, notes = classes.match_class_order(config("LABEL_0", "LABEL_1"), corpus)
    assert usable and "have no names" in notes[0]
    for own, said in (
        (("a", "b", "c"), "tells 3 classes"),
        (("a", "b"), "are not called"),
    ):
        _, usable, notes = classes.match_class_order(config(*own), corpus)
        assert not usable and said in notes[0]


def test_the_padding_token_is_none_of_the_text():
    def choose(own=None, pad=None, eos=None, size=5, used=(0, 1)):
        config = types.SimpleNamespace(pad_token_id=own, vocab_size=size)
        tokenizer = types.SimpleNamespace(pad_token_id=pad, eos_token_id=eos)
        return classes.choose_pad(
            tokenizer, config, [{"input_ids": list(used)}]
        ), config.pad_token_id

    assert (
        choose(own=0) == (0, 0)
        and choose(pad=3) == (3, 3)
        and choose(pad=1, eos=4) == (4, 4)
    )
    assert choose(pad=7) == (2, 2) and choose(own=-1) == (2, 2)
    assert choose(size=2) == (0, 0)


def test_a_training_fills_in_what_was_not_said(tmp_path):
    from anisoscope.runs.job import ClassesOptions

    recipe = {"corpus": "synthetic:3", "split_seed": 4, "columns": {"text": "t"}}
    (tmp_path / "training.json").write_text(
        json.dumps({"recipe": recipe, "max_length": 16})
    )
    model = str(tmp_path)
    filled = classes.fill_from_training(ClassesOptions(model))
    assert (
        filled.corpus,
        filled.split_seed,
        filled.text_column,
        filled.max_length,
    ) == ("synthetic:3", 4, "t", 16)
    assert (
        classes.fill_from_training(
            ClassesOptions(model, corpus="synthetic:3")
        ).split_seed
        == 4
    )
    assert (
        classes.fill_from_training(
            ClassesOptions(model, corpus="synthetic:2")
        ).split_seed
        == 0
    )
    assert (
        classes.fill_from_training(
            ClassesOptions(model, corpus="synthetic:3", split_seed=2)
        ).split_seed
        == 2
    )
    assert (
        classes.fill_from_training(ClassesOptions(model, max_length=8)).max_length == 8
    )
    assert classes._is_trained_on(filled) and not classes._is_trained_on(
        ClassesOptions(model, corpus="synthetic:3")
    )
    with pytest.raises(UsageError, match="--corpus"):
        classes.fill_from_training(ClassesOptions(str(tmp_path / "none")))


def test_stamps_change_with_size_and_time(tmp_path):
    (tmp_path / "b").write_text("x")
    (tmp_path / "a").write_text("yy")
    found = run_cache._list_stamps([tmp_path])
    assert [(Path(name).name, size) for name, size, _ in found] == [("a", 2), ("b", 1)]
    assert run_cache.identify_model_state(str(tmp_path)) is None
    (tmp_path / "config.json").write_text("{}")
    assert len(run_cache.identify_model_state(str(tmp_path))) == 3
    (tmp_path / run_cache.ADAPTER).write_text("{}")
    assert run_cache.identify_model_state(str(tmp_path)) is None
    assert run_cache.identify_model_state("module:function") is None
    assert run_cache.find_finished(None, [tmp_path]) is None


def test_checkpoints_on_the_disk_at_a_time(monkeypatch):
    got, gone = [], []
    monkeypatch.setattr(series, "is_on_disk", lambda name: name == "own")
    monkeypatch.setattr(series, "is_left_over", lambda name: name == "old")
    monkeypatch.setattr(series, "fetch", lambda name, lent: got.append((name, lent)))
    monkeypatch.setattr(series, "delete_checkpoint", gone.append)
    store = series._CheckpointStore(["a", "own", "b", "c"], 2, ["old", "done"])
    assert gone == ["old"]
    for i in range(4):
        store.get(i, i + 1)
    store.close()
    assert got == [("a", True), ("own", False), ("b", True), ("c", True)] and gone == [
        "old",
        "a",
    ]
    got.clear()
    one = series._CheckpointStore(["a", "b"], 1, [])
    one.get(0, 1)
    assert got == [("a", True)] and list(one.coming) == [0]
    one.get(1, 2)
    one.close()
    assert got == [("a", True), ("b", True)] and gone[-1] == "a"


def test_layers_of_two_runs_need_the_same_tokens():
    def of(name, **more):
        settings = {"seed": 0, "tokens": ["all"]} | more
        return kept(
            name,
            [(0, 0.1)],
            manifest={
                "plan": more.get("plan", "p"),
                "settings": {"settings": settings},
            },
        )

    across.require_same_tokens(of("a"), of("b"))
    for more, said in (
        ({"seed": 1}, "one --seed"),
        ({"tokens": ["content"]}, "one --tokens"),
        ({"plan": "q"}, "one corpus"),
    ):
        with pytest.raises(UsageError, match=said):
            across.require_same_tokens(of("a"), of("b", **more))
    assert across.settings_of(kept("a", [(0, 0.1)])) == {
        "groups": 32,
        "seed": 0,
        "tokens": ("all",),
    }


def test_classes_of_vectors_are_told_apart_with_their_units_and_groups(monkeypatch):
    """Without its units each vector would be one, and the intervals too narrow."""
    asked = []

    def make(x, labels, names, **how):
        asked.append((x, labels, names, how))
        return as_records(pd.DataFrame({"value": [1.0]}), metric="any")

    monkeypatch.setattr(of_vectors, "make_separability_records", make)
    x = np.random.default_rng(0).normal(size=(12, 3))
    x[4, 1] = NAN
    kept = np.arange(12) != 4
    units, labels = np.arange(12) // 3, np.arange(12) % 2
    arrays = wrap_vectors(
        {"first": x, "second": 2 * x}, units=units, labels=np.array(["a", "b"])[labels]
    )
    found, warnings = of_vectors._measure_separability(
        arrays, job.Job(settings=Settings(groups=5))
    )
    assert found["layer"].tolist() == [0, 1] and warnings == []
    for (given, of_classes, names, how), times in zip(asked, (1, 2), strict=True):
        np.testing.assert_allclose(given[:, 0], times * x[kept])
        assert of_classes.tolist() == labels[kept].tolist() and list(names) == [
            "a",
            "b",
        ]
        assert how["units"].tolist() == units[kept].tolist() and (
            how["groups"],
            how["stack"],
        ) == (5, "vectors")


def test_policies_that_vectors_have():
    single, tokens = (
        types.SimpleNamespace(are_sequences=which) for which in (False, True)
    )
    assert of_vectors._choose_policies(single, ("all", "content", "no-first")) == (
        "all",
    )
    assert of_vectors._choose_policies(tokens, ("no-first", "all", "content")) == (
        "no-first",
        "all",
    )
    with pytest.raises(UsageError):
        of_vectors._choose_policies(single, ("content",))


# ---- ends that are touched -------------------------------------------------------------------------------------------


def test_an_interval_that_touches_zero_or_a_limit_is_not_beyond_it():
    """Halves and quarters, which a float holds exactly."""
    a, b = kept("a", [(0, 0.1)]), kept("b", [(0, 0.1)])
    touching = [different(0, 0.25, 0.25), different(1, -0.25, 0.25)]
    (said,) = comparison.differs(a, b, touching, "drift")
    assert said.text == "b against a in drift: no clear difference in any layer."
    (said,) = comparison.differs(a, b, [*touching, different(2, 0.5)], "drift")
    assert said.text.endswith("; no clear difference at layers 0 and 1.")
    for text, met in (
        ("m > .25", False),
        ("m > .24", True),
        ("m < .75", False),
        ("m < .76", True),
    ):
        condition = differences.parse_condition(text)
        assert condition.is_met([different(1, 0.5, 0.25)])[0] == met, text


@pytest.mark.parametrize(
    ("low", "high", "q95", "verdict"),
    [
        (0.0, 0.25, 0.25, "isotropic"),
        (0.0, 0.5, 0.25, "undecided"),
        (0.25, 0.5, 0.25, "undecided"),
        (0.375, 0.5, 0.25, "anisotropic"),
        (0.375, NAN, 0.25, ""),
        (0.375, 0.5, None, ""),
    ],
)
def test_a_verdict_at_the_ends_of_an_interval(low, high, q95, verdict):
    assert findings.judge_isotropy(low, high, q95) == verdict


def test_forty_vectors_of_two_units_are_just_enough_pairs():
    """A quarter of their squares, 400 pairs, are of different units."""
    assert findings.has_enough_pairs(40, 2) and not findings.has_enough_pairs(39, 2)
    assert not findings.has_enough_pairs(1000, 1)


def test_intervals_that_touch_are_not_apart():
    ours = records([row("drift", 1, 0.25, 0.0, 0.5)])
    for low, high, said in ((0.5, 0.75, "overlap"), (0.625, 0.75, "higher")):
        theirs = records([row("drift", 1, 0.7, low, high)])
        (found,) = short_tables.intervals_apart(("a", ours), ("b", theirs), "drift")
        words = [word for word in ("overlap", "higher", "lower") if word in found.text]
        assert words == [said], found.text


def dimensions(*intervals):
    rows = [
        row("class_direction.dimensions", i, (low + high) / 2, low, high)
        for i, (low, high) in enumerate(intervals)
    ]
    rows += [row("class_direction.auc", 0, component=name) for name in "abc"]
    return [each.text for each in findings.dimensions_taken(records(rows))]


def test_a_plateau_of_dimensions_ends_on_either_side():
    assert "from layer 1 on" in dimensions((0.1, 0.2), (1.5, 2.5), (1.0, 2.0))[0]
    assert "overlap" not in dimensions((1.0, 2.0), (2.1, 2.5), (1.0, 2.0))[0]
    assert "overlap" not in dimensions((1.0, 2.0), (0.1, 0.9), (1.0, 2.0))[0]
    assert "from layer 0 on" in dimensions((2.0, 2.5), (0.5, 1.0), (1.0, 2.0))[0]


# ---- tables of few or many -------------------------------------------------------------------------------------------


def test_a_run_without_a_common_layer_takes_no_row_from_the_others():
    runs = [
        kept("a", [(0, 0.1)]),
        kept("b", [(0, 0.2)], site="final"),
        kept("c", [(0, 0.4)]),
    ]
    compared = comparison.compare(runs, "drift")
    assert compared.table["run"].tolist() == ["c"]
    assert compared.table["difference"].tolist() == [pytest.approx(0.3)]
    alone = comparison.compare(runs[:2], "drift").table
    assert len(alone) == 0 and {"run", "against", "first_low"} <= {*alone.columns}
    noted = [each for each in compared.notes if "No layer in common" in each]
    assert noted == ["b against a: No layer in common."]


def test_a_table_of_differences_has_each_run_s_own_ends():
    a, b = kept("a", [(0, 0.25)]), kept("b", [(0, 0.75)])
    (one,) = comparison.compare([a, b], "drift").table.to_dict("records")
    ends = {name: one[name] for name in differences.OF_DIFFERENCES if "_" in name}
    assert ends == pytest.approx(
        {
            "layer_other": 0,
            "first_low": 0.15,
            "first_high": 0.35,
            "second_low": 0.65,
            "second_high": 0.85,
        }
    )
    assert (one["first"], one["second"], one["difference"]) == (0.25, 0.75, 0.5)
    assert one["paired"] and one["run"] == "b" and one["against"] == "a"


def test_values_of_chosen_components_alone():
    rows = [row("drift", 0, 0.1, component=name) for name in "xyz"]
    runs = [KeptRun(name, records(rows)) for name in "ab"]
    chosen = comparison.compare(runs, "drift").of_components(["y"])
    assert chosen.values["component"].tolist() == ["y", "y"]
    assert chosen.values["run"].tolist() == ["a", "b"]
    assert chosen.table["component"].tolist() == ["y"]
    with pytest.raises(UsageError, match="a component of drift"):
        chosen.of_components(["w"])


@pytest.mark.parametrize(("count", "said"), [(6, 6), (7, 0)])
def test_of_more_than_six_components_no_sentence_is_written(count, said):
    a, b = kept("a", [(0, 0.1)]), kept("b", [(0, 0.1)])
    found = [different(0, 0.5, component=str(k)) for k in range(count)]
    assert len(list(comparison.differs(a, b, found, "drift"))) == said


def test_stacks_and_kinds_of_attention_have_their_names():
    a, b = kept("a", [(0, 0.1)]), kept("b", [(0, 0.1)])
    found = [
        different(1, 0.5, stack=stack, kind=kind)
        for stack, kind in (
            ("encoder", "self"),
            ("decoder", "self"),
            ("decoder", "cross"),
        )
    ]
    texts = [each.text for each in comparison.differs(a, b, found, "drift")]
    assert [text.partition(": ")[0] for text in texts] == [
        "Encoder",
        "Decoder",
        "Decoder, cross-attention",
    ]


def test_heads_without_a_clear_difference_are_called_heads():
    a, b = kept("a", [(0, 0.1)]), kept("b", [(0, 0.1)])
    unclear = [different(1, 0.0, head=i) for i in range(2)]
    (said,) = comparison.differs(a, b, unclear, "drift")
    assert said.text == "b against a in drift: no clear difference in any head."


def test_one_note_names_all_runs_it_is_of():
    runs = [kept("a", [(0, 0.1)], manifest={"dtype": "float32"})]
    runs += [kept(name, [(0, 0.1)], manifest={"dtype": "float64"}) for name in "bc"]
    runs[1:1] = [kept("d", [(0, 0.1)], manifest={"dtype": "float32"})]
    notes = comparison.compare(runs, "drift").notes
    assert notes[0].startswith("d, b and c against a: Paired by unit")
    assert [note for note in notes if "dtype" in note] == [
        "b against a: Another dtype (a: float32; b: float64).",
        "c against a: Another dtype (a: float32; c: float64).",
    ]


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("split", ("train", "test"), "Other --split (a: train; b: test)."),
        ("n_units", (9, 1000), "Other numbers of units (a: 9; b: 1,000)."),
    ],
)
def test_cautions_of_one_corpus_tell_its_parts(name, values, said):
    ours, theirs = (
        {"corpus": {"name": "c", "fingerprint": "f", name: value}} for value in values
    )
    assert cautions(ours, theirs) == [said]


def test_a_third_run_of_one_name_is_the_third():
    names = [
        run.name for run in differences.with_own_names([kept("a", [(0, 0.1)])] * 3)
    ]
    assert names == ["a", "a (2)", "a (3)"]


def test_runs_without_replicates_are_both_named():
    bare = [kept(name, [(0, 0.1)], replicates=False) for name in "ab"]
    assert differences.explain_pairing(*bare).startswith("Not paired: a and b kept no")


def test_the_token_policy_of_a_comparison():
    def of(*rows, tokens):
        run = KeptRun("a", records(rows))
        return differences.select_rows(run, "drift", tokens=tokens)["value"].tolist()

    rows = [
        row("drift", 0, 0.1, token_policy="all"),
        row("drift", 0, 0.2, token_policy="content"),
    ]
    assert of(*rows, tokens="content") == [0.2] and of(*rows, tokens=None) == [0.1, 0.2]
    without = row("drift", 0, 0.3)
    assert of(without, tokens="content") == [0.3], "none has a policy"
    assert of(*rows, without, tokens="content") == [0.2, 0.3]
    with pytest.raises(UsageError, match="use all or content"):
        of(*rows, tokens="no-first")
    for name in ("step", "seed"):
        with pytest.raises(UsageError, match="runs of one model each"):
            of(*(rows[0] | {name: value} for value in (1, 2)), tokens=None)
    heads = [head("drift", i, i / 10) for i in range(3)]
    run = KeptRun("a", records([*heads, row("drift", 2, 0.7)]))
    assert differences.select_rows(run, "drift")["value"].tolist() == [0.7]
    of_heads = differences.select_rows(run, "drift", heads=True)
    assert of_heads["value"].tolist() == [0.0, 0.1, 0.2] and "row" not in of_heads


def test_of_two_layers_equally_near_the_first_is_taken():
    ours, theirs = (
        kept("a", [(1, 0.1), (2, 0.1)]),
        kept("b", [(1, 0.2), (3, 0.4), (4, 0.5)]),
    )
    found = differences.compare_runs(ours, theirs, "drift")
    assert [one.layer_other for one in found] == [1, 4]


def test_windows_and_batches_are_told_with_what_each_run_had():
    corpus = {"name": "c", "fingerprint": "f", "max_length": 8}
    ours, theirs = (
        {"corpus": corpus, "plan": plan, "settings": {"batch_tokens": size}}
        for plan, size in (("p", 512), ("q", 1024))
    )
    assert cautions(ours, theirs) == [
        "The same text as other tokens (--batch-tokens 512 and 1,024)."
    ]


def test_the_numbers_behind_a_sentence_are_those_of_both_runs():
    found = comparison._to_plain_dict(different(1, 0.5, 0.25, head=2))
    assert found == {
        "metric": "m",
        "stack": "encoder",
        "layer": 1,
        "head": 2,
        "site": "hidden",
        "component": None,
        "first": 0.0,
        "second": 0.5,
        "value": 0.5,
        "low": 0.25,
        "high": 0.75,
    }


def test_differences_of_heads_come_layer_by_layer():
    rows = [
        head("drift", i, 0.1) | {"layer": layer} for layer in (1, 2) for i in range(2)
    ]
    run = KeptRun("a", records(rows))
    found = differences.compare_runs(run, run, "drift", heads=True)
    places = [(one.where["layer"], one.where["head"]) for one in found]
    assert places == [(1, 0), (1, 1), (2, 0), (2, 1)]


def test_extremes_of_several_kinds_of_attention_are_told_apart():
    def said(*kinds):
        rows = [
            head("sinks.rate", 0, 0.2, component=".3", kind=kind, stack=stack)
            for stack, kind in kinds
        ]
        found = [each.text for each in extremes.extreme_findings(records(rows))]
        return [text.partition("No head")[0] for text in found]

    assert said(("decoder", "self")) == [""]
    assert said(("decoder", "self"), ("decoder", "cross")) == [
        "Decoder, self-attention: ",
        "Decoder, cross-attention: ",
    ]
    assert (
        said(("encoder", "self"), ("decoder", "self"))[0] == "Encoder, self-attention: "
    )


@pytest.mark.parametrize("kind", ["sinks", "attention_sink"])
def test_a_finding_keeps_the_records_of_ten_heads(kind):
    rows = [head("sinks.rate", i, 0.9, component=".3") for i in range(12)]
    rows += [head("attention.first_mass", i, 0.9) for i in range(12)]
    found = [
        *extremes.extreme_findings(records(rows)),
        *attention.attention_findings(records(rows)),
    ]
    (one,) = [each for each in found if each.rule == kind]
    assert len(one.numbers) == 10 and one.text.startswith("12 of 12 heads")


def test_a_table_of_sinks_without_a_rate_has_no_ends():
    rows = [head("sinks.strongest", 0, 0.4), head("logits.largest", 0, 3.0)]
    table = extremes.sinks_table(records(rows))
    assert [*table.columns] == [*extremes.PLACE, "strongest key", "largest logit"]
    bare = attention.attention_table(records([head("attention.row_max", 0, 0.4)]))
    assert "low" not in bare and bare["largest weight"].item() == 0.4


def test_stacks_of_runs_without_differences_come_first_in_their_sentence():
    rows = [
        row("drift", 1, 0.2, 0.1, 0.3, stack=name) for name in ("encoder", "decoder")
    ]
    found = [
        *short_tables.intervals_apart(*[(n, records(rows)) for n in "ab"], "drift")
    ]
    assert [each.text for each in found] == [
        f"{name}: b against a in drift: intervals overlap in every layer."
        for name in ("Encoder", "Decoder")
    ]
    table = short_tables.value_table(records([rows[1], rows[0]] * 2)[2:])
    assert table.index.tolist() == [0, 1]


def test_a_repeated_name_keeps_both_records():
    frames = [pd.DataFrame({"x": [i]}) for i in range(3)]
    found = short_tables.number_names(zip("aba", frames, strict=True))
    assert [(name, frame["x"].item()) for name, frame in found.items()] == [
        ("a", 0),
        ("b", 1),
        ("a (3)", 2),
    ]


def test_a_layer_without_a_value_is_no_layer_of_a_verdict():
    rows = [row("mean_cosine", i, v, v, v) for i, v in enumerate((0.1, NAN, 0.3))]
    (depth,) = findings.judge_stacks(records(rows))
    assert depth.rows["layer"].tolist() == [0, 2] and depth.top.layer == 2
    assert depth.rows["verdict"].tolist() == ["", ""], "q95 was not measured"


def test_other_inputs_and_other_tokens_need_another_cure():
    def of(name, units):
        return KeptRun(name, records([]), None, units, {"plan": name})

    for units, said in (
        (("u", "u"), "same corpus as other"),
        (("u", "v"), "other inputs"),
    ):
        with pytest.raises(UsageError, match=f"{said}.* in a and b"):
            across.require_same_tokens(*map(of, "ab", units))


def test_each_metric_of_vectors_that_is_named_is_looked_at():
    arrays = wrap_vectors(np.eye(4))
    named = Settings(metrics=("mean_cosine", "attention"))
    with pytest.raises(UsageError, match="'attention'"):
        of_vectors.limit_settings(arrays, named)
    chosen = of_vectors.limit_settings(arrays, Settings(panel=("hidden",))).metrics
    assert "floor" in chosen and "mean_cosine" in chosen and chosen.count("floor") == 1
    assert of_vectors.limit_settings(arrays, Settings(metrics=("norms",))).metrics == (
        "norms",
    )


@pytest.mark.parametrize(
    ("kept_bytes", "reached"), [(8 * 6 * 3, 1), (8 * 6 * 3 - 1, 0)]
)
def test_labelled_vectors_are_held_up_to_a_limit(kept_bytes, reached, monkeypatch):
    """Six vectors of three numbers, eight bytes each."""
    monkeypatch.setattr(of_vectors, "LABELLED_BYTES", kept_bytes)
    made = as_records(pd.DataFrame({"value": [1.0]}), metric="any")
    monkeypatch.setattr(of_vectors, "make_separability_records", lambda *_, **__: made)
    arrays = wrap_vectors(np.ones((6, 3)), labels=np.arange(6) % 2)
    found, warnings = of_vectors._measure_separability(arrays, job.Job())
    assert len(found) == reached and len(warnings) == 1 - reached
    assert not warnings or "layer 0: 6 vectors" in warnings[0]
    shard = of_vectors._measure_separability(arrays, job.Job(shard=(0, 2)))
    assert len(shard[0]) == 0 and "left out of a shard" in shard[1][0]


def test_type_and_device_are_those_of_the_weights_where_they_were_left_open():
    def of(dtype, device="auto", **model):
        made = types.SimpleNamespace(parameters=lambda: weights, **model)
        found = of_runs.resolve_dtype_and_device(
            job.Job(dtype=dtype, device=device), types.SimpleNamespace(model=made)
        )
        return found.dtype, found.device

    counts, half = torch.zeros(2, dtype=torch.int8), torch.zeros(2).bfloat16()
    weights = [counts, half]
    assert of("auto") == ("bfloat16", "cpu") and of("float32") == ("float32", "cpu")
    assert of("float32", quantization_method="any") == ("bfloat16", "cpu")
    weights = [counts, torch.zeros(2, device="meta")]
    assert of("float32") == ("float32", "cpu") == of("float32", device="cpu")


# ---- series and shards -----------------------------------------------------------------------------------------------


def a_series(folder, of=None, **how):
    made = of or job.Job("a", settings=Settings(groups=5))
    how = {"derived": None, "skip_bad": False, "name": "n"} | how
    return series._SeriesInProgress(lambda _: made, folder, **how)


def test_the_job_of_a_checkpoint_has_its_model_step_and_seed(tmp_path):
    made = a_series(tmp_path).job_of(series.Checkpoint("m@9", 9, 3))
    assert (made.model, made.step, made.train_seed) == ("m@9", 9, 3)
    assert made.settings.groups == 5


def test_what_is_written_last_into_the_folder_of_a_checkpoint(tmp_path):
    derived = series.Derived("of_heads.parquet", lambda *_: None)
    for how, last in (
        ({}, "manifest.json"),
        ({"derived": derived}, "of_heads.parquet"),
    ):
        work = a_series(tmp_path, **how)
        work.folders = {series.Checkpoint("m", 1, 0): tmp_path / last}
        (tmp_path / last).mkdir()
        assert len(work.list_unfinished()) == 1
        assert not work._is_measured(tmp_path / last)
        for name in (last, series.SHAPE):
            (tmp_path / last / name).write_text("{}")
            assert not work._is_measured(tmp_path / last)
            (tmp_path / last / name).unlink()
        for name in (last, series.SHAPE):
            (tmp_path / last / name).write_text("{}")
        assert work._is_measured(tmp_path / last) and work.list_unfinished() == []


def test_a_series_is_written_again_if_anything_in_it_changed(tmp_path):
    work = a_series(tmp_path)
    described = {"model": "n", "checkpoints": [], "skipped": {}, "repeated": []}
    assert not work._is_written(described)
    (tmp_path / "series.json").write_text(json.dumps(described | {"code": "other"}))
    assert not work._is_written(described), "the records are missing"
    (tmp_path / "records.parquet").touch()
    assert work._is_written(described)
    for name in described:
        assert not work._is_written(described | {name: "x"}), name
    (tmp_path / "series.json").write_text("{")
    assert not work._is_written(described)


def test_a_checkpoint_of_another_form_is_refused_with_what_differs():
    one = series.Checkpoint("m@2", 2, 0)
    series._require_same_form(one, {"a": 1, "more": 2}, {"a": 1})
    with pytest.raises(ModelError, match=r"\(a 1\); got a 2 in m@2"):
        series._require_same_form(one, {"a": 2}, {"a": 1})


def test_a_bad_checkpoint_is_skipped_only_if_asked(tmp_path):
    one = series.Checkpoint("m@2", 2, 0)
    for skip_bad in (True, False):
        work = a_series(tmp_path, skip_bad=skip_bad)
        work.folders = {one: tmp_path}
        if not skip_bad:
            with pytest.raises(ModelError, match="bad"):
                work.skip_or_raise(one, ModelError("a", "bad", "c"))
            assert work.folders and not work.skipped
            continue
        work.skip_or_raise(one, ModelError("a", "bad", "c"))
        assert not work.folders and "bad" in work.skipped["m@2"]


def test_a_series_takes_its_options_to_where_they_belong(tmp_path, monkeypatch):
    seen = []

    class Work:
        def __init__(self, _, output, derived, skip_bad, name):
            seen.append((output, derived, skip_bad, name))

        def examine(self, checkpoints):
            seen.append(checkpoints)

        def delete_earlier_runs(self):
            seen.append("deleted")

        def finish(self):
            return "made"

    monkeypatch.setattr(series, "_SeriesInProgress", Work)
    monkeypatch.setattr(series, "_measure_unfinished", lambda _, *how: seen.append(how))
    made = series.measure_series(["c"], job.Job("mo"), tmp_path, skip_bad=True, keep=3)
    assert made == "made" and seen == [(tmp_path, None, True, "mo"), ["c"], (3, None)]
    seen.clear()
    series.measure_series([], lambda _: None, tmp_path / "out", overwrite=True)
    assert seen[0] == (tmp_path / "out", None, False, "out") and seen[2] == "deleted"


def test_batches_and_files_are_missed_by_the_shards_they_belong_to():
    assert merge._list_missing_shards([4, 1, 9], 4) == [0, 1]
    assert merge._name_shards([0, 3], 4) == "1/4, 4/4"
    assert merge._name_some(list("abc")) == "a, b, c"
    assert merge._name_some(list("abcde")) == "a, b, c and 2 more"
    with pytest.raises(MeasureError, match=r"all 3 files; got 2; missing: 2/2 \(f1\)"):
        merge._require_all_files(["f0", "f1", "f2"], {"f0": 0, "f2": 0}, 2)


def a_run_folder(name, **corpus):
    run = types.SimpleNamespace(folder=Path(name))
    return run, {"corpus": {"name": f"c-{name}", **corpus}}


def test_files_of_two_runs_are_told_with_both_folders():
    (a, of_a), (b, of_b) = (
        a_run_folder(name, files={f"{name}.txt": "same"}) for name in "ab"
    )
    with pytest.raises(MeasureError, match=r"b.txt of b, whose content is in a too"):
        merge._join_runs([a, b], [of_a, of_b])
    with pytest.raises(MeasureError, match=r"got lines in a and None in b"):
        merge._join_runs(
            [a, b], [{"corpus": of_a["corpus"] | {"documents": "lines"}}, of_b]
        )


def test_runs_of_different_files_add_up_to_one_corpus():
    parts = [
        a_run_folder("a", files={"x": "1"}, n_batches=2, empty=1, skipped=0, path="p"),
        a_run_folder("b", files={"x": "2"}, n_batches=3, empty=None, skipped=4),
    ]
    whole = merge._join_runs(*zip(*parts, strict=True))
    assert whole["files"] == {"x": "1", "b: x": "2"} and whole["name"] == "c-a, c-b"
    assert [whole[name] for name in merge.COUNTED] == [5, 1, 4] and "path" not in whole
    turned = merge._join_runs(*zip(*parts[::-1], strict=True))
    assert whole["fingerprint"] == turned["fingerprint"], "in whatever order"


def test_shards_of_files_add_up_in_the_order_of_the_corpus():
    def of(name, *files, among="xyz"):
        counts = {"n_batches": 2, "empty": 1, "skipped": 3}
        run, manifest = a_run_folder(
            name, files={each: each * 2 for each in files}, all_files=[*among], **counts
        )
        return run, manifest | {"settings": {"shard": [0, 2]}}

    def join(*parts):
        return merge._join_files(*map(list, zip(*parts, strict=True)))

    whole = join(of("a", "x", "z"), of("b", "y"))
    assert whole["fingerprint"] == merge.hash_parts(["xx", "yy", "zz"])
    assert [whole[name] for name in merge.COUNTED] == [4, 2, 6]
    assert not {"files", "all_files"} & whole.keys()
    with pytest.raises(MeasureError, match="got x, in a and in b"):
        join(of("a", "x", "z"), of("b", "x", "y"))
    for among, got in (("wxyz", "w"), ("xy", "z")):
        with pytest.raises(MeasureError, match=f"got {got}, which is in only"):
            join(of("a", "x"), of("b", "y", among=among))


def test_what_merged_runs_add_up_to():
    parts = [
        {"run": name, "notes": notes, "started": at, "seconds": 1.25, "processes": 2}
        for name, notes, at in (("a", ["n", "m"], "2"), ("b", ["m", "o"], "1"))
    ]
    assert merge._add_up_facts(parts) == {
        "asked": None,
        "merged": ["a", "b"],
        "notes": ["n", "m", "o"],
        "started": "1",
        "seconds": 2.5,
        "processes": 4,
    }


def test_the_kind_of_a_merge():
    files, all_files = {"files": {}}, {"files": {}, "all_files": []}
    kinds = (
        ([all_files, all_files], merge.FILES),
        ([files, files], merge.RUNS),
        ([files, all_files], merge.BATCHES),
        ([{}, files], merge.BATCHES),
    )
    for corpora, kind in kinds:
        assert merge._find_kind([{"corpus": each} for each in corpora]) == kind


def examined(monkeypatch, tmp_path, states, *, skip_bad):
    """A series that is examined; `states` says of each checkpoint whether it can be found."""
    work = a_series(tmp_path, skip_bad=skip_bad)

    def read(checkpoint):
        if not states[checkpoint.subject]:
            raise ModelError("a", f"no {checkpoint.subject}", "c")
        return {"size": 1}, tmp_path / checkpoint.subject

    monkeypatch.setattr(work, "_read_form", read)
    monkeypatch.setattr(series, "identify_corpus_state", lambda _: "state")
    work.examine([series.Checkpoint(name, 1, 0) for name in states])
    return work


def test_one_checkpoint_that_is_not_there_is_skipped_and_all_of_them_are_an_error(
    monkeypatch, tmp_path
):
    some = examined(monkeypatch, tmp_path, {"a": False, "b": True}, skip_bad=True)
    assert [each.subject for each in some.folders] == ["b"] and {*some.skipped} == {"a"}
    assert some.corpus == "state" and [*some.forms.values()] == [{"size": 1}]
    for states, skip_bad in (
        ({"a": False, "b": True}, False),
        ({"a": False, "b": False}, True),
    ):
        with pytest.raises(ModelError, match="no a"):
            examined(monkeypatch, tmp_path, states, skip_bad=skip_bad)


def test_finished_checkpoints_are_handed_to_the_store_if_any_is_left(
    monkeypatch, tmp_path
):
    seen = []

    class Store:
        def __init__(self, *given):
            seen.append(given)

        def get(self, i, following):
            seen.append((i, following))

        def close(self):
            seen.append("closed")

    monkeypatch.setattr(series, "_CheckpointStore", Store)
    work = a_series(tmp_path)
    monkeypatch.setattr(work, "measure", lambda checkpoint, _: seen.append(checkpoint))
    for name in "abc":
        work.folders[series.Checkpoint(name, 1, 0)] = tmp_path / name
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / work.marker).touch()
    monkeypatch.setattr(series, "make_once", lambda _, make, **_how: make())
    series._measure_unfinished(work, 3, None)
    a, _, c = work.folders
    assert seen == [(["a", "c"], 3, ["b"]), (0, 1), a, (1, 2), c, "closed"]
    seen.clear()
    for name in "ac":
        (tmp_path / name).mkdir()
        (tmp_path / name / work.marker).touch()
    series._measure_unfinished(work, 3, None)
    assert seen == [([], 3, []), "closed"], "nobody's files are looked at"


# ---- warnings of a run -----------------------------------------------------------------------------------------------


def a_measurement(units=40, groups=32, batches=(0,), spectrum=None, **more):
    made = {
        "batches": set(batches),
        "sums": types.SimpleNamespace(units=range(units), terms={}),
        "settings": Settings(groups=groups),
        "moments": types.SimpleNamespace(groups=spectrum),
        "sites": {},
    }
    return types.SimpleNamespace(**made | more)


def test_few_units_are_warned_of():
    def said(**how):
        return " ".join(of_runs._warn_of_units(a_measurement(**how)))

    assert said() == "" and said(units=20) == ""
    assert said(units=19).startswith("19 units only")
    assert said(units=2).endswith("measure more documents, or with more --groups")
    assert "--groups" in said(groups=2) and "19" not in said(groups=2)
    assert said(batches=(), units=0).startswith("no batch fell to this shard")


def test_a_spectrum_in_few_groups_is_warned_of():
    def said(**how):
        measurement = a_measurement(**how)
        measurement.settings = types.SimpleNamespace(
            list_terms=lambda _: (), flatten="sequence"
        )
        return " ".join(of_runs._warn_of_spectrum(measurement))

    assert said() == "" and said(spectrum=8) == ""
    assert said(spectrum=2).startswith("spectrum: ")
    assert said(spectrum=8, units=2).startswith("spectrum: ")


def test_a_tower_without_a_final_norm_is_warned_of():
    def said(*places):
        sites = {place: Site(*place) for place in places}
        return list(of_runs._warn_of_towers(a_measurement(sites=sites)))

    text, vision = ("text", 1, "hidden"), ("vision", 1, "hidden")
    final = ("text", None, "final")
    found = said(text, vision, final)
    assert len(found) == 1 and found[0].startswith("vision has no `final`")
    assert (
        said(text, vision) == []
        and said(text, vision, final, ("vision", None, "final")) == []
    )
    assert said(("decoder", 1, "hidden"), final) == [], "no tower"


def test_vectors_left_out_are_counted_at_their_site():
    made = {"a": {"zero": 2, "nonfinite": 0}, "b": {"zero": 0, "nonfinite": 3}}
    found = list(
        of_runs._warn_of_excluded(types.SimpleNamespace(excluded=lambda: made))
    )
    assert found == [
        "2 zero vectors left out at a",
        "3 vectors with NaN or Inf left out at b",
    ]


def test_batches_of_a_shard_are_dealt_in_turn():
    def of(shard, **corpus):
        reading = of_runs.OpenedCorpus(range(7), corpus)
        return list(of_runs._list_batches_of_shard(job.Job(shard=shard), reading))

    assert of((1, 3)) == [1, 4] and of((0, 1)) == [*range(7)]
    assert of((1, 3), files={}) == [*range(7)], "a shard of files has a plan of its own"


def test_a_floor_is_added_for_vectors_of_texts():
    def of(model, **settings):
        made = job.Job(settings=Settings(**settings))
        subject = types.SimpleNamespace(model=model)
        return of_runs.add_floor_of_sentences(made, subject).settings.panel

    sentence, tokens = types.SimpleNamespace(sentence=1), types.SimpleNamespace()
    assert of(sentence, panel=("hidden",)) == ("hidden", "floor")
    assert of(sentence, panel=("floor", "hidden")) == ("floor", "hidden")
    for model, how in (
        (tokens, {"panel": ("hidden",)}),
        (sentence, {"panel": ("attention",)}),
        (sentence, {"panel": ("hidden",), "sample": 0}),
        (sentence, {"panel": ("hidden",), "metrics": ("mean_cosine",)}),
    ):
        assert "floor" not in of(model, **how)


# ---- charts ----------------------------------------------------------------------------------------------------------


def test_cells_whose_interval_holds_zero_are_marked():
    frame = pd.DataFrame(
        {
            "value": [0.25, -0.5, 0.0, NAN],
            "low": [-0.1, -0.6, 0.0, -1],
            "high": [0.5, -0.4, 0.1, 1],
        }
    )
    assert builders._label_cells(frame, True, numbers=True) == [
        "(.25)",
        "−.50",
        ".00",
        "",
    ]
    assert builders._label_cells(frame, True, numbers=False) == ["·", "", "", ""]
    assert builders._label_cells(frame, False, numbers=True) == [
        ".25",
        "−.50",
        ".00",
        "",
    ]
    assert builders._sort_levels(pd.Series([10, 2, 10])) == ["2", "10"]
    assert builders._sort_levels(pd.Series(["b", "a", "b"])) == ["b", "a"]


def test_a_heat_map_has_its_ends_and_its_ink():
    frame = pd.DataFrame(
        {"head": [0, 1, 0, 1], "layer": [1, 1, 2, 2], "value": [-0.2, 0.1, 0.8, 0.4]}
    )
    frame = frame.assign(low=frame["value"] - 0.15, high=frame["value"] + 0.15)

    def drawn(**how):
        chart = builders.heatmap(frame, **how)
        found = chart.to_dict(validate=False)
        return found, next(iter(found["datasets"].values()))

    found, data = drawn(diverging=True)
    assert found["layer"][0]["encoding"]["color"]["scale"]["domain"] == [-0.8, 0.8]
    assert [cell["dark"] for cell in data] == [False, False, True, False]
    assert [cell["label"] for cell in data] == ["−.20", "(.10)", ".80", ".40"]
    assert found["layer"][0]["encoding"]["color"]["legend"]["values"] == [
        -0.8,
        0.0,
        0.8,
    ]
    found, data = drawn()
    assert found["layer"][0]["encoding"]["color"]["scale"]["domain"] == [-0.2, 0.8]
    assert found["height"] == 52 and found["layer"][0]["encoding"]["y"]["sort"] == [
        "1",
        "2",
    ]
    assert [cell["label"] for cell in drawn(size=(59, 26))[1]] == ["", "", "", ""]
    assert [cell["label"] for cell in drawn(size=(60, 16))[1]][2] == ".80"
    assert [cell["label"] for cell in drawn(size=(60, 15))[1]][2] == ""


def test_lines_have_marks_if_there_are_few_points():
    def layers(points, **how):
        frame = pd.DataFrame(
            {"step": range(points), "model": "m", "value": 0.5, "low": 0.4, "high": 0.6}
        )
        found = builders.trajectory(frame, **how).to_dict(validate=False)["layer"]
        return [layer["mark"]["type"] for layer in found]

    assert layers(40) == ["area", "line", "point"] and layers(41) == ["area", "line"]
    assert layers(3, band=False) == ["line", "point"]
    assert layers(3, isotropic=0.1) == ["rect", "rule", "area", "line", "point"]
    curve = builders.layer_curve(
        pd.DataFrame(
            {
                "layer": [1, 0, 1],
                "site": ["hidden", "hidden", "final"],
                "model": "m",
                "value": [0.2, 0.1, 0.3],
            }
        )
    ).to_dict(validate=False)
    data = next(iter(curve["datasets"].values()))
    assert [(each["layer"], each["joined"]) for each in data] == [
        (0, True),
        (1, True),
        (1.5, False),
    ]
    assert [layer["mark"]["type"] for layer in curve["layer"]][-1] == "point"


def test_numbers_of_an_axis_and_of_cells():
    assert [
        style.format_compact(x)
        for x in (0.994, 0.995, -0.07, -0.001, 99.4, 99.5, 99_999, 123_456, 2e12)
    ] == [
        *(".99", "1.0", "−.07", ".00", "99.4", "100", "99999", "1e5", "2e12"),
    ]

    def ticks(*values, scale="linear"):
        return style.number_axis(
            "x", "x", pd.Series(values, dtype=float), scale
        ).to_dict()["axis"]

    assert ticks(0, 3, 12)["values"] == [*range(13)] and "values" not in ticks(0, 13)
    assert ticks(0, 13)["tickMinStep"] == 1 and "tickMinStep" not in ticks(0, 0.3)
    assert ticks(2, 50, scale="log")["values"] == [2, 20]
    assert ticks(0, 2, 50, scale="symlog")["values"] == [0, 2, 20]
    assert ticks(-30, 5, scale="symlog")["values"] == [0, 1, 10, -1, -10]
    names = ["a" * 10, "b" * 10]
    assert style._make_legend(names, 192).to_dict()["columns"] == 0
    assert (
        style._make_legend(names, 191).to_dict()["columns"] == 1
        and style._make_legend(names[:1], 50) is None
    )
    frame = pd.DataFrame(
        {
            "model": ["m", "n"],
            "layer": [1, 2],
            "value": [0.12345, 2],
            "low": [0.1, NAN],
            "high": [0.2, 3],
        }
    )
    tips = [
        tip.removeprefix(style.TOOLTIP)
        for tip in style.make_tooltips(frame, "model", "layer", None)
    ]
    assert tips == ["m · layer 1: 0.1235 [0.1, 0.2]", "n · layer 2: 2"] or tips[
        0
    ].startswith("m · layer 1: 0.123")
    assert style.escape_control("a\x00\tb\ud800") == "a␀\tb�"


def test_many_tiles_are_written_short(monkeypatch):
    tile = '<path d="M{},0h10v8h-10Z" fill="rgb({}, 0, 0)" stroke="#ffffff" stroke-width="0.6"></path>'
    svg = (
        "<svg>"
        + "".join(tile.format(x, red) for x, red in ((0, 9), (10, 10), (20, 200)))
        + "</svg>"
    )
    assert export.shorten_tiles(svg) == svg
    monkeypatch.setattr(export, "MANY_TILES", 3)
    assert export.shorten_tiles(svg).count(
        "<path"
    ) == 3 and 'stroke-width="7.4"' in export.shorten_tiles(svg)
    merged = export.shorten_tiles(svg, merge=True)
    assert (
        merged.count("<path") == 2
        and 'd="M0,4h10M10,4h10"' in merged
        and 'stroke="#080000"' in merged
    )


# ---- models ----------------------------------------------------------------------------------------------------------


def test_blocks_fit_a_class_or_a_pattern():
    module = torch.nn.Linear(2, 2)
    fits = {
        ("Linear", "a.b"): True,
        ("linear", "a"): False,
        ("a.*", "a.0"): True,
        ("a.*", "a.0.b"): False,
        ("*.0", "a.0"): True,
        ("a.b", "a.c"): False,
    }
    assert {pair: blocks._is_match(*pair, module) for pair in fits} == fits
    assert (
        blocks._find_tower("v.layers.0", {"v": "vision"}) == "v"
        and blocks._find_tower("v", {"v": "x"}) == "v"
    )
    assert blocks._find_tower("vision", {"v": "vision"}) is None
    assert blocks._read_modalities(
        types.SimpleNamespace(input_modalities=("video", "text"))
    ) == {"image", "text"}
    assert blocks._read_modalities(types.SimpleNamespace(input_modalities="audio")) == {
        "audio"
    }
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    outer = torch.nn.ModuleDict(
        {
            "blocks": net,
            "head": torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()),
        }
    )
    assert blocks._suggest_blocks(outer) == ["Linear", "blocks.*"]
    found = blocks.find_blocks(outer, ("blocks.*",))
    assert found == {"encoder": [net[0], net[1]]}
    nested = torch.nn.Sequential(torch.nn.TransformerEncoderLayer(4, 2, 8))
    assert len(blocks.find_blocks(nested)["encoder"]) == 1
    assert blocks.has_tokens_first(nested, nested[0])
    assert not blocks.has_tokens_first(
        nested, torch.nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    )
    with pytest.raises(UsageError, match="tokens_first"):
        blocks.has_tokens_first(nested, nested)


def test_special_tokens_before_the_patches_are_counted():
    model = torch.nn.Module()
    model.cls_token = torch.nn.Parameter(torch.ones(1, 1, 4))
    model.register_tokens = torch.nn.Parameter(torch.ones(1, 3, 4))
    model.class_embedding = torch.nn.Parameter(torch.ones(4))
    model.mask_token = torch.nn.Parameter(torch.ones(1, 1, 4))
    assert blocks._count_special_tokens(model) == 5
    model.blocks_token_only = torch.nn.Linear(2, 2)
    assert blocks._count_special_tokens(model) == 0


def test_streams_of_merged_lengthened_and_tripled_inputs():
    mask = torch.tensor([[True, True, True, False, False]])
    stream = Stream(
        mask, torch.tensor([[True, False, False, False, False]]), torch.tensor([10])
    )
    half = blocks._take_every(2, stream)
    assert half.mask.tolist() == [[True, True, False]] and half.special.tolist() == [
        [True, False, False]
    ]
    assert half.start.tolist() == [5]
    filled = families._lengthen(stream, before=2, behind=1)
    assert filled.mask.tolist() == [
        [False, False, True, True, True, False, False, False]
    ]
    assert (
        filled.special[0, 2]
        and filled.special.sum() == 1
        and filled.start.tolist() == [8]
    )
    config = types.SimpleNamespace(attention_window=[2, 4], prompt_length=3)
    model = types.SimpleNamespace(config=config)
    padded = families._make_padder("attention_window")(
        model, {"encoder": stream, "decoder": stream}
    )
    assert padded["encoder"].mask.shape == (1, 8) and padded["decoder"] is stream
    assert families._adapt_cpmant(model, {"decoder": stream})[
        "decoder"
    ].start.tolist() == [7]
    tripled = families._adapt_decision_transformer(model, {"decoder": stream})[
        "decoder"
    ]
    assert (
        tripled.mask.sum() == 9
        and tripled.start.tolist() == [30]
        and tripled.special[0, :4].tolist() == [1, 1, 1, 0]
    )


def test_frames_of_samples_are_real_if_all_their_samples_are():
    model = types.SimpleNamespace(
        config=types.SimpleNamespace(conv_stride=(5, 2)),
        _get_feat_extract_output_lengths=lambda n: n // 10,
    )
    samples = Stream(
        torch.arange(40) < torch.tensor([[40], [25]]),
        torch.zeros(2, 40, dtype=bool),
        torch.tensor([0, 400]),
    )
    frames = blocks._convert_samples(model, samples)
    assert frames.mask.sum(1).tolist() == [4, 2] and frames.start.tolist() == [0, 40]
    assert blocks._convert_samples(types.SimpleNamespace(), samples) is samples


def test_formats_of_checkpoints(tmp_path):
    assert (
        formats.choose_weight_file(["pytorch_model.bin", "model.safetensors"])
        == "model.safetensors"
    )
    older = ["modules.json", "0_T/config.json", "0_T/model.safetensors"]
    assert formats.choose_weight_file(older) == "0_T/model.safetensors"
    assert formats.choose_weight_file(["config.json"]) is None
    assert (
        formats.find_first_module(["modules.json", "config.json", "0_T/config.json"])
        == ""
    )
    assert (
        "GGUF" in formats.explain_format(["a.gguf", "x.pt"])
        and formats.explain_format(["config.json"]) == ""
    )
    assert "diffusers pipeline (X)" in formats.explain_config(
        {"_diffusers_version": "1", "_class_name": "X"}
    )
    assert (
        "timm" in formats.explain_config({"architecture": "a"})
        and formats.explain_config({"architecture": "a", "model_type": "b"}) == ""
    )
    assert "quantised (gptq)" in formats.explain_config(
        {"quantization_config": {"quant_method": "gptq"}}
    )
    (tmp_path / "modules.json").write_text(
        json.dumps([{"type": "sentence_transformers.models.BoW"}])
    )
    assert formats.find_foreign_first_module(tmp_path) == "BoW"
    (tmp_path / "modules.json").write_text(
        json.dumps([{"type": "sentence_transformers.models.Transformer"}])
    )
    assert formats.find_foreign_first_module(tmp_path) == ""
    assert not formats.is_adapter(["adapter_config.json", "model.safetensors"])
    assert formats.read_config(tmp_path / "none.json") == {} and formats.read_list(
        tmp_path / "modules.json"
    )


def test_small_files_are_fetched_beside_the_weights():
    wanted = {
        "config.json": True,
        "model.onnx": False,
        "1_Pooling/config.json": True,
        "1_Pooling/x.json": False,
        "sub/code.py": True,
        "sub/x.json": False,
        "0_T/vocab.txt": True,
        ".hidden": False,
        "a.md": False,
        "model.safetensors.index.json": False,
    }
    assert {name: hub._is_small(name, 10) for name in wanted} == wanted
    assert hub._is_small("vocab.txt", None) and hub._is_small("vocab.txt", 1 << 26)
    assert not hub._is_small("vocab.txt", (1 << 26) + 1)


def test_names_with_revisions(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a@b").mkdir()
    (tmp_path / "own").mkdir()
    assert hub.split_name("x/y@main") == ("x/y", "main") and hub.split_name("x/y") == (
        "x/y",
        None,
    )
    assert hub.split_name("a@b") == ("a@b", None) and hub.split_name("x@") == (
        "x",
        None,
    )
    with pytest.raises(ModelError, match="without a revision"):
        hub.split_name("own@main")
    with pytest.raises(ModelError, match="shorten"):
        hub.split_name("x" * 5000)


def test_faults_that_say_how_they_were_reached():
    for kind, text, got in (
        ("ConnectError", "CERTIFICATE_VERIFY_FAILED", "a certificate"),
        ("ProxyError", "x", "a proxy that fails"),
        ("ReadTimeout", "", "no answer in time"),
        ("RemoteProtocolError", "", "broke off"),
        ("ReadError", "", "broke off"),
        ("ConnectError", "", "no network"),
    ):
        assert got in hub_faults._explain_no_reply(kind, text).got
    error = ValueError("x")
    error.__context__ = LookupError("y")
    assert hub_faults.classify_fault(error).got == "ValueError: x"
    assert (
        hub_faults.classify_fault(LookupError("y")).got
        == "a page that is not the hub's"
    )


def test_an_answer_is_asked_for_once():
    asked = []

    def ask():
        asked.append(1)
        return len(asked)

    assert [hub_memory.get_answer("q", ask) for _ in range(2)] == [1, 2]
    with hub_memory.ask_once():
        assert [hub_memory.get_answer("q", ask) for _ in range(2)] == [3, 3]
        with hub_memory.ask_once():
            assert hub_memory.get_answer("q", ask) == 3
        refusal = ValueError("no")
        refusal.response = types.SimpleNamespace(status_code=404)
        fault = ValueError("again")
        fault.response = types.SimpleNamespace(status_code=500)
        for error, times in ((refusal, 1), (fault, 2)):
            seen = []

            def fail(error=error, seen=seen):
                seen.append(1)
                raise error

            for _ in range(2):
                with pytest.raises(ValueError):
                    hub_memory.get_answer(str(error), fail)
            assert len(seen) == times
    assert hub_memory.get_answer("q", ask) == 4


@pytest.mark.parametrize(("asked", "seconds"), [(3, 10.0), (10, 10.0), (60, 60.0)])
def test_the_hub_is_waited_for_ten_seconds_or_as_long_as_is_asked_for(
    asked, seconds, monkeypatch
):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_ETAG_TIMEOUT", asked)
    assert hub_memory.get_timeout() == seconds


def test_who_stops_after_a_failure_asks_nothing_more():
    """A hub that is not reached is not asked for each of a thousand names; that one is not there is no failure."""
    asked = []

    def answer(status):
        def ask():
            asked.append(status)
            error = ValueError(status)
            error.response = types.SimpleNamespace(status_code=status)
            raise error

        return ask

    with hub_memory.stop_asking_after_failure():
        for place, status in enumerate((404, 503, 404, 500)):
            with pytest.raises(ValueError, match="404" if place == 0 else "503"):
                hub_memory.get_answer(f"q{place}", answer(status))
    assert asked == [404, 503]
    # what ends the block is not what asks next
    with (
        pytest.raises(ValueError, match="501"),
        hub_memory.stop_asking_after_failure(),
    ):
        hub_memory.get_answer("q2", answer(501))
    with pytest.raises(ValueError, match="500"):
        hub_memory.get_answer("q3", answer(500))


def test_weights_have_a_hash_of_all_that_they_are():
    def made(**change):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(20, 20))
        with torch.no_grad():
            for place, value in change.items():
                model[0].weight.view(-1)[int(place[1:])] = value
        return model

    plain = identity.hash_weights(made())
    assert (
        plain == identity.hash_weights(made()) != identity.hash_weights(made(_300=9.0))
    )
    assert identity.hash_weights(made(), {"0.weight"}) == identity.hash_weights(
        made(_300=9.0), {"0.weight"}
    )
    assert plain != identity.hash_weights(made().double())
    some = identity.hash_some_weights(made())
    assert some == identity.hash_some_weights(
        made(_300=9.0)
    ) and some != identity.hash_some_weights(made(_63=9.0))
    settings = {
        "b": {"_name_or_path": "x", "c": 1},
        "transformers_version": "5",
        "a": 2,
    }
    assert list(identity.drop_volatile(settings)) == [
        "a",
        "b",
    ] and identity.drop_volatile(settings)["b"] == {"c": 1}


def test_weights_of_several_tensors_are_packed_and_those_of_several_processes_are_not():
    """A sharded weight is put together for its hash; a packed one has no plain form."""

    class Packed(torch.Tensor):
        def __tensor_flatten__(self):
            raise NotImplementedError

    class Sharded(Packed):
        placements = ()

    weight = torch.zeros(2)
    found = [
        identity.is_packed(x)
        for x in (weight, weight.as_subclass(Packed), weight.as_subclass(Sharded), {})
    ]
    assert found == [False, True, False, True]


def test_devices_and_types_by_name():
    assert (
        devices.dtype_of("bfloat16") == torch.bfloat16
        and devices.device_of("cpu").type == "cpu"
    )
    for name in ("int8", "nn", "float33"):
        with pytest.raises(ModelError):
            devices.dtype_of(name)
    with pytest.raises(ModelError, match="shapes only"):
        devices.device_of("meta")
    assert devices.is_out_of_memory(
        RuntimeError("CUDA out of memory")
    ) and devices.is_out_of_memory(MemoryError())
    assert not devices.is_out_of_memory(
        ValueError("out of memory")
    ) and not devices.is_out_of_memory(RuntimeError("x"))


def test_sentence_modules_that_need_the_last_states_alone(tmp_path):
    path = tmp_path / other_libraries.BERT_CONFIG
    assert other_libraries._is_plain(
        str(tmp_path), ["Transformer", "Pooling", "Normalize"]
    )
    assert not other_libraries._is_plain(
        str(tmp_path), ["Transformer", "WeightedLayerPooling"]
    )
    assert not other_libraries._is_plain(str(tmp_path), ["MLMTransformer", "Pooling"])
    for settings in (
        {"do_lower_case": True},
        {"transformer_task": "fill-mask"},
        {"modality_config": {"text": {"method_output_name": "x"}}},
    ):
        path.write_text(json.dumps(settings))
        assert not other_libraries._is_plain(str(tmp_path), ["Transformer", "Pooling"])
    path.write_text(json.dumps({"max_seq_length": 8}))
    for own, kept_ in ((512, 8), (4, 4)):
        processor = types.SimpleNamespace(model_max_length=own)
        other_libraries._limit_length(processor, str(tmp_path))
        assert processor.model_max_length == kept_


# ---- steps of a run --------------------------------------------------------------------------------------------------


def test_a_run_knows_what_it_read_and_with_what(monkeypatch):
    model = torch.nn.Linear(3, 2)
    monkeypatch.setattr(of_runs, "rank_and_world", lambda: (0, 4))
    asked = []
    monkeypatch.setattr(of_runs, "identify_units", lambda *given: asked.append(given))

    class Plan(list):
        tokens, fingerprint, tokens_hash = (1, 20, 300, 4000), "f", "t"

    plan = Plan([None] * 4)
    subject = types.SimpleNamespace(
        model=model, revision="r", weights_sha256="w", notes=["of the model"]
    )
    subject.config = types.SimpleNamespace(_attn_implementation="sdpa")
    given = job.Job("m", sequences=7, split="s", dtype="bfloat16")
    reading = of_runs.OpenedCorpus(plan, {"name": "c", "warnings": ["of the corpus"]})
    facts = of_runs._collect_facts(subject, given, reading, (1, 3))
    assert facts["notes"] == ["of the model", "of the corpus"]
    assert facts["corpus"]["n_tokens"] == 4020 and facts["corpus"]["n_batches"] == 4
    assert (facts["parameters"], facts["processes"]) == (8, 4)
    assert (facts["revision"], facts["weights_sha256"]) == ("r", "w")
    assert (facts["plan"], facts["tokens_hash"]) == ("f", "t")
    assert (facts["backend"], facts["dtype"], facts["device"]) == (
        "sdpa",
        "bfloat16",
        "cpu",
    )
    assert facts["architecture"] == "Linear"
    ((identified, *_),) = asked
    assert (identified["sequences"], identified["split"]) == (7, "s")
    assert identified["name"] == "c"


def test_each_remark_of_a_pass_is_made_on_its_own(monkeypatch):
    for name in ("_warn_of_units", "_warn_of_spectrum", "_warn_of_towers"):
        monkeypatch.setattr(of_runs, name, lambda _: ())
    monkeypatch.setattr(of_runs, "_warn_of_excluded", lambda _: ())
    monkeypatch.setattr(of_runs, "describe_refused", list)
    plain = {"pieces": 1, "unseen": set(), "weights": {}, "proof": None, "refused": ()}

    def said(**given):
        return list(of_runs._iter_warnings(types.SimpleNamespace(**plain | given)))

    def proof(**given):
        return types.SimpleNamespace(**given)

    assert said() == []
    assert said(proof=proof(moved=False, outputs=0.5)) == []
    (one,) = said(proof=proof(moved=True, outputs=0.5))
    assert "move by 5.0e-01 of the largest" in one
    (one,) = said(pieces=2)
    assert "in 2 parts" in one
    (one,) = said(unseen={"b", "a"})
    assert one.startswith("a, b not seen")
    weights = {"large": {"rows": 1}, "small": {"rows": 1, "sums": 2}, "none": {}}
    (one,) = said(weights=weights)
    assert one.startswith("I(W), the isotropy of large, takes minutes")
    assert said(refused=("x", "y")) == [
        "not seen and left out, x; the rest is measured",
        "not seen and left out, y; the rest is measured",
    ]


def test_tokens_of_the_largest_values_are_decoded_once():
    where = torch.zeros(2, 3, len(of_runs.WHERE), dtype=torch.long) - 1
    place = of_runs.WHERE.index("token")
    where[0, :, place] = torch.tensor([12, 5, 12])
    where[1, :, place] = torch.tensor([-1, 0, 7])
    terms = {"one": (None, where[:1]), "two": (None, where[1:])}
    measured = types.SimpleNamespace(extremes=types.SimpleNamespace(terms=terms))
    processor = types.SimpleNamespace(decode=lambda ids: f" w{ids[0]} ")
    assert of_runs._decode_tokens(measured, processor) == {
        "tokens": {"0": "w0", "5": "w5", "7": "w7", "12": "w12"}
    }
    assert list(of_runs._decode_tokens(measured, processor)["tokens"]) == [
        "0",
        "5",
        "7",
        "12",
    ]
    assert of_runs._decode_tokens(measured, object()) == {}
    measured.extremes.terms = {"none": (None, where[:1] * 0 - 1)}
    assert of_runs._decode_tokens(measured, processor) == {}


def test_a_pass_that_counted_nothing_at_all_is_an_error():
    name, other = of_runs.COUNTS[:2]

    def check(excluded, sites, **terms):
        counts = {
            (site, kind): torch.tensor(n) for (site, kind, n) in terms.pop("counts")
        }
        measured = types.SimpleNamespace(
            excluded=lambda: excluded,
            sums=types.SimpleNamespace(sites=lambda: sites, terms=counts),
        )
        of_runs._check_counted(measured)

    left = {"a": {"zero": 3, "not_finite": 0}, "b": {"zero": 2, "not_finite": 5}}
    nothing = [("a", name, [0, 0]), ("b", other, [0])]
    check({}, ["a"], counts=nothing)
    check({"a": left["a"]}, ["a", "c"], counts=nothing)
    check(left, ["a", "b"], counts=[("a", name, [0, 0]), ("b", other, [0, 1])])
    with pytest.raises(MeasureError, match=r"none at any site \(3 with zero at a\)"):
        check(left, ["a", "b"], counts=nothing)
    with pytest.raises(MeasureError, match="2 with zero and 5 with NaN or Inf at b"):
        check({"b": left["b"]}, ["b"], counts=nothing)


@pytest.mark.parametrize(
    ("seed", "of_training", "found"), [(3, None, 3), (3, 0, 0), (3, 8, 8)]
)
def test_records_of_a_checkpoint_have_the_seed_of_its_training(
    monkeypatch, tmp_path, seed, of_training, found
):
    own = as_records(pd.DataFrame([{"metric": "drift", "value": 1.0, "model": "x"}]))
    more = as_records(pd.DataFrame([{"metric": "norms", "value": 2.0}]))
    monkeypatch.setattr(of_runs, "_check_counted", lambda _: None)
    monkeypatch.setattr(of_runs, "_iter_warnings", lambda _: ["a warning"])
    written = []
    monkeypatch.setattr(of_runs, "_write_state", lambda *given: written.append(given))
    measured = types.SimpleNamespace(
        records=lambda _: own,
        settings=types.SimpleNamespace(groups=8),
        sums=types.SimpleNamespace(units={1: 0, 2: 0}),
        excluded=dict,
        proof=None,
    )
    facts = {"run": "r", "model": "m", "revision": "v", "corpus": {"name": "c"}}
    settings = {"train_seed": of_training, "settings": {"seed": seed}}
    settings |= {"corpus": "a corpus", "step": 40, "no_state": bool(of_training)}
    facts |= {"settings": settings, "notes": ["a note"]}
    finished = []
    target = types.SimpleNamespace(
        folder=tmp_path, finish=lambda *given: finished.append(given)
    )
    of_runs.finish(target, measured, facts, more)
    ((records, manifest),) = finished
    assert list(records["metric"]) == ["drift", "norms"]
    for name, value in {
        "run": "r",
        "model": "m",
        "revision": "v",
        "seed": found,
    }.items():
        assert set(records[name]) == {value}
    assert set(records["corpus"]) == {"a corpus"} and set(records["step"]) == {40}
    assert manifest["warnings"] == ["a note", "a warning"]
    assert manifest["corpus"] == {"name": "c", "n_units": 2}
    assert len(written) == (0 if of_training else 1)
    of_runs.finish(target, measured, facts)
    assert len(finished[1][0]) == 1
    measured.records = lambda _: as_records(pd.DataFrame())
    of_runs.finish(target, measured, facts, more.iloc[:0])
    assert len(finished[2][0]) == 0


def test_the_end_of_a_long_name_is_kept():
    assert of_runs.make_slug("builtin:minilm") == "minilm"
    assert of_runs.make_slug("Org/A_model v1.5") == "org-a-model-v1.5"
    found = of_runs.make_slug("/".join(["folder"] * 20) + "/the-model")
    assert len(found) == 60 and found.endswith("folder-the-model")


def test_massive_activations_are_told_by_rate_and_place():
    place = {"site": "hidden", "component": None}
    rates = [
        row("massive.rate", 1, 0.0, **place),
        row("massive.rate", 2, 0.25, **place),
        row("massive.rate", 3, 0.5, **place),
    ]
    largest = [
        row("massive.largest", layer, value, **place | {"component": "1"})
        for layer, value in ((1, 3.0), (2, 90.0), (3, 40.0))
    ]
    ratios = [
        row("massive.over_median", layer, value, **place)
        for layer, value in ((1, 2.0), (2, 700.0), (3, 5.0))
    ]

    def told(*rows):
        found = extremes._describe_massive(as_records(pd.DataFrame(rows)), "", {})
        return [(one.rule, one.text) for one in found]

    ((rule, text),) = told(*rates, *largest, *ratios)
    assert rule == "massive" and "in up to 50" in text
    assert "The largest coordinate is 90.0 at layer 2" in text
    assert "is 700.0 times the median" in text
    ((rule, text),) = told(rates[0], *largest, *ratios)
    assert rule == "massive_none"
    ((_, text),) = told(rates[0], *largest)
    assert "On average" not in text
    assert told(*rates, *ratios) == told(*largest, *ratios) == []


def test_a_corpus_is_opened_with_what_the_job_says(monkeypatch):
    calls = []

    def open_both(corpus, _model, processor, **reading):
        calls.append(("both", corpus, processor, reading["limit"]))
        return both

    def open_one(corpus, _model, processor, *, modality, **reading):
        calls.append((modality, corpus, processor, reading["limit"]))
        assert reading.get("to_merge") is (True if given.to_merge else None)
        return [types.SimpleNamespace(inputs={})], {"name": corpus}

    monkeypatch.setattr(of_runs, "open_texts_with_images", open_both)
    monkeypatch.setattr(of_runs, "open_plan", open_one)
    monkeypatch.setattr(of_runs, "reads_own_files", lambda *_: False)
    monkeypatch.setattr(
        of_runs, "reads_images_and_texts", lambda x: hasattr(x, "tokenizer")
    )
    subject = types.SimpleNamespace(
        model=None, modality="text", processor="words", config=object()
    )
    subject.of_images_and_texts = None
    of_both = types.SimpleNamespace(tokenizer="its words")
    given, both = job.Job("m", corpus="c", limit=3), None
    # A string is no processor of both, but the name of one: it is looked at too.
    subject.processor = object()
    of_runs.open_plan_of(given, subject)
    assert calls.pop() == ("text", "c", subject.processor, 3) and not calls
    subject.processor = of_both
    of_runs.open_plan_of(given, subject)
    assert calls == [("both", "c", of_both, 3), ("text", "c", "its words", 3)]
    calls.clear()
    both = ("plan", {})
    assert of_runs.open_plan_of(given, subject) == both
    assert calls == [("both", "c", of_both, 3)]
    given = job.Job("m", corpus="c", limit=3, to_merge=True)
    with pytest.raises(UsageError, match="images with texts"):
        of_runs.open_plan_of(given, subject)
    calls.clear()
    subject.processor, subject.of_images_and_texts = "words", of_both
    both = None
    of_runs.open_plan_of(given, subject)
    assert calls == [("both", "c", of_both, 3), ("text", "c", "words", 3)]
