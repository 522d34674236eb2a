"""An adapter (LoRA and kin, saved by PEFT): its base model, with the adapter's weights merged into it."""

from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from anisoscope.errors import ModelError
from anisoscope.models.formats import ADAPTER as CONFIG, described, is_adapter, read_config

HEADED = {
    "CAUSAL_LM": "AutoModelForCausalLM",
    "SEQ_CLS": "AutoModelForSequenceClassification",
    "SEQ_2_SEQ_LM": "AutoModelForSeq2SeqLM",
    "TOKEN_CLS": "AutoModelForTokenClassification",
    "QUESTION_ANS": "AutoModelForQuestionAnswering",
}
"""Task of an adapter → Auto class of the model that its weights are named after; others are of the bare model."""


def base_of(folder: str) -> str | None:
    """The name of the base of the adapter in a folder; None where there is none."""
    if not is_adapter(file.name for file in Path(folder).iterdir()):
        return None
    base = read_config(Path(folder, CONFIG)).get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise ModelError(f"the name of the base model in {Path(folder, CONFIG)}", "none", described([CONFIG]))
    return base


def merged(folder: str, base: str, options: dict[str, Any]) -> Any:
    """The bare model of the checkpoint in the folder `base`, loaded with `options`, and all weights of the adapter in
    `folder` merged into it. ModelError where one finds no place, or where they cannot be merged.
    """
    import transformers

    peft: Any = import_module("peft")  # optional
    config = read_config(Path(folder, CONFIG))
    auto: Any = getattr(transformers, HEADED.get(str(config.get("task_type")), "AutoModel"))
    try:
        model = peft.PeftModel.from_pretrained(auto.from_pretrained(base, **options), folder)
        saved, there = peft.load_peft_weights(folder, device="cpu"), peft.get_peft_model_state_dict(model)
    except Exception as error:
        got = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise ModelError(f"a readable adapter in {folder}, of {base}", got, "save it again, or merge it") from error
    apart = sorted(saved.keys() ^ there.keys())
    apart += sorted(key for key in saved.keys() & there.keys() if not _same(saved[key], there[key]))
    if apart:
        got = f"{len(apart)} that find no place, such as {', '.join(apart[:3])}"
        raise ModelError(f"an adapter whose weights are all of {base}", got, "name its own base in adapter_config.json")
    if not hasattr(model, "merge_and_unload"):
        cure = "return the model from a function of yours, as module:function"
        raise ModelError("an adapter that can be merged into its base", str(config.get("peft_type")), cure)
    whole: Any = model.merge_and_unload()
    return getattr(whole, "base_model", whole)


def _same(saved: torch.Tensor, there: torch.Tensor) -> bool:
    return saved.shape == there.shape and bool(torch.equal(saved.to(there), there))
