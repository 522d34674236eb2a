"""Every text of a page can be read: contrast with what is behind it of at least 4.5 (WCAG 2.2, AA), light and dark."""

import json
import re
from importlib.resources import files
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from browser import Browser, find_chromium
from test_report import synthetic_manifest, synthetic_records, write_run

from anisoscope.charts import style
from anisoscope.report import build_page

LEAST = 4.5
CSS = files("anisoscope.report").joinpath("style.css").read_text("utf-8")
LIGHT, DARK = CSS.split("@media screen and (prefers-color-scheme: dark)")
OF_TEXT = ("ink", "muted", "accent", "holds", "fails", "undecided")
GROUNDS = ("paper", "tint", "warn-tint")


def to_linear(colour):
    """Linear RGB in [0, 1] of a colour written as #rrggbb."""
    channels = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(
        channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4
    )


def luminance(linear):
    """Relative luminance of linear RGB."""
    return float(np.clip(linear, 0, 1) @ [0.2126, 0.7152, 0.0722])


def contrast(one, other):
    """Contrast of two luminances, from 1 to 21."""
    low, high = sorted((one, other))
    return (high + 0.05) / (low + 0.05)


def variables(text):
    """Colours of a style sheet by the names of their variables."""
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", text))


def luminances_of(shades, count=401):
    """Luminance along a scale of colours that is interpolated in CIE Lab, as the heat maps are."""
    # Lab's lightness is a function of the luminance alone, so only that is interpolated.
    cube = [np.cbrt(luminance(to_linear(shade))) for shade in shades]
    assert min(cube) ** 3 > 0.008856  # else lightness is linear there
    share = np.linspace(0, 1, count)
    return share, np.interp(share, np.linspace(0, 1, len(shades)), cube) ** 3


def test_contrast_is_that_of_the_standard():
    assert contrast(
        luminance(to_linear("#000000")), luminance(to_linear("#ffffff"))
    ) == pytest.approx(21)
    assert contrast(
        luminance(to_linear("#777777")), luminance(to_linear("#ffffff"))
    ) == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("ground", GROUNDS)
@pytest.mark.parametrize("name", OF_TEXT)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_can_be_read_on_every_ground(theme, name, ground):
    colours = variables(LIGHT) | (variables(DARK) if theme == "dark" else {})
    found = contrast(*(luminance(to_linear(colours[key])) for key in (name, ground)))
    assert found >= LEAST, f"{name} on {ground}: {found:.2f}"


def test_every_colour_of_text_is_looked_at():
    used = set(re.findall(r"(?<![-\w])color: var\(--([\w-]+)\)", CSS))
    assert used <= set(OF_TEXT), used - set(OF_TEXT)


def test_the_dark_theme_turns_every_ink_of_a_chart():
    theme = json.loads(
        files("anisoscope.charts").joinpath("theme.json").read_text("utf-8")
    )
    inks = {
        value
        for part in theme.values()
        if isinstance(part, dict)
        for key, value in part.items()
        if "abelColor" in key or "itleColor" in key
    }
    assert inks <= {style.INK, style.MUTED}
    paper = luminance(to_linear(variables(DARK)["paper"]))
    turned = dict(re.findall(r'\.chart \[fill="(#\w{6})"\] \{ fill: (#\w{6})', DARK))
    for ink in inks:
        assert contrast(luminance(to_linear(ink)), 1.0) >= LEAST
        assert contrast(luminance(to_linear(turned[ink])), paper) >= LEAST


@pytest.mark.parametrize("scale", ["SEQUENTIAL", "DIVERGING"])
def test_numbers_on_cells_can_be_read(scale):
    share, ground = luminances_of(getattr(style, scale))
    white = style.needs_white_ink(pd.Series(share), getattr(style, scale))
    for at, is_white, lum in zip(share, white, ground, strict=True):
        found = contrast(1.0 if is_white else 0.0, lum)
        assert found >= LEAST, f"at {at:.2f} of {scale}: {found:.2f}"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A page with every kind of figure and table."""
    records = synthetic_records(layers=2, heads=3, extremes=True)
    return build_page(
        write_run(tmp_path_factory.mktemp("page"), records, synthetic_manifest())
    )


MEASURED = Path(__file__).with_name("contrast.js").read_text("utf-8")
needs_browser = pytest.mark.skipif(
    find_chromium() is None, reason="no Chromium on this machine"
)


@needs_browser
@pytest.mark.parametrize(
    ("width", "dark"),
    # both themes and both widths are among the first two
    [
        (1400, False),
        (400, True),
        pytest.param(1400, True, marks=pytest.mark.nightly),
        pytest.param(400, False, marks=pytest.mark.nightly),
    ],
)
def test_every_text_that_a_browser_draws_can_be_read(page, width, dark):
    with Browser(width, dark=dark) as browser:
        browser.open(page)
        browser.evaluate("document.querySelector('.map td').click()")
        found = browser.evaluate(f"({MEASURED})({LEAST})")
        assert found["count"] > 500 and found["bad"] == []
        planted = "<p style='color: #888; background: #999'>grey</p>"
        browser.evaluate(f'document.body.insertAdjacentHTML("beforeend", "{planted}")')
        assert [
            text for _, text in browser.evaluate(f"({MEASURED})({LEAST})")["bad"]
        ] == ["grey"]
