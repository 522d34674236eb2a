"""The documentation keeps up with the code: the tree is the disk, the example gives its output, everything is named."""

import contextlib
import io
import re
import subprocess
from pathlib import Path

import documentation
import pytest
import verdicts

import anisoscope
from anisoscope_papers import runner

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")


def _block(after: str, language: str) -> str:
    found = re.search(rf"{re.escape(after)}.*?```{language}\n(.*?)```", README, re.DOTALL)
    assert found, f"no {language} block after {after!r}"
    return found[1]


def test_the_tree_is_the_disk() -> None:
    package = ROOT / "src" / "anisoscope"
    shown = _block("## The tree", "text")
    assert shown == f"{documentation.tree()}\n", "make docs writes it"
    names = set(re.findall(r"^  ([\w/]+(?:\.py)?/?) ", shown, re.MULTILINE))
    files = {p.name for p in package.glob("*.py") if p.name != "__init__.py"}
    folders = {f"{p.name}/" for p in package.iterdir() if p.is_dir() and not p.name.startswith("__")}
    assert names == files | folders
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    beside = {f"{name.split('/')[0]}/" for name in tracked if "/" in name and name[0] != "."} - {"src/"}
    assert beside in (set(documentation.BESIDE), set()), "no git: nothing to compare with"


@pytest.mark.parametrize("name", documentation.PAGES)
def test_a_generated_page_is_what_its_generator_writes(name: str) -> None:
    """Changed code, or a page changed by hand, shows here; `make docs` writes them."""
    assert (ROOT / "docs" / name).read_text("utf-8") == documentation.page(name)


def test_the_totals_are_those_of_the_verdicts() -> None:
    """The README says how many verdicts are evidence."""
    assert README.split(documentation.FOUND)[1] == documentation.found(), "make docs writes them"
    said = verdicts.told(["holds", "identity", "fails", "undecided"])
    assert said == "4 verdicts: 1 holds, 1 fails, 1 undecided, 1 identity; 2 are evidence."


def test_every_page_that_says_so_is_generated() -> None:
    marked = {p.name for p in (ROOT / "docs").rglob("*.md") if p.read_text("utf-8").startswith(documentation.GENERATED)}
    assert marked == set(documentation.PAGES)


def named_files(text: str) -> set[str]:
    """Python and TOML files that a page names in code, with or without the name of something inside."""
    return set(re.findall(r"`([a-z_0-9]+(?:/[a-z_0-9]+)*\.(?:py|toml))(?::[^`]*)?`", text))


def test_files_that_pages_name_are_there() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    named = {(page.name, file) for page in pages for file in named_files(page.read_text("utf-8"))}
    papers = ROOT / "papers"
    places = ROOT / "src" / "anisoscope", papers / "src" / "anisoscope_papers", ROOT / "tests", papers / "tests"
    assert len(named) > 20
    there = {file for _, file in named if (ROOT / file).exists() or any(any(place.rglob(file)) for place in places)}
    assert not {(page, file) for page, file in named if file not in there}
    assert named_files("`no/where.py: f` and `setup.py`") == {"no/where.py", "setup.py"}


def test_five_lines_give_their_output() -> None:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(_block("## Five lines of Python", "python"), "README.md", "exec"), {})
    shown = [line.split() for line in _block("## Five lines of Python", "text").splitlines()]
    given = [line.split() for line in said.getvalue().splitlines()]
    assert given[0] == shown[0]
    for ours, readme in zip(given[1:], shown[1:], strict=True):
        if not readme[0].isdigit():  # what was found, in words
            assert [re.sub(r"[\d.]+", "", word) for word in ours] == [re.sub(r"[\d.]+", "", word) for word in readme]
            continue
        assert [float(x) for x in ours] == pytest.approx([float(x) for x in readme], abs=0.0015)


def test_every_study_has_claims_settings_and_needs() -> None:
    for study in runner.found():
        assert study.claims, study.name
        assert {"quick", "paper"} <= set(study.settings), study.name
        assert study.title and study.caption, study.name


def test_the_reference_has_every_public_name() -> None:
    page = (ROOT / "docs" / "reference.md").read_text("utf-8")
    named = set(re.findall(r"^::: anisoscope\.[\w.]+\.(\w+)$", page, re.MULTILINE))
    keywords = {"Measuring", "Looking"}
    assert named - keywords == set(anisoscope.__all__) - {"__version__"}


def test_tests_that_a_page_names_are_there() -> None:
    """A kind of mistake that no test sees any more would still stand on the page as seen."""
    for row in (ROOT / "docs" / "reliability.md").read_text("utf-8").splitlines():
        files = ""
        for named in re.findall(r"`([\w.]+: )?(test_\w+)`", row):
            files = named[0].removesuffix(": ") or files
            folder = next((f for f in (ROOT / "tests", ROOT / "papers" / "tests") if (f / files).is_file()), None)
            assert not files or (folder and f"def {named[1]}(" in (folder / files).read_text("utf-8")), named
