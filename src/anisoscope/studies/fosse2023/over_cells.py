"""From records of many classifiers to numbers per seed, means over seeds, and what has to be said of both.

A collapsed classifier (accuracy not above the majority rate) has learnt nothing, and its vectors coincide for that
reason alone: it is kept out of every claim, counted, and said.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from anisoscope.store import select
from anisoscope.studies.fosse2023.grid import PUBLISHED, TITLES
from anisoscope.studies.fosse2023.measurements import PRETRAINED
from anisoscope.studies.study import Compared
from anisoscope.sums.jackknife import over_seeds
from anisoscope.training.recipe import ATTENTION

Array = NDArray[np.float64]
CELL = ["model", "corpus", "seed"]
DRAWN_FROM = 3
"""Seeds from which on charts show an interval."""


def sound(records: pd.DataFrame) -> pd.DataFrame:
    """Without the rows of collapsed classifiers."""
    lost = _cells(select(records, metric="collapsed", value=1.0))
    kept = [cell not in lost for cell in zip(*(records[name] for name in CELL), strict=True)]
    return records[np.array(kept, bool)]


def encoders(records: pd.DataFrame) -> pd.DataFrame:
    """Rows of fine-tuned encoders, that is of neither an attention-only model nor an encoder as it was."""
    names = records["model"].astype(str)
    return records[~names.str.startswith(f"{ATTENTION} ") & ~names.str.endswith(PRETRAINED)]


def _cells(rows: pd.DataFrame) -> set[tuple[Any, ...]]:
    return set(zip(*(rows[name] for name in CELL), strict=True))


def note(records: pd.DataFrame, corpus: str) -> str:
    """How many classifiers of a corpus these records lack, or leave out."""
    rows = select(records, corpus=corpus)
    missing, diverged = (len(_cells(select(rows, metric=metric))) for metric in ("missing", "diverged"))
    collapsed = len(_cells(select(rows, metric="collapsed", value=1.0)))
    parts = [f"{missing} of the planned classifiers not trained yet"] if missing else []
    parts += [f"{diverged} diverged: their loss was not finite"] if diverged else []
    parts += [f"{collapsed} collapsed and left out"] if collapsed else []
    return "; ".join([*parts, *_stand_in(corpus)])


def _stand_in(corpus: str) -> list[str]:
    if PUBLISHED[corpus] == corpus:
        return []
    return [f"generated corpus `{corpus}` in place of {TITLES[PUBLISHED[corpus]]}, which is not at hand"]


def corpora(records: pd.DataFrame) -> list[str]:
    """Corpora in the order of the records."""
    return [str(name) for name in dict.fromkeys(records["corpus"].dropna())]


def title(corpus: str) -> str:
    """A corpus as charts and verdicts name it."""
    return TITLES.get(corpus, corpus)


class Seeds:
    """Values of one quantity: `table[key]` is [seed] over all seeds of the records, NaN where there is no classifier.

    A key is the value of the one column it was made by, or the tuple of several.
    """

    def __init__(self, records: pd.DataFrame, rows: pd.DataFrame, *columns: str) -> None:
        self.seeds = sorted(int(seed) for seed in records["seed"].dropna().unique())
        at = {seed: i for i, seed in enumerate(self.seeds)}
        self.values: dict[Any, Array] = {}
        names = [rows[name].tolist() for name in columns]
        for seed, value, *key in zip(rows["seed"], rows["value"], *names, strict=True):
            place = tuple(key) if len(key) > 1 else key[0]
            self.values.setdefault(place, np.full(len(at), np.nan))[at[int(seed)]] = float(value)

    def __getitem__(self, key: Any) -> Array:
        return self.values.get(key, np.full(max(len(self.seeds), 1), np.nan))

    def __iter__(self) -> Iterator[Any]:
        return iter(sorted(self.values))

    def __len__(self) -> int:
        return len(self.values)

    def rows(self) -> Iterator[dict[Any, float]]:
        """The values of each seed by key."""
        for i in range(len(self.seeds)):
            yield {key: float(values[i]) for key, values in self.values.items()}


def over(rows: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Mean over seeds with its interval and the number of seeds, one row per key: what the charts draw; intervals of
    two seeds, which are wider than any chart, are left out.
    """
    out: list[dict[str, Any]] = []
    for names, group in rows.groupby(list(keys), sort=False, dropna=False):
        values = group["value"].dropna().to_numpy(float)
        if len(values):
            value, low, high = (float(x) for x in over_seeds(values))
            low, high = (low, high) if len(values) >= DRAWN_FROM else (np.nan, np.nan)
            named = dict(zip(keys, names if isinstance(names, tuple) else (names,), strict=True))
            out.append(named | {"value": value, "low": low, "high": high, "seeds": len(values)})
    return pd.DataFrame(out, columns=[*keys, "value", "low", "high", "seeds"])


def compared(place: str, published: float, rows: pd.DataFrame, spread: float = 0.0, note: str = "") -> Compared:
    """A published number beside the mean of `rows`, one per seed."""
    values = rows["value"].dropna().to_numpy(float)
    if not len(values):
        return Compared(place, published, spread=spread, note=note)
    value, low, high = (float(x) for x in over_seeds(values))
    ends = {"low": low, "high": high} if len(values) > 1 else {}
    return Compared(place, published, value, n=len(values), spread=spread, note=note, **ends)


def beside(rows: pd.DataFrame) -> str:
    """What stands beside a similarity: mean accuracy of the sound classifiers among these rows, majority rate, and how
    many collapsed.
    """
    accuracy = select(sound(rows), metric="accuracy", component="test")["value"]
    majority = select(rows, metric="majority", component="test")["value"]
    collapsed = len(select(rows, metric="collapsed", value=1.0))
    parts = [f"accuracy {accuracy.mean():.3f}"] if len(accuracy) else []
    parts += [f"majority {majority.iloc[0]:.3f}"] if len(majority) else []
    return ", ".join([*parts, *([f"{collapsed} collapsed, left out"] if collapsed else [])])


def spearman(x: Array, y: Array) -> float:
    """Rank correlation; NaN with fewer than three points or no variation."""
    usable = ~(np.isnan(x) | np.isnan(y))
    x, y = x[usable], y[usable]
    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return float("nan")
    return float(stats.spearmanr(x, y).statistic)
