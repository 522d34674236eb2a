"""Models of several towers on texts with images: each stack against hooks by hand."""

import pytest
import torch
from sweep import build
from tiny_configs import tiny_config

import anisoscope
from anisoscope.errors import MeasureError

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
        inputs["pixel_values"] = torch.randn(MARKS * sequences, width, generator=g, dtype=torch.float64)
        inputs["image_grid_thw"] = torch.tensor([[1, 4, 4]] * sequences)
        inputs["mm_token_type_ids"] = (ids == mark).long()
    else:
        side = config.vision_config.image_size
        inputs["pixel_values"] = torch.randn(sequences, 3, side, side, generator=g, dtype=torch.float64)
    if config.model_type == "paligemma":
        inputs["token_type_ids"] = (ids == mark).long()
    return {"pixel_values": inputs.pop("pixel_values"), **inputs}  # the text need not come first


def catch_by_hand(model, inputs, blocks):
    """Return the vectors [token, dim] that enter the first block and leave each, of all sequences together."""
    caught = []

    def keep(x):
        x = x[0] if isinstance(x, tuple) else x
        caught.append(x.reshape(-1, x.shape[-1]))

    def enter(_module, args, kwargs):
        keep(args[0] if args else kwargs["hidden_states"])

    hooks = [blocks[0].register_forward_pre_hook(enter, with_kwargs=True)]
    hooks += [block.register_forward_hook(lambda _m, _a, output: keep(output)) for block in blocks]
    with torch.no_grad():
        model(**inputs)
    for hook in hooks:
        hook.remove()
    return caught


@pytest.mark.parametrize("model_type", BLOCKS)
def test_each_tower_is_a_stack_of_its_own_with_its_own_tokens(model_type):
    """Qwen-VL hands the patches of all images on in one row: a unit too many for each, and a crash."""
    model = build(tiny_config(model_type, 0))
    batches = [inputs_for(model, 1)] if hasattr(model, "visual") else [inputs_for(model, 2)]
    run = anisoscope.measure(model, batches, tokens="all", sample=0)
    vision, language, stack = BLOCKS[model_type]
    records = run.records[(run.records["site"] == "hidden") & (run.records["metric"] == "mean_cosine")]
    for name, path in (("vision", vision), (stack, language)):
        caught = catch_by_hand(model, batches[0], model.get_submodule(path))
        for layer, x in enumerate(caught):
            (row,) = records[(records["stack"] == name) & (records["layer"] == layer)].to_dict("records")
            unit = torch.nn.functional.normalize(x, dim=-1).sum(0)
            expected = float((unit.square().sum() - len(x)) / (len(x) * (len(x) - 1)))
            assert row["value"] == pytest.approx(expected, abs=1e-9)
            assert row["n_vectors"] == len(x)
    heads = run.records[run.records["site"] == "attention"]
    assert {(s, k) for s, k in zip(heads["stack"], heads["layer"], strict=True)} == {
        (name, layer) for name in ("vision", stack) for layer in (1, 2)
    }
    assert (stack, "final") in set(zip(run.records["stack"], run.records["site"], strict=True))


def test_patches_of_several_sequences_in_one_row_are_refused_with_the_cure():
    model = build(tiny_config("qwen2_vl", 0))
    with pytest.raises(MeasureError, match="one sequence a batch"):
        anisoscope.measure(model, inputs_for(model, 2))


def test_images_of_one_text_do_not_count_in_the_texts_after_it():
    """A class token stands before each image's patches, however many images the text before had."""
    model = build(tiny_config("llava", 0))
    one, two = inputs_for(model, 1), inputs_for(model, 2)
    several = {name: two[name].reshape(1, -1) for name in ("input_ids", "attention_mask")}
    several["pixel_values"] = two["pixel_values"]
    run = anisoscope.measure(model, [several, one, two], tokens="content", sample=0)
    rows = run.records.query("stack == 'vision' and site == 'hidden' and metric == 'mean_cosine' and layer == 1")
    images = 2 + 1 + 2
    assert rows["n_vectors"].tolist() == [images * MARKS]
