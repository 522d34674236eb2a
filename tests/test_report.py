"""The report page: complete, self-contained, safe with hostile names, and the same bytes on every rebuild."""

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from anisoscope import Run
from anisoscope.axes import POLICIES
from anisoscope.charts import builders as charts, export, style
from anisoscope.charts.style import format_compact
from anisoscope.errors import OutputError, UsageError
from anisoscope.report import build_page, figures, head_map, page as pages, sections
from anisoscope.report.page import list_notices
from anisoscope.report.results import PANEL, Results
from anisoscope.report.sections import build_sections
from anisoscope.store import as_records, select
from anisoscope.wording import format_duration, format_number, format_signed_interval

DIM, UNITS, VECTORS = 24, 60, 238_412
EPSILONS, PARTS = (
    (".2", ".3", ".4", ".5"),
    ("first", "last", "special", "punctuation", "other"),
)
SUBSETS = {
    "kind": ["special", "first", "content"],
    "frequency": [f"frequency {i}" for i in range(1, 6)],
    "position": [
        "position 0",
        "position 1–7",
        "position 8–31",
        "position 32–127",
        "position 128+",
    ],
}

Row = dict[str, Any]


def _row(metric: str, value: float, spread: float = 0.01, **keys: Any) -> Row:
    low, high = (value - spread, value + spread) if spread else (np.nan, np.nan)
    return {
        "metric": metric,
        "value": value,
        "low": low,
        "high": high,
        "n_vectors": VECTORS,
        "n_units": UNITS,
        **keys,
    }


def _hidden_rows(rng: np.random.Generator, place: Row, depth: float) -> Iterator[Row]:
    a = 0.04 + 0.5 * depth**1.5 + 0.02 * rng.uniform()
    for shift, policy in enumerate(("all", "content", "no-first")):
        here = {**place, "token_policy": policy}
        top = a * np.sort(rng.dirichlet(np.full(DIM, 0.12)))[::-1]
        shares = [top[:k].sum() / a for k in (1, 3, 10)]
        yield _row("mean_cosine", a - 0.03 * shift, **here)
        yield _row("mean_cosine.between", a - 0.04 - 0.03 * shift, **here)
        yield _row("mean_cosine.isotropic_q95", 0.084, 0, **here)
        yield _row("intra_sequence", a + 0.08, **here)
        yield _row("drift", 4 + 10 * depth, 0.2, **here)
        yield _row("drift.share", a**0.5, **here)
        yield _row("norms.mean", 12 + 9 * depth, 0.1, **here)
        yield _row("norms.variation", 0.1 + 0.2 * depth, **here)
        yield from (
            _row("mean_cosine.contribution", top[j], 0.003, component=str(j), **here)
            for j in range(DIM)
        )
        yield from (
            _row("mean_cosine.top_share", v, component=k, **here)
            for k, v in zip(("1", "3", "10"), shares, strict=True)
        )
    yield _row("calibrated.centred", 0.004, 0.001, **place)
    for name, v in {
        "effective_rank": 18 - 9 * depth,
        "participation_ratio": 11 - 6 * depth,
        "isoscore": 0.3,
    }.items():
        yield _row(f"spectrum.{name}", v, 0, token_policy="all", **place)
    yield _row("spectrum.cosine_square", 2 + 9 * depth, 0, token_policy="all", **place)
    for k in (1, 2, 3, 5, 10):
        yield _row(
            "spectrum.explained",
            1 - 0.9 * np.exp(-0.2 * k * (1 + depth)),
            0,
            component=str(k),
            **place,
        )
    for family in SUBSETS.values():
        for i, first in enumerate(family):
            for second in family[i:]:
                yield _row(
                    "group_cosine",
                    rng.uniform(-0.1, 0.8),
                    component=f"{first} × {second}",
                    **place,
                )


def _head_rows(rng: np.random.Generator, place: Row) -> Iterator[Row]:
    attention = {**place, "site": "attention"}
    yield _row("attention.entropy_normalised", rng.beta(6, 2), **attention)
    yield _row("attention.first_mass", rng.beta(1, 6), **attention)
    yield _row("attention.row_similarity", rng.beta(5, 3), **attention)
    policy = {"token_policy": "all"}
    cosine = float(np.tanh(rng.normal()))
    yield _row("query_key.cosine", cosine, 0.1, **place, site="query.raw", **policy)
    yield _row("query_key.dot", cosine * 40, 5, **place, site="query.raw", **policy)
    for site in ("query.raw", "key.raw", "value"):
        yield _row(
            "intra_sequence", rng.uniform(0.2, 0.9), **place, site=site, **policy
        )
        yield _row("mean_cosine", rng.uniform(0.1, 0.8), **place, site=site, **policy)


def _extreme_rows_of_head(rng: np.random.Generator, place: Row) -> Iterator[Row]:
    here = {**place, "site": "extremes"}
    rates = np.sort(rng.beta(0.4, 0.6, size=4))[::-1]
    for name, share in (("rate", 1.0), ("first_rate", 0.8)):
        yield from (
            _row(f"sinks.{name}", share * v, 0.03, component=c, **here)
            for c, v in zip(EPSILONS, rates, strict=True)
        )
    for name, spread in (("mass", 0.01), ("at", 0.02)):
        shares = rng.dirichlet(np.ones(len(PARTS)))
        yield from (
            _row(f"sinks.{name}", v, spread, component=c, **here)
            for c, v in zip(PARTS, shares, strict=True)
        )
    yield _row("sinks.strongest", rates[0], **here)
    yield _row("sinks.value_norm", rng.uniform(0.02, 1.5), **here)
    yield _row("sinks.query_norm", rng.uniform(5, 90), 0, **here)
    yield _row("sinks.key_norm", rng.uniform(5, 90), 0, **here)
    logits = {**place, "site": "attention"}
    yield _row("logits.largest", rng.gamma(3, 8), 0, **logits)
    yield _row("logits.smallest", -rng.gamma(3, 8), 0, **logits)
    yield _row("logits.typical", rng.gamma(3, 4), 0.4, **logits)


def synthetic_extremes(layers: int, heads: int, stack: str = "encoder") -> list[Row]:
    """Rows of the panel `extremes` of a plausible run."""
    rng = np.random.default_rng(1)
    rows: list[Row] = []
    for layer in range(layers + 1):
        place = {"stack": stack, "kind": "self", "layer": layer}
        hidden = {**place, "site": "hidden"}
        largest = {
            "": 40 + 30 * layer,
            "_dimension": 138,
            "_position": 0,
            "_token": 101,
        }
        rows += [
            _row(f"massive.largest{name}", v, 0, component="1", **hidden)
            for name, v in largest.items()
        ]
        rows += [
            _row("massive.over_median", 90 + 50 * layer, 4, **hidden),
            _row("massive.rate", 0.4, **hidden),
        ]
        rows += [
            _row("kurtosis.largest", 80 + layer, 5, **hidden),
            _row("kurtosis.dimension", 138, 0, **hidden),
        ]
        for head in range(heads if layer else 0):
            rows += _extreme_rows_of_head(rng, {**place, "head": head})
    return rows


def synthetic_records(
    layers: int = 6,
    heads: int = 12,
    stacks: tuple[str, ...] = ("encoder",),
    model: str = "builtin:minilm",
    extremes: bool = False,
) -> pd.DataFrame:
    """Records of a plausible run: every metric of the report, for encoder and decoder stacks of any size; those of
    `extremes` on request.
    """
    rng = np.random.default_rng(0)
    rows: list[Row] = []
    for stack in stacks:
        for layer in range(layers + 1):
            place = {"stack": stack, "kind": "self", "layer": layer}
            rows += _hidden_rows(
                rng, {**place, "site": "hidden"}, layer / max(layers, 1)
            )
            for head in range(heads if layer else 0):
                rows += _head_rows(rng, {**place, "head": head})
                if stack == "decoder":
                    rows += _head_rows(rng, {**place, "kind": "cross", "head": head})
        rows += _hidden_rows(
            rng, {"stack": stack, "kind": "self", "layer": layers, "site": "final"}, 0.5
        )
        rows += synthetic_extremes(layers, heads, stack) if extremes else []
    for site in ("embedding.input", "embedding.output"):
        rows.append(_row("partition", 0.71, 0, stack=stacks[0], kind="self", site=site))
    constant = {
        "run": "r1",
        "model": model,
        "revision": "main",
        "step": None,
        "seed": 0,
        "corpus": "python-docs",
    }
    return as_records(pd.DataFrame(rows), **constant)


def synthetic_manifest(model: str = "builtin:minilm") -> dict[str, Any]:
    return {
        "command": f"anisoscope measure --model {model} --corpus builtin:python-docs",
        "model": model,
        "revision": "main",
        "weights_sha256": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        "corpus": {
            "name": "builtin:python-docs",
            "fingerprint": "9f2c",
            "n_units": UNITS,
            "n_tokens": VECTORS,
        },
        "settings": {
            "max_length": 256,
            "batch_tokens": 16384,
            "groups": 32,
            "panel": "all",
        },
        "versions": {"torch": "2.13.0", "transformers": "5.23.0", "python": "3.12.1"},
        "device": "cpu",
        "dtype": "float32",
        "backend": "sdpa",
        "started": "2026-01-01T12:00:00Z",
        "seconds": 312.4,
        "warnings": ["27 documents are shorter than one window"],
        "excluded": {"encoder.3.hidden": {"zero": 2, "nonfinite": 0}},
    }


def write_run(folder: Path, records: pd.DataFrame, manifest: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    records.to_parquet(folder / "records.parquet")
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


class Page(HTMLParser):
    """Attributes of every element, and the words inside headings, captions and the body."""

    VOID = frozenset({"meta", "br", "mspace", "input"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, list[str]] = {}
        self.open: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        for tag in set(self.open):
            self.text.setdefault(tag, []).append(data)

    def words(self, tag: str) -> str:
        return " ".join("".join(self.text.get(tag, [])).split())

    def attributes(self, tag: str, name: str) -> list[str]:
        return [
            value
            for found, attrs in self.elements
            if found == tag and (value := attrs.get(name)) is not None
        ]


HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A full run, encoder and decoder, in which every name that comes from outside is hostile."""
    records = synthetic_records(
        layers=2, heads=3, stacks=(HOSTILE, "decoder"), model=HOSTILE
    )
    manifest = synthetic_manifest(HOSTILE)
    manifest["corpus"] |= {"name": HOSTILE}
    manifest |= {
        "warnings": [HOSTILE],
        HOSTILE: HOSTILE,
        "excluded": {HOSTILE: {"zero": 1}},
    }
    return build_page(write_run(tmp_path_factory.mktemp("hostile"), records, manifest))


def small(*metrics: str, **choice: Any) -> pd.DataFrame:
    records = synthetic_records(**{"layers": 2, "heads": 2, **choice})
    return records[records["metric"].isin(metrics)]


def test_every_section_is_there(hostile: Path) -> None:
    page = Page(hostile.read_text())
    slugs = page.attributes("section", "id")
    assert slugs[:4] == ["anisotropy", "drift", "dimensions", "groups"]
    assert slugs[4:7] == ["spectrum", "attention", "likeness"]
    assert slugs[7:] == ["embeddings", "table", "definitions", "provenance"]
    assert set(page.attributes("a", "href")) >= {f"#{slug}" for slug in slugs}
    assert page.open == []


def test_every_figure_has_caption_alt_and_files(hostile: Path) -> None:
    html = hostile.read_text()
    figures = re.findall(r"<figure.*?</figure>", html, flags=re.S)
    assert len(figures) == 14
    for position, figure in enumerate(figures, start=1):
        page = Page(figure)
        assert f"Figure {position}." in page.words("figcaption")
        assert "n = 238,412" in page.words("figcaption")
        for link in page.attributes("a", "href"):
            assert (hostile.parent / link).stat().st_size > 500
        if 'class="heads"' in figure:
            assert all(
                len(label) > 30 for label in page.attributes("table", "aria-label")
            )
            continue
        choices = max(1, len(page.attributes("input", "value")))
        assert choices == (3 if position == 1 else 1)
        assert page.attributes("div", "role") == ["img"] * choices
        assert all(len(label) > 30 for label in page.attributes("div", "aria-label"))
        assert len([tag for tag, _ in page.elements if tag == "svg"]) == 2 * choices


def test_tooltips_say_value_and_interval_as_recorded(tmp_path: Path) -> None:
    records = small("mean_cosine", "mean_cosine.isotropic_q95", layers=3)
    html = build_page(write_run(tmp_path, records, synthetic_manifest())).read_text()
    drawings = re.findall(r'<div class="wide">(.*?)</div>', html, flags=re.S)[:3]
    assert len(drawings) == 3
    for policy, drawing in zip(POLICIES, drawings, strict=True):
        rows = select(
            records, metric="mean_cosine", site=["hidden", "final"], token_policy=policy
        )
        expected = {
            f"{row.value:.4g} [{row.low:.3g}, {row.high:.3g}]"
            for row in rows.itertuples()
        }
        shown = re.findall(r"<title>[^<]*: ([^<]*)</title>", drawing)
        assert set(shown) == expected and len(shown) == len(expected) == 5, (
            "one mark a layer, and the final norm"
        )


def figure_of(html: str, name: str) -> str:
    found = re.search(
        rf'<figure id="figure-{re.escape(name)}"[^>]*>.*?</figure>', html, flags=re.S
    )
    assert found, name
    return found[0]


COLUMNS = {
    "A": "mean_cosine",
    "A, inside a sequence": "intra_sequence",
    "A, after centring": "calibrated.centred",
}
COLUMNS |= {
    "A, between groups": "mean_cosine.between",
    "drift ‖x̄‖": "drift",
    "drift share": "drift.share",
}
COLUMNS |= {
    "mean norm": "norms.mean",
    "norm variation": "norms.variation",
    "IsoScore": "spectrum.isoscore",
}
COLUMNS |= {
    "effective rank": "spectrum.effective_rank",
    "participation ratio": "spectrum.participation_ratio",
}
COLUMNS |= {"d · E[cos²]": "spectrum.cosine_square"}


@pytest.fixture
def no_drawings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page without what its charts show, where words and numbers around them are looked at."""
    monkeypatch.setattr(
        pages, "to_svgs", lambda charts: dict.fromkeys(charts, "<svg></svg>")
    )


@pytest.mark.usefixtures("no_drawings")
def test_every_cell_of_the_table_of_layers_is_its_record(tmp_path: Path) -> None:
    records = synthetic_records(layers=2, heads=0)
    html = build_page(write_run(tmp_path, records, synthetic_manifest())).read_text()
    table = re.search(r'<section id="table">.*?</section>', html, flags=re.S)
    assert table
    head = re.findall(r'<th scope="col">(.*?)</th>', table[0])
    assert set(head) == {"site", *COLUMNS}
    rows = re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', table[0], flags=re.S)
    assert [name for name, _ in rows] == [
        "layer 0",
        "layer 1",
        "layer 2",
        "the final norm",
    ]
    for (name, cells), (site, layer) in zip(
        rows, [("hidden", 0), ("hidden", 1), ("hidden", 2), ("final", 2)], strict=True
    ):
        shown = re.findall(r"<td>([^<]*)(?:<small>([^<]*)</small>)?</td>", cells)
        for label, cell in zip(head[1:], shown, strict=True):
            of_place = select(records, metric=COLUMNS[label], site=site, layer=layer)
            (row,) = of_place[
                of_place["token_policy"].fillna("all").eq("all")
            ].itertuples()
            interval = (
                ""
                if np.isnan(row.low)
                else f"[{format_number(row.low)}, {format_number(row.high)}]"
            )
            assert cell == (format_number(row.value), interval), (name, label)


@pytest.mark.parametrize(
    ("figure", "metric"),
    [
        ("attention-entropy", "attention.entropy_normalised"),
        ("query-key-cosine", "query_key.cosine"),
        ("query-key-dot", "query_key.dot"),
    ],
)
def test_cells_of_heads_say_what_was_recorded(
    tmp_path: Path, figure: str, metric: str
) -> None:
    records = small(metric, layers=3, heads=4)
    build_page(write_run(tmp_path, records, synthetic_manifest()))
    drawn = (tmp_path / "figures" / f"{figure}.svg").read_text()
    rows = {(int(row.layer), int(row.head)): row for row in records.itertuples()}
    expected = [
        f"layer {layer} · head {head}: {row.value:.4g} [{row.low:.3g}, {row.high:.3g}]"
        for (layer, head), row in rows.items()
    ]
    assert (
        sorted(re.findall(r"<title>(.*?)</title>", drawn)) == sorted(expected)
        and len(expected) == 12
    )


def large_map() -> str:
    """A heat map of 48 layers of 64 heads, half of them with an interval that holds 0."""
    places = pd.MultiIndex.from_product(
        [range(1, 49), range(64)], names=["layer", "head"]
    ).to_frame(index=False)
    value = np.random.default_rng(0).uniform(-1, 1, len(places))
    frame = places.assign(value=value, low=value - 0.5, high=value + 0.5)
    return export.to_svg(charts.heatmap(frame, diverging=True, size=(640, 12)), "map")


TITLE = re.compile(r"<title>(.*?)</title>")
LINE = re.compile(r"M([\d.]+),([\d.]+)h([\d.]+)")


def test_large_heat_maps_are_written_short() -> None:
    """A page of 48 layers of 64 heads had 11 MB: empty labels, and a stroke and a font for each head."""
    drawn = large_map()
    short = export.shorten_tiles(drawn)
    assert len(short) < 0.4 * len(drawn) and TITLE.findall(short) == TITLE.findall(
        drawn
    )
    assert short.count("h0") - drawn.count("h0") == drawn.count(">·</text>") > 1000
    colours = [
        tuple(map(int, found))
        for found in re.findall(r'fill="rgb\((\d+), (\d+), (\d+)\)"[^>]*><title', drawn)
    ]
    told = re.findall(r'<path d="M[^"]*" stroke="#(\w{6})"><title', short)
    assert [tuple(bytes.fromhex(found)) for found in told] == colours and len(
        colours
    ) == 48 * 64


def test_merged_tiles_are_where_single_ones_are_and_look_alike() -> None:
    drawn = large_map()
    merged = export.shorten_tiles(drawn, merge=True)
    assert len(merged) < 0.15 * len(drawn) and "<title>" not in merged
    where = {}
    for lines, colour in re.findall(r'<path d="([^"]*)" stroke="#(\w{6})"/>', merged):
        where |= {
            (x, y): bytes.fromhex(colour)
            for x, y, width in LINE.findall(lines)
            if width != "0"
        }
    single = re.findall(
        r'<path d="M([\d.]+),([\d.]+)h[^"]*" stroke="#(\w{6})"><title',
        export.shorten_tiles(drawn),
    )
    assert len(where) == len(single) == 48 * 64
    for x, y, colour in single:
        assert (
            max(
                abs(a - b)
                for a, b in zip(where[x, y], bytes.fromhex(colour), strict=True)
            )
            <= 4
        )


def test_small_drawings_stay_as_they_are() -> None:
    drawn = export.to_svg(
        charts.heatmap(
            pd.DataFrame({"layer": [1, 2], "head": [0, 0], "value": [0.1, 0.2]})
        )
    )
    assert export.shorten_tiles(drawn, merge=True) == drawn


def test_a_page_shows_the_extremes_of_every_head(tmp_path: Path) -> None:
    records = synthetic_records(layers=2, heads=3, extremes=True)
    html = build_page(write_run(tmp_path, records, synthetic_manifest())).read_text()
    for figure, metric, component in (
        ("sink-rate", "sinks.rate", ".3"),
        ("largest-logit", "logits.largest", None),
    ):
        rows = select(records, metric=metric, component=component)
        expected = {
            f"layer {row.layer} · head {row.head}: {row.value:.4g}"
            for row in rows.itertuples()
        }
        drawn = (tmp_path / "figures" / f"{figure}.svg").read_text()
        told = re.findall(r"<title>(layer \d+ · head \d+: [^ <]*)", drawn)
        assert set(told) == expected and len(told) == len(expected) == 6
    assert 'id="figure-massive"' in html and "dimension 138" in html


@pytest.mark.usefixtures("no_drawings")
def test_n_under_a_figure_is_that_of_its_own_rows(tmp_path: Path) -> None:
    """All synthetic rows had one n: that of another metric would have passed."""
    records = synthetic_records(layers=2, heads=2)
    order = list(dict.fromkeys(records["metric"]))
    records["n_vectors"] = [1000 + order.index(metric) for metric in records["metric"]]
    records["n_units"] = [100 + order.index(metric) for metric in records["metric"]]
    html = build_page(write_run(tmp_path, records, synthetic_manifest())).read_text()

    def n(metric: str, what: str = "vectors") -> str:
        return f"n = {1000 + order.index(metric):,} {what} in {100 + order.index(metric)} units"

    for figure, metric, what in (
        ("anisotropy", "mean_cosine", "vectors"),
        ("drift", "mean_cosine", "vectors"),
        ("drift-scatter", "mean_cosine", "vectors"),
        ("top-share", "mean_cosine.top_share", "vectors"),
        ("top-dimensions", "mean_cosine.contribution", "vectors"),
        ("groups-kind", "group_cosine", "vectors"),
        ("explained-variance", "spectrum.explained", "vectors"),
        ("heads", "attention.entropy_normalised", "rows"),
        ("queries-keys-values", "mean_cosine", "vectors"),
    ):
        assert f"{n(metric, what)}" in Page(figure_of(html, figure)).words(
            "figcaption"
        ), figure
    pairs = Page(figure_of(html, "pairs")).words("figcaption")
    assert n("mean_cosine") in pairs and n("intra_sequence", "sequences") in pairs


@pytest.mark.usefixtures("no_drawings")
def test_counts_that_differ_from_layer_to_layer_are_told_from_where_to_where(
    tmp_path: Path,
) -> None:
    """The caption named the largest sample, as if every layer had it."""
    records = synthetic_records(layers=3, heads=0)
    centred = records["metric"] == "calibrated.centred"
    records.loc[centred, "n_vectors"] = 1000 + 500 * records.loc[centred, "layer"]
    told = Page(
        figure_of(
            build_page(write_run(tmp_path, records, synthetic_manifest())).read_text(),
            "drift",
        )
    )
    assert "uniform sample of 1,000 to 2,500 vectors" in told.words("figcaption")


def test_hostile_names_are_text(hostile: Path) -> None:
    html = hostile.read_text()
    page = Page(html)
    assert not [
        tag for tag, _ in page.elements if tag in ("iframe", "object", "img", "link")
    ]
    scripts = re.findall(r"<script([^>]*)>(.*?)</script>", html, flags=re.S)
    assert [attributes for attributes, _ in scripts] == [' type="application/json"', ""]
    assert scripts[1][1] == head_map.read_script(), (
        "the one script that runs is the package's, to the last character"
    )
    assert (
        not re.search(r"[<>&'\u2028\u2029]", scripts[0][1])
        and json.loads(scripts[0][1])["panels"]
    )
    assert not [
        name for _, attrs in page.elements for name in attrs if name.startswith("on")
    ]
    assert page.words("h1") == HOSTILE
    assert HOSTILE in page.words("aside")
    assert HOSTILE in page.words("dt")


def test_nothing_is_fetched(hostile: Path) -> None:
    html = hostile.read_text()
    page = Page(html)
    links = [
        value
        for _, attrs in page.elements
        for name in ("src", "href", "xlink:href")
        if (value := attrs.get(name))
    ]
    assert {link for link in links if "//" in link} == {
        "https://arxiv.org/abs/2401.12143"
    }
    assert "@import" not in html
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", html))


def test_ids_are_unique(hostile: Path) -> None:
    ids = [
        attrs["id"] for _, attrs in Page(hostile.read_text()).elements if "id" in attrs
    ]
    assert len(ids) == len(set(ids))


def test_rebuild_gives_the_same_bytes(tmp_path: Path) -> None:
    records = small("mean_cosine", "query_key.cosine", layers=1)
    folder = write_run(tmp_path, records, synthetic_manifest())
    contents = []
    for _ in range(2):
        build_page(folder)
        contents.append(
            {
                path: path.read_bytes()
                for path in sorted(folder.rglob("*"))
                if path.is_file()
            }
        )
    assert contents[0] == contents[1]


@pytest.mark.usefixtures("no_drawings")
@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        ((), []),
        (("mean_cosine",), ["anisotropy", "attention", "likeness", "table"]),
        (("spectrum.isoscore",), ["spectrum", "table"]),
        (("drift.share",), ["drift", "table"]),
        (("mean_cosine.top_share",), ["dimensions"]),
        (("attention.first_mass",), ["attention"]),
        (("query_key.dot",), ["attention"]),
        (("partition",), ["embeddings"]),
    ],
)
def test_missing_panels_are_left_out(
    tmp_path: Path, metrics: tuple[str, ...], expected: list[str]
) -> None:
    path = build_page(write_run(tmp_path, small(*metrics), {"model": "m"}))
    assert Page(path.read_text()).attributes("section", "id") == [
        *expected,
        "definitions",
        "provenance",
    ]


@pytest.mark.usefixtures("no_drawings")
def test_one_layer_without_intervals(tmp_path: Path) -> None:
    records = small(
        "mean_cosine", "mean_cosine.isotropic_q95", "query_key.cosine", layers=0
    )
    records = records[records["site"].eq("hidden")].assign(low=np.nan, high=np.nan)
    page = Page(build_page(write_run(tmp_path, records, {})).read_text())
    assert "No interval, hence no verdict: the highest A is .0" in page.words("header")
    assert "anisotropic" not in page.words("header")


@pytest.mark.usefixtures("no_drawings")
def test_headline_verdicts_and_table_say_what_the_records_say(tmp_path: Path) -> None:
    records = small("mean_cosine", "mean_cosine.isotropic_q95")
    hidden = records["site"].eq("hidden") & records["metric"].eq("mean_cosine")
    values = {0: (0.05, 0.04, 0.06), 1: (0.5, 0.45, 0.55), 2: (0.9, 0.85, 0.95)}
    for layer, row in values.items():
        records.loc[hidden & records["layer"].eq(layer), ["value", "low", "high"]] = row
    final = records["site"].eq("final") & records["metric"].eq("mean_cosine")
    records.loc[final, ["value", "low", "high"]] = (0.09, 0.08, 0.1)
    page = Page(
        build_page(write_run(tmp_path, records, synthetic_manifest())).read_text()
    )
    head = page.words("header")
    assert (
        "Anisotropic at layers 1 and 2; strongest at layer 2 (A .900 [.850, .950], extreme: at least .8); "
        in head
    )
    assert "undecided at the final norm." in head
    assert "layer 1.500[.450, .550]" in page.words("tbody")


@pytest.mark.usefixtures("no_drawings")
def test_the_lead_policy_is_the_first_there_is(tmp_path: Path) -> None:
    records = small("mean_cosine")
    page = Page(
        build_page(
            write_run(tmp_path, records[records["token_policy"].ne("all")], {})
        ).read_text()
    )
    assert "tokens: content and no-first" in page.words("figcaption")


def test_a_notebook_shows_the_picture_on_white(tmp_path: Path) -> None:
    """On the dark page of a notebook the dark ink of axes and titles could not be read."""
    shown = Run(
        write_run(tmp_path, small("mean_cosine"), synthetic_manifest())
    )._repr_html_()
    assert (
        re.search(r'<div style="[^"]*background: white[^"]*"><svg', shown)
        and shown.count("<svg") == 1
    )


def test_an_unfinished_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="no manifest"):
        build_page(tmp_path)


def test_a_series_without_checkpoints_is_refused(tmp_path: Path) -> None:
    (tmp_path / "series.json").write_text("{}")
    with pytest.raises(OutputError, match="a series of checkpoints"):
        build_page(tmp_path)


def test_ink_of_the_theme_is_that_of_the_marks() -> None:
    assert (
        style.THEME["axis"]["titleColor"]
        == style.THEME["legend"]["labelColor"]
        == style.INK
    )
    assert (style.THEME["axis"]["labelColor"], style.THEME["axis"]["gridColor"]) == (
        style.MUTED,
        style.GRID,
    )


def test_charts_hold_many_rows_and_gaps() -> None:
    steps = np.arange(6000)
    frame = pd.DataFrame(
        {"step": steps, "value": np.where(steps % 7, 0.5, np.nan), "model": "m"}
    )
    assert export.to_svg(charts.trajectory(frame, scale="symlog")).startswith("<svg")


def test_a_coloured_series_is_named_once() -> None:
    frame = pd.DataFrame(
        {
            "layer": [0, 1] * 2,
            "value": [0.1, 0.2, 0.3, 0.4],
            "model": ["aa", "aa", "bb", "bb"],
        }
    )
    svg = export.to_svg(charts.layer_curve(frame, isotropic={"aa": 0.1, "bb": 0.2}))
    assert svg.count(">aa<") == svg.count(">bb<") == 1


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    frame = pd.DataFrame({"layer": [0, 1], "value": [0.1, 0.2], "model": "m"})
    with pytest.raises(UsageError, match="svg, pdf, png"):
        export.save(charts.layer_curve(frame), tmp_path / "figure", ["tiff"])


@pytest.mark.parametrize(
    ("value", "cell", "prose"),
    [
        (0.0, ".00", ".000"),
        (0.424, ".42", ".424"),
        (-0.07, "−.07", "−.070"),
        (-0.001, ".00", "−.001"),
        (1.0, "1.0", "1.000"),
        (3.14159, "3.1", "3.142"),
        (128.4, "128", "128.4"),
        (2.1e5, "2e5", "210,000"),
        (3.14e-6, ".00", "3.1 · 10⁻⁶"),
        (-3.14e-6, ".00", "−3.1 · 10⁻⁶"),
        (float("nan"), "", "–"),
    ],
)
def test_numbers(value: float, cell: str, prose: str) -> None:
    assert format_compact(value) == cell
    assert format_number(value) == format_number(np.float64(value)) == prose


@pytest.mark.parametrize(
    ("value", "low", "high", "text"),
    [
        (0.034, 0.03, 0.038, "+.034 [+.030, +.038]"),
        (
            0.01,
            -0.02,
            0.04,
            "+.010 [−.020, +.040]",
        ),  # an interval that holds 0 is shown: it says that nothing is known
        (-0.012, -0.02, -0.004, "−.012 [−.020, −.004]"),
        (0.5, 0.5, 0.5, "+.500"),
        (0.5, float("nan"), float("nan"), "+.500"),
    ],
)
def test_differences_have_their_sign_and_their_interval(
    value: float, low: float, high: float, text: str
) -> None:
    assert format_signed_interval(value, low, high) == text


def test_durations() -> None:
    assert [format_duration(s) for s in (41.2, 312, 7500)] == [
        "41 s",
        "5 min 12 s",
        "2 h 05 min",
    ]


def test_figures_for_print_are_drawn_on_request(hostile: Path, tmp_path: Path) -> None:
    assert "SVG" in hostile.read_text() and not list(
        hostile.parent.glob("figures/*.pdf")
    )
    drawn = (
        "mean_cosine",
        "drift",
        "attention.first_mass",
        "query_key.cosine",
        "query_key.dot",
        "spectrum.explained",
    )
    folder = write_run(tmp_path, small(*drawn), synthetic_manifest())
    shown = Page(build_page(folder, ("svg", "pdf")).read_text())
    links = [link for link in shown.attributes("a", "href") if link.endswith(".pdf")]
    assert len(links) == len(list(tmp_path.glob("figures/*.svg"))) > 5
    assert all((tmp_path / link).read_bytes().startswith(b"%PDF") for link in links)


def test_what_was_left_out_is_told_by_its_kind():
    """Zero vectors and those with NaN could change places."""
    excluded = {
        "encoder.1.hidden": {"zero": 1, "nonfinite": 3},
        "encoder.2.hidden": {"zero": 2},
    }
    told = list_notices(
        {
            "warnings": ["2 zero vectors left out at encoder.2.hidden"],
            "excluded": excluded,
        }
    )
    assert told[1:] == [
        "1 zero vector and 3 vectors with NaN or Inf left out at encoder.1.hidden"
    ]


@pytest.mark.parametrize(
    ("steps", "scale", "ticks"),
    [
        ([0, 1, 8, 512], "symlog", [0, 1, 10, 100]),
        ([0, 5, 50, 400], "symlog", [0, 5, 50]),
        ([2, 20, 2000], "log", [2, 20, 200, 2000]),
        ([-20, -1, 0, 5], "symlog", [0, 1, 10, -1, -10]),
        ([0, 1, 2, 3], "linear", [0, 1, 2, 3]),
    ],
)
def test_ticks_are_the_tenfolds_that_are_reached(steps, scale, ticks):
    axis = style.number_axis("x", "", pd.Series(steps, dtype=float), scale).to_dict()[
        "axis"
    ]
    assert axis["values"] == ticks


def test_panels_of_points_stand_two_in_a_row():
    frame = pd.DataFrame(
        {"x": [1.0, 2, 3], "value": [1.0, 2, 3], "model": "m", "which": ["a", "b", "c"]}
    )
    assert (
        charts.scatter(frame, x="x", titles=("x", "y"), panel="which").to_dict()[
            "columns"
        ]
        == 2
    )


def test_panels_say_which_attention_they_are_of() -> None:
    table = Results(
        synthetic_records(layers=1, heads=1, stacks=("encoder", "decoder")),
        synthetic_manifest(),
    ).table
    found = {kind: {*rows[PANEL]} for kind, rows in table.groupby("kind")}
    assert found == {
        "self": {"encoder", "decoder"},
        "cross": {"decoder, cross-attention"},
    }


@pytest.mark.parametrize("stacks", [("encoder",), ("encoder", "decoder")])
def test_places_are_named_with_their_stack_where_there_are_several(
    stacks: tuple[str, ...],
) -> None:
    results = Results(
        synthetic_records(layers=3, heads=1, stacks=stacks), synthetic_manifest()
    )
    places = (
        figures._choose_places(results, results.select_components("group_cosine"))
        .groupby("stack")["place"]
        .unique()
    )
    assert {*places.index} == {*stacks}
    for stack, named in places.items():
        assert all(
            name.startswith("layer " if len(stacks) == 1 else f"{stack} layer ")
            for name in named
        )


@pytest.mark.parametrize(("steps", "drawn"), [((10,), False), ((10, 20), True)])
def test_two_checkpoints_make_a_course(steps: tuple[int, ...], drawn: bool) -> None:
    records = pd.concat(
        [synthetic_records(layers=2, heads=1).assign(step=step) for step in steps]
    )
    of_series = {
        "checkpoints": [{"step": step} for step in steps],
        **synthetic_manifest(),
    }
    found = {
        section.slug
        for section in build_sections(Results(as_records(records), of_series))
        if section.figures
    }
    assert bool(found) is drawn


def test_a_print_on_white_is_a_drawing_with_one_ground(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[str, dict[str, float]]] = []
    monkeypatch.setattr(
        export.vl_convert,
        "svg_to_png",
        lambda svg, **how: given.append((svg, how)) or b"",
    )
    export.write("<svg a><g></g></svg>", tmp_path / "figure", ("png",))
    assert given == [
        (
            '<svg a><rect width="100%" height="100%" fill="white"/><g></g></svg>',
            {"scale": 2},
        )
    ]


def test_panels_share_their_axis_but_where_they_are_asked_not_to() -> None:
    frame = pd.DataFrame(
        {
            "step": [1, 2] * 2,
            "value": [0.1, 0.2, 5, 6],
            "model": "m",
            "panel": list("aabb"),
        }
    )
    for independent in (None, True):
        how = {} if independent is None else {"independent": independent}
        drawn = charts.trajectory(frame, panel="panel", **how).to_dict()
        assert (
            drawn.get("resolve", {}).get("scale", {}).get("y") == "independent"
        ) is bool(independent)


def test_a_run_is_called_by_its_folder_and_in_memory_by_its_model(
    tmp_path: Path,
) -> None:
    records, manifest = (
        synthetic_records(layers=1, heads=1),
        synthetic_manifest("some/model"),
    )
    assert Run(None, records=records, manifest=manifest).name == "some/model"
    assert (
        Run(tmp_path / "mine", records=records, manifest=manifest).name == "mine"
        and Run("/", records=records, manifest=manifest).name == "/"
    )


def test_a_run_in_memory_has_every_figure_of_its_page() -> None:
    records, manifest = (
        synthetic_records(layers=3, heads=2),
        synthetic_manifest("some/model"),
    )
    run = Run(None, records=records, manifest=manifest)
    of_page = [
        figure.name
        for section in build_sections(Results(records, manifest))
        for figure in section.figures
    ]
    assert run.figures == of_page and len(of_page) == len(set(of_page)) > 3
    for name in run.figures:
        assert run.plot(name).to_dict()["title"], name


def tabled(metric: str, value: float, **keys: Any) -> Row:
    place = {"stack": "encoder", "site": "hidden", "layer": 0, "token_policy": "all"}
    return _row(metric, value, **(place | keys))


@pytest.mark.parametrize("seeds", [(None,), (0,), (0, 1)])
def test_a_series_has_a_row_for_each_checkpoint(seeds: tuple[int | None, ...]) -> None:
    """Also if its checkpoints have no seed; the seed is named if there are several."""
    rows = [
        tabled(
            "mean_cosine",
            0.1 + layer / 10 + step / 100 + (seed or 0) / 1000,
            layer=layer,
            step=step,
            seed=seed,
        )
        for seed in seeds
        for step in (0, 10)
        for layer in (0, 1)
    ]
    del rows[-1]  # the last checkpoint has one layer less
    entry = {"metric": "mean_cosine", "caption": "A. {basis}"}
    table = sections.tabulate_steps(
        Results(as_records(pd.DataFrame(rows)), synthetic_manifest()), entry
    )
    assert table is not None and table.head == ("checkpoint", "layer 0", "layer 1")
    names = [
        f"step {step}{f', seed {seed}' if len(seeds) > 1 else ''}"
        for seed in seeds
        for step in (0, 10)
    ]
    assert [row[0][0] for row in table.rows] == names
    assert [cell[0] for cell in table.rows[0]] == [names[0], ".100", ".200"]
    assert table.rows[-1][2] == sections.NOTHING and table.rows[0][2][0] == ".200"


def test_a_table_of_layers_has_a_row_for_each_layer_of_each_stack() -> None:
    values = {
        ("encoder", "hidden", 0): 0.1,
        ("encoder", "hidden", 1): 0.2,
        ("encoder", "final", 1): 0.3,
    }
    values |= {("decoder", "hidden", 0): 0.4, ("decoder", "hidden", 1): 0.5}
    rows = []
    for (stack, site, layer), value in values.items():
        place = {"stack": stack, "site": site, "layer": layer}
        rows.append(tabled("mean_cosine", value, **place))
        if site == "hidden":
            rows.append(tabled("drift.share", value + 0.05, **place))
    entry = {
        "columns": {"mean_cosine": "A", "drift.share": "drift"},
        "caption": "{basis}",
    }
    table = sections.tabulate_layers(
        Results(as_records(pd.DataFrame(rows)), synthetic_manifest()), entry
    )
    assert table is not None and table.head == ("site", "A", "drift")
    assert [[cell[0] for cell in row] for row in table.rows] == [
        ["encoder layer 0", ".100", ".150"],
        ["encoder layer 1", ".200", ".250"],
        ["encoder final norm", ".300", sections.NOTHING[0]],
        ["decoder layer 0", ".400", ".450"],
        ["decoder layer 1", ".500", ".550"],
    ]


def test_the_line_under_the_headline_counts_the_blocks_of_all_stacks() -> None:
    records = synthetic_records(layers=3, heads=1, stacks=("encoder", "decoder"))
    records = records[~(records["stack"].eq("decoder") & records["layer"].eq(3))]
    told = dict(pages.describe_run(Results(records, synthetic_manifest())))
    assert told["blocks"] == "5" and told["dimensions"] == str(DIM)
    assert told["device"] == "cpu float32" and told["units"] == str(UNITS)
    assert told["tokens"] == "238,412"
    assert pages.describe_run(Results(records[:0], {})) == []


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("me/model", "me/model"),
        ("/a/b/model", "model"),
        ("./a/model", "model"),
        ("../model", "model"),
        ("", "unnamed model"),
    ],
)
def test_a_page_is_titled_by_its_model(name: str, title: str) -> None:
    assert pages.make_title({"model": name}) == title


@pytest.mark.parametrize(
    ("stacks", "seeds", "expected"),
    [
        (("encoder", "encoder"), (1, 1), ""),
        (("encoder", "decoder"), (1, 1), ["encoder", "decoder"]),
        (("encoder", "encoder"), (1, 2), ["seed 1", "seed 2"]),
        (
            ("encoder", "decoder", "encoder"),
            (1, 1, 2),
            ["encoder, seed 1", "decoder, seed 1", "encoder, seed 2"],
        ),
    ],
)
def test_panels_of_a_series_are_named_by_what_differs(
    stacks: Any, seeds: Any, expected: Any
) -> None:
    """Lines of two stacks in one panel would be joined to one."""
    frame = pd.DataFrame(
        {PANEL: stacks, "seed": seeds}, index=range(3, 3 + len(stacks))
    )
    named = figures._name_seeds_and_stacks(frame)
    assert (named if isinstance(named, str) else named.tolist()) == expected
    assert isinstance(named, str) or named.index.equals(frame.index)


def test_tiles_are_of_the_sharpest_and_the_most_aligned_head() -> None:
    def tiles(
        *heads: tuple[float, float], stacks: tuple[str, ...] = ("encoder",)
    ) -> dict[str, tuple[str, str]]:
        rows: list[Row] = []
        for head, (entropy, cosine) in enumerate(heads):
            place = {
                "stack": stacks[head % len(stacks)],
                "kind": "self",
                "layer": 1,
                "head": head,
            }
            rows.append(
                _row("attention.entropy_normalised", entropy, **place, site="attention")
            )
            rows.append(
                _row(
                    "query_key.cosine",
                    cosine,
                    **place,
                    site="query.raw",
                    token_policy="all",
                )
            )
        found = pages.list_tiles(
            Results(as_records(pd.DataFrame(rows)), synthetic_manifest())
        )
        return {name: (value, words) for name, value, words in found}

    mixed = tiles((0.9, 0.2), (0.3, -0.7), (0.98, 0.9))
    assert mixed["sharpest head"] == (".300", "normalised entropy, layer 1, head 1")
    assert mixed["strongest alignment"] == ("−.700", "cos(Q̄, K̄), layer 1, head 1")
    # of two towers "layer 1" alone says nothing
    towers = tiles((0.9, 0.2), (0.3, -0.7), stacks=("decoder", "vision"))
    assert towers["sharpest head"] == (
        ".300",
        "normalised entropy, vision layer 1, head 1",
    )
    assert towers["strongest alignment"] == (
        "−.700",
        "cos(Q̄, K̄), vision layer 1, head 1",
    )
    uniform = tiles((0.98, 0.2), (0.97, 0.9))
    assert list(uniform) == ["attention"] and uniform["attention"][1].endswith(
        "lowest entropy .970, layer 1, head 1"
    )
