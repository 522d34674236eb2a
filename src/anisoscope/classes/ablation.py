"""The direct test: what becomes of a trained model whose attention weights are replaced.

uniform    every real token of the sentence weighs the same
permuted   the weights of each row are dealt anew among its real tokens
another    the weights of another sentence of the batch, stretched to this one's length; for a sentence alone in its
           batch, those of the last sentence of the batch before

The values stay the model's own. Padding never gets weight.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from anisoscope.capture.backends import looking_on
from anisoscope.capture.masking import Call
from anisoscope.data.encoding import LabelledPlan
from anisoscope.errors import MeasureError
from anisoscope.metrics.class_direction import units_of
from anisoscope.models.modes import evaluating
from anisoscope.progress import Progress
from anisoscope.store import as_records

Weighed = tuple[Tensor, Tensor]
"""Attention weights [1, head, query, key] of one sentence and which of its tokens are real [1, token]."""
KINDS = ("uniform", "permuted", "another")


@dataclass
class Ablation:
    """Which weights replace those of which layers (from 1), and how far the layers' outputs turned.

    cosine  layer → [sum over utterances of the cosine between the [CLS] row's output before and after, the same of
    the mean over all rows, utterances]; before W_O, both from the same values
    """

    kind: str
    layers: frozenset[int]
    mask: Tensor
    seed: int = 0
    others: dict[int, Weighed] = field(default_factory=dict)
    called: int = 0
    cosine: dict[int, list[float]] = field(default_factory=dict)

    def attend(self, call: Call) -> Tensor:
        """Output [sequence, query, head, dim] with weights replaced where this is one of the layers."""
        self.called += 1
        self._check(call)
        weights = call.weights()
        out = weights @ call.value
        if self.called in self.layers:
            other = self.others.get(self.called) if len(weights) == 1 else None
            instead = changed(weights, self.mask, self.kind, self.seed + self.called, other)
            if call.settings.get("s_aux") is not None and self.kind != "permuted":  # what goes to a sink stays with it
                instead = instead * weights.sum(-1, keepdim=True)
            replaced = instead @ call.value
            self._compare(out, replaced)
            out = replaced
        self.others[self.called] = weights[-1:], self.mask[-1:]
        return out.transpose(1, 2).contiguous()

    def _check(self, call: Call) -> None:
        expected = "attention in which every token sees every other"
        if call.query.shape[2] != self.mask.shape[1]:
            got = f"{call.query.shape[2]} queries of {self.mask.shape[1]} tokens"
            raise MeasureError(expected, got, "replace the attention of an encoder")
        masking, real = call.masking, self.mask
        seen = real[:, None, None] if masking.keys is None else masking.keys[..., : real.shape[1]]
        every = (seen == real[:, None, None]) | ~real[:, None, :, None]  # rows of padding do not matter
        if masking.causal or not bool(every.all()):
            raise MeasureError(expected, "a causal or local mask", "replace the attention of an encoder")

    def _compare(self, before: Tensor, after: Tensor) -> None:
        cosine = nn.functional.cosine_similarity(before.double(), after.double(), dim=-1).mean(1)  # over heads
        first = float(cosine[:, 0].sum())
        rows = float(((cosine * self.mask).sum(1) / self.mask.sum(1)).sum())
        found = self.cosine.setdefault(self.called, [0.0, 0.0, 0.0])
        for i, x in enumerate((first, rows, float(len(cosine)))):
            found[i] += x


def changed(weights: Tensor, mask: Tensor, kind: str, seed: int = 0, other: Weighed | None = None) -> Tensor:
    """Other weights [sequence, head, query, key] that add up to 1 over the real keys: `mask` [sequence, key] is true
    before the padding. `other`: what a sentence alone in its batch takes from `another`.
    """
    real = mask[:, None, None, :]
    if kind == "uniform":
        return (real / real.sum(-1, keepdim=True)).to(weights).expand_as(weights)
    if kind == "permuted":
        generator = torch.Generator().manual_seed(seed)
        noise = torch.rand(weights.shape, generator=generator).to(weights.device)
        dealt = noise.masked_fill(~real, 2.0).argsort(-1)  # the real keys in any order, then padding, which weighs 0
        return weights.gather(-1, dealt)
    return _stretched(weights, mask, other)


def _stretched(weights: Tensor, mask: Tensor, other: Weighed | None) -> Tensor:
    """Weights of the next sentence of the batch (of the last: the first's; else of the `other`), each row brought to
    this one's length.
    """
    given, lengths = (weights, mask.sum(1)) if other is None else (other[0], other[1].sum(1))
    count = mask.sum(1)
    position = torch.arange(mask.shape[1], device=mask.device)
    out = torch.zeros_like(weights)
    for i in range(len(weights)):
        taken_from, n = (i + 1) % len(given), int(count[i])
        step = (int(lengths[taken_from]) - 1) / max(n - 1, 1)
        source = (position[:n] * step).round().long()
        taken = given[taken_from][:, source][:, :, source]
        out[i, :, :n, :n] = taken / taken.sum(-1, keepdim=True)
    return out


@torch.no_grad()
def outcome(
    model: Any, batches: LabelledPlan, kind: str, layers: Sequence[int]
) -> tuple[NDArray[np.int64], NDArray[np.float64], dict[int, tuple[float, float]]]:
    """(class found of every utterance, its final [CLS] as a unit vector, {layer: cosine of outputs of [CLS], of all})
    with the attention of `layers` replaced; no layers: the model as it is.
    """
    found = np.zeros(batches.n_units, np.int64)
    final: list[NDArray[np.float64]] = [np.zeros(0)] * batches.n_units
    totals: dict[int, list[float]] = {}
    others: dict[int, Weighed] = {}
    current: list[Ablation] = []
    base = getattr(model, model.base_model_prefix)
    last: list[Tensor] = []
    handle = base.register_forward_hook(lambda _m, _a, output: last.append(output.last_hidden_state[:, 0]))
    try:
        with evaluating(model), looking_on(model, lambda call: current[-1].attend(call)):
            for number, batch in enumerate(batches):
                mask = next(iter(batch.streams.values())).mask
                current[:] = [Ablation(kind, frozenset(layers), mask, 1000 * number, others)]
                last.clear()
                logits = model(**batch.inputs).logits
                rows = batch.unit.numpy()
                found[rows] = logits.argmax(-1).cpu().numpy()
                for row, vector in zip(rows, units_of(last[0].double().cpu().numpy()), strict=True):
                    final[row] = vector
                for layer, sums in current[0].cosine.items():
                    kept_sums = totals.setdefault(layer, [0.0, 0.0, 0.0])
                    totals[layer] = [a + b for a, b in zip(kept_sums, sums, strict=True)]
    finally:
        handle.remove()
    return found, np.stack(final), {layer: (a / n, b / n) for layer, (a, b, n) in totals.items()}


def ablations(model: Any, batches: LabelledPlan, progress: Progress = lambda _done, _total: None) -> pd.DataFrame:
    """Records, `component` the kind, `layer` the one replaced (null: all): `replaced.accuracy`
    (less that of the model as it is), `replaced.agreement` of the classes found, `replaced.cls` (cosine of the final
    [CLS] to its own before), `replaced.output` and `replaced.rows` (cosine of the layer's output of [CLS], and of all
    rows, to those before).
    """
    labels = np.array(batches.encoded.labels)
    before, vectors, _ = outcome(model, batches, "uniform", ())
    depth = model.config.num_hidden_layers
    sets: list[tuple[int | None, tuple[int, ...]]] = [(None, tuple(range(1, depth + 1)))]
    sets += [(layer, (layer,)) for layer in range(1, depth + 1)]
    rows: list[dict[str, Any]] = []
    passes = len(KINDS) * len({layers for _, layers in sets})
    for number, kind in enumerate(KINDS):
        done: dict[tuple[int, ...], Any] = {}  # of one layer, it and all are the same
        for name, layers in sets:
            if layers not in done:
                done[layers] = outcome(model, batches, kind, layers)
                progress(number * passes // len(KINDS) + len(done), passes)
            after, turned, outputs = done[layers]
            values = {
                "accuracy": float((after == labels).mean() - (before == labels).mean()),
                "agreement": float((after == before).mean()),
                "cls": float((turned * vectors).sum(1).mean()),
            }
            if name is not None:
                values |= dict(zip(("output", "rows"), outputs[name], strict=True))
            rows += [
                {"metric": f"replaced.{metric}", "component": kind, "layer": name, "value": value}
                for metric, value in values.items()
            ]
    return as_records(pd.DataFrame(rows), n_units=len(labels))
