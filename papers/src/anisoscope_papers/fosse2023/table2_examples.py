"""Table 2: the utterances nearest to a representative and farthest from it, and whether shared words explain it."""

from collections.abc import Iterator

import numpy as np
import pandas as pd
from altair.typing import ChartType

from anisoscope.data.labelled import TEST
from anisoscope.errors import CorpusError
from anisoscope.store import as_records, select
from anisoscope_papers.fosse2023.entry import (
    Evidence,
    Measure,
    compute_spearman,
    declare_entry,
)
from anisoscope_papers.fosse2023.measurements import measure_once
from anisoscope_papers.fosse2023.trained_cells import Labels, Trained, open_corpus
from anisoscope_papers.judge import Array, Test
from anisoscope_papers.study_charts import draw_texts

SNIPPET = 110
ROWS = (
    "nearest, same class",
    "nearest, other class",
    "median, other class",
    "farthest, same class",
)
SEPARATED = " | "


def find_examples(trained: Trained) -> pd.DataFrame:
    """Find the utterances of table 2, and whether shared words explain the similarity to a representative.

    Records `example` (component: row, class and place in the test split; value: cosine to the representative, the first
    correct utterance of the first class) and `overlap` (rank correlation of cosine and shared words). Texts stay in the
    corpus: some may not be redistributed.
    """

    def make() -> pd.DataFrame:
        """Find the example utterances and the correlation with shared words."""
        unit, (labels, found) = trained.directions(), trained.classes
        # The paper's representative is a negative review: class 0.
        able = np.flatnonzero((labels == 0) & (found == 0))
        if not len(able):
            return as_records(pd.DataFrame())
        first = int(able[0])
        cosine = unit @ unit[first]
        utterances = trained.examples(trained.plan.utterances)
        names = trained.corpus.labels
        # Places count in the whole split, so that they mean the same with every limit.
        whole = open_corpus(trained.cell.corpus).splits[TEST]
        rows = []
        chosen = {"representative": first, **choose_rows(cosine, labels, first)}
        for row, i in chosen.items():
            place = str(whole.index(utterances[i]))
            component = SEPARATED.join((row, names[int(labels[i])], place))
            # Rounding would give .99999 for the representative itself.
            value = 1.0 if i == first else float(cosine[i])
            rows.append({"metric": "example", "component": component, "value": value})
        # Sets of words without case, for the Jaccard overlap |a ∩ b| / |a ∪ b|.
        words = [frozenset(w.lower() for w in e.all_words) for e in utterances]
        overlap = correlate_overlap(unit, labels, able, words)
        return as_records(
            pd.DataFrame(
                [*rows, {"metric": "overlap", "value": overlap, "n_units": len(labels)}]
            )
        )

    return measure_once(trained, "example-places", make)


def choose_rows(cosine: Array, labels: Labels, first: int) -> dict[str, int]:
    """Choose the utterance for each row of table 2: {name of the row: index of the utterance}.

    The rows are the nearest and the farthest utterance of the representative's own class, and the nearest and the
    middle one of the other classes.

    cosine   to the representative, [utterance]
    labels   class index, [utterance]
    first    index of the representative, which is not chosen
    """
    same = np.flatnonzero((labels == labels[first]) & (np.arange(len(labels)) != first))
    other = np.flatnonzero(labels != labels[first])
    # From the least similar to the most: nearest last, the median in the middle.
    other = other[cosine[other].argsort(kind="stable")]
    found = (
        same[cosine[same].argmax()],
        other[-1],
        other[len(other) // 2],
        same[cosine[same].argmin()],
    )
    return dict(zip(ROWS, map(int, found), strict=True))


def correlate_overlap(
    unit: Array, labels: Labels, able: Labels, words: list[frozenset[str]]
) -> float:
    """Return the rank correlation between the cosine of two utterances and the Jaccard overlap of their words.

    It is computed between a representative and the others of its class, then averaged over representatives.

    unit     unit vectors [utterance, dim]
    labels   class index [utterance]
    able     indices of the representatives
    words    the words of each utterance
    """
    found = []
    for r in able:
        # Within the class: across classes both cosine and words differ by the class.
        same = np.array([i for i in np.flatnonzero(labels == labels[r]) if i != r])
        overlap = [
            len(words[i] & words[r]) / max(len(words[i] | words[r]), 1) for i in same
        ]
        found.append(compute_spearman(unit[same] @ unit[r], np.array(overlap)))
    return float(np.nanmean(found))


def make_tests(whole: Evidence) -> Iterator[Test]:
    """Yield the tests of table 2: shared words do not explain which [CLS] vectors point the same way.

    And the nearest utterance of the other class is nearer to the representative than the farthest of its own. `whole`:
    the records of all corpora; a test has one number per seed of one corpus.
    """
    for here in whole.corpora:
        yield here.test(
            "direction is not shared words",
            here.table("metric", metric="overlap")["overlap"],
        )
        rows = here.find(metric="example")
        cosine = here.by(
            rows.assign(row=rows["component"].str.split(SEPARATED, regex=False).str[0]),
            "row",
        )
        difference = cosine["nearest, other class"] - cosine["farthest, same class"]
        yield here.test("some of the other class are near", difference)


def draw(whole: Evidence) -> dict[str, ChartType]:
    """Draw table 2 (utterances near to and far from a representative), for the first seed that did not collapse.

    `whole`: the records of all corpora. Returns {chart name: chart}.
    """
    rows = whole.find(metric="example")
    if not len(rows):
        return {}
    corpus = str(rows["corpus"].iloc[0])
    # A table of texts has no mean over seeds.
    rows = select(rows, seed=int(rows["seed"].min()), corpus=corpus)
    frame = rows["component"].str.split(SEPARATED, n=2, expand=True, regex=False)
    frame = frame.set_axis(["row", "of", "place"], axis=1)
    frame["text"] = _read_texts(corpus, frame["place"].astype(int).tolist())
    frame["cosine"] = rows["value"].map("{:.2f}".format).str.replace("-", "−")
    columns = {"cosine": 0, "of": 44, "text": 124}
    return whole.chart(
        draw_texts, frame, category="row", columns=columns, muted="of", width=760
    )


def _read_texts(corpus: str, places: list[int]) -> list[str]:
    """Return the beginnings of test utterances, by their indices in the test split (`places`); the indices if the
    corpus is unavailable.
    """
    try:
        split = open_corpus(corpus).splits[TEST]
    except CorpusError:
        return [
            f"test utterance {place} (its text needs the corpus)" for place in places
        ]
    texts = []
    for i in places:
        # Of a pair both texts.
        parts = (split[i].text, " ".join(split[i].second or ()))
        text = " / ".join(filter(None, parts))
        if len(text) > SNIPPET:
            text = text[: SNIPPET - 1].rstrip() + "…"
        texts.append(text)
    return texts


STUDY = declare_entry(
    "table2",
    measure=Measure(
        lambda plan: [
            cell for cell in plan.fine_tuned() if cell.corpus == plan.names()[0]
        ],
        (find_examples,),
    ),
    tests=make_tests,
    draw=draw,
)
