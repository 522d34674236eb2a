"""Figures 3a and 3b: anisotropy per layer of speech and vision Transformers."""

from anisoscope.studies.godey2024 import curve_claims, layer_curves
from anisoscope.studies.judge import LOW
from anisoscope.studies.study import Claim, Study

SPEECH_SOURCE, VISION_SOURCE = (f"Godey et al. 2024, section 3.2, figure 3{x}" for x in "ab")
AT_LEAST = Claim("every layer at least 0.2", "Every layer of every speech model has A of 0.2 or more", SPEECH_SOURCE)
ANISOTROPIC = Claim("anisotropic", "A vision Transformer is anisotropic in at least one layer", VISION_SOURCE)
SEVERAL = Claim("several anisotropic", "Several vision Transformers are anisotropic", VISION_SOURCE)
MIT = Claim("MiT isotropic", "MiT is isotropic in every layer", VISION_SOURCE)
VIT = Claim("ViT low", "ViT has a low A (under 0.2) in every layer", VISION_SOURCE)

SPEECH_RULES = (curve_claims.Rule(AT_LEAST, f"above {LOW}", threshold=LOW, over="all"),)
VISION_RULES = (
    curve_claims.Rule(ANISOTROPIC, "anisotropic"),
    curve_claims.Rule(MIT, "isotropic", below=True, over="all", systems=("mit-",)),
    curve_claims.Rule(VIT, "low", threshold=LOW, below=True, over="all", systems=("vit-", "small ViT")),
)
SPEECH_PAPER = layer_curves.Systems(("wav2vec2-base", "hubert-base", "whisper-base"), "common-voice")
VISION_PAPER = layer_curves.Systems(("vit-base", "beit-base", "deit-base", "mit-b0"), "imagenet-1k")

STUDIES = (
    Study(
        name="fig3a",
        paper="godey2024",
        title="Anisotropy per layer of speech Transformers",
        claims=(AT_LEAST, curve_claims.TRAINING),
        settings={
            "quick": layer_curves.small_systems(layer_curves.Systems(), ("speech-transformer",)),
            "long": layer_curves.small_systems(layer_curves.Systems(), ("speech-transformer",), long=True),
            "paper": SPEECH_PAPER,
        },
        measure=layer_curves.measure,
        judge=lambda records: curve_claims.judge(records, SPEECH_RULES),
        draw=lambda records: layer_curves.draw(records, ("fig3a",)),
        caption="Mean cosine over all distinct pairs of frames, with 95 % intervals over speakers (clips where not "
        "known); dashed: q95(d). The small model is trained on spoken digits and measured on them.",
        needs=layer_curves.needs(SPEECH_PAPER),
    ),
    Study(
        name="fig3b",
        paper="godey2024",
        title="Anisotropy per layer of vision Transformers",
        claims=(ANISOTROPIC, SEVERAL, MIT, VIT, curve_claims.TRAINING),
        settings={
            "quick": layer_curves.small_systems(layer_curves.Systems(), ("vit",)),
            "long": layer_curves.small_systems(layer_curves.Systems(), ("vit",), long=True),
            "paper": VISION_PAPER,
        },
        measure=layer_curves.measure,
        judge=lambda records: curve_claims.judge(records, VISION_RULES, several=SEVERAL),
        draw=lambda records: layer_curves.draw(records, ("fig3b",)),
        caption="Mean cosine over all distinct pairs of patches, with 95 % intervals over images; dashed: q95(d).",
        needs=layer_curves.needs(VISION_PAPER),
    ),
)
