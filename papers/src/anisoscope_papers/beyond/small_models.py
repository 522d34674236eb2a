"""Define small models, attention alone or with more of a Transformer block, and what they are trained to tell."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import set_seed

from anisoscope.data.encoding import Encoded, build_tokenizer, encode, pad_batch
from anisoscope.data.labelled import TEST, TRAIN, Example, LabelledCorpus, take_balanced
from anisoscope.data.local import find_copy
from anisoscope.data.opening import open_labelled
from anisoscope.data.table_rows import read_rows_strict
from anisoscope.errors import CorpusError
from anisoscope_papers.networks.attention_classifier import (
    NORMS,
    AttentionClassifier,
    AttentionClassifierBlock,
    AttentionClassifierConfig,
)

# Each differs from `norm` in one thing, `whole` in two: gain and feed-forward.
BLOCKS: dict[str, tuple[str, int]] = {
    "bare": ("none", 0),
    "norm": ("plain", 0),
    "gain": ("layer_norm", 0),
    "feed-forward": ("plain", 4),
    "whole": ("layer_norm", 4),
}
"""Norm and width of the feed-forward part (in widths of the model) around attention and residual; `norm`: the paper."""
FIRST, MEAN, EACH = "first", "mean", "each"
"""What is read: [CLS], for the class of the sentence; the mean of its words, for the same; each word, for its tag."""
TREEBANK = "ud_ewt"
# What torch's cross-entropy ignores.
UNTAGGED = -100
LENGTHS = (5, 40)
LONGEST, WIDTH = 1024, 64


@dataclass(frozen=True)
class SmallCell:
    """One small model: what it is trained on and its sizes.

    `read`: what its head reads, the first token (`FIRST`), the mean of the words (`MEAN`) or each token (`EACH`).
    `blocks`: a key of `BLOCKS`, what a block consists of.
    """

    task: str
    read: str = FIRST
    blocks: str = "norm"
    layers: int = 1
    dim: int = 64
    seed: int = 0

    @property
    def label(self) -> str:
        """The model's name in the column `model` of records."""
        return f"read={self.read} blocks={self.blocks} L={self.layers} d={self.dim}"


@dataclass(frozen=True)
class SmallGrid:
    """Which small models are trained (every combination of its fields), and how.

    Adam, warm-up over a tenth of the steps, gradients clipped at 1.

    tasks   (corpus, what is read);   limit, held  numbers of sentences for training, and for measuring
    rate    at width 64; at other widths times √(64 / width), near the best in a trial of 4, 16 and 128
    """

    tasks: tuple[tuple[str, str], ...]
    blocks: tuple[str, ...] = ("norm",)
    layers: tuple[int, ...] = (1,)
    dims: tuple[int, ...] = (64,)
    seeds: int = 4
    steps: int = 1000
    batch: int = 32
    rate: float = 1e-3
    limit: int = 6000
    held: int = 1000
    train: bool = True
    RECIPE: ClassVar[tuple[str, ...]] = ("steps", "batch", "rate", "limit", "held")
    """What a cell's identity has of it."""

    def cells(self, instead: Mapping[str, str] | None = None) -> list[SmallCell]:
        """List the small models, ordered by seed. `instead`: {unavailable corpus: the one that replaces it}."""
        # Seeds change slowest: a run that is interrupted has whole grids of some seeds.
        axes = product(
            range(self.seeds), self.tasks, self.blocks, self.layers, self.dims
        )
        found = []
        for seed, (task, read), blocks, layers, dim in axes:
            if instead:
                task = instead.get(task, task)
            found.append(SmallCell(task, read, blocks, layers, dim, seed))
        return found


@dataclass(frozen=True)
class Sentences:
    """A tokenized corpus. `tags` by split and sentence: one per token (`UNTAGGED` for tokens without); `names` of the
    tags.
    """

    corpus: LabelledCorpus
    tokenizer: Any
    encoded: dict[str, Encoded]
    tags: dict[str, list[list[int]]]
    names: tuple[str, ...]

    def labels(self, read: str) -> tuple[str, ...]:
        """Return the names of the classes; if each word is read (`read` is `EACH`), those of the tags."""
        if read == EACH:
            return self.names
        return self.corpus.labels

    def batch(
        self, split: str, chosen: list[int], read: str
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Return (inputs of the model, labels) of the `chosen` sentences (indices) of a split.

        Inputs and labels are [sequence, token] if `read` is `EACH` (a tag per token); else labels are [sequence].
        """
        # Labels of sentences come with the inputs; tags of words replace them.
        inputs = pad_batch(
            [self.encoded[split].rows[i] for i in chosen],
            int(self.tokenizer.pad_token_id),
        )
        labels = inputs.pop("labels")
        if read == EACH:
            tags = [torch.tensor(self.tags[split][i]) for i in chosen]
            labels = nn.utils.rnn.pad_sequence(
                tags, batch_first=True, padding_value=UNTAGGED
            )
        return inputs, labels


@cache
def open_material(task: str, limit: int, held: int, seed: int) -> Sentences:
    """Open the corpus `task` as sentences with classes and word tags, tokenized.

    `limit`, `held`: numbers of sentences for training and for testing. `seed` is for generated corpora.
    """
    corpus, words, names = (
        _open_treebank() if task == TREEBANK else _open_generated(task, seed)
    )
    # No validation split: every model is trained for the same number of steps.
    sizes = {TRAIN: limit, TEST: held}
    classes = len(corpus.labels)
    splits = {}
    for split, size in sizes.items():
        splits[split] = take_balanced(corpus.splits[split], size, classes)
    corpus = replace(corpus, splits=splits)
    tokenizer = build_tokenizer(corpus, max_length=LONGEST)
    encoded = {}
    tags: dict[str, list[list[int]]] = {}
    for split, examples in splits.items():
        encoded[split] = encode(examples, tokenizer, LONGEST)
        tags[split] = []
        for example, of_tokens in zip(examples, encoded[split].words, strict=True):
            of_words = words[id(example)]
            # Special tokens belong to no word.
            tags[split].append(
                [UNTAGGED if word < 0 else of_words[word] for word in of_tokens]
            )
    return Sentences(corpus, tokenizer, encoded, tags, names)


Tagged = tuple[LabelledCorpus, dict[int, list[int]], tuple[str, ...]]
"""A corpus, the tags of every example (by identity), and the names of tags."""


def _open_treebank() -> Tagged:
    """Open UD English EWT as (corpus, tags of each example, names of tags).

    The class of a sentence is its genre, the tag of a word its part of speech.
    """
    folder = find_copy(TREEBANK)
    if folder is None:
        cure = "set ANISOSCOPE_DATA to the folder that holds it"
        raise CorpusError(
            "UD English EWT (a folder ud_ewt)",
            "no such folder among the local data",
            cure,
        )
    rows = {
        split: _read_treebank(folder / f"{split}.jsonl.gz") for split in (TRAIN, TEST)
    }
    # Sorted, so that the number of a class does not depend on the order of the file.
    genres = tuple(sorted({row["genre"] for row in rows[TRAIN]}))
    names = tuple(sorted({tag for row in rows[TRAIN] for tag in row["upos"]}))
    splits: dict[str, tuple[Example, ...]] = {}
    tags: dict[int, list[int]] = {}
    for split, of_split in rows.items():
        examples = []
        for row in of_split:
            example = Example(tuple(row["tokens"]), genres.index(row["genre"]))
            examples.append(example)
            # By identity: two sentences of the same words may have other tags.
            tags[id(example)] = [names.index(tag) for tag in row["upos"]]
        splits[split] = tuple(examples)
    return LabelledCorpus(TREEBANK, genres, splits, tokenised=True), tags, names


def _read_treebank(path: Path) -> list[dict[str, Any]]:
    """Read the sentences of a treebank file that are neither very short nor very long (`LENGTHS`, in words)."""
    least, most = LENGTHS
    rows = [row.columns for row in read_rows_strict(path, "copy it again")]
    return [row for row in rows if least <= len(row["tokens"]) <= most]


def _open_generated(task: str, seed: int) -> Tagged:
    """Open the corpus `task` as (corpus, tags of each example, names of tags).

    The tag of a word is the class that it indicates (from rationales), else `none`. `seed` is for generated corpora.
    """
    corpus = open_labelled(task, seed=seed)
    tags: dict[int, list[int]] = {}
    for examples in corpus.splits.values():
        for example in examples:
            marks = example.rationale or [0] * len(example.all_words)
            # Tag 0 is `none`, tag c + 1 the class c: a marked word indicates the class of its sentence.
            tags[id(example)] = [example.label + 1 if mark > 0 else 0 for mark in marks]
    return corpus, tags, ("none", *corpus.labels)


class FeedForwardBlock(AttentionClassifierBlock):  # type: ignore[no-untyped-call]  # its base is untyped
    """A block with a feed-forward part: norm(y + feed-forward(y)), y = norm(x + attention(x))."""

    def __init__(
        self, config: AttentionClassifierConfig, layer: int, width: int
    ) -> None:
        """Build the block of this layer; the feed-forward part is `width` times as wide as the hidden states."""
        super().__init__(config, layer)
        dim = config.hidden_size
        self.inner = nn.Sequential(
            nn.Linear(dim, width * dim), nn.GELU(), nn.Linear(width * dim, dim)
        )
        self.last_norm = NORMS[config.norm](dim)

    def forward(self, hidden_states: Tensor, *given: Any, **more: Any) -> Tensor:
        """Return norm(y + feed-forward(y)), with y from the attention block, for hidden states [sequence, token,
        dim].
        """
        y = super().forward(hidden_states, *given, **more)
        return self.last_norm(y + self.inner(y))  # type: ignore[no-any-return]


class Reader(AttentionClassifier):  # type: ignore[no-untyped-call]  # as above
    """The attention-only classifier with other blocks; its head reads what the cell's `read` says."""

    def __init__(self, cell: SmallCell, words: int, classes: int) -> None:
        """Build the model of `cell` for a vocabulary of `words` tokens and a number of `classes`."""
        norm, width = BLOCKS[cell.blocks]
        config = AttentionClassifierConfig(
            vocab_size=words,
            hidden_size=cell.dim,
            num_hidden_layers=cell.layers,
            norm=norm,
        )
        # Not an argument of the configuration: transformers keeps it as a property.
        config.num_labels = classes
        super().__init__(config)
        self.read, base = cell.read, self.attention_classifier
        if width:
            base.blocks = nn.ModuleList(
                FeedForwardBlock(config, i, width) for i in range(cell.layers)
            )
            # Only the plain blocks were initialised above; these have torch's defaults.
            for module in base.blocks.modules():
                self._init_weights(module)
        # Only the row of [CLS] is read: the others need not be computed in training.
        base.row_only = "training" if cell.read == FIRST else "never"

    def states(
        self, input_ids: Tensor, attention_mask: Tensor
    ) -> Float[Tensor, "sequence *token dim"]:
        """Return what the head reads: every token [sequence, token, dim], or the first one or the mean of the words
        [sequence, dim].

        input_ids and attention_mask are [sequence, token].
        """
        x: Tensor = self.attention_classifier(
            input_ids, attention_mask
        ).last_hidden_state
        if self.read == EACH:
            return x
        if self.read == FIRST:
            return x[:, 0]
        # [CLS] is no word, and padding is none.
        words = attention_mask[:, 1:, None].to(x)
        return (x[:, 1:] * words).sum(1) / words.sum(1)


def build_untrained(cell: SmallCell, sentences: Sentences) -> Reader:
    """Build the model at step 0 for these sentences, with weights drawn from the seed of `cell`."""
    set_seed(cell.seed)
    return Reader(cell, len(sentences.tokenizer), len(sentences.labels(cell.read)))


def train(
    model: Reader, cell: SmallCell, sentences: Sentences, plan: SmallGrid
) -> None:
    """Train a small model in place on these sentences, for the fixed number of steps of `plan`."""
    # Wide models need smaller steps; `SmallGrid` says how this factor was found.
    rate = plan.rate * math.sqrt(WIDTH / cell.dim)
    optimiser = torch.optim.AdamW(
        model.parameters(), rate, weight_decay=0.0, fused=True
    )
    # Linear over the first tenth of the steps, then constant.
    warm = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min(1.0, (step + 1) / (plan.steps / 10))
    )
    # Own random numbers: the order of sentences is the same whatever else is drawn.
    draw = torch.Generator().manual_seed(cell.seed)
    model.train()
    for chosen in _draw_batches(
        len(sentences.encoded[TRAIN]), plan.batch, plan.steps, draw
    ):
        inputs, labels = sentences.batch(TRAIN, chosen, cell.read)
        logits = model.classifier(model.states(**inputs))
        # [sequence, class], or [sequence, token, class] with a label for each token.
        loss = nn.functional.cross_entropy(
            logits.flatten(0, -2), labels.flatten(), ignore_index=UNTAGGED
        )
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        warm.step()


def _draw_batches(
    n: int, batch: int, steps: int, draw: torch.Generator
) -> Iterator[list[int]]:
    """Yield `steps` batches of `batch` indices from a shuffled corpus of n sentences, shuffled again when it ends.

    `draw`: the random generator.
    """
    order: list[int] = []
    for _ in range(steps):
        # Fewer sentences than a batch are left: they are not used in this pass.
        if len(order) < batch:
            order = torch.randperm(n, generator=draw).tolist()
        order, chosen = order[batch:], order[:batch]
        yield chosen
