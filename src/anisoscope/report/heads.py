"""Sections on single heads: how sharp attention is, how queries and keys are aligned, how alike keys and values are."""

import pandas as pd

from anisoscope.charts import builders as charts
from anisoscope.report.parts import WIDE, Figure, Section, columns, extremes, height
from anisoscope.report.results import PANEL, Results, panel_of
from anisoscope.report.words import interval, number, plural

TALL = 24
"""From this many layers on, the rows of a heat map are low enough to fit a screen."""


def attention(results: Results) -> Section | None:
    """Entropy, mass on the first token and likeness of rows, head by head."""
    entropy = results.heads("attention.entropy_normalised")
    normalised = len(entropy) > 0
    maps = [
        _heat(
            results,
            entropy if normalised else results.heads("attention.entropy"),
            "attention-entropy",
            "Entropy of the attention rows",
            "H / ln(visible keys)" if normalised else "H in nats",
            ("Normalised: 0 is one key, 1 is uniform attention. " if normalised else "In nats; 0 is one key. ")
            + "Pale cells are sharp heads. Rows that see a single key are left out.",
        ),
        _heat(
            results,
            results.heads("attention.first_mass"),
            "attention-first",
            "Attention on the first token",
            "mass on the first token",
            "Mean weight that a query gives to the first real token of its sequence. A head that gives it most of "
            "its weight rests there: an attention sink.",
        ),
        _heat(
            results,
            results.heads("attention.row_similarity"),
            "attention-rows",
            "Likeness of attention rows within a sequence",
            "mean cosine of two rows",
            "Mean cosine between the attention of two queries of one sequence. At 1 the query does not matter: "
            "every token attends alike.",
        ),
    ]
    lead = "How each head spreads its attention, averaged over all queries that are real tokens."
    figures = tuple(figure for figure in maps if figure is not None)
    return Section("attention", "How sharp is attention?", lead, figures) if figures else None


def alignment(results: Results) -> Section | None:
    """cos(Q̄, K̄) and Q̄·K̄ of every head."""
    cosine, product = results.heads("query_key.cosine"), results.heads("query_key.dot")
    unsure = (
        "Numbers in brackets (on small screens: dots) have a 95 % interval that holds 0; no correction for many heads."
    )
    maps = [
        _heat(
            results,
            cosine,
            "query-key-cosine",
            "Direction: cos(Q̄, K̄)",
            "cosine of mean query and mean key",
            f"Blue heads drift in similar directions, orange ones in opposite directions. {unsure} The cosine "
            "depends on the basis in which queries and keys are written; the scalar product does not.",
            diverging=True,
        ),
        _heat(
            results,
            product,
            "query-key-dot",
            "Scalar product: Q̄ · K̄",
            "mean query · mean key",
            "Of the projections before scaling (and before rotation, where there is one): the part of every score "
            f"that is the same for all tokens. {unsure}",
            diverging=True,
        ),
    ]
    lead = (
        "Q̄ and K̄ are the mean query and the mean key of a head over all tokens. The constant Q̄ · K̄ cancels in "
        "the softmax; what it shows is that both clouds have moved away from the origin, and whether they moved "
        "together."
    )
    figures = tuple(figure for figure in maps if figure is not None)
    return Section("alignment", "Do queries and keys drift together?", lead, figures) if figures else None


def likeness(results: Results) -> Section | None:
    """Similarity of queries, keys and values, inside a sequence and over the corpus."""
    readings = {"intra_sequence": "inside one sequence", "mean_cosine": "over the whole corpus (A)"}
    sites = {"query": "queries", "key": "keys", "value": "values"}
    parts = [
        results.heads(metric, site).assign(series=name, reading=label)
        for metric, label in readings.items()
        for site, name in sites.items()
    ]
    frame = pd.concat(parts)
    if frame.empty:
        return None
    heads = frame.groupby([PANEL, "layer"])["head"].nunique().max()
    curve = _over_heads(frame)
    lead = (
        "Keys that are alike make attention uniform whatever the query; values that are alike make its outcome the "
        "same."
    )
    figure = Figure(
        "queries-keys-values",
        "Likeness of queries, keys and values",
        "Mean cosine between two vectors of one head. Lines are means over the heads of a layer "
        f"({plural(int(heads), 'head')}), ribbons reach from the lowest to the highest head: they are not intervals.",
        results.basis(frame[frame["metric"].eq("mean_cosine")] if "mean_cosine" in set(frame["metric"]) else frame),
        "Line charts of the mean cosine of queries, keys and values against the layer.",
        lambda width: charts.layer_curve(
            curve,
            series="reading",
            panel="where",
            title="mean cosine",
            size=(width, height(width, 200, 170)),
            columns=columns(width, 3),
        ),
    )
    return Section("likeness", "Are keys and values alike?", lead, (figure,))


def _over_heads(frame: pd.DataFrame) -> pd.DataFrame:
    keys = ["reading", PANEL, "series", "layer"]
    curve = frame.groupby(keys, sort=False)["value"].agg(value="mean", low="min", high="max").reset_index()
    where = curve["series"] + (", " + curve[PANEL] if curve[PANEL].nunique() > 1 else "")
    return curve.assign(where=where)


def _heat(
    results: Results, frame: pd.DataFrame, name: str, title: str, unit: str, caption: str, *, diverging: bool = False
) -> Figure | None:
    """Heat map over layer × head, one panel per stack and kind of attention; None without rows."""
    if frame.empty:
        return None
    low, high = extremes(frame)
    reach = f"lowest {_head_name(frame, low)}, highest {_head_name(frame, high)}"
    layers = frame["layer"].nunique()
    return Figure(
        name,
        title,
        f"{caption} {reach[0].upper()}{reach[1:]}.",
        results.basis(frame, "rows" if name.startswith("attention") else "vectors"),
        f"Heat map of {unit} over {plural(layers, 'layer')} and {plural(frame['head'].nunique(), 'head')}: {reach}.",
        lambda width: charts.heatmap(
            frame,
            panel=panel_of(frame),
            title=unit,
            diverging=diverging,
            size=(width, _row_height(width, layers)),
            columns=1,
        ),
    )


def _row_height(width: int, layers: int) -> int:
    if layers >= TALL:
        return 12
    return 26 if width >= WIDE else 20


def _head_name(frame: pd.DataFrame, row: pd.Series) -> str:
    stack = f"{row[PANEL]} " if frame[PANEL].nunique() > 1 else ""
    return f"{number(row['value'])} {interval(row)} ({stack}layer {row['layer']}, head {row['head']})".replace(
        "  ", " "
    )
