"""Memory and time of planning a shard of a folder of texts, as the folder grows to 1 TB.

    python benchmarks/planning.py     # of 10 to 10,000 files of 100 MB one in a shard, then 1 to 100 of 1 MB in one
    python benchmarks/planning.py --files 10 100 --size 1 --shares 1 10

All files of a folder are hard links to one file of JSON lines, so that 1 TB takes 100 MB of the disk. Nothing but the
names tells them apart, and a shard reads each of its own. Each row is a process of its own, which opens the batches of
its shard by the tokenizer of the built-in model, and builds the last one. Peak memory is the highest of the process,
less what it held before.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from pairs import keep, options, with_threads
from scale import memory

from anisoscope.data.builtin import python_docs
from anisoscope.data.opening import open_plan
from anisoscope.models.load import load

MB = 10**6


def write_folder(folder: Path, files: int, size: int) -> None:
    """A folder of so many tables, each of `size` bytes in rows of paragraphs; all are one file on the disk."""
    folder.mkdir()
    texts, _ = python_docs(None)
    rows = [
        json.dumps({"text": text}) + "\n"
        for page in texts.documents
        for text in page.split("\n\n")
        if text.strip()
    ]
    first = folder / "00000.jsonl"
    with first.open("w") as file:
        written = 0
        while written < size:
            for row in rows:
                written += file.write(row)
                if written >= size:
                    break
    for number in range(1, files):
        os.link(first, folder / f"{number:05}.jsonl")


def one(folder: str, shards: int) -> None:
    """Plan the last shard: prints batches, tokens, seconds and peak memory."""
    subject = load("builtin:minilm")
    open_plan(
        "builtin:python-docs",
        subject.model,
        subject.processor,
        modality="text",
        limit=1,
    )
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
    before, begun = memory("VmRSS"), time.perf_counter()
    plan, _ = open_plan(
        folder,
        subject.model,
        subject.processor,
        modality="text",
        files=(shards - 1, shards),
    )
    plan[len(plan) - 1]
    print(
        len(plan),
        sum(plan.tokens),
        time.perf_counter() - begun,
        memory("VmHWM") - before,
    )


def planned(place: Path, files: int, size: int, share: int) -> dict[str, object]:
    """A row: a folder of so many files of `size` MB, of which each shard has `share`."""
    folder = place / f"{files}-{size}"
    write_folder(folder, files, size * MB)
    command = [sys.executable, __file__, "--one", str(folder), str(files // share)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    batches, tokens, seconds, peak = map(float, done.stdout.split()[-4:])
    row = {
        "files": files,
        "share": share,
        "MB a file": size,
        "corpus GB": files * size / 1000,
        "batches": int(batches),
    }
    row |= {
        "tokens": int(tokens),
        "wall s": round(seconds, 1),
        "peak MiB": round(peak, 1),
    }
    print(row, flush=True)
    return row


def main(argv: Sequence[str] | None = None) -> None:
    parser = options(__doc__)
    parser.add_argument(
        "--files",
        type=int,
        nargs="+",
        default=[10, 100, 1000, 10_000],
        help="one in a shard",
    )
    parser.add_argument("--size", type=int, default=100, help="MB of each of these")
    parser.add_argument(
        "--shares",
        type=int,
        nargs="*",
        default=[1, 10, 100],
        help="files of 1 MB in a shard",
    )
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as place, with_threads(1):
        rows = [planned(Path(place), files, given.size, 1) for files in given.files]
        rows += [
            planned(Path(place), 2 * share, 1, share)
            for share in given.shares
            if (share, given.size) != (1, 1)
        ]
    keep(
        given.results,
        "planning",
        [{"threads": 1} | row for row in rows],
        ("files", "share", "MB a file"),
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        with with_threads(1):
            one(sys.argv[2], int(sys.argv[3]))
    else:
        main()
