"""Extension points: what other packages, scripts and notebooks can add to the program, by the same way as our own
parts. Our own things come in by them too.

A package names what it adds in its `pyproject.toml`, and nothing else has to be done:

    [project.entry-points."anisoscope.metrics"]
    my_metric = "my_package.my_metric:METRIC"

A script or a notebook calls `anisoscope.register(metric)`. `entries("metrics")` then gives all of them.

An entry is one thing, known by the entry's name (a metric by its own); or a dictionary of several, known by their keys;
or a function without arguments that gives such a dictionary. Modules that entries name must be light: they are imported
as soon as their group is asked for (`commands` when the program starts). An entry that cannot be used is left out, and
a warning names it.
"""

import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from anisoscope.errors import UsageError, suggest_names


class EntryPointGroup(NamedTuple):
    """A group of entry points, `anisoscope.NAME`.

    what   what its entries are
    kinds  their classes, each `module:class`; none: functions
    own    the entry of this package; none: there is none
    """

    what: str
    kinds: tuple[str, ...] = ()
    own: str = ""


GROUPS = {
    "commands": EntryPointGroup(
        "commands of the program: `cli.command.Command`s, and `Group`s of them",
        ("anisoscope.cli.command:Command", "anisoscope.cli.command:Group"),
    ),
    "corpora": EntryPointGroup(
        "corpora with names of their own: `data.corpora.NamedCorpus`",
        ("anisoscope.data.corpora:NamedCorpus",),
        "anisoscope.data.corpora:CORPORA",
    ),
    "families": EntryPointGroup(
        "what cannot be read from models of a family, by its `model_type`: `models.families.Family`",
        ("anisoscope.models.families:Family",),
        "anisoscope.models.families:FAMILIES",
    ),
    "listings": EntryPointGroup(
        "functions that give (name, one line) of everything that `anisoscope list NAME` shows"
    ),
    "metrics": EntryPointGroup(
        "measures: `metrics.Metric`",
        ("anisoscope.metrics.base:Metric",),
        "anisoscope.metrics:scan",
    ),
    "models": EntryPointGroup(
        "models with names of their own, of a hub or in an installed package: rows of `models.named`",
        tuple(
            f"anisoscope.models.named:{name}"
            for name in ("NamedModel", "PackagedModel", "ConvertedModel")
        ),
    ),
    "pages": EntryPointGroup(
        "functions (folder → path of the page, or None for a folder of another kind) for `anisoscope report`"
    ),
    "studies": EntryPointGroup(
        "packages of studies; who reads them is anisoscope-papers", ("builtins:module",)
    ),
}
"""The groups of entry points."""
LATE = ("metrics", "corpora", "families", "models", "studies")
"""Groups that can grow while a program runs."""

_registered: dict[str, dict[str, Any]] = {group: {} for group in LATE}
"""What `register` was given, by group and name."""


class ExtensionWarning(UserWarning):
    """Warns that something another package adds cannot be used."""


def list_entries_of(group: str) -> dict[str, Any]:
    """Return {name: entry} of a group: this package's entries, those of installed packages, and registered ones.

    If an installed package uses a name that exists already, its entry is left out with a warning.

    group   name of a group of entry points, as `metrics`
    """
    return _collect_entries(group, _list_entry_points(group))


def list_added(group: str) -> dict[str, Any]:
    """Return the entries that others added to a group, by name: installed packages, or registrations of this
    process.
    """
    return _collect_entries(
        group, [point for point in _list_entry_points(group) if not _is_ours(point)]
    )


def _collect_entries(group: str, points: Iterable[EntryPoint]) -> dict[str, Any]:
    """Return {name: entry} from some entry points of a group, and from what was registered in this process.

    If two entry points add the same name, the first one counts, with a warning.
    """
    entries: dict[str, Any] = {}
    for point in points:
        for name, entry in _load_entries(point).items():
            # The same thing may come twice, as by an installation and a checkout.
            if name not in entries:
                entries[name] = entry
            elif entries[name] is not entry:
                _warn_once(
                    point,
                    f"adds {name!r} to {point.group}, which is there already: its own is not used",
                )
    # What this process registered comes last and wins: it cannot have a name of the
    # others.
    return entries | _registered.get(group, {})


def register(thing: Any, name: str | None = None) -> Any:
    """Register a metric, corpus, family, model or package of studies until the program ends.

    thing   a `Metric`, `NamedCorpus`, `Family`, `NamedModel`, `PackagedModel`, a package of studies; or a dictionary
            of them by name
    name    what it is called from now on; a metric has a name of its own

    Returns the thing. What was registered under the same name before is replaced, so that a cell of a notebook can be
    run again. UsageError for a thing of another kind, without a name, or by a name that our own or an installed
    package's has.

        >>> import anisoscope
        >>> from anisoscope.data.corpora import NamedCorpus
        >>> anisoscope.register(NamedCorpus("text", "my notes", hub="me/notes"), "notes").hub
        'me/notes'
    """
    if isinstance(thing, Mapping):
        for key, entry in thing.items():
            register(entry, str(key))
        return thing
    group = _find_group(thing)
    name = _choose_name(group, thing, name)
    # Taken out for the moment, so that the name does not clash with itself.
    before = _registered[group].pop(name, None)
    if name in list_entries_of(group):
        if before is not None:
            _registered[group][name] = before
        raise UsageError(
            f"a name that is not taken among {group}", repr(name), "choose another name"
        )
    _registered[group][name] = thing
    return thing


@contextmanager
def registered(thing: Any, name: str | None = None) -> Iterator[None]:
    """Register a thing for the length of a `with` block."""
    # Copies, since `register` changes the dictionaries in place.
    before = {group: dict(entered) for group, entered in _registered.items()}
    register(thing, name)
    try:
        yield
    finally:
        for group, entered in before.items():
            _registered[group] = entered


def is_own(group: str, name: str) -> bool:
    """Return whether the entry of this name in a group comes with this package."""
    return any(
        _is_ours(point) and name in _load_entries(point)
        for point in _list_entry_points(group)
    )


def _find_group(thing: Any) -> str:
    """Return the group of entry points (metrics, corpora, …) that a thing belongs to, by its class.

    UsageError for a thing of no group, or of one that cannot be added to while a program runs.
    """
    # By name, so that modules of classes are not imported to ask.
    classes = {f"{kind.__module__}:{kind.__qualname__}" for kind in type(thing).__mro__}
    for group, described in GROUPS.items():
        if classes.isdisjoint(described.kinds):
            continue
        if group in LATE:
            return group
        cure = f'name it in your pyproject.toml: [project.entry-points."anisoscope.{group}"]'
        raise UsageError(
            "a thing that can be added while a program runs", f"one of {group}", cure
        )
    names: list[str] = []
    for group in LATE:
        names += [kind.partition(":")[2] for kind in GROUPS[group].kinds]
    # A class itself was given where one of its objects is needed: the likeliest slip.
    came = type(thing).__name__
    if isinstance(thing, type):
        came = f"{thing!r}, a class: make an instance of it"
    raise UsageError(
        f"one of {', '.join(names)}", came, "see anisoscope.registry.GROUPS"
    )


def _choose_name(group: str, thing: Any, name: str | None) -> str:
    """Return the name under which to register a thing: the given one, else its own. UsageError if there is none.

    Metrics and packages of studies have a name of their own. UsageError for a metric if `name` differs from it.
    """
    own = None
    if group == "metrics":
        own = getattr(thing, "name", None)
    elif group == "studies" and isinstance(thing, ModuleType):
        own = thing.__name__.rpartition(".")[2]
    if name is None and own is None:
        raise UsageError(
            f"a name for one of {group}", "none", "anisoscope.register(thing, 'name')"
        )
    if group == "metrics" and name not in (None, own):
        raise UsageError(
            f"the metric's own name, {own}", repr(name), "leave the name out"
        )
    return str(own if name is None else name)


@cache
def list_packages() -> frozenset[str]:
    """Return the import names of this package and of all installed ones that extend it by entry points."""
    points = [point for group in GROUPS for point in _list_entry_points(group)]
    return frozenset(point.module.partition(".")[0] for point in points)


@cache
def _list_entry_points(group: str) -> tuple[EntryPoint, ...]:
    """Return the entry points of a group, each once: our own first, then those of installed packages by name."""
    if group not in GROUPS:
        raise ValueError(f"expected a group among {', '.join(GROUPS)}; got {group!r}")
    # One package may be found twice on the path, by its checkout and its installation.
    installed = {
        (point.name, point.value): point
        for point in entry_points(group=f"anisoscope.{group}")
    }
    # Sorted, since the order of installed packages differs from machine to machine.
    points = [installed[key] for key in sorted(installed)]
    own = GROUPS[group].own
    # Known without metadata, so that a bare checkout works.
    if own:
        points.insert(0, EntryPoint("anisoscope", own, f"anisoscope.{group}"))
    return tuple(points)


def _is_ours(point: EntryPoint) -> bool:
    """Return whether an entry point is this package's own."""
    return point.value == GROUPS[point.group.removeprefix("anisoscope.")].own


def _load_entries(point: EntryPoint) -> Mapping[str, Any]:
    """Import what an entry point names and return its entries by name; none, with a warning, if it cannot be used."""
    entry = _import_entry(point)
    if entry is None:
        return {}
    if isinstance(entry, Mapping):
        return entry
    name = point.name
    # A metric has a name of its own, by which records call it.
    if point.group == "anisoscope.metrics":
        name = getattr(entry, "name", name)
    return {name: entry}


@cache
def _import_entry(point: EntryPoint) -> Any:
    """Import and return the object that an entry point names; None, with a warning, if it cannot be used.

    A function or class is called without arguments and its result returned, except in groups whose entries are
    functions themselves.
    """
    # Errors of our own parts are bugs, and must not become warnings.
    if _is_ours(point):
        entry = point.load()
        if callable(entry):
            entry = entry()
        return entry
    try:
        entry = point.load()
        kinds = _import_classes(GROUPS[point.group.removeprefix("anisoscope.")].kinds)
        # Called, unless it is an entry itself; in groups without classes, functions are
        # the entries.
        if kinds and callable(entry) and not isinstance(entry, kinds):
            entry = entry()
    # Whatever a module of others raises must not keep the program from starting.
    except Exception as error:
        what = f"adds {point.name!r} to {point.group}, which cannot be loaded and is left out"
        cure = f"pip install --upgrade {_name_package(point)}, or uninstall it"
        _warn_once(point, f"{what} ({type(error).__name__}: {error}). Cure: {cure}")
        return None
    return _drop_wrong_classes(point, entry, kinds)


def _drop_wrong_classes(point: EntryPoint, entry: Any, kinds: tuple[type, ...]) -> Any:
    """Return an entry, or a mapping of entries, without those of a wrong class; each of these gives a warning.

    point   where the entry comes from, for the warning
    entry   one object, or {name: object}
    kinds   the classes allowed; empty: any callable

    A single object of a wrong class gives None.
    """
    things = entry if isinstance(entry, Mapping) else {point.name: entry}
    expected = " or ".join(kind.__name__ for kind in kinds) or "a function"
    kept: dict[str, Any] = {}
    for name, thing in things.items():
        fits = isinstance(thing, kinds) if kinds else callable(thing)
        if fits:
            kept[name] = thing
            continue
        came = type(thing).__name__
        _warn_once(
            point,
            f"adds {name!r} to {point.group}, which is left out (expected {expected}; got {came})",
        )
    if isinstance(entry, Mapping):
        return kept
    return kept.get(point.name)


@cache
def _import_classes(kinds: tuple[str, ...]) -> tuple[type, ...]:
    """Import and return the classes that are named as `module:class`."""
    classes: list[type] = []
    for kind in kinds:
        # The class of modules has no name in `builtins`.
        if kind == "builtins:module":
            classes.append(ModuleType)
            continue
        module, _, name = kind.partition(":")
        classes.append(getattr(import_module(module), name))
    return tuple(classes)


def _name_package(point: EntryPoint) -> str:
    """Return the name of the distribution that declares an entry point, without version; its module if that is
    unknown.
    """
    if point.dist is None:
        return point.module
    return point.dist.name


@cache
def _warn_once(point: EntryPoint, what: str) -> None:
    """Warn that something which an installed package adds cannot be used; `what` says what is wrong.

    By default Python shows an equal warning only once.
    """
    warnings.warn(f"{_name_package(point)} {what}", ExtensionWarning, stacklevel=5)


def import_thing(reference: str, expected: str) -> Any:
    """Import what `module:NAME` names; modules in the current folder are found too. UsageError if there is none.

    expected   what it is to be, for the error
    """
    module, _, name = reference.partition(":")
    here = str(Path.cwd())
    # At the end, so that a file of the user's hides no installed module.
    sys.path.append(here)
    try:
        return getattr(import_module(module), name)
    except AttributeError as error:
        cure = suggest_names(
            name,
            [each for each in dir(sys.modules[module]) if not each.startswith("_")],
        )
        raise UsageError(expected, f"{reference!r}: {error}", cure) from error
    except Exception as error:
        cure = "check the name; a module in this folder is found, others by PYTHONPATH"
        raise UsageError(
            expected, f"{reference!r} ({type(error).__name__}: {error})", cure
        ) from error
    finally:
        # Later imports must not find files of that folder.
        sys.path.remove(here)
