"""Corpora on this machine: which path, copy, split, manifest and item a name means, on a few small files."""

import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from anisoscope.data import local, media
from anisoscope.data.corpora import CorpusOptions, HubPart, NamedCorpus
from anisoscope.data.items import FoundItems, Item
from anisoscope.data.table_rows import Row
from anisoscope.errors import CorpusError, UsageError


def message_of(error, call, *given, **more):
    with pytest.raises(error) as caught:
        call(*given, **more)
    return str(caught.value)


def touch(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x")


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A folder of corpora, apart from the one in which the test works."""
    (tmp_path / "here").mkdir()
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("ANISOSCOPE_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


# ---- paths and copies ------------------------------------------------------------------------------------------------


def test_a_name_is_a_path_here_and_then_one_of_the_data(data):
    """Among the data an ending may be left out; the exact name goes first."""
    assert local.find_path("x") is None and local.find_path("") is None
    assert local.find_path("x" * 5000) is None
    touch(data, "x.jsonl.gz")
    assert local.find_path("x") == data / "x.jsonl.gz"
    touch(data, "x.txt", "x.csv", "in/y.parquet")
    assert local.find_path("x") == data / "x.txt"
    assert local.find_path("in/y") == data / "in" / "y.parquet"
    touch(data, "x")
    assert local.find_path("x") == data / "x"
    touch(data.parent / "here", "x")
    assert local.find_path("x").resolve() == data.parent / "here" / "x"


def test_copies_are_read_inside_of_the_block_only(data, monkeypatch):
    """Relative paths mean what they mean here; what a variable held before comes back."""
    touch(data.parent / "here", "one", "two")
    monkeypatch.setenv("ANISOSCOPE_DATA_MY_SET", "/before")
    with local.use_copies({"my-set": "one", "other": data}):
        assert local.find_copy("my-set") == data.parent / "here" / "one"
        assert os.environ["ANISOSCOPE_DATA_OTHER"] == str(data.resolve())
        with local.use_copies({"my-set": "two"}):
            assert local.find_copy("my-set").name == "two"
        assert local.find_copy("my-set").name == "one"
    assert os.environ["ANISOSCOPE_DATA_MY_SET"] == "/before"
    assert "ANISOSCOPE_DATA_OTHER" not in os.environ
    message = message_of(CorpusError, local.find_copy, "my-set")
    assert message == (
        "expected a local copy of my-set; got /before, which is not there. Cure: check the path"
    )
    touch(data, "third.txt")
    assert local.find_copy("third") == data / "third.txt"
    assert local.find_copy("fourth") is None


def test_paths_of_copies_are_parsed():
    assert local.parse_paths(["a=b=c", "d=e"]) == {"a": "b=c", "d": "e"}
    for text, name in (("=b", ""), ("a=", "a"), ("a", "a")):
        message = message_of(UsageError, local.parse_paths, [text])
        assert message == (
            f"expected --data NAME=FOLDER; got {name!r}. Cure: write --data common-voice=~/cv-corpus-11.0/en"
        )


@pytest.mark.parametrize(
    ("names", "split", "config", "found"),
    [
        (["a/TRAIN.txt", "a/Dev.txt"], "validation", "", "a/Dev.txt"),
        (["a/TRAIN.txt", "a/Dev.txt"], "train", "", "a/TRAIN.txt"),
        (["own-split.txt", "train.txt"], "own", "", "own-split.txt"),
        (["en/test.txt", "de/test.txt"], "test", "de", "de/test.txt"),
        (["x.test.txt"], "test", "de", "x.test.txt"),
        (["test/a.txt", "test/test.txt", "train/a.txt"], "test", "", "test"),
        (["a.txt", "b.txt"], "test", "", "."),
        ([".test.txt", "a.txt"], "test", "", "."),
        (["a/b/test.txt"], "test", "", "."),
        (["test.wav", "test.txt", "test.raw"], "test", "", None),
        (["test.wav", "test.txt"], "test", "", "test.txt"),
        (["test.wav", "test.raw"], "test", "", "test.raw"),
    ],
)
def test_the_part_of_a_copy_that_is_of_a_split(tmp_path, names, split, config, found):
    """By words of names, of any case, two levels deep; of another modality none."""
    copy = tmp_path / "copy"
    touch(copy, *names)
    if found is not None:
        path = local.find_part_of_copy(copy, "text", split, config)
        assert path == copy / found
        return
    message = message_of(
        CorpusError, local.find_part_of_copy, copy, "text", split, config
    )
    assert message == (
        f"expected one file or folder of the test split in {copy}; got 2, such as test.raw. "
        "Cure: name the file or folder itself"
    )


def test_a_copy_of_other_splits_says_which(tmp_path):
    touch(tmp_path, "b.train.txt", "c.test.txt", "a.txt")
    message = message_of(CorpusError, local.find_part_of_copy, tmp_path, "text", "validation")  # fmt: skip
    assert message == (
        f"expected one file or folder of the validation split in {tmp_path}; got none, but b.train.txt. "
        "Cure: name the file or folder itself"
    )
    file = tmp_path / "a.txt"
    assert local.find_part_of_copy(file, "text", "validation") == file
    assert local.find_part_of_copy(tmp_path, "text", None) == tmp_path


def test_corpora_of_the_data_are_listed_with_what_they_hold(data):
    """Names without endings; a manifest belongs to its folder; what holds both clips and images is of clips."""
    touch(data, "news.txt", "t/rows.jsonl.gz", "clips/a.WAV", "deep/pics/a.png")
    touch(
        data,
        "both/a.png",
        "both/b.wav",
        "clips/metadata.csv",
        "x/my-manifest.csv",
        "notes.pdf",
    )
    (data / "listed").mkdir()
    (data / "listed" / "manifest.csv").write_text("path\nin/a.flac\n")
    (data / "texts").mkdir()
    (data / "texts" / "metadata.csv").write_text("path\na.txt\n")
    found = local.list_local_corpora()
    assert found == {
        "both": ("speech", data / "both"),
        "clips": ("speech", data / "clips"),
        "deep/pics": ("image", data / "deep" / "pics"),
        "listed": ("speech", data / "listed"),
        "news": ("text", data / "news.txt"),
        "t/rows": ("text", data / "t" / "rows.jsonl.gz"),
    }


def test_what_a_file_or_folder_holds(tmp_path):
    """Most of its names decide; of encoded bytes the name of the column, in any case."""
    touch(tmp_path, "m/a.png", "m/b.jpg", "m/c.wav", "m/.d.wav", "m/.e.wav", "x.pdf", "y.rst")  # fmt: skip
    assert local.detect_modality(tmp_path / "m") == "image"
    assert local.detect_modality(tmp_path / "x.pdf") is None
    assert local.detect_modality(tmp_path / "y.rst") == "text"
    for modality, endings in (
        ("speech", "wav flac mp3 ogg opus aiff aif au"),
        ("image", "jpg jpeg png bmp gif webp tif tiff ppm pgm"),
        ("text", "txt md rst gz"),
    ):
        for ending in endings.split():
            assert local.detect_modality(tmp_path / f"z.{ending}") == modality, ending
    value = [{"bytes": b"x", "path": "p"}]
    kinds = {"Audio": "speech", "my_Sound": "speech", "Speech": "speech", "it": "image"}
    for column, kind in kinds.items():
        path = tmp_path / f"{column}.parquet"
        pd.DataFrame({"text": ["a"], "more": [{"n": 1}], column: value}).to_parquet(path)  # fmt: skip
        assert local.find_encoded_column(path) == column
        assert local.detect_modality(path) == kind
    pd.DataFrame({"text": ["a"], "more": [{"n": 1}]}).to_parquet(tmp_path / "t.parquet")
    assert local.find_encoded_column(tmp_path / "t.parquet") is None
    assert local.detect_modality(tmp_path / "t.parquet") == "text"
    touch(tmp_path, "broken.parquet")
    assert local.find_encoded_column(tmp_path / "broken.parquet") is None
    table = tmp_path / "m.jsonl"
    table.write_text('{"path": "a.wav"}\n{broken\n{"path": "b.png"}\n{"path": "c.png"}\n')  # fmt: skip
    assert local.detect_modality(table) == "image"
    table.write_text('{"words": "a.wav"}\n')
    assert local.detect_modality(table) is None


def test_the_manifest_of_a_folder_is_the_first_of_its_names(tmp_path):
    for name in ("metadata.json", "metadata.csv", "manifest.json", "manifest.tsv"):
        touch(tmp_path, name)
        assert local.find_manifest(tmp_path).name == name
    touch(tmp_path / "other", "metadata.parquet", "list.csv")
    assert local.find_manifest(tmp_path / "other") is None


def test_the_path_of_a_row_is_in_the_likeliest_column(tmp_path):
    place = tmp_path / "m.csv"
    row = Row("line 2", {"id": 7, "wav": "w", "audio": "a", "file": "f"})
    assert local.find_row_path(row, place) == "f"
    assert local.find_row_path(row, place, "id") == 7
    message = message_of(CorpusError, local.find_row_path, row, place, "wave")
    assert message == (
        f"expected a column 'wave' in {place}; got the columns id, wav, audio, file. Cure: did you mean wav?"
    )
    bare = Row("line 2", {"id": 7, "name": "x"})
    message = message_of(CorpusError, local.find_row_path, bare, place)
    assert message == (
        "expected a column of paths (path, file, file_name, filename, audio, image, wav, audio_filepath) "
        f"in {place}; got the columns id, name. Cure: rename the column, or name it with --column"
    )


# ---- clips and images here -------------------------------------------------------------------------------------------


def listed(found):
    return [(item.name, item.unit, item.place, item.text) for item in found.items]


def test_items_of_a_file_and_of_a_folder(tmp_path):
    touch(tmp_path, "b/2.wav", "a.WAV", "c.png", ".d.wav", "t.txt")
    one = media.find_local_items(tmp_path / "a.WAV", "speech")
    assert listed(one) == [("a.WAV", None, tmp_path / "a.WAV", "")]
    assert one.source == {"kind": "file", "path": str((tmp_path / "a.WAV").resolve())}
    every = media.find_local_items(tmp_path, "speech")
    assert listed(every) == [
        ("a.WAV", None, tmp_path / "a.WAV", ""),
        ("b/2.wav", None, tmp_path / "b" / "2.wav", ""),
    ]
    assert every.source == {"kind": "folder", "path": str(tmp_path.resolve())}
    for path in (tmp_path, tmp_path / "a.WAV"):
        message = message_of(UsageError, media.find_local_items, path, "speech", "c")
        assert message == (
            f"expected a manifest or a hub data set, because --column names a column; got {path}. "
            "Cure: leave --column out"
        )
    (tmp_path / "b" / "2.wav").rename(tmp_path / "b" / "2.png")
    message = message_of(CorpusError, media.find_local_items, tmp_path / "b", "speech")
    assert message == (
        f"expected files ending in .wav, .flac, .mp3, .ogg … in {tmp_path / 'b'}; "
        "got none (it holds image files). Cure: name another folder"
    )
    (tmp_path / "b" / "2.png").rename(tmp_path / "b" / "2.pdf")
    with pytest.raises(CorpusError, match=r"none \(it holds other files\)"):
        media.find_local_items(tmp_path / "b", "image")


def test_items_of_a_manifest_in_the_folder_or_above_it(tmp_path):
    """Only what lies in the folder; a manifest of another modality, or of other folders, is none of it."""
    touch(tmp_path, "clips/a.wav", "clips/b.wav", "other/c.wav", "d.wav")
    rows = [
        {"path": "a.wav", "speaker": "s", "transcript": " one "},
        {"path": "other/c.wav", "speaker": "t"},
        {"path": "clips/b.wav", "speaker": 0},
        {"path": "gone.wav"},
    ]
    above = tmp_path / "manifest.jsonl"
    above.write_text("\n".join(map(json.dumps, rows)))
    found = media.find_local_items(tmp_path / "clips", "speech")
    assert listed(found) == [
        ("a.wav", "s", tmp_path / "clips" / "a.wav", "one"),
        ("clips/b.wav", "0", tmp_path / "clips" / "b.wav", ""),
    ]
    assert found.source["kind"] == "folder"
    assert found.source["manifest"] == str(above.resolve())
    whole = media.find_local_items(above, "speech")
    assert whole.source == {"kind": "manifest", "path": str(above.resolve())}
    assert listed(whole)[1::2] == [
        ("other/c.wav", "t", tmp_path / "other" / "c.wav", ""),
        ("gone.wav", None, tmp_path / "gone.wav", ""),
    ]
    assert len(listed(media.find_local_items(tmp_path, "speech"))) == 4
    inside = tmp_path / "clips" / "metadata.csv"
    inside.write_text("path\nb.wav\n")
    found = media.find_local_items(tmp_path / "clips", "speech")
    assert [item.name for item in found.items] == ["b.wav"]
    inside.write_text("path\nb.png\n")
    assert len(media.find_local_items(tmp_path / "clips", "speech").items) == 2
    above.write_text(json.dumps(rows[1]))
    found = media.find_local_items(tmp_path / "clips", "speech")
    assert "manifest" not in found.source
    assert [item.name for item in found.items] == ["a.wav", "b.wav"]


def test_items_of_a_manifest_by_a_column_that_is_named(tmp_path):
    place = tmp_path / "m.csv"
    place.write_text("path,thumb\na.png,b.png\n")
    for column, name in ((None, "a.png"), ("thumb", "b.png")):
        found = media.find_local_items(place, "image", column)
        assert [item.name for item in found.items] == [name]
    value = [{"bytes": b"1", "path": None}], [{"bytes": b"2", "path": "p.png"}]
    path = tmp_path / "m.parquet"
    more = {"speaker": ["s"], "text": [" message "]}
    pd.DataFrame({"one": value[0], "two": value[1]} | more).to_parquet(path)
    first, second = (
        media.find_local_items(path, "image", column) for column in (None, "two")
    )
    assert first.source["kind"] == "manifest"
    (item,) = first.items
    assert item == Item(item.name, "s", b"1", text="message") and "1" in item.name
    assert list(second.items) == [Item("p.png", "s", b"2", text="message")]


def test_what_a_row_of_a_manifest_has_for_a_path(tmp_path):
    manifest = tmp_path / "m.csv"
    touch(tmp_path, "a.wav", "clips/a.wav", "clips/b.wav")

    def made(place, columns=None, fault=""):
        return media._make_item(place, Row("line 3", columns or {}, fault), manifest)

    assert made("a.wav").place == tmp_path / "a.wav"
    assert made("b.wav").place == tmp_path / "clips" / "b.wav"
    assert made("c.wav").place == tmp_path / "c.wav"
    assert made(str(tmp_path / "a.wav")).place == tmp_path / "a.wav"
    for place, fault in ((7, "7 for a path"), ("", "'' for a path"), (None, "None for a path")):  # fmt: skip
        item = made(place)
        assert (item.name, item.fault) == ("row of m.csv (line 3)", fault)
    assert made(None, fault="cut off").fault == "cut off"


def test_where_items_are_looked_for(monkeypatch, tmp_path):
    """On the hub and here with the column that was named; of a function as it makes them."""
    asked = []
    part = HubPart("n", "image", "n")
    made = FoundItems([], {"kind": "made"})
    monkeypatch.setattr(media, "find_hub_items", lambda *given: asked.append(given))
    monkeypatch.setattr(media, "find_local_items", lambda *given: asked.append(given))
    row = NamedCorpus("speech", "d", maker="x:y")
    monkeypatch.setattr(NamedCorpus, "make", lambda _self: made)
    options, resolved = CorpusOptions(column="c"), []
    for place in (part, tmp_path, row):
        monkeypatch.setattr(
            media, "resolve_corpus", lambda *given, p=place: resolved.append(given) or p
        )
        found = media._find_items("n", "speech", options)
        assert found is (made if place is row else None)
        assert resolved.pop() == ("n", "speech", options)
    assert asked == [(part, "c"), (tmp_path, "speech", "c")]


def corpus_of(monkeypatch, *rows, skip_bad=True, **options):
    """Items of these units; the data `bad` cannot be read."""
    found = [Item(f"c{k}", unit, data) for k, (unit, data) in enumerate(rows)]
    monkeypatch.setattr(media, "_find_items", lambda *_: FoundItems(found, {"kind": "x"}))  # fmt: skip

    def check(_name, data, _decode):
        if data == b"bad":
            raise CorpusError("a clip", "it is damaged")

    given = CorpusOptions(skip_bad=skip_bad, **options)
    return media.open_media("n", "speech", given, check)


def test_units_are_speakers_or_items(monkeypatch):
    """A speaker may be called as an item is; the limit counts units, to the end of the last one."""
    rows = [("item 1", b"a"), (None, b"b"), ("c1", b"c"), ("item 1", b"d"), ("y", b"e")]
    found = corpus_of(monkeypatch, *rows)
    assert found.unit.tolist() == [0, 1, 2, 0, 3] and found.unit.dtype == np.int64
    assert found.source["unit"] == "speaker" == found.unit_word("clip")
    two = corpus_of(monkeypatch, *rows, limit=3)
    assert [item.name for item in two.items] == ["c0", "c1", "c2", "c3"]
    files = corpus_of(monkeypatch, (None, b"a"), (None, b"a"))
    assert files.source["unit"] == "file" and files.unit_word("clip") == "clip"
    assert files.unit.tolist() == [0, 1]
    same = corpus_of(monkeypatch, ("x", b"a"), ("x", b"a"))
    assert same.fingerprint != files.fingerprint
    assert found.skip_bad and not corpus_of(monkeypatch, *rows, skip_bad=False).skip_bad


def test_items_that_were_left_out_are_counted_and_the_first_named(monkeypatch):
    rows = [(None, b"bad")] * 25 + [(None, b"good")]
    found = corpus_of(monkeypatch, *rows, limit=4)
    assert found.source == {
        "kind": "x", "unit": "file", "items": 1, "limit": 4, "skipped": 25,
        "skipped_items": [f"c{k} (it is damaged)" for k in range(20)],
    }  # fmt: skip
    message = message_of(CorpusError, corpus_of, monkeypatch, *rows, skip_bad=False)
    five = ", ".join(f"c{k} (it is damaged)" for k in range(5))
    assert message == (
        f"expected readable files in n; got 25 faulty: {five} and 20 more. "
        "Cure: repair or remove them, or pass --skip-bad"
    )
    message = message_of(CorpusError, corpus_of, monkeypatch, *rows[:3])
    assert message == (
        "expected at least one readable file in n; got 3 that cannot be read. Cure: name another corpus"
    )


def test_of_two_files_of_one_name_the_last_is_listed(data):
    """Of `x` it is the one that the name leads to."""
    touch(data, "x.csv", "x.txt", "y.jsonl", "y.jsonl.gz")
    found = local.list_local_corpora()
    assert found["x"] == ("text", data / "x.txt") == ("text", local.find_path("x"))
    assert found["y"] == ("text", data / "y.jsonl.gz")


def test_a_faulty_row_of_a_manifest_is_an_item_of_every_folder(tmp_path):
    """Nobody knows where it would lie: it is reported, not dropped."""
    touch(tmp_path, "clips/a.wav", "other/b.wav")
    rows = '{"path": "clips/a.wav"}\n{broken\n{"path": "other/b.wav"}\n{"path": ""}\n'
    (tmp_path / "manifest.jsonl").write_text(rows)
    found = media.find_local_items(tmp_path / "clips", "speech")
    names = [item.name for item in found.items]
    assert names == [
        "clips/a.wav",
        "row of manifest.jsonl (line 2)",
        "row of manifest.jsonl (line 4)",
    ]
    assert [bool(item.fault) for item in found.items] == [False, True, True]
    message = message_of(CorpusError, found.items[2].read)
    assert message == (
        "expected a readable row of manifest.jsonl (line 4); got '' for a path. "
        "Cure: restore the file, or take it out of the corpus"
    )


def test_sources_of_clips_are_found_from_any_folder(tmp_path, monkeypatch):
    """Of a folder, its manifest, and a file; names of items stay those of the folder."""
    touch(tmp_path, "clips/a.wav")
    (tmp_path / "clips" / "metadata.csv").write_text("path\na.wav\n")
    monkeypatch.chdir(tmp_path)
    here = tmp_path.resolve() / "clips"
    found = media.find_local_items(Path("clips"), "speech")
    assert found.source == {"kind": "folder", "path": str(here), "manifest": str(here / "metadata.csv")}  # fmt: skip
    assert [item.name for item in found.items] == ["a.wav"]
    for name in ("a.wav", "metadata.csv"):
        source = media.find_local_items(Path("clips", name), "speech").source
        assert source["path"] == str(here / name)
