"""A convolution as a library is asked for it: all by which it chooses a kernel, and with that what the kernel holds."""

from __future__ import annotations

from typing import NamedTuple

import torch

EIGHTS = 8  # channels come in such portions to tensor cores


class SlabConvolution(NamedTuple):
    """One call of a convolution on a slab that lies in the order of its dims.

    Attributes:
        dtype: of input, weight and result.
        x, weight: shapes, (B, C, ...) and (C', C / groups, ...).
        stride, padding, dilation: per spatial dim.
    """

    dtype: torch.dtype
    x: tuple[int, ...]
    weight: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1

    @property
    def out(self) -> tuple[int, ...]:
        """The result's shape."""
        spatial = (
            (size + 2 * pad - gap * (kernel - 1) - 1) // step + 1
            for size, kernel, step, pad, gap in zip(
                self.x[2:], self.weight[2:], self.stride, self.padding, self.dilation
            )
        )
        return (self.x[0], self.weight[0], *spatial)

    @property
    def is_pointwise(self) -> bool:
        """Whether its kernel sees one pixel."""
        return all(size == 1 for size in self.weight[2:])

    @property
    def bytes(self) -> int:
        """Of input, weight and result together, with channels rounded up as tensor cores want them."""
        return sum(map(_in_eights, (self.x, self.weight, self.out))) * self.dtype.itemsize


def _in_eights(shape: tuple[int, ...]) -> int:
    elements = -(-shape[1] // EIGHTS) * EIGHTS * shape[0]
    for size in shape[2:]:
        elements *= size
    return elements
