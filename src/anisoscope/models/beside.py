"""What other libraries keep beside a Transformer: timm its own configuration of a model and its images, and
sentence-transformers the modules that make one vector of a text.
"""

from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from anisoscope.errors import ModelError
from anisoscope.models.formats import MODULES, read_list

LIBRARY = "sentence_transformers"


def timm_name(name: str) -> str:
    """`timm/NAME` with the tag of timm's own weights, where it has none."""
    config = None if "." in name else timm_config(name)
    return name if config is None else f"timm/{config.architecture}.{config.pretrained_cfg['tag']}"


def timm_config(name: str) -> Any:
    """The configuration of `timm/NAME` as timm itself has it, without the hub; None for another name, or without timm.
    ModelError for one that timm does not know.
    """
    library, _, own = name.partition("/")
    if library != "timm" or Path(name).exists() or find_spec("timm") is None:
        return None
    timm: Any = import_module("timm")
    try:
        values = timm.get_pretrained_cfg(own, allow_unregistered=False).to_dict()
    except RuntimeError as error:
        near = get_close_matches(own, timm.list_models(pretrained="." in own))
        cure = f"did you mean {' or '.join(near)}?" if near else "timm.list_models() names those that there are"
        raise ModelError("a model that timm knows", f"{name} ({error})", cure) from None
    return import_module("transformers").TimmWrapperConfig.from_dict(
        {"architecture": values["architecture"], "num_classes": values["num_classes"], "pretrained_cfg": values}
    )


def add_sentences(model: nn.Module, folder: str) -> list[str]:
    """Put the modules behind the Transformer of a folder of sentence-transformers into `model.sentence`; remarks."""
    listed = read_list(Path(folder, MODULES))[1:]
    if not listed:
        return []
    foreign = [str(row["type"]) for row in listed if not str(row["type"]).startswith(f"{LIBRARY}.")]
    if foreign or find_spec(LIBRARY) is None:
        reason = f"{', '.join(foreign)} is code of its own" if foreign else "pip install sentence-transformers for them"
        return [f"the modules behind the Transformer (pooling …) are not measured: {reason}"]
    named: Any = import_module(f"{LIBRARY}.util").import_from_string
    try:
        modules = [named(row["type"]).load(str(folder), subfolder=row["path"]) for row in listed]
    except Exception as error:
        got = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise ModelError(f"readable modules of sentence-transformers in {folder}", got, "download it again") from error
    weight = next(model.parameters())
    model.sentence = nn.ModuleList(modules).to(weight.device, weight.dtype).eval()
    return []


def sentences_of(model: Any, inputs: dict[str, Any], output: Any) -> Tensor:
    """Vectors [sequence, 1, dim] of whole texts, by the modules in `model.sentence`."""
    encoded = getattr(output, "encoder_last_hidden_state", None)  # of an encoder–decoder (T5) the encoder counts
    given = {"token_embeddings": output.last_hidden_state if encoded is None else encoded}
    given |= {name: inputs[name] for name in ("input_ids", "attention_mask") if name in inputs}
    for module in model.sentence:
        given = module(given)
    vectors: Tensor = given["sentence_embedding"]
    return vectors.unsqueeze(1)
