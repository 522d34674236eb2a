"""Figures and tables of pages, each against rows made by hand: which rows are drawn, by which builder, in which words.

Stacks, policies, seeds, sites and kinds of attention lie side by side in one table, and differ in every number.
"""

import json
import math
from dataclasses import replace
from types import SimpleNamespace
from xml.etree import ElementTree

import altair as alt
import pandas as pd
import pytest
from charts_asked_for import drawn, entry, results, row

from anisoscope.charts import builders, export, style
from anisoscope.report import (
    comparison,
    figures,
    head_map,
    page,
    results as of_run_results,
    sections,
)
from anisoscope.report.parts import NARROW, PANEL, WIDE, Figure, make_figure
from anisoscope.report.results import Results
from anisoscope.store import as_records

__all__ = ["drawn"]  # a fixture
NAN = math.nan


def show(calls, figure, label=None):
    """Draw a figure once and return (builder, frame, options)."""
    draw = figure.draw if label is None else figure.drawings[label]
    draw(WIDE)
    return calls[-1]


# ---- figures of a page


LAW = "mean_cosine.isotropic_q95"
POLICIES = [
    row("mean_cosine", 2, 0.5),
    row("mean_cosine", 1, 0.3, n_vectors=900, n_units=30),
    row("mean_cosine", 2, 0.4, site="final"),
    row("mean_cosine", 2, 0.9, token_policy="content"),
    row("mean_cosine", 0, 0.2, token_policy=None),
    row("mean_cosine", 1, 0.7, site="query", head=0),
    row("mean_cosine", 1, 0.6, component="x"),
    row(LAW, 1, 0.12),
    row(LAW, 2, 0.08),
    row(LAW, 2, 0.95, token_policy="content"),
    *(row("mean_cosine.contribution", 1, 0.1, component=str(k)) for k in range(3)),
    *(row("mean_cosine.contribution", 2, 0.1, component=str(k)) for k in range(2)),
]


def test_a_quantity_has_a_drawing_for_each_policy_with_the_widest_band(drawn):
    wide = [
        row("mean_cosine.contribution", 1, 0.1, component=str(k), site="query")
        for k in range(7)
    ]
    described = entry(
        caption="{stacks}|{law}|{final}",
        alt="{span}",
        law="q95 {q95}{dimensions}",
        final="a diamond",
        stacks={"encoder": "reads texts", "vision": "reads images"},
        draw={"title": "A"},
    )
    (figure,) = figures.draw_policies(results(POLICIES + wide), described)
    assert list(figure.drawings) == ["all", "content"]
    name, frame, options = show(drawn, figure)
    assert name == "layer_curve" and frame["value"].tolist() == [0.2, 0.3, 0.5, 0.4]
    assert options["series"] == "stack" and options["isotropic"] == 0.12
    assert options["title"] == "A" and options["panel"] is None
    _, frame, _ = show(drawn, figure, "content")
    assert frame["value"].tolist() == [0.2, 0.9]
    assert figure.caption == "|q95 .120 in 3 dimensions|a diamond"
    assert figure.alt == "lowest .200 at layer 0, highest .500 at layer 2"
    assert (
        figure.basis
        == "n = 900 to 1,000 vectors in 30 to 40 units; tokens: all and content"
    )
    towers = [*POLICIES[:2], row("mean_cosine", 1, 0.1, stack="vision")]
    (figure,) = figures.draw_policies(results(towers), described)
    assert figure.caption == "reads texts; reads images. ||"
    assert list(figure.drawings) == [""]
    # without a metric there is no figure, whatever else there is
    assert figures.draw_policies(results(POLICIES[-5:]), described) == []


def test_lines_of_layers_have_a_label_each_and_the_facts_of_the_run(drawn):
    rows = [
        row("mean_cosine", 1, 0.2),
        row("mean_cosine", 2, 0.6),
        row("mean_cosine", 2, 0.95, token_policy="content"),
        row("drift.share", 1, 0.4),
        row("mean_cosine.centred", 1, 0.05, n_vectors=512),
        row("spectrum.effective_rank", 1, 7.0),
        row("spectrum.effective_rank", 2, 3.25),
        row("mean_cosine.contribution", 2, 0.1, component="0"),
        row("accuracy", None, 0.75, n_units=48, site=None),
        row("majority", None, 0.5, n_units=47, site=None),
        row("majority", None, 0.25, component="of a class", site=None),
    ]
    described = entry(
        metrics={
            "mean_cosine": "A",
            "drift.share": "drift",
            "mean_cosine.centred": "centred",
        },
        caption="{sample}|{rank}|{accuracy}|{readings}",
        alt="{span}",
        least=3,
        needs="drift.share",
        draw={"title": "up", "zero": False},
    )
    (figure,) = figures.draw_layers(results(rows), described)
    assert figure.caption == (
        "A after centring is taken on a uniform sample of 512 vectors. |"
        " The most anisotropic place has an effective rank of 3.2 of 1.|"
        "The classifier itself is right on .750 [.742, .758] of 48; the commonest class makes .500.|"
        "A, drift and centred"
    )
    name, frame, options = show(drawn, figure)
    assert name == "layer_curve" and options["series"] == "series"
    assert options["zero"] is False and options["title"] == "up"
    lines = frame.groupby("series", sort=False)["value"].agg(list).to_dict()
    assert lines == {"A": [0.2, 0.6], "drift": [0.4], "centred": [0.05]}
    # a line of its own may name another column as series
    own = described | {"draw": {"series": "panel", "title": ""}}
    (figure,) = figures.draw_layers(results(rows), own)
    assert show(drawn, figure)[2]["series"] == "panel"
    few = [found for found in rows if found["metric"] != "mean_cosine.centred"]
    assert figures.draw_layers(results(few), described) == []
    assert len(figures.draw_layers(results(few), described | {"least": 2})) == 1
    needed = [found for found in rows if found["metric"] != "drift.share"]
    assert figures.draw_layers(results(needed), described | {"least": 2}) == []
    (figure,) = figures.draw_layers(
        results(rows[:2]),
        entry(metrics={"mean_cosine": "A"}, caption="{sample}|{rank}|{accuracy}"),
    )
    assert figure.caption == "||"
    (figure,) = figures.draw_layers(
        results(rows[4:5]),
        entry(metrics={"mean_cosine.centred": "A"}, caption="{rank}|"),
    )
    assert figure.caption == "|"


def test_images_and_texts_are_bars_where_they_meet_and_lines_where_a_stack_reads_both(
    drawn,
):
    joint = [
        row("modality_gap.distance", None, 0.8, stack="joint"),
        row("modality_gap.image", None, 0.3, stack="joint"),
    ]
    for found in joint:
        found["layer"] = 0
    layers = [row("modality_gap.distance", n, v) for n, v in ((1, 0.4), (2, 0.6))]
    described = entry(
        metrics={"modality_gap.distance": "gap", "modality_gap.image": "images"},
        caption="{what}.{bands}",
        alt="{kind}: {span}",
        joint="of pairs",
        layers="by layer",
        bands=" Ribbons.",
    )
    (bars,) = figures.draw_modality_gap(results(joint), described)
    name, frame, options = show(drawn, bars)
    assert name == "bars" and frame["value"].tolist() == [0.8, 0.3]
    assert options["category"] == "series" and options["titles"] == ("up", "")
    assert options["size"] == (WIDE, 22) and options["panel"] is None
    assert bars.caption == "of pairs. Lines are 95 % intervals.".replace(" %", "\xa0%")
    assert bars.alt == "Bar chart: lowest .300 at images, highest .800 at gap"
    (lines,) = figures.draw_modality_gap(results(joint + layers), described)
    name, frame, options = show(drawn, lines)
    assert name == "layer_curve" and frame["value"].tolist() == [0.4, 0.6]
    assert options["series"] == "series"
    assert lines.caption == "by layer. Ribbons."
    assert lines.alt.startswith("Line chart: lowest .400 at encoder layer 1")
    assert figures.draw_modality_gap(results(POLICIES), described) == []


def of_steps(metric="mean_cosine", **keys):
    rows = []
    for stack, a in (("encoder", 0.1), ("decoder", 0.5)):
        for seed, b in ((3, 0.01), (4, 0.05)):
            for step, c in ((10, 0.001), (0, 0.002)):
                rows.append(
                    row(metric, 1, a + b + c, stack=stack, seed=seed, step=step, **keys)
                )
    return rows


def test_steps_of_a_training_are_lines_of_layers_in_panels_of_stack_and_seed(drawn):
    rows = of_steps()
    rows += [
        row("mean_cosine", 1, 0.9, site="final", step=0),
        row("mean_cosine", 1, 0.8, component="x", step=0),
        row(LAW, 1, 0.07, step=0),
    ]
    described = entry(
        caption="{span}", draw={"titles": ["steps", "A"], "zero": True}, band=True
    )
    del described["alt"]
    (figure,) = figures.draw_steps(results(rows), described)
    name, frame, options = show(drawn, figure)
    assert name == "trajectory" and len(frame) == 8
    assert options["x"] == "step" and options["series"] == "layer"
    assert options["gradient"] is True and options["scale"] == "symlog"
    assert options["isotropic"] == 0.07 and options["titles"] == ["steps", "A"]
    values = frame.groupby(PANEL, sort=False)["value"].agg(list).to_dict()
    assert {name: sorted(found) for name, found in values.items()} == {
        "encoder, seed 3": pytest.approx([0.111, 0.112]),
        "encoder, seed 4": pytest.approx([0.151, 0.152]),
        "decoder, seed 3": pytest.approx([0.511, 0.512]),
        "decoder, seed 4": pytest.approx([0.551, 0.552]),
    }
    assert (
        figure.caption
        == "lowest .111 at step 10, layer 1, highest .552 at step 0, layer 1"
    )
    assert figure.alt == (
        "Line chart of A by step: lowest .111 at step 10, layer 1, highest .552 at step 0, layer 1."
    )
    (figure,) = figures.draw_steps(results(rows), described | {"band": False})
    assert show(drawn, figure)[2]["isotropic"] is None
    (figure,) = figures.draw_steps(
        results(of_steps(component="3") + of_steps(component="1")),
        described | {"component": "3"},
    )
    assert len(show(drawn, figure)[1]) == 8
    once = [found for found in rows if found.get("step") == 0]
    assert figures.draw_steps(results(once), described) == []


def test_steps_of_heads_are_their_mean_between_the_lowest_and_the_highest(drawn):
    rows = []
    for step, shift in ((0, 0.0), (5, 0.3)):
        for seed, more in ((0, 0.0), (1, 0.05)):
            for head, value in ((0, 0.1), (1, 0.2), (2, 0.6)):
                keys = {"step": step, "seed": seed, "head": head, "site": "attention"}
                rows.append(row("h", 1, value + shift + more, **keys))
    rows.append(row("h", 1, 0.99, step=5))
    described = entry(metric="h", heads=True, draw={"titles": ["s", "h"]})
    (figure,) = figures.draw_steps(results(rows), described)
    _, frame, _ = show(drawn, figure)
    found = frame[[PANEL, "step", "value", "low", "high", "n_units"]].values.tolist()
    assert found == [
        ["seed 0", 0, pytest.approx(0.3), 0.1, 0.6, 40],
        [
            "seed 1",
            0,
            pytest.approx(0.35),
            pytest.approx(0.15),
            pytest.approx(0.65),
            40,
        ],
        ["seed 0", 5, pytest.approx(0.6), 0.4, pytest.approx(0.9), 40],
        [
            "seed 1",
            5,
            pytest.approx(0.65),
            pytest.approx(0.45),
            pytest.approx(0.95),
            40,
        ],
    ]


def test_anisotropy_lies_against_the_drift_of_the_same_place(drawn):
    rows = []
    places = [
        ("encoder", 1, "hidden"),
        ("encoder", 1, "final"),
        ("decoder", 1, "hidden"),
    ]
    for n, (stack, layer, site) in enumerate(places):
        keys = {"stack": stack, "site": site}
        rows.append(row("mean_cosine", layer, 0.1 * (n + 1), **keys))
        rows.append(row("drift.share", layer, 0.5 + 0.1 * n, **keys))
    rows.append(row("mean_cosine", 2, 0.9))
    described = entry(caption="{points}", draw={"x": "share", "label": "name"})
    (figure,) = figures.draw_drift_points(results(rows), described)
    name, frame, options = show(drawn, figure)
    assert name == "scatter" and options["series"] == PANEL
    assert frame[["name", "value", "share", "joined"]].values.tolist() == [
        ["1", 0.1, 0.5, True],
        ["final", 0.2, 0.6, False],
        ["1", pytest.approx(0.3), 0.7, True],
    ]
    assert figure.caption == "3"
    assert len(figures.draw_drift_points(results(rows[:4]), described)) == 1
    assert figures.draw_drift_points(results(rows[:2]), described) == []


def test_shares_and_dimensions_are_of_layers_and_in_the_order_of_numbers(drawn):
    rows = []
    for site, layer in (("hidden", 1), ("final", 1), ("query", 1), ("hidden", None)):
        for n, k in enumerate(("10", "3", "1")):
            rows.append(row("top", layer, 0.1 * (n + 1), component=k, site=site))
    rows.append(row("top", 1, 0.9))
    (figure,) = figures.draw_top_shares(results(rows), entry(metric="top"))
    name, frame, options = show(drawn, figure)
    assert name == "layer_curve" and options["series"] == "series"
    assert frame["series"].tolist() == ["top 1"] * 2 + ["top 3"] * 2 + ["top 10"] * 2
    assert frame["value"].tolist() == pytest.approx([0.3, 0.3, 0.2, 0.2, 0.1, 0.1])
    assert figures.draw_top_shares(results(rows[6:]), entry(metric="top")) == []


def test_the_largest_dimensions_are_those_of_the_most_anisotropic_place(drawn):
    rows = [row("mean_cosine", 1, 0.5), row("mean_cosine", 2, 0.2)]
    rows.append(row("mean_cosine", 1, 0.3, stack="decoder"))
    for k in range(12):
        rows.append(row("part", 1, 0.01 * k, component=str(k)))
        rows.append(row("part", 2, 9.0, component=str(k)))
        rows.append(row("part", 1, 8.0, component=str(k), site="final"))
        rows.append(row("part", 1, 7.0, component=str(k), stack="decoder"))
    described = entry(
        metric="part",
        title="{n} at {place}",
        caption="of {total}",
        alt="dimension {first} with {largest}",
        draw={"category": "component"},
    )
    (figure,) = figures.draw_top_dimensions(results(rows), described)
    name, frame, options = show(drawn, figure)
    assert name == "bars" and options["panel"] is None
    assert frame["component"].tolist() == [str(k) for k in range(11, 1, -1)]
    assert (
        figure.title == "10 at encoder layer 1"
        and figure.caption == "of .500 [.495, .505]"
    )
    assert figure.alt == "dimension 11 with .110 [.109, .111]"
    assert figures.draw_top_dimensions(results(rows[3:]), described) == []
    assert figures.draw_top_dimensions(results(rows[:3]), described) == []


def test_explained_variance_has_a_line_for_each_layer(drawn):
    rows = []
    for layer in (1, 2):
        for n, k in enumerate(("1", "2")):
            rows.append(row("explained", layer, 0.2 * layer + 0.1 * n, component=k))
    rows += [
        row("explained", 2, 0.9, component="1", site="final"),
        row("explained", None, 0.8, component="1"),
    ]
    described = entry(
        metric="explained",
        caption="{most}",
        most="{least} to {largest}",
        draw={"x": "axes", "series": "layer"},
    )
    (figure,) = figures.draw_explained_variance(results(rows), described)
    name, frame, options = show(drawn, figure)
    assert name == "trajectory" and (options["x"], options["series"]) == (
        "axes",
        "layer",
    )
    assert frame[["layer", "axes", "value"]].values.tolist() == [
        [1, 1, 0.2],
        [1, 2, pytest.approx(0.3)],
        [2, 1, 0.4],
        [2, 2, 0.5],
    ]
    assert figure.caption == "20 % to 40 %".replace(" %", "\xa0%")
    (figure,) = figures.draw_explained_variance(results(rows[1:2]), described)
    assert figure.caption == ""
    assert figures.draw_explained_variance(results(rows[4:]), described) == []


def of_heads(metric="h", site="attention", heads=3, layers=(1, 2), shift=0.0, **keys):
    rows = []
    for layer in layers:
        for head in range(heads):
            value = 0.1 * layer + 0.01 * head + shift
            rows.append(row(metric, layer, value, head=head, site=site, **keys))
    return rows


def test_maps_of_heads_say_their_size_and_their_extremes(drawn):
    rows = of_heads() + of_heads(stack="decoder", layers=(1,), shift=0.5)
    rows += of_heads(stack="decoder", layers=(1,), shift=0.7, kind="cross", heads=2)
    described = entry(
        metric="h",
        caption="{lowest}|{highest}|{layers}|{heads}|{unit}",
        draw={"title": "u"},
    )
    del described["alt"]
    (figure,) = figures.draw_heads(results(rows), described)
    name, frame, options = show(drawn, figure)
    assert name == "heatmap" and len(frame) == 11
    assert options["panel"] == PANEL and options["columns"] == 1
    assert options["size"] == (WIDE, 26)
    figure.draw(NARROW)
    assert drawn[-1][2]["size"] == (NARROW, 20)
    low = ".100 [.099, .101] (encoder layer 1, head 0)"
    high = ".810 [.802, .818] (decoder, cross-attention layer 1, head 1)"
    assert figure.caption == f"{low}|{high}|2 layers|3 heads|u"
    assert (
        figure.alt
        == f"Heat map of u over 2 layers and 3 heads: lowest {low}, highest {high}."
    )
    bare = [
        found | {"low": NAN, "high": NAN} for found in of_heads(layers=(1,), heads=1)
    ]
    (figure,) = figures.draw_heads(results(bare), described)
    assert (
        figure.caption.startswith(".100 (layer 1, head 0)|")
        and "|1 layer|1 head|" in figure.caption
    )
    for depth, height in ((23, 26), (24, 12)):
        deep = of_heads(heads=1, layers=range(1, depth + 1))
        (figure,) = figures.draw_heads(results(deep), described)
        assert show(drawn, figure)[2]["size"] == (WIDE, height)
    assert figures.draw_heads(results(POLICIES), described) == []
    instead = described | {"instead_of": "other"}
    assert len(figures.draw_heads(results(rows), instead)) == 1
    both = rows + of_heads("other")
    assert figures.draw_heads(results(both), instead) == []


def test_heads_that_share_keys_have_a_row_each_in_every_layer():
    rows = of_heads("q", "query.raw", heads=4) + of_heads("q", "key.raw", heads=2)
    rows += of_heads("q", "query.raw", heads=2, stack="decoder")
    rows += of_heads("q", "key.raw", heads=1, stack="decoder", shift=0.5)
    found = results(rows)
    shared = figures.select_heads(found, {"metric": "q", "site": "key"})
    assert shared[[PANEL, "layer", "head", "value"]].values.tolist() == [
        ["encoder", 1, 0, 0.1],
        ["encoder", 1, 1, 0.1],
        ["encoder", 1, 2, 0.11],
        ["encoder", 1, 3, 0.11],
        ["encoder", 2, 0, 0.2],
        ["encoder", 2, 1, 0.2],
        ["encoder", 2, 2, pytest.approx(0.21)],
        ["encoder", 2, 3, pytest.approx(0.21)],
        ["decoder", 1, 0, 0.6],
        ["decoder", 1, 1, 0.6],
        ["decoder", 2, 0, 0.7],
        ["decoder", 2, 1, 0.7],
    ]
    own = figures.select_heads(found, {"metric": "q", "site": "query"})
    assert len(own) == 12 and own.groupby(PANEL)["head"].nunique().to_dict() == {
        "encoder": 4,
        "decoder": 2,
    }


def test_ranges_of_heads_are_of_each_kind_of_vector_and_stack(drawn):
    rows = []
    for stack, more in (("encoder", 0.0), ("decoder", 0.5)):
        for metric, shift in (("mean_cosine", 0.0), ("intra_sequence", 0.2)):
            rows += of_heads(metric, "query.raw", 3, (1,), shift + more, stack=stack)
            rows += of_heads(metric, "key.raw", 2, (1,), shift + more, stack=stack)
    described = entry(
        metrics={"mean_cosine": "A", "intra_sequence": "inside"}, caption="{heads}"
    )
    (figure,) = figures.draw_head_range(results(rows), described)
    name, frame, _ = show(drawn, figure)
    assert name == "layer_curve" and figure.caption == "3 heads"
    found = frame[["reading", "where", "layer", "value", "low", "high"]].values.tolist()
    near = pytest.approx
    assert found == [
        ["A", "queries, encoder", 1, near(0.11), near(0.1), near(0.12)],
        ["A", "queries, decoder", 1, near(0.61), near(0.6), near(0.62)],
        ["A", "keys, encoder", 1, near(0.105), near(0.1), near(0.11)],
        ["A", "keys, decoder", 1, near(0.605), near(0.6), near(0.61)],
        ["inside", "queries, encoder", 1, near(0.31), near(0.3), near(0.32)],
        ["inside", "queries, decoder", 1, near(0.81), near(0.8), near(0.82)],
        ["inside", "keys, encoder", 1, near(0.305), near(0.3), near(0.31)],
        ["inside", "keys, decoder", 1, near(0.805), near(0.8), near(0.81)],
    ]
    (figure,) = figures.draw_head_range(results(rows[:5]), described)
    assert set(show(drawn, figure)[1]["where"]) == {"queries", "keys"}
    # Layers may have numbers of heads of their own: the largest is named.
    uneven = [*rows[:5], *of_heads("mean_cosine", "query.raw", 4, (2,))]
    (figure,) = figures.draw_head_range(results(uneven), described)
    assert figure.caption == "4 heads"
    assert figures.draw_head_range(results(POLICIES[-5:]), described) == []


def test_subsets_have_a_figure_for_each_family_in_the_order_of_its_list(drawn):
    rows = [row("mean_cosine", n, v) for n, v in ((0, 0.1), (1, 0.9), (2, 0.5))]
    pairs = {
        "frequency 2 × frequency 2": 0.22,
        "frequency 1 × frequency 2": 0.12,
        "frequency 1 × frequency 1": 0.11,
        "kind a × kind b": 0.4,
        "special × first": -0.3,
        "alone": 0.99,
    }
    for layer in (0, 1, 2):
        for name, value in pairs.items():
            rows.append(row("group", layer, value + layer / 1000, component=name))
    described = entry(
        metric="group",
        name="groups-{family}",
        caption="{note}|{subsets}|{places}",
        alt="{span}",
        notes={"frequency": "rarest first"},
        draw={"title": "m"},
    )
    made = figures.draw_subsets(results(rows), described)
    by_name = {figure.name: figure for figure in made}
    assert sorted(by_name) == ["groups-frequency", "groups-kind"]
    figure = by_name["groups-frequency"]
    name, frame, options = show(drawn, figure)
    assert name == "heatmap" and options["diverging"] is True
    assert options["names"] == ("frequency", "frequency")
    assert (options["x"], options["y"], options["panel"]) == (
        "first",
        "second",
        "place",
    )
    assert options["columns"] == 3 and options["size"] == (WIDE, 30)
    first = frame[frame["layer"].eq(0)]
    assert first[["first", "second", "value"]].values.tolist() == [
        ["1", "1", 0.11],
        ["1", "2", 0.12],
        ["2", "1", 0.12],
        ["2", "2", 0.22],
    ]
    places = "layer 0, first, layer 1, most anisotropic and layer 2, last"
    assert figure.caption == f"rarest first|2|{places}"
    assert figure.alt.startswith("lowest .110 at") and ", highest .222 at" in figure.alt
    _, frame, _ = show(drawn, by_name["groups-kind"])
    assert set(frame["first"]) == {"a", "b", "special", "first"}
    assert by_name["groups-kind"].caption.startswith("|4|")


def test_classes_are_shown_at_the_first_the_middle_and_the_last_layer(drawn):
    rows = []
    for layer in range(6):
        for n, pair in enumerate(("b × b", "a × b", "a × a")):
            rows.append(row("classes", layer, layer / 10 + n / 100, component=pair))
    (figure,) = figures.draw_classes(
        results(rows), entry(metric="classes", alt="{span}")
    )
    name, frame, options = show(drawn, figure)
    assert name == "heatmap" and options["size"] == (WIDE, 30) and options["diverging"]
    assert list(dict.fromkeys(frame["place"])) == ["layer 0", "layer 2", "layer 5"]
    middle = frame[frame["layer"].eq(2)][["first", "second", "value"]].values.tolist()
    assert middle == [
        ["a", "a", pytest.approx(0.22)],
        ["a", "b", pytest.approx(0.21)],
        ["b", "a", pytest.approx(0.21)],
        ["b", "b", pytest.approx(0.2)],
    ]
    for count, height in ((9, 30), (10, 20)):
        many = [row("c", 0, 0.1, component=f"k{k} × k{k}") for k in range(count)]
        (figure,) = figures.draw_classes(results(many), entry(metric="c"))
        assert show(drawn, figure)[2]["size"] == (WIDE, height)
    assert figures.draw_classes(results(POLICIES[:3]), entry(metric="classes")) == []


def test_components_are_lines_and_baselines_are_level(drawn):
    rows = []
    for layer in (1, 2, 3):
        for name, value in (("attention", 0.3), ("other", 0.8)):
            rows.append(row("auprc", layer, value + layer / 100, component=name))
    rows += [
        row("auprc", None, 0.2, component="random", n_units=9),
        row("auprc", None, 0.7, component="unlisted"),
    ]
    described = entry(metric="auprc", axis="agreement", shown=["attention", "random"])
    (figure,) = figures.draw_components(results(rows), described)
    name, frame, options = show(drawn, figure)
    assert name == "layer_curve" and options["series"] == "series"
    assert options["panel"] is None and options["coincide"] is True
    assert options["title"] == "agreement"
    assert frame[["series", "layer", "value"]].values.tolist() == [
        ["attention", 1, 0.31],
        ["attention", 2, 0.32],
        ["attention", 3, pytest.approx(0.33)],
        ["random", 1, 0.2],
        ["random", 3, 0.2],
    ]
    assert figure.caption == "Agreement, by layer. Baselines are level."
    assert figure.alt == (
        "Line chart of agreement by layer: lowest .200 at random, highest .330 at attention."
    )
    assert figure.basis == "n = 9 to 40 utterances"
    plain = entry(metric="auprc", axis="agreement")
    (figure,) = figures.draw_components(results(rows), plain)
    assert set(show(drawn, figure)[1]["series"]) == {"attention", "other"}
    assert figure.caption == "Agreement, by layer."
    (figure,) = figures.draw_components(results(rows[:-2]), described)
    assert figure.caption == "Agreement, by layer."
    assert figures.draw_components(results(rows[:2]), described) == []


# ---- tables of a page


def cells(table):
    return [[cell[0] for cell in line] for line in table.rows]


def test_a_cell_of_a_table_of_layers_is_of_its_own_stack_site_and_metric():
    rows = []
    for stack, a in (("encoder", 0.1), ("decoder", 0.5)):
        for site, b in (("final", 0.03), ("hidden", 0.0)):
            keys = {"stack": stack, "site": site}
            rows.append(row("mean_cosine", 2, a + b, **keys))
            rows.append(row("drift.share", 2, a + b + 0.01, **keys))
    rows += [row("norms.mean", 1, 0.7), row("unlisted", 1, 0.9)]
    described = {
        "columns": {
            "absent": "none",
            "drift.share": "drift",
            "mean_cosine": "A",
            "norms.mean": "A",
        },
        "caption": " tokens of {basis} ",
    }
    manifest = {"corpus": {"name": "c", "words": {"position": "patch"}}}
    table = sections.tabulate_layers(results(rows, **manifest), described)
    assert table.head == ("site", "drift", "A")
    assert table.rows[0][1:] == (sections.NOTHING, (".700", "[.693, .707]"))
    assert cells(table) == [
        ["encoder layer 1", "–", ".700"],
        ["encoder layer 2", ".110", ".100"],
        ["encoder final norm", ".140", ".130"],
        ["decoder layer 2", ".510", ".500"],
        ["decoder final norm", ".540", ".530"],
    ]
    assert table.caption == "patches of n = 1,000 vectors in 40 units; patches: all"
    lacking = described | {"columns": {"absent": "none"}}
    assert sections.tabulate_layers(results(rows), lacking) is None


def test_a_table_of_steps_has_a_row_for_each_seed_and_step():
    rows = [*of_steps(), row("mean_cosine", 1, 0.9, site="final", step=0, seed=3)]
    rows.append(row("mean_cosine", 1, 0.77, step=0, seed=3, token_policy="content"))
    described = {"metric": "mean_cosine", "caption": "{basis}"}
    table = sections.tabulate_steps(results(rows), described)
    places = ("encoder layer 1", "encoder final norm", "decoder layer 1")
    assert table.head == ("checkpoint", *places)
    assert cells(table) == [
        ["step 0, seed 3", ".112", ".900", ".512"],
        ["step 10, seed 3", ".111", "–", ".511"],
        ["step 0, seed 4", ".152", "–", ".552"],
        ["step 10, seed 4", ".151", "–", ".551"],
    ]
    assert table.caption.startswith("n = 1,000 vectors in 40 units")


def test_a_table_of_attention_is_of_means_over_heads_with_their_kinds(monkeypatch):
    lines = pd.DataFrame(
        {
            "stack": ["encoder", "decoder", "decoder"],
            "kind": ["self", "self", "cross"],
            "layer": [1, 1, 1],
            "heads": [4, 3, 2],
            "sink heads": [3, 0, 0],
            "aligned heads": [1, 2, 0],
        }
    )
    means = pd.DataFrame(
        [
            row("entropy", 1, v, stack=stack, kind=kind)
            for stack, kind, v in (
                ("encoder", "self", 0.1),
                ("decoder", "self", 0.2),
                ("decoder", "cross", 0.3),
            )
        ]
        + [row("mass", 1, 0.6, stack="decoder")]
        + [row("mass", 2, 0.9)]
    )
    asked = []
    given = {"attention_table": lines, "attention_layers": means}
    for name, table in given.items():

        def ask(*arguments, of=table, **named):
            asked.append((arguments[1:], named))
            return of

        monkeypatch.setattr(of_run_results, name, ask)
    found = Results(as_records(pd.DataFrame(POLICIES)), {}, "replicates")
    described = {
        "columns": {"mass": "M", "absent": "n", "entropy": "H"},
        "caption": "c",
    }
    table = sections.tabulate_attention(found, described)
    assert table.head == ("layer", "M", "H", "kinds of heads")
    assert cells(table) == [
        ["encoder self layer 1", "–", ".100", "3 sink, 1 aligned"],
        ["decoder self layer 1", ".600", ".200", "2 aligned"],
        ["decoder cross layer 1", "–", ".300", "–"],
    ]
    assert [line[-1][1] for line in table.rows] == ["of 4", "of 3", "of 2"]
    assert table.rows[0][2][1] == "[.099, .101]"
    lines.drop(index=[1, 2], inplace=True)
    alone = Results(found.records, {})
    assert cells(sections.tabulate_attention(alone, described))[0][0] == "layer 1"
    del asked[2:]
    # means over heads have intervals only with the values without each group
    assert asked == [((), {"replicates": "replicates"}), (("replicates",), {})]


def test_a_table_of_extremes_joins_activations_and_sinks_of_the_same_place(monkeypatch):
    activations = pd.DataFrame(
        [
            ("decoder", 2, "hidden", 5.0, 138, 0, 101, 0.5, 3.0),
            ("encoder", 2, "final", 7.0, 2, 4, 102, 0.25, 6.0),
            ("encoder", 2, "hidden", 9.0, 1, 3, 103, 0.75, 8.0),
        ],
        columns=[
            "stack",
            "layer",
            "site",
            "largest",
            "dimension",
            "position",
            "token",
            "medians",
            "massive",
        ],
    )
    sinks = pd.DataFrame(
        [
            ("encoder", "self", 2, 0.25, 0.2, 0.3, 0.4, NAN, NAN, -4.0, 11.0),
            ("decoder", "cross", 2, 0.75, NAN, 0.9, 0.6, 0.1, 0.5, NAN, 12.0),
        ],
        columns=[
            "stack",
            "kind",
            "layer",
            "sink rate",
            "low",
            "high",
            "at first",
            "mass on punctuation",
            "value norm",
            "smallest logit",
            "largest logit",
        ],
    )
    asked = []
    for name, table in (("activations_table", activations), ("sinks_table", sinks)):

        def ask(_records, of=table, **named):
            asked.append(named)
            return of

        monkeypatch.setattr(sections, name, ask)
    tokens = {"101": "[CLS]", "103": "the"}
    found = Results(
        as_records(pd.DataFrame(POLICIES)), {"tokens": tokens}, "replicates"
    )
    table = sections.tabulate_extremes(found, {"caption": "c"})
    assert asked == [{}, {"replicates": "replicates"}]
    head = (
        "layer",
        "largest |x|",
        "token",
        "medians",
        "massive",
        "sink rate",
        "at first",
        "mass on punctuation",
        "value norm",
        "smallest logit",
        "largest logit",
    )
    assert table.head == head
    assert table.rows == (
        (
            ("decoder layer 2", ""),
            ("5.000", "dimension 138"),
            ("[CLS]", "position 0"),
            (".500", ""),
            ("3.000", ""),
            *[sections.NOTHING] * 6,
        ),
        (
            ("decoder layer 2 cross", ""),
            *[sections.NOTHING] * 4,
            (".750", ""),
            (".600", ""),
            (".100", ""),
            (".500", ""),
            sections.NOTHING,
            ("12.0", ""),
        ),
        (
            ("encoder layer 2", ""),
            ("9.000", "dimension 1"),
            ("the", "position 3"),
            (".750", ""),
            ("8.000", ""),
            (".250", "[.200, .300]"),
            (".400", ""),
            *[sections.NOTHING] * 2,
            ("−4.000", ""),
            ("11.0", ""),
        ),
        (
            ("encoder layer 2 final", ""),
            ("7.000", "dimension 2"),
            ("–", "position 4"),
            (".250", ""),
            ("6.000", ""),
            *[sections.NOTHING] * 6,
        ),
    )
    one = activations[activations["stack"].eq("encoder")]
    monkeypatch.setattr(sections, "activations_table", lambda _: one)
    monkeypatch.setattr(sections, "sinks_table", lambda *_, **_named: sinks[:0])
    table = sections.tabulate_extremes(found, {"caption": "c"})
    assert [line[0][0] for line in table.rows] == ["layer 2", "layer 2 final"]
    monkeypatch.setattr(sections, "activations_table", lambda _: one[:0])
    assert sections.tabulate_extremes(found, {"caption": "c"}) is None


def test_tables_of_embeddings_and_of_effects_have_their_own_rows():
    rows = [
        row("partition", None, 0.7, site="embedding.input", n_vectors=30_522),
        row("partition", None, 0.6, site="embedding.output", n_vectors=99),
        row("partition", None, 0.5, site="embedding.input", component="x"),
        row("effect.auc", 1, 0.1, component="uniform", n_units=30),
        row("effect.auc", 2, 0.2, component="uniform"),
        row("effect.auc", None, 0.3, component="uniform"),
        row("effect.cls", 2, 0.4, component="uniform"),
        row("effect.cls", 1, 0.5, component="dealt"),
        row("effect.unlisted", 1, 0.9, component="dealt"),
        row("other.auc", 1, 0.8, component="dealt"),
    ]
    found = results(rows)
    described = {"metric": "partition", "head": ["matrix", "isotropy", "rows"]}
    table = sections.tabulate_embeddings(found, described | {"caption": "c"})
    assert table.head == ("matrix", "isotropy", "rows")
    assert table.rows == (
        (("embedding.input", ""), (".700", "[.693, .707]"), ("30,522", "")),
        (("embedding.output", ""), (".600", "[.594, .606]"), ("99", "")),
    )
    described = {"metric": "absent", "head": [], "caption": ""}
    assert sections.tabulate_embeddings(found, described) is None
    described = {"prefix": "effect.", "first": "what", "whole": ", all"}
    described["columns"] = {"cls": "cos", "absent": "n", "auc": "AUC"}
    table = sections.tabulate_effects(found, described)
    assert table.head == ("what", "cos", "AUC")
    assert table.caption == "30 to 40 utterances."
    assert cells(table) == [
        ["uniform, layer 1", "–", ".100"],
        ["uniform, layer 2", ".400", ".200"],
        ["uniform, all", "–", ".300"],
        ["dealt, layer 1", ".500", "–"],
    ]
    assert sections.tabulate_effects(found, described | {"prefix": "none."}) is None


def test_a_page_of_a_series_has_other_sections_than_that_of_a_run():
    rows = of_steps() + [row("drift.share", 1, 0.5, step=step) for step in (0, 10)]
    of_series = sections.build_sections(results(rows, checkpoints=[{"step": 0}]))
    assert [section.slug for section in of_series][:2] == ["anisotropy", "drift"]
    assert of_series[0].title == "Anisotropy along training"
    assert [figure.name for figure in of_series[1].drawn] == ["drift"]
    of_run = sections.build_sections(results(rows[:1]))
    assert of_run[0].title == "Anisotropy, layer by layer"
    assert all(section.head_map is None and section.mapped == [] for section in of_run)


def test_figures_that_the_map_of_heads_does_not_show_are_drawn():
    shown, other = (SimpleNamespace(name=name) for name in ("entropy", "sinks"))
    of_heads = SimpleNamespace(quantities=[SimpleNamespace(figure=shown)])
    with_map = sections.Section("s", "S", "", (shown, other), head_map=of_heads)
    assert (with_map.mapped, with_map.drawn) == ([shown], [other])
    without = replace(with_map, head_map=None)
    assert (without.mapped, without.drawn) == ([], [shown, other])


# ---- what is above the figures


def test_facts_of_a_run_count_what_its_corpus_counts():
    rows = [
        row("mean_cosine", 3, 0.5, n_vectors=700),
        row("mean_cosine", 5, 0.5, n_vectors=900),
        row("mean_cosine", 9, 0.5, site="final"),
        row("mean_cosine", 4, 0.5, stack="vision", n_vectors=800),
    ]
    manifest = {"device": "cuda", "seconds": 61.2}
    corpus = {"n_units": 1234, "n_tokens": 5678}
    words = {"position": "patch", "unit": "image", "counted": "sample"}
    assert page.describe_run(results(rows, corpus=corpus, **manifest)) == [
        ("tokens", "5,678"),
        ("units", "1,234"),
        ("blocks", "9"),
        ("device", "cuda"),
        ("time", "1 min 01 s"),
    ]
    named = results(rows, corpus=corpus | {"words": words}, dtype="bfloat16")
    assert page.describe_run(named) == [
        ("patches", "1,000 encoder, 800 vision"),
        ("images", "1,234"),
        ("blocks", "9"),
        ("device", "bfloat16"),
    ]
    one = results(rows[:2], corpus={"words": words})
    assert page.describe_run(one) == [("patches", "900"), ("blocks", "5")]


def test_a_series_is_headed_by_its_last_step_and_first_seed():
    found = results(of_steps(), checkpoints=[])
    assert found.last.records["value"].tolist() == pytest.approx([0.111, 0.511])
    alone = results(of_steps())
    assert alone.last is alone


# ---- the page of a comparison


def difference(run, layer, value, **keys):
    """A row of a table of differences; every number is another one."""
    found = {"run": run, "against": "ours", "stack": "encoder", "kind": "self"}
    found |= {"layer": layer, "head": None, "site": "hidden", "component": None}
    found |= {"layer_other": layer, "metric": "mean_cosine", "token_policy": "all"}
    found |= {"first": 0.3, "first_low": 0.28, "first_high": 0.33}
    found |= {"second": 0.3 + value, "second_low": 0.2, "second_high": 0.9}
    found |= {"difference": value, "low": value - 0.01, "high": value + 0.02}
    return found | keys


NUMBERS = ("layer", "layer_other", "head")


def typed(rows):
    frame = pd.DataFrame(rows)
    text = ["run", "stack", "kind", "site", "component"]
    return frame.astype(dict.fromkeys(text, "string")).astype(
        {name: "Int64" for name in NUMBERS if name in frame}
    )


def compared(rows, values=(), *, metric="mean_cosine", heads=False, units=(40, 50)):
    """What the page reads of a comparison of `ours` with `theirs`."""
    runs = []
    for name, count in zip(("ours", "theirs"), units, strict=True):
        manifest = {"model": f"model of {name}", "run": f"r-{name}"}
        if count:
            manifest["corpus"] = {"n_units": count}
        runs.append(SimpleNamespace(name=name, manifest=manifest))
    return SimpleNamespace(
        metric=metric,
        tokens="content",
        heads=heads,
        runs=tuple(runs),
        names=["ours", "theirs"],
        table=typed(rows),
        values=typed(values) if values else None,
        notes=("a note",),
        findings=(SimpleNamespace(text="a sentence"),),
    )


def of_run(run, layer, value, **keys):
    place = {"run": run, "head": None, "component": None, "n_units": 7}
    return row("mean_cosine", layer, value) | place | keys


def two_runs():
    """Values of two runs, of which the other is deeper, with final norms."""
    rows = [of_run("ours", n, 0.1 * n) for n in range(3)]
    rows += [of_run("theirs", n, 0.2 * n) for n in range(5)]
    rows.append(of_run("ours", 2, 0.15, site="final"))
    rows.append(of_run("theirs", 4, NAN, site="final"))
    table = [difference("theirs", n, 0.1 * n, layer_other=2 * n) for n in range(3)]
    table.append(difference("theirs", 2, -0.4, site="final", layer_other=4))
    return rows, table


def test_runs_of_different_depths_are_drawn_by_relative_depth(drawn):
    values, table = two_runs()
    first, second = comparison.build_figures(compared(table, values))
    name, frame, options = show(drawn, first)
    assert name == "trajectory" and options["x"] == "depth" and options["zero"] is True
    assert options["series"] == "run" and options["panel"] is None
    assert options["titles"] == ("relative depth", "anisotropy A")
    assert (options["size"], options["columns"]) == ((WIDE, 290), 2)
    first.draw(NARROW)
    assert drawn[-1][2]["size"] == (NARROW, 210) and drawn[-1][2]["columns"] == 1
    assert frame.groupby("run")["depth"].agg(list).to_dict() == {
        "ours": [0, 0.5, 1, 1.04],
        "theirs": [0, 0.25, 0.5, 0.75, 1],
    }
    assert frame["joined"].tolist() == [True] * 8 + [False]
    assert set(frame["n"]) == {40, 50}
    assert first.title == "Anisotropy A of every run"
    assert (
        first.caption
        == "Ribbons are 95 % intervals; a diamond is the output after the final norm."
    )
    assert first.basis == "n = 40 to 50 units"
    assert first.alt == (
        "Line chart of anisotropy A by relative depth: lowest .000 (ours), highest .800 (theirs)."
    )
    _, frame, options = show(drawn, second)
    assert options["titles"] == ("relative depth", "difference")
    assert second.title == "Difference from ours" and second.basis == ""
    assert second.caption == (
        "An interval that does not hold 0 tells a layer of two runs apart. "
        + first.caption
    )
    assert frame.groupby("run", sort=False)["value"].agg(list).to_dict() == {
        "ours": [0, 0, 0, 0],
        "theirs": [0, 0.1, 0.2, -0.4],
    }
    theirs = frame[frame["run"].eq("theirs")]
    assert theirs["low"].tolist() == pytest.approx([-0.01, 0.09, 0.19, -0.41])
    assert theirs["high"].tolist() == pytest.approx([0.02, 0.12, 0.22, -0.38])
    assert frame[frame["run"].eq("ours")][["low", "high"]].isna().all(axis=None)
    assert theirs["depth"].tolist() == [0, 0.5, 1, 1.04]


def test_runs_of_equal_depth_are_drawn_by_layer_whatever_their_final_norm(drawn):
    values = [
        of_run(run, n, v + n)
        for run, v in (("ours", 0.1), ("theirs", 0.2))
        for n in (0, 1)
    ]
    table = [difference("theirs", n, 0.1) for n in (0, 1)]
    table.append(difference("theirs", 1, 0.1, site="final", layer_other=2))
    given = compared(table, values, metric="drift", units=(None, None))
    first, second = comparison.build_figures(given)
    name, _, options = show(drawn, first)
    assert name == "layer_curve" and options["title"] == "drift"
    assert show(drawn, second)[2]["title"] == "difference"
    assert first.title == "Drift of every run" and first.basis == ""
    assert (
        first.caption == "Ribbons are 95 % intervals." and "diamond" in second.caption
    )
    assert first.alt.startswith("Line chart of drift by layer: ")
    (bars,) = comparison.build_figures(compared(table[:1], [values[0], values[2]]))
    name, frame, options = show(drawn, bars)
    assert name == "bars" and frame["run"].tolist() == ["ours", "theirs"]
    assert options["category"] == "run" and options["size"] == (WIDE, 26)
    assert options["titles"] == ("anisotropy A", "")
    assert bars.alt == "Bars of anisotropy A by run." and options["panel"] is None
    given = compared(table)
    given.table = given.table[:0]
    assert comparison.build_figures(given) == []


def test_what_is_in_no_layer_is_compared_in_bars(drawn):
    """The accuracy of two classifiers made a figure without bars."""
    accuracies = [
        of_run(run, None, value, stack=None, site=None, component=name)
        for run, right in (("ours", (0.9, 0.8, 1.0)), ("theirs", (0.7, 0.6, 0.8)))
        for name, value in zip((None, "a", "b"), right, strict=True)
    ]
    table = [difference("theirs", None, -0.2, stack=None, site=None, layer_other=None)]

    def draw_bars(values):
        (figure,) = comparison.build_figures(compared(table, values, metric="accuracy"))
        name, frame, options = show(drawn, figure)
        assert name == "bars" and options["category"] == "run"
        return frame, options["panel"]

    frame, panel = draw_bars(accuracies)
    assert panel is None and frame["value"].tolist() == [0.9, 0.7]
    frame, panel = draw_bars([row for row in accuracies if row["component"]])
    assert panel == "panel" and frame["panel"].tolist() == ["a", "b"] * 2
    matrices = [
        of_run(run, None, 0.5, stack=None, site=f"embedding.{end}")
        for run in ("ours", "theirs")
        for end in ("input", "output")
    ]
    frame, panel = draw_bars(matrices)
    assert panel == "site" and len(frame) == 4


def test_stacks_kinds_and_components_of_runs_have_panels(drawn):
    values = []
    for stack, kind in (("encoder", "self"), ("decoder", "self"), ("decoder", "cross")):
        for component in ("a", "b"):
            for n in (0, 1):
                values.append(
                    of_run("ours", n, 0.5, stack=stack, kind=kind, component=component)
                )
    names = comparison._name_panels(typed(values))
    assert list(dict.fromkeys(names)) == [
        "encoder a",
        "encoder b",
        "decoder a",
        "decoder b",
        "decoder, cross-attention a",
        "decoder, cross-attention b",
    ]
    for count, panels in ((8, 8), (9, 1)):
        many = [of_run("ours", 0, 0.1, component=str(k)) for k in range(count)]
        found = comparison._name_panels(typed(many))
        assert found.nunique() == panels and found.iloc[0].startswith("encoder")
    none = [of_run("ours", 0, 0.1, stack=None)]
    assert comparison._name_panels(typed(none)).tolist() == [""]
    # an encoder and a decoder are drawn in one panel if each run has but one stack
    apart = [of_run("ours", n, 0.1) for n in (0, 1)]
    apart += [of_run("theirs", n, 0.2, stack="decoder") for n in (0, 1)]
    frame = comparison._collect_values(compared([difference("theirs", 0, 0.1)], apart))
    assert set(frame["panel"]) == {""}
    apart += [of_run("theirs", 0, 0.2)]
    given = compared([difference("theirs", n, 0.1) for n in (0, 1)], apart)
    frame = comparison._collect_values(given)
    assert set(frame["panel"]) == {"encoder", "decoder"}
    assert show(drawn, comparison.build_figures(given)[0])[2]["panel"] == "panel"


def test_heads_are_compared_in_a_map_with_a_panel_for_each_run(drawn):
    table = [
        difference("theirs", layer, 0.1 * layer - 0.01 * head, head=head)
        for layer in (1, 2)
        for head in (0, 1)
    ]
    table += [difference("theirs", 1, 0.9), difference("theirs", None, 0.8, head=0)]
    (figure,) = comparison.build_figures(compared(table, heads=True))
    name, frame, options = show(drawn, figure)
    assert name == "heatmap" and options["diverging"] is True
    assert options["title"] == "difference" and options["panel"] is None
    assert options["size"] == (WIDE, 22)
    figure.draw(NARROW)
    assert drawn[-1][2]["size"] == (NARROW, 18)
    assert frame[["layer", "head", "value"]].values.tolist() == [
        [1, 0, 0.1],
        [1, 1, pytest.approx(0.09)],
        [2, 0, 0.2],
        [2, 1, pytest.approx(0.19)],
    ]
    assert figure.title == "anisotropy A: difference from ours, head by head"
    assert figure.alt == "Heat map of differences over 4 heads."
    more = [*table, difference("another", 1, 0.3, head=0)]
    (figure,) = comparison.build_figures(compared(more, heads=True))
    assert show(drawn, figure)[2]["panel"] == "run"


def test_a_table_of_differences_has_each_number_in_its_column():
    table = [
        difference("theirs", 1, 0.25, layer_other=3),
        difference("theirs", 2, -0.5, site="final", stack="decoder"),
        difference("theirs", 3, 0.125, head=4, low=NAN, high=NAN, first=NAN),
        difference("theirs", 4, 0.5, layer_other=None, second_low=0.8, second_high=0.8),
    ]
    made = comparison._build_table(compared(table))
    assert made.head == (
        "run",
        "layer",
        "stack",
        "head",
        "ours",
        "run’s own value",
        "difference",
    )
    assert made.rows == (
        (
            ("theirs", ""),
            ("1 · 3", ""),
            ("encoder", ""),
            ("", ""),
            (".300", "[.280, .330]"),
            (".550", "[.200, .900]"),
            ("+.250", "[+.240, +.270]"),
        ),
        (
            ("theirs", ""),
            ("final", ""),
            ("decoder", ""),
            ("", ""),
            (".300", "[.280, .330]"),
            ("−.200", "[.200, .900]"),
            ("−.500", "[−.510, −.480]"),
        ),
        (
            ("theirs", ""),
            ("3", ""),
            ("encoder", ""),
            ("4", ""),
            ("–", "[.280, .330]"),
            (".425", "[.200, .900]"),
            ("+.125", ""),
        ),
        (
            ("theirs", ""),
            ("4", ""),
            ("encoder", ""),
            ("", ""),
            (".300", "[.280, .330]"),
            (".800", ""),
            ("+.500", "[+.490, +.520]"),
        ),
    )
    plain = comparison._build_table(compared(table[:1]))
    assert plain.head == ("run", "layer", "ours", "run’s own value", "difference")
    parts = [difference("theirs", 1, 0.1), difference("theirs", 1, 0.1, component="c")]
    assert comparison._build_table(compared(parts)).head[2] == "component"


def test_files_of_a_comparison_hold_what_was_compared(tmp_path, monkeypatch):
    values, table = two_runs()
    written = {}

    def write_page(folder, template, **content):
        written.update(content, folder=folder, template=template.name)
        return folder / "report.html"

    def draw(_figures, folder, formats):
        return (folder.name, formats)

    monkeypatch.setattr(comparison, "write_page", write_page)
    monkeypatch.setattr(comparison, "draw_figures", draw)
    given = compared(table, values)
    # a run in memory may not say what it is of
    del given.runs[1].manifest["model"]
    found = comparison.write_comparison(given, tmp_path / "of", ("svg", "pdf"))
    assert found == tmp_path / "of" / "report.html"
    assert written["template"] == "comparison.html.j2"
    assert written["title"] == "ours · theirs" and written["metric"] == "anisotropy A"
    assert written["headline"] == ["a sentence"] and written["notes"] == ["a note"]
    assert written["facts"] == [
        ("ours", "model of ours"),
        ("theirs", "–"),
    ]
    assert written["drawn"] == ("figures", ("svg", "pdf")) and written["formats"] == (
        "svg",
        "pdf",
    )
    kept = pd.read_parquet(tmp_path / "of" / "differences.parquet")
    assert kept["difference"].tolist() == given.table["difference"].tolist()
    assert json.loads((tmp_path / "of" / "comparison.json").read_text("utf-8")) == {
        "metric": "mean_cosine",
        "tokens": "content",
        "heads": False,
        "runs": [
            {"name": "ours", "model": "model of ours", "run": "r-ours"},
            {"name": "theirs", "model": None, "run": "r-theirs"},
        ],
        "notes": ["a note"],
        "findings": ["a sentence"],
    }


# ---- the cards of a run


def of_card():
    """Layers of two stacks of two seeds, isotropic and not, with a final norm and a layer without an interval."""
    rows = []
    for seed, more in ((3, 0.0), (4, 0.01)):
        for stack, a in (("encoder", 0.2), ("decoder", 0.6)):
            for site, b in (("hidden", 0.0), ("final", 0.1)):
                keys = {"stack": stack, "site": site, "seed": seed, "step": 5}
                value = a + b + more
                rows.append(row("mean_cosine", 2, value, **keys))
                rows.append(row(LAW, 2, 0.65, **keys) | {"low": NAN, "high": NAN})
    rows[0] |= {"low": NAN, "high": NAN, "n_units": 1200}
    return as_records(pd.DataFrame(rows))


TABLE = """\
| seed | stack | layer | A | 95 % interval | verdict |
|---|---|---|---|---|---|
| 3 | encoder | 2 | .200 | – |  |
| 3 | encoder | final norm | .300 | [.297, .303] | isotropic |
| 3 | decoder | 2 | .600 | [.594, .606] | isotropic |
| 3 | decoder | final norm | .700 | [.693, .707] | anisotropic |
| 4 | encoder | 2 | .210 | [.208, .212] | isotropic |
| 4 | encoder | final norm | .310 | [.307, .313] | isotropic |
| 4 | decoder | 2 | .610 | [.604, .616] | isotropic |
| 4 | decoder | final norm | .710 | [.703, .717] | anisotropic |
"""
ORIGINS = """\
## How it was made

- command: `anisoscope measure x`
- model: org/model
- revision: abc
- weights (SHA-256): 12
- architecture: Bert
- run: r1
- note: one
- note: two
"""


def test_cards_hold_every_number_and_origin_in_its_place():
    from anisoscope.report import card

    manifest = {
        "command": "anisoscope measure x",
        "model": "org/model",
        "revision": "abc",
        "weights_sha256": "12",
        "architecture": "Bert",
        "run": "r1",
        "warnings": ["one", "two"],
        "corpus": {"name": "/home/me/texts"},
        "code": {"version": "9.8"},
    }
    written = card.write_dataset_card(
        of_card(), manifest, "me/geometry", licence="mit", page=True
    )
    head = [
        "---",
        'pretty_name: "Geometry of org/model"',
        'license: "mit"',
        "tags:",
        "- anisoscope",
        "- anisotropy",
        "- interpretability",
        "configs:",
        "- config_name: default",
        "  data_files: records.parquet",
        "---",
        "",
        "# Geometry of org/model",
        "",
        "![anisotropy](badge.svg)",
        "",
        "Measured with Anisoscope 9.8 on texts (1,200 units).",
        "",
        "- ",
    ]
    assert written.startswith("\n".join(head))
    assert TABLE in written and 'snapshot_download("me/geometry", repo' in written
    assert written.endswith(ORIGINS)
    assert "units. `report.html` is the page of the run." in written
    plain = card.write_dataset_card(of_card()[:0], {"corpus": "texts"}, "me/geometry")
    assert "license" not in plain and "| layer |" not in plain
    assert "with Anisoscope of an unknown version on texts.\n" in plain
    assert "report.html" not in plain and plain.endswith("## How it was made\n")
    section = card.write_model_card(of_card(), manifest, "me/geometry")
    page_of_run = "https://huggingface.co/datasets/me/geometry"
    assert section.splitlines()[:5] == [
        "## Geometry of its representations",
        "",
        f"[![anisotropy]({page_of_run}/resolve/main/badge.svg)]({page_of_run})",
        "",
        "Measured with Anisoscope 9.8 on texts (1,200 units).",
    ]
    assert section.endswith(TABLE)
    one = of_card()
    one = one[one["seed"].eq(4) & one["stack"].eq("decoder")]
    assert "| layer | A | 95 % interval | verdict |" in card.write_model_card(one, {})
    badge = card.draw_badge(of_card())
    assert "anisotropy: A .710, the final norm, anisotropic" in badge
    assert card.COLOURS["anisotropic"] in badge


# ---- the page and its files


def two_figures():
    """A figure of two drawings, and one of a single drawing; a drawing says what it is of, and how wide."""
    figures_of_page = []
    for name, labels in (("one", ("all", "content")), ("two", ("",))):
        drawings = {
            label: (lambda width, of=f"{name} {label}": f"{of} {width}")
            for label in labels
        }
        figures_of_page.append(Figure(name, "t", "c", "b", "a", drawings))
    return figures_of_page


def test_every_figure_is_drawn_wide_and_narrow_and_only_the_wide_ones_are_files(
    monkeypatch, tmp_path
):
    written = []
    monkeypatch.setattr(
        page, "to_svgs", lambda charts: {n: draw() for n, draw in charts.items()}
    )
    monkeypatch.setattr(
        page, "shorten_tiles", lambda svg, merge: f"{svg} {'merged' if merge else ''}"
    )
    monkeypatch.setattr(page, "write", lambda *given: written.append(given))
    *shown, extra = [*two_figures(), two_figures()[1]]
    extra = Figure("extra", "t", "c", "b", "a", extra.drawings)
    found = page.draw_figures(shown, tmp_path, ("svg", "pdf"), files_only=[extra])
    assert found == {
        "one": [
            {
                "label": "all",
                "file": "one",
                "wide": "one all 640 ",
                "narrow": "one all 272 merged",
            },
            {
                "label": "content",
                "file": "one-content",
                "wide": "one content 640 ",
                "narrow": "one content 272 merged",
            },
        ],
        "two": [
            {
                "label": "",
                "file": "two",
                "wide": "two  640 ",
                "narrow": "two  272 merged",
            }
        ],
    }
    files = ("one", "one-content", "two", "extra")
    drawn = ("one all 640 ", "one content 640 ", "two  640 ", "two  640 ")
    assert written == [
        (svg, tmp_path / name, ("svg", "pdf"))
        for svg, name in zip(drawn, files, strict=True)
    ]


def test_a_page_is_given_all_that_its_template_shows(monkeypatch, tmp_path):
    given = {}
    asked = []

    def write_page(folder, template, **content):
        given.update(content, template=template.name)
        return folder / "report.html"

    def draw(single, folder, formats, files_only):
        asked.append(([one.name for one in single], folder, formats, len(files_only)))
        return "drawings"

    monkeypatch.setattr(page, "write_page", write_page)
    monkeypatch.setattr(page, "draw_figures", draw)
    rows = [row("mean_cosine", 1, 0.25), row("mean_cosine", 2, 0.5)]
    rows += of_heads("attention.entropy_normalised", heads=2)
    manifest = {
        "command": "a command",
        "model": "/x/mine",
        "corpus": {"name": "texts"},
        "warnings": ["a warning"],
        "device": "cuda",
    }
    found = page.write_run(results(rows, **manifest), tmp_path, ("svg",))
    assert found == tmp_path / "report.html" and given["drawn"] == "drawings"
    assert given["template"] == "report.html.j2" and given["formats"] == ("svg",)
    assert (given["title"], given["corpus"]) == ("mine", "texts")
    assert given["headline"] == [
        "No interval, hence no verdict: the highest A is .500 at layer 2.",
        "No head is a sink, uniform, one-hot, aligned or opposite (mean normalised entropy .155).",
    ]
    assert given["tiles"][0][:2] == ("highest anisotropy A", ".500")
    assert ("device", "cuda") in given["facts"]
    assert [section.slug for section in given["sections"]] == [
        "anisotropy",
        "attention",
        "table",
    ]
    assert given["numbers"] == {"anisotropy": 1, "heads": 2}
    assert given["notices"] == ["a warning"] and given["command"] == "a command"
    assert ("model", "/x/mine") in given["provenance"]
    assert given["about"] == "manifest.json" and given["sample"] is False
    assert given["script"] == head_map.read_script()
    assert given["shades"] == head_map.write_shades()
    assert asked == [(["anisotropy"], tmp_path / "figures", ("svg",), 1)]
    (tmp_path / "series.json").write_text("{}")
    (tmp_path / "reservoir.safetensors").write_bytes(b"")
    page.write_run(results([row("norms.mean", 1, 0.5)]), tmp_path, ("svg",))
    assert given["about"] == "series.json" and given["sample"] is True
    assert given["headline"] == ["This run holds no anisotropy of hidden states."]
    assert (
        given["corpus"] == "unnamed corpus" and given["script"] == given["shades"] == ""
    )
    assert given["command"] == "" and given["tiles"] == []


def test_a_map_of_heads_has_the_cells_of_every_panel_in_order():
    rows = of_heads("h", heads=2, layers=(1, 2), kind="self")
    rows += of_heads("h", heads=3, layers=(2,), shift=0.5, stack="decoder")
    rows += of_heads("g", heads=1, layers=(1,), shift=0.8)
    rows += [row("mean_cosine", 2, 0.6, stack="decoder"), row("mean_cosine", 1, 0.4)]
    rows += [row("mean_cosine", 2, 0.9, site="final")]
    rows += [row("undefined", 3, NAN, head=0, site="attention", stack="decoder")]
    found = results(rows)
    parts = []
    for metric in ("h", "g"):
        described = entry(
            metric=metric, group=f"of {metric}", draw={"title": f"unit {metric}"}
        )
        frame = figures.select_heads(found, described)
        parts.append((described, frame, Figure(metric, "t", "c", "b", "a", {"": None})))
    made = head_map.build_head_map(found, parts)
    assert [(panel.name, panel.layers, panel.heads) for panel in made.panels] == [
        ("encoder", (1, 2), (0, 1)),
        ("decoder", (2, 3), (0, 1, 2)),
    ]
    first, second = made.quantities
    assert (first.group, first.unit, second.group, second.unit) == (
        "of h",
        "unit h",
        "of g",
        "unit g",
    )
    assert first.texts == (
        ".100",
        ".110",
        ".200",
        ".210",
        ".700",
        ".710",
        ".720",
        "–",
        "",
        "",
    )
    assert first.ends[0] == "[.099, .101]" and first.ends[4] == "[.693, .707]"
    assert first.shades[6:] == head_map.DIGITS[-1] + "-  " and first.shades[0] == "0"
    assert second.texts == (".900", *["–"] * 7, "", "")
    assert second.ranks == ("1 of 1", *[""] * 9)
    assert first.scale == (".100", ".410", ".720") and second.scale == (".900",)
    assert made.layers == (
        "Layer 1 has 2 heads. A of its output: .400 [.396, .404].",
        "Layer 2 has 2 heads.",
        "Layer 2 has 3 heads. A of its output: .600 [.594, .606].",
        "Layer 3 has 1 head.",
    )
    tables = made.tables
    assert [table["name"] for table in tables] == ["encoder", "decoder"]
    assert [[number for number, _ in table["rows"]] for table in tables] == [
        [1, 2],
        [2, 3],
    ]
    assert [cell for _, cells in tables[1]["rows"] for _, cell in cells] == [
        ".70",
        ".71",
        ".72",
        "–",
        "",
        "",
    ]
    assert head_map.build_head_map(found, []) is None


# ---- parts that charts are made of


def test_axes_have_ticks_that_fit_their_numbers():
    def axis(values, scale):
        found = style.number_axis("at", "title", pd.Series(values), scale).to_dict()
        assert (found["field"], found["title"]) == ("at", "title")
        return found["axis"], found["scale"]

    plain = {"nice": False, "zero": False}
    layers = {"format": "d", "values": [0, 1, 2]}
    assert axis([0, 1, 2.5], "linear") == (layers, plain | {"padding": 8})
    assert axis([1, 13], "linear")[0]["values"] == list(range(1, 14))
    assert axis([0, 13], "linear") == ({"tickMinStep": 1}, plain | {"padding": 8})
    assert axis([0.3, 2], "linear") == ({}, plain | {"padding": 0})
    # a log axis without a number above 0 would show nothing
    assert axis([-1, 0], "log")[0] == {"format": "d", "values": [-1, 0]}
    labels = {"labelExpr": "format(datum.value, '~s')", "labelOverlap": True}
    logarithmic = plain | {"type": "log"}
    assert axis([5, 600], "log") == (labels | {"values": [5, 50, 500]}, logarithmic)
    symmetric = plain | {"type": "symlog"}
    ticks = labels | {"values": [0, 5, 50, 500]}
    assert axis([0, 5, 600], "symlog") == (ticks, symmetric | {"constant": 5})
    both = labels | {"values": [0, 1, 10, -1, -10]}
    assert axis([-3, 40], "symlog") == (both, symmetric | {"constant": 1})


def test_bands_levels_and_intervals_lie_between_their_ends():
    def parts(chart):
        found = chart.to_dict()
        places = {
            name: channel.get("field", channel.get("value"))
            for name, channel in found["encoding"].items()
        }
        calculated = [
            (step["as"], step["calculate"])
            for step in found["transform"]
            if "calculate" in step
        ]
        shown = [step["filter"] for step in found["transform"] if "filter" in step]
        return found["mark"]["type"], places, calculated or shown

    empty = alt.Chart()
    low_to_high = {"y": "low", "y2": "high"}
    assert parts(style.ribbon(empty, "up")) == (
        "area",
        low_to_high,
        ["isValid(datum.low)"],
    )
    other = style.ribbon(empty, "up", "l", "h", opacity=0.5)
    assert parts(other) == ("area", {"y": "l", "y2": "h"}, ["isValid(datum.l)"])
    assert other.to_dict()["mark"]["opacity"] == 0.5
    assert parts(style.whisker(empty, "up")) == (
        "rule",
        low_to_high,
        ["isValid(datum.low)"],
    )
    flat = style.whisker(empty, "across", flat=True, color="#123456")
    assert parts(flat)[1] == {"x": "low", "x2": "high"}
    assert flat.to_dict()["mark"]["color"] == "#123456"
    band = parts(style.between(0.25, 0.5, "up", opacity=0.1))
    ends = [("floor", "0.25"), ("ceiling", "0.5")]
    assert band == ("rect", {"y": "floor", "y2": "ceiling"}, ends)
    (alone,) = style.level(2, "up")
    assert parts(alone) == ("rule", {"y": "at"}, [("at", "2"), ("name", "''")])
    line, text = style.level(0.25, "up", "q95")
    at = [("at", "0.25"), ("name", "'q95'")]
    assert parts(line) == ("rule", {"y": "at"}, at)
    assert parts(text) == ("text", {"x": "width", "y": "at", "text": "name"}, at)
    for chart in (
        style.ribbon(empty, "up"),
        line,
        style.between(0, 1, "up", opacity=1),
    ):
        assert chart.to_dict()["encoding"]["y"]["title"] == "up"


def test_colours_and_shapes_follow_the_order_of_names():
    names = pd.Series(["b", "a", "b"])
    plain = style.colour(names, "n", 300).to_dict()
    assert (plain["field"], plain["type"]) == ("n", "nominal")
    assert plain["scale"] == {"domain": ["b", "a"]} and plain["legend"]["columns"] == 0
    pale = style.colour(names, "n", 300, pale={"a": "b"}).to_dict()
    assert pale["scale"]["domain"] == ["b", "a"]
    assert pale["scale"]["range"] == [
        style.PALETTE[0],
        style._lighten(style.PALETTE[0]),
    ]
    assert style.colour(names[:1], "n", 300).to_dict()["legend"] is None
    steps = style.colour(pd.Series([1, 2]), "n", 300, gradient=True).to_dict()
    assert steps["type"] == "quantitative" and steps["legend"]["title"] == "n"
    assert steps["scale"]["range"] == list(style.GRADIENT)
    shapes = style.shape(pd.Series([*"abcdefgh"]), "n", 100).to_dict()
    assert shapes["scale"]["domain"] == [*"abcdefgh"]
    assert shapes["scale"]["range"] == [*style.SHAPES, *style.SHAPES[:2]]
    assert shapes["legend"]["columns"] == 3
    # luminance is mixed by cube roots: (0.5636)³ is the limit
    share = pd.Series([0.0, 0.563, 0.565, 1.0], index=[4, 3, 2, 1])
    found = style.needs_white_ink(share, ["#000000", "#ffffff"])
    assert found.tolist() == [True, True, False, False] and found.index.equals(
        share.index
    )
    for bounds, middle, digits in (
        ((-2.0, 99.0), 48.5, ".2~f"),
        ((-99.0, 3.0), -48.0, ".2~f"),
        ((-2.0, 100.0), 49.0, ".3~s"),
        ((-100.0, 3.0), -48.5, ".3~s"),
    ):
        cell = builders._make_cell_colour("t", bounds, ["#000000", "#ffffff"]).to_dict()
        assert cell["legend"]["values"] == [bounds[0], middle, bounds[1]]
        assert cell["legend"]["format"] == digits and cell["legend"]["title"] == "t"
        assert cell["scale"]["domain"] == list(bounds)
        assert cell["scale"]["range"] == ["#000000", "#ffffff"]


def lines_of_two_panels():
    return pd.DataFrame(
        {
            "step": [1, 2, 1, 2, 1],
            "model": ["a", "a", "b", "b", "a"],
            "part": ["p", "p", "p", "p", "q"],
            "value": [1.0, 2.0, 3.0, 4.0, 5.0],
            "low": 0.5,
            "high": 6.0,
        }
    )


def test_panels_share_the_width_and_gaps_are_wide_for_axes_of_their_own():
    frame = lines_of_two_panels()
    for independent, width in ((False, 308), (True, 288)):
        spec = builders.trajectory(
            frame, panel="part", independent=independent, size=(640, 200)
        ).to_dict()
        assert spec["spec"]["width"] == width and spec["spec"]["height"] == 200
        assert spec["columns"] == 2 and spec["facet"]["field"] == "part"
        assert spec["facet"]["sort"] == ["p", "q"]
        resolved = spec.get("resolve", {}).get("scale", {})
        assert resolved == ({"y": "independent"} if independent else {})
    one = builders.trajectory(frame, panel="part", columns=1, size=(640, 200)).to_dict()
    assert one["spec"]["width"] == 640 and one["columns"] == 1
    three = builders.scatter(
        frame, x="step", titles=("a", "b"), panel="part", columns=3, size=(500, 90)
    ).to_dict()
    assert three["spec"]["width"] == 238 and three["columns"] == 2
    bars = builders.bars(
        frame, category="model", panel="part", size=(640, 20)
    ).to_dict()
    assert (bars["spec"]["width"], bars["spec"]["height"]) == (308, 40)
    cells = builders.heatmap(
        frame, x="step", y="model", panel="part", columns=2
    ).to_dict()
    assert (cells["spec"]["width"], cells["spec"]["height"]) == (308, 52)


def test_each_series_may_have_a_bound_of_its_own():
    frame = lines_of_two_panels()
    chart = builders.trajectory(frame, isotropic={"a": 0.25, "b": 0.75}, band=False)
    spec = chart.to_dict()
    rows = next(iter(spec["datasets"].values()))
    assert {(row["model"], row["isotropic"]) for row in rows} == {
        ("a", 0.25),
        ("b", 0.75),
    }
    rule = spec["layer"][0]
    assert rule["transform"][0]["groupby"] == ["model"]
    assert rule["encoding"]["y"]["field"] == "isotropic"
    same = builders.trajectory(frame, isotropic=0.25, band=False).to_dict()
    assert [layer["mark"]["type"] for layer in same["layer"][:2]] == ["rect", "rule"]
    band = same["layer"][0]["transform"][1:]
    assert [step["calculate"] for step in band] == ["0", "0.25"]


def test_cells_whose_number_would_not_fit_have_none():
    """From 30 pixels of width and 16 of height on; panels side by side share the width."""
    frame = pd.DataFrame(
        {"head": [0, 1], "layer": 1, "value": [0.25, 0.5], "part": [*"pq"]}
    )

    def labels(**options):
        spec = builders.heatmap(frame, **options).to_dict()
        rows = next(iter(spec["datasets"].values()))
        assert [row["dark"] for row in rows] == [False, True]
        return [row["label"] for row in rows]

    assert labels(size=(60, 16)) == [".25", ".50"]
    assert labels(size=(59, 16)) == labels(size=(60, 15)) == ["", ""]
    assert labels(size=(120, 16), panel="part", columns=2) == [".25", ".50"]
    assert labels(size=(119, 16), panel="part", columns=2) == ["", ""]
    assert labels(size=(60, 16), panel="part", columns=1) == [".25", ".50"]
    assert labels(size=(120, 16), panel="part", columns=5) == [".25", ".50"]


# ---- what figures read of the results, and small pictures


def test_layers_are_of_layers_alone_and_widths_of_their_widest():
    rows = [
        row("m", 2, 0.1, site="final"),
        row("m", 10, 0.2),
        row("m", 9, 0.3),
        row("m", 1, 0.4, stack="decoder"),
        row("m", 1, 0.5, site="query", head=0),
        row("m", None, 0.6),
        row("m", 1, 0.7, component="x"),
        row("m", 1, NAN),
        row("m", 9, 0.8, token_policy="content"),
        row("m", 9, 0.9, token_policy=None),
        row("only", 9, 0.9, token_policy="content"),
        row("only", 9, 0.8, token_policy="no-first"),
    ]
    found = results(rows)
    assert found.select_layers("m")["value"].tolist() == [0.1, 0.3, 0.9, 0.2, 0.4]
    every = found.select_layers("m", every_policy=True)["value"]
    assert every.tolist() == [0.1, 0.3, 0.8, 0.9, 0.2, 0.4]
    assert found.select_layers("m", component="x")["value"].tolist() == [0.7]
    assert found.select_components("m")["value"].tolist() == [0.7]
    # measured for other policies alone, it keeps all of them
    assert found.select_layers("only")["value"].tolist() == [0.9, 0.8]
    assert found.policies == ["all", "content", "no-first"]
    assert len(found.select_metric("m")) == 9 and found.select_metric("none").empty
    stacked = found.stack_metrics({"only": "two", "m": "one"})
    assert stacked["series"].tolist() == ["two"] * 2 + ["one"] * 5
    table = found.table
    missing = {"stack", "kind", "site", "token_policy", "component"}
    for name in missing:
        assert all(entry is None or isinstance(entry, str) for entry in table[name]), (
            name
        )
    for name in ("value", "low", "high", "layer", "head", "n_vectors", "n_units"):
        assert table[name].dtype == float, name
    wide = [
        row("mean_cosine.contribution", layer, 0.1, component=str(k), site=site)
        for layer, site, count in (
            (1, "hidden", 2),
            (2, "hidden", 4),
            (2, "final", 3),
            (2, "key", 9),
        )
        for k in range(count)
    ]
    assert results(wide).width == 4


def test_what_numbers_rest_on_is_counted_in_the_words_of_the_figure():
    rows = [row("m", 1, 0.1, n_units=1), row("n", 1, 0.1, n_units=50, n_vectors=50)]
    words = {"position": "patch", "unit": "image"}
    found = results(rows, corpus={"words": words})
    one, same = found.select_metric("m"), found.select_metric("n")
    assert found.describe_basis(one) == "n = 1,000 vectors in 1 image; tokens: all"
    assert found.describe_basis(one, "rows") == "n = 1,000 rows in 1 image; tokens: all"
    assert found.describe_basis(one, "sequences") == "n = 1,000 sequences in 1 image"
    assert found.describe_basis(same, "images") == "n = 50 images"
    assert found.describe_basis(same) == "n = 50 vectors in 50 images; tokens: all"
    nothing = one.assign(n_vectors=NAN, n_units=NAN)
    assert found.describe_basis(nothing) == "tokens: all"
    assert found.describe_basis(nothing, "images") == ""
    described = entry(
        basis={"m": "vectors", "absent": "rows", "n": "images"}, counts="rows"
    )
    both = found.table
    figure = make_figure(found, described, both, lambda _: None)
    assert figure.basis == "n = 1,000 vectors in 1 image; patches: all; n = 50 images"
    del described["basis"]
    figure = make_figure(found, described, both, lambda _: None)
    assert figure.basis == "n = 50 to 1,000 rows in 1 to 50 images; patches: all"
    assert make_figure(found, entry(), both, lambda _: None, basis="b").basis == "b"


def test_heads_of_keys_are_no_places_of_the_map_and_one_stage_is_shown():
    rows = [
        row("q", 1, 0.1, head=0, site="query.raw"),
        row("q", 1, 0.2, head=3, site="key.raw"),
        row("q", 1, 0.3, head=4, site="value"),
        row("q", 1, NAN, head=1, site="query.rotated"),
        row("q", 2, 0.4, head=0, site="attention", kind="cross"),
        row("q", None, 0.5, head=5, site="attention"),
    ]
    places = results(rows).head_places
    assert places.values.tolist() == [
        ["encoder", 1, 0],
        ["encoder", 1, 1],
        ["encoder, cross-attention", 2, 0],
    ]
    rows.append(row("q", 1, 0.6, head=0, site="query.rotated"))
    found = results(rows)
    assert found.select_heads("q", "query")["value"].tolist() == [0.1]
    assert found.select_heads("q", "key")["value"].tolist() == [0.2]
    assert found.select_heads("q", "attention")["value"].tolist() == [0.4]


def test_a_badge_has_room_for_its_words():
    from anisoscope.report import card

    tree = ElementTree.fromstring(card.draw_badge(of_card()))
    rect, path = tree[1], tree[2]
    left, shown = tree[3], tree[4]
    assert (left.text, shown.text) == ("anisotropy", "A .710, the final norm")
    # 6.6 pixels for a character, 8 on either side of a word
    widths = round(10 * 6.6 + 16), round(22 * 6.6 + 16)
    assert int(tree.get("width")) == int(rect.get("width")) == sum(widths)
    assert int(tree.get("height")) == int(rect.get("height")) == 20
    assert path.get("d").startswith(f"M{widths[0]} 0h{widths[1] - 3}a")
    assert path.get("d").endswith(f"h-{widths[1] - 3}z")
    assert float(left.get("x")) == widths[0] / 2
    assert float(shown.get("x")) == widths[0] + widths[1] / 2


def test_bars_of_an_atlas_are_of_the_strongest_layers_in_their_order(drawn):
    from anisoscope.report import atlas

    table = pd.DataFrame(
        {
            "network": ["low", "two", "two", "high"],
            "stack": ["encoder", "encoder", "decoder", "encoder"],
            "strongest": [0.1, 0.5, 0.3, 0.9],
            "strongest_low": [0.05, 0.4, 0.2, 0.8],
            "strongest_high": [0.15, 0.6, 0.4, 0.95],
            "low": 7.0,
        }
    )
    figure = atlas._draw_strongest(table)
    name, frame, options = show(drawn, figure)
    assert name == "bars" and options == {
        "category": "network",
        "titles": ("A of the strongest layer", ""),
        "size": (WIDE, 22),
    }
    assert frame[["network", "value", "low", "high"]].values.tolist() == [
        ["high", 0.9, 0.8, 0.95],
        ["two, encoder", 0.5, 0.4, 0.6],
        ["two, decoder", 0.3, 0.2, 0.4],
        ["low", 0.1, 0.05, 0.15],
    ]
    assert figure.alt == "Bars of A by network: from .100 (low) to .900 (high)."


def test_a_page_of_an_atlas_links_to_runs_next_to_it(monkeypatch, tmp_path):
    from anisoscope.report import atlas

    given = {}
    asked = []
    monkeypatch.setattr(atlas, "_draw_strongest", lambda _table: "figure")
    monkeypatch.setattr(atlas, "describe_atlas", lambda _table: ["a sentence"])
    monkeypatch.setattr(atlas, "tabulate", lambda _table: "a table")
    monkeypatch.setattr(atlas, "draw_figures", lambda *of: asked.append(of) or "drawn")

    def write_page(folder, template, **content):
        given.update(content, folder=folder, template=template.name)
        return "page"

    monkeypatch.setattr(atlas, "write_page", write_page)
    table = pd.DataFrame({"network": ["a", "b", "b"]})
    found = atlas.write_atlas_page(
        table,
        tmp_path / "atlas",
        runs={"a": tmp_path / "atlas" / "runs" / "a", "b": tmp_path / "elsewhere"},
        left_out={"c": "why"},
        formats=("svg", "pdf"),
    )
    assert found == "page" and given == {
        "folder": tmp_path / "atlas",
        "template": "atlas.html.j2",
        "title": "Atlas of 2 networks",
        "headline": ["a sentence"],
        "left_out": {"c": "why"},
        "figures": ["figure"],
        "drawn": "drawn",
        "formats": ("svg", "pdf"),
        "table": "a table",
        "links": {"a": "runs/a", "b": "../elsewhere"},
    }
    assert asked == [(["figure"], tmp_path / "atlas" / "figures", ("svg", "pdf"))]


def test_lines_over_layers_have_their_title_and_begin_at_zero():
    frame = pd.DataFrame({"layer": [1, 2], "model": "m", "value": [3.0, 4.0]})

    def axes(chart):
        (spec,) = [
            layer["encoding"]
            for layer in chart.to_dict()["layer"]
            if layer["mark"]["type"] == "line"
        ]
        return spec["x"]["title"], spec["y"]["title"], spec["y"]["scale"]["zero"]

    assert axes(builders.layer_curve(frame)) == ("layer", "anisotropy A", True)
    named = builders.layer_curve(frame, title="up", zero=False)
    assert axes(named) == ("layer", "up", False)
    assert axes(builders.trajectory(frame, x="layer")) == ("step", "value", False)
    assert axes(builders.trajectory(frame, x="layer", zero=True))[2] is True


def test_heads_are_repeated_in_all_panels_or_in_none():
    rows = of_heads("q", "query.raw", heads=4) + of_heads("q", "key.raw", heads=2)
    rows += of_heads("q", "query.raw", heads=3, stack="decoder")
    rows += of_heads("q", "key.raw", heads=2, stack="decoder")
    found = figures.select_heads(results(rows), {"metric": "q", "site": "key"})
    assert found["head"].tolist() == [0, 1] * 4


def test_ids_of_a_drawing_are_numbered_wherever_they_are_used(monkeypatch):
    drawn = (
        '<svg><path id="b7"/><g id="a3"/><use href="#b7"/><g clip-path="url(#a3)" '
        'fill="url(#none)"/><path aria-label="\N{INVISIBLE SEPARATOR}tip &amp; 1" d="M0"/>'
        '<path role="x" aria-label="other" d="M1"></path></svg>'
    )
    given = []
    monkeypatch.setattr(
        export.vl_convert,
        "vegalite_to_svg",
        lambda spec, config: given.append((spec, config)) or drawn,
    )
    found = export._clean_svg({"mark": "bar"}, "n")
    assert given == [({"mark": "bar"}, style.THEME)]
    assert found == (
        '<svg><path id="n-0"/><g id="n-1"/><use href="#n-0"/><g clip-path="url(#n-1)" '
        'fill="url(#none)"/><path d="M0"><title>tip &amp; 1</title></path>'
        '<path d="M1"></path></svg>'
    )


def test_a_pdf_is_numbered_by_what_it_refers_to_first():
    """Objects come out of order, and a stream looks like a reference; offsets are those of the new file."""
    head = b"%PDF-1.7\n%x\n\n"
    parts = {
        4: b"<<\n  /z 9 0 R\n  /a 2 0 R\n>>\n",
        2: b"<<\n  /Length 7\n>>\nstream\n 9 0 R \nendstream\n",
        9: b"<<\n  /Root 1\n>>\n",
        7: b"<<\n  /Pages 4 0 R\n>>\n",
    }
    written, offsets = head, {}
    for number, body in parts.items():
        offsets[number] = len(written)
        written += b"%d 0 obj\n%sendobj\n\n" % (number, body)
    rows = [b"0000000000 65535 f\r\n"]
    for number in range(1, 10):
        if number in offsets:
            rows.append(b"%010d 00000 n\r\n" % offsets[number])
        else:
            rows.append(b"0000000000 00001 f\r\n")
    start = len(written)
    written += b"xref\n0 10\n" + b"".join(rows)
    written += (
        b"trailer\n<<\n  /Size 10\n  /Root 7 0 R\n>>\nstartxref\n%d\n%%%%EOF" % start
    )
    found = export.sort_pdf(written)
    bodies = [
        b"<<\n  /Pages 2 0 R\n>>\n",
        b"<<\n  /a 3 0 R\n  /z 4 0 R\n>>\n",
        parts[2],
        parts[9],
    ]
    expected, begins = head, []
    for number, body in enumerate(bodies, start=1):
        begins.append(len(expected))
        expected += b"%d 0 obj\n%sendobj\n\n" % (number, body)
    table = len(expected)
    expected += b"xref\n0 5\n0000000000 65535 f\r\n"
    expected += b"".join(b"%010d 00000 n\r\n" % begin for begin in begins)
    expected += (
        b"trailer\n<<\n  /Size 5\n  /Root 1 0 R\n>>\nstartxref\n%d\n%%%%EOF" % table
    )
    assert found == expected
