"""Judge all committed records by the code as it is, and keep what follows.

python papers/tools/verdicts.py              refuse if a verdict comes out as another than the committed one
python papers/tools/verdicts.py --why TEXT   take the new verdicts, and keep the old ones with the reason for the change
"""

import argparse
import math
import sys
from collections.abc import Iterable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from committed import (
    CHANGES,
    PUBLISHED,
    REPEATED,
    RESULTS,
    VERDICTS,
    published_table,
    read_repeated,
    read_verdicts,
    study_files,
    verdict_table,
    write_csv,
)
from numpy.typing import NDArray

from anisoscope.store import read_table, write_json, write_table
from anisoscope_papers import runner
from anisoscope_papers.runner import COMPARED

NUMBERS = ("value", "low", "high")
BITS = (17, 21, 25, 29, 37)
"""Of the numbers of committed records, of 53 that are measured; 17 are five digits."""
BITS_OF_POINTS = 11
"""Of points that are only drawn: three digits."""


def find_repeated() -> dict[str, list[list[str]]]:
    """Find verdicts on data that an earlier folder of the same study also holds.

    They are on the same claim and system (model), and every number that both recorded is the same, but for rounding.
    """
    tables: dict[str, dict[str, pd.DataFrame]] = {}
    found: dict[str, list[list[str]]] = {}
    for path in sorted(study_files()):
        paper, settings, study = path.parent.relative_to(RESULTS).parts
        records = read_table(path.parent / "records.parquet")
        earlier = tables.setdefault(f"{paper}/{study}", {})
        # By model: a folder may share some of its models with an earlier one.
        for model in records["model"].dropna().unique():
            rows = records[records["model"] == model]
            first = _find_same_data(rows, earlier)
            if not first:
                continue
            repeated = found.setdefault(f"{paper}/{settings}/{study}", [])
            for verdict in read_verdicts(path):
                if verdict["subject"] == model:
                    place = f"{paper}/{first}/{study}"
                    repeated.append([verdict["claim"], str(model), place])
        earlier[settings] = records
    return {place: rows for place, rows in found.items() if rows}


def _find_same_data(rows: pd.DataFrame, earlier: dict[str, pd.DataFrame]) -> str:
    """Return the settings of the first earlier records with every number of these rows; "" if there are none.

    earlier   {settings: records}, of the same study
    """
    for settings, records in earlier.items():
        if _same_data(rows, records):
            return settings
    return ""


KEYS = [
    "model",
    "metric",
    "site",
    "stack",
    "kind",
    "layer",
    "head",
    "step",
    "seed",
    "component",
    "token_policy",
]
"""What tells one number of records from another."""


def _same_data(rows: pd.DataFrame, others: pd.DataFrame) -> bool:
    """Return whether other records have every number of these rows; a few are checked first."""
    theirs = others[others["model"] == rows["model"].iloc[0]]
    if set(rows["seed"].dropna()) != set(theirs["seed"].dropna()):
        return False
    # About fifty rows first: most comparisons end there.
    return _all_in(rows.iloc[:: len(rows) // 50 + 1], theirs) and _all_in(rows, theirs)


def _all_in(rows: pd.DataFrame, others: pd.DataFrame) -> bool:
    """Return whether other records have the number of every row, apart from counts of histograms, which jump at bin
    edges.
    """
    rows = rows[~rows["metric"].str.contains("histogram")]
    both = rows[[*KEYS, "value"]].merge(
        others[[*KEYS, "value"]], on=KEYS, how="left", suffixes=("", "_there")
    )
    # A place that is recorded twice there cannot be compared.
    if len(both) != len(rows):
        return False
    return bool(
        np.allclose(
            both["value"].to_numpy(float),
            both["value_there"].to_numpy(float),
            rtol=2e-3,
            atol=1e-5,
        )
    )


def round_records(done: runner.Finished) -> runner.Finished:
    """Round a study's numbers to the fewest BITS that change no conclusion, metric by metric.

    Records already rounded stay. Points, which are only drawn, get fewer bits.
    """
    # Points of clouds are drawn and not judged.
    for metric in done.records["metric"].unique():
        if ".cloud." in metric:
            done = _round_rows(done, BITS_OF_POINTS, metric)
    # Rounding again would go on to fewer bits at every call.
    if any(_round_rows(done, bits).records.equals(done.records) for bits in BITS):
        return done
    # What the full numbers say is the standard.
    before = conclude(done)
    rounded = done
    fewer_bits: tuple[int, ...] = BITS
    for place, bits in enumerate(BITS):
        every_metric = _round_rows(done, bits)
        if all(map(alike, conclude(every_metric), before)):
            rounded, fewer_bits = every_metric, BITS[:place]
            break
    # One metric may need all of these bits, or all that were measured, and the others fewer.
    for metric in done.records["metric"].unique():
        for bits in fewer_bits:
            fewer = _round_rows(rounded, bits, metric)
            if all(map(alike, conclude(fewer), before)):
                rounded = fewer
                break
    return rounded


def _round_rows(done: runner.Finished, bits: int, metric: str = "") -> runner.Finished:
    """Return a study with the numbers of its records rounded to so many bits; of one metric alone, if it is named."""
    records = done.records.copy()
    # All rows, or those of one metric.
    rows = (
        records["metric"] == metric if metric else pd.Series(True, index=records.index)
    )
    for name in NUMBERS:
        records.loc[rows, name] = round_to_bits(
            records.loc[rows, name].to_numpy(float), bits
        )
    return replace(done, records=records)


def conclude(done: runner.Finished) -> list[dict[str, Any]]:
    """Return the verdicts, and the published numbers with ours."""
    return [asdict(v) for v in done.verdicts] + [
        asdict(c) | {"outcome": c.verdict} for c in done.compared
    ]


def alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether two conclusions agree: the same outcome, reason and n, and nearly the same numbers.

    p may differ by a hundredth of it, number and interval by a thousandth of the interval's width.
    """
    # A conclusion without an interval has no width: its number must be the same.
    known = [name for name in NUMBERS if other[name] is not None]
    width = other["high"] - other["low"] if len(known) == 3 else 0.0
    if any(
        one.get(name) != other.get(name)
        for name in ("claim", "subject", "place", "outcome", "n", "reason")
    ):
        return False
    # Conclusions without a test have no p.
    p = math.nan if one.get("p") is None else one["p"]
    before = math.nan if other.get("p") is None else other["p"]
    close = partial(np.isclose, equal_nan=True)
    ends = (
        one[name] is not None and close(one[name], other[name], 1e-9, 1e-3 * width)
        for name in known
    )
    return all(ends) and bool(close(p, before, 0.01, 0))


def round_to_bits(values: NDArray[np.float64], bits: int) -> NDArray[np.float64]:
    """Round to so many bits of mantissa; NaN and infinite values do not change."""
    # x = mantissa · 2^exponent, with a mantissa between ½ and 1.
    mantissa, exponent = np.frexp(values)
    cut: NDArray[np.float64] = np.ldexp(
        np.round(mantissa * 2**bits) / 2**bits, exponent
    )
    return cut


IDENTITY = ["paper", "settings", "study", "claim", "subject"]
"""What tells one verdict from another."""


def find_changes(before: pd.DataFrame, now: pd.DataFrame, why: str) -> pd.DataFrame:
    """Return the rows of `CHANGES` for verdicts that have changed; new claims and records are no changes.

    before, now   tables as `committed.verdict_table` makes them
    """
    both = before.merge(now, on=IDENTITY, how="left", suffixes=("_before", ""))
    # A verdict that is gone is a change as well.
    both["verdict"] = both["verdict"].fillna("")
    different = both[both["verdict"] != both["verdict_before"]]
    records = (
        different["paper"] + "/" + different["settings"] + "/" + different["study"]
    )
    columns = {
        "records": records,
        "claim": different["claim"],
        "subject": different["subject"],
        "before": different["verdict_before"],
        "value_before": different["value_before"],
        "now": different["verdict"],
        "value_now": different["value"],
        "why": why,
    }
    return pd.DataFrame(columns)


def find_compression(path: Path) -> str:
    """Return the name of the compression of a parquet file, such as BROTLI, as its first column says."""
    from pyarrow import parquet  # type: ignore[import-untyped]

    group = parquet.ParquetFile(path).metadata.row_group(0)
    return str(group.column(0).compression)


def judge_records() -> None:
    """Judge all committed records again, and write verdicts, comparisons and claims."""
    for folder in runner.list_reproductions(RESULTS):
        read = runner.open_finished(folder)
        done = round_records(read)
        path = folder / "records.parquet"
        # Committed files are written once and downloaded by everyone, so that the slow, smaller format pays.
        if not done.records.equals(read.records) or find_compression(path) != "BROTLI":
            write_table(path, done.records, compression="brotli")
        write_json(folder / "verdicts.json", [asdict(v) for v in done.verdicts])
        if (folder / COMPARED).exists():
            write_json(
                folder / COMPARED,
                [asdict(c) | {"verdict": c.verdict} for c in done.compared],
            )
        write_json(
            folder / "study.json",
            done.described | {"claims": runner.describe_claims(done.study)},
        )
    write_json(REPEATED, find_repeated())
    # The table below reads what was just written.
    read_repeated.cache_clear()


def main(arguments: Iterable[str] | None = None) -> None:
    """Judge all records, then write the tables of `committed`; exit with an error if verdicts changed
    without a reason.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--why",
        default="",
        metavar="TEXT",
        help="why verdicts are others than the committed ones",
    )
    why = parser.parse_args(None if arguments is None else list(arguments)).why
    judge_records()
    now = verdict_table()
    # "" is a subject, and no missing value.
    changes = find_changes(pd.read_csv(VERDICTS, keep_default_na=False), now, why)
    if len(changes) and not why:
        shown = changes.drop(columns="why").to_string(index=False)
        sys.exit(
            f"{shown}\n{len(changes)} verdicts changed. Give the reason: --why TEXT, or take the change back."
        )
    write_csv(VERDICTS, now)
    write_csv(PUBLISHED, published_table())
    if len(changes):
        write_csv(
            CHANGES, pd.concat([pd.read_csv(CHANGES, keep_default_na=False), changes])
        )


if __name__ == "__main__":
    main()
