"""Figure 1: anisotropy per layer of token-based Transformers."""

from anisoscope.studies.godey2024 import curve_claims, layer_curves
from anisoscope.studies.study import Claim, Study

ANISOTROPIC = Claim(
    "anisotropic",
    "Every token-based Transformer is anisotropic in at least one layer",
    "Godey et al. 2024, section 3.1, figure 1",
)
RULES = (curve_claims.Rule(ANISOTROPIC, "anisotropic"),)
PAPER = layer_curves.Systems(("bert-base", "roberta-base", "gpt2", "t5-base"), "wikitext-103")
SMALL = ("token-lm",)
QUICK = layer_curves.Systems(("builtin:minilm",), "builtin:python-docs", limit=60)

STUDY = Study(
    name="fig1",
    paper="godey2024",
    title="Anisotropy per layer of token-based Transformers",
    claims=(ANISOTROPIC, curve_claims.TRAINING),
    settings={
        "quick": layer_curves.small_systems(QUICK, SMALL),
        "long": layer_curves.small_systems(QUICK, SMALL, long=True),
        "paper": PAPER,
    },
    measure=layer_curves.measure,
    judge=lambda records: curve_claims.judge(records, RULES),
    draw=lambda records: layer_curves.draw(records, ("fig1",)),
    caption="Mean cosine over all distinct pairs of hidden states, with 95 % intervals over documents; dashed: q95(d) "
    "of one isotropic pair. Decoder layers stand behind those of their encoder.",
    needs=layer_curves.needs(PAPER),
)
