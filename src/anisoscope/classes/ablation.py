"""Ablation of attention: replace the attention weights of a trained model and see what changes.

uniform    every token that may be seen weighs the same
permuted   the weights of each row are given at random to the tokens that it may see
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
from anisoscope.classes.readout import (
    HeadReading,
    find_real_tokens,
    get_logits,
    read_tokens,
)
from anisoscope.data.encoding import LabelledPlan
from anisoscope.errors import MeasureError
from anisoscope.metrics.base import normalise
from anisoscope.models.blocks import TokenPositions
from anisoscope.models.modes import evaluation_mode
from anisoscope.progress import Progress
from anisoscope.store import as_records
from anisoscope.sums.jackknife import estimate_mean

WeightsOfSentence = tuple[Tensor, Tensor]
"""Attention weights [1, head, query, key] of one sentence and which of its tokens are real [1, token]."""
Array = NDArray[np.float64]
Bounds = tuple[float, float]
"""Least and largest value that a quantity can have."""
KINDS = ("uniform", "permuted", "another")
COSINE: Bounds = (-1.0, 1.0)
SHARE: Bounds = (0.0, 1.0)
CHANGE: Bounds = (-1.0, 1.0)


class Ablation:
    """Replaces the attention weights of some layers (numbered from 1), and records how far the layers' outputs turn.

    cosine  layer → [utterance, 2]: cosine between the layer's output with the model's own weights and with the replaced
            ones: for the token that the classifier's head reads, and its mean over all tokens. Outputs are taken before
            the output projection, both from the same values
    """

    def __init__(self, kind: str, layers: Sequence[int]) -> None:
        """Prepare to replace the attention weights of `layers` by `uniform`, `permuted` or `another` (`kind`)."""
        self.kind = kind
        self.layers = layers
        self.cosine: dict[int, list[Array]] = {}
        self.others: dict[int, WeightsOfSentence] = {}

    def begin(self, mask: Tensor, seed: int, read: Tensor | None = None) -> None:
        """Prepare for the forward call of a batch.

        mask   which tokens are real [sequence, token]
        seed   of the permutations
        read   share of each token in what the classifier's head reads [sequence, token]; None: it reads the first token
        """
        self.mask = mask
        self.seed = seed
        self.layer = 0
        if read is None:
            # The first real token: with padding on the left it is not at position 0.
            is_first = mask & (mask.int().cumsum(1) == 1)
            read = is_first.double()
        self.read = read

    def attend(self, call: Call) -> Tensor:
        """Return the output of an attention call [sequence, query, head, dim], with replaced weights in the chosen
        layers.

        For these layers, the cosine between the outputs without and with replacement is added to `cosine`. Calls are
        counted as layers from 1.
        """
        self.layer += 1
        self._check(call)
        weights = call.weights()
        # Heads may share values.
        value = call.value.repeat_interleave(weights.shape[1] // call.value.shape[1], 1)
        output = weights @ value
        # Both outputs come from the same input of the layer, so that their cosine shows
        # what this replacement does, not those of the layers before.
        if self.layer in self.layers:
            before = output
            output = self._replace(call, weights) @ value
            self._keep_cosine(before, output)
        # The last sentence of this batch, for a batch of one sentence that follows.
        self.others[self.layer] = weights[-1:], self.mask[-1:]
        return output.transpose(1, 2).contiguous()

    def _replace(self, call: Call, weights: Tensor) -> Tensor:
        """Return what replaces the model's own attention weights [sequence, head, query, key] in an attention call."""
        other = None
        if len(weights) == 1:
            other = self.others.get(self.layer)
        allowed = find_seen_pairs(call.masking, self.mask)
        # A seed for each layer: with one for all, every layer would be permuted alike.
        replaced = replace_weights(
            weights, self.mask, self.kind, self.seed + self.layer, other, allowed
        )
        has_sinks = call.settings.get("s_aux") is not None
        # What goes to a sink stays with it; permuted weights have the sum of the model's own already.
        if has_sinks and self.kind != "permuted":
            replaced = replaced * weights.sum(-1, keepdim=True)
        return replaced

    def _keep_cosine(self, before: Tensor, after: Tensor) -> None:
        """Add to `cosine` how far replaced weights turned a layer's output; heads are averaged.

        before, after   the output without and with replaced weights [sequence, head, token, dim]
        """
        cosine = nn.functional.cosine_similarity(
            before.double(), after.double(), dim=-1
        ).mean(1)
        of_read = (cosine * self.read).sum(1)
        of_all = (cosine * self.mask).sum(1) / self.mask.sum(1)
        both = torch.stack((of_read, of_all), 1).cpu().numpy()
        self.cosine.setdefault(self.layer, []).append(both)

    def _check(self, call: Call) -> None:
        """Raise MeasureError unless the call is self-attention over all tokens of the batch."""
        queries, keys = call.query.shape[2], call.key.shape[2]
        tokens = self.mask.shape[1]
        if (queries, keys) != (tokens, tokens):
            got = f"{queries} queries and {keys} keys of {tokens} tokens"
            raise MeasureError(
                "self-attention of every token",
                got,
                "leave ablation out: --parts directions,attribution",
            )


def find_seen_pairs(masking: Masking, mask: Tensor) -> Tensor:
    """Return which real tokens each token may attend to [sequence, 1 or head, query, key].

    masking   what an attention call hides: its causal mask, and keys that it names
    mask      which tokens are real [sequence, token]
    """
    tokens = mask.shape[1]
    allowed = mask[:, None, None, :].expand(-1, 1, tokens, -1)
    if masking.keys is not None:
        allowed = allowed & masking.keys[..., :tokens]
    if masking.causal:
        allowed = (
            allowed
            & torch.ones(tokens, tokens, dtype=torch.bool, device=mask.device).tril()
        )
    # Rows of padding may see nothing: they get all tokens, so that no row divides by 0. They are not looked at.
    return torch.where(allowed.any(-1, keepdim=True), allowed, mask[:, None, None, :])


def replace_weights(
    weights: Tensor,
    mask: Tensor,
    kind: str,
    seed: int = 0,
    other: WeightsOfSentence | None = None,
    allowed: Tensor | None = None,
) -> Tensor:
    """Return attention weights of another kind, which add up to 1 over the keys that a query may see.

    weights  the model's own [sequence, head, query, key]; the result has the same shape
    mask     which keys are real tokens [sequence, key]
    kind     `uniform`; `permuted` (each row in random order); or `another` (those of another sentence of the batch)
    seed     of the random order
    other    the weights that `another` uses for a sentence alone in its batch
    allowed  what each query may see [sequence, 1 or head, query, key]; None: every real token
    """
    seen = mask[:, None, None, :] if allowed is None else allowed
    if kind == "uniform":
        return (seen.to(weights) / seen.sum(-1, keepdim=True)).expand_as(weights)
    if kind == "permuted":
        return _permute_weights(weights, seen, seed)
    return _take_from_another(weights, mask, other or (weights, mask), allowed)


def _permute_weights(weights: Tensor, seen: Tensor, seed: int) -> Tensor:
    """Return attention weights [sequence, head, query, key] with the weights of each row in a random order.

    seen   what each query may see [sequence, 1 or head, query, key]; weights of other keys become 0
    """
    # Drawn on the CPU, so that every device permutes alike.
    generator = torch.Generator().manual_seed(seed)
    noise = torch.rand(weights.shape, generator=generator).to(weights.device)
    # The keys that are seen come first in both orders: in the one at random, in the
    # other from left to right.
    # The noise is below 1: what is masked comes last.
    shuffled = noise.masked_fill(~seen, 2.0).argsort(-1)
    in_order = (~seen).to(torch.uint8).expand_as(weights).argsort(dim=-1, stable=True)
    return (
        torch.zeros_like(weights).scatter(-1, in_order, weights.gather(-1, shuffled))
        * seen
    )


def _take_from_another(
    weights: Tensor, mask: Tensor, other: WeightsOfSentence, allowed: Tensor | None
) -> Tensor:
    """Give each sentence the attention weights of the next one, stretched to its own length; the last gets the first's.

    weights   the model's own [sequence, head, query, key]; the result has the same shape
    mask      which keys are real tokens [sequence, key]
    other     the weights of the sentences to take from, and which of their tokens are real
    allowed   what each query may see [sequence, 1 or head, query, key]; None: every real token
    """
    given, given_mask = other
    replaced = torch.zeros_like(weights)
    for i, own in enumerate(mask):
        # With a single giver (a batch of one sentence) it is always that one.
        giver = (i + 1) % len(given)
        ours = own.nonzero().flatten()
        source = _stretch(given_mask[giver].nonzero().flatten(), len(ours))
        taken = given[giver][:, source][:, :, source]
        if allowed is not None:
            taken = _limit_to_allowed(taken, allowed[i][:, ours][:, :, ours])
        # Only the real tokens get weights: rows and columns of padding stay 0.
        rows = torch.zeros_like(replaced[i][:, ours])
        rows[:, :, ours] = taken / taken.sum(-1, keepdim=True)
        replaced[i] = replaced[i].index_copy(1, ours, rows)
    return replaced


def _stretch(tokens: Tensor, length: int) -> Tensor:
    """Choose `length` tokens at even distances, from the first to the last; some may be chosen twice.

    tokens   their positions [token]; the result [length] holds some of them
    """
    position = torch.arange(length, device=tokens.device)
    step = (len(tokens) - 1) / max(length - 1, 1)
    return tokens[(position * step).round().long()]


def _limit_to_allowed(taken: Tensor, allowed: Tensor) -> Tensor:
    """Return attention weights [head, query, key] with 0 at keys that may not be seen.

    A row without any weight left gets equal weights at the keys that may be seen.

    taken     weights of another sentence
    allowed   what each query may see [1 or head, query, key]
    """
    kept = taken * allowed
    # A window or a causal mask may hide all that the giver's row weighed.
    return torch.where(
        kept.sum(-1, keepdim=True) > 0, kept, allowed.to(taken).expand_as(taken)
    )


@dataclass(frozen=True)
class Outcome:
    """What a classifier decides if some of its attention is replaced, for each text.

    found   the predicted class [utterance]
    final   unit vector [utterance, dim] of the last hidden state that the head reads
    turned  layer → [utterance, 2]: cosine between the layer's output without and with replacement, of the token that
            the head reads, and the mean over all tokens
    """

    found: NDArray[np.int64]
    final: Array
    turned: dict[int, Array]


def read_batches(model: Any, batches: LabelledPlan) -> list[HeadReading]:
    """Find which tokens the classifier's head reads in each batch; MeasureError if the model is an encoder–decoder."""
    if len(batches.stacks) > 1:
        got = f"{type(model).__name__}, an encoder–decoder"
        raise MeasureError(
            "a model with one stack of blocks",
            got,
            "leave ablation out: --parts directions,attribution",
        )
    return [read_tokens(model, batch) for batch in batches]


@torch.no_grad()
def measure_outcomes(
    model: Any,
    batches: LabelledPlan,
    kind: str,
    layers: Sequence[int],
    readings: Sequence[HeadReading] | None = None,
) -> Outcome:
    """Run a classifier with the attention weights of `layers` replaced, and return what it decides.

    kind       the weights that replace the model's own: `uniform`, `permuted` or `another`
    layers     numbers of the layers, from 1; empty: the model runs unchanged
    readings   which tokens the head reads in each batch, if known from `read_batches`; None: found out here

    MeasureError if the model has no base model, or a layer's attention cannot be replaced.
    """
    if readings is None:
        readings = read_batches(model, batches)
    ablation = Ablation(kind, layers)
    positions = TokenPositions(model)
    found: list[Tensor] = []
    final: list[Array] = []
    units: list[Tensor] = []
    last_states: list[Tensor] = []

    def keep_last_states(_module: nn.Module, _args: Any, output: Any) -> None:
        """Keep the last hidden states of a call of the base model."""
        last_states.append(output[0])

    handle = _get_base(model).register_forward_hook(keep_last_states)
    try:
        # Dropout off: outputs before and after would differ by it alone.
        with evaluation_mode(model), intercept_attention(model, ablation.attend):
            for number, (batch, reading) in enumerate(
                zip(batches, readings, strict=True)
            ):
                mask = find_real_tokens(positions.streams(batch), reading.stack)
                # A thousand apart, since layers add their number to the seed of the
                # batch.
                ablation.begin(mask, 1000 * number, reading.weights)
                logits = get_logits(model(**batch.inputs))
                found.append(logits.argmax(-1).cpu())
                # `pop`, so that the states of one batch at most are held.
                final.append(normalise(reading.pool(last_states.pop()).cpu().numpy()))
                units.append(batch.unit)
    finally:
        handle.remove()
    # A layer whose attention is not computed through the interface was left as it is:
    # the result would look like attention that does not matter.
    missing = [layer for layer in layers if layer not in ablation.cosine]
    if missing:
        expected = f"attention of layers {', '.join(map(str, missing))} to go through transformers' attention interface"
        cure = "leave ablation out: --parts directions,attribution"
        raise MeasureError(
            expected,
            f"{ablation.layer} calls of that interface in {type(model).__name__}",
            cure,
        )
    # Batches hold texts of equal length: back to the order of the corpus.
    order = torch.cat(units).argsort().numpy()
    turned = {}
    for layer, parts in ablation.cosine.items():
        turned[layer] = np.concatenate(parts)[order]
    return Outcome(
        torch.cat(found).numpy()[order], np.concatenate(final)[order], turned
    )


def _get_base(model: Any) -> nn.Module:
    """Return the model under a classifier's head; MeasureError if there is none."""
    prefix = str(getattr(model, "base_model_prefix", ""))
    base = getattr(model, prefix, None) if prefix else None
    if isinstance(base, nn.Module):
        return base
    expected = "a classifier of transformers, with a base model under its head"
    raise MeasureError(
        expected,
        type(model).__name__,
        "leave ablation out: --parts directions,attribution",
    )


def average_outcome(
    model: Any, batches: LabelledPlan, kind: str, layers: Sequence[int]
) -> tuple[NDArray[np.int64], Array, dict[int, tuple[float, float]]]:
    """Run a classifier with the attention weights of `layers` replaced; return predictions and how far outputs turn.

    kind     the weights that replace the model's own: `uniform`, `permuted` or `another`
    layers   numbers of the layers, from 1; empty: the model runs unchanged

    Returns (predicted class [text], unit vector of the final state that the head reads [text, dim], {layer: cosine
    between its output without and with replacement, mean over texts: of the token that the head reads, of all tokens}).
    """
    outcome = measure_outcomes(model, batches, kind, layers)
    means: dict[int, tuple[float, float]] = {}
    for layer, cosines in outcome.turned.items():
        of_read, of_all = cosines[:, 0], cosines[:, 1]
        means[layer] = float(of_read.mean()), float(of_all.mean())
    return outcome.found, outcome.final, means


def count_layers(model: Any) -> int:
    """Return the number of layers of a text model, from its configuration."""
    config = model.config
    # Models of text and images keep the number in the configuration of the text part.
    if hasattr(config, "get_text_config"):
        config = config.get_text_config()
    return int(config.num_hidden_layers)


def measure_ablations(
    model: Any, batches: LabelledPlan, progress: Progress = lambda _done, _total: None
) -> pd.DataFrame:
    """Replace the attention weights of all layers, then of each layer, by every kind of weights; return what changes.

    The result is a table of records: `component` is the kind of weights, `layer` the layer replaced (null: all), with
    95 % intervals over utterances. Metrics are `ablation.accuracy` (change of the accuracy), `ablation.agreement`
    (share of equal predictions), `ablation.cls` (cosine between the final states that the head reads without and with
    replacement), `ablation.output` and `ablation.rows` (the same cosine of the layer's output: of the token that the
    head reads, and of all tokens).

    progress   called with the number of runs done, and of all
    """
    labels = np.array(batches.encoded.labels)
    readings = read_batches(model, batches)
    # Without layers nothing is replaced, whatever the kind.
    before = measure_outcomes(model, batches, "uniform", (), readings)
    every = tuple(range(1, count_layers(model) + 1))
    choices = [every]
    # In a model of one layer, that layer and all layers are the same choice.
    if len(every) > 1:
        choices += [(layer,) for layer in every]
    rows: list[dict[str, Any]] = []
    for done, (kind, layers) in enumerate(product(KINDS, choices), 1):
        after = measure_outcomes(model, batches, kind, layers, readings)
        progress(done, len(KINDS) * len(choices))
        changes = _compare_outcomes(before, after, labels)
        if layers == every:
            rows += _make_records(kind, None, changes)
        # How far an output turns is known of the layer itself only: with all layers
        # replaced, the inputs differ too.
        if len(layers) == 1:
            layer = layers[0]
            of_read, of_all = after.turned[layer].T
            changes |= {"output": (of_read, COSINE), "rows": (of_all, COSINE)}
            rows += _make_records(kind, layer, changes)
    return as_records(pd.DataFrame(rows), n_units=len(labels))


def _compare_outcomes(
    before: Outcome, after: Outcome, labels: NDArray[np.int64]
) -> dict[str, tuple[Array, Bounds]]:
    """Return {measure: (its value for each text, its bounds)} of what replaced attention changes.

    The measures are `accuracy`, `agreement` of the predictions, and `cls`, the cosine between the final states.

    before, after   what the classifier decides without and with replacement
    labels          true class of each text
    """
    right_before = (before.found == labels).astype(float)
    right_after = (after.found == labels).astype(float)
    return {
        "accuracy": (right_after - right_before, CHANGE),
        "agreement": ((after.found == before.found).astype(float), SHARE),
        "cls": ((after.final * before.final).sum(1), COSINE),
    }


def _make_records(
    kind: str, layer: int | None, changes: dict[str, tuple[Array, Bounds]]
) -> list[dict[str, Any]]:
    """Return a record for each measure of `changes`: its mean over texts, with a 95 % interval.

    kind    the weights that replaced the model's own
    layer   the layer in which they did; None: all
    """
    rows = []
    for measure, (of_utterance, bounds) in changes.items():
        value, low, high = map(float, estimate_mean(of_utterance, bounds=bounds))
        place = {"metric": f"ablation.{measure}", "component": kind, "layer": layer}
        rows.append(place | {"value": value, "low": low, "high": high})
    return rows
