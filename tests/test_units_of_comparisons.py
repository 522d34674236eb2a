"""Comparisons of runs, whole: values, tables, sentences, cautions and conditions, on a few records of each run."""

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from anisoscope.errors import MeasureError, OutputError, UsageError
from anisoscope.renamed import METRICS
from anisoscope.runs import comparison, differences
from anisoscope.runs.differences import KEYS, Difference, KeptRun
from anisoscope.store import as_records

NAN = float("nan")


def row(metric, layer=1, value=0.5, spread=0.25, **more):
    found = {"metric": metric, "stack": "encoder", "kind": "self", "layer": layer}
    found |= {"site": "hidden", "value": value, "low": value - spread}
    return found | {"high": value + 2 * spread, "n_vectors": 9, "n_units": 4} | more


def run(name, *rows, replicates=True, units="u", **manifest):
    """A run whose replicates are those values; without an interval it is never clear."""
    kept = as_records(pd.DataFrame(rows))
    left_out = np.repeat(kept["value"].to_numpy(dtype=float)[:, None], 4, axis=1)
    return KeptRun(name, kept, left_out if replicates else None, units, manifest)


def different(layer, value, spread=0.01, *, first=0.0, **where):
    place = dict.fromkeys(KEYS) | {"stack": "encoder", "site": "hidden"}
    place |= {"metric": "m", "layer": layer} | where
    ends = (value - spread, value + 2 * spread)
    return Difference(place, layer, first, first + value, value, *ends, True)


A, B = run("a", row("m")), run("b", row("m"))


def sentences(*found, metric="m", first=A, second=B):
    return [each.text for each in comparison.differs(first, second, found, metric)]


# ---- what is compared ------------------------------------------------------------------------------------------------


def policies(shift=0.0):
    rows = [
        row("x.y", layer, value + shift, head=head, token_policy=policy)
        for layer, head, policy, value in (
            (1, 0, "all", 0.1),
            (1, 1, "all", 0.2),
            (2, 0, "all", 0.3),
            (1, 0, "content", 0.6),
            (1, 1, "content", 0.8),
        )
    ]
    rows += [
        row("w", 1, times * shift, head=0, token_policy=policy)
        for policy, times in (("all", 5), ("content", 1))
    ]
    return [*rows, row("other", 1, 0.5 + shift), row("z", 1, shift, head=0)]


def test_a_comparison_of_heads_under_a_policy_is_of_those_alone():
    runs = [run(name, *policies(i / 8)) for i, name in enumerate("abc")]
    found = comparison.compare(runs, "x.y", tokens="content", heads=True)
    assert (found.metric, found.tokens, found.heads) == ("x.y", "content", True)
    assert found.names == ["a", "b", "c"]
    values = found.values
    assert values["run"].tolist() == [*"aabbcc"]
    assert values["head"].tolist() == [0, 1] * 3
    assert values["value"].tolist() == pytest.approx(
        [0.6, 0.8, 0.725, 0.925, 0.85, 1.05]
    )
    table = found.table
    assert [*table.columns] == ["run", "against", *KEYS, *differences.OF_DIFFERENCES]
    assert table["difference"].tolist() == pytest.approx([0.125, 0.125, 0.25, 0.25])
    assert table["run"].tolist() == [*"bbcc"]
    assert table["against"].tolist() == [*"aaaa"]
    # Of another metric too, heads and policy are those of the comparison.
    ((name, beyond),) = found.judge("z > .2")
    assert name == "c" and [one.where["head"] for one in beyond] == [0]
    assert found.judge("w > .6") == []
    assert len(dataclasses.replace(found, tokens="all").judge("w > .6")) == 2
    with pytest.raises(UsageError, match="a metric of single attention heads"):
        found.judge("other > 0")
    layers = comparison.compare(runs, "x.y", tokens="content")
    assert layers.heads is False
    assert layers.values["value"].tolist() == pytest.approx([0.7, 0.825, 0.95])
    of_all = comparison.compare(runs, "x.y")
    assert of_all.tokens == "all"
    assert of_all.values["value"].tolist()[:2] == pytest.approx([0.15, 0.3])
    every = comparison.compare(runs[:2], "x.y", tokens=None)
    assert len(every.table) == 3 and every.tokens is None


def test_components_are_chosen_from_those_of_any_run():
    def made(name, *components):
        rows = [row("m", 1, 0.1, component=each) for each in components]
        return run(name, *rows)

    runs = [made("a", "u", "v", "w"), made("b", "u"), made("c", "v", "w")]
    found = comparison.compare(runs, "m")
    assert found.components == ()
    chosen = found.of_components(["u", "w"])
    assert [len(own) for own in chosen.differences] == [1, 1]
    assert chosen.values["component"].tolist() == ["u", "w", "u", "w"]
    texts = [each.text for each in chosen.findings]
    assert [text.partition(":")[0] for text in texts] == [
        "b against a in m",
        "c against a in m",
    ]
    assert (chosen.metric, chosen.runs, chosen.notes) == ("m", found.runs, found.notes)
    with pytest.raises(UsageError) as fault:
        found.of_components(["u", "vv"])
    assert str(fault.value).startswith("expected a component of m; got 'vv'")
    assert "did you mean v" in str(fault.value)


def test_conditions_are_judged_run_by_run():
    runs = [
        run(n, row("m", 1, x), row("o", 1, -x))
        for n, x in zip("abc", (0, 1, -1), strict=True)
    ]
    found = comparison.compare(runs, "m")
    assert [name for name, _ in found.judge("m > 0")] == ["b"]
    assert [name for name, _ in found.judge("m < 0")] == ["c"]
    assert [name for name, _ in found.judge("o > 0")] == ["c"]
    assert found.judge("m > 5") == []
    ((_, beyond),) = found.judge("m > 0")
    assert [one.value for one in beyond] == [1]


def test_intervals_of_values_are_compared_only_if_no_difference_has_one():
    rules = []
    for replicates in ((True, True), (True, False), (False, False)):
        runs = [
            run(name, row("m", 1, value, 0.01), replicates=kept)
            for name, value, kept in zip("ab", (0.1, 0.9), replicates, strict=True)
        ]
        (found,) = comparison.compare(runs, "m").findings
        rules.append(found.rule)
    assert rules == ["differs", "intervals_apart", "intervals_apart"]
    left_out = np.array([[0.5] * 4, [NAN] * 4])
    rows = as_records(pd.DataFrame([row("m", 1), row("m", 2)]))
    runs = [KeptRun(name, rows, left_out, "u") for name in "ab"]
    (found,) = comparison.compare(runs, "m").findings
    assert found.rule == "differs", "one of two has an interval"


def test_gaps_are_those_of_whole_layers_under_the_policy():
    def made(name, values):
        (own, other), of_head = values, 0.5
        rows = [
            row("m", 1, own, 0.01, token_policy="all"),
            row("m", 1, other, 0.01, token_policy="content"),
            row("m", 1, of_head, 0.01, head=0, token_policy="all"),
            row("m", 1, of_head, 0.01, component="x", token_policy="all"),
            row("free", 1, own, 0.01),
        ]
        return run(name, *rows, replicates=False)

    a, b = made("a", (0.1, 0.8)), made("b", (0.9, 0.2))

    def gaps(metric, tokens, *pair):
        return [each.text for each in comparison._tell_gaps(*pair, metric, tokens)]

    assert gaps("m", "all", a, b) == [
        "b against a in m: higher at layer 1 (.900 [.890, .920] against .100 [.090, .120]: .800 apart,"
        " at least .770)."
    ]
    assert "lower at layer 1 (.200 [" in gaps("m", "content", a, b)[0]
    assert "higher at layer 1 (.900 [" in gaps("free", "all", a, b)[0]
    assert gaps("m", "other", a, b) == [] == gaps("x", None, a, b)


# ---- sentences -------------------------------------------------------------------------------------------------------


def test_a_difference_has_one_sentence_with_both_directions():
    found = [
        different(1, 0.25, first=0.5),
        different(2, 0.5, first=0.25),
        different(3, -0.005),
        different(4, -0.125, first=0.75),
        different(5, -0.0625, first=0.5),
    ]
    higher = "higher at layers 1 and 2, most at layer 2 (.750 against .250: +.500 [+.490, +.520], paired)"
    lower = "lower from layer 4 on, most at layer 4 (.625 against .750: −.125 [−.135, −.105], paired)"
    assert sentences(*found) == [
        f"b against a in m: {higher}; {lower}; no clear difference at layer 3."
    ]
    unpaired = run("c", row("m"), units="other")
    (text,) = sentences(*found, metric="mean_cosine", second=unpaired)
    assert text.startswith("c against a: more anisotropic at layers 1 and 2, most at")
    assert "; less anisotropic from layer 4 on, most at layer 4 (" in text
    assert "paired" not in text
    (found,) = comparison.differs(A, B, found, "m")
    assert found.rule == "differs"
    assert [number["layer"] for number in found.numbers] == [2, 4]
    assert [number["value"] for number in found.numbers] == [0.5, -0.125]
    assert sentences(different(3, 0.5), different(4, 0.0)) == [
        "b against a in m: higher at layer 3 (.500 against .000: +.500 [+.490, +.520], paired);"
        " no clear difference at layer 4."
    ]
    assert sentences() == [
        "b against a in m: no verdict, as there is no layer in common."
    ]


def test_heads_of_a_difference_are_counted():
    found = [
        different(layer, value, head=head)
        for layer, head, value in (
            *((1, 3, 0.25), (1, 4, 0.5), (2, 3, -0.25), (2, 4, 0.0), (2, 5, 0.0)),
        )
    ]
    assert sentences(*found) == [
        "b against a in m: higher in 2 heads of 5, most in head 4 of layer 1 (.500 against .000: +.500 [+.490,"
        " +.520], paired); lower in 1 head of 5, most in head 3 of layer 2 (−.250 against .000: −.250 [−.260,"
        " −.230], paired); no clear difference in 2 heads."
    ]


def test_values_of_the_whole_model_have_no_layer():
    for missing in (None, NAN, pd.NA):
        found = different(missing, 0.5)
        assert sentences(found) == [
            "b against a in m: higher at the whole model (.500 against .000: +.500 [+.490, +.520], paired)."
        ], missing
        assert comparison.describe_met("m > 0", "b", [found]) == (
            "m > 0 is met by ‘b’: +.500 [+.490, +.520] at the whole model"
        )
        assert [*comparison._warn_of_depth([found, different(3, 0.5)])] == []


def test_a_missing_component_is_one_group_whatever_it_is():
    found = [different(i, 0.5, component=x) for i, x in enumerate((None, NAN, pd.NA))]
    assert len(sentences(*found)) == 1
    found = [different(1, 0.5, component="x"), different(2, 0.5, component="y")]
    assert [text.partition(": ")[0] for text in sentences(*found)] == [
        "b against a in m (x)",
        "b against a in m (y)",
    ]
    both = [different(1, 0.5, stack=name) for name in ("encoder", "decoder")]
    assert [text.partition(": ")[0] for text in sentences(*both)] == [
        "Encoder",
        "Decoder",
    ]


def test_a_line_on_a_condition_names_the_largest_of_those_beyond_it():
    found = [different(1, -0.25), different(2, -0.75), different(3, -0.5)]
    assert comparison.describe_met("m < −.1", "run", found) == (
        "m < −.1 is met by ‘run’: −.750 [−.760, −.730] at layer 2 and 2 more"
    )
    assert comparison.describe_met("m < −.1", "run", found[:1]) == (
        "m < −.1 is met by ‘run’: −.250 [−.260, −.230] at layer 1"
    )
    final = different(3, 0.5, site="final")
    assert comparison.describe_met("m > 0", "run", [final]).endswith(" at the final norm")  # fmt: skip


def test_numbers_behind_a_difference_are_plain():
    one = different(np.int64(2), np.float64(0.5), head=pd.NA, component="x")
    found = comparison._to_plain_dict(one)
    assert json.loads(json.dumps(found)) == {
        "metric": "m",
        "stack": "encoder",
        "layer": 2,
        "head": None,
        "site": "hidden",
        "component": "x",
        "first": 0.0,
        "second": 0.5,
        "value": 0.5,
        "low": 0.49,
        "high": 0.52,
    }


# ---- cautions --------------------------------------------------------------------------------------------------------

PAIRED = "Paired by unit: both runs measured the same units."


def cautions(ours, theirs):
    a, b = run("a", row("m"), **ours), run("b", row("m"), **theirs)
    found = differences.compare_runs(a, b, "m")
    pairing, *others = comparison.list_cautions(a, b, found)
    assert pairing == PAIRED
    return others


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("flatten", "Maps are flattened otherwise"),
        ("at", "Another token stands for a sequence"),
        ("seed", "Other vectors were sampled (--seed)"),
        ("sample", "Samples of other sizes (--sample)"),
    ],
)
def test_settings_that_differ_have_a_caution_each(name, words):
    def of(value):
        return {"settings": {"settings": {name: value, "rest": str(value)}}}

    assert cautions(of(1000), of(None)) == [f"{words} (a: 1,000; b: none)."]
    assert cautions(of("x"), of("x")) == []
    old = {"settings": {"settings": {}}}
    assert cautions(of(1000), old) == [] == cautions(old, of(1000))


def test_cautions_go_from_the_coarsest_cause_to_the_finest():
    def of(name, fingerprint, number):
        corpus = {"name": name, "fingerprint": fingerprint, "max_length": 8}
        corpus |= {"limit": number, "split": str(number), "n_units": number}
        return {"corpus": corpus}

    assert cautions(of("c", "f", 1), of("d", "f", 2)) == [
        "Another corpus (a: c; b: d)."
    ]
    assert cautions(of("c", "f", 1), of("c", "g", 2)) == [
        "Not the same part or version of the corpus c."
    ]
    assert cautions(of("c", "f", 1), of("c", "f", 2)) == [
        "Other --limit (a: 1; b: 2).",
        "Other --split (a: 1; b: 2).",
        "Other numbers of units (a: 1; b: 2).",
    ]
    # Manifests of old hold the name of the corpus alone.
    assert cautions({"corpus": "c"}, {"corpus": "d"}) == [
        "Another corpus (a: c; b: d)."
    ]
    assert cautions({"corpus": "c"}, {"corpus": "c"}) == []
    assert cautions({"corpus": "c"}, {}) == ["Another corpus (a: c; b: none)."]


def test_other_tokens_are_explained_by_what_the_user_chose():
    def of(plan, length=8, tokens=None, fingerprint="f", **settings):
        corpus = {"name": "c", "fingerprint": fingerprint, "max_length": length}
        return {
            "corpus": corpus,
            "plan": plan,
            "settings": settings,
            "tokens_hash": tokens,
        }

    words = "The same text as other tokens"
    assert cautions(of("p"), of("q", 1024, documents="line", sequences=2000)) == [
        f"{words} (windows of 8 and 1,024 tokens, --documents none and line and --sequences none and 2,000)."
    ]
    assert cautions(of("p", batch_tokens=1), of("q", batch_tokens=2000)) == [
        f"{words} (--batch-tokens 1 and 2,000)."
    ]
    assert cautions(of("p"), of("q")) == [f"{words} (another tokenizer)."]
    assert cautions(of("p"), of("p", 16)) == [] == cautions(of(None), of("q", 16))
    assert cautions(of("p"), of(None)) == []
    assert cautions(of("p", tokens="t"), of("q", 16, tokens="t")) == []
    assert len(cautions(of("p", tokens="t"), of("q", tokens="s"))) == 1
    assert len(cautions(of("p", tokens="t"), of("q"))) == 1
    # Clips and images are not cut into windows.
    assert cautions(of("p", None), of("q", 8)) == []
    assert cautions(of("p"), of("q", fingerprint="g")) == [
        "Not the same part or version of the corpus c."
    ]


def test_code_and_shards_have_cautions_of_both_runs():
    def of(version, sources):
        return {"code": {"version": version, "sources": sources}}

    versions = "Measured by other versions (a: 1; b: 2)."
    sources = "Measured by other code of the same version; if that matters, measure both again."
    assert cautions(of("1", "x"), of("2", "y")) == [versions]
    assert cautions(of("1", "x"), of("1", "y")) == [sources]
    for ours, theirs in (
        (of("1", "x"), of("1", "x")),
        (of("1", "x"), of("1", None)),
        (of("1", None), of("1", "x")),
        (of(None, None), of("1", "x")),
        ({"code": None}, of("1", "x")),
        (of("1", "x"), {}),
    ):
        assert cautions(ours, theirs) == []
    shards = [{"settings": {"shard": [i, 4]}} for i in (0, 3)]
    assert cautions(*shards) == [
        f"{name} is shard {i} of 4; merge the shards first."
        for name, i in (("a", 1), ("b", 4))
    ]


def test_dtypes_layers_and_stacks_come_last():
    short = [row("m", i) for i in (0, 2)]
    long = [row("m", i, stack="decoder") for i in (0, 3)]
    a, b = run("a", *short, dtype="float32"), run("b", *long, dtype="float64")
    found = differences.compare_runs(a, b, "m")
    assert comparison.list_cautions(a, b, found) == [
        PAIRED,
        "Another dtype (a: float32; b: float64).",
        "Layers are matched by relative depth (2 and 3 layers).",
        "Stacks of other kinds (a: encoder; b: decoder).",
    ]
    assert comparison.list_cautions(a, b)[-1] == "No layer in common."
    two = run("c", row("m"), row("m", stack="x"))
    other = run("d", row("m"), row("m", stack="y"))
    found = differences.compare_runs(two, other, "m")
    assert comparison.list_cautions(two, other, found) == [PAIRED]


def test_runs_of_other_numbers_of_groups_are_not_paired():
    def of(rows, groups):
        return KeptRun("a", A.records, np.zeros((rows, groups)), "u")

    assert differences.are_paired(of(2, 4), of(3, 4))
    assert not differences.are_paired(of(2, 4), of(2, 5))
    assert not differences.are_paired(of(2, 4), run("b", row("m"), replicates=False))


def test_what_cannot_be_compared_is_refused_with_its_cure():
    rows = [row("m", token_policy=name) for name in ("content", "all")]
    kept = run("r", *rows, row("h", head=0), row("s", step=1), row("s", step=2))

    def refused(metric, **how):
        with pytest.raises(UsageError) as fault:
            differences.compare_runs(kept, kept, metric, **how)
        return str(fault.value)

    assert refused("m", tokens="none") == (
        "expected a token policy of m in r; got 'none'. Cure: use all or content"
    )
    assert refused("m", heads=True) == (
        "expected a metric of single attention heads with --heads; got m, which is of whole layers."
        " Cure: leave --heads out"
    )
    assert refused("s") == (
        "expected runs of one model each; got the series r. Cure: name the folders of its checkpoints"
    )
    assert len(differences.compare_runs(kept, kept, "h", tokens="none")) == 1
    mixed = run("r", rows[0], row("m", 2, token_policy=None), row("m", 3, head=0))
    found = differences.compare_runs(mixed, mixed, "m", tokens="content")
    assert [one.where["layer"] for one in found] == [1, 2]


# ---- places ----------------------------------------------------------------------------------------------------------


def test_values_meet_those_of_the_same_place():
    places = [
        *({"token_policy": "all"}, {"token_policy": "content"}, {"kind": "cross"}),
        *({"site": "final"}, {"stack": "decoder"}, {"component": "x"}),
        *({"stack": "ab", "site": "c"}, {"stack": "a", "site": "bc"}),
    ]
    rows = [row("m", 1, i, **place) for i, place in enumerate(places)]
    mirrored = [each | {"value": each["value"] + 10} for each in reversed(rows)]
    found = differences.compare_runs(run("a", *rows), run("b", *mirrored), "m")
    assert len(found) == len(places)
    assert {one.value for one in found} == {10}
    for one, place in zip(found, places, strict=True):
        assert {name: one.where[name] for name in place} == place
        assert [*one.where] == KEYS


def test_heads_come_in_the_order_of_the_first_run():
    rows = [row("m", layer, head=i) for layer in (1, 2) for i in (0, 1)]
    a, b = run("a", *rows), run("b", *reversed(rows))
    found = differences.compare_runs(a, b, "m", heads=True)
    places = [(one.where["layer"], one.where["head"]) for one in found]
    assert places == [(1, 0), (1, 1), (2, 0), (2, 1)]


def test_layers_of_either_run_may_have_been_chosen():
    layers = [[row("m", i) for i in numbers] for numbers in ((0, 2), (0, 2, 4))]
    chosen = {"settings": {"settings": {"layers": [0, 2]}}}

    def met(ours, theirs):
        pair = run("a", *layers[0], **ours), run("b", *layers[1], **theirs)
        return [one.layer_other for one in differences.compare_runs(*pair, "m")]

    assert met({}, {}) == [0, 4]
    assert met(chosen, {}) == met({}, chosen) == [0, 2]
    # A final norm has the number of the last block, and meets the other's all the same.
    norms = [run("a", row("m", i, site="final"), **chosen) for i in (2, 7)]
    (one,) = differences.compare_runs(*norms, "m")
    assert (one.where["layer"], one.layer_other) == (2, 7)


def test_a_difference_holds_what_each_run_had():
    ours, theirs = row("m", 2, 0.25, 0.125), row("m", 4, 1.0, 0.5)
    left_out = np.array([[0.25, 0.5, 0.0]]), np.array([[1.25, 0.75, 1.0]])
    runs = [
        KeptRun(name, as_records(pd.DataFrame([x])), kept, units)
        for name, x, kept, units in zip(
            "ab", (ours, theirs), left_out, "uv", strict=True
        )
    ]
    (one,) = differences.compare_runs(*runs, "m")
    half = differences.half_width_unpaired(left_out[0][0], left_out[1][0])
    assert half > 0 and one.paired is False
    assert (one.first, one.second, one.value) == (0.25, 1.0, 0.75)
    assert (one.low, one.high) == (0.75 - half, 0.75 + half)
    assert one.first_ends == (0.125, 0.5) and one.second_ends == (0.5, 2.0)
    assert (one.where["layer"], one.layer_other) == (2, 4)
    (found,) = differences.tabulate_differences([one]).to_dict("records")
    assert {name: found[name] for name in differences.OF_DIFFERENCES} == {
        "layer_other": 4,
        "first": 0.25,
        "first_low": 0.125,
        "first_high": 0.5,
        "second": 1.0,
        "second_low": 0.5,
        "second_high": 2.0,
        "difference": 0.75,
        "low": one.low,
        "high": one.high,
        "paired": False,
    }
    same = [KeptRun(each.name, each.records, each.replicates, "u") for each in runs]
    (one,) = differences.compare_runs(*same, "m")
    half = differences.half_width_paired(0.25, 1.0, left_out[0][0], left_out[1][0])
    assert one.paired is True and one.high == 0.75 + half
    # A mean over heads has the replicates of its own rows, wherever they are.
    rows = [row("z", 1), row("h", 1, 0.2, head=0), row("h", 1, 0.4, head=1)]
    kept = np.array([[9.0, -9.0, 3.0], [0.1, 0.2, 0.3], [0.3, 0.4, 0.5]])
    wide = [KeptRun(n, as_records(pd.DataFrame(rows)), k * kept, "u") for n, k in (("a", 1), ("b", 2))]  # fmt: skip
    (one,) = differences.compare_runs(*wide, "h")
    half = differences.half_width_paired(0.3, 0.3, *(k * np.array([0.2, 0.3, 0.4]) for k in (1, 2)))  # fmt: skip
    assert one.high == pytest.approx(half)


def test_what_is_missing_in_one_run_alone_is_its_own_value_there():
    ours, theirs = np.array([0.5, NAN, NAN, 0.75]), np.array([1.0, 2.0, NAN, 1.5])
    # Differences without each group: .5, 2 − .25 (the value), none, .75.
    found = differences.half_width_paired(0.25, 9.0, ours, theirs)
    error, groups = differences._estimate_error(np.array([0.5, 1.75, 0.75]))
    assert groups == 3
    assert found == pytest.approx(4.302652729911275 * error)
    swapped = differences.half_width_paired(9.0, 0.25, theirs, ours)
    assert swapped == pytest.approx(found)
    # Two groups of four are too few, on either side.
    few = np.array([0.5, 1.0, NAN, NAN])
    assert np.isnan(differences.half_width_paired(0.0, 0.0, few, few))
    for pair in ((few, theirs), (theirs, few)):
        assert np.isnan(differences.half_width_unpaired(*pair))


def test_the_error_of_three_groups():
    error, groups = differences._estimate_error(np.array([1.0, 2.0, 6.0]))
    assert groups == 3
    assert error == pytest.approx((2 / 3 * (4 + 1 + 9)) ** 0.5)
    error, groups = differences._estimate_error(np.array([1.0, 2.0]))
    assert groups == 2 and np.isnan(error)


# ---- runs on the disk ------------------------------------------------------------------------------------------------


def test_replicates_belong_to_the_rows_that_they_name(tmp_path):
    assert differences.read_replicates(tmp_path, 3) is None
    left_out = np.array([[0.1, 0.2, 0.3], [0.4, NAN, 0.6]])
    path = tmp_path / differences.NAME
    differences.write_replicates(path, np.array([3, 1]), left_out)
    found = differences.read_replicates(tmp_path, 5)
    assert found is not None and found.shape == (5, 3)
    assert found[[3, 1]] == pytest.approx(left_out, nan_ok=True)
    assert np.isnan(found[[0, 2, 4]]).all()
    with pytest.raises(OutputError) as fault:
        differences.read_replicates(tmp_path, 3)
    words = str(fault.value)
    assert words.startswith(
        f"expected the values from which the intervals of a run are computed; got {path} ("
    )
    assert words.endswith("measure it again with --overwrite")
    path.write_text("no table")
    with pytest.raises(OutputError):
        differences.read_replicates(tmp_path, 5)
    pd.DataFrame({"x": [1.0]}).to_parquet(path)
    with pytest.raises(OutputError):
        differences.read_replicates(tmp_path, 5)


def test_the_sample_of_a_run_is_a_file_of_its_folder(tmp_path):
    assert differences.find_sample(tmp_path) is None
    path = tmp_path / differences.SAMPLE
    path.mkdir()
    assert differences.find_sample(tmp_path) is None
    path.rmdir()
    path.write_text("x")
    assert differences.find_sample(tmp_path) == path


def test_a_run_keeps_what_it_is_made_of():
    frame = as_records(pd.DataFrame([row("m")]))
    left_out = np.zeros((1, 3))
    for shard, units in (([0, 2], "u, shard 1/2"), ([0, 1], "u"), (None, "u")):
        manifest = {"units": "u", "settings": {"shard": shard}}
        found = KeptRun.of("n", frame, manifest, left_out, {"x": 1})
        assert (found.name, found.units, found.sample) == ("n", units, {"x": 1})
        assert found.records is frame and found.manifest is manifest
        assert found.replicates is left_out
    assert KeptRun.of("n", frame, {"settings": {"shard": [0, 2]}}, None).units is None
    assert KeptRun.of("n", frame, {}, None).units is None


def test_runs_have_names_of_their_own():
    names = ["a", "a", "a (2)", "b", "a"]
    found = differences.with_own_names([run(name, row("m")) for name in names])
    assert [each.name for each in found] == ["a", "a (2)", "a (2) (3)", "b", "a (5)"]


def test_how_two_runs_are_paired_is_one_sentence():
    def made(name, units="u", replicates=True, corpus="c"):
        return run(name, row("m"), units=units, replicates=replicates, corpus={"name": corpus})  # fmt: skip

    a, explain = made("a"), differences.explain_pairing
    assert explain(a, made("b")) == PAIRED
    for corpus, words in (
        ("inputs", PAIRED),
        (
            "vectors",
            "Paired by row: the vectors of both runs are taken to be of the same units, in the same order.",
        ),
    ):
        assert explain(made("a", corpus=corpus), made("b", corpus=corpus)) == words
    none = "Not paired: {} kept no replicates, so differences have no interval."
    assert explain(a, made("b", replicates=False)) == none.format("b")
    assert explain(made("a", replicates=False), made("b")) == none.format("a")
    both = [made(name, replicates=False) for name in "ab"]
    assert explain(*both) == none.format("a and b")
    unknown = "Not paired: it is not known which units the runs measured."
    assert explain(a, made("b", None)) == unknown == explain(made("a", None), made("b"))
    assert explain(a, made("b", "v")) == (
        "Not paired: the runs measured different units; intervals are those of independent samples."
    )
    assert not differences.are_same_units(made("a", None), made("b", None))


def test_inputs_and_rows_are_known_by_their_content():
    def of(name="inputs", unit=None, groups=8, fingerprint="p"):
        plan = SimpleNamespace(fingerprint=fingerprint, unit=unit)
        how = SimpleNamespace(groups=groups, spectrum_groups=4, seed=0)
        return differences.identify_units({"name": name}, plan, how)

    assert of() == of() and of() != of(fingerprint="q") and of() != of(groups=9)
    rows = np.array([0, 1, 1])
    assert of("vectors", rows) == of("vectors", rows.astype(np.int32))
    assert of("vectors", rows) != of("vectors", rows[::-1])
    assert of("vectors", rows) != of("vectors", rows, groups=9)
    assert of("else") is None


# ---- metrics ---------------------------------------------------------------------------------------------------------


def test_metrics_are_found_by_any_of_their_names():
    kept = run("r", row("mean_cosine"), row("attention.entropy"), row("attentional"))
    assert differences.find_metric(kept, "A") == "mean_cosine"
    assert differences.find_metric(kept, "attention.entropy") == "attention.entropy"
    for old, new in METRICS.items():
        assert differences.find_metric(run("r", row(new)), old) == new
    with pytest.raises(UsageError) as fault:
        differences.find_metric(kept, "attention")
    assert str(fault.value) == (
        "expected one value of attention; got 'attention'. Cure: name attention.entropy"
    )
    with pytest.raises(UsageError) as fault:
        differences.find_metric(kept, "attentionall")
    assert str(fault.value).startswith(
        "expected a metric of r; got 'attentionall'. Cure: did you mean attentional"
    )


# ---- conditions ------------------------------------------------------------------------------------------------------

DEPTH = [
    different(3, 0.5, site="final"),
    different(0, 0.1),
    different(3, -0.4),
    different(1, 0.3),
]


@pytest.mark.parametrize(
    ("place", "chosen"),
    [
        ("first", [0.1]),
        ("last", [0.5]),
        ("max", [0.5]),
        ("min", [-0.4]),
        ("any", [0.1, 0.3, -0.4, 0.5]),
        ("3", [-0.4, 0.5]),
        ("1", [0.3]),
    ],
)
def test_what_a_condition_is_about(place, chosen):
    condition = differences.parse_condition(f"m.{place} > −9")
    met, beyond = condition.is_met(DEPTH)
    assert met and [one.value for one in beyond] == chosen


def test_a_condition_on_a_layer_that_is_not_there_names_those_that_are():
    with pytest.raises(UsageError) as fault:
        differences.parse_condition("m.7 > 0").is_met(DEPTH)
    assert str(fault.value) == (
        "expected a layer of both runs in 'm.7 > 0'; got 7. Cure: layers are 0, 1, 3, 3"
    )


def test_what_a_condition_cannot_judge():
    condition = differences.parse_condition(" m > 0 ")
    for found, came in (
        ([], "no layer in common"),
        ([different(1, NAN)], "no value that is defined in both"),
    ):
        with pytest.raises(MeasureError) as fault:
            condition.is_met(found)
        assert str(fault.value) == (
            f"expected runs that 'm > 0' can judge; got {came}. Cure: compare runs of the same stacks and metrics"
        )
    # What is undefined is passed over, also at the end.
    met, beyond = differences.parse_condition("m.last > 0").is_met(
        [different(1, 0.5), different(2, NAN)]
    )
    assert met and [one.where["layer"] for one in beyond] == [1]


@pytest.mark.parametrize(
    ("text", "met"),
    [("m > .4", True), ("m > .45", False), ("m < .8", True), ("m < .65", False)],
)
def test_a_condition_holds_for_the_whole_interval_or_for_a_bare_value(text, met):
    condition = differences.parse_condition(text)
    one = different(1, 0.5, 0.1)  # from .4 to .7
    assert condition.is_met([one])[0] == (met and text != "m > .4")
    bare = differences.replace(one, low=NAN, high=NAN)
    assert condition.is_met([bare])[0]
    assert not differences.parse_condition("m > .5").is_met([bare])[0]
    assert not differences.parse_condition("m < .5").is_met([bare])[0]


def test_parts_of_a_condition():
    for text, parts in {
        "A.last > +.02": ("mean_cosine", "last", ">", 0.02),
        "A<−1.5": ("mean_cosine", "any", "<", -1.5),
        "A < -1.5": ("mean_cosine", "any", "<", -1.5),
        " x.y.12 > 3 ": ("x.y", "12", ">", 3.0),
        "x.y > 3": ("x.y", "any", ">", 3.0),
        "x.y.min < .5": ("x.y", "min", "<", 0.5),
        "last > 1": ("last", "any", ">", 1.0),
    }.items():
        found = differences.parse_condition(text)
        assert (found.metric, found.where, found.sign, found.limit) == parts
        assert found.text == text.strip()
    with pytest.raises(UsageError) as fault:
        differences.parse_condition("A >= 3")
    assert str(fault.value) == (
        "expected a condition METRIC.PLACE > NUMBER; got 'A >= 3'. Cure: for example --fail-if 'A.last > +.02'"
    )
