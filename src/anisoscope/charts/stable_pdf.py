"""The same PDF for the same drawing: the writer lists resources, and numbers fonts, in an order that differs by run."""

import re

_REFERENCE = re.compile(rb"\b(\d+) 0 R\b")
_ENTRIES = re.compile(rb"(?:^ +/\w+ \d+ 0 R\n){2,}", re.MULTILINE)


def stable_pdf(content: bytes) -> bytes:
    """`content` with resources sorted by name and objects numbered in the order in which they are first referred to."""
    objects, trailer = _objects(content)
    order = [int(number) for number in _REFERENCE.findall(trailer)]
    for number in order:  # grows while it is walked
        order += [n for n in dict.fromkeys(map(int, _REFERENCE.findall(objects[number][0]))) if n not in order]
    numbers = {old: new for new, old in enumerate(order, start=1)}
    written, offsets = content[: content.index(b"\n\n") + 2], []
    for old, new in numbers.items():
        head, stream = objects[old]
        offsets.append(len(written))
        written += b"%d 0 obj\n%s%sendobj\n\n" % (new, _renumber(head, numbers), stream)
    rows = b"".join(b"%010d 00000 n\r\n" % offset for offset in offsets)
    table = b"xref\n0 %d\n0000000000 65535 f\r\n%s" % (len(order) + 1, rows)
    size = re.sub(rb"/Size \d+", b"/Size %d" % (len(order) + 1), _renumber(trailer, numbers))
    return b"%s%s%sstartxref\n%d\n%%%%EOF" % (written, table, size, len(written))


def _objects(content: bytes) -> tuple[dict[int, tuple[bytes, bytes]], bytes]:
    """Each object by its number, as its dictionary and its stream (or nothing), and the trailer."""
    start = int(content[content.rindex(b"startxref") :].split()[1])
    table, trailer = content[start : content.rindex(b"startxref")].split(b"trailer")
    ends = sorted(int(row[:10]) for row in table.split(b"\n") if row[17:18] == b"n")
    objects = {}
    for offset, end in zip(ends, [*ends[1:], start], strict=True):
        header, body = content[offset:end].split(b" 0 obj\n", 1)
        head, mark, stream = body[: body.rindex(b"endobj")].partition(b"stream\n")
        objects[int(header)] = (_ENTRIES.sub(_sorted_lines, head), mark + stream)
    return objects, b"trailer" + trailer


def _sorted_lines(match: re.Match[bytes]) -> bytes:
    return b"".join(sorted(match[0].splitlines(keepends=True)))


def _renumber(text: bytes, numbers: dict[int, int]) -> bytes:
    return _REFERENCE.sub(lambda match: b"%d 0 R" % numbers[int(match[1])], text)
