"""Figures 1 to 4: anisotropy per layer of Transformers of text, speech and images, and of convolutional networks."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from anisoscope_papers.godey2024 import layer_curves
from anisoscope_papers.godey2024.layer_curves import (
    TRAINED,
    UNTRAINED,
    Systems,
    build_settings,
    iter_systems,
    select_replicates,
)
from anisoscope_papers.judge import (
    Array,
    Test,
    compute_p_of_replicates,
    find_no_effect,
    judge_tests,
    make_verdict_without_test,
)
from anisoscope_papers.study import (
    Claim,
    Compared,
    Expected,
    Verdict,
    declare,
    read_claims,
    read_published,
)
from anisoscope_papers.training.kinds import KINDS, TEXT
from anisoscope_papers.training.train_small import PART

TRAINING, SEVERAL = "effect of training", "several anisotropic"
SHARING = (
    *(kind.label for kind in KINDS.values() if kind.modality == TEXT),
    *("minilm", "rxnfp", "rxnmapper", "antiberty"),
)
"""Beginnings of the names of models whose tokens all share a type vector."""
WORDS = "differences hold"
SHARED = "its tokens share a type vector, which puts A at 1/3 in every layer before training: no start to compare with"
SPEECH_MODELS = ("wav2vec2-base", "hubert-base", "whisper-base")
IMAGE_MODELS = ("resnet-50", "efficientnet-b0", "cvt-13", "convnext-tiny", "van-base")
SETTINGS = {
    "fig1": build_settings(
        Systems(("bert-base", "roberta-base", "gpt2", "t5-base"), "wikitext-103"),
        ("token-lm",),
        Systems(("builtin:minilm",), "builtin:python-docs", limit=60),
    ),
    "fig2": build_settings(
        Systems(
            ("character-bert", "canine-s", "canine-c", "manta-base", "byt5-base"),
            "wikitext-103",
        ),
        ("byte-lm", "token-lm"),
    ),
    "fig3a": build_settings(
        Systems(SPEECH_MODELS, "common-voice"), ("speech-transformer",)
    ),
    "fig3b": build_settings(
        Systems(("vit-base", "beit-base", "deit-base", "mit-b0"), "imagenet-1k"),
        ("vit",),
    ),
    "fig4": build_settings(
        Systems(IMAGE_MODELS, "imagenet-1k", flatten="image"),
        ("resnet", "convnext", "speech-cnn"),
    ),
}

CLIPS, PHOTOGRAPHS = (
    "speech/librispeech_test_other",
    Systems(corpus="cifar10/test.parquet", limit=400, flatten="image"),
)
# Residual networks that were trained on the photographs of CIFAR: files of weights
# below ANISOSCOPE_DATA.
RESNETS = ("weights/resnet20-12fca82f.th", "weights/resnet56-4bfd9763.th")
REACTIONS, IMAGES = "reactions/valid.jsonl.gz", "vision/imagenet_sample"
# Every network is measured on data of the kind that it was trained for: letters of
# reactions and proteins count as sub-word and character models of figures 1 and 2.
SETTINGS["fig1"]["packaged"] = Systems(
    corpus=REACTIONS,
    limit=400,
    packaged=(
        "builtin:rxnfp-pretrained",
        "builtin:rxnfp-finetuned",
        "builtin:rxnfp-finetuned-10k",
        "builtin:rxnmapper",
    ),
    others=(
        Systems(
            corpus="wikitext/wiki.valid.raw.txt.gz",
            limit=30,
            packaged=("builtin:minilm",),
        ),
    ),
)
SETTINGS["fig2"]["packaged"] = Systems(
    corpus="antibodies/chains.jsonl.gz", limit=200, packaged=("builtin:antiberty",)
)
SETTINGS["fig3b"]["packaged"] = Systems(
    corpus=IMAGES, limit=100, packaged=("builtin:saliency-vit",)
)
SETTINGS["fig3a"]["packaged"] = Systems(
    corpus=CLIPS, packaged=("builtin:distillmos", "builtin:whisper-tiny.en")
)
SETTINGS["fig4"]["packaged"] = replace(
    PHOTOGRAPHS,
    packaged=RESNETS,
    others=(
        # The same networks on photographs that they were not made for: does the outcome
        # depend on the data?
        replace(PHOTOGRAPHS, corpus=IMAGES, packaged=RESNETS),
        Systems(corpus=CLIPS, limit=20, packaged=("builtin:crepe-tiny",)),
        Systems(
            corpus=IMAGES,
            limit=60,
            flatten="image",
            packaged=("builtin:efficientnet-lite0",),
        ),
        Systems(
            corpus=IMAGES,
            limit=30,
            flatten="image",
            packaged=("builtin:efficientnet-lite0",),
            # The linear outputs of its blocks have a low A, and the maps after the
            # ReLU6 inside them a high one: the answer depends on where one looks, so
            # that both are shown.
            relus=("ReLU6", "_blocks.*._bn[01]"),
        ),
    ),
)
"""Networks that others trained, of Python packages and of files: no hub, and nothing trained by heart."""
SEEN = {"fig3a": ("speech-masked",), "fig3b": ("vit-photographs", "vit-masked")}
for _name, _kinds in SEEN.items():
    SETTINGS[_name]["held-out"] = Systems(small=_kinds, recipe=PART)
"""Small models of photographs and of speech, trained here and measured on what none of them was trained on."""


def judge(name: str, records: pd.DataFrame) -> list[Verdict]:
    """Judge all claims of the figure `name`, with their p corrected together."""
    rows = layer_curves.select_curves(records)
    stated_ones = tuple(read_claims("godey2024", name).values())
    # Untrained models are only a start to compare with; the paper's claims are about
    # trained ones.
    about = rows[~rows["model"].str.endswith(UNTRAINED)]
    tests: list[Test] = []
    for claim in stated_ones:
        # A claim with `over` has a test per layer; the others compare numbers over
        # several layers.
        if claim.over:
            here = about
            if claim.site:
                at_site = layer_curves.select_curves(records, claim.site)
                here = at_site[~at_site["model"].str.endswith(UNTRAINED)]
            tests += layer_curves.make_layer_tests(claim, here)
        elif claim.name in COMPARISONS:
            tests += COMPARISONS[claim.name](claim, records, about)
    verdicts = judge_tests(tests)
    # It counts verdicts on single systems, so that it comes after them and adds no test
    # to the family of Holm's correction.
    verdicts += [
        _judge_several(claim, verdicts)
        for claim in stated_ones
        if claim.name == SEVERAL
    ]
    # The effect of training is a question of ours. The paper's models have no untrained
    # partner: that there is no verdict on it is nothing to report.
    return verdicts + layer_curves.make_undecided(
        (c for c in stated_ones if c.name != TRAINING), verdicts, records
    )


def _judge_several(claim: Claim, verdicts: list[Verdict]) -> Verdict:
    """Judge the claim that at least two systems (models) are anisotropic, from the verdicts on single systems."""
    outcomes = [
        verdict.outcome for verdict in verdicts if verdict.claim == "anisotropic"
    ]
    holding = outcomes.count("holds")
    failing = outcomes.count("fails")
    n = len(outcomes)
    holds = None
    if holding >= 2:
        holds = True
    # It fails only if no two can hold any more, whatever becomes of the undecided ones.
    elif n >= 2 and n - failing < 2:
        holds = False
    reason = "two are needed"
    if n < 2:
        reason += f"; these settings have {n}"
    return make_verdict_without_test(
        claim,
        holds,
        f"systems of which it holds, of {n}:",
        float(holding),
        reason=reason,
    )


def _test_characters(
    claim: Claim, records: pd.DataFrame, rows: pd.DataFrame
) -> Iterator[Test]:
    """Yield the tests that A (mean cosine) of each of the claim's systems (models) is above that of each other system.

    Small models are compared seed by seed. `rows`: the table of `layer_curves.select_curves`.
    """
    systems = list(iter_systems(rows))
    for name, seed, layers in systems:
        for other, other_seed, others in systems:
            if not name.startswith(claim.systems) or other.startswith(claim.systems):
                continue
            # Two small models of one seed have seen the same data in the same order.
            both_small = name.endswith(TRAINED) and other.endswith(TRAINED)
            if not both_small or seed == other_seed:
                theta = _subtract_replicates(
                    _average_layers(records, layers), _average_layers(records, others)
                )
                yield _test(
                    claim,
                    f"{_strip_trained(name)} above {_strip_trained(other)}",
                    theta,
                    layers,
                    seed,
                )


def _test_depth(
    claim: Claim, records: pd.DataFrame, rows: pd.DataFrame
) -> Iterator[Test]:
    """Yield the tests that A (mean cosine) falls with depth, for each of the claim's systems (models).

    The number is minus the slope of A over relative depth (0 the input, 1 the last layer). `rows`: the table of
    `layer_curves.select_curves`.
    """
    for model, seed, layers in iter_systems(
        rows[rows["model"].str.startswith(claim.systems)]
    ):
        # Centred and of length 1: the least-squares slope is a·depth / depth·depth,
        # without an intercept.
        depth = np.linspace(-0.5, 0.5, len(layers))
        theta = -(select_replicates(records, layers, "mean_cosine") @ depth) / (
            depth @ depth
        )
        yield _test(claim, _strip_trained(model), theta, layers, seed)


def _test_change(
    claim: Claim, records: pd.DataFrame, rows: pd.DataFrame
) -> Iterator[Test]:
    """Yield the tests of how A (mean cosine) changes by training, or by the last ReLU of each block, for each system
    (model).

    `rows`: the table of `layer_curves.select_curves`.
    """
    training = claim.name == TRAINING
    site = "pre_relu"
    if training:
        site = "hidden"
        rows = rows[rows["model"].str.endswith(TRAINED)]
    # What each system is compared with: the untrained model of the same seed, or the
    # same model before its ReLU.
    before = {
        (model, seed): layers
        for model, seed, layers in iter_systems(
            layer_curves.select_curves(records, site)
        )
    }
    for model, seed, layers in iter_systems(rows):
        name = _strip_trained(model)
        if training and name.startswith(SHARING):
            # A test without numbers is undecided, and its note says why.
            yield Test(
                claim,
                claim.statistic,
                subject=name,
                over="all",
                seed=seed,
                words=WORDS,
                units="units",
                note=SHARED,
            )
            continue
        then = before.get((name + UNTRAINED if training else model, seed))
        if then is not None:
            # Not every layer has a ReLU: only those with both are compared.
            after = layers[layers["layer"].isin(then["layer"])]
            theta = _subtract_replicates(
                _average_layers(records, after), _average_layers(records, then, site)
            )
            yield _test(claim, name, theta, layers, seed)


COMPARISONS: dict[
    str, Callable[[Claim, pd.DataFrame, pd.DataFrame], Iterable[Test]]
] = {
    "characters only": _test_characters,
    "ResNet with depth": _test_depth,
    "before the ReLU": _test_change,
    TRAINING: _test_change,
}


def _strip_trained(model: str) -> str:
    """Return a model's name without ", trained"."""
    return model.removesuffix(TRAINED)


def _average_layers(
    records: pd.DataFrame, layers: pd.DataFrame, site: str = "hidden"
) -> Array:
    """Return the jackknife replicates [1 + group] of A (mean cosine) averaged over layers from 1 on (0 is the input of
    the blocks).

    `layers`: rows of `layer_curves.select_curves` for one model and seed.
    """
    inner = (layers["layer"] > 0).to_numpy(bool)
    return np.asarray(
        select_replicates(records, layers, "mean_cosine", site)[:, inner].mean(axis=1),
        dtype=np.float64,
    )


def _subtract_replicates(a: Array, b: Array) -> Array:
    """Return the replicates of a − b, from replicates [1 + group] of each.

    Replicate 0 is the value over all units (documents, images), replicate g the one without group g. With equally many
    groups in both, replicates are subtracted one by one. Otherwise a and b count as independent: first come the
    replicates of a, with b over all units, then those of b, with a over all units.
    """
    if len(a) == len(b):
        return a - b
    # Each part varies in one of the two alone, so that the variances add up, as those
    # of independent numbers do.
    return np.concatenate([[a[0] - b[0]], a[1:] - b[0], a[0] - b[1:]])


def _test(
    claim: Claim, subject: str, theta: Array, layers: pd.DataFrame, seed: int
) -> Test:
    """Make the test that a number of one system (`subject`) and seed is above the claim's threshold.

    `theta`: its jackknife replicates [1 + group]; `layers`: rows of the layers that it was computed from.
    """
    # Two thresholds: the claim's own, with its floor, and "no effect", which tells a
    # claim that fails by being too small from one that is contrary.
    value, low, high, up, down = compute_p_of_replicates(theta, claim.threshold())
    *_, against = compute_p_of_replicates(theta, find_no_effect(claim))
    first = layers.iloc[0]
    numbers = (value, low, high, int(first["n_units"]), up, down, against)
    note = layer_curves.describe_steps(first["model"], first["step"])
    return Test(
        claim,
        claim.statistic,
        *numbers,
        None,
        subject,
        "all",
        seed,
        margin=value,
        words=WORDS,
        units="units",
        note=note,
    )


def draw(name: str, records: pd.DataFrame) -> dict[str, Any]:
    """Draw A (mean cosine) per layer; for figure 4 after the last ReLU of each block, as in the paper, and before it.

    `name`: the figure. Returns {chart name: chart}.
    """
    charts = layer_curves.draw(name, records)
    if name == "fig4":
        charts |= layer_curves.draw(f"{name}-before-relu", records, "pre_relu")
    return charts


def compare(name: str, records: pd.DataFrame) -> list[Compared]:
    """Compare A of each layer with what others published of the same weights; empty if no such model was measured.

    The published cosines are absolute values, so that A is compared without its sign.
    """
    expected = read_published("godey2024")[name].get("expected", {})
    found: list[Compared] = []
    for model, _, layers in iter_systems(layer_curves.select_curves(records)):
        for layer, value in enumerate(expected.get(model, ()), 1):
            # IsoScore's authors read the last layer after the final norm, which our
            # layers do not include: such a value is shown, and not judged.
            last = model in expected["final_norm"] and layer == len(expected[model])
            apart = "published after the final norm, ours is before it" if last else ""
            row = layers[layers["layer"] == layer]
            ours = abs(float(row["value"].iloc[0])) if len(row) else None
            place = f"{model}, layer {layer}"
            note = f"within {expected['within']:g}; {expected['source']}"
            found.append(
                Expected(
                    place,
                    value,
                    ours,
                    n=len(row),
                    note=note,
                    apart=apart,
                    within=expected["within"],
                )
            )
    return found


STUDIES = tuple(
    declare(
        "godey2024",
        name,
        settings=of_name,
        measure=layer_curves.measure,
        judge=partial(judge, name),
        draw=partial(draw, name),
        compare=partial(compare, name),
        needs=of_name["paper"].needs(),
    )
    for name, of_name in SETTINGS.items()
)
