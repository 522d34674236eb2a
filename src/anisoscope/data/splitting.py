"""Split a text into documents: by titles, blank lines or lines, whole, or in blocks of tokens."""

import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path

from anisoscope.data.files import (
    SMALLER,
    get_memory_budget,
    read_pieces,
    read_text,
    refuse_large_file,
)
from anisoscope.data.on_disk import empty_list, keep_texts
from anisoscope.errors import UsageError, suggest_names

# how a text can be split into documents
RULES = ("auto", "file", "blank-line", "line", "tokens:N")
DOCUMENT_WORDS = 200  # median length from which blocks between blank lines are documents; shorter ones are paragraphs
BLOCK = 8192  # tokens of one unit of long text without marks
ENOUGH, LEAST, MOST_SHORT = 20, 32, 128
"""Units from which an interval is no longer rough; tokens of the smallest block, and the largest of short texts."""

# of a token, to estimate a text's length in tokens before a tokenizer is known
CHARACTERS = 6
PIECE = 100_000  # characters of text without marks: long enough to tokenise as running text, short enough for memory
_WORD = re.compile(r"\S+")
_ARTICLE = re.compile(r" ?= [^=](?:.*[^=])? = ?")


@dataclass(frozen=True)
class SplitText:
    """The documents of a source, and how they were separated.

    how      the rule in words, for the manifest
    unit     what a document is called
    block    tokens of a unit of running text, whose `documents` are pieces cut at line ends; None: documents are units
    guessed  whether the text had no marks of documents, so that a rule was chosen
    empty    how many documents without text were dropped
    skipped  how many could not be read
    column   the column that was read
    owner    of a folder: number of the file of each document; None: documents may go on from one file to the next
    """

    documents: Sequence[str]
    how: str
    unit: str = "document"
    block: int | None = None
    guessed: bool = False
    empty: int = 0
    skipped: int = 0
    column: str | None = None
    owner: list[int] | None = None


def check_rule(rule: str) -> str:
    """Check the rule by which text is split into documents, and return it.

    UsageError, with similar names, if there is no such rule.
    """
    if rule in RULES[:-1]:
        return rule
    name, _, count = rule.partition(":")
    # ten digits are enough to see that a number is too large, and Python refuses to parse thousands
    if name == "tokens" and count.isdecimal() and 0 < int(count[:10]) < 10**9:
        return rule
    cure = "for example tokens:512" if name == "tokens" else suggest_names(rule, RULES)
    raise UsageError(f"--documents out of {', '.join(RULES)}", repr(rule), cure)


HEAD = 1 << 24  # characters of a text that decide how it is split
# of a token, to decide how much of a text is read for a limit in tokens
MOST_CHARACTERS = 64


def split_file(path: Path, limit: int | None, rule: str) -> SplitText:
    """Split a file into at most `limit` documents by a rule, reading no more of it than needed.

    Of a file of more than `HEAD` characters only a document that is not complete is in memory.
    """
    if rule == "file":
        return split_text(read_text(path), None, rule)
    unfinished = _Unfinished(path)
    pieces = unfinished.read()
    head: list[str] = []
    size = 0
    for piece in pieces:
        head.append(piece)
        size += len(piece)
        if size > HEAD:
            break
    form = _find_form(rule, head, size)
    parts: Iterator[str] = chain(empty_list(head), pieces)
    # Running text has no ends to stop at: the limit in tokens says how much of it is
    # read.
    if form.block is not None and limit is not None:
        parts = _take_enough(parts, limit * form.block * MOST_CHARACTERS)
    return replace(
        form,
        documents=keep_texts(unfinished.pass_on(_iter_documents(form, parts, limit))),
    )


class _Unfinished:
    """Counts the characters of a file that were read since the last document was complete: they are in memory."""

    def __init__(self, path: Path) -> None:
        """Begin with no character of this file."""
        self.path = path
        self.budget = get_memory_budget()
        self.size = 0

    def read(self) -> Iterator[str]:
        """Yield the text of the file piece by piece. CorpusError if a document is too large for memory."""
        for piece in read_pieces(self.path):
            self.size += len(piece)
            if self.size > self.budget:
                raise refuse_large_file(self.path, self.size, self.budget, SMALLER)
            yield piece

    def pass_on(self, documents: Iterable[str]) -> Iterator[str]:
        """Yield the documents unchanged; with each of them the count starts again from 0."""
        for document in documents:
            self.size = 0
            yield document


def _take_enough(parts: Iterable[str], characters: int) -> Iterator[str]:
    """Yield the parts of a text up to the first of the sizes `HEAD`, 4 `HEAD`, 16 `HEAD` … that has at least
    `characters` characters.

    The hash of a limited corpus depends on how much of it is read: these sizes must stay what they are.
    """
    size, read = HEAD, 0
    for part in parts:
        yield part
        read += len(part)
        if read <= size:
            continue
        if read >= characters:
            return
        size *= 4


def split_text(text: str, limit: int | None = None, rule: str = "auto") -> SplitText:
    """Split a text into at most `limit` documents by a rule.

    Running text keeps all its pieces, which a plan cuts later. With `auto`, the first `HEAD` characters decide on the
    rule.
    """
    if rule == "file":
        return SplitText([text] if text.strip() else [], "files")
    form = _find_form(rule, [text], len(text))
    return replace(form, documents=keep_texts(_iter_documents(form, [text], limit)))


def _find_form(rule: str, parts: Sequence[str], size: int) -> SplitText:
    """Find how a text is split by a rule. Return a `SplitText` that says it, without documents.

    parts   of the text, or of its beginning
    size    how many characters they have: at most `HEAD` if they are the whole text
    """
    if rule == "blank-line":
        return SplitText([], "blank lines", "paragraph")
    if rule == "line":
        return SplitText([], "lines", "line")
    if rule != "auto":
        return _make_form_of_blocks(int(rule.partition(":")[2]), guessed=False)
    if _holds_articles(_iter_head_lines(parts)):
        return SplitText([], "titles", "article")
    words = [_count_words(block) for block in _iter_blocks(_iter_head_lines(parts))]
    # of long blocks each is a document; short ones are paragraphs of the same text
    if len(words) > 1 and statistics.median(words) >= DOCUMENT_WORDS:
        return SplitText([], "blank lines")
    if size > HEAD:
        # such a text is long enough for the largest blocks
        return _make_form_of_blocks(BLOCK, guessed=True)
    n_lines = len(list(islice(_iter_filled(_iter_head_lines(parts)), 2)))
    return _choose_short_units(size, len(words), n_lines)


def _iter_head_lines(parts: Iterable[str]) -> Iterator[str]:
    """Yield the lines of the first `HEAD` characters of a text that comes in parts."""
    return _iter_lines(_cut_head(parts))


def _cut_head(parts: Iterable[str]) -> Iterator[str]:
    """Yield the first `HEAD` characters of a text that comes in parts."""
    left = HEAD
    for part in parts:
        yield part[:left]
        left -= len(part)
        if left <= 0:
            return


def _count_words(text: str) -> int:
    """Count the words of a text, without a list of them."""
    return sum(1 for _ in _WORD.finditer(text))


def _make_form_of_blocks(block: int, *, guessed: bool) -> SplitText:
    """Return a `SplitText` without documents, which says that a text is cut into units of `block` tokens.

    guessed   whether the rule was chosen, not asked for
    """
    return SplitText([], f"blocks of {block} tokens", "block", block, guessed)


def _iter_documents(
    form: SplitText, parts: Iterable[str], limit: int | None
) -> Iterator[str]:
    """Yield at most `limit` documents of a text, or all pieces of a running one.

    form    how it is split
    parts   of the text, in order
    """
    if form.block is not None:
        yield from _cut_running_text(parts)
        return
    lines = _iter_lines(parts)
    yield from islice(SPLITTERS[form.how](lines), limit)


def _holds_articles(lines: Iterator[str]) -> bool:
    """Return whether the lines of a text are WikiText: the first is a title, and there are several articles."""
    first = next(_iter_filled(lines), "")
    return (
        is_title(first)
        and len(list(islice(split_articles(chain([first], lines)), 2))) > 1
    )


def _choose_short_units(size: int, n_blocks: int, n_lines: int) -> SplitText:
    """Choose units for a text without marks of documents: as large as possible, yet enough for an interval.

    Blocks of 8,192 tokens if 20 of them fit, as in every text longer than `HEAD`; else the blocks between blank lines
    if there are 20; else smaller blocks of tokens if 20 of 128 fit; else what there is: paragraphs, lines, or blocks
    of 32 tokens or more.

    size       characters of the text
    n_blocks   how many blocks between blank lines it has
    n_lines    how many lines that are not blank it has; 2 stands for more
    """
    tokens = size // CHARACTERS
    # The largest power of two of which 20 blocks fit.
    block = min(BLOCK, 1 << max(1, tokens // ENOUGH).bit_length() - 1)
    is_short = block < MOST_SHORT
    if block < BLOCK and (n_blocks >= ENOUGH or (is_short and n_blocks > 1)):
        return SplitText([], "blank lines", "paragraph", guessed=True)
    if is_short and n_lines > 1:
        return SplitText([], "lines", "line", guessed=True)
    return _make_form_of_blocks(max(LEAST, block), guessed=True)


def cut_into_blocks(texts: Iterable[str], block: int) -> SplitText:
    """Return texts as running text, which a plan cuts into units of `block` tokens."""
    # each text apart, so that no piece goes on behind the end of a text
    pieces = chain.from_iterable(_cut_running_text([text]) for text in texts)
    form = _make_form_of_blocks(block, guessed=False)
    return replace(form, documents=keep_texts(pieces))


def cut_pieces(text: str) -> Iterator[str]:
    """Cut running text into pieces at line ends (at blanks, or anywhere, if lines are too long). Nothing is lost."""
    yield from _cut_parts([text])


def _cut_running_text(parts: Iterable[str]) -> Iterator[str]:
    """Yield the pieces of a running text that comes in parts; none if it is blank."""
    blank: list[str] = []
    pieces = _cut_parts(parts)
    for piece in pieces:
        # Blank pieces are held back, since a text of blanks alone has no pieces.
        blank.append(piece)
        if piece.strip():
            yield from blank
            yield from pieces


def _cut_parts(parts: Iterable[str]) -> Iterator[str]:
    """Yield the pieces of a text that comes in parts: those that `cut_pieces` makes of the whole text."""
    rest = ""
    for part in parts:
        rest += part
        first = 0
        # a piece is cut only if text goes on behind it
        while len(rest) - first > PIECE:
            last = _find_cut(rest, first, first + PIECE)
            yield rest[first:last]
            first = last
        rest = rest[first:]
    if rest:
        yield rest


def _find_cut(text: str, first: int, last: int) -> int:
    """Return the index behind the last line end in `text[first:last]`, else behind its last blank, else `last`."""
    for mark in "\n ":
        place = text.rfind(mark, first, last)
        if place > first:
            return place + 1
    return last


def is_title(line: str) -> bool:
    """Return whether a line is a title of level 1 in WikiText: ` = Title = `."""
    return _ARTICLE.fullmatch(line.rstrip("\n")) is not None


def split_articles(lines: Iterable[str]) -> Iterator[str]:
    """Split the lines of WikiText into articles. A title of level 1 (` = Title = `) after a blank line begins one."""
    article: list[str] = []
    blank = True
    for line in lines:
        line = line.rstrip("\n")
        # a line of a table or a formula may look like a title: only after a blank line it is one
        if blank and article and is_title(line):
            yield "\n".join(article).strip()
            article = []
        blank = not line.strip()
        if article or not blank:
            article.append(line)
    if article:
        yield "\n".join(article).strip()


def _iter_lines(parts: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a text that comes in parts: those that `split("\\n")` gives of the whole text."""
    begun: list[str] = []
    for part in parts:
        first, *others = part.split("\n")
        begun.append(first)
        if others:
            yield "".join(begun)
            # What follows the last line end may go on in the next part.
            begun = [others.pop()]
            yield from others
    yield "".join(begun)


def _iter_blocks(lines: Iterable[str]) -> Iterator[str]:
    """Yield the blocks between blank lines (of blanks and tabs alone).

    The first line, and the last one, behind which there is no line end, belong to a block even if they are blank.
    """
    lines = iter(lines)
    block = [next(lines, "")]
    ahead: str | None = None
    for line in lines:
        # of the line before it is now known that it is not the last
        if ahead is not None and ahead.strip(" \t"):
            block.append(ahead)
        elif ahead is not None:
            yield from _join_lines(block)
            block = []
        ahead = line
    if ahead is not None:
        block.append(ahead)
    yield from _join_lines(block)


def _join_lines(block: list[str]) -> list[str]:
    """Return a list of one text, the lines of a block joined; an empty list if the block is blank."""
    text = "\n".join(block)
    return [text.strip("\n")] if text.strip() else []


def _iter_filled(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines that are not blank."""
    return (line for line in lines if line.strip())


SPLITTERS: dict[str, Callable[[Iterable[str]], Iterator[str]]] = {
    "titles": split_articles,
    "blank lines": _iter_blocks,
    "lines": _iter_filled,
}
"""Functions that split the lines of a text into documents, by the rule in words."""
