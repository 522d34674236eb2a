"""Entropy, similarity and what keys receive from torch's fused products alone, as a multiple of our blocks of rows.

    python benchmarks/fused_rows.py                          # three kinds of heads, five lengths, two types: minutes
    python benchmarks/fused_rows.py --lengths 128 --pairs 1

Of a fused product P·K with values that are the keys, and of its log-sum-exp, follow the mean score q·(PK) and the
entropy. The log-sum-exp at twice the scale gives the length of a row, and with queries and keys exchanged, and the
length of each row as a bias, what a key receives of all rows. So `three` products give all but the largest and the
smallest weight, which the blocks give too. `one` is the first product alone, which takes as long as the model's own
call. `output` are blocks that also give the output of attention (`--attention fused`), without the model's call.

`apart` is the largest difference of an entropy in nats from that of float64, by the products and by the blocks.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from pairs import BARE, against, keep_by_threads, options, told
from torch import Tensor

from anisoscope.capture.masking import Masking
from anisoscope.capture.rows import attention_rows

TOKENS = 2048
MODELS = {
    "minilm": (12, 12, 32, False),
    "gpt2": (12, 12, 64, True),
    "llama-like": (16, 8, 64, True),
}
"""Heads, heads of keys, dimensions of a head, and whether it is causal."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
PRODUCTS = ("three", "one", "output")
Heads = tuple[Tensor, Tensor]


def multiply_fused(query: Tensor, key: Tensor, scale: float, *, causal: bool) -> Heads:
    """Return the output [sequence, head, query, dim] and the log-sum-exp [sequence, head, query] of attention to the
    keys.
    """
    product = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    output, total = product(query, key, key, 0.0, causal, scale=scale)
    return output, total


def fused_rows(
    query: Tensor, key: Tensor, scale: float, *, causal: bool
) -> dict[str, Tensor]:
    """Return the entropy and ln ‖p‖ of each row [sequence, head, query], and what keys receive of rows of length 1
    [sequence, head, key].
    """
    output, total = multiply_fused(query, key, scale, causal=causal)
    mean = (query.float() * output.float()).sum(-1) * scale
    twice = multiply_fused(query, key, 2 * scale, causal=causal)[1]
    # a further dimension adds to the scores; a causal product has its queries in turn, so both are turned round
    bias = (-twice / (2 * scale)).to(query).unsqueeze(-1)
    rows = torch.cat((query, bias), -1)
    keys = torch.cat((key, torch.ones_like(key[..., :1])), -1)
    if causal:
        rows, keys = rows.flip(2), keys.flip(2)
    received = multiply_fused(keys, rows, scale, causal=causal)[1]
    return {
        "entropy": total - mean,
        "length": twice / 2 - total,
        "received": (received.flip(2) if causal else received).exp(),
    }


def heads_of(name: str, length: int, dtype: torch.dtype) -> Heads:
    """Draw queries and keys [sequence, head, token, dim], and keep them as models do."""
    heads, key_heads, dim, _ = MODELS[name]
    generator, count = torch.Generator().manual_seed(0), max(1, TOKENS // length)
    query, key = (
        torch.randn(count, length, n, dim, generator=generator).to(dtype)
        for n in (heads, key_heads)
    )
    return query.transpose(1, 2), key.transpose(1, 2)


def compared(
    name: str, length: int, dtype: str, pairs: int
) -> Iterator[dict[str, Any]]:
    """Yield a row for each of `PRODUCTS`."""
    query, key = heads_of(name, length, DTYPES[dtype])
    causal, scale = MODELS[name][3], query.shape[-1] ** -0.5
    repeated = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    masking = Masking(None, causal, None)

    def blocks(_: object) -> dict[str, Tensor]:
        return attention_rows(query, key, masking, scale=scale)

    def three(_: object) -> dict[str, Tensor]:
        return fused_rows(query, repeated, scale, causal=causal)

    def one(_: object) -> Heads:
        return multiply_fused(query, repeated, scale, causal=causal)

    def output(_: object) -> dict[str, Tensor]:
        return attention_rows(query, key, masking, scale=scale, value=key)

    found = against(
        blocks, dict(zip(PRODUCTS, (three, one, output), strict=True)), [None], pairs
    )
    exact = attention_rows(query[:1].double(), key[:1].double(), masking, scale=scale)[
        "entropy"
    ]
    apart = [
        float((rows["entropy"][:1] - exact).abs().max())
        for rows in (three(None), blocks(None))
    ]
    assert not any(map(math.isnan, apart))
    for products in PRODUCTS:
        print(
            f"{name} {length} {dtype}: {products} {told(found[products])} × our blocks; apart {apart}",
            flush=True,
        )
        row = {
            "model": name,
            "length": length,
            "dtype": dtype,
            "products": products,
            "apart": apart,
        }
        both = {clock: found[BARE][clock] for clock in ("processor", "wall")}
        yield row | {"bare": both} | found[products]


def main(argv: Sequence[str] | None = None) -> None:
    parser = options(__doc__)
    parser.add_argument(
        "--lengths", nargs="+", type=int, default=[128, 256, 512, 1024, 2048]
    )
    given = parser.parse_args(argv)
    cases = [
        (name, length, dtype)
        for name in MODELS
        for length in given.lengths
        for dtype in DTYPES
    ]

    def measure() -> Iterator[dict[str, Any]]:
        for case in cases:
            yield from compared(*case, given.pairs)

    key = ("model", "length", "dtype", "products")
    keep_by_threads(given, "fused_rows", measure, key)


if __name__ == "__main__":
    main()
