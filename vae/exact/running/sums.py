"""Group statistics of 16-bit maps on a card, by sums: its kernels widen each value as they read it."""

from __future__ import annotations

import torch
from torch import Tensor

from ..operations.graph import Node
from ..operations.whole import GroupNorm
from .moments import Moments


class Sums(Moments):
    """Sum, and root of the sum of squares, per image and group of channels, in float32.

    ``var_mean`` of 16 bits rounds its results to 16 bits; a copy in float32 and its statistics move 2.5 times the bytes
    that these two kernels read (PyTorch's reductions of 16 bits to float32 make none: ATen/native/ReduceOpsUtils.h).
    Where a mean is r times the deviation, the rounding of the sum of squares reaches the variance r^2 times as large.
    With a CPU's plain sums over groups of 7,680 values it cannot be seen beside the rounding to 16 bits up to r = 5,
    and is up to six times that rounding at r = 50; longer sums lose more. A card sums in a tree, which loses less.
    """

    def _of(self, slab: Tensor) -> tuple[Tensor, Tensor]:
        grouped = slab.unflatten(1, (self.groups, slab.shape[1] // self.groups))
        dims = tuple(range(2, grouped.ndim))
        root = torch.linalg.vector_norm(grouped, dim=dims, dtype=torch.float32)
        return root, torch.sum(grouped, dims, dtype=torch.float32)

    def _of_many(self) -> tuple[Tensor, Tensor]:
        every = torch.stack(self.parts)
        roots, sums = every.view(len(self.counts), 2, *every.shape[1:]).unbind(1)
        return torch.linalg.vector_norm(roots, dim=0), sums.sum(0)

    def line(self, norm: GroupNorm, channels: int, dims: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """As :meth:`Moments.line`, in as few kernels as can be: each takes longer to launch than to run."""
        root, total = (part.unsqueeze(-1) for part in self.merge())
        share = 1 / sum(self.counts)
        square = torch.addcmul(root.new_full((), norm.eps), root, root, value=share)
        # Rounding may make a constant's variance negative.
        scale = torch.addcmul(square, total, total, value=-share * share).clamp_min_(norm.eps).rsqrt_()
        return self._per_channel(norm, scale, total, share, channels, dims, dtype)


def statistics_of(node: Node, groups: int) -> Moments:
    """What gathers the statistics of a map."""
    return (Sums if node.device.type != "cpu" and node.dtype.itemsize < 4 else Moments)(groups)
