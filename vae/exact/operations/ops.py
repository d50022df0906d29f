"""Operations on slabs: row by row, windows over rows, changes of the number of rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .graph import Leaf, Node, Op


@dataclass(frozen=True)
class Source:
    """In recorded arguments, the place of a node's source."""

    index: int


def substitute(tree: Any, slabs: Sequence[Tensor]) -> Any:
    """Recorded arguments with the slabs in their places."""
    if isinstance(tree, Source):
        return slabs[tree.index]
    if isinstance(tree, (list, tuple)):
        return type(tree)(substitute(item, slabs) for item in tree)
    return tree


@dataclass
class Held(Leaf):
    """A tensor that exists."""

    tensor: Tensor
    dim: int
    unit: int = 1

    def read(self, start: int, stop: int) -> Tensor:
        return self.tensor.narrow(self.dim, start * self.unit, (stop - start) * self.unit)


@dataclass
class Filled(Leaf):
    """A map of one value, which need not exist."""

    shape: tuple[int, ...]
    value: float
    dtype: torch.dtype
    device: torch.device
    dim: int

    def read(self, start: int, stop: int) -> Tensor:
        shape = (*self.shape[: self.dim], stop - start, *self.shape[self.dim + 1 :])
        return torch.full((), self.value, dtype=self.dtype, device=self.device).expand(shape)


@dataclass
class RowByRow(Op):
    """A torch function whose rows come from the same rows of its sources."""

    function: Callable[..., Tensor]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    overwrite: Callable[[Tensor], Tensor] | None = None
    is_view: bool = False

    def run(self, node: Node, slabs: Sequence[Tensor], start: int, stop: int) -> Tensor:
        kwargs = {name: substitute(value, slabs) for name, value in self.kwargs.items()}
        return self.function(*substitute(self.args, slabs), **kwargs)

    def in_place(self, slab: Tensor) -> Tensor | None:
        return None if self.overwrite is None else self.overwrite(slab)


class Add(Op):
    """The sum of two maps of one shape."""

    def run(self, node: Node, slabs: Sequence[Tensor], start: int, stop: int) -> Tensor:
        return slabs[0] + slabs[1]


class Reshape(Op):
    """Other dims for the same elements, rows still together."""

    is_view = True

    def run(self, node: Node, slabs: Sequence[Tensor], start: int, stop: int) -> Tensor:
        return slabs[0].reshape(node.slab_shape(stop - start))


@dataclass
class Refine(Op):
    """Each row of the source is several: unit rows that lay together become rows of their own."""

    factor: int
    is_view = True

    def needs(self, node: Node, source: int, start: int, stop: int) -> tuple[int, int]:
        return start // self.factor, -(-stop // self.factor)

    def run(self, node: Node, slabs: Sequence[Tensor], start: int, stop: int) -> Tensor:
        return node.cut(slabs[0], start - start // self.factor * self.factor, stop - start)


@dataclass
class Coarsen(Op):
    """Several rows of the source are one."""

    factor: int
    is_view = True

    def needs(self, node: Node, source: int, start: int, stop: int) -> tuple[int, int]:
        return start * self.factor, stop * self.factor

    def run(self, node: Node, slabs: Sequence[Tensor], start: int, stop: int) -> Tensor:
        return slabs[0]


@dataclass
class Crop(Op):
    """The source without its first rows (and perhaps its last)."""

    first: int
    is_view = True

    def needs(self, node: Node, source: int, start: int, stop: int) -> tuple[int, int]:
        return start + self.first, stop + self.first

    def run(self, node: Node, slabs: Sequence[Tensor], start: int, stop: int) -> Tensor:
        return slabs[0]


@dataclass
class Finer(RowByRow):
    """A function that makes ``factor`` rows of each: nearest-neighbour upsampling, pixel shuffle."""

    factor: int = 2
    nearest: bool = False

    def needs(self, node: Node, source: int, start: int, stop: int) -> tuple[int, int]:
        return start // self.factor, -(-stop // self.factor)

    def run(self, node: Node, slabs: Sequence[Tensor], start: int, stop: int) -> Tensor:
        rows = super().run(node, slabs, start, stop)
        return node.cut(rows, start - start // self.factor * self.factor, stop - start)


@dataclass
class Coarser(RowByRow):
    """A function that makes one row of each ``factor``: pooling whose windows do not overlap, pixel unshuffle."""

    factor: int = 2

    def needs(self, node: Node, source: int, start: int, stop: int) -> tuple[int, int]:
        return start * self.factor, stop * self.factor


@dataclass
class Pad(Op):
    """``torch.nn.functional.pad`` of the last dims, rows among them.

    Attributes:
        pads: as the function takes them, (left, right, top, bottom, ...).
        mode: constant, replicate or reflect.
        value: for constant.
    """

    pads: tuple[int, ...]
    mode: str
    value: float | None

    def needs(self, node: Node, source: int, start: int, stop: int) -> tuple[int, int]:
        # At least one row: a strip inside the padding still repeats some of the map's.
        rows = self._rows_of(node, start, stop)
        return min(rows), max(rows) + 1

    def run(self, node: Node, slabs: Sequence[Tensor], start: int, stop: int) -> Tensor:
        rows = self._rows_of(node, start, stop)
        first, dim = min(rows), node.rows.dim
        if rows[0] == first and rows[-1] - rows[0] == len(rows) - 1:
            inside = slabs[0].narrow(dim, 0, len(rows))
        else:
            inside = slabs[0].index_select(dim, self._places(node, start, stop, slabs[0].device) - first)
        above, below = max(0, self.pads[2] - start), max(0, stop - self.pads[2] - node.sources[0].rows.count)
        if self.mode == "constant" and (above or below):
            inside = inside.clone()
            inside.narrow(dim, 0, min(above, len(rows))).fill_(self.value or 0.0)
            inside.narrow(dim, max(0, len(rows) - below), min(below, len(rows))).fill_(self.value or 0.0)
        beside = (*self.pads[:2], 0, 0, *self.pads[4:])
        return functional.pad(inside, beside, self.mode, self.value) if any(beside) else inside

    def lowest(self, node: Node, source: int, start: int) -> int:
        first = self.needs(node, source, start, start + 1)[0]
        if self.mode != "reflect":
            return first
        # The bottom reflects rows that were passed long ago, the top row 0 after others.
        return min(first if start >= self.pads[2] else 0, node.sources[0].rows.count - 1 - self.pads[3])

    def _rows_of(self, node: Node, start: int, stop: int) -> list[int]:
        """The source's row that each row of the result repeats."""
        count, rows = node.sources[0].rows.count, range(start - self.pads[2], stop - self.pads[2])
        if self.mode == "reflect":
            return [count - 1 - abs(count - 1 - abs(row)) for row in rows]
        return [min(max(row, 0), count - 1) for row in rows]

    def _places(self, node: Node, start: int, stop: int, device: torch.device) -> Tensor:
        """:meth:`_rows_of`, made on the device: a list of numbers from the host would be waited for."""
        last = node.sources[0].rows.count - 1
        rows = torch.arange(start - self.pads[2], stop - self.pads[2], device=device)
        return last - (last - rows.abs()).abs() if self.mode == "reflect" else rows.clamp_(0, last)

    @property
    def zeros(self) -> bool:
        """Nothing but rows and columns of zeros."""
        return self.mode == "constant" and not self.value and not any(self.pads[4:])

    def temporaries(self, node: Node, start: int, stop: int) -> int:
        return (stop - start) * node.sources[0].row_bytes


@dataclass
class Convolution(Op):
    """A convolution over rows and the dims beside them.

    Attributes:
        function: (x, weight, bias, stride, padding, dilation, groups) -> Tensor.
        stride, padding, dilation: per spatial dim, rows second to last; rows are padded by a :class:`Pad` before.
    """

    function: Callable[..., Tensor]
    weight: Tensor
    bias: Tensor | None
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @property
    def reach(self) -> int:
        """Rows that one row of the result sees."""
        return self.dilation[-2] * (self.weight.shape[-2] - 1) + 1

    @property
    def overlaps(self) -> bool:  # type: ignore[override]
        return self.reach > self.stride[-2]

    @property
    def is_pointwise(self) -> bool:
        return all(size == 1 for size in self.weight.shape[2:]) and all(step == 1 for step in self.stride)

    def needs(self, node: Node, source: int, start: int, stop: int) -> tuple[int, int]:
        step = self.stride[-2]
        return start * step, (stop - 1) * step + self.reach

    def run(self, node: Node, slabs: Sequence[Tensor], start: int, stop: int) -> Tensor:
        return self.function(slabs[0], self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)

    def flops(self, node: Node) -> float:
        return 2.0 * math.prod(node.shape) * math.prod(self.weight.shape[1:])

    def scratch(self, node: Node, rows: int) -> int:
        # CPU kernels reorder the input, the weights and the result into layouts of their own; GPU ones take a
        # workspace of about the same size.
        source = node.sources[0]
        first, last = self.needs(node, 0, 0, rows)
        weights = self.weight.numel() * self.weight.element_size()
        return (last - first) * source.row_bytes + rows * node.row_bytes + weights


def with_zero_rows(slab: Tensor, top: int, bottom: int) -> Tensor:
    """Zero rows before and behind a slab whose rows are its second to last dim; negative counts are none."""
    if top <= 0 and bottom <= 0:
        return slab
    return functional.pad(slab, (0, 0, max(0, top), max(0, bottom)))


@dataclass
class UpsampledConvolution(Op):
    """Nearest-neighbour doubling and a 3 x 3 convolution in one: four 2 x 2 convolutions of the small map.

    Where every pixel was doubled, the three taps of a row fall on two pixels only, which two depending on the
    parity of the row: taps that fall on the same pixel are added. 16 multiplications per pixel of the small map
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
        """Column parities that are convolved in one: all where launches count, one by one where memory's caches do."""
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
        # Per pixel four taps instead of nine.
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
        # The result's reordered copy; the rows it sees, cut out and reordered; its kernel.
        return 2 * (rows // 2 + 2) * source.row_bytes + rows * node.row_bytes // 4 + weights * 4 // 9

    def kept_bytes(self) -> int:
        return self.weight.numel() * self.weight.element_size() * 16 // 9


def _interleave(into: Tensor, result: Tensor, columns: tuple[int, ...]) -> None:
    """Results for some parities of columns, side by side as channels and each a column wider, to their columns."""
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
    first, second, third = weight.unbind(dim)
    pair = (first, second + third) if parity == 0 else (first + second, third)
    return torch.stack(pair, dim)


@dataclass
class GroupNorm(Op):
    """Group normalisation with statistics of the whole map: once those are known, a line per channel."""

    groups: int
    weight: Tensor | None
    bias: Tensor | None
    eps: float


@dataclass
class Attention(Op):
    """Scaled dot-product attention of (..., rows x unit, C) tokens: queries in strips, keys and values whole."""

    attend: Callable[..., Tensor]
    scale: float | None

    def needs(self, node: Node, source: int, start: int, stop: int) -> tuple[int, int]:
        return (start, stop) if source == 0 else (0, node.sources[source].rows.count)

    def run(self, node: Node, slabs: Sequence[Tensor], start: int, stop: int) -> Tensor:
        query, key, value = slabs
        # The fused kernels want the channels of a token side by side.
        return self.attend(query.contiguous(), key, value, self.scale)

    def flops(self, node: Node) -> float:
        return 4.0 * math.prod(node.shape) * node.sources[1].shape[-2]

    def temporaries(self, node: Node, start: int, stop: int) -> int:
        query, key, value = node.sources
        aligned = (stop - start) * query.row_bytes  # the query's channels put side by side
        beside = getattr(self.attend, "beside", None)
        if beside is None:
            return aligned
        tokens = (stop - start) * query.rows.unit
        return aligned + int(beside(node.device, node.dtype, tokens, key.shape[-2], query.shape[-1], value.shape[-1]))

    def scratch(self, node: Node, rows: int) -> int:
        return 2 * rows * node.row_bytes
