"""Find names that Python files import from a package and that the package does not have."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path


def find_missing_names(package: Path, files: list[Path]) -> list[str]:
    """Return "file:line module.name" for each name that a file imports from a package and that is not there.

    package   the folder of the package; only its text is read, nothing is imported
    files     Python files that may import from it
    """
    missing = []
    for path in files:
        for line, module, name in _list_imports(path):
            if module.partition(".")[0] != package.name:
                continue
            if not _has_name(package.parent, module, name):
                missing.append(f"{path}:{line} {module}.{name}")
    return missing


@cache
def _list_imports(path: Path) -> list[tuple[int, str, str]]:
    """Return (line, module, name) of each name that a file imports from a module."""
    found = []
    for statement in iter_statements(ast.parse(path.read_text("utf-8"))):
        if isinstance(statement, ast.ImportFrom):
            for alias in statement.names:
                found.append((statement.lineno, statement.module or "", alias.name))
    return found


def iter_statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements inside a node, at any depth; expressions hold none, and are most of a tree."""
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        children = getattr(node, field, ())
        if isinstance(children, list):
            for child in children:
                yield child
                yield from iter_statements(child)


def _has_name(root: Path, module: str, name: str) -> bool:
    """Return whether a module under `root` defines or imports a name, or has a module of that name."""
    folder = root / module.replace(".", "/")
    if (folder / name).is_dir() or (folder / f"{name}.py").is_file():
        return True
    path = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    if not path.is_file():
        return False
    names = _list_names(path)
    # A module with `__getattr__` makes its names when they are asked for.
    return name in names or "__getattr__" in names


@cache
def _list_names(path: Path) -> frozenset[str]:
    """Return the names that a module has at its top level, also those inside `if` and `try`."""
    return frozenset(_walk_names(ast.parse(path.read_text("utf-8"))))


def _walk_names(node: ast.AST) -> Iterator[str]:
    """Yield names that statements below a node give to a module; bodies of functions and classes are not entered."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield child.name
        elif isinstance(child, ast.Import | ast.ImportFrom):
            for alias in child.names:
                yield alias.asname or alias.name.partition(".")[0]
        elif isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            yield child.id
        elif isinstance(child, ast.TypeAlias if hasattr(ast, "TypeAlias") else ()):
            yield child.name.id
        else:
            yield from _walk_names(child)
