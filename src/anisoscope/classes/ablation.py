"""Ablation of attention: replace the attention weights of a trained model and see what changes.

uniform    every token that may be seen weighs the same
permuted   the weights of each row are dealt anew among the tokens that it may see
another    the weights of another sentence of the batch, stretched to this one's length; for a sentence alone in its
           batch, those of the last sentence of the batch before

The values stay the model's own. What a token may see does too: all real tokens of an encoder, those not behind it of a
decoder, those of its window. Padding never gets weight.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from anisoscope.capture.backends import intercept_attention
from anisoscope.capture.masking import Call, Masking
from anisoscope.classes.readout import HeadReading, find_real_tokens, get_logits, read_tokens
from anisoscope.data.encoding import LabelledPlan
from anisoscope.errors import MeasureError
from anisoscope.metrics.base import normalise
from anisoscope.models.blocks import Layout
from anisoscope.models.modes import evaluation_mode
from anisoscope.progress import Progress
from anisoscope.store import as_records
from anisoscope.sums.jackknife import estimate_mean

Weighed = tuple[Tensor, Tensor]
"""Attention weights [1, head, query, key] of one sentence and which of its tokens are real [1, token]."""
Array = NDArray[np.float64]
KINDS = ("uniform", "permuted", "another")
COSINE, SHARE, CHANGE = (-1.0, 1.0), (0.0, 1.0), (-1.0, 1.0)


class Ablation:
    """Replaces the attention weights of some layers (numbered from 1), and records how far the layers' outputs turn.

    cosine  layer → [utterance, 2]: cosine between the outputs before and after, for the token that the head reads, and
    its         mean over all tokens; outputs before the output projection, both from the same values
    """

    def __init__(self, kind: str, layers: Sequence[int]) -> None:
        """Prepare to replace the attention weights of `layers` by those of `kind` (one of `KINDS`)."""
        self.kind, self.layers = kind, layers
        self.cosine: dict[int, list[Array]] = {}
        self.others: dict[int, Weighed] = {}

    def begin(self, mask: Tensor, seed: int, read: Tensor | None = None) -> None:
        """Prepare for the forward call of a batch with these real tokens [sequence, token].

        `read` is the share of each token in what the classifier's head reads (None: it reads the first token).
        """
        self.mask, self.seed, self.layer = mask, seed, 0
        self.read = (mask & (mask.int().cumsum(1) == 1)).double() if read is None else read

    def attend(self, call: Call) -> Tensor:
        """Return the output of an attention call [sequence, query, head, dim], with replaced weights in the chosen
        layers.

        There the cosine of the outputs before and after is kept. Calls are counted as layers from 1.
        """
        self.layer += 1
        self._check(call)
        weights = call.weights()
        value = call.value.repeat_interleave(weights.shape[1] // call.value.shape[1], 1)  # heads may share values
        out = weights @ value
        if self.layer in self.layers:
            other = self.others.get(self.layer) if len(weights) == 1 else None
            allowed = find_seen_pairs(call.masking, self.mask)
            instead = replace_weights(weights, self.mask, self.kind, self.seed + self.layer, other, allowed)
            if call.settings.get("s_aux") is not None and self.kind != "permuted":  # what goes to a sink stays with it
                instead = instead * weights.sum(-1, keepdim=True)
            before, out = out, instead @ value
            cosine = nn.functional.cosine_similarity(before.double(), out.double(), dim=-1).mean(1)  # over heads
            rows = (cosine * self.mask).sum(1) / self.mask.sum(1)
            of_read = (cosine * self.read).sum(1)
            self.cosine.setdefault(self.layer, []).append(torch.stack((of_read, rows), 1).cpu().numpy())
        self.others[self.layer] = weights[-1:], self.mask[-1:]
        return out.transpose(1, 2).contiguous()

    def _check(self, call: Call) -> None:
        """Raise MeasureError unless the call is self-attention over all tokens of the batch."""
        queries, keys = call.query.shape[2], call.key.shape[2]
        tokens = self.mask.shape[1]
        if (queries, keys) != (tokens, tokens):
            got = f"{queries} queries and {keys} keys of {tokens} tokens"
            raise MeasureError("self-attention of every token", got, "replace the attention of one stack of tokens")


def find_seen_pairs(masking: Masking, mask: Tensor) -> Tensor:
    """Return which real tokens each token may attend to [sequence, 1 or head, query, key]."""
    tokens = mask.shape[1]
    allowed = mask[:, None, None, :].expand(-1, 1, tokens, -1)
    if masking.keys is not None:
        allowed = allowed & masking.keys[..., :tokens]
    if masking.causal:
        allowed = allowed & torch.ones(tokens, tokens, dtype=torch.bool, device=mask.device).tril()
    # rows of padding may see nothing; what becomes of them is of no account
    return torch.where(allowed.any(-1, keepdim=True), allowed, mask[:, None, None, :])


def replace_weights(
    weights: Tensor,
    mask: Tensor,
    kind: str,
    seed: int = 0,
    other: Weighed | None = None,
    allowed: Tensor | None = None,
) -> Tensor:
    """Return other attention weights [sequence, head, query, key] that add up to 1 over the keys that a query may see.

    mask     [sequence, key]: the real tokens
    kind     one of `KINDS`: uniform, permuted, or those of another sentence
    other    the weights that `another` uses for a sentence alone in its batch
    allowed  [sequence, 1 or head, query, key]: what each query may see; None: every real token
    """
    real = mask[:, None, None, :] if allowed is None else allowed
    if kind == "uniform":
        return (real.to(weights) / real.sum(-1, keepdim=True)).expand_as(weights)
    if kind == "permuted":
        generator = torch.Generator().manual_seed(seed)
        noise = torch.rand(weights.shape, generator=generator).to(weights.device)
        dealt = noise.masked_fill(~real, 2.0).argsort(-1)  # the keys that are seen in any order, then the others
        places = (~real).to(torch.uint8).expand_as(weights).argsort(dim=-1, stable=True)  # the same in their own order
        return torch.zeros_like(weights).scatter(-1, places, weights.gather(-1, dealt)) * real
    # those of the next sentence (of the last: the first's), each row brought to this one's length
    given, given_mask = (weights, mask) if other is None else other
    out = torch.zeros_like(weights)
    for i, own in enumerate(mask):
        taken_from = (i + 1) % len(given)
        theirs, ours = given_mask[taken_from].nonzero().flatten(), own.nonzero().flatten()
        n = len(ours)
        position = torch.arange(n, device=mask.device)
        source = theirs[(position * ((len(theirs) - 1) / max(n - 1, 1))).round().long()]
        taken = given[taken_from][:, source][:, :, source]
        if allowed is not None:
            taken = _limit_to_allowed(taken, allowed[i][:, ours][:, :, ours])
        rows = torch.zeros_like(out[i][:, ours])
        rows[:, :, ours] = taken / taken.sum(-1, keepdim=True)
        out[i] = out[i].index_copy(1, ours, rows)
    return out


def _limit_to_allowed(taken: Tensor, allowed: Tensor) -> Tensor:
    """Set weights [head, query, key] to 0 at keys that may not be seen; a row without any weight left gets equal
    weights.
    """
    kept = taken * allowed
    return torch.where(kept.sum(-1, keepdim=True) > 0, kept, allowed.to(taken).expand_as(taken))


@dataclass(frozen=True)
class Outcome:
    """What a model decides if some of its attention is replaced, for each text.

    found   the predicted class [utterance]
    final   unit vector [utterance, dim] of the last hidden state that the head reads
    turned  layer → [utterance, 2]: cosine of the layer's output before and after, of the token that is read, and the
    mean         over all tokens
    """

    found: NDArray[np.int64]
    final: Array
    turned: dict[int, Array]


def read_batches(model: Any, batches: LabelledPlan) -> list[HeadReading]:
    """Find which tokens the classifier's head reads in each batch; MeasureError if the model is an encoder–decoder."""
    if len(batches.stacks) > 1:
        got = f"{type(model).__name__}, an encoder–decoder"
        raise MeasureError("a model of one stack", got, "replace the attention of an encoder or a decoder alone")
    return [read_tokens(model, batch) for batch in batches]


@torch.no_grad()
def outcome_of_utterances(
    model: Any, batches: LabelledPlan, kind: str, layers: Sequence[int], readings: Sequence[HeadReading] | None = None
) -> Outcome:
    """Run the model with the attention of `layers` replaced, and return what it decides.

    `readings` is the result of `read_batches`, if known. MeasureError if the model has no base model, or a layer's
    attention cannot be replaced.

    kind   the weights that replace the model's own (one of `KINDS`)
    """
    found, final, units, last = [], [], [], []
    readings = read_batches(model, batches) if readings is None else readings
    ablation, layout = Ablation(kind, layers), Layout(model)
    prefix = str(getattr(model, "base_model_prefix", ""))
    base = getattr(model, prefix, None) if prefix else None
    if base is None:
        expected = "a classifier of transformers, with a base model under its head"
        raise MeasureError(expected, type(model).__name__, "look at directions and explanations alone")
    handle = base.register_forward_hook(lambda _m, _a, output: last.append(output[0]))
    try:
        with evaluation_mode(model), intercept_attention(model, ablation.attend):
            for number, (batch, reading) in enumerate(zip(batches, readings, strict=True)):
                mask = find_real_tokens(layout.streams(batch), reading.stack)
                ablation.begin(mask, 1000 * number, reading.weights)
                found.append(get_logits(model(**batch.inputs)).argmax(-1).cpu())
                final.append(normalise(reading.pool(last.pop()).cpu().numpy()))
                units.append(batch.unit)
    finally:
        handle.remove()
    missing = [layer for layer in layers if layer not in ablation.cosine]
    if missing:
        expected = f"attention of layers {', '.join(map(str, missing))} on transformers' attention interface"
        cure = "look at directions and explanations alone: --parts directions,explained"
        raise MeasureError(expected, f"{ablation.layer} calls of it in {type(model).__name__}", cure)
    order = torch.cat(units).argsort().numpy()
    turned = {layer: np.concatenate(parts)[order] for layer, parts in ablation.cosine.items()}
    return Outcome(torch.cat(found).numpy()[order], np.concatenate(final)[order], turned)


def outcome(
    model: Any, batches: LabelledPlan, kind: str, layers: Sequence[int]
) -> tuple[NDArray[np.int64], Array, dict[int, tuple[float, float]]]:
    """Run the model with the attention of `layers` replaced, and return averages over texts.

    kind   the weights that replace the model's own (one of `KINDS`)

    Returns (predicted class [text], unit vector of the final state that the head reads [text, dim], {layer: mean cosine
    of outputs before and after, of the token that is read and of all tokens}).
    """
    found = outcome_of_utterances(model, batches, kind, layers)
    turned = {layer: (float(x[:, 0].mean()), float(x[:, 1].mean())) for layer, x in found.turned.items()}
    return found.found, found.final, turned


def count_layers(model: Any) -> int:
    """Return the number of layers of a text model, from its configuration."""
    config = model.config
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    return int(config.num_hidden_layers)


def ablations(model: Any, batches: LabelledPlan, progress: Progress = lambda _done, _total: None) -> pd.DataFrame:
    """Replace the attention of all layers and of each layer by every kind of weights, and return records of what
    changes.

    `component` is the kind, `layer` the layer replaced (null: all), with 95 % intervals over utterances:
    `replaced.accuracy` (change of the accuracy), `replaced.agreement` (share of equal predictions), `replaced.cls`
    (cosine of the final state that the head reads, before and after), `replaced.output` and `replaced.rows` (cosine of
    the layer's output before and after, of the token that is read, and of all tokens).
    """
    labels = np.array(batches.encoded.labels)
    readings = read_batches(model, batches)
    before = outcome_of_utterances(model, batches, "uniform", (), readings)
    every = tuple(range(1, count_layers(model) + 1))
    sets = list(dict.fromkeys([every, *((layer,) for layer in every)]))  # of one layer, it and all are the same
    rows: list[dict[str, Any]] = []
    for done, (kind, layers) in enumerate(product(KINDS, sets), 1):
        after = outcome_of_utterances(model, batches, kind, layers, readings)
        progress(done, len(KINDS) * len(sets))
        right = (after.found == labels).astype(float) - (before.found == labels).astype(float)
        values: dict[str, tuple[Array, tuple[float, float]]] = {
            "accuracy": (right, CHANGE),
            "agreement": ((after.found == before.found).astype(float), SHARE),
            "cls": ((after.final * before.final).sum(1), COSINE),
        }
        named: list[tuple[int | None, dict[str, tuple[Array, tuple[float, float]]]]] = []
        if layers == every:
            named.append((None, values))
        if len(layers) == 1:
            output, of_rows = after.turned[layers[0]].T
            named.append((layers[0], values | {"output": (output, COSINE), "rows": (of_rows, COSINE)}))
        for layer, measured in named:
            for metric, (of_utterance, bounds) in measured.items():
                value, low, high = map(float, estimate_mean(of_utterance, bounds=bounds))
                place = {"metric": f"replaced.{metric}", "component": kind, "layer": layer}
                rows.append(place | {"value": value, "low": low, "high": high})
    return as_records(pd.DataFrame(rows), n_units=len(labels))
