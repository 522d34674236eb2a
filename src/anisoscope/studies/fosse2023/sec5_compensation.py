"""Section 5: is it easier to compensate a sparse attention with more parameters? Width, heads and depth (ours)."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from altair.typing import ChartType

from anisoscope.charts import builders as charts
from anisoscope.store import select
from anisoscope.studies.fosse2023.grid import NEEDS, SETTINGS, WIDTH, Plan, with_options
from anisoscope.studies.fosse2023.measurements import VALUES, accuracies, gather, geometry
from anisoscope.studies.fosse2023.over_cells import Seeds, corpora, note, over, sound, spearman, title
from anisoscope.studies.judge import Array, judged, of_seeds
from anisoscope.studies.study import SIGNED, Claim, Context, Study, Verdict

SOURCE = "Fosse et al. 2023, section 5 (said there, not measured)"
GAIN = Claim(
    "values converge more in larger models",
    "The change of sim(V) of the first layer from λ = 0 to the largest λ grows with the number of parameters outside "
    "the word vectors (rank correlation over sizes)",
    SOURCE,
    bounds=SIGNED,
)
KEEP = Claim(
    "larger models lose less",
    "The change of accuracy from λ = 0 to the largest λ is the better the more parameters there are outside the word "
    "vectors (rank correlation over sizes)",
    SOURCE,
    bounds=SIGNED,
)
SIMILAR: dict[str, Any] = {"metric": "intra_sequence", "site": VALUES, "token_policy": "all", "layer": 1}
MEASURES: dict[str, tuple[Claim, dict[str, Any]]] = {
    "sim(V) of layer 1": (GAIN, SIMILAR),
    "accuracy": (KEEP, {"metric": "accuracy", "component": "test"}),
}
SIZE = ["dim", "heads", "layers"]


def measure(plan: Plan, context: Context) -> pd.DataFrame:
    """Accuracies and geometry of every size at both λ."""
    return gather(plan.by_size(), plan, context, accuracies, geometry)


def _sized(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of models with vectors of another size than the real ones, whose size this study chose."""
    rows = with_options(rows)
    return rows[rows["dim"] != WIDTH]


def changes(records: pd.DataFrame, where: dict[str, Any]) -> dict[tuple[int, int, int], Array]:
    """(dim, heads, layers) → largest λ less λ = 0 [seed], sound models only."""
    table = Seeds(records, _sized(select(sound(records), **where)), *SIZE, "weight")
    weights = sorted({key[-1] for key in table})
    sizes = sorted({key[:-1] for key in table}, key=lambda size: (inner(size[0], size[2]), size[1]))
    return {size: table[*size, weights[-1]] - table[*size, weights[0]] for size in sizes}


def inner(dim: int, layers: int) -> int:
    """Parameters of the layers: queries, keys, values and output, with biases; heads do not change them."""
    return layers * (4 * dim * dim + 4 * dim)


def judge(records: pd.DataFrame) -> Sequence[Verdict]:
    tests = []
    for corpus in corpora(records):
        test = partial(of_seeds, reason=note(records, corpus), subject=title(corpus))
        for name, (claim, where) in MEASURES.items():
            found = _correlations(changes(select(records, corpus=corpus), where))
            tests.append(test(claim, found, f"rank correlation of the change of {name} with size"))
    return judged(tests)


def _correlations(change: dict[tuple[int, int, int], Array]) -> Array:
    """[seed]"""
    sizes = np.array([inner(dim, layers) for dim, _heads, layers in change], dtype=np.float64)
    return np.array([spearman(sizes, row) for row in np.array(list(change.values())).T] if change else [np.nan])


def draw(records: pd.DataFrame) -> dict[str, ChartType]:
    """The change of both quantities by size."""
    rows = []
    for name, (_, where) in MEASURES.items():
        for (dim, heads, layers), values in changes(records, where).items():
            size = f"d = {dim}, {heads} head{'s' * (heads > 1)}, L = {layers}"
            rows += [{"size": size, "quantity": f"change of {name}", "value": value} for value in values]
    frame = over(pd.DataFrame(rows, columns=["size", "quantity", "value"]), ["size", "quantity"])
    titles = ("largest λ less λ = 0", "")
    chart = charts.bars(frame, category="size", panel="quantity", titles=titles, size=(560, 24))
    return {"sec5": chart} if len(frame) else {}


STUDY = Study(
    name="sec5",
    paper="fosse2023",
    title="Compensation against the number of parameters: width, heads, layers",
    claims=(GAIN, KEEP),
    settings=SETTINGS,
    measure=measure,
    judge=judge,
    draw=draw,
    caption=(
        "Models of several sizes with random word vectors on the first corpus, trained with and without the entropy "
        "penalty; bars: 95 % intervals over seeds, paired. Collapsed models are left out and counted in the verdicts."
    ),
    needs=NEEDS,
)
