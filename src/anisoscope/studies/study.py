"""The contract of a study, one per figure or table, and what its verdicts look like."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import pandas as pd

Outcome = Literal["holds", "fails", "undecided", "identity"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
"""`identity`: it holds by construction, whatever is measured; shown, and not counted as evidence."""


SIGNED, SHARE = (-1.0, 1.0), (0.0, 1.0)
"""What correlations, cosines and changes of shares, and what shares and probabilities, lie between."""


@dataclass(frozen=True)
class Claim:
    """A statement of a paper, in our words, with where it stands there and the published number if there is one.

    identity  it holds by construction: if it holds, that is shown, and is no evidence
    bounds    the smallest and the largest that its number can be: its interval over seeds stays between them
    """

    name: str
    statement: str
    source: str
    published: str = ""
    identity: bool = False
    bounds: tuple[float, float] | None = None


@dataclass(frozen=True)
class Verdict:
    """A claim judged: `statistic` says what `value` is; interval, n and (Holm-corrected) p where they exist; `reason`
    in one sentence.
    """

    claim: str
    outcome: Outcome
    statistic: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    n: int | None = None
    p: float | None = None
    reason: str = ""
    subject: str = ""


@dataclass(frozen=True)
class Compared:
    """A published number beside ours: mean over `n` seeds with its 95 % interval. `spread`: what the published number
    is known to vary by from run to run; `note`: what must stand beside it.
    """

    place: str
    published: float
    value: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0
    spread: float = 0.0
    note: str = ""

    @property
    def verdict(self) -> Literal["agrees", "differs", "open"]:
        """Whether the interval reaches the published number, give or take its spread. The interval of two seeds reaches
        almost anything, which leaves it open.
        """
        if self.low is None or self.high is None:
            return "open"
        reached = self.low - self.spread <= self.published <= self.high + self.spread
        return "differs" if not reached else "agrees" if self.n > 2 else "open"


@dataclass(frozen=True)
class Context:
    """Where a study works: `folder` is its own (records, cached runs, trained weights); `progress(text, done, total)`
    tells how far it is.
    """

    folder: Path
    cache: Path
    device: str = "cpu"
    dtype: str = "float32"
    batch_tokens: int = 4096
    progress: Callable[[str, int, int], None] = lambda _text, _done, _total: None


@dataclass(frozen=True)
class Study:
    """One figure or table.

    measure   (settings, context) → records (`records.COLUMNS`); long ones write each finished piece and skip it on a
    restart
    judge     records → one verdict per claim (and subject)
    draw      records → {name: chart}
    compare   records → published numbers beside ours, one by one, where a table has them
    settings  {"quick": …, "paper": …}; the values are the study's own
    needs     hub ids and data sets of the paper setting, for the dry run
    """

    name: str
    paper: str
    title: str
    claims: tuple[Claim, ...]
    settings: Mapping[str, Any]
    measure: Callable[[Any, Context], pd.DataFrame]
    judge: Callable[[pd.DataFrame], Sequence[Verdict]]
    draw: Callable[[pd.DataFrame], Mapping[str, Any]]
    caption: str = ""
    needs: tuple[str, ...] = field(default=())
    compare: Callable[[pd.DataFrame], Sequence[Compared]] = lambda _records: ()
