"""Large texts: from the disk come the same documents, windows, batches and numbers as from memory, at flat memory."""

import contextlib
import csv
import gzip
import json
import random
import re
import resource
import statistics
import threading
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow
import pytest
import tiny
import torch
import transformers
from hypothesis import given, settings, strategies as st
from pyarrow import parquet
from test_data_text import TOKENIZERS
from test_shards_of_files import Words

from anisoscope.data import files, on_disk, splitting, windows
from anisoscope.data.on_disk import IdsOnDisk, TextsOnDisk, keep_ids, keep_texts
from anisoscope.data.plans import hash_parts, number_by_content
from anisoscope.data.text import open_text, plan_text
from anisoscope.errors import CorpusError
from anisoscope.measure.settings import Settings
from anisoscope.runs.job import Job
from anisoscope.runs.run import run

WORDS = ["the", "cat", "sat", "on,", "a", "mat.", "été", "猫", "!", "…", "x" * 9]


def make_texts(count, seed=0, longest=40):
    """Texts of unequal lengths; some have several lines, and one has no token."""
    draw = random.Random(seed)
    texts = [
        " ".join(draw.choices(WORDS, k=draw.randint(1, longest))) for _ in range(count)
    ]
    texts[3] += "\nsecond line"
    texts[5] = "\u200b"
    return texts


def write_jsonl(path, texts):
    path.write_text(
        "".join(
            json.dumps({"id": n, "text": text}) + "\n" for n, text in enumerate(texts)
        )
    )
    return path


def write_table(folder, ending):
    """A table of each kind, with empty rows; gzip too."""
    texts = [*make_texts(30), "", "  ", *make_texts(9, 1)]
    path = folder / f"t.{ending}"
    if ending == "parquet":
        parquet.write_table(
            pyarrow.table({"text": texts, "n": list(range(len(texts)))}),
            path,
            row_group_size=7,
        )
    elif ending == "csv":
        with path.open("w") as file:
            csv.writer(file).writerows(
                [["text", "n"], *([text, n] for n, text in enumerate(texts))]
            )
    elif ending == "jsonl.gz":
        path.write_bytes(
            gzip.compress(write_jsonl(folder / "plain", texts).read_bytes())
        )
    else:
        write_jsonl(path, texts)
    return path


def write_folder(folder, *, of_tables):
    place = folder / "texts"
    (place / "deep").mkdir(parents=True)
    for n, name in enumerate(("a", "b", "deep/c", "d")):
        texts = make_texts(6 + n, n)
        if of_tables:
            write_jsonl(place / f"{name}.jsonl", texts if n != 1 else [])
        else:
            (place / f"{name}.txt").write_text("\n\n".join(texts))
    return place


def write_text(folder, kind):
    """A text of articles, of long blocks between blank lines, or without marks."""
    texts = make_texts(60, 2)
    if kind == "articles":
        content = "".join(
            f" = T {n} = \n\n{text}\n\n == S == \n\n" for n, text in enumerate(texts)
        )
    elif kind == "long blocks":
        content = "\n \t\n".join("word " * 210 + text for text in texts)
    else:
        content = "\r\n".join(texts)
    (folder / "t.txt").write_text(content)
    return folder / "t.txt"


CORPORA = {
    **{
        kind: (write_table, kind, {})
        for kind in ("jsonl", "json", "jsonl.gz", "csv", "parquet")
    },
    "first rows": (write_table, "jsonl", {"limit": 11}),
    "blocks of rows": (write_table, "csv", {"documents": "tokens:32"}),
    "first blocks of rows": (
        write_table,
        "csv",
        {"documents": "tokens:32", "limit": 4},
    ),
    "articles": (write_text, "articles", {}),
    "first articles": (write_text, "articles", {"limit": 7}),
    "long blocks": (write_text, "long blocks", {}),
    "first long blocks": (write_text, "long blocks", {"limit": 3}),
    "no marks": (write_text, "", {}),
    "lines": (write_text, "", {"documents": "line"}),
    "first lines": (write_text, "", {"documents": "line", "limit": 9}),
    "blank lines": (write_text, "articles", {"documents": "blank-line"}),
    "one document": (write_text, "articles", {"documents": "file"}),
    "blocks": (write_text, "", {"documents": "tokens:50"}),
    "first blocks": (write_text, "", {"documents": "tokens:50", "limit": 3}),
    "tables": (write_folder, True, {}),
    "first of tables": (write_folder, True, {"limit": 15}),
    "texts": (write_folder, False, {}),
    "blocks of texts": (write_folder, False, {"documents": "tokens:16"}),
    "lines of texts": (write_folder, False, {"documents": "line", "limit": 20}),
}


def write(folder, name):
    """Write a corpus; returns its path and how it is read."""
    how_to_write, kind, reading = CORPORA[name]
    if how_to_write is write_folder:
        return str(write_folder(folder, of_tables=kind)), reading
    return str(how_to_write(folder, kind)), reading


@pytest.fixture
def nothing_is_small(monkeypatch):
    """Every text and id goes to the disk, in small blocks."""
    monkeypatch.setattr(on_disk, "TEXTS_HELD", 300)
    monkeypatch.setattr(on_disk, "IDS_HELD", 40)
    monkeypatch.setattr(on_disk, "BLOCK", 64)
    monkeypatch.setattr(windows, "_CHUNK", 200)


def plan_all(path, tokenizer, reading, **how):
    """The corpus and its plan, with the longest windows and budgets of a model."""
    corpus = open_text(path, **reading)
    return corpus, plan_text(corpus, tokenizer, max_length=12, batch_tokens=50, **how)


def assert_equal_plans(ours, theirs):
    """Every number of two plans, and every batch."""
    assert (
        ours.fingerprint == theirs.fingerprint
        and ours.tokens_hash == theirs.tokens_hash
    )
    assert (ours.n_units, ours.tokens, ours.warnings) == (
        theirs.n_units,
        theirs.tokens,
        theirs.warnings,
    )
    assert ours.frequency_bins == theirs.frequency_bins
    for one, other in zip(ours.windows[1:], theirs.windows[1:], strict=True):
        assert one.tolist() == other.tolist()
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one.unit, other.unit) and one.unit.dtype == other.unit.dtype
        assert one.inputs.keys() == other.inputs.keys()
        for name in one.inputs:
            assert torch.equal(one.inputs[name], other.inputs[name])
        for stack, stream in one.streams.items():
            for name, value in vars(stream).items():
                expected = getattr(other.streams[stack], name)
                assert value is expected or (
                    torch.equal(value, expected) and value.dtype == expected.dtype
                ), name


@pytest.mark.parametrize("name", CORPORA)
def test_from_the_disk_come_the_same_documents_and_batches(name, tmp_path, request):
    path, reading = write(tmp_path, name)
    held, expected = plan_all(path, TOKENIZERS["bert"][0], reading)
    assert isinstance(held.documents, list) and isinstance(
        expected.windows.ids, np.ndarray
    )
    request.getfixturevalue("nothing_is_small")
    # a piece of a text is cut where the whole is
    request.getfixturevalue("monkeypatch").setattr(files, "PIECE", 100)
    corpus, plan = plan_all(path, TOKENIZERS["bert"][0], reading)
    assert (
        list(corpus.documents) == held.documents
        and corpus.fingerprint == held.fingerprint
    )
    assert corpus.source == held.source and corpus.files == held.files
    assert isinstance(corpus.documents, TextsOnDisk) or name == "one document"
    assert isinstance(plan.windows.ids, IdsOnDisk)
    assert_equal_plans(plan, expected)
    assert_equal_plans(plan.spread(5), expected.spread(5))
    assert_equal_plans(plan.at_least(9), expected.at_least(9))
    if corpus.files:
        hashes = list(corpus.files.values())
        assert (
            number_by_content(plan.unit, hashes).tolist()
            == number_by_content(expected.unit, hashes).tolist()
        )


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@pytest.mark.parametrize("how", [{}, {"padding_side": "left"}, {"decoder_start_id": 0}])
def test_whatever_the_tokenizer_and_the_padding(tokenizer, how, tmp_path, request):
    path, reading = write(tmp_path, "jsonl")
    _, expected = plan_all(path, TOKENIZERS[tokenizer][0], reading, **how)
    request.getfixturevalue("nothing_is_small")
    _, plan = plan_all(path, TOKENIZERS[tokenizer][0], reading, **how)
    assert isinstance(plan.windows.ids, IdsOnDisk)
    assert_equal_plans(plan, expected)


@pytest.mark.usefixtures("no_page")
def test_records_are_those_from_memory(tmp_path, request):
    path, _ = write(tmp_path, "csv")
    chosen = Settings(metrics=("mean_cosine", "group_cosine", "sinks"))
    job = Job(
        tiny.small_encoder(),
        corpus=path,
        dtype="float64",
        max_length=12,
        batch_tokens=90,
        settings=chosen,
    )
    expected = run(job, tmp_path / "memory").records
    request.getfixturevalue("nothing_is_small")
    records = run(job, tmp_path / "disk").records
    numbers = ["value", "low", "high", "n_vectors", "n_units"]
    assert len(records) > 100 and records[numbers].equals(expected[numbers])


# ---- texts by pieces -------------------------------------------------------------------------------------------------


def split_whole(text, rule):
    """The documents of a text, found in the whole of it by a regular expression."""
    if rule == "line":
        return [line for line in text.split("\n") if line.strip()]
    if rule == "blank-line":
        blocks = re.split(r"\n(?:[ \t]*\n)+", text)
        return [block.strip("\n") for block in blocks if block.strip()]
    pieces, first = [], 0
    while first < len(text) and text.strip():
        last = min(first + splitting.PIECE, len(text))
        if last < len(text):
            ends = [text.rfind(mark, first, last) for mark in "\n "]
            last = next((end + 1 for end in ends if end > first), last)
        pieces.append(text[first:last])
        first = last
    return pieces


texts_of_lines = st.lists(
    st.sampled_from(["", " ", "\t", "a", " b ", "\x0b", "\u2028", "words and"]),
    max_size=12,
)


@settings(max_examples=300, deadline=None)
@given(
    texts_of_lines,
    st.sampled_from(["line", "blank-line", "tokens:9"]),
    st.integers(1, 9),
    st.integers(0, 9),
)
def test_documents_found_by_pieces_are_those_of_the_whole(lines, rule, piece, head):
    text = "\n".join(lines)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(splitting, "HEAD", head)
        patch.setattr(splitting, "PIECE", 5)
        parts = [text[n : n + piece] for n in range(0, len(text), piece)]
        patch.setattr(splitting, "read_pieces", lambda _: iter(parts))
        found = splitting.split_file(Path("t.txt"), None, rule)
        assert (
            found.documents
            == splitting.split_text(text, None, rule).documents
            == split_whole(text, rule)
        )
        if found.block is None:
            assert (
                splitting.split_file(Path("t.txt"), 2, rule).documents
                == found.documents[:2]
            )


@settings(deadline=None)
@given(
    st.text(st.sampled_from("ab \t\n\x0b\x1c\x85\u00a0\u2003\u2028\u200b"), max_size=30)
)
def test_words_are_counted_as_they_are_split(text):
    assert splitting._count_words(text) == len(text.split())


@pytest.mark.parametrize("limit", [None, 1, 2, 5])
def test_a_limited_running_text_is_read_up_to_the_same_sizes(
    limit, tmp_path, monkeypatch
):
    """They are in the hash of the corpus."""
    monkeypatch.setattr(splitting, "HEAD", 1000)
    monkeypatch.setattr(files, "PIECE", 70)
    content = "".join(f"{'x' * (n % 90)}\n" for n in range(900))
    (tmp_path / "t.txt").write_text(content)
    found = splitting.split_file(tmp_path / "t.txt", limit, "tokens:50")
    needed = len(content) if limit is None else limit * 50 * splitting.MOST_CHARACTERS
    size = 1000
    while (text := files.read_start(tmp_path / "t.txt", size)[0]) != content and len(
        text
    ) < needed:
        size *= 4
    assert "".join(found.documents) == (content if limit is None else text)


def test_a_long_text_without_marks_is_cut_into_the_largest_blocks(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(splitting, "HEAD", 2000)
    path = write_text(tmp_path, "")
    assert splitting.split_file(path, None, "auto").block == splitting.BLOCK
    texts = make_texts(60, 2)
    assert (
        statistics.median(len(text.split()) for text in texts)
        < splitting.DOCUMENT_WORDS
    )


def test_a_document_that_does_not_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "PIECE", 100)
    monkeypatch.setattr(splitting, "HEAD", 300)
    monkeypatch.setattr(splitting, "get_memory_budget", lambda: 1000)
    (tmp_path / "t.txt").write_text("many short lines\n" * 900)
    assert len(open_text(str(tmp_path / "t.txt"), documents="line").documents) == 900
    with pytest.raises(CorpusError, match="a quarter of the free memory"):
        open_text(str(tmp_path / "t.txt"), documents="blank-line")


@pytest.mark.usefixtures("nothing_is_small")
def test_a_faulty_row_far_behind_is_named(tmp_path):
    rows = [json.dumps({"text": text}) for text in make_texts(500)]
    rows[432] = '{"text": 5}'
    (tmp_path / "t.jsonl").write_text("\n".join(rows))
    with pytest.raises(CorpusError, match="line 433: int"):
        open_text(str(tmp_path / "t.jsonl"))
    found = open_text(str(tmp_path / "t.jsonl"), skip_bad=True)
    assert len(found.documents) == 499 and found.source["skipped"] == 1
    (tmp_path / "t.txt").write_bytes(b"many lines\n" * 200 + b"\xff")
    with pytest.raises(CorpusError, match="not UTF-8 at position 2200"):
        open_text(str(tmp_path / "t.txt"))


# ---- texts and ids on the disk ---------------------------------------------------------------------------------------


def test_a_sequence_of_texts(monkeypatch):
    monkeypatch.setattr(on_disk, "BLOCK", 10)
    texts = ["", "a" * 30, "é", "猫" * 3, "\ud800", "", "b\r\nc"]
    found = TextsOnDisk(texts)
    assert (
        list(found) == texts
        and len(found) == len(texts)
        and found[-1] == "b\r\nc"
        and found[1:4] == texts[1:4]
    )
    assert (
        found[::-2] == texts[::-2]
        and list(reversed(found)) == texts[::-1]
        and "é" in found
    )
    with pytest.raises(IndexError):
        found[len(texts)]
    assert list(TextsOnDisk([])) == []


def test_few_texts_and_ids_stay_in_memory(monkeypatch):
    monkeypatch.setattr(on_disk, "TEXTS_HELD", 1000)
    monkeypatch.setattr(on_disk, "IDS_HELD", 10)
    few, many = ["a" * 100] * 5, (f"{n}" * 50 for n in range(20))
    assert keep_texts(iter(few)) == few
    found = keep_texts(many)
    assert isinstance(found, TextsOnDisk) and list(found) == [
        f"{n}" * 50 for n in range(20)
    ]
    pieces = [np.arange(n, dtype=np.int32) for n in (4, 0, 6)]
    ids = keep_ids(pieces)
    assert (
        isinstance(ids, np.ndarray)
        and ids.dtype == np.int32
        and ids.tolist() == [*range(4), *range(6)]
    )
    assert keep_ids([]).tolist() == []
    large = keep_ids([*pieces, *pieces])
    assert isinstance(large, IdsOnDisk) and len(large) == 20
    assert np.concatenate(list(large.iter_blocks())).tolist() == 2 * ids.tolist()
    assert hash_parts([large, "x"]) == hash_parts([np.concatenate([ids, ids]), "x"])
    ranges = large.read_ranges(np.array([15, 0, 3, 9]), np.array([5, 2, 0, 4]))
    assert ranges.tolist() == [*range(1, 6), 0, 1, 5, 0, 1, 2]


def test_threads_read_at_the_same_time(monkeypatch):
    monkeypatch.setattr(on_disk, "IDS_HELD", 0)
    ids = keep_ids([np.arange(200_000, dtype=np.int32)])
    wrong = []

    def read(seed):
        first = np.random.default_rng(seed).integers(0, 199_000, 400)
        count = np.full(400, 300)
        expected = (first[:, None] + np.arange(300)).ravel()
        wrong.append(not np.array_equal(ids.read_ranges(first, count), expected))

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [False] * 8


def list_open_files():
    """What the process has open, as Linux names it."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the listing itself
            found.append(str(link.readlink()))
    return sorted(found)


@pytest.mark.usefixtures("nothing_is_small")
def test_the_file_has_no_name(tmp_path, monkeypatch):
    """So nothing is left of it if the process is killed."""
    monkeypatch.setattr(on_disk.tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    before = list_open_files()
    corpus, plan = plan_all(
        str(write_table(tmp_path, "jsonl")), TOKENIZERS["bert"][0], {}
    )
    assert list((tmp_path / "temporary").iterdir()) == []
    opened = [name for name in list_open_files() if name not in before]
    assert len(opened) == 2 and all(
        name.startswith(str(tmp_path / "temporary")) for name in opened
    )
    del corpus, plan
    assert list_open_files() == before


def test_the_folder_is_on_the_disk_if_the_user_chose_none(tmp_path, monkeypatch):
    for name in on_disk.OF_USER:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(on_disk.tempfile, "tempdir", None)
    monkeypatch.setattr(on_disk, "LARGE_TEMPORARY", str(tmp_path))
    assert TextsOnDisk(["a"])._file._folder == tmp_path
    monkeypatch.setattr(on_disk, "LARGE_TEMPORARY", str(tmp_path / "none"))
    assert TextsOnDisk(["a"])._file._folder == Path(on_disk.tempfile.gettempdir())


@pytest.mark.usefixtures("nothing_is_small")
def test_a_full_disk_is_told(tmp_path):
    path = write_jsonl(tmp_path / "t.jsonl", make_texts(400))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(
            CorpusError,
            match=r"room in .* for the texts of the corpus .*; got File too large.*TMPDIR",
        ):
            open_text(str(path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def measure_peak(path, reading):
    """The most that planning a corpus, and building its batches, holds in memory, in bytes."""
    tracemalloc.start()
    plan = plan_text(
        open_text(str(path), **reading), Words(), max_length=512, batch_tokens=4096
    )
    for _ in plan:
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


@pytest.mark.parametrize(
    ("ending", "reading"),
    [
        ("jsonl", {}),
        ("jsonl", {"documents": "tokens:1000"}),
        ("parquet", {}),
        ("txt", {"documents": "line"}),
        ("txt", {"documents": "blank-line"}),
        ("txt", {"documents": "tokens:1000"}),
    ],
)
def test_memory_does_not_grow_with_a_single_file(
    ending, reading, tmp_path, monkeypatch
):
    """7 times as much text took 7 times as much memory."""
    monkeypatch.setattr(on_disk, "TEXTS_HELD", 1 << 15)
    monkeypatch.setattr(on_disk, "IDS_HELD", 1 << 13)
    monkeypatch.setattr(on_disk, "BLOCK", 1 << 13)
    monkeypatch.setattr(windows, "_CHUNK", 1 << 15)
    monkeypatch.setattr(files, "PIECE", 1 << 13)
    monkeypatch.setattr(splitting, "HEAD", 1 << 15)
    monkeypatch.setattr("anisoscope.data.table_rows.ROWS_AT_ONCE", 8)
    peaks = {}
    for size in (1, 7):
        texts = [" ".join(["many", "short", "words"] * 200) for _ in range(60 * size)]
        path = tmp_path / f"{size}.{ending}"
        if ending == "jsonl":
            write_jsonl(path, texts)
        elif ending == "parquet":
            parquet.write_table(pyarrow.table({"text": texts}), path)
        else:
            path.write_text("\n\n".join(texts))
        del texts
        measure_peak(path, reading)  # what is imported and compiled on the first call
        peaks[size] = measure_peak(path, reading)
    assert peaks[7] < 1.3 * peaks[1]


@pytest.mark.usefixtures("nothing_is_small")
def test_the_tokenizer_of_a_model_reads_from_the_disk():
    """`corpus.documents` may be given to what asks for a list of texts."""
    texts = TextsOnDisk(make_texts(20))
    tokenizer = TOKENIZERS["bert"][0]
    assert isinstance(tokenizer, transformers.PreTrainedTokenizerBase)
    assert [ids.tolist() for ids in windows.tokenise(texts, tokenizer)] == [
        ids.tolist() for ids in windows.tokenise(list(texts), tokenizer)
    ]
