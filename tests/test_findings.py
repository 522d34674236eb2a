"""Findings: each rule says what the intervals support, and nothing else."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import anisoscope
from anisoscope.cli.printed_tables import (
    OPT_IN_METRICS,
    tabulate_layers,
    tabulate_opt_in_metrics,
)
from anisoscope.errors import UsageError
from anisoscope.runs.comparison import differs
from anisoscope.runs.findings import (
    RULES,
    RULES_OF_CLASSES,
    RULES_OF_RUNS,
    findings,
    has_enough_pairs,
    judge_isotropy,
)
from anisoscope.runs.short_tables import intervals_apart, short_table, side_by_side
from anisoscope.store import as_records
from anisoscope.wording import format_measured, format_short

NAN = float("nan")
Q95 = 0.1


def row(metric, layer, value, low=NAN, high=NAN, **more):
    found = {
        "metric": metric,
        "stack": "encoder",
        "layer": layer,
        "site": "hidden",
        "token_policy": "all",
    }
    return (
        found
        | {"value": value, "low": low, "high": high, "n_vectors": 1000, "n_units": 40}
        | more
    )


def curve(*intervals, **more):
    """A with q95 of .1 at every layer, from (low, high) of each."""
    rows = []
    for layer, (low, high) in enumerate(intervals):
        rows.append(row("mean_cosine", layer, (low + high) / 2, low, high, **more))
        rows.append(row("mean_cosine.isotropic_q95", layer, Q95, Q95, Q95, **more))
    return rows


def told(rows):
    """{rule: text} of the findings."""
    return {
        finding.rule: finding.text
        for finding in findings(as_records(pd.DataFrame(rows)))
    }


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [
        (0.05, 0.1, "isotropic"),
        (0.1001, 0.2, "anisotropic"),
        (0.1, 0.2, "undecided"),
        (NAN, NAN, ""),
    ],
)
def test_a_verdict_needs_the_whole_interval(low, high, word):
    assert judge_isotropy(low, high, Q95) == word


@pytest.mark.parametrize(
    ("intervals", "text"),
    [
        (
            [(0, 0.05), (0.12, 0.14), (0.2, 0.22)],
            "Anisotropic from layer 1 on; strongest at layer 2 (A .210 [.200, .220]).",
        ),
        (
            [(0.15, 0.16), (0.2, 0.22), (0.19, 0.205)],
            "Anisotropic in every layer; highest at layer 1 (A .210 [.200, .220]); intervals overlap with layer 2.",
        ),
        (
            [(0.2, 0.3), (0, 0.02), (0.05, 0.15), (0.01, 0.02)],
            "Anisotropic at layer 0; strongest at layer 0 (A .250 [.200, .300]); undecided at layer 2.",
        ),
        (
            [(0, 0.01), (0.02, 0.04)],
            "Isotropic in every layer (highest A .030 [.020, .040] at layer 1).",
        ),
        ([(0.05, 0.2), (0.01, 0.02)], "Isotropic at layer 1; undecided at layer 0."),
        ([(0.05, 0.2)], "Undecided at layer 0."),
        (
            [(0.8, 0.9), (0.1, 0.2)],
            "Anisotropic at layer 0; strongest at layer 0 (A .850 [.800, .900], extreme: at least .8); undecided at "
            "layer 1.",
        ),
        (
            [(0.79, 0.9), (0, 0.05)],
            "Anisotropic at layer 0; strongest at layer 0 (A .845 [.790, .900]).",
        ),
    ],
)
def test_where_anisotropic(intervals, text):
    assert told(curve(*intervals))["where_anisotropic"] == text


def test_stacks_are_told_apart_and_the_final_norm_has_its_name():
    rows = curve((0, 0.05), (0.12, 0.14)) + curve(
        (0.5, 0.6), (0.7, 0.75), stack="decoder"
    )
    final = [one | {"site": "final"} for one in curve((0, 0.05), (0.2, 0.3))[2:]]
    texts = [
        finding.text for finding in findings(as_records(pd.DataFrame(rows + final)))
    ]
    assert (
        texts[0]
        == "Encoder: Anisotropic from layer 1 on; strongest at the final norm (A .250 [.200, .300])."
    )
    assert texts[1].startswith(
        "Decoder: Anisotropic in every layer; strongest at layer 1"
    )


def test_without_intervals_nothing_is_judged():
    """One unit gives no interval: the table must not call such a layer anisotropic."""
    rows = [row("mean_cosine", 0, 0.9), row("mean_cosine.isotropic_q95", 0, Q95)]
    assert told(rows) == {
        "unjudged": "No interval, hence no verdict: the highest A is .900 at layer 0."
    }


@pytest.mark.parametrize(
    ("shares", "text"),
    [
        (
            {"1": (0.1, 0.2), "3": (0.52, 0.6), "10": (0.7, 0.8)},
            "More than half of the anisotropy lies in 3 dimensions",
        ),
        (
            {"1": (0.1, 0.2), "3": (0.45, 0.55), "10": (0.7, 0.8)},
            "About half of the anisotropy lies in 3 dimensions",
        ),
        ({"1": (0.1, 0.2), "3": (0.1, 0.9), "10": (0.1, 0.9)}, None),
        (
            {"1": (0.1, 0.2), "3": (0.2, 0.3), "10": (0.3, 0.4)},
            "Not carried by a few dimensions",
        ),
    ],
)
def test_carried_by_few(shares, text):
    rows = [
        row("mean_cosine.top_share", 0, sum(ends) / 2, *ends, component=k)
        for k, ends in shares.items()
    ]
    said = told(curve((0.2, 0.3)) + rows).get("carried_by_few")
    assert (said is None) if text is None else said.startswith(text)
    assert "carried_by_few" not in told(curve((0, 0.05)) + rows), (
        "an isotropic layer is carried by nothing"
    )


@pytest.mark.parametrize(
    ("ends", "text"),
    [
        (
            (0.02, 0.04),
            "Centring removes the anisotropy (A after centring .030 [.020, .040], q95 of random directions .100).",
        ),
        (
            (0.11, 0.13),
            "Centring does not remove the anisotropy (A after centring .120 [.110, .130], "
            "q95 of random directions .100).",
        ),
        (
            (0.05, 0.15),
            "Whether centring removes the anisotropy is undecided (A after centring .100 [.050, .150], "
            "q95 of random directions .100).",
        ),
        ((NAN, NAN), None),
    ],
)
def test_removed_by_centring(ends, text):
    rows = [
        *curve((0.2, 0.3)),
        row(
            "calibrated.centred",
            0,
            sum(ends) / 2 if ends[0] == ends[0] else 0.03,
            *ends,
        ),
    ]
    assert told(rows).get("removed_by_centring") == text


def test_told_by_direction_and_above_majority():
    site = {"site": None}
    rows = [
        row("class_direction.auc", i, (a + b) / 2, a, b, **site)
        for i, (a, b) in enumerate([(0.45, 0.6), (0.7, 0.8)])
    ]
    assert (
        told(rows)["class_directions"]
        == "Class directions separate the classes at layer 1 only (AUC .750 [.700, .800])."
    )
    assert "in no layer: AUC is at chance" in told(rows[:1])["class_directions"]
    final = row("class_direction.auc", 1, 0.85, 0.8, 0.9, site="final")
    assert told([*rows, final])["class_directions"] == told(rows)["class_directions"], (
        "a final norm is no layer"
    )
    majority = row("majority", None, 0.5, **site)
    for ends, word in (
        ((0.6, 0.8), "above"),
        ((0.4, 0.6), "not clearly above or below"),
        ((0.1, 0.2), "below"),
    ):
        accuracy = row("accuracy", None, sum(ends) / 2, *ends, **site)
        assert (
            f", {word} the majority rate (.500)"
            in told([majority, accuracy])["above_majority"]
        )


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        (
            (-0.3, -0.1),
            "uses its attention: with uniform weights instead, accuracy changes by −.200 [−.300, −.100]; it also "
            "falls if only layer 2 has uniform weights",
        ),
        (
            (-0.015, 0.01),
            "does not need its attention (within two points): with uniform",
        ),
        ((0.01, 0.1), "Attention harms this classifier: with uniform"),
        (
            (-0.1, 0.05),
            "Whether this classifier uses its attention is undecided: with uniform",
        ),
    ],
)
def test_what_attention_is_worth(ends, said):
    place = {"site": None, "component": "uniform", "n_units": 60}
    layers = ((1, (-0.2, 0.1)), (2, (-0.2, -0.05)))
    rows = [
        row("ablation.accuracy", layer, sum(own) / 2, *own, **place)
        for layer, own in layers
    ]
    rows.append(row("ablation.accuracy", None, sum(ends) / 2, *ends, **place))
    assert (
        said in told(rows)["attention_used"]
        and "(n = 60)" in told(rows)["attention_used"]
    )
    assert "attention_used" not in told(rows[:2])
    assert ("it also falls" in told(rows)["attention_used"]) == (ends[1] < 0), (
        "what falls alone falls in all too"
    )


def test_of_a_model_of_one_layer_the_same_loss_is_told_once():
    place = {"site": None, "component": "uniform"}
    rows = [row("ablation.accuracy", at, -0.2, -0.3, -0.1, **place) for at in (1, None)]
    text = told(rows)["attention_used"]
    assert "uses its attention" in text and "it also falls" not in text


def test_words_that_decide_more_than_random_ones():
    def of(name, layer, low, high):
        place = {"site": None, "component": name, "n_units": 40}
        return row(
            "attribution.comprehensiveness", layer, (low + high) / 2, low, high, **place
        )

    chance = of("random", None, 0.0, 0.1)
    maps = [of("attention", 1, 0.05, 0.2), of("value, contrast", 2, 0.3, 0.5)]
    text = told([chance, *maps])["words_that_decide"]
    assert text.startswith(
        "Of 2 attribution maps, ‘value, contrast’ of layer 2 is best at finding the words that decide."
    )
    assert (
        "class falls by .400 [.300, .500]; without random words, by .050 [.000, .100] (n = 40)."
        in text
    )
    assert told([chance, maps[0]])["words_that_decide"].startswith(
        "Of 1 attribution map, none is better than chance"
    )
    rare = of("rare", None, 0.6, 0.8)
    assert told([chance, *maps, rare])["words_that_decide"] == text, (
        "how rare a word is, no model says"
    )


def compared(*runs, **how):
    """Texts of what the intervals of runs, a, b …, tell apart."""
    named_ = {
        name: as_records(pd.DataFrame(rows))
        for name, rows in zip("abc", runs, strict=False)
    }
    return [finding.text for finding in side_by_side(named_, **how)[2]]


@pytest.mark.parametrize(
    ("b", "text"),
    [
        ([(0.1, 0.2), (0.5, 0.6)], "intervals overlap in every layer."),
        ([(0.2, 0.3), (0.4, 0.5)], "intervals overlap in every layer."),
        (
            [(0.1, 0.2), (0.7, 0.8)],
            "more anisotropic at layer 1 (.750 [.700, .800] against .550 [.500, .600]: .200 apart, at "
            "least .100); intervals overlap at layer 0.",
        ),
        (
            [(0.01, 0.02), (0.7, 0.8)],
            "more anisotropic at layer 1 (.750 [.700, .800] against .550 [.500, .600]: .200 apart, at "
            "least .100); less anisotropic at layer 0 (.015 [.010, .020] against .150 [.100, .200]: "
            ".135 apart, at least .080).",
        ),
        ([(0.6, 0.7), (0.6, 0.7)], "more anisotropic at layer 0 (.650"),
        ([(NAN, NAN), (NAN, NAN)], "no verdict, as there is no interval."),
    ],
)
def test_told_apart(b, text):
    """Only where intervals do not meet: ends that touch tell nothing."""
    [found] = compared(curve((0.1, 0.2), (0.5, 0.6)), curve(*b))
    assert found.startswith(f"b against a: {text}")


def test_told_apart_of_other_metrics_stacks_and_more_runs():
    a, b = curve((0.1, 0.2)), curve((0.3, 0.4))
    norms = [[row("drift", 0, 0.5, *ends)] for ends in ((0.4, 0.6), (0.7, 0.8))]
    assert compared(norms[1], norms[0], metric="drift")[0].startswith(
        "b against a in drift: lower at layer 0 ("
    )
    assert [text[:11] for text in compared(a, b, a)] == ["b against a", "c against a"]
    assert compared(a, curve((0.3, 0.4), stack="decoder")) == [
        "b against a: no verdict, as there is no layer in common."
    ]
    both = compared(
        a + curve((0.5, 0.6), stack="decoder"), b + curve((0.5, 0.6), stack="decoder")
    )
    assert both[0].startswith("Encoder: b against a: more anisotropic at layer 0 (.350")
    assert both[1] == "Decoder: b against a: intervals overlap in every layer."
    with pytest.raises(UsageError, match="the series a"):
        compared(a + a, b)


def test_the_short_table_of_two_stacks_and_a_final_norm():
    """Rows of the final norm have no layer; a run without hidden states has an empty table, on the terminal too."""
    rows = curve((0, 0.05), (0.12, 0.14)) + curve(
        (0.5, 0.6), (0.7, 0.75), stack="decoder"
    )
    rows += [one | {"site": "final", "layer": None} for one in curve((0.2, 0.3))]
    rows += [row("mean_cosine.top_share", 1, 0.5, component=k) for k in ("1", "3")]
    records = as_records(pd.DataFrame(rows))
    table = short_table(records)
    assert list(table.columns) == [
        "stack",
        "layer",
        "site",
        "A",
        "low",
        "high",
        "verdict",
        "top-3 share",
    ]
    assert table["stack"].tolist() == ["encoder"] * 3 + ["decoder"] * 2
    assert table["site"].tolist() == ["hidden", "hidden", "final", "hidden", "hidden"]
    assert table["verdict"].tolist() == ["isotropic", *["anisotropic"] * 4]
    assert table["top-3 share"].notna().tolist() == [False, True, False, False, False]
    assert tabulate_layers(records).rows[2] == [
        "encoder",
        "final",
        ".250 [.200, .300]",
        "anisotropic",
        "–",
        "–",
        "–",
    ]
    nothing = as_records(
        pd.DataFrame([row("attention.entropy", 0, 1.0, site="attention")])
    )
    assert not len(short_table(nothing)) and not tabulate_layers(nothing).rows


def test_a_series_is_told_by_its_last_step():
    """Layers of all checkpoints were taken for those of one model."""
    rows = curve((0.01, 0.02), step=0, seed=1) + curve((0.5, 0.6), step=10, seed=1)
    assert told(rows)["where_anisotropic"].startswith(
        "Step 10: Anisotropic at layer 0 (A .550 ["
    )


def test_other_policies_do_not_mix_in():
    rows = curve((0.2, 0.3)) + curve((0, 0.01), token_policy="no-first")
    assert [f.rule for f in findings(as_records(pd.DataFrame(rows)))] == [
        "where_anisotropic"
    ]


def test_numbers_are_records():
    found = findings(as_records(pd.DataFrame(curve((0, 0.05), (0.2, 0.3)))))
    assert json.loads(json.dumps(found[0].numbers))[0]["metric"] == "mean_cosine"


def test_numbers_as_text():
    assert [
        format_short(x) for x in (0.2464, -0.003, 0, 12.34, 1234.5, NAN, -0.0001)
    ] == [
        ".246",
        "−.003",
        ".000",
        "12.3",
        "1,234",
        "–",
        ".000",
    ]
    assert (
        format_measured(pd.Series({"value": 0.25, "low": NAN, "high": NAN})) == ".250"
    )


@pytest.mark.parametrize(
    "rule",
    [*RULES, *RULES_OF_CLASSES, *RULES_OF_RUNS, intervals_apart, differs],
    ids=lambda rule: rule.__name__,
)
def test_every_rule_is_in_the_docs(rule):
    assert f"`{rule.__name__}`" in (
        Path(__file__).parents[1] / "docs" / "concepts.md"
    ).read_text("utf-8")


def test_no_share_is_shown_of_an_anisotropy_that_may_be_none():
    """The table said that the largest three dimensions held −254.6 of A."""
    x = np.random.default_rng(0).normal(size=(300, 16))
    table = anisoscope.measure({"drifted": x + 0.6, "centred": x}).table()
    assert table["top-3 share"].notna().tolist() == [True, False]


@pytest.mark.parametrize(
    ("ends", "shown"), [((-0.3, -0.2), True), ((-0.1, 0.2), False), ((0.2, 0.3), True)]
)
def test_a_share_is_that_of_an_anisotropy_that_is_not_zero(ends, shown):
    """Vectors that point away from each other have one, too."""
    share = row("mean_cosine.top_share", 0, 0.5, component="3")
    assert short_table(as_records(pd.DataFrame([*curve(ends), share])))[
        "top-3 share"
    ].notna().tolist() == [shown]


def test_rows_without_a_step_are_of_no_step():
    rows = curve((0.01, 0.02), step=0, seed=1) + curve((0.5, 0.6), step=10, seed=1)
    stray = curve((0.7, 0.8), seed=1)
    stray = [each | {"layer": 5, "step": None} for each in stray]
    assert told(rows + stray)["where_anisotropic"] == told(rows)["where_anisotropic"]


def test_dimensions_are_told_of_three_classes_and_more():
    names = [
        row("class_direction.auc", 2, 0.9, 0.8, 0.95, component=name) for name in "abc"
    ]
    taken = [
        row("class_direction.dimensions", layer, 1.5, 1.2, 1.8, site="hidden")
        for layer in (2, 0)
    ]
    told_of = told([*names, *taken])["dimensions_taken"]
    said = "At layer 2 the directions of 3 classes span 1.500 [1.200, 1.800] of 2 possible dimensions"
    assert told_of == f"{said}; intervals overlap with this from layer 0 on."
    narrow = row("class_direction.dimensions", 1, 1.1, 1.05, 1.15, site="hidden")
    assert told([*names, *taken, narrow])["dimensions_taken"] == f"{said}."
    wide = row("class_direction.dimensions", 1, 1.3, 1.15, 1.4, site="hidden")
    assert told([*names, taken[0], wide, taken[1]])["dimensions_taken"].endswith(
        "from layer 0 on."
    )
    assert told([*names, taken[0], wide, narrow | {"layer": 0}])[
        "dimensions_taken"
    ].endswith("from layer 1 on.")
    assert "dimensions_taken" not in told([*names[:2], *taken])
    assert "dimensions_taken" not in told(names)
    assert "dimensions_taken" not in told(
        [*names, *(each | {"high": each["low"]} for each in taken)]
    )


@pytest.mark.parametrize(
    ("metric", "tokens", "says"),
    [
        (
            "mean_cosine",
            "none",
            "a token policy of mean_cosine in a; got 'none'. Cure: use all or content",
        ),
        (
            "norms",
            "all",
            "one value of norms; got 'norms'. Cure: name norms.mean or norms.variation",
        ),
        (
            "of_heads",
            "all",
            "of_heads, which is of single heads, dimensions or subsets",
        ),
        ("mean_cosin", "all", "did you mean mean_cosine"),
    ],
)
def test_a_metric_that_cannot_be_compared_is_told_with_what_can_be(
    metric, tokens, says
):
    rows = [
        *curve((0.2, 0.3)),
        *curve((0.2, 0.3), token_policy="content"),
        row("of_heads", 1, 0.5, head=1),
    ]
    rows += [row("norms.mean", 0, 1.0), row("norms.variation", 0, 1.0)]
    with pytest.raises(UsageError) as found:
        compared(rows, rows, metric=metric, tokens=tokens)
    assert says in str(found.value)
    with pytest.raises(UsageError, match="the series a"):
        compared([*rows, *rows], rows)


def test_vectors_say_which_cosine_is_noise_without_being_asked():
    x = np.random.default_rng(1).normal(size=(200, 24)) + 0.4
    run = anisoscope.measure(x, units=np.arange(200) // 4)
    asked = anisoscope.measure(x, units=np.arange(200) // 4, metrics=("floor",))
    for name in ("q90", "q95", "q99", "q999"):
        values = [
            one.records.query(f"metric == 'floor.{name}'")["value"].item()
            for one in (run, asked)
        ]
        assert values[0] == values[1]
    assert [finding.rule for finding in run.findings].count("noise_floor") == 1
    other = anisoscope.measure(x, panel="spectrum")
    assert not other.records["metric"].str.startswith("floor").any()


def test_which_cosine_is_noise_is_said_beside_that_of_isotropic_directions():
    """Unrelated documents around a common vector: the floor is that of all their pairs, which is far from q95(d)."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(240, 16)) + 1.0
    run = anisoscope.measure(
        x, units=np.arange(240) // 4, metrics=("floor", "neighbours", "mean_cosine")
    )
    values = run.records.set_index("metric")["value"]
    direction = x / np.linalg.norm(x, axis=1, keepdims=True)
    unit = np.arange(240) // 4 % 32  # pairs of one group of units may be of one unit
    cosines = (direction @ direction.T)[unit[:, None] < unit]
    for name, level in (("q90", 0.9), ("q99", 0.99), ("q999", 0.999)):
        assert values[f"floor.{name}"] == pytest.approx(
            np.quantile(cosines, level, method="inverted_cdf"), abs=1e-6
        )
    (finding,) = [finding for finding in run.findings if finding.rule == "noise_floor"]
    assert finding.text.startswith(
        f"Cosines up to {format_short(values['floor.q95'])} ["
    )
    assert "95 % of pairs of random directions have one below ." in finding.text


def test_near_duplicates_and_hubs_are_found():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 32))
    x[100:110] = x[:10] + 1e-2 * rng.normal(size=(10, 32))  # ten pairs of near twins
    x[110] = x[11] * 3  # and one of equal directions
    values = anisoscope.metric("neighbours", x)
    assert values["neighbours.duplicates"].value == pytest.approx(22 / 200)
    assert values["neighbours.equal"].value == pytest.approx(2 / 200)
    around = rng.normal(size=(200, 60))
    around[:, 0] = 5.0
    around[7] = np.eye(60)[
        0
    ]  # the common direction itself: among the nearest of every other vector
    hub = anisoscope.metric("neighbours", around)
    assert hub["neighbours.largest"].value > 0.9
    assert hub["neighbours.hubness"].value > 5


def test_a_table_beside_hidden_states_holds_its_own_records_alone():
    beside = [
        row(f"{name}.{value}", 0, 0.2)
        for name in OPT_IN_METRICS
        for value in ("q95", "q99")
    ]
    tables = tabulate_opt_in_metrics(
        as_records(pd.DataFrame([row("mean_cosine", 0, 0.4), *beside]))
    )
    assert [set(table.records["metric"]) for table in tables] == [
        {f"{n}.q95", f"{n}.q99"} for n in OPT_IN_METRICS
    ]
    assert [table.head for table in tables] == [
        (f"{n.replace('_', ' ')}: layer", "q95", "q99") for n in OPT_IN_METRICS
    ]
    alone = tabulate_opt_in_metrics(as_records(pd.DataFrame(beside[:1])))
    assert [table.head for table in alone] == [("layer", f"{OPT_IN_METRICS[0]}.q95")]


def test_each_seed_is_told_by_its_own_last_step():
    """Also if one of them went on for longer."""
    rows = [
        each
        for seed, step in ((0, 10), (0, 20), (1, 10))
        for each in curve((0.2, 0.3), step=step, seed=seed)
    ]
    texts = [
        finding.text
        for finding in findings(as_records(pd.DataFrame(rows)))
        if "where" in finding.rule
    ]
    assert [text.partition(": ")[0] for text in texts] == [
        "Seed 0, step 20",
        "Seed 1, step 10",
    ]


def floors(vectors, units, **more):
    counts = {"n_vectors": vectors, "n_units": units} | more
    return [
        row(f"floor.{name}", 2, value, value - 0.01, value + 0.01, **counts)
        for name, value in FLOORS.items()
    ]


FLOORS = {"q90": 0.2, "q95": 0.3, "q99": 0.4}


def test_of_few_pairs_no_floor_is_said():
    """Of four vectors it had an interval from −.46 to .76."""
    for vectors, units, enough in (
        (4, 4, False),
        (28, 28, False),
        (29, 29, True),
        (29, 2, False),
        (1000, 40, True),
    ):
        text = told(floors(vectors, units))["noise_floor"]
        assert (
            text.startswith(
                "Cosines up to .300 [.290, .310] are noise at layer 2: 95 %"
            )
            == enough
        )
        assert (
            text.startswith(
                f"Too few vectors for a noise floor: {vectors} from {units} units."
            )
            != enough
        )
        assert (
            bool(
                tabulate_opt_in_metrics(
                    as_records(pd.DataFrame(floors(vectors, units)))
                )
            )
            == enough
        )
    assert "and 99 % have one below .400 [.390, .410]." in text


def test_a_floor_is_that_of_one_model_and_its_last_layer():
    rows = floors(1000, 40)
    deeper = [each | {"layer": 3, "value": 0.5} for each in rows]
    assert told([*deeper, *rows])["noise_floor"].startswith("Cosines up to .500 ")
    final = [each | {"site": "final", "layer": 3, "value": 0.6} for each in rows]
    assert told([*final, *deeper, *rows])["noise_floor"].startswith(
        "Cosines up to .600 "
    )
    for name in ("seed", "step"):
        assert "noise_floor" not in told(
            [each | {name: which} for which in (0, 1) for each in rows]
        )
        assert "noise_floor" in told([each | {name: 1} for each in rows])
    decoder = [each | {"stack": "decoder"} for each in rows]
    texts = [
        finding.text
        for finding in findings(as_records(pd.DataFrame([*rows, *decoder])))
    ]
    assert [text.partition(":")[0] for text in texts] == ["Encoder", "Decoder"]


def test_sites_without_a_unit_have_no_floor():
    assert (
        not has_enough_pairs(10, 0)
        and not has_enough_pairs(NAN, NAN)
        and has_enough_pairs(40, 40)
    )


def found_of(rows):
    return findings(as_records(pd.DataFrame(rows)))


def test_a_layer_without_the_level_of_isotropy_stays_and_is_not_judged():
    rows = curve((0.2, 0.3), (0.5, 0.6))
    del rows[3]
    (found,) = found_of(rows)
    assert found.text == (
        "Anisotropic at layer 0; strongest at layer 1 (A .550 [.500, .600])."
    )
    without_policy = [
        each | {"token_policy": None} if "isotropic" in each["metric"] else each
        for each in curve((0.2, 0.3))
    ]
    assert told(without_policy) == told(curve((0.2, 0.3))), "it is of every policy"
    twice = curve((0.2, 0.3), (0.3, 0.4))
    assert told([*twice, twice[1], twice[3]]) == told(twice)


def test_layers_that_reach_the_highest_are_told_and_support_it():
    rows = curve((0.15, 0.16), (0.2, 0.3), (0.3, 0.4))
    (found,) = found_of(rows)
    assert "highest at layer 2" in found.text and "overlap with layer 1" in found.text
    assert [one["layer"] for one in found.numbers] == [1, 2]
    (equal,) = found_of(curve((0.2, 0.4), (0.2, 0.4)))
    assert "highest at layer 0" in equal.text and "overlap with layer 1" in equal.text
    # Not extreme by its value alone.
    assert "extreme" not in told(curve((0.7, 0.95)))["where_anisotropic"]


def test_one_layer_with_an_interval_is_enough_to_judge():
    rows = [*curve((0.2, 0.3)), row("mean_cosine", 1, 0.9)]
    rows.append(row("mean_cosine.isotropic_q95", 1, Q95))
    assert [*told(rows)] == ["where_anisotropic"]


def test_the_last_step_of_a_seed_is_its_highest_in_whatever_order():
    early = curve((0.01, 0.02), step=5, seed=1)
    late = curve((0.5, 0.6), step=10, seed=1)
    assert told(early + late) == told(late + early)
    assert told(late + early)["where_anisotropic"].startswith("Step 10: ")


def test_about_half_is_told_of_an_interval_that_holds_a_half():
    def share(low, high):
        top = {"component": "10"}
        rows = curve((0.2, 0.3))
        rows.append(row("mean_cosine.top_share", 0, (low + high) / 2, low, high, **top))
        return told(rows).get("carried_by_few", "")

    assert share(0.42, 0.58).startswith("About half")
    assert share(0.41, 0.49).startswith("Not carried by a few")
    assert share(0.39, 0.55) == share(0.45, 0.61) == ""


def test_directions_are_told_from_the_mean_over_classes_and_its_interval():
    rows = [row("class_direction.auc", 1, 0.7, 0.6, 0.8)]
    of_class = row("class_direction.auc", 2, 0.99, 0.98, 1.0, component="x")
    assert told([*rows, of_class]) == told(rows)
    assert "at layer 1 (AUC" in told(rows)["class_directions"]
    accuracy = row("accuracy", None, 0.6, 0.45, 0.75, site=None)
    majority = row("majority", None, 0.5, site=None)
    assert "not clearly above" in told([accuracy, majority])["above_majority"]


def test_what_attention_is_worth_is_that_of_uniform_weights():
    def of(component, low, high):
        place = {"site": None, "component": component}
        return row("ablation.accuracy", None, (low + high) / 2, low, high, **place)

    rows = [of("first", -0.9, -0.8), of("uniform", -0.01, 0.01)]
    assert "does not need" in told(rows)["attention_used"]
    gain = told([of("uniform", -0.01, 0.2)])["attention_used"]
    assert gain.startswith("Whether this classifier uses its attention is undecided")


def test_a_map_that_chance_may_reach_is_no_better_than_chance():
    def of(name, layer, value, spread):
        ends = value - spread, value + spread
        place = {"site": None, "component": name}
        return row("attribution.comprehensiveness", layer, value, *ends, **place)

    rows = [of("random", None, 0.1, 0.15), of("attention", 1, 0.3, 0.1)]
    assert "none is better than chance" in told(rows)["words_that_decide"]


def test_a_floor_is_compared_with_random_directions_of_its_own_place():
    law = "mean_cosine.isotropic_q95"
    own = row(law, 2, 0.11)
    others = [
        own | {"stack": "decoder", "value": 0.9},
        own | {"layer": 1, "value": 0.8},
    ]
    rows = [*others, *floors(1000, 40), own]
    rows += [each | {"site": "final", "value": 0.7} for each in floors(1000, 40)]
    hidden = [each for each in rows if each["site"] == "hidden"]
    assert "random directions have one below .110." in told(hidden)["noise_floor"]
    final = told(rows)["noise_floor"]
    assert "random" not in final and "99 % have one below .700" in final
