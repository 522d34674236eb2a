"""Load an adapter (LoRA and the like, saved by PEFT): its base model, with the adapter's weights merged into it."""

from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from anisoscope.errors import ModelError
from anisoscope.models.formats import (
    ADAPTER as CONFIG,
    explain_format,
    is_adapter,
    read_config,
)

HEADED = {
    "CAUSAL_LM": "AutoModelForCausalLM",
    "SEQ_CLS": "AutoModelForSequenceClassification",
    "SEQ_2_SEQ_LM": "AutoModelForSeq2SeqLM",
    "TOKEN_CLS": "AutoModelForTokenClassification",
    "QUESTION_ANS": "AutoModelForQuestionAnswering",
}
"""Task of an adapter → Auto class of the model that its weights are named after; others are of the bare model."""
OF_SEQUENCES = "SEQ_CLS"
HEAD_WEIGHTS = ("score.weight", "classifier.weight", "out_proj.weight")
"""How the last layers of heads for classes are called."""


def find_base(folder: str) -> str | None:
    """Return the name of the base model of the adapter in a folder; None if the folder holds no adapter.

    ModelError if the adapter's configuration names no base model.
    """
    if not is_adapter(file.name for file in Path(folder).iterdir()):
        return None
    base = read_config(Path(folder, CONFIG)).get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise ModelError(
            f"the name of the base model in {Path(folder, CONFIG)}",
            "none",
            explain_format([CONFIG]),
        )
    return base


def merge_adapter(
    folder: str, base: str, options: dict[str, Any], *, classifier: bool = False
) -> Any:
    """Load an adapter's base model, and return it with the adapter's weights merged into it.

    folder       of the adapter
    base         folder of the base model's checkpoint
    options      keyword arguments for transformers
    classifier   keep the classification head, if the adapter was trained with one

    ModelError if a weight of the adapter fits nowhere, or if they cannot be merged.
    """
    import transformers

    peft: Any = import_module("peft")  # optional
    config = read_config(Path(folder, CONFIG))
    task = str(config.get("task_type"))
    auto: Any = getattr(transformers, HEADED.get(task, "AutoModel"))
    try:
        saved = peft.load_peft_weights(folder, device="cpu")
        classes = _count_classes(saved) if task == OF_SEQUENCES else None
        head = {} if classes is None else {"num_labels": classes}
        model = peft.PeftModel.from_pretrained(
            auto.from_pretrained(base, **options, **head), folder
        )
        loaded = peft.get_peft_model_state_dict(model)
    except Exception as error:
        got = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise ModelError(
            f"a readable adapter in {folder}, of {base}",
            got,
            "save it again, or merge it into its model",
        ) from error
    # PEFT only warns of weights that fit nowhere: what was loaded is compared with what was saved.
    misplaced = sorted(saved.keys() ^ loaded.keys())
    for key in sorted(saved.keys() & loaded.keys()):
        if not _is_same(saved[key], loaded[key]):
            misplaced.append(key)
    if misplaced:
        weights = "1 weight" if len(misplaced) == 1 else f"{len(misplaced)} weights"
        got = f"{weights} without a place in it, such as {', '.join(misplaced[:3])}"
        raise ModelError(
            f"an adapter whose weights all fit {base}",
            got,
            "name its own base in adapter_config.json",
        )
    if not hasattr(model, "merge_and_unload"):
        cure = "load it in a function of your own that returns the model, and name that: module:function"
        raise ModelError(
            "an adapter that can be merged into its base",
            str(config.get("peft_type")),
            cure,
        )
    whole: Any = model.merge_and_unload()
    if classifier and task == OF_SEQUENCES:
        whole.config.architectures = [
            type(whole).__name__
        ]  # else the configuration is that of its base
        return whole
    return getattr(whole, "base_model", whole)


def _count_classes(saved: dict[str, torch.Tensor]) -> int | None:
    """Return the number of classes of the classification head that was saved with an adapter; None without a head.

    The adapter's configuration does not have it, so it is read from the shape of the head's last weight matrix.

    saved   the tensors of the adapter's file by name
    """
    classes = None
    for name, x in saved.items():
        # LoRA's own matrices in the head are of its rank, not of its number of classes.
        is_whole = ".lora_" not in name
        if is_whole and name.endswith(HEAD_WEIGHTS) and x.dim() == 2:
            # [class, dim]
            classes = len(x)
    return classes


def _is_same(saved: torch.Tensor, loaded: torch.Tensor) -> bool:
    """Return whether a saved weight and the loaded one are equal, in the loaded one's type and on its device."""
    return saved.shape == loaded.shape and bool(torch.equal(saved.to(loaded), loaded))
