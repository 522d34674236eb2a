"""Load any model: hub id (with @revision), folder, file of weights, `builtin:…`, `module:factory`, or a preset."""

import hashlib
import json
import sys
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from anisoscope.errors import ModelError, UsageError
from anisoscope.extras import require_extra
from anisoscope.models.adapters import find_base, merge_adapter
from anisoscope.models.beside import add_text_pooling, timm_config, timm_name
from anisoscope.models.blocks import has_two_towers
from anisoscope.models.devices import device_of, dtype_of
from anisoscope.models.families import families
from anisoscope.models.formats import (
    described,
    files_in,
    first_module,
    foreign_first_module,
    is_adapter,
    of_config,
    read_config,
    weight_files,
)
from anisoscope.models.hub import ModelPlace, download, locate, split_name
from anisoscope.models.identity import drop_volatile, hash_loaded_weights, hash_own_sources, hash_weights
from anisoscope.models.named import hub_id, named_models
from anisoscope.models.packaged import BUILTIN, builtin_folder, open_weights, weights_file
from anisoscope.models.processors import processor_of, processor_of_images_and_texts

HEADS = ("pooler.", "lm_head.", "cls.", "score.", "classifier.")
IN_TRAINING = ("masked_spec_embed", "mask_token", "quantizer.", "num_batches_tracked")
"""Weights that may be missing: what only training uses, and heads unless they are asked for."""
DRAWN = "untrained: random weights"
LIBRARIES = {"gptq": "gptqmodel optimum", "awq": "gptqmodel", "hqq": "hqq", "compressed-tensors": "compressed-tensors"}
"""What reads quantised weights, where it is not called as they are (bitsandbytes)."""
AGAIN = "download or save it again"
READS = {"input_values": "speech", "input_features": "speech", "pixel_values": "image"}
"""Main input of a model → what it reads; `text` for all others."""


@dataclass(frozen=True)
class Subject:
    """A model to be measured, with what the manifest says of it.

    processor   its tokenizer, feature extractor or image processor; None if it has none
    of_images_and_texts   the processor of a vision-language model, for texts with images, or a text that says why it
                cannot be loaded; None for other models
    """

    model: nn.Module
    processor: Any
    name: str
    revision: str | None = None
    weights_sha256: str = ""
    notes: list[str] = field(default_factory=list)
    of_images_and_texts: Any = None

    @property
    def config(self) -> Any:
        """The model's configuration; None if it has none."""
        return getattr(self.model, "config", None)

    @property
    def form(self) -> str:
        """A hash of everything but the weights that determines outputs: configuration, and source files of the user's
        own.
        """
        config = self.config
        settings = drop_volatile(config.to_dict()) if hasattr(config, "to_dict") else str(config)
        return hashlib.sha256(json.dumps([settings, hash_own_sources(self.model)], default=str).encode()).hexdigest()

    @property
    def modality(self) -> str:
        """What the model reads: `text`, `speech` or `image`."""
        return modality_of(self.model)


def load(
    name: str,
    *,
    revision: str | None = None,
    dtype: str = "float32",
    device: str = "cpu",
    device_map: str | None = None,
    trust_remote_code: bool = False,
    untrained: bool = False,
    seed: int = 0,
    classifier: bool = False,
    tower: str | None = None,
) -> Subject:
    """Load the model `name` in evaluation mode. ModelError, with a cure, if that fails.

    untrained    replace the weights by random ones, drawn with `seed`
    classifier   with its classification head
    tower        which of two (CLIP): `vision`, `text` or `both`
    """
    target, numbers = device_of(device), None if dtype == "auto" else dtype_of(dtype)
    drawn, notes = (seed, [DRAWN]) if untrained else (None, [])
    if (made := _without_checkpoint(name, drawn)) is not None:
        model, processor = made
        model = (
            _require_finite(model, name)
            .to(**{"device": target} | ({} if numbers is None else {"dtype": numbers}))
            .eval()
        )
        return Subject(model, processor, name, revision, hash_weights(model), notes)
    require_extra("demo" if name == BUILTIN else "models", f"to load {name}")
    place, trust = checkpoint_path(timm_name(name), revision, weights=not untrained), trust_remote_code
    options, missing = {"trust_remote_code": trust, "dtype": numbers or "auto", "device_map": device_map}, list[str]()
    path = _transformer(place)
    folders = [place.path]
    if (base := find_base(path)) is None:
        model, missing = _from_pretrained(path, name, target, drawn, classifier, options)
    elif untrained:
        raise UsageError("a trained base under an adapter", "--untrained", f"measure {base} --untrained")
    else:
        path = _transformer(checkpoint_path(base))
        folders.append(path)
        model = merge_adapter(place.path, path, options, classifier=classifier)
        if Path(place.path, "tokenizer.json").is_file():  # that of the adapter's training may have tokens more
            path = place.path
    model = _require_finite(model, name)
    model = (model if hasattr(model, "hf_device_map") else model.to(target)).eval()
    model, missing = _tower(model, missing, tower, name)
    modality = modality_of(model)
    processor = processor_of(model, modality, path, name, trust)
    if base is None and not name.startswith("builtin:"):
        notes += add_text_pooling(model, place.path, processor, untrained=untrained)
    notes += [place.notice] if place.notice else []
    if processor is None:
        notes.append(f"the checkpoint has no preprocessor: the defaults for {modality} are used")
    base, pinned = split_name(name)
    both = processor_of_images_and_texts(model, path, trust)
    # Weights that are drawn here are not those of the files.
    weights = hash_loaded_weights(model, missing, [] if untrained else folders)
    return Subject(model, processor, base, place.commit or revision or pinned, weights, notes, both)


def _without_checkpoint(name: str, seed: int | None) -> tuple[Any, Any] | None:
    """Return model and processor of a name that is no checkpoint of transformers; None if it is one.

    seed   draw random weights instead of reading them; None: read them
    """
    if ":" in name and not name.startswith("builtin:"):
        if seed is not None:
            raise UsageError("--untrained of a model with a configuration", name, "let the function draw its weights")
        return _load_factory(name)
    if (file := weights_file(name)) is not None:
        return open_weights(file, name, seed)
    if seed is None or (config := timm_config(name)) is None:
        return None
    torch.manual_seed(seed)
    model: Any = import_module("transformers").AutoModel.from_config(config)
    return model, processor_of(model, "image", "", name, False)


def load_on_meta(name: str, *, dtype: str = "float32", trust_remote_code: bool = False) -> nn.Module:
    """Load the model `name` on the meta device, from its configuration alone: shapes without weights.

    ModelError if it fails.
    """
    from transformers import AutoConfig, AutoModel

    from anisoscope.models import ports

    ports.register()
    auto: Any = AutoModel
    path = _transformer(checkpoint_path(name, weights=False))
    try:
        config: Any = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
        with torch.device("meta"):
            model: nn.Module = auto.from_config(config, trust_remote_code=trust_remote_code)
    except Exception as error:
        raise _explain_failure(error, name, path) from error
    return model.to(dtype_of(dtype)).eval()


def checkpoint_path(name: str, revision: str | None = None, *, weights: bool = True) -> ModelPlace:
    """Find a checkpoint by name, download it if needed, and return where it is. ModelError if that fails.

    weights   False: only the files other than weights
    """
    base, pinned = split_name(name)
    revision = revision or pinned
    if revision and (Path(base).is_dir() or base.startswith("builtin:")):
        raise ModelError("a hub id where a revision is named", f"{base} with {revision}", "leave the revision out")
    path = builtin_folder(base) if base.startswith("builtin:") else hub_id(base)
    near = get_close_matches(base, [BUILTIN, *named_models()], n=3, cutoff=0.8)
    like = f"did you mean {' or '.join(near)}?" if near and base not in near else ""
    place = download(locate(path, revision, name, like), name, weights=weights)
    there = files_in(Path(place.path))
    if (kind := foreign_first_module(Path(place.path))) and weights:
        cure = f"measure its vectors: anisoscope.measure(SentenceTransformer({name!r}).encode(texts))"
        got = f"{name}, a folder of sentence-transformers whose first module is {kind}"
        raise ModelError("a model of transformers", got, cure)
    if first_module(there) + "config.json" not in there and not is_adapter(there):
        cure = described(there) or "save it with model.save_pretrained(folder)"
        raise ModelError("a checkpoint folder with config.json", f"{place.path} without one", cure)
    return place


def _transformer(place: ModelPlace) -> str:
    """Return the folder with configuration and weights; for a sentence-transformers checkpoint that of its first
    module.
    """
    return str(Path(place.path, first_module(files_in(Path(place.path)))))


def modality_of(model: nn.Module) -> str:
    """Return what a model reads: `text`, `speech` or `image`."""
    return READS.get(str(getattr(model, "main_input_name", "")), "text")


def _from_pretrained(
    path: str, name: str, target: torch.device, seed: int | None, classifier: bool, given: dict[str, Any]
) -> tuple[Any, list[str]]:
    """Load a checkpoint. Returns (model, names of weights that the checkpoint lacks, which are drawn at random).

    With a `seed`, all weights are drawn at random. Quantised weights are loaded directly onto the device (`target`)
    that computes with them.

    name    the model as the user wrote it, for errors; `path`: folder of the checkpoint
    given   keyword arguments for transformers
    """
    from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, logging

    from anisoscope.models import ports

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    ports.register()
    trust, quantised = given["trust_remote_code"], ""
    try:
        config: Any = AutoConfig.from_pretrained(path, trust_remote_code=trust)
        quantised = _quantised_by(config)
        for part in (config, *(getattr(config, key, None) for key in getattr(config, "sub_configs", {}))):
            if getattr(part, "use_cache", None):
                part.use_cache = False  # past keys and values are never used here
        headed = classifier and is_classifier(config)
        auto: Any = AutoModelForSequenceClassification if headed else _encoder_of(config) or AutoModel
        if seed is not None:
            torch.manual_seed(seed)
            drawn = config.dtype or torch.float32 if given["dtype"] == "auto" else given["dtype"]
            made = auto(config) if auto.__name__.endswith("EncoderModel") else None
            made = made or auto.from_config(config, trust_remote_code=trust)
            return made.to(drawn), []
        options = {"output_loading_info": True, "ignore_mismatched_sizes": True}  # that is: they are in `info`
        if quantised:
            given = given | {"dtype": "auto", "device_map": given["device_map"] or {"": str(target)}}
        if auto.__name__.endswith("EncoderModel"):
            given = {key: value for key, value in given.items() if key != "trust_remote_code"}
        model, info = auto.from_pretrained(path, config=config, **given, **options)
    except ModelError:
        raise
    except ImportError as error:
        if not quantised:
            raise _explain_failure(error, name, path) from error
        cure = f"pip install {LIBRARIES.get(quantised, quantised)}, or measure the weights that are not quantised"
        raise ModelError(f"the library of {quantised} weights", "it is not installed", cure) from error
    except Exception as error:
        raise _explain_failure(error, name, path) from error
    idle = IN_TRAINING if headed else (*HEADS, *IN_TRAINING)
    missing = sorted(info["missing_keys"])
    faults = {
        "missing": [key for key in missing if not any(part in f".{key}" or key.startswith(part) for part in idle)],
        "of another size": [f"{key} {tuple(a)} for {tuple(b)}" for key, a, b in sorted(info["mismatched_keys"])],
    }
    got = " and ".join(f"{len(keys)} {kind}, such as {', '.join(keys[:3])}" for kind, keys in faults.items() if keys)
    if got:
        cure = "the file is incomplete or of another architecture; download or save it again"
        raise ModelError(f"a checkpoint with every weight of {type(model).__name__}", got, cure)
    return model, missing


def _encoder_of(config: Any) -> Any:
    """Return the class for a checkpoint that holds only the encoder of an encoder–decoder (T5EncoderModel);
    else None.
    """
    names = getattr(config, "architectures", None) or [""]
    return getattr(import_module("transformers"), names[0], None) if names[0].endswith("EncoderModel") else None


def _quantised_by(config: Any) -> str:
    """Return the quantisation method of a checkpoint; empty if it is not quantised."""
    found = getattr(config, "quantization_config", None) or {}
    method = found.get("quant_method", "quantised") if isinstance(found, dict) else getattr(found, "quant_method", "")
    return str(getattr(method, "value", method)) if found else ""


def _tower(model: Any, missing: list[str], side: str | None, name: str) -> tuple[Any, list[str]]:
    """Return the chosen tower of a model that has two (CLIP), and which of the `missing` weights are its; other models
    unchanged.

    missing   names of weights that the checkpoint lacks
    side      `vision`, `text` or `both`; None: not chosen

    UsageError if a tower must be chosen and was not, or was chosen for a model without towers.
    """
    if not has_two_towers(model):
        if side is not None:
            raise UsageError("a model of two towers (CLIP, SigLIP) with --tower", type(model).__name__, "leave it out")
        return model, missing
    if side is None:
        cure = "name it: --tower vision or --tower text; --tower both reads images with captions"
        raise UsageError(f"one tower of {name}", "two", cure)
    if side == "both":
        return model, missing
    prefix = f"{side}_model."
    return getattr(model, f"{side}_model"), [key.removeprefix(prefix) for key in missing if key.startswith(prefix)]


def is_classifier(config: Any) -> bool:
    """Return whether a checkpoint was saved with a classification head for whole sequences."""
    ported = [family.port.get("AutoModelForSequenceClassification", "") for family in families().values()]
    heads = ("ForSequenceClassification", *filter(None, ported))
    return any(name.endswith(heads) for name in getattr(config, "architectures", None) or ())


def _explain_failure(error: Exception, name: str, path: str) -> ModelError:
    """Make the error that says in one sentence why loading failed, with a cure. The caller raises it.

    error   what was raised
    name    the model as the user wrote it; `path`: where it is
    """
    text = " ".join(str(error).split())
    cure = of_config(read_config(Path(path, "config.json")))
    there = [file.name for file in Path(path).iterdir()]
    if "trust_remote_code" in text:
        got, cure = f"{name}, which runs its own code", "add --trust-remote-code if you trust it"
        return ModelError("a model of transformers", got, cure)
    if weight_files(there) is None and not cure:
        return ModelError(f"weights of torch in {name}", "none", described(there) or AGAIN)
    if "does not recognize this architecture" in text or "Unrecognized model" in text:
        cure = cure or "a newer transformers may know it; else return it from a function of yours, as module:function"
    cure = cure or ("install what is missing" if isinstance(error, ImportError) else AGAIN)
    return ModelError(f"a readable checkpoint {name}", f"{type(error).__name__}: {text[:300]}", cure)


def _require_finite(model: Any, name: str) -> Any:
    """Return the model unchanged. ModelError if a weight is NaN or infinite.

    name   as the user wrote it, for the error
    """
    for key, value in model.state_dict().items():
        looked_at = value.is_floating_point() and value.itemsize > 1 and not value.is_meta
        if looked_at and value.numel() and not bool(torch.stack(value.aminmax()).isfinite().all()):
            cure = "the checkpoint is damaged or diverged; use another one"
            raise ModelError(f"finite weights in {name}", f"NaN or Inf in {key}", cure)
    return model


def _load_factory(name: str) -> tuple[nn.Module, Any]:
    """Call the factory `package.module:function` and return (model, processor); the processor may be None.

    Modules in the current folder are found too. ModelError if it cannot be imported or called.
    """
    module_name, _, factory = name.partition(":")
    expected, cure = "module:factory that can be imported and called", "check the name, the function and PYTHONPATH"
    here = str(Path.cwd())
    try:
        sys.path.append(here)
        made = getattr(import_module(module_name), factory)()
    except Exception as error:
        raise ModelError(expected, f"{name!r} ({type(error).__name__}: {error})", cure) from error
    finally:
        sys.path.remove(here)
    model, processor = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(model, nn.Module):
        expected = "a factory that returns a torch.nn.Module, or (module, processor)"
        raise ModelError(expected, type(made).__name__, f"mend {name}")
    return model, processor
