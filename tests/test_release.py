"""What a release is made of: one version everywhere, addresses filled in, links that work on the index, citations."""

import hashlib
import json
import shutil
import tomllib
from pathlib import Path

import pytest
import release
import release_sources as sources
from conda_recipe import write_recipes
from packaging.requirements import Requirement

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
        before, after = (
            (root / name).read_text("utf-8").splitlines() for root in (ROOT, copy)
        )
        changed = [new for old, new in zip(before, after, strict=True) if old != new]
        assert len(changed) == 1 and "7.8.9" in changed[0], name


def test_a_version_that_is_none_is_refused(tmp_path, capsys):
    with pytest.raises(ValueError, match=r"expected a version as 0\.2\.0, got 'next'"):
        sources.set_version("next", copy_of_version_files(tmp_path))
    assert release.main(["--set-version", "next"]) == 1
    assert "expected a version" in capsys.readouterr().err


def test_a_tag_of_another_version_and_a_version_that_differs_are_refused(
    monkeypatch, capsys
):
    monkeypatch.setenv("GITHUB_REF_NAME", "v99.0.0")
    assert release.main(["--build-only", "--repository", REPOSITORY]) == 1
    assert "got v99.0.0" in capsys.readouterr().err
    monkeypatch.setattr(
        release, "versions", lambda: {"one": "1.0.0", "another": "1.0.1"}
    )
    assert release.main(["--build-only", "--repository", REPOSITORY]) == 1
    assert "one version everywhere" in capsys.readouterr().err


@pytest.mark.parametrize(
    "address", ["", "github.com/a/b", "http://github.com/a/b", "https://github.com"]
)
def test_an_address_that_is_no_repository_is_refused(address):
    with pytest.raises(ValueError, match="expected a public repository"):
        sources.check_repository(address)


def test_copies_have_addresses_and_readmes_that_work_anywhere(tmp_path):
    folders = sources.copy_sources(tmp_path, REPOSITORY)
    for distribution in sources.DISTRIBUTIONS:
        folder = folders[distribution.name]
        project = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))[
            "project"
        ]
        assert project["urls"]["Issues"] == f"{REPOSITORY}/issues"
        assert (folder / "LICENSE").read_text("utf-8") == (ROOT / "LICENSE").read_text(
            "utf-8"
        )
        readme = (folder / "README.md").read_text("utf-8")
        assert f"]({REPOSITORY}/blob/v{anisoscope.__version__}/" in readme
        for found in sources.PLACES.finditer(readme):
            assert found["code"] or sources.ANYWHERE.match(
                found["target"] or found["value"]
            ), found[0]


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
    for same in (
        "[x](https://x.test)",
        "[x](#here)",
        "`[x](gone.md)`",
        "```\n[x](gone.md)\n```",
        "    [x](gone.md)",
    ):
        assert absolute(same) == same
    with pytest.raises(ValueError, match=r"links to gone\.md, which is not there"):
        absolute("[x](gone.md)")
    assert sources.relative_addresses(
        '<a href="#x"></a><a href="https://x"></a><img src="p.png">'
    ) == ["p.png"]


def test_what_is_cited_is_the_same_everywhere():
    citation = (ROOT / "CITATION.cff").read_text("utf-8")
    described = json.loads((ROOT / "codemeta.json").read_text("utf-8"))
    papers = described["referencePublication"]
    assert len(papers) == 2
    for paper in papers:
        assert paper["name"] in citation and paper["url"] in citation
    parts = {part["name"] for part in described["hasPart"]}
    assert parts == {distribution.name for distribution in sources.DISTRIBUTIONS}


def test_notebooks_open_in_colab_if_the_repository_is_on_github(tmp_path):
    (tmp_path / "n.ipynb").touch()
    link = sources.absolute_links(
        "[n](n.ipynb)", "", "https://github.com/somebody/anisoscope", "v1", tmp_path
    )
    assert (
        link
        == "[n](https://colab.research.google.com/github/somebody/anisoscope/blob/v1/n.ipynb)"
    )
    elsewhere = sources.absolute_links("[n](n.ipynb)", "", REPOSITORY, "v1", tmp_path)
    assert elsewhere == f"[n]({REPOSITORY}/blob/v1/n.ipynb)"


def test_recipes_for_conda_name_what_the_projects_need_and_the_hash_of_what_was_built(
    tmp_path,
):
    for distribution in sources.DISTRIBUTIONS:
        archive = tmp_path / f"{distribution.package}-{anisoscope.__version__}.tar.gz"
        archive.write_bytes(distribution.name.encode())
    tool, papers = (
        json.loads(path.read_text("utf-8"))
        for path in write_recipes(tmp_path, REPOSITORY)
    )
    assert tool["source"]["sha256"] == hashlib.sha256(b"anisoscope").hexdigest()
    assert tool["source"]["url"].endswith(
        "/a/anisoscope/anisoscope-${{ version }}.tar.gz"
    )
    needs = {line.split(" ")[0] for line in tool["requirements"]["run"]}
    assert {"python", "pytorch", "numpy", "cyclopts"} <= needs and not {
        "torch",
        "transformers",
    } & needs
    assert any(
        line.startswith("transformers >=")
        for line in tool["requirements"]["run_constraints"]
    )
    of_papers = papers["requirements"]["run"]
    assert f"anisoscope =={anisoscope.__version__}" in of_papers and any(
        "transformers" in line for line in of_papers
    )


def test_uv_takes_the_versions_that_pip_takes():
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    known = [line for line in lines if line and not line.startswith("#")]
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["uv"]
    assert settings["constraint-dependencies"] == known
    locked = tomllib.loads((ROOT / "uv.lock").read_text("utf-8"))["package"]
    versions = {
        package["name"]: package["version"]
        for package in locked
        if "version" in package
    }
    for line in known:
        name, _, version = line.partition("==")
        name = name.lower().replace("_", "-")
        assert versions.get(name, version) == version, (
            f"{name}: uv lock writes it again"
        )
    names = {Requirement(text).name.lower().replace("_", "-") for text in all_needs()}
    assert names <= set(versions) | {"anisoscope", "anisoscope-papers"}, (
        "uv lock writes it again"
    )


def all_needs():
    """What both distributions need, extras and groups included."""
    for folder in ("", "papers"):
        read = tomllib.loads((ROOT / folder / "pyproject.toml").read_text("utf-8"))
        yield from read["project"]["dependencies"]
        for needs in read["project"].get("optional-dependencies", {}).values():
            yield from needs
