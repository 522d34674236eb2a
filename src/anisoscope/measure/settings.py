"""The settings of a measurement, which are part of a run's identity."""

from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field

from anisoscope import renamed
from anisoscope.axes import LAYER_QUANTITIES, POLICIES, At, Flatten, TokenPolicy
from anisoscope.errors import UsageError
from anisoscope.options import (
    INPUT,
    MACHINE,
    PYTHON_ONLY,
    WHAT,
    Names,
    Number,
    Numbers,
    Whole,
    declare_settings,
    option,
    split_names,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from anisoscope.metrics.base import Metric
    from anisoscope.reads.base import Keeper

Panel = Literal[
    "hidden", "spectrum", "attention", "alignment", "extremes", "floor", "class"
]
PANELS: tuple[Panel, ...] = ("hidden", "spectrum", "attention")
"""Panels that `all` means."""
OPT_IN_PANELS: tuple[Panel, ...] = ("alignment", "extremes", "floor", "class")
"""Panels on request only: what the drift of queries and keys does (three times the cost of attention), sinks, massive
activations and the largest logits, which cosines are noise (measured by default for sentence models), and the
directions of classes, which labelled sequences have.
"""
MOST_GROUPS = 1 << 16
"""The sums of a site take groups times its width."""


def name_metrics(given: Any) -> Any:
    """Return the names of metrics; a `Metric` object among them is registered and replaced by its name.

    given   names and `Metric` objects; a text alone is returned unchanged
    """
    if not given or isinstance(given, str):
        return given
    # Here and below: settings are built for `--help` too, which must not load torch.
    from anisoscope import metrics

    return metrics.list_metric_names(given)


@declare_settings
class Settings:
    """What a measurement computes. Everything here is part of a run's identity.

    panel             panels (sets of metrics): of `PANELS` and `OPT_IN_PANELS`
    metrics           names of metrics, instead of panels: also `module:NAME`, or a `Metric`, which is then registered
    tokens            token policies (`axes.POLICIES`); the first is used for spectrum and sample
    groups            number of groups of the jackknife; spectrum_groups: of the second moments (None: 8 up to 1,024
    dimensions, 1 up to 2,048: no interval, and none beyond unless only the spectrum is asked for)
    spectrum_share    share of the tokens whose second moments are summed, drawn at random; the same at every site
    sample            tokens kept for what sums cannot give (0: none); sample_heads: their queries and keys too
    medians, bins     expensive attention statistics: medians of rows; edges of the histogram of scores
    tokens_first      blocks pass on [token, sequence, dim]; None: as read from the model
    flatten           convolutional maps as one vector per `position`, or one per `image` (linear sums and the first
    policy only, 8 groups: memory is 128 bytes per dimension and site)
    layers            of each stack, by number, or from the end below 0; none: all
    attention         what gives the outputs of attention: the `model`'s own product, or the weights measured (`fused`)
    at                the vector that represents a labelled sequence: of its `first` or `last` real token, or the `mean`
    """

    panel: Annotated[
        tuple[Panel, ...],
        split_names(PANELS),
        option(
            "what to measure: hidden, spectrum, attention (several with commas), or "
            "`all` for these three; measured only if named: alignment (what the mean "
            "query and key do to attention), extremes (sinks, massive activations, "
            "largest logits), class (class directions, if vectors have labels), floor "
            "(cosines of unrelated documents or clips; also measured by default for "
            "sentence models)",
            WHAT,
            shown="all",
            metavar="NAME,…",
        ),
    ] = PANELS
    tokens: Annotated[
        tuple[TokenPolicy, ...],
        split_names(("all",)),  # the name of a selection, not every one
        option(
            "which tokens count, with commas: all, content (no special tokens), "
            "no-first (without the first token)",
            WHAT,
            metavar="NAME,…",
        ),
    ] = POLICIES
    groups: Annotated[
        Whole,
        Field(ge=2, le=MOST_GROUPS),
        option(
            "number of groups that documents (clips, images) are divided into; "
            "intervals leave out one in turn",
            WHAT,
        ),
    ] = 32
    spectrum_groups: Annotated[
        Whole | None,
        Field(ge=1, le=MOST_GROUPS),
        option(
            "groups for the spectrum; default: 8 for vectors of at most 1,024 "
            "dimensions, 1 (no interval) for at most 2,048; wider vectors: no "
            "spectrum, unless --panel spectrum alone is chosen",
            WHAT,
        ),
    ] = None
    spectrum_share: Annotated[
        Number,
        Field(gt=0, le=1),
        option(
            "share of the tokens, drawn at random, whose spectrum is measured; with 50 tokens for each dimension, "
            "ranks differ by less than 1 % from those of all tokens",
            WHAT,
        ),
    ] = 1.0
    sample: Annotated[
        Whole,
        Field(ge=0, le=1 << 31),
        option(
            "number of vectors kept of each layer, for metrics that need single "
            "vectors; 0: none",
            WHAT,
        ),
    ] = 2048
    sample_heads: Annotated[bool, PYTHON_ONLY] = False
    seed: Annotated[
        Whole,
        Field(ge=0),
        option(
            "seed of all random choices (sample of vectors, untrained weights)", WHAT
        ),
    ] = 0
    medians: Annotated[
        bool,
        option("also measure the median attention weight of each query (slow)", WHAT),
    ] = False
    bins: Annotated[tuple[Number, ...], PYTHON_ONLY] = ()
    metrics: Annotated[
        Names,
        BeforeValidator(name_metrics),
        option(
            "measure only these metrics, and no panels (names: anisoscope list "
            "metrics); your own as module:NAME",
            WHAT,
            "--metric",
            metavar="NAME,…",
        ),
    ] = ()
    blocks: Annotated[
        Names,
        option(
            "if blocks are not found: which modules are blocks, by class (BertLayer) "
            "or name pattern (encoder.layers.*)",
            INPUT,
            metavar="NAME,…",
        ),
    ] = ()
    tokens_first: Annotated[
        bool | None,
        option(
            "whether blocks put out [token, sequence, dim] or [sequence, token, dim]; "
            "default: read from the model",
            INPUT,
            negative="--sequences-first",
        ),
    ] = None
    flatten: Annotated[
        Flatten,
        option(
            "for maps of convolutions: one vector per position, or one per image", WHAT
        ),
    ] = "position"
    at: Annotated[At, PYTHON_ONLY] = "first"
    attention: Annotated[
        Literal["model", "fused"],
        option(
            "where the outputs of attention come from. model: its own computation, bit "
            "for bit; fused: the measured weights, which saves one matrix product and "
            "changes outputs by rounding",
            MACHINE,
        ),
    ] = "model"
    layers: Annotated[
        Numbers,
        option(
            "measure only these layers (of encoder and decoder alike), as 0,8,16,-1; 0 "
            "is the input of the first block, −1 the last layer",
            WHAT,
            shown="all",
            metavar="INT,…",
        ),
    ] = ()

    def __post_init__(self) -> None:
        """Raise UsageError for unknown metrics, no token policy, no panel, or bins that do not ascend."""
        if self.metrics:
            from anisoscope import metrics

            # An error now, with similar names, and not after the model is loaded.
            for name in self.metrics:
                metrics.find_metric_by_name(name)
        if not self.tokens:
            raise UsageError(
                "at least one token policy",
                "none",
                f"choose from {', '.join(POLICIES)}",
            )
        if not (self.panel or self.metrics):
            raise UsageError(
                "at least one panel",
                "none",
                f"choose from {', '.join(get_args(Panel))}",
            )
        # Infinite ends make a NaN or an infinite edge fail the comparison as well.
        rising = all(a < b for a, b in pairwise((-inf, *self.bins, inf)))
        if self.bins and (len(self.bins) < 2 or not rising):
            raise UsageError(
                "`bins` with at least two finite edges, each above the one before",
                repr(self.bins),
                "sort them",
            )

    @classmethod
    def read(cls, saved: dict[str, Any]) -> "Settings":
        """Read settings from a manifest or a file of sums, including older ones with other field names."""
        return cls(
            **{renamed.SETTINGS.get(name, name): value for name, value in saved.items()}
        )

    @property
    def chosen(self) -> "list[Metric]":
        """Return the metrics to measure: the named ones, or those of the chosen panels (sets of metrics)."""
        from anisoscope import metrics  # loads torch

        return metrics.choose_metrics(self.metrics, self.panel)

    @property
    def keepers(self) -> "list[Keeper]":
        """Return the keepers (accumulators) that the chosen metrics need, joined to one of each kind."""
        from anisoscope.reads.sample import KeptSample  # loads torch
        from anisoscope.reads.vectors import VectorSums

        # Always: it counts the vectors of every site.
        wanted: list[Keeper] = [VectorSums()]
        if self.sample_heads:
            wanted.append(KeptSample(heads=True))
        for metric in self.chosen:
            wanted += metric.reads.keepers(metric.needs)
        by_kind: dict[type, Any] = {}
        for keeper in wanted:
            kind = type(keeper)
            if kind in by_kind:
                keeper = by_kind[kind].join(keeper)
            by_kind[kind] = keeper
        return list(by_kind.values())

    @property
    def sampled(self) -> int:
        """Return how many tokens of each stack are sampled; 0 if no chosen metric needs a sample."""
        from anisoscope.reads.sample import KeptSample  # loads torch

        if not any(isinstance(keeper, KeptSample) for keeper in self.keepers):
            return 0
        return self.sample

    @property
    def labelled(self) -> bool:
        """Return whether a chosen metric needs labelled sequences."""
        return any(metric.reads.labelled for metric in self.chosen)

    @property
    def summaries(self) -> "dict[str, Callable[[Any], Any]]":
        """Return {name of a metric: the function that reduces an embedding matrix to the arrays that it needs}."""
        summaries = {}
        for metric in self.chosen:
            summary = metric.reads.summary()
            if summary is not None:
                summaries[metric.name] = summary
        return summaries

    def list_terms(self, quantity: str) -> frozenset[str]:
        """Return the names of the running sums to accumulate for one quantity (such as hidden states, keys)."""
        from anisoscope.reads.vectors import VectorSums  # loads torch

        return next(
            keeper.list_terms(quantity)
            for keeper in self.keepers
            if isinstance(keeper, VectorSums)
        )

    @property
    def what(self) -> set[str]:
        """Return the quantities to capture from the model for the chosen metrics (such as `hidden`, `query`,
        `attention`).
        """
        chosen = self.chosen
        of_heads = chosen
        # Metrics of the hidden panel can read heads too, but without the attention
        # panel none are captured.
        if not self.metrics:
            of_heads = [
                metric
                for metric in chosen
                if metric.panel in ("attention", *OPT_IN_PANELS)
            ]
        what: set[str] = set()
        for metric in of_heads:
            what |= metric.reads.captured - {*LAYER_QUANTITIES}
        # Similarity and norms, which belong to the hidden panel, are then measured of
        # values too.
        if not self.metrics and "attention" in self.panel:
            what.add("value")
        if any(metric.reads.of_layers for metric in chosen):
            what |= {*LAYER_QUANTITIES}
        return what

    def what_of(self, model: "nn.Module") -> tuple[set[str], set[str]]:
        """Return (quantities to capture from this model, which of them it may lack without an error).

        Quantities are `hidden`, `query`, `attention` and so on.
        """
        from anisoscope.models.blocks import has_attention  # loads torch
        from anisoscope.models.families import family_of

        what = self.what
        # What was asked for by name must be there; of all panels together, a model may have some.
        if self.metrics:
            may_lack = all(metric.reads.of_layers for metric in self.chosen)
        else:
            may_lack = (
                set(self.panel) - {"floor"} == set(PANELS) or "extremes" in self.panel
            )
        if not may_lack:
            return what, set()
        heads = what - set(LAYER_QUANTITIES)
        if not family_of(model).attention:
            return what - heads, set()
        # Models without modules called attention may have it under other names.
        if not has_attention(model):
            what = what - {"centred"}
        return what, heads
