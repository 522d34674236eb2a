"""Section 2.1: three statements about the geometry of one layer of self-attention, tested on trained layers."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import pandas as pd
from altair.typing import ChartType

from anisoscope.charts import builders as charts
from anisoscope.store import select
from anisoscope.studies.fosse2023.cones import cones
from anisoscope.studies.fosse2023.grid import NEEDS, SETTINGS, Plan, standard
from anisoscope.studies.fosse2023.measurements import accuracies, gather
from anisoscope.studies.fosse2023.over_cells import Seeds, corpora, note, over, sound, title
from anisoscope.studies.judge import judged, of_seeds, within
from anisoscope.studies.study import SHARE, SIGNED, Claim, Context, Study, Verdict

SOURCE = "Fosse et al. 2023, section 2.1 and figure 1"
EXACT, NEARLY, LARGEST = 1e-6, 0.99, 0.1
CONE = Claim(
    "outputs in the cone of the values",
    "Every output lies in the narrowest circular cone about the mean direction that holds the values of its sentence",
    SOURCE,
    bounds=SIGNED,
)
EQUAL_KEYS = Claim(
    "equal keys", "Equal keys give uniform attention, whatever the query (H / ln n is 1)", SOURCE, identity=True
)
PARALLEL_KEYS = Claim(
    "keys of one direction",
    f"Keys of one direction, each with its own norm, give nearly uniform attention too (H / ln n above {NEARLY})",
    f"{SOURCE}, which speaks of directions",
    bounds=SHARE,
)
EQUAL_QUERIES = Claim(
    "equal queries", "Equal queries give equal rows of attention (their similarity is 1)", SOURCE, identity=True
)
PARALLEL_QUERIES = Claim(
    "queries of one direction",
    f"Queries of one direction, each with its own norm, give nearly equal rows too (similarity above {NEARLY})",
    f"{SOURCE}, which speaks of directions",
    bounds=SIGNED,
)
ALIKE = Claim(
    "alike keys, uniform attention",
    "Among utterances, the more alike the keys the more uniform the attention (rank correlation of sim(K) with H / ln "
    "n, λ = 0)",
    SOURCE,
    bounds=SIGNED,
)
MEASURES = {
    "keys.plain": "H / ln n, as trained",
    "keys.parallel": "H / ln n, keys of one direction",
    "queries.plain": "similarity of rows, as trained",
    "queries.parallel": "similarity of rows, queries of one direction",
}


def measure(plan: Plan, context: Context) -> pd.DataFrame:
    """One layer at every λ of the paper."""
    return gather(plan.by_weight(large=False), plan, context, accuracies, cones)


def judge(records: pd.DataFrame) -> Sequence[Verdict]:
    tests, near = [], []
    for corpus in corpora(records):
        here, remark, named = select(records, corpus=corpus), note(records, corpus), title(corpus)
        table = {name: _table(here, name) for name in ("cone.inside", "keys.equal", "queries.equal", *MEASURES)}
        for claim, name in ((CONE, "cone.inside"), (EQUAL_KEYS, "keys.equal"), (EQUAL_QUERIES, "queries.equal")):
            inside = partial(within, claim, inside=(1 - EXACT, 1 + EXACT), statistic="mean", reason=remark)
            near.append(inside(table[name][0.0], subject=named))
        for weight in (0.0, LARGEST):
            test = partial(of_seeds, reason=remark, subject=f"{named}, λ = {weight:g}")
            tests += [
                test(PARALLEL_KEYS, table["keys.parallel"][weight], "H / ln n", NEARLY),
                test(PARALLEL_QUERIES, table["queries.parallel"][weight], "similarity of rows", NEARLY),
            ]
        found = _table(here, "keys.correlation")[0.0]
        tests.append(of_seeds(ALIKE, found, "rank correlation", reason=remark, subject=named))
    return judged([*near, *tests])


def _table(here: pd.DataFrame, name: str) -> Seeds:
    """A statement [seed] by λ, sound models only."""
    return Seeds(here, standard(select(sound(here), metric=f"cones.{name}")), "weight")


def draw(records: pd.DataFrame) -> dict[str, ChartType]:
    """Attention as trained and with keys or queries of one direction, by λ."""
    rows = standard(sound(records)).sort_values("weight", kind="stable")
    parts: list[Any] = []
    for name, words in MEASURES.items():
        part = over(select(rows, metric=f"cones.{name}"), ["corpus", "weight"])
        parts.append(part.assign(measure=words))
    frame = pd.concat(parts, ignore_index=True)
    if not len(frame):
        return {}
    frame["what"] = frame["corpus"].map(title) + ", " + frame["weight"].map("λ = {:g}".format)
    frame = frame.sort_values("corpus", kind="stable")
    return {"sec2": charts.bars(frame, category="what", panel="measure", titles=("value", ""), size=(620, 18))}


STUDY = Study(
    name="sec2",
    paper="fosse2023",
    title="Cones of values, keys and queries in one trained layer",
    claims=(CONE, EQUAL_KEYS, PARALLEL_KEYS, EQUAL_QUERIES, PARALLEL_QUERIES, ALIKE),
    settings=SETTINGS,
    measure=measure,
    judge=judge,
    draw=draw,
    caption=(
        "One layer at every λ, means over test utterances. The statements hold exactly for equal vectors; vectors of "
        "one direction have norms as well, which make attention sharp or rows differ. Bars: 95 % intervals over seeds."
    ),
    needs=NEEDS,
)
