"""Compute the published forms of the entropy H on known attention rows.

They show how low and how high each form can be at the lengths of a corpus, and which plain H belongs to one published
in form C. Rows are drawn at random and nothing is trained: seconds.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from altair.typing import ChartType
from numpy.typing import NDArray
from scipy.special import entr, softmax

from anisoscope.charts import builders as charts
from anisoscope.data.encoding import build_tokenizer, encode
from anisoscope.data.labelled import TEST, take_balanced
from anisoscope.store import as_records, select
from anisoscope_papers.fosse2023.entry import Evidence
from anisoscope_papers.fosse2023.grid import NEEDS, SETTINGS, SHORT, TITLES, Grid
from anisoscope_papers.fosse2023.trained_cells import open_corpus
from anisoscope_papers.judge import Array, Test, judge_tests
from anisoscope_papers.study import Context, Study, Verdict, declare
from anisoscope_papers.training.classifier_parts import LONGEST
from anisoscope_papers.training.entropy_forms import FORMS, find_ends

DRAWN, ONE_WORD = "scores drawn from a normal law", "one word above the rest"
STEPS = (
    0,
    0.25,
    0.5,
    0.75,
    1,
    1.25,
    1.5,
    1.75,
    2,
    2.5,
    3,
    3.5,
    4,
    5,
    6,
    8,
    12,
    20,
    40,
    100,
)
"""How sharp: standard deviation of the scores before the softmax; by how much one word's exceeds the others'."""
# Keys of `entropy_forms.FORMS`: form A, as the authors report it, and form C.
PLAIN, AGAIN = "reported", "again"
ROUNDED = 5e-4
"""Half of the last digit that was published."""
DRAWS = 50
"""How often scores are drawn anew: what a number stands for differs from draw to draw, by as much as .04."""


def simulate_forms(
    kind: str, lengths: NDArray[np.int64], seed: int
) -> dict[str, Array]:
    """Return the mean entropy H of random attention rows, in plain form and in form C: {form: [sharpness]}.

    The forms are those of `training.entropy_forms`: plain is H(p) / ln(n − 1) of a row p; form C takes a second softmax
    of p first. One row is drawn for each length, with the same draw at every sharpness (`STEPS`).

    kind      how scores are drawn: from a normal law, or one word above the rest (`DRAWN`, `ONE_WORD`)
    lengths   numbers of tokens [utterance]
    """
    draw = np.random.default_rng(seed)
    steps = np.array(STEPS, dtype=np.float64)[:, None, None]
    total = {PLAIN: np.zeros(len(STEPS)), AGAIN: np.zeros(len(STEPS))}
    # Rows of one length at a time, as many as utterances have it.
    for n, count in zip(*np.unique(lengths, return_counts=True), strict=True):
        # The last word, but any other than [CLS] would give the same.
        one_word = np.broadcast_to(np.arange(n) == n - 1, (count, n)).astype(np.float64)
        scores = draw.normal(size=(count, n)) if kind == DRAWN else one_word
        rows = softmax(steps * scores, axis=2)  # [step, row, key]
        # Shorter ones count as 0, as in `entropy_forms`.
        if n > 2:
            total[PLAIN] += entr(rows).sum((1, 2)) / np.log(n - 1)
            # Form C leaves out [CLS], which is first, and takes a second softmax.
            again = softmax(rows[..., 1:], axis=2)
            total[AGAIN] += entr(again).sum((1, 2)) / np.log(n - 1)
    return {form: each / len(lengths) for form, each in total.items()}


def measure(plan: Grid, context: Context) -> pd.DataFrame:
    """Compute records of the forms of entropy H for each corpus of the grid (`plan`).

    `forms.floor`, `forms.ceiling` by form; `forms.simulated` by form, kind of row (`site`), step (`model`) and draw
    (`seed`).
    """
    parts = []
    for done, name in enumerate(plan.names(), 1):
        lengths = _read_lengths(name, plan)
        rows: list[dict[str, Any]] = [
            {"metric": "forms.length", "value": float(lengths.mean())}
        ]
        for form, both in find_ends(lengths).items():
            for end, value in zip(("floor", "ceiling"), both, strict=True):
                rows.append(
                    {"metric": f"forms.{end}", "component": form, "value": value}
                )
        # One word above the rest is no random row: a single draw has it all.
        for kind, draws in ((DRAWN, DRAWS), (ONE_WORD, 1)):
            for seed in range(draws):
                for form, means in simulate_forms(kind, lengths, seed).items():
                    where = {
                        "metric": "forms.simulated",
                        "site": kind,
                        "component": form,
                        "seed": seed,
                    }
                    for step, value in zip(STEPS, means.tolist(), strict=True):
                        rows.append(where | {"model": f"{step:g}", "value": value})
        frame = pd.DataFrame(rows)
        parts.append(
            as_records(
                frame.assign(seed=frame["seed"].fillna(0)),
                corpus=name,
                n_units=len(lengths),
            )
        )
        context.progress("corpora", done, len(plan.names()))
    found = pd.concat(parts, ignore_index=True)
    return found.assign(model=found["model"].fillna("any"))


def _read_lengths(name: str, plan: Grid) -> NDArray[np.int64]:
    """Return the numbers of tokens, with [CLS], of the utterances of table 4 in one corpus (`name`), shuffled,
    [utterance].
    """
    corpus = open_corpus(name, plan.limit)
    split = corpus.splits[SHORT if SHORT in corpus.splits else TEST]
    examples = take_balanced(split, plan.utterances, len(corpus.labels))
    lengths = encode(
        examples, build_tokenizer(corpus, max_length=LONGEST), LONGEST
    ).lengths
    # Shuffled: the order of the corpus must not matter.
    return np.random.default_rng(0).permutation(np.array(lengths))


def interpolate_draws(here: Evidence, kind: str) -> Array:
    """Return the plain entropy H of simulated attention rows whose H in form C is the published number, [draw, 3].

    Form C takes a second softmax of the attention row. The three columns are for the published number, and for the
    smallest and the largest number that round to it. NaN if none is published. `here`: the evidence on one corpus;
    `kind`: how the rows were drawn.
    """
    table = select(here.records, metric="forms.simulated", site=kind)
    published = here.numbers["published"] if here.numbers else np.nan
    asked = (published, published - ROUNDED, published + ROUNDED)
    found = []
    for _, draw in table.groupby("seed"):
        both = draw.pivot(
            index="model", columns="component", values="value"
        ).sort_values(AGAIN)
        # Both forms grow from sharp rows to uniform ones. np.interp needs sorted
        # numbers; one below that of the sharpest row has no plain H.
        found.append(np.interp(asked, both[AGAIN], both[PLAIN], left=np.nan))
    return np.array(found or [[np.nan] * 3])


def estimate_plain(here: Evidence, kind: str) -> tuple[float, float, float]:
    """Estimate the plain entropy H of attention from the entropy published in form C (with a second softmax).

    Returns (mean, low, high) over simulated draws: the middle 95 % of them, for every number that rounds to the
    published one. `here`: the evidence on one corpus; `kind`: how rows were drawn.
    """
    found = interpolate_draws(here, kind)
    # The lowest draws of the lowest number, and the highest of the highest.
    low = np.quantile(found[:, 1], 0.025)
    high = np.quantile(found[:, 2], 0.975)
    return float(found[:, 0].mean()), float(low), float(high)


def make_tests(here: Evidence) -> Iterator[Test]:
    """Yield the tests on form C of the entropy H, for which the authors took a second softmax of the attention row.

    Form C is never low, however sharp attention is; and the plain H behind a number published in form C lies where the
    claim says. They are decided by intervals alone, without p. `here`: the evidence on one corpus.
    """
    found = select(here.records, metric="forms.floor", component=AGAIN)
    floor, n = np.nan, 0
    if len(found):
        floor, n = float(found["value"].iloc[0]), int(found["n_units"].iloc[0])
    claim = here.claims["form C cannot look sharp"]
    inside = (float(claim.above), 1.0)
    # An identity does not vary: both ends are the number.
    yield Test(
        claim,
        claim.statistic,
        floor,
        floor,
        floor,
        n,
        inside=inside,
        subject=here.title,
        note=here.note,
    )
    for kind in (DRAWN, ONE_WORD) if here.numbers else ():
        for name in ("not uniform behind form C", "a change of form"):
            claim = here.claims[name]
            near = here.numbers["next"] if here.numbers else np.nan
            # The second claim has no fixed ends: it is about the number published for
            # the next λ.
            inside = claim.inside or (
                near - (claim.within or 0.0),
                near + (claim.within or 0.0),
            )
            words = f"{claim.statistic} (claim: {inside[0]:.3g} to {inside[1]:.3g}):"
            subject = f"{here.title}, {kind}"
            yield Test(
                claim,
                words,
                *estimate_plain(here, kind),
                inside=inside,
                subject=subject,
                note=here.note,
            )


def judge(records: pd.DataFrame) -> list[Verdict]:
    """Judge the claims on the forms of entropy, corpus by corpus."""
    tests: list[Test] = []
    for here in Evidence("forms", records).corpora:
        tests += make_tests(here)
    return judge_tests(tests)


def draw(records: pd.DataFrame) -> dict[str, ChartType]:
    """Draw the entropy H in form C (with a second softmax) against the plain H of the same rows.

    A line per corpus, a panel per kind of row. Returns {chart name: chart}.
    """
    found = select(records, metric="forms.simulated")
    if not len(found):
        return {}
    means = (
        found.groupby(["corpus", "site", "model", "component"], sort=False)["value"]
        .mean()
        .reset_index()
    )
    both = means.pivot(
        index=["corpus", "site", "model"], columns="component", values="value"
    ).reset_index()
    frame = both.rename(columns={AGAIN: "value", PLAIN: "plain"}).assign(
        low=np.nan, high=np.nan
    )
    frame["corpus"] = frame["corpus"].replace(TITLES)
    titles = (f"plain H ({FORMS[PLAIN]})", f"the same rows by form {FORMS[AGAIN]}")
    settings: dict[str, Any] = {
        "x": "plain",
        "series": "corpus",
        "panel": "site",
        "titles": titles,
        "band": False,
    }
    return {
        "forms": charts.trajectory(
            frame.sort_values("plain"), **settings, size=(680, 260)
        )
    }


STUDY: Study = declare(
    "fosse2023",
    "forms",
    settings=SETTINGS,
    needs=NEEDS,
    measure=measure,
    judge=judge,
    draw=draw,
)
