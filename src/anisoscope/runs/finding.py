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
    found = {name: getattr(row, name) for name in ENTRIES}
    return {
        name: None if pd.isna(x) else x.item() if hasattr(x, "item") else x
        for name, x in found.items()
    }
