"""Recognise files that are not a checkpoint of transformers, name their format, and say what to do instead."""

import json
import re
from collections.abc import Iterable
from fnmatch import fnmatch
from importlib.util import find_spec
from pathlib import Path
from typing import Any

VOCABULARIES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "spiece.model",
    "tokenizer.model",
    "sentencepiece.bpe.model",
)
"""Files that hold the vocabulary of a tokenizer: a folder with none of them has no tokenizer."""
WEIGHTS = (
    *(
        "model.safetensors",
        "model.safetensors.index.json",
        "pytorch_model.bin",
        "pytorch_model.bin.index.json",
    ),
    *("adapter_model.safetensors", "adapter_model.bin"),
)
"""Files of weights that are read, the first of them that is there."""

ADAPTER = "adapter_config.json"
"""The file with the configuration of an adapter (LoRA and the like); its weights are in another one."""

MODULES = "modules.json"
"""What the modules of a folder of sentence-transformers are, in order."""

ENDINGS = (
    ".safetensors",
    ".bin",
    ".h5",
    ".msgpack",
    ".ot",
    ".onnx",
    ".gguf",
    ".pt",
    ".pth",
    ".th",
    ".ckpt",
    ".tflite",
)
"""How files of weights end, in whatever format."""

OWN = "write a function that returns the model, and name it as module:function"
FORMATS = {
    ADAPTER: "it is an adapter (LoRA, PEFT), which is no model: pip install peft and name it again, or "
    "merge it with `peft.AutoPeftModel….from_pretrained(…).merge_and_unload().save_pretrained(folder)`",
    "*.gguf": "it is GGUF, the format of llama.cpp: measure the checkpoint of transformers that it was made from",
    "model_index.json": "it is a pipeline of diffusers: measure one of its parts that transformers knows, such as its "
    f"folder text_encoder, or {OWN}",
    "open_clip_*": f"it is a checkpoint of open_clip: measure its conversion for transformers, or {OWN}",
    "tf_model.h5": "its weights are TensorFlow's: convert them with transformers 4 "
    "(from_pretrained(…, from_tf=True), then save_pretrained)",
    "flax_model.msgpack": "its weights are Flax's: convert them with transformers 4 "
    "(from_pretrained(…, from_flax=True), then save_pretrained)",
    "*.onnx": "it is ONNX, in which no layer can be seen: measure the checkpoint that it was exported from",
    "consolidated.*": "it is a checkpoint in its authors' own format: measure its conversion for transformers",
    "model.*.safetensors": "its weights have a name of a variant: rename the file to model.safetensors",
    MODULES: "it is a folder of sentence-transformers whose first module is no Transformer that can be read: measure "
    "its vectors, anisoscope.measure(SentenceTransformer(name).encode(texts))",
    "*.ckpt": f"it is the state of a training: {OWN}",
    "*.pt": f"it is a file of torch without the model's code: {OWN}",
    "*.th": f"it is a file of torch without the model's code: {OWN}",
    "*.pth": f"it is a file of torch without the model's code: {OWN}",
}
"""Name of a file → what it shows the folder to be, and the cure; the first that is there counts."""


def is_adapter(names: Iterable[str]) -> bool:
    """Return whether a checkpoint is an adapter without a model's weights, and PEFT is installed to read it.

    names   of its files
    """
    there = set(names)
    # The first four of `WEIGHTS` are a whole model's; a folder that has both is read as
    # that.
    return (
        ADAPTER in there
        and there.isdisjoint(WEIGHTS[:4])
        and find_spec("peft") is not None
    )


def find_first_module(names: Iterable[str]) -> str:
    """Return the folder that holds the Transformer of an older sentence-transformers checkpoint: `0_Transformer/`.

    Empty if the configuration is in the main folder, as in other checkpoints.

    names   the names of the checkpoint's files
    """
    there = set(names)
    if MODULES not in there or "config.json" in there:
        return ""
    for name in sorted(there):
        if re.fullmatch(r"0_\w+/config\.json", name):
            return name.removesuffix("config.json")
    return ""


OF_TRANSFORMERS = ("Transformer", "MLMTransformer", "CLIPModel")
"""First modules of sentence-transformers that hold a model of transformers."""


def find_foreign_first_module(folder: Path) -> str:
    """Return the class of the first sentence-transformers module if it is no transformers model; empty otherwise.

    Such modules are a bag of words, word vectors, or a router.
    """
    rows = read_list(folder / MODULES)
    if not rows:
        return ""
    path = str(rows[0].get("type", ""))
    kind = path.rpartition(".")[2]
    # Modules of other packages are code of the checkpoint's own, which may well hold a Transformer.
    if not path.startswith("sentence_transformers.") or kind in OF_TRANSFORMERS:
        return ""
    return kind


def list_checkpoint_files(folder: Path) -> list[str]:
    """Return the names of the files in a checkpoint's folder, and in that of its first module (`0_…/`)."""
    return sorted(
        path.relative_to(folder).as_posix()
        for path in (*folder.iterdir(), *folder.glob("0_*/*"))
    )


def choose_weight_file(names: Iterable[str]) -> str | None:
    """Choose the file that a checkpoint's weights are read from, or the index of its shards; None without weights.

    names   of the checkpoint's files
    """
    there = set(names)
    folder = find_first_module(there)
    for name in WEIGHTS:
        if folder + name in there:
            return folder + name
    return None


def explain_format(names: Iterable[str], config: Path | None = None) -> str:
    """Say in which format files are that are no checkpoint of transformers, and what to do; "" if that is unknown.

    names    of the files
    config   the configuration file, which is read if the format does not follow from the names
    """
    # Names are compared with every pattern, which would exhaust an iterator.
    names = list(names)
    for pattern, description in FORMATS.items():
        if any(fnmatch(name, pattern) for name in names):
            return description
    return "" if config is None else explain_config(read_config(config))


def explain_config(config: dict[str, Any]) -> str:
    """Say why transformers may fail to load a model with this configuration, and what to do; "" if nothing is known.

    config   the content of config.json
    """
    if "_diffusers_version" in config:
        return f"it is a part of a diffusers pipeline ({config.get('_class_name', 'unknown')}): {OWN}"
    # timm's configurations have an `architecture` in place of the `model_type` that
    # transformers requires.
    if "pretrained_cfg" in config or (
        "architecture" in config and "model_type" not in config
    ):
        return "it is a model of timm: " + (
            OWN if find_spec("timm") else "pip install timm"
        )
    quantised = config.get("quantization_config")
    if isinstance(quantised, dict):
        kind = quantised.get("quant_method", "an unknown method")
        return f"its weights are quantised ({kind}): measure the checkpoint that they were made from"
    return ""


def read_config(path: Path) -> dict[str, Any]:
    """Read a configuration file (JSON object); empty if it cannot be read."""
    read = _read(path)
    return read if isinstance(read, dict) else {}


def read_list(path: Path) -> list[dict[str, Any]]:
    """Read a file with a list of configurations; empty if it cannot be read."""
    read = _read(path)
    return (
        [row for row in read if isinstance(row, dict)] if isinstance(read, list) else []
    )


def _read(path: Path) -> Any:
    """Read a JSON file; None if it cannot be read."""
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
