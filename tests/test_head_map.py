"""The map of heads of a page: every number is its record, undefined or shared; and the one script responds."""

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from browser import Browser, find_chromium
from test_contrast import LEAST, contrast, luminance, to_linear
from test_report import (
    HOSTILE,
    Page,
    figure_of,
    synthetic_manifest,
    synthetic_records,
    write_run,
)

from anisoscope.charts import style
from anisoscope.report import build_page, head_map, page as pages
from anisoscope.report.results import Results
from anisoscope.report.sections import build_sections
from anisoscope.store import as_records, select
from anisoscope.wording import format_number

Row = dict[str, Any]
needs_browser = pytest.mark.skipif(
    find_chromium() is None, reason="no Chromium on this machine"
)
PLAIN = (
    "attention.entropy_normalised",
    "attention.first_mass",
    "query_key.cosine",
    "logits.largest",
)


@pytest.fixture(autouse=True)
def no_drawings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The map is not drawn by the chart library; files beside the page are."""
    monkeypatch.setattr(
        pages, "to_svgs", lambda charts: dict.fromkeys(charts, "<svg></svg>")
    )


def read(html: str) -> dict[str, Any]:
    """The data of the map, with lists taken apart as the script does it."""
    found = re.search(
        r'<script type="application/json">(.*?)</script>', html, flags=re.S
    )
    assert found
    data: dict[str, Any] = json.loads(found[1])
    count = sum(len(panel["layers"]) * len(panel["heads"]) for panel in data["panels"])
    data["places"] = [
        (panel["name"], layer, head)
        for panel in data["panels"]
        for layer in panel["layers"]
        for head in panel["heads"]
    ]
    data["by name"] = {}
    for quantity in data["quantities"]:
        data["by name"][quantity["name"]] = quantity
        for name in ("texts", "ends", "cells", "ranks"):
            quantity[name] = (
                quantity[name].split(";") if quantity[name] else [""] * count
            )
            assert len(quantity[name]) == count, name
        assert len(quantity["shades"]) == count
        quantity["marks"] = quantity["marks"] or head_map.PLAIN * count
    return data


def map_of(folder: Path, records: pd.DataFrame) -> dict[str, Any]:
    """The data of the map of a page."""
    return read(
        build_page(write_run(folder, records, synthetic_manifest())).read_text()
    )


def of_head(metric: str, layer: int, head: int, value: float, **keys: Any) -> Row:
    place = {
        "stack": "decoder",
        "kind": "self",
        "layer": layer,
        "head": head,
        "site": "attention",
    }
    ends = {"low": value - 0.01, "high": value + 0.01}
    return (
        place
        | {"metric": metric, "value": value, "n_vectors": 9, "n_units": 3}
        | ends
        | keys
    )


def shares_of(quantity: dict[str, Any]) -> list[int | None]:
    return [
        head_map.DIGITS.index(shade) if shade in head_map.DIGITS else None
        for shade in quantity["shades"]
    ]


def test_every_number_of_the_map_is_its_record(tmp_path: Path) -> None:
    records = synthetic_records(
        layers=3, heads=4, stacks=("encoder", "decoder"), extremes=True
    )
    data = map_of(tmp_path, records)
    assert [panel["name"] for panel in data["panels"]] == [
        "encoder",
        "decoder",
        "decoder, cross-attention",
    ]
    measured = (
        ("attention-entropy", PLAIN[0], None),
        ("query-key-cosine", PLAIN[2], None),
    )
    for name, metric, component in (
        *measured,
        ("sink-rate", "sinks.rate", ".3"),
        ("largest-logit", PLAIN[3], None),
    ):
        rows = select(records, metric=metric, component=component)
        expected = {}
        for row in rows.itertuples():
            panel = f"{row.stack}{', cross-attention' if row.kind == 'cross' else ''}"
            ends = (
                ""
                if np.isnan(row.low)
                else f"[{format_number(row.low)}, {format_number(row.high)}]"
            )
            expected[panel, row.layer, row.head] = format_number(row.value), ends
        quantity = data["by name"][name]
        shown = dict(
            zip(
                data["places"],
                zip(quantity["texts"], quantity["ends"], strict=True),
                strict=True,
            )
        )
        measured_there = {
            place: value for place, value in shown.items() if value != ("–", "")
        }
        assert measured_there == expected and len(expected) >= 24


def test_shades_ranks_and_ranges_follow_the_values(tmp_path: Path) -> None:
    values = [0.2, 0.5, 0.9, 0.4]
    rows = [
        of_head("attention.first_mass", 1 + i // 2, i % 2, value)
        for i, value in enumerate(values)
    ]
    data = map_of(tmp_path, as_records(pd.DataFrame(rows)))
    (quantity,) = data["quantities"]
    last = len(head_map.DIGITS) - 1
    assert shares_of(quantity) == [
        round((value - 0.2) / 0.7 * last) for value in values
    ]
    assert quantity["ranks"] == ["4 of 4", "2 of 4", "1 of 4", "3 of 4"]
    assert quantity["layers"] == ".200 to .500;.400 to .900"
    assert quantity["scale"] == [".200", ".550", ".900"] and quantity["cells"] == [
        ".20",
        ".50",
        ".90",
        ".40",
    ]


def test_equal_values_have_one_rank_and_one_number_on_the_scale(tmp_path: Path) -> None:
    rows = [of_head("attention.first_mass", 1, head, 0.25) for head in range(3)]
    (quantity,) = map_of(tmp_path, as_records(pd.DataFrame(rows)))["quantities"]
    assert (
        quantity["scale"] == [".250"]
        and quantity["ranks"] == ["1 of 3"] * 3
        and quantity["layers"] == ".250"
    )


def test_sign_and_doubt_are_told_without_colours(tmp_path: Path) -> None:
    rows = [
        of_head("query_key.cosine", 1, 0, -0.93, site="query.raw", token_policy="all")
    ]
    rows.append(
        of_head("query_key.cosine", 1, 1, -0.005, site="query.raw", token_policy="all")
    )
    rows.append(
        of_head("query_key.cosine", 1, 2, 0.4, site="query.raw", token_policy="all")
    )
    data = map_of(tmp_path, as_records(pd.DataFrame(rows)))
    (quantity,) = data["quantities"]
    assert quantity["diverging"] and quantity["marks"] == "−· "
    assert quantity["cells"] == ["−.93", "(−.01)", ".40"] and quantity["scale"] == [
        "−.930",
        ".000",
        ".930",
    ]
    middle = len(head_map.DIGITS) // 2
    assert (
        shares_of(quantity)[0] == 0 and abs((shares_of(quantity)[1] or 0) - middle) <= 1
    )
    assert data["kinds"] == ["opposite", "", ""]
    assert data["layers"] == ["Layer 1 has 3 heads, among them 1 opposite."]


def test_a_head_without_a_value_and_a_layer_without_a_head_are_told_apart(
    tmp_path: Path,
) -> None:
    rows = [
        of_head("attention.first_mass", layer, head, 0.1 * head + 0.1)
        for layer in (1, 3)
        for head in range(3)
    ]
    nothing = {"value": np.nan, "low": np.nan, "high": np.nan}
    rows[1] |= nothing
    rows.pop()  # layer 3 has two heads
    data = map_of(tmp_path, as_records(pd.DataFrame(rows)))
    (quantity,) = data["quantities"]
    assert data["panels"] == [{"name": "", "layers": [1, 3], "heads": [0, 1, 2]}]
    assert [shade for shade in quantity["shades"] if shade in "- "] == ["-", " "]
    assert quantity["texts"] == [".100", "–", ".300", ".100", ".200", ""]
    assert quantity["ranks"] == ["3 of 4", "", "1 of 4", "3 of 4", "2 of 4", ""]
    assert quantity["cells"] == [".10", "–", ".30", ".10", ".20", ""]


def test_a_head_that_no_quantity_is_defined_for_is_still_a_cell(tmp_path: Path) -> None:
    rows = [
        of_head("attention.first_mass", 1, head, [0.1, np.nan, 0.3][head])
        for head in range(3)
    ]
    rows += [
        of_head("attention.row_max", 1, head, [0.1, np.nan, 0.3][head])
        for head in range(3)
    ]
    data = map_of(tmp_path, as_records(pd.DataFrame(rows)))
    assert data["panels"][0]["heads"] == [0, 1, 2]
    assert all(quantity["texts"][1] == "–" for quantity in data["quantities"])


@pytest.mark.parametrize("keys", [1, 2, 8])
def test_heads_that_share_keys_show_the_same_number(tmp_path: Path, keys: int) -> None:
    rows = [of_head("attention.first_mass", 1, head, 0.1) for head in range(8)]
    rows += [
        of_head("mean_cosine", 1, head, 0.1 * head, site="key.raw", token_policy="all")
        for head in range(keys)
    ]
    data = map_of(tmp_path, as_records(pd.DataFrame(rows)))
    shared = data["by name"]["keys-alike"]
    assert shared["texts"] == [
        format_number(0.1 * (head // (8 // keys))) for head in range(8)
    ]


def test_keys_that_no_whole_number_of_heads_shares_stay_as_recorded(
    tmp_path: Path,
) -> None:
    rows = [of_head("attention.first_mass", 1, head, 0.1) for head in range(4)]
    rows += [
        of_head("mean_cosine", 1, head, 0.1 * head, site="key.raw", token_policy="all")
        for head in range(3)
    ]
    data = map_of(tmp_path, as_records(pd.DataFrame(rows)))
    assert data["by name"]["keys-alike"]["texts"] == [".000", ".100", ".200", "–"]


def test_a_layer_is_told_with_its_kinds_and_the_anisotropy_of_its_output(
    tmp_path: Path,
) -> None:
    rows = [
        of_head("attention.first_mass", 1, head, value)
        for head, value in enumerate((0.9, 0.8, 0.1))
    ]
    place = {
        "stack": "decoder",
        "kind": "self",
        "layer": 1,
        "site": "hidden",
        "token_policy": "all",
    }
    rows.append(
        place
        | {
            "metric": "mean_cosine",
            "value": 0.3,
            "low": 0.2,
            "high": 0.4,
            "n_units": 3,
            "n_vectors": 9,
        }
    )
    rows.append(
        rows[-1] | {"site": "final", "value": 0.7, "low": 0.6, "high": 0.8}
    )  # not what the layer puts out
    data = map_of(tmp_path, as_records(pd.DataFrame(rows)))
    assert data["kinds"] == ["sink", "sink", ""]
    assert data["layers"] == [
        "Layer 1 has 3 heads, among them 2 sink. A of its output: .300 [.200, .400]."
    ]


def test_without_the_script_the_first_quantity_is_a_table(tmp_path: Path) -> None:
    records = synthetic_records(layers=2, heads=3, stacks=("encoder", "decoder"))
    html = build_page(write_run(tmp_path, records, synthetic_manifest())).read_text()
    data, figure = read(html), figure_of(html, "heads")
    first = data["quantities"][0]
    cells = re.findall(r'<td class="([^"]*)">([^<]*)</td>', figure)
    assert [text for _, text in cells] == first["cells"] and len(cells) == 18
    assert [look for look, _ in cells] == [f"s{share}" for share in shares_of(first)]
    assert (
        re.search(r'<div class="controls" hidden>', figure)
        and '<div class="detail" hidden>' in figure
    )
    without = re.search(r"<noscript>(.*?)</noscript>", figure, flags=re.S)
    assert without
    others = [f"figures/{quantity['name']}.svg" for quantity in data["quantities"][1:]]
    assert Page(without[1]).attributes("a", "href") == others and len(others) > 3


def test_numbers_stand_in_cells_where_they_fit(tmp_path: Path) -> None:
    for heads, look in ((8, "roomy"), (9, ""), (20, ""), (21, "dense")):
        rows = [
            of_head("attention.first_mass", 1, head, 0.1 + head / 100)
            for head in range(heads)
        ]
        html = build_page(
            write_run(
                tmp_path / str(heads), as_records(pd.DataFrame(rows)), {"model": "m"}
            )
        ).read_text()
        assert Page(figure_of(html, "heads")).attributes("table", "class")[0] == look
        assert bool(read(html)["quantities"][0]["cells"][0]) is (look != "dense")


def test_headings_of_columns_are_never_empty(tmp_path: Path) -> None:
    for heads, spans in ((20, [1] * 20), (21, [8, 8, 5]), (64, [8] * 8)):
        rows = [
            of_head("attention.first_mass", 1, head, 0.1 + head / 100)
            for head in range(heads)
        ]
        html = build_page(
            write_run(
                tmp_path / str(heads), as_records(pd.DataFrame(rows)), {"model": "m"}
            )
        ).read_text()
        (line,) = re.findall(
            r"<tr>(<th scope=.*</th>)</tr>\s*</thead>\s*<tbody>\s*<tr><th scope=.row.>1</th><td",
            html,
        )[:1]
        found = re.findall(r"<th ([^>]*)>(\d+)</th>", line)
        widths = [
            int((re.findall(r'colspan="(\d+)"', given) or [1])[0]) for given, _ in found
        ]
        assert widths == spans and line.count("<th") == len(spans)
        assert [int(label) for _, label in found] == [
            sum(spans[:i]) for i in range(len(spans))
        ]


def test_ink_can_be_read_on_every_shade() -> None:
    rules = re.findall(
        r"\.([sd]\d+)\{background:(#\w{6});color:(#\w{3})\}", head_map.write_shades()
    )
    assert len({name for name, _, _ in rules}) == len(rules) == 2 * len(head_map.DIGITS)
    for name, ground, ink in rules:
        found = contrast(luminance(to_linear(ground)), {"#fff": 1.0, "#000": 0.0}[ink])
        assert found >= LEAST, f"{name}: {found:.2f}"


def test_shades_begin_and_end_with_the_colours_of_the_scale() -> None:
    for colours in (style.SEQUENTIAL, style.DIVERGING):
        shades = style.mix_evenly(colours, len(head_map.DIGITS))
        assert (
            shades[0] == colours[0]
            and shades[-1] == colours[-1]
            and shades[len(shades) // 2] == colours[2]
        )


ENDINGS = (
    "</script>",
    "<!--<script>",
    "\u2028\u2029",
    "\x00",
    "\ud800",
    '"];alert(1)//',
    "&lt;",
)


def test_no_name_ends_the_data_of_the_map() -> None:
    """In a script's text `</script>` ends it and `<!--<script>` hides what follows; line separators end a line."""
    ending = " ".join(ENDINGS)
    name = f"a{ending}b".replace(
        "\ud800", ""
    )  # no column of text can hold half a character
    records = synthetic_records(layers=1, heads=2, stacks=(name, "decoder"))
    manifest = synthetic_manifest()
    manifest["corpus"] |= {
        "words": {"position": f"patch{ending}", "unit": f"image{ending}"}
    }
    sections = build_sections(Results(records, manifest))
    (found,) = [section.head_map for section in sections if section.head_map]
    written = str(found.payload)
    ends = re.findall("[<>&'\u2028\u2029\x00-\x1f\ud800-\udfff]", written)
    assert not ends
    data = json.loads(written)
    assert data["panels"][0]["name"] == style.escape_control(name)
    assert any(
        style.escape_control(f"image{ending}") in quantity["basis"]
        for quantity in data["quantities"]
    )


def test_the_page_allows_its_own_script_alone_and_no_network(tmp_path: Path) -> None:
    records = synthetic_records(layers=1, heads=2)
    html = build_page(
        write_run(tmp_path / "heads", records, synthetic_manifest())
    ).read_text()
    (policy,) = re.findall(
        r'http-equiv="Content-Security-Policy" content="([^"]*)"', html
    )
    running = re.findall(r"<script>(.*?)</script>", html, flags=re.S)
    digest = base64.b64encode(hashlib.sha256(running[0].encode()).digest()).decode()
    assert len(running) == 1 and f"script-src &#39;sha256-{digest}&#39;;" in policy
    assert policy.startswith("default-src &#39;none&#39;; ")
    without = records[records["head"].isna()]
    html = build_page(
        write_run(tmp_path / "none", without, synthetic_manifest())
    ).read_text()
    assert "<script" not in html and "script-src &#39;none&#39;" in html


def test_the_map_of_a_large_model_is_small(tmp_path: Path) -> None:
    """Nine maps of 48 layers of 64 heads, each with its own drawings and tooltips, had 3 MB."""
    records = synthetic_records(layers=48, heads=64, extremes=True)
    page = build_page(
        write_run(tmp_path, records[records["head"].notna()], synthetic_manifest())
    )
    data = read(page.read_text())
    assert len(data["places"]) == 48 * 64 and len(data["quantities"]) == 14
    assert page.stat().st_size < 1_600_000


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of two stacks with hostile names, a head without a value, and a layer with fewer heads."""
    records = synthetic_records(
        layers=3, heads=4, stacks=(HOSTILE, "decoder"), extremes=True
    )
    here = records["stack"].eq(HOSTILE) & records["layer"].eq(1) & records["head"].eq(1)
    records.loc[here, ["value", "low", "high"]] = np.nan
    records = records[~(records["layer"].eq(2) & records["head"].eq(3))]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            pages, "to_svgs", lambda charts: dict.fromkeys(charts, "<svg></svg>")
        )
        return build_page(
            write_run(
                tmp_path_factory.mktemp("shown"), records, synthetic_manifest(HOSTILE)
            )
        )


@pytest.fixture
def browser(shown: Path) -> Iterator[Browser]:
    with Browser() as opened:
        opened.open(shown)
        yield opened


CELL = "document.querySelectorAll('.map td')[{}]"


def center(browser: Browser, cell: int) -> tuple[float, float]:
    """The middle of a cell, scrolled into sight; parts that come into sight are laid out in the frames after it."""
    place: tuple[float, float] = browser.evaluate(
        f"(async cell => {{ for (let i = 0; i < 5; i++) {{"
        " cell.scrollIntoView({block: 'center', behavior: 'instant'}); await new Promise(requestAnimationFrame) }"
        " const box = cell.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2] })"
        f"({CELL.format(cell)})"
    )
    return place


def choose(browser: Browser, name: str, value: str) -> None:
    change = f"s => {{ s.value = '{value}'; s.dispatchEvent(new Event('change')) }}"
    browser.evaluate(f"({change})(document.querySelector('[name={name}]'))")


@needs_browser
def test_a_quantity_recolours_every_cell_by_the_same_rule(
    browser: Browser, shown: Path
) -> None:
    data = read(shown.read_text())
    for number, quantity in enumerate(data["quantities"]):
        choose(browser, "quantity", str(number))
        looks = browser.evaluate(
            "[...document.querySelectorAll('.map td')].map(cell => cell.className)"
        )
        shades = zip(quantity["shades"], quantity["marks"], strict=True)
        assert looks == [
            head_map.name_shade(shade, mark, quantity["diverging"])
            for shade, mark in shades
        ]
        texts = browser.evaluate(
            "[...document.querySelectorAll('.map td')].map(cell => cell.textContent)"
        )
        assert texts == quantity["cells"]
        caption = browser.evaluate(
            "document.querySelector('.heads figcaption').textContent"
        )
        assert quantity["title"] in caption and quantity["basis"] in caption
        link = browser.evaluate(
            "document.querySelector('.heads a[data-format]').getAttribute('href')"
        )
        assert link == f"figures/{quantity['name']}.svg"
    assert not browser.errors and len(browser.requests) == 1


@needs_browser
def test_a_head_that_is_pointed_at_says_its_value(
    browser: Browser, shown: Path
) -> None:
    first = read(shown.read_text())["quantities"][0]
    browser.point(*center(browser, 2))
    told = browser.evaluate("document.querySelector('.readout').textContent")
    assert told == f"{HOSTILE}, layer 1, head 2: {first['texts'][2]} {first['ends'][2]}"
    browser.point(*center(browser, 1))
    told = browser.evaluate("document.querySelector('.readout').textContent")
    assert told == f"{HOSTILE}, layer 1, head 1: not defined, or not measured"


@needs_browser
def test_a_click_lists_every_quantity_of_the_head(
    browser: Browser, shown: Path
) -> None:
    data = read(shown.read_text())
    assert browser.evaluate("document.querySelector('.detail').hidden")
    browser.click(*center(browser, 6))
    rows = browser.evaluate(
        "[...document.querySelectorAll('.detail tbody tr')].map(row => [...row.cells].map(cell => cell.textContent))"
    )
    line = (
        data["places"][:6].count(data["places"][6]) + 1
    )  # the second row of the first panel
    assert data["places"][6] == (HOSTILE, 2, 2)
    for (title, value, rank, layer), quantity in zip(
        rows, data["quantities"], strict=True
    ):
        assert (
            title == quantity["title"]
            and value == quantity["texts"][6] + quantity["ends"][6]
        )
        assert (
            rank == quantity["ranks"][6]
            and layer == quantity["layers"].split(";")[line]
        )
    heading = browser.evaluate("document.querySelector('.detail h3').textContent")
    assert heading.casefold().startswith(f"{HOSTILE}, layer 2, head 2".casefold())
    assert (
        browser.evaluate("document.querySelector('.detail p').textContent")
        == data["layers"][1]
    )
    assert (
        browser.evaluate("[...document.querySelectorAll('[aria-selected]')].length")
        == 1
    )


@needs_browser
def test_arrows_move_over_gaps_and_enter_chooses(browser: Browser) -> None:
    label = "document.activeElement.getAttribute('aria-label')"
    browser.evaluate(f"{CELL.format(3)}.focus()")
    for key, place in (
        ("ArrowDown", "layer 3, head 3"),  # layer 2 has no head 3
        ("ArrowLeft", "layer 3, head 2"),
        ("ArrowUp", "layer 2, head 2"),
        ("ArrowRight", "layer 2, head 2"),
        ("Home", "layer 2, head 0"),
        ("End", "layer 2, head 2"),
        ("ArrowUp", "layer 1, head 2"),
        ("ArrowUp", "layer 1, head 2"),
    ):
        browser.press(key, 0)
        assert browser.evaluate(label).startswith(f"{HOSTILE}, {place}: "), key
    browser.press("Enter", 13)
    heading = browser.evaluate("document.querySelector('.detail h3').textContent")
    assert heading.casefold().startswith(f"{HOSTILE}, layer 1, head 2".casefold())
    assert (
        browser.evaluate(
            "[...document.querySelectorAll('.map td')].filter(c => c.tabIndex === 0).length"
        )
        == 1
    )


@needs_browser
def test_menus_choose_a_head_where_cells_are_too_small_for_a_finger(
    browser: Browser,
) -> None:
    menus = (
        "['layer', 'head'].map(name => document.querySelector(`[name=${name}]`).value)"
    )
    assert browser.evaluate(menus) == ["", ""], (
        "the first head is chosen by a change, too"
    )
    choose(browser, "layer", "4")  # the second layer of the second panel
    choose(
        browser,
        "head",
        browser.evaluate("document.querySelector('[name=head]').options[2].value"),
    )
    assert browser.evaluate(
        "document.querySelector('.detail h3').textContent"
    ).startswith("Decoder, layer 2, head 2")


@needs_browser
def test_nothing_that_stands_on_the_page_runs_and_nothing_is_fetched(
    browser: Browser,
) -> None:
    browser.evaluate(
        "(() => { const made = document.createElement('script'); made.textContent = 'window.ran = 1';"
        "document.body.append(made); const image = new Image(); image.src = 'https://example.invalid/x.png' })()"
    )
    assert browser.evaluate("window.ran") is None
    browser.evaluate("new Promise(done => setTimeout(done, 100))")
    assert any("Content Security Policy" in error for error in browser.errors)
    assert (
        browser.blocked == ["https://example.invalid/x.png"]
        and len(browser.requests) == 1
    )


@needs_browser
def test_without_scripts_the_page_shows_its_table(shown: Path) -> None:
    with Browser() as opened:
        opened.send("Emulation.setScriptExecutionDisabled", value=True)
        opened.open(shown)
        opened.send("Emulation.setScriptExecutionDisabled", value=False)
        assert opened.evaluate("document.querySelector('.controls').hidden")
        assert (
            opened.evaluate(
                "document.querySelector('.map td').getBoundingClientRect().width"
            )
            > 20
        )
        ground = opened.evaluate(
            "getComputedStyle(document.querySelector('.map td')).backgroundColor"
        )
        assert ground.startswith("rgb(") and not opened.errors


@needs_browser
@pytest.mark.parametrize("width", [1400, 400])
def test_nothing_reaches_beyond_the_page(shown: Path, width: int) -> None:
    with Browser(width) as opened:
        opened.open(shown)
        opened.evaluate("document.querySelectorAll('.map td')[0].click()")
        assert opened.evaluate("document.documentElement.scrollWidth") == width
