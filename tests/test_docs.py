"""The documentation keeps up with the code: the tree is the disk, the example gives its output, everything is named."""

import contextlib
import io
import re
import subprocess
from pathlib import Path

import documentation
import pytest

import anisoscope
from anisoscope.registry import list_entries_of

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")


def _block(after: str, language: str) -> str:
    found = re.search(
        rf"{re.escape(after)}.*?```{language}\n(.*?)```", README, re.DOTALL
    )
    assert found, f"no {language} block after {after!r}"
    return found[1]


def test_the_tree_is_the_disk() -> None:
    assert _block("## The tree", "text") == f"{documentation.tree()}\n", (
        "make docs writes it"
    )
    assert not [name for name in documentation.TREE if not (ROOT / name).is_dir()]
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split()
    folders = {name.split("/")[0] for name in tracked if "/" in name and name[0] != "."}
    shown = {name.split("/")[0] for name in documentation.TREE}
    assert folders in (shown, set()), "no git: nothing to compare with"


@pytest.mark.parametrize("name", documentation.PAGES)
def test_a_generated_page_is_what_its_generator_writes(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changed code, or a page changed by hand, shows here; `make docs` writes them."""
    if name == "scaling.md":
        pytest.importorskip(
            "triton", reason="Triton, whose launches are counted, is not installed"
        )
    if name == "cli.md" and not list_entries_of("listings"):
        pytest.skip("the papers are not installed, whose commands are on the page")
    written = (ROOT / "docs" / name).read_text("utf-8")
    if name == "inputs.md":  # test_inputs.py runs its lines, and compares the results
        results = {row.partition(" | ")[0]: row for row in written.splitlines()}
        monkeypatch.setattr(
            documentation,
            "row_of_kind",
            lambda kind, _names: results[f"| {kind.what}"],
        )
    assert written == documentation.page(name), "make docs writes it"


PAGES_OF_SITE = sorted(
    path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")
)


def links_off_the_site(page: Path, text: str) -> list[str]:
    """Relative links of a page in docs/ to what the site has not: files elsewhere, or none."""
    bare = re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.DOTALL)
    targets = [
        target.partition("#")[0]
        for target in re.findall(r"\]\(([^)\s]+)\)", bare)
        if "://" not in target
    ]
    files = [(target, (page.parent / target).resolve()) for target in targets if target]
    return [
        target
        for target, file in files
        if not (file.is_file() and file.is_relative_to(ROOT / "docs"))
    ]


@pytest.mark.parametrize("name", PAGES_OF_SITE)
def test_links_of_a_page_are_pages_of_the_site(name: str) -> None:
    """The site is built of docs/ alone, strictly: a link to an example ends the build."""
    page = ROOT / "docs" / name
    assert not links_off_the_site(page, page.read_text("utf-8"))
    assert links_off_the_site(
        page, "[x](../examples/x.py) `[y](z)` [z](https://a.b/c)"
    ) == ["../examples/x.py"]


def test_five_lines_give_their_output() -> None:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(
            compile(_block("## Five lines of Python", "python"), "README.md", "exec"),
            {},
        )
    shown = [
        line.split() for line in _block("## Five lines of Python", "text").splitlines()
    ]
    given = [line.split() for line in said.getvalue().splitlines()]
    assert given[0] == shown[0]
    for ours, readme in zip(given[1:], shown[1:], strict=True):
        if any(word.isalpha() for word in readme):  # what was found, in words
            assert [re.sub(r"[\d.]+", "", word) for word in ours] == [
                re.sub(r"[\d.]+", "", word) for word in readme
            ]
            continue
        assert [float(x) for x in ours] == pytest.approx(
            [float(x) for x in readme], abs=0.0015
        )


def test_the_reference_has_every_public_name() -> None:
    page = (ROOT / "docs" / "reference.md").read_text("utf-8")
    named = set(re.findall(r"^::: anisoscope\.[\w.]+\.(\w+)$", page, re.MULTILINE))
    keywords = {"Measuring", "Looking"}
    assert named - keywords == set(anisoscope.__all__) - {"__version__"}
