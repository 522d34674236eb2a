"""Small decisions of charts and pages: which cell is marked, which head is named, what fits, what is written."""

import json
import math
from types import SimpleNamespace

import pandas as pd
import pytest

from anisoscope.charts import builders, style
from anisoscope.report import head_map, page, parts
from anisoscope.report.head_map import Panel
from anisoscope.report.results import Results
from anisoscope.store import as_records

NAN = math.nan


# ---- charts


def test_numbers_of_cells_are_short_up_to_their_limits():
    words = {
        0.4249: ".42",
        -0.07: "−.07",
        -0.001: ".00",
        0.9949: ".99",
        0.995: "1.0",
        99.49: "99.5",
        99.5: "100",
        -3.14: "−3.1",
        99_999.4: "99999",
        99_999.5: "1e5",
        2.4e12: "2e12",
        NAN: "",
    }
    assert {value: style.format_compact(value) for value in words} == words


def test_only_values_whose_interval_holds_zero_are_marked():
    frame = pd.DataFrame(
        {
            "value": [0.5, -0.5, 0.1, 0.2, NAN],
            "low": [0.1, -0.9, -0.1, 0.0, -1],
            "high": [0.9, -0.1, 0.3, 0.4, 1],
        }
    )
    label = builders._label_cells
    assert label(frame, True, numbers=True) == [".50", "−.50", "(.10)", ".20", ""]
    assert label(frame, True, numbers=False) == ["", "", "·", "", ""]
    assert label(frame, False, numbers=True) == [".50", "−.50", ".10", ".20", ""]
    assert label(frame[["value"]], True, numbers=False) == [""] * 5
    cells = frame.assign(exists=True)
    assert head_map._mark_values(cells, True) == " −· ·"
    assert head_map._mark_values(cells, False) == "     "


def test_levels_are_sorted_as_numbers_or_kept_as_they_come():
    assert builders._sort_levels(pd.Series([10, 2, 10, 1])) == ["1", "2", "10"]
    assert builders._sort_levels(pd.Series(["b", "a", "b"])) == ["b", "a"]
    dash, size = builders._dash_overlaps(5)
    lines = dash["strokeDash"].to_dict()["scale"]
    assert lines["range"] == [[1, 0], [6, 5], [1, 5], [10, 5], [1, 0]]
    points = size["size"].to_dict()["scale"]
    assert points == {"domain": [0, 1, 2, 3, 4], "range": [110, 68, 26, 16, 16]}


def test_lines_are_sorted_inside_panels_that_keep_their_order():
    frame = pd.DataFrame(
        {
            "step": [5, 1, 3, 2],
            "model": ["b", "a", "b", "a"],
            "panel": ["z", "z", "a", "a"],
            "value": [1.0, 2.0, 3.0, 4.0],
            "low": [0.5, 1, 2, 3],
            "other": 0,
        }
    )
    data = builders._prepare_lines(frame, "step", "model", "panel")
    assert data["value"].tolist() == [2, 1, 4, 3] and data["rank"].tolist() == [
        1,
        0,
        1,
        0,
    ]
    assert data["low"].tolist() == [1, 0.5, 3, 2] and data["high"].isna().all()
    assert data["joined"].all() and "other" not in data
    alone = builders._prepare_lines(frame, "step", "model", None)
    assert alone["step"].tolist() == [1, 2, 3, 5]


def test_tooltips_name_each_column_once_with_its_interval():
    frame = pd.DataFrame(
        {"layer": [3, 4], "run": ["x", "y"], "value": [0.25, 12345.678]}
    )
    assert style.make_tooltips(frame, "run", "layer", None, "run") == [
        "\N{INVISIBLE SEPARATOR}x · layer 3: 0.25",
        "\N{INVISIBLE SEPARATOR}y · layer 4: 1.235e+04",
    ]
    ends = frame.assign(low=[0.1, NAN], high=[0.3, 2.0])
    found = style.make_tooltips(ends, "run")
    assert found[0].endswith("x: 0.25 [0.1, 0.3]") and not found[1].endswith("]")


def test_ticks_legends_and_bounds():
    values = pd.Series([0, 2, 30, 500])
    assert style._choose_ticks(values, 2.0, "symlog") == [0, 2, 20, 200]
    assert style._choose_ticks(values, 2.0, "log") == [2, 20, 200]
    both = pd.Series([-30.0, 5.0])
    assert style._choose_ticks(both, 1.0, "symlog") == [0, 1, 10, -1, -10]
    assert style._make_legend(["a"], 100) is None
    assert style._make_legend(["a", "b"], 66).columns == 0
    assert style._make_legend(["a", "b"], 65).columns == 1
    assert style._make_legend(["aa", "b", "c"], 99).columns == 2
    assert style.find_bounds(pd.Series([-3.0, 2.0]), True) == (-3, 3)
    assert style.find_bounds(pd.Series([-3.0, 2.0]), False) == (-3, 2)
    assert style.find_bounds(pd.Series([0.0, 0.0]), True) == (-1, 1)
    assert style.mix_evenly(["#000000", "#ff8000"], 3) == [
        "#000000",
        "#804000",
        "#ff8000",
    ]
    assert style.compute_luminance("#ffffff") == pytest.approx(1)
    assert style.compute_luminance("#00ff00") == pytest.approx(0.7152)
    assert style._lighten("#0072b2") == "#aad0e6"
    order = ["m", "m pale", "n"]
    colours = style._choose_colours(order, {"m pale": "m", "absent": "n"})
    assert colours == [
        style.PALETTE[0],
        style._lighten(style.PALETTE[0]),
        style.PALETTE[1],
    ]
    assert style.escape_control_in({"a\x00": ["b\x7f", ("c\n", 3)]}) == {
        "a␀": ["b␡", ["c\n", 3]]
    }
    assert (
        style.escape_control("\ud800 \udfff \ufffe \uffff \ue000") == "� � � � \ue000"
    )


def encoded(chart):
    spec = chart.to_dict()
    return [
        {
            name: (channel.get("field"), channel.get("title"))
            for name, channel in layer["encoding"].items()
            if isinstance(channel, dict) and "field" in channel
        }
        | {"mark": layer["mark"]["type"]}
        for layer in spec["layer"]
        if "encoding" in layer
    ], spec


def test_axes_of_charts_have_the_columns_and_titles_that_were_asked_for():
    frame = pd.DataFrame(
        {
            "at": [1.0, 2.0],
            "model": ["a", "b"],
            "name": ["p", "q"],
            "value": [3.0, 4.0],
            "low": [2.0, 3.0],
            "high": [4.0, 5.0],
        }
    )
    layers, _ = encoded(
        builders.scatter(frame, x="at", titles=("across", "up"), label="name")
    )
    assert [layer["mark"] for layer in layers] == [
        "rule",
        "line",
        "point",
        "text",
        "text",
    ]
    point = layers[2]
    assert point["x"] == ("at", "across") and point["y"] == ("value", "up")
    assert point["color"][0] == point["shape"][0] == "model"
    assert layers[0]["y"] == ("low", "up") and layers[0]["y2"][0] == "high"
    assert layers[3]["text"][0] == "name"
    plain, _ = encoded(
        builders.scatter(frame.drop(columns="high"), x="at", titles=("a", "b"))
    )
    assert [layer["mark"] for layer in plain] == ["point"]
    layers, spec = encoded(builders.bars(frame, category="name", titles=("v", "n")))
    assert layers[0]["x"] == ("value", "v") and layers[0]["y"] == ("name", "n")
    assert (layers[1]["x"], layers[1]["x2"][0]) == (("low", "v"), "high")
    assert spec["height"] == 44 and spec["width"] == 640
    lines, _ = encoded(
        builders.trajectory(
            frame, x="at", titles=("t", "u"), isotropic={"a": 1, "b": 2}
        )
    )
    assert [layer["mark"] for layer in lines] == ["rule", "area", "line", "point"]
    assert lines[2]["x"] == ("at", "t") and lines[2]["y"] == ("value", "u")
    assert (lines[1]["y"], lines[1]["y2"][0]) == (("low", "u"), "high")
    bare, _ = encoded(builders.trajectory(frame, x="at", band=False, gradient=False))
    assert [layer["mark"] for layer in bare] == ["line", "point"]
    many = pd.DataFrame({"step": range(41), "model": "a", "value": 1.0})
    for rows, marks in ((40, ["line", "point"]), (41, ["line"])):
        found, _ = encoded(builders.trajectory(many[:rows], band=False))
        assert [layer["mark"] for layer in found] == marks


def test_the_final_norm_is_half_a_layer_behind_the_last():
    frame = pd.DataFrame(
        {
            "layer": [1, 2, 2],
            "site": ["hidden", "hidden", "final"],
            "model": "m",
            "value": [1, 2, 3],
        }
    )
    chart = builders.layer_curve(frame, title="up")
    rows = next(iter(chart.to_dict()["datasets"].values()))
    assert [(r["layer"], r["joined"], r["value"]) for r in rows] == [
        (1, True, 1),
        (2, True, 2),
        (2.5, False, 3),
    ]


def test_cells_of_a_heat_map_are_placed_by_layer_and_head():
    frame = pd.DataFrame({"head": [10, 2], "layer": [3, 1], "value": [-4.0, 2.0]})
    spec = builders.heatmap(
        frame, title="t", diverging=True, names=("h", "l")
    ).to_dict()
    tiles = spec["layer"][0]["encoding"]
    assert tiles["x"]["field"] == "head" and tiles["x"]["sort"] == ["2", "10"]
    assert tiles["y"]["field"] == "layer" and tiles["y"]["sort"] == ["1", "3"]
    assert (tiles["x"]["title"], tiles["y"]["title"]) == ("h", "l")
    assert tiles["color"]["scale"]["domain"] == [-4, 4]
    assert tiles["color"]["legend"]["values"] == [-4, 0, 4]
    rows = next(iter(spec["datasets"].values()))
    assert [row["label"] for row in rows] == ["−4.0", "2.0"]
    small = builders.heatmap(frame, size=(59, 26)).to_dict()
    assert [r["label"] for r in next(iter(small["datasets"].values()))] == ["", ""]
    low = builders.heatmap(frame, size=(640, 15)).to_dict()
    assert [r["label"] for r in next(iter(low["datasets"].values()))] == ["", ""]


# ---- the map of heads


def a_panel(heads, layers=3, name="p"):
    return Panel(name, tuple(range(1, layers + 1)), tuple(range(heads)))


def test_the_look_of_a_table_follows_its_size():
    look = {n: head_map._choose_look(a_panel(n)) for n in (8, 9, 20, 21)}
    assert look == {8: "roomy", 9: "", 20: "", 21: "dense"}
    assert head_map._choose_look(a_panel(9, 24)) == "tall"
    assert head_map._choose_look(a_panel(8, 23)) == "roomy"
    assert head_map._label_columns(a_panel(20)) == [(n, 1) for n in range(20)]
    assert head_map._label_columns(a_panel(21)) == [(0, 8), (8, 8), (16, 5)]
    two = (a_panel(1, name="x"), a_panel(1, name="y"))
    assert head_map._title_panel(two[1], two) == "y"
    assert head_map._title_panel(two[1], two[1:]) == ""
    assert a_panel(2, 2).places == [("p", 1, 0), ("p", 1, 1), ("p", 2, 0), ("p", 2, 1)]


CELLS = pd.DataFrame(
    {
        "panel": ["x"] * 4 + ["y"] * 2,
        "layer": [1, 1, 2, 2, 1, 1],
        "head": [0, 1, 0, 1, 0, 1],
        "value": [0.5, 0.5, NAN, 1.0, 0.0, NAN],
        "exists": [True, True, True, True, True, False],
    }
).rename(columns={"panel": head_map.PANEL})


def test_cells_have_ranks_in_their_panel_ranges_of_their_layer_and_shades():
    assert head_map._write_ranks(CELLS) == (
        "2 of 3",
        "2 of 3",
        "",
        "1 of 3",
        "1 of 1",
        "",
    )
    assert head_map._write_ranges(CELLS) == (".500", "1.000", ".000")
    two = CELLS.assign(value=[0.25, 0.5, NAN, NAN, 0.0, 2.0])
    assert head_map._write_ranges(two) == (".250 to .500", "", ".000 to 2.000")
    # panels keep the order of the map, which is not that of their names
    turned = two.assign(**{head_map.PANEL: ["y"] * 4 + ["x"] * 2})
    assert head_map._write_ranges(turned) == head_map._write_ranges(two)
    last = head_map.DIGITS[-1]
    middle = head_map.DIGITS[len(head_map.DIGITS) // 2]
    assert head_map._choose_shades(CELLS, (0.0, 1.0)) == f"{middle}{middle}-{last}0 "
    assert head_map._choose_shades(CELLS, (1.0, 1.0))[0] == "0"
    assert head_map._write_scale((0.0, 1.0)) == (".000", ".500", "1.000")
    assert head_map._write_scale((0.5, 0.5)) == (".500",)
    assert (
        head_map._write_cell(SimpleNamespace(value=0.25), head_map.DOUBTFUL) == "(.25)"
    )
    assert (
        head_map._write_cell(SimpleNamespace(value=-0.25), head_map.NEGATIVE) == "−.25"
    )
    assert head_map._write_cell(SimpleNamespace(value=NAN), head_map.DOUBTFUL) == "–"
    names = [
        head_map.name_shade(" ", " ", True),
        head_map.name_shade("-", " ", True),
        head_map.name_shade("A", "−", True),
        head_map.name_shade("A", "·", True),
        head_map.name_shade("0", " ", False),
    ]
    assert names == ["none", "undefined", "d10 minus", "d10 doubt", "s0"]
    rules = head_map.write_shades().splitlines()
    assert len(rules) == 2 * (len(head_map.DIGITS) + 1)
    assert rules[0] == f".s0{{background:{style.SEQUENTIAL[0]};color:#000}}"
    assert (
        f"background:{style.SEQUENTIAL[-1]};color:#fff"
        in rules[len(head_map.DIGITS) - 1]
    )
    # each scale has the shades of its own colours, and a bar from the lowest on
    one, other = rules[len(head_map.DIGITS)], rules[-1]
    for letter, colours, bar in (
        ("s", style.SEQUENTIAL, one),
        ("d", style.DIVERGING, other),
    ):
        assert bar == (
            f".scale-{letter} .bar{{background:linear-gradient(to right,{','.join(colours)})}}"
        )
        assert f"background:{colours[-1]};" in rules[rules.index(bar) - 1]


# ---- pages


def row(metric, layer=1, value=0.5, low=NAN, high=NAN, **more):
    found = {"metric": metric, "stack": "encoder", "kind": "self", "layer": layer}
    found |= {"site": "hidden", "token_policy": "all", "value": value, "low": low}
    return found | {"high": high, "n_vectors": 1000, "n_units": 40} | more


def results(rows, manifest=None):
    return Results(as_records(pd.DataFrame(rows)), manifest or {})


def of_head(metric, layer, head, value, low=NAN, high=NAN, **more):
    site = "query" if metric.startswith("query") else "attention"
    return row(metric, layer, value, low, high, head=head, site=site, **more)


def test_tiles_are_of_the_highest_layer_and_name_it():
    rows = [row("mean_cosine", 1, 0.25, 0.2, 0.3), row("mean_cosine", 2, 0.5, 0.4, 0.6)]
    rows += [row("drift.share", n, v) for n, v in ((1, 0.1), (2, 0.8))]
    rows += [
        row("mean_cosine.top_share", 2, v, component=c)
        for c, v in (("1", 0.2), ("3", 0.6))
    ]
    rows += [row("spectrum.effective_rank", n, v) for n, v in ((1, 4.0), (2, 7.4))]
    rows += [
        row("mean_cosine.contribution", 2, 0.1, component=str(k)) for k in range(9)
    ]
    assert page.list_tiles(results(rows)) == [
        ("highest anisotropy A", ".500", "[.400, .600] at layer 2"),
        ("drift share there", "80 %", "of the mean norm is the mean vector"),
        ("carried by 3 dimensions", "60 %", "of A at layer 2"),
        ("effective rank there", "7 of 9", "directions used"),
    ]
    without_interval = page.list_tiles(results([row("mean_cosine", 2, 0.5)]))
    assert without_interval == [("highest anisotropy A", ".500", "at layer 2")]


def test_the_head_of_a_series_is_of_its_last_step_alone(monkeypatch, tmp_path):
    """The first step has the higher A, more layers and more vectors; a second seed has the last step too."""
    given = {}
    monkeypatch.setattr(page, "write_page", lambda *_, **content: given.update(content))
    monkeypatch.setattr(page, "draw_figures", lambda *_, **__: {})
    rows = []
    for seed, step, layers, value in ((1, 0, 3, 0.9), (1, 50, 2, 0.5), (2, 50, 4, 0.8)):
        for layer in range(1, layers + 1):
            of_step = row("mean_cosine", layer, value - 0.1 / layer)
            of_step |= {"seed": seed, "step": step, "n_vectors": 1000 * layers + layer}
            rows.append(of_step)
    words = {"position": "patch", "unit": "image", "counted": "sample"}
    about = {"checkpoints": [{"step": 50}, {"step": 0}], "corpus": {"words": words}}
    page.write_run(results(rows, about), tmp_path, ("svg",))
    assert given["facts"] == [
        ("checkpoints", "2"),
        ("steps", "0 to 50"),
        ("patches", "2,002"),
        ("blocks", "2"),
    ]
    assert given["tiles"][0][:2] == ("highest anisotropy A", ".450")


def test_heads_of_tiles_attend_to_something():
    """A head that is uniform with its whole interval has no alignment to speak of."""
    entropy = [
        (1, 0, 0.4, 0.3, 0.5),
        (1, 1, 0.999, 0.9985, 1.0),
        (2, 0, 0.6, 0.5, 0.9999),
    ]
    cosine = [(1, 0, 0.2), (1, 1, 0.99), (2, 0, -0.7)]
    rows = [of_head("attention.entropy_normalised", *e) for e in entropy]
    rows += [of_head("query_key.cosine", *c) for c in cosine]
    found = page._list_head_tiles(results(rows))
    assert found == [
        ("sharpest head", ".400", "normalised entropy, layer 1, head 0"),
        ("strongest alignment", "−.700", "cos(Q̄, K̄), layer 2, head 0"),
    ]
    only = page._list_head_tiles(results([rows[1], rows[4]]))
    assert only == [
        ("attention", "uniform", "in every head; lowest entropy .999, layer 1, head 1")
    ]
    alone = page._list_head_tiles(results(rows[3:]))
    assert alone == [("strongest alignment", ".990", "cos(Q̄, K̄), layer 1, head 1")]
    two = [*rows, of_head("attention.entropy_normalised", 1, 0, 0.9, stack="decoder")]
    assert page._list_head_tiles(results(two))[0][2].endswith("encoder layer 1, head 0")


def test_a_uniform_head_hides_no_head_of_another_stack_or_kind():
    """Layer 1 has a head 0 in three places: the first two are uniform, and have the stronger alignments."""
    places = (
        ({"stack": "encoder"}, 0.999, 0.9),
        ({"stack": "decoder"}, 0.999, -0.8),
        ({"stack": "decoder", "kind": "cross"}, 0.5, 0.3),
        ({"stack": "encoder", "layer": 2}, 0.7, 0.1),
    )
    rows = []
    for place, entropy, cosine in places:
        of = {"layer": 1, "head": 0, **place}
        rows.append(
            of_head(
                "attention.entropy_normalised",
                value=entropy,
                low=entropy - 1e-4,
                high=1.0,
                **of,
            )
        )
        rows.append(of_head("query_key.cosine", value=cosine, **of))
    found = page._list_head_tiles(results(rows))
    assert [tile[:2] for tile in found] == [
        ("sharpest head", ".500"),
        ("strongest alignment", ".300"),
    ]
    assert found[1][2] == "cos(Q̄, K̄), decoder layer 1, head 0"


def test_heads_of_cross_attention_belong_to_the_layer_of_their_stack():
    rows = [row("mean_cosine", 1, 0.4), row("mean_cosine", 1, 0.6, stack="decoder")]
    places = (
        (("encoder", "self"), 2),
        (("decoder", "self"), 3),
        (("decoder", "cross"), 4),
    )
    for (stack, kind), heads in places:
        for head in range(heads):
            rows.append(of_head("h", 1, head, 0.1 * head, stack=stack, kind=kind))
    found = results(rows)
    described = {"metric": "h", "draw": {"title": "up"}, "group": "of h"}
    figure = parts.Figure("h", "t", "c", "b", "a", {"": None})
    made = head_map.build_head_map(
        found, [(described, found.select_heads("h"), figure)]
    )
    assert [(panel.name, len(panel.heads)) for panel in made.panels] == [
        ("encoder", 2),
        ("decoder", 3),
        ("decoder, cross-attention", 4),
    ]
    assert made.layers == (
        "Layer 1 has 2 heads. A of its output: .400.",
        "Layer 1 has 3 heads. A of its output: .600.",
        "Layer 1 has 4 heads. A of its output: .600.",
    )


def test_notices_are_warnings_and_what_no_warning_counts():
    manifest = {
        "warnings": ["2 zero vectors at encoder.1.hidden"],
        "excluded": {
            "encoder.1.hidden": {"zero": 2},
            "encoder.2.hidden": {"zero": 1, "nonfinite": 3},
            "encoder.3.hidden": {"zero": 0, "nonfinite": 0},
            "encoder.4.hidden": {"nonfinite": 1},
        },
    }
    assert page.list_notices(manifest) == [
        "2 zero vectors at encoder.1.hidden",
        "1 zero vector and 3 vectors with NaN or Inf left out at encoder.2.hidden",
        "1 vector with NaN or Inf left out at encoder.4.hidden",
    ]
    assert page.list_notices({"excluded": None, "warnings": None}) == []


def test_what_else_a_manifest_says_is_listed_with_its_path():
    manifest = {
        "command": "x",
        "a": {"command": "y", "b": {"c": 0, "d": None}},
        "warnings": ["w"],
        "excluded": {"encoder.1.hidden": {"zero": 1}},
        "checkpoints": [{"step": 5}],
        "list": [1, "two"],
        "empty": [],
        "none": "",
        "no": False,
    }
    assert list(page._list_provenance(manifest)) == [
        ("a.command", "y"),
        ("a.b.c", "0"),
        ("list", "1, two"),
        ("no", "False"),
    ]
    steps = {"checkpoints": [{"step": 5}, {"step": 12_000}, {"step": 0}]}
    assert page._describe_checkpoints(steps) == [
        ("checkpoints", "3"),
        ("steps", "0 to 12,000"),
    ]
    assert page._describe_checkpoints({}) == []
    titles = {
        "org/name": "org/name",
        "/a/b": "b",
        "./c/d": "d",
        "../e": "e",
        "": "unnamed model",
    }
    assert {name: page.make_title({"model": name}) for name in titles} == titles


def test_only_the_script_of_the_page_may_run():
    import base64
    import hashlib

    assert "script-src 'none';" in page.write_security_policy("")
    digest = base64.b64encode(hashlib.sha256(b"go()").digest()).decode()
    policy = page.write_security_policy("go()")
    assert f"script-src 'sha256-{digest}';" in policy
    assert policy.startswith("default-src 'none';") and "form-action 'none'" in policy


def a_figure(name, *labels):
    return parts.Figure(
        name, "t", "c", "b", "a", {label: lambda _w: None for label in labels}
    )


def test_figures_are_numbered_with_their_map_first():
    def section(drawn, mapped=None):
        return SimpleNamespace(head_map=mapped, drawn=drawn)

    sections = [
        section([a_figure("x", ""), a_figure("y", "")]),
        section([a_figure("z", "")], SimpleNamespace(name="heads")),
    ]
    assert page.number_figures(sections) == {"x": 1, "y": 2, "heads": 3, "z": 4}
    files = a_figure("x", "one", "two").files
    assert [(file, label) for file, (label, _) in files.items()] == [
        ("x", "one"),
        ("x-two", "two"),
    ]
    frame = pd.DataFrame({"value": [2.0, 1.0, 3.0, 3.0], "component": [*"abcd"]})
    assert parts.describe_span(frame) == "lowest 1.000 at b, highest 3.000 at c"


def test_a_drawing_has_the_size_and_columns_of_its_width():
    calls = []
    frame = pd.DataFrame({parts.PANEL: ["x", "x"], "value": [1, 2]})
    entry = {"draw": {"title": "t", "zero": True}, "columns": 3, "height": (50, 40)}

    def builder(given, **options):
        calls.append(options)
        assert given is frame

    draw = parts.make_drawing(builder, frame, entry, zero=False)
    draw(parts.WIDE)
    draw(parts.WIDE - 1)
    common = {"panel": None, "title": "t", "zero": False}
    assert calls == [
        common | {"size": (parts.WIDE, 50), "columns": 3},
        common | {"size": (parts.WIDE - 1, 40), "columns": 1},
    ]
    frame = pd.DataFrame({parts.PANEL: ["x", "y"], "value": [1, 2]})
    parts.make_drawing(builder, frame, {}, height=(7, 8))(parts.NARROW)
    assert calls[2] == {"panel": parts.PANEL, "size": (parts.NARROW, 8), "columns": 1}


def test_what_the_script_reads_is_packed_in_the_order_of_cells():
    quantity = head_map.Quantity(
        figure=a_figure("n", ""),
        group="g",
        unit="u",
        diverging=True,
        scale=("1", "2"),
        texts=("a", "b"),
        ends=("", ""),
        cells=("c", ""),
        shades="01",
        marks="  ",
        ranks=("r", "s"),
        layers=("l",),
    )
    packed = head_map._pack(quantity)
    assert packed == {
        "name": "n",
        "title": "t",
        "group": "g",
        "caption": "c",
        "basis": "b",
        "alt": "a",
        "unit": "u",
        "diverging": True,
        "scale": ("1", "2"),
        "shades": "01",
        "marks": "",
        "texts": "a;b",
        "ends": "",
        "cells": "c;",
        "ranks": "r;s",
        "layers": "l",
    }
    made = head_map.HeadMap((a_panel(2, 1),), (quantity,), ("k</script>", ""), ("s",))
    assert "</script>" not in made.payload
    read = json.loads(str(made.payload))
    assert read["kinds"] == ["k</script>", ""] and read["layers"] == ["s"]
    assert read["panels"] == [{"name": "", "layers": [1], "heads": [0, 1]}]
    (table,) = made.tables
    assert table["rows"] == [(1, [("d0", "c"), ("d1", "")])]
    assert (table["heads"], table["look"], table["labels"]) == (
        2,
        "roomy",
        [(0, 1), (1, 1)],
    )
