"""The documentation keeps up with the code: the tree is the disk, the example gives its output, everything is named."""

import contextlib
import io
import re
import subprocess
from pathlib import Path

import documentation
import pytest

import anisoscope

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")


def _block(after: str, language: str) -> str:
    found = re.search(rf"{re.escape(after)}.*?```{language}\n(.*?)```", README, re.DOTALL)
    assert found, f"no {language} block after {after!r}"
    return found[1]


def test_the_tree_is_the_disk() -> None:
    assert _block("## The tree", "text") == f"{documentation.tree()}\n", "make docs writes it"
    assert not [name for name in documentation.TREE if not (ROOT / name).is_dir()]
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    folders = {name.split("/")[0] for name in tracked if "/" in name and name[0] != "."}
    shown = {name.split("/")[0] for name in documentation.TREE}
    assert folders in (shown, set()), "no git: nothing to compare with"


@pytest.mark.parametrize("name", documentation.PAGES)
def test_a_generated_page_is_what_its_generator_writes(name: str) -> None:
    """Changed code, or a page changed by hand, shows here; `make docs` writes them."""
    assert (ROOT / "docs" / name).read_text("utf-8") == documentation.page(name), "make docs writes it"


def test_five_lines_give_their_output() -> None:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(_block("## Five lines of Python", "python"), "README.md", "exec"), {})
    shown = [line.split() for line in _block("## Five lines of Python", "text").splitlines()]
    given = [line.split() for line in said.getvalue().splitlines()]
    assert given[0] == shown[0]
    for ours, readme in zip(given[1:], shown[1:], strict=True):
        if any(word.isalpha() for word in readme):  # what was found, in words
            assert [re.sub(r"[\d.]+", "", word) for word in ours] == [re.sub(r"[\d.]+", "", word) for word in readme]
            continue
        assert [float(x) for x in ours] == pytest.approx([float(x) for x in readme], abs=0.0015)


def test_the_reference_has_every_public_name() -> None:
    page = (ROOT / "docs" / "reference.md").read_text("utf-8")
    named = set(re.findall(r"^::: anisoscope\.[\w.]+\.(\w+)$", page, re.MULTILINE))
    keywords = {"Measuring", "Looking"}
    assert named - keywords == set(anisoscope.__all__) - {"__version__"}
