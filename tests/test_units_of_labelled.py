"""Labelled corpora: which split, column, class and mark is which, on a few rows each."""

import dataclasses
import json
from types import SimpleNamespace

import pytest

from anisoscope.data import hub, labelled, labelled_tables
from anisoscope.data.corpora import HubPart
from anisoscope.data.labelled import Example, LabelledCorpus
from anisoscope.data.labelled_tables import open_table
from anisoscope.errors import CorpusError


def write(path, rows):
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def sizes_of(corpus):
    return {name: len(part) for name, part in corpus.splits.items()}


@pytest.fixture
def folder(tmp_path):
    """Three splits of pairs with marks, whose classes are named in another order than they come."""
    for split, start in (("train", 0), ("dev", 10), ("test", 20)):
        rows = [
            {
                "premise": f"a{k} b{k}",
                "hypothesis": f"c{k}",
                "label": "yes" if k % 2 else "no",
                "rationale": [1, 0, k % 2],
                "more": k,
            }
            for k in range(start, start + 4)
        ]
        write(tmp_path / f"{split}.jsonl", rows)
    (tmp_path / "notes.txt").write_text("x")
    return tmp_path


def test_a_folder_of_splits_has_every_field_of_its_rows(folder):
    given = {"text": "premise", "second": "hypothesis", "rationale": "rationale"}
    corpus = open_table("c", folder, given, 3)
    assert corpus.name == "c" and corpus.labels == ("no", "yes") and corpus.pairs
    assert list(corpus.splits) == ["train", "validation", "test"] and corpus.drawn == ()
    assert corpus.splits["validation"][1] == Example(
        ("a11", "b11"), 1, ("c11",), (1.0, 0.0, 1.0)
    )
    assert corpus.source["columns"] == given | {"label": "label"}
    assert corpus.source["kind"] == "table" and corpus.source["split_seed"] == 3
    assert corpus.source["path"] == str(folder.resolve())
    assert corpus.counts()["test"] == {"no": 2, "yes": 2}
    described = corpus.described()
    assert described["rationales"] == {"train": 4, "validation": 4, "test": 4}
    assert described["labels"] == ["no", "yes"] and described["pairs"] is True
    # a label is the number of its class, so that their order is not that of the alphabet
    turned = dataclasses.replace(corpus, labels=("yes", "no")).described()
    assert turned["labels"] == ["yes", "no"]
    for given, message in (
        ({"words": "premise"}, r"roles of columns among .*got words"),
        ({"text": "none"}, r"a column 'none' for text in c"),
    ):
        with pytest.raises(CorpusError, match=message):
            open_table("c", folder, given, 3)


def test_splits_that_a_folder_lacks_are_drawn_from_training(folder):
    (folder / "test.jsonl").unlink()
    given = {"text": "premise", "second": "hypothesis"}
    corpus = open_table("c", folder, given, 3)
    assert corpus.drawn == ("test",) and corpus.source["drawn"] == ["test"]
    assert len(corpus.splits["train"]) + len(corpus.splits["test"]) == 4
    assert len(corpus.splits["validation"]) == 4
    (folder / "valid.jsonl").write_text((folder / "dev.jsonl").read_text())
    with pytest.raises(CorpusError, match=r"one table of the split validation .*dev.jsonl and valid"):  # fmt: skip
        open_table("c", folder, given, 3)
    (folder / "valid.jsonl").unlink(), (folder / "train.jsonl").unlink()
    with pytest.raises(
        CorpusError, match=r"train.jsonl or train.csv .*got validation\."
    ):
        open_table("c", folder, given, 3)


def test_a_column_of_splits_goes_before_files_only_if_it_is_named(tmp_path):
    rows = [
        {
            "text": f"w{k} x y z",
            "label": k % 2,
            "split": ("Train", "valid", "TEST")[k % 3],
        }
        for k in range(12)
    ]
    write(tmp_path / "t.jsonl", rows)
    corpus = open_table("c", tmp_path / "t.jsonl", {}, 0)
    assert sizes_of(corpus) == {"train": 4, "validation": 4, "test": 4}
    assert [e.text for e in corpus.splits["test"]] == [
        f"w{k} x y z" for k in (2, 5, 8, 11)
    ]
    assert corpus.drawn == () and not corpus.has_no_splits
    for name in ("train", "validation", "test"):
        write(tmp_path / f"{name}.jsonl", rows)
    (tmp_path / "t.jsonl").unlink()
    by_file = open_table("c", tmp_path, {}, 0)
    assert len(by_file.splits["train"]) == 12
    named = open_table("c", tmp_path, {"split": "split"}, 0)
    assert len(named.splits["train"]) == 12 == len(named.splits["test"])
    assert {e.text for e in named.splits["test"]} != {e.text for e in by_file.splits["test"]}  # fmt: skip
    rows[5]["split"] = " "
    write(tmp_path / "test.jsonl", rows)
    with pytest.raises(CorpusError, match=r"of every row \(test.jsonl, line 6\)"):
        open_table("c", tmp_path, {"split": "split"}, 0)


class Rows(list):
    def __init__(self, rows, names):
        super().__init__(rows)
        self.features = {"text": None, "label": SimpleNamespace(names=names)}

    def skip(self, count):
        return self[count:]


def test_a_set_of_the_hub_has_the_names_of_its_classes(monkeypatch):
    """Numbers of rows are names of the hub, in its order; −1 is no class; other splits have no role."""

    def rows(*labels):
        made_rows = [{"text": f"t{k} u", "label": n} for k, n in enumerate(labels)]
        return Rows(made_rows, ["neg", "pos", "none"])

    splits = {"train": rows(1, 0, 1), "unsupervised": rows(-1), "dev": rows(0, 2), "test": rows(-1, -1)}  # fmt: skip
    monkeypatch.setattr(hub, "find_set", lambda _: hub.HubSet("new/id", "c1"))
    monkeypatch.setattr(hub, "load_splits", lambda *_: splits)
    part = HubPart("a/b", "labelled", "a/b", "conf")
    corpus = open_table("c", part, {}, 0)
    assert corpus.labels == ("neg", "pos", "none")
    every = [*corpus.splits["train"], *corpus.splits["test"]]
    assert sorted(e.label for e in every) == [0, 1, 1]
    assert [e.label for e in corpus.splits["validation"]] == [0, 2]
    assert corpus.source["unlabelled"] == ["test"] and corpus.drawn == ("test",)
    source = corpus.source
    assert (source["id"], source["config"], source["commit"]) == (
        "new/id",
        "conf",
        "c1",
    )
    del splits["train"]
    with pytest.raises(
        CorpusError, match=r"a train split of a/b; got validation, test\."
    ):
        open_table("c", part, {}, 0)


# ---- examples --------------------------------------------------------------------------------------------------------


def made(sizes, labels=("a", "b"), **more):
    splits = {}
    for split, counts in sizes.items():
        examples = []
        for label, count in enumerate(counts):
            examples += [Example((f"{split}{label}{k}",), label) for k in range(count)]
        splits[split] = tuple(examples)
    return LabelledCorpus("c", labels, splits, **more)


def test_counts_majority_and_limits_of_a_corpus():
    corpus = made(
        {"train": (3, 5), "validation": (1, 1), "test": (4, 1), "extra": (2, 0)}
    )
    assert corpus.counts()["extra"] == {"a": 2, "b": 0}
    assert corpus.majority() == 0.8 and corpus.majority("train") == 5 / 8
    assert len(corpus.all_examples) == 15
    limited = corpus.limited(4)
    assert sizes_of(limited) == {"train": 4, "validation": 2, "test": 3, "extra": 2}
    assert limited.source == {"limit": 4} and corpus.limited(None) is corpus


@pytest.mark.parametrize(
    ("example", "pairs", "message"),
    [
        (Example(("a",), 0), False, None),
        (Example(("a",), 0, ("b",)), True, None),
        (Example(("a", "b"), 0, ("c",), (0.0, 1.0, 0.5)), True, None),
        (Example(("a",), 0), True, "two texts in every row .x.; got one"),
        (Example(("a",), 0, ("b",)), False, "one text in every row .x.; got two"),
        (Example((), 0), False, "text in every row .x.; got none"),
        (Example(("a",), 0, ()), True, "text in every row"),
        (Example(("a", "b"), 0, ("c",), (0.0, 1.0)), True, "of 3 marks, one per word .x.; got 2 marks"),
        (Example(("a", "b"), 0, None, (0.0,)), False, "of 2 marks"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_an_example(example, pairs, message):
    if message is None:
        labelled.check_example(example, "x", pairs=pairs)
        return
    with pytest.raises(CorpusError, match=message):
        labelled.check_example(example, "x", pairs=pairs)


def test_enough_examples_of_every_class():
    corpus = made({"train": (3, 2), "validation": (1, 0), "test": (2, 2)})
    labelled._require_enough(corpus, "train", 2)
    for split, fewest, message in (
        ("train", 3, r"at least 3 examples of every class in the train split of c; got b \(2\)"),
        ("validation", 1, r"at least 1 example of every class .*; got b \(0\)"),
        ("test", 3, r"got a \(2\), b \(2\)"),
        ("gone", 1, r"a gone split in c; got none"),
    ):  # fmt: skip
        with pytest.raises(CorpusError, match=message):
            labelled._require_enough(corpus, split, fewest)
    with pytest.raises(CorpusError, match=r"at least 2 classes in c; got 1 \(a\)"):
        labelled.require_usable(made({"train": (3,)}, ("a",)))


def test_posts_without_words_are_left_out():
    posts = labelled_tables._read_posts([" a b", "\n ", "c"], [2, 1, 0])
    assert posts == [Example(("a", "b"), 2), Example(("c",), 0)]


def test_a_random_division_does_not_depend_on_which_class_comes_first():
    """Who gets which row of a class is drawn class by class, in the order of their numbers."""
    shares = {"a": 0.5, "b": 0.5}
    divisions = []
    for labels in ([0] * 12 + [1] * 12 + [2] * 12, [2] * 12 + [0] * 12 + [1] * 12):
        places = {label: labels.index(label) for label in (0, 1, 2)}
        examples = [
            Example((f"{label}-{row - places[label]}",), label)
            for row, label in enumerate(labels)
        ]
        parts = labelled.split_at_random(examples, shares, 5)
        divisions.append({k: sorted(e.text for e in v) for k, v in parts.items()})
    assert divisions[0] == divisions[1]
