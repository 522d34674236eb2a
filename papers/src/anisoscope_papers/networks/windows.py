"""Prepare sound for networks that read raw samples."""

from typing import Any

import torch


class Windows:
    """A processor that passes sound on unchanged, in windows of at most `n_samples`; padded windows
    have that length.
    """

    sampling_rate, do_normalize = 16_000, False

    def __init__(self, n_samples: int = 0) -> None:
        self.n_samples = n_samples

    def __call__(
        self, sounds: Any, *, padding: bool, **_: Any
    ) -> dict[str, torch.Tensor]:
        """Return `input_values` and `attention_mask`, [sound, sample], for sounds [sample]; with `padding`, all have
        `n_samples`.
        """
        width = self.n_samples if padding else len(sounds[0])
        values = torch.zeros(len(sounds), width)
        mask = torch.zeros(len(sounds), width, dtype=torch.int64)
        for row, sound in enumerate(sounds):
            values[row, : len(sound)], mask[row, : len(sound)] = (
                torch.as_tensor(sound),
                1,
            )
        return {"input_values": values, "attention_mask": mask}
