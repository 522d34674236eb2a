"""Detect every attention that is computed, by any means: fused kernels, or a softmax followed by a matrix product."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

KERNELS = ("attention", "attn", "transformer_encoder_layer")
"""What kernels made for attention have in their names, those of extensions too."""
SOFTMAX = ("aten::_softmax", "aten::_safe_softmax")
PRODUCTS = ("aten::bmm", "aten::baddbmm", "aten::mm")
RECENT = 4  # weights that are remembered until their product


class Counting(TorchDispatchMode):
    """Calls `ran(kernel)` for every attention that this thread computes between `start` and `stop`.

    It runs only once, since one forward call is enough. The model's outputs stay the same bit for bit.
    """

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Return True, so that compiled functions run under this mode as they would without it."""
        return True

    def __init__(self, ran: Callable[[str], None]) -> None:
        """Prepare to call `ran(kernel)` for every attention that is computed; nothing is watched before `start`."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.ran = ran
        # Held as tensors: the memory of a tensor that is gone could be given to another one.
        self.weights = deque[Tensor](maxlen=RECENT)
        self.active = False  # whether torch operations are watched now
        self.over = False  # whether they have been: once is enough
        self.quiet = False  # whether the program itself computes

    def start(self, *_: Any) -> None:
        """Begin to detect attention; calls after the first do nothing. A forward pre-hook of the model."""
        # Every operation passes through Python while the mode is active, which is slow:
        # one forward call is enough.
        if not self.over:
            self.active = self.over = True
            self.__enter__()  # type: ignore[no-untyped-call]

    def stop(self, *_: Any) -> None:
        """Stop detecting attention; does nothing if it is not active."""
        if self.active:
            self.active = False
            self.weights.clear()
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Detect nothing inside a `with` block, in which the program itself computes attention."""
        before = self.quiet
        self.quiet = True
        # Modes of torch are a stack: only the innermost can be left and entered again without disturbing others.
        is_left = self.active and _get_current_dispatch_mode() is self
        if is_left:
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            if is_left:
                self.__enter__()  # type: ignore[no-untyped-call]
            self.quiet = before

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run a torch operation, and call `ran` if it is an attention kernel or the product that ends an attention."""
        output = func(*args, **(kwargs or {}))
        # Within `pause` the mode may still be active, if it is not the innermost and
        # could not be left.
        if not self.quiet:
            # Operators that no C++ code registers have no method `name`.
            name = str(func)
            if callable(getattr(func, "name", None)):
                name = func.name()
            without_overload = name.partition(".")[0]
            self._note(without_overload, args, output)
        return output

    def _note(self, kernel: str, args: Any, output: Any) -> None:
        """Decide whether a torch operation is attention: call `ran` if it is, and remember softmax outputs until then.

        kernel   name of the operation
        args     its arguments by position
        """
        if any(part in kernel for part in KERNELS):
            self.ran(kernel)
        # A softmax of two axes is one over classes or experts, not over keys.
        elif kernel in SOFTMAX and output.dim() > 2:
            self.weights.append(output)
        elif kernel in PRODUCTS and self._has_weights(args):
            self.weights.clear()
            self.ran(f"{kernel} of a softmax")
        # Weights after dropout, a cast or a copy are still weights.
        elif isinstance(output, Tensor) and self._has_weights(args[:1]):
            self.weights.append(output)

    def _has_weights(self, args: Any) -> bool:
        """Return whether one of the arguments of a torch operation is a tensor of attention weights."""
        return any(isinstance(x, Tensor) and self._are_weights(x) for x in args)

    def _are_weights(self, x: Tensor) -> bool:
        """Return whether a tensor shares memory with attention weights that a recent softmax gave."""
        for weights in self.weights:
            # Views of other shapes share the memory; a part of it has fewer numbers.
            if x.numel() == weights.numel() and _get_address(x) == _get_address(
                weights
            ):
                return True
        return False


def _get_address(x: Tensor) -> int:
    """Return the address in memory of a tensor's storage; a unique negative number for one without storage (meta,
    fake).
    """
    if isinstance(x, FakeTensor):
        return -id(x)
    try:
        return x.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return -id(x)


def list_ranges(numbers: list[int]) -> str:
    """Format numbers as a range if they are consecutive, else as a list: `1–12`, `1, 3, 5`."""
    if len(numbers) > 2 and numbers == [*range(numbers[0], numbers[-1] + 1)]:
        return f"{numbers[0]}–{numbers[-1]}"
    return ", ".join(map(str, numbers))
