"""Group statistics of a whole map, gathered strip by strip."""

from __future__ import annotations

import torch
from torch import Tensor

from .ops import GroupNorm

FUSED = ("cpu", "cuda")


class Moments:
    """Mean and variance per image and group of channels, merged over strips in float64.

    Source: Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances"
    (1979), eq. 2.1.
    """

    def __init__(self, groups: int) -> None:
        self.groups = groups
        self.count = 0
        self.mean = self.squares = torch.zeros(())

    def add(self, slab: Tensor) -> None:
        """Takes a (B, C, ...) slab into account."""
        mean, variance = _of(slab, self.groups)
        count = slab[0].numel() // self.groups
        if self.count == 0:
            self.count, self.mean, self.squares = count, mean, variance * count
            return
        apart, total = mean - self.mean, self.count + count
        self.squares = self.squares + variance * count + apart * apart * (self.count * count / total)
        self.mean = self.mean + apart * (count / total)
        self.count = total

    def line(self, norm: GroupNorm, channels: int, dims: int) -> tuple[Tensor, Tensor]:
        """Group norm as scale and shift per image and channel, (B, C, 1, ...) in float32 (float64 for float64)."""
        spread = (self.squares / self.count + norm.eps).rsqrt()
        scale = spread.repeat_interleave(channels // self.groups, 1)
        mean = self.mean.repeat_interleave(channels // self.groups, 1)
        if norm.weight is not None:
            scale = scale * norm.weight.double()
        shift = -mean * scale
        if norm.bias is not None:
            shift = shift + norm.bias.double()
        shape = (*scale.shape, *(1,) * (dims - 2))
        return scale.reshape(shape), shift.reshape(shape)


def _of(slab: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    # In 16 bits the kernel would round the statistics themselves.
    slab = slab.float() if slab.element_size() < 4 else slab
    images, channels = slab.shape[:2]
    if slab.device.type in FUSED:
        # The statistics of the fused kernel take a tenth of var_mean's time on a CPU. With eps = 0 the third result
        # is one over the standard deviation.
        elements = slab[0, 0].numel()
        _, mean, inverse = torch.native_group_norm(
            slab.contiguous(), None, None, images, channels, elements, groups, 0.0
        )
        return mean.double(), inverse.double() ** -2
    variance, mean = torch.var_mean(slab.reshape(images, groups, -1), -1, correction=0)
    return mean.double(), variance.double()
