"""Write the report page of a run: one HTML file that opens anywhere, with charts and style inside and nothing
fetched.
"""

from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import pandas as pd
from altair.typing import ChartType
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from anisoscope.axes import PAIRS, TOWER_STACKS, pluralise
from anisoscope.charts.export import shorten_tiles, to_svgs, write
from anisoscope.charts.style import escape_control
from anisoscope.report.head_map import read_script, write_shades
from anisoscope.report.parts import NARROW, WIDE, Figure, find_extremes
from anisoscope.report.results import Results
from anisoscope.report.sections import Section, build_sections
from anisoscope.runs.attention import INDEX, uniform_line
from anisoscope.runs.findings import findings
from anisoscope.store import write_atomic
from anisoscope.wording import count_noun, format_count, format_duration, format_ends, format_number, format_percent

FIGURES = "figures"
ON_PHONES = "-narrow"
"""What the names of drawings for narrow screens end with."""
HERE = files("anisoscope.report")


def write_run(results: Results, folder: Path, formats: tuple[str, ...]) -> Path:
    """Write the page of a run and its figure files (svg, pdf, png, by `formats`), and return the page's path."""
    built = build_sections(results)
    single = [figure for section in built for figure in section.drawn]
    mapped = [figure for section in built for figure in section.mapped]
    drawn = draw_figures(single, folder / FIGURES, formats, files_only=mapped)
    sentences = [finding.text for finding in findings(results.records, results.manifest.get("tokens"))]
    return write_page(
        folder,
        HERE.joinpath("report.html.j2"),
        title=make_title(results.manifest),
        corpus=str(results.corpus.get("name") or "unnamed corpus"),
        headline=sentences or ["This run holds no anisotropy of hidden states."],
        tiles=list_tiles(results.last),
        facts=[*_describe_checkpoints(results.manifest), *describe_run(results.last)],
        sections=built,
        numbers=number_figures(built),
        drawn=drawn,
        formats=formats,
        notices=list_notices(results.manifest),
        provenance=list(_list_provenance(results.manifest)),
        about="series.json" if (folder / "series.json").exists() else "manifest.json",
        sample=(folder / "reservoir.safetensors").exists(),
        command=str(results.manifest.get("command") or ""),
        script=Markup(read_script()) if mapped else "",
        shades=Markup(write_shades()) if mapped else "",
    )


def write_page(folder: Path, template: Traversable, **content: Any) -> Path:
    """Render a template with its content in the common style, write it as `report.html`, and return its path."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    style = Markup(HERE.joinpath("style.css").read_text("utf-8"))
    content |= {"style": style, "policy": write_policy(content.get("script", ""))}
    page = environment.from_string(template.read_text("utf-8")).render(**content)
    path = folder / "report.html"
    write_atomic(path, lambda temporary: temporary.write_text(escape_control(page), encoding="utf-8"))
    return path


def write_policy(script: str) -> str:
    """Return what a page allows its browser (a content security policy): its own style, no network, and of scripts
    this one alone, known by its hash; none if it is empty.
    """
    allowed = "'none'"
    if script:
        digest = sha256(script.encode()).digest()
        allowed = f"'sha256-{b64encode(digest).decode()}'"
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src {allowed}; base-uri 'none'; form-action 'none'"


def number_figures(built: Sequence[Section]) -> dict[str, int]:
    """Return the number of each figure on the page, by name; a map of heads is one."""
    names: list[str] = []
    for section in built:
        if section.head_map:
            names.append(section.head_map.name)
        names += [figure.name for figure in section.drawn]
    return {name: number for number, name in enumerate(names, start=1)}


def draw_figures(
    figures: Sequence[Figure], folder: Path, formats: tuple[str, ...], *, files_only: Sequence[Figure] = ()
) -> dict[str, list[dict[str, str]]]:
    """Draw figures wide and narrow, and write the wide ones as files into `folder`.

    files_only   further figures, which are only written as files

    Returns for each of `figures`, by name, its drawings: {`label`, `file`, `wide` (SVG), `narrow` (SVG)}.
    """
    asked: dict[str, Callable[[], ChartType]] = {}
    files = []
    for figure in (*figures, *files_only):
        for file, (_, draw) in figure.files.items():
            files.append(file)
            asked[file] = partial(draw, WIDE)
    for figure in figures:
        for file, (_, draw) in figure.files.items():
            asked[f"{file}{ON_PHONES}"] = partial(draw, NARROW)
    svgs = {}
    for name, svg in to_svgs(asked).items():
        svgs[name] = shorten_tiles(svg, merge=name.endswith(ON_PHONES))
    for file in files:
        write(svgs[file], folder / file, formats)
    drawn = {}
    for figure in figures:
        drawn[figure.name] = [
            {"label": label, "file": file, "wide": Markup(svgs[file]), "narrow": Markup(svgs[f"{file}{ON_PHONES}"])}
            for file, (label, _) in figure.files.items()
        ]
    return drawn


def make_title(manifest: Mapping[str, Any]) -> str:
    """Return the title of a page: the model's name, or the last part of the path of a local folder."""
    name = str(manifest.get("model") or "unnamed model")
    return Path(name).name if Path(name).is_absolute() or name.startswith(("./", "../")) else name


def _describe_checkpoints(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (label, value) pairs: the number of checkpoints of a series, and its range of steps; none for a single
    run.
    """
    steps = [row["step"] for row in manifest.get("checkpoints", ())]
    return [("checkpoints", format_count(len(steps))), ("steps", f"{min(steps):,} to {max(steps):,}")] if steps else []


def describe_run(results: Results) -> list[tuple[str, str]]:
    """Return (label, value) pairs for the line under the headline: how much was measured, of what, and how long it
    took.
    """
    corpus, layers = results.corpus, results.layers("mean_cosine")
    depth = int(layers.loc[layers["site"].eq("hidden")].groupby("stack")["layer"].max().sum()) if len(layers) else 0
    seconds = results.manifest.get("seconds")
    words = results.words
    found = {
        pluralise(words["position"]): _count_positions(results, layers),
        pluralise(words["unit"]): format_count(corpus["n_units"]) if corpus.get("n_units") else "",
        "blocks": str(depth) if depth else "",
        "dimensions": str(results.width or ""),
        "device": " ".join(str(results.manifest[key]) for key in ("device", "dtype") if results.manifest.get(key)),
        "time": format_duration(float(seconds)) if seconds else "",
    }
    return [(label, value) for label, value in found.items() if value]


def _count_positions(results: Results, layers: pd.DataFrame) -> str:
    """Return how many tokens (positions) were measured, of each stack if the model has parts that read images or
    sounds; empty if unknown.

    layers   the rows of A of all layers
    """
    words = results.words
    if words["counted"] == words["position"]:  # else the plan counts samples or images, and the records positions
        known = results.corpus.get("n_tokens")
        return format_count(known) if known else ""
    most = layers.groupby("stack", sort=False)["n_vectors"].max() if len(layers) else layers["n_vectors"]
    if {*TOWER_STACKS, PAIRS}.isdisjoint(most.index):
        return format_count(most.max()) if len(most) else ""
    return ", ".join(f"{format_count(count)} {stack}" for stack, count in most.items())


def list_tiles(results: Results) -> list[tuple[str, str, str]]:
    """List the headline numbers of a page as (name, value, layer or interval).

    They are those of the most anisotropic layer, then those of single heads.
    """
    tiles = []
    if (peak := results.peak) is not None:
        place = results.place_name(peak)
        tiles.append(("highest anisotropy A", format_number(peak["value"]), f"{format_ends(peak)} at {place}"))
        if (share := results.at(peak, "drift.share")) is not None:
            tiles.append(("drift share there", format_percent(share["value"]), "of the mean norm is the mean vector"))
        if (top := results.at(peak, "mean_cosine.top_share", component="3")) is not None:
            tiles.append(("carried by 3 dimensions", format_percent(top["value"]), f"of A at {place}"))
        if (rank := results.at(peak, "spectrum.effective_rank")) is not None:
            out_of = f" of {results.width}" if results.width else ""
            tiles.append(("effective rank there", f"{rank['value']:.0f}{out_of}", "directions used"))
    return [*tiles, *_list_head_tiles(results)]


def _list_head_tiles(results: Results) -> list[tuple[str, str, str]]:
    """List the headline numbers of single attention heads as (name, value, layer and head or interval).

    Heads with uniform attention are skipped for the alignment (cosine) of mean query and mean key: they attend to
    nothing in particular.
    """
    entropy, cosine = results.heads("attention.entropy_normalised"), results.heads("query_key.cosine")
    uniform = entropy[entropy["low"].gt(uniform_line()).fillna(False)]
    places = [*INDEX, "head"]
    flat = set(uniform[places].itertuples(index=False, name=None))
    tiles = []
    if len(entropy) and len(uniform) == len(entropy):
        least = find_extremes(entropy)[0]
        words = f"in every head; lowest entropy {format_number(least['value'])}, {_head(least, entropy)}"
        return [("attention", "uniform", words)]
    if len(entropy):
        sharp = find_extremes(entropy)[0]
        tiles.append(("sharpest head", format_number(sharp["value"]), f"normalised entropy, {_head(sharp, entropy)}"))
    cosine = cosine[[place not in flat for place in cosine[places].itertuples(index=False, name=None)]]
    if len(cosine):
        strong = cosine.iloc[int(cosine["value"].abs().argmax())]
        place = _head(strong, entropy if len(entropy) else cosine)
        tiles.append(("strongest alignment", format_number(strong["value"]), f"cos(Q̄, K̄), {place}"))
    return tiles


def _head(row: pd.Series, heads: pd.DataFrame) -> str:
    """Return a head's name: `layer 3, head 5`; with its stack first, if `heads` are of several."""
    name = f"layer {row['layer']}, head {row['head']}"
    return f"{row['stack']} {name}" if heads["stack"].nunique() > 1 else name


def list_notices(manifest: Mapping[str, Any]) -> list[str]:
    """List the warnings of a run, and vectors left out that no warning mentions."""
    warnings = [str(text) for text in manifest.get("warnings") or ()]
    listed = " ".join(warnings)
    for site, counts in (manifest.get("excluded") or {}).items():
        zero, broken = int(counts.get("zero") or 0), int(counts.get("nonfinite") or 0)
        parts = [count_noun(zero, "zero vector")] if zero else []
        parts += [count_noun(broken, "vector") + " with NaN or Inf"] if broken else []
        if parts and site not in listed:
            warnings.append(f"{' and '.join(parts)} left out at {site}")
    return warnings


def _list_provenance(manifest: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield (name, value) for all other entries of the manifest; nested names are joined by dots."""
    for key, entry in manifest.items():
        if not prefix and key in ("command", "warnings", "excluded", "checkpoints"):
            continue
        if isinstance(entry, Mapping):
            yield from _list_provenance(entry, f"{prefix}{key}.")
        elif isinstance(entry, list | tuple) and entry:
            yield f"{prefix}{key}", ", ".join(map(str, entry))
        elif entry not in (None, "", [], ()):
            yield f"{prefix}{key}", str(entry)
