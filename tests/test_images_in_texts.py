"""Models of several towers on texts with images: each stack against hooks by hand."""

import base64
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from sweep import build
from tiny_configs import tiny_config

import anisoscope
from anisoscope.data.image_texts import holds_image_texts, open_image_texts
from anisoscope.errors import CorpusError, MeasureError, UsageError
from anisoscope.models.blocks import find_stack
from anisoscope.models.processors import processor_of_images_and_texts

MARKS = 16
"""Tokens that stand for the image of a text, of LLaVA and PaliGemma; Qwen-VL merges four patches into one."""
TEXT = 12
BLOCKS = {
    "llava": ("vision_tower.encoder.layers", "language_model.layers", "decoder"),
    "paligemma": ("vision_tower.encoder.layers", "language_model.layers", "encoder"),
    "qwen2_vl": ("visual.blocks", "language_model.layers", "decoder"),
    "qwen2_5_vl": ("visual.blocks", "language_model.layers", "decoder"),
}
"""By model type: blocks of both towers, and the stack of the language model."""


def inputs_for(model, sequences):
    """Return a text with one image for each sequence, as the model's processor would."""
    config = model.config
    g = torch.Generator().manual_seed(0)
    is_packed = hasattr(model, "visual")
    mark = getattr(config, "image_token_id", None) or config.image_token_index
    marks = torch.full((sequences, MARKS // 4 if is_packed else MARKS), mark)
    ids = torch.cat([marks, torch.randint(5, 100, (sequences, TEXT), generator=g)], 1)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if is_packed:
        width = 3 * 2 * config.vision_config.patch_size**2
        inputs["pixel_values"] = torch.randn(
            MARKS * sequences, width, generator=g, dtype=torch.float64
        )
        inputs["image_grid_thw"] = torch.tensor([[1, 4, 4]] * sequences)
        inputs["mm_token_type_ids"] = (ids == mark).long()
    else:
        side = config.vision_config.image_size
        inputs["pixel_values"] = torch.randn(
            sequences, 3, side, side, generator=g, dtype=torch.float64
        )
    if config.model_type == "paligemma":
        inputs["token_type_ids"] = (ids == mark).long()
    return {
        "pixel_values": inputs.pop("pixel_values"),
        **inputs,
    }  # the text need not come first


def catch_by_hand(model, inputs, blocks):
    """Return the vectors [token, dim] that enter the first block and leave each, of all sequences together."""
    caught = []

    def keep(x):
        x = x[0] if isinstance(x, tuple) else x
        caught.append(x.reshape(-1, x.shape[-1]))

    def enter(_module, args, kwargs):
        keep(args[0] if args else kwargs["hidden_states"])

    hooks = [blocks[0].register_forward_pre_hook(enter, with_kwargs=True)]
    hooks += [
        block.register_forward_hook(lambda _m, _a, output: keep(output))
        for block in blocks
    ]
    with torch.no_grad():
        model(**inputs)
    for hook in hooks:
        hook.remove()
    return caught


@pytest.mark.parametrize("model_type", BLOCKS)
def test_each_tower_is_a_stack_of_its_own_with_its_own_tokens(model_type):
    """Qwen-VL hands the patches of all images on in one row: a unit too many for each, and a crash."""
    model = build(tiny_config(model_type, 0))
    batches = (
        [inputs_for(model, 1)] if hasattr(model, "visual") else [inputs_for(model, 2)]
    )
    run = anisoscope.measure(model, batches, tokens="all", sample=0)
    vision, language, stack = BLOCKS[model_type]
    records = run.records[
        (run.records["site"] == "hidden") & (run.records["metric"] == "mean_cosine")
    ]
    for name, path in (("vision", vision), (stack, language)):
        caught = catch_by_hand(model, batches[0], model.get_submodule(path))
        for layer, x in enumerate(caught):
            (row,) = records[
                (records["stack"] == name) & (records["layer"] == layer)
            ].to_dict("records")
            unit = torch.nn.functional.normalize(x, dim=-1).sum(0)
            expected = float((unit.square().sum() - len(x)) / (len(x) * (len(x) - 1)))
            assert row["value"] == pytest.approx(expected, abs=1e-9)
            assert row["n_vectors"] == len(x)
    heads = run.records[run.records["site"] == "attention"]
    assert {(s, k) for s, k in zip(heads["stack"], heads["layer"], strict=True)} == {
        (name, layer) for name in ("vision", stack) for layer in (1, 2)
    }
    assert (stack, "final") in set(
        zip(run.records["stack"], run.records["site"], strict=True)
    )


def test_patches_of_several_sequences_in_one_row_are_refused_with_the_cure():
    model = build(tiny_config("qwen2_vl", 0))
    with pytest.raises(MeasureError, match="one sequence per batch"):
        anisoscope.measure(model, inputs_for(model, 2))


def test_patches_of_a_tower_alone_are_no_units_of_their_own():
    """Each of the patches of all images counted as an image: intervals too narrow, and attention left out."""
    tower = build(tiny_config("qwen2_vl", 0)).visual
    inputs = {"hidden_states": torch.randn(MARKS, 3 * 2 * 8 * 8, dtype=torch.float64)}
    run = anisoscope.measure(
        tower, inputs | {"grid_thw": torch.tensor([[1, 4, 4]])}, tokens="all", sample=0
    )
    assert any("1 group of units" in line for line in run.manifest["warnings"])
    assert not [line for line in run.manifest["warnings"] if "left out" in line]
    assert len(run.records.query("metric == 'attention.entropy'"))
    two = {
        "hidden_states": inputs["hidden_states"].repeat(2, 1),
        "grid_thw": torch.tensor([[1, 4, 4]] * 2),
    }
    with pytest.raises(MeasureError, match="one sequence per batch"):
        anisoscope.measure(tower, two)


def test_images_of_one_text_do_not_count_in_the_texts_after_it():
    """A class token stands before each image's patches, however many images the text before had."""
    model = build(tiny_config("llava", 0))
    one, two = inputs_for(model, 1), inputs_for(model, 2)
    several = {
        name: two[name].reshape(1, -1) for name in ("input_ids", "attention_mask")
    }
    several["pixel_values"] = two["pixel_values"]
    run = anisoscope.measure(model, [several, one, two], tokens="content", sample=0)
    rows = run.records.query(
        "stack == 'vision' and site == 'hidden' and metric == 'mean_cosine' and layer == 1"
    )
    images = 2 + 1 + 2
    assert rows["n_vectors"].tolist() == [images * MARKS]


# ---- images with captions, chats with images

MARKS_OF = {"image_token": "<image>", "boi_token": "<start>", "eoi_token": "<end>"}
WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *MARKS_OF.values(),
    *map(str, range(60)),
]
IMAGE_ID = WORDS.index("<image>")
CHAT = (
    "{{ bos_token }}{% for m in messages %}{% for part in m.content %}"
    "{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %} {% endfor %}{% endfor %}"
)


class PatchingProcessor:
    """A processor as Qwen-VL's, which needs torchvision for its videos: images as rows of patches of all images."""

    image_token, image_token_id = "<image>", IMAGE_ID

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.image_processor = transformers.Qwen2VLImageProcessorPil(
            min_pixels=16 * 16, max_pixels=48 * 48, patch_size=8, merge_size=2
        )

    def __call__(self, text, images=None, padding=False, return_tensors="pt"):  # noqa: ARG002
        texts = [text] if isinstance(text, str) else text
        made = {}
        if images is not None:
            made = dict(self.image_processor(images=images, return_tensors="pt"))
            counts = iter((made["image_grid_thw"].prod(1) // 4).tolist())
            pieces = [one.split("<image>") for one in texts]
            texts = [
                one[0] + "".join("<image>" * next(counts) + rest for rest in one[1:])
                for one in pieces
            ]
        made |= dict(self.tokenizer(texts, padding=padding, return_tensors="pt"))
        made.pop("token_type_ids", None)
        return {**made, "mm_token_type_ids": (made["input_ids"] == IMAGE_ID).long()}


def make_processor(kind):
    """Return a tiny processor of images and texts for a type of model."""
    marks = MARKS_OF if kind == "gemma3" else {"image_token": "<image>"}
    tokenizer = transformers.BertTokenizerFast(
        vocab={word: i for i, word in enumerate(WORDS)},
        bos_token="[CLS]",
        extra_special_tokens=marks,
    )
    if kind == "llava":
        images = transformers.CLIPImageProcessorPil(
            size={"shortest_edge": 32}, crop_size=32
        )
        marks = {
            "patch_size": 8,
            "vision_feature_select_strategy": "default",
            "num_additional_image_tokens": 1,
        }
        return transformers.LlavaProcessor(images, tokenizer, **marks)
    if kind == "paligemma":
        images = transformers.SiglipImageProcessorPil(size={"height": 32, "width": 32})
        images.image_seq_length = MARKS
        return transformers.PaliGemmaProcessor(images, tokenizer)
    if kind == "gemma3":
        images = transformers.Gemma3ImageProcessorPil(size={"height": 32, "width": 32})
        return transformers.Gemma3Processor(
            images, tokenizer, image_seq_length=MARKS // 4
        )
    return PatchingProcessor(tokenizer)


def make_model(kind):
    """Return a tiny model of a type, in float64."""
    config = tiny_config(kind, 0)
    config.image_token_id = config.image_token_index = IMAGE_ID
    if kind == "gemma3":
        config.mm_tokens_per_image = MARKS // 4
    return build(config).double().eval()


def save_images(folder, count, *, beside=False):
    """Save images of several sizes, with captions in a table or beside each. Returns the captions."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    captions = [" ".join(map(str, range(i % 7 + 2))) for i in range(count)]
    lines = ["file_name,text"]
    for i, caption in enumerate(captions):
        pixels = rng.integers(0, 256, (40 + i, 36, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.png")
        lines.append(f"{i}.png,{caption}")
        if beside:
            (folder / f"{i}.txt").write_text(caption)
    if not beside:
        (folder / "metadata.csv").write_text("\n".join(lines) + "\n")
    return captions


def check_against_hooks(run, model, paths, calls, *, atol):
    """Compare A of every layer of both towers with what hooks by hand catch in calls of one text each."""
    records = run.records[
        (run.records["site"] == "hidden") & (run.records["metric"] == "mean_cosine")
    ]
    for stack, path in paths.items():
        caught = [
            catch_by_hand(model, inputs, model.get_submodule(path)) for inputs in calls
        ]
        for layer in range(len(caught[0])):
            x = torch.cat([of_text[layer] for of_text in caught])
            (row,) = records[
                (records["stack"] == stack) & (records["layer"] == layer)
            ].to_dict("records")
            unit = torch.nn.functional.normalize(x, dim=-1).sum(0)
            expected = float((unit.square().sum() - len(x)) / (len(x) * (len(x) - 1)))
            assert row["value"] == pytest.approx(expected, abs=atol), (stack, layer)
            assert (row["n_vectors"], row["n_units"]) == (len(x), len(calls))


def in_float64(inputs):
    """Return inputs with pixels of float64."""
    return {
        name: x.double() if x.is_floating_point() else x for name, x in inputs.items()
    }


@pytest.mark.parametrize(
    ("kind", "beside"),
    [
        ("llava", False),
        ("llava", True),
        ("paligemma", False),
        ("gemma3", True),
        ("qwen2_vl", False),
        # where the captions lie is no matter of the model
        pytest.param("paligemma", True, marks=pytest.mark.nightly),
        pytest.param("gemma3", False, marks=pytest.mark.nightly),
        pytest.param("qwen2_vl", True, marks=pytest.mark.nightly),
    ],
)
def test_a_folder_with_captions_is_read_by_both_towers(kind, beside, tmp_path):
    """A vision-language model refused a folder of images, and read texts alone."""
    model, processor = make_model(kind), make_processor(kind)
    captions = save_images(tmp_path / "images", 5, beside=beside)
    how = {"corpus": str(tmp_path / "images"), "tokens": "all", "sample": 0}
    if kind == "qwen2_vl":
        run = anisoscope.measure(model, processor=processor, **how)
    else:  # as the command line does
        model.save_pretrained(tmp_path / "model")
        processor.save_pretrained(tmp_path / "model")
        run = anisoscope.measure(str(tmp_path / "model"), dtype="float64", **how)
    calls = []
    for i, caption in enumerate(captions):
        picture = Image.open(tmp_path / "images" / f"{i}.png")
        mark = "<start>" if kind == "gemma3" else "<image>"
        made = dict(
            processor(
                text=[f"{mark}{caption}"], images=[[picture]], return_tensors="pt"
            )
        )
        made.pop("labels", None)
        calls.append(in_float64(made))
    vision, language, stack = BLOCKS.get(kind) or BLOCKS["paligemma"]
    stack = find_stack(model)
    check_against_hooks(
        run, model, {"vision": vision, stack: language}, calls, atol=1e-9
    )
    assert run.manifest["corpus"]["words"]["sequence"] == "image with its caption"
    said = [line for line in run.manifest["warnings"] if "no `final`" in line]
    assert len(said) == (kind == "llava") and all(
        line.startswith("vision ") for line in said
    )


def test_a_limit_counts_images_with_all_their_captions(tmp_path):
    """Of a data set with five captions for each image, the first image has five."""
    save_images(tmp_path / "images", 2)
    lines = ["file_name,text", "0.png,one", "0.png,two", "1.png,three", "1.png,four"]
    (tmp_path / "images" / "metadata.csv").write_text("\n".join(lines) + "\n")
    found = open_image_texts(str(tmp_path / "images"), limit=1)
    assert [entry.messages[0]["content"][-1]["text"] for entry in found.entries] == [
        "one",
        "two",
    ]


def test_an_image_without_a_caption_is_named(tmp_path):
    save_images(tmp_path / "images", 3, beside=True)
    (tmp_path / "images" / "1.txt").unlink()
    how = {
        "corpus": str(tmp_path / "images"),
        "processor": make_processor("llava"),
        "sample": 0,
    }
    with pytest.raises(
        CorpusError, match=r"1 faulty: 1\.png \(no caption\).*metadata\.csv"
    ):
        anisoscope.measure(make_model("llava"), **how)
    run = anisoscope.measure(make_model("llava"), skip_bad=True, **how)
    assert (
        run.manifest["corpus"]["items"] == 2 and run.manifest["corpus"]["skipped"] == 1
    )


def write_chats(folder, form):
    """Write two chats with images and one without, in one of the forms that are in use. Returns their plain texts."""
    save_images(folder, 3)
    said = {"llava": "value", "images beside": "content", "parts": "content"}[form]

    def turn(number, content):
        """Return a message: of a person if the number is even."""
        if form == "llava":
            return {"from": ("human", "gpt")[number], said: content}
        return {"role": ("user", "assistant")[number], said: content}

    first, second, third = "<image>1 2", "4 5", [turn(0, "6"), turn(1, "7 8")]
    places = ["0.png", {"path": "1.png"}]
    if form == "images beside":
        second = [{"type": "image"}, {"type": "text", "text": "4 5"}]
    if form == "parts":
        data = base64.b64encode((folder / "1.png").read_bytes()).decode()
        first = [{"type": "image", "path": "0.png"}, {"type": "text", "text": "1 2"}]
        url = {"url": f"data:image/png;base64,{data}"}
        second = [
            {"type": "image_url", "image_url": url},
            {"type": "text", "text": "4 5"},
        ]
    column = "conversations" if form == "llava" else "messages"
    rows = [
        {column: [turn(0, first), turn(1, "3")]},
        {column: [turn(0, second)]},
        {column: third},
    ]
    if form != "parts":
        for row, place in zip(rows, places, strict=False):
            row |= {"image": place} if form == "llava" else {"images": [place]}
    (folder / "chats.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return ["<image> 1 2 3", "<image> 4 5", "6 7 8"]


@pytest.mark.parametrize("form", ["llava", "images beside", "parts"])
@pytest.mark.parametrize("template", [None, CHAT])
def test_chats_with_images_are_read_by_both_towers(form, template, tmp_path):
    model, processor = make_model("llava"), make_processor("llava")
    processor.chat_template = template
    texts = write_chats(tmp_path / "chats", form)
    how = {"corpus": str(tmp_path / "chats/chats.jsonl"), "processor": processor}
    run = anisoscope.measure(model, tokens="all", sample=0, **how)
    calls = []
    for i, text in enumerate(texts):
        given = (
            {"images": [[Image.open(tmp_path / "chats" / f"{i}.png")]]}
            if "<image>" in text
            else {}
        )
        made = processor(text=[text], return_tensors="pt", **given)
        if template:  # which begins the text by itself, and writes no end
            made = {name: x[:, :-1] if x.dim() == 2 else x for name, x in made.items()}
        calls.append(in_float64(made))
    check_against_hooks(run, model, {"decoder": BLOCKS["llava"][1]}, calls, atol=1e-9)
    assert (
        run.manifest["corpus"]["kind"] == "chats"
        and run.manifest["corpus"]["images"] == 2
    )


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (
            {
                "messages": [{"role": "user", "content": "<image><image>1"}],
                "images": ["0.png"],
            },
            "more marks",
        ),
        (
            {
                "messages": [{"role": "user", "content": "<image>1"}],
                "images": ["0.png", "1.png"],
            },
            "1 images without a mark",
        ),
        (
            {
                "messages": [{"role": "user", "content": "<image>1"}],
                "images": ["9.png"],
            },
            r"no file 9\.png",
        ),
        (
            {
                "messages": [{"role": "user", "content": "<image>1"}],
                "images": ["https://a.b/c.png"],
            },
            "not downloaded",
        ),
        (
            {
                "messages": [{"role": "user", "content": [{"type": "video"}]}],
                "images": ["0.png"],
            },
            "type video",
        ),
        ({"messages": [], "images": ["0.png"]}, "no messages"),
        (
            {
                "messages": [{"role": "user", "content": "<image>1"}],
                "images": ["text.png"],
            },
            "it is no image",
        ),
    ],
)
def test_a_faulty_chat_is_named_with_its_line(row, says, tmp_path):
    write_chats(tmp_path / "chats", "parts")
    (tmp_path / "chats/text.png").write_text("a text")
    with (tmp_path / "chats/chats.jsonl").open("a") as file:
        file.write("\n" + json.dumps(row))
    with pytest.raises(CorpusError, match=f"line 4 .*{says}"):
        open_image_texts(str(tmp_path / "chats/chats.jsonl"))


def test_a_processor_that_cannot_be_loaded_is_said_with_the_reason(tmp_path):
    """Qwen-VL's wants torchvision: the folder was refused as if the model read texts alone."""
    save_images(tmp_path / "images", 2)
    make_model("llava").save_pretrained(tmp_path / "model")
    make_processor("llava").save_pretrained(tmp_path / "model")
    file = tmp_path / "model/processor_config.json"
    file.write_text(file.read_text().replace("LlavaProcessor", "ProcessorOfMine"))
    with pytest.raises(
        UsageError, match=r"processor of images and texts.*ProcessorOfMine|torchvision"
    ):
        anisoscope.measure(str(tmp_path / "model"), corpus=str(tmp_path / "images"))


def test_options_of_texts_alone_are_refused_with_images(tmp_path):
    save_images(tmp_path / "images", 3)
    how = {"corpus": str(tmp_path / "images"), "processor": make_processor("llava")}
    with pytest.raises(UsageError, match="--max-length 7"):
        anisoscope.measure(make_model("llava"), max_length=7, **how)


def test_a_folder_of_texts_with_a_few_pictures_is_no_corpus_of_images(tmp_path):
    save_images(tmp_path / "images", 2)
    assert holds_image_texts(str(tmp_path / "images"))
    for i in range(5):
        (tmp_path / "images" / f"chapter-{i}.txt").write_text("1 2 3")
    assert not holds_image_texts(str(tmp_path / "images"))


# ---- both towers of CLIP; the modality gap


def gap_by_hand(images, texts):
    """Return the modality gap of vectors [vector, dim] of images and of texts, over all pairs."""
    images, texts = (torch.nn.functional.normalize(x, dim=-1) for x in (images, texts))
    a, b = images.mean(0), texts.mean(0)
    found = {
        "distance": (a - b).norm(),
        "cosine": torch.cosine_similarity(a, b, 0),
        "across": (images @ texts.T).mean(),
    }
    for name, x in (("image", images), ("text", texts)):
        found[name] = (x @ x.T)[~torch.eye(len(x), dtype=torch.bool)].mean()
    return {f"modality_gap.{name}": float(value) for name, value in found.items()}


@pytest.mark.parametrize("kind", ["llava", "gemma3"])
def test_the_modality_gap_of_each_layer_is_that_of_its_tokens(kind, tmp_path):
    model, processor = make_model(kind), make_processor(kind)
    captions = save_images(tmp_path / "images", 5)
    how = {
        "corpus": str(tmp_path / "images"),
        "processor": processor,
        "metrics": "modality_gap",
    }
    run = anisoscope.measure(model, **how)
    assert set(run.records["stack"]) == {
        find_stack(model)
    }  # the other tower has no texts
    caught = [[] for _ in range(3)]
    marks = []
    for i, caption in enumerate(captions):
        mark = "<start>" if kind == "gemma3" else "<image>"
        picture = Image.open(tmp_path / "images" / f"{i}.png")
        made = processor(
            text=[f"{mark}{caption}"], images=[[picture]], return_tensors="pt"
        )
        marks.append(made["input_ids"][0])
        layers = catch_by_hand(
            model, in_float64(made), model.get_submodule("language_model.layers")
        )
        for layer, x in enumerate(layers):
            caught[layer].append(x)
    ids = torch.cat(marks)
    is_text = ~torch.isin(
        ids, torch.tensor([IMAGE_ID, *processor.tokenizer.all_special_ids])
    )
    for layer, parts in enumerate(caught):
        x = torch.cat(parts)
        rows = (
            run.records.query(f"site == 'hidden' and layer == {layer}")
            .set_index("metric")["value"]
            .to_dict()
        )
        assert rows == pytest.approx(
            gap_by_hand(x[ids == IMAGE_ID], x[is_text]), abs=1e-9
        )


def test_both_towers_of_clip_are_measured_in_one_run(tmp_path):
    """Each tower alone was measured; a whole CLIP was refused."""
    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 40,
    }
    vision = {**sizes, "num_hidden_layers": 3, "image_size": 32, "patch_size": 8}
    torch.manual_seed(0)
    ends = {"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}
    config = transformers.CLIPConfig(
        text_config={**sizes, "vocab_size": 80, **ends},
        vision_config=vision,
        projection_dim=24,
    )
    model = transformers.CLIPModel(config).double().eval()
    images = transformers.CLIPImageProcessorPil(
        size={"shortest_edge": 32}, crop_size=32
    )
    tokenizer = transformers.BertTokenizerFast(
        vocab={word: i for i, word in enumerate(WORDS)}
    )
    processor = transformers.CLIPProcessor(images, tokenizer)
    model.save_pretrained(tmp_path / "model")
    processor.save_pretrained(tmp_path / "model")
    captions = save_images(tmp_path / "images", 6)
    how = {
        "corpus": str(tmp_path / "images"),
        "tower": "both",
        "dtype": "float64",
        "tokens": "all",
        "sample": 0,
    }
    names = "mean_cosine,modality_gap"
    run = anisoscope.measure(str(tmp_path / "model"), metrics=names, **how)
    pictures = [Image.open(tmp_path / "images" / f"{i}.png") for i in range(6)]
    calls = [
        in_float64(processor(text=[caption], images=[picture], return_tensors="pt"))
        for caption, picture in zip(captions, pictures, strict=True)
    ]
    for call in calls:
        call.pop("token_type_ids", None)
    paths = {
        "vision": "vision_model.encoder.layers",
        find_stack(model): "text_model.encoder.layers",
    }
    check_against_hooks(run, model, paths, calls, atol=1e-9)
    with torch.no_grad():
        outputs = [model(**call) for call in calls]
    made = [
        torch.cat([getattr(output, f"{side}_embeds") for output in outputs])
        for side in ("image", "text")
    ]
    drawn = values_drawn(run.plot("modality-gap"))  # of one place, so that bars show it
    assert {GAP[name]: value for name, (value,) in drawn.items()} == pytest.approx(
        {
            name: value
            for name, value in gap_by_hand(*made).items()
            if name != "modality_gap.cosine"
        },
        abs=1e-9,
    )
    page = run.report(tmp_path / "page").read_text("utf-8")
    assert "at the joint vectors" in page and "joint final norm" not in page
    joint = run.records.query(
        "stack == 'joint' and metric != 'mean_cosine' and component.isna()"
    )
    joint = (
        joint[joint["metric"].str.startswith("modality_gap")]
        .set_index("metric")["value"]
        .to_dict()
    )
    assert joint == pytest.approx(gap_by_hand(*made), abs=1e-9)
    with pytest.raises(UsageError, match="--tower both"):
        anisoscope.measure(str(tmp_path / "model"), corpus=str(tmp_path / "images"))


def values_drawn(chart):
    """Return the values of a chart's data, by series."""
    (rows,) = (
        data
        for data in chart.to_dict()["datasets"].values()
        if data and "value" in data[0]
    )
    found = {}
    for row in rows:
        found.setdefault(row["series"], []).append(row["value"])
    return found


GAP = {
    "gap (distance)": "modality_gap.distance",
    "cosine of two images": "modality_gap.image",
    "cosine of two texts": "modality_gap.text",
    "cosine of an image and a text": "modality_gap.across",
}


def test_the_modality_gap_is_a_figure_of_the_page(tmp_path):
    """It was a number of the records that no page showed."""
    save_images(tmp_path / "images", 5)
    how = {
        "corpus": str(tmp_path / "images"),
        "processor": make_processor("llava"),
        "sample": 0,
    }
    run = anisoscope.measure(
        make_model("llava"), metrics="mean_cosine,modality_gap", **how
    )
    drawn = values_drawn(run.plot("modality-gap"))
    for series, metric in GAP.items():
        rows = run.records.query(f"metric == '{metric}'").sort_values(["layer", "site"])
        assert sorted(drawn[series]) == pytest.approx(sorted(rows["value"]))
    page = run.report(tmp_path / "page").read_text("utf-8")
    assert (
        "How far are images from texts?" in page and "of two tokens of images" in page
    )
    assert "“vision” is the part of the model that reads images" in page
    most = (
        run.records.query("metric == 'mean_cosine'").groupby("stack")["n_vectors"].max()
    )
    assert (
        f"{most['vision']} vision, {most['decoder']} decoder" in page
    )  # one number was that of either
    without = anisoscope.measure(make_model("llava"), metrics="mean_cosine", **how)
    with pytest.raises(UsageError, match="modality-gap"):
        without.plot("modality-gap")


def test_the_table_and_the_progress_of_a_gap_are_read_at_once(tmp_path):
    """Progress said 181/8 images, and the table wrote the metric's name over every column."""
    from anisoscope.cli.printed_tables import (
        tabulate_named_metrics,
        tabulate_opt_in_metrics,
    )
    from anisoscope.data.image_texts import ImageTextPlan
    from anisoscope.measure.loop import run_pass
    from anisoscope.measure.settings import Settings

    save_images(tmp_path / "images", 5)
    model, processor = make_model("llava"), make_processor("llava")
    plan = ImageTextPlan(
        open_image_texts(str(tmp_path / "images")),
        processor,
        stack=find_stack(model),
        batch_tokens=2 * 30,
    )
    seen = []
    settings = Settings(metrics=("mean_cosine", "modality_gap"), sample=0)
    run_pass(model, plan, settings, progress=lambda *counts: seen.append(counts))
    assert len(plan) > 1 and [total for _, total in seen] == [5] * len(plan)
    assert seen[-1] == (5, 5) and sorted(seen) == seen
    how = {"corpus": str(tmp_path / "images"), "processor": processor, "sample": 0}
    run = anisoscope.measure(model, metrics="mean_cosine,modality_gap", **how)
    (table,) = tabulate_opt_in_metrics(run.records)
    assert table.head == (
        "modality gap: layer",
        "distance",
        "cosine",
        "image",
        "text",
        "across",
    )
    alone = run.records[run.records["metric"].str.startswith("modality_gap.")]
    assert [shown.head for shown in tabulate_named_metrics(alone)] == [table.head]
    both = run.records[
        run.records["component"].isna()
        & ~run.records["metric"].eq("mean_cosine.isotropic_q95")
    ]
    assert "modality_gap.image" in tabulate_named_metrics(both)[0].head


@pytest.mark.parametrize("trust", [True, False])
def test_code_of_a_processor_runs_only_where_it_is_trusted(monkeypatch, trust):
    """Without it a model whose processor brings code would be measured on texts alone."""
    asked = []
    monkeypatch.setattr(
        transformers.AutoProcessor,
        "from_pretrained",
        lambda path, **how: asked.append((path, how)),
    )
    both = SimpleNamespace(input_modalities=("image", "text"))
    assert "reads no images" in processor_of_images_and_texts(both, "folder", trust)
    assert asked == [("folder", {"trust_remote_code": trust})]
    assert (
        processor_of_images_and_texts(
            SimpleNamespace(input_modalities=("text",)), "folder", trust
        )
        is None
    )
    assert len(asked) == 1
