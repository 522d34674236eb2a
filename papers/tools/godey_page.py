"""The page that tells Godey et al. 2024 in five minutes, with numbers of committed verdicts and small drawings.

python papers/tools/godey_page.py     draw the thumbnails in docs/figures/godey2024/ again (the page: `make docs`)
"""

import io
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import findings
import pandas as pd
from committed import RESULTS, distinct_verdicts, word
from controls import CONTROLS
from godey_networks import networks_table
from pages import table_row
from verdict_pages import SEARCHABLE

from anisoscope_papers import runner
from anisoscope_papers.godey2024.layer_curves import UNTRAINED
from anisoscope_papers.study import Study

TEXT = Path(__file__).parent / "godey2024.toml"
FIGURES = Path(__file__).resolve().parents[2] / "docs" / "figures" / "godey2024"
WIDTH, COLOURS = 260, 32
"""Pixels and colours of a thumbnail."""
REAL_SPEECH = "packaged/fig3a/fig3a"
"""Drawn as in the paper, which shows trained models only: four curves of two networks cannot be told apart so small."""
TERAFLOPS = 0.1
"""Speed that the hours of the paper's own models are told for, about that of two cores."""


def page() -> str:
    """Return the page: five sentences, the figures one by one, what holds, what does not, and what needs a hub."""
    told = tomllib.loads(TEXT.read_text("utf-8"))
    lines = ["# Is anisotropy inherent to self-attention? Godey et al. 2024", ""]
    lines += [
        "*Anisotropy Is Inherent to Self-Attention in Transformers*, Godey, de la Clergerie, Sagot, EACL 2024.",
        "",
        "## In one minute",
        "",
    ]
    lines += [
        f"{i}. {_filled(sentence)}" for i, sentence in enumerate(told["five"], start=1)
    ]
    lines += ["", "## How to read the numbers", "", *_how_to_read()]
    for title, key in (
        ("Where the paper is right", "right"),
        ("Where it is not", "wrong"),
    ):
        lines += [
            "",
            f"## {title}",
            "",
            *(f"- {_filled(entry)}" for entry in told[key]),
        ]
    lines += ["", "## Figure by figure", ""]
    lines += [
        "| figure | ours | the paper says | we find | evidence | details |",
        "|---|---|---|---|---|---|",
    ]
    lines += [_row(row) for row in told["row"]]
    lines += [
        "",
        "## What each network that others trained says",
        "",
        *OF_NETWORKS,
        "",
        *networks_table(),
    ]
    lines += [
        "",
        "## What only a hub can decide",
        "",
        *(f"- {_filled(entry)}" for entry in told["hub"]),
        "",
    ]
    lines += [*_with_a_hub(), "", *_controls(), ""]
    return "\n".join(lines)


OF_NETWORKS = [
    "These networks were trained by others. Each was measured on data of its own kind. One network that contradicts a",
    "claim is enough to refute it as a law of all Transformers, but does not say how common such networks are.",
    "Undecided verdicts are left out. *Change by training* is the change of the mean A over layers. It depends on the",
    "untrained network, too: most untrained networks of photographs or sounds send all inputs into one direction.",
    "The claims come from different figures, and a network can support one figure and contradict another. *Every layer is",  # noqa: E501
    "anisotropic* is the claim of figure 18, which we apply to networks of all kinds; *middle layer* is that of figure 4 on",  # noqa: E501
    "convolutional networks. So CREPE contradicts both: one of its layers has an A near 0, and its middle layer has A > .2.",  # noqa: E501
    "ResNets were measured on two sets of photographs. If all tokens share a type vector, no change is given, because",
    "that vector alone gives the untrained network an A of about .33.",
]


def _filled(text: str) -> str:
    """Fill the fields of a text with numbers of committed verdicts."""
    return findings.FIELD.sub(findings._filled, text)


def _how_to_read() -> list[str]:
    """Return the lines that explain the page's terms."""
    return [
        "- **A** is the mean cosine of all pairs of vectors. 0: no common direction; 1: one direction. Of random",
        "  pairs, 95 % have a cosine below a bar (.084 in MiniLM's 384 dimensions, .145 in the 128 of our models). A",
        "  layer is *anisotropic* if the whole interval of its A lies above that bar.",
        "- **Drift** is the mean of all vectors, or its length. In the experiment on an untrained block, a common",
        "  vector of length **N** is added to every input as a drift. At one N, called **N\\***, the block's",
        "  mean output is as long as its mean input: the drift keeps its length.",
        "- **Q̄** and **K̄** are the mean query and the mean key of a head. Entropy is in **nats**: 0 if all attention",
        "  is on one token; the logarithm of the number of tokens if it is uniform.",
        "- **0.25 [0.24, 0.26; n = 60]** is a number, its 95 % interval, and n. Unless the text says otherwise, the",
        "  number is a mean over n training runs or random draws, and the interval is over them, too. One exception:",
        "  for the A of a model that we trained n times, we show the lowest of the n values, with its interval over",
        "  documents or photographs.",
        "- The **verdict** is in italics. *Holds*: the number supports the claim. *Contrary*: the opposite is true.",
        "  *Too small*: the effect is smaller than claimed, absent, or points the other way but not clearly.",
        "  *Beyond*: the claim says that a number hardly changes, but it changes by more. *Undecided*: the interval",
        "  allows both answers, in some cases only after a correction for several tests (Holm). *Identity*: true by",
        "  construction, so no evidence.",
        "- **Evidence** says which models were measured. *The paper's own experiment* needs no trained weights. *Other",
        "  real weights* were trained by others. *Trained here*: small models of 4 layers and 128 dimensions.",
        "  *Identity*: algebra, which no model can confirm or refute. *Needs a hub*: only the paper's own models can",
        "  decide.",
    ]


def _row(row: dict[str, Any]) -> str:
    """Format the table row of a figure."""
    pictures = " ".join(
        f"![figure {row['figures']}, ours](figures/godey2024/{_name(shown)})"
        for shown in row["shown"]
    )
    link = f"[all verdicts]({SEARCHABLE}#godey2024/{row['of']})"
    return table_row(
        (
            row["figures"],
            pictures,
            row["says"],
            _filled(row["found"]),
            row["grade"],
            link,
        )
    )


def _name(shown: str) -> str:
    """Return the file name of a thumbnail, from figure and settings."""
    settings, study, _ = shown.split("/")
    return f"{study}-{settings}.png"


def _with_a_hub() -> list[str]:
    """Return lines on what a reader with access to the hub can run, with gigabytes and hours by figure."""
    lines = [
        "If you have access to the hub, run one figure at a time (`fig1`, `fig2`, `fig3a` …). You can stop at any",
        "time: finished parts are not run again.",
        "",
        "    anisoscope reproduce godey2024 --only fig1 --settings paper",
        "",
        f"The hours are for two cores ({TERAFLOPS:g} Tflop/s in a matrix product). `--dry-run` estimates them for your",
        "machine. The figures of one row share downloads and computation.",
        "",
        "| figures | downloads | about |",
        "|---|---|---|",
    ]
    loaded: set[str] = set()
    for studies in _shared_work():
        needs = studies[0].needs
        # A need without a name is a computation alone. An untrained block loads nothing:
        # it is run here.
        downloaded = [need for need in needs if need.name]
        if not downloaded:
            continue
        # Figures that use the same models download them once: they are counted with the
        # first.
        new = [need for need in downloaded if need.name not in loaded]
        loaded |= {need.name for need in new}
        gigabytes = sum(need.gigabytes or 0.0 for need in new)
        downloads = "nothing new"
        if new:
            downloads = f"{gigabytes:.1f} GB"
            if gigabytes and len(new) < len(downloaded):
                downloads += " more"
            if any(need.gigabytes is None for need in new):
                downloads += " and data of unknown size"
        # `work` counts 10¹² operations; a machine reaches only a part of the speed that
        # a matrix product has.
        hours = sum(cost for need in needs for cost in need.work.values()) / (
            TERAFLOPS * runner.EFFICIENCY * 3600
        )
        names = ", ".join(study.name.removeprefix("fig") for study in studies)
        lines.append(
            table_row((names, downloads, f"{hours:.1f} hours" if hours else "minutes"))
        )
    return lines


def _shared_work() -> list[list[Study]]:
    """Group the studies of the paper by what they download."""
    together: dict[str, list[Study]] = {}
    for study in runner.find_studies():
        if study.paper == "godey2024" and study.needs:
            # Studies with the same downloads make one row.
            systems = sorted(need.name for need in study.needs if need.name)
            together.setdefault(repr(systems), []).append(study)
    return list(together.values())


def _controls() -> list[str]:
    """Return lines on how often each judge errs, and how many verdicts are evidence."""
    found: list[dict[str, Any]] = []
    for path in RESULTS.glob("godey2024/*/*/study.json"):
        found += distinct_verdicts(path)
    controlled = []
    if CONTROLS.exists():
        controlled = [
            "Each rule that gives a verdict was also run on data in which the claim is false. It should say no there:",
            "[how often it erred](controls.md).",
            "",
        ]
    undecided = sum(word(verdict) == "undecided" for verdict in found)
    return [
        "## How far this can be trusted",
        "",
        *controlled,
        f"This page shows the main verdicts. Over all settings there are {len(found)}; {undecided} are undecided",
        f"([search them]({SEARCHABLE})). [What is now known](findings.md) sums up the others, and says what is open.",
        "`papers/results/changes.csv` lists verdicts that have changed, each with the reason.",
    ]


def _one_row_a_model(records: pd.DataFrame) -> pd.DataFrame:
    """Keep the records of trained models only, of each its first training."""
    untrained = records["model"].astype(str).str.endswith(UNTRAINED)
    return records[~untrained & (records["seed"].fillna(0) == 0)].reset_index(drop=True)


def draw() -> None:
    """Draw every thumbnail of the page from the committed records."""
    import vl_convert
    from PIL import Image

    FIGURES.mkdir(parents=True, exist_ok=True)
    for row in tomllib.loads(TEXT.read_text("utf-8"))["row"]:
        for shown in row["shown"]:
            settings, study, chart = shown.split("/")
            done = runner.open_finished(RESULTS / "godey2024" / settings / study)
            made = done
            # So small, a chart of many rows or curves could not be read.
            if study in ("fig5", "fig16") or shown == REAL_SPEECH:
                made = replace(done, records=_one_row_a_model(done.records))
            png = vl_convert.vegalite_to_png(
                made.charts[chart].to_dict(format="vega-lite"), scale=1
            )
            image = Image.open(io.BytesIO(png)).convert("RGB")
            height = round(image.height * WIDTH / image.width)
            # Few colours make small files: the page shows a dozen of them.
            small = image.resize((WIDTH, height), Image.Resampling.LANCZOS).quantize(
                COLOURS
            )
            small.save(FIGURES / _name(shown), optimize=True)


if __name__ == "__main__":
    draw()
