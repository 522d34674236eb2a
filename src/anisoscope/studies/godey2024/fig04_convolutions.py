"""Figure 4: anisotropy per layer of convolutional networks, maps flattened to one vector per image."""

from typing import Any

import pandas as pd

from anisoscope.studies.godey2024 import curve_claims, layer_curves
from anisoscope.studies.study import Claim, Study

SOURCE = "Godey et al. 2024, section 3.2, figure 4"
MOSTLY = Claim("mostly isotropic", "A convolutional network is isotropic in most of its layers", SOURCE)
DEPTH = Claim("ResNet with depth", "ResNet becomes more isotropic with depth", SOURCE)
RELU = Claim(
    "before the ReLU",
    "A part of a ResNet's anisotropy is its last ReLU: before it, A is lower (after it no cosine is below 0)",
    "ours: the paper names batch normalisation as a partial explanation",
)

RULES = (curve_claims.Rule(MOSTLY, "isotropic", below=True, over="most"),)
RESNET = ("resnet", "small ResNet")
EXTRA = ((DEPTH, curve_claims.falls_with_depth(DEPTH, RESNET)), (RELU, curve_claims.lower_before_relu(RELU)))
SMALL = ("resnet", "convnext", "speech-cnn")
PAPER = layer_curves.Systems(
    ("resnet-50", "efficientnet-b0", "cvt-13", "convnext-tiny", "van-base"), "imagenet-1k", flatten="image"
)


def _draw(records: pd.DataFrame) -> dict[str, Any]:
    """After the last ReLU of each block, as in the paper, and before it."""
    return layer_curves.draw(records, ("fig4",)) | layer_curves.draw(records, ("fig4-before-relu",), site="unrectified")


STUDY = Study(
    name="fig4",
    paper="godey2024",
    title="Anisotropy per layer of convolutional networks",
    claims=(MOSTLY, DEPTH, RELU, curve_claims.TRAINING),
    settings={
        "quick": layer_curves.small_systems(layer_curves.Systems(flatten="image"), SMALL),
        "long": layer_curves.small_systems(layer_curves.Systems(flatten="image"), SMALL, long=True),
        "paper": PAPER,
    },
    measure=layer_curves.measure,
    judge=lambda records: curve_claims.judge(records, RULES, EXTRA),
    draw=_draw,
    caption="Mean cosine over all distinct pairs of images, maps flattened to one vector each (speech: one vector per "
    "frame), with 95 % intervals; dashed: the largest q95(d). After a ReLU no cosine is below 0; second chart: "
    "before the last ReLU of each block. The black background that all digits share keeps the small models from "
    "isotropy.",
    needs=layer_curves.needs(PAPER),
)
