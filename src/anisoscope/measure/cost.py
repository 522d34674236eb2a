"""Estimate the cost of a pass before it starts: bytes that it keeps, and flops per token of the model and of each
panel.

No formula is used: a measurement is made on the meta device, which has shapes and no values, of the sites that one
short sequence shows. Its tensors are those that a pass allocates, and its products those that a pass computes.
"""

from collections.abc import Iterable, Iterator
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
MOMENTS = ("moment", "unit_moment", "moment_vector", "moment_n", "head_moment", "head_moment_n")


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
        """Return the bytes of the file that a resumed run reads."""
        return self.sums + self.moments + self.sample

    @property
    def line(self) -> str:
        """Return the cost in one line of text."""
        parts = {"sums": self.sums, "second moments": self.moments, "sample": self.sample}
        kept = ", ".join(f"{name} {format_bytes(count)}" for name, count in parts.items() if count)
        more = ", ".join(f"{name} {flops / max(self.model, 1):.1%}" for name, flops in self.panels.items() if flops)
        work = f"; extra work per token, of the model's {format_scaled(self.model)}flop: {more}" if more else ""
        return f"memory {format_bytes(self.state)} ({kept}){work}"

    @property
    def without_spectrum(self) -> str:
        """Return a sentence on the spectra that are left out because of their width; empty if none is."""
        return explain_missing_spectrum(self.unmeasured, self.sites)


def explain_missing_spectrum(unmeasured: int, sites: int) -> str:
    """Return a sentence that `unmeasured` of all sites are too wide for a spectrum; empty if all have one."""
    if not unmeasured:
        return ""
    return (
        f"no spectrum at {unmeasured} of {sites} sites, which are wider than {WIDEST:,} dimensions (a projection keeps "
        "no ranks): --spectrum-groups 1 measures it exactly, fewer --layers make it cheap"
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
    what, spare = settings.what_of(model)
    rows = what - {*LAYER_QUANTITIES, "query", "key", "value"}
    places = (what - rows) | ({"query"} if rows or has_attention(model) else set())
    found: dict[Site, tuple[int, int]] = {}
    tokens = 1

    def note(site: Site, x: Tensor) -> None:
        """Note the number of heads and the width of the vectors captured at a site."""
        nonlocal tokens
        tokens = max(tokens, x.shape[-2])
        found[site] = (x.shape[1] if x.dim() == 4 else 0, x.shape[-1])

    inputs = _cut_first_sequence(batch)
    weight = next(iter(model.parameters()), torch.empty(0))
    options: dict[str, Any] = {name: getattr(settings, name) for name in ("blocks", "tokens_first", "flatten")}
    with (
        evaluation_mode(model),
        torch.random.fork_rng(devices=[]),
        capture(model, places, optional={*spare, *places}, receive=note, shapes_only=weight.is_meta, **options),
        torch.no_grad(),
        FakeTensorMode(allow_non_fake_inputs=True) if weight.is_meta else nullcontext(),
        FlopCounterMode(display=False) as counter,
    ):
        (batch.call or model)(**move_batch(inputs, weight.device))
    for site in [site for site in found if site.quantity == "query"]:
        for quantity in rows:
            found[Site(site.stack, site.layer, quantity, kind=site.kind)] = found[site]  # type: ignore[arg-type]
    wanted = {s: shape for s, shape in found.items() if {s.quantity, s.label} & what and _is_chosen(s, found, settings)}
    count = sum(parameter.numel() for parameter in model.parameters())
    heads = {(s.stack, s.layer, s.kind): h * d for s, (h, d) in found.items() if s.quantity == "query"}
    known = Shapes(wanted, 0.0, 4.0 * sum(heads.values()), tokens, count, weight.dtype)
    return replace(known, flops=counter.get_total_flops() / tokens - known.attention * tokens)


def _is_chosen(site: Site, sites: Iterable[Site], settings: Settings) -> bool:
    """Return whether a site belongs to a layer that the settings ask for.

    sites   all sites of the model, by which layers are numbered from the end
    """
    depth = max((other.layer or 0 for other in sites if other.stack == site.stack), default=0)
    layer = depth if site.layer is None else site.layer
    return not settings.layers or bool({layer, layer - depth - 1} & {*settings.layers})


def _cut_first_sequence(batch: Batch) -> dict[str, Any]:
    """Return the inputs of a batch's first sequence, cut to its first `SHORT` real ids.

    A text with images stays whole: each image wants all of its marks.
    """
    stream = next(iter(batch.streams.values()), None)
    is_whole = batch.label is not None or "pixel_values" in batch.inputs
    inputs: dict[str, Any] = {}
    for name, value in batch.inputs.items():
        if isinstance(value, Tensor) and value.dim() and len(value) == len(batch.unit):
            value = value[:1]
            if stream is not None and not value.is_floating_point() and value.shape[1:2] == stream.mask.shape[1:]:
                first, real = int(stream.mask[0].int().argmax()), int(stream.mask[0].sum())
                value = value[:, first : first + (real if is_whole else min(SHORT, real))]
        inputs[name] = value
    return inputs


def find_shapes_on_meta(model: nn.Module, settings: Settings) -> Shapes:
    """Find the sites and flops of a text model whose weights are on the meta device, from ids without values."""
    real, row = torch.ones(1, SHORT, dtype=torch.bool), torch.zeros(1, dtype=torch.int64)
    ids = {"input_ids": torch.zeros(1, SHORT, dtype=torch.int64, device=META)}
    if getattr(model.config, "is_encoder_decoder", False):
        ids["decoder_input_ids"] = ids["input_ids"]
    return find_shapes(model, Batch(ids, row, {find_stack(model): Stream(real, ~real, row)}), settings)


def estimate_cost(shapes: Shapes, settings: Settings, tokens: int | None = None) -> Cost:
    """Estimate what a pass over these sites costs, in windows of `tokens`; equal sites are estimated once."""
    tokens = tokens or shapes.tokens
    of_all: tuple[Panel, ...] = tuple(panel for panel in settings.panel if panel != "class")  # of classes there are few
    metrics = tuple(name for name in settings.metrics if not name.startswith("class"))
    settings = replace(settings, sample_heads=False, panel=of_all or ("hidden",), metrics=metrics)
    looked_for = replace(settings, sample=0, seed=0)
    alike: dict[tuple[str, int, int], list[Site]] = {}
    for site, shape in shapes.sites.items():
        alike.setdefault((site.label, *shape), []).append(site)
    sums = moments = unmeasured = 0
    chosen = [panel for panel in PANELS if panel in settings.panel and not settings.metrics]
    panels: dict[str, float] = dict.fromkeys(chosen, 0.0)
    for (_, heads, width), (site, *others) in alike.items():
        count = 1 + len(others)
        of_one: tuple[int, ...] = (heads, width) if heads else (width,)
        of_sums, of_moments, without = _count_bytes(site, of_one, shapes.dtype, looked_for)
        moments += count * of_moments
        sums += count * of_sums
        unmeasured += count * without
        for panel in chosen:
            if panel != "spectrum" or of_moments:
                alone = replace(looked_for, panel=(panel,), bins=(), medians=False)
                panels[panel] += count * _count_flops(site, of_one, shapes.dtype, tokens, alone) / tokens
    layers = {site: width for site, (_, width) in shapes.sites.items() if site.quantity in LAYER_QUANTITIES}
    sampled = settings.sampled * sum(layers.values())
    model = shapes.flops + shapes.attention * tokens
    weights, least = shapes.parameters * shapes.dtype.itemsize, max(shapes.dtype.itemsize, 4)
    return Cost(sums, moments, sampled * least, model, panels, weights, tokens, unmeasured, len(layers))


def _make_sequence(shape: tuple[int, ...], tokens: int, dtype: torch.dtype) -> Tensor:
    """Return one sequence without values at a site of shape [head, dim] or [dim]."""
    return torch.empty(1, *shape[:-1], tokens, shape[-1], dtype=dtype, device=META)


@lru_cache(maxsize=512)  # the checkpoints of a series are alike
def _count_bytes(site: Site, shape: tuple[int, ...], dtype: torch.dtype, settings: Settings) -> tuple[int, int, bool]:
    """Return (bytes of a site's sums, bytes of its second moments, whether it is too wide for a spectrum).

    shape   [head, dim] or [dim] of the site's vectors
    """
    kept = measure_on_meta(site, _make_sequence(shape, 1, dtype), settings)
    groups = len(kept.sums.terms.get((site.name, "moment"), ()))  # one of which the sequence is in
    pending = sum((1 if term == "shift" else groups) * _bytes(x) for (_, term, _), x in kept.moments.pending.items())
    of_moments = sum(_bytes(x) for (_, term), x in kept.sums.terms.items() if term in MOMENTS) + pending
    of_sums = sum(map(_bytes, kept.sums.terms.values())) + pending - of_moments + kept.extremes.nbytes
    layered = site.measured_as in ("hidden", "final") and "moment" in settings.terms_at("hidden")
    return of_sums, of_moments, layered and (site.name, "moment") not in kept.sums.terms


@lru_cache(maxsize=512)
def _count_flops(site: Site, shape: tuple[int, ...], dtype: torch.dtype, tokens: int, settings: Settings) -> int:
    """Count the flops that the settings' metrics take at a site, over one sequence of `tokens`.

    shape   [head, dim] or [dim] of the site's vectors
    """
    several = _make_sequence(shape, tokens, dtype)
    with FlopCounterMode(display=False, custom_mapping={torch.ops.aten.addmm_: _count_added_flops}) as counter:
        measure_on_meta(site, several, settings)
    return int(counter.get_total_flops())


def _count_added_flops(_into: Any, rows: Any, columns: Any, **_: Any) -> int:
    """Count the flops of rows · columns, a product added in place, which torch's counter does not know.

    rows, columns   shapes of the two factors
    """
    return 2 * rows[0] * rows[1] * columns[1]  # type: ignore[no-any-return]


def _bytes(x: Tensor) -> int:
    """Return the bytes of a tensor."""
    return x.numel() * x.itemsize


def measure_on_meta(site: Site, x: Float[Tensor, "1 *head token dim"], settings: Settings) -> Measurement:
    """Measure one sequence without values at a site, and return the measurement."""
    measurement = Measurement(replace(settings, sample=0))
    real = torch.ones(1, x.shape[-2], dtype=torch.bool)
    stream = Stream(real, ~real, torch.zeros(1, dtype=torch.int64))
    measurement.begin(Batch({}, torch.zeros(1, dtype=torch.int64), {site.stack: stream}), META)
    measurement.moments.many.add(site.name)
    if not {site.quantity, site.label} & settings.what:
        return measurement
    value: Any = x
    if site.quantity in ("attention", "centred"):
        bins = torch.tensor(settings.bins).to(META) if settings.bins else None
        masking = Masking(None, causal=False, bias=None)
        value = attention_rows(x, x, masking, scale=1.0, median=settings.medians, histogram=bins)
        value = value if site.quantity == "attention" else dict.fromkeys(("plain", "query", "key"), value)
    elif site.quantity == "extremes":
        rows = attention_rows(x, x, Masking(None, causal=False, bias=None), scale=1.0, columns=True)
        value = {"mass": rows["mass"], "seen": rows["seen"]} | dict.fromkeys(("query", "key", "value"), x)
    elif site.quantity == "scores":
        value = dict(_score_terms(x.shape[1], x.shape[-1]))
    measurement.receive(site, value)
    return measurement


def _score_terms(heads: int, width: int) -> Iterator[tuple[str, Tensor]]:
    """Yield the names and empty tensors of the sums that `capture.scores.sum_scores` returns."""
    shapes: Iterable[tuple[str, tuple[int, ...]]] = (
        *((name, ()) for name in ("rows", "keys", "row_variance")),
        *((name, (width,)) for name in ("query", "key", "row_lean")),
        *((name, (width, width)) for name in ("query_moment", "row_spread")),
    )
    for name, shape in shapes:
        yield name, torch.empty(1, heads, *shape, dtype=torch.float64, device=META)
