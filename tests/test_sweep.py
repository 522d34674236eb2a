"""A drawn part of `make sweep`: model types of each kind, tiny, through the default run, against the model's own."""

from functools import partial

import pytest
import torch
from families import FAMILIES as SEEN
from sweep import kept, look_at, main
from tiny_models import ARCHITECTURES
from torch import nn
from transformers import CLIPConfig, CLIPModel, LlavaConfig, LlavaModel

import anisoscope
from anisoscope.batch import Batch, Stream
from anisoscope.models.blocks import TokenPositions, find_blocks, find_stack
from anisoscope.models.families import FAMILIES

RUN_ELSEWHERE = {
    tiny.family or name for name, tiny in ARCHITECTURES.items()
} | SEEN.keys()
"""Families of which test_architectures.py or test_families.py runs a tiny model, against what it returns."""
ROWS = sorted(FAMILIES.keys() - RUN_ELSEWHERE)
"""The other families with a row of their own: a new row is run here with nothing more than the row."""
DRAWN = {
    "llama": "a decoder",
    "t5": "two stacks",
    "clip": "towers",
    "owlvit": "text alone",
    "llava": "a tower before a decoder",
    "parakeet_ctc": "frames",
    "speech_to_text": "frames into two stacks",
    "axk2": "latent attention",
    "canine": "three stacks",
    "gpt_oss": "sinks",
    "granite_swa": "sinks that the weights returned leave out",
    "nllb-moe": "a module called cross_attention",
    "timesfm": "a scale for each dimension",
    "zaya": "queries, keys and values from one projection, as a tuple",
    "chameleon": "norms of all tokens in a row; a tokenizer of images, made of blocks",
    "informer": "queries drawn by chance",
    "qwen2_5_vl": "a tower that declares what the whole reads, before the language model",
    "granite_speech": "an encoder of sound that is no half of an encoder-decoder",
    "blip-2": "queries that attend to a tower of which no corpus speaks",
    "idefics": "a tower without a stream, in cross-attention of a decoder",
    "speecht5": "values that are no samples, and no count of frames",
    "pixtral": "patches of all images in one row",
    "hunyuan_vl_vision": "a grid that says how many images the patches are of",
}
"""Others of each kind, and what was once missed, crashed or wrong of them."""


@pytest.mark.parametrize("model_type", [*ROWS, *DRAWN])
def test_a_model_type_is_what_the_table_says(model_type, monkeypatch):
    """Hidden states, heads and weights are the model's own, of as many layers as the page has; or it says what not."""
    if model_type in ROWS:  # intervals are those of the others
        few = partial(anisoscope.measure, sample=0, groups=2)
        monkeypatch.setattr(anisoscope, "measure", few)
    assert look_at(model_type) == kept()[model_type]


WITH_WEIGHTS = (
    "gpt_oss",
    "granite_swa",
    "nllb-moe",
    "ibert",
    "timesfm",
    "fsmt",
    "zaya",
    "informer",
    "glpn",
)
TOWERS = (
    "qwen2_5_vl",
    "granite_speech",
    "chameleon",
    "blip-2",
    "idefics",
    "seamless_m4t",
)


def test_the_table_has_all_that_odd_model_types_have():
    """What `make sweep` writes is what the tests above compare with: so much of it may never become less."""
    table = kept()
    for name in ROWS:
        assert table[name].status in ("measured", "partly"), name
        assert (
            "hidden states" in table[name].compared
            or table[name].compared == "nothing returned"
        ), name
        assert "hidden_states: of a part" not in table[name].reason, name
    for name in DRAWN:
        assert table[name].status == "measured", name
    for name in WITH_WEIGHTS:
        seen, blocks = table[name].attention.split(" of ")
        assert "weights" in table[name].compared and seen == blocks, name
    for name in TOWERS:  # the language model behind a tower has its own layers
        assert (
            "weights" in table[name].compared and "decoder 3" in table[name].hidden
        ), name
    # the encoder fills up its input to whole windows, and takes off again what it filled in
    assert "Attention: (4, 9)" not in table["led"].reason
    for name in ("led", "longformer", "pegasus_x"):
        assert (
            "encoder 3" in table[name].hidden and "of a part" not in table[name].reason
        ), name


def test_a_comparison_can_fail(monkeypatch):
    """Hidden states of another layer are seen as wrong."""
    import sweep

    own = sweep.own_of

    def shifted(model, inputs, plain):
        found = own(model, inputs, plain)
        return found._replace(
            hidden={
                name: [x * 1.01 for x in states]
                for name, states in found.hidden.items()
            }
        )

    monkeypatch.setattr(sweep, "own_of", shifted)
    assert look_at("llama").status == "wrong"


def test_one_sequence_a_batch_is_of_one_sequence_and_ends():
    import tiny_inputs

    model = clip()
    with tiny_inputs.one_sequence():
        assert len(next(tiny_inputs.candidates(model))["input_ids"]) == 1
    assert len(next(tiny_inputs.candidates(model))["input_ids"]) == 4


def test_the_page_is_made_from_the_table_of_all_types():
    import sweep

    rows = sweep.kept()
    assert len(rows) > 600
    assert (
        len(rows.keys() & set(sweep.model_types())) > 500
    )  # of another version of transformers some differ
    assert {row.status for row in rows.values()} <= set(sweep.WHAT_BECAME)
    assert all(row.reason for row in rows.values() if row.status != "measured")
    assert sweep.PAGE.read_text("utf-8") == sweep.page()


SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
}


def clip():
    text = SIZES | {"vocab_size": 100, "num_hidden_layers": 3}
    return CLIPModel(
        CLIPConfig(
            text_config=text, vision_config=SIZES | {"image_size": 32, "patch_size": 8}
        )
    )


def test_a_tower_is_a_stack_of_its_own():
    model = clip()
    assert {stack: len(blocks) for stack, blocks in find_blocks(model).items()} == {
        "encoder": 3,
        "vision": 2,
    }
    assert {
        stack: len(blocks) for stack, blocks in find_blocks(model.vision_model).items()
    } == {"encoder": 2}


@pytest.mark.parametrize("reads", [("image",), ("image", "video"), "video"])
def test_a_tower_that_reads_videos_is_one_of_images(reads):
    model = clip()
    model.frames = model.vision_model  # a name that says nothing
    del model.vision_model
    model.frames.input_modalities = reads
    assert {stack: len(blocks) for stack, blocks in find_blocks(model).items()} == {
        "encoder": 3,
        "vision": 2,
    }


def test_the_class_token_of_a_tower_is_special_and_no_token_of_the_text():
    from anisoscope.axes import Site

    positions = TokenPositions(clip())
    assert positions.specials(Site("vision", 1, "hidden")) == 1
    assert positions.specials(Site("encoder", 1, "hidden")) == 0


def test_the_text_of_a_model_with_a_tower_is_read_by_its_language_model():
    text = SIZES | {"model_type": "llama", "vocab_size": 100, "num_key_value_heads": 2}
    vision = SIZES | {
        "model_type": "clip_vision_model",
        "image_size": 32,
        "patch_size": 8,
    }
    model = LlavaModel(LlavaConfig(text_config=text, vision_config=vision))
    assert find_stack(model) == "decoder" and find_blocks(model).keys() == {
        "decoder",
        "vision",
    }


def test_frames_are_counted_by_the_encoder_and_not_by_what_it_stands_in():
    """The innermost model that reads frames: one around it may have inherited the method of another."""

    class Encoder(nn.Module):
        main_input_name = "input_features"

        def _get_subsampling_output_length(self, lengths):
            return (lengths + 3) // 4

    class Whole(nn.Module):
        main_input_name = "input_features"

        def __init__(self):
            super().__init__()
            self.encoder = Encoder()

        def _get_feat_extract_output_lengths(self, lengths):
            return lengths // 100

    mask = torch.arange(32) < torch.tensor([[32], [9]])
    frames = Stream(mask, torch.zeros_like(mask), torch.tensor([0, 64]))
    made = TokenPositions(Whole()).streams(
        Batch({}, torch.arange(2), {"frames": frames})
    )["encoder"]
    assert (
        made.mask.shape == (2, 8)
        and made.mask.sum(1).tolist() == [8, 3]
        and made.start.tolist() == [0, 16]
    )


@pytest.mark.parametrize("part", ["", "x", "1", "0/4", "5/4", "1/0", "1/2/3"])
def test_a_share_that_is_none_is_told_in_one_sentence(part, capsys):
    """It ended in a traceback."""
    with pytest.raises(SystemExit) as ended:
        main([f"--part={part}"])
    assert ended.value.code == 2
    assert (
        f"expected I/N with 1 ≤ I ≤ N, such as 1/4; got {part!r}"
        in capsys.readouterr().err
    )


def test_a_reason_names_no_path_of_the_machine():
    import sweep

    told = sweep._said(ValueError("no Model in <module 'a.b' from '/home/me/a/b.py'>"))
    assert told == "ValueError: no Model in <module 'a.b'>"
