"""The direct test: what becomes of a trained model whose attention weights are replaced.

uniform    every real token of the sentence weighs the same
permuted   the weights of each row are dealt anew among its real tokens
another    the weights of another sentence of the batch, stretched to this one's length; for a sentence alone in its
           batch, those of the last sentence of the batch before

The values stay the model's own. Padding never gets weight.
"""

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from anisoscope.capture.backends import intercept_attention
from anisoscope.capture.masking import Call
from anisoscope.data.encoding import LabelledPlan
from anisoscope.errors import MeasureError
from anisoscope.metrics.base import units_of
from anisoscope.models.modes import evaluating
from anisoscope.progress import Progress
from anisoscope.store import as_records

Weighed = tuple[Tensor, Tensor]
"""Attention weights [1, head, query, key] of one sentence and which of its tokens are real [1, token]."""
KINDS = ("uniform", "permuted", "another")


class Ablation:
    """Which weights replace those of which layers (from 1), and how far the layers' outputs turned.

    cosine  layer → cosine between the [CLS] row's output before and after, mean of the same over all rows: sums over
            utterances, and their number; before W_O, both from the same values
    """

    def __init__(self, kind: str, layers: Sequence[int]) -> None:
        self.kind, self.layers = kind, layers
        self.cosine: dict[int, NDArray[np.float64]] = {}
        self.others: dict[int, Weighed] = {}

    def begin(self, mask: Tensor, seed: int) -> None:
        """Take the real tokens [sequence, token] of the batch whose calls come next."""
        self.mask, self.seed, self.layer = mask, seed, 0

    def attend(self, call: Call) -> Tensor:
        """Output [sequence, query, head, dim] with weights replaced where this is one of the layers."""
        self.layer += 1
        self._check(call)
        weights = call.weights()
        out = weights @ call.value
        if self.layer in self.layers:
            other = self.others.get(self.layer) if len(weights) == 1 else None
            instead = changed(weights, self.mask, self.kind, self.seed + self.layer, other)
            if call.settings.get("s_aux") is not None and self.kind != "permuted":  # what goes to a sink stays with it
                instead = instead * weights.sum(-1, keepdim=True)
            before, out = out, instead @ call.value
            cosine = nn.functional.cosine_similarity(before.double(), out.double(), dim=-1).mean(1)  # over heads
            rows = (cosine * self.mask).sum(1) / self.mask.sum(1)
            sums = np.array([float(cosine[:, 0].sum()), float(rows.sum()), len(cosine)])
            self.cosine[self.layer] = self.cosine.get(self.layer, 0.0) + sums
        self.others[self.layer] = weights[-1:], self.mask[-1:]
        return out.transpose(1, 2).contiguous()

    def _check(self, call: Call) -> None:
        masking, real, got = call.masking, self.mask, f"{call.query.shape[2]} queries of {self.mask.shape[1]} tokens"
        if call.query.shape[2] == real.shape[1]:
            seen = real[:, None, None] if masking.keys is None else masking.keys[..., : real.shape[1]]
            every = (seen == real[:, None, None]) | ~real[:, None, :, None]  # rows of padding do not matter
            if not masking.causal and bool(every.all()):
                return
            got = "a causal or local mask"
        raise MeasureError(
            "attention in which every token sees every other", got, "replace the attention of an encoder"
        )


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
    # those of the next sentence (of the last: the first's), each row brought to this one's length
    given, lengths = (weights, mask.sum(1)) if other is None else (other[0], other[1].sum(1))
    position = torch.arange(mask.shape[1], device=mask.device)
    out = torch.zeros_like(weights)
    for i, n in enumerate(mask.sum(1).tolist()):
        taken_from = (i + 1) % len(given)
        source = (position[:n] * ((int(lengths[taken_from]) - 1) / max(n - 1, 1))).round().long()
        taken = given[taken_from][:, source][:, :, source]
        out[i, :, :n, :n] = taken / taken.sum(-1, keepdim=True)
    return out


@torch.no_grad()
def outcome(
    model: Any, batches: LabelledPlan, kind: str, layers: Sequence[int]
) -> tuple[NDArray[np.int64], NDArray[np.float64], dict[int, tuple[float, float]]]:
    """(class found, unit vector of the final [CLS], {layer: cosine of [CLS] outputs, of all}), `layers` ablated."""
    found, final, units, last = [], [], [], []
    ablation = Ablation(kind, layers)
    base = getattr(model, model.base_model_prefix)
    handle = base.register_forward_hook(lambda _m, _a, output: last.append(output.last_hidden_state[:, 0]))
    try:
        with evaluating(model), intercept_attention(model, ablation.attend):
            for number, batch in enumerate(batches):
                ablation.begin(next(iter(batch.streams.values())).mask, 1000 * number)
                found.append(model(**batch.inputs).logits.argmax(-1).cpu())
                final.append(units_of(last.pop().double().cpu().numpy()))
                units.append(batch.unit)
    finally:
        handle.remove()
    order = torch.cat(units).argsort().numpy()
    turned = {layer: (float(a / n), float(b / n)) for layer, (a, b, n) in ablation.cosine.items()}
    return torch.cat(found).numpy()[order], np.concatenate(final)[order], turned


def ablations(model: Any, batches: LabelledPlan, progress: Progress = lambda _done, _total: None) -> pd.DataFrame:
    """Records, `component` the kind, `layer` the one replaced (null: all): `replaced.accuracy`
    (less that of the model as it is), `replaced.agreement` of the classes found, `replaced.cls` (cosine of the final
    [CLS] to its own before), `replaced.output` and `replaced.rows` (cosine of the layer's output of [CLS], and of all
    rows, to those before).
    """
    labels = np.array(batches.encoded.labels)
    before, vectors, _ = outcome(model, batches, "uniform", ())
    every = tuple(range(1, model.config.num_hidden_layers + 1))
    sets = list(dict.fromkeys([every, *((layer,) for layer in every)]))  # of one layer, it and all are the same
    rows: list[dict[str, Any]] = []
    for done, (kind, layers) in enumerate(product(KINDS, sets), 1):
        after, turned, outputs = outcome(model, batches, kind, layers)
        progress(done, len(KINDS) * len(sets))
        values = {
            "accuracy": float((after == labels).mean() - (before == labels).mean()),
            "agreement": float((after == before).mean()),
            "cls": float((turned * vectors).sum(1).mean()),
        }
        named: list[tuple[int | None, dict[str, float]]] = [(None, values)] if layers == every else []
        if len(layers) == 1:
            named.append((layers[0], values | dict(zip(("output", "rows"), outputs[layers[0]], strict=True))))
        rows += [
            {"metric": f"replaced.{metric}", "component": kind, "layer": layer, "value": value}
            for layer, measured in named
            for metric, value in measured.items()
        ]
    return as_records(pd.DataFrame(rows), n_units=len(labels))
