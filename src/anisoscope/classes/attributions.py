"""Attributions: numbers for the words of a text that should explain a classifier's decision, by layer.

attention     the row of the token that the head reads ([CLS], the last token; of several, as of a mean, their rows by
              their shares), mean over heads; of an encoder–decoder the cross-attention of that token
rollout       product of (A + I)/2 up to the layer, the same row
value norm    that attention times ‖v‖
hidden, key, value    cosine of a token's vector to the direction of the class found
…, contrast   the same, less the mean cosine to the directions of the other classes
random        uniform noise                              rare       −log of the word's frequency in the training split

A class' direction is the mean unit vector over the validation utterances found to be of the class: of the hidden state
that the head reads, made at every layer as the head makes it of the last; of keys and values at all tokens. What a
model does not show (attention that cannot be read, states of a decoder that are not of the words) is left out.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anisoscope.axes import Kind, Site
from anisoscope.batch import Batch
from anisoscope.capture.masking import Call
from anisoscope.capture.tap import capture, describe_refused
from anisoscope.classes.readout import HeadReading, get_logits, read_tokens
from anisoscope.data.encoding import LabelledPlan
from anisoscope.data.labelled import Example
from anisoscope.errors import MeasureError
from anisoscope.metrics.base import normalise
from anisoscope.models.blocks import TokenPositions
from anisoscope.models.modes import evaluation_mode

Array = NDArray[np.float64]
SITES = {"hidden": "hidden", "key": "key.raw", "value": "value"}
SPACES = tuple(SITES)
BASELINES = ("random", "rare")
OF_LAYERS = (
    "attention",
    "rollout",
    "value norm",
    *SPACES,
    *(f"{space}, contrast" for space in SPACES),
)


@dataclass
class CapturedText:
    """Hidden states, attention and values captured for one text, by layer from 1.

    attention  [query, key], mean over heads; None: a layer whose attention cannot be captured
    vectors    space (hidden, key, value) → unit vectors [token, dim], heads joined; only spaces captured in all layers
    norms      of values [token]; empty if values are not captured
    found      the predicted class
    read       [query]: share of each token in what the classifier's head reads
    pooled     unit vector [dim] of hidden states that represents the utterance, pooled as the head does
    crossed    whether the attention is that of a decoder to the words
    logits     [class]
    """

    attention: list[Array | None]
    vectors: dict[str, list[Array]]
    norms: list[Array]
    found: int
    read: Array = field(default_factory=lambda: np.ones(1))
    pooled: list[Array] = field(default_factory=list)
    crossed: bool = False
    logits: Array = field(default_factory=lambda: np.zeros(0))


class _Capture:
    """Collects hidden states, keys, values and attention of one forward call, in the stack that the head reads."""

    def __init__(self, stack: str, kind: Kind) -> None:
        """Prepare to collect from one stack (`encoder`, `decoder`) and one kind of attention (`self`, `cross`)."""
        self.stack, self.kind = stack, kind
        self.states: dict[int, Tensor] = {}
        self.of_heads: dict[str, dict[int, Tensor]] = {"key": {}, "value": {}}
        self.attention: dict[int, Tensor] = {}

    def receive(self, site: Site, x: Tensor) -> None:
        """Keep the captured hidden states, keys and values of a layer."""
        # Layer 0 is the input of the first block, of which no attribution is made; the
        # norm after the last block has no number.
        if site.stack != self.stack or not site.layer:
            return
        if site.quantity == "hidden":
            self.states[site.layer] = x
        elif site.kind == self.kind and site.quantity in self.of_heads:
            self.of_heads[site.quantity][site.layer] = x

    def look(self, site: Site, call: Call) -> None:
        """Keep the attention weights of a layer, averaged over heads."""
        if site.stack == self.stack and site.kind == self.kind and site.layer:
            # Averaged at once: the weights of all heads of all layers would take many
            # times the memory.
            self.attention[site.layer] = call.weights().mean(1)


@torch.no_grad()
def iter_captured(
    model: Any, batches: LabelledPlan, notes: list[str] | None = None
) -> Iterator[tuple[int, CapturedText]]:
    """Run a classifier and yield (number of a text, hidden states, attention and values captured for it), text by text.

    notes   receives sentences that say which attributions are left out, once; None: not wanted

    MeasureError if it cannot be found which tokens the head reads, or if its stack has other tokens than the words.
    """
    positions = TokenPositions(model)
    sites = tuple(SITES.values())
    is_first = True
    for batch in batches:
        reading = read_tokens(model, batch)
        # An encoder–decoder's head may read its decoder: the words are then in the
        # cross-attention.
        crossed = len(batches.stacks) > 1 and reading.stack == batches.stacks[1]
        words = batch.streams[batches.stacks[0]].mask
        _check_tokens(reading, words, crossed=crossed)
        watched = _Capture(reading.stack, "cross" if crossed else "self")
        # Only the hidden states must be there: keys and values of some models cannot be captured.
        with (
            capture(model, sites, receive=watched.receive, optional=sites[1:]) as tap,
            evaluation_mode(model),
        ):
            tap.on_call = watched.look
            tap.real = {
                stack: stream.mask for stack, stream in positions.streams(batch).items()
            }
            logits = get_logits(model(**batch.inputs))
        if is_first and notes is not None:
            notes += _explain_left_out(
                watched, reading, describe_refused(tap.refused), crossed=crossed
            )
        is_first = False
        yield from _iter_captured_of_batch(
            batch, watched, reading, words, logits, crossed=crossed
        )


def _check_tokens(reading: HeadReading, words: Tensor, *, crossed: bool) -> None:
    """Raise MeasureError if the tokens that a head reads are not those of the words.

    words     which tokens are real [sequence, token]
    crossed   whether the head reads a decoder, which has the words in its cross-attention
    """
    has_shape = reading.mask.shape == words.shape
    if has_shape and (crossed or torch.equal(reading.mask, words)):
        return
    got = f"{reading.stack}, whose positions are not those of the words"
    raise MeasureError(
        "a head that reads the tokens of words",
        got,
        "measure only its directions: --parts directions",
    )


def _explain_left_out(
    watched: _Capture, reading: HeadReading, why: list[str], *, crossed: bool
) -> list[str]:
    """Return sentences that say which attributions are left out, because the model does not show what they need.

    watched   what was captured
    reading   which tokens the head reads
    why       reasons why attention could not be captured
    crossed   whether the attention is that of a decoder to the words
    """
    notes = []
    layers = sorted(watched.states)
    missing = [layer for layer in layers if layer not in watched.attention]
    reason = f" ({'; '.join(why)})" if why else ""
    # With no layer at all there is no rollout either, so that one sentence says both.
    if len(missing) == len(layers):
        notes.append(
            f"maps of attention left out: none is seen in {reading.stack}{reason}"
        )
    elif missing:
        numbers = ", ".join(map(str, missing))
        notes.append(
            f"maps of attention left out in layers {numbers}, and rollout in all{reason}"
        )
    for space, found in watched.of_heads.items():
        if len(found) < len(layers):
            notes.append(
                f"maps of {space}s left out: they are not seen in every layer of {reading.stack}{reason}"
            )
    if crossed:
        notes.append(
            "attention, keys and values are those of the decoder's cross-attention to the words; hidden and rollout "
            "left out, since the decoder's states are not those of the words"
        )
    return notes


def _iter_captured_of_batch(
    batch: Batch,
    watched: _Capture,
    reading: HeadReading,
    words: Tensor,
    logits: Tensor,
    *,
    crossed: bool,
) -> Iterator[tuple[int, CapturedText]]:
    """Yield (number of the text, what is captured of it) for every text of a batch.

    watched   what one forward call showed
    reading   which tokens the classifier's head reads
    words     which tokens are real [sequence, token]
    logits    [sequence, class]
    crossed   whether the attention is that of a decoder to the words
    """
    layers = sorted(watched.states)
    pooled = [reading.pool(watched.states[layer]).cpu().numpy() for layer in layers]
    spaces = _list_spaces(watched, layers, crossed=crossed)
    for row, unit in enumerate(batch.unit.tolist()):
        # Keys are the words. Queries are what the head reads: the same tokens, or in an
        # encoder–decoder those of the decoder.
        keys = words[row].nonzero().flatten()
        queries = reading.mask[row].nonzero().flatten()
        directions: dict[str, list[Array]] = {}
        # Taken before vectors become unit vectors.
        norms_of_values: list[Array] = []
        for space, of_layers in spaces.items():
            directions[space] = []
            for x in of_layers:
                vectors = x[row, keys].double().cpu().numpy()
                directions[space].append(normalise(vectors))
                if space == "value":
                    norms_of_values.append(np.linalg.norm(vectors, axis=1))
        attention = []
        for layer in layers:
            weights = watched.attention.get(layer)
            attention.append(_cut_attention(weights, row, queries, keys))
        read = reading.weights[row, queries]
        seen = CapturedText(
            attention=attention,
            vectors=directions,
            norms=norms_of_values,
            found=int(logits[row].argmax()),
            read=(read / read.sum()).cpu().numpy(),
            pooled=[normalise(x[row]) for x in pooled],
            crossed=crossed,
            logits=logits[row].double().cpu().numpy(),
        )
        yield unit, seen


def _cut_attention(
    weights: Tensor | None, row: int, queries: Tensor, keys: Tensor
) -> Array | None:
    """Return the attention [query, key] of one text, without padding; None if it was not captured.

    weights         [sequence, query, key], mean over heads
    row             number of the text in its batch
    queries, keys   positions of its real tokens
    """
    if weights is None:
        return None
    return np.asarray(weights[row][queries][:, keys].double().cpu().numpy())


def _list_spaces(
    watched: _Capture, layers: list[int], *, crossed: bool
) -> dict[str, list[Tensor]]:
    """Return the vectors [sequence, token, dim] of each space (hidden, key, value) by layer, heads joined.

    Keys and values are there only if they were captured in all layers; hidden states are not if they are those of a
    decoder (`crossed`), whose tokens are not the words.
    """
    spaces: dict[str, list[Tensor]] = {}
    if not crossed:
        spaces["hidden"] = [watched.states[layer] for layer in layers]
    for space, captured in watched.of_heads.items():
        if len(captured) == len(layers):
            joined = []
            for layer in layers:
                # [sequence, head, token, dim] → [sequence, token, head · dim]
                joined.append(captured[layer].transpose(1, 2).flatten(2))
            spaces[space] = joined
    return spaces


def measure_class_directions(
    model: Any, batches: LabelledPlan, classes: int
) -> dict[str, list[Array]]:
    """Return the direction of each class: {space (hidden, key, value): [unit vectors [class, dim] of layer 1, 2, …]}.

    It is the mean of the texts that the model predicts to be of the class. A class that is never predicted gets zeros.

    classes   number of classes
    """
    total: dict[str, list[Array]] = {}
    for _, one in iter_captured(model, batches):
        for space, layers in one.vectors.items():
            sums = total.setdefault(
                space, [np.zeros((classes, x.shape[1])) for x in layers]
            )
            for i, x in enumerate(layers):
                # A text is represented by what the head reads of it, or by the mean of its keys or values.
                of_text = one.pooled[i] if space == "hidden" else normalise(x.mean(0))
                sums[i][one.found] += of_text
    # A sum has the direction of the mean; a class that was never predicted stays zero.
    directions = {}
    for space, sums in total.items():
        directions[space] = [normalise(x) for x in sums]
    return directions


def compute_attributions(
    one: CapturedText, directions: dict[str, list[Array]]
) -> dict[tuple[str, int], Array]:
    """Compute attributions of a text: {(name of attribution, layer): a number for every token, special ones included}.

    one          what was captured for the text
    directions   unit vectors of the classes [class, dim], by space (hidden, key, value) and layer
    """
    attributions: dict[tuple[str, int], Array] = {}
    rollout = np.eye(len(one.read))
    # A product over layers needs the attention of all of them, and of tokens to the same tokens.
    is_missing = [weights is None for weights in one.attention]
    has_rollout = not one.crossed and not any(is_missing)
    for i, weights in enumerate(one.attention):
        layer = i + 1
        if weights is not None:
            attributions["attention", layer] = one.read @ weights
            if has_rollout:
                # Half for the residual connection, which hands every token on unchanged
                # (Abnar & Zuidema 2020).
                rollout = (weights + np.eye(len(weights))) / 2 @ rollout
                attributions["rollout", layer] = one.read @ rollout
            if one.norms:
                attributions["value norm", layer] = (
                    attributions["attention", layer] * one.norms[i]
                )
        for space, layers in one.vectors.items():
            cosine = layers[i] @ directions[space][i].T
            others = [c for c in range(cosine.shape[1]) if c != one.found]
            to_found = cosine[:, one.found]
            to_others = cosine[:, others].mean(1)
            attributions[space, layer] = to_found
            # What every class direction shares, such as a drift, cancels out.
            attributions[f"{space}, contrast", layer] = to_found - to_others
    return attributions


def compute_baselines(
    example: Example, frequency: Counter[str], draw: np.random.Generator
) -> dict[str, Array]:
    """Return attributions [word] that ignore the model: `random` numbers, and how `rare` each word is.

    example     the text, or pair of texts, with its words
    frequency   how often each word occurs in the corpus
    draw        random generator
    """
    words = example.all_words
    total = sum(frequency.values())
    counts = np.array([frequency[word.lower()] for word in words])
    # One is added so that a word that the training split lacks has a finite number.
    rare = -np.log((counts + 1) / (total + 1))
    return {"random": draw.random(len(words)), "rare": rare}


def average_over_words(values: Array, words: list[int], count: int) -> Array:
    """Average an attribution over the tokens of each word: [word]. A word that was cut off gets the smallest value.

    values   the attribution of each token [token]
    words    index of each token's word; −1: a special token, which belongs to none
    count    number of words
    """
    index = np.array(words)
    real = index >= 0
    total = np.bincount(index[real], values[real], count)
    tokens = np.bincount(index[real], minlength=count)
    # A word that the model never read cannot explain its decision: it ranks last.
    smallest = values.min() if len(values) else 0.0
    return np.where(tokens > 0, total / np.maximum(tokens, 1), smallest)
