"""What source code means: hashes of modules that comments, docstrings and layout leave as they are, and of all that the
modules import. Two hashes are equal if the syntax trees without docstrings are.

No module is imported to be hashed: the import statements of its source say what belongs to it.
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


_new: dict[str, Parsed] = {}
"""What this process has parsed and not yet kept."""


class ModuleSource(NamedTuple):
    """What is kept of a module: the hash of its meaning, and the modules that its import statements may mean."""

    meaning: str
    imports: tuple[str, ...]


def hash_modules(roots: Iterable[str], counts: Counted) -> dict[str, str]:
    """Hashes of the modules `roots` and of every module that they import, directly or not, by name.

    roots   full names of modules
    counts  whether a module (by its full name) belongs to what is hashed; others are passed over, with what only they
            import
    """
    found: dict[str, str] = {}
    todo = [name for root in roots for name in _with_packages(root) if name == root or counts(name)]
    while todo:
        name = todo.pop()
        if name in found:
            continue
        source = read_source(name)
        if source is None:
            found[name] = UNKNOWN
            continue
        found[name] = source.meaning
        for imported in source.imports:
            todo += [each for each in _with_packages(imported) if each not in found and counts(each)]
    _remember()
    return dict(sorted(found.items()))


def are_unchanged(hashes: dict[str, str]) -> bool:
    """Whether modules still mean what they did when `hashes`, by full names, were made."""
    for name, meaning in hashes.items():
        source = read_source(name)
        if source is None or source.meaning != meaning:
            return False
    _remember()
    return True


def read_source(name: str) -> ModuleSource | None:
    """The source of a module, by its full name; None if there is none to be read."""
    path = find_file(name)
    if path is None:
        return None
    stat = path.stat()
    return _read(name, path, stat.st_mtime_ns, stat.st_size)


def hash_file(path: Path) -> str:
    """The hash of the meaning of a file of Python."""
    stat = path.stat()
    return _read("", path, stat.st_mtime_ns, stat.st_size).meaning


def hash_function(function: Any) -> str:
    """The hash of the meaning of a function and of all that it uses, directly or not, of the module where it was typed:
    for functions of a session or a notebook, whose module has no file of its own.

    Functions and classes of other modules count by name. UsageError for what cannot be told from another of its kind:
    a changed one would be taken for the same.
    """
    words: list[str] = []
    seen: set[int] = set()
    todo = [function]
    while todo:
        each = todo.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, functools.partial):
            words.append(_word_of("arguments", (each.args, each.keywords)))
        each = unwrapped(each)
        if not isinstance(each, types.FunctionType):
            words.append(f"{each.__module__}.{each.__qualname__}")
            continue
        words.append(f"{each.__qualname__} {_hash_one_function(each)}")
        for name, used in _used_by(each):
            if isinstance(used, types.FunctionType | functools.partial) and used.__module__ == each.__module__:
                todo.append(used)
            else:
                words.append(_word_of(name, used))
    return _digest(sorted(words))


def _used_by(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function takes from around it, by name: globals, variables of functions that it was made in, defaults."""
    for name in _global_names(function.__code__):
        if name in function.__globals__:
            yield name, function.__globals__[name]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # one that is not set yet
            yield name, cell.cell_contents
    yield "defaults", (function.__defaults__, function.__kwdefaults__)


def _global_names(code: types.CodeType) -> Iterator[str]:
    """Names of globals that a function reads, and those that functions inside it read."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield str(instruction.argval)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _global_names(inner)


def _word_of(name: str, value: Any) -> str:
    """What tells a value from another: its text, its bytes, or its name. UsageError if nothing does."""
    if isinstance(value, types.ModuleType):
        return f"{name} {value.__name__}"
    if hasattr(value, "__qualname__") and getattr(value, "__module__", "__main__") != "__main__":
        return f"{name} {value.__module__}.{value.__qualname__}"
    if value is None or isinstance(value, int | float | complex | str | bytes):
        return f"{name} {value!r}"
    if isinstance(value, tuple | list):
        return f"{name} {type(value).__name__} {[_word_of('', part) for part in value]}"
    if isinstance(value, set | frozenset):
        return f"{name} set {sorted(_word_of('', part) for part in value)}"
    if isinstance(value, dict):
        return f"{name} dict {[(_word_of('', key), _word_of('', part)) for key, part in value.items()]}"
    if hasattr(value, "__array__"):
        array = value.__array__()
        if not array.dtype.hasobject:
            return f"{name} {array.dtype} {array.shape} {hashlib.sha256(array.tobytes()).hexdigest()}"
    expected = "a function typed into a session that uses functions, numbers, texts, arrays and lists of these"
    cure = "put it into a file, which is told from others by its source, and name it module:NAME"
    raise UsageError(expected, f"{name!r}, of {type(value).__name__}", cure)


def unwrapped(function: Any) -> Any:
    """The function itself: of a method, of a partial application, below decorators; of any other object its class."""
    while True:
        inner = inspect.unwrap(getattr(function, "func", getattr(function, "__func__", function)))
        if inner is function:
            break
        function = inner
    return function if hasattr(function, "__qualname__") else type(function)


def find_file(name: str) -> Path | None:
    """The file of a module, by its full name, without importing the module."""
    first, *rest = name.split(".")
    for folder in _folders_of(first):
        place = Path(folder, *rest)
        for path in (place / "__init__.py", place.with_suffix(".py")):
            if rest and path.is_file():
                return path
        if not rest and (place / "__init__.py").is_file():
            return place / "__init__.py"
    file = _single_file(first) if not rest else None
    return file or _file_of_loaded(name)


@cache
def _folders_of(package: str) -> tuple[str, ...]:
    """The folders of a package of first level; none if it is a single module, or not there."""
    spec = _spec_of(package)
    return tuple(spec.submodule_search_locations or ()) if spec is not None else ()


def _single_file(name: str) -> Path | None:
    """The file of a module of first level that is no package."""
    spec = _spec_of(name)
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        return None
    return Path(spec.origin)


def _spec_of(name: str) -> Any:
    try:
        return find_spec(name)
    except (ImportError, ValueError):  # ValueError: a module that was made by hand and has no spec
        return None


def _file_of_loaded(name: str) -> Path | None:
    """The file that a module was loaded from by other means than its name."""
    file = getattr(sys.modules.get(name), "__file__", None)
    path = Path(file) if file else None
    return path if path is not None and path.suffix == ".py" and path.is_file() else None


def _with_packages(name: str) -> list[str]:
    """A module and the packages it is in, which are imported with it: `a.b.c` → `a`, `a.b`, `a.b.c`."""
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


@cache
def _read(name: str, path: Path, _changed: int, _size: int) -> ModuleSource:
    """Meaning and imports of a file as it was last changed then."""
    written = path.read_bytes()
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    digest = hashlib.sha256(written).hexdigest()
    parsed = _remembered().get(digest)
    if parsed is None:
        parsed = _new[digest] = _parse(written)
    meaning, statements = parsed
    imports = [name for statement in statements for name in _meant_by(statement, package)]
    return ModuleSource(meaning, tuple(dict.fromkeys(imports)))


def _parse(written: bytes) -> Parsed:
    """The hash of the meaning of a source, and its import statements."""
    try:
        tree = ast.parse(written)
    except (SyntaxError, ValueError):  # it cannot be imported either; its bytes tell it from others
        return _digest([written.hex()]), []
    words: list[str] = []
    statements: list[Statement] = []
    _describe(tree, words, statements)
    return _digest(words), statements


def _describe(node: Any, words: list[str], imports: list[Statement]) -> None:
    """Append the words that describe a node and all below it, in order, and its import statements.

    Left out is what never runs (docstrings and other bare strings, what type checkers alone import), places in the
    file, and what is empty, since versions of Python differ in it.
    """
    if isinstance(node, list):
        for each in node:
            _describe(each, words, imports)
        words.append("]")
        return
    if not isinstance(node, ast.AST):
        words.append(f"{type(node).__name__} {node!r}")
        return
    if isinstance(node, ast.Expr) and _is_text(node.value):
        return
    if isinstance(node, ast.If) and _is_for_type_checkers(node.test):
        for each in node.orelse:
            _describe(each, words, imports)
        return
    if isinstance(node, ast.Import):
        imports.extend((0, alias.name, []) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        imports.append((node.level, node.module or "", [alias.name for alias in node.names]))
    words.append(type(node).__name__)
    for field in node._fields:
        value = getattr(node, field, None)
        if value is not None and value != [] and field not in ("ctx", "kind", "type_comment"):
            words.append(field)
            _describe(value, words, imports)
    words.append(")")


@cache
def _remembered() -> dict[str, Parsed]:
    """What earlier processes have parsed, by the hash of the file's bytes: to parse takes longer than to read."""
    try:
        kept: dict[str, Parsed] = json.loads(_memory().read_text("utf-8"))
        if all(isinstance(meaning, str) and isinstance(found, list) for meaning, found in kept.values()):
            return kept
    except (OSError, ValueError, TypeError, AttributeError):  # none yet, or damaged: it is made again
        pass
    return {}


def _remember() -> None:
    """Keep what this process has parsed for later ones. If that is not possible, they parse again."""
    if not _new:
        return
    known = _remembered()
    known.update(_new)
    _new.clear()
    kept = dict(list(known.items())[-MOST_REMEMBERED:])
    path = _memory()
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(kept), "utf-8")
        temporary.replace(path)


def _memory() -> Path:
    """A file in the user's cache folder; its name changes when what it holds comes to mean something else."""
    given = os.environ.get("ANISOSCOPE_CACHE")
    folder = Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "anisoscope"
    return folder / "sources-1.json"


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _is_for_type_checkers(test: ast.expr) -> bool:
    return getattr(test, "id", getattr(test, "attr", "")) == "TYPE_CHECKING"


def _meant_by(statement: Statement, package: str) -> Iterator[str]:
    """Full names of the modules that an import statement in a module of `package` may mean."""
    level, base, names = statement
    if level:
        parts = package.split(".")
        above = parts[: len(parts) - level + 1]
        base = ".".join([*above, base] if base else above)
    yield base
    if names and find_file(base) is not None:
        for name in names:  # a module of the package, or something in it
            inner = f"{base}.{name}"
            if find_file(inner) is not None:
                yield inner


def _digest(words: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(words).encode("utf-8", "surrogatepass")).hexdigest()[:DIGITS]


def _hash_one_function(function: types.FunctionType) -> str:
    try:
        written = textwrap.dedent(inspect.getsource(function))
    except OSError:  # a session that keeps no source
        return _digest(_words_of_code(function.__code__))
    return _parse(written.encode())[0]


def _words_of_code(code: types.CodeType) -> Iterator[str]:
    yield code.co_code.hex()
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _words_of_code(constant)
        else:
            yield repr(constant)
