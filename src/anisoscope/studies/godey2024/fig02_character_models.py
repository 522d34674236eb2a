"""Figure 2: anisotropy per layer of character- and byte-based language models."""

from anisoscope.studies.godey2024 import _claims, _layers
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
    _claims.Rule(ANISOTROPIC, "anisotropic", systems=TEXT),
    _claims.Rule(DECODERS, "extreme", threshold=EXTREME, systems=("byt5",), stack="decoder"),
)
ONLY = ("byt5", "canine-c", "manta", "small byte LM")
OTHERS = ("character-bert", "canine-s", "small token LM")
PAPER = _layers.Systems(("character-bert", "canine-s", "canine-c", "manta-base", "byt5-base"), "wikitext-103")

STUDY = Study(
    name="fig2",
    paper="godey2024",
    title="Anisotropy per layer of character- and byte-based language models",
    claims=(ANISOTROPIC, MORE, DECODERS, _claims.TRAINING),
    settings={
        "quick": _layers.small_systems(_layers.Systems(), ("byte-lm", "token-lm")),
        "long": _layers.small_systems(_layers.Systems(), ("byte-lm", "token-lm"), long=True),
        "paper": PAPER,
    },
    measure=_layers.measure,
    judge=lambda records: _claims.judge(records, RULES, [(MORE, _claims.more_than(MORE, ONLY, OTHERS))]),
    draw=lambda records: _layers.draw(records, ("fig2",)),
    caption="As figure 1. The small token model is the one of figure 1, drawn to compare: same size, same documents.",
    needs=_layers.needs(PAPER),
)
