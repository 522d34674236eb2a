"""Rows of tables, local copies and made-up corpora: which line, split and class is which, on a few lines each."""

import gzip
import os

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
