"""Table 2: the utterances nearest to a representative and farthest from it, and whether shared words explain it."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
from altair.typing import ChartType
from numpy.typing import NDArray

from anisoscope.charts.style import INK, MUTED
from anisoscope.data.labelled import TEST
from anisoscope.errors import CorpusError
from anisoscope.store import as_records, select
from anisoscope.studies.fosse2023.grid import NEEDS, SETTINGS, Plan
from anisoscope.studies.fosse2023.measurements import accuracies, final_vectors, gather, kept
from anisoscope.studies.fosse2023.over_cells import Seeds, corpora, note, sound, spearman, title
from anisoscope.studies.fosse2023.trained_cells import Trained, corpus_of
from anisoscope.studies.judge import Array, judged, of_seeds, within
from anisoscope.studies.study import SIGNED, Claim, Context, Study, Verdict
from anisoscope.training.recipe import ClassifierRecipe

SOURCE = "Fosse et al. 2023, table 2"
SNIPPET, LITTLE = 110, 0.3
ROWS = ("nearest, same class", "nearest, other class", "median, other class", "farthest, same class")
NOT_WORDS = Claim(
    "direction is not shared words",
    f"How near an utterance lies to another of its class is little explained by the words they share (rank correlation "
    f"with the Jaccard overlap below {LITTLE}, mean over all representatives)",
    SOURCE,
    "near examples share few polarity words",
    bounds=SIGNED,
)
CROSSES = Claim(
    "some of the other class are near",
    "The nearest utterance of the other class is nearer than the farthest of the same class",
    SOURCE,
    "+ 0.93 against − 0.09",
    bounds=(-2.0, 2.0),
)


def measure(plan: Plan, context: Context) -> pd.DataFrame:
    """Examples and overlaps of the encoder fine-tuned on the first corpus."""
    first = [cell for cell in plan.fine_tuned() if cell.corpus == plan.names()[0]]
    return gather(first, plan, context, accuracies, examples)


def examples(trained: Trained) -> pd.DataFrame:
    """Records `example` (component: row, class and place in the test split; value: cosine to the representative, the
    first correct utterance of the first class) and `overlap` (rank correlation of cosine and shared words). Texts stay
    in the corpus: some may not be handed on.
    """
    return kept(trained, "example-places", lambda: as_records(pd.DataFrame(_rows(trained))))


def _rows(trained: Trained) -> list[dict[str, Any]]:
    found, utterances = final_vectors(trained), trained.examples(trained.plan.utterances)
    labels, unit = found["labels"], found["tuned"]
    able = np.flatnonzero((labels == 0) & (found["predicted"] == 0)).astype(np.int64)
    if not len(able):
        return []
    first = int(able[0])
    cosine = unit @ unit[first]
    names = trained.corpus.labels
    whole = corpus_of(ClassifierRecipe(corpus=trained.cell.corpus)).splits[TEST]
    chosen = [("representative", first, 1.0)]
    chosen += [(name, i, float(cosine[i])) for name, i in zip(ROWS, _chosen(cosine, labels, first), strict=True)]
    places = [whole.index(utterances[i]) for _, i, _ in chosen]
    rows: list[dict[str, Any]] = [
        {"metric": "example", "component": f"{row} | {names[int(labels[i])]} | {place}", "value": value}
        for (row, i, value), place in zip(chosen, places, strict=True)
    ]
    correlation = _overlap_correlation(
        unit, labels, able, [frozenset(w.lower() for w in e.all_words) for e in utterances]
    )
    return [*rows, {"metric": "overlap", "value": correlation, "n_units": len(labels)}]


def _chosen(cosine: Array, labels: Array, first: int) -> list[int]:
    """Utterances of `ROWS`; the representative is none of them."""
    same = np.flatnonzero((labels == labels[first]) & (np.arange(len(labels)) != first))
    other = np.flatnonzero(labels != labels[first])
    by_cosine = other[cosine[other].argsort(kind="stable")]
    nearest, farthest = same[cosine[same].argmax()], same[cosine[same].argmin()]
    return [int(nearest), int(by_cosine[-1]), int(by_cosine[len(by_cosine) // 2]), int(farthest)]


def _overlap_correlation(unit: Array, labels: Array, able: NDArray[np.int64], words: list[frozenset[str]]) -> float:
    """Mean over representatives of the rank correlation between cosine and Jaccard overlap inside their class."""
    found = []
    for r in able:
        same = np.array([i for i in np.flatnonzero(labels == labels[r]) if i != r])
        overlap = [len(words[i] & words[r]) / max(len(words[i] | words[r]), 1) for i in same]
        found.append(spearman(unit[same] @ unit[r], np.array(overlap)))
    return float(np.nanmean(found))


def judge(records: pd.DataFrame) -> Sequence[Verdict]:
    tests, near = [], []
    for corpus in corpora(records):
        rows, remark, named = select(sound(records), corpus=corpus), note(records, corpus), title(corpus)
        overlap = Seeds(records, select(rows, metric="overlap"), "metric")["overlap"]
        words = "rank correlation of cosine and overlap"
        near.append(within(NOT_WORDS, overlap, (-LITTLE, LITTLE), words, remark, named))
        of_row = select(rows, metric="example")
        of_row = of_row.assign(row=[str(text).partition(" | ")[0] for text in of_row["component"]])
        cosine = Seeds(records, of_row, "row")
        test = partial(of_seeds, reason=remark, subject=named)
        tests.append(test(CROSSES, cosine[ROWS[1]] - cosine[ROWS[3]], "difference of cosines"))
    return judged([*near, *tests])


def draw(records: pd.DataFrame) -> dict[str, ChartType]:
    """The table, of the first seed that is sound."""
    rows = select(sound(records), metric="example")
    if not len(rows):
        return {}
    rows = select(rows, seed=int(rows["seed"].min()), corpus=rows["corpus"].iloc[0])
    parts = rows["component"].str.split(" | ", n=2, expand=True, regex=False)
    texts = _texts(str(rows["corpus"].iloc[0]), parts[2].astype(int).tolist())
    data = pd.DataFrame({"row": parts[0], "of": parts[1], "text": texts, "value": rows["value"]})
    data["cosine"] = data["value"].map("{:.2f}".format).str.replace("-", "−")
    order = data["row"].tolist()
    base = alt.Chart(data).encode(y=alt.Y("row:N", sort=order, title=None, axis=alt.Axis(ticks=False, labelLimit=220)))
    columns = [("cosine", 0, INK), ("of", 44, MUTED), ("text", 124, INK)]
    marks = [
        base.mark_text(align="left", fontSize=11, color=color).encode(text=f"{name}:N", x=alt.value(x))
        for name, x, color in columns
    ]
    return {"table2": alt.layer(*marks).properties(width=760, height=26 * len(order))}


def _texts(corpus: str, places: list[int]) -> list[str]:
    """The beginnings of test utterances, or their places where the corpus is not at hand."""
    try:
        split = corpus_of(ClassifierRecipe(corpus=corpus)).splits[TEST]
    except CorpusError:
        return [f"test utterance {place} (its text needs the corpus)" for place in places]
    texts = [" / ".join(filter(None, (split[i].text, " ".join(split[i].second or ())))) for i in places]
    return [text if len(text) <= SNIPPET else text[: SNIPPET - 1].rstrip() + "…" for text in texts]


STUDY = Study(
    name="table2",
    paper="fosse2023",
    title="Utterances nearest to a representative and farthest from it",
    claims=(NOT_WORDS, CROSSES),
    settings=SETTINGS,
    measure=measure,
    judge=judge,
    draw=draw,
    caption=(
        "Cosine of the final [CLS] vector to that of the first correctly classified utterance of the first class, "
        "which is in no other row; first seed. Published: − .96, + .93, + .2, − .09, on the 38,000 reviews of Yelp "
        "polarity, with a cased tokenizer before an uncased model. Overlap: Jaccard index of the sets of words."
    ),
    needs=NEEDS,
)
