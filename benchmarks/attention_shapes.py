"""Time of the statistics of attention rows for calls of every shape, as a multiple of torch's product of the same call.

    python benchmarks/attention_shapes.py                            # every shape: ten minutes
    python benchmarks/attention_shapes.py --only causal-right --lengths 300

The shapes are those of `make matrix` (tests/attention_matrix.py): who sees whom, side of padding, kind of heads, type
of number. A batch has a sequence of the length, one of half of it, and one of a single token; without padding, three of
the length. There are 12 heads of 64 dimensions, as in GPT-2; grouped, on 4 heads of keys.
torch's product gets the same mask, but neither cap nor sinks, which it does not have.
"""

import sys
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch
from pairs import BARE, against, keep_by_threads, options, told
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from anisoscope.capture.rows import attention_rows

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
import attention_matrix as matrix

SIZE = matrix.Size(heads=12, key_heads=4, dim=64)
CASE = "rows"


def list_shapes(lengths: Sequence[int], only: str) -> list[matrix.Shape]:
    """List a shape for each pattern, side, kind of heads and type, at the given lengths; `only` those with it in
    their name.
    """
    cells = product(matrix.PATTERNS, matrix.SIDES, lengths, matrix.HEADS, matrix.DTYPES)
    shapes = [matrix.Shape(*cell, form="boolean") for cell in cells]
    return [shape for shape in shapes if only in shape.name]


def compare(shape: matrix.Shape, pairs: int) -> dict[str, Any]:
    """Return the time of our rows of one call as a multiple of torch's product of that call, with what it was."""
    call, real, _ = matrix.call_of(shape, seed=0, size=SIZE)
    repeats = call.query.shape[1] // call.key.shape[1]
    key, value = (x.repeat_interleave(repeats, 1) for x in (call.key, call.value))
    causal = call.mask is None and bool(call.settings["is_causal"])

    def multiply(_: object) -> Tensor:
        return scaled_dot_product_attention(
            call.query, key, value, attn_mask=call.mask, is_causal=causal
        )

    def measure_rows(_: object) -> dict[str, Tensor]:
        return attention_rows(
            call.query,
            call.key,
            call.masking,
            scale=call.scale,
            softcap=call.settings.get("softcap"),
            sinks=call.settings.get("s_aux"),
            real=torch.from_numpy(real),
        )

    found = against(multiply, {CASE: measure_rows}, [None], pairs)
    about = {
        "pattern": shape.pattern,
        "side": shape.side,
        "length": shape.length,
        "heads": shape.heads,
        "dtype": shape.dtype,
    }
    bare = {clock: found[BARE][clock] for clock in ("processor", "wall")}
    return about | {"bare": bare} | found[CASE]


def compare_all(shapes: Sequence[matrix.Shape], pairs: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each shape, and print it."""
    for shape in shapes:
        row = compare(shape, pairs)
        print(f"{shape.name}: {told(row)} × torch's product", flush=True)
        yield row


def main(argv: Sequence[str] | None = None) -> None:
    parser = options(__doc__)
    parser.add_argument(
        "--only", default="", help="shapes with this in their name, as causal-right"
    )
    parser.add_argument(
        "--lengths",
        nargs="+",
        type=int,
        default=matrix.LENGTHS,
        help="of the longest sequence",
    )
    given = parser.parse_args(argv)
    shapes = list_shapes(given.lengths, given.only)
    if not shapes:
        parser.error(f"no shape has {given.only!r} in its name")
    key = ("pattern", "side", "length", "heads", "dtype")
    keep_by_threads(
        given, "attention_shapes", lambda: compare_all(shapes, given.pairs), key
    )


if __name__ == "__main__":
    main()
