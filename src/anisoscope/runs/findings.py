"""What a run's records say in words, by stated rules; nothing that an interval does not support.

A rule is a function from the layers of one stack (or from all records) to findings; `RULES` is their order. Verdicts of
a layer: *isotropic* where the upper end of A is at most q95(d), *anisotropic* where its lower end lies above it,
*undecided* otherwise, and none where there is no interval.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from anisoscope.store import select

SITES = ("hidden", "final")
EXTREME = 0.8
"""From this A on a layer is called extreme."""
HALF, AROUND = 0.5, 0.1
"""A share is about half where its interval holds .5 and stays within .1 of it."""
FEW = (1, 3, 10)
"""Numbers of dimensions whose share of A is recorded."""
CHANCE = 0.5
"""AUC of directions that do not tell classes."""
ENTRIES = ("metric", "stack", "layer", "site", "component", "value", "low", "high", "n_vectors", "n_units")


@dataclass(frozen=True)
class Finding:
    """A sentence, the rule that made it, and the records it rests on (columns as in the long table)."""

    rule: str
    text: str
    numbers: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class Depth:
    """A of one stack from its input to its output: a row per layer, with the verdict of each.

    `before` begins its sentences (`Encoder: `) where there are several stacks.
    """

    rows: pd.DataFrame
    records: pd.DataFrame
    before: str = ""
    q95: dict[Any, float] = field(default_factory=dict)

    @property
    def verdicts(self) -> list[str]:
        return [verdict(row.low, row.high, self.q95.get(place)) for place, row in self._places()]

    def _places(self) -> list[tuple[Any, Any]]:
        return [((row.layer, row.site), row) for row in each(self.rows)]

    def judged(self, word: str) -> list[int]:
        """Positions of the rows with that verdict."""
        return [i for i, found in enumerate(self.verdicts) if found == word]

    @property
    def names(self) -> list[str]:
        return [_name(row) for row in each(self.rows)]

    def at(self, row: Any, metric: str, component: str | None = None) -> Any:
        """The row of another metric at the place of `row`, or None."""
        here = select(self.records, metric=metric, component=component, layer=row.layer, site=row.site)
        return next(iter(each(here)), None)


def findings(records: pd.DataFrame) -> list[Finding]:
    """Sentences on classes where they were measured, then on the hidden states (first token policy)."""
    found = [finding for rule in RULES_OF_CLASSES for finding in rule(records)]
    return found + [finding for depth in depths(records) for rule in RULES for finding in rule(depth)]


def depths(records: pd.DataFrame) -> list[Depth]:
    """A by layer, stack by stack, under the first token policy of the records."""
    rows = select(records, metric="mean_cosine", component=None, head=None, site=SITES)
    rows = rows[rows["value"].notna()]
    if not len(rows):
        return []
    policy = lead(rows)
    records = select(records, token_policy=[policy, None], head=None, site=SITES)
    rows = select(rows, token_policy=[policy, None])
    stacks = list(dict.fromkeys(rows["stack"]))
    found = []
    for stack in stacks:
        own = records[records["stack"].eq(stack).fillna(False)]
        of_stack = rows[rows["stack"].eq(stack).fillna(False)]
        order = pd.DataFrame({"layer": of_stack["layer"], "final": of_stack["site"].eq("final")})
        of_stack = of_stack.loc[order.sort_values(["layer", "final"], kind="stable").index]
        law = select(own, metric="mean_cosine.isotropic_q95", component=None)
        q95 = {(row.layer, row.site): float(row.value) for row in each(law)}
        found.append(Depth(of_stack, own, f"{stack.capitalize()}: " if len(stacks) > 1 else "", q95))
    return found


def lead(rows: pd.DataFrame) -> str | None:
    """The first token policy of some rows: the one with spectrum and sample; None where they know no policies."""
    policies = rows["token_policy"].dropna()
    return str(policies.iloc[0]) if len(policies) else None


def each(rows: pd.DataFrame) -> list[Any]:
    """The rows, one by one, with their columns as attributes."""
    return list(rows.itertuples())


def verdict(low: float, high: float, q95: float | None) -> str:
    """`isotropic`, `anisotropic` or `undecided`; empty where there is no interval."""
    if q95 is None or not (math.isfinite(low) and math.isfinite(high)):
        return ""
    return "isotropic" if high <= q95 else "anisotropic" if low > q95 else "undecided"


def unjudged(depth: Depth) -> Iterator[Finding]:
    """Where no layer has an interval: the highest A, and that there is no verdict."""
    if not any(depth.verdicts):
        top = _top(depth.rows)
        text = f"{depth.before}No interval, hence no verdict: the highest A is {short(top.value)} at {_name(top)}."
        yield Finding("unjudged", text, (_entry(top),))


def where_anisotropic(depth: Depth) -> Iterator[Finding]:
    """Which layers are anisotropic, which undecided, and where A is highest, with those it is not told apart from."""
    if not any(depth.verdicts):
        return
    yes, open_, names = depth.judged("anisotropic"), depth.judged("undecided"), depth.names
    parts, numbers = [], []
    if yes:
        parts.append(f"anisotropic {_span(yes, names)}")
        top = _top(depth.rows)
        rivals = [row for row in each(depth.rows) if row.high >= top.low]
        numbers = [_entry(row) for row in rivals]
        extreme = f", extreme: at least {EXTREME:g}".replace("0.", ".") if top.low >= EXTREME else ""
        if len(rivals) == 1 and len(depth.rows) > 1:
            parts.append(f"strongest at {_name(top)} (A {measured(top)}{extreme})")
        else:
            tied = f", not told apart from {_listing([_name(r) for r in rivals if r.Index != top.Index])}"
            parts.append(f"highest at {_name(top)} (A {measured(top)}{extreme}){tied if len(rivals) > 1 else ''}")
    else:
        iso = depth.judged("isotropic")
        top = _top(depth.rows)
        numbers = [_entry(row) for row in each(depth.rows)]
        parts += [f"isotropic {_span(iso, names)}"] if iso else []
        parts[:1] = [f"{parts[0]} (highest A {measured(top)} at {_name(top)})"] if len(iso) == len(names) else parts[:1]
    parts += [f"undecided {_span(open_, names)}"] if open_ else []
    yield Finding("where_anisotropic", depth.before + _sentence("; ".join(parts)), tuple(numbers))


def carried_by_few(depth: Depth) -> Iterator[Finding]:
    """How many dimensions carry half of A where it is highest and anisotropic, if the interval of their share says."""
    top = _anisotropic_top(depth)
    if top is None:
        return
    width = len(select(depth.records, metric="mean_cosine.contribution", layer=top.layer, site=top.site))
    out_of = f" of {width:,}" if width else ""
    for k in FEW:
        share = depth.at(top, "mean_cosine.top_share", str(k))
        if share is None or not _has_interval(share):
            continue
        dims = f"{k}{out_of} dimensions" if k > 1 or out_of else "1 dimension"
        if share.low >= HALF:
            sentence = f"More than half of it lies in {dims}"
        elif share.high >= HALF and share.low >= HALF - AROUND and share.high <= HALF + AROUND:
            sentence = f"About half of it lies in {dims}"
        elif k == FEW[-1] and share.high < HALF:
            sentence = f"Not carried by a few dimensions: less than half of it lies in {dims}"
        else:
            continue
        yield Finding("carried_by_few", f"{depth.before}{sentence} (share {measured(share, 2)}).", (_entry(share),))
        return


def removed_by_centring(depth: Depth) -> Iterator[Finding]:
    """Whether A after centring is isotropic where A is highest and anisotropic."""
    top = _anisotropic_top(depth)
    centred = None if top is None else depth.at(top, "calibrated.centred")
    if centred is None:
        return
    q95 = depth.q95[top.layer, top.site]
    sentence = {
        "isotropic": "Centring removes it",
        "anisotropic": "Centring does not remove it",
        "undecided": "Whether centring removes it is undecided",
    }.get(verdict(centred.low, centred.high, q95))
    if sentence:
        text = f"{depth.before}{sentence} (A after centring {measured(centred)}, q95 {short(q95)})."
        yield Finding("removed_by_centring", text, (_entry(centred),))


def told_by_direction(records: pd.DataFrame) -> Iterator[Finding]:
    """Whether directions tell the classes: layers whose AUC lies above chance, the best of them."""
    rows = select(records, metric="class_direction.auc", component=None, head=None)
    rows = rows[rows["low"].notna() & rows["site"].ne("final").fillna(True)].sort_values("layer")
    if not len(rows):
        return
    names = [_name(row) for row in each(rows)]
    above = [i for i, row in enumerate(each(rows)) if row.low > CHANCE]
    if not above:
        top = _top(rows)
        highest = f"highest {measured(top)} at {_name(top)}"
        text = f"Directions tell the classes in no layer: AUC is at chance (.500), {highest}."
    else:
        top = _top(rows.iloc[above])
        text = f"Directions tell the classes {_span(above, names)}, best at {_name(top)} (AUC {measured(top)})."
    yield Finding("told_by_direction", text, (_entry(top),))


def above_majority(records: pd.DataFrame) -> Iterator[Finding]:
    """Whether a classifier is right more often than always naming the commonest class."""
    accuracy = next(iter(each(select(records, metric="accuracy", component=None))), None)
    majority = next(iter(each(select(records, metric="majority", component=None))), None)
    if accuracy is None or majority is None or not _has_interval(accuracy):
        return
    place = "above" if accuracy.low > majority.value else "below" if accuracy.high < majority.value else "not told from"
    text = f"Accuracy {measured(accuracy)}, {place} the majority rate ({short(majority.value)})."
    yield Finding("above_majority", text, (_entry(accuracy), _entry(majority)))


RULES: tuple[Callable[[Depth], Iterator[Finding]], ...] = (
    unjudged,
    where_anisotropic,
    carried_by_few,
    removed_by_centring,
)
RULES_OF_CLASSES: tuple[Callable[[pd.DataFrame], Iterator[Finding]], ...] = (told_by_direction, above_majority)


def short(value: float, places: int = 3) -> str:
    """`.246`, `−.003`, `12.3`: no zero before the point; fewer decimals for larger numbers; a dash where undefined."""
    if value is None or not math.isfinite(value):
        return "–"
    size = abs(value)
    digits = places if size < 9.9995 else 1 if size < 999.95 else 0
    text = f"{size:,.{digits}f}"
    text = text[1:] if text.startswith("0.") else text
    return f"−{text}" if value < 0 and text.strip(".0") else text


def measured(row: Any, places: int = 3) -> str:
    """A value with its interval after it, where there is one."""
    text = short(row.value, places)
    return f"{text} [{short(row.low, places)}, {short(row.high, places)}]" if _has_interval(row) else text


def _has_interval(row: Any) -> bool:
    return math.isfinite(row.low) and math.isfinite(row.high)


def _top(rows: pd.DataFrame) -> Any:
    return each(rows.iloc[[int(rows["value"].argmax())]])[0]


def _anisotropic_top(depth: Depth) -> Any:
    """The row of the highest A where it is anisotropic, or None."""
    top = _top(depth.rows)
    return top if verdict(top.low, top.high, depth.q95.get((top.layer, top.site))) == "anisotropic" else None


def _name(row: Any) -> str:
    return "the final norm" if str(row.site) == "final" else f"layer {int(row.layer)}"


def _span(chosen: Sequence[int], names: Sequence[str]) -> str:
    """`in every layer`, `from layer 1 on`, `at layers 1–3, 5 and the final norm`."""
    if len(chosen) == len(names) > 1:
        return "in every layer"
    if len(chosen) > 1 and list(chosen) == list(range(chosen[0], len(names))):
        return f"from {names[chosen[0]]} on"
    parts: list[str] = []
    runs: list[list[int]] = []
    for i in chosen:
        if runs and i == runs[-1][-1] + 1 and names[i].startswith("layer"):
            runs[-1].append(i)
        else:
            runs.append([i])
    for run in runs:
        first, last = (names[run[k]].removeprefix("layer ") for k in (0, -1))
        parts.append(first if first == last else f"{first}–{last}" if len(run) > 2 else f"{first}, {last}")
    flat = ", ".join(parts).split(", ")
    numbered = [part for part in flat if not part.startswith("the")]
    noun = "layers " if len(numbered) > 1 or any("–" in part for part in numbered) else "layer " if numbered else ""
    return f"at {noun}{_listing(flat)}"


def _listing(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _entry(row: Any) -> dict[str, Any]:
    entry = {name: getattr(row, name) for name in ENTRIES}
    plain = {name: value.item() if hasattr(value, "item") else value for name, value in entry.items()}
    return {name: None if pd.isna(value) else value for name, value in plain.items()}
