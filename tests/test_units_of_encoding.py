"""Labelled texts as token ids: the vocabulary, which word a token is of, padding, batches, and what a hash is of."""

import numpy as np
import pytest
import torch

from anisoscope.data import encoding
from anisoscope.data.encoding import Encoded, LabelledPlan, Padding
from anisoscope.data.labelled import Example, LabelledCorpus
from anisoscope.errors import CorpusError, UsageError


def corpus_of(*examples, tokenised=False, **splits):
    made = {"train": tuple(examples)} | splits
    return LabelledCorpus("c", ("x", "y"), made, tokenised=tokenised)


def build(*examples, tokenised=False, max_length=50, **how):
    corpus = corpus_of(*examples, tokenised=tokenised)
    return encoding.build_tokenizer(corpus, max_length=max_length, **how)


def words_of(tokenizer):
    return tokenizer.convert_ids_to_tokens([*range(len(tokenizer))])


# ---- the vocabulary --------------------------------------------------------------------------------------------------

TEXTS = (
    Example(("Cat", "sat.", "<user>"), 0, ("dog", "<sep>")),
    Example(("cat", "<pad>", "ant"), 1, ("<unk>",)),
)


def test_words_come_between_padding_and_marks_the_most_frequent_first():
    """Of both texts, in lower case; equally frequent ones by the alphabet; marks in a text get no second id."""
    tokenizer = build(*TEXTS, tokenised=True, max_length=7, separator=True)
    expected = ["<pad>", "<unk>", "cat", "<user>", "ant", "dog", "sat.", "<cls>", "<sep>"]  # fmt: skip
    assert words_of(tokenizer) == expected
    assert tokenizer.model_max_length == 7
    assert tokenizer.model_input_names == ["input_ids", "attention_mask"]
    names = ("pad_token", "unk_token", "cls_token", "sep_token")
    assert [getattr(tokenizer, name) for name in names] == [
        "<pad>",
        "<unk>",
        "<cls>",
        "<sep>",
    ]
    plain = build(*TEXTS, tokenised=True)
    assert words_of(plain) == expected[:-1] and plain.sep_token is None
    split = build(*TEXTS)
    assert {".", "sat", "user", "<", ">"} < set(words_of(split)), "marks are words"
    assert "<user>" not in words_of(split)


def test_only_the_training_split_has_words():
    corpus = corpus_of(TEXTS[0], test=(Example(("unseen",), 0),))
    assert "unseen" not in words_of(encoding.build_tokenizer(corpus, max_length=9))


def test_marks_stand_before_the_first_text_and_between_two():
    with_mark = build(*TEXTS, tokenised=True, separator=True)
    without = build(*TEXTS, tokenised=True)

    def tokens(tokenizer, *texts):
        return tokenizer.convert_ids_to_tokens(tokenizer(*texts)["input_ids"])

    assert tokens(without, "CAT nothing") == ["<cls>", "cat", "<unk>"]
    assert tokens(without, "cat", "dog ant") == ["<cls>", "cat", "dog", "ant"]
    assert tokens(with_mark, "cat", "dog") == ["<cls>", "cat", "<sep>", "dog"]
    assert tokens(with_mark, "cat") == ["<cls>", "cat"]


# ---- tokens of examples ----------------------------------------------------------------------------------------------


class Tokenizer:
    """A token for each letter of a text, token 1 before the first; a blank is part of the token behind it."""

    def __init__(self):
        self.asked = []

    def __call__(self, texts, seconds, **how):
        self.asked.append(how)
        limit = how.get("max_length") or 99
        found = {"input_ids": [], "token_type_ids": [], "offset_mapping": []}
        rows = []
        for number, text in enumerate(texts):
            ids, spans, whose = [1], [(0, 0)], [None]
            for which, each in enumerate((text, seconds[number] if seconds else "")):
                for place, letter in enumerate(each):
                    if letter != " ":
                        begins = place - (place > 0 and each[place - 1] == " ")
                        ids.append(ord(letter))
                        spans.append((begins, place + 1))
                        whose.append(which)
            found["input_ids"].append(ids[:limit])
            found["token_type_ids"].append([w or 0 for w in whose[:limit]])
            found["offset_mapping"].append(spans[:limit])
            rows.append(whose[:limit])

        class Encoding(dict):
            def sequence_ids(self, row):
                return rows[row]

        return Encoding(found)


PAIRS = [
    Example(("ab", "c"), 1, ("d", "ef")),
    Example(("a",), 0, ("b", "c", "d")),
]


def test_each_token_has_its_word_and_each_example_its_row():
    tokenizer = Tokenizer()
    found = encoding.encode(PAIRS, tokenizer, 9)
    assert found.words == [[-1, 0, 0, 1, 2, 3, 3], [-1, 0, 1, 2, 3]]
    assert found.rows[0] == {
        "input_ids": [1, *map(ord, "abcdef")],
        "token_type_ids": [0, 0, 0, 0, 1, 1, 1],
        "labels": 1,
    }
    assert found.lengths == [7, 5] and found.labels == [1, 0] and len(found) == 2
    assert found.truncated == 0 and len(tokenizer.asked) == 1
    assert tokenizer.asked[0] == {
        "return_offsets_mapping": True,
        "verbose": False,
        "add_special_tokens": True,
    }


@pytest.mark.parametrize(("longest", "cut"), [(8, 0), (7, 0), (6, 1), (5, 1), (4, 2)])
def test_texts_longer_than_the_limit_are_cut_and_counted(longest, cut):
    tokenizer = Tokenizer()
    found = encoding.encode(PAIRS, tokenizer, longest)
    assert found.truncated == cut
    assert found.lengths == [min(7, longest), min(5, longest)]
    assert [len(words) for words in found.words] == found.lengths
    assert len(tokenizer.asked) == 1 + bool(cut)
    if cut:
        asked = tokenizer.asked[1]
        assert (asked["truncation"], asked["max_length"]) == ("longest_first", longest)


def test_of_a_pair_the_longer_text_is_cut_first():
    """Six words of which three fit next to the mark: two of the longer text, one of the shorter."""
    tokenizer = build(Example((*"abcdef",), 0), tokenised=True)
    for first, second, kept in (("abcde", "f", "abf"), ("a", "bcdef", "abc")):
        example = Example((*first,), 0, (*second,))
        found = encoding.encode([example], tokenizer, 4)
        ids = tokenizer.convert_ids_to_tokens(found.rows[0]["input_ids"])
        assert ids == ["<cls>", *kept] and found.truncated == 1
        assert len(found.words[0]) == 4


def test_what_cannot_be_encoded():
    assert encoding.encode([], Tokenizer(), 3) == Encoded([], [])
    for limit in (2, 0):
        with pytest.raises(UsageError) as error:
            encoding.encode(PAIRS, Tokenizer(), limit)
        assert str(error.value) == (
            f"expected --max-length of at least 3 tokens; got {limit}. Cure: raise --max-length"
        )

    def bare(*_texts, **_how):
        return {"input_ids": [[5], []]}

    with pytest.raises(CorpusError) as error:
        encoding.encode(PAIRS, bare, 3)
    assert str(error.value) == (
        "expected tokens in every example; got an example without any. Cure: leave that example out"
    )


def test_words_begin_behind_the_blank_after_the_word_before():
    assert encoding._find_starts(("ab", "c", "def")) == [0, 3, 5]
    assert encoding._find_starts(()) == []


# ---- batches ---------------------------------------------------------------------------------------------------------

ROWS = [
    {"input_ids": [5, 6, 7], "token_type_ids": [1, 1, 1], "labels": 2},
    {"input_ids": [8], "token_type_ids": [1], "labels": 0},
]


@pytest.mark.parametrize("side", ["right", "left"])
def test_rows_are_padded_to_the_longest(side):
    """Ids with the padding token, other columns and the mask with 0."""

    def placed(*line):
        return [*line] if side == "right" else [*reversed(line)]

    batch = encoding.pad_batch(ROWS, Padding(9, side))
    assert batch["input_ids"].tolist() == [[5, 6, 7], placed(8, 9, 9)]
    assert batch["token_type_ids"].tolist() == [[1, 1, 1], placed(1, 0, 0)]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], placed(1, 0, 0)]
    assert batch["labels"].tolist() == [2, 0]
    assert set(batch) == {"input_ids", "token_type_ids", "attention_mask", "labels"}
    own = [row | {"attention_mask": [0] * len(row["input_ids"])} for row in ROWS]
    again = encoding.pad_batch(own, Padding(9, side))
    assert again["attention_mask"].tolist() == batch["attention_mask"].tolist()
    assert encoding.to_padding(9) == Padding(9, "right")
    assert encoding.to_padding(Padding(9, side)) == Padding(9, side)


def test_batches_fill_their_budget_with_padding_counted():
    lengths = [2, 4, 2, 4, 2, 1]

    def packed(side, budget):
        rows = encoding.pack_padded(lengths, budget, Padding(0, side))
        return [batch.tolist() for batch in rows]

    for side in ("right", "left"):
        assert packed(side, 8) == [[1, 3], [0, 2, 4, 5]]
    assert packed("none", 8) == [[1, 3], [0, 2, 4], [5]]
    assert packed("none", 4) == [[1], [3], [0, 2], [4], [5]]


def encoded_of(*lines, labels=None, words=None):
    labels = labels or [k % 2 for k in range(len(lines))]
    rows = [{"input_ids": [*line], "labels": n} for line, n in zip(lines, labels, strict=True)]  # fmt: skip
    words = words or [[-1, *range(len(line) - 1)] for line in lines]
    return Encoded(rows, words)


def test_everything_that_is_read_is_in_the_hash_of_a_plan():
    """Ids, classes of the examples and their names, size of batches, side of padding; not the padding token."""
    lines = ([1, 2], [3, 4])
    usual = LabelledPlan(encoded_of(*lines), 0)
    others = [
        LabelledPlan(encoded_of([1, 2], [3, 5]), 0),
        LabelledPlan(encoded_of(*lines, labels=[1, 0]), 0),
        LabelledPlan(encoded_of(*lines), 0, classes=("no", "yes")),
        LabelledPlan(encoded_of(*lines), 0, classes=("yes", "no")),
        LabelledPlan(encoded_of(*lines), 0, batch_tokens=100),
        LabelledPlan(encoded_of(*lines), Padding(0, "left")),
        LabelledPlan(encoded_of(*lines), Padding(0, "none")),
    ]
    prints = [plan.fingerprint for plan in (usual, *others)]
    assert len(set(prints)) == len(prints)
    for same in (
        LabelledPlan(encoded_of(*lines), 7),
        LabelledPlan(encoded_of(*lines), 0, classes=("0", "1")),
        LabelledPlan(encoded_of(*lines), 0, batch_tokens=encoding.BATCH, stack="x"),
    ):
        assert same.fingerprint == usual.fingerprint


def test_a_plan_has_its_classes_stacks_and_numbers():
    plan = LabelledPlan(encoded_of([1], [2, 3, 4], [5], labels=[0, 2, 0]), 7)
    assert plan.classes == ("0", "1", "2") and plan.pad_id == 7
    assert plan.stacks == ("encoder",) and plan.stack == "encoder"
    assert plan.tokens == [5] and plan.n_units == 3
    assert [plan.words[k] for k in ("position", "sequence", "unit")] == ["token", "example", "example"]  # fmt: skip
    both = LabelledPlan(encoded_of([1]), 7, stack=("encoder", "decoder"), classes="ab")
    assert both.stack == "decoder" and both.classes == ("a", "b")
    assert LabelledPlan(Encoded([], []), 7).classes == ()


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_batch_has_padding_marks_and_labels_in_their_places(side):
    """The second example has a mark in the middle; padding is none, although its ids are."""
    encoded = encoded_of([1, 2, 3, 4], [5, 6], labels=[3, 2], words=[[-1, 0, -1, 1], [-1, 0]])  # fmt: skip
    plan = LabelledPlan(encoded, Padding(9, side), stack=("encoder", "decoder"))
    batch = plan.build(np.array([1, 0]))
    left = side == "left"
    assert batch.inputs["input_ids"].tolist() == [
        [9, 9, 5, 6] if left else [5, 6, 9, 9],
        [1, 2, 3, 4],
    ]
    assert set(batch.inputs) == {"input_ids", "attention_mask"}
    assert batch.label.tolist() == [2, 3] and batch.unit.tolist() == [1, 0]
    stream = batch.streams["encoder"]
    assert stream.mask.long().tolist() == [
        [0, 0, 1, 1] if left else [1, 1, 0, 0],
        [1] * 4,
    ]
    special = [[0, 0, 1, 0] if left else [1, 0, 0, 0], [1, 0, 1, 0]]
    assert stream.special.long().tolist() == special
    assert stream.start.tolist() == [0, 0]
    shifted = [[1, *row[:-1]] for row in special]
    assert batch.streams["decoder"].special.long().tolist() == shifted
    assert torch.equal(batch.streams["decoder"].mask, stream.mask)
    assert list(batch.streams) == ["encoder", "decoder"]
