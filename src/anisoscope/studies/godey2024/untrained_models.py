"""Untrained models for the experiment of the biased block: one block, or a stack, and the input of the first.

"Initialised as BERT" (section 4) can be read in four ways, which give different answers; each has its name:

    bert:raw-table       rows of the word table go straight into the block; library initialisation (std .02, biases 0)
    bert:bare-layer      the same table; linear layers as PyTorch initialises them (uniform ±1/√fan_in, biases too)
    bert:unit-embedding  as bare-layer, with the table as PyTorch initialises it (std 1)
    bert:full-embedding  word + position + type, then LayerNorm; library initialisation: the block as it stands in BERT

Other families are built by the library with its own initialisation: `gpt2` (pre-norm), `llama` (RMSNorm, rotary), `t5`
(encoder), `vit`.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from anisoscope.errors import UsageError, near_matches
from anisoscope.models.blocks import find_blocks

READINGS = ("bert:raw-table", "bert:bare-layer", "bert:unit-embedding", "bert:full-embedding")
FAMILIES = ("gpt2", "llama", "t5", "vit")
READING_NAMES = {
    "bert:raw-table": "raw table",
    "bert:bare-layer": "bare layer",
    "bert:unit-embedding": "unit embedding",
    "bert:full-embedding": "full embedding layer",
}


def label(system: str) -> str:
    """A system as charts name it: the reading of "initialised as BERT", else the family."""
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
        if self.width % self.heads or self.width // self.heads % 2:
            expected = "a width that is an even multiple of the number of heads"
            raise UsageError(expected, f"{self.width} over {self.heads} heads", "choose width = heads × an even number")

    def named(self, system: str) -> str:
        """`system` with what sets it apart from one block of BERT-base: `gpt2 × 12`, `bert:raw-table, scale 2`."""
        name = f"{system} × {self.blocks}" if self.blocks > 1 else system
        for what in ("width", "heads", "scale"):
            if getattr(self, what) != getattr(Size, what):
                name += f", {what} {getattr(self, what):g}"
        return name


@dataclass(frozen=True)
class Untrained:
    """An untrained model and what its first block is fed.

    inputs     what the model is called with, so that masks and positions are its own
    fed        [sequence, token, dim]: input of the first block before the bias
    direction  [dim]: the bias direction, of norm 1
    stage      of the queries and keys that the scores are made of; `attention_scale`: the factor of the scores
    """

    model: nn.Module
    inputs: dict[str, Tensor]
    fed: Float[Tensor, "sequence token dim"]
    direction: Float[Tensor, " dim"]
    stage: str
    attention_scale: float
    causal: bool
    position_bias: bool

    @contextmanager
    def feeding(self) -> Iterator[Callable[[Tensor], None]]:
        """Inside, the function given out sets what the first block reads [sequence, token, dim]."""
        put: list[Tensor] = []

        def replace(
            _block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> tuple[tuple[Any, ...], dict[str, Any]]:
            return ((put[-1], *args[1:]), kwargs) if args else ((), kwargs | {"hidden_states": put[-1]})

        handle = _first_block(self.model).register_forward_pre_hook(replace, with_kwargs=True, prepend=True)
        try:
            yield lambda x: put.__setitem__(slice(None), [x])
        finally:
            handle.remove()


def untrained(system: str, size: Size, seed: int, device: str = "cpu", dtype: str = "float32") -> Untrained:
    """Weights, inputs and bias direction drawn for `seed`, independently; systems share inputs and direction."""
    family, _, _ = system.partition(":")
    if system not in (*READINGS, *FAMILIES):
        raise UsageError("an untrained system", repr(system), near_matches(system, (*READINGS, *FAMILIES)))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_stream(seed, "weights"))
        model = _MAKE[family](size).eval()
        if system in ("bert:bare-layer", "bert:unit-embedding"):
            _as_pytorch(model, size.scale)
        if system == "bert:unit-embedding":
            nn.init.normal_(model.embeddings.word_embeddings.weight)
    drawn = torch.Generator().manual_seed(_stream(seed, "inputs"))
    inputs = _inputs(model, size, drawn)
    model, inputs = model.to(device, getattr(torch, dtype)), {name: x.to(device) for name, x in inputs.items()}
    raw = family == "bert" and system != "bert:full-embedding"
    fed = _word_rows(model, inputs["input_ids"]) if raw else _embedded(model, inputs)
    normal = torch.randn(
        size.width, generator=torch.Generator().manual_seed(_stream(seed, "direction")), dtype=torch.float64
    )
    return Untrained(
        model,
        inputs,
        fed,
        (normal / normal.norm()).to(fed),
        stage="rotated" if family == "llama" else "raw",
        attention_scale=1.0 if family == "t5" else (size.width // size.heads) ** -0.5,
        causal=family in ("gpt2", "llama"),
        position_bias=family == "t5",
    )


def _stream(seed: int, what: str) -> int:
    """Independent random streams of one seed."""
    return 1000 * seed + ("weights", "inputs", "direction").index(what)


def _inputs(model: Any, size: Size, drawn: torch.Generator) -> dict[str, Tensor]:
    """Ids drawn uniformly over the vocabulary; for images, pixels drawn from N(0, 1)."""
    if hasattr(model.config, "image_size"):
        side = model.config.image_size
        return {"pixel_values": torch.randn(size.sequences, 3, side, side, generator=drawn)}
    ids: Int[Tensor, "sequence token"] = torch.randint(
        model.config.vocab_size, (size.sequences, size.tokens), generator=drawn
    )
    return {"input_ids": ids}


@torch.no_grad()
def _word_rows(model: Any, ids: Tensor) -> Tensor:
    rows: Tensor = model.embeddings.word_embeddings(ids)
    return rows


@torch.no_grad()
def _embedded(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    """Output of the model's own embedding, the input of the first block."""
    seen: list[Tensor] = []

    def look(_block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen.append(args[0] if args else kwargs["hidden_states"])

    handle = _first_block(model).register_forward_pre_hook(look, with_kwargs=True)
    model(**inputs)
    handle.remove()
    return seen[0]


def _first_block(model: nn.Module) -> nn.Module:
    (blocks,) = find_blocks(model).values()
    return blocks[0]


def _as_pytorch(model: Any, scale: float) -> None:
    """Linear layers of the blocks drawn again as PyTorch does by default."""
    for module in model.encoder.modules():
        if isinstance(module, nn.Linear):
            module.reset_parameters()
            with torch.no_grad():
                module.weight.mul_(scale)


def _bert(size: Size) -> nn.Module:
    from transformers import BertConfig, BertModel

    config = BertConfig(**_common(size), max_position_embeddings=max(512, size.tokens))
    return BertModel(_scaled(config, size), add_pooling_layer=False)


def _gpt2(size: Size) -> nn.Module:
    from transformers import GPT2Config, GPT2Model

    positions = max(1024, size.tokens)
    config = GPT2Config(
        n_embd=size.width, n_layer=size.blocks, n_head=size.heads, n_positions=positions, use_cache=False
    )
    return GPT2Model(_scaled(config, size))


def _llama(size: Size) -> nn.Module:
    from transformers import LlamaConfig, LlamaModel

    sizes = _common(size) | {"intermediate_size": size.width * 8 // 3}
    return LlamaModel(_scaled(LlamaConfig(**sizes, num_key_value_heads=size.heads, use_cache=False), size))


def _t5(size: Size) -> nn.Module:
    from transformers import T5Config, T5EncoderModel

    config = T5Config(
        d_model=size.width,
        d_ff=4 * size.width,
        d_kv=size.width // size.heads,
        num_heads=size.heads,
        num_layers=size.blocks,
        initializer_factor=size.scale,
    )
    return T5EncoderModel(config)


def _vit(size: Size) -> nn.Module:
    from transformers import ViTConfig, ViTModel

    return ViTModel(_scaled(ViTConfig(**_common(size)), size), add_pooling_layer=False)


def _common(size: Size) -> dict[str, Any]:
    return {
        "hidden_size": size.width,
        "num_hidden_layers": size.blocks,
        "num_attention_heads": size.heads,
        "intermediate_size": 4 * size.width,
    }


def _scaled(config: Any, size: Size) -> Any:
    config.initializer_range *= size.scale
    return config


_MAKE: dict[str, Callable[[Size], Any]] = {"bert": _bert, "gpt2": _gpt2, "llama": _llama, "t5": _t5, "vit": _vit}
