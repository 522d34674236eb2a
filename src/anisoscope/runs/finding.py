"""A finding: one sentence that the records of a run support, with the numbers behind it."""

from dataclasses import dataclass
from typing import Any

import pandas as pd

ENTRIES = (
    "metric",
    "stack",
    "layer",
    "site",
    "component",
    "value",
    "low",
    "high",
    "n_vectors",
    "n_units",
)


@dataclass(frozen=True)
class Finding:
    """A sentence, the rule that made it, and the records it rests on (columns as in the long table)."""

    rule: str
    text: str
    numbers: tuple[dict[str, Any], ...] = ()


def entry(row: Any) -> dict[str, Any]:
    """Return the columns of a record that a finding keeps (`ENTRIES`) as a plain dict; missing values become None."""
    found: dict[str, Any] = {}
    for name in ENTRIES:
        value = getattr(row, name)
        if pd.isna(value):
            value = None
        # Numbers of numpy and pandas cannot be written as JSON.
        elif hasattr(value, "item"):
            value = value.item()
        found[name] = value
    return found
