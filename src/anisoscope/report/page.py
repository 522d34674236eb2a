"""From a run folder to one HTML file that opens anywhere: charts inlined as SVG, style inlined, nothing fetched."""

from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from anisoscope.axes import plural_of
from anisoscope.charts.export import to_svgs, write
from anisoscope.charts.style import printable
from anisoscope.report.parts import NARROW, WIDE, Figure
from anisoscope.report.results import Results
from anisoscope.report.sections import sections
from anisoscope.report.summary import headline, tiles
from anisoscope.report.words import count, duration, plural

FIGURES = "figures"


def render(results: Results, folder: Path, formats: tuple[str, ...] = ("svg",)) -> str:
    """The page as text; the figures are saved beside it, in `formats` (svg, pdf, png), on the way."""
    built = sections(results)
    drawn = _draw([figure for section in built for figure in section.figures], folder / FIGURES, formats)
    here = files("anisoscope.report")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(here.joinpath("report.html.j2").read_text("utf-8"))
    page = template.render(
        title=title(results.manifest),
        corpus=corpus_name(results.manifest),
        headline=headline(results),
        tiles=tiles(results),
        facts=facts(results),
        sections=built,
        numbers={name: i for i, name in enumerate(drawn, start=1)},
        drawn=drawn,
        formats=formats,
        notices=notices(results.manifest),
        provenance=provenance(results.manifest),
        sample=(folder / "reservoir.safetensors").exists(),
        command=str(results.manifest.get("command") or ""),
        style=Markup(here.joinpath("style.css").read_text("utf-8")),
    )
    return printable(page)


def _draw(
    figures: Sequence[Figure], folder: Path, formats: tuple[str, ...]
) -> dict[str, list[dict[str, Markup | str]]]:
    """The drawings of each figure by its name, wide and narrow; the wide ones are also written as files."""
    files = {file: draw for figure in figures for file, (_, draw) in figure.drawings.items()}
    wide = {file: draw(WIDE) for file, draw in files.items()}
    drawn = to_svgs(wide | {f"{file}-narrow": draw(NARROW) for file, draw in files.items()})
    for file in files:
        write(drawn[file], folder / file, formats)
    return {
        figure.name: [
            {"label": label, "file": file, "wide": Markup(drawn[file]), "narrow": Markup(drawn[f"{file}-narrow"])}
            for file, (label, _) in figure.drawings.items()
        ]
        for figure in figures
    }


def title(manifest: Mapping[str, Any]) -> str:
    """The model's name; of a local folder the last part of its path."""
    name = str(manifest.get("model") or "unnamed model")
    return Path(name).name if Path(name).is_absolute() or name.startswith(("./", "../")) else name


def corpus_name(manifest: Mapping[str, Any]) -> str:
    """The corpus' name, whether the manifest describes it or only names it."""
    corpus = manifest.get("corpus")
    return str((corpus.get("name") if isinstance(corpus, Mapping) else corpus) or "unnamed corpus")


def facts(results: Results) -> list[tuple[str, str]]:
    """The line under the headline: how much was measured, of what, how long it took."""
    corpus = results.manifest.get("corpus")
    corpus = corpus if isinstance(corpus, Mapping) else {}
    layers = results.layers("mean_cosine")
    depth = int(layers.loc[layers["site"].eq("hidden")].groupby("stack")["layer"].max().sum()) if len(layers) else 0
    seconds = results.manifest.get("seconds")
    words = results.words
    same = words["counted"] == words["position"]  # else the plan counts samples or images, and the records positions
    positions = corpus.get("n_tokens") if same else layers["n_vectors"].max() if len(layers) else None
    found = {
        plural_of(words["position"]): count(positions) if positions else "",
        plural_of(words["unit"]): count(corpus["n_units"]) if corpus.get("n_units") else "",
        "blocks": str(depth) if depth else "",
        "dimensions": str(results.width or ""),
        "device": " ".join(str(results.manifest[key]) for key in ("device", "dtype") if results.manifest.get(key)),
        "time": duration(float(seconds)) if seconds else "",
    }
    return [(label, value) for label, value in found.items() if value]


def notices(manifest: Mapping[str, Any]) -> list[str]:
    """Warnings of the run, and vectors left out that no warning names."""
    warnings = [str(text) for text in manifest.get("warnings") or ()]
    listed = " ".join(warnings)
    for site, counts in (manifest.get("excluded") or {}).items():
        zero, broken = int(counts.get("zero") or 0), int(counts.get("nonfinite") or 0)
        if zero + broken and site not in listed:
            parts = [plural(zero, "zero vector")] * bool(zero) + [plural(broken, "vector") + " with NaN or Inf"] * bool(
                broken
            )
            warnings.append(f"{' and '.join(parts)} left out at {site}")
    return warnings


def provenance(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Everything else the manifest says, one line per entry, nested names joined by dots."""
    elsewhere = ("command", "warnings", "excluded")
    return list(_entries({key: value for key, value in manifest.items() if key not in elsewhere}))


def _entries(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, entry in value.items():
        if isinstance(entry, Mapping):
            yield from _entries(entry, f"{prefix}{key}.")
        elif isinstance(entry, list | tuple) and entry:
            yield f"{prefix}{key}", ", ".join(map(str, entry))
        elif entry not in (None, "", [], ()):
            yield f"{prefix}{key}", str(entry)
