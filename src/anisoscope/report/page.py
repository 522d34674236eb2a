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
from anisoscope.wording import (
    count_noun,
    format_count,
    format_duration,
    format_ends,
    format_number,
    format_percent,
)

FIGURES = "figures"
ON_PHONES = "-narrow"
"""What the names of drawings for narrow screens end with."""
HERE = files("anisoscope.report")


def write_run(results: Results, folder: Path, formats: tuple[str, ...]) -> Path:
    """Write the page of a run and its figure files (svg, pdf, png, by `formats`), and return the page's path."""
    sections = build_sections(results)
    single: list[Figure] = []
    mapped: list[Figure] = []
    for section in sections:
        single += section.drawn
        mapped += section.mapped
    drawn = draw_figures(single, folder / FIGURES, formats, files_only=mapped)
    found = findings(results.records, results.manifest.get("tokens"))
    sentences = [finding.text for finding in found]
    # For a series, series.json takes the place of the manifest.
    is_series = (folder / "series.json").exists()
    return write_page(
        folder,
        HERE.joinpath("report.html.j2"),
        title=make_title(results.manifest),
        corpus=str(results.corpus.get("name") or "unnamed corpus"),
        headline=sentences or ["This run holds no anisotropy of hidden states."],
        tiles=list_tiles(results.last),
        facts=[*_describe_checkpoints(results.manifest), *describe_run(results.last)],
        sections=sections,
        numbers=number_figures(sections),
        drawn=drawn,
        formats=formats,
        notices=list_notices(results.manifest),
        provenance=list(_list_provenance(results.manifest)),
        about="series.json" if is_series else "manifest.json",
        sample=(folder / "reservoir.safetensors").exists(),
        command=str(results.manifest.get("command") or ""),
        # A page without a map of heads runs no script at all.
        script=Markup(read_script()) if mapped else "",
        shades=Markup(write_shades()) if mapped else "",
    )


def write_page(folder: Path, template: Traversable, **content: Any) -> Path:
    """Render a template with its content in the common style, write it as `report.html`, and return its path."""
    # Everything is escaped: names of models and corpora, and tokens, come from outside.
    # A name that the template lacks is an error, not an empty place.
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    style = Markup(HERE.joinpath("style.css").read_text("utf-8"))
    content |= {
        "style": style,
        "policy": write_security_policy(content.get("script", "")),
    }
    page = environment.from_string(template.read_text("utf-8")).render(**content)
    # Control characters last, since any text of the page may hold one.
    path = folder / "report.html"
    write_atomic(
        path,
        lambda temporary: temporary.write_text(escape_control(page), encoding="utf-8"),
    )
    return path


def write_security_policy(script: str) -> str:
    """Return the content security policy of a page: styles are allowed, the network is not.

    script   the only script that may run, identified by its hash; empty: none may
    """
    allowed = "'none'"
    if script:
        digest = sha256(script.encode()).digest()
        allowed = f"'sha256-{b64encode(digest).decode()}'"
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src {allowed}; base-uri 'none'; form-action 'none'"


def number_figures(sections: Sequence[Section]) -> dict[str, int]:
    """Number the figures of a page from 1: {name: number}. A map of heads counts as one figure."""
    names: list[str] = []
    for section in sections:
        if section.head_map:
            names.append(section.head_map.name)
        names += [figure.name for figure in section.drawn]
    return {name: number for number, name in enumerate(names, start=1)}


def draw_figures(
    figures: Sequence[Figure],
    folder: Path,
    formats: tuple[str, ...],
    *,
    files_only: Sequence[Figure] = (),
) -> dict[str, list[dict[str, str]]]:
    """Draw figures wide and narrow, and write the wide ones as files into `folder`.

    files_only   further figures, which are only written as files

    Returns for each of `figures`, by name, its drawings: {`label`, `file`, `wide` (SVG), `narrow` (SVG)}.
    """
    wide: dict[str, Callable[[], ChartType]] = {}
    narrow: dict[str, Callable[[], ChartType]] = {}
    for figure in (*figures, *files_only):
        for file, (_, draw) in figure.files.items():
            wide[file] = partial(draw, WIDE)
    for figure in figures:
        for file, (_, draw) in figure.files.items():
            narrow[f"{file}{ON_PHONES}"] = partial(draw, NARROW)
    # One call for all, so that charts are rendered while the next ones are built.
    svgs = {}
    for name, svg in to_svgs(wide | narrow).items():
        # Phones have no mouse that could show the tooltips, which are dropped there.
        svgs[name] = shorten_tiles(svg, merge=name.endswith(ON_PHONES))
    for file in wide:
        write(svgs[file], folder / file, formats)
    drawings: dict[str, list[dict[str, str]]] = {}
    for figure in figures:
        drawings[figure.name] = []
        for file, (label, _) in figure.files.items():
            both = {
                "wide": Markup(svgs[file]),
                "narrow": Markup(svgs[f"{file}{ON_PHONES}"]),
            }
            drawings[figure.name].append({"label": label, "file": file, **both})
    return drawings


def make_title(manifest: Mapping[str, Any]) -> str:
    """Return the title of a page: the model's name, or the last part of the path of a local folder."""
    name = str(manifest.get("model") or "unnamed model")
    # A page may be shown to others: it names no folders of this machine.
    is_folder = Path(name).is_absolute() or name.startswith(("./", "../"))
    return Path(name).name if is_folder else name


def _describe_checkpoints(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (label, value) pairs: the number of checkpoints of a series, and its range of steps; none for a single
    run.
    """
    steps = [row["step"] for row in manifest.get("checkpoints", ())]
    if not steps:
        return []
    return [
        ("checkpoints", format_count(len(steps))),
        ("steps", f"{min(steps):,} to {max(steps):,}"),
    ]


def describe_run(results: Results) -> list[tuple[str, str]]:
    """Return (label, value) pairs for the line under the headline: how much was measured, of what, and how long it
    took.
    """
    layers = results.select_layers("mean_cosine")
    manifest = results.manifest
    units = results.corpus.get("n_units")
    depth = 0
    if len(layers):
        hidden = layers[layers["site"].eq("hidden")]
        # The last layer's number is the number of blocks: layer 0 is their input. Of an
        # encoder–decoder both count.
        depth = int(hidden.groupby("stack")["layer"].max().sum())
    device = [str(manifest[key]) for key in ("device", "dtype") if manifest.get(key)]
    # Old and merged runs may lack any of these: what is missing is left out below.
    seconds = manifest.get("seconds")
    facts = {
        pluralise(results.words["position"]): _count_positions(results, layers),
        pluralise(results.words["unit"]): format_count(units) if units else "",
        "blocks": str(depth or ""),
        "dimensions": str(results.width or ""),
        "device": " ".join(device),
        "time": format_duration(float(seconds)) if seconds else "",
    }
    return [(label, value) for label, value in facts.items() if value]


def _count_positions(results: Results, layers: pd.DataFrame) -> str:
    """Return how many tokens (positions) were measured, of each stack if the model has parts that read images or
    sounds; empty if unknown.

    layers   the rows of A of all layers
    """
    words = results.words
    # Other plans count samples or images, and only the records count positions.
    if words["counted"] == words["position"]:
        tokens = results.corpus.get("n_tokens")
        return format_count(tokens) if tokens else ""
    if layers.empty:
        return ""
    most = layers.groupby("stack", sort=False)["n_vectors"].max()
    if {*TOWER_STACKS, PAIRS}.isdisjoint(most.index):
        return format_count(most.max())
    return ", ".join(f"{format_count(count)} {stack}" for stack, count in most.items())


def list_tiles(results: Results) -> list[tuple[str, str, str]]:
    """List the headline numbers of a page as (name, value, layer or interval).

    They are those of the most anisotropic layer, then those of single heads.
    """
    tiles = []
    if results.peak is not None:
        tiles += _list_peak_tiles(results, results.peak)
    return [*tiles, *_list_head_tiles(results)]


def _list_peak_tiles(results: Results, peak: pd.Series) -> list[tuple[str, str, str]]:
    """List the headline numbers of the most anisotropic layer, whose row of A is `peak`."""
    place = results.name_place(peak)
    tiles = [
        (
            "highest anisotropy A",
            format_number(peak["value"]),
            f"{format_ends(peak)} at {place}".lstrip(),
        )
    ]
    share = results.find_row(peak, "drift.share")
    if share is not None:
        tiles.append(
            (
                "drift share there",
                format_percent(share["value"]),
                "of the mean norm is the mean vector",
            )
        )
    top = results.find_row(peak, "mean_cosine.top_share", component="3")
    if top is not None:
        tiles.append(
            (
                "carried by 3 dimensions",
                format_percent(top["value"]),
                f"of A at {place}",
            )
        )
    rank = results.find_row(peak, "spectrum.effective_rank")
    if rank is not None:
        out_of = f" of {results.width}" if results.width else ""
        tiles.append(
            ("effective rank there", f"{rank['value']:.0f}{out_of}", "directions used")
        )
    return tiles


def _list_head_tiles(results: Results) -> list[tuple[str, str, str]]:
    """List the headline numbers of single attention heads as (name, value, layer and head or interval).

    Heads with uniform attention are skipped for the alignment (cosine) of mean query and mean key: they attend to
    nothing in particular.
    """
    entropy = results.select_heads("attention.entropy_normalised")
    cosine = results.select_heads("query_key.cosine")
    uniform = entropy[entropy["low"].gt(uniform_line()).fillna(False)]
    tiles = []
    if len(entropy):
        sharpest, _ = find_extremes(entropy)
        value = format_number(sharpest["value"])
        name = _name_head(sharpest, entropy)
        # Then no head attends to anything in particular.
        if len(uniform) == len(entropy):
            return [
                (
                    "attention",
                    "uniform",
                    f"in every head; lowest entropy {value}, {name}",
                )
            ]
        tiles.append(("sharpest head", value, f"normalised entropy, {name}"))
    place = [*INDEX, "head"]
    skipped = set(uniform[place].itertuples(index=False, name=None))
    heads = cosine[place].itertuples(index=False, name=None)
    cosine = cosine[[head not in skipped for head in heads]]
    if len(cosine):
        # Opposite mean queries and keys are as remarkable as aligned ones.
        strongest = cosine.iloc[int(cosine["value"].abs().argmax())]
        name = _name_head(strongest, entropy if len(entropy) else cosine)
        tiles.append(
            (
                "strongest alignment",
                format_number(strongest["value"]),
                f"cos(Q̄, K̄), {name}",
            )
        )
    return tiles


def _name_head(row: pd.Series, heads: pd.DataFrame) -> str:
    """Return a head's name: `layer 3, head 5`; with its stack first, if `heads` are of several."""
    name = f"layer {row['layer']}, head {row['head']}"
    if heads["stack"].nunique() > 1:
        return f"{row['stack']} {name}"
    return name


def list_notices(manifest: Mapping[str, Any]) -> list[str]:
    """List the warnings of a run, and vectors left out that no warning mentions."""
    warnings = [str(text) for text in manifest.get("warnings") or ()]
    # A warning that names a site already says how many were left out there.
    mentioned = " ".join(warnings)
    for site, counts in (manifest.get("excluded") or {}).items():
        left_out = _describe_left_out(counts)
        if left_out and site not in mentioned:
            warnings.append(f"{left_out} left out at {site}")
    return warnings


def _describe_left_out(counts: Mapping[str, Any]) -> str:
    """Say how many vectors of a site were zero, and how many not finite; empty if there were none."""
    zero = int(counts.get("zero") or 0)
    broken = int(counts.get("nonfinite") or 0)
    parts = []
    if zero:
        parts.append(count_noun(zero, "zero vector"))
    if broken:
        parts.append(count_noun(broken, "vector") + " with NaN or Inf")
    return " and ".join(parts)


def _list_provenance(
    manifest: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, str]]:
    """Yield (name, value) for all other entries of the manifest; nested names are joined by dots."""
    for key, entry in manifest.items():
        # These have places of their own on the page.
        if not prefix and key in ("command", "warnings", "excluded", "checkpoints"):
            continue
        if isinstance(entry, Mapping):
            yield from _list_provenance(entry, f"{prefix}{key}.")
        elif isinstance(entry, list | tuple) and entry:
            yield f"{prefix}{key}", ", ".join(map(str, entry))
        elif entry not in (None, "", [], ()):
            yield f"{prefix}{key}", str(entry)
