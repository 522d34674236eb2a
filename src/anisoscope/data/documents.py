"""Read documents from files and folders of text, from tables, and from any stream of rows."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from anisoscope.data.corpora import CorpusOptions
from anisoscope.data.files import get_ending, list_files_below, read_start
from anisoscope.data.local import TEXT_ENDINGS
from anisoscope.data.splitting import SplitText, fixed_size_blocks, is_title, split_articles, split_file
from anisoscope.data.table_rows import TABLES, Row, describe_form, is_number, is_table, read_table_rows, require_column
from anisoscope.errors import CorpusError, UsageError

TEXTS = (".txt", ".md", ".rst")
CHATS = ("messages", "conversations", "conversation", "chat", "dialogue", "dialog", "turns")
"""Columns of chats: lists of messages, each with its text."""
CONTENTS = ("content", "value", "text", "utterance")
"""Where the text of a message stands."""
TEXT_COLUMNS = ("text", "content", "sentence", "document", "article", "passage", "body", "tokens", "words")


def read_path(path: Path, asked: CorpusOptions) -> SplitText:
    """Read the documents of a text file, a table or a folder; at most `limit` documents if their ends are marked.

    asked   how the corpus is to be read
    """
    if path.is_dir():
        return _read_folder(path, asked)
    if is_table(path):
        return read_rows(read_table_rows(path, column=asked.column), asked, str(path))
    if asked.column is not None:
        cure = "leave --column out, or name a table"
        raise CorpusError(f"a table ({', '.join(TABLES)}) or a hub data set where a column is named", str(path), cure)
    return split_file(partial(read_start, path), asked.limit, asked.documents)


def list_separate_files(path: Path, asked: CorpusOptions) -> list[Path]:
    """List the texts or tables of a folder, in path order, if every document ends with its file.

    Empty for other corpora (WikiText articles and blocks of tokens may go on in the next file), and if the corpus is
    limited to its first units, which depend on all files before.

    asked   how the corpus is to be read
    """
    if not path.is_dir() or asked.limit is not None or asked.documents.startswith("tokens:"):
        return []
    texts, tables, _ = _sort_files(path)
    if bool(texts) == bool(tables):
        return []
    if texts:
        return texts if len(texts) > 1 else []
    rows = _texts(_rows_of(list(enumerate(tables)), asked, _Reading()), asked, str(path), [])
    first = next((text for _, text in rows if text.strip()), "")
    return [] if is_title(first) else tables


def list_texts_or_tables(folder: Path) -> list[Path]:
    """List the files of a folder that are read: its texts, or its tables, in path order."""
    texts, tables, _ = _sort_files(folder)
    return texts or tables


class _Reading:
    """The number of the file of a folder that is being read."""

    file = 0


def read_rows(rows: Iterable[Row], asked: CorpusOptions, where: str, reading: _Reading | None = None) -> SplitText:
    """Read one document per row, WikiText article or block of tokens, and no more rows than `limit` needs.

    UsageError if `documents` asks for a rule that tables do not have.

    asked     how the corpus is to be read
    where     what the rows are of, for errors
    reading   of a folder: holds the number of the file from which the current row is
    """
    if asked.documents in ("file", "blank-line", "line"):
        cure = "leave it out: every row is a document"
        raise UsageError(f"--documents tokens:N, or none, with the table {where}", asked.documents, cure)
    bad: list[str] = []
    found = _texts(rows, asked, where, bad)
    first = next(found, None)
    if first is None:
        return SplitText([], "rows", skipped=len(bad))
    owner: list[int] = []

    def note_files() -> Iterator[str]:
        """Yield the texts, and note of which file each document is, as its row is read."""
        for _, text in chain([first], found):
            if reading is not None and text.strip():
                owner.append(reading.file)
            yield text

    read = _by_rows(note_files(), asked)
    separate = reading is not None and read.how == "rows"
    return replace(read, skipped=len(bad), column=first[0], owner=owner if separate else None)


def _by_rows(texts: Iterator[str], asked: CorpusOptions) -> SplitText:
    """Turn the texts of rows into documents: blocks of tokens, WikiText articles if the first line is a title, or
    rows.
    """
    if asked.documents != "auto":
        lines = (text if text.endswith("\n") else f"{text}\n" for text in texts)
        return fixed_size_blocks(lines, int(asked.documents.partition(":")[2]))
    head: list[str] = []
    for text in texts:
        head.append(text)
        if text.strip():
            break
    stream = chain(head, texts)
    if head and is_title(head[-1]):
        return SplitText(list(islice(split_articles(stream), asked.limit)), "titles", "article")
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
    """Choose the column of text: the one asked for, else a known name, else the only one that holds text, else a chat.

    CorpusError if there is none of them.

    row     the first row
    where   what the row is of, for errors
    """
    if column is not None:
        return require_column(column, row, where)
    strings = [name for name, value in row.items() if isinstance(value, str) and not is_number(value)]
    for name in TEXT_COLUMNS + (tuple(strings) if len(strings) == 1 else ()):
        if name in row:
            return name
    chats = [name for name in CHATS if name in row and text_of_chat(row[name]) is not None]
    if chats:
        return chats[0]
    if len(row) == 1:
        return next(iter(row))
    raise CorpusError(f"a text column in {where}", f"the columns {', '.join(row)}", "choose one with --column")


def text_of_chat(value: Any) -> str | None:
    """Join the texts of all messages of a chat with line breaks; None if the value is no chat.

    A message is an object with its text in one of `CONTENTS`, which may be a list of parts that have a `text`.
    """
    if not isinstance(value, list) or not value:
        return None
    texts = []
    for message in value:
        if not isinstance(message, dict):
            return None
        content = next((message[name] for name in CONTENTS if name in message), None)
        if isinstance(content, list):  # parts: text, images …
            content = "\n".join(str(part["text"]) for part in content if isinstance(part, dict) and part.get("text"))
        if content is not None and not isinstance(content, str):
            return None
        texts.append(content or "")  # a call of a tool has no text
    return "\n".join(text for text in texts if text)


def has_text(path: Path) -> bool:
    """Return whether a table has a column with one of the names that text columns usually have."""
    first = next((row.columns for row in read_table_rows(path) if not row.fault), {})
    return not first.keys().isdisjoint(TEXT_COLUMNS)


def _texts(rows: Iterable[Row], asked: CorpusOptions, where: str, bad: list[str]) -> Iterator[tuple[str, str]]:
    """Yield (column, text) of each row. The column is chosen by the first readable row.

    where   what the rows are of, for errors
    bad     receives the places of rows without text, if `skip_bad` is set

    Lists of strings are joined by blanks; null counts as empty. A row without text raises CorpusError, unless
    `skip_bad`.
    """
    column = ""
    for place, row, fault in rows:
        expected, got, cure = (
            f"{describe_form(where)} in {where}",
            f"{place}: {fault}",
            "repair the row, or pass --skip-bad",
        )
        if row:
            column = column or choose_column(row, asked.column, where)
            value = row.get(column, 0)
            if isinstance(value, list) and all(isinstance(word, str) for word in value):
                value = " ".join(value)
            elif (chat := text_of_chat(value)) is not None:
                value = chat
            if value is None or isinstance(value, str):
                yield column, value or ""
                continue
            got = f"{place}: {type(value).__name__}" if column in row else f"{place} without it"
            expected, cure = f"text in column {column!r} of {where}", "choose another --column, or pass --skip-bad"
        elif not fault:
            continue
        if not asked.skip_bad:
            raise CorpusError(expected, got, cure)
        bad.append(place)


def _read_folder(path: Path, asked: CorpusOptions) -> SplitText:
    """Read one document per text file of a folder (or by another rule), or the rows of all its tables, in path order.

    asked   how the corpus is to be read
    """
    texts, tables, others = _sort_files(path)
    if bool(texts) == bool(tables):
        got = f"{len(texts)} text files, {len(tables)} tables and {others} other files"
        cure = "name one file, or a folder of text files (one document each) or of tables"
        raise CorpusError(f"text files or tables ({', '.join(TEXT_ENDINGS)}) in {path}", got, cure)
    part, parts = asked.files
    if tables:
        own, reading = list(enumerate(tables))[part::parts], _Reading()
        if part:  # the column is that of the first file, as when all are read
            every = _rows_of(list(enumerate(tables)), asked, _Reading())
            head = next((row.columns for row in every if row.columns), None)
            asked = asked if head is None else replace(asked, column=choose_column(head, asked.column, str(path)))
        return read_rows(_rows_of(own, asked, reading), asked, str(path), reading)
    if asked.column is not None:
        raise CorpusError(f"a table where a column is named in {path}", "text files", "leave --column out")
    return _of_files(texts, asked)


def _sort_files(folder: Path) -> tuple[list[Path], list[Path], int]:
    """Return the text files and the tables of a folder in path order, and the number of other files."""
    files = list_files_below(folder)
    texts = [file for file in files if get_ending(file) in TEXTS]
    tables = [file for file in files if is_table(file)]
    return texts, tables, len(files) - len(texts) - len(tables)


def _rows_of(tables: list[tuple[int, Path]], asked: CorpusOptions, reading: _Reading) -> Iterator[Row]:
    """Yield the rows of several tables; each row says its file and line. A file that is no table gives one faulty row.

    tables    number and path of each
    asked     how the corpus is to be read
    reading   receives the number of the file of each row
    """
    for number, file in tables:
        reading.file = number
        try:
            for row in read_table_rows(file, column=asked.column):
                yield row._replace(place=f"{file.name}, {row.place}")
        except CorpusError as error:
            if not asked.skip_bad:
                raise
            yield Row(file.name, {}, error.got)


def _of_files(files: list[Path], asked: CorpusOptions) -> SplitText:
    """Read the text files of a folder: a single one like a named file, several as a document each or by the chosen
    rule.

    asked   how the corpus is to be read
    """
    rule = "file" if asked.documents == "auto" and len(files) > 1 else asked.documents
    last, documents, empty, skipped = SplitText([], "files"), list[str](), 0, 0
    owner: list[int] = []
    part, parts = asked.files
    for number, file in list(enumerate(files))[part::parts]:
        try:
            last = split_file(partial(read_start, file), asked.limit, rule)
        except CorpusError:
            if not asked.skip_bad:
                raise
            skipped += 1
            continue
        empty += not last.documents
        documents += last.documents
        owner += [number] * len(last.documents)
        if last.block is None and asked.limit is not None and len(documents) >= asked.limit:
            break
    limit = asked.limit if last.block is None else None
    separate = len(files) > 1 and last.block is None
    owned = owner[:limit] if separate else None
    return replace(last, documents=documents[:limit], empty=empty, skipped=skipped, owner=owned)
