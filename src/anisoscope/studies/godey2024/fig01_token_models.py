"""Figure 1: anisotropy per layer of token-based Transformers."""

from anisoscope.studies.godey2024 import _claims, _layers
from anisoscope.studies.study import Claim, Study

ANISOTROPIC = Claim(
    "anisotropic",
    "Every token-based Transformer is anisotropic in at least one layer",
    "Godey et al. 2024, section 3.1, figure 1",
)
RULES = (_claims.Rule(ANISOTROPIC, "anisotropic"),)
PAPER = _layers.Systems(("bert-base", "roberta-base", "gpt2", "t5-base"), "wikitext-103")
SMALL = ("token-lm",)
QUICK = _layers.Systems(("builtin:minilm",), "builtin:python-docs", limit=60)

STUDY = Study(
    name="fig1",
    paper="godey2024",
    title="Anisotropy per layer of token-based Transformers",
    claims=(ANISOTROPIC, _claims.TRAINING),
    settings={
        "quick": _layers.small_systems(QUICK, SMALL),
        "long": _layers.small_systems(QUICK, SMALL, long=True),
        "paper": PAPER,
    },
    measure=_layers.measure,
    judge=lambda records: _claims.judge(records, RULES),
    draw=lambda records: _layers.draw(records, ("fig1",)),
    caption="Mean cosine over all distinct pairs of hidden states, with 95 % intervals over documents; dashed: q95(d) "
    "of one isotropic pair. Decoder layers stand behind those of their encoder.",
    needs=_layers.needs(PAPER),
)
