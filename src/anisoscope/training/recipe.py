"""How a classifier is trained: what can be asked for. Light: the command line reads its options here."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from anisoscope.data.corpora import Columns
from anisoscope.data.names import check_labelled, check_model
from anisoscope.errors import UsageError
from anisoscope.options import INPUT, MODEL, TRAINING, BuiltFrom, Option

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

OF_ATTENTION = ("layers", "heads", "dim", "text", "vectors", "vector_norm", "frozen", "tokens", "separator")
"""Fields that only the attention-only model uses."""
TOKENS = ("paper", "checkpoint")
VARIANTS = ("entropy", "entropy-columns")
"""Forms of the entropy penalty: on the row of [CLS], or on all columns."""


def check_encoder(name: str) -> None:
    """ModelError for a name that cannot be a model's, unless it is the attention-only model."""
    if name != ATTENTION:
        check_model(name)


def layers_of(text: str) -> tuple[int, ...]:
    """`1,2` → (1, 2); `all` → ()."""
    if text.strip() == "all":
        return ()
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError("--penalty-layers as 1 or 1,2 or all", repr(text), "count layers from 1") from None


@dataclass(frozen=True)
class ClassifierRecipe:
    """How a classifier is trained. Everything here is part of its identity. None: the published value, or see there.

    model        `attention`, or any checkpoint that transformers knows as a sequence classifier
    corpus, columns, limit     see `data.classification.open_labelled`; `split_seed`: of splits the corpus does not have
    layers, heads, dim         of the attention-only model; dim: that of the vectors, else 300
    text         the paper's equations instead of its code (`attention_classifier.PAPER_TEXT`)
    vectors      `random`, a file of vectors, or a checkpoint; `vector_norm`: their mean norm; `frozen`: not trained
    tokens       `paper` (words of the training split), or `checkpoint` (the tokenizer of `vectors`, whole matrix)
    separator    `<sep>` between the texts of a pair, as in the paper's text
    penalty      `none`, `entropy` or `entropy-columns`, with `weight` λ, on `penalty_layers` (from 1; empty: all)
    warmup       steps; `clip`: largest gradient norm, 0: none; rate is constant after warm-up
    """

    model: Annotated[
        str,
        Option(
            "attention (the attention-only model, from scratch), or any encoder to fine-tune",
            INPUT,
            argument=True,
            check=check_encoder,
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
    penalty: Annotated[
        str, Option("none, entropy ([CLS] row) or entropy-columns", TRAINING, known=("none", *VARIANTS))
    ] = "none"
    weight: Annotated[float, Option("weight λ of the penalty", TRAINING)] = 0.0
    penalty_layers: Annotated[
        tuple[int, ...],
        Option("layers it acts on, from 1, with commas; all", TRAINING, parse=layers_of, shown="1"),
    ] = (1,)
    rate: Annotated[float | None, Option("learning rate; default: published (1e-3, or 5e-5)", TRAINING)] = None
    decay: Annotated[float | None, Option("weight decay; default: published (0, or 0.01)", TRAINING)] = None
    batch: Annotated[int | None, Option("utterances a step; default 64", TRAINING, least=1)] = None
    epochs: Annotated[int | None, Option("most epochs; default 50", TRAINING, least=1)] = None
    patience: Annotated[int | None, Option("epochs without a lower loss; default 5", TRAINING, least=1)] = None
    warmup: Annotated[int, Option("steps of warm-up", TRAINING, least=0)] = 0
    clip: Annotated[float, Option("largest gradient norm; 0: none", TRAINING, least=0)] = 0.0
    buckets: bool = True
    max_length: Annotated[int | None, Option("longer utterances are cut, and counted", INPUT, least=3)] = None
    seed: Annotated[int, Option("of weights, order and dropout", TRAINING, least=0)] = 0
    split_seed: Annotated[int, Option("of splits the corpus does not have", INPUT, least=0)] = 0

    def __post_init__(self) -> None:
        for name, least in (("layers", 1), ("heads", 1), ("batch", 1), ("epochs", 1), ("patience", 1), ("warmup", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UsageError(f"{name} of at least {least}", str(value), f"raise --{name}")
        for name in ("rate", "decay", "clip"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise UsageError(f"a finite {name} of at least 0", str(value), f"change --{name}")
        norm = self.vector_norm
        if norm is not None and not (math.isfinite(norm) and norm > 0):
            raise UsageError("a finite vector norm above 0", str(norm), "change --vector-norm")
        if self.penalty != "none":
            self.entropy_penalty()
        elif self.weight != 0:
            raise UsageError(f"a penalty for --weight {self.weight}", "none", f"add --penalty {VARIANTS[0]}")
        self._refuse_unused()

    def _refuse_unused(self) -> None:
        """A UsageError where an option is set that this training does not use."""
        own = f"the model {self.model} (only the attention-only model has it)"
        unused = [] if self.is_attention else [(name, own) for name in OF_ATTENTION]
        if self.vectors == RANDOM:
            unused.append(("vector_norm", "--vectors random"))
        if self.tokens == "checkpoint":
            unused.append(("separator", "--tokens checkpoint"))
        if self.penalty == "none":
            unused.append(("penalty_layers", "--penalty none"))
        for name, other in unused:
            value, option = getattr(self, name), f"--{name.replace('_', '-')}"
            if value != getattr(ClassifierRecipe, name):
                raise UsageError(f"no {option} with {other}", repr(value), f"leave {option} out")

    @property
    def is_attention(self) -> bool:
        return self.model == ATTENTION

    def entropy_penalty(self) -> Any:
        """The `EntropyPenalty` asked for; of weight 0 where none is."""
        from anisoscope.training.entropy_penalty import EntropyPenalty  # loads torch

        if self.penalty == "none":
            return EntropyPenalty(0.0)
        return EntropyPenalty(self.weight, variant=self.penalty, layers=self.penalty_layers)

    def filled(self) -> "ClassifierRecipe":
        """The recipe with the published values in place of None."""
        published: dict[str, Any] = PUBLISHED[self.is_attention]
        return replace(self, **{name: value for name, value in published.items() if getattr(self, name) is None})

    def open(self) -> "LabelledCorpus":
        """The corpus it trains on."""
        from anisoscope.data.labelled import open_labelled

        return open_labelled(self.corpus, columns=self.columns, seed=self.split_seed, limit=self.limit)
