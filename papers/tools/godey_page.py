"""The page that tells Godey et al. 2024 in five minutes, with numbers of committed verdicts and small drawings.

python papers/tools/godey_page.py     draw the thumbnails in docs/figures/godey2024/ anew (the page: `make docs`)
"""

import io
import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import findings
import pandas as pd
from committed import RESULTS, word
from controls import CONTROLS
from pages import table_row
from verdict_pages import SEARCHABLE

from anisoscope_papers import runner
from anisoscope_papers.godey2024.layer_curves import UNTRAINED

TEXT = Path(__file__).parent / "godey2024.toml"
FIGURES = Path(__file__).resolve().parents[2] / "docs" / "figures" / "godey2024"
WIDTH, COLOURS = 260, 32
"""Pixels and colours of a thumbnail."""
REAL_SPEECH = "packaged/fig3a/fig3a"
"""Drawn as in the paper, which shows trained models only: four curves of two networks cannot be told apart so small."""
TERAFLOPS = 0.1
"""Speed that the hours of the paper's own models are told for, about that of two cores."""


def page() -> str:
    """Five sentences, the figures one by one, then what holds, what does not, and what only a hub can decide."""
    told = tomllib.loads(TEXT.read_text("utf-8"))
    lines = ["# Godey et al. 2024, in five minutes", ""]
    lines += [
        "*Anisotropy Is Inherent to Self-Attention in Transformers*, Godey, de la Clergerie, Sagot, EACL 2024.",
        "",
    ]
    lines += [f"{i}. {_filled(sentence)}" for i, sentence in enumerate(told["five"], start=1)]
    lines += ["", "## Figure by figure", "", *_how_to_read(), ""]
    lines += ["| figure | ours | the paper says | we find | evidence | |", "|---|---|---|---|---|---|"]
    lines += [_row(row) for row in told["row"]]
    for title, key in (("Where the paper is right", "right"), ("Where it is not", "wrong")):
        lines += ["", f"## {title}", "", *(f"- {_filled(entry)}" for entry in told[key])]
    lines += ["", "## What only a hub can decide", "", *(f"- {_filled(entry)}" for entry in told["hub"]), ""]
    lines += [*_with_a_hub(), "", *_controls(), ""]
    return "\n".join(lines)


def _filled(text: str) -> str:
    return findings.FIELD.sub(findings._filled, text)


def _how_to_read() -> list[str]:
    return [
        "A is the mean cosine of all pairs of vectors: 0 no common direction, 1 one direction. Behind each number",
        "stand its 95 % interval, n (trainings or draws, where nothing else is said) and the verdict: *holds*;",
        "*contrary* (the other way), *too small* (not so much) and *beyond* (outside of what is claimed), which",
        "are three ways to fail; *undecided*; *identity* (true by construction, and so no evidence). Where several",
        "trainings were measured, the number is that of the weakest. Evidence: *the paper's own experiment* needs",
        "no trained weights; *other real weights* were trained by others; *trained here* are small models (4",
        "layers, 128 dimensions). Every setting and every command stand behind the link.",
    ]


def _row(row: dict[str, Any]) -> str:
    pictures = " ".join(f"![figure {row['figures']}, ours](figures/godey2024/{_name(shown)})" for shown in row["shown"])
    link = f"[all verdicts]({SEARCHABLE}#godey2024/{row['of']})"
    return table_row((row["figures"], pictures, row["says"], _filled(row["found"]), row["grade"], link))


def _name(shown: str) -> str:
    """The file of a thumbnail: figure and settings."""
    settings, study, _ = shown.split("/")
    return f"{study}-{settings}.png"


def _with_a_hub() -> list[str]:
    """What a reader who has the hub runs, with gigabytes and hours by figure."""
    lines = [
        "Who has the hub runs, figure by figure (what is finished is not run again, so it can be stopped at any time):",
        "",
        "    anisoscope reproduce godey2024 --only fig1 --settings paper",
        "",
        f"Hours are those of a machine that does {TERAFLOPS:g} Tflop/s in a plain matrix product (two cores); the same",
        "command with `--dry-run` says what they are on yours.",
        "",
        "| figure | loads | about |",
        "|---|---|---|",
    ]
    loaded: set[str] = set()
    for study in (study for study in runner.found() if study.paper == "godey2024" and study.needs):
        new = [need for need in study.needs if need.name and need.name not in loaded]
        work = sum(cost for need in study.needs for cost in need.work.values())
        known = sum(need.gigabytes or 0.0 for need in new)
        again = "" if len(new) == len(study.needs) else " beside what figures before it load"
        unknown = ", and data of unknown size" if any(need.gigabytes is None for need in new) else ""
        loads = f"{known:.1f} GB{unknown}{again}" if new else "nothing that figures before it do not"
        hours = work / (TERAFLOPS * runner.EFFICIENCY * 3600)
        lines.append(table_row((study.name.removeprefix("fig"), loads, f"{hours:.1f} hours" if work else "minutes")))
        loaded |= {need.name for need in new}
    return lines


def _controls() -> list[str]:
    """How often each judge errs, and how many verdicts are evidence."""
    found = [v for path in RESULTS.glob("godey2024/*/*/verdicts.json") for v in json.loads(path.read_text("utf-8"))]
    controlled = []
    if CONTROLS.exists():
        controlled = ["[Each judge was run on data in which its claim is false](controls.md), to see it say no.", ""]
    undecided = sum(word(verdict) == "undecided" for verdict in found)
    return [
        "## How far this can be trusted",
        "",
        *controlled,
        f"{undecided} of {len(found)} verdicts are undecided: [what was found](findings.md) says what is not known,",
        "and `papers/results/changes.csv` which verdicts were others before, and why.",
    ]


def _one_row_a_model(records: pd.DataFrame) -> pd.DataFrame:
    """Records of trained models alone, and of each the first training."""
    untrained = records["model"].astype(str).str.endswith(UNTRAINED)
    return records[~untrained & (records["seed"].fillna(0) == 0)].reset_index(drop=True)


def draw() -> None:
    """Draw every thumbnail that the page shows from the committed records."""
    import vl_convert
    from PIL import Image

    FIGURES.mkdir(parents=True, exist_ok=True)
    for row in tomllib.loads(TEXT.read_text("utf-8"))["row"]:
        for shown in row["shown"]:
            settings, study, chart = shown.split("/")
            done = runner.finished(RESULTS / "godey2024" / settings / study)
            trained_only = study in ("fig5", "fig16") or shown == REAL_SPEECH
            made = replace(done, records=_one_row_a_model(done.records)) if trained_only else done
            png = vl_convert.vegalite_to_png(made.charts[chart].to_dict(format="vega-lite"), scale=1)
            image = Image.open(io.BytesIO(png)).convert("RGB")
            height = round(image.height * WIDTH / image.width)
            small = image.resize((WIDTH, height), Image.Resampling.LANCZOS).quantize(COLOURS)
            small.save(FIGURES / _name(shown), optimize=True)


if __name__ == "__main__":
    draw()
