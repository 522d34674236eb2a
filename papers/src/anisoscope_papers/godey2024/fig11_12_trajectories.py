"""Figures 11, 12 and 19 to 22: queries and keys of one head along training, in one plane per head: the first two
directions of an uncentred SVD. Figures 19 to 22 are 11 and 12 with the SVD of keys, then of queries. How heads are
chosen, and which of them end similar or opposite: `fig13_14_alignment.py`.

The right singular vectors of all queries (and keys) of all steps stacked are the eigenvectors of the sum of their
second moments, Σ_s (Σqqᵀ + Σkkᵀ): exact, and no vector is kept. Signs: the mean query of the last step lies on the
positive side of both directions (a direction that it does not touch: its largest entry is positive).

Records, per step, seed, layer and head; `basis` is `union`, `key` or `query`, the vectors whose SVD it is:

    svd.<basis>.query, .key            coordinates of Q̄ and K̄; component: the direction, 1 or 2
    svd.<basis>.drift_share            share of ‖Q̄‖² + ‖K̄‖² of the last step that lies on the first direction
    svd.<basis>.agreement              |cosine| of the first direction with that of the union
    svd.<basis>.path_agreement         |correlation| of the first coordinates of Q̄ and K̄, all steps, with the union's
    svd.<basis>.cloud.query, .key      coordinates of a sampled vector; component: `<vector> <direction>`
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial, reduce
from typing import Any, Literal

import numpy as np
import pandas as pd
from altair.typing import ChartType

from anisoscope.store import as_records, select
from anisoscope_papers import series_charts
from anisoscope_papers.godey2024 import checkpoints
from anisoscope_papers.godey2024.checkpoints import Piece
from anisoscope_papers.godey2024.fig13_14_alignment import (
    COSINES,
    Alignment,
    read_table,
    reduce_per_seed,
)
from anisoscope_papers.judge import (
    Array,
    judge_tests,
    make_test_of_seeds,
    make_verdict_without_test,
)
from anisoscope_papers.study import Context, Study, Verdict, declare, read_claims

Basis = Literal["union", "key", "query"]
BASES: tuple[Basis, ...] = ("union", "key", "query")
SIDES = ("query", "key")
NEGLIGIBLE = 1e-9
"""Share of a mean's norm below which it does not touch a direction."""


def find_plane(moment: Array, mean: Array) -> Array:
    """Return the two main directions [..., dim, 2] of vectors with the second moments `moment` [..., dim, dim].

    Their signs are such that `mean` [..., dim] lies on the positive side of both.
    """
    # Eigenvalues come in rising order: the two main directions are the last ones.
    directions = np.linalg.eigh(moment)[1][..., ::-1][..., :2]
    along = np.einsum("...d,...dk->...k", mean, directions)
    # A mean at right angles to a direction gives it no sign: then its largest coordinate is made positive.
    largest = np.take_along_axis(
        directions, np.abs(directions).argmax(-2, keepdims=True), -2
    )[..., 0, :]
    decides = np.abs(along) > NEGLIGIBLE * np.linalg.norm(mean, axis=-1)[..., None]
    # An eigenvector has no sign of its own: without a rule, charts of the same head
    # would be mirrored at random.
    sign = np.where(np.where(decides, along, largest) < 0, -1.0, 1.0)
    return np.asarray(directions * sign[..., None, :])


def read_moment(heads: dict[str, Any], layer: int, basis: Basis) -> Array:
    """Return the second moment of queries, keys or both of every head of a layer, in one checkpoint [head, dim, dim].

    Keys that several heads share count once for each of them.

    heads   the tensors measured of the checkpoint's heads (`Piece.heads`)
    basis   whose moment: `query`, `key` or `union` (both added)
    """
    moments = [_read_tensor(heads, layer, side, "moment") for side in SIDES]
    # In grouped-query attention each of several query heads has the same key head.
    moments[1] = np.repeat(moments[1], len(moments[0]) // len(moments[1]), axis=0)
    if basis == "union":
        return moments[0] + moments[1]
    return moments[SIDES.index(basis)]


def _read_tensor(heads: dict[str, Any], layer: int, side: str, what: str) -> Array:
    """Return one of the tensors measured of a checkpoint's heads, as float64.

    heads   all of these tensors (`Piece.heads`)
    side    `query` or `key`
    what    `moment`, `mean` or `points`
    """
    return np.asarray(heads[f"{layer} {side} {what}"].double().numpy())


def measure_planes(pieces: Sequence[Piece], bases: Iterable[Basis]) -> pd.DataFrame:
    """Measure how mean queries and mean keys of all heads move in a plane during training, and how the planes agree.

    The plane of a head is spanned by the first two directions of an SVD of its queries, its keys, or both, over all
    steps. Returns a table of records (see the top of this file).

    pieces   the checkpoints, ordered by step
    bases    whose SVD: `query`, `key`, `union` (both); `union` is always added
    """
    wanted: tuple[Basis, ...] = tuple(dict.fromkeys(("union", *bases)))
    parts: list[pd.DataFrame] = []
    for seed in dict.fromkeys(piece.seed for piece in pieces):
        of_seed = [piece for piece in pieces if piece.seed == seed]
        # All checkpoints of a seed are read once: a plane is common to all its steps.
        heads = [piece.heads() for piece in of_seed]
        for layer in _list_layers(heads[0]):
            parts += _measure_layer(of_seed, heads, layer, wanted)
    return as_records(pd.concat(parts, ignore_index=True))


def _list_layers(heads: dict[str, Any]) -> list[int]:
    """List the layers in `heads`, the tensors measured of a checkpoint's heads; their names begin with the layer."""
    return sorted({int(name.split()[0]) for name in heads})


def _measure_layer(
    pieces: Sequence[Piece],
    heads: Sequence[dict[str, Any]],
    layer: int,
    bases: Sequence[Basis],
) -> Iterator[pd.DataFrame]:
    """Yield the records of one layer of one seed: paths of mean queries and keys in planes, and how the planes agree.

    pieces   the checkpoints of the seed
    heads    the tensors measured of the heads of each checkpoint
    bases    whose SVD spans the planes: `query`, `key`, `union` (both)
    """
    planes = {basis: _find_common_plane(heads, layer, basis) for basis in bases}
    paths = {basis: _project_paths(heads, layer, planes[basis]) for basis in bases}
    for basis in bases:
        yield from _make_frames(basis, pieces, layer, planes, paths)


def _find_common_plane(
    heads: Sequence[dict[str, Any]], layer: int, basis: Basis
) -> Array:
    """Return the plane of each head of a layer, common to all steps: two directions [head, dim, 2].

    heads   the tensors measured of the heads of each checkpoint, by step
    basis   whose SVD spans the plane: `query`, `key`, `union` (both)
    """
    # The second moment of all steps together is the sum of those of single steps, so
    # that one eigendecomposition gives the SVD over all of training.
    total = reduce(np.add, (read_moment(step, layer, basis) for step in heads))
    return find_plane(total, _read_tensor(heads[-1], layer, "query", "mean"))


def _project_paths(
    heads: Sequence[dict[str, Any]], layer: int, directions: Array
) -> dict[str, Array]:
    """Return {"query", "key": coordinates [step, head, 2] of the mean query and the mean key of a layer in a plane}.

    The entry `norm` holds the squared norms of both means at the last step, added, [head]. `heads`: the tensors
    measured of heads, of each checkpoint; `directions`: the planes [head, dim, 2].
    """
    means = {
        side: np.stack([_read_tensor(step, layer, side, "mean") for step in heads])
        for side in SIDES
    }
    means["key"] = np.repeat(
        means["key"], means["query"].shape[1] // means["key"].shape[1], axis=1
    )
    paths = {
        side: np.einsum("shd,hdk->shk", mean, directions)
        for side, mean in means.items()
    }
    return paths | {"norm": sum((mean[-1] ** 2).sum(-1) for mean in means.values())}


def _make_frames(
    basis: Basis,
    pieces: Sequence[Piece],
    layer: int,
    planes: dict[Basis, Array],
    paths: dict[Basis, dict[str, Array]],
) -> Iterable[pd.DataFrame]:
    """Yield the records of one layer of one seed, as tables: paths in one kind of plane, and how well it agrees.

    Records are the coordinates of mean query and mean key at each step; the share of their squared norms on the first
    direction; and how well plane and path agree with those spanned by queries and keys together (`union`).

    basis    the kind of plane: whose SVD spans it (`query`, `key`, `union`)
    pieces   the checkpoints of the seed
    planes   {basis: two directions of every head [head, dim, 2]}
    paths    {basis: coordinates in these planes, as `_project_paths` returns them}
    """
    steps = np.array([piece.step for piece in pieces])
    seed = pieces[0].seed
    path = paths[basis]
    union = paths["union"]
    given = {"seed": seed, "layer": layer}
    for side in SIDES:
        # Every coordinate becomes a row: the array is [step, head, direction].
        step, head, direction = (x.ravel() for x in np.indices(path[side].shape))
        columns = {
            "step": steps[step],
            "head": head,
            "component": (direction + 1).astype(str),
        }
        yield pd.DataFrame(
            {
                "metric": f"svd.{basis}.{side}",
                "value": path[side].ravel(),
                **columns,
                **given,
            }
        )
    # [2 · step, head]: the first coordinates of Q̄ at all steps, then those of K̄.
    joined = (
        np.concatenate([p["query"][..., 0], p["key"][..., 0]]) for p in (path, union)
    )
    of_heads = {
        # Of the whole ‖Q̄‖² + ‖K̄‖², not only of the part that lies in the plane.
        "drift_share": sum(path[side][-1, :, 0] ** 2 for side in SIDES) / path["norm"],
        # Both directions have length 1: their product is a cosine.
        "agreement": np.abs(
            np.einsum("hd,hd->h", planes[basis][..., 0], planes["union"][..., 0])
        ),
        "path_agreement": _compute_correlation(*joined),
    }
    for name, value in of_heads.items():
        # About all steps at once; recorded with the last one.
        columns = {"step": steps[-1], "head": np.arange(len(value))}
        yield pd.DataFrame(
            {"metric": f"svd.{basis}.{name}", "value": value, **columns, **given}
        )


def _compute_correlation(a: Array, b: Array) -> Array:
    """Return |Pearson correlation| of a and b [row, head] over rows, [head]."""
    a = a - a.mean(0)
    b = b - b.mean(0)
    # Absolute, since the sign of a direction is a convention.
    return np.asarray(np.abs((a * b).sum(0)) / np.sqrt((a * a).sum(0) * (b * b).sum(0)))


def measure_clouds(
    pieces: Sequence[Piece], basis: Basis, chosen: Iterable[tuple[int, int]]
) -> pd.DataFrame:
    """Return records of the coordinates of sampled queries and keys of some heads in their planes, for the first seed.

    Only steps at which vectors were sampled are there.

    pieces   the checkpoints, ordered by step
    basis    whose SVD spans the plane: `query`, `key`, `union` (both)
    chosen   (layer, head) of each head
    """
    of_seed = [piece for piece in pieces if piece.seed == pieces[0].seed]
    heads = [piece.heads() for piece in of_seed]
    parts = []
    for layer, head in dict.fromkeys(chosen):
        directions = _find_common_plane(heads, layer, basis)[head]
        for piece, tensors in zip(of_seed, heads, strict=True):
            given = {
                "seed": piece.seed,
                "step": piece.step,
                "layer": layer,
                "head": head,
            }
            for side in SIDES:
                # Only some checkpoints keep points, since they are large.
                if f"{layer} {side} points" in tensors:
                    rows = _project_points(tensors, layer, head, side, directions)
                    parts.append(
                        rows.assign(metric=f"svd.{basis}.cloud.{side}", **given)
                    )
    return as_records(pd.concat(parts, ignore_index=True))


def _project_points(
    tensors: dict[str, Any], layer: int, head: int, side: str, directions: Array
) -> pd.DataFrame:
    """Return the coordinates of the sampled queries or keys (`side`) of a head along `directions` [dim, 2].

    A row per point and direction: columns `component` (their numbers, as in `3 1`) and `value`.
    """
    points = _read_tensor(tensors, layer, side, "points")
    # Several heads may read one key.
    sharing = len(_read_tensor(tensors, layer, "query", "mean")) // points.shape[1]
    at = points[:, head // sharing] @ directions  # [point, 2]
    point, direction = (x.ravel() for x in np.indices(at.shape))
    names = [f"{p} {k + 1}" for p, k in zip(point, direction, strict=True)]
    return pd.DataFrame({"component": names, "value": at.ravel()})


def measure(
    basis: Basis, clouds: bool, series: checkpoints.CheckpointSettings, context: Context
) -> pd.DataFrame:
    """Measure every head along training: the cosine of its mean query and mean key, and their paths in a plane.

    Returns a table of records, with the validation losses.

    basis     whose SVD spans the plane of a head: `query`, `key`, or `union` (both)
    clouds    add sampled queries and keys of two heads of the first seed: those whose final cosine is largest and
              smallest
    series    the checkpoints to measure
    context   the study's cache, device and progress
    """
    pieces = checkpoints.measure(series, context)
    alignment = checkpoints.read_records(pieces, COSINES)
    parts = [
        alignment,
        checkpoints.read_losses(pieces),
        measure_planes(pieces, (basis,)),
    ]
    if clouds:
        parts.append(
            measure_clouds(pieces, basis, Alignment.of(alignment).chosen().values())
        )
    return pd.concat(parts, ignore_index=True)


def judge_clouds(records: pd.DataFrame) -> list[Verdict]:
    """Judge what share of the squared norms of mean query and mean key lies on the first direction of their plane.

    There is a verdict on all heads, and one each on heads whose two means end similar and opposite.
    """
    claim, other = read_claims("godey2024", "fig11").values()
    # Recorded with the last step alone; at the others the table holds NaN.
    share = read_table(records, "svd.union.drift_share").values[:, -1]
    groups = Alignment.of(records).groups()
    tests = []
    for name in ("all heads", "similar", "opposite"):
        reason = f"{groups[name].sum()} heads of {len(share)} seeds"
        about, subject = (claim, "") if name == "all heads" else (other, name)
        tests.append(
            make_test_of_seeds(
                about,
                reduce_per_seed(share, groups[name]),
                reason=reason,
                subject=subject,
            )
        )
    return judge_tests(tests)


def judge_paths(records: pd.DataFrame) -> list[Verdict]:
    """Judge when in training the mean query and mean key of heads become aligned (|cosine| stays above a bound).

    Heads whose two means end similar and opposite are judged apart. Time is counted in steps, and in how far the loss
    has fallen.
    """
    first, later, about, after = read_claims("godey2024", "fig12").values()
    alignment = Alignment.of(records)
    groups = alignment.groups()
    steps = alignment.table.steps
    onset = alignment.onset()
    # The median, since a few heads align very late, or never (NaN).
    similar = reduce_per_seed(onset, groups["similar"], "median")
    opposite = reduce_per_seed(onset, groups["opposite"], "median")
    counts = f"{groups['similar'].sum()} similar, {groups['opposite'].sum()} opposite"
    counts += f", of {groups['similar'].size} heads"
    # An onset can only be one of the checkpoints: the reader must know how close one lies to what is claimed.
    early = float(first.limit)
    share = np.array(steps) / steps[-1]
    nearest = share[np.abs(share - early).argmin()]
    reason = f"{counts}; the checkpoint nearest to {early:.0%} lies at {nearest:.2g} of training"
    tests = [
        make_test_of_seeds(first, similar, reason=reason),
        make_test_of_seeds(later, opposite - similar, reason=counts),
        make_test_of_seeds(about, opposite, reason=reason),
    ]
    fallen = checkpoints.compute_fall(records, alignment.table.seeds, steps)
    if fallen is None:
        why = "no loss is recorded at every checkpoint"
        return [
            *judge_tests(tests),
            make_verdict_without_test(after, None, "not measured", reason=why),
        ]
    by_loss = reduce_per_seed(alignment.onset(fallen), groups["opposite"], "median")
    tests.append(make_test_of_seeds(after, by_loss, reason=counts))
    return judge_tests(tests)


def judge_agreement(name: str, metric: str, records: pd.DataFrame) -> list[Verdict]:
    """Judge how well the plane spanned by queries or by keys agrees with that spanned by both, as a mean over heads.

    name     of the figure, whose one claim is judged
    metric   name of the records that hold the agreement
    """
    (claim,) = read_claims("godey2024", name).values()
    values = read_table(records, metric).values[:, -1]
    least = f"least of {values[0].size} heads, by seed: " + ", ".join(
        f"{x.min():.2f}" for x in values
    )
    return judge_tests([make_test_of_seeds(claim, values.mean((1, 2)), reason=least)])


def draw(
    name: str, basis: Basis, clouds: bool, records: pd.DataFrame
) -> dict[str, ChartType]:
    """Draw queries and keys of two heads in their planes: those whose final cosine is largest and smallest.

    Returns {chart name: chart}.

    name     of the figure
    basis    whose SVD spans the plane: `query`, `key`, `union` (both)
    clouds   draw sampled vectors, a chart per head with a panel per step; else the paths of the means, a panel per head
    """
    alignment = Alignment.of(records)
    first = records[records["seed"] == alignment.table.seeds[0]]
    chosen = {}
    for which, (layer, head) in alignment.chosen().items():
        chosen[which] = (alignment.name(which), select(first, layer=layer, head=head))
    if not clouds:
        return {name: series_charts.draw_paths(list(chosen.values()), basis)}
    charts = {}
    for which, (title, rows) in chosen.items():
        charts[f"{name}_{which}"] = series_charts.draw_clouds(rows, basis, title)
    return charts


def _declare_study(number: int, basis: Basis) -> Study:
    """Declare the study of a figure: odd numbers show clouds of vectors, even ones paths of their means.

    number   of the figure
    basis    whose SVD spans the planes: `query`, `key`, `union` (both)
    """
    name = f"fig{number}"
    clouds = number % 2 == 1
    judge = judge_clouds if clouds else judge_paths
    if basis != "union":
        judge = partial(
            judge_agreement,
            name,
            f"svd.{basis}.{'agreement' if clouds else 'path_agreement'}",
        )
    return declare(
        "godey2024",
        name,
        **checkpoints.SERIES,
        measure=partial(measure, basis, clouds),
        judge=judge,
        draw=partial(draw, name, basis, clouds),
    )


FIGURES: dict[int, Basis] = {
    11: "union",
    12: "union",
    19: "key",
    20: "key",
    21: "query",
    22: "query",
}
STUDIES = tuple(_declare_study(number, basis) for number, basis in FIGURES.items())
