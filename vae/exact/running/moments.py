"""Group statistics of a whole map, gathered strip by strip and merged at the end."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor

from ..operations.whole import GroupNorm


class Moments:
    """Mean and variance per image and group of channels, merged over strips: in float64 on a CPU, on cards in float32
    as their own kernels for group norm do.

    Strips leave theirs on the device until :meth:`merge`; nothing waits for them.

    Source: Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances"
    (1979), eq. 2.1, for any number of parts.
    """

    def __init__(self, groups: int) -> None:
        self.groups = groups
        self.counts: list[int] = []
        self.parts: list[Tensor] = []  # two of each strip in turn, (B, groups) each: here variance and mean
        self._merged: tuple[Tensor, Tensor] | None = None

    def add(self, slab: Tensor) -> None:
        """Takes a (B, C, ...) slab into account."""
        assert self._merged is None, "merged already"
        self.parts += self._of(slab)
        self.counts.append(slab[0].numel() // self.groups)

    def merge(self) -> tuple[Tensor, Tensor]:
        """The two statistics of the whole map, here variance and mean, once all strips were added."""
        if self._merged is None:
            if len(self.counts) == 1:
                self._merged = self.parts[0], self.parts[1]
            else:
                self._merged = self._of_many()
            self.parts.clear()
        return self._merged

    def merge_bands(self, counts: Sequence[int], parts: Sequence[Tensor], like: Tensor) -> None:
        """The statistics of the whole map where workers have gathered those of their bands: in float64, and in the
        workers' order, so that all of them have the same.

        Args:
            counts: values in a group, of each band.
            parts: what :meth:`merge` gave of each band, stacked, (2, B, groups), on the host.
            like: where they are to be, and in which dtype.
        """
        of_bands = [part.double() for part in parts]
        self.counts, self.parts = list(counts), [one for part in of_bands for one in part]
        first, second = self._of_many()
        self.parts.clear()
        self._merged = first.to(like), second.to(like)

    def _of(self, slab: Tensor) -> tuple[Tensor, Tensor]:
        return _of(slab, self.groups)

    def _of_many(self) -> tuple[Tensor, Tensor]:
        every = torch.stack(self.parts)
        shape = every.shape[1:]
        variances, means = every.view(len(self.counts), 2, -1).unbind(1)
        shares = self._shares(every)
        mean = means.T @ shares
        apart = means - mean
        variance = torch.addcmul(variances, apart, apart).T @ shares
        return variance.view(shape), mean.view(shape)

    def _shares(self, like: Tensor) -> Tensor:
        """Each strip's share of the whole, made on the device: as a rule all strips but the last are alike."""
        total = sum(self.counts)
        shares = torch.full((len(self.counts),), self.counts[0] / total, dtype=like.dtype, device=like.device)
        start = 0
        for count, run in groupby(self.counts):
            stop = start + len(list(run))
            if count != self.counts[0]:
                shares[start:stop].fill_(count / total)
            start = stop
        return shares

    def line(self, norm: GroupNorm, channels: int, dims: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Group norm as scale and shift per image and channel, (B, C, 1, ...)."""
        variance, mean = (part.unsqueeze(-1) for part in self.merge())
        return self._per_channel(norm, (variance + norm.eps).rsqrt(), mean, 1.0, channels, dims, dtype)

    def _per_channel(
        self, norm: GroupNorm, scale: Tensor, mean: Tensor, share: float, channels: int, dims: int, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """Scale and shift of each channel.

        Args:
            scale: one over the deviation.
            mean: the mean, once it is multiplied by ``share``.
        """
        if norm.weight is None:
            scale = scale.expand(-1, -1, channels // self.groups)
        else:
            scale = scale * norm.weight.view(self.groups, -1)
        if norm.bias is None:
            shift = mean * scale * -share
        else:
            shift = torch.addcmul(norm.bias.view(self.groups, -1), mean, scale, value=-share)
        shape = (len(mean), channels, *(1,) * (dims - 2))
        return scale.reshape(shape).to(dtype), shift.reshape(shape).to(dtype)


def _of(slab: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """Variance and mean of each group, (B, groups); float32, or float64 of float64 and on a CPU."""
    images, channels = slab.shape[:2]
    if slab.device.type == "cpu":
        # In 16 bits the kernel would round the statistics themselves.
        slab = slab.float() if slab.element_size() < 4 else slab
        # The statistics of the fused kernel take a tenth of var_mean's time on a CPU. With eps = 0 the third result
        # is one over the standard deviation.
        elements = slab[0, 0].numel()
        _, mean, inverse = torch.native_group_norm(
            slab.contiguous(), None, None, images, channels, elements, groups, 0.0
        )
        return inverse.double() ** -2, mean.double()
    # On cards var_mean reads each value once, wherever it lies, and writes nothing else.
    grouped = slab.unflatten(1, (groups, channels // groups))
    variance, mean = torch.var_mean(grouped, tuple(range(2, grouped.ndim)), correction=0)
    return variance, mean
