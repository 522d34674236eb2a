"""The page on Fosse et al. 2023: a short answer, the numbers, then the paper's tables and figures in its own order.

Words stand in fosse_page.md, numbers in committed records; both drawings are made of them here.
"""

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from committed import RESULTS, distinct_verdicts, primary_claims, word
from findings import FIELD, _filled
from fosse_positions import depths_table, means_table, positions_figure, sentences_table
from pages import DOCS, table_row
from svg import draw_svg, write_text

from anisoscope.store import select
from anisoscope_papers.beyond.cells import AFTERWARDS
from anisoscope_papers.beyond.positions import NONE, SINUSOIDS, name_recipes
from anisoscope_papers.fosse2023.grid import (
    CONTROL,
    LEARNED,
    OTHER_ARM,
    OWN,
    TITLES,
    add_options,
)
from anisoscope_papers.fosse2023.table4_penalty import QUANTITIES, WEIGHTS

WORDS = Path(__file__).parent / "fosse_page.md"
FINISHED = RESULTS / "fosse2023" / "finished"
CONE = RESULTS / "fosse2023" / "cone.json"
ORDER = ("yelphat", "hatexplain", "esnli")
DEEPEST = {"YelpHat": 5, "HateXplain": 5, "e-SNLI": 2}
MARKS = {"agrees": "✓", "differs": "≠", "open": "", "not comparable": "—"}
DOTS = {
    "trained with attention": "#1f6f8b",
    "trained without": "#e08e0b",
    "taken away afterwards": "#b3261e",
}
TESTED = {"metric": "accuracy", "component": "test"}
MARGIN = 0.02


def page() -> str:
    """Return the page: a short answer, the numbers claim by claim, then the paper's own tables and figures, folded."""
    # The fields of the text become numbers of committed verdicts.
    words = FIELD.sub(_filled, WORDS.read_text("utf-8")).strip()
    deeper = [DEEPER, depths_table(), AFTER_DEPTHS]
    return "\n\n".join(
        [
            words,
            POSITIONS,
            means_table(),
            WHICH,
            sentences_table(),
            *deeper,
            _shares(),
            _own_order(),
        ]
    )


POSITIONS = """## Positions and attention, in one layer

![H of `[CLS]`, points lost without attention afterwards and from the start](figures/fosse2023-positions.svg)

Dots are means over seeds, with 95 % intervals that are not corrected for their number. On the horizontal axis, 0 means
no positions, as in the paper's text, and 1 the sinusoids of its code. Learned positions stand to the right."""

DEEPER = """## Without positions, by depth

The model of the paper's text has no positions. With one layer its attention is nearly uniform on YelpHat. With two and
three layers only the first layer is nearly uniform. In that layer, training leaves attention as it was at the start.
The layers above it become sharp, and attention is used. Means over seeds:"""

AFTER_DEPTHS = """H is measured by the paper's formula, which can exceed 1 a little. Models of two and three layers
have four seeds, those of one layer eight."""

WHICH = """The next table says which sentence of the paper holds under which recipe. These are the tests of
*positions*: one split of each corpus, intervals over seeds, and Holm's correction for all of these
tests and those of deeper models. So some cells are *undecided* where a smaller set of tests, above,
decides."""


def _shares() -> str:
    """Return how many of the primary verdicts are decided: of the paper, and of questions beyond it."""
    parts = []
    for paper, whose in (
        ("fosse2023", "the paper"),
        ("beyond", "our own studies"),
    ):
        places = sorted(RESULTS.glob(f"{paper}/*/*/study.json"))
        # Each figure or table by its primary claim, in all settings; data that two
        # folders share count once.
        words = []
        for path in places:
            primary = primary_claims(path)
            for verdict in distinct_verdicts(path):
                if verdict["claim"] in primary:
                    words.append(word(verdict))
        decided = sum(outcome not in UNDECIDED for outcome in words)
        parts.append(
            f"{decided} of {len(words)} ({100 * decided / len(words):.0f} %) of {whose}"
        )
    return (
        f"**How much is decided.** A table or figure is judged by its primary claim. We also ran studies of our own, "
        f"on questions that the paper does not ask ([verdicts](verdicts.md)); each has a primary claim, too. Of the "
        f"verdicts on primary claims, {' and '.join(parts)} are decided. The rest is undecided, true by "
        f"construction, or not comparable."
    )


UNDECIDED = ("undecided", "identity", "not comparable")
"""Outcomes that decide nothing."""


def _own_order() -> str:
    """Return the paper's tables and figures, in its order, as Markdown."""
    compared = {
        name: json.loads((FINISHED / name / "compared.json").read_text("utf-8"))
        for name in SHOWN
    }
    head = "## The paper's tables and figures, in its order"
    lead = "Every cell of the paper's tables, compared with our trainings. Unfold what you need."
    parts = [
        head,
        lead,
        HOW,
        *_fold("Figure 1: the cone of the values", CONE_TEXT),
        *_fold("Table 1: accuracy", _list(compared["table1"]), COLLAPSED),
        *_fold(
            "Section 3: mean cosine between the vectors of one text",
            _list(compared["sec3"]),
        ),
        *_fold(
            "Figure 2: median cosine of [CLS] to a typical [CLS] of a class",
            _figure2(compared["fig2"]),
        ),
        *_fold("Table 2: cosine of one review of the first class to others", _table2()),
        *_fold(
            "Table 3: similarity of keys and values in models of one to five layers",
            *_table3(compared["table3"]),
        ),
        *_fold(
            "Table 4: one layer under an entropy penalty λ",
            FORM_C,
            _table4(compared["table4"]),
        ),
    ]
    return "\n\n".join([*parts, "## More", MORE])


def _fold(title: str, *blocks: str) -> list[str]:
    """Return blocks of Markdown below a title that the reader opens with a click."""
    return [f'<details markdown="1"><summary>{title}</summary>', *blocks, "</details>"]


HOW = """- A cell reads: ours ± standard deviation over seeds (theirs).
- ≠: theirs lies outside the range in which one more run of ours would fall (95 %; with few seeds this is three standard
  deviations to either side, or more). The difference can be small, or in our favour.
- No mark: theirs lies inside that range. With fewer than eight seeds this proves little. (With eight or more the mark
  would be ✓.)
- —: not comparable. Our models of e-SNLI are trained on 18,000 of its 549,000 pairs, and our fine-tuned encoder is not
  the paper's. So accuracies of table 1 on e-SNLI and medians of figure 2 are not compared.
- All models here have the position codes of the paper's code."""
MORE = (
    "[What is now known](findings.md) in words · [every verdict](verdicts.md) with its command · "
    "[where code and paper differ](decisions/fosse2023.md) · [from H = .988 to the code](published-entropy.md)"
)
SHOWN = ("table1", "sec3", "fig2", "table3", "table4")
COLLAPSED = (
    "On HateXplain the paper's fine-tuned encoder has .401: a model that "
    "always names the commonest class has .406."
)
FORM_C = (
    "In the rows of H of HateXplain and e-SNLI, the paper most likely uses one formula for λ = 0 and another for the "
    "other cells. We do the same here. The cells of λ = 0 are the entropy of a *softmax of the weights* (form C), "
    "which stays above .97 whatever "
    "attention does. All other cells are the usual entropy of the weights (form A). By form A our models are sharp at "
    "λ = 0: .14 and .09."
)
CONE_TEXT = (
    "![Values of one review and the outputs of attention, as angles to the mean direction of the values]"
    "(figures/fosse2023-cone.svg)\n\n"
    "The first test review of 50 words in one trained layer (YelpHat, seed 0). Its values are grey, the outputs of "
    "attention blue. Each vector is drawn with its length and its angle to the mean value. Every output lies in the "
    "cone of the values, as the paper says. Any attention does this, trained or not, because an average of vectors "
    "stays within their cone."
)


def cell(row: dict[str, Any] | None) -> str:
    """Format a cell of a table: `ours ± sd (theirs)`, and a mark for the comparison."""
    if row is None:
        return ""
    theirs = f"({row['published']:.3g})"
    # Their number is shown even if we have none.
    if row["value"] is None:
        return f"– {theirs}"
    spread = "" if row["spread"] is None else f" ± {row['spread']:.2f}"
    return (
        f"{row['value']:.2f}{spread} {theirs} {MARKS[row['verdict']]}".strip().replace(
            "-", "−"
        )
    )


def _markdown(rows: Iterable[Sequence[str]]) -> str:
    """Format rows as a Markdown table; the first is the head."""
    first, *others = rows
    return "\n".join(table_row(row) for row in (first, ("---",) * len(first), *others))


def _list(rows: list[dict[str, Any]]) -> str:
    """Format comparisons as a table of two columns."""
    return _markdown(
        [("", "ours ± sd (theirs)"), *((row["place"], cell(row)) for row in rows)]
    )


def _figure2(rows: list[dict[str, Any]]) -> str:
    """Format figure 2: a row for the class of the pairs, a column for the class of the typical vector."""
    by_place = {row["place"]: row for row in rows}
    classes = ("entailment", "neutral", "contradiction")
    body = []
    for own in classes:
        row = [f"pairs of {own}"]
        for other in classes:
            place = f"e-SNLI, median of {own} to a representative of {other}"
            row.append(cell(by_place[place]))
        body.append(row)
    return _markdown([("e-SNLI", *(f"to {other}" for other in classes)), *body])


def _table2() -> str:
    """Format table 2: our cosines, for YelpHat's first seed, with the paper's."""
    published = {
        "nearest, same class": 0.96,
        "nearest, other class": 0.93,
        "median, other class": 0.2,
    }
    published["farthest, same class"] = 0.09
    records = pd.read_parquet(FINISHED / "table2" / "records.parquet")
    rows = select(records, metric="example", seed=0)
    # The component is `KIND | TEXT`; no text is shown.
    found = {
        str(text).partition(" | ")[0]: value
        for text, value in zip(rows["component"], rows["value"], strict=True)
    }
    told = [
        (name, f"{found[name]:.2f} ({theirs:.2g})".replace("-", "−"))
        for name, theirs in published.items()
    ]
    return _markdown(
        [
            ("other review", "ours, YelpHat (theirs, Yelp polarity: not comparable)"),
            *told,
        ]
    )


def _table3(rows: list[dict[str, Any]]) -> list[str]:
    """Format table 3: a grid of model depth × layer for each corpus, for keys and for values."""
    by_place = {row["place"]: row for row in rows}
    tables = []
    for title, deepest in DEEPEST.items():
        for quantity in ("keys", "values"):
            layers = range(1, deepest + 1)
            body = []
            for depth in layers:
                # A model has no more layers than it is deep: cells beyond are empty.
                row = [f"{depth}-layer model"]
                for at in layers:
                    place = f"{title}, L = {depth}, layer {at}, {quantity}"
                    row.append(cell(by_place.get(place)))
                body.append(row)
            tables.append(
                _markdown(
                    [(f"{title}, {quantity}", *(f"layer {at}" for at in layers)), *body]
                )
            )
    return tables


def _table4(rows: list[dict[str, Any]]) -> str:
    """Format table 4: a row per corpus and quantity, a column per λ."""
    by_place = {row["place"]: row for row in rows}
    body = []
    for corpus in ("hatexplain", "esnli", "yelphat"):
        # H, keys and values, as in the paper; accuracy is ours.
        for name in list(QUANTITIES)[:3]:
            row = [f"{TITLES[corpus]}, {name}"]
            for weight in WEIGHTS:
                place = f"{TITLES[corpus]}, λ = {weight:g}, {name}"
                row.append(cell(by_place.get(place)))
            body.append(row)
    return _markdown([("", *(f"λ = {weight:g}" for weight in WEIGHTS)), *body])


def accuracies() -> dict[tuple[str, int, str], dict[str, float]]:
    """Return {(corpus, layers, recipe): {what of `DOTS`: mean accuracy over seeds}}.

    One layer, and more without positions: from one set of models. Two and three layers with the sinusoids: from the
    studies `needed` and `replaced`.
    """
    found: dict[tuple[str, int, str], dict[str, float]] = {}
    records = name_recipes(
        add_options(
            pd.read_parquet(RESULTS / "beyond/finished/positions/records.parquet")
        )
    )
    trained = records[records["family"] != CONTROL]
    learned, uniform = select(trained, arm=LEARNED), select(trained, arm="uniform")
    afterwards = {"metric": "accuracy", "component": AFTERWARDS}
    rows = (
        select(learned, **TESTED),
        select(uniform, **TESTED),
        select(learned, **afterwards),
    )
    # In the order of `DOTS`: with attention, without from the start, and made uniform
    # afterwards.
    for what, each in zip(DOTS, rows, strict=True):
        means = (
            each.groupby(["corpus", "layers", "recipe"])["value"].mean().reset_index()
        )
        for row in means.to_dict("records"):
            # Deeper models with the sinusoids are those of `needed` and `replaced`,
            # below.
            if row["recipe"] == NONE or (
                row["layers"] == 1 and row["recipe"] == SINUSOIDS
            ):
                place = str(row["corpus"]), int(row["layers"]), str(row["recipe"])
                found.setdefault(place, {})[what] = float(row["value"])
    needed = add_options(
        pd.read_parquet(RESULTS / "beyond/finished/needed/records.parquet")
    )
    replaced = add_options(pd.read_parquet(FINISHED / "replaced" / "records.parquet"))
    needed = select(needed, family=[OWN, OTHER_ARM], **TESTED)
    change = select(
        replaced,
        family=OWN,
        weight=0.0,
        metric="ablation.accuracy",
        component="uniform",
        layer=None,
    )
    for corpus in ORDER:
        for layers in (2, 3):
            own = select(needed, corpus=corpus, layers=layers)
            both = [
                select(own, arm=arm)["value"].mean() for arm in (LEARNED, "uniform")
            ]
            # The change of accuracy if attention is made uniform afterwards: negative
            # if it was used.
            lost = select(change, corpus=corpus, layers=layers)["value"].mean()
            values = zip(DOTS, (*both, both[0] + lost), strict=True)
            found[corpus, layers, SINUSOIDS] = {
                what: float(x) for what, x in values if not math.isnan(x)
            }
    return found


def attention_figure() -> str:
    """Draw accuracies as SVG: a row per corpus and depth, three dots, a band of two points; with and
    without positions.
    """
    found, rows = (
        accuracies(),
        [(corpus, layers) for corpus in ORDER for layers in (1, 2, 3)],
    )
    left, width, top, step, gap = 110, 330, 64, 26, 40
    height = top + step * len(rows) + 40
    total = left + 2 * width + gap + 20
    body = [write_text(left, 18, "accuracy on the test split", weight="bold")]
    for place, (what, colour) in enumerate(DOTS.items()):
        x = left + 10 + place * 190
        body += [
            f'<circle cx="{x}" cy="34" r="5" fill="{colour}"/>',
            write_text(x + 10, 38, what),
        ]
    # Two panels that share their rows; the labels are to the left of the first one.
    for panel, (recipe, title) in enumerate(
        ((SINUSOIDS, "with positions"), (NONE, "without positions"))
    ):
        start = left + panel * (width + gap)

        def across(value: float, start: int = start) -> float:
            """Return the horizontal position of an accuracy."""
            # From 30 % to 100 %.
            return round(start + (value - 0.3) / 0.7 * width, 1)

        body.append(write_text(start, 56, title, weight="bold"))
        for tick in (0.4, 0.6, 0.8, 1.0):
            at = across(tick)
            body.append(
                f'<line x1="{at}" x2="{at}" y1="{top}" y2="{height - 36}" stroke="#ddd"/>'
            )
            body.append(write_text(at, height - 20, f"{tick:.1f}", anchor="middle"))
        for place, (corpus, layers) in enumerate(rows):
            y = top + step * place + step / 2
            if not panel:
                body.append(
                    write_text(
                        left - 8, y + 4, f"{TITLES[corpus]}, L = {layers}", anchor="end"
                    )
                )
            dots = found.get((corpus, layers, recipe), {})
            if "trained with attention" not in dots:
                body.append(
                    write_text(start + 4, y + 4, "not trained yet", colour="#777")
                )
                continue
            # Within two points on either side a difference does not count.
            low, high = (
                across(dots["trained with attention"] + side * MARGIN)
                for side in (-1, 1)
            )
            band = f'x="{low}" y="{y - 9:.1f}" width="{high - low:.1f}" height="18"'
            body.append(f'<rect {band} fill="#bbb" fill-opacity="0.6"/>')
            for what, value in dots.items():
                title_of = f"<title>{what}: {value:.3f}</title>"
                body.append(
                    f'<circle cx="{across(value)}" cy="{y:.1f}" r="5" fill="{DOTS[what]}">{title_of}</circle>'
                )
    return draw_svg(total, height, body)


def cone_figure() -> str:
    """Draw values and outputs of one utterance as SVG: rays at their angle to the mean direction,
    which points upwards.
    """
    found = json.loads(CONE.read_text("utf-8"))
    foot, scale, middle = 300, 17.0, 260
    # The narrowest cone around the mean direction that holds all values.
    half = max(value["angle"] for value in found["values"])
    longest = max(value["length"] for value in found["values"])
    reach = longest * scale
    body = []
    for side in (-1, 1):
        x, y = (
            middle + side * reach * math.sin(math.radians(half)),
            foot - reach * math.cos(math.radians(half)),
        )
        body.append(
            f'<line x1="{middle}" y1="{foot}" x2="{x:.1f}" y2="{y:.1f}" stroke="#999" stroke-dasharray="5 4"/>'
        )
    top = foot - reach - 8
    body.append(
        f'<line x1="{middle}" y1="{foot}" x2="{middle}" y2="{top:.1f}" stroke="#222"/>'
    )
    body.append(write_text(middle + 6, top + 4, "mean direction of the values"))
    for kind, colour, stroke in (("values", "#999", 1), ("outputs", "#1f6f8b", 2)):
        for ray in found[kind]:
            # Measured from the vertical, to the side on which the vector lies.
            turned = math.radians(ray["angle"]) * ray["side"]
            x = middle + ray["length"] * scale * math.sin(turned)
            y = foot - ray["length"] * scale * math.cos(turned)
            ends = f'x1="{middle}" y1="{foot}" x2="{x:.1f}" y2="{y:.1f}"'
            body.append(
                f'<line {ends} stroke="{colour}" stroke-width="{stroke}" stroke-opacity="0.55"/>'
            )
            body.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>')
    body.append(
        write_text(
            10,
            foot + 22,
            f"dashed: the narrowest cone that holds the values, half angle {half:.0f}°",
        )
    )
    return draw_svg(520, foot + 36, body)


FIGURES = {
    "fosse2023-attention.svg": attention_figure,
    "fosse2023-positions.svg": positions_figure,
    "fosse2023-cone.svg": cone_figure,
}
"""Files in docs/figures/, and what makes them."""


def write_figures() -> list[Path]:
    """Draw all figures, and return their paths."""
    paths = [DOCS / "figures" / name for name in FIGURES]
    # Written as text: a diff shows what has changed.
    for path, make in zip(paths, FIGURES.values(), strict=True):
        path.write_text(make(), "utf-8")
    return paths
