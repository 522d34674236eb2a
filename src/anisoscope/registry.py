"""Doors for other packages: what they add to the program, found by entry point.

A package names what it adds in its `pyproject.toml`, and nothing else has to be done:

    [project.entry-points."anisoscope.corpora"]
    mine = "my_package.corpora:CORPORA"

`entries("corpora")` then gives what stands there. An entry is one thing, known by the entry's name, or a dictionary of
several, known by their keys. Modules that entries name must be light: they are imported as soon as their group is asked
for (`commands` when the program starts). An entry that cannot be imported is left out, and a warning names it.
"""

import warnings
from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

GROUPS = {
    "commands": "`cli.command.Command`s and `Group`s of them: commands of the program",
    "corpora": "`data.corpora.NamedCorpus`: corpora with names of their own",
    "families": "`models.families.Family`: what cannot be read from models of a family, by its `model_type`",
    "listings": "functions that give (name, one line) of everything that `anisoscope list NAME` shows",
    "metrics": "`metrics.base.Metric`",
    "models": "`models.named.NamedModel`s, of a hub, and `PackagedModel`s, of an installed package",
    "pages": "functions (folder → path of the page, or None for a folder of another kind) for `anisoscope report`",
    "studies": "packages of studies; who reads them is anisoscope-papers",
}
"""The groups of entry points (each `anisoscope.NAME`), and what their entries are."""


class ExtensionWarning(UserWarning):
    """Something that another package adds cannot be used."""


def entries(group: str) -> dict[str, Any]:
    """Everything that installed packages add to one of `GROUPS`, by name. Two of one name: the first one stays."""
    found: dict[str, Any] = {}
    for point in _entry_points(group):
        for name, entry in _load(point).items():
            found.setdefault(name, entry)
    return found


@cache
def _entry_points(group: str) -> tuple[EntryPoint, ...]:
    """The entry points of a group, each once, in the order of their names."""
    if group not in GROUPS:
        raise ValueError(f"expected a group among {', '.join(GROUPS)}; got {group!r}")
    installed = {(point.name, point.value): point for point in entry_points(group=f"anisoscope.{group}")}
    return tuple(installed[key] for key in sorted(installed))


@cache
def _load(point: EntryPoint) -> Mapping[str, Any]:
    """What an entry point names, by name; nothing if it cannot be imported."""
    try:
        entry = point.load()
    except Exception as error:  # whatever a foreign module raises must not keep the program from starting
        package = point.dist.name if point.dist is not None else point.module
        warnings.warn(
            f"{package} adds {point.name!r} to {point.group}, which cannot be loaded and is left out "
            f"({type(error).__name__}: {error}). Cure: pip install --upgrade {package}, or uninstall it",
            ExtensionWarning,
            stacklevel=4,
        )
        return {}
    return entry if isinstance(entry, Mapping) else {point.name: entry}
