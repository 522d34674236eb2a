"""Rows of tables, local copies and made-up corpora: which line, split and class is which, on a few lines each."""

import gzip
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from anisoscope.data import local, synthetic, table_rows, text as texts
from anisoscope.data.table_rows import Row, read_table_rows
from anisoscope.data.windows import Affixes
from anisoscope.errors import CorpusError, UsageError


def rows_of(path, **how):
    return [tuple(row) for row in read_table_rows(path, **how)]


# ---- tables ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "rows"),
    [
        ("x.csv", "a,b\n1,2\n\n3,4\n", [(2, {"a": "1", "b": "2"}), (4, {"a": "3", "b": "4"})]),
        ("x.csv", "a;b\n1;2,5\n", [(2, {"a": "1", "b": "2,5"})]),
        ("x.csv", "a\tb\n1\t2\n", [(2, {"a": "1", "b": "2"})]),
        ("x.csv", " a ,\n1,2\n", [(2, {"a": "1", "column 2": "2"})]),
        ("x.csv", 'a,b\n"x, ""y""",2\n', [(2, {"a": 'x, "y"', "b": "2"})]),
        ("x.csv", 'a,b\n"x\ny",2\n3,4\n', [(2, {"a": "x\ny", "b": "2"}), (4, {"a": "3", "b": "4"})]),
        ("x.csv", "a,b\n1\n3,4\n", [(2, "1 columns, where the header has 2"), (3, {"a": "3", "b": "4"})]),
        ("x.tsv", 'a\tb\n"x"\ty "z"\n"u\tv\n', [(2, {"a": "x", "b": 'y "z"'}), (3, {"a": '"u', "b": "v"})]),
        ("x.tsv", 'a,b\tc\n1\t"x ""y"""\n', [(2, {"a,b": "1", "c": 'x "y"'})]),
        ("x.tsv", 'a\tb\tc\n1\t2\t"x\ny"\n4\t5\t6\n',
         [(2, {"a": "1", "b": "2", "c": "x\ny"}), (4, {"a": "4", "b": "5", "c": "6"})]),
        ("x.csv", 'a,b\n1,x"y\n', [(2, {"a": "1", "b": 'x"y'})]),
        ("x.csv", "", []),
        ("x.jsonl", '{"a": 1}\n\n"text"\n3\n{"a": }\n', [
            (1, {"a": 1}), (3, {"text": "text"}), (4, "'3'"), (5, "'{\"a\": }'")]),
        ("x.jsonl", '[1]\n{"a": "\\ud800"}\n', [(1, "'[1]'"), (2, "half a character (a lone surrogate)")]),
        ("x.json", '\n [{"a": 1}, "t", 3]', [("row 1", {"a": 1}), ("row 2", {"text": "t"}), ("row 3", "'3'")]),
        ("x.json", '{"a": 1}\n[2]\n', [(1, {"a": 1}), (2, "'[2]'")]),
    ],
)  # fmt: skip
def test_rows_and_their_places(tmp_path, name, content, rows):
    (tmp_path / name).write_text(content)
    expected = []
    for place, found in rows:
        where = place if isinstance(place, str) else f"line {place}"
        is_fault = isinstance(found, str)
        expected.append((where, {}, found) if is_fault else (where, found, ""))
    assert rows_of(tmp_path / name) == expected
    packed = tmp_path / f"{name}.gz"
    packed.write_bytes(gzip.compress(content.encode()))
    assert rows_of(packed) == expected


def test_long_lines_that_are_no_json_are_shown_around_the_fault(tmp_path):
    line = '{"a": "' + "x" * 80 + '", "b": oops, "c": "' + "y" * 80 + '"}'
    (tmp_path / "x.jsonl").write_text(line)
    ((place, columns, fault),) = rows_of(tmp_path / "x.jsonl")
    assert place == "line 1" and columns == {}
    at = line.index("oops")
    assert fault == f"{line[at - 30 : at + 30]!r} at character {at}"
    deep = "[" * 200_000
    assert table_rows._parse_json(deep) == (None, "brackets nested too deep")
    assert "thousands of digits" in table_rows._parse_json("1" * 9000)[1]


def test_an_open_quotation_mark_over_rows_is_named_and_rows_are_read(tmp_path):
    body = [f"{k},word{k % 2},{k}.5" for k in range(8)]
    body[2] = '2,"word0,2.5'
    body[5] = '5,word1",5.5'
    (tmp_path / "x.csv").write_text("\n".join(["n,w,x", *body]) + "\n")
    found = rows_of(tmp_path / "x.csv")
    sound = [row[0] for row in found if not row[2]]
    assert sound == [f"line {k}" for k in (2, 3, 5, 6, 7, 8, 9)]
    faults = {row[0]: row[2] for row in found if row[2]}
    assert "a quotation mark open until line 7" in faults["line 4"]
    (tmp_path / "x.csv").write_text('n,w\n1,a\n2,"b\n3,c\n')
    assert rows_of(tmp_path / "x.csv") == [
        ("line 2", {"n": "1", "w": "a"}, ""),
        ("line 3", {}, "a quotation mark that is never closed"),
        ("line 4", {"n": "3", "w": "c"}, ""),
    ]


def test_rows_of_parquet_and_of_one_column(tmp_path, monkeypatch):
    monkeypatch.setattr(table_rows, "ROWS_AT_ONCE", 2)
    table = pa.table({"a": [1, 2, 3], "b": ["x", "y", "z"]})
    parquet.write_table(table, tmp_path / "x.parquet")
    every = [(f"row {k + 1}", {"a": k + 1, "b": "xyz"[k]}, "") for k in range(3)]
    assert rows_of(tmp_path / "x.parquet") == every
    assert rows_of(tmp_path / "x.parquet", column="c") == every
    of_column = rows_of(tmp_path / "x.parquet", column="b")
    assert [row[1] for row in of_column] == [{"b": letter} for letter in "xyz"]
    (tmp_path / "x.parquet.gz").write_bytes(gzip.compress((tmp_path / "x.parquet").read_bytes()))  # fmt: skip
    assert rows_of(tmp_path / "x.parquet.gz") == every
    (tmp_path / "y.parquet").write_bytes(b"nothing")
    with pytest.raises(CorpusError, match=r"in .*y.parquet"):
        rows_of(tmp_path / "y.parquet")


def test_headers_and_endings_that_cannot_be_read(tmp_path):
    for content, message in (
        ("a,b,a\n1,2,3\n", "got several columns a"),
        ('a,"b\n1,2\n', "a header of different names"),
    ):
        (tmp_path / "x.csv").write_text(content)
        with pytest.raises(CorpusError, match=message):
            rows_of(tmp_path / "x.csv")
    (tmp_path / "x.txt").write_text("a")
    with pytest.raises(CorpusError, match=r"a table ending in \.csv"):
        rows_of(tmp_path / "x.txt")


def test_all_rows_or_the_places_of_those_that_cannot_be_read(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"a": 1}\n{}\n{"a": 2}\n')
    found = table_rows.read_rows_strict(tmp_path / "x.jsonl", "cure")
    assert [row.columns for row in found] == [{"a": 1}, {"a": 2}]
    (tmp_path / "x.jsonl").write_text("1\n" * 7)
    named = ", ".join(f"line {k}: '1'" for k in range(1, table_rows.NAMED + 1))
    with pytest.raises(CorpusError) as caught:
        table_rows.read_rows_strict(tmp_path / "x.jsonl", "cure")
    assert f"7 faulty: {named} and {7 - table_rows.NAMED} more. Cure: cure" in str(caught.value)  # fmt: skip
    bad = [*"abcdefgh"][: table_rows.NAMED]
    assert table_rows.list_faulty(bad) == f"{len(bad)} faulty: {', '.join(bad)}"
    assert table_rows.require_column("b", ["a", "b"], "t") == "b"
    with pytest.raises(CorpusError, match=r"a column 'bb' for captions in t; got the columns a, b"):  # fmt: skip
        table_rows.require_column("bb", iter(["a", "b"]), "t", "captions")


# ---- local copies ----------------------------------------------------------------------------------------------------


def touch(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")


def test_copies_are_named_by_variables_only_inside_of_the_block(monkeypatch, tmp_path):
    monkeypatch.setenv("ANISOSCOPE_DATA_COMMON_VOICE", "before")
    monkeypatch.delenv("ANISOSCOPE_DATA_AG_NEWS", raising=False)
    copies = {"common-voice": tmp_path, "ag_news": tmp_path / "a"}
    with pytest.raises(ValueError, match="inside"), local.use_copies(copies):
        assert os.environ["ANISOSCOPE_DATA_COMMON_VOICE"] == str(tmp_path)
        assert local.find_copy("common-voice") == tmp_path
        with pytest.raises(
            CorpusError, match=r"a local copy of ag_news; got .*not there"
        ):
            local.find_copy("ag_news")
        raise ValueError("inside")
    assert os.environ["ANISOSCOPE_DATA_COMMON_VOICE"] == "before"
    assert "ANISOSCOPE_DATA_AG_NEWS" not in os.environ
    assert local.parse_paths(["a=b=c", "d=e"]) == {"a": "b=c", "d": "e"}
    for text in ("a", "=b", "a="):
        with pytest.raises(UsageError, match="--data NAME=FOLDER"):
            local.parse_paths(["x=y", text])


def test_a_name_is_found_here_or_in_the_data_folder(monkeypatch, tmp_path):
    data, here = tmp_path / "data", tmp_path / "here"
    touch(data, "a.txt", "b.jsonl.gz", "c")
    touch(here, "a")
    monkeypatch.setenv("ANISOSCOPE_DATA", str(data))
    monkeypatch.chdir(here)
    assert local.find_path("a").read_text() == "x" and not local.find_path("a").suffix
    assert local.find_path("b") == data / "b.jsonl.gz"
    assert local.find_path("c") == data / "c" and local.find_path("d") is None
    assert local.find_path("") is None and local.find_path("x" * 300) is None


@pytest.mark.parametrize(
    ("names", "split", "config", "found"),
    [
        (["train.txt", "valid.txt"], "validation", "", "valid.txt"),
        (["train.txt", "valid.txt"], "train", "", "train.txt"),
        (["train.txt", "valid.txt"], None, "", ""),
        (["train.txt", "valid.txt"], "test", "", r"test split in .*; got none, but train.txt"),
        (["a.txt", "b.txt"], "test", "", ""),
        (["x/dev/a.txt", "x/train/a.txt"], "validation", "", "x/dev"),
        (["test/test.txt"], "test", "", "test"),
        (["test-a.txt", "test-b.txt"], "test", "", r"got 2, such as test-a.txt"),
        (["test-a.txt", "test-b.txt"], "test", "b", "test-b.txt"),
        (["test.wav", "test.txt"], "test", "", "test.txt"),
        (["holdout.txt", "train.txt"], "holdout", "", "holdout.txt"),
        ([".test.txt", "a.txt"], "test", "", ""),
        (["latest.txt", "train.txt"], "test", "", "got none, but train.txt"),
    ],
)  # fmt: skip
def test_the_part_of_a_copy_that_is_a_split(tmp_path, names, split, config, found):
    touch(tmp_path, *names)
    if "got" in found:
        with pytest.raises(CorpusError, match=found):
            local.find_part_of_copy(tmp_path, "text", split, config)
        return
    part = local.find_part_of_copy(tmp_path, "text", split, config)
    assert part == (tmp_path / found if found else tmp_path)
    file = tmp_path / names[0]
    assert local.find_part_of_copy(file, "text", split, config) == file


def test_what_a_folder_or_a_table_mostly_holds(tmp_path):
    touch(tmp_path / "mixed", "a.wav", "b.WAV", "c.png", ".d.png", ".e.png")
    touch(tmp_path / "none", "a.xyz")
    detect = local.detect_modality
    assert detect(tmp_path / "mixed") == "speech" and detect(tmp_path / "none") is None
    (tmp_path / "m.csv").write_text("path,text\na.png,x\nb.png,y\nc.wav,z\n")
    assert detect(tmp_path / "m.csv") == "image"
    (tmp_path / "t.csv").write_text("text\nx\n")
    assert detect(tmp_path / "t.csv") is None
    for name, modality in (("audio", "speech"), ("picture", "image"), ("my_sound", "speech")):  # fmt: skip
        table = pa.table({"n": [1], name: [{"bytes": b"x", "path": "p"}]})
        parquet.write_table(table, tmp_path / "e.parquet")
        assert local.find_encoded_column(tmp_path / "e.parquet") == name
        assert detect(tmp_path / "e.parquet") == modality
    parquet.write_table(pa.table({"n": [{"text": "x"}]}), tmp_path / "p.parquet")
    assert local.find_encoded_column(tmp_path / "p.parquet") is None
    row = Row("line 1", {"x": "a", "path": "b"})
    assert local.find_row_path(row, tmp_path / "m.csv") == "b"
    assert local.find_row_path(row, tmp_path / "m.csv", "x") == "a"
    with pytest.raises(CorpusError, match=r"a column of paths \(.*path.*\) in .*m.csv; got the columns x"):  # fmt: skip
        local.find_row_path(Row("line 1", {"x": "a"}), tmp_path / "m.csv")


def test_corpora_of_the_data_folder_are_listed_by_what_they_hold(monkeypatch, tmp_path):
    touch(tmp_path, "talk/a.wav", "pics/in/b.png", "news.txt", "t.jsonl.gz", "talk/manifest.csv", "x.bin")  # fmt: skip
    monkeypatch.setenv("ANISOSCOPE_DATA", str(tmp_path))
    found = {
        name: modality for name, (modality, _) in local.list_local_corpora().items()
    }
    assert found == {"talk": "speech", "pics/in": "image", "news": "text", "t": "text"}


def split_by_marks(example):
    """The words of a text that its rationale marks, and the others."""
    both = [], []
    for word, mark in zip(example.words, example.rationale, strict=True):
        both[0 if mark else 1].append(word)
    return both


# ---- made-up corpora -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "classes"), [("synthetic", 2), ("synthetic:3", 3), ("synthetic:50", 50)])  # fmt: skip
def test_every_made_up_text_has_words_of_its_class(name, classes):
    corpus = synthetic.open_synthetic(name, 4)
    assert corpus.labels == tuple(f"class {k + 1}" for k in range(classes))
    marked, sizes = {}, {}
    for split, examples in corpus.splits.items():
        sizes[split] = len(examples)
        for example in examples:
            own, _ = split_by_marks(example)
            assert 1 <= len(own) <= 3
            assert 8 + 1 <= len(example.words) <= 24 + 4
            marked.setdefault(example.label, set()).update(own)
    assert sizes == {"train": 900, "validation": 300, "test": 300}
    assert len(marked) == classes
    assert all(len(words) <= synthetic.KEYWORDS for words in marked.values())
    assert sum(map(len, marked.values())) == len(set().union(*marked.values()))
    for examples in corpus.splits.values():
        for example in examples:
            own, rest = split_by_marks(example)
            others = set().union(*(marked[k] for k in marked if k != example.label))
            strays = [word for word in rest if word in others]
            assert len(strays) <= (1 if len(own) > 1 else 0)
    labels = [example.label for example in corpus.splits["train"]]
    counts = np.bincount(labels)
    assert counts.max() - counts.min() <= 1 and labels != sorted(labels)


def test_made_up_pairs_name_the_same_thing_another_or_its_opposite():
    corpus = synthetic.open_pairs("synthetic-pairs", 2)
    opposite = {}
    for example in corpus.splits["train"]:
        count = len(example.words)
        first = [w for w, m in zip(example.words, example.rationale[:count], strict=True) if m]  # fmt: skip
        second = [w for w, m in zip(example.second, example.rationale[count:], strict=True) if m]  # fmt: skip
        ((one,), (other,)) = first, second
        kind = corpus.labels[example.label]
        assert (one == other) == (kind == "entailment")
        if kind == "contradiction":
            assert opposite.setdefault(one, other) == other
    assert len(opposite) == synthetic.THINGS
    names = set(opposite)
    assert not names & set(opposite.values())
    for example in corpus.splits["train"]:
        if corpus.labels[example.label] == "neutral":
            assert set(example.second) & names
    assert synthetic.open_pairs("synthetic-pairs", 3).splits != corpus.splits


def test_numbers_of_classes_that_there_are():
    for name in ("synthetic:1", "synthetic:51", "synthetic:a", "synthetic:-2"):
        with pytest.raises(UsageError, match=f"2 to 50 classes; got '{name}'"):
            synthetic.open_synthetic(name, 0)
    zipf = synthetic._compute_zipf(4)
    assert zipf.tolist() == pytest.approx([12 / 25, 6 / 25, 4 / 25, 3 / 25])


# ---- decoders --------------------------------------------------------------------------------------------------------


def test_a_decoder_reads_the_text_behind_its_start_without_the_last_mark(monkeypatch):
    """Of marks before and behind a text: the start goes before them, the last one behind is cut off."""
    own = Affixes((5, 6), (7, 8))
    monkeypatch.setattr(texts, "find_affixes", lambda _tokenizer: own)
    found = texts._find_affixes_by_stack(None, "encoder", 3)
    assert found == {"encoder": own, "decoder": Affixes((3, 5, 6), (7,))}
    assert texts._find_affixes_by_stack(None, "decoder", None) == {"decoder": own}
    bare = Affixes((), ())
    monkeypatch.setattr(texts, "find_affixes", lambda _tokenizer: bare)
    found = texts._find_affixes_by_stack(None, "encoder", 0)
    assert found == {"encoder": bare, "decoder": Affixes((0,), ())}


# ---- every rule of tables --------------------------------------------------------------------------------------------


def message_of(call, *given, **how):
    """The whole message of the error that a call ends with."""
    with pytest.raises(CorpusError) as caught:
        call(*given, **how)
    return str(caught.value)


def read(tmp_path, name, content):
    """[(line or place, columns or fault)] of a table of this content."""
    place = tmp_path / name
    place.write_bytes(content if isinstance(content, bytes) else content.encode())
    found = []
    for where, columns, fault in rows_of(place):
        assert bool(fault) is not bool(columns)
        found.append((where.removeprefix("line "), fault or columns))
    return found


@pytest.mark.parametrize(
    ("content", "rows"),
    [
        # a quotation mark of a value that ends, of one that does not, and of one that is none
        ('a,b\n"x",1\n', [("2", {"a": "x", "b": "1"})]),
        ('a,b\n"x"y,1\n2,3\n', [("2", "a quotation mark inside a value"), ("3", {"a": "2", "b": "3"})]),
        ('a,b\n"x\n', [("2", "a quotation mark inside a value")]),
        ('a,b\n"x,1\n2,3\n4,5\n', [("2", "a quotation mark that is never closed"), ("3", {"a": "2", "b": "3"}),
                                    ("4", {"a": "4", "b": "5"})]),
        # blank lines count, between rows and before the header
        ("\n\na,b\n\n1,2\n \n3,4\n", [("5", {"a": "1", "b": "2"}), ("7", {"a": "3", "b": "4"})]),
        # the place is that of the first line of a record
        ('a,b\n"x\n\ny",1\n2,3\n', [("2", {"a": "x\n\ny", "b": "1"}), ("5", {"a": "2", "b": "3"})]),
        # of a single column nothing shows that lines are rows of their own
        ('text\n"a\nb"\nc\n', [("2", {"text": "a\nb"}), ("4", {"text": "c"})]),
        # too many and too few columns
        ("a,b\n1,2,3\n1\n", [("2", "3 columns, where the header has 2"), ("3", "1 columns, where the header has 2")]),
        # a byte that is no text, in the first line of a record or in a later one
        (b"a,b\n\xff,1\n2,3\n", [("2", "bytes that are not UTF-8"), ("3", {"a": "2", "b": "3"})]),
        (b'a,b\n"x\n\xff",1\n2,3\n', [("2", "bytes that are not UTF-8"), ("4", {"a": "2", "b": "3"})]),
        (b'a,b\n"x\n\0",1\n2,3\n',
         [("2", "NUL bytes (a binary file, or text in UTF-16)"), ("4", {"a": "2", "b": "3"})]),
        # the header chooses the separator: the one that it has most of, of equally many the comma
        ("a;b,c;d\n1;2;3\n", [("2", {"a": "1", "b,c": "2", "d": "3"})]),
        ("a;b,c\n1,2\n", [("2", {"a;b": "1", "c": "2"})]),
        ("text\na;b\n", [("2", {"text": "a;b"})]),
        ("a\tb\n1\t2,5\n", [("2", {"a": "1", "b": "2,5"})]),
        (",b, \n1,2,3\n", [("2", {"column 1": "1", "b": "2", "column 3": "3"})]),
        ('"a ",b\n1,2\n', [("2", {"a": "1", "b": "2"})]),
    ],
)  # fmt: skip
def test_records_of_csv(tmp_path, content, rows):
    assert read(tmp_path, "x.csv", content) == rows


@pytest.mark.parametrize(
    ("content", "rows"),
    [
        ('a\t"b"\n"x"\ty\n', [("2", {"a": "x", "b": "y"})]),
        ('a\t"b\n1\t2\n', [("2", {"a": "1", '"b': "2"})]),
        ('a\tb\n"x ""y"""\t"\n', [("2", {"a": 'x "y"', "b": '"'})]),
        ('a\tb\n"x"y\t1\n', [("2", {"a": '"x"y', "b": "1"})]),
        ('a\tb\n"x\ty"\n1\t2\n', [("2", {"a": '"x', "b": 'y"'}), ("3", {"a": "1", "b": "2"})]),
        ('a\tb\n1\t"x\n\n2\t3\n', [("2", {"a": "1", "b": '"x'}), ("4", {"a": "2", "b": "3"})]),
        ('a\tb\n1\t"x\ny"\n2\t3\n', [("2", {"a": "1", "b": "x\ny"}), ("4", {"a": "2", "b": "3"})]),
        ('a\tb\n1\t"x\n', [("2", {"a": "1", "b": '"x'})]),
        ("a,b\tc\n1,2\t3\n", [("2", {"a,b": "1,2", "c": "3"})]),
        ('a\tb\n"1\t2\t3"\n4\t5\n', [("2", "1 columns, where the header has 2"), ("3", {"a": "4", "b": "5"})]),
    ],
)  # fmt: skip
def test_records_of_tsv(tmp_path, content, rows):
    """Quotation marks are text, unless they are around a whole value, or the row has another number of tabs."""
    assert read(tmp_path, "x.tsv", content) == rows


def test_a_quotation_mark_left_open_over_rows(tmp_path):
    """Rows of their own have values that their columns usually hold: repeated ones, or numbers among numbers."""
    usual = [f"{k},red,{k}.5" for k in range(10)]
    # swallowed rows with familiar values in the middle, in front of the end and behind the begin
    rows = [*usual, '10,"red,10.5', "11,red,11.5", '12,red",12.5', *usual]
    found = read(tmp_path, "x.csv", "\n".join(["n,c,x", *rows]) + "\n")
    fault = "a quotation mark open until line 14, over lines that look like rows"
    assert found[10] == ("12", fault)
    assert found[11] == ("13", {"n": "11", "c": "red", "x": "11.5"})
    assert found[12] == ("14", {"n": "12", "c": 'red"', "x": "12.5"})
    assert len(found) == 23 and found[13][0] == "15"
    # a value over several lines that look like nothing known
    rows = [*usual, '10,"one,two', "three,four,five", 'six",12.5', *usual]
    found = read(tmp_path, "x.csv", "\n".join(["n,c,x", *rows]) + "\n")
    text = "one,two\nthree,four,five\nsix"
    assert found[10] == ("12", {"n": "10", "c": text, "x": "12.5"})
    assert found[11][0] == "15" and len(found) == 21


def a_table(tmp_path, *lines):
    (tmp_path / "x.csv").write_text("\n".join(lines) + "\n")
    return table_rows._Table(tmp_path / "x.csv")


def test_values_that_a_column_usually_holds(tmp_path):
    """Nine of ten are numbers; a word is usual if it occurs twice; lines with quotation marks do not count."""
    lines = [f"{k if k else 'one'},{'w' if k in (3, 4) else f'u{k}'},{k % 2}" for k in range(10)]  # fmt: skip
    table = a_table(tmp_path, "n,w,k", *lines, '"a","a","a"', '"a","a","a"', "b,b", "b,b")  # fmt: skip
    (numbers, is_numeric), (words, is_word), (_, of_flags) = table._seen
    assert (is_numeric, is_word, of_flags) == (True, False, True)
    assert numbers["one"] == 1 and words["w"] == 2 and words["a"] == words["b"] == 0
    for column, value, is_usual in (
        (0, " 77 ", True),
        (0, "one", False),
        (0, "x", False),
        (0, "", False),
        (1, "w", True),
        (1, "u3", False),
        (1, "5", False),
        (2, "1", True),
    ):
        assert table._any_familiar([(column, value)]) is is_usual
    assert table._any_familiar([(1, "u1"), (1, "w")])
    assert not table._any_familiar([])
    fewer = a_table(tmp_path, "n,w,k", *lines, "two,x,1")
    assert [is_numeric for _, is_numeric in fewer._seen] == [False, False, True]
    often = a_table(tmp_path, "n,w,k", *lines[1:], *["one,x,1"] * 4)
    assert [is_numeric for _, is_numeric in often._seen] == [False, False, True]


@pytest.mark.parametrize(
    ("taken", "look"),
    [
        # the first line is judged behind the open value, the last one before it
        (['1,"a,2', 'b",3'], True),
        (['x,"a,y', 'b",3'], False),
        (['1,"a,y', '2,b",3'], True),
        (['1,"a,y', 'z,b",3'], False),
        (['1,2,"a', '3,b,c"'], True),
        (['1,2,"a', 'x,y,c"'], False),
        (['"a,x,y', 'b",1,2'], False),
        (['"a,y,1', 'b",x,2'], True),
        (['1,u,"a', 'z,y,7,b"'], False),
        (['1,u,"a', '7,y,z,b"'], True),
        # between them a line has all columns, and one usual value
        (['1,"a,2', "3,x,y", 'z,b",3'], True),
        (['1,"a,2', "u,x,y", 'z,b",3'], False),
        (['1,"a,2', "3,x", 'z,b",3'], False),
        # half of those that can show it is enough
        (['1,"a,2', "u,x,y", "u,x,y", '2,b",3'], True),
        (['1,"a,2', "u,x,y", "u,x,y", 'z,b",3'], False),
    ],
)
def test_lines_of_one_record_that_look_like_rows(tmp_path, taken, look):
    table = a_table(tmp_path, "n,w,x", *(f"{k},w{k},{k}.5" for k in range(10)))
    assert table.look_like_rows(taken) is look


def test_lines_are_taken_put_back_and_counted(tmp_path):
    table = a_table(tmp_path, "a,b", "", "1,2", "3,4", "5,6")
    assert (table.number, table.number_of_next()) == (1, 3)
    assert table._take() == "1,2" and table._take() == "3,4" and table.number == 4
    table.put_back(["1,2", "3,4"])
    assert (table.number, table.number_of_next()) == (2, 3)
    assert [table._peek(k) for k in range(4)] == ["1,2", "3,4", "5,6", None]
    assert [table._take() for _ in range(3)] == ["1,2", "3,4", "5,6"]
    assert table.number == 5 and table.number_of_next() is None
    find = table_rows._find_open_column
    assert find(["a", '"b', "c", ' "d', "e"]) == 3
    assert find(["a", 'b"', "c"]) == 0 and find([]) == 0
    strip = table_rows._strip_quotes
    for value in ('"a', 'a"', '"a"b"', "a", "", '"'):
        assert strip(value) == value
    for value, bare in (('"a"', "a"), ('"a ""b"""', 'a "b"'), ('""', "")):
        assert strip(value) == bare


def test_cells_longer_than_the_parser_of_python_allows(tmp_path):
    long = "x" * 200_000
    found = read(tmp_path, "x.csv", f'a,b\n"{long}, ""y""",1\n')
    assert found == [("2", {"a": f'{long}, "y"', "b": "1"})]


def test_a_record_that_does_not_end_gives_its_lines_back(tmp_path, monkeypatch):
    monkeypatch.setattr(table_rows, "LONGEST_RECORD", 40)
    lines = ["a,b", '1,"x', *(f"{k},yyyyyyy" for k in range(9)), '8,z"']
    found = read(tmp_path, "x.csv", "\n".join(lines) + "\n")
    assert found[0] == ("2", "a quotation mark that is never closed")
    assert found[1:10] == [(f"{k + 3}", {"a": str(k), "b": "y" * 7}) for k in range(9)]
    assert found[10] == ("12", {"a": "8", "b": 'z"'})


# ---- JSON, parquet and messages --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "rows"),
    [
        ("x.jsonl", '\n{"a": 1}\n', [("2", {"a": 1})]),
        ("x.ndjson", '[{"a": 1}]\n{"b": 2}\n', [("1", "'[{\"a\": 1}]'"), ("2", {"b": 2})]),
        ("x.json", '{"b": 2}\n[{"a": 1}]\n', [("1", {"b": 2}), ("2", "'[{\"a\": 1}]'")]),
        ("x.json", '\n\n [\n{"a": 1},\n[2]]', [("row 1", {"a": 1}), ("row 2", "'[2]'")]),
        ("x.jsonl", b'{"a": "\xff"}\n\0\n{"a": 1}\n',
         [("1", "bytes that are not UTF-8"), ("2", "NUL bytes (a binary file, or text in UTF-16)"), ("3", {"a": 1})]),
        ("x.jsonl", '{"a": "\\ud83d\\ude00"}\n{"\\udc00": 1}\n"\\ud800"\n',
         [("1", {"a": "\U0001f600"}), ("2", "half a character (a lone surrogate)"),
          ("3", "half a character (a lone surrogate)")]),
        ("x.json", '[{"a": "\\ud800"}, {"a": "b"}, "\\udfff"]',
         [("row 1", "half a character (a lone surrogate)"), ("row 2", {"a": "b"}),
          ("row 3", "half a character (a lone surrogate)")]),
        ("x.jsonl", "9" * 5000 + "\n", [("1", "an integer of thousands of digits")]),
        ("x.jsonl", "[" * 150_000 + "\n", [("1", "brackets nested too deep")]),
        ("x.jsonl", "{" + "x" * 59 + "\n", [("1", "'{" + "x" * 59 + "'")]),
        ("x.jsonl", "{" + "x" * 60 + "\n", [("1", "'{" + "x" * 59 + "' at character 1")]),
        ("x.jsonl", "7" * 70 + "\n", [("1", "'" + "7" * 60 + "'")]),
        ("x.json", '["t", null, true]', [("row 1", {"text": "t"}), ("row 2", "'None'"), ("row 3", "'True'")]),
    ],
)  # fmt: skip
def test_rows_of_json_and_their_faults(tmp_path, name, content, rows):
    found = read(tmp_path, name, content)
    assert found == rows


def test_an_array_that_is_none_is_refused_as_a_whole(tmp_path):
    cure = "Cure: repair it, or write it as JSON lines, of which --skip-bad can leave single ones out"
    place = tmp_path / "x.json"
    for text, got in (
        ('[{"a": 1}', "'[{\"a\": 1}'"),
        ("[" + '"text", ' * 20 + "oops]", ""),
    ):
        place.write_text(text)
        found = message_of(rows_of, place)
        assert found.startswith(f"expected an array of JSON objects, or one per line, in {place}; got ")  # fmt: skip
        assert found.endswith(cure)
        if got:
            assert f"got {got}. Cure" in found
        else:
            assert f"at character {text.index('oops')}" in found and "oops" in found
    place.write_text("[" * 150_000)
    assert "got brackets nested too deep. Cure" in message_of(rows_of, place)


def test_what_is_expected_of_each_format():
    expected = {
        "x.csv": "rows of a CSV table",
        "x.TSV.gz": "rows of a TSV table",
        "x.json": "an array of JSON objects, or one per line,",
        "x.jsonl.gz": "one JSON object per line",
        "x.ndjson": "one JSON object per line",
        "x.parquet": "a parquet file",
        "x.txt": "readable rows",
    }
    for name, form in expected.items():
        assert table_rows.describe_form(name) == form
        assert table_rows.is_table(Path(name)) is (form != "readable rows")


def test_whole_messages_about_rows_and_columns(tmp_path):
    place = tmp_path / "x.txt"
    place.write_text("a")
    endings = ".csv, .tsv, .json, .jsonl, .ndjson, .parquet"
    assert message_of(rows_of, place) == (
        f"expected a table ending in {endings}; got {place}. "
        f"Cure: write it as one of {endings}, or one of these with .gz"
    )
    place = tmp_path / "x.csv"
    place.write_text("a,b\n1,2\n3\n4,5,6\n")
    assert message_of(table_rows.read_rows_strict, place, "correct the lines") == (
        f"expected rows of a CSV table in {place}; got 2 faulty: line 3: 1 columns, where the header has 2, "
        "line 4: 3 columns, where the header has 2. Cure: correct the lines"
    )
    place.write_text("a,b,b,a,c\n1,2,3,4,5\n")
    assert message_of(rows_of, place) == (
        f"expected a header of different names in {place}; got several columns a, b. "
        "Cure: name every column in the first line"
    )
    place.write_bytes(b"a,\xff,a\n1,2,3\n")
    assert "got bytes that are not UTF-8. Cure: name every column" in message_of(rows_of, place)  # fmt: skip
    require = table_rows.require_column
    assert message_of(require, "tekst", ["text", "id"], "t.csv") == (
        "expected a column 'tekst' in t.csv; got the columns text, id. Cure: did you mean text?"
    )
    assert message_of(require, "tekst", ["text", 3], "t.csv", "clips") == (
        "expected a column 'tekst' for clips in t.csv; got the columns text, 3. Cure: did you mean text?"
    )
    assert require("3", [3], "t.csv") == "3"
    for count, end in ((5, "e"), (6, "e and 1 more"), (8, "e and 3 more")):
        bad = [*"abcdefgh"][:count]
        assert table_rows.list_faulty(bad) == f"{count} faulty: a, b, c, d, {end}"


def test_parquet_is_read_whatever_the_case_of_its_ending(tmp_path):
    table = pa.table({"a": [1, 2], "b": ["x", "y"]})
    parquet.write_table(table, tmp_path / "x.parquet")
    packed = gzip.compress((tmp_path / "x.parquet").read_bytes())
    (tmp_path / "X.PARQUET.GZ").write_bytes(packed)
    both = [("row 1", {"a": 1, "b": "x"}, ""), ("row 2", {"a": 2, "b": "y"}, "")]
    assert rows_of(tmp_path / "X.PARQUET.GZ") == both
    assert rows_of(tmp_path / "X.PARQUET.GZ", column="a")[1] == ("row 2", {"a": 2}, "")
    (tmp_path / "y.parquet").write_bytes(b"nothing of this kind")
    found = message_of(rows_of, tmp_path / "y.parquet")
    assert found.startswith(f"expected a parquet file in {tmp_path / 'y.parquet'}; got ")  # fmt: skip
    assert found.endswith("Cure: write the file again: it is damaged or in another format")  # fmt: skip
