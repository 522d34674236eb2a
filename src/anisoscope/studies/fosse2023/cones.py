"""Section 2.1 in trained layers: cones of values, and attention when keys or queries are made equal, or parallel.

With q̄ and k̄ the mean query and key of an utterance: `equal` puts k̄ (q̄) in place of each of them, `parallel` gives
each its own norm along the direction of k̄ (q̄).
"""

from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from anisoscope.axes import Site
from anisoscope.capture.tap import capture
from anisoscope.store import as_records
from anisoscope.studies.fosse2023.measurements import kept
from anisoscope.studies.fosse2023.over_cells import spearman
from anisoscope.studies.fosse2023.trained_cells import Trained

ROUNDING = 1e-9
SITES = ("query.raw", "key.raw", "value")


def unit(x: Tensor) -> Tensor:
    return torch.nn.functional.normalize(x, dim=-1)


def alike(x: Tensor) -> float:
    """Mean cosine over pairs of rows [n, dim]; n of two and more."""
    n = len(x)
    return float((unit(x).sum(0).square().sum() - n) / (n * (n - 1)))


def weights(query: Tensor, key: Tensor) -> Tensor:
    return torch.softmax(query @ key.T / query.shape[-1] ** 0.5, -1)


def entropy(rows: Tensor) -> float:
    """Mean over rows of H / ln n."""
    return float(torch.special.entr(rows).sum(-1).mean() / np.log(rows.shape[-1]))


def parallel(x: Tensor) -> Tensor:
    """Every vector [n, dim] with its own norm along the direction of their mean."""
    longer: Tensor = x.norm(dim=-1, keepdim=True)
    return longer * unit(x.mean(0))


def statements(query: Tensor, key: Tensor, value: Tensor) -> dict[str, float]:
    """Quantities that section 2.1 speaks of, for one utterance and one head: query, key, value [n, dim] in float64.

    cone.inside   share of outputs in the narrowest circular cone about the mean direction that holds all values
    cone.narrow   whether that cone is convex (half angle of 90° or less)
    keys.*        H / ln n as it is, with equal, and with parallel keys;   keys.similarity   eq. 3
    queries.*     similarity of the rows of attention as it is, with equal, and with parallel queries
    """
    rows = weights(query, key)
    axis = unit(unit(value).mean(0))
    widest = float((unit(value) @ axis).min())
    outputs = unit(rows @ value) @ axis
    same_key, same_query = key.mean(0).expand_as(key), query.mean(0).expand_as(query)
    return {
        "cone.inside": float((outputs >= widest - ROUNDING).double().mean()),
        "cone.narrow": float(widest >= 0),
        "keys.similarity": alike(key),
        "keys.plain": entropy(rows),
        "keys.equal": entropy(weights(query, same_key)),
        "keys.parallel": entropy(weights(query, parallel(key))),
        "queries.plain": alike(rows),
        "queries.equal": alike(weights(same_query, key)),
        "queries.parallel": alike(weights(parallel(query), key)),
    }


@torch.no_grad()
def _each(trained: Trained) -> pd.DataFrame:
    """One row per utterance of two tokens and more: means over the heads of the first layer."""
    model, batches = trained.classifier[0], trained.batches(trained.plan.erased)
    caught: dict[str, Tensor] = {}

    def receive(site: Site, x: Tensor) -> None:
        if site.layer == 1:
            caught[site.label] = x.double()

    rows: list[dict[str, float]] = []
    with capture(model, SITES, receive=receive):
        for batch in batches:
            caught.clear()
            model(**batch.inputs)
            counts = next(iter(batch.streams.values())).mask.sum(1).tolist()
            for i, n in enumerate(counts):
                if n > 1:
                    parts = [caught[name][i, :, :n] for name in SITES]
                    heads = [statements(*(part[h] for part in parts)) for h in range(len(parts[0]))]
                    rows.append({name: float(np.mean([head[name] for head in heads])) for name in heads[0]})
    return pd.DataFrame(rows)


def cones(trained: Trained) -> pd.DataFrame:
    """Records `cones.<statement>`, means over utterances, and `cones.keys.correlation`: over utterances, of the
    similarity of keys with H.
    """

    def make() -> pd.DataFrame:
        frame = _each(trained)
        rows: list[dict[str, Any]] = [
            {"metric": f"cones.{name}", "layer": 1, "value": float(frame[name].mean())} for name in frame
        ]
        found = spearman(frame["keys.similarity"].to_numpy(float), frame["keys.plain"].to_numpy(float))
        rows.append({"metric": "cones.keys.correlation", "layer": 1, "value": found})
        return as_records(pd.DataFrame(rows), n_units=len(frame))

    return kept(trained, "cones", make)
