"""Figures 5 and 16: is the drift ‖x̄‖ correlated with A across the layers of a model? Spearman (5) and Pearson (16)."""

from anisoscope.studies.godey2024 import (
    drift_correlation,
    fig01_token_models,
    fig02_character_models,
    fig03_speech_vision,
    fig04_convolutions,
)
from anisoscope.studies.godey2024.permutation import Kind
from anisoscope.studies.study import Study

FIGURES = (
    fig01_token_models.STUDY,
    fig02_character_models.STUDY,
    *fig03_speech_vision.STUDIES,
    fig04_convolutions.STUDY,
)
NEEDS = tuple(dict.fromkeys(need for study in FIGURES for need in study.needs))
TITLES = {"spearman": "Spearman", "pearson": "Pearson"}


def _study(name: str, kind: Kind) -> Study:
    settings = {
        key: drift_correlation.Correlated(kind, tuple(study.settings[key] for study in FIGURES))
        for key in ("quick", "long", "paper")
    }
    return Study(
        name=name,
        paper="godey2024",
        title=f"{TITLES[kind]} test of drift against anisotropy across layers",
        claims=drift_correlation.CLAIMS,
        settings=settings,
        measure=drift_correlation.measure,
        judge=drift_correlation.judge,
        draw=lambda records: drift_correlation.draw(records, name),
        caption="Two-sided permutation p of each model; crosses: scipy's default p, which the paper shows; bars: the "
        "smallest p that this number of layers allows. Line at p = 0.05. Curves over layers are autocorrelated: the "
        "test rejects far too often.",
        needs=NEEDS,
    )


STUDIES = (_study("fig5", "spearman"), _study("fig16", "pearson"))
