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
    for column in ("messages", "conversations"):
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


# ---- what a name is, and what each message names ---------------------------------------------------------------------


def message_of(error, call, *given, **more):
    with pytest.raises(error) as caught:
        call(*given, **more)
    return str(caught.value)


def write(path, *rows):
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_what_a_name_is_that_holds_images_with_texts(tmp_path):
    """Not a saved data set, a list of sounds, a folder of as many texts as images, or one without either."""
    holds = image_texts.holds_image_texts
    for name in ("saved", "even", "bare", "hidden"):
        (tmp_path / name).mkdir()
    (tmp_path / "saved" / "state.json").write_text("{}")
    for place in ("saved/a.png", "even/a.png", "even/b.txt", "hidden/.a.png", "bare/x.pdf"):  # fmt: skip
        (tmp_path / place).write_bytes(png(1))
    assert not any(holds(str(tmp_path / n)) for n in ("saved", "even", "bare", "hidden"))  # fmt: skip
    (tmp_path / "even" / "a.txt").write_text("the caption of a.png is not counted")
    assert not holds(str(tmp_path / "even"))
    (tmp_path / "even" / "b.png").write_bytes(png(1))
    assert holds(str(tmp_path / "even"))
    assert not holds(str(write(tmp_path / "s.jsonl", {"path": "a.wav", "text": "x"})))
    assert holds(str(write(tmp_path / "i.jsonl", {"path": "a.png", "text": "x"})))
    talk = {"messages": [{"role": "user", "content": "<image>"}]}
    chats = write(tmp_path / "c.jsonl", talk)
    chats.write_text("{broken\n" + chats.read_text())
    assert holds(str(chats)), "a damaged row decides nothing"


def test_parts_of_the_hub_are_refused_here(folder):
    for option in ("split", "config", "revision"):
        given = {option: "x"}
        assert message_of(UsageError, open_image_texts, str(folder), **given) == (
            f"expected no --{option} with this kind of corpus; got --{option} with {folder}. Cure: leave --{option} out"
        )
    assert message_of(CorpusError, open_image_texts, str(folder / "gone")) == (
        f"expected a folder of images with captions, or a table of chats; got '{folder / 'gone'}', which does not exist"
    )
    assert image_texts.find_image_text_set(str(folder)) is None


@pytest.mark.parametrize("is_chat", [True, False])
def test_a_set_is_read_as_chats_or_captions(monkeypatch, is_chat):
    """With its images, their faults, the user's options and what the source is."""
    talk = [{"role": "user", "content": "<image> what?"}]
    rows = [
        image_texts.SetRow("row 1", {"c": talk if is_chat else "what?"}, [Item("i", None, png(1))]),
        image_texts.SetRow("row 2", {"c": talk if is_chat else "so"}, [Item("i", None, png(2))], "a fault"),
        image_texts.SetRow("row 3", {"c": talk if is_chat else "so"}, []),
    ]  # fmt: skip
    if is_chat:
        rows = [row._replace(columns={"messages": row.columns["c"]}) for row in rows]
    asked = []

    def open_set(*given):
        asked.append(given)
        return image_texts.SetOfRows(iter(rows), is_chat, {"id": "a/b", "split": "s"})

    monkeypatch.setattr(image_texts, "open_set", open_set)
    read = image_texts.find_image_text_set("a/b", split="s", skip_bad=True)
    name, path, options = asked[0]
    assert (name, path, options.split) == ("a/b", None, "s")
    corpus = read()
    lost = "more marks <image> than images" if is_chat else "no image"
    assert corpus.source == {
        "kind": "chats" if is_chat else "captions", "id": "a/b", "split": "s", "items": 1, "images": 1,
        "limit": None, "skipped": 2, "skipped_items": ["row 2 (a fault)", f"row 3 ({lost})"],
    }  # fmt: skip
    assert corpus.unit_word == ("chat" if is_chat else "image")
    assert texts_of(corpus.entries[0]) == ["+", " what?" if is_chat else "what?"]


def test_a_chat_of_a_set_may_name_images_elsewhere(tmp_path):
    (tmp_path / "a.png").write_bytes(png(3))
    parts = [{"type": "image", "path": str(tmp_path / "a.png")}, {"type": "image"}]
    columns = {"messages": [{"role": "u", "content": parts}]}
    row = image_texts.SetRow("row 4", columns, [Item("own", None, png(4))])
    entry, fault = image_texts._read_chat_of_set(row)
    assert [item.read() for item in entry.images] == [png(3), png(4)]
    assert (entry.unit, fault) == ("row 4", "")
    # an image that cannot be read is not at hand, so its mark must not be blamed
    faulty = row._replace(images=[], fault="it is no image")
    assert image_texts._read_chat_of_set(faulty)[1] == "it is no image"


def gathered(*entries, is_chat=False, **options):
    given = image_texts.CorpusOptions(**options)
    about = {"path": "p"}
    return image_texts._gather("n", iter(entries), given, about, is_chat=is_chat)


def entry_of(unit, text="t", *shades_of):
    return image_texts._build_entry([Item(f"{unit}.png", None, png(s)) for s in shades_of], text, unit)  # fmt: skip


def test_units_and_images_of_a_corpus_are_counted():
    """Two captions of one image are a unit of two items; what is bad is counted, and the first twenty are named."""
    entries = [(entry_of("a", "x", 1), ""), (entry_of("b", "y", 2, 3), ""), (entry_of("b", "z", 2), ""),
               (entry_of("c", "u", 4), "")]  # fmt: skip
    corpus = gathered(*entries, limit=2)
    assert corpus.source == {
        "kind": "captions", "path": "p", "items": 3, "images": 4, "limit": 2, "skipped": 0,
    }  # fmt: skip
    bad = [(entry_of(f"u{k}"), "lost") for k in range(25)]
    found = gathered(*bad, *entries, skip_bad=True)
    assert found.source["skipped"] == 25
    assert found.source["skipped_items"] == [f"u{k} (lost)" for k in range(20)]
    assert message_of(CorpusError, gathered, *bad[:2], *entries) == (
        "expected texts with their images in n; got 2 faulty: u0 (lost), u1 (lost). "
        "Cure: repair or remove them, or pass --skip-bad"
    )
    mixed = [(entry_of("v"), "no caption"), *bad[:1]]
    assert message_of(CorpusError, gathered, *mixed) == (
        "expected texts with their images in n; got 2 faulty: v (no caption), u0 (lost). "
        "Cure: write metadata.csv with the columns file_name and text, or a .txt file next to each image"
    )
    assert message_of(CorpusError, gathered, *bad, skip_bad=True) == (
        "expected at least one text with an image in n; got none. Cure: name another corpus"
    )


def test_texts_images_and_units_are_in_the_hash_of_a_corpus():
    def print_of(*entries):
        return gathered(*((entry, "") for entry in entries)).fingerprint

    prints = [
        print_of(entry_of("a", "x", 1)),
        print_of(entry_of("a", "y", 1)),
        print_of(entry_of("a", "x", 2)),
        print_of(entry_of("b", "x", 1)),
        print_of(entry_of("a", "x", 1), entry_of("a", "x", 1)),
        print_of(entry_of("a", "x", 1), entry_of("c", "x", 1)),
        print_of(entry_of("a", "x", 1, 2)),
        print_of(entry_of("a", "x", 1, 3)),
        print_of(entry_of("a", "x", 2, 1)),
    ]
    assert len(set(prints)) == len(prints) and prints[0] == print_of(entry_of("a", "x", 1))  # fmt: skip


def test_images_that_break_off_are_found_only_if_bad_ones_are_left_out():
    file = BytesIO()
    Image.effect_noise((64, 64), 50).save(file, "PNG")
    half = file.getvalue()[: len(file.getvalue()) // 2]
    broken = image_texts._build_entry([Item("h.png", None, half)], "x", "h")
    whole = entry_of("w", "x", 1)
    assert len(gathered((broken, ""), (whole, "")).entries) == 2
    found = gathered((broken, ""), (whole, ""), skip_bad=True)
    assert found.entries == [whole]
    assert found.source["skipped_items"][0].startswith("h (damaged after its header")


def test_captions_of_rows_and_files(folder):
    """The first column that is not empty; a name of a file in a folder is its unit; what is faulty has its reason."""
    row = Row("line 2", {"text": "", "caption": " ", "sentence": "s", "n": 7})
    find = image_texts._find_caption
    assert find(row, folder, None) == "" and find(row, folder, "sentence") == "s"
    row.columns["caption"] = ""
    assert find(row, folder, None) == "s" and find(row, folder, "n") == ""
    assert message_of(CorpusError, find, row, folder, "captoin") == (
        f"expected a column 'captoin' for captions in {folder}; got the columns text, caption, sentence, n. "
        "Cure: did you mean caption?"
    )
    (folder / "in" / "a.png").write_bytes(png(1))
    (folder / "a.txt").write_text("top")
    (folder / "a.png.txt").write_text("no caption of it")
    found = [(e.unit, fault) for e, fault in image_texts._iter_captions(folder, None)]
    without = ("b.PNG", "in/a.png", "in/c.jpg")
    assert found == [("a.png", ""), *((name, "no caption") for name in without)]
    write(folder / "metadata.jsonl", {"file_name": "gone.png", "text": "x"}, {"file_name": 7, "text": "x"})  # fmt: skip
    found = [(e.unit, fault) for e, fault in image_texts._iter_captions(folder, None)]
    assert found[1] == ("row of metadata.jsonl (line 2)", "7 for a path")


def test_chats_of_a_table_name_their_images_in_several_ways(tmp_path):
    """A list goes before a single one; relative to the table; a fault has the id of its chat, else its line."""
    for k in range(3):
        (tmp_path / f"{k}.png").write_bytes(png(k))
    talk = {"messages": [{"role": "user", "content": "<image>"}]}
    path = write(
        tmp_path / "c.jsonl",
        talk | {"id": "same", "image": "0.png", "images": ["1.png"]},
        talk | {"id": "same", "image": {"path": "2.png"}},
        talk | {"id": "lost", "image": "http://x/y.png"},
        talk | {"image": 7},
    )
    path.write_text(path.read_text() + "{broken\n")
    found = list(image_texts._iter_chats(path))
    assert [[i.read() for i in e.images] for e, _ in found[:2]] == [[png(1)], [png(2)]]
    assert [entry.unit for entry, _ in found] == ["line 1", "line 2", "lost", "line 4", "line 5"]  # fmt: skip
    faults = [fault for _, fault in found]
    assert faults[:2] == ["", ""] and faults[3] == "'7' for an image" and faults[4]
    assert faults[2] == "the address http://x/y.png, which is not downloaded"


def test_images_outside_of_the_messages_are_taken_in_order():
    """Each mark takes the first; without marks they come before the first message; the caller's list stays."""
    given = ["x", "y", "z"]
    mark, own = {"type": "image"}, {"type": "image", "url": "own"}
    content = [mark, {"type": "text", "text": "a"}, own, mark]
    turns = [{"role": "user", "content": content}, {"from": "gpt", "content": "<image>"}]  # fmt: skip
    row = Row("r", {"messages": turns})
    messages, places = image_texts._read_messages(row, given)
    assert places == ["x", "own", "y", "z"] and given == ["x", "y", "z"]
    assert messages[1] == {"role": "assistant", "content": [{"type": "image"}]}
    plain = [{"role": "system", "from": "human", "content": "s"}, {"role": "user", "content": "q"}]  # fmt: skip
    messages, places = image_texts._read_messages(Row("r", {"messages": plain}), ["x", "y"])  # fmt: skip
    assert places == ["x", "y"]
    assert [[p["type"] for p in m["content"]] for m in messages] == [["image", "image", "text"], ["text"]]  # fmt: skip
    assert [m["role"] for m in messages] == ["system", "user"]
    split = list(image_texts._split_marks("<image>\n a \n<image><image>b"))
    assert split == [mark, {"type": "text", "text": " a "}, mark, mark, {"type": "text", "text": "b"}]  # fmt: skip


def test_a_folder_is_no_image_and_base64_is_strict(tmp_path):
    find = image_texts._find_image
    (tmp_path / "d.png").mkdir()
    assert find("d.png", tmp_path).fault == "no file d.png"
    assert find("data:,aGk=", tmp_path).read() == b"hi"
    for url in ("data:image/png;base64,aG!k=", "data:,x"):
        assert message_of(CorpusError, find, url, tmp_path) == (
            "expected an image in base64; got a data URL that is not in base64"
        )


def test_what_is_no_set_of_texts_with_images_is_none(monkeypatch, tmp_path):
    """A saved one is read from its folder, any other name is of the hub."""
    asked = []
    monkeypatch.setattr(image_texts, "open_set", lambda *given: asked.append(given[:2]))
    (tmp_path / "dataset_dict.json").write_text("{}")
    for name, path in (("a/b", None), (str(tmp_path), tmp_path)):
        assert image_texts.find_image_text_set(name) is None
        assert asked[-1] == (name, path)


def test_a_batch_has_so_many_texts_of_the_longest():
    """An image, three letters and the mark before them are five tokens."""
    for budget, sequences in ((9, 1), (10, 2), (14, 2), (15, 3)):
        plan = ImageTextPlan(corpus_of("#abc"), Processor(), stack="d", batch_tokens=budget)  # fmt: skip
        assert plan.settings["sequences"] == sequences
    usual = ImageTextPlan(corpus_of("#abc"), Processor(), stack="d")
    assert usual.settings["sequences"] == 4096 // 5 and not usual.are_pairs
    (stream,) = usual[0].streams
    assert stream == "d"


def test_the_source_of_captions_and_chats_is_found_from_any_folder(folder, monkeypatch):
    for name in ("a", "b", "in/c"):
        (folder / f"{name}.txt").write_text("x")
    write(folder / "c.jsonl", {"messages": [{"role": "user", "content": "<image>"}], "image": "a.png"})  # fmt: skip
    monkeypatch.chdir(folder.parent)
    here = folder.resolve()
    captions = open_image_texts(folder.name)
    assert captions.source["path"] == str(here)
    chats = open_image_texts(f"{folder.name}/c.jsonl")
    assert chats.source["path"] == str(here / "c.jsonl") and shades(chats) == [[10]]
