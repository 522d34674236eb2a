"""Recipes of both distributions for conda-forge: `make release` writes dist/conda/NAME/recipe.yaml and renders each.

Dependencies come from pyproject.toml and the hash from the source archive that was built, so a recipe cannot differ
from what is published. The first feedstock of each is made from it by hand; later versions its bot proposes.
"""

import hashlib
import json
import subprocess
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from release_sources import PAPERS, ROOT, TOOL, Distribution, project_urls, read_version

CONDA_NAMES = {"torch": "pytorch", "soundfile": "pysoundfile"}
"""Packages that conda-forge knows by another name."""
RENDER = """\
import sys
from rattler_build import Stage0Recipe

for path in sys.argv[1:]:
    (variant,) = Stage0Recipe.from_file(path).render()
    print(variant.recipe.package.name, variant.recipe.package.version)
"""
INDEX = "https://pypi.org/packages/source"


def read_project(distribution: Distribution, root: Path = ROOT) -> dict[str, Any]:
    """The table [project] of a distribution."""
    text = (root / distribution.folder / "pyproject.toml").read_text("utf-8")
    project: dict[str, Any] = tomllib.loads(text)["project"]
    return project


def expand(needs: Iterable[str], project: dict[str, Any]) -> list[str]:
    """What is needed in conda's words; an extra of the project itself stands for what it names."""
    lines: list[str] = []
    for text in needs:
        requirement = Requirement(text)
        if requirement.name == project["name"] and requirement.extras:
            named = [
                needed
                for extra in sorted(requirement.extras)
                for needed in optional(project, extra)
            ]
            lines += expand(named, project)
        else:
            name = CONDA_NAMES.get(requirement.name, requirement.name.lower())
            lines.append(f"{name} {requirement.specifier}".strip())
    return list(dict.fromkeys(lines))


def optional(project: dict[str, Any], extra: str) -> list[str]:
    """What an extra needs."""
    needs: list[str] = project["optional-dependencies"][extra]
    return needs


def needs_of_papers(root: Path = ROOT) -> list[str]:
    """What the papers need to run: the tool of the same version, and what its extras stand for."""
    tool = read_project(TOOL, root)
    lines = []
    for text in read_project(PAPERS, root)["dependencies"]:
        requirement = Requirement(text)
        if requirement.name == tool["name"]:
            lines.append(f"{tool['name']} {requirement.specifier}")
            extras = ",".join(sorted(requirement.extras))
            lines += expand([f"{tool['name']}[{extras}]"] if extras else [], tool)
        else:
            lines += expand([text], tool)
    return lines


def make_recipe(
    distribution: Distribution, archive: Path, repository: str, root: Path = ROOT
) -> dict[str, Any]:
    """The recipe of a distribution, version 1 of conda's schema, for its source archive."""
    project = read_project(distribution, root)
    name = project["name"]
    # What an extra needs is not installed, but must not be older than we need.
    constraints = []
    if distribution == TOOL:
        needs = expand(project["dependencies"], project)
        constraints = [
            line for line in expand(optional(project, "all"), project) if " " in line
        ]
    else:
        needs = needs_of_papers(root)
    python = project["requires-python"].removeprefix(">=")
    return {
        "schema_version": 1,
        "context": {"version": read_version(root), "python_min": python},
        "package": {"name": name, "version": "${{ version }}"},
        "source": {
            "url": f"{INDEX}/{name[0]}/{name}/{archive.name.replace(read_version(root), '${{ version }}')}",
            "sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
        },
        "build": {
            "number": 0,
            "noarch": "python",
            "script": "${{ PYTHON }} -m pip install . -vv --no-deps",
        },
        "requirements": {
            "host": ["python ${{ python_min }}.*", "setuptools >=77", "pip"],
            "run": ["python >=${{ python_min }}", *needs],
            "run_constraints": constraints,
        },
        "tests": [{"python": {"imports": [distribution.package], "pip_check": False}}],
        "about": {
            "homepage": project_urls(repository)["Homepage"],
            "repository": project_urls(repository)["Repository"],
            "summary": project["description"],
            "license": project["license"],
            "license_file": "LICENSE",
        },
    }


def write_recipes(dist: Path, repository: str) -> list[Path]:
    """A recipe for each source archive in `dist`; their paths."""
    paths = []
    for distribution in (TOOL, PAPERS):
        (archive,) = dist.glob(f"{distribution.package}-{read_version()}.tar.gz")
        path = dist / "conda" / distribution.name / "recipe.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        # JSON is YAML, and needs no library.
        path.write_text(
            json.dumps(make_recipe(distribution, archive, repository), indent=2) + "\n",
            "utf-8",
        )
        paths.append(path)
    return paths


def render_recipes(python: Path, paths: list[Path]) -> str:
    """What conda's own builder makes of the recipes, by a Python that has it. CalledProcessError if it refuses one."""
    command: list[str | Path] = [python, "-c", RENDER, *paths]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
