"""Models whose blocks are found in another way than most, or are none: against hooks by hand, or one sentence."""

import pytest
import torch
from sweep import build, call
from tiny_configs import tiny_config
from tiny_inputs import candidates
from torch import nn

import anisoscope
from anisoscope.capture import capture
from anisoscope.errors import ModelError, UsageError

BY_PATH = {
    "gpt_neox_japanese": "layers",
    "ibert": "encoder.layer",
    "perceiver": "encoder.self_attends",
    "poolformer": "encoder.block",
    "regnet": "encoder.stages",
    "mobilenet_v1": "layer",
    "mobilenet_v2": "layer",
    "fsmt": "encoder.layers",
    "t5gemma2": "encoder.text_model.layers",
    "pegasus_x": "encoder.layers",
}
"""By model type: the list of its blocks, alone or in stages."""


def inputs_of(model):
    for inputs in candidates(model):
        try:
            call(model, inputs)
        except Exception:
            continue
        return inputs
    raise AssertionError("no inputs")


def list_blocks(model, path):
    """Return the blocks in a list of blocks or of stages; of MobileNet the stem is one too."""
    found = list(model.get_submodule(path))
    found = (
        [model.conv_stem, *found]
        if model.config.model_type == "mobilenet_v1"
        else found
    )
    while any(hasattr(x, "layers") or isinstance(x, nn.ModuleList) for x in found):
        found = [block for stage in found for block in getattr(stage, "layers", stage)]
    return found


def catch_by_hand(model, inputs, blocks):
    """Return the first tensor that enters the first block and the first that leaves each."""
    caught, hooks = [], []

    def keep(x):
        while not isinstance(x, torch.Tensor):
            x = x[0]
        caught.append(x.clone())

    def enter(_module, args, kwargs):
        keep(args or kwargs["hidden_states"])

    hooks.append(blocks[0].register_forward_pre_hook(enter, with_kwargs=True))
    hooks += [
        block.register_forward_hook(lambda _m, _a, output: keep(output))
        for block in blocks
    ]
    call(model, inputs)
    for hook in hooks:
        hook.remove()
    return caught


def in_rows(x):
    """Return maps as one vector per position."""
    return x.flatten(2).transpose(1, 2) if x.dim() == 4 else x


@pytest.mark.parametrize("model_type", BY_PATH)
def test_every_layer_is_what_hooks_by_hand_see(model_type):
    model = build(tiny_config(model_type, 0))
    inputs = inputs_of(model)
    caught = catch_by_hand(model, inputs, list_blocks(model, BY_PATH[model_type]))
    with capture(model, ("hidden",)) as tap:
        call(model, inputs)
    stack = "decoder" if model_type == "gpt_neox_japanese" else "encoder"
    layers = [name for name in tap.sites if name.startswith(f"{stack}.")]
    assert len(layers) == len(caught) > 2
    for name, expected in zip(layers, caught, strict=True):
        found = tap[name]
        expected = in_rows(expected)
        expected = (
            expected.transpose(0, 1) if expected.shape != found.shape else expected
        )
        assert torch.allclose(found, expected, rtol=0, atol=1e-9)


ODD = [
    ("t5gemma2", "attention of layers 1, 2 of decoder"),
    ("pegasus_x", "cross-attention of layers 1, 2 of encoder"),
]


@pytest.mark.parametrize(("model_type", "odd"), ODD)
def test_one_odd_site_is_named_and_the_rest_is_measured(model_type, odd):
    model = build(tiny_config(model_type, 0))
    run = anisoscope.measure(model, inputs_of(model), sample=0)
    (left_out,) = [line for line in run.manifest["warnings"] if "left out" in line]
    assert odd in left_out and "the rest is measured" in left_out
    hidden = run.records.query("site == 'hidden' and metric == 'mean_cosine'")
    assert set(zip(hidden["stack"], hidden["layer"], strict=True)) == {
        (stack, layer) for stack in ("encoder", "decoder") for layer in range(3)
    }
    assert len(run.records.query("metric == 'attention.entropy'"))


@pytest.mark.parametrize("model_type", ["xlm", "flaubert"])
def test_blocks_that_are_no_modules_are_put_together(model_type):
    """One list for attention, one for each norm, one for what follows: a block is one of each."""
    model = build(tiny_config(model_type, 0))
    inputs = inputs_of(model)
    real = inputs["attention_mask"].bool()
    own = call(model, inputs, output_hidden_states=True, output_attentions=True)
    assert not real.all()
    with capture(model, ("hidden", "attention")) as tap:
        call(model, inputs)
    for layer, states in enumerate(own.hidden_states):
        assert torch.allclose(
            tap[f"encoder.{layer}.hidden"][real], states[real], rtol=0, atol=1e-9
        )
    for layer, weights in enumerate(own.attentions, start=1):
        entropy = -torch.xlogy(weights, weights).sum(-1).transpose(1, 2)[real]
        found = tap[f"encoder.{layer}.attention"]["entropy"].transpose(1, 2)[real]
        assert torch.allclose(
            found, entropy, rtol=0, atol=1e-6
        )  # the model takes its softmax in float32


def test_a_causal_xlm_is_a_decoder():
    config = tiny_config("xlm", 0)
    config.causal = True
    model = build(config)
    with capture(model, ("hidden", "attention")) as tap:
        call(model, inputs_of(model))
    assert {name.partition(".")[0] for name in tap.sites} == {"decoder"}
    assert bool(
        (tap["decoder.1.attention"]["keys"][:, :, 0] == 1).all()
    )  # the first token sees itself alone


def test_blocks_that_are_added_up_outside_of_modules_are_said():
    config = tiny_config("flaubert", 0)
    config.pre_norm = True
    model = build(config)
    says = r"blocks that end with a module; got FlaubertModel with pre_norm"
    with pytest.raises(ModelError, match=says), capture(model):
        pass


# ---- diffusers: an image and a text in every block


def make_diffusers(name):
    """Return a tiny model of an image and a text, and its inputs."""
    diffusers = pytest.importorskip("diffusers")
    g = torch.Generator().manual_seed(1)

    def draw(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    torch.manual_seed(0)
    inputs = {"encoder_hidden_states": draw(3, 7, 32), "timestep": draw(3).abs()}
    if name == "flux":
        model = diffusers.FluxTransformer2DModel(
            patch_size=1,
            in_channels=4,
            num_layers=2,
            num_single_layers=2,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=32,
            pooled_projection_dim=32,
            axes_dims_rope=[4, 4, 8],
        )
        inputs |= {
            "hidden_states": draw(3, 16, 4),
            "img_ids": draw(16, 3),
            "txt_ids": draw(7, 3),
        }
        blocks = ("transformer_blocks", "single_transformer_blocks")
    else:
        model = diffusers.SD3Transformer2DModel(
            sample_size=8,
            patch_size=2,
            in_channels=4,
            num_layers=3,
            attention_head_dim=8,
            num_attention_heads=4,
            caption_projection_dim=32,
            joint_attention_dim=32,
            pooled_projection_dim=32,
            out_channels=4,
        )
        inputs |= {"hidden_states": draw(3, 4, 8, 8)}
        blocks = ("transformer_blocks",)
    inputs["pooled_projections"] = draw(3, 32)
    return (
        model.double().eval(),
        inputs,
        [block for path in blocks for block in model.get_submodule(path)],
    )


@pytest.mark.parametrize("name", ["flux", "sd3"])
def test_a_block_of_an_image_and_a_text_gives_a_stack_of_each(name):
    """They return (text, image), and of one alone the text would have stood for the image."""
    model, inputs, blocks = make_diffusers(name)
    caught = {"encoder": [], "text": []}

    def enter(_module, _args, kwargs):
        caught["encoder"].append(kwargs["hidden_states"].clone())
        caught["text"].append(kwargs["encoder_hidden_states"].clone())

    def leave(_module, _args, output):
        caught["encoder"].append(output[1].clone())
        caught["text"] += [] if output[0] is None else [output[0].clone()]

    hooks = [blocks[0].register_forward_pre_hook(enter, with_kwargs=True)]
    hooks += [block.register_forward_hook(leave) for block in blocks]
    call(model, inputs)
    for hook in hooks:
        hook.remove()
    with capture(model, ("hidden", "final", "attention", "query")) as tap:
        call(model, inputs)
    for stack, layers in caught.items():
        assert len(
            [
                site
                for site in tap.sites
                if site.startswith(f"{stack}.") and "hidden" in site
            ]
        ) == len(layers)
        for layer, expected in enumerate(layers):
            assert torch.allclose(
                tap[f"{stack}.{layer}.hidden"], expected, rtol=0, atol=1e-9
            )
    # every position of both attends to every position of both
    assert (
        tap["encoder.1.attention"]["entropy"].shape[2]
        == caught["encoder"][0].shape[1] + 7
    )
    # rotated before the product, which no longer has them as they were projected
    assert ("encoder.1.head.query.rotated" in tap.sites) == (name == "flux")
    with capture(model, ("hidden",), layers=(-1,)) as tap:
        call(model, inputs)
    last = {
        stack: f"{stack}.{len(layers) - 1}.hidden" for stack, layers in caught.items()
    }
    assert {*tap.sites} == {*last.values()}
    run = anisoscope.measure(model, inputs, sample=0)
    counted = (
        run.records.query("site == 'hidden' and metric == 'mean_cosine'")
        .groupby("stack")["n_vectors"]
        .first()
    )
    assert counted.to_dict() == {
        "encoder": caught["encoder"][0].shape[1] * 3,
        "text": 7 * 3,
    }


# ---- x-transformers: a list of layers [norms, layer, sum], of which two make a block


class Residual(nn.Module):
    def forward(self, x, residual):
        return x + residual


class Feeding(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.ff = nn.Sequential(nn.Linear(dim, 24), nn.GELU(), nn.Linear(24, dim))

    def forward(self, x):
        return self.ff(x)


class Attending(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, x):
        q, k, v = (
            y.unflatten(-1, (2, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1)
        )
        return (
            nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            .transpose(1, 2)
            .flatten(2)
        )


class AttentionLayers(nn.Module):
    """A stand-in with the layout of x-transformers 2.31, of which the package itself is measured below."""

    len_default_block, causal = 2, True

    def __init__(self, dim=16, behind=False):
        super().__init__()
        norms = [
            nn.ModuleList(
                [nn.LayerNorm(dim), None, nn.LayerNorm(dim) if behind else None]
            )
            for _ in range(4)
        ]
        kinds = (Attending, Feeding, Attending, Feeding)
        self.layers = nn.ModuleList(
            nn.ModuleList([norm, kind(dim), Residual()])
            for norm, kind in zip(norms, kinds, strict=True)
        )

    def forward(self, x):
        self.states = [x]
        for norms, layer, residual in self.layers:
            x = residual(layer(norms[0](x)), x)
            self.states.append(x)
        return x


AttentionLayers.__module__ = "x_transformers.x_transformers"


def test_two_layers_of_x_transformers_make_a_block():
    torch.manual_seed(0)
    model = AttentionLayers().double().eval()
    x = torch.randn(3, 5, 16, dtype=torch.float64)
    with capture(model, ("hidden", "attention")) as tap, torch.no_grad():
        model(x)
    assert [site for site in tap.sites if "hidden" in site] == [
        f"decoder.{layer}.hidden" for layer in range(3)
    ]
    for layer, expected in enumerate(model.states[::2]):
        assert torch.equal(tap[f"decoder.{layer}.hidden"], expected)
    assert {"decoder.1.attention", "decoder.2.attention"} <= {*tap.sites}
    with pytest.raises(ModelError, match="other norms or sums than its default"):
        anisoscope.measure(AttentionLayers(behind=True), x.float())


@pytest.mark.parametrize("kind", ["Decoder", "Encoder"])
def test_a_model_of_x_transformers_gives_its_own_states(kind):
    library = pytest.importorskip("x_transformers")
    torch.manual_seed(0)
    layers = getattr(library, kind)(dim=32, depth=3, heads=4, attn_dim_head=8)
    model = (
        library.TransformerWrapper(num_tokens=100, max_seq_len=64, attn_layers=layers)
        .double()
        .eval()
    )
    ids = torch.randint(0, 100, (4, 9))
    with capture(model, ("hidden", "final")) as tap, torch.no_grad():
        model(ids)
        _, own = model(ids, return_intermediates=True)
    for layer, expected in enumerate(own.hiddens):
        assert torch.allclose(
            tap[f"{kind.lower()}.{layer}.hidden"], expected, rtol=0, atol=1e-9
        )
    assert torch.allclose(
        tap[f"{kind.lower()}.final"], own.last_hidden, rtol=0, atol=1e-9
    )


# ---- what is no torch module in Python code


def make_plain():
    return nn.TransformerEncoder(
        nn.TransformerEncoderLayer(16, 2, 24, batch_first=True), 2
    ).eval()


X = torch.zeros(2, 5, 16)


def of_library(module):
    kind = type("Model", (), {})
    kind.__module__ = module
    return kind()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: torch.jit.script(make_plain()),
            "torch.jit .*Cure: give the model that was scripted or traced",
        ),
        (
            lambda: torch.jit.trace(make_plain(), X, check_trace=False),
            "torch.jit .*which takes no hooks",
        ),
        (
            lambda: torch.export.export(make_plain(), (X,)),
            "torch.export .*Cure: give the model that was exported",
        ),
        (
            lambda: torch.export.export(make_plain(), (X,)).module(),
            "torch.export .*whose blocks are gone",
        ),
        (
            lambda: of_library("mlx.nn.layers.base"),
            "Model of MLX. Cure: load its weights in PyTorch, or give",
        ),
        (
            lambda: of_library("keras.src.models.functional"),
            "a model of PyTorch; got Model of Keras",
        ),
        (lambda: of_library("flax.nnx.module"), "a model of PyTorch; got Model of JAX"),
    ],
    ids=["jit.script", "jit.trace", "export", "export.module", "mlx", "keras", "jax"],
)
def test_what_cannot_be_hooked_is_said_in_one_sentence(make, says):
    model = make()
    for attempt in (
        lambda: anisoscope.measure(model, X),
        lambda: capture(model).__enter__(),
    ):
        with pytest.raises(UsageError, match=says) as error:
            attempt()
        assert "\n" not in str(error.value)
