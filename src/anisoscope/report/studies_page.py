"""One page from the folder of a reproduction: every study with its figures and a verdict for each claim."""

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from anisoscope.errors import OutputError
from anisoscope.store import write_atomic
from anisoscope.studies.runner import COMPARED

PAPERS = {
    "godey2024": "Godey, de la Clergerie, Sagot: Anisotropy Is Inherent to Self-Attention in Transformers (EACL 2024)",
    "fosse2023": "Fosse, Nguyen, Sébillot, Gravier : Géométrie de l'auto-attention en classification (TALN 2023)",
}


def build_studies(folder: Path) -> Path:
    """Write `report.html` into `<output>/<paper>/<settings>` from the finished studies below it."""
    studies = [_read(path.parent) for path in sorted(folder.glob("*/study.json"), key=lambda p: _order(p.parent.name))]
    if not studies:
        raise OutputError(f"finished studies below {folder}", "none", "run anisoscope reproduce first")
    here = files("anisoscope.report")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    page = environment.from_string(here.joinpath("studies.html.j2").read_text("utf-8")).render(
        paper=PAPERS.get(studies[0]["paper"], studies[0]["paper"]),
        settings=studies[0]["settings_name"],
        command=_command(studies),
        studies=studies,
        counts=_counts(studies),
        style=Markup(here.joinpath("style.css").read_text("utf-8")),
    )
    path = folder / "report.html"
    write_atomic(path, lambda temporary: temporary.write_text(page, encoding="utf-8"))
    return path


def _command(studies: list[dict[str, Any]]) -> str:
    """What makes all of them."""
    names = ",".join(study["study"] for study in studies)
    return f"anisoscope reproduce {studies[0]['paper']} --only {names} --settings {studies[0]['settings_name']}"


def _order(name: str) -> tuple[str, int, str]:
    digits = "".join(c for c in name if c.isdigit())
    return name.rstrip("0123456789abcd"), int(digits or 0), name


def _read(folder: Path) -> dict[str, Any]:
    study: dict[str, Any] = json.loads((folder / "study.json").read_text())
    claims = {claim["name"]: claim for claim in study["claims"]}
    verdicts = json.loads((folder / "verdicts.json").read_text())
    compared = folder / COMPARED
    drawn = sorted(folder.glob("*.svg"), key=lambda path: path.stem)
    return study | {
        "verdicts": [{"statement": v["claim"], "published": ""} | claims.get(v["claim"], {}) | v for v in verdicts],
        "compared": json.loads(compared.read_text()) if compared.exists() else [],
        "figures": [_figure(path, study["study"]) for path in drawn],
    }


def _figure(path: Path, study: str) -> dict[str, str]:
    """A drawing, its name, and the part of it that tells it from the others of its study."""
    label = path.stem.removeprefix(study).strip("_-").replace("_", " ").replace("-", " ")
    return {"name": path.stem, "label": label or study, "svg": Markup(_apart(path, study))}


def _apart(path: Path, study: str) -> str:
    """The drawing with its ids made different from those of the other drawings on the page."""
    text = path.read_text("utf-8")
    prefix = f"{study}-{path.stem}-"
    for mark in ('id="', "url(#", 'href="#'):
        text = text.replace(mark, mark + prefix)
    return text


def _counts(studies: list[dict[str, Any]]) -> dict[str, int]:
    outcomes = [verdict["outcome"] for study in studies for verdict in study["verdicts"]]
    return {name: outcomes.count(name) for name in ("holds", "fails", "undecided")}
