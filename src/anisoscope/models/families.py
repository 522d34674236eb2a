"""Families of models (`config.model_type`), a row each, and published models by name; without torch or transformers."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from anisoscope.batch import Stream

Streams = dict[str, "Stream"]


def _canine(model: Any, given: Streams) -> Streams:
    """Characters at both ends; a molecule is real where the model's own pooled mask says so, the first one is [CLS]."""
    if "encoder" not in given:
        return given
    characters = given.pop("encoder")
    mask = model._downsample_attention_mask(characters.mask, model.config.downsampling_rate).bool()
    special = mask.new_zeros(mask.shape)
    special[:, :1] = characters.special[:, :1]
    molecules = replace(characters, mask=mask, special=special, frequency=None)
    return {"characters": characters, "molecules": molecules, "characters-out": characters} | given


class Family(NamedTuple):
    """What cannot be read from a model of this family itself.

    blocks         classes of its blocks: where its own code declares stages, other modules too, or nothing at all
    stages         class whose outputs are those of a stage of one resolution
    stacks         part of a module's path → stack, where the stacks are more than encoder and decoder
    streams        the positions of a batch's inputs → those of the stacks
    off_interface  attention that is not on transformers' interface: class that calls it once per layer, its name in
                   there, and the names of its projections of queries, keys and values
    attention      False: what is called attention there has no queries and keys
    causal         a decoder whose attention modules do not say so
    tokens_first   blocks pass vectors on as [token, sequence, dim]
    tokenizer      module:class of a tokenizer that needs no files
    port           Auto class of transformers → class in `ports/<family>.py`
    """

    blocks: tuple[str, ...] = ()
    stages: str = ""
    stacks: Mapping[str, str] = {}
    streams: Callable[[Any, Streams], Streams] = lambda _model, given: given
    off_interface: tuple[str, str, tuple[str, str, str]] | None = None
    attention: bool = True
    causal: bool = False
    tokens_first: bool = False
    tokenizer: str = ""
    port: Mapping[str, str] = {}


FAMILIES: dict[str, Family] = {
    "attention_classifier": Family(
        port={
            "AutoConfig": "AttentionClassifierConfig",
            "AutoModel": "AttentionClassifierModel",
            "AutoModelForSequenceClassification": "AttentionClassifier",
        }
    ),
    "bloom": Family(causal=True),
    "canine": Family(
        ("CanineLayer",),
        stacks={"initial_char_encoder": "characters", "encoder": "molecules", "final_char_encoder": "characters-out"},
        streams=_canine,
        off_interface=("CanineAttention", "self", ("query", "key", "value")),
        tokenizer="transformers:CanineTokenizer",
    ),
    "character_bert": Family(
        tokenizer="anisoscope.models.ports.character_bert:CharacterBertTokenizer",
        port={"AutoConfig": "CharacterBertConfig", "AutoModel": "CharacterBertModel"},
    ),
    "cifar_resnet": Family(port={"AutoConfig": "CifarResNetConfig", "AutoModel": "CifarResNetModel"}),
    "convnext": Family(("ConvNextLayer",), "ConvNextStage"),
    "crepe": Family(  # whole frames only: every position is real
        streams=lambda _model, _given: {}, port={"AutoConfig": "CrepeConfig", "AutoModel": "CrepeModel"}
    ),
    "cvt": Family(
        ("CvtLayer",),
        "CvtStage",
        off_interface=("CvtAttention", "attention", ("projection_query", "projection_key", "projection_value")),
    ),
    "distillmos": Family(port={"AutoConfig": "DistillMosConfig", "AutoModel": "DistillMosModel"}),
    "efficientnet": Family(("EfficientNetBlock",)),
    "fsmt": Family(("EncoderLayer", "DecoderLayer"), tokens_first=True),
    "manta": Family(  # every block of bytes is real
        ("T5Block",),
        streams=lambda _model, given: {stack: stream for stack, stream in given.items() if stack != "encoder"},
        tokenizer="transformers:ByT5Tokenizer",
        port={"AutoConfig": "MantaConfig", "AutoModel": "MantaModel", "AutoModelForSeq2SeqLM": "MantaModel"},
    ),
    "mamba": Family(causal=True),
    "mpnet": Family(("MPNetLayer",)),
    "mpt": Family(causal=True),
    "openai-gpt": Family(("Block",), causal=True),
    "resnet": Family(("ResNetBottleNeckLayer", "ResNetBasicLayer"), "ResNetStage"),
    "segformer": Family(("SegformerLayer",), "SegformerStage"),
    "speech_cnn": Family(port={"AutoConfig": "SpeechCnnConfig", "AutoModel": "SpeechCnnModel"}),
    "swin": Family(("SwinLayer",), "SwinStage"),
    "swinv2": Family(("Swinv2Layer",), "Swinv2Stage"),
    "van": Family(
        ("VanLayer", "Block"),
        "VanStageNorm",
        attention=False,
        port={"AutoConfig": "VanConfig", "AutoModel": "VanModel", "AutoModelForImageClassification": "VanModel"},
    ),
    "xglm": Family(causal=True),
    "xlnet": Family(("XLNetLayer",), tokens_first=True),
}
"""Families without a row need none: most that are on transformers' attention interface."""


LIBRARIES: dict[str, Family] = {
    "diffusers": Family(("BasicTransformerBlock",)),
    "open_clip": Family(("ResidualAttentionBlock",), stacks={"visual": "vision"}),
    "torchvision": Family(
        ("EncoderBlock", "SwinTransformerBlock", "SwinTransformerBlockV2", "CNBlock", "BasicBlock", "Bottleneck")
    ),
}
"""The same of libraries whose models have no configuration of transformers: classes of blocks, by their package."""


SEPARATE = (("q_proj", "k_proj"), ("query", "key"), ("q", "k"), ("q_lin", "k_lin"), ("query_proj", "key_proj"))
"""Names that attention modules of any family give their projections of queries and keys."""
NORMS = (("q_norm", "k_norm"), ("query_norm", "key_norm"), ("q_layernorm", "k_layernorm"), ("q_ln", "k_ln"))
"""The same of their norms."""
LATENT = ("kv_a_proj_with_mqa", "kv_b_proj")
"""Projections of latent attention (MLA): to a latent of keys and values beside the rotated part of the keys, which all
heads share; and from it to the other part of the keys and the values of each head.
"""
FUSED = {"Wqkv": "q, k, v", "c_attn": "q, k, v", "query_key_value": "by head", "qkv_proj": "grouped"}
"""Names of fused projections, and how their output lies: q, k, v one after the other (ModernBERT, GPT-2), all three
inside each head (GPT-NeoX), grouped keys and values last (Phi-3).
"""


def family_of(model: Any) -> Family:
    """The row of a model's family, or of the library that it is of; an empty one where it has none."""
    library = LIBRARIES.get(type(model).__module__.partition(".")[0], Family())
    return FAMILIES.get(getattr(getattr(model, "config", None), "model_type", ""), library)


class NamedModel(NamedTuple):
    """A published checkpoint of a `figure` of paper G; `licence` and `size` (in parameters) as authors state them."""

    hub_id: str
    modality: str
    figure: str
    licence: str = "unknown"
    size: str = "unknown"


PRESETS: dict[str, NamedModel] = {
    "bert-base": NamedModel("google-bert/bert-base-uncased", "text", "1", "apache-2.0", "110M"),
    "roberta-base": NamedModel("FacebookAI/roberta-base", "text", "1", "mit", "125M"),
    "gpt2": NamedModel("openai-community/gpt2", "text", "1", "mit", "124M"),
    "t5-base": NamedModel("google-t5/t5-base", "text", "1", "apache-2.0", "220M"),
    "character-bert": NamedModel("helboukkouri/character-bert", "text", "2"),
    "canine-s": NamedModel("google/canine-s", "text", "2", "apache-2.0", "132M"),
    "canine-c": NamedModel("google/canine-c", "text", "2", "apache-2.0", "132M"),
    "manta-base": NamedModel("almanach/manta-lm-base", "text", "2", "mit"),
    "byt5-base": NamedModel("google/byt5-base", "text", "2", "apache-2.0", "582M"),
    "wav2vec2-base": NamedModel("facebook/wav2vec2-base", "speech", "3a", "apache-2.0", "95M"),
    "hubert-base": NamedModel("facebook/hubert-base-ls960", "speech", "3a", "apache-2.0", "95M"),
    "whisper-base": NamedModel("openai/whisper-base", "speech", "3a", "apache-2.0", "74M"),
    "vit-base": NamedModel("google/vit-base-patch16-224", "image", "3b", "apache-2.0", "86M"),
    "beit-base": NamedModel("microsoft/beit-base-patch16-224", "image", "3b", "apache-2.0", "87M"),
    "deit-base": NamedModel("facebook/deit-base-distilled-patch16-224", "image", "3b", "apache-2.0", "87M"),
    "mit-b0": NamedModel("nvidia/mit-b0", "image", "3b", "other", "3.7M"),
    "resnet-50": NamedModel("microsoft/resnet-50", "image", "4", "apache-2.0", "25.6M"),
    "efficientnet-b0": NamedModel("google/efficientnet-b0", "image", "4", "apache-2.0", "5.3M"),
    "cvt-13": NamedModel("microsoft/cvt-13", "image", "4", "apache-2.0", "20M"),
    "convnext-tiny": NamedModel("facebook/convnext-tiny-224", "image", "4", "apache-2.0", "28.6M"),
    "van-base": NamedModel("Visual-Attention-Network/van-base", "image", "4", "apache-2.0", "26.6M"),
}
"""The paper names families, not checkpoints, for most systems: these are the base (or standard) sizes of each."""
