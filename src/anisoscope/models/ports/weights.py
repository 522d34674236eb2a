"""Published weights into the ports: known prefixes and names are translated, and no key is left over in silence."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from anisoscope.errors import ModelError

Weights = Mapping[str, Tensor]
Model = TypeVar("Model", bound="PublishedModel")

PREFIXES = {r"^(?:(?:module|model|transformer|character_bert|bert|manta|van)\.)+": ""}
"""What wrappers (data parallelism, heads) put before a bare model's names; no port has a child of such a name."""

ENVELOPES = ("state_dict", "model")
"""Keys under which training scripts keep the weights beside their own state."""


class PublishedModel(PreTrainedModel):  # type: ignore[no-untyped-call]  # its __init_subclass__ has no types
    """A port that loads what its authors published, whole or not at all, and always saves under their names."""

    published_names: ClassVar[Mapping[str, str]] = {}
    """Other published spellings: regular expression → ours, applied in this order; at most one group, `\\1`."""

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """Load as transformers does, but a weight that is missing or left over is an error instead of a warning."""
        want_info = kwargs.pop("output_loading_info", False)
        kwargs.setdefault("key_mapping", {**PREFIXES, **cls.published_names})
        loaded: Any = super().from_pretrained(*args, output_loading_info=True, **kwargs)
        model, info = loaded
        misshapen = {key: (tuple(came), tuple(want)) for key, came, want in info["mismatched_keys"]}
        require_all_keys(cls.__name__, info["missing_keys"], info["unexpected_keys"], misshapen)
        return (model, info) if want_info else model

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """Save as transformers; the names are those of the port, whatever spelling the weights were loaded from."""
        kwargs.setdefault("save_original_format", False)
        super().save_pretrained(*args, **kwargs)


def load_published(model: Model, weights: Weights | str | Path) -> Model:
    """Fill `model` with published weights (a file or a state dict) and return it in evaluation mode.

    Accepts `.safetensors` and `torch.save` files, weights under a `state_dict` key, and the prefixes and spellings that
    the class knows. Every key missing, left over or of another shape is named in one `ModelError`.
    """
    renamed = {published_name(type(model), key): tensor for key, tensor in _bare(weights).items()}
    own = model.state_dict(keep_vars=True)
    filled = {id(own[name]) for name in renamed if name in own}  # tied names are one tensor
    missing = [name for name, tensor in own.items() if id(tensor) not in filled]
    ignored = model._keys_to_ignore_on_load_unexpected or ()
    unexpected = [name for name in renamed if name not in own and not any(re.search(rule, name) for rule in ignored)]
    misshapen = {
        name: (tuple(tensor.shape), tuple(own[name].shape))
        for name, tensor in renamed.items()
        if name in own and tensor.shape != own[name].shape
    }
    require_all_keys(type(model).__name__, missing, unexpected, misshapen)
    model.load_state_dict({name: tensor for name, tensor in renamed.items() if name in own}, strict=False)
    model.train(False)
    return model


def is_native(model_type: str) -> bool:
    """Whether transformers itself has the architecture: its own then goes before the port."""
    from transformers.models.auto import configuration_auto

    return model_type in configuration_auto.CONFIG_MAPPING_NAMES  # type: ignore[attr-defined]


def published_name(cls: type[PublishedModel], key: str) -> str:
    """The port's name of a published `key`."""
    for pattern, spelling in {**PREFIXES, **cls.published_names}.items():
        key = re.sub(pattern, spelling, key, count=1)
    return key


def require_all_keys(
    name: str,
    missing: Iterable[str],
    unexpected: Iterable[str],
    misshapen: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]] | None = None,
) -> None:
    """Raise a `ModelError` that names every key at fault, if there is one."""
    faults = [f"missing {key}" for key in sorted(missing)]
    faults += [f"unexpected {key}" for key in sorted(unexpected)]
    faults += [f"{key} of shape {got} instead of {want}" for key, (got, want) in sorted((misshapen or {}).items())]
    if faults:
        raise ModelError(
            f"exactly the weights of {name}",
            ", ".join(faults),
            "check that the configuration (sizes, depths, number of labels) is the one of this checkpoint",
        )


def _bare(weights: Weights | str | Path) -> Weights:
    """The state dict inside a file or an envelope."""
    if isinstance(weights, (str, Path)):
        path = Path(weights)
        if not path.is_file():
            raise ModelError("a file of weights", f"{path}, which is no file", "give the path of one weights file")
        weights = load_file(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
    for envelope in ENVELOPES:
        inner = weights.get(envelope)
        if isinstance(inner, Mapping):
            return inner
    return weights
