"""Untrained models for the experiment of the biased block: one block, or a stack, and the input of the first.

"Initialised as BERT" (section 4) can be read in four ways, which give different answers; each has its name, and so has
a fifth, which tells what the type vector alone does:

    bert:raw-table       rows of the word table go straight into the block; library initialisation (std .02, biases 0)
    bert:bare-layer      the same table; linear layers as PyTorch initialises them (uniform ±1/√fan_in, biases too)
    bert:unit-embedding  as bare-layer, with the table as PyTorch initialises it (std 1)
    bert:full-embedding  word + position + type, then LayerNorm; library initialisation: the block as it stands in BERT
    bert:no-type         as full-embedding, with the type vector, which all tokens share, set to 0

Other families are built by the library with its own initialisation: `gpt2` (pre-norm), `llama` (RMSNorm, rotary), `t5`
(encoder), `vit`.
"""

import re
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from anisoscope.errors import UsageError, suggest_names
from anisoscope.models.blocks import find_blocks

READING_NAMES = {
    "bert:raw-table": "raw table",
    "bert:bare-layer": "bare layer",
    "bert:unit-embedding": "unit embedding",
    "bert:full-embedding": "full embedding layer",
    "bert:no-type": "full embedding layer without type",
}
READINGS = (
    "bert:raw-table",
    "bert:bare-layer",
    "bert:unit-embedding",
    "bert:full-embedding",
)
WITHOUT_TYPE = "bert:no-type"
FAMILIES = ("gpt2", "llama", "t5", "vit")


def label(system: str) -> str:
    """Return the name of a system (model) in charts, with its size: `bert:raw-table × 12` → `raw table × 12`.

    The part after `bert:` says how the paper's "initialised as BERT" is read; other families keep their names.
    """
    # `Size.named` appends ` × 12` for the depth and `, scale 2` for the rest.
    base = re.split(" × |, ", system, maxsplit=1)[0]
    return READING_NAMES.get(base, base) + system.removeprefix(base)


@dataclass(frozen=True)
class Size:
    """Size of a model and of its input: `blocks` of width `width`; the dimension of a head is width / heads.

    scale  multiplies the initial weights of the blocks (1: as the library draws them)
    """

    sequences: int = 16
    tokens: int = 512
    blocks: int = 1
    width: int = 768
    heads: int = 12
    scale: float = 1.0

    def __post_init__(self) -> None:
        """Raise UsageError unless the width is an even multiple of the number of heads."""
        if self.width % self.heads or self.width // self.heads % 2:
            expected = "a width that is an even multiple of the number of heads"
            raise UsageError(
                expected,
                f"{self.width} over {self.heads} heads",
                "choose width = heads × an even number",
            )

    def named(self, system: str) -> str:
        """Return the system's name, followed by every way in which this size differs from one block of BERT-base.

        `gpt2` with 12 blocks → `gpt2 × 12`; `bert:raw-table` with scale 2 → `bert:raw-table, scale 2`.
        """
        name = f"{system} × {self.blocks}" if self.blocks > 1 else system
        for what in ("width", "heads", "scale"):
            if getattr(self, what) != getattr(Size, what):
                name += f", {what} {getattr(self, what):g}"
        return name


@dataclass(frozen=True)
class Untrained:
    """An untrained model, and the input of its first block.

    inputs     what the model is called with, so that masks and positions are its own
    fed        [sequence, token, dim]: input of the first block before the bias
    direction  [dim]: the bias direction, of norm 1
    stage      the stage of queries and keys from which scores are computed (`rotated`: after rotary positions; else
    `raw`)
    attention_scale  the factor of the scores
    """

    model: nn.Module
    inputs: dict[str, Tensor]
    fed: Float[Tensor, "sequence token dim"]
    direction: Float[Tensor, " dim"]
    stage: str
    attention_scale: float
    causal: bool
    position_bias: bool

    def run(self, chosen: Tensor | slice, x: Tensor) -> Any:
        """Run the model on the `chosen` sequences, with x [sequence, token, dim] in place of its first
        block's input.
        """

        # The model itself is called, with ids or pixels, so that its masks and
        # positions are its own; only the first block's input is exchanged.
        def feed(
            _block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> tuple[Any, dict[str, Any]]:
            """Replace the hidden states in the arguments of the first block; return its new (args, kwargs)."""
            # Some families pass the hidden states by position, others by name.
            if args:
                return ((x, *args[1:]), kwargs)
            return ((), kwargs | {"hidden_states": x})

        ((first, *_),) = find_blocks(self.model).values()
        # Before the hooks that capture: layer 0 must be what the block really reads.
        handle = first.register_forward_pre_hook(feed, with_kwargs=True, prepend=True)
        try:
            return self.model(
                **{name: value[chosen] for name, value in self.inputs.items()}
            )
        finally:
            handle.remove()


def build_untrained(
    system: str, size: Size, seed: int, device: str = "cpu", dtype: str = "float32"
) -> Untrained:
    """Build an untrained system (model), with weights, inputs and the direction of the bias drawn from `seed`.

    Inputs are uniform token ids, or pixels from N(0, 1). All systems of a seed share the draws of inputs and direction.
    UsageError for an unknown system.
    """
    known = (*READING_NAMES, *FAMILIES)
    if system not in known:
        raise UsageError(
            "an untrained system", repr(system), suggest_names(system, known)
        )
    family, _, reading = system.partition(":")
    # Streams of their own, so that the draws do not depend on how many weights a model has.
    inputs_drawn = torch.Generator().manual_seed(1000 * seed + 1)
    direction_drawn = torch.Generator().manual_seed(1000 * seed + 2)
    # The library draws weights from the global generator, whose state is the caller's.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1000 * seed)
        model = _build_model(family, size).eval()
        _change_weights(model, system, size)
    inputs = _draw_inputs(model, family, size, inputs_drawn)
    inputs = {name: x.to(device) for name, x in inputs.items()}
    # Built on the CPU in float32 first: every device and dtype gets the same weights.
    model = model.to(device, getattr(torch, dtype))
    with torch.no_grad():
        # What the first block reads: word vectors alone, or all that the model adds to them.
        if family == "bert" and reading not in ("full-embedding", "no-type"):
            fed = model.embeddings.word_embeddings(inputs["input_ids"])
        else:
            fed = model(**inputs, output_hidden_states=True).hidden_states[0]
    normal = torch.randn(size.width, generator=direction_drawn, dtype=torch.float64)
    return Untrained(
        model,
        inputs,
        fed,
        (normal / normal.norm()).to(fed),
        stage="rotated" if family == "llama" else "raw",
        # T5 does not scale its scores: its initialisation does.
        attention_scale=1.0 if family == "t5" else (size.width // size.heads) ** -0.5,
        causal=family in ("gpt2", "llama"),
        position_bias=family == "t5",
    )


def _change_weights(model: Any, system: str, size: Size) -> None:
    """Change the weights of a model in place, if its `system` differs from the library's initialisation.

    `bert:bare-layer` and `bert:unit-embedding` have weights as PyTorch draws them, `bert:no-type` a type vector of 0.
    """
    _, _, reading = system.partition(":")
    if reading in ("bare-layer", "unit-embedding"):
        # Linear layers of the blocks as PyTorch draws them.
        for module in model.encoder.modules():
            if isinstance(module, nn.Linear):
                module.reset_parameters()
                # The library's initialisation is scaled where it is configured; here it
                # is drawn again.
                module.weight.data.mul_(size.scale)
    if reading == "unit-embedding":
        nn.init.normal_(model.embeddings.word_embeddings.weight)
    if system == WITHOUT_TYPE:
        nn.init.zeros_(model.embeddings.token_type_embeddings.weight)


def _draw_inputs(
    model: Any, family: str, size: Size, drawn: torch.Generator
) -> dict[str, Tensor]:
    """Draw the inputs of a model: uniform token ids [sequence, token], or pixels [image, 3, side, side] from N(0, 1).

    `drawn`: the generator.
    """
    if family == "vit":
        side = model.config.image_size
        return {
            "pixel_values": torch.randn(size.sequences, 3, side, side, generator=drawn)
        }
    ids = torch.randint(
        model.config.vocab_size, (size.sequences, size.tokens), generator=drawn
    )
    return {"input_ids": ids}


def _build_model(family: str, size: Size) -> Any:
    """Build a model of this family and size by transformers, with its own initialisation; weights of the blocks are
    scaled.
    """
    import transformers

    library: Any = transformers  # part of it has no types
    width = size.width
    heads = size.heads
    more: dict[str, dict[str, Any]] = {
        "bert": {
            "intermediate_size": 4 * width,
            "max_position_embeddings": max(512, size.tokens),
        },
        "gpt2": {"max_position_embeddings": max(1024, size.tokens), "use_cache": False},
        "llama": {
            "intermediate_size": width * 8 // 3,
            "num_key_value_heads": heads,
            "use_cache": False,
        },
        "t5": {
            "d_ff": 4 * width,
            "d_kv": width // heads,
            "initializer_factor": size.scale,
        },
        "vit": {"intermediate_size": 4 * width},
    }
    shape = {
        "hidden_size": width,
        "num_hidden_layers": size.blocks,
        "num_attention_heads": heads,
    }
    config = library.AutoConfig.for_model(family, **shape, **more[family])
    if family == "t5":
        return library.T5EncoderModel(config)
    # T5 scales by `initializer_factor`, the others by the standard deviation.
    config.initializer_range *= size.scale
    # A pooler reads the last block, and nothing here reads the pooler.
    return library.AutoModel.from_config(
        config, **({"add_pooling_layer": False} if family in ("bert", "vit") else {})
    )
