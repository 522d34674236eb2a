"""Random numbers that are the same each time: normal ones of a seed, as an array or a tensor of float64."""

from typing import Any

import numpy as np
import torch
from torch import Tensor


def draw_array(*shape: int, seed: int = 0) -> Any:
    """Draw an array of standard normal numbers."""
    return np.random.default_rng(seed).normal(size=shape)


def draw_tensor(*shape: int, seed: int = 0) -> Tensor:
    """Draw a tensor of standard normal numbers."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)
