"""Every page's words, numbers and charts, and every table of the command line, as they were looked at.

What is meant to change is written anew by `python tests/goldens.py`; its diff is looked at, line by line.
"""

import json
import tempfile
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from functools import partial
from io import StringIO
from itertools import product
from pathlib import Path
from typing import Any

import goldens
import numpy as np
import pandas as pd
import pytest
from test_report import synthetic_manifest, synthetic_records, write_run

from anisoscope.cli import printed_tables, view
from anisoscope.data.corpora import CORPORA
from anisoscope.report import build_page
from anisoscope.runs.findings import findings
from anisoscope.store import as_records

Told = dict[str, Any]


def page(fill: Callable[[Path], Path]) -> Told:
    """The text of a page and its charts; `fill` builds it in a folder."""
    with tempfile.TemporaryDirectory() as folder, goldens.no_drawing() as charts:
        lines = [
            line.replace(folder, "") for line in goldens.text_of(fill(Path(folder)))
        ]
        return {"text": lines, "charts": goldens.wide_and_narrow(charts)}


def of_run(folder: Path) -> Path:
    records = synthetic_records(layers=3, heads=2, stacks=("encoder", "decoder"))
    manifest = synthetic_manifest() | {
        "nested": {"list": [1, 2], "none": None, "number": 0.5}
    }
    return build_page(write_run(folder, records, manifest))


def of_one_stack(folder: Path) -> Path:
    """Of images: other words, no policies but one, unknown time; every vector counted anew by its metric."""
    records = synthetic_records(layers=4, heads=3)
    records = records[records["token_policy"].fillna("content").eq("content")]
    order = list(dict.fromkeys(records["metric"]))
    records = records.assign(
        n_vectors=[1000 + order.index(metric) for metric in records["metric"]]
    )
    words = {
        "position": "patch",
        "sequence": "image",
        "unit": "image",
        "counted": "image",
    }
    corpus = {"name": "photographs", "n_units": 7, "n_tokens": 7, "words": words}
    return build_page(
        write_run(
            folder,
            records,
            {"model": "./models/vit", "corpus": corpus, "device": "cuda:0"},
        )
    )


def of_depth(layers: int, folder: Path) -> Path:
    records = synthetic_records(layers=layers, heads=2)
    return build_page(
        write_run(
            folder,
            records[records["metric"].eq("attention.first_mass")],
            {"model": "m"},
        )
    )


def of_series(folder: Path) -> Path:
    """Two seeds of four checkpoints, whose numbers grow with the step."""
    parts, rows = [], []
    for seed in (0, 1):
        for at, step in enumerate((0, 1, 10, 1000)):
            name = f"seed-{seed}/step-{step}"
            part = synthetic_records(layers=2, heads=2).assign(step=step, seed=seed)
            numbers = ["value", "low", "high"]
            part[numbers] = part[numbers] * (1 + at + 0.1 * seed) / 5
            parts.append(part)
            rows.append({"subject": name, "step": step, "seed": seed, "folder": name})
            write_run(
                folder / name,
                part,
                synthetic_manifest() | {"warnings": [f"one of {name}"]},
            )
    pd.concat(parts).to_parquet(folder / "records.parquet")
    skipped = {"step-7": "no such file"}
    about = {
        "model": "series",
        "checkpoints": rows,
        "skipped": skipped,
        "repeated": [["seed-0", "seed-1"]],
    }
    (folder / "series.json").write_text(json.dumps(about))
    return build_page(folder)


def class_records() -> pd.DataFrame:
    """A classifier of three classes: directions, attention replaced, words explained."""
    rng, rows = np.random.default_rng(1), []

    def row(metric: str, layer: float | None, value: float, **more: Any) -> None:
        ends = {
            "low": value - 0.05,
            "high": value + 0.05,
            "n_units": 90 + len(rows) % 2,
            "n_vectors": 90,
        }
        rows.append(
            {
                "metric": metric,
                "layer": layer,
                "value": value,
                "site": "hidden",
                **ends,
                **more,
            }
        )

    for layer in range(4):
        row("class_direction.auc", layer, 0.6 + 0.1 * layer)
        row("class_direction.nearest", layer, 0.5 + 0.1 * layer)
        for pair in ("a × a", "a × b", "b × b", "a × c", "c × c", "b × c"):
            row("class_direction", layer, rng.uniform(-0.2, 0.9), component=pair)
    for component in ("uniform", "shuffled"):
        for layer in (1, 2, 3, None):
            for name in ("accuracy", "agreement", "cls", "output"):
                row(
                    f"ablation.{name}",
                    layer,
                    rng.uniform(-0.3, 0.9),
                    component=component,
                )
    for component in ("attention", "value norm", "random", "rare", "unlisted"):
        for layer in (None,) if component in ("random", "rare") else (1, 2, 3):
            for name in ("auprc", "auroc", "iou", "comprehensiveness", "sufficiency"):
                row(
                    f"attribution.{name}",
                    layer,
                    rng.uniform(0.1, 0.9),
                    component=component,
                )
    row("accuracy", None, 0.91, site=None)
    row("majority", None, 0.4, site=None)
    table = pd.DataFrame(rows).assign(stack="encoder", kind="self")
    return as_records(table, run="r", model="m", corpus="synthetic:3")


def of_classes(folder: Path) -> Path:
    return build_page(
        write_run(folder, class_records(), {"model": "m", "corpus": "synthetic:3"})
    )


def of_two_layers(folder: Path) -> Path:
    records = class_records()
    return build_page(
        write_run(folder, records[records["layer"].isin([1, 2])], {"model": "m"})
    )


def some_of(what: str, names: tuple[str, ...]) -> view.Table:
    """Some rows of a list, so that one more of its kind changes nothing here."""
    table = printed_tables.list_entries(what)
    rows = [row for row in table.rows if row[0] in names]
    assert len(rows) == len(names)
    return replace(
        table, rows=rows, records=table.records[table.records["name"].isin(names)]
    )


def printed() -> Told:
    """Tables of the command line in every form, at the width of no terminal and of a narrow one."""
    one, two = (
        synthetic_records(layers=2, heads=2, stacks=stacks)
        for stacks in (("encoder",), ("encoder", "decoder"))
    )
    series = pd.concat(
        [one.assign(step=step, seed=seed) for seed in (0, 1) for step in (0, 1000)]
    )
    heads = series[series["head"].notna()]
    shown = {
        "run": [printed_tables.tabulate_layers(one)],
        "wide": [printed_tables.tabulate_layers(two, wide=True)],
    }
    shown["classes"] = printed_tables.tabulate_classes(class_records())
    shown["series"] = [printed_tables.tabulate_series(series, "content")]
    shown["series of heads"] = [printed_tables.tabulate_series(heads, "all")]
    shown["metrics"] = [
        some_of("metrics", ("attention", "drift", "mean_cosine", "spectrum"))
    ]
    with (
        pytest.MonkeyPatch.context() as patched
    ):  # what other packages add is theirs to look at
        patched.setattr(
            "anisoscope.data.corpora.list_entries_of", lambda _group: CORPORA
        )
        patched.delenv("ANISOSCOPE_DATA", raising=False)
        shown |= {
            "nothing": [printed_tables.tabulate_layers(heads)],
            "corpora": [
                some_of(
                    "corpora",
                    ("builtin:digits", "common-voice", "synthetic", "wikitext-103"),
                )
            ],
        }
    told: Told = {}
    for name, (form, width) in product(
        shown, [("table", None), ("table", 50), ("csv", None), ("markdown", None)]
    ):
        stream = StringIO()
        with pytest.MonkeyPatch.context() as patched, redirect_stdout(stream):
            patched.setattr(view, "count_columns", lambda _stream, width=width: width)
            view.show(
                shown[name],
                view.View(format=form),
                findings(one)[:2] if name == "run" else (),
            )
        lines = stream.getvalue().split("\n")
        told[f"{name}, {form} {width or ''}".strip()] = (
            lines if form != "csv" else [*lines[:3], len(lines), *lines[-2:]]
        )
    return told


_PAGES = (of_run, of_one_stack, of_series, of_classes, of_two_layers)
PAGES = {made.__name__: made for made in _PAGES}
PAGES |= {f"of_depth_{layers}": partial(of_depth, layers) for layers in (23, 24)}
MADE = {
    "printed": printed,
    **{f"page_{name}": partial(page, made) for name, made in PAGES.items()},
}


@pytest.mark.parametrize("name", MADE)
def test_it_is_as_it_was_looked_at(name: str) -> None:
    goldens.check(name, MADE[name]())
