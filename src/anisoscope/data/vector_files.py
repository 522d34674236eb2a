"""Read vectors from files: arrays (.npy, .npz, .safetensors, .pt), tables, JSON, folders of them, saved data sets.

The rules of `vector_roles` decide which of the contents are the vectors.
"""

import math
import os
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from itertools import islice
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
from anisoscope.data.files import get_ending, iter_lines, list_files_below, memory_budget, refuse_large_file
from anisoscope.data.vector_json import read_json_vectors
from anisoscope.data.vector_roles import Content, Roles, decide_roles, describe_roles
from anisoscope.data.vector_tables import LARGE, content_of_arrow, is_number, read_arrow, read_delimited
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
CURES = {
    ".pkl": "load it and save numbers: numpy.save('x.npy', x), or frame.to_parquet('x.parquet'); nothing is unpickled",
    ".h5": "load it and save numbers: numpy.save('x.npy', x)",
    ".mat": "load it with scipy.io.loadmat and save numbers: numpy.save('x.npy', x)",
    ".xlsx": "save it as .csv",
}
CURES |= {".pickle": CURES[".pkl"], ".joblib": CURES[".pkl"], ".hdf5": CURES[".h5"], ".xls": CURES[".xlsx"]}
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
)
"""What readers of arrays raise: an archive that wants a password RuntimeError, a header that is no Python the last."""
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
LAYERS = re.compile(r"(.*[^a-z])?(layer|hidden|hidden_states?|block|h)[-_.]?\d+", re.I)
PIECES = re.compile(r"(.*[^a-z])?(part|shard|chunk|batch|train|test|val|validation|data|rank)[-_.]?\d*(-of-\d+)?", re.I)
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
        return bool(_files_of(path)) or _is_saved(path)
    kind = get_ending(path)
    if not path.is_file() or kind not in ENDINGS:
        return kind in CURES and path.is_file()
    if kind in PLAIN:
        return _holds_lines_of_numbers(path)
    if kind in OF_TORCH:
        return _holds_tensors(path)
    return not OF_MODEL.fullmatch(path.name)


def _is_saved(folder: Path) -> bool:
    """Return whether a folder holds a data set that `datasets` saved."""
    return any((folder / name).is_file() for name in SAVED)


def _files_of(folder: Path) -> list[Path]:
    """Return the files of vectors in a folder, in numerical order; empty if it is a checkpoint or holds other files."""
    files = [file for file in folder.iterdir() if file.is_file() and not file.name.startswith((".", "_"))]
    files = [file for file in files if not file.name.lower().startswith(("readme", "license", "dataset_info"))]
    if not files or any(OF_MODEL.fullmatch(file.name) for file in files):
        return []
    kinds = {get_ending(file) for file in files}
    if len(kinds) != 1 or kinds.pop() not in (*ARRAYS, *OF_TORCH, *OF_ARROW, *DELIMITED, *OF_JSON):
        return []
    ordered = sorted(files, key=lambda file: natural_sort_key(file.name))
    # texts and manifests are tables too: a folder of tables holds vectors if its first one does
    return ordered if get_ending(ordered[0]) in ARRAYS or _reads_as_vectors(ordered[0]) else []


def _reads_as_vectors(path: Path) -> bool:
    """Return whether a file can be read as vectors, even if it is unclear which of its columns they are."""
    try:
        content = read_content(path)
        decide_roles(content, path.name)
    except CorpusError as error:
        return _has_two_readings(error)
    return True


def _has_two_readings(error: CorpusError) -> bool:
    """Return whether the error says that the vectors can be read in two ways."""
    return error.expected.startswith("one way to read")


def _holds_lines_of_numbers(path: Path) -> bool:
    """Return whether the first lines of a text file are rows of numbers, each perhaps after a word."""
    try:
        first = [line for line in islice(iter_lines(path), LOOKED) if line.strip() and not line.startswith("#")]
    except CorpusError:
        return False
    rows = [re.split(r"[,;\t|]| +", line.strip()) for line in first]
    body = rows[1:] if len(rows) > 1 else rows
    return bool(body) and all(map(_is_row_of_numbers, body))


def _is_row_of_numbers(cells: Sequence[str]) -> bool:
    """Return whether cells are numbers, or a word and decimals. (A word and whole numbers are a series: `name step
    seed`.)
    """
    numbers = cells if is_number(cells[0]) else cells[1:]
    worded = len(numbers) < len(cells)
    return len(numbers) > 1 and all(map(is_number, numbers)) and (not worded or any("." in cell for cell in numbers))


def _holds_tensors(path: Path) -> bool:
    """Return whether a PyTorch file holds vectors rather than a model's weights."""
    try:
        content = _torch_content(path)
    except CorpusError as error:
        return _has_two_readings(error)
    except DAMAGED:
        return False
    wide = [name for name, values in content.columns.items() if values.ndim in (2, 3)]
    weights = {"weight", "bias", "running_mean", "running_var", "num_batches_tracked", "in_proj_weight"}
    return bool(wide) and not any(name.rpartition(".")[2] in weights for name in content.columns)


def natural_sort_key(name: str) -> list[Any]:
    """Return a key that sorts `layer.2` before `layer.10`."""
    return [(0, int(part)) if part.isdigit() else (1, part) for part in re.split(r"(\d+)", name)]


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
        cure = CURES.get(get_ending(place), "convert it, for instance to .npy or .parquet")
        raise CorpusError(f"a file of vectors ({', '.join(ENDINGS)})", str(path), cure)
    content = read_content(place, split=split)
    asked = {"columns": columns, "unit_column": unit_column, "label_column": label_column}
    return read_vectors_of(content, place.name or str(place), {"path": str(place.resolve())}, **asked)


def read_vectors_of(content: Content, name: str, source: dict[str, Any], **asked: str | None) -> VectorArrays:
    """Decide what each column of a file or table is (vectors, units, labels, mask), and make vectors of it.

    name      name of the file or table, for errors and the result
    source    what the caller knows of the origin, for the result's `source`; how each column was understood is added
              there as `reading`
    asked     `columns`, `unit_column`, `label_column` as for `open_vectors`
    """
    roles = decide_roles(content, name, **asked)
    layers = _layers(content, roles)
    first = next(iter(layers.values()))
    beside = {}
    for role, column in (("units", roles.units), ("labels", roles.labels)):
        beside[role] = None if column is None else np.asarray(content.columns[column]).tolist()
    mask = content.columns[roles.mask] if roles.mask is not None else None
    if mask is None:
        used = [column for names in roles.layers.values() for column in names]
        mask = next((content.masks[column] for column in used if column in content.masks), None)
    reading = describe_roles(content, roles, name, first.shape)
    source = {"kind": "vectors", **source, "reading": reading}
    return wrap_vectors(layers, **beside, mask=mask, name=name, source=source)


def _layers(content: Content, roles: Roles) -> dict[str, Any]:
    """Return the array of each layer; columns of numbers are put side by side into [row, dim]."""
    layers: dict[str, Any] = {}
    for layer, columns in roles.layers.items():
        if len(columns) > 1 or content.columns[columns[0]].ndim == 1:
            layers[layer] = np.stack([np.asarray(content.columns[column], np.float64) for column in columns], axis=1)
        elif roles.places is not None:
            layers[layer] = _as_array(content.columns[columns[0]])[:, list(roles.places)]
        else:
            layers[layer] = content.columns[columns[0]]
    return layers


def read_content(path: Path, *, split: str | None = None) -> Content:
    """Read what a file or folder holds. CorpusError if it cannot be read."""
    if split is not None and not _is_saved(path):
        raise UsageError("--split with a data set of several splits", str(path), "leave it out")
    if path.is_dir():
        return _saved_content(path, split) if _is_saved(path) else _folder_content(path)
    kind = get_ending(path)
    packed = path.name.lower().endswith(".gz")
    if packed and kind not in (*DELIMITED, *PLAIN, *OF_JSON):
        raise CorpusError(f"a file that is not packed, in {path}", "gzip", f"unpack it: gunzip {path.name}")
    if kind in OF_JSON:
        return read_json_vectors(path)
    if kind in (*DELIMITED, *PLAIN):
        return read_delimited(path)
    try:
        if kind in OF_ARROW:
            return read_arrow(path)
        if kind in OF_TORCH:
            return _torch_content(path)
        return _array_content(path)
    except DAMAGED as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        objects = any(word in reason.lower() for word in ("pickle", "object", "weights_only", "unsupported global"))
        reason = "a file of objects, or none of numpy's" if objects else reason
        cure = "store numbers, not objects" if objects else "write the file again"
        raise CorpusError(f"vectors in {path}", reason[:200], cure) from error


# ---- arrays ----------------------------------------------------------------------------------------------------------


def _array_content(path: Path) -> Content:
    """Read arrays of numpy or safetensors; formats that allow it are only read when sliced."""
    if get_ending(path) == ".safetensors":
        file: Any = safe_open(path, framework="pt")
        return _of_arrays({name: file.get_tensor(name) for name in sorted(file.keys(), key=natural_sort_key)}, path)
    if get_ending(path) == ".npz":
        _check_sizes(path)
    loaded = np.load(path, mmap_mode="r", allow_pickle=False)
    if not isinstance(loaded, np.ndarray):
        names = sorted(loaded.files, key=natural_sort_key)
        mapped = _map_large_members(path)
        return _of_arrays({name: mapped[name] if name in mapped else loaded[name] for name in names}, path)
    if loaded.dtype.names:  # a structured array: a table
        columns = {name: np.asarray(loaded[name]) for name in loaded.dtype.names}
        return Content(columns, notes=["a structured array"])
    return _of_arrays({path.stem: loaded}, path)


def _check_sizes(path: Path) -> None:
    """Raise CorpusError for an .npz archive that announces more content than memory holds, or than its size
    can hold.

    No array is unpacked for the check.
    """
    with ZipFile(path) as archive:
        members = [info for info in archive.infolist() if info.filename.endswith(".npy")]
        total = 0
        for info in members:
            with archive.open(info) as file:
                announced = _announced_bytes(file)
            if announced > info.file_size:
                got = f"{info.filename} of {info.file_size:,} bytes whose header says {announced:,}"
                raise CorpusError(f"vectors in {path}", got, "write the file again")
            total += 0 if _is_mapped(info) else info.file_size
    packed, budget = path.stat().st_size, memory_budget()
    if total > max(SMALL, MOST_PACKED * packed):
        got = f"{packed:,} bytes that unpack to {total:,}"
        cure = "store what you mean as .npy: vectors do not pack so well"
        raise CorpusError(f"vectors packed to no less than a {MOST_PACKED}th in {path}", got, cure)
    if total > budget:
        cure = "store it as .npy or by numpy.savez without compression, which are read in blocks"
        raise refuse_large_file(path, total, budget, cure)


def _is_mapped(info: ZipInfo) -> bool:
    """Return whether an array of an archive is large and stored as it is, so that it can be read in place."""
    return info.compress_type == ZIP_STORED and not info.flag_bits & 1 and info.file_size > LARGE


def _map_large_members(path: Path) -> dict[str, NDArray[Any]]:
    """Return {name: array} of the large arrays of an .npz archive that need no unpacking; they are read when sliced."""
    found: dict[str, NDArray[Any]] = {}
    with ZipFile(path) as archive, path.open("rb") as file:
        for info in archive.infolist():
            if not info.filename.endswith(".npy") or not _is_mapped(info):
                continue
            file.seek(info.header_offset + 26)  # a member's own header may be longer than the directory says
            lengths = struct.unpack("<HH", file.read(4))
            file.seek(sum(lengths), os.SEEK_CUR)
            shape, by_columns, dtype = _read_header(file)
            if dtype.hasobject or dtype.names:
                continue
            order: Any = "F" if by_columns else "C"
            found[info.filename.removesuffix(".npy")] = np.memmap(path, dtype, "r", file.tell(), shape, order)
    return found


def _announced_bytes(file: Any) -> int:
    """Return the size in bytes of the array that a numpy header announces."""
    shape, _, dtype = _read_header(file)
    return math.prod(shape) * dtype.itemsize


def _read_header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the header of a numpy array: (shape, whether it is stored column by column, type of its numbers)."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return read(file)


def _torch_content(path: Path) -> Content:
    """Read tensors from a PyTorch file: one, a list of them, or a dict. Only numbers are unpickled.

    ValueError for a damaged file or other objects.
    """
    try:
        try:
            loaded = torch.load(path, "cpu", weights_only=True, mmap=True)
        except RuntimeError:  # an older form, which cannot be read in place
            loaded = torch.load(path, "cpu", weights_only=True)
    except Exception as error:  # what torch raises of a damaged pickle depends on the damage
        raise ValueError(f"objects, or a damaged file ({type(error).__name__})") from error
    return _of_arrays(dict(_tensors(loaded, path)), path)


def _tensors(loaded: Any, path: Path, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (name, tensor) of what a PyTorch file holds: a tensor, or nested dicts and lists of them.

    A list of rows becomes one tensor, a list of tensors [sequence, token, dim] one layer each. CorpusError for a list
    of other tensors.

    loaded   what the file holds
    name     the name of this part of it; `path`: the file
    """
    if isinstance(loaded, Tensor):
        yield name or path.stem, loaded.detach().to_dense() if loaded.layout != torch.strided else loaded.detach()
    elif isinstance(loaded, dict):
        for key, value in loaded.items():
            yield from _tensors(value, path, f"{name}.{key}" if name else str(key))
    elif isinstance(loaded, list | tuple) and loaded and all(isinstance(item, Tensor) for item in loaded):
        shapes = {tuple(item.shape) for item in loaded}
        dims = {item.dim() for item in loaded}
        if dims == {1} and len(shapes) == 1:
            yield name or path.stem, torch.stack(list(loaded))
        elif dims == {3} and len(shapes) == 1:
            for number, item in enumerate(loaded):
                yield f"{name}.{number}" if name else f"layer {number}", item
        elif dims == {2} and len({shape[1] for shape in shapes}) == 1:
            got = f"a list of {len(loaded)} matrices: layers, or sequences"
            cure = "save layers as a dict of tensors, or sequences as one tensor [sequence, token, dim] (pad_sequence)"
            raise CorpusError(f"one way to read {path.name}", got, cure)
        else:
            got = f"a list of tensors of the shapes {', '.join(map(str, sorted(shapes)[:3]))}"
            raise CorpusError(f"tensors of one width in {path.name}", got, "save one tensor [vector, dim]")
    elif isinstance(loaded, list | tuple):
        array = np.asarray(loaded) if loaded and isinstance(loaded[0], int | float | str | list) else None
        if array is not None and array.dtype.kind in "iufU":
            yield name or path.stem, array


def _of_arrays(found: dict[str, Any], path: Path) -> Content:
    """Make the content of a file out of arrays by name; those with no axis or more than three are listed as
    unusable.
    """
    if {"indices", "indptr", "data"} <= found.keys():
        raise CorpusError(
            f"vectors in {path}", "a sparse matrix of scipy", "store numbers: numpy.save('x.npy', x.toarray())"
        )
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
    if len(found) == 1 and not any(values.ndim in (2, 3) for values in columns.values()):
        name, values = next(iter(found.items()))
        cure = "add an axis: x[None]" if values.ndim == 1 else "store numbers [vector, dim] or [sequence, token, dim]"
        shape = f"{list(values.shape)} in {path.name}, {name!r}"
        raise CorpusError("vectors [vector, dim] or [sequence, token, dim]", shape, cure)
    return Content(columns, unusable=unusable, is_table=False)


def _split_layers_of_engine(found: dict[str, Any]) -> dict[str, Any]:
    """Return the arrays with `hidden_states` [token, layer, dim] split into layers, if `token_ids` [token] says so.

    vLLM writes such a file for each request. Read as [sequence, token, dim], its layers would count as tokens.
    """
    hidden, ids = found.get("hidden_states"), found.get("token_ids")
    if hidden is None or ids is None or hidden.ndim != 3 or ids.ndim != 1 or len(ids) != len(hidden):
        return found
    layers = {f"hidden_states.{i}": hidden[:, i] for i in range(hidden.shape[1])}
    return {**{name: values for name, values in found.items() if name != "hidden_states"}, **layers}


# ---- saved data sets and folders -------------------------------------------------------------------------------------


def _saved_content(folder: Path, split: str | None) -> Content:
    """Read the columns of a data set that `datasets` saved. CorpusError if it is damaged, or the split is unclear."""
    require_extra("data", f"to read {folder}, a saved data set")
    import datasets  # type: ignore[import-untyped]

    try:
        loaded: Any = datasets.load_from_disk(str(folder))
    except Exception as error:  # of many kinds: what is damaged is told by the library
        got = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
        raise CorpusError(f"a data set saved by datasets in {folder}", got, "save it again: save_to_disk") from error
    if hasattr(loaded, "keys"):
        names = list(loaded.keys())
        if split is None and len(names) > 1:
            raise CorpusError(f"one split of {folder}", ", ".join(names), f"name it: --split {names[0]}")
        if split is not None and split not in names:
            raise CorpusError(f"a split of {folder}", split, f"name one of {', '.join(names)}")
        loaded = loaded[split or names[0]]
    elif split is not None:
        raise UsageError("--split with a data set of several splits", str(folder), "leave it out")
    return content_of_dataset(loaded)


def content_of_dataset(dataset: Any) -> Content:
    """Read the columns of a `datasets.Dataset`."""
    if dataset._indices is not None:  # rows that were chosen or shuffled
        dataset = dataset.flatten_indices()
    content = content_of_arrow(dataset.data.table)
    content.notes.append("a data set of datasets")
    return content


def _folder_content(folder: Path) -> Content:
    """Read the files of a folder: each is a layer, or they hold consecutive rows, as their names say."""
    files = _files_of(folder)
    if not files:
        found = sorted({get_ending(file) or file.name for file in list_files_below(folder)})
        got = f"{', '.join(found[:6]) or 'nothing'} in {folder}"
        raise CorpusError(f"a folder of files of vectors of one kind ({', '.join(ENDINGS)})", got, "name one file")
    if len(files) == 1:
        return read_content(files[0])
    stems = [file.name.partition(".")[0] if get_ending(file) not in ARRAYS else file.stem for file in files]
    parts = [_single_vectors(file) for file in files]
    are_arrays = not parts[0].is_table
    if are_arrays and all(LAYERS.fullmatch(stem) for stem in stems):
        return _as_layers(parts, stems)
    shapes = [_shape_of(part) for part in parts]
    alike = are_arrays and len(set(shapes)) == 1 and len(shapes[0]) > 1 and shapes[0][0] > 1
    if alike and not all(PIECES.fullmatch(stem) for stem in stems):
        got = f"{len(files)} files of the shape {list(shapes[0])}: layers, or pieces of one table"
        cure = "call them layer-0, layer-1 …, or part-0, part-1 …"
        raise CorpusError(f"one way to read the files of {folder}", got, cure)
    return _join_rows(parts, files)


def _single_vectors(file: Path) -> Content:
    """Read one file of a folder; an array may be a single vector [dim]."""
    if get_ending(file) == ".npy":
        loaded = np.load(file, mmap_mode="r", allow_pickle=False)
        if isinstance(loaded, np.ndarray) and loaded.ndim == 1 and not loaded.dtype.names:
            return Content({file.stem: loaded[None]}, is_table=False)
    return read_content(file)


def _shape_of(content: Content) -> tuple[int, ...]:
    """Return the shape of the only array with more than one axis; () if there is not exactly one."""
    wide = [tuple(values.shape) for values in content.columns.values() if values.ndim > 1]
    return wide[0] if len(wide) == 1 else ()


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
            columns[stem if len(part.columns) == 1 else f"{stem}.{name}"] = values
    return Content(columns, is_table=False, notes=[f"{len(parts)} files, a layer each"])


def _join_rows(parts: Sequence[Content], files: Sequence[Path]) -> Content:
    """Make the content of a folder whose files hold consecutive rows; the column `file` names each row's file.

    parts   what each file holds. CorpusError if their columns differ
    """
    first = parts[0]
    names = list(first.columns)
    single = not first.is_table and len(names) == 1
    for part, file in zip(parts, files, strict=True):
        if len(part.columns) != len(names) or (not single and list(part.columns) != names):
            got = f"{', '.join(list(part.columns)[:6])} in {file.name}, {', '.join(names[:6])} in {files[0].name}"
            raise CorpusError("the same columns in all files of a folder", got, "measure them apart")
    columns: dict[str, Any] = {}
    for place, name in enumerate(names):
        pieces = [list(part.columns.values())[place] for part in parts]
        widths = {piece.shape[1:] for piece in pieces}
        if len(widths) > 1:
            shapes = ", ".join(str(list(piece.shape)) for piece in pieces[:3])
            raise CorpusError(f"files of vectors of one width in {files[0].parent}", shapes, "measure them apart")
        columns["vectors" if single else name] = np.concatenate(list(map(_as_array, pieces)))
    counts = [len(next(iter(part.columns.values()))) for part in parts]
    columns[FILE] = np.repeat(np.array([file.name for file in files], object), counts)
    index = tuple({name for part in parts for name in part.index})
    unusable = {name: reason for part in parts for name, reason in part.unusable.items()}
    notes = [f"{len(files)} files read one after the other (--unit-column {FILE} makes a unit of each)"]
    return Content(columns, {}, unusable, index, first.named, first.is_table, notes)
