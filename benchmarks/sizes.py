"""What measuring costs models of the sizes that people have: ratios to the bare forward pass.

    python benchmarks/sizes.py                            # every model at its lengths: hours on a CPU, with all layers
    python benchmarks/sizes.py --models llama-like --lengths 1024 --sides left --layers 1 --pairs 1

Weights are drawn anew; a batch has sequences of unequal lengths, padded on one side. With fewer `--layers` a pass is
shorter, and its ratio larger: vectors are measured before the first layer too.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from overhead import CASES, Running, bare
from pairs import BARE, against, keep_by_threads, options, told
from transformers import (
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2Model,
    LlamaConfig,
    LlamaModel,
    ViTConfig,
    ViTModel,
)

from anisoscope.batch import Batch, Stream

VOCABULARY, LONGEST, TOKENS = 1000, 4096, 2048


def bert_base(layers: int) -> Any:
    sizes = {
        "num_hidden_layers": layers,
        "max_position_embeddings": LONGEST,
        "vocab_size": VOCABULARY,
    }
    return BertModel(BertConfig(**sizes))


def gpt2(layers: int) -> Any:
    return GPT2Model(
        GPT2Config(
            n_layer=layers, n_positions=LONGEST, vocab_size=VOCABULARY, use_cache=False
        )
    )


def llama_like(layers: int) -> Any:
    """Of 1,024 dimensions, 16 heads that share 8 keys, in bfloat16."""
    heads = {
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "hidden_size": 1024,
        "intermediate_size": 2816,
    }
    sizes = {
        "num_hidden_layers": layers,
        "max_position_embeddings": LONGEST,
        "vocab_size": VOCABULARY,
    }
    return LlamaModel(LlamaConfig(**heads, **sizes, use_cache=False)).bfloat16()


def vit_base(layers: int) -> Any:
    return ViTModel(ViTConfig(num_hidden_layers=layers), add_pooling_layer=False)


MODELS: dict[str, tuple[Callable[[int], Any], int, str, tuple[int, ...]]] = {
    "bert-base": (bert_base, 12, "encoder", (512, 1024, 2048, 4096)),
    "gpt2": (gpt2, 12, "decoder", (512, 1024)),
    "llama-like": (llama_like, 8, "decoder", (1024, 2048, 4096)),
    "vit-base": (vit_base, 12, "encoder", (197,)),
}
"""How a model is built, its layers, its stack, and the lengths of its longest sequences."""


def batch_of_text(longest: int, side: str, stack: str) -> Batch:
    """Random ids: a sequence of the whole length, others of three quarters and of a half and one token."""
    lengths = torch.tensor(
        [longest, 3 * longest // 4, longest // 2 + 1][: max(1, TOKENS // longest)]
    ).unsqueeze(1)
    position = torch.arange(longest)
    mask = position >= longest - lengths if side == "left" else position < lengths
    ids = (
        torch.randint(
            1, VOCABULARY, mask.shape, generator=torch.Generator().manual_seed(0)
        )
        * mask
    )
    unit = torch.arange(len(mask))
    stream = Stream(mask, torch.zeros_like(mask), torch.zeros_like(unit))
    return Batch(
        {"input_ids": ids, "attention_mask": mask.long()}, unit, {stack: stream}
    )


def batch_of_images(longest: int, stack: str) -> Batch:
    pixels = torch.randn(4, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    unit, every = torch.arange(4), torch.ones(4, longest, dtype=torch.bool)
    return Batch(
        {"pixel_values": pixels},
        unit,
        {stack: Stream(every, ~every, torch.zeros_like(unit))},
    )


def compared(name: str, given: Any) -> Iterator[dict[str, object]]:
    """A row for each length, side and choice of panels."""
    build, layers, stack, lengths = MODELS[name]
    layers = given.layers or layers
    torch.manual_seed(0)
    model = build(layers).eval()
    for longest in given.lengths or lengths:
        for side in given.sides if name != "vit-base" else ["none"]:
            images = side == "none"
            batch = (
                batch_of_images(longest, stack)
                if images
                else batch_of_text(longest, side, stack)
            )
            cases = {panels: Running(model, CASES[panels]) for panels in given.panels}
            found = against(bare(model), cases, [[batch]], given.pairs)
            place = {
                "model": name,
                "layers": layers,
                "length": longest,
                "padding": side,
            }
            for panels in cases:
                print(
                    f"{name} {longest} {side}: {panels} {told(found[panels])} × bare",
                    flush=True,
                )
                both = {clock: found[BARE][clock] for clock in ("processor", "wall")}
                yield (
                    place
                    | {"panels": panels, "dtype": str(model.dtype)[6:], "bare": both}
                    | found[panels]
                )


def main(argv: Sequence[str] | None = None) -> None:
    parser = options(__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument(
        "--lengths", nargs="+", type=int, help="of the longest sequence"
    )
    parser.add_argument(
        "--sides", nargs="+", choices=("left", "right"), default=["right", "left"]
    )
    parser.add_argument(
        "--panels", nargs="+", choices=CASES, default=["all", "all, fused"]
    )
    parser.add_argument("--layers", type=int, help="so many of the model's")
    given = parser.parse_args(argv)

    def measure() -> Iterator[dict[str, Any]]:
        for name in given.models:
            yield from compared(name, given)

    key = ("model", "layers", "length", "padding", "panels")
    keep_by_threads(given, "sizes", measure, key)


if __name__ == "__main__":
    main()
