"""Share what tables and figures have in common: the paper's claims, records by corpus and seed, intervals, wording.

A collapsed classifier (accuracy not above the majority rate) has learnt nothing, and its vectors coincide for that
reason alone. It is left out of every claim, and the note counts it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from altair.typing import ChartType
from scipy import stats

from anisoscope.store import select
from anisoscope.sums.jackknife import estimate_over_seeds
from anisoscope_papers.fosse2023.grid import (
    NEEDS,
    PUBLISHED,
    SETTINGS,
    TITLES,
    Cell,
    Grid,
    add_options,
)
from anisoscope_papers.fosse2023.measurements import KEYS, Look, gather, read_accuracies
from anisoscope_papers.fosse2023.trained_cells import TOLD, iter_untrained, name_folder
from anisoscope_papers.judge import (
    Array,
    Test,
    judge_tests,
    look_up_bounds,
    make_test_of_seeds,
)
from anisoscope_papers.study import (
    Compared,
    Context,
    Study,
    declare,
    read_claims,
    read_published,
)

LOST = {
    "missing": "{} of the planned classifiers not trained yet",
    "diverged": "{} diverged: their loss was not finite",
    "collapsed": "{} collapsed and left out",
}
PAPER = "fosse2023"
CELL = ["model", "corpus", "seed"]
DRAWN_FROM = 3
"""Seeds from which on charts show an interval: that of two is wider than any chart."""


class Seeds(dict[Any, Array]):
    """Values of one quantity by key: {value of a column, or tuple of several columns: [seed]}.

    A missing key gives NaN for every seed.
    """

    def __init__(self, found: Mapping[Any, Array], nothing: Array) -> None:
        """Hold the values `found` by key; a missing key gives `nothing`, NaN for every seed."""
        super().__init__(found)
        self.nothing = nothing

    def __missing__(self, _key: Any) -> Array:
        """Return NaN for every seed."""
        return self.nothing


class Evidence:
    """The records of a study on one corpus, or on all of them, with helpers to test claims on them.

    records  the long table of results, for every seed
    numbers  the published numbers; None for a corpus that is not the paper's
    sound    the records without those of collapsed classifiers
    note     how many classifiers these records lack, or leave out
    meant    {corpus: the paper's corpus that it replaces}, for generated corpora
    lost     words for what the note counts
    """

    meant: Mapping[str, str] = PUBLISHED
    lost: Mapping[str, str] = LOST

    def __init__(
        self, study: str, records: pd.DataFrame, corpus: str = "", paper: str = PAPER
    ) -> None:
        """Read the records of a study; `corpus` is empty for all corpora, `paper` is the one that states the claims."""
        self.study, self.records, self.corpus, self.paper = (
            study,
            records,
            corpus,
            paper,
        )
        self.claims, self.published = (
            read_claims(paper, study),
            read_published(paper)[study],
        )
        # An empty name of a corpus means all of them.
        self.title = TITLES.get(corpus, corpus) or "all corpora"
        self.numbers = self.published.get("numbers", {}).get(corpus)
        self.seeds = sorted(int(seed) for seed in records["seed"].dropna().unique())

    @cached_property
    def sound(self) -> pd.DataFrame:
        """The records without those of collapsed classifiers."""
        # All rows of a collapsed classifier go: of its model, corpus and seed.
        cells = pd.MultiIndex.from_frame(self.records[CELL])
        collapsed = (self.records["metric"] == "collapsed") & (
            self.records["value"] == 1
        )
        return self.records[~cells.isin(cells[collapsed.fillna(False)])]

    @cached_property
    def _lost_records(self) -> pd.DataFrame:
        """The few records that say which classifiers are missing, diverged or collapsed; every note reads them."""
        return self.records[self.records["metric"].isin(["collapsed", *self.lost])]

    @cached_property
    def note(self) -> str:
        """Words on what these records lack or leave out, and on generated corpora that replace real ones."""
        if not self.corpus:
            return _join_notes(here.note for here in self.corpora)
        return self._describe_lost(self._count_lost())

    @cached_property
    def note_with_collapsed(self) -> str:
        """The same words for a number in which collapsed classifiers count: none of them is left out."""
        if not self.corpus:
            return _join_notes(here.note_with_collapsed for here in self.corpora)
        return self._describe_lost(self._count_lost() | {"collapsed": 0})

    def _count_lost(self) -> dict[str, int]:
        """Count classifiers that are missing, diverged or collapsed: {`missing`, `diverged`, `collapsed`: count}."""
        return {
            metric: len(select(self._lost_records, metric=metric, value=1.0))
            for metric in self.lost
        }

    def note_on(self, values: Array) -> str:
        """Say what is missing behind one number per seed, `values` [seed] (NaN: no number), in words.

        As collapsed count only the seeds without a number, not the corpus's other classifiers that collapsed.
        """
        if not self.corpus:
            return self.note
        # A table that lists only the seeds that have a number leaves none out.
        aligned = (
            values if len(values) == len(self.seeds) else np.zeros(len(self.seeds))
        )
        # A seed with a number may have other classifiers that collapsed.
        silent = [
            seed
            for seed, value in zip(self.seeds, aligned, strict=True)
            if np.isnan(value)
        ]
        collapsed = select(self._lost_records, metric="collapsed", value=1.0)["seed"]
        return self._describe_lost(
            self._count_lost() | {"collapsed": len(set(silent) & set(collapsed))}
        )

    def _describe_lost(self, counts: Mapping[str, int]) -> str:
        """Say how many classifiers are missing, diverged or collapsed, and which corpus a generated one replaces.

        `counts`: {`missing`, `diverged` or `collapsed`: number of classifiers}.
        """
        parts = [
            self.lost[metric].format(count)
            for metric, count in counts.items()
            if count and metric in self.lost
        ]
        meant = self.meant.get(self.corpus, self.corpus)
        if meant != self.corpus:
            parts.append(
                f"generated corpus `{self.corpus}` in place of {TITLES[meant]}, which is not at hand"
            )
        return "; ".join(parts)

    @cached_property
    def corpora(self) -> list["Evidence"]:
        """The evidence on each corpus separately, in the order of the records."""
        names = dict.fromkeys(self.records["corpus"].dropna())
        return [
            type(self)(
                self.study, select(self.records, corpus=name), str(name), self.paper
            )
            for name in names
        ]

    def find(self, **where: Any) -> pd.DataFrame:
        """Return the rows of sound (not collapsed) classifiers that match `where`."""
        return select(self.sound, **where)

    def table(self, *columns: str, **where: Any) -> Seeds:
        """Return the values [seed] of sound (not collapsed) classifiers that match `where`, by key.

        The key is the value of the column named in `columns`, or a tuple of the values of several.
        """
        return self.by(self.find(**where), *columns)

    def by(self, rows: pd.DataFrame, *columns: str) -> Seeds:
        """Return the values [seed] of some rows, by key: the value of the column in `columns`, or a tuple of
        several.
        """
        # Given a list of one column, pandas would make keys that are tuples of one.
        keys: Any = list(columns)
        if len(columns) == 1:
            keys = columns[0]
        found = {}
        for key, values in rows.set_index("seed").groupby(keys)["value"]:
            # A seed without a row gets NaN, so that quantities can be subtracted by seed.
            found[key] = values.reindex(self.seeds).to_numpy(float)
        # At least one NaN: an empty array would make no test.
        return Seeds(found, np.full(max(len(self.seeds), 1), np.nan))

    def test(
        self,
        name: str,
        values: Array,
        which: str = "",
        *,
        around: float = 0.0,
        of_several: bool = False,
        with_collapsed: bool = False,
    ) -> Test:
        """Make the test of the claim `name` from one number per seed, `values` [seed].

        `which`: the classifiers it is about, if not the paper's own. `around`: the centre, for a claim that the number
        lies within a distance of it. `of_several`: each number comes from several classifiers of a seed, such as all
        depths; a collapsed one is then left out of it, and the number remains. `with_collapsed`: collapsed classifiers
        count in the numbers.
        """
        claim = self.claims[name]
        inside = None
        if claim.within is not None:
            inside = (around - claim.within, around + claim.within)
        subject = ", ".join(filter(None, (self.title, which)))
        if with_collapsed:
            reason = self.note_with_collapsed
        elif of_several:
            reason = self.note
        else:
            reason = self.note_on(values)
        return make_test_of_seeds(
            claim, values, reason=reason, subject=subject, inside=inside
        )

    @property
    def apart(self) -> str:
        """Why numbers of this corpus cannot be compared with the published ones; empty if they can."""
        return str(self.published.get("not_comparable", {}).get(self.corpus, ""))

    def compared(
        self, place: str, published: float, rows: pd.DataFrame, note: str = ""
    ) -> Compared:
        """Compare a published number with the mean of `rows`, which hold one value per seed.

        `place`: where in the table the number is published, in words; `note`: what else must be known.
        """
        value, low, high, n = _estimate_mean(rows)
        # One seed has a value but no spread, and none has nothing.
        found: dict[str, Any] = {"value": value} if n else {}
        if n > 1:
            found |= {
                "low": low,
                "high": high,
                "spread": float(rows["value"].dropna().std(ddof=1)),
            }
        return Compared(
            f"{self.title}, {place}",
            published,
            n=n,
            note=note,
            apart=self.apart,
            **found,
        )

    def describe_classifiers(self, **where: Any) -> str:
        """Describe the classifiers behind a similarity: mean accuracy, majority rate, how many collapsed and were left
        out.
        """
        accuracy = self.find(**where, metric="accuracy", component="test")["value"]
        majority = select(self.records, **where, metric="majority", component="test")[
            "value"
        ]
        collapsed = len(select(self.records, **where, metric="collapsed", value=1.0))
        parts = [f"accuracy {accuracy.mean():.3f}"] if len(accuracy) else []
        if len(majority):
            parts += [f"majority {majority.iloc[0]:.3f}"]
        if collapsed:
            parts += [f"{collapsed} collapsed, left out"]
        return ", ".join(parts)

    def chart(
        self,
        builder: Callable[..., ChartType],
        frame: pd.DataFrame,
        name: str = "",
        **settings: Any,
    ) -> dict[str, ChartType]:
        """Draw the table `frame` with a function of charts, `builder`; return {name: chart}, {} if there are no rows.

        Without a `name`, the chart is named by study and corpus. `settings` go to `builder`.
        """
        # Names of corpora as they are written in the paper.
        if "corpus" in frame:
            frame = frame.assign(corpus=frame["corpus"].replace(TITLES))
        name = name or "_".join(
            filter(None, (self.study, self.corpus.replace(":", "")))
        )
        if len(frame):
            return {name: builder(frame, **settings)}
        return {}


def _join_notes(notes: Iterable[str]) -> str:
    """Join notes on several corpora; the same note is said once, an empty one not at all."""
    return "; ".join(dict.fromkeys(filter(None, notes)))


def average_seeds(
    rows: pd.DataFrame, *keys: str, bounds: tuple[float, float] | None = None
) -> pd.DataFrame:
    """Average rows over seeds for each combination of the columns `keys`: columns `value`, `low`, `high`, `seeds`.

    Rows are sorted by keys that are numbers; keys that are words keep the order of their first appearance. The interval
    (`low`, `high`) is NaN for fewer than three seeds. It is cut at `bounds`; None: at the metric's smallest and largest
    possible value.
    """
    words = [key for key in keys if not pd.api.types.is_numeric_dtype(rows[key])]
    # As categories, words keep their order: groupby would sort them.
    ordered = rows.assign(
        **{key: pd.Categorical(rows[key], rows[key].dropna().unique()) for key in words}
    )
    out = []
    for names, group in ordered.groupby(list(keys), observed=True):
        value, low, high, n = _estimate_mean(group, bounds)
        # NaN ends are not drawn.
        low, high = (low, high) if n >= DRAWN_FROM else (np.nan, np.nan)
        if n:
            out.append((*names, value, low, high, n))
    return pd.DataFrame(out, columns=[*keys, "value", "low", "high", "seeds"])


def average_panels(rows: Mapping[str, pd.DataFrame], *keys: str) -> pd.DataFrame:
    """Average the rows of several quantities ({name: rows}) over seeds, by the columns `keys`; the name is in the
    column `quantity`.
    """
    return pd.concat(
        [
            average_seeds(found, *keys).assign(quantity=name)
            for name, found in rows.items()
        ],
        ignore_index=True,
    )


def _estimate_mean(
    rows: pd.DataFrame, bounds: tuple[float, float] | None = None
) -> tuple[float, float, float, int]:
    """Return (value, low, high, n) over the seeds of rows of one metric.

    The interval is cut at `bounds`; None: at the smallest and the largest value that the metric can have.
    """
    values = rows["value"].dropna().to_numpy(float)
    if not len(values):
        return np.nan, np.nan, np.nan, 0
    ends = bounds or look_up_bounds(str(rows["metric"].iloc[0]))
    value, low, high = (float(x) for x in estimate_over_seeds(values, bounds=ends))
    return value, low, high, len(values)


def compute_growth(table: Seeds, start: Seeds | None = None) -> Array:
    """Return how much a quantity grows over the layers of a model, [seed]: its value in the last layer less that in the
    first.

    It is averaged over models of more than one layer. `table`: its values [seed] by (layers of the model, layer).
    `start`: values by the same keys, of which the last layer's is subtracted in place of the first layer's.
    """
    depths = sorted({layers for layers, _ in table if layers > 1})
    # The control is the same depth's last layer at step 0, not the first layer.
    grown = []
    for n in depths:
        before = table[n, 1] if start is None else start[n, n]
        grown.append(table[n, n] - before)
    return pd.DataFrame(grown or [table.nothing]).mean().to_numpy(float)


def compute_spearman(x: Array, y: Array, fewest: int = 3) -> float:
    """Return the rank correlation of x and y, both [point]; NaN for fewer than `fewest` points or no variation."""
    # Points of collapsed or missing classifiers.
    usable = ~(np.isnan(x) | np.isnan(y))
    x = x[usable]
    y = y[usable]
    # Equal values have no ranks: scipy would warn and return NaN.
    if len(x) < fewest or np.ptp(x) == 0 or np.ptp(y) == 0:
        return float("nan")
    return float(stats.spearmanr(x, y).statistic)


def compute_correlation(x: Seeds, y: Seeds, fewest: int = 3) -> Array:
    """Return the rank correlation of two quantities over the keys that both have, [seed]; NaN for fewer than
    `fewest` keys.
    """
    keys = [key for key in x if key in y]
    # [seed, key] each; without a common key one column of NaN.
    of_x = np.array([x[key] for key in keys] or [x.nothing]).T
    of_y = np.array([y[key] for key in keys] or [y.nothing]).T
    correlations = []
    for a, b in zip(of_x, of_y, strict=True):
        correlations.append(compute_spearman(a, b, fewest))
    return np.array(correlations)


@dataclass(frozen=True)
class Measure:
    """Measure the classifiers (cells) of a study: accuracy, all of `looks`, and, on untrained classifiers, `control`.

    Of the records on norms, only those of keys are kept.
    """

    cells: Callable[[Grid], Sequence[Cell]]
    looks: tuple[Look, ...] = ()
    control: Look | None = None

    def __call__(self, plan: Grid, context: Context) -> pd.DataFrame:
        """Return the records of all classifiers of the grid `plan`; `context` holds cache, device and progress."""
        cells = self.cells(plan)
        found = [gather(cells, plan, context, read_accuracies, *self.looks)]
        if self.control:
            for cell in iter_untrained(cells, plan, context):
                found.append(self.control(cell))
        records = pd.concat(found, ignore_index=True)
        # Table 4 is about the norms of keys: no study reads those of other sites.
        other_norms = records["metric"].str.startswith("norms.") & ~records[
            "site"
        ].isin([KEYS])
        return records[~other_norms].reset_index(drop=True)

    def at_hand(self, plan: Grid, cache: Path) -> bool:
        """Return whether any of the study's cells (classifiers) was trained in this cache. `plan`: the grid of
        classifiers.
        """
        return any(
            (name_folder(cell, plan, cache) / TOLD).exists()
            for cell in self.cells(plan)
        )


def declare_entry(
    name: str,
    *,
    measure: Callable[[Any, Context], pd.DataFrame],
    tests: Callable[[Evidence], Iterable[Test]],
    draw: Callable[[Evidence], dict[str, ChartType]],
    compare: Callable[[Evidence], Iterable[Compared]] | None = None,
    paper: str = PAPER,
    read: Callable[[str, pd.DataFrame], Evidence] | None = None,
    **others: Any,
) -> Study:
    """Declare a table or figure of the paper as a study.

    It is measured, judged and drawn from all records, and compared with published numbers corpus by corpus.

    tests     yields the tests of the study's claims, from the evidence on all corpora
    draw      makes the charts, {name: chart}
    compare   yields published numbers next to ours, from the evidence on one corpus
    read      makes the evidence from (study, records) in another way
    others    replace the settings and needs of the grid of classifiers
    """

    def whole(records: pd.DataFrame) -> Evidence:
        """Return the evidence on all corpora from the study's records."""
        if read:
            return read(name, records)
        return Evidence(name, add_options(records), paper=paper)

    def compare_all(records: pd.DataFrame) -> list[Compared]:
        """Return all published numbers next to ours, corpus by corpus; none if the study compares nothing."""
        compared: list[Compared] = []
        for here in whole(records).corpora:
            # Of generated corpora, and of some real ones, nothing was published.
            if compare and here.numbers:
                compared += compare(here)
        return compared

    trained = measure.at_hand if isinstance(measure, Measure) else None
    return declare(
        paper,
        name,
        **{"settings": SETTINGS, "needs": NEEDS, "at_hand": trained} | others,
        measure=measure,
        judge=lambda records: judge_tests(list(tests(whole(records)))),
        draw=lambda records: draw(whole(records)),
        compare=compare_all,
    )
