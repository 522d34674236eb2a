"""Charts and what is around them: rows, bands, marks, places, panels, numbers of a page, and files of drawings."""

import json
import math
import pickle
import re
from types import SimpleNamespace

import altair as alt
import numpy as np
import pandas as pd
import pytest
from charts_asked_for import drawn, entry, results, row

from anisoscope.charts import builders, export, style
from anisoscope.errors import UsageError
from anisoscope.report import comparison, figures, head_map, page, parts, sections
from anisoscope.report.parts import NARROW, PANEL, WIDE, Figure

__all__ = ["drawn"]  # a fixture
NAN = math.nan
LAW = "mean_cosine.isotropic_q95"


def of_heads(metric, values, *, layer=1, site="attention", **keys):
    return [
        row(metric, layer, value, head=head, site=site, **keys)
        for head, value in enumerate(values)
    ]


# ---- figures of a run


def test_the_band_is_that_of_the_layer_with_the_widest(drawn):
    rows = [row("mean_cosine", n, 0.5) for n in (1, 2, 3)]
    rows += [row(LAW, n, q95) for n, q95 in ((1, 0.05), (2, 0.2), (3, 0.1))]
    described = entry(law="{q95}", final="f", caption="{law}|{stacks}")
    (figure,) = figures.draw_policies(results(rows), described)
    figure.draw(WIDE)
    assert drawn[-1][2]["isotropic"] == 0.2 and figure.caption == ".200|"
    joint = [row("mean_cosine", 0, 0.5, stack="joint"), rows[0]]
    words = {"joint": "both meet", "encoder": "reads"}
    (figure,) = figures.draw_policies(results(joint), described | {"stacks": words})
    assert figure.caption == "|both meet; reads."


def test_steps_have_a_panel_for_each_stack_if_there_is_one_seed(drawn):
    rows = [
        row("mean_cosine", 1, 0.1, stack=stack, step=step)
        for stack in ("b", "a")
        for step in (0, 5)
    ]
    described = entry(draw={"titles": ["steps", "A"]})
    (figure,) = figures.draw_steps(results(rows), described)
    figure.draw(WIDE)
    assert drawn[-1][1][PANEL].tolist() == ["b", "b", "a", "a"]
    assert drawn[-1][2]["panel"] == PANEL
    (figure,) = figures.draw_steps(results(rows[:2]), described)
    figure.draw(WIDE)
    assert set(drawn[-1][1][PANEL]) == {""} and drawn[-1][2]["panel"] is None


def test_ranges_count_the_most_heads_of_any_layer(drawn):
    rows = of_heads("m", [0.1, 0.2, 0.3], site="query.raw")
    rows += of_heads("m", [0.1, 0.2], site="query.raw", layer=2)
    (figure,) = figures.draw_head_range(
        results(rows), entry(metrics={"m": "A"}, caption="{heads}")
    )
    assert figure.caption == "3 heads" and not drawn


def test_subsets_are_shown_in_the_order_of_their_family_where_each_stack_peaks(drawn):
    names = ("position 8–31", "position 128+", "position 0")
    rows = []
    curves = {"encoder": (0.1, 0.2, 0.9, 0.3), "decoder": (0.4, 0.8, 0.5, 0.6)}
    for stack, values in curves.items():
        for layer, value in enumerate(values):
            rows.append(row("mean_cosine", layer, value, stack=stack))
    # the subsets were measured in fewer layers, so that the peak is among these
    measured = {"encoder": (0, 1, 3), "decoder": (0, 2, 3)}
    for stack, layers in measured.items():
        for layer in layers:
            for n, name in enumerate(names):
                value = layer / 10 + n / 100
                keys = {"component": f"{name} × {name}", "stack": stack}
                rows.append(row("group", layer, value, **keys))
    rows.append(row("group", None, 0.99, component="position 0 × position 0"))
    described = entry(metric="group", notes={}, caption="{places}", alt="{span}")
    (figure,) = figures.draw_subsets(results(rows), described)
    figure.draw(WIDE)
    _, frame, options = drawn[-1]
    places = [
        "encoder layer 0, first",
        "decoder layer 3, most anisotropic",
        "encoder layer 3, most anisotropic",
    ]
    assert sorted(set(frame["place"])) == sorted(places)
    one = frame[frame["place"].eq(places[0])]
    assert one["first"].tolist() == ["0", "8–31", "128+"]
    assert one["value"].tolist() == pytest.approx([0.02, 0.0, 0.01])
    assert options["diverging"] is True
    assert ".990" not in figure.alt


def test_subsets_without_anisotropy_are_shown_at_the_first_and_the_last_layer(drawn):
    rows = [
        row("group", layer, layer / 10, component=f"special × {name}", stack=stack)
        for stack in ("b", "a")
        for layer in (1, 2, 3)
        for name in ("special", "first")
    ]
    described = entry(metric="group", notes={"kind": "by kind"}, caption="{note}")
    (figure,) = figures.draw_subsets(results(rows), described)
    figure.draw(WIDE)
    _, frame, options = drawn[-1]
    # the last layer counts as the peak, and the first stack as the main one
    assert list(dict.fromkeys(frame["place"])) == [
        "b layer 1, first",
        "b layer 3, most anisotropic",
        "a layer 3, most anisotropic",
    ]
    assert figure.caption == "by kind" and options["names"] == ("kind", "kind")
    one = frame[frame["place"].eq("a layer 3, most anisotropic")]
    assert one[["first", "second"]].values.tolist() == [
        ["special", "special"],
        ["special", "first"],
        ["first", "special"],
    ]
    assert (
        figures.draw_subsets(results(rows[:0] or [row("x", 1, 0.1)]), described) == []
    )


def test_a_run_without_policies_has_one_drawing_without_a_label(drawn):
    rows = [row("mean_cosine", n, 0.1 * n, token_policy=None) for n in (1, 2)]
    described = entry(law="l", final="f", caption="{law}{final}.", alt="{span}")
    (figure,) = figures.draw_policies(results(rows), described)
    assert list(figure.drawings) == [""] and figure.caption == "."
    figure.draw(WIDE)
    name, frame, options = drawn[-1]
    assert name == "layer_curve" and options["isotropic"] is None
    assert frame["value"].tolist() == [0.1, 0.2] and options["series"] == "stack"


def test_the_layer_in_the_middle_is_the_middle_one_of_all(drawn):
    rows = [row("c", layer, 0.1, component="a × b") for layer in (0, 1, 2, 8, 9)]
    (figure,) = figures.draw_classes(results(rows), entry(metric="c"))
    figure.draw(WIDE)
    assert list(dict.fromkeys(drawn[-1][1]["place"])) == [
        "layer 0",
        "layer 2",
        "layer 9",
    ]


# ---- what figures read


def test_policies_of_a_later_version_follow_and_words_of_a_corpus_may_be_few():
    rows = [
        row("m", 1, 0.1, token_policy=policy)
        for policy in ("z", "no-first", "a", "content")
    ]
    found = results(rows, corpus={"words": {"position": "patch"}})
    assert found.policies == ["content", "no-first", "a", "z"]
    assert (
        found.lead == "content" and results(rows[:0] or [row("m", 1, NAN)]).lead == ""
    )
    assert found.words == {
        "position": "patch",
        "sequence": "sequence",
        "unit": "unit",
        "counted": "token",
    }
    assert results(rows, corpus="a name").corpus == {"name": "a name"}


def test_the_peak_is_the_highest_value_and_stacks_are_those_of_layers():
    rows = [
        row("mean_cosine", 1, 0.5, low=0.1),
        row("mean_cosine", 2, 0.4, low=0.3),
        row("mean_cosine", 2, 0.3, site="final"),
        row("h", 1, 0.9, stack="decoder", head=0, site="attention"),
    ]
    found = results(rows)
    assert found.peak["layer"] == 1
    assert found.name_place(found.peak) == "layer 1"
    assert (
        found.name_place(found.select_layers("mean_cosine").iloc[2]) == "the final norm"
    )
    joint = results([row("m", 0, 0.1, stack="joint")])
    assert joint.name_place(joint.table.iloc[0]) == "the joint vectors"
    assert results(rows[3:]).peak is None
    # a place has a stack, a layer and a site
    rows += [row("other", 2, 0.7, site="final"), row("other", 2, 0.6)]
    found = results(rows)
    assert found.find_row(found.table.iloc[2], "other")["value"] == 0.7
    assert found.find_row(found.table.iloc[1], "other")["value"] == 0.6
    assert found.find_row(found.table.iloc[0], "other") is None


def test_a_section_with_a_table_alone_is_a_section():
    described = {"slug": "s", "title": "of tokens", "lead": "5 % of them"}
    described["table"] = {
        "by": "all_layers",
        "columns": {"norms.mean": "norm"},
        "caption": "c",
    }
    corpus = {"words": {"position": "frame"}}
    section = sections._build_section(
        results([row("norms.mean", 1, 2.0)], corpus=corpus), described
    )
    assert section.table.head == ("site", "norm") and section.figures == ()
    assert section.title == "of frames" and section.lead == "5\xa0% of them"
    assert section.head_map is None and section.drawn == []
    assert sections._build_section(results([row("x", 1, 2.0)]), described) is None


# ---- the page


def test_a_series_is_headed_by_its_last_step(monkeypatch, tmp_path):
    given = {}
    monkeypatch.setattr(page, "write_page", lambda *_, **content: given.update(content))
    monkeypatch.setattr(page, "draw_figures", lambda *_, **__: {})
    monkeypatch.setattr(page, "build_sections", lambda _: [])
    rows = []
    for step, a in ((0, 0.9), (10, 0.4)):
        for layer in range(1, 4 if step == 0 else 3):
            rows.append(row("mean_cosine", layer, a, step=step))
    checkpoints = [{"step": 0}, {"step": 10}]
    page.write_run(results(rows, checkpoints=checkpoints), tmp_path, ("svg",))
    assert given["tiles"][0][1] == ".400" and given["corpus"] == "unnamed corpus"
    assert given["facts"] == [
        ("checkpoints", "2"),
        ("steps", "0 to 10"),
        ("blocks", "2"),
    ]


def test_sentences_of_a_page_name_tokens_by_their_words(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(page, "write_page", lambda *_, **__: None)
    monkeypatch.setattr(page, "draw_figures", lambda *_, **__: {})
    monkeypatch.setattr(page, "findings", lambda *given: asked.append(given[1]) or [])
    rows = [row("mean_cosine", 1, 0.5)]
    page.write_run(results(rows, tokens={"7": "the"}), tmp_path, ())
    assert asked == [{"7": "the"}]


def test_a_page_allows_its_own_script_alone(tmp_path):
    template = tmp_path / "t.j2"
    template.write_text("{{ policy }}|{{ title }}|{{ style[:0] }}")
    written = page.write_page(tmp_path, template, title="a\x00<b", script="go()")
    text = written.read_text("utf-8")
    assert written == tmp_path / "report.html"
    policy = page.write_security_policy("go()")
    assert "sha256-" in policy and text.startswith(policy.replace("'", "&#39;"))
    assert text.endswith("|a␀&lt;b|")
    page.write_page(tmp_path, template, title="t")
    assert "script-src &#39;none&#39;" in written.read_text("utf-8")


def test_heads_that_may_be_uniform_are_left_out_by_their_whole_interval():
    """The value of the first is above the line, but not its interval; the second is of another stack."""
    line = page.uniform_line()
    above, below = (1 + line) / 2, line - 0.1
    entropy = of_heads(
        "attention.entropy_normalised", [above], low=below, high=1.0
    ) + of_heads(
        "attention.entropy_normalised", [above], low=above, high=1.0, stack="decoder"
    )
    cosine = of_heads("query_key.cosine", [0.5], site="query.raw")
    cosine += of_heads("query_key.cosine", [0.9], site="query.raw", stack="decoder")
    assert page._list_head_tiles(results(entropy + cosine))[1] == (
        "strongest alignment",
        ".500",
        "cos(Q̄, K̄), encoder layer 1, head 0",
    )


# ---- the map of heads


def parts_of(found, *described):
    made = []
    for one in described:
        frame = figures.select_heads(found, one)
        figure = Figure(one["metric"], "t", "c", "b", "a", {"": None})
        made.append((one, frame, figure))
    return made


def of_map(metric, **draw):
    return entry(metric=metric, group="g", draw={"title": "u"} | draw)


def test_panels_without_any_value_come_last_and_heads_keep_their_numbers():
    rows = of_heads("h", [NAN, NAN], stack="a")
    rows += [row("h", 1, 0.1, head=3, site="attention", stack="b")]
    rows += [row("h", 1, 0.4, head=7, site="attention", stack="b")]
    found = results(rows)
    made = head_map.build_head_map(found, parts_of(found, of_map("h")))
    assert [(panel.name, panel.heads) for panel in made.panels] == [
        ("b", (3, 7)),
        ("a", (0, 1)),
    ]
    assert made.tables[0]["labels"] == [(3, 1), (7, 1)]
    wide = head_map.Panel("p", (1,), tuple(range(5, 27)))
    assert head_map._label_columns(wide) == [(5, 8), (13, 8), (21, 6)]
    (quantity,) = made.quantities
    assert quantity.texts == (".100", ".400", "–", "–")
    assert quantity.shades == f"0{head_map.DIGITS[-1]}--"


def test_a_map_with_signs_has_zero_in_its_middle_and_numbers_up_to_twenty_heads():
    values = [-0.2, 0.4, 0.1]
    ends = {"low": -0.5, "high": 0.5}
    rows = of_heads("h", values[:2])
    rows.append(row("h", 1, values[2], head=2, site="attention", **ends))
    rows += of_heads("h", [0.3] * 20, stack="twenty")
    rows += of_heads("h", [0.3] * 21, stack="more")
    found = results(rows)
    made = head_map.build_head_map(found, parts_of(found, of_map("h", diverging=True)))
    (quantity,) = made.quantities
    assert quantity.diverging is True and quantity.scale == ("−.400", ".000", ".400")
    by_panel = dict(zip((p.name for p in made.panels), made.tables, strict=True))
    cells = {name: table["rows"][0][1] for name, table in by_panel.items()}
    middle = len(head_map.DIGITS) // 2
    top = len(head_map.DIGITS) - 1
    assert [text for _, text in cells["encoder"]][:3] == ["−.20", ".40", "(.10)"]
    assert [name for name, _ in cells["encoder"]][:2] == [
        f"d{middle // 2} minus",
        f"d{top}",
    ]
    assert cells["encoder"][2][0] == f"d{round(0.625 * top)} doubt"
    assert cells["twenty"][19][1] == ".30" and cells["more"][20][1] == ""
    assert [by_panel[name]["look"] for name in ("encoder", "twenty", "more")] == [
        "roomy",
        "",
        "dense",
    ]


def test_a_quantity_that_was_measured_twice_has_one_value_for_each_head():
    rows = of_heads("h", [0.1, 0.2], layer=1)
    found = results(rows)
    ((described, frame, figure),) = parts_of(found, of_map("h"))
    twice = pd.concat([frame, frame.assign(value=0.9)])
    made = head_map.build_head_map(found, [(described, twice, figure)])
    (quantity,) = made.quantities
    assert quantity.texts == (".100", ".200") and len(made.kinds) == 2
    assert quantity.ranks == ("2 of 2", "1 of 2")
    assert quantity.layers == (".100 to .200",)


def test_layers_say_how_many_heads_of_which_kind_and_what_comes_of_them(monkeypatch):
    rows = of_heads("h", [0.1, 0.2, 0.3], layer=2)
    rows += of_heads("h", [0.4], layer=2, kind="cross")
    rows += [
        row("mean_cosine", 2, 0.5),
        row("mean_cosine", 2, 0.9, site="final"),
        row("mean_cosine", 2, 0.7, stack="decoder"),
    ]
    kinds = pd.DataFrame(
        {
            "stack": "encoder",
            "kind": ["self", "self", "cross"],
            "layer": 2,
            "head": [0, 2, 0],
            "kind of head": ["sink, aligned", "sink", "one-hot"],
        }
    )
    monkeypatch.setattr(head_map, "attention_table", lambda *_, **__: kinds)
    found = results(rows)
    made = head_map.build_head_map(found, parts_of(found, of_map("h")))
    assert [panel.name for panel in made.panels] == [
        "encoder",
        "encoder, cross-attention",
    ]
    assert made.kinds[:3] == ("sink, aligned", "", "sink")
    assert made.layers == (
        "Layer 2 has 3 heads, among them 2 sink, 1 aligned. A of its output: .500 [.495, .505].",
        "Layer 2 has 1 head, among them 1 one-hot. A of its output: .500 [.495, .505].",
    )


# ---- a comparison


def difference(run, layer, value, **keys):
    found = {"run": run, "against": "ours", "stack": "encoder", "kind": "self"}
    found |= {"layer": layer, "head": None, "site": "hidden", "component": None}
    found |= {"layer_other": layer, "first": 0.3, "first_low": 0.28, "first_high": 0.33}
    found |= {"second": 0.5, "second_low": 0.4, "second_high": 0.6}
    return found | {"difference": value, "low": value - 0.1, "high": value + 0.2} | keys


def typed(rows):
    text = ["run", "stack", "kind", "site", "component"]
    frame = pd.DataFrame(rows).astype(dict.fromkeys(text, "string"))
    return frame.astype(dict.fromkeys(("layer", "layer_other", "head"), "Int64"))


def test_more_components_than_lines_share_a_panel():
    def panels(count):
        rows = [difference("b", 1, 0.1, component=f"c{n}") for n in range(count)]
        return comparison._name_panels(typed(rows)).tolist()

    assert panels(8) == [f"encoder c{n}" for n in range(8)]
    assert panels(9) == ["encoder"] * 9
    kinds = [
        difference("b", 1, 0.1, kind="cross", component="x"),
        difference("b", 1, 0.1, stack=None),
        difference("b", 1, 0.1),
    ]
    assert comparison._name_panels(typed(kinds)).tolist() == [
        "encoder, cross-attention x",
        "",
        "encoder",
    ]


def test_depths_are_those_of_each_run_from_input_to_final_norm():
    rows = [
        difference("a", 0, 0.1),
        difference("b", 2, 0.1),
        difference("b", 4, 0.1),
        difference("b", 4, 0.1, site="final"),
        difference("c", 3, 0.1),
        difference("c", 6, 0.1),
    ]
    found = comparison._scale_depths(typed(rows), "layer").tolist()
    assert found == [0, 0.5, 1, comparison.FINAL_AT, 0.5, 1]


def values_of(stacks_of_runs):
    rows = []
    for run, stacks in stacks_of_runs.items():
        for stack in stacks:
            found = row("mean_cosine", 1, 0.5) | {"run": run, "stack": stack}
            rows.append(found | {"head": None, "component": None, "layer_other": 1})
    runs = [
        SimpleNamespace(
            name=run, manifest={"corpus": {"n_units": n, "n_tokens": 99 * n}}
        )
        for n, run in enumerate(stacks_of_runs, start=5)
    ]
    return SimpleNamespace(values=typed(rows), runs=runs)


def test_runs_of_one_stack_each_share_a_panel():
    one = comparison._collect_values(values_of({"a": ["encoder"], "b": ["decoder"]}))
    assert one["panel"].tolist() == ["", ""] and one["n"].tolist() == [5, 6]
    two = values_of({"a": ["encoder"], "b": ["encoder", "decoder"]})
    assert comparison._collect_values(two)["panel"].tolist() == [
        "encoder",
        "encoder",
        "decoder",
    ]
    for corpus in ("a name", None, {}, {"n_units": None}):
        assert math.isnan(comparison._count_units({"corpus": corpus}))


def test_the_first_run_is_a_line_at_zero_at_every_place():
    rows = [
        difference("b", 1, 0.1),
        difference("b", 1, 0.2, site="final"),
        difference("c", 1, 0.3),
        difference("c", 1, NAN, component="x"),
    ]
    given = SimpleNamespace(names=["ours", "b", "c"])
    frame = comparison._collect_differences(given, typed(rows))
    ours = frame[frame["run"].eq("ours")]
    assert ours["site"].tolist() == ["hidden", "final", "hidden"]
    assert set(ours["value"]) == {0.0} and ours["low"].isna().all()
    others = frame[frame["run"].ne("ours")]
    assert others["value"].tolist() == [0.1, 0.2, 0.3]
    assert others["joined"].tolist() == [True, False, True]
    assert frame["value"].dtype == float and frame["joined"].dtype == bool


def test_columns_of_a_table_of_differences_are_those_that_some_row_has():
    rows = [difference("b", 1, 0.1, component="x"), difference("b", 2, -0.1)]
    rows[1] |= {"layer_other": 4, "low": NAN, "high": NAN, "second": NAN}
    given = SimpleNamespace(table=typed(rows), names=["ours", "b"])
    table = comparison._build_table(given)
    assert table.head == (
        "run",
        "layer",
        "component",
        "ours",
        "run’s own value",
        "difference",
    )
    first, ends = (".300", "[.280, .330]"), "[.400, .600]"
    assert table.rows == (
        (
            ("b", ""),
            ("1", ""),
            ("x", ""),
            first,
            (".500", ends),
            ("+.100", "[.000, +.300]"),
        ),
        (("b", ""), ("2 · 4", ""), ("", ""), first, ("–", ends), ("−.100", "")),
    )
    assert table.caption == (
        "Every difference from ours; two layers: of ours, and of the other run."
    )


# ---- charts


def layers_of(chart):
    spec = chart.to_dict()
    return spec.get("layer") or spec["spec"]["layer"]


def rows_of(chart):
    return next(iter(chart.to_dict()["datasets"].values()))


LINES = pd.DataFrame(
    {
        "layer": [1, 2, 1, 2, 2],
        "model": ["a", "a", "b", "b", "a"],
        "site": ["hidden"] * 4 + ["final"],
        "value": [1.0, 2.0, 3.0, 4.0, 5.0],
        "low": [0.5, 1.5, 2.5, 3.5, 4.5],
        "high": [1.5, 2.5, 3.5, 4.5, 5.5],
    }
)


def filters(layer):
    return [step["filter"] for step in layer.get("transform", []) if "filter" in step]


def test_bands_and_lines_leave_out_what_is_no_part_of_a_line():
    chart = builders.layer_curve(LINES, series="model")
    by_mark = {}
    for layer in layers_of(chart):
        by_mark.setdefault(layer["mark"]["type"], []).append(layer)
    joined = "datum.joined"
    assert filters(by_mark["area"][0]) == [joined, "isValid(datum.low)"]
    assert filters(by_mark["line"][0]) == [joined]
    alone, whisker = by_mark["point"][1], by_mark["rule"][0]
    assert filters(by_mark["point"][0]) == [joined]
    assert filters(alone) == ["!datum.joined"]
    assert filters(whisker) == ["!datum.joined", "isValid(datum.low)"]
    assert alone["mark"]["shape"] == "diamond" and alone["mark"]["filled"] is False
    assert "shape" in by_mark["point"][0]["encoding"]
    assert by_mark["line"][0]["encoding"]["detail"]["field"] == "model"
    steps = builders.trajectory(
        LINES.assign(step=1, model=[1, 1, 2, 2, 1]), gradient=True
    )
    assert all("shape" not in layer["encoding"] for layer in layers_of(steps))


def test_points_are_marked_where_lines_have_forty_or_fewer_each():
    def marks(points, series=1, panels=1):
        frame = pd.DataFrame(
            [
                {"step": n, "model": f"m{m}", "part": f"p{p}", "value": 1.0}
                for p in range(panels)
                for m in range(series)
                for n in range(points)
            ]
        )
        panel = "part" if panels > 1 else None
        chart = builders.trajectory(frame, band=False, panel=panel)
        return "point" in [layer["mark"]["type"] for layer in layers_of(chart)]

    assert marks(40, 2) and not marks(41, 2)
    assert marks(40, 2, 2) and not marks(41, 2, 2)


def test_overlapping_lines_are_dashed_and_their_points_smaller():
    chart = builders.layer_curve(LINES[:4], coincide=True)
    line, points = layers_of(chart)[1:3]
    assert line["encoding"]["strokeDash"]["field"] == "rank"
    assert points["encoding"]["size"]["field"] == "rank"
    assert {(r["model"], r["rank"]) for r in rows_of(chart)} == {("a", 0), ("b", 1)}


def test_a_heat_map_is_as_high_as_its_rows_and_its_ink_is_read_on_its_colours():
    frame = pd.DataFrame(
        {"head": [0, 1, 2], "layer": [4, 4, 7], "value": [10.0, 20.0, 11.0]}
    )
    chart = builders.heatmap(frame, size=(300, 20))
    spec = chart.to_dict()
    assert (spec["width"], spec["height"]) == (300, 40)
    tiles, text = spec["layer"]
    assert (tiles["encoding"]["x"]["title"], tiles["encoding"]["y"]["title"]) == (
        "head",
        "layer",
    )
    assert tiles["encoding"]["color"]["legend"]["title"] == "value"
    assert tiles["encoding"]["color"]["scale"]["range"] == list(style.SEQUENTIAL)
    assert [r["dark"] for r in rows_of(chart)] == [False, True, False]
    assert [r["label"] for r in rows_of(chart)] == ["10.0", "20.0", "11.0"]
    assert rows_of(chart)[2]["tooltip"].endswith("layer 7 · head 2: 11")
    condition = text["encoding"]["color"]["condition"]
    assert condition == {"test": "datum.dark", "value": "#ffffff"}
    same = builders.heatmap(frame.assign(value=3.0))
    assert [r["dark"] for r in rows_of(same)] == [False] * 3


def test_named_points_are_joined_in_the_order_of_rows():
    frame = pd.DataFrame(
        {
            "at": [3.0, 1.0, 2.0],
            "value": [1.0, 2.0, 3.0],
            "model": "m",
            "name": ["p", "q", "final"],
            "joined": [True, True, False],
        }
    )
    chart = builders.scatter(frame, x="at", titles=("x", "y"), label="name")
    path, points, text, apart = layers_of(chart)
    assert path["encoding"]["order"]["field"] == "row"
    assert filters(path) == filters(text) == ["datum.joined"]
    assert filters(apart) == ["!datum.joined"] and filters(points) == []
    assert apart["encoding"]["text"]["field"] == "name"
    assert [(r["row"], r["name"]) for r in rows_of(chart)] == [
        (0, "p"),
        (1, "q"),
        (2, "final"),
    ]


def test_bars_keep_the_order_of_rows_with_whiskers_along_them():
    frame = pd.DataFrame(
        {"name": ["z", "a"], "value": [1.0, 2.0], "low": 0.5, "high": 2.5, "x": 1}
    )
    chart = builders.bars(frame, category="name", titles=("v", "n"), size=(640, 30))
    bar, whisker = layers_of(chart)
    assert bar["encoding"]["y"]["sort"] == ["z", "a"]
    assert whisker["encoding"]["x"]["field"] == "low"
    assert whisker["encoding"]["x2"]["field"] == "high"
    assert chart.to_dict()["height"] == 60 and "x" not in rows_of(chart)[0]
    plain = builders.bars(frame.drop(columns="low"), category="name")
    assert len(layers_of(plain)) == 1


def test_pale_series_have_the_colour_of_their_own_model():
    order = ["a", "b", "c", "b pale"]
    found = style._choose_colours(order, {"b pale": "b"})
    assert found == [*style.PALETTE[:3], style._lighten(style.PALETTE[1])]
    assert found[3] != style._lighten(style.PALETTE[0])


def test_the_ink_on_a_shade_is_chosen_by_its_own_luminance():
    """A middle grey has a luminance of .216, above the limit of .179; colours between are mixed by cube roots."""
    shades = ["#000000", "#808080", "#ffffff"]
    share = pd.Series([0.0, 0.46, 0.48, 0.5, 1.0])
    # cube roots: .6 at the grey, and .5636 at the limit, which is .4697 of the way
    assert style.needs_white_ink(share, shades).tolist() == [
        True,
        True,
        False,
        False,
        False,
    ]


def test_colours_near_black_are_linear_and_ticks_reach_the_last_tenfold():
    # 10 of 255 is .0392, below the knee of sRGB; 11 is .0431, above it
    assert style._to_linear(10 / 255) == pytest.approx(10 / 255 / 12.92)
    assert style._to_linear(11 / 255) == pytest.approx(
        ((11 / 255 + 0.055) / 1.055) ** 2.4
    )
    assert style.compute_luminance("#0a0000") == pytest.approx(
        0.2126 * 10 / 255 / 12.92
    )
    assert style._choose_ticks(pd.Series([1, 100]), 1.0, "log") == [1, 10, 100]
    assert style._choose_ticks(pd.Series([0, 5]), 5.0, "symlog") == [0, 5]
    assert len(style._choose_ticks(pd.Series([1e-30, 1.0]), 1e-30, "log")) == 20
    for number in (0xD800, 0xFFFE, 0x0B, 0x1F):
        assert style.escape_control(chr(number)) != chr(number)
    assert style.escape_control("a\t\n\rä") == "a\t\n\rä"
    assert style.escape_control("\x0b\ud800\x7f") == "␋\ufffd␡"


# ---- files of drawings


def tile(x, y, colour, title="", width=5, height=4):
    fill = f'fill="rgb({", ".join(map(str, colour))})"'
    head = f'<path d="M{x},{y}h{width}v{height}h-{width}Z" {fill} stroke="#ffffff" stroke-width="0.6"'
    return f"{head}><title>{title}</title></path>" if title else f"{head}/>"


def label(x, y, colour, dot=""):
    return (
        f'<text text-anchor="middle" transform="translate({x},{y})" font-size="10px" '
        f'fill="{colour}">{dot}</text>'
    )


def test_tiles_of_a_large_map_are_thick_lines(monkeypatch):
    monkeypatch.setattr(export, "MANY_TILES", 3)
    red, near, white = (200, 0, 0), (202, 1, 3), (255, 255, 254)
    tiles = tile(0, 0, red, "one") + tile(5, 0, near) + tile(0, 4, white, "three")
    labels = (
        label(2, 7, "#000000", "·") + label(7, 7, "#fff") + label(2, 11, "#fff", "·")
    )
    svg = f"<svg><g>{tiles}</g><g>{labels}</g></svg>"
    dots = (
        '<g fill="none" stroke-width="2" stroke-linecap="round">'
        '<path d="M2,4h0" stroke="#000000"/><path d="M2,8h0" stroke="#fff"/></g>'
    )
    # a line through the middle of each tile, short of the gap, with its tooltip
    assert export.shorten_tiles(svg) == (
        '<svg><g><g fill="none" stroke-width="3.4">'
        '<path d="M0,2h4.4" stroke="#c80000"><title>one</title></path>'
        '<path d="M5,2h4.4" stroke="#ca0103"></path>'
        '<path d="M0,6h4.4" stroke="#fffffe"><title>three</title></path>'
        f"</g></g><g>{dots}</g></svg>"
    )
    # colours that no eye tells apart are one mark, without gaps; none is brighter than white
    assert export.shorten_tiles(svg, merge=True) == (
        '<svg><g><g fill="none" stroke-width="4">'
        '<path d="M0,2h5M5,2h5" stroke="#c80000"/><path d="M0,6h5" stroke="#ffffff"/>'
        f"</g></g><g>{dots}</g></svg>"
    )
    monkeypatch.setattr(export, "MANY_TILES", 4)
    assert export.shorten_tiles(svg, merge=True) == svg


def a_chart():
    frame = pd.DataFrame({"a": [1, 2], "b": [2.0, 1.0]})
    # the gradient of a legend has an id
    return alt.Chart(frame).mark_point().encode(x="a:Q", y="b:Q", color="a:Q")


def test_files_have_the_name_and_format_that_was_asked_for(tmp_path, monkeypatch):
    made = []
    convert = SimpleNamespace(
        svg_to_pdf=lambda svg: made.append(svg) or b"pdf",
        svg_to_png=lambda svg, scale: made.append((svg, scale)) or b"png",
    )
    monkeypatch.setattr(export, "vl_convert", convert)
    monkeypatch.setattr(export, "sort_pdf", lambda content: b"sorted " + content)
    stem = tmp_path / "new" / "fig.1"
    written = export.write("<svg a='1'><g/></svg>", stem, ("svg", "pdf", "png"))
    names = ["fig.1.svg", "fig.1.pdf", "fig.1.png"]
    assert [path.name for path in written] == names
    assert [path.read_bytes() for path in written] == [
        b"<svg a='1'><g/></svg>",
        b"sorted pdf",
        b"png",
    ]
    white = '<rect width="100%" height="100%" fill="white"/>'
    assert made == [
        "<svg a='1'><g/></svg>",
        (f"<svg a='1'>{white}<g/></svg>", 2),
    ]
    with pytest.raises(UsageError, match="among svg, pdf, png; got 'gif'"):
        export.write("<svg/>", stem, ("gif",))
    asked = []
    monkeypatch.setattr(
        export, "to_svg", lambda *given: asked.append(given) or "<svg/>"
    )
    assert export.save("chart", stem, ("svg",)) == [stem.with_name("fig.1.svg")]
    assert asked == [("chart", "fig.1")]


def test_a_chart_alone_has_a_title_on_white_and_is_a_picture_in_notebooks():
    shown = export.show_alone(a_chart(), "the title")
    described = shown.to_dict()
    assert described["title"] == "the title"
    assert described["config"]["background"] == "white"
    assert described["config"]["font"] == style.FONT
    first, second = (shown._repr_mimebundle_()["text/html"] for _ in range(2))
    assert first.startswith(
        '<div style="display: inline-block; background: white"><svg'
    )
    ids = [set(re.findall(r'\bid="([^"]+)"', html)) for html in (first, second)]
    assert ids[0] and not ids[0] & ids[1], "two pictures of one page share no ids"
    assert all(name.startswith("chart-") for name in ids[0])
    again = pickle.loads(pickle.dumps(shown))
    assert again.to_dict() == described and isinstance(again, export._Offline)
    assert export.show_offline(again) is again and isinstance(again, alt.Chart)


def test_drawings_of_one_call_keep_their_names_apart():
    svgs = export.to_svgs({"one": a_chart, "two": a_chart})
    assert list(svgs) == ["one", "two"]
    for name, svg in svgs.items():
        ids = re.findall(r'\bid="([^"]+)"', svg)
        assert ids == [f"{name}-{n}" for n in range(len(ids))] and ids
        assert svg == export.to_svg(a_chart(), name)
        assert "aria-" not in svg and "role=" not in svg


def test_a_figure_has_a_file_for_each_drawing_and_draws_the_first():
    figure = Figure("n", "t", "c", "b", "a", {"all": len, "content": max})
    assert figure.draw is len
    assert figure.files == {"n": ("all", len), "n-content": ("content", max)}
    assert (WIDE, NARROW) == (640, 272)


def test_numbers_reach_the_script_of_a_page_as_they_are():
    figure = Figure("n", "a <t>", "c", "b", "a", {"": None})
    quantity = head_map.Quantity(
        figure=figure,
        group="g",
        unit="u",
        diverging=False,
        scale=("1",),
        texts=("1",),
        ends=("[0, 2]",),
        cells=("1",),
        shades="0",
        marks="−",
        ranks=("1 of 1",),
        layers=("1",),
    )
    panels = (head_map.Panel("x", (1,), (0,)), head_map.Panel("y", (2,), (4,)))
    made = head_map.HeadMap(panels, (quantity,), ("sink",), ("a\u2028b",))
    assert "\u2028" not in made.payload and "<t>" not in made.payload
    read = json.loads(str(made.payload))
    assert read["layers"] == ["a\u2028b"] and read["digits"] == head_map.DIGITS
    assert read["panels"] == [
        {"name": "x", "layers": [1], "heads": [0]},
        {"name": "y", "layers": [2], "heads": [4]},
    ]
    assert read["quantities"][0]["marks"] == "−"
    assert read["quantities"][0]["title"] == "a <t>"
    assert np.array(read["kinds"]).tolist() == ["sink"]


def test_lines_have_their_axis_and_colours_as_they_are_asked_for():
    frame = LINES[:4].assign(step=[0, 10, 0, 10])
    chart = builders.trajectory(frame, scale="symlog", pale={"b": "a"}, zero=True)
    line = next(x for x in layers_of(chart) if x["mark"]["type"] == "line")
    assert line["encoding"]["x"]["field"] == "step"
    assert line["encoding"]["x"]["scale"]["type"] == "symlog"
    assert line["encoding"]["x"]["axis"]["values"] == [0, 10]
    assert line["encoding"]["color"]["scale"]["range"][1] == style._lighten(
        style.PALETTE[0]
    )
    assert line["encoding"]["y"]["scale"]["zero"] is True
    numbers = frame.assign(model=[1, 1, 2, 2])
    chart = builders.trajectory(numbers, gradient=True, isotropic=0.5)
    marks = [layer["mark"]["type"] for layer in layers_of(chart)]
    assert marks == ["rect", "rule", "area", "line", "point"]
    steps = [layer["transform"][1]["calculate"] for layer in layers_of(chart)[:2]]
    assert steps == ["0", "0.5"]
    # orange first; light to dark; light in the middle
    first, *_, last = (bytes.fromhex(colour[1:]) for colour in style.GRADIENT)
    assert first[0] > first[2] and last[2] > last[0]
    luminance = [style.compute_luminance(colour) for colour in style.SEQUENTIAL]
    assert luminance == sorted(luminance, reverse=True)
    middle = [style.compute_luminance(colour) for colour in style.DIVERGING]
    assert max(middle) == middle[2]
    low, high = (bytes.fromhex(style.DIVERGING[end][1:]) for end in (0, -1))
    assert low[0] > low[2] and high[2] > high[0], "orange below 0, blue above"
    colour = layers_of(chart)[3]["encoding"]["color"]
    assert colour["scale"]["range"] == list(style.GRADIENT)
    assert [r["tooltip"][1:] for r in rows_of(chart)][:2] == [
        "model 1 · step 0: 1 [0.5, 1.5]",
        "model 2 · step 0: 3 [2.5, 3.5]",
    ]


def test_comparisons_are_lines_bars_or_a_map(drawn):
    runs = [
        SimpleNamespace(name=name, manifest={"corpus": {"n_units": 3}})
        for name in ("ours", "b")
    ]
    common = {"metric": "drift", "names": ["ours", "b"], "runs": runs}
    empty = SimpleNamespace(
        heads=False, table=typed([difference("b", 1, 0.1)])[:0], **common
    )
    assert comparison.build_figures(empty) == []
    values = typed(
        [
            row("drift", 1, 0.1 * n)
            | {"run": run, "head": None, "component": None, "layer_other": 1}
            for n, run in enumerate(("ours", "b"), start=1)
        ]
    )
    one = SimpleNamespace(
        heads=False, table=typed([difference("b", 1, 0.1)]), values=values, **common
    )
    (bars,) = comparison.build_figures(one)
    bars.draw(WIDE)
    kind, frame, options = drawn[-1]
    assert kind == "bars" and options == {
        "category": "run",
        "titles": ("drift", ""),
        "panel": None,
        "size": (WIDE, 26),
    }
    assert frame["value"].tolist() == [0.1, 0.2]
    assert bars.title == "Drift of every run" and bars.alt == "Bars of drift by run."
    heads = [
        difference(run, 1, 0.1 * n, head=n) for run in ("b", "c") for n in range(3)
    ]
    heads.append(difference("b", None, 0.5, head=1))
    many = SimpleNamespace(heads=True, table=typed(heads), **common)
    (made,) = comparison.build_figures(many)
    made.draw(WIDE)
    kind, frame, options = drawn[-1]
    assert kind == "heatmap" and len(frame) == 6 and options["panel"] == "run"
    assert options["diverging"] is True and options["title"] == "difference"
    assert frame["value"].tolist() == pytest.approx([0, 0.1, 0.2] * 2)
    made.draw(NARROW)
    assert drawn[-1][2]["size"] == (NARROW, 18)
    assert made.alt == "Heat map of differences over 6 heads."
    assert made.title == "drift: difference from ours, head by head"


def test_every_text_of_a_figure_is_in_the_words_of_the_corpus():
    rows = [row("m", 1, 0.25), row("m", 2, 0.75)]
    found = results(rows, corpus={"words": {"position": "patch", "unit": "image"}})
    described = entry(
        name=" n-{kind} ",
        title="Title of tokens",
        caption=" 5 % of {kind} tokens ",
        alt="A token: {span}.",
        counts="vectors",
    )
    made = parts.make_figure(found, described, found.table, len, kind="special")
    assert made.name == "n-special" and made.title == "Title of patches"
    assert made.caption == "5\xa0% of special tokens"
    assert made.alt == "A patch: lowest .250 at layer 1, highest .750 at layer 2."
    assert made.basis == "n = 1,000 vectors in 40 images; patches: all"
    assert made.drawings == {"": len}
    several = parts.make_figure(
        found,
        described,
        found.table,
        {"x": len, "y": max},
        kind="k",
        span="s",
        basis="b",
    )
    assert several.drawings == {"x": len, "y": max}
    assert several.alt == "A patch: s." and several.basis == "b"


def test_facts_of_a_run_name_its_width_device_and_type():
    rows = [row("mean_cosine", 2, 0.5)]
    rows += [
        row("mean_cosine.contribution", 2, 0.1, component=str(k)) for k in range(3)
    ]
    corpus = {"n_tokens": 1500, "n_units": 20}
    found = results(rows, device="cuda", dtype="bfloat16", seconds=7.6, corpus=corpus)
    assert page.describe_run(found) == [
        ("tokens", "1,500"),
        ("units", "20"),
        ("blocks", "2"),
        ("dimensions", "3"),
        ("device", "cuda bfloat16"),
        ("time", "8 s"),
    ]
    assert page.describe_run(results([row("m", 1, 0.1)])) == []
