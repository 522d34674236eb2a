"""The benchmarks' public homes: files are downloaded once, into the data folder of scikit-learn, and read.

Rows have the columns of the copies under $ANISOSCOPE_DATA: see `_benchmarks`.
"""

import csv
import json
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from anisoscope.errors import CorpusError

RAW = "https://raw.githubusercontent.com"
HATEXPLAIN = f"{RAW}/hate-alert/HateXplain/master/Data"
ESNLI = f"{RAW}/OanaMariaCamburu/e-SNLI/master/dataset"
YELPHAT = f"{RAW}/cansusen/Human-Attention-for-Text-Classification/master/raw_data"
YELPHAT_PARTS = {"train": (3, 4, 5, 7), "test_yelp50": (1,), "test_yelp100": (6,), "test_yelp200": (8,)}

NO_LABEL = ("-", "", None)
"""What stands for the gold label of a pair whose annotators did not agree."""

Rows = list[dict[str, Any]]


def fetched(url: str) -> Path:
    """The local copy of a file of the web. CorpusError where it cannot be had."""
    from sklearn.datasets import fetch_file  # type: ignore[import-untyped]

    try:
        return Path(fetch_file(url))
    except (OSError, ValueError) as error:
        got = " ".join(str(error).split())[:160]
        cure = "connect to the network, set ANISOSCOPE_DATA, or use --corpus planted, which needs no data"
        raise CorpusError(f"to download {url}", got, cure) from None


def hatexplain() -> dict[str, Rows]:
    """Official splits. The label is the majority of three annotators; posts without one are left out."""
    posts = json.loads(fetched(f"{HATEXPLAIN}/dataset.json").read_text("utf-8"))
    divisions = json.loads(fetched(f"{HATEXPLAIN}/post_id_divisions.json").read_text("utf-8"))
    return hatexplain_rows(posts, divisions)


def hatexplain_rows(posts: dict[str, Any], divisions: dict[str, list[str]]) -> dict[str, Rows]:
    """{split: rows} of the published JSON. A rationale of another length than its post is cut to it or left out."""
    names = {"train": "train", "validation": "val", "test": "test"}
    splits: dict[str, Rows] = {}
    for split, published in names.items():
        splits[split] = []
        for key in divisions[published]:
            post = posts[key]
            label, votes = Counter(note["label"] for note in post["annotators"]).most_common(1)[0]
            if votes < 2:
                continue
            words = post["post_tokens"]
            maps = [marks[: len(words)] for marks in post["rationales"] if len(marks) >= len(words)]
            splits[split].append({"tokens": words, "label": label, "rationales": maps})
    return splits


def esnli() -> dict[str, Rows]:
    """Official splits, the training split in two files."""
    files = {"train": ("train_1", "train_2"), "validation": ("dev",), "test": ("test",)}
    return {s: [r for f in names for r in esnli_rows(fetched(f"{ESNLI}/esnli_{f}.csv"))] for s, names in files.items()}


def esnli_rows(path: Path) -> Rows:
    """Rows of one published table; those without a text or a gold label are left out."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [_pair(row) for row in rows if row["Sentence1"] and row["Sentence2"] and row["gold_label"] not in NO_LABEL]


def _pair(row: dict[str, str]) -> dict[str, Any]:
    notes = []
    for i in (1, 2, 3):
        first, second = (row.get(f"Sentence{side}_Highlighted_{i}") for side in (1, 2))
        if first and second:
            notes.append({"premise_highlight": _indices(first), "hypothesis_highlight": _indices(second)})
    pair = {"premise": row["Sentence1"], "hypothesis": row["Sentence2"]}
    return {**pair, "label": row["gold_label"], "annotations": notes}


def _indices(text: str) -> list[int]:
    """`3,4,5` → [3, 4, 5]; `{}` (nothing marked) → []."""
    return [int(i) for i in re.findall(r"\d+", text)]


def yelphat() -> dict[str, Rows]:
    """{split: rows}: reviews of the published tables, one row per annotator there."""
    return {
        split: [row for part in parts for row in yelphat_rows(fetched(f"{YELPHAT}/ham_part{part}.csv"))]
        for split, parts in YELPHAT_PARTS.items()
    }


def yelphat_rows(path: Path) -> Rows:
    """Reviews of one table: rows of one text are its annotators; those whose words differ in number are left out."""
    reviews: dict[str, dict[str, Any]] = {}
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        for row in csv.DictReader(file):
            words, marks = _Spans.read(row["Answer.html_output"])
            key = row.get("Input.text") or " ".join(words)
            label = int(float(row["Input.label"]))
            reviews.setdefault(key, {"tokens": words, "label": label, "hams": []})["hams"].append(marks)
    rows = []
    for review in reviews.values():
        size = len(review["tokens"])
        maps = [marks for marks in review["hams"] if len(marks) == size]
        if size and maps:
            summed = [sum(column) for column in zip(*maps, strict=True)]
            rows.append({**review, "hams": maps, "human_attention": summed, "n_hams": len(maps)})
    return rows


class _Spans(HTMLParser):
    """The words of an annotator's page, each a span, of class `active` where it was marked."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self.marks: list[int] = []
        self._active: int | None = None

    @classmethod
    def read(cls, html: str) -> tuple[list[str], list[int]]:
        parser = cls()
        parser.feed(html)
        return parser.words, parser.marks

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "span":
            self._active = int("active" in (dict(attrs).get("class") or "").split())

    def handle_endtag(self, tag: str) -> None:
        if tag == "span":
            self._active = None

    def handle_data(self, data: str) -> None:
        if self._active is not None:
            words = data.split()
            self.words += words
            self.marks += [self._active] * len(words)
