"""The three corpora of Fosse et al. 2023 with human rationales, under $ANISOSCOPE_DATA or from their public homes."""

import os
from collections import Counter
from pathlib import Path
from typing import Any

from anisoscope.data import public_homes
from anisoscope.data.labelled import Example, LabelledCorpus, divided
from anisoscope.data.tables import read_table, refused

YELPHAT = ("negative", "positive")
HATEXPLAIN = ("normal", "hatespeech", "offensive")
ESNLI = ("neutral", "entailment", "contradiction")
"""Classes in the order of the authors' code."""
YELPHAT_TRAIN = 0.7
"""Share of the reviews outside the test sets that is trained on; the authors split at random, without a seed."""
YELPHAT_TESTS = ("test_yelp50", "test_yelp100", "test_yelp200")

Rows = list[dict[str, Any]]


def open_yelphat(name: str, seed: int) -> LabelledCorpus:
    """Reviews; `test` is all three published test sets, which are splits of their own too.

    A rationale is the share of annotators who marked a word; of part of the training reviews only their sum is known,
    which is divided by its largest value.
    """
    folder = _folder("yelphat")
    files = ("train", *YELPHAT_TESTS)
    rows = {file: _read(folder / f"{file}.jsonl.gz") for file in files} if folder else public_homes.yelphat()
    read = {file: [_review(row) for row in found] for file, found in rows.items()}
    splits = divided(read["train"], {"train": YELPHAT_TRAIN, "validation": 1 - YELPHAT_TRAIN}, seed)
    tests = {file: tuple(read[file]) for file in YELPHAT_TESTS}
    splits |= {"test": tuple(e for test in tests.values() for e in test), **tests}
    return LabelledCorpus(name, YELPHAT, splits, source=_source(folder, split_seed=seed))


def _review(row: dict[str, Any]) -> Example:
    marks = row["human_attention"]
    annotators = row["n_hams"] or max([*marks, 1])
    return Example(tuple(row["tokens"]), int(row["label"]), None, tuple(min(m / annotators, 1.0) for m in marks))


def open_hatexplain(name: str, seed: int) -> LabelledCorpus:  # noqa: ARG001 (its splits are the official ones)
    """Posts by majority label, official splits; posts without a majority are in none."""
    folder = _folder("hatexplain")
    files = {"train": "train", "validation": "val", "test": "test"}
    if folder:
        rows = {split: _read(folder / f"{file}.jsonl.gz") for split, file in files.items()}
    else:
        rows = public_homes.hatexplain()
    splits = {split: tuple(map(_post, found)) for split, found in rows.items()}
    return LabelledCorpus(name, HATEXPLAIN, splits, tokenised=True, source=_source(folder))


def _post(row: dict[str, Any]) -> Example:
    words, maps = tuple(row["tokens"]), row.get("rationales") or []
    marks = tuple(sum(column) / len(maps) for column in zip(*maps, strict=True)) if maps else row.get("evidence")
    return Example(words, HATEXPLAIN.index(row["label"]), None, None if marks is None else tuple(map(float, marks)))


def open_esnli(name: str, seed: int) -> LabelledCorpus:  # noqa: ARG001 (its splits are the official ones)
    """Pairs of premise and hypothesis; from $ANISOSCOPE_DATA the training part has 18,000 pairs without highlights.

    Highlights that point behind the last word (a defect of the corpus) are left out and counted.
    """
    folder = _folder("esnli")
    files = {"train": "snli_train18k", "validation": "dev", "test": "test"}
    rows = {s: _read(folder / f"{f}.jsonl.gz") for s, f in files.items()} if folder else public_homes.esnli()
    splits = {split: tuple(map(_pair, found)) for split, found in rows.items()}
    known = sum(e.rationale is not None for split in splits.values() for e in split)
    lost = sum(bool(row.get("annotations")) for found in rows.values() for row in found) - known
    return LabelledCorpus(name, ESNLI, splits, source=_source(folder, unusable_highlights=lost))


def _pair(row: dict[str, Any]) -> Example:
    first, second = tuple(row["premise"].split()), tuple(row["hypothesis"].split())
    notes = row.get("annotations") or []
    marks: Counter[int] = Counter()
    for note in notes:
        marks.update({*note["premise_highlight"], *(len(first) + i for i in note["hypothesis_highlight"])})
        if max(note["premise_highlight"], default=0) >= len(first):
            notes = []
            break
    count = len(first) + len(second)
    sound = bool(notes) and all(i < count for i in marks)
    shares = tuple(marks[i] / len(notes) for i in range(count)) if sound else None
    return Example(first, ESNLI.index(row["label"]), second, shares)


def _folder(name: str) -> Path | None:
    """The corpus' folder under $ANISOSCOPE_DATA, if it is there."""
    folder = Path(os.environ.get("ANISOSCOPE_DATA") or "/nonexistent", name)
    return folder if folder.is_dir() else None


def _read(path: Path) -> Rows:
    rows = []
    for row in read_table(path):
        if row.fault:
            raise refused(path, row, "copy the file again")
        rows.append(row.columns)
    return rows


def _source(folder: Path | None, **more: object) -> dict[str, Any]:
    return {"kind": "ANISOSCOPE_DATA" if folder else "public home", **more}
