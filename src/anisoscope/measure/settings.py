"""What a measurement computes: the settings, which are part of a run's identity."""

from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING, Annotated, get_args

from anisoscope.axes import LAYER_QUANTITIES, POLICIES, At, Flatten
from anisoscope.errors import UsageError, near_matches
from anisoscope.options import INPUT, MACHINE, WHAT, Option, check_fields, shortened

if TYPE_CHECKING:
    from torch import nn

    from anisoscope.metrics.base import Metric

PANELS = ("hidden", "spectrum", "attention")
ON_REQUEST = ("alignment", "class")
"""Panels that `all` does not mean: what the drift of queries and keys does (three times the cost of attention), and
the directions of classes, which labelled sequences have.
"""
OF_HIDDEN = {"hidden", "final", "sample", "class"}
"""What metrics of hidden states are of."""
FLATTEN, AT = get_args(Flatten), get_args(At)
MOST_GROUPS = 1 << 16
"""The sums of a site take groups times its width."""


Names = tuple[str, ...]
HELP = {
    "panels": "hidden, spectrum, attention, several with commas, or all; on request only: alignment (what the drift of "
    "queries and keys does), class (directions of classes, of labelled vectors)",
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
    metrics: Names = ()
    blocks: Annotated[Names, Option(HELP["blocks"], INPUT)] = ()
    tokens_first: Annotated[bool | None, Option(HELP["tokens_first"], INPUT, ("--tokens-first/--sequences-first",))] = (
        None
    )
    flatten: Annotated[Flatten, Option(HELP["flatten"], WHAT, known=FLATTEN)] = "position"
    at: At = "first"
    attention: Annotated[str, Option(HELP["attention"], MACHINE, known=("model", "fused"))] = "model"
    layers: Annotated[tuple[int, ...], Option(HELP["layers"], WHAT, parse=layers_of, shown="all")] = ()

    def __post_init__(self) -> None:
        check_fields(self)
        if self.metrics:
            from anisoscope import metrics  # loads torch

            known = metrics.found()
            for name in self.metrics:
                if name not in known:
                    raise UsageError(f"metrics among {', '.join(known)}", repr(name), near_matches(name, known))
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
        from anisoscope import metrics  # loads torch

        found = metrics.found()
        return [m for m in found.values() if (m.name in self.metrics if self.metrics else m.panel in self.panels)]

    @property
    def quantities(self) -> set[str]:
        """Quantities that the chosen metrics are computed of."""
        return {quantity for metric in self.chosen for quantity in metric.quantities}

    def needs_of(self, quantity: str) -> frozenset[str]:
        """Terms that the chosen metrics need of vectors of a quantity."""
        of_layer = quantity in ("hidden", "final")
        asked = {quantity} if of_layer or quantity == "value" else {quantity, "query_key"}
        needs = frozenset({"n"}).union(*(m.needs for m in self.chosen if asked & set(m.quantities)))
        if not of_layer:
            return needs - {"unit_square"}
        return needs | {"vector"} if "sample" in self.quantities else needs  # centred on the mean of all

    @property
    def what(self) -> set[str]:
        """Places to capture for the chosen metrics."""
        heads = self.quantities
        if not self.metrics:
            of_heads = [metric for metric in self.chosen if metric.panel in ("attention", *ON_REQUEST)]
            heads = {name for metric in of_heads for name in metric.quantities}
            heads |= {"value"} if "attention" in self.panels else set()
        heads |= {"query", "key"} if "query_key" in heads else set()
        layers = set(LAYER_QUANTITIES) if self.quantities & OF_HIDDEN else set()
        return layers | (heads & {"attention", "scores", "centred", "query", "key", "value"})

    def what_of(self, model: "nn.Module") -> tuple[set[str], set[str]]:
        """The same for one model, and which of it may be missing: with all panels, or metrics that are of hidden states
        too, a model without attention, or whose attention cannot be seen, is measured in its hidden states.
        """
        from anisoscope.models.blocks import has_attention  # loads torch
        from anisoscope.models.families import family_of

        of_hidden = all(OF_HIDDEN & set(metric.quantities) for metric in self.chosen)
        if not (of_hidden if self.metrics else set(self.panels) == set(PANELS)):
            return self.what, set()
        heads = self.what - set(LAYER_QUANTITIES)
        if not family_of(model).attention:
            return self.what - heads, set()
        return (self.what if has_attention(model) else self.what - {"centred"}), heads  # some call it by other names
