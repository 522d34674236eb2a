"""Packages of the tests as if they were installed: their code beside metadata that names their entry points."""

import shutil
import tomllib
from contextlib import contextmanager

from anisoscope import registry


def install(source, target):
    """Put what a folder with a pyproject.toml holds into a folder for `sys.path`, as pip does."""
    project = tomllib.loads((source / "pyproject.toml").read_text("utf-8"))
    for path in source.iterdir():
        if path.is_dir() and (path / "__init__.py").exists():
            shutil.copytree(
                path,
                target / path.name,
                ignore=shutil.ignore_patterns("__pycache__"),
                dirs_exist_ok=True,
            )
        elif path.suffix == ".py":
            shutil.copy(path, target)
    name, version = project["project"]["name"], project["project"]["version"]
    metadata = target / f"{name.replace('-', '_')}-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    )
    lines = []
    for group, points in project["project"]["entry-points"].items():
        lines += [
            f"[{group}]",
            *(f"{point} = {value}" for point, value in points.items()),
            "",
        ]
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    return target


@contextmanager
def found(monkeypatch, target):
    """What is installed in a folder is found while inside, and forgotten afterwards."""
    monkeypatch.syspath_prepend(str(target))
    forget()
    try:
        yield
    finally:
        monkeypatch.undo()
        forget()


def forget():
    """Entry points are read anew when they are next asked for."""
    for remembered in (
        registry._list_entry_points,
        registry._import_entry,
        registry._warn_once,
    ):
        remembered.cache_clear()
