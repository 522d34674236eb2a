"""Which positions of a model's own stacks are real and which special, from what its batch says of input positions."""

from dataclasses import replace
from itertools import accumulate
from math import prod
from typing import Any

import torch
from torch import nn

from anisoscope.axes import Site
from anisoscope.batch import Batch, Stream
from anisoscope.models.families import Streams, family_of

SPECIAL_PARAMETERS = ("cls_token", "distillation_token", "register_tokens", "class_embedding")
"""Parameters that vision models put before the patches: one token per row."""


class Layout:
    """How one model's stacks lie to its inputs.

    streams   of a batch → those of the stacks: wav2vec 2.0 and kin make frames of `samples`, Whisper of mel `frames`,
              CANINE molecules of characters; the blocks of MANTa-LM and the patches of an image are all real
    specials  how many positions at the beginning of a site are tokens that the model adds itself
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._reads_pixels = getattr(model, "main_input_name", "") == "pixel_values"
        self._specials = sum(
            1 if parameter.dim() == 1 else parameter.shape[-2]
            for name, parameter in model.named_parameters()
            if name.rpartition(".")[2] in SPECIAL_PARAMETERS
        )

    def streams(self, batch: Batch) -> Streams:
        """{stack: stream}; a stack not named has one fully real stream."""
        given = dict(batch.streams)
        if "samples" in given:
            given["encoder"] = _frames_of_samples(self.model, given.pop("samples"))
        if "frames" in given:
            given["encoder"] = _every(2, given.pop("frames"))
        return family_of(self.model).streams(self.model, given)

    def specials(self, site: Site) -> int:
        """Leading special positions of a site without a stream of its own: class and distillation token, registers."""
        if not self._reads_pixels or site.quantity in ("stage", "unrectified"):
            return 0
        config: Any = self.model.config
        if isinstance(getattr(config, "cls_token", None), list | tuple):  # CvT: of each stage, whether it has one
            ends = list(accumulate(config.depth))
            stage = next(i for i, end in enumerate(ends) if max(site.layer or 0, 1) <= end)
            return int(config.cls_token[stage])
        return self._specials


def _frames_of_samples(model: Any, samples: Stream) -> Stream:
    """The frames that a stack of convolutions makes of samples: real where all their samples are."""
    width, lengths = samples.mask.shape[1], samples.mask.sum(1)
    frames = int(model._get_feat_extract_output_lengths(torch.tensor(width)))
    mask = torch.arange(frames, device=lengths.device) < model._get_feat_extract_output_lengths(lengths)[:, None]
    return Stream(mask, torch.zeros_like(mask), samples.start // prod(getattr(model.config, "conv_stride", ())))


def _every(step: int, stream: Stream) -> Stream:
    """Every `step`-th position, real where the first of its `step` inputs is: ⌈n / step⌉ of n."""
    mask, special = stream.mask[:, ::step], stream.special[:, ::step]
    return replace(stream, mask=mask, special=special, start=stream.start // step, frequency=None)
