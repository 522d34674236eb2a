"""Which positions of a model's own stacks are real and which special, from what its batch says of input positions."""

from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from anisoscope.axes import Site
from anisoscope.batch import Batch, Stream
from anisoscope.models.blocks import family_of

SPECIAL_PARAMETERS = ("cls_token", "distillation_token", "register_tokens", "class_embedding")
"""Parameters that vision models put before the patches: one token per row."""

Streams = dict[str, Stream]


class Layout:
    """How one model's stacks lie to its inputs.

    streams   of a batch → those of the stacks: wav2vec 2.0 and kin make frames of `samples`, Whisper of mel `frames`,
              CANINE molecules of characters; the blocks of MANTa-LM and the patches of an image are all real
    specials  how many positions at the beginning of a site are tokens that the model adds itself
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._of = _FAMILIES.get(family_of(model), _as_given)
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
        return self._of(self.model, given)

    def specials(self, site: Site) -> int:
        """Leading special positions of a site without a stream of its own: class and distillation token, registers."""
        if not self._reads_pixels or site.quantity in ("stage", "unrectified"):
            return 0
        if family_of(self.model) == "cvt":
            config: Any = self.model.config
            ends = list(accumulate(config.depth))
            stage = next(i for i, end in enumerate(ends) if max(site.layer or 0, 1) <= end)
            return int(config.cls_token[stage])
        return self._specials


def _as_given(_model: Any, given: Streams) -> Streams:
    return given


def _canine(model: Any, given: Streams) -> Streams:
    """Characters at both ends; a molecule is real where the model's own pooled mask says so, the first one is [CLS]."""
    if "encoder" not in given:
        return given
    characters = given.pop("encoder")
    mask = model._downsample_attention_mask(characters.mask, model.config.downsampling_rate).bool()
    special = torch.zeros_like(mask)
    special[:, :1] = characters.special[:, :1]
    molecules = Stream(mask, special, characters.start)
    return {"characters": characters, "molecules": molecules, "characters-out": characters} | given


def _manta(_model: Any, given: Streams) -> Streams:
    return {stack: stream for stack, stream in given.items() if stack != "encoder"}


_FAMILIES: dict[str, Callable[[Any, Streams], Streams]] = {"canine": _canine, "manta": _manta}


def _frames_of_samples(model: Any, samples: Stream) -> Stream:
    """The frames that a stack of convolutions makes of samples: real where all their samples are."""
    width, lengths = samples.mask.shape[1], samples.mask.sum(1)
    frames = int(model._get_feat_extract_output_lengths(torch.tensor(width)))
    real = model._get_feat_extract_output_lengths(lengths)
    mask = torch.arange(frames, device=lengths.device) < real[:, None]
    stride = 1
    for factor in getattr(model.config, "conv_stride", ()):
        stride *= factor
    return Stream(mask, torch.zeros_like(mask), samples.start // stride)


def _every(step: int, stream: Stream) -> Stream:
    """Every `step`-th position, real where the first of its `step` inputs is: ⌈n / step⌉ of n."""
    kept: dict[str, Tensor] = {name: getattr(stream, name)[:, ::step] for name in ("mask", "special")}
    return replace(stream, **kept, start=stream.start // step, frequency=None)
