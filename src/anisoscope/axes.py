"""The glossary: names of axes, token policies and sites, each said once and used everywhere.

Axes
    replicate  0 = every group kept, r = group r − 1 left out (delete-a-group jackknife)
    group      whole units summed together        policy   which tokens count (`POLICIES`)
    unit       an independent piece of data: a document, a speaker's clip, an image
    sequence   one window, clip or image          token    one position of a sequence
    head, query, key                              dim, head_dim
    layer      0 = input of the first block, i = raw output of block i; of `stage` sites: the stage, from 1

Stacks: `encoder`, `decoder`; of CANINE `characters` (the first block, on every character), `molecules` (the deep
blocks, on every fourth) and `characters-out` (the last block, on every character again); of models that read images
or sounds too `vision` and `audio`; `joint` (`PAIRS`).
"""

from dataclasses import dataclass
from typing import Literal, get_args

TokenPolicy = Literal["all", "content", "no-first"]
POLICIES: tuple[TokenPolicy, ...] = get_args(TokenPolicy)
"""Token policies: every real token; without special tokens; without the first real token of each sequence."""

TOWER_STACKS = ("vision", "audio")
"""Stacks of parts that read images or sounds, beside one that reads text."""
PAIRS = "joint"
"""The stack of the vectors that two towers (CLIP) make of an image and its text, [sequence, 2, dim], image first."""
SENTENCES = "sentence"
"""The stack of the vectors that a model of sentence-transformers makes of whole texts, [sequence, 1, dim]."""

FREQUENCY_BINS = 5
POSITION_EDGES = (0, 1, 8, 32, 128)
"""First position of each position bin: the first token, 1–7, 8–31, 32–127, 128 and on."""

SUBSET_FAMILIES: dict[str, tuple[str, ...]] = {
    "kind": ("special", "first", "content"),
    "frequency": tuple(f"frequency {i + 1}" for i in range(FREQUENCY_BINS)),
    "position": (
        "position 0",
        "position 1–7",
        "position 8–31",
        "position 32–127",
        "position 128+",
    ),
}
"""Disjoint token subsets, family by family. Kinds: the first real token; special tokens but the first; all others.
Frequency bins hold equal token mass, 1 = the rarest types."""

OfVectors = Literal[
    "embedding", "hidden", "pre_relu", "stage", "final", "query", "key", "value"
]
Quantity = OfVectors | Literal["attention", "scores", "centred", "extremes"]
LAYER_QUANTITIES = ("hidden", "pre_relu", "stage", "final")
"""Quantities without heads: a block's output, the same before the block's last ReLU, a stage's output, the output after
the final norm."""
Kind = Literal["self", "cross"]
Stage = Literal["", "raw", "normed", "rotated"]
At = Literal["first", "last", "mean", "max"]
"""Which real tokens of an utterance give its vector: its first, its last, their mean, the maximum of each dimension."""
Place = tuple[str, int | None, Kind]
"""Where attention is: stack, layer, kind."""
EVERYWHERE: Place = ("every stack", None, "self")
"""All attention of a model."""
Flatten = Literal["position", "image"]
"""Convolutional maps as one vector per position, or one per image."""


@dataclass(frozen=True, order=True)
class Site:
    """A named place in a model. `layer` is None only for `final`, the output after the final norm."""

    stack: str
    layer: int | None
    quantity: Quantity
    stage: Stage = ""
    kind: Kind = "self"

    @property
    def measured_as(self) -> str:
        """The quantity as which metrics treat this site: its own, but `hidden` for stage outputs and pre-ReLU maps."""
        # What holds for outputs of blocks (layers, no heads) holds for these too.
        if self.quantity in ("pre_relu", "stage"):
            return "hidden"
        return self.quantity

    @property
    def place(self) -> Place:
        """(stack, layer, self- or cross-attention): where in the model this is, without what is measured there."""
        return self.stack, self.layer, self.kind

    @property
    def name(self) -> str:
        """The canonical name: `encoder.3.hidden`, `encoder.3.head.query.raw`, `decoder.2.cross.attention`,
        `decoder.final`.
        """
        # It belongs to no layer: it comes after the last one.
        if self.quantity == "final":
            return f"{self.stack}.final"
        cross = "cross." if self.kind == "cross" else ""
        head = "head." if self.quantity in ("query", "key", "value") else ""
        return f"{self.stack}.{self.layer}.{cross}{head}{self.label}"

    @property
    def label(self) -> str:
        """The quantity with its stage, as in the `site` column of records: `hidden`, `query.raw`, `attention`."""
        if self.stage:
            return f"{self.quantity}.{self.stage}"
        return self.quantity


WORDS = {
    "position": "token",
    "sequence": "sequence",
    "unit": "unit",
    "counted": "token",
}
"""What a position, a sequence, a unit are called, and what `tokens` of a plan count, if its corpus says nothing."""


def pluralise(noun: str) -> str:
    """Return the plural of a noun: `tokens`, `patches`."""
    if noun.endswith(("ch", "s", "x")):
        return f"{noun}es"
    return f"{noun}s"
