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
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pages import table_row

from anisoscope.store import write_json, write_table
from anisoscope_papers import runner
from anisoscope_papers.names import PAPERS, number_of
from anisoscope_papers.runner import COMPARED
from anisoscope_papers.study import OUTCOMES, Compared, counted

RESULTS = Path(__file__).resolve().parents[1] / "results"
BEFORE, CHANGES = RESULTS / "before.json", RESULTS / "changes.toml"
"""Outcomes of the same records as they were judged before, and why they changed."""
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
        lines += [told(verdict["outcome"] for path in found for verdict in _verdicts(path)), ""]
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
                    row["found"] += [(path, v) for v in _verdicts(path) if v["claim"] == claim["name"]]
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
    for outcome in OUTCOMES:
        alike = [
            f"{' '.join((path.parent.parent.name, verdict['subject'])).strip()}: {_number(verdict, 3) or 'no number'}"
            + (f" against {limit}" if limit and not same else "")
            for (path, verdict), limit in zip(found, limits, strict=True)
            if verdict["outcome"] == outcome
        ]
        told += [f"**{outcome}** {len(alike)}: " + "; ".join(alike)] if alike else []
    return "<br>".join(told)


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
            " · ".join(filter(None, (f"**{verdict['outcome']}**", verdict["reason"]))),
        )
        lines.append(table_row(entries))
    return [*lines, "", *_compared(path.parent / COMPARED)]


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


def told(outcomes: Iterable[str]) -> str:
    """How many verdicts there are of each outcome, and how many are evidence: decided, and not so by construction."""
    counts = Counter(outcomes)
    each = ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES)
    return f"{sum(counts.values())} verdicts: {each}; {counts['holds'] + counts['fails']} are evidence."


def evidence() -> str:
    """The totals of every paper, of all its claims and of the primary ones."""
    lines = []
    for paper in PAPERS:
        found = [(path, v) for path in sorted(RESULTS.glob(f"{paper}/*/*/study.json")) for v in _verdicts(path)]
        primary = [v["outcome"] for path, v in found if v["claim"] in _primary(path)]
        lines += [f"{paper}: {told(v['outcome'] for _, v in found)} Of primary claims, {told(primary)}", ""]
    return "\n".join([*lines, ""])


def _primary(path: Path) -> set[str]:
    return {claim["name"] for claim in json.loads(path.read_text("utf-8"))["claims"] if claim["primary"]}


def changed() -> str:
    """Verdicts that are others than before, on the same records, and why."""
    before, whys = json.loads(BEFORE.read_text("utf-8")), tomllib.loads(CHANGES.read_text("utf-8"))["change"]
    lines = [
        "# Verdicts that changed",
        "",
        "The same records (where cells were trained anew, it is said), judged before and now; `–`: no such claim.",
        "",
    ]
    lines += ["| records | claim | of | before | now | why |", "|---|---|---|---|---|---|"]
    moved: Counter[tuple[str, str]] = Counter()
    for path in sorted(RESULTS.glob("*/*/*/study.json")):
        place = path.parent.relative_to(RESULTS).as_posix()
        old = {(claim, subject): outcome for claim, subject, outcome in before.get(place, ())}
        new = {(v["claim"], v["subject"]): v["outcome"] for v in _verdicts(path)}
        both = {place: (old, new)}
        if f"{place}/compared" in before:
            numbers = {(c["place"], ""): c["verdict"] for c in json.loads((path.parent / COMPARED).read_text("utf-8"))}
            both[f"{place}/compared"] = {(c, s): o for c, s, o in before[f"{place}/compared"]}, numbers
        for where, (old, new) in both.items():
            for key in sorted(old | new):
                pair = old.get(key, "–"), new.get(key, "–")
                moved[pair] += 1
                if pair[0] != pair[1]:
                    lines.append(table_row((where, *key, *pair, why(whys, where, *key))))
    summary = [f"{n} {a} → {b}" for (a, b), n in sorted(moved.items()) if a != b]
    return "\n".join([*lines[:3], f"In all: {', '.join(summary)}.", *lines[3:]])


def why(changes: Sequence[dict[str, Any]], place: str, claim: str, of: str) -> str:
    """The first reason given for a claim of these records, of this subject."""
    fitting = (c for c in changes if fnmatch(place, c["records"]) and fnmatch(of, c.get("of", "*")))
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


if __name__ == "__main__":
    judge_anew()
