"""Vectors in tables and in JSON: which cell, column, row group and list is which, on a few numbers each."""

import base64
import json

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
