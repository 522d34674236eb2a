"""Sizes of language models trained from scratch, from seconds on a laptop to BERT-base, and how one is trained."""

import os
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from anisoscope.data.names import check_corpus
from anisoscope.errors import UsageError, near_matches
from anisoscope.options import INPUT, MACHINE, MODEL, OUTPUT, TRAINING, BuiltFrom, Option, check_device

if TYPE_CHECKING:
    from anisoscope.data.text import TextCorpus
    from anisoscope.training.windows import Tokens

Task = Literal["masked-lm", "causal-lm"]
TASKS: tuple[Task, ...] = ("masked-lm", "causal-lm")


@dataclass(frozen=True)
class ModelSize:
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


SIZES: dict[str, ModelSize] = {
    "tiny": ModelSize(2, 64, 2, 1024, 32, 16, 2e-3, 1_000),
    "small": ModelSize(4, 128, 4, 4096, 64, 32, 1e-3, 10_000),
    "mini": ModelSize(4, 256, 4, 8192, 128, 64, 1e-3, 50_000),
    "bert-small": ModelSize(4, 512, 8, 30_522, 128, 256, 5e-4, 200_000, 0.1),
    "bert-base": ModelSize(12, 768, 12, 30_522, 512, 256, 1e-4, 1_000_000, 0.1),
}
"""`mini`, `bert-small`: Turc et al. 2019; `bert-base`: Devlin et al. 2019. The smaller ones train without dropout."""


def size_named(name: str, **changes: Any) -> ModelSize:
    """The preset `name` with some fields changed (None: as it is). UsageError with near matches."""
    if name not in SIZES:
        raise UsageError("a preset", repr(name), near_matches(name, SIZES))
    size = replace(SIZES[name], **{key: value for key, value in changes.items() if value is not None})
    if size.width % size.heads:
        raise UsageError("heads that divide the width", f"{size.heads} heads for {size.width} dimensions", "change one")
    return size


@dataclass(frozen=True)
class Sizes:
    """A preset by name, and what is changed of it."""

    preset: Annotated[str, Option("tiny, small, mini, bert-small or bert-base", MODEL, known=tuple(SIZES))] = "small"
    vocab_size: Annotated[int | None, Option("most tokens learnt; default: the preset's", MODEL, least=300)] = None
    window: Annotated[int | None, Option("tokens a sequence; default: the preset's", MODEL, least=4)] = None
    batch: Annotated[int | None, Option("sequences a step, over all devices", TRAINING, least=1)] = None
    rate: Annotated[float | None, Option("highest learning rate; default: the preset's", TRAINING, least=0)] = None
    dropout: Annotated[
        float | None, Option("default: the preset's (0 for small ones)", TRAINING, least=0, most=0.9)
    ] = None

    def build(self) -> ModelSize:
        """The size. UsageError with near matches for a preset that there is not."""
        changes = {name: getattr(self, name) for name in ("window", "batch", "rate", "dropout")}
        return size_named(self.preset, vocabulary=self.vocab_size, **changes)


PRECISIONS = ("float32", "bfloat16", "float16")
WARM_UP, LONGEST_WARM_UP = 0.05, 10_000
"""The learning rate rises over 5 % of the steps, 10,000 at most, then falls linearly."""


@dataclass(frozen=True)
class Training:
    """What is trained, on what, how long. Everything but the last two fields is part of its identity.

    seed, data_seed   of the weights (and dropout); of the order of the windows and their masks (None: as `seed`)
    per_octave        checkpoints each time the number of steps doubles, besides 0 and the last
    accumulate        batches a step is split into where memory is short
    """

    task: Task = "masked-lm"
    corpus: Annotated[
        str,
        Option("text as in measure: name, hub data set, file or folder", INPUT, ("--corpus", "-c"), check=check_corpus),
    ] = "builtin:python-docs"
    size: Annotated[ModelSize, BuiltFrom(Sizes)] = SIZES["small"]
    steps: Annotated[int | None, Option("default: the preset's", TRAINING, least=1)] = None
    seed: Annotated[int, Option("seed of the weights and of dropout", TRAINING, least=0)] = 0
    data_seed: Annotated[
        int | None, Option("seed of the order of the text and of the masks; default: as --seed", TRAINING, least=0)
    ] = None
    vocabulary: Annotated[
        str | None, Option("checkpoint whose vocabulary is taken; default: one learnt on the corpus", INPUT)
    ] = None
    per_octave: Annotated[int, Option("checkpoints each time the number of steps doubles", TRAINING, least=1)] = 2
    precision: Annotated[
        str, Option("float32, or mixed precision: bfloat16, float16", MACHINE, ("--dtype",), known=PRECISIONS)
    ] = "float32"
    accumulate: Annotated[int, Option("parts a batch is split into where memory is short", MACHINE, least=1)] = 1
    split: Annotated[str | None, Option("split of a hub data set", INPUT)] = None
    column: Annotated[str | None, Option("text column of a table", INPUT)] = None
    limit: Annotated[int | None, Option("first N documents only", INPUT, least=1)] = None
    device: Annotated[str, Option("cpu or cuda (several: start it with torchrun)", MACHINE, check=check_device)] = "cpu"
    report_to: Annotated[tuple[str, ...], Option("trackers, with commas: tensorboard, wandb, trackio", OUTPUT)] = ()

    def __post_init__(self) -> None:
        for what, value, known in (("a task", self.task, TASKS), ("a precision", self.precision, PRECISIONS)):
            if value not in known:
                raise UsageError(f"{what} among {', '.join(known)}", repr(value))
        if self.last < 1 or self.per_octave < 1 or self.accumulate < 1:
            raise UsageError("steps, checkpoints per octave and batches a step of at least 1", "less", "raise them")
        parts = int(os.environ.get("WORLD_SIZE", "1")) * self.accumulate  # as torchrun gives it
        if self.size.batch % parts:
            got = f"{self.size.batch} sequences over {parts} parts (processes × --accumulate)"
            raise UsageError("a batch that can be split evenly", got, f"use a multiple of {parts} for --batch")

    @property
    def preset(self) -> str:
        """The preset whose shape it has."""
        shape = (self.size.layers, self.size.width, self.size.heads)
        return next(name for name, size in SIZES.items() if (size.layers, size.width, size.heads) == shape)

    @property
    def last(self) -> int:
        """The last step."""
        return self.size.steps if self.steps is None else self.steps

    @property
    def order(self) -> int:
        """The seed of the data."""
        return self.seed if self.data_seed is None else self.data_seed

    @property
    def warm_up(self) -> int:
        return max(1, min(LONGEST_WARM_UP, int(WARM_UP * self.last)))

    def identity(self, corpus: "TextCorpus", tokens: "Tokens") -> dict[str, Any]:
        from anisoscope.provenance import code_version

        described = asdict(self) | {"steps": self.last, "data_seed": self.order}
        for name in ("device", "report_to"):
            described.pop(name)
        described |= {"corpus_fingerprint": corpus.fingerprint, "vocabulary_size": tokens.vocabulary}
        return described | {"code": code_version()["version"]}


def untrained(task: Task, size: ModelSize, tokenizer: Any, seed: int) -> Any:
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
