"""Section 3: how similar the tokens of a sentence are, layer by layer, before and after fine-tuning."""

from collections.abc import Iterator

import numpy as np
import pandas as pd
from altair.typing import ChartType

from anisoscope.charts import builders as charts
from anisoscope.store import select
from anisoscope_papers.fosse2023.entry import (
    Evidence,
    Measure,
    average_seeds,
    declare_entry,
)
from anisoscope_papers.fosse2023.grid import BEFORE, CONTROL, TUNED, Grid
from anisoscope_papers.fosse2023.measurements import measure_geometry
from anisoscope_papers.judge import Array, Test
from anisoscope_papers.study import Compared

# Section 3: most of BERT's growth is in the last four of twelve layers.
LATE = 1 / 3


def _select_similarities(here: Evidence, family: str) -> pd.DataFrame:
    """Return the records of the mean cosine of tokens inside utterances, for hidden states of one family of models.

    `here`: the evidence on one corpus.
    """
    return here.find(
        family=family, metric="intra_sequence", site="hidden", token_policy="all"
    )


def _select_curve(here: Evidence, family: str) -> Array:
    """Return the mean cosine of tokens inside utterances for one family of models, [seed, layer].

    `here`: the evidence on one corpus.
    """
    table = here.by(_select_similarities(here, family), "layer")
    # [seed, layer]. Without records two columns of NaN: a first and a last layer.
    return np.stack(list(table.values()) or [table.nothing] * 2, 1)


def measure_late_share(curve: Array) -> Array:
    """Return which share of the growth of a curve [seed, layer], from first to last layer, lies in the last third,
    [seed].
    """
    depth = curve.shape[1] - 1
    # At least one layer, in encoders of one or two.
    start = depth - max(1, round(depth * LATE))
    grown = curve[:, -1] - curve[:, 0]
    # Without growth there is no share of it.
    whole = np.where(grown > 0, grown, np.nan)
    return np.asarray((curve[:, -1] - curve[:, start]) / whole)


def make_tests(whole: Evidence) -> Iterator[Test]:
    """Yield the tests of section 3: fine-tuning makes the tokens of a sentence similar in the last layer.

    They become more similar than in an encoder with random weights, and than in the first layer's input; most of that
    growth is in the last third of the layers. `whole`: the records of all corpora; a test has one number per seed of
    one corpus.
    """
    for here in whole.corpora:
        before = _select_curve(here, BEFORE)
        after = _select_curve(here, TUNED)
        yield here.test("converges after fine-tuning", after[:, -1] - before[:, -1])
        # Tokens are alike in an encoder with random weights, too: this is the control.
        drawn = _select_curve(here, CONTROL)
        yield here.test("more than at random", after[:, -1] - drawn[:, -1])
        yield here.test("grows with depth", after[:, -1] - after[:, 0])
        yield here.test("most in the last layers", measure_late_share(after))


def compare(here: Evidence) -> Iterator[Compared]:
    """Compare the similarity of tokens in the first and the last layer with the published values, before and after
    fine-tuning.

    `here`: the evidence on one corpus. Before fine-tuning there are no seeds, hence one number.
    """
    # Every seed measured the same pre-trained encoder: one row of each layer is kept.
    before = _select_similarities(here, BEFORE).drop_duplicates("layer")
    for when, rows in (
        ("before", before),
        ("after", _select_similarities(here, TUNED)),
    ):
        curve = here.numbers[when]
        for end, layer, published in (
            ("input", 0, curve[0]),
            ("last layer", rows["layer"].max(), curve[-1]),
        ):
            yield here.compared(
                f"{end} {when} fine-tuning", published, select(rows, layer=layer)
            )


def draw(whole: Evidence) -> dict[str, ChartType]:
    """Draw the similarity of tokens by layer, before and after fine-tuning, a panel per corpus.

    BERT's published curve is stretched to the same depth. `whole`: the records of all corpora. Returns {chart name:
    chart}.
    """
    curves: list[pd.DataFrame] = []
    for here in whole.corpora:
        found = {
            name: average_seeds(_select_similarities(here, name), "layer")
            for name in (CONTROL, BEFORE, TUNED)
        }
        if here.numbers and any(map(len, found.values())):
            published = here.numbers["after"]
            # BERT has 12 layers, the encoder here 6: both curves end at one place.
            layers = np.linspace(
                0, max(curve["layer"].max() for curve in found.values()), len(published)
            )
            found["BERT fine-tuned, published"] = pd.DataFrame(
                {"layer": layers, "value": published}
            )
        for name, curve in found.items():
            if len(curve):
                curves.append(curve.assign(model=name, corpus=here.corpus))
    frame = pd.concat(curves, ignore_index=True) if curves else pd.DataFrame()
    words = "intra-sentence similarity"
    return whole.chart(
        charts.layer_curve,
        frame,
        panel="corpus",
        title=words,
        size=(680, 220),
        columns=3,
    )


STUDY = declare_entry(
    "sec3",
    measure=Measure(Grid.fine_tuned, (measure_geometry,), measure_geometry),
    tests=make_tests,
    draw=draw,
    compare=compare,
)
