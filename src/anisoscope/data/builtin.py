"""`builtin:python-docs`: the documentation of the standard library, present in every CPython, read without imports."""

import ast
import platform
import re
import sysconfig
import warnings
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from anisoscope.data.splitting import SplitText
from anisoscope.errors import CorpusError

LEFT_OUT = {
    *(
        "site-packages",
        "dist-packages",
        "test",
        "tests",
        "idlelib",
        "lib2to3",
        "distutils",
        "encodings",
        "ensurepip",
    ),
    *("tkinter", "turtledemo", "pydoc_data"),
}
"""Folders without documentation of the library itself, or that distributions package apart."""

# Lines that underline a heading of reStructuredText, or draw the border of a table: no
# text to read.
_RULE = re.compile(r"[ \t]*[-=~^*_#+|`.]{3,}[ \t]*")


def python_docs(
    limit: int | None = None, library: Path | None = None
) -> tuple[SplitText, dict[str, object]]:
    """Return documents of the Python documentation, and the manifest's entry on their source.

    There is one document per public module (its docstring and those of its public members, in the order of the
    source), then one per topic of the language reference in `pydoc_data`. The manifest's entry names the Python
    version, since the text depends on it.

    limit     only the first documents; no source is parsed after them. None: all
    library   folder of Python's standard library; None: that of the running Python
    """
    library = library or Path(sysconfig.get_path("stdlib"))
    documents, empty, unread = _read_documents(limit, library)
    if not documents:
        expected = f"the sources of the standard library in {library}"
        cure = "install the full CPython distribution, or name a text file"
        raise CorpusError(expected, "no module with documentation", cure)
    source = {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
    }
    # A list of its own, since the tuple is kept for all callers.
    read = SplitText(
        list(documents), "modules and topics", "module", empty=empty, skipped=unread
    )
    return read, {"kind": "builtin", **source}


@lru_cache(maxsize=2)  # a series opens its text for every checkpoint
def _read_documents(
    limit: int | None, library: Path
) -> tuple[tuple[str, ...], int, int]:
    """Return (documents, number of sources without text, number of sources that cannot be parsed).

    limit     stop after so many documents; None: read all
    library   folder of Python's standard library
    """
    documents: list[str] = []
    empty = unread = 0
    for text in _iter_texts(library):
        if text is None:
            unread += 1
        elif text:
            documents.append(text)
        else:
            empty += 1
        if len(documents) == limit:
            break
    return tuple(documents), empty, unread


def _iter_texts(library: Path) -> Iterator[str | None]:
    """Yield the cleaned text of each public module of the standard library, by dotted name, then of each language
    topic.

    None if a source cannot be parsed; empty if it has no text.
    """
    # By name, since the order of a folder differs from machine to machine.
    for _, path in sorted(_iter_modules(library, ())):
        try:
            texts = list(_iter_docstrings(_parse(path)))
        # a source that this Python cannot parse is counted and left out
        except (OSError, SyntaxError, ValueError):
            yield None
            continue
        yield "\n".join(filter(None, map(_clean, texts)))
    topics = library / "pydoc_data" / "topics.py"
    if topics.is_file():
        yield from _iter_topics(topics)


def _iter_topics(path: Path) -> Iterator[str]:
    """Yield the cleaned text of each topic in the dict that a source file assigns, by name."""
    for node in _parse(path).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            # read as a literal: nothing is imported, nothing runs
            found: dict[str, str] = ast.literal_eval(node.value)
            for name in sorted(found):
                yield _clean(found[name])


def _iter_modules(
    folder: Path, package: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Path]]:
    """Yield (dotted name as a tuple, source file) of the public modules in a folder, recursively.

    package   dotted name of the folder
    """
    for path in folder.iterdir():
        # The package itself, before what is in it.
        if path.name == "__init__.py" and package:
            yield package, path
        elif not path.name.startswith("_") and path.name not in LEFT_OUT:
            name = (*package, path.stem)
            if path.is_dir():
                yield from _iter_modules(path, name)
            elif path.suffix == ".py":
                yield name, path


def _parse(path: Path) -> ast.Module:
    """Parse a source file without printing its syntax warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # As bytes, since a source says itself in which encoding it is.
        return ast.parse(path.read_bytes())


def _iter_docstrings(
    node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef,
) -> Iterator[str]:
    """Yield the docstring of a node, and of the public classes and functions directly inside it (recursively)."""
    text = ast.get_docstring(node)
    if text:
        yield text
    # what is defined inside a function is not public
    if not isinstance(node, ast.Module | ast.ClassDef):
        return
    for inner in node.body:
        if isinstance(
            inner, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        ) and not inner.name.startswith("_"):
            yield from _iter_docstrings(inner)


def _clean(text: str) -> str:
    """Return a docstring as plain paragraphs, one per line, without underlines (`-----`) and doctest examples."""
    paragraphs = []
    # An empty line, perhaps with blanks, ends a paragraph.
    for block in re.split(r"\n[ \t]*\n", text.strip()):
        lines = [
            line.strip() for line in block.split("\n") if not _RULE.fullmatch(line)
        ]
        # the output of an example follows it: the whole paragraph is left out
        if not any(line.startswith((">>>", "...")) for line in lines):
            paragraphs.append(" ".join(" ".join(lines).split()))
    return "\n".join(filter(None, paragraphs))
