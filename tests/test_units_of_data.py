"""Small decisions of the readers of data, each on a few numbers: which end, which of two, from how many on."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from anisoscope.data import (
    arrays,
    check_names,
    documents,
    encoding,
    items,
    labelled,
    labelled_tables,
    local,
    plans,
    splitting,
    table_rows,
    vector_files,
    vector_json,
    vector_roles,
    vector_tables,
    windows,
)
from anisoscope.data.corpora import CorpusOptions
from anisoscope.data.labelled import Example, LabelledCorpus
from anisoscope.data.vector_roles import Content
from anisoscope.errors import CorpusError, ModelError, UsageError

# ---- tables of vectors -----------------------------------------------------------------------------------------------


def header_of(text, width=None):
    rows = [line.split(",") for line in text.split()]
    return vector_tables._read_header(
        rows, width or max(map(len, rows[1:] or rows)), "x.csv"
    )


@pytest.mark.parametrize(
    ("text", "header", "names", "index"),
    [
        (
            "one,.1 two,.2 7,.3 four,.4",
            False,
            ["0", "1"],
            (),
        ),  # a column of words with one number is none of numbers
        ("a,.1 7,.2 b,.3", False, ["0", "1"], ()),  # nor is one that is half numbers
        ("word,x a,1 b,2", True, ["word", "x"], ()),
        ("0,1 .5,.25", True, ["0", "1"], ()),
        ("1,2 .5,.25", True, ["1", "2"], ()),
        ("7 .5 .25", False, ["0"], ()),
        ("5,5 .5,.25", False, ["0", "1"], ()),  # equal whole numbers name no columns
        (",x 0,.5 1,.25", True, ["row numbers", "x"], ("row numbers",)),
        ("Unnamed:,x 0,.5", True, ["Unnamed:", "x"], ()),
        ("#id,x 0,.5", True, ["id", "x"], ()),
        ("x,y r1,.5,.25 r2,.5,.25", True, ["row names", "x", "y"], ("row names",)),
        ("v,w [1,.5 [2,.5", True, ["v", "w"], ()),
        ("[0,w [1,.5 [2,.5", True, ["[0", "w"], ()),
        ("[0,.1 [1,.5 [2,.5", False, ["0", "1"], ()),
        (".5,.25", False, ["0", "1"], ()),
    ],
)
def test_the_first_line_is_a_header_or_a_vector(text, header, names, index):
    assert header_of(text) == (header, names, index)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0,1,2 3,4,5 6,7,8", "a first line of whole numbers"),
        ("9,4 .5,.25", "which may be names or a vector"),
        ("a,b", "a header"),
    ],
)
def test_a_first_line_that_may_be_either_is_refused(text, said):
    with pytest.raises(CorpusError, match=said):
        header_of(text)
    with pytest.raises(CorpusError, match="several columns x"):
        header_of("x,x 1,2")
    wide = [*map(str, range(20_001)), "x"]
    with pytest.raises(CorpusError, match="several columns x"):
        vector_tables._read_header([[*wide, "x"], ["1"] * 20_003], 20_003, "x.csv")


def test_the_beginning_of_a_text_is_so_many_characters_of_all_its_parts(monkeypatch):
    """How it is divided into documents must not depend on the sizes in which it is read."""
    monkeypatch.setattr(splitting, "HEAD", 5)
    parts = iter(["abc", "d", "efg", "hij"])
    assert "".join(splitting._cut_head(parts)) == "abcde" and list(parts) == ["hij"]
    assert "".join(splitting._cut_head(["abcdefgh"])) == "abcde"
    assert "".join(splitting._cut_head(["ab", "c"])) == "abc"


def test_what_is_a_number_in_a_row_of_texts():
    """A column of −2.5 and 1e-3 is none of texts."""
    assert all(
        map(table_rows.is_number, ["1", "-2.5", "1e-3", " 7 ", ".5", "+3", "nan"])
    )
    assert not any(map(table_rows.is_number, ["", "x", "1,5", "1.2.3", "-", "n/a"]))


def test_what_counts_as_a_number_in_a_cell():
    numbers = ["1", " -2.5 ", "1e-3", "1,5", "", "NA", "null", "None", "inf", "nan"]
    assert all(map(vector_tables.is_number, numbers))
    assert not any(map(vector_tables.is_number, ["x", "1,2,3", "n/a", "[1", "1.2.3"]))


@pytest.mark.parametrize(
    ("lines", "separator"),
    [
        (["a;b", "1,5;2,5", "3,5;4,5"], ";"),
        (["1 2 3", "4 5 6"], " "),
        (["1,2", "3,4"], ","),
        (["1|2", "3|4"], "|"),
        (["word", "other"], ","),
        (["[1 2]", "[3 4]"], ","),
        (
            ["1,2;5", "3;6", "4;7", "8;9"],
            ";",
        ),  # rows of one length, not those of most numbers
    ],
)
def test_the_separator_makes_rows_of_numbers(lines, separator, tmp_path):
    assert vector_tables._choose_separator(lines, tmp_path / "x.csv") == separator
    assert vector_tables._choose_separator(["a,b", "1,2"], tmp_path / "x.tsv") == "\t"


def test_names_in_a_comment_fit_the_columns():
    assert vector_tables._parse_comment("# id x0 x1", " ", 3) == ["id", "x0", "x1"]
    assert vector_tables._parse_comment("# id,x0", ",", 2) == ["id", "x0"]
    for line, width in (("# id x0", 3), ("# id id x0", 3), ("# id 7 x0", 3), ("#", 1)):
        assert vector_tables._parse_comment(line, " ", width) == []


def test_columns_of_whole_numbers_are_told_from_decimals():
    rows = [["1", "+2", "1.0", "a", ""], ["-3", "", "2", "1", ""]]
    assert vector_tables._guess_types([*"abcde"], rows, False) == (["a", "b"], ["c"])
    assert vector_tables._guess_types(["a"], [["1,5"], ["2,0"]], True) == ([], ["a"])


def test_sequences_and_printed_lists_of_a_column():
    values, mask = vector_tables._arrange_sequences(
        np.arange(8.0).reshape(4, 2), np.array([1, 3])
    )
    assert values.shape == (2, 3, 2) and values[0].tolist() == [[0, 1], [0, 0], [0, 0]]
    assert mask.tolist() == [[True, False, False], [True] * 3]
    assert (
        vector_tables._arrange_sequences(np.ones((4, 2)), np.array([2, 2]))[1] is None
    )

    def read(*texts):
        return vector_tables._parse_printed_lists(np.array(texts, object))

    assert read("[1, 2]", "[3 4]")[0].tolist() == [[1, 2], [3, 4]]
    assert read("array([1., 2.], dtype=float32)")[0].tolist() == [[1, 2]]
    assert read(None, "[1 ... 2]")[2].startswith(
        "lists cut short when they were printed (row 2"
    )
    assert read("[1, 2]", "[3]")[2] == "lists of 1 to 2 numbers"
    assert read("[1, 2]", "[oops]")[0].tolist() == ["[1, 2]", "[oops]"]
    assert read("plain")[2] == ""


def test_columns_of_arrow_that_are_no_vectors_say_why():
    def read(values, kind=None):
        return vector_tables._convert_column(pa.array(values, kind))

    assert read([[1.0, 2.0], None])[2] == "1 rows without a list"
    assert read([["a"], ["b"]])[2] == "lists of string"
    assert read([[1.0], [1.0, 2.0]])[2] == "lists of 1 to 2 numbers"
    assert read([[], []], pa.list_(pa.float64()))[2] == "empty lists"
    assert read([None, None])[2] == "empty"
    assert read([[[[1.0]]]])[2] == "lists in lists in lists"
    assert (
        read([True, False])[0].dtype == bool and read([True, None])[0].dtype == object
    )
    assert read(["a", "b", "a"], pa.dictionary(pa.int32(), pa.string()))[
        0
    ].tolist() == ["a", "b", "a"]
    nested = pa.table({"m": pa.array([{"label": 1, "deep": {"x": 2.0}}])})
    assert [name for name, _ in vector_tables._iter_flat_columns(nested)] == [
        "m.label",
        "m.deep.x",
    ]
    frame = pa.Table.from_pandas(
        pd.DataFrame({"x": [1.0]}, index=pd.Index([5], name="key"))
    )
    assert vector_tables._find_index(frame, {"x": 0, "key": 0}) == ("key",)
    assert vector_tables._find_index(
        pa.table({"a": [1]}), {"__index_level_0__": 0, "a": 0}
    ) == ("__index_level_0__",)


def test_a_table_of_blanks_skips_comments_and_keeps_its_types(tmp_path):
    path = tmp_path / "x.txt"
    path.write_text("# made by hand\n# w a b\none 1 .5\n\n# between\ntwo 2 1e3\n")
    content = vector_tables.read_delimited(path)
    assert {name: values.tolist() for name, values in content.columns.items()} == {
        "w": ["one", "two"],
        "a": [1, 2],
        "b": [0.5, 1000],
    }
    assert (
        content.columns["a"].dtype == np.int64
        and content.named
        and content.first_line == 3
    )
    assert content.notes == [
        "no header",
        "names in line 2, a comment",
        "1 comment line skipped",
    ]


# ---- roles of columns ------------------------------------------------------------------------------------------------


def test_columns_are_named_by_patterns_ranges_and_places():
    names = ["id", "dim_0", "dim_1", "dim_2", "mean"]
    for spec, found in (
        ("dim_*", names[1:4]),
        ("dim_0-dim_1", names[1:3]),
        ("mean,id", ["id", "mean"]),
        ("1-2", names[1:3]),
        ("4", ["mean"]),
        ("dim_?", names[1:4]),
        ("id-dim_0", names[:2]),
    ):
        assert vector_roles.select_names(spec, names) == found, spec
    for spec in ("5", "3-5", "other", "Dim_*"):
        with pytest.raises(CorpusError, match="for --columns"):
            vector_roles.select_names(spec, names)
    with pytest.raises(CorpusError):
        vector_roles.select_names("1-2", names, by_place=False)


def test_names_are_written_in_few_words():
    assert (
        vector_roles.compress_names(["d0", "d1", "d2", "e3", "d5"]) == "d0–d2, e3, d5"
    )
    assert vector_roles.compress_names(["9", "10", "12"]) == "9–10, 12"
    assert vector_roles.list_names([*"abcdef"]) == "a, b, c, d, e, f"
    assert vector_roles.list_names([*"abcdefg"]) == "a, b, c, d, e and 2 more"
    assert vector_roles.to_spec(["d1", "d2", "d3"]) == "d1-d3"
    assert vector_roles.to_spec(["d1", "d3"]) == "d*"
    assert vector_roles.to_spec(["1", "3"]) == "1,3"
    assert (
        vector_roles.to_spec(["a"]) == "a"
        and vector_roles.to_spec([*"abcdefg"]) == "a,b,c,d,e,f,…"
    )
    assert (
        vector_roles.quote_for_shell("d*") == "'d*'"
        and vector_roles.quote_for_shell("0-7") == "0-7"
    )


def test_suspicious_columns_are_whole_among_decimals_or_count_the_rows():
    decimals = np.array([0.5, 0.25, 0.75, 1.5])
    assert vector_roles._find_suspect([decimals, np.array([3, 9, 4, 4])]) == (
        1,
        "holds whole numbers among decimals",
    )
    assert vector_roles._find_suspect([decimals, np.arange(4)]) == (
        1,
        "counts the rows",
    )
    assert vector_roles._find_suspect([decimals, np.ones(4)]) is None
    assert vector_roles._find_suspect([np.arange(4), np.array([3, 9, 4, 4])]) == (
        0,
        "counts the rows",
    )
    assert vector_roles._find_suspect([np.arange(4)]) is None
    counts = [
        vector_roles._counts_rows(np.array(x))
        for x in ([0, 1, 2], [1, 2, 3], [2, 3, 4], [0, 1], [0, 2, 4])
    ]
    assert counts == [True, True, False, False, False]
    whole = [
        vector_roles._is_whole(np.array(x))
        for x in ([1.0, np.nan], [1.5, 2], [np.nan], [np.inf, 2.0])
    ]
    assert whole == [True, False, False, True]


def test_a_bad_cell_is_told_only_in_a_column_of_numbers():
    cells = np.array(["1", "2", "oops", "3", "x"], object)
    assert vector_roles._find_bad_cell(cells, 10) == "'oops' in line 12"
    assert vector_roles._find_bad_cell(cells, 0) == "'oops' in row 3"
    assert vector_roles._find_bad_cell(np.array(["1", "x"], object), 0) == ""
    assert vector_roles._find_bad_cell(np.arange(3), 0) == ""


def test_names_say_what_is_no_dimension():
    for name in (
        "id",
        "doc_id",
        "Unnamed: 0",
        "meta.ID",
        "index",
        "uuid",
        "id_of_row",
        "row_num",
        "nr",
    ):
        assert vector_roles._identify_by_name(name) == "an id, by its name", name
    assert vector_roles._identify_by_name("Year") == "by its name"
    assert not any(
        map(vector_roles._identify_by_name, ("width", "grid", "dim_0", "valid", "x"))
    )
    assert vector_roles._find_numbered(["a1", "b1", "b2", "c", "a2", "b3"]) == [
        "b1",
        "b2",
        "b3",
    ]
    assert vector_roles._find_numbered(["a1", "b1"]) == []
    names = ["e.float[]", "e.int8[]", "f.ubinary", "g"]
    assert vector_roles._find_lower_precisions(names) == ["e.int8[]", "f.ubinary"]
    assert vector_roles._find_lower_precisions(["e.int8", "e.float16"]) == ["e.int8"]


def numbers(*names, rows=5):
    draw = np.random.default_rng(0)
    return {name: draw.normal(size=rows) for name in names}


def test_numbered_columns_are_the_vector_from_three_quarters_on():
    three = vector_roles.decide_roles(
        Content(numbers("d0", "d1", "d2", "mean")), "x.csv"
    )
    assert three.layers == {"x": ("d0", "d1", "d2")} and three.left_out == {
        "mean": "as well as the numbered columns"
    }
    with pytest.raises(
        CorpusError, match="two: d0–d1 may be the vector, or d0–d1, mean"
    ):
        vector_roles.decide_roles(Content(numbers("d0", "d1", "mean")), "x.csv")
    counted = numbers("0", "1", "2") | {"0": np.arange(5)}
    unnamed = vector_roles.decide_roles(Content(counted, named=False), "x.csv")
    assert unnamed.layers == {"x": ("1", "2")} and unnamed.left_out == {
        "0": "it counts the rows"
    }
    with pytest.raises(CorpusError, match="columns of numbers"):
        vector_roles.decide_roles(
            Content(numbers("x") | {"t": np.array([*"abcde"], object)}), "x.csv"
        )


def test_units_labels_and_masks_are_found_by_name():
    content = Content(
        numbers("d0", "d1") | {"Unit": np.arange(5) % 2, "labels": np.arange(5) % 3}
    )
    roles = vector_roles.decide_roles(content, "x.csv")
    assert (roles.units, roles.labels, roles.mask) == ("Unit", "labels", None)
    arrays_ = {"x": np.ones((2, 3, 4)) * 0.5, "mask": np.ones((2, 3), int)}
    assert (
        vector_roles.decide_roles(Content(arrays_, is_table=False), "x.npz").mask
        == "mask"
    )
    with pytest.raises(CorpusError, match="a column or an array of the file"):
        vector_roles.decide_roles(content, "x.csv", unit_column="none")


def test_of_columns_of_lists_those_called_vectors_are_measured():
    wide = np.random.default_rng(0).normal(size=(6, 4))
    roles = vector_roles.decide_roles(
        Content({"a": wide, "text_embedding": wide}), "x.parquet"
    )
    assert list(roles.layers) == ["text_embedding"]
    assert roles.left_out == {"a": "lists as well as a column named vector"}
    both = vector_roles.decide_roles(Content({"a": wide, "b": wide}), "x.parquet")
    assert list(both.layers) == ["a", "b"]
    narrow = vector_roles.decide_roles(
        Content({"a": wide, "b": wide[:, :1]}, is_table=False), "x.npz"
    )
    assert narrow.left_out == {"b": "one number a row"}


# ---- which column is what --------------------------------------------------------------------------------------------


def decimals(rows=5, *shape, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, *shape))


TEXT = np.array([*"abcde"], object)
WHOLE = np.array([3, 9, 4, 4, 7])
VEC, OTHER = decimals(5, 4), decimals(5, 4, seed=1)


@pytest.mark.parametrize(
    ("columns", "how", "layers", "left_out"),
    [
        # a table
        ({"t": TEXT, "v": VEC, "n": WHOLE}, {}, {"v": ("v",)}, {"t": "text", "n": "one number a row"}),
        ({"id": WHOLE, "v": VEC, "year": WHOLE}, {}, {"v": ("v",)},
         {"id": "an id, by its name", "year": "by its name"}),
        ({"ok": np.array([True] * 5), "v": VEC}, {}, {"v": ("v",)}, {"ok": "yes or no"}),
        ({"input_ids": VEC, "v": VEC}, {}, {"v": ("v",)}, {"input_ids": "a tokenizer's output"}),
        ({"row": WHOLE, "v": VEC}, {"index": ("row",)}, {"v": ("v",)}, {"row": "row numbers"}),
        ({"v": VEC}, {"unusable": {"w": "lists of 1 to 2 numbers"}}, {"v": ("v",)}, {"w": "lists of 1 to 2 numbers"}),
        ({"v.float": VEC, "v.int8": WHOLE[:, None] * [1, 2]}, {}, {"v.float": ("v.float",)},
         {"v.int8": "the same at less precision"}),
        ({"v": VEC, "v.binary": WHOLE[:, None] * [1, 2]}, {}, {"v": ("v",)}, {"v.binary": "packed bits"}),
        ({"x": VEC[:, 0], "y": VEC[:, 1], "t": TEXT}, {}, {"file": ("x", "y")}, {"t": "text"}),
        ({"id": WHOLE, "x": VEC[:, 0], "y": VEC[:, 1]}, {}, {"file": ("x", "y")}, {"id": "an id, by its name"}),
        ({"0": WHOLE, "1": np.array([2, 2, 5, 1, 1])}, {"named": False}, {"file": ("0", "1")}, {}),
        ({"a": np.ones(5), "x": VEC[:, 0]}, {}, {"file": ("a", "x")}, {}),
        # several arrays
        ({"x": VEC, "y": OTHER}, {"is_table": False}, {"x": ("x",), "y": ("y",)}, {}),
        ({"x": VEC, "k": WHOLE}, {"is_table": False}, {"x": ("x",)}, {"k": "one number a row"}),
        ({"x": VEC[:, :1], "y": OTHER[:, :1]}, {"is_table": False}, {"x": ("x",), "y": ("y",)}, {}),
        ({"x": VEC, "y": decimals(5, 7)}, {"is_table": False}, {"x": ("x",), "y": ("y",)}, {}),
    ],
)  # fmt: skip
def test_what_each_column_is_taken_for(columns, how, layers, left_out):
    roles = vector_roles.decide_roles(Content(columns, **how), "file.x")
    assert dict(roles.layers) == layers and dict(roles.left_out) == left_out
    assert (roles.units, roles.labels, roles.mask, roles.places) == (None,) * 4


@pytest.mark.parametrize(
    ("columns", "how", "said"),
    [
        ({"v.ubinary": WHOLE[:, None] * [1, 2]}, {}, r"vectors of numbers in file.x; got packed bits only"),
        ({"v": VEC, "w": decimals(5, 3)}, {}, r"v \(4 decimals\) and w \(3 decimals\) may be layers.*--columns v$"),
        ({"v": VEC, "w": WHOLE[:, None] * [1, 2, 3, 4]}, {}, r"w \(4 whole numbers\)"),
        ({"v": np.c_[VEC[:, :2], WHOLE]}, {}, r"column 2 of 'v' holds whole numbers among decimals.*--columns v$"),
        ({"v": np.c_[VEC[:, :1], WHOLE, VEC[:, :2]]}, {"is_table": False},
         r"one way to read the array of file.x; got two: column 1 of 'v'.*--columns 0,2,3$"),
        ({"v": np.c_[np.arange(5), VEC]}, {"is_table": False},
         r"column 0 of 'v' counts the rows.*--columns 1-4$"),
        ({"x": VEC[:, 0], "n": WHOLE, "y": VEC[:, 1]}, {}, r"the column 'n' holds whole numbers.*--columns x,y$"),
        ({"x": TEXT}, {"unusable": {"w": "empty"}},
         r"columns of numbers, or .* in file.x; got x \(text\), w \(empty\)\."),
        ({"x": VEC[:, 0], "t": TEXT}, {}, r"got x \(decimals\), t \(text\)"),
        ({f"t{k}": TEXT for k in range(8)}, {}, r"t5 \(text\) and 2 more"),
        ({"k": WHOLE}, {"is_table": False}, r"arrays \[vector, dim\] in file.x; got k \(whole numbers\)"),
        ({"a.weight": VEC, "x": VEC}, {"is_table": False}, r"weights of a model, such as a.weight.*--columns a.weight"),
        ({"a.weight_hh": VEC}, {"is_table": False}, r"weights of a model, such as a.weight_hh"),
        ({"x": VEC, "y": decimals(6, 4)}, {"is_table": False}, r"got x \[5, 4\], y \[6, 4\]\. Cure: .*--columns x$"),
        ({f"x{k}": decimals(k + 2, 4) for k in range(7)}, {"is_table": False}, r"x5 \[7, 4\] …\."),
        ({"x": np.array(["1", "2", "b", "3", "4"], object)}, {"first_line": 3},
         r"every row of the column 'x' of file.x; got 'b' in line 5"),
    ],
)  # fmt: skip
def test_what_may_be_read_in_two_ways_is_told_with_the_likely_one(columns, how, said):
    with pytest.raises(CorpusError, match=said):
        vector_roles.decide_roles(Content(columns, **how), "file.x")


def test_what_the_user_names_goes_before_every_rule():
    table = Content(
        {"id": WHOLE, "x": VEC[:, 0], "y": VEC[:, 1], "v": VEC, "w": OTHER, "t": TEXT}
    )
    decide = vector_roles.decide_roles
    roles = decide(table, "file.x", columns="id,y", unit_column="t", label_column="x")
    assert roles.layers == {"file": ("id", "y")}
    assert (roles.units, roles.labels) == ("t", "x")
    assert roles.left_out == {"v": "not in --columns", "w": "not in --columns"}
    assert decide(table, "file.x", columns="w,v").layers == {"v": ("v",), "w": ("w",)}
    for spec, said in (
        ("v,x", r"columns of lists or columns of numbers.*'v' \(lists\) and 'x'"),
        ("t,x", r"numbers in the column 't' of file.x; got text"),
        (" , ", r"names, patterns or numbers of columns"),
        ("9", r"for --columns 9; .*numbered from 0 to 5"),
        ("xx", r"a column of file.x for --columns xx; got columns id, x, y, v, w, t"),
    ):
        with pytest.raises((CorpusError, UsageError), match=said):
            decide(table, "file.x", columns=spec)
    unusable = Content({"x": VEC[:, 0]}, unusable={"w": "empty lists"})
    with pytest.raises(
        CorpusError, match=r"numbers in the column 'w' of .*empty lists"
    ):
        decide(unusable, "file.x", columns="w")


def test_dimensions_of_the_only_array_can_be_named():
    """Units do not count as a second array; a name of an array goes before a number."""
    one = Content({"x": VEC, "unit": np.arange(10).reshape(5, 2)}, is_table=False)
    roles = vector_roles.decide_roles(one, "f.npz", columns="1-2")
    assert roles.places == (1, 2) and roles.layers == {"x": ("x",)}
    assert roles.units == "unit"
    assert vector_roles.decide_roles(one, "f.npz", columns="x").places is None
    two = Content({"x": VEC, "y": OTHER}, is_table=False)
    assert vector_roles.decide_roles(two, "f.npz", columns="1").layers == {"y": ("y",)}
    deep = Content({"x": decimals(5, 2, 3)}, is_table=False)
    roles = vector_roles.decide_roles(deep, "f.npz", columns="0")
    assert roles.places is None and roles.layers == {"x": ("x",)}


def test_a_range_may_hold_dashes_of_its_own():
    names = ["a-1", "a-2", "b", "a-3"]
    assert vector_roles._match_range_of_names("a-1-b", names) == names[:3]
    assert vector_roles._match_range_of_names("a-2-a-3", names) == names[1:]
    assert vector_roles._match_range_of_names("a-9-b", names) is None
    assert vector_roles._match_names("a-2", names, True) == ["a-2"]
    assert vector_roles._match_places("3-1", names) == []
    assert vector_roles._match_places("2", names) == ["b"]


def test_one_line_says_how_a_file_was_read():
    content = Content(
        {"d0": VEC[:, 0], "d1": VEC[:, 1], "who": TEXT, "sort": TEXT, "id": WHOLE, "year": WHOLE, "t": TEXT},
        notes=["header in line 1"],
    )  # fmt: skip
    roles = vector_roles.decide_roles(
        content, "f.csv", unit_column="who", label_column="sort"
    )
    assert vector_roles.describe_roles(content, roles, "f.csv", (5, 2)) == (
        "f.csv: 5 vectors of 2 numbers, columns d0–d1; units: who; labels: sort; "
        "left out: id (an id, by its name), year (by its name), t (text); "
        "header in line 1"
    )
    deep = decimals(5, 3, 4)
    mask = np.ones((5, 3), bool)
    arrays_ = Content({"x": deep, "y": deep, "mask": mask}, is_table=False)
    roles = vector_roles.decide_roles(arrays_, "f.npz")
    assert vector_roles.describe_roles(arrays_, roles, "f.npz", (5000, 3, 1024)) == (
        "f.npz: 5,000 sequences of up to 3 vectors of 1,024 numbers, 2 layers x, y; mask: mask"
    )
    one = Content({"x": VEC}, is_table=False)
    roles = vector_roles.decide_roles(one, "f.npy", columns="0,2-3")
    said = vector_roles.describe_roles(one, roles, "f.npy", (5, 3))
    assert said == "f.npy: 5 vectors of 3 numbers, columns 0, 2–3"
    roles = vector_roles.decide_roles(one, "f.npy")
    assert vector_roles._describe_columns(one, roles) == "array x"
    assert vector_roles._describe_left_out({"row numbers": "row numbers", "a": "text", "b": "text"}) == [
        "row numbers", "a, b (text)",
    ]  # fmt: skip


def test_kinds_of_numbers_of_arrays_and_tensors():
    for values, kind, words in (
        (torch.ones(2), "f", "decimals"),
        (torch.ones(2, dtype=torch.bfloat16), "f", "decimals"),
        (torch.ones(2, dtype=torch.int16), "i", "whole numbers"),
        (torch.ones(2, dtype=torch.bool), "b", None),
        (torch.ones(2, dtype=torch.complex64), "c", None),
        (np.ones(2, np.uint8), "u", "whole numbers"),
        (np.ones(2, np.float16), "f", "decimals"),
        (np.array(["a"]), "U", None),
    ):
        assert vector_roles._get_kind(values) == kind
        assert vector_roles._is_numeric(values) is (words is not None)
        if words:
            assert vector_roles._describe_kind(values) == words
            assert vector_roles._describe_column(values) == words
    wide = torch.ones(3, 2, dtype=torch.bfloat16)
    assert vector_roles._get_first_rows(wide).tolist() == [[1, 1]] * 3
    assert vector_roles._describe_column(wide) == "decimals [3, 2]"
    assert vector_roles._describe_column(np.array(["a"])) == "text"


def test_a_column_that_counts_rows_is_one_among_decimals_only():
    counted, more = np.arange(5), np.array([2, 2, 5, 1, 1])
    begins = vector_roles._begins_with_row_numbers
    for columns, result in (
        ({"0": counted, "1": VEC[:, 0], "2": VEC[:, 1]}, True),
        ({"0": counted, "1": more, "2": VEC[:, 1]}, True),
        ({"0": counted, "1": more, "2": more}, False),
        ({"0": counted, "1": VEC[:, 1]}, False),
        ({"0": VEC[:, 1], "1": counted, "2": VEC[:, 1]}, False),
    ):
        assert begins(Content(columns), list(columns)) is result


# ---- vectors in JSON and in files ------------------------------------------------------------------------------------


def test_lists_of_numbers_in_json():
    assert np.isnan(vector_json._to_numbers([1, None])[1])
    assert vector_json._to_numbers([1, 2]).dtype.kind == "i"
    for other in (
        [True, False],
        ["a"],
        [None, None],
        [],
        [1, "a"],
        [[1], [1, 2]],
        [1, None, True],
    ):
        assert vector_json._to_numbers(other) is None, other
    assert [
        vector_json._name_path(path)
        for path in ("data[].embedding", "[]", "e[]", "a[].b[]", "x.y")
    ] == [
        "embedding",
        "vectors",
        "e",
        "b",
        "x.y",
    ]
    assert vector_json._decode_base64("AACAPwAAAEA=").tolist() == [1.0, 2.0]
    for text in ("AACA", "AACAPwAAAEA", "AACAfwAAgH8=", "gJYYSwAAgD8=", "not base 64!"):
        assert vector_json._decode_base64(text) is None
    assert vector_json._collect_scalars(
        {"a": 1, "b": {"c": "x", "d": [1]}, "e": [2]}
    ) == {"a": 1, "b.c": "x"}
    assert vector_json._are_rows(["0", "1"]) and not vector_json._are_rows(["1", "2"])
    columns = vector_json._make_columns(
        [{"a": 1, "b": True, "c": "x"}, {"a": None, "b": False}]
    )
    assert (
        np.isnan(columns["a"][1])
        and columns["b"].dtype == bool
        and columns["c"].tolist() == ["x", None]
    )


def test_lists_beside_and_in_records_of_json():
    value = {"ids": [7, 8], "embeddings": [[0.5, 1.0], [1.5, 2.0]], "model": "m"}
    content = vector_json.read_json_value(value, "x.json")
    assert content.columns["embeddings"].shape == (2, 2) and content.columns[
        "ids"
    ].tolist() == [7, 8]
    assert content.columns["model"].tolist() == ["m", "m"]
    tokens = [
        {"hidden_states": [[0.5, 1.0], [1.5, 2.0]]},
        {"hidden_states": [[2.5, 3.0]]},
    ]
    content = vector_json.read_json_value(tokens, "x.json")
    assert content.columns["hidden_states"].shape == (2, 2, 2)
    assert content.masks["hidden_states"].tolist() == [[True, True], [True, False]]
    several = [{"thing": [[0.5, 1.0], [1.5, 2.0]]}, {"thing": [[2.5, 3.0]]}]
    assert (
        "several vectors in a record"
        in vector_json.read_json_value(several, "x.json").unusable["thing"]
    )
    alike = {
        "queries": [{"vec": [0.5, 1.0]}],
        "documents": [{"vec": [1.5, 2.0]}, {"vec": [2.5, 3.0]}],
    }
    content = vector_json.read_json_value(alike, "x.json")
    assert list(content.columns) == ["documents[].vec"] and list(content.unusable) == [
        "queries[].vec"
    ]
    split = {"columns": ["a", "b"], "data": [[1.5, 2.5], [3.5, 4.5]], "index": [0, 1]}
    assert vector_json.read_json_value(split, "x.json").columns["b"].tolist() == [
        2.5,
        4.5,
    ]


def test_which_files_are_layers_pieces_and_lines_of_numbers():
    assert vector_files.natural_sort_key("layer.2") < vector_files.natural_sort_key(
        "layer.10"
    )
    rows = {
        "1 2": True,
        "a 1.5 2": True,
        "a 1 2": False,
        "1": False,
        "a b c": False,
        "a .5": False,
    }
    assert {
        text: vector_files._is_row_of_numbers(text.split()) for text in rows
    } == rows
    for stem in ("layer_0", "hidden_states.11", "model.layer-3", "h4", "HIDDEN_STATE2", "x.block07"):  # fmt: skip
        assert vector_files.LAYERS.fullmatch(stem), stem
    assert not vector_files.LAYERS.fullmatch(
        "player3"
    ) and not vector_files.LAYERS.fullmatch("layer")
    for stem in ("part-0", "train-00001-of-00004", "x_shard2", "validation"):
        assert vector_files.PIECES.fullmatch(stem), stem
    for word in [
        "part",
        "shard",
        "chunk",
        "batch",
        "train",
        "test",
        "val",
        "validation",
        "data",
        "rank",
    ]:
        for stem in (f"{word}3", f"x-{word.upper()}_0-of-2"):
            assert vector_files.PIECES.fullmatch(stem), stem
    assert not vector_files.PIECES.fullmatch(
        "depart"
    ) and not vector_files.PIECES.fullmatch("a")
    for name in (
        "config.json",
        "model-00001-of-2.safetensors",
        "pytorch_model.bin",
        "tokenizer_config.json",
    ):
        assert vector_files.OF_MODEL.fullmatch(name), name
    assert not vector_files.OF_MODEL.fullmatch("vectors.json")


def test_what_a_file_of_torch_holds(tmp_path):
    path = tmp_path / "x.pt"
    found = dict(
        vector_files._iter_tensors(
            {"a": [torch.ones(3)] * 2, "b": {"c": torch.ones(2, 2)}, "n": [1, 2]}, path
        )
    )
    assert {name: tuple(value.shape) for name, value in found.items()} == {
        "a": (2, 3),
        "b.c": (2, 2),
        "n": (2,),
    }
    layers = dict(
        vector_files._iter_tensors([torch.ones(2, 3, 4), torch.zeros(2, 3, 4)], path)
    )
    assert list(layers) == ["layer 0", "layer 1"] and layers["layer 1"].sum() == 0
    assert list(dict(vector_files._iter_tensors(torch.ones(2, 2), path))) == ["x"]
    for several, said in (
        ([torch.ones(2, 3), torch.ones(4, 3)], "2 matrices"),
        ([torch.ones(2), torch.ones(3)], "of one width"),
    ):
        with pytest.raises(CorpusError, match=said):
            dict(vector_files._iter_tensors(several, path))


# ---- vectors in memory -----------------------------------------------------------------------------------------------


def test_a_block_of_vectors_keeps_every_digit():
    for given, kind in (
        (np.array([[2**30 + 1, 2]], np.int32), torch.float64),
        (np.array([[3, 2]], np.int16), torch.float32),
        (np.array([[0.5, 2]], np.float16), torch.float32),
        (np.array([[0.5, 2]], np.float64), torch.float64),
        (np.array([[0.5, 2]], np.longdouble), torch.float64),
        (np.array([[0.5, 2]], ">f4"), torch.float32),
        (torch.tensor([[0.5, 2]], dtype=torch.bfloat16), torch.float32),
    ):
        block = arrays.wrap_vectors(given).block("0", np.array([0]))
        assert (
            block.dtype == kind
            and block.shape == (1, 1, 2)
            and block[0, 0].tolist() == given[0].tolist()
        )
    four = arrays.wrap_vectors(np.arange(8.0).reshape(4, 2))
    assert four.block("0", np.array([1, 2]))[:, 0, 0].tolist() == [2, 4]


def test_batches_of_vectors_and_sequences(monkeypatch):
    plan = arrays.VectorPlan(
        arrays.wrap_vectors(
            np.arange(20.0).reshape(10, 2), units=[*"aabbccddee"], labels=[*"xy"] * 5
        )
    )
    batch = plan[0]
    assert (
        len(plan) == 1
        and batch.label.tolist() == [0, 1] * 5
        and plan.classes == ("x", "y")
    )
    assert batch.unit.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4] and plan.n_units == 5
    assert (
        batch.streams["vectors"].start.tolist() == [*range(10)]
        and plan.words["position"] == "vector"
    )
    mask = np.array([[1, 1, 0], [1, 0, 0]])
    sequences = arrays.VectorPlan(arrays.wrap_vectors(np.ones((2, 3, 4)), mask=mask))
    stream = sequences[0].streams["vectors"]
    assert (
        stream.start.tolist() == [0, 3]
        and stream.mask.tolist() == mask.astype(bool).tolist()
    )
    assert sequences.tokens == [3] and sequences.words["counted"] == "token"
    monkeypatch.setattr(arrays, "BLOCK_BYTES", 8 * 2 * 4)
    layers = {"narrow": np.ones((10, 1)), "wide": np.ones((10, 2))}
    assert [
        len(rows) for rows in arrays.VectorPlan(arrays.wrap_vectors(layers)).batches
    ] == [4, 4, 2]


@pytest.mark.parametrize(
    ("given", "options", "said"),
    [
        (np.ones((3, 2)), {"units": [1, None, 2]}, "1 missing"),
        (np.ones((3, 2)), {"labels": [1, 2]}, "a label for each of 3"),
        (np.ones((2, 3, 4)), {"labels": [1, 2]}, "pool them"),
        (
            np.ones((2, 3, 4)),
            {"mask": np.ones((2, 4))},
            r"a mask of the shape \[2, 3\]",
        ),
        (np.ones((3, 2)), {"mask": np.ones((3, 2))}, "a mask of the shape"),
        (
            {"a": np.ones((3, 2)), "b": np.ones((4, 2))},
            {},
            "layers of the same shape",
        ),
        (np.ones(3), {}, r"x\[None\]"),
        (np.ones((3, 2), bool), {}, "real numbers"),
        (np.ones((3, 2), complex), {}, "real numbers"),
        ([], {}, "at least one array"),
        ("text", {}, "arrays or tensors"),
    ],
)
def test_arrays_that_are_no_vectors_are_refused(given, options, said):
    with pytest.raises(UsageError, match=said):
        arrays.wrap_vectors(given, **options)


# ---- labelled examples -----------------------------------------------------------------------------------------------


def corpus(sizes, labels=("a", "b"), source=None, **splits):
    made = {
        split: tuple(Example((f"{split}{i}",), i % 2) for i in range(n))
        for split, n in sizes.items()
    }
    return LabelledCorpus("c", labels, made | splits, source=source or {})


def test_a_balanced_part_is_taken_in_order():
    examples = [Example((str(i),), label) for i, label in enumerate([0, 0, 0, 1, 1, 0])]
    assert [e.text for e in labelled.take_balanced(examples, 3, 2)] == ["0", "1", "3"]
    assert [e.text for e in labelled.take_balanced(examples, 4, 2)] == [
        "0",
        "1",
        "3",
        "4",
    ]


def test_a_random_division_has_the_shares_of_every_class():
    examples = [Example((str(i),), int(i >= 20)) for i in range(30)]
    parts = labelled.split_at_random(
        examples, {"train": 0.8, "validation": 0.1, "test": 0.1}, 3
    )
    counts = {
        name: [sum(e.label == label for e in part) for label in (0, 1)]
        for name, part in parts.items()
    }
    assert counts == {"train": [16, 8], "validation": [2, 1], "test": [2, 1]}
    order = [int(e.text) for e in parts["train"]]
    assert order == sorted(order) and sorted(
        int(e.text) for part in parts.values() for e in part
    ) == [*range(30)]
    again, other = (
        labelled.split_at_random(examples, {"a": 0.5, "b": 0.5}, seed)
        for seed in (3, 4)
    )
    assert again == labelled.split_at_random(examples, {"a": 0.5, "b": 0.5}, 3) != other


@pytest.mark.parametrize(
    ("source", "split", "options", "chosen", "note"),
    [
        ({}, "", {}, "test", ""),
        ({}, "train", {}, "train", ""),
        (
            {"drawn": ["test"]},
            "",
            {},
            "test",
            "c has no test split: looked at 2 of 14 rows drawn at random",
        ),
        ({"drawn": ["validation"]}, "", {}, "test", ""),
        (
            {"drawn": list(labelled.SPLITS)},
            "",
            {},
            "all",
            "c has no splits: looked at all 14 rows",
        ),
        (
            {"drawn": list(labelled.SPLITS)},
            "",
            {"limit": 4},
            "all",
            "looked at 4 of 14 rows (--limit: there are 14)",
        ),
        (
            {"drawn": list(labelled.SPLITS)},
            "",
            {"trained_on": True},
            "held-out",
            "6 of 14 rows that the model was not",
        ),
    ],
)
def test_which_split_is_looked_at(source, split, options, chosen, note):
    given = corpus({"train": 8, "validation": 4, "test": 2}, source=source)
    found, name, said = labelled.choose_split(
        given, split, **{"trained_on": False} | options
    )
    assert name == chosen and note in said and bool(note) == bool(said)
    assert (
        len(found.splits[name])
        == {"test": 2, "train": 8, "all": 14, "held-out": 6}[name]
    )


def test_a_corpus_is_usable_from_two_examples_of_every_class_on():
    assert labelled.require_usable(corpus({"train": 4, "validation": 2, "test": 2}))
    for sizes, said in (
        (
            {"train": 3, "validation": 2, "test": 2},
            "at least 2 examples of every class in the train split.*b .1.",
        ),
        (
            {"train": 4, "validation": 1, "test": 2},
            "at least 1 example of every class in the validation split",
        ),
        ({"train": 4, "validation": 2}, "a test split in c"),
    ):
        with pytest.raises(CorpusError, match=said):
            labelled.require_usable(corpus(sizes))
    with pytest.raises(CorpusError, match="at least 2 classes"):
        labelled.require_usable(corpus({}, labels=("a",)))
    for example, pairs, said in (
        (Example(("a",), 0), True, "two texts"),
        (Example(("a",), 0, ("b",)), False, "one text"),
        (Example((), 0), False, "text in every row .w."),
        (Example(("a",), 0, ()), True, "text in every row .w."),
        (Example(("a",), 0, ("b",), (1.0,)), True, "2 marks, one per word"),
    ):
        with pytest.raises(CorpusError, match=said):
            labelled.check_example(example, "w", pairs=pairs)
    counted = corpus({"train": 4, "test": 3})
    assert counted.counts() == {"train": {"a": 2, "b": 2}, "test": {"a": 2, "b": 1}}
    assert counted.majority() == 2 / 3 and counted.majority("train") == 0.5
    assert (
        len(counted.limited(2).splits["train"]) == 2
        and counted.limited(None) is counted
    )


def test_a_fingerprint_holds_all_that_is_read():
    base = Example(("a", "b"), 0)
    others = [
        Example(("a b",), 0),
        Example(("a", "b"), 1),
        Example(("a",), 0, ("b",)),
        Example(("a", "b"), 0, None, (1, 0)),
    ]
    prints = {
        LabelledCorpus("c", ("x", "y"), {"train": (each,)}).fingerprint
        for each in (base, *others)
    }
    prints.add(LabelledCorpus("c", ("x", "z"), {"train": (base,)}).fingerprint)
    prints.add(LabelledCorpus("c", ("x", "y"), {"test": (base,)}).fingerprint)
    prints.add(
        LabelledCorpus("c", ("x", "y"), {"train": (base,)}, tokenised=True).fingerprint
    )
    assert len(prints) == 8


def labelled_row(label, names=None, **values):
    return labelled_tables._label_row(
        "w",
        {"label": label} | values,
        {"label": "label"} | {k: k for k in values},
        names,
    )


def test_labels_of_a_table():
    assert [
        labelled_row(x).label for x in (1, 1.0, "1.00", " x ", None, -1.0, "1.5", True)
    ] == [
        *("1", "1", "1", "x", "", "-1", "1.5", "True"),
    ]
    assert [labelled_row(x, ["no", "yes"]).label for x in (0, 1, 2, -1, "yes")] == [
        "no",
        "yes",
        "",
        "",
        "yes",
    ]
    with pytest.raises(CorpusError, match="one label"):
        labelled_row([1, 2])
    rows = [labelled_row(x) for x in ("10", "9", "b", "a", "")]
    assert labelled_tables._collect_labels(rows) == ["9", "10", "a", "b"]
    assert labelled_tables._collect_labels([labelled_row(x) for x in (-1, 1)]) == [
        "-1",
        "1",
    ]
    for bad in ((-1, 0, 1), ("nan", "a"), ("inf", "a"), ("<NA>", "b")):
        with pytest.raises(CorpusError, match="a label in every row"):
            labelled_tables._collect_labels([labelled_row(x) for x in bad])
    assert labelled_tables._collect_labels([labelled_row(x) for x in (-2, -1, 0)]) == [
        "-2",
        "-1",
        "0",
    ]


def test_words_and_marks_of_a_row():
    assert labelled_tables._split_words(" a  b ", "w") == (
        "a",
        "b",
    ) and labelled_tables._split_words(["a b"], "w") == ("a b",)
    assert (
        labelled_tables._split_words(["a", "b"], "w") == ("a", "b")
        and labelled_tables._split_words(None, "w") == ()
    )
    with pytest.raises(CorpusError, match="one text"):
        labelled_tables._split_words(["a b", "c"], "w")
    for text in ([0, 1], "[0, 1]", "0 1", "0,1", " 0  1 "):
        assert labelled_tables._parse_marks(text, "w") == (0.0, 1.0), text
    assert (
        labelled_tables._parse_marks("", "w")
        is labelled_tables._parse_marks([], "w")
        is labelled_tables._parse_marks(None, "w")
        is None
    )
    for bad in ([0, 1.5], [-0.1], "x", "[1", 7):
        with pytest.raises(CorpusError, match="between 0 and 1"):
            labelled_tables._parse_marks(bad, "w")


def test_text_and_label_of_two_columns_are_told_by_their_content():
    texts, classes = [f"some words {i}" for i in range(6)], [*"ababab"]
    for columns in ({"x": texts, "y": classes}, {"y": classes, "x": texts}):
        assert labelled_tables._guess_by_content(columns) == {"text": "x", "label": "y"}
    for unclear in (
        {"x": texts, "y": [*"abcdef"]},  # no class repeats
        {"x": texts, "y": [*"abcdee"]},  # most classes have one text
        {"x": [*"uvwxyz"], "y": classes},  # texts of one word
        {"x": [*"uvwxy", "z z"], "y": classes},  # hardly more words than classes
        {"x": texts, "y": classes, "z": classes},
    ):
        assert labelled_tables._guess_by_content(unclear) == {}
    assert labelled_tables._guess_by_content({"x": texts[:2], "y": [*"aa"]}) == {
        "text": "x",
        "label": "y",
    }
    choose = labelled_tables._assign_columns
    assert choose("t", {"text": "body"}, ["body", "sentence2", "label"]) == {
        "text": "body",
        "label": "label",
    }
    assert choose("t", {}, ["body", "sentence2", "label"]) == {
        "text": "body",
        "second": "sentence2",
        "label": "label",
    }
    assert choose("t", {}, ["x", "y"], {"text": "x", "label": "y"}) == {
        "text": "x",
        "label": "y",
    }
    with pytest.raises(CorpusError, match="--text-column"):
        choose("t", {}, ["y", "label"], {"text": "label", "label": "y"})


def test_splits_of_a_table():
    rows = [
        labelled_row("a", split=split) for split in ("Train", "dev", " test ", "valid")
    ]
    assert {
        k: len(v) for k, v in labelled_tables._group_by_split(rows, "s").items()
    } == {
        "train": 1,
        "validation": 2,
        "test": 1,
    }
    with pytest.raises(CorpusError, match="a split in the column"):
        labelled_tables._group_by_split([labelled_row("a", split=None)], "s")
    assert labelled_tables._find_missing_splits({"": []}) == [*labelled.SPLITS]
    assert labelled_tables._find_missing_splits({"train": [1], "test": []}) == [
        "validation",
        "test",
    ]
    examples = [Example((str(i),), i % 2) for i in range(40)]
    read = labelled_tables._complete_splits(
        {"train": examples, "test": examples[:4], "extra": examples[:1]}, 0
    )
    assert {k: len(v) for k, v in read.items()} == {
        "train": 36,
        "validation": 4,
        "test": 4,
        "extra": 1,
    }
    assert list(read) == ["train", "validation", "test", "extra"]
    assert {
        k: len(v)
        for k, v in labelled_tables._complete_splits({"train": examples}, 0).items()
    } == {
        "train": 32,
        "validation": 4,
        "test": 4,
    }
    assert len(labelled_tables._complete_splits({"": examples}, 0)["validation"]) == 4


def test_tables_of_a_folder_are_named_after_splits(tmp_path):
    for name in ("train.csv", "val.csv", "notes.csv", "readme.txt"):
        (tmp_path / name).write_text("text,label\na b,x\n")
    found = labelled_tables._find_splits(tmp_path)
    assert {split: file.name for split, file in found.items()} == {
        "train": "train.csv",
        "validation": "val.csv",
    }
    (tmp_path / "dev.csv").write_text("text,label\n")
    with pytest.raises(CorpusError, match="one table of the split validation"):
        labelled_tables._find_splits(tmp_path)


# ---- texts -----------------------------------------------------------------------------------------------------------


def test_batches_of_rows_within_a_budget():
    packed = plans.pack(np.array([3, 9, 3, 5]), 10)
    assert [rows.tolist() for rows in packed] == [[1], [3, 0], [2]]
    assert [rows.tolist() for rows in plans.pack(np.array([3, 3, 3]), 6)] == [
        [0, 1],
        [2],
    ]
    assert [rows.tolist() for rows in plans.pack(np.array([7]), 2)] == [[0]]
    assert [rows.tolist() for rows in plans.batch_in_order(5, 2)] == [
        [0, 1],
        [2, 3],
        [4],
    ]
    with pytest.raises(UsageError, match="--batch-tokens"):
        plans.pack(np.array([1]), 0)
    assert plans.hash_parts(["ab", "c"]) != plans.hash_parts(["a", "bc"])
    assert plans.hash_parts([np.arange(4).reshape(2, 2).T]) == plans.hash_parts(
        [np.array([[0, 2], [1, 3]])]
    )
    config = type(
        "Config",
        (),
        {"decoder_start_token_id": None, "bos_token_id": 0, "pad_token_id": 5},
    )
    assert (
        plans.find_decoder_start(config) == 0
        and plans.find_decoder_start(object()) == 0
    )


def test_windows_are_cut_from_units():
    ids = np.array([*range(5), 10, 11], dtype=np.int32)
    cut = windows.cut_windows(ids, np.array([5, 2]), 4, 2)
    assert cut.unit.tolist() == [0, 0, 0, 1] and cut.offset.tolist() == [0, 2, 4, 5]
    assert cut.length.tolist() == [2, 2, 1, 2] and cut.start.tolist() == [0, 4, 8, 0]
    assert (
        windows.cut_blocks(7, 3).tolist() == [3, 3, 1]
        and windows.cut_blocks(0, 3).tolist() == []
    )
    asked = []
    pieces = (asked.append(n) or ids[n : n + 3] for n in (0, 3, 6))
    assert [piece.tolist() for piece in windows.take_tokens(pieces, 5)] == [
        [0, 1, 2],
        [3, 4],
    ] and asked == [0, 3]
    assert len(list(windows.take_tokens([ids, ids], None))) == 2
    windows.check_room(3, 2)
    with pytest.raises(UsageError, match="at least 3 tokens"):
        windows.check_room(2, 2)


def test_bins_of_frequency_have_equal_counts():
    ids = np.repeat(np.arange(4), [1, 1, 2, 16]).astype(np.int32)
    bins, labels = windows.bin_by_frequency(ids)
    assert (
        bins.tolist() == [0, 0, 0, 3]
        and labels[0] == "q1 (count 1–2)"
        and labels[1] == "q2 (empty)"
    )
    assert labels[3] == "q4 (count 16–16)"
    marks = {
        ".": True,
        " ,": True,
        "\n": True,
        " ": False,
        "": False,
        "a.": False,
        "…”": True,
        "+": False,
    }
    assert {text: windows.is_punctuation(text) for text in marks} == marks


def text_plan(max_length=6, side="right", stacks=("encoder",), **more):
    """Windows of units of 5, 2 and 3 tokens, with special tokens 90 before and 91, 92 behind."""
    ids = np.array([7, 2, 3, 4, 5, 6, 7, 1, 1, 2], np.int32)
    around = windows.Affixes((90,), (91, 92))
    cut = windows.cut_windows(ids, np.array([5, 2, 3], np.int32), max_length, 3)
    settings = {"batch_tokens": 100, "padding_side": side, "pad_id": 99} | more
    return windows.TextPlan(
        cut,
        dict.fromkeys(stacks, around),
        settings,
        ["x"],
        {"position": "token"},
        punctuation=np.array([False] * 7 + [True]),
    )


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_batch_of_windows_has_special_tokens_padding_and_places(side):
    plan = text_plan(side=side)
    rows = np.array([1, 2])  # the rest of the first unit and the second unit
    batch = plan.build(np.array([0, *rows]))
    ids, stream = batch.inputs["input_ids"], batch.streams["encoder"]
    assert ids[0].tolist() == [90, 7, 2, 3, 91, 92]
    short = [90, 4, 5, 91, 92]
    place = [99, *short] if side == "left" else [*short, 99]
    assert ids[1].tolist() == place
    assert stream.start.tolist() == ([0, 5, -1] if side == "left" else [0, 6, 0])
    assert stream.mask.sum(1).tolist() == [6, 5, 5]
    assert stream.special.sum(1).tolist() == [3, 3, 3]
    assert stream.punctuation.sum(1).tolist() == [1, 0, 1]
    content = stream.mask & ~stream.special
    assert ((stream.frequency >= 0) == content).all()
    assert batch.unit.tolist() == [0, 0, 1]
    assert text_plan(to_merge=True)[0].streams["encoder"].frequency is None
    assert text_plan(is_part=True)[0].streams["encoder"].frequency is None


def test_stacks_are_given_names_of_their_own_only_if_there_are_two():
    assert "input_ids" in text_plan(stacks=("decoder",))[0].inputs
    both = text_plan(stacks=("encoder", "decoder"))
    assert {"input_ids", "decoder_input_ids"} <= both[0].inputs.keys()
    assert both.tokens_hash is None, "its stacks read different tokens"
    hashes = {text_plan().tokens_hash, text_plan(5).tokens_hash}
    changed = text_plan()
    for around in (windows.Affixes((90,), (91,)), windows.Affixes((), (91, 92))):
        changed.affixes = {"encoder": around}
        hashes.add(changed.tokens_hash)
    assert len(hashes) == 4 and text_plan(side="left").tokens_hash in hashes


def test_some_windows_of_a_plan_are_another_plan():
    plan = text_plan()
    assert plan.lengths.tolist() == [6, 5, 5, 6]
    two = plan.spread(2)
    assert two.windows.offset.tolist() == [0, 5] and two.warnings == []
    assert plan.spread(4).warnings == []
    assert plan.spread(5).warnings == ["4 windows only, 5 asked for"]
    assert two.punctuation is plan.punctuation
    long = plan.at_least(6)
    assert long.windows.offset.tolist() == [0, 7]
    assert long.warnings[0].startswith("2 windows of fewer than 6 tokens left out")
    assert plan.at_least(5) is plan
    prints = {each.fingerprint for each in (plan, two, long, plan.spread(3))}
    rows = [plan._only(np.array(x), {}, []).fingerprint for x in ([0, 1], [2, 3])]
    assert len({*prints, *rows}) == 6
    with pytest.raises(CorpusError, match="at least 7 tokens"):
        plan.at_least(7)
    assert len(text_plan(is_part=True).at_least(7)) == 0


def test_windows_of_many_units_follow_one_another(monkeypatch):
    lengths = np.array([5, 2, 3, 1], np.int32)
    whole = windows.cut_windows(np.arange(11), lengths, 4, 2)
    monkeypatch.setattr(windows, "_UNITS", 2)
    parts = windows.cut_windows(np.arange(11), lengths, 4, 2)
    for one, other in zip(whole[1:], parts[1:], strict=True):
        assert one.tolist() == other.tolist()
    monkeypatch.setattr(windows, "_CHUNK", 4)
    texts = ["abcd", "a", "b", "c"]
    assert list(windows._iter_chunks(texts)) == [["abcd"], ["a", "b", "c"]]
    both = windows.IdCounts(4, 1, 9).add(windows.IdCounts(3, 2, 5))
    assert both == windows.IdCounts(7, 3, 9)


def test_a_block_of_a_large_text_adds_to_the_counts_of_the_others(monkeypatch):
    blocks = [np.array([0, 0, 3], np.int32), np.array([0, 1], np.int32)]
    monkeypatch.setattr(windows, "iter_blocks", lambda _: iter(blocks))
    for _ in range(2):
        blocks.reverse()
        assert windows.count_types(None).tolist() == [3, 1, 0, 1]


# ---- labelled examples as token ids ----------------------------------------------------------------------------------


def encoded(*lengths):
    rows = [
        {"input_ids": [5] * n, "token_type_ids": [1] * n, "labels": i % 2}
        for i, n in enumerate(lengths)
    ]
    return encoding.Encoded(rows, [[-1] + [0] * (n - 1) for n in lengths])


def test_rows_are_padded_on_their_side_and_without_padding_by_length():
    for side, where in (("right", slice(2, 3)), ("left", slice(0, 1))):
        batch = encoding.pad_batch(encoded(3, 2).rows, encoding.Padding(7, side))
        assert batch["input_ids"][1, where].item() == 7
        assert batch["token_type_ids"][1, where].item() == 0
        assert batch["attention_mask"].tolist()[1].index(0) == where.start
    packed = encoding.pack_padded([2, 4, 2, 4, 2], 4, encoding.Padding(0, "none"))
    assert [rows.tolist() for rows in packed] == [[1], [3], [0, 2], [4]]


def test_a_plan_of_examples_has_its_special_tokens_where_they_are():
    for side in ("right", "left"):
        plan = encoding.LabelledPlan(
            encoded(3, 2), encoding.Padding(0, side), stack=("encoder", "decoder")
        )
        batch = plan.build(np.array([0, 1]))
        mask = batch.streams["encoder"].mask
        firsts = (batch.streams["encoder"].special & mask).nonzero()[:, 1].tolist()
        assert firsts == ([0, 1] if side == "left" else [0, 0]), side
        assert batch.streams["decoder"].special[0].tolist() == [True, True, False]
        assert plan.stack == "decoder" and plan.classes == ("0", "1")
        assert batch.label.tolist() == [0, 1]
    sides = [encoding.Padding(0, side) for side in ("right", "left", "none")]
    same = encoded(3, 3)
    assert len({encoding.LabelledPlan(same, each).fingerprint for each in sides}) == 3


def test_words_are_ranked_by_how_often_they_stand_in_both_texts():
    rows = [Example(("b", "a"), 0, ("B", "c")), Example(("a",), 1, ("<cls>",))]
    given = LabelledCorpus("c", ("x", "y"), {"train": (*rows, *rows)}, tokenised=True)
    tokenizer = encoding.build_tokenizer(given, max_length=9, separator=True)
    assert tokenizer.convert_ids_to_tokens([*range(len(tokenizer))]) == [
        *("<pad>", "<unk>", "a", "b", "c", "<cls>", "<sep>"),
    ]
    whole = encoding.encode(rows[:1], tokenizer, 6)
    assert whole.words == [[-1, 0, 1, -1, 2, 3]] and whole.truncated == 0
    cut = encoding.encode([Example(("a",) * 3, 0, ("b",) * 5)], tokenizer, 7)
    ids = cut.rows[0]["input_ids"]
    assert sorted((ids.count(2), ids.count(3))) == [2, 3] and cut.truncated == 1
    encoding.encode(rows[:1], tokenizer, 3)
    with pytest.raises(UsageError, match="at least 3"):
        encoding.encode(rows, tokenizer, 2)


def test_a_token_is_of_the_word_that_its_last_character_is_of():
    """A token may begin with the blank before its word, or be a blank alone."""

    class Encoding(dict):
        def sequence_ids(self, _):
            return [0, 0, 0, 0, 1, None]

    spans = [(0, 2), (1, 5), (2, 3), (5, 6), (0, 3), (0, 0)]
    example = Example(("ab", "cd"), 0, ("efg",))
    found = encoding._index_words(Encoding(offset_mapping=[spans]), 0, example)
    assert found == [0, 1, 1, 1, 2, -1]


def test_what_a_labelled_corpus_says_of_itself():
    given = corpus({"train": 4, "test": 3})
    described = given.described()
    assert described["pairs"] is False and "limit" not in described
    assert given.limited(2).described()["limit"] == 2
    pair = Example(("a",), 0, ("b",), (1.0, 0.0))
    found = corpus({}, train=(pair,)).described()
    assert found["rationales"] == {"train": 1} and found["pairs"] is True
    # Four rows of one class and one of the other: a limit of four takes two of one.
    uneven = tuple(Example((str(i),), int(i > 3)) for i in range(5))
    one = corpus({"validation": 0, "test": 0}, train=uneven, source=ALL_DRAWN)
    _, _, note = labelled.choose_split(one, "", trained_on=False, limit=4)
    assert note.endswith("3 of 5 rows (--limit: there are 5)")
    held = corpus({"train": 8, "validation": 4, "test": 2}, source=ALL_DRAWN)
    _, _, note = labelled.choose_split(held, "", trained_on=True, limit=4)
    assert note.endswith("(--limit: there are 6)")
    bad = corpus({"train": 4, "validation": 2}, test=(Example((), 0), Example((), 1)))
    with pytest.raises(CorpusError, match="example 1 of c, test"):
        labelled.require_usable(bad)


ALL_DRAWN = {"drawn": list(labelled.SPLITS)}


# ---- texts of files and tables ---------------------------------------------------------------------------------------


def test_files_of_a_folder_are_read_apart_if_each_ends_its_documents(tmp_path):
    def names(folder, **options):
        found = documents.list_separate_files(
            tmp_path / folder, CorpusOptions(**options)
        )
        return [path.name for path in found]

    for place, text in (
        ("texts/a.txt", "one"),
        ("texts/b.txt", "two"),
        ("single/a.txt", "one"),
        ("tables/a.jsonl", '{"text": "x"}'),
        ("empty/a.jsonl", '{"text": " "}'),
        ("articles/a.jsonl", '{"text": " = Title = "}'),
        ("both/a.txt", "one"),
        ("both/b.jsonl", '{"text": "x"}'),
        ("none/a.png", ""),
    ):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_text(text)
    found = {
        folder: names(folder)
        for folder in ("texts", "single", "tables", "empty", "articles", "both", "none")
    }
    assert {folder: files for folder, files in found.items() if files} == {
        "texts": ["a.txt", "b.txt"],
        "tables": ["a.jsonl"],
        "empty": ["a.jsonl"],
    }
    assert names("texts", limit=1) == names("texts", documents="tokens:9") == []


def test_rows_of_a_table_are_documents_and_say_what_was_left_out(tmp_path):
    rows = [
        '{"text": " "}',
        '{"text": null}',
        '{"text": ["two", "words"]}',
        '{"other": 1}',
        '{"text": [{"content": "a"}, {"content": ""}, {"content": "b"}]}',
    ]
    path = tmp_path / "folder" / "x.jsonl"
    path.parent.mkdir()
    path.write_text("\n".join(rows))
    skipping = CorpusOptions(skip_bad=True)
    read = documents.read_path(path, skipping)
    assert [*read.documents] == ["two words", "a\nb"]
    assert (read.empty, read.skipped, read.column) == (2, 1, "text")
    with pytest.raises(CorpusError, match=r"got x.jsonl, line 4 without that column"):
        documents.read_path(path.parent, CorpusOptions())
    whole = documents.read_path(path.parent, skipping)
    assert [*whole.owner] == [0, 0]
    path.write_text("3\n")
    assert documents.read_path(path, skipping).skipped == 1
    lines = ['{"text": ""}', '{"text": " = A = "}', '{"text": "x"}']
    path.write_text("\n".join([*lines, *lines]))
    assert len(documents.read_path(path, CorpusOptions()).documents) == 2
    assert len(documents.read_path(path, CorpusOptions(limit=1)).documents) == 1
    listed = documents.list_if_texts(iter([{"text": "a"}, {"text": "b"}]))
    assert len(listed) == 2 and documents.list_if_texts(iter("ab")) == ["a", "b"]
    assert list(documents.list_if_texts(iter([1, 2]))) == [1, 2]


def test_text_files_of_a_folder_are_a_document_each(tmp_path):
    for name, text in (("a.txt", "one\n\ntwo"), ("b.txt", " "), ("c.txt", "three")):
        (tmp_path / name).write_text(text)
    read = documents.read_path(tmp_path, CorpusOptions())
    assert [*read.documents] == ["one\n\ntwo", "three"]
    assert read.empty == 1 and [*read.owner] == [0, 2]
    assert len(documents.read_path(tmp_path, CorpusOptions(limit=1)).documents) == 1
    blocks = documents.read_path(tmp_path, CorpusOptions(documents="tokens:5", limit=1))
    assert len(blocks.documents) == 2 and blocks.owner is None


class Tokenizer:
    vocab_size, unk_token_id = 10, 0

    def __init__(self, size=10):
        self.size = size

    def __len__(self):
        return self.size


def test_a_tokenizer_fits_its_model():
    ids = np.array([0, 1, 2, 3], np.int32)

    def check(size=10, vocabulary=10, ids=ids, affixes=()):
        return windows.check_vocabulary(Tokenizer(size), ids, list(affixes), vocabulary)

    assert check() == [] and check(vocabulary=None) == [] and check(9) == []
    assert "is it the model's own?" in check(8)[0]
    assert check(ids=np.array([0, 0, 1, 2], np.int32)) == []
    for options in (
        {"size": 4},
        {"vocabulary": 9},
        {"ids": np.array([10], np.int32)},
        {"affixes": [windows.Affixes((10,))]},
        {"ids": np.array([0, 0, 1], np.int32)},
        {"ids": np.array([], np.int32)},
    ):
        with pytest.raises(ModelError):
            check(**options)


@pytest.mark.parametrize(
    ("text", "how", "unit", "count"),
    [
        ("one\n\ntwo\n\nthree", "blank lines", "paragraph", 3),
        ("one\ntwo\nthree", "lines", "line", 3),
        ("word " * 3000, "blocks of 64 tokens", "block", 1),
        ("alone", "blocks of 32 tokens", "block", 1),
        (" = T = \n\nbody\n\n = U = \n\nmore", "titles", "article", 2),
        (("w " * 200 + "\n\n") * 2, "blank lines", "document", 2),
        (("w " * 199 + "\n\n") * 2, "blank lines", "paragraph", 2),
        (
            ("word " * 180 + "\n\n") * 20,
            "blank lines",
            "paragraph",
            20,
        ),  # as many as an interval needs
        (("word " * 190 + "\n\n") * 19, "blocks of 128 tokens", "block", 1),
    ],
)
def test_units_of_a_text_without_marks(text, how, unit, count):
    found = splitting.split_text(text)
    assert (found.unit, len(found.documents), found.how) == (unit, count, how)


def test_rules_of_documents():
    for rule in ("auto", "file", "blank-line", "line", "tokens:1", "tokens:999999999"):
        assert splitting.check_rule(rule) == rule
    for rule in (
        "tokens:0",
        "tokens:",
        "tokens:N",
        "lines",
        "tokens:1000000000",
        "tokens:-3",
    ):
        with pytest.raises(UsageError, match="--documents"):
            splitting.check_rule(rule)
    assert splitting.split_text("a\n\nb\nc", None, "blank-line").documents == [
        "a",
        "b\nc",
    ]
    assert splitting.split_text("a\n\nb\nc", 2, "line").documents == ["a", "b"]
    assert splitting.split_text(" \n", None, "file").documents == []
    assert splitting.split_text("ab cd", None, "tokens:5").block == 5
    titles = {
        " = A = ": True,
        "= A =\n": True,
        " == A == ": False,
        " = = ": False,
        "A": False,
    }
    assert {line: splitting.is_title(line) for line in titles} == titles
    assert list(splitting.split_articles(["x", " = A = ", "", " = B = ", "y"])) == [
        "x\n = A =",
        "= B = \ny",
    ]


def test_running_text_is_cut_at_line_ends(monkeypatch):
    monkeypatch.setattr(splitting, "PIECE", 6)
    assert list(splitting.cut_pieces("ab cd\nefg hijklmnop")) == [
        "ab cd\n",
        "efg ",
        "hijklm",
        "nop",
    ]
    assert list(splitting.cut_pieces("abcdef")) == ["abcdef"]
    whole = splitting.split_text("ab cd\nefg hijklmnop", 1, "tokens:512").documents
    assert len(whole) == 4, "how many blocks a piece holds, only the tokenizer knows"


def test_a_limited_text_is_read_until_its_last_document(tmp_path, monkeypatch):
    monkeypatch.setattr(splitting, "HEAD", 4)
    path, read = tmp_path / "t.txt", []
    path.write_text("aa\nbb\ncc\ndd\nee\n")
    monkeypatch.setattr(
        splitting,
        "read_pieces",
        lambda _: (read.append(c) or c for c in path.read_text()),
    )
    assert (
        splitting.split_file(path, 2, "line").documents == ["aa", "bb"]
        and "".join(read) == "aa\nbb\n"
    )
    assert splitting.split_file(path, None, "line").documents == [
        "aa",
        "bb",
        "cc",
        "dd",
        "ee",
    ]


# ---- rows, columns and names -----------------------------------------------------------------------------------------


def test_the_column_of_text_is_chosen():
    def choose(row, column=None):
        return documents.choose_column(row, column, "t")

    assert choose({"id": "7", "sentence": "a", "text": "b"}) == "text"
    assert choose({"id": "7", "note": "words", "n": 3}) == "note"
    assert choose({"x": 3}) == "x"
    assert (
        choose({"a": 1, "chat": [{"content": "x"}], "turns": [{"value": "y"}]})
        == "chat"
    )
    # as in ShareGPT: an id in words is a text too
    assert (
        choose({"id": "identity_0", "conversations": [{"from": "human", "value": "x"}]})
        == "conversations"
    )
    assert choose({"id": "identity_0", "chat": 3}) == "id"
    names = ("messages", "conversations", "conversation", "chat", "dialogue", "dialog", "turns")  # fmt: skip
    for place, name in enumerate(names):
        # those that are named more surely come first
        row = {key: [{"content": "x"}] for key in reversed(names[place:])}
        assert choose({"id": "identity_0"} | row) == name
    for name in ("content", "value", "text", "utterance"):
        assert documents.join_chat([{"role": "user", name: "a"}]) == "a"
    assert choose({"a": "x", "b": "y"}, "b") == "b"
    for row, column in (({"a": "x", "b": "y"}, None), ({"a": "x"}, "c")):
        with pytest.raises(CorpusError):
            choose(row, column)
    chat = [
        {"content": "a"},
        {"role": "tool"},
        {"value": [{"text": "b"}, {"image": 1}]},
    ]
    assert documents.join_chat(chat) == "a\nb"
    for other in ([], "x", [1], [{"content": 3}]):
        assert documents.join_chat(other) is None


def test_rows_of_a_csv_say_where_they_stand(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text('a;b\n1;x\n\n2;y;z\n"3";"q;r"\n4\n')
    rows = list(table_rows.read_table_rows(path))
    assert [row.place for row in rows] == ["line 2", "line 4", "line 5", "line 6"]
    assert rows[0].columns == {"a": "1", "b": "x"} and rows[2].columns == {
        "a": "3",
        "b": "q;r",
    }
    assert rows[1].fault == "3 columns, where the header has 2" and not rows[3].columns
    path.write_text("a,b\n1,2\n")
    assert [row.columns for row in table_rows.read_table_rows(path)] == [
        {"a": "1", "b": "2"}
    ]
    path.write_text("a,,a\n1,2,3\n")
    with pytest.raises(CorpusError, match="several columns a"):
        list(table_rows.read_table_rows(path))
    tabs = tmp_path / "x.tsv"
    tabs.write_text('a\tb\nsay "hi"\t"x ""y"""\n')
    assert next(table_rows.read_table_rows(tabs)).columns == {
        "a": 'say "hi"',
        "b": 'x "y"',
    }
    assert table_rows.list_faulty([*"abcde"]) == "5 faulty: a, b, c, d, e"
    assert table_rows.list_faulty([*"abcdefg"]) == "7 faulty: a, b, c, d, e and 2 more"


def test_an_open_quotation_mark_over_rows_is_a_fault_of_its_line(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text('n,t\n1,a\n2,"open\n3,b\n4,c\n5,"shut"\n6,d\n')
    rows = list(table_rows.read_table_rows(path))
    assert [row.place for row in rows if row.fault] == ["line 3"]
    assert [row.place for row in rows] == [f"line {number}" for number in range(2, 8)]
    path.write_text('n,t\n1,a\n2,"two\nlines of text"\n3,b\n')
    assert [row.columns["t"] for row in table_rows.read_table_rows(path)] == [
        "a",
        "two\nlines of text",
        "b",
    ]


def test_rows_of_json(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": 1}\n\n"words"\n3\n{"t": "\\ud800"}\n{"a"\n')
    rows = list(table_rows.read_table_rows(path))
    assert [row.place for row in rows] == [
        "line 1",
        "line 3",
        "line 4",
        "line 5",
        "line 6",
    ]
    assert (
        rows[1].columns == {"text": "words"}
        and rows[2].fault == "'3'"
        and "surrogate" in rows[3].fault
    )
    assert rows[4].fault
    array = tmp_path / "x.json"
    array.write_text('\n[{"a": 1}, {"a": 2}]')
    assert [(row.place, row.columns) for row in table_rows.read_table_rows(array)] == [
        ("row 1", {"a": 1}),
        ("row 2", {"a": 2}),
    ]


def test_one_slip_in_a_name():
    slips = {
        ("opt", "opts"): 1,
        ("bert", "bret"): 1,
        ("bert", "best"): 1,
        ("bert", "bert"): 0,
        ("bert", "trbe"): 0,
    }
    slips |= {
        ("opt-125m", "opt-350m"): 0,
        ("opt-1", "opt-2"): 0,
        ("ab", "abcd"): 0,
        ("abcd", "badc"): 0,
        ("hello", "helo"): 1,
    }
    assert {pair: int(check_names._is_one_slip(*pair)) for pair in slips} == slips
    paths = {
        "/x": True,
        "./x": True,
        "~x": True,
        "x/": True,
        "a/b/c": True,
        "a/b": False,
        "x.npy": True,
        "x": False,
    }
    assert {name: check_names._must_be_path(name) for name in paths} == paths
    assert check_names._is_slip(
        "builtin:minlim", ["builtin:minilm"]
    ) and check_names._is_slip("bert-bse", ["bert-base"])
    assert not check_names._is_slip(
        "me/bert-bse", ["bert-base"]
    ) and not check_names._is_slip("gpt", ["bert-base"])


def test_a_part_of_a_local_copy_is_found_by_its_split(tmp_path):
    for name in ("wiki.train.txt", "wiki.valid.txt", "wiki.test.txt"):
        (tmp_path / name).write_text("text")
    assert (
        local.find_part_of_copy(tmp_path, "text", "validation").name == "wiki.valid.txt"
    )
    assert local.find_part_of_copy(tmp_path, "text", None) == tmp_path
    (tmp_path / "other.dev.txt").write_text("text")
    with pytest.raises(CorpusError, match=r"2, such as other\.dev\.txt"):
        local.find_part_of_copy(tmp_path, "text", "validation")
    assert (
        local.find_part_of_copy(tmp_path, "text", "validation", "wiki").name
        == "wiki.valid.txt"
    )
    for name in ("wiki.valid.txt", "other.dev.txt"):
        (tmp_path / name).unlink()
    with pytest.raises(CorpusError, match="none, but wiki"):
        local.find_part_of_copy(tmp_path, "text", "validation")
    assert local.parse_paths(["a=b=c"]) == {"a": "b=c"}
    for bad in ("a=", "=b", "a"):
        with pytest.raises(UsageError):
            local.parse_paths([bad])


def test_a_part_of_a_local_copy_may_have_an_ending_that_nobody_knows(tmp_path):
    for name in ("wiki.train.raw", "wiki.valid.raw", "wiki.valid.wav"):
        (tmp_path / name).write_bytes(b"text")
    found = local.find_part_of_copy(tmp_path, "text", "validation")
    assert found.name == "wiki.valid.raw"


def test_what_a_path_mostly_holds(tmp_path):
    for name in ("a.wav", "b.FLAC", "c.png", ".hidden.png", ".other.png"):
        (tmp_path / name).write_bytes(b"")
    assert local.detect_modality(tmp_path) == "speech"
    assert (
        local.detect_modality(tmp_path / "c.png") == "image"
        and local.detect_modality(tmp_path / "x.xyz") is None
    )
    (tmp_path / "list.csv").write_text("path,text\na.png,x\n")
    assert local.detect_modality(tmp_path / "list.csv") == "image"
    assert local.find_manifest(tmp_path) is None
    (tmp_path / "metadata.jsonl").write_text("")
    (tmp_path / "manifest.tsv").write_text("")
    assert local.find_manifest(tmp_path).name == "manifest.tsv"


def test_a_token_that_is_the_blank_alone_is_of_the_word_behind_it():
    class OfTwoTexts(dict):
        def sequence_ids(self, _row):
            return [None, 0, 0, 0, None, 1, 1, 1]

    spans = [(0, 0), (0, 2), (2, 3), (3, 4), (0, 0), (0, 1), (1, 2), (2, 4)]
    found = encoding._index_words(
        OfTwoTexts(offset_mapping=[spans]), 0, Example(("ab", "c"), 0, ("d", "ef"))
    )
    assert found == [-1, 0, 1, 1, -1, 2, 3, 3]


def test_an_array_among_json_lines_is_one_faulty_row(tmp_path):
    """Only the first line can begin an array that is the whole file."""
    path = tmp_path / "t.json"
    path.write_text('{"text": "a"}\n["b"]\n{"text": "c"}\n')
    rows = list(table_rows.read_table_rows(path))
    assert [(row.place, bool(row.fault)) for row in rows] == [
        ("line 1", False),
        ("line 2", True),
        ("line 3", False),
    ]


def test_dimensions_are_chosen_in_an_array_of_two_axes_alone():
    for shape, expected in (((4, 3), "x"), ((4, 2, 3), None)):
        content = Content({"x": np.zeros(shape)}, is_table=False)
        assert vector_roles._find_only_matrix(content, ()) == expected


def test_the_first_column_that_names_a_speaker_counts_and_0_is_one():
    assert items.find_speaker({"speaker": 0, "client_id": "b"}) == "0"
    assert items.find_speaker({"speaker": "", "client_id": "b"}) == "b"
    assert items.find_speaker({"speaker": None, "text": "x"}) is None
