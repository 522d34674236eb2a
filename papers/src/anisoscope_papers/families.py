"""List the model families that the papers need and transformers lacks, without importing torch or transformers."""

from anisoscope.models.families import Family

_NETWORKS = "anisoscope_papers.networks"

FAMILIES: dict[str, Family] = {
    "attention_classifier": Family(
        module=f"{_NETWORKS}.attention_classifier",
        port={
            "AutoConfig": "AttentionClassifierConfig",
            "AutoModel": "AttentionClassifierModel",
            "AutoModelForSequenceClassification": "AttentionClassifier",
        },
        cls_row_only="attention_classifier",
    ),
    "character_bert": Family(
        tokenizer=f"{_NETWORKS}.character_bert:CharacterBertTokenizer",
        words=True,
        module=f"{_NETWORKS}.character_bert",
        port={"AutoConfig": "CharacterBertConfig", "AutoModel": "CharacterBertModel"},
    ),
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
    "efficientnet_lite": Family(
        attention=False,
        module=f"{_NETWORKS}.efficientnet_lite",
        port={
            "AutoConfig": "EfficientNetLiteConfig",
            "AutoModel": "EfficientNetLiteModel",
        },
        bare=True,
    ),
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
