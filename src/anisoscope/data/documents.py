"""Documents out of files and folders of text and of tables, and out of any stream of rows."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from anisoscope.data.corpora import Asked
from anisoscope.data.files import ending, read_text
from anisoscope.data.local import TEXT_ENDINGS
from anisoscope.data.splitting import SplitText, articles, is_title, running, split_text
from anisoscope.data.tables import TABLES, Row, form_of, is_table, known_column, read_table
from anisoscope.errors import CorpusError, UsageError

TEXTS = (".txt", ".md", ".rst")
TEXT_COLUMNS = ("text", "content", "sentence", "document", "article", "passage", "body", "tokens", "words")


def read_path(path: Path, asked: Asked) -> SplitText:
    """Documents of a file or folder, at most `limit` of them where they are marked."""
    if path.is_dir():
        return _read_folder(path, asked)
    if is_table(path):
        return read_rows(read_table(path, column=asked.column), asked, str(path))
    if asked.column is not None:
        cure = "leave --column out, or name a table"
        raise CorpusError(f"a table ({', '.join(TABLES)}) or a hub data set where a column is named", str(path), cure)
    return split_text(read_text(path), asked.limit, asked.documents)


def read_rows(rows: Iterable[Row], asked: Asked, where: str) -> SplitText:
    """One document per row, or WikiText articles where the rows are its lines (the first one with text is a title), or
    blocks of tokens where these are asked for. Reads no further than `limit` needs.
    """
    if asked.documents in ("file", "blank-line", "line"):
        cure = "leave it out: every row is a document"
        raise UsageError(f"--documents tokens:N, or none, with the table {where}", asked.documents, cure)
    bad: list[str] = []
    good = _good(rows, bad, asked.skip_bad, where)
    first = next(good, None)
    if first is None:
        return SplitText([], "rows", skipped=len(bad))
    column = choose_column(first.columns, asked.column, where)
    texts = _texts(chain([first], good), column, bad, asked.skip_bad, where)
    read = _by_rows(texts, asked)
    return replace(read, skipped=len(bad), column=column)


def _by_rows(texts: Iterator[str], asked: Asked) -> SplitText:
    if asked.documents != "auto":
        lines = (text if text.endswith("\n") else f"{text}\n" for text in texts)
        return running(lines, int(asked.documents.partition(":")[2]))
    head: list[str] = []
    for text in texts:
        head.append(text)
        if text.strip():
            break
    stream = chain(head, texts)
    if head and is_title(head[-1]):
        return SplitText(list(islice(articles(stream), asked.limit)), "titles", "article")
    documents: list[str] = []
    empty = 0
    for text in stream:
        if text.strip():
            documents.append(text)
        else:
            empty += 1
        if len(documents) == asked.limit:
            break
    return SplitText(documents, "rows", "row", empty=empty)


def choose_column(row: dict[str, Any], column: str | None, where: str) -> str:
    """The column asked for, else the first of `TEXT_COLUMNS`, else the only column of strings."""
    if column is not None:
        return known_column(column, row, where)
    strings = [name for name, value in row.items() if isinstance(value, str)]
    for name in TEXT_COLUMNS + (tuple(strings) if len(strings) == 1 else ()):
        if name in row:
            return name
    raise CorpusError(f"a text column in {where}", f"the columns {', '.join(row)}", "choose one with --column")


def has_text(path: Path) -> bool:
    """Whether a table has a column named as those of text are."""
    first = next((row.columns for row in read_table(path) if not row.fault), {})
    return not first.keys().isdisjoint(TEXT_COLUMNS)


def _good(rows: Iterable[Row], bad: list[str], skip_bad: bool, where: str) -> Iterator[Row]:
    """The readable rows with columns; the places of the others go to `bad`, or the first of them is an error."""
    for row in rows:
        if row.fault and not skip_bad:
            cure = "repair the row, or pass --skip-bad"
            raise CorpusError(f"{form_of(where)} in {where}", f"{row.place}: {row.fault}", cure)
        if row.fault:
            bad.append(row.place)
        elif row.columns:
            yield row


def _texts(rows: Iterable[Row], column: str, bad: list[str], skip_bad: bool, where: str) -> Iterator[str]:
    """Texts of the rows. Lists of strings are joined by blanks, null is empty; anything else is an error that names the
    place, or goes to `bad`.
    """
    for place, row, _ in rows:
        value = row.get(column, 0)
        if value is None or isinstance(value, str):
            yield value or ""
        elif isinstance(value, list) and all(isinstance(word, str) for word in value):
            yield " ".join(value)
        elif skip_bad:
            bad.append(place)
        else:
            got = f"{place}: {type(value).__name__}" if column in row else f"{place} without it"
            cure = "choose another --column, or pass --skip-bad"
            raise CorpusError(f"text in column {column!r} of {where}", got, cure)


def _read_folder(path: Path, asked: Asked) -> SplitText:
    """One document per text file (or by another rule), or the rows of all tables; in the order of their paths."""
    files = [file for file in sorted(path.rglob("*")) if file.is_file() and not file.name.startswith(".")]
    texts = [file for file in files if ending(file) in TEXTS]
    tables = [file for file in files if is_table(file)]
    if bool(texts) == bool(tables):
        got = f"{len(texts)} text files, {len(tables)} tables and {len(files) - len(texts) - len(tables)} other files"
        cure = "name one file, or a folder of text files (one document each) or of tables"
        raise CorpusError(f"text files or tables ({', '.join(TEXT_ENDINGS)}) in {path}", got, cure)
    if tables:
        return read_rows(_rows_of(tables, asked), asked, str(path))
    if asked.column is not None:
        raise CorpusError(f"a table where a column is named in {path}", "text files", "leave --column out")
    return _of_files(texts, asked)


def _rows_of(tables: list[Path], asked: Asked) -> Iterator[Row]:
    """Rows of several tables, each place with its file; a file that is no table is one bad row."""
    for file in tables:
        try:
            for row in read_table(file, column=asked.column):
                yield row._replace(place=f"{file.name}, {row.place}")
        except CorpusError as error:
            if not asked.skip_bad:
                raise
            yield Row(file.name, {}, error.got)


def _of_files(files: list[Path], asked: Asked) -> SplitText:
    """A single file as where it is named itself; of several each is a document, or is told apart by the rule."""
    rule = "file" if asked.documents == "auto" and len(files) > 1 else asked.documents
    last, documents, empty, skipped = SplitText([], "files"), list[str](), 0, 0
    for file in files:
        try:
            last = split_text(read_text(file), None, rule)
        except CorpusError:
            if not asked.skip_bad:
                raise
            skipped += 1
            continue
        empty += not last.documents
        documents += last.documents
        if last.block is None and asked.limit is not None and len(documents) >= asked.limit:
            break
    limit = asked.limit if last.block is None else None
    return replace(last, documents=documents[:limit], empty=empty, skipped=skipped)
