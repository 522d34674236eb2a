"""Templates of pages, filled with stand-ins: every text is in its own place, under its own name."""

import re
from html import unescape
from types import SimpleNamespace

import pytest
from markupsafe import Markup

from anisoscope.report import page
from anisoscope.report.head_map import HeadMap, Panel, Quantity
from anisoscope.report.parts import Figure, PageTable


def a_figure(name, *labels, basis="basis"):
    texts = (f"{part} {name}" for part in ("title", "caption", basis, "alt"))
    return Figure(name, *texts, dict.fromkeys(labels or ("",)))


def drawings(*figures):
    made = {}
    for figure in figures:
        made[figure.name] = [
            {
                "label": label,
                "file": file,
                "wide": Markup(f"<i>wide {file}</i>"),
                "narrow": Markup(f"<i>narrow {file}</i>"),
            }
            for file, (label, _) in figure.files.items()
        ]
    return made


TABLE = PageTable(
    "the table",
    ("place", "A", "B"),
    (
        (("layer 1", ""), ("1", "[0, 2]"), ("3", "")),
        (("last", ""), ("–", ""), ("5", "")),
    ),
)
COMMON = {"title": "a model", "headline": ["One.", "Two."], "formats": ("svg", "pdf")}


def render(template, folder, **content):
    """The page as it was written, and its text alone, without tags, in one line."""
    written = page.write_page(folder, page.HERE.joinpath(template), **content)
    text = written.read_text("utf-8")
    body = re.sub(r"<(script|style|math)\b.*?</\1>", " ", text, flags=re.DOTALL)
    plain = " ".join(unescape(re.sub(r"<[^>]+>", " ", body)).split())
    return text, plain


def in_order(text, *parts):
    """Whether these parts are in the text in this order."""
    at = 0
    for part in parts:
        assert part in text[at:], part
        at = text.index(part, at) + len(part)
    return True


def quantity(name, figure):
    return Quantity(
        figure=figure,
        group="g",
        unit=f"unit of {name}",
        diverging=name == "first",
        scale=("low", "mid", "high"),
        texts=("a", "b"),
        ends=("", ""),
        cells=("c0", "c1"),
        shades="01",
        marks="  ",
        ranks=("", ""),
        layers=("",),
    )


def of_run(**more):
    one, two = a_figure("one", "all", "content"), a_figure("two")
    first, second = a_figure("first"), a_figure("second")
    heads = HeadMap(
        (Panel("p", (4,), (0, 1)),),
        (quantity("first", first), quantity("second", second)),
        ("", ""),
        ("",),
    )
    sections = [
        SimpleNamespace(
            slug="slug-1",
            title="Section 1",
            lead="lead 1",
            head_map=None,
            drawn=[one],
            table=TABLE,
        ),
        SimpleNamespace(
            slug="slug-2",
            title="Section 2",
            lead="lead 2",
            head_map=heads,
            drawn=[two],
            table=None,
        ),
    ]
    return COMMON | {
        "corpus": "a corpus",
        "facts": [("tokens", "5"), ("units", "7")],
        "tiles": [("label", "value", "note")],
        "notices": ["careful"],
        "sections": sections,
        "numbers": {"one": 1, "heads": 2, "two": 3},
        "drawn": drawings(one, two),
        "provenance": [("key", "entry")],
        "about": "manifest.json",
        "sample": True,
        "command": "anisoscope x",
        "script": Markup("go()"),
        "shades": Markup(".s0{}"),
        **more,
    }


def test_everything_of_a_run_is_under_its_own_name(tmp_path):
    text, plain = render("report.html.j2", tmp_path, **of_run())
    assert "<title>a model · Anisoscope</title>" in text
    assert in_order(
        plain,
        "Section 1 Section 2 Definitions Provenance",
        "Geometry of a corpus in a model One. Two.",
        "tokens 5 units 7",
        "anisoscope x Warnings careful label value note",
        "Section 1 lead 1",
        "tokens all content",
        "wide one narrow one wide one-content narrow one-content",
        "Figure 1. title one. caption one basis one · all SVG · PDF · content SVG · PDF",
        "the table place A B layer 1 1 [0, 2] 3 last – 5",
        "Section 2 lead 2",
        "unit of first low mid high layer head 0 1 4 c0 c1",
        "Figure 2. title first . caption first basis first · SVG · PDF",
        "Other quantities: title second SVG · PDF .",
        "Figure 3. title two. caption two basis two · SVG · PDF",
        "Settings and versions: manifest.json .",
        "All settings and versions key entry",
    )
    assert in_order(
        text, 'aria-label="alt one Tokens: all."', "alt one Tokens: content."
    )
    assert in_order(
        text,
        '<div class="wide"><i>wide one</i></div>',
        '<div class="narrow"><i>narrow one</i></div>',
        'href="figures/one.svg"',
        'href="figures/one.pdf"',
        'href="figures/one-content.svg"',
        'class="scale scale-d"',
        'aria-label="alt first"',
        'href="figures/first.svg"',
        'href="figures/second.svg"',
        'href="figures/two.pdf"',
        'href="reservoir.safetensors"',
        "<script>go()</script>",
    )
    assert 'href="#slug-1"' in text and '<section id="slug-1">' in text
    assert '<a href="manifest.json">' in text and "<small>[0, 2]</small>" in text


def test_what_a_run_lacks_has_no_place_on_its_page(tmp_path):
    lacking = {
        "facts": [],
        "tiles": [],
        "notices": [],
        "command": "",
        "script": "",
        "shades": "",
        "sample": False,
        "sections": [],
        "headline": [f"{n}." for n in range(5)],
    }
    text, plain = render("report.html.j2", tmp_path, **of_run(**lacking))
    for absent in (
        "Warnings",
        "reservoir",
        "<script",
        'class="facts"',
        'class="tiles"',
    ):
        assert absent not in text, absent
    assert 'class="command"' not in text and "Section" not in plain
    # five sentences are a list, four are a paragraph
    assert text.count("<li>0.</li>") == 1
    four = of_run(headline=["0.", "1.", "2.", "3."])
    assert "<li>0.</li>" not in render("report.html.j2", tmp_path, **four)[0]


@pytest.mark.parametrize("template", ["atlas.html.j2", "comparison.html.j2"])
def test_pages_of_many_runs_have_figures_a_table_and_what_they_are_of(
    template, tmp_path
):
    figures = [a_figure("one"), a_figure("two", basis="")]
    content = COMMON | {"figures": figures, "drawn": drawings(*figures)}
    content |= {"table": TABLE}
    own = {
        "atlas.html.j2": {
            "left_out": {"gone": "the reason"},
            "links": {"a": "runs/a", "b": "../b"},
        },
        "comparison.html.j2": {
            "metric": "drift",
            "facts": [("ours", "model 1"), ("theirs", "model 2")],
            "notes": ["a note"],
        },
    }
    text, plain = render(template, tmp_path, **content, **own[template])
    assert in_order(
        plain,
        "title one title two Every",
        "a model One. Two.",
        "wide one narrow one Figure 1. title one. caption one basis one · SVG · PDF",
        "wide two narrow two Figure 2. title two. caption two",
        "the table place A B layer 1 1 [0, 2] 3 last – 5",
    )
    assert in_order(
        text,
        'href="#figure-one"',
        'id="figure-one"',
        'aria-label="alt one"',
        'href="figures/one.svg"',
        'id="figure-two"',
        'href="figures/two.pdf"',
    )
    if template == "atlas.html.j2":
        assert "Left out gone: the reason" in plain
        assert "a ( runs/a ), b ( ../b )" in plain and 'href="atlas.csv"' in text
    else:
        assert "Comparison of drift in a model" in plain
        assert "ours model 1 theirs model 2" in plain
        assert "How they were compared a note" in plain
