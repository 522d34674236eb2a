"""Attention calls of every shape that people have, and a plain float64 computation of what is measured of them.

Who sees whom × side of padding × length × kind of head × type of number. The computation is written out here, row by
row from the definitions, and shares no code with the package.

    python -m attention_matrix                  # every cell: `make matrix`, a quarter of an hour of one core
    python -m attention_matrix --only causal-right --seed 7
"""

import argparse
import math
import os
import sys
import traceback
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import product
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import torch

from anisoscope.capture.masking import Call
from anisoscope.capture.rows import attention_rows
from anisoscope.capture.scores import sum_scores

PATTERNS = ("causal", "bidirectional", "sliding", "prefix")
SIDES = ("left", "right", "none")
LENGTHS = (1, 2, 127, 128, 129, 300, 700)
HEADS = ("plain", "grouped", "sinks", "softcap")
DTYPES = ("float32", "bfloat16")
FORMS = ("boolean", "additive")
"""How a mask says what is seen. A call without a mask (`is_causal`) stands for both if nothing is padded."""
WINDOW = 100
"""Keys of a sliding window: fewer than a block of rows has."""


class Size(NamedTuple):
    """How many heads of queries and of grouped keys there are, and their dimensions."""

    heads: int
    key_heads: int
    dim: int


SMALL = Size(heads=4, key_heads=2, dim=8)
SOFTCAP = 3.0
NEAR = {"rtol": 2e-5, "atol": 2e-6}
"""Float32 sums over at most 700 keys, and exponentials of scores below 30: some ten units in the last place."""


@dataclass(frozen=True)
class Shape:
    """One cell of the matrix."""

    pattern: str
    side: str
    length: int
    heads: str
    dtype: str
    form: str

    @property
    def name(self) -> str:
        return "-".join(map(str, vars(self).values()))

    def lengths(self) -> tuple[int, ...]:
        """Real tokens of each sequence of the batch: unequal, unless nothing is padded."""
        if self.side == "none":
            return (self.length,) * 3
        return (self.length, max(1, self.length // 2 - 1), 1)


def all_shapes():
    """Every cell of the matrix: 1,344."""
    return [
        Shape(*cell) for cell in product(PATTERNS, SIDES, LENGTHS, HEADS, DTYPES, FORMS)
    ]


def real_tokens(lengths, side):
    """Which positions are tokens [sequence, position]."""
    position = np.arange(max(lengths))
    kept = [
        position >= max(lengths) - n if side == "left" else position < n
        for n in lengths
    ]
    return np.stack(kept)


def visible_pairs(pattern, real):
    """Which key each query may see [sequence, query, key], from the definition of each pattern."""
    query, key = np.arange(real.shape[1])[:, None], np.arange(real.shape[1])
    seen = np.zeros((*real.shape, real.shape[1]), dtype=bool)
    for i, tokens in enumerate(real):
        first, count = int(tokens.argmax()), int(tokens.sum())
        allowed = {
            "causal": key <= query,
            "bidirectional": np.ones((len(tokens), len(tokens)), dtype=bool),
            "sliding": (key <= query) & (query - key < WINDOW),
            "prefix": (key <= query) | (key < first + count // 3),
        }[pattern]
        seen[i] = allowed & tokens
    return seen


def softmax_rows(scores, seen, sink):
    """Weights [query, key] of scores over the keys seen; a sink takes its share and is no key."""
    weights = np.zeros_like(scores)
    for row in range(len(scores)):
        keys = np.flatnonzero(seen[row])
        if len(keys) == 0:
            continue
        top = max(scores[row, keys].max(), sink)
        exponentials = np.exp(scores[row, keys] - top)
        weights[row, keys] = exponentials / (exponentials.sum() + math.exp(sink - top))
    return weights


def entropy_of(outcomes):
    """−Σ p ln p of each row of [row, outcome]."""
    positive = np.where(outcomes > 0, outcomes, 1.0)
    return -(outcomes * np.log(positive)).sum(-1)


def plain_statistics(
    query, key, value, seen, real, *, scale, softcap=None, sinks=None, bias=None
):
    """What is measured of one head of one sequence, of its real queries, in float64.

    `query`, `key`, `value` [position, dim]; `seen` [query, key]; `real` [query]; `bias` [query, key] is added last.
    """
    raw = query @ key.T * scale
    scores = raw if softcap is None else softcap * np.tanh(raw / softcap)
    if bias is not None:
        scores = scores + bias
    weights = softmax_rows(scores, seen, -math.inf if sinks is None else sinks)
    rows = np.flatnonzero(real)
    weights, seen, raw = weights[rows], seen[rows], raw[rows]
    first = int(seen.any(0).argmax())
    sink = (
        np.clip(1 - weights.sum(-1, keepdims=True), 0, None)
        if sinks is not None
        else np.zeros((len(rows), 1))
    )
    lengths = np.linalg.norm(weights, axis=1)
    cosines = (weights @ weights.T) / np.outer(lengths, lengths)
    others = ~np.eye(len(rows), dtype=bool)
    return {
        "entropy": entropy_of(np.concatenate((weights, sink), 1)),
        "row_max": weights.max(-1),
        "row_min": np.where(seen, weights, np.inf).min(-1),
        "row_median": np.array(
            [np.median(w[s]) for w, s in zip(weights, seen, strict=True)]
        ),
        "first_mass": weights[:, first],
        "keys": seen.sum(-1),
        "score": np.where(seen, raw, 0.0).sum(-1),
        "row_similarity": cosines[others].mean() if len(rows) > 1 else math.nan,
        "output": weights @ value,
    }


def tensors_of(shape, seed, size):
    """Query, key and value [sequence, head, position, dim] of one cell, and its sinks."""
    generator = torch.Generator().manual_seed(seed)
    lengths = shape.lengths()
    key_heads = size.key_heads if shape.heads == "grouped" else size.heads
    dtype = getattr(torch, shape.dtype)
    made = []
    for heads in (size.heads, key_heads, key_heads):
        numbers = torch.randn(
            len(lengths), heads, max(lengths), size.dim, generator=generator
        )
        made.append(numbers.to(dtype))
    sinks = None
    if shape.heads == "sinks":
        sinks = torch.randn(size.heads, generator=generator) * 2
    return (*made, sinks)


def call_of(shape, seed, size=SMALL):
    """The attention call of one cell as the attention interface gets it, and what is real and seen in it."""
    query, key, value, sinks = tensors_of(shape, seed, size)
    real = real_tokens(shape.lengths(), shape.side)
    seen = visible_pairs(shape.pattern, real)
    settings = {"scaling": size.dim**-0.5, "is_causal": shape.pattern == "causal"}
    if shape.heads == "softcap":
        settings["softcap"] = SOFTCAP
    if sinks is not None:
        settings["s_aux"] = sinks
    needs_mask = shape.side != "none" or shape.pattern in ("sliding", "prefix")
    mask = None
    if needs_mask:
        mask = torch.from_numpy(seen).unsqueeze(1)
        if shape.form == "additive":
            hidden = torch.finfo(query.dtype).min
            mask = torch.zeros(mask.shape, dtype=query.dtype).masked_fill(~mask, hidden)
    return Call(SimpleNamespace(), query, key, value, mask, settings), real, seen


def check_shape(shape, seed=0):
    """Every statistic of every real row of one cell is the plain one."""
    call, real, seen = call_of(shape, seed)
    sinks = call.settings.get("s_aux")
    got = attention_rows(
        call.query,
        call.key,
        call.masking,
        scale=call.scale,
        softcap=call.settings.get("softcap"),
        sinks=sinks,
        real=torch.from_numpy(real),
        median=True,
        value=call.value,
    )
    sums = sum_scores(
        call.query,
        call.key,
        call.masking,
        scale=call.scale,
        real=torch.from_numpy(real),
    )
    shared = call.query.shape[1] // call.key.shape[1]
    for sequence in range(len(real)):
        for head in range(call.query.shape[1]):
            parts = (
                call.query[sequence, head],
                call.key[sequence, head // shared],
                call.value[sequence, head // shared],
            )
            query, key, value = (part.double().numpy() for part in parts)
            wanted = plain_statistics(
                query,
                key,
                value,
                seen[sequence],
                real[sequence],
                scale=call.scale,
                softcap=call.settings.get("softcap"),
                sinks=None if sinks is None else float(sinks[head]),
            )
            compare_head(got, wanted, sequence, head, real[sequence])
            compare_scores(
                sums,
                query * call.scale,
                key,
                seen[sequence],
                real[sequence],
                sequence,
                head,
            )


def compare_head(got, wanted, sequence, head, real):
    for name, value in wanted.items():
        place = f"{name} of sequence {sequence}, head {head}"
        if name == "output":
            if name in got:  # given if every row sees a key
                ours = got[name][sequence, :, head][torch.from_numpy(real)]
                np.testing.assert_allclose(
                    ours.double().numpy(), value, **NEAR, err_msg=place
                )
            continue
        if name == "row_similarity":
            ours = got[name][sequence, head]
        else:
            ours = got[name][sequence, head][torch.from_numpy(real)]
        near = (
            NEAR if name != "score" else {"rtol": 2e-5, "atol": 2e-4}
        )  # a sum of 700 products of either sign
        np.testing.assert_allclose(ours.double().numpy(), value, **near, err_msg=place)


def compare_scores(sums, query, key, seen, real, sequence, head):
    """Every sum of the scores' parts: of queries and keys, and of the covariance of the keys that each row sees."""
    rows, dim = np.flatnonzero(real), query.shape[1]
    lean, spread, variance = np.zeros(dim), np.zeros((dim, dim)), 0.0
    for row in rows:
        keys = key[seen[row]]
        covariance = np.atleast_2d(np.cov(keys.T, bias=True))
        variance += query[row] @ covariance @ query[row]
        lean += covariance @ query[row]
        spread += covariance
    used = key[seen[rows].any(0)]
    wanted = {
        "rows": len(rows),
        "query": query[rows].sum(0),
        "query_moment": query[rows].T @ query[rows],
        "keys": len(used),
        "key": used.sum(0),
        "row_variance": variance,
        "row_lean": lean,
        "row_spread": spread,
    }
    for name, value in wanted.items():
        got = sums[name][sequence, head].numpy()
        np.testing.assert_allclose(
            got, value, rtol=1e-8, atol=1e-8, err_msg=f"{name} of scores"
        )


def trouble_of(shape, seed):
    """What is wrong with one cell, in a line; empty if nothing is."""
    torch.set_num_threads(1)
    try:
        check_shape(shape, seed)
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        said = " ".join(str(error).split())[:300]
        return f"{type(error).__name__} in {place.name}: {said}"
    return ""


def main(argv=None):
    """Check every cell, in as many processes as there are cores; 1 if one fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only",
        default="",
        help="cells with this in their name, as causal-right-129 or bfloat16",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of the numbers in the tensors"
    )
    given = parser.parse_args(argv)
    shapes = [shape for shape in all_shapes() if given.only in shape.name]
    if not shapes:
        parser.error(
            f"no cell has {given.only!r} in its name; names are like {all_shapes()[0].name}"
        )
    failed = 0
    with ProcessPoolExecutor(min(os.cpu_count() or 1, len(shapes))) as pool:
        found = pool.map(partial(trouble_of, seed=given.seed), shapes, chunksize=4)
        for number, (shape, trouble) in enumerate(zip(shapes, found, strict=True), 1):
            if trouble:
                failed += 1
                sys.stdout.write(f"FAILED {shape.name}: {trouble}\n")
            if number % 100 == 0 or number == len(shapes):
                sys.stdout.write(
                    f"{number:,} of {len(shapes):,} cells, {failed} failed\n"
                )
                sys.stdout.flush()
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
