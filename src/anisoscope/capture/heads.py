"""Hand on what attention was called with, layer by layer: queries and keys by stage, values, statistics of rows.

Attention that cannot be read is left out, with a reason.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from anisoscope.axes import Kind, Site, Stage
from anisoscope.capture import entry_points, projections
from anisoscope.capture.masking import Call, Masking
from anisoscope.capture.proof import Proof, compare_attention
from anisoscope.capture.rows import attention_rows
from anisoscope.capture.scores import sum_scores
from anisoscope.capture.splitting import Parts
from anisoscope.capture.vectors import RunningStack
from anisoscope.errors import AnisoscopeError, MeasureError
from anisoscope.models.families import ROTATING

Means = dict[tuple[str, int, Kind], tuple[Tensor, Tensor]]
"""(stack, layer, kind) → mean scaled query and mean key [head, head_dim], repeated for heads that share keys."""
Stages = dict[tuple[projections.Side, Stage], Tensor]
"""(`query` or `key`, stage) → tensor [sequence, head, token, dim]."""
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
    """Describe an error in a few words, as the reason why something could not be read."""
    if isinstance(error, AnisoscopeError):
        return error.got
    name = type(error).__name__
    words = " ".join(str(error).split())[:120]
    if not words:
        return name
    return f"{name}: {words}"


class Heads:
    """Reads the attention calls of a `Tap` (`capture.tap`) and hands on what was asked for."""

    def __init__(self, tap: Any, of_rows: dict[str, Any]) -> None:
        """Prepare to read the attention calls that `tap` sees; `of_rows` are options of `attention_rows`."""
        self.tap = tap
        self.of_rows = of_rows
        # Sites of the running forward call: of calls through the attention interface, and of others.
        self.served: set[Site] = set()
        self.off_interface: set[Site] = set()
        self.read: dict[Any, tuple[Any, Any, Masking]] = {}
        self.sources: dict[nn.Module, projections.Source] = {}
        self.crossing = {
            m.multihead_attn
            for m in tap.names
            if isinstance(m, nn.TransformerDecoderLayer)
        }

    def hook_projections(self) -> None:
        """Hook the projections of attention modules, to read queries and keys before the attention interface."""
        stacks = self.tap.stacks
        names = self.tap.names
        rotary = {stacks[m] for m in names if is_rotary(m) or hasattr(m, "rotary_dim")}
        for module in names:
            contains_attention = any(is_attention(child) for child in module.children())
            if not is_attention(module) or contains_attention:
                continue
            stack = stacks[module]
            tokens_first = stack in self.tap.turned
            self.sources[module] = projections.hook_projections(
                module, stack in rotary, self.tap.hook, tokens_first=tokens_first
            )

    def begin(self) -> None:
        """Forget the attention calls of the previous forward call; runs before each forward call."""
        self.served.clear()
        self.off_interface.clear()
        self.read.clear()

    def look(self, call: Call, *, off_interface: bool = False) -> Tensor | None:
        """Read one attention call and pass what was asked for (queries, keys, rows …) to the tap's receiver.

        If the call cannot be read, the attention of this layer is left out with a reason, and the model runs on.

        off_interface   whether the call did not go through transformers' attention interface

        Returns an output of attention to use instead of the model's own, or None.
        """
        at = self._make_site(call, off_interface)
        try:
            return self._check_and_emit(call, at, off_interface)
        # Whatever goes wrong in reading is no reason to stop the user's model.
        except Exception as error:
            if self.tap.must_raise(error):
                raise
            self.tap.refuse(
                at("attention").place,
                f"in {type(call.module).__name__}: {explain(error)}",
            )
            return None

    def note_trouble(self, module: nn.Module, where: str, error: Exception) -> None:
        """Note that a torch function called by `module` could not be read, as the reason if its attention is missing.

        where   what could not be read, in words
        error   what was raised
        """
        if self.tap.must_raise(error):
            raise error
        self.tap.running[self.tap.stacks[module]].trouble = f"{where}: {explain(error)}"

    def _make_site(self, call: Call, off_interface: bool) -> Callable[..., Site]:
        """Return a function from the name of a quantity (`query`, `attention` …) to its `Site` in this attention call.

        A site names the stack, the layer, self- or cross-attention, and the quantity. `off_interface`: the model calls
        torch's attention itself, so that its modules do not say which of the two it is.
        """
        stack = self.tap.stacks[call.module]
        path = self.tap.names[call.module]
        crossing = call.module in self.crossing or any(part in path for part in CROSS)
        crossing |= not CROSS_PARTS.isdisjoint(path.split("."))
        crossing |= off_interface and call.query.shape[2] != call.key.shape[2]
        kind: Kind = "cross" if crossing else "self"
        return partial(Site, stack, self.tap.running[stack].layer, kind=kind)

    def _check_and_emit(
        self, call: Call, at: Callable[..., Site], off_interface: bool
    ) -> Tensor | None:
        """Pass on what was asked for of an attention call, unless the call must be left out.

        at              returns the site of this call for a quantity
        off_interface   whether the call did not go through transformers' attention interface

        Returns an output of attention to use instead of the model's own, or None.
        """
        tap = self.tap
        stack = tap.stacks[call.module]
        # Counted before any decision: a call that is left out on purpose was seen all
        # the same.
        tap.running[stack].looks += 1
        site = at("attention")
        windows = self._count_windows(call)
        source = self.sources.get(call.module) or projections.Source("raw")

        stages: Stages | None = None
        if tap.split is not None and tap.is_asked_for(site):
            # Before anything is decided: all processes must ask for the same tensors.
            call, stages = self._join_heads(tap.split, call, source)

        if self._must_leave_out(site, call, windows, off_interface):
            return None
        if not tap.is_asked_for(site):
            # The hooks on projections have kept outputs of this layer too, which nobody will read.
            source.seen.clear()
            tap.note_looked_at()
            return None

        real = self._find_real_queries(stack, call)
        # What is computed from here on is attention too, but not the model's.
        with tap.counting.pause():
            if not off_interface:
                call = self._share_masking(call)
            if stages is None:
                stages = source.stages(call)
            return self._emit_quantities(call, at, stages, real, windows)

    def _must_leave_out(
        self, site: Site, call: Call, windows: int, off_interface: bool
    ) -> bool:
        """Return whether an attention call is left out: its layer was refused before or is now, or it was seen already.

        The arguments are those of `_is_refused`.
        """
        if site.place in self.tap.refused:
            return True
        # A call off the interface may be a part of one that the interface has shown already.
        if off_interface and site in self.served:
            return True
        return self._is_refused(site, call, windows, off_interface)

    def _find_real_queries(self, stack: str, call: Call) -> Tensor | None:
        """Return which queries of a call are real tokens [sequence, query]; None: all, or it is not known."""
        real: Tensor | None = self.tap.real.get(stack)  # [sequence, token]
        # In cross-attention, the mask may be that of another stack.
        if real is not None and real.shape[1] != call.query.shape[2]:
            return None
        return real

    def _join_heads(
        self, parts: Parts, call: Call, source: projections.Source
    ) -> tuple[Call, Stages]:
        """Return a call with the heads of all processes of tensor parallelism, and its queries and keys by stage.

        source   the projected queries and keys of the heads that this process holds
        """
        with self.tap.counting.pause(), entry_points.suspend():
            own = source.stages(call)
            whole = parts.join_call(call, with_output=self.tap.proof is not None)
            # These are joined already; asking the other processes again would cost
            # another transfer.
            at_interface = {id(call.query): whole.query, id(call.key): whole.key}
            stages: Stages = {}
            for (name, stage), x in own.items():
                joined = at_interface.get(id(x))
                if joined is None:
                    joined = parts.join_heads_of(call.module, x)
                stages[name, stage] = joined
        return whole, stages

    def _share_masking(self, call: Call) -> Call:
        """Return the call with its mask already read; layers that share the mask read it once."""
        bias = call.settings.get("position_bias")
        window = call.settings.get("sliding_window")
        sequences, _, queries, _ = call.query.shape
        shape = (sequences, queries, call.key.shape[2])
        causality = (
            call.settings.get("is_causal"),
            getattr(call.module, "is_causal", None),
            call.backend,
        )
        # Everything that `Masking.read` looks at. Masks are compared by identity: comparing numbers costs a pass.
        key = (id(call.mask), id(bias), shape, window, causality)
        if key not in self.read:
            # Mask and bias are kept too, so that no other tensor gets their id.
            self.read[key] = (call.mask, bias, call.read_masking())
        _, _, masking = self.read[key]
        return replace(call, known=masking)

    def _emit_quantities(
        self,
        call: Call,
        at: Callable[..., Site],
        stages: Stages,
        real: Tensor | None,
        windows: int,
    ) -> Tensor | None:
        """Compute the requested quantities of one attention call (queries, keys, scores, …) and pass each to the tap.

        at        returns the site (layer and quantity) under which a quantity of this call is recorded
        stages    queries and keys at each stage that is known (`capture.projections.Source`)
        real      which queries are real tokens [sequence, query]; None: all
        windows   into how many windows each sequence is split

        Returns an output of attention to use instead of the model's own, or None. MeasureError if keys were asked for,
        and there are more of them than positions.
        """
        tap = self.tap
        wanted = tap.wanted

        def emit(site: Site, value: Any) -> None:
            """Pass a value to the receiver; if attention ran in windows, its windows are joined to sequences first."""
            if windows > 1:
                value = _merge_windows(value, windows)
            tap.emit(site, value)

        self._check_keys(call, at)
        self._emit_heads(call, at, stages, emit)
        if tap.on_call is not None and windows == 1:
            tap.on_call(at("attention"), call)
        stands_in = self._may_replace_output(call)
        columns = "extremes" in wanted
        # For a proof the rows are computed with the output, whatever was asked for:
        # softmax(scores) · values is what can be compared with the model.
        rows: dict[str, Tensor] = {}
        if tap.proof is not None:
            rows = self._compute_rows_with_output(call, real, columns)
            if not self._is_verified(tap.proof, call, at("attention"), rows, real):
                return None
        elif wanted & {"attention", "centred", "extremes"}:
            rows = self._compute_rows(call, real, value=stands_in, columns=columns)
        # It is no statistic of rows, and must not be passed on as one.
        output = rows.pop("output", None)  # [sequence, query, head, value_dim]
        self._emit_rows(call, at, rows, real, emit)
        if stands_in and output is not None and is_defined(rows):
            return output
        return None

    def _may_replace_output(self, call: Call) -> bool:
        """Return whether the output that follows from captured rows may be used instead of the model's own."""
        # The model's own output is of the heads of this process only.
        return (
            bool(self.tap.fused) and self.tap.split is None and is_plain_softmax(call)
        )

    def _emit_rows(
        self,
        call: Call,
        at: Callable[..., Site],
        rows: dict[str, Tensor],
        real: Tensor | None,
        emit: Callable[[Site, Any], None],
    ) -> None:
        """Pass on what was asked for of the attention rows of a call: their statistics, extremes, sums of logits.

        rows   statistics of the rows by name; what each key receives is taken out of them

        The other arguments are those of `_emit_quantities`; `emit(site, value)` passes a value to the receiver.
        """
        wanted = self.tap.wanted
        # What each key receives, [sequence, head, key]: no statistic of rows.
        by_key: dict[str, Tensor] = {}
        for name in ("mass", "seen"):
            if name in rows:
                by_key[name] = rows.pop(name)
        if "extremes" in wanted:
            emit(
                at("extremes"),
                by_key | {"query": call.query, "key": call.key, "value": call.value},
            )
        if "attention" in wanted:
            emit(at("attention"), rows)
        if "scores" in wanted:
            sums = sum_scores(
                call.query, call.key, call.masking, scale=call.scale, real=real
            )
            emit(at("scores"), sums)
        if "centred" in wanted:
            centred = self._compute_centred_rows(call, at("centred"), real)
            emit(at("centred"), {"plain": rows, **centred})

    def _check_keys(self, call: Call, at: Callable[..., Site]) -> None:
        """Raise MeasureError if keys or values were asked for, and there are more of them than positions."""
        positions = call.query.shape[2]
        keys = call.key.shape[2]
        quantities = {name.partition(".")[0] for name in self.tap.wanted}
        if (
            keys <= positions
            or at("key").kind != "self"
            or not quantities & {"key", "value"}
        ):
            return
        expected = f"one key per token in {type(call.module).__name__}, which --panel attention needs"
        cure = "in Python capture what needs no key per token: capture(model, ('query', 'attention'))"
        raise MeasureError(
            expected,
            f"{keys} keys for {positions} positions: some represent several tokens",
            cure,
        )

    def _emit_heads(
        self,
        call: Call,
        at: Callable[..., Site],
        stages: Stages,
        emit: Callable[[Site, Any], None],
    ) -> None:
        """Pass on the queries and keys of a call at each stage that was asked for, and its values.

        The arguments are those of `_emit_quantities`; `emit(site, value)` passes a value to the receiver.
        """
        wanted = self.tap.wanted
        for (name, stage), tensor in stages.items():
            if name in wanted or f"{name}.{stage}" in wanted:
                emit(at(name, stage), tensor)
        if "value" in wanted:
            emit(at("value"), call.value)

    def _compute_centred_rows(
        self, call: Call, site: Site, real: Tensor | None
    ) -> dict[str, dict[str, Tensor]]:
        """Compute the statistics of attention rows as they would be without the mean query, and without the mean key.

        real   which queries are real tokens [sequence, query]; None: all

        Returns {"query": statistics with the mean query subtracted, "key": statistics with the mean key subtracted}.
        """
        mean_query, mean_key = self._get_means(site, call)
        without_query = replace(call, query=call.query - mean_query)
        without_key = replace(call, key=call.key - mean_key)
        return {
            "query": self._compute_rows(without_query, real),
            "key": self._compute_rows(without_key, real),
        }

    def _compute_rows_with_output(
        self, call: Call, real: Tensor | None, columns: bool
    ) -> dict[str, Tensor]:
        """Compute the statistics of attention rows and, if possible, the `output` of attention that follows from them.

        real      which queries are real tokens [sequence, query]; None: all
        columns   also the weight that each key gets (`mass`) and how many queries see it (`seen`)
        """
        try:
            return self._compute_rows(call, real, value=True, columns=columns)
        except Exception as error:
            if self.tap.must_raise(error):
                raise
            # Values of an unknown layout do not fit the rows; the rows can be measured without them.
            return self._compute_rows(call, real, columns=columns)

    def _is_verified(
        self,
        proof: Proof,
        call: Call,
        site: Site,
        rows: dict[str, Tensor],
        real: Tensor | None,
    ) -> bool:
        """Return whether captured attention rows times values give the model's own output, and belong to this layer.

        If not, the attention of this layer is refused.

        proof   collects the errors found
        rows    statistics of the rows, with `output` if it could be computed
        real    which queries are real tokens [sequence, query]; None: all
        """
        name = type(call.module).__name__
        place = site.place
        if self.tap.positions.contradict(call.module, site):
            self.tap.refuse(
                place, f"{name}, which belongs to another block, was found there"
            )
            return False
        figures = None
        if "output" in rows:
            figures = compare_attention(call, rows["output"], rows["keys"], real)
        # Without an output to compare with, nothing speaks against the rows.
        if figures is None:
            proof.unheard.add(place)
            return True
        proof.attention[place] = figures
        error, limit = figures
        if error <= limit:
            return True
        self.tap.refuse(
            place,
            f"softmax(scores)·values is not the output of {name}, and by more than rounding",
        )
        return False

    def _get_means(self, site: Site, call: Call) -> tuple[Tensor, Tensor]:
        """Return the mean query and the mean key of this attention layer, for the variants of attention with a mean
        subtracted.

        They come from `tap.means`, which an earlier pass over the corpus measured. Their shapes are [head, 1, dim] and
        [key head, 1, dim], so that they can be subtracted from the queries and keys of the call. MeasureError if
        `tap.means` has no entry for this layer.
        """
        where = (site.stack, site.layer or 0, site.kind)
        if where not in self.tap.means:
            expected = (
                f"the mean query and key of {' '.join(map(str, where))} in tap.means"
            )
            raise MeasureError(
                expected,
                "none",
                "take them from measure.loop.measure_head_means, as run_pass does",
            )
        scaled_query, key = self.tap.means[where]
        # Means are repeated for the query heads that share a key head.
        shared = call.query.shape[1] // call.key.shape[1]
        # One mean for each key head again, as keys come at the interface.
        key = key[::shared]
        # Means are of scaled queries, so that they are the same however a model splits
        # the scale; the call has its own.
        query = (scaled_query / call.scale).to(call.query)
        return query.unsqueeze(1), key.to(call.key).unsqueeze(1)

    def _compute_rows(
        self,
        call: Call,
        real: Tensor | None,
        *,
        value: bool = False,
        columns: bool = False,
    ) -> dict[str, Tensor]:
        """Recompute the attention weights of a call, and return statistics of its rows, such as `entropy` (one row per
        query).

        The soft cap, the sinks and the scale of the call are applied. `attention_rows` lists the statistics.

        real      which queries are real tokens [sequence, query]; None: all
        value     also compute the output of attention (rows times values), as `output`
        columns   also sum over queries, for each key: the weight it gets (`mass`) and how many queries see it (`seen`)
        """
        options: dict[str, Any] = {
            "softcap": call.settings.get("softcap"),
            "sinks": call.settings.get("s_aux"),
        }
        options |= self.of_rows
        if value:
            options["value"] = call.value
        return attention_rows(
            call.query,
            call.key,
            call.masking,
            **options,
            scale=call.scale,
            real=real,
            columns=columns,
        )

    def _count_windows(self, call: Call) -> int:
        """Return into how many windows a call of windowed attention splits each sequence.

        1 if sequences are whole; 0 if the parts of the call are no complete windows of the sequences.
        """
        stack = self.tap.stacks[call.module]
        here: RunningStack = self.tap.running[stack]
        calls = len(call.query)
        queries = call.query.shape[2]
        # Not within a block, or one call a sequence: nothing is split.
        if not here.sequences or calls == here.sequences:
            return 1
        is_multiple = calls % here.sequences == 0
        covers_all = is_multiple and calls * queries == here.sequences * here.positions
        is_square = queries == call.key.shape[2]
        # Padding would not fall on the borders of windows.
        if not covers_all or not is_square or stack in self.tap.real:
            return 0
        return calls // here.sequences

    def _is_refused(
        self, site: Site, call: Call, windows: int, off_interface: bool
    ) -> bool:
        """Return whether an attention call must be left out, and note the reason.

        It must if it sees parts of sequences that are no complete windows, or if it is the second call in its block.
        If attention was asked for by name, nothing is left out here: a second call is an error later.

        windows   into how many windows each sequence is split; 0: the parts are no complete windows
        """
        earlier = self.off_interface if off_interface else self.served
        is_second = self.tap.inside and site in earlier
        earlier.add(site)
        is_optional = bool(self.tap.optional & self.tap.of_heads)
        if not is_optional or (windows and not is_second):
            return False
        why = "in parts of a sequence that are not complete windows"
        if is_second:
            why = "several times in one block"
        self.tap.refuse(site.place, f"{type(call.module).__name__} computes it {why}")
        return True


def is_plain_softmax(call: Call) -> bool:
    """Return whether a call computes softmax(scores) · values and nothing else, so that its output can be replaced."""
    drops = float(call.settings.get("dropout") or 0.0) > 0
    # In 16 bits, or on an accelerator, the model's own kernel rounds in another way.
    exact = call.query.device.type == "cpu" and call.query.dtype.itemsize >= 4
    return call.backend in STOOD_IN_FOR and exact and not drops


def is_defined(rows: dict[str, Tensor]) -> bool:
    """Return whether every row of attention sees at least one key and has a finite entropy.

    rows   statistics of attention rows [sequence, head, query], by name
    """
    return bool((rows["keys"] > 0).all() and rows["entropy"].isfinite().all())


def _merge_windows(value: Any, windows: int) -> Any:
    """Combine captured values of windows into values of the sequences that they belong to.

    value     a tensor [sequence · window, head, token, …], or such tensors by name
    windows   how many windows each sequence has

    Axes of tokens are joined; sums over tokens are added up; row similarities are averaged.
    """
    if isinstance(value, Tensor):
        return _join_windows(value, windows)
    if not isinstance(value, dict):
        return value
    # What each key receives, with the queries, keys and values themselves: all have an axis of tokens.
    if "mass" in value:
        return {name: _join_windows(x, windows) for name, x in value.items()}
    # Rows as they are and with a mean subtracted: dictionaries of statistics.
    if "plain" in value:
        return {which: _merge_windows(rows, windows) for which, rows in value.items()}
    return _merge_statistics(value, windows)


def _merge_statistics(statistics: dict[str, Tensor], windows: int) -> dict[str, Tensor]:
    """Combine statistics of attention rows, or sums over them, of windows into those of whole sequences.

    The arguments are those of `_merge_windows`.
    """
    # Statistics of rows have a query axis, which is joined; sums over rows add up.
    axes_of_rows = 0
    if "entropy" in statistics:
        axes_of_rows = statistics["entropy"].dim()
    merged: dict[str, Tensor] = {}
    for name, x in statistics.items():
        # The bins of the histogram are a third axis, like that of queries.
        is_of_rows = x.dim() == axes_of_rows and name != "score_histogram"
        if name == "row_similarity":
            # NaN in windows with fewer than two real queries.
            merged[name] = _split_windows(x, windows).nanmean(1)
        elif is_of_rows:
            merged[name] = _join_windows(x, windows)
        else:
            merged[name] = _split_windows(x, windows).sum(1)
    return merged


def _split_windows(x: Tensor, windows: int) -> Tensor:
    """Reshape [sequence · window, …] to [sequence, window, …]."""
    return torch.unflatten(x, 0, (-1, windows))


def _join_windows(x: Tensor, windows: int) -> Tensor:
    """Reshape [sequence · window, head, token, …] to [sequence, head, window · token, …]."""
    return _split_windows(x, windows).transpose(1, 2).flatten(2, 3)
