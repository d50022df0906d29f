"""Convolutions over rows and the dims beside them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from .convolution import SlabConvolution
from .graph import Node, Op


@dataclass
class Convolve(Op):
    """A convolution over rows and the dims beside them.

    Attributes:
        function: (x, weight, bias, stride, padding, dilation, groups) -> Tensor.
        stride, padding, dilation: per spatial dim; rows are padded before, by a :class:`.pad.Pad`.
        axis: which of the spatial dims is the rows'.
    """

    function: Callable[..., Tensor]
    weight: Tensor
    bias: Tensor | None
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    axis: int

    @property
    def reach(self) -> int:
        """Rows that one row of the result sees."""
        return self.dilation[self.axis] * (self.weight.shape[2 + self.axis] - 1) + 1

    @property
    def overlaps(self) -> bool:  # type: ignore[override]
        return self.reach > self.stride[self.axis]

    @property
    def is_pointwise(self) -> bool:  # type: ignore[override]
        return all(size == 1 for size in self.weight.shape[2:]) and all(step == 1 for step in self.stride)

    def needs(self, node: Node, source: int, start: int, stop: int) -> tuple[int, int]:
        step = self.stride[self.axis]
        return start * step, (stop - 1) * step + self.reach

    def run(self, node: Node, slabs: Sequence[Tensor], start: int, stop: int) -> Tensor:
        return self.function(slabs[0], self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)

    def flops(self, node: Node) -> float:
        return 2.0 * math.prod(node.shape) * math.prod(self.weight.shape[1:])

    def scratch(self, node: Node, rows: int) -> int:
        # The kernels copy the input, the weights and the result into layouts of their own.
        source = node.sources[0]
        first, last = self.needs(node, 0, 0, rows)
        weights = self.weight.numel() * self.weight.element_size()
        return (last - first) * source.row_bytes + rows * node.row_bytes + weights

    def convolutions(self, node: Node, rows: int) -> Iterator[SlabConvolution]:
        first, last = self.needs(node, 0, 0, rows)
        x, weight = node.sources[0].slab_shape(last - first), tuple(self.weight.shape)
        yield SlabConvolution(node.dtype, x, weight, self.stride, self.padding, self.dilation, self.groups)
