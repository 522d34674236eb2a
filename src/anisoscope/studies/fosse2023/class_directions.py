"""Every utterance as the representative of its class: what figure 2 would look like, had another one been drawn."""

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from anisoscope.metrics.class_direction import auc, separability
from anisoscope.store import as_records
from anisoscope.studies.fosse2023.measurements import final_vectors, kept
from anisoscope.studies.fosse2023.trained_cells import Trained

Array = NDArray[np.float64]
Labels = NDArray[np.int64]
STAGES = ("tuned", "pretrained")
QUANTILES = (0.0, 0.025, 0.25, 0.5, 0.75, 0.975, 1.0)
GROUPS = 32


def directions(trained: Trained) -> pd.DataFrame:
    """Records, `site` the stage (`tuned`, `pretrained`), `component` the classes by name.

    first             cosine quantiles of each class to the first correct utterance of each class, as in the paper
    representative    quantiles over all correct utterances i of a class, of the median cosine to i of each class
    auc               the same of the AUC: is an utterance of i's class nearer to i than one of the others?
    others            the same of the AUC between the two other classes (three classes only)
    separability      AUC and nearest-direction accuracy against left-one-out class means
    """
    return kept(trained, "directions", lambda: as_records(pd.DataFrame(_rows(trained))))


def _rows(trained: Trained) -> list[dict[str, Any]]:
    found, names = final_vectors(trained), trained.corpus.labels
    labels, right = found["labels"].astype(np.int64), found["labels"] == found["predicted"]
    rows: list[dict[str, Any]] = []
    for stage in STAGES:
        if stage not in found:
            continue
        unit = found[stage]
        of_stage = _first(unit, labels, right, names) + _each(unit, labels, right, names)
        for name, estimate in separability(unit, labels, len(names)).items():
            value, low, high = (float(x) for x in estimate)
            of_stage.append(
                {"metric": f"separability.{name.partition('.')[0]}", "value": value, "low": low, "high": high}
                | ({"component": names[int(name.partition(".")[2])]} if "." in name else {})
            )
        rows += [row | {"site": stage, "n_units": len(labels)} for row in of_stage]
    return rows


def _first(unit: Array, labels: Labels, right: NDArray[np.bool_], names: tuple[str, ...]) -> list[dict[str, Any]]:
    """Cosines to the first correct utterance of each class, itself among them, as in the authors' notebook."""
    rows = []
    for i, name in enumerate(names):
        able = np.flatnonzero((labels == i) & right)
        if len(able):
            cosine = unit @ unit[able[0]]
            rows += [
                {"metric": f"first.{q:g}", "component": f"{name} → {other}", "value": float(value)}
                for j, other in enumerate(names)
                for q, value in zip(QUANTILES, np.quantile(cosine[labels == j], QUANTILES), strict=True)
            ]
    return rows


def _each(unit: Array, labels: Labels, right: NDArray[np.bool_], names: tuple[str, ...]) -> list[dict[str, Any]]:
    """Over all correct utterances of each class as its representative, which is left out of its own class."""
    rows: list[dict[str, Any]] = []
    for i, name in enumerate(names):
        able = np.flatnonzero((labels == i) & right)
        if not len(able):
            continue
        cosine = unit[able] @ unit.T  # [representative, utterance]
        cosine[np.arange(len(able)), able] = np.nan
        per: dict[tuple[str, str], list[float]] = {}
        rest = [j for j in range(len(names)) if j != i]
        for row in cosine:
            seen = ~np.isnan(row)
            for j, other in enumerate(names):
                per.setdefault(("representative", f"{name} → {other}"), []).append(
                    float(np.nanmedian(row[labels == j]))
                )
            per.setdefault(("auc", name), []).append(auc(row[seen], (labels == i)[seen]))
            if len(rest) == 2:
                ours = np.isin(labels, rest)
                pair = auc(row[ours], labels[ours] == rest[0])
                per.setdefault(("others", name), []).append(max(pair, 1 - pair))
        for (metric, component), values in per.items():
            rows.append({"metric": f"{metric}.mean", "component": component, "value": float(np.mean(values))})
            rows += [
                {"metric": f"{metric}.{q:g}", "component": component, "value": float(value)}
                for q, value in zip(QUANTILES, np.quantile(values, QUANTILES), strict=True)
            ]
    return rows
