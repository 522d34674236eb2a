"""Labelled tables and hub sets: roles of columns, labels, marks, splits, messages, and notes on what is looked at."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import sklearn.datasets

from anisoscope.data import hub, labelled, labelled_tables as tables
from anisoscope.data.corpora import HubPart
from anisoscope.data.labelled import Example, LabelledCorpus
from anisoscope.data.labelled_tables import LabelledRow, open_table
from anisoscope.errors import CorpusError


def message_of(call, *given, **more):
    with pytest.raises(CorpusError) as caught:
        call(*given, **more)
    return str(caught.value)


def write(path, rows):
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def made(sizes, source=None, **more):
    """Examples of classes 0 and 1 in turn, of so many in each split."""
    splits = {
        split: tuple(Example((f"{split}{k}",), k % 2) for k in range(count))
        for split, count in sizes.items()
    }
    return LabelledCorpus("c", ("a", "b"), splits, source=source or {}, **more)


# ---- 20 Newsgroups ---------------------------------------------------------------------------------------------------


def test_newsgroups_without_what_tells_the_group(monkeypatch):
    """Names of the classes are those of the training posts; a tenth of these becomes validation."""
    asked = []

    def fetch(subset, remove):
        asked.append((subset, remove))
        count = {"train": 40, "test": 6}[subset]
        return SimpleNamespace(
            data=[f"{subset} {k}" if k != 3 else " \n" for k in range(count)],
            target=np.arange(count) % 2,
            target_names=[f"{subset}.a", f"{subset}.b"],
        )

    monkeypatch.setattr(sklearn.datasets, "fetch_20newsgroups", fetch)
    corpus = tables.open_newsgroups("20newsgroups", 0)
    removed = ("headers", "footers", "quotes")
    assert asked == [("train", removed), ("test", removed)]
    assert corpus.labels == ("train.a", "train.b")
    assert (corpus.name, corpus.source) == ("20newsgroups", {"kind": "sklearn"})
    sizes = {split: len(examples) for split, examples in corpus.splits.items()}
    assert sizes == {"train": 35, "validation": 4, "test": 5}
    other = tables.open_newsgroups("20newsgroups", 1)
    assert other.splits["validation"] != corpus.splits["validation"]
    assert other.splits["test"] == corpus.splits["test"]

    def fail(**_):
        raise OSError("no network" + "x" * 300)

    monkeypatch.setattr(sklearn.datasets, "fetch_20newsgroups", fail)
    message = message_of(tables.open_newsgroups, "20newsgroups", 0)
    assert message == (
        f"expected to download 20 Newsgroups; got no network{'x' * 150}. "
        "Cure: connect to the network, or use --corpus synthetic:20"
    )


# ---- tables ----------------------------------------------------------------------------------------------------------


def test_a_table_without_splits_is_drawn_by_its_seed(tmp_path):
    rows = [{"text": f"a b {k}", "label": f"{k % 3}.0"} for k in range(60)]
    path = write(tmp_path / "t.jsonl", rows)
    corpus = open_table("c", path, {}, 4)
    assert corpus.labels == ("0", "1", "2") and corpus.drawn == labelled.SPLITS
    assert corpus.source == {
        "kind": "table", "path": str(path.resolve()), "columns": {"text": "text", "label": "label"},
        "split_seed": 4, "drawn": ["train", "validation", "test"],
    }  # fmt: skip
    sizes = {split: len(examples) for split, examples in corpus.splits.items()}
    assert sizes == {"train": 48, "validation": 6, "test": 6}
    assert open_table("c", path, {}, 4) == corpus
    assert open_table("c", path, {}, 5).splits["test"] != corpus.splits["test"]


def test_what_a_table_cannot_be(tmp_path):
    """Each message names the file, the row and the cure."""
    text = {"text": "a b", "label": "x"}
    bad = write(tmp_path / "bad.jsonl", [text, {"text": "a b", "label": ""}])
    message = message_of(open_table, "c", bad, {}, 0)
    assert message == (
        "expected a label in every row (bad.jsonl, line 2); got none. Cure: leave such rows out"
    )
    message = message_of(open_table, "c", bad, {"texts": "text", "second": "s", "words": "text"}, 0)  # fmt: skip
    assert message == (
        "expected roles of columns among text, second, label, rationale, split; got texts, words. "
        "Cure: name one of those"
    )
    plain = tmp_path / "a.txt"
    plain.write_text("x")
    message = message_of(open_table, "c", plain, {}, 0)
    assert message == (
        f"expected a labelled corpus in .csv, .tsv, .json, .jsonl, .ndjson, .parquet; got {plain}. "
        "Cure: write it as one of those, or as a folder with train, validation and test files"
    )
    empty = write(tmp_path / "empty.jsonl", [])
    assert message_of(open_table, "c", empty, {}, 0) == (
        "expected rows in c; got none. Cure: name a table that has rows"
    )
    three = write(tmp_path / "three.jsonl", [text | {"more": 1, "label": None}])
    message = message_of(open_table, "c", three, {"label": "labl"}, 0)
    assert message == (
        "expected a column 'labl' for label in c; got the columns text, label, more. Cure: did you mean label?"
    )
    other = write(tmp_path / "other.jsonl", [{"text": "a", "kind": "x", "more": 1}])
    assert message_of(open_table, "c", other, {}, 0) == (
        "expected a column for label in c (label, labels, class, category, target, gold_label); got none. "
        "Cure: name it with --label-column; the columns are text, kind, more"
    )
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"text": "a", "label": "x"}\n{"text\n')
    message = message_of(open_table, "c", broken, {}, 0)
    assert "line 2" in message and message.endswith(
        "Cure: correct or remove these rows"
    )


def test_tables_of_a_folder(tmp_path):
    """Names of splits have several forms; other tables belong to none; two of one split are refused."""
    rows = [{"text": f"a b {k}", "label": "xy"[k % 2]} for k in range(4)]
    for name in ("train.jsonl", "valid.jsonl", "test.jsonl", "notes.jsonl"):
        write(tmp_path / name, rows)
    assert list(tables._find_splits(tmp_path)) == ["test", "train", "validation"]
    write(tmp_path / "val.jsonl", rows)
    assert message_of(tables._find_splits, tmp_path) == (
        f"expected one table of the split validation in {tmp_path}; got val.jsonl and valid.jsonl. "
        "Cure: leave only one of them in the folder"
    )
    for name in ("val.jsonl", "valid.jsonl", "train.jsonl"):
        (tmp_path / name).unlink()
    assert message_of(tables._find_splits, tmp_path) == (
        f"expected train.jsonl or train.csv (and validation, test) in {tmp_path}; got notes, test. "
        "Cure: give the files these names"
    )
    (tmp_path / "notes.jsonl").unlink(), (tmp_path / "test.jsonl").unlink()
    assert "; got no such file. Cure:" in message_of(tables._find_splits, tmp_path)


def test_a_split_without_labels_is_left_out_and_drawn(tmp_path):
    """All of its labels are missing or −1; one without a label among others is a fault of its row."""
    rows = [{"text": f"a b {k}", "label": k % 2} for k in range(20)]
    write(tmp_path / "train.jsonl", rows)
    write(tmp_path / "dev.jsonl", rows[:2])
    none = [{"text": "a", "label": value} for value in (-1, None, "-1.0", "")]
    write(tmp_path / "test.jsonl", none)
    corpus = open_table("c", tmp_path, {}, 0)
    assert corpus.source["unlabelled"] == ["test"] and corpus.drawn == ("test",)
    assert corpus.labels == ("0", "1") and len(corpus.splits["test"]) == 2
    write(tmp_path / "test.jsonl", [*none[:1], rows[0]])
    message = message_of(open_table, "c", tmp_path, {}, 0)
    assert message == (
        "expected a label in every row; got 1 faulty: test.jsonl, line 1 (-1). Cure: leave these rows out; "
        "if the value stands for a class, give the class a name (negative for -1)"
    )
    is_unlabelled = tables._is_unlabelled
    row = LabelledRow("w", "", {})
    assert is_unlabelled("test", [row]) and not is_unlabelled("test", [])
    assert not is_unlabelled("train", [row]) and not is_unlabelled("", [row])


# ---- sets of the hub -------------------------------------------------------------------------------------------------


class Rows(list):
    def __init__(self, rows, **features):
        super().__init__(rows)
        self.features = features


def test_a_set_of_the_hub_with_two_columns_of_classes(monkeypatch):
    """Names are those of the column that is asked for; a split without names does not lose them."""
    kinds = SimpleNamespace(names=["low", "high"]), SimpleNamespace(names=["p", "q", "r"])  # fmt: skip
    rows = [{"text": f"a b {k}", "label": k % 2, "other": k % 3} for k in range(6)]
    splits = {
        "train": Rows(rows, text=None, label=kinds[0], other=kinds[1]),
        "validation": Rows(rows[:3], text=None),
        "test": Rows(rows[3:], text=None, label=None, other=None),
    }
    found = hub.HubSet("new/id", "c1", "refused")
    monkeypatch.setattr(hub, "find_set", lambda _: found)
    monkeypatch.setattr(hub, "load_splits", lambda *_: splits)
    part = HubPart("a/b", "labelled", "a/b", "conf")
    corpus = open_table("c", part, {}, 0)
    assert corpus.labels == ("low", "high")
    assert [e.label for e in corpus.splits["validation"]] == [0, 1, 0]
    assert corpus.source == {
        "kind": "hub", "id": "new/id", "config": "conf", "commit": "c1", "hub": "refused",
        "columns": {"text": "text", "label": "label"}, "split_seed": 0,
    }  # fmt: skip
    other = open_table("c", part, {"label": "other"}, 0)
    assert other.labels == ("p", "q", "r")
    assert [e.label for e in other.splits["test"]] == [0, 1, 2]
    splits["test"][1] = {"text": "a", "label": 7, "other": 0}
    assert message_of(open_table, "c", part, {}, 0) == (
        "expected a label in every row (row 2 of a/b, test); got none. Cure: leave such rows out"
    )


# ---- columns, labels, words and marks --------------------------------------------------------------------------------

NAMES = ["text", "sentence2", "label", "rationale", "split"]


@pytest.mark.parametrize(
    ("given", "present", "by_content", "chosen"),
    [
        ({}, NAMES, None,
         {"text": "text", "second": "sentence2", "label": "label", "rationale": "rationale", "split": "split"}),
        ({"text": "text"}, NAMES, None, {"text": "text", "label": "label", "rationale": "rationale", "split": "split"}),
        ({"text": "text", "second": "label", "label": "split"}, NAMES, None,
         {"text": "text", "second": "label", "label": "split", "rationale": "rationale", "split": "split"}),
        ({}, ["y", "x"], {"text": "x", "label": "y"}, {"text": "x", "label": "y"}),
        ({"label": "y"}, ["y", "x"], {"text": "x", "label": "y"}, {"label": "y", "text": "x"}),
        ({"label": "x"}, ["text", "x"], {"text": "x", "label": "text"}, {"label": "x", "text": "text"}),
        ({}, ["text", "y"], {"text": "text", "label": "y"}, {"text": "text", "label": "y"}),
        ({}, ["text", "y"], {"text": "y", "label": "text"}, "label"),
        ({}, ["y", "label"], {"text": "label", "label": "y"}, "text"),
        ({"label": "x"}, ["y", "x"], {"text": "x", "label": "y"}, "text"),
        ({}, ["y", "x"], None, "text"),
    ],
)  # fmt: skip
def test_which_column_has_which_role(given, present, by_content, chosen):
    if isinstance(chosen, str):
        message = message_of(tables._assign_columns, "t", given, present, by_content)
        assert message.startswith(f"expected a column for {chosen} in t (")
        assert message.endswith(
            f"--{chosen}-column; the columns are {', '.join(present)}"
        )
        return
    assert tables._assign_columns("t", given, present, by_content) == chosen


def test_of_several_usual_names_the_likeliest_has_the_role():
    usual = {
        "text": "text content sentence document article passage body tokens words premise sentence1 question1 text1",
        "second": "second hypothesis sentence2 question2 text2 text_pair",
        "label": "label labels class category target gold_label",
        "rationale": "rationale rationales evidence highlight",
        "split": "split",
    }
    for role, names in usual.items():
        left = names.split()
        while left:
            assert tables._guess(role, left[::-1]) == left.pop(0)
        assert tables._guess(role, ["other"]) is None


@pytest.mark.parametrize(
    ("texts", "labels", "is_clear"),
    [
        (["a b", "c d", "e f", "g h"], ["x", "y", "x", "y"], True),
        (["a b", "c d", "e f", "g h"], ["x", "y", "z", "y"], False),
        (["a b", "a b", "c d", "c d"], ["x", "y", "x", "y"], False),
        (["a b", "a b", "c d", "e f"], ["x", "y", "x", "y"], True),
        (["a b", "c", "e f", "g"], ["x", "y", "x", "y"], False),
        (["a b", "c d", "e f", "g"], ["x", "y", "x", "y"], True),
    ],
)
def test_labels_repeat_and_texts_have_more_words(texts, labels, is_clear):
    """At most half as many labels as rows, fewer than texts; more than one and a half times the words."""
    found = tables._guess_by_content({"l": labels, "t": texts})
    assert found == ({"text": "t", "label": "l"} if is_clear else {})


def test_labels_are_sorted_as_numbers_and_then_as_texts():
    def collected(*labels):
        rows = [LabelledRow(f"w{k}", label, {}) for k, label in enumerate(labels)]
        return tables._collect_labels(rows)

    assert collected("b", "10", "2", "-3", "a", "2", "") == ["-3", "2", "10", "a", "b"]
    assert collected("1.5", "10", "9" * 19) == ["10", "1.5", "9" * 19]
    assert collected("-1", "1") == ["-1", "1"]
    assert collected("-2", "-1", "0") == ["-2", "-1", "0"]
    for bad in ("nan", "NaN", "<NA>", "nat", "inf", "-Infinity", "1e999"):
        assert message_of(collected, "a", bad) == (
            f"expected a label in every row; got 1 faulty: w1 ({bad}). Cure: leave these rows out; "
            "if the value stands for a class, give the class a name (negative for -1)"
        )
    assert "2 faulty: w0 (-1), w2 (-1)." in message_of(collected, "-1", "0", "-1", "1")


@pytest.mark.parametrize(
    ("value", "names", "label"),
    [
        (3, None, "3"), (3.0, None, "3"), ("-2.00", None, "-2"), ("2.50", None, "2.50"), (" x ", None, "x"),
        (None, None, ""), (True, None, "True"), (0, ["n", "p"], "n"), (1, ["n", "p"], "p"), (2, ["n", "p"], ""),
        (-1, ["n", "p"], ""), ("p", ["n", "p"], "p"), (1.0, ["n", "p"], "1"),
    ],
)  # fmt: skip
def test_one_label_in_several_forms(value, names, label):
    row = tables._label_row("w", {"c": value, "t": "x"}, {"label": "c", "text": "t"}, names)  # fmt: skip
    assert row == LabelledRow("w", label, {"label": value, "text": "x"})


def test_a_row_becomes_an_example():
    index = {"n": 0, "p": 1}

    def example(label="p", **values):
        return tables._make_example(LabelledRow("w", label, values), index)

    assert example(text="a b", rationale="0 1") == Example(("a", "b"), 1, None, (0.0, 1.0))  # fmt: skip
    assert example("n", text=["a b"], second="c d", rationale=[1, 0, 0.5]) == Example(
        ("a b",), 0, ("c", "d"), (1.0, 0.0, 0.5)
    )
    for given, message in (
        ({"label": "x", "text": "a"}, "a label among n, p (w); got x. Cure: leave such rows out"),
        ({"text": "a", "second": None}, "two texts in every row (w); got one. Cure: give every row the same columns"),
        ({"text": None}, "text in every row (w); got none. Cure: leave empty rows out"),
        ({"text": ["a", "b c"]},
         "one text (w); got two. Cure: give the second text a column of its own, --second-column"),
        ({"text": "a", "rationale": "1 0"}, "a rationale of 1 marks, one per word (w); got 2 marks. "
         "Cure: correct the rationale, or leave it out"),
        ({"text": "a", "rationale": "1.5"},
         "a rationale of numbers between 0 and 1, one per word (w); got \"['1.5']\". Cure: correct it"),
    ):  # fmt: skip
        assert message_of(example, **given) == f"expected {message}"
    for value, marks in (("0, 1", (0, 1)), ("[0, 1]", (0, 1)), (("1",), (1,)), ("", None), (None, None)):  # fmt: skip
        assert tables._parse_marks(value, "w") == marks
    for value in (["a", "b"], ["a", "b", "c d"]):
        assert tables._split_words(value, "w") == tuple(value)


def test_rows_are_grouped_by_their_split():
    rows = [
        LabelledRow(f"w{k}", "x", {"split": split})
        for k, split in enumerate((" Train", "DEV", "val", "Test", "more"))
    ]
    found = tables._group_by_split(rows, "s")
    assert {k: [row.where for row in v] for k, v in found.items()} == {
        "train": ["w0"], "validation": ["w1", "w2"], "test": ["w3"], "more": ["w4"],
    }  # fmt: skip
    rows[2] = rows[2]._replace(values={"split": " "})
    assert message_of(tables._group_by_split, rows, "s") == (
        "expected a split in the column 's' of every row (w2); got none. Cure: fill in the split of every row"
    )


def test_missing_splits_are_drawn_in_a_fixed_order():
    """Records of older versions hold these draws: validation before test, shares of the whole, by the seed."""
    examples = [Example((str(k),), k % 2) for k in range(40)]
    missing = tables._find_missing_splits
    assert missing({"train": examples}) == ["validation", "test"]
    assert missing({"train": examples, "validation": []}) == ["validation", "test"]
    assert missing({"train": examples, "test": examples}) == ["validation"]
    assert missing({"": examples}) == ["train", "validation", "test"]
    shares = {"train": 0.8, "validation": 0.1, "test": 0.1}
    for read in ({"train": examples}, {"": examples}):
        for seed in (0, 5):
            expected = labelled.split_at_random(examples, shares, seed)
            found = tables._complete_splits(dict(read), seed)
            assert found == expected and list(found) == list(labelled.SPLITS)
    given = {"extra": examples[:3], "test": examples[:4], "train": examples}
    found = tables._complete_splits(given, 5)
    part = labelled.split_at_random(examples, {"train": 0.9, "validation": 0.1}, 5)
    assert found["validation"] == part["validation"] and found["train"] == part["train"]
    assert found["test"] == tuple(examples[:4]) and found["extra"] == tuple(examples[:3])  # fmt: skip
    assert list(found) == ["train", "validation", "test", "extra"]


# ---- corpora ---------------------------------------------------------------------------------------------------------

DRAWN = {"drawn": ["train", "validation", "test"]}
SIZES = {"train": 1600, "validation": 30, "test": 20}


@pytest.mark.parametrize(
    ("source", "split", "trained_on", "limit", "found", "note"),
    [
        ({}, "", True, 4, "test", ""),
        ({}, "validation", False, None, "validation", ""),
        ({}, "all", False, None, "all", ""),
        (DRAWN, "", False, None, "all", "c has no splits: looked at all 1,650 rows"),
        (DRAWN, "", False, 10, "all", "c has no splits: looked at 10 of 1,650 rows (--limit: there are 1,650)"),
        (DRAWN, "", True, None, "held-out",
         "c has no splits: looked at 50 of 1,650 rows that the model was not trained on"),
        (DRAWN, "", True, 10, "held-out",
         "c has no splits: looked at 10 of 1,650 rows that the model was not trained on (--limit: there are 50)"),
        (DRAWN, "", True, 50, "held-out",
         "c has no splits: looked at 50 of 1,650 rows that the model was not trained on"),
        (DRAWN, "train", True, None, "train", "c has no train split: looked at 1,600 of 1,650 rows drawn at random"),
        ({"drawn": ["test"]}, "", True, 6, "test",
         "c has no test split: looked at 6 of 1,650 rows drawn at random (--limit: there are 20)"),
        ({"drawn": ["validation"]}, "", True, None, "test", ""),
    ],
)  # fmt: skip
def test_what_is_looked_at_and_the_note_on_it(source, split, trained_on, limit, found, note):  # fmt: skip
    corpus = made(SIZES, source)
    chosen, name, text = labelled.choose_split(corpus, split, trained_on=trained_on, limit=limit)  # fmt: skip
    assert (name, text) == (found, note)
    held = corpus.splits["validation"] + corpus.splits["test"]
    expected = {"all": corpus.all_examples, "held-out": held} | dict(corpus.splits)
    assert chosen.splits[name] == expected[name]


def test_a_corpus_describes_itself():
    marked = Example(("m",), 1, None, (1.0,))
    corpus = made({"train": 3, "validation": 1, "test": 0, "extra": 2}, {"kind": "x", "drawn": ["test"]})  # fmt: skip
    corpus = labelled.replace(corpus, splits={**corpus.splits, "test": (marked,)})
    assert len(corpus.all_examples) == 5 and marked in corpus.all_examples
    assert corpus.described() == {
        "name": "c", "fingerprint": corpus.fingerprint, "labels": ["a", "b"], "pairs": False,
        "words": {"position": "token", "sequence": "example", "unit": "example", "counted": "token"},
        "counts": {
            "train": {"a": 2, "b": 1}, "validation": {"a": 1, "b": 0}, "test": {"a": 0, "b": 1},
            "extra": {"a": 1, "b": 1},
        },
        "rationales": {"train": 0, "validation": 0, "test": 1, "extra": 0},
        "kind": "x", "drawn": ["test"],
    }  # fmt: skip
    assert corpus.drawn == ("test",) and not corpus.has_no_splits
    assert made({}, DRAWN).has_no_splits and not made({}).has_no_splits
    assert [corpus.majority(split) for split in ("train", "test", "extra")] == [2 / 3, 1.0, 0.5]  # fmt: skip
    assert corpus.limited(2).source == {"kind": "x", "drawn": ["test"], "limit": 2}
    pair = Example(("a", "b"), 0, ("c",))
    assert (pair.text, pair.all_words) == ("a b", ("a", "b", "c"))
    one = made({"train": 1, "test": 1})
    assert not labelled.replace(one, splits={**one.splits, "test": (pair,)}).pairs
    assert labelled.replace(one, splits={**one.splits, "train": (pair,)}).pairs


def test_a_corpus_is_usable_if_every_split_has_every_class():
    few = made({"train": 4, "validation": 1, "test": 2})
    usable = labelled.require_usable
    assert message_of(usable, few) == (
        "expected at least 1 example of every class in the validation split of c; got b (0). "
        "Cure: add examples, raise --limit, or merge rare classes"
    )
    assert usable(few, {"train": 2, "test": 1}) is few
    assert message_of(usable, few, {"train": 3}) == (
        "expected at least 3 examples of every class in the train split of c; got a (2), b (2). "
        "Cure: add examples, raise --limit, or merge rare classes"
    )
    for split in ("validation", "test"):
        bare = made({"train": 4, "validation": 2, "test": 2} | {split: 0})
        assert message_of(usable, bare) == (
            f"expected a {split} split in c; got none. Cure: add such a split to the corpus"
        )
        drawn = labelled.replace(bare, source={"drawn": [split]})
        assert f"every class in the {split} split of c; got a (0), b (0)." in message_of(usable, drawn)  # fmt: skip
    one = LabelledCorpus("c", ("a",), {"train": few.splits["train"]})
    assert message_of(usable, one) == (
        "expected at least 2 classes in c; got 1 (a). Cure: name another --label-column, or another corpus"
    )
    odd = labelled.replace(few, splits={**few.splits, "more": (Example(("a",), 0, ("b",)),)})  # fmt: skip
    assert message_of(usable, odd, {}) == (
        "expected one text in every row (example 1 of c, more); got two. Cure: give every row the same columns"
    )


def test_a_random_division_is_by_class_number_and_rounded():
    """What each class gets depends on its number, not on the order in which classes come."""
    examples = [Example((str(k),), label) for k, label in enumerate([2, 0, 1] * 7)]
    shares = {"a": 0.5, "b": 0.3, "c": 0.2}
    parts = labelled.split_at_random(examples, shares, 9)
    draw = np.random.default_rng(9)
    for label in (0, 1, 2):
        rows = draw.permutation([k for k in range(21) if examples[k].label == label])
        for name, own in (("a", rows[:4]), ("b", rows[4:6]), ("c", rows[6:])):
            found = {int(e.text) for e in parts[name] if e.label == label}
            assert found == set(own.tolist())
    balanced = labelled.take_balanced(examples, 4, 3)
    assert [e.text for e in balanced] == ["0", "1", "2", "3"]
    assert [e.text for e in labelled.take_balanced(examples, 5, 3)] == [*"01234"]
    assert len(labelled.take_balanced(examples[:1], 5, 3)) == 1


def test_every_field_is_in_the_fingerprint_of_a_corpus():
    base = Example(("a", "b"), 0, ("c",), (1.0, 0.0, 0.0))

    def print_of(example=base, labels=("x", "y"), split="train", **more):
        return LabelledCorpus("c", labels, {split: (example,)}, **more).fingerprint

    prints = [
        print_of(),
        print_of(labels=("y", "x")),
        print_of(split="test"),
        print_of(tokenised=True),
        *(
            print_of(labelled.replace(base, **changed))
            for changed in (
                {"words": ("a b",)},
                {"label": 1},
                {"second": None},
                {"second": ("d",)},
                {"rationale": None},
                {"rationale": (0.0, 1.0, 0.0)},
            )
        ),
    ]
    assert len(set(prints)) == len(prints)
    assert print_of(source={"kind": "x"}) == prints[0], "where it is from is no part"


def test_without_a_limit_all_rows_are_looked_at():
    corpus, name, note = labelled.choose_split(made(SIZES, DRAWN), "", trained_on=False)
    assert len(corpus.splits[name]) == 1650
    assert note == "c has no splits: looked at all 1,650 rows"


def test_a_label_is_one_text_or_number():
    for value in ([1, 2], {"a": "x" * 90}, (1,)):
        message = message_of(tables._label_row, "w", {"c": value}, {"label": "c"}, None)
        assert message == (
            f"expected a text or a number as label (w); got {repr(value)[:60]}. "
            "Cure: give every row one label, or name another --label-column"
        )
