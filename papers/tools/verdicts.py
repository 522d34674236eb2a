"""What was concluded from the committed records: every verdict, what became of earlier ones, and judging them anew.

python papers/tools/verdicts.py     judge all records under papers/results/ by the code as it is, and keep what follows
"""

import json
import math
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from fnmatch import fnmatch
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pages import table_row

from anisoscope.store import read_table, write_json, write_table
from anisoscope_papers import runner
from anisoscope_papers.runner import COMPARED
from anisoscope_papers.study import FAILING, WORDS, Compared, counted
from anisoscope_papers.study_names import PAPERS, number_of

RESULTS = Path(__file__).resolve().parents[1] / "results"
BETWEEN, SINCE = RESULTS / "between.json", RESULTS / "since.toml"
"""Outcomes and numbers of the same records as they were judged in the round before, and why they changed since."""
BEFORE, CHANGES = RESULTS / "before.json", RESULTS / "changes.toml"
"""Outcomes of the round before that, and why they changed until then."""
CHANGED = RESULTS / "changed.json"
"""What `moved` finds, as data."""
REPEATED = RESULTS / "repeated.json"
"""Verdicts on data that another folder of records holds, too, as `repeated` finds them."""
LIMIT = re.compile(r"(?:\(claim: |against )([^):]+)")
"""In a statistic, what its number is held against."""
NUMBERS = ("value", "low", "high")
BITS = (17, 21, 25, 29, 37)
"""Of the numbers of committed records, of 53 that are measured; 17 are five digits."""
ORDER = ("paper", "small", "long", "quick")
"""Settings of records as they follow each other; others come after, by name."""


def reproduction() -> str:
    """Every verdict of the committed records: claim, published value, ours with interval, n, and the outcome; what
    must be known of a folder of records is in its README.md.
    """
    lines = [
        "# Reproduction",
        "",
        "Verdicts of the records under `papers/results/`, with the commands that made them.",
        "",
    ]
    lines += [evidence(), "**Bold** claims are primary: a figure or table is judged by them.", ""]
    folders = RESULTS.glob("*/*/")
    for folder in sorted(folders, key=lambda p: (p.parent.name != "godey2024", _rank(p.name), p.name)):
        found = sorted(folder.glob("*/study.json"), key=lambda p: (len(p.parent.name), p.parent.name))
        if not found:
            continue
        lines += [f"## {folder.parent.name}, {folder.name} settings", ""]
        note = folder / "README.md"
        lines += [note.read_text("utf-8").strip(), ""] if note.exists() else []
        lines += [told(word(verdict) for path in found for verdict in _distinct(path)), ""]
        for path in found:
            lines += _verdict_table(path)
    return "\n".join(lines)


def beside() -> str:
    """What a figure or table is judged by, a row each: the primary claim, what was published, and what came."""
    lines = [
        "# Our numbers beside the papers'",
        "",
        "Godey et al. publish figures, so a reproduction is a list of claims. Fosse et al. publish tables of single",
        "runs: each of their numbers stands beside ours in [the full list](reproduction.md), which has commands, p and",
        "every other claim, too. Here: the claim that a figure or table is judged by, and what came of it: settings,",
        "of what, number, 95 % interval.",
        "",
    ]
    lines += [evidence()]
    for paper in PAPERS:
        lines += [f"## {paper}", "", "| figure, table | claim | published | number | ours |", "|---|---|---|---|---|"]
        rows: dict[tuple[str, str], dict[str, Any]] = {}
        for path in sorted(RESULTS.glob(f"{paper}/*/*/study.json"), key=lambda p: (number_of(p.parent.name), p)):
            for claim in json.loads(path.read_text("utf-8"))["claims"]:
                if claim["primary"]:
                    row = rows.setdefault((path.parent.name, claim["statement"]), claim | {"found": []})
                    row["found"] += [(path, v) for v in _distinct(path) if v["claim"] == claim["name"]]
        for (name, statement), row in rows.items():
            number = row["found"][0][1]["statistic"].partition(", at ")[0].partition(" (")[0].rstrip(":")
            lines.append(table_row((name, statement, row["published"], number, _by_outcome(row["found"]))))
        lines.append("")
    return "\n".join(lines)


def _by_outcome(found: list[tuple[Path, dict[str, Any]]]) -> str:
    """Outcomes, and of what: with what each was held against, where it is not the same for all."""
    limits = [" ".join(filter(None, LIMIT.findall(verdict["statistic"]))) for _, verdict in found]
    same = len(set(limits)) == 1
    told = [f"Held against {limits[0]}."] if same and limits[0] else []
    for outcome in WORDS:
        alike = [
            f"{' '.join((path.parent.parent.name, verdict['subject'])).strip()}: {_number(verdict, 3) or 'no number'}"
            + (f" against {limit}" if limit and not same else "")
            for (path, verdict), limit in zip(found, limits, strict=True)
            if word(verdict) == outcome
        ]
        told += [f"**{outcome}** {len(alike)}: " + "; ".join(alike)] if alike else []
    return "<br>".join(told)


@cache
def _of_others() -> dict[str, list[list[str]]]:
    """{records: [claim, subject, the records that are judged instead]}"""
    found: dict[str, list[list[str]]] = json.loads(REPEATED.read_text("utf-8"))
    return found


def judged_in(path: Path, verdict: dict[str, Any]) -> str:
    """Other records of the same data, which are judged in place of these; empty where these are the first."""
    place = path.parent.relative_to(RESULTS).as_posix()
    rows = _of_others().get(place, []) if path.is_relative_to(RESULTS) else []
    return next((first for claim, of, first in rows if (claim, of) == (verdict["claim"], verdict["subject"])), "")


def _distinct(path: Path) -> list[dict[str, Any]]:
    """The verdicts of a folder, without those on data that another folder was judged by."""
    return [verdict for verdict in _verdicts(path) if not judged_in(path, verdict)]


def repeated() -> dict[str, list[list[str]]]:
    """Verdicts on data that an earlier folder of the same study holds, too: the same claim of the same system, of which
    every number that both have recorded is the same (but for rounding and the order of sums).
    """
    tables: dict[str, dict[str, pd.DataFrame]] = {}
    found: dict[str, list[list[str]]] = {}
    for path in sorted(RESULTS.glob("*/*/*/study.json")):
        paper, settings, study = path.parent.relative_to(RESULTS).parts
        records = read_table(path.parent / "records.parquet")
        earlier = tables.setdefault(f"{paper}/{study}", {})
        for model in records["model"].dropna().unique():
            rows = records[records["model"] == model]
            first = next((place for place, other in earlier.items() if _same_data(rows, other)), "")
            if not first:
                continue
            place = f"{paper}/{settings}/{study}"
            of_model = [v["claim"] for v in _verdicts(path) if v["subject"] == model]
            found.setdefault(place, []).extend([claim, str(model), f"{paper}/{first}/{study}"] for claim in of_model)
        earlier[settings] = records
    return {place: rows for place, rows in found.items() if rows}


KEYS = ["model", "metric", "site", "stack", "kind", "layer", "head", "step", "seed", "component", "token_policy"]
"""What tells one number of records from another."""


def _same_data(rows: pd.DataFrame, others: pd.DataFrame) -> bool:
    """Whether other records have every number of these rows; a few are looked up before all are."""
    theirs = others[others["model"] == rows["model"].iloc[0]]
    if set(rows["seed"].dropna()) != set(theirs["seed"].dropna()):
        return False
    return _all_in(rows.iloc[:: len(rows) // 50 + 1], theirs) and _all_in(rows, theirs)


def _all_in(rows: pd.DataFrame, others: pd.DataFrame) -> bool:
    """Whether other records have the number of every row; counts of histograms, which jump at ends of bins, apart."""
    rows = rows[~rows["metric"].str.contains("histogram")]
    both = rows[[*KEYS, "value"]].merge(others[[*KEYS, "value"]], on=KEYS, how="left", suffixes=("", "_there"))
    if len(both) != len(rows):
        return False
    return bool(np.allclose(both["value"].to_numpy(float), both["value_there"].to_numpy(float), rtol=2e-3, atol=1e-5))


def _rank(settings: str) -> int:
    return ORDER.index(settings) if settings in ORDER else len(ORDER)


def _verdicts(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((path.parent / "verdicts.json").read_text("utf-8"))
    return found


def _verdict_table(path: Path) -> list[str]:
    study = json.loads(path.read_text("utf-8"))
    claims = {claim["name"]: claim for claim in study["claims"]}
    lines = [f"### {study['study']}: {study['title']}", "", f"    {study['command']}", ""]
    lines += ["| claim | of | published | ours | n | p | verdict |", "|---|---|---|---|---|---|---|"]
    for verdict in _verdicts(path):
        claim = claims[verdict["claim"]]
        entries = (
            f"**{claim['statement']}**" if claim["primary"] is True else claim["statement"],
            verdict["subject"],
            claim.get("published", ""),
            f"{verdict['statistic']} {_number(verdict)}",
            "" if verdict["n"] is None else verdict["n"],
            "" if verdict["p"] is None else f"{verdict['p']:.2g}",
            _said(path, verdict),
        )
        lines.append(table_row(entries))
    return [*lines, "", *_compared(path.parent / COMPARED)]


def _said(path: Path, verdict: dict[str, Any]) -> str:
    """What is said of a claim and why; of data that are judged elsewhere, where."""
    first = judged_in(path, verdict)
    if first:
        return f"the same data as {first}, judged there"
    return " · ".join(filter(None, (f"**{word(verdict)}**", verdict["reason"])))


def _compared(path: Path) -> list[str]:
    """Published numbers beside ours, one by one."""
    found = json.loads(path.read_text("utf-8")) if path.exists() else []
    if not found:
        return []
    numbers = [Compared(**{name: value for name, value in one.items() if name != "verdict"}) for one in found]
    lines = [f"{len(found)} published numbers beside ours: **{counted(numbers)}**.", ""]
    lines += [
        "| number | published | ours | sd | one more run | n | | beside it |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one, number in zip(found, numbers, strict=True):
        spread = "" if number.spread is None else f"{number.spread:.2g}"
        ends = "" if number.predicted is None else "[{:.3g}, {:.3g}]".format(*number.predicted)
        note = "; ".join(filter(None, (number.apart, number.note)))
        entries = (number.place, number.published, _number(one), spread, ends, number.n, number.verdict, note)
        lines.append(table_row(entries))
    return [*lines, ""]


def _number(verdict: dict[str, Any], digits: int = 4) -> str:
    if verdict["value"] is None:
        return ""
    low, high = verdict["low"], verdict["high"]
    bounded = low is not None and high is not None and low == low and high == high
    return f"{verdict['value']:.{digits}g}" + (f" [{low:.{digits}g}, {high:.{digits}g}]" if bounded else "")


def word(verdict: dict[str, Any]) -> str:
    """What is said of a claim: the outcome, and of one that fails, how."""
    return str(verdict.get("failing") or verdict["outcome"])


def told(words: Iterable[str]) -> str:
    """How many verdicts there are of each kind, and how many are evidence: decided, and not so by construction."""
    counts = Counter(words)
    each = ", ".join(f"{counts[kind]} {kind}" for kind in WORDS)
    decided = counts["holds"] + sum(counts[way] for way in FAILING)
    return f"{sum(counts.values())} verdicts: {each}; {decided} are evidence."


def evidence() -> str:
    """The totals of every paper, of all its claims and of the primary ones; data are counted once."""
    lines = []
    for paper in PAPERS:
        found = [(path, v) for path in sorted(RESULTS.glob(f"{paper}/*/*/study.json")) for v in _distinct(path)]
        primary = [word(v) for path, v in found if v["claim"] in _primary(path)]
        lines += [f"{paper}: {told(word(v) for _, v in found)} Of primary claims, {told(primary)}", ""]
    return "\n".join([*lines, ""])


def _primary(path: Path) -> set[str]:
    return {claim["name"] for claim in json.loads(path.read_text("utf-8"))["claims"] if claim["primary"]}


def changed() -> str:
    """Verdicts that are others than before, on the same records, and why: the last round first."""
    moves = moved()
    decided = [m for m in moves if not _only_named(m)]
    lines = [
        "# Verdicts that changed",
        "",
        "The same records, judged before and now; `–`: no such claim. As data: `papers/results/changed.json`.",
        "",
        f"In all: {_summed((m['before'], m['now']) for m in decided)}.",
        f"Besides, {len(moves) - len(decided)} claims that *failed* are now told as contrary, too small or beyond;",
        "nothing else of them changed.",
        "",
        "| records | claim | of | before | now | why |",
        "|---|---|---|---|---|---|",
    ]
    for m in decided:
        numbers = [" ".join(filter(None, (m[side], _short(m[f"{side}_value"])))) for side in ("before", "now")]
        lines.append(table_row((m["records"], m["claim"], m["of"], *numbers, m["why"])))
    lines += ["", "How those fail that failed before:", "", "| study | claim | contrary | too small | beyond |"]
    lines += ["|---|---|---|---|---|"]
    ways: dict[tuple[str, str], Counter[str]] = {}
    for m in moves:
        if _only_named(m):
            paper, _, study = m["records"].split("/")
            ways.setdefault((f"{paper} {study}", m["claim"]), Counter()).update([m["now"]])
    lines += [table_row((*key, *(counts[way] or "" for way in FAILING))) for key, counts in sorted(ways.items())]
    return "\n".join([*lines, "", *_changed_before()])


def _summed(pairs: Iterable[tuple[str, str]]) -> str:
    """`2 holds → undecided, 1 fails → contrary`"""
    return ", ".join(f"{n} {before} → {now}" for (before, now), n in sorted(Counter(pairs).items()))


def _short(value: float | None) -> str:
    return "" if value is None else f"({value:.3g})"


def _only_named(move: dict[str, Any]) -> bool:
    """Whether a verdict that failed is only told more exactly: of the same number."""
    same = move["before_value"] == move["now_value"] or (
        None not in (move["before_value"], move["now_value"])
        and math.isclose(move["before_value"], move["now_value"], rel_tol=2e-3)
    )
    return move["before"] == "fails" and move["now"] in FAILING and same


def moved() -> list[dict[str, Any]]:
    """Every verdict that is another than in the round before, with its number then and now, and why."""
    between, whys = json.loads(BETWEEN.read_text("utf-8")), tomllib.loads(SINCE.read_text("utf-8"))["change"]
    moves = []
    for place, (old, new) in _then_and_now(between).items():
        for claim, of in sorted(old | new):
            before, before_value = old.get((claim, of), ("–", None))
            now, value = new.get((claim, of), ("–", None))
            if before != now:
                told: dict[str, Any] = {"records": place, "claim": claim, "of": of, "before": before, "now": now}
                reason = why(whys, place, claim, of, now)
                moves.append(told | {"before_value": before_value, "now_value": value, "why": reason})
    return moves


Judged = dict[tuple[str, str], tuple[str, float | None]]
"""{(claim, subject): (what was said of it, its number)}"""


def _then_and_now(between: dict[str, Any]) -> dict[str, tuple[Judged, Judged]]:
    """{records: verdicts of the round before, and of now}; published numbers beside ours are records of their own."""
    found: dict[str, tuple[Judged, Judged]] = {}
    for path in sorted(RESULTS.glob("*/*/*/study.json")):
        place = path.parent.relative_to(RESULTS).as_posix()
        now = {(v["claim"], v["subject"]): (word(v), v["value"]) for v in _verdicts(path)}
        found[place] = {(c, s): (o, v) for c, s, o, v in between.get(place, ())}, now
        if f"{place}/compared" in between:
            rows = json.loads((path.parent / COMPARED).read_text("utf-8"))
            numbers = {(row["place"], ""): (row["verdict"], row["value"]) for row in rows}
            then = {(c, s): (o, v) for c, s, o, v in between[f"{place}/compared"]}
            found[f"{place}/compared"] = then, numbers
    return found


def _changed_before() -> list[str]:
    """What changed in the round before the last."""
    before, between = (json.loads(path.read_text("utf-8")) for path in (BEFORE, BETWEEN))
    whys = tomllib.loads(CHANGES.read_text("utf-8"))["change"]
    lines = ["## In the round before", "", "", ""]
    lines += ["| records | claim | of | before | then | why |", "|---|---|---|---|---|---|"]
    pairs = []
    for place in sorted(between):
        old = {(claim, subject): outcome for claim, subject, outcome in before.get(place, ())}
        if place.endswith("/compared") and place not in before:
            continue
        new = {(claim, subject): outcome for claim, subject, outcome, _ in between[place]}
        for key in sorted(old | new):
            pair = old.get(key, "–"), new.get(key, "–")
            if pair[0] != pair[1]:
                pairs.append(pair)
                lines.append(table_row((place, *key, *pair, why(whys, place, *key))))
    lines[2] = f"In all: {_summed(pairs)}."
    return lines


def why(changes: Sequence[dict[str, Any]], place: str, claim: str, of: str, now: str = "") -> str:
    """The first reason given for a claim of these records, of this subject (and which is now this)."""
    fitting = (
        c
        for c in changes
        if fnmatch(place, c["records"]) and fnmatch(of, c.get("of", "*")) and now in c.get("now", [now])
    )
    return next(str(c["why"]) for c in fitting if claim in c.get("claims", [claim]))


def short(done: runner.Finished) -> runner.Finished:
    """A study whose numbers are rounded to as few of BITS as leave all that is concluded as it is; once."""
    columns = [done.records[name].to_numpy(float) for name in NUMBERS]
    rounder = [[rounded(values, bits) for values in columns] for bits in BITS]
    tried = [replace(done, records=done.records.assign(**dict(zip(NUMBERS, new, strict=True)))) for new in rounder]
    if any(each.records.equals(done.records) for each in tried):
        return done
    before = concluded(done)
    return next((each for each in tried if all(map(alike, concluded(each), before))), done)


def concluded(done: runner.Finished) -> list[dict[str, Any]]:
    """Verdicts, and published numbers beside ours."""
    return [asdict(v) for v in done.verdicts] + [asdict(c) | {"outcome": c.verdict} for c in done.compared]


def alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """The same outcome, reason and n; p to a hundredth of it, number and interval to a thousandth of its width."""
    known = [name for name in NUMBERS if other[name] is not None]
    width = other["high"] - other["low"] if len(known) == 3 else 0.0
    if any(one.get(name) != other.get(name) for name in ("claim", "subject", "place", "outcome", "n", "reason")):
        return False
    p, before = (x.get("p") if x.get("p") is not None else math.nan for x in (one, other))
    close = partial(np.isclose, equal_nan=True)
    ends = (one[name] is not None and close(one[name], other[name], 1e-9, 1e-3 * width) for name in known)
    return all(ends) and bool(close(p, before, 0.01, 0))


def rounded(values: NDArray[np.float64], bits: int) -> NDArray[np.float64]:
    """To so many bits of mantissa; not a number and infinite stay as they are."""
    mantissa, exponent = np.frexp(values)
    cut: NDArray[np.float64] = np.ldexp(np.round(mantissa * 2**bits) / 2**bits, exponent)
    return cut


def judge_anew() -> None:
    """Judge every committed record by the code as it is: verdicts, numbers beside published ones, claims."""
    for folder in runner.reproductions(RESULTS):
        read = runner.finished(folder)
        done = short(read)
        if not done.records.equals(read.records):
            write_table(folder / "records.parquet", done.records)
        write_json(folder / "verdicts.json", [asdict(v) for v in done.verdicts])
        if (folder / COMPARED).exists():
            write_json(folder / COMPARED, [asdict(c) | {"verdict": c.verdict} for c in done.compared])
        write_json(folder / "study.json", done.described | {"claims": runner.described_claims(done.study)})
    write_json(REPEATED, repeated())
    _of_others.cache_clear()
    write_json(CHANGED, moved())


if __name__ == "__main__":
    judge_anew()
