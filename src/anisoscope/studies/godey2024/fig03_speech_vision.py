"""Figures 3a and 3b: anisotropy per layer of speech and vision Transformers."""

from anisoscope.studies.godey2024 import _claims, _layers
from anisoscope.studies.judge import LOW
from anisoscope.studies.study import Claim, Study

SPEECH_SOURCE, VISION_SOURCE = (f"Godey et al. 2024, section 3.2, figure 3{x}" for x in "ab")
AT_LEAST = Claim("every layer at least 0.2", "Every layer of every speech model has A of 0.2 or more", SPEECH_SOURCE)
ANISOTROPIC = Claim("anisotropic", "A vision Transformer is anisotropic in at least one layer", VISION_SOURCE)
SEVERAL = Claim("several anisotropic", "Several vision Transformers are anisotropic", VISION_SOURCE)
MIT = Claim("MiT isotropic", "MiT is isotropic in every layer", VISION_SOURCE)
VIT = Claim("ViT low", "ViT has a low A (under 0.2) in every layer", VISION_SOURCE)

SPEECH_RULES = (_claims.Rule(AT_LEAST, f"above {LOW}", threshold=LOW, over="all"),)
VISION_RULES = (
    _claims.Rule(ANISOTROPIC, "anisotropic"),
    _claims.Rule(MIT, "isotropic", below=True, over="all", systems=("mit-",)),
    _claims.Rule(VIT, "low", threshold=LOW, below=True, over="all", systems=("vit-", "small ViT")),
)
SPEECH_PAPER = _layers.Systems(("wav2vec2-base", "hubert-base", "whisper-base"), "common-voice")
VISION_PAPER = _layers.Systems(("vit-base", "beit-base", "deit-base", "mit-b0"), "imagenet-1k")

STUDIES = (
    Study(
        name="fig3a",
        paper="godey2024",
        title="Anisotropy per layer of speech Transformers",
        claims=(AT_LEAST, _claims.TRAINING),
        settings={
            "quick": _layers.small_systems(_layers.Systems(), ("speech-transformer",)),
            "long": _layers.small_systems(_layers.Systems(), ("speech-transformer",), long=True),
            "paper": SPEECH_PAPER,
        },
        measure=_layers.measure,
        judge=lambda records: _claims.judge(records, SPEECH_RULES),
        draw=lambda records: _layers.draw(records, ("fig3a",)),
        caption="Mean cosine over all distinct pairs of frames, with 95 % intervals over speakers (clips where not "
        "known); dashed: q95(d). The small model is trained on spoken digits and measured on them.",
        needs=_layers.needs(SPEECH_PAPER),
    ),
    Study(
        name="fig3b",
        paper="godey2024",
        title="Anisotropy per layer of vision Transformers",
        claims=(ANISOTROPIC, SEVERAL, MIT, VIT, _claims.TRAINING),
        settings={
            "quick": _layers.small_systems(_layers.Systems(), ("vit",)),
            "long": _layers.small_systems(_layers.Systems(), ("vit",), long=True),
            "paper": VISION_PAPER,
        },
        measure=_layers.measure,
        judge=lambda records: _claims.judge(records, VISION_RULES, several=SEVERAL),
        draw=lambda records: _layers.draw(records, ("fig3b",)),
        caption="Mean cosine over all distinct pairs of patches, with 95 % intervals over images; dashed: q95(d).",
        needs=_layers.needs(VISION_PAPER),
    ),
)
