"""Data sets of texts with images: of the hub and saved to a folder, read as the same rows in a table are."""

import io
import json
import os
import subprocess
import sys

import datasets
import numpy as np
import pytest
from hub_server import Hub
from PIL import Image
from quick import quick
from test_images_in_texts import make_model, make_processor

import anisoscope
from anisoscope.data.image_texts import find_image_text_set
from anisoscope.data.opening import open_texts_with_images
from anisoscope.errors import CorpusError

COMMIT = "a" * 40
COUNT = 6


def picture(seed):
    body = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(
        0, 256, (40 + seed, 36, 3), dtype=np.uint8
    )
    Image.fromarray(pixels).save(body, "PNG")
    return {"bytes": body.getvalue(), "path": f"{seed}.png"}


def captions():
    return [" ".join(map(str, range(i % 4 + 2))) for i in range(COUNT)]


def make_captions(**more):
    """Return a data set of images with captions."""
    rows = {
        "id": list(range(COUNT)),
        "image": [picture(i) for i in range(COUNT)],
        "caption": captions(),
        **more,
    }
    features = {
        "id": datasets.Value("int64"),
        "image": datasets.Image(),
        "caption": datasets.Value("string"),
    }
    return datasets.Dataset.from_dict(rows, datasets.Features(features))


def make_chats():
    """Return a data set of chats, with a list of images each: one, two, none."""
    rows = {"messages": [], "images": []}
    for i in range(COUNT):
        marks = [{"type": "image", "text": None}] * (i % 3)
        rows["messages"].append(
            [
                {
                    "role": "user",
                    "content": [*marks, {"type": "text", "text": f"{i} {i + 1}"}],
                },
                {"role": "assistant", "content": [{"type": "text", "text": "7"}]},
            ]
        )
        rows["images"].append([picture(10 * i + k) for k in range(i % 3)])
    return datasets.Dataset.from_dict(rows).cast_column(
        "images", datasets.Sequence(datasets.Image())
    )


def write_table(folder):
    """Write the same images and captions as a folder with a table."""
    folder.mkdir()
    lines = ["file_name,caption"]
    for i, caption in enumerate(captions()):
        (folder / f"{i}.png").write_bytes(picture(i)["bytes"])
        lines.append(f"{i}.png,{caption}")
    (folder / "metadata.csv").write_text("\n".join(lines) + "\n")
    return folder


def measured(corpus, **more):
    run = anisoscope.measure(
        make_model("llava"),
        processor=make_processor("llava"),
        corpus=str(corpus),
        metrics="mean_cosine",
        sample=0,
        **more,
    )
    return run, run.records.dropna(subset=["layer"]).set_index(
        ["stack", "site", "layer"]
    )["value"]


def test_a_saved_data_set_is_the_folder_with_a_table(tmp_path):
    """`datasets` saves files of its own, which were taken for something else than images with captions."""
    make_captions().save_to_disk(str(tmp_path / "saved"))
    run, found = measured(tmp_path / "saved")
    _, expected = measured(write_table(tmp_path / "table"))
    assert found.to_dict() == expected.to_dict() and len(found) > 6
    assert (
        run.manifest["corpus"]["kind"] == "captions"
        and run.manifest["corpus"]["images"] == COUNT
    )
    assert run.manifest["corpus"]["words"]["sequence"] == "image with its caption"


def test_a_split_of_a_saved_data_set_is_chosen(tmp_path):
    parts = {"train": make_captions(), "test": make_captions().select(range(4))}
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "saved"))
    assert (
        len(find_image_text_set(str(tmp_path / "saved"))().entries) == 4
    )  # test before train
    assert (
        len(
            find_image_text_set(
                str(tmp_path / "saved"), split="train", limit=5
            )().entries
        )
        == 5
    )
    with pytest.raises(CorpusError, match=r"a split of .*got validation"):
        find_image_text_set(str(tmp_path / "saved"), split="validation")


def test_chats_of_a_saved_data_set_keep_their_images_in_order(tmp_path):
    make_chats().save_to_disk(str(tmp_path / "chats"))
    found = find_image_text_set(str(tmp_path / "chats"))()
    assert found.unit_word == "chat" and [
        len(entry.images) for entry in found.entries
    ] == [0, 1, 2, 0, 1, 2]
    for i, entry in enumerate(found.entries):
        assert [item.read() for item in entry.images] == [
            picture(10 * i + k)["bytes"] for k in range(i % 3)
        ]
        kinds = [part["type"] for part in entry.messages[0]["content"]]
        assert kinds == ["image"] * (i % 3) + ["text"]
    run, _ = measured(tmp_path / "chats")
    assert (
        run.manifest["corpus"]["kind"] == "chats"
        and run.manifest["corpus"]["images"] == 6
    )


def test_rows_that_cannot_be_read_are_named(tmp_path):
    rows = make_captions().to_dict()
    rows["caption"][1], rows["image"][2] = None, None
    rows["image"][3] = {"bytes": b"no image", "path": None}
    broken = make_captions(image=rows["image"], caption=rows["caption"])
    broken.save_to_disk(str(tmp_path / "saved"))
    said = (
        r"3 faulty: row 2 \(no caption\), row 3 \(no image\), row 4 \(it is no image\)"
    )
    with pytest.raises(CorpusError, match=said):
        find_image_text_set(str(tmp_path / "saved"))()
    assert (
        len(find_image_text_set(str(tmp_path / "saved"), skip_bad=True)().entries) == 3
    )
    with pytest.raises(CorpusError, match=r"a column 'captoin' for captions.*caption"):
        find_image_text_set(str(tmp_path / "saved"), column="captoin")


def test_a_chat_with_an_image_that_cannot_be_read_says_so(tmp_path):
    """Its mark had no image, and was blamed for that."""
    rows = make_chats().to_dict()
    rows["images"][2][1] = {"bytes": b"no image", "path": None}
    cast = datasets.Sequence(datasets.Image())
    broken = datasets.Dataset.from_dict(rows).cast_column("images", cast)
    broken.save_to_disk(str(tmp_path / "saved"))
    with pytest.raises(CorpusError, match=r"row 3 \(it is no image\)"):
        find_image_text_set(str(tmp_path / "saved"))()


def test_the_first_of_several_captions_is_read(tmp_path):
    made = make_captions().remove_columns("caption")
    made.add_column("captions", [[text, "9 9 9"] for text in captions()]).save_to_disk(
        str(tmp_path / "saved")
    )
    entries = find_image_text_set(str(tmp_path / "saved"))().entries
    assert [entry.messages[0]["content"][1]["text"] for entry in entries] == captions()


def test_a_data_set_of_texts_alone_is_none_of_images(tmp_path):
    datasets.Dataset.from_dict({"text": captions()}).save_to_disk(
        str(tmp_path / "texts")
    )
    assert find_image_text_set(str(tmp_path / "texts")) is None
    make_captions().remove_columns("caption").save_to_disk(str(tmp_path / "images"))
    assert (
        open_texts_with_images(
            str(tmp_path / "images"), make_model("llava"), make_processor("llava")
        )
        is None
    )


# ---- of the hub

OPENING = """
import json, sys
from anisoscope.data.image_texts import find_image_text_set
for line in sys.stdin:
    name, options = json.loads(line)
    found = find_image_text_set(name, **options)
    corpus = None if found is None else found()
    made = None if corpus is None else {
        "fingerprint": corpus.fingerprint, "source": corpus.source,
        "images": sum(len(e.images) for e in corpus.entries),
        "sizes": [len(item.read()) for e in corpus.entries for item in e.images]}
    print(json.dumps(made), flush=True)
"""


def ask(hub, home, *questions):
    """Open data sets of the hub in a process of its own; returns what each holds."""
    text = "\n".join(map(json.dumps, questions))
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    environment = hub.environment(home, **path)
    done = subprocess.run(
        [*quick(), "-c", OPENING],
        input=text,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def hub(tmp_path):
    folders = {
        name: tmp_path / "sets" / name for name in ("captions", "chats", "texts")
    }
    for folder in folders.values():
        folder.mkdir(parents=True)
    make_captions().to_parquet(
        str(folders["captions"] / "train-00000-of-00001.parquet")
    )
    make_chats().to_parquet(str(folders["chats"] / "train-00000-of-00001.parquet"))
    datasets.Dataset.from_dict({"text": captions()}).to_parquet(
        str(folders["texts"] / "train-00000-of-00001.parquet")
    )
    with Hub() as hub:
        for name, folder in folders.items():
            hub.add(f"datasets/someone/{name}", {COMMIT: folder})
        yield hub


def test_a_data_set_of_the_hub_is_what_was_saved_and_streamed_once(hub, tmp_path):
    make_captions().save_to_disk(str(tmp_path / "saved"))
    make_chats().save_to_disk(str(tmp_path / "chats"))
    few, whole, chats, texts, absent = ask(
        hub, tmp_path / "home", *(["someone/captions", {"limit": 2}], ["someone/captions", {}]),
        *(["someone/chats", {}], ["someone/texts", {}], ["someone/absent", {}]),
    )  # fmt: skip
    assert texts is absent is None and few["images"] == 2
    for found, folder in ((whole, "saved"), (chats, "chats")):
        here = find_image_text_set(str(tmp_path / folder))()
        assert found["fingerprint"] == here.fingerprint
        assert found["sizes"] == [
            len(item.read()) for entry in here.entries for item in entry.images
        ]
    assert whole["source"]["commit"] == COMMIT and whole["source"]["split"] == "train"
    assert whole["source"]["columns"] == ["image", "caption"]
    hub.fetched.clear()
    again, again_chats = ask(
        hub, tmp_path / "home", ["someone/captions", {}], ["someone/chats", {}]
    )
    assert (again, again_chats) == (whole, chats)
    assert not [line for line in hub.fetched if line.endswith(".parquet")]


def test_a_column_of_images_is_no_column_of_captions(tmp_path):
    """The cure was "known names:", without one."""
    make_captions().save_to_disk(str(tmp_path / "saved"))
    column = next(
        name
        for name, kind in make_captions().features.items()
        if isinstance(kind, datasets.Image)
    )
    with pytest.raises(
        CorpusError, match=r"holds images\. Cure: (did you mean|known names:) \w+"
    ):
        find_image_text_set(str(tmp_path / "saved"), column=column)
