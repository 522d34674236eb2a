"""Hash the meaning of source code: of modules and of all that they import, without comments, docstrings and layout.

Two hashes are equal if the syntax trees without docstrings are. No module is imported to be hashed: the import
statements of its source say what belongs to it.
"""

import ast
import dis
import functools
import hashlib
import inspect
import json
import os
import sys
import textwrap
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from anisoscope.errors import UsageError

DIGITS = 12
"""Hexadecimal digits of a hash."""
MOST_REMEMBERED = 2000
"""Files whose parsed source is kept between processes: some 400 kB."""
UNKNOWN = "no source"
"""In place of the hash of a module whose source cannot be found."""
Counted = Callable[[str], bool]
Statement = tuple[int, str, list[str]]
"""An import statement: how many packages up, of what, which names."""
Parsed = tuple[str, list[Statement]]
IGNORED_FIELDS = ("ctx", "kind", "type_comment")
"""Fields of syntax nodes that change nothing of what the code does."""


_new: dict[str, Parsed] = {}
"""What this process has parsed and not yet kept."""


class ModuleSource(NamedTuple):
    """The hash of a module's code without docstrings and comments, and the modules that its import statements may
    name.
    """

    meaning: str
    imports: tuple[str, ...]


def hash_modules(roots: Iterable[str], counts: Counted) -> dict[str, str]:
    """Hash the code of modules and of every module that they import, directly or indirectly: {full name: hash}.

    roots    full names of the modules to begin with
    counts   whether a module (by its full name) is to be hashed; others are skipped, with what only they import
    """
    hashes: dict[str, str] = {}
    todo: list[str] = []
    # The named module counts in any case, packages above it only if they are to be
    # hashed.
    for root in roots:
        todo += [
            name for name in _list_with_packages(root) if name == root or counts(name)
        ]
    while todo:
        name = todo.pop()
        if name in hashes:
            continue
        source = read_source(name)
        # Modules in C have none.
        if source is None:
            hashes[name] = UNKNOWN
            continue
        hashes[name] = source.meaning
        for imported in source.imports:
            todo += [
                module
                for module in _list_with_packages(imported)
                if module not in hashes and counts(module)
            ]
    _save_parse_cache()
    return dict(sorted(hashes.items()))


def are_unchanged(hashes: dict[str, str]) -> bool:
    """Return whether the modules' code still has the recorded `hashes`; comments and docstrings do not count."""
    for name, meaning in hashes.items():
        source = read_source(name)
        if source is None or source.meaning != meaning:
            return False
    _save_parse_cache()
    return True


def read_source(name: str) -> ModuleSource | None:
    """Read the source of a module by its full name; None if there is none."""
    path = find_file(name)
    if path is None:
        return None
    stat = path.stat()
    return _read_module(name, path, stat.st_mtime_ns, stat.st_size)


def hash_file(path: Path) -> str:
    """Hash the code of a Python file without comments, docstrings and layout."""
    stat = path.stat()
    return _read_module("", path, stat.st_mtime_ns, stat.st_size).meaning


def hash_function(function: Any) -> str:
    """Hash the code of a function and of everything it uses, directly or indirectly, in the module that defines it.

    Functions and classes of other modules count by name. UsageError for a value that cannot be identified, since a
    change of it would go unnoticed.
    """
    words: list[str] = []
    seen: set[int] = set()
    todo = [function]
    while todo:
        each = todo.pop()
        # Functions may use each other in a circle.
        if id(each) in seen:
            continue
        seen.add(id(each))
        # A partial application is its function and its arguments.
        if isinstance(each, functools.partial):
            words.append(_identify_value("arguments", (each.args, each.keywords)))
        each = unwrap(each)
        # Classes, and what is not written in Python.
        if not isinstance(each, types.FunctionType):
            words.append(f"{each.__module__}.{each.__qualname__}")
            continue
        words.append(f"{each.__qualname__} {_hash_one_function(each)}")
        for name, used in _find_used(each):
            if (
                isinstance(used, types.FunctionType | functools.partial)
                and used.__module__ == each.__module__
            ):
                todo.append(used)
            else:
                words.append(_identify_value(name, used))
    return _digest(sorted(words))


def _find_used(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) of what a function uses from outside: globals, enclosing variables, defaults."""
    for name in _list_globals(function.__code__):
        if name in function.__globals__:
            yield name, function.__globals__[name]
    for name, cell in zip(
        function.__code__.co_freevars, function.__closure__ or (), strict=True
    ):
        # One that is not set yet has no content.
        with suppress(ValueError):
            yield name, cell.cell_contents
    yield "defaults", (function.__defaults__, function.__kwdefaults__)


def _list_globals(code: types.CodeType) -> Iterator[str]:
    """List the globals that a function, or a function inside it, reads."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield str(instruction.argval)
    # A function inside another is a constant of the outer one's code.
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _list_globals(inner)


def _identify_value(name: str, value: Any) -> str:
    """Return text that identifies a value that a function uses: its text, its bytes, or its name.

    name   of the variable that holds it

    UsageError if the value cannot be identified.
    """
    if isinstance(value, types.ModuleType):
        return f"{name} {value.__name__}"
    # What was typed into a session has no file by which its name would identify it.
    if (
        hasattr(value, "__qualname__")
        and getattr(value, "__module__", "__main__") != "__main__"
    ):
        return f"{name} {value.__module__}.{value.__qualname__}"
    if value is None or isinstance(value, int | float | complex | str | bytes):
        return f"{name} {value!r}"
    if isinstance(value, tuple | list):
        parts = [_identify_value("", part) for part in value]
        return f"{name} {type(value).__name__} {parts}"
    # Sets have no order of their own.
    if isinstance(value, set | frozenset):
        parts = [_identify_value("", part) for part in value]
        return f"{name} set {sorted(parts)}"
    if isinstance(value, dict):
        pairs = [
            (_identify_value("", key), _identify_value("", part))
            for key, part in value.items()
        ]
        return f"{name} dict {pairs}"
    if hasattr(value, "__array__"):
        array = value.__array__()
        # The bytes of an array of objects are addresses.
        if not array.dtype.hasobject:
            return f"{name} {array.dtype} {array.shape} {hashlib.sha256(array.tobytes()).hexdigest()}"
    expected = "a function typed into a session that uses functions, numbers, texts, arrays and lists of these"
    cure = (
        "put it into a file, which is identified by its source, and name it module:NAME"
    )
    raise UsageError(expected, f"{name!r}, of {type(value).__name__}", cure)


def unwrap(function: Any) -> Any:
    """Return the plain function inside a method, a partial application or a decorated function; else the object's
    class.
    """
    while True:
        # `func` is that of a partial application, `__func__` that of a method.
        inner = getattr(function, "func", getattr(function, "__func__", function))
        inner = inspect.unwrap(inner)
        if inner is function:
            break
        function = inner
    if not hasattr(function, "__qualname__"):
        return type(function)
    return function


def find_file(name: str) -> Path | None:
    """Find the file of a module by its full name, without importing it."""
    first, *rest = name.split(".")
    for folder in _find_folders_of_package(first):
        place = Path(folder, *rest)
        for path in (place / "__init__.py", place.with_suffix(".py")):
            if rest and path.is_file():
                return path
        if not rest and (place / "__init__.py").is_file():
            return place / "__init__.py"
    file = _find_single_file(first) if not rest else None
    return file or _find_file_of_loaded(name)


@cache
def _find_folders_of_package(package: str) -> tuple[str, ...]:
    """Return the folders of a top-level package; empty if it is a single module, or missing."""
    spec = _find_spec(package)
    if spec is None:
        return ()
    return tuple(spec.submodule_search_locations or ())


def _find_single_file(name: str) -> Path | None:
    """Return the file of a top-level module that is not a package."""
    spec = _find_spec(name)
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        return None
    return Path(spec.origin)


def _find_spec(name: str) -> Any:
    """Return the import spec of a module, or None."""
    try:
        return find_spec(name)
    # ValueError: a module that was made by hand and has no spec.
    except (ImportError, ValueError):
        return None


def _find_file_of_loaded(name: str) -> Path | None:
    """Return the file of a loaded module that was not found by its name; None if it has none."""
    file = getattr(sys.modules.get(name), "__file__", None)
    if not file:
        return None
    path = Path(file)
    if path.suffix != ".py" or not path.is_file():
        return None
    return path


def _list_with_packages(name: str) -> list[str]:
    """Return a module and its parent packages, which are imported with it: `a.b.c` → `a`, `a.b`, `a.b.c`."""
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


@cache
def _read_module(name: str, path: Path, _changed: int, _size: int) -> ModuleSource:
    """Return hash and imports of a file. `_changed` and `_size` make the cache read it again if the file changes."""
    written = path.read_bytes()
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    # By content, so that copies of a file are parsed once.
    digest = hashlib.sha256(written).hexdigest()
    parsed = _load_parse_cache().get(digest)
    if parsed is None:
        parsed = _new[digest] = _parse_source(written)
    meaning, statements = parsed
    imports: list[str] = []
    for statement in statements:
        imports += _resolve_import(statement, package)
    return ModuleSource(meaning, tuple(dict.fromkeys(imports)))


def _parse_source(written: bytes) -> Parsed:
    """Return the hash of a source without comments and docstrings, and its import statements."""
    try:
        tree = _parse_again_if_interrupted(written)
    # It cannot be imported either; its bytes identify it.
    except (SyntaxError, ValueError):
        return _digest([written.hex()]), []
    words: list[str] = []
    statements: list[Statement] = []
    _describe_tree(tree, words, statements)
    return _digest(words), statements


def _parse_again_if_interrupted(written: bytes) -> ast.Module:
    """Return the syntax tree of a source; SyntaxError or ValueError if it has none."""
    try:
        return ast.parse(written)
    except SystemError:
        # "AST constructor recursion depth mismatch": CPython 3.11 keeps one counter of
        # depth for the whole interpreter, and what runs in between (a collection of
        # garbage, another thread) can leave it wrong. The next call sets it again.
        return ast.parse(written)


def _describe_tree(node: Any, words: list[str], imports: list[Statement]) -> None:
    """Append the words that describe a syntax tree, in order, and collect its import statements.

    Left out is what never runs (docstrings and other bare strings, what type checkers alone import), places in the
    file, and what is empty, since versions of Python differ in it.
    """
    if isinstance(node, list):
        for each in node:
            _describe_tree(each, words, imports)
        # An end, since nested lists would read like flat ones without it.
        words.append("]")
        return
    if not isinstance(node, ast.AST):
        words.append(f"{type(node).__name__} {node!r}")
        return
    if isinstance(node, ast.Expr) and _is_text(node.value):
        return
    if isinstance(node, ast.If) and _is_for_type_checkers(node.test):
        for each in node.orelse:
            _describe_tree(each, words, imports)
        return
    imports += _list_imports(node)
    words.append(type(node).__name__)
    for field in node._fields:
        value = getattr(node, field, None)
        if value is None or value == [] or field in IGNORED_FIELDS:
            continue
        words.append(field)
        _describe_tree(value, words, imports)
    words.append(")")


def _list_imports(node: ast.AST) -> list[Statement]:
    """Return the import statements that one syntax node is: one for each name of `import a, b`; none for others."""
    if isinstance(node, ast.Import):
        return [(0, alias.name, []) for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [(node.level, node.module or "", [alias.name for alias in node.names])]
    return []


@cache
def _load_parse_cache() -> dict[str, Parsed]:
    """Return what earlier processes parsed, by the hash of the file's bytes; empty if there is no usable cache."""
    try:
        kept: dict[str, Parsed] = json.loads(_find_parse_cache().read_text("utf-8"))
        if all(
            isinstance(meaning, str) and isinstance(found, list)
            for meaning, found in kept.values()
        ):
            return kept
    # There is none yet, or it is damaged: it is made again.
    except (OSError, ValueError, TypeError, AttributeError):
        pass
    return {}


def _save_parse_cache() -> None:
    """Save what this process parsed for later ones. Failures are ignored: the files are then parsed again."""
    if not _new:
        return
    known = _load_parse_cache()
    known.update(_new)
    _new.clear()
    # The newest ones come last.
    kept = dict(list(known.items())[-MOST_REMEMBERED:])
    path = _find_parse_cache()
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(kept), "utf-8")
        temporary.replace(path)


def _find_parse_cache() -> Path:
    """Return the cache file of parsed sources.

    Its name carries a number that changes with the meaning of its content.
    """
    return find_cache_folder() / "sources-1.json"


def find_cache_folder() -> Path:
    """Return the folder of what is remembered between processes: `ANISOSCOPE_CACHE`, or one below the user's cache."""
    given = os.environ.get("ANISOSCOPE_CACHE")
    if given:
        return Path(given)
    return (
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "anisoscope"
    )


def _is_text(node: ast.expr) -> bool:
    """Return whether a syntax node is a bare string."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _is_for_type_checkers(test: ast.expr) -> bool:
    """Return whether the condition of an `if` is `TYPE_CHECKING`."""
    return getattr(test, "id", getattr(test, "attr", "")) == "TYPE_CHECKING"


def _resolve_import(statement: Statement, package: str) -> Iterator[str]:
    """Yield the full names of the modules that an import statement in a module of `package` may mean."""
    level, base, names = statement
    if level:
        parts = package.split(".")
        # The first level is the package itself, each further one the package above.
        above = parts[: len(parts) - level + 1]
        if base:
            above.append(base)
        base = ".".join(above)
    yield base
    if not names or find_file(base) is None:
        return
    for name in names:
        # A name may be a module of the package, or something in it.
        inner = f"{base}.{name}"
        if find_file(inner) is not None:
            yield inner


def _digest(words: Iterable[str]) -> str:
    """Return a short SHA-256 of words in order."""
    return hashlib.sha256(
        "\0".join(words).encode("utf-8", "surrogatepass")
    ).hexdigest()[:DIGITS]


def _hash_one_function(function: types.FunctionType) -> str:
    """Hash the source of one function; its bytecode if the session keeps no source."""
    try:
        written = textwrap.dedent(inspect.getsource(function))
    # Some sessions keep no source.
    except OSError:
        return _digest(_iter_words_of_code(function.__code__))
    meaning, _ = _parse_source(written.encode())
    return meaning


def _iter_words_of_code(code: types.CodeType) -> Iterator[str]:
    """Yield words that describe compiled code: bytecode, names, constants."""
    yield code.co_code.hex()
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _iter_words_of_code(constant)
        else:
            yield repr(constant)
