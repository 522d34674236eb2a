"""Sizes of language models trained from scratch, from seconds on a laptop to BERT-base."""

from dataclasses import dataclass, replace
from typing import Any, Literal

from anisoscope.errors import UsageError, near_matches

Task = Literal["masked-lm", "causal-lm"]
TASKS: tuple[Task, ...] = ("masked-lm", "causal-lm")


@dataclass(frozen=True)
class Size:
    """Architecture and recipe of one preset.

    layers, width, heads   of the encoder (masked: BERT) or decoder (causal: GPT-2); feed-forward width is 4 × `width`
    vocabulary             most tokens of a vocabulary learnt on the corpus
    window, batch          tokens a sequence, special ones counted; sequences a step, over all devices
    rate, steps            highest learning rate and steps, where none are asked for
    """

    layers: int
    width: int
    heads: int
    vocabulary: int
    window: int
    batch: int
    rate: float
    steps: int
    dropout: float = 0.0


SIZES: dict[str, Size] = {
    "tiny": Size(2, 64, 2, 1024, 32, 16, 2e-3, 1_000),
    "small": Size(4, 128, 4, 4096, 64, 32, 1e-3, 10_000),
    "mini": Size(4, 256, 4, 8192, 128, 64, 1e-3, 50_000),
    "bert-small": Size(4, 512, 8, 30_522, 128, 256, 5e-4, 200_000, 0.1),
    "bert-base": Size(12, 768, 12, 30_522, 512, 256, 1e-4, 1_000_000, 0.1),
}
"""`mini`, `bert-small`: Turc et al. 2019; `bert-base`: Devlin et al. 2019. The smaller ones train without dropout."""


def size_named(name: str, **changes: Any) -> Size:
    """The preset `name` with some fields changed (None: as it is). UsageError with near matches."""
    if name not in SIZES:
        raise UsageError("a preset", repr(name), near_matches(name, SIZES))
    size = replace(SIZES[name], **{key: value for key, value in changes.items() if value is not None})
    if size.width % size.heads:
        raise UsageError("heads that divide the width", f"{size.heads} heads for {size.width} dimensions", "change one")
    return size


def untrained(task: Task, size: Size, tokenizer: Any, seed: int) -> Any:
    """A BERT or GPT-2 of this size with the library's initialisation drawn from `seed`, in training mode."""
    import torch
    import transformers

    from anisoscope.training.masked_lm import BertForMaskedLM

    vocab = len(tokenizer)
    torch.manual_seed(seed)
    config: Any
    if task == "masked-lm":
        config = transformers.BertConfig(
            vocab_size=vocab,
            hidden_size=size.width,
            num_hidden_layers=size.layers,
            num_attention_heads=size.heads,
            intermediate_size=4 * size.width,
            max_position_embeddings=size.window,
            hidden_dropout_prob=size.dropout,
            attention_probs_dropout_prob=size.dropout,
            pad_token_id=tokenizer.pad_token_id,
        )
        return BertForMaskedLM(config).train()
    end = tokenizer.eos_token_id
    config = transformers.GPT2Config(
        vocab_size=vocab,
        n_embd=size.width,
        n_layer=size.layers,
        n_head=size.heads,
        n_positions=size.window,
        resid_pdrop=size.dropout,
        embd_pdrop=size.dropout,
        attn_pdrop=size.dropout,
        bos_token_id=end,
        eos_token_id=end,
        use_cache=False,
    )
    return transformers.GPT2LMHeadModel(config).train()
