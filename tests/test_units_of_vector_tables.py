"""Vectors in tables and in JSON: which cell, column, row group and list is which, on a few numbers each."""

import base64
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import feather, ipc, parquet

from anisoscope.data import vector_json, vector_tables
from anisoscope.data.vector_files import open_vectors
from anisoscope.data.vector_json import read_json_value, read_json_vectors
from anisoscope.data.vector_tables import read_arrow, read_arrow_table, read_delimited
from anisoscope.errors import CorpusError

X = np.arange(24.0).reshape(8, 3) + 0.25


# ---- tables of arrow -------------------------------------------------------------------------------------------------


def write_all(folder, table):
    """The same table in every format of arrow: its paths."""
    parquet.write_table(table, folder / "x.parquet", row_group_size=3)
    feather.write_feather(table, folder / "x.feather", chunksize=3)
    feather.write_feather(table, folder / "old.feather", version=1)
    with ipc.new_file(folder / "x.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=3)
    with ipc.new_stream(folder / "stream.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=3)
    return sorted(folder.iterdir())


def test_every_format_of_arrow_has_the_same_columns(tmp_path):
    frame = pd.DataFrame({"name": [*"abcdefgh"], "x": X[:, 0], "y": X[:, 1]})
    table = pa.Table.from_pandas(frame.set_index("name"))
    paths = write_all(tmp_path, table)
    assert len(paths) == 5
    for path in paths:
        content = read_arrow(path)
        assert set(content.columns) == {"x", "y", "name"}, path
        np.testing.assert_array_equal(content.columns["y"], X[:, 1])
        # the first version of feather keeps no description
        known = () if path.name == "old.feather" else ("name",)
        assert content.index == known, path


@pytest.fixture
def streamed(tmp_path, monkeypatch):
    """Two columns of vectors in row groups of 3, 3, 2 rows, read two rows at a time, between others; and its path."""
    monkeypatch.setattr(vector_tables, "PIECE", 2)
    monkeypatch.setattr(vector_tables, "LARGE", 100)
    table = pa.table(
        {
            "id": list(range(8)),
            "first": X.tolist(),
            "small": X[:, :1].tolist(),
            "second": pa.array((X + 100).astype("f4").tolist(), pa.list_(pa.float32())),
            "whole": [[k] * 20 for k in range(8)],
            "kind": [*"ababcdcd"],
        }
    )
    parquet.write_table(table, tmp_path / "x.parquet", row_group_size=3)
    return tmp_path / "x.parquet"


def test_large_columns_stay_on_the_disk_in_their_places(streamed, monkeypatch):
    content = read_arrow(streamed)
    assert list(content.columns) == ["id", "first", "small", "second", "whole", "kind"]
    lazy = {k for k, v in content.columns.items() if isinstance(v, vector_tables.StreamedVectors)}  # fmt: skip
    # 192 bytes; 64; 96: not more than 100; whole numbers never
    assert lazy == {"first"}
    monkeypatch.setattr(vector_tables, "LARGE", 95)
    found = read_arrow(streamed).columns
    assert isinstance(found["second"], vector_tables.StreamedVectors)
    assert (found["second"].shape, found["second"].dtype) == ((8, 3), np.float32)
    np.testing.assert_array_equal(np.asarray(found["second"]), X + 100)
    np.testing.assert_array_equal(np.asarray(found["first"]), X)
    assert found["kind"].tolist() == [*"ababcdcd"] and len(found["first"]) == 8
    opened = open_vectors(streamed, columns="second", label_column="kind")
    rows = opened.block("second", np.arange(2, 7))[:, 0].numpy()
    np.testing.assert_array_equal(rows, X[2:7] + 100)


def test_rows_of_a_column_on_the_disk_are_read_in_any_order(streamed):
    """Every pair of slices, one after the other: ahead, back, overlapping, across row groups."""
    slices = [slice(a, b) for a in range(8) for b in range(a + 1, 9)]
    column = read_arrow(streamed).columns["first"]
    for one in slices[::3]:
        for two in slices[::2]:
            np.testing.assert_array_equal(column[one], X[one])
            np.testing.assert_array_equal(column[two], X[two])
    assert column[8:8].shape == (0, 3)


def test_no_more_rows_are_held_than_were_asked_for(streamed):
    column = read_arrow(streamed).columns["first"]
    assert column[0:1].tolist() == X[:1].tolist()
    assert column[7:8].tolist() == X[7:].tolist()
    assert column._first == 7 and len(column._held) == 1
    assert column[3:4].tolist() == X[3:4].tolist()
    assert column._first == 3


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[1.0, 2]] * 4 + [None] + [[1.0, 2]] * 3, None),
        ([[1.0, 2]] * 4 + [[1.0]] + [[1.0, 2, 3]] + [[1.0, 2]] * 2, "rows 5 to 6"),
    ],
)
def test_rows_of_other_lengths_are_named_with_their_numbers(tmp_path, monkeypatch, rows, message):  # fmt: skip
    monkeypatch.setattr(vector_tables, "PIECE", 2)
    monkeypatch.setattr(vector_tables, "LARGE", 10)
    parquet.write_table(pa.table({"x": rows}), tmp_path / "x.parquet")
    content = read_arrow(tmp_path / "x.parquet")
    if message is None:
        assert content.unusable == {"x": "1 rows without a list"}
        return
    with pytest.raises(CorpusError, match=message):
        np.asarray(content.columns["x"])


def test_columns_of_every_type_of_arrow():
    """Decimals, dictionaries, booleans with and without gaps, records, lists of lists, printed lists."""
    table = pa.table(
        {
            "decimal": pa.array([1.5, 2.5]).cast(pa.decimal128(5, 2)),
            "coded": pa.array(["b", "a"]).dictionary_encode(),
            "flag": [True, False],
            "gap": [True, None],
            "nothing": pa.nulls(2),
            "record": [{"label": "x", "in": {"v": [1.0, 2]}}, {"label": "y", "in": {"v": [3.0, 4]}}],
            "tokens": [[[1.0, 2], [3, 4]], [[5.0, 6]]],
            "even": [[[1.0, 2]], [[5.0, 6]]],
            "printed": ["[0.5, 1]", "array([2.5 3.5], dtype=float32)"],
            "cut": ["[0.5, 1]", "[0.5 ... 1]"],
            "ragged": ["[0.5, 1]", "[0.5]"],
            "plain": ["[see]", "other"],
            "missing": [None, "[1 2]"],
            "words": pa.array([["a"], ["b"]]),
            "unlike": [[1.0], [1.0, 2]],
            "empty": pa.array([[], []], pa.list_(pa.float64())),
            "deep": [[[[1.0]]], [[[1.0]]]],
            "fixed": pa.FixedSizeListArray.from_arrays(pa.array([1.0, 2, 3, 4]), 2),
        }
    )  # fmt: skip
    content = read_arrow_table(table)
    found = {k: np.asarray(v).tolist() for k, v in content.columns.items()}
    assert found == {
        "decimal": [1.5, 2.5],
        "coded": ["b", "a"],
        "flag": [True, False],
        "gap": [True, None],
        "record.label": ["x", "y"],
        "record.in.v": [[1, 2], [3, 4]],
        "tokens": [[[1, 2], [3, 4]], [[5, 6], [0, 0]]],
        "even": [[[1, 2]], [[5, 6]]],
        "printed": [[0.5, 1], [2.5, 3.5]],
        "plain": ["[see]", "other"],
        "fixed": [[1, 2], [3, 4]],
    }
    assert {k: v.tolist() for k, v in content.masks.items()} == {"tokens": [[True, True], [True, False]]}  # fmt: skip
    assert content.unusable == {
        "nothing": "empty",
        "cut": "lists cut short when they were printed (row 2: …)",
        "ragged": "lists of 1 to 2 numbers",
        "missing": "lists of 0 to 2 numbers",
        "words": "lists of string",
        "unlike": "lists of 1 to 2 numbers",
        "empty": "empty lists",
        "deep": "lists in lists in lists",
    }


def test_what_pandas_says_of_its_index():
    def table(index):
        metadata = {b"pandas": json.dumps({"index_columns": index}).encode()}
        columns = {"a": [1.5], "b": [2.5], "__index_level_0__": [3]}
        return pa.table(columns).replace_schema_metadata(metadata)

    assert read_arrow_table(table(["b"])).index == ("__index_level_0__", "b")
    assert read_arrow_table(table([{"kind": "range"}])).index == ("__index_level_0__",)
    assert read_arrow_table(table(["__index_level_0__"])).index == (
        "__index_level_0__",
    )
    for wrong in (["gone"], [3], ["b", 3]):
        with pytest.raises(ValueError, match="what it says of its columns is damaged"):
            read_arrow_table(table(wrong))


# ---- tables of text --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("x,y\n.5,1\n1.5,2\n", {"x": [0.5, 1.5], "y": [1, 2]}),
        ("x, y\n.5, 1\n1.5, 2\n", {"x": [0.5, 1.5], "y": [1, 2]}),
        ("x;y\n0,5;1\n1,5;2\n", {"x": [0.5, 1.5], "y": [1, 2]}),
        ("x\ty\n0,5\t1\n1,5\t2\n", {"x": [0.5, 1.5], "y": [1, 2]}),
        ("x|y\n.5|1\n1.5|2\n", {"x": [0.5, 1.5], "y": [1, 2]}),
        ("x y\n.5   1\n1.5  2\n", {"x": [0.5, 1.5], "y": [1, 2]}),
        ("# made\n# x y\n.5 1\n1.5 2\n", {"x": [0.5, 1.5], "y": [1, 2]}),
        ("# x y z\n.5 1\n1.5 2\n", {"0": [0.5, 1.5], "1": [1, 2]}),
        ("# x x\n.5 1\n1.5 2\n", {"0": [0.5, 1.5], "1": [1, 2]}),
        ("# 3 x\n.5 1\n1.5 2\n", {"0": [0.5, 1.5], "1": [1, 2]}),
        ("x,y\n.5,\n1.5,nan\n", {"x": [0.5, 1.5], "y": [np.nan, np.nan]}),
        ("x,y\n.5,NA\n1.5,3\n", {"x": [0.5, 1.5], "y": [np.nan, 3]}),
        ("w x\na .5\nb 1.5\n", {"w": ["a", "b"], "x": [0.5, 1.5]}),
        ('w,x\n"a, b",.5\nc,1.5\n', {"w": ["a, b", "c"], "x": [0.5, 1.5]}),
        ("x,v\n1,\"[.5, 1]\"\n2,\"[1.5,\n 2]\"\n", {"x": [1, 2], "v": [[0.5, 1], [1.5, 2]]}),
    ],
)  # fmt: skip
def test_separators_headers_and_decimal_commas(tmp_path, text, columns):
    (tmp_path / "x.csv").write_text(text)
    content = read_delimited(tmp_path / "x.csv")
    found = {k: np.asarray(v).tolist() for k, v in content.columns.items()}
    assert list(found) == list(columns)
    for name, values in columns.items():
        if isinstance(values[0], str):
            assert found[name] == values
        else:
            np.testing.assert_array_equal(found[name], values)


def test_a_table_of_tabs_is_one_by_its_ending(tmp_path):
    for ending, columns in ((".tsv", ["a,b,c", "d"]), (".csv", ["a", "b", "c\td"])):
        (tmp_path / f"x{ending}").write_text("a,b,c\td\n1,2,3\t5\n1,2,4\t6\n")
        content = read_delimited(tmp_path / f"x{ending}")
        assert list(content.columns) == columns


@pytest.mark.parametrize(
    ("text", "notes", "first", "named"),
    [
        ("x,y\n.5,1\n", ["header in line 1"], 2, True),
        ("# a\n# b\nx,y\n.5,1\n", ["header in line 3", "2 comment lines skipped"], 4, True),
        (".5,1\n.5,2\n", ["no header"], 1, False),
        ("# x,y\n.5,1\n.5,2\n", ["no header", "names in line 1, a comment"], 2, True),
        ("# a\n\n# x,y\n.5,1\n.5,2\n",
         ["no header", "names in line 3, a comment", "2 comment lines skipped"], 4, True),
        ("# a\n.5,1\n.5,2\n", ["no header", "1 comment line skipped"], 2, False),
        ("# a\n# x,y\n.5,1\n.5,2\n",
         ["no header", "names in line 2, a comment", "1 comment line skipped"], 3, True),
    ],
)  # fmt: skip
def test_what_is_named_of_the_first_lines(tmp_path, text, notes, first, named):
    (tmp_path / "x.csv").write_text(text)
    content = read_delimited(tmp_path / "x.csv")
    assert content.notes == notes
    assert (content.first_line, content.named) == (first, named)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"rows of numbers in .*x.csv; got none"),
        ("# only\n\n", r"rows of numbers in .*; got none"),
        ("x,y\n", r"got only a header\. Cure: write the vectors below it"),
        ("x,x,y,y\n1.5,2,3,4\n", r"got several columns x, y\."),
        ("1 2\n.5 1\n1.5\n", r"2 values in every line of .*; got 1 in line 3"),
        ("x,y\n.5,1\n" + "1.5,2\n" * 150 + "word,3\n", r"a table of numbers in .*word"),
        ("x,y\n.5,1\n1.5,2,3\n", r"a table of numbers in .*; got .*3"),
        ("3,9,4\n1,2,3\n4.5,5,6.5\n", None),
        ("3,9,4\n1.5,2.5,3.5\n4.5,5.5,6.5\n", r"got a first line of whole numbers \(3, 9, 4 …\)"),
        ("0,1,2,3,4,5\n" + "7,7,7,7,7,7\n" * 2, r"whole numbers \(0, 1, 2, 3, 4 …\), which may"),
    ],
)  # fmt: skip
def test_tables_that_cannot_be_read_or_in_two_ways(tmp_path, text, message):
    (tmp_path / "x.csv").write_text(text)
    if message is None:
        content = read_delimited(tmp_path / "x.csv")
        assert [len(column) for column in content.columns.values()] == [3] * 3
        return
    with pytest.raises(CorpusError, match=message):
        read_delimited(tmp_path / "x.csv")


def test_a_line_that_is_no_text_is_named(tmp_path):
    (tmp_path / "x.csv").write_bytes(b"x,y\n.5,1\n\xff\xfe,2\n")
    with pytest.raises(CorpusError, match=r"UTF-8 text in .*in line 3"):
        read_delimited(tmp_path / "x.csv")


def test_whole_numbers_keep_their_digits_and_become_decimals_if_they_must(tmp_path):
    large = 2**53 + 1
    body = "".join(f"{large + k},{k}.5,{k}\n" for k in range(150))
    (tmp_path / "x.csv").write_text(f"id,x,y\n{body}7,.5,1.5\n")
    columns = read_delimited(tmp_path / "x.csv").columns
    assert columns["id"].tolist()[:2] == [large, large] or columns["id"][0] == large
    assert columns["y"].tolist()[-2:] == [149, 1.5]
    spaced = vector_tables._parse_cells
    assert spaced(("1", "-2", "+3")).dtype == np.int64
    assert spaced(("1", "2.5")).tolist() == [1, 2.5]
    assert spaced(("1", "a")).tolist() == ["1", "a"]
    assert spaced((str(2**70), "1")).dtype == object


def test_shares_of_numbers_and_columns_choose_the_separator():
    rate = vector_tables._rate_separator
    body = ["w,x;y", "a,.5;1", "b,1.5;2"]
    assert rate(body, ",") == (0.0, 2) and rate(body, ";") == (0.5, 2)
    assert rate(body, "|") == (0.0, 0)
    # the first line may be shorter; half of the rest must be as long
    assert rate(["x", "1,2", "3,4"], ",") == (1.0, 2)
    assert rate(["x", "1,2", "3", "4"], ",") == (0.0, 0)
    assert rate(["x", "1,2", "3"], ",") == (1.0, 2)
    assert rate(["1,a"], ",") == (0.5, 2)


def test_types_of_columns_are_guessed_by_their_filled_cells():
    rows = [["1", "1,5", "", "a", "-3"], ["2", " 7 ", " ", "1", "4"], ["3"]]
    names = [*"uvwxy"]
    assert vector_tables._guess_types(names, rows, True) == (["u", "y"], ["v"])
    assert vector_tables._guess_types(names, rows, False)[0] == ["u", "y"]
    assert vector_tables._list_filled_cells(rows, 1) == ["1,5", "7"]


def test_missing_words_are_missing_in_every_spelling(tmp_path):
    lines = "".join(f"{word},{k}.5\n" for k, word in enumerate(vector_tables.MISSING))
    (tmp_path / "x.csv").write_text(f"x,y\n1.5,1\n{lines}")
    columns = read_delimited(tmp_path / "x.csv").columns
    assert np.isnan(columns["x"]).tolist() == [False] + [True] * len(vector_tables.MISSING)  # fmt: skip


# ---- JSON ------------------------------------------------------------------------------------------------------------


def columns_of(value):
    content = read_json_value(value, "x.json")
    return {k: np.asarray(v).tolist() for k, v in content.columns.items()}, content


@pytest.mark.parametrize(
    ("value", "columns"),
    [
        ([[1.5, 2], [3, 4]], {"vectors": [[1.5, 2], [3, 4]]}),
        ({"data": [{"index": 0, "embedding": [1.5, 2]}, {"index": 1, "embedding": [3, 4]}], "usage": {"n": 7}},
         {"embedding": [[1.5, 2], [3, 4]], "usage.n": [7, 7], "index": [0, 1]}),
        ({"ids": ["a", "b"], "embeddings": [[1.5, 2], [3, 4]], "scores": [8, 9]},
         {"embeddings": [[1.5, 2], [3, 4]], "ids": ["a", "b"], "scores": [8, 9]}),
        ({"ids": ["a", "b", "c"], "embeddings": [[1.5, 2], [3, 4]], "texts": ["x", "y"]},
         {"embeddings": [[1.5, 2], [3, 4]], "texts": ["x", "y"]}),
        ({"n": ["a", "b"], "m": ["c"], "long": [[1.5, 2], [3, 4]], "short": [[5.5, 6]]},
         {"long": [[1.5, 2], [3, 4]], "n": ["a", "b"]}),
        ([{"v": [1, None], "k": True}, {"v": [3, 4.5], "k": None}],
         {"v": [[1, np.nan], [3, 4.5]], "k": [True, False]}),
        ([None, {"v": [1.5, 2]}, {"v": [3, 4]}], {"v": [[1.5, 2], [3, 4]]}),
        ([{"a": 1, "b": 2.5}, {"a": 3, "b": None, "c": "x"}],
         {"a": [1, 3], "b": [2.5, np.nan], "c": [None, "x"]}),
        ({"a": {"0": 1.5, "1": 2}, "b": {"0": 3, "1": 4}}, {"a": [1.5, 2], "b": [3, 4]}),
        ({"r": {"v": [1.5, 2]}, "s": {"v": [3, 4]}}, {"v": [[1.5, 2], [3, 4]], "key": ["r", "s"]}),
        ({"r": {"dim_0": 1.5, "dim_1": 2}, "s": {"dim_0": 3, "dim_1": 4}},
         {"key": ["r", "s"], "dim_0": [1.5, 3], "dim_1": [2, 4]}),
        ({"columns": ["a", 5], "data": [[1.5, 2], [3, 4]], "index": [0, 1]}, {"a": [1.5, 3], "5": [2, 4]}),
        ([{"token_states": [[1.5, 2], [3, 4]]}, {"token_states": [[5, 6]]}],
         {"token_states": [[[1.5, 2], [3, 4]], [[5, 6], [0, 0]]]}),
        ([{"embeddings": [[1.5, 2], [3, 4]], "k": 7}, {"embeddings": [[5, 6]], "k": 8}],
         {"embeddings": [[1.5, 2], [3, 4], [5, 6]], "k": [7, 7, 8]}),
        ([[[1.5, 2], [3, 4]], [[5, 6], [7, 8]]], {"vectors": [[[1.5, 2], [3, 4]], [[5, 6], [7, 8]]]}),
        ([[[1.5, 2]], [[3, 4]]], {"vectors": [[1.5, 2], [3, 4]]}),
    ],
)  # fmt: skip
def test_where_vectors_and_what_belongs_to_them_lie_in_json(value, columns):
    found, _ = columns_of(value)
    assert list(found) == list(columns)
    for name, values in columns.items():
        if any(isinstance(value, str) for value in values):
            assert found[name] == values
        else:
            np.testing.assert_array_equal(found[name], values)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": [1.5, 2], "b": [3, 4]}, "got 2 lists of 2 numbers, which may be rows"),
        ({"0": {"0": 1.5}, "1": {"0": 2}}, "objects inside an object"),
        ({"a": {"x": 1.5, "y": 2}, "b": {"x": 3, "y": 4}}, "objects inside an object"),
    ],
)
def test_json_that_can_be_read_in_two_ways(value, message):
    with pytest.raises(
        CorpusError, match=rf"one way to read x.json; .*{message}|{message}"
    ):
        read_json_value(value, "x.json")


def test_json_of_rows_or_columns_that_says_which():
    """Lists of unlike lengths, a name of vectors, lists inside a list: no doubt."""
    for value, names in (
        ({"a": [1.5, 2], "b": [3, 4, 5]}, {"a", "b"}),
        ({"embedding": [1.5, 2], "b": [3, 4]}, {"embedding", "b"}),
        ({"a": [[1.5, 2], [1, 2]], "b": [[3, 4], [3, 5]]}, {"a", "b"}),
        ([{"a": [1.5, 2], "b": [3, 4]}], {"a", "b"}),
    ):
        found, content = columns_of(value)
        assert found.keys() | content.unusable.keys() == names


def test_keys_of_vectors_in_base64_and_no_others():
    coded = base64.b64encode(np.array([1.5, 2], "<f4").tobytes()).decode()
    long = base64.b64encode(np.arange(17, dtype="<f4").tobytes()).decode()
    for key, is_vector in (("embedding", True), ("base64", True), ("vector", True), ("text", False)):  # fmt: skip
        found, _ = columns_of([{key: coded, "n": 1}, {key: coded, "n": 2}])
        assert found[key] == ([[1.5, 2]] * 2 if is_vector else [coded, coded])
    found, _ = columns_of({"embedding": [long, long]})
    assert np.shape(found["embedding"]) == (2, 17)
    assert vector_json._is_nested(["a" * 65]) is False
    short = base64.b64encode(np.arange(12, dtype="<f4").tobytes()).decode()
    assert len(short) == 64 and vector_json._is_nested([short]) is False
    assert vector_json._is_nested([None, [1]]) and not vector_json._is_nested([None])


def test_numbers_of_json_become_arrays_or_stay_what_they_are():
    column = vector_json._make_column
    assert column([True, None, False]).tolist() == [True, False, False]
    assert column([True, 1]).dtype == object
    assert column([None, None]).tolist() == [None, None]
    assert column([1, 2]).dtype.kind == "i"
    np.testing.assert_array_equal(column([1, None]), [1, np.nan])
    assert column([1, "a"]).tolist() == [1, "a"]
    large = 2**70
    assert vector_json._to_numbers([large, 1]).tolist() == [float(large), 1]
    assert vector_json._to_numbers([0.5, True]).tolist() == [0.5, 1]
    assert vector_json._to_numbers([True, 0.5]) is None
    assert vector_json._to_numbers([[1, 2], [3, 4]]) is None
    assert vector_json._to_numbers([10**400, 1]) is None


def test_sequences_of_whole_numbers_and_of_unlike_types():
    _, content = columns_of([{"tokens": [[1, 2], [3, 4]]}, {"tokens": [[5, 6]]}])
    assert content.columns["tokens"].dtype.kind == "i"
    assert content.masks["tokens"].tolist() == [[True, True], [True, False]]
    _, content = columns_of({"a": [{"tokens": [[1.5], [2]]}, {"tokens": [[3], [4]]}]})
    assert content.masks == {} and content.columns["tokens"].shape == (2, 2, 1)
    _, content = columns_of([{"v": [1, 2]}, {"v": [1, 2, 3]}, {"v": [1]}])
    assert content.unusable == {"v": "lists of 1 to 3 numbers"}
    _, content = columns_of({"q": [{"v": [1, 2]}], "d": [{"v": [1, 2, 3]}, {"v": [4, 5, 6]}]})  # fmt: skip
    assert content.unusable == {"q[].v": "1 of them, but 2 of d[].v"}


@pytest.mark.parametrize(
    ("name", "text", "note"),
    [
        ("x.json", "[[1, 2], [3, 4]]", "JSON"),
        ("x.json", "[1, 2]\n[3, 4]\n", "JSON lines"),
        ("x.jsonl", "[1, 2]\n\n[3, 4]", "JSON lines"),
        ("X.NDJSON", "[1, 2]\n[3, 4]", "JSON lines"),
    ],
)
def test_values_and_lines_of_json(tmp_path, name, text, note):
    (tmp_path / name).write_text(text)
    content = read_json_vectors(tmp_path / name)
    assert content.columns["vectors"].tolist() == [[1, 2], [3, 4]]
    assert content.notes[0] == note


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.jsonl", '{"a": 1}\n\n{"a": ' + "z" * 50 + "\n", r"got '\{\"a\": z{34}' in line 3"),
        ("x.json", '{"a": [1, }', r"JSON in .*x.json; got Expecting value"),
        ("x.json", "[" * 100_000, "brackets nested too deep"),
        ("x.jsonl", "1\n" + "[" * 100_000, "brackets nested too deep in line 2"),
    ],
)  # fmt: skip
def test_json_that_is_damaged(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(CorpusError, match=message):
        read_json_vectors(tmp_path / name)


def test_lines_that_no_memory_holds_are_refused(tmp_path, monkeypatch):
    (tmp_path / "x.jsonl").write_text("[1, 2]\n" * 3)
    for budget, holds in ((18, True), (17, False), (6, False)):
        monkeypatch.setattr(vector_json, "get_memory_budget", lambda b=budget: b)
        if holds:
            assert len(vector_json._load_lines(tmp_path / "x.jsonl")) == 3
        else:
            with pytest.raises(CorpusError, match="npy, which is read in blocks"):
                vector_json._load_lines(tmp_path / "x.jsonl")


# ---- whole messages, and every rule by itself ------------------------------------------------------------------------


def message_of(call, *given, **how):
    """The whole message of the error that a call ends with."""
    with pytest.raises(CorpusError) as caught:
        call(*given, **how)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        *((text, True) for text in (
            "1", "-1.5", "1e-3", " 2 ", "1,5", "-0,5", " 1,5 ", "", " ", "nan", "inf", "NA", "na", "Null", "NONE",
        )),
        *((text, False) for text in ("1,2,3", "1,234,567", "a", "1a", "n/a", "[1]", "1 2", "1,,2", ",", "--1")),
    ],
)  # fmt: skip
def test_what_a_number_looks_like(text, is_one):
    assert vector_tables.is_number(text) is is_one


def test_decimal_commas_and_whole_numbers_by_their_looks():
    comma, whole = vector_tables.DECIMAL_COMMA, vector_tables.WHOLE_NUMBER
    for text in ("1,5", "-1,5", ",5", "-,5", " 1,5 ", "1,5e-3", "1,5E3"):
        assert comma.fullmatch(text), text
    for text in ("1.5", "1,", "1,5,6", "a,5", "15", "1,5x"):
        assert not comma.fullmatch(text), text
    assert all(map(whole.fullmatch, ("1", "+1", "-12")))
    assert not any(map(whole.fullmatch, ("1.0", "", "1 2", "--1", "1e3")))


@pytest.mark.parametrize(
    ("rows", "width", "found"),
    [
        (["1 2"], 2, (False, "0 1", "")),
        (["x y", "1 2"], 2, (True, "x y", "")),
        (["x y", "1 2", "3 4"], 2, (True, "x y", "")),
        (["x", "r 1"], 2, (True, "row-names x", "row-names")),
        (["2 4", "3 5"], 2, (False, "0 1", "")),
        (["x y", "r 1 2 3"], 4, (True, "x y", "")),
        (["a 2", "b 4"], 2, (False, "0 1", "")),
        (["a x", "b 4", "c 5"], 2, (True, "a x", "")),
        (["_ x y", "7 1.5 2.5", "8 1.5 2.5"], 3, (True, "row-numbers x y", "row-numbers")),
        (["_ x", "7 1.5", "8 2.5"], 2, (True, "row-numbers x", "row-numbers")),
        (["x _ y", "7 1.5 2", "8 2.5 3"], 3, (True, "x column-1 y", "")),
        (["Unnamed:-0 x", "7 1.5", "8 2.5"], 2, (True, "Unnamed:-0 x", "Unnamed:-0")),
        (["Unnamed: x", "7 1.5", "8 2.5"], 2, (True, "Unnamed: x", "")),
        (["#id x", "7 1.5", "8 2.5"], 2, (True, "id x", "")),
        (["0 1", "1.5 2", "2.5 3"], 2, (True, "0 1", "")),
        (["1 2", "1.5 2", "2.5 3"], 2, (True, "1 2", "")),
        (["2 3", "1.5 2", "2.5 3"], 2, (False, "0 1", "")),
        (["5 5", "1.5 2.5", "2.5 3.5"], 2, (False, "0 1", "")),
        (["5", "1.5", "2.5"], 1, (False, "0", "")),
        (["0", "1.5", "2.5"], 1, (True, "0", "")),
        (["0", "1", "2"], 1, (False, "0", "")),
        (["1.5 2", "3.5 4"], 2, (False, "0 1", "")),
        (["v w", "[1] a", "[2] b"], 2, (True, "v w", "")),
        (["[0] w", "[1] a", "[2] b"], 2, (False, "0 1", "")),
        (["v w", "[1] a", "c b"], 2, (False, "0 1", "")),
    ],
)  # fmt: skip
def test_what_a_first_row_is(rows, width, found):
    """Cells are written with blanks between them, _ for an empty one and - for a blank in a cell."""

    def cells(text):
        return [cell.replace("_", "").replace("-", " ") for cell in text.split()]

    header, names, index = found
    read = vector_tables._read_header([cells(row) for row in rows], width, "x.csv")
    assert read == (header, cells(names), tuple(cells(index)))


def test_first_rows_that_may_be_names_or_a_vector():
    read = vector_tables._read_header
    cure = "Cure: write names such as dim_0 into the first line, or store .npy"
    start = "expected one way to read the first line of x.csv; got a first line of whole numbers"
    years = [["1999", "2000", "2003"], ["1.5", "2.5", "3.5"], ["1.5", "2", "3"]]
    assert message_of(read, years, 3, "x.csv") == (
        f"{start} (1999, 2000, 2003 …), which may be names or a vector. {cure}"
    )
    two = [["3", "9"], ["1.5", "2.5"], ["1.5", "2"]]
    assert f"{start} (3, 9 …), which may" in message_of(read, two, 2, "x.csv")
    blanks = [[" x ", "y\t"], ["1", "2"]]
    assert read(blanks, 2, "x.csv") == (True, ["x", "y"], ())
    counted = [[*"0123456"], [*"7777777"]]
    assert message_of(read, counted, 7, "x.csv") == (
        f"{start} (0, 1, 2, 3, 4 …), which may be names or a vector. {cure}"
    )
    assert message_of(read, [["a", "1"]], 2, "x.csv") == (
        "expected rows of numbers in x.csv; got only a header. Cure: write the vectors below it"
    )
    twice = [["b", "a", "b", "a", "c"], [*"12345"]]
    assert message_of(read, twice, 5, "x.csv") == (
        "expected a header of different names in x.csv; got several columns a, b. "
        "Cure: name every column in the first line"
    )


def test_columns_with_numbers_below_their_names():
    filled = vector_tables._find_filled_columns
    below = [["1", "a", "1", "1"], ["2", "b", "2"], ["3", "4", "x", "2"], ["4", "5", "y"]]  # fmt: skip
    # of the second and third half are numbers, of the last half are there
    assert filled([*"wxyz"], below, 4) == [0]
    assert filled([*"wxyz"], below[:3], 4) == [0, 2, 3]
    assert filled(["", "x", "y", "z"], below[:3], 4) == [2, 3]
    assert filled([*"wx"], below[:3], 4) == [0]
    assert filled([*"wxyz"], below[:3], 3) == [0, 2]
    assert vector_tables._has_decimals([["1", "2.5"], ["3"]], 1)
    assert not vector_tables._has_decimals([["1.5", "2"], ["3"]], 1)
    assert not vector_tables._has_decimals([["1.5"]], 1)
    for numbers, is_count in (
        ([0, 1, 2], True),
        ([1, 2], True),
        ([2, 3], False),
        ([1], True),
        ([0, 2], False),
        ([1, 0], False),
    ):
        assert vector_tables._counts_up(numbers) is is_count


@pytest.mark.parametrize(
    ("line", "separator", "width", "names"),
    [
        ("# a b", " ", 2, ["a", "b"]),
        ("## a b", " ", 2, ["a", "b"]),
        ("#a, b", ",", 2, ["a", "b"]),
        ("# a b", " ", 3, []),
        ("# a a", " ", 2, []),
        ("# a 3", " ", 2, []),
        ("#", ",", 1, []),
        ("", ",", 0, []),
    ],
)
def test_names_in_a_comment(line, separator, width, names):
    assert vector_tables._parse_comment(line, separator, width) == names


@pytest.mark.parametrize(
    ("body", "separator"),
    [
        (["1,2", "3,4"], ","),
        (["1;2", "3;4"], ";"),
        (["1,5;2,5", "3,5;4,5"], ";"),
        (["1,5\t2,5", "3,5\t4,5"], "\t"),
        (["1|2", "3|4"], "|"),
        (["1 2", "3 4"], " "),
        (["[1 2]", "[3 4]"], ","),
        (["v", "[1 2]", "[3 4]"], ","),
        (["a", "b"], ","),
        (["1", "2"], ","),
        (["x;y,z", "1;2", "3;4"], ";"),
        (["1,2|a", "3,4|b"], ","),
        (["[1, 2];5", "[3, 4];6"], ";"),
        (["1, 2", "3, 4"], ","),
    ],
)
def test_the_separator_that_makes_most_numbers(body, separator):
    assert vector_tables._choose_separator(body, Path("x.csv")) == separator
    assert vector_tables._choose_separator(body, Path("x.TSV.gz")) == "\t"


def test_lines_are_split_into_cells():
    split = vector_tables._split
    assert split(["a  b ", "", "c"], " ") == [["a", "b"], [], ["c"]]
    assert split(['a, "b, c"', "", "d,e"], ",") == [["a", "b, c"], ["d", "e"]]
    assert vector_tables._is_list(" [1]") and not vector_tables._is_list("1 [2]")
    rate = vector_tables._rate_separator
    assert rate(["x,y", "1,[2]", "3,a"], ",") == (0.75, 2)
    # 201 of 300 cells and 199 of 300 are as good as each other
    many = ["x,y,z", *["1,2,a"] * 99, "1,2,3"]
    assert rate(many, ",") == (0.67, 3)
    assert rate(["x,y", "1,2", "3,4", "a", "b"], ",") == (0.67, 2)
    assert rate(["x,y", "1,2", "a", "b"], ",") == (0.0, 0)


def test_words_of_missing_numbers_and_text_cells_in_one_table(tmp_path):
    lines = ["n,x,t", "1,1.5,a", ",NA,", "3,None,NA", "4,#N/A,b"]
    (tmp_path / "x.csv").write_text("\n".join(lines) + "\n")
    found = read_delimited(tmp_path / "x.csv").columns
    np.testing.assert_array_equal(found["n"], [1, np.nan, 3, 4])
    np.testing.assert_array_equal(found["x"], [1.5, np.nan, np.nan, np.nan])
    assert found["t"].tolist() == ["a", None, None, "b"]


def test_a_table_of_text_that_goes_on_otherwise(tmp_path, monkeypatch):
    """Whole numbers go on in decimals, then as texts; a column without cells is of no type.

    The file is parsed in blocks of a few lines, of which the first tells the types that are not guessed.
    """
    monkeypatch.setattr(vector_tables, "LOOKED", 3)
    monkeypatch.setattr(vector_tables, "BLOCK", 64)
    place = tmp_path / "x.csv"
    filler = ["3,.5,y,"] * 30
    large = 2**53 + 1
    for last, kinds in (("7,1.5,z,", "iff"), ("7.5,1.5,z,", "fff"), ("a,1.5,z,", "Off")):  # fmt: skip
        lines = ["n,x,t,e", f"{large},.5,y,", "2,1.5,y,", *filler, last]
        place.write_text("\n".join(lines) + "\n")
        content = read_delimited(place)
        assert content.columns["n"].dtype.kind == kinds[0]
        assert content.columns["x"].tolist() == [0.5, 1.5, *[0.5] * 30, 1.5]
        assert content.columns["t"].tolist() == [*"y" * 32, "z"]
        assert content.unusable == {"e": "empty"}
        if kinds[0] == "i":
            assert content.columns["n"].tolist() == [large, 2, *[3] * 30, 7]
        if kinds[0] == "O":
            assert content.columns["n"].tolist() == [str(large), "2", *"3" * 30, "a"]
    # whole numbers that go on as text are no fault: the word among decimals is
    place.write_text("\n".join(["n,x,t,e", "1,.5,y,", *filler, "a,1,y,", "4,wd,y,"]))
    assert "line 34: invalid value 'wd'. Cure" in message_of(read_delimited, place)
    lines = ["n,x", "1,.5", "2,1.5", "3,2.5", "4,word"]
    (tmp_path / "x.csv").write_text("\n".join(lines) + "\n")
    assert message_of(read_delimited, tmp_path / "x.csv") == (
        f"expected a table of numbers in {tmp_path / 'x.csv'}; "
        "got column #1: line 5: invalid value 'word'. Cure: correct the line: every row has as many values "
        "as the first, and numbers in columns of numbers"
    )
    (tmp_path / "x.csv").write_text("# one\nn,x\n1,.5\n2,1.5\n3,2.5\n4,5,6\n")
    assert "got Expected 2 columns, got 3" in message_of(
        read_delimited, tmp_path / "x.csv"
    ).replace(" line 6:", "")
    assert "line 6" in message_of(read_delimited, tmp_path / "x.csv")


def test_printed_lists_over_two_lines_may_lie_across_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(vector_tables, "BLOCK", 64)
    rows = "".join(f'{k},"[{k}.5,\n {k}]"\n' for k in range(40))
    (tmp_path / "x.csv").write_text(f"n,v\n{rows}")
    content = read_delimited(tmp_path / "x.csv")
    assert content.columns["v"].tolist() == [[k + 0.5, k] for k in range(40)]


def test_commas_inside_of_quoted_texts_are_no_decimal_commas(tmp_path):
    (tmp_path / "x.csv").write_text('x,t\n1.5,"1,5"\n2.5,"a, b"\n')
    found = read_delimited(tmp_path / "x.csv").columns
    assert found["x"].tolist() == [1.5, 2.5] and found["t"].tolist() == ["1,5", "a, b"]


def test_numbers_between_blanks_with_comments_among_them(tmp_path):
    (tmp_path / "x.txt").write_text("# two\n\nw 1 2.5\n\n# more\nv 3 4.5\n")
    content = read_delimited(tmp_path / "x.txt")
    found = {name: column.tolist() for name, column in content.columns.items()}
    assert found == {"0": ["w", "v"], "1": [1, 3], "2": [2.5, 4.5]}
    assert content.columns["1"].dtype == np.int64
    assert (content.first_line, content.named, content.index) == (3, False, ())
    assert content.notes == ["no header", "2 comment lines skipped"]
    (tmp_path / "x.txt").write_text(
        "# two\n\nw 1 2.5\n" + "u 2 3.5\n" * 4 + "\n# more\nv 3\n"
    )
    assert message_of(read_delimited, tmp_path / "x.txt") == (
        f"expected 3 values in every line of {tmp_path / 'x.txt'}; got 2 in line 10. Cure: correct the line"
    )
    (tmp_path / "x.txt").write_text("a b\n1 2\n3 4\n")
    content = read_delimited(tmp_path / "x.txt")
    assert content.columns["b"].tolist() == [2, 4] and content.first_line == 2


def test_row_names_of_r_and_numbers_of_pandas_are_row_numbers(tmp_path):
    for text, index, names in (
        ('"x","y"\n"r1",1.5,2\n"r2",2.5,3\n', ("row names",), ["row names", "x", "y"]),
        (",x,y\n7,1.5,2\n8,2.5,3\n", ("row numbers",), ["row numbers", "x", "y"]),
        ("id,x,y\n7,1.5,2\n8,2.5,3\n", (), ["id", "x", "y"]),
    ):
        (tmp_path / "x.csv").write_text(text)
        content = read_delimited(tmp_path / "x.csv")
        assert content.index == index and list(content.columns) == names
        assert content.named and content.columns["x"].tolist() == [1.5, 2.5]


def test_comments_of_any_number_go_before_the_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(vector_tables, "LOOKED", 5)
    comments = "".join(f"# {k}\n\n" for k in range(20))
    (tmp_path / "x.csv").write_text(f"{comments}#x,y\n1,.5\n2,1.5\n")
    content = read_delimited(tmp_path / "x.csv")
    assert list(content.columns) == ["x", "y"] and content.named
    assert content.notes == ["no header", "names in line 41, a comment", "40 comment lines skipped"]  # fmt: skip
    assert content.first_line == 42
    assert vector_tables._count_comments(["# a", " ", "x"]) == 2
    assert vector_tables._count_comments(["# a", " "]) == 2
    assert vector_tables._count_comments([]) == 0
    (tmp_path / "y.csv").write_bytes(b"# a\n#\xff\n1,2\n")
    assert message_of(read_delimited, tmp_path / "y.csv") == (
        f"expected UTF-8 text in {tmp_path / 'y.csv'}; got bytes that are not UTF-8 in line 2. "
        "Cure: write the file again as UTF-8"
    )
    (tmp_path / "z.csv").write_text("# a\n\n")
    assert message_of(read_delimited, tmp_path / "z.csv") == (
        f"expected rows of numbers in {tmp_path / 'z.csv'}; got none. Cure: name another file"
    )


# ---- columns of arrow ------------------------------------------------------------------------------------------------


def test_types_of_arrow_that_hold_the_same_in_another_way():
    lists = [[1.0, 2], [3, 4], [5, 6]]
    words = ["a", "b", "a"]
    table = pa.table(
        {
            "large": pa.array(lists, pa.large_list(pa.float32())),
            "fixed": pa.array(lists, pa.list_(pa.int16(), 2)),
            "words": pa.array(words, pa.large_string()),
            "printed": pa.array(["[1 2]", "[3 4]", "[5 6]"], pa.large_string()),
            "tensor": pa.array(["tensor([1., 2.])"] * 3),
            "behind": pa.array([None, "", "x"]),
            "first": pa.array(["", None, "[1 2]"]),
            "decimal": pa.array([1, 2, 3]).cast(pa.decimal128(30, 7)),
            "date": pa.array([1, 2, 3], pa.date32()),
            "chunks": pa.chunked_array([[1, 2], [], [3]]),
            "coded": pa.chunked_array([pa.array(part).dictionary_encode() for part in (words[:2], words[2:])]),
            "flags": pa.array([True, None, False]),
            "deep": pa.array([{"a": {"b": {"c": k}}} for k in range(3)]),
        }
    )  # fmt: skip
    content = read_arrow_table(table)
    found = {name: np.asarray(x).tolist() for name, x in content.columns.items()}
    dates = found.pop("date")
    assert [str(day) for day in dates] == ["1970-01-02", "1970-01-03", "1970-01-04"]
    assert found == {
        "large": lists,
        "fixed": lists,
        "words": words,
        "printed": lists,
        "tensor": [[1, 2]] * 3,
        "behind": [None, "", "x"],
        "decimal": [1, 2, 3],
        "chunks": [1, 2, 3],
        "coded": words,
        "flags": [True, None, False],
        "deep.a.b.c": [0, 1, 2],
    }
    assert content.unusable == {"first": "lists of 0 to 2 numbers"}
    assert content.columns["decimal"].dtype == np.float64
    assert content.columns["fixed"].dtype == np.int16
    assert content.columns["large"].dtype == np.float32
    precise = pa.table({"d": pa.array([2**40 + 1]).cast(pa.decimal128(30, 4))})
    assert read_arrow_table(precise).columns["d"].tolist() == [2**40 + 1]


def test_matrices_in_rows_keep_their_axes():
    x = np.arange(24.0).reshape(2, 3, 4)
    column = pa.FixedShapeTensorArray.from_numpy_ndarray(x)
    content = read_arrow_table(pa.table({"x": column}))
    np.testing.assert_array_equal(content.columns["x"], x)


def test_lists_that_are_no_vectors_say_why():
    for rows, reason in (
        ([[1.0], None, None], "2 rows without a list"),
        ([[1.0, 2], [1.0], [1.0, 2, 3], [1.0, 2]], "lists of 1 to 3 numbers"),
        ([["a"], ["b"]], "lists of string"),
        ([[True], [False]], "lists of bool"),
        (pa.array([], pa.list_(pa.float64())), "no lists"),
        (pa.array([[], []], pa.list_(pa.float64())), "empty lists"),
        ([[[1.0, 2], [1.0]], [[1.0]]], "lists of 1 to 2 numbers"),
        ([[["a"]], [["b"]]], "lists of string"),
        ([[[[1.0]]], [[[2.0]]]], "lists in lists in lists"),
    ):
        content = read_arrow_table(pa.table({"x": rows}))
        assert (content.columns, content.unusable) == ({}, {"x": reason})


def test_sequences_are_arranged_in_their_order_and_padded_behind():
    vectors = np.arange(12).reshape(6, 2).astype(np.int16)
    values, mask = vector_tables._arrange_sequences(vectors, np.array([1, 3, 0, 2]))
    assert values.dtype == np.int16 and values.shape == (4, 3, 2)
    assert values[:, :, 0].tolist() == [[0, 0, 0], [2, 4, 6], [0, 0, 0], [8, 10, 0]]
    assert mask.tolist() == [[True, False, False], [True] * 3, [False] * 3, [True, True, False]]  # fmt: skip
    values, mask = vector_tables._arrange_sequences(vectors, np.array([3, 3]))
    assert mask is None and values[1, 0].tolist() == [6, 7]


def test_printed_lists_are_parsed_in_every_print():
    parse = vector_tables._parse_printed_lists
    for texts in (
        ["[1.5, 2]", "[3, 4]"],
        ["[1.5 2.]", "[3. 4.]"],
        ["array([1.5, 2.], dtype=float32)", "array([3., 4.], dtype=float32)"],
        ["tensor([1.5, 2.])", "tensor([3., 4.], dtype=torch.float64)"],
        ["[np.float64(1.5), np.float64(2.0)]", "[np.float32(3), np.float64(4)]"],
        [" [1.5, 2]", "(3, 4)"],
    ):
        values, mask, reason = parse(np.array(texts, object))
        assert values.tolist() == [[1.5, 2], [3, 4]] and (mask, reason) == (None, "")
    for texts, found in (
        (["[1 2]", "[3 ... 4]"], "lists cut short when they were printed (row 2: …)"),
        (["[1 ... 2]", "[3 4]"], "lists cut short when they were printed (row 1: …)"),
        (["[1 2 3]", "[4]", "[5 6]"], "lists of 1 to 3 numbers"),
        (["[1 2]", None], "lists of 0 to 2 numbers"),
    ):
        assert parse(np.array(texts, object)) == (None, None, found)
    for texts in (["words ...", "[1 2]"], ["[one]", "[1 2]"], [None, "words"], []):
        values, mask, reason = parse(np.array(texts, object))
        assert values.tolist() == texts and (mask, reason) == (None, "")


def test_what_metadata_say_of_large_columns(tmp_path, monkeypatch):
    """The column with a dot in its name, a record with one of the same leaf, whole numbers, gaps, unlike lengths."""
    monkeypatch.setattr(vector_tables, "LARGE", 8 * 24 - 1)
    table = pa.table(
        {
            "record": [{"x": k, "y": k} for k in range(8)],
            "v": X.tolist(),
            "a.b": X.tolist(),
            "whole": [[k] * 3 for k in range(8)],
            "gap": [*X[:7].tolist(), None],
            "unlike": [*X[:7].tolist(), [1.0, 2, 3, 4]],
            "half": pa.array(X.tolist(), pa.list_(pa.float32())),
        }
    )  # fmt: skip
    parquet.write_table(table, tmp_path / "x.parquet", row_group_size=3)
    file = parquet.ParquetFile(tmp_path / "x.parquet")
    found = vector_tables._find_large_columns(file)
    assert found == {"v": (8, 3, np.dtype(np.float64))}
    leaves = ["record", "record", "v", "a", "whole", "gap", "unlike", "half"]
    assert vector_tables._list_leaves(file) == leaves
    assert vector_tables._count_numbers(file, 2) == 24
    assert vector_tables._count_numbers(file, 6) == 25
    assert vector_tables._count_numbers(file, 5) == 0
    monkeypatch.setattr(vector_tables, "LARGE", 8 * 24)
    assert vector_tables._find_large_columns(file) == {}


def test_folders_with_an_equals_sign_make_no_columns(tmp_path, monkeypatch):
    folder = tmp_path / "kind=a"
    folder.mkdir()
    parquet.write_table(pa.table({"n": [1, 2], "v": X[:2].tolist()}), folder / "x.parquet")  # fmt: skip
    assert list(read_arrow(folder / "x.parquet").columns) == ["n", "v"]
    monkeypatch.setattr(vector_tables, "LARGE", 10)
    found = read_arrow(folder / "x.parquet").columns
    assert list(found) == ["n", "v"] and found["n"].tolist() == [1, 2]
    assert isinstance(found["v"], vector_tables.StreamedVectors)


def test_rows_that_cannot_be_read_are_named_from_one_on(tmp_path, monkeypatch):
    monkeypatch.setattr(vector_tables, "PIECE", 2)
    monkeypatch.setattr(vector_tables, "LARGE", 10)
    place = tmp_path / "x.parquet"
    expected = f"expected a list of 3 numbers in every row of the column 'v' of {place}; got "  # fmt: skip
    cure = "Cure: leave these rows out, or make all lists equally long"
    # rows 5 and 6 have two numbers each, rows 7 and 8 four
    rows = [*X[:4].tolist(), [1.0, 2], [1.0, 2], [1.0] * 4, [1.0] * 4]
    parquet.write_table(pa.table({"n": [*range(8)], "v": rows}), place)
    column = read_arrow(place).columns["v"]
    assert column.shape == (8, 3) and column[1:4].tolist() == X[1:4].tolist()
    assert message_of(column.__getitem__, slice(3, 5)) == (
        f"{expected}lists of 2 numbers in rows 5 to 6. {cure}"
    )
    column._pieces = iter(())
    assert message_of(column._read_piece, 6) == (
        f"{expected}damaged rows from 7 on (none). Cure: write the file again"
    )

    def broken():
        raise OSError("first\nsecond")
        yield

    column._pieces = broken()
    assert "got damaged rows from 1,001 on (first). Cure" in message_of(column._read_piece, 1000)  # fmt: skip


def test_a_column_on_the_disk_is_read_as_any_type(streamed):
    column = read_arrow(streamed).columns["first"]
    assert np.asarray(column).dtype == np.float64
    assert np.asarray(column, np.float32).dtype == np.float32
    assert (column.name, column.ndim, column.dtype) == ("first", 2, np.float64)
    assert column._begins.tolist() == [0, 3, 6]
    assert column[3:4].tolist() == X[3:4].tolist() and column._first == 3
    assert column[0:8].tolist() == X.tolist() and len(column._held) == 8
    assert column[2:2].shape == (0, 3)
    assert column[-2:].tolist() == X[-2:].tolist()


def test_a_damaged_table_of_arrow_is_damaged_in_one_way(tmp_path):
    for name in ("x.parquet", "x.arrow", "x.feather"):
        (tmp_path / name).write_bytes(b"neither this nor that")
        with pytest.raises(ValueError, match=r"\S"):
            read_arrow(tmp_path / name)
    with pytest.raises(CorpusError, match=r"vectors in .*x\.arrow"):
        open_vectors(tmp_path / "x.arrow")


def test_whatever_arrow_says_of_damage_is_damage(tmp_path, monkeypatch):
    for kind in (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowKeyError, pa.ArrowTypeError):  # fmt: skip

        def read(_, kind=kind):
            raise kind("what arrow says")

        monkeypatch.setattr(vector_tables, "_read_parquet", read)
        with pytest.raises(ValueError, match="what arrow says") as caught:
            read_arrow(tmp_path / "x.parquet")
        assert type(caught.value) is ValueError


def test_columns_too_large_for_one_piece_are_put_together(monkeypatch):
    """Arrow answers in chunks again; without rows there is none."""

    class Chunked:
        type = pa.int64()

        def __init__(self, *chunks):
            self.chunks, self.num_chunks = chunks, len(chunks)

        def combine_chunks(self):
            return self

        def chunk(self, number):
            return self.chunks[number]

    parts = SimpleNamespace(ChunkedArray=Chunked, concat_arrays=pa.concat_arrays, array=pa.array)  # fmt: skip
    monkeypatch.setattr(vector_tables, "pyarrow", parts)
    unwrap = vector_tables._unwrap_column
    whole = unwrap(Chunked(pa.array([1, 2]), pa.array([3])))
    assert whole.to_pylist() == [1, 2, 3]
    assert unwrap(Chunked()).to_pylist() == [] and unwrap(Chunked()).type == pa.int64()
    alone = pa.array([5])
    assert unwrap(alone) is alone


def test_row_numbers_of_pandas_are_listed_once_each():
    written = json.dumps({"index_columns": ["b", "__index_level_12__"]})
    metadata = {b"pandas": written.encode()}
    columns = {
        "__index_level_0__": [1],
        "a": [1.5],
        "__index_level_12__": [2],
        "b": [3],
        "__index_level_x__": [4],
    }
    table = pa.table(columns)
    assert read_arrow_table(table).index == ("__index_level_0__", "__index_level_12__")
    described = table.replace_schema_metadata(metadata)
    assert read_arrow_table(described).index == ("__index_level_0__", "__index_level_12__", "b")  # fmt: skip
    for wrong in ([], 3, {}, {"index_columns": 3}, {"index_columns": None}, "text"):
        damaged = table.replace_schema_metadata({b"pandas": json.dumps(wrong).encode()})
        with pytest.raises(ValueError, match="what it says of its columns is damaged"):
            read_arrow_table(damaged)
    broken = table.replace_schema_metadata({b"pandas": b"{"})
    with pytest.raises(ValueError, match="what it says of its columns is damaged"):
        read_arrow_table(broken)
