"""Figure 2: anisotropy per layer of character- and byte-based language models."""

from anisoscope.studies.godey2024 import curve_claims, layer_curves
from anisoscope.studies.judge import EXTREME
from anisoscope.studies.study import Claim, Study

SOURCE = "Godey et al. 2024, section 3.1, figure 2"
ANISOTROPIC = Claim("anisotropic", "Every character- or byte-based model is anisotropic in at least one layer", SOURCE)
MORE = Claim(
    "characters only",
    "Models that see only characters or bytes are more anisotropic than the others (mean of A over layers)",
    SOURCE,
)
DECODERS = Claim(
    "extreme decoders", "The decoder of ByT5 is extremely anisotropic (A of 0.8 or more in a layer)", SOURCE
)
TEXT = ("character-bert", "canine", "manta", "byt5", "small byte LM")
RULES = (
    curve_claims.Rule(ANISOTROPIC, "anisotropic", systems=TEXT),
    curve_claims.Rule(DECODERS, "extreme", threshold=EXTREME, systems=("byt5",), stack="decoder"),
)
ONLY = ("byt5", "canine-c", "manta", "small byte LM")
OTHERS = ("character-bert", "canine-s", "small token LM")
PAPER = layer_curves.Systems(("character-bert", "canine-s", "canine-c", "manta-base", "byt5-base"), "wikitext-103")

STUDY = Study(
    name="fig2",
    paper="godey2024",
    title="Anisotropy per layer of character- and byte-based language models",
    claims=(ANISOTROPIC, MORE, DECODERS, curve_claims.TRAINING),
    settings={
        "quick": layer_curves.small_systems(layer_curves.Systems(), ("byte-lm", "token-lm")),
        "long": layer_curves.small_systems(layer_curves.Systems(), ("byte-lm", "token-lm"), long=True),
        "paper": PAPER,
    },
    measure=layer_curves.measure,
    judge=lambda records: curve_claims.judge(records, RULES, [(MORE, curve_claims.more_than(MORE, ONLY, OTHERS))]),
    draw=lambda records: layer_curves.draw(records, ("fig2",)),
    caption="As figure 1. The small token model is the one of figure 1, drawn to compare: same size, same documents.",
    needs=layer_curves.needs(PAPER),
)
