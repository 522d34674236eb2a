"""Ask when attention sinks emerge, and what asks for them, of small models with three forms of attention.

Settings `long` train them (`small_models.py`), `finished` reads what was trained, `paper` measures the Pythias of the
hub along their training: every one of them counts as a seed. What needs another form of attention, or norms of the
first token's keys and values, is undecided there.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from altair.typing import ChartType

from anisoscope.charts import builders as charts
from anisoscope.measure.settings import Settings
from anisoscope.models.series import expand
from anisoscope.runs.job import Job
from anisoscope.runs.run import run
from anisoscope.store import as_records, select
from anisoscope_papers.beyond.trained import (
    LOSS,
    SEEN,
    SKILL,
    Experiment,
    measure as measure_cells,
)
from anisoscope_papers.gu2025.small_models import (
    ARMS,
    BASE,
    BRIEF,
    EPSILON,
    FULL,
    SIGMOID,
)
from anisoscope_papers.judge import (
    Test,
    average_over_seeds,
    judge_tests,
    make_test_of_seeds,
    make_verdict_without_test,
)
from anisoscope_papers.needs import Need, make_corpus_need
from anisoscope_papers.study import Claim, Context, Verdict, declare, read_claims

PAPER = "gu2025"
LEARNT = 0.05
"""Skill from which on a model is said to have learnt: a twentieth of what there is to know beyond the unigrams."""
SHARE, RATE = "sinks.first", "sinks.first_rate"
KEPT = ("sinks.", LOSS, SKILL)
"""How the metrics begin that the study keeps of its cells; the others are of `machina2024`."""


@dataclass(frozen=True)
class Published:
    """Published models along their training, each of which counts as a seed.

    sizes   of the Pythias, {name: parameters}
    steps   of the checkpoints: the start, about a tenth of training, and its end
    """

    sizes: Mapping[str, float]
    steps: tuple[int, ...] = (0, 14000, 143000)
    corpus: str = "wikitext-103"
    sequences: int = 100
    window: int = 64

    def subjects(self) -> Iterator[tuple[int, int, str]]:
        """Yield (number of the model, step, name with revision) of every checkpoint."""
        # Every size is a training of its own: it counts as a seed.
        for number, size in enumerate(self.sizes):
            pattern = ",".join(str(step) for step in self.steps)
            for found in expand(f"EleutherAI/pythia-{size}@step{{{pattern}}}"):
                yield number, found.step, found.subject

    def measure(
        self, metrics: tuple[str, ...], context: Context
    ) -> Iterator[tuple[int, int, pd.DataFrame]]:
        """Measure metrics of every checkpoint. Yield (number of the model, step, the tool's records)."""
        for number, step, subject in self.subjects():
            job = Job(
                subject,
                corpus=self.corpus,
                settings=Settings(metrics=metrics, tokens=("all",), sample=0),
                sequences=self.sequences,
                max_length=self.window,
                device=context.device,
            )
            yield number, step, run(job, root=context.cache, resume=True).records

    def needs(self) -> tuple[Need, ...]:
        """Return what must be downloaded: every checkpoint, and the corpus."""
        several = len(self.steps)
        tokens = self.sequences * self.window
        models = (
            Need(
                f"EleutherAI/pythia-{name}, {several} checkpoints",
                several * size * 2e-9,
                "apache-2.0",
                work={f"pythia-{name} sinks": several * tokens * size * 2e-12},
            )
            for name, size in self.sizes.items()
        )
        return (*models, make_corpus_need(self.corpus))


PYTHIAS = Published(
    {
        "14m": 14e6,
        "70m": 70e6,
        "160m": 162e6,
        "410m": 405e6,
        "1b": 1.01e9,
        "1.4b": 1.41e9,
    }
)
SETTINGS: dict[str, Experiment | Published] = {
    "quick": Experiment((BASE, SIGMOID), 2, BRIEF),
    "long": Experiment(ARMS, 6, FULL),
    "finished": Experiment(ARMS, 6, FULL, train=False),
    "paper": PYTHIAS,
}


def measure(settings: Experiment | Published, context: Context) -> pd.DataFrame:
    """Return the records of sinks and losses of all models: trained here, read from the cache, or published."""
    if isinstance(settings, Published):
        return measure_published(settings, context)
    records = measure_cells(settings, context)
    return records[records["metric"].astype(str).str.startswith(KEPT)].reset_index(
        drop=True
    )


def measure_published(published: Published, context: Context) -> pd.DataFrame:
    """Return the sinks of published checkpoints, named as those of models trained here."""
    found = published.measure(("sinks",), context)
    parts = [rename_records(records, step, number) for number, step, records in found]
    return pd.concat([as_records(pd.DataFrame()), *parts], ignore_index=True)


def rename_records(records: pd.DataFrame, step: int, seed: int) -> pd.DataFrame:
    """Return the tool's records of sinks under the names of this study: of every head, for one step and seed."""
    # The tool gives the rate for several bounds, named without the leading 0: `.3`.
    line = f"{EPSILON:g}".removeprefix("0")
    of_heads = records[records["head"].notna()]
    rate = select(of_heads, metric="sinks.first_rate", component=line).assign(
        metric=RATE
    )
    share = select(of_heads, metric="sinks.mass", component="first").assign(
        metric=SHARE
    )
    both = pd.concat([rate, share], ignore_index=True)
    # The tool's intervals are over texts. Here the unit is the model, so that they are
    # left out.
    return as_records(
        both.assign(
            component=None, model=BASE, step=step, seed=seed, low=np.nan, high=np.nan
        )
    )


def has_trained_model(settings: Experiment | Published, _cache: Path) -> bool:
    """Return whether any model of the study was trained here."""
    # Published models need no training here.
    if isinstance(settings, Published):
        return True
    return any(
        (settings.recipe.folder(*cell) / SEEN).exists() for cell in settings.cells()
    )


def select_heads(
    records: pd.DataFrame, metric: str, arm: str, step: int
) -> pd.DataFrame:
    """Return a metric of an arm (form of attention) at a step: [seed] × [(layer, head)], or one column if it has no
    heads.
    """
    rows = select(records, metric=metric, model=arm)
    # Losses have neither layer nor head, and a pivot would drop them: they get 0 for
    # both.
    rows = (
        rows[rows["step"] == step]
        .astype({"layer": float, "head": float})
        .fillna({"layer": 0.0, "head": 0.0})
    )
    return rows.pivot_table(index="seed", columns=["layer", "head"], values="value")


def average_heads(records: pd.DataFrame, metric: str, arm: str, step: int) -> pd.Series:
    """Return a metric of an arm (form of attention) at a step by seed, mean over its heads."""
    return select_heads(records, metric, arm, step).mean(axis=1)


def compute_values(claim: Claim, records: pd.DataFrame, arm: str) -> pd.Series:
    """Return the number of a claim on one arm (form of attention), by seed: its metric at the end of training.

    It depends on the claim's field `against`: `zero`: the metric itself; `start`: at the first step instead; `tenth`:
    its change since a tenth of training; `sink heads`: in heads with a sink only; `text`: minus the sink rate on text;
    an arm, such as `base`: minus that of the arm.
    """
    steps = np.sort(
        records.loc[records["metric"] == RATE, "step"].dropna().unique().astype(int)
    )
    last = int(steps[-1])
    if claim.against == "start":
        return average_heads(records, claim.metric, arm, int(steps[0]))
    ends = average_heads(records, claim.metric, arm, last)
    if claim.against == "tenth":
        # The checkpoint nearest to a tenth of training.
        tenth = int(steps[np.abs(steps - last / 10).argmin()])
        return ends - average_heads(records, claim.metric, arm, tenth)
    if claim.against == "sink heads":
        heads, share = (
            select_heads(records, name, arm, last) for name in (claim.metric, SHARE)
        )
        # The mean over heads with a sink; NaN for a seed that has none.
        return heads.where(share > EPSILON).mean(axis=1)
    if claim.against == "text":
        return ends - average_heads(records, RATE, arm, last)
    if claim.against == "zero":
        return ends
    return ends - average_heads(records, claim.metric, claim.against, last)


def find_unlearnt(records: pd.DataFrame, arms: tuple[str, ...]) -> set[int]:
    """Return the seeds for which a model of one of these arms (forms of attention) has learnt too little to be judged.

    records   of all models, with their skill at the end of training
    """
    skill = select(records, metric=SKILL, model=arms)
    skill = skill[skill["step"] == skill["step"].max()]
    return {int(seed) for seed in skill.loc[skill["value"] < LEARNT, "seed"]}


def explain_untestable(claim: Claim, records: pd.DataFrame) -> str:
    """Return why a claim on what removes sinks cannot be tested: `base` has none. "" if it can."""
    if claim.premise is None:
        return ""
    last = int(records.loc[records["metric"] == RATE, "step"].max())
    rate = float(average_heads(records, RATE, BASE, last).mean())
    if rate > claim.premise:
        return ""
    return f"{BASE} has a sink rate of {rate:.3f}, and a test needs {claim.premise:g}"


def make_claim_test(claim: Claim, records: pd.DataFrame) -> Test | None:
    """Return the test of a claim; None if no model that it is about was measured."""
    (arm,) = claim.systems
    values = compute_values(claim, records, arm).dropna(how="all")
    # That no head has a sink is an answer, and is shown as such.
    if not len(values) and claim.against != "sink heads":
        return None
    # A claim that compares two arms needs both to have learnt.
    others = (
        ()
        if claim.against in ("zero", "start", "tenth", "text", "sink heads")
        else (claim.against,)
    )
    known = values.astype(float)
    # An untrained model has learnt nothing, and need not.
    if claim.against != "start":
        known = known.where(~known.index.isin(find_unlearnt(records, (arm, *others))))
    nothing = explain_untestable(claim, records)
    test = make_test_of_seeds(
        claim, np.asarray(known, dtype=np.float64), reason=nothing
    )
    # Where there are no sinks, that an arm has none either proves nothing: the number
    # is shown without p.
    if nothing:
        return replace(test, up=np.nan, down=np.nan, against=np.nan)
    return test


def judge(records: pd.DataFrame) -> list[Verdict]:
    """Judge every claim on sinks, from one number per seed; a claim whose models were not measured is undecided."""
    tests = []
    missing = []
    for claim in read_claims(PAPER, "sinks").values():
        measured = len(select(records, metric=claim.metric, model=claim.systems)) > 0
        test = make_claim_test(claim, records) if measured else None
        if test is None:
            why = f"no {claim.metric} of {', '.join(claim.systems)} in these settings"
            missing.append(
                make_verdict_without_test(claim, None, "not measured", reason=why)
            )
        else:
            tests.append(test)
    return [*judge_tests(tests), *missing]


def draw(records: pd.DataFrame) -> dict[str, ChartType]:
    """Draw the sink rate, the share of the first key and the loss along training, by form of attention."""
    titles = {
        RATE: "sink rate of the first key",
        SHARE: "share of the first key",
        LOSS: "loss (nats)",
    }
    charted = {}
    for metric, title in titles.items():
        rows = select(records, metric=metric)
        if rows.empty:
            continue
        keys = ["metric", "model", "step", "seed"]
        cells = rows.groupby(keys, sort=False)["value"].mean().reset_index()
        course: Any = average_over_seeds(cells, "metric", "model", "step")
        charted[metric.replace(".", "_")] = charts.trajectory(
            course, titles=("step", title), zero=metric != LOSS
        )
    return charted


STUDY = declare(
    PAPER,
    "sinks",
    settings=SETTINGS,
    measure=measure,
    judge=judge,
    draw=draw,
    needs=PYTHIAS.needs(),
    at_hand=has_trained_model,
)
