"""Mutants of a package or module, at random: `make mutants AREA=sums` or `AREA=sums/jackknife COUNT=40 SEED=7`.

cosmic-ray makes them in a copy of the tree, one by one, and runs the tests of `NAMED` on each. Survivors are printed
with their change, but for those that `tests/survivors.toml` names with a reason.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SURVIVORS = ROOT / "tests" / "survivors.toml"
NAMED = {
    "sums": "sums jackknife isotropic metrics",
    "metrics": "metrics class_direction series_studies",
    "capture": "capture fused entry_points",
    "data": "data_text data_sources data_images data_speech classification_data documents seen",
    "models": "families checkpoint_folders towers devices seen",
    "measure": "measuring metrics large inputs seen",
    "runs": "seen series findings no_silent_wrong_number",
    "classes": "classes class_direction",
    "training": "language_model classifier small_models entropy_penalty seen",
    "studies": "judge layers_studies series_studies fosse_studies biased_block_claims results beyond",
    "report": "report results findings",
    "charts": "report results",
    "cli": "formats words_fit seen terminal",
    "api": "words_fit inputs series",
    "integrations": "monitor",
}
"""Area: the files of tests that look at it."""
UNTESTABLE = ("core/NumberReplacer",)
"""Operators whose mutants are tried last: most change a limit that a text states, not a number."""


def tests_of(area: str) -> str:
    """Names of tests for an area."""
    return NAMED.get(area.split("/")[0], "seen inputs no_silent_wrong_number")


def configuration(area: str, tests: str, tree: Path, seconds: float) -> str:
    """What cosmic-ray reads."""
    place = tree / "src" / "anisoscope" / area
    module = place if place.is_dir() else place.with_suffix(".py")
    files = " ".join(f"tests/test_{name}.py" for name in tests.split())
    command = f"{sys.executable} -m pytest -q -x -p no:cacheprovider {files}"
    return f"""[cosmic-ray]
module-path = "{module}"
timeout = {seconds}
excluded-modules = []
test-command = "{command}"
[cosmic-ray.distributor]
name = "local"
"""


def chosen(session: Path, count: int, seed: int) -> int:
    """Skip all mutants of a session but `count`, drawn at random; how many there are."""
    item_of, database = (import_module(f"cosmic_ray.{name}") for name in ("work_item", "work_db"))
    with database.use_db(str(session), database.WorkDB.Mode.open) as work:
        items = sorted(work.pending_work_items, key=lambda item: item.job_id)
        random.Random(seed).shuffle(items)
        items.sort(key=lambda item: item.mutations[0].operator_name.startswith(UNTESTABLE))
        for item in items[count:]:
            work.set_result(item.job_id, item_of.WorkResult(item_of.WorkerOutcome.SKIPPED))
    return len(items)


def outcomes(session: Path) -> list[tuple[bool, str]]:
    """(killed, change) of every mutant that was tried."""
    database = import_module("cosmic_ray.work_db")
    with database.use_db(str(session), database.WorkDB.Mode.open) as work:
        tried = [result for _, result in work.completed_work_items if result.worker_outcome != "skipped"]
    return [(result.is_killed, result.diff or "") for result in tried]


def change(diff: str) -> str:
    """The lines that a mutant changes, one after the other."""
    lines = [line for line in diff.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    return "\n".join(line[:1] + " " + line[1:].strip() for line in lines)


def reason(diff: str, known: Mapping[str, Any]) -> str | None:
    """Why a survivor may survive: of the first entry whose `change` is in it."""
    return next((entry["reason"] for entry in known.get("survivor", ()) if entry["change"] in change(diff)), None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("area", help="a package or module: sums, sums/jackknife, store")
    parser.add_argument("--count", type=int, default=60, help="mutants, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tests", help="names of tests that look at it; default: those of NAMED")
    parser.add_argument("--seconds", type=float, default=300, help="the longest that the tests of one may take")
    given = parser.parse_args()
    place = ROOT / "build" / "mutants"
    shutil.rmtree(place, ignore_errors=True)
    tree, session, config = place / "tree", place / "session.sqlite", place / "config.toml"
    left_out = shutil.ignore_patterns(".git", ".venv", "build", "__pycache__", ".*_cache")
    shutil.copytree(ROOT, tree, ignore=left_out)
    config.write_text(configuration(given.area, given.tests or tests_of(given.area), tree, given.seconds))
    ray = [sys.executable, "-m", "cosmic_ray.cli"]
    path = os.pathsep.join(filter(None, [str(tree / "src"), os.environ.get("PYTHONPATH")]))
    how: dict[str, Any] = {"cwd": tree, "env": os.environ | {"PYTHONPATH": path}, "check": True}
    subprocess.run([*ray, "baseline", str(config)], **how)  # the tests pass without a mutant
    subprocess.run([*ray, "init", str(config), str(session)], **how)
    total = chosen(session, given.count, given.seed)
    subprocess.run([*ray, "exec", str(config), str(session)], **how)
    found, known = outcomes(session), tomllib.loads(SURVIVORS.read_text("utf-8"))
    lived = [diff for killed, diff in found if not killed]
    unexplained = [diff for diff in lived if reason(diff, known) is None]
    print(f"{given.area}, seed {given.seed}: {len(found)} of {total} mutants, {len(lived)} survive,", end=" ")
    print(f"{len(lived) - len(unexplained)} of them for a known reason")
    for diff in unexplained:
        print(f"\n{next((line for line in diff.splitlines() if line.startswith('--- a')), '')}\n{change(diff)}")
    sys.exit(len(unexplained) > 0)


if __name__ == "__main__":
    main()
