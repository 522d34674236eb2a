"""Files and folders of vectors, decision by decision: which split, layer, member, column and row, on a few numbers."""

import json
import struct
import zipfile
from pathlib import Path

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
        {"hidden_states": states, "token_ids": np.ones((4, 2), int)},
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


def test_a_source_has_its_whole_path_wherever_it_is_opened_from(tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", numbers(4, 3))
    monkeypatch.chdir(tmp_path)
    opened = open_vectors("x.npy")
    assert opened.source["path"] == str((tmp_path / "x.npy").resolve())
    assert opened.name == "x.npy"


# ---- whole messages, and every rule by itself ------------------------------------------------------------------------


def message_of(call, *given, **how):
    """The whole message of the error that a call ends with."""
    with pytest.raises((CorpusError, UsageError)) as caught:
        call(*given, **how)
    return str(caught.value)


PICKLED = "load it and save numbers: numpy.save('x.npy', x), or frame.to_parquet('x.parquet'); nothing is unpickled"
OTHER_CURES = {
    "x.pkl": PICKLED,
    "x.PICKLE": PICKLED,
    "x.joblib": PICKLED,
    "x.h5": "load it and save numbers: numpy.save('x.npy', x)",
    "x.hdf5": "load it and save numbers: numpy.save('x.npy', x)",
    "x.mat": "load it with scipy.io.loadmat and save numbers: numpy.save('x.npy', x)",
    "x.xlsx": "save it as .csv",
    "x.XLS": "save it as .csv",
    "x.abc": "convert it, for instance to .npy or .parquet",
    "x": "convert it, for instance to .npy or .parquet",
}


@pytest.mark.parametrize(("name", "cure"), OTHER_CURES.items())
def test_files_of_other_formats_have_the_cure_of_their_format(tmp_path, name, cure):
    (tmp_path / name).write_bytes(b"x")
    endings = ", ".join(vector_files.ENDINGS)
    assert message_of(open_vectors, tmp_path / name) == (
        f"expected a file of vectors ({endings}); got {tmp_path / name}. Cure: {cure}"
    )
    assert vector_files.holds_vectors(tmp_path / name) is not cure.startswith("convert")


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("1 2\n3 4\n", True),
        ("1 2\n", True),
        ("a b\n3 4\n", True),
        ("a b\n", False),
        ("a b\nc d\n", False),
        ("a b\n3 4\nc d\n", False),
        ("1,2\n3,4\n", True),
        ("1;2\n3;4\n", True),
        ("1\t2\n3\t4\n", True),
        ("1|2\n3|4\n", True),
        ("1   2\n3  4\n", True),
        ("# 1\n\nw 1.5 2\nv 3 4.5\n", True),
        ("1 2\n# a remark\n3 4\n", True),
        ("w 1 2\nv 3 4\n", False),
        ("w 1.5 2\nv 3 4\n", False),
        ("w 1.5 2\nv 3 4.5\n", True),
        ("x\nw 1.5\n", False),
        ("x\n1.5\n", False),
        ("x\n1.5 2\n", True),
        ("", False),
        ("\n# only\n", False),
    ],
)
def test_texts_that_are_rows_of_numbers(tmp_path, text, holds):
    """Each row has two numbers at least, and decimals if a word begins it; the first row may hold names."""
    for name in ("x.txt", "x.dat", "x.vec"):
        (tmp_path / name).write_text(text)
        assert vector_files.holds_vectors(tmp_path / name) is holds


def test_only_the_first_lines_tell_whether_a_text_holds_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr(vector_files, "LOOKED", 3)
    (tmp_path / "x.txt").write_text("1 2\n3 4\n5 6\nno number\n")
    assert vector_files.holds_vectors(tmp_path / "x.txt")
    (tmp_path / "x.txt").write_text("1 2\n3 4\nno number\n")
    assert not vector_files.holds_vectors(tmp_path / "x.txt")
    (tmp_path / "x.txt").write_bytes(b"1 2\n3 4\n\xff\n")
    assert not vector_files.holds_vectors(tmp_path / "x.txt")


@pytest.mark.parametrize(
    ("name", "is_of_model"),
    [
        *((name, True) for name in (
            "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "vocab.json",
            "modules.json", "adapter_config.json", "model_index.json", "preprocessor_config.json", "vocab.txt",
            "pytorch_model.bin", "model.safetensors", "model-00001-of-00002.safetensors", "adapter_model.bin",
            "training_args.bin", "optimizer.pt", "scheduler.pt", "model.pth",
        )),
        *((name, False) for name in (
            "my_config.json", "config.jsonl", "models.safetensors", "embeddings.bin", "my_vocab.txt", "vocab.txt.gz",
            "model.npy", "config.json.gz", "x.json",
        )),
    ],
)  # fmt: skip
def test_files_that_show_a_folder_to_be_a_checkpoint(tmp_path, name, is_of_model):
    assert bool(vector_files.OF_MODEL.fullmatch(name)) is is_of_model
    np.save(tmp_path / "x.npy", numbers(3, 2))
    (tmp_path / name).write_text("{}")
    if is_of_model:
        assert vector_files._list_vector_files(tmp_path) == []


def test_what_a_folder_must_hold_to_be_vectors(tmp_path):
    """Files of one kind, except those that describe the others; of tables the first one decides."""

    def listed(**files):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        for name, text in files.items():
            stem, _, ending = name.rpartition("_")
            (folder / f"{stem}.{ending}").write_text(text)
        found = vector_files._list_vector_files(folder)
        assert vector_files.holds_vectors(folder) is bool(found)
        return [file.name for file in found]

    rows, texts = "x,y\n.5,1\n1.5,2\n", "text\na\nb\n"
    assert listed(a_csv=rows, b_csv=texts) == ["a.csv", "b.csv"]
    assert listed(a_csv=texts, b_csv=rows) == []
    assert listed(b10_csv=rows, b9_csv=texts) == []
    assert listed(b10_csv=texts, b9_csv=rows) == ["b9.csv", "b10.csv"]
    assert listed(a_csv=rows, a_tsv=rows) == []
    assert listed(a_txt="1 2\n3 4\n") == []
    assert listed() == []
    described = listed(a_csv=rows, _SUCCESS_csv=texts, README_md="x", Licence_csv=rows)
    assert described == ["Licence.csv", "a.csv"]
    side = {"License_md": "", "LICENSE_txt": "", "ReadMe_txt": "", "dataset_info_json": "{}"}  # fmt: skip
    assert listed(a_csv=rows, **side) == ["a.csv"]
    unclear = {"a_csv": "x,n,y\n.5,3,1.5\n1.5,9,.5\n2.5,4,1.5\n"}
    assert listed(**unclear) == ["a.csv"]
    # a saved data set is a folder of vectors whatever its files are called
    folder = tmp_path / "saved"
    folder.mkdir()
    for name in ("state.json", "dataset_dict.json"):
        (folder / name).write_text("{}")
        assert vector_files.holds_vectors(folder)
        (folder / name).unlink()
        assert not vector_files.holds_vectors(folder)


def test_numbers_in_names_are_sorted_as_numbers():
    key = vector_files.natural_sort_key
    names = ["b", "a10", "a9.1", "a", "10", "9", "B", "a9.10", "a9.2"]
    ordered = ["9", "10", "B", "a", "a9.1", "a9.2", "a9.10", "a10", "b"]
    assert sorted(names, key=key) == ordered
    assert key("l.2.w10") == [(1, "l."), (0, 2), (1, ".w"), (0, 10), (1, "")]
    assert key("x") == [(1, "x")] and key("7") == [(1, ""), (0, 7), (1, "")]


def test_a_file_of_vectors_says_what_it_is_and_where_it_lies(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("x.npz", b=numbers(4, 2), a=numbers(4, 3))
    opened = open_vectors("x.npz")
    assert opened.name == "x.npz" and list(opened.layers) == ["a", "b"]
    assert opened.source == {
        "kind": "vectors",
        "path": str(tmp_path / "x.npz"),
        "reading": "x.npz: 4 vectors of 3 numbers, 2 layers a, b",
    }
    read = vector_files.read_vectors_of
    content = Content({"v": numbers(4, 2), "k": np.arange(4) + 5, "s": np.array([*"abab"])})  # fmt: skip
    named = {"columns": "v", "unit_column": "k", "label_column": "s"}
    found = read(content, "n", {"kind": "mine", "path": "p"}, **named)
    assert found.units.tolist() == [0, 1, 2, 3] and found.classes == ("a", "b")
    assert found.labels.tolist() == [0, 1, 0, 1]
    assert (found.source["kind"], found.source["path"], found.name) == ("mine", "p", "n")  # fmt: skip
    assert message_of(read_content, tmp_path / "x.npz", split="test") == (
        f"expected --split only with a data set of several splits; got {tmp_path / 'x.npz'}. "
        "Cure: leave --split out"
    )


def test_the_mask_is_the_one_that_is_named_or_that_of_any_layer():
    own, other = np.ones((4, 2), bool), np.eye(4, 2, dtype=bool)
    columns = {"a": numbers(4, 2, 3), "b": numbers(4, 2, 3), "mask": own}
    content = Content(columns, masks={"b": other, "c": own}, is_table=False)
    find, roles = vector_files._find_mask, vector_files.Roles
    assert find(content, roles({"a": ("a",), "b": ("b",)}, mask="mask")) is own
    assert find(content, roles({"a": ("a",), "b": ("b",)})) is other
    assert find(content, roles({"a": ("a",)})) is None


def test_columns_are_joined_side_by_side_in_their_order():
    columns = {
        "a": np.array([1, 2]),
        "b": np.array([1e-9 + 1, 3]),
        "m": numbers(2, 3),
        "t": torch.tensor(numbers(2, 3)).bfloat16(),
    }
    content, roles = Content(columns), vector_files.Roles
    found = vector_files._build_layers(content, roles({"x": ("b", "a")}))["x"]
    assert found.tolist() == [[1e-9 + 1, 1], [3, 2]] and found.dtype == np.float64
    found = vector_files._build_layers(content, roles({"m": ("m",)}, (0, 2)))["m"]
    assert found.tolist() == numbers(2, 3)[:, [0, 2]].tolist()
    found = vector_files._build_layers(content, roles({"t": ("t",)}, (2,)))["t"]
    assert found.tolist() == numbers(2, 3)[:, [2]].tolist()


@pytest.mark.parametrize(
    ("error", "got", "cure"),
    [
        (ValueError("one\ntwo"), "one", "write the file again"),
        (OSError(), "OSError", "write the file again"),
        (ValueError("x" * 300), "x" * 200, "write the file again"),
        *((ValueError(f"It has {word} in it"), "a file of Python objects, or one that numpy did not write",
           "store numbers, not objects")
          for word in ("Pickle", "pickled data", "Object arrays", "WEIGHTS_ONLY", "Unsupported global")),
    ],
)  # fmt: skip
def test_what_readers_say_of_damage(tmp_path, error, got, cure):
    found = vector_files._explain_damage(tmp_path / "x.npy", error)
    assert str(found) == f"expected vectors in {tmp_path / 'x.npy'}; got {got}. Cure: {cure}"  # fmt: skip


def test_names_of_arrays_of_one_file_are_in_the_order_of_their_numbers(tmp_path):
    given = {f"h.{k}": torch.tensor(numbers(3, 2, start=k)) for k in (10, 9, 1)}
    save_file(given, tmp_path / "x.safetensors")
    np.savez(tmp_path / "x.npz", **{k: v.numpy() for k, v in given.items()})
    for name in ("x.safetensors", "x.npz"):
        found = read_content(tmp_path / name).columns
        assert list(found) == ["h.1", "h.9", "h.10"]
        assert [float(x[0, 0]) for x in found.values()] == [1.25, 9.25, 10.25]


def test_what_is_compressed_is_named_with_its_program(tmp_path):
    for name in ("x.npy.gz", "X.PARQUET.GZ", "x.pt.gz"):
        (tmp_path / name).write_bytes(b"x")
        assert message_of(read_content, tmp_path / name) == (
            f"expected a file that is not compressed: {tmp_path / name}; got gzip. Cure: decompress it: gunzip {name}"
        )


def test_an_archive_with_another_header_than_content_is_named(tmp_path, monkeypatch):
    """One byte more than there is; and what an archive may unpack to, by both limits."""
    for rows, fits in ((12, True), (13, False)):
        place, header = tmp_path / "x.npz", {"descr": "|u1", "fortran_order": False}
        with zipfile.ZipFile(place, "w") as archive, archive.open("a.npy", "w") as file:
            shaped = header | {"shape": (rows, 19)}
            np.lib.format.write_array_header_1_0(file, shaped)
            file.write(bytes(228 - 128))
        if fits:
            assert vector_files._count_unpacked_bytes(tmp_path / "x.npz") == 228
        else:
            assert message_of(vector_files._check_sizes, tmp_path / "x.npz") == (
                f"expected vectors in {tmp_path / 'x.npz'}; got a.npy of 228 bytes whose header says 247. "
                "Cure: write the file again"
            )
    np.savez_compressed(tmp_path / "y.npz", a=np.zeros((100, 100)))
    total, packed = 80_128, (tmp_path / "y.npz").stat().st_size
    monkeypatch.setattr(vector_files, "MOST_PACKED", total // packed)
    assert total > vector_files.MOST_PACKED * packed
    vector_files._check_sizes(tmp_path / "y.npz")
    monkeypatch.setattr(vector_files, "SMALL", total - 1)
    assert message_of(vector_files._check_sizes, tmp_path / "y.npz") == (
        f"expected a file that unpacks to at most {total // packed} times its size: {tmp_path / 'y.npz'}; "
        f"got {packed:,} bytes that unpack to {total:,}. "
        "Cure: store the vectors as .npy: files of vectors do not compress so much"
    )
    monkeypatch.setattr(vector_files, "MOST_PACKED", total // packed + 1)
    vector_files._check_sizes(tmp_path / "y.npz")


def test_lists_of_torch_that_are_no_vectors_are_named(tmp_path):
    refuse = vector_files._refuse_list_of_tensors
    place = tmp_path / "x.pt"
    assert str(refuse(4, {(2, 3), (5, 3)}, place)) == (
        "expected one way to read x.pt; got a list of 4 matrices, which may be layers or sequences. Cure: "
        "save layers as a dict of tensors, or sequences as one tensor [sequence, token, dim] (pad_sequence)"
    )
    assert str(refuse(4, {(2, 3), (2, 5), (1, 2), (9, 9)}, place)) == (
        "expected tensors of one width in x.pt; got a list of tensors of the shapes (1, 2), (2, 3), (2, 5). "
        "Cure: save one tensor [vector, dim]"
    )
    torch.save({"a": {"b": {3: torch.ones(2, 2)}}, "t": ("x", "y"), "m": [1, 2]}, place)  # fmt: skip
    found = read_content(place).columns
    assert set(found) == {"a.b.3", "t", "m"} and found["m"].tolist() == [1, 2]
    for uneven in (
        [1.5, torch.ones(2)],
        [[1, 2], [3]],
        [[], [1]],
        [0.5, [1]],
        [torch.ones(2), 1.5],
    ):
        torch.save({"x": torch.ones(2, 2), "uneven": uneven}, place)
        assert list(read_content(place).columns) == ["x"]
    torch.save([[0.5, 1], [2, 3]], place)
    assert read_content(place).columns["x"].tolist() == [[0.5, 1], [2, 3]]
    torch.save(torch.ones(2, 2, requires_grad=True), place)
    assert list(read_content(place).columns) == ["x"]


def test_a_sparse_matrix_is_one_by_all_three_of_its_arrays():
    build = vector_files._build_content
    for names in (("indices", "indptr"), ("indices", "data"), ("indptr", "data")):
        found = build({name: numbers(2, 2) for name in names}, Path("x.npz"))
        assert set(found.columns) == set(names)
    given = {name: numbers(2) for name in ("indices", "indptr", "data", "shape")}
    assert message_of(build, given, Path("x.npz")) == (
        "expected vectors in x.npz; got a sparse matrix of scipy. Cure: store numbers: numpy.save('x.npy', x.toarray())"
    )
    for shape, cure in (
        ((), "store numbers [vector, dim] or [sequence, token, dim]"),
        ((3,), "add an axis: x[None]"),
        ((1, 1, 1, 2), "store numbers [vector, dim] or [sequence, token, dim]"),
    ):
        assert message_of(build, {"v": np.ones(shape)}, Path("a/x.npy")) == (
            f"expected vectors [vector, dim] or [sequence, token, dim]; got {list(shape)} in x.npy, 'v'. Cure: {cure}"
        )


def test_splits_are_chosen_by_name_or_if_there_is_one():
    choose, folder = vector_files._choose_split, Path("data/set")
    assert choose(["dev"], None, folder) == "dev"
    assert choose(["dev", "test"], "test", folder) == "test"
    assert message_of(choose, ["dev", "test"], None, folder) == (
        "expected one split of data/set; got dev, test. Cure: name it: --split dev"
    )
    assert message_of(choose, ["dev", "test"], "train", folder) == (
        "expected a split of data/set; got train. Cure: name one of dev, test"
    )


def test_a_folder_that_holds_no_vectors_is_listed(tmp_path):
    endings = ", ".join(vector_files.ENDINGS)

    def message():
        return message_of(read_content, tmp_path)

    expected = f"expected a folder of files of vectors of one kind ({endings}); got "
    assert message() == f"{expected}nothing in {tmp_path}. Cure: name one file"
    for name in ("b.npy", "a.csv", "in/c.xyz", "Makefile", ".hidden", "d.npy.gz", "e.md", "f.rst"):  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    listed = ".csv, .md, .npy, .rst, .xyz, Makefile"
    assert message() == f"{expected}{listed} in {tmp_path}. Cure: name one file"


def test_one_file_alone_in_a_folder_is_read_as_itself(tmp_path):
    np.save(tmp_path / "layer-0.npy", numbers(4, 2))
    content = read_content(tmp_path)
    assert list(content.columns) == ["layer-0"] and content.notes == []


@pytest.mark.parametrize(
    ("stems", "names"),
    [
        (["layer-0", "layer_1"], ["layer-0", "layer_1"]),
        (["my.hidden_states.0", "my.hidden_states.1"], None),
        (["h0", "h1"], ["h0", "h1"]),
        (["x-block3", "x-block4"], ["x-block3", "x-block4"]),
        (["part-0", "part-1"], ["vectors", "file"]),
        (["data-00000-of-00002", "data-00001-of-00002"], ["vectors", "file"]),
        (["train", "test"], ["vectors", "file"]),
        (["layer-0", "part-1"], ""),
        (["train", "mine"], ""),
        (["path1", "path2"], ""),
        (["player1", "player2"], ""),
    ],
)
def test_names_of_files_say_whether_they_are_layers_or_pieces(tmp_path, stems, names):
    for number, stem in enumerate(stems):
        np.save(tmp_path / f"{stem}.npy", numbers(4, 2, start=10 * number))
    if names == "":
        assert message_of(read_content, tmp_path) == (
            f"expected one way to read the files of {tmp_path}; got 2 files of the shape [4, 2], which may be layers "
            "or pieces of one table. Cure: call them layer-0, layer-1 …, or part-0, part-1 …"
        )
        return
    content = read_content(tmp_path)
    assert list(content.columns) == (names or stems)
    if names and "file" in names:
        assert content.notes == [
            "2 files read one after the other (--unit-column file makes a unit of each)"
        ]
        assert content.columns["file"].tolist() == [
            f"{stem}.npy" for stem in sorted(stems, key=vector_files.natural_sort_key) for _ in range(4)
        ]  # fmt: skip
    else:
        assert content.notes == ["2 files, a layer each"]
        assert content.columns[stems[1]][0, 0] == 10.25


def test_single_vectors_in_files_are_rows_but_records_are_not(tmp_path):
    for number in range(3):
        np.save(tmp_path / f"{number}.npy", numbers(4, start=10 * number))
    found = read_content(tmp_path).columns
    assert found["vectors"].shape == (3, 4)
    assert found["vectors"][:, 0].tolist() == [0.25, 10.25, 20.25]
    for number in range(3):
        records = np.zeros(2, [("a", "f8"), ("b", "f8")])
        records["b"] = number + 0.5
        np.save(tmp_path / f"{number}.npy", records)
    content = read_content(tmp_path)
    assert content.is_table and list(content.columns) == ["a", "b", "file"]
    assert content.columns["b"].tolist() == [0.5, 0.5, 1.5, 1.5, 2.5, 2.5]


def test_pieces_keep_what_is_known_of_each():
    """Row numbers and unusable columns of any piece, names and kind of the first."""
    first = Content(
        {"a": numbers(2), "v": numbers(2, 3)},
        unusable={"w": "empty"},
        index=("a",),
        named=False,
    )
    second = Content({"a": numbers(3), "v": numbers(3, 3)}, unusable={"u": "text"}, index=("v",))  # fmt: skip
    files = [Path("d/p.csv"), Path("d/q.csv")]
    joined = vector_files._join_rows([first, second], files)
    assert joined.unusable == {"w": "empty", "u": "text"}
    assert set(joined.index) == {"a", "v"}
    assert joined.named is False and joined.is_table is True and joined.masks == {}
    assert joined.columns["file"].tolist() == ["p.csv"] * 2 + ["q.csv"] * 3
    assert joined.columns["v"].tolist() == [*numbers(2, 3).tolist(), *numbers(3, 3).tolist()]  # fmt: skip
    renamed = Content({"b": numbers(3), "v": numbers(3, 3)})
    assert message_of(vector_files._join_rows, [first, renamed], files) == (
        "expected the same columns in all files of a folder; got b, v in q.csv, a, v in p.csv. "
        "Cure: measure them separately"
    )
    more = Content({"a": numbers(3), "v": numbers(3, 3), "z": numbers(3)})
    assert "got a, v, z in q.csv, a, v in p.csv" in message_of(
        vector_files._join_rows, [first, more], files
    )
    pieces = [numbers(2, 3), numbers(2, 4), numbers(1, 3), numbers(1, 9)]
    assert message_of(vector_files._join_pieces, pieces, Path("d")) == (
        "expected files of vectors of one width in d; got [2, 3], [2, 4], [1, 3]. Cure: measure them separately"
    )
    single = [Content({n: numbers(2, 3)}, is_table=False) for n in ("x", "y")]
    joined = vector_files._join_rows(single, files)
    assert list(joined.columns) == ["vectors", "file"] and not joined.is_table
    tables = [Content({n: numbers(2, 3)}) for n in ("x", "y")]
    assert "got y in q.csv, x in p.csv" in message_of(vector_files._join_rows, tables, files)  # fmt: skip


def test_files_with_several_arrays_are_layers_named_after_both():
    parts = [Content({"a": numbers(2, 3), "b": numbers(2, 3)}, is_table=False) for _ in range(2)]  # fmt: skip
    parts.append(Content({"c": numbers(2, 3, start=7)}, is_table=False))
    found = vector_files._as_layers(parts, ["l0", "l1", "l2"])
    assert list(found.columns) == ["l0.a", "l0.b", "l1.a", "l1.b", "l2"]
    assert found.notes == ["3 files, a layer each"] and not found.is_table
    assert found.columns["l2"][0, 0] == 7.25
    assert vector_files._strip_ending(Path("d/layer.0.npy")) == "layer.0"
    assert vector_files._strip_ending(Path("d/layer.0.csv.gz")) == "layer"


LAST_PARTS = (
    *("weight", "bias", "in_proj_weight"),
    *("running_mean", "running_var", "num_batches_tracked"),
)


def test_only_files_of_torch_with_matrices_and_no_weights_are_vectors(tmp_path):
    place = tmp_path / "x.bin"
    wide, flat = torch.ones(3, 2), torch.ones(3)
    for given, holds in (
        ({"x": wide, "n": flat}, True),
        ({"n": flat, "x": wide}, True),
        ({"n": flat}, False),
        *(({"x": wide, f"a.b.{last}": wide}, False) for last in LAST_PARTS),
        *(({"x": wide, last: wide}, False) for last in LAST_PARTS),
        ({"weight.x": wide}, True),
        ({"x": torch.ones(1, 2, 3, 4)}, False),
        (torch.ones(1, 2, 3), True),
    ):  # fmt: skip
        torch.save(given, place)
        assert vector_files.holds_vectors(place) is holds, given
    place.write_bytes(b"no file of torch")
    assert not vector_files.holds_vectors(place)
