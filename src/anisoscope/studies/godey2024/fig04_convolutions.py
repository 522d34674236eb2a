"""Figure 4: anisotropy per layer of convolutional networks, maps flattened to one vector per image."""

from anisoscope.studies._study import Claim, Study
from anisoscope.studies.godey2024 import _claims, _layers

SOURCE = "Godey et al. 2024, section 3.2, figure 4"
MOSTLY = Claim("mostly isotropic", "A convolutional network is isotropic in most of its layers", SOURCE)
DEPTH = Claim("ResNet with depth", "ResNet becomes more isotropic with depth", SOURCE)

RULES = (_claims.Rule(MOSTLY, "isotropic", below=True, over="most"),)
RESNET = ("resnet", "small ResNet")
SMALL = ("resnet", "convnext", "speech-cnn")

STUDY = Study(
    name="fig4",
    paper="godey2024",
    title="Anisotropy per layer of convolutional networks",
    claims=(MOSTLY, DEPTH, _claims.TRAINING),
    settings={
        "quick": _layers.small_systems(_layers.Systems(flatten="image"), SMALL),
        "long": _layers.small_systems(_layers.Systems(flatten="image"), SMALL, long=True),
        "paper": _layers.Systems(
            ("resnet-50", "efficientnet-b0", "cvt-13", "convnext-tiny", "van-base"), "imagenet-1k", flatten="image"
        ),
    },
    measure=_layers.measure,
    judge=lambda records: _claims.judge(records, RULES, [(DEPTH, _claims.falls_with_depth(DEPTH, RESNET))]),
    draw=lambda records: _layers.draw(records, ("fig4",)),
    caption="Mean cosine over all distinct pairs of images, maps flattened to one vector each (speech: one vector per "
    "frame), with 95 % intervals; dashed: the largest q95(d). After a ReLU no cosine is below 0.",
    needs=(
        "microsoft/resnet-50",
        "google/efficientnet-b0",
        "microsoft/cvt-13",
        "facebook/convnext-tiny-224",
        "Visual-Attention-Network/van-base",
        "ILSVRC/imagenet-1k (validation; gated)",
    ),
)
