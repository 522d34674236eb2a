"""Table 4: what happens to values and keys if the attention of one layer is forced to be sparse, and what it costs."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from altair.typing import ChartType

from anisoscope.charts import builders as charts
from anisoscope_papers.fosse2023.entry import (
    Evidence,
    Measure,
    average_panels,
    declare_entry,
)
from anisoscope_papers.fosse2023.grid import CONTROL, OTHER_START, OWN, STARTS
from anisoscope_papers.fosse2023.measurements import KEYS, VALUES, measure_population
from anisoscope_papers.judge import Test
from anisoscope_papers.study import Compared
from anisoscope_papers.training.entropy_forms import FORMS

WEIGHTS = (0.0, 1e-4, 1e-3, 1e-2, 1e-1)
"""Those of the published numbers."""
LARGEST = WEIGHTS[-1]
OF_KEYS: dict[str, Any] = {"token_policy": "all", "layer": 1, "site": KEYS}
# Published in another form at λ = 0: `first_form` of published.toml.
ENTROPY = ("H of [CLS]",)
QUANTITIES: dict[str, dict[str, Any]] = {
    "H of [CLS]": {"metric": "cls_entropy", "component": "reported"},
    "sim(K)": {"metric": "intra_sequence", **OF_KEYS},
    "sim(V)": {"metric": "intra_sequence", **OF_KEYS, "site": VALUES},
    "accuracy": {"metric": "accuracy", "component": "test"},
    "mean norm of keys": {"metric": "norms.mean", **OF_KEYS},
    "variation of the norms of keys": {"metric": "norms.variation", **OF_KEYS},
}
# Which form the published H has is not recorded: the claim is tested with each of them.
FORMS_OF_H = {
    "uniform without a penalty": "reported",
    "uniform by the second form": "columns",
    "uniform by the third form": "again",
}
ONE_LAYER: dict[str, Any] = {"family": OWN, "layers": 1}


def make_tests(whole: Evidence) -> Iterator[Test]:
    """Yield the tests of table 4: what changes between no penalty on attention entropy (λ = 0) and the paper's largest
    λ.

    Attention becomes sparse (its entropy falls), values become similar and keys stay similar, norms of keys grow and
    spread, accuracy hardly moves. A λ beyond the paper's should make keys less similar. `whole`: the records of all
    corpora; a test has one number per seed of one corpus.
    """
    for here in whole.corpora:
        entropy, keys, values, accuracy, norm, variation = (
            here.table("weight", **ONE_LAYER, **where) for where in QUANTITIES.values()
        )
        yield here.test("attention becomes sparse", entropy[LARGEST] - entropy[0.0])
        for claim, form in FORMS_OF_H.items():
            where = {"metric": "cls_entropy", "component": form}
            yield here.test(claim, here.table("weight", **ONE_LAYER, **where)[0.0])
            for start, found in here.table(
                "start", family=OTHER_START, **where
            ).items():
                yield here.test(claim, found, STARTS[start])
        yield here.test("values converge", values[LARGEST] - values[0.0])
        # At λ = 0 training makes values of one layer less alike than at step 0.
        drawn = here.table("layers", family=CONTROL, **QUANTITIES["sim(V)"])[1.0]
        yield here.test("values converge beyond their start", values[LARGEST] - drawn)
        yield here.test("keys stay alike", keys[LARGEST])
        # A ratio of norms, as a logarithm: doubling and halving are equally far from 0.
        yield here.test("key norms grow", np.log(norm[LARGEST]) - np.log(norm[0.0]))
        spread = variation[LARGEST] - variation[0.0]
        yield here.test("key norms spread", spread)
        yield here.test("accuracy hardly moves", accuracy[LARGEST] - accuracy[0.0])
        # The largest λ beyond the paper's; without one, a missing key gives NaN.
        larger = [weight for weight in keys if weight > LARGEST]
        beyond = keys[max(larger, default=None)] - keys[0.0]
        yield here.test("keys decorrelate at large λ", beyond)


def compare(here: Evidence) -> Iterator[Compared]:
    """Compare every number of table 4 with ours on one corpus (`here`); the note holds the accuracy of our models.

    The entropy H is taken in the form in which it was published.
    """
    for place, weight in enumerate(WEIGHTS):
        classifiers = here.describe_classifiers(weight=weight, **ONE_LAYER)
        for name, published in here.numbers.items():
            where = QUANTITIES[name]
            note = classifiers
            if name in ENTROPY:
                form = "reported"
                # By the history of the authors' code, the row of λ = 0 is of form C on two
                # of the corpora: its fall at the next λ is a change of metric.
                if weight == 0:
                    form = here.published["first_form"][here.corpus]
                where = where | {"component": form}
                note = "; ".join(
                    filter(None, (_describe_form(here, form), classifiers))
                )
            rows = here.find(weight=weight, **ONE_LAYER, **where)
            yield here.compared(f"λ = {weight:g}, {name}", published[place], rows, note)


def _describe_form(here: Evidence, form: str) -> str:
    """Describe a form of entropy H on one corpus (`here`): its lowest and highest possible value at the measured
    lengths, and its value in untrained models.

    `form`: a key of `entropy_forms.FORMS`.
    """
    ends = []
    for end in ("floor", "ceiling"):
        found = here.find(metric=f"cls_entropy.{end}", component=form)["value"]
        ends.append(f"{found.iloc[0]:.3f}" if len(found) else "unknown")
    low, high = ends
    drawn = here.find(metric="cls_entropy", component=form, family=CONTROL)["value"]
    at_first = f", untrained {drawn.mean():.3f}" if len(drawn) else ""
    return f"form {FORMS[form]}, floor {low}, ceiling {high}{at_first}"


def draw(whole: Evidence) -> dict[str, ChartType]:
    """Draw entropy, similarities, accuracy and key norms against log₁₀ λ (weight of the penalty), a line per corpus.

    λ = 0 is at the left end. `whole`: the records of all corpora. Returns {chart name: chart}.
    """
    frame = average_panels(
        {n: whole.find(**ONE_LAYER, **where) for n, where in QUANTITIES.items()},
        "corpus",
        "weight",
    )
    powers = np.log10(frame["weight"].where(frame["weight"] > 0))
    if powers.isna().all():
        return {}
    # λ = 0 has no logarithm: it is drawn one power of ten before the smallest λ.
    nothing = powers.min() - 1
    return whole.chart(
        charts.trajectory,
        frame.assign(power=powers.fillna(nothing)),
        x="power",
        series="corpus",
        panel="quantity",
        titles=(
            f"logarithm of λ, base 10 (at {nothing:.0f}: no penalty)".replace("-", "−"),
            "value",
        ),
        independent=True,
        size=(680, 170),
    )


STUDY = declare_entry(
    "table4",
    measure=Measure(
        lambda plan: [*plan.by_weight(), *plan.by_start()],
        (measure_population,),
        measure_population,
    ),
    tests=make_tests,
    draw=draw,
    compare=compare,
)
