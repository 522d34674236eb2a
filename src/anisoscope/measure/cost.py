"""Estimate the cost of a pass before it starts: bytes that it keeps, and flops per token of the model and of each
panel.

No formula is used: a measurement is made on the meta device, which has shapes and no values, of the sites that one
short sequence shows. Its tensors are those that a pass allocates, and its products those that a pass computes.
"""

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from anisoscope.axes import LAYER_QUANTITIES, Site
from anisoscope.batch import Batch, Stream
from anisoscope.capture import capture
from anisoscope.capture.masking import Masking
from anisoscope.capture.rows import attention_rows
from anisoscope.measure.accumulator import Measurement
from anisoscope.measure.loop import move_batch
from anisoscope.measure.settings import PANELS, Panel, Settings
from anisoscope.models.blocks import find_stack, has_attention
from anisoscope.models.modes import evaluation_mode
from anisoscope.sums.moments import WIDEST

SHORT = 16  # tokens that show the sites of a text model
META = torch.device("meta")
ATTENTION_ON_CPU = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
MOMENTS = (
    "moment",
    "unit_moment",
    "moment_vector",
    "moment_n",
    "head_moment",
    "head_moment_n",
)


@dataclass(frozen=True)
class Shapes:
    """The sites of a model and the work of its forward pass.

    sites       number of heads (0: none) and width of each site
    flops       flops per token, without attention products
    attention   flops per token and each other token of its window (scores, and weights times values)
    tokens      number of positions in the call that was looked at
    """

    sites: dict[Site, tuple[int, int]]
    flops: float
    attention: float
    tokens: int
    parameters: int
    dtype: torch.dtype


@dataclass(frozen=True)
class Cost:
    """The bytes and flops of a pass over a corpus.

    sums, moments, sample  bytes that are kept while it runs; `state`: of the file that a resumed run reads
    model                  flops per token in the model's forward pass
    panels                 flops per token in the products of each panel (set of metrics)
    weights                bytes of the model's weights
    tokens                 tokens of a window; the attention flops of a token grow with it
    unmeasured             sites whose spectrum is left out because of their width
    """

    sums: int
    moments: int
    sample: int
    model: float
    panels: dict[str, float]
    weights: int
    tokens: int
    unmeasured: int = 0
    sites: int = 0

    @property
    def state(self) -> int:
        """Return the size in bytes of the state file, which is saved during a run and read by `--resume`."""
        return self.sums + self.moments + self.sample

    @property
    def line(self) -> str:
        """Return the cost as one line of text: memory of sums, and extra flops as a share of the model's own."""
        parts = {
            "sums": self.sums,
            "second moments": self.moments,
            "sample": self.sample,
        }
        memory = ", ".join(
            f"{name} {format_bytes(count)}" for name, count in parts.items() if count
        )
        line = f"memory {format_bytes(self.state)} ({memory})"
        shares = {
            name: flops / max(self.model, 1)
            for name, flops in self.panels.items()
            if flops
        }
        if shares:
            work = ", ".join(f"{name} {share:.1%}" for name, share in shares.items())
            line += f"; extra work per token, of the model's {format_scaled(self.model)}flop: {work}"
        return line

    @property
    def without_spectrum(self) -> str:
        """Return a sentence on sites without a spectrum, whose vectors are too wide for it; empty if there are none."""
        return explain_missing_spectrum(self.unmeasured, self.sites)


def explain_missing_spectrum(unmeasured: int, sites: int) -> str:
    """Return a sentence that `unmeasured` of all sites are too wide for a spectrum; empty if all have one."""
    if not unmeasured:
        return ""
    return (
        f"no spectrum at {unmeasured} of {sites} sites, which are wider than {WIDEST:,} dimensions (a projection keeps "
        "no ranks): --spectrum-groups 1 measures it exactly; with --spectrum-share .1 or fewer --layers it is cheap"
    )


def format_bytes(count: float) -> str:
    """Format a number of bytes: `13.7 GB`."""
    return f"{format_scaled(count)}B"


def format_scaled(count: float) -> str:
    """Format a large number with its unit prefix: `13.7 G`."""
    for power, letter in ((12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if count >= 0.9995 * 10**power:
            return f"{count / 10**power:.3g} {letter}"
    return f"{count:.0f} "


def find_shapes(model: nn.Module, batch: Batch, settings: Settings) -> Shapes:
    """Find the sites (places in the model) and the flops of a model, by one short forward call.

    The call reads the beginning of the batch's first sequence. It works on shapes only, if weights and batch are on the
    meta device.
    """
    what, optional = settings.what_of(model)
    # Of attention itself queries are captured, whose shapes tell those of its statistics.
    of_attention = what - {*LAYER_QUANTITIES, "query", "key", "value"}
    captured = what - of_attention
    if of_attention or has_attention(model):
        captured |= {"query"}
    shapes, total_flops, tokens = _run_once(model, batch, settings, captured, optional)
    of_queries = {
        site: shape for site, shape in shapes.items() if site.quantity == "query"
    }
    for site, shape in of_queries.items():
        for quantity in of_attention:
            shapes[Site(site.stack, site.layer, quantity, kind=site.kind)] = shape  # type: ignore[arg-type]
    wanted = _select_wanted(shapes, what, settings)
    # From all queries, wanted or not: attention is computed in every layer.
    attention = _count_attention_flops(of_queries)
    return Shapes(
        wanted,
        # The share of attention grows with the length of the sequence: it is kept apart.
        flops=total_flops / tokens - attention * tokens,
        attention=attention,
        tokens=tokens,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        dtype=_get_first_weight(model).dtype,
    )


def _select_wanted(
    shapes: dict[Site, tuple[int, int]], what: set[str], settings: Settings
) -> dict[Site, tuple[int, int]]:
    """Return the sites that are measured, of all that were captured: queries may have been so for their shapes alone.

    shapes   {site: (heads, width)}
    what     the quantities to measure
    """
    wanted: dict[Site, tuple[int, int]] = {}
    for site, shape in shapes.items():
        if {site.quantity, site.label} & what and _is_chosen(site, shapes, settings):
            wanted[site] = shape
    return wanted


def _count_attention_flops(of_queries: dict[Site, tuple[int, int]]) -> float:
    """Return the flops of all attention of a model, per query and key.

    of_queries   {site of queries: (heads, width of a head)}
    """
    # Each layer's attention counts once, however many stages of queries are measured.
    widths: dict[tuple[str, int | None, str], int] = {}
    for site, (heads, dim) in of_queries.items():
        widths[site.stack, site.layer, site.kind] = heads * dim
    # Scores, and weights times values, each with a multiplication and an addition.
    return 4.0 * sum(widths.values())


def _get_first_weight(model: nn.Module) -> Tensor:
    """Return the first weight of a model, which says where and in which type it computes; an empty tensor if none."""
    return next(iter(model.parameters()), torch.empty(0))


def _run_once(
    model: nn.Module,
    batch: Batch,
    settings: Settings,
    captured: set[str],
    optional: set[str],
) -> tuple[dict[Site, tuple[int, int]], int, int]:
    """Run a model on the beginning of a batch. Returns ({site: (heads, width)}, flops, number of tokens).

    captured   the quantities to capture
    optional   quantities that the model may lack without an error
    """
    shapes: dict[Site, tuple[int, int]] = {}
    tokens = 1

    def note(site: Site, x: Tensor) -> None:
        """Note the number of heads and the width of the vectors captured at a site."""
        nonlocal tokens
        tokens = max(tokens, x.shape[-2])
        heads = x.shape[1] if x.dim() == 4 else 0
        shapes[site] = (heads, x.shape[-1])

    inputs = _cut_first_sequence(batch)
    # On meta nothing is computed, so that a model of any size can be looked at.
    weight = _get_first_weight(model)
    options: dict[str, Any] = {
        name: getattr(settings, name) for name in ("blocks", "tokens_first", "flatten")
    }
    with (
        evaluation_mode(model),
        # A call before the pass must not change the numbers that the pass draws.
        torch.random.fork_rng(devices=[]),
        capture(
            model,
            captured,
            optional={*optional, *captured},
            receive=note,
            shapes_only=weight.is_meta,
            **options,
        ),
        torch.no_grad(),
        FakeTensorMode(allow_non_fake_inputs=True) if weight.is_meta else nullcontext(),
        FlopCounterMode(
            display=False,
            custom_mapping={ATTENTION_ON_CPU: _count_attention_on_cpu},
        ) as counter,
    ):
        (batch.call or model)(**move_batch(inputs, weight.device))
    return shapes, counter.get_total_flops(), tokens


def _count_attention_on_cpu(
    queries: Any, keys: Any, values: Any, *_: Any, **_how: Any
) -> int:
    """Count the flops of attention by torch's own kernel for the CPU, which torch's counter does not know.

    queries, keys, values   their shapes, each [sequence, head, token, dim]
    """
    sequences, heads, rows, width = queries
    # Scores, and weights times values, each with a multiplication and an addition.
    return int(2 * sequences * heads * rows * keys[2] * (width + values[3]))


def _is_chosen(site: Site, sites: Iterable[Site], settings: Settings) -> bool:
    """Return whether a site is in a layer that the settings ask for, which may also count from the end (−1: the last).

    sites   all sites of the model, from which the number of layers is known
    """
    if not settings.layers:
        return True
    depth = max(
        (other.layer or 0 for other in sites if other.stack == site.stack), default=0
    )
    # The final norm's output goes by the number of the last layer, as in the table.
    layer = depth if site.layer is None else site.layer
    from_end = layer - depth - 1
    return layer in settings.layers or from_end in settings.layers


def _cut_first_sequence(batch: Batch) -> dict[str, Any]:
    """Return the model's inputs for the first sequence of a batch alone, cut to its first `SHORT` real tokens.

    A text with images is not cut, since every image needs all of its placeholder tokens.
    """
    stream = next(iter(batch.streams.values()), None)
    mask = None if stream is None else stream.mask  # [sequence, token]
    most = None if batch.label is not None or "pixel_values" in batch.inputs else SHORT
    inputs: dict[str, Any] = {}
    for name, value in batch.inputs.items():
        has_row_per_sequence = (
            isinstance(value, Tensor) and value.dim() and len(value) == len(batch.unit)
        )
        if not has_row_per_sequence:
            inputs[name] = value
            continue
        row = value[:1]
        # Numbers may be pixels or sound, whose axes are not those of tokens.
        has_tokens = (
            mask is not None
            and not row.is_floating_point()
            and row.shape[1:2] == mask.shape[1:]
        )
        if mask is not None and has_tokens:
            row = _cut_to_real(row, mask[0], most)
        inputs[name] = row
    return inputs


def _cut_to_real(row: Tensor, mask: Tensor, most: int | None) -> Tensor:
    """Cut ids of one sequence [1, token, …] to its real tokens, and to the first `most` of them; None: all.

    mask   which tokens are real [token]
    """
    # Padding on the left comes before the first real id.
    first = int(mask.int().argmax())
    length = int(mask.sum())
    if most is not None:
        length = min(most, length)
    return row[:, first : first + length]


def find_shapes_on_meta(model: nn.Module, settings: Settings) -> Shapes:
    """Find the sites and flops of a text model on the meta device (shapes without numbers), from ids there too."""
    real = torch.ones(1, SHORT, dtype=torch.bool)
    row = torch.zeros(1, dtype=torch.int64)
    # Any ids will do: only shapes are looked at.
    ids = {"input_ids": torch.zeros(1, SHORT, dtype=torch.int64, device=META)}
    if getattr(model.config, "is_encoder_decoder", False):
        ids["decoder_input_ids"] = ids["input_ids"]
    return find_shapes(
        model, Batch(ids, row, {find_stack(model): Stream(real, ~real, row)}), settings
    )


def estimate_cost(
    shapes: Shapes, settings: Settings, tokens: int | None = None
) -> Cost:
    """Estimate what a pass over these sites costs, in windows of `tokens`; equal sites are estimated once."""
    tokens = tokens or shapes.tokens
    settings = _leave_out_unestimated(settings)
    # A share of one short sequence would be a matter of chance: the whole is estimated, and multiplied by the share.
    without_sample = replace(settings, sample=0, seed=0, spectrum_share=1.0)
    sums = moments = unmeasured = 0
    chosen = [
        panel for panel in PANELS if panel in settings.panel and not settings.metrics
    ]
    panels: dict[str, float] = dict.fromkeys(chosen, 0.0)
    for shape_of_one, sites in _group_alike(shapes):
        count = len(sites)
        of_sums, of_moments, is_too_wide = _count_bytes(
            sites[0], shape_of_one, shapes.dtype, without_sample
        )
        moments += count * of_moments
        sums += count * of_sums
        unmeasured += count * is_too_wide
        for panel in chosen:
            # Without second moments a site has no spectrum.
            if panel == "spectrum" and not of_moments:
                continue
            alone = replace(without_sample, panel=(panel,), bins=(), medians=False)
            of_window = _count_flops(
                sites[0], shape_of_one, shapes.dtype, tokens, alone
            )
            flops = of_window / tokens
            share = settings.spectrum_share if panel == "spectrum" else 1
            panels[panel] += count * flops * share
    widths = [
        width
        for site, (_, width) in shapes.sites.items()
        if site.quantity in LAYER_QUANTITIES
    ]
    # Samples are kept in float32 at least.
    sample = settings.sampled * sum(widths) * max(shapes.dtype.itemsize, 4)
    return Cost(
        sums,
        moments,
        sample,
        model=shapes.flops + shapes.attention * tokens,
        panels=panels,
        weights=shapes.parameters * shapes.dtype.itemsize,
        tokens=tokens,
        unmeasured=unmeasured,
        sites=len(widths),
    )


def _group_alike(shapes: Shapes) -> list[tuple[tuple[int, ...], list[Site]]]:
    """Group sites that cost the same: [(shape of one token's vectors, sites with the same quantity and this shape)].

    The shape is [head, dim], or [dim] without heads.
    """
    alike: dict[tuple[str, int, int], list[Site]] = {}
    for site, (heads, width) in shapes.sites.items():
        alike.setdefault((site.label, heads, width), []).append(site)
    groups: list[tuple[tuple[int, ...], list[Site]]] = []
    for (_, heads, width), sites in alike.items():
        shape_of_one: tuple[int, ...] = (heads, width) if heads else (width,)
        groups.append((shape_of_one, sites))
    return groups


def _leave_out_unestimated(settings: Settings) -> Settings:
    """Return the settings without what an estimate ignores: metrics of classes, and samples of single heads.

    Metrics of classes cost little, and need labels, which an estimate does not have.
    """
    panels: tuple[Panel, ...] = tuple(
        panel for panel in settings.panel if panel != "class"
    )
    metrics = tuple(name for name in settings.metrics if not name.startswith("class"))
    return replace(
        settings, sample_heads=False, panel=panels or ("hidden",), metrics=metrics
    )


def _make_sequence(shape: tuple[int, ...], tokens: int, dtype: torch.dtype) -> Tensor:
    """Return the vectors of one sequence on the meta device: a shape and dtype without numbers.

    shape   [head, dim] or [dim] of one token's vectors
    """
    return torch.empty(1, *shape[:-1], tokens, shape[-1], dtype=dtype, device=META)


@lru_cache(maxsize=512)  # the checkpoints of a series are alike
def _count_bytes(
    site: Site, shape: tuple[int, ...], dtype: torch.dtype, settings: Settings
) -> tuple[int, int, bool]:
    """Return (bytes of a site's sums, bytes of its second moments, whether it is too wide for a spectrum).

    shape   [head, dim] or [dim] of the site's vectors
    """
    # One token is enough: sums do not grow with the corpus.
    measured = measure_on_meta(site, _make_sequence(shape, 1, dtype), settings)
    terms = measured.sums.terms
    # One sequence is in one group, and a pass has a pending product for each group.
    groups = len(terms.get((site.name, "moment"), ()))
    pending = 0
    for (_, term, _), product in measured.moments.pending.items():
        copies = 1 if term == "shift" else groups
        pending += copies * _count_tensor_bytes(product)
    of_moments = pending
    of_sums = measured.extremes.nbytes
    for (_, term), x in terms.items():
        if term in MOMENTS:
            of_moments += _count_tensor_bytes(x)
        else:
            of_sums += _count_tensor_bytes(x)
    is_of_layer = site.measured_as in ("hidden", "final")
    wants_spectrum = is_of_layer and "moment" in settings.list_terms("hidden")
    is_too_wide = wants_spectrum and (site.name, "moment") not in terms
    return of_sums, of_moments, is_too_wide


@lru_cache(maxsize=512)
def _count_flops(
    site: Site,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    tokens: int,
    settings: Settings,
) -> int:
    """Count the flops of accumulating a sequence of `tokens` tokens at a site, for the metrics of the settings.

    shape   [head, dim] or [dim] of the site's vectors
    """
    several = _make_sequence(shape, tokens, dtype)
    # The counter sees every product of the real code, so that the estimate cannot drift
    # from it.
    with FlopCounterMode(
        display=False, custom_mapping={torch.ops.aten.addmm_: _count_added_flops}
    ) as counter:
        measure_on_meta(site, several, settings)
    return int(counter.get_total_flops())


def _count_added_flops(_into: Any, rows: Any, columns: Any, **_: Any) -> int:
    """Count the flops of rows · columns, a product added in place, which torch's counter does not know.

    rows, columns   shapes of the two factors
    """
    return 2 * rows[0] * rows[1] * columns[1]  # type: ignore[no-any-return]


def _count_tensor_bytes(x: Tensor) -> int:
    """Return the bytes of a tensor."""
    return x.numel() * x.itemsize


def measure_on_meta(
    site: Site, x: Float[Tensor, "1 *head token dim"], settings: Settings
) -> Measurement:
    """Return a measurement of one sequence on the meta device, whose tensors have the right shapes but no numbers.

    x   vectors of the sequence at the site
    """
    measurement = Measurement(replace(settings, sample=0))
    real = torch.ones(1, x.shape[-2], dtype=torch.bool)
    stream = Stream(real, ~real, torch.zeros(1, dtype=torch.int64))
    measurement.begin(
        Batch({}, torch.zeros(1, dtype=torch.int64), {site.stack: stream}), META
    )
    # On meta vectors cannot be counted: as in a long pass, there are many, and products
    # are in float32.
    measurement.moments.many.add(site.name)
    if {site.quantity, site.label} & settings.what:
        measurement.receive(site, _make_captured(site, x, settings))
    return measurement


def _make_captured(site: Site, x: Tensor, settings: Settings) -> Any:
    """Return the tensors that a capture would pass on at a site, on the meta device (shapes without numbers).

    x   vectors of one sequence at the site; for a quantity of attention, they stand in for queries, keys and values

    They are `x` itself or, by name, statistics of attention rows, or sums of attention logits.
    """
    masking = Masking(None, causal=False, bias=None)
    if site.quantity in ("attention", "centred"):
        bins = torch.tensor(settings.bins).to(META) if settings.bins else None
        rows = attention_rows(
            x, x, masking, scale=1.0, median=settings.medians, histogram=bins
        )
        if site.quantity == "attention":
            return rows
        return dict.fromkeys(("plain", "query", "key"), rows)
    if site.quantity == "extremes":
        rows = attention_rows(x, x, masking, scale=1.0, columns=True)
        return {"mass": rows["mass"], "seen": rows["seen"]} | dict.fromkeys(
            ("query", "key", "value"), x
        )
    if site.quantity == "scores":
        return _make_score_terms(x.shape[1], x.shape[-1])
    return x


def _make_score_terms(heads: int, width: int) -> dict[str, Tensor]:
    """Return empty tensors of the sums that `capture.scores.sum_scores` returns, by name."""
    shapes: dict[str, tuple[int, ...]] = {}
    shapes |= dict.fromkeys(("rows", "keys", "row_variance"), ())
    shapes |= dict.fromkeys(("query", "key", "row_lean"), (width,))
    shapes |= dict.fromkeys(("query_moment", "row_spread"), (width, width))
    return {
        name: torch.empty(1, heads, *shape, dtype=torch.float64, device=META)
        for name, shape in shapes.items()
    }
