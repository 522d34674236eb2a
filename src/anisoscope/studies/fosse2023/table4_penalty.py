"""Table 4: what values and keys do when the attention of one layer is forced to be sparse, and what it costs."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from altair.typing import ChartType

from anisoscope.charts import builders as charts
from anisoscope.store import select
from anisoscope.studies.fosse2023.grid import NEEDS, SETTINGS, Plan, other_starts, standard, words
from anisoscope.studies.fosse2023.measurements import KEYS, VALUES, accuracies, gather, geometry
from anisoscope.studies.fosse2023.over_cells import Seeds, beside, compared, corpora, note, over, sound, title
from anisoscope.studies.fosse2023.published import NUMBERS
from anisoscope.studies.judge import LOW, judged, of_seeds, within
from anisoscope.studies.study import SIGNED, Claim, Compared, Context, Study, Verdict

SOURCE, BEYOND = "Fosse et al. 2023, table 4", "beyond the paper (its authors' unpublished runs, λ up to 6)"
PUBLISHED_LARGEST = 0.1
HARDLY, UNIFORM = 0.03, 0.9
SPARSE = Claim(
    "attention becomes sparse",
    "H of the [CLS] row falls as λ grows (λ = 0.1 less λ = 0)",
    SOURCE,
    "0.988 → 0.01 (HateXplain), 0.999 → 0.000 (e-SNLI), 0.47 → 0.07 (YelpHat)",
)
UNIFORM_AT_0 = Claim(
    "uniform without a penalty",
    f"Without a penalty the attention of [CLS] is nearly uniform (H above {UNIFORM})",
    "Fosse et al. 2023, section 3 and table 4",
    "0.988 (HateXplain), 0.999 (e-SNLI); 0.47 (YelpHat) contradicts",
)
UNIFORM_SUMS = Claim(
    "uniform by the second form",
    f"The same of H in its second published form: column sums of attention, a second softmax (H above {UNIFORM})",
    "Fosse et al. 2023, table 4; which form its H has is not recorded",
    "0.988 (HateXplain), 0.999 (e-SNLI); 0.47 (YelpHat)",
)
CONVERGE = Claim(
    "values converge",
    "Values of a sentence become more alike as λ grows (λ = 0.1 less λ = 0)",
    SOURCE,
    "0.578 → 0.772, 0.507 → 0.925, 0.303 → 0.483 (not monotone)",
)
NOT_ORTHOGONAL = Claim(
    "keys stay alike",
    f"Keys do not become orthogonal: at λ = 0.1 their similarity is above {LOW}",
    SOURCE,
    "0.727 (HateXplain), 0.707 (e-SNLI), 0.672 (YelpHat)",
)
NORMS = Claim(
    "key norms grow",
    "The model uses the norm of the keys instead: mean ‖k‖ at λ = 0.1 over that at λ = 0, as a logarithm, is above 0",
    SOURCE,
    "no number in the paper; about 10 → 55 to 230 on e-SNLI in a figure of the authors' notebook",
)
SPREAD = Claim(
    "key norms spread",
    "Norms of keys differ more within a corpus at λ = 0.1 than at λ = 0 (coefficient of variation)",
    SOURCE,
)
ACCURACY = Claim(
    "accuracy hardly moves",
    f"Accuracy changes by less than {HARDLY:.0%} from λ = 0 to λ = 0.1",
    "Fosse et al. 2023, section 5 (from earlier work; not measured there)",
    bounds=SIGNED,
)
DECORRELATE = Claim(
    "keys decorrelate at large λ",
    "Beyond λ = 0.1 keys do become less alike (largest λ less λ = 0)",
    BEYOND,
    "0.745 → 0.459 (HateXplain), 0.598 → 0.453 (YelpHat), 0.674 → 0.182 (e-SNLI) at λ = 6, one run each",
)
TABLE: dict[str, dict[str, list[float]]] = NUMBERS["table4"]
"""Published, by `WEIGHTS`; of YelpHat on its reviews of 50 words."""
WEIGHTS = (0.0, 1e-4, 1e-3, 1e-2, 1e-1)
SPREADS = {"H of [CLS]": 0.0, "sim(K)": 0.06, "sim(V)": 0.12}
"""Twice the run-to-run spread of the published values, where it is known."""
ROW = {"metric": "cls_entropy", "component": "reported"}
SIMILAR: dict[str, Any] = {"metric": "intra_sequence", "token_policy": "all", "layer": 1}
SUMS = "H of column sums"
QUANTITIES: dict[str, dict[str, Any]] = {
    "H of [CLS]": ROW,
    SUMS: ROW | {"component": "columns"},
    "sim(K)": SIMILAR | {"site": KEYS},
    "sim(V)": SIMILAR | {"site": VALUES},
    "accuracy": {"metric": "accuracy", "component": "test"},
    "mean norm of keys": {"metric": "norms.mean", "token_policy": "all", "layer": 1, "site": KEYS},
    "variation of the norms of keys": {"metric": "norms.variation", "token_policy": "all", "layer": 1, "site": KEYS},
}
LOGARITHMIC = ("mean norm of keys",)
"""Quantities whose change is one of their logarithm."""


def measure(plan: Plan, context: Context) -> pd.DataFrame:
    """Accuracies and geometry of one layer at every λ, and at λ = 0 from other word vectors."""
    return gather([*plan.by_weight(), *plan.by_start()], plan, context, accuracies, geometry)


def _table(records: pd.DataFrame, name: str, corpus: str) -> Seeds:
    """A quantity [seed] by λ of one layer, sound models only."""
    rows = standard(select(sound(records), corpus=corpus, **QUANTITIES[name]))
    rows = rows[rows["layers"] == 1]
    values = np.log(rows["value"]) if name in LOGARITHMIC else rows["value"]
    return Seeds(select(records, corpus=corpus), rows.assign(value=values), "weight")


def judge(records: pd.DataFrame) -> Sequence[Verdict]:
    tests, near = [], []
    for corpus in corpora(records):
        tables = {name: _table(records, name, corpus) for name in QUANTITIES}
        remark, named = note(records, corpus), title(corpus)
        test = partial(of_seeds, reason=remark, subject=named)
        change = {name: table[PUBLISHED_LARGEST] - table[0.0] for name, table in tables.items()}
        tests += [
            test(SPARSE, change["H of [CLS]"], "change of H", below=True),
            test(UNIFORM_AT_0, tables["H of [CLS]"][0.0], "H at λ = 0", UNIFORM),
            test(UNIFORM_SUMS, tables[SUMS][0.0], "H at λ = 0", UNIFORM),
            test(CONVERGE, change["sim(V)"], "change of sim(V)"),
            test(NOT_ORTHOGONAL, tables["sim(K)"][PUBLISHED_LARGEST], "sim(K) at λ = 0.1", LOW),
            test(NORMS, change["mean norm of keys"], "change of ln mean ‖k‖"),
            test(SPREAD, change["variation of the norms of keys"], "change of the coefficient of variation"),
        ]
        for claim, name in ((UNIFORM_AT_0, "H of [CLS]"), (UNIFORM_SUMS, SUMS)):
            rows = other_starts(select(sound(records), corpus=corpus, **QUANTITIES[name]))
            table = Seeds(select(records, corpus=corpus), rows, "start")
            tests += [of_seeds(claim, table[x], name, UNIFORM, subject=f"{named}, {words(x)}") for x in table]
        keys = tables["sim(K)"]
        beyond = keys[max([w for w in keys if w > PUBLISHED_LARGEST], default=None)] - keys[0.0]
        tests.append(test(DECORRELATE, beyond, "change of sim(K)", below=True))
        near.append(within(ACCURACY, change["accuracy"], (-HARDLY, HARDLY), "change of accuracy", remark, named))
    return judged([*tests, *near])


def compare(records: pd.DataFrame) -> Iterator[Compared]:
    """Every cell of the table, beside the accuracy of its models."""
    for corpus in filter(TABLE.__contains__, corpora(records)):
        here = standard(select(records, corpus=corpus))
        for at, weight in enumerate(WEIGHTS):
            models = here[(here["layers"] == 1) & (here["weight"] == weight)]
            for name, published in TABLE[corpus].items():
                rows = select(sound(models), **QUANTITIES[name])
                place = f"{title(corpus)}, λ = {weight:g}, {name}"
                yield compared(place, published[at], rows, SPREADS[name], beside(models))


def draw(records: pd.DataFrame) -> dict[str, ChartType]:
    """Every quantity against log₁₀ λ, one line per corpus; λ = 0 stands at the left end."""
    rows = standard(records)
    rows = rows[rows["layers"] == 1]
    kept = sound(rows)
    positive = rows.loc[rows["weight"] > 0, "weight"]
    if not len(positive):
        return {}
    nothing = np.log10(positive.min()) - 1
    parts = []
    for name, where in QUANTITIES.items():
        if name == SUMS:
            continue
        part = over(select(kept, **where).sort_values("weight", kind="stable"), ["corpus", "weight"])
        parts.append(part.assign(quantity=name))
    frame = pd.concat(parts, ignore_index=True)
    if not len(frame):
        return {}
    shown = [np.log10(weight) if weight > 0 else nothing for weight in frame["weight"]]
    frame = frame.assign(corpus=[title(c) for c in frame["corpus"]], power=shown)
    chart = charts.trajectory(
        frame,
        x="power",
        series="corpus",
        panel="quantity",
        titles=(f"logarithm of λ, base 10 (at {nothing:.0f}: no penalty)".replace("-", "−"), "value"),
        independent=True,
        size=(680, 170),
        columns=2,
    )
    return {"table4": chart}


STUDY = Study(
    name="table4",
    paper="fosse2023",
    title="One layer under an entropy penalty of weight λ: attention, keys, values, accuracy",
    claims=(SPARSE, UNIFORM_AT_0, UNIFORM_SUMS, CONVERGE, NOT_ORTHOGONAL, NORMS, SPREAD, ACCURACY, DECORRELATE),
    settings=SETTINGS,
    measure=measure,
    judge=judge,
    draw=draw,
    compare=lambda records: tuple(compare(records)),
    caption=(
        "Trained with λ · H of the [CLS] row divided by ln n; H is shown as the paper reports it, divided by "
        "ln(n − 1), so it can exceed 1. Means over seeds, with 95 % intervals from three seeds on; all tokens with "
        "[CLS]. Collapsed models are left out and counted in the verdicts. The records also hold H of the second "
        "published form (column sums, second softmax)."
    ),
    needs=NEEDS,
)
