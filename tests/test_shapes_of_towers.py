"""Towers of other shapes than LLaVA's: tiles (InternVL), maps (Florence-2), texts without a mask (SigLIP)."""

import json

import numpy as np
import pytest
import torch
import transformers
from sweep import build
from test_blocks_of_others import catch_by_hand, in_rows
from test_images_in_texts import in_float64, make_processor, save_images
from tiny_configs import tiny_config

import anisoscope
from anisoscope.capture import capture

LONGEST = 12


def catch_layers(model, inputs, blocks):
    """Return the vectors [token, dim] that enter the first block and leave each, maps as one vector per position."""
    return [in_rows(x).flatten(0, 1) for x in catch_by_hand(model, inputs, blocks)]


def mean_cosine(x):
    """Return the mean cosine of all pairs of vectors [vector, dim]."""
    unit = torch.nn.functional.normalize(x, dim=-1)
    return float((unit.sum(0).square().sum() - len(x)) / (len(x) * (len(x) - 1)))


def check_stack(run, stack, layers):
    """Compare A and the number of vectors of every layer of a stack with vectors [vector, dim] by hand."""
    rows = run.records.query(
        f"stack == '{stack}' and site == 'hidden' and metric == 'mean_cosine'"
    ).sort_values("layer")
    assert len(rows) == len(layers) > 2
    for found, x in zip(rows.to_dict("records"), layers, strict=True):
        assert found["value"] == pytest.approx(mean_cosine(x), abs=1e-9)
        assert found["n_vectors"] == len(x)


def internvl():
    """Return a tiny InternVL and a text with an image of three tiles, of 16 patches that become 4 tokens each."""
    config = tiny_config("internvl", 0)
    config.vision_config.patch_size = [8, 8]
    ids = torch.cat(
        [torch.full((1, 12), config.image_token_id), torch.arange(5, 14).unsqueeze(0)],
        1,
    )
    inputs = {
        "pixel_values": torch.randn(3, 3, 32, 32, dtype=torch.float64),
        "input_ids": ids,
    }
    stacks = {
        "vision": ("vision_tower.encoder.layer",),
        "decoder": ("language_model.layers",),
    }
    return build(config), inputs | {"attention_mask": torch.ones_like(ids)}, stacks


def florence2():
    """Return a tiny Florence-2, whose tower passes on maps of four sizes, and two texts with an image each."""
    config = tiny_config("florence2", 0)
    ids = torch.cat(
        [torch.full((2, 5), config.image_token_id), torch.arange(5, 23).view(2, 9)], 1
    )
    inputs = {
        "pixel_values": torch.randn(2, 3, 64, 64, dtype=torch.float64),
        "input_ids": ids,
    }
    inputs |= {
        "attention_mask": torch.ones_like(ids),
        "decoder_input_ids": torch.arange(5, 17).view(2, 6),
    }
    stacks = {"vision": tuple(f"vision_tower.blocks.{stage}" for stage in range(4))}
    stacks |= {
        "encoder": ("language_model.encoder.layers",),
        "decoder": ("language_model.decoder.layers",),
    }
    return build(config), inputs, stacks


@pytest.mark.parametrize("make", [internvl, florence2])
def test_every_layer_of_every_tower_is_what_hooks_see(make):
    torch.manual_seed(0)
    model, inputs, stacks = make()
    run = anisoscope.measure(model, inputs, tokens="all", sample=0)
    assert set(run.records["stack"].dropna()) == {*stacks}
    for stack, paths in stacks.items():
        blocks = [block for path in paths for block in model.get_submodule(path)]
        check_stack(run, stack, catch_layers(model, inputs, blocks))


def test_each_tile_begins_with_a_class_token():
    """Of an image in three tiles, three positions are no patches."""
    torch.manual_seed(0)
    model, inputs, stacks = internvl()
    run = anisoscope.measure(model, inputs, tokens="content", sample=0)
    layers = catch_layers(model, inputs, list(model.get_submodule(stacks["vision"][0])))
    check_stack(run, "vision", [x.view(3, 17, -1)[:, 1:].flatten(0, 1) for x in layers])


# ---- SigLIP: its texts are padded to its longest, and it reads the padding


def save_siglip(folder):
    """Save a tiny SigLIP and its processor, whose padding is its end of a text. Returns both."""
    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 40,
    }
    torch.manual_seed(0)
    text = {
        **sizes,
        "vocab_size": 80,
        "max_position_embeddings": LONGEST,
        "projection_size": 32,
    }
    vision = {**sizes, "num_hidden_layers": 3, "image_size": 32, "patch_size": 8}
    model = build(transformers.SiglipConfig(text_config=text, vision_config=vision))
    tokenizer = make_processor("paligemma").tokenizer
    tokenizer.model_max_length = LONGEST
    tokenizer.pad_token = tokenizer.eos_token = "[SEP]"
    images = transformers.SiglipImageProcessorPil(size={"height": 32, "width": 32})
    processor = transformers.SiglipProcessor(images, tokenizer)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    file = folder / "tokenizer_config.json"
    file.write_text(
        json.dumps(json.loads(file.read_text()) | {"model_input_names": ["input_ids"]})
    )
    return model, transformers.AutoProcessor.from_pretrained(folder)


@pytest.mark.parametrize("tokens", ["all", "content"])
def test_padding_that_siglip_reads_is_a_special_token(tokens, tmp_path):
    """Its processor gives no mask: texts end with as many ends of a text as fit, and the vector is read at the last."""
    model, processor = save_siglip(tmp_path / "model")
    captions = save_images(tmp_path / "images", 5)
    how = {
        "corpus": str(tmp_path / "images"),
        "tower": "both",
        "dtype": "float64",
        "tokens": tokens,
        "sample": 0,
    }
    run = anisoscope.measure(str(tmp_path / "model"), **how)
    pictures = [
        transformers.image_utils.load_image(str(tmp_path / "images" / f"{i}.png"))
        for i in range(5)
    ]
    made = processor(
        text=captions,
        images=pictures,
        padding="max_length",
        truncation=True,
        return_tensors="pt",
    )
    assert "attention_mask" not in made and made["input_ids"].shape == (5, LONGEST)
    inputs = in_float64(dict(made))
    check_stack(
        run,
        "vision",
        catch_layers(model, inputs, list(model.vision_model.encoder.layers)),
    )
    special = torch.isin(
        made["input_ids"], torch.tensor(processor.tokenizer.all_special_ids)
    ).flatten()
    counts = np.array([len(caption.split()) for caption in captions])
    assert int((~special).sum()) == counts.sum()  # padding and both ends are special
    layers = catch_layers(model, inputs, list(model.text_model.encoder.layers))
    check_stack(
        run, "encoder", layers if tokens == "all" else [x[~special] for x in layers]
    )


def test_the_vector_of_a_text_of_siglip_is_that_of_its_last_padding(tmp_path):
    """Padded only to the longest text of a batch, its vectors are others: texts are read as in training."""
    model, processor = save_siglip(tmp_path / "model")
    captions = save_images(tmp_path / "images", 5)
    how = {
        "corpus": str(tmp_path / "images"),
        "tower": "both",
        "dtype": "float64",
        "sample": 0,
    }
    run = anisoscope.measure(str(tmp_path / "model"), metrics="modality_gap", **how)
    joint = run.records.query("stack == 'joint'").set_index("metric")["value"]
    ids = processor(
        text=captions, padding="max_length", truncation=True, return_tensors="pt"
    )["input_ids"]
    with torch.no_grad():
        texts = torch.nn.functional.normalize(
            model.get_text_features(ids).pooler_output, dim=-1
        )
    pairs = (texts @ texts.T)[~torch.eye(5, dtype=torch.bool)]
    assert joint["modality_gap.text"] == pytest.approx(float(pairs.mean()), abs=1e-9)
    with capture(model, ("hidden",)) as tap, torch.no_grad():
        model.get_text_features(ids)
    assert not [name for name in tap.sites if name.startswith("vision")]
