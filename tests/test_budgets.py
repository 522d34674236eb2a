"""Small files that unpack to any size: no more of them is read than is asked for, or than memory holds."""

import gzip
import json

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

import anisoscope
from anisoscope.data import files, splitting, table_rows, vector_files, vector_tables
from anisoscope.data.table_rows import read_table_rows
from anisoscope.data.text import open_text
from anisoscope.data.vector_files import open_vectors
from anisoscope.errors import CorpusError

UNITS = {
    "t.txt.gz": b"The cat sat on.\n",
    "t.jsonl.gz": b'{"text": "abc"}\n',
    "t.csv.gz": b"the cat sat on.\n",
}


@pytest.fixture
def unpacked(monkeypatch):
    """Bytes that were unpacked, counted where they are read."""
    count = [0]
    read = gzip.GzipFile.read1

    def counted(self, size=-1):
        data = read(self, size)
        count[0] += len(data)
        return data

    monkeypatch.setattr(gzip.GzipFile, "read1", counted)
    whole = gzip.GzipFile.read

    def counted_whole(self, size=-1):
        data = whole(self, size)
        count[0] += len(data)
        return data

    monkeypatch.setattr(gzip.GzipFile, "read", counted_whole)
    return count


@pytest.mark.parametrize("name", UNITS)
def test_one_unit_of_a_large_file_takes_its_beginning_alone(tmp_path, unpacked, name):
    """With --limit 1 a gzip of 6.6 GB was unpacked to its end."""
    member = gzip.compress(UNITS[name] * (1 << 18), mtime=0)  # 4 MiB
    (tmp_path / name).write_bytes(member * 25)
    found = open_text(
        str(tmp_path / name), limit=1, documents="line" if "txt" in name else "auto"
    )
    assert len(found.documents) == 1
    assert 0 < unpacked[0] < 30 << 20, f"{unpacked[0] >> 20} MiB of 100 were read"


def test_a_limit_gives_the_first_documents_of_the_whole(tmp_path, monkeypatch):
    """Whatever the piece of the file is in which they are looked for."""
    lines = [
        [f"word{k}"] * 20 for k in range(30)
    ]  # of a document of several lines the last ones may not be read yet
    blocks = [
        "\n".join(" ".join(line) for line in [line] * (11 + k % 5))
        for k, line in enumerate(lines)
    ]
    (tmp_path / "t.txt").write_text("\n\n".join(blocks))
    monkeypatch.setattr(splitting, "HEAD", 1 << 12)
    monkeypatch.setattr(files, "PIECE", 1 << 10)
    whole = open_text(str(tmp_path / "t.txt"))
    assert whole.documents == blocks
    for limit in range(1, 32):
        found = open_text(str(tmp_path / "t.txt"), limit=limit)
        assert (
            found.documents == blocks[:limit]
            and found.source["documents"] == whole.source["documents"]
        )


def test_a_file_larger_than_the_memory_is_refused(tmp_path, monkeypatch):
    for module in (files, splitting):
        monkeypatch.setattr(module, "get_memory_budget", lambda: 1 << 20)
    (tmp_path / "t.txt.gz").write_bytes(
        gzip.compress(b"The cat sat.\n" * (1 << 18), mtime=0)
    )
    for documents in ("auto", "file"):
        with pytest.raises(
            CorpusError,
            match=r"a quarter of the free memory; got .* or more. Cure: .*--limit",
        ):
            open_text(str(tmp_path / "t.txt.gz"), documents=documents)


def test_a_line_without_an_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LONGEST_LINE", 1000)
    (tmp_path / "t.jsonl.gz").write_bytes(gzip.compress(b"a" * 5000, mtime=0))
    with pytest.raises(
        CorpusError,
        match=r"lines of at most 1,000 characters in .*; got a longer one, line 1",
    ):
        open_text(str(tmp_path / "t.jsonl.gz"))


def test_a_quotation_mark_that_stays_open_does_not_take_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(table_rows, "LONGEST_RECORD", 2000)
    (tmp_path / "t.csv").write_text('text\n"never closed\n' + "a row\n" * 5000)
    rows = list(read_table_rows(tmp_path / "t.csv"))
    assert (
        "never closed" in rows[0].fault
        and len(rows) == 5001
        and not any(row.fault for row in rows[1:])
    )


def test_an_archive_is_judged_by_its_header(tmp_path):
    """650 kB of zeros were unpacked to 640 MB; a header that lies asked for more memory than there is."""
    np.savez_compressed(tmp_path / "x.npz", x=np.zeros((16_000, 1000)))
    with pytest.raises(CorpusError, match="unpacks to at most 100 times its size"):
        open_vectors(tmp_path / "x.npz")
    small = np.random.default_rng(0).normal(size=(50, 8))
    np.savez_compressed(tmp_path / "y.npz", x=small)
    assert open_vectors(tmp_path / "y.npz").shape == (50, 8)
    np.savez(tmp_path / "z.npz", x=small)
    raw = (tmp_path / "z.npz").read_bytes()
    (tmp_path / "z.npz").write_bytes(raw.replace(b"(50, 8)", b"(5e9,8)"))
    with pytest.raises(CorpusError, match=r"vectors in .*z\.npz"):
        open_vectors(tmp_path / "z.npz")


@pytest.fixture
def nothing_is_small(monkeypatch):
    """Every array and column counts as large; pieces are of 7 rows."""
    for module in (vector_files, vector_tables):
        monkeypatch.setattr(module, "LARGE", 0)
    monkeypatch.setattr(vector_tables, "PIECE", 7)


def lists(x, kind):
    """The rows of x as an Arrow column of lists."""
    if kind == "fixed":
        return pyarrow.FixedSizeListArray.from_arrays(
            pyarrow.array(x.ravel()), x.shape[1]
        )
    return pyarrow.array(
        list(x),
        (pyarrow.list_ if kind == "list" else pyarrow.large_list)(
            pyarrow.from_numpy_dtype(x.dtype)
        ),
    )


@pytest.mark.parametrize("kind", ["fixed", "list", "large list"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_a_large_column_of_parquet_gives_the_numbers_of_a_small_one(
    kind, dtype, tmp_path, request
):
    """Several row groups, other columns before and after, a unit; read in pieces, and as a whole."""
    x = (np.random.default_rng(0).normal(size=(100, 5)) + 1).astype(dtype)
    columns = {
        "id": np.arange(100),
        "embedding": lists(x, kind),
        "unit": np.arange(100) // 3,
    }
    parquet.write_table(
        pyarrow.table(columns), tmp_path / "x.parquet", row_group_size=30
    )
    whole = anisoscope.measure(tmp_path / "x.parquet")
    request.getfixturevalue("nothing_is_small")
    column = open_vectors(tmp_path / "x.parquet").layers["embedding"]
    assert isinstance(column, vector_tables.StreamedVectors)
    for start, stop in (
        (0, 4),
        (4, 45),
        (45, 46),
        (99, 100),
        (20, 70),
        (0, 100),
        (98, 200),
        (31, 31),
    ):
        np.testing.assert_array_equal(column[start:stop], x[start:stop])
    np.testing.assert_array_equal(np.asarray(column), x)
    streamed = anisoscope.measure(tmp_path / "x.parquet")
    assert streamed.manifest["corpus"]["reading"] == whole.manifest["corpus"]["reading"]
    assert streamed.manifest["run"] == whole.manifest["run"]
    numbers = [name for name in whole.records if name != "run"]
    assert streamed.records[numbers].equals(whole.records[numbers])


@pytest.mark.usefixtures("nothing_is_small")
def test_of_a_large_column_no_more_is_read_than_is_asked_for(tmp_path):
    """100 MiB were held, and twice that while they were read."""
    x = np.random.default_rng(0).normal(size=(51_200, 256)).astype(np.float32)
    parquet.write_table(
        pyarrow.table({"vector": lists(x, "fixed")}), tmp_path / "x.parquet"
    )
    column = open_vectors(tmp_path / "x.parquet").layers["vector"]
    before = pyarrow.total_allocated_bytes()
    for start in range(0, len(x), 4096):
        np.testing.assert_array_equal(
            column[start : start + 4096], x[start : start + 4096]
        )
        assert pyarrow.total_allocated_bytes() - before < 24 << 20


@pytest.mark.usefixtures("nothing_is_small")
def test_a_large_column_with_other_lists_in_it_is_refused(tmp_path):
    rows = [[1.0, 2.0]] * 20 + [[1.0], [1.0, 2.0, 3.0]] + [[1.0, 2.0]] * 20
    parquet.write_table(
        pyarrow.table({"vector": pyarrow.array(rows)}), tmp_path / "x.parquet"
    )
    with pytest.raises(
        CorpusError,
        match=r"list of 2 numbers in every row.*lists of 1 to 2 numbers in rows 15 to 21",
    ):
        anisoscope.measure(tmp_path / "x.parquet")
    rows[20:22] = [None, [1.0, 2.0]]
    parquet.write_table(
        pyarrow.table({"vector": pyarrow.array(rows)}), tmp_path / "y.parquet"
    )
    with pytest.raises(CorpusError, match="1 rows without a list"):
        anisoscope.measure(tmp_path / "y.parquet")


@pytest.mark.usefixtures("nothing_is_small")
def test_a_damaged_large_column_is_refused(tmp_path):
    x = np.random.default_rng(0).normal(size=(5000, 16))
    parquet.write_table(
        pyarrow.table({"vector": lists(x, "fixed")}),
        tmp_path / "x.parquet",
        compression="snappy",
    )
    raw = bytearray((tmp_path / "x.parquet").read_bytes())
    raw[4:24] = bytes(20)
    (tmp_path / "x.parquet").write_bytes(raw)
    with pytest.raises(CorpusError, match="write the file again"):
        anisoscope.measure(tmp_path / "x.parquet")


@pytest.mark.usefixtures("nothing_is_small")
def test_a_large_array_of_an_archive_is_read_in_place(tmp_path, monkeypatch):
    """It was unpacked into memory, although it was not packed; more than the budget was refused."""
    x = np.random.default_rng(0).normal(size=(60, 8))
    by_columns = np.asfortranarray(x + 1)
    np.savez(tmp_path / "x.npz", first=x, second=by_columns, unit=np.arange(60) // 2)
    monkeypatch.setattr(vector_files, "get_memory_budget", lambda: 100)
    found = open_vectors(tmp_path / "x.npz")
    assert all(isinstance(layer, np.memmap) for layer in found.layers.values())
    np.testing.assert_array_equal(found.layers["first"], x)
    np.testing.assert_array_equal(found.layers["second"], by_columns)
    assert found.units.tolist() == (np.arange(60) // 2).tolist()
    np.savez_compressed(tmp_path / "y.npz", x=x)
    with pytest.raises(CorpusError, match=r"savez without compression"):
        open_vectors(tmp_path / "y.npz")


def test_positions_of_damage_do_not_depend_on_the_pieces(tmp_path, monkeypatch):
    content = "é\r\nab\r\n".encode() * 50 + b"\xff" + b"rest"
    (tmp_path / "t.txt").write_bytes(content)
    for piece in (1, 2, 3, 7, 1 << 20):
        monkeypatch.setattr(files, "PIECE", piece)
        with pytest.raises(CorpusError, match=f"at position {len(content) - 5}"):
            files.read_text(tmp_path / "t.txt")
    (tmp_path / "t.txt").write_bytes(content[:-5])
    for piece in (1, 2, 3, 7, 1 << 20):
        monkeypatch.setattr(files, "PIECE", piece)
        assert files.read_text(tmp_path / "t.txt") == "é\nab\n" * 50


def test_json_lines_of_vectors_have_a_budget(tmp_path, monkeypatch):
    monkeypatch.setattr("anisoscope.data.vector_json.get_memory_budget", lambda: 1000)
    (tmp_path / "x.jsonl").write_text(
        "".join(f"{json.dumps({'vector': [0.5] * 20})}\n" for _ in range(50))
    )
    with pytest.raises(CorpusError, match="a quarter of the free memory"):
        open_vectors(tmp_path / "x.jsonl")
