"""Documents out of files: plain text, JSON lines, parquet, folders; and out of any stream of rows."""

import gzip
import json
import os
import re
import statistics
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from anisoscope.errors import CorpusError, near_matches

ENDINGS = (".txt", ".txt.gz", ".jsonl", ".jsonl.gz", ".parquet")
TEXT_COLUMNS = ("text", "content", "sentence", "document", "article", "passage", "body", "tokens", "words")
DOCUMENT_WORDS = 200
"""Blocks between blank lines are documents where their median length reaches this; shorter ones are paragraphs."""

PIECE = 100_000
"""Characters of one piece of text without marks: long enough to tokenise as running text, short enough for memory."""

_ARTICLE = re.compile(r" ?= [^=](?:.*[^=])? = ?")

Row = tuple[str, dict[str, Any] | None]
"""Where a row stands (`line 7`), and its columns; None where it could not be read and unreadable rows are skipped."""


@dataclass(frozen=True)
class Wanted:
    """What to take: the text column (None: guess), the first `limit` units, and whether unreadable rows are skipped."""

    column: str | None = None
    limit: int | None = None
    skip_bad: bool = False


@dataclass(frozen=True)
class Reading:
    """Documents of a source and how they were told apart. `marked` is False for running text, whose documents are
    pieces cut at line ends; `empty` ones were dropped, `skipped` ones unreadable; `column` was read.
    """

    documents: list[str]
    how: str
    marked: bool = True
    empty: int = 0
    skipped: int = 0
    column: str | None = None


def local_names() -> dict[str, Path]:
    """Text corpora under $ANISOSCOPE_DATA: name (path without its ending) and file; none where it is unset."""
    root = Path(os.environ.get("ANISOSCOPE_DATA") or "/nonexistent")
    files = (path for path in sorted(root.rglob("*")) if path.name.endswith(ENDINGS))
    return {path.relative_to(root).as_posix().removesuffix(".gz").rsplit(".", 1)[0]: path for path in files}


def read_path(path: Path, wanted: Wanted) -> Reading:
    """Documents of a file or folder, at most `limit` of them where they are marked."""
    if path.is_dir():
        return _read_folder(path, wanted)
    if _ending(path) in (".csv", ".tsv"):
        raise CorpusError(
            f"a file ending in {', '.join(ENDINGS)}", str(path), "convert the table to JSON lines or parquet"
        )
    if _ending(path) in (".jsonl", ".json", ".parquet"):
        return read_rows(_file_rows(path, wanted), wanted, str(path))
    if wanted.column is not None:
        raise CorpusError(
            "JSON lines, parquet or a hub data set where a column is named", str(path), "leave --column out"
        )
    return split_text(_read_text(path), wanted.limit)


def split_text(text: str, limit: int | None = None) -> Reading:
    """Documents of a text: WikiText articles (` = Title = ` after a blank line) where the text begins with one; blocks
    between blank lines where those are as long as documents; else running text without marks, in pieces.
    """
    first = next((line for line in text.split("\n") if line.strip()), "")
    if _ARTICLE.fullmatch(first):
        return Reading(list(islice(_articles(text.split("\n")), limit)), "titles")
    blocks = [block.strip("\n") for block in re.split(r"\n(?:[ \t]*\n)+", text) if block.strip()]
    if len(blocks) > 1 and statistics.median(len(block.split()) for block in blocks) >= DOCUMENT_WORDS:
        return Reading(blocks[:limit], "blank lines")
    return Reading(list(pieces(text)) if blocks else [], "blocks of tokens", marked=False)


def read_rows(rows: Iterable[Row], wanted: Wanted, where: str) -> Reading:
    """One document per row, or WikiText articles where the rows are its lines (the first one with text is a title).

    Reads no further than `limit` needs.
    """
    bad: list[str] = []
    good = _good(rows, bad)
    first = next(good, None)
    if first is None:
        return Reading([], "rows", skipped=len(bad))
    column = choose_column(first[1], wanted.column, where)
    texts = _texts(chain([first], good), column, bad, wanted.skip_bad, where)
    head = list(_until_text(texts))
    stream = chain(head, texts)
    if head and _ARTICLE.fullmatch(head[-1].rstrip("\n")):
        return Reading(list(islice(_articles(stream), wanted.limit)), "titles", skipped=len(bad), column=column)
    documents: list[str] = []
    empty = 0
    for text in stream:
        if text.strip():
            documents.append(text)
        else:
            empty += 1
        if len(documents) == wanted.limit:
            break
    return Reading(documents, "rows", empty=empty, skipped=len(bad), column=column)


def choose_column(row: dict[str, Any], column: str | None, where: str) -> str:
    """The column asked for, else the first of `TEXT_COLUMNS`, else the only column of strings."""
    got = f"the columns {', '.join(row)}"
    if column is not None:
        if column in row:
            return column
        raise CorpusError(f"a column {column!r} in {where}", got, near_matches(column, row))
    strings = [name for name, value in row.items() if isinstance(value, str)]
    for name in TEXT_COLUMNS + (tuple(strings) if len(strings) == 1 else ()):
        if name in row:
            return name
    raise CorpusError(f"a text column in {where}", got, "choose one with --column")


def _file_rows(path: Path, wanted: Wanted) -> Iterator[Row]:
    """Rows of a JSON lines or parquet file, with their line or row number."""
    if _ending(path) == ".parquet":
        yield from _parquet_rows(path, wanted.column)
        return
    for number, line in enumerate(_read_text(path).split("\n"), 1):
        try:
            row = json.loads(line) if line.strip() else {}
        except json.JSONDecodeError:
            row = None
        if row == {}:
            continue
        if not isinstance(row, dict) and not wanted.skip_bad:
            got = f"line {number}: {line[:60]!r}"
            raise CorpusError(f"one JSON object per line in {path}", got, "repair the line, or pass --skip-bad")
        yield f"line {number}", row if isinstance(row, dict) else None


def _parquet_rows(path: Path, column: str | None) -> Iterator[Row]:
    import pyarrow  # type: ignore[import-untyped]
    import pyarrow.parquet as parquet  # type: ignore[import-untyped]

    try:
        table = parquet.ParquetFile(path)
        wanted = [column] if column in table.schema_arrow.names else None
        batches = (batch.to_pylist() for batch in table.iter_batches(columns=wanted))
        for number, row in enumerate(chain.from_iterable(batches), 1):
            yield f"row {number}", row
    except (pyarrow.ArrowException, OSError) as error:
        cure = "write the file again: it is damaged or in another format"
        raise CorpusError(f"a parquet file in {path}", str(error).split("\n")[0][:120], cure) from None


def _good(rows: Iterable[Row], bad: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The readable rows; the places of the others go to `bad`."""
    for place, row in rows:
        if row is None:
            bad.append(place)
        else:
            yield place, row


def _texts(
    rows: Iterable[tuple[str, dict[str, Any]]], column: str, bad: list[str], skip_bad: bool, where: str
) -> Iterator[str]:
    """Texts of the rows. Lists of strings are joined by blanks, null is empty; anything else is an error that names the
    place, or goes to `bad`.
    """
    for place, row in rows:
        value = row.get(column, 0)
        if value is None or isinstance(value, str):
            yield value or ""
        elif isinstance(value, list) and all(isinstance(word, str) for word in value):
            yield " ".join(value)
        elif skip_bad:
            bad.append(place)
        else:
            got = f"{place}: {type(value).__name__}" if column in row else f"{place} without it"
            raise CorpusError(
                f"text in column {column!r} of {where}", got, "choose another --column, or pass --skip-bad"
            )


def _until_text(texts: Iterator[str]) -> Iterator[str]:
    """The texts up to and with the first one that is not blank."""
    for text in texts:
        yield text
        if text.strip():
            return


def _articles(lines: Iterable[str]) -> Iterator[str]:
    """WikiText articles: a level-1 title (one `=` each side) after a blank line, or at the beginning, starts one."""
    article: list[str] = []
    blank = True
    for line in (line.rstrip("\n") for line in lines):
        if blank and article and _ARTICLE.fullmatch(line):
            yield "\n".join(article).strip()
            article = []
        blank = not line.strip()
        if article or not blank:
            article.append(line)
    if article:
        yield "\n".join(article).strip()


def pieces(text: str) -> Iterator[str]:
    """Running text cut after line ends (after blanks, or anywhere, where lines are longer); nothing is lost."""
    first = 0
    while first < len(text):
        last = min(first + PIECE, len(text))
        if last < len(text):
            last = next((cut + 1 for mark in "\n " if (cut := text.rfind(mark, first, last)) > first), last)
        yield text[first:last]
        first = last


def _read_folder(path: Path, wanted: Wanted) -> Reading:
    """One document per text file, or the rows of all JSON lines and parquet files; in the order of their paths."""
    files = [file for file in sorted(path.rglob("*")) if file.is_file() and not file.name.startswith(".")]
    texts = [file for file in files if _ending(file) in (".txt", ".md", ".rst")]
    tables = [file for file in files if _ending(file) in (".jsonl", ".parquet")]
    if bool(texts) == bool(tables):
        got = f"{len(texts)} text files, {len(tables)} tables and {len(files) - len(texts) - len(tables)} other files"
        cure = "name one file, or a folder of text files (one document each), of JSON lines or of parquet files"
        raise CorpusError(f"text files or tables ({', '.join(ENDINGS)}) in {path}", got, cure)
    if tables:
        return read_rows(chain.from_iterable(_file_rows(file, wanted) for file in tables), wanted, str(path))
    documents, empty, skipped = [], 0, 0
    for file in texts:
        try:
            text = _read_text(file)
        except CorpusError:
            if not wanted.skip_bad:
                raise
            skipped += 1
            continue
        empty += not text.strip()
        documents += [text] if text.strip() else []
        if len(documents) == wanted.limit:
            break
    return Reading(documents, "files", empty=empty, skipped=skipped)


def _read_text(path: Path) -> str:
    """The text of a UTF-8 file, unpacked where its name ends in .gz, every line end as \\n."""
    data = _read_bytes(path)
    expected = f"UTF-8 text in {path}"
    cure = "name a text, JSON lines or parquet file; convert text in another encoding (UTF-16, Latin-1) with iconv"
    if b"\0" in data:
        raise CorpusError(expected, "a binary file (it holds NUL bytes)", cure)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CorpusError(expected, f"a byte that is not UTF-8 at position {error.start}", cure) from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _read_bytes(path: Path) -> bytes:
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if path.name.endswith(".gz") else data
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise CorpusError(
            f"a gzip file in {path}", str(error), "copy the file again: it is damaged or not gzip"
        ) from None
    except OSError as error:
        raise CorpusError(f"a readable file at {path}", error.strerror or str(error), "check path and rights") from None


def _ending(path: Path) -> str:
    return Path(path.name.removesuffix(".gz")).suffix.lower()
