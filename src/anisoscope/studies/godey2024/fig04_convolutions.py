"""Figure 4: anisotropy per layer of convolutional networks, maps flattened to one vector per image."""

from typing import Any

import pandas as pd

from anisoscope.studies.godey2024 import _claims, _layers
from anisoscope.studies.study import Claim, Study

SOURCE = "Godey et al. 2024, section 3.2, figure 4"
MOSTLY = Claim("mostly isotropic", "A convolutional network is isotropic in most of its layers", SOURCE)
DEPTH = Claim("ResNet with depth", "ResNet becomes more isotropic with depth", SOURCE)
RELU = Claim(
    "before the ReLU",
    "A part of a ResNet's anisotropy is its last ReLU: before it, A is lower (after it no cosine is below 0)",
    "ours: the paper names batch normalisation as a partial explanation",
)

RULES = (_claims.Rule(MOSTLY, "isotropic", below=True, over="most"),)
RESNET = ("resnet", "small ResNet")
EXTRA = ((DEPTH, _claims.falls_with_depth(DEPTH, RESNET)), (RELU, _claims.lower_before_relu(RELU)))
SMALL = ("resnet", "convnext", "speech-cnn")
PAPER = _layers.Systems(
    ("resnet-50", "efficientnet-b0", "cvt-13", "convnext-tiny", "van-base"), "imagenet-1k", flatten="image"
)


def _draw(records: pd.DataFrame) -> dict[str, Any]:
    """After the last ReLU of each block, as in the paper, and before it."""
    return _layers.draw(records, ("fig4",)) | _layers.draw(records, ("fig4-before-relu",), site="unrectified")


STUDY = Study(
    name="fig4",
    paper="godey2024",
    title="Anisotropy per layer of convolutional networks",
    claims=(MOSTLY, DEPTH, RELU, _claims.TRAINING),
    settings={
        "quick": _layers.small_systems(_layers.Systems(flatten="image"), SMALL),
        "long": _layers.small_systems(_layers.Systems(flatten="image"), SMALL, long=True),
        "paper": PAPER,
    },
    measure=_layers.measure,
    judge=lambda records: _claims.judge(records, RULES, EXTRA),
    draw=_draw,
    caption="Mean cosine over all distinct pairs of images, maps flattened to one vector each (speech: one vector per "
    "frame), with 95 % intervals; dashed: the largest q95(d). After a ReLU no cosine is below 0; second chart: "
    "before the last ReLU of each block. The black background that all digits share keeps the small models from "
    "isotropy.",
    needs=_layers.needs(PAPER),
)
