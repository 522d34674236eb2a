"""Represent each text by one vector per layer, and predict its class with the model's head."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from anisoscope.axes import At, Site
from anisoscope.batch import Batch
from anisoscope.capture.tap import capture
from anisoscope.classes.readout import find_real_tokens, get_logits
from anisoscope.data.encoding import Encoded, Padding, pad_batch, to_padding
from anisoscope.errors import MeasureError
from anisoscope.metrics.class_direction import GROUPS, separability
from anisoscope.models.blocks import TokenPositions
from anisoscope.models.modes import evaluation_mode
from anisoscope.store import as_records
from anisoscope.sums.classes import pool_sequences
from anisoscope.sums.jackknife import wilson_interval

Labels = NDArray[np.int64]
ESTIMATE = ("value", "low", "high")
TRIED = 4
"""Utterances on which padding is tried, from the shortest to the longest."""


@torch.no_grad()
def pool_vectors(
    model: nn.Module, batches: Iterable[Batch], at: At = "first", stack: str = ""
) -> NDArray[np.float64]:
    """Run a model and return one vector per text and layer [unit, layer, dim].

    Layer 0 is the input of the first block, layer i the output of block i. The model runs in evaluation mode.

    at      how the tokens of a text become one vector: the `first`, the `last`, their `mean` or `max`
    stack   the stack to read, if the model has several; empty: the first
    """
    kept: list[Float[Tensor, "sequence layer dim"]] = []
    units: list[Tensor] = []
    states: dict[int, Tensor] = {}
    mask = torch.zeros(0, 0, dtype=torch.bool)
    positions = TokenPositions(model)

    def receive(site: Site, x: Tensor) -> None:
        """Pool the captured hidden states of a layer to one vector per sequence, and keep them."""
        if (
            site.quantity == "hidden"
            and site.layer is not None
            and stack in ("", site.stack)
        ):
            # Pooled inside the hook: the states of all layers at all tokens are never
            # held at once.
            states[site.layer] = pool_sequences(x, mask.to(x.device), at).cpu()

    with evaluation_mode(model), capture(model, ("hidden",), receive=receive):
        for batch in batches:
            streams = positions.streams(batch)
            mask = find_real_tokens(streams, stack or next(iter(streams)))
            # A batch that misses a layer must not read that of the batch before.
            states.clear()
            model(**batch.inputs)
            kept.append(torch.stack([states[layer] for layer in sorted(states)], 1))
            units.append(batch.unit)
    return torch.cat(kept)[torch.cat(units).argsort()].numpy()


@torch.no_grad()
def predict_logits(
    model: Any, rows: list[dict[str, Any]], pad: int | Padding, batch: int = 256
) -> Float[Tensor, "unit class"]:
    """Return the logits of the classifier for every text, in order.

    rows    what the model reads of each text (`input_ids`, …)
    pad     the padding token, on the right; or a `Padding`
    batch   number of texts in a batch

    MeasureError if the model refuses a batch, as T5 does for texts without the mark of their end.
    """
    padding = to_padding(pad)
    # By length, so that batches need little padding; undone at the end.
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]["input_ids"]))
    device = next(model.parameters()).device
    logits: list[Tensor] = []
    with evaluation_mode(model):
        for part in _iter_batches(rows, order, batch, padding):
            inputs = pad_batch([rows[i] for i in part], padding)
            # With labels a model also computes its loss, which comes first if it
            # returns a tuple.
            del inputs["labels"]
            on_device = {name: value.to(device) for name, value in inputs.items()}
            try:
                output = model(**on_device)
            except ValueError as error:
                expected = f"texts that {type(model).__name__} can read"
                cure = "give it the tokenizer that it was trained with"
                raise MeasureError(
                    expected, " ".join(str(error).split())[:120], cure
                ) from error
            logits.append(get_logits(output).cpu())
    return torch.cat(logits)[torch.tensor(order).argsort()]


def _iter_batches(
    rows: list[dict[str, Any]], order: list[int], batch: int, padding: Padding
) -> Iterator[list[int]]:
    """Yield batches of texts, as lists of their numbers; if padding is not allowed, texts of a batch are equally long.

    rows    what the model reads of each text
    order   numbers of the texts, sorted by length
    batch   number of texts in a batch at most
    """
    parts = [order]
    if padding.side == "none":
        parts = []
        # The order is by length, so that equal lengths follow each other.
        for _, equal in groupby(order, key=lambda i: len(rows[i]["input_ids"])):
            parts.append(list(equal))
    for part in parts:
        for first in range(0, len(part), batch):
            yield part[first : first + batch]


def predict_classes(model: Any, encoded: Encoded, pad: int | Padding) -> list[int]:
    """Return the number of the predicted class of every example, in order.

    encoded   the examples as token ids
    pad       the padding token, on the right; or a `Padding`
    """
    return predict_logits(model, encoded.rows, pad).argmax(-1).tolist()


def find_neutral_padding(model: Any, rows: list[dict[str, Any]], token: int) -> Padding:
    """Find the padding with which a classifier gives texts in a batch the same logits as each text alone.

    Right padding is preferred, since other runs use it; left, if only that works (XLNet reads its last position); none,
    if padding changes the logits on either side.

    rows    what the model reads of each text
    token   the padding token
    """
    if not rows:
        return Padding(token)
    by_length = sorted(rows, key=lambda row: len(row["input_ids"]))
    few = []
    lengths = set()
    for place in range(TRIED):
        # At equal steps from the shortest to the longest, both included.
        row = by_length[place * (len(rows) - 1) // (TRIED - 1)]
        few.append(row)
        lengths.add(len(row["input_ids"]))
    # Texts of equal length get no padding, so that nothing can be learnt about it.
    if len(lengths) < 2:
        return Padding(token)
    alone = torch.cat([predict_logits(model, [row], token) for row in few])
    # The root of the resolution: batches of another shape sum in another order, and
    # rounding grows over layers; padding that is read changes far more.
    tolerance = torch.finfo(alone.dtype).eps ** 0.5 * max(1.0, float(alone.abs().max()))
    sides: tuple[Literal["right", "left"], ...] = ("right", "left")
    for side in sides:
        together = predict_logits(model, few, Padding(token, side))
        if bool(((together - alone).abs() <= tolerance).all()):
            return Padding(token, side)
    return Padding(token, "none")


def make_separability_records(
    states: NDArray[np.float64],
    labels: Labels,
    names: tuple[str, ...],
    *,
    stack: str = "encoder",
    units: Labels | None = None,
    groups: int = GROUPS,
) -> pd.DataFrame:
    """Measure how well classes are separated in each layer, and return a table of records.

    Metrics are `class_direction.auc` (of each class, or null: of all), `.nearest` and `.dimensions`, with 95 %
    jackknife intervals over units.

    states   vectors [utterance, layer, dim]
    labels   class of each utterance
    names    names of the classes
    units    number of the unit (independent piece of data) of each utterance; None: each is its own
    groups   number of groups of units, each of which the jackknife leaves out in turn
    """
    rows = []
    for layer in range(states.shape[1]):
        estimates = separability(states[:, layer], labels, len(names), groups, units)
        for name, estimate in estimates.items():
            # Names end with the number of a class, unless they are of all classes.
            measure, _, number = name.partition(".")
            component = names[int(number)] if number else None
            row = {
                "metric": f"class_direction.{measure}",
                "component": component,
                "layer": layer,
            }
            rows.append(row | dict(zip(ESTIMATE, map(float, estimate), strict=True)))
    n_units = len(labels) if units is None else len(np.unique(units))
    return as_records(
        pd.DataFrame(rows),
        stack=stack,
        site="hidden",
        n_units=n_units,
        n_vectors=len(labels),
    )


def make_accuracy_records(
    predicted: Labels, labels: Labels, names: tuple[str, ...]
) -> pd.DataFrame:
    """Return records of the accuracy over all texts and over those of each class, with 95 % Wilson intervals.

    The record `majority` is the accuracy of always naming the commonest class.

    predicted   predicted class of each text
    labels      true class of each text
    names       names of the classes
    """
    subsets: list[tuple[str | None, NDArray[np.bool_]]] = [(None, labels >= 0)]
    for number, name in enumerate(names):
        subsets.append((name, labels == number))
    rows: list[dict[str, Any]] = []
    for component, subset in subsets:
        # A class without texts has no accuracy.
        if not subset.any():
            continue
        right = (predicted == labels)[subset]
        accuracy = float(right.mean())
        low, high = map(float, wilson_interval(accuracy, len(right)))
        rows.append(
            {
                "metric": "accuracy",
                "component": component,
                "value": accuracy,
                "low": low,
                "high": high,
            }
        )
    rows.append(
        {"metric": "majority", "value": np.bincount(labels).max() / len(labels)}
    )
    return as_records(pd.DataFrame(rows), n_units=len(labels))
