"""The systems of paper G by name: hub id, modality and figure. Any other checkpoint of these families works by its
own id.
"""

from typing import NamedTuple

RANDOM = "random"
"""Word vectors drawn at random, where those of a file or a checkpoint are named."""


class NamedModel(NamedTuple):
    """A published checkpoint: `figure` of paper G it belongs to, `modality` of what it reads; `licence` and `size` (in
    parameters) as its authors state them, where known.
    """

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
