"""Split a text into documents: by titles, blank lines or lines, whole, or in blocks of tokens."""

import re
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from anisoscope.errors import UsageError, suggest_names

RULES = ("auto", "file", "blank-line", "line", "tokens:N")  # how a text can be told apart into documents
DOCUMENT_WORDS = 200  # median length from which blocks between blank lines are documents; shorter ones are paragraphs
BLOCK = 8192  # tokens of one unit of long text without marks
ENOUGH, LEAST, MOST_SHORT = 20, 32, 128
"""Units from which an interval is no longer rough; tokens of the smallest block, and the largest of short texts."""

CHARACTERS = 6  # counted as a token where a text's length in tokens is estimated, before a tokenizer is known
PIECE = 100_000  # characters of text without marks: long enough to tokenise as running text, short enough for memory
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

    documents: list[str]
    how: str
    unit: str = "document"
    block: int | None = None
    guessed: bool = False
    empty: int = 0
    skipped: int = 0
    column: str | None = None
    owner: list[int] | None = None

    def limited(self, limit: int | None) -> "SplitText":
        """Return the first `limit` documents only. Running text keeps all its pieces, which a plan cuts later."""
        if limit is None or self.block is not None:
            return self
        return replace(self, documents=self.documents[:limit])


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
    cure = "tokens:512, say" if name == "tokens" else suggest_names(rule, RULES)
    raise UsageError(f"--documents out of {', '.join(RULES)}", repr(rule), cure)


HEAD = 1 << 24  # characters of a text by which it is told apart
MOST_CHARACTERS = 64  # of a token, where a limit in tokens says how much of a text is read


def split_file(read_start: Callable[[int | None], tuple[str, bool]], limit: int | None, rule: str) -> SplitText:
    """Split a file into at most `limit` documents by a rule, reading no more of it than needed.

    `read_start(n)` returns the first n characters and whether that is all. With a limit the beginning is enlarged
    until it holds one document more, since the last one may be incomplete.
    """
    if limit is None or rule == "file":
        text, _ = read_start(None)
        return split_text(text, None, rule).limited(limit)
    size = HEAD
    while True:
        text, is_all = read_start(size)
        found = split_text(text, None, rule)
        if found.block is None:
            is_enough = len(found.documents) > limit
        else:  # how many tokens the text has is not known yet: as if each had many characters
            is_enough = len(text) >= limit * found.block * MOST_CHARACTERS
        if is_all or is_enough:
            return found.limited(limit)
        # the file is read again from its begin: growing by much keeps all readings together below twice the last
        size *= 4


def split_text(text: str, limit: int | None = None, rule: str = "auto") -> SplitText:
    """Split a text into at most `limit` documents by a rule.

    Running text keeps all its pieces, which a plan cuts later. With `auto`, the first `HEAD` characters decide on the
    rule.
    """
    if rule == "file":
        return SplitText([text] if text.strip() else [], "files")
    if rule == "blank-line":
        return SplitText(_split_blocks(text)[:limit], "blank lines", "paragraph")
    if rule == "line":
        return SplitText(_split_lines(text)[:limit], "lines", "line")
    if rule != "auto":
        return cut_into_blocks([text], int(rule.partition(":")[2]))
    head = text[:HEAD]
    if _holds_articles(head):
        return SplitText(list(split_articles(text.split("\n")))[:limit], "titles", "article")
    blocks = _split_blocks(head)
    # of long blocks each is a document; short ones are paragraphs of the same text
    if len(blocks) > 1 and statistics.median(len(block.split()) for block in blocks) >= DOCUMENT_WORDS:
        return SplitText(_split_blocks(text)[:limit], "blank lines")
    return _choose_blocks(text, blocks, limit)


def _holds_articles(text: str) -> bool:
    """Return whether a text is WikiText: its first line is a title, and it has several articles."""
    lines = text.split("\n")
    first = next((line for line in lines if line.strip()), "")
    return is_title(first) and len(list(split_articles(lines))) > 1


def _choose_blocks(text: str, blocks: list[str], limit: int | None) -> SplitText:
    """Choose units for a text without marks of documents: as large as possible, yet enough for an interval.

    Blocks of 8,192 tokens if 20 of them fit, as in every text longer than `HEAD`; else the blocks between blank lines
    if there are 20; else smaller blocks of tokens if 20 of 128 fit; else what there is: paragraphs, lines, or blocks
    of 32 tokens or more.
    """
    tokens = len(text) // CHARACTERS
    size = min(BLOCK, 1 << max(1, tokens // ENOUGH).bit_length() - 1)
    is_short = size < MOST_SHORT
    if size < BLOCK and (len(blocks) >= ENOUGH or (is_short and len(blocks) > 1)):
        return SplitText(blocks[:limit], "blank lines", "paragraph", guessed=True)
    if is_short:
        lines = _split_lines(text)
        if len(lines) > 1:
            return SplitText(lines[:limit], "lines", "line", guessed=True)
    return cut_into_blocks([text], max(LEAST, size), guessed=True)


def cut_into_blocks(texts: Iterable[str], block: int, *, guessed: bool = False) -> SplitText:
    """Return text as running text, which a plan cuts into units of `block` tokens."""
    documents: list[str] = []
    for text in texts:
        if text.strip():
            documents.extend(cut_pieces(text))
    return SplitText(documents, f"blocks of {block} tokens", "block", block, guessed)


def cut_pieces(text: str) -> Iterator[str]:
    """Cut running text into pieces at line ends (at blanks, or anywhere, if lines are too long). Nothing is lost."""
    first = 0
    while first < len(text):
        last = min(first + PIECE, len(text))
        if last < len(text):
            last = _find_cut(text, first, last)
        yield text[first:last]
        first = last


def _find_cut(text: str, first: int, last: int) -> int:
    """Return the place behind the last line end between two places, else behind the last blank, else the second."""
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


def _split_blocks(text: str) -> list[str]:
    """Split a text at blank lines."""
    blocks = re.split(r"\n(?:[ \t]*\n)+", text)
    return [block.strip("\n") for block in blocks if block.strip()]


def _split_lines(text: str) -> list[str]:
    """Return the lines of a text that are not blank."""
    return [line for line in text.split("\n") if line.strip()]
