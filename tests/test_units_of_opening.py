"""How a corpus becomes batches: lengths, options, shares of files, numbers of units, each on a few numbers."""

import gzip
from types import SimpleNamespace

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from anisoscope.data import (
    by_file,
    check_names,
    documents,
    files,
    on_disk,
    opening,
    plans,
    text as texts_of,
)
from anisoscope.data.corpora import CorpusOptions
from anisoscope.errors import CorpusError, ModelError, UsageError


@pytest.fixture(scope="module")
def tokenizer():
    """Words of two letters; no special tokens."""
    words = ["[UNK]", "[PAD]", *(a + b for a in "abcdefgh" for b in "abcdefgh")]
    inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, "[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="[UNK]", pad_token="[PAD]"
    )


def config(**more):
    return SimpleNamespace(**more)


def a_model(**of_config):
    """A model without modules."""
    given = config(**of_config)
    return SimpleNamespace(config=given, modules=list, named_modules=list)


# ---- lengths ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("of_model", "of_tokenizer", "longest"),
    [
        ({}, None, None),
        ({"max_position_embeddings": 700}, 10**30, 700),
        ({"max_position_embeddings": 700}, 300, 300),
        ({"n_positions": 800}, 1024, 800),
        ({"max_position_embeddings": 0, "n_positions": 800}, 1024, 800),
        ({"max_length_inputs": 90, "max_position_embeddings": 700}, 128, 90),
        ({"max_position_embeddings": 700, "relative_attention_num_buckets": 32}, 900, 900),
        ({"n_positions": 700, "relative_attention_num_buckets": 32}, 10**30, None),
        ({"max_position_embeddings": 514, "model_type": "roberta"}, 10**30, 512),
        ({"max_position_embeddings": 514, "model_type": "roberta", "pad_token_id": 0}, 10**30, 513),
        ({"max_position_embeddings": 514, "model_type": "roberta", "pad_token_id": 4}, 600, 509),
        *(
            ({"max_position_embeddings": 514, "model_type": kind}, 10**30, 512)
            for kind in ("roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod", "camembert", "ibert")
        ),
        ({"max_position_embeddings": 512, "model_type": "bert", "pad_token_id": 0}, 10**30, 512),
        ({"max_position_embeddings": -1}, 0, None),
    ],
)  # fmt: skip
def test_how_many_tokens_a_model_reads_at_once(of_model, of_tokenizer, longest):
    reader = SimpleNamespace(model_max_length=of_tokenizer, tokenize=None)
    assert opening.find_longest_input(config(**of_model), reader) == longest
    chosen = opening.choose_text_length(config(**of_model), reader, None)
    assert chosen == min(512, longest or 512)
    assert opening.choose_text_length(config(**of_model), reader, 17) == 17
    if longest is None:
        assert opening.choose_text_length(config(**of_model), reader, 9999) == 9999
    else:
        same = opening.choose_text_length(config(**of_model), reader, longest)
        assert same == longest
        with pytest.raises(
            UsageError, match=rf"at most {longest}, .*got {longest + 1}"
        ):
            opening.choose_text_length(config(**of_model), reader, longest + 1)


def test_a_text_needs_a_tokenizer():
    for reader, got in ((None, "none"), (SimpleNamespace(), "SimpleNamespace")):
        with pytest.raises(
            UsageError, match=rf"a tokenizer for a text corpus; got {got}"
        ):
            opening.choose_text_length(config(), reader, None)


# ---- options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("modality", "given", "message"),
    [
        ("text", ("line", 3, 5), None),
        ("speech", ("auto", None, 5), None),
        ("image", ("auto", None, None), None),
        ("speech", ("line", None, None), "--documents only .*got a model of speech"),
        ("image", ("auto", 3, None), "--sequences only .*got a model of image"),
        ("image", ("auto", None, 5), "no --max-length for an image model; got 5"),
    ],
)
def test_options_of_other_modalities_are_refused(modality, given, message):
    if message is None:
        opening._refuse_options_of_other_modalities(modality, *given)
        return
    with pytest.raises(UsageError, match=message):
        opening._refuse_options_of_other_modalities(modality, *given)


def test_a_plan_of_clips_or_pictures_gets_its_own_options(monkeypatch):
    asked = []

    def plan(*given, **options):
        asked.append((given, options))
        return "plan"

    module = SimpleNamespace(ImagePlan=plan, SpeechPlan=plan)
    monkeypatch.setattr(opening, "import_module", lambda _: module)
    for modality in ("image", "speech"):
        assert opening._plan_media("c", "m", "p", modality, 7, 9) == "plan"
    assert asked == [
        (("c", "m", "p"), {"batch_tokens": 9}),
        (("c", "m", "p"), {"batch_tokens": 9, "max_length": 7}),
    ]


def test_what_could_not_be_read_is_counted():
    assert opening._describe_skipped(None) == opening._describe_skipped(0) == []
    assert opening._describe_skipped(1) == ["1 unreadable item of the corpus left out"]
    assert opening._describe_skipped(2) == ["2 unreadable items of the corpus left out"]


def test_options_of_texts_do_not_apply_to_texts_with_images():
    opening._refuse_options_of_texts({"documents": "auto", "column": None, "limit": 3})
    for option in ("sequences", "max_length", "documents"):
        with pytest.raises(
            UsageError, match=f"got --{option.replace('_', '-')} x;|x. Cure"
        ):
            opening._refuse_options_of_texts({option: "x"})


def test_a_corpus_has_the_entry_of_its_own_options(tmp_path, tokenizer):
    (tmp_path / "t.txt").write_text("aa ab ac\n\nba bb bc bd be\n\nca cb\n")
    model = a_model(vocab_size=66, max_position_embeddings=4)
    plan, entry = opening.open_plan(
        str(tmp_path / "t.txt"), model, tokenizer, modality="text", max_length=3,
        batch_tokens=6, documents="blank-line", limit=2,
    )  # fmt: skip
    assert entry["max_length"] == 3 and plan.n_units == 2
    assert sorted(plan.lengths.tolist()) == [2, 3, 3]
    assert [len(batch) for batch in plan.batches] == [2, 1]
    assert entry["words"]["unit"] == "paragraph" and entry["warnings"] == plan.warnings
    few, _ = opening.open_plan(
        str(tmp_path / "t.txt"), model, tokenizer, modality="text", sequences=1,
        documents="blank-line",
    )  # fmt: skip
    assert sum(len(batch) for batch in few.batches) == 1
    texts, entry = opening.open_texts(["aa ab", "ba"], model, tokenizer)
    assert (entry["name"], "path" in entry) == ("texts", False)
    assert texts.n_units == 2 and texts.lengths.tolist() == [2, 1]


def test_runs_to_merge_number_their_units_by_content(tmp_path, tokenizer):
    """Of two files each unit has a number of its file; bins of frequency are of no use then."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for name, text in (("a.txt", "aa ab\n\nba\n"), ("b.txt", "ca cb\n\nda\n")):
        (folder / name).write_text(text)
    model = a_model(vocab_size=66)

    def opened(place, **more):
        how = {"modality": "text", "documents": "blank-line"} | more
        return opening.open_plan(str(place), model, tokenizer, **how)

    plain, entry = opened(folder)
    merged, of_merge = opened(folder, to_merge=True)
    assert "to_merge" not in plain.settings and merged.settings["to_merge"] is True
    assert merged.warnings[-1].startswith("bins of token frequency left out")
    assert list(of_merge["files"]) == ["a.txt", "b.txt"]
    hashes = list(of_merge["files"].values())
    assert of_merge["fingerprint"] == plans.hash_parts(sorted(hashes)) != entry["fingerprint"]  # fmt: skip
    expected = plans.number_by_content(np.asarray(plain.unit), hashes)
    np.testing.assert_array_equal(merged.unit, expected)
    alone, of_file = opened(folder / "a.txt", to_merge=True)
    assert list(of_file["files"]) == ["a.txt"]
    np.testing.assert_array_equal(
        alone.unit, plans.number_by_content(np.array([0, 1]), [*of_file["files"].values()])
    )  # fmt: skip


# ---- files one after the other ---------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    """Five files: of 2, 1, no, 3 and 1 documents."""
    place = tmp_path / "texts"
    place.mkdir()
    for name, text in (
        ("a", "aa ab ac ad\n\nba bb"),
        ("b", "ca cb cc"),
        ("c", "\n\n"),
        ("d", "da\n\ndb dc\n\nea eb ec ed ee"),
        ("e", "fa fb"),
    ):
        (place / f"{name}.txt").write_text(text)
    return place


def open_share(folder, tokenizer, part, parts, **more):
    model = a_model(vocab_size=66)
    return opening.open_plan(
        str(folder), model, tokenizer, modality="text", files=(part, parts),
        max_length=3, batch_tokens=6, documents="blank-line", **more,
    )  # fmt: skip


@pytest.mark.parametrize("held", [0, 1 << 22])
def test_shares_of_a_folder_hold_every_file_once(folder, tokenizer, monkeypatch, held):
    """Each batch is that of a plan of its file alone, whether plans are kept or made again; in any order."""
    monkeypatch.setattr(by_file, "HELD", held)
    seen, counted = [], 0
    for part in (0, 1):
        plan, entry = open_share(folder, tokenizer, part, 2)
        names = [f"{name}.txt" for name in ("ace", "bd")[part]]
        assert list(entry["files"]) == names
        assert entry["all_files"] == [f"{name}.txt" for name in "abcde"]
        assert entry["max_length"] == 3 and len(plan) == len(plan.tokens)
        assert plan.longest == 3
        alone = []
        for name in names:
            if name == "c.txt":
                continue
            model = a_model(vocab_size=66)
            of_file, _ = opening.open_plan(
                str(folder / name), model, tokenizer, modality="text", max_length=3,
                batch_tokens=6, documents="blank-line",
            )  # fmt: skip
            alone += list(of_file)
        order = [*reversed(range(len(plan))), *range(len(plan))]
        for index in order:
            ours, theirs = plan[index], alone[index]
            assert ours.inputs["input_ids"].tolist() == theirs.inputs["input_ids"].tolist()  # fmt: skip
            assert plan.tokens[index] == theirs.n_tokens
        for index in (-1, len(plan)):
            with pytest.raises(IndexError):
                plan[index]
        seen += [batch.inputs["input_ids"].tolist() for batch in plan]
        counted += plan.n_units
    assert counted == 7
    assert sum(len(rows) for rows in seen) == 2 + 1 + 1 + 1 + 1 + 2 + 1


def test_a_file_that_changed_is_not_measured(folder, tokenizer, monkeypatch):
    monkeypatch.setattr(by_file, "HELD", 0)
    plan, _ = open_share(folder, tokenizer, 0, 1)
    list(plan)
    (folder / "a.txt").write_text("aa ab ac ad\n\nba bc")
    with pytest.raises(CorpusError, match=r"got a.txt, whose text has changed"):
        list(plan)


def test_a_share_without_text_and_a_tokenizer_that_does_not_fit(folder, tokenizer):
    with pytest.raises(CorpusError, match=r"shard 3/5 of"):
        open_share(folder, tokenizer, 2, 5)
    model = a_model(vocab_size=20)
    with pytest.raises(ModelError):
        opening.open_plan(str(folder), model, tokenizer, modality="text", files=(0, 1))
    (folder / "f.csv").write_text("text\naa\n")
    with pytest.raises(CorpusError):
        by_file.find_share("no folder", (0, 1))


def test_hashes_of_a_share_are_of_its_own_files(folder, tokenizer):
    prints = {open_share(folder, tokenizer, part, 2)[1]["fingerprint"] for part in (0, 1)}  # fmt: skip
    prints |= {open_share(folder, tokenizer, part, 2)[0].fingerprint for part in (0, 1)}
    assert len(prints) == 4
    share = by_file.find_share(str(folder), (1, 3), documents="blank-line")
    assert list(share.numbers) == [1, 4] and share.name_file(4) == "e.txt"
    assert share.described == f"the files of shard 2/3 of {folder}"
    assert list(share.open(3).documents) == ["da", "db dc", "ea eb ec ed ee"]


def test_files_are_read_apart_if_there_are_enough_and_each_ends_its_documents(folder):
    options = {"documents": "blank-line"}
    assert documents.list_separate_files(folder, CorpusOptions(**options))
    for changed in ({"limit": 3}, {"documents": "tokens:20"}):
        assert not documents.list_separate_files(folder, CorpusOptions(**(options | changed)))  # fmt: skip
    assert not documents.list_separate_files(folder / "a.txt", CorpusOptions(**options))


# ---- plans -----------------------------------------------------------------------------------------------------------


def test_units_are_numbered_by_file_and_place():
    hashes = ["h1", "h2", "h1"]
    unit = np.array([0, 1, 2, 3, 4, 8, 5])
    starts = []
    for which in (["h1", 0], ["h2", 0], ["h1", 1]):
        starts.append(int(plans.hash_parts(which)[:16], 16) % (1 << 53))
    expected = [(starts[u % 3] + u // 3) % (1 << 53) for u in unit.tolist()]
    assert plans.number_by_content(unit, hashes).tolist() == expected
    assert len(set(expected)) == 7


def test_integers_are_hashed_alike_in_every_type_and_block(monkeypatch):
    numbers = np.arange(50) * 3 - 7
    whole = plans.hash_parts([numbers.astype(np.int64)])
    for block in (8, 24, 1 << 20):
        monkeypatch.setattr(plans, "BLOCK", block)
        for kind in (np.int16, np.int32, np.int64):
            assert plans.hash_parts([plans.Int64(numbers.astype(kind))]) == whole
    assert plans.Int64(numbers.astype(np.int16)).nbytes == 400
    different = (
        ["ab", "c"], ["a", "bc"], ["abc"], ["abc", ""], [["ab", "c"]], [], [1],
        [{"a": 1, "b": 2}], [{"a": 1}],
        [numbers], [numbers.astype(float)], [numbers[::-1]],
    )  # fmt: skip
    prints = [plans.hash_parts(parts) for parts in different]
    assert len(set(prints)) == len(prints)
    assert plans.hash_parts([{"b": 2, "a": 1}]) == plans.hash_parts([{"a": 1, "b": 2}])
    turned = np.asfortranarray(np.arange(6).reshape(2, 3))
    assert plans.hash_parts([turned]) == plans.hash_parts([turned.copy("C")])


def test_rows_are_packed_from_the_longest_on():
    lengths = np.array([3, 9, 1, 9, 4, 0])

    def packed(budget):
        return [batch.tolist() for batch in plans.pack(lengths, budget)]

    assert packed(18) == [[1, 3], [4, 0, 2, 5]]
    assert packed(9) == [[1], [3], [4, 0], [2, 5]]
    assert packed(1) == [[1], [3], [4], [0], [2], [5]]
    long = np.array([1, 70_000, 5])
    assert [batch.tolist() for batch in plans.pack(long, 100_000)] == [[1], [2, 0]]
    assert plans.pack(np.array([], np.int64), 5) == []
    with pytest.raises(UsageError, match="at least 1 token per batch; got 0"):
        plans.pack(lengths, 0)
    assert [part.tolist() for part in plans.batch_in_order(5, 2)] == [[0, 1], [2, 3], [4]]  # fmt: skip
    assert [part.tolist() for part in plans.batch_in_order(4, 2)] == [[0, 1], [2, 3]]


def test_the_start_of_a_decoder_is_the_first_that_is_named():
    find = plans.find_decoder_start
    assert find(config(decoder_start_token_id=0, bos_token_id=3, pad_token_id=4)) == 0
    assert (
        find(config(decoder_start_token_id=None, bos_token_id=3, pad_token_id=4)) == 3
    )
    assert find(config(pad_token_id=4)) == 4 and find(config()) == 0


def test_a_plan_counts_and_calls():
    class Counted(plans.Plan):
        def build(self, rows):
            from anisoscope.batch import Batch

            return Batch({"rows": rows}, np.zeros(len(rows)))

    def made(**more):
        return Counted([np.array([2, 0]), np.array([1])], np.array([5, 7, 9]), np.array([4, 4, 8]),
                       ["x"], {"unit": "clip"}, more.get("warnings", ()))  # fmt: skip

    plan = made(warnings=("a", "b"))
    assert (plan.tokens, plan.n_units, len(plan)) == ([14, 7], 2, 2)
    assert plan.words["unit"] == "clip" and plan.words["position"] == "token"
    assert plan.warnings == ["a", "b"] and plan.frequency_bins == []
    assert [batch.inputs["rows"].tolist() for batch in plan] == [[2, 0], [1]]
    assert plan[0].call is None
    plan.call = print
    assert plan[0].call is print
    assert plans._count_different(np.array([], np.int64)) == 0
    assert plans._count_different(np.array([3, 1, 3])) == 2


# ---- files -----------------------------------------------------------------------------------------------------------


def test_endings_and_names_of_files(tmp_path):
    for name, ending, stem in (
        ("a.JSONL.gz", ".jsonl", "a"),
        ("a.b.csv", ".csv", "a.b"),
        ("a.gz", "", "a"),
        ("a", "", "a"),
        ("A.TXT", ".txt", "A"),
    ):
        assert files.get_ending(tmp_path / name) == ending
        assert files.get_stem(tmp_path / name) == stem
    (tmp_path / "b").mkdir()
    for name in ("b/x", "a.txt", ".hidden", "b/.x"):
        (tmp_path / name).write_text("")
    assert [f.name for f in files.list_files_below(tmp_path)] == ["a.txt", "x"]


def test_more_than_memory_holds_is_refused_with_both_sizes(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "PIECE", 4)
    (tmp_path / "x.txt").write_text("abcdefghij")
    for budget, fits in ((10, True), (9, False)):
        monkeypatch.setattr(files, "get_memory_budget", lambda b=budget: b)
        for read in (files.read_bytes, files.read_text):
            if fits:
                assert read(tmp_path / "x.txt") in (b"abcdefghij", "abcdefghij")
            else:
                with pytest.raises(CorpusError, match="a quarter of the free memory"):
                    read(tmp_path / "x.txt")
    assert files.read_start(tmp_path / "x.txt", 3) == ("abcd", False)
    assert files.read_start(tmp_path / "x.txt", 4) == ("abcdefgh", False)
    error = files.refuse_large_file(tmp_path / "x", 3 << 30, 5 << 20, "cure")
    text = str(error)
    assert f"at most 5 MiB of content in {tmp_path / 'x'}" in text
    assert "got 3.0 GiB or more. Cure: cure" in text
    assert files._write_size((1 << 30) - 1) == "1024 MiB"
    assert files._write_size(1 << 30) == "1.0 GiB"


def test_lines_and_what_is_wrong_with_them(tmp_path, monkeypatch):
    (tmp_path / "x.txt").write_bytes("\ufeffa\r\nb\xe9\n".encode() + b"\xff\n\0\nlast")
    lines = list(files.iter_lines(tmp_path / "x.txt"))
    assert lines[:2] == ["a", "b\xe9"] and lines[-1] == "last"
    assert [files.find_fault(line) for line in lines] == [
        "", "", "bytes that are not UTF-8", "NUL bytes (a binary file, or text in UTF-16)", "",
    ]  # fmt: skip
    monkeypatch.setattr(files, "LONGEST_LINE", 5)
    (tmp_path / "y.txt").write_text("abc\nabcdef\n")
    with pytest.raises(
        CorpusError, match=r"at most 5 characters in .*a longer one, line 2"
    ):
        list(files.iter_lines(tmp_path / "y.txt"))


def test_a_byte_that_is_no_text_is_named_by_its_position(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "PIECE", 3)
    (tmp_path / "x.txt").write_bytes("ab\xe9cd".encode() + b"\xff" + b"rest")
    with pytest.raises(CorpusError, match="not UTF-8 at position 6"):
        files.read_text(tmp_path / "x.txt")
    (tmp_path / "x.txt").write_bytes(b"abcd\0")
    with pytest.raises(CorpusError, match="a binary file"):
        files.read_text(tmp_path / "x.txt")
    (tmp_path / "x.txt").write_bytes(b"a\r\nb\rc\n")
    assert files.read_text(tmp_path / "x.txt") == "a\nb\nc\n"


def test_packed_files_are_unpacked_whatever_the_case_of_their_ending(tmp_path):
    for name in ("x.txt.gz", "X.GZ"):
        (tmp_path / name).write_bytes(gzip.compress(b"text"))
        assert files.read_text(tmp_path / name) == "text"
    (tmp_path / "no.gz").write_bytes(b"not gzip")
    with pytest.raises(CorpusError, match=r"a gzip file in .*no.gz"):
        files.read_text(tmp_path / "no.gz")
    with pytest.raises(
        CorpusError, match=r"a readable file at .*gone; got No such file"
    ):
        files.read_text(tmp_path / "gone")


# ---- names -----------------------------------------------------------------------------------------------------------


def test_packages_that_a_model_or_corpus_needs(monkeypatch):
    asked = []
    monkeypatch.setattr(
        check_names, "require_extra", lambda *given: asked.append(given)
    )
    for name, extra in (
        ("builtin:minilm", "demo"),
        ("bert-base", "models"),
        ("my:factory", None),
        ("builtin:other", "models"),
        ("a/b:c", "models"),
    ):
        asked.clear()
        check_names.require_for_model(name)
        assert asked == ([(extra, f"to load {name}")] if extra else [])


def test_a_missing_path_is_explained_by_what_is_near(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "vectors.npy").write_bytes(b"")
    (tmp_path / "data").mkdir()
    explain = check_names._explain_missing_path
    assert explain(str(tmp_path / "vectrs.npy")) == f"did you mean {tmp_path / 'vectors.npy'}?"  # fmt: skip
    assert explain(str(tmp_path / "zzz")) == "check the path"
    message = explain(str(tmp_path / "dta" / "deep" / "x"))
    assert message == f"check the path: there is no dta in {tmp_path}"
    suggest = check_names.suggest_path
    assert suggest(str(tmp_path / "vectors.npy")) == ""
    assert suggest(str(tmp_path / "vectorss.npy"), surely=True)
    assert suggest(str(tmp_path / "vectore.npx")) and not suggest(
        str(tmp_path / "vectore.npx"), surely=True
    )
    assert suggest(str(tmp_path / "gone" / "x")) == ""


def test_names_of_corpora_are_compared_with_those_of_their_kind():
    """A labelled corpus is none of the texts; a text with blanks is no name."""
    with pytest.raises(CorpusError, match="a corpus' name; got 'synthetc'"):
        check_names._refuse_slip("synthetc", labelled=True)
    check_names._refuse_slip("synthetc", labelled=False)
    with pytest.raises(CorpusError, match="got the text 'two words'"):
        check_names._refuse_slip("two words", labelled=False)
    with pytest.raises(CorpusError, match=r"got \./gone, which is not there"):
        check_names._refuse_slip("./gone", labelled=False)


# ---- ids on the disk -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [8, 20, 1 << 20])
def test_ids_and_texts_on_the_disk_are_those_of_memory(monkeypatch, block):
    """In blocks of two and five ids; ranges in any order, also empty ones."""
    monkeypatch.setattr(on_disk, "BLOCK", block)
    ids = np.arange(1000, 1033, dtype=np.int32)
    pieces = [ids[:7], ids[7:8], ids[8:8], ids[8:]]
    kept = on_disk.IdsOnDisk(pieces)
    assert len(kept) == 33 and kept.nbytes == 132
    assert np.concatenate(list(kept.iter_blocks())).tolist() == ids.tolist()
    assert np.concatenate(list(on_disk.iter_blocks(ids))).tolist() == ids.tolist()
    first, count = np.array([30, 0, 5, 12]), np.array([3, 2, 0, 6])
    expected = [*range(1030, 1033), 1000, 1001, *range(1012, 1018)]
    assert kept.read_ranges(first, count).tolist() == expected
    for held, kind in ((32, on_disk.IdsOnDisk), (33, np.ndarray)):
        monkeypatch.setattr(on_disk, "IDS_HELD", held)
        found = on_disk.keep_ids(pieces)
        assert isinstance(found, kind)
        assert np.concatenate(list(on_disk.iter_blocks(found))).tolist() == ids.tolist()
    texts = ["a", "", "b\xe9\ud800", "long" * 9, "c"]
    monkeypatch.setattr(on_disk, "TEXTS_HELD", 0)
    kept = on_disk.keep_texts(texts)
    assert isinstance(kept, on_disk.TextsOnDisk)
    assert list(kept) == texts and len(kept) == 5
    assert [kept[k] for k in range(-5, 5)] == texts + texts
    assert kept[1:4] == texts[1:4] and kept[::-2] == texts[::-2]
    monkeypatch.setattr(on_disk, "TEXTS_HELD", 1 << 20)
    assert on_disk.keep_texts(texts) == texts


def test_a_corpus_without_text_says_what_it_had_instead():
    for empty, skipped, got in (
        (3, 0, r"no text \(3 empty documents\)"),
        (0, 2, r"no text \(2 unreadable documents\)"),
        (3, 2, r"no text \(3 empty and 2 unreadable documents\)"),
        (0, 0, "no text"),
    ):
        error = texts_of.refuse_empty("here", empty, skipped)
        with pytest.raises(CorpusError, match=rf"text in here; got {got}\. Cure: name"):
            raise error


def test_units_of_files_are_numbered_by_their_place_in_the_file():
    """Of three files; documents of a file need not follow one another."""
    owner = [0, 2, 2, 0, 2, 1]
    numbers = texts_of._number_by_file(owner, 3)
    assert numbers.tolist() == [0, 2, 5, 3, 8, 1]
    assert (numbers % 3).tolist() == owner


def test_the_padding_token_must_have_an_embedding():
    for pad, size, found in (
        (5, None, 5),
        (5, 6, 5),
        (5, 5, 0),
        (None, 9, 0),
        (0, 9, 0),
    ):
        reader = SimpleNamespace(pad_token_id=pad)
        assert texts_of._choose_pad_id(reader, size) == found


def test_units_without_tokens_have_no_window(tokenizer):
    """The numbers of the others stay what they are."""
    corpus = SimpleNamespace(
        documents=["aa ab", "", "ba", "ca cb cc cd"],
        numbers=np.array([7, 8, 9, 10]),
        block=None,
        unit="line",
    )
    windows = texts_of._cut_into_windows(corpus, tokenizer, 3, 0)
    assert windows.unit.tolist() == [7, 9, 10, 10]
    assert windows.length.tolist() == [2, 1, 3, 1]
    corpus.numbers = None
    windows = texts_of._cut_into_windows(corpus, tokenizer, 3, 0)
    assert windows.unit.tolist() == [0, 1, 2, 2]
