"""Queries and keys of every step in one plane per head: the first two directions of an uncentred SVD.

The right singular vectors of all queries (and keys) of all steps stacked are the eigenvectors of the sum of their
second moments, Σ_s (Σqqᵀ + Σkkᵀ): exact, and no vector is kept. Signs: the mean query of the last step lies on the
positive side of both directions (a direction that it does not touch: its largest entry is positive).

Records, per step, seed, layer and head; `over` is `union`, `key` or `query`, the vectors whose SVD it is:

    svd.<over>.query, .key            coordinates of Q̄ and K̄; component: the direction, 1 or 2
    svd.<over>.drift_share            share of ‖Q̄‖² + ‖K̄‖² of the last step that lies on the first direction
    svd.<over>.agreement              |cosine| of the first direction with that of the union
    svd.<over>.path_agreement         |correlation| of the first coordinates of Q̄ and K̄, all steps, with the union's
    svd.<over>.cloud.query, .key      coordinates of a sampled vector; component: `<vector> <direction>`
"""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd

from anisoscope.store import as_records
from anisoscope.studies.godey2024.checkpoints import Piece
from anisoscope.studies.judge import Array

Over = Literal["union", "key", "query"]
OVERS: tuple[Over, ...] = ("union", "key", "query")
SIDES = ("query", "key")
NEGLIGIBLE = 1e-9
"""Share of a mean's norm below which it does not touch a direction."""


def plane(moment: Array, mean: Array) -> Array:
    """The first two directions [..., dim, 2] of vectors with second moments [..., dim, dim], with the signs that put
    `mean` [..., dim] on their positive side.
    """
    directions = np.linalg.eigh(moment)[1][..., ::-1][..., :2]
    along = np.einsum("...d,...dk->...k", mean, directions)
    largest = np.take_along_axis(directions, np.abs(directions).argmax(-2, keepdims=True), -2)[..., 0, :]
    touched = np.abs(along) > NEGLIGIBLE * np.linalg.norm(mean, axis=-1)[..., None]
    return np.asarray(directions * np.where(np.where(touched, along, largest) < 0, -1.0, 1.0)[..., None, :])


def moment_of(heads: dict[str, Any], layer: int, over: Over) -> Array:
    """Σqqᵀ, Σkkᵀ or both of one checkpoint [head, dim, dim]; grouped keys count once for every head that reads them."""
    moments = [_of(heads, layer, side, "moment") for side in SIDES]
    moments[1] = np.repeat(moments[1], len(moments[0]) // len(moments[1]), axis=0)
    return moments[0] + moments[1] if over == "union" else moments[SIDES.index(over)]


def _of(heads: dict[str, Any], layer: int, side: str, what: str) -> Array:
    return np.asarray(heads[f"{layer} {side} {what}"].double().numpy())


def measure(pieces: Sequence[Piece], overs: Iterable[Over]) -> pd.DataFrame:
    """Means of all heads in the planes of the union and of `overs`, and how the planes agree; pieces by step."""
    wanted: tuple[Over, ...] = tuple(dict.fromkeys(("union", *overs)))
    parts: list[pd.DataFrame] = []
    for seed in dict.fromkeys(piece.seed for piece in pieces):
        of_seed = [piece for piece in pieces if piece.seed == seed]
        heads = [piece.heads() for piece in of_seed]
        for layer in sorted({int(name.split()[0]) for name in heads[0]}):
            planes = {over: _common(heads, layer, over) for over in wanted}
            paths = {over: _paths(heads, layer, planes[over]) for over in wanted}
            for over in wanted:
                parts += _rows(over, of_seed, layer, planes, paths)
    return as_records(pd.concat(parts, ignore_index=True))


def _common(heads: Sequence[dict[str, Any]], layer: int, over: Over) -> Array:
    """The plane [head, dim, 2] over all steps."""
    total = sum((moment_of(step, layer, over) for step in heads[1:]), moment_of(heads[0], layer, over))
    return plane(total, _of(heads[-1], layer, "query", "mean"))


def _paths(heads: Sequence[dict[str, Any]], layer: int, directions: Array) -> dict[str, Array]:
    """{side: coordinates [step, head, 2] of its mean}; with the norms of the last means under `norm`."""
    means = {side: np.stack([_of(step, layer, side, "mean") for step in heads]) for side in SIDES}
    means["key"] = np.repeat(means["key"], means["query"].shape[1] // means["key"].shape[1], axis=1)
    paths = {side: np.einsum("shd,hdk->shk", mean, directions) for side, mean in means.items()}
    return paths | {"norm": sum((mean[-1] ** 2).sum(-1) for mean in means.values())}


def _rows(
    over: Over, pieces: Sequence[Piece], layer: int, planes: dict[Over, Array], paths: dict[Over, dict[str, Array]]
) -> Iterable[pd.DataFrame]:
    steps = np.array([piece.step for piece in pieces])
    seed, path, union = pieces[0].seed, paths[over], paths["union"]
    given = {"seed": seed, "layer": layer}
    for side in SIDES:
        step, head, direction = (x.ravel() for x in np.indices(path[side].shape))
        columns = {"step": steps[step], "head": head, "component": (direction + 1).astype(str)}
        yield pd.DataFrame({"metric": f"svd.{over}.{side}", "value": path[side].ravel(), **columns, **given})
    joined = (np.concatenate([p["query"][..., 0], p["key"][..., 0]]) for p in (path, union))
    of_heads = {
        "drift_share": sum(path[side][-1, :, 0] ** 2 for side in SIDES) / path["norm"],
        "agreement": np.abs(np.einsum("hd,hd->h", planes[over][..., 0], planes["union"][..., 0])),
        "path_agreement": _correlation(*joined),
    }
    for name, value in of_heads.items():
        columns = {"step": steps[-1], "head": np.arange(len(value))}
        yield pd.DataFrame({"metric": f"svd.{over}.{name}", "value": value, **columns, **given})


def _correlation(a: Array, b: Array) -> Array:
    """|Pearson| over the first axis [row, head] → [head]."""
    a, b = a - a.mean(0), b - b.mean(0)
    return np.asarray(np.abs((a * b).sum(0)) / np.sqrt((a * a).sum(0) * (b * b).sum(0)))


def clouds(pieces: Sequence[Piece], over: Over, chosen: Iterable[tuple[int, int]]) -> pd.DataFrame:
    """Sampled queries and keys of the `chosen` (layer, head) of the first seed in their plane, at the steps that have
    a sample.
    """
    of_seed = [piece for piece in pieces if piece.seed == pieces[0].seed]
    heads = [piece.heads() for piece in of_seed]
    parts = []
    for layer, head in dict.fromkeys(chosen):
        directions = _common(heads, layer, over)[head]
        for piece, tensors in zip(of_seed, heads, strict=True):
            for side in SIDES:
                if f"{layer} {side} points" not in tensors:
                    continue
                points = _of(tensors, layer, side, "points")
                shared = len(_of(tensors, layer, "query", "mean")) // points.shape[1]  # heads that read one key
                at = points[:, head // shared] @ directions  # [point, 2]
                point, direction = (x.ravel() for x in np.indices(at.shape))
                names = [f"{p} {k + 1}" for p, k in zip(point, direction, strict=True)]
                given = {"seed": piece.seed, "step": piece.step, "layer": layer, "head": head}
                metric = f"svd.{over}.cloud.{side}"
                parts.append(pd.DataFrame({"metric": metric, "component": names, "value": at.ravel(), **given}))
    return as_records(pd.concat(parts, ignore_index=True))
