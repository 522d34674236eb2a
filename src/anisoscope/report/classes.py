"""Sections on the classes of a labelled corpus: directions, what attention is worth, what explains the decision."""

import pandas as pd

from anisoscope.charts import builders as charts
from anisoscope.report.parts import DEPTH, RIBBON, Figure, PageTable, Section, columns, height, span_of
from anisoscope.report.results import Results
from anisoscope.report.words import count, interval, number

SEPARABLE = {"class_direction.auc": "AUC", "class_direction.nearest": "nearest direction is their own"}
SHOWN = ("attention", "value norm", "value, contrast", "random", "rare")
"""Maps that are drawn by layer."""
MEASURES = {
    "auprc": "AUPRC",
    "auroc": "AUROC",
    "iou": "IoU",
    "comprehensiveness": "fall when erased",
    "sufficiency": "fall when kept alone",
}


def classes(results: Results) -> Section | None:
    """How well the direction of an utterance tells its class, by layer, and the cosines between classes."""
    curve = results.stacked(SEPARABLE)
    if curve.empty:
        return None
    lead = (
        "Every class has a mean direction. Where an utterance lies nearer to the direction of its own class than "
        "others do (AUC, chance .5), the direction is the class. No utterance helps to make the direction it is held "
        "against."
    )
    figures = (
        Figure(
            "classes",
            "Is the direction the class?",
            "AUC: the chance that an utterance of a class is nearer to its direction than one of another class, mean "
            f"over classes. {RIBBON} {DEPTH}. {_accuracy(results)}",
            results.basis(curve, "utterances", policy=False),
            f"Line chart of AUC and of the share nearest to their own class: {span_of(curve, results.place_name)}.",
            lambda width: charts.layer_curve(
                curve, series="series", title="share", coincide=True, zero=False, size=(width, height(width))
            ),
        ),
        _matrix(results),
    )
    return Section("classes", "Is the direction the class?", lead, figures)


def _accuracy(results: Results) -> str:
    found = results.rows("accuracy")
    if found.empty:
        return ""
    row, chance = found.iloc[0], results.rows("majority").iloc[0]
    sentence = f"The classifier itself is right on {number(row['value'])} {interval(row)} of {count(row['n_units'])}"
    return f"{sentence}; the commonest class makes {number(chance['value'])}."


def _matrix(results: Results) -> Figure:
    frame = results.components("class_direction")
    pair = frame["component"].str.split(" × ", n=1, expand=True)
    frame = frame.assign(first=pair[0], second=pair[1])
    mirrored = frame[frame["first"].ne(frame["second"])].rename(columns={"first": "second", "second": "first"})
    shown = sorted({frame["layer"].min(), frame["layer"].median() // 1, frame["layer"].max()})
    frame = pd.concat([frame, mirrored])
    frame = frame[frame["layer"].isin(shown)].sort_values(["layer", "first", "second"], kind="stable")
    frame = frame.assign(place="layer " + frame["layer"].astype(int).astype(str))
    rows = 30 if frame["first"].nunique() < 10 else 20
    return Figure(
        "class-cosines",
        "Mean cosine within and between classes",
        "On the diagonal pairs of utterances of one class, beside it pairs of one utterance from each. Numbers in "
        "brackets have an interval that holds 0.",
        results.basis(frame, "utterances", policy=False),
        f"Heat maps of mean cosines between classes: {span_of(frame, lambda row: str(row['component']))}.",
        lambda width: charts.heatmap(
            frame,
            x="first",
            y="second",
            panel="place",
            title="mean cosine",
            names=("class", "class"),
            diverging=True,
            size=(width, rows),
            columns=columns(width, 3),
        ),
    )


def replaced(results: Results) -> Section | None:
    """What the classifier loses when the attention of a layer, or of all, is replaced."""
    head = {
        "accuracy": "change of accuracy",
        "agreement": "same class found",
        "cls": "cos, final vector",
        "output": "cos, layer's output",
    }
    table = _table(results, "replaced.", "attention", head, whole=", all layers")
    if table is None:
        return None
    lead = (
        "The attention weights of a layer, or of all, are made uniform, dealt anew among the tokens, or taken from "
        "another utterance; the values stay the model's own. Where nothing changes, geometry has replaced attention. "
        "Cosines are to the same vector before."
    )
    drawn = _by_layer(results, "replaced.accuracy", "change of accuracy", "Accuracy less that of the model as it is")
    return Section("replaced", "What is attention worth?", lead, drawn, table)


def explained(results: Results) -> Section | None:
    """Which maps over words point where people do, and where the classifier looks."""
    table = _table(results, "explains.", "map", MEASURES, whole="")
    if table is None:
        return None
    lead = (
        "Maps over words, against the words people marked (AUPRC, AUROC, IoU: higher is better), and by how much the "
        "probability of the class found falls when the highest words are erased (large is faithful) or kept alone "
        "(small is faithful). A map must beat the two baselines, random and rare."
    )
    drawn = _by_layer(results, "explains.auprc", "AUPRC against rationales", "Agreement with people", SHOWN)
    drawn += _by_layer(results, "explains.comprehensiveness", "fall when erased", "Faithfulness", SHOWN)
    return Section("explained", "What explains the decision?", lead, drawn, table)


def _by_layer(results: Results, metric: str, axis: str, title: str, shown: tuple[str, ...] = ()) -> tuple[Figure, ...]:
    """A line for every component over the layers; nothing where there is one layer. What has no layer is a level."""
    frame = results.table[results.table["metric"].eq(metric)]
    if frame["layer"].nunique() < 2:
        return ()
    frame = frame[frame["component"].isin(shown)] if shown else frame
    layers = sorted(frame["layer"].dropna().unique())
    level = frame[frame["layer"].isna() & bool(shown)]
    spread = pd.concat([level.assign(layer=layer) for layer in (layers[0], layers[-1])])
    lines = pd.concat([frame[frame["layer"].notna()], spread]).assign(series=lambda rows: rows["component"])
    return (
        Figure(
            metric.replace(".", "-"),
            title,
            f"{axis[0].upper()}{axis[1:]}, by layer." + (" Baselines are level." if len(level) else ""),
            f"n = {count(frame['n_units'].max())} utterances",
            f"Line chart of {axis} by layer: {span_of(lines, lambda row: str(row['component']))}.",
            lambda width: charts.layer_curve(
                lines, series="series", title=axis, coincide=True, size=(width, height(width))
            ),
        ),
    )


def _table(results: Results, prefix: str, first: str, head: dict[str, str], *, whole: str) -> PageTable | None:
    """A row for every component and layer (`whole`: said of no layer), a column for every measure there is."""
    frame = results.table[results.table["metric"].str.startswith(prefix)]
    if frame.empty:
        return None
    cells: dict[str, dict[str, str]] = {}
    for _, row in frame.iterrows():
        place = whole if pd.isna(row["layer"]) else f", layer {row['layer']:.0f}"
        cells.setdefault(f"{row['component']}{place}", {})[row["metric"].removeprefix(prefix)] = number(row["value"])
    shown = [key for key in head if any(key in row for row in cells.values())]
    rows = tuple(((name, ""), *((row.get(key, "–"), "") for key in shown)) for name, row in cells.items())
    return PageTable(f"{count(frame['n_units'].max())} utterances.", (first, *(head[key] for key in shown)), rows)
