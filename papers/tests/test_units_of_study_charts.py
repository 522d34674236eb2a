"""What charts of studies draw: which column lies on which axis, in which colour, order and panel, under which words."""

from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pytest

from anisoscope.charts.style import GRID, INK, MUTED, OTHER, PALETTE
from anisoscope.store import as_records
from anisoscope_papers import series_charts, study_charts


def read_chart(chart) -> tuple[dict[str, Any], list[dict[str, Any]], list[Any]]:
    """Of a chart: its description, those of its marks from below, and the rows that it draws."""
    described = chart.to_dict()
    inner = described.get("spec", described)
    table = described.get("data")
    rows = described["datasets"][table["name"]] if table else []
    return described, inner["layer"], rows


def read_axes(mark: dict[str, Any]) -> dict[str, Any]:
    """{channel: the column, or the number, that it shows} of a mark."""
    found = {}
    for channel, shown in mark["encoding"].items():
        for kind in ("field", "value", "datum"):
            if kind in shown:
                found[channel] = shown[kind]
        if isinstance(shown, list):
            found[channel] = [one["field"] for one in shown]
    return found


def read_kind(mark: dict[str, Any]) -> str:
    kind = mark["mark"]
    return kind if isinstance(kind, str) else kind["type"]


def read_filters(mark: dict[str, Any]) -> list[str]:
    steps = mark.get("transform", [])
    return [step["filter"] for step in steps if "filter" in step]


# ---- quantities against the norm of the bias -------------------------------------------------------------------------


def make_curves(*, lowest=True):
    """Two systems with two lines each, the larger N first; the ends of every interval differ."""
    rows = []
    for reading, side, bias in product(("b", "a"), ("keys", "heads"), (10.0, 0.0, 1.0)):
        value = bias + 2.0 + (reading == "a") / 10 + (side == "keys") / 100
        ends = {"low": value - 1, "high": value + 2}
        if lowest:
            ends |= {"lowest": value - 1.5, "highest": value + 3}
        place = {"reading": reading, "side": side, "N": bias, "value": value}
        rows.append(place | ends | {"seed": 4, "metric": "other"})
    return pd.DataFrame(rows)


def test_lines_against_the_norm_have_their_interval_and_their_range():
    chart = study_charts.draw_against_norm(
        make_curves(), series="side", title="norm", zero=True, line=(0.5, "chance")
    )
    described, marks, rows = read_chart(chart)
    kinds = [read_kind(mark) for mark in marks]
    assert kinds == ["area", "area", "rule", "text", "line", "point"]
    palest, pale, rule, text, line, point = marks
    for band, ends, opacity in (
        (palest, ("lowest", "highest"), 0.12),
        (pale, ("low", "high"), 0.25),
    ):
        axes = read_axes(band)
        assert (axes["x"], axes["y"], axes["y2"]) == ("N", *ends)
        assert band["mark"]["opacity"] == opacity
        assert read_filters(band) == ["isValid(datum.N)", f"isValid(datum.{ends[0]})"]
    at = rule["transform"][1]["calculate"]
    assert at == "0.5" and text["transform"][2]["calculate"] == "'chance'"
    for mark in (line, point):
        axes = read_axes(mark)
        assert (axes["x"], axes["y"], axes["color"]) == ("N", "value", "side")
        height = mark["encoding"]["y"]
        assert height["title"] == "norm"
        assert height["scale"] == {"type": "linear", "zero": True, "nice": True}
        assert read_filters(mark) == ["isValid(datum.N)"]
    assert read_axes(point)["shape"] == "side"
    # Colours, shapes and panels come in the order of the table, not of names.
    for channel in ("color", "shape"):
        assert point["encoding"][channel]["scale"]["domain"] == ["keys", "heads"]
    assert described["facet"]["field"] == "reading"
    assert described["facet"]["sort"] == ["b", "a"] and described["columns"] == 2
    assert [row["N"] for row in rows] == [0] * 4 + [1] * 4 + [10] * 4
    kept = {"reading", "side", "N", "value", "low", "high", "lowest", "highest"}
    assert set(rows[0]) == kept
    where = line["encoding"]["x"]
    assert where["title"] == "norm N of the bias"
    assert where["scale"] == {"type": "symlog", "constant": 0.1, "nice": False}
    assert where["axis"]["values"] == [0, 0.1, 1, 10, 100]


def test_without_a_range_and_a_level_only_the_interval_lies_under_the_lines():
    chart = study_charts.draw_against_norm(
        make_curves(lowest=False), series="reading", title="norm"
    )
    described, marks, rows = read_chart(chart)
    assert [read_kind(mark) for mark in marks] == ["area", "line", "point"]
    # Readings are the series: there are no panels, and each column is kept once.
    assert "facet" not in described and len(rows) == 12
    assert (described["width"], described["height"]) == (640, 200)
    assert marks[1]["encoding"]["y"]["scale"]["zero"] is False


def test_on_a_logarithmic_axis_numbers_that_are_not_above_0_are_left_out():
    frame = make_curves()
    frame.loc[frame["N"] == 0, ["low", "lowest"]] = [0.0, -3.0]
    chart = study_charts.draw_against_norm(
        frame, series="side", title="norm", scale="log"
    )
    _, marks, rows = read_chart(chart)
    for row in rows:
        if row["N"] == 0:
            assert row["low"] is None and row["lowest"] is None
        else:
            assert row["low"] == pytest.approx(row["value"] - 1)
        assert row["value"] >= 2 and row["highest"] == pytest.approx(row["value"] + 3)
    height = marks[-1]["encoding"]["y"]
    assert height["scale"] == {"type": "log", "zero": False, "nice": False}
    # From 1.5 to 15.11.
    assert height["axis"]["values"] == [10]


def test_rings_of_fixed_points_lie_over_the_curves_and_the_trained_band_under_them():
    frame = make_curves(lowest=False).rename(columns={"side": "place"})
    found = pd.DataFrame(
        {
            "reading": ["a", "b"],
            "at": [3.0, 4.0],
            "at_value": [7.0, 8.0],
            "at_text": ["N* = 3", "N* = 4"],
        }
    )
    chart = study_charts.draw_norms(frame, found, title="norms", trained=(2.5, 6.5))
    _, marks, rows = read_chart(chart)
    kinds = [read_kind(mark) for mark in marks]
    assert kinds == ["rect", "area", "line", "point", "point", "text"]
    band, _, line, _, ring, text = marks
    ends = {step["as"]: step["calculate"] for step in band["transform"][1:]}
    assert ends == {"floor": "2.5", "ceiling": "6.5"}
    assert line["encoding"]["color"]["scale"]["domain"] == ["keys", "heads"]
    assert line["encoding"]["y"]["scale"]["type"] == "log"
    for mark in (ring, text):
        axes = read_axes(mark)
        assert (axes["x"], axes["y"]) == ("at", "at_value")
        assert read_filters(mark) == ["isValid(datum.at)"]
        assert mark["encoding"]["x"]["scale"] == line["encoding"]["x"]["scale"]
        assert mark["encoding"]["y"]["title"] == "norms"
    assert ring["mark"]["filled"] is False and ring["mark"]["color"] == INK
    assert read_axes(text)["text"] == "at_text"
    points = [row for row in rows if row["at"] is not None]
    assert [(r["reading"], r["at"], r["at_value"]) for r in points] == [
        *(("a", 3, 7), ("b", 4, 8)),
    ]
    # Fixed points are no line: they have no N, and no name of their own in the legend.
    assert {(row["N"], row["place"]) for row in points} == {(None, "keys")}
    assert len(rows) == len(frame) + 2
    plain = study_charts.draw_norms(frame, found, title="norms")
    assert [read_kind(mark) for mark in read_chart(plain)[1]] == kinds[1:]


def test_ticks_of_a_logarithmic_axis_lie_inside_and_are_few():
    ticks = study_charts._list_powers
    assert ticks(pd.DataFrame({"a": [1.0, np.nan], "b": [5.0, 1000.0]})) == [
        *(1, 10, 100, 1000),
    ]
    assert ticks(pd.DataFrame([0.99, 999.0])) == [1, 10, 100]
    # Six are all shown; of seven every other one.
    assert ticks(pd.DataFrame([1.0, 1e5])) == [10.0**k for k in range(6)]
    assert ticks(pd.DataFrame([1.0, 1e6])) == [1, 100, 1e4, 1e6]
    assert ticks(pd.DataFrame([1e-7, 1e6])) == [
        float(f"1e{k}") for k in (-7, -4, -1, 2, 5)
    ]


# ---- tests, laws, ranges and texts -----------------------------------------------------------------------------------


def test_each_p_has_its_own_mark_and_a_p_of_0_is_drawn_at_the_left_end():
    data = pd.DataFrame(
        {
            "system": ["z", "a"],
            "p": [0.5, 0.25],
            "p_scipy": [0.0, 0.125],
            "p_smallest": [0.01, 0.02],
        }
    )
    chart = study_charts.draw_p_values(data, 0.05)
    described = chart.to_dict()
    rule, tick, cross, point = described["layer"]
    shown = [(read_kind(m), read_axes(m)["x"]) for m in described["layer"]]
    assert shown == [
        *(("rule", "p"), ("tick", "p_smallest")),
        *(("point", "p_scipy"), ("point", "p")),
    ]
    assert cross["mark"]["shape"] == "cross" and "shape" not in point["mark"]
    assert rule["mark"]["strokeDash"] == [4, 3] and "y" not in rule["encoding"]
    for mark in (tick, cross, point):
        assert read_axes(mark)["y"] == "system"
        assert mark["encoding"]["y"]["sort"] == ["z", "a"]
    for mark in described["layer"]:
        across = mark["encoding"]["x"]
        assert across["title"] == "p (log scale)"
        assert across["scale"] == {
            "type": "log",
            "nice": False,
            "domain": [5e-8, 1.2],
        }
    of_line, of_rows = sorted(described["datasets"].values(), key=len)
    assert of_line == [{"p": 0.05}]
    assert [row["p_scipy"] for row in of_rows] == [1e-7, 0.125]
    assert [row["p"] for row in of_rows] == [0.5, 0.25]
    assert (described["width"], described["height"]) == (420, 44)
    # The table that was given is left as it was.
    assert data["p_scipy"].tolist() == [0, 0.125]


def test_models_over_dimensions_are_named_once_and_laws_lie_under_them():
    rows = []
    for model, layer, value in (
        *(("wide", 0, 0.3), ("wide", 1, 0.5), ("wide", 2, 0.4)),
        *(("narrow", 0, 0.9), ("narrow", 1, 0.2)),
    ):
        dimension = 64 if model == "wide" else 8
        place = {"d": dimension, "model": model, "layer": layer, "value": value}
        rows.append(place | {"low": value / 2, "high": value + 0.05, "seed": 1})
    laws = pd.DataFrame({"d": [4, 8], "value": [0.4, 0.3], "law": ["mean", "bound"]})
    described = study_charts.draw_over_dimensions(pd.DataFrame(rows), laws).to_dict()
    line, rule, point, text = described["layer"]
    kinds = [read_kind(mark) for mark in described["layer"]]
    assert kinds == ["line", "rule", "point", "text"]
    assert read_axes(line) == {"x": "d", "y": "value", "strokeDash": "law"}
    dash = line["encoding"]["strokeDash"]["scale"]
    assert dash == {"domain": ["mean", "bound"], "range": [[1, 0], [4, 3]]}
    assert line["mark"]["color"] == MUTED
    assert read_axes(rule) == {"x": "d", "y": "low", "y2": "high", "color": "model"}
    assert read_filters(rule) == ["isValid(datum.low)"]
    assert read_axes(point) == {"x": "d", "y": "value", "color": "model"}
    assert read_axes(text) == {"x": "d", "y": "value", "color": "model", "text": "name"}
    assert point["encoding"]["color"]["scale"]["domain"] == ["wide", "narrow"]
    assert point["encoding"]["x"]["title"] == "dimension d"
    assert point["encoding"]["y"]["title"] == "cosine; A of layers"
    assert point["encoding"]["x"]["scale"]["domain"] == [4, 16384]
    assert point["encoding"]["x"]["axis"]["values"] == [
        *(4, 16, 64, 256, 1024, 4096, 16384),
    ]
    assert point["encoding"]["y"]["scale"] == {
        "type": "log",
        "domain": [1e-5, 1],
        "nice": False,
        "clamp": True,
    }
    tables = sorted(described["datasets"].values(), key=len)
    assert tables[0] == laws.to_dict("records")
    names = {row["name"]: (row["model"], row["value"]) for row in tables[1]}
    assert names["wide"] == ("wide", 0.5) and names["narrow"] == ("narrow", 0.9)
    assert [row["name"] for row in tables[1]].count("") == 3
    drawn = {"d", "value", "low", "high", "model", "layer", "name"}
    assert set(tables[1][0]) == drawn


def draw_cosines(rows, domain):
    """A panel for each `to`, a row for each `of`, a colour for each `stage`."""
    return study_charts.draw_ranges(
        pd.DataFrame(rows),
        category="of",
        series="stage",
        panel="to",
        title="cosine",
        domain=domain,
        width=200,
    )


def test_bars_are_as_thick_in_a_chart_of_more_rows_than_panels():
    rows = []
    for of, to in product("abc", "xy"):
        ends = dict.fromkeys(("least", "lower", "middle", "upper", "most"), 0.5)
        rows.append({"of": of, "stage": "tuned", "to": to, **ends})
    chart = draw_cosines(rows, (-1, 1))
    assert chart.to_dict()["spec"]["height"] == 3 * 30


def test_a_line_a_bar_and_a_dot_show_their_own_quantiles():
    rows = []
    ends = ("least", "lower", "middle", "upper", "most")
    for nth, (of, stage, to) in enumerate(product("za", ("tuned", "raw"), "yx")):
        places = {name: nth / 10 + k for k, name in enumerate(ends)}
        rows.append({"of": of, "stage": stage, "to": to, **places, "seed": 9})
    chart = draw_cosines(rows, (-2, 5))
    described, marks, drawn = read_chart(chart)
    zero, line, bar, dot = marks
    kinds = [read_kind(mark) for mark in marks]
    assert kinds == ["rule", "rule", "rule", "point"]
    assert read_axes(zero) == {"x": 0}
    common = {"y": "of", "yOffset": "stage", "color": "stage"}
    assert read_axes(line) == {"x": "least", "x2": "most", **common}
    assert read_axes(bar) == {"x": "lower", "x2": "upper", **common}
    assert read_axes(dot) == {"x": "middle", **common}
    assert line["encoding"]["x"]["title"] == "cosine"
    assert line["encoding"]["x"]["scale"] == {"domain": [-2, 5], "nice": False}
    assert bar["mark"]["strokeWidth"] == 6 and dot["mark"]["filled"] is True
    assert line["encoding"]["y"]["sort"] == ["z", "a"]
    assert line["encoding"]["yOffset"]["sort"] == ["tuned", "raw"]
    assert line["encoding"]["color"]["scale"]["domain"] == ["tuned", "raw"]
    assert described["facet"]["field"] == "to"
    assert described["facet"]["sort"] == ["y", "x"] and described["columns"] == 1
    assert (described["spec"]["width"], described["spec"]["height"]) == (200, 60)
    kept = ["of", "stage", "to", *ends]
    assert drawn == pd.DataFrame(rows)[kept].to_dict("records")


def test_texts_lie_at_their_distances_and_the_muted_column_is_pale():
    frame = pd.DataFrame(
        {"row": ["z", "a", "m"], "of": ["1", "2", "3"], "words": ["x", "y", "w"]}
    )
    chart = study_charts.draw_texts(
        frame, category="row", columns={"of": 10, "words": 150}, muted="of", width=300
    )
    described, marks, rows = read_chart(chart)
    shown = [(read_axes(mark), mark["mark"]["color"]) for mark in marks]
    assert shown == [
        ({"y": "row", "x": 10, "text": "of"}, MUTED),
        ({"y": "row", "x": 150, "text": "words"}, INK),
    ]
    assert all(mark["mark"]["align"] == "left" for mark in marks)
    assert marks[0]["encoding"]["y"]["sort"] == ["z", "a", "m"]
    assert (described["width"], described["height"]) == (300, 78)
    assert rows == frame.to_dict("records")


# ---- along training --------------------------------------------------------------------------------------------------


def make_series(metric, layers, seeds=(0, 1), steps=(0, 8, 80)):
    rows = []
    for seed, step, layer, head in product(seeds, steps, layers, (0, 1)):
        place = {"seed": seed, "step": step, "layer": layer, "head": head}
        rows.append(place | {"metric": metric, "value": layer / 10})
    return as_records(pd.DataFrame(rows))


def make_endings(layers, seeds=(0, 1)):
    places = list(product(seeds, layers, (0, 1)))
    values = [(1, -1, 0)[(seed + layer + head) % 3] for seed, layer, head in places]
    index = pd.MultiIndex.from_tuples(places, names=("seed", "layer", "head"))
    return pd.Series(values, index)


def check_steps(mark):
    """The horizontal axis is that of steps: linear up to step 8."""
    where = mark["encoding"]["x"]
    assert (where["field"], where["title"]) == ("step", "training step")
    assert where["scale"]["type"] == "symlog" and where["scale"]["constant"] == 8
    assert where["axis"]["values"] == [0, 8, 80]


@pytest.mark.parametrize(
    ("apart", "seeds", "columns"), [(False, 3, 2), (True, 3, 3), (True, 7, 5)]
)
def test_heads_are_lines_over_a_band_of_chance(apart, seeds, columns):
    layers, seeds = (1, 2, 3), tuple(range(seeds))
    records = make_series("query_key.cosine", layers, seeds)
    chart = series_charts.draw_heads(
        records, make_endings(layers, seeds), 0.2, apart=apart
    )
    described, marks, rows = read_chart(chart)
    kinds = [read_kind(mark) for mark in marks]
    assert kinds == ["rect", "rule", "rule", "line"]
    band, below, above, line = marks
    ends = {step["as"]: step["calculate"] for step in band["transform"][1:]}
    assert ends == {"floor": "-0.2", "ceiling": "0.2"}
    assert [mark["transform"][1]["calculate"] for mark in (below, above)] == [
        *("-0.2", "0.2"),
    ]
    axes = read_axes(line)
    assert (axes["y"], axes["color"]) == ("value", "ending")
    assert axes["detail"] == ["head", "seed"]
    check_steps(line)
    height = line["encoding"]["y"]
    assert height["title"] == "cosine of the means"
    assert height["scale"] == {"domain": [-1, 1]}
    assert line["encoding"]["color"]["scale"] == {
        "domain": ["ends similar", "ends opposite", "neither"],
        "range": [PALETTE[0], PALETTE[1], OTHER],
    }
    assert described["facet"]["field"] == "panel" and described["columns"] == columns
    assert described["spec"]["height"] == 150
    shown = (1, 3) if apart else layers
    assert len(rows) == len(shown) * len(seeds) * 3 * 2


def test_products_have_a_colour_by_layer_and_a_line_at_0():
    layers = (1, 2, 3)
    records = make_series("query_key.dot", layers)
    described, marks, _ = read_chart(
        series_charts.draw_products(records, make_endings(layers))
    )
    zero, line = marks
    assert read_axes(zero) == {"y": 0} and zero["mark"]["color"] == GRID
    axes = read_axes(line)
    assert (axes["y"], axes["color"]) == ("value", "layer")
    assert axes["detail"] == ["head", "layer"]
    assert line["encoding"]["y"]["title"] == "product of the means"
    assert line["encoding"]["color"]["type"] == "quantitative"
    assert line["encoding"]["color"]["legend"]["type"] == "gradient"
    check_steps(line)
    assert described["resolve"] == {"scale": {"y": "independent"}}
    assert described["facet"]["sort"] == [
        *("heads that end similar", "heads that end opposite"),
    ]


@pytest.mark.parametrize("layers", [(4, 9), (4, 5, 9)])
def test_the_first_layer_and_the_last_are_coloured_and_alone_have_bands(layers):
    rows = [
        {"layer": n, "step": step, "value": n / 10, "low": 0.0, "high": 1.0}
        for n, step in product(layers, (0, 8, 80))
    ]
    chart = series_charts.draw_layers(pd.DataFrame(rows), "entropy")
    described, marks, drawn = read_chart(chart)
    band, line = marks
    assert [read_kind(mark) for mark in marks] == ["area", "line"]
    assert read_filters(band) == [
        *("datum.place != 'layers between'", "isValid(datum.low)"),
    ]
    assert read_filters(line) == []
    for mark, field in ((band, "low"), (line, "value")):
        axes = read_axes(mark)
        assert axes["y"] == field and axes["color"] == "place"
        assert axes["detail"] == "layer"
        assert mark["encoding"]["y"]["title"] == "entropy"
        check_steps(mark)
    assert line["encoding"]["y"]["scale"] == {"zero": False}
    colours = {
        "layer 4": PALETTE[0],
        "layers between": OTHER,
        "layer 9": PALETTE[1],
    }
    if len(layers) == 2:
        del colours["layers between"]
    scale = line["encoding"]["color"]["scale"]
    assert dict(zip(scale["domain"], scale["range"], strict=True)) == colours
    assert (described["width"], described["height"]) == (640, 280)
    assert len(drawn) == len(layers) * 3


@pytest.mark.parametrize("count", [2, 3])
def test_parts_have_colours_and_dashes_in_the_order_of_their_names(count):
    def part(shift):
        rows = [
            {"layer": n, "step": step, "value": n + shift, "low": n, "high": n + 1.0}
            for n, step in product((2, 1), (0, 8, 80))
        ]
        return pd.DataFrame(rows)

    parts = {name: part(k / 10) for k, name in enumerate(("z", "a", "m")[:count])}
    _, marks, drawn = read_chart(series_charts.draw_parts(parts, "entropy", zero=True))
    band, line = marks
    assert [read_kind(mark) for mark in marks] == ["area", "line"]
    axes = read_axes(line)
    assert (axes["y"], axes["color"], axes["strokeDash"]) == ("value", "part", "part")
    assert line["encoding"]["y"]["scale"] == {"zero": True}
    assert line["encoding"]["y"]["title"] == "entropy"
    check_steps(line)
    check_steps(band)
    assert (read_axes(band)["y"], read_axes(band)["y2"]) == ("low", "high")
    scale = line["encoding"]["color"]["scale"]
    assert scale["domain"] == ["z", "a", "m"][:count]
    assert scale["range"] == [PALETTE[0], PALETTE[1], INK][:count]
    dash = line["encoding"]["strokeDash"]["scale"]
    assert dash["range"] == [[1, 0], [1, 0], [5, 5]][:count]
    assert len(drawn) == count * 6
    _, (_, line), _ = read_chart(series_charts.draw_parts(parts, "entropy"))
    assert line["encoding"]["y"]["scale"] == {"zero": False}


def make_plane(basis, steps=(0, 8, 80)):
    """Means of queries and keys in a plane, and three points of each at two of the steps."""
    rows = []
    for side, step, k in product(("query", "key"), steps, (1, 2)):
        value = (step + 1.0) * (1 if side == "query" else -1) * k
        row = {"metric": f"svd.{basis}.{side}", "seed": 0, "step": step}
        rows.append(row | {"component": str(k), "value": value})
        for point in range(3 if step else 0):
            row = row | {"metric": f"svd.{basis}.cloud.{side}"}
            rows.append(row | {"component": f"{point} {k}", "value": value + point})
    return as_records(pd.DataFrame(rows))


SIDES = {"domain": ["queries", "keys"], "range": [PALETTE[0], PALETTE[1]]}


def test_clouds_are_points_and_their_means_rings_with_a_white_rim():
    chart = series_charts.draw_clouds(make_plane("union"), "union", "head 3")
    described, marks, rows = read_chart(chart)
    across, up, cloud, rim, ring = marks
    assert (read_axes(across), read_axes(up)) == ({"x": 0}, {"y": 0})
    for mark, filtered in (
        (cloud, "!datum.mean"),
        (rim, "datum.mean"),
        (ring, "datum.mean"),
    ):
        axes = read_axes(mark)
        assert (axes["x"], axes["y"]) == ("d1", "d2")
        assert read_filters(mark) == [filtered]
        assert mark["encoding"]["x"]["title"] == "first direction"
        assert mark["encoding"]["y"]["title"] == "second direction"
    assert read_axes(rim)["color"] == "#ffffff"
    assert rim["mark"]["strokeWidth"] > ring["mark"]["strokeWidth"]
    assert rim["mark"]["filled"] is ring["mark"]["filled"] is False
    for mark in (cloud, ring):
        colours = mark["encoding"]["color"]
        assert colours["field"] == "side" and colours["scale"] == SIDES
        assert colours["legend"]["title"] == "head 3"
        assert colours["legend"]["symbolType"] == "circle"
    assert described["facet"]["sort"] == ["step 8", "step 80"]
    assert len(rows) == 2 * 2 * 3 + 2 * 2


def test_paths_of_heads_lie_in_a_row_with_arrows_at_the_next_checkpoint():
    panels = [("head 1", make_plane("key")), ("head 2", make_plane("key"))]
    described = series_charts.draw_paths(panels, "key").to_dict()
    parts = described["hconcat"]
    assert [part["title"]["text"] for part in parts] == ["head 1", "head 2"]
    assert described["spacing"] == 34
    for part in parts:
        assert (part["width"], part["height"]) == ((640 - 70) // 2, 260)
        across, up, rule, arrow, start, text = part["layer"]
        assert (read_axes(across), read_axes(up)) == ({"x": 0}, {"y": 0})
        ends = {"x": "d1", "y": "d2", "x2": "next1", "y2": "next2"}
        assert read_axes(rule) == ends | {"color": "side"}
        assert read_axes(arrow) == {
            "x": "next1",
            "y": "next2",
            "angle": "angle",
            "color": "side",
        }
        assert arrow["encoding"]["angle"]["scale"] == {
            "domain": [0, 360],
            "range": [0, 360],
        }
        for mark in (rule, arrow):
            assert read_filters(mark) == ["isValid(datum.next1)"]
        assert read_filters(start) == ["datum.step == 0"]
        assert read_filters(text) == ["datum.label != ''"]
        assert read_axes(text)["text"] == "label"
        for mark in (start, text):
            assert (read_axes(mark)["x"], read_axes(mark)["y"]) == ("d1", "d2")
            assert mark["encoding"]["x"]["title"] == "first direction"
            assert mark["encoding"]["y"]["title"] == "second direction"
            # From −81 to 81, and to twice as far: a tenth more at either end.
            found = [mark["encoding"][k]["scale"]["domain"] for k in "xy"]
            assert np.allclose(found, [[-97.2, 97.2], [-194.4, 194.4]])
            assert mark["encoding"]["color"]["scale"] == SIDES
        # Both ends of each side have their step as a label.
        rows = described["datasets"][part["data"]["name"]]
        assert [row["label"] for row in rows] == ["0", "", "80"] * 2
