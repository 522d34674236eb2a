"""Texts: how they are split, numbered, hashed and cut into windows; made-up corpora; notes and messages."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from anisoscope.data import hub, labelled, splitting, synthetic, text as texts, windows
from anisoscope.data.corpora import CorpusOptions, HubPart, NamedCorpus
from anisoscope.data.plans import hash_parts
from anisoscope.data.splitting import SplitText
from anisoscope.data.text import TextCorpus
from anisoscope.data.windows import Affixes, IdCounts
from anisoscope.errors import CorpusError, ModelError, UsageError


def message_of(error, call, *given, **more):
    with pytest.raises(error) as caught:
        call(*given, **more)
    return str(caught.value)


# ---- splitting -------------------------------------------------------------------------------------------------------


def form_of(found):
    return found.how, found.unit, found.block, found.guessed


@pytest.mark.parametrize(
    ("size", "n_blocks", "n_lines", "form"),
    [
        # six characters a token; the largest power of two of which 20 fit
        (20 * 8192 * 6, 99, 2, ("blocks of 8192 tokens", "block", 8192, True)),
        (20 * 8192 * 6 - 1, 19, 2, ("blocks of 4096 tokens", "block", 4096, True)),
        (20 * 8192 * 6 - 1, 20, 2, ("blank lines", "paragraph", None, True)),
        (20 * 128 * 6, 19, 2, ("blocks of 128 tokens", "block", 128, True)),
        (20 * 128 * 6 - 1, 2, 2, ("blank lines", "paragraph", None, True)),
        (20 * 128 * 6 - 1, 1, 2, ("lines", "line", None, True)),
        (20 * 128 * 6 - 1, 1, 1, ("blocks of 64 tokens", "block", 64, True)),
        (20 * 32 * 6 - 1, 1, 1, ("blocks of 32 tokens", "block", 32, True)),
        (0, 0, 0, ("blocks of 32 tokens", "block", 32, True)),
    ],
)  # fmt: skip
def test_short_texts_have_units_as_large_as_possible(size, n_blocks, n_lines, form):
    assert form_of(splitting._choose_short_units(size, n_blocks, n_lines)) == form


def test_rules_that_are_asked_for_are_not_guessed():
    for rule, form in (
        ("blank-line", ("blank lines", "paragraph", None, False)),
        ("line", ("lines", "line", None, False)),
        ("file", ("files", "document", None, False)),
        ("tokens:7", ("blocks of 7 tokens", "block", 7, False)),
    ):
        assert form_of(splitting.split_text("a\n\nb\n", rule=rule)) == form
    assert form_of(splitting.cut_into_blocks(["a"], 9)) == ("blocks of 9 tokens", "block", 9, False)  # fmt: skip
    auto = splitting.split_text(" = A = \n\nx\n\n = B = \n\ny\n")
    assert form_of(auto) == ("titles", "article", None, False)
    single = splitting.split_text(" = A = \n\nx\n\ny\n")
    assert single.how == "blank lines", "one title makes no articles"
    known = "known names: auto, blank-line, file, line, tokens:N"
    for rule, cure in (
        ("tokens:0", "for example tokens:512"),
        ("tokens:99999999999", "for example tokens:512"),
        ("zzz", known),
        ("lines", "did you mean line or blank-line?"),
    ):
        assert message_of(UsageError, splitting.check_rule, rule) == (
            f"expected --documents out of auto, file, blank-line, line, tokens:N; got {rule!r}. Cure: {cure}"
        )


def test_blocks_are_documents_if_half_of_them_are_long():
    """The median of the words decides, not the mean; a single block is no document among others."""
    long, short = "w " * 200, "w " * 10
    for blocks, unit in (
        ([long, long, short], "document"),
        ([long * 9, short, short], "paragraph"),
        ([long, "w " * 199], "paragraph"),
    ):
        assert splitting.split_text("\n\n".join(blocks)).unit == unit
    assert splitting.split_text(long).unit == "block"


@pytest.mark.parametrize(
    ("lines", "blocks"),
    [
        (["a", "b", "", "c"], ["a\nb", "c"]),
        (["", "a", " \t", "b", ""], ["a", "b"]),
        (["  a", "  b", "", "", "  c"], ["  a\n  b", "  c"]),
        (["a", "\u00a0", "b"], ["a\n\u00a0\nb"]),
        (["a", "", "b "], ["a", "b "]),
        (["a"], ["a"]),
        ([""], []),
        ([], []),
    ],
)
def test_blocks_between_blank_lines_keep_their_indent(lines, blocks):
    assert list(splitting._iter_blocks(lines)) == blocks


def test_lines_go_on_from_part_to_part():
    for text in ("a\nb\n\nc", "a\n", "", "\n\n", "abc"):
        for size in (1, 2, 3, 9):
            parts = [text[k : k + size] for k in range(0, len(text), size)] or [""]
            assert list(splitting._iter_lines(parts)) == text.split("\n")


def test_articles_begin_behind_a_blank_line():
    lines = ["", " ", " = A = \n", "x", " = no = ", "", " == sub == ", "", " = B = ", "y\n"]  # fmt: skip
    assert list(splitting.split_articles(lines)) == [
        "= A = \nx\n = no = \n\n == sub ==",
        "= B = \ny",
    ]
    assert list(splitting.split_articles(["", " "])) == []


def test_a_running_text_is_cut_at_its_last_line_end(monkeypatch):
    """Nothing is lost, leading blanks neither; a text of blanks has no pieces; texts are not joined."""
    monkeypatch.setattr(splitting, "PIECE", 8)
    for text, pieces in (
        ("ab\ncd\nef gh", ["ab\ncd\n", "ef gh"]),
        ("ab cd ef gh", ["ab cd ", "ef gh"]),
        ("abcdefgh", ["abcdefgh"]),
        ("ab\ncd\nef", ["ab\ncd\nef"]),
        ("abcdefghi", ["abcdefgh", "i"]),
        ("         ab", ["        ", " ab"]),
        ("       \n        \n", []),
    ):
        for size in (1, 3, 99):
            parts = [text[k : k + size] for k in range(0, len(text), size)]
            assert list(splitting._cut_running_text(parts)) == pieces
    found = splitting.cut_into_blocks(["ab ", " ", "cd"], 5)
    assert list(found.documents) == ["ab ", "cd"]


def test_a_limited_text_is_read_up_to_fixed_sizes(monkeypatch):
    """4, 16, 64 … characters: the first of them that holds what is needed, to the end of its part."""
    monkeypatch.setattr(splitting, "HEAD", 4)
    for needed, read in ((0, 5), (5, 5), (6, 17), (17, 17), (18, 65), (99, 70)):
        assert len(list(splitting._take_enough(["x"] * 70, needed))) == read
    monkeypatch.setattr(splitting, "HEAD", 5)
    assert [len(p) for p in splitting._cut_head(["ab", "cd", "ef", "gh"])] == [2, 2, 1]


def test_a_file_is_read_as_far_as_its_limit_needs(tmp_path, monkeypatch):
    """Running text as many characters as its blocks may have; a file that is one document to its end."""
    monkeypatch.setattr(splitting, "HEAD", 4)
    monkeypatch.setattr(splitting, "MOST_CHARACTERS", 2)
    monkeypatch.setattr(splitting, "read_pieces", lambda _: iter(["w "] * 100))
    for limit, characters in ((1, 18), (2, 66), (None, 200)):
        found = splitting.split_file(tmp_path, limit, "tokens:8")
        assert len("".join(found.documents)) == characters
    path = tmp_path / "t.txt"
    path.write_text("a\n\nb\n")
    found = splitting.split_file(path, 1, "file")
    assert (list(found.documents), found.how) == (["a\n\nb\n"], "files")


def test_only_one_document_must_fit_into_memory(tmp_path, monkeypatch):
    """Each ends the count; a document as large as what is free is still read."""
    monkeypatch.setattr(splitting, "read_pieces", lambda _: iter(["abc\n"] * 5))
    monkeypatch.setattr(splitting, "HEAD", 1)
    for budget, fits in ((4, True), (3, False)):
        monkeypatch.setattr(splitting, "get_memory_budget", lambda b=budget: b)
        if fits:
            found = splitting.split_file(tmp_path / "t", None, "line")
            assert list(found.documents) == ["abc"] * 5
        else:
            with pytest.raises(CorpusError):
                splitting.split_file(tmp_path / "t", None, "line")


# ---- corpora of texts ------------------------------------------------------------------------------------------------


def test_a_folder_of_texts_is_numbered_and_hashed_by_file(tmp_path):
    """Two files of one name, one of them empty; the hash of the corpus is that of its files in order."""
    for name, text in (("a/x.txt", "one"), ("b/x.txt", " "), ("c.txt", "two")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    corpus = texts.open_text(str(tmp_path))
    contents = {"a/x.txt": ["one"], "b/x.txt": [], "c.txt": ["two"]}
    hashes = {name: hash_parts([True, *content]) for name, content in contents.items()}
    assert corpus.files == hashes and list(corpus.files) == list(hashes)
    assert corpus.fingerprint == hash_parts(hashes.values())
    assert corpus.numbers.tolist() == [0, 2] and not corpus.is_part
    assert corpus.source == {
        "kind": "folder", "path": str(tmp_path.resolve()), "documents": "files", "column": None,
        "limit": None, "empty": 1, "skipped": 0,
    }  # fmt: skip
    files = [tmp_path / name for name in hashes]
    for number, file in enumerate(hashes):
        part = texts.open_separate_file(tmp_path, number, files, CorpusOptions(), "n")
        assert part.fingerprint == hashes[file] and part.is_part and part.name == "n"
        assert part.numbers.tolist() == ([] if number == 1 else [number])
        assert part.source == corpus.source | {"empty": int(number == 1)}
        assert part.unit == "document"


def test_rows_of_files_are_numbered_by_file_and_place(tmp_path):
    for name, rows in (("a", "uv"), ("b", ""), ("c", "wxy")):
        lines = [json.dumps({"body": text}) for text in rows]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    corpus = texts.open_text(str(tmp_path))
    assert list(corpus.documents) == [*"uvwxy"]
    assert corpus.numbers.tolist() == [0, 3, 2, 5, 8] and corpus.unit == "row"
    assert corpus.source["column"] == "body" and len(corpus.files) == 3
    files = sorted(tmp_path.iterdir())
    part = texts.open_separate_file(tmp_path, 2, files, CorpusOptions(column="body"), "n")  # fmt: skip
    assert part.numbers.tolist() == [2, 5, 8] and part.unit == "row"
    assert part.source["column"] == "body" and part.source["documents"] == "rows"
    guessed = texts.open_separate_file(tmp_path, 2, files, CorpusOptions(), "n")
    assert guessed.source == part.source


def test_the_rule_is_part_of_the_hash_of_a_text(tmp_path):
    path = tmp_path / "t.txt"
    path.write_text("one line")
    document = texts.open_text(str(path), documents="file")
    line = texts.open_text(str(path), documents="line")
    blocks = [texts.open_text(str(path), documents=f"tokens:{n}", limit=3) for n in (5, 6)]  # fmt: skip
    assert document.fingerprint == line.fingerprint == hash_parts([True, "one line"])
    assert [b.fingerprint for b in blocks] == [hash_parts([n, "one line"]) for n in (5, 6)]  # fmt: skip
    assert [(b.block, b.limit, b.unit) for b in blocks] == [(5, 3, "block"), (6, 3, "block")]  # fmt: skip
    limited = texts.open_text(str(path), documents="line", limit=3)
    assert (limited.block, limited.limit, limited.unit) == (None, None, "line")
    assert limited.source["limit"] == 3 and limited.source["kind"] == "file"
    assert line.notes == () and line.numbers is None and line.files == {}
    path.write_text("one\ntwo\nthree\n")
    assert texts.open_text(str(path)).notes == (
        "the text marks no documents: it is split into units by lines; choose otherwise with --documents",
    )


def test_a_corpus_without_text_counts_what_it_had(tmp_path):
    for k, data in enumerate((b" ", b"\n", b"\xff")):
        (tmp_path / f"{k}.txt").write_bytes(data)
    assert message_of(CorpusError, texts.open_text, str(tmp_path), skip_bad=True) == (
        f"expected text in {tmp_path}; got no text (2 empty and 1 unreadable documents). "
        "Cure: name a corpus with text, or another column"
    )


def test_a_corpus_of_a_function_gets_the_limit_and_no_rule(monkeypatch):
    asked = []
    row = NamedCorpus("text", "d", maker="x:y")
    made = SplitText(["a"], "functions", "function"), {"kind": "made"}
    monkeypatch.setattr(NamedCorpus, "make", lambda _self, *given: asked.append(given) or made)  # fmt: skip
    resolved = []
    monkeypatch.setattr(
        texts, "resolve_corpus", lambda *given: resolved.append(given) or row
    )
    corpus = texts.open_text("n", limit=7)
    ((name, kind, options),) = resolved
    assert (name, kind, options.limit) == ("n", "text", 7)
    assert asked == [(7,)] and corpus.unit == "function"
    assert corpus.source == {
        "kind": "made", "documents": "functions", "column": None, "limit": 7, "empty": 0, "skipped": 0,
    }  # fmt: skip
    assert message_of(UsageError, texts.open_text, "n", documents="line") == (
        "expected --documents only with text of your own; got it with n. Cure: leave --documents out"
    )


class Rows:
    def __init__(self, rows):
        self.rows, self.asked = rows, []

    def __iter__(self):
        return iter(self.rows)

    def select_columns(self, names):
        self.asked.append(names)
        return Rows([{name: row[name] for name in names} for row in self.rows])


def test_only_the_column_of_text_of_a_hub_set_is_read(monkeypatch):
    """The first row chooses it; later rows need not have others."""
    rows = Rows([{"n": "1 a", "body": "one"}, {"n": "2 b", "body": " "}, {"n": "3 c", "body": "two"}])  # fmt: skip
    part = HubPart("my/name", "text", "a/b", "conf", None, "v1")
    monkeypatch.setattr(texts, "resolve_corpus", lambda *_: part)
    monkeypatch.setattr(hub, "find_set", lambda _: hub.HubSet("new/id", "c1", "refused"))  # fmt: skip
    monkeypatch.setattr(hub, "load_splits", lambda *_: {"test": rows})
    corpus = texts.open_text("my/name")
    assert list(corpus.documents) == ["one", "two"] and rows.asked == [["body"]]
    assert corpus.source == {
        "kind": "hub", "id": "new/id", "revision": "v1", "config": "conf", "split": "test", "commit": "c1",
        "hub": "refused", "documents": "rows", "column": "body", "limit": None, "empty": 1, "skipped": 0,
    }  # fmt: skip
    named = texts.open_text("my/name", column="n")
    assert list(named.documents) == ["1 a", "2 b", "3 c"]
    rows.rows = [{"a": "x y", "b": "z w"}]
    assert message_of(CorpusError, texts.open_text, "my/name") == (
        "expected a text column in new/id, split test; got the columns a, b. Cure: choose one with --column"
    )
    rows.rows = [{"body": "x"}, {"body": 7}]
    message = message_of(CorpusError, texts.open_text, "my/name")
    assert "text in column 'body' of a/b; got row 2: int." in message


def test_a_shard_reads_files_of_its_own_if_there_are_enough(tmp_path, monkeypatch):
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text("x")
    by_files = texts.read_by_files
    assert [by_files(str(tmp_path), (0, n)) for n in (1, 2, 3, 4)] == [True, True, True, False]  # fmt: skip
    assert by_files(str(tmp_path), (3, 3)) and not by_files(str(tmp_path), (0, 4))
    assert not by_files(str(tmp_path), (0, 2), limit=1)
    assert not by_files(str(tmp_path / "gone"), (0, 1))
    monkeypatch.setattr(texts, "named_corpora", lambda: {str(tmp_path): None})
    assert not by_files(str(tmp_path), (0, 1))


# ---- plans -----------------------------------------------------------------------------------------------------------


class Tokenizer:
    """A token for each letter: a 1, b 2 …; 50 and 51 before, 52 and 53 behind; `?` is unknown, 0."""

    pad_token_id, unk_token_id, vocab_size = 60, 0, 60

    def __init__(self, size=60, special=True):
        self.size, self.special, self.asked = size, special, 0

    def __len__(self):
        return self.size

    def __call__(self, given, *, add_special_tokens, **_):
        rows = []
        for text in given:
            self.asked += len(text)
            ids = [0 if c == "?" else ord(c) - 96 for c in text if c not in " \n"]
            rows.append([50, 51, *ids, 52, 53] if add_special_tokens and self.special else ids)  # fmt: skip
        return {"input_ids": rows}


def corpus_of(*documents, **more):
    return TextCorpus("n", list(documents), "print", {}, **more)


def plan_of(corpus, tokenizer=None, max_length=7, batch_tokens=99, **more):
    more |= {"max_length": max_length, "batch_tokens": batch_tokens}
    return texts.plan_text(corpus, tokenizer or Tokenizer(), **more)


def test_windows_of_an_encoder_and_of_a_decoder():
    """Three letters fit; the decoder's input begins with its start and lacks the last mark."""
    plan = plan_of(corpus_of("abcd", "ef"), decoder_start_id=40, vocab_size=61)
    batch = plan.build(np.array([0, 1]))
    assert batch.inputs["input_ids"].tolist() == [
        [50, 51, 1, 2, 3, 52, 53],
        [50, 51, 4, 52, 53, 60, 60],
    ]
    assert batch.inputs["decoder_input_ids"].tolist() == [
        [40, 50, 51, 1, 2, 3, 52],
        [40, 50, 51, 4, 52, 60, 60],
    ]
    special = batch.streams["decoder"].special.long().tolist()
    assert special == [[1, 1, 1, 0, 0, 0, 1], [1, 1, 1, 0, 1, 0, 0]]
    assert batch.inputs["decoder_attention_mask"].tolist()[1] == [1, 1, 1, 1, 1, 0, 0]
    assert plan.settings == {
        "max_length": 7, "batch_tokens": 99, "padding_side": "right", "pad_id": 60,
        "special_tokens": {"encoder": [(50, 51), (52, 53)], "decoder": [(40, 50, 51), (52,)]},
    }  # fmt: skip
    assert plan_of(corpus_of("a"), vocab_size=60).settings["pad_id"] == 0
    found = texts._find_affixes_by_stack(Tokenizer(special=False), "encoder", 40)
    assert found == {"encoder": Affixes(), "decoder": Affixes((40,), ())}
    assert message_of(UsageError, plan_of, corpus_of("a"), max_length=4) == (
        "expected windows of at least 5 tokens (special tokens take 4); got 4. Cure: raise --max-length"
    )
    bare = Tokenizer(special=False)
    plan = plan_of(corpus_of("abc"), bare, max_length=3, decoder_start_id=40)
    assert plan.windows.length.tolist() == [2, 1], "room for the start of the decoder"
    assert message_of(UsageError, plan_of, corpus_of("a"), padding_side="both") == (
        "expected padding_side 'right' or 'left'; got 'both'"
    )


def test_a_running_text_is_tokenised_as_far_as_its_units_need():
    reader = Tokenizer()
    corpus = corpus_of(*["abcdefghij"] * 4, block=4, limit=3, unit="block")
    plan = plan_of(corpus, reader)
    assert len(plan.windows.ids) == 12 and plan.n_units == 3
    assert plan.windows.unit.tolist() == [0, 0, 1, 1, 2, 2]
    assert plan.words["unit"] == "block" and plan.words["sequence"] == "window"
    whole = plan_of(corpus_of("abcdefghij", block=4), reader)
    assert whole.windows.length.tolist() == [3, 1, 3, 1, 2] and whole.n_units == 3


def test_notes_and_numbers_of_a_part_of_a_corpus():
    """It does not know the counts of the others; its numbers stay those of the whole, empty documents or not."""
    numbers = {"numbers": np.array([4, 7, 10])}
    corpus = corpus_of("ab", " ", "c", notes=("a note",), **numbers)
    plan = plan_of(corpus)
    assert plan.warnings == ["a note"] and plan.unit.tolist() == [4, 10]
    assert "is_part" not in plan.settings
    part = plan_of(corpus_of("ab", " ", "c", notes=("a note",), is_part=True, **numbers))  # fmt: skip
    assert part.settings["is_part"] is True
    assert part.warnings == [
        "a note",
        "bins of token frequency left out: a shard of files does not know the counts of the others",
    ]
    few = plan_of(corpus_of("ab"), Tokenizer(40), vocab_size=61)
    assert few.warnings == ["the tokenizer has 40 tokens for a vocabulary of 61: is it the model's own?"]  # fmt: skip
    plan_of(corpus_of("??", is_part=True)), plan_of(corpus_of("?a"))
    with pytest.raises(ModelError, match="a tokenizer that knows the text"):
        plan_of(corpus_of("??"))


def test_whatever_is_read_differently_has_another_hash():
    def print_of(*documents, tokenizer=None, max_length=7, batch_tokens=99, how=None, **more):  # fmt: skip
        corpus = corpus_of(*documents or ("ab", "cd"), **more)
        return plan_of(corpus, tokenizer, max_length, batch_tokens, **how or {}).fingerprint  # fmt: skip

    prints = [
        print_of(),
        print_of("ab", "ce"),
        print_of("a", "bcd"),
        print_of(numbers=np.array([0, 5])),
        print_of(max_length=6),
        print_of(batch_tokens=8),
        print_of(tokenizer=Tokenizer(special=False)),
        print_of(how={"padding_side": "left"}),
        print_of(how={"decoder_start_id": 1}),
        print_of(how={"stack": "decoder"}),
        print_of(is_part=True),
    ]
    assert len(set(prints)) == len(prints) and print_of() == prints[0]


def test_words_are_numbered_and_read_as_characters():
    """Padding is a row of zeros; marks are words too; the encoder's own marker before each word is left out."""

    class OfCharacters:
        def tokenize(self, text):
            return text.split()

        def encode(self, batch):
            rows = [[[-1] * 3, [len(word) + 1, *map(ord, f"{word}~~"[:2])], [-2] * 3] for (word,) in batch]  # fmt: skip
            return {"input_ids": torch.tensor([rows[0]])}

    words = texts._Words(OfCharacters())
    assert words(["b a", "a c"], add_special_tokens=True) == {"input_ids": [[1, 2, 3, 4], [1, 3, 5, 4]]}  # fmt: skip
    assert words(["d a"], add_special_tokens=False) == {"input_ids": [[6, 3]]}
    assert list(words.ids) == ["", "[CLS]", "b", "a", "[SEP]", "c", "d"]
    plan = texts.plan_characters(corpus_of("xy z", "x"), OfCharacters(), max_length=4, batch_tokens=99)  # fmt: skip
    batch = plan[0]
    ids = batch.inputs["input_ids"]
    assert ids.shape == (2, 4, 3)
    assert ids[1, 3].tolist() == [0, 0, 0] and ids[0, 1].tolist() == [3, ord("x"), ord("y")]  # fmt: skip
    assert ids[1, 1].tolist() == [2, ord("x"), ord("~")]
    assert (plan.words["position"], plan.words["counted"]) == ("word", "word")
    same = plan_of(corpus_of("ab"))
    assert plan.fingerprint != same.fingerprint
    plain = plan_of(corpus_of("xy z", "x"), texts._Words(OfCharacters()), 4)
    assert plan.fingerprint == hash_parts(["characters", plain.fingerprint])


# ---- windows ---------------------------------------------------------------------------------------------------------


def test_special_tokens_are_what_is_around_a_text():
    """A text whose ids occur twice, or not at all, tells nothing: the next is tried."""
    assert windows.find_affixes(Tokenizer()) == Affixes((50, 51), (52, 53))
    assert windows.find_affixes(Tokenizer(special=False)) == Affixes()

    def reader(full, bare):
        def call(given, *, add_special_tokens, **_):
            (probe,) = given
            return {"input_ids": [(full if add_special_tokens else bare).get(probe, [9])]}  # fmt: skip

        return call

    full = {"a": [1, 5, 5, 2], "the": [1, 6, 7, 2]}
    found = windows.find_affixes(reader(full, {"a": [5], "the": [6, 7]}))
    assert found == Affixes((1,), (2,)) and len(found) == 2
    assert windows.find_affixes(reader({"a": [6, 7]}, {"a": [6, 7]})) == Affixes()
    twice = {probe: [3, 3] for probe in ("a", "the", "hello world", "1", ".")}
    odd = reader(twice, {probe: [3] for probe in twice})
    assert message_of(ModelError, windows.find_affixes, odd) == (
        "expected a tokenizer that adds special tokens before and after a text; "
        "got [3, 3] for '.', without special tokens [3]. "
        "Cure: use the tokenizer published with the model, with all its files"
    )
    assert windows._find_all([1, 1], [1, 1, 1, 2, 1, 1]) == [0, 1, 4]
    assert windows._find_all([3], [1, 2]) == []


def test_documents_are_tokenised_some_at_a_time(monkeypatch):
    monkeypatch.setattr(windows, "_CHUNK", 3)
    asked = []

    def reader(given, **how):
        asked.append((given, how["add_special_tokens"], how["truncation"]))
        return {"input_ids": [[len(text)] for text in given]}

    documents = ["a", "b", "cde", "f", "gh", "i"]
    found = windows.tokenise(documents, reader)
    assert [ids.tolist() for ids in found] == [[1], [1], [3], [1], [2], [1]]
    assert {ids.dtype for ids in found} == {np.dtype(np.int32)}
    assert asked == [(["a", "b", "cde"], False, False), (["f", "gh"], False, False), (["i"], False, False)]  # fmt: skip


def test_tokens_are_taken_up_to_a_number():
    pieces = [np.arange(4), np.arange(4, 8), np.arange(8, 12)]
    for count, sizes in ((None, [4, 4, 4]), (6, [4, 2]), (8, [4, 4]), (9, [4, 4, 1]), (3, [3])):  # fmt: skip
        asked = []
        given = (asked.append(k) or piece for k, piece in enumerate(pieces))
        found = list(windows.take_tokens(given, count))
        assert [len(piece) for piece in found] == sizes and len(asked) == len(sizes)
    assert windows.choose_type(2**31 - 1) is np.int32
    assert windows.choose_type(2**31) is np.int64


def test_bins_are_of_the_middle_of_the_mass():
    """Counts 1, 2, 3, 4 and 10 of one type each; id 1 does not occur."""
    ids = np.repeat([0, 2, 3, 4, 5], [1, 2, 3, 4, 10]).astype(np.int32)
    bins, labels = windows.bin_by_frequency(ids)
    assert bins[[0, 2, 3, 4, 5]].tolist() == [0, 0, 1, 2, 3]
    counted = [f"q{k} (count {c})" for k, c in ((1, "1–2"), (2, "3–3"), (3, "4–4"), (4, "10–10"))]  # fmt: skip
    assert labels == [*counted, "q5 (empty)"]
    assert windows.count_types(ids).tolist() == [1, 0, 2, 3, 4, 10]
    tie, labels = windows.bin_by_frequency(np.array([3, 3, 5, 5], np.int32))
    assert tie[3] == tie[5] == 2 and labels[2] == "q3 (count 2–2)"


def test_tokens_of_punctuation_are_found_by_their_text():
    """Byte-level and continuing tokens too; those with an ASCII letter are not even decoded."""
    names = {1: "a.", 2: ".", 3: "##,", 4: "\u0120!", 5: "\u010a", 6: "\u00c3\u00a9", 7: "#", 8: None}  # fmt: skip
    spelled = {2: ".", 3: "##,", 4: " !", 5: "\n", 6: "\u00e9", 7: "#"}
    asked = []

    class Reader:
        def convert_ids_to_tokens(self, ids):
            return [names[i] for i in ids]

        def decode(self, ids):
            asked.append(ids[0])
            return spelled[ids[0]]

    ids = np.array([8, 2, 1, 3, 4, 5, 6, 7, 2], np.int32)
    found = windows.find_punctuation(Reader(), ids)
    assert found.tolist() == [False, False, True, True, True, True, False, True, False]
    assert asked == [2, 3, 4, 5, 6, 7]
    assert windows.find_punctuation(object(), ids) is None
    assert windows.find_punctuation(Reader(), ids[:0]) is None


def test_a_tokenizer_that_does_not_fit_says_which_number():
    cure = "use the tokenizer published with the model, with all its files"

    def check(total=10, unknown=0, largest=9, size=60, vocabulary=60, affixes=()):
        counts = IdCounts(total, unknown, largest)
        return windows.check_counts(Tokenizer(size), counts, affixes, vocabulary)

    assert check(unknown=5) == [] and check(vocabulary=None, size=1) == []
    assert check(largest=59) == [] and check(size=54) == []
    assert check(size=53) == ["the tokenizer has 53 tokens for a vocabulary of 60: is it the model's own?"]  # fmt: skip
    assert check(size=30)[0].startswith("the tokenizer has 30 tokens")
    unknown = "60% unknown tokens from a vocabulary of 60"
    for given, got, more in (
        ({"total": 0}, "no token at all", ""),
        ({"unknown": 6}, unknown, ", or a text in its language"),
    ):
        assert message_of(ModelError, check, **given) == (
            f"expected a tokenizer that knows the text; got {got}. Cure: {cure}{more}"
        )
    for given, wanted, got in (
        ({"size": 29}, 60, 60),
        ({"largest": 60}, 60, 61),
        ({"vocabulary": 50}, 50, 60),
        ({"affixes": [Affixes((70,), (1,)), Affixes((), (2,))]}, 60, 71),
        ({"affixes": [Affixes((), (80,))]}, 60, 81),
    ):
        assert message_of(ModelError, check, **given) == (
            f"expected a tokenizer that matches the model's vocabulary of {wanted}; "
            f"got a vocabulary of {got}. Cure: {cure}"
        )
    counted = windows.count_ids(Tokenizer(), np.array([0, 3, 0], np.int32))
    assert counted == IdCounts(3, 2, 3)
    assert IdCounts(3, 2, 3).add(IdCounts(4, 1, 9)) == IdCounts(7, 3, 9)
    assert windows.count_ids(SimpleNamespace(unk_token_id=9), np.array([1], np.int32)) == IdCounts(1, 0, 1)  # fmt: skip


def test_windows_that_are_too_short_are_left_out_and_counted():
    plan = plan_of(corpus_of("abcd", "e", notes=("a note",)))
    assert plan.lengths.tolist() == [7, 5, 5]
    assert message_of(CorpusError, plan.at_least, 8) == (
        "expected texts of at least 8 tokens, special ones counted; got none. Cure: name a longer text"
    )
    long = plan.at_least(6)
    assert long.lengths.tolist() == [7] and long.settings["shortest"] == 6
    assert long.warnings == [
        "a note",
        "2 windows of fewer than 6 tokens left out: the model cannot read them",
    ]
    part = plan_of(corpus_of("abcd", "e", is_part=True)).at_least(6)
    assert part.warnings[-1] == "windows of fewer than 6 tokens left out: the model cannot read them"  # fmt: skip
    spread = plan.spread(2)
    assert spread.windows.offset.tolist() == [0, 3] and spread.warnings == ["a note"]
    assert spread.settings["sequences"] == 2 and spread.words == plan.words
    assert plan.spread(9).warnings == ["a note", "3 windows only, 9 asked for"]


# ---- made-up corpora -------------------------------------------------------------------------------------------------


def test_made_up_corpora_have_words_of_their_own_for_every_seed_and_number():
    two, three = synthetic.open_synthetic("synthetic", 0), synthetic.open_synthetic("synthetic:3", 0)  # fmt: skip
    pairs = synthetic.open_pairs("synthetic-pairs", 4)
    assert two.labels == ("class 1", "class 2") and three.labels[-1] == "class 3"
    assert pairs.labels == ("entailment", "neutral", "contradiction")
    assert two.source == {"kind": "generated", "seed": 0}
    assert pairs.source == {"kind": "generated", "seed": 4} and pairs.name == "synthetic-pairs"  # fmt: skip
    for corpus in (two, three, pairs):
        sizes = {split: len(examples) for split, examples in corpus.splits.items()}
        assert sizes == {"train": 900, "validation": 300, "test": 300}
        assert corpus.tokenised
        counts = corpus.counts()["train"]
        assert set(counts.values()) == {900 // len(corpus.labels)}
    used = [{w for e in c.all_examples for w in e.words} for c in (two, three)]
    assert len(used[0] & used[1]) < 50 < 300 < len(used[0]), "hardly a word is shared"
    for name, number in (("synthetic", 2), ("synthetic:2", 2), ("synthetic:50", 50)):
        assert synthetic._read_number_of_classes(name) == number
    for name in ("synthetic:1", "synthetic:51", "synthetic:x", "synthetic:-3"):
        assert message_of(UsageError, synthetic._read_number_of_classes, name) == (
            f"expected synthetic:N with 2 to 50 classes; got {name!r}. Cure: three classes are synthetic:3"
        )


def test_keywords_tell_the_class_and_a_stray_one_is_rarer_than_its_own():
    """Each class has six keywords of its own; a text has one to three of them, and 8 to 24 fillers."""
    corpus = synthetic.open_synthetic("synthetic:3", 0)
    counts = {sum(example.rationale) for example in corpus.all_examples}
    lengths = {example.rationale.count(0.0) for example in corpus.all_examples}
    assert counts == {1, 2, 3} and {8, 24} <= lengths
    own = [set() for _ in corpus.labels]
    for example in corpus.all_examples:
        for word, mark in zip(example.words, example.rationale, strict=True):
            if mark:
                own[example.label].add(word)
    assert [len(words) for words in own] == [6, 6, 6]
    assert len(set.union(*own)) == 18
    n_strays = 0
    for example in corpus.all_examples:
        marked = sum(example.rationale)
        keys = [w for w in example.words if any(w in words for words in own)]
        strays = len(keys) - int(marked)
        n_strays += strays
        assert 1 <= marked <= 3 and strays in (0, 1) and strays < marked
        assert 8 <= len(example.words) - len(keys) <= 24
    assert 0.1 < n_strays / len(corpus.all_examples) < 0.3, "0.3 of two thirds"


def test_pairs_mark_the_thing_that_each_text_names():
    """A thing has the same opposite wherever both are named; the marked word may be anywhere."""
    corpus = synthetic.open_pairs("synthetic-pairs", 0)
    opposite, first_names, places = {}, set(), set()
    for example in corpus.all_examples:
        size = len(example.words)
        assert 5 <= size <= 9 and 5 <= len(example.second) <= 9
        marks = example.rationale
        assert sum(marks[:size]) == sum(marks[size:]) == 1
        one = example.words[marks.index(1.0)]
        other = example.second[marks[size:].index(1.0)]
        places.add((marks.index(1.0) == 0, marks.index(1.0) == size - 1))
        first_names.add(one)
        if example.label == 0:
            assert one == other
        elif example.label == 2:
            assert opposite.setdefault(one, other) == other != one
    assert len(places) == 3 and len(opposite) == 12 == len(first_names)
    assert not first_names & set(opposite.values())
    for example in corpus.all_examples:
        if example.label == 1:
            size = len(example.words)
            other = example.second[example.rationale[size:].index(1.0)]
            assert other in first_names
            assert other != example.words[example.rationale.index(1.0)]


def test_fillers_follow_the_law_of_zipf():
    shares = synthetic._compute_zipf(4)
    assert np.allclose(shares, np.array([12, 6, 4, 3]) / 25)
    draw = np.random.default_rng(0)
    words = synthetic._draw_words(300, draw)
    assert len(set(words)) == 300 and {len(word) for word in words} == {4, 6}
    assert labelled.SPLITS == ("train", "validation", "test")


@pytest.mark.parametrize("side", ["right", "left"])
def test_batches_from_the_disk_are_those_from_memory(monkeypatch, side):
    """Ids, marks, bins and punctuation, of windows in any order."""
    corpus = corpus_of("abcdefg", "b", "cdb")
    kept = plan_of(corpus, padding_side=side)
    monkeypatch.setattr("anisoscope.data.on_disk.IDS_HELD", 0)
    lying = plan_of(corpus, padding_side=side)
    assert isinstance(kept.windows.ids, np.ndarray) and not isinstance(lying.windows.ids, np.ndarray)  # fmt: skip
    assert lying.fingerprint == kept.fingerprint
    for rows in ([0, 1, 2], [4, 2], [3]):
        one, other = (plan.build(np.array(rows)) for plan in (kept, lying))
        assert one.inputs["input_ids"].tolist() == other.inputs["input_ids"].tolist()
        first, second = one.streams["encoder"], other.streams["encoder"]
        for name in ("mask", "special", "start", "frequency"):
            assert torch.equal(getattr(first, name), getattr(second, name))


def test_a_text_longer_than_its_head_is_cut_into_the_largest_blocks(monkeypatch):
    """Unless blocks at its beginning are long."""
    monkeypatch.setattr(splitting, "HEAD", 10)
    large = ("blocks of 8192 tokens", "block", 8192, True)
    assert form_of(splitting.split_text("x" * 11)) == large
    assert form_of(splitting.split_text("a\nb\nc\n\nd\nef")) == large
    assert splitting.split_text("a\nb\n\nc\nd").how == "blank lines"
    monkeypatch.setattr(splitting, "DOCUMENT_WORDS", 2)
    assert splitting.split_text("a b\n\nc d e f g h").unit == "document"


def test_sources_of_texts_are_found_from_any_folder(tmp_path, monkeypatch):
    (tmp_path / "in").mkdir()
    for name in ("a.txt", "b.txt"):
        (tmp_path / "in" / name).write_text("x")
    monkeypatch.chdir(tmp_path)
    here = tmp_path.resolve() / "in"
    assert texts.open_text("in").source["path"] == str(here)
    assert texts.open_text("in/a.txt").source["path"] == str(here / "a.txt")
    files = [Path("in/a.txt"), Path("in/b.txt")]
    part = texts.open_separate_file(Path("in"), 1, files, CorpusOptions(), "n")
    assert part.source["path"] == str(here) and part.files == {}


def test_all_of_the_beginning_decides_how_a_file_is_split(tmp_path, monkeypatch):
    """The mark is in its second piece; a document goes on from piece to piece."""
    pieces = ["one", " a\n\n", "two\n", "\nthr", "ee"]
    monkeypatch.setattr(splitting, "read_pieces", lambda _: iter(pieces))
    found = splitting.split_file(tmp_path, None, "auto")
    assert (list(found.documents), found.unit) == (["one a", "two", "three"], "paragraph")  # fmt: skip
    pieces[:] = [" = A = \n\nx\n", "\n = B = \n\ny"]
    found = splitting.split_file(tmp_path, None, "auto")
    assert list(found.documents) == ["= A = \n\nx", "= B = \n\ny"]
