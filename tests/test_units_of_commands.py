"""Small decisions of the command line: cells, headings, widths, notes and faults, each on a few values."""

import ast
import math
import os
import time
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from typed import invoke

from anisoscope.cli import (
    answers,
    comparing,
    config,
    extreme_tables,
    faults,
    measure_commands,
    printed_tables,
    reading,
    view,
    words,
)
from anisoscope.errors import UsageError
from anisoscope.runs.job import VectorColumns
from anisoscope.store import as_records

NAN = math.nan


def table(head, *rows):
    return view.Table(tuple(head), [list(row) for row in rows], pd.DataFrame())


# ---- cells and columns of a comparison -------------------------------------------------------------------------------


def row(**given):
    place = {"stack": "encoder", "kind": "self", "layer": 1, "head": None}
    place |= {"site": "hidden", "component": None, "run": "b", "layer_other": 1.0}
    values = {"first": 0.5, "first_low": 0.4, "first_high": 0.6}
    values |= {"second": 0.7, "second_low": 0.65, "second_high": 0.8}
    values |= {"difference": 0.2, "low": 0.1, "high": 0.3}
    return SimpleNamespace(**place | values | given)


def test_each_run_s_value_has_its_own_ends():
    assert (
        comparing._format_value(row(), "first", with_ends=True) == ".500 [.400, .600]"
    )
    assert (
        comparing._format_value(row(), "second", with_ends=True) == ".700 [.650, .800]"
    )
    assert comparing._format_value(row(), "second", with_ends=False) == ".700"
    assert comparing._format_other_run(row(), with_ends=True) == [
        ".700 [.650, .800]",
        "+.200 [+.100, +.300]",
    ]
    assert comparing._format_other_run(None, with_ends=True) == ["", ""]


@pytest.mark.parametrize(
    ("low", "high", "cell"),
    [(0.1, 0.3, ".700*"), (-0.3, -0.1, ".700*"), (-0.1, 0.3, ".700"), (0, 0.3, ".700")],
)
def test_a_star_says_that_an_interval_leaves_zero_out(low, high, cell):
    assert comparing._format_starred(row(low=low, high=high)) == cell
    assert comparing._format_starred(row(low=NAN, high=NAN)) == ".700"
    assert comparing._format_starred(None) == ""


def test_columns_that_are_alike_in_every_row_are_not_shown():
    keys = ["stack", "kind", "layer", "head", "site", "component"]

    def shown(*rows):
        frame = pd.DataFrame([vars(row(**given)) for given in rows])
        return comparing._choose_key_columns(frame, keys)

    assert shown({}, {}) == ["layer"]
    assert shown({"head": 0}, {"head": 1}) == ["layer", "head"]
    assert shown({"stack": "a"}, {"stack": "b"}) == ["stack", "layer"]
    assert shown({"component": "x"}, {"component": None}) == ["layer", "component"]
    assert shown({"site": "final"}, {"site": "hidden"}) == ["layer"]
    assert shown({"site": "query"}, {"site": "key"}) == ["layer", "site"]
    assert shown({"site": "query"}, {"site": "hidden"}) == ["layer"]
    place = ("encoder", "", "3", "", "final", "")
    assert comparing._name_place(place, keys, ["stack", "layer"]) == [
        "encoder",
        "final",
    ]
    place = ("encoder", "", "3", "2", "query", "")
    assert comparing._name_place(place, keys, ["layer", "head"]) == ["3", "2"]


def test_of_many_places_those_of_the_largest_differences_stay_in_order(monkeypatch):
    monkeypatch.setattr(comparing, "MOST_ROWS", 2)
    rows = []
    for layer, differences in enumerate(((0.1, -0.2), (0.0, -0.9), (0.3, 0.3), (0, 0))):
        for run, difference in zip("bc", differences, strict=True):
            rows.append(vars(row(layer=layer, run=run, difference=difference)))
    found = comparing._group_by_place(pd.DataFrame(rows), ["layer"])
    assert list(found) == [("1",), ("2",)]
    assert {run: each.difference for run, each in found["1",].items()} == {
        "b": 0.0,
        "c": -0.9,
    }
    monkeypatch.setattr(comparing, "MOST_ROWS", 4)
    whole = comparing._group_by_place(pd.DataFrame(rows), ["layer"])
    assert list(whole) == [("0",), ("1",), ("2",), ("3",)]


def test_a_comparison_is_turned_where_runs_are_many():
    values = [["a0", "b0"], ["a1", "b1"], ["a2", "b2"], ["a3", "b3"]]
    places = ["0", "1", "2", "3"]
    head, rows = comparing._turn_table(["A", "B"], places, values, 100)
    assert head == ["run", *places]
    assert rows == [["A", "a0", "a1", "a2", "a3"], ["B", "b0", "b1", "b2", "b3"]]
    # `run` and two places of two letters: 3 + 2 · (2 + 2).
    head, rows = comparing._turn_table(["A", "B"], places, values, 11)
    assert (head, rows[1]) == (["run", "1", "3"], ["B", "b1", "b3"])
    head, rows = comparing._turn_table(["A", "B"], places, values, 1)
    assert head == ["run", "3"]


def test_the_width_of_a_table_has_two_blanks_between_columns():
    assert comparing._count_width(["ab", "c"], [["a", "defg"], ["", ""]]) == 2 + 2 + 4
    assert view._sum_widths([2, 4]) == 8 and view._sum_widths([5]) == 5
    cells = {NAN: "", None: "", 3.0: "3", 0.25: "0.25", 7: "7", "x": "x"}
    assert {value: comparing._format_cell(value) for value in cells} == cells


def test_options_that_do_not_go_with_across_are_named():
    comparing._refuse_with_across(
        {"--output": None, "--heads": False, "--component": ()}
    )
    with pytest.raises(UsageError, match="--heads too"):
        comparing._refuse_with_across({"--output": None, "--heads": True})


# ---- cures -----------------------------------------------------------------------------------------------------------


def trials(chosen=None, text="", *names):
    fits = [SimpleNamespace(fit=SimpleNamespace(name=name)) for name in names]
    picked = next((each for each in fits if each.fit.name == chosen), None)
    return SimpleNamespace(chosen=picked, text=text, trials=fits)


def test_which_cure_is_written():
    both = ["centre", "whiten"]
    assert answers._choose_cure(trials("whiten", "", *both), both) == "whiten"
    assert answers._choose_cure(trials(None, "", "centre"), ["centre"]) == "centre"
    assert answers._choose_cure(trials("whiten", "", *both), ["centre"]) == "centre"
    with pytest.raises(UsageError, match="got none that works among those tried"):
        answers._choose_cure(trials(None, "None fits.", *both), both)
    with pytest.raises(UsageError, match="got vectors that need no cure"):
        answers._choose_cure(trials(None, "No cure is needed: …", *both), both)


def test_the_table_of_cures_has_scores_before_and_after():
    def estimate(value):
        return SimpleNamespace(value=value, low=value - 0.1, high=value + 0.1)

    def scores(after):
        names = ("A", "isoscore", "probe", "effective rank")
        return {
            name: SimpleNamespace(before=estimate(0.5 + i / 10), after=estimate(after))
            for i, name in enumerate(names)
        }

    def tried(name, after, harmed=(), isotropic=False):
        fit = SimpleNamespace(name=name)
        return SimpleNamespace(
            fit=fit, scores=scores(after), harmed=harmed, isotropic=isotropic
        )

    rows = [
        tried("centre", 0.2, isotropic=True),
        tried("whiten", 0.3, harmed=("probe", "pairs"), isotropic=True),
        tried("drop", 0.4),
    ]
    given = SimpleNamespace(trials=rows, chosen=rows[2], table=lambda: "records")
    found = answers._tabulate_cures(given)
    assert found.head == ("cure", "A", "probe", "") and found.records == "records"
    assert found.rows == [
        ["as it is", ".500 [.400, .600]", ".700 [.600, .800]", ""],
        ["centre", ".200 [.100, .300]", ".200 [.100, .300]", "isotropic"],
        ["whiten", ".300 [.200, .400]", ".300 [.200, .400]", "harms probe, pairs"],
        ["drop", ".400 [.300, .500]", ".400 [.300, .500]", "←"],
    ]
    given.chosen = rows[0]
    assert answers._tabulate_cures(given).rows[1][-1] == "isotropic ←"


def test_packages_are_listed_extra_by_extra():
    def package(name, installed):
        return SimpleNamespace(
            name=name, needed=f">{name}", installed=installed, status=f"is {name}"
        )

    extras = [
        SimpleNamespace(
            name="models", packages=[package("a", "1"), package("b", None)]
        ),
        SimpleNamespace(name="report", packages=[package("c", "3")]),
    ]
    found = answers._tabulate_packages(SimpleNamespace(extras=extras))
    assert found.rows == [
        ["models", "a", ">a", "1", "is a"],
        ["models", "b", ">b", "", "is b"],
        ["report", "c", ">c", "3", "is c"],
    ]


# ---- tables of a run -------------------------------------------------------------------------------------------------


def records(*rows):
    place = {"stack": "encoder", "kind": "self", "site": "hidden", "layer": 1}
    place |= {
        "token_policy": "all",
        "value": 0.5,
        "low": 0.4,
        "high": 0.6,
        "n_units": 9,
    }
    return as_records(pd.DataFrame([place | given for given in rows]))


def test_a_table_is_turned_by_metric_and_the_first_of_several_counts():
    made = records(
        {"metric": "b", "value": 0.1},
        {"metric": "a", "value": 0.2, "layer": 2},
        {"metric": "a", "value": 0.3},
        {"metric": "a", "value": 0.9},
        {"metric": "c", "value": 0.8},
    )
    found = printed_tables._pivot(made, ["layer"], {"a": "A", "b": "B", "none": "N"})
    assert found.head == ("layer", "A", "B")
    values = [[cell.partition(" ")[0] for cell in line] for line in found.rows]
    assert values == [["1", ".300", ".100"], ["2", ".200", ""]]
    by_stack = printed_tables._pivot(made, ["stack", "layer"], {"a": "A"}, "stack")
    assert by_stack.head == ("stack", "layer", "A")
    assert by_stack.rows[0][:2] == ["encoder", "1"]


def test_headings_of_one_metric_share_its_name():
    shorten = printed_tables._shorten_head
    head = ("layer", "floor.q95", "floor.mean")
    assert shorten(head, ["floor.q95", "floor.mean"]) == ("floor: layer", "q95", "mean")
    same = ("layer", "a_b.c", "a_b.d")
    assert shorten(same, ["a_b.c", "a_b.d"])[0] == "a b: layer"
    for names in (["floor.q95"], ["floor.q95", "drift"], ["floor.q95", "drift.x"]):
        assert shorten(("layer", *names), names) == ("layer", *names)
    assert shorten(("layer", "floor", "floor.x"), ["floor", "floor.x"])[0] == "layer"


def test_a_series_is_a_row_a_checkpoint():
    rows = []
    for seed, step in ((2, 10), (1, 10), (1, 2000)):
        for layer, policy in ((0, "all"), (1, "all"), (1, "content")):
            value = seed / 10 + layer / 100 + step / 1e5 + (policy != "all") / 2
            place = {"seed": seed, "step": step, "layer": layer, "token_policy": policy}
            rows.append({"metric": "mean_cosine", "value": value, **place})
            rows.append(
                {"metric": "mean_cosine", "component": "1", "value": 9, **place}
            )
            rows.append({"metric": "mean_cosine", "site": "final", "value": 9, **place})
    found = printed_tables.tabulate_series(records(*rows), "all")
    assert found.head == ("seed", "step", "A 0", "A 1")
    assert found.rows == [
        ["2", "10", ".200", ".210"],
        ["1", "10", ".100", ".110"],
        ["1", "2,000", ".120", ".130"],
    ]
    assert "place" not in found.records and len(found.records) == 6
    content = printed_tables.tabulate_series(records(*rows), "content")
    assert content.head == ("seed", "step", "A 1") and content.rows[0][-1] == ".710"
    heads = [
        {"metric": "attention.entropy", "head": head, "value": value, "kind": kind}
        | {"seed": 1, "step": 3, "stack": stack, "site": "attention"}
        for stack, value in (("encoder", 1.0), ("decoder", 3.0))
        for head, value in ((0, value), (1, value + 1))
        for kind in ("self", "cross")
    ]
    for each in heads:
        each["value"] += 5 * (each["kind"] == "cross")
    found = printed_tables.tabulate_series(records(*heads), "all")
    assert found.head == ("seed", "step", "H (nats) encoder 1", "H (nats) decoder 1")
    assert found.rows == [["1", "3", "1.500", "3.500"]]


def test_classes_are_told_in_tables_of_their_own():
    made = records(
        {"metric": "class_direction.auc", "value": 0.9},
        {"metric": "class_direction.auc", "component": "a", "value": 0.1},
        {"metric": "class_direction.auc", "site": "final", "value": 0.2},
        {"metric": "mean_cosine", "token_policy": "content", "value": 0.3},
        {"metric": "mean_cosine", "head": 1, "value": 0.31},
        {"metric": "mean_cosine", "value": 0.4},
        {"metric": "cls_entropy", "component": "row", "value": 0.6},
        {"metric": "cls_entropy", "component": "again", "value": 0.7},
        {"metric": "ablation.accuracy", "component": "uniform", "value": 0.8},
        {"metric": "ablation.accuracy", "component": "uniform", "layer": None},
        {"metric": "attribution.auprc", "component": "random", "layer": None},
        {"metric": "accuracy", "layer": None, "value": 0.95, "n_units": 1234},
        {"metric": "accuracy", "component": "a", "value": 0.5},
    )
    first, ablated, explained, whole = printed_tables.tabulate_classes(made)
    assert first.head == ("layer", "AUC", "A", "H of [CLS]")
    values = [cell.partition(" ")[0] for cell in first.rows[0]]
    assert values == ["1", ".900", ".400", ".600"] and len(first.rows) == 1
    assert ablated.head == ("attention replaced", "layer", "accuracy")
    assert [line[:2] for line in ablated.rows] == [["uniform", "1"], ["uniform", "all"]]
    assert explained.head == ("words explained by", "layer", "auprc")
    assert explained.rows[0][:2] == ["random", "all"]
    assert [line[0] for line in whole.rows] == ["accuracy"]
    assert whole.rows[0][-1] == "1,234" and whole.rows[0][1].startswith(".95")


def test_metrics_that_are_named_have_a_table_each(monkeypatch):
    monkeypatch.setattr(printed_tables, "MOST_COLUMNS", 2)
    made = records(
        {"metric": "drift", "value": 0.1},
        {"metric": "drift", "value": 0.2, "site": "final", "layer": 3},
        {"metric": "auc", "component": "a", "value": 0.3},
        {"metric": "auc", "component": "b", "value": 0.4},
        *({"metric": "many", "component": str(i)} for i in range(3)),
    )
    whole, parts = printed_tables.tabulate_named_metrics(made)
    assert whole.head == ("layer", "drift")
    assert [line[0] for line in whole.rows] == ["1", "final"]
    assert parts.head == ("auc", "a", "b")
    assert [cell.partition(" ")[0] for cell in parts.rows[0]] == ["1", ".300", ".400"]
    assert set(parts.records["metric"]) == {"auc"} and set(whole.records["metric"]) == {
        "drift"
    }
    both = records({"metric": "m"}, {"metric": "m", "stack": "decoder"})
    (of_stacks,) = printed_tables.tabulate_named_metrics(both)
    assert [line[0] for line in of_stacks.rows] == ["encoder 1", "decoder 1"]


def test_stages_of_queries_are_told_apart():
    stages = {"query.rotated": " (rotated)", "key.raw": "", "hidden": "", "value": ""}
    assert {site: printed_tables._name_stage(site) for site in stages} == stages
    rules = [SimpleNamespace(name="sink"), SimpleNamespace(name="one-hot")]
    line = SimpleNamespace(sink_heads=0, one_hot_heads=2)
    assert printed_tables._list_head_kinds(line, rules) == "2 one-hot"
    both = SimpleNamespace(sink_heads=3, one_hot_heads=1)
    assert printed_tables._list_head_kinds(both, rules) == "3 sink, 1 one-hot"


def test_columns_of_attention_by_what_is_shown():
    every = {
        "attention.entropy_normalised",
        "attention.row_similarity",
        "query_key.cosine",
    }

    def choose(**how):
        return list(printed_tables._choose_attention_columns(every, **how).values())

    assert choose(heads=False, wide=False) == ["entropy", "|cos q,k|"]
    assert choose(heads=False, wide=True) == ["entropy", "rows alike", "|cos q,k|"]
    assert choose(heads=True, wide=False) == ["entropy", "rows alike", "cos q,k"]
    value = SimpleNamespace(value=0.5, low=0.4, high=0.6, metric="attention.row_max")
    assert printed_tables._format_measured_or_dash(value, True) == ".500 [.400, .600]"
    assert printed_tables._format_measured_or_dash(value, False) == ".500"
    assert printed_tables._format_measured_or_dash(None, True) == "–"


def test_cells_of_extremes():
    line = {
        "position": 3,
        "token": 17,
        "dimension": 5,
        "largest": 0.25,
        "kurtosis": 4.0,
    }
    names = {"17": "the", "3": "wrong"}
    show = extreme_tables._format_activation
    assert show("position", line, names) == "the (3)"
    assert (
        show("position", line, {}) == "(3)" == show("position", {"position": 3}, names)
    )
    assert (
        show("dimension", line, names) == "5" and show("largest", line, names) == ".250"
    )
    low, high = SimpleNamespace(value=-3.14), SimpleNamespace(value=7.26)
    logits = {"smallest logit": low, "largest logit": high}
    assert extreme_tables._format_logit_range(logits) == "−3.1…7.3"
    assert extreme_tables._format_logit_range({"largest logit": high}) == "–…7.3"
    measured = dict.fromkeys(("sink rate", "mass on last", "longest key", "value norm"))
    assert extreme_tables._choose_sink_columns(measured, True) == [
        "sink rate",
        "mass on last",
        "value norm",
        "longest key",
    ]
    assert extreme_tables._choose_sink_columns(measured, False) == [
        "sink rate",
        "value norm",
    ]
    frame = pd.DataFrame({"stack": ["a", "a"], "kind": ["self", "cross"]})
    assert extreme_tables._choose_keys(frame, True) == ["kind", "layer", "head"]
    assert extreme_tables._choose_keys(frame[:1], False) == ["layer"]


def test_the_final_norm_is_named_in_the_table_of_activations():
    """It has the number of the last layer."""
    rows = [
        {"layer": layer, "site": site, "metric": "matrix_entropy", "value": 1.0}
        for layer, site in ((1, "hidden"), (2, "hidden"), (2, "final"))
    ]
    found = as_records(pd.DataFrame(rows).assign(stack="encoder"))
    table = extreme_tables._tabulate_activations(found, {})
    assert [row[0] for row in table.rows] == ["1", "2", "final"]


# ---- what is written -------------------------------------------------------------------------------------------------


def test_reasons_that_differ_in_the_name_alone_are_one():
    skipped = {
        "step-1": "step-1 is not there",
        "step-2": "another width",
        "step-3": "step-3 is not there",
    }
    assert measure_commands._describe_skipped(skipped) == [
        "skipped: step-1, step-3: step-1 is not there",
        "skipped: step-2: another width",
    ]


def test_json_has_every_digit_and_null_for_what_is_no_number():
    frame = pd.DataFrame({"x": [1 / 3, NAN, math.inf], "y": ["a", None, "b"]})
    made = view._to_json_records(view.Table(("x",), [], frame))
    assert made == [
        {"x": 1 / 3, "y": "a"},
        {"x": None, "y": None},
        {"x": None, "y": "b"},
    ]


def test_a_bar_in_a_cell_does_not_end_it():
    assert view._to_markdown(table(("a", "|b|"), ("1", "2"))) == (
        "| a | \\|b\\| |\n| --- | --- |\n| 1 | 2 |"
    )


def test_widths_of_columns():
    assert view._put_interval_below(".1 [.0, .2]") == ".1\n[.0, .2]"
    assert view._put_interval_below(".1") == ".1\n"
    rows = [[".1\n[.0, .2]", "some words"], [".3\n", "word"]]
    assert view._find_least_widths(["A", "of what"], rows) == [8, 5]
    assert view._find_body_widths(2, rows) == [8, 10]
    found = table(("A", "verdict"), (".1 [.0, .2]", "so"), (".3", "so"))
    assert view._find_interval_columns(found) == {0}
    assert view._find_unfolded_columns(found, 11 + 2 + 7 + 2) == {0, 1}
    assert view._find_unfolded_columns(found, 11 + 2 + 7 + 1) == {1}


def test_a_heading_is_folded_before_a_cell_and_no_word_is_cut():
    def choose(width, unfolded=frozenset()):
        head = ["a long heading", "other words"]
        return view._choose_widths(head, [["cell", "some more"]], {*unfolded}, width)

    assert choose(27) == [14, 11] and choose(26) == [13, 11]
    # The first heading has the longest way down to its longest word.
    assert choose(7 + 2 + 9) == [7, 9], "then the cells of the second stay whole"
    assert choose(7 + 2 + 5) == [7, 5] and choose(7 + 2 + 4) is None
    assert choose(14 + 2 + 4, {0}) is None
    assert choose(14 + 2 + 5, {0}) == [14, 5]


def test_lines_are_wrapped_and_paths_are_not(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(view, "count_columns", lambda _: 10)
    path = view.GLUE.join(("a", "path", "of", "words"))
    view.echo_wrapped(f"one two three\n{path} end", indent="  ")
    assert capsys.readouterr().out.splitlines() == [
        "one two",
        "  three",
        "a path of words",
        "  end",
    ]
    view.echo_wrapped("to the other", err=True)
    assert capsys.readouterr().err == "to the\nother\n"
    monkeypatch.chdir(tmp_path)
    assert view.format_path(tmp_path / "a b") == f"a{view.GLUE}b"
    assert view.format_path(tmp_path / "a b", typed=True) == f"'a{view.GLUE}b'"
    assert view.format_path(Path("/else/where")) == "/else/where"


def test_typed_options_go_before_those_of_a_file():
    @dataclass
    class Argument:
        name: str
        names: tuple
        tokens: list

    def argument(*names, values=()):
        tokens = [SimpleNamespace(value=value) for value in values]
        return Argument(names[0], names, tokens)

    given = [
        argument("--batch-tokens", "-b", values=["1", "2"]),
        argument("--quiet", values=[""]),
        argument("--limit"),
        argument("--config", values=["first", "last"]),
    ]
    typed = config._list_typed_values(given)
    assert typed["batch_tokens"] == "1,2" and typed["quiet"] == "true"
    assert "limit" not in typed
    assert config._find_typed_path(given) == "last"
    assert config._find_typed_path(given[:3]) is None


# ---- explained texts -------------------------------------------------------------------------------------------------


def explanation(n_words=4):
    names = ["one", "two", "three", "four"][:n_words]
    of_words = pd.DataFrame(
        {
            "word": names,
            "erasure": [0.1, 0.4, -0.2, 0.3][:n_words],
            "attention": [0.5, 0.2, 0.2, 0.1][:n_words],
        }
    )
    erasures = pd.DataFrame(
        {
            "attribution": ["attention", "erasure"],
            "comprehensiveness": [0.3, 0.4],
            "comprehensiveness_low": [0.1, 0.15],
            "comprehensiveness_high": [0.2, 0.25],
            "sufficiency": [0.05, 0.06],
            "sufficiency_low": [0.01, 0.02],
            "sufficiency_high": [0.03, 0.04],
            "beyond_chance": [False, True],
        }
    )
    agreement = pd.DataFrame(
        [[1.0, 0.25], [0.25, 1.0]],
        index=["erasure", "attention"],
        columns=["erasure", "attention"],
    )
    return SimpleNamespace(
        words=of_words,
        erasures=erasures,
        agreement=agreement,
        found="positive",
        probability=0.875,
        notes=(),
    )


def test_an_explained_text_is_told_by_its_three_strongest_words():
    text = words.describe_explained_text(explanation())
    assert text == (
        "positive (.875). Its probability falls most without: two (.400), four (.300), "
        "one (.100). First words decide beyond chance by: erasure."
    )
    alone = explanation(1)
    assert words.describe_explained_text(alone).endswith("without: one (.100).")
    none = explanation()
    none.erasures["beyond_chance"] = False
    assert words.describe_explained_text(none).endswith("chance by: no attribution.")


def test_tables_of_an_explained_text():
    of_words, of_erasures, of_agreement = words.tabulate_explained_text(explanation())
    assert of_words.head == ("word", "erasure", "attention")
    assert of_words.rows[2] == ["three", "−.200", ".200"]
    assert of_erasures.rows == [
        ["attention", ".300", ".100 to .200", ".050", ".010 to .030"],
        ["erasure", ".400", ".150 to .250", ".060", ".020 to .040"],
    ]
    assert of_agreement.head == ("rank correlation", "erasure", "attention")
    assert of_agreement.rows == [
        ["erasure", "1.000", ".250"],
        ["attention", ".250", "1.000"],
    ]


def test_words_are_coloured_by_sign_and_strength():
    white = "255;255;255"
    assert f"[48;2;{white}m" in words._colour_word("x", 0.0)
    for strength, ground in ((1.0, "214;90;40"), (-1.0, "40;100;200")):
        assert f"[48;2;{ground}m" in words._colour_word("x", strength)
    half = [str(round((255 + part) / 2)) for part in words.FOR]
    assert f"[48;2;{';'.join(half)}m" in words._colour_word("x", 0.5)


@pytest.mark.parametrize("off", [None, "NO_COLOR", "TERM", "pipe"])
def test_coloured_lines_end_where_the_terminal_does(off, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    if off == "NO_COLOR":
        monkeypatch.setenv("NO_COLOR", "1")
    if off == "TERM":
        monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(
        words.sys.stdout, "isatty", lambda: off != "pipe", raising=False
    )
    # `attention` and two blanks are eleven; `one two three` with a blank behind each, fourteen.
    monkeypatch.setattr(
        words.shutil, "get_terminal_size", lambda: SimpleNamespace(columns=25)
    )
    lines = list(words.colour_words(explanation()))
    if off is not None:
        assert lines == []
        return
    plain = []
    for line in lines:
        for code in ("\x1b[0m", "\x1b[38;2;0;0;0m"):
            line = line.replace(code, "")
        while "\x1b[48" in line:
            before, _, rest = line.partition("\x1b[48")
            line = before + rest.partition("m")[2]
        plain.append(line)
    assert plain == [
        "erasure    one two three ",
        "           four ",
        "attention  one two three ",
        "           four ",
    ]


def test_strengths_are_those_of_the_words(monkeypatch):
    seen = []
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(words.sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(
        words, "_colour_word", lambda word, x: seen.append((word, x)) or word
    )
    list(words.colour_words(explanation()))
    strongest = max(seen[:4], key=lambda item: item[1])
    assert strongest[0] == "two" and np.sign(dict(seen[:4])["three"]) == -1
    assert len(seen) == 8


# ---- what a command does with what it was given ----------------------------------------------------------------------


@pytest.mark.parametrize(("works", "code"), [(True, 0), (False, 1)])
def test_a_script_can_ask_whether_the_installation_works(monkeypatch, works, code):
    found = SimpleNamespace(works=works)
    monkeypatch.setattr("anisoscope.doctor.diagnose", lambda **_: found)
    monkeypatch.setattr("anisoscope.doctor.render_diagnosis", lambda *_: "text")
    assert answers.doctor(quiet=True) == code


def test_cures_are_tried_and_fitted_on_the_columns_that_were_named(tmp_path):
    """The file has units and classes; the partner is turned, so that a cure of both sides is another."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(60, 4)) + np.array([3, 0, 0, 0])
    partner = draw.normal(size=(60, 4)) + np.array([0, 9, 0, 0])
    columns = {"vector": list(x), "who": np.arange(60) // 2, "what": np.arange(60) % 3}
    pd.DataFrame(columns).to_parquet(tmp_path / "x.parquet")
    np.save(tmp_path / "pairs.npy", partner)
    named = VectorColumns(columns="vector", unit_column="who", label_column="what")
    path = str(tmp_path / "x.parquet")
    read = answers._read_vectors_to_cure(path, named, None, None, None, True)
    np.testing.assert_allclose(read.vectors, x)
    assert len(set(read.units)) == 30
    assert len(set(read.labels)) == 3
    given = {"cures": "centre", "quiet": True, "pairs": tmp_path / "pairs.npy"}
    answers.cure(path, named, **given, write=tmp_path / "after.npy")
    both = np.vstack([x, partner]).mean(0)
    np.testing.assert_allclose(np.load(tmp_path / "after.npy"), x - both, atol=1e-5)


def test_layers_of_runs_say_the_most_tokens_that_both_sampled(monkeypatch, capsys):
    rows = [
        {"run": run, "metric": "cka", "n_vectors": n, "value": value}
        for run, n, value in (("b", 1200, 0.1), ("c", 3400, 0.2), ("d", 5, 0.3))
    ]
    monkeypatch.setattr(
        "anisoscope.runs.across.compare_layers", lambda *_: pd.DataFrame(rows)
    )
    shown = []
    monkeypatch.setattr(
        comparing, "tabulate_layers", lambda part, _width: list(part["value"])
    )
    monkeypatch.setattr(comparing, "show", lambda tables, _view: shown.append(tables))
    comparing._show_layers([], "cka", SimpleNamespace(format="table"), True)
    assert shown == [[[0.1], [0.2], [0.3]]]
    assert "3,400 tokens" in capsys.readouterr().err
    comparing._show_layers([], "cka", SimpleNamespace(format="csv"), True)
    assert capsys.readouterr().err == ""


def test_an_interrupted_comparison_counts_what_it_measured_itself(
    monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    hints = []

    def hint(count, command):
        hints.append((count, command))
        return nullcontext()

    def measure(names, *_):
        for i, old in enumerate((True, True, False)):
            path = tmp_path / "runs" / f"r{i}" / "manifest.json"
            path.parent.mkdir(parents=True)
            path.touch()
            changed = 1.0 if old else time.time() + 1
            os.utime(path, (changed, changed))
        return names

    monkeypatch.setattr(comparing, "interrupt_hint", hint)
    monkeypatch.setattr("anisoscope.runs.models_as_runs.open_or_measure", measure)
    assert comparing._open_or_measure(["a"], None, [], True) == ["a"]
    ((count, command),) = hints
    assert command == "the same command"
    assert count() == "runs holds 1 models measured by this command"
    os.utime(tmp_path / "runs" / "r2" / "manifest.json", (1.0, 1.0))
    assert count() == ""


def test_a_heading_of_two_lines_ends_where_the_others_do(monkeypatch):
    """In a list, whose rows have no heading, cells of a row begin in one line."""
    monkeypatch.setattr(view, "count_columns", lambda _: 14)
    two = ("a", "one two three")
    lines = view._to_text(table(two, ["x", "y"])).splitlines()
    assert [line[:1].strip() for line in lines if "one" in line or "three" in line] == [
        "",
        "a",
    ]
    folded = view._to_text(table(("", ""), ["x", "one two three"])).splitlines()
    (first,) = (line for line in folded if "one" in line)
    assert first.startswith("x")


def test_the_noise_floor_is_that_of_vectors_of_texts():
    def floor(stack, value, n_vectors=1000):
        place = {"stack": stack, "metric": "floor.cosine", "value": value}
        return place | {"n_vectors": n_vectors, "n_units": 100}

    def shown(*rows):
        found = printed_tables.tabulate_opt_in_metrics(records(*rows))
        return [value for each in found for value in each.records["value"]]

    assert shown(floor("encoder", 0.1), floor("sentence", 0.2)) == [0.2]
    assert shown(floor("encoder", 0.1)) == [0.1]
    assert shown(floor("encoder", 0.1, 3), floor("sentence", 0.2, 3)) == []


def test_options_of_a_file_that_are_typed_too_are_noted(monkeypatch):
    noted = []
    monkeypatch.setattr(config, "note_config", noted.append)
    monkeypatch.setattr(config, "Dict", lambda *_, **__: lambda *_: None)
    monkeypatch.setattr(config, "_find_typed_path", lambda _: "file.toml")
    monkeypatch.setattr(config, "read_config", lambda _: {"limit": 5, "seed": 1})
    typed = {"limit": "7", "quiet": "true"}
    monkeypatch.setattr(config, "_list_typed_values", lambda _: typed)
    config.apply_config(None, (), None)
    (found,) = noted
    assert found["options"] == {"limit": 5, "seed": 1}
    assert found["overrides"] == {"limit": "7"}


def test_an_option_that_does_not_exist_is_named_as_it_was_typed():
    def explain(keyword, value, source="cli"):
        argument = SimpleNamespace(parse=True, names=("--limit", "--batch-tokens"))
        hidden = SimpleNamespace(parse=False, names=("--limts",))
        token = SimpleNamespace(keyword=keyword, value=value, source=source)
        error = SimpleNamespace(token=token, argument_collection=[argument, hidden])
        return str(faults._explain_unknown_option(error, "anisoscope measure", "L"))

    for found in (explain("--limt", "20"), explain(None, "--limt=20")):
        assert "an option of anisoscope measure; got --limt" in found
        assert "--limit" in found and "--limts" not in found
    found = explain("[batch-token]", "20", "a.toml")
    assert "options of anisoscope measure in a.toml; got batch_token" in found
    assert "batch_tokens" in found


@pytest.mark.parametrize(
    ("seeds", "steps", "offered"),
    [((0,), (1, 2), True), ((0,), (1,), False), ((0, 1), (1, 2), False)],
)
def test_checkpoints_of_one_seed_can_be_compared_with_the_first(
    monkeypatch, capsys, tmp_path, seeds, steps, offered
):
    rows = [{"seed": seed, "step": step} for seed in seeds for step in steps]
    series = SimpleNamespace(
        records=as_records(pd.DataFrame(rows).assign(metric="drift", value=1.0)),
        skipped={},
        repeated=[("a", "b")],
        folder=tmp_path,
    )
    monkeypatch.setattr(printed_tables, "tabulate_series", lambda *_: None)
    monkeypatch.setattr("anisoscope.runs.findings.findings", lambda _: [])
    monkeypatch.setattr(measure_commands, "show", lambda *_: None)
    monkeypatch.setattr(measure_commands, "_announce_page", lambda *_: "a page")
    measure_commands._show_series(series, "all", None, True)
    said = " ".join(capsys.readouterr().err.split())
    assert ("every checkpoint against the first" in said) == offered
    assert "the same weights, bit for bit: a, b" in said


# ---- what each command line says and hands on ------------------------------------------------------------------------

USAGE = {
    "measure --limt 3": "an option of anisoscope measure; got --limt. Cure: did you mean --limit?",
    "measure --limit x": "a whole number for --limit; got 'x'. Cure: give one of at least 1, in digits",
    "measure --limit": "a value for --limit; got none. Cure: give one after --limit, or leave --limit out",
    "measure --limit 0": "--limit of at least 1; got 0. Cure: raise --limit",
    "mesure": "a command of anisoscope; got 'mesure'. Cure: did you mean measure?",
    "list": "what of anisoscope list; got none. Cure: add it: anisoscope list --help shows where",
    "list metric": f"one of {', '.join(reading.LISTS)} to list; got 'metric'. Cure: did you mean metrics?",
    "list models x": "fewer arguments after anisoscope list; got 'x'. Cure: anisoscope list --help lists all options",
    "measure --quiet=maybe": "true or false for --quiet; got 'maybe'. Cure: type --quiet alone",
    "measure --attention mode": "--attention among model, fused; got 'mode'. Cure: did you mean model?",
    "apply a b": "--output of anisoscope apply; got none. Cure: add it: anisoscope apply --help shows where",
    "push a": "repository of anisoscope push; got none. Cure: add it: anisoscope push --help shows where",
    "compare --tokens al a b": "--tokens among all, content, no-first; got 'al'. Cure: did you mean all?",
    "cure x --seed -1": "--seed of at least 0; got -1. Cure: raise --seed",
    "card x --badge": "a value for --badge; got none. Cure: give one after --badge, or leave --badge out",
    "merge a b": "--output of anisoscope merge; got none. Cure: add it: anisoscope merge --help shows where",
}


@pytest.mark.parametrize("line", USAGE)
def test_a_wrong_command_line_is_told_what_to_type(line):
    done = invoke(line)
    error = done.exception
    if not isinstance(error, UsageError):
        error = faults.explain_usage_error(error)
    assert str(error) == f"expected {USAGE[line]}"
    assert done.stdout == "" and error.exit_code == 2


ON_STDOUT = {
    # its one sentence in place of a table
    "measure_commands._show_run": 1,
    # of a dry run alone
    "measure_commands._measure_series": 1,
    "measure_commands._show_cost": 4,
    "measure_commands._show_reading": 1,
    "measure_commands._show_explained_text": 1,
    "publishing.card": 1,
    "view._show_text": 1,
}
"""How many wrapped lines of a function are results; all others are remarks."""


def test_remarks_go_to_stderr_and_results_to_stdout():
    """So that a program that reads stdout gets nothing else: each call of `echo_wrapped`, by the function it is in."""
    results = Counter()
    for path in sorted(Path(view.__file__).parent.glob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        for function in ast.walk(tree):
            if not isinstance(function, ast.FunctionDef):
                continue
            for call in ast.walk(function):
                is_call = isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
                if not is_call or call.func.id != "echo_wrapped":
                    continue
                given = {one.arg: one.value for one in call.keywords}
                is_remark = (
                    isinstance(given.get("err"), ast.Constant) and given["err"].value
                )
                if not is_remark:
                    results[f"{path.stem}.{function.name}"] += 1
    assert results == ON_STDOUT


def test_a_star_is_explained_only_where_there_is_one(monkeypatch, capsys):
    shown = []
    monkeypatch.setattr(comparing, "show", lambda *given: shown.append(given))
    compared = SimpleNamespace(names=["ours", "b"], findings=["f"], notes=["n"])
    starred = [table(("layer", "b"), ["1", ".5"]), table(("layer", "b"), ["2", ".7*"])]
    for tables, form, says in (
        (starred, "table", True),
        (starred[:1], "table", False),
        (starred, "json", False),
    ):
        monkeypatch.setattr(comparing, "tabulate_comparison", lambda *_, of=tables: of)
        comparing._show_differences(compared, ["x"], view.Format(format=form))
        given = capsys.readouterr()
        assert ("difference from ours does not contain 0" in given.err) == says
        assert given.out == ""
        assert shown[-1][0] is tables and shown[-1][2:] == (
            ["f"],
            ["n"],
            {"failed": ["x"]},
        )


def test_notes_of_a_comparison_are_in_its_json_or_on_stderr(
    monkeypatch, capsys, tmp_path
):
    monkeypatch.setattr(comparing, "_write_page", lambda *given: given[1] / "page.html")
    compared = SimpleNamespace(notes=["one", "two"])

    def said(form, output):
        comparing._print_notes_and_page(
            compared, view.Format(format=form), output, True
        )
        given = capsys.readouterr()
        assert given.out == ""
        return given.err.splitlines()

    notes = ["note: one", "note: two"]
    assert said("table", None) == [
        *notes,
        "for a page with figures: add --output FOLDER",
    ]
    assert said("csv", None) == notes and said("json", None) == []
    page = f"page: {tmp_path / 'page.html'} (open it in a browser)"
    assert said("table", tmp_path) == [*notes, page]
    assert said("json", tmp_path) == [page]


@pytest.mark.parametrize("met", [[], [("b", 1)], [("b", 1), ("c", 2)]])
def test_each_condition_that_is_met_is_told_and_decides_the_exit_code(
    monkeypatch, capsys, met
):
    from anisoscope.runs import comparison

    asked = []
    compared = SimpleNamespace(
        names=["a", "b", "c"], judge=lambda text: met if "0" in text else []
    )
    compared.of_components = lambda names: asked.append(names) or compared
    kept = lambda *given, **named: asked.append((given, named)) or compared  # noqa: E731
    monkeypatch.setattr(comparing, "_expand_series", lambda names: names)
    monkeypatch.setattr(
        comparing, "_open_or_measure", lambda *given: asked.append(given) or "opened"
    )
    monkeypatch.setattr(
        comparing, "_show_differences", lambda *given: asked.append(given[1])
    )
    monkeypatch.setattr(
        comparing, "_print_notes_and_page", lambda *given: asked.append(given[2])
    )
    monkeypatch.setattr(comparison, "compare", kept)
    monkeypatch.setattr(comparison, "describe_met", lambda *given: f"met {given}")
    code = comparing.compare(
        ("a", "b", "c"),
        "how",
        metric="drift",
        tokens="content",
        heads=True,
        component=("x,y",),
        fail_if=("A > 0", "norms.mean > 1"),
        output=Path("of"),
        quiet=True,
    )
    sentences = [f"met {('A > 0', name, beyond)}" for name, beyond in met]
    assert code == (8 if met else 0)
    assert asked[0] == (
        ("a", "b", "c"),
        "how",
        ["drift", "mean_cosine", "norms.mean"],
        True,
    )
    assert asked[1] == (("opened", "drift"), {"tokens": "content", "heads": True})
    assert asked[2:] == [("x", "y"), sentences, Path("of")]
    said = capsys.readouterr().err.splitlines()
    told = [f"fails: {sentence}" for sentence in sentences]
    assert said == (told or ["passes: A > 0, norms.mean > 1"])


def test_layers_of_runs_are_compared_without_all_else(monkeypatch):
    asked = []
    monkeypatch.setattr(comparing, "_expand_series", lambda names: names)
    monkeypatch.setattr(
        comparing, "_open_or_measure", lambda *given: asked.append(given) or "opened"
    )
    monkeypatch.setattr(comparing, "_show_layers", lambda *given: asked.append(given))
    code = comparing.compare(("a", "b"), "how", across="cka", view="view", quiet=True)
    assert code == 0
    assert asked == [
        (("a", "b"), "how", ["cka"], True),
        ("opened", "cka", "view", True),
    ]
    for given, name in (
        ({"fail_if": ("A > 0",)}, "--fail-if"),
        ({"output": Path("x")}, "--output"),
        ({"component": ("x",)}, "--component"),
        ({"heads": True}, "--heads"),
    ):
        with pytest.raises(UsageError, match=f"got {name} too"):
            comparing.compare(("a", "b"), across="cka", **given)


def test_each_list_has_its_own_names(monkeypatch):
    from anisoscope.data import corpora
    from anisoscope.models import named

    text = SimpleNamespace(modality="text", description="words")
    monkeypatch.setattr(corpora, "list_corpora", lambda: {"c": text, "d": text})
    one = SimpleNamespace(description="small", install="pip")
    monkeypatch.setattr(named, "packaged_models", lambda: {"p": one})
    monkeypatch.setattr(named, "converted_models", lambda: {"q": one})
    hub = SimpleNamespace(hub_id="org/x", modality="text", note="gated")
    bare = SimpleNamespace(hub_id="org/y", modality="image", note="")
    monkeypatch.setattr(named, "named_models", lambda: {"x": hub, "y": bare})
    monkeypatch.setattr(
        printed_tables,
        "list_entries_of",
        lambda _: {"studies": lambda: [("s", "a study")]},
    )
    listed = printed_tables.list_entries("corpora")
    assert listed.head == ("corpora", "")
    assert listed.rows == [("c", "text: words"), ("d", "text: words")]
    assert printed_tables.list_entries("studies").rows == [("s", "a study")]
    models = printed_tables.list_entries("models").rows
    assert models[0][0] == "builtin:minilm" and models[1:] == [
        ("p", "small, packaged (pip)"),
        ("q", "small, packaged (pip)"),
        ("x", "org/x (text; gated)"),
        ("y", "org/y (image)"),
    ]
    metrics = printed_tables.list_entries("metrics")
    names = [name for name, _ in metrics.rows]
    assert "mean_cosine" in names and not {"base", "__init__"} & set(names)
    assert list(metrics.records.columns) == ["name", "description"]
    assert metrics.records["name"].tolist() == names


def test_an_atlas_is_of_the_networks_that_are_named(monkeypatch, capsys, tmp_path):
    from anisoscope.cli import atlas as command
    from anisoscope.report import atlas as page
    from anisoscope.runs import atlas as runs

    entries = [SimpleNamespace(name=name) for name in ("x", "y", "z")]
    made = SimpleNamespace(table="table", folder=tmp_path, runs={"x": "r"}, left_out={})
    asked = []
    monkeypatch.setattr(runs, "read_list", lambda _: entries)
    monkeypatch.setattr(
        runs,
        "make_atlas",
        lambda chosen, folder, _: asked.append((chosen, folder)) or made,
    )
    monkeypatch.setattr(command, "tabulate_atlas", lambda of: f"of {of}")
    monkeypatch.setattr(
        command, "show", lambda *given, **named: asked.append((given, named))
    )
    monkeypatch.setattr(command, "find_missing_packages", lambda _: [])
    monkeypatch.setattr(
        page,
        "write_atlas_page",
        lambda *given, **named: asked.append((given, named)) or tmp_path / "p",
    )
    view_of = view.Format(format="csv")
    code = command.atlas(
        Path("l"), only=("z,x",), output=tmp_path, view=view_of, quiet=True
    )
    assert code == 0 and [entry.name for entry in asked[0][0]] == ["x", "z"]
    assert asked[0][1] == tmp_path
    assert asked[1] == (
        (["of table"], view_of),
        {"notes": [], "more": {"left_out": {}}},
    )
    assert asked[2] == (("table", tmp_path), {"runs": {"x": "r"}, "left_out": {}})
    said = capsys.readouterr().err.splitlines()
    assert said == [
        f"table: {tmp_path / 'atlas.csv'}",
        f"page: {tmp_path / 'p'} (open it in a browser)",
    ]
    made.left_out = {"y": "why", "w": "gone"}
    assert command.atlas(Path("l"), output=tmp_path, quiet=True) == 7
    assert [entry.name for entry in asked[3][0]] == ["x", "y", "z"]
    assert asked[4][1]["notes"] == ["left out: y: why", "left out: w: gone"]
    assert capsys.readouterr().err.splitlines()[:2] == [
        "left out: y: why",
        "left out: w: gone",
    ]
    monkeypatch.setattr(
        command, "find_missing_packages", lambda _: ["altair", "jinja2"]
    )
    command.atlas(Path("l"), output=tmp_path, quiet=True)
    assert (
        "no page was drawn: altair and jinja2 not installed" in capsys.readouterr().err
    )
    for wrong in ("x,v", "v,x"):
        with pytest.raises(UsageError, match="a network of l; got 'v'"):
            command.atlas(Path("l"), only=(wrong,), output=tmp_path, quiet=True)


def test_what_is_pushed_and_where_is_what_was_typed(monkeypatch, capsys, tmp_path):
    from anisoscope.cli import publishing
    from anisoscope.report import pushing

    (tmp_path / "run").mkdir()
    monkeypatch.chdir(tmp_path / "run")
    asked = []
    files = {"a.parquet": 1234, "b.json": 5}

    def write(run, folder, name, licence):
        asked.append((run, folder, name, licence))
        return SimpleNamespace(folder=folder, files=files)

    monkeypatch.setattr(pushing, "write_publication", write)
    monkeypatch.setattr(
        pushing,
        "push",
        lambda *given, **named: asked.append((given[1:], named)) or "address",
    )
    shown = []
    monkeypatch.setattr(publishing, "show_row", lambda row, _: shown.append(row))
    publishing.push(Path(), "datasets/me/x", create=True, licence="mit", quiet=True)
    assert asked[0][0] == tmp_path / "run" and asked[0][2:] == ("me/x", "mit")
    assert asked[0][1].name == "run" and not asked[0][1].parent.exists()
    assert asked[1] == (("me/x",), {"create": True, "private": False})
    given = capsys.readouterr()
    assert given.out == "address\n"
    assert given.err.startswith(
        "next, a section for the model's card: anisoscope card "
    )
    publishing.push(
        Path(), "me/x", private=True, view=view.Format(format="json"), quiet=True
    )
    assert asked[3] == (("me/x",), {"create": False, "private": True})
    assert shown == [{"pushed": "address", "files": 2}]
    capsys.readouterr()
    publishing.push(Path(), "me/x", dry_run=True, quiet=True)
    assert asked[4][:2] == (tmp_path / "run", tmp_path / "run-to-push")
    given = capsys.readouterr()
    assert given.out == "" and given.err.splitlines()[:2] == [
        "       1,234 bytes  a.parquet",
        "           5 bytes  b.json",
    ]
    assert len(asked) == 5 and len(shown) == 1
    there = tmp_path / "there"
    publishing.push(
        Path(),
        "me/x",
        dry_run=True,
        output=there,
        view=view.Format(format="csv"),
        quiet=True,
    )
    assert asked[5][1] == there
    assert shown[1] == {"written": str(there), "files": 2}


def test_a_table_is_of_heads_or_of_layers_as_it_is_asked_for():
    """Rows of two stacks, with the final norm, and of the heads of self- and of cross-attention."""
    index = [
        ("encoder", 1, "hidden"),
        ("encoder", 1, "final"),
        ("decoder", 1, "hidden"),
    ]
    names = ["stack", "layer", "site"]
    several = pd.MultiIndex.from_tuples(index, names=names)
    assert printed_tables._label_rows(several) == (
        ("stack", "layer"),
        [["encoder", "1"], ["encoder", "final"], ["decoder", "1"]],
    )
    one = pd.MultiIndex.from_tuples(index[:2], names=names)
    assert printed_tables._label_rows(one) == (("layer",), [["1"], ["final"]])
    rows = []
    for kind, more in (("self", 0.0), ("cross", 0.4)):
        for head, value in ((0, 0.1), (1, 0.3)):
            place = {"stack": "decoder", "kind": kind, "layer": 2, "head": head}
            place |= {"site": "attention", "token_policy": "all", "n_units": 9}
            rows.append(
                place
                | {"metric": "attention.entropy_normalised", "value": value + more}
            )
            rows.append(
                place | {"metric": "attention.first_mass", "value": 0.9 - value - more}
            )
    records = as_records(pd.DataFrame(rows))
    of_heads = printed_tables.tabulate_attention(records, heads=True)
    assert of_heads.head == ("kind", "layer", "head", "entropy", "first token", "kind")
    assert [line[:5] for line in of_heads.rows] == [
        ["cross", "2", "0", ".500", ".400"],
        ["cross", "2", "1", ".700", ".200"],
        ["self", "2", "0", ".100", ".800"],
        ["self", "2", "1", ".300", ".600"],
    ]
    of_layers = printed_tables.tabulate_attention(records)
    assert of_layers.head == ("kind", "layer", "entropy", "first token", "kinds")
    assert [line[:4] for line in of_layers.rows] == [
        ["cross", "2", ".600", ".300"],
        ["self", "2", ".200", ".700"],
    ]
    assert printed_tables.tabulate_attention(records[:0]) is None
