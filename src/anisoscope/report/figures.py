"""The figures of a run's page.

Each function takes the results and an entry of page.toml, and returns no figure if the numbers it needs are missing.
"""

from collections.abc import Callable

import pandas as pd

from anisoscope.axes import PAIRS, SUBSET_FAMILIES, TOWER_STACKS
from anisoscope.charts import builders as charts
from anisoscope.report.parts import (
    Draw,
    Entry,
    Figure,
    describe_span,
    find_extremes,
    make_drawing,
    make_figure,
)
from anisoscope.report.results import (
    LAYER_SITES,
    PANEL,
    SHARED_SITES,
    Results,
    describe_extent,
    sort_by_keys,
)
from anisoscope.wording import (
    count_noun,
    format_count,
    format_ends,
    format_measured,
    format_number,
    format_percent,
    join_words,
)

TOP_DIMENSIONS = 10
TALL = 24
"""From this many layers on, the rows of a heat map are low enough to fit a screen."""
ROWS = (26, 20)
SQUARE = (30, 30)
LOW = (12, 12)
"""Heights of a row of a heat map, on a wide screen and on a phone, in pixels."""
HEADS_ALT = (
    "Heat map of {unit} over {layers} and {heads}: lowest {lowest}, highest {highest}."
)
LINES_ALT = "Line chart of {axis} by layer: {span}."


def draw_policies(results: Results, entry: Entry) -> list[Figure]:
    """Draw a quantity per layer, with a band of the cosines of isotropic vectors; one drawing per token policy.

    entry   the figure's entry in page.toml: its metric and texts. No figure is returned if the metric was not measured
    """
    frame = results.select_layers(entry["metric"], every_policy=True)
    if frame.empty:
        return []
    q95 = _find_isotropic_q95(results)
    drawings = {}
    for policy in results.policies or ["all"]:
        # Records without a policy belong to every drawing.
        rows = frame[frame["token_policy"].fillna(policy).eq(policy)]
        drawings[policy] = make_drawing(
            charts.layer_curve, rows, entry, series="stack", isotropic=q95
        )
    law = ""
    if q95 is not None:
        dimensions = f" in {results.width} dimensions" if results.width else ""
        law = entry["law"].format(q95=format_number(q95), dimensions=dimensions)
    final = ""
    if frame["site"].eq("final").any():
        final = entry["final"]
    # The words describe the first drawing, which a page shows before anybody chooses.
    of_lead = results.select_layers(entry["metric"])
    stacks = list(dict.fromkeys(frame["stack"]))
    facts = {
        "law": law,
        "final": final,
        "span": describe_span(of_lead, results.name_place),
        "stacks": _describe_stacks(stacks, entry.get("stacks", {})),
    }
    # A single drawing needs no label to choose it by.
    drawn = drawings if len(drawings) > 1 else next(iter(drawings.values()))
    return [make_figure(results, entry, frame, drawn, **facts)]


def _find_isotropic_q95(results: Results) -> float | None:
    """Return the largest 95 % quantile of the cosines of isotropic vectors over layers; None if it is unknown."""
    q95 = results.select_layers("mean_cosine.isotropic_q95")["value"]
    if q95.empty:
        return None
    # One band for all layers: of layers of different widths the widest band, so that
    # what lies above it lies above all.
    return float(q95.max())


def _describe_stacks(stacks: list[str], words: dict[str, str]) -> str:
    """Return a sentence on what each stack of a model of images or sounds is; empty for other models."""
    # A reader knows what an encoder is; "vision" and "joint" of a model like CLIP need
    # words.
    if {*stacks}.isdisjoint({*TOWER_STACKS, PAIRS}):
        return ""
    return "; ".join(words[stack] for stack in stacks if stack in words) + ". "


def draw_layers(results: Results, entry: Entry) -> list[Figure]:
    """Draw several metrics per layer, one line each. Returns no figure if too few of them were measured.

    entry   the figure's entry in page.toml: its metrics with their labels, and its texts
    """
    frame = results.stack_metrics(entry["metrics"])
    # Some figures make no sense without one of their lines, or with a single one.
    lacks_needed = "needs" in entry and entry["needs"] not in set(frame["metric"])
    if lacks_needed or frame["series"].nunique() < entry.get("least", 1):
        return []
    # Placeholders of all the entries that this function draws; each text uses those
    # that it names.
    facts = {
        "sample": _describe_sample(frame),
        "rank": _describe_rank(results),
        "accuracy": _describe_accuracy(results),
        "readings": join_words(list(dict.fromkeys(frame["series"]))),
    }
    drawn = make_drawing(
        charts.layer_curve,
        frame,
        {**entry, "draw": {"series": "series"} | entry["draw"]},
    )
    return [make_figure(results, entry, frame, drawn, **facts)]


def _describe_sample(frame: pd.DataFrame) -> str:
    """Return a sentence on the number of sampled vectors that anisotropy after centring is computed from; empty if
    unknown.
    """
    size = describe_extent(
        frame.loc[frame["metric"].str.endswith(".centred"), "n_vectors"]
    )
    if not size:
        return ""
    return f"A after centring is taken on a uniform sample of {size} vectors. "


def _describe_rank(results: Results) -> str:
    """Return a sentence on the effective rank at the layer with the largest anisotropy A; empty if it is unknown."""
    if results.peak is None:
        return ""
    rank = results.find_row(results.peak, "spectrum.effective_rank")
    if rank is None:
        return ""
    out_of = f" of {results.width}" if results.width else ""
    return f" The most anisotropic place has an effective rank of {rank['value']:.1f}{out_of}."


def _describe_accuracy(results: Results) -> str:
    """Return a sentence on the accuracy of the run's classifier and that of naming the commonest class; empty
    without one.
    """
    rows = results.select_rows("accuracy")
    if rows.empty:
        return ""
    accuracy = rows.iloc[0]
    # Both are recorded together.
    majority = results.select_rows("majority").iloc[0]
    right = f"{format_measured(accuracy, None)} of {format_count(accuracy['n_units'])}"
    return f"The classifier itself is right on {right}; the commonest class makes {format_number(majority['value'])}."


def draw_modality_gap(results: Results, entry: Entry) -> list[Figure]:
    """Draw how far images lie from texts: per layer for a stack that reads both, as bars for a model of two towers,
    whose vectors meet at one place.

    entry   the figure's entry in page.toml: its metrics with their labels, and its texts
    """
    frame = results.stack_metrics(entry["metrics"])
    if frame.empty:
        return []
    # Two towers meet in one pair of vectors, which has no layers: bars instead of a
    # curve.
    is_joint = frame["stack"].eq(PAIRS)
    if is_joint.all():
        bar = {
            **entry,
            "height": (22, 22),
            "draw": {"category": "series", "titles": (entry["draw"]["title"], "")},
        }
        drawn = make_drawing(charts.bars, frame, bar, panel=None)
        span = describe_span(frame, lambda row: str(row["series"]))
        facts = {
            "what": entry["joint"],
            "kind": "Bar chart",
            "bands": " Lines are 95 % intervals.",
            "span": span,
        }
        return [make_figure(results, entry, frame, drawn, **facts)]
    # A single point of joint vectors is no part of a curve over layers.
    frame = frame[~is_joint]
    drawn = make_drawing(
        charts.layer_curve,
        frame,
        {**entry, "draw": {"series": "series"} | entry["draw"]},
    )
    facts = {"what": entry["layers"], "kind": "Line chart", "bands": entry["bands"]}
    return [make_figure(results, entry, frame, drawn, **facts)]


def draw_steps(results: Results, entry: Entry) -> list[Figure]:
    """Draw a quantity over the steps of a training: a line per layer, a panel per seed and stack.

    entry   the figure's entry in page.toml. With `heads`, a line is the mean over a layer's heads, with their range

    No figure is returned if the metric was measured at fewer than two steps.
    """
    if entry.get("heads"):
        frame = _average_over_heads(results.select_heads(entry["metric"]))
    else:
        frame = results.select_layers(entry["metric"], component=entry.get("component"))
        # A line for each layer, coloured by its number: the final norm has the number
        # of the last layer.
        frame = frame[frame["site"].eq("hidden")]
    if frame["step"].nunique() < 2:
        return []
    panels = _name_seeds_and_stacks(frame)
    frame = frame.assign(
        step=frame["step"].astype(float),
        layer=frame["layer"].astype(int),
        **{PANEL: panels},
    )
    q95 = _find_isotropic_q95(results) if entry.get("band") else None
    # Training moves fast at first, and begins at step 0: a symlog axis shows both.
    draw = {
        "x": "step",
        "series": "layer",
        "gradient": True,
        "scale": "symlog",
        "isotropic": q95,
    } | entry["draw"]
    facts = {"alt": LINES_ALT.replace("layer", "step"), "axis": draw["titles"][1]}
    span = describe_span(
        frame, lambda row: f"step {row['step']:,.0f}, layer {row['layer']}"
    )
    drawn = make_drawing(charts.trajectory, frame, {**entry, "draw": draw})
    return [make_figure(results, {**facts, **entry}, frame, drawn, span=span, **facts)]


def _average_over_heads(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each layer and step with the mean over heads, and the lowest and highest head as its interval.

    frame   rows of single heads
    """
    keys = ["seed", PANEL, "layer", "step"]
    ends = (
        frame.groupby(keys, sort=False)["value"]
        .agg(value="mean", low="min", high="max")
        .reset_index()
    )
    # The columns that the mean does not touch, such as numbers of units, for the words
    # of the figure.
    others = frame.drop(columns=["value", "low", "high"]).drop_duplicates(keys)
    return ends.merge(others, on=keys)


def _name_seeds_and_stacks(frame: pd.DataFrame) -> pd.Series | str:
    """Return the name of each row's panel: stack and seed, but only what differs among the rows; "" if neither does."""
    has_stacks = frame[PANEL].nunique() > 1
    has_seeds = frame["seed"].nunique() > 1
    if not has_seeds:
        return frame[PANEL] if has_stacks else ""
    seeds = pd.Series([f"seed {seed:.0f}" for seed in frame["seed"]], index=frame.index)
    if not has_stacks:
        return seeds
    return frame[PANEL] + ", " + seeds


def draw_drift_points(results: Results, entry: Entry) -> list[Figure]:
    """Plot anisotropy A against the share of the common direction (drift), one point per layer."""
    place = ["stack", "layer", "site"]
    shares = results.select_layers("drift.share")[[*place, "value"]]
    shares = shares.rename(columns={"value": "share"})
    points = results.select_layers("mean_cosine").merge(shares, on=place)
    # A single point shows no relation.
    if len(points) < 2:
        return []
    is_final = points["site"].eq("final")
    names = points["layer"].astype(int).astype(str).mask(is_final, "final")
    points = points.assign(name=names, joined=~is_final)
    drawn = make_drawing(charts.scatter, points, entry, series=PANEL)
    return [make_figure(results, entry, points, drawn, points=len(points))]


def draw_top_shares(results: Results, entry: Entry) -> list[Figure]:
    """Plot the share of anisotropy A that the largest dimensions contribute, per layer."""
    frame = results.select_components(entry["metric"])
    frame = frame[frame["site"].isin(LAYER_SITES) & frame["layer"].notna()]
    if frame.empty:
        return []
    # Components are text, in which 10 sorts before 3.
    frame = frame.loc[frame["component"].astype(int).sort_values(kind="stable").index]
    frame = frame.assign(series="top " + frame["component"].astype(str))
    return [
        make_figure(
            results,
            entry,
            frame,
            make_drawing(charts.layer_curve, frame, entry, series="series"),
        )
    ]


def draw_top_dimensions(results: Results, entry: Entry) -> list[Figure]:
    """Plot the dimensions that contribute most to anisotropy A, in the most anisotropic layer."""
    peak = results.peak
    if peak is None:
        return []
    # Contributions are recorded for every dimension of every layer; only the peak is
    # shown.
    frame = results.select_place(results.select_components(entry["metric"]), peak)
    if frame.empty:
        return []
    frame = frame.nlargest(TOP_DIMENSIONS, "value")
    largest = frame.iloc[0]
    facts = {
        "n": str(len(frame)),
        "place": results.name_place(peak),
        "total": format_measured(peak, None),
        "first": largest["component"],
        "largest": format_measured(largest, None),
    }
    return [
        make_figure(
            results,
            entry,
            frame,
            make_drawing(charts.bars, frame, entry, panel=None),
            **facts,
        )
    ]


def draw_explained_variance(results: Results, entry: Entry) -> list[Figure]:
    """Plot the variance that the k leading principal axes explain, one line per layer."""
    frame = results.select_components(entry["metric"])
    frame = frame[frame["site"].eq("hidden") & frame["layer"].notna()]
    if frame.empty:
        return []
    frame = frame.assign(
        axes=frame["component"].astype(int), layer=frame["layer"].astype(int)
    )
    of_first_axis = frame.loc[frame["axes"].eq(1), "value"]
    most = ""
    if len(of_first_axis):
        least = format_percent(of_first_axis.min())
        largest = format_percent(of_first_axis.max())
        most = entry["most"].format(least=least, largest=largest)
    return [
        make_figure(
            results,
            entry,
            frame,
            make_drawing(charts.trajectory, frame, entry),
            most=most,
        )
    ]


def draw_heads(results: Results, entry: Entry) -> list[Figure]:
    """Draw a quantity of every head as a heat map over layer × head, one panel per stack and kind of attention.

    entry   the figure's entry in page.toml. No figure is returned if the metric was not measured
    """
    frame = select_heads(results, entry)
    if frame.empty:
        return []
    # Of deep models the rows are low, so that the map fits a screen.
    depth = frame["layer"].nunique()
    height = LOW if depth >= TALL else ROWS
    lowest, highest = find_extremes(frame)
    has_panels = frame[PANEL].nunique() > 1
    facts = {
        "lowest": _describe_head(lowest, has_panels),
        "highest": _describe_head(highest, has_panels),
        "layers": count_noun(depth, "layer"),
        "heads": count_noun(frame["head"].nunique(), "head"),
        "unit": entry["draw"]["title"],
    }
    # One column: a map of many heads needs the whole width.
    drawn = make_drawing(
        charts.heatmap, frame, {"columns": 1, "height": height, **entry}
    )
    return [make_figure(results, {"alt": HEADS_ALT, **entry}, frame, drawn, **facts)]


def select_heads(results: Results, entry: Entry) -> pd.DataFrame:
    """Return the rows of the quantity that a figure of heads shows, one per head; none if it was not measured.

    entry   the figure's entry in page.toml. There are no rows either if the metric that it names as `instead_of` was
            measured, since that one is shown

    If several heads share keys and values, each of these heads has a row.
    """
    frame = results.select_heads(
        entry["metric"], entry.get("site", ""), entry.get("component")
    )
    # `attention.entropy` is shown only if its normalised form was not measured.
    if "instead_of" in entry and len(results.select_heads(entry["instead_of"])):
        return frame[:0]
    if frame.empty or entry.get("site") not in SHARED_SITES:
        return frame
    return _repeat_shared_heads(results, frame)


def _repeat_shared_heads(results: Results, frame: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each head of queries, from the rows of the heads of keys or values that they share."""
    counts = results.head_places.groupby([PANEL, "layer"])["head"].nunique()
    # The number of query heads of each row's layer.
    keys = pd.MultiIndex.from_frame(frame[[PANEL, "layer"]])
    queries = counts.reindex(keys).to_numpy()
    own = frame.groupby([PANEL, "layer"])["head"].transform("nunique").to_numpy()
    # No known model shares them otherwise: then heads are counted as they were recorded.
    if not (queries % own == 0).all():
        return frame
    # Neighbouring heads of queries share one head of keys: 8 over 2 are 0 0 0 0 1 1 1 1.
    shared = (queries // own).astype(int)
    spread = frame.loc[frame.index.repeat(shared)]
    # Which of the copies a row is: 0, 1, … among the query heads of its key head.
    within = spread.groupby([PANEL, "layer", "head"]).cumcount()
    return spread.assign(
        head=spread["head"] * shared.repeat(shared) + within
    ).reset_index(drop=True)


def _describe_head(row: pd.Series, has_panels: bool) -> str:
    """Describe a head and its value, for the words of a figure; with its panel if there are several."""
    panel = f"{row[PANEL]} " if has_panels else ""
    text = f"{format_number(row['value'])} {format_ends(row)} ({panel}layer {row['layer']}, head {row['head']})"
    # There may be no interval.
    return text.replace("  ", " ")


def draw_head_range(results: Results, entry: Entry) -> list[Figure]:
    """Plot the mean over the heads of each layer, with the range from the lowest to the highest head."""
    sites = {"query": "queries", "key": "keys", "value": "values"}
    parts = []
    for metric, label in entry["metrics"].items():
        for site, name in sites.items():
            part = results.select_heads(metric, site)
            parts.append(part.assign(series=name, reading=label))
    frame = pd.concat(parts)
    if frame.empty:
        return []
    keys = ["reading", PANEL, "series", "layer"]
    curve = (
        frame.groupby(keys, sort=False)["value"]
        .agg(value="mean", low="min", high="max")
        .reset_index()
    )
    # A line for each kind of vector, and for each stack if there are several.
    curve["where"] = curve["series"]
    if curve[PANEL].nunique() > 1:
        curve["where"] += ", " + curve[PANEL]
    heads = int(frame.groupby([PANEL, "layer"])["head"].nunique().max())
    drawn = make_drawing(charts.layer_curve, curve, entry)
    return [make_figure(results, entry, frame, drawn, heads=count_noun(heads, "head"))]


def draw_subsets(results: Results, entry: Entry) -> list[Figure]:
    """Draw mean cosines within and between token subsets: a figure per family of subsets, a matrix per layer shown.

    entry   the figure's entry in page.toml. No figure is returned if the metric was not measured
    """
    frame = results.select_components(entry["metric"])
    frame = frame[frame["component"].str.contains(" × ") & frame["layer"].notna()]
    if frame.empty:
        return []
    families: dict[str, str] = {}
    for of_family, subsets in SUBSET_FAMILIES.items():
        families |= dict.fromkeys(subsets, of_family)
    # In the order of the families' lists: by name, position 128+ would come second.
    ranks = {name: i for i, name in enumerate(families)}
    shown = _mirror_pairs(_choose_places(results, frame))
    # A subset of no listed family begins with the family's name.
    of_first = []
    for name in shown["first"]:
        of_first.append(families.get(name, name.split(" ")[0]))
    shown["family"] = of_first
    shown = sort_by_keys(
        shown, shown["layer"], shown["first"].map(ranks), shown["second"].map(ranks)
    )
    figures = []
    for name, rows in shown.groupby("family", sort=False):
        family = str(name)
        # The axis names the family: `frequency 3` becomes `3`.
        prefix = f"{family} "
        short = rows.assign(
            first=rows["first"].str.removeprefix(prefix),
            second=rows["second"].str.removeprefix(prefix),
        )
        facts = {
            "family": family,
            "note": entry["notes"].get(family, ""),
            "span": describe_span(short),
            "subsets": short["first"].nunique(),
            "places": join_words(list(dict.fromkeys(short["place"]))),
        }
        drawn = _draw_matrices(short, entry, SQUARE, names=(family, family))
        figures.append(make_figure(results, entry, short, drawn, **facts))
    return figures


def _choose_places(results: Results, frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of `frame` in the layers to show: first, most anisotropic and last of the most anisotropic stack.

    Of other stacks only the most anisotropic layer is shown.
    """
    hidden = frame[frame["site"].eq("hidden")]
    curve = results.select_layers("mean_cosine")
    curve = curve[curve["site"].eq("hidden")]
    main = hidden["stack"].iloc[0]
    if results.peak is not None:
        main = results.peak["stack"]
    has_stacks = hidden["stack"].nunique() > 1
    parts = []
    for stack, rows in hidden.groupby("stack", sort=False):
        first = float(rows["layer"].min())
        last = float(rows["layer"].max())
        candidates = curve[
            curve["stack"].eq(stack) & curve["layer"].isin(rows["layer"])
        ]
        # If A was not measured there, the last layer counts as the peak.
        peak = last
        if len(candidates):
            _, highest = find_extremes(candidates)
            peak = float(highest["layer"])
        marks = {}
        if stack == main:
            marks = {first: "first", last: "last"}
        # After the others: a peak in the first or last layer is named as the peak.
        marks[peak] = "most anisotropic"
        kept = rows[rows["layer"].isin(list(marks))].sort_values("layer", kind="stable")
        names = [f"layer {layer:.0f}, {marks[layer]}" for layer in kept["layer"]]
        if has_stacks:
            names = [f"{stack} {name}" for name in names]
        parts.append(kept.assign(place=names))
    return pd.concat(parts)


def draw_classes(results: Results, entry: Entry) -> list[Figure]:
    """Plot mean cosines within and between classes at the first, the middle and the last layer."""
    frame = results.select_components(entry["metric"])
    if frame.empty:
        return []
    # A median between two layers is rounded down to one of them.
    ends = {frame["layer"].min(), frame["layer"].median() // 1, frame["layer"].max()}
    frame = _mirror_pairs(frame[frame["layer"].isin(ends)])
    frame = sort_by_keys(frame, frame["layer"], frame["first"], frame["second"])
    frame = frame.assign(place="layer " + frame["layer"].astype(int).astype(str))
    # Many classes need smaller cells to fit the page.
    height = SQUARE if frame["first"].nunique() < 10 else (20, 20)
    return [
        make_figure(
            results,
            entry,
            frame,
            _draw_matrices(frame, entry, height),
            span=describe_span(frame),
        )
    ]


def _mirror_pairs(frame: pd.DataFrame) -> pd.DataFrame:
    """Split the names of pairs `a × b` into two columns, and add each pair in the opposite order."""
    names = frame["component"].str.split(" × ", n=1, expand=True)
    frame = frame.assign(first=names[0], second=names[1])
    # Records hold each pair once; a matrix shows both of its halves.
    others = frame[frame["first"].ne(frame["second"])]
    return pd.concat(
        [frame, others.rename(columns={"first": "second", "second": "first"})],
        ignore_index=True,
    )


def _draw_matrices(
    frame: pd.DataFrame, entry: Entry, height: tuple[int, int], **options: object
) -> Draw:
    """Return a drawing (a function of the width) with one matrix of mean cosines for each layer shown, in its own
    panel.

    entry     the figure's entry in page.toml
    height    height of a matrix row in a wide and a narrow drawing
    options   of `charts.heatmap`
    """
    entry = {"columns": 3, "height": height, **entry}
    return make_drawing(
        charts.heatmap,
        frame,
        entry,
        x="first",
        y="second",
        panel="place",
        diverging=True,
        **options,
    )


def draw_components(results: Results, entry: Entry) -> list[Figure]:
    """Plot a line for every component over the layers; values without a layer become dashed horizontal lines."""
    frame = results.select_metric(entry["metric"])
    if frame["layer"].nunique() < 2:
        return []
    has_layer = frame["layer"].notna()
    lines = frame[has_layer]
    axis = entry["axis"]
    caption = f"{axis[0].upper()}{axis[1:]}, by layer."
    # Only an entry that names its components has baselines among them.
    if "shown" in entry:
        is_shown = frame["component"].isin(entry["shown"])
        lines = frame[has_layer & is_shown]
        baselines = frame[~has_layer & is_shown]
        frame = frame[is_shown]
        if len(baselines):
            caption += " Baselines are level."
        # A baseline has no layer: a point at either end makes it a level line.
        ends = (lines["layer"].min(), lines["layer"].max())
        lines = pd.concat([lines, *(baselines.assign(layer=layer) for layer in ends)])
    lines = lines.assign(series=lines["component"])
    drawn = make_drawing(
        charts.layer_curve,
        lines,
        entry,
        series="series",
        panel=None,
        title=axis,
        coincide=True,
    )
    # These entries say only what the axis is; all share the rest of the words.
    texts = {**entry, "alt": LINES_ALT, "caption": caption}
    basis = f"n = {describe_extent(frame['n_units'])} utterances"
    return [
        make_figure(
            results,
            texts,
            lines,
            drawn,
            basis=basis,
            axis=axis,
            span=describe_span(lines),
        )
    ]


FIGURES: dict[str, Callable[[Results, Entry], list[Figure]]] = {
    "policies": draw_policies,
    "layers": draw_layers,
    "modality_gap": draw_modality_gap,
    "steps": draw_steps,
    "drift_points": draw_drift_points,
    "top_shares": draw_top_shares,
    "top_dimensions": draw_top_dimensions,
    "explained_variance": draw_explained_variance,
    "heads": draw_heads,
    "head_range": draw_head_range,
    "subsets": draw_subsets,
    "classes": draw_classes,
    "components": draw_components,
}
"""By the name that page.toml calls them."""
