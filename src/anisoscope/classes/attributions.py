"""Attributions: numbers for the words of an utterance that are said to explain a classifier's decision, by layer.

attention     the row of [CLS], mean over heads          rollout    product of (A + I)/2 up to the layer, row of [CLS]
value norm    attention of [CLS] times ‖v‖
hidden, key, value    cosine of a token's vector to the direction of the class found
…, contrast   the same, less the mean cosine to the directions of the other classes
random        uniform noise                              rare       −log of the word's frequency in the training split

A class' direction is the mean unit vector over the validation utterances found to be of the class: of hidden states at
[CLS], of keys and values at all tokens of an utterance.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anisoscope.axes import Site
from anisoscope.capture.backends import intercept_attention
from anisoscope.capture.masking import Call
from anisoscope.capture.tap import capture
from anisoscope.data.encoding import LabelledPlan
from anisoscope.data.labelled import Example
from anisoscope.metrics.base import units_of
from anisoscope.models.modes import evaluating

Array = NDArray[np.float64]
SITES = {"hidden": "hidden", "key": "key.raw", "value": "value"}
SPACES = tuple(SITES)
BASELINES = ("random", "rare")
OF_LAYERS = ("attention", "rollout", "value norm", *SPACES, *(f"{space}, contrast" for space in SPACES))


@dataclass
class Seen:
    """One utterance by layer from 1: `attention` [query, key], unit vectors [token, dim], heads joined, value norms."""

    attention: list[Array]
    vectors: dict[str, list[Array]]
    norms: list[Array]
    found: int


@torch.no_grad()
def seen(model: Any, batches: LabelledPlan) -> Iterator[tuple[int, Seen]]:
    """(number, what is seen) of every utterance."""
    caught: dict[str, Tensor] = {}
    attention: list[Tensor] = []

    def receive(site: Site, x: Tensor) -> None:
        caught[f"{site.layer} {site.label}"] = x

    def look(call: Call) -> None:
        attention.append(call.weights().mean(1))

    def vectors_of(row: int, n: int, site: str) -> list[Array]:
        of_layers = (caught[f"{layer} {site}"][row] for layer in range(1, len(attention) + 1))
        flat = (x if x.dim() == 2 else x.transpose(0, 1).flatten(1) for x in of_layers)
        return [x[:n].double().cpu().numpy() for x in flat]

    with capture(model, tuple(SITES.values()), receive=receive), intercept_attention(model, look):
        for batch in batches:
            attention.clear()
            with evaluating(model):
                found = model(**batch.inputs).logits.argmax(-1).tolist()
            counts = next(iter(batch.streams.values())).mask.sum(1).tolist()
            for row, (unit, n) in enumerate(zip(batch.unit.tolist(), counts, strict=True)):
                vectors = {space: vectors_of(row, n, site) for space, site in SITES.items()}
                norms = [np.linalg.norm(x, axis=1) for x in vectors["value"]]
                directions = {space: [units_of(x) for x in xs] for space, xs in vectors.items()}
                weights = [a[row, :n, :n].double().cpu().numpy() for a in attention]
                yield unit, Seen(weights, directions, norms, found[row])


def class_directions(model: Any, batches: LabelledPlan, classes: int) -> dict[str, list[Array]]:
    """Space → for every layer from 1 the direction of each class [class, dim]; zeros for one that is never found."""
    total: dict[str, list[Array]] = {}
    for _, one in seen(model, batches):
        for space, layers in one.vectors.items():
            sums = total.setdefault(space, [np.zeros((classes, x.shape[1])) for x in layers])
            for of_class, x in zip(sums, layers, strict=True):
                of_class[one.found] += x[0] if space == "hidden" else units_of(x.mean(0))
    return {space: [units_of(x) for x in sums] for space, sums in total.items()}


def attributions(one: Seen, directions: dict[str, list[Array]]) -> dict[tuple[str, int], Array]:
    """(name, layer) → a number for every token, [CLS] among them."""
    out: dict[tuple[str, int], Array] = {}
    rolled = np.eye(len(one.attention[0]))
    others = [c for c in range(len(directions["hidden"][0])) if c != one.found]
    for i, weights in enumerate(one.attention):
        rolled = (weights + np.eye(len(weights))) / 2 @ rolled
        layer = i + 1
        out["attention", layer], out["rollout", layer] = weights[0], rolled[0]
        out["value norm", layer] = weights[0] * one.norms[i]
        for space in SPACES:
            cosine = one.vectors[space][i] @ directions[space][i].T
            out[space, layer] = cosine[:, one.found]
            out[f"{space}, contrast", layer] = cosine[:, one.found] - cosine[:, others].mean(1)
    return out


def baselines(example: Example, frequency: Counter[str], draw: np.random.Generator) -> dict[str, Array]:
    """Name → a number for every word."""
    words = example.all_words
    total = sum(frequency.values())
    rare = np.array([-np.log((frequency[w.lower()] + 1) / (total + 1)) for w in words])
    return {"random": draw.random(len(words)), "rare": rare}


def over_words(values: Array, words: list[int], count: int) -> Array:
    """The mean over each word's tokens (−1: of none); the smallest value for a word that was cut off."""
    index = np.array(words)
    real = index >= 0
    total, n = (np.bincount(index[real], weights, count) for weights in (values[real], None))
    return np.where(n > 0, total / np.maximum(n, 1), values.min() if len(values) else 0.0)
