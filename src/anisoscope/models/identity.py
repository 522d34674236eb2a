"""Identify a model: hashes of its weights, its configuration and its own sources."""

import hashlib
import os
import sys
from collections.abc import Collection, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from anisoscope.models.hashes import recall_hash
from anisoscope.provenance.sources import hash_file
from anisoscope.registry import list_packages

PASSING = ("transformers_version", "_name_or_path", "_commit_hash")
"""Entries of a configuration that say nothing of what a model computes."""

ENDINGS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack")
"""Endings of files of weights."""
PER_CHANNEL = (torch.per_channel_affine, torch.per_channel_affine_float_qparams)
"""Kinds of quantisation with a scale for each row."""


def drop_volatile(settings: Any) -> Any:
    """Return a configuration without entries that do not change the model, such as paths and library versions."""
    if not isinstance(settings, dict):
        return settings
    kept = sorted(
        (str(name), value) for name, value in settings.items() if name not in PASSING
    )
    return {name: drop_volatile(value) for name, value in kept}


def hash_own_sources(model: nn.Module) -> list[str]:
    """Return hashes of the files that define the model's modules.

    Python's own files, installed packages and this package do not count.
    """
    # With base classes, since a model may inherit its computation from a file of the
    # user's.
    names = {
        kind.__module__ for module in model.modules() for kind in type(module).__mro__
    }
    packages = list_packages()
    files: set[Path] = set()
    for name in names:
        file = getattr(sys.modules.get(name), "__file__", None)
        if file and name.partition(".")[0] not in packages:
            files.add(Path(file).resolve())
    return sorted(hash_file(path) for path in files if _is_own_source(path))


def _is_own_source(path: Path) -> bool:
    """Return whether a file is the user's own: not of Python, of an installed package or of this one."""
    if {"site-packages", "dist-packages"} & set(path.parts) or not path.is_file():
        return False
    known = (Path(__file__).resolve().parents[1], Path(os.__file__).parent)
    return not any(path.is_relative_to(folder) for folder in known)


def gather_whole(value: Any) -> Any:
    """Return a whole tensor, if its parts are in several processes (FSDP2); any other value unchanged.

    Every process must ask for the same tensors in the same order, as they exchange their parts.
    """
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def read_offloaded(module: nn.Module, name: str, value: torch.Tensor) -> torch.Tensor:
    """Return the values of a weight that accelerate has laid off, to the CPU or the disk; any other weight unchanged.

    module   the one that has the weight
    name     of the weight in the module
    """
    if not value.is_meta:
        return value
    hook: Any = module._hf_hook
    found: torch.Tensor = hook.weights_map[name]
    return found


def _iter_tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield the plain tensors that a value of a state dict is made of, however it is nested.

    A quantised tensor is made of its integers, scales and zero points.
    """
    if isinstance(value, tuple | list):
        for part in value:
            yield from _iter_tensors(part)
    elif not isinstance(value, torch.Tensor):
        return
    elif is_packed(value):
        packed: Any = value
        names, _ = packed.__tensor_flatten__()
        for name in names:
            yield from _iter_tensors(getattr(packed, name))
    elif value.is_quantized:
        yield from _iter_quantised(value)
    else:
        yield value


def _iter_quantised(value: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the parts of a quantised tensor of torch: its integers, scales and zero points."""
    yield value.int_repr()
    # One of each for a row, or for the whole tensor.
    if value.qscheme() in PER_CHANNEL:
        yield torch.as_tensor(value.q_per_channel_scales(), dtype=torch.float64)
        yield torch.as_tensor(value.q_per_channel_zero_points())
    else:
        yield torch.as_tensor(value.q_scale(), dtype=torch.float64)
        yield torch.as_tensor(value.q_zero_point())


def _write_settings(value: Any) -> str:
    """Return as text everything inside a value of a state dict that is not a plain tensor, for hashing."""
    if isinstance(value, tuple | list):
        return ",".join(map(_write_settings, value))
    if isinstance(value, torch.Tensor):
        # Of torchao's, the sizes of blocks and the like.
        return type(value).__name__ if is_packed(value) else ""
    return repr(value)


def hash_weights(model: nn.Module, but: Collection[str] = ()) -> str:
    """Return the SHA-256 of names, shapes and bytes of all weights, except those named in `but`.

    If the weights are split over processes (FSDP2), all processes must call it.
    """
    digest = hashlib.sha256()
    # Sorted, because the order of a state dict depends on the order in which modules were made.
    for key, value in sorted(_read_state(model).items()):
        if key in but:
            continue
        if is_packed(value):
            for part in _iter_tensors(value):
                digest.update(f"{key}{tuple(part.shape)}{part.dtype}".encode())
                digest.update(_read_bytes(part))
            digest.update(f"{key}{_write_settings(value)}".encode())
            continue
        digest.update(f"{key}{tuple(value.shape)}{value.dtype}".encode())
        if value.is_meta:
            path, _, own = key.rpartition(".")
            value = read_offloaded(model.get_submodule(path), own, value)
        digest.update(_read_bytes(gather_whole(value)))
    return digest.hexdigest()


def _read_state(model: nn.Module) -> dict[str, Any]:
    """Return the state dict of a model without changing the model, as bitsandbytes would.

    At the first call on a CPU, bitsandbytes 0.50 rearranges 4-bit weights. Its own `state_dict` undoes that in place
    for the weights but not for their scales, so that the model then computes other numbers.
    """
    laid_out = {}
    for name, module in model.named_modules():
        quant_state = getattr(getattr(module, "weight", None), "quant_state", None)
        if getattr(quant_state, "packing_format_for_cpu", False):
            laid_out[name] = module
    state: dict[str, Any] = {}
    for module in laid_out.values():
        # In the instance, where it hides the class's own method.
        module.__dict__["_save_to_state_dict"] = partial(
            nn.Module._save_to_state_dict, module
        )
    try:
        state = model.state_dict()
    finally:
        for module in laid_out.values():
            del module.__dict__["_save_to_state_dict"]
    for name, module in laid_out.items():
        # What bitsandbytes' own method would add: scales, in the form in which it saves
        # them.
        weight: Any = module.weight
        for key, value in weight.quant_state.as_dict(packed=True).items():
            state[f"{name}.weight.{key}"] = value
    return state


def _read_bytes(x: torch.Tensor) -> Any:
    """Return the bytes of a tensor's numbers, in a form that `hashlib` accepts."""
    raw = x.detach().cpu().contiguous().flatten()
    # As bytes, since numpy has no bfloat16.
    return raw.view(torch.uint8).numpy().data if raw.numel() else b""


def is_packed(value: Any) -> bool:
    """Return whether an entry of a state dict is made of several tensors, as weights of torch's int8 modules and of
    torchao are.
    """
    if not isinstance(value, torch.Tensor):
        return True
    # A DTensor (FSDP2) has this method too, but is gathered to a plain tensor instead.
    is_of_several_processes = hasattr(value, "placements")
    return hasattr(value, "__tensor_flatten__") and not is_of_several_processes


def hash_loaded_weights(
    model: nn.Module, but: Collection[str], folders: Iterable[str]
) -> str:
    """Return `hash_weights` of a model that was loaded from folders; for large files, from a cache on disk.

    The cached hash is used as long as sizes and modification times of the files are the same, and names, shapes, dtypes
    and first numbers of all weights: a new release of transformers may read the same files in another way.

    but       names of weights that do not count
    folders   those that hold the files of weights
    """
    files: list[Path] = []
    for folder in folders:
        for path in sorted(Path(folder).rglob("*")):
            if path.suffix in ENDINGS and path.is_file():
                files.append(path)
    if hasattr(model, "quantization_method"):
        # Quantised weights may be laid out by the first call, or differ by device.
        files = []
    return recall_hash(
        files,
        lambda: ["weights", sorted(but), hash_some_weights(model)],
        lambda: hash_weights(model, but),
    )


SOME = 64
"""Numbers of every tensor that `hash_some_weights` reads."""


def hash_some_weights(model: nn.Module) -> str:
    """Return a quick hash of names, shapes and the first numbers of all weights.

    Two models that differ only in later numbers of every tensor have the same hash; `hash_weights` reads everything.
    """
    digest = hashlib.sha256()
    for name, value in sorted(model.named_parameters()):
        digest.update(f"{name}{tuple(value.shape)}{value.dtype}".encode())
        # Of a weight that is split over processes, the part of this one.
        local = value.to_local() if hasattr(value, "to_local") else value
        if not local.is_meta:
            # In float64, since numpy has no bfloat16.
            digest.update(
                local.detach().flatten()[:SOME].cpu().double().numpy().tobytes()
            )
    return digest.hexdigest()
