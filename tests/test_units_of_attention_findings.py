"""Tables and whole sentences on attention and extreme values, from records of several stacks, kinds and layers."""

import json

import numpy as np
import pandas as pd
import pytest

from anisoscope.runs import attention, extremes, layers_of_heads
from anisoscope.runs.finding import ENTRIES, entry
from anisoscope.store import as_records

NAN = float("nan")
ENTROPY = "attention.entropy_normalised"


def head(metric, number, value, spread=0.01, **more):
    """One record of a head; its ends are not as far from the value."""
    found = {"metric": metric, "stack": "encoder", "kind": "self", "layer": 1}
    found |= {"site": "attention", "value": value, "head": number}
    found |= {"low": value - spread, "high": value + 2 * spread}
    if metric == "query_key.cosine":
        found |= {"site": "query.raw", "token_policy": "all"}
    return found | {"n_vectors": 1000, "n_units": 40} | more


def layer(metric, number, value, low=NAN, high=NAN, **more):
    found = {"metric": metric, "stack": "encoder", "layer": number, "site": "hidden"}
    found |= {"value": value, "low": low, "high": high}
    return found | {"n_vectors": 1000, "n_units": 40} | more


def records(*rows):
    return as_records(pd.DataFrame(rows))


def of_attention(*rows):
    return [(x.rule, x.text) for x in attention.attention_findings(records(*rows))]


def of_extremes(*rows, words=None):
    found = extremes.extreme_findings(records(*rows), words)
    return [(each.rule, each.text) for each in found]


# ---- attention -------------------------------------------------------------------------------------------------------

COLUMNS = [
    "first-token mass",
    "largest weight",
    "rows alike",
    "query–key cosine",
    "entropy rise, centred queries",
    "drift share of logits",
]


def test_tables_of_attention_have_their_columns_in_one_order():
    rows = [head(name, 0, 0.25) for name in reversed(attention.VALUES)]
    table = attention.attention_table(records(*rows), heads=True)
    place = ["stack", "kind", "layer"]
    assert [*table.columns] == [
        *(*place, "head", "entropy", "low", "high", *COLUMNS, "kind of head")
    ]
    assert table.columns.name is None
    table = attention.attention_table(records(*rows))
    assert [*table.columns] == [
        *(*place, "heads", "entropy", "low", "high", *COLUMNS[:3]),
        *("|query–key cosine|", *COLUMNS[4:], "sink heads", "uniform heads"),
        *("one-hot heads", "aligned heads", "opposite heads"),
    ]
    empty = attention.attention_table(records(layer("drift", 1, 0.5)))
    assert [*empty.columns] == place and not len(empty)


MIXED = [
    head(ENTROPY, 1, 0.25, layer=3, stack="decoder", kind="self"),
    head(ENTROPY, 0, 0.5, layer=3, stack="decoder", kind="self"),
    head(ENTROPY, 0, 0.75, layer=2, stack="decoder", kind="self"),
    head(ENTROPY, 0, 0.125, layer=2, stack="decoder", kind="cross"),
    head(ENTROPY, 0, 0.375, layer=2, stack="encoder", kind="self"),
    head("attention.first_mass", 0, 0.9, layer=2, stack="decoder", kind="cross"),
    head("attention.first_mass", 1, 0.9, layer=3, stack="decoder", kind="self"),
    head("attention.row_max", 1, 0.95, layer=3, stack="decoder", kind="self"),
]


def test_heads_of_a_table_have_their_own_ends_and_kinds():
    table = attention.attention_table(records(*MIXED), heads=True)
    columns = ["stack", "kind", "layer", "head", "entropy", "low", "high"]
    assert [*zip(*(table[name] for name in columns), strict=True)] == [
        ("decoder", "cross", 2, 0, 0.125, 0.115, 0.145),
        ("decoder", "self", 2, 0, 0.75, 0.74, 0.77),
        ("decoder", "self", 3, 0, 0.5, 0.49, 0.52),
        ("decoder", "self", 3, 1, 0.25, 0.24, 0.27),
        ("encoder", "self", 2, 0, 0.375, 0.365, 0.395),
    ]
    assert table["kind of head"].tolist() == ["sink", "", "", "sink, one-hot", ""]


def test_layers_of_a_table_have_the_ends_of_their_own_heads():
    left_out = np.array([[x["value"] + d for d in (0, 0.01, 0.02)] for x in MIXED])
    table = attention.attention_table(records(*MIXED), replicates=left_out)
    found = table.set_index(["stack", "kind", "layer"])
    assert found["entropy"].to_dict() == {
        ("decoder", "cross", 2): 0.125,
        ("decoder", "self", 2): 0.75,
        ("decoder", "self", 3): 0.375,
        ("encoder", "self", 2): 0.375,
    }
    assert found["heads"].tolist() == [1, 1, 2, 1]
    assert found["sink heads"].tolist() == [1, 0, 1, 0]
    assert found["one-hot heads"].tolist() == [0, 0, 1, 0]
    assert (found["low"] < found["entropy"]).all()
    assert (found["entropy"] < found["high"]).all()
    assert found["high"].is_unique is False, "two layers have one mean"
    assert attention.count_heads(records(*MIXED))["decoder", "self", 3] == {
        "heads": 2,
        "sink": 1,
        "uniform": 0,
        "one-hot": 1,
        "aligned": 0,
        "opposite": 0,
    }


def test_replicates_of_more_records_than_there_are_give_no_intervals():
    """As of a table that was filtered: its row numbers are not those of the replicates."""
    left_out = np.array([[x["value"] + d for d in (0, 0.01, 0.02)] for x in MIXED])
    table = attention.attention_table(records(*MIXED[1:]), replicates=left_out)
    assert table["low"].isna().all() and table["high"].isna().all()
    rates = [head("sinks.rate", number, 0.5, component=".3") for number in (0, 1)]
    left_out = np.array([[0.5, 0.51, 0.52]] * 3)
    for kept, are_known in ((left_out, False), (left_out[:2], True)):
        table = extremes.sinks_table(records(*rates), replicates=kept)
        assert table["low"].notna().tolist() == [are_known]


RULES = {
    "sink": (
        "attention.first_mass",
        0.75,
        "gives more than half of its weight to the first token (sinks)",
        "give more than half of their weight to the first token (sinks)",
    ),
    "uniform": (
        ENTROPY,
        0.975,
        "attends nearly uniformly (normalised entropy above .95)",
        "attend nearly uniformly (normalised entropy above .95)",
    ),
    "one_hot": (
        "attention.row_max",
        0.95,
        "attends to a single token (largest weight above .9)",
        "attend to a single token (largest weight above .9)",
    ),
    "aligned": (
        "query_key.cosine",
        0.9,
        "has aligned mean queries and keys (cosine above .8)",
        "have aligned mean queries and keys (cosine above .8)",
    ),
    "opposite": (
        "query_key.cosine",
        -0.9,
        "has opposite mean queries and keys (cosine below −.8)",
        "have opposite mean queries and keys (cosine below −.8)",
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_the_sentence_of_each_rule(rule):
    metric, value, one, several = RULES[rule]
    rows = [head(metric, i, x, layer=4) for i, x in enumerate((value, 0.1, value))]
    rows.append(head(metric, 0, 0.1, layer=2))
    name = f"attention_{rule}"
    assert of_attention(*rows[:2]) == [(name, f"1 of 2 heads {one}, in layer 4.")]
    assert of_attention(*rows) == [(name, f"2 of 4 heads {several}, in layer 4.")]
    (found,) = attention.attention_findings(records(*rows[:2]))
    (number,) = found.numbers
    assert [*number] == [*ENTRIES]
    assert (number["metric"], number["layer"], number["value"]) == (metric, 4, value)


def test_of_many_heads_the_first_ten_support_a_sentence():
    rows = [head("attention.row_max", i, 0.95, layer=i) for i in range(12)]
    (found,) = attention.attention_findings(records(*rows))
    assert [number["layer"] for number in found.numbers] == [*range(10)]
    assert found.text.endswith("in layers 0–11.")


def test_a_rule_is_not_met_at_its_line():
    for metric, line, side in (
        ("attention.first_mass", 0.5, 1),
        ("query_key.cosine", -0.8, -1),
    ):
        at = head(metric, 0, line + side * 0.1, low=line, high=line)
        assert [rule for rule, _ in of_attention(at)] == ["attention_ordinary"]
        end = np.nextafter(line, 2 * side)
        beyond = at | {"low": end, "high": end}
        assert "attention_ordinary" not in dict(of_attention(beyond))
        for missing in ("low", "high"):
            assert "attention_ordinary" in dict(of_attention(beyond | {missing: NAN}))


def test_ordinary_heads_have_the_mean_of_their_entropy():
    rows = [head(ENTROPY, i, x) for i, x in enumerate((0.2, 0.3, 0.7))]
    words = "No head is a sink, uniform, one-hot, aligned or opposite"
    assert of_attention(*rows, head("attention.row_max", 0, 0.5)) == [
        ("attention_ordinary", f"{words} (mean normalised entropy .400)."),
    ]
    assert of_attention(head("attention.row_max", 0, 0.5)) == [
        ("attention_ordinary", f"{words}."),
    ]
    assert of_attention(layer("drift", 1, 0.5)) == []
    both = [*rows, head(ENTROPY, 0, 0.5, stack="decoder", kind="cross")]
    assert of_attention(*both) == [
        (
            "attention_ordinary",
            f"Decoder, cross-attention: {words} (mean normalised entropy .500).",
        ),
        (
            "attention_ordinary",
            f"Encoder, self-attention: {words} (mean normalised entropy .400).",
        ),
    ]


def test_a_head_is_named_under_its_own_kind_of_attention():
    places = [("decoder", "self"), ("decoder", "cross"), ("encoder", "self")]
    for place in places:
        rows = [
            head("attention.row_max", 0, 0.95 if each == place else 0.5, layer=2)
            | {"stack": each[0], "kind": each[1]}
            for each in places
        ]
        named = [text for rule, text in of_attention(*rows) if rule.endswith("one_hot")]
        assert named == [
            f"{place[0].capitalize()}, {place[1]}-attention: 1 of 1 head attends to a single token (largest weight"
            " above .9), in layer 2."
        ]


def rise(number, value, **more):
    return head("centred_attention.query_rise", number, value, **more)


def test_the_sentence_on_centring():
    def sentences(*rows):
        return [text for rule, text in of_attention(*rows) if "centring" in rule]

    assert sentences(rise(5, 0.2, layer=2), rise(3, -0.5, layer=7), rise(0, 0.0)) == [
        "Centring the queries would change attention in 2 heads (entropy by more than .1 nats), in layers 2 and 7;"
        " most in head 3 of layer 7: −.50 nats."
    ]
    assert sentences(rise(5, 0.2, layer=2)) == [
        "Centring the queries would change attention in 1 head (entropy by more than .1 nats), in layer 2;"
        " most in head 5 of layer 2: .20 nats."
    ]
    nothing = (
        "Centring the queries would change the entropy of no head by .1 nats or more."
    )
    assert sentences(rise(0, 0.05), rise(1, -0.05)) == [nothing]
    assert sentences(rise(0, 0.05), rise(1, 0.3, low=NAN)) == [nothing]
    assert sentences(rise(0, 0.3, low=NAN)) == []
    # An interval that reaches one of both lines decides nothing.
    assert sentences(rise(0, 0.0, low=-0.1, high=0.0)) == []
    assert sentences(rise(0, 0.0, low=0.0, high=0.1)) == []
    two = [rise(0, 0.5, stack="decoder"), rise(1, 0.25)]
    assert [text.partition(" Centring")[0] for text in sentences(*two)] == [
        "Decoder, self-attention:",
        "Encoder, self-attention:",
    ]
    (found,) = [
        each
        for each in attention.attention_findings(records(rise(1, 0.2), rise(2, -0.5)))
        if each.rule == "attention_centring"
    ]
    assert [number["value"] for number in found.numbers] == [-0.5]


def test_heads_of_attention_come_by_stack_kind_layer_and_head():
    found = attention.attention_heads(records(*MIXED))
    places = [*zip(found["stack"], found["layer"], found["head"], strict=True)]
    assert places == [
        *(("decoder", 2, 0), ("decoder", 2, 0), ("decoder", 2, 0)),
        *(("decoder", 3, 0), ("decoder", 3, 1), ("decoder", 3, 1)),
        *(("decoder", 3, 1), ("encoder", 2, 0)),
    ]
    assert found.index.tolist() == [3, 5, 2, 1, 0, 6, 7, 4], "their numbers"
    cosines = [
        head("query_key.cosine", 0, 0.1, token_policy="content"),
        head("query_key.cosine", 0, 0.2, token_policy="all"),
        head("query_key.cosine", 0, 0.3, token_policy="content", site="query"),
        head("attention.row_max", 0, 0.4, token_policy="all"),
        head("attention.row_max", 0, 0.5, component="x"),
    ]
    kept = attention.attention_heads(records(*cosines))
    assert kept["value"].tolist() == [0.1, 0.4]


def test_layers_are_named_with_ranges_of_three_and_more():
    named = attention.describe_layer_numbers
    for layers, words in {
        (3,): "in layer 3",
        (3, 3): "in layer 3",
        (4, 3): "in layers 3 and 4",
        (5, 3, 4): "in layers 3–5",
        (9, 1, 0, 4, 5, 6): "in layers 0, 1, 4–6 and 9",
    }.items():
        assert named([*layers]) == words


# ---- extremes --------------------------------------------------------------------------------------------------------

SIZES = {
    ("massive.largest", "1"): 900.0,
    ("massive.largest", "2"): 1.0,
    ("massive.largest_dimension", "1"): 7,
    ("massive.largest_dimension", "2"): 2,
    ("massive.largest_position", "1"): 0,
    ("massive.largest_token", "1"): 3,
    ("massive.over_median", None): 1500.0,
    ("massive.rate", None): 0.25,
    ("kurtosis.largest", None): 12.5,
    ("kurtosis.dimension", None): 5,
    ("matrix_entropy", None): 0.625,
}


def sizes(number, times=1, **more):
    return [
        layer(metric, number, value * times, component=component, **more)
        for (metric, component), value in SIZES.items()
    ]


def test_a_table_of_activations_shows_each_value_in_its_column():
    rows = [*sizes(3, site="final"), *sizes(3, 2), *sizes(1, 3, stack="decoder")]
    rows.append(head("massive.rate", 0, 0.9, layer=3, site="hidden"))
    table = extremes.activations_table(records(*rows))
    assert [*table.columns] == [
        *("stack", "layer", "site", "largest", "dimension", "position", "token"),
        *("medians", "massive", "kurtosis", "kurtosis dimension", "matrix entropy"),
    ]
    assert [row.tolist() for _, row in table.iterrows()] == [
        ["decoder", 1, "hidden", 2700.0, 21, 0, 9, 4500.0, 0.75, 37.5, 15, 1.875],
        ["encoder", 3, "hidden", 1800.0, 14, 0, 6, 3000.0, 0.5, 25.0, 10, 1.25],
        ["encoder", 3, "final", 900.0, 7, 0, 3, 1500.0, 0.25, 12.5, 5, 0.625],
    ]
    for name in ("dimension", "position", "token", "kurtosis dimension"):
        assert str(table[name].dtype) == "Int64", name
    alone = extremes.activations_table(records(layer("matrix_entropy", 0, 0.5)))
    assert [*alone.columns] == ["stack", "layer", "site", "matrix entropy"]
    for rows in ([layer("drift", 0, 0.5)], [head("sinks.rate", 0, 0.5)]):
        none = extremes.activations_table(records(*rows))
        assert not len(none) and [*none.columns] == ["stack", "layer", "site"]


def test_extremes_are_known_by_how_their_names_begin():
    names = ["massive.x", "kurtosis", "kurtosis.x", "matrix_entropy", "sinks.x"]
    others = ["massively", "drift", "x.logits.", "sinks"]
    rows = [layer(name, 0, 0.5) for name in [*names, "logits.x", *others]]
    found = extremes.extreme_rows(records(*rows))["metric"].tolist()
    assert found == [*names, "logits.x"]
    for name in names:
        assert extremes.has_extremes(records(layer(name, 0, 0.5))), name


SINKS = {
    ("sinks.rate", ".3"): "sink rate",
    ("sinks.first_rate", ".3"): "at first",
    ("sinks.strongest", None): "strongest key",
    ("sinks.mass", "first"): "mass on first",
    ("sinks.mass", "last"): "mass on last",
    ("sinks.mass", "special"): "mass on special",
    ("sinks.mass", "punctuation"): "mass on punctuation",
    ("sinks.value_norm", None): "value norm",
    ("logits.smallest", None): "smallest logit",
    ("logits.largest", None): "largest logit",
    ("sinks.query_norm", None): "longest query",
    ("sinks.key_norm", None): "longest key",
}


def sink_heads(values=(0.25, 0.75), **more):
    """Every value of two heads: those of the n-th column are n times as large."""
    return [
        head(metric, i, value * n, component=component, **more)
        for n, (metric, component) in enumerate(SINKS, 1)
        for i, value in enumerate(values)
    ]


def test_a_table_of_sinks_shows_each_value_in_its_column():
    others = [
        head("sinks.rate", 0, 99.0, component=".2"),
        head("sinks.first_rate", 0, 99.0, component=".2"),
        head("sinks.mass", 0, 99.0, component="other"),
    ]
    rows = [*others, *reversed(sink_heads())]
    names = [*SINKS.values()]
    ends = [names[0], "low", "high", *names[1:]]
    table = extremes.sinks_table(records(*rows), heads=True)
    assert [*table.columns] == ["stack", "kind", "layer", "head", *ends]
    for i, value in enumerate((0.25, 0.75)):
        row = table.iloc[i]
        assert row[names].tolist() == [value * n for n in range(1, 13)]
        assert (row["head"], row["low"], row["high"]) == (
            i,
            value - 0.01,
            value + 0.02,
        )
    table = extremes.sinks_table(records(*rows))
    assert [*table.columns] == ["stack", "kind", "layer", *ends]
    row = table.iloc[0]
    means = [0.5 * n for n in range(1, 9)]
    assert row[names].tolist() == [*means, 0.25 * 9, 7.5, 0.75 * 11, 9.0]
    none = extremes.sinks_table(records(layer("drift", 0, 0.5)))
    assert [*none.columns] == ["stack", "kind", "layer"]
    none = extremes.sinks_table(records(layer("drift", 0, 0.5)), heads=True)
    assert [*none.columns] == ["stack", "kind", "layer", "head"]


def test_a_mean_over_sinks_has_the_replicates_of_its_own_heads():
    rates = [head("sinks.rate", i, x, component=".3") for i, x in ((0, 0.2), (1, 0.4))]
    rows = [layer("drift", 0, 0.5), head("logits.largest", 0, 9.0), *rates]
    rows.append(head("sinks.rate", 2, NAN, component=".3"))
    left_out = np.array(
        [[9.0, -9.0, 7.0], [5.0, 1.0, 3.0], [0.1, 0.2, 0.3], [0.3, 0.4, 0.5], [NAN] * 3]
    )
    (found,) = extremes.sinks_table(records(*rows), replicates=left_out).to_dict(
        "records"
    )
    _, replicates = layers_of_heads.average_heads(records(*rates), left_out[2:4])
    assert replicates is not None
    assert replicates.round(12).tolist() == [[0.2, 0.3, 0.4]]
    (alone,) = extremes.sinks_table(records(*rates), replicates=left_out[2:4]).to_dict(
        "records"
    )
    for name in ("sink rate", "low", "high"):
        assert found[name] == pytest.approx(alone[name], rel=1e-12), name
    assert found["sink rate"] == pytest.approx(0.3)
    assert found["low"] < 0.3 < found["high"]


LIMITS = "a coordinate above 100 and above 1,000 times the median size"


def test_sentences_on_massive_activations():
    rows = [*sizes(4, 0.5), *sizes(2), *sizes(1, stack="decoder")]
    rows = [each for each in rows if "kurtosis" not in each["metric"]]
    there = "On average, the largest coordinate of a sequence there is 1,500 times the median size."
    found = of_extremes(*rows, words={"3": "[CLS]", "0": "no"})
    assert found == [
        (
            "massive",
            f"Encoder: Massive activations ({LIMITS}) in layers 2 and 4, in up to 25 % of sequences."
            f" The largest coordinate is 900.0 at layer 2, dimension 7, position 0 (‘[CLS]’). {there}",
        ),
        (
            "massive",
            f"Decoder: Massive activations ({LIMITS}) in layer 1, in up to 25 % of sequences."
            f" The largest coordinate is 900.0 at layer 1, dimension 7, position 0 (‘[CLS]’). {there}",
        ),
    ]
    # A rate of nothing, no known token, no finite ratio.
    names = ("massive.rate", "massive.largest_token", "massive.over_median")
    values = dict(zip(names, (0.0, -1, np.inf), strict=True))
    small = [
        each | {"value": values.get(each["metric"], each["value"])}
        for each in rows
        if each["stack"] == "encoder"
    ]
    assert of_extremes(*small, words={"0": "no"}) == [
        (
            "massive_none",
            f"No massive activation ({LIMITS}). The largest coordinate is 900.0 at layer 2,"
            " dimension 7, position 0.",
        ),
    ]
    (one,) = extremes.extreme_findings(records(*rows[:9]))
    assert [number["metric"] for number in one.numbers] == [
        *("massive.largest", "massive.over_median", "massive.rate")
    ]
    for missing in ("massive.rate", "massive.largest"):
        assert of_extremes(*(x for x in rows if x["metric"] != missing)) == []


def test_sentences_on_heavy_tails():
    rows = [
        layer("kurtosis.largest", 2, 12.0, 11.0, 13.0),
        layer("kurtosis.largest", 3, 30.0, 10.0, 50.0),
        layer("kurtosis.largest", 5, 20.0, 19.0, 22.0),
        *(layer("kurtosis.dimension", i, 100 + i) for i in (2, 3, 5)),
    ]
    text = "Heavy tails in layers 2 and 5: kurtosis 20.0 [19.0, 22.0] of {} at layer 5 (0 for a normal distribution)."
    assert of_extremes(*rows) == [("heavy_tails", text.format("dimension 105"))]
    assert of_extremes(*rows[:3]) == [("heavy_tails", text.format("one dimension"))]
    (found,) = extremes.extreme_findings(records(*rows))
    assert [number["value"] for number in found.numbers] == [20.0]


def sinks(*rates, at=(), firsts=(), norms=(), **more):
    rows = [head("sinks.rate", i, x, component=".3", **more) for i, x in rates]
    rows += [head("sinks.at", i, 0.9, component=kind, **more) for i, kind in at]
    rows += [head("sinks.first_rate", i, x, component=".3", **more) for i, x in firsts]
    return rows + [head("sinks.value_norm", i, x, **more) for i, x in norms]


def test_sentences_on_sinks():
    rows = sinks(
        *((0, 0.9), (1, 0.8), (2, 0.7), (3, 0.1)),
        at=((0, "last"), (1, "first"), (2, "first"), (3, "special")),
        firsts=((0, 0.25), (1, 0.75), (3, 0.5)),
        norms=((0, 0.25), (1, 0.75), (2, 0.125), (3, 0.0)),
    )
    assert of_extremes(*rows) == [
        (
            "sinks",
            "3 of 4 heads have a sink (a key with more than .3 of attention in most sequences), in layer 1:"
            " 2 at the first token and 1 at the last token."
            " Over all heads, the sink rate of the first token is .500.",
        ),
        (
            "sinks_without_value",
            "In 2 of these heads the sink adds next to nothing to the output: its value vector is .188 times as"
            " long as the mean.",
        ),
    ]
    assert of_extremes(*sinks((0, 0.1), (1, 0.2), firsts=((0, 0.25),))) == [
        (
            "sinks_none",
            "No head has a sink: no key gets more than .3 of attention in most sequences."
            " Over all heads, the sink rate of the first token is .250.",
        ),
    ]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("first", "the first token"),
        ("last", "the last token"),
        ("special", "other special tokens"),
        ("punctuation", "punctuation or line breaks"),
        ("other", "other tokens"),
        (None, "keys of no one kind"),
    ],
)
def test_sinks_of_one_kind(kind, words):
    at = [] if kind is None else [(i, kind) for i in range(2)]
    rows = sinks((0, 0.9), (1, 0.9), at=at, norms=((0, 0.25), (1, 0.25)))
    (_, text), (_, of_values) = of_extremes(*rows)
    assert text.endswith(f", in layer 1: all at {words}.")
    assert of_values.startswith("In all of these heads the sink adds next to nothing")
    (_, text), (_, of_values) = of_extremes(*sinks((0, 0.9), at=at[:1], norms=((0, 0.25),)))  # fmt: skip
    assert text.endswith(f", in layer 1: 1 at {words}.")
    assert of_values.startswith("In 1 of these heads the sink adds next to nothing")


def test_sinks_and_short_values_lie_beyond_one_half_with_their_whole_interval():
    bound = {"low": 0.5, "high": 0.5}
    sink = head("sinks.rate", 0, 0.9, component=".3")
    assert [rule for rule, _ in of_extremes(sink | bound)] == ["sinks_none"]
    for name, wanted in (("sinks.at", "keys of no one kind"), ("sinks.value_norm", "")):
        other = head(name, 0, 0.9, component="first") | bound
        if not wanted:
            other["component"] = None
        (found,) = of_extremes(sink, other)
        assert found[0] == "sinks" and wanted in found[1]
    # The kind of another layer's head is not that of this one.
    elsewhere = head("sinks.at", 0, 0.9, component="first", layer=2)
    ((_, text),) = of_extremes(sink, elsewhere)
    assert "1 at keys of no one kind" in text


def test_the_sentence_on_logits_names_both_heads():
    def logit(end, value, number, place):
        return head(f"logits.{end}", number, value, layer=place)

    rows = [
        logit("largest", 9.0, 3, 2),
        logit("largest", 8.0, 1, 5),
        logit("smallest", -2.0, 3, 2),
        logit("smallest", -7.0, 6, 4),
        logit("smallest", NAN, 7, 4),
    ]
    text = "Logits reach from −7.0 (layer 4, head 6) to 9.0 (layer 2, head 3)."
    assert of_extremes(*rows) == [("logits", text)]
    (found,) = extremes.extreme_findings(records(*rows))
    assert [number["value"] for number in found.numbers] == [9.0, -7.0]
    assert of_extremes(*rows[:2]) == [] == of_extremes(*rows[2:])


def test_a_finding_of_massive_activations_keeps_ten_layers():
    rows = [
        each
        for number in range(12)
        for each in (
            layer("massive.largest", number, 200.0, component="1"),
            layer("massive.rate", number, 0.5),
        )
    ]
    (found,) = extremes.extreme_findings(records(*rows))
    assert [number["layer"] for number in found.numbers] == [0, *range(10)]
    assert "in layers 0–11, in up to 50 % of sequences" in found.text


def test_a_finding_keeps_plain_values_of_its_records():
    more = {"stack": "s", "site": "x", "component": "c", "layer": 3}
    rows = records(head("m", 0, 0.5, **more), layer("n", 3, 0.25))
    first, second = (entry(each) for each in rows.itertuples())
    assert json.loads(json.dumps(first)) == {
        "metric": "m",
        "stack": "s",
        "layer": 3,
        "site": "x",
        "component": "c",
        "value": 0.5,
        "low": 0.49,
        "high": 0.52,
        "n_vectors": 1000,
        "n_units": 40,
    }
    assert second["component"] is second["low"] is second["high"] is None
    assert type(second["layer"]) is int and type(second["value"]) is float


def test_of_many_heads_with_sinks_the_first_ten_support_their_sentences():
    rows = [
        head(name, i, value, layer=i, component=component)
        for name, value, component in (
            ("sinks.rate", 0.9, ".3"),
            ("sinks.value_norm", 0.125, None),
        )
        for i in range(12)
    ]
    found = [*extremes.extreme_findings(records(*rows))]
    assert [each.rule for each in found] == ["sinks", "sinks_without_value"]
    for each, value in zip(found, (0.9, 0.125), strict=True):
        assert [number["layer"] for number in each.numbers] == [*range(10)]
        assert {number["value"] for number in each.numbers} == {value}


# ---- means over heads ------------------------------------------------------------------------------------------------


def test_means_over_heads_are_of_one_place_each():
    base = {"step": 1, "seed": 2, "token_policy": "all", "component": "x"}
    rows = [head("attention.row_max", 0, 0.25) | base]
    others = {"step": 2, "seed": 3, "token_policy": "content", "component": "y"}
    others |= {"stack": "decoder", "kind": "cross", "layer": 4, "site": "other"}
    others |= {"metric": "attention.row_min"}
    for name, value in others.items():
        rows.append(rows[0] | {name: value, "value": 0.5})
    rows += [each | {"head": 1, "value": each["value"] + 0.25} for each in rows]
    left_out = np.arange(len(rows) * 3, dtype=float).reshape(-1, 3) / 100
    found, means = layers_of_heads.average_heads(records(*rows), left_out)
    assert means is not None
    count = len(others) + 1
    assert found["value"].tolist() == [0.375] + [0.625] * len(others)
    assert found["head"].isna().all() and len(found) == count
    for name, value in others.items():
        assert (found[name] == value).sum() == 1, name
    assert means == pytest.approx((left_out[:count] + left_out[count:]) / 2)
    assert found.dtypes.to_dict() == records(*rows).dtypes.to_dict()


def test_means_over_heads_leave_out_what_is_undefined():
    rows = [head("attention.row_max", i, x) for i, x in enumerate((0.2, NAN, 0.4))]
    rows.append(head("attention.row_max", 0, NAN, layer=2))
    rows.append(head("sinks.strongest", 0, 0.5))
    left_out = np.array(
        [[0.1, 0.2, 0.3], [9.0, 9, 9], [0.3, NAN, 0.5], [9.0, 9, 9], [0.4, 0.5, 0.6]]
    )
    found, means = layers_of_heads.average_heads(records(*rows), left_out)
    assert means is not None
    assert found["value"].tolist() == pytest.approx([0.3, 0.5])
    assert means[1].tolist() == [0.4, 0.5, 0.6]
    assert means[0] == pytest.approx([0.2, NAN, 0.4], nan_ok=True)
    nothing, means = layers_of_heads.average_heads(records(rows[1]), left_out[1:2])
    assert means is not None and means.shape == (0, 3) and not len(nothing)
    found, none = layers_of_heads.average_heads(records(*rows))
    assert none is None and found[["low", "high"]].isna().all(axis=None)


def test_ends_of_means_over_heads_stay_where_their_values_can_be():
    left_out = np.array([[0.0, 0.5, 0.99, 0.97]])
    shares = [
        *("entropy_normalised", "first_mass", "row_max", "row_min", "row_similarity"),
    ]
    sinks_of = ["rate", "first_rate", "strongest", "at", "mass"]
    names = ["query_key.cosine", *(f"attention.{name}" for name in shares)]
    for name in (*names, *(f"sinks.{name}" for name in sinks_of)):
        (row,) = layers_of_heads.average_heads(records(head(name, 0, 0.98)), left_out)[
            0
        ].to_dict("records")
        assert 0.98 < row["high"] <= 1 and 0 <= row["low"] < 0.98, name
    free = records(head("centred_attention.query_rise", 0, 0.98))
    (row,) = layers_of_heads.average_heads(free, left_out)[0].to_dict("records")
    assert row["high"] > 1 and row["low"] < 0


def test_a_group_without_a_mean_over_heads_is_no_group_of_its_interval():
    whole, gap = [[0.1, 0.2, 0.4]], [[0.1, NAN, 0.2, 0.4]]
    ends = [
        layers_of_heads.average_heads(
            records(head("attention.row_max", 0, 0.25)), np.array(left_out)
        )[0][["low", "high"]]
        .iloc[0]
        .tolist()
        for left_out in (whole, gap)
    ]
    assert ends[0] == ends[1] and ends[0][0] < 0.25 < ends[0][1]


def test_of_cosines_the_sizes_are_averaged_also_with_a_group_left_out():
    rows = [head("query_key.cosine", i, x) for i, x in enumerate((0.5, -0.75))]
    left_out = np.array([[0.5, 0.25, -0.25], [-0.75, -0.5, -0.25]])
    found, means = layers_of_heads.average_heads(records(*rows), left_out)
    assert means is not None
    assert found["value"].tolist() == [0.625]
    assert means.tolist() == [[0.625, 0.375, 0.25]]
