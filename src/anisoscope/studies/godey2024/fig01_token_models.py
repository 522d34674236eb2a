"""Figure 1: anisotropy per layer of token-based Transformers."""

from anisoscope.studies._study import Claim, Study
from anisoscope.studies.godey2024 import _layers

ANISOTROPIC = Claim(
    "anisotropic",
    "Every token-based Transformer is anisotropic in at least one layer",
    "Godey et al. 2024, section 3.1, figure 1",
)

STUDY = Study(
    name="fig1",
    paper="godey2024",
    title="Anisotropy per layer of token-based Transformers",
    claims=(ANISOTROPIC,),
    settings={
        "quick": _layers.Systems(("builtin:minilm",), "builtin:python-docs", limit=60),
        "paper": _layers.Systems(("bert-base", "roberta-base", "gpt2", "t5-base"), "wikitext-103"),
    },
    measure=_layers.measure,
    judge=lambda records: _layers.judge_anisotropic(records, ANISOTROPIC.name),
    draw=lambda records: _layers.draw(records, ("fig1",)),
    caption="Mean cosine over all distinct pairs of hidden states, with 95 % intervals over documents; "
    "dashed: q95(d) of one isotropic pair.",
    needs=(
        "google-bert/bert-base-uncased",
        "FacebookAI/roberta-base",
        "openai-community/gpt2",
        "google-t5/t5-base",
        "Salesforce/wikitext (wikitext-103-raw-v1, validation)",
    ),
)
