"""The campaign: `python -m campaign --seed 7 --only kills,hub`. Two parts at a time, each in a process of its own.

A part that ended with this seed and commit is not run again, unless it is named; what failed lies in `build/campaign`.
The table is printed, and after a whole campaign written into docs/tried.md.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from campaign.cases import PARTS, Found, run

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tried.md"
BEGIN, END = (
    "<!-- campaign: written by make campaign -->\n",
    "<!-- end of campaign -->\n",
)
TABLES = 2
"""Campaigns whose tables are kept on the page, the newest first."""


def commit():
    """The commit that is checked out, with `+` where files differ from it."""
    told = {"cwd": ROOT, "capture_output": True, "text": True, "check": True}
    name = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], **told
    ).stdout.strip()
    sources = ("src", "papers", "tests")
    changed = subprocess.run(
        ["git", "status", "--porcelain", "--untracked-files=no", *sources], **told
    ).stdout
    return f"{name}{'+' * bool(changed.strip())}"


def in_process(part, seed, place, seconds):
    """A part in a process of its own; what it came to."""
    command = [
        sys.executable,
        "-m",
        "campaign",
        "--part",
        part,
        "--seed",
        str(seed),
        "--seconds",
        str(seconds),
    ]
    path = [str(ROOT / name) for name in ("src", "papers/src", "tests", "tools")]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(path),
        "OMP_NUM_THREADS": "1",
        "CAMPAIGN": str(place),
    }
    environment |= {
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONWARNINGS": "ignore",
        "TQDM_DISABLE": "1",
    }
    done = subprocess.run(command, env=environment, cwd=ROOT)
    kept = place / f"{part}.json"
    if done.returncode not in (0, 1) or not kept.exists():
        return Found(
            part,
            seed,
            failures={"all": 1},
            told=[f"the part itself ended with {done.returncode}"],
        )
    return Found(**json.loads(kept.read_text()))


def table(found):
    """Rows of a table in Markdown: cases and failures by part and kind."""
    rows = ["| part | kind | cases | failures |", "|---|---|---:|---:|"]
    for part in found:
        kinds = part.cases.keys() | part.failures.keys()
        rows += [
            f"| {part.part} | {k} | {part.cases.get(k, 0):,} | {part.failures.get(k, 0):,} |"
            for k in sorted(kinds)
        ]
    cases, failures = (
        sum(sum(getattr(p, name).values()) for p in found)
        for name in ("cases", "failures")
    )
    return "\n".join([*rows, f"| **all** | | **{cases:,}** | **{failures:,}** |"])


def write(found, seed, name, minutes):
    """The table onto the page, before the one of another campaign."""
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    kept, _, after = rest.partition(END)
    tables = [
        text
        for text in re.split(r"(?=^### Seed )", kept, flags=re.MULTILINE)
        if text.startswith("### Seed ")
    ]
    tables = [text for text in tables if not text.startswith(f"### Seed {seed},")]
    own = f"### Seed {seed}, commit {name}, {minutes:.0f} minutes\n\n{table(found)}\n\n"
    PAGE.write_text(
        before + BEGIN + "\n" + "".join([own, *tables][:TABLES]) + END + after, "utf-8"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    parser.add_argument(
        "--only", default="", help=f"parts, with commas: {', '.join(PARTS)}"
    )
    parser.add_argument(
        "--seconds", type=float, default=1500, help="the longest that a part may take"
    )
    parser.add_argument("--part", default="", help="this part, in this process")
    given = parser.parse_args()
    if given.part:
        sys.exit(
            not run(
                given.part,
                given.seed,
                Path(os.environ["CAMPAIGN"]),
                seconds=given.seconds,
            ).sound
        )
    name, began = commit(), time.monotonic()
    place = ROOT / "build" / "campaign" / f"{given.seed}-{name.strip('+')}"
    place.mkdir(parents=True, exist_ok=True)
    only = (
        [part for part in PARTS if part in given.only.split(",")]
        if given.only
        else list(PARTS)
    )
    print(f"seed {given.seed}, commit {name}: {', '.join(only)}", flush=True)

    def part(which):
        kept = place / f"{which}.json"
        if not given.only and kept.exists() and not name.endswith("+"):
            return Found(**json.loads(kept.read_text()))
        found = in_process(which, given.seed, place, given.seconds)
        print(
            f"{which}: {sum(found.cases.values()):,} cases in {found.seconds:.0f} s",
            flush=True,
        )
        return found

    with ThreadPoolExecutor(2) as pool:
        parts = list(
            pool.map(part, sorted(only, key=PARTS.index, reverse=True))
        )  # the longest first
    parts.sort(key=lambda found: PARTS.index(found.part))
    print(table(parts))
    for line in [line for found in parts for line in (*found.short, *found.told)]:
        print(line)
    if not given.only:
        seconds = sum(found.seconds for found in parts) / 2
        write(parts, given.seed, name, max(seconds, time.monotonic() - began) / 60)
    sys.exit(not all(found.sound for found in parts))


if __name__ == "__main__":
    main()
