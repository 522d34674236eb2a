"""What a model's dtype moves, and what measuring costs in it: every dtype and attention function against float64.

    python benchmarks/dtypes.py                                # the built-in encoder on this CPU: some minutes
    python benchmarks/dtypes.py --dtypes bfloat16 --limit 2 --pairs 1

The same windows are measured in float64 with the `eager` attention first. A difference is that of two records with the
same name, the largest over all layers, heads and tokens: what the model computes in its dtype and what we make of that
are in it together. The effective rank is compared relative to itself.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd
import torch
from overhead import Running, bare
from pairs import BARE, against, keep_by_threads, options, told

from anisoscope.batch import Batch
from anisoscope.measure.settings import Settings
from anisoscope.models.load import load
from anisoscope.runs.job import Job
from anisoscope.runs.run import open_plan_of

MODEL = "builtin:minilm"
DTYPES, ATTENTION = ("float64", "float32", "bfloat16", "float16"), ("eager", "sdpa")
EXACT = ("float64", "eager")
METRICS = (
    "mean_cosine",
    "drift",
    "norms.variation",
    "spectrum.effective_rank",
    "attention.entropy",
    "attention.row_max",
    "attention.first_mass",
    "attention.row_similarity",
    "query_key.cosine",
)
RELATIVE = {"spectrum.effective_rank"}
PLACE = [
    "stack",
    "kind",
    "layer",
    "head",
    "site",
    "token_policy",
    "metric",
    "component",
]
"""Columns that say which record one is."""
Given = Any


def model_in(dtype: str, attention: str) -> torch.nn.Module:
    """Load the built-in encoder in a dtype, with one of transformers' attention functions."""
    model: Any = load(MODEL, dtype=dtype).model
    model.set_attn_implementation(attention)
    return model  # type: ignore[no-any-return]


def batches_of(given: Given) -> list[Batch]:
    """Read the windows of the corpus once."""
    job = Job(limit=given.limit, batch_tokens=given.batch_tokens)
    plan, _ = open_plan_of(job, load(MODEL))
    return list(plan)


def records_of(model: torch.nn.Module, batches: Sequence[Batch]) -> pd.DataFrame:
    """Measure all panels, and return value and interval of each record of `METRICS`, by place."""
    running = Running(model, Settings(), whole=True)
    running(batches)
    table = running.measurement.records()
    return (
        table[table["metric"].isin(METRICS)]
        .set_index(PLACE)[["value", "low", "high"]]
        .sort_index()
    )


def differences(table: pd.DataFrame, exact: pd.DataFrame) -> dict[str, float]:
    """Return the largest difference from the exact records by metric."""
    assert table.index.equals(exact.index)
    assert (table["value"].isna() == exact["value"].isna()).all()
    moved, found = (table["value"] - exact["value"]).abs(), {}
    for metric in METRICS:
        here = moved.index.get_level_values("metric") == metric
        by = exact["value"][here].abs() if metric in RELATIVE else 1.0
        found[metric] = float((moved[here] / by).max())
    return found


def half_widths(exact: pd.DataFrame) -> dict[str, float]:
    """Return the median half-width of the intervals by metric; relative where differences are."""
    found = {}
    for metric in METRICS:
        rows = exact[exact.index.get_level_values("metric") == metric]
        by = rows["value"].abs() if metric in RELATIVE else 1.0
        found[metric] = float(((rows["high"] - rows["low"]) / 2 / by).median())
    return found


def compared(given: Given) -> Iterator[dict[str, Any]]:
    """Yield a row for each dtype and attention function."""
    batches = batches_of(given)
    exact = records_of(model_in(*EXACT), batches)
    usual = model_in("float32", "sdpa")
    for dtype in given.dtypes:
        for attention in ATTENTION:
            model = model_in(dtype, attention)
            apart = differences(records_of(model, batches), exact)
            found = against(
                bare(model),
                {"all": Running(model, Settings())},
                [batches[:1]],
                given.pairs,
            )
            own = against(
                bare(usual), {"own": bare(model)}, [batches[:1]], given.pairs
            )["own"]
            costs = f"{told(found['all'])} × bare, bare {told(own)} × float32"
            print(f"{dtype} {attention}: {costs}, apart {apart}", flush=True)
            both = {clock: found[BARE][clock] for clock in ("processor", "wall")}
            place = {
                "model": MODEL,
                "device": "cpu",
                "dtype": dtype,
                "attention": attention,
            }
            of_float32 = {"bare of float32": own["processor"], "bare": both}
            yield (
                place
                | {"apart": apart, "half width": half_widths(exact)}
                | of_float32
                | found["all"]
            )


def main(argv: Sequence[str] | None = None) -> None:
    parser = options(__doc__)
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--limit", type=int, default=10, help="documents")
    parser.add_argument("--batch-tokens", type=int, default=1024)
    given = parser.parse_args(argv)
    key = ("model", "device", "dtype", "attention")
    keep_by_threads(given, "dtypes", lambda: compared(given), key)


if __name__ == "__main__":
    main()
