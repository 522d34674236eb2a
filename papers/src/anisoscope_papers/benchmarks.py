"""Open the three corpora of Fosse et al. 2023 with human rationales, from $ANISOSCOPE_DATA or their public homes.

Files are downloaded once, into the data folder of scikit-learn. Rows have the same form as in $ANISOSCOPE_DATA.
"""

import csv
import json
import re
import warnings
from collections import Counter
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any, NamedTuple

from anisoscope.data.labelled import (
    TEST,
    TRAIN,
    VALIDATION,
    Example,
    LabelledCorpus,
    split_at_random,
)
from anisoscope.data.local import find_copy
from anisoscope.data.table_rows import read_rows_strict
from anisoscope.errors import CorpusError

RAW = "https://raw.githubusercontent.com"
# Where their makers publish them. The authors of the paper read e-SNLI and YELP-HAT
# from here too, and HateXplain from the hub, in the same splits.
HATEXPLAIN = f"{RAW}/hate-alert/HateXplain/master/Data"
ESNLI = f"{RAW}/OanaMariaCamburu/e-SNLI/master/dataset"
YELPHAT = f"{RAW}/cansusen/Human-Attention-for-Text-Classification/master/raw_data"
# Part n is published as ham_part{n}.csv; parts 1, 6 and 8 are the test sets of 50, 100
# and 200 words. Part 2 is used by nobody.
YELPHAT_PARTS = {
    "train": (3, 4, 5, 7),
    "test_yelp50": (1,),
    "test_yelp100": (6,),
    "test_yelp200": (8,),
}
YELPHAT_TRAIN = 0.7  # of the reviews outside the test sets; the authors split at random, without a seed
# Gold labels of pairs whose annotators did not agree.
NO_LABEL = ("-", "", None)
Row = dict[str, Any]
Rows = list[Row]


def open_benchmark(name: str, seed: int) -> LabelledCorpus:
    """Open a labelled corpus (yelphat, hatexplain or esnli) in its official splits.

    YELP-HAT has no validation split: its training part is divided at random by `seed`. Its three test sets are joined
    in `test`, and are also splits of their own.
    """
    known = BENCHMARKS[name]
    folder = find_copy(name)
    source: dict[str, Any] = {"kind": "ANISOSCOPE_DATA" if folder else "public home"}
    rows = _read_copy(known, folder) if folder else known.home()
    splits: dict[str, tuple[Example, ...]] = {}
    # The same form of rows from both sources: one function makes their examples.
    for split, of_split in rows.items():
        splits[split] = tuple(known.example(row, known.labels) for row in of_split)
    # YELP-HAT. The authors split at random in every run; here the seed says how.
    if VALIDATION not in splits:
        splits = _split_training(splits, seed)
        source["split_seed"] = seed
    # Of e-SNLI alone: how many annotated pairs lost their marks (`_make_pair_example`).
    marked = usable = 0
    for of_split in rows.values():
        marked += sum(bool(row.get("annotations")) for row in of_split)
    for examples in splits.values():
        usable += sum(example.rationale is not None for example in examples)
    if marked:
        source["unusable_highlights"] = marked - usable
    return LabelledCorpus(name, known.labels, splits, known.tokenised, source)


def _read_copy(known: "Benchmark", folder: Path) -> dict[str, Rows]:
    """Read a local copy of a labelled corpus (`known`): {split: rows}."""
    rows = {}
    for split, file in known.files.items():
        path = folder / f"{file}.jsonl.gz"
        rows[split] = [
            row.columns for row in read_rows_strict(path, "copy the file again")
        ]
    return rows


def _split_training(
    splits: dict[str, tuple[Example, ...]], seed: int
) -> dict[str, tuple[Example, ...]]:
    """Divide the training split at random into training and validation, and join the other splits as `test`.

    Returns {split: examples} of these three, followed by the other splits on their own. `seed`: of the division.
    """
    others = dict(splits)
    training = list(others.pop(TRAIN))
    # Only the training part is divided: the test sets are those of the publishers.
    parts = split_at_random(
        training, {TRAIN: YELPHAT_TRAIN, VALIDATION: 1 - YELPHAT_TRAIN}, seed
    )
    joined: list[Example] = []
    for examples in others.values():
        joined += examples
    return {**parts, TEST: tuple(joined), **others}


def fetch(url: str) -> Path:
    """Download the file at `url` once and return its local copy. CorpusError if it cannot be downloaded."""
    from sklearn.datasets import fetch_file  # type: ignore[import-untyped]

    try:
        # scikit-learn warns at every try of a download that fails.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Path(fetch_file(url))
    except (OSError, ValueError) as error:
        got = " ".join(str(error).split())[:160]
        cure = "connect to the network, set ANISOSCOPE_DATA, or use --corpus synthetic, which needs no data"
        raise CorpusError(f"to download {url}", got, cure) from None


def _make_review_example(row: Row, _labels: tuple[str, ...]) -> Example:
    """Make an example from a YELP-HAT review: each word with the share of annotators who marked it.

    If the number of annotators is unknown, marks are divided by the largest one.
    """
    marks = row["human_attention"]
    # Parts 3 to 5 of the local copy hold only the sum of the maps, not how many there
    # were; 1 keeps a review without any mark from a division by 0.
    annotators = row["n_hams"] or max([*marks, 1])
    shares = tuple(min(mark / annotators, 1.0) for mark in marks)
    return Example(tuple(row["tokens"]), int(row["label"]), None, shares)


def download_yelphat() -> dict[str, Rows]:
    """Download YELP-HAT and return {split: rows}, one row per review."""
    splits: dict[str, Rows] = {}
    for split, parts in YELPHAT_PARTS.items():
        splits[split] = []
        for part in parts:
            splits[split] += read_yelphat(fetch(f"{YELPHAT}/ham_part{part}.csv"))
    return splits


def read_yelphat(path: Path) -> Rows:
    """Read the reviews of one published table of YELP-HAT, which has a row per annotator.

    Rows with the same text are one review. Annotations with another number of words than the first are left out.
    """
    reviews: dict[str, Row] = {}
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        for row in csv.DictReader(file):
            words, marks = _parse_spans(row["Answer.html_output"])
            # Not by threes: in part 7 some reviews have fewer or more than three rows.
            key = row.get("Input.text") or " ".join(words)
            review: Row = {
                "tokens": words,
                "label": int(float(row["Input.label"])),
                "hams": [],
            }
            reviews.setdefault(key, review)["hams"].append(marks)
    rows = []
    for review in reviews.values():
        size = len(review["tokens"])
        # A map of another length cannot be laid over the words of the first annotator.
        maps = [marks for marks in review["hams"] if len(marks) == size]
        if size and maps:
            # [word]: how many annotators marked it.
            summed = [sum(column) for column in zip(*maps, strict=True)]
            rows.append(
                {**review, "hams": maps, "human_attention": summed, "n_hams": len(maps)}
            )
    return rows


ACTIVE = r"""class\s*=\s*["'][^"']*\bactive\b"""
"""The attribute of a span that an annotator clicked on, in either kind of quotation marks."""


def _parse_spans(page: str) -> tuple[list[str], list[int]]:
    """Read an annotator's HTML page: (words, 1 for each marked word (span of class `active`), else 0)."""
    words = list[str]()
    marks = list[int]()
    for attributes, inside in re.findall(
        r"<span\b([^>]*)>(.*?)</span>", page, re.DOTALL | re.IGNORECASE
    ):
        # A span may hold further tags, or several words, which are then marked together.
        found = unescape(re.sub("<[^>]*>", " ", inside)).split()
        is_marked = re.search(ACTIVE, attributes) is not None
        words += found
        marks += [int(is_marked)] * len(found)
    return words, marks


def _make_post_example(row: Row, labels: tuple[str, ...]) -> Example:
    """Make an example from a HateXplain post, with its label and the share of annotators who marked each word."""
    words = tuple(row["tokens"])
    # The local copy has no maps of annotators for its training posts, only their union
    # (`evidence`); the published file has maps for all. Normal posts have none.
    maps = row.get("rationales") or []
    label = labels.index(row["label"])
    shares = row.get("evidence")
    if maps:
        shares = [sum(column) / len(maps) for column in zip(*maps, strict=True)]
    if shares is None:
        return Example(words, label, None, None)
    return Example(words, label, None, tuple(map(float, shares)))


def download_hatexplain() -> dict[str, Rows]:
    """Download HateXplain and return {split: rows} of its official splits."""
    posts, divisions = (
        json.loads(fetch(f"{HATEXPLAIN}/{name}.json").read_text("utf-8"))
        for name in ("dataset", "post_id_divisions")
    )
    return convert_hatexplain(posts, divisions)


def convert_hatexplain(
    posts: dict[str, Any], divisions: dict[str, list[str]]
) -> dict[str, Rows]:
    """Return {split: rows} of the published JSON of HateXplain: its posts, and `divisions`, {split: ids of posts}.

    The label is the majority of three annotators; posts without one are left out. A rationale longer than its post is
    cut; a shorter one is left out.
    """
    splits: dict[str, Rows] = {}
    for split, published in BENCHMARKS["hatexplain"].files.items():
        splits[split] = []
        for post in map(posts.__getitem__, divisions[published]):
            # Of three annotators who all differ none has a majority.
            labels = Counter(note["label"] for note in post["annotators"])
            label, votes = labels.most_common(1)[0]
            if votes < 2:
                continue
            words = post["post_tokens"]
            # The authors' code cuts these too; it is one training post.
            maps = []
            for marks in post["rationales"]:
                if len(marks) >= len(words):
                    maps.append(marks[: len(words)])
            splits[split].append({"tokens": words, "label": label, "rationales": maps})
    return splits


def _make_pair_example(row: Row, labels: tuple[str, ...]) -> Example:
    """Make an example from an e-SNLI pair (premise, hypothesis), with the share of annotators who marked each word.

    It has no marks if a highlight lies behind the last word, a defect of the corpus.
    """
    first = tuple(row["premise"].split())
    # Highlights count words between blanks: texts are split only there.
    second = tuple(row["hypothesis"].split())
    label = labels.index(row["label"])
    notes = row.get("annotations") or []
    marks: Counter[int] = Counter()
    for note in notes:
        in_first = set(note["premise_highlight"])
        # Words of both texts are numbered as one, as in `Example.rationale`.
        in_second = {len(first) + i for i in note["hypothesis_highlight"]}
        # A premise's highlight behind its end would otherwise count as one of the hypothesis.
        end = len(first) + len(second)
        if max(in_first, default=0) >= len(first) or max(in_second, default=-1) >= end:
            return Example(first, label, second, None)
        marks.update(in_first | in_second)
    # The local training pairs have no annotations; no marks are not the same as zeros.
    if not notes:
        return Example(first, label, second, None)
    # Of three annotators in validation and test: 0, 1/3, 2/3 or 1.
    shares = tuple(marks[i] / len(notes) for i in range(len(first) + len(second)))
    return Example(first, label, second, shares)


def download_esnli() -> dict[str, Rows]:
    """Download e-SNLI and return {split: rows} of its official splits."""
    # The training table is published in two halves.
    files = {TRAIN: ("train_1", "train_2"), VALIDATION: ("dev",), TEST: ("test",)}
    splits: dict[str, Rows] = {}
    for split, names in files.items():
        splits[split] = []
        for name in names:
            splits[split] += read_esnli(fetch(f"{ESNLI}/esnli_{name}.csv"))
    return splits


def read_esnli(path: Path) -> Rows:
    """Read the rows of one published e-SNLI table; those without a text or a gold label are left out."""
    rows = []
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if (
                not row["Sentence1"]
                or not row["Sentence2"]
                or row["gold_label"] in NO_LABEL
            ):
                continue
            notes = []
            # Test and validation have three annotators, training has one.
            for i in (1, 2, 3):
                first = row.get(f"Sentence1_Highlighted_{i}")
                second = row.get(f"Sentence2_Highlighted_{i}")
                # An annotator's column is missing in training, and may be empty.
                if first and second:
                    notes.append(
                        {
                            "premise_highlight": _parse_indices(first),
                            "hypothesis_highlight": _parse_indices(second),
                        }
                    )
            read = {
                "premise": row["Sentence1"],
                "hypothesis": row["Sentence2"],
                "label": row["gold_label"],
            }
            rows.append({**read, "annotations": notes})
    return rows


def _parse_indices(text: str) -> list[int]:
    """Parse word indices: `3,4,5` → [3, 4, 5]; `{}` (nothing marked) → []."""
    return [int(i) for i in re.findall(r"\d+", text)]


class Benchmark(NamedTuple):
    """How to read a labelled corpus: class names in the authors' order, file names by split, and two functions.

    `home` downloads its rows; `example` turns a row into an example. `tokenised`: its words are tokens already.
    """

    labels: tuple[str, ...]
    files: dict[str, str]
    home: Callable[[], dict[str, Rows]]
    example: Callable[[Row, tuple[str, ...]], Example]
    tokenised: bool = False


BENCHMARKS = {
    "yelphat": Benchmark(
        ("negative", "positive"),
        {part: part for part in YELPHAT_PARTS},
        download_yelphat,
        _make_review_example,
    ),
    "hatexplain": Benchmark(
        # Ids 0, 1, 2 of the authors' code; those of the hub begin with hatespeech.
        ("normal", "hatespeech", "offensive"),
        {TRAIN: "train", VALIDATION: "val", TEST: "test"},
        download_hatexplain,
        _make_post_example,
        tokenised=True,
    ),
    "esnli": Benchmark(
        # As in the authors' attention-only model; their BERT part has entailment first.
        ("neutral", "entailment", "contradiction"),
        # 18,000 training pairs, without highlights.
        {TRAIN: "snli_train18k", VALIDATION: "dev", TEST: "test"},
        download_esnli,
        _make_pair_example,
    ),
}
