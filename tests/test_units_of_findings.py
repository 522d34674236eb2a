"""Sentences of a run, whole and with the records behind them, and short tables, on a few records of each rule."""

import numpy as np
import pandas as pd
import pytest

from anisoscope.errors import UsageError
from anisoscope.runs import findings as rules, short_tables
from anisoscope.store import as_records

NAN = float("nan")
A, Q95 = "mean_cosine", "mean_cosine.isotropic_q95"


def row(metric, layer, value, low=NAN, high=NAN, **more):
    found = {"metric": metric, "stack": "encoder", "layer": layer, "site": "hidden"}
    found |= {"token_policy": "all", "value": value, "low": low, "high": high}
    return found | {"n_vectors": 1000, "n_units": 40} | more


def records(*rows):
    return as_records(pd.DataFrame(rows))


def curve(*intervals, q95=0.1, **more):
    rows = []
    for layer, (low, high) in enumerate(intervals):
        rows.append(row(A, layer, (low + high) / 2, low, high, **more))
        if q95 is not None:
            rows.append(row(Q95, layer, q95, **more))
    return rows


def sentences(*rows):
    return [(each.rule, each.text) for each in rules.findings(records(*rows))]


def numbers(*rows):
    """The layers and values of the records behind each sentence."""
    return [
        [(number["layer"], number["value"]) for number in each.numbers]
        for each in rules.findings(records(*rows))
    ]


# ---- where a run is anisotropic --------------------------------------------------------------------------------------


def test_each_checkpoint_and_stack_has_sentences_of_its_own():
    rows = []
    for seed, step, stack, end in (
        *((5, 1000, "encoder", 0.3), (5, 2000, "decoder", 0.4)),
        *((5, 2000, "encoder", 0.5), (6, 3000, "encoder", 0.6), (6, 1, "encoder", 0.7)),
    ):
        rows += curve((end, end + 0.1), seed=seed, step=step, stack=stack)
    assert [text.partition(" (")[0] for _, text in sentences(*rows)] == [
        "Seed 5, step 2,000: Encoder: Anisotropic at layer 0",
        "Seed 5, step 2,000: Decoder: Anisotropic at layer 0",
        "Seed 6, step 3,000: Encoder: Anisotropic at layer 0",
    ]
    one_seed = [each for each in rows if each["seed"] == 6]
    assert sentences(*one_seed) == [
        (
            "where_anisotropic",
            "Step 3,000: Anisotropic at layer 0 (A .650 [.600, .700]).",
        ),
    ]
    alone = [each | {"seed": NAN, "step": NAN} for each in one_seed[:2]]
    assert sentences(*alone) == [
        ("where_anisotropic", "Anisotropic at layer 0 (A .650 [.600, .700])."),
    ]


def test_records_behind_a_curve():
    strongest = curve((0.2, 0.3), (0.5, 0.6), (0.45, 0.5), (0.0, 0.02))
    assert numbers(*strongest)[0] == [(1, 0.55), (2, 0.475)], "an end that is touched"
    isotropic = curve((0.0, 0.02), (0.03, 0.05))
    assert numbers(*isotropic) == [[(0, 0.01), (1, 0.04)]]
    mixed = sentences(row(A, 2, 0.9), *curve((0.0, 0.02), (0.03, 0.05)))
    assert mixed == [("where_anisotropic", "Isotropic at layers 0 and 1.")]
    bare = [row(A, 0, 0.2), row(A, 1, 0.9)]
    assert numbers(*bare) == [[(1, 0.9)]]


@pytest.mark.parametrize(
    ("intervals", "text"),
    [
        ([(0.0, 0.05)], "Isotropic at layer 0 (A .025 [.000, .050])."),
        ([(0.05, 0.2)], "Undecided at layer 0."),
        ([(0.5, 0.6)], "Anisotropic at layer 0 (A .550 [.500, .600])."),
        (
            [(0.8, 0.9)],
            "Anisotropic at layer 0 (A .850 [.800, .900], extreme: at least .8).",
        ),
        (
            [(0.2, 0.3), (0.3, 0.4), (0.0, 0.2)],
            "Anisotropic at layers 0 and 1; highest at layer 1 (A .350 [.300, .400]); intervals overlap with layer"
            " 0; undecided at layer 2.",
        ),
    ],
)
def test_sentences_on_a_curve(intervals, text):
    assert sentences(*curve(*intervals)) == [("where_anisotropic", text)]


def test_a_curve_is_of_whole_layers_under_the_first_policy_with_a_level_of_their_own():
    rows = curve((0.2, 0.3), (0.4, 0.5))
    others = [
        row(A, 0, 0.95, 0.9, 0.99, head=0),
        row(A, 0, 0.95, 0.9, 0.99, site="attention"),
        row(A, 0, 0.95, 0.9, 0.99, component="x"),
        row(A, 0, 0.95, 0.9, 0.99, token_policy="content"),
        row(A, 2, NAN, 0.9, 0.99),
        row(Q95, 1, 0.9, head=0),
        row(Q95, 1, 0.9, site="final"),
        row(Q95, 1, 0.9, token_policy="content"),
    ]
    expected = "Anisotropic in every layer; strongest at layer 1 (A .450 [.400, .500])."
    assert sentences(*rows, *others) == [("where_anisotropic", expected)]
    # What has no policy belongs to every policy.
    free = [each | {"token_policy": None} for each in rows if each["metric"] == Q95]
    own = [each for each in rows if each["metric"] == A]
    assert sentences(*own, *free) == [("where_anisotropic", expected)]
    # A level of the final norm is not that of the last layer.
    final = [row(A, 1, 0.05, 0.04, 0.06, site="final"), row(Q95, 1, 0.3, site="final")]
    (depth,) = rules.judge_stacks(records(*final, *rows))
    assert depth.rows["site"].tolist() == ["hidden", "hidden", "final"]
    assert depth.rows["q95"].tolist() == [0.1, 0.1, 0.3]
    assert depth.rows["verdict"].tolist() == ["anisotropic", "anisotropic", "isotropic"]
    (depth,) = rules.judge_stacks(records(*rows[:3]))
    assert depth.rows["verdict"].tolist() == ["anisotropic", ""]
    assert rules.judge_stacks(records(row("drift", 0, 0.5))) == []


def share(k, low, high, layer=1, **more):
    value = (low + high) / 2
    return row(
        "mean_cosine.top_share", layer, value, low, high, component=str(k), **more
    )


@pytest.mark.parametrize(
    ("shares", "text"),
    [
        ({1: (0.5, 0.7)}, "More than half in 1 of 3 dimensions (share .60 [.50, .70])."),
        ({1: (0.49, 0.7)}, None),
        ({1: (0.3, 0.7), 3: (0.6, 0.8)}, "More than half in 3 of 3 dimensions (share .70 [.60, .80])."),
        ({1: (0.45, 0.6)}, "About half in 1 of 3 dimensions (share .53 [.45, .60])."),
        ({1: (0.4, 0.49)}, None),
        ({1: (0.39, 0.55)}, None),
        ({3: (0.1, 0.2)}, None),
        ({3: (0.1, 0.2), 10: (0.2, 0.4)},
         "Not carried by a few dimensions: less than half in 10 of 3 dimensions (share .30 [.20, .40])."),
        ({10: (0.2, 0.55)}, None),
        ({1: (0.6, 0.7), 3: (0.8, 0.9), 10: (0.9, 1)}, "More than half in 1 of 3 dimensions (share .65 [.60, .70])."),
    ],
)  # fmt: skip
def test_how_many_dimensions_carry_half(shares, text):
    rows = curve((0.2, 0.3), (0.5, 0.6))
    rows += [row("mean_cosine.contribution", 1, 0.1, component=f"{i}") for i in "012"]
    rows += [row("mean_cosine.contribution", 0, 0.1, component=f"{i}") for i in "01"]
    at_final = {"site": "final", "component": "9"}
    rows.append(row("mean_cosine.contribution", 1, 0.1) | at_final)
    rows += [share(k, *ends) for k, ends in shares.items()]
    rows.append(share(1, 0.9, 0.95, layer=0))
    found = [each for each in sentences(*rows) if each[0] == "carried_by_few"]
    whole = text and text.replace("half", "half of the anisotropy lies")
    assert found == ([] if text is None else [("carried_by_few", whole)])


def test_dimensions_without_a_width_and_centring():
    rows = [*curve((0.5, 0.6)), share(3, 0.6, 0.8, layer=0)]
    centred = row("calibrated.centred", 0, 0.05, 0.0, 0.1)
    assert sentences(*rows, centred)[1:] == [
        (
            "carried_by_few",
            "More than half of the anisotropy lies in 3 dimensions (share .70 [.60, .80]).",
        ),
        (
            "removed_by_centring",
            "Centring removes the anisotropy (A after centring .050 [.000, .100], q95 of random directions .100).",
        ),
    ]
    assert numbers(*rows, centred)[1:] == [[(0, 0.7)], [(0, 0.05)]]
    for ends, words in (
        ((0.05, 0.2), "Whether centring removes the anisotropy is undecided"),
        ((0.2, 0.3), "Centring does not remove the anisotropy"),
    ):
        other = row("calibrated.centred", 0, 0.2, *ends)
        assert sentences(*rows, other)[2][1].startswith(f"{words} (A after centring")
    assert len(sentences(*rows, row("calibrated.centred", 0, 0.2))) == 2
    isotropic = [*curve((0.0, 0.1)), share(3, 0.6, 0.8, layer=0), centred]
    assert len(sentences(*isotropic)) == 1


# ---- classes ---------------------------------------------------------------------------------------------------------


def auc(layer, low, high, **more):
    return row("class_direction.auc", layer, (low + high) / 2, low, high, **more)


def test_sentences_on_directions():
    words = "Class directions separate the classes"
    rows = [auc(2, 0.6, 0.7), auc(0, 0.4, 0.99), auc(1, 0.7, 0.8)]
    final = auc(2, 0.9, 0.95, site="final")
    found = [("class_directions", f"{words} from layer 1 on, best at layer 1 (AUC .750 [.700, .800]).")]  # fmt: skip
    assert sentences(*rows, final) == found
    assert numbers(*rows) == [[(1, 0.75)]]
    assert (
        sentences(*rows[:2])[0][1]
        == f"{words} at layer 2 only (AUC .650 [.600, .700])."
    )
    assert sentences(rows[0])[0][1] == f"{words} at layer 2 (AUC .650 [.600, .700])."
    assert sentences(auc(0, 0.5, 0.6), auc(1, 0.3, 0.6))[0][1] == (
        f"{words} in no layer: AUC is at chance (.500), highest .550 [.500, .600] at layer 0."
    )
    assert sentences(final) == [] == sentences(row("class_direction.auc", 0, 0.9))
    assert sentences(auc(0, 0.9, 1, head=0)) == [] == sentences(auc(0, 0.9, 1, component="x"))  # fmt: skip


def spans(*intervals, classes=3):
    rows = [
        row("class_direction.dimensions", i, (low + high) / 2, low, high)
        for i, (low, high) in enumerate(intervals)
    ]
    return [*rows, *(row("class_direction.auc", 0, 0.5, component=f"{i}") for i in range(classes))]  # fmt: skip


def test_sentences_on_dimensions_of_directions():
    def of(*intervals, classes=3):
        found = rules.dimensions_taken(records(*spans(*intervals, classes=classes)))
        return [each.text for each in found]

    text = (
        "At layer {} the directions of {} classes span {} of {} possible dimensions{}."
    )
    assert of((1.0, 1.5), (2.0, 2.5), (1.0, 3.0), (1.5, 2.0), classes=5) == [
        text.format(
            3,
            5,
            "1.750 [1.500, 2.000]",
            4,
            "; intervals overlap with this from layer 0 on",
        )
    ]
    assert of((1.0, 1.5), (1.0, 1.2), (1.3, 2.0)) == [
        text.format(2, 3, "1.650 [1.300, 2.000]", 2, "")
    ]
    assert of((1.0, 2.0), classes=2) == [] == of((1.0, 1.0)) == of()
    # The last layer has no width: the one before is the last that is judged.
    assert of((1.0, 2.0), (1.0, 1.0))[0].startswith("At layer 0 the directions of 3")


def test_sentences_on_accuracy():
    def of(*ends):
        rows = [row("accuracy", NAN, 0.75, *ends), row("majority", NAN, 0.5)]
        return sentences(*rows)

    for ends, place in (
        ((0.6, 0.9), "above"),
        ((0.1, 0.4), "below"),
        ((0.5, 0.9), "not clearly above or below"),
        ((0.1, 0.5), "not clearly above or below"),
    ):
        shown = f"[{rules.format_short(ends[0])}, {rules.format_short(ends[1])}]"
        text = f"Accuracy .750 {shown}, {place} the majority rate (.500)."
        assert of(*ends) == [("above_majority", text)]
    assert of(NAN, NAN) == []
    both = [row("accuracy", NAN, 0.75, 0.6, 0.9), row("majority", NAN, 0.5)]
    assert [value for _, value in numbers(*both)[0]] == [0.75, 0.5]
    assert sentences(both[0]) == [] == sentences(both[1])
    part = both[0] | {"component": "x", "value": 0.25}
    assert sentences(part, *both)[0][1].startswith("Accuracy .750 ")


def loss(layer, low, high, component="uniform", **more):
    value = (low + high) / 2
    return row(
        "ablation.accuracy", layer, value, low, high, component=component, **more
    )


def test_sentences_on_attention_that_is_used():
    change = "with uniform weights instead, accuracy changes by"
    rows = [
        loss(NAN, -0.25, -0.125, n_units=30),
        loss(4, -0.5, -0.25),
        loss(2, -0.25, -0.125),
        loss(3, -0.5, 0.0),
        loss(1, -0.9, -0.8, component="zero"),
    ]
    uses = "This classifier uses its attention"
    assert sentences(*rows) == [
        (
            "attention_used",
            f"{uses}: {change} −.188 [−.250, −.125]; it also falls if only layer 2 or 4 has uniform weights (n = 30).",
        )
    ]
    assert [value for _, value in numbers(*rows)[0]] == [-0.1875, -0.1875, -0.375]
    assert sentences(*rows[:2]) == [
        ("attention_used", f"{uses}: {change} −.188 [−.250, −.125] (n = 30)."),
    ]
    assert sentences(*rows[1:]) == [], "of single layers alone"
    for low, high, words in (
        (-0.02, 0.01, "Whether this classifier uses its attention is undecided"),
        (-0.01, 0.02, "Whether this classifier uses its attention is undecided"),
        (-0.01, 0.01, "This classifier does not need its attention (within two points)"),
        (0.001, 0.01, "This classifier does not need its attention (within two points)"),
        (0.01, 0.5, "Attention harms this classifier"),
        (-0.01, -0.005, uses),
    ):  # fmt: skip
        ((_, text),) = sentences(loss(NAN, low, high), *rows[1:3])
        assert text.startswith(f"{words}: {change} "), (low, high)
        assert ("it also falls" in text) == (high < 0)


def test_sentences_on_words_that_decide():
    def word(component, layer, low, high):
        name = "attribution.comprehensiveness"
        value = (low + high) / 2
        return row(name, layer, value, low, high, component=component, n_units=12)

    rows = [
        word("random", 0, 0.0625, 0.125),
        word("rare", 0, 0.9, 0.95),
        word("a", 3, 0.25, 0.5),
        word("b", 4, 0.125, 0.25),
    ]
    falls = (
        " Without its highest-ranked words, the probability of the predicted class falls by {};"
        " without random words, by .094 [.062, .125] (n = 12)."
    )
    best = "‘{}’ of layer {} is best at finding the words that decide."
    assert sentences(*rows) == [
        (
            "words_that_decide",
            f"Of 2 attribution maps, {best.format('a', 3)}{falls.format('.375 [.250, .500]')}",
        )
    ]
    assert [value for _, value in numbers(*rows)[0]] == [0.375, 0.09375]
    none = "Of 1 attribution map, none is better than chance at finding the words that decide; ‘b’ of layer 4 is best."
    assert sentences(*rows[:2], rows[3]) == [
        ("words_that_decide", none + falls.format(".188 [.125, .250]")),
    ]
    assert sentences(*rows[1:]) == [] == sentences(*rows[:2])


# ---- noise -----------------------------------------------------------------------------------------------------------


def floor(layer, times=1.0, **more):
    return [
        row("floor.q95", layer, 0.25 * times, 0.2 * times, 0.3 * times, **more),
        row("floor.q99", layer, 0.5 * times, 0.45 * times, 0.55 * times, **more),
        row(Q95, layer, 0.125 * times, **more),
    ]


NOISE = (
    "Cosines up to {} are noise {}: 95 % of pairs of unrelated units have a lower cosine,"
    " and 99 % have one below {}."
)
LAW = " For comparison, 95 % of pairs of random directions have one below {}."


def test_sentences_on_a_floor():
    rows = [*floor(2, 0.5), *floor(3), *floor(1, 0.75)]
    last = NOISE.format(".250 [.200, .300]", "at layer 3", ".500 [.450, .550]")
    assert sentences(*rows) == [("noise_floor", last + LAW.format(".125"))]
    assert numbers(*rows) == [[(3, 0.25), (3, 0.5)]]
    without = [each for each in rows if each["metric"] != Q95]
    assert sentences(*without) == [("noise_floor", last)]
    final = floor(3, 0.5, site="final")
    norm = NOISE.format(".125 [.100, .150]", "at the final norm", ".250 [.225, .275]")
    assert sentences(*final, *rows) == [("noise_floor", norm + LAW.format(".062"))]
    both = [*floor(1, 0.5, stack="decoder"), *rows]
    other = NOISE.format(".125 [.100, .150]", "at layer 1", ".250 [.225, .275]")
    assert sentences(*both) == [
        ("noise_floor", f"Decoder: {other}{LAW.format('.062')}"),
        ("noise_floor", f"Encoder: {last}{LAW.format('.125')}"),
    ]
    few = [each | {"n_vectors": 20, "n_units": 1} for each in rows]
    assert sentences(*few) == [
        ("noise_floor", "Too few vectors for a noise floor: 20 from 1 unit."),
    ]
    assert numbers(*few) == [[(3, 0.25)]]
    for name in ("step", "seed"):
        assert sentences(*floor(1, **{name: 1}), *floor(1, **{name: 2})) == []


@pytest.mark.parametrize(
    ("vectors", "units", "enough"),
    [(40, 2, True), (39, 2, False), (29, 40, True), (28, 40, False), (1000, 1, False)],
)
def test_pairs_of_different_units(vectors, units, enough):
    assert rules.has_enough_pairs(vectors, units) is enough


def test_findings_come_in_one_order():
    sink = row("attention.first_mass", 1, 0.9, 0.8, 0.95, head=0, kind="self")
    massive = [row("massive.largest", 1, 900.0, component="1"), row("massive.rate", 1, 0.5)]  # fmt: skip
    named = row("massive.largest_token", 1, 3, component="1")
    position = row("massive.largest_position", 1, 2, component="1")
    rows = [*massive, named, position, sink, *floor(1), *curve((0.5, 0.6)), auc(1, 0.6, 0.7)]  # fmt: skip
    found = rules.findings(records(*rows), {"3": "word"})
    assert [each.rule for each in found] == [
        *("class_directions", "where_anisotropic", "noise_floor"),
        *("attention_sink", "massive"),
    ]
    assert "position 2 (‘word’)" in found[-1].text


# ---- short tables ----------------------------------------------------------------------------------------------------


def test_the_short_table_has_its_columns_and_places():
    rows = []
    for place, value in (
        ({"stack": "decoder", "layer": 0}, 0.25),
        ({"layer": 2, "site": "final"}, 0.5),
        ({"layer": 2}, 0.75),
        ({"layer": 1}, 0.625),
    ):
        for n, metric in enumerate((*reversed(short_tables.SHORT), Q95), 1):
            component = "3" if metric == "mean_cosine.top_share" else None
            own = row(metric, 0, value * n, value * n - 0.125, value * n + 0.5)
            rows.append(own | {"component": component} | place)
    rows.append(rows[0] | {"head": 0, "value": 99.0})
    rows.append(rows[0] | {"site": "other", "value": 99.0})
    rows.append(row(A, 5, NAN))
    others = [row("mean_cosine.top_share", 1, 99.0, component=k) for k in ("1", "10", None)]  # fmt: skip
    table = short_tables.short_table(records(*others, *rows))
    assert [*table.columns] == [
        *("stack", "layer", "site", "A", "low", "high", "verdict"),
        *("drift share", "top-3 share", "effective rank"),
    ]
    assert [each.tolist() for _, each in table.iterrows()] == [
        ["decoder", 0, "hidden", 1.0, 0.875, 1.5, "undecided", 0.75, 0.5, 0.25],
        ["encoder", 1, "hidden", 2.5, 2.375, 3.0, "isotropic", 1.875, 1.25, 0.625],
        ["encoder", 2, "hidden", 3.0, 2.875, 3.5, "isotropic", 2.25, 1.5, 0.75],
        ["encoder", 2, "final", 2.0, 1.875, 2.5, "isotropic", 1.5, 1.0, 0.5],
    ]
    bare = short_tables.short_table(records(row(A, 0, 0.5)))
    assert [*bare.columns] == ["stack", "layer", "site", "A", "low", "high", "verdict"]
    assert bare["verdict"].isna().all()


def test_a_series_has_its_step_and_seed_before_the_place():
    rows = [
        row(A, layer, layer + step / 8, step=step, seed=7)
        for step in (4, 1)
        for layer in (1, 0)
    ]
    table = short_tables.short_table(records(*rows))
    assert [*table.columns][:5] == ["step", "seed", "stack", "layer", "site"]
    assert [*zip(table["step"], table["layer"], strict=True)] == [
        *((4, 0), (4, 1), (1, 0), (1, 1))
    ]
    assert table["A"].tolist() == [0.5, 1.5, 0.125, 1.125]
    seeds = [row(A, 0, seed / 8, step=1, seed=seed) for seed in (2, 3)]
    table = short_tables.short_table(records(*seeds))
    assert table["seed"].tolist() == [2, 3] and table["A"].tolist() == [0.25, 0.375]


def test_a_wide_table_has_the_ends_of_each_metric():
    rows = [row("drift", 1, 0.5, 0.25, 0.75), row(A, 1, 0.25, 0.125, 0.5)]
    rows += [row("drift", 1, 0.1, token_policy="content"), row(Q95, 1, 0.625)]
    wide, behind = short_tables.pivot_by_layer(
        records(*rows), ["drift", "not there", A]
    )
    assert [*wide.columns] == [
        *(
            (metric, end)
            for metric in ("drift", A, Q95)
            for end in ("value", "low", "high")
        ),
        ("verdict", ""),
    ]
    assert wide.iloc[0].tolist()[:6] == [0.5, 0.25, 0.75, 0.25, 0.125, 0.5]
    assert wide["verdict"].tolist() == ["isotropic"] and len(behind) == 3
    with pytest.raises(UsageError) as fault:
        short_tables.pivot_by_layer(records(*rows), ["drift"], "contend")
    assert str(fault.value).startswith(
        "expected a token policy of this run; got 'contend'. Cure: did you mean content"
    )


@pytest.mark.parametrize(
    ("ends", "shown"),
    [((-0.1, 0.1), False), ((0.0, 0.1), False), ((-0.1, 0.0), False), ((0.1, 0.2), True),
     ((-0.2, -0.1), True), ((NAN, NAN), True)],
)  # fmt: skip
def test_a_share_of_nothing_is_not_shown(ends, shown):
    rows = [row(A, 0, 0.05, *ends), share(3, 0.5, 0.5, layer=0)]
    table = short_tables.short_table(records(*rows))
    assert table["top-3 share"].notna().tolist() == [shown]


def test_values_of_whole_layers_are_those_of_one_policy():
    rows = [
        row("m", 1, 0.125, token_policy="content"),
        row("m", 1, 0.25, 0.1, 0.9, component="x"),
        row("m", 1, 0.5, head=0),
        row("n", 2, 0.75, token_policy=None, stack="decoder", site="final"),
    ]
    found = short_tables.value_table(records(*rows))
    assert [*found.columns] == [
        *("stack", "layer", "site", "metric", "component", "value", "low", "high")
    ]
    assert found["value"].tolist() == [0.125, 0.75]
    assert found.iloc[1].tolist()[:4] == ["decoder", 2, "final", "n"]
    of_all = short_tables.value_table(records(*rows), "all")
    assert of_all["value"].tolist() == [0.25, 0.75]
    assert of_all.iloc[0].tolist()[3:] == ["m", "x", 0.25, 0.1, 0.9]
    assert short_tables.select_layers(records(rows[3]))["value"].tolist() == [0.75]
    with pytest.raises(UsageError):
        short_tables.select_layers(records(rows[3]), "all")


def test_repeated_names_are_numbered_by_their_place():
    frames = [pd.DataFrame({"x": [i]}) for i in range(4)]
    found = short_tables.number_names(zip("abba", frames, strict=True))
    assert {name: frame["x"].item() for name, frame in found.items()} == {
        "a": 0,
        "b": 1,
        "b (3)": 2,
        "a (4)": 3,
    }


# ---- side by side ----------------------------------------------------------------------------------------------------


def test_runs_of_other_layers_share_a_table():
    a = records(row("m", 1, 0.1, 0.0, 0.2), row("m", 2, 0.5, 0.4, 0.6))
    b = records(
        row("m", 2, 0.9, 0.8, 1.0),
        row("m", 2, 0.3, 0.2, 0.4, site="final"),
        row("m", 2, 0.7, token_policy="content"),
        row("m", 2, 0.7, component="x"),
        row("m", 2, 0.7, head=0),
        row("m", 2, 0.7, site="attention"),
    )
    c = records(row("m", 1, 0.9, 0.8, 1.0, token_policy=None))
    table, behind, found = short_tables.side_by_side({"a": a, "b": b, "c": c}, "m")
    assert table.index.tolist() == [
        ("encoder", 1, "hidden"),
        ("encoder", 2, "hidden"),
        ("encoder", 2, "final"),
    ]
    assert [*table.columns] == [(n, end) for n in "abc" for end in ("value", "low", "high")]  # fmt: skip
    expected = {"a": [0.1, 0.5, NAN], "b": [NAN, 0.9, 0.3], "c": [0.9, NAN, NAN]}
    for name, values in expected.items():
        assert table[name, "value"].tolist() == pytest.approx(values, nan_ok=True)
    assert table["b", "low"].tolist()[1:] == [0.8, 0.2]
    assert table["b", "high"].tolist()[1:] == [1.0, 0.4]
    assert len(behind) == 5
    assert [each.text for each in found] == [
        "b against a in m: higher at layer 2 (.900 [.800, 1.000] against .500 [.400, .600]: .400 apart, at least"
        " .200).",
        "c against a in m: higher at layer 1 (.900 [.800, 1.000] against .100 [.000, .200]: .800 apart, at least"
        " .600).",
    ]


def test_both_directions_have_their_widest_gap():
    def of(*intervals, **more):
        rows = [
            row("m", i, (low + high) / 2, low, high, **more)
            for i, (low, high) in enumerate(intervals)
        ]
        return records(*rows)

    a = of((0.0, 0.1), (0.0, 0.1), (0.5, 0.6), (0.5, 0.6), (0.0, 0.1), (0.0, NAN))
    b = of((0.2, 0.3), (0.5, 0.6), (0.3, 0.4), (0.1, 0.2), (0.1, 0.2), (0.9, 1.0))
    (found,) = short_tables.intervals_apart(("a", a), ("b", b), "m")
    higher = (
        "higher at layers 0 and 1, most at layer 1 (.550 [.500, .600] against .050 [.000, .100]:"
        " .500 apart, at least .400)"
    )
    lower = (
        "lower at layers 2 and 3, most at layer 3 (.150 [.100, .200] against .550 [.500, .600]:"
        " .400 apart, at least .300)"
    )
    assert (
        found.text
        == f"b against a in m: {higher}; {lower}; intervals overlap at layer 4."
    )
    assert found.rule == "intervals_apart"
    assert [(number["layer"], number["value"]) for number in found.numbers] == [
        *((1, 0.05), (1, 0.55), (3, 0.55), (3, pytest.approx(0.15)))
    ]
    assert [number["low"] for number in found.numbers] == [0.0, 0.5, 0.5, 0.1]
    (found,) = short_tables.intervals_apart(("a", a), ("a", a), "m")
    assert found.text == "a against a in m: intervals overlap in every layer."
    (found,) = short_tables.intervals_apart(("a", a), ("b", b), A)
    assert found.text.startswith("b against a: more anisotropic at layers 0 and 1")
    assert "; less anisotropic at layers 2 and 3, most" in found.text
    words = "b against a in m: no verdict, as there is {}."
    bare = records(row("m", 0, 0.5))
    (found,) = short_tables.intervals_apart(("a", a), ("b", bare), "m")
    assert found.text == words.format("no interval")
    (found,) = short_tables.intervals_apart(("a", of((0, 1), stack="s")), ("b", b), "m")
    assert found.text == words.format("no layer in common")


@pytest.mark.parametrize(
    ("metric", "tokens", "text"),
    [
        ("m", "x", "a token policy of m in b; got 'x'. Cure: use all or content"),
        ("w", "all", "one value of w; got 'w'. Cure: name w.x or w.y"),
        ("h", "all", "a metric with one value for each layer; got h, which is of single heads, dimensions or subsets."
         " Cure: read its values in the records of b"),
        ("driftt", "all", "a metric of b; got 'driftt'. Cure: did you mean drift"),
        ("s", "all", "runs of one model each; got the series b. Cure: name the folders of its checkpoints"),
    ],
)  # fmt: skip
def test_why_a_run_has_no_rows_of_a_metric(metric, tokens, text):
    rows = [
        row("m", 1, 0.5, token_policy="content"),
        row("m", 1, 0.5),
        row("w.y", 1, 0.5),
        row("w.x", 1, 0.5),
        row("wide", 1, 0.5),
        row("h", 1, 0.5, head=0),
        row("drift", 1, 0.5),
        *(row("s", 1, 0.5, step=i) for i in (1, 2)),
    ]
    with pytest.raises(UsageError) as fault:
        short_tables._rows_of(records(*rows), "b", metric, tokens)
    assert str(fault.value).startswith(f"expected {text}")


def test_the_top_of_a_curve_is_its_highest_value():
    rows = records(row(A, 0, 0.5, 0.45, 0.6), row(A, 1, 0.55, 0.3, 0.9))
    (depth,) = rules.judge_stacks(rows)
    assert depth.top.layer == 1
    assert depth.at(depth.top, A).value == 0.55
    assert depth.at(depth.top, A, "x") is None
    assert np.isnan(rules.judge_stacks(records(row(A, 0, 0.5)))[0].top.low)
