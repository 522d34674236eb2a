"""Ask how far a difference of accuracies generalises, if seeds, test utterances and splits are all random draws.

Each model says which test utterances it has right. A difference between two arms is then a table of seeds × utterances
(or splits × utterances, averaged over seeds). The variance of its mean is that of a crossed design:
`estimate_crossed_interval`.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pandas as pd
from altair.typing import ChartType
from jaxtyping import Float
from scipy import stats

from anisoscope.charts import builders as charts
from anisoscope.store import select
from anisoscope_papers.beyond.cells import (
    AFTERWARDS,
    RIGHT,
    declare_cell_study,
    unpack_bits,
)
from anisoscope_papers.beyond.positions import name_recipes
from anisoscope_papers.fosse2023.entry import Evidence
from anisoscope_papers.fosse2023.grid import LEARNED, TITLES, Grid
from anisoscope_papers.judge import Test, compute_equivalence_p
from anisoscope_papers.study import FEWEST

Table = Float[np.ndarray, "row utterance"]
NOT_NEEDED, NOT_USED = "not needed", "not used"
DRAWS = 2000


def estimate_crossed_interval(table: Table) -> tuple[float, float, float, float]:
    """Return (mean, low, high, degrees of freedom) of a table whose rows and columns are both drawn at random.

    The 95 % interval uses Var = (MS_rows + MS_columns − MS_rest) / (rows · columns), but at least the variance from
    either alone, and Student's t with the degrees of freedom of Satterthwaite (1946). NaN ends for a single row or
    column.
    """
    rows, columns = table.shape
    mean = float(table.mean())
    if rows < 2 or columns < 2:
        return mean, np.nan, np.nan, np.nan
    # Two factors without repeats: rows, columns, and their interaction, the rest.
    by_row = table.mean(1)
    by_column = table.mean(0)
    # Mean squares, as in an analysis of variance.
    of_rows = columns * float(np.var(by_row, ddof=1))
    of_columns = rows * float(np.var(by_column, ddof=1))
    rest = table - by_row[:, None] - by_column[None] + mean
    freedom = (rows - 1, columns - 1, (rows - 1) * (columns - 1))
    # The mean square of rows holds that of the rest too, and so does that of columns: it is subtracted once.
    squares = np.array([of_rows, of_columns, -float((rest**2).sum()) / freedom[2]])
    total = float(squares.sum())
    larger = max(of_rows, of_columns)
    if total > larger:
        # Satterthwaite: (Σ MS)² / Σ (MS² / degrees of freedom).
        degrees = total**2 / float((squares**2 / freedom).sum())
    else:
        # The rest is larger than the smaller of the two. The variance of one factor alone is the least there can be.
        total = larger
        degrees = freedom[0]
        if of_columns > of_rows:
            degrees = freedom[1]
    # Satterthwaite's formula may go below 1, where t has no useful quantile.
    degrees = max(float(degrees), 1.0)
    half = float(stats.t.ppf(0.975, degrees) * np.sqrt(total / table.size))
    return mean, mean - half, mean + half, degrees


def bootstrap_interval(
    table: Table, draws: int = DRAWS, seed: int = 0
) -> tuple[float, float, float]:
    """Return (mean, low, high) of a table [row, utterance] by a bootstrap of rows and columns together
    (multi-bootstrap, Sellam et al. 2022).

    `draws`: the number of resampled tables.
    """
    generator = np.random.default_rng(seed)
    rows, columns = table.shape
    # How often each row is drawn, over the number of rows: a resampled mean is a
    # product of these shares with the table, and no table is copied.
    of_rows = generator.multinomial(rows, np.full(rows, 1 / rows), draws) / rows
    of_columns = (
        generator.multinomial(columns, np.full(columns, 1 / columns), draws) / columns
    )
    means = np.einsum("dr,rc,dc->d", of_rows, table, of_columns, optimize=True)
    low, high = np.quantile(means, (0.025, 0.975))
    return float(table.mean()), float(low), float(high)


def read_correctness(records: pd.DataFrame) -> pd.DataFrame:
    """Decode, from the records, which test utterances each model classifies correctly; return a row per model.

    Columns: corpus, seed, split, recipe (kind of position codes), arm (how attention was trained), `what` (the
    attention it was tested with: its own, or uniform) and `right` (True or False by [utterance]).
    """
    # Bits are packed into bytes: how many are real must be known.
    counts = (
        select(records, metric="accuracy", component="test")
        .groupby("corpus")["n_units"]
        .first()
    )
    rows = name_recipes(select(records, metric=RIGHT))
    found = []
    for corpus, seed, split, recipe, arm, text in rows[
        ["corpus", "seed", "split", "recipe", "arm", "component"]
    ].itertuples(index=False):
        what, right = unpack_bits(text, int(counts[corpus]))
        found.append((corpus, int(seed), int(split), recipe, arm, what, right))
    return pd.DataFrame(
        found, columns=["corpus", "seed", "split", "recipe", "arm", "what", "right"]
    )


def compute_uniform_effects(
    records: pd.DataFrame,
) -> dict[tuple[str, str, str], dict[int, Table]]:
    """Compare each utterance's classification with uniform and with learned attention.

    Returns {(corpus, recipe, claim): {split: table [seed, utterance]}}. An entry is 1 if the utterance is classified
    correctly only with uniform attention, −1 if only with learned attention, else 0. Attention was uniform from the
    start of training, or made uniform after it, as the claim says.
    """
    models = read_correctness(records)
    found: dict[tuple[str, str, str], dict[int, Table]] = {}
    for names, group in models.groupby(["corpus", "recipe", "split"], sort=False):
        corpus = str(names[0])
        recipe = str(names[1])
        split = int(str(names[2]))
        # Of the test split with the attention that was trained.
        own = group[group["what"] == "test"]
        # Models of one seed begin with the same weights, so that differences are paired by seed.
        learned = own[own["arm"] == LEARNED].set_index("seed")["right"]
        others = {
            NOT_NEEDED: own[own["arm"] == "uniform"].set_index("seed")["right"],
            NOT_USED: group[
                (group["what"] == AFTERWARDS) & (group["arm"] == LEARNED)
            ].set_index("seed")["right"],
        }
        for claim, other in others.items():
            seeds = sorted(set(learned.index) & set(other.index))
            rows = []
            for seed in seeds:
                rows.append(other[seed].astype(float) - learned[seed].astype(float))
            if rows:
                found.setdefault((corpus, recipe, claim), {})[split] = np.array(rows)
    return found


def stack_splits(by_split: dict[int, np.ndarray]) -> np.ndarray:
    """Return one table [row, utterance] from the tables [seed, utterance] of each split.

    Rows are splits averaged over seeds; for fewer than three splits, they are the seeds of the first.
    """
    # With too few splits to say how splits differ, only seeds count as draws.
    if len(by_split) < FEWEST:
        return by_split[min(by_split)]
    return np.array([table.mean(0) for table in by_split.values()])


def make_tests(whole: Evidence) -> Iterator[Test]:
    """Yield the tests that uniform attention changes accuracy by less than the claim's margin, up or down.

    There is one per corpus, kind of position encoding and claim. One claim is about models trained with uniform
    attention, the other about models whose attention is made uniform after training. The interval counts both seeds
    (or splits) and test utterances as random draws. `whole`: the records of all corpora and seeds.
    """
    found = compute_uniform_effects(whole.records)
    for here in whole.corpora:
        for (corpus, recipe, name), by_split in found.items():
            if corpus != here.corpus:
                continue
            # As `Evidence.test`, with the variance of a crossed design, not of seeds.
            claim = here.claims[name]
            table = stack_splits(by_split)
            value, low, high, freedom = estimate_crossed_interval(table)
            margin = claim.within or 0.0
            of_rows = "seeds"
            if len(by_split) >= FEWEST:
                of_rows = "splits"
            drawn = f"{len(table)} {of_rows} × {table.shape[1]} utterances"
            statistic = f"{claim.statistic} (claim: {-margin:.3g} to {margin:.3g}):"
            note = "; ".join(filter(None, (drawn, here.note)))
            test = Test(
                claim,
                statistic,
                value,
                n=len(table),
                subject=f"{here.title}, {recipe}",
                note=note,
            )
            # One or two rows decide nothing: the number is shown without an interval.
            if len(table) < FEWEST:
                yield test
                continue
            inside = (-margin, margin)
            up, down = compute_equivalence_p(value, low, high, freedom, inside)
            yield replace(test, low=low, high=high, inside=inside, up=up, down=down)


def draw(whole: Evidence) -> dict[str, ChartType]:
    """Draw how uniform attention changes accuracy, with an interval for each way to count random draws.

    `whole`: the records of all corpora. Returns {chart name: chart}.
    """
    rows = []
    for (corpus, recipe, name), by_split in compute_uniform_effects(
        whole.records
    ).items():
        table = stack_splits(by_split)
        # Two equal columns have no variance between utterances: only that of rows is left.
        rows_alone = np.repeat(table.mean(1)[:, None], 2, 1)
        ways = {
            "crossed": estimate_crossed_interval(table)[:3],
            "bootstrap of both": bootstrap_interval(table),
            "seeds or splits alone": estimate_crossed_interval(rows_alone)[:3],
        }
        for way, (value, low, high) in ways.items():
            what = f"{TITLES.get(corpus, corpus)}, {recipe}, {name}: {way}"
            rows.append(
                {
                    "what": what,
                    "value": value,
                    "low": low,
                    "high": high,
                    "seeds": len(table),
                }
            )
    frame = pd.DataFrame(rows, columns=["what", "value", "low", "high", "seeds"])
    titles = ("uniform less learned", "")
    return whole.chart(
        charts.bars, frame, "crossed_1", category="what", titles=titles, size=(560, 17)
    )


STUDY = declare_cell_study(
    "crossed", Grid.by_split, tests=make_tests, draw=draw, utterances=True
)
