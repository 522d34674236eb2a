"""Names in backquotes in docstrings and comments that the code does not have: what they named was renamed or removed.

A name is looked for among all words of the code, its strings and its data files, so that columns and settings count.
Words without an underscore, a dot or a capital inside are left out: they may be plain English.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from imported_names import iter_statements

IDENTIFIER = re.compile(r"_?[A-Za-z]\w*(?:\.\w+)*")
MARKED = re.compile(r"[_.]|[a-z][A-Z]")
"""What tells the name of a program from an English word: `head_dim`, `sums.groups`, `HeadReading`, `_paths`."""
NO_WORDS = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
    tokenize.NUMBER,
    tokenize.OP,
}
"""Tokens that hold no name."""
DATA = {".css", ".j2", ".js", ".json", ".toml"}
FILE_ENDINGS = {"gz", "tar", "wav"}


def find_unknown_names(
    folders: list[Path], foreign: frozenset[str] = frozenset()
) -> list[str]:
    """Return `FILE:LINE name` for each name in backquotes that is nowhere in the code of these folders.

    foreign   names of other packages, which the code does not use
    """
    known = set(foreign)
    quoted: list[tuple[str, str]] = []
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.suffix in DATA:
                known.update(list_words(path.read_text("utf-8")))
            elif path.suffix == ".py":
                text = path.read_text("utf-8")
                known.update(path.relative_to(folder).with_suffix("").parts)
                known.update(iter_words_of_code(text))
                place = path.relative_to(folder.parent).as_posix()
                quoted += [
                    (f"{place}:{line}", name) for line, name in iter_quoted_names(text)
                ]
    return [
        f"{place} {name}" for place, name in quoted if not set(name.split(".")) <= known
    ]


def list_words(text: str) -> list[str]:
    """Return the words that can be names, in any text."""
    return re.findall(r"\w+", text)


def iter_words_of_code(text: str) -> Iterator[str]:
    """Yield the words of a Python file, without those of its docstrings and comments."""
    in_docstrings: set[int] = set()
    for docstring in list_docstrings(text):
        in_docstrings.update(
            range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1)
        )
    for token in _list_tokens(text):
        if token.type in NO_WORDS or token.start[0] in in_docstrings:
            continue
        if token.type == tokenize.NAME:
            yield token.string
        else:
            yield from list_words(token.string)


# The two functions below are called twice in a row for each file, so the last answer is kept.
@lru_cache(maxsize=1)
def _list_tokens(text: str) -> list[tokenize.TokenInfo]:
    """Return the tokens of a Python file."""
    return list(tokenize.generate_tokens(io.StringIO(text).readline))


@lru_cache(maxsize=1)
def list_docstrings(text: str) -> list[ast.Expr]:
    """Return the texts that stand as a statement: of modules, classes, functions and assignments."""
    found = []
    for node in iter_statements(ast.parse(text)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            found.append(node)
    return found


def iter_quoted_names(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, name) for names in backquotes in the docstrings and comments of a Python file."""
    passages: list[tuple[int, str]] = []
    for docstring in list_docstrings(text):
        assert isinstance(docstring.value, ast.Constant)
        passages.append((docstring.lineno, str(docstring.value.value)))
    for token in _list_tokens(text):
        if token.type == tokenize.COMMENT:
            passages.append((token.start[0], token.string))
    for line, passage in passages:
        for quoted in re.findall(r"`([^`\n]+)`", passage):
            # Also with the arguments of a call behind it.
            name = quoted.partition("(")[0]
            is_file = name.rpartition(".")[2] in FILE_ENDINGS
            if IDENTIFIER.fullmatch(name) and MARKED.search(name) and not is_file:
                yield line, name
