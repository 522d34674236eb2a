"""Find which tokens the head of a classifier reads, by asking the model itself.

No list of names says it: a model reads its first token, its last real one, the last before an end-of-text mark, the
mean or the maximum of all, or something else. So the last hidden states of every stack are made variables, and the
logits are differentiated with respect to them: a token is read if its states have a gradient, and by how much says how.
Only the head is differentiated; the blocks run as they always do.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from anisoscope.axes import At
from anisoscope.batch import Batch, Stream
from anisoscope.capture.vectors import find_output, is_same_memory
from anisoscope.errors import AnisoscopeError, MeasureError
from anisoscope.models.blocks import TokenPositions, find_blocks, has_tokens_first
from anisoscope.models.devices import is_out_of_memory
from anisoscope.models.modes import evaluation_mode
from anisoscope.sums.classes import pool_sequences

WAYS: tuple[At, ...] = ("first", "last", "mean", "max")
"""Ways of making one vector of a sequence, in the order in which they are tried."""
EQUAL = 1e-3
"""Gradients of a mean differ by rounding alone; those of any other weights, such as learnt ones, by more than this."""


@dataclass(frozen=True)
class HeadReading:
    """Which tokens a classifier's head reads of the sequences of one batch.

    stack     the stack whose last hidden states it reads
    at        how it reduces them to one vector, the same in all sequences; None: in another way
    weights   [sequence, token] float64: share of each token in what is read; each row adds up to 1
    mask      [sequence, token]: the real tokens of that stack
    logits    [sequence, class], of the same call
    """

    stack: str
    at: At | None
    weights: Float[Tensor, "sequence token"]
    mask: Bool[Tensor, "sequence token"]
    logits: Float[Tensor, "sequence class"]

    def pool(
        self, x: Float[Tensor, "sequence token dim"]
    ) -> Float[Tensor, "sequence dim"]:
        """Reduce each sequence to one vector in float64, as the head does."""
        x = x[:, : self.mask.shape[1]]
        if self.at is not None:
            return pool_sequences(x, self.mask.to(x.device), self.at)
        weights = self.weights.to(x.device)
        # Tokens of weight 0 may hold NaN, which a product with 0 would keep.
        read = torch.where(weights.unsqueeze(-1) > 0, x, 0.0).double()
        return torch.einsum("st,std->sd", weights, read)


class _LastStates:
    """Makes the last hidden states of every stack variables, so that logits can be differentiated with respect to them.

    These are the outputs of the last block, and what norms after it make of them.
    """

    def __init__(self, model: nn.Module, hooks: ExitStack) -> None:
        """Hook every block of the model, and every norm outside of blocks; `hooks` removes the hooks in the end."""
        self.variables: dict[str, list[Tensor]] = {}
        self.handed_on: dict[str, Tensor] = {}
        self.turned: set[str] = set()
        inside: set[nn.Module] = set()
        # Every block, since which one is the last of its stack is known only after the
        # call: each one's variable replaces that of the block before.
        for stack, blocks in find_blocks(model).items():
            for block in blocks:
                inside.update(block.modules())
                if has_tokens_first(model, block):
                    self.turned.add(stack)
                hooks.callback(block.register_forward_pre_hook(self._enter).remove)
                hooks.callback(
                    block.register_forward_hook(self._make_leave_hook(stack)).remove
                )
        for module in model.modules():
            # By the name of the class: the norms of transformers' models have no class
            # in common.
            if module not in inside and "Norm" in type(module).__name__:
                hooks.callback(
                    module.register_forward_hook(self._replace_norm_output).remove
                )

    def _enter(self, _block: nn.Module, _args: Any) -> None:
        """Turn gradients off before a block runs; only the classifier's head is differentiated."""
        torch.set_grad_enabled(False)

    def _make_leave_hook(self, stack: str) -> Callable[..., Any]:
        """Return a hook that turns gradients on after a block and replaces its output by a variable."""

        def leave(block: nn.Module, _args: Any, output: Any) -> Any:
            """Replace the block's output vectors by a new variable."""
            torch.set_grad_enabled(True)
            x = find_output(block, output)
            variable, copied = self._make_variable(x)
            # Taken out first, so that the stack that ran last is the last of the dictionary.
            self.variables.pop(stack, None)
            self.variables[stack] = [variable]
            self.handed_on[stack] = copied
            return _replace_vectors(output, x, copied)

        return leave

    def _replace_norm_output(
        self, _norm: nn.Module, args: tuple[Any, ...], output: Any
    ) -> Any:
        """Replace the output of a norm after the last block by a variable too.

        The norm scales every token on its own, so a token's weight in a mean is its weight after the norm.
        """
        if (
            not args
            or not isinstance(args[0], Tensor)
            or not isinstance(output, Tensor)
        ):
            return None
        for stack, last in self.handed_on.items():
            # Known by memory: a norm is not named after the stack that it ends, and its
            # input may be a view of the block's output.
            if is_same_memory(last, args[0]):
                variable, copied = self._make_variable(output)
                self.variables[stack].append(variable)
                return copied
        return None

    def _make_variable(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return a variable with the values of `x`, and a copy to pass on, which the model may overwrite."""
        variable = x.detach().requires_grad_()
        return variable, variable.clone()


def _replace_vectors(output: Any, old: Tensor, new: Tensor) -> Any:
    """Return the output of a block with its vectors `old` replaced by `new`; the rest of the output stays.

    output   a tensor, or a tuple, list or mapping that holds one
    """
    if output is old:
        return new
    if isinstance(output, Mapping):
        for name, value in output.items():
            if value is old:
                output[name] = new  # type: ignore[index]
        return output
    # Blocks put their vectors first; attention weights or caches may follow.
    if isinstance(output, list | tuple) and output:
        first = _replace_vectors(output[0], old, new)
        return type(output)([first, *output[1:]])
    return output


def get_logits(output: Any) -> Tensor:
    """Return the logits in a classifier's output: its entry `logits`, the first of a tuple, or a tensor.

    MeasureError for an output without them.
    """
    logits = getattr(output, "logits", None)
    if logits is None and isinstance(output, Mapping):
        logits = output.get("logits")
    if logits is None and isinstance(output, list | tuple) and output:
        logits = output[0]
    if logits is None:
        # A plain torch module returns the tensor itself.
        logits = output
    if isinstance(logits, Tensor) and logits.is_floating_point():
        return logits
    raise MeasureError(
        "a classifier that puts out logits",
        type(output).__name__,
        "name a model with a head",
    )


@contextmanager
def _watch_last_states(model: nn.Module) -> Iterator[_LastStates]:
    """Turn the last hidden states of each forward call into variables, inside a `with` block."""
    before = torch.is_grad_enabled()
    with ExitStack() as hooks:
        try:
            yield _LastStates(model, hooks)
        finally:
            torch.set_grad_enabled(before)


def read_tokens(model: nn.Module, batch: Batch) -> HeadReading:
    """Find which tokens of a batch the classifier's head reads, from the gradient of its logits.

    MeasureError if its logits are not of whole sequences, or do not depend on the last hidden states of any stack.
    """
    name = type(model).__name__
    try:
        with (
            evaluation_mode(model),
            torch.enable_grad(),
            _watch_last_states(model) as states,
        ):
            logits = get_logits(model(**batch.inputs))
            if logits.dim() != 2:
                expected = f"a head of {name} that names a class for each sequence"
                raise MeasureError(
                    expected,
                    f"logits of shape {tuple(logits.shape)}",
                    "name a classifier of sequences",
                )
            gradients = _differentiate(logits, states)
    except AnisoscopeError:
        raise
    except (RuntimeError, NotImplementedError) as error:
        if is_out_of_memory(error):
            raise
        got = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
        raise MeasureError(
            f"a head of {name} that can be differentiated", got, "load it in float32"
        ) from error
    masks = TokenPositions(model).streams(batch)
    # The stack that ran last comes first: of an encoder–decoder the decoder.
    for stack, of_stack in reversed(gradients.items()):
        total = sum(gradient.detach().double().abs() for gradient in of_stack)
        if isinstance(total, Tensor) and total.dim() == 3 and bool(total.any()):
            mask = find_real_tokens(masks, stack).to(total.device)
            return _decide_reading(stack, total, mask, logits.detach(), name)
    expected = f"logits of {name} that depend on the last hidden states"
    raise MeasureError(
        expected,
        "no gradient there",
        "name a classifier whose head reads its last block",
    )


def _differentiate(logits: Tensor, states: _LastStates) -> dict[str, list[Tensor]]:
    """Return the gradients of the logits with respect to the last hidden states of each stack that they depend on.

    They are [sequence, token, dim], one for each variable of the stack.
    """
    gradients: dict[str, list[Tensor]] = {stack: [] for stack in states.variables}
    # A head that reads no last state (or runs without gradients) has no graph.
    if not logits.requires_grad:
        return gradients
    # A random mixture of the logits: that its gradient vanishes at a token by chance has no probability.
    draw = torch.Generator().manual_seed(0)
    mixture = torch.randn(logits.shape, generator=draw).to(logits.device)
    stacks: list[str] = []
    variables: list[Tensor] = []
    for stack, of_stack in states.variables.items():
        stacks += [stack] * len(of_stack)
        variables += of_stack
    # One call for all: a second one would need the graph that the first has freed.
    found = torch.autograd.grad(
        (logits.float() * mixture).sum(), variables, allow_unused=True
    )
    for stack, gradient in zip(stacks, found, strict=True):
        if gradient is None:
            continue
        if stack in states.turned:
            # [token, sequence, dim] → [sequence, token, dim]
            gradient = gradient.transpose(0, 1)
        gradients[stack].append(gradient)
    return gradients


def find_real_tokens(streams: Mapping[str, Stream], stack: str) -> Tensor:
    """Return which tokens of a stack (encoder, decoder) are real [sequence, token].

    streams   {stack: which of its positions are real}; a single entry counts for every stack

    MeasureError if there are several streams, and none is of this stack.
    """
    if stack not in streams and len(streams) == 1:
        return next(iter(streams.values())).mask
    if stack not in streams:
        expected = f"a batch whose `streams` say which tokens of the {stack} are real"
        raise MeasureError(
            expected,
            ", ".join(streams) or "no streams",
            f"add an entry named {stack!r} to `streams`",
        )
    return streams[stack].mask


def _decide_reading(
    stack: str, gradient: Tensor, mask: Tensor, logits: Tensor, name: str
) -> HeadReading:
    """Decide which tokens the classifier's head reads in a batch, from the gradients of its logits.

    stack      the stack that the head reads
    gradient   absolute gradients with respect to the last hidden states [sequence, token, dim]
    mask       real tokens [sequence, token]
    logits     of the same call [sequence, class]
    name       of the model, for errors

    MeasureError if the gradients do not have the shape of the tokens.
    """
    tokens = mask.shape[1]
    # Models may fill up to a multiple of their window (Longformer).
    if gradient.shape[1] > tokens and not bool(gradient[:, tokens:].any()):
        gradient = gradient[:, :tokens]
    if gradient.shape[:2] != mask.shape:
        expected = f"last hidden states of {name} for {tuple(mask.shape)} tokens"
        raise MeasureError(
            expected,
            str(tuple(gradient.shape)),
            "let the model return the states of all tokens",
        )
    of_token = gradient.sum(-1)
    # A head that is saturated at a sequence has no gradient there, and shows nothing.
    is_flat = of_token.sum(1) == 0
    at = _find_way(gradient[~is_flat], mask[~is_flat])
    # Other sequences of the batch show how the head reads.
    if bool(is_flat.any()):
        of_token = torch.where(is_flat[:, None], _guess_shares(at, mask), of_token)
    weights = of_token / of_token.sum(1, keepdim=True)
    return HeadReading(stack, at, weights, mask, logits)


def _find_way(gradient: Tensor, mask: Tensor) -> At | None:
    """Find how a classifier's head reads sequences: by the `first` or `last` token, or the `mean` or `max` of all.

    It is the first of these that fits the gradients of all sequences; None if none does.

    gradient   absolute gradients [sequence, token, dim]
    mask       real tokens [sequence, token]
    """
    for way in WAYS:
        fits = True
        for of_tokens, real in zip(gradient, mask, strict=True):
            fits = fits and _is_way(way, of_tokens, real)
        if fits:
            return way
    return None


def _is_way(way: At, gradient: Tensor, mask: Tensor) -> bool:
    """Return whether the gradients of one sequence fit a way of reading it (`first`, `last`, `mean`, `max`).

    gradient   absolute gradients [token, dim]
    mask       real tokens [token]
    """
    read = gradient.any(-1)
    real = mask.nonzero().flatten()
    if way in ("first", "last"):
        place = int(real[0 if way == "first" else -1])
        return bool(read[place]) and int(read.sum()) == 1
    if way == "max":
        # Each dimension is that of one token, and not all are of the same.
        has_several = int(read.sum()) > 1 or len(real) == 1
        is_one_each = bool(((gradient > 0).sum(0) <= 1).all())
        reads_padding = bool((read & ~mask).any())
        return has_several and is_one_each and not reads_padding
    if not torch.equal(read, mask):
        return False
    of_real = gradient[real]
    # A mean gives every token the same gradient, in each dimension.
    return bool((of_real - of_real.mean(0)).abs().max() <= EQUAL * of_real.abs().max())


def _guess_shares(at: At | None, mask: Tensor) -> Tensor:
    """Guess how much of each token the head reads [sequence, token], for sequences whose gradients vanish.

    at     how it reads other sequences (`first`, `last`, `mean`, `max`); None: unknown, which counts as mean
    mask   real tokens [sequence, token]
    """
    if at == "first":
        from_start = mask.int().cumsum(1)
        return (mask & (from_start == 1)).double()
    if at == "last":
        from_end = mask.flip(1).int().cumsum(1).flip(1)
        return (mask & (from_end == 1)).double()
    return mask.double()
