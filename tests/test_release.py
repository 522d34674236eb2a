"""What a release is made of: one version everywhere, addresses filled in, links that work on the index, citations."""

import json
import shutil
import tomllib
from pathlib import Path

import pytest
import release
import release_sources as sources

import anisoscope

ROOT = Path(__file__).parents[1]
REPOSITORY = "https://forge.test/somebody/anisoscope"


def copy_of_version_files(folder):
    for name in sources.VERSION_PLACES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return folder


def test_there_is_one_version():
    assert set(sources.versions().values()) == {anisoscope.__version__}


def test_setting_the_version_changes_every_place_and_nothing_else(tmp_path):
    copy = copy_of_version_files(tmp_path)
    sources.set_version("7.8.9", copy)
    assert set(sources.versions(copy).values()) == {"7.8.9"}
    for name in sources.VERSION_PLACES:
        before, after = ((root / name).read_text("utf-8").splitlines() for root in (ROOT, copy))
        changed = [new for old, new in zip(before, after, strict=True) if old != new]
        assert len(changed) == 1 and "7.8.9" in changed[0], name


def test_a_version_that_is_none_is_refused(tmp_path, capsys):
    with pytest.raises(ValueError, match=r"expected a version as 0\.2\.0, got 'next'"):
        sources.set_version("next", copy_of_version_files(tmp_path))
    assert release.main(["--set-version", "next"]) == 1
    assert "expected a version" in capsys.readouterr().err


def test_a_tag_of_another_version_and_a_version_that_differs_are_refused(monkeypatch, capsys):
    monkeypatch.setenv("GITHUB_REF_NAME", "v99.0.0")
    assert release.main(["--build-only", "--repository", REPOSITORY]) == 1
    assert "got v99.0.0" in capsys.readouterr().err
    monkeypatch.setattr(release, "versions", lambda: {"one": "1.0.0", "another": "1.0.1"})
    assert release.main(["--build-only", "--repository", REPOSITORY]) == 1
    assert "one version everywhere" in capsys.readouterr().err


@pytest.mark.parametrize("address", ["", "github.com/a/b", "http://github.com/a/b", "https://github.com"])
def test_an_address_that_is_no_repository_is_refused(address):
    with pytest.raises(ValueError, match="expected a public repository"):
        sources.check_repository(address)


def test_copies_have_addresses_and_readmes_that_work_anywhere(tmp_path):
    folders = sources.copy_sources(tmp_path, REPOSITORY)
    for distribution in sources.DISTRIBUTIONS:
        folder = folders[distribution.name]
        project = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]
        assert project["urls"]["Issues"] == f"{REPOSITORY}/issues"
        assert (folder / "LICENSE").read_text("utf-8") == (ROOT / "LICENSE").read_text("utf-8")
        readme = (folder / "README.md").read_text("utf-8")
        assert f"]({REPOSITORY}/blob/v{anisoscope.__version__}/" in readme
        for found in sources.PLACES.finditer(readme):
            assert found["code"] or sources.ANYWHERE.match(found["target"] or found["value"]), found[0]


def test_links_become_absolute_but_for_code_and_what_already_is(tmp_path):
    (tmp_path / "docs").mkdir()
    for name in ("a.md", "p.png", "docs/b.md"):
        (tmp_path / name).touch()

    def absolute(text, folder=""):
        return sources.absolute_links(text, folder, REPOSITORY, "v1", tmp_path)

    assert absolute("[`a`](a.md#x)") == f"[`a`]({REPOSITORY}/blob/v1/a.md#x)"
    assert absolute("[docs](docs)") == f"[docs]({REPOSITORY}/tree/v1/docs)"
    assert absolute("![p](p.png)") == f"![p]({REPOSITORY}/raw/v1/p.png)"
    badge = f"[![p]({REPOSITORY}/raw/v1/p.png)]({REPOSITORY}/blob/v1/a.md)"
    assert absolute("[![p](p.png)](a.md)") == badge
    assert absolute('<img src="p.png">') == f'<img src="{REPOSITORY}/raw/v1/p.png">'
    assert absolute("[up](../a.md)", "docs") == f"[up]({REPOSITORY}/blob/v1/a.md)"
    for same in ("[x](https://x.test)", "[x](#here)", "`[x](gone.md)`", "```\n[x](gone.md)\n```", "    [x](gone.md)"):
        assert absolute(same) == same
    with pytest.raises(ValueError, match=r"links to gone\.md, which is not there"):
        absolute("[x](gone.md)")
    assert sources.relative_addresses('<a href="#x"></a><a href="https://x"></a><img src="p.png">') == ["p.png"]


def test_what_is_cited_is_the_same_everywhere():
    citation = (ROOT / "CITATION.cff").read_text("utf-8")
    described = json.loads((ROOT / "codemeta.json").read_text("utf-8"))
    papers = described["referencePublication"]
    assert len(papers) == 2
    for paper in papers:
        assert paper["name"] in citation and paper["url"] in citation
    parts = {part["name"] for part in described["hasPart"]}
    assert parts == {distribution.name for distribution in sources.DISTRIBUTIONS}
