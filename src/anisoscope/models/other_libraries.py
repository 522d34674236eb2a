"""Read what other libraries save with a Transformer: configurations of timm, and the modules of sentence-transformers
that turn its states into the vector of a text.
"""

from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anisoscope.errors import ModelError
from anisoscope.models.formats import MODULES, read_config, read_list
from anisoscope.models.identity import hash_weights

LIBRARY = "sentence_transformers"
BERT_CONFIG = "sentence_bert_config.json"
"""What a folder of sentence-transformers says of its Transformer, whatever that is."""
LAST_STATES = "last_hidden_state"
"""What modules behind a Transformer read of its output, if nothing else is said."""
OF_LAST_STATES = {
    "Pooling",
    "Dense",
    "Normalize",
    "LayerNorm",
    "Dropout",
    "CNN",
    "SparseAutoEncoder",
}
"""Modules that need no more than the last hidden states and the mask."""
SPARSE = {
    "SpladePooling",
    "SparseAutoEncoder",
    "MLMTransformer",
    "SparseStaticEmbedding",
}
"""Modules that only sparse encoders have."""


def complete_timm_name(name: str) -> str:
    """Add the tag of timm's default weights to a name `timm/NAME` without a tag: `timm/resnet18.a1_in1k`.

    Other names are returned unchanged.
    """
    config = None if "." in name else load_timm_config(name)
    if config is None:
        return name
    return f"timm/{config.architecture}.{config.pretrained_cfg['tag']}"


def load_timm_config(name: str) -> Any:
    """Return timm's own configuration of the model `timm/NAME`, without asking the hub.

    None if the name is another one, or timm is not installed. ModelError for a model that timm does not know.
    """
    library, _, own = name.partition("/")
    # A folder of the user's may be called `timm/…` too.
    if library != "timm" or Path(name).exists() or find_spec("timm") is None:
        return None
    timm: Any = import_module("timm")
    try:
        values = timm.get_pretrained_cfg(own, allow_unregistered=False).to_dict()
    except RuntimeError as error:
        # If the name has a tag, it is compared with names that have one.
        near = get_close_matches(own, timm.list_models(pretrained="." in own))
        cure = (
            f"did you mean {' or '.join(near)}?"
            if near
            else "timm.list_models() names those that there are"
        )
        raise ModelError("a model that timm knows", f"{name} ({error})", cure) from None
    return import_module("transformers").TimmWrapperConfig.from_dict(
        {
            "architecture": values["architecture"],
            "num_classes": values["num_classes"],
            "pretrained_cfg": values,
        }
    )


def add_text_pooling(
    model: nn.Module, folder: str, processor: Any, *, untrained: bool = False
) -> list[str]:
    """Add to a model the modules of sentence-transformers that turn its hidden states into the vector of a text.

    The attribute `model.sentence` gets the modules after the Transformer (pooling and so on), if these need only its
    last hidden states; otherwise (SPLADE, weighted layers, unknown modules) the library's whole model, which is called
    on the same tokens. Nothing is added to other checkpoints, or if the vector of a text cannot be measured.

    folder      of the checkpoint
    processor   the tokenizer, which gets the length limit of the checkpoint
    untrained   the model's weights are random

    Returns remarks for the user, such as why the vector of a text cannot be measured.
    """
    rows = read_list(Path(folder, MODULES))
    # The first module is the Transformer; without another one, nothing makes a vector
    # of its states.
    if len(rows) < 2:
        return []
    known = read_config(Path(folder, "config_sentence_transformers.json"))
    kinds = [_get_class_name(row) for row in rows]
    archetype = known.get("model_type")
    # Older checkpoints do not say which class of the library made them.
    if not archetype:
        archetype = "SparseEncoder" if set(kinds) & SPARSE else "SentenceTransformer"
    reason = _explain_unmeasured(rows, archetype)
    if reason:
        return [reason]
    _limit_length(processor, folder)
    weight = next(model.parameters())
    if _is_plain(folder, kinds):
        made = _load_modules(rows[1:], folder)
    elif untrained:
        return [
            f"the vector of a text is not measured untrained: its modules ({', '.join(kinds)}) are trained ones"
        ]
    else:
        made = _load_whole(archetype, folder, weight)
    model.sentence = made.to(weight.device, weight.dtype).eval()
    notes = try_text_pooling(model, processor, ", ".join(kinds))
    prompt = known.get("default_prompt_name")
    if prompt and hasattr(model, "sentence"):
        notes.append(
            f"texts are measured without the prompt that encode() would put first, {prompt!r}"
        )
    return notes


def _explain_unmeasured(rows: list[dict[str, Any]], archetype: str) -> str:
    """Say why the vector of a text cannot be measured; empty if it can.

    rows        entries of modules.json
    archetype   the class that the library would load the whole model as, such as `SentenceTransformer`
    """
    foreign = []
    for row in rows:
        kind = str(row["type"])
        if not kind.startswith(f"{LIBRARY}."):
            foreign.append(kind)
    # Code of the checkpoint is not run for this: it would need the user's consent.
    if foreign:
        names = ", ".join(foreign)
        return (
            "the modules behind the Transformer (pooling …) are not measured: "
            f"{names} is code of its own"
        )
    if find_spec(LIBRARY) is None:
        cure = "pip install sentence-transformers for them"
        return (
            f"the modules behind the Transformer (pooling …) are not measured: {cure}"
        )
    if archetype not in ("SentenceTransformer", "SparseEncoder"):
        return f"the modules behind the Transformer are not measured: a {archetype} gives no vector of a text"
    return ""


def _get_class_name(row: dict[str, Any]) -> str:
    """Return the class name of a module, without its package; `row` is its entry in modules.json."""
    return str(row["type"]).rpartition(".")[2]


def _is_plain(folder: str, kinds: list[str]) -> bool:
    """Return whether a checkpoint computes the vector of a text from the last hidden states of its Transformer alone.

    folder   of the checkpoint
    kinds    class names of its modules, the Transformer first
    """
    settings = read_config(Path(folder, BERT_CONFIG))
    text = settings.get("modality_config", {}).get("text", {})
    # Any other setting changes what the modules behind the Transformer would get:
    # another task or output of the model, or lower-cased texts.
    gives_states = (
        kinds[0] == "Transformer"
        and settings.get("transformer_task", "feature-extraction")
        == "feature-extraction"
        and text.get("method", "forward") == "forward"
        and text.get("method_output_name", "last_hidden_state") == "last_hidden_state"
        and not settings.get("do_lower_case")
    )
    return gives_states and set(kinds[1:]) <= OF_LAST_STATES


def _limit_length(processor: Any, folder: str) -> None:
    """Make a tokenizer truncate texts at the length at which sentence-transformers would.

    processor   the tokenizer, which is changed in place
    folder      of the checkpoint
    """
    longest = read_config(Path(folder, BERT_CONFIG)).get("max_seq_length")
    if (
        isinstance(longest, int)
        and longest > 0
        and hasattr(processor, "model_max_length")
    ):
        processor.model_max_length = min(processor.model_max_length, longest)


def _load_modules(rows: list[dict[str, Any]], folder: str) -> nn.Module:
    """Load modules of sentence-transformers from the checkpoint in `folder`. ModelError if one fails.

    rows   their entries in modules.json
    """
    named: Any = import_module(f"{LIBRARY}.util").import_from_string
    try:
        modules = [
            named(row["type"]).load(str(folder), subfolder=row["path"]) for row in rows
        ]
    except Exception as error:
        raise _make_load_error(error, folder) from error
    return nn.ModuleList(modules)


def _load_whole(archetype: str, folder: str, weight: Tensor) -> nn.Module:
    """Load a checkpoint as a whole model of sentence-transformers. ModelError if that fails.

    archetype   the library's class, such as `SentenceTransformer`
    folder      of the checkpoint
    weight      a weight of the measured model, whose device and type the loaded model gets
    """
    library: Any = import_module(LIBRARY)
    try:
        return WholeModel(
            getattr(library, archetype)(folder, device=str(weight.device))
            .to(weight.dtype)
            .eval()
        )
    except Exception as error:
        raise _make_load_error(error, folder) from error


def _make_load_error(error: Exception, folder: str) -> ModelError:
    """Make the error for modules of sentence-transformers in a folder that cannot be loaded. The caller raises it.

    error   what the library raised
    """
    got = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return ModelError(
        f"readable modules of sentence-transformers in {folder}",
        got,
        "download it again",
    )


class WholeModel(nn.Module):
    """A sentence-transformers model that is called for the vector of a text, but not measured itself.

    `digest` represents its weights in the hash of the measured model's weights.
    """

    def __init__(self, model: nn.Module) -> None:
        """Hold the model so that its modules are not counted as the measured model's, and hash its weights."""
        super().__init__()
        # In a tuple, so that its blocks are not taken for those of the measured model.
        self.held = (model,)
        # A buffer, because the state dict is what gets hashed.
        self.register_buffer(
            "digest",
            torch.tensor(list(bytes.fromhex(hash_weights(model))), dtype=torch.uint8),
        )

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        """Return the model's inputs with `sentence_embedding` [sequence, dim], the vectors of the texts, added.

        features   `input_ids` and so on
        """
        return dict(self.held[0](features))


def try_text_pooling(model: Any, processor: Any, kinds: str) -> list[str]:
    """Run the modules that make vectors of texts on two short texts. If they fail, remove them and return a remark.

    model       with the modules in `model.sentence`
    processor   its tokenizer; None: nothing is tried
    kinds       names of the modules, for the remark
    """
    if processor is None:
        return []
    try:
        # Two texts of different length, so that padding is tried too.
        inputs = processor(["a", "a b c"], padding=True, return_tensors="pt")
        inputs = {
            name: x.to(next(model.parameters()).device) for name, x in inputs.items()
        }
        with torch.no_grad():
            pool_texts(model, inputs, model(**inputs))
    except Exception as error:  # whatever a module of another library raises
        del model.sentence
        got = f"{type(error).__name__}: {' '.join(str(error).split())[:80]}"
        return [
            f"the vector of a text is not measured: its modules ({kinds}) fail ({got})"
        ]
    return []


def pool_texts(model: Any, inputs: dict[str, Any], output: Any) -> Tensor:
    """Return the vectors of whole texts [sequence, 1, dim], as the modules in `model.sentence` make them.

    inputs   keyword arguments of the model: `input_ids` and so on
    output   what the model returned for them
    """
    features: dict[str, Any] = {}
    for name in ("input_ids", "attention_mask", "token_type_ids"):
        if name in inputs:
            features[name] = inputs[name]
    # The library's whole model runs a Transformer of its own on the same tokens.
    if isinstance(model.sentence, WholeModel):
        features = model.sentence(features)
    else:
        # An encoder–decoder (T5) is pooled over the states of its encoder.
        states = getattr(output, "encoder_last_hidden_state", None)
        if states is None:
            states = getattr(output, getattr(model.sentence, "reads", LAST_STATES))
        features["token_embeddings"] = states
        for module in model.sentence:
            features = module(features)
    vectors: Tensor = features["sentence_embedding"]
    # Sparse encoders (SPLADE) return sparse tensors.
    if vectors.is_sparse:
        vectors = vectors.to_dense()
    return vectors.unsqueeze(1)
