"""Markdown cards of a run, for the page of a data set or a model on the Hugging Face hub, and a badge with its A."""

import json
from collections.abc import Mapping
from html import escape
from pathlib import PurePath
from typing import Any

import pandas as pd

from anisoscope.runs.findings import findings, judge_stacks
from anisoscope.runs.short_tables import short_table
from anisoscope.wording import format_count, format_short, name_layer

COLOURS = {"anisotropic": "#b45309", "isotropic": "#117733", "undecided": "#52606d", "": "#52606d"}
"""Colours of the right half of a badge, by the verdict on the strongest layer."""
CHARACTER, MARGIN, HEIGHT = 6.6, 8, 20
"""Width of a character of a badge, the space around a word, and the height, in pixels."""

HOW_TO_READ = """\
## How to read it

```python
import anisoscope
from huggingface_hub import snapshot_download

run = anisoscope.Run(snapshot_download("{repository}", repo_type="dataset"))
print(run.table())
```

`records.parquet` has a row for every number: metric, site, layer, head and component with `value`, its 95 % interval
`low`, `high`, `n_vectors` and `n_units`. `manifest.json` says what was measured, with what and from where.
`replicates.parquet`, if it is there, lets `anisoscope compare` pair this run with another one of the same
units.{own_page}
"""


def draw_badge(records: pd.DataFrame) -> str:
    """Draw an SVG badge with the anisotropy of the strongest layer: `anisotropy | A .327, layer 5`.

    It says `not measured` if the records hold no anisotropy.
    """
    shown, verdict = "not measured", ""
    if found := judge_stacks(records):
        top = max((depth.top for depth in found), key=lambda row: row.value)
        shown, verdict = f"A {format_short(top.value)}, {name_layer(top)}", str(top.verdict)
    left = round(len("anisotropy") * CHARACTER + 2 * MARGIN)
    right = round(len(shown) * CHARACTER + 2 * MARGIN)
    text = 'font-family="Verdana, DejaVu Sans, sans-serif" font-size="11" fill="#ffffff" text-anchor="middle"'
    label = escape(f"anisotropy: {shown}" + (f", {verdict}" if verdict else ""))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="{HEIGHT}" role="img" '
        f'aria-label="{label}"><title>{label}</title>'
        f'<rect width="{left + right}" height="{HEIGHT}" rx="3" fill="#374151"/>'
        f'<path d="M{left} 0h{right - 3}a3 3 0 0 1 3 3v{HEIGHT - 6}a3 3 0 0 1 -3 3h-{right - 3}z" '
        f'fill="{COLOURS.get(verdict, COLOURS[""])}"/>'
        f'<text x="{left / 2}" y="14" {text}>anisotropy</text>'
        f'<text x="{left + right / 2}" y="14" {text}>{escape(shown)}</text></svg>\n'
    )


def write_model_card(records: pd.DataFrame, manifest: Mapping[str, Any], repository: str = "") -> str:
    """Return a Markdown section for a model's card: the findings, and the anisotropy A of every layer.

    repository  the data set that the run was pushed to, for its badge and a link
    """
    lines = ["## Geometry of its representations", ""]
    if repository:
        page = f"https://huggingface.co/datasets/{repository}"
        lines += [f"[![anisotropy]({page}/resolve/main/badge.svg)]({page})", ""]
    lines += [f"Measured with Anisoscope {_name_version(manifest)} on {_describe_corpus(records, manifest)}.", ""]
    return "\n".join([*lines, *_list_findings(records), *_tabulate_layers(records)]).rstrip() + "\n"


def write_dataset_card(
    records: pd.DataFrame, manifest: Mapping[str, Any], repository: str, *, licence: str = "", page: bool = False
) -> str:
    """Return the README of a data set that holds a run: metadata, findings, how to read it and how it was made.

    licence  its identifier on the hub, for the metadata; empty: the card states none
    page     whether report.html is in the same folder
    """
    model = name_model(manifest)
    lines = ["---", f"pretty_name: {json.dumps(f'Geometry of {model}', ensure_ascii=False)}"]
    lines += [f"license: {json.dumps(licence)}"] if licence else []
    lines += ["tags:", "- anisoscope", "- anisotropy", "- interpretability"]
    lines += ["configs:", "- config_name: default", "  data_files: records.parquet", "---", ""]
    lines += [f"# Geometry of {model}", "", "![anisotropy](badge.svg)", ""]
    lines += [f"Measured with Anisoscope {_name_version(manifest)} on {_describe_corpus(records, manifest)}.", ""]
    lines += [*_list_findings(records), *_tabulate_layers(records)]
    own_page = " `report.html` is the page of the run." if page else ""
    lines += [HOW_TO_READ.format(repository=repository, own_page=own_page), "## How it was made", ""]
    made = {
        "command": f"`{manifest['command']}`" if manifest.get("command") else "",
        "model": manifest.get("model"),
        "revision": manifest.get("revision"),
        "weights (SHA-256)": manifest.get("weights_sha256"),
        "architecture": manifest.get("architecture"),
        "run": manifest.get("run"),
    }
    lines += [f"- {name}: {value}" for name, value in made.items() if value]
    lines += [f"- note: {text}" for text in manifest.get("warnings") or ()]
    return "\n".join(lines).rstrip() + "\n"


def name_model(manifest: Mapping[str, Any]) -> str:
    """Return the model's name; for a local folder, the last part of its path."""
    name = str(manifest.get("model") or "unnamed model").removeprefix("…/")
    return PurePath(name).name if PurePath(name).is_absolute() else name


def _name_version(manifest: Mapping[str, Any]) -> str:
    """Return the version of Anisoscope that made the run."""
    return str((manifest.get("code") or {}).get("version", "")) or "of an unknown version"


def _describe_corpus(records: pd.DataFrame, manifest: Mapping[str, Any]) -> str:
    """Return the name of the corpus and the number of its units that were measured."""
    corpus = manifest.get("corpus")
    described = corpus if isinstance(corpus, Mapping) else {"name": corpus}
    name = str(described.get("name") or "an unnamed corpus").removeprefix("…/")
    units = records["n_units"].max() if len(records) else None
    size = "" if units is None or pd.isna(units) else f" ({format_count(units)} units)"
    return (PurePath(name).name if PurePath(name).is_absolute() else name) + size


def _list_findings(records: pd.DataFrame) -> list[str]:
    """Return the findings of a run as a Markdown list."""
    lines = [f"- {finding.text}" for finding in findings(records)]
    return [*lines, ""] if lines else []


def _tabulate_layers(records: pd.DataFrame) -> list[str]:
    """Return the anisotropy A of every layer as a Markdown table; an empty list if it was not measured."""
    table = short_table(records)
    if not len(table):
        return []
    keys = [key for key in ("seed", "step", "stack") if key in table and table[key].nunique() > 1]
    head = [*keys, "layer", "A", "95 % interval", "verdict"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in table.to_dict("records"):
        layer = "final norm" if row["site"] == "final" else str(row["layer"])
        ends = "–" if pd.isna(row["low"]) else f"[{format_short(row['low'])}, {format_short(row['high'])}]"
        verdict = "" if pd.isna(row["verdict"]) else str(row["verdict"])
        cells = [*(str(row[key]) for key in keys), layer, format_short(row["A"]), ends, verdict]
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]
