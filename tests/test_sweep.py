"""A drawn part of `make sweep`: model types of each kind, tiny, through the default run, against the model's own."""

import pytest
import torch
from sweep import look_at
from torch import nn
from transformers import CLIPConfig, CLIPModel, LlavaConfig, LlavaModel

from anisoscope.batch import Batch, Stream
from anisoscope.models.blocks import Layout, find_blocks, find_stack

DRAWN = (
    "llama",
    "gpt_oss",
    "mamba",
    "t5",
    "clip",
    "owlvit",
    "llava",
    "parakeet_ctc",
    "speech_to_text",
    "axk2",
    "poolformer",
    "canine",
)
"""A decoder, sinks, no attention, two stacks, towers, text alone, frames, latent attention, stages, three stacks."""
WITH_WEIGHTS = {
    "granite_swa": "sinks that the weights returned leave out",
    "nllb-moe": "a module called cross_attention",
    "ibert": "a softmax in a module of its own",
    "timesfm": "a scale for each dimension",
    "fsmt": "projections of [token, sequence, dim]",
    "zaya": "queries, keys and values from one projection, as a tuple",
    "chameleon": "norms of all tokens in a row",
    "informer": "queries drawn by chance",
    "glpn": "stages without a class",
}
"""What was once missed, crashed or wrong, and what is odd about it."""


@pytest.mark.parametrize("model_type", DRAWN)
def test_the_default_run_says_what_the_model_returns(model_type):
    row = look_at(model_type)
    assert row.status == "measured", row
    assert "hidden states" in row.compared


@pytest.mark.parametrize("model_type", WITH_WEIGHTS)
def test_heads_of_odd_families_have_the_weights_that_the_model_returns(model_type):
    row = look_at(model_type)
    assert row.status == "measured" and "weights" in row.compared, row
    seen, blocks = row.attention.split(" of ")
    assert seen == blocks, row


TOWERS = {
    "qwen2_5_vl": "a tower that declares what the whole reads, before the language model",
    "granite_speech": "an encoder of sound that is no half of an encoder-decoder",
    "chameleon": "a tokenizer of images, made of blocks",
    "blip-2": "queries that attend to a tower of which no corpus speaks",
    "idefics": "a tower without a stream, in cross-attention of a decoder",
    "seamless_m4t": "encoders and decoders of two modalities each",
}
"""Models of a tower and a language model, of which much was once left out, and why."""


@pytest.mark.parametrize("model_type", TOWERS)
def test_the_language_model_behind_a_tower_has_its_own_layers(model_type):
    row = look_at(model_type)
    assert row.status == "measured" and "decoder 3" in row.hidden, row
    assert row.attention != "none" and "weights" in row.compared, row


def test_values_that_are_no_samples_are_read_as_they_are():
    """It asked for a count of frames that a model without convolutions does not have."""
    assert look_at("speecht5").status == "measured"


def test_cross_attention_reads_no_more_than_its_encoder_passes_on():
    """The encoder fills up its input to whole windows, and takes off again what it filled in."""
    assert "Attention: (4, 9)" not in look_at("led").reason


@pytest.mark.parametrize("model_type", ["longformer", "pegasus_x"])
def test_an_encoder_that_fills_up_its_input_is_measured_where_the_input_is_real(model_type):
    row = look_at(model_type)
    assert row.status in ("measured", "partly") and "encoder 3" in row.hidden, row
    assert "hidden states" in row.compared and "of a part" not in row.reason, row


ROWS = (
    *("cpmant", "gpt_neox_japanese", "groupvit", "led", "mgp-str", "mobilenet_v1", "mobilenet_v2"),
    *(
        "pvt",
        "regnet",
        "table-transformer",
        "falcon_mamba",
        "bit",
        "levit",
        "lxmert",
        "perceiver",
        "decision_transformer",
    ),
    *("patchtst", "patchtsmixer", "hgnet_v2", "swin", "sam3_lite_text_text_model"),
    *("donut-swin", "maskformer-swin", "mobilevitv2", "pvt_v2", "rwkv", "seamless_m4t", "seamless_m4t_v2"),
    *("swin2sr", "swinv2"),
)
"""Families with a row of their own and without another test."""


@pytest.mark.parametrize("model_type", ROWS)
def test_blocks_that_a_row_names_are_those_of_the_hidden_states(model_type):
    row = look_at(model_type)
    assert row.status in ("measured", "partly", "refused"), row
    if row.status != "refused":
        assert "hidden states" in row.compared or row.compared == "nothing returned"
        assert "hidden_states: of a part" not in row.reason, row


def test_a_comparison_can_fail(monkeypatch):
    """Hidden states of another layer are seen as wrong."""
    import sweep

    own = sweep.own_of

    def shifted(model, inputs, plain):
        found = own(model, inputs, plain)
        return found._replace(hidden={name: [x * 1.01 for x in states] for name, states in found.hidden.items()})

    monkeypatch.setattr(sweep, "own_of", shifted)
    assert look_at("llama").status == "wrong"


def test_the_page_is_made_from_the_table_of_all_types():
    import sweep

    rows = sweep.kept()
    assert len(rows) > 600
    assert len(rows.keys() & set(sweep.model_types())) > 500  # of another version of transformers some differ
    assert {row.status for row in rows.values()} <= set(sweep.WHAT_BECAME)
    assert all(row.reason for row in rows.values() if row.status != "measured")
    assert sweep.PAGE.read_text("utf-8") == sweep.page()


SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}


def clip():
    text = SIZES | {"vocab_size": 100, "num_hidden_layers": 3}
    return CLIPModel(CLIPConfig(text_config=text, vision_config=SIZES | {"image_size": 32, "patch_size": 8}))


def test_a_tower_is_a_stack_of_its_own():
    model = clip()
    assert {stack: len(blocks) for stack, blocks in find_blocks(model).items()} == {"encoder": 3, "vision": 2}
    assert {stack: len(blocks) for stack, blocks in find_blocks(model.vision_model).items()} == {"encoder": 2}


def test_the_class_token_of_a_tower_is_special_and_no_token_of_the_text():
    from anisoscope.axes import Site

    layout = Layout(clip())
    assert layout.specials(Site("vision", 1, "hidden")) == 1
    assert layout.specials(Site("encoder", 1, "hidden")) == 0


def test_the_text_of_a_model_with_a_tower_is_read_by_its_language_model():
    text = SIZES | {"model_type": "llama", "vocab_size": 100, "num_key_value_heads": 2}
    vision = SIZES | {"model_type": "clip_vision_model", "image_size": 32, "patch_size": 8}
    model = LlavaModel(LlavaConfig(text_config=text, vision_config=vision))
    assert find_stack(model) == "decoder" and find_blocks(model).keys() == {"decoder", "vision"}


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
    made = Layout(Whole()).streams(Batch({}, torch.arange(2), {"frames": frames}))["encoder"]
    assert made.mask.shape == (2, 8) and made.mask.sum(1).tolist() == [8, 3] and made.start.tolist() == [0, 16]
