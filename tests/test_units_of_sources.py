"""Rows, clips and documents from hub, folder and cache: which split, column, unit and place, on a few rows."""

import json
from types import SimpleNamespace

import datasets
import numpy as np
import pytest
from huggingface_hub import HfApi
from huggingface_hub.errors import RevisionNotFoundError

from anisoscope.data import documents, hub, items, media
from anisoscope.data.corpora import CorpusOptions, HubPart
from anisoscope.data.items import Item, StreamCache
from anisoscope.data.table_rows import Row
from anisoscope.errors import CorpusError, UsageError

# ---- clips and pictures ----------------------------------------------------------------------------------------------


def test_speakers_and_transcripts_of_a_row():
    for row, speaker in (
        ({"speaker": 0, "client_id": "x"}, "0"),
        ({"speaker": "", "speaker_id": None, "client_id": "x"}, "x"),
        ({"speaker_id": 7}, "7"),
        ({"name": "x"}, None),
    ):
        assert items.find_speaker(row) == speaker
    for row, text in (
        ({"transcript": " ", "text": " message "}, "message"),
        ({"sentence": 3, "text": "x"}, "x"),
        ({"normalized_text": "e", "text": "d", "sentence": "c"}, "c"),
        ({"sentence": "c", "transcription": "b"}, "b"),
        ({"transcription": "b", "transcript": "a"}, "a"),
        ({"normalized_text": "e", "text": "d"}, "d"),
        ({"normalized_text": "e"}, "e"),
        ({"transcript": "a", "text": "b"}, "a"),
        ({}, ""),
    ):
        assert items.find_transcript(row) == text


def test_bytes_of_an_item_are_read_where_they_lie(tmp_path):
    (tmp_path / "x").write_bytes(b"0123456789")
    assert Item("a", None, b"raw").read() == b"raw"
    assert Item("a", None, tmp_path / "x").read() == b"0123456789"
    assert Item("a", None, tmp_path / "x", 3, 4).read() == b"3456"
    with pytest.raises(CorpusError, match=r"a readable a; got no such thing"):
        Item("a", None, b"raw", fault="no such thing").read()
    with pytest.raises(CorpusError, match=r"a readable file a; got No such file"):
        Item("a", None, tmp_path / "y").read()
    assert items.read_encoded({"bytes": b"x", "path": "gone"}, "n") == b"x"
    path = str(tmp_path / "x")
    assert items.read_encoded({"bytes": None, "path": path}, "n") == b"0123456789"
    assert items.read_encoded({"bytes": b"", "path": path}, "n") == b""
    assert items.read_encoded(None, "n") == b""
    with pytest.raises(CorpusError, match="a readable n; got no file"):
        items.read_encoded({"path": str(tmp_path / "gone")}, "n")


class Stream:
    """Yields items after a number of them, and breaks off before one."""

    def __init__(self, count, breaks=None):
        self.count, self.breaks, self.asked = count, breaks, []

    def __call__(self, after):
        self.asked.append(after)
        for k in range(after, self.count):
            if k == self.breaks:
                raise CorpusError("all", "a broken connection")
            unit = None if k % 2 else f"speaker {k}"
            yield Item(f"item {k}", unit, bytes([k]) * k, text="words" * (k == 3))


def contents(found):
    return [(item.name, item.unit, item.read(), item.text) for item in found]


def test_what_was_streamed_is_not_streamed_again(tmp_path):
    """Items of no bytes, with and without transcript; a break, a killed process, a whole cache."""
    whole = contents(Stream(6)(0))
    kept = StreamCache(tmp_path / "cache")
    assert kept.about() is None
    kept.begin({"column": "audio"})
    assert kept.about() == {"column": "audio"}
    broken = Stream(6, breaks=4)
    seen = []
    with pytest.raises(CorpusError):
        for item in kept.items(broken):
            seen.append(item)
    assert contents(seen) == whole[:4] and broken.asked == [0]
    # a process was killed while it wrote the next one
    with kept.body.open("ab") as file:
        file.write(b'["item 4", "speaker 4", 4]\n\x04\x04')
    rest = Stream(6)
    assert contents(kept.items(rest)) == whole and rest.asked == [4]
    again = Stream(6)
    assert contents(kept.items(again)) == whole and again.asked == []
    # the first two items only: what follows is not streamed
    other = StreamCache(tmp_path / "other")
    other.begin({})
    few = Stream(6)
    taken = other.items(few)
    assert contents([next(taken), next(taken)]) == whole[:2]
    taken.close()
    assert contents(other.items(Stream(6))) == whole
    for damaged in ("{", "[1]"):
        (tmp_path / "cache" / "about.json").write_text(damaged)
        assert kept.about() is None


def test_the_cache_of_a_commit_and_of_the_newest_one(tmp_path, monkeypatch):
    import os

    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path))
    part = {"id": "a/b", "split": "test"}
    first = items.cache_folder(part, "c1")
    assert first.parent == tmp_path / "anisoscope" / "a--b" and first.name[:3] == "c1-"
    assert items.cache_folder(part, None) is None
    other = items.cache_folder({"id": "a/b", "split": "train"}, "c1")
    assert other != first
    for number, folder in enumerate((items.cache_folder(part, "c2"), first, other)):
        folder.mkdir(parents=True)
        (folder / "about.json").write_text("{}")
        os.utime(folder, (1000 + number, 1000 + number))
    assert items.cache_folder(part, None) == first


def checked(found, **options):
    def check(name, data, decode):
        if data == b"bad":
            raise CorpusError("a clip", "it is damaged")
        return (name, len(data), decode)

    return media._check_items(found, CorpusOptions(**options), check)


def test_items_are_checked_and_counted_by_unit():
    """Speaker x has clips 0 and 3; clips without a speaker are units of their own; 2 is damaged."""
    rows = [("x", b"a"), (None, b"bb"), ("y", b"bad"), ("x", b"a"), (None, b"c"), ("y", b"d")]  # fmt: skip
    found = [Item(f"c{k}", unit, data) for k, (unit, data) in enumerate(rows)]
    every = checked(found)
    assert [item.name for item in every.items] == ["c0", "c1", "c3", "c4", "c5"]
    assert every.unit == [0, 1, 0, 2, 3] and every.bad == ["c2 (it is damaged)"]
    assert every.infos[1] == ("c1", 2, False) and len(every.hashes) == 5
    assert every.hashes[0] == every.hashes[2] != every.hashes[1]
    two = checked(found, limit=2, skip_bad=True)
    assert [item.name for item in two.items] == ["c0", "c1", "c3"]
    assert two.infos[0][2] is True
    assert [item.name for item in checked(found, limit=1).items] == ["c0"]


def test_a_corpus_of_items_says_what_was_left_out(monkeypatch):
    rows = [Item("a", None, b"1"), Item("b", "x", b"bad"), Item("c", None, b"2")]
    found = items.FoundItems(rows, {"kind": "made"})
    monkeypatch.setattr(media, "_find_items", lambda *_: found)

    def check(_name, data, _decode):
        if data == b"bad":
            raise CorpusError("a clip", "it is damaged")
        return data

    with pytest.raises(
        CorpusError, match=r"readable files in n; got 1 faulty: b \(it is"
    ):
        media.open_media("n", "image", CorpusOptions(), check)
    corpus = media.open_media(
        "n", "image", CorpusOptions(skip_bad=True, limit=9), check
    )
    assert corpus.source == {
        "kind": "made", "unit": "file", "items": 2, "limit": 9, "skipped": 1,
        "skipped_items": ["b (it is damaged)"],
    }  # fmt: skip
    assert corpus.skip_bad and corpus.infos == [b"1", b"2"] and corpus.name == "n"
    assert corpus.unit_word("image") == "image"
    rows[0] = rows[0]._replace(unit="x")
    other = media.open_media("n", "image", CorpusOptions(skip_bad=True), check)
    assert other.source["unit"] == other.unit_word("image") == "speaker"
    assert other.fingerprint == corpus.fingerprint, "names are no part of it"
    rows[2] = rows[2]._replace(unit="x")
    third = media.open_media("n", "image", CorpusOptions(skip_bad=True), check)
    assert third.fingerprint != corpus.fingerprint and third.unit.tolist() == [0, 0]
    rows[:] = [rows[1]]
    with pytest.raises(CorpusError, match="one readable file in n; got 1 that cannot"):
        media.open_media("n", "image", CorpusOptions(skip_bad=True), check)


# ---- the hub ---------------------------------------------------------------------------------------------------------


def part(**given):
    wanted = {"name": "a/b", "id": "a/b", "modality": "text", "config": "c"}
    return HubPart(**(wanted | {"split": None, "revision": "v1"} | given))


def test_a_set_is_looked_up_with_its_revision_and_its_new_name(monkeypatch):
    asked, kept = [], []

    def info(_self, name, **how):
        asked.append((name, how["revision"], how["token"]))
        return SimpleNamespace(id="new/name", sha="c0ffee")

    monkeypatch.setattr(HfApi, "dataset_info", info)
    monkeypatch.setattr(
        hub, "get_answer", lambda key, ask: (asked.append(key), ask())[1]
    )
    monkeypatch.setattr(hub, "with_token_fallback", lambda ask: (ask(None), None))
    monkeypatch.setattr(hub, "remember", lambda *given: kept.append(given))
    found = hub.find_set(part())
    assert (found.id, found.commit, found.fault, found.notes) == ("new/name", "c0ffee", "", {})  # fmt: skip
    assert asked == [("data set", "a/b", "v1"), ("a/b", "v1", None)]
    assert kept == [("data set", "a/b", "v1", "c0ffee")]
    monkeypatch.setattr(hub, "with_token_fallback", lambda ask: (ask(False), False))
    refused = hub.find_set(part())
    assert asked[-1] == ("a/b", "v1", False) and refused.token is False
    assert (
        refused.notes == {"hub": refused.fault} and "refuses the token" in refused.fault
    )


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (
            {"absent": True},
            r"a corpus; got 'a/b', which is neither here nor on the hub",
        ),
        ({"denied": True}, r"access to a/b; got the reason\. Cure: the cure"),
        ({}, None),
    ],
)
def test_what_the_hub_did_decides_what_is_named(monkeypatch, fault, message):
    def fail(*_, **__):
        raise RuntimeError("whatever")

    monkeypatch.setattr(hub, "get_answer", fail)
    monkeypatch.setattr(
        hub, "classify_fault", lambda _: hub.Fault("the reason", "the cure", **fault)
    )
    if message:
        with pytest.raises(CorpusError, match=message):
            hub.find_set(part())
        return
    found = hub.find_set(part())
    assert (found.id, found.commit) == ("a/b", None)
    assert found.fault == "the reason: read from the local cache"
    monkeypatch.setattr(hub, "recall_commit", lambda *given: given)
    assert hub.find_commit_of_set(part()) == ("data set", "a/b", "v1")


def test_a_revision_that_is_not_there(monkeypatch):
    def fail(*_, **__):
        response = SimpleNamespace(headers={}, request=None, status_code=404)
        raise RevisionNotFoundError("404", response=response)

    monkeypatch.setattr(hub, "get_answer", fail)
    with pytest.raises(CorpusError, match=r"a revision of the data set a/b; got v1\."):
        hub.find_set(part())


def test_splits_are_loaded_at_the_commit_or_from_the_cache(monkeypatch):
    asked = []

    def load(*given, **how):
        asked.append((given, how, datasets.config.HF_HUB_OFFLINE))
        return {"train": "rows", "validation": "held out"}

    monkeypatch.setattr(datasets, "load_dataset", load)
    before = datasets.config.HF_HUB_OFFLINE
    streamed = {"revision": "c1", "streaming": True}
    for found, how, is_offline in (
        (hub.HubSet("a/b", "c1"), streamed, before),
        (hub.HubSet("a/b", "c1", "", False), streamed | {"token": False}, before),
        (hub.HubSet("a/b", None, "down: x"), {}, True),
    ):
        assert hub.load_splits(found, part())["train"] == "rows"
        assert asked[-1] == (("a/b", "c"), how, is_offline)
        assert datasets.config.HF_HUB_OFFLINE is before
    rows, about = hub.open_split(hub.HubSet("a/b", "c1"), part(split="train"))
    assert rows == "rows"
    assert about == {"config": "c", "split": "train", "commit": "c1"}

    def offline(*_, **__):
        raise ConnectionError

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(
        CorpusError, match=r"a cached copy of a/b; got down and no such"
    ):
        hub.load_splits(hub.HubSet("a/b", None, "down: x"), part())


def test_the_split_that_is_read():
    choose = hub.choose_split
    for splits, asked, found in (
        (["train", "validation", "test"], None, hub.SPLITS[0]),
        (
            ["train", "test"],
            None,
            next(s for s in hub.SPLITS if s in ("train", "test")),
        ),
        (["x", "y"], None, "x"),
        (["train", "x"], "x", "x"),
    ):
        assert choose(splits, asked, "n") == found
    with pytest.raises(CorpusError, match=r"a split of n; got tests\..*test"):
        choose(["train", "test"], "tests", "n")


def test_rows_are_numbered_through_the_whole_set():
    class Rows(list):
        def skip(self, count):
            return Rows(self[count:])

    rows = Rows({"k": k} for k in range(4))
    assert [place for place, _ in hub.number_rows(rows, "n")] == [f"row {k}" for k in (1, 2, 3, 4)]  # fmt: skip
    assert list(hub.number_rows(rows, "n", 2)) == [("row 3", {"k": 2}), ("row 4", {"k": 3})]  # fmt: skip

    def breaking():
        yield {"k": 0}
        raise OSError("gone")

    seen = []
    with pytest.raises(
        CorpusError, match=r"all rows of n; got a broken connection \(OSError\)"
    ):
        seen.extend(hub.number_rows(breaking(), "n"))


# ---- documents -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([{"role": "user", "content": "a"}, {"role": "b", "content": None}, {"content": "c"}], "a\nc"),
        ([{"content": [{"type": "text", "text": "a"}, {"type": "image"}, {"text": "b"}, "x"]}], "a\nb"),
        ([{"value": "a"}, {"value": "b"}], "a\nb"),
        ([{"content": 3}], None), ([{"content": "a"}, "b"], None), ([], None), ("a", None), ([{"x": "y"}], ""),
    ],
)  # fmt: skip
def test_texts_of_chats(value, text):
    assert documents.join_chat(value) == text


def test_texts_of_rows_and_rows_without_one():
    rows = [
        Row("line 1", {"id": "7", "text": "one"}, ""),
        Row("line 2", {"id": "8", "text": None}, ""),
        Row("line 3", {}, ""),
        Row("line 4", {"text": ["two", "words"]}, ""),
        Row("line 5", {"id": "9"}, ""),
        Row("line 6", {"text": 3}, ""),
        Row("line 7", {}, "a damaged row"),
        Row("line 8", {"text": [{"content": "chat"}]}, ""),
    ]

    def read(rows, bad, **options):
        return list(
            documents._iter_texts(rows, CorpusOptions(**options), "t.jsonl", bad)
        )

    bad = []
    found = read(rows, bad, skip_bad=True)
    assert found == [("text", t) for t in ("one", "", "two words", "chat")]
    assert bad == ["line 5", "line 6", "line 7"]
    for row, message in (
        (4, r"text in column 'text' of t.jsonl; got line 5 without that column"),
        (5, r"got line 6: int\."),
        (6, r"in t.jsonl; got line 7: a damaged row\. Cure: repair the row"),
    ):
        with pytest.raises(CorpusError, match=message):
            read([rows[0], rows[row]], [])
    assert read(rows[:1], [], column="id") == [("id", "7")]


def test_rows_become_documents_of_their_files():
    """Empty rows are counted, and belong to no file; blocks of tokens go on over the ends of files."""
    current = documents._CurrentFile()

    def rows():
        for number, text in ((0, "a"), (0, " "), (2, "b"), (2, "c"), (3, "")):
            current.file = number
            yield Row("line", {"text": text}, "")

    read = documents.read_rows(rows(), CorpusOptions(), "t", current)
    assert (list(read.documents), read.owner) == (["a", "b", "c"], [0, 2, 2])
    assert (read.how, read.unit, read.empty, read.column) == ("rows", "row", 2, "text")
    few = documents.read_rows(rows(), CorpusOptions(limit=2), "t", current)
    assert (list(few.documents), few.owner[:2]) == (["a", "b"], [0, 2])
    blocks = documents.read_rows(rows(), CorpusOptions(documents="tokens:20"), "t", current)  # fmt: skip
    assert blocks.owner is None and blocks.block == 20
    assert "".join(blocks.documents) == "a\nb\nc\n"
    nothing = documents.read_rows(iter([Row("line", {}, "bad")]), CorpusOptions(skip_bad=True), "t")  # fmt: skip
    assert (list(nothing.documents), nothing.skipped) == ([], 1)
    with pytest.raises(UsageError, match=r"tokens:N with the table t; got line\."):
        documents.read_rows(rows(), CorpusOptions(documents="line"), "t")


def test_articles_in_rows_are_articles_unless_each_row_is_a_document():
    lines = [
        "",
        " = One = \n",
        "",
        "text of one\n",
        "",
        " = Two = \n",
        "",
        "text of two\n",
    ]

    def read(**how):
        rows = (Row("line", {"text": line}, "") for line in lines)
        return documents.read_rows(rows, CorpusOptions(), "t", documents._CurrentFile(), **how)  # fmt: skip

    articles = read()
    assert articles.how == "titles" and len(articles.documents) == 2
    assert articles.owner is None and "text of two" in articles.documents[1]
    each = read(are_documents=True)
    assert each.how == "rows" and len(each.documents) == 4 and each.owner == [0] * 4


def test_files_of_a_folder_by_their_rule(tmp_path):
    for name, text in (("a.txt", "one\n\ntwo\n"), ("b.txt", " \n"), ("c.txt", "three\nfour\n")):  # fmt: skip
        (tmp_path / name).write_text(text)
    files = list(enumerate(sorted(tmp_path.iterdir())))

    def read(by_file=True, **options):
        return documents._read_files(files, CorpusOptions(**options), by_file=by_file)

    whole = read()
    assert list(whole.documents) == ["one\n\ntwo\n", "three\nfour\n"]
    assert (whole.owner, whole.empty, whole.skipped) == ([0, 2], 1, 0)
    lines = read(documents="line")
    assert [text.strip() for text in lines.documents] == ["one", "two", "three", "four"]
    assert lines.owner == [0, 0, 2, 2] and lines.unit == "line"
    three = read(documents="line", limit=3)
    assert len(three.documents) == 3 and three.owner[:3] == [0, 0, 2]
    blocks = read(documents="tokens:20")
    assert blocks.owner is None and blocks.block == 20
    assert read(by_file=False).owner is None
    (tmp_path / "c.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(CorpusError, match=r"c\.txt"):
        read()
    left = read(skip_bad=True)
    assert (list(left.documents), left.skipped) == (["one\n\ntwo\n"], 1)


def test_generators_of_texts_become_lists_and_others_stay():
    as_list = documents.list_if_texts
    assert as_list(iter(["a", "b"])) == ["a", "b"]
    rows = [{"n": 1, "text": "a"}, {"n": 2, "text": "b"}]
    assert as_list(iter(rows)) == rows and as_list(iter([])) == []
    batches = [{"x": np.ones(2)}, {"x": np.zeros(2)}]
    left = as_list(iter(batches))
    assert not isinstance(left, list) and [b["x"].sum() for b in left] == [2, 0]
    assert as_list(rows) is rows


def test_a_table_of_texts_is_known_by_its_first_sound_row(tmp_path):
    place = tmp_path / "x.jsonl"
    for lines, has in (
        ([{"text": "a"}], True),
        ([{"title": "a"}], False),
        ([{"sentence": "a", "n": 1}], "sentence" in documents.TEXT_COLUMNS),
    ):
        place.write_text("\n".join(map(json.dumps, lines)))
        assert documents.has_text(place) is has
