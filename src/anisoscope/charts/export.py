"""Write drawings as SVG, PDF and PNG; the same chart always gives the same bytes."""

import os
import re
import uuid
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert
from altair.typing import ChartType
from altair.utils import schemapi

from anisoscope.charts.style import THEME, TOOLTIP, escape_control_in
from anisoscope.errors import UsageError


def to_svg(chart: ChartType, name: str = "mark") -> str:
    """Return the chart as SVG text, always the same for the same chart.

    name   prefix of the ids in the SVG: with different names, one page can hold many charts
    """
    return to_svgs({name: lambda: chart})[name]


def to_svgs(charts: Mapping[str, Callable[[], ChartType]]) -> dict[str, str]:
    """Build charts and return them as SVG text, by name; each is rendered in a thread while the next is built.

    charts   functions that build a chart, by name
    """
    futures = {}
    with (
        ThreadPoolExecutor(os.cpu_count()) as pool,
        alt.data_transformers.enable("default", max_rows=None),
        # Each part of a chart would be checked against the whole schema as it is made.
        schemapi.debug_mode(False),
    ):
        for name, build in charts.items():
            described = escape_control_in(build().to_dict(validate=False))
            futures[name] = pool.submit(_clean_svg, described, name)
    return {name: future.result() for name, future in futures.items()}


MANY_TILES = 1000
"""From this many tiles on, those of a heat map are written short: 48 layers of 64 heads make 3,072."""
_TILE = re.compile(
    r'<path d="M([-\d.]+),([-\d.]+)h([-\d.]+)v([-\d.]+)h[-\d.]+Z" fill="rgb\((\d+), (\d+), (\d+)\)" '
    r'stroke="#ffffff" stroke-width="0.6"(?:/>|></path>|>(<title>[^<]*</title>)</path>)'
)
_TILES = re.compile(rf"(?:{_TILE.pattern})+")
_LABEL = re.compile(
    r'<text text-anchor="middle" transform="translate\(([-\d.]+),([-\d.]+)\)"[^>]*? fill="([^"]*)"(?:/>|>([·]?)</text>)'
)
_LABELS = re.compile(rf"(?:{_LABEL.pattern})+")
_SHADE = 8
"""Colours of merged tiles are rounded to multiples of this, of 255: a difference that no eye sees."""
_GAP = 0.6
"""Pixels between two tiles, as wide as the white line around them in other drawings."""
_RISE = 3
"""Pixels from the baseline of a dot to its middle."""


def shorten_tiles(svg: str, *, merge: bool = False) -> str:
    """Shorten the SVG of a large heat map to a quarter of its bytes; return any other drawing unchanged.

    merge   draw all tiles of one colour as one mark, in a tenth of the bytes; tooltips are lost, so this is for screens
            without a mouse
    """
    if len(_TILE.findall(svg)) < MANY_TILES:
        return svg
    svg = _LABELS.sub(lambda run: _join_dots(run[0]), svg)
    return _TILES.sub(lambda run: _write_tiles(run[0], merge), svg)


def _join_dots(labels: str) -> str:
    """Return the dots among the labels of a heat map as one SVG mark for each colour; empty labels are dropped.

    labels   SVG text of labels that follow each other
    """
    by_colour: dict[str, list[str]] = {}
    for x, y, colour, dot in _LABEL.findall(labels):
        if dot:
            by_colour.setdefault(colour, []).append(f"M{x},{float(y) - _RISE:g}h0")
    marks = "".join(_join_by_colour(by_colour))
    return f'<g fill="none" stroke-width="2" stroke-linecap="round">{marks}</g>'


def _join_by_colour(by_colour: dict[str, list[str]]) -> list[str]:
    """Return one SVG mark for each colour, from {colour: its lines in SVG's words}."""
    marks = []
    for colour, lines in by_colour.items():
        marks.append(f'<path d="{"".join(lines)}" stroke="{colour}"/>')
    return marks


def _write_tiles(tiles: str, merge: bool) -> str:
    """Return the tiles of a heat map as one SVG group of short, thick lines.

    tiles   SVG text of tiles that follow each other
    merge   draw the tiles of each colour as one mark, without gaps and tooltips
    """
    gap = 0.0 if merge else _GAP
    by_colour: dict[str, list[str]] = {}
    marks = []
    tall = 0.0
    for x, y, width, height, red, green, blue, title in _TILE.findall(tiles):
        shade = [int(part) for part in (red, green, blue)]
        if merge:
            shade = [min(255, _SHADE * round(part / _SHADE)) for part in shade]
        colour = "#{:02x}{:02x}{:02x}".format(*shade)
        # All tiles of a heat map are equally tall: one stroke width for the group
        # serves all.
        tall = max(tall, float(height))
        # A tile is a thick line through its middle, from the left to the right edge,
        # short of the gap: far fewer bytes than a closed path.
        line = f"M{x},{float(y) + float(height) / 2:g}h{float(width) - gap:g}"
        by_colour.setdefault(colour, []).append(line)
        marks.append(f'<path d="{line}" stroke="{colour}">{title}</path>')
    if merge:
        marks = _join_by_colour(by_colour)
    return f'<g fill="none" stroke-width="{tall - gap:g}">{"".join(marks)}</g>'


def _clean_svg(described: dict[str, Any], name: str) -> str:
    """Render a chart to SVG, turn descriptions after `TOOLTIP` into native tooltips, and remove other descriptions.

    described   the chart in Vega-Lite's JSON
    name        prefix of the ids in the SVG, so that one page can hold many charts
    """
    svg = vl_convert.vegalite_to_svg(described, config=THEME)
    mark = re.compile(rf'<path aria-label="{TOOLTIP}([^"]*)"([^>]*?)(?:/>|></path>)')
    # Browsers show a `title` inside a mark when the mouse rests on it.
    svg = mark.sub(r"<path\2><title>\1</title></path>", svg)
    # The library also describes every axis and mark in words of its own, which would
    # only lengthen the file.
    svg = re.sub(r' (?:role|aria-[a-z]+)="[^"]*"', "", svg)
    # The library counts ids from the start of its process, so that they depend on what
    # was drawn before: numbered by first appearance, they are always the same.
    ids: dict[str, str] = {}
    for old in re.findall(r'\bid="([^"]+)"', svg):
        ids.setdefault(old, f"{name}-{len(ids)}")

    def rename(match: re.Match[str]) -> str:
        """Return an id, or a reference to one, with its new name."""
        return match[1] + ids.get(match[2], match[2])

    return re.sub(r'(\bid="|url\(#|href="#)([^")]+)', rename, svg)


class _Offline:
    """An Altair chart that a notebook shows as a picture, without loading a script from the network."""

    def _repr_mimebundle_(self, *_args: Any, **_given: Any) -> dict[str, str]:
        """Return the chart as an SVG picture in HTML, for notebooks."""
        # Ids count from 0 after a name, which two pictures of one page must not share.
        name = f"chart-{uuid.uuid4().hex[:12]}"
        svg = to_svg(self, name)  # type: ignore[arg-type]
        # Its ink is dark, and the notebook may be too.
        on_white = f'<div style="display: inline-block; background: white">{svg}</div>'
        return {"text/html": on_white, "text/plain": repr(self)}

    def __reduce_ex__(self, _protocol: Any) -> tuple[Any, ...]:
        """Pickle the chart as a plain Altair chart that becomes an offline one when it is loaded."""
        # As the chart of Altair that it was made of, since pickle finds no class that was made while running.
        kind: Any = type(self).__mro__[2]
        # Its parts are copied as they are, without the checks of its constructor.
        plain = kind.__new__(kind)
        plain.__dict__.update(self.__dict__)
        return show_offline, (plain,)


def show_alone(chart: ChartType, title: str) -> ChartType:
    """Prepare a figure of a page to be shown on its own: under its title, on white, without a network."""
    titled = chart.properties(title=title)
    titled.config = alt.Config.from_dict(THEME | {"background": "white"})
    return show_offline(titled)


def show_offline(chart: ChartType) -> ChartType:
    """Change a chart so that a notebook shows its SVG picture, which needs no network, and return it.

    Altair's own display loads Vega from a network address. Everything else about the chart stays Altair's: its methods,
    its type, and what is made of it by `+` or `.interactive()`.
    """
    kind = type(chart)
    if not issubclass(kind, _Offline):
        # The attributes of an Altair chart are parts of its specification, so that only a class can hold a method.
        offline = type(kind.__name__, (_Offline, kind), {"__module__": kind.__module__})
        # Altair's own `__setattr__` would take it for a part of the specification.
        object.__setattr__(chart, "__class__", offline)
    return chart


def save(
    chart: ChartType, stem: Path, formats: Iterable[str] = ("svg", "pdf")
) -> list[Path]:
    """Write the chart as files `stem`.svg, .pdf, .png and return their paths; a redraw gives the same bytes."""
    return write(to_svg(chart, stem.name), stem, formats)


def write(svg: str, stem: Path, formats: Iterable[str]) -> list[Path]:
    """Write a drawing as files `stem`.svg, .pdf, .png and return their paths; UsageError for another format."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    written = []
    for suffix in formats:
        if suffix == "svg":
            content = svg.encode()
        elif suffix == "pdf":
            content = sort_pdf(vl_convert.svg_to_pdf(svg))
        elif suffix == "png":
            # After the opening tag of the SVG, below everything else: PNGs without a
            # background are unreadable on dark pages.
            on_white = svg.replace(
                ">", '><rect width="100%" height="100%" fill="white"/>', 1
            )
            content = vl_convert.svg_to_png(on_white, scale=2)
        else:
            raise UsageError("a figure format among svg, pdf, png", repr(suffix))
        path = stem.with_name(f"{stem.name}.{suffix}")
        path.write_bytes(content)
        written.append(path)
    return written


_REFERENCE = re.compile(rb"\b(\d+) 0 R\b")
_ENTRIES = re.compile(rb"(?:^ +/\w+ \d+ 0 R\n){2,}", re.MULTILINE)


def sort_pdf(content: bytes) -> bytes:
    """Return a PDF with resources sorted by name and objects numbered by first reference, so that its bytes are
    reproducible.
    """
    objects, trailer = _parse_objects(content)
    # The library numbers objects and sorts resources differently each time.
    numbers: dict[int, int] = {}
    for old in _order_objects(objects, trailer):
        numbers[old] = len(numbers) + 1
    header = content[: content.index(b"\n\n") + 2]
    written = header
    offsets = []
    for old, new in numbers.items():
        head, stream = objects[old]
        offsets.append(len(written))
        written += b"%d 0 obj\n%s%sendobj\n\n" % (new, _renumber(head, numbers), stream)
    # Object 0 is the head of the list of free objects; it is always there.
    count = len(numbers) + 1
    rows = b"".join(b"%010d 00000 n\r\n" % offset for offset in offsets)
    table = b"xref\n0 %d\n0000000000 65535 f\r\n%s" % (count, rows)
    trailer = re.sub(rb"/Size \d+", b"/Size %d" % count, _renumber(trailer, numbers))
    return b"%s%s%sstartxref\n%d\n%%%%EOF" % (written, table, trailer, len(written))


def _order_objects(
    objects: dict[int, tuple[bytes, bytes]], trailer: bytes
) -> list[int]:
    """Return the numbers of a PDF's objects in the order in which they are first referred to, from the trailer on."""
    # The trailer refers to the root of the document.
    order = [int(number) for number in _REFERENCE.findall(trailer)]
    # The list grows while it is walked.
    for number in order:
        head, _ = objects[number]
        for reference in _REFERENCE.findall(head):
            if int(reference) not in order:
                order.append(int(reference))
    return order


def _parse_objects(content: bytes) -> tuple[dict[int, tuple[bytes, bytes]], bytes]:
    """Split a PDF into ({number of an object: (its dictionary, its stream or nothing)}, trailer)."""
    # A PDF ends with the offset of its table of objects, after the word `startxref`.
    start = int(content[content.rindex(b"startxref") :].split()[1])
    table, trailer = content[start : content.rindex(b"startxref")].split(b"trailer")
    offsets = []
    for row in table.split(b"\n"):
        # A row is ten digits of an offset, five of a generation, and `n` if in use.
        if row[17:18] == b"n":
            offsets.append(int(row[:10]))
    offsets.sort()
    objects = {}
    # An object ends where the next one begins, the last one at the table.
    for offset, end in zip(offsets, [*offsets[1:], start], strict=True):
        header, body = content[offset:end].split(b" 0 obj\n", 1)
        # Streams are compressed bytes, which only look like references: they are kept
        # apart from the dictionary and left as they are.
        head, mark, stream = body[: body.rindex(b"endobj")].partition(b"stream\n")
        head = _ENTRIES.sub(_sort_entries, head)
        objects[int(header)] = (head, mark + stream)
    return objects, b"trailer" + trailer


def _sort_entries(match: re.Match[bytes]) -> bytes:
    """Return the matched lines of a PDF dictionary sorted by name."""
    return b"".join(sorted(match[0].splitlines(keepends=True)))


def _renumber(text: bytes, numbers: dict[int, int]) -> bytes:
    """Replace the object numbers in the references of a PDF text, as `numbers` maps old to new."""
    return _REFERENCE.sub(lambda match: b"%d 0 R" % numbers[int(match[1])], text)
