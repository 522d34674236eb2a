"""Documents of tables, folders and single files: which column, file, rule and place, and messages word for word."""

import gzip
import json

import pytest

from anisoscope.data import documents
from anisoscope.data.corpora import CorpusOptions
from anisoscope.data.table_rows import Row
from anisoscope.errors import CorpusError, UsageError


def message_of(error, call, *given, **more):
    with pytest.raises(error) as caught:
        call(*given, **more)
    return str(caught.value)


def write(path, *rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


# ---- single files and folders ----------------------------------------------------------------------------------------


def test_a_file_is_a_table_or_a_text_and_only_tables_have_columns(tmp_path):
    table = write(tmp_path / "t.jsonl", {"a": "x", "text": "y"})
    text = tmp_path / "t.txt"
    text.write_text("one\ntwo\nthree\n")
    read = documents.read_path(table, CorpusOptions(column="a"))
    assert (list(read.documents), read.column) == (["x"], "a")
    few = documents.read_path(text, CorpusOptions(documents="line", limit=2))
    assert list(few.documents) == ["one", "two"]
    message = message_of(
        CorpusError, documents.read_path, text, CorpusOptions(column="a")
    )
    assert message == (
        "expected a table (.csv, .tsv, .json, .jsonl, .ndjson, .parquet) or a hub data set, because --column names "
        f"a column; got {text}. Cure: leave --column out, or name a table"
    )


def test_of_a_parquet_file_one_column_is_read(tmp_path):
    """The other may not even be readable as text."""
    import pandas as pd

    path = tmp_path / "t.parquet"
    pd.DataFrame({"text": [1, 2], "body": ["x", "y"]}).to_parquet(path)
    (row, _) = documents._iter_rows(
        [(0, path)], CorpusOptions(column="body"), documents._CurrentFile()
    )
    assert row.columns == {"body": "x"}
    read = documents.read_path(path, CorpusOptions(column="body"))
    assert list(read.documents) == ["x", "y"]


def test_a_folder_holds_texts_or_tables(tmp_path):
    """Neither or both are refused with their numbers, and so is a column of texts."""
    options = CorpusOptions()
    for name in ("a.txt", "b.md", "c.rst"):
        (tmp_path / name).write_text("x")
    (tmp_path / "p.png").write_bytes(b"")
    (tmp_path / "q.png").write_bytes(b"")
    assert documents._sort_files(tmp_path)[2] == 2
    message = message_of(
        CorpusError, documents.read_path, tmp_path, CorpusOptions(column="c")
    )
    assert message == (
        f"expected a table in {tmp_path}, because --column names a column; got text files. Cure: leave --column out"
    )
    write(tmp_path / "d.jsonl", {"text": "x"})
    message = message_of(CorpusError, documents.read_path, tmp_path, options)
    assert (
        "; got 3 text files, 1 tables and 2 other files. Cure: name one file, "
        in message
    )
    assert message.endswith(
        "or a folder of text files (one document each) or of tables"
    )
    assert message.startswith("expected text files or tables (.txt, .txt.gz, .csv, ")
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "x.png").write_bytes(b"")
    message = message_of(CorpusError, documents.read_path, tmp_path / "none", options)
    assert "got 0 text files, 0 tables and 1 other files" in message


def test_a_single_text_of_a_folder_is_split_by_its_own_marks(tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo\nthree\n")
    read = documents.read_path(tmp_path, CorpusOptions())
    assert (list(read.documents), read.unit, read.owner) == (
        ["one", "two", "three"],
        "line",
        None,
    )
    (tmp_path / "b.txt").write_text("four\nfive\n")
    read = documents.read_path(tmp_path, CorpusOptions())
    assert list(read.documents) == ["one\ntwo\nthree\n", "four\nfive\n"]
    assert read.unit == "document" and read.owner == [0, 1]


def test_files_without_text_are_counted_by_file(tmp_path):
    """Two of four are empty, one cannot be read."""
    for name, data in (("a", b"x"), ("b", b" \n"), ("c", b"\xff"), ("d", b"")):
        (tmp_path / f"{name}.txt").write_bytes(data)
    read = documents.read_path(tmp_path, CorpusOptions(skip_bad=True))
    assert (list(read.documents), read.owner) == (["x"], [0])
    assert (read.empty, read.skipped) == (2, 1)


def test_a_damaged_table_of_a_folder_costs_only_its_own_rows(tmp_path):
    write(tmp_path / "a.jsonl", {"text": "x"}, {"text": "y"})
    (tmp_path / "b.jsonl.gz").write_bytes(b"not gzip")
    (tmp_path / "c.jsonl.gz").write_bytes(
        gzip.compress(b'{"text": "z"}\n{"note": 1}\n')
    )
    read = documents.read_path(tmp_path, CorpusOptions(skip_bad=True))
    assert list(read.documents) == ["x", "y", "z"] and read.owner == [0, 0, 2]
    assert read.skipped == 2, "the damaged file, and a row without text"
    with pytest.raises(CorpusError, match=r"a gzip file in .*b\.jsonl\.gz"):
        documents.read_path(tmp_path, CorpusOptions())
    (tmp_path / "b.jsonl.gz").unlink()
    message = message_of(CorpusError, documents.read_path, tmp_path, CorpusOptions())
    assert message == (
        f"expected text in column 'text' of {tmp_path}; got c.jsonl.gz, line 2 without that column. "
        "Cure: choose another --column, or pass --skip-bad"
    )


# ---- files that are read apart ---------------------------------------------------------------------------------------


def test_all_tables_of_a_folder_are_read_by_one_column(tmp_path):
    """The first row that has columns chooses it, whatever file it is in; the user's choice goes first."""
    files = [
        write(tmp_path / "a.jsonl", {}),
        write(tmp_path / "b.jsonl", {"sentence": "x", "note": "y"}),
        write(tmp_path / "c.jsonl", {"text": "z", "sentence": "w", "note": "v"}),
    ]

    def fixed(files=files, **given):
        return documents.fix_column(tmp_path, files, CorpusOptions(**given)).column

    assert fixed() == "sentence" and fixed(column="note") == "note"
    assert fixed(files[2:]) == "text" and fixed(files[:1]) is None
    kept = documents.fix_column(
        tmp_path, files, CorpusOptions(split="s", skip_bad=True)
    )
    assert kept == CorpusOptions(split="s", skip_bad=True, column="sentence")
    message = message_of(CorpusError, fixed, column="sentnce")
    assert message == (
        f"expected a column 'sentnce' in {tmp_path}; got the columns sentence, note. Cure: did you mean sentence?"
    )
    text = tmp_path / "t.txt"
    text.write_text("x")
    assert fixed([text], column=None) is None


def test_a_file_that_is_read_apart_keeps_its_number(tmp_path):
    """Its documents are what they are in the whole folder: each text one, each row one, titles or not."""
    text = tmp_path / "t.txt"
    text.write_text("one\n\ntwo\n")
    read = documents.read_separate_file(tmp_path, 5, text, CorpusOptions())
    assert (list(read.documents), read.owner) == (["one\n\ntwo\n"], [5])
    table = write(
        tmp_path / "t.jsonl", *({"text": t} for t in (" = A = ", "x", " ", "y"))
    )
    read = documents.read_separate_file(tmp_path, 7, table, CorpusOptions())
    assert (list(read.documents), read.owner) == ([" = A = ", "x", "y"], [7] * 3)
    assert (read.how, read.empty, read.column) == ("rows", 1, "text")
    write(table, {"other": "x", "more": "y"})
    message = message_of(
        CorpusError, documents.read_separate_file, tmp_path, 7, table, CorpusOptions()
    )
    assert message == (
        f"expected a text column in {tmp_path}; got the columns other, more. Cure: choose one with --column"
    )


def test_tables_whose_first_text_is_a_title_are_not_read_apart(tmp_path):
    """Empty rows before it decide nothing, also at the end of a file."""
    write(tmp_path / "a.jsonl", {"text": " "}, {"text": ""})
    title = write(tmp_path / "b.jsonl", {"text": " = A = "}, {"text": "x"})
    assert documents.list_separate_files(tmp_path, CorpusOptions()) == []
    write(title, {"text": "x"}, {"text": " = A = "})
    found = documents.list_separate_files(tmp_path, CorpusOptions())
    assert [file.name for file in found] == ["a.jsonl", "b.jsonl"]
    assert documents.list_texts_or_tables(tmp_path) == found
    (tmp_path / "c.md").write_text("x")
    assert [f.name for f in documents.list_texts_or_tables(tmp_path)] == ["c.md"]


# ---- rows ------------------------------------------------------------------------------------------------------------


def read_rows(*texts, options=None, **how):
    rows = (Row(f"line {k}", {"text": text}) for k, text in enumerate(texts, 1))
    return documents.read_rows(rows, options or CorpusOptions(), "t", **how)


def test_articles_in_rows_begin_behind_empty_rows():
    """The first row that is not empty decides; a limit counts articles."""
    lines = [
        "",
        " ",
        " = A = ",
        "",
        "x",
        "",
        " = B = ",
        "",
        "y",
        "",
        " = C = ",
        "",
        "z",
    ]
    every = read_rows(*lines)
    assert (every.how, every.unit, len(every.documents)) == ("titles", "article", 3)
    assert list(every.documents)[1] == "= B = \n\ny"
    two = read_rows(*lines, options=CorpusOptions(limit=2))
    assert list(two.documents) == list(every.documents)[:2]
    rows = read_rows("", "x", " = A = ", "y")
    assert (rows.how, rows.unit, rows.empty, rows.skipped) == ("rows", "row", 1, 0)
    assert list(rows.documents) == ["x", " = A = ", "y"]


def test_a_limit_of_rows_does_not_count_empty_ones():
    asked = []

    def rows():
        for k, text in enumerate(["a", " ", "", "b", "c", "d"]):
            asked.append(k)
            yield Row("line", {"text": text})

    read = documents.read_rows(rows(), CorpusOptions(limit=2), "t")
    assert list(read.documents) == ["a", "b"] and read.empty == 2
    assert asked == [0, 1, 2, 3], "no row after the last is read"


def test_rows_as_running_text_end_with_one_line_break():
    read = read_rows("a", "b\n", "c\n\n", options=CorpusOptions(documents="tokens:50"))
    assert list(read.documents) == ["a\n", "b\n", "c\n\n"]
    assert (read.block, read.unit, read.how) == (50, "block", "blocks of 50 tokens")
    assert not read.guessed and read.owner is None
    for rule in ("file", "blank-line", "line"):
        message = message_of(
            UsageError, read_rows, "a", options=CorpusOptions(documents=rule)
        )
        assert message == (
            f"expected no --documents but tokens:N with the table t; got {rule}. "
            "Cure: leave --documents out: every row is a document"
        )


def test_rows_that_cannot_be_read_are_counted_even_if_no_other_is_left():
    bad = [
        Row("line 1", {}, "cut off"),
        Row("line 2", {}, "cut off"),
        Row("line 3", {}),
    ]
    skipping = CorpusOptions(skip_bad=True)
    read = documents.read_rows(iter(bad), skipping, "t.csv")
    assert (list(read.documents), read.how, read.skipped) == ([], "rows", 2)
    good = Row("line 4", {"text": "x"})
    read = documents.read_rows(iter([bad[0], good, bad[1]]), skipping, "t.csv")
    assert (list(read.documents), read.skipped, read.column) == (["x"], 2, "text")
    message = message_of(
        CorpusError, documents.read_rows, iter(bad), CorpusOptions(), "t.csv"
    )
    assert message == (
        "expected rows of a CSV table in t.csv; got line 1: cut off. Cure: repair the row, or pass --skip-bad"
    )
    rows = iter([good, Row("line 5", {"text": {"a": 1}})])
    read = documents.read_rows(rows, skipping, "t.csv")
    assert list(read.documents) == ["x"]
    rows = iter([good, Row("line 5", {"text": {"a": 1}})])
    message = message_of(
        CorpusError,
        lambda: list(documents.read_rows(rows, CorpusOptions(), "t.csv").documents),
    )
    assert message == (
        "expected text in column 'text' of t.csv; got line 5: dict. "
        "Cure: choose another --column, or pass --skip-bad"
    )


def test_the_column_is_chosen_once():
    """The first row has no `text`: a later one has, and is read by the column of the first."""
    rows = [Row("1", {"body": "a"}), Row("2", {"text": "no", "body": "b"})]
    read = documents.read_rows(iter(rows), CorpusOptions(), "t")
    assert list(read.documents) == ["a", "b"] and read.column == "body"


@pytest.mark.parametrize(
    ("row", "column"),
    [
        ({"body": "a", "text": "b"}, "text"),
        ({"words": "a", "tokens": "b"}, "tokens"),
        ({"passage": "a", "sentence": "b", "article": "c"}, "sentence"),
        ({"title": "words", "year": "1961"}, "title"),
        ({"year": "1961"}, "year"),
        ({"title": "words", "n": 3}, "title"),
        ({"title": "words", "turns": [{"value": "x"}]}, "turns"),
        ({"turns": [{"value": "x"}], "chat": [{"value": "x"}]}, "chat"),
        ({"title": "words", "chat": "later"}, None),
        ({"title": "words", "chat": ["later"]}, "title"),
        ({"a": "1", "b": "2"}, None),
        ({"a": 1, "b": 2}, None),
        ({"a": "one", "b": "two"}, None),
    ],
)
def test_the_likeliest_column_is_the_one_of_text(row, column):
    if column is not None:
        assert documents.choose_column(row, None, "t") == column
        return
    message = message_of(CorpusError, documents.choose_column, row, None, "t")
    assert message == (
        f"expected a text column in t; got the columns {', '.join(row)}. Cure: choose one with --column"
    )


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"content": "a", "text": "b", "value": "c", "utterance": "d"}, "a"),
        ({"utterance": "d", "text": "b", "value": "c"}, "c"),
        ({"utterance": "d", "text": "b"}, "b"),
        ({"utterance": "d"}, "d"),
        ({"content": None, "text": "b"}, ""),
        ({"content": [{"text": "a"}, {"text": ""}, {"text": 7}, 3]}, "a\n7"),
        ({"content": []}, ""),
    ],
)
def test_the_text_of_a_message_is_under_its_first_key(message, text):
    assert documents.join_chat([message]) == text
    assert documents.join_chat([message, {"content": "end"}]) == (
        f"{text}\nend" if text else "end"
    )


def test_what_a_cell_of_text_may_hold():
    for value, text in (
        (None, ""),
        ("", ""),
        ("a b", "a b"),
        (["a", "b"], "a b"),
        ([], ""),
        ([{"content": "a"}, {"content": "b"}], "a\nb"),
        ([1, 2], None),
        (7, None),
    ):
        assert documents._find_text({"c": value}, "c") == text
    assert documents._find_text({"d": "x"}, "c") is None


def test_a_table_of_texts_is_known_by_its_columns(tmp_path):
    """A damaged first row decides nothing, and other columns may be there too."""
    path = tmp_path / "t.jsonl"
    for lines, has in (
        ('{"n": 1, "sentence": "x"}\n', True),
        ('{broken\n{"n": 1, "body": "x"}\n', True),
        ('{broken\n{"n": 1}\n', False),
        ('{"n": 1}\n{"text": "x"}\n', False),
        ("{broken\n", False),
    ):
        path.write_text(lines)
        assert documents.has_text(path) is has


def test_an_iterator_loses_no_item():
    rows = [{"n": 1, "text": "a"}, {"n": 2, "text": "b"}]
    assert documents.list_if_texts(iter(rows)) == rows
    numbers = [{"n": 1}, {"n": 2}]
    left = documents.list_if_texts(iter(numbers))
    assert not isinstance(left, list) and list(left) == numbers
    assert documents.list_if_texts(iter(["a", "b"])) == ["a", "b"]
