"""Table 1: accuracy of a fine-tuned encoder and of one layer of self-attention."""

from collections.abc import Iterator
from dataclasses import replace

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
from anisoscope_papers.fosse2023.grid import FEWER, OWN, PUBLISHED, SHORT, TUNED
from anisoscope_papers.judge import Array, Test
from anisoscope_papers.study import Compared

MODELS = {"fine-tuned encoder": TUNED, "one attention layer": OWN}


def _select_shares(
    here: Evidence, family: str, metric: str = "accuracy", split: str = "test"
) -> pd.DataFrame:
    """Return the records of a metric on one split for a family of classifiers, including collapsed ones.

    `here`: the evidence on one corpus; `metric`: `accuracy` or `majority`.
    """
    return select(here.records, family=family, metric=metric, component=split)


def make_tests(whole: Evidence) -> Iterator[Test]:
    """Yield the tests of table 1: a fine-tuned encoder is more accurate than the majority rate and than one layer of
    attention.

    Also that one layer is as accurate as published; on e-SNLI, extrapolated to as many training pairs. `whole`: the
    records of all corpora; a test has one number per seed of one corpus.
    """
    for here in whole.corpora:
        # Collapsed classifiers count here: accuracy is what a recipe leads to.
        fine, one = (
            here.by(_select_shares(here, family), "metric")["accuracy"]
            for family in (TUNED, OWN)
        )
        rate = here.by(_select_shares(here, TUNED, "majority"), "metric")["majority"]
        yield here.test("fine-tuned above majority", _drop_missing(fine - rate))
        yield here.test("fine-tuned above one layer", _drop_missing(fine - one))
        if here.numbers:
            like = here.by(
                _select_shares(here, OWN, split=_choose_split(here)), "metric"
            )["accuracy"]
            test = here.test("one layer as published", like, around=here.numbers[1])
            # On e-SNLI ours has a thirtieth of the pairs: shown, not judged. The claim
            # below draws on instead.
            yield replace(test, apart=here.apart)
            if PUBLISHED[here.corpus] == PAIRED:
                yield here.test(
                    "one layer of as many pairs",
                    extrapolate_accuracy(here),
                    around=here.numbers[1],
                )


PAIRED = "esnli"
PAIRS = {"trained on": 18_000, "published": 549_361}
"""Pairs of e-SNLI that the own models are trained on, and the paper's."""
FEWEST = 3
"""Sizes that a line is drawn through."""


def extrapolate_accuracy(here: Evidence) -> Array:
    """Extrapolate the accuracy of one layer to as many training pairs as the paper's, [seed].

    A line in log n is fitted through all sizes, over seeds that have learnt something at each. `here`: the evidence on
    one corpus.
    """
    rows = here.find(family=[FEWER, OWN], metric="accuracy", component="test")
    # The name of a model that is trained on all pairs holds no number of examples.
    sizes = rows["examples"].fillna(PAIRS["trained on"])
    table = here.by(rows.assign(examples=sizes), "examples")
    if len(table) < FEWEST:
        return table.nothing
    known = np.stack(list(table.values()))  # [size, seed]
    # A seed without one of the sizes would get a steeper or flatter line.
    seeds = ~np.isnan(known).any(0)
    if not seeds.any():
        return table.nothing
    # [slope or intercept, seed]
    line = np.polyfit(np.log(list(table)), known[:, seeds], 1)
    return np.asarray(line[0] * np.log(PAIRS["published"]) + line[1])


def _drop_missing(difference: Array) -> Array:
    """Drop the seeds without a difference [seed]: fewer encoders are fine-tuned than attention models trained."""
    # A seed that has no encoder is no missing number of this claim.
    known = difference[~np.isnan(difference)]
    if len(known):
        return known
    return np.array([np.nan])


def compare(here: Evidence) -> Iterator[Compared]:
    """Compare every accuracy of table 1 with ours on one corpus (`here`); one layer on the paper's test population."""
    rate = _read_majority(here)
    remark = f"majority {rate[0]:.3f}" if rate else ""
    fine, one = (remark + _describe_collapsed(here, family) for family in (TUNED, OWN))
    yield here.compared(
        "fine-tuned encoder", here.numbers[0], _select_shares(here, TUNED), fine
    )
    split = _choose_split(here)
    # The same population as the paper's number: reviews of 50 words.
    if split == SHORT:
        one += ", on reviews of 50 words"
    yield here.compared(
        "one attention layer",
        here.numbers[1],
        _select_shares(here, OWN, split=split),
        one,
    )


def _describe_collapsed(here: Evidence, family: str) -> str:
    """Say how many classifiers of a family collapsed (learnt nothing); in this table they are counted among the others.

    `here`: the evidence on one corpus.
    """
    count = len(select(here.records, family=family, metric="collapsed", value=1.0))
    if count:
        return f", {count} collapsed and among them"
    return ""


def _choose_split(here: Evidence) -> str:
    """Return the split on which one layer's accuracy was published: 91.3 % are 274 of the 300 reviews of 50 words.

    `here`: the evidence on one corpus.
    """
    if len(_select_shares(here, OWN, split=SHORT)):
        return SHORT
    return "test"


def _read_majority(here: Evidence) -> list[float]:
    """Return the majority rate of the test split of one corpus (`here`) in a list; empty if it is not recorded."""
    # It is the same for every classifier: the first row has it.
    rows = select(here.records, metric="majority", component="test")
    return [float(x) for x in rows["value"].iloc[:1]]


def _list_bars(here: Evidence, place: int, family: str) -> list[pd.DataFrame]:
    """Return the bars of one family of models on one corpus (`here`): our mean over seeds, then published numbers.

    `place`: the position of the family in the rows of the paper's table.
    """
    ours = average_seeds(
        _select_shares(here, family).assign(what=f"{here.title}, ours"), "what"
    )
    others = []
    if here.numbers:
        others.append((f"{here.title}, published", here.numbers[place]))
    for rate in _read_majority(here):
        others.append((f"{here.title}, majority rate", rate))
    return [ours, pd.DataFrame(others, columns=["what", "value"])]


def draw(whole: Evidence) -> dict[str, ChartType]:
    """Draw accuracies by corpus, ours and published, with the majority rate; a panel each for encoder and one layer.

    `whole`: the records of all corpora. Returns {chart name: chart}.
    """
    parts = []
    if len(select(whole.records, metric="accuracy")):
        for here in whole.corpora:
            for place, (name, family) in enumerate(MODELS.items()):
                for bars in _list_bars(here, place, family):
                    parts.append(bars.assign(panel=name))
    frame = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
    titles = ("accuracy", "")
    return whole.chart(
        charts.bars,
        frame,
        category="what",
        panel="panel",
        titles=titles,
        size=(560, 20),
    )


STUDY = declare_entry(
    "table1",
    measure=Measure(
        lambda plan: [
            *plan.fine_tuned(),
            *(c for c in plan.by_depth() if c.layers == 1),
            *plan.by_examples(),
        ]
    ),
    tests=make_tests,
    draw=draw,
    compare=compare,
)
