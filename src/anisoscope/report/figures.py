"""The figures of a run's page.

Each function takes the results and an entry of page.toml, and returns no figure if the numbers it needs are missing.
"""

import pandas as pd

from anisoscope.axes import PAIRS, SUBSET_FAMILIES, TOWER_STACKS
from anisoscope.charts import builders as charts
from anisoscope.report.parts import Draw, Entry, Figure, describe_span, find_extremes, make_drawing, make_figure
from anisoscope.report.results import LAYER_SITES, PANEL, SHARED_SITES, Results, describe_extent, sort_by_keys
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
ROWS, SQUARE = (26, 20), (30, 30)
"""Heights of a row of a heat map, on a wide screen and on a phone, in pixels."""
HEADS_ALT = "Heat map of {unit} over {layers} and {heads}: lowest {lowest}, highest {highest}."
LINES_ALT = "Line chart of {axis} by layer: {span}."


def policies(results: Results, entry: Entry) -> list[Figure]:
    """Draw a quantity per layer, with a band of the cosines of isotropic vectors; one drawing per token policy.

    entry   the figure's entry in page.toml: its metric and texts. No figure is returned if the metric was not measured
    """
    frame = results.layers(entry["metric"], every_policy=True)
    if frame.empty:
        return []
    law = results.layers("mean_cosine.isotropic_q95")["value"]
    q95 = float(law.max()) if len(law) else None
    dimensions = f" in {results.width} dimensions" if results.width else ""
    drawings = {}
    for policy in results.policies or ["all"]:
        rows = frame[frame["token_policy"].fillna(policy).eq(policy)]
        drawings[policy] = make_drawing(charts.layer_curve, rows, entry, series="stack", isotropic=q95)
    facts = {
        "law": "" if q95 is None else entry["law"].format(q95=format_number(q95), dimensions=dimensions),
        "final": entry["final"] if frame["site"].eq("final").any() else "",
        "span": describe_span(results.layers(entry["metric"]), results.place_name),
        "stacks": _describe_stacks(list(dict.fromkeys(frame["stack"])), entry.get("stacks", {})),
    }
    one = drawings if len(drawings) > 1 else next(iter(drawings.values()))
    return [make_figure(results, entry, frame, one, **facts)]


def _describe_stacks(stacks: list[str], words: dict[str, str]) -> str:
    """Return a sentence on what each stack of a model of images or sounds is; empty for other models."""
    if {*stacks}.isdisjoint({*TOWER_STACKS, PAIRS}):
        return ""
    return "; ".join(words[stack] for stack in stacks if stack in words) + ". "


def layers(results: Results, entry: Entry) -> list[Figure]:
    """Draw several metrics per layer, one line each. Returns no figure if too few of them were measured.

    entry   the figure's entry in page.toml: its metrics with their labels, and its texts
    """
    frame = results.stacked(entry["metrics"])
    lacking = "needs" in entry and entry["needs"] not in set(frame["metric"])
    if lacking or frame["series"].nunique() < entry.get("least", 1):
        return []
    facts = {
        "sample": _describe_sample(frame),
        "rank": _describe_rank(results),
        "accuracy": _describe_accuracy(results),
    }
    facts["readings"] = join_words(list(dict.fromkeys(frame["series"])))
    drawn = make_drawing(charts.layer_curve, frame, {**entry, "draw": {"series": "series"} | entry["draw"]})
    return [make_figure(results, entry, frame, drawn, **facts)]


def _describe_sample(frame: pd.DataFrame) -> str:
    """Return a sentence on the number of sampled vectors that anisotropy after centring is computed from; empty if
    unknown.
    """
    known = describe_extent(frame.loc[frame["metric"].str.endswith(".centred"), "n_vectors"])
    return f"A after centring is taken on a uniform sample of {known} vectors. " if known else ""


def _describe_rank(results: Results) -> str:
    """Return a sentence on the effective rank at the layer with the largest anisotropy A; empty if it is unknown."""
    rank = results.at(results.peak, "spectrum.effective_rank") if results.peak is not None else None
    shape = f" of {results.width}" if results.width else ""
    return "" if rank is None else f" The most anisotropic place has an effective rank of {rank['value']:.1f}{shape}."


def _describe_accuracy(results: Results) -> str:
    """Return a sentence on the accuracy of the run's classifier and that of naming the commonest class; empty
    without one.
    """
    found, chance = results.rows("accuracy"), results.rows("majority")
    if found.empty:
        return ""
    sentence = (
        f"The classifier itself is right on {format_measured(found.iloc[0], None)} "
        f"of {format_count(found.iloc[0]['n_units'])}"
    )
    return f"{sentence}; the commonest class makes {format_number(chance.iloc[0]['value'])}."


def modality_gap(results: Results, entry: Entry) -> list[Figure]:
    """Draw how far images lie from texts: per layer for a stack that reads both, as bars for a model of two towers,
    whose vectors meet at one place.

    entry   the figure's entry in page.toml: its metrics with their labels, and its texts
    """
    frame = results.stacked(entry["metrics"])
    if frame.empty:
        return []
    meet = frame["stack"].eq(PAIRS)
    if not meet.all():
        frame = frame[~meet]
        drawn = make_drawing(charts.layer_curve, frame, {**entry, "draw": {"series": "series"} | entry["draw"]})
        facts = {"what": entry["layers"], "kind": "Line chart", "bands": entry["bands"]}
        return [make_figure(results, entry, frame, drawn, **facts)]
    bar = {**entry, "height": (22, 22), "draw": {"category": "series", "titles": (entry["draw"]["title"], "")}}
    drawn = make_drawing(charts.bars, frame, bar, panel=None)
    facts = {"what": entry["joint"], "kind": "Bar chart", "bands": " Lines are 95 % intervals."}
    facts["span"] = describe_span(frame, lambda row: str(row["series"]))
    return [make_figure(results, entry, frame, drawn, **facts)]


def steps(results: Results, entry: Entry) -> list[Figure]:
    """Draw a quantity along training: a line per layer, a panel per seed and stack; for `heads` their mean and range.

    entry   the figure's entry in page.toml. No figure is returned if the metric was not measured
    """
    if entry.get("heads"):
        frame, keys = results.heads(entry["metric"]), ["seed", PANEL, "layer", "step"]
        ends = frame.groupby(keys, sort=False)["value"].agg(value="mean", low="min", high="max").reset_index()
        frame = ends.merge(frame.drop(columns=["value", "low", "high"]).drop_duplicates(keys), on=keys)
    else:
        frame = results.layers(entry["metric"], component=entry.get("component"))
        frame = frame[frame["site"].eq("hidden")]
    if frame["step"].nunique() < 2:
        return []
    of_seed = [f"seed {seed:.0f}" for seed in frame["seed"]] if frame["seed"].nunique() > 1 else ""
    several = frame[PANEL].nunique() > 1
    panels = frame[PANEL] + (", " if of_seed else "") + of_seed if several else of_seed
    frame = frame.assign(step=frame["step"].astype(float), layer=frame["layer"].astype(int), **{PANEL: panels})
    law = results.layers("mean_cosine.isotropic_q95")["value"] if entry.get("band") else ()
    level = float(max(law)) if len(law) else None
    draw = {"x": "step", "series": "layer", "gradient": True, "scale": "symlog", "isotropic": level} | entry["draw"]
    facts = {"alt": LINES_ALT.replace("layer", "step"), "axis": draw["titles"][1]}
    span = describe_span(frame, lambda row: f"step {row['step']:,.0f}, layer {row['layer']}")
    drawn = make_drawing(charts.trajectory, frame, {**entry, "draw": draw})
    return [make_figure(results, {**facts, **entry}, frame, drawn, span=span, **facts)]


def drift_points(results: Results, entry: Entry) -> list[Figure]:
    """Plot anisotropy A against the share of the common direction (drift), one point per layer."""
    shares = results.layers("drift.share")[["stack", "layer", "site", "value"]].rename(columns={"value": "share"})
    points = results.layers("mean_cosine").merge(shares, on=["stack", "layer", "site"])
    if len(points) < 2:
        return []
    names = points["layer"].astype(int).astype(str).mask(points["site"].eq("final"), "final")
    points = points.assign(name=names, joined=points["site"].ne("final"))
    drawn = make_drawing(charts.scatter, points, entry, series=PANEL)
    return [make_figure(results, entry, points, drawn, points=len(points))]


def top_shares(results: Results, entry: Entry) -> list[Figure]:
    """Plot the share of anisotropy A that the largest dimensions contribute, per layer."""
    frame = results.components(entry["metric"])
    frame = frame[frame["site"].isin(LAYER_SITES) & frame["layer"].notna()]
    if frame.empty:
        return []
    frame = frame.loc[frame["component"].astype(int).sort_values(kind="stable").index]
    frame = frame.assign(series="top " + frame["component"].astype(str))
    return [make_figure(results, entry, frame, make_drawing(charts.layer_curve, frame, entry, series="series"))]


def top_dimensions(results: Results, entry: Entry) -> list[Figure]:
    """Plot the dimensions that contribute most to anisotropy A, in the most anisotropic layer."""
    peak, frame = results.peak, results.components(entry["metric"])
    if peak is None or (frame := results.beside(frame, peak)).empty:
        return []
    frame = frame.nlargest(TOP_DIMENSIONS, "value")
    facts = {"n": str(len(frame)), "place": results.place_name(peak), "total": format_measured(peak, None)}
    facts |= {"first": frame.iloc[0]["component"], "largest": format_measured(frame.iloc[0], None)}
    return [make_figure(results, entry, frame, make_drawing(charts.bars, frame, entry, panel=None), **facts)]


def explained_variance(results: Results, entry: Entry) -> list[Figure]:
    """Plot the variance that the k leading principal axes explain, one line per layer."""
    frame = results.components(entry["metric"])
    frame = frame[frame["site"].eq("hidden") & frame["layer"].notna()]
    if frame.empty:
        return []
    frame = frame.assign(axes=frame["component"].astype(int), layer=frame["layer"].astype(int))
    first = frame.loc[frame["axes"].eq(1), "value"]
    most = (
        entry["most"].format(least=format_percent(first.min()), largest=format_percent(first.max()))
        if len(first)
        else ""
    )
    return [make_figure(results, entry, frame, make_drawing(charts.trajectory, frame, entry), most=most)]


def heads(results: Results, entry: Entry) -> list[Figure]:
    """Draw a quantity of every head as a heat map over layer × head, one panel per stack and kind of attention.

    entry   the figure's entry in page.toml. No figure is returned if the metric was not measured
    """
    frame = select_heads(results, entry)
    if frame.empty:
        return []
    depth = frame["layer"].nunique()
    height = (12, 12) if depth >= TALL else ROWS
    lowest, highest = find_extremes(frame)
    several = frame[PANEL].nunique() > 1
    facts = {
        "lowest": _name_head(lowest, several),
        "highest": _name_head(highest, several),
        "layers": count_noun(depth, "layer"),
        "heads": count_noun(frame["head"].nunique(), "head"),
        "unit": entry["draw"]["title"],
    }
    drawn = make_drawing(charts.heatmap, frame, {"columns": 1, "height": height, **entry})
    return [make_figure(results, {"alt": HEADS_ALT, **entry}, frame, drawn, **facts)]


def select_heads(results: Results, entry: Entry) -> pd.DataFrame:
    """Return the rows of a quantity, one per head; none if it was not measured, or another one is shown instead of it.

    entry   the figure's entry in page.toml

    Keys and values that several heads share have a row for each of these heads.
    """
    frame = results.heads(entry["metric"], entry.get("site", ""), entry.get("component"))
    if "instead_of" in entry and len(results.heads(entry["instead_of"])):
        return frame[:0]
    if frame.empty or entry.get("site") not in SHARED_SITES:
        return frame
    counts = results.head_places.groupby([PANEL, "layer"])["head"].nunique()
    keys = pd.MultiIndex.from_frame(frame[[PANEL, "layer"]])
    queries = counts.reindex(keys).to_numpy()
    own = frame.groupby([PANEL, "layer"])["head"].transform("nunique").to_numpy()
    if not (queries % own == 0).all():  # of no known model: then heads are counted as they were recorded
        return frame
    # Neighbouring heads of queries share one head of keys: 8 over 2 are 0 0 0 0 1 1 1 1.
    shared = (queries // own).astype(int)
    spread = frame.loc[frame.index.repeat(shared)]
    within = spread.groupby([PANEL, "layer", "head"]).cumcount()
    return spread.assign(head=spread["head"] * shared.repeat(shared) + within).reset_index(drop=True)


def _name_head(row: pd.Series, several: bool) -> str:
    """Describe a head and its value, for the words of a figure; with its panel if there are `several`."""
    panel = f"{row[PANEL]} " if several else ""
    text = f"{format_number(row['value'])} {format_ends(row)} ({panel}layer {row['layer']}, head {row['head']})"
    return text.replace("  ", " ")


def head_range(results: Results, entry: Entry) -> list[Figure]:
    """Plot the mean over the heads of each layer, with the range from the lowest to the highest head."""
    sites = {"query": "queries", "key": "keys", "value": "values"}
    frame = pd.concat(
        results.heads(metric, site).assign(series=name, reading=label)
        for metric, label in entry["metrics"].items()
        for site, name in sites.items()
    )
    if frame.empty:
        return []
    keys = ["reading", PANEL, "series", "layer"]
    curve = frame.groupby(keys, sort=False)["value"].agg(value="mean", low="min", high="max").reset_index()
    curve["where"] = curve["series"] + (", " + curve[PANEL] if curve[PANEL].nunique() > 1 else "")
    most = count_noun(int(frame.groupby([PANEL, "layer"])["head"].nunique().max()), "head")
    return [make_figure(results, entry, frame, make_drawing(charts.layer_curve, curve, entry), heads=most)]


def subsets(results: Results, entry: Entry) -> list[Figure]:
    """Draw mean cosines within and between token subsets: a figure per family of subsets, a matrix per layer shown.

    entry   the figure's entry in page.toml. No figure is returned if the metric was not measured
    """
    frame = results.components(entry["metric"])
    frame = frame[frame["component"].str.contains(" × ") & frame["layer"].notna()]
    if frame.empty:
        return []
    families = {name: family for family, names in SUBSET_FAMILIES.items() for name in names}
    ranks = {name: i for i, name in enumerate(families)}
    shown = _mirror_pairs(_choose_places(results, frame))
    shown["family"] = [families.get(name, name.split(" ")[0]) for name in shown["first"]]
    shown = sort_by_keys(shown, shown["layer"], shown["first"].map(ranks), shown["second"].map(ranks))
    made = []
    for family, rows in shown.groupby("family", sort=False):
        short = rows.assign(**{side: rows[side].str.removeprefix(f"{family} ") for side in ("first", "second")})
        facts = {"family": family, "note": entry["notes"].get(family, ""), "span": describe_span(short)}
        facts |= {"subsets": short["first"].nunique(), "places": join_words(list(dict.fromkeys(short["place"])))}
        drawn = _matrices(short, entry, SQUARE, names=(family, family))
        made.append(make_figure(results, entry, short, drawn, **facts))
    return made


def _choose_places(results: Results, frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of `frame` in the layers to show: first, most anisotropic and last of the most anisotropic stack.

    Of other stacks only the most anisotropic layer is shown.
    """
    hidden = frame[frame["site"].eq("hidden")]
    curve = results.layers("mean_cosine")
    parts = []
    main = results.peak["stack"] if results.peak is not None else hidden["stack"].iloc[0]
    for stack, rows in hidden.groupby("stack", sort=False):
        among = curve[curve["stack"].eq(stack) & curve["site"].eq("hidden") & curve["layer"].isin(rows["layer"])]
        peak = float(find_extremes(among)[1]["layer"]) if len(among) else float(rows["layer"].max())
        marks = {peak: "most anisotropic"}
        if stack == main:
            marks = {float(rows["layer"].min()): "first", float(rows["layer"].max()): "last"} | marks
        kept = rows[rows["layer"].isin(list(marks))].sort_values("layer", kind="stable")
        names = kept["layer"].map(lambda layer, marks=marks: f"layer {layer:.0f}, {marks[layer]}")
        parts.append(kept.assign(place=names if hidden["stack"].nunique() == 1 else f"{stack} " + names))
    return pd.concat(parts)


def classes(results: Results, entry: Entry) -> list[Figure]:
    """Plot mean cosines within and between classes at the first, the middle and the last layer."""
    frame = results.components(entry["metric"])
    if frame.empty:
        return []
    ends = {frame["layer"].min(), frame["layer"].median() // 1, frame["layer"].max()}
    frame = _mirror_pairs(frame[frame["layer"].isin(ends)])
    frame = sort_by_keys(frame, frame["layer"], frame["first"], frame["second"])
    frame = frame.assign(place="layer " + frame["layer"].astype(int).astype(str))
    rows = SQUARE if frame["first"].nunique() < 10 else (20, 20)
    return [make_figure(results, entry, frame, _matrices(frame, entry, rows), span=describe_span(frame))]


def _mirror_pairs(frame: pd.DataFrame) -> pd.DataFrame:
    """Split the names of pairs `a × b` into two columns, and add each pair in the opposite order."""
    names = frame["component"].str.split(" × ", n=1, expand=True)
    frame = frame.assign(first=names[0], second=names[1])
    others = frame[frame["first"].ne(frame["second"])]
    return pd.concat([frame, others.rename(columns={"first": "second", "second": "first"})], ignore_index=True)


def _matrices(frame: pd.DataFrame, entry: Entry, height: tuple[int, int], **options: object) -> Draw:
    """Return a drawing (a function of the width) with one matrix of mean cosines for each layer shown, in its own
    panel.

    entry     the figure's entry in page.toml
    height    height of a matrix row in a wide and a narrow drawing
    options   of `charts.heatmap`
    """
    entry = {"columns": 3, "height": height, **entry}
    return make_drawing(charts.heatmap, frame, entry, x="first", y="second", panel="place", diverging=True, **options)


def components(results: Results, entry: Entry) -> list[Figure]:
    """Plot a line for every component over the layers; values without a layer become dashed horizontal lines."""
    frame = results.of(entry["metric"])
    if frame["layer"].nunique() < 2:
        return []
    if "shown" in entry:
        frame = frame[frame["component"].isin(entry["shown"])]
    known, level = frame[frame["layer"].notna()], frame[frame["layer"].isna() & ("shown" in entry)]
    ends = [level.assign(layer=layer) for layer in (known["layer"].min(), known["layer"].max())]
    lines = pd.concat([known, *ends]).assign(series=lambda rows: rows["component"])
    axis = entry["axis"]
    caption = f"{axis[0].upper()}{axis[1:]}, by layer." + (" Baselines are level." if len(level) else "")
    drawn = make_drawing(charts.layer_curve, lines, entry, series="series", panel=None, title=axis, coincide=True)
    worded = {**entry, "alt": LINES_ALT, "caption": caption}
    basis = f"n = {describe_extent(frame['n_units'])} utterances"
    return [make_figure(results, worded, lines, drawn, basis=basis, axis=axis, span=describe_span(lines))]


_ALL = (
    policies,
    layers,
    modality_gap,
    steps,
    drift_points,
    top_shares,
    top_dimensions,
    explained_variance,
    heads,
    head_range,
)
FIGURES = {made.__name__: made for made in (*_ALL, subsets, classes, components)}
"""By the name that page.toml calls them."""
