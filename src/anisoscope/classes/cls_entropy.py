"""Entropy of the attention of the first token ([CLS]), in any model on the attention interface.

`row`       H of the softmax row of the first token, over all its keys, divided by ln n
`reported`  the same divided by ln(n − 1)
`again`     of a second softmax over that row without [CLS] and padding, divided by ln(n − 1)
`columns`   the rows of real tokens are added up (over layers too), a second softmax over these sums without [CLS] and
            padding, its H divided by ln(n − 1)

n counts the real tokens with [CLS]; if heads have learnt sinks, H of the row counts the sink as one outcome more,
and so does n. H is in [0, 1]: 1 uniform, 0 one token. Heads are averaged. An utterance whose normaliser is 0 (too
short) counts as 0. The first and the last form are also penalties that Fosse et al. 2023 train with.
"""

from collections.abc import Iterable

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from anisoscope.batch import Batch
from anisoscope.capture.backends import intercept_attention
from anisoscope.capture.masking import HIDDEN, Call
from anisoscope.errors import MeasureError
from anisoscope.models.modes import evaluation_mode

Layers = tuple[int, ...]


class Watch:
    """Captures the attention rows of the first token, and column sums of attention, of chosen layers in one forward
    call.
    """

    def __init__(
        self, mask: Shaped[Tensor, "sequence token"], layers: Layers, *, columns: bool
    ) -> None:
        """Prepare for a forward call.

        mask      which tokens are real
        layers    numbers of the layers to read, from 1; empty: all
        columns   also keep column sums of the attention

        MeasureError if padding is on the left: then the first row is not that of the first token.
        """
        if bool((mask[:, 1:].bool() & ~mask[:, :1].bool()).any()):
            raise MeasureError(
                "padding behind the tokens",
                "padding before them",
                "set tokenizer.padding_side = 'right'",
            )
        self.mask = mask.bool()
        self.layers = layers
        self.columns = columns
        self._called = 0
        self.nats: dict[int, Float[Tensor, "sequence head"]] = {}
        self.firsts: dict[int, Float[Tensor, "sequence head key"]] = {}
        self.sums: dict[int, Float[Tensor, "sequence head key"]] = {}
        self.sinks: dict[int, int] = {}

    def look(self, call: Call) -> None:
        """Read one attention call: the row of the first token, and with `columns` the sums over the rows of real
        queries.
        """
        self._called += 1
        if self.layers and self._called not in self.layers:
            return
        # Only the first row is computed: [sequence, head, 1, key] without the query
        # axis.
        scores = call.scores(1).squeeze(2)
        self.nats[self._called] = _compute_entropy(scores)
        # Scores have a column more than there are keys if heads have learnt sinks.
        self.sinks[self._called] = scores.shape[-1] - call.key.shape[2]
        if self.columns:
            self._keep_columns(call)

    def _keep_columns(self, call: Call) -> None:
        """Keep the first attention row of a call, and its column sums; MeasureError if rows are missing."""
        # A classifier whose head reads [CLS] may compute the first row of its last
        # layer alone.
        queries, tokens = call.query.shape[2], self.mask.shape[1]
        if queries != tokens:
            got = f"{queries} of {tokens} rows"
            raise MeasureError(
                "every row of attention",
                got,
                "set row_only to 'never' for this penalty",
            )
        weights = call.weights()
        self.firsts[self._called] = weights[:, :, 0]
        self.sums[self._called] = (weights * self.mask[:, None, :, None]).sum(2)

    @property
    def tokens(self) -> Float[Tensor, " sequence"]:
        """Return the number of real tokens of each sequence, [CLS] included."""
        return self.mask.sum(1).double()

    def rows(self, fewer: int = 0) -> dict[int, Float[Tensor, " sequence"]]:
        """Return {layer: entropy of the first token's attention row, divided by ln(n − `fewer`), mean over heads}.

        n is the number of real tokens, [CLS] included.
        """
        rows = {}
        for layer, nats in self._require_layers(self.nats).items():
            outcomes = self.tokens - fewer + self.sinks[layer]
            rows[layer] = _divide_by_largest(nats.mean(1), outcomes)
        return rows

    def row_entropy(self, fewer: int = 0) -> Float[Tensor, " sequence"]:
        """Return the normalised entropy of the first token's attention row, averaged over heads and layers.

        fewer   subtracted from the number of tokens n in the divisor ln n; the tables of Fosse et al. use 1
        """
        return torch.stack([*self.rows(fewer).values()]).mean(0)

    def column_entropy(self) -> Float[Tensor, " sequence"]:
        """Return the entropy of a softmax over the column sums of attention, without the column of [CLS].

        A column sum is the weight that a token gets from all real tokens, in all chosen layers. The entropy is divided
        by ln(n − 1), for n real tokens, and averaged over heads.
        """
        sums = self._require_layers(self.sums)
        # Added up over layers before the softmax: this form has no value by layer.
        return self._compute_second_entropy(torch.stack([*sums.values()]).sum(0))

    def again(self) -> dict[int, Float[Tensor, " sequence"]]:
        """Return {layer: entropy of a second softmax over the attention row of [CLS], without [CLS] itself}.

        It is divided by ln(n − 1), for n real tokens, and averaged over heads.
        """
        firsts = self._require_layers(self.firsts)
        return {layer: self._compute_second_entropy(x) for layer, x in firsts.items()}

    def _compute_second_entropy(
        self, weights: Float[Tensor, "sequence head key"]
    ) -> Float[Tensor, " sequence"]:
        """Return the entropy of a softmax over attention weights, without [CLS] and padding.

        It is divided by ln(n − 1), for n real tokens, and averaged over heads.
        """
        # A new tensor: the mask itself keeps [CLS].
        left_out = ~self.mask
        left_out[:, 0] = True
        weights = weights.masked_fill(left_out.unsqueeze(1), HIDDEN)
        return _divide_by_largest(_compute_entropy(weights).mean(1), self.tokens - 1)

    def _require_layers(self, captured: dict[int, Tensor]) -> dict[int, Tensor]:
        """Return `captured` (values by layer) unchanged; MeasureError if it is empty or a chosen layer is missing."""
        missing = [layer for layer in self.layers if layer not in captured]
        if missing or not captured:
            got = f"{self._called} calls of the attention interface"
            cure = "name layers the model has, or use a model with transformers' attention interface"
            raise MeasureError(
                f"attention in layers {missing or 'of the model'}", got, cure
            )
        return captured


def _compute_entropy(scores: Tensor) -> Tensor:
    """Return the entropy in nats of the softmax of attention scores over the last axis: ln Σ eˢ − Σ p s.

    Scores of keys that are not seen (`HIDDEN`, −1e30) have p = 0 and no gradient.
    """
    nats: Tensor = scores.logsumexp(-1) - (scores.softmax(-1) * scores).sum(-1)
    return nats


def _divide_by_largest(nats: Tensor, count: Tensor) -> Tensor:
    """Divide an entropy in nats by the largest one that `count` outcomes can have, ln(count); 0 if count is below 2."""
    usable = count > 1
    # Both branches are computed, and differentiated in training: the clamp keeps ln 1 =
    # 0 out of the division.
    return torch.where(
        usable, nats / count.clamp(min=2).log().to(nats.dtype), torch.zeros_like(nats)
    )


@torch.no_grad()
def measure_entropies(
    model: nn.Module, batches: Iterable[Batch], layers: Layers = ()
) -> dict[str, Float[Tensor, " unit"]]:
    """Measure the attention entropies of every text: {form: [text]}, in the order of the texts' units.

    Forms are `row` (entropy of the first token's attention row), `reported` (normalised as in the tables of Fosse et
    al.), `again` (after a second softmax), `columns` (of column sums), and the first three also by layer: `row.3`.

    layers   the layers to read; none: all
    """
    kept: dict[str, list[Tensor]] = {}
    units: list[Tensor] = []
    for batch in batches:
        # Encoders have one stream of tokens.
        mask = next(iter(batch.streams.values())).mask
        # One for each batch: it holds attention rows, whose width differs from batch to
        # batch.
        watch = Watch(mask, layers, columns=True)
        with evaluation_mode(model), intercept_attention(model, watch.look):
            model(**batch.inputs)
        for name, value in _compute_forms(watch).items():
            kept.setdefault(name, []).append(value)
        units.append(batch.unit)
    # Batches hold texts of equal length: back to the order of the units.
    order = torch.cat(units).argsort()
    return {name: torch.cat(values)[order] for name, values in kept.items()}


def _compute_forms(watch: Watch) -> dict[str, Tensor]:
    """Return the attention entropies of one batch by every formula: {name of the form: [text]}.

    Forms `row`, `reported`, `again` and `columns` are means over layers; `row.3` and the like are of one layer.

    watch   attention rows and column sums of the batch
    """
    # 1 less in the divisor is how Fosse et al. report H.
    by_layer = {"row": watch.rows(), "reported": watch.rows(1), "again": watch.again()}
    forms: dict[str, Tensor] = {}
    for name, layers in by_layer.items():
        forms[name] = torch.stack([*layers.values()]).mean(0)
    forms["columns"] = watch.column_entropy()
    for name, layers in by_layer.items():
        for layer, value in layers.items():
            forms[f"{name}.{layer}"] = value
    return forms
