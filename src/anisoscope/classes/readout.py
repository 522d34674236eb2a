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
from anisoscope.models.blocks import Layout, find_blocks, has_tokens_first
from anisoscope.models.devices import is_out_of_memory
from anisoscope.models.modes import evaluation_mode
from anisoscope.sums.classes import pool_sequences

WAYS: tuple[At, ...] = ("first", "last", "mean", "max")
"""Ways of making one vector of a sequence, in the order in which they are tried."""
WORDS = {
    "first": "the first token",
    "last": "the last token",
    "mean": "the mean of all tokens",
    "max": "the maximum over all tokens",
    None: "tokens in a way of its own",
}
"""Each way in words."""
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

    @property
    def told(self) -> str:
        """Return in words what the head reads, such as `the first token`."""
        return WORDS[self.at]

    def pool(self, x: Float[Tensor, "sequence token dim"]) -> Float[Tensor, "sequence dim"]:
        """Reduce each sequence to one vector in float64, as the head does."""
        x = x[:, : self.mask.shape[1]]
        if self.at is not None:
            return pool_sequences(x, self.mask.to(x.device), self.at)
        weights = self.weights.to(x.device)
        return torch.einsum("st,std->sd", weights, torch.where(weights.unsqueeze(-1) > 0, x, 0.0).double())


class _LastStates:
    """Makes the last hidden states of every stack variables that can be differentiated with respect to.

    These are the outputs of the last block, and what norms after it make of them.
    """

    def __init__(self, model: nn.Module, hooks: ExitStack) -> None:
        """Hook every block of the model, and every norm outside of blocks; `hooks` removes the hooks in the end."""
        self.variables: dict[str, list[Tensor]] = {}
        self.handed_on: dict[str, Tensor] = {}
        self.turned: set[str] = set()
        inside: set[nn.Module] = set()
        for stack, blocks in find_blocks(model).items():
            for block in blocks:
                inside.update(block.modules())
                if has_tokens_first(model, block):
                    self.turned.add(stack)
                hooks.callback(block.register_forward_pre_hook(self._enter).remove)
                hooks.callback(block.register_forward_hook(self._leave(stack)).remove)
        for module in model.modules():
            if module not in inside and "Norm" in type(module).__name__:
                hooks.callback(module.register_forward_hook(self._after_norm).remove)

    def _enter(self, _block: nn.Module, _args: Any) -> None:
        """Turn gradients off before a block runs; only the classifier's head is differentiated."""
        torch.set_grad_enabled(False)

    def _leave(self, stack: str) -> Callable[..., Any]:
        """Return a hook that turns gradients on after a block and replaces its output by a variable."""

        def leave(block: nn.Module, _args: Any, output: Any) -> Any:
            """Replace the block's output vectors by a new variable."""
            torch.set_grad_enabled(True)
            x = find_output(block, output)
            variable, handed = self._variable(x)
            self.variables.pop(stack, None)  # so that the stack that ran last stands last
            self.variables[stack] = [variable]
            self.handed_on[stack] = handed
            return _replace_vectors(output, x, handed)

        return leave

    def _after_norm(self, _norm: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        """Replace the output of a norm after the last block by a variable too.

        The norm scales every token on its own, so a token's weight in a mean is its weight after the norm.
        """
        for stack, last in self.handed_on.items():
            if args and isinstance(output, Tensor) and isinstance(args[0], Tensor) and is_same_memory(last, args[0]):
                variable, handed = self._variable(output)
                self.variables[stack].append(variable)
                return handed
        return None

    def _variable(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return a variable with the values of `x`, and a copy to pass on, which the model may overwrite."""
        variable = x.detach().requires_grad_()
        return variable, variable.clone()


def _replace_vectors(output: Any, old: Tensor, new: Tensor) -> Any:
    """Return the output of a block with its vectors `old` replaced by `new`; what else it holds stays."""
    if output is old:
        return new
    if isinstance(output, Mapping):
        for name, value in output.items():
            if value is old:
                output[name] = new  # type: ignore[index]
        return output
    if isinstance(output, list | tuple):
        return type(output)(_replace_vectors(part, old, new) if i == 0 else part for i, part in enumerate(output))
    return output


def get_logits(output: Any) -> Tensor:
    """Return the logits in a classifier's output: its entry `logits`, the first of a tuple, or a tensor.

    MeasureError for an output without them.
    """
    found = getattr(output, "logits", None)
    if found is None and isinstance(output, Mapping):
        found = output.get("logits")
    if found is None and isinstance(output, list | tuple) and output:
        found = output[0]
    if found is None:
        found = output
    if isinstance(found, Tensor) and found.is_floating_point():
        return found
    raise MeasureError("a classifier that puts out logits", type(output).__name__, "name a model with a head")


@contextmanager
def _last_states(model: nn.Module) -> Iterator[_LastStates]:
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
        with evaluation_mode(model), torch.enable_grad(), _last_states(model) as states:
            logits = get_logits(model(**batch.inputs))
            if logits.dim() != 2:
                expected = f"a head of {name} that names a class for each sequence"
                raise MeasureError(expected, f"logits of shape {tuple(logits.shape)}", "name a classifier of sequences")
            # a random mixture of the logits: that its gradient vanishes at a token by chance has no probability
            draw = torch.Generator().manual_seed(0)
            mixture = torch.randn(logits.shape, generator=draw).to(logits.device)
            variables = [x for found in states.variables.values() for x in found]
            gradients: list[Tensor | None] = [None] * len(variables)
            if logits.requires_grad:
                gradients[:] = list(torch.autograd.grad((logits.float() * mixture).sum(), variables, allow_unused=True))
    except AnisoscopeError:
        raise
    except (RuntimeError, NotImplementedError) as error:
        if is_out_of_memory(error):
            raise
        got = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
        raise MeasureError(f"a head of {name} that can be differentiated", got, "load it in float32") from error
    gradient_of = dict(zip(map(id, variables), gradients, strict=True))
    masks = Layout(model).streams(batch)
    for stack, found in reversed(states.variables.items()):
        parts = []
        for variable in found:
            gradient = gradient_of[id(variable)]
            if gradient is not None:
                parts.append(gradient.transpose(0, 1) if stack in states.turned else gradient)
        total = sum(x.detach().double().abs() for x in parts)
        if isinstance(total, Tensor) and total.dim() == 3 and bool(total.any()):
            mask = find_real_tokens(masks, stack).to(total.device)
            return _decide_reading(stack, total, mask, logits.detach(), name)
    expected = f"logits of {name} that depend on the last hidden states"
    raise MeasureError(expected, "no gradient there", "name a classifier whose head reads its last block")


def find_real_tokens(streams: Mapping[str, Stream], stack: str) -> Tensor:
    """Return which tokens of a stack are real: by its own stream, or by the only stream there is.

    MeasureError if there are several streams, and none is of this stack.
    """
    if stack not in streams and len(streams) == 1:
        return next(iter(streams.values())).mask
    if stack not in streams:
        expected = f"which tokens of the stack {stack} are real"
        raise MeasureError(expected, ", ".join(streams) or "no stream", "give the batch a stream of that name")
    return streams[stack].mask


def _decide_reading(stack: str, gradient: Tensor, mask: Tensor, logits: Tensor, name: str) -> HeadReading:
    """Decide which tokens the classifier's head reads in a batch, from the gradients of its logits.

    stack      the stack that the head reads
    gradient   absolute gradients with respect to the last hidden states [sequence, token, dim]
    mask       real tokens [sequence, token]
    name       of the model, for errors

    MeasureError if the gradients do not have the shape of the tokens.
    """
    tokens = mask.shape[1]
    if gradient.shape[1] > tokens and not bool(gradient[:, tokens:].any()):
        gradient = gradient[:, :tokens]  # the model fills up to a multiple of its window (Longformer)
    if gradient.shape[:2] != mask.shape:
        expected = f"last hidden states of {name} for {tuple(mask.shape)} tokens"
        raise MeasureError(expected, str(tuple(gradient.shape)), "let the model give all positions")
    of_token = gradient.sum(-1)
    blind = of_token.sum(1) == 0  # a head that is saturated there, so that nothing can be told
    at: At | None = None
    for way in WAYS:
        if at is None and all(_is_way(way, g, m) for g, m, b in zip(gradient, mask, blind, strict=True) if not b):
            at = way
    if bool(blind.any()):
        of_token = torch.where(blind[:, None], _expected_shares(at, mask), of_token)
    weights = of_token / of_token.sum(1, keepdim=True)
    return HeadReading(stack, at, weights, mask, logits)


def _is_way(way: At, gradient: Tensor, mask: Tensor) -> bool:
    """Return whether the gradients of one sequence fit a way of reading it (first, last, mean, max).

    gradient   absolute gradients [token, dim]
    mask       real tokens [token]
    """
    read = gradient.any(-1)
    real = mask.nonzero().flatten()
    if way in ("first", "last"):
        place = int(real[0 if way == "first" else -1])
        return bool(read[place]) and int(read.sum()) == 1
    if way == "max":  # each dimension is that of one token, and not all are of the same
        several = int(read.sum()) > 1 or len(real) == 1
        return several and bool(((gradient > 0).sum(0) <= 1).all()) and not bool((read & ~mask).any())
    if not torch.equal(read, mask):
        return False
    of_real = gradient[real]
    return bool((of_real - of_real.mean(0)).abs().max() <= EQUAL * of_real.abs().max())


def _expected_shares(at: At | None, mask: Tensor) -> Tensor:
    """Return the share of each token [sequence, token] in a way of reading, for sequences whose gradients vanish.

    at     the way (first, last, mean, max) that other sequences show; None: unknown
    mask   real tokens [sequence, token]
    """
    first, last = mask.int().cumsum(1), mask.flip(1).int().cumsum(1).flip(1)
    if at == "first":
        return (mask & (first == 1)).double()
    if at == "last":
        return (mask & (last == 1)).double()
    return mask.double()
