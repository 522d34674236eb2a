"""How corpora are named, opened and put together, part by part: shares, names, packages, files, python-docs."""

import gzip
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from anisoscope.batch import Batch
from anisoscope.data import (
    builtin,
    by_file,
    check_names,
    files,
    labelled,
    on_disk,
    opening,
    text as texts_of,
)
from anisoscope.data.corpora import CorpusOptions, NamedCorpus
from anisoscope.data.plans import hash_parts, number_by_content
from anisoscope.data.windows import Affixes, IdCounts
from anisoscope.errors import AnisoscopeError
from anisoscope.models import blocks, families


def message_of(call, *given, **how):
    """The whole message of the error that a call ends with."""
    with pytest.raises(AnisoscopeError) as caught:
        call(*given, **how)
    return str(caught.value)


# ---- shares of files -------------------------------------------------------------------------------------------------

READER = SimpleNamespace(unk_token_id=0, unshared="alone")


class OfFile:
    """The plan of a file, made of two numbers for each batch: its tokens, and the length of its longest window."""

    def __init__(self, corpus, reader):
        self.reader, self.name = reader, corpus.fingerprint
        self.tokens = [10 * n for n in corpus.documents]
        self.lengths = np.array(corpus.documents)
        self.n_units = len(corpus.documents) + 1
        self.warnings = ["every", f"of {corpus.fingerprint}"]
        self.fingerprint = f"plan of {corpus.fingerprint}"
        self.words = {"unit": corpus.fingerprint}
        self.affixes = {"encoder": Affixes((corpus.documents[0],), ()), "x": Affixes()}
        self.windows = SimpleNamespace(ids=np.array([0, *corpus.documents], np.int32))

    def __getitem__(self, place):
        return Batch({"of": (self.name, place, self.reader)}, np.zeros(1))


def a_share(documents, changed=()):
    """Files number 1, 4, 7 … of the folder, each with these documents; hashes of some change once they were read."""
    seen = []

    def open_file(number):
        seen.append(number)
        of_file = documents[number // 3]
        hashed = f"h{number}"
        if number in changed and seen.count(number) > 1:
            hashed = "h1"
        source = {"documents": f"how {number}", "empty": number, "skipped": 100 * number}  # fmt: skip
        return SimpleNamespace(documents=of_file, fingerprint=hashed, source=source)

    paths = [Path("d", f"{k}.txt") for k in range(3 * len(documents))]
    share = by_file.ShareOfFiles("n", Path("d"), paths, CorpusOptions(), 1, 3)
    return SimpleNamespace(
        numbers=share.numbers, name_file=share.name_file, files=paths, open=open_file,
        described=share.described, seen=seen,
    )  # fmt: skip


DOCUMENTS = [[], [7, 9], [3], [], [5, 2, 8]]


@pytest.fixture
def checked(monkeypatch):
    """What the tokenizer was checked with."""
    asked = []

    def check(*given):
        asked.append(given)
        return ["checked"]

    monkeypatch.setattr(by_file, "check_counts", check)
    return asked


def test_a_share_is_the_sum_of_its_files(checked):
    share = a_share(DOCUMENTS)
    assert list(share.numbers) == [1, 4, 7, 10, 13]
    plan = by_file.PlanByFile(share, OfFile, READER, 400)
    assert plan.tokens == [70, 90, 30, 50, 20, 80] and len(plan) == 6
    assert (plan.n_units, plan.longest) == (3 + 2 + 4, 9)
    assert plan.warnings == ["every", "of h4", "of h7", "of h13", "checked"]
    assert plan.words == {"unit": "h13"}
    ((reader, counts, affixes, vocabulary),) = checked
    assert (reader, vocabulary) == (READER, 400)
    assert counts == IdCounts(9, 3, 9)
    assert list(affixes) == [Affixes((7,)), Affixes(), Affixes((3,)), Affixes((5,))]
    names = [f"{k}.txt" for k in range(15)]
    assert plan.source == {
        "documents": "how 13",
        "empty": 1 + 4 + 7 + 10 + 13,
        "skipped": 3500,
        "files": {f"{k}.txt": f"h{k}" for k in (1, 4, 7, 10, 13)},
        "all_files": names,
    }
    assert plan.fingerprint == hash_parts(["plan of h4", "plan of h7", "plan of h13"])
    assert plan.corpus_fingerprint == hash_parts(["h1", "h4", "h7", "h10", "h13"])


def test_an_empty_file_at_the_end_does_not_say_how_documents_are_separated(checked):
    plan = by_file.PlanByFile(a_share([[2], []]), OfFile, READER, None)
    assert plan.source["documents"] == "how 1" and plan.source["empty"] == 1 + 4
    assert checked[0][3] is None


@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize("held", [0, 1 << 22])
def test_batches_of_a_share_are_those_of_its_files(monkeypatch, held):
    """Read again by the tokenizer of the process alone, if they are not all kept; with the call of the plan."""
    monkeypatch.setattr(by_file, "HELD", held)
    share = a_share(DOCUMENTS)
    plan = by_file.PlanByFile(share, OfFile, READER, 400)
    expected = [("h4", 0), ("h4", 1), ("h7", 0), ("h13", 0), ("h13", 1), ("h13", 2)]
    assert list(plan._held) == ([4, 7, 13] if held else [13])
    for index in (5, 0, 2, 1, 3, 4):
        batch = plan[index]
        assert batch.inputs["of"][:2] == expected[index] and batch.call is None
    assert plan[0].inputs["of"][2] is (READER if held else "alone")
    before = len(share.seen)
    plan[1], plan[0]
    assert len(share.seen) == before
    plan.call = print
    assert all(batch.call is print for batch in plan)
    for index in (-1, 6):
        with pytest.raises(IndexError):
            plan[index]


@pytest.mark.usefixtures("checked")
def test_a_file_that_became_another_one_is_named(monkeypatch):
    monkeypatch.setattr(by_file, "HELD", 0)
    plan = by_file.PlanByFile(a_share(DOCUMENTS, changed=[7]), OfFile, READER, 400)
    assert plan[0].inputs["of"][0] == "h4"
    assert message_of(plan.__getitem__, 2) == (
        "expected files that stay as they are while they are measured; got 7.txt, whose text has changed. "
        "Cure: measure them again"
    )


@pytest.mark.usefixtures("checked")
def test_a_share_that_holds_nothing_to_measure():
    share = "the files of shard 2/3 of n"
    message = message_of(by_file.PlanByFile, a_share([[], []]), OfFile, READER, 400)
    assert message == str(texts_of.refuse_empty(share, 1 + 4, 500))

    def make(corpus, reader):
        plan = OfFile(corpus, reader)
        plan.tokens = []
        return plan

    assert message_of(by_file.PlanByFile, a_share([[2]]), make, READER, 400) == (
        f"expected texts that are long enough for the model; got {share}, which holds none. Cure: name longer texts"
    )


def test_a_share_is_of_a_folder_and_of_every_so_manieth_file(tmp_path):
    folder = tmp_path / "t"
    (folder / "in").mkdir(parents=True)
    for name in ("a", "b", "in/c", "in/d", "e"):
        (folder / f"{name}.csv").write_text(f"n,words\n1,{name[-1]}\n")
    share = by_file.find_share(str(folder), (1, 2), column="words", skip_bad=True)
    assert [share.name_file(k) for k in range(5)] == [
        "a.csv", "b.csv", "e.csv", "in/c.csv", "in/d.csv",
    ]  # fmt: skip
    assert list(share.numbers) == [1, 3]
    assert share.options.column == "words" and share.options.skip_bad
    opened = share.open(3)
    assert (opened.name, list(opened.documents)) == (str(folder), ["c"])
    assert opened.numbers.tolist() == [3]
    # of all tables by the column that the first one has
    for name in ("a", "b", "in/c", "in/d", "e"):
        (folder / f"{name}.csv").write_text(f"n,text\n1,{name[-1]}\n")
    (folder / "b.csv").write_text("n,sentence\n1,b\n")
    share = by_file.find_share(str(folder), (1, 2))
    assert share.options.column == "text"
    assert message_of(by_file.find_share, "wikitext-103", (0, 1)) == (
        "expected a folder of texts; got wikitext-103. Cure: name a folder"
    )


# ---- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "is_slip"),
    [
        ("bert", "brt", True),
        ("bert", "beert", True),
        ("bert", "best", True),
        ("bert", "ebrt", True),
        ("bert", "betr", True),
        ("bert", "bert", False),
        ("bert", "bart2", False),
        ("bert", "tebr", False),
        ("bert", "bxrx", False),
        ("abcd", "bacx", False),
        ("opt-125m", "opt-350m", False),
        ("opt-125m", "opt-126m", False),
        ("v1-ab", "v1-ba", True),
        ("bert", "be", False),
        ("bert", "trebx", False),
        ("abab", "acac", False),
        ("abxy", "baxy", True),
        ("a", "", True),
    ],
)
def test_names_that_differ_by_one_slip(one, other, is_slip):
    assert check_names._is_one_slip(one, other) is is_slip
    assert check_names._is_one_slip(other, one) is is_slip


@pytest.mark.parametrize(
    ("name", "is_path"),
    [
        *((f"x{ending}", True) for ending in (
            ".txt", ".md", ".rst", ".dat", ".vec", ".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".parquet", ".arrow",
            ".feather", ".gz", ".npy", ".npz", ".safetensors", ".pt", ".pth", ".th", ".ckpt", ".bin", ".pkl",
            ".pickle", ".h5", ".hdf5", ".onnx", ".gguf", ".zip", ".tar", ".wav", ".flac", ".mp3", ".ogg", ".png",
            ".jpg", ".jpeg", ".JSONL", ".Npy",
        )),
        ("x.txtt", True),
        ("x.ccsv", True),
        ("x.ptt", True),
        ("x.txtx", False),
        ("x.text", False),
        ("x.data", False),
        ("xtxtt", False),
        ("xtxt", False),
        ("a/b", False),
        ("a/b/", True),
        ("a/", True),
        ("a/b/c", True),
        ("~x", True),
        (".x", True),
        ("/x", True),
        ("x", False),
        ("x.y", False),
    ],
)  # fmt: skip
def test_names_that_only_paths_have(name, is_path):
    assert check_names._must_be_path(name) is is_path


def test_a_name_with_a_slash_is_a_path_if_a_file_of_almost_this_name_is_there(tmp_path, monkeypatch):  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "first-model").write_text("x")
    assert check_names._must_be_path("runs/frst-model")
    assert not check_names._must_be_path("runs/fist-modal")
    assert check_names.suggest_path("runs/fist-modal") == "runs/first-model"
    assert check_names.suggest_path("runs/first-model") == ""
    assert not check_names._must_be_path("frst-model")
    (tmp_path / "opt-125m").write_text("x")
    assert check_names.suggest_path("opt-350m") == "opt-125m"
    assert check_names.suggest_path("opt-350m", surely=True) == ""
    # the nearest has another number: the next one differs by a slip
    (tmp_path / "otp-350m").write_text("x")
    (tmp_path / "opt-35m").write_text("x")
    assert check_names.suggest_path("opt-350m") == "opt-35m"
    assert check_names.suggest_path("opt-350m", surely=True) == "otp-350m"


def test_what_is_near_a_known_name():
    known = ["bert-base", "wikitext-103", "builtin:digits"]
    for name, is_slip in (
        ("bert-bas", True),
        ("bert-base", True),
        ("bertbase", True),
        ("bert-base-x", True),
        ("bert-base-xy", False),
        ("wikitext-10", True),
        ("wikitext-1", True),
        ("wikitext-103-raw", False),
        ("my/bert-bas", False),
        ("a/bert-base", False),
        ("builtin:anything", True),
        ("other", False),
        ("", False),
    ):
        assert check_names._is_slip(name, known) is is_slip, name


def test_a_missing_path_says_which_folder_is_missing(tmp_path, monkeypatch):
    explain = check_names._explain_missing_path
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    assert explain(str(tmp_path / "data" / "zzz")) == "check the path"
    assert explain(str(tmp_path / "one" / "two" / "three")) == (
        f"check the path: there is no one in {tmp_path}"
    )
    assert explain("data/two/three") == f"check the path: there is no two in {tmp_path / 'data'}"  # fmt: skip
    assert explain("zzzz") == "check the path"


@pytest.fixture
def asked(monkeypatch):
    """Which packages were asked for; nothing is missing."""
    found = []
    monkeypatch.setattr(check_names, "require_extra", lambda *given: found.append(given))  # fmt: skip
    return found


def test_names_of_models_that_cannot_be_right(asked, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check = check_names.check_model
    assert message_of(check, "builtin:minilm2@v1") == (
        "expected a model's name; got 'builtin:minilm2@v1'. Cure: did you mean builtin:minilm?"
    )
    assert message_of(check, "runs/no/such@v1") == (
        "expected a checkpoint or a file of vectors; got runs/no/such@v1, which is not there. "
        f"Cure: check the path: there is no runs in {tmp_path}"
    )
    assert asked == []
    (tmp_path / "mine.bin").write_text("x")
    for name, extras in (
        ("mine.bin", []),
        ("builtin:minilm", ["demo"]),
        ("bert-base", ["models"]),
        ("owner/name@main", ["models"]),
        ("module:function", []),
        ("{a,b}/x/y", []),
        ("no/such/*.bin", []),
        ("no/such/?.bin", []),
    ):
        asked.clear()
        check(name)
        assert [extra for extra, _ in asked] == extras, name
    assert asked == []


def named(modality, hub="", maker=""):
    return NamedCorpus(modality, "", hub=hub, maker=maker)


def test_names_of_corpora_and_the_packages_that_read_them(asked, tmp_path, monkeypatch):
    corpora = {
        "books": named("text", "b/books"),
        "docs": named("text", maker="a:b"),
        "builtin:pages": named("text", maker="a:b"),
        "pics": named("image", "p/pics"),
        "talks": named("speech", maker="a:b"),
        "news": named("labelled", "n/news"),
        "synthetic": named("labelled", maker="a:b"),
        "copied": named("speech", "c/copied"),
    }
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(check_names, "named_corpora", lambda: corpora)
    monkeypatch.setattr(check_names, "list_corpora", lambda: corpora)
    monkeypatch.setattr(check_names, "find_copy", lambda name: Path("x") if name == "copied" else None)  # fmt: skip
    (tmp_path / "mine").write_text("x")
    (tmp_path / "news").write_text("x")
    for name, is_labelled, extras in (
        ("books", False, [("data", "to read books, a data set of the hub")]),
        ("docs", False, []),
        ("builtin:pages", False, []),
        ("pics", False, [("data", "to read pics, a data set of the hub"), ("models", "to read image (pics)")]),
        ("talks", False, [("speech", "to read speech (talks)")]),
        ("copied", False, [("speech", "to read speech (copied)")]),
        ("news", True, [("data", "to read news, a data set of the hub")]),
        ("news", False, []),
        ("synthetic:7", True, []),
        ("planted:7", True, []),
        ("mine", False, []),
        ("", False, []),
        ("o/set", False, [("data", "to read o/set, a data set of the hub")]),
        ("o/set", True, [("data", "to read o/set, a data set of the hub")]),
    ):  # fmt: skip
        asked.clear()
        check_names.check_corpus(name, labelled=is_labelled)
        assert asked == extras, name
    asked.clear()
    check_names.check_labelled("synthetic:2")
    labels = {"labelled": True}
    for name, how, message in (
        ("bookss", {}, "a corpus' name; got 'bookss'. Cure: did you mean books?"),
        ("newss", labels, "a corpus' name; got 'newss'. Cure: did you mean news?"),
        ("./no", {}, "a file or folder; got ./no, which is not there. Cure: check the path"),
        ("two words", {}, "a file, a folder or the name of a corpus; got the text 'two words'. "
         "Cure: write texts into a file, one a line; in Python give a list of them"),
        ("The " + "w " * 40, labels,
         f"a file, a folder or the name of a corpus; got the text {'The ' + 'w ' * 28!r}. "
         "Cure: write texts into a file, one a line; in Python give a list of them"),
    ):  # fmt: skip
        assert message_of(check_names.check_corpus, name, **how) == f"expected {message}"  # fmt: skip
    assert asked == []


# ---- files -----------------------------------------------------------------------------------------------------------


def test_a_quarter_of_the_free_memory(monkeypatch):
    def budget(text=None, pages=None):
        def read(*_):
            if text is None:
                raise OSError
            return text

        def ask(name):
            if pages is None:
                raise ValueError
            return pages[name]

        monkeypatch.setattr(files, "Path", lambda _: SimpleNamespace(read_text=read))
        monkeypatch.setattr(files.os, "sysconf", ask)
        return files.get_memory_budget()

    free = (
        "MemTotal:  8000 kB\nMemFree: 40 kB\nMemAvailable:   4000 kB\nBuffers: 1 kB\n"
    )
    assert budget(free) == 1000 * 1024
    pages = {"SC_AVPHYS_PAGES": 100, "SC_PAGE_SIZE": 4096}
    assert budget(None, pages) == budget("MemTotal: 3 kB", pages) == 25 * 4096
    assert budget("MemAvailable: many kB", pages) == 25 * 4096
    assert budget() == (1 << 30) // 4


def test_sizes_are_written_with_their_unit(tmp_path):
    refuse = files.refuse_large_file
    assert str(refuse(tmp_path / "x", 5 << 29, 3 << 20, "c")) == (
        f"expected at most 3 MiB of content in {tmp_path / 'x'}, a quarter of the free memory; got 2.5 GiB or more. "
        "Cure: c"
    )
    for size, written in ((1 << 20, "1 MiB"), (1000 << 20, "1000 MiB"), (3 << 29, "1.5 GiB")):  # fmt: skip
        assert files._write_size(size) == written


def test_texts_are_read_up_to_what_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "PIECE", 4)
    place = tmp_path / "x.txt"
    place.write_bytes(b"\xef\xbb\xbfab\r\ncdef\r\ng")
    assert files.read_text(place) == "ab\ncdef\ng"
    assert files.read_start(place) == ("ab\ncdef\ng", True)
    assert files.read_start(place, 9) == ("ab\ncdef\ng", True)
    text, is_all = files.read_start(place, 2)
    assert not is_all and "ab\ncdef\ng".startswith(text) and len(text) > 2
    place.write_bytes(b"abcd")
    assert files.read_start(place, 4) == ("abcd", True)
    assert files.read_start(place, 3) == ("abcd", False)
    cure = "Cure: name a text file or a table; convert text in another encoding (UTF-16, Latin-1) with iconv"
    for content, got in (
        (b"abcd\xc3", "a byte that is not UTF-8 at position 4"),
        (b"abc\xe9\xa9xy", "a byte that is not UTF-8 at position 3"),
        (b"abcdefg\xff", "a byte that is not UTF-8 at position 7"),
        (b"abcde\0", "a binary file (it holds NUL bytes)"),
    ):
        place.write_bytes(content)
        assert message_of(files.read_text, place) == f"expected UTF-8 text in {place}; got {got}. {cure}"  # fmt: skip
    for read in (files.read_bytes, files.read_text):
        place.write_bytes(b"ab" * 5)
        monkeypatch.setattr(files, "get_memory_budget", lambda: 9)
        cure = "read less of it with --limit, or divide it into several files"
        if read is files.read_bytes:
            cure = "divide it into several files"
        assert message_of(read, place).endswith(f"got 0 MiB or more. Cure: {cure}")
        monkeypatch.setattr(files, "get_memory_budget", lambda: 10)
        assert len(read(place)) == 10


def test_lines_keep_their_blanks_and_lose_their_ends(tmp_path):
    place = tmp_path / "x.txt"
    place.write_bytes(b"\xef\xbb\xbf a \r\n\tb\t\n\n c")
    assert list(files.iter_lines(place)) == [" a ", "\tb\t", "", " c"]
    for line, fault in (
        ("a\0b", "NUL bytes (a binary file, or text in UTF-16)"),
        ("\udcffa", "bytes that are not UTF-8"),
        ("a\udc80", "bytes that are not UTF-8"),
        ("caf\xe9 \U0001f600", ""),
        ("", ""),
    ):
        assert files.find_fault(line) == fault


def test_what_cannot_be_opened_or_unpacked(tmp_path):
    cut = gzip.compress(b"text" * 1000)[:-12]
    (tmp_path / "cut.gz").write_bytes(cut)
    (tmp_path / "no.gz").write_bytes(b"no gzip")
    broken = bytearray(gzip.compress(bytes(range(256)) * 40))
    broken[12:30] = b"\xff" * 18
    (tmp_path / "broken.gz").write_bytes(broken)
    for name in ("cut.gz", "no.gz", "broken.gz"):
        for read in (files.read_bytes, files.read_text, lambda p: list(files.iter_lines(p))):  # fmt: skip
            message = message_of(read, tmp_path / name)
            assert message.startswith(f"expected a gzip file in {tmp_path / name}; got ")  # fmt: skip
            assert message.endswith("Cure: copy the file again: it is damaged or not gzip")  # fmt: skip
    for name, got in (("gone", "No such file or directory"), ("", "Is a directory")):
        place = tmp_path / name
        for read in (files.read_bytes, files.read_text, lambda p: list(files.iter_lines(p))):  # fmt: skip
            assert message_of(read, place) == (
                f"expected a readable file at {place}; got {got}. Cure: check the path and its permissions"
            )


def test_files_below_a_folder_are_in_the_order_of_their_paths(tmp_path):
    names = ["b/a", "a/z", "a/b/c", "c", "a.x", ".h", "b/.h"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    found = [str(f.relative_to(tmp_path)) for f in files.list_files_below(tmp_path)]
    assert found == ["a/b/c", "a/z", "a.x", "b/a", "c"]


# ---- on the disk -----------------------------------------------------------------------------------------------------


def test_texts_and_ids_are_read_in_blocks_of_their_bytes(monkeypatch):
    monkeypatch.setattr(on_disk, "BLOCK", 8)
    texts = ["abcd", "efgh", "ij", "k" * 20, "", "l"]
    kept = on_disk.TextsOnDisk(texts)
    read, asked = kept._read, []

    def noted(first, last):
        asked.append((first, last))
        return read(first, last)

    kept._read = noted
    assert list(kept) == texts
    # of a text of no bytes behind a full block the next block begins
    assert asked == [(0, 2), (2, 3), (3, 5), (5, 6)] or asked == [(0, 2), (2, 3), (3, 4), (4, 6)]  # fmt: skip
    ids = np.arange(5, dtype=np.int32)
    for given in (ids, on_disk.IdsOnDisk([ids])):
        blocks_ = [block.tolist() for block in on_disk.iter_blocks(given)]
        assert blocks_ == [[0, 1], [2, 3], [4]]
    held = on_disk.array("i", [7, 8, 9])
    assert [block.tolist() for block in on_disk._empty_ids(held)] == [[7, 8], [9]]
    assert len(held) == 0
    held = ["a", "b"]
    given = on_disk.empty_list(held)
    assert next(given) == "a" and held == ["b"]
    assert list(given) == ["b"] and held == []


def test_what_is_too_much_for_memory_goes_to_the_disk(monkeypatch):
    ids = [np.arange(k, k + 3, dtype=np.int32) for k in (0, 10, 20)]
    monkeypatch.setattr(on_disk, "IDS_HELD", 5)
    kept = on_disk.keep_ids(iter(ids))
    assert isinstance(kept, on_disk.IdsOnDisk) and (len(kept), kept.nbytes) == (9, 36)
    assert np.concatenate(list(kept.iter_blocks())).tolist() == [0, 1, 2, 10, 11, 12, 20, 21, 22]  # fmt: skip
    texts = ["a", "b", "c"]
    size = sum(map(on_disk.sys.getsizeof, texts))
    for limit, is_list in ((size, True), (size - 1, False), (0, False)):
        monkeypatch.setattr(on_disk, "TEXTS_HELD", limit)
        for given in (list(texts), iter(texts)):
            found = on_disk.keep_texts(given)
            assert isinstance(found, list) is is_list and list(found) == texts


def test_the_folder_of_a_temporary_file_is_named_if_it_is_full(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(on_disk.tempfile, "tempdir", None)
    file = on_disk._NamelessFile()
    assert message_of(_raise, file._refuse(OSError(28, "No space left on device"))) == (
        f"expected room in {tmp_path} for the texts of the corpus and 4 bytes per token; got No space left on device. "
        "Cure: set TMPDIR to a folder with more room"
    )
    chosen_by = ("TEMP", "TMP", "TMPDIR")
    for name in chosen_by:
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "large").mkdir()
    monkeypatch.setattr(on_disk, "LARGE_TEMPORARY", str(tmp_path / "large"))
    full = on_disk._NamelessFile()
    assert full._folder == tmp_path / "large"

    def refuse(*_):
        raise OSError(28, "No space left on device")

    full._file = SimpleNamespace(write=refuse, flush=refuse)
    for call, given in ((full.append, [b"x"]), (full.finish, [])):
        assert message_of(call, *given) == (
            f"expected room in {tmp_path / 'large'} for the texts of the corpus and 4 bytes per token; "
            "got No space left on device. Cure: set TMPDIR to a folder with more room"
        )
    for name in chosen_by:
        monkeypatch.setenv(name, str(tmp_path))
        monkeypatch.setattr(on_disk.tempfile, "tempdir", None)
        assert on_disk._NamelessFile()._folder == tmp_path
        monkeypatch.delenv(name)
    file.append(b"abcdef")
    file.append(memoryview(b"ghi"))
    file.finish()
    assert (file.size, file.read(0, 9), file.read(4, 7), file.read(3, 3)) == (9, b"abcdefghi", b"efg", b"")  # fmt: skip
    targets = [bytearray(2), bytearray(3)]
    file.read_into(zip((7, 1), map(memoryview, targets), strict=True))
    assert targets == [b"hi", b"bcd"]


def _raise(error):
    raise error


# ---- the documentation of Python -------------------------------------------------------------------------------------


def write(path, text, encoding="utf-8"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode(encoding))


def test_which_modules_are_documentation_and_in_which_order(tmp_path):
    names = (
        "b d d-e a/z a/__init__ a/b/__init__ a/b/c a-b __init__ _a a/_c _p/x test/x "
        "a/tests/x tkinter/x encodings/utf turtledemo/y site-packages/q dist-packages/q "
        "idlelib/x lib2to3/x distutils/x ensurepip/x pydoc_data/x"
    )
    for name in names.split():
        write(tmp_path / f"{name}.py", f'"""Of {name}."""')
    write(tmp_path / "a" / "data.txt", "text")
    found = sorted(builtin._iter_modules(tmp_path, ()))
    assert [".".join(name) for name, _ in found] == ["a", "a.b", "a.b.c", "a.z", "a-b", "b", "d", "d-e"]  # fmt: skip
    texts = list(builtin._iter_texts(tmp_path))
    assert texts == [
        f"Of {name}."
        for name in (
            "a/__init__",
            "a/b/__init__",
            "a/b/c",
            "a/z",
            "a-b",
            "b",
            "d",
            "d-e",
        )
    ]


def test_what_of_a_module_is_documentation(tmp_path):
    source = '''"""Module."""
class A:
    """Class."""
    def f(self):
        """Method."""
        def inner():
            """Inner."""
        class Inside:
            """Inside."""
    def _g(self):
        """Private."""
    async def h(self):
        """Later."""
    class B:
        """Class inside."""
        def i(self):
            """Deep."""
def silent():
    pass
x = """No docstring."""
class _C:
    """Private class."""
def last():
    """Last."""
if x:
    def hidden():
        """Under a condition."""
'''
    write(tmp_path / "m.py", source)
    node = builtin._parse(tmp_path / "m.py")
    words = ["Module.", "Class.", "Method.", "Later.", "Class inside.", "Deep.", "Last."]  # fmt: skip
    assert list(builtin._iter_docstrings(node)) == words
    write(tmp_path / "l.py", '# -*- coding: latin-1 -*-\n"""Caf\xe9."""', "latin-1")
    assert list(builtin._iter_docstrings(builtin._parse(tmp_path / "l.py"))) == ["Caf\xe9."]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("a\nb", "a b"),
        ("  a  b \n\n c ", "a b\nc"),
        ("a\n \t \nb", "a\nb"),
        ("Title\n=====\ntext", "Title text"),
        ("Title\n--\ntext", "Title -- text"),
        ("a\n-----x\nb", "a -----x b"),
        ("+---+\n| a |\n+---+", "| a |"),
        ("  ~~~  \nx", "x"),
        ("a\n\n>>> f()\n1\n\nb", "a\nb"),
        ("a\n  ... x\n\nb", "b"),
        ("a >>> b", "a >>> b"),
        ("=====", ""),
        ("", ""),
    ],
)
def test_docstrings_become_paragraphs(text, clean):
    assert builtin._clean(text) == clean


def test_documents_are_counted_up_to_the_limit(tmp_path):
    write(tmp_path / "a.py", '"""One."""')
    write(tmp_path / "b.py", "x = 1")
    write(tmp_path / "c.py", "def (")
    write(tmp_path / "d.py", "y = 1")
    write(tmp_path / "e.py", '"""Two."""')
    write(tmp_path / "f.py", "def (")
    write(tmp_path / "g.py", "def (")
    topics = "x = 3\ntopics = {'b': 'Topic b.', 'a': 'Topic a.'}\n"
    write(tmp_path / "pydoc_data" / "topics.py", topics)
    for limit, documents, empty, skipped in (
        (1, ["One."], 0, 0),
        (2, ["One.", "Two."], 2, 1),
        (3, ["One.", "Two.", "Topic a."], 2, 3),
        (None, ["One.", "Two.", "Topic a.", "Topic b."], 2, 3),
    ):
        read, source = builtin.python_docs(limit, tmp_path)
        assert read.documents == documents
        assert (read.empty, read.skipped, read.unit) == (empty, skipped, "module")
        assert read.how == "modules and topics"
    assert source == {
        "kind": "builtin",
        "python": builtin.platform.python_version(),
        "implementation": builtin.platform.python_implementation(),
    }
    read.documents.append("more")
    assert builtin.python_docs(None, tmp_path)[0].documents == documents
    (tmp_path / "none").mkdir()
    assert message_of(builtin.python_docs, None, tmp_path / "none") == (
        f"expected the sources of the standard library in {tmp_path / 'none'}; got no module with documentation. "
        "Cure: install the full CPython distribution, or name a text file"
    )


# ---- opening ---------------------------------------------------------------------------------------------------------


def test_the_built_in_corpus_of_each_modality():
    assert opening.default_corpus("text") == "builtin:python-docs"
    assert opening.default_corpus("image") == "builtin:digits"
    assert message_of(opening.default_corpus, "speech") == (
        "expected --corpus for a speech model (no speech corpus is built in); got none. "
        "Cure: name a folder of wav or flac files, a manifest or --corpus librispeech"
    )
    assert message_of(opening.default_corpus, "smell").endswith("Cure: name one")


def test_a_corpus_of_another_kind_than_the_model_reads(tmp_path):
    check = opening._check_modality
    (tmp_path / "clips.csv").write_text("path,words\na.wav,x\nb.wav,y\n")
    (tmp_path / "words.csv").write_text("path,text\na.wav,x\nb.wav,y\n")
    (tmp_path / "pics").mkdir()
    (tmp_path / "pics" / "a.png").write_bytes(b"x")
    (tmp_path / "scores.csv").write_text("path,score\na.wav,1\nb.wav,2\n")
    scores = str(tmp_path / "scores.csv")
    check(scores, "text", "score")
    (tmp_path / "talks").mkdir()
    (tmp_path / "talks" / "a.wav").write_bytes(b"x")
    talks = str(tmp_path / "talks")
    clips, pics = str(tmp_path / "clips.csv"), str(tmp_path / "pics")
    for name, modality, column in (
        ("builtin:digits", "image", None),
        ("builtin:python-docs", "text", None),
        ("imdb", "text", None),
        (clips, "speech", None),
        (clips, "text", "words"),
        (str(tmp_path / "words.csv"), "text", None),
        ("no such", "image", None),
    ):
        check(name, modality, column)
    assert message_of(check, "builtin:digits", "text", "x") == (
        "expected a corpus that the model reads (text); got builtin:digits, which holds image. Cure: for this model "
        "name builtin:python-docs, a text file or --corpus wikitext-103; for this corpus measure vit-base or resnet-50"
    )
    assert message_of(check, talks, "text", None) == (
        f"expected a corpus that the model reads (text); got {talks}, which holds speech. Cure: for this model "
        "name builtin:python-docs, a text file or --corpus wikitext-103; for this corpus measure wav2vec2-base "
        "or hubert"
    )
    assert message_of(check, pics, "speech", "c") == (
        f"expected a corpus that the model reads (speech); got {pics}, which holds image. Cure: for this model name a "
        "folder of wav or flac files, a manifest or --corpus librispeech; for this corpus measure vit-base or resnet-50"
    )
    assert message_of(check, "builtin:python-docs", "image", None).endswith(
        "builtin:digits, a folder of images or --corpus imagenet-1k; for this corpus measure builtin:minilm or "
        "bert-base"
    )


@pytest.mark.parametrize(
    ("modality", "given", "message"),
    [
        ("image", ("line", None, None),
         "--documents only with a text model; got a model of image. Cure: leave --documents out"),
        ("speech", ("auto", 3, None),
         "--sequences only with a text model; got a model of speech. Cure: use --limit, which counts units"),
        ("image", ("auto", None, 7), "no --max-length for an image model; got 7. Cure: leave --max-length out"),
    ],
)  # fmt: skip
def test_options_that_other_modalities_have(modality, given, message):
    refuse = opening._refuse_options_of_other_modalities
    assert message_of(refuse, modality, *given) == f"expected {message}"


@pytest.fixture
def fakes(monkeypatch):
    """The parts of opening a text, each of which notes how it was called."""
    asked = []

    def plan(**more):
        made = SimpleNamespace(warnings=["of plan"], words={"unit": "w"}, settings={"s": 1}, fingerprint="p",
                               unit=np.array([0, 1]), frequency_bins=[], **more)  # fmt: skip
        made.spread = lambda count: plan(spread_to=count)
        made.at_least = lambda rate: ("at least", rate)
        return made

    def noted(name, made):
        def call(*given, **how):
            asked.append((name, given, how))
            return made()

        return call

    family = SimpleNamespace(words=False, alone=False)
    monkeypatch.setattr(texts_of, "plan_text", noted("text", plan))
    monkeypatch.setattr(texts_of, "plan_characters", noted("characters", plan))
    monkeypatch.setattr(blocks, "find_stack", lambda _: "own stack")
    monkeypatch.setattr(families, "family_named", lambda _: family)
    return SimpleNamespace(asked=asked, family=family, plan=plan)


def test_how_a_text_is_planned_for_a_model(fakes):
    def planned(**config):
        fakes.asked.clear()
        model = SimpleNamespace(config=SimpleNamespace(**config))
        found = opening._plan_text("c", model, "t", 7, 9)
        ((kind, given, how),) = fakes.asked
        assert given == ("c", "t") and how.pop("max_length") == 7
        return found, kind, how

    _, kind, how = planned(vocab_size=5, model_type="x")
    assert (kind, how) == ("text", {
        "batch_tokens": 9, "stack": "own stack", "decoder_start_id": None, "vocab_size": 5,
    })  # fmt: skip
    both = {"is_encoder_decoder": True, "decoder_start_token_id": 0, "model_type": "x"}
    assert planned(**both)[2] == {
        "batch_tokens": 9, "stack": "encoder", "decoder_start_id": 0, "vocab_size": None,
    }  # fmt: skip
    found, _, _ = planned(model_type="canine", downsampling_rate=4)
    assert found == ("at least", 4)
    fakes.family.alone = True
    assert planned(model_type="x")[2]["batch_tokens"] == 1
    fakes.family.words = True
    assert planned(model_type="x")[1:] == ("characters", {"batch_tokens": 9})


def test_the_entry_of_a_corpus_has_what_its_modality_has(fakes, monkeypatch):
    corpus = SimpleNamespace(name="n", fingerprint="f", source={"kind": "k", "skipped": 2}, files={})  # fmt: skip
    asked = []

    def opened(name, **how):
        asked.append((name, how))
        return corpus

    monkeypatch.setattr(opening, "open_corpus", opened)
    monkeypatch.setattr(opening, "_check_modality", lambda *given: asked.append(given))
    monkeypatch.setattr(opening, "_plan_media", lambda *given: asked.append(given) or fakes.plan())  # fmt: skip
    reader = SimpleNamespace(tokenize=None, model_max_length=300)
    model = SimpleNamespace(config=SimpleNamespace())
    common = {
        "name": "n",
        "fingerprint": "f",
        "words": {"unit": "w"},
        "kind": "k",
        "skipped": 2,
        "warnings": ["2 unreadable items of the corpus left out", "of plan"],
    }
    plan, entry = opening.open_plan(
        "c",
        model,
        reader,
        modality="text",
        sequences=5,
        batch_tokens=8,
        column="x",
        limit=3,
    )
    assert plan.spread_to == 5 and entry == common | {"max_length": 300}
    assert asked == [("c", "text", "x"), ("c", {"modality": "text", "column": "x", "limit": 3})]  # fmt: skip
    assert fakes.asked[0][2]["batch_tokens"] == 8
    asked.clear()
    plan, entry = opening.open_plan("c", model, reader, modality="speech", max_length=40, batch_tokens=8)  # fmt: skip
    assert entry == common | {"preprocessing": {"s": 1}}
    assert asked[-1] == (corpus, model, reader, "speech", 40, 8)
    assert "--documents only" in message_of(
        opening.open_plan, "c", model, reader, modality="image", documents="line"
    )
    plan, entry = opening.open_plan("c", model, reader, modality="image", to_merge=True)
    assert entry["files"] == {"n": "f"} and entry["fingerprint"] == hash_parts(["f"])
    assert plan.unit.tolist() == number_by_content(np.array([0, 1]), ["f"]).tolist()
    assert plan.settings == {"s": 1} and plan.warnings == ["of plan"]


def test_files_of_a_corpus_to_merge_are_named_and_hashed():
    corpus = SimpleNamespace(name="in/folder/n.txt", fingerprint="f", files={})
    plan = SimpleNamespace(
        unit=np.array([0, 1, 2]),
        frequency_bins=["rare"],
        settings={"s": 1},
        warnings=[],
    )
    assert opening._prepare_for_merge(plan, corpus) == {
        "files": {"n.txt": "f"},
        "fingerprint": hash_parts(["f"]),
    }
    assert plan.settings == {"s": 1, "to_merge": True}
    assert plan.warnings == [
        "bins of token frequency left out: a run to merge does not know the counts of other files"
    ]
    corpus.files = {"b": "h9", "a": "h1"}
    plan.unit = np.array([0, 1, 2])
    found = opening._prepare_for_merge(plan, corpus)
    assert found == {"files": corpus.files, "fingerprint": hash_parts(["h1", "h9"])}
    assert plan.unit.tolist() == number_by_content(np.array([0, 1, 2]), ["h9", "h1"]).tolist()  # fmt: skip


def test_a_share_of_files_is_opened_with_the_options_of_all(fakes, monkeypatch):
    asked = []
    source = {"kind": "folder", "skipped": 1, "empty": 5}
    plan = SimpleNamespace(
        corpus_fingerprint="texts",
        fingerprint="plan",
        words={"unit": "w"},
        source=source,
        warnings=["of plan"],
    )

    def planned(*given):
        asked.append(given)
        return plan

    monkeypatch.setattr(by_file, "PlanByFile", planned)
    monkeypatch.setattr(by_file, "find_share", lambda *given, **how: (given, how))
    reader = SimpleNamespace(tokenize=None, model_max_length=300)
    for words, vocabulary in ((False, 77), (True, None)):
        fakes.family.words = words
        model = SimpleNamespace(config=SimpleNamespace(vocab_size=77))
        found, entry = opening.open_plan(
            "d",
            model,
            reader,
            modality="text",
            files=(1, 3),
            batch_tokens=8,
            skip_bad=True,
        )
        assert found is plan and entry == {
            "name": "d",
            "fingerprint": "texts",
            "max_length": 300,
            "words": {"unit": "w"},
            **source,
            "warnings": ["1 unreadable item of the corpus left out", "of plan"],
        }
        share, make, tokenizer, size = asked.pop()
        assert share == (("d", (1, 3)), {"skip_bad": True})
        assert (tokenizer, size) == (reader, vocabulary)
        make("corpus", "own reader")
        assert fakes.asked[-1][1] == ("corpus", "own reader")
        assert fakes.asked[-1][2]["batch_tokens"] == 8
        assert fakes.asked[-1][2]["max_length"] == 300


def test_texts_in_memory_are_opened_with_all_options(monkeypatch):
    asked = []

    def opened(path, *given, **how):
        asked.append((Path(path).read_text("utf-8"), given, how))
        return "plan", {"path": path, "name": path, "k": 1}

    monkeypatch.setattr(opening, "open_plan", opened)
    found = opening.open_texts(["a\nb", "\u00e9"], "m", "p", max_length=5, limit=2)
    assert found == ("plan", {"name": "texts", "k": 1})
    assert asked == [
        ('{"text": "a\\nb"}\n{"text": "\\u00e9"}', ("m", "p"), {"modality": "text", "max_length": 5, "limit": 2})
    ]  # fmt: skip


def test_which_corpora_are_texts_with_images(tmp_path, monkeypatch):
    asked = []
    module = SimpleNamespace(
        is_saved_set=lambda path: path.name == "saved",
        holds_image_texts=lambda name: name.endswith("chats"),
        find_image_text_set=lambda *given, **how: asked.append((given, how)) or "set",
        open_image_texts=lambda *given, **how: (given, how),
    )
    for name in ("saved", "chats", "other"):
        (tmp_path / name).mkdir()
    options = {
        "split": "s", "column": "c", "config": "g", "revision": "r", "limit": 3, "skip_bad": True,
        "sequences": None, "max_length": None, "documents": "auto",
    }  # fmt: skip
    of_sets = {key: options[key] for key in ("split", "column", "config", "revision", "limit", "skip_bad")}  # fmt: skip
    find = opening._find_texts_with_images
    for name in ("saved", "o/name"):
        name = str(tmp_path / name) if name == "saved" else name
        asked.clear()
        assert find(module, name, options) == "set"
        assert asked == [((name,), of_sets)]
    assert find(module, "o/name", {"limit": 3}) == "set" and asked[-1][1] == {"limit": 3}  # fmt: skip
    read = find(module, str(tmp_path / "chats"), options)
    assert read() == ((str(tmp_path / "chats"),), of_sets)
    assert find(module, str(tmp_path / "other"), options) is None
    assert find(module, "builtin:digits", options) is None
    assert find(module, "bare-word", options) is None
    # a preset has a reader of its own, whatever lies here by its name
    name = str(tmp_path / "chats")
    monkeypatch.setattr(opening, "named_corpora", lambda: {name: None})
    assert find(module, name, options) is None


def test_texts_with_images_are_opened_for_a_model(monkeypatch):
    asked = []
    corpus = SimpleNamespace(fingerprint="texts", source={"kind": "k", "skipped": 1})
    plan = SimpleNamespace(
        fingerprint="plan", settings={"s": 1}, words={"unit": "w"}, warnings=["of plan"]
    )

    def planned(*given, **how):
        asked.append((given, how))
        return plan

    module = SimpleNamespace(ImageTextPlan=planned)
    monkeypatch.setattr(opening, "import_module", lambda _: module)
    looked = []
    monkeypatch.setattr(
        opening,
        "_find_texts_with_images",
        lambda *given: looked.append(given) or (lambda: corpus),
    )
    monkeypatch.setattr(blocks, "find_stack", lambda model: f"stack of {model}")
    monkeypatch.setattr(blocks, "has_two_towers", lambda model: model == "two")
    for model in ("two", "one"):
        found, entry = opening.open_texts_with_images(
            "n", model, 5, batch_tokens=9, limit=3
        )
        assert found is plan and looked.pop() == (module, "n", {"limit": 3})
        how = {"stack": f"stack of {model}", "batch_tokens": 9, "are_pairs": model == "two"}  # fmt: skip
        assert asked.pop() == ((corpus, 5), how)
        assert entry == {
            "name": "n",
            "fingerprint": "plan",
            "preprocessing": {"s": 1},
            "words": {"unit": "w"},
            "kind": "k",
            "skipped": 1,
            "warnings": ["1 unreadable item of the corpus left out", "of plan"],
        }
    assert message_of(opening.open_texts_with_images, "n", "one", "none was found") == (
        "expected a processor of images and texts with the model; got none was found. Cure: save the processor that "
        "was published with the model in its folder; some need pip install torchvision"
    )
    found = message_of(opening.open_texts_with_images, "n", "one", object(), max_length=5)  # fmt: skip
    assert found == (
        "expected options that apply to texts with images; got --max-length 5. "
        "Cure: leave that option out; --limit counts images or chats"
    )
    monkeypatch.setattr(opening, "_find_texts_with_images", lambda *_: None)
    assert opening.open_texts_with_images("n", "one", "none was found") is None


class Made(NamedCorpus):
    """A corpus that a function makes."""


def test_labelled_texts_are_checked_as_a_whole_and_within_the_limit(monkeypatch):
    checked, opened = [], []

    class Corpus(dict):
        has_no_splits = True
        all_examples, splits = "all", {"train": "some"}

        def limited(self, limit):
            return ("limited", limit, self)

    def use(corpus, needed=None):
        checked.append((corpus, needed))
        return corpus

    corpus = Corpus()
    monkeypatch.setattr(opening, "require_usable", use)
    monkeypatch.setattr(opening, "open_table", lambda *given: opened.append(given) or corpus)  # fmt: skip
    monkeypatch.setattr(opening, "resolve_corpus", lambda name, kind, options: (name, kind, options.limit))  # fmt: skip
    found = opening.open_labelled("n", columns={"text": "t"}, seed=7, limit=3)
    assert found == ("limited", 3, corpus)
    assert checked == [(corpus, None), (found, None)]
    assert opened == [("n", ("n", "labelled", 3), {"text": "t"}, 7)]
    replaced = []

    def replace(given, splits):
        replaced.append(splits)
        return given

    monkeypatch.setattr(opening, "replace", replace)
    checked.clear()
    found = opening.open_labelled("n", limit=3, for_training=False)
    assert checked == [(("limited", 3, corpus), {labelled.ALL: 2})]
    assert replaced == [{labelled.ALL: "all", "train": "some"}]
    corpus.has_no_splits = False
    checked.clear()
    opening.open_labelled("n", for_training=False)
    assert checked == [(corpus, None), (("limited", None, corpus), None)]
    # one that a function makes
    made = Made("labelled", "", maker="a:b")
    monkeypatch.setattr(opening, "resolve_corpus", lambda *_: made)
    monkeypatch.setattr(Made, "make", lambda _, *given: opened.append(given) or corpus)  # fmt: skip
    opening.open_labelled("planted:3", seed=5)
    assert opened[-1] == ("synthetic:3", 5)
    assert message_of(
        opening.open_labelled, "synthetic", columns={"text": "t", "label": "l"}
    ) == (
        "expected no column names for synthetic, whose columns are known; got text, label. Cure: leave these names out"
    )
