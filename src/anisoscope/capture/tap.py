"""`with capture(model, what) as tap:` then ordinary forward calls: every requested site is handed on, and nothing is
changed.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from anisoscope.axes import LAYER_QUANTITIES, Flatten, Kind, Site
from anisoscope.capture import fallback, projections
from anisoscope.capture.backends import looking_on
from anisoscope.capture.masking import Masking
from anisoscope.capture.rows import attention_rows
from anisoscope.capture.scores import score_sums
from anisoscope.capture.vectors import channels_last, check_values, input_of, output_of, padded, same, vectors_of
from anisoscope.errors import MeasureError, UsageError, near_matches
from anisoscope.models.blocks import find_blocks, find_stages, stacks_of, tokens_first

STAGES = tuple(f"{name}.{stage}" for name in ("query", "key") for stage in ("raw", "normed", "rotated"))
WHAT = (*LAYER_QUANTITIES, "query", "key", *STAGES, "value", "attention", "scores", "centred")
"""What can be asked for. `query` and `key` stand for every stage the model has."""
OPTIONAL = {"final", "stage", "unrectified"}
"""Places that many models do not have: no error where they never fire."""

Receive = Callable[[Site, Any], None]
Means = dict[tuple[str, int, Kind], tuple[Tensor, Tensor]]
"""(stack, layer, kind) of an attention → mean of its scaled queries and mean of its keys, as they are scored [head,
head_dim], keys repeated for the heads that share them.
"""
_CROSS = ("EncDecAttention", "encoder_attn", "crossattention", "cross_attn")


@contextmanager
def capture(
    model: nn.Module,
    what: Iterable[str] = ("hidden",),
    *,
    receive: Receive | None = None,
    blocks: tuple[str, ...] = (),
    median: bool = False,
    histogram: Tensor | None = None,
    flatten: Flatten = "position",
    tokens_first: bool | None = None,
) -> Iterator["Tap"]:
    """Hand the tensors at the requested places to `receive(site, tensor)` while the model runs, or keep those of the
    last call in the tap.

    hidden     [sequence, token, dim]: layer 0 = input of the first block, layer i = raw output of block i
    unrectified  the same before the block's last ReLU, where the block ends with one
    stage      [sequence, token, dim]: output of each stage, from 1, of models whose blocks are grouped by resolution
    final      [sequence, token, dim]: after the final norm, where there is one
    query, key [sequence, head, token, head_dim] at the stages `raw`, `normed`, `rotated` that the model has; value
    likewise
    attention  dict of row statistics, see `capture.rows.attention_rows`; of block i at layer i
    scores     dict of sums over rows, see `capture.scores.score_sums`
    centred    {"plain", "query", "key"}: the row statistics of attention as it is, with queries and with keys centred
    on the means in `tap.means`

    Maps [sequence, channel, height, width] are flattened to one vector per position [sequence, height·width, channel],
    or with `flatten="image"` to one per image [sequence, 1, channel·height·width].

    `blocks` are class names or patterns of module names (`encoder.layers.*`), needed where they are not found. Any
    module will do whose output is a tensor, or a tuple or mapping that begins with or names one. `tokens_first`: blocks
    pass on [token, sequence, dim]; None: as read from the model. An output [sequence, dim] is one vector per sequence.

    Set `tap.real = {stack: mask [sequence, token]}` before a padded call so that padded queries are left out of what
    is averaged inside (row similarity); row statistics are given for all queries. The model's outputs stay the same,
    bit for bit. MeasureError at the end of the first forward call if a requested place did not fire, and in any one
    if a place fires twice, since every vector would count twice; a block that goes on from its own output (ALBERT,
    looped Transformers) is a new layer each time. UsageError for an unknown place, ModelError for weights without
    values.
    """
    wanted = frozenset(what)
    check_values(model)
    for name in wanted - set(WHAT):
        raise UsageError("a place to capture", repr(name), near_matches(name, WHAT))
    tap = Tap(model, wanted, receive, median, histogram, flatten, tokens_first)
    with ExitStack() as stack:
        stack.callback(tap.remove)
        tap.attach(blocks)
        if wanted - set(LAYER_QUANTITIES):
            stack.enter_context(looking_on(model, tap.look))
        yield tap


class Tap:
    """The live end of a capture. `tap["encoder.3.hidden"]` is the last call's tensor, where no receiver was given."""

    def __init__(
        self,
        model: nn.Module,
        wanted: frozenset[str],
        receive: Receive | None,
        median: bool,
        histogram: Tensor | None,
        flatten: Flatten,
        tokens_first: bool | None,
    ) -> None:
        self.model, self.wanted, self.median, self.histogram = model, wanted, median, histogram
        self.flatten, self._tokens_first = flatten, tokens_first
        self.kept: dict[str, Any] = {}
        self.real: dict[str, Tensor] = {}
        self.means: Means = {}
        self.fired: set[str] = set()
        self._receive = receive or (lambda site, value: self.kept.__setitem__(site.name, value))
        self._handles: list[Any] = []
        self._layer: dict[str, int] = {}
        self._last: dict[str, Tensor] = {}
        self._turned: set[str] = set()
        self._ran: dict[str, set[nn.Module]] = {}
        self._now: set[str] = set()
        self._running = False
        self._depth: dict[str, int] = {}
        self._rectified: dict[str, tuple[Tensor, Tensor | None]] = {}
        self._sources: dict[nn.Module, projections.Source] = {}
        self._names = {module: name for name, module in model.named_modules()}
        self._stacks = stacks_of(model)

    def __getitem__(self, name: str) -> Any:
        if name not in self.kept:
            raise MeasureError(
                f"a captured site named {name!r}",
                "none",
                near_matches(name, self.kept) if self.kept else "run the model",
            )
        return self.kept[name]

    @property
    def sites(self) -> list[str]:
        """Names of the sites of the last call, in the order they fired."""
        return list(self.kept)

    def emit(self, site: Site, value: Any) -> None:
        if self._running and site.name in self._now:
            raise MeasureError(
                f"one call at {site.name} in a forward call of {type(self.model).__name__}",
                "a second one, whose vectors would count as new ones",
                "measure hidden states only (--panel hidden,spectrum), or the part of the model that runs once",
            )
        self._now.add(site.name)
        self.fired |= {site.quantity, site.label}
        self._receive(site, value)

    def emit_vectors(self, site: Site, x: Tensor, block: nn.Module | None = None) -> None:
        if site.quantity in self.wanted:
            if block is not None and x.dim() == 4 and channels_last(block, x):
                x = x.permute(0, 3, 1, 2)
            real = self.real.get(site.stack)
            x = padded(x, None if real is None else (*real.shape, x.size(-1))) if x.is_nested else x
            self.emit(site, vectors_of(x, self.flatten, tokens_first=site.stack in self._turned))

    def wants(self, quantity: str, stage: str = "") -> bool:
        return quantity in self.wanted or f"{quantity}.{stage}" in self.wanted

    def hook(self, module: nn.Module, function: Callable[..., Any]) -> None:
        self._handles.append(module.register_forward_hook(function))

    def attach(self, block_classes: tuple[str, ...]) -> None:
        self._handles.append(self.model.register_forward_pre_hook(self._start))
        inside: set[nn.Module] = set()
        for stack, blocks in find_blocks(self.model, block_classes).items():
            self._depth[stack] = len(blocks)
            for block in blocks:
                inside.update(block.modules())
                if tokens_first(self.model, block) if self._tokens_first is None else self._tokens_first:
                    self._turned.add(stack)
                self._handles.append(block.register_forward_pre_hook(self._enter(stack), with_kwargs=True))
                if "unrectified" in self.wanted:
                    self._watch_rectifiers(stack, block)
                self.hook(block, self._leave(stack))
        if "stage" in self.wanted:
            for i, stage in enumerate(find_stages(self.model), start=1):
                self.hook(stage, self._leave_stage(i))
        if "final" in self.wanted:
            for module in self.model.modules():
                if module not in inside and "Norm" in type(module).__name__:
                    self.hook(module, self._norm)
        if any(name.startswith(("query", "key")) for name in self.wanted):
            self._prepare_projections()
        if self.wanted - set(LAYER_QUANTITIES):
            self._handles += fallback.prepare(self.model, self.look)
        self.hook(self.model, self._finish)

    def _prepare_projections(self) -> None:
        rotary = {self._stacks[m] for m in self.model.modules() if "Rotary" in type(m).__name__}
        for module in list(self._names):
            if "Attention" in type(module).__name__ and not any(
                "Attention" in type(c).__name__ for c in module.children()
            ):
                self._sources[module] = projections.prepare(module, self._stacks[module] in rotary, self.hook)

    def _watch_rectifiers(self, stack: str, block: nn.Module) -> None:
        """Keep what goes into the block's own ReLUs and comes out: the last one may be the block's end."""

        def before(relu: nn.Module, args: tuple[Tensor, ...]) -> None:
            self._rectified[stack] = (args[0].clone() if getattr(relu, "inplace", False) else args[0], None)

        def after(_relu: nn.Module, _args: Any, output: Tensor) -> None:
            self._rectified[stack] = (self._rectified[stack][0], output)

        for child in block.children():
            if isinstance(child, nn.ReLU):
                self._handles.append(child.register_forward_pre_hook(before))
                self.hook(child, after)

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _start(self, _module: nn.Module, _args: Any) -> None:
        for state in (self._layer, self._last, self._rectified, self._ran, self._now):
            state.clear()
        self._running = True

    def _enter(self, stack: str) -> Callable[..., None]:
        def enter(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            x = input_of(block, args, kwargs)
            if block in self._ran.setdefault(stack, set()) and not same(self._last.get(stack), x):
                self._begin_again(stack, block)
            self._ran[stack].add(block)
            layer = self._layer.get(stack, 0)
            self._layer[stack] = layer + 1
            if layer == 0:
                self.emit_vectors(Site(stack, 0, "hidden"), x, block)

        return enter

    def _begin_again(self, stack: str, block: nn.Module) -> None:
        """A block runs on input of its own once more: twice in one forward call of the model is an error."""
        if self._running:
            raise MeasureError(
                f"{type(self.model).__name__} to run each block once in a forward call",
                f"{self._names[block]} run again on other input: every vector would count twice",
                f"measure the {stack} itself, one input a call",
            )
        self._ran[stack].clear()
        self._layer.pop(stack, None)
        self._now.clear()

    def _leave(self, stack: str) -> Callable[..., None]:
        def leave(block: nn.Module, _args: Any, output: Any) -> None:
            last = self._last[stack] = output_of(block, output)
            before, after = self._rectified.get(stack, (None, None))
            if before is not None and after is last:
                self.emit_vectors(Site(stack, self._layer[stack], "unrectified"), before)
            self.emit_vectors(Site(stack, self._layer[stack], "hidden"), last, block)

        return leave

    def _leave_stage(self, number: int) -> Callable[..., None]:
        def leave(stage: nn.Module, _args: Any, output: Any) -> None:
            x = output[0] if isinstance(output, tuple) else output
            # a stage that ends with positions in a row [sequence, position, channel] is a map all the same
            x = x.transpose(1, 2).unsqueeze(-1) if x.dim() == 3 else x
            self.emit_vectors(Site(self._stacks[stage], number, "stage"), x)

        return leave

    def _norm(self, _module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        for stack, last in self._last.items():
            final = Site(stack, None, "final")
            after_all = args and same(last, args[0]) and self._layer[stack] >= self._depth[stack]
            if after_all and final.name not in self._now:  # of several heads' norms the first
                self.emit_vectors(final, output)

    def look(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        settings: dict[str, Any],
    ) -> None:
        """Hand on what the attention interface was called with, stage by stage."""
        stack = self._stacks[module]
        layer = self._layer.get(stack, 0)
        kind: Kind = "cross" if any(part in self._names[module] for part in _CROSS) else "self"
        source = self._sources.get(module)
        stages: dict[tuple[str, Any], Tensor] = {("query", "raw"): query, ("key", "raw"): key}
        if source is not None:
            stages = {("query", source.stage): query, ("key", source.stage): key} | source.earlier(query, key)
        for (name, stage), tensor in stages.items():
            if self.wants(name, stage):
                self.emit(Site(stack, layer, name, stage, kind), tensor)  # type: ignore[arg-type]
        if "value" in self.wanted:
            self.emit(Site(stack, layer, "value", "", kind), value)
        real = self.real.get(stack)
        rows: dict[str, Tensor] = {}
        if self.wanted & {"attention", "centred"}:
            rows = self._rows(module, query, key, mask, settings, real)
        if "attention" in self.wanted:
            self.emit(Site(stack, layer, "attention", "", kind), rows)
        if "scores" in self.wanted:
            masking, real = Masking.read(module, query, mask, settings), _fitting(real, query)
            sums = score_sums(query, key, masking, scale=_scale(query, settings), real=real)
            self.emit(Site(stack, layer, "scores", "", kind), sums)
        if "centred" in self.wanted:
            mean_query, mean_key = self._means_of((stack, layer, kind), query, key, settings)
            centred = (query - mean_query, key), (query, key - mean_key)
            of_query, of_key = (self._rows(module, q, k, mask, settings, real) for q, k in centred)
            self.emit(Site(stack, layer, "centred", "", kind), {"plain": rows, "query": of_query, "key": of_key})

    def _means_of(
        self, where: tuple[str, int, Kind], query: Tensor, key: Tensor, settings: dict[str, Any]
    ) -> tuple[Tensor, Tensor]:
        """Mean query and mean key, shaped to be taken from `query` and `key`."""
        if where not in self.means:
            expected = f"the mean query and key of {' '.join(map(str, where))} in tap.means"
            raise MeasureError(expected, "none", "take them from measure.loop.head_means, as run_pass does")
        scaled, mean_key = self.means[where]
        mean_key = mean_key[:: query.shape[1] // key.shape[1]]
        return (scaled / _scale(query, settings)).to(query).unsqueeze(1), mean_key.to(key).unsqueeze(1)

    def _rows(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        mask: Tensor | None,
        settings: dict[str, Any],
        real: Tensor | None,
    ) -> dict[str, Tensor]:
        return attention_rows(
            query,
            key,
            Masking.read(module, query, mask, settings),
            scale=_scale(query, settings),
            softcap=settings.get("softcap"),
            sinks=settings.get("s_aux"),
            real=_fitting(real, query),
            median=self.median,
            histogram=self.histogram,
        )

    def _finish(self, _module: nn.Module, _args: Any, _output: Any) -> None:
        """After a forward call: every requested place must have fired, the optional ones excepted."""
        self._running = False
        missing = {name for name in self.wanted - OPTIONAL if name not in self.fired}
        if missing:
            classes = sorted({type(m).__name__ for m in self.model.modules() if "Attention" in type(m).__name__})
            raise MeasureError(
                f"the model to pass through {', '.join(sorted(missing))}",
                f"no call there; attention classes of {type(self.model).__name__}: {', '.join(classes) or 'none'}",
                "measure hidden states only (--panel hidden,spectrum), or a model on transformers' attention interface",
            )


def _scale(query: Tensor, settings: dict[str, Any]) -> float:
    """The model's own; 1/√d where it names none."""
    scale = settings.get("scaling")
    return float(query.shape[-1] ** -0.5 if scale is None else scale)


def _fitting(real: Tensor | None, query: Tensor) -> Tensor | None:
    return real if real is not None and real.shape[1] == query.shape[2] else None
