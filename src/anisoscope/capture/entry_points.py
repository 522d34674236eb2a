"""Capture attention that does not go through transformers' attention interface.

Torch's own functions are watched: the fused product (SDPA), the fast paths of torch's layers, and matrix products
around a softmax. Their calls are handed on as those of the interface are. What is computed does not change.
"""

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import wraps
from string import ascii_uppercase
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from anisoscope.capture.masking import FAR_BELOW, Call

Look = Callable[[Call], object]
Failed = Callable[[nn.Module, str, Exception], object]
"""A function that is called if a call cannot be read, with its module, its entry point, and the error."""
SAME_SCALE = 0.25
"""A fitted scale this near to 1/√d or 1 (relative) is that: biases that go with the keys lead the fit astray."""
# How modules call their number of heads.
HEADS = (
    "num_heads",
    "num_attention_heads",
    "n_head",
    "heads",
)
RECENT = 8  # products of a module that are remembered until its softmax
PRODUCTS: tuple[tuple[Any, str], ...] = (
    *((torch, name) for name in ("matmul", "bmm", "baddbmm", "einsum", "softmax")),
    *((Tensor, name) for name in ("matmul", "__matmul__", "bmm", "baddbmm", "softmax")),
    (functional, "softmax"),
)
FUSED: tuple[tuple[Any, str], ...] = (
    (functional, "scaled_dot_product_attention"),
    (torch, "_native_multi_head_attention"),
    (torch, "_transformer_encoder_layer_fwd"),
)


_SUSPENDED: ContextVar[bool] = ContextVar("suspended", default=False)


def is_suspended() -> bool:
    """Return whether attention calls of this thread are ignored now, as parts of a call that is captured already."""
    return _SUSPENDED.get()


@contextmanager
def suspend() -> Iterator[None]:
    """Ignore attention calls of this thread inside a `with` block, as parts of a call that is captured already."""
    before = _SUSPENDED.set(True)
    try:
        yield
    finally:
        _SUSPENDED.reset(before)


@contextmanager
def watch_entry_points(
    modules: set[nn.Module], look: Look, failed: Failed | None = None
) -> Iterator[None]:
    """Call `look(call)` whenever one of `modules` computes attention by calling torch's functions directly.

    This lasts for a `with` block. If a call cannot be read, `failed(module, name of the function, error)` is called,
    and the model runs on; without `failed`, the error is raised.
    """
    watch = _Watch(modules, look, failed or _raise, threading.get_ident())
    originals = [
        (owner, name, owner.__dict__.get(name)) for owner, name in (*FUSED, *PRODUCTS)
    ]
    for owner, name, _ in originals:
        is_product = (owner, name) in PRODUCTS
        setattr(owner, name, watch.wrap(name, getattr(owner, name), is_product))
    try:
        yield
    finally:
        for owner, name, original in originals:
            if original is None:
                delattr(owner, name)  # it was inherited, and is again
            else:
                setattr(owner, name, original)


@dataclass
class _Product:
    """A product of two tensors that may be attention scores: `output` = scale · `query` `key`ᵀ (+ something)."""

    output: Tensor
    query: Tensor
    key: Tensor
    scale: float | None = None


@dataclass
class _Pending:
    """What a module has computed since its last attention: products, and the scores that went into a softmax."""

    module: nn.Module | None = None
    products: deque[_Product] = field(default_factory=lambda: deque(maxlen=RECENT))
    scores: Tensor | None = None
    source: _Product | None = None


def _raise(_module: nn.Module, _name: str, error: Exception) -> None:
    """Raise the error of a call that could not be read: used if no handler of failures is given."""
    raise error


class _Watch:
    """Watches torch's functions for attention of chosen modules, in one thread.

    Methods that are named after a torch function run after each call of that function.
    """

    def __init__(
        self, modules: set[nn.Module], look: Look, failed: Failed, thread: int
    ) -> None:
        """Watch `modules` in one thread: `look` gets their attention calls, `failed` the errors while one is read."""
        self.modules = modules
        self.look = look
        self.failed = failed
        self.thread = thread
        self.pending = _Pending()

    def wrap(
        self, name: str, function: Callable[..., Any], is_product: bool
    ) -> Callable[..., Any]:
        """Wrap a torch function so that its calls are read after they return.

        name         the name of the method of this class that reads them
        is_product   if it is one of `PRODUCTS`, which must be combined to give attention
        """
        read = getattr(self, name.strip("_"))

        @wraps(function)
        def watched(*given: Any, **named: Any) -> Any:
            """Run the wrapped function, then read its call if a watched module made it."""
            if threading.get_ident() != self.thread or _SUSPENDED.get():
                return function(*given, **named)
            # Functions that this one calls belong to the same call.
            with suspend():
                output = function(*given, **named)
                module = self._find_caller()
                if module is None:
                    return output
                if is_product and self.pending.module is not module:
                    # Products of another module are of no use any more.
                    self.pending = _Pending(module)
                try:
                    read(module, output, *given, **named)
                except Exception as error:
                    self.pending = _Pending()
                    self.failed(module, name.strip("_"), error)
            return output

        return watched

    def _find_caller(self) -> nn.Module | None:
        """Return the innermost module whose method is running now; None if it is not among the watched ones."""
        # 2: the caller of the wrapped function, beyond this method and `watched`.
        frame = sys._getframe(2)
        while frame is not None:
            if frame.f_code.co_varnames[:1] == ("self",):
                owner = frame.f_locals.get("self")
                # A softmax may be a module: torch's, and I-BERT's own.
                if (
                    isinstance(owner, nn.Module)
                    and "Softmax" not in type(owner).__name__
                ):
                    return owner if owner in self.modules else None
            frame = frame.f_back  # type: ignore[assignment]
        return None

    # ---- the fused product

    def scaled_dot_product_attention(
        self,
        module: nn.Module,
        output: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *rest: Any,
        **named: Any,
    ) -> None:
        """Pass a finished call of torch's fused product (SDPA) on to the capture."""
        names = ("attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
        given = dict(zip(names, rest, strict=False)) | named
        mask = given.get("attn_mask")
        if query.is_nested:
            mask, (query, key, value) = _pad_hidden([query, key, value])
            output = torch.nested.to_padded_tensor(output, 0.0)
        settings = {
            "scaling": given.get("scale"),
            "is_causal": bool(given.get("is_causal")),
        }
        self._pass_on(
            module, (query, key, value), mask, settings, "fused product", output
        )

    # ---- fast paths

    def native_multi_head_attention(
        self, module: nn.Module, output: Any, query: Tensor, *given: Any, **_: Any
    ) -> None:
        """Pass a finished call of the fast path of `nn.MultiheadAttention` on to the capture."""
        # In the order of torch's signature, in which key, value and the width come
        # first.
        heads, weight, bias, out_weight, out_bias, mask = given[3:9]
        mask_kind = given[11] if len(given) > 11 else None
        if isinstance(output, tuple):
            output = output[0]

        def finish(attended: Tensor) -> Tensor:
            """Compute the layer's output from the attention output of all heads, by the output projection."""
            return functional.linear(attended.flatten(2), out_weight, out_bias)

        self._pass_on_fast_path(
            module, query, heads, (weight, bias), (mask, mask_kind), output, finish
        )

    def transformer_encoder_layer_fwd(
        self, module: nn.Module, output: Tensor, x: Tensor, *given: Any
    ) -> None:
        """Pass a finished call of the fast path of `nn.TransformerEncoderLayer` on to the capture."""
        # In the order of torch's signature, after the width.
        heads, weight, bias, out_weight, out_bias, uses_gelu, norm_first, eps = given[
            1:9
        ]
        norm_1, norm_2 = given[9:11], given[11:13]
        linear_1, linear_2 = given[13:15], given[15:17]
        mask, mask_kind = given[17:19]

        def norm(y: Tensor, weights: tuple[Tensor, Tensor]) -> Tensor:
            """Apply one of the layer's norms."""
            return functional.layer_norm(y, weights[0].shape, *weights, eps)

        def feed_forward(y: Tensor) -> Tensor:
            """Apply the layer's feed-forward part."""
            activation = functional.gelu if uses_gelu else functional.relu
            return functional.linear(
                activation(functional.linear(y, *linear_1)), *linear_2
            )

        def finish(attended: Tensor) -> Tensor:
            """Compute the layer's output from the attention output of all heads.

            This takes the output projection, residuals, norms and the feed-forward part.
            """
            residual = torch.nested.to_padded_tensor(x, 0.0) if x.is_nested else x
            y = residual + functional.linear(attended.flatten(2), out_weight, out_bias)
            if norm_first:
                return y + feed_forward(norm(y, norm_2))
            y = norm(y, norm_1)
            return norm(y + feed_forward(y), norm_2)

        # The fast path does not show its queries and keys: they are projected again,
        # from what it projects.
        attended_to = norm(x, norm_1) if norm_first else x
        self._pass_on_fast_path(
            module,
            attended_to,
            heads,
            (weight, bias),
            (mask, mask_kind),
            output,
            finish,
        )

    def _pass_on_fast_path(
        self,
        module: nn.Module,
        x: Tensor,
        heads: int,
        projection: tuple[Tensor, Tensor],
        masking: tuple[Any, int | None],
        output: Tensor,
        finish: Callable[[Tensor], Tensor],
    ) -> None:
        """Compute the queries, keys and values of a fast path from the layer's input `x`, and pass the call on.

        projection   weight and bias of the joint projection of queries, keys and values
        masking      (mask, its kind in torch: it hides pairs of query and key (0), keys (1), or both (2))
        output       the output of torch's fast path
        finish       computes the layer's output from the attention output
        """
        seen = None
        mask, mask_kind = masking
        if x.is_nested:
            seen, (x,) = _pad_hidden([x.unsqueeze(1)])
            x = x.squeeze(1)
        if output.is_nested:
            output = torch.nested.to_padded_tensor(output, 0.0)
        projected = functional.linear(x, *projection).chunk(3, -1)
        q, k, v = [
            part.view(*part.shape[:2], heads, -1).transpose(1, 2) for part in projected
        ]
        if mask is not None:
            if mask_kind == 1:
                mask = mask[:, None, None, :]
            # A boolean mask of torch's layers says what is hidden.
            seen = ~mask if mask.dtype == torch.bool else mask
        self._pass_on(
            module, (q, k, v), seen, {"is_causal": False}, "fast path", output, finish
        )

    # ---- products around a softmax

    def matmul(
        self, module: nn.Module, output: Tensor, *given: Any, **named: Any
    ) -> None:
        """Take a matrix product for possible attention scores, or for attention weights times values."""
        self._read_product(
            module, output, _list_operands(given, named, "input", "other", "mat2")
        )

    bmm = matmul

    def baddbmm(
        self, module: nn.Module, output: Tensor, *given: Any, **named: Any
    ) -> None:
        """Take a batched product with an added term for possible attention scores, or for weights times values."""
        _, *batches = _list_operands(given, named, "input", "batch1", "batch2")
        self._read_product(module, output, batches, float(named.get("alpha", 1)))

    def _read_product(
        self,
        module: nn.Module,
        output: Tensor,
        pair: list[Any],
        scale: float | None = None,
    ) -> None:
        """Decide what a product of two tensors is: weights times values, or possible attention scores.

        It is weights times values if the first factor has the shape of the softmax before: this ends an attention call.
        Otherwise it is remembered, since a softmax of it may follow.

        pair    the two factors
        scale   the factor of their product; None: unknown
        """
        if len(pair) != 2 or not all(isinstance(x, Tensor) for x in pair):
            return
        a, b = pair
        if self.pending.scores is not None and _is_same_map(a, self.pending.scores):
            self._complete(module, b, output)
        # Products of matrices with weights have two axes, or factors with unequal numbers of axes.
        elif output.dim() > 2 and a.dim() == b.dim():
            self.pending.products.append(
                _Product(output, a, b.transpose(-1, -2), scale)
            )

    def einsum(
        self, module: nn.Module, output: Tensor, equation: Any, *operands: Any
    ) -> None:
        """Take an einsum of two tensors for attention scores or for weights times values, if its equation fits."""
        # It may also be given operands and lists of their axes.
        if not isinstance(equation, str):
            return
        if len(operands) == 1 and isinstance(operands[0], list | tuple):
            operands = tuple(operands[0])
        parsed = _parse_einsum(equation, list(operands))
        if parsed is None:
            return
        (first, second), result = parsed
        # The operands may be given in either order.
        orders = (
            (operands, (first, second)),
            (operands[::-1], (second, first)),
        )
        # Weights times values first, since their equation may look like that of scores.
        for factors, letters in orders:
            if self._read_weighted_values(module, output, factors, letters, result):
                return
        for (query, key), (of_query, of_key) in orders:
            axes = _find_scores(of_query, of_key, result)
            if axes is not None:
                query_axes, key_axes = axes
                query = _permute_to(query, of_query, query_axes)
                key = _permute_to(key, of_key, key_axes)
                self.pending.products.append(_Product(output, query, key))
                return

    def _read_weighted_values(
        self,
        module: nn.Module,
        output: Tensor,
        operands: tuple[Any, ...],
        letters: tuple[str, str],
        result: str,
    ) -> bool:
        """Pass an attention call on if an einsum multiplies attention weights (first operand) with values.

        Returns whether it does.

        letters   the letters of each operand's axes in the equation
        result    the letters of the output's axes
        """
        weights, values = operands
        of_weights, of_values = letters
        axes = _match_values(of_weights, of_values, result)
        scores = self.pending.scores
        if axes is None or scores is None or weights.shape != scores.shape:
            return False
        wanted = of_weights[:-1] + axes[-1]
        self._complete(
            module,
            _permute_to(values, of_values, axes),
            _permute_to(output, result, wanted),
        )
        return True

    def softmax(
        self, _module: nn.Module, _output: Any, *given: Any, **named: Any
    ) -> None:
        """Remember the scores that go into a softmax over the last axis, with the product that made them."""
        x, *rest = _list_operands(given, named, "input", "dim")
        if not rest or rest[0] not in (-1, x.dim() - 1):
            return
        for product in self.pending.products:
            if _is_same_map(product.output, x):
                self.pending.source = product
                self.pending.scores = x
                return

    def _complete(self, module: nn.Module, value: Tensor, output: Tensor) -> None:
        """Pass an attention call on when its weights have been multiplied with the values `value`, giving `output`.

        The scale is fitted if it is not known. What was added to the scores, beyond scale · q·k, is passed on as a
        mask. Nothing is passed on if the shapes are not those of attention.
        """
        # Whatever happens below, the next product begins a new attention.
        finished = self.pending
        self.pending = _Pending()
        source = finished.source
        assert source is not None and finished.scores is not None
        heads = _count_heads(module, finished.scores)
        parts = _split_parts((source.query, source.key, value, finished.scores), heads)
        if parts is None:
            return
        q, k, v, scores = parts
        # Queries may be shared by all sequences or heads.
        q = q.expand(*scores.shape[:2], *q.shape[2:])
        dim = q.shape[-1]
        scale = source.scale
        # It scales its queries before the product.
        if isinstance(module, nn.MultiheadAttention):
            scale = dim**-0.5
            q = q * dim**0.5
        # In 16 bits, the difference below would be mostly rounding.
        q, k, scores = _to_float32(q), _to_float32(k), _to_float32(scores)
        product = q @ k.transpose(2, 3)  # [sequence, head, query, key]
        # Hidden pairs have no scale · q·k left in their numbers, and must not take part
        # in the fit.
        hidden = scores < scores.amax(-1, keepdim=True) - FAR_BELOW
        if not scale:
            scale = _fit_scale(product, scores, hidden, dim)
        added = (scores - scale * product).masked_fill(
            hidden, torch.finfo(scores.dtype).min
        )
        own_output = None
        if output.dim() in (3, 4):
            own_output = _to_four_axes(output, heads)
        settings = {"scaling": scale, "is_causal": False}
        self._pass_on(module, (q, k, v), added, settings, "products", own_output)

    def _pass_on(
        self,
        module: nn.Module,
        heads: tuple[Tensor, Tensor, Tensor],
        mask: Any,
        settings: dict[str, Any],
        by: str,
        output: Tensor | None,
        finish: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        """Pass an attention call on to the capture.

        heads      queries, keys and values [sequence, head, token, dim], or without the head axis
        mask       as for the attention interface
        settings   keyword arguments as for the attention interface
        by         how attention was computed, such as `products`
        output     the model's own output of attention [sequence, head, query, dim]; with `finish`, that of the layer
        finish     computes the layer's output from the attention output; None: there is nothing to compute
        """
        q, k, v = heads
        if q.dim() not in (3, 4):
            return
        if mask is not None:
            # [sequence, query, key] of attention without heads; other masks lack their first axes.
            if q.dim() == mask.dim() == 3:
                mask = mask.unsqueeze(1)
            else:
                missing = 4 - mask.dim()
                mask = mask[(None,) * missing]
        q, k, v = [_add_head_axis(x) for x in (q, k, v)]
        if output is not None and finish is None:
            output = _add_head_axis(output).transpose(1, 2)
        self.look(
            Call(
                module,
                q,
                k,
                v,
                mask,
                settings,
                by=by,
                result=lambda: output,
                finish=finish,
            )
        )


def _count_heads(module: nn.Module, scores: Tensor) -> int:
    """Return the number of attention heads: the size of the head axis of the scores, or else the module's attribute."""
    if scores.dim() == 4:
        return scores.shape[1]
    for name in HEADS:
        heads = getattr(module, name, None)
        if isinstance(heads, int):
            return heads
    return 1


def _can_have_heads(x: Tensor, heads: int) -> bool:
    """Return whether a tensor is [sequence, head, token, dim], or [sequence · head, token, dim]."""
    if x.dim() == 3:
        return len(x) % heads == 0
    return x.dim() == 4


def _add_head_axis(x: Tensor) -> Tensor:
    """Reshape [sequence, token, dim] to [sequence, 1, token, dim]; return a tensor with four axes unchanged."""
    if x.dim() == 4:
        return x
    return x.unsqueeze(1)


def _list_operands(
    given: tuple[Any, ...], named: dict[str, Any], *names: str
) -> list[Any]:
    """Return the arguments of a call in order: those given by position, then those of `names` given by name."""
    return [*given, *(named[name] for name in names if name in named)]


def _is_same_map(x: Tensor, scores: Tensor) -> bool:
    """Return whether two tensors can be one attention map [sequence, head, query, key], by their shapes."""
    return x.shape[-2:] == scores.shape[-2:] and x.numel() == scores.numel()


def _to_four_axes(x: Tensor, heads: int) -> Tensor:
    """Reshape [sequence · head, token, dim] to [sequence, head, token, dim]; return four axes unchanged."""
    if x.dim() == 4:
        return x
    return x.reshape(-1, heads, *x.shape[1:])


def _split_parts(parts: tuple[Tensor, ...], heads: int) -> list[Tensor] | None:
    """Return queries, keys, values and scores as [sequence, head, token, dim]; None if their shapes do not fit.

    parts   queries, keys, values and scores, whose axes of sequences and heads may be one
    """
    if not all(_can_have_heads(x, heads) for x in parts):
        return None
    split = [_to_four_axes(x, heads) for x in parts]
    query, scores = split[0], split[3]
    for of_query, of_scores in zip(query.shape[:2], scores.shape[:2], strict=True):
        if of_query not in (1, of_scores):
            return None
    return split


def _to_float32(x: Tensor) -> Tensor:
    """Convert a tensor of 8 or 16 bits to float32; return others unchanged."""
    if x.dtype.itemsize < 4:
        return x.float()
    return x


def _fit_scale(product: Tensor, scores: Tensor, hidden: Tensor, dim: int) -> float:
    """Fit the scale of attention scores (scores ≈ scale · q·k) by least squares inside rows, over visible keys.

    product, scores   q·k, and the scores [sequence, head, query, key]
    hidden            which pairs are hidden, in the same shape
    dim               width of a head

    Returns exactly 1/√dim or 1 if the fit differs from it by less than `SAME_SCALE` (relative).
    """
    # In a row that sees nothing, no score is far below the others: all are low.
    seen = ~hidden & (scores.amax(-1, keepdim=True) > -FAR_BELOW)
    n = seen.sum(-1, keepdim=True).clamp(min=1)

    def centre(values: Tensor) -> Tensor:
        """Subtract the mean over the visible keys of each row; hidden pairs are 0."""
        of_seen = torch.where(seen, values, 0.0)
        return torch.where(seen, of_seen - of_seen.sum(-1, keepdim=True) / n, 0.0)

    x = centre(product)
    y = centre(scores)
    fitted = float(
        (x * y).sum() / x.square().sum().clamp(min=torch.finfo(torch.float32).tiny)
    )
    # The fit is off by rounding, and by what was added to the scores.
    for usual in (dim**-0.5, 1.0):
        if abs(fitted - usual) <= SAME_SCALE * usual:
            return usual
    return fitted


def _parse_einsum(
    equation: str, tensors: list[Any]
) -> tuple[tuple[str, str], str] | None:
    """Return ((axes of the first operand, of the second), axes of the result) of an einsum, one letter per axis.

    None if it has another form.
    """
    inputs, _, result = equation.replace(" ", "").partition("->")
    letters = inputs.split(",")
    if len(letters) != 2 or len(tensors) != 2:
        return None
    if "..." in equation:
        letters, result = _name_ellipses(letters, result, tensors)
    has_repeats = any(len(set(axes)) < len(axes) for axes in (*letters, result))
    if has_repeats or len(result) <= 2:
        return None
    return (letters[0], letters[1]), result


def _name_ellipses(
    letters: list[str], result: str, tensors: list[Tensor]
) -> tuple[list[str], str]:
    """Return the axes of the operands, and of the result, with a letter for each axis that `...` stands for."""
    spare = "".join(x for x in ascii_uppercase if x not in "".join([*letters, result]))
    named: list[str] = []
    for axes, tensor in zip(letters, tensors, strict=True):
        width = tensor.dim() - len(axes.replace("...", ""))
        # Axes are matched from the right.
        named.append(spare[len(spare) - width :])
    replaced = [
        axes.replace("...", names) for axes, names in zip(letters, named, strict=True)
    ]
    return replaced, result.replace("...", max(named, key=len))


def _find_scores(of_query: str, of_key: str, result: str) -> tuple[str, str] | None:
    """Return (axes of queries, axes of keys) if an einsum multiplies queries with keys: batch, token, dim, as letters.

    None if it has another form: further axes of one of them, or several that are summed over.

    of_query, of_key   axes of the operands
    result             axes of the result: batch, query, key
    """
    batch, row, column = result[:-2], result[-2], result[-1]
    summed = [x for x in of_query if x in of_key and x not in result]
    if len(summed) != 1:
        return None
    inner = summed[0]
    are_queries = {row, inner} <= set(of_query) <= {*batch, row, inner}
    are_keys = {column, inner} <= set(of_key) <= {*batch, column, inner}
    if not are_queries or not are_keys or not set(batch) <= {*of_query, *of_key}:
        return None
    return batch + row + inner, batch + column + inner


def _match_values(of_weights: str, of_values: str, result: str) -> str | None:
    """Return the axes (letters) of the values as batch, key, dim, if an einsum multiplies attention weights with
    values.

    None if it does not. Each argument holds the letters of one tensor's axes in the equation; weights end in row and
    key.
    """
    batch, row, key = of_weights[:-2], of_weights[-2], of_weights[-1]
    dims = [x for x in of_values if x not in of_weights]
    sums_over_keys = key in of_values and key not in result
    keeps_rows = row in result and row not in of_values
    if not sums_over_keys or not keeps_rows or len(dims) != 1:
        return None
    if set(result) != {*batch, row, *dims}:
        return None
    return "".join((*batch, key, *dims))


def _permute_to(x: Tensor, letters: str, wanted: str) -> Tensor:
    """Permute a tensor from the axes `letters` to the axes `wanted`; axes that it lacks get length 1."""
    order = [letters.index(letter) for letter in wanted if letter in letters]
    x = x.permute(*order)
    return x[tuple(slice(None) if letter in letters else None for letter in wanted)]


def _pad_hidden(nested: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Pad nested tensors (sequences of different lengths) with zeros.

    Returns (which keys are no padding [sequence, 1, 1, key], the padded tensors [sequence, head, token, dim]).
    """
    lengths = torch.tensor([x.shape[-2] for x in nested[-1].unbind()])
    padded = [torch.nested.to_padded_tensor(x, 0.0) for x in nested]
    seen = torch.arange(int(lengths.max())) < lengths[:, None]
    return seen[:, None, None, :].to(padded[0].device), padded
