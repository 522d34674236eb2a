"""CharacterBERT, MANTa-LM and VAN reproduce the published networks, load their weights whole, and refuse the rest.

The golden fixtures (random weights, every intermediate activation of the authors' code) lie in the folder named by the
environment variable ANISOSCOPE_GOLDEN; tests that need them are skipped by name where it is unset.
"""

import json
import os
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AttentionInterface, AutoConfig, AutoModel, logging
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from anisoscope.errors import ModelError, UsageError
from anisoscope.models import ports
from anisoscope.models.load import load
from anisoscope.models.published import PublishedModel, load_published
from anisoscope_papers.networks import character_bert, manta, van

logging.set_verbosity_error()
logging.disable_progress_bar()

GOLDEN = os.environ.get("ANISOSCOPE_GOLDEN")
golden = pytest.mark.skipif(
    GOLDEN is None, reason="ANISOSCOPE_GOLDEN, the folder of golden fixtures, is unset"
)
FIXTURES = ("character_bert", "manta", "manta_multikernel", "van")
TOLERANCE = 1e-5
"""Largest error allowed, times the largest absolute value of the activation where that exceeds one."""

TINY: dict[str, Callable[[], PublishedModel]] = {
    "character_bert": lambda: character_bert.CharacterBertModel(
        character_bert.CharacterBertConfig(
            vocab_size=10,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=12,
            character_filters=[[1, 4], [3, 8]],
        )
    ),
    "manta": lambda: manta.MantaModel(tiny_manta_config()),
    "van": lambda: van.VanModel(
        van.VanConfig(
            hidden_sizes=[4, 6, 8, 10],
            depths=[1, 2, 1, 1],
            mlp_ratios=[2, 2, 2, 2],
            num_labels=3,
        )
    ),
}


def tiny_manta_config(**overrides: Any) -> manta.MantaConfig:
    sizes = {
        "byte_embedding_dim": 8,
        "frontier_predictor_num_attention_heads": 2,
        "max_length_inputs": 32,
    }
    sizes |= {
        "frontier_predictor_attention_window": 4,
        "d_model": 12,
        "d_kv": 4,
        "d_ff": 16,
        "num_layers": 2,
    }
    return manta.MantaConfig(**{**sizes, "num_heads": 3, **overrides})


@cache
def tiny(name: str) -> PublishedModel:
    torch.manual_seed(0)
    ports.register()
    return TINY[name]().eval()


def inputs_of(name: str) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    if name == "character_bert":
        return character_bert.CharacterBertTokenizer()(["One small step", "Hello"])
    if name == "manta":
        ids = torch.randint(3, 259, (1, 21), generator=generator)
        return {"input_ids": ids, "decoder_input_ids": ids[:, :5]}
    return {"pixel_values": torch.randn(2, 3, 64, 64, generator=generator)}


@torch.no_grad()
def states(model: PublishedModel, name: str) -> Tensor:
    """What the model computes for the inputs of `name`, as one tensor."""
    out = model(**inputs_of(name))
    found = out.last_hidden_state if out.get("logits") is None else out.logits
    assert torch.isfinite(found).all()
    return found


# ------------------------------------------------------------------------------------------------- golden fixtures


@cache
def fixture(name: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    folder = Path(str(GOLDEN))
    return json.loads((folder / f"{name}.json").read_text()), load_file(
        folder / f"{name}.safetensors"
    )


def weights_of(name: str) -> dict[str, Tensor]:
    return {
        key.removeprefix("weights."): x
        for key, x in fixture(name)[1].items()
        if key.startswith("weights.")
    }


@cache
def golden_model(name: str) -> PublishedModel:
    facts, _ = fixture(name)
    sizes: dict[str, Any] = facts["config"]
    model: PublishedModel
    if name == "character_bert":
        config = character_bert.CharacterBertConfig(
            **sizes, character_filters=facts["char_cnn"]["filters"]
        )
        model = character_bert.CharacterBertModel(config)
    elif name == "van":
        shape = {
            "hidden_sizes": sizes["embed_dims"],
            "depths": sizes["depths"],
            "mlp_ratios": sizes["mlp_ratios"],
        }
        model = van.VanModel(van.VanConfig(**shape, num_labels=sizes["num_classes"]))
    else:
        model = manta.MantaModel._from_config(
            manta.MantaConfig(**sizes), attn_implementation="eager"
        )
    return load_published(model, weights_of(name))


def run(name: str) -> Any:
    _, tensors = fixture(name)
    inputs = {
        key.removeprefix("input."): x
        for key, x in tensors.items()
        if key.startswith("input.")
    }
    return golden_model(name)(
        **inputs, **({"joint_blocks": True} if name.startswith("manta") else {})
    )


def hook_points(name: str) -> dict[str, tuple[str, str]]:
    """Activation → (module, what of it): its `output`, its first `input`, or the attention `map` it returns last."""
    facts, _ = fixture(name)
    if "acts" in facts:
        return {act: (act, "output") for act in facts["acts"]}
    points = {
        "byte_embeddings": ("encoder.byte_embeddings", "output"),
        "frontier.layer.0": (
            "encoder.frontier_predictor.local_transformer.encoder.layer.0",
            "output",
        ),
        "frontier_predictions": ("encoder.frontier_predictor", "output"),
        "block_byte_proba": ("encoder.pooler.block_assignment", "output"),
        "pooled": ("encoder.pooler", "output"),
    }
    for stack, path in (("encoder", "encoder.t5_encoder"), ("decoder", "decoder")):
        points[f"{stack}_hidden.0"] = (f"{path}.block.0", "input")
        points[f"{stack}_hidden.1"] = (f"{path}.block.0", "output")
        points[f"{stack}_hidden.2"] = (
            f"{path}.final_layer_norm",
            "output",
        )  # as transformers 4 recorded it
        for layer in range(2):
            points[f"{stack}_attn.{layer}"] = (f"{path}.block.{layer}.layer.0", "map")
    points |= {
        f"cross_attn.{layer}": (f"decoder.block.{layer}.layer.1", "map")
        for layer in range(2)
    }
    return points


def assert_close(name: str, got: Tensor, want: Tensor) -> None:
    assert got.shape == want.shape, name
    error, scale = float((got - want).abs().max()), max(1.0, float(want.abs().max()))
    assert error <= TOLERANCE * scale, (
        f"{name}: error {error:.2e} at magnitude {scale:.2g}"
    )


@golden
@pytest.mark.parametrize("name", FIXTURES)
@torch.no_grad()
def test_every_activation_is_reproduced(name: str) -> None:
    seen: dict[str, Tensor] = {}

    def hook(act: str, what: str) -> Callable[..., None]:
        def record(_: torch.nn.Module, args: tuple[Any, ...], output: Any) -> None:
            whole = isinstance(output, Tensor)
            seen[act] = (
                args[0]
                if what == "input"
                else output
                if whole
                else output[-1 if what == "map" else 0]
            )

        return record

    model, (_, tensors) = golden_model(name), fixture(name)
    handles = [
        model.get_submodule(module).register_forward_hook(hook(act, what))
        for act, (module, what) in hook_points(name).items()
    ]
    run(name)
    for handle in handles:
        handle.remove()
    stored = {key.removeprefix("act.") for key in tensors if key.startswith("act.")}
    assert seen.keys() == stored
    for act in sorted(stored):
        assert_close(act, seen[act], tensors[f"act.{act}"])


@golden
@pytest.mark.parametrize("name", FIXTURES)
@torch.no_grad()
def test_every_output_is_reproduced(name: str) -> None:
    _, tensors = fixture(name)
    fields = {
        "sequence": "last_hidden_state",
        "pooled": "pooler_output",
        "logits": "logits",
    }
    fields |= {
        "decoder_last": "last_hidden_state",
        "encoder_last": "encoder_last_hidden_state",
    }
    out = run(name)
    stored = [key for key in tensors if key.startswith("output.")]
    assert stored
    for key in stored:
        assert_close(key, out[fields[key.removeprefix("output.")]], tensors[key])


@golden
@pytest.mark.parametrize("name", FIXTURES)
def test_parameter_names_and_shapes_are_the_published_ones(name: str) -> None:
    published = fixture(name)[0]["state_dict"]
    assert {
        key: list(x.shape) for key, x in golden_model(name).state_dict().items()
    } == published


@golden
@torch.no_grad()
def test_manta_alone_equals_the_longest_row_of_its_batch() -> None:
    _, tensors = fixture("manta")
    ids, decoder_ids = (
        tensors["input.input_ids"][:1],
        tensors["input.decoder_input_ids"][:1],
    )
    alone = golden_model("manta")(ids, None, decoder_ids)
    assert_close("logits", alone.logits, tensors["output.logits"][:1])
    assert_close(
        "frontiers", alone.frontier_predictions, tensors["act.frontier_predictions"][:1]
    )


# --------------------------------------------------------------------------------------------- saving and loading


@pytest.mark.parametrize("name", TINY)
def test_a_saved_model_loads_again_through_the_auto_classes(
    name: str, tmp_path: Path
) -> None:
    model = tiny(name)
    model.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").exists()
    assert type(AutoConfig.from_pretrained(tmp_path)) is type(model.config)
    again, info = AutoModel.from_pretrained(tmp_path, output_loading_info=True)
    assert type(again) is type(model)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert torch.equal(states(again, name), states(model, name))


@pytest.mark.parametrize(
    "prefix",
    ["", "module.", "character_bert.", "bert.", "module.bert.", "manta.", "van."],
)
@pytest.mark.parametrize("name", TINY)
def test_known_prefixes_and_envelopes_are_stripped(name: str, prefix: str) -> None:
    model = tiny(name)
    weights = {f"{prefix}{key}": x for key, x in model.state_dict().items()}
    for checkpoint in (weights, {"state_dict": weights, "epoch": 3}):
        loaded = load_published(TINY[name](), checkpoint)
        assert torch.equal(states(loaded, name), states(model, name))
        assert not loaded.training


@pytest.mark.parametrize("suffix", [".safetensors", ".pth.tar"])
def test_weights_files_of_both_kinds_are_read(suffix: str, tmp_path: Path) -> None:
    model, path = tiny("van"), tmp_path / f"weights{suffix}"
    if suffix == ".safetensors":
        save_file(model.state_dict(), path)
    else:
        torch.save({"state_dict": model.state_dict()}, path)
    assert torch.equal(
        states(load_published(TINY["van"](), path), "van"), states(model, "van")
    )
    half = {
        name: x.half() if x.is_floating_point() else x
        for name, x in model.state_dict().items()
    }
    assert load_published(TINY["van"](), half).dtype == torch.float32, (
        "the model's own numbers, whatever the file's"
    )
    with pytest.raises(
        ModelError,
        match=r"expected a file of weights; got .*nowhere, which is not a file",
    ):
        load_published(model, tmp_path / "nowhere")


@pytest.mark.parametrize("name", TINY)
def test_every_key_at_fault_is_named(name: str) -> None:
    weights = dict(tiny(name).state_dict())
    lost, wrong = [
        key
        for key in weights
        if key.endswith(".bias") or "lm_head" in key or "relative" in key
    ][:2]
    del weights[lost]
    weights |= {
        "one.too.many": torch.zeros(1),
        "and.another": torch.zeros(1),
        wrong: torch.zeros(1, 2),
    }
    shape = tuple(tiny(name).state_dict()[wrong].shape)
    expected = (
        f"expected exactly the weights of {type(tiny(name)).__name__}; got missing {lost}, unexpected and.another, "
        f"unexpected one.too.many, {wrong} of shape (1, 2) instead of {shape}. Cure: check that the configuration"
    )
    with pytest.raises(ModelError, match=re.escape(expected)):
        load_published(TINY[name](), weights)


@pytest.mark.parametrize(
    ("change", "fault"),
    [("remove", "missing head.bias"), ("add", "unexpected head.extra")],
)
def test_a_hub_folder_with_wrong_keys_is_an_error(
    change: str, fault: str, tmp_path: Path
) -> None:
    tiny("van").save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    if change == "remove":
        del weights["head.bias"]
    else:
        weights["head.extra"] = torch.zeros(1)
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(
        ModelError, match=f"expected exactly the weights of VanModel; got {fault}"
    ):
        AutoModel.from_pretrained(tmp_path)


@pytest.mark.parametrize("prefix", ["character_bert.", "bert."])
def test_character_bert_leaves_out_the_pretraining_heads(
    prefix: str, tmp_path: Path
) -> None:
    model = tiny("character_bert")
    weights = {f"{prefix}{key}": x for key, x in model.state_dict().items()}
    weights["cls.predictions.bias"] = torch.zeros(10)
    assert torch.equal(
        states(load_published(TINY["character_bert"](), weights), "character_bert"),
        states(model, "character_bert"),
    )
    model.save_pretrained(tmp_path)
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    assert torch.equal(
        states(AutoModel.from_pretrained(tmp_path), "character_bert"),
        states(model, "character_bert"),
    )


def test_manta_accepts_either_name_of_the_tied_embeddings() -> None:
    model = tiny("manta")
    for dropped in ("decoder.embed_tokens.weight", "decoder_embeddings.weight"):
        weights = {key: x for key, x in model.state_dict().items() if key != dropped}
        assert torch.equal(
            states(load_published(TINY["manta"](), weights), "manta"),
            states(model, "manta"),
        )


def earlier_name(key: str) -> str:
    """The name of a MANTa weight in checkpoints of the earlier version."""
    for ours, theirs in {
        r"^encoder\.t5_encoder\.": "encoder_decoder.encoder.",
        r"^encoder\.": "",
        r"^decoder_embeddings\.": "encoder_decoder.shared.",
        r"^decoder\.": "encoder_decoder.decoder.",
    }.items():
        if re.match(ours, key):
            return re.sub(ours, theirs, key)
    return key


@pytest.mark.parametrize("layers", [0, 2])
def test_manta_of_the_earlier_version_loads_from_a_folder(
    layers: int, tmp_path: Path
) -> None:
    """It was refused: every name unexpected, no highway, a position table of another length."""
    ports.register()
    torch.manual_seed(3)
    lengths = {"max_length_inputs": 0, "max_length_encoder_decoder": 48}
    model = manta.MantaModel(
        tiny_manta_config(pooling_n_highway_layers=layers, **lengths)
    ).eval()
    model.save_pretrained(tmp_path)
    weights = {
        earlier_name(key): x
        for key, x in load_file(tmp_path / "model.safetensors").items()
    }
    assert any("shared" in key for key in weights) and any(
        "highway" in key for key in weights
    ) == bool(layers)
    weights["encoder_decoder.encoder.embed_tokens.weight"] = weights[
        "encoder_decoder.shared.weight"
    ].clone()
    weights["encoder_decoder.decoder.embed_tokens.weight"] = weights[
        "encoder_decoder.shared.weight"
    ].clone()
    # A bias that its attention across stacks never used.
    unused = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    weights[f"encoder_decoder.{unused}"] = torch.zeros(32, 3)
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    config = json.loads((tmp_path / "config.json").read_text())
    config.pop("max_length_inputs")
    (tmp_path / "config.json").write_text(
        json.dumps({**config, "pooling_highway_activation": "relu"})
    )
    found = AutoModel.from_pretrained(tmp_path)
    assert found.config.max_length_inputs == 48
    assert torch.equal(states(found, "manta"), states(model, "manta"))


def test_manta_has_as_many_highway_layers_as_its_configuration_says() -> None:
    for layers in (0, 1, 3):
        pooler = manta.MantaModel(
            tiny_manta_config(pooling_n_highway_layers=layers)
        ).encoder.pooler
        assert len(pooler.highway._layers if layers else ()) == layers


def test_manta_highway_layers_stand_behind_the_pooling() -> None:
    torch.manual_seed(3)
    model = manta.MantaModel(tiny_manta_config(pooling_n_highway_layers=1)).eval()
    seen: dict[str, Any] = {}
    pooler = model.encoder.pooler
    pooler.highway.register_forward_hook(
        lambda _m, given, out: seen.update(given=given[0], out=out)
    )
    pooler.out_projection.register_forward_hook(
        lambda _m, given, _out: seen.update(projected=given[0])
    )
    states(model, "manta")
    x = seen["given"]
    candidate, gate = pooler.highway._layers[0](x).chunk(2, -1)
    assert_close(
        "highway",
        seen["out"].detach(),
        gate.detach().sigmoid() * x
        + (1 - gate.sigmoid()).detach() * candidate.relu().detach(),
    )
    assert torch.equal(seen["projected"].flatten(), seen["out"].flatten())
    with pytest.raises(UsageError, match="highway layers of relu; got 'tanh'"):
        tiny_manta_config(pooling_n_highway_layers=1, pooling_highway_activation="tanh")


@pytest.mark.parametrize(
    "filters", ["cnn_filters", "character_cnn_filters", "character_filters"]
)
@pytest.mark.parametrize(
    "width", ["character_embeddings_dim", "character_embedding_dim"]
)
def test_character_bert_configurations_found_in_the_wild(
    filters: str, width: str, tmp_path: Path
) -> None:
    """Filters under another name were passed over: the defaults of the published network took their place."""
    model = tiny("character_bert")
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {
        filters: config.pop("character_filters"),
        width: config.pop("character_embedding_dim"),
    }
    config |= {"max_word_length": 50, "cnn_activation": "relu", "mlm_vocab_size": 123}
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = AutoModel.from_pretrained(tmp_path)
    assert torch.equal(states(found, "character_bert"), states(model, "character_bert"))


def test_characters_may_be_counted_under_another_name() -> None:
    config = character_bert.CharacterBertConfig(
        character_vocab_size=99, character_embeddings_dim=7
    )
    assert (config.num_characters, config.character_embedding_dim) == (99, 7)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_word_length", 16),
        ("max_characters_per_token", 25),
        ("cnn_activation", "tanh"),
    ],
)
def test_character_bert_refuses_what_would_be_another_network(
    name: str, value: Any
) -> None:
    with pytest.raises(UsageError, match=f"a CharacterBERT with {name}"):
        character_bert.CharacterBertConfig(**{name: value})


@pytest.mark.parametrize("name", TINY)
def test_weights_of_other_sizes_are_named_with_both(name: str, tmp_path: Path) -> None:
    """A checkpoint whose configuration says other sizes ended in "see the report above", which nobody saw."""
    tiny(name).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    changed = {
        "character_bert": {"character_filters": [[1, 4], [3, 9]]},
        "manta": {"d_ff": 20},
        "van": {"num_labels": 5},
    }
    config |= changed[name]
    if name == "van":
        config |= {
            "id2label": {k: str(k) for k in range(5)},
            "label2id": {str(k): k for k in range(5)},
        }
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"of shape \(.*\) instead of \("):
        load(str(tmp_path))


@pytest.mark.parametrize("name", TINY)
def test_an_architecture_that_transformers_has_goes_before_the_port(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later transformers with an implementation of its own had it replaced by ours."""
    from transformers.models.auto.configuration_auto import (
        CONFIG_MAPPING,
        CONFIG_MAPPING_NAMES,
    )

    monkeypatch.setattr(CONFIG_MAPPING, "_extra_content", {})
    for native in (False, True):
        if native:
            monkeypatch.setitem(CONFIG_MAPPING_NAMES, name, "BertConfig")
        CONFIG_MAPPING._extra_content.clear()
        ports.register.__wrapped__()
        assert (name in CONFIG_MAPPING._extra_content) == (not native)


# ------------------------------------------------------------------------------------------------------------- VAN

HUB_BLOCK = {
    "norm1": "pre_normomalization",
    "norm2": "post_normalization",
    "attn.proj_1": "attention.pre_projection.conv",
    "attn.spatial_gating_unit.conv0": "attention.attention_layer.attention.depth_wise",
    "attn.spatial_gating_unit.conv_spatial": "attention.attention_layer.attention.depth_wise_dilated",
    "attn.spatial_gating_unit.conv1": "attention.attention_layer.attention.point_wise",
    "attn.proj_2": "attention.post_projection",
    "mlp.fc1": "mlp.in_dense",
    "mlp.dwconv.dwconv": "mlp.depth_wise",
    "mlp.fc2": "mlp.out_dense",
}


def hub_name(key: str) -> str:
    """A parameter of ours as transformers 4 named it in `VanForImageClassification`."""
    if key.startswith("head."):
        return key.replace("head.", "classifier.")
    module, _, field = key.rpartition(".")
    stage = int(re.findall(r"^\D+(\d)", key)[0]) - 1
    block = re.match(r"block\d\.(\d+)\.?(.*)", module)
    if block is None:
        part = {"patch_embed": "embeddings.convolution", "norm": "normalization"}[
            key.split(".")[0][:-1]
        ]
        part = "embeddings.normalization" if ".norm." in key else part
    elif field.startswith("layer_scale"):
        part, field = (
            f"layers.{block[1]}.{'attention' if field.endswith('1') else 'mlp'}_scaling",
            "weight",
        )
    else:
        part = f"layers.{block[1]}.{HUB_BLOCK[block[2]]}"
    return f"van.encoder.stages.{stage}.{part}.{field}"


def test_van_loads_the_hub_spelling_and_saves_its_own(tmp_path: Path) -> None:
    model = tiny("van")
    weights = {hub_name(key): x.clone() for key, x in model.state_dict().items()}
    assert "van.encoder.stages.1.layers.1.pre_normomalization.running_mean" in weights
    weights["van.layernorm.weight"] = torch.zeros(10)
    assert torch.equal(
        states(load_published(TINY["van"](), weights), "van"), states(model, "van")
    )
    model.save_pretrained(tmp_path)
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    loaded = AutoModel.from_pretrained(tmp_path)
    assert torch.equal(states(loaded, "van"), states(model, "van"))
    loaded.save_pretrained(tmp_path)
    assert load_file(tmp_path / "model.safetensors").keys() == model.state_dict().keys()


@pytest.mark.parametrize(
    ("sizes", "depths", "millions"),
    [
        ((32, 64, 160, 256), (3, 3, 5, 2), "4.11"),
        ((64, 128, 320, 512), (2, 2, 4, 2), "13.86"),
        ((64, 128, 320, 512), (3, 3, 12, 3), "26.58"),
        ((96, 192, 480, 768), (3, 3, 24, 3), "90"),
    ],
    ids=["b0", "b1", "b2", "b5"],
)
def test_van_has_the_published_numbers_of_parameters(
    sizes: tuple[int, ...], depths: tuple[int, ...], millions: str
) -> None:
    with torch.device("meta"):
        model = van.VanModel(
            van.VanConfig(hidden_sizes=sizes, depths=depths, num_labels=1000)
        )
    decimals = len(millions.partition(".")[2])
    assert (
        f"{sum(p.numel() for p in model.parameters()) / 1e6:.{decimals}f}" == millions
    )


@torch.no_grad()
def test_van_stage_outputs_and_stochastic_depth() -> None:
    model, images = tiny("van"), inputs_of("van")["pixel_values"]
    out = model(images, output_hidden_states=True)
    assert [tuple(x.shape) for x in out.hidden_states] == [
        (2, 4, 16, 16),
        (2, 6, 8, 8),
        (2, 8, 4, 4),
        (2, 10, 2, 2),
    ]
    assert torch.equal(out.hidden_states[-1].mean((2, 3)), out.pooler_output)
    assert torch.equal(model.head(out.pooler_output), out.logits)
    sizes = {
        "hidden_sizes": [4, 4],
        "depths": [2, 3],
        "mlp_ratios": [1, 1],
        "patch_sizes": [3, 3],
        "strides": [2, 2],
    }
    deeper = van.VanModel(van.VanConfig(**sizes, drop_path_rate=0.4))
    rates = [
        layer.drop_path for layer in deeper.modules() if isinstance(layer, van.VanLayer)
    ]
    assert rates == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])
    block = van.VanLayer(
        van.VanConfig(hidden_sizes=[4], mlp_ratios=[2], drop_path_rate=1.0),
        0,
        drop_path=0.5,
    ).train()
    branch = torch.ones(4000, 4, 1, 1)
    kept = block._branch(torch.ones(4), branch)[:, 0, 0, 0]
    assert set(kept.tolist()) == {0.0, 2.0} and abs(float(kept.mean()) - 1) < 0.1
    assert torch.equal(block.eval()._branch(torch.ones(4), branch), branch)


# ----------------------------------------------------------------------------------------------- attention interface


@pytest.mark.parametrize(("name", "calls"), [("character_bert", 2), ("manta", 6)])
def test_attention_passes_through_the_interface(name: str, calls: int) -> None:
    called: list[torch.nn.Module] = []

    def counting(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        called.append(module)
        return sdpa_attention_forward(module, *args, **kwargs)

    AttentionInterface.register("counting", counting)
    AttentionMaskInterface.register("counting", sdpa_mask)
    model = tiny(name)
    kept, before = model.config._attn_implementation, states(model, name)
    assert kept == "sdpa"
    model.set_attn_implementation("counting")
    assert model.config._attn_implementation == "counting"
    assert torch.equal(states(model, name), before)
    assert len(called) == len(set(called)) == calls
    model.set_attn_implementation(kept)
    assert torch.equal(states(model, name), before) and len(called) == calls
    built = AutoModel.from_config(model.config, attn_implementation="counting").eval()
    states(built, name)
    assert len(called) == 2 * calls


# ----------------------------------------------------------------------------------------------------------- MANTa


def test_manta_refuses_batches_that_change_a_row() -> None:
    model, ids = tiny("manta"), inputs_of("manta")["input_ids"]
    mask = torch.ones_like(ids)
    mask[:, -3:] = 0
    with pytest.raises(ValueError) as error:
        model(ids, mask, ids[:, :5])
    assert str(error.value) == (
        "expected one sequence at a time, without padding; got padded rows. Cure: pass each sequence alone: the "
        "published pooling counts blocks over the batch and does not mask padding"
    )
    frontiers = torch.tensor(
        [[0.5] * 8, [0.1] * 8]
    )  # largest μ + 3σ: 7.5, and 0.7 + 3 √0.63 = 3.1
    with pytest.raises(
        ValueError,
        match=r"expected one sequence at a time; got rows of \[8, 4\] blocks\. Cure: pass",
    ):
        model.encoder.pooler.block_assignment(frontiers, joint_blocks=False)
    assert model.encoder.pooler.block_assignment(
        frontiers, joint_blocks=True
    ).shape == (2, 8, 8)


@torch.no_grad()
def test_manta_accepts_rows_of_equal_length_and_blocks() -> None:
    model, inputs = tiny("manta"), inputs_of("manta")
    alone = model(**inputs)
    ids, decoder_ids = (
        inputs["input_ids"].expand(2, -1),
        inputs["decoder_input_ids"].expand(2, -1),
    )
    both = model(ids, torch.ones_like(ids), decoder_ids)
    assert torch.allclose(both.logits, alone.logits.expand_as(both.logits), atol=1e-6)


@torch.no_grad()
def test_manta_returns_the_states_and_maps_of_both_stacks_on_request() -> None:
    model = AutoModel.from_config(
        tiny("manta").config, attn_implementation="eager"
    ).eval()
    out = model(**inputs_of("manta"), output_hidden_states=True, output_attentions=True)
    blocks = out.encoder_last_hidden_state.shape[1]
    assert len(out.encoder_hidden_states) == len(out.decoder_hidden_states) == 3
    assert torch.equal(out.encoder_hidden_states[-1], out.encoder_last_hidden_state)
    assert torch.equal(out.decoder_hidden_states[-1], out.last_hidden_state)
    for maps, shape in (
        (out.encoder_attentions, (1, 3, blocks, blocks)),
        (out.decoder_attentions, (1, 3, 5, 5)),
        (out.cross_attentions, (1, 3, 5, blocks)),
    ):
        assert [tuple(x.shape) for x in maps] == [shape, shape]


@torch.no_grad()
def test_manta_decoder_does_not_look_at_masked_bytes() -> None:
    model, inputs = tiny("manta"), inputs_of("manta")
    ids = inputs["decoder_input_ids"].clone()
    mask = torch.tensor([[1, 0, 1, 1, 1]])
    first = model(inputs["input_ids"], None, ids, mask).logits[:, 2:]
    ids[0, 1] += 1
    assert torch.equal(model(inputs["input_ids"], None, ids, mask).logits[:, 2:], first)
    assert not torch.equal(model(inputs["input_ids"], None, ids).logits[:, 2:], first)


def test_manta_stacks_take_over_the_whole_configuration() -> None:
    sizes = {
        "vocab_size": 300,
        "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 9,
    }
    sizes |= {
        "dropout_rate": 0.2,
        "layer_norm_epsilon": 1e-3,
        "initializer_factor": 0.5,
        "pad_token_id": 2,
    }
    sizes |= {
        "eos_token_id": 3,
        "feed_forward_proj": "gated-gelu",
        "d_model": 6,
        "d_kv": 2,
        "d_ff": 10,
        "num_heads": 4,
    }
    model = manta.MantaModel(
        tiny_manta_config(**sizes, num_layers=1, num_decoder_layers=2)
    )
    for stack, layers in ((model.encoder.t5_encoder, 1), (model.decoder, 2)):
        assert {name: getattr(stack.config, name) for name in sizes} == sizes
        assert len(stack.block) == layers


def test_manta_block_shares_sum_to_one_and_count_blocks_to_three_deviations() -> None:
    shares = tiny("manta").encoder.pooler.block_assignment(
        torch.tensor([[0.9, 1.0, 0.0, 1.0]]), joint_blocks=False
    )
    assert shares.shape == (
        1,
        3,
        4,
    )  # certain frontiers: blocks 0, 1, 1, 2, whatever the first byte's probability
    assert torch.allclose(shares.sum(1), torch.ones(1, 4))
    assert shares[0].argmax(0).tolist() == [0, 1, 1, 2]
    even = tiny("manta").encoder.pooler.block_assignment(
        torch.full((1, 4), 0.5), joint_blocks=False
    )
    assert even.shape == (1, 4, 4)  # μ + 3σ = 4.1, but never more blocks than bytes


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (
            {"pooling_kernel_size": 2},
            "expected MANTa kernels of odd width; got width 2. Cure: choose an odd",
        ),
        (
            {
                "pooling_kernel_size": [[3, 8], [4, 8]],
                "pooling_depthwise_convolution": False,
            },
            "expected MANTa kernels of odd width; got width 4",
        ),
        (
            {"pooling_kernel_size": [[3, 6]]},
            "expected depthwise kernels of byte_embedding_dim = 8 channels; got 6",
        ),
        (
            {"tie_word_embeddings": True},
            "expected a MANTa with its own output layer; got tie_word_embeddings = True",
        ),
    ],
)
def test_manta_refuses_what_the_published_network_lacks(
    overrides: dict[str, Any], text: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(text)):
        manta.MantaModel(tiny_manta_config(**overrides))


def test_manta_says_which_input_is_wrong() -> None:
    model, ids = tiny("manta"), torch.full((1, 33), 100)
    with pytest.raises(
        UsageError,
        match=r"expected at most 32 bytes; got 33\. Cure: cut the text into windows",
    ):
        model(ids, decoder_input_ids=ids)
    with pytest.raises(
        UsageError,
        match=r"expected decoder_input_ids; got none\. Cure: pass the decoder's bytes",
    ):
        model(ids[:, :8])


# --------------------------------------------------------------------------------------------------- CharacterBERT


@golden
def test_character_ids_are_the_published_ones() -> None:
    facts, tensors = fixture("character_bert")
    texts = [
        sentence.removeprefix("[CLS] ").removesuffix(" [SEP]")
        for sentence in facts["sentences"]
    ]
    batch = character_bert.CharacterBertTokenizer(lower_case=False)(texts)
    assert torch.equal(batch["input_ids"], tensors["input.input_ids"])
    assert torch.equal(batch["attention_mask"], tensors["input.attention_mask"])


def test_words_are_those_of_berts_basic_tokenisation() -> None:
    text = "Hello, Wörld! It's 3.5%\tnaïve 東京 <unk>\u200b a\x00b [MASK]."
    words = "hello , world ! it ' s 3 . 5 % naive 東 京 < unk > ab [MASK] ."
    assert " ".join(character_bert.CharacterBertTokenizer().tokenize(text)) == words
    assert character_bert.CharacterBertTokenizer(lower_case=False).tokenize(
        "Wörld, Hé"
    ) == ["Wörld", ",", "Hé"]


def test_character_ids_of_a_word() -> None:
    pad = character_bert.CHARACTER_PADDING
    assert character_bert.encode_word("é")[:5] == [259, 0xC3 + 1, 0xA9 + 1, 260, pad]
    assert character_bert.encode_word("[MASK]")[:4] == [259, 262, 260, pad]
    long = character_bert.encode_word("x" * 60)
    assert long == [259, *[ord("x") + 1] * 48, 260]


def test_padding_of_words() -> None:
    batch = character_bert.CharacterBertTokenizer()(["a [MASK] b c", "f"])
    assert batch["input_ids"].shape == (2, 6, 50)
    assert batch["attention_mask"].tolist() == [[1] * 6, [1, 1, 1, 0, 0, 0]]
    assert torch.equal(
        batch["input_ids"][0, 4], torch.tensor(character_bert.encode_word("c"))
    )


@torch.no_grad()
def test_character_bert_inputs_and_fixed_epsilon() -> None:
    model, inputs = tiny("character_bert"), inputs_of("character_bert")
    vectors = model.get_input_embeddings()(inputs["input_ids"])
    given = model(
        inputs_embeds=vectors, attention_mask=inputs["attention_mask"]
    ).last_hidden_state
    assert torch.equal(given, model(**inputs).last_hidden_state)
    places = {
        "position_ids": torch.arange(5)[None],
        "token_type_ids": torch.zeros(2, 5, dtype=torch.long),
    }
    assert torch.equal(given, model(**inputs, **places).last_hidden_state)
    with pytest.raises(
        UsageError,
        match=re.escape("expected character ids of shape (B, T, 50); got shape (2, 5)"),
    ):
        model(inputs["input_ids"][..., 0])
    with pytest.raises(ValueError, match="exactly one of input_ids or inputs_embeds"):
        model(inputs["input_ids"], inputs_embeds=vectors)
    loose = character_bert.CharacterBertConfig(
        **{**model.config.to_dict(), "layer_norm_eps": 0.1}
    )
    other = character_bert.CharacterBertModel(loose)
    assert (
        other.embeddings.LayerNorm.eps,
        other.encoder.layer[0].output.LayerNorm.eps,
    ) == (1e-12, 0.1)


# -------------------------------------------------------------------------------------------------- initial weights


def test_untrained_models_start_as_published() -> None:
    scale = tiny("van").block2[1].layer_scale_2
    assert torch.equal(scale, torch.full_like(scale, 1e-2))
    kernel = tiny("van").block2[1].mlp.dwconv.dwconv.weight.detach()  # fan-out 9
    assert float(kernel.std()) == pytest.approx((2 / 9) ** 0.5, rel=0.2)
    bias = tiny("character_bert").embeddings.word_embeddings._highways._layers[1].bias
    assert bias.tolist() == [0.0] * 12 + [1.0] * 12
    characters = tiny(
        "character_bert"
    ).embeddings.word_embeddings._char_embedding_weights.detach()
    assert float(characters.std()) == pytest.approx(0.02, rel=0.1)
    convolution = tiny("manta").encoder.pooler.conv_layers[0].weight.detach()
    assert 0.4 < float(convolution.abs().max()) <= 3**-0.5  # fan-in 3
    projection = tiny("manta").encoder.pooler.out_projection.weight.detach()
    assert 0.3 < float(projection.abs().max()) <= 8**-0.5  # fan-in 8


def test_filters_of_characterbert_are_those_of_elmo_unless_a_checkpoint_says_others() -> (
    None
):
    widths, channels = zip(
        *character_bert.CharacterBertConfig().character_filters, strict=True
    )
    assert widths == (1, 2, 3, 4, 5, 6, 7) and channels == (
        32,
        32,
        64,
        128,
        256,
        512,
        1024,
    )
