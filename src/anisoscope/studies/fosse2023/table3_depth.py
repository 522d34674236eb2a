"""Table 3: how alike keys and values of a sentence are, layer by layer, in models of one to five layers."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from altair.typing import ChartType

from anisoscope.charts import builders as charts
from anisoscope.store import select
from anisoscope.studies.fosse2023.grid import NEEDS, PUBLISHED, SETTINGS, Plan, standard
from anisoscope.studies.fosse2023.measurements import KEYS, VALUES, accuracies, gather, geometry
from anisoscope.studies.fosse2023.over_cells import (
    Seeds,
    beside,
    compared,
    corpora,
    note,
    over,
    sound,
    spearman,
    title,
)
from anisoscope.studies.fosse2023.published import NUMBERS
from anisoscope.studies.judge import Array, judged, of_seeds, within
from anisoscope.studies.study import SIGNED, Claim, Compared, Context, Study, Verdict

SOURCE = "Fosse et al. 2023, table 3"
TABLE: dict[str, dict[str, list[list[float]]]] = NUMBERS["table3"]
"""Published: corpus → site → [model of L layers][layer − 1]."""
SPREAD = {KEYS: 0.06, VALUES: 0.12}
"""Twice the run-to-run spread of the published values of one layer."""
FEWEST = 4
"""Cells that a rank correlation needs."""
NAMES = {KEYS: "keys", VALUES: "values"}
CONVERGE = {
    site: Claim(
        f"{name} converge",
        f"The {name} of a sentence are more alike in the last layer than in the first (mean over models of two layers "
        "and more)",
        SOURCE,
        published,
    )
    for site, name, published in (
        (KEYS, "keys", "0.624 → 0.973 in five layers (HateXplain); e-SNLI is an exception: 0.719 → 0.489"),
        (VALUES, "values", "0.606 → 0.992 in five layers (HateXplain)"),
    )
}
DEEPER = Claim(
    "deeper models converge more",
    "Values of the last layer are more alike the deeper the model (what one layer more adds)",
    SOURCE,
    "0.542, 0.740, 0.88, 0.931, 0.992 (HateXplain)",
)
TOGETHER = Claim(
    "keys and values together",
    "Where values are more alike, keys are too (rank correlation over all layers of all depths)",
    SOURCE,
    bounds=SIGNED,
)
SAME = {
    site: Claim(
        f"{NAMES[site]} of one layer as published",
        f"With one layer, sim({site[0].upper()}) is the published one within twice the published run-to-run spread",
        SOURCE,
        f"{', '.join(f'{TABLE[c][site][0][0]} ({title(c)})' for c in TABLE)}; ± {spread}",
    )
    for site, spread in SPREAD.items()
}


def measure(plan: Plan, context: Context) -> pd.DataFrame:
    """Accuracies and geometry of every depth at λ = 0."""
    return gather(plan.by_depth(), plan, context, accuracies, geometry)


def _similarity(records: pd.DataFrame, site: str, corpus: str) -> Seeds:
    """Values [seed] by (layers, layer) of sound models."""
    where = {"metric": "intra_sequence", "site": site, "token_policy": "all", "corpus": corpus}
    return Seeds(select(records, corpus=corpus), standard(select(sound(records), **where)), "layers", "layer")


def judge(records: pd.DataFrame) -> Sequence[Verdict]:
    tests, near = [], []
    for corpus in corpora(records):
        keys, values = (_similarity(records, site, corpus) for site in (KEYS, VALUES))
        remark, named = note(records, corpus), title(corpus)
        test = partial(of_seeds, reason=remark, subject=named)
        for site, wide in ((KEYS, keys), (VALUES, values)):
            tests.append(test(CONVERGE[site], _growth(wide), "last layer less first"))
            if PUBLISHED[corpus] == corpus:
                published = TABLE[corpus][site][0][0]
                inside = (published - SPREAD[site], published + SPREAD[site])
                near.append(within(SAME[site], wide[1, 1], inside, "similarity", remark, named))
        tests.append(test(DEEPER, _deeper(values), "similarity per layer"))
        both = [_together(k, v) for k, v in zip(keys.rows(), values.rows(), strict=True)]
        tests.append(test(TOGETHER, np.array(both or [np.nan]), "rank correlation"))
    return judged([*tests, *near])


def _growth(table: Seeds) -> Array:
    """Last layer less first [seed], mean over the depths of two and more that a seed has."""
    depths = sorted({layers for layers, _ in table if layers > 1})
    grown = np.array([table[n, n] - table[n, 1] for n in depths] or [table[2, 2]])
    usable = ~np.isnan(grown)
    return np.asarray(np.where(usable.any(0), np.nansum(grown, 0) / np.maximum(usable.sum(0), 1), np.nan))


def _deeper(table: Seeds) -> Array:
    """What one layer more adds to the similarity in the last [seed], by least squares over the depths a seed has."""
    depths = np.array(sorted({layers for layers, _ in table}), dtype=np.float64)
    last = [np.array([row[int(n), int(n)] for n in depths], dtype=np.float64) for row in table.rows()]
    return np.array([_slope(depths, x) for x in last] or [np.nan])


def _slope(x: Array, y: Array) -> float:
    usable = ~np.isnan(y)
    return float(np.polyfit(x[usable], y[usable], 1)[0]) if usable.sum() > 1 else float("nan")


def _together(keys: dict[Any, float], values: dict[Any, float]) -> float:
    """Rank correlation over cells (depth, layer) that have both; NaN for fewer than FEWEST, of which three seeds may
    well give the same number by chance.
    """
    both = sorted(cell for cell in keys.keys() & values.keys() if not np.isnan(keys[cell] + values[cell]))
    if len(both) < FEWEST:
        return float("nan")
    return spearman(np.array([keys[k] for k in both]), np.array([values[k] for k in both]))


def compare(records: pd.DataFrame) -> Iterator[Compared]:
    """Every cell of the table, beside the accuracy of its models."""
    for corpus in filter(TABLE.__contains__, corpora(records)):
        here = standard(select(records, corpus=corpus))
        for depth in range(1, len(TABLE[corpus][KEYS]) + 1):
            models = here[here["layers"] == depth]
            similar = select(sound(models), metric="intra_sequence", token_policy="all")
            for site, name in NAMES.items():
                for layer, published in enumerate(TABLE[corpus][site][depth - 1], 1):
                    rows = select(similar, site=site, layer=layer)
                    place = f"{title(corpus)}, L = {depth}, layer {layer}, {name}"
                    yield compared(place, published, rows, SPREAD[site], beside(models))


def draw(records: pd.DataFrame) -> dict[str, ChartType]:
    """Similarity against the layer, one line per depth; one chart per corpus, keys and values side by side."""
    drawn: dict[str, ChartType] = {}
    for corpus in corpora(records):
        frame = pd.DataFrame(_lines(records, corpus))
        if len(frame):
            drawn[f"table3_{corpus.replace(':', '')}"] = charts.layer_curve(
                frame, series="model", panel="site", title="intra-sentence similarity", zero=True, size=(640, 240)
            )
    return drawn


def _lines(records: pd.DataFrame, corpus: str) -> Iterator[dict[Any, Any]]:
    rows = standard(
        select(sound(records), metric="intra_sequence", token_policy="all", corpus=corpus, site=[KEYS, VALUES])
    )
    for entry in over(rows.sort_values(["layers", "layer"]), ["site", "layers", "layer"]).to_dict("records"):
        yield entry | {"site": NAMES[str(entry["site"])], "model": f"L = {entry['layers']}"}


STUDY = Study(
    name="table3",
    paper="fosse2023",
    title="Similarity of keys and of values inside a sentence, in models of one to five layers",
    claims=(*CONVERGE.values(), DEEPER, TOGETHER, *SAME.values()),
    settings=SETTINGS,
    measure=measure,
    judge=judge,
    draw=draw,
    compare=lambda records: tuple(compare(records)),
    caption=(
        "Equation 3 over the measured test utterances, all tokens with [CLS], as many of each class; bands: 95 % "
        "intervals over seeds. Collapsed models, whose vectors coincide because they learnt nothing, are left out and "
        "counted in the verdicts. Vectors start from the built-in encoder's, scaled to a mean norm of 5 (GloVe's), "
        "where the paper has GloVe."
    ),
    needs=NEEDS,
)
