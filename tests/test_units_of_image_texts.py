"""Texts with images: which caption, mark, picture and message is which, each on a few rows."""

import base64
import json
from io import BytesIO
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from anisoscope.data import image_texts
from anisoscope.data.image_texts import (
    Entry,
    ImageTextPlan,
    ImageTexts,
    open_image_texts,
)
from anisoscope.data.items import Item
from anisoscope.data.table_rows import Row
from anisoscope.errors import CorpusError, UsageError


def png(shade):
    file = BytesIO()
    Image.new("RGB", (4, 4), (shade, 0, 0)).save(file, "PNG")
    return file.getvalue()


def shades(corpus):
    """The red of the first pixel of each image of each entry."""
    found = []
    for entry in corpus.entries:
        pictures = image_texts._decode_pictures(entry)
        found.append([int(np.asarray(picture)[0, 0, 0]) for picture in pictures])
    return found


def texts_of(entry):
    return [
        part.get("text", "+")
        for message in entry.messages
        for part in message["content"]
    ]


# ---- captions --------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    for number, name in enumerate(("a.png", "b.PNG", "in/c.jpg")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(png(10 * number + 10))
    return tmp_path


def test_captions_are_those_of_the_files_next_to_them(folder):
    for name, text in (("a", " A cat.\n"), ("b", "A dog."), ("in/c", "A cow.")):
        (folder / f"{name}.txt").write_text(text)
    corpus = open_image_texts(str(folder))
    found = [texts_of(entry) for entry in corpus.entries]
    assert found == [["+", "A cat."], ["+", "A dog."], ["+", "A cow."]]
    assert [entry.unit for entry in corpus.entries] == ["a.png", "b.PNG", "in/c.jpg"]
    assert shades(corpus) == [[10], [20], [30]] and corpus.unit_word == "image"
    assert [entry.messages[0]["role"] for entry in corpus.entries] == ["user"] * 3
    source = corpus.source
    assert (source["kind"], source["items"], source["images"]) == ("captions", 3, 3)
    assert source["path"] == str(folder.resolve()) and source["skipped"] == 0
    (folder / "b.txt").write_text("  ")
    with pytest.raises(
        CorpusError, match=r"1 faulty: b.PNG \(no caption\).*metadata.csv"
    ):
        open_image_texts(str(folder))
    left = open_image_texts(str(folder), skip_bad=True)
    assert len(left.entries) == 2 and left.source["skipped"] == 1
    assert left.source["skipped_items"] == ["b.PNG (no caption)"]
    assert left.fingerprint != corpus.fingerprint


def test_captions_of_a_table_are_those_of_their_column(folder):
    rows = [
        {"file_name": "b.PNG", "caption": "second", "title": "B"},
        {"file_name": "a.png", "caption": " first ", "title": "A"},
        {"file_name": "a.png", "caption": "again", "title": "A2"},
        {"file_name": "in/c.jpg", "caption": "third", "title": "C"},
    ]
    (folder / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    corpus = open_image_texts(str(folder))
    assert [texts_of(e)[1] for e in corpus.entries] == [
        "second",
        "first",
        "again",
        "third",
    ]
    assert shades(corpus) == [[20], [10], [10], [30]]
    assert image_texts._number_units(corpus.entries).tolist() == [0, 1, 1, 2]
    titles = open_image_texts(str(folder), column="title")
    assert [texts_of(e)[1] for e in titles.entries] == ["B", "A", "A2", "C"]
    limited = open_image_texts(str(folder), limit=2)
    assert [texts_of(e)[1] for e in limited.entries] == ["second", "first", "again"]
    assert limited.source["limit"] == 2
    with pytest.raises(CorpusError, match="captions"):
        open_image_texts(str(folder), column="none")
    rows[1]["file_name"], rows[2]["caption"] = "gone.png", 7
    (folder / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(
        CorpusError, match=r"2 faulty: gone.png \(.*a.png \(no caption\)"
    ):
        open_image_texts(str(folder))


def test_a_folder_of_more_images_than_texts_is_one_of_images(folder):
    (folder / "a.txt").write_text("caption")
    for number in range(3):
        assert image_texts.holds_image_texts(str(folder)) is True
        (folder / f"text{number}.md").write_text("prose")
        (folder / f".hidden{number}.md").write_text("prose")
    assert image_texts.holds_image_texts(str(folder)) is False
    assert image_texts.holds_image_texts(str(folder / "none")) is False


@pytest.mark.parametrize(
    ("columns", "images", "caption", "fault"),
    [
        ({"c": " x "}, ["i"], "x", ""),
        ({"c": ["x", "y"]}, ["i"], "x", ""),
        ({"c": []}, ["i"], "", "no caption"),
        ({"c": 3}, ["i"], "", "no caption"),
        ({"c": ""}, [], "", "no image"),
        ({"c": "x"}, [], "x", "no image"),
    ],
)
def test_the_caption_of_a_row_of_a_set(columns, images, caption, fault):
    row = SimpleNamespace(columns=columns, images=images, place="row 4", fault="")
    entry, found = image_texts._read_caption_of_set(row)
    assert found == fault and texts_of(entry) == ["+"] * len(images) + [caption]
    assert entry.unit == "row 4"
    row.fault = "damaged"
    assert image_texts._read_caption_of_set(row)[1] == "damaged"


TEXT, NO_TEXT = {"type": "text", "text": "what?"}, {"type": "text", "text": None}

# ---- chats -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("turns", "unplaced", "messages", "places"),
    [
        # transformers, OpenAI, LLaVA; a mark takes the first image that is left
        ([{"role": "user", "content": [{"type": "image", "path": "p"}, TEXT]},
          {"role": "assistant", "content": "a cat"}], [],
         [("user", ["+", "what?"]), ("assistant", ["a cat"])], ["p"]),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}, NO_TEXT]}],
         [], [("user", ["+", ""])], [{"url": "u"}]),
        ([{"from": "human", "value": "<image>\nfirst<image>second\n"}, {"from": "gpt", "value": "no"}], ["x", "y"],
         [("user", ["+", "first", "+", "second"]), ("assistant", ["no"])], ["x", "y"]),
        ([{"from": "human", "value": "what?"}, {"from": "gpt", "value": "no"}], ["x", "y"],
         [("user", ["+", "+", "what?"]), ("assistant", ["no"])], ["x", "y"]),
        ([{"role": "system", "content": "s"},
          {"role": "user", "content": [{"type": "image"}, {"type": "image", "image": "own"}]}],
         ["x"], [("system", ["s"]), ("user", ["+", "+"])], ["x", "own"]),
        ([{"role": "user"}], [], [("user", [])], []),
    ],
)  # fmt: skip
def test_messages_of_every_form(turns, unplaced, messages, places):
    for column in image_texts.CHAT_COLUMNS:
        row = Row("row 1", {"other": "x", column: turns})
        found, where = image_texts._read_messages(row, unplaced)
        plain = [(m["role"], [p.get("text", "+") for p in m["content"]]) for m in found]
        assert (plain, where) == (messages, places)
    assert unplaced == list(unplaced)


@pytest.mark.parametrize(
    ("turns", "unplaced", "message"),
    [
        ([], [], "no messages"),
        ("text", [], "no messages"),
        (["text"], [], "'text' for a message"),
        ([{"role": "user", "content": [{"type": "audio"}]}], [], "a part of type audio in a message"),
        ([{"role": "user", "content": ["x"]}], [], r"a part of type \? in a message"),
        ([{"role": "user", "content": "<image> <image>"}], ["x"], "got more marks <image> than images"),
        ([{"role": "user", "content": "<image>"}], ["x", "y", "z"], "2 images without a mark"),
    ],
)  # fmt: skip
def test_messages_that_cannot_be_read(turns, unplaced, message):
    with pytest.raises(CorpusError, match=message):
        image_texts._read_messages(Row("row 1", {"messages": turns}), unplaced)


def test_where_a_picture_of_a_chat_is(tmp_path):
    (tmp_path / "a.png").write_bytes(png(1))
    coded = base64.b64encode(png(2)).decode()
    find = image_texts._find_image
    for place, data in (
        ("a.png", png(1)),
        ({"path": "a.png"}, png(1)),
        ({"url": "a.png", "path": "b.png"}, png(1)),
        (f"file://{tmp_path}/a.png", png(1)),
        ({"bytes": b"raw", "path": "n"}, b"raw"),
        (f"data:image/png;base64,{coded}", png(2)),
        ({"url": f"data:image/png;base64,{coded}"}, png(2)),
    ):
        assert find(place, tmp_path).read() == data
    assert find({"bytes": b"raw", "path": "n"}, tmp_path).name == "n"
    assert find({"bytes": b"raw"}, tmp_path).name == "image"
    assert find("b.png", tmp_path).fault == "no file b.png"
    for place, message in (
        ("http://x/y.png", "the address http://x/y.png, which is not downloaded"),
        ("data:image/png;base64,=%", "not in base64"),
        (None, "'None' for an image"),
        ({"path": 3}, "'3' for an image"),
        ("", "'' for an image"),
    ):
        with pytest.raises(CorpusError, match=message):
            find(place, tmp_path)


def test_chats_of_a_table_are_read_in_order_and_faulty_ones_named(tmp_path):
    for number in range(3):
        (tmp_path / f"{number}.png").write_bytes(png(number + 1))
    talk = [
        {"from": "human", "value": "<image>what?"},
        {"from": "gpt", "value": "that"},
    ]
    rows = [
        {"id": "one", "conversations": talk, "image": "1.png"},
        {"id": "two", "conversations": [{"role": "user", "content": "no picture"}]},
        {"conversations": [{"role": "user", "content": "<image><image>"}], "images": ["2.png", "0.png"]},
    ]  # fmt: skip
    place = tmp_path / "chats.jsonl"
    place.write_text("\n".join(map(json.dumps, rows)))
    assert image_texts.holds_image_texts(str(place))
    corpus = open_image_texts(str(place))
    assert shades(corpus) == [[2], [], [3, 1]] and corpus.unit_word == "chat"
    assert corpus.source["kind"] == "chats" and corpus.source["images"] == 3
    assert len({entry.unit for entry in corpus.entries}) == 3
    rows[0]["image"] = "9.png"
    rows[1]["conversations"] = []
    place.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(CorpusError, match=r"2 faulty: .*9.png.*two \(no messages\)"):
        open_image_texts(str(place))
    place.write_text(json.dumps({"text": "an image"}) + "\n" + json.dumps(rows[2]))
    assert not image_texts.holds_image_texts(str(place))


def test_chats_are_recognised_by_their_first_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(image_texts, "LOOKED", 2)
    place = tmp_path / "chats.jsonl"
    plain = json.dumps({"messages": [{"role": "user", "content": "x"}]})
    with_image = json.dumps({"messages": [{"role": "user", "content": "<image>"}]})
    for lines, holds in (
        ([plain, with_image], True),
        ([plain, plain, with_image], False),
        ([plain], False),
    ):
        place.write_text("\n".join(lines))
        assert image_texts._holds_chats(place) is holds


# ---- batches ---------------------------------------------------------------------------------------------------------


class Processor:
    """Writes a token for each letter, 1 before a text and 9 for each image; pads with 0 on one side."""

    chat_template = None
    image_token = "#"
    image_token_id = 9

    def __init__(self, side="right", pixels=(1, 3, 2, 2), bos=None, **more):
        self.side, self.pixels, self.asked = side, pixels, []
        self.tokenizer = SimpleNamespace(bos_token=bos, all_special_ids=[0, 1, 9])
        self.image_processor = SimpleNamespace(to_dict=lambda: {"size": 2})
        self.more = more

    def __call__(self, *, text, padding, return_tensors, images=None, **how):
        add_special_tokens = how.get("add_special_tokens", True)
        truncation = how.get("truncation", False)
        self.asked.append((text, padding, images, add_special_tokens, truncation))
        assert return_tensors == "pt"
        rows = [[1] * add_special_tokens + [9 if c == "#" else 20 for c in t] for t in text]  # fmt: skip
        width = max(map(len, rows))
        ids, mask = [], []
        for row in rows:
            space = [0] * (width - len(row))
            ids.append(row + space if self.side == "right" else space + row)
            ones = [1] * len(row)
            mask.append(ones + space if self.side == "right" else space + ones)
        found = {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}
        found |= {"labels": torch.ones(1), "note": "x"}
        if images:
            count = sum(map(len, images)) if isinstance(images[0], list) else len(images)  # fmt: skip
            found["pixel_values"] = torch.zeros(
                count * self.pixels[0], *self.pixels[1:]
            )
        return found | self.more


def corpus_of(*texts, unit_word="image"):
    """An entry for each text; each `#` is an image, `/` begins a message; the unit is its first letter."""
    entries = []
    for text in texts:
        messages, images = [], []
        for part in text.split("/"):
            content = []
            for letter in part:
                if letter == "#":
                    images.append(Item("i", None, png(len(images))))
                    content.append({"type": "image"})
                else:
                    content.append({"type": "text", "text": letter})
            messages.append({"role": "user", "content": content})
        entries.append(Entry(messages, images, text.strip("#/")[0]))
    return ImageTexts(entries, "print", {"skipped": 0}, unit_word)


@pytest.mark.parametrize("side", ["right", "left"])
def test_batches_of_texts_with_and_without_images(side):
    corpus = corpus_of("#ab", "cd", "#efg", "#a")
    plan = ImageTextPlan(corpus, Processor(side), stack="decoder", batch_tokens=8)
    # the first, of four tokens, decides: two sequences a batch
    assert [rows.tolist() for rows in plan.batches] == [[0, 2], [3], [1]]
    assert plan.unit.tolist() == [0, 1, 2, 0] and plan.n_units == 3
    first = plan[0]
    assert set(first.inputs) == {"input_ids", "attention_mask", "pixel_values"}
    stream = first.streams["decoder"]
    if side == "right":
        assert stream.mask.long().tolist() == [[1, 1, 1, 1, 0], [1] * 5]
        assert stream.special.long().tolist() == [[1, 0, 0, 0, 0]] * 2
        assert stream.start.tolist() == [0, 0]
    else:
        assert stream.mask.long().tolist() == [[0, 1, 1, 1, 1], [1] * 5]
        assert stream.special.long().tolist() == [[0, 1, 0, 0, 0], [1, 0, 0, 0, 0]]
        assert stream.start.tolist() == [-1, 0]
    assert first.unit.tolist() == [0, 2] and len(first.inputs["pixel_values"]) == 2
    assert "pixel_values" not in plan[2].inputs
    assert plan.processor.asked[-1][2] is None


@pytest.mark.parametrize(
    ("texts", "processor", "sequences"),
    [
        (("#ab", "#c"), Processor(), 3),
        (("#ab", "##c"), Processor(), 1),
        (("ab", "c"), Processor(), 1),
        (("#ab",), Processor(pixels=(4, 3, 2, 2)), 1),
        (("#ab",), Processor(pixels=(1, 2, 3, 2, 2)), 1),
        (("#ab",), Processor(image_grid_thw=torch.ones(1, 3)), 1),
    ],
)
def test_only_plain_images_share_a_batch(texts, processor, sequences):
    plan = ImageTextPlan(corpus_of(*texts), processor, stack="d", batch_tokens=12)
    assert plan.settings == {"processor": "Processor", "template": False, "sequences": sequences}  # fmt: skip
    small = ImageTextPlan(corpus_of(*texts), processor, stack="d", batch_tokens=1)
    assert small.settings["sequences"] == 1


def test_what_a_processor_is_asked_for():
    class SiglipProcessor(Processor):
        pass

    plain = ImageTextPlan(corpus_of("#a/b"), Processor(bos="#"), stack="d")
    assert plain.processor.asked[0][0] == ["#a\nb"]
    assert plain.processor.asked[0][1] is True and plain.processor.asked[0][3] is False
    other = ImageTextPlan(corpus_of("#a", "b"), Processor(bos="#"), stack="d")
    other._encode([0, 1])
    assert other.processor.asked[-1][3] is True
    pairs = ImageTextPlan(corpus_of("#ab", "#c"), SiglipProcessor(), stack="e", are_pairs=True)  # fmt: skip
    text, padding, images, _, truncation = pairs.processor.asked[0]
    assert (text, padding, len(images), truncation) == (["ab"], "max_length", 1, True)
    assert not isinstance(images[0], list)
    for texts in (("#a", "b"), ("##a",)):
        with pytest.raises(UsageError, match="got 1 texts with none or several"):
            ImageTextPlan(corpus_of(*texts), Processor(), stack="e", are_pairs=True)

    class Templated(Processor):
        chat_template = "t"

        def apply_chat_template(self, messages, tokenize):
            assert tokenize is False
            return f"{len(messages)}#"

    plan = ImageTextPlan(corpus_of("#a/b"), Templated(), stack="d")
    assert plan.processor.asked[0][0] == ["2#"] and plan.settings["template"] is True
    broken = Processor()
    broken.image_token = 3
    broken.__class__ = type("Bad", (Processor,), {"__call__": lambda *_a, **_k: 1 / 0})
    with pytest.raises(UsageError, match="ZeroDivisionError"):
        ImageTextPlan(corpus_of("#a"), broken, stack="d")


def test_words_and_hashes_of_a_plan():
    def made(*texts, unit_word="image", **how):
        processor = Processor()
        processor.image_processor.to_dict = lambda: {"size": how.get("size", 2)}
        processor.chat_template = how.get("template")
        processor.apply_chat_template = lambda *_a, **_k: "#"
        return ImageTextPlan(
            corpus_of(*texts, unit_word=unit_word), processor, stack="d"
        )

    image, chat = made("#a"), made("#a", unit_word="chat")
    names = ("sequence", "unit", "counted")
    words = [image.words[name] for name in names]
    assert words == ["image with its caption", "image", "image"]
    assert [chat.words[name] for name in names] == ["chat"] * 3
    different = ({}, {"size": 3}, {"template": "x"}, {"template": "y"})
    assert len({made("#a", **how).fingerprint for how in different}) == 4
    assert image_texts._find_special_tokens(Processor()) == {0, 1}
    own = Processor()
    own.tokenizer.image_token_id = 1
    assert image_texts._find_special_tokens(own) == {0, 9}
