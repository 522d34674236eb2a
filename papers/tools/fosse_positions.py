"""Positions × attention on the page of Fosse et al. 2023: what H, *used* and *needed* are under each recipe of
positions, and which sentences of the paper hold there.
"""

import json
from collections.abc import Iterator

import numpy as np
import pandas as pd
from committed import RESULTS, word
from pages import table_row
from svg import draw_svg, write_text

from anisoscope.store import select
from anisoscope.sums.jackknife import estimate_over_seeds
from anisoscope_papers.beyond.positions import ENTROPY, NONE, Quantities, name_recipes
from anisoscope_papers.fosse2023.entry import Evidence
from anisoscope_papers.fosse2023.grid import (
    CONTROL,
    LEARNED,
    RECIPES,
    TITLES,
    add_options,
)
from anisoscope_papers.judge import Array

PLACE = RESULTS / "beyond" / "finished" / "positions"
COLOURS = {"yelphat": "#1f6f8b", "hatexplain": "#e08e0b", "esnli": "#b3261e"}
PANELS = {
    "H of [CLS]": (0.0, 1.0, 0.25),
    "used: points lost when taken away": (-5.0, 40.0, 10.0),
    "needed: points lost when trained without": (-5.0, 40.0, 10.0),
}
"""Lowest, highest and step of the vertical axis of each panel."""
NAMES = dict(
    zip(
        PANELS,
        (
            "H",
            "points lost if attention is taken away after training",
            "points lost if trained without attention",
        ),
        strict=True,
    )
)
"""Names of the panels in a table."""
ACROSS = dict(zip(RECIPES, (0.0, 0.25, 1.0, 1.45), strict=True))
"""Place of each recipe: the factor of the sinusoids, and learned positions beside them."""
SENTENCES = {
    "nearly uniform": "Attention is nearly uniform (H above .9)",
    "not used": "Geometry replaces attention: if it is made uniform after training, less than two points are lost",
    "not needed": "Geometry replaces attention: if a model is trained with it uniform, less than two points are lost",
    "keys converge": "Keys converge by training",
    "values converge": "Values converge by training",
}
"""Claims on every recipe, and the paper's sentences as they are tested."""


def _seeds() -> Iterator[tuple[str, str, dict[str, Array]]]:
    """Yield (corpus, recipe, {panel: values [seed]}) of one layer; points are hundredths of accuracy."""
    records = add_options(pd.read_parquet(PLACE / "records.parquet"))
    for here in Evidence("positions", records, paper="beyond").corpora:
        found = Quantities(here)
        for recipe in RECIPES:
            learned = found.accuracy[1.0, recipe, LEARNED]
            # H; points lost when attention is taken away (a fall of accuracy is
            # negative); points lost when trained without it.
            values = (
                found.entropy[1.0, recipe],
                -100 * found.used[1.0, recipe],
                100 * (learned - found.accuracy[1.0, recipe, "uniform"]),
            )
            yield here.corpus, recipe, dict(zip(PANELS, values, strict=True))


def positions_figure() -> str:
    """Draw H, *used* and *needed* of one layer against the factor of the sinusoids, as SVG: means over seeds with 95 %
    intervals; learned positions beside them.
    """
    left, width, gap, top, height = 46, 220, 62, 66, 200
    body = []
    for place, (corpus, colour) in enumerate(COLOURS.items()):
        key = left + 10 + place * 110
        body.append(f'<circle cx="{key}" cy="18" r="5" fill="{colour}"/>')
        body.append(write_text(key + 10, 22, TITLES[corpus]))
    every = list(_seeds())
    for number, (panel, (low, high, step)) in enumerate(PANELS.items()):
        start = left + number * (width + gap)

        def down(value: float, low: float = low, high: float = high) -> float:
            """Return the vertical position of a value."""
            return round(top + (high - value) / (high - low) * height, 1)

        def across(recipe: str, shift: float = 0.0, start: int = start) -> float:
            """Return the horizontal position of a recipe, with a shift in pixels."""
            return round(start + 12 + ACROSS[recipe] / 1.5 * (width - 24) + shift, 1)

        body.append(write_text(start, 50, panel, weight="bold"))
        # From 0 up, half a step beyond the end so that rounding leaves out no tick.
        for tick in np.arange(0.0, high + step / 2, step):
            y = down(float(tick))
            body.append(
                f'<line x1="{start}" x2="{start + width}" y1="{y}" y2="{y}" stroke="#ddd"/>'
            )
            body.append(write_text(start - 6, y + 4, f"{tick:g}", anchor="end"))
        for recipe, label in zip(RECIPES, ("0", "¼", "1", "learned"), strict=True):
            body.append(
                write_text(across(recipe), top + height + 18, label, anchor="middle")
            )
        body.append(
            write_text(
                start + 12,
                top + height + 34,
                "factor of the sinusoids, or learned positions",
                colour="#777",
            )
        )
        for place, (corpus, colour) in enumerate(COLOURS.items()):
            points = []
            for of, recipe, values in every:
                # Seeds without a number are left out; the label has the n of the rest.
                known = values[panel][~np.isnan(values[panel])]
                if of != corpus or not len(known):
                    continue
                found = estimate_over_seeds(known)
                # A few pixels apart, so that corpora do not hide each other.
                x, y = across(recipe, (place - 1) * 4), down(float(found.value))
                ends = [
                    down(float(np.clip(end, low, high)))
                    for end in (found.low, found.high)
                ]
                if not np.isnan(ends).any():
                    line = f'x1="{x}" x2="{x}" y1="{ends[0]}" y2="{ends[1]}"'
                    body.append(f'<line {line} stroke="{colour}" stroke-width="1.5"/>')
                told = f"{TITLES[corpus]}, {recipe}: {float(found.value):.3g} (n = {len(known)})"
                body.append(
                    f'<circle cx="{x}" cy="{y}" r="4" fill="{colour}"><title>{told}</title></circle>'
                )
                # Only factors of the sinusoids lie on a scale and are joined; learned
                # positions are not on it.
                if recipe in list(RECIPES)[:3]:
                    points.append(f"{x},{y}")
            body.append(
                f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-opacity="0.6"/>'
            )
    return draw_svg(left + 3 * width + 2 * gap + 20, top + height + 46, body)


def sentences_table() -> str:
    """Return a table in Markdown: which sentence of the paper holds under which recipe of positions, in one layer."""
    found = json.loads((PLACE / "verdicts.json").read_text("utf-8"))
    by_name = {
        (verdict["claim"], verdict["subject"]): word(verdict) for verdict in found
    }
    rows = [("one layer", *RECIPES), ("---",) * (1 + len(RECIPES))]
    for claim, sentence in SENTENCES.items():
        cells = []
        for recipe in RECIPES:
            outcomes = {
                title: by_name.get((claim, f"{title}, L = 1, {recipe}"), "–")
                for title in TITLES.values()
            }
            cells.append(
                "<br>".join(
                    f"{title}: *{outcome}*" for title, outcome in outcomes.items()
                )
            )
        rows.append((sentence, *cells))
    return "\n".join(map(table_row, rows))


def means_table() -> str:
    """Return a table in Markdown: H, and the points lost without attention, as means over seeds, for three recipes."""
    every = {(corpus, recipe): values for corpus, recipe, values in _seeds()}
    shown = list(RECIPES)[:3]
    rows = [("mean over seeds", *shown), ("---",) * (1 + len(shown))]
    for panel, name in NAMES.items():
        # H is a share, the others are points.
        digits = 2 if panel.startswith("H") else 0
        for corpus, title in TITLES.items():
            means = [
                float(np.nanmean(every[corpus, recipe][panel])) for recipe in shown
            ]
            rows.append(
                (
                    f"{name}, {title}",
                    *(f"{mean:.{digits}f}".replace("-", "−") for mean in means),
                )
            )
    return "\n".join(map(table_row, rows))


def depths_table() -> str:
    """Return a table in Markdown: H by layer, and the points lost without attention, of models without positions, by
    their number of layers; means over seeds.
    """
    records = add_options(pd.read_parquet(PLACE / "records.parquet"))
    columns = (
        "H of layer 1",
        "layer 2",
        "layer 3",
        "points lost: taken away afterwards",
        "trained without",
    )
    rows = [("without positions", *columns), ("---",) * (1 + len(columns))]
    for here in Evidence("positions", records, paper="beyond").corpora:
        found = Quantities(here)
        by_layer = here.by(select_learned(here), "layers", "recipe", "layer")
        for layers in found.depths:
            # A model of two layers has no third one.
            means = {
                layer: np.nanmean(by_layer[layers, NONE, layer])
                for layer in (1.0, 2.0, 3.0)
                if layer <= layers
            }
            entropies = [
                f"{means[layer]:.2f}" if layer in means else ""
                for layer in (1.0, 2.0, 3.0)
            ]
            used = -100 * np.nanmean(found.used[layers, NONE])
            learned, without = (
                found.accuracy[layers, NONE, arm] for arm in (LEARNED, "uniform")
            )
            needed = 100 * np.nanmean(learned - without)
            points = [
                f"{round(float(lost)):d}".replace("-", "−") for lost in (used, needed)
            ]
            rows.append(
                (
                    f"{TITLES[here.corpus]}, {layers:g} layer{'s' * (layers > 1)}",
                    *entropies,
                    *points,
                )
            )
    return "\n".join(map(table_row, rows))


def select_learned(here: Evidence) -> pd.DataFrame:
    """Return the records of H, by layer, of the trained models of one corpus whose attention is learned."""
    rows = name_recipes(here.sound)
    return select(rows[rows["family"] != CONTROL], arm=LEARNED, **ENTROPY)
