"""Read documents from files and folders of text, from tables, and from any stream of rows."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from anisoscope.data.corpora import CorpusOptions
from anisoscope.data.files import get_ending, list_files_below
from anisoscope.data.local import TEXT_ENDINGS
from anisoscope.data.on_disk import keep_texts
from anisoscope.data.splitting import (
    SplitText,
    cut_into_blocks,
    is_title,
    split_articles,
    split_file,
)
from anisoscope.data.table_rows import (
    TABLES,
    Row,
    describe_form,
    is_number,
    is_table,
    read_table_rows,
    require_column,
)
from anisoscope.errors import CorpusError, UsageError

TEXTS = (".txt", ".md", ".rst")
CHATS = (
    "messages",
    "conversations",
    "conversation",
    "chat",
    "dialogue",
    "dialog",
    "turns",
)
"""Columns of chats: lists of messages, each with its text."""
CONTENTS = ("content", "value", "text", "utterance")
"""Keys under which a message has its text."""
# The likeliest first. `tokens` and `words` hold lists of words, which are joined by
# blanks.
TEXT_COLUMNS = (
    "text",
    "content",
    "sentence",
    "document",
    "article",
    "passage",
    "body",
    "tokens",
    "words",
)


def read_path(path: Path, options: CorpusOptions) -> SplitText:
    """Read the documents of a text file, a table or a folder; at most `limit` documents if their ends are marked.

    options   how the corpus is to be read
    """
    if path.is_dir():
        return _read_folder(path, options)
    if is_table(path):
        return read_rows(
            read_table_rows(path, column=options.column), options, str(path)
        )
    if options.column is not None:
        cure = "leave --column out, or name a table"
        raise CorpusError(
            f"a table ({', '.join(TABLES)}) or a hub data set, because --column names "
            "a column",
            str(path),
            cure,
        )
    return split_file(path, options.limit, options.documents)


def list_separate_files(path: Path, options: CorpusOptions) -> list[Path]:
    """List the texts or tables of a folder, in path order, if every document ends with its file.

    Empty for other corpora (WikiText articles and blocks of tokens may go on in the next file), and if the corpus is
    limited to its first units, which depend on all files before.

    options   how the corpus is to be read
    """
    # The first units depend on the files before, and blocks of tokens cross the ends of
    # files.
    if (
        not path.is_dir()
        or options.limit is not None
        or options.documents.startswith("tokens:")
    ):
        return []
    texts, tables, _ = _sort_files(path)
    # Neither, or both: reading the folder says what is wrong with it.
    if bool(texts) == bool(tables):
        return []
    if texts:
        # a single text is split into documents by its own marks
        return texts if len(texts) > 1 else []
    rows = _iter_texts(
        _iter_rows(list(enumerate(tables)), options, _CurrentFile()),
        options,
        str(path),
        [],
    )
    # The first row with a text decides: articles of WikiText may go on in the next
    # file.
    for _, text in rows:
        if text.strip():
            return [] if is_title(text) else tables
    return tables


def list_texts_or_tables(folder: Path) -> list[Path]:
    """List the files of a folder that are read: its texts, or its tables, in path order."""
    texts, tables, _ = _sort_files(folder)
    return texts or tables


def fix_column(
    folder: Path, files: list[Path], options: CorpusOptions
) -> CorpusOptions:
    """Return the options with the column that all tables are read by: that of the first row of the first one.

    Unchanged for texts.

    folder    that the files are in, for errors
    files     all texts or tables of the folder, in path order
    options   how the corpus is to be read
    """
    if not is_table(files[0]):
        return options
    # The tables of a folder are read by one column, chosen once.
    for row in _iter_rows(list(enumerate(files)), options, _CurrentFile()):
        if row.columns:
            return replace(
                options, column=choose_column(row.columns, options.column, str(folder))
            )
    return options


def read_separate_file(
    folder: Path, number: int, file: Path, options: CorpusOptions
) -> SplitText:
    """Read the documents of one file of a folder, in which every document ends with its file.

    folder    that the file is in, for errors
    number    of the file among those of the folder
    options   how the corpus is to be read, with the column if the file is a table (`fix_column`)
    """
    if not is_table(file):
        return _read_files([(number, file)], options, by_file=True)
    current = _CurrentFile()
    return read_rows(
        _iter_rows([(number, file)], options, current),
        options,
        str(folder),
        current,
        are_documents=True,
    )


class _CurrentFile:
    """Holds the number of the file of a folder that is being read."""

    file = 0


def read_rows(
    rows: Iterable[Row],
    options: CorpusOptions,
    where: str,
    current: _CurrentFile | None = None,
    *,
    are_documents: bool = False,
) -> SplitText:
    """Read documents from rows: one per row, WikiText article or block of tokens; no more rows than `limit` needs.

    UsageError if `documents` asks for a rule that tables do not have.

    options         how the corpus is to be read
    where           what the rows are of, for errors
    current         of a folder: holds the number of the file from which the current row is
    are_documents   each row is known to be a document: titles of articles are not looked for
    """
    if options.documents in ("file", "blank-line", "line"):
        cure = "leave --documents out: every row is a document"
        raise UsageError(
            f"no --documents but tokens:N with the table {where}",
            options.documents,
            cure,
        )
    bad: list[str] = []
    found = _iter_texts(rows, options, where, bad)
    # The first text is read at once: it chooses the column, and shows whether there is
    # any.
    first = next(found, None)
    if first is None:
        return SplitText([], "rows", skipped=len(bad))
    owner: list[int] = []

    def note_files() -> Iterator[str]:
        """Yield the texts of the rows; note for each the number of the file that it is from."""
        for _, text in chain([first], found):
            # Empty rows are no documents, so they have no owner.
            if current is not None and text.strip():
                owner.append(current.file)
            yield text

    read = _split_rows(note_files(), options, are_documents=are_documents)
    # Articles and blocks of tokens may cross the ends of files.
    separate = current is not None and read.how == "rows"
    return replace(
        read, skipped=len(bad), column=first[0], owner=owner if separate else None
    )


def _split_rows(
    texts: Iterator[str], options: CorpusOptions, *, are_documents: bool
) -> SplitText:
    """Turn the texts of rows into documents: a document per row, WikiText article or block of tokens.

    texts           of the rows; they are articles if the first line is a title
    options         how the corpus is to be read; `documents` may ask for blocks of tokens
    are_documents   each row is a document, even if the first line is a title
    """
    if options.documents != "auto":
        # Else the last word of a row and the first of the next would be one.
        block = int(options.documents.partition(":")[2])
        return cut_into_blocks(_end_lines(texts), block)
    # WikiText has a line of an article in each row, and empty rows before the first title
    head: list[str] = []
    for text in texts:
        head.append(text)
        if text.strip():
            break
    stream = chain(head, texts)
    if head and is_title(head[-1]) and not are_documents:
        return SplitText(
            keep_texts(islice(split_articles(stream), options.limit)),
            "titles",
            "article",
        )
    return _take_rows(stream, options.limit)


def _end_lines(texts: Iterable[str]) -> Iterator[str]:
    """Yield the texts, each with a line break at its end."""
    for text in texts:
        if text.endswith("\n"):
            yield text
        else:
            yield f"{text}\n"


def _take_rows(texts: Iterable[str], limit: int | None) -> SplitText:
    """Return the first `limit` texts that are not empty as documents; no text after them is read."""
    empty = 0

    def iter_filled() -> Iterator[str]:
        """Yield the texts that are not empty, and count the others."""
        nonlocal empty
        for text in texts:
            if text.strip():
                yield text
            else:
                empty += 1

    # Not kept in a list, since a corpus may be larger than memory.
    documents = keep_texts(islice(iter_filled(), limit))
    return SplitText(documents, "rows", "row", empty=empty)


def choose_column(row: dict[str, Any], column: str | None, where: str) -> str:
    """Choose the column of text: the one asked for, else a known name, else a chat, else the only one that holds text.

    CorpusError if there is none of them.

    row     the first row
    where   what the row is of, for errors
    """
    if column is not None:
        return require_column(column, row, where)
    for name in TEXT_COLUMNS:
        if name in row:
            return name
    guessed = _guess_text_column(row)
    if guessed is None:
        raise CorpusError(
            f"a text column in {where}",
            f"the columns {', '.join(row)}",
            "choose one with --column",
        )
    return guessed


def _guess_text_column(row: dict[str, Any]) -> str | None:
    """Guess the column of text in a row: one of chats, else the only one that holds text, else the only one there is.

    None if there is no such column.
    """
    # before texts: what is next to a chat describes it, as the id of ShareGPT does
    for name in CHATS:
        if name in row and join_chat(row[name]) is not None:
            return name
    texts = []
    for name, value in row.items():
        # every value of a CSV table is a text, numbers too
        if isinstance(value, str) and not is_number(value):
            texts.append(name)
    if len(texts) == 1:
        return texts[0]
    if len(row) == 1:
        return next(iter(row))
    return None


def list_if_texts(inputs: Any) -> Any:
    """Return an iterator over texts, or rows with texts, as a list; anything else unchanged.

    An iterator over other things still yields all of its items.
    """
    if not isinstance(inputs, Iterator):
        return inputs
    # The first item is enough to know what the others are.
    items = list(islice(inputs, 1))
    if not items:
        return items
    first = items[0]
    is_row = isinstance(first, dict) and any(
        isinstance(value, str) for value in first.values()
    )
    rest = chain(items, inputs)
    if is_row or isinstance(first, str):
        return list(rest)
    # a generator, as which errors then name it
    return (item for item in rest)


def join_chat(value: Any) -> str | None:
    """Return the texts of all messages of a chat, joined with line breaks; None if the value is no chat.

    A chat is a list of messages: objects with a text, or a list of parts with texts, under one of the keys `CONTENTS`.
    """
    if not isinstance(value, list) or not value:
        return None
    texts = []
    for message in value:
        if not isinstance(message, dict):
            return None
        content = _find_content(message)
        if content is not None and not isinstance(content, str):
            return None
        # a call of a tool has no text
        if content:
            texts.append(content)
    return "\n".join(texts)


def _find_content(message: dict[str, Any]) -> Any:
    """Return the text of a chat message: its first entry named in `CONTENTS`, parts joined; None if it has none."""
    for name in CONTENTS:
        if name in message:
            content = message[name]
            return _join_parts(content) if isinstance(content, list) else content
    return None


def _join_parts(parts: list[Any]) -> str:
    """Join the texts among the parts of a message with line breaks; images and other parts have none."""
    texts = []
    for part in parts:
        if isinstance(part, dict) and part.get("text"):
            texts.append(str(part["text"]))
    return "\n".join(texts)


def has_text(path: Path) -> bool:
    """Return whether a table has a column with one of the names that text columns usually have."""
    for row in read_table_rows(path):
        if not row.fault:
            return not row.columns.keys().isdisjoint(TEXT_COLUMNS)
    return False


def _iter_texts(
    rows: Iterable[Row], options: CorpusOptions, where: str, bad: list[str]
) -> Iterator[tuple[str, str]]:
    """Yield (name of the column of text, text) of each row.

    The column is chosen by the first readable row. Lists of strings are joined by blanks; null counts as empty. A row
    without text raises CorpusError, unless `skip_bad` is set.

    options   how the corpus is to be read
    where     the table or data set, for errors
    bad       receives the places of rows without text, if `skip_bad` is set
    """
    column = ""
    for place, row, fault in rows:
        if row:
            # Once, by the first row: the others must have it.
            column = column or choose_column(row, options.column, where)
            text = _find_text(row, column)
            if text is not None:
                yield column, text
                continue
        # `{}` in JSON: a row of nothing, which is no fault.
        elif not fault:
            continue
        if not options.skip_bad:
            raise _refuse_row(place, row, fault, column, where)
        bad.append(place)


def _find_text(row: dict[str, Any], column: str) -> str | None:
    """Return the text in a column; null is empty, and a row without the column or with something else has none."""
    if column not in row:
        return None
    # Null is a missing text; a missing column is a fault.
    value = row[column]
    if value is None:
        return ""
    # Texts that are split into words already.
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return " ".join(value)
    if isinstance(value, str):
        return value
    return join_chat(value)


def _refuse_row(
    place: str, row: dict[str, Any], fault: str, column: str, where: str
) -> CorpusError:
    """Make the error for a row that cannot be read, or has no text in the column. The caller raises it.

    place    where the row is: `line 7`
    row      its values by column
    fault    why it cannot be read; empty: it has no text
    column   the column of text
    where    the table or data set
    """
    if not row:
        cure = "repair the row, or pass --skip-bad"
        return CorpusError(
            f"{describe_form(where)} in {where}", f"{place}: {fault}", cure
        )
    got = f"{place} without that column"
    if column in row:
        got = f"{place}: {type(row[column]).__name__}"
    cure = "choose another --column, or pass --skip-bad"
    return CorpusError(f"text in column {column!r} of {where}", got, cure)


def _read_folder(path: Path, options: CorpusOptions) -> SplitText:
    """Read one document per text file of a folder (or by another rule), or the rows of all its tables, in path order.

    options   how the corpus is to be read
    """
    texts, tables, others = _sort_files(path)
    if bool(texts) == bool(tables):
        got = f"{len(texts)} text files, {len(tables)} tables and {others} other files"
        cure = (
            "name one file, or a folder of text files (one document each) or of tables"
        )
        raise CorpusError(
            f"text files or tables ({', '.join(TEXT_ENDINGS)}) in {path}", got, cure
        )
    if tables:
        return _read_tables(path, tables, options)
    if options.column is not None:
        raise CorpusError(
            f"a table in {path}, because --column names a column",
            "text files",
            "leave --column out",
        )
    return _read_files(list(enumerate(texts)), options, by_file=len(texts) > 1)


def _read_tables(folder: Path, tables: list[Path], options: CorpusOptions) -> SplitText:
    """Read the rows of all tables of a folder.

    options   how the corpus is to be read
    """
    current = _CurrentFile()
    return read_rows(
        _iter_rows(list(enumerate(tables)), options, current),
        options,
        str(folder),
        current,
    )


def _sort_files(folder: Path) -> tuple[list[Path], list[Path], int]:
    """Return the text files and the tables of a folder in path order, and the number of other files."""
    files = list_files_below(folder)
    texts = [file for file in files if get_ending(file) in TEXTS]
    tables = [file for file in files if is_table(file)]
    return texts, tables, len(files) - len(texts) - len(tables)


def _iter_rows(
    tables: list[tuple[int, Path]], options: CorpusOptions, current: _CurrentFile
) -> Iterator[Row]:
    """Yield the rows of several tables; each row says its file and line. A file that is no table gives one faulty row.

    tables    (number, path) of each
    options   how the corpus is to be read
    current   receives the number of the file of each row
    """
    for number, file in tables:
        current.file = number
        try:
            for row in read_table_rows(file, column=options.column):
                # Rows are named by their file, since several tables have a line 7.
                yield row._replace(place=f"{file.name}, {row.place}")
        # With --skip-bad, a damaged file costs only its own rows.
        except CorpusError as error:
            if not options.skip_bad:
                raise
            yield Row(file.name, {}, error.got)


def _read_files(
    files: list[tuple[int, Path]], options: CorpusOptions, *, by_file: bool
) -> SplitText:
    """Read text files of a folder: a single one like a named file, several as a document each or by the chosen rule.

    files     (number, path) of each
    options   how the corpus is to be read
    by_file   whether the folder has several
    """
    rule = options.documents
    # Of several files each is a document, unless the user asked for another rule.
    if rule == "auto" and by_file:
        rule = "file"
    last = SplitText([], "files")
    owner: list[int] = []
    empty = skipped = 0

    def iter_documents() -> Iterator[str]:
        """Yield the documents of all files, and note of which file each is."""
        nonlocal last, empty, skipped
        for number, file in files:
            read = _split_or_skip(file, options, rule)
            if read is None:
                skipped += 1
                continue
            # All files are split by one rule: what the last one says of it holds for
            # all.
            last = read
            empty += not read.documents
            for document in read.documents:
                owner.append(number)
                yield document

    # blocks of tokens are cut and counted later, over the ends of files
    limit = options.limit if by_file and not rule.startswith("tokens:") else None
    documents = keep_texts(islice(iter_documents(), limit))
    owned = owner if by_file and last.block is None else None
    return replace(last, documents=documents, empty=empty, skipped=skipped, owner=owned)


def _split_or_skip(file: Path, options: CorpusOptions, rule: str) -> SplitText | None:
    """Split a text file into documents; None if it cannot be read and `skip_bad` is set.

    options   how the corpus is to be read
    rule      how documents are separated: `file`, `blank-line`, `line`, `tokens:N` or `auto`
    """
    try:
        return split_file(file, options.limit, rule)
    except CorpusError:
        if options.skip_bad:
            return None
        raise
