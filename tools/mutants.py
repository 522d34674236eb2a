"""Mutants at random: `make mutants AREA=sums`, `AREA=sums/jackknife,top COUNT=40 SEED=7`, or all areas without a name.

cosmic-ray makes them, one by one, in a copy of the tree; the tests that execute the lines of each are run on it, the
quickest first, until one fails. Survivors are printed with their change, but for those that `tests/survivors.toml`
names with a reason. `--again` tries the survivors of before by the tests of now; `--page` writes the table.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import mutant_places
import mutant_tests

ROOT = Path(__file__).parents[1]
SURVIVORS = ROOT / "tests" / "survivors.toml"
PAGE = ROOT / "docs" / "tried.md"
RESULTS = ROOT / "build" / "mutants" / "results.jsonl"
BEGIN, END = (
    "<!-- mutants: written by tools/mutants.py -->\n",
    "<!-- end of mutants -->\n",
)
NAMED = {
    "sums": "sums jackknife isotropic metrics",
    "metrics": "metrics class_direction series_studies",
    "reads": "metrics sampled_metrics what_counts",
    "capture": "capture fused entry_points attention_matrix masks families proof",
    "data": "data_text data_sources data_images data_speech classification_data documents budgets seen",
    "models": "families checkpoint_folders towers devices series seen",
    "measure": "measuring metrics large inputs seen",
    "runs": "seen series findings no_silent_wrong_number merge_of_shards",
    "provenance": "sources code_of_runs no_silent_wrong_number",
    "classes": "classes class_direction",
    "cures": "cures",
    "monitor": "monitor",
    "testing": "laws",
    "report": "report findings report_numbers goldens",
    "charts": "report results goldens",
    "cli": "formats words_fit seen terminal goldens",
    "api": "words_fit inputs series",
    "integrations": "monitor",
    "top": "seen metrics inputs no_silent_wrong_number",
    "papers": "judge asked_of_studies results commands_of_papers",
    "training": "language_model classifier small_models entropy_penalty recipes papers_goldens seen_of_papers",
    "networks": "ports checkpoints packaged",
    "godey2024": "layers_studies series_studies biased_block biased_block_claims results",
    "fosse2023": "fosse_studies results",
    "beyond": "beyond small_models positions modalities results",
}
"""Areas, and the files of tests run on a line that no test executes in its own process, or that is in no function."""
STUDIES = (Path(__file__).parents[1] / "papers" / "src" / "anisoscope_papers").glob(
    "*/published.toml"
)
# Studies that came later stand in no list: their tests have their name.
NAMED |= {
    path.parent.name: f"{path.parent.name} results"
    for path in sorted(STUDIES)
    if path.parent.name not in NAMED
}
OF_PROCESSES = {
    "models/hub.py": "hub hub_again",
    "models/hub_faults.py": "hub",
    "models/download.py": "hub",
    "data/hub.py": "hub_data data_sources",
    "data/items.py": "hub_data",
    "measure/distributed.py": "distributed",
}
"""Modules of which much runs in processes that tests begin: the files of these tests alone are run on such lines."""


def area_of(module: str) -> str:
    """The area of a module's path."""
    *folders, _ = name_of(module).split("/")
    return folders[0] if folders else "top"


def name_of(module: str) -> str:
    """What a module is called in print: its path inside its package, behind `papers/` if it lies beside theirs."""
    of_papers = module.removeprefix("papers/src/anisoscope_papers/")
    if of_papers != module:
        return of_papers if "/" in of_papers else f"papers/{of_papers}"
    return module.removeprefix("src/anisoscope/")


def reason(found: Mapping[str, Any], known: Mapping[str, Any]) -> str:
    """Why a survivor may survive: of the first entry that names its change, and its module where the entry has one."""
    for entry in known.get("survivor", ()):
        if (
            entry.get("module", "") in found["module"]
            and entry["change"] in found["change"]
        ):
            return str(entry["reason"])
    return ""


def commit() -> str:
    """The commit that is checked out."""
    words = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def results() -> list[dict[str, Any]]:
    """The last result of every mutant that was tried."""
    last = {
        (
            each["area"],
            each["seed"],
            each["module"],
            each["operator"],
            each["change"],
            each["nth"],
        ): each
        for each in mutant_tests.written(RESULTS)
    }
    return list(last.values())


def rows(found: Iterable[Mapping[str, Any]]) -> list[str]:
    """A table in Markdown, a row for each area."""
    known, found = tomllib.loads(SURVIVORS.read_text("utf-8")), list(found)
    table = [
        "| area | places | tried | killed | explained | survive | killed of those that can be |"
    ]
    table += ["|---|---:|---:|---:|---:|---:|---:|"]
    sums = [0, 0, 0, 0]
    for area in [
        area for area in sorted(NAMED) if any(each["area"] == area for each in found)
    ]:
        own = [each for each in found if each["area"] == area]
        lived = [each for each in own if not each["killer"]]
        explained = sum(bool(reason(each, known)) for each in lived)
        counts = [len(own), len(own) - len(lived), explained, len(lived) - explained]
        table.append(_row(area, f"{own[-1]['places']:,}", counts))
        sums = [a + b for a, b in zip(sums, counts, strict=True)]
    return [*table, _row("**all**", "", sums)]


def _row(area: str, places: str, counts: list[int]) -> str:
    share = f"{100 * counts[1] / max(1, counts[0] - counts[2]):.1f}".removesuffix(".0")
    return f"| {area} | {places} | {' | '.join(map(str, counts))} | {share} % |"


def write(found: list[dict[str, Any]]) -> None:
    """The table onto the page, with what was left out and what survives."""
    known = tomllib.loads(SURVIVORS.read_text("utf-8"))
    lived = [each for each in found if not each["killer"] and not reason(each, known)]
    lines = [
        f"- `{name_of(each['module'])}`: `{each['change'].replace(chr(10), '` → `')}`"
        for each in lived
    ]
    seeds = ", ".join(sorted({str(each["seed"]) for each in found}))
    limits = " or ".join(
        f"{seconds:g}" for seconds in sorted({each["seconds"] for each in found})
    )
    commits = list(dict.fromkeys(each["commit"] for each in found))
    tried = "" if commits[-1] == commits[0] else f", the last tried at {commits[-1]}"
    head = f"Mistakes drawn with seed {seeds} at commit {commits[0]}{tried}."
    head = f"{head} For each, the tests of its lines ran for {limits} s in all."
    known_to_live = ["", "What survives:" * bool(lines), "", *lines, ""]
    text = "\n".join(
        ["", head, "", mutant_places.LEFT_OUT, "", *rows(found), *known_to_live]
    )
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    PAGE.write_text(before + BEGIN + text + END + rest.partition(END)[2], "utf-8")


def show(found: list[dict[str, Any]]) -> int:
    """Survivors without a reason, printed; how many."""
    known = tomllib.loads(SURVIVORS.read_text("utf-8"))
    lived = [each for each in found if not each["killer"] and not reason(each, known)]
    for each in lived:
        seen = (
            f"{each['tests']} tests" if each["executed"] else "no test in its process"
        )
        print(f"\n{each['module']}:{each['line']} ({seen})\n{each['change']}")
    print("\n".join(["", *rows(found)]))
    return len(lived)


def jobs(given: argparse.Namespace, tree: Path) -> list[dict[str, Any]]:
    """Mutants to try, each with its area and the place's number."""
    if given.again:
        known = tomllib.loads(SURVIVORS.read_text("utf-8"))
        again = [
            e
            for e in results()
            if not e["killer"] and not reason(e, known) and e["area"] in given.areas
        ]
        return [
            dict(each, text=text)
            for each in again
            if (text := _again(tree, each)) is not None
        ]
    made = []
    for area in given.areas:
        places, mutants = mutant_places.drawn(tree, area, given.count, given.seed)
        for nth, each in enumerate(mutants):
            named = {
                "area": area_of(each.module),
                "places": places,
                "seed": given.seed,
                "nth": nth,
            }
            made.append(named | vars(each))
    done = {
        (e["seed"], e["module"], e["operator"], e["change"], e["nth"])
        for e in results()
    }
    return [
        e
        for e in made
        if (e["seed"], e["module"], e["operator"], e["change"], e["nth"]) not in done
    ]


def _again(tree: Path, found: Mapping[str, Any]) -> str | None:
    """The text of a mutant in today's module: of the same change, the nearest."""
    path = tree / found["module"]
    source, best = path.read_text("utf-8"), (10**9, None)
    for (_, (line, _)), ways in mutant_places.places(tree, path).items():
        if abs(line - found["line"]) > 60:
            continue
        for name, occurrence in ways:
            if name != found["operator"] or abs(line - found["line"]) >= best[0]:
                continue
            text = mutant_places.mutated(path, name, occurrence)
            if (
                text is not None
                and mutant_places.changed(source, text) == found["change"]
            ):
                best = (abs(line - found["line"]), text)  # type: ignore[assignment]
    return best[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "areas",
        nargs="?",
        default=",".join(NAMED),
        help="packages or modules: sums,sums/jackknife,top",
    )
    parser.add_argument(
        "--count", type=int, default=40, help="mutants of each, drawn at random"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--seconds",
        type=float,
        default=30,
        help="the longest that the tests of one take without it",
    )
    parser.add_argument(
        "--tests",
        default="",
        help="files of tests that are looked at: jackknife,sums (all if none)",
    )
    parser.add_argument(
        "--again", action="store_true", help="try those that survived before"
    )
    parser.add_argument(
        "--page",
        action="store_true",
        help="write the table of all that were tried, and try none",
    )
    given = parser.parse_args()
    if given.page:
        write(results())
        sys.exit(show(results()) > 0)
    given.areas = given.areas.split(",")
    for area in given.areas:
        try:
            mutant_places.modules(ROOT, area)
        except ValueError as error:
            parser.error(str(error))
    place = RESULTS.parent / f"work-{os.getpid()}"
    try:
        tried(given, place)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    areas = {area.split("/")[0] for area in given.areas}
    sys.exit(show([each for each in results() if each["area"] in areas]) > 0)


def tried(given: argparse.Namespace, place: Path) -> None:
    """Try the mutants that are asked for, and write down how each ended."""
    tree, name = place / "tree", commit()
    left_out = shutil.ignore_patterns(
        ".git", ".venv", "build", "__pycache__", ".*_cache"
    )
    shutil.copytree(ROOT, tree, ignore=left_out)
    mutant_tests.import_slow()
    tests = mutant_tests.mapped(
        tree, RESULTS.parent / "lines", given.tests.split(",") if given.tests else ()
    )
    outside = {f"src/anisoscope/{name}": files for name, files in OF_PROCESSES.items()}
    trial = mutant_tests.Trial(
        tree, tests, lambda module: NAMED[area_of(module)], outside, given.seconds
    )
    todo = jobs(given, tree)
    for number, each in enumerate(todo):
        began = time.monotonic()
        each = (
            each
            | trial(each["module"], each["line"], each.pop("text"))
            | {"commit": name, "seconds": given.seconds}
        )
        with RESULTS.open("a", encoding="utf-8") as file:
            file.write(json.dumps(each) + "\n")
        how = each["killer"].rpartition("/")[2] or "SURVIVES"
        print(
            f"{number + 1}/{len(todo)} {name_of(each['module'])}:{each['line']} {time.monotonic() - began:.1f} s {how}",
            flush=True,
        )


if __name__ == "__main__":
    main()
