"""Vectors in JSON: which list, level, value and table is which, rule by rule, with whole messages."""

import base64
import gzip

import numpy as np
import pytest

from anisoscope.data import vector_json
from anisoscope.data.vector_json import read_json_value, read_json_vectors
from anisoscope.errors import CorpusError


def message_of(call, *given, **how):
    """The whole message of the error that a call ends with."""
    with pytest.raises(CorpusError) as caught:
        call(*given, **how)
    return str(caught.value)


def columns_of(value):
    content = read_json_value(value, "x.json")
    return {k: np.asarray(v).tolist() for k, v in content.columns.items()}, content


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("", "vectors"),
        ("[]", "vectors"),
        ("[][]", "vectors"),
        ("a", "a"),
        ("a[]", "a"),
        ("a.b[][]", "a.b"),
        ("a[].b", "b"),
        ("a[].b.c", "b.c"),
        ("a[].b[].c[]", "c"),
        ("[].a", "a"),
    ],
)
def test_names_of_columns_by_their_path(path, name):
    assert vector_json._name_path(path) == name


def test_paths_that_end_alike_keep_their_whole_names():
    names = vector_json._name_paths(["q[].v", "d[].v", "d[].w", "v2"])
    assert names == {"q[].v": "q[].v", "d[].v": "d[].v", "d[].w": "w", "v2": "v2"}


def test_values_around_vectors_go_with_them_and_the_nearest_wins():
    value = {
        "model": "m",
        "k": 1,
        "data": [
            {"k": 2, "meta": {"k": 5, "deep": {"x": "a"}}, "in": [{"k": 3, "v": [1.5, 2]}]},
            {"k": 4, "meta": {"k": 6, "deep": {"x": "b"}}, "in": [{"k": 7, "v": [3, 4]}, {"v": [5, 6]}]},
        ],
    }  # fmt: skip
    found, _ = columns_of(value)
    assert found == {
        "v": [[1.5, 2], [3, 4], [5, 6]],
        "model": ["m"] * 3,
        "k": [3, 7, 4],
        "meta.k": [5, 6, 6],
        "meta.deep.x": ["a", "b", "b"],
    }


def test_lists_that_run_along_with_lists_of_lists():
    value = {
        "ids": [*"abc"],
        "pair": [1, 2],
        "one": [[1.5, 2], [3, 4], [5, 6]],
        "two": [[0.5], [0.75]],
        "out": "x",
        "alone": [7.5],
    }
    nested, parallel = vector_json._separate_parallel_lists(value)
    assert list(nested) == ["one", "two"] and list(parallel) == ["ids", "pair"]
    collect = vector_json._collect_entries
    assert collect(parallel, 3, 1) == {"ids": "b"}
    assert collect(parallel, 2, 1) == {"pair": 2} and collect(parallel, 4, 0) == {}
    found, content = columns_of(value)
    assert found == {"one": value["one"], "out": ["x"] * 3, "ids": [*"abc"]}
    assert content.unusable == {"two": "2 of them, but 3 of one", "alone": "1 of them, but 3 of one"}  # fmt: skip
    value = {"n": 1, "r": {"embeddings": [[1.5, 2], [3, 4]], "id": ["p", "q"]}}
    inner, _ = columns_of(value)
    assert inner == {"r.embeddings": [[1.5, 2], [3, 4]], "id": ["p", "q"], "n": [1, 1]}


def test_the_largest_array_says_what_a_row_is():
    """Not the longest; a value of the same name as a vector gives way to it."""
    value = {
        "curve": [{"c": [1.5]}, {"c": [2.5]}, {"c": [3.5]}],
        "data": [{"v": [1.5, 2, 3, 4], "n": 1}, {"v": [5, 6, 7, 8], "n": 2}],
    }
    found, content = columns_of(value)
    assert found == {"v": [[1.5, 2, 3, 4], [5, 6, 7, 8]], "n": [1, 2]}
    assert content.unusable == {"c": "3 of them, but 2 of v"}
    found, _ = columns_of({"v": "text", "data": [{"v": [1.5, 2]}, {"v": [3, 4]}]})
    assert found["v"] == "text" or found == {"v": [[1.5, 2], [3, 4]]}


@pytest.mark.parametrize(
    ("value", "shape", "mask"),
    [
        ([[1.5, 2], [3, 4]], (2, 2), None),
        ([[1.5, 2]], (1, 2), None),
        ([[[1.5, 2], [3, 4], [5, 6]]], (1, 3, 2), None),
        ([[[1.5, 2]], [[3, 4], [5, 6]]], (2, 2, 2), [[1, 0], [1, 1]]),
        ([{"v": [[1.5, 2]]}, {"v": [[3, 4]]}], (2, 2), None),
        ([[[[1.5, 2], [3, 4]]], [[[5, 6]]]], (2, 2, 2), [[1, 1], [1, 0]]),
        ([{"v": [[[1.5, 2], [3, 4]]]}, {"v": [[[5, 6]]]}], (2, 2, 2), [[1, 1], [1, 0]]),
        ([{"x_tokens": [[1.5, 2], [3, 4]]}, {"x_tokens": [[5, 6]]}], (2, 2, 2), [[1, 1], [1, 0]]),
        ([{"hidden": [[1.5, 2], [3, 4]]}], (1, 2, 2), None),
        ([{"frames": [[1.5, 2], [3, 4]]}, {"frames": [[1, 2], [3, 5]]}], (2, 2, 2), None),
        ([{"my_states": [[1.5, 2], [3, 4]]}, {"my_states": [[1, 2], [3, 5]]}], (2, 2, 2), None),
        ([{"feature": [[1.5, 2], [3, 4]]}, {"feature": [[1, 2], [3, 5]]}], (2, 2, 2), None),
        *(([{name: [[1.5, 2], [3, 4]]}, {name: [[5, 6]]}], (3, 2), None)
          for name in ("embeddings", "my_vectors", "vecs", "embs", "predictions", "data", "points", "results",
                       "float", "int8", "float16")),
        ([{"odd": [[1.5, 2], [3, 4]]}, {"odd": [[5, 6]]}], None,
         "several vectors in a record: call them embeddings, or token_embeddings"),
    ],
)  # fmt: skip
def test_levels_of_lists_are_rows_or_tokens(value, shape, mask):
    _, content = columns_of(value)
    if shape is None:
        (reason,) = content.unusable.values()
        assert reason.startswith(mask) and content.columns == {}
        return
    ((name, found),) = content.columns.items()
    assert found.shape == shape
    if mask is None:
        assert content.masks == {}
    else:
        assert content.masks[name].astype(int).tolist() == mask


def test_numbers_of_several_types_lose_nothing_together():
    def found(x):
        return vector_json.FoundVectors("a[][]", (0, 0), x, {})

    single, double = np.array([1.5], np.float32), np.array([2**30 + 0.5])
    for first, second in ((single, double), (double, single)):
        stacked = vector_json._stack_sequences([[found(first)], [found(second)]])
        assert stacked.values.dtype == np.float64 and stacked.mask is None
        assert stacked.values[:, 0, 0].tolist() == [first[0], second[0]]
    column = vector_json._make_column
    for mixed in ([1, True], [True, 1], [0.5, False]):
        assert column(mixed).dtype == object and column(mixed).tolist() == mixed


def test_tokens_of_sequences_stay_with_their_object():
    """Places count inside of each object, and each sequence has the values of its first token."""
    value = {"runs": [
        {"name": "a", "items": [{"tokens": [[1.5], [2]], "k": 1}, {"tokens": [[3]], "k": 2}]},
        {"name": "b", "items": [{"tokens": [[4], [5], [6]], "k": 3}]},
    ]}  # fmt: skip
    found, content = columns_of(value)
    assert found["tokens"] == [[[1.5], [2], [0]], [[3], [0], [0]], [[4], [5], [6]]]
    assert content.masks["tokens"].astype(int).tolist() == [[1, 1, 0], [1, 0, 0], [1, 1, 1]]  # fmt: skip
    assert found["k"] == [1, 2, 3] and found["name"] == ["a", "a", "b"]
    assert content.columns["tokens"].dtype == np.float64


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ([1, 2], [1, 2]),
        ([1.5, None], [1.5, np.nan]),
        ([None, 2], [np.nan, 2]),
        ([2**63 + 2048, 2**63], [2**63 + 2048, 2**63]),
        ([10**400, 1.5], None),
        ([2**80, None], [2.0**80, np.nan]),
        ([None, None], None),
        ([], None),
        (["1", "2"], None),
        (["1", None], None),
        ([1, "2"], None),
        ([True, False], None),
        ([True, None], None),
        ([None, True], None),
        ([1, [2]], None),
        ([[1], [2, 3]], None),
        ([1, {"a": 1}], None),
    ],
)  # fmt: skip
def test_which_lists_are_numbers(value, found):
    numbers = vector_json._to_numbers(value)
    if found is None:
        assert numbers is None
    else:
        np.testing.assert_array_equal(numbers, found)


def test_texts_that_are_vectors_in_base64():
    def coded(x, kind="<f4"):
        return base64.b64encode(np.array(x, kind).tobytes()).decode()

    decode = vector_json._decode_base64
    assert decode(coded([1.5, -2, 999_999])).tolist() == [1.5, -2, 999_999]
    assert decode(coded([1.5])).tolist() == [1.5]
    for text in (
        coded([1.5, 2e6]),
        coded([-2e6, 1.5]),
        coded([1.5, np.nan]),
        coded([np.inf, 1.5]),
        coded([1.5, 2])[:-1],
        coded([1, 2, 3], "u1"),
        coded([1] * 9, "u1"),
        "AAAA",
        "",
        "no base64!!!",
    ):
        assert decode(text) is None, text
    for key in ("out.embedding", "x.vector", "base64"):
        path = "data[]." + key
        value = coded([1.5, 2])
        (found,) = vector_json._iter_lists_of_numbers(value, path, (3,), {"k": 1})
        assert (found.path, found.places, found.scalars) == (path, (3,), {"k": 1})
        assert found.numbers.tolist() == [1.5, 2]
    for path in ("embedding.x", "my_embedding", "data[].text"):
        assert not list(vector_json._iter_lists_of_numbers(coded([1.5]), path, (), {}))


@pytest.mark.parametrize(
    ("value", "got"),
    [
        ({"a": [1, 2, 3], "b": [3, 4, 5], "c": [1, 1, 1]},
         "3 lists of 3 numbers, which may be rows or columns"),
        ({"r": {"a": [1, 2], "b": [3, 4]}}, "2 lists of 2 numbers, which may be rows or columns"),
        ({"0": {"0": 1.5, "1": 2}, "1": {"0": 3, "1": 4}},
         "objects inside an object, whose keys may be rows or columns"),
        ({"a": {"x": 1, "y": 2.5}, "b": {"x": True, "y": 3}},
         "objects inside an object, whose keys may be rows or columns"),
    ],
)  # fmt: skip
def test_json_in_two_ways_is_refused_with_the_way_to_write_it(value, got):
    if "r" in value:
        found = vector_json._check_dict_of_lists
        lists = {k: [vector_json.FoundVectors(k, (), np.ones(2), {})] for k in "ab"}
        assert f"got {got}. Cure" in message_of(found, lists, "x.json")
        return
    assert message_of(read_json_value, value, "x.json") == (
        f"expected one way to read x.json; got {got}. "
        'Cure: write one object per vector: {"id": …, "embedding": […]}, or with pandas orient=\'records\''
    )


@pytest.mark.parametrize(
    ("value", "records"),
    [
        ({"columns": [0, 1], "data": [[1, 2], [3, 4]]}, [{"0": 1, "1": 2}, {"0": 3, "1": 4}]),
        ({"columns": ["a"], "data": [[1, 2]]}, None),
        ({"columns": ["a"], "data": [[1], 2]}, None),
        ({"a": {"0": 1, "1": 2}, "b": {"0": 3, "1": 4}}, [{"a": 1, "b": 3}, {"a": 2, "b": 4}]),
        ({"0": {"a": 1, "b": 3}, "1": {"a": 2, "b": 4}}, [{"key": "0", "a": 1, "b": 3}, {"key": "1", "a": 2, "b": 4}]),
        ({"p": {"key": 7, "v": [1, 2]}, "q": {"key": 8, "v": [3, 4]}},
         [{"key": 7, "v": [1, 2]}, {"key": 8, "v": [3, 4]}]),
        ({"p": {"d0": 1, "d1": 2}}, [{"key": "p", "d0": 1, "d1": 2}]),
        ({"p": {"1": 1, "0": 2}, "q": {"1": 3, "0": 4}}, [{"key": "p", "1": 1, "0": 2}, {"key": "q", "1": 3, "0": 4}]),
        ({"p": {"d1": "a", "b": 2}, "q": {"d1": "b", "b": 4}}, None),
        ({"p": {"d1": "a"}, "q": {"d1": "b"}}, None),
        ({"p": {"a": 1}, "q": {"b": 2}}, None),
        ({"p": {"a": "x"}, "q": 3}, None),
        ({"p": {}, "q": {}}, None),
        ({}, None),
        ([1, 2], None),
        ("text", None),
    ],
)  # fmt: skip
def test_tables_of_pandas_become_records_and_others_stay(value, records):
    found = vector_json._as_records(value, "x.json")
    assert found == (value if records is None else records)


def test_records_of_single_values_are_a_table_if_there_is_one_list_of_them():
    found, content = columns_of({"n": 3, "rows": [{"a": 1, "t": "x"}, {"b": {"c": 2.5}, "t": "y"}]})  # fmt: skip
    np.testing.assert_array_equal(found["a"], [1, np.nan])
    np.testing.assert_array_equal(found["b.c"], [np.nan, 2.5])
    assert list(found) == ["a", "t", "b.c"] and content.is_table
    for value in (
        {"p": [{"a": 1}], "q": [{"a": 2}]},
        [{"a": "x"}, {"a": 1}],
        [{"a": 1}, 2],
        {"a": 1},
        [],
    ):
        assert columns_of(value)[0] == {}
    assert columns_of([{"a": 1}, {"a": "x"}])[0] == {"a": [1, "x"]}


def test_lines_of_json_are_named_by_their_numbers(tmp_path):
    place = tmp_path / "x.jsonl"
    place.write_text('\n{"a": [1.5, 2]}\n\n' + '{"b": ' + "9" * 50 + "!}\n")
    start = '{"b": ' + "9" * 34
    cure = "Cure: correct the line, or write the file again"
    assert message_of(read_json_vectors, place) == (
        f"expected JSON in {place}; got {start!r} in line 4. {cure}"
    )
    place.write_text("1\n\n" + "[" * 100_000)
    assert message_of(read_json_vectors, place) == (
        f"expected JSON in {place}; got brackets nested too deep in line 3. {cure}"
    )
    assert str(vector_json._refuse_damaged(place, "x" * 200)) == (
        f"expected JSON in {place}; got {'x' * 160}. {cure}"
    )
    for name in ("y.ndjson.gz", "y.JSONL.gz"):
        packed = gzip.compress(b'{"v": [1.5, 2]}')
        (tmp_path / name).write_bytes(packed)
        content = read_json_vectors(tmp_path / name)
        assert content.notes == ["JSON lines"] and content.columns["v"].shape == (1, 2)
    (tmp_path / "z.json").write_text('{"a": [1, 2], "b": [3, 4]}')
    assert "one way to read z.json; got 2 lists" in message_of(read_json_vectors, tmp_path / "z.json")  # fmt: skip
