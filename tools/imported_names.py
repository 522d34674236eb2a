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
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if (
                not isinstance(node, ast.ImportFrom)
                or (node.module or "").partition(".")[0] != package.name
            ):
                continue
            for alias in node.names:
                if not _has_name(package.parent, f"{node.module}", alias.name):
                    missing.append(f"{path}:{node.lineno} {node.module}.{alias.name}")
    return missing


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
