"""Kernels that a layer of a large model launches on a GPU, and what they read and write: counted on the meta device.

The operations are those of the code that measures, one after the other as PyTorch runs them without a compiler. A
roofline says how long they take at least: each as long as its bytes or its products need at the rates of `BYTES` and
`PRODUCTS`. Nothing is timed.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from anisoscope.axes import Site
from anisoscope.capture.masking import Masking
from anisoscope.capture.rows import attention_rows
from anisoscope.measure.cost import measure_on_meta
from anisoscope.measure.settings import Settings

BYTES = 3.35e12
"""Bytes a second of an H100 (SXM), by its data sheet."""
PRODUCTS = {torch.bfloat16: 989e12, torch.float32: 67e12, torch.float64: 67e12}
"""Flops a second of an H100 (SXM) by its data sheet, without sparsity: float32 without TF32."""
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

    def add(self, moved: int, flops: float, dtype: torch.dtype) -> None:
        """Add one kernel."""
        self.kernels += 1
        self.bytes += moved
        self.seconds += max(moved / BYTES, flops / PRODUCTS.get(dtype, PRODUCTS[torch.float32]))


class _Kernels(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations on tensors of the meta device that are no views."""

    def __init__(self, work: Work) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.work = work

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        name = function._schema.name.split("::")[1]
        used = [x for x in tree_leaves((args, kwargs, out)) if isinstance(x, Tensor)]
        if function.is_view or name in NO_KERNEL or not any(x.is_meta for x in used):
            return out
        counted = flop_registry.get(function.overloadpacket)
        flops = counted(*args, **(kwargs or {}), out_val=out) if counted is not None else 0
        self.work.add(sum(map(_bytes, used)), flops, used[0].dtype)
        return out


class _Fused(TorchFunctionMode):
    """Counts attention as the one kernel that it is on a GPU: causal, no map stored."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self.work = work

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is not torch.nn.functional.scaled_dot_product_attention:
            return function(*args, **(kwargs or {}))
        query, key, value = args[:3]
        flops = 2 * 2 * query.numel() * key.shape[2] / 2
        self.work.add(2 * _bytes(query) + _bytes(key) + _bytes(value), flops, query.dtype)
        return query.new_empty(query.shape)


def _bytes(x: Tensor) -> int:
    """Bytes of a tensor in memory: axes that repeat the same numbers count once."""
    return x.itemsize * math.prod(size for size, stride in zip(x.shape, x.stride(), strict=True) if stride)


@contextmanager
def counted() -> Iterator[Work]:
    """What is launched inside the `with` block."""
    work = Work()
    with torch.no_grad(), _Kernels(work), _Fused(work):
        yield work


def of_site(quantity: str, shape: tuple[int, ...], tokens: int, settings: Settings) -> Work:
    """The sums of a site of shape [dim] or [head, dim], from its second batch on."""
    x = torch.empty(1, *shape[:-1], tokens, shape[-1], dtype=torch.bfloat16, device="meta")
    site = Site("decoder", LAYER, quantity)  # type: ignore[arg-type]
    measurement = measure_on_meta(site, x, settings)
    with counted() as work:
        measurement.receive(site, x)
    return work


def of_rows(tokens: int, settings: Settings) -> Work:
    """The statistics of attention rows of the layer, causal, from the second batch on."""
    of: Any = {"dtype": torch.bfloat16, "device": "meta"}
    query, key = (torch.empty(1, heads, tokens, DIM, **of) for heads in (HEADS, KEY_HEADS))
    site, masking = Site("decoder", LAYER, "attention"), Masking(None, causal=True, bias=None)
    measurement = measure_on_meta(site, query, settings)
    with counted() as work:
        measurement.receive(site, attention_rows(query, key, masking, scale=DIM**-0.5))
    return work


def of_layer(tokens: int) -> Work:
    """The layer itself, as transformers runs it."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

    sizes: Any = {"hidden_size": HIDDEN, "num_attention_heads": HEADS, "num_key_value_heads": KEY_HEADS}
    config = LlamaConfig(**sizes | {"intermediate_size": INNER, "attn_implementation": "sdpa"})
    with torch.device("meta"):
        layer = LlamaDecoderLayer(config, 0).eval().to(torch.bfloat16)
        x = torch.empty(1, tokens, HIDDEN, dtype=torch.bfloat16)
        turned = torch.empty(1, tokens, DIM, dtype=torch.bfloat16)
    with counted() as work:
        layer(x, position_embeddings=(turned, turned))
    return work


def rows(tokens: int) -> list[tuple[str, Work]]:
    """What a layer launches for a window of so many tokens: the layer itself, then what is measured of it."""
    hidden, attention = (Settings(panel=(panel,), sample=0) for panel in ("hidden", "attention"))
    heads = [of_site(name, (n, DIM), tokens, attention) for name, n in (("query", HEADS), ("key", KEY_HEADS))]
    of_heads = Work(*(sum(vars(work)[name] for work in heads) for name in ("kernels", "bytes", "seconds")))
    return [
        ("the layer itself", of_layer(tokens)),
        ("hidden states", of_site("hidden", (HIDDEN,), tokens, hidden)),
        ("queries and keys", of_heads),
        ("attention rows", of_rows(tokens, attention)),
    ]


def table(tokens: int) -> list[str]:
    """Lines of the table of docs/scaling.md."""
    found = rows(tokens)
    bare = found[0][1].seconds
    return [
        f"| {name} | {work.kernels} | {work.bytes / 1e9:.2f} | {1e3 * work.seconds:.2f} | {work.seconds / bare:.2f} |"
        for name, work in found
    ]


if __name__ == "__main__":
    print("\n".join(table(4096)))
