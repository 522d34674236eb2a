"""Find corpora on this machine: the path that a name stands for, what a file holds, what a manifest lists."""

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from anisoscope.data.files import get_ending
from anisoscope.data.table_rows import TABLES, Row, read_table_rows, require_column
from anisoscope.errors import CorpusError, UsageError, is_too_long
from anisoscope.options import expand_home

TEXT_ENDINGS = tuple(e + packed for e in (".txt", *TABLES) for packed in ("", ".gz"))
"""How text corpora end, which their names may leave out."""

ENDINGS = {
    "speech": (".wav", ".flac", ".mp3", ".ogg", ".opus", ".aiff", ".aif", ".au"),
    "image": (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"),
    "text": (".txt", ".md", ".rst", ".gz", ".parquet"),
}
"""How files of each modality end; a manifest, a table with a column of paths, has that of the files it names."""

MANIFESTS = (".csv", ".tsv", ".jsonl", ".json")
MANIFEST_STEMS = ("manifest", "metadata")
LOOKED = 1000  # rows of a manifest that tell what it holds
PATH_COLUMNS = ("path", "file", "file_name", "filename", "audio", "image", "wav", "audio_filepath")


def get_data_folder() -> Path:
    """Return the folder $ANISOSCOPE_DATA; a path that does not exist if it is not set."""
    return Path(os.environ.get("ANISOSCOPE_DATA") or "/nonexistent")


def find_path(name: str) -> Path | None:
    """Return the file or folder that `name` stands for, here or under $ANISOSCOPE_DATA (there also without its
    ending).

    None if there is none.
    """
    candidates = [expand_home(name), *(get_data_folder() / f"{name}{end}" for end in ("", *TEXT_ENDINGS))]
    return next((path for path in candidates if name and not is_too_long(name) and path.exists()), None)


SPLIT_WORDS = {"validation": {"validation", "valid", "val", "dev"}, "train": {"train", "training"}, "test": {"test"}}
"""What files and folders of each split are called."""
COPY = "ANISOSCOPE_DATA_"
"""Beginning of the variable that names the local copy of a corpus: ANISOSCOPE_DATA_COMMON_VOICE."""


@contextmanager
def use_copies(given: Mapping[str, str | Path]) -> Iterator[None]:
    """Within a `with` block, read the named corpora from these paths; processes started there do too."""
    before = dict(os.environ)
    os.environ.update({_name_variable(name): str(expand_home(path).resolve()) for name, path in given.items()})
    try:
        yield
    finally:
        for name in map(_name_variable, given):
            os.environ.pop(name)
            os.environ.update({name: before[name]} if name in before else {})


def parse_paths(given: Iterable[str]) -> dict[str, str]:
    """Parse texts `name=path` into {name: path}. UsageError for a text of another form."""
    found = dict(text.partition("=")[::2] for text in given)
    for name, path in found.items():
        if not name or not path:
            raise UsageError("--data NAME=FOLDER", repr(name), "write --data common-voice=~/cv-corpus-11.0/en")
    return found


def _name_variable(name: str) -> str:
    """Return the environment variable that holds the path of a corpus' copy."""
    return COPY + name.upper().replace("-", "_")


def find_copy(name: str) -> Path | None:
    """Return the local copy of a named corpus: from its environment variable, else under $ANISOSCOPE_DATA;
    else None.
    """
    if given := os.environ.get(_name_variable(name)):
        if not Path(given).exists():
            raise CorpusError(f"a local copy of {name}", f"{given}, which is not there", "check the path")
        return Path(given)
    candidates = (get_data_folder() / f"{name}{end}" for end in ("", *TEXT_ENDINGS))
    return next((path for path in candidates if path.exists()), None)


def find_part_of_copy(copy: Path, modality: str, split: str | None, config: str = "") -> Path:
    """Find a split in a local copy by the names of files and folders, two levels deep.

    CorpusError if the copy holds only other splits, or several files of this one.
    """
    if split is None or not copy.is_dir():
        return copy
    paths = [path for glob in ("*", "*/*") for path in sorted(copy.glob(glob)) if not path.name.startswith(".")]
    words = {path: set(re.split(r"[^a-z]+", path.name.lower())) for path in paths}
    asked = SPLIT_WORDS.get(split, {split})
    found = [path for path in paths if words[path] & asked and detect_modality(path) in (modality, None)]
    if config:
        of_config = [path for path in found if config in path.relative_to(copy).as_posix()]
        found = of_config or found
    # a file in a folder of the split is part of that folder
    found = [path for path in found if not set(path.parents) & set(found)]
    if len(found) == 1:
        return found[0]
    if found:
        got = f"{len(found)}, such as {found[0].name}"
    else:
        any_split = set().union(*SPLIT_WORDS.values())
        other = next((path for path in paths if words[path] & any_split), None)
        if other is None:  # a copy without splits
            return copy
        got = f"none, but {other.name}"
    raise CorpusError(f"one file or folder of the {split} split in {copy}", got, "name the file or folder itself")


def list_local_corpora() -> dict[str, tuple[str, Path]]:
    """List what is under $ANISOSCOPE_DATA: {name: (modality, path)} of texts, tables, and folders of images or
    clips.
    """
    found: dict[str, tuple[str, Path]] = {}
    for path in sorted(get_data_folder().rglob("*")):
        name = path.relative_to(get_data_folder()).as_posix()
        if path.is_dir():
            modality = next((known for known in ("speech", "image") if _holds(path, known)), None)
            if modality:
                found[name] = (modality, path)
        elif name.endswith(TEXT_ENDINGS):
            name = name.removesuffix(".gz").rsplit(".", 1)[0]
            # a manifest belongs to the folder of its clips or images
            if not name.endswith(MANIFEST_STEMS):
                found[name] = ("text", path)
    return found


def _holds(folder: Path, modality: str) -> bool:
    """Return whether a folder, or its manifest, has files of this modality (speech, image)."""
    manifest = find_manifest(folder)
    here = any(path.suffix.lower() in ENDINGS[modality] for path in folder.iterdir())
    return here or (manifest is not None and detect_modality(manifest) == modality)


def detect_modality(path: Path) -> str | None:
    """Return what a file or folder mostly holds (text, speech, image), by the endings of file names.

    None if unknown.
    """
    if not path.is_dir() and get_ending(path) not in MANIFESTS:
        column = find_encoded_column(path)
        if column is not None:
            is_sound = any(word in column.lower() for word in ("audio", "sound", "speech"))
            return "speech" if is_sound else "image"
    endings = Counter(Path(name).suffix.lower() for name in _list_names(path))
    counts = {modality: sum(endings[ending] for ending in known) for modality, known in ENDINGS.items()}
    most = max(counts, key=lambda modality: counts[modality])
    return most if counts[most] else None


def _list_names(path: Path) -> Iterable[str]:
    """Return the names of the files in a folder, or of those that the first rows of a manifest list; else the file's
    own.
    """
    if path.is_dir():
        return (file.name for file in path.rglob("*") if not file.name.startswith("."))
    if get_ending(path) not in MANIFESTS:
        return [path.name]
    try:
        return [str(find_row_path(row, path)) for row in islice(read_table_rows(path), LOOKED) if not row.fault]
    except CorpusError:  # a table without paths
        return []


def find_encoded_column(path: Path) -> str | None:
    """Return the column of a parquet file that holds encoded clips or images (`{bytes, path}`).

    None if there is none.
    """
    if path.suffix != ".parquet":
        return None
    import pyarrow.parquet as parquet  # type: ignore[import-untyped]

    try:
        fields = list(parquet.read_schema(path))
    except (OSError, ValueError):
        return None
    packed = (f.name for f in fields if str(f.type).startswith("struct<") and "bytes: binary" in str(f.type))
    return next(packed, None)


def find_manifest(folder: Path) -> Path | None:
    """Return the table in a folder that lists its clips or images; None if there is none."""
    for stem in MANIFEST_STEMS:
        for ending in MANIFESTS:
            manifest = folder / f"{stem}{ending}"
            if manifest.is_file():
                return manifest
    return None


def find_row_path(row: Row, manifest: Path, column: str | None = None) -> Any:
    """Return a row's path: from the column asked for, else from the first of `PATH_COLUMNS`.

    CorpusError without one.
    """
    if column is not None:
        return row.columns[require_column(column, row.columns, str(manifest))]
    found = next((name for name in PATH_COLUMNS if name in row.columns), None)
    if found is None:
        got = f"the columns {', '.join(row.columns)}"
        cure = "rename the column, or name it with --column"
        raise CorpusError(f"a column of paths ({', '.join(PATH_COLUMNS)}) in {manifest}", got, cure)
    return row.columns[found]
