"""Batches of similar length within a token budget, and the hash that names a plan; for text, speech and images."""

import hashlib
import json
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from anisoscope.errors import UsageError

Index = NDArray[np.int64]


def pack(lengths: Index, budget: int) -> list[Index]:
    """Rows grouped into batches: longest first, ties by row number, rows × longest ≤ budget, at least one row each.

    lengths  [row] real positions of each row (tokens, frames, patches)
    budget   positions of one batch, padding counted

    The result depends on the lengths and the budget only, so every process and every resume finds the same batches.
    """
    if budget < 1:
        raise UsageError("a budget of at least 1 token per batch", str(budget), "raise --batch-tokens")
    order = np.argsort(-lengths, kind="stable").astype(np.int64)
    batches = []
    first = 0
    while first < len(order):
        rows = max(1, budget // max(1, int(lengths[order[first]])))
        batches.append(order[first : first + rows])
        first += rows
    return batches


def digest(parts: Iterable[object]) -> str:
    """SHA-256 of the parts in order. Arrays count by bytes, text by UTF-8, the rest as JSON; lengths part them."""
    total = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            data = np.ascontiguousarray(part).tobytes()
        elif isinstance(part, str):
            data = part.encode("utf-8", "surrogatepass")
        else:
            data = json.dumps(part, sort_keys=True).encode()
        total.update(len(data).to_bytes(8, "little"))
        total.update(data)
    return total.hexdigest()
