"""Files and folders of vectors, decision by decision: which split, layer, member, column and row, on a few numbers."""

import json
import struct
import zipfile

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

import anisoscope
from anisoscope.data import arrays, vector_files
from anisoscope.data.vector_files import open_vectors, read_content
from anisoscope.data.vector_roles import Content
from anisoscope.errors import CorpusError, UsageError


def numbers(*shape, start=0.0):
    return np.arange(float(np.prod(shape))).reshape(shape) + start + 0.25


def rows_of(opened, layer=None):
    layer = layer or next(iter(opened.layers))
    return opened.block(layer, np.arange(opened.shape[0])).double().numpy()


# ---- which split -----------------------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path):
    """A saved data set of two splits, with columns of units and classes; and its folder."""
    splits = {}
    for start, name in ((0, "train"), (1000, "test")):
        x = numbers(6, 3, start=start)
        splits[name] = datasets.Dataset.from_dict(
            {
                "vector": x.tolist(),
                "author": [f"{name}{k // 2}" for k in range(6)],
                "sort": ["a", "b", "c"] * 2,
            }
        )
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "saved")
    splits["test"].save_to_disk(tmp_path / "alone")
    return tmp_path


def test_the_split_that_is_asked_for_is_read_with_its_units_and_classes(saved):
    for start, name in ((0, "train"), (1000, "test")):
        opened = open_vectors(
            saved / "saved", split=name, unit_column="author", label_column="sort"
        )
        np.testing.assert_array_equal(rows_of(opened)[:, 0], numbers(6, 3, start=start))
        assert opened.units.tolist() == [0, 0, 1, 1, 2, 2]
        assert opened.classes == ("a", "b", "c")
        assert opened.labels.tolist() == [0, 1, 2] * 2
        run = anisoscope.measure(saved / "saved", split=name, quiet=True)
        x = numbers(6, 3, start=start)
        a = run.records.query("metric == 'mean_cosine' and token_policy == 'all'")
        expected = anisoscope.metric("mean_cosine", x)["mean_cosine"].value
        assert float(a["value"].iloc[0]) == pytest.approx(float(expected), abs=1e-9)


@pytest.mark.parametrize(
    ("folder", "split", "message"),
    [
        ("saved", None, r"one split of .*saved; got train, test\. Cure: name it: --split train"),
        ("saved", "dev", r"a split of .*saved; got dev\. Cure: name one of train, test"),
        ("alone", "test", r"--split only with a data set of several splits"),
        ("broken", None, r"a data set saved by datasets in .*broken; got"),
    ],
)  # fmt: skip
def test_splits_that_are_not_there_are_named(saved, folder, split, message):
    (saved / "broken").mkdir()
    (saved / "broken" / "state.json").write_text("{}")
    with pytest.raises((CorpusError, UsageError), match=message):
        open_vectors(saved / folder, split=split)


def test_chosen_rows_of_a_data_set_are_those_that_are_read():
    whole = datasets.Dataset.from_dict({"vector": numbers(6, 2).tolist()})
    chosen = vector_files.read_dataset(whole.select([4, 1]))
    np.testing.assert_array_equal(
        np.asarray(chosen.columns["vector"]), numbers(6, 2)[[4, 1]]
    )
    assert "a data set of datasets" in chosen.notes


# ---- archives of numpy -----------------------------------------------------------------------------------------------


def lower_limits(monkeypatch):
    """Let arrays of more than 200 bytes, with their headers, be large."""
    monkeypatch.setattr(vector_files, "LARGE", 200)
    monkeypatch.setattr(vector_files, "SMALL", 2000)


def test_large_stored_arrays_of_an_archive_lie_on_the_disk(tmp_path, monkeypatch):
    """Of several arrays in both orders, with a small one between them, each is the one of its name."""
    lower_limits(monkeypatch)
    given = {
        "layer.10": numbers(5, 4),
        "small": numbers(2, 1),
        "layer.2": np.asfortranarray(numbers(6, 4, start=100)),
        "more": numbers(7, 4, start=200).astype(np.float32),
    }
    np.savez(tmp_path / "x.npz", **given)
    mapped = vector_files._map_large_members(tmp_path / "x.npz")
    assert set(mapped) == {"layer.10", "layer.2", "more"}
    content = read_content(tmp_path / "x.npz")
    assert list(content.columns) == ["layer.2", "layer.10", "more", "small"]
    for name, x in given.items():
        assert content.columns[name].dtype == x.dtype
        assert isinstance(content.columns[name], np.memmap) == (name in mapped)
        np.testing.assert_array_equal(content.columns[name], x)
    np.savez_compressed(tmp_path / "y.npz", **given)
    assert vector_files._map_large_members(tmp_path / "y.npz") == {}
    content = read_content(tmp_path / "y.npz")
    np.testing.assert_array_equal(content.columns["layer.2"], given["layer.2"])
    assert not content.is_table


def test_records_and_objects_are_never_mapped(tmp_path, monkeypatch):
    lower_limits(monkeypatch)
    records = np.zeros(20, [("a", "f8"), ("b", "f4")])
    np.savez(tmp_path / "x.npz", records=records, x=numbers(5, 4))
    assert set(vector_files._map_large_members(tmp_path / "x.npz")) == {"x"}


@pytest.mark.parametrize(
    ("stored", "encrypted", "size", "mapped"),
    [
        (True, False, 201, True),
        (True, False, 200, False),
        (False, False, 201, False),
        (True, True, 201, False),
    ],
)
def test_what_of_an_archive_can_be_read_in_place(monkeypatch, stored, encrypted, size, mapped):  # fmt: skip
    lower_limits(monkeypatch)
    info = zipfile.ZipInfo("x.npy")
    info.compress_type = zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED
    info.file_size = size
    # bit 0 says that a member is encrypted, bit 3 that its sizes follow it
    info.flag_bits = (1 if encrypted else 0) | 8
    assert vector_files._is_mapped(info) is mapped


def test_an_extra_field_of_a_member_is_skipped(tmp_path):
    """The header inside the archive may be longer than the directory says."""
    info = zipfile.ZipInfo("ab.npy")
    info.extra = struct.pack("<HH", 0x9999, 4) + b"1234"
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("first.npy", b"0" * 50)
        archive.writestr(info, b"content")
    with zipfile.ZipFile(tmp_path / "x.zip") as archive, (tmp_path / "x.zip").open("rb") as file:  # fmt: skip
        vector_files._go_to_member(file, archive.getinfo("ab.npy"))
        assert file.read(7) == b"content"


def test_headers_of_both_versions_are_read(tmp_path):
    for version in ((1, 0), (2, 0)):
        with (tmp_path / "x.npy").open("wb") as file:
            x = np.asfortranarray(numbers(3, 2).astype(np.float32))
            np.lib.format.write_array(file, x, version)
        with (tmp_path / "x.npy").open("rb") as file:
            shape, by_columns, dtype = vector_files._read_header(file)
            assert (shape, by_columns, dtype) == ((3, 2), True, np.float32)
        with (tmp_path / "x.npy").open("rb") as file:
            assert vector_files._count_announced_bytes(file) == 24


def test_an_archive_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):  # fmt: skip
    """Bytes in memory are those of arrays that are not read in place; other files of the archive do not count."""
    lower_limits(monkeypatch)
    np.savez(tmp_path / "x.npz", a=numbers(5, 4), b=numbers(2, 2))
    assert vector_files._count_unpacked_bytes(tmp_path / "x.npz") == 32 + 128
    np.savez_compressed(tmp_path / "zeros.npz", a=np.zeros((9000, 8)), b=numbers(3, 3))
    total = 9000 * 64 + 128 + 72 + 128
    assert vector_files._count_unpacked_bytes(tmp_path / "zeros.npz") == total
    packed = (tmp_path / "zeros.npz").stat().st_size
    with pytest.raises(
        CorpusError, match=rf"got {packed:,} bytes that unpack to {total:,}\."
    ):
        read_content(tmp_path / "zeros.npz")
    monkeypatch.setattr(vector_files, "MOST_PACKED", total)
    assert set(read_content(tmp_path / "zeros.npz").columns) == {"a", "b"}
    monkeypatch.setattr(vector_files, "get_memory_budget", lambda: total - 1)
    with pytest.raises(
        CorpusError, match=r"npy or by numpy\.savez without compression"
    ):
        read_content(tmp_path / "zeros.npz")
    monkeypatch.setattr(vector_files, "get_memory_budget", lambda: total)
    read_content(tmp_path / "zeros.npz")


def test_a_header_that_announces_more_than_there_is(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        with archive.open("notes.txt", "w") as file:
            file.write(b"not an array")
        with archive.open("a.npy", "w") as file:
            header = {"descr": "<f8", "fortran_order": False, "shape": (500, 2)}
            np.lib.format.write_array_header_1_0(file, header)
            file.write(bytes(100))
    with pytest.raises(
        CorpusError, match=r"a.npy of 228 bytes whose header says 8,000"
    ):
        read_content(tmp_path / "x.npz")


# ---- what arrays of a file are ---------------------------------------------------------------------------------------


def test_arrays_of_other_axes_are_named_as_unusable(tmp_path):
    save_file(
        {
            "x": torch.ones(3, 2),
            "scale": torch.tensor(2.0),
            "units": torch.arange(3),
            "images": torch.ones(3, 2, 2, 2),
        },
        tmp_path / "x.safetensors",
    )
    content = read_content(tmp_path / "x.safetensors")
    assert set(content.columns) == {"x", "units"}
    assert content.unusable == {
        "scale": "a single number",
        "images": "4 axes [3, 2, 2, 2]",
    }
    for shape, cure in (((3,), "add an axis"), ((), "store numbers"), ((1, 1, 2, 2), "store numbers")):  # fmt: skip
        np.save(tmp_path / "x.npy", np.ones(shape))
        message = str(list(shape)).replace("[", r"\[").replace("]", r"\]")
        with pytest.raises(
            CorpusError, match=rf"got {message} in x.npy, 'x'\. Cure: {cure}"
        ):
            read_content(tmp_path / "x.npy")


def test_a_sparse_matrix_and_a_structured_array(tmp_path):
    np.savez(tmp_path / "x.npz", indices=[0], indptr=[0, 1], data=[1.0], shape=[1, 1])
    with pytest.raises(CorpusError, match="a sparse matrix of scipy"):
        read_content(tmp_path / "x.npz")
    table = np.zeros(3, [("id", "i8"), ("a", "f8"), ("b", "f8")])
    table["a"], table["b"] = [1, 2, 3], [4, 5, 6]
    np.save(tmp_path / "t.npy", table)
    content = read_content(tmp_path / "t.npy")
    assert content.is_table and content.notes == ["a structured array"]
    assert content.columns["b"].tolist() == [4, 5, 6]
    opened = open_vectors(tmp_path / "t.npy", columns="a,b")
    assert rows_of(opened)[:, 0].tolist() == [[1, 4], [2, 5], [3, 6]]


def test_hidden_states_of_an_engine_are_split_by_their_second_axis():
    states, ids = numbers(4, 3, 2), np.arange(4)
    split = vector_files._split_layers_of_engine({"token_ids": ids, "hidden_states": states})  # fmt: skip
    assert list(split) == [
        "token_ids",
        "hidden_states.0",
        "hidden_states.1",
        "hidden_states.2",
    ]
    for layer in range(3):
        np.testing.assert_array_equal(split[f"hidden_states.{layer}"], states[:, layer])
    for other in (
        {"hidden_states": states},
        {"hidden_states": states, "token_ids": np.arange(3)},
        {"hidden_states": states, "token_ids": ids[None]},
        {"hidden_states": states[0], "token_ids": np.arange(3)},
        {"states": states, "token_ids": ids},
    ):
        assert vector_files._split_layers_of_engine(other) is other


def test_columns_are_joined_and_chosen_by_their_places():
    columns = {
        "whole": np.array([1, 2]),
        "half": np.array([0.5, 1.5]),
        "matrix": np.array([[1.0, 2, 3], [4, 5, 6]]),
        "other": np.array([[7.0, 8, 9], [1, 2, 3]]),
        "alone": np.array([3, 4]),
    }
    content = Content(columns)
    roles = vector_files.Roles(
        {"joined": ("half", "whole"), "one": ("alone",)}, None, None, None
    )
    found = vector_files._build_layers(content, roles)
    assert found["joined"].tolist() == [[0.5, 1], [1.5, 2]]
    assert found["one"].tolist() == [[3], [4]]
    assert found["one"].dtype == np.float64
    roles = vector_files.Roles({"matrix": ("matrix",)}, None, None, None)
    assert vector_files._build_layers(content, roles)["matrix"] is columns["matrix"]


# ---- files of torch --------------------------------------------------------------------------------------------------


def test_what_torch_saved_by_name(tmp_path):
    """Nested names, lists of numbers and texts, sparse tensors, tensors that want gradients; objects are skipped."""
    x = torch.tensor([[1.0, 0], [0, 2]])
    torch.save(
        {
            "a": {"b": x.to_sparse(), "c": [[0.5, 1.5], [2.5, 3.5]]},
            "names": ["one", "two"],
            "flags": [True, False],
            "nothing": [],
            "odd": [None, 1.0],
            "weights": torch.ones(2, 3, requires_grad=True),
            "rows": [torch.zeros(4), torch.ones(4)],
        },
        tmp_path / "x.pt",
    )
    found = read_content(tmp_path / "x.pt").columns
    assert list(found) == ["a.b", "a.c", "names", "weights", "rows"] or list(found) == [
        "a.b", "a.c", "names", "flags", "weights", "rows",
    ]  # fmt: skip
    assert found["a.b"].tolist() == x.tolist()
    assert found["a.c"].tolist() == [[0.5, 1.5], [2.5, 3.5]]
    assert list(found["names"]) == ["one", "two"]
    assert found["rows"].tolist() == [[0] * 4, [1] * 4]
    assert not found["weights"].requires_grad


@pytest.mark.parametrize(
    ("given", "names", "message"),
    [
        ([torch.ones(2, 3, 4), torch.zeros(2, 3, 4)], ["layer 0", "layer 1"], ""),
        ({"h": [torch.ones(2, 3, 4), torch.zeros(2, 3, 4)]}, ["h.0", "h.1"], ""),
        ([torch.ones(3)] * 2, ["x"], ""),
        ([torch.ones(2, 3)] * 2, None, "one way to read x.pt; got a list of 2 matrices"),
        ([torch.ones(2, 3), torch.ones(4, 3)], None, "one way to read x.pt; got a list of 2"),
        ([torch.ones(2, 3), torch.ones(2, 4)], None, r"the shapes \(2, 3\), \(2, 4\)"),
        ([torch.ones(2, 3, 4), torch.ones(2, 3, 5)], None, "tensors of one width"),
        ([torch.ones(3), torch.ones(4)], None, r"the shapes \(3,\), \(4,\)"),
    ],
)  # fmt: skip
def test_lists_of_tensors(tmp_path, given, names, message):
    torch.save(given, tmp_path / "x.pt")
    if names is None:
        with pytest.raises(CorpusError, match=message):
            read_content(tmp_path / "x.pt")
        return
    found = read_content(tmp_path / "x.pt").columns
    assert list(found) == names
    if len(names) == 2:
        assert [float(found[name].sum()) for name in names] == [24, 0]


@pytest.mark.parametrize(
    ("given", "holds"),
    [
        ({"x": torch.ones(3, 2)}, True),
        ({"x": torch.ones(3, 2), "block.weight": torch.ones(2, 2)}, False),
        ({"block.weights": torch.ones(3, 2)}, True),
        ({"x": torch.ones(3)}, False),
        ({"a": torch.ones(3), "x": torch.ones(3, 2, 2)}, True),
        ([torch.ones(2, 3)] * 2, True),
        ([torch.ones(3), torch.ones(4)], False),
    ],
)
def test_which_files_of_torch_hold_vectors(tmp_path, given, holds):
    torch.save(given, tmp_path / "x.pt")
    assert vector_files.holds_vectors(tmp_path / "x.pt") is holds


# ---- which names are vectors -----------------------------------------------------------------------------------------


def test_which_files_are_taken_for_vectors(tmp_path):
    np.save(tmp_path / "x.npy", numbers(3, 2))
    (tmp_path / "series.txt").write_text("org/model 100 0\norg/model 200 0\n")
    (tmp_path / "vectors.txt").write_text("word 0.5 1\nother 1.5 2\n")
    (tmp_path / "header.txt").write_text("a b c\n# a remark\n\n1 2 3\n")
    (tmp_path / "prose.txt").write_text("It is 3 4\nno vector\n")
    (tmp_path / "old.pkl").write_bytes(b"x")
    (tmp_path / "other.xyz").write_bytes(b"x")
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "mine.json").write_text("{}")
    for name, holds in (
        ("x.npy", True),
        ("series.txt", False),
        ("vectors.txt", True),
        ("header.txt", True),
        ("prose.txt", False),
        ("old.pkl", True),
        ("other.xyz", False),
        ("tokenizer.json", False),
        ("mine.json", True),
        ("gone.npy", False),
    ):
        assert vector_files.holds_vectors(tmp_path / name) is holds, name
    with pytest.raises(CorpusError, match=r"a file of vectors \(.*got .*other.xyz"):
        open_vectors(tmp_path / "other.xyz")


def test_a_folder_holds_vectors_of_one_kind_in_the_order_of_their_numbers(tmp_path):
    folder = tmp_path / "layers"
    folder.mkdir()
    for number in (10, 9, 0):
        np.save(folder / f"layer.{number}.npy", numbers(4, 3, start=100 * number))
    for name in (".hidden", "_SUCCESS", "README.md", "LICENSE", "dataset_info.json"):
        (folder / name).write_text("x")
    (folder / "inner").mkdir()
    opened = open_vectors(folder)
    assert list(opened.layers) == ["layer.0", "layer.9", "layer.10"]
    for number in (0, 9, 10):
        found = rows_of(opened, f"layer.{number}")[:, 0]
        np.testing.assert_array_equal(found, numbers(4, 3, start=100 * number))
    assert "3 files, a layer each" in opened.source["reading"]
    assert vector_files.holds_vectors(folder)
    (folder / "notes.csv").write_text("a,b\n1,2\n")
    assert not vector_files.holds_vectors(folder)
    with pytest.raises(
        CorpusError, match=r"vectors of one kind .*; got .*\.csv.*\.npy"
    ):
        open_vectors(folder)
    (folder / "notes.csv").unlink()
    (folder / "config.json").write_text("{}")
    assert not vector_files.holds_vectors(folder)


def test_pieces_are_read_one_after_the_other_and_can_be_units(tmp_path):
    """A vector in a file is a row; the column `file` names the file of each row."""
    for stem, rows in (("part-2", 1), ("part-10", 3), ("part-1", 2)):
        x = numbers(rows, 3, start=10 * int(stem[5:]))
        np.save(tmp_path / f"{stem}.npy", x if rows > 1 else x[0])
    content = read_content(tmp_path)
    assert list(content.columns) == ["vectors", "file"] and not content.is_table
    assert content.columns["file"].tolist() == (
        ["part-1.npy"] * 2 + ["part-2.npy"] + ["part-10.npy"] * 3
    )
    np.testing.assert_array_equal(
        content.columns["vectors"],
        np.concatenate([numbers(n, 3, start=s) for n, s in ((2, 10), (1, 20), (3, 100))]),
    )  # fmt: skip
    opened = open_vectors(tmp_path, unit_column="file")
    assert opened.units.tolist() == [0, 0, 1, 2, 2, 2]


def test_files_of_a_folder_with_several_arrays(tmp_path):
    for number in (0, 1):
        np.savez(
            tmp_path / f"layer-{number}.npz",
            x=numbers(4, 2, start=10 * number),
            y=numbers(4, 2, start=50 + 10 * number),
        )
    found = read_content(tmp_path).columns
    assert list(found) == ["layer-0.x", "layer-0.y", "layer-1.x", "layer-1.y"]
    assert found["layer-1.y"][0, 0] == 60.25
    pieces = tmp_path / "pieces"
    pieces.mkdir()
    for number in (0, 1):
        x, y = numbers(2, 2, start=10 * number), numbers(2, 3, start=50 + 10 * number)
        np.savez(pieces / f"part-{number}.npz", x=x, y=y)
    found = read_content(pieces).columns
    assert list(found) == ["x", "y", "file"]
    assert found["x"][:, 0].tolist() == [0.25, 2.25, 10.25, 12.25]
    assert found["y"][:, 0].tolist() == [50.25, 53.25, 60.25, 63.25]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a": (4, 2), "b": (4, 2)}, r"2 files of the shape \[4, 2\], which may be layers"),
        ({"a": (4, 2), "b": (3, 2)}, None),
        ({"a": (1, 2), "b": (1, 2)}, None),
        ({"part-0": (4, 2), "part-1": (4, 3)}, r"of one width in .*; got \[4, 2\], \[4, 3\]"),
    ],
)  # fmt: skip
def test_files_of_one_shape_must_say_what_they_are(tmp_path, files, message):
    for stem, shape in files.items():
        np.save(tmp_path / f"{stem}.npy", np.ones(shape))
    if message is None:
        assert "vectors" in read_content(tmp_path).columns
        return
    with pytest.raises(CorpusError, match=message):
        read_content(tmp_path)


def test_tables_of_a_folder_have_the_same_columns(tmp_path):
    x = pd.DataFrame(numbers(3, 2), columns=["x", "y"])
    x.to_csv(tmp_path / "layer-0.csv", index=False)
    x.to_csv(tmp_path / "layer-1.csv", index=False)
    content = read_content(tmp_path)
    assert content.is_table and list(content.columns) == ["x", "y", "file"]
    assert content.columns["x"].tolist() == [0.25, 2.25, 4.25] * 2
    x.rename(columns={"y": "z"}).to_csv(tmp_path / "layer-1.csv", index=False)
    with pytest.raises(CorpusError, match=r"got x, z in layer-1.csv, x, y in layer-0"):
        read_content(tmp_path)
    np.savez(tmp_path / "a.npz", x=np.ones((2, 2)), y=np.ones((2, 2)))
    parts = [Content({"x": np.ones((2, 2))}, is_table=False)]
    parts.append(Content({"p": np.ones((2, 2)), "q": np.ones((2, 2))}, is_table=False))
    with pytest.raises(CorpusError, match="the same columns"):
        vector_files._join_rows(parts, [tmp_path / "a.npz", tmp_path / "b.npz"])


def test_what_is_damaged_or_compressed_is_named(tmp_path):
    (tmp_path / "x.npy.gz").write_bytes(b"x")
    with pytest.raises(CorpusError, match=r"not compressed: .*gunzip x.npy.gz"):
        open_vectors(tmp_path / "x.npy.gz")
    np.save(tmp_path / "o.npy", np.array([{"a": 1}], object))
    with pytest.raises(CorpusError, match="a file of Python objects"):
        open_vectors(tmp_path / "o.npy")
    (tmp_path / "d.npy").write_bytes(b"nothing of numpy")
    with pytest.raises(CorpusError, match=r"vectors in .*d.npy"):
        open_vectors(tmp_path / "d.npy")
    (tmp_path / "d.npz").write_bytes(b"PK\x03\x04 cut")
    with pytest.raises(CorpusError, match=r"write the file again"):
        open_vectors(tmp_path / "d.npz")


# ---- arrays in memory ------------------------------------------------------------------------------------------------


def test_bfloat16_becomes_float32_and_others_stay():
    x = torch.tensor([[0.5, 1]])
    assert vector_files._as_array(x.bfloat16()).dtype == np.float32
    assert vector_files._as_array(x.double()).dtype == np.float64
    assert vector_files._as_array(np.float16([[1]])).dtype == np.float16


def test_several_layers_with_all_that_belongs_to_them(tmp_path):
    """Sequences of two layers, with units and a mask, from a file and from memory."""
    x, y = numbers(4, 3, 2), numbers(4, 3, 2, start=500)
    mask = np.array([[1, 1, 0], [1, 0, 0], [1, 1, 1], [1, 1, 0]], bool)
    more = {"units": np.array([7, 7, 3, 3]), "mask": mask}
    np.savez(tmp_path / "x.npz", first=x, second=y, **more)
    from_memory = arrays.wrap_vectors({"first": x, "second": y}, **more)
    for opened in (open_vectors(tmp_path / "x.npz"), from_memory):
        assert opened.are_sequences and opened.shape == (4, 3, 2)
        np.testing.assert_array_equal(rows_of(opened, "second"), y)
        plan = arrays.VectorPlan(opened)
        (batch,) = plan
        assert batch.unit.tolist() == [0, 0, 1, 1]
        assert batch.label is None and plan.classes == ()
        stream = batch.streams["vectors"]
        np.testing.assert_array_equal(stream.mask.numpy(), mask)
        assert stream.start.tolist() == [0, 3, 6, 9]
        assert plan.tokens == [8]
        assert plan.words["sequence"] == "sequence"


def test_every_difference_of_vectors_is_another_plan():
    x = numbers(4, 2)
    given = {"layers": {"a": x, "b": x}, "units": [0, 0, 1, 1], "labels": [0, 1, 0, 1]}

    def fingerprint(**changed):
        of = given | changed
        layers = of.pop("layers")
        return arrays.VectorPlan(arrays.wrap_vectors(layers, **of)).fingerprint

    other = x.copy()
    other[3, 1] += 1
    prints = [
        fingerprint(),
        fingerprint(layers={"a": x, "c": x}),
        fingerprint(layers={"a": x, "b": other}),
        fingerprint(layers={"a": x, "b": x.astype(np.float32)}),
        fingerprint(layers={"a": x}),
        fingerprint(units=[0, 1, 1, 1]),
        fingerprint(units=None),
        fingerprint(labels=[0, 1, 1, 1]),
        fingerprint(labels=["x", "y", "x", "y"]),
        fingerprint(labels=None),
    ]
    sequences = {"a": x.reshape(4, 2, 1)}
    mask = np.array([[1, 1], [1, 0], [1, 1], [1, 1]], bool)
    prints += [fingerprint(layers=sequences, labels=None, mask=m) for m in (None, mask)]
    assert len(set(prints)) == len(prints)
    assert fingerprint() == prints[0]


def test_lines_of_json_with_a_note_of_how_they_were_read(tmp_path):
    lines = [
        {"id": k, "vec": numbers(1, 3, start=k)[0].tolist(), "kind": "ab"[k % 2]}
        for k in range(6)
    ]
    place = tmp_path / "x.jsonl"
    place.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    opened = open_vectors(place, unit_column="kind", label_column="kind")
    assert rows_of(opened)[:, 0, 0].tolist() == [k + 0.25 for k in range(6)]
    assert opened.units.tolist() == [0, 1] * 3 and opened.classes == ("a", "b")
    assert opened.source["path"] == str(place.resolve())
    assert opened.source["kind"] == "vectors" and opened.name == "x.jsonl"
