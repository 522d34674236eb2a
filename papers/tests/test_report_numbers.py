"""Which numbers a page shows: what is chosen among layers, heads, steps and dimensions, and what is made of them."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from test_report import synthetic_manifest, synthetic_records

from anisoscope.charts import style
from anisoscope.report.page import list_tiles
from anisoscope.report.parts import Figure
from anisoscope.report.results import Results
from anisoscope.report.sections import build_sections
from anisoscope.store import as_records
from anisoscope_papers import series_charts


def figures_of(records: pd.DataFrame, **manifest: Any) -> dict[str, Figure]:
    built = build_sections(Results(records, synthetic_manifest() | manifest))
    return {figure.name: figure for section in built for figure in section.figures}


def rows_of(figure: Figure) -> pd.DataFrame:
    """The rows of a chart."""
    described = figure.draw(640).to_dict()
    (rows,) = described["datasets"].values()
    return pd.DataFrame(rows)


def of(records: pd.DataFrame, metric: str, site: str = "hidden") -> pd.Series:
    return records["metric"].eq(metric) & records["site"].eq(site)


def test_the_band_reaches_to_the_largest_bound_of_any_layer() -> None:
    """Layers of different width have different bounds: above the smallest is no sign of anisotropy in all of them."""
    records = synthetic_records(layers=2, heads=0)
    law = records["metric"].eq("mean_cosine.isotropic_q95")
    records.loc[law, "value"] = 0.05 + 0.11 * records.loc[law, "layer"].eq(1)
    figure = figures_of(records)["anisotropy"]
    assert ".16" in figure.caption and ".05" not in figure.caption
    assert '"calculate": "0.16"' in str(figure.draw(640).to_json())


def test_a_course_of_heads_is_their_mean_and_their_range() -> None:
    steps = (0, 10)
    records = as_records(
        pd.concat(
            [synthetic_records(layers=1, heads=5).assign(step=step) for step in steps]
        )
    )
    cosine = records["metric"].eq("query_key.cosine")
    values = [-0.2, 0.0, 0.0, 0.1, 0.9]
    records.loc[cosine, "value"] = values * len(steps)
    found = figures_of(records, checkpoints=[{"step": step} for step in steps])
    shown = [
        rows_of(figure)
        for figure in found.values()
        if set(figure.draw(640).to_dict()["datasets"])
    ]
    ends = [
        tuple(row)
        for rows in shown
        if {"low", "high"} <= set(rows)
        for row in rows[["low", "value", "high"]].to_numpy()
    ]
    assert (-0.2, pytest.approx(np.mean(values)), 0.9) in ends


def test_the_dimensions_that_contribute_most_are_shown_the_largest_first() -> None:
    records = synthetic_records(layers=1, heads=0)
    parts = of(records, "mean_cosine.contribution")
    records = pd.concat(
        [records[~parts], records[parts].iloc[::-1]], ignore_index=True
    )  # the smallest first
    rows = rows_of(figures_of(records)["top-dimensions"])
    largest = records[
        of(records, "mean_cosine.contribution")
        & records["layer"].eq(1)
        & records["token_policy"].eq("all")
    ]
    assert rows["value"].tolist() == pytest.approx(
        sorted(largest["value"], reverse=True)[:10]
    )


def test_heads_before_the_rotation_are_shown_where_both_are_there() -> None:
    records = synthetic_records(layers=1, heads=2)
    turned = records[of(records, "query_key.cosine", "query.raw")].assign(
        site="query.rotated", value=0.123
    )
    rows = rows_of(
        figures_of(as_records(pd.concat([turned, records])))["query-key-cosine"]
    )
    expected = records.loc[of(records, "query_key.cosine", "query.raw"), "value"]
    assert sorted(rows["value"]) == pytest.approx(sorted(expected))


def test_the_tiles_of_a_series_are_of_its_last_step() -> None:
    records = [
        synthetic_records(layers=1, heads=1).assign(step=step) for step in (0, 10, 20)
    ]
    records[2].loc[of(records[2], "mean_cosine", "final"), "value"] = 0.987
    records[0].loc[of(records[0], "mean_cosine", "final"), "value"] = 0.654
    manifest = synthetic_manifest() | {
        "checkpoints": [{"step": step} for step in (0, 10, 20)]
    }
    results = Results(as_records(pd.concat(records)), manifest)
    assert list_tiles(results.last)[0][:2] == ("highest anisotropy A", ".987")


def test_the_most_anisotropic_place_is_where_a_is_largest_not_where_it_is_furthest_from_zero() -> (
    None
):
    records = synthetic_records(layers=2, heads=0)
    records.loc[of(records, "mean_cosine") & records["layer"].eq(0), "value"] = -0.99
    results = Results(records, synthetic_manifest())
    assert results.peak is not None and results.peak["layer"] == 2


def test_an_interval_without_one_of_its_ends_is_none() -> None:
    ends = pd.DataFrame(
        {
            "layer": 1,
            "value": 0.5,
            "low": [0.4, np.nan, 0.4, np.nan],
            "high": [0.6, 0.6, np.nan, np.nan],
        }
    )
    shown = [
        text.partition("]")[0].partition("[")[2]
        for text in style.make_tooltips(ends, "layer")
    ]
    assert shown == ["0.4, 0.6", "", "", ""]


def test_the_path_of_a_head_is_that_of_the_first_seed() -> None:
    rows = [
        {
            "metric": "svd.union.query",
            "component": str(k),
            "seed": seed,
            "step": step,
            "value": 100 * seed + 10 * step + k,
        }
        for seed in (4, 2)
        for step in (8, 0)
        for k in (1, 2)
    ]
    path = series_charts._select_path(as_records(pd.DataFrame(rows)), "union", "query")
    assert path.to_numpy().tolist() == [[0, 201, 202], [8, 281, 282]] and list(
        path
    ) == ["step", "d1", "d2"]
