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
    "image": (
        ".jpg",
        ".jpeg",
        ".png",
        ".bmp",
        ".gif",
        ".webp",
        ".tif",
        ".tiff",
        ".ppm",
        ".pgm",
    ),
    "text": (".txt", ".md", ".rst", ".gz", ".parquet"),
}
"""How files of each modality end; a manifest, a table with a column of paths, has that of the files it names."""

MANIFESTS = (".csv", ".tsv", ".jsonl", ".json")
MANIFEST_STEMS = ("manifest", "metadata")
LOOKED = 1000  # rows of a manifest that tell what it holds
PATH_COLUMNS = (
    "path",
    "file",
    "file_name",
    "filename",
    "audio",
    "image",
    "wav",
    "audio_filepath",
)


def get_data_folder() -> Path:
    """Return the folder $ANISOSCOPE_DATA; a path that does not exist if it is not set."""
    # A path that is never there, so that callers need no case for a variable that is
    # not set.
    return Path(os.environ.get("ANISOSCOPE_DATA") or "/nonexistent")


def find_path(name: str) -> Path | None:
    """Return the file or folder of this name, here or under $ANISOSCOPE_DATA; None if there is none.

    Under $ANISOSCOPE_DATA the ending may be left out.
    """
    # asking the system for a name that is too long is an error
    if not name or is_too_long(name):
        return None
    here = expand_home(name)
    if here.exists():
        return here
    return _find_in_data_folder(name)


def _find_in_data_folder(name: str) -> Path | None:
    """Return the file or folder of this name, or of this name and an ending of texts, under $ANISOSCOPE_DATA."""
    for ending in ("", *TEXT_ENDINGS):
        path = get_data_folder() / f"{name}{ending}"
        if path.exists():
            return path
    return None


SPLIT_WORDS = {
    "validation": {"validation", "valid", "val", "dev"},
    "train": {"train", "training"},
    "test": {"test"},
}
"""What files and folders of each split are called."""
COPY = "ANISOSCOPE_DATA_"
"""Beginning of the variable that names the local copy of a corpus: ANISOSCOPE_DATA_COMMON_VOICE."""


@contextmanager
def use_copies(given: Mapping[str, str | Path]) -> Iterator[None]:
    """Within a `with` block, read named corpora from copies on this machine; processes started in it do too.

    given   {name of a corpus: path of its copy}
    """
    before = dict(os.environ)
    # variables, not a list in memory: processes that torchrun or a study starts inherit them
    variables: dict[str, str] = {}
    for name, path in given.items():
        variables[_name_variable(name)] = str(expand_home(path).resolve())
    os.environ.update(variables)
    try:
        yield
    finally:
        for variable in variables:
            del os.environ[variable]
            if variable in before:
                os.environ[variable] = before[variable]


def parse_paths(given: Iterable[str]) -> dict[str, str]:
    """Parse texts `name=path` into {name: path}. UsageError for a text of another form.

    given   the texts
    """
    found: dict[str, str] = {}
    for text in given:
        name, _, path = text.partition("=")
        found[name] = path
    for name, path in found.items():
        if not name or not path:
            raise UsageError(
                "--data NAME=FOLDER",
                repr(name),
                "write --data common-voice=~/cv-corpus-11.0/en",
            )
    return found


def _name_variable(name: str) -> str:
    """Return the environment variable that holds the path of a corpus' copy."""
    return COPY + name.upper().replace("-", "_")


def find_copy(name: str) -> Path | None:
    """Return the path of a named corpus' copy on this machine; None if there is none.

    It is named by an environment variable, or found under $ANISOSCOPE_DATA.
    """
    given = os.environ.get(_name_variable(name))
    if not given:
        return _find_in_data_folder(name)
    if not Path(given).exists():
        raise CorpusError(
            f"a local copy of {name}", f"{given}, which is not there", "check the path"
        )
    return Path(given)


def find_part_of_copy(
    copy: Path, modality: str, split: str | None, config: str = ""
) -> Path:
    """Find the file or folder of a split in a local copy, by names down to two levels below.

    copy       path of the copy; it is returned itself if it has no splits
    modality   what the file must hold (text, speech, image)
    split      None: the whole copy
    config     part of the path by which one of several files of the split is chosen; empty: none

    CorpusError if the copy holds only other splits, or several files of this one.
    """
    if split is None or not copy.is_dir():
        return copy
    words = _list_words_of_names(copy)
    found = _list_parts_of_split(words, split, modality)
    if config:
        of_config = []
        for path in found:
            if config in path.relative_to(copy).as_posix():
                of_config.append(path)
        # A copy of one configuration need not have its name in any path.
        found = of_config or found
    # a file in a folder of the split is part of that folder
    found = [path for path in found if not set(path.parents) & set(found)]
    if len(found) == 1:
        return found[0]
    if found:
        got = f"{len(found)}, such as {found[0].name}"
    else:
        other = _find_other_split(words)
        if other is None:
            # No name says which split it is: the copy has none.
            return copy
        got = f"none, but {other.name}"
    raise CorpusError(
        f"one file or folder of the {split} split in {copy}",
        got,
        "name the file or folder itself",
    )


def _list_parts_of_split(
    words: Mapping[Path, set[str]], split: str, modality: str
) -> list[Path]:
    """Return the files and folders whose names say that they are of a split, and that may hold the modality.

    words   {path: words of its name}
    """
    words_of_split = SPLIT_WORDS.get(split, {split})
    found = []
    for path, words_of_name in words.items():
        # what cannot be recognised may still be the corpus
        if words_of_name & words_of_split and detect_modality(path) in (modality, None):
            found.append(path)
    return found


def _list_words_of_names(folder: Path) -> dict[Path, set[str]]:
    """Return {file or folder: the words of its name}, down to two levels below a folder, the upper level first."""
    words: dict[Path, set[str]] = {}
    for glob in ("*", "*/*"):
        for path in sorted(folder.glob(glob)):
            if not path.name.startswith("."):
                words[path] = set(re.split(r"[^a-z]+", path.name.lower()))
    return words


def _find_other_split(words: Mapping[Path, set[str]]) -> Path | None:
    """Return the first file or folder whose name contains that of any split; None if there is none.

    words   {file or folder: the words of its name}
    """
    any_split = set().union(*SPLIT_WORDS.values())
    for path, words_of_name in words.items():
        if words_of_name & any_split:
            return path
    return None


def list_local_corpora() -> dict[str, tuple[str, Path]]:
    """List corpora under $ANISOSCOPE_DATA: {name: (modality, path)} of texts, tables, folders of images or clips."""
    found: dict[str, tuple[str, Path]] = {}
    for path in sorted(get_data_folder().rglob("*")):
        name = path.relative_to(get_data_folder()).as_posix()
        if path.is_dir():
            for modality in ("speech", "image"):
                if _holds(path, modality):
                    found[name] = (modality, path)
                    break
        elif name.endswith(TEXT_ENDINGS):
            name = name.removesuffix(".gz").rsplit(".", 1)[0]
            # a manifest belongs to the folder of its clips or images
            if not name.endswith(MANIFEST_STEMS):
                found[name] = ("text", path)
    return found


def _holds(folder: Path, modality: str) -> bool:
    """Return whether a folder, or its manifest, has files of this modality (speech, image)."""
    if any(path.suffix.lower() in ENDINGS[modality] for path in folder.iterdir()):
        return True
    manifest = find_manifest(folder)
    return manifest is not None and detect_modality(manifest) == modality


def detect_modality(path: Path) -> str | None:
    """Return what a file or folder mostly holds (text, speech, image), by the endings of file names.

    None if unknown.
    """
    if not path.is_dir() and get_ending(path) not in MANIFESTS:
        column = find_encoded_column(path)
        if column is not None:
            # In a parquet file of encoded bytes only the name of the column tells
            # sounds from images.
            is_sound = any(
                word in column.lower() for word in ("audio", "sound", "speech")
            )
            return "speech" if is_sound else "image"
    endings = Counter(Path(name).suffix.lower() for name in _list_names(path))
    counts: dict[str, int] = {}
    for modality, known in ENDINGS.items():
        counts[modality] = sum(endings[ending] for ending in known)
    most = max(counts, key=lambda modality: counts[modality])
    if not counts[most]:
        return None
    return most


def _list_names(path: Path) -> Iterable[str]:
    """Return the names of the files in a folder, or in the first rows of a manifest; of any other file its own."""
    if path.is_dir():
        return (file.name for file in path.rglob("*") if not file.name.startswith("."))
    if get_ending(path) not in MANIFESTS:
        return [path.name]
    names = []
    try:
        for row in islice(read_table_rows(path), LOOKED):
            if not row.fault:
                names.append(str(find_row_path(row, path)))
    except CorpusError:  # a table without paths
        return []
    return names


def find_encoded_column(path: Path) -> str | None:
    """Return the column of a parquet file that holds encoded clips or images (`{bytes, path}`).

    None if there is none.
    """
    if path.suffix != ".parquet":
        return None
    # loaded only for files that need it: importing it takes long
    import pyarrow.parquet as parquet  # type: ignore[import-untyped]

    try:
        fields = list(parquet.read_schema(path))
    # No parquet in spite of its name, or damaged: whoever reads it says so.
    except (OSError, ValueError):
        return None
    for field in fields:
        kind = str(field.type)
        # As `datasets` stores clips and images in parquet.
        if kind.startswith("struct<") and "bytes: binary" in kind:
            return str(field.name)
    return None


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
    for name in PATH_COLUMNS:
        if name in row.columns:
            return row.columns[name]
    got = f"the columns {', '.join(row.columns)}"
    cure = "rename the column, or name it with --column"
    raise CorpusError(
        f"a column of paths ({', '.join(PATH_COLUMNS)}) in {manifest}", got, cure
    )
