"""List the model families that the papers need and transformers lacks, without importing torch or transformers."""

from anisoscope.models.families import Family

_NETWORKS = "anisoscope_papers.networks"

FAMILIES: dict[str, Family] = {
    # The model of Fosse et al. 2023, section 2.2. Its last layer can compute the row of
    # [CLS] alone, since the head reads no other; a probe of all rows must know of it.
    "attention_classifier": Family(
        module=f"{_NETWORKS}.attention_classifier",
        port={
            "AutoConfig": "AttentionClassifierConfig",
            "AutoModel": "AttentionClassifierModel",
            "AutoModelForSequenceClassification": "AttentionClassifier",
        },
        cls_row_only="attention_classifier",
    ),
    # Figure 2 of Godey et al. 2024. A position is a whole word.
    "character_bert": Family(
        tokenizer=f"{_NETWORKS}.character_bert:CharacterBertTokenizer",
        words=True,
        module=f"{_NETWORKS}.character_bert",
        port={"AutoConfig": "CharacterBertConfig", "AutoModel": "CharacterBertModel"},
    ),
    # Published as bare weights, as the next three: modules know them by their names.
    "cifar_resnet": Family(
        module=f"{_NETWORKS}.cifar_resnet",
        port={"AutoConfig": "CifarResNetConfig", "AutoModel": "CifarResNetModel"},
        bare=True,
    ),
    "crepe": Family(
        streams=lambda _model, _given: {},  # whole frames only: every position is real
        module=f"{_NETWORKS}.crepe",
        port={"AutoConfig": "CrepeConfig", "AutoModel": "CrepeModel"},
        bare=True,
    ),
    "distillmos": Family(
        module=f"{_NETWORKS}.distillmos",
        port={"AutoConfig": "DistillMosConfig", "AutoModel": "DistillMosModel"},
        bare=True,
    ),
    # A convolutional network: no queries and keys to look for.
    "efficientnet_lite": Family(
        attention=False,
        module=f"{_NETWORKS}.efficientnet_lite",
        port={
            "AutoConfig": "EfficientNetLiteConfig",
            "AutoModel": "EfficientNetLiteModel",
        },
        bare=True,
    ),
    # Figure 2. The published pooling counts its blocks over the batch and does not mask
    # padding: sequences pass alone. Its encoder reads blocks, of which the mask of
    # bytes says nothing.
    "manta": Family(
        ("T5Block",),
        streams=lambda _model, given: {
            stack: stream for stack, stream in given.items() if stack != "encoder"
        },
        tokenizer="transformers:ByT5Tokenizer",
        alone=True,
        module=f"{_NETWORKS}.manta",
        port={
            "AutoConfig": "MantaConfig",
            "AutoModel": "MantaModel",
            "AutoModelForSeq2SeqLM": "MantaModel",
        },
    ),
    "speech_cnn": Family(
        module=f"{_NETWORKS}.speech_cnn",
        port={"AutoConfig": "SpeechCnnConfig", "AutoModel": "SpeechCnnModel"},
    ),
    # Figure 4. `VanLayer` is the port's block, `Block` that of the authors' code. Its
    # attention is a gate of large convolutions.
    "van": Family(
        ("VanLayer", "Block"),
        "VanStageNorm",
        attention=False,
        module=f"{_NETWORKS}.van",
        port={
            "AutoConfig": "VanConfig",
            "AutoModel": "VanModel",
            "AutoModelForImageClassification": "VanModel",
        },
    ),
}
"""Of MANTa, every block of bytes is real."""
