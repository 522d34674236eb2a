"""What tells one model from another: hashes of its weights, its configuration and the sources of its own."""

import hashlib
import os
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from torch import nn

from anisoscope.provenance.sources import hash_file
from anisoscope.registry import packages

PASSING = ("transformers_version", "_name_or_path", "_commit_hash")
"""Entries of a configuration that say nothing of what a model computes."""


def lasting(settings: Any) -> Any:
    """A configuration without what differs from place to place and from version to version."""
    if not isinstance(settings, dict):
        return settings
    kept = sorted((str(name), value) for name, value in settings.items() if name not in PASSING)
    return {name: lasting(value) for name, value in kept}


def own_sources(model: nn.Module) -> list[str]:
    """Hashes of what the files that define the model's modules mean, but for Python's own, installed packages, this
    one, and those that add to it: what these mean is part of a run's code.
    """
    known = (Path(__file__).resolve().parents[1], Path(os.__file__).parent)
    names = {kind.__module__ for module in model.modules() for kind in type(module).__mro__}
    names = {name for name in names if name.partition(".")[0] not in packages()}
    files = {getattr(sys.modules.get(name), "__file__", None) for name in names}
    paths = {Path(file).resolve() for file in files if file}
    own = [path for path in paths if not {"site-packages", "dist-packages"} & set(path.parts) and path.is_file()]
    return sorted(hash_file(path) for path in own if not any(map(path.is_relative_to, known)))


def whole(value: Any) -> Any:
    """A tensor whose parts lie in several processes (FSDP2's) from all its parts; any other as it is.

    Each process has to ask for the same ones in the same order, as they exchange their parts.
    """
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def weights_hash(model: nn.Module, but: Collection[str] = ()) -> str:
    """SHA-256 over names, shapes and bytes of all weights `but` some, so that a run names what it measured."""
    digest = hashlib.sha256()
    for key, value in sorted(model.state_dict().items()):
        if key not in but:
            digest.update(f"{key}{tuple(value.shape)}{value.dtype}".encode())
            if value.is_meta:  # laid off by accelerate, which keeps it for when it is needed
                path, _, own = key.rpartition(".")
                hook: Any = model.get_submodule(path)._hf_hook
                value = hook.weights_map[own]
            raw = whole(value).detach().cpu().contiguous().flatten()
            digest.update(raw.view(torch.uint8).numpy().data if raw.numel() else b"")
    return digest.hexdigest()
