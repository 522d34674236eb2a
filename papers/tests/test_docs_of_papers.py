"""The documentation of both distributions keeps up with the code: generated pages, files and tests that pages name."""

import re
from pathlib import Path

import committed
import documentation
import findings
import fosse_page
import pages
import paper_pages
import pytest
import quoted_names

from anisoscope_papers import runner

ROOT = Path(__file__).parents[2]
FOREIGN = frozenset({"output_attentions", "pooler_output"})
"""Names of transformers that docstrings mention and the code does not use."""
README = (ROOT / "README.md").read_text("utf-8")


@pytest.mark.parametrize("name", paper_pages.PAGES)
def test_a_generated_page_is_what_its_generator_writes(name: str) -> None:
    """Changed code, or a page changed by hand, shows here; `make docs` writes them."""
    assert (ROOT / "docs" / name).read_text("utf-8") == pages.text_of(
        paper_pages.PAGES[name]
    ), "make docs"


@pytest.mark.parametrize("name", fosse_page.FIGURES)
def test_a_figure_of_the_page_is_what_its_records_draw(name: str) -> None:
    assert (ROOT / "docs" / "figures" / name).read_text("utf-8") == fosse_page.FIGURES[
        name
    ](), "make docs"


def test_a_cell_of_the_papers_tables_says_what_is_theirs() -> None:
    row = {"published": 0.713, "value": 0.6912, "spread": 0.024, "verdict": "agrees"}
    assert fosse_page.cell(row) == "0.69 ± 0.02 (0.713) ✓"
    assert (
        fosse_page.cell(row | {"value": None}) == "– (0.713)"
        and fosse_page.cell(None) == ""
    )


def test_what_was_found_is_that_of_the_verdicts() -> None:
    assert README.split(paper_pages.FOUND)[1] == paper_pages.found(), (
        "make docs writes them"
    )
    said = committed.count_words(
        ["holds", "identity", "contrary", "too small", "undecided"]
    )
    assert said == (
        "5 verdicts: 1 holds, 1 contrary, 1 too small, 0 beyond, 1 undecided, 1 identity, 0 not comparable; "
        "3 are evidence."
    )


def test_every_page_that_says_so_is_generated() -> None:
    every = [
        path for path in (ROOT / "docs").rglob("*.*") if path.suffix in (".md", ".html")
    ]
    marked = {
        path.name
        for path in every
        if path.read_text("utf-8").startswith(pages.GENERATED)
    }
    assert marked == {*documentation.PAGES, *paper_pages.PAGES}


def named_files(text: str) -> set[str]:
    """Python and TOML files that a page names in code, with or without the name of something inside."""
    return set(
        re.findall(r"`([a-z_0-9]+(?:/[a-z_0-9]+)*\.(?:py|toml))(?::[^`]*)?`", text)
    )


def test_files_that_pages_name_are_there() -> None:
    all_pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    named = {
        (page.name, file)
        for page in all_pages
        for file in named_files(page.read_text("utf-8"))
    }
    papers = ROOT / "papers"
    places = (
        ROOT / "src" / "anisoscope",
        papers / "src" / "anisoscope_papers",
        ROOT / "tests",
        papers / "tests",
    )
    assert len(named) > 20
    there = {
        file
        for _, file in named
        if (ROOT / file).exists() or any(any(place.rglob(file)) for place in places)
    }
    assert not {(page, file) for page, file in named if file not in there}
    assert named_files("`no/where.py: f` and `setup.py`") == {"no/where.py", "setup.py"}


def test_every_study_has_claims_settings_and_needs() -> None:
    for study in runner.find_studies():
        assert study.claims, study.name
        assert {"quick", "paper"} <= set(study.settings), study.name
        assert study.title and study.caption, study.name


def test_tests_that_a_page_names_are_there() -> None:
    """A kind of mistake that no test sees any more would still stand on the page as seen."""
    for row in (ROOT / "docs" / "tried.md").read_text("utf-8").splitlines():
        files = ""
        for named in re.findall(r"`([\w.]+: )?(test_\w+)`", row):
            files = named[0].removesuffix(": ") or files
            folder = next(
                (
                    f
                    for f in (ROOT / "tests", ROOT / "papers" / "tests")
                    if (f / files).is_file()
                ),
                None,
            )
            assert not files or (
                folder and f"def {named[1]}(" in (folder / files).read_text("utf-8")
            ), named


def test_the_page_of_godey_has_every_figure_with_its_drawing() -> None:
    """All 23 figures in the paper's order, each with a thumbnail and a link to a section that are there."""
    page = (ROOT / "docs" / "godey2024.md").read_text("utf-8")
    table = page.split("## Figure by figure")[1].split("\n## ")[0]
    rows = [row for row in table.splitlines() if re.match(r"\| \d", row)]
    assert [row.split("|")[1].strip() for row in rows] == [
        "1",
        "2",
        "3a",
        "3b",
        *(str(i) for i in range(4, 24)),
    ]
    for row in rows:
        pictures = re.findall(r"\((figures/godey2024/[^)]+)\)", row)
        assert pictures and all(
            (ROOT / "docs" / picture).stat().st_size > 500 for picture in pictures
        ), row
        settings = re.search(r"all-verdicts\.html#godey2024/([\w-]+)\)", row)
        assert settings and any(
            (committed.RESULTS / "godey2024" / settings[1]).glob("fig*/verdicts.json")
        ), row
    first = page.split("## Figure by figure")[0]
    assert re.findall(r"^(\d)\. ", first, re.MULTILINE) == ["1", "2", "3", "4", "5"]


@pytest.mark.parametrize(
    ("number", "form", "text"),
    [
        ((0.2462, 0.2388, 0.2536, 60), "number", "0.25 [0.24, 0.25; n = 60]"),
        ((0.26, 0.2, 0.31, 6), "number", "0.26 [0.20, 0.31; n = 6]"),
        ((-0.788, -0.844, -0.733, 6), "size", "0.79 [0.73, 0.84; n = 6]"),
        ((-0.0531, -0.0606, -0.0457, 8), "points", "5.3 points [4.6, 6.1; n = 8]"),
        ((0.005, -0.016, 0.026, 8), "points", "0.50 points [−1.6, 2.6; n = 8]"),
        ((0.0284, 0.0208, 0.0361, None), "percent", "2.8 % [2.1, 3.6]"),
        ((3e-8, None, None, 96), "count", "96"),
        ((5.69, 5.38, 6.01, 8), "number", "5.7 [5.4, 6.0; n = 8]"),
        ((64.15, 61.9, 66.4, 8), "number", "64 [62, 66; n = 8]"),
    ],
)
def test_a_short_number_keeps_its_interval_and_n(number, form, text) -> None:
    verdict = dict(zip(("value", "low", "high", "n"), number, strict=True))
    assert findings.short_number(verdict, form) == text


def test_docstrings_name_what_the_code_has() -> None:
    """A function that was renamed stays in the docstrings of others, unless somebody looks."""
    of_papers = ROOT / "papers" / "src" / "anisoscope_papers"
    unknown = quoted_names.find_unknown_names(
        [of_papers, ROOT / "src" / "anisoscope"], FOREIGN
    )
    assert not [line for line in unknown if line.startswith("anisoscope_papers/")]
