"""A convolution of a map that was doubled, computed from the map before doubling."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from .convolution import SlabConvolution
from .graph import Node, Op


def with_zero_rows(slab: Tensor, top: int, bottom: int) -> Tensor:
    """A slab with rows of zeros above and below, its rows being the second to last dim; negative counts are none."""
    if top <= 0 and bottom <= 0:
        return slab
    return functional.pad(slab, (0, 0, max(0, top), max(0, bottom)))


@dataclass
class ConvolveUpsampled(Op):
    """Nearest-neighbour doubling and a 3 x 3 convolution in one: four 2 x 2 convolutions of the map before doubling.

    Where every pixel was doubled, the three taps of a kernel's row fall on two pixels only. Which two depends on the
    parity of the row, and taps that fall on the same pixel are added: 16 multiplications per pixel of the small map
    instead of 36.
    """

    weight: Tensor
    bias: Tensor | None
    overlaps = True
    _folded: dict[tuple[int, tuple[int, ...]], tuple[Tensor, Tensor | None]] = field(default_factory=dict)

    def needs(self, node: Node, source: int, start: int, stop: int) -> tuple[int, int]:
        return (start - 1) // 2, stop // 2 + 1

    def run(self, node: Node, slabs: Sequence[Tensor], start: int, stop: int) -> Tensor:
        first, last = self.needs(node, 0, start, stop)
        x = with_zero_rows(slabs[0], -first, last - node.sources[0].rows.count)
        out = torch.empty(node.slab_shape(stop - start), dtype=x.dtype, device=x.device)
        for parity in (0, 1):
            low, high = (start - parity + 1) // 2, (stop - parity + 1) // 2
            if low == high:
                continue
            rows = x.narrow(-2, low - 1 + parity - first, high - low + 1)
            into = out[:, :, 2 * low + parity - start : stop - start : 2]
            for columns in self.together(node):
                taps, bias = self.folded(parity, columns)
                _interleave(into, functional.conv2d(rows, taps, bias, padding=(0, 1)), columns)
        return out

    @staticmethod
    def together(node: Node) -> tuple[tuple[int, ...], ...]:
        """Parities of columns that one convolution makes: both where launches are dear, one where caches are small."""
        return ((0,), (1,)) if node.device.type == "cpu" else ((0, 1),)

    def prepare(self, node: Node) -> None:
        for parity in (0, 1):
            for columns in self.together(node):
                self.folded(parity, columns)

    def folded(self, parity: int, columns: tuple[int, ...]) -> tuple[Tensor, Tensor | None]:
        """The 2 x 2 kernels and biases for one parity of rows and some of columns, kept until :meth:`release`."""
        key = parity, columns
        if key not in self._folded:
            halves = _fold(self.weight, -2, parity)
            kernels = [_fold(halves, -1, column) for column in columns]
            bias = self.bias if self.bias is None or len(columns) == 1 else torch.cat([self.bias] * len(columns))
            self._folded[key] = (kernels[0].contiguous() if len(columns) == 1 else torch.cat(kernels)), bias
        return self._folded[key]

    def release(self) -> None:
        self._folded.clear()

    def flops(self, node: Node) -> float:
        # Four taps per pixel instead of nine.
        return 2.0 * math.prod(node.shape) * 4 * self.weight.shape[1]

    def launches(self, node: Node) -> int:
        return sum(4 for _ in self.together(node))

    def temporaries(self, node: Node, start: int, stop: int) -> int:
        source = node.sources[0]
        of_row = node.row_bytes // node.shape[-1] * (node.shape[-1] // 2 + 1) * len(self.together(node)[0])
        first, last = self.needs(node, 0, start, stop)
        padded = first < 0 or last > source.rows.count
        return -(-(stop - start) // 2) * of_row + padded * (last - first) * source.row_bytes

    def scratch(self, node: Node, rows: int) -> int:
        source = node.sources[0]
        weights = self.weight.numel() * self.weight.element_size()
        # Copies in the kernels' layout: of the result, of the rows it sees and of its weights.
        return 2 * (rows // 2 + 2) * source.row_bytes + rows * node.row_bytes // 4 + weights * 4 // 9

    def convolutions(self, node: Node, rows: int) -> Iterator[SlabConvolution]:
        source = node.sources[0]
        for columns in self.together(node):
            weight = (len(columns) * self.weight.shape[0], self.weight.shape[1], 2, 2)
            # Of the rows every other one each, which are as many or one more.
            for results in {-(-rows // 2), rows // 2} - {0}:
                x = source.slab_shape(results + 1)
                yield SlabConvolution(node.dtype, x, weight, (1, 1), (0, 1), (1, 1))

    def kept_bytes(self) -> int:
        return self.weight.numel() * self.weight.element_size() * 16 // 9


def _interleave(into: Tensor, result: Tensor, columns: tuple[int, ...]) -> None:
    """Puts results for some parities of columns into their columns.

    They come side by side as channels, each a column wider than its half of ``into``.
    """
    images, channels, rows, width = into.shape
    half = width // 2
    if len(columns) == 1:
        into[..., columns[0] :: 2].copy_(result[..., columns[0] : columns[0] + half])
        return
    of_image, of_channel, of_row, of_column = result.stride()
    shape = (images, channels, rows, half, 2)
    strides = (of_image, of_channel, of_row, of_column, channels * of_channel + of_column)
    into.unflatten(-1, (half, 2)).copy_(result.as_strided(shape, strides, result.storage_offset()))


def _fold(weight: Tensor, dim: int, parity: int) -> Tensor:
    """Three taps along a dim added up to the two that see the small map."""
    first, second, third = weight.unbind(dim)
    pair = (first, second + third) if parity == 0 else (first + second, third)
    return torch.stack(pair, dim)
