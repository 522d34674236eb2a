"""Ask whether words become similar through attention or through pooling.

The same models are trained on the same sentences: for one class of a sentence (read from [CLS], or from the mean of the
words), or for a tag of every word.
"""

from collections.abc import Iterator
from typing import Any

from altair.typing import ChartType

from anisoscope.charts import builders as charts
from anisoscope_papers.beyond.small_cells import small_study
from anisoscope_papers.beyond.small_models import EACH, FIRST, MEAN, TREEBANK, SmallGrid
from anisoscope_papers.fosse2023.entry import Evidence, Seeds, average_seeds
from anisoscope_papers.judge import Test

# `content`: without [CLS], which the pooling reads and which is no word.
WORDS: dict[str, Any] = {
    "metric": "intra_sequence",
    "site": "hidden",
    "token_policy": "content",
}
VALUES = WORDS | {"site": "value"}
AUC: dict[str, Any] = {"metric": "class_direction.auc", "component": None}
TOLD = {
    FIRST: "class from [CLS]",
    MEAN: "class from the mean",
    EACH: "tag of each word",
}


def group_last_layer(here: Evidence, **where: Any) -> Seeds:
    """Return a metric in the last layer, {(what the head reads, whether untrained): values [seed]}.

    What the head reads is `first` ([CLS]), `mean` (of the words) or `each` (every word). `here`: the evidence on one
    corpus; `where`: conditions on records, such as metric and site. Models that learnt nothing are left out.
    """
    rows = here.find(**where)
    return here.by(rows[rows["layer"] == rows["layers"]], "read", "untrained")


def make_tests(whole: Evidence) -> Iterator[Test]:
    """Yield the tests on what makes words similar: a class trained for the whole sentence (pooling), or a tag for each
    word.

    Compared is the mean cosine of words, and of values, in the last layer, also with step 0; and how well directions
    separate the tags. `whole`: the records of all corpora; a test has one number per seed of one corpus.
    """
    for here in whole.corpora:
        words, values, auc = (
            group_last_layer(here, **where) for where in (WORDS, VALUES, AUC)
        )
        yield here.test(
            "pooling makes words alike", words[FIRST, False] - words[EACH, False]
        )
        yield here.test(
            "a class of the sentence makes words alike",
            words[FIRST, False] - words[FIRST, True],
        )
        yield here.test(
            "a tag of each word does not", words[EACH, False] - words[EACH, True]
        )
        yield here.test(
            "the mean more than [CLS]", words[MEAN, False] - words[FIRST, False]
        )
        yield here.test(
            "pooling makes values alike", values[FIRST, False] - values[EACH, False]
        )
        yield here.test("one direction per tag", auc[EACH, False])
        yield here.test(
            "directions of tags are learnt", auc[EACH, False] - auc[EACH, True]
        )


def draw(whole: Evidence) -> dict[str, ChartType]:
    """Draw the similarity of a sentence's words by layer, for each thing that the model's head reads; at step 0 and the
    end.

    `whole`: the records of all corpora. Returns {chart name: chart}.
    """
    drawn: dict[str, ChartType] = {}
    for here in whole.corpora:
        rows = here.find(**WORDS)
        # At step 0 no head has had an effect yet: one line for all.
        what = rows["read"].map(TOLD).where(~rows["untrained"], "step 0")
        frame = average_seeds(rows.assign(what=what), "what", "layer")
        title = "similarity of the words of a sentence"
        drawn |= here.chart(
            charts.layer_curve, frame, series="what", title=title, size=(640, 240)
        )
    return drawn


def _make_grid(corpus: str = TREEBANK, **changes: Any) -> SmallGrid:
    """Return the grid of small models trained on `corpus`, with some of its settings changed."""
    # [CLS] against tags is the primary claim: these two are trained first.
    tasks = tuple((corpus, read) for read in (FIRST, EACH, MEAN))
    return SmallGrid(tasks, **{"layers": (3,), "steps": 400, **changes})


SETTINGS = {
    "quick": _make_grid(seeds=3, steps=120, limit=900, held=300),
    "paper": _make_grid(),
    "finished": _make_grid(train=False),
    "generated": _make_grid("synthetic:5"),
}
STUDY = small_study("pooling", settings=SETTINGS, tests=make_tests, draw=draw)
