"""What is trained and how: the recipes of classifiers and of language models, whose fields are the options of
`anisoscope train` and the keywords of `anisoscope_papers.train`. Light: the command line reads them without torch.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from anisoscope.data.corpora import Columns
from anisoscope.data.names import check_corpus, check_labelled, check_model
from anisoscope.errors import UsageError, near_matches
from anisoscope.options import INPUT, MACHINE, MODEL, OUTPUT, TRAINING, BuiltFrom, Option, check_device, check_fields

if TYPE_CHECKING:
    from anisoscope.data.labelled import LabelledCorpus

ATTENTION = "attention"
RANDOM = "random"
"""Word vectors drawn at random, where those of a file or a checkpoint are named."""
PUBLISHED = {
    True: {"rate": 1e-3, "decay": 0.0, "batch": 64, "epochs": 50, "patience": 5},
    False: {"rate": 5e-5, "decay": 0.01, "batch": 64, "epochs": 50, "patience": 5},
}
"""What the authors' code uses: for the attention-only model (True), and for BERT (False)."""
OF_ATTENTION = (
    *("layers", "heads", "dim", "text", "vectors", "vector_norm"),
    *("frozen", "tokens", "separator", "attention", "freeze_after", "positions", "position_scale"),
)
"""Fields that only the attention-only model uses."""
TOKENS = ("paper", "checkpoint")
ARMS = ("learned", "uniform", "random", "frozen")
"""How attention is trained: with the model; not at all, equal or random by position; for the first steps only."""
POSITIONS = ("sinusoidal", "none", "learned")
"""What is added to word vectors, as `AttentionClassifierConfig.positions` names it."""
VARIANTS = ("entropy", "entropy-columns")
"""Forms of the entropy penalty: on the row of [CLS], or on all columns."""


def check_penalty(variant: str, weight: float, layers: tuple[int, ...]) -> None:
    """UsageError for an entropy penalty that there cannot be."""
    if variant not in VARIANTS:
        raise UsageError(f"a penalty among {', '.join(VARIANTS)}", repr(variant), near_matches(variant, VARIANTS))
    if not (math.isfinite(weight) and weight >= 0):
        raise UsageError("a penalty weight of at least 0", str(weight), "use --weight 0 for no penalty")
    if any(layer < 1 for layer in layers):
        raise UsageError("layers counted from 1", str(layers), "the first layer is 1")


def penalty_layers_of(text: str) -> tuple[int, ...]:
    """`1,2` → (1, 2); `all` → ()."""
    if text.strip() == "all":
        return ()
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError("--penalty-layers as 1 or 1,2 or all", repr(text), "count layers from 1") from None


@dataclass(frozen=True)
class ClassifierRecipe:
    """How a classifier is trained. Everything here is part of its identity; None: the published value.

    limit, buckets     of every split, over all classes; whether utterances of similar length share a batch
    tokens             `paper`: words of the training split; `checkpoint`: the tokenizer of `vectors`, whole matrix
    text               the paper's equations (`attention_classifier.PAPER_TEXT`)
    penalty_layers     empty: all. The rate is constant after the warm-up
    """

    model: Annotated[
        str,
        Option(
            "attention (the attention-only model, from scratch), or any encoder to fine-tune",
            INPUT,
            argument=True,
            check=lambda name: None if name == ATTENTION else check_model(name),
        ),
    ] = ATTENTION
    corpus: Annotated[
        str,
        Option(
            "labelled: planted, planted-pairs, yelphat, hatexplain, esnli, imdb, yelp-polarity, 20newsgroups (see "
            "anisoscope list corpora), a .jsonl, .csv or .tsv table, a folder of them, a hub id",
            INPUT,
            ("--corpus", "-c"),
            check=check_labelled,
        ),
    ] = "planted"
    columns: Annotated[Mapping[str, str] | None, BuiltFrom(Columns)] = None
    limit: Annotated[int | None, Option("examples of each split, over all classes", INPUT, least=1)] = None
    layers: Annotated[int, Option("layers of the attention-only model", MODEL, least=1)] = 1
    heads: Annotated[int, Option("heads of the attention-only model", MODEL, least=1)] = 1
    dim: Annotated[int | None, Option("its width; default: that of the vectors, or 300", MODEL, least=2)] = None
    text: Annotated[bool, Option("the paper's equations instead of its code", MODEL)] = False
    vectors: Annotated[str, Option("word vectors: a GloVe or fastText file, a checkpoint, or random", MODEL)] = (
        "builtin:minilm"
    )
    vector_norm: Annotated[float | None, Option("scale the vectors to this mean norm", MODEL)] = None
    frozen: Annotated[bool, Option("do not train the vectors", MODEL)] = False
    tokens: Annotated[str, Option("paper (words of the training split) or checkpoint", MODEL, known=TOKENS)] = "paper"
    separator: Annotated[bool, Option("<sep> between the texts of a pair", MODEL)] = False
    attention: Annotated[
        str,
        Option(
            "learned, or trained without: uniform, random (fixed, by position), frozen (see --freeze-after)",
            MODEL,
            known=ARMS,
        ),
    ] = "learned"
    freeze_after: Annotated[
        int | None, Option("steps after which frozen attention stays; default: those of one epoch", MODEL, least=0)
    ] = None
    positions: Annotated[str, Option("added to word vectors: sinusoidal, learned, or none", MODEL, known=POSITIONS)] = (
        "sinusoidal"
    )
    position_scale: Annotated[float, Option("factor of the sinusoids", MODEL, least=0)] = 1.0
    penalty: Annotated[
        str, Option("none, entropy ([CLS] row) or entropy-columns", TRAINING, known=("none", *VARIANTS))
    ] = "none"
    weight: Annotated[float, Option("weight λ of the penalty", TRAINING)] = 0.0
    penalty_layers: Annotated[
        tuple[int, ...],
        Option("layers it acts on, from 1, with commas; all", TRAINING, parse=penalty_layers_of, shown="1"),
    ] = (1,)
    rate: Annotated[float | None, Option("learning rate; default: published (1e-3, or 5e-5)", TRAINING, least=0)] = None
    decay: Annotated[float | None, Option("weight decay; default: published (0, or 0.01)", TRAINING, least=0)] = None
    batch: Annotated[int | None, Option("utterances a step; default 64", TRAINING, least=1)] = None
    epochs: Annotated[int | None, Option("most epochs; default 50", TRAINING, least=1)] = None
    patience: Annotated[int | None, Option("epochs without a lower loss; default 5", TRAINING, least=1)] = None
    steps: Annotated[
        int | None, Option("train so many steps and keep the last; default: the best epoch is kept", TRAINING, least=1)
    ] = None
    warmup: Annotated[int, Option("steps of warm-up", TRAINING, least=0)] = 0
    clip: Annotated[float, Option("largest gradient norm; 0: none", TRAINING, least=0)] = 0.0
    buckets: bool = True
    max_length: Annotated[int | None, Option("longer utterances are cut, and counted", INPUT, least=3)] = None
    seed: Annotated[int, Option("of weights, order and dropout", TRAINING, least=0)] = 0
    split_seed: Annotated[int, Option("of splits the corpus does not have", INPUT, least=0)] = 0

    def __post_init__(self) -> None:
        if self.penalty != "none":
            check_penalty(self.penalty, self.weight, self.penalty_layers)
        elif self.weight != 0:
            raise UsageError(f"a penalty for --weight {self.weight}", "none", f"add --penalty {VARIANTS[0]}")
        norm = self.vector_norm
        if norm is not None and not (math.isfinite(norm) and norm > 0):
            raise UsageError("a finite vector norm above 0", str(norm), "change --vector-norm")
        check_fields(self)
        own = f"the model {self.model} (only the attention-only model has it)"
        unused = [] if self.is_attention else [(name, own) for name in OF_ATTENTION]
        unused += [("vector_norm", "--vectors random")] * (self.vectors == RANDOM)
        unused += [("separator", "--tokens checkpoint")] * (self.tokens == "checkpoint")
        unused += [("penalty_layers", "--penalty none")] * (self.penalty == "none")
        unused += [("attention", f"--penalty {self.penalty}")] * (self.penalty != "none")
        unused += [("freeze_after", f"--attention {self.attention}")] * (self.attention != "frozen")
        unused += [("position_scale", f"--positions {self.positions}")] * (self.positions != "sinusoidal")
        unused += [("positions", "--text (the paper's equations have none)")] * self.text
        unused += [("epochs", "--steps"), ("patience", "--steps")] * (self.steps is not None)
        for name, other in unused:
            value, option = getattr(self, name), f"--{name.replace('_', '-')}"
            if value != getattr(ClassifierRecipe, name):
                raise UsageError(f"no {option} with {other}", repr(value), f"leave {option} out")

    @property
    def is_attention(self) -> bool:
        return self.model == ATTENTION

    def filled(self) -> "ClassifierRecipe":
        """The recipe with the published values in place of None."""
        published: dict[str, Any] = PUBLISHED[self.is_attention]
        unused = ("epochs", "patience") if self.steps is not None else ()
        missing = {n: value for n, value in published.items() if getattr(self, n) is None and n not in unused}
        return replace(self, **missing)

    def open(self) -> "LabelledCorpus":
        """The corpus it trains on."""
        from anisoscope.data.labelled import open_labelled

        return open_labelled(self.corpus, columns=self.columns, seed=self.split_seed, limit=self.limit)


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
        if self.preset not in SIZES:
            raise UsageError("a preset", repr(self.preset), near_matches(self.preset, SIZES))
        changes = {name: value for name, value in asdict(self).items() if value is not None}
        if self.vocab_size is not None:
            changes["vocabulary"] = changes.pop("vocab_size")
        del changes["preset"]
        return replace(SIZES[self.preset], **changes)


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
        if self.task not in TASKS:
            raise UsageError(f"a task among {', '.join(TASKS)}", repr(self.task), near_matches(self.task, TASKS))
        check_fields(self)
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

    def share(self, step: int) -> float:
        """Share of the learning rate: it rises from step 1 on (which the library gives rate 0), then falls to 0."""
        rising = max(1, min(LONGEST_WARM_UP, int(WARM_UP * self.last)))
        return max(0.0, min((step + 1) / rising, (self.last - step) / max(1, self.last - rising)))

    def identity(self, corpus: str, vocabulary: int) -> dict[str, Any]:
        """What the weights depend on; of the corpus its fingerprint, of the vocabulary its size."""
        from anisoscope.provenance import code_version

        described = asdict(self) | {"steps": self.last, "data_seed": self.order}
        for name in ("device", "report_to"):
            described.pop(name)
        described |= {"corpus_fingerprint": corpus, "vocabulary_size": vocabulary}
        return described | {"code": code_version()["version"]}
