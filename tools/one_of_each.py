"""One thing of each kind is added to a copy of this checkout and thrown away: how many files that takes, and which
tests break, before and after the generated pages are written anew.

    python tools/one_of_each.py            # all kinds: some minutes
    python tools/one_of_each.py corpus     # one of them

Tests that can break are run: those that go over everything of a kind, and those of generated pages.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("python tools/documentation.py", "python tests/goldens.py printed")
PAGES_OF_PAPERS = (
    "python papers/tools/paper_pages.py",
    "python papers/tests/papers_goldens.py settings",
)
EVERYWHERE = (
    "tests/test_docs.py -k metrics.md or cli.md or llms.txt",
    "tests/test_imports.py",
    "tests/test_goldens.py -k printed",
)
POINTS = '''"""Mean of the squared length of vectors{more}.

Formula    Σ‖x‖²/n over the vectors.
Range      [0, ∞): 0 if every vector is 0.
Unit       that of the vectors, squared.
Undefined  no vector.
Source     none: it is here to be thrown away.
"""

'''
OF_SUMS = (
    POINTS.format(more="")
    + """import numpy as np

from anisoscope.metrics.base import POSITIVE, Array, Metric, Values, ratio
from anisoscope.reads import Vectors
from anisoscope.sums.groups import Totals


def compute(totals: Totals) -> Values:
    return {"": ratio(totals["norm_square"], totals["n"])}


def reference(units: list[Array]) -> dict[str, float]:
    return {"": float(np.square(np.concatenate(units)).sum(1).mean())}


METRIC = Metric(
    name="energy",
    reads=Vectors(),
    compute=compute,
    needs=frozenset({"n", "norm_square"}),
    reference=reference,
    bounds={"": POSITIVE},
    invariant=frozenset({"rotation", "order"}),
)
"""
)
OF_SAMPLE = (
    POINTS.format(more=" of a sample")
    + """import numpy as np

from anisoscope.metrics.base import POSITIVE, Array, Metric, Values
from anisoscope.reads import Sample
from anisoscope.reads.sample import SampledVectors


def compute(sample: SampledVectors) -> Values:
    return {"": sample.replicates(lambda x: np.square(x).sum(1).mean())}


def reference(units: list[Array]) -> dict[str, float]:
    return {"": float(np.square(np.concatenate(units)).sum(1).mean())}


METRIC = Metric(
    name="sampled_energy",
    reads=Sample(),
    compute=compute,
    reference=reference,
    bounds={"": POSITIVE},
    invariant=frozenset({"rotation", "order"}),
)
"""
)
CORPUS = """
["builtin:letters"]
modality = "text"
description = "the packaged documentation, once more; no download"
maker = "anisoscope.data.builtin:python_docs"
"""
STUDY = '''"""Figure 1: a study that is here to be thrown away."""

from pathlib import Path
from typing import Any

import pandas as pd

from anisoscope.store import as_records
from anisoscope_papers.study import Context, declare


def measure(settings: Any, context: Context) -> pd.DataFrame:
    return as_records(pd.DataFrame({"metric": ["mean_cosine"], "value": [0.5]}))


STUDY = declare(
    "nobody2030",
    "fig1",
    settings={"quick": {}, "paper": {}},
    measure=measure,
    judge=lambda _records: [],
    draw=lambda _records: {},
)
'''
PUBLISHED = """paper = "Nobody: Nothing (2030)"
settings = ["quick", "paper"]

[fig1]
title = "Nothing"
caption = "A study that is here to be thrown away."
source = "nowhere"

[[fig1.claims]]
name = "nothing"
statement = "Nothing is the case"
statistic = "a number"
above = 0.0
primary = true
floor = 0.1
because = "there is none"
"""
OPTION = """    upside_down: Annotated[bool, option("measure upside down", WHAT)] = False
    layers: Annotated["""


class Kind(NamedTuple):
    """What is added, and which tests go over everything of its kind.

    new      path → text of new files
    edits    path → (text, what stands in its place; an empty text: what is added at the end)
    tests    files of tests, with a choice of tests behind a space
    pages    commands that write generated pages
    """

    tests: tuple[str, ...]
    new: Mapping[str, str] = {}
    edits: Mapping[str, tuple[str, str]] = {}
    pages: tuple[str, ...] = PAGES


_METRICS = ("tests/test_names_of_the_field.py",)
KINDS = {
    "metric of sums": Kind(
        ("tests/test_metrics.py -k energy or policy or named", *_METRICS),
        {"src/anisoscope/metrics/energy.py": OF_SUMS},
    ),
    "metric of the sample": Kind(
        ("tests/test_metrics.py -k energy or policy or named", *_METRICS),
        {"src/anisoscope/metrics/sampled_energy.py": OF_SAMPLE},
    ),
    "corpus": Kind(
        ("tests/test_data_sources.py -k name or list or corpora",),
        edits={"src/anisoscope/data/corpora.toml": ("", CORPUS)},
    ),
    "family": Kind(
        (
            "tests/test_sweep.py -k zamba or page or table_has",
            "tests/test_architectures.py -k line",
            "tests/test_families.py -k table",
            "tests/test_doors.py",
        ),
        edits={
            "src/anisoscope/models/families.py": (
                '    "xglm": ',
                '    "zamba": Family(causal=True),\n    "xglm": ',
            )
        },
    ),
    "study": Kind(
        (
            "papers/tests/test_imports_of_papers.py",
            "papers/tests/test_docs_of_papers.py -k generated or page or stud",
            "papers/tests/test_names_of_papers.py",
            "papers/tests/test_cli_of_papers.py",
            "papers/tests/test_papers_goldens.py -k settings",
        ),
        {
            "papers/src/anisoscope_papers/nobody2030/__init__.py": '"""Nobody 2030."""\n',
            "papers/src/anisoscope_papers/nobody2030/published.toml": PUBLISHED,
            "papers/src/anisoscope_papers/nobody2030/fig1_nothing.py": STUDY,
        },
        pages=(*PAGES, *PAGES_OF_PAPERS),
    ),
    "option": Kind(
        (
            "tests/test_options.py",
            "tests/test_every_field.py",
            "tests/test_commands.py",
            "tests/test_what_counts.py",
        ),
        edits={
            "src/anisoscope/measure/settings.py": ("    layers: Annotated[", OPTION)
        },
        pages=(*PAGES, *PAGES_OF_PAPERS),
    ),
}


def copy(target: Path) -> None:
    """The files of this checkout that git knows."""
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for name in listed.splitlines():
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def add(kind: Kind, folder: Path) -> int:
    """Add what is to be added; how many files that touches, of a folder that is new as a whole one."""
    for name, text in kind.new.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    for name, (old, new) in kind.edits.items():
        text = (folder / name).read_text("utf-8")
        if old not in text:
            raise SystemExit(
                f"{name} does not hold {old!r}: tools/one_of_each.py needs another place"
            )
        (folder / name).write_text(
            text.replace(old, new, 1) if old else text + new, "utf-8"
        )
    places = {
        name if (ROOT / name).parent.is_dir() else str(Path(name).parent)
        for name in kind.new
    }
    return len(places | set(kind.edits))


def run(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a program in the copy, which imports the copy's packages."""
    names = ("src", "papers/src", "tests", "tools", "papers/tests", "papers/tools")
    path = ":".join(str(folder / name) for name in names)
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def list_broken(kind: Kind, folder: Path) -> list[str]:
    """Names of the tests that fail, or of what could not be collected."""
    broken = []
    named = (*kind.tests, *EVERYWHERE)
    calls = [[name for name in named if " " not in name]]
    calls += [name.split(" ", 2) for name in named if " " in name]
    for words in calls:
        done = run(
            [
                sys.executable,
                "-m",
                "pytest",
                "-n",
                "0",
                "-q",
                "-p",
                "no:cacheprovider",
                *words,
            ],
            folder,
        )
        for line in done.stdout.splitlines():
            if line.startswith(("FAILED ", "ERROR ")):
                broken.append(line.split(" ", 1)[1].split(" - ")[0])
    return broken


def main(names: list[str]) -> None:
    print(
        "| added | files | tests that break | after the pages are written |\n|---|---|---|---|",
        flush=True,
    )
    for name in names or KINDS:
        kind = KINDS[name]
        with tempfile.TemporaryDirectory(prefix="one-of-each-") as place:
            folder = Path(place)
            copy(folder)
            files = add(kind, folder)
            before = list_broken(kind, folder)
            after: list[str] = []
            if before:
                for command in kind.pages:
                    run([sys.executable, *command.split()[1:]], folder)
                after = list_broken(kind, folder)
        print(
            f"| {name} | {files} | {', '.join(before) or 'none'} | {', '.join(after) or 'none'} |",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
