"""Write drawings as SVG by hand, for figures of pages that no chart of the reports draws."""

from collections.abc import Sequence


def write_text(
    x: float,
    y: float,
    words: str,
    *,
    anchor: str = "start",
    weight: str = "normal",
    colour: str = "#222",
) -> str:
    """Return an SVG text element."""
    place = f'x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-weight="{weight}" fill="{colour}"'
    return f"<text {place}>{words}</text>"


def draw_svg(width: float, height: float, body: Sequence[str]) -> str:
    """Return an SVG document."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
    style = f'height="{height:g}" font-family="sans-serif" font-size="12">'
    ground = f'<rect width="{width:g}" height="{height:g}" fill="white"/>'
    return "\n".join([head + style, ground, *body, "</svg>"]) + "\n"
