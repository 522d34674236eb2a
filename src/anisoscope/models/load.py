"""Load any model: hub id (with @revision), folder, file of weights, `builtin:…`, `module:factory`, or a preset."""

import hashlib
import json
import sys
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import nn

from anisoscope.errors import ModelError, UsageError
from anisoscope.extras import require_extra
from anisoscope.models.adapters import find_base, merge_adapter
from anisoscope.models.blocks import has_two_towers
from anisoscope.models.devices import device_of, dtype_of
from anisoscope.models.families import families
from anisoscope.models.formats import (
    VOCABULARIES,
    choose_weight_file,
    explain_config,
    explain_format,
    find_first_module,
    find_foreign_first_module,
    is_adapter,
    list_checkpoint_files,
    read_config,
)
from anisoscope.models.hub import ModelPlace, download, locate, split_name
from anisoscope.models.identity import (
    drop_volatile,
    hash_loaded_weights,
    hash_own_sources,
    hash_weights,
)
from anisoscope.models.named import hub_id, named_models
from anisoscope.models.other_libraries import (
    add_text_pooling,
    complete_timm_name,
    load_timm_config,
)
from anisoscope.models.packaged import (
    BUILTIN,
    builtin_folder,
    open_weights,
    weights_file,
)
from anisoscope.models.processors import processor_of, processor_of_images_and_texts

HEADS = ("pooler.", "lm_head.", "cls.", "score.", "classifier.")
IN_TRAINING = ("masked_spec_embed", "mask_token", "quantizer.", "num_batches_tracked")
"""Weights that may be missing: what only training uses, and heads unless they are asked for."""
DRAWN = "untrained: random weights"
LIBRARIES = {
    "gptq": "gptqmodel optimum",
    "awq": "gptqmodel",
    "hqq": "hqq",
    "compressed-tensors": "compressed-tensors",
}
"""Packages that read quantised weights, by method; a method without an entry (bitsandbytes) is itself the package."""
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
        """A hash of what determines the outputs besides the weights: configuration, and the user's own source files."""
        config = self.config
        settings = (
            drop_volatile(config.to_dict())
            if hasattr(config, "to_dict")
            else str(config)
        )
        text = json.dumps([settings, hash_own_sources(self.model)], default=str)
        return hashlib.sha256(text.encode()).hexdigest()

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
    """Load the model `name` in evaluation mode, with its tokenizer or other processor.

    name                a hub id (with @revision), a folder, a file of weights, `builtin:…`, `module:factory`, or a
                        short name
    revision            branch, tag or commit on the hub
    dtype               type of the weights: `float32`, `bfloat16`, `float16`; `auto`: that of the checkpoint
    device, device_map  where the model computes; how accelerate spreads it over devices
    trust_remote_code   code in the checkpoint may be run
    untrained           replace the weights by random ones, drawn with `seed`
    classifier          with its classification head
    tower               which part of a model of two (CLIP): `vision`, `text` or `both`

    ModelError, with a cure, if that fails.
    """
    # The device is looked up first: a wrong one should fail before gigabytes are downloaded.
    target = device_of(device)
    numbers = _read_dtype(dtype)
    seed_of_weights = seed if untrained else None
    notes = [DRAWN] if untrained else []

    made = _load_without_checkpoint(name, seed_of_weights)
    if made is not None:
        model, processor = made
        # Checked before it is moved: a narrower type may overflow, which is no fault of the weights.
        model = _move(_require_finite(model, name), target, numbers).eval()
        return Subject(model, processor, name, revision, hash_weights(model), notes)

    # Only what is needed must be installed: the built-in model comes with another
    # extra.
    extra = "demo" if name == BUILTIN else "models"
    require_extra(extra, f"to load {name}")
    # A name of timm without a tag is no id of the hub.
    place = checkpoint_path(complete_timm_name(name), revision, weights=not untrained)
    options = {
        "trust_remote_code": trust_remote_code,
        "dtype": numbers or "auto",
        "device_map": device_map,
    }
    loaded = _load_files(place, name, target, seed_of_weights, classifier, options)

    model = _move_unless_spread(_require_finite(loaded.model, name), target)
    model, missing = _choose_tower(model.eval(), loaded.missing, tower, name)
    modality = modality_of(model)
    processor = processor_of(
        model, modality, loaded.processor_folder, name, trust_remote_code
    )
    # For an adapter, the place is not the folder of its base model.
    if not loaded.is_adapted and not name.startswith("builtin:"):
        notes += add_text_pooling(model, place.path, processor, untrained=untrained)
    notes += _list_notices(place.notice, modality, has_processor=processor is not None)

    own_name, pinned = split_name(name)
    both = processor_of_images_and_texts(
        model, loaded.processor_folder, trust_remote_code
    )
    # Weights that are drawn here are not those of the files.
    weights = hash_loaded_weights(model, missing, [] if untrained else loaded.folders)
    return Subject(
        model,
        processor,
        own_name,
        place.commit or revision or pinned,
        weights,
        notes,
        both,
    )


def _read_dtype(name: str) -> torch.dtype | None:
    """Return the type of weights that a name stands for; None for `auto`, which keeps that of the checkpoint."""
    if name == "auto":
        return None
    return dtype_of(name)


def _list_notices(notice: str, modality: str, *, has_processor: bool) -> list[str]:
    """Return what users should know of how a model was loaded, one sentence each.

    notice          what there is to say of its place, such as that a copy in the cache was used
    has_processor   whether the checkpoint has a tokenizer or other preprocessor
    """
    notices = []
    if notice:
        notices.append(notice)
    if not has_processor:
        notices.append(
            f"the checkpoint has no preprocessor: the defaults for {modality} are used"
        )
    return notices


def _move(model: Any, device: torch.device, dtype: torch.dtype | None) -> Any:
    """Move a model to a device, and convert its weights to a type; None keeps theirs."""
    if dtype is None:
        return model.to(device=device)
    return model.to(device=device, dtype=dtype)


def _move_unless_spread(model: Any, device: torch.device) -> Any:
    """Move a model to a device, unless accelerate has spread it over devices already."""
    if hasattr(model, "hf_device_map"):
        return model
    return model.to(device)


class Loaded(NamedTuple):
    """A model as its files give it, before it is checked and moved.

    missing            names of weights that the checkpoint lacks
    processor_folder   where its processor is
    folders            where its weights are
    is_adapted         an adapter was merged into it
    """

    model: Any
    missing: list[str]
    processor_folder: str
    folders: list[str]
    is_adapted: bool


def _load_files(
    place: ModelPlace,
    name: str,
    target: torch.device,
    seed: int | None,
    classifier: bool,
    options: dict[str, Any],
) -> Loaded:
    """Load the model in a folder; if the folder is an adapter's, load its base model and merge the adapter into it.

    place        the folder of the checkpoint
    name         the model as the user wrote it, for errors
    target       the device that computes
    seed         draw random weights instead of reading them; None: read them
    classifier   with its classification head
    options      keyword arguments for transformers
    """
    base = find_base(_find_transformer_folder(place))
    if base is None:
        return _load_own_weights(place, name, target, seed, classifier, options)
    if seed is not None:
        raise UsageError(
            "no --untrained with an adapter, whose base model has to be trained",
            "--untrained",
            f"for the untrained base model: measure {base} --untrained",
        )
    return _load_adapted(place, base, classifier, options)


def _load_own_weights(
    place: ModelPlace,
    name: str,
    target: torch.device,
    seed: int | None,
    classifier: bool,
    options: dict[str, Any],
) -> Loaded:
    """Load a checkpoint that is a whole model, not an adapter.

    place        the folder of the checkpoint
    name         the model as the user wrote it, for errors
    target       the device that computes
    seed         draw random weights instead of reading them; None: read them
    classifier   with its classification head
    options      keyword arguments for transformers
    """
    path = _find_transformer_folder(place)
    model, missing = _load_checkpoint(path, name, target, seed, classifier, options)
    return Loaded(model, missing, path, [place.path], is_adapted=False)


def _load_adapted(
    place: ModelPlace, base: str, classifier: bool, options: dict[str, Any]
) -> Loaded:
    """Load the base model of an adapter and merge the adapter into it.

    place        the folder of the adapter
    base         name of the base model
    classifier   keep the classification head, if the adapter was trained with one
    options      keyword arguments for transformers
    """
    path = _find_transformer_folder(checkpoint_path(base))
    model = merge_adapter(place.path, path, options, classifier=classifier)
    # The training of an adapter may have added tokens: its own tokenizer, if there is one, knows them.
    has_tokenizer = any(Path(place.path, file).is_file() for file in VOCABULARIES)
    return Loaded(
        model,
        [],
        place.path if has_tokenizer else path,
        [place.path, path],
        is_adapted=True,
    )


def _load_without_checkpoint(name: str, seed: int | None) -> tuple[Any, Any] | None:
    """Load a model that is not a checkpoint of transformers, and return (model, processor).

    Its name is a function `module:function` that returns a model; a file of weights that torch saved (`.th`), or one
    in an installed package; or an untrained model of timm. None for any other name, which means a checkpoint.

    seed   draw random weights instead of reading them; None: read them
    """
    if ":" in name and not name.startswith("builtin:"):
        if seed is not None:
            raise UsageError(
                "--untrained only for a model with a configuration",
                name,
                "let that function make a model with random weights",
            )
        return _load_factory(name)
    file = weights_file(name)
    if file is not None:
        return open_weights(file, name, seed)
    # An untrained model of timm needs nothing from the hub; a trained one is a checkpoint like others.
    config = None if seed is None else load_timm_config(name)
    if seed is None or config is None:
        return None
    # The seed is set right before the weights are drawn, so that nothing in between
    # uses up random numbers.
    torch.manual_seed(seed)
    model: Any = import_module("transformers").AutoModel.from_config(config)
    return model, processor_of(model, "image", "", name, False)


def load_on_meta(
    name: str, *, dtype: str = "float32", trust_remote_code: bool = False
) -> nn.Module:
    """Load the model `name` on the meta device, from its configuration alone: shapes without weights.

    ModelError if it fails.
    """
    from transformers import AutoConfig, AutoModel

    from anisoscope.models import ports

    # Before the configuration is read, because its `model_type` may be that of a port.
    ports.register()
    auto: Any = AutoModel
    path = _find_transformer_folder(checkpoint_path(name, weights=False))
    try:
        config: Any = AutoConfig.from_pretrained(
            path, trust_remote_code=trust_remote_code
        )
        with torch.device("meta"):
            model: nn.Module = auto.from_config(
                config, trust_remote_code=trust_remote_code
            )
    except Exception as error:
        raise _explain_failure(error, name, path) from error
    return model.to(dtype_of(dtype)).eval()


def checkpoint_path(
    name: str, revision: str | None = None, *, weights: bool = True
) -> ModelPlace:
    """Find a checkpoint by name, download it if needed, and return where it is. ModelError if that fails.

    weights   False: only the files other than weights
    """
    base, pinned = split_name(name)
    revision = revision or pinned
    is_builtin = base.startswith("builtin:")
    # Only repositories of the hub have revisions.
    if revision and (is_builtin or Path(base).is_dir()):
        raise ModelError(
            "a hub id, because a revision is named",
            f"{base} with {revision}",
            "leave the revision out",
        )
    path = builtin_folder(base) if is_builtin else hub_id(base)
    place = download(
        locate(path, revision, name, _suggest_model(base)), name, weights=weights
    )
    _check_files(place, name, weights=weights)
    return place


def _suggest_model(name: str) -> str:
    """Return a question that names similar short names of models; empty if there are none, or if the name is known."""
    # Only near misses: most names are ids of the hub, and no misspelt short names.
    near = get_close_matches(name, [BUILTIN, *named_models()], n=3, cutoff=0.8)
    if not near or name in near:
        return ""
    return f"did you mean {' or '.join(near)}?"


def _check_files(place: ModelPlace, name: str, *, weights: bool) -> None:
    """Raise ModelError if the files of a checkpoint are not those of a model or an adapter.

    place     its folder
    name      the model as the user wrote it
    weights   whether its weights are to be read
    """
    folder = Path(place.path)
    foreign = find_foreign_first_module(folder)
    if foreign and weights:
        cure = f"measure its vectors: anisoscope.measure(SentenceTransformer({name!r}).encode(texts))"
        got = (
            f"{name}, a folder of sentence-transformers whose first module is {foreign}"
        )
        raise ModelError("a model of transformers", got, cure)
    files = list_checkpoint_files(folder)
    if find_first_module(files) + "config.json" not in files and not is_adapter(files):
        cure = explain_format(files) or "save it with model.save_pretrained(folder)"
        raise ModelError(
            "a checkpoint folder with config.json", f"{place.path} without one", cure
        )


def _find_transformer_folder(place: ModelPlace) -> str:
    """Return the folder of a checkpoint that holds its configuration and weights.

    In older sentence-transformers checkpoints it is that of the first module, in others the main folder.
    """
    folder = Path(place.path)
    return str(folder / find_first_module(list_checkpoint_files(folder)))


def modality_of(model: nn.Module) -> str:
    """Return what a model reads: `text`, `speech` or `image`."""
    return READS.get(str(getattr(model, "main_input_name", "")), "text")


def _load_checkpoint(
    path: str,
    name: str,
    target: torch.device,
    seed: int | None,
    classifier: bool,
    given: dict[str, Any],
) -> tuple[Any, list[str]]:
    """Load a checkpoint. Returns (model, names of weights that the checkpoint lacks, which are drawn at random).

    path         folder of the checkpoint
    name         the model as the user wrote it, for errors
    target       the device that computes; quantised weights are loaded directly onto it
    seed         draw all weights at random; None: read them
    classifier   with its classification head
    given        keyword arguments for transformers
    """
    from transformers import (
        AutoConfig,
        AutoModel,
        AutoModelForSequenceClassification,
        logging,
    )

    from anisoscope.models import ports

    # What transformers would log about faulty weights is raised as an error below.
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    ports.register()
    quantised = ""
    try:
        config: Any = AutoConfig.from_pretrained(
            path, trust_remote_code=given["trust_remote_code"]
        )
        quantised = _read_quantisation(config)
        _disable_cache(config)
        headed = classifier and is_classifier(config)
        whole: Any = _find_encoder_class(config) or AutoModel
        auto: Any = AutoModelForSequenceClassification if headed else whole
        # Random weights need nothing but the configuration.
        if seed is not None:
            return _draw_weights(auto, config, seed, given), []
        options = _adapt_options(given, auto, quantised, target)
        # With these two options, faulty weights are listed in `info` and reported below, instead of a mere warning.
        listing = {"output_loading_info": True, "ignore_mismatched_sizes": True}
        model, info = auto.from_pretrained(path, config=config, **options, **listing)
    # From a port, with a cure of its own.
    except ModelError:
        raise
    # transformers raises it if the package that reads the quantised weights is missing.
    except ImportError as error:
        if not quantised:
            raise _explain_failure(error, name, path) from error
        cure = f"pip install {LIBRARIES.get(quantised, quantised)}, or measure the weights that are not quantised"
        raise ModelError(
            f"the library of {quantised} weights", "an installation without it", cure
        ) from error
    except Exception as error:
        raise _explain_failure(error, name, path) from error
    _check_loaded(model, info, IN_TRAINING if headed else (*HEADS, *IN_TRAINING))
    return model, sorted(info["missing_keys"])


def _disable_cache(config: Any) -> None:
    """Switch off the cache of past keys and values in a configuration and its parts: it is never used here."""
    # Multimodal configurations hold one for each part of the model.
    for part in (
        config,
        *(getattr(config, key, None) for key in getattr(config, "sub_configs", {})),
    ):
        if getattr(part, "use_cache", None):
            part.use_cache = False


def _draw_weights(auto: Any, config: Any, seed: int, given: dict[str, Any]) -> Any:
    """Return a model of this configuration with random weights, in the type that the user asked for.

    auto    class of transformers that makes it
    seed    of the random weights
    given   keyword arguments for transformers
    """
    torch.manual_seed(seed)
    # Only the Auto classes have `from_config`.
    if auto.__name__.endswith("EncoderModel"):
        model = auto(config)
    else:
        model = auto.from_config(config, trust_remote_code=given["trust_remote_code"])
    dtype = given["dtype"]
    # There are no saved weights whose type could be taken, only what the configuration
    # says.
    if dtype == "auto":
        dtype = config.dtype or torch.float32
    return model.to(dtype)


def _adapt_options(
    given: dict[str, Any], auto: Any, quantised: str, target: torch.device
) -> dict[str, Any]:
    """Return the keyword arguments with which this class of transformers loads a checkpoint.

    given       keyword arguments as the caller wants them
    auto        class of transformers that loads the checkpoint
    quantised   method of quantisation; empty if the weights are plain
    target      device that computes
    """
    options = dict(given)
    if quantised:
        # Quantised weights cannot be converted or moved afterwards.
        options["dtype"] = "auto"
        options["device_map"] = given["device_map"] or {"": str(target)}
    if auto.__name__.endswith("EncoderModel"):
        # Only the Auto classes take this argument.
        del options["trust_remote_code"]
    return options


def _check_loaded(
    model: nn.Module, info: dict[str, Any], idle: tuple[str, ...]
) -> None:
    """Raise ModelError if the checkpoint lacked weights that are used, or had some of another size.

    info   the loading info of transformers, with the names of missing and mismatched weights
    idle   beginnings or parts of the names of weights that may be missing, since measuring does not use them
    """
    missing = []
    for key in sorted(info["missing_keys"]):
        if not any(key.startswith(part) or part in f".{key}" for part in idle):
            missing.append(key)
    resized = [
        f"{key} {tuple(saved)} for {tuple(here)}"
        for key, saved, here in sorted(info["mismatched_keys"])
    ]
    faults = []
    for kind, keys in (("missing", missing), ("of another size", resized)):
        if keys:
            faults.append(f"{len(keys)} {kind}, such as {', '.join(keys[:3])}")
    if faults:
        cure = "the file is incomplete or of another architecture; download or save it again"
        raise ModelError(
            f"a checkpoint with every weight of {type(model).__name__}",
            " and ".join(faults),
            cure,
        )


def _find_encoder_class(config: Any) -> Any:
    """Return the class for a checkpoint that holds only the encoder of an encoder–decoder (T5EncoderModel);
    else None.
    """
    # `AutoModel` would build the decoder too, with random weights.
    architectures = getattr(config, "architectures", None) or [""]
    if not architectures[0].endswith("EncoderModel"):
        return None
    return getattr(import_module("transformers"), architectures[0], None)


def _read_quantisation(config: Any) -> str:
    """Return the quantisation method of a checkpoint; empty if it is not quantised."""
    settings = getattr(config, "quantization_config", None) or {}
    if not settings:
        return ""
    # Read from a file it is a dict; once a model was loaded, an object of transformers with an enumeration.
    if isinstance(settings, dict):
        settings = SimpleNamespace(**settings)
    method = getattr(settings, "quant_method", None)
    return str(getattr(method, "value", method or "quantised"))


def _choose_tower(
    model: Any, missing: list[str], side: str | None, name: str
) -> tuple[Any, list[str]]:
    """Reduce a model of two towers (CLIP) to the chosen one: returns (tower, those of `missing` that belong to it).

    A model without towers is returned unchanged, with `missing`.

    missing   names of weights that the checkpoint lacks
    side      `vision`, `text` or `both`; None: not chosen

    UsageError if a tower must be chosen and was not, or was chosen for a model without towers.
    """
    if not has_two_towers(model):
        if side is not None:
            raise UsageError(
                "--tower only with a model of two towers (CLIP, SigLIP)",
                type(model).__name__,
                "leave --tower out",
            )
        return model, missing
    if side is None:
        cure = "choose one: --tower vision or --tower text; --tower both reads images with captions"
        raise UsageError(f"one tower of {name}", "two", cure)
    if side == "both":
        return model, missing
    # Hashes are of the tower alone, in whose state dict names have no such prefix.
    prefix = f"{side}_model."
    return getattr(model, f"{side}_model"), [
        key.removeprefix(prefix) for key in missing if key.startswith(prefix)
    ]


def is_classifier(config: Any) -> bool:
    """Return whether a checkpoint was saved with a classification head for whole sequences."""
    heads = ["ForSequenceClassification"]
    for family in families().values():
        # Ports name their classes as they like.
        ported = family.port.get("AutoModelForSequenceClassification", "")
        if ported:
            heads.append(ported)
    return any(
        name.endswith(tuple(heads))
        for name in getattr(config, "architectures", None) or ()
    )


def _explain_failure(error: Exception, name: str, path: str) -> ModelError:
    """Make the error that says in one sentence why loading failed, with a cure. The caller raises it.

    error   what was raised
    name    the model as the user wrote it; `path`: where it is
    """
    text = " ".join(str(error).split())
    if "trust_remote_code" in text:
        got, cure = (
            f"{name}, which runs its own code",
            "add --trust-remote-code if you trust it",
        )
        return ModelError("a model of transformers", got, cure)
    # What the configuration shows a checkpoint to be is a better cure than that weights
    # are missing.
    known_cure = explain_config(read_config(Path(path, "config.json")))
    files = [file.name for file in Path(path).iterdir()]
    if choose_weight_file(files) is None and not known_cure:
        return ModelError(
            f"weights of torch in {name}", "none", explain_format(files) or AGAIN
        )
    got = f"{type(error).__name__}: {text[:300]}"
    return ModelError(
        f"a readable checkpoint {name}", got, known_cure or _suggest_cure(error, text)
    )


def _suggest_cure(error: Exception, text: str) -> str:
    """Return what to do about an error of transformers; `text` is its message on one line."""
    if "does not recognize this architecture" in text or "Unrecognized model" in text:
        return "a newer transformers may know it; else return it from a function of yours, as module:function"
    if isinstance(error, ImportError):
        return "install what is missing"
    return AGAIN


def _require_finite(model: Any, name: str) -> Any:
    """Return the model unchanged. ModelError if a weight is NaN or infinite.

    name   as the user wrote it, for the error
    """
    for key, value in model.state_dict().items():
        # Types of one byte (float8) lack the operation, and weights on `meta` have no values.
        can_be_checked = (
            value.is_floating_point() and value.itemsize > 1 and not value.is_meta
        )
        # A tensor without numbers has no least and greatest one.
        if not can_be_checked or not value.numel():
            continue
        # Least and greatest are NaN if any number is: two numbers instead of a mask of the weight's size.
        if not bool(torch.stack(value.aminmax()).isfinite().all()):
            cure = "the checkpoint is damaged or diverged; use another one"
            raise ModelError(f"finite weights in {name}", f"NaN or Inf in {key}", cure)
    return model


def _load_factory(name: str) -> tuple[nn.Module, Any]:
    """Call the factory `package.module:function` and return (model, processor); the processor may be None.

    Modules in the current folder are found too. ModelError if it cannot be imported or called.
    """
    module_name, _, factory = name.partition(":")
    here = str(Path.cwd())
    try:
        # A program that was installed does not search the current folder, where the user's file is.
        sys.path.append(here)
        made = getattr(import_module(module_name), factory)()
    except Exception as error:
        expected, cure = (
            "module:factory that can be imported and called",
            "check the name, the function and PYTHONPATH",
        )
        raise ModelError(
            expected, f"{name!r} ({type(error).__name__}: {error})", cure
        ) from error
    finally:
        # Later imports must not find files of the current folder.
        sys.path.remove(here)
    is_pair = isinstance(made, tuple) and len(made) == 2
    model, processor = made if is_pair else (made, None)
    if not isinstance(model, nn.Module):
        expected = "a factory that returns a torch.nn.Module, or (module, processor)"
        raise ModelError(expected, type(made).__name__, f"correct {name}")
    return model, processor
