"""Capture tensors of a model while it runs, without changing the model.

`with capture(model, what) as tap:` and then ordinary forward calls.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from anisoscope.axes import EVERYWHERE, LAYER_QUANTITIES, PAIRS, Flatten, Place, Site
from anisoscope.capture import entry_points, fallback, vectors
from anisoscope.capture.backends import intercept_attention
from anisoscope.capture.counting import Counting, list_ranges
from anisoscope.capture.heads import Heads, Means, is_attention
from anisoscope.capture.masking import Call
from anisoscope.capture.proof import Positions, Proof
from anisoscope.capture.splitting import Parts
from anisoscope.errors import (
    AnisoscopeError,
    MeasureError,
    UnseenError,
    UsageError,
    suggest_names,
)
from anisoscope.models.blocks import (
    find_blocks,
    find_stacks,
    find_stages,
    has_attention,
    has_tokens_first,
    has_two_towers,
)
from anisoscope.models.devices import is_out_of_memory
from anisoscope.models.modes import run_eagerly
from anisoscope.models.other_libraries import pool_texts
from anisoscope.models.parts import find_parts
from anisoscope.renamed import rename_site

STAGES = tuple(
    f"{name}.{stage}"
    for name in ("query", "key")
    for stage in ("raw", "normed", "rotated")
)
WHAT = (
    *LAYER_QUANTITIES,
    "query",
    "key",
    *STAGES,
    "value",
    "attention",
    "scores",
    "centred",
    "extremes",
)
"""Quantities that can be captured. `query` and `key` mean those of every stage that the model has (raw, normed, …)."""
OPTIONAL = {"final", "stage", "pre_relu"}
"""Quantities that many models do not have: it is no error if none is ever captured."""

HEADS = {*WHAT} - {*LAYER_QUANTITIES}
Receive = Callable[[Site, Any], None]


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
    optional: Iterable[str] = (),
    layers: Iterable[int] = (),
    shapes_only: bool = False,
    fused: bool = False,
) -> Iterator["Tap"]:
    """Capture tensors of a model in a `with` block: call `receive(site, tensor)` for each while the model runs.

    Yields the `Tap`. Without `receive`, it keeps the tensors of the last call. `what` names what to capture:

    hidden     [sequence, token, dim]: layer 0 = input of the first block, layer i = raw output of block i
    pre_relu   the same before the block's last ReLU, if the block ends with one
    stage      [sequence, token, dim]: output of each stage, from 1, of models whose blocks are grouped by resolution
    final      [sequence, token, dim]: after the final norm, if there is one; of stack `sentence` [sequence, 1, dim]:
    what sentence-transformers' modules (pooling, dense, normalise) make of a text
    query, key, value [sequence, head, token, head_dim] at the stages `raw`, `normed`, `rotated` that the model has
    attention  dict of row statistics, see `capture.rows.attention_rows`; of block i at layer i
    scores     dict of sums over rows, see `capture.scores.sum_scores`
    extremes   dict of the attention that each key receives (`mass`, `seen` of `attention_rows`), query, key, value
    centred    {"plain", "query", "key"}: row statistics as they are, with queries, with keys centred on `tap.means`

    Maps [sequence, channel, height, width] become one vector per position [sequence, height·width, channel], or with
    `flatten="image"` one per image [sequence, 1, channel·height·width].

    `blocks` are class names or patterns of module names (`encoder.layers.*`), needed if blocks are not found. Any
    module can be a block whose output is a tensor, or a tuple or mapping that begins with or names one. `tokens_first`:
    blocks pass on [token, sequence, dim]; None: as read from the model. An output [sequence, dim] is one vector a
    sequence. `layers` limits the layers of each stack (none: all), −1 is its last; `final` goes with the last.

    Set `tap.real = {stack: mask [sequence, token]}` before a padded call so that padded queries are left out of
    averages over rows (row similarity); row statistics are given for all queries. The model's outputs stay the same,
    bit for bit. With `fused`, the captured rows of attention also give its output, instead of the model's own product;
    this changes outputs by rounding (in float32 or float64 on a CPU, on the backends `heads.STOOD_IN_FOR`).

    MeasureError at the end of the first forward call if something asked for was not captured (what is `optional` is
    listed in `tap.unseen` instead), and in any call if a site fires twice, since every vector would count twice; a
    block that runs again on its own output (ALBERT, looped Transformers) is a new layer each time. UsageError for an
    unknown name in `what`, ModelError for weights without values unless `shapes_only`.
    """
    wanted = frozenset(map(rename_site, what))
    if not shapes_only:
        vectors.check_values(model)
    for name in wanted - set(WHAT):
        raise UsageError("a place to capture", repr(name), suggest_names(name, WHAT))
    tap = Tap(
        model,
        wanted,
        receive,
        flatten,
        tokens_first,
        median=median,
        histogram=histogram,
    )
    tap.optional |= {*optional}
    tap.fused = fused
    tap.layers = tuple(layers)
    # Whatever was hooked is unhooked, also if attaching fails halfway.
    with tap.ends:
        tap.attach(blocks)
        yield tap


def describe_refused(refused: Mapping[Place, str]) -> list[str]:
    """Return a phrase for each reason why attention was left out: `attention of layers 2, 4 of decoder: …`.

    refused   the reason by layer (stack, number, self- or cross-attention)
    """
    if EVERYWHERE in refused:
        return [f"attention of {EVERYWHERE[0]}: {refused[EVERYWHERE]}"]
    layers = defaultdict[tuple[str, str, str], list[int]](list)
    for (stack, layer, kind), why in refused.items():
        layers[stack, kind, why].append(layer or 0)
    cross = {"cross": "cross-attention", "self": "attention"}
    return [
        f"{cross[kind]} of layers {list_ranges(sorted(numbers))} of {stack}: {why}"
        for (stack, kind, why), numbers in layers.items()
    ]


class Tap:
    """The open capture of a model.

    `tap["encoder.3.hidden"]` is the tensor of the last forward call, if no receiver was given.
    """

    def __init__(
        self,
        model: nn.Module,
        wanted: frozenset[str],
        receive: Receive | None,
        flatten: Flatten,
        tokens_first: bool | None,
        **of_rows: Any,
    ) -> None:
        """Prepare a capture of the places `wanted`; nothing is hooked before `attach`."""
        self.model = model
        self.wanted = wanted
        self.of_heads = HEADS
        self._flatten = flatten
        self._tokens_first = tokens_first
        self.layers: tuple[int, ...] = ()
        self.optional = {*OPTIONAL}
        self.fused = False
        self.means: Means = {}
        # What the caller knows of the next call: real tokens by stack, and the number of sequences.
        self.real: dict[str, Tensor] = {}
        self.sequences: int | None = None
        # Called with each attention call that can be read.
        self.on_call: Callable[[Site, Call], None] | None = None
        self._receive = receive or self._keep
        self._raised_by_receiver: Exception | None = None
        # What was captured: values of the last call, sites of all calls, and number of parts a sequence by stack.
        self.kept: dict[str, Any] = {}
        self._kept_sites: dict[str, Site] = {}
        self._fired: set[Site] = set()
        self._looked_at: set[str] = set()
        self.parts: dict[str, int] = {}
        # What was not: optional quantities, attention with reasons, and layers whose attention nobody saw.
        self.unseen: set[str] = set()
        self.refused: dict[Place, str] = {}
        self._missed: defaultdict[str, list[int]] = defaultdict(list)
        self._seen_places: set[Place] = set()
        self.proof: Proof | None = None
        self.positions = Positions({})
        # State of the running forward call.
        self.inside = False
        self.running: defaultdict[str, vectors.RunningStack] = defaultdict(
            vectors.RunningStack
        )
        self._now: set[str] = set()
        # The model: stacks that pass on [token, sequence, dim], numbers of blocks, names and stacks of modules.
        self.turned: set[str] = set()
        self._depth: dict[str, int] = {}
        self.names = {module: name for name, module in model.named_modules()}
        self.stacks = find_stacks(model)
        self.split = Parts.find(model)
        self.ends = ExitStack()
        self.heads = Heads(self, of_rows)
        self.counting = Counting(self._note_kernel)

    def __getitem__(self, name: str) -> Any:
        """Return the last tensor captured at a site, by the site's name; MeasureError if there is none."""
        if name not in self.kept:
            cure = (
                suggest_names(name, self.kept) if self.kept else "run the model first"
            )
            raise MeasureError(f"a captured site named {name!r}", "none", cure)
        return self.kept[name]

    @property
    def fired(self) -> set[str]:
        """Return which quantities were captured so far (`query`, and `query.raw` with its stage).

        Attention counts only in layers in which it was not left out later.
        """
        sites = [
            site
            for site in self._fired
            if site.quantity not in HEADS or site.place not in self.refused
        ]
        return (
            {site.quantity for site in sites}
            | {site.label for site in sites}
            | self._looked_at
        )

    @property
    def sites(self) -> list[str]:
        """Return the names of the sites captured in the last forward call, in the order in which they were computed."""
        return list(self.kept)

    def emit(self, site: Site, value: Any) -> None:
        """Pass the tensor of a site (place in the model) to the receiver.

        MeasureError if the site comes twice in one forward call.
        """
        # Only within a forward call of the whole model: blocks that are called on their
        # own may be called again.
        if self.inside and site.name in self._now:
            expected = f"one call at {site.name} in a forward call of {type(self.model).__name__}"
            cure = "measure hidden states only (--panel hidden,spectrum), or a part of the model that runs once"
            raise MeasureError(
                expected,
                "a second call, whose vectors would be counted as further ones",
                cure,
            )
        if site.place in self.refused and site.quantity in HEADS:
            return
        self._now.add(site.name)
        self._fired.add(site)
        if not self.is_asked_for(site):
            return
        with entry_points.suspend(), self.counting.pause():
            try:
                self._receive(site, value)
            except Exception as error:
                self._raised_by_receiver = error
                raise

    def note_looked_at(self) -> None:
        """Note that the model has attention that could be captured, in a layer that was not asked for."""
        self._looked_at |= HEADS

    @property
    def receiver_failed(self) -> bool:
        """Return whether the function that receives captured tensors raised an exception."""
        return self._raised_by_receiver is not None

    def must_raise(self, error: Exception) -> bool:
        """Return whether an exception must reach the caller, instead of leaving the attention of a layer out.

        This is so for the receiver's own exceptions, for a full memory, and if attention was asked for by name.
        """
        if isinstance(error, AnisoscopeError):
            return not self.optional & self.of_heads
        return error is self._raised_by_receiver or is_out_of_memory(error)

    def refuse(self, place: Place, why: str) -> None:
        """Leave out the attention of a layer from now on, and drop what was kept of it.

        place   the layer: (stack, number, self- or cross-attention)
        why     the reason, which is shown to the user
        """
        self.refused.setdefault(place, why)
        for name, site in list(self._kept_sites.items()):
            if site.place == place and site.quantity in HEADS:
                del self.kept[name]
                del self._kept_sites[name]

    def _keep(self, site: Site, value: Any) -> None:
        """Keep the last value of a site (place in the model), for `tap[name]`; used if no receiver was given."""
        self.kept[site.name] = value
        self._kept_sites[site.name] = site

    def is_asked_for(self, site: Site) -> bool:
        """Return whether the layer of a site (place in the model) was asked for."""
        if not self.layers:
            return True
        depth = self._depth.get(site.stack, 0)
        layer = depth if site.layer is None else site.layer
        from_end = layer - depth - 1
        return layer in self.layers or from_end in self.layers

    def emit_vectors(
        self, site: Site, x: Tensor, block: nn.Module | None = None
    ) -> None:
        """Reshape the vectors of a layer to [sequence, token, dim] and pass them on, if their quantity was asked for.

        MeasureError if there are several residual streams per token.

        x       the vectors in the shape that the model uses, or feature maps
        block   the block whose output they are, if any
        """
        if site.quantity not in self.wanted:
            return
        real = self.real.get(site.stack)  # [sequence, token]
        self._require_one_stream(x, real)
        # Feature maps of most networks, and what follows, are [image, channel, row, column].
        if block is not None and x.dim() == 4 and vectors.has_channels_last(block, x):
            x = x.permute(0, 3, 1, 2)
        if x.is_nested:
            # Padded to the longest sequence alone, it would be shorter than a mask with more padding.
            shape = None if real is None else (*real.shape, x.size(-1))
            x = vectors.pad_nested(x, shape)
        x = vectors.to_vectors(x, self._flatten, tokens_first=site.stack in self.turned)
        # With sequence parallelism, each process has some of the tokens.
        if self.split is not None and self.is_asked_for(site):
            x = self.split.join(x, 1)
        self.emit(site, self._join_parts(site.stack, x))

    def _require_one_stream(self, x: Tensor, real: Tensor | None) -> None:
        """Raise MeasureError if a layer passes on several residual streams per token: none of them is its vector.

        x      the vectors in the shape that the model uses
        real   which positions are real tokens [sequence, token], if known
        """
        if x.dim() == 4 and vectors.are_streams(self.model, x, real):
            came = f"{tuple(x.shape)} in {type(self.model).__name__}: several residual streams per token"
            cure = "measure attention alone (--panel attention), or name blocks that pass on one stream (--blocks)"
            raise MeasureError("blocks that pass on one vector per token", came, cure)

    def _join_parts(self, stack: str, x: Tensor) -> Tensor:
        """Join the vectors of all images of one sequence: [part, token, dim] becomes [1, part · token, dim].

        The parts are tiles of images, or patches that are passed on without a sequence axis (Qwen-VL). If there are
        several sequences, it is not known which part belongs to which: the vectors are returned unchanged.
        """
        if self.sequences != 1:
            self.parts.pop(stack, None)
            return x
        # Set for every call: each part begins with special tokens, and the next text may have another number of images.
        self.parts[stack] = len(x) if x.shape[1] > 1 else 1
        return x.flatten(0, 1).unsqueeze(0)

    def hook(self, module: nn.Module, function: Callable[..., Any]) -> None:
        """Register a forward hook on a module, to be removed at the end of the capture."""
        self.ends.callback(module.register_forward_hook(function).remove)

    @contextmanager
    def detach(self) -> Iterator[None]:
        """Remove the capture from the model inside a `with` block, and attach it again at its end."""
        self.ends.close()
        try:
            yield
        finally:
            self.attach(self._block_classes)

    def attach(self, block_classes: tuple[str, ...]) -> None:
        """Hook the model so that everything that was asked for is captured."""
        self._block_classes = block_classes
        if self.split is not None:
            check = partial(self.split.require_same_inputs, self.counting.pause)
            self.ends.callback(
                self.model.register_forward_pre_hook(check, with_kwargs=True).remove
            )
        # A compiled graph would run without the functions that are replaced here.
        self.ends.enter_context(run_eagerly(self.model))
        # Before the hooks on blocks: it forgets the last call before anything of this
        # one is noted.
        self.ends.callback(self.model.register_forward_pre_hook(self._start).remove)
        blocks_of = find_blocks(self.model, block_classes)
        self.positions = Positions(blocks_of, self.names)
        inside = self._hook_blocks(blocks_of)
        if "stage" in self.wanted:
            for number, stage in enumerate(find_stages(self.model), start=1):
                self.hook(stage, partial(self._emit_stage, number))
        if "final" in self.wanted:
            self._hook_final(inside)
        if any(name.startswith(("query", "key")) for name in self.wanted):
            self.heads.hook_projections()
        if self.wanted - set(LAYER_QUANTITIES):
            self._hook_attention(inside)
        # Last, so that it runs after every other hook of the model.
        self.hook(self.model, self._finish)

    def _hook_blocks(
        self, blocks_of: Mapping[str, Iterable[nn.Module]]
    ) -> set[nn.Module]:
        """Hook the blocks of each stack; return all modules inside of them."""
        inside: set[nn.Module] = set()
        parts_of_last = {parts[-1]: parts for parts in find_parts(self.model)}
        for stack, listed in blocks_of.items():
            blocks = list(listed)
            self._depth[stack] = len(blocks)
            texts = vectors.count_texts(blocks)
            if texts:
                self._depth[vectors.TEXT] = texts
            for block in blocks:
                # A block may be several modules in a row, of which the last gives its output.
                parts = parts_of_last.get(block, [block])
                for part in parts:
                    inside.update(part.modules())
                self._hook_block(stack, block, parts[0])
        return inside

    def _hook_block(self, stack: str, block: nn.Module, first: nn.Module) -> None:
        """Hook one block of a stack; `first` is the block, or the first of its parts."""
        tokens_first = self._tokens_first
        if tokens_first is None:
            tokens_first = has_tokens_first(self.model, block)
        if tokens_first:
            self.turned.add(stack)
        enter = partial(self._enter, stack, block)
        leave = partial(self._leave, stack)
        # A hook would turn its fast path off.
        if isinstance(block, nn.TransformerEncoderLayer):
            self.ends.enter_context(vectors.wrap_forward(block, enter, leave))
            return
        self.ends.callback(
            first.register_forward_pre_hook(enter, with_kwargs=True).remove
        )
        if "pre_relu" in self.wanted:
            self._hook_relus(stack, block)
        self.hook(block, leave)

    def _hook_relus(self, stack: str, block: nn.Module) -> None:
        """Hook the ReLUs among the children of a block, one of which may be its last operation."""
        for child in block.children():
            if isinstance(child, nn.ReLU):
                before = child.register_forward_pre_hook(
                    partial(self._keep_relu_input, stack)
                )
                self.ends.callback(before.remove)
                self.hook(child, partial(self._keep_relu_output, stack))

    def _hook_final(self, inside: set[nn.Module]) -> None:
        """Hook what runs after the last block: norms, sentence-transformers' modules, and the two towers of a model.

        inside   modules inside of blocks; the modules of a sentence model are added to them
        """
        sentence = getattr(self.model, "sentence", None)
        if sentence is not None:
            inside.update(sentence.modules())
            hook = self.model.register_forward_hook(
                self._emit_sentences, with_kwargs=True
            )
            self.ends.callback(hook.remove)
        if has_two_towers(self.model):
            self.hook(self.model, self._emit_pairs)
        # Which norm is the final one shows when the model runs: the one that reads the
        # last block's output.
        for module in self.names:
            if module not in inside and "Norm" in type(module).__name__:
                self.hook(module, self._emit_final)

    def _hook_attention(self, inside: set[nn.Module]) -> None:
        """Watch every way in which modules inside of blocks may compute attention."""
        self.ends.enter_context(fallback.watch_projections(self.model, self.heads.look))
        self.ends.enter_context(
            intercept_attention(self.model, self.heads.look, self.counting.pause)
        )
        self.ends.callback(self.counting.stop)
        self.ends.callback(
            self.model.register_forward_pre_hook(self.counting.start).remove
        )
        self.ends.callback(
            self.model.register_forward_hook(
                self.counting.stop, always_call=True
            ).remove
        )
        off_interface = inside - fallback.find_off_interface(self.model).keys()
        look = partial(self.heads.look, off_interface=True)
        self.ends.enter_context(
            entry_points.watch_entry_points(
                off_interface, look, self.heads.note_trouble
            )
        )

    def _start(self, _module: nn.Module, _args: Any) -> None:
        """Forget the state of the previous forward call; a forward pre-hook of the model."""
        self.running.clear()
        self._now.clear()
        self.heads.begin()
        self.inside = True

    def _note_kernel(self, kernel: str) -> None:
        """Note that attention was computed in the running block.

        If no capture reads it there, `_note_unseen_attention` reports it as missed.
        """
        for here in self.running.values():
            if here.block is not None:
                here.kernels.append(kernel)
                here.loose |= not entry_points.is_suspended()

    def _enter(
        self,
        stack: str,
        block: nn.Module,
        _first: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        """Note that a block begins; pass its input on as layer 0 if it is the first block of its stack.

        A forward pre-hook of each block. `_first` is the module that is hooked: the block, or the first of its parts.
        MeasureError if a block runs again on other input within one forward call.
        """
        x = vectors.find_input(block, args, kwargs)
        here = self.running[stack]
        # On its own output it would be a further layer (ALBERT).
        if block in here.ran and not vectors.is_same_memory(here.last, x):
            if self.inside:
                expected = f"{type(self.model).__name__} to run each block once in a forward call"
                came = f"{self.names[block]} run again on other input: every vector would count twice"
                raise MeasureError(
                    expected,
                    came,
                    f"measure the {stack} as a model of its own, with one input per "
                    "call",
                )
            here = self.running[stack] = vectors.RunningStack()
            self._now.clear()
        here.ran.add(block)
        here.layer += 1
        here.block = block
        here.looks = 0
        here.loose = False
        here.trouble = ""
        here.kernels.clear()
        here.sequences, here.positions = vectors.count_positions(
            block, x, tokens_first=stack in self.turned
        )
        # Images of one sequence may come in several parts.
        if self.sequences == 1:
            here.positions *= here.sequences
            here.sequences = 1
        if here.layer == 1:
            self.emit_vectors(Site(stack, 0, "hidden"), x, block)
            self._emit_text(block, 0, vectors.find_text(kwargs))

    def _keep_relu_input(
        self, stack: str, relu: nn.Module, args: tuple[Tensor, ...]
    ) -> None:
        """Keep the input of a ReLU, in case it is the last operation of its block: a forward pre-hook of the ReLU."""
        x = args[0]
        # One that works in place overwrites its input.
        if getattr(relu, "inplace", False):
            x = x.clone()
        self.running[stack].rectified = (x, None)

    def _keep_relu_output(
        self, stack: str, _relu: nn.Module, _args: Any, output: Tensor
    ) -> None:
        """Keep the output of a ReLU together with its input: a forward hook of the ReLU.

        stack   the ReLU's stack (encoder or decoder)
        """
        here = self.running[stack]
        before = output
        if here.rectified is not None:
            before, _ = here.rectified
        here.rectified = (before, output)

    def _leave(self, stack: str, block: nn.Module, _args: Any, output: Any) -> None:
        """Pass on the output of a block, and its value before the last ReLU if it ends with one: a forward hook."""
        here = self.running[stack]
        here.last = vectors.find_output(block, output)
        here.block = None
        self._note_unseen_attention(stack, block, here)
        before, after = here.rectified or (None, None)
        ends_with_relu = after is here.last
        if before is not None and ends_with_relu:
            self.emit_vectors(Site(stack, here.layer, "pre_relu"), before)
        self.emit_vectors(Site(stack, here.layer, "hidden"), here.last, block)
        if vectors.is_joint(block):
            self._emit_text(block, here.layer, vectors.find_text({}, output))

    def _emit_text(self, block: nn.Module, layer: int, x: Tensor | None) -> None:
        """Pass on the text's vectors of a block that processes a text and an image together (SD3, Flux).

        They count as a stack of their own. None, and vectors of other blocks, are ignored.
        """
        if x is not None and vectors.is_joint(block):
            self.running[vectors.TEXT].layer = layer
            self.emit_vectors(Site(vectors.TEXT, layer, "hidden"), x)

    def _note_unseen_attention(
        self, stack: str, block: nn.Module, here: vectors.RunningStack
    ) -> None:
        """Note if a block computed attention that was not captured, when the block has ended.

        This is known from the attention kernels that ran, or because earlier calls of the block were captured.

        here   the state of the block's stack in the running forward call
        """
        place: Place = (stack, here.layer, "self")
        name = type(block).__name__
        if here.kernels and (here.loose or not here.looks):
            why = here.trouble or here.kernels[0]
            self._missed[f"{stack} ({why} in {name})"].append(here.layer)
        elif here.trouble and not here.looks and place in self._seen_places:
            self.refuse(place, f"{here.trouble} in {name}")
        if here.looks:
            self._seen_places.add(place)

    def _emit_stage(
        self, number: int, stage: nn.Module, _args: Any, output: Any
    ) -> None:
        """Pass the output of a stage (blocks of one resolution) of a convolutional network on to the receiver."""
        x = vectors.find_output(stage, output)
        # A stage that ends with positions in a row [sequence, position, channel] is a map all the same.
        if x.dim() == 3:
            x = x.transpose(1, 2).unsqueeze(-1)
        self.emit_vectors(Site(self.stacks[stage], number, "stage"), x)

    def _emit_final(
        self, _module: nn.Module, args: tuple[Any, ...], output: Any
    ) -> None:
        """Pass on the output of a norm as `final`, if its input is the output of the last block: a forward hook."""
        for stack, here in self.running.items():
            final = Site(stack, None, "final")
            is_after_all = bool(args) and here.layer >= self._depth[stack]
            # Several heads may have a norm each: the first one counts.
            is_first = final.name not in self._now
            if is_after_all and is_first and vectors.is_same_memory(here.last, args[0]):
                self.emit_vectors(final, output)

    def _emit_sentences(
        self, model: nn.Module, _args: Any, inputs: dict[str, Any], output: Any
    ) -> None:
        """Pass on one vector per text, computed by the modules behind a sentence model's Transformer (pooling …)."""
        # These modules may call a model of their own.
        with entry_points.suspend(), self.counting.pause():
            vectors_of_texts = pool_texts(model, inputs, output)
        self.emit_vectors(Site("sentence", None, "final"), vectors_of_texts)

    def _emit_pairs(self, _model: nn.Module, _args: Any, output: Any) -> None:
        """Pass on the vectors of each image and its text [pair, 2, dim] of a model with two towers, such as CLIP.

        They are those of the common space, in which an image and a text are compared.
        """
        image = getattr(output, "image_embeds", None)
        text = getattr(output, "text_embeds", None)
        if not isinstance(image, Tensor) or not isinstance(text, Tensor):
            return
        if image.dim() == 2 and image.shape == text.shape:
            self.emit(Site(PAIRS, None, "final"), torch.stack([image, text], 1))

    def _finish(self, _module: nn.Module, _args: Any, _output: Any) -> None:
        """Check after a forward call that everything asked for was captured, except what is optional.

        UnseenError if something is missing.
        """
        self.inside = False
        self._check_layers()
        fired = self.fired
        # Checked at the end of each call, as nothing before it can know that a site
        # will never come.
        missing = sorted(self.wanted - self.optional - fired)
        self.unseen = set()
        # A model without any attention lacks nothing.
        has_any = bool(fired & HEADS or self._missed) or has_attention(self.model)
        # Refused attention is listed by place, with reasons.
        if has_any and not self.refused:
            self.unseen = {*self.wanted} & self.optional - OPTIONAL - fired
        for where, numbers in self._missed.items():
            self.unseen.add(f"attention of layers {list_ranges(numbers)} of {where}")
        if missing:
            cure = (
                "measure hidden states only (--panel hidden,spectrum), or use a model "
                "with transformers' attention interface"
            )
            raise UnseenError(
                f"the model to compute {', '.join(missing)}",
                self._explain_missing(),
                cure,
            )

    def _explain_missing(self) -> str:
        """Return in words why something that was asked for was not captured."""
        if self.refused:
            return "; ".join(describe_refused(self.refused))
        names = {type(module).__name__ for module in self.names if is_attention(module)}
        classes = ", ".join(sorted(names)) or "none"
        return f"nothing that can be captured; attention classes of {type(self.model).__name__}: {classes}"

    def _check_layers(self) -> None:
        """Raise UsageError if a layer that was asked for does not exist, or is numbered from the end in a looped
        model.
        """
        ends = {stack: here.layer for stack, here in self.running.items()}
        longest = max(ends.values(), default=0)
        name = type(self.model).__name__
        for layer in self.layers:
            if not any(-end - 1 <= layer <= end for end in ends.values()):
                raise UsageError(
                    f"--layers of {name} from 0 to {longest}, or from the end: −1, −2 "
                    "…",
                    str(layer),
                )
        is_looped = any(end != self._depth[stack] for stack, end in ends.items())
        if is_looped and min(self.layers, default=0) < 0:
            expected = (
                f"layers counted from 0 in {name}, which runs a block more than once"
            )
            raise UsageError(
                expected, str(min(self.layers)), f"use numbers from 0 to {longest}"
            )
