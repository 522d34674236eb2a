"""Images of data sets, with and without texts: columns, cached rows, keys of caches, messages, with sets made up."""

import json
from pathlib import Path

import datasets
import pytest

from anisoscope.data import hub, image_text_sets, items
from anisoscope.data.corpora import CorpusOptions, HubPart
from anisoscope.data.image_text_sets import SavedImage, SetRow, _Columns
from anisoscope.data.items import Item
from anisoscope.errors import CorpusError, UsageError

IMAGE, TEXT = datasets.Image(), datasets.Value("string")


def message_of(error, call, *given, **more):
    with pytest.raises(error) as caught:
        call(*given, **more)
    return str(caught.value)


class Rows:
    """Rows of a data set as a hub streams them; `asked` has what was done with them."""

    def __init__(self, rows, features, asked=None):
        self.rows, self.features = rows, features
        self.asked = [] if asked is None else asked

    def _resolve_features(self):
        self.asked.append("resolved")
        return Rows(self.rows, FEATURES, self.asked)

    def select_columns(self, names):
        self.asked.append(names)
        rows = [{name: row[name] for name in names} for row in self.rows]
        return Rows(rows, self.features, self.asked)

    def cast_column(self, name, kind):
        self.asked.append((name, type(kind).__name__, kind))
        return self

    def skip(self, count):
        self.asked.append(count)
        return Rows(self.rows[count:], self.features, self.asked)

    def __iter__(self):
        for row in self.rows:
            self.asked.append("row")
            yield row


FEATURES = {
    "id": TEXT,
    "caption": TEXT,
    "picture": IMAGE,
    "text": TEXT,
    "other": IMAGE,
}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path / "home"))


def serve(monkeypatch, rows, commit="c1", **more):
    """Let every name be a data set with the splits `test` and `train`, both of these rows."""
    found = hub.HubSet("new/id", commit, **more)
    monkeypatch.setattr(hub, "find_set", lambda _part: found)
    monkeypatch.setattr(hub, "load_splits", lambda *_: {"train": rows, "test": rows})


def image(data):
    return {"bytes": data, "path": None}


# ---- columns of images and texts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("features", "column", "found"),
    [
        (FEATURES, None, ("picture", "text", False)),
        (FEATURES, "id", ("picture", "id", False)),
        ({"caption": TEXT, "sentence": TEXT, "i": IMAGE}, None, ("i", "caption", False)),
        ({"conversations": TEXT, "messages": TEXT, "text": TEXT, "i": IMAGE}, None, ("i", "messages", True)),
        ({"conversations": TEXT, "text": TEXT, "i": IMAGE}, None, ("i", "conversations", True)),
        ({"messages": TEXT, "text": TEXT, "i": IMAGE}, "text", ("i", "text", False)),
        ({"messages": TEXT, "text": TEXT, "i": IMAGE}, "messages", ("i", "messages", True)),
        ({"text": TEXT, "i": datasets.Sequence(IMAGE)}, None, ("i", "text", False)),
        ({"text": TEXT, "i": [IMAGE]}, None, ("i", "text", False)),
        ({"text": TEXT, "i": datasets.Sequence(TEXT)}, None, None),
        ({"text": TEXT}, None, None),
        ({"i": IMAGE, "words": TEXT}, None, None),
    ],
)  # fmt: skip
def test_the_columns_of_images_and_of_captions_or_chats(features, column, found):
    columns = image_text_sets._find_columns(features, column, "n")
    assert columns == (found and _Columns(*found))


def test_a_column_of_captions_that_is_none():
    find = image_text_sets._find_columns
    message = message_of(CorpusError, find, FEATURES, "captoin", "n")
    assert message == (
        "expected a column 'captoin' for captions in n; got the columns id, caption, picture, text, other. "
        "Cure: did you mean caption?"
    )
    message = message_of(CorpusError, find, FEATURES, "picture", "n")
    assert message == (
        "expected a column of captions in n; got picture, which holds images. Cure: known names: caption, id, text"
    )
    message = message_of(CorpusError, find, {"i": IMAGE, "j": IMAGE}, "i", "n")
    assert message == (
        "expected a column of captions in n; got i, which holds images. Cure: name a data set with captions"
    )


@pytest.mark.parametrize(
    ("kind", "cast"),
    [
        (IMAGE, "Image"),
        ([IMAGE], ("List", "Sequence", "LargeList")),
        (datasets.Sequence(IMAGE), ("List", "Sequence", "LargeList")),
    ],
)
def test_images_stay_encoded_and_other_columns_are_left_out(kind, cast):
    rows = Rows([{"i": 1, "t": 2, "more": 3}], {"i": kind, "t": TEXT, "more": TEXT})
    left = image_text_sets._leave_encoded(rows, _Columns("i", "t", is_chat=False))
    assert left.rows == [{"i": 1, "t": 2}]
    name, type_name, made = rows.asked[-1]
    assert name == "i" and type_name in cast
    assert getattr(made, "feature", made).decode is False


# ---- rows of the cache -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "bodies"),
    [
        (None, []),
        (image(b"abc"), [b"abc"]),
        ([], []),
        ([image(b"a"), image(b""), image(b"bcd")], [b"a", b"", b"bcd"]),
    ],
)
@pytest.mark.parametrize("is_cached", [True, False])
def test_a_row_comes_out_of_the_cache_as_it_went_in(tmp_path, value, bodies, is_cached):
    """From memory, and from the middle of a file."""
    columns = _Columns("i", "message", is_chat=False)
    packed = image_text_sets._pack("row 7", {"i": value, "message": ["x", 1], "n": 2}, columns)  # fmt: skip
    if is_cached:
        (tmp_path / "items").write_bytes(b"before" + packed.place + b"behind")
        packed = packed._replace(
            place=tmp_path / "items", offset=6, size=len(b"".join(bodies))
        )
    row = image_text_sets._unpack(packed)
    assert (row.place, row.columns, row.fault) == ("row 7", {"message": ["x", 1]}, "")
    assert [item.read() for item in row.images] == bodies
    numbered = [f"row 7, image {k}" for k in range(1, len(bodies) + 1)]
    names = ["row 7"] if len(bodies) == 1 else numbered
    assert [item.name for item in row.images] == names
    assert [item.unit for item in row.images] == [None] * len(bodies)


def test_a_row_whose_image_is_gone_keeps_its_text_and_says_why():
    columns = _Columns("i", "t", is_chat=False)
    lost = {"bytes": None, "path": "/gone/a.png"}
    packed = image_text_sets._pack("row 2", {"i": [image(b"a"), lost], "t": "x"}, columns)  # fmt: skip
    row = image_text_sets._unpack(packed)
    assert row == SetRow("row 2", {"t": "x"}, [], "no file /gone/a.png")


# ---- a data set of the hub -------------------------------------------------------------------------------------------

ROWS = [
    {"id": str(k), "caption": f"c{k}", "picture": image(bytes([k]) * k), "text": f"t{k}", "other": None}
    for k in range(1, 5)
]  # fmt: skip


def open_hub(rows, monkeypatch, column=None, commit="c1", fault="", **part):
    serve(monkeypatch, rows, commit, fault=fault)
    wanted = HubPart(**{"name": "a/b", "modality": "image", "id": "a/b"} | part)
    options, asked = CorpusOptions(column=column), []
    monkeypatch.setattr(
        image_text_sets, "resolve_corpus", lambda *given: asked.append(given) or wanted
    )
    found = image_text_sets.open_set("a/b", None, options)
    assert asked == [("a/b", "image", options)]
    return found


def test_rows_of_the_hub_are_streamed_once(monkeypatch):
    rows = Rows(ROWS, FEATURES)
    part = {"config": "conf", "revision": "v1"}
    found = open_hub(rows, monkeypatch, **part)
    assert found.is_chat is False
    assert found.source == {
        "id": "new/id", "revision": "v1", "config": "conf", "split": "test", "commit": "c1",
        "columns": ["picture", "text"],
    }  # fmt: skip
    first = list(found.rows)
    assert [row.place for row in first] == [f"row {k}" for k in range(1, 5)]
    assert [row.columns for row in first] == [{"text": f"t{k}"} for k in range(1, 5)]
    assert [row.images[0].read() for row in first] == [bytes([k]) * k for k in range(1, 5)]  # fmt: skip
    rows.asked.clear()
    again = open_hub(rows, monkeypatch, **part)
    assert again.source == found.source and rows.asked == []
    assert [row.columns for row in again.rows] == [row.columns for row in first]
    assert rows.asked == []


@pytest.mark.parametrize(
    "changed",
    [{"config": "x"}, {"split": "train"}, {"column": "caption"}, {"commit": "c2"}],
)
def test_another_part_has_a_cache_of_its_own(monkeypatch, changed):
    rows = Rows(ROWS, FEATURES)
    list(open_hub(rows, monkeypatch).rows)
    rows.asked.clear()
    found = open_hub(rows, monkeypatch, **changed)
    texts = [row.columns for row in found.rows]
    assert "row" in rows.asked and len(texts) == 4
    if "column" in changed:
        assert texts[2] == {"caption": "c3"}


def test_images_alone_and_with_texts_are_cached_apart(monkeypatch):
    rows = Rows(ROWS, FEATURES)
    list(open_hub(rows, monkeypatch).rows)
    part = HubPart("a/b", "image", "a/b")
    alone = items.find_hub_items(part, None)
    assert [item.name for item in alone.items] == [f"new/id, row {k}" for k in range(1, 5)]  # fmt: skip


def test_a_stream_that_broke_off_goes_on_behind_what_is_kept(monkeypatch):
    class Breaking(Rows):
        def __iter__(self):
            yield from self.rows[:2]
            raise OSError("gone")

        def select_columns(self, names):
            return Breaking(super().select_columns(names).rows, self.features)

    with pytest.raises(CorpusError):
        list(open_hub(Breaking(ROWS, FEATURES), monkeypatch).rows)
    rows = Rows(ROWS, FEATURES)
    whole = list(open_hub(rows, monkeypatch).rows)
    assert [row.place for row in whole] == [f"row {k}" for k in range(1, 5)]
    assert 2 in rows.asked and rows.asked.count("row") == 2


def test_a_set_without_a_commit_is_read_without_a_cache(monkeypatch, tmp_path):
    """The hub did not answer: the manifest says so. Columns of a set without a description are those of a row."""
    rows = Rows(ROWS, None)
    found = open_hub(rows, monkeypatch, commit=None, fault="down")
    assert found.source["hub"] == "down" and found.source["commit"] is None
    assert [row.images[0].read() for row in found.rows][2] == bytes([3]) * 3
    assert "resolved" in rows.asked and not (tmp_path / "home").exists()


def test_what_is_no_set_of_texts_with_images(monkeypatch):
    assert open_hub(Rows([], {"text": TEXT}), monkeypatch) is None
    assert open_hub(Rows([], {"i": IMAGE}), monkeypatch) is None

    def refuse(_part):
        raise CorpusError("a corpus", "none")

    open_hub(Rows([], FEATURES), monkeypatch)
    monkeypatch.setattr(hub, "find_set", refuse)
    assert image_text_sets.open_set("a/b", None, CorpusOptions()) is None
    monkeypatch.setattr(image_text_sets, "resolve_corpus", lambda *_: "a path")
    assert image_text_sets.open_set("a/b", None, CorpusOptions()) is None


def test_chats_of_the_hub_are_chats_from_the_cache_too(monkeypatch):
    features = {"messages": TEXT, "i": IMAGE}
    rows = Rows([{"messages": [{"role": "user"}], "i": image(b"x")}], features)
    for _ in range(2):
        found = open_hub(rows, monkeypatch)
        assert found.is_chat is True and "chats" not in found.source
        (row,) = found.rows
        assert row.columns == {"messages": [{"role": "user"}]}


# ---- a saved data set ------------------------------------------------------------------------------------------------


def test_images_of_a_saved_set_are_read_from_their_row_and_place():
    saved = [{"a": None, "b": [image(b"0"), image(b"1")]}, {"a": image(b"2"), "b": []}]
    assert SavedImage("n", saved, 0, "b", 1).read() == b"1"
    assert SavedImage("n", saved, 0, "b", 0).read() == b"0"
    assert SavedImage("n", saved, 1, "a", 0).read() == b"2"
    names = image_text_sets._name_images
    assert names("row 7", 0) == [] and names("row 7", 1) == ["row 7"]
    assert names("row 7", 2) == ["row 7, image 1", "row 7, image 2"]


def test_a_saved_set_is_opened_with_its_split_and_column(tmp_path):
    """One image a row, none or several; parts of the hub are refused, and a split where there is one set alone."""
    rows = {
        "i": [[image(b"0"), image(b"1")], [], [image(b"2")]],
        "text": ["a", "b", "c"],
        "note": ["d", "e", "f"],
    }
    features = datasets.Features({"i": datasets.Sequence(IMAGE), "text": TEXT, "note": TEXT})  # fmt: skip
    made = datasets.Dataset.from_dict(rows, features=features)
    alone, both = tmp_path / "alone", tmp_path / "both"
    made.save_to_disk(str(alone))
    datasets.DatasetDict({"train": made, "test": made.select([2])}).save_to_disk(str(both))  # fmt: skip
    assert [image_text_sets.is_saved_set(p) for p in (alone, both, tmp_path)] == [True, True, False]  # fmt: skip

    def opened(path, **options):
        return image_text_sets.open_set("n", path, CorpusOptions(**options))

    found = opened(alone)
    every = list(found.rows)
    assert found.source == {"path": str(alone.resolve())} and not found.is_chat
    assert [row.columns for row in every] == [{"text": t} for t in "abc"]
    assert [[i.name for i in row.images] for row in every] == [
        ["row 1, image 1", "row 1, image 2"],
        [],
        ["row 3"],
    ]
    assert [[i.read() for i in row.images] for row in every] == [[b"0", b"1"], [], [b"2"]]  # fmt: skip
    assert next(opened(alone, column="note").rows).columns == {"note": "d"}
    test = opened(both)
    assert test.source == {"path": str(both.resolve()), "split": "test"}
    assert [row.columns for row in test.rows] == [{"text": "c"}]
    train = opened(both, split="train")
    assert train.source["split"] == "train" and len(list(train.rows)) == 3
    for path, given in ((alone, "split"), (alone, "config"), (both, "revision")):
        message = message_of(UsageError, opened, path, **{given: "test"})
        assert message == (
            f"expected no --{given} with this kind of corpus; got --{given} with n. Cure: leave --{given} out"
        )


def test_a_row_of_a_saved_set_may_lack_its_only_image(tmp_path):
    rows = {"i": [image(b"0"), None], "text": ["a", "b"]}
    features = datasets.Features({"i": IMAGE, "text": TEXT})
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(str(tmp_path / "s"))  # fmt: skip
    found = image_text_sets.open_set("n", tmp_path / "s", CorpusOptions())
    first, second = found.rows
    assert [item.name for item in first.images] == ["row 1"] and second.images == []
    assert first.images[0].read() == b"0" and second.columns == {"text": "b"}


# ---- clips and images of the hub without texts -----------------------------------------------------------------------


AUDIO = datasets.Audio()
SPOKEN = {"text": TEXT, "clip": AUDIO, "speaker_id": TEXT, "picture": IMAGE, "more": AUDIO, "n": TEXT}  # fmt: skip


def find_items(rows, monkeypatch, column=None, commit="c1", fault="", **part):
    serve(monkeypatch, rows, commit, fault=fault)
    wanted = HubPart(**{"name": "a/b", "modality": "speech", "id": "a/b"} | part)
    return items.find_hub_items(wanted, column)


def spoken(k):
    return {
        "text": f" words {k} ", "clip": image(bytes([k]) * k), "speaker_id": k % 2,
        "picture": image(b"p" * k), "more": image(b"m"), "n": k,
    }  # fmt: skip


def test_clips_of_the_hub_have_their_speaker_and_transcript(monkeypatch):
    rows = Rows([spoken(k) for k in range(1, 5)], SPOKEN)
    expected = [
        (f"new/id, row {k}", str(k % 2), bytes([k]) * k, f"words {k}")
        for k in range(1, 5)
    ]
    for turn in range(2):
        rows.asked.clear()
        found = find_items(rows, monkeypatch, revision="v1", config="conf")
        assert found.source == {
            "kind": "hub", "id": "new/id", "revision": "v1", "config": "conf",
            "split": "test", "commit": "c1", "column": "clip",
        }  # fmt: skip
        read = [(i.name, i.unit, i.read(), i.text) for i in found.items]
        assert read == expected and bool(rows.asked) is (turn == 0)


def test_only_the_columns_that_are_needed_are_asked_for(monkeypatch):
    """Transcripts only of clips; of several columns the first, or the one that is named."""
    rows = Rows([spoken(1)], SPOKEN)
    list(find_items(rows, monkeypatch).items)
    assert rows.asked[0] == ["clip", "speaker_id", "text"]
    assert rows.asked[1][:2] == ("clip", "Audio") and rows.asked[1][2].decode is False
    rows.asked.clear()
    (item,) = find_items(rows, monkeypatch, modality="image").items
    assert rows.asked[0] == ["picture", "speaker_id"] and item.text == ""
    rows.asked.clear()
    found = find_items(rows, monkeypatch, column="more")
    assert found.source["column"] == "more"
    assert [item.read() for item in found.items] == [b"m"]


@pytest.mark.parametrize(
    "changed",
    [
        {"config": "x"},
        {"split": "train"},
        {"column": "clip"},
        {"modality": "image"},
        {"commit": "c2"},
    ],
)
def test_another_part_of_clips_has_a_cache_of_its_own(monkeypatch, changed):
    rows = Rows([spoken(k) for k in range(1, 3)], SPOKEN)
    list(find_items(rows, monkeypatch).items)
    rows.asked.clear()
    found = list(find_items(rows, monkeypatch, **changed).items)
    assert len(found) == 2 and "row" in rows.asked


def test_clips_without_a_commit_are_read_without_a_cache(monkeypatch, tmp_path):
    rows = Rows([spoken(2)], SPOKEN)
    found = find_items(rows, monkeypatch, commit=None, fault="down")
    assert isinstance(found.items, list) and found.items[0].read() == b"\2\2"
    assert found.source["hub"] == "down" and found.source["kind"] == "hub"
    assert not (tmp_path / "home").exists()


def test_the_cache_of_clips_is_of_the_newest_commit_if_the_hub_is_silent(monkeypatch):
    """Of the same part: another split was cached later."""
    import os

    rows = Rows([spoken(k) for k in range(1, 3)], SPOKEN)
    for number, part in enumerate(
        ({"commit": "c1"}, {"commit": "c2"}, {"commit": "c3", "split": "train"})
    ):
        list(find_items(rows, monkeypatch, **part).items)
        wanted = {"id": "new/id", "modality": "speech", "config": None}
        wanted |= {"split": part.get("split"), "column": None, "texts": "kept"}
        folder = items.cache_folder(wanted, part["commit"])
        assert (folder / "about.json").exists()
        os.utime(folder, (1000 + number, 1000 + number))
    found = find_items(rows, monkeypatch, commit=None, fault="down")
    assert (found.source["commit"], found.source["split"]) == ("c2", "test")


def test_a_column_of_clips_that_is_none():
    choose = items._choose_encoded_column
    assert choose(None, ["a", "b"], SPOKEN, "speech", "n") == "a"
    assert choose("b", ["a", "b"], SPOKEN, "speech", "n") == "b"
    message = message_of(CorpusError, choose, "clop", ["clip", "more"], SPOKEN, "speech", "n")  # fmt: skip
    assert message == (
        "expected a column of speech in n; got 'clop'. Cure: did you mean clip?"
    )
    message = message_of(CorpusError, choose, "text", ["clip", "more"], SPOKEN, "speech", "n")  # fmt: skip
    assert message == (
        "expected a column of speech in n; got 'text'. Cure: known names: clip, more"
    )
    message = message_of(CorpusError, choose, None, [], {"a": 1, "b": 2}, "image", "n")
    assert message == (
        "expected a column of image in n; got the columns a, b. Cure: name a data set of image"
    )
    message = message_of(CorpusError, choose, None, [], {}, "image", "n")
    assert "got the columns unknown." in message


def test_a_cache_without_transcripts_and_one_cut_off_at_a_byte(tmp_path):
    """Caches of older versions have three entries a row; the last byte of an item may be the last of the file."""
    kept = items.StreamCache(tmp_path)
    kept.begin({})
    lines = []
    for name, unit, data, *text in (("a", "u", b"12"), ("b", None, b"345", "message")):
        lines.append(json.dumps([name, unit, len(data), *text]).encode() + b"\n" + data)
    asked = []

    def stream(after):
        asked.append(after)
        yield Item("c", None, b"6")

    kept.body.write_bytes(b"".join(lines))
    found = [(i.name, i.unit, i.read(), i.text) for i in kept.items(stream)]
    assert found == [("a", "u", b"12", ""), ("b", None, b"345", "message"), ("c", None, b"6", "")]  # fmt: skip
    assert asked == [2]
    assert kept.body.read_bytes().endswith(b'["c", null, 1]\n6null\n')
    kept.body.write_bytes(b"".join(lines)[:-1] + b"")
    found = [(i.name, i.read()) for i in kept.items(stream)]
    assert found == [("a", b"12"), ("c", b"6")] and asked == [2, 1]
    assert b"message" not in kept.body.read_bytes(), "what was half written is gone"


def test_what_another_process_kept_in_the_meantime_is_not_streamed(tmp_path):
    """It was quicker: while this one yields what it found, two more items were written."""
    kept = items.StreamCache(tmp_path)
    kept.begin({})
    kept.body.write_bytes(b'["a", null, 1]\n1')
    asked = []

    def stream(after):
        asked.append(after)
        yield Item("d", None, b"4")

    found = kept.items(stream)
    first = next(found)
    with kept.body.open("ab") as file:
        file.write(b'["b", null, 1]\n2["c", null, 1]\n3')
    read = [(item.name, item.read()) for item in (first, *found)]
    assert read == [("a", b"1"), ("b", b"2"), ("c", b"3"), ("d", b"4")]
    assert asked == [3]
    assert [item.read() for item in kept.items(stream)] == [b"1", b"2", b"3", b"4"]


def test_the_source_of_a_saved_set_is_found_from_any_folder(tmp_path, monkeypatch):
    features = datasets.Features({"i": IMAGE, "text": TEXT})
    made = datasets.Dataset.from_dict({"i": [image(b"0")], "text": ["a"]}, features=features)  # fmt: skip
    made.save_to_disk(str(tmp_path / "s"))
    monkeypatch.chdir(tmp_path)
    found = image_text_sets.open_set("s", Path("s"), CorpusOptions())
    assert found.source == {"path": str(tmp_path.resolve() / "s")}


def test_a_column_of_clips_may_have_the_name_of_one_of_transcripts(monkeypatch):
    """It is asked for once, and is no transcript."""
    rows = Rows([{"text": image(b"1"), "sentence": "one"}], {"text": AUDIO, "sentence": TEXT})  # fmt: skip
    (item,) = find_items(rows, monkeypatch).items
    assert rows.asked[0] == ["text", "sentence"]
    assert (item.read(), item.text) == (b"1", "one")
