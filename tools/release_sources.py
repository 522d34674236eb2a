"""Sources of a release: both distributions copied, with project addresses filled in and links of READMEs absolute.

The checkout knows no address: who releases names the public repository once (`--repository`, or the variable
REPOSITORY), and everything else is made of it. The version stands in `src/anisoscope/__init__.py`; all other places
are written from there, and a test compares them.
"""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parents[1]
VERSION_FILE = "src/anisoscope/__init__.py"
VERSION_PLACES = {
    VERSION_FILE: r'^(__version__ = ")([^"]+)(")',
    "papers/src/anisoscope_papers/__init__.py": r'^(__version__ = ")([^"]+)(")',
    "papers/pyproject.toml": r'^(  "anisoscope\[[a-z,]+\]==)([^"]+)(")',
    "codemeta.json": r'^(  "version": ")([^"]+)(")',
    "CITATION.cff": r"^(version: )(.+)()$",
}
"""Files that name the version, and the line of each."""
GITHUB = "https://github.com/"
COLAB = "https://colab.research.google.com/github"
ANYWHERE = re.compile(r"^(?:https?:|mailto:|#)")
PLACES = re.compile(
    r"(?P<code>^```.*?^```|^ {4}[^\n]*$|`[^`\n]+`)"
    r"|(?P<mark>!?)\[(?P<label>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^)\s]+)\)"
    r'|\b(?P<attribute>src|href|srcset)="(?P<value>[^"]+)"',
    re.DOTALL | re.MULTILINE,
)
"""Code of a README, in which nothing is replaced, and its addresses: [label](target), ![label](target), src="value"."""


@dataclass(frozen=True)
class Distribution:
    """What one of the two distributions is called, and where in the checkout it is."""

    name: str
    folder: str
    package: str
    copied: tuple[str, ...]


TOOL = Distribution(
    "anisoscope",
    "",
    "anisoscope",
    (
        "src",
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "CITATION.cff",
        "MANIFEST.in",
    ),
)
PAPERS = Distribution(
    "anisoscope-papers",
    "papers",
    "anisoscope_papers",
    ("src", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "MANIFEST.in"),
)
DISTRIBUTIONS = (TOOL, PAPERS)


def read_version(root: Path = ROOT) -> str:
    """The version of the next release."""
    return versions(root)[VERSION_FILE]


def versions(root: Path = ROOT) -> dict[str, str]:
    """The version that each file names. ValueError if one names none."""
    found = {}
    for name, pattern in VERSION_PLACES.items():
        match = re.search(pattern, (root / name).read_text("utf-8"), re.MULTILINE)
        if match is None:
            raise ValueError(f"{name} names no version (pattern {pattern})")
        found[name] = match[2]
    return found


def set_version(version: str, root: Path = ROOT) -> None:
    """Write a version into every file that names it. ValueError if it is none."""
    from packaging.version import InvalidVersion, Version

    try:
        Version(version)
    except InvalidVersion as error:
        raise ValueError(f"expected a version as 0.2.0, got {version!r}") from error
    versions(root)
    for name, pattern in VERSION_PLACES.items():
        path = root / name
        text = re.sub(
            pattern,
            rf"\g<1>{version}\g<3>",
            path.read_text("utf-8"),
            count=1,
            flags=re.MULTILINE,
        )
        path.write_text(text, encoding="utf-8")


def check_repository(address: str) -> str:
    """The address of a public repository without a slash at its end. ValueError if it is none."""
    parts = urlsplit(address)
    if parts.scheme != "https" or not parts.netloc or not parts.path.strip("/"):
        raise ValueError(
            f"expected a public repository as https://github.com/OWNER/anisoscope, got {address!r}"
        )
    return address.rstrip("/").removesuffix(".git")


def project_urls(repository: str, site: str = "") -> dict[str, str]:
    """What the index shows beside a distribution."""
    return {
        "Homepage": site or repository,
        "Documentation": site or f"{repository}/tree/main/docs",
        "Repository": repository,
        "Issues": f"{repository}/issues",
        "Changelog": f"{repository}/blob/main/CHANGELOG.md",
    }


def copy_sources(
    place: Path, repository: str, site: str = "", root: Path = ROOT
) -> dict[str, Path]:
    """Copy both distributions below `place`, ready to be built; the folder of each, by name."""
    tag = f"v{read_version(root)}"
    folders = {}
    for distribution in DISTRIBUTIONS:
        source, target = root / distribution.folder, place / distribution.name
        target.mkdir(parents=True)
        for name in distribution.copied:
            if (source / name).is_dir():
                left_out = shutil.ignore_patterns("*.egg-info", "__pycache__")
                shutil.copytree(source / name, target / name, ignore=left_out)
            else:
                shutil.copy(source / name, target / name)
        _fill_in_urls(target / "pyproject.toml", project_urls(repository, site))
        readme = target / "README.md"
        text = absolute_links(
            readme.read_text("utf-8"), distribution.folder, repository, tag, root
        )
        readme.write_text(text, encoding="utf-8")
        folders[distribution.name] = target
    return folders


def _fill_in_urls(path: Path, urls: dict[str, str]) -> None:
    text = path.read_text("utf-8")
    if "[project.urls]" in text:
        raise ValueError(
            f"{path} has [project.urls] of its own: they are filled in at release"
        )
    lines = "".join(
        f"{name} = {json.dumps(address)}\n" for name, address in urls.items()
    )
    path.write_text(f"{text.rstrip()}\n\n[project.urls]\n{lines}", encoding="utf-8")


def absolute_links(
    text: str, folder: str, repository: str, tag: str, root: Path = ROOT
) -> str:
    """A README of `folder` whose links and pictures work anywhere: files of the repository at a tag. A notebook opens
    in Colab, if the repository is one that Colab reads.

    ValueError for a link to a file that is not there.
    """

    def address(target: str, *, picture: bool) -> str:
        path, mark, anchor = target.partition("#")
        file = (root / folder / path).resolve()
        if not file.exists():
            raise ValueError(
                f"README of {folder or 'the tool'} links to {target}, which is not there"
            )
        inside = file.relative_to(root.resolve()).as_posix()
        if file.suffix == ".ipynb" and repository.startswith(GITHUB):
            return f"{COLAB}/{repository.removeprefix(GITHUB)}/blob/{tag}/{inside}"
        kind = "raw" if picture else "tree" if file.is_dir() else "blob"
        return f"{repository}/{kind}/{tag}/{inside}{mark}{anchor}"

    return _replace_addresses(text, address)


def _replace_addresses(text: str, address: Callable[..., str]) -> str:
    """Replace relative addresses of Markdown links and HTML attributes, outside code."""

    def resolve(target: str, *, picture: bool) -> str:
        return target if ANYWHERE.match(target) else address(target, picture=picture)

    def replace(match: re.Match[str]) -> str:
        if match["code"]:
            return match[0]
        if match["attribute"]:
            shown = match["attribute"] != "href"
            return f'{match["attribute"]}="{resolve(match["value"], picture=shown)}"'
        label = PLACES.sub(
            replace, match["label"]
        )  # a badge is a picture inside a link
        return f"{match['mark']}[{label}]({resolve(match['target'], picture=match['mark'] == '!')})"

    return PLACES.sub(replace, text)


def relative_addresses(html: str) -> list[str]:
    """Addresses of a rendered page that work in the repository alone."""
    found = re.findall(r'\b(?:src|href)="([^"]+)"', html)
    return [address for address in found if not ANYWHERE.match(address)]
