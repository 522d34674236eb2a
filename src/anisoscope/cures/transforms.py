"""Affine transforms of vectors that change their isotropy: fitted on some vectors, saved, applied to others.

Every cure is y = (x − mean) · matrix, or (x − mean) · scale dimension by dimension. None of them mixes vectors, so what
was fitted on a corpus can be applied to one query at a time.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from anisoscope.errors import MeasureError, OutputError, UsageError, suggest_names
from anisoscope.store import write_atomic
from anisoscope.sums.isotropic import mean_cosine_quantile

# Not NDArray: since numpy 2.5 that is an alias, inside which jaxtyping sees no class.
Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

KINDS = ("centre", "standardise", "whiten", "remove-top", "drop-dims")
DEFAULT = (
    "centre",
    "standardise",
    "whiten",
    "remove-top:1",
    "remove-top:3",
    "drop-dims:auto",
)
"""Cures that are tried if none is named."""
SMALLEST_VARIANCE = 1e-10
"""Share of the largest variance below which a direction counts as unused: whitening leaves it out."""
AUTO_SHARE = 0.05
"""`drop-dims:auto` drops every dimension that alone contributes this share of A or more."""
FORMAT = "anisoscope-fit-1"


@dataclass(frozen=True)
class Fit:
    """A fitted cure (a transform that reduces anisotropy): y = (x − mean) · matrix, or (x − mean) · scale without a
    matrix.

    name    as it is asked for: `centre`, `remove-top:3`, `drop-dims:12,588`
    mean    [dim], subtracted first
    scale   [dim], multiplied dimension by dimension; None: 1
    matrix  [dim, out], multiplied from the right; None: no rotation
    notes   what was decided while fitting, for instance which dimensions were dropped
    """

    name: str
    mean: Float[Array, " dim"]
    scale: Float[Array, " dim"] | None = None
    matrix: Float[Array, "dim out"] | None = None
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def dim(self) -> int:
        """Return the number of dimensions of the vectors that the cure takes."""
        return len(self.mean)

    @property
    def out(self) -> int:
        """Return the number of dimensions of the vectors that the cure returns."""
        return self.dim if self.matrix is None else self.matrix.shape[1]

    def apply(self, x: Any) -> NDArray[Any]:
        """Transform vectors [..., dim] to [..., out]; computed in float64, returned in the floating type of `x`.

        UsageError for vectors of another width.
        """
        given = np.asarray(x)
        if given.ndim == 0 or given.shape[-1] != self.dim:
            raise UsageError(
                f"vectors of {self.dim} dimensions, like those that {self.name} was "
                "fitted on",
                f"shape {list(given.shape)}",
                "apply a cure that was fitted on such vectors",
            )
        y = given.astype(np.float64) - self.mean
        if self.scale is not None:
            y = y * self.scale
        if self.matrix is not None:
            y = y @ self.matrix
        # Integers and half precision would lose what the transform changes.
        keeps_type = given.dtype.kind == "f" and given.dtype.itemsize >= 4
        return np.asarray(y.astype(given.dtype if keeps_type else np.float32))

    def save(self, path: Path | str) -> None:
        """Write the fitted cure to a safetensors file: `mean`, and `scale` or `matrix`; name and notes as metadata."""
        tensors = {"mean": self.mean}
        if self.scale is not None:
            tensors["scale"] = self.scale
        if self.matrix is not None:
            # safetensors writes memory as it lies, and `whiten` makes a matrix in
            # column order, which would be read back scrambled.
            tensors["matrix"] = np.ascontiguousarray(self.matrix)
        metadata = {
            "format": FORMAT,
            "name": self.name,
            "notes": json.dumps(self.notes),
        }
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(
            target, lambda temporary: save_file(tensors, temporary, metadata=metadata)
        )

    @classmethod
    def load(cls, path: Path | str) -> "Fit":
        """Read a fitted cure from a file that `save` wrote; OutputError for any other file."""
        cure = "give the fit.safetensors that anisoscope cure --save made"
        try:
            with safe_open(Path(path), framework="np") as file:
                metadata = file.metadata() or {}
                # `file` has keys but is no mapping: it cannot be looped over.
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise OutputError("a fitted cure", f"{path} ({error})", cure) from error
        # Weights of a model, or the vectors themselves, are safetensors files too.
        if metadata.get("format") != FORMAT or "mean" not in tensors:
            raise OutputError(
                "a fitted cure", f"{path}, which holds something else", cure
            )
        notes = json.loads(metadata["notes"])
        return cls(
            metadata["name"],
            tensors["mean"],
            tensors.get("scale"),
            tensors.get("matrix"),
            notes,
        )


def expand_cures(text: str | Sequence[str]) -> list[str]:
    """Return the names of single cures (transforms that reduce anisotropy) in a user's list.

    `remove-top:1..3` becomes three names. UsageError, with similar names, if a kind is not one of `KINDS`.
    """
    words = text.split(",") if isinstance(text, str) else list(text)
    names: list[str] = []
    for word in words:
        name = word.strip()
        # `drop-dims:12,588` was cut at its comma: a bare number belongs to the cure before it.
        if name.isdigit() and names and names[-1].startswith("drop-dims:"):
            names[-1] = f"{names[-1]},{name}"
            continue
        names += _expand_name(name)
    # `remove-top:1,remove-top:1..3` names the first one twice.
    return list(dict.fromkeys(names))


def _expand_name(name: str) -> list[str]:
    """Return the single cures that one name means: `remove-top:1..3` gives three; UsageError for an invalid name."""
    kind, _, argument = name.partition(":")
    if kind not in KINDS:
        raise UsageError(
            f"cures among {', '.join(KINDS)}", repr(name), suggest_names(kind, KINDS)
        )
    if kind == "remove-top":
        return [f"remove-top:{k}" for k in _parse_range(name, argument or "1")]
    if kind == "drop-dims":
        if argument in ("", "auto"):
            return ["drop-dims:auto"]
        if not re.fullmatch(r"\d+(,\d+)*", argument):
            raise UsageError(
                "drop-dims:auto or drop-dims:J,K with numbers from 0",
                repr(name),
                "for example drop-dims:12,588",
            )
        return [name]
    if argument:
        raise UsageError(f"{kind} without an argument", repr(name), f"write {kind}")
    return [kind]


def _parse_range(name: str, argument: str) -> range:
    """Return the numbers of `3` or `1..8`, of the cure `name`; UsageError for anything else."""
    match = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", argument)
    if match:
        first = int(match[1])
        last = int(match[2] or first)
        if 1 <= first <= last:
            return range(first, last + 1)
    raise UsageError(
        "remove-top:K or remove-top:A..B with 1 ≤ A ≤ B",
        repr(name),
        "for example remove-top:1..8",
    )


def fit_cure(name: str, x: Float[Array, "vector dim"]) -> Fit:
    """Fit one cure (a transform that reduces anisotropy) on vectors [vector, dim].

    Its name is one that `expand_cures` returns:

    centre        subtract the mean (Mu & Viswanath 2018, first half)
    standardise   centre, then divide each dimension by its standard deviation (Timkey & van Schijndel 2021)
    whiten        centre, rotate to principal axes, divide by their standard deviations (Su et al. 2021)
    remove-top:k  centre, then remove the k leading principal directions (all-but-the-top, Mu & Viswanath 2018)
    drop-dims     set dimensions to 0: by number, or those that carry the anisotropy A (`auto`)

    MeasureError if there are fewer than two vectors, or nothing would be left.
    """
    x = np.asarray(x, dtype=np.float64)
    if len(x) < 2:
        raise MeasureError(
            "at least two vectors to fit a cure (such as centring) on",
            str(len(x)),
            "give more data",
        )
    kind, _, argument = name.partition(":")
    mean = x.mean(axis=0)
    if kind == "centre":
        return Fit(name, mean)
    if kind == "standardise":
        return _fit_standardise(name, x, mean)
    if kind == "whiten":
        return _fit_whiten(name, x, mean)
    if kind == "remove-top":
        return _fit_remove_top(name, x, mean, int(argument))
    # The only kind that does not centre: what it removes should be the dimensions
    # alone.
    return _fit_drop_dims(name, x, argument)


def _fit_standardise(name: str, x: Array, mean: Array) -> Fit:
    """Fit the cure that subtracts the mean and divides each dimension by its standard deviation; constant ones become
    0.

    name   of the cure
    x      [vector, dim]
    mean   [dim]
    """
    deviation = x.std(axis=0)
    # The limit is a share of variance, hence the root for deviations.
    constant = deviation <= np.sqrt(SMALLEST_VARIANCE) * deviation.max()
    # A dimension that never changes carries nothing once it is centred: it stays zero instead of becoming rounding.
    scale = np.where(constant, 0.0, 1.0 / np.where(constant, 1.0, deviation))
    return Fit(
        name, mean, scale=scale, notes={"constant_dimensions": int(constant.sum())}
    )


def _find_principal_axes(x: Array, mean: Array) -> tuple[Array, Array]:
    """Return (variances along the principal axes, largest first [dim]; the axes as columns [dim, dim]).

    x      [vector, dim]
    mean   [dim]
    """
    centred = x - mean
    # `eigh` returns ascending eigenvalues; rounding can make those of unused directions
    # slightly negative.
    variances, directions = np.linalg.eigh(centred.T @ centred / len(x))
    return np.maximum(variances[::-1], 0.0), directions[:, ::-1]


def _fit_whiten(name: str, x: Array, mean: Array) -> Fit:
    """Fit the cure that rotates to the principal axes and divides by their standard deviations; unused axes are left
    out.

    name   of the cure
    x      [vector, dim]
    mean   [dim]
    """
    variances, directions = _find_principal_axes(x, mean)
    # With fewer vectors than dimensions only as many directions as there are vectors have a variance at all.
    is_used = variances > SMALLEST_VARIANCE * variances[0]
    if not is_used.any() or variances[0] == 0:
        raise MeasureError(
            "vectors that differ from one another, to whiten",
            "vectors that are all equal",
            "give other vectors",
        )
    matrix = directions[:, is_used] / np.sqrt(variances[is_used])
    return Fit(name, mean, matrix=matrix, notes={"directions": int(is_used.sum())})


def _fit_remove_top(name: str, x: Array, mean: Array, k: int) -> Fit:
    """Fit the cure that subtracts the mean and removes the k leading principal directions.

    name   of the cure
    x      [vector, dim]
    mean   [dim]
    """
    width = x.shape[1]
    if k >= width:
        raise MeasureError(
            f"fewer directions to remove than the {width} dimensions",
            str(k),
            f"remove at most {width - 1}",
        )
    variances, directions = _find_principal_axes(x, mean)
    top = directions[:, :k]
    share = 0.0
    if variances.sum() > 0:
        share = float(variances[:k].sum() / variances.sum())
    # I − VVᵀ projects onto the complement of the top directions but keeps the
    # coordinates, so that vectors are as wide as before.
    return Fit(
        name,
        mean,
        matrix=np.eye(width) - top @ top.T,
        notes={"variance_removed": share},
    )


def _fit_drop_dims(name: str, x: Array, argument: str) -> Fit:
    """Fit the cure that sets dimensions to 0, given by number, or those that carry the anisotropy (`auto`).

    name       of the cure
    x          [vector, dim]
    argument   numbers with commas, or `auto`

    MeasureError for a dimension that there is not, or if none would be left.
    """
    width = x.shape[1]
    if argument == "auto":
        dropped = find_dominant_dimensions(x)
    else:
        # A user may name a dimension twice.
        dropped = sorted({int(number) for number in argument.split(",")})
        if dropped[-1] >= width:
            raise MeasureError(
                f"dimensions from 0 to {width - 1}", str(dropped[-1]), "count from 0"
            )
    if len(dropped) >= width:
        raise MeasureError(
            "at least one dimension that is not dropped",
            f"all {width} dropped",
            "drop fewer",
        )
    scale = np.ones(width)
    scale[dropped] = 0.0
    return Fit(
        name, np.zeros(width), scale=scale, notes={"dropped": [int(j) for j in dropped]}
    )


def find_dominant_dimensions(
    x: Float[Array, "vector dim"], share: float = AUTO_SHARE
) -> list[int]:
    """Return the dimensions that alone contribute at least `share` of the anisotropy A, largest first.

    The contribution of dimension j is ((Σu_j)² − Σu_j²) / (n(n − 1)), as in `metrics/mean_cosine.py` (Timkey & van
    Schijndel 2021). Empty if A is no larger than isotropic directions give by chance once in a thousand times.
    """
    norm = np.linalg.norm(x, axis=1, keepdims=True)
    direction = np.divide(x, norm, out=np.zeros_like(x), where=norm > 0)
    # Times n(n − 1), which cancels in the share of the total.
    contribution = direction.sum(axis=0) ** 2 - np.square(direction).sum(axis=0)
    total = contribution.sum()
    n, width = direction.shape
    # If A is chance, every dimension's share of it is chance too, and nothing is to be
    # dropped.
    if total <= n * (n - 1) * mean_cosine_quantile(0.999, width, n):
        return []
    order = np.argsort(-contribution)
    return [int(j) for j in order if contribution[j] >= share * total]
