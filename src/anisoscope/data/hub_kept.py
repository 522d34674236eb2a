"""Clips and images of the hub as they were streamed, kept beside the hub's cache: each is fetched once."""

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from anisoscope.data.items import Item

Stream = Callable[[int], Iterator[tuple[str, str | None, bytes]]]
"""From the number of items that are here already to the (name, unit, encoded bytes) of the next ones."""


class Kept:
    """Items of one data set at one commit, split and column in a folder: their bytes one after the other in `items`, a
    line for each in `index.jsonl`, a last line where there are no more; `about.json`: what was asked, and what a
    manifest says of the source.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def about(self) -> dict[str, Any] | None:
        """What a manifest says of the source; None where nothing was kept yet."""
        try:
            read = json.loads((self.folder / "about.json").read_text("utf-8"))
        except (OSError, ValueError):
            return None
        return read if isinstance(read, dict) else None

    def begin(self, about: dict[str, Any]) -> None:
        """Keep what is known of the source."""
        self.folder.mkdir(parents=True, exist_ok=True)
        unfinished = self.folder / "about.json.part"
        unfinished.write_text(json.dumps(about), "utf-8")
        unfinished.replace(self.folder / "about.json")

    def items(self, stream: Stream) -> Iterator[Item]:
        """All items: those that are here, then those that are streamed and kept. One process at a time streams."""
        from filelock import FileLock

        given = 0
        for item in self._here():
            given += 1
            yield item
        if self._complete():
            return
        with FileLock(self.folder / "lock"):
            for item in list(self._here())[given:]:  # another process was quicker
                given += 1
                yield item
            if not self._complete():
                yield from self._streamed(stream, given)

    def _streamed(self, stream: Stream, after: int) -> Iterator[Item]:
        end = sum(item.size for item in self._here())
        self._trim(after, end)
        with (
            (self.folder / "items").open("ab") as body,
            (self.folder / "index.jsonl").open("a", encoding="utf-8") as index,
        ):
            for name, unit, data in stream(after):
                body.write(data)
                body.flush()
                index.write(json.dumps([name, unit, len(data)]) + "\n")
                index.flush()
                yield Item(name, unit, self.folder / "items", end, len(data))
                end += len(data)
            index.write("null\n")

    def _trim(self, lines: int, size: int) -> None:
        """Take away what a process that was killed left half written."""
        index, body = self.folder / "index.jsonl", self.folder / "items"
        kept = index.read_text("utf-8").splitlines(keepends=True)[:lines] if index.exists() else []
        index.write_text("".join(kept), "utf-8")
        with body.open("ab") as file:
            file.truncate(size)

    def _lines(self) -> Iterator[Any]:
        """What stands in the index, up to a line that is not whole."""
        try:
            lines = (self.folder / "index.jsonl").read_text("utf-8").splitlines(keepends=True)
        except OSError:
            return
        for line in lines:
            if not line.endswith("\n"):
                return
            yield json.loads(line)

    def _here(self) -> Iterator[Item]:
        body = self.folder / "items"
        room, offset = body.stat().st_size if body.exists() else 0, 0
        for entry in self._lines():
            if entry is None or offset + entry[-1] > room:
                return
            name, unit, size = entry
            yield Item(name, unit, body, offset, size)
            offset += size

    def _complete(self) -> bool:
        return None in self._lines()


def kept_folder(asked: dict[str, Any]) -> Path | None:
    """The folder for what was asked of a data set at a commit; where that is not known, for want of a network, the
    newest of the same, None for none.
    """
    from huggingface_hub import constants

    root = Path(constants.HF_HOME, "anisoscope", str(asked["id"]).replace("/", "--"))
    rest = {key: value for key, value in asked.items() if key != "commit"}
    key = hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()[:12]
    if asked["commit"] is not None:
        return root / f"{asked['commit']}-{key}"
    found = [path.parent for path in root.glob(f"*-{key}/about.json")]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)
