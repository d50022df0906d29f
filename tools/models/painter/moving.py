"""A star that flies across the picture: what a video's autoencoder is shown."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .scenes import COLOURS, SHAPES

GROUND, SIZE = (0.93, 0.91, 0.87), 0.16  # of the picture's side
FROM, TO, SWING = 0.28, 0.72, 0.12


def star_in_flight(frames: int, side: int) -> Tensor:
    """The frames, (frames, side, side, 3) from 0 to 1."""
    line = (torch.arange(side) + 0.5) / side
    time = torch.linspace(0, 1, frames)[:, None, None]
    x = (line - FROM - (TO - FROM) * time) / SIZE
    y = (line[:, None] - 0.5 - SWING * (2 * math.pi * time).sin()) / SIZE
    covered = (0.5 - SHAPES["star"](*torch.broadcast_tensors(x, y)) * SIZE * side).clamp(0, 1)
    return torch.lerp(torch.tensor(GROUND), torch.tensor(COLOURS["orange"]), covered[..., None])
