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

COLOURS = {
    "anisotropic": "#b45309",
    "isotropic": "#117733",
    "undecided": "#52606d",
    "": "#52606d",
}
"""Colours of the right half of a badge, by the verdict on the strongest layer."""
CHARACTER = 6.6
MARGIN = 8
HEIGHT = 20
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
    shown = "not measured"
    verdict = ""
    stacks = judge_stacks(records)
    if stacks:
        top = max((depth.top for depth in stacks), key=lambda row: row.value)
        shown = f"A {format_short(top.value)}, {name_layer(top)}"
        verdict = str(top.verdict)
    # Widths are estimates: an SVG that hubs show as a picture cannot measure its text.
    left = round(len("anisotropy") * CHARACTER + 2 * MARGIN)
    right = round(len(shown) * CHARACTER + 2 * MARGIN)
    text = 'font-family="Verdana, DejaVu Sans, sans-serif" font-size="11" fill="#ffffff" text-anchor="middle"'
    label = f"anisotropy: {shown}"
    if verdict:
        label += f", {verdict}"
    label = escape(label)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="{HEIGHT}" role="img" '
        f'aria-label="{label}"><title>{label}</title>'
        f'<rect width="{left + right}" height="{HEIGHT}" rx="3" fill="#374151"/>'
        f'<path d="M{left} 0h{right - 3}a3 3 0 0 1 3 3v{HEIGHT - 6}a3 3 0 0 1 -3 3h-{right - 3}z" '
        f'fill="{COLOURS.get(verdict, COLOURS[""])}"/>'
        f'<text x="{left / 2}" y="14" {text}>anisotropy</text>'
        f'<text x="{left + right / 2}" y="14" {text}>{escape(shown)}</text></svg>\n'
    )


def write_model_card(
    records: pd.DataFrame, manifest: Mapping[str, Any], repository: str = ""
) -> str:
    """Return a Markdown section for a model's card: the findings, and the anisotropy A of every layer.

    repository  the data set that the run was pushed to, for its badge and a link
    """
    lines = ["## Geometry of its representations", ""]
    if repository:
        # The badge is a file of the data set that the run was pushed to.
        page = f"https://huggingface.co/datasets/{repository}"
        lines += [f"[![anisotropy]({page}/resolve/main/badge.svg)]({page})", ""]
    lines += [
        f"Measured with Anisoscope {_name_version(manifest)} on {_describe_corpus(records, manifest)}.",
        "",
    ]
    lines += _list_findings(records, manifest)
    lines += _tabulate_layers(records)
    return "\n".join(lines).rstrip() + "\n"


def write_dataset_card(
    records: pd.DataFrame,
    manifest: Mapping[str, Any],
    repository: str,
    *,
    licence: str = "",
    page: bool = False,
) -> str:
    """Return the README of a data set that holds a run: metadata, findings, how to read it and how it was made.

    licence  its identifier on the hub, for the metadata; empty: the card states none
    page     whether report.html is in the same folder
    """
    title = f"Geometry of {name_model(manifest)}"
    lines = _write_metadata(title, licence)
    lines += [f"# {title}", "", "![anisotropy](badge.svg)", ""]
    lines += [
        f"Measured with Anisoscope {_name_version(manifest)} on {_describe_corpus(records, manifest)}.",
        "",
    ]
    lines += _list_findings(records, manifest)
    lines += _tabulate_layers(records)
    own_page = " `report.html` is the page of the run." if page else ""
    lines.append(HOW_TO_READ.format(repository=repository, own_page=own_page))
    lines += ["## How it was made", ""]
    lines += _list_origins(manifest)
    return "\n".join(lines).rstrip() + "\n"


def _write_metadata(title: str, licence: str) -> list[str]:
    """Return the lines of YAML between `---` that the hub reads at the head of a card."""
    # JSON strings are YAML strings: quotes and colons in a name do no harm.
    lines = ["---", f"pretty_name: {json.dumps(title, ensure_ascii=False)}"]
    if licence:
        lines.append(f"license: {json.dumps(licence)}")
    lines += ["tags:", "- anisoscope", "- anisotropy", "- interpretability"]
    # Without it the hub would guess which files are the table, and take the replicates
    # too.
    lines += ["configs:", "- config_name: default", "  data_files: records.parquet"]
    return [*lines, "---", ""]


def _list_origins(manifest: Mapping[str, Any]) -> list[str]:
    """Return a Markdown list of what the run was made from: command, model, weights, and notes on them."""
    command = manifest.get("command")
    origins = {
        "command": f"`{command}`" if command else "",
        "model": manifest.get("model"),
        "revision": manifest.get("revision"),
        "weights (SHA-256)": manifest.get("weights_sha256"),
        "architecture": manifest.get("architecture"),
        "run": manifest.get("run"),
    }
    lines = [f"- {name}: {value}" for name, value in origins.items() if value]
    lines += [f"- note: {text}" for text in manifest.get("warnings") or ()]
    return lines


def name_model(manifest: Mapping[str, Any]) -> str:
    """Return the model's name; for a local folder, the last part of its path."""
    return _strip_folders(str(manifest.get("model") or "unnamed model"))


def _strip_folders(name: str) -> str:
    """Return the last part of an absolute path; another name unchanged."""
    # What `hide_folders` put in place of the folders of an absolute path.
    name = name.removeprefix("…/")
    path = PurePath(name)
    return path.name if path.is_absolute() else name


def _name_version(manifest: Mapping[str, Any]) -> str:
    """Return the version of Anisoscope that made the run."""
    code = manifest.get("code") or {}
    return str(code.get("version", "")) or "of an unknown version"


def _describe_corpus(records: pd.DataFrame, manifest: Mapping[str, Any]) -> str:
    """Return the name of the corpus and the number of its units that were measured."""
    corpus = manifest.get("corpus")
    # It may be a name alone.
    if isinstance(corpus, Mapping):
        corpus = corpus.get("name")
    name = _strip_folders(str(corpus or "an unnamed corpus"))
    units = records["n_units"].max() if len(records) else None
    if units is None or pd.isna(units):
        return name
    return f"{name} ({format_count(units)} units)"


def _list_findings(records: pd.DataFrame, manifest: Mapping[str, Any]) -> list[str]:
    """Return the findings of a run as a Markdown list."""
    found = findings(records, manifest.get("tokens"))
    lines = [f"- {finding.text}" for finding in found]
    if lines:
        # A blank line ends the list.
        lines.append("")
    return lines


def _tabulate_layers(records: pd.DataFrame) -> list[str]:
    """Return the anisotropy A of every layer as a Markdown table; an empty list if it was not measured."""
    table = short_table(records)
    if not len(table):
        return []
    keys = []
    for key in ("seed", "step", "stack"):
        # What is the same in all rows needs no column.
        if key in table and table[key].nunique() > 1:
            keys.append(key)
    head = [*keys, "layer", "A", "95 % interval", "verdict"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in table.to_dict("records"):
        cells = [str(row[key]) for key in keys]
        # The final norm carries the number of the last layer, which has a row of its
        # own.
        cells.append("final norm" if row["site"] == "final" else str(row["layer"]))
        cells.append(format_short(row["A"]))
        interval = "–"
        if not pd.isna(row["low"]):
            interval = f"[{format_short(row['low'])}, {format_short(row['high'])}]"
        cells.append(interval)
        cells.append("" if pd.isna(row["verdict"]) else str(row["verdict"]))
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]
