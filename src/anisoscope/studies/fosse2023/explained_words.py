"""Do attention or geometry explain the decision? Maps over words against rationales and against erasure (ours)."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pandas as pd
from altair.typing import ChartType

from anisoscope.charts import builders as charts
from anisoscope.classes.attributions import BASELINES
from anisoscope.store import select
from anisoscope.studies.fosse2023.grid import NEEDS, SETTINGS, Plan, standard
from anisoscope.studies.fosse2023.measurements import accuracies, explained, gather
from anisoscope.studies.fosse2023.over_cells import Seeds, corpora, encoders, note, over, sound, title
from anisoscope.studies.judge import Test, judged, of_seeds
from anisoscope.studies.study import Claim, Context, Study, Verdict

SOURCE = "Fosse et al. 2023, section 5; tested beyond the paper"
BEYOND_CHANCE, BEYOND_RARE = (
    Claim(
        f"attention is plausible beyond {name}",
        f"The [CLS] row of one layer agrees with human rationales better than {words} (AUPRC)",
        SOURCE,
        published,
    )
    for name, words, published in (
        ("chance", "chance does", "AUROC .709 (HateXplain), .712 (YelpHat), .601 (e-SNLI) in the authors' notebook"),
        ("rarity", "the rarity of the words", ""),
    )
)
GEOMETRY = Claim(
    "directions are more plausible than attention",
    "The cosine of the values to the direction of the class found, less that to the others, agrees with rationales "
    "better than the [CLS] row of the same layer (AUPRC, one layer)",
    SOURCE,
    "AUROC .645 | .709, .610 | .712, .567 | .601 in the authors' notebook: there it does not",
)
FAITHFUL = Claim(
    "attention is faithful",
    "Erasing the words with the highest attention of [CLS] changes the decision more than erasing random words "
    "(comprehensiveness, one layer)",
    SOURCE,
)
FAITHFUL_GEOMETRY = Claim(
    "directions are more faithful than attention",
    "Erasing the words whose values point most to the class found changes the decision more than erasing those with "
    "the highest attention (comprehensiveness, one layer)",
    SOURCE,
)
FIRST = Claim(
    "the first layer, if any",
    "In models of two layers and more attention agrees with rationales better in the first layer than in the last "
    "(AUPRC, mean over depths)",
    "Fosse et al. 2023, section 5: if attention explains at all, it is in the first layers",
    "AUROC of the last layer .709 at L = 1, .519 to .546 at L = 2 to 5 (HateXplain, authors' notebook)",
)
MEASURES = {
    "auprc": "plausibility (AUPRC)",
    "auroc": "plausibility (AUROC)",
    "comprehensiveness": "comprehensiveness",
    "sufficiency": "sufficiency (lower: more faithful)",
}
VALUES = "value, contrast"
SHOWN = ["attention", "rollout", "value norm", VALUES, "hidden, contrast"]
"""Maps that are drawn by layer."""
PLAUSIBLE, FAITHFULLY = "difference of AUPRC", "difference of comprehensiveness"
TUNED = "last layer of the fine-tuned encoder"


def measure(plan: Plan, context: Context) -> pd.DataFrame:
    """Maps of every depth at λ = 0, and of fine-tuned encoders."""
    return gather([*plan.by_depth(), *plan.fine_tuned()], plan, context, accuracies, explained)


def _one_layer(here: pd.DataFrame, measure: str) -> Seeds:
    """Values [seed] by map of one layer at λ = 0."""
    rows = standard(select(sound(here), metric=f"explains.{measure}"))
    return Seeds(here, rows[(rows["layers"] == 1) & (rows["weight"] == 0)], "component")


def _last_layer(here: pd.DataFrame, measure: str) -> Seeds:
    """Values [seed] by map of the last layer of fine-tuned encoders."""
    rows = encoders(select(sound(here), metric=f"explains.{measure}"))
    return Seeds(here, rows[rows["layer"].isna() | (rows["layer"] == rows["layer"].max())], "component")


def judge(records: pd.DataFrame) -> Sequence[Verdict]:
    tests = []
    for corpus in corpora(records):
        here = select(records, corpus=corpus)
        remark, named = note(records, corpus), title(corpus)
        first = of_seeds(FIRST, _first_less_last(here), PLAUSIBLE, reason=remark, subject=named)
        tests += [*_tests(here, _one_layer, remark, named), first]
        tests += _tests(here, _last_layer, remark, f"{named}, {TUNED}")
    return judged(tests)


def _tests(here: pd.DataFrame, scores_of: Callable[[pd.DataFrame, str], Seeds], remark: str, named: str) -> list[Test]:
    """What is claimed of one layer, on the maps of the layer that `of` chooses."""
    precise, erased = scores_of(here, "auprc"), scores_of(here, "comprehensiveness")
    test = partial(of_seeds, reason=remark, subject=named)
    return [
        test(BEYOND_CHANCE, precise["attention"] - precise["random"], PLAUSIBLE),
        test(BEYOND_RARE, precise["attention"] - precise["rare"], PLAUSIBLE),
        test(GEOMETRY, precise[VALUES] - precise["attention"], PLAUSIBLE),
        test(FAITHFUL, erased["attention"] - erased["random"], FAITHFULLY),
        test(FAITHFUL_GEOMETRY, erased[VALUES] - erased["attention"], FAITHFULLY),
    ]


def _first_less_last(here: pd.DataFrame) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """[seed], mean over the depths that a seed has."""
    rows = standard(select(sound(here), metric="explains.auprc", component="attention"))
    table = Seeds(here, rows[rows["weight"] == 0], "layers", "layer")
    depths = sorted({layers for layers, _ in table if layers > 1})
    fallen = np.array([table[n, 1] - table[n, n] for n in depths] or [table[2, 2]])
    usable = ~np.isnan(fallen)
    return np.asarray(np.where(usable.any(0), np.nansum(fallen, 0) / np.maximum(usable.sum(0), 1), np.nan))


def draw(records: pd.DataFrame) -> dict[str, ChartType]:
    """Every map of one layer, a panel per measure and a chart per corpus; by layer: plausibility of the deepest, and
    both measures of fine-tuned encoders.
    """
    drawn: dict[str, ChartType] = {}
    for corpus in corpora(records):
        rows = standard(select(sound(records), corpus=corpus))
        rows = rows[(rows["layers"] == 1) & (rows["weight"] == 0)]
        parts = [
            over(select(rows, metric=f"explains.{measure}"), ["component"]).assign(measure=words)
            for measure, words in MEASURES.items()
        ]
        frame = pd.concat(parts, ignore_index=True)
        if len(frame):
            drawn[f"explained_{corpus.replace(':', '')}"] = charts.bars(
                frame, category="component", panel="measure", titles=("value", ""), size=(660, 20)
            )
    rows = standard(select(sound(records), metric="explains.auprc"))
    rows = rows[rows["weight"] == 0]
    deepest = rows[rows["layers"] == rows.groupby("corpus")["layers"].transform("max")]
    tuned = encoders(sound(records))
    return (
        drawn
        | _by_layer("explained_layers", deepest, MEASURES["auprc"])
        | _by_layer("explained_encoder", select(tuned, metric="explains.auprc"), MEASURES["auprc"])
        | _by_layer("erased_encoder", select(tuned, metric="explains.comprehensiveness"), "comprehensiveness")
    )


def _by_layer(name: str, rows: pd.DataFrame, shown: str) -> dict[str, ChartType]:
    rows = select(rows[rows["layer"].notna()], component=SHOWN)
    frame = over(rows.sort_values("layer", kind="stable"), ["corpus", "component", "layer"])
    if not len(frame):
        return {}
    frame = frame.assign(corpus=frame["corpus"].map(title), map=frame["component"])
    chart = charts.layer_curve(frame, series="map", panel="corpus", title=shown, size=(680, 220), columns=3)
    return {name: chart}


STUDY = Study(
    name="explained",
    paper="fosse2023",
    title="Attention and directions as explanations: plausibility and faithfulness",
    claims=(BEYOND_CHANCE, BEYOND_RARE, GEOMETRY, FAITHFUL, FAITHFUL_GEOMETRY, FIRST),
    settings=SETTINGS,
    measure=measure,
    judge=judge,
    draw=draw,
    caption=(
        "Maps over the words of test utterances that have a rationale: agreement with the words half of the annotators "
        "or more marked (AUPRC, AUROC; IoU in the records), and what erasing the highest words, or keeping them alone, "
        f"does to the probability of the class found (DeYoung et al. 2020). Baselines: {', '.join(BASELINES)}. Bars: "
        "95 % intervals over seeds."
    ),
    needs=NEEDS,
)
