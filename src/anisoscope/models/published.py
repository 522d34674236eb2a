"""Load published weights into ports (architectures that transformers lacks): names are translated, no key is
ignored.
"""

from collections.abc import Mapping
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
"""Keys under which training scripts save the weights, next to their own state."""


class PublishedModel(PreTrainedModel):  # type: ignore[no-untyped-call]  # its __init_subclass__ has no types
    """A ported model that loads what its authors published, completely or not at all, and saves it under the port's
    names.
    """

    published_names: ClassVar[Mapping[str, str]] = {}
    """Other published spellings: regular expression → ours, applied in this order; at most one group, `\\1`."""

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """Load as transformers does, but raise ModelError for a weight that is missing, left over or of
        another shape.
        """
        # The info is always needed here, but returned only to those who asked for it.
        want_info = kwargs.pop("output_loading_info", False)
        kwargs.setdefault("key_mapping", {**PREFIXES, **cls.published_names})
        kwargs |= {
            "output_loading_info": True,
            "ignore_mismatched_sizes": True,
        }  # that is: they are in `info`
        loaded: Any = super().from_pretrained(*args, **kwargs)
        model, info = loaded
        faults = [f"missing {key}" for key in sorted(info["missing_keys"])]
        faults += [f"unexpected {key}" for key in sorted(info["unexpected_keys"])]
        for key, came, want in sorted(info["mismatched_keys"]):
            faults.append(f"{key} of shape {tuple(came)} instead of {tuple(want)}")
        if faults:
            cure = "check that the configuration (sizes, depths, number of labels) is the one of this checkpoint"
            raise ModelError(
                f"exactly the weights of {cls.__name__}", ", ".join(faults), cure
            )
        return (model, info) if want_info else model

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """Save as transformers does, with the parameter names of this class.

        This holds also if the weights were loaded from a file under the original authors' names.
        """
        kwargs.setdefault("save_original_format", False)
        super().save_pretrained(*args, **kwargs)


def unwrap_state_dict(weights: Any) -> Weights:
    """Return the state dict in what a training script saved, such as {"state_dict": …, "epoch": …}.

    A plain state dict is returned unchanged.
    """
    return next(
        (weights[key] for key in ENVELOPES if isinstance(weights.get(key), Mapping)),
        weights,
    )


def load_published(model: Model, weights: Weights | str | Path) -> Model:
    """Load published weights (a file or a state dict) into a new model like `model`, in evaluation mode.

    Accepts `.safetensors` and `torch.save` files, weights under a `state_dict` key, and the prefixes and spellings
    that the class knows. One `ModelError` names every key that is missing, left over or of another shape.
    """
    if isinstance(weights, str | Path):
        path = Path(weights)
        if not path.is_file():
            raise ModelError(
                "a file of weights",
                f"{path}, which is not a file",
                "give the path of one weights file",
            )
        weights = (
            load_file(path)
            if path.suffix == ".safetensors"
            else torch.load(path, "cpu", weights_only=True)
        )
    given = {
        "config": model.config,
        "dtype": model.dtype,
        "state_dict": dict(unwrap_state_dict(weights)),
    }
    # Without a folder, transformers takes the weights from `state_dict`, with the same
    # checks of names and shapes.
    return type(model).from_pretrained(None, **given)  # type: ignore[no-any-return]
