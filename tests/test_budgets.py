"""Small files that unpack to any size: no more of them is read than is asked for, or than memory holds."""

import gzip
import json

import numpy as np
import pytest

from anisoscope.data import files, splitting, table_rows
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
    found = open_text(str(tmp_path / name), limit=1, documents="line" if "txt" in name else "auto")
    assert len(found.documents) == 1
    assert 0 < unpacked[0] < 30 << 20, f"{unpacked[0] >> 20} MiB of 100 were read"


def test_a_limit_gives_the_first_documents_of_the_whole(tmp_path, monkeypatch):
    """Whatever the piece of the file is in which they are looked for."""
    lines = [[f"word{k}"] * 20 for k in range(30)]  # of a document of several lines the last ones may not be read yet
    blocks = ["\n".join(" ".join(line) for line in [line] * (11 + k % 5)) for k, line in enumerate(lines)]
    (tmp_path / "t.txt").write_text("\n\n".join(blocks))
    monkeypatch.setattr(splitting, "HEAD", 1 << 12)
    monkeypatch.setattr(files, "PIECE", 1 << 10)
    whole = open_text(str(tmp_path / "t.txt"))
    assert whole.documents == blocks
    for limit in range(1, 32):
        found = open_text(str(tmp_path / "t.txt"), limit=limit)
        assert found.documents == blocks[:limit] and found.source["documents"] == whole.source["documents"]


def test_a_file_larger_than_the_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "memory_budget", lambda: 1 << 20)
    (tmp_path / "t.txt.gz").write_bytes(gzip.compress(b"The cat sat.\n" * (1 << 18), mtime=0))
    with pytest.raises(CorpusError, match=r"a quarter of the free memory; got .* or more. Cure: .*--limit"):
        open_text(str(tmp_path / "t.txt.gz"))


def test_a_line_without_an_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LONGEST_LINE", 1000)
    (tmp_path / "t.jsonl.gz").write_bytes(gzip.compress(b"a" * 5000, mtime=0))
    with pytest.raises(CorpusError, match=r"lines of at most 1,000 characters in .*; got line 1"):
        open_text(str(tmp_path / "t.jsonl.gz"))


def test_a_quotation_mark_that_stays_open_does_not_take_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(table_rows, "LONGEST_RECORD", 2000)
    (tmp_path / "t.csv").write_text('text\n"never closed\n' + "a row\n" * 5000)
    rows = list(read_table_rows(tmp_path / "t.csv"))
    assert "never closed" in rows[0].fault and len(rows) == 5001 and not any(row.fault for row in rows[1:])


def test_an_archive_is_judged_by_its_header(tmp_path):
    """650 kB of zeros were unpacked to 640 MB; a header that lies asked for more memory than there is."""
    np.savez_compressed(tmp_path / "x.npz", x=np.zeros((16_000, 1000)))
    with pytest.raises(CorpusError, match="packed to no less than a 100th"):
        open_vectors(tmp_path / "x.npz")
    small = np.random.default_rng(0).normal(size=(50, 8))
    np.savez_compressed(tmp_path / "y.npz", x=small)
    assert open_vectors(tmp_path / "y.npz").shape == (50, 8)
    np.savez(tmp_path / "z.npz", x=small)
    raw = (tmp_path / "z.npz").read_bytes()
    (tmp_path / "z.npz").write_bytes(raw.replace(b"(50, 8)", b"(5e9,8)"))
    with pytest.raises(CorpusError, match=r"vectors in .*z\.npz"):
        open_vectors(tmp_path / "z.npz")


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
    monkeypatch.setattr("anisoscope.data.vector_json.memory_budget", lambda: 1000)
    (tmp_path / "x.jsonl").write_text("".join(f"{json.dumps({'vector': [0.5] * 20})}\n" for _ in range(50)))
    with pytest.raises(CorpusError, match="a quarter of the free memory"):
        open_vectors(tmp_path / "x.jsonl")
