"""Ask how much of an encoder's convergence (words becoming similar) comes from attention: parts are
added one by one.
"""

from collections.abc import Iterator
from typing import Any

import pandas as pd
from altair.typing import ChartType

from anisoscope.charts import builders as charts
from anisoscope_papers.beyond.pooling import WORDS
from anisoscope_papers.beyond.small_cells import small_study
from anisoscope_papers.beyond.small_models import BLOCKS, FIRST, SmallGrid
from anisoscope_papers.fosse2023.entry import Evidence, average_seeds
from anisoscope_papers.judge import Array, Test

STEPS = {
    "the norm": ("norm", "bare"),
    "its gain": ("gain", "norm"),
    "feed-forward": ("feed-forward", "norm"),
}
"""What is added, to what."""


def measure_convergence(here: Evidence, blocks: str) -> Array:
    """Return how much training raises the similarity of a sentence's words in the last layer, [seed].

    It is the value after training less that at step 0, averaged over models of two or more layers. `here`: the evidence
    on one corpus; `blocks`: what the models' blocks consist of (a key of `BLOCKS`).
    """
    rows = here.find(blocks=blocks, **WORDS)
    table = here.by(
        rows[(rows["layer"] == rows["layers"]) & (rows["layers"] > 1)],
        "layers",
        "untrained",
    )
    depths = sorted({layers for layers, _ in table})
    gained = [table[n, False] - table[n, True] for n in depths]
    # [depth, seed], averaged over depths; a missing depth is left out of the mean.
    return pd.DataFrame(gained or [table.nothing]).mean().to_numpy(float)


def make_tests(whole: Evidence) -> Iterator[Test]:
    """Yield the tests on how much each part of a block (norm, its gain, feed-forward) makes words more similar in
    training.

    Also that attention with a norm does most of what a whole encoder does. `whole`: the records of all corpora; a test
    has one number per seed of one corpus.
    """
    for here in whole.corpora:
        found = {blocks: measure_convergence(here, blocks) for blocks in BLOCKS}
        yield here.test("a whole encoder converges", found["whole"])
        yield here.test("attention alone converges", found["norm"])
        for added, (more, less) in STEPS.items():
            yield here.test(f"{added} adds to it", found[more] - found[less])
        # More than half of the encoder's: the difference to a half is above 0.
        yield here.test("most of it is attention's", found["norm"] - found["whole"] / 2)


def draw(whole: Evidence) -> dict[str, ChartType]:
    """Draw the similarity of words in the last layer against depth, a line for each kind of block, trained and at step
    0.

    `whole`: the records of all corpora. Returns {chart name: chart}.
    """
    drawn: dict[str, ChartType] = {}
    for here in whole.corpora:
        rows = here.find(**WORDS)
        rows = rows[rows["layer"] == rows["layers"]]
        when = rows["untrained"].map({True: "step 0", False: "trained"})
        frame = average_seeds(rows.assign(when=when), "blocks", "when", "layers")
        titles = ("layers", "similarity of the words of a sentence, last layer")
        settings: dict[str, Any] = {
            "x": "layers",
            "series": "blocks",
            "panel": "when",
            "titles": titles,
        }
        drawn |= here.chart(charts.trajectory, frame, size=(640, 240), **settings)
    return drawn


def _make_grid(**changes: Any) -> SmallGrid:
    """Return the grid of small models that this study trains, with some of its settings changed."""
    settings: dict[str, Any] = {
        "blocks": tuple(BLOCKS),
        "layers": (1, 2, 3, 4, 5),
        "seeds": 3,
        "steps": 600,
    }
    return SmallGrid((("synthetic:5", FIRST),), **settings | {"rate": 3e-3} | changes)


SETTINGS = {
    "quick": _make_grid(layers=(1, 3), steps=150, held=300),
    "paper": _make_grid(),
    "finished": _make_grid(train=False),
}
STUDY = small_study("whole", settings=SETTINGS, tests=make_tests, draw=draw)
