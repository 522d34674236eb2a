"""Which columns of a file are vectors, units, classes or neither, rule by rule, with whole messages."""

import numpy as np
import pytest
import torch

from anisoscope.data import vector_roles
from anisoscope.data.vector_roles import Content, Roles, decide_roles
from anisoscope.errors import AnisoscopeError


def decimals(rows, *shape, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, *shape))


TEXT = np.array([*"abcdef"], object)
WHOLE = np.array([3, 9, 4, 4, 7, 2])
VEC, OTHER = decimals(6, 4), decimals(6, 4, seed=1)
A, B, C, D = VEC.T


def message_of(call, *given, **how):
    """The whole message of the error that a call ends with."""
    with pytest.raises(AnisoscopeError) as caught:
        call(*given, **how)
    return str(caught.value)


# ---- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        *((name, "an id, by its name") for name in (
            "id", "ids", "idx", "index", "uuid", "guid", "key", "row", "rows", "rownum", "row_num",
            "row_number", "no", "nr", "number", "Unnamed: 0", "unnamed: 12", "level_0", "level_10",
            "doc_id", "doc id", "doc.id", "doc-idx", "doc_index", "doc_key", "doc-uuid",
            "id_of", "id of", "id-x", "index_of", "index of", "ID ", " Id", "meta.row",
        )),
        *((name, "by its name") for name in (
            "label", "labels", "class", "classes", "target", "unit", "units", "split", "fold", "group", "cluster",
            "weight", "score", "similarity", "distance", "probability", "prob", "rank", "rating", "stars",
            "length", "len", "size", "count", "counts", "n_tokens", "tokens", "token_count", "page", "position",
            "offset", "year", "month", "day", "date", "time", "timestamp", "start", "end", "layer", "step", "seed",
            "line", "Year", "meta.year", " year ",
        )),
        *((name, "") for name in (
            "x", "dim_0", "idea", "grid", "rowing", "now", "keys", "level_x", "unnamed", "years", "mean", "idof", "12",
        )),
    ],
)  # fmt: skip
def test_names_that_say_what_is_no_dimension(name, reason):
    assert vector_roles._identify_by_name(name) == reason


def test_names_that_say_that_lists_are_vectors():
    called = vector_roles.CALLED_VECTORS
    for name in (
        "emb",
        "embs",
        "embedding",
        "embeddings",
        "vector",
        "vectors",
        "vec",
        "vecs",
        "text_emb",
        "text emb",
        "text.emb",
        "text-emb",
        "data[].embedding",
        "embeddings[]",
        "x[]-vec[]",
    ):
        assert called.fullmatch(name), name
    for name in ("member", "textemb", "embed", "vector_of", "embedding_", "vectorial", "x"):  # fmt: skip
        assert not called.fullmatch(name), name


def test_numbers_that_names_end_with():
    for name, head, number in (("dim_3", "dim_", "3"), ("x[12]", "x[", "12"), ("x(7)", "x(", "7"),
                               ("12", "", "12"), ("a1b02", "a1b", "02"), ("v1.10", "v1.", "10")):  # fmt: skip
        match = vector_roles.NUMBERED.fullmatch(name)
        assert (match[1], match[2]) == (head, number)
    for name in ("dim", "3d", "x[3]]", "x3 "):
        assert vector_roles.NUMBERED.fullmatch(name) is None
    assert vector_roles._find_numbered(["x[0]", "x[1]", "y"]) == ["x[0]", "x[1]"]
    assert vector_roles._split_numbered(["x[2]", "x[4]"]) == ("x[", [2, 4])
    assert vector_roles._split_numbered(["x2", "y3"]) is None
    assert vector_roles._split_numbered(["x2", "y"]) is None
    assert vector_roles._follows("x10", "x9") and not vector_roles._follows("x9", "x10")
    assert not vector_roles._follows("y1", "x0") and not vector_roles._follows("y", "x")
    assert not vector_roles._follows("x2", "x0")


@pytest.mark.parametrize(
    ("names", "spec", "short"),
    [
        (["d5", "d6", "d7"], "d5-d7", "d5–d7"),
        (["d5", "d6"], "d5-d6", "d5–d6"),
        (["d5", "d7"], "d*", "d5, d7"),
        (["d2", "d1"], "d*", "d2, d1"),
        (["2", "3"], "2-3", "2–3"),
        (["2", "5"], "2,5", "2, 5"),
        (["a", "b"], "a,b", "a, b"),
        (["a1", "b2"], "a1,b2", "a1, b2"),
        (["a1"], "a1", "a1"),
        ([*"abcdef"], "a,b,c,d,e,f", "a, b, c, d, e, f"),
        ([*"abcdefg"], "a,b,c,d,e,f,…", "a, b, c, d, e and 2 more"),
        ([*"abcdefghi"], "a,b,c,d,e,f,…", "a, b, c, d, e and 4 more"),
        (["x", "d1", "d2", "d3", "y", "e1", "e2", "z", "f", "g"], "x,d1,d2,d3,y,e1,…",
         "x, d1–d3, y, e1–e2, z and 2 more"),
    ],
)  # fmt: skip
def test_many_names_in_few_words(names, spec, short):
    assert vector_roles.to_spec(names) == spec
    assert vector_roles.compress_names(names) == short


def test_values_for_a_shell_are_quoted_if_they_must_be():
    for text in ("a b", "d*", "d?", "x(1", "x)", "x[1", "x]"):
        assert vector_roles.quote_for_shell(text) == f"'{text}'"
    for text in ("0-7", "a,b", "d_1", "a.b"):
        assert vector_roles.quote_for_shell(text) == text


# ---- what is asked for -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "found"),
    [
        (" d*0 , b ", ["b", "d*0"]),
        ("d*0", ["d*0"]),
        ("d?1", ["d*1"]),
        ("D?1", None),
        ("b,b,a", ["a", "b"]),
        ("a-b", ["a-b"]),
        ("a-c-d", ["a", "b", "a-b", "c-d"]),
        ("a-b-c-d", ["a-b", "c-d"]),
        ("0-6", [*"ab", "a-b", "c-d", "d*0", "d*1", "2"]),
        ("0-7", None),
        ("7", None),
        ("6", ["2"]),
        ("2", ["2"]),
        ("2-2", ["2"]),
        ("1-2", ["b", "a-b"]),
        ("3", ["c-d"]),
        ("3-4", ["c-d", "d*0"]),
        ("4-3", None),
        ("b-a", None),
        (",a,", ["a"]),
    ],
)  # fmt: skip
def test_what_a_specification_of_columns_means(spec, found):
    """Exact names go before patterns, those before ranges of names, and those before places."""
    names = ["a", "b", "a-b", "c-d", "d*0", "d*1", "2"]
    if found is None:
        with pytest.raises(AnisoscopeError, match="for --columns"):
            vector_roles.select_names(spec, names)
    else:
        assert vector_roles.select_names(spec, names) == found


def test_unknown_parts_of_a_specification_are_explained():
    names = ["alpha", "beta", "d0", "d1", "d2"]
    select = vector_roles.select_names
    assert message_of(select, "alpha,5", names, "f.csv") == (
        "expected a column of f.csv for --columns 5; got columns alpha, beta, d0–d2. "
        "Cure: columns are numbered from 0 to 4"
    )
    assert message_of(select, "3-9", names, "f.csv").endswith("numbered from 0 to 4")
    assert message_of(select, "alpa", names).endswith("Cure: did you mean alpha?")
    many = [f"d{k}" for k in range(50)]
    assert message_of(select, "e7", many) == (
        "expected a column of the file for --columns e7; got columns d0–d49. Cure: check the names"
    )
    assert "did you mean" in message_of(select, "d", many[:49])
    assert message_of(select, " , ", names) == (
        "expected names, patterns or numbers of columns for --columns; got ' , '. "
        "Cure: for example --columns 0-7, or --columns 'dim_*'"
    )


def test_columns_of_units_and_classes_are_found_or_named():
    find = vector_roles._find_side_column
    content = Content({"x": A, "meta.Labels ": WHOLE, "label": WHOLE}, unusable={"sorts": "empty"})  # fmt: skip
    assert find(content, None, vector_roles.LABELS) == "meta.Labels "
    assert find(content, None, vector_roles.UNITS) is None
    assert find(content, "x", vector_roles.UNITS) == "x"
    assert message_of(find, content, "sort", vector_roles.UNITS) == (
        "expected a column or an array of the file; got 'sort'. Cure: did you mean sorts?"
    )
    assert vector_roles.UNITS == ("units", "unit")
    assert vector_roles.LABELS == ("labels", "label")
    assert vector_roles.MASK == ("mask", "attention_mask")


@pytest.mark.parametrize(
    ("unit", "label", "mask"),
    [
        ("unit", "label", "mask"),
        ("Units", "LABELS", "MASK"),
        ("m.unit", "m.label", "m.mask"),
    ],
)
def test_what_has_a_role_by_its_name_is_no_vector_and_is_not_left_out(unit, label, mask):  # fmt: skip
    """In a table a column called mask is a number like others; of arrays it is the mask."""
    wide = decimals(6, 2, 3)
    columns = {unit: WHOLE, label: TEXT, mask: np.ones((6, 2), int), "x": wide}
    roles = decide_roles(Content(columns, is_table=False), "f.npz")
    assert (roles.units, roles.labels, roles.mask) == (unit, label, mask)
    assert roles.layers == {"x": ("x",)} and dict(roles.left_out) == {}
    table = {unit: WHOLE, label: TEXT, mask: C, "a": A, "b": B}
    roles = decide_roles(Content(table), "f.csv")
    assert (roles.units, roles.labels, roles.mask) == (unit, label, None)
    assert roles.layers == {"f": (mask, "a", "b")} and dict(roles.left_out) == {}
    named = decide_roles(
        Content(table), "f.csv", unit_column="a", label_column="b", columns=mask
    )
    assert (named.units, named.labels) == ("a", "b")
    assert named.layers == {"f": (mask,)}
    assert dict(named.left_out) == {unit: "not in --columns", label: "not in --columns"}


def test_of_what_the_user_names_the_rest_is_left_out_with_its_reason():
    content = Content(
        {"who": TEXT, "x": A, "y": B, "z": C},
        unusable={"w": "empty", "z2": "lists of 1 to 2 numbers"},
    )
    roles = decide_roles(content, "a/f.b.csv", columns="x", unit_column="who")
    assert roles.layers == {"f.b": ("x",)} and roles.places is None
    assert dict(roles.left_out) == {
        "y": "not in --columns",
        "z": "not in --columns",
        "w": "empty",
        "z2": "lists of 1 to 2 numbers",
    }


def test_columns_that_cannot_be_named_together():
    content = Content({"t": TEXT, "n": A, "v": VEC, "m": B}, unusable={"w": "empty"})
    assert message_of(decide_roles, content, "f.x", columns="n,v,m") == (
        "expected columns of lists or columns of numbers in --columns; "
        "got 'v' (lists) and 'n' (one number a row). Cure: name columns of one kind"
    )
    for spec, both in (("n,v", "'v' (lists) and 'n'"), ("m,v", "'v' (lists) and 'm'")):
        assert both in message_of(decide_roles, content, "f.x", columns=spec)
    assert message_of(decide_roles, content, "f.x", columns="n,t") == (
        "expected numbers in the column 't' of f.x; got text. Cure: leave it out of --columns"
    )
    assert message_of(decide_roles, content, "f.x", columns="w,n") == (
        "expected numbers in the column 'w' of f.x; got empty. Cure: leave it out of --columns"
    )


def test_an_attention_mask_is_the_mask_of_arrays_and_no_number_of_a_table():
    mask = np.ones((6, 2), int)
    arrays = {"attention_mask": mask, "x": decimals(6, 2, 3)}
    assert decide_roles(Content(arrays, is_table=False), "f").mask == "attention_mask"
    roles = decide_roles(Content({"attention_mask": C, "x": A, "y": B}), "f")
    assert roles.mask is None and roles.layers == {"f": ("x", "y")}


def test_the_only_matrix_of_a_file_lends_its_dimensions():
    find = vector_roles._find_only_matrix
    texts = np.array([["a", "b"]] * 6)
    arrays = {"x": VEC, "n": A, "t": TEXT, "units": VEC[:, :2], "texts": texts}
    assert find(Content(arrays, is_table=False), {"units"}) == "x"
    assert find(Content(arrays, is_table=False), set()) is None
    assert find(Content(arrays), {"units"}) is None
    assert find(Content({"x": decimals(6, 2, 3)}, is_table=False), set()) is None
    assert find(Content({"n": A}, is_table=False), set()) is None
    one = Content({"x": decimals(3, 7), "2": A[:3]}, is_table=False)
    roles = decide_roles(one, "f.npz", columns="5-6,1")
    assert (roles.layers, roles.places) == ({"x": ("x",)}, (1, 5, 6))
    assert decide_roles(one, "f.npz", columns="0-1").places == (0, 1)
    # an array of this name goes before a dimension
    assert decide_roles(one, "f.npz", columns="2").layers == {"f": ("2",)}
    assert message_of(decide_roles, one, "f.npz", columns="7").endswith(
        "got columns 0–6. Cure: columns are numbered from 0 to 6"
    )


# ---- what is decided by rules ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "how", "reason"),
    [
        ({"c": A}, {}, ""),
        ({"c": A}, {"index": ("c",)}, "row numbers"),
        ({"c": TEXT}, {"index": ("c",)}, "row numbers"),
        ({"c": TEXT}, {}, "text"),
        ({"c": np.array(["a", "b"])}, {}, "text"),
        ({"c": A > 0}, {}, "yes or no"),
        ({"c": torch.tensor(A > 0)}, {}, "yes or no"),
        ({"c": A + 1j}, {}, "complex numbers"),
        ({"score": A}, {}, "by its name"),
        ({"score": A}, {"named": False}, ""),
        ({"score": VEC}, {}, ""),
        ({"id": WHOLE}, {}, "an id, by its name"),
        ({"id": WHOLE}, {"named": False}, ""),
        ({"doc_id": VEC}, {}, ""),
        *(({name: VEC}, {}, "a tokenizer's output") for name in vector_roles.INPUTS),
        ({"b.Input_ids": WHOLE}, {"named": False}, "a tokenizer's output"),
        ({"id": np.array(["1", "2", "3a"], object)}, {}, "text"),
        ({"year": np.array(["1", "2", "3a"], object)}, {}, "text"),
    ],
)  # fmt: skip
def test_what_a_column_is_if_it_is_no_vector(columns, how, reason):
    (name,) = columns
    content = Content(columns, **how)
    assert vector_roles._identify_other(content, name, "f.csv") == reason
    expected = {name: reason} if reason else {}
    assert vector_roles._identify_others(content, (), "f.csv") == expected
    assert vector_roles._identify_others(content, {name}, "f.csv") == {}


def test_a_text_among_numbers_is_named_with_its_place(monkeypatch):
    cells = np.array(["1", "2", "oops" + "!" * 50, "nan", None, "5"], object)
    got = repr("oops" + "!" * 36)
    for first, place in ((0, "row 3"), (7, "line 9")):
        content = Content({"c": cells}, first_line=first)
        assert message_of(decide_roles, content, "f.csv") == (
            f"expected a number in every row of the column 'c' of f.csv; got {got} in {place}. "
            "Cure: correct the cell"
        )
    find = vector_roles._find_bad_cell
    assert find(np.array(["1", "2", "x", "y"], object), 0) == ""
    assert find(np.array(["1", "2", "3", "x", "y"], object), 0) == "'x' in row 4"
    assert find(np.array(["1", "x", "3"]), 0) == "'x' in row 2"
    assert find(np.array(["1", "2", "3"], object), 0) == ""
    assert find(np.array([["1", "x", "3"]], object), 0) == ""
    monkeypatch.setattr(vector_roles, "LOOKED", 4)
    # of a long column the first rows decide
    assert find(np.array(["1", "x", "2", "3", *"abcdef"], object), 0) == "'x' in row 2"
    assert find(np.array(["1", "2", "3", "4", "x", "5"], object), 0) == ""


def test_lists_at_several_precisions():
    bits = WHOLE[:, None] * [1, 2, 3, 1]
    names = [
        "e.uint8[]",
        "e.binary[]",
        "e.float[]",
        "f.int8",
        "f.float16",
        "f.float32",
        "binary",
        "g.float",
    ]
    assert sorted(vector_roles._find_lower_precisions(names)) == sorted(
        ["e.uint8[]", "e.binary[]", "f.int8", "f.float16", "binary"]
    )
    assert vector_roles._split_precision("a.b.int8[]") == ("a.b", "int8")
    assert vector_roles._split_precision("int8") == ("", "int8")
    left_out: dict[str, str] = {}
    found = vector_roles._leave_out_precisions(names, left_out)
    assert found == ["e.float[]", "f.float32", "g.float"]
    assert left_out == {
        "e.uint8[]": "the same at less precision",
        "e.binary[]": "packed bits",
        "f.int8": "the same at less precision",
        "f.float16": "the same at less precision",
        "binary": "packed bits",
    }
    assert vector_roles.PRECISIONS == ("float", "float32", "float16", "int8", "uint8", "binary", "ubinary")  # fmt: skip
    content = Content({"e.binary": bits, "e.ubinary": bits})
    assert message_of(decide_roles, content, "f.json") == (
        "expected vectors of numbers in f.json; got packed bits only. "
        "Cure: ask the service for embeddings of float, or unpack them: numpy.unpackbits"
    )


def test_lists_called_vectors_go_before_others_whatever_their_case():
    left_out: dict[str, str] = {}
    names = ["a", "Text-Embedding", "b", "VEC"]
    found = vector_roles._prefer_named_vectors(names, left_out)
    assert found == ["Text-Embedding", "VEC"]
    assert left_out == dict.fromkeys("ab", "lists as well as a column named vector")
    assert vector_roles._prefer_named_vectors(["a", "b"], left_out) == ["a", "b"]
    assert len(left_out) == 2


def test_lists_beside_a_column_called_vector_need_not_be_like_it():
    content = Content({"parts": OTHER[:, :3], "embedding": VEC})
    left_out: dict[str, str] = {}
    wide = ["parts", "embedding"]
    found = vector_roles._decide_lists(content, wide, left_out, "f.x")
    assert found == {"embedding": ("embedding",)}
    assert left_out == {"parts": "lists as well as a column named vector"}


def test_columns_of_lists_must_be_alike_in_their_last_axis_and_their_kind():
    deep = Content({"a": decimals(6, 2, 4), "b": decimals(6, 3, 4, seed=2)})
    vector_roles._require_alike(deep, ["a", "b"], "f.x")
    three = Content({"a": VEC, "b": OTHER[:, :3], "c": WHOLE[:, None] * [1, 2, 3, 4]})
    assert message_of(vector_roles._require_alike, three, ["a", "b"], "f.x") == (
        "expected one way to read the columns of f.x; "
        "got two: a (4 decimals) and b (3 decimals) may be layers or different things. "
        "Cure: say which columns are the vector, for instance --columns a"
    )
    assert "a (4 decimals) and c (4 whole numbers) may be" in message_of(
        vector_roles._require_alike, three, ["a", "c"], "f.x"
    )


@pytest.mark.parametrize(
    ("columns", "is_table", "message"),
    [
        ({"v": np.c_[A, WHOLE, B]}, True,
         "the columns of f.x; got two: column 1 of 'v' holds whole numbers among decimals: a dimension, or an id or "
         "a class. Cure: say which columns are the vector, for instance --columns v"),
        ({"v": np.c_[A, B, C, WHOLE]}, False,
         "the array of f.x; got two: column 3 of 'v' holds whole numbers among decimals: a dimension, or an id or "
         "a class. Cure: say which columns are the vector, for instance --columns 0-2"),
        ({"v": np.c_[A, np.arange(6) + 1, B, C]}, False,
         "the array of f.x; got two: column 1 of 'v' counts the rows: a dimension, or an id or "
         "a class. Cure: say which columns are the vector, for instance --columns 0,2,3"),
        ({"a": VEC, "v": torch.tensor(np.c_[A, WHOLE])}, False,
         "the array of f.x; got two: column 1 of 'v' holds whole numbers among decimals: a dimension, or an id or "
         "a class. Cure: say which columns are the vector, for instance --columns 0"),
        ({"x": A, "n": WHOLE, "y": B, "z": C}, True,
         "the columns of f.x; got two: the column 'n' holds whole numbers among decimals: a dimension, or an id or "
         "a class. Cure: say which columns are the vector, for instance --columns x,y,z"),
        ({"x": A, "n": B, "y": np.arange(6)}, True,
         "the columns of f.x; got two: the column 'y' counts the rows: a dimension, or an id or "
         "a class. Cure: say which columns are the vector, for instance --columns x,n"),
        ({"q0": A, "q1": B, "k0": C, "k1": D, "q2": A}, True,
         "the columns of f.x; got two: q0–q2 may be the vector, or q0–q1, k0–k1, q2. "
         "Cure: say which columns are the vector, for instance --columns q0-q2"),
    ],
)  # fmt: skip
def test_a_suspicious_column_is_named_and_the_likely_vector_is_without_it(columns, is_table, message):  # fmt: skip
    found = message_of(decide_roles, Content(columns, is_table=is_table), "f.x")
    assert found == f"expected one way to read {message}"


def test_what_no_suspicion_falls_on():
    """Sequences, constants, whole numbers alone, one row, numbers that miss, two rows that are alike."""
    for columns, is_table in (
        ({"v": np.round(decimals(6, 2, 3) * 9)}, False),
        ({"v": np.c_[A, np.full(6, 2.0)]}, False),
        ({"v": WHOLE[:, None] * [1, 2]}, False),
        ({"v": np.c_[A, WHOLE][:1]}, False),
        ({"v": np.c_[A, np.full(6, np.nan)]}, False),
        ({"x": A[:2], "y": np.array([0.0, 0.0])}, True),
        ({"x": WHOLE}, True),
        ({"x": A}, True),
    ):
        roles = decide_roles(Content(columns, is_table=is_table), "f.x")
        assert {n for names in roles.layers.values() for n in names} == columns.keys()
    suspect = vector_roles._find_suspect
    gap = np.array([1.0, np.nan, 2.0])
    assert suspect([np.array([0.5, 1, 2]), gap]) == (1, "holds whole numbers among decimals")  # fmt: skip
    assert suspect([np.array([0.5, 1]), np.array([0, 1])]) == (1, "holds whole numbers among decimals")  # fmt: skip
    assert suspect([np.array([4, 7, 9]), np.array([1, 2, 3])]) == (1, "counts the rows")
    assert suspect([np.array([4, 7, 9]), np.array([2, 3, 4])]) is None
    assert vector_roles._is_whole(np.array([np.nan, 1.0, np.inf]))
    assert not vector_roles._is_whole(np.array([np.nan]))


def test_only_the_first_rows_are_looked_at(monkeypatch):
    monkeypatch.setattr(vector_roles, "LOOKED", 3)
    x = np.c_[A, [1.0, 5, 2, 0.5, 0.25, 3]]
    for values in (x, torch.tensor(x), torch.tensor(x).bfloat16()):
        rows = vector_roles._get_first_rows(values)
        assert isinstance(rows, np.ndarray) and rows[:, 1].tolist() == [1, 5, 2]
        content = Content({"v": values}, is_table=False)
        assert "column 1 of 'v'" in message_of(decide_roles, content, "f.npy")
        turned = Content({"v": values[[3, 4, 5, 0, 1, 2]]}, is_table=False)
        assert decide_roles(turned, "f.npy").layers == {"v": ("v",)}


def test_arrays_that_are_no_layers_of_the_same_vectors():
    check = vector_roles._check_arrays
    for name in ("a.weight", "a.bias", "rnn.weight_hh_l0", "x.weight_g"):
        content = Content({"x": VEC, name: VEC}, is_table=False)
        assert message_of(check, content, ["x", name], "f.pt") == (
            f"expected vectors in f.pt; got weights of a model, such as {name}. Cure: name the folder of the "
            f"checkpoint with its config.json; or one array of it, as --columns {name}"
        )
    for name in ("weight", "a.weights", "bias", "a.weightless"):
        check(Content({name: VEC}, is_table=False), [name], "f.pt")
    same = Content({"x": decimals(6, 3, 4), "y": decimals(6, 3, 9)}, is_table=False)
    check(same, ["x", "y"], "f.npz")
    unlike = Content({"x": decimals(6, 3, 4), "y": decimals(6, 2, 4)}, is_table=False)
    assert message_of(check, unlike, ["x", "y"], "f.npz") == (
        "expected arrays of the same vectors in f.npz; got x [6, 3, 4], y [6, 2, 4]. "
        "Cure: name those to measure: --columns x"
    )
    for count, end in ((6, "x5 [7, 4]. Cure"), (7, "x5 [7, 4] …. Cure")):
        arrays = {f"x{k}": decimals(k + 2, 4) for k in range(count)}
        found = message_of(check, Content(arrays, is_table=False), [*arrays], "f.npz")
        assert end in found


def test_arrays_of_one_dimension_are_dropped_unless_all_are():
    left_out: dict[str, str] = {}
    # sequences of one token have vectors of two dimensions
    arrays = {"a": decimals(6, 1, 2), "b": decimals(6, 1, 1), "c": decimals(6, 1, 3)}
    content = Content(arrays, is_table=False)
    found = vector_roles._leave_out_narrow(content, ["a", "b", "c"], left_out)
    assert found == ["a", "c"] and left_out == {"b": "one number a row"}
    left_out = {}
    assert vector_roles._leave_out_narrow(content, ["b"], left_out) == ["b"]
    assert left_out == {}


def test_numbered_columns_and_others_among_them():
    prefer = vector_roles._prefer_numbered
    for names, found, dropped in (
        (["d0", "d1", "d2", "m"], ["d0", "d1", "d2"], ["m"]),
        (["m", "d0", "d1", "d2", "d3", "d4", "d5", "s"], [f"d{k}" for k in range(6)], ["m", "s"]),
        (["d0", "m"], ["d0", "m"], []),
        (["a", "b"], ["a", "b"], []),
        (["d0", "d1"], ["d0", "d1"], []),
        ([], [], []),
    ):  # fmt: skip
        left_out: dict[str, str] = {}
        assert prefer(names, left_out, "f") == found
        assert left_out == dict.fromkeys(dropped, "as well as the numbered columns")
    assert "d0–d1 may be the vector, or m, d0–d1. Cure" in message_of(
        prefer, ["m", "d0", "d1"], {}, "f"
    )


def test_rows_that_are_counted_in_front_of_decimals():
    begins = vector_roles._begins_with_row_numbers
    rows = np.arange(6)
    content = Content({"0": rows, "1": A, "2": B, "3": WHOLE}, named=False)
    assert begins(content, ["0", "1", "2"]) and begins(content, ["0", "1", "3"])
    assert not begins(content, ["0", "1"]) and not begins(content, ["1", "0", "2"])
    assert not begins(content, ["0", "3", "3"])
    roles = decide_roles(
        Content({"0": rows + 1, "1": A, "2": B}, named=False), "w/x.csv"
    )
    assert roles.layers == {"x": ("1", "2")}
    assert dict(roles.left_out) == {"0": "it counts the rows"}


# ---- what is written -------------------------------------------------------------------------------------------------


def test_a_file_without_vectors_is_listed_with_all_that_it_holds():
    cure = "name the columns with --columns; a file of texts is measured with a model: MODEL --corpus FILE"
    content = Content({"a": TEXT, "n": A}, unusable={"w": "empty"})
    assert message_of(decide_roles, content, "f.csv") == (
        "expected columns of numbers, or a column of lists, in f.csv; "
        f"got a (text), n (decimals), w (empty). Cure: {cure}"
    )
    assert message_of(decide_roles, Content({}), "f.csv") == (
        f"expected columns of numbers, or a column of lists, in f.csv; got nothing. Cure: {cure}"
    )
    arrays = {"i": WHOLE, "t": TEXT, "w": np.array([["a", "b"]] * 6)}
    found = message_of(decide_roles, Content(arrays, is_table=False), "f.npz")
    assert found == (
        f"expected arrays [vector, dim] in f.npz; got i (whole numbers), t (text), w (text [6, 2]). Cure: {cure}"
    )
    many = Content(
        {f"t{k}": TEXT for k in range(8)}, unusable={f"u{k}": "empty" for k in range(9)}
    )
    found = message_of(decide_roles, many, "f.csv")
    named = [f"t{k} (text)" for k in range(6)] + [f"u{k} (empty)" for k in range(6)]
    assert f"got {', '.join(named)} and 5 more. Cure" in found


def test_one_sentence_for_vectors_layers_sequences_and_what_is_left_out():
    content = Content({"x": VEC, "y": OTHER, "k": WHOLE}, notes=["one", "two"], is_table=False)  # fmt: skip
    describe = vector_roles.describe_roles
    roles = Roles({"x": ("x",), "y": ("y",)}, units="k", mask="m")
    assert describe(content, roles, "f", (1234, 5, 6789)) == (
        "f: 1,234 sequences of up to 5 vectors of 6,789 numbers, 2 layers x, y; units: k; mask: m; one; two"
    )
    left = {
        "a": "text",
        "row numbers": "row numbers",
        "b1": "text",
        "c": "empty",
        "b2": "text",
        "d": "row numbers",
    }
    roles = Roles({"x": ("x",)}, (0, 1, 2, 7), labels="k", left_out=left)
    assert describe(content, roles, "f", (12, 4)) == (
        "f: 12 vectors of 4 numbers, columns 0–2, 7; labels: k; left out: a, b1–b2 (text), "
        "row numbers, d (row numbers), c (empty); one; two"
    )
    table = Content({"x": A, "y": B})
    for roles, words in (
        (Roles({"f": ("x", "y")}), "columns x, y"),
        (Roles({"f": ("x",)}), "column x"),
        (Roles({f"l{k}": (f"l{k}",) for k in range(8)}), "8 layers l0, l1, l2, l3, l4 and 3 more"),
    ):  # fmt: skip
        assert vector_roles._describe_columns(table, roles) == words
    arrays = Content({"x": VEC}, is_table=False)
    assert vector_roles._describe_columns(arrays, Roles({"x": ("x",)})) == "array x"
    assert vector_roles._describe_columns(arrays, Roles({"f": ("x", "y")})) == "arrays x, y"  # fmt: skip


def test_what_holds_no_numbers_is_not_called_whole_numbers():
    """Texts, true and false, and complex numbers were, if they had several axes."""
    for values, words in (
        (np.array(["a", "b"]), "text"),
        (np.array([True, False]), "yes or no"),
        (torch.tensor([True, False]), "yes or no"),
        (np.array([1j, 2]), "complex numbers"),
        (torch.tensor([1j, 2]), "complex numbers"),
        (np.array([1, 2], np.uint8), "whole numbers"),
        (torch.tensor([1, 2]), "whole numbers"),
        (torch.tensor([0.5, 1]), "decimals"),
    ):
        assert vector_roles._describe_column(values) == words
        wide = values.reshape(1, 2)
        assert vector_roles._describe_column(wide) == f"{words} [1, 2]"
    found = message_of(decide_roles, Content({"x": VEC * 1j}, is_table=False), "x.npy")
    assert "in x.npy; got x (complex numbers [6, 4]). Cure" in found
