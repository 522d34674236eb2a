"""Labelled corpora: benchmarks, tables, generated ones; splits, rationales, encoding; every bad input by name."""

import json
import re
from collections import Counter

import numpy as np
import pandas as pd
import pytest

from anisoscope.data import hub, synthetic
from anisoscope.data.encoding import LabelledPlan, build_tokenizer, encode, pad_batch
from anisoscope.data.hub import HubSet
from anisoscope.data.labelled import (
    Example,
    LabelledCorpus,
    choose_split,
    require_usable,
    split_at_random,
    take_balanced,
)
from anisoscope.data.labelled_tables import _split_words
from anisoscope.data.opening import open_labelled
from anisoscope.errors import AnisoscopeError, CorpusError, UsageError


def rows(n=60, **more):
    return [
        {"text": f"word{i % 7} and more", "label": ("bad", "good")[i % 2], **more}
        for i in range(n)
    ]


def table(path, rows):
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return str(path)


def corpus(examples, labels=("a", "b")):
    return LabelledCorpus(
        "mine", labels, dict.fromkeys(("train", "validation", "test"), tuple(examples))
    )


TWO = (
    Example(("x", "y"), 0),
    Example(("z",), 1),
    Example(("x",), 0),
    Example(("y",), 1),
)


@pytest.mark.parametrize("name", ["synthetic", "synthetic:3", "synthetic-pairs"])
def test_a_generated_corpus_is_the_same_for_a_seed_and_another_for_another(name):
    one, other = (open_labelled(name, seed=seed) for seed in (0, 1))
    for made in (synthetic.open_synthetic, synthetic.open_pairs):
        made.cache_clear()
    again = open_labelled(name)
    assert again is not one and one.splits.keys() == other.splits.keys()
    assert one.fingerprint == again.fingerprint != other.fingerprint
    assert all(len(set(count.values())) == 1 for count in one.counts().values())
    assert one.pairs == (name == "synthetic-pairs")


def test_synthetic_keywords_are_those_of_the_class():
    """A word marked in one class is never marked in another, and no utterance has more strays than own keywords."""
    owner = {}
    for split in open_labelled("synthetic:3").splits.values():
        for e in split:
            assert 1 <= sum(e.rationale) <= 3
            for word, mark in zip(e.words, e.rationale, strict=True):
                if mark:
                    assert owner.setdefault(word, e.label) == e.label
    assert len(owner) == 18


@pytest.mark.parametrize("name", ["synthetic", "synthetic-pairs"])
def test_fillers_follow_zipf_s_law(name):
    """The commonest of 400 is 1/H(400) = .152 of all, those of rank 4 and 16 a fourth and a sixteenth of it."""
    found = Counter()
    for e in open_labelled(name).splits["train"]:
        words = (*e.words, *e.second) if e.second else e.words
        found.update(
            word for word, mark in zip(words, e.rationale, strict=True) if not mark
        )
    counts = sorted(found.values(), reverse=True)
    shares = np.array(counts) / sum(counts)
    assert shares[[0, 3, 15]] == pytest.approx(0.1524 / np.array([1, 4, 16]), rel=0.15)


def test_pairs_can_be_told_by_their_marked_words_only():
    corpus = open_labelled("synthetic-pairs")
    same = {}
    for e in corpus.splits["train"]:
        first, second = (w for w, m in zip(e.all_words, e.rationale, strict=True) if m)
        same.setdefault(e.label, []).append(first == second)
    assert all(same[0]) and not any(same[1]) and not any(same[2])


def test_a_table_is_split_by_class_and_its_columns_are_found(tmp_path):
    found = open_labelled(table(tmp_path / "t.jsonl", rows(rationale=[0, 1, 0])))
    assert found.labels == ("bad", "good")
    assert found.counts() == {
        s: {"bad": n, "good": n}
        for s, n in (("train", 24), ("validation", 3), ("test", 3))
    }
    assert found.splits["train"][0].rationale == (0, 1, 0)
    lines = ["premise\thypothesis\tclass\tsplit"] + [
        f"p {i}\th\t{i % 3}\t{s}" for s in ("train", "dev", "test") for i in range(6)
    ]
    path = tmp_path / "t.tsv"
    path.write_text("\n".join(lines))
    found = open_labelled(str(path))
    assert (
        found.labels == ("0", "1", "2")
        and found.pairs
        and len(found.splits["validation"]) == 6
    )
    for split in ("train", "valid", "test"):
        table(tmp_path / f"{split}.jsonl", rows(10))
    path.unlink(), (tmp_path / "t.jsonl").unlink()
    assert [len(s) for s in open_labelled(str(tmp_path)).splits.values()] == [
        10,
        10,
        10,
    ]


def on_the_hub(monkeypatch, **splits):
    """Data sets of the hub with the classes `neg` and `pos`: by split, the labels of their rows."""
    import datasets

    features = datasets.Features(
        {
            "text": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["neg", "pos"]),
        }
    )
    given = {
        split: datasets.Dataset.from_list(
            [{"text": f"t {i}", "label": y} for i, y in enumerate(labels)], features
        )
        for split, labels in splits.items()
    }
    monkeypatch.setattr(hub, "find_set", lambda part: HubSet(part.id, "abc"))
    monkeypatch.setattr(hub, "load_splits", lambda *_: given)


def test_a_hub_data_set_gives_labels_by_name_and_a_validation_split(monkeypatch):
    on_the_hub(monkeypatch, train=[0, 1] * 20, test=[0, 1] * 20)
    found = open_labelled("imdb")
    assert found.labels == ("neg", "pos") and found.source["commit"] == "abc"
    assert (
        found.counts()["validation"] == {"neg": 2, "pos": 2}
        and len(found.splits["test"]) == 40
    )


@pytest.mark.parametrize("name", ["validation", "dev", "val", "valid"])
def test_a_validation_split_of_the_hub_goes_by_several_names(monkeypatch, name):
    on_the_hub(monkeypatch, train=[0, 1] * 20, test=[0, 1] * 20, **{name: [0, 1, 1]})
    found = open_labelled("imdb")
    assert found.counts()["validation"] == {"neg": 1, "pos": 2}
    assert found.counts()["train"] == {"neg": 20, "pos": 20}


def test_a_split_of_the_hub_without_labels_is_replaced(monkeypatch):
    """As of GLUE, whose test labels are all −1."""
    on_the_hub(monkeypatch, train=[0, 1] * 40, validation=[1, 0], test=[-1] * 9)
    found = open_labelled("some/glue")
    assert found.counts()["test"] == {"neg": 4, "pos": 4} and found.counts()[
        "train"
    ] == {"neg": 36, "pos": 36}
    assert (
        found.described()["unlabelled"] == ["test"]
        and len(found.splits["validation"]) == 2
    )
    for split in ("train", "test"):
        on_the_hub(
            monkeypatch, **{"train": [0, 1] * 9, "test": [0, 1], split: [-1, 0, 1, 1]}
        )
        with pytest.raises(
            CorpusError, match=rf"a label in every row \(row 1 of some/glue, {split}\)"
        ):
            open_labelled("some/glue")


@pytest.mark.parametrize("labels", [(-1, 1), (-2, -1, 0, 1, 2)])
def test_labels_below_zero_are_labels_in_a_table(tmp_path, labels):
    n = len(labels)
    found = open_labelled(
        table(
            tmp_path / "t.jsonl",
            [{"text": "x y", "label": labels[i % n]} for i in range(60)],
        )
    )
    assert (
        found.labels == tuple(map(str, labels))
        and len(set(found.counts()["train"].values())) == 1
    )


def test_one_label_written_in_several_ways_is_one_class(tmp_path):
    ways = (0, "1", "0.0", 1, 0.0, " 1 ")
    found = open_labelled(
        table(
            tmp_path / "t.jsonl",
            [{"text": "x", "label": ways[i % 6]} for i in range(60)],
        )
    )
    assert found.labels == ("0", "1") and found.counts()["train"] == {"0": 24, "1": 24}


def test_where_the_text_is_named_alone_one_text_is_meant(tmp_path):
    path = table(tmp_path / "t.jsonl", [row | {"text2": "another"} for row in rows()])
    assert open_labelled(path).pairs
    assert not open_labelled(path, columns={"text": "text"}).pairs
    assert open_labelled(path, columns={"text": "text", "second": "text2"}).pairs


def test_a_split_column_that_is_asked_for_goes_before_other_splits(tmp_path):
    lines = [
        row | {"part": ("train", "dev", "test")[i // 2 % 3]}
        for i, row in enumerate(rows())
    ]
    for split in ("train", "test"):
        path = tmp_path / f"{split}.jsonl"
        table(path, lines)
    assert {
        s: len(part)
        for s, part in open_labelled(
            str(path), columns={"split": "part"}
        ).splits.items()
    } == dict.fromkeys(("train", "validation", "test"), 20)
    found = open_labelled(str(tmp_path), columns={"split": "part"})
    assert [len(part) for part in found.splits.values()] == [40, 40, 40]


def test_without_the_hub_a_labelled_corpus_is_advised(monkeypatch):
    import datasets

    def unreachable(*_, **__):
        raise ConnectionError

    monkeypatch.setattr(hub, "find_set", lambda part: HubSet(part.id, None))
    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(CorpusError, match="or use synthetic, which needs no network"):
        open_labelled("imdb")


def test_limits_are_spread_over_the_classes():
    examples = [Example((str(i),), int(i > 5)) for i in range(12)]
    assert [e.words[0] for e in take_balanced(examples, 6, 2)] == [
        "0",
        "1",
        "2",
        "6",
        "7",
        "8",
    ]
    assert len(take_balanced(examples, 5, 2)) == 5
    assert len(open_labelled("synthetic:3", limit=30).splits["train"]) == 30
    parts = split_at_random(examples, {"a": 0.5, "b": 0.5}, 0)
    assert sorted(e.words for e in parts["a"] + parts["b"]) == sorted(
        e.words for e in examples
    )
    assert split_at_random(examples, {"a": 0.5, "b": 0.5}, 1) != parts


def test_the_papers_vocabulary():
    found = LabelledCorpus(
        "x",
        ("a", "b"),
        {"train": (Example(("The", "the", "cat!"), 0), Example(("cat",), 1))},
    )
    tokenizer = build_tokenizer(found, max_length=9)
    assert tokenizer.convert_ids_to_tokens(range(len(tokenizer))) == [
        "<pad>",
        "<unk>",
        "cat",
        "the",
        "!",
        "<cls>",
    ]
    encoded = encode([Example(("the", "dog!"), 0)], tokenizer, 9)
    assert encoded.rows[0]["input_ids"] == [5, 3, 1, 4] and encoded.words[0] == [
        -1,
        0,
        1,
        1,
    ]


def test_pairs_are_encoded_with_and_without_a_mark_between_them():
    found = open_labelled("synthetic-pairs")
    plain, marked = (
        build_tokenizer(found, max_length=64, separator=s) for s in (False, True)
    )
    example = found.splits["test"][:1]
    without, with_mark = encode(example, plain, 64), encode(example, marked, 64)
    assert without.words[0] == [-1, *range(len(example[0].all_words))]
    assert (
        with_mark.words[0].count(-1) == 2
        and with_mark.words[0][len(example[0].words) + 1] == -1
    )


def test_long_utterances_are_cut_and_counted():
    found = open_labelled("synthetic")
    tokenizer = build_tokenizer(found, max_length=10)
    encoded = encode(found.splits["test"], tokenizer, 10)
    assert max(encoded.lengths) == 10
    assert encoded.truncated == sum(len(e.words) > 9 for e in found.splits["test"]) > 0


def test_a_plan_holds_every_example_once_and_knows_special_tokens():
    found = open_labelled("synthetic")
    tokenizer = build_tokenizer(found, max_length=64)
    encoded = encode(found.splits["test"], tokenizer, 64)
    plan = LabelledPlan(encoded, tokenizer.pad_token_id, batch_tokens=200)
    batches = list(plan)
    assert sorted(i for b in batches for i in b.unit.tolist()) == list(range(300))
    assert (
        sum(int(b.streams["encoder"].mask.sum()) for b in batches)
        == sum(encoded.lengths)
        == sum(plan.tokens)
    )
    assert all(int(b.streams["encoder"].special.sum()) == len(b.unit) for b in batches)
    padded = pad_batch(encoded.rows[:3], 0)
    assert padded["attention_mask"].sum(1).tolist() == encoded.lengths[:3]
    assert np.array_equal(padded["labels"], encoded.labels[:3])


def test_padding_is_the_pad_token_and_nothing_in_other_columns():
    """The kind of a padded token is 0, whatever the number of the pad token."""
    rows = [
        {"input_ids": [5, 6, 7], "token_type_ids": [0, 1, 1], "labels": 1},
        {"input_ids": [5], "labels": 0},
    ]
    rows[1]["token_type_ids"] = [1]
    found = {name: column.tolist() for name, column in pad_batch(rows, 9).items()}
    assert found == {
        "input_ids": [[5, 6, 7], [5, 9, 9]],
        "token_type_ids": [[0, 1, 1], [1, 0, 0]],
        "attention_mask": [[1, 1, 1], [1, 0, 0]],
        "labels": [1, 0],
    }


def test_renamed_or_swapped_classes_are_another_run():
    """Records name classes: a run with the same examples under other names must not be taken for it."""
    found = open_labelled("synthetic", limit=20)
    encoded = encode(found.splits["test"], build_tokenizer(found, max_length=64), 64)
    names = (found.labels, found.labels[::-1], ("other", "names"))
    assert (
        len({LabelledPlan(encoded, 0, classes=labels).fingerprint for labels in names})
        == 3
    )
    corpora = [LabelledCorpus("mine", labels, found.splits) for labels in names]
    assert len({corpus.fingerprint for corpus in corpora}) == 3


BAD_TABLES = {
    "a label in every row": [*rows(20), {"text": "x", "label": None}],
    "at least 2 classes": [row | {"label": "bad"} for row in rows(20)],
    "at least 2 examples of every class in the train split": [
        *rows(20),
        {"text": "x", "label": "rare"},
    ],
    "at least 1 example of every class in the validation split": [
        *rows(20, split="train"),
        *rows(1, split="dev"),
        *rows(4, split="test"),
    ],
    "a column for label": [{"text": "x"}] * 9,
    "a rationale of 3 marks, one per word": rows(20, rationale=[0, 1]),
    "a rationale of numbers between 0 and 1": rows(20, rationale="yes no maybe"),
    "text in every row (bad.jsonl, line 1); got none": [
        row | {"text": " "} for row in rows(20)
    ],
    "text in every row (bad.jsonl, line 21); got none": [*rows(20), {"label": "bad"}],
    "two texts in every row (bad.jsonl, line 21); got one": [
        *rows(20, second="y"),
        *rows(1),
    ],
    "two texts in every row (bad.jsonl, line 1); got one": [
        *rows(1),
        *rows(20, second="y"),
    ],
    "one text (bad.jsonl, line 21); got two": [
        *rows(20),
        {"text": ["A man sits.", "A man rests."], "label": "bad"},
    ],
    "a label in every row (bad.jsonl, line 21); got none": [
        *rows(20),
        {"text": "x", "label": " "},
    ],
    "a text or a number as label (bad.jsonl, line 21)": [
        *rows(20),
        {"text": "x", "label": ["bad"]},
    ],
    "a split in the column 'split' of every row (bad.jsonl, line 21)": [
        *rows(20, split="train"),
        *rows(1),
    ],
    "a train split": [*rows(20, split="dev"), *rows(20, split="test")],
}


@pytest.mark.parametrize("expected", BAD_TABLES)
def test_bad_tables_are_explained(tmp_path, expected):
    path = table(tmp_path / "bad.jsonl", BAD_TABLES[expected])
    with pytest.raises(CorpusError, match=re.escape(expected)):
        open_labelled(path)


def test_other_bad_input_is_explained(tmp_path):
    (tmp_path / "broken.jsonl").write_text('{"text": 1')
    (tmp_path / "x.md").write_text("x")
    for name, expected in (
        ("synthetc", "did you mean synthetic"),
        (str(tmp_path / "broken.jsonl"), "one JSON object per line"),
        (str(tmp_path / "x.md"), "in .csv, .tsv, .json, .jsonl"),
        (str(tmp_path), "train.jsonl"),
        ("synthetic:1", "2 to 50 classes"),
    ):
        with pytest.raises(AnisoscopeError, match=expected):
            open_labelled(name)
    with pytest.raises(UsageError, match="columns are known"):
        open_labelled("synthetic", columns={"text": "x"})
    with pytest.raises(CorpusError, match="did you mean text"):
        open_labelled(table(tmp_path / "t.jsonl", rows()), columns={"text": "texts"})
    with pytest.raises(
        CorpusError, match="at least 2 examples of every class in the train split"
    ):
        require_usable(corpus(TWO[:2]))
    sound = corpus(TWO)
    assert require_usable(sound) is sound
    two = Example(("x",), 0, ("y",))
    for examples, expected in (
        ((*TWO, two), "expected two texts in every row"),
        ((), "a train split"),
    ):
        with pytest.raises(CorpusError, match=expected):
            require_usable(corpus(examples))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, ()),
        ("a  b\nc", ("a", "b", "c")),
        (["a", "b"], ("a", "b")),
        (["a b"], ("a b",)),
        (["a b", "c", "d"], ("a b", "c", "d")),
        (["a b", "c"], None),
        (["a", "b c"], None),
        (7, ("7",)),
    ],
)
def test_words_of_a_cell_unless_it_holds_two_texts(value, words):
    if words is None:
        with pytest.raises(CorpusError, match=r"one text .*got two"):
            _split_words(value, "row 1")
    else:
        assert _split_words(value, "row 1") == words


# ---- which rows are looked at ----------------------------------------------------------------------------------------


def labelled_rows(count, classes=2):
    return [{"text": f"a b {i}", "label": f"c{i % classes}"} for i in range(count)]


def test_of_a_table_without_splits_all_rows_are_looked_at(tmp_path):
    """A tenth of them was: 22 of 214 rows, 3 of 40, and nothing said so."""
    corpus = open_labelled(
        table(tmp_path / "t.jsonl", labelled_rows(214)), for_training=False
    )
    found, split, said = choose_split(corpus, "", trained_on=False)
    assert split == "all" and len(found.splits[split]) == 214
    assert said.endswith("t.jsonl has no splits: looked at all 214 rows")
    assert len({e.words for e in found.splits[split]}) == 214
    assert choose_split(corpus, "", trained_on=False, limit=50)[2].endswith(
        "50 of 214 rows (--limit: there are 214)"
    )
    found, split, said = choose_split(corpus, "", trained_on=True)
    assert split == "held-out" and len(found.splits[split]) == 42
    assert said.endswith("looked at 42 of 214 rows that the model was not trained on")
    assert not {e.words for e in found.splits[split]} & {
        e.words for e in corpus.splits["train"]
    }
    found, split, said = choose_split(corpus, "test", trained_on=False)
    assert split == "test" and said.endswith(
        "has no test split: looked at 22 of 214 rows drawn at random"
    )


def test_splits_that_are_there_are_taken_and_those_that_are_drawn_are_said(tmp_path):
    for split, count in (("train", 40), ("test", 10)):
        table(tmp_path / f"{split}.jsonl", labelled_rows(count))
    corpus = open_labelled(str(tmp_path))
    assert corpus.drawn == ("validation",) and choose_split(
        corpus, "", trained_on=False
    )[1:] == ("test", "")
    (tmp_path / "test.jsonl").unlink()
    found, split, said = choose_split(
        open_labelled(str(tmp_path)), "", trained_on=False
    )
    assert (
        split == "test"
        and len(found.splits["test"]) == 4
        and said.endswith("4 of 40 rows drawn at random")
    )
    assert choose_split(open_labelled("synthetic"), "", trained_on=False)[1:] == (
        "test",
        "",
    )


def test_a_small_table_is_enough_where_nothing_is_trained(tmp_path):
    path = table(tmp_path / "t.jsonl", labelled_rows(6, classes=3))
    assert len(open_labelled(path, for_training=False).splits["all"]) == 6
    with pytest.raises(
        CorpusError, match=r"examples? of every class in the validation split"
    ):
        open_labelled(path)
    short = table(tmp_path / "u.jsonl", labelled_rows(5, classes=3))
    with pytest.raises(
        CorpusError, match="at least 2 examples of every class in the all split"
    ):
        open_labelled(short, for_training=False)


def test_two_columns_are_told_by_what_they_hold(tmp_path):
    """Whatever they are called: the text has more words, the label repeats itself; else they have to be named."""
    posts = [f"the post number {i} says something new" for i in range(24)]
    moods = ["glad", "sad"] * 12
    pd.DataFrame({"Stimmung": moods, "Beitrag": posts}).to_csv(
        tmp_path / "told.csv", index=False
    )
    corpus = open_labelled(str(tmp_path / "told.csv"), for_training=False)
    assert corpus.labels == ("glad", "sad") and corpus.source["columns"] == {
        "text": "Beitrag",
        "label": "Stimmung",
    }
    assert corpus.splits["all"][0].text.startswith("the post number")
    for name, columns in (
        ("both short", {"a": moods, "b": moods}),
        ("no label repeats", {"a": posts, "b": [f"m{i}" for i in range(24)]}),
        ("three", {"a": posts, "b": moods, "c": moods}),
    ):
        path = tmp_path / f"{name}.csv"
        pd.DataFrame(columns).to_csv(path, index=False)
        with pytest.raises(CorpusError, match="a column for text"):
            open_labelled(str(path), for_training=False)


def test_the_source_of_a_table_is_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pd.DataFrame({"text": ["a b", "c d"] * 4, "label": ["x", "y"] * 4}).to_csv(
        "table.csv", index=False
    )
    source = open_labelled("table.csv", for_training=False).source
    assert source["path"] == str(tmp_path.resolve() / "table.csv")
