"""Define what a study is (one per figure or table): its claims, as data, and the form of its verdicts."""

import math
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

import pandas as pd
from scipy import stats

from anisoscope.errors import MeasureError
from anisoscope_papers.needs import Need
from anisoscope_papers.study_names import PUBLISHED, find_folder

Outcome = Literal["holds", "fails", "undecided", "identity", "not comparable"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
"""`identity`: it holds by construction, whatever is measured; `not comparable`: ours was measured in another way than
the number it stands beside. Both are shown, and not counted as evidence.
"""
Failing = Literal["contrary", "too small", "beyond"]
FAILING: tuple[Failing, ...] = get_args(Failing)
"""How a claim fails. `contrary`: the number lies on the other side; `too small`: it does not, and is less than the
claim asks for; `beyond`: it lies outside of the two ends that the claim gives.
"""
WORDS: tuple[str, ...] = ("holds", *FAILING, "undecided", "identity", "not comparable")
"""What is said of a claim, wherever a verdict is shown: of one that fails, how."""


Over = Literal["any", "all", "most", "last"]
"""Which tests of a system (model) must hold for its claim to hold; with `all` and `last`, no test may fail."""
Limit = float | Literal["q95"]
FEWEST = 3
"""Seeds that decide anything: the interval of two reaches almost everything."""
ENOUGH = 8
"""With so many seeds a published number agrees if it lies in the interval for one more run of ours: the interval of
fewer is so wide that nearly every number lies in it.
"""
SIGNED, SHARE = (-1.0, 1.0), (0.0, 1.0)
"""What correlations, cosines and changes of shares, and what shares and probabilities, lie between."""


@dataclass(frozen=True)
class Claim:
    """A statement of a paper, in our words, with everything the judge needs to test it.

    source, published   where it is in the paper, and the published number if there is one
    statistic           the number it is about, in words
    metric, site        where the records hold that number
    above, below        the number should lie above this limit (default: 0), or below it; `q95`: the quantile of an
                        isotropic pair in the given dimension
    inside, within      or between these two ends, or within this distance of a number that is given when it is judged
    none                the number that means no effect at all (default: the limit). A failed claim is too small if the
                        number lies on the claim's side of it, else contrary
    floor, because      the smallest effect that counts, however significant, and why
    primary             the figure or table is judged by it: other claims' tests do not correct its p (one per study)
    bounds              the smallest and the largest possible value: its interval stays between them
    over, words         how tests of single layers or norms make one verdict, and what is counted of them. Of arms
                        only `last` has a meaning: the last layer's hidden states, not the mean over all layers
    systems, but, stack the models it is about, by the beginnings of their names (none: all), those it is not about, and
                        their stack (encoder or decoder)
    against             for arms (changed models): what is subtracted from an arm's number, namely another arm's, its
                        own at the `start`, or `zero`
    premise             what the number of `against` must exceed: otherwise there is nothing that could be lost
    lost                the share of that number at step 0 that training must have removed in `against`, for the same
                        reason
    makes               it says that an arm is what its name says; unless it holds, nothing else is concluded from it
    afterwards          it was added after the records had been seen: corrected only with others of its kind, so that it
                        changes no verdict on earlier claims
    identity            it holds by construction: if it holds, that is shown, but is no evidence
    """

    name: str
    statement: str
    source: str
    published: str = ""
    identity: bool = False
    bounds: tuple[float, float] | None = None
    statistic: str = ""
    metric: str = ""
    site: str = ""
    above: Limit = 0.0
    below: Limit | None = None
    inside: tuple[float, float] | None = None
    within: float | None = None
    none: float | None = None
    floor: float = 0.0
    because: str = ""
    primary: bool = False
    over: Over | None = None
    words: str = ""
    systems: tuple[str, ...] = ()
    but: tuple[str, ...] = ()
    stack: str = ""
    against: str = "base"
    premise: float | None = None
    lost: float | None = None
    makes: bool = False
    afterwards: bool = False

    @property
    def limit(self) -> Limit:
        """The number that the claim says its value lies above, or below; "q95" for the isotropic quantile."""
        if self.below is None:
            return self.above
        return self.below

    def threshold(self, limit: float | None = None) -> float:
        """Return the number that a value must pass: the limit (or a given one), plus the floor in the claim's
        direction.
        """
        start = float(self.limit if limit is None else limit)
        if self.below is None:
            return start + self.floor
        return start - self.floor


@dataclass(frozen=True)
class Verdict:
    """A judged claim. `statistic` says what `value` is; interval, n and Holm-corrected p are None if there are none.

    `failing` says how it fails, if it does.
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
    failing: Failing | Literal[""] = ""

    @property
    def word(self) -> str:
        """The outcome in one word, one of `WORDS`; for a failed claim, how it failed."""
        return self.failing or self.outcome


@dataclass(frozen=True)
class Compared:
    """A published number, which comes from one run, and our mean over `n` seeds with its 95 % interval.

    spread   standard deviation over our seeds; None: fewer than two have a value
    apart    why the two cannot be compared; empty: they can
    """

    place: str
    published: float
    value: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0
    spread: float | None = None
    note: str = ""
    apart: str = ""

    @property
    def predicted(self) -> tuple[float, float] | None:
        """The 95 % prediction interval for one more run of ours (Student t); None for fewer than three seeds or no
        variance.
        """
        if self.value is None or not self.spread or self.n < FEWEST:
            return None
        # Mean and single run both vary: Var = s² (1 + 1/n), with Student's t of n − 1.
        half = (
            float(stats.t.ppf(0.975, self.n - 1))
            * self.spread
            * math.sqrt(1 + 1 / self.n)
        )
        return self.value - half, self.value + half

    @property
    def verdict(self) -> Literal["agrees", "differs", "open", "not comparable"]:
        """Whether the published number agrees with ours.

        "differs": it lies outside of the prediction interval for one more run of ours. "agrees": it lies inside, and we
        have at least `ENOUGH` seeds. "open": anything else. "not comparable": `apart` says why.
        """
        if self.apart:
            return "not comparable"
        if self.predicted is None:
            return "open"
        low, high = self.predicted
        # Outside is a finding with any number of seeds; inside says little while the
        # interval is wide.
        if not low <= self.published <= high:
            return "differs"
        if self.n >= ENOUGH:
            return "agrees"
        return "open"


@dataclass(frozen=True)
class Expected(Compared):
    """A value that others published of the very weights that were measured: it says whether we measure what they did.

    within   how far another corpus and another sample may move the value
    """

    within: float = 0.05

    @property
    def verdict(self) -> Literal["agrees", "differs", "open", "not comparable"]:
        """Whether our number agrees with the published one: they differ by at most `within`.

        "open": ours is missing. "not comparable": `apart` says why.
        """
        if self.apart:
            return "not comparable"
        if self.value is None:
            return "open"
        if abs(self.value - self.published) <= self.within:
            return "agrees"
        return "differs"


def count_comparisons(compared: Iterable[Compared]) -> str:
    """Count comparisons of published numbers with ours in words: `3 open, 2 agree, 1 differs`, open ones first."""
    found = Counter(str(one.verdict) for one in compared)
    plurals = {"open": "open", "agrees": "agree", "differs": "differ"}
    # Most studies have none, and a count of 0 would only ask what it means.
    if found["not comparable"]:
        plurals["not comparable"] = "not comparable"
    return ", ".join(
        f"{found[name]} {name if found[name] == 1 else plural}"
        for name, plural in plurals.items()
    )


def _show_no_progress(_text: str, _done: int, _total: int) -> None:
    """Show no progress. It is a named function, so that a context can be sent to other processes."""


WITHHELD, STANDS_IN = "withheld", "stands in"
"""Metrics of rows that say what could not be had, and what was measured in its place: name in `model` (and the corpus
that stands in, in `corpus`), reason in `component`.
"""


@dataclass(frozen=True)
class Context:
    """What a running study is given: its `folder` (records, cache), the device, and `progress(text, done, total)`.

    `lacking` collects rows for what was unavailable. The runner adds them to the records.
    """

    folder: Path
    cache: Path
    device: str = "cpu"
    dtype: Literal["float32", "float64"] = "float32"
    batch_tokens: int = 4096
    progress: Callable[[str, int, int], None] = _show_no_progress
    lacking: list[dict[str, str]] = field(default_factory=list)

    def note_unavailable(self, name: str, reason: object) -> None:
        """Note that a model (system) or corpus, `name`, is unavailable, and why; the study goes on without it."""
        self._note({"model": name, "metric": WITHHELD, "component": str(reason)})

    def note_stand_in(self, corpus: str, name: str, reason: object) -> None:
        """Note that `corpus` is read in place of another one (`name`), which is unavailable, and why (`reason`)."""
        self._note(
            {
                "model": name,
                "corpus": corpus,
                "metric": STANDS_IN,
                "component": str(reason),
            }
        )

    def _note(self, row: dict[str, str]) -> None:
        """Add a row to `lacking`, what was unavailable, unless it is there already."""
        # Several parts of a study may miss the same model.
        if row not in self.lacking:
            self.lacking.append(row)


@dataclass(frozen=True)
class Study:
    """One figure or table: its settings, and the functions that measure, judge and draw it.

    measure   (settings, context) → records (`records.COLUMNS`); long ones write each finished piece and skip it on a
              restart
    judge     records → one verdict per claim (and subject)
    draw      records → {name: chart}
    compare   records → published numbers next to ours, one by one, if the paper has a table of them
    settings  {"quick": …, "paper": …}; the values are of the study's own type
    small     what the caption adds if small models are trained (settings `quick` and `long`)
    needs     what the paper setting downloads and computes, for the dry run
    at_hand   (settings, cache) → whether any model that the study looks at was trained in this cache; None: the study
              looks at no trained model
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
    small: str = ""
    needs: tuple[Need, ...] = ()
    compare: Callable[[pd.DataFrame], Sequence[Compared]] = lambda _records: ()
    at_hand: Callable[[Any, Path], bool] | None = None

    def build_caption(self, settings: str) -> str:
        """Return the figure's caption; for settings that train small models (`quick`, `long`) it says so."""
        if settings in ("quick", "long"):
            return f"{self.caption} {self.small}".strip()
        return self.caption


@cache
def read_published(paper: str) -> dict[str, Any]:
    """Return the published.toml of a paper as {study: its claims and published numbers}."""
    return tomllib.loads((find_folder(paper) / PUBLISHED).read_text("utf-8"))


def _read_entry(paper: str, study: str) -> dict[str, Any]:
    """Return the part of a paper's published.toml for one study. MeasureError if there is none."""
    if study not in read_published(paper):
        raise MeasureError(
            f"[{study}] in {paper}/published.toml",
            "none",
            "write it; see docs/adding.md",
        )
    # A copy: the cached table is shared by all studies of the paper.
    return dict(read_published(paper)[study])


def read_claims(paper: str, study: str) -> dict[str, Claim]:
    """Return {name: claim} for a study of a paper, from published.toml.

    A statement may insert its claim's numbers in braces.
    """
    entry = _read_entry(paper, study)
    # Claims that several figures share are written once; studies name them.
    several = read_published(paper).get("shared", {"claims": ()})
    found = {}
    taken = entry.get("shared", ())
    shared = [row for row in several["claims"] if row["name"] in taken]
    for row in [*entry.get("claims", ()), *shared]:
        # Claims are keys of dictionaries (`judge`), so that lists of TOML become tuples.
        given: dict[str, Any] = {}
        for key, value in row.items():
            given[key] = tuple(value) if isinstance(value, list) else value
        # Numbers in the words are those that the judge uses: they cannot differ.
        given["statement"] = row["statement"].format(**row)
        # A claim without a source of its own has its study's.
        found[row["name"]] = Claim(**{"source": entry.get("source"), **given})
    return found


def declare(paper: str, name: str, **code: Any) -> Study:
    """Create the study `name` of a paper; its title, caption and claims come from the paper's published.toml.

    `code`: the study's functions, by the names of the fields of `Study`, such as `measure` and `draw`.
    """
    entry = _read_entry(paper, name)
    words = {key: entry.get(key, "") for key in ("title", "caption", "small")}
    return Study(
        name, paper, claims=tuple(read_claims(paper, name).values()), **words, **code
    )
