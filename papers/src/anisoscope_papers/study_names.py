"""Know the names of papers, studies and settings, and refuse wrong ones before the studies are imported (seconds)."""

import re
import tomllib
from importlib import import_module
from pathlib import Path
from types import ModuleType

from anisoscope.errors import UsageError, suggest_names
from anisoscope.registry import list_added

HERE = Path(__file__).parent
FIRST = ("godey2024", "fosse2023", "beyond")
"""The papers that are listed first, and what we ask beyond them."""
PUBLISHED = "published.toml"
"""What makes a folder a paper: titles, claims and settings of its studies."""


def find_packages() -> dict[str, ModuleType]:
    """Return the packages of studies by paper: ours first, then plug-ins (entry point `anisoscope.studies`)."""
    # A folder is found by its file: nobody has to register it. Importing a package does
    # not import its studies.
    ours = [path.parent.name for path in sorted(HERE.glob(f"*/{PUBLISHED}"))]
    found = {}
    for name in sorted(ours, key=_rank):
        found[name] = import_module(f"{__package__}.{name}")
    for name, package in list_added("studies").items():
        # A plug-in cannot replace a paper of ours by its name.
        found.setdefault(name, package)
    return found


def _rank(paper: str) -> tuple[int, str]:
    """Return (position, name), the sort key of a paper: those in `FIRST` in that order, others after them by name."""
    return (FIRST.index(paper) if paper in FIRST else len(FIRST), paper)


def find_folder(paper: str) -> Path:
    """Return the folder of a paper's studies. UsageError for an unknown paper."""
    known = find_packages()
    if paper not in known:
        raise UsageError("a paper", repr(paper), suggest_names(paper, known))
    return Path(str(known[paper].__file__)).parent


PAPERS = tuple(find_packages())
"""Names of the papers, when the program starts."""


def check(paper: str, only: str, settings: str) -> None:
    """Raise UsageError if there is no such paper, or it has no study that `only` names (as in `fig1,fig3-5`), or no
    settings of this name.
    """
    find_folder(paper)
    choose_names(paper, only)
    named: set[str] = set()
    # It is enough if one study has these settings (`masked` is of `origins` alone); the
    # runner refuses a study that lacks them.
    for known, _, _, of_study in list_studies():
        if known == paper:
            named.update(of_study)
    if settings not in named:
        cure = f"{suggest_names(settings, named)} (anisoscope list studies names those of each)"
        raise UsageError(f"settings of {paper}", repr(settings), cure)


def choose_names(paper: str, only: str = "") -> list[str]:
    """Return the names of the studies that `only` asks for, as in `fig1,fig3-5,table2`; all if it is empty.

    `fig3` also selects fig3a, fig3b …. UsageError for a name that fits no study.
    """
    studies = [name for known, name, *_ in list_studies() if known == paper]
    if not only:
        return studies
    parts = [part.strip() for part in only.split(",") if part.strip()]
    # Commas alone name nothing, and must not mean all.
    if not parts:
        raise UsageError(
            f"figures or tables of {paper} for --only",
            repr(only),
            "leave --only out for all",
        )
    chosen: dict[str, None] = {}  # in order, each once
    for part in parts:
        named = _expand_name(part, studies)
        if not named:
            raise UsageError(
                f"figures or tables of {paper}",
                repr(part),
                suggest_names(part, studies),
            )
        chosen |= dict.fromkeys(named)
    return list(chosen)


def _expand_name(part: str, studies: list[str]) -> list[str]:
    """Return the studies that one name (`fig3`, `fig3a`) or range of names (`fig3-5`, `fig3-fig5`) stands for.

    studies   names of all studies of the paper
    """
    if part in studies:
        return [part]
    wanted = [part]
    # Both ends are of one kind: `fig3-table5` is no range.
    span = re.fullmatch(r"([a-z]+)(\d+)-(?:\1)?(\d+)", part)
    if span:
        kind, first, last = span.groups()
        wanted = [f"{kind}{number}" for number in range(int(first), int(last) + 1)]
    found = []
    for name in studies:
        # A figure with parts is named by its number alone.
        whole = re.sub(r"(?<=\d)[a-z]$", "", name)
        if whole in wanted:
            found.append(name)
    return found


def list_studies() -> list[tuple[str, str, str, list[str]]]:
    """List (paper, name, title, names of settings) of every study, from its published.toml, in the order of the
    papers.
    """
    found = []
    for paper in find_packages():
        entries = tomllib.loads((find_folder(paper) / PUBLISHED).read_text("utf-8"))
        # A paper's settings hold for its studies, unless one names its own.
        usual = entries.get("settings", ["quick", "paper"])
        for name in sorted(entries, key=number_of):
            entry = entries[name]
            # Other tables of the file hold claims that several figures share.
            if not isinstance(entry, dict) or "title" not in entry:
                continue
            found.append((paper, name, entry["title"], entry.get("settings", usual)))
    return found


def number_of(name: str) -> tuple[str, int, str]:
    """Return (kind, number, rest), the sort key of a study's name: fig2 comes before fig10."""
    match = re.fullmatch(r"([a-z]+)(\d*)(.*)", name)
    if match:
        return (match[1], int(match[2] or 0), match[3])
    return (name, 0, "")
