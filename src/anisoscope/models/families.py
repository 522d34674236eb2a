"""What is known of families of models (`config.model_type`), one row each. Imports neither torch nor transformers."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from anisoscope.registry import list_entries_of

if TYPE_CHECKING:
    from anisoscope.batch import Stream

Streams = dict[str, "Stream"]


def _adapt_canine(model: Any, streams: Streams) -> Streams:
    """Return {stack: which positions are real} for the three stacks of CANINE.

    Its first and its last blocks read characters; those between read molecules, groups of characters. A molecule is
    real if the mask that the model itself pools says so; the first one is [CLS].

    streams   {"encoder": which characters are real}
    """
    if "encoder" not in streams:
        return streams
    characters = streams.pop("encoder")
    # A classifier has the model under its head.
    model = getattr(model, "base_model", model)
    mask = model._downsample_attention_mask(
        characters.mask, model.config.downsampling_rate
    ).bool()
    special = mask.new_zeros(mask.shape)
    special[:, :1] = characters.special[:, :1]
    # What is known of single characters does not hold for groups of them.
    molecules = replace(
        characters,
        mask=mask,
        special=special,
        frequency=None,
        punctuation=None,
        image=None,
    )
    return {
        "characters": characters,
        "molecules": molecules,
        "characters-out": characters,
    } | streams


def _lengthen(stream: "Stream", *, before: int = 0, behind: int = 0) -> "Stream":
    """Return a stream with positions added before or behind its tokens; they count as padding.

    stream   which positions are real, and which are special
    before   how many positions the model adds before the tokens
    behind   how many it adds after them
    """
    tokens = stream.mask.shape[1]
    length = before + tokens + behind
    mask = stream.mask.new_zeros(len(stream.mask), length)
    special = stream.special.new_zeros(len(stream.special), length)
    mask[:, before : before + tokens] = stream.mask
    special[:, before : before + tokens] = stream.special
    return replace(
        stream,
        mask=mask,
        special=special,
        start=stream.start - before,
        frequency=None,
        punctuation=None,
        image=None,
    )


def _make_padder(entry: str) -> Callable[[Any, Streams], Streams]:
    """Return a function that says which positions are real, for models that pad their input to whole blocks of tokens.

    It takes the model and {stack: which tokens are real}, and adds the model's padding to the encoder's.

    entry   the name of the configuration's value that gives the block length
    """

    def pad_encoder(model: Any, streams: Streams) -> Streams:
        """Return {stack: which positions are real}, with the encoder's lengthened to a multiple of the block length."""
        if "encoder" not in streams:
            return streams
        tokens = streams["encoder"]
        length = getattr(model.config, entry)
        # Longformer may have a block length for each layer; it pads to the largest.
        if isinstance(length, list | tuple):
            length = max(length)
        # Python's remainder of a negative number: what is missing to the next whole
        # block.
        return streams | {
            "encoder": _lengthen(tokens, behind=-tokens.mask.shape[1] % length)
        }

    return pad_encoder


def _adapt_cpmant(model: Any, streams: Streams) -> Streams:
    """Return {stack: which positions are real} for CPM-Ant, which puts a learnt prompt before the tokens.

    The prompt's positions do not count as real.

    streams   {stack: which tokens are real}
    """
    return {
        stack: _lengthen(stream, before=model.config.prompt_length)
        for stack, stream in streams.items()
    }


def _add_class_token(_model: Any, streams: Streams) -> Streams:
    """Return {stack: which positions are real} for a text encoder that puts a class token behind the text.

    The class token does not count as real.

    streams   {stack: which tokens are real}
    """
    return {stack: _lengthen(stream, behind=1) for stack, stream in streams.items()}


def _adapt_decision_transformer(_model: Any, streams: Streams) -> Streams:
    """Return {stack: which positions are real} for a Decision Transformer.

    Each time step becomes three positions: return, state and action.

    streams   {stack: which steps are real}
    """
    return {
        stack: replace(
            stream,
            mask=stream.mask.repeat_interleave(3, 1),
            special=stream.special.repeat_interleave(3, 1),
            start=stream.start * 3,
            frequency=None,
            punctuation=None,
            image=None,
        )
        for stack, stream in streams.items()
    }


class Family(NamedTuple):
    """What has to be known about a family of models (BERT, GPT-2 …), because a model itself does not say it.

    blocks         classes of its blocks, if its own code declares stages, other modules or nothing at all
    stages         class whose outputs end a stage of one resolution, or a pattern for the end of their names
    stacks         {part of a module's path: stack}, if there are stacks other than encoder and decoder
    streams        function (model, {stack: which inputs are real}) → {stack: which positions are real}
    off_interface  attention that does not use transformers' interface: the class that calls it once per layer, the
                   attribute that holds it, and the names of its projections of queries, keys and values
    attention      False: what its code calls attention has no queries and keys
    causal         it is a decoder whose attention modules do not say so
    tokens_first   blocks pass vectors on as [token, sequence, dim]
    tokenizer      `module:class` of a tokenizer that needs no files
    words          the model reads one word a position; its tokenizer makes the characters of each word of a text
    alone          sequences are measured one at a time, since a block's output depends on the rest of the batch
    module, port   for an architecture that transformers lacks: the module that holds it, and {Auto class of
                   transformers: class in the module}
    bare           `module` can read files of weights without a configuration. Its `config_of(weights)` returns the
                   configuration of weights that it knows and None for others, `processor()` the processor, and
                   `published(weights)`, if there is one, the weights under the port's names
    cls_row_only   name of a part of the model that has an attribute `row_only`; if that is "always", the last layer
                   computes the attention row of the first token alone
    parts          if blocks are not modules of their own: names of the lists that hold one module of each block, in
                   running order. A block begins with the input of the first and ends with the output of the last
    """

    blocks: tuple[str, ...] = ()
    stages: str = ""
    stacks: Mapping[str, str] = {}
    streams: Callable[[Any, Streams], Streams] = lambda _model, streams: streams
    off_interface: tuple[str, str, tuple[str, str, str]] | None = None
    attention: bool = True
    causal: bool = False
    tokens_first: bool = False
    tokenizer: str = ""
    words: bool = False
    alone: bool = False
    module: str = ""
    port: Mapping[str, str] = {}
    bare: bool = False
    cls_row_only: str = ""
    parts: tuple[str, ...] = ()


_SEAMLESS = Family(
    stacks={
        "text_encoder": "encoder",
        "text_decoder": "decoder",
        "speech_encoder": "audio",
        "t2u_model": "units",
    }
)

FAMILIES: dict[str, Family] = {
    "bit": Family(
        ("BitPreActivationBottleneckLayer", "BitBottleneckLayer"), "BitStage"
    ),
    # Nothing in its modules says so, as with the other rows that have `causal`.
    "bloom": Family(causal=True),
    "canine": Family(
        ("CanineLayer",),
        stacks={
            "initial_char_encoder": "characters",
            "encoder": "molecules",
            "final_char_encoder": "characters-out",
        },
        streams=_adapt_canine,
        off_interface=("CanineAttention", "self", ("query", "key", "value")),
        tokenizer="transformers:CanineTokenizer",
    ),
    "convnext": Family(("ConvNextLayer",), "ConvNextStage"),
    "cpmant": Family(("CpmAntTransformerBlock",), streams=_adapt_cpmant),
    "cvt": Family(
        ("CvtLayer",),
        "CvtStage",
        off_interface=(
            "CvtAttention",
            "attention",
            ("projection_query", "projection_key", "projection_value"),
        ),
    ),
    "decision_transformer": Family(streams=_adapt_decision_transformer),
    "donut-swin": Family(("DonutSwinLayer",), "DonutSwinStage"),
    "efficientnet": Family(("EfficientNetBlock",)),
    "fsmt": Family(("EncoderLayer", "DecoderLayer"), tokens_first=True),
    "falcon_mamba": Family(causal=True),
    # GLPN has no module for a stage: each ends with a norm.
    "glpn": Family(("GLPNLayer",), "layer_norm.*"),
    "gpt_neox_japanese": Family(("GPTNeoXJapaneseLayer",), causal=True),
    "groupvit": Family(stages="GroupViTStage"),
    "hgnet_v2": Family(("HGNetV2BasicLayer",), "HGNetV2Stage"),
    "ibert": Family(("IBertLayer",)),
    "led": Family(streams=_make_padder("attention_window")),
    "levit": Family(("LevitResidualLayer",), "LevitStage"),
    "longformer": Family(streams=_make_padder("attention_window")),
    # `layer` reads the text, `r_layers` the regions of the image, `x_layers` both in
    # turn.
    "lxmert": Family(
        ("LxmertLayer", "LxmertXLayer"),
        stacks={"layer": "encoder", "r_layers": "vision", "x_layers": "encoder"},
    ),
    "mamba": Family(causal=True),
    "maskformer-swin": Family(("MaskFormerSwinLayer",), "MaskFormerSwinStage"),
    "mgp-str": Family(("MgpstrLayer",)),
    "mobilenet_v1": Family(("MobileNetV1ConvLayer",)),
    "mobilenet_v2": Family(("MobileNetV2InvertedResidual",)),
    # Its attention weighs tokens by one score each: there are no pairs of queries and
    # keys.
    "mobilevitv2": Family(attention=False),
    "mpnet": Family(("MPNetLayer",)),
    "mpt": Family(causal=True),
    "openai-gpt": Family(("Block",), causal=True),
    "patchtsmixer": Family(("PatchTSMixerLayer",), attention=False),
    "patchtst": Family(("PatchTSTEncoderLayer",)),
    "pegasus_x": Family(
        ("PegasusXEncoderLayer", "PegasusXDecoderLayer"),
        streams=_make_padder("block_size"),
    ),
    # Under a head, the same module has a longer path.
    "perceiver": Family(("encoder.self_attends.*", "perceiver.encoder.self_attends.*")),
    "poolformer": Family(("PoolFormerLayer",)),
    "pvt": Family(("PvtLayer",)),
    "pvt_v2": Family(("PvtV2BlockLayer",), "PvtV2EncoderLayer"),
    "regnet": Family(("RegNetXLayer", "RegNetYLayer"), "RegNetStage"),
    "resnet": Family(("ResNetBottleNeckLayer", "ResNetBasicLayer"), "ResNetStage"),
    # Its attention is a recurrence over the tokens, without queries.
    "rwkv": Family(attention=False),
    "sam3_lite_text_text_model": Family(
        ("Sam3LiteTextTextEncoderLayer", "Sam3LiteTextRepMixerBlock")
    ),
    **dict.fromkeys(("seamless_m4t", "seamless_m4t_v2"), _SEAMLESS),
    "segformer": Family(("SegformerLayer",), "SegformerStage"),
    "swin": Family(("SwinLayer",), "SwinStage"),
    "swin2sr": Family(("Swin2SRLayer",), "Swin2SRStage"),
    "swinv2": Family(("Swinv2Layer",), "Swinv2Stage"),
    "table-transformer": Family(
        ("TableTransformerEncoderLayer", "TableTransformerDecoderLayer")
    ),
    "videoprism": Family(
        stacks={"auxiliary_layers": "video"}, streams=_add_class_token
    ),
    "xclip": Family(stacks={"mit": "frames"}),
    "xglm": Family(causal=True),
    **dict.fromkeys(
        ("flaubert", "xlm"),
        Family(parts=("attentions", "layer_norm1", "ffns", "layer_norm2")),
    ),
    "xlnet": Family(("XLNetLayer",), tokens_first=True),
}
"""Families without a row need none: most that are on transformers' attention interface."""


def class_of_transformers(module: str, name: str) -> Any:
    """Return the class `name` of a module of transformers, such as `modeling_utils`, without importing the module.

    None if the module was never imported: then no model can be of this class.
    """
    loaded = sys.modules.get(f"transformers.{module}")
    return getattr(loaded, name, None)


def families() -> dict[str, Family]:
    """Return all families of models by `model_type`: those listed here, and those that other packages add."""
    return list_entries_of("families")


def family_named(model_type: str) -> Family:
    """Return the family with this `model_type`; an empty `Family` if it is unknown."""
    return families().get(model_type, Family())


LIBRARIES: dict[str, Family] = {
    "diffusers": Family(
        (
            "BasicTransformerBlock",
            "JointTransformerBlock",
            "FluxTransformerBlock",
            "FluxSingleTransformerBlock",
        )
    ),
    "open_clip": Family(("ResidualAttentionBlock",), stacks={"visual": "vision"}),
    "torchvision": Family(
        (
            "EncoderBlock",
            "SwinTransformerBlock",
            "SwinTransformerBlockV2",
            "CNBlock",
            "BasicBlock",
            "Bottleneck",
        )
    ),
}
"""The same of libraries whose models have no configuration of transformers: classes of blocks, by their package."""


SEPARATE = (
    ("q_proj", "k_proj"),
    ("query", "key"),
    ("q", "k"),
    ("q_lin", "k_lin"),
    ("query_proj", "key_proj"),
)
"""Names that attention modules of any family give their projections of queries and keys."""
NORMS = (
    *(
        ("q_norm", "k_norm"),
        ("query_norm", "key_norm"),
        ("q_layernorm", "k_layernorm"),
        ("q_ln", "k_ln"),
    ),
    ("norm_q", "norm_k"),  # of diffusers
)
"""The same of their norms."""
ROTATING = ("Rotary", "FluxPosEmbed")
"""What classes of modules that rotate queries and keys have in their names."""
LATENT = ("kv_a_proj_with_mqa", "kv_b_proj")
"""Projections of latent attention (MLA): to a latent of keys and values beside the rotated part of the keys, which all
heads share; and from it to the other part of the keys and the values of each head.
"""
FUSED = {
    "Wqkv": "q, k, v",
    "c_attn": "q, k, v",
    "query_key_value": "by head",
    "qkv_proj": "grouped",
}
"""Names of fused projections, and how their output lies: q, k, v one after the other (ModernBERT, GPT-2), all three
inside each head (GPT-NeoX), grouped keys and values last (Phi-3).
"""


def class_of(module: Any) -> type:
    """Return the class that a module was created with; FSDP2 replaces it by one of its own (`FSDPBertLayer`)."""
    kind = type(module)
    wrapped = kind.__bases__[0].__name__ == "FSDPModule" and len(kind.__bases__) == 2
    return kind.__bases__[1] if wrapped else kind


def family_of(model: Any) -> Family:
    """Look up a model's family by its `model_type`, else the family of its library; an empty `Family` if both are
    unknown.
    """
    # A model of timm or diffusers has no configuration of transformers.
    library = LIBRARIES.get(class_of(model).__module__.partition(".")[0], Family())
    return families().get(
        getattr(getattr(model, "config", None), "model_type", ""), library
    )
