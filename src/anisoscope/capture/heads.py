"""Hand on what attention was called with, layer by layer: queries and keys by stage, values, statistics of rows.

Attention that cannot be read is left out, with a reason.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from anisoscope.axes import Kind, Site
from anisoscope.capture import projections
from anisoscope.capture.masking import Call, Masking
from anisoscope.capture.proof import Proof, compare_attention
from anisoscope.capture.rows import attention_rows
from anisoscope.capture.scores import sum_scores
from anisoscope.errors import AnisoscopeError, MeasureError
from anisoscope.models.families import ROTATING

Means = dict[tuple[str, int, Kind], tuple[Tensor, Tensor]]
"""(stack, layer, kind) → mean scaled query and mean key [head, head_dim], repeated for heads that share keys."""
CROSS = ("EncDecAttention", "encoder_attn", "crossattention", "cross_attn", "attn2")
"""What the path of an attention module has in it, if it reads another stack."""
CROSS_PARTS = {"cross_attention", "encoder_decoder_attention"}
"""Parts of such a path (NLLB-MoE, Pix2Struct)."""
STOOD_IN_FOR = ("sdpa", "eager")
"""Backends whose output fused attention may give."""


def is_attention(module: nn.Module) -> bool:
    """Return whether a module is an attention module, by the name of its class."""
    return "Attention" in type(module).__name__


def is_rotary(module: nn.Module) -> bool:
    """Return whether a module rotates queries and keys by their position, by the name of its class."""
    return any(part in type(module).__name__ for part in ROTATING)


def explain(error: Exception) -> str:
    """Return in a few words why something could not be read."""
    if isinstance(error, AnisoscopeError):
        return error.got
    words = " ".join(str(error).split())[:120]
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


class Heads:
    """Reads the attention calls of a `Tap` (`capture.tap`) and hands on what was asked for."""

    def __init__(self, tap: Any, of_rows: dict[str, Any]) -> None:
        """Prepare to read the attention calls that `tap` sees; `of_rows` are options of `attention_rows`."""
        self.tap, self.of_rows = tap, of_rows
        self.served, self.by_hand = set[Site](), set[Site]()
        self.read = dict[Any, tuple[Any, Any, Masking]]()
        self.sources = dict[nn.Module, projections.Source]()
        self.crossing = {m.multihead_attn for m in tap.names if isinstance(m, nn.TransformerDecoderLayer)}

    def hook_projections(self) -> None:
        """Hook the projections of attention modules, to read queries and keys before the attention interface."""
        stacks, names = self.tap.stacks, self.tap.names
        rotary = {stacks[m] for m in names if is_rotary(m) or hasattr(m, "rotary_dim")}
        for module in names:
            if is_attention(module) and not any(map(is_attention, module.children())):
                turned = stacks[module] in self.tap.turned
                source = projections.hook_projections(
                    module, stacks[module] in rotary, self.tap.hook, tokens_first=turned
                )
                self.sources[module] = source

    def begin(self) -> None:
        """Forget the attention calls of the previous forward call; runs before each forward call."""
        self.served.clear()
        self.by_hand.clear()
        self.read.clear()

    def look(self, call: Call, *, by_hand: bool = False) -> Tensor | None:
        """Hand on what attention was called with, stage by stage; return its output if it is to replace the model's
        own.

        If the call cannot be read, it is left out with a reason, and the model runs on. `by_hand`: the call did not go
        through the attention interface.
        """
        at = self._site_of(call, by_hand)
        try:
            return self._look(call, at, by_hand)
        except Exception as error:
            if self.tap.must_raise(error):
                raise
            self.tap.refuse(at("attention").place, f"in {type(call.module).__name__}: {explain(error)}")
            return None

    def note_trouble(self, module: nn.Module, where: str, error: Exception) -> None:
        """Note that a call of `module` could not be read: if it was attention, this is why it is missing.

        where   what could not be read, in words
        error   what was raised
        """
        if self.tap.must_raise(error):
            raise error
        self.tap.running[self.tap.stacks[module]].trouble = f"{where}: {explain(error)}"

    def _site_of(self, call: Call, by_hand: bool) -> Callable[..., Site]:
        """Return a function from a quantity to the site of this call (stack, layer, self- or cross-attention)."""
        stack = self.tap.stacks[call.module]
        path = self.tap.names[call.module]
        crossing = call.module in self.crossing or any(part in path for part in CROSS)
        crossing |= not CROSS_PARTS.isdisjoint(path.split("."))
        crossing |= by_hand and call.query.shape[2] != call.key.shape[2]
        kind: Kind = "cross" if crossing else "self"
        return partial(Site, stack, self.tap.running[stack].layer, kind=kind)

    def _look(self, call: Call, at: Callable[..., Site], by_hand: bool) -> Tensor | None:
        """Check whether an attention call must be left out, and hand on what was asked for if not.

        at        returns the site of this call for a quantity
        by_hand   the call did not go through the attention interface

        Returns the output of attention if it is to replace the model's own, else None.
        """
        tap = self.tap
        stack = tap.stacks[call.module]
        tap.running[stack].looks += 1
        place, windows = at("attention"), self._count_windows(call)
        if place.place in tap.refused or (by_hand and place in self.served):
            return None
        if self._is_refused(place, call, windows, by_hand):
            return None
        source = self.sources.get(call.module) or projections.Source("raw")
        if not tap.chosen(place):
            source.seen.clear()
            tap.note_looked_at()
            return None
        real = tap.real.get(stack)
        if real is not None and real.shape[1] != call.query.shape[2]:
            real = None  # of cross-attention to another stack
        with tap.counting.pause():
            call = call if by_hand else self._known(call)
            return self._hand_on(call, at, source, real, windows)

    def _known(self, call: Call) -> Call:
        """Return the call with its mask already read; layers that share the mask read it once."""
        bias = call.settings.get("position_bias")
        shape = (*call.query.shape[::2], call.key.shape[2])
        alike = (call.settings.get("is_causal"), getattr(call.module, "is_causal", None), call.backend)
        key = (id(call.mask), id(bias), shape, call.settings.get("sliding_window"), alike)
        if key not in self.read:
            self.read[key] = (call.mask, bias, call.read_masking())  # kept, so that no other gets its number
        return replace(call, known=self.read[key][2])

    def _hand_on(
        self, call: Call, at: Callable[..., Site], source: Any, real: Tensor | None, windows: int
    ) -> Tensor | None:
        """Compute the requested quantities of one attention call (queries, keys, scores, …) and pass each to the tap.

        at        returns the site (layer and quantity) under which a quantity of this call is recorded
        source    the module's projected queries and keys, as they were before the attention function was called
                  (`capture.projections.Source`)
        real      which queries are real tokens [sequence, query]; None: all
        windows   into how many windows each sequence is split

        Returns the output of attention if it is to replace the model's own, else None. MeasureError if there are more
        keys than positions and keys were asked for.
        """
        tap, wanted = self.tap, self.tap.wanted

        def emit(site: Site, value: Any) -> None:
            """Pass a value on to the receiver; if attention ran in windows, they are joined to sequences first."""
            tap.emit(site, value if windows < 2 else _merge_windows(value, windows))

        positions, keys = call.query.shape[2], call.key.shape[2]
        if keys > positions and at("key").kind == "self" and {"key", "value"} & {n.partition(".")[0] for n in wanted}:
            expected = f"one key a token in {type(call.module).__name__}, as --panel attention has to have"
            cure = "measure what is per query: capture(model, ('query', 'attention'))"
            raise MeasureError(expected, f"{keys} keys for {positions} positions: some represent several tokens", cure)
        for (name, stage), tensor in source.stages(call).items():
            if {name, f"{name}.{stage}"} & wanted:
                emit(at(name, stage), tensor)
        if "value" in wanted:
            emit(at("value"), call.value)
        if tap.on_call is not None and windows == 1:
            tap.on_call(at("attention"), call)
        stands_in = tap.fused and is_plain_softmax(call)
        columns = "extremes" in wanted
        if tap.proof is not None:
            rows = self._compute_rows_with_output(call, real, columns)
            if not self._is_verified(tap.proof, call, at("attention"), rows, real):
                return None
        else:
            of_rows = wanted & {"attention", "centred", "extremes"}
            rows = self._rows(call, real, value=stands_in, columns=columns) if of_rows else {}
        output = rows.pop("output", None)
        by_key = {name: rows.pop(name) for name in ("mass", "seen") if name in rows}
        if "extremes" in wanted:
            tensors = {"query": call.query, "key": call.key, "value": call.value}
            emit(at("extremes"), by_key | tensors)
        if "attention" in wanted:
            emit(at("attention"), rows)
        if "scores" in wanted:
            emit(at("scores"), sum_scores(call.query, call.key, call.masking, scale=call.scale, real=real))
        if "centred" in wanted:
            query, key = self._means_of(at("centred"), call)
            of_query = self._rows(replace(call, query=call.query - query), real)
            of_key = self._rows(replace(call, key=call.key - key), real)
            emit(at("centred"), {"plain": rows, "query": of_query, "key": of_key})
        return output if stands_in and output is not None and is_defined(rows) else None

    def _compute_rows_with_output(self, call: Call, real: Tensor | None, columns: bool) -> dict[str, Tensor]:
        """Compute the statistics of attention rows, and the `output` that the rows give if the call's values allow it.

        real      which queries are real tokens [sequence, query]; None: all
        columns   also what each key receives (`mass`, `seen`)
        """
        try:
            return self._rows(call, real, value=True, columns=columns)
        except Exception as error:
            if self.tap.must_raise(error):
                raise
            return self._rows(call, real, columns=columns)

    def _is_verified(self, proof: Proof, call: Call, site: Site, rows: dict[str, Tensor], real: Tensor | None) -> bool:
        """Return whether the captured attention rows give the model's own output and belong to the right layer.

        If not, the attention of this layer is refused.

        proof   collects the errors found
        rows    statistics of the rows, with `output` if it could be computed
        real    which queries are real tokens [sequence, query]; None: all
        """
        name, place = type(call.module).__name__, site.place
        if self.tap.positions.contradict(call.module, site):
            self.tap.refuse(place, f"{name}, which belongs to another block, was found there")
            return False
        figures = compare_attention(call, rows["output"], rows["keys"], real) if "output" in rows else None
        if figures is None:
            proof.unheard.add(place)
            return True
        proof.attention[place] = figures
        apart, limit = figures
        if apart <= limit:
            return True
        self.tap.refuse(place, f"softmax(scores)·values is not the output of {name}, and by more than rounding")
        return False

    def _means_of(self, site: Site, call: Call) -> tuple[Tensor, Tensor]:
        """Return the mean query and the mean key of this attention layer, for the variants of attention with a mean
        subtracted.

        They come from `tap.means`, which an earlier pass over the corpus measured. Their shapes are [head, 1, dim] and
        [key head, 1, dim], so that they can be subtracted from the queries and keys of the call. MeasureError if
        `tap.means` has no entry for this layer.
        """
        where = (site.stack, site.layer or 0, site.kind)
        if where not in self.tap.means:
            expected = f"the mean query and key of {' '.join(map(str, where))} in tap.means"
            raise MeasureError(expected, "none", "take them from measure.loop.head_means, as run_pass does")
        scaled, key = self.tap.means[where]
        key = key[:: call.query.shape[1] // call.key.shape[1]]
        return (scaled / call.scale).to(call.query).unsqueeze(1), key.to(call.key).unsqueeze(1)

    def _rows(
        self, call: Call, real: Tensor | None, *, value: bool = False, columns: bool = False
    ) -> dict[str, Tensor]:
        """Compute the statistics of the attention rows (one per query) of a call, with its soft cap, sinks and scale.

        real      which queries are real tokens [sequence, query]; None: all
        value     also the output that the rows give
        columns   also what each key receives (`mass`, `seen`)
        """
        settings = {"softcap": call.settings.get("softcap"), "sinks": call.settings.get("s_aux")}
        how = {**settings, **self.of_rows, "scale": call.scale, "real": real}
        how["value"] = call.value if value else None
        how["columns"] = columns
        return attention_rows(call.query, call.key, call.masking, **how)

    def _count_windows(self, call: Call) -> int:
        """Return into how many windows each sequence is split in a call: 1 if not split, 0 if the call does not fit."""
        stack = self.tap.stacks[call.module]
        here, calls = self.tap.running[stack], len(call.query)
        if not here.sequences or calls == here.sequences:
            return 1
        fits = calls * call.query.shape[2] == here.sequences * here.positions and calls % here.sequences == 0
        alike = call.query.shape[2] == call.key.shape[2]
        return calls // here.sequences if fits and alike and stack not in self.tap.real else 0

    def _is_refused(self, site: Site, call: Call, windows: int, by_hand: bool) -> bool:
        """Return whether a call must be left out: it is of an incomplete part of a sequence, or a second one in its
        block.

        If attention was asked for by name, it is never left out here: sites that fire twice are errors later.

        windows   into how many windows each sequence is split; 0: the call does not fit
        """
        before = self.by_hand if by_hand else self.served
        several = self.tap.inside and site in before
        before.add(site)
        if not self.tap.optional & self.tap.of_heads or not (several or not windows):
            return False
        why = "several times in one block" if several else "in parts of a sequence that are not complete windows"
        self.tap.refuse(site.place, f"{type(call.module).__name__} computes it {why}")
        return True


def is_plain_softmax(call: Call) -> bool:
    """Return whether the output of a call is exactly softmax(scores) · values, so that it can be replaced."""
    drops = float(call.settings.get("dropout") or 0.0) > 0
    exact = call.query.device.type == "cpu" and call.query.dtype.itemsize >= 4
    return call.backend in STOOD_IN_FOR and exact and not drops


def is_defined(rows: dict[str, Tensor]) -> bool:
    """Return whether every attention row sees a key and has a finite entropy.

    rows   statistics of attention rows [sequence, head, query], by name
    """
    return bool((rows["keys"] > 0).all() and rows["entropy"].isfinite().all())


def _merge_windows(value: Any, windows: int) -> Any:
    """Combine captured values of windows into values of the sequences that they belong to.

    value     a tensor [sequence · window, head, token, …], or such tensors by name
    windows   how many windows each sequence has
    """
    if isinstance(value, Tensor):
        return _join_windows(value, windows)
    if not isinstance(value, dict):
        return value
    if "mass" in value:
        return {name: _join_windows(x, windows) for name, x in value.items()}
    if "plain" in value:
        return {which: _merge_windows(rows, windows) for which, rows in value.items()}
    per_row = value["entropy"].dim() if "entropy" in value else 0
    made = {}
    for name, x in value.items():
        parts = torch.unflatten(x, 0, (-1, windows))
        if name == "row_similarity":
            made[name] = parts.nanmean(1)
        elif per_row and x.dim() == per_row and name != "score_histogram":
            made[name] = _join_windows(x, windows)
        else:
            made[name] = parts.sum(1)
    return made


def _join_windows(x: Tensor, windows: int) -> Tensor:
    """Reshape [sequence · window, head, token, …] to [sequence, head, window · token, …]."""
    return torch.unflatten(x, 0, (-1, windows)).transpose(1, 2).flatten(2, 3)
