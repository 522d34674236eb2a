"""Define the recipes of classifiers and language models; their fields are the options of `anisoscope train` and of
Python.

It imports nothing heavy: the command line reads it without torch.
"""

import math
import os
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import Field

from anisoscope.data.corpora import Columns
from anisoscope.errors import UsageError, suggest_names
from anisoscope.options import (
    INPUT,
    MACHINE,
    MODEL,
    OUTPUT,
    PYTHON_ONLY,
    TRAINING,
    CorpusName,
    Device,
    Names,
    Number,
    Text,
    Whole,
    declare_settings,
    list_field_names,
    option,
    select_fields,
    split_numbers,
)
from anisoscope.runs.job import ModelAndCorpus
from anisoscope_papers.origin import hash_training_code

if TYPE_CHECKING:
    from anisoscope.data.labelled import LabelledCorpus

ATTENTION = "attention"
RANDOM = "random"
"""In place of a file or checkpoint of word vectors: they are drawn at random."""
PUBLISHED = {
    True: {"rate": 1e-3, "decay": 0.0, "batch": 64, "epochs": 50, "patience": 5},
    False: {"rate": 5e-5, "decay": 0.01, "batch": 64, "epochs": 50, "patience": 5},
}
"""What the authors' code uses: for the attention-only model (True), and for BERT (False)."""
OF_ATTENTION = (
    *("layers", "heads", "dim", "text", "vectors", "vector_norm", "vector_cosine"),
    *(
        "frozen",
        "tokens",
        "separator",
        "attention",
        "freeze_after",
        "positions",
        "position_scale",
    ),
)
"""Fields that only the attention-only model uses."""
Tokens = Literal["paper", "checkpoint"]
Arm = Literal["learned", "uniform", "random", "frozen"]
"""How attention is trained: with the model; not at all, equal or random by position; for the first steps only."""
ARMS: tuple[Arm, ...] = get_args(Arm)
Positions = Literal["sinusoidal", "none", "learned"]
"""What is added to word vectors, as `AttentionClassifierConfig.positions` names it."""
POSITIONS: tuple[Positions, ...] = get_args(Positions)
Variant = Literal["entropy", "entropy-columns"]
"""Forms of the entropy penalty: on the row of [CLS], or on all columns."""
VARIANTS: tuple[Variant, ...] = get_args(Variant)


def check_penalty(variant: str, weight: float, layers: tuple[int, ...]) -> None:
    """Raise UsageError for an entropy penalty that cannot exist: an unknown form, a negative weight, or a wrong
    layer.
    """
    if variant not in VARIANTS:
        raise UsageError(
            f"a penalty among {', '.join(VARIANTS)}",
            repr(variant),
            suggest_names(variant, VARIANTS),
        )
    if not (math.isfinite(weight) and weight >= 0):
        raise UsageError(
            "a penalty weight of at least 0",
            str(weight),
            "use --weight 0 for no penalty",
        )
    if any(layer < 1 for layer in layers):
        raise UsageError("layers counted from 1", str(layers), "the first layer is 1")


@declare_settings
class ClassifierRecipe(Columns, ModelAndCorpus):
    """The recipe of a classifier. Every field is part of its identity; None means the published value.

    limit, buckets     examples of every split, over all classes; whether utterances of similar length share a batch
    tokens             `paper`: words of the training split; `checkpoint`: the tokenizer of `vectors`, whole matrix
    text               the paper's equations (`attention_classifier.PAPER_TEXT`)
    penalty_layers     empty: all

    The learning rate is constant after the warm-up.
    """

    model: Annotated[
        Text,
        option(
            "attention (the attention-only model, trained from scratch), or any "
            "encoder, which is fine-tuned",
            INPUT,
        ),
    ] = field(default=ATTENTION, kw_only=False)
    corpus: Annotated[
        CorpusName,
        option(
            "corpus with labels: synthetic, synthetic-pairs, yelphat, hatexplain, "
            "esnli, imdb, yelp-polarity, 20newsgroups (see "
            "anisoscope list corpora), a .jsonl, .csv or .tsv table, a folder of "
            "tables, or a hub id",
            INPUT,
            "-c",
        ),
    ] = "synthetic"
    limit: Annotated[
        Whole | None,
        Field(ge=1),
        option("read only so many examples of each split, over all classes", INPUT),
    ] = None
    max_length: Annotated[
        Whole | None,
        Field(ge=3),
        option(
            "longest text in tokens; longer ones are cut and counted; default: 1024, "
            "or what the encoder reads",
            INPUT,
        ),
    ] = None
    split_seed: Annotated[
        Whole,
        Field(ge=0),
        option("seed for making splits, if the corpus has none", INPUT),
    ] = 0
    layers: Annotated[
        Whole, Field(ge=1), option("layers of the attention-only model", MODEL)
    ] = 1
    heads: Annotated[
        Whole, Field(ge=1), option("heads of the attention-only model", MODEL)
    ] = 1
    dim: Annotated[
        Whole | None,
        Field(ge=2),
        option(
            "width of the attention-only model; default: that of the word vectors, or "
            "300 if they are random",
            MODEL,
        ),
    ] = None
    text: Annotated[
        bool,
        option(
            "follow the equations of Fosse et al. 2023 instead of their code", MODEL
        ),
    ] = False
    vectors: Annotated[
        Text,
        option(
            "word vectors to begin with: a GloVe or fastText file, a checkpoint, or "
            "random",
            MODEL,
        ),
    ] = "builtin:minilm"
    vector_norm: Annotated[
        Number | None,
        Field(gt=0),
        option("scale the word vectors to this mean norm", MODEL),
    ] = None
    vector_cosine: Annotated[
        Number | None,
        Field(ge=0, lt=1),
        option(
            "add one vector to all word vectors, so that two words have this mean "
            "cosine",
            MODEL,
        ),
    ] = None
    frozen: Annotated[bool, option("do not train the word vectors", MODEL)] = False
    tokens: Annotated[
        Tokens,
        option(
            "what a token is: paper (a word that occurs in the training split) or "
            "checkpoint (as the tokenizer of the checkpoint in --vectors splits text)",
            MODEL,
        ),
    ] = "paper"
    separator: Annotated[
        bool, option("put a token <sep> between the texts of a pair", MODEL)
    ] = False
    attention: Annotated[
        Arm,
        option(
            "attention weights: learned; or not learned: uniform, random (fixed, by "
            "position); or frozen (learned up to --freeze-after)",
            MODEL,
        ),
    ] = "learned"
    freeze_after: Annotated[
        Whole | None,
        Field(ge=0),
        option(
            "for --attention frozen: after how many steps; default: one epoch", MODEL
        ),
    ] = None
    positions: Annotated[
        Positions,
        option(
            "position vectors that are added to word vectors: sinusoidal, learned, or "
            "none",
            MODEL,
        ),
    ] = "sinusoidal"
    position_scale: Annotated[
        Number,
        Field(ge=0),
        option("multiply the sinusoidal position vectors by this", MODEL),
    ] = 1.0
    penalty: Annotated[
        Literal["none", "entropy", "entropy-columns"],
        option(
            "penalty on attention entropy: none, entropy (of the weights of [CLS]), "
            "entropy-columns (of sums of weights by column)",
            TRAINING,
        ),
    ] = "none"
    weight: Annotated[
        Number,
        option("weight λ of the penalty on attention entropy; 0: no penalty", TRAINING),
    ] = 0.0
    penalty_layers: Annotated[
        tuple[Whole, ...],
        split_numbers(),
        option(
            "layers that the penalty acts on, counted from 1, with commas; or all",
            TRAINING,
            metavar="INT,…",
        ),
    ] = (1,)
    rate: Annotated[
        Number | None,
        Field(ge=0),
        option(
            "learning rate; default: 1e-3 for the attention-only model, 5e-5 for "
            "fine-tuning",
            TRAINING,
        ),
    ] = None
    decay: Annotated[
        Number | None,
        Field(ge=0),
        option(
            "weight decay; default: 0 for the attention-only model, 0.01 for "
            "fine-tuning",
            TRAINING,
        ),
    ] = None
    batch: Annotated[
        Whole | None, Field(ge=1), option("texts per step; default: 64", TRAINING)
    ] = None
    epochs: Annotated[
        Whole | None,
        Field(ge=1),
        option("largest number of epochs; default: 50", TRAINING),
    ] = None
    patience: Annotated[
        Whole | None,
        Field(ge=1),
        option(
            "stop after so many epochs without a lower validation loss; default: 5",
            TRAINING,
        ),
    ] = None
    steps: Annotated[
        Whole | None,
        Field(ge=1),
        option(
            "train exactly so many steps and keep the last weights; default: keep the "
            "best epoch",
            TRAINING,
        ),
    ] = None
    warmup: Annotated[
        Whole,
        Field(ge=0),
        option("steps over which the learning rate rises to its full value", TRAINING),
    ] = 0
    clip: Annotated[
        Number,
        Field(ge=0),
        option("scale gradients down to at most this norm; 0: no limit", TRAINING),
    ] = 0.0
    buckets: Annotated[bool, PYTHON_ONLY] = True
    seed: Annotated[
        Whole, Field(ge=0), option("seed of weights, order and dropout", TRAINING)
    ] = 0

    def __post_init__(self) -> None:
        """Raise UsageError for fields that do not fit together, or that this recipe would not use."""
        if self.penalty != "none":
            check_penalty(self.penalty, self.weight, self.penalty_layers)
        elif self.weight != 0:
            raise UsageError(
                f"a penalty for --weight {self.weight}",
                "none",
                f"add --penalty {VARIANTS[0]}",
            )
        # Every field is part of the identity: with an option that is not used, one
        # training would have two.
        own = f"the model {self.model} (only the attention-only model has it)"
        unused = [] if self.is_attention else [(name, own) for name in OF_ATTENTION]
        if self.vectors == RANDOM:
            unused += [
                ("vector_norm", "--vectors random"),
                ("vector_cosine", "--vectors random"),
            ]
        if self.tokens == "checkpoint":
            unused += [("separator", "--tokens checkpoint")]
        if self.penalty == "none":
            unused += [("penalty_layers", "--penalty none")]
        # A penalty on attention needs attention that is learnt throughout.
        if self.penalty != "none":
            unused += [("attention", f"--penalty {self.penalty}")]
        if self.attention != "frozen":
            unused += [("freeze_after", f"--attention {self.attention}")]
        if self.positions != "sinusoidal":
            unused += [("position_scale", f"--positions {self.positions}")]
        unused += [
            ("positions", "--text (the paper's equations have none)")
        ] * self.text
        if self.steps is not None:
            unused += [("epochs", "--steps"), ("patience", "--steps")]
        # Left at its default, an unused field says nothing.
        for name, other in unused:
            value = getattr(self, name)
            option = f"--{name.replace('_', '-')}"
            if value != getattr(ClassifierRecipe, name):
                raise UsageError(
                    f"no {option} with {other}", repr(value), f"leave {option} out"
                )

    @property
    def is_attention(self) -> bool:
        """Whether the recipe is of the attention-only model, not of an encoder."""
        return self.model == ATTENTION

    def filled(self) -> "ClassifierRecipe":
        """Return the recipe with each field that is None replaced by the published value."""
        published: dict[str, Any] = PUBLISHED[self.is_attention]
        # A fixed number of steps has neither.
        unused = ("epochs", "patience") if self.steps is not None else ()
        missing = {
            n: value
            for n, value in published.items()
            if getattr(self, n) is None and n not in unused
        }
        return replace(self, **missing)

    def described(self) -> dict[str, Any]:
        """Return {field: value} of the recipe as `training.json` holds it; a training is identified by it."""
        # Columns are described by the role of each, and not by option.
        own = {
            name: value
            for name, value in asdict(self).items()
            if name not in list_field_names(Columns)
        }
        # Without it, trainings from before this field existed keep their identity.
        if self.vector_cosine is None:
            del own["vector_cosine"]
        return own | {"columns": self.by_role}

    @classmethod
    def read(cls, described: dict[str, Any]) -> "ClassifierRecipe":
        """Return the recipe that `described`, the field of a `training.json`, holds."""
        own = {name: value for name, value in described.items() if name != "columns"}
        return cls(**own, **Columns.as_fields(described["columns"]))

    def open(self) -> "LabelledCorpus":
        """Open the labelled corpus that the recipe trains on."""
        from anisoscope.data.opening import open_labelled

        return open_labelled(
            self.corpus, columns=self.by_role, seed=self.split_seed, limit=self.limit
        )


Task = Literal["masked-lm", "causal-lm"]
TASKS: tuple[Task, ...] = ("masked-lm", "causal-lm")


@dataclass(frozen=True)
class ModelSize:
    """Architecture and recipe of one preset.

    layers, width, heads   of the encoder (masked: BERT) or decoder (causal: GPT-2); feed-forward width is 4 × `width`
    vocabulary             most tokens of a vocabulary learnt on the corpus
    window, batch          tokens a sequence, special ones counted; sequences a step, over all devices
    rate, steps            highest learning rate and number of steps, unless the user chooses others
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


Preset = Literal["tiny", "small", "mini", "bert-small", "bert-base"]
WARM_UP, LONGEST_WARM_UP = 0.05, 10_000
"""The learning rate rises over 5 % of the steps, 10,000 at most, then falls linearly."""


@declare_settings
class Sizes:
    """A preset by name, and changes to it."""

    preset: Annotated[
        Preset,
        option(
            "size of the model: tiny, small, mini, or (as large as the BERTs of "
            "these names) bert-small or bert-base",
            MODEL,
        ),
    ] = "small"
    vocab_size: Annotated[
        Whole | None,
        Field(ge=300),
        option(
            "largest number of tokens in the vocabulary that is learnt; default: that "
            "of the preset",
            MODEL,
        ),
    ] = None
    window: Annotated[
        Whole | None,
        Field(ge=4),
        option("tokens per sequence; default: that of the preset", MODEL),
    ] = None
    batch: Annotated[
        Whole | None,
        Field(ge=1),
        option(
            "sequences per step, over all devices; default: that of the preset",
            TRAINING,
        ),
    ] = None
    rate: Annotated[
        Number | None,
        Field(ge=0),
        option("highest learning rate; default: that of the preset", TRAINING),
    ] = None
    dropout: Annotated[
        Number | None,
        Field(ge=0, le=0.9),
        option(
            "dropout rate; default: that of the preset (0.1 for the two BERT sizes, "
            "else 0)",
            TRAINING,
        ),
    ] = None

    def build(self) -> ModelSize:
        """Return the size of the preset, with the changes."""
        # None means the preset's value.
        changes = {
            name: value
            for name, value in select_fields(self, Sizes).items()
            if value is not None
        }
        if self.vocab_size is not None:
            changes["vocabulary"] = changes.pop("vocab_size")
        del changes["preset"]
        return replace(SIZES[self.preset], **changes)


@declare_settings
class Training(Sizes):
    """The recipe of a language model: what is trained, on what, how long. Everything but the device and the
    trackers is part of its identity.

    own_size          a size that no preset has, before the preset
    seed, data_seed   of the weights (and dropout); of the order of the windows and their masks (None: as `seed`)
    per_octave        checkpoints each time the number of steps doubles, besides 0 and the last
    accumulate        batches a step is split into if memory is short
    """

    task: Annotated[Task, PYTHON_ONLY] = "masked-lm"
    own_size: Annotated[ModelSize | None, PYTHON_ONLY] = None
    corpus: Annotated[
        CorpusName,
        option(
            "text to train on: built-in name, hub data set, file or folder", INPUT, "-c"
        ),
    ] = "builtin:python-docs"
    split: Annotated[
        Text | None,
        option(
            "split of a hub data set; default: validation, else test, else train", INPUT
        ),
    ] = None
    column: Annotated[
        Text | None,
        option("column of a table that holds the text; default: guessed", INPUT),
    ] = None
    limit: Annotated[
        Whole | None, Field(ge=1), option("read only the first N documents", INPUT)
    ] = None
    vocabulary: Annotated[
        Text | None,
        option(
            "checkpoint whose tokenizer is used; default: a vocabulary is learnt on "
            "the corpus",
            INPUT,
        ),
    ] = None
    steps: Annotated[
        Whole | None,
        Field(ge=1),
        option("number of training steps; default: that of the preset", TRAINING),
    ] = None
    seed: Annotated[
        Whole, Field(ge=0), option("seed of the weights and of dropout", TRAINING)
    ] = 0
    data_seed: Annotated[
        Whole | None,
        Field(ge=0),
        option(
            "seed of the order of the text and of the masks; default: that of --seed",
            TRAINING,
        ),
    ] = None
    per_octave: Annotated[
        Whole,
        Field(ge=1),
        option("number of checkpoints per doubling of the number of steps", TRAINING),
    ] = 2
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"],
        option("float32, or mixed precision with bfloat16 or float16", MACHINE),
    ] = "float32"
    accumulate: Annotated[
        Whole,
        Field(ge=1),
        option("split each batch into this many parts to save memory", MACHINE),
    ] = 1
    device: Annotated[
        Device,
        option(
            "cpu or cuda (for several GPUs, start the command with torchrun)", MACHINE
        ),
    ] = "cpu"
    report_to: Annotated[
        Names,
        option(
            "log the training to trackers, with commas: tensorboard, wandb, trackio",
            OUTPUT,
            metavar="NAME,…",
        ),
    ] = ()

    def __post_init__(self) -> None:
        """Raise UsageError if the batch cannot be split evenly over processes and accumulation steps."""
        # torchrun sets the number of processes.
        parts = int(os.environ.get("WORLD_SIZE", "1")) * self.accumulate
        if self.size.batch % parts:
            got = f"{self.size.batch} sequences over {parts} parts (processes × --accumulate)"
            raise UsageError(
                "a batch that can be split evenly",
                got,
                f"use a multiple of {parts} for --batch",
            )

    @cached_property
    def size(self) -> ModelSize:
        """Architecture and recipe of the preset, with the changes asked for."""
        return self.own_size or self.build()

    @property
    def last(self) -> int:
        """The number of the last training step."""
        if self.steps is None:
            return self.size.steps
        return self.steps

    @property
    def order(self) -> int:
        """The seed of the order of the training data."""
        if self.data_seed is None:
            return self.seed
        return self.data_seed

    def share(self, step: int) -> float:
        """Return the share of the learning rate at a step.

        It rises over the warm-up steps, then falls linearly to 0. It counts from step 1, since the library starts at
        rate 0.
        """
        rising = max(1, min(LONGEST_WARM_UP, int(WARM_UP * self.last)))
        # Rises as (step + 1) / warm-up, falls as what is left of the rest: the smaller
        # one counts.
        return max(
            0.0,
            min((step + 1) / rising, (self.last - step) / max(1, self.last - rising)),
        )

    def identity(self, corpus: str, vocabulary: int) -> dict[str, Any]:
        """Return everything the weights depend on, by name; the corpus by its fingerprint, the vocabulary by its
        size.
        """
        # How a size was chosen does not matter: `size` is added as it results, and
        # `dtype` as `precision`.
        left_out = (
            *list_field_names(Sizes),
            "own_size",
            "dtype",
            "device",
            "report_to",
        )
        described = {
            name: value for name, value in asdict(self).items() if name not in left_out
        }
        described |= {"size": asdict(self.size), "precision": self.dtype}
        described |= {"steps": self.last, "data_seed": self.order}
        described |= {"corpus_fingerprint": corpus, "vocabulary_size": vocabulary}
        return described | {
            "code": hash_training_code("anisoscope_papers.training.language_model")
        }
