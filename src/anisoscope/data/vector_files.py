"""Read vectors from files: arrays (.npy, .npz, .safetensors, .pt), tables, JSON, folders of them, saved data sets.

The rules of `vector_roles` decide which of the contents are the vectors.
"""

import math
import os
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from tokenize import TokenError
from typing import Any
from zipfile import ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from anisoscope.data.arrays import VectorArrays, wrap_vectors
from anisoscope.data.files import (
    get_ending,
    get_memory_budget,
    iter_lines,
    list_files_below,
    refuse_large_file,
)
from anisoscope.data.vector_json import read_json_vectors
from anisoscope.data.vector_roles import Content, Roles, decide_roles, describe_roles
from anisoscope.data.vector_tables import (
    LARGE,
    is_number,
    read_arrow,
    read_arrow_table,
    read_delimited,
)
from anisoscope.errors import CorpusError, UsageError
from anisoscope.extras import require_extra
from anisoscope.options import expand_home

DELIMITED = (".csv", ".tsv")
OF_JSON = (".json", ".jsonl", ".ndjson")
OF_ARROW = (".parquet", ".arrow", ".feather")
ARRAYS = (".npy", ".npz", ".safetensors")
OF_TORCH = (".pt", ".pth", ".bin")
PLAIN = (".txt", ".dat", ".vec")
ENDINGS = (*ARRAYS, *OF_TORCH, *OF_ARROW, *DELIMITED, *PLAIN, *OF_JSON)
"""How files of vectors end. Of those of torch and of plain text the content decides: they may be weights, or a list."""
OF_FOLDERS = (*ARRAYS, *OF_TORCH, *OF_ARROW, *DELIMITED, *OF_JSON)
"""How the files in a folder of vectors end: not as plain text, which a folder of texts holds."""
CURES = {
    ".pkl": "load it and save numbers: numpy.save('x.npy', x), or frame.to_parquet('x.parquet'); nothing is unpickled",
    ".h5": "load it and save numbers: numpy.save('x.npy', x)",
    ".mat": "load it with scipy.io.loadmat and save numbers: numpy.save('x.npy', x)",
    ".xlsx": "save it as .csv",
}
CURES |= {
    ".pickle": CURES[".pkl"],
    ".joblib": CURES[".pkl"],
    ".hdf5": CURES[".h5"],
    ".xls": CURES[".xlsx"],
}
"""Files that hold vectors and are not read, each with its cure."""
DAMAGED = (
    OSError,
    ValueError,
    EOFError,
    SafetensorError,
    BadZipFile,
    zlib.error,
    TokenError,
    RuntimeError,
    SyntaxError,
    OverflowError,
)
"""What readers of arrays raise: an archive that wants a password RuntimeError, a header that is no Python SyntaxError,
one with a size that no machine has OverflowError."""
LOOKED = 100  # lines of a text that tell whether it holds numbers
MOST_PACKED = 100  # times that an archive of arrays may unpack to its own size
SMALL = 1 << 26  # bytes that an archive may unpack to in any case
SAVED = ("state.json", "dataset_dict.json")
"""What lies in the folder of a data set that `datasets` saved, of one split or of several."""
OF_MODEL = re.compile(
    r"(config|generation_config|tokenizer\w*|vocab|modules|adapter_config|model_index|preprocessor_config)\.json"
    r"|(pytorch_model|model|adapter_model|training_args|optimizer|scheduler)\b.*\.(safetensors|bin|pt|pth)|vocab\.txt"
)
"""Files that show a folder to be a checkpoint."""
OF_WEIGHTS = {
    "weight",
    "bias",
    "running_mean",
    "running_var",
    "num_batches_tracked",
    "in_proj_weight",
}
"""Last parts of the names of a model's tensors, as torch.nn gives them."""
LAYERS = re.compile(r"(.*[^a-z])?(layer|hidden|hidden_states?|block|h)[-_.]?\d+", re.I)
PIECES = re.compile(
    r"(.*[^a-z])?(part|shard|chunk|batch|train|test|val|validation|data|rank)[-_.]?\d*(-of-\d+)?",
    re.I,
)
"""How files of a folder are called when each is a layer, and when each is a piece of the same table."""
FILE = "file"
"""The column that names the file of each row of a folder."""


# ---- what a name stands for ------------------------------------------------------------------------------------------


def holds_vectors(name: str | Path) -> bool:
    """Return whether `name` is a file or folder of vectors, by its ending or, if that leaves it open, by its
    content.
    """
    path = expand_home(name)
    if path.is_dir():
        return bool(_list_vector_files(path)) or _is_saved(path)
    kind = get_ending(path)
    if not path.is_file():
        return False
    if kind not in ENDINGS:
        # opening it fails with the cure of its format, which helps more than "no such corpus"
        return kind in CURES
    if kind in PLAIN:
        return _holds_lines_of_numbers(path)
    if kind in OF_TORCH:
        return _holds_tensors(path)
    return not OF_MODEL.fullmatch(path.name)


def _is_saved(folder: Path) -> bool:
    """Return whether a folder holds a data set that `datasets` saved."""
    return any((folder / name).is_file() for name in SAVED)


def _list_vector_files(folder: Path) -> list[Path]:
    """Return the files of vectors in a folder, in numerical order; empty if it is a checkpoint or holds other files."""
    files = [
        file for file in folder.iterdir() if file.is_file() and not _is_side_file(file)
    ]
    # The weights of a model are tensors as well, often in files of the same kinds.
    if any(OF_MODEL.fullmatch(file.name) for file in files):
        return []
    kinds = {get_ending(file) for file in files}
    if len(kinds) != 1:
        return []
    kind = kinds.pop()
    if kind not in OF_FOLDERS:
        return []
    ordered = sorted(files, key=lambda file: natural_sort_key(file.name))
    # texts and manifests are tables too: a folder of tables holds vectors if its first one does
    if kind in ARRAYS or _reads_as_vectors(ordered[0]):
        return ordered
    return []


def _is_side_file(file: Path) -> bool:
    """Return whether a file is hidden or only describes the others of its folder."""
    return file.name.startswith((".", "_")) or file.name.lower().startswith(
        ("readme", "license", "dataset_info")
    )


def _reads_as_vectors(path: Path) -> bool:
    """Return whether a file can be read as vectors, even if it is unclear which of its columns they are."""
    try:
        content = read_content(path)
        decide_roles(content, path.name)
    except CorpusError as error:
        # They are vectors, though it is not clear how: opening the file says so.
        return _has_two_readings(error)
    return True


def _has_two_readings(error: CorpusError) -> bool:
    """Return whether the error says that the vectors can be read in two ways."""
    return error.expected.startswith("one way to read")


def _holds_lines_of_numbers(path: Path) -> bool:
    """Return whether the first lines of a text file are rows of numbers, each perhaps after a word."""
    rows = []
    try:
        for line in islice(iter_lines(path), LOOKED):
            if line.strip() and not line.startswith("#"):
                rows.append(re.split(r"[,;\t|]| +", line.strip()))
    except CorpusError:
        return False
    if len(rows) > 1:
        rows = rows[1:]  # the first line may hold names
    return bool(rows) and all(map(_is_row_of_numbers, rows))


def _is_row_of_numbers(cells: Sequence[str]) -> bool:
    """Return whether cells are numbers, or a word and decimals."""
    begins_with_word = not is_number(cells[0])
    numbers = cells[1:] if begins_with_word else cells
    if len(numbers) < 2 or not all(map(is_number, numbers)):
        return False
    # a word and whole numbers are no vector but a series of models: `name step seed`
    return not begins_with_word or any("." in cell for cell in numbers)


def _holds_tensors(path: Path) -> bool:
    """Return whether a PyTorch file holds vectors rather than a model's weights."""
    try:
        content = _read_torch(path)
    except CorpusError as error:
        return _has_two_readings(error)
    except DAMAGED:
        return False
    holds_wide = False
    for name, values in content.columns.items():
        # a model may be saved under any file name: the names of its tensors tell
        if name.rpartition(".")[2] in OF_WEIGHTS:
            return False
        holds_wide = holds_wide or values.ndim in (2, 3)
    return holds_wide


def natural_sort_key(name: str) -> list[Any]:
    """Return a key that sorts `layer.2` before `layer.10`."""
    key: list[Any] = []
    for part in re.split(r"(\d+)", name):
        # pairs, since a number and a text cannot be compared
        if part.isdigit():
            key.append((0, int(part)))
        else:
            key.append((1, part))
    return key


# ---- from a name to vectors ------------------------------------------------------------------------------------------


def open_vectors(
    path: str | Path,
    *,
    columns: str | None = None,
    unit_column: str | None = None,
    label_column: str | None = None,
    split: str | None = None,
) -> VectorArrays:
    """Read the vectors of a file or a folder. `source["reading"]` says in one line how they were read.

    columns                    which columns are the vector: names, patterns, ranges (`vector_roles.select_names`)
    unit_column, label_column  the column, or the array next to the vectors, that names units or classes
    split                      of a saved data set of several splits

    CorpusError for what cannot be read, for objects instead of numbers, and if two readings are possible.
    """
    place = expand_home(path)
    if not place.is_dir() and get_ending(place) not in ENDINGS:
        cure = CURES.get(
            get_ending(place), "convert it, for instance to .npy or .parquet"
        )
        raise CorpusError(f"a file of vectors ({', '.join(ENDINGS)})", str(path), cure)
    content = read_content(place, split=split)
    named = {
        "columns": columns,
        "unit_column": unit_column,
        "label_column": label_column,
    }
    return read_vectors_of(
        content, place.name or str(place), {"path": str(place.resolve())}, **named
    )


def read_vectors_of(
    content: Content, name: str, source: dict[str, Any], **named: str | None
) -> VectorArrays:
    """Decide what each column of a file or table is (vectors, units, labels, mask), and make vectors of it.

    name      name of the file or table, for errors and the result
    source    what the caller knows of the origin, for the result's `source`; how each column was understood is added
              there as `reading`
    named     `columns`, `unit_column`, `label_column` as for `open_vectors`
    """
    roles = decide_roles(content, name, **named)
    layers = _build_layers(content, roles)
    first = next(iter(layers.values()))
    reading = describe_roles(content, roles, name, first.shape)
    return wrap_vectors(
        layers,
        units=_list_column(content, roles.units),
        labels=_list_column(content, roles.labels),
        mask=_find_mask(content, roles),
        name=name,
        source={"kind": "vectors", **source, "reading": reading},
    )


def _list_column(content: Content, name: str | None) -> list[Any] | None:
    """Return the entries of a column as a list; None if `name` is None."""
    if name is None:
        return None
    entries: list[Any] = np.asarray(content.columns[name]).tolist()
    return entries


def _find_mask(content: Content, roles: Roles) -> Any:
    """Return the array that says which tokens are real [sequence, token]; None if all are.

    It is a column of the file, or was made when sequences of different lengths were read.
    """
    if roles.mask is not None:
        return content.columns[roles.mask]
    for column in chain.from_iterable(roles.layers.values()):
        if column in content.masks:
            return content.masks[column]
    return None


def _build_layers(content: Content, roles: Roles) -> dict[str, Any]:
    """Return {layer: its array}; columns of single numbers are joined to an array [row, dim]."""
    layers: dict[str, Any] = {}
    for layer, columns in roles.layers.items():
        first = content.columns[columns[0]]
        if len(columns) > 1 or first.ndim == 1:
            # As one type, since an array has one: columns may hold whole numbers and
            # decimals.
            numbers = []
            for column in columns:
                numbers.append(np.asarray(content.columns[column], np.float64))
            layers[layer] = np.stack(numbers, axis=1)
        elif roles.places is not None:
            layers[layer] = _as_array(first)[:, list(roles.places)]
        else:
            # not copied: it may be mapped from the file, and read in blocks
            layers[layer] = first
    return layers


def read_content(path: Path, *, split: str | None = None) -> Content:
    """Read what a file or folder holds. CorpusError if it cannot be read."""
    if _is_saved(path):
        return _read_saved_data_set(path, split)
    if split is not None:
        raise UsageError(
            "--split only with a data set of several splits",
            str(path),
            "leave --split out",
        )
    if path.is_dir():
        return _read_folder(path)
    kind = get_ending(path)
    if kind in OF_JSON:
        return read_json_vectors(path)
    if kind in (*DELIMITED, *PLAIN):
        return read_delimited(path)
    # texts are unpacked as they are read; arrays and tables of arrow are read in place
    if path.name.lower().endswith(".gz"):
        raise CorpusError(
            f"a file that is not compressed: {path}",
            "gzip",
            f"decompress it: gunzip {path.name}",
        )
    return _read_binary(path, kind)


def _read_binary(path: Path, kind: str) -> Content:
    """Read a file of arrow, PyTorch or numpy. CorpusError if it is damaged.

    kind   the ending of its name
    """
    try:
        if kind in OF_ARROW:
            return read_arrow(path)
        if kind in OF_TORCH:
            return _read_torch(path)
        return _read_arrays(path)
    except DAMAGED as error:
        raise _explain_damage(path, error) from error


def _explain_damage(path: Path, error: BaseException) -> CorpusError:
    """Make the error for a file that could not be read. The caller raises it.

    error   what the reader raised
    """
    reason = (str(error) or type(error).__name__).splitlines()[0]
    # numpy and torch refuse objects in words of their own, since unpickling them could run code
    of_objects = ("pickle", "object", "weights_only", "unsupported global")
    if any(word in reason.lower() for word in of_objects):
        return CorpusError(
            f"vectors in {path}",
            "a file of Python objects, or one that numpy did not write",
            "store numbers, not objects",
        )
    return CorpusError(f"vectors in {path}", reason[:200], "write the file again")


# ---- arrays ----------------------------------------------------------------------------------------------------------


def _read_arrays(path: Path) -> Content:
    """Read the arrays of a .npy, .npz or .safetensors file; large ones stay on the disk until rows are sliced."""
    if get_ending(path) == ".safetensors":
        # As tensors of PyTorch: numpy has no bfloat16, in which models save.
        file: Any = safe_open(path, framework="pt")
        names = sorted(file.keys(), key=natural_sort_key)
        return _build_content({name: file.get_tensor(name) for name in names}, path)
    if get_ending(path) == ".npz":
        _check_sizes(path)
    # Archives ignore `mmap_mode`: their large members are mapped below. Never
    # unpickled: a file of objects could run any code.
    loaded = np.load(path, mmap_mode="r", allow_pickle=False)
    if not isinstance(loaded, np.ndarray):
        return _build_content(_read_archive(loaded, path), path)
    if loaded.dtype.names:  # a structured array: a table
        columns = {name: np.asarray(loaded[name]) for name in loaded.dtype.names}
        return Content(columns, notes=["a structured array"])
    return _build_content({path.stem: loaded}, path)


def _read_archive(archive: Any, path: Path) -> dict[str, Any]:
    """Return {name: array} of an opened .npz archive; large ones stay on the disk until rows are sliced.

    path   of the archive
    """
    arrays: dict[str, Any] = {}
    mapped = _map_large_members(path)
    for name in sorted(archive.files, key=natural_sort_key):
        if name in mapped:
            arrays[name] = mapped[name]
        else:
            arrays[name] = archive[name]
    return arrays


def _check_sizes(path: Path) -> None:
    """Raise CorpusError for an .npz archive that announces more content than memory holds, or than its size
    can hold.

    No array is unpacked for the check.
    """
    total = _count_unpacked_bytes(path)
    packed = path.stat().st_size
    budget = get_memory_budget()
    # a few bytes can be made to unpack to more than any memory holds ("zip bomb")
    if total > max(SMALL, MOST_PACKED * packed):
        got = f"{packed:,} bytes that unpack to {total:,}"
        cure = "store the vectors as .npy: files of vectors do not compress so much"
        raise CorpusError(
            f"a file that unpacks to at most {MOST_PACKED} times its size: {path}",
            got,
            cure,
        )
    if total > budget:
        cure = "store it as .npy or by numpy.savez without compression, which are read in blocks"
        raise refuse_large_file(path, total, budget, cure)


def _count_unpacked_bytes(path: Path) -> int:
    """Return how many bytes the arrays of an .npz archive take in memory, without those that are read in place.

    CorpusError for an array whose header announces more than the archive holds of it.
    """
    total = 0
    with ZipFile(path) as archive:
        for info in archive.infolist():
            if not info.filename.endswith(".npy"):
                continue
            with archive.open(info) as file:
                announced = _count_announced_bytes(file)
            # numpy would make room for all that the header announces before it reads
            if announced > info.file_size:
                got = f"{info.filename} of {info.file_size:,} bytes whose header says {announced:,}"
                raise CorpusError(f"vectors in {path}", got, "write the file again")
            if not _is_mapped(info):
                total += info.file_size
    return total


def _is_mapped(info: ZipInfo) -> bool:
    """Return whether an array of an archive is large and stored as it is, so that it can be read in place."""
    is_encrypted = bool(info.flag_bits & 1)
    return (
        info.compress_type == ZIP_STORED and not is_encrypted and info.file_size > LARGE
    )


def _map_large_members(path: Path) -> dict[str, NDArray[Any]]:
    """Return {name: array} of those large arrays of an .npz archive that are stored without compression.

    They stay on the disk until rows are sliced.
    """
    found: dict[str, NDArray[Any]] = {}
    with ZipFile(path) as archive, path.open("rb") as file:
        for info in archive.infolist():
            if not info.filename.endswith(".npy") or not _is_mapped(info):
                continue
            _go_to_member(file, info)
            shape, by_columns, dtype = _read_header(file)
            # objects are pickled: no numbers lie in the file; records have no one type of numbers
            if dtype.hasobject or dtype.names:
                continue
            order: Any = "F" if by_columns else "C"
            found[info.filename.removesuffix(".npy")] = np.memmap(
                path, dtype, "r", file.tell(), shape, order
            )
    return found


def _go_to_member(file: Any, info: ZipInfo) -> None:
    """Move to the first byte of a member of a zip archive, behind its own header.

    The header's length is read from the header: it may be longer than the directory at the end of the archive says.
    """
    # bytes 26 to 29 of the header: lengths of the name and of the extra field, which follow the header
    file.seek(info.header_offset + 26)
    lengths = struct.unpack("<HH", file.read(4))
    file.seek(sum(lengths), os.SEEK_CUR)


def _count_announced_bytes(file: Any) -> int:
    """Return the size in bytes of the array that a numpy header announces."""
    shape, _, dtype = _read_header(file)
    return math.prod(shape) * dtype.itemsize


def _read_header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the header of a numpy array: (shape, whether it is stored column by column, type of its numbers)."""
    version = np.lib.format.read_magic(file)
    # Version 2 has four bytes for the length of the header instead of two. Version 3
    # differs from it in the encoding of the names of fields alone.
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    return np.lib.format.read_array_header_2_0(file)


def _read_torch(path: Path) -> Content:
    """Read tensors from a PyTorch file: one, a list of them, or a dict. Only numbers are unpickled.

    ValueError for a damaged file or other objects.
    """
    try:
        try:
            loaded = torch.load(path, "cpu", weights_only=True, mmap=True)
        except RuntimeError:  # an older form, which cannot be read in place
            loaded = torch.load(path, "cpu", weights_only=True)
    # what torch raises of a damaged pickle depends on the damage
    except Exception as error:
        raise ValueError(
            f"objects, or a damaged file ({type(error).__name__})"
        ) from error
    return _build_content(dict(_iter_tensors(loaded, path)), path)


def _iter_tensors(loaded: Any, path: Path, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (name, tensor) of what a PyTorch file holds: a tensor, or nested dicts and lists of them.

    A list of rows becomes one tensor, a list of tensors [sequence, token, dim] one layer each. CorpusError for a list
    of other tensors.

    loaded   what the file holds
    name     the name of this part of it; `path`: the file
    """
    if isinstance(loaded, Tensor):
        yield name or path.stem, _to_plain_tensor(loaded)
    elif isinstance(loaded, dict):
        for key, value in loaded.items():
            inner = f"{name}.{key}" if name else str(key)
            yield from _iter_tensors(value, path, inner)
    elif isinstance(loaded, list | tuple) and loaded:
        if all(isinstance(item, Tensor) for item in loaded):
            yield from _iter_tensors_of_list(loaded, path, name)
        else:
            array = _to_array(loaded)
            if array is not None:
                yield name or path.stem, array


def _to_array(entries: Sequence[Any]) -> NDArray[Any] | None:
    """Return a list of numbers, of texts or of such lists, equally long, as an array; None for anything else."""
    # numpy would make an array of objects out of anything: the first entry tells before it is tried.
    if not isinstance(entries[0], int | float | str | list):
        return None
    try:
        array = np.asarray(entries)
    # lists of different lengths, or a tensor among numbers
    except ValueError:
        return None
    # whole numbers, floating-point numbers and texts
    if array.dtype.kind not in "iufU":
        return None
    return array


def _to_plain_tensor(tensor: Tensor) -> Tensor:
    """Return a tensor without gradient and, if it is sparse, as a dense one."""
    tensor = tensor.detach()
    if tensor.layout != torch.strided:
        return tensor.to_dense()
    return tensor


def _iter_tensors_of_list(
    tensors: Sequence[Tensor], path: Path, name: str
) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, tensor) of a list of tensors: rows [dim] as one tensor, [sequence, token, dim] as a layer each.

    CorpusError for matrices, which may be layers or sequences, and for tensors of different shapes.
    """
    shapes = {tuple(item.shape) for item in tensors}
    n_axes = {len(shape) for shape in shapes}
    are_alike = len(shapes) == 1
    if are_alike and n_axes == {1}:
        yield name or path.stem, torch.stack(list(tensors))
    elif are_alike and n_axes == {3}:
        for number, item in enumerate(tensors):
            yield f"{name}.{number}" if name else f"layer {number}", item
    else:
        raise _refuse_list_of_tensors(len(tensors), shapes, path)


def _refuse_list_of_tensors(
    count: int, shapes: set[tuple[int, ...]], path: Path
) -> CorpusError:
    """Return the error for a list of tensors that may mean several things, or nothing.

    count    how many tensors the list has
    shapes   the shapes that they have
    """
    are_matrices = all(len(shape) == 2 for shape in shapes)
    if are_matrices and len({shape[1] for shape in shapes}) == 1:
        got = f"a list of {count} matrices, which may be layers or sequences"
        cure = "save layers as a dict of tensors, or sequences as one tensor [sequence, token, dim] (pad_sequence)"
        return CorpusError(f"one way to read {path.name}", got, cure)
    got = f"a list of tensors of the shapes {', '.join(map(str, sorted(shapes)[:3]))}"
    return CorpusError(
        f"tensors of one width in {path.name}", got, "save one tensor [vector, dim]"
    )


def _build_content(found: dict[str, Any], path: Path) -> Content:
    """Return the content of a file that holds these arrays; those with no axis or more than three are unusable.

    found   {name: array}
    path    of the file
    """
    # As scipy saves a sparse matrix.
    if {"indices", "indptr", "data"} <= found.keys():
        cure = "store numbers: numpy.save('x.npy', x.toarray())"
        raise CorpusError(f"vectors in {path}", "a sparse matrix of scipy", cure)
    found = _split_layers_of_engine(found)
    columns: dict[str, Any] = {}
    unusable: dict[str, str] = {}
    for name, values in found.items():
        if values.ndim == 0:
            unusable[name] = "a single number"
        elif values.ndim > 3:
            unusable[name] = f"{values.ndim} axes {list(values.shape)}"
        else:
            columns[name] = values
    # Of several arrays the rules of roles choose; a single one must be vectors itself.
    if len(found) == 1:
        _require_axes(*next(iter(found.items())), path)
    return Content(columns, unusable=unusable, is_table=False)


def _require_axes(name: str, values: Any, path: Path) -> None:
    """Raise CorpusError if the only array of a file has neither two axes nor three."""
    if values.ndim in (2, 3):
        return
    cure = "store numbers [vector, dim] or [sequence, token, dim]"
    if values.ndim == 1:
        cure = "add an axis: x[None]"
    got = f"{list(values.shape)} in {path.name}, {name!r}"
    raise CorpusError("vectors [vector, dim] or [sequence, token, dim]", got, cure)


def _split_layers_of_engine(found: dict[str, Any]) -> dict[str, Any]:
    """Split the hidden states that vLLM writes [token, layer, dim] into an array for each layer.

    Read as [sequence, token, dim], its layers would count as tokens. Arrays of other files are returned unchanged; that
    a file is vLLM's is known by `token_ids` [token] next to `hidden_states`.

    found   {name: array}
    """
    hidden, ids = found.get("hidden_states"), found.get("token_ids")
    if (
        hidden is None
        or ids is None
        or hidden.ndim != 3
        or ids.ndim != 1
        or len(ids) != len(hidden)
    ):
        return found
    split = dict(found)
    del split["hidden_states"]
    for layer in range(hidden.shape[1]):
        split[f"hidden_states.{layer}"] = hidden[:, layer]
    return split


# ---- saved data sets and folders -------------------------------------------------------------------------------------


def _read_saved_data_set(folder: Path, split: str | None) -> Content:
    """Read the columns of a data set that `datasets` saved.

    CorpusError if it is damaged, or has several splits and none is named.
    """
    require_extra("data", f"to read {folder}, a saved data set")
    import datasets  # type: ignore[import-untyped]

    try:
        loaded: Any = datasets.load_from_disk(str(folder))
    except Exception as error:  # of many kinds: what is damaged is told by the library
        got = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
        raise CorpusError(
            f"a data set saved by datasets in {folder}",
            got,
            "save it again with dataset.save_to_disk",
        ) from error
    has_splits = hasattr(loaded, "keys")
    if has_splits:
        loaded = loaded[_choose_split(list(loaded.keys()), split, folder)]
    elif split is not None:
        raise UsageError(
            "--split only with a data set of several splits",
            str(folder),
            "leave --split out",
        )
    return read_dataset(loaded)


def _choose_split(names: list[str], split: str | None, folder: Path) -> str:
    """Return the split to read: the one asked for, else the only one. CorpusError if it is missing or unclear."""
    if split is None:
        if len(names) > 1:
            raise CorpusError(
                f"one split of {folder}",
                ", ".join(names),
                f"name it: --split {names[0]}",
            )
        return names[0]
    if split not in names:
        raise CorpusError(
            f"a split of {folder}", split, f"name one of {', '.join(names)}"
        )
    return split


def read_dataset(dataset: Any) -> Content:
    """Read the columns of a `datasets.Dataset`."""
    # rows that were chosen or shuffled are a list of indices over the table, which is as it was
    if dataset._indices is not None:
        dataset = dataset.flatten_indices()
    content = read_arrow_table(dataset.data.table)
    content.notes.append("a data set of datasets")
    return content


def _read_folder(folder: Path) -> Content:
    """Read the files of a folder: each is a layer, or they hold consecutive rows; their names say which."""
    files = _list_vector_files(folder)
    if not files:
        raise _refuse_folder(folder)
    if len(files) == 1:
        return read_content(files[0])
    stems = list(map(_strip_ending, files))
    parts = list(map(_read_file_of_folder, files))
    # a table is never one layer: its files hold rows, whatever they are called
    if parts[0].is_table:
        return _join_rows(parts, files)
    if all(map(LAYERS.fullmatch, stems)):
        return _as_layers(parts, stems)
    if not all(map(PIECES.fullmatch, stems)):
        _require_one_reading(folder, parts)
    return _join_rows(parts, files)


def _strip_ending(file: Path) -> str:
    """Return the name of a file without its endings; the name of an array may hold dots: `layer.0.npy`."""
    return file.stem if get_ending(file) in ARRAYS else file.name.partition(".")[0]


def _refuse_folder(folder: Path) -> CorpusError:
    """Make the error for a folder that holds no files of vectors of one kind. The caller raises it."""
    found = sorted({get_ending(file) or file.name for file in list_files_below(folder)})
    got = f"{', '.join(found[:6]) or 'nothing'} in {folder}"
    return CorpusError(
        f"a folder of files of vectors of one kind ({', '.join(ENDINGS)})",
        got,
        "name one file",
    )


def _require_one_reading(folder: Path, parts: Sequence[Content]) -> None:
    """Raise CorpusError if arrays are of one shape and their names do not say whether they are layers or pieces."""
    shapes = {_get_only_shape(part) for part in parts}
    if len(shapes) > 1:
        return
    shape = shapes.pop()
    # files of one vector each are rows: a layer of one vector has nothing to measure
    if len(shape) > 1 and shape[0] > 1:
        got = f"{len(parts)} files of the shape {list(shape)}, which may be layers or pieces of one table"
        cure = "call them layer-0, layer-1 …, or part-0, part-1 …"
        raise CorpusError(f"one way to read the files of {folder}", got, cure)


def _read_file_of_folder(file: Path) -> Content:
    """Read one file of a folder; an array may be a single vector [dim]."""
    if get_ending(file) == ".npy":
        # One vector in a file is a row of the folder; alone it would be refused.
        loaded = np.load(file, mmap_mode="r", allow_pickle=False)
        if (
            isinstance(loaded, np.ndarray)
            and loaded.ndim == 1
            and not loaded.dtype.names
        ):
            return Content({file.stem: loaded[None]}, is_table=False)
    return read_content(file)


def _get_only_shape(content: Content) -> tuple[int, ...]:
    """Return the shape of the only array with more than one axis; () if there is not exactly one."""
    wide: list[tuple[int, ...]] = []
    for values in content.columns.values():
        if values.ndim > 1:
            wide.append(tuple(values.shape))
    if len(wide) == 1:
        return wide[0]
    return ()


def _as_array(values: Any) -> NDArray[Any]:
    """Return an array or tensor as a numpy array; bfloat16, which numpy lacks, becomes float32."""
    if isinstance(values, Tensor) and values.dtype == torch.bfloat16:
        values = values.float()
    return np.asarray(values)


def _as_layers(parts: Sequence[Content], stems: Sequence[str]) -> Content:
    """Make the content of a folder in which each file is one layer, named after the file.

    parts   what each file holds
    stems   the names of the files without endings
    """
    columns: dict[str, Any] = {}
    for part, stem in zip(parts, stems, strict=True):
        for name, values in part.columns.items():
            layer = stem if len(part.columns) == 1 else f"{stem}.{name}"
            columns[layer] = values
    return Content(columns, is_table=False, notes=[f"{len(parts)} files, a layer each"])


def _join_rows(parts: Sequence[Content], files: Sequence[Path]) -> Content:
    """Make the content of a folder whose files hold consecutive rows; the column `file` names each row's file.

    parts   what each file holds

    CorpusError if their columns differ.
    """
    first = parts[0]
    names = list(first.columns)
    # the only array of a file is often named after the file: it is the same column whatever it is called
    is_single = not first.is_table and len(names) == 1
    _require_same_columns(parts, files, by_name=not is_single)
    columns: dict[str, Any] = {}
    for place, name in enumerate(names):
        pieces = [list(part.columns.values())[place] for part in parts]
        column = "vectors" if is_single else name
        columns[column] = _join_pieces(pieces, files[0].parent)
    counts = [len(next(iter(part.columns.values()))) for part in parts]
    columns[FILE] = np.repeat(np.array([file.name for file in files], object), counts)
    index: set[str] = set()
    unusable: dict[str, str] = {}
    for part in parts:
        index |= set(part.index)
        unusable |= part.unusable
    notes = [
        f"{len(files)} files read one after the other (--unit-column {FILE} makes a unit of each)"
    ]
    return Content(
        columns, {}, unusable, tuple(index), first.named, first.is_table, notes
    )


def _require_same_columns(
    parts: Sequence[Content], files: Sequence[Path], *, by_name: bool
) -> None:
    """Raise CorpusError if the files of a folder hold different columns.

    parts     what each file holds
    by_name   whether their names must be equal, rather than their number alone
    """
    names = list(parts[0].columns)
    for part, file in zip(parts, files, strict=True):
        own = list(part.columns)
        is_same = own == names if by_name else len(own) == len(names)
        if not is_same:
            got = f"{', '.join(own[:6])} in {file.name}, {', '.join(names[:6])} in {files[0].name}"
            raise CorpusError(
                "the same columns in all files of a folder",
                got,
                "measure them separately",
            )


def _join_pieces(pieces: Sequence[Any], folder: Path) -> NDArray[Any]:
    """Join the rows of one column, file after file. CorpusError if their vectors differ in width.

    pieces   the column's array in each file
    """
    widths = {piece.shape[1:] for piece in pieces}
    if len(widths) > 1:
        shapes = ", ".join(str(list(piece.shape)) for piece in pieces[:3])
        raise CorpusError(
            f"files of vectors of one width in {folder}",
            shapes,
            "measure them separately",
        )
    return np.concatenate([_as_array(piece) for piece in pieces])
