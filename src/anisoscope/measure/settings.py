"""What a measurement computes: the settings, which are part of a run's identity."""

from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING, Annotated, Any, get_args

from anisoscope.axes import LAYER_QUANTITIES, POLICIES, At, Flatten
from anisoscope.errors import UsageError, near_matches
from anisoscope.options import INPUT, MACHINE, WHAT, Option, check_fields, shortened

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from anisoscope.metrics.base import Metric
    from anisoscope.reads.base import Keeper

PANELS = ("hidden", "spectrum", "attention")
ON_REQUEST = ("alignment", "class")
"""Panels that `all` does not mean: what the drift of queries and keys does (three times the cost of attention), and
the directions of classes, which labelled sequences have.
"""
FLATTEN, AT = get_args(Flatten), get_args(At)
MOST_GROUPS = 1 << 16
"""The sums of a site take groups times its width."""


Names = tuple[str, ...]
HELP = {
    "panels": "hidden, spectrum, attention, several with commas, or all; on request only: alignment (what the drift of "
    "queries and keys does), class (directions of classes, of labelled vectors)",
    "metrics": "metrics by name, with commas, in place of panels (anisoscope list metrics); one of yours: module:NAME",
    "policies": "token policies, with commas: all, content, no-first",
    "groups": "groups of units left out in turn for the intervals",
    "spectrum_groups": "the same for the spectrum; default 8 up to 1,024 dimensions, 1 (no "
    "interval) up to 2,048, beyond it no spectrum unless it alone is asked for",
    "sample": "vectors kept per site for what sums cannot give",
    "seed": "seed of everything random (sample of vectors, untrained weights)",
    "median": "medians of attention rows (dear)",
    "blocks": "blocks by class (BertLayer) or by name pattern (encoder.layers.*), where they are not found",
    "layers": "0,8,16,-1: these layers of each stack only; 0 is the input of the first block, −1 the last",
    "tokens_first": "blocks pass on [token, sequence, dim], or [sequence, token, dim]; default: as read from the model",
    "flatten": "convolutional maps as one vector per position, or one per image",
    "attention": "model: outputs are the model's own, bit for bit; fused: the weights that are measured give them too, "
    "which moves them by rounding and saves a product",
}


def layers_of(text: str) -> tuple[int, ...]:
    """`0,8,-1` → (0, 8, −1); `all` → (), which stands for every layer."""
    try:
        return () if text.strip() == "all" else tuple(dict.fromkeys(int(number) for number in text.split(",")))
    except ValueError:
        raise UsageError("--layers as numbers with commas, or all", shortened(text), "as --layers 0,8,16,-1") from None


@dataclass(frozen=True)
class Settings:
    """What a measurement computes. Everything here is part of a run's identity.

    panels            of `PANELS` and `ON_REQUEST`
    metrics           by name, in place of panels: also `module:NAME`, or a `Metric`, which is then registered
    policies          of `axes.POLICIES`; the first is the one of spectrum and sample
    groups            G of the jackknife; spectrum_groups: of the second moments (None: 8 up to 1,024 dimensions,
    1 up to 2,048: no interval, and none beyond unless the spectrum alone is asked for)
    sample            tokens kept for what sums cannot give (0: none); sample_heads: their queries and keys too
    median, bins      dear attention statistics: medians of rows; edges of the histogram of scores
    tokens_first      blocks pass on [token, sequence, dim]; None: as read from the model
    flatten           convolutional maps as one vector per `position`, or one per `image` (linear sums and the first
    policy only, 8 groups: memory is 128 bytes per dimension and site)
    layers            of each stack, by number, or from the end below 0; none: all
    attention         what gives the outputs of attention: the `model`'s own product, or the weights measured (`fused`)
    at                whose vector stands for a labelled sequence: its `first` real token's, its `last`'s, their `mean`
    """

    panels: Annotated[Names, Option(HELP["panels"], WHAT, ("--panel",), known=(*PANELS, *ON_REQUEST), every="all")] = (
        PANELS
    )
    policies: Annotated[Names, Option(HELP["policies"], WHAT, ("--tokens",), known=POLICIES)] = POLICIES
    groups: Annotated[int, Option(HELP["groups"], WHAT, least=2, most=MOST_GROUPS)] = 32
    spectrum_groups: Annotated[int | None, Option(HELP["spectrum_groups"], WHAT, least=1, most=MOST_GROUPS)] = None
    sample: Annotated[int, Option(HELP["sample"], WHAT, least=0, most=1 << 31)] = 2048
    sample_heads: bool = False
    seed: Annotated[int, Option(HELP["seed"], WHAT, least=0)] = 0
    median: Annotated[bool, Option(HELP["median"], WHAT, ("--medians",))] = False
    bins: tuple[float, ...] = ()
    metrics: Annotated[Names, Option(HELP["metrics"], WHAT, ("--metrics", "--metric"))] = ()
    blocks: Annotated[Names, Option(HELP["blocks"], INPUT)] = ()
    tokens_first: Annotated[bool | None, Option(HELP["tokens_first"], INPUT, ("--tokens-first/--sequences-first",))] = (
        None
    )
    flatten: Annotated[Flatten, Option(HELP["flatten"], WHAT, known=FLATTEN)] = "position"
    at: At = "first"
    attention: Annotated[str, Option(HELP["attention"], MACHINE, known=("model", "fused"))] = "model"
    layers: Annotated[tuple[int, ...], Option(HELP["layers"], WHAT, parse=layers_of, shown="all")] = ()

    def __post_init__(self) -> None:
        if self.metrics:
            from anisoscope import metrics  # loads torch

            object.__setattr__(self, "metrics", metrics.names_of(self.metrics))
        check_fields(self)
        for name in self.metrics:
            metrics.find(name)
        if not self.policies:
            raise UsageError("at least one token policy", "none", f"choose of {', '.join(POLICIES)}")
        if not (self.panels or self.metrics):
            raise UsageError("at least one panel", "none", f"choose of {', '.join((*PANELS, *ON_REQUEST))}")
        if self.at not in AT:
            raise UsageError(f"at among {', '.join(AT)}", repr(self.at), near_matches(self.at, AT))
        rising = all(a < b for a, b in pairwise((-inf, *self.bins, inf)))
        if self.bins and (len(self.bins) < 2 or not rising):
            raise UsageError("bins as two finite edges or more, each above the last", repr(self.bins), "sort them")

    @property
    def chosen(self) -> "list[Metric]":
        """The metrics that are measured."""
        from anisoscope import metrics  # loads torch

        return metrics.choose(self.metrics, self.panels)

    @property
    def keepers(self) -> "list[Keeper]":
        """What a pass keeps for the chosen metrics: of each kind one that keeps what all of them need."""
        from anisoscope.reads.sample import KeptSample  # loads torch
        from anisoscope.reads.vectors import VectorSums

        wanted: list[Keeper] = [VectorSums()]
        wanted += [KeptSample(heads=True)] if self.sample_heads else []
        for metric in self.chosen:
            wanted += metric.reads.keepers(metric.needs)
        joined: dict[type, Any] = {}
        for keeper in wanted:
            kind = type(keeper)
            joined[kind] = joined[kind].join(keeper) if kind in joined else keeper
        return list(joined.values())

    @property
    def sampled(self) -> int:
        """How many tokens of each stack are kept."""
        from anisoscope.reads.sample import KeptSample  # loads torch

        return self.sample if any(isinstance(keeper, KeptSample) for keeper in self.keepers) else 0

    @property
    def labelled(self) -> bool:
        """Whether a chosen metric needs labelled sequences."""
        return any(metric.reads.labelled for metric in self.chosen)

    @property
    def summaries(self) -> "dict[str, Callable[[Any], Any]]":
        """What is kept of the embedding matrices for the chosen metrics, by their names."""
        found = {metric.name: metric.reads.summary() for metric in self.chosen}
        return {name: summary for name, summary in found.items() if summary is not None}

    def terms_at(self, quantity: str) -> frozenset[str]:
        """Sums that the chosen metrics need of vectors of a quantity."""
        from anisoscope.reads.vectors import VectorSums  # loads torch

        return next(keeper.terms_at(quantity) for keeper in self.keepers if isinstance(keeper, VectorSums))

    @property
    def what(self) -> set[str]:
        """Places to capture for the chosen metrics."""
        chosen = self.chosen
        of_heads = chosen
        if not self.metrics:
            of_heads = [metric for metric in chosen if metric.panel in ("attention", *ON_REQUEST)]
        heads = {quantity for metric in of_heads for quantity in metric.reads.captured} - {*LAYER_QUANTITIES}
        if not self.metrics and "attention" in self.panels:
            heads.add("value")
        layers = set(LAYER_QUANTITIES) if any(metric.reads.of_layers for metric in chosen) else set()
        return layers | heads

    def what_of(self, model: "nn.Module") -> tuple[set[str], set[str]]:
        """The same for one model, and which of it may be missing: with all panels, or metrics that are of hidden states
        too, a model without attention, or whose attention cannot be seen, is measured in its hidden states.
        """
        from anisoscope.models.blocks import has_attention  # loads torch
        from anisoscope.models.families import family_of

        of_hidden = all(metric.reads.of_layers for metric in self.chosen)
        if not (of_hidden if self.metrics else set(self.panels) == set(PANELS)):
            return self.what, set()
        heads = self.what - set(LAYER_QUANTITIES)
        if not family_of(model).attention:
            return self.what - heads, set()
        return (self.what if has_attention(model) else self.what - {"centred"}), heads  # some call it by other names
