"""Figure 2: does the direction of the final [CLS] vector tell the class? For every choice of the representative."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
from altair.typing import ChartType

from anisoscope.charts.style import INK, MUTED, colour
from anisoscope.store import select
from anisoscope.studies.fosse2023.class_directions import STAGES, directions
from anisoscope.studies.fosse2023.grid import NEEDS, PUBLISHED, SETTINGS, Plan
from anisoscope.studies.fosse2023.measurements import accuracies, gather
from anisoscope.studies.fosse2023.over_cells import Seeds, compared, corpora, note, over, sound, spearman, title
from anisoscope.studies.judge import Array, Test, judged, of_seeds
from anisoscope.studies.study import SHARE, SIGNED, Claim, Compared, Context, Study, Verdict

SOURCE = "Fosse et al. 2023, section 4, figure 2"
CHANCE, HARDLY, NOTHING = 0.5, 0.6, 0.1
STAGE_NAMES = {"tuned": "fine-tuned", "pretrained": "pre-trained"}
NLI = ("entailment", "neutral", "contradiction")
MEDIANS = {
    "esnli": {
        (a, b): value
        for a, row in zip(NLI, ((0.95, 0.37, 0.05), (0.41, 0.92, 0.22), (0.19, 0.13, 0.92)), strict=True)
        for b, value in zip(NLI, row, strict=True)
    }
}
"""Published, read off figure 2a: (class of the representative, class) → median cosine."""
SEPARATES = Claim(
    "the direction separates",
    "An utterance of the representative's class is nearer to it than one of another class (AUC, mean over all "
    "representatives) more often after fine-tuning than before, each with its own representatives",
    SOURCE,
    "medians .95/.37/.05, .41/.92/.22, .19/.13/.92 (e-SNLI, one representative per class)",
    bounds=SIGNED,
)
NOT_BEFORE = Claim(
    "not before fine-tuning",
    f"In the pre-trained encoder the direction says nothing of the class: the share of utterances nearest to the mean "
    f"direction of their own class, themselves left out, is within {NOTHING} of chance",
    SOURCE,
    "medians .20/.11/.08, identical across classes (there against fine-tuned representatives)",
)
CONTRADICTION = Claim(
    "contradiction sees two classes alike",
    f"From a representative of contradiction the two other classes are hardly told apart (AUC below {HARDLY})",
    SOURCE,
    "medians .19 and .13",
    bounds=SHARE,
)
LUCK = Claim(
    "no luck of the draw",
    "It holds for every representative: the AUC of the worst of 40 (2.5 % quantile) is above chance",
    "beyond the paper, which shows one representative per class",
    bounds=SHARE,
)
ACCURATE = Claim(
    "closer classes are better classified",
    "Over the classes of all corpora, the closer a class to its own representatives the more of it is classified "
    "correctly (rank correlation of the mean of median cosines with class accuracy)",
    "beyond the paper",
    "Spearman .81 over the 20 classes of 20 Newsgroups in the authors' notebook",
    bounds=SIGNED,
)
LAST = "contradiction"


def measure(plan: Plan, context: Context) -> pd.DataFrame:
    """Directions of every fine-tuned encoder, and of the encoder as it was."""
    return gather(plan.fine_tuned(), plan, context, accuracies, directions)


def judge(records: pd.DataFrame) -> Sequence[Verdict]:
    tests, near = [], []
    for corpus in corpora(records):
        rows, remark, named = select(sound(records), corpus=corpus), note(records, corpus), title(corpus)
        test = partial(of_seeds, reason=remark, subject=named)
        of_class = partial(_mean_over_classes, select(records, corpus=corpus), rows)
        tuned, before = (of_class(stage, "auc.mean") for stage in STAGES)
        tests.append(test(SEPARATES, tuned - before, "difference of the AUC"))
        near.append(_before(select(records, corpus=corpus, site="pretrained"), remark, named))
        tests.append(test(LUCK, of_class("tuned", "auc.0.025"), "AUC of the worst representatives", CHANCE))
        if PUBLISHED[corpus] == "esnli":
            alike = of_class("tuned", "others.mean", component=LAST)
            tests.append(test(CONTRADICTION, alike, "AUC of the two others", HARDLY, below=True))
    words = "rank correlation over classes"
    tests.append(of_seeds(ACCURATE, _own_and_accuracy(records), words, subject="all corpora", reason=_all(records)))
    return judged([*tests, *near])


def _before(rows: pd.DataFrame, remark: str, subject: str) -> Test:
    """Test of the encoder as it was before fine-tuning, the same for every seed of the fine-tuning: the interval is
    over utterances.
    """
    found = select(rows, metric="separability.nearest")
    classes = len(select(rows, metric="separability.auc").drop_duplicates("component")) - 1
    inside = (-NOTHING, NOTHING)
    if not len(found):
        return Test(NOT_BEFORE, "not measured", n=0, inside=inside, note=remark, subject=subject)
    value, low, high = (float(found.iloc[0][name]) - 1 / classes for name in ("value", "low", "high"))
    words = f"share nearest to their own less chance, 1/{classes} (claim: within {NOTHING}):"
    note = "; ".join(filter(None, ("n counts utterances, as many of each class", remark)))
    n = int(found.iloc[0]["n_units"])
    return Test(NOT_BEFORE, words, value, low, high, n, inside=inside, note=note, subject=subject)


def compare(records: pd.DataFrame) -> Iterator[Compared]:
    """Medians of the cosine to the first correct utterance of each class: the paper's own figure."""
    for corpus in filter(MEDIANS.__contains__, corpora(records)):
        rows = select(sound(records), corpus=corpus, metric="first.0.5", site="tuned")
        for (ours, theirs), published in MEDIANS[corpus].items():
            ours_to_theirs = select(rows, component=f"{ours} → {theirs}")
            yield compared(
                f"{title(corpus)}, median of {theirs} to a representative of {ours}", published, ours_to_theirs
            )


def _all(records: pd.DataFrame) -> str:
    return "; ".join(dict.fromkeys(filter(None, (note(records, corpus) for corpus in corpora(records)))))


def _own_and_accuracy(records: pd.DataFrame) -> Array:
    """[seed]"""
    rows = sound(records)
    own = select(rows, metric="representative.mean", site="tuned")
    both = own["component"].astype(str).str.split(" → ", expand=True).reindex(columns=[0, 1])
    own = own.assign(component=both[0])[both[0] == both[1]]
    cosine = Seeds(records, own, "corpus", "component")
    right = Seeds(records, select(rows, metric="class_accuracy"), "corpus", "component")
    pairs = [(cosine[key], right[key]) for key in cosine]
    found = [
        spearman(*(np.array([pair[side][i] for pair in pairs]) for side in (0, 1))) for i in range(len(cosine.seeds))
    ]
    return np.array(found or [np.nan])


def _mean_over_classes(records: pd.DataFrame, rows: pd.DataFrame, stage: str, metric: str, **where: Any) -> Array:
    """[seed]"""
    table = Seeds(records, select(rows, site=stage, metric=metric, **where), "component")
    return np.asarray(np.mean([table[name] for name in table] or [table[""]], axis=0))


def draw(records: pd.DataFrame) -> dict[str, ChartType]:
    """Median cosine of each class to representatives of each class: middle, quartiles, and 95 % of all of them."""
    drawn: dict[str, ChartType] = {}
    for corpus in corpora(records):
        rows = select(sound(records), corpus=corpus, site=list(STAGES))
        rows = rows[rows["metric"].str.startswith("representative.").fillna(False)]
        if len(rows):
            drawn[f"fig2_{corpus.replace(':', '')}"] = _ranges(rows)
    return drawn


def _ranges(rows: pd.DataFrame) -> ChartType:
    """Means over seeds of the quantiles over representatives."""
    frame = over(rows, ["site", "component", "metric"])
    wide = frame.pivot_table(index=["site", "component"], columns="metric", values="value", sort=False).reset_index()
    wide.columns = [str(name).replace("representative.", "q").replace(".", "_") for name in wide.columns]
    both = wide["component"].str.split(" → ", expand=True)
    data = wide.assign(representative="to a representative of " + both[0], of=both[1])
    data["stage"] = data["site"].map(STAGE_NAMES)
    data = data.drop(columns=["site", "component"])
    order = list(dict.fromkeys(data["of"]))
    base = alt.Chart().encode(
        y=alt.Y("of:N", sort=order, title=None, axis=alt.Axis(ticks=False)), color=colour(data["stage"], "stage", 640)
    )
    shift = alt.YOffset("stage:N", sort=list(STAGE_NAMES.values()))
    across = alt.X("q0_025:Q", title="median cosine of the class", scale=alt.Scale(domain=[-1, 1], nice=False))
    layers = [
        base.mark_rule().encode(x=across, x2="q0_975:Q", yOffset=shift),
        base.mark_rule(strokeWidth=6, opacity=0.5).encode(x="q0_25:Q", x2="q0_75:Q", yOffset=shift),
        base.mark_point(filled=True, size=50).encode(x="q0_5:Q", yOffset=shift),
    ]
    zero = alt.Chart().mark_rule(strokeDash=[3, 3], color=MUTED).encode(x=alt.datum(0))
    inner = alt.layer(zero, *layers).properties(width=560, height=30 * len(order))
    panels = alt.Facet(
        "representative:N",
        sort=list(dict.fromkeys(data["representative"])),
        title=None,
        header=alt.Header(labelColor=INK),
    )
    return inner.facet(panels, data=data, columns=1).properties(spacing=14)


STUDY = Study(
    name="fig2",
    paper="fosse2023",
    title="Cosine of final [CLS] vectors to representatives of each class, before and after fine-tuning",
    claims=(SEPARATES, NOT_BEFORE, CONTRADICTION, LUCK, ACCURATE),
    settings=SETTINGS,
    measure=measure,
    judge=judge,
    draw=draw,
    compare=lambda records: tuple(compare(records)),
    caption=(
        "For every correctly classified test utterance as the representative of its class: the median cosine of each "
        "class to it; dot, bar and line: median, quartiles and 95 % of all representatives, means over seeds. The "
        "paper draws one representative per class, and compares the pre-trained encoder with representatives of the "
        "fine-tuned one, whose space is another; here each has its own. Its figure 2b is said to be of YelpHat and is "
        "of Yelp polarity: the authors' code reads the first 5,002 reviews of that test set. Ours is YelpHat."
    ),
    needs=NEEDS,
)
