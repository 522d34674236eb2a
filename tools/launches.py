"""Kernels that a layer of a large model launches on a GPU, and what they read and write: counted on the meta device.

The operations are those of the code that measures, one after the other as PyTorch runs them without a compiler, or
with the kernels of Triton in their place. A roofline says how long they take at least: each as long as its bytes, its
products or its exponentials need at the rates of `BYTES`, `PRODUCTS` and `POWERS`. Nothing is timed.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from anisoscope.axes import Site
from anisoscope.capture import rows as attention
from anisoscope.capture.masking import Masking
from anisoscope.capture.rows import attention_rows
from anisoscope.measure.cost import measure_on_meta
from anisoscope.measure.settings import Settings
from anisoscope.sums import device, on_chip

BYTES = 3.35e12
"""Bytes a second of an H100 (SXM), by its data sheet."""
PRODUCTS = {torch.bfloat16: 989e12, torch.float32: 67e12, torch.float64: 67e12}
"""Flops a second of an H100 (SXM) by its data sheet, without sparsity: float32 without TF32."""
POWERS = 132 * 16 * 1.83e9
"""Powers of two a second of an H100 (SXM): 132 multiprocessors, 16 a clock (CUDA C++ programming guide), 1.83 GHz."""
NO_KERNEL = {"empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided"}
NO_KERNEL |= {"detach", "alias", "scalar_tensor", "lift_fresh", "_unsafe_view"}
HIDDEN, HEADS, KEY_HEADS, DIM, INNER = 4096, 32, 8, 128, 14336
"""A block of Llama 3 of 8 billion weights."""
LAYER = 1


@dataclass
class Work:
    """What was launched: kernels, bytes that they read and write, seconds by the roofline."""

    kernels: int = 0
    bytes: int = 0
    seconds: float = 0.0

    def add(
        self, moved: int, flops: float, dtype: torch.dtype, powers: float = 0.0
    ) -> None:
        """Add one kernel."""
        self.kernels += 1
        self.bytes += moved
        self.seconds += max(
            moved / BYTES,
            flops / PRODUCTS.get(dtype, PRODUCTS[torch.float32]),
            powers / POWERS,
        )


class _OfTriton:
    """Counts a kernel of Triton in its place: it reads and writes each of its tensors once, or as often as said."""

    def __init__(self, work: Work, cost: Any) -> None:
        self.work, self.cost = work, cost

    def __getitem__(self, grid: Any) -> Any:
        return self._launch

    def _launch(self, *args: Any, **options: Any) -> None:
        tensors = [x for x in tree_leaves(args) if isinstance(x, Tensor)]
        once = {
            (id(x.untyped_storage()), x.storage_offset()): _bytes(x) for x in tensors
        }
        more, flops, dtype, powers = self.cost(args, options)
        self.work.add(sum(once.values()) + more, flops, dtype, powers)


def _cost_of_rows(args: Any, _: Any) -> tuple[float, float, torch.dtype, float]:
    """Of a causal pass over all scores: products of queries and keys, and a power of each score."""
    tensors = [x[0] for x in args if isinstance(x, tuple) and len(x) == 5]
    query, key = tensors[:2]
    pairs = query.numel() // query.shape[-1] * key.shape[2] / 2
    return 0.0, 2 * pairs * query.shape[-1], query.dtype, pairs


def _cost_of_lengths(args: Any, _: Any) -> tuple[float, float, torch.dtype, float]:
    """Of the lengths of vectors, which are read a second time."""
    x = next(x for x in args if isinstance(x, tuple))[0]
    return _bytes(x), 0.0, torch.float32, 0.0


def _cost_of_reading(*_: Any) -> tuple[float, float, torch.dtype, float]:
    """Of a kernel that does little more than read its tensors once."""
    return 0.0, 0.0, torch.float32, 0.0


def _cost_of_sums(args: Any, options: Any) -> tuple[float, float, torch.dtype, float]:
    """Of three products of weights and vectors; lengths and weights are read by each program, from the cache."""
    x = args[3][0]
    return (
        0.0,
        (2 + options["SQUARES"]) * 2 * options["ROWS"] * x.numel(),
        torch.float32,
        0.0,
    )


def _trust_kernels(
    _form: Any, by_kernel: Callable[[], dict[str, Tensor]], *_: Any, **__: Any
) -> dict[str, Tensor]:
    """Take the kernels at once, as on every call of a form but the first."""
    return by_kernel()


@contextmanager
def triton_counted(work: Work) -> Iterator[None]:
    """Take the kernels of Triton instead of plain operations, and count them."""
    of_rows, of_vectors = (
        on_chip.load_kernels(module.KERNELS) for module in (attention, device)
    )
    if of_rows is None or of_vectors is None:
        raise SystemExit(
            "counting kernels needs Triton: pip install -e '.[kernels]' (Linux)"
        )
    costs = {
        (of_rows, "_sum_rows"): _cost_of_rows,
        (of_rows, "_sum_columns"): _cost_of_rows,
        (of_vectors, "_measure_lengths"): _cost_of_lengths,
        (of_vectors, "_sum_tokens"): _cost_of_sums,
        (of_vectors, "_compare_inside"): _cost_of_reading,
    }
    with ExitStack() as replaced:
        for module in (attention, device):
            replaced.enter_context(
                patch.object(module, "has_kernels", return_value=True)
            )
            replaced.enter_context(
                patch.object(module, "compute_checked", _trust_kernels)
            )
        for (module, name), cost in costs.items():
            replaced.enter_context(patch.object(module, name, _OfTriton(work, cost)))
        yield


class _Kernels(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations on tensors of the meta device that are no views."""

    def __init__(self, work: Work) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.work = work

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        out = function(*args, **(kwargs or {}))
        name = function._schema.name.split("::")[1]
        used = [x for x in tree_leaves((args, kwargs, out)) if isinstance(x, Tensor)]
        if function.is_view or name in NO_KERNEL or not any(x.is_meta for x in used):
            return out
        counted = flop_registry.get(function.overloadpacket)
        flops = (
            counted(*args, **(kwargs or {}), out_val=out) if counted is not None else 0
        )
        self.work.add(sum(map(_bytes, used)), flops, used[0].dtype)
        return out


class _Fused(TorchFunctionMode):
    """Counts attention as the one kernel that it is on a GPU: causal, no map stored."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self.work = work

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is not torch.nn.functional.scaled_dot_product_attention:
            return function(*args, **(kwargs or {}))
        query, key, value = args[:3]
        flops = 2 * 2 * query.numel() * key.shape[2] / 2
        self.work.add(
            2 * _bytes(query) + _bytes(key) + _bytes(value), flops, query.dtype
        )
        return query.new_empty(query.shape)


def _bytes(x: Tensor) -> int:
    """Bytes of a tensor in memory: axes that repeat the same numbers count once."""
    return x.itemsize * math.prod(
        size for size, stride in zip(x.shape, x.stride(), strict=True) if stride
    )


@contextmanager
def counted(by_triton: bool = False) -> Iterator[Work]:
    """What is launched inside the `with` block, with the kernels of Triton or without."""
    work = Work()
    of_triton = triton_counted(work) if by_triton else nullcontext()
    with torch.no_grad(), _Kernels(work), _Fused(work), of_triton:
        yield work


def of_site(
    quantity: str,
    shape: tuple[int, ...],
    tokens: int,
    settings: Settings,
    by_triton: bool = False,
) -> Work:
    """The sums of a site of shape [dim] or [head, dim], from its second batch on."""
    x = torch.empty(
        1, *shape[:-1], tokens, shape[-1], dtype=torch.bfloat16, device="meta"
    )
    site = Site("decoder", LAYER, quantity)  # type: ignore[arg-type]
    measurement = measure_on_meta(site, x, settings)
    with counted(by_triton) as work:
        measurement.receive(site, x)
    return work


def of_rows(tokens: int, settings: Settings, by_triton: bool = False) -> Work:
    """The statistics of attention rows of the layer, causal, from the second batch on."""
    of: Any = {"dtype": torch.bfloat16, "device": "meta"}
    query, key = (
        torch.empty(1, heads, tokens, DIM, **of) for heads in (HEADS, KEY_HEADS)
    )
    site, masking = (
        Site("decoder", LAYER, "attention"),
        Masking(None, causal=True, bias=None),
    )
    measurement = measure_on_meta(site, query, settings)
    with counted(by_triton) as work:
        measurement.receive(site, attention_rows(query, key, masking, scale=DIM**-0.5))
    return work


def of_layer(tokens: int) -> Work:
    """The layer itself, as transformers runs it."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

    sizes: Any = {
        "hidden_size": HIDDEN,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_HEADS,
    }
    config = LlamaConfig(
        **sizes | {"intermediate_size": INNER, "attn_implementation": "sdpa"}
    )
    with torch.device("meta"):
        layer = LlamaDecoderLayer(config, 0).eval().to(torch.bfloat16)
        x = torch.empty(1, tokens, HIDDEN, dtype=torch.bfloat16)
        turned = torch.empty(1, tokens, DIM, dtype=torch.bfloat16)
    with counted() as work:
        layer(x, position_embeddings=(turned, turned))
    return work


def of_measuring(tokens: int, by_triton: bool) -> list[tuple[str, Work]]:
    """What is launched to measure a layer with a window of so many tokens, by what is measured."""
    hidden, attention = (
        Settings(panel=(panel,), sample=0) for panel in ("hidden", "attention")
    )
    heads = [
        of_site("query", (HEADS, DIM), tokens, attention, by_triton),
        of_site("key", (KEY_HEADS, DIM), tokens, attention, by_triton),
    ]
    parts = {
        "hidden states": of_site("hidden", (HIDDEN,), tokens, hidden, by_triton),
        "queries and keys": _add_up(heads),
        "attention rows": of_rows(tokens, attention, by_triton),
    }
    return [*parts.items(), ("all of these", _add_up(parts.values()))]


def _add_up(works: Iterable[Work]) -> Work:
    """All that was launched together."""
    whole = Work()
    for work in works:
        whole = Work(
            whole.kernels + work.kernels,
            whole.bytes + work.bytes,
            whole.seconds + work.seconds,
        )
    return whole


def table(tokens: int) -> list[str]:
    """Lines of the table of docs/scaling.md."""
    layer = of_layer(tokens)
    lines = [f"| the layer itself | | {describe(layer)} | 1.00 |"]
    for how, by_triton in (("plain operations", False), ("kernels of Triton", True)):
        for name, work in of_measuring(tokens, by_triton):
            lines.append(
                f"| {name} | {how} | {describe(work)} | {work.seconds / layer.seconds:.2f} |"
            )
    return lines


def describe(work: Work) -> str:
    """The cells of a row: kernels, GB, milliseconds."""
    return f"{work.kernels} | {work.bytes / 1e9:.2f} | {1e3 * work.seconds:.2f}"


if __name__ == "__main__":
    print("\n".join(table(4096)))
