"""The recorded computation: nodes that know which of their dims holds the rows of the picture."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

import torch
from torch import Tensor

from .convolution import SlabConvolution

_order = count()


@dataclass(frozen=True)
class Rows:
    """Where a map keeps the rows of the picture: ``shape[dim] == count * unit``, the row the outer part.

    A (B, C, H, W) map has ``Rows(2, H)``; flattened to (B, C, H * W) tokens it has ``Rows(2, H, unit=W)``.
    """

    dim: int
    count: int
    unit: int = 1


@dataclass(frozen=True)
class Need:
    """What must be known of a whole map before an operation can compute its first row.

    Attributes:
        purpose: "whole", or :func:`.purposes.moments_of` for the statistics of its groups of channels.
    """

    node: Node
    purpose: str


class Strips(Protocol):
    """What an operation asks of the pass that runs it: :class:`..running.stream.Stream`."""

    kernels: Any  # what is done with slabs

    def is_read(self, node: Node) -> bool:
        """Whether the pass reads a map that was stored before, rather than computing it."""

    def rows(self, node: Node, start: int, stop: int) -> tuple[Any, bool]:
        """Rows [start, stop) of a node, and whether they may be overwritten."""

    def pieces(self, node: Node, start: int, stop: int) -> Iterator[tuple[int, int, Any]]:
        """The same rows as they lie, in one or more pieces: (first row, end, slab)."""

    def write(self, node: Node, out: Any, start: int, stop: int) -> None:
        """The same rows into a given slab, without another slab where the operation allows it."""

    def line(self, node: Node, norm: Any) -> Any:
        """What a norm does to each channel, from the statistics of its whole map."""


class Op:
    """What a node does with its sources. It works on slabs: all of a map but only some of its rows.

    A new operation is a subclass and a rule that records it: how it computes, what it needs and what it takes is all
    said here.
    """

    #: Neighbouring strips read some of the same rows of the first source.
    overlaps = False
    #: The result shares memory with the first source.
    is_view = False
    #: As a view it changes the order of the dims, so that the elements lie in another order than the result's.
    turns = False
    #: As a view it needs elements in the order of their dims; otherwise it copies them.
    needs_order = False
    #: :meth:`in_place` gives a result.
    works_in_place = False
    #: It only adds borders: no measure of how much a pass computes.
    is_padding = False
    #: A convolution that sees one pixel for each of its own.
    is_pointwise = False
    #: The whole map is there as a tensor.
    is_tensor = False

    # ------------------------------------------------------------ what it needs

    def needs(self, node: Node, source: int, start: int, stop: int) -> tuple[int, int]:
        """Rows of a source needed for rows [start, stop) of the node; may reach beyond the map where it pads."""
        return start, stop

    def lowest(self, node: Node, source: int, start: int) -> int:
        """The first row of a source that row ``start`` or any later one needs."""
        return self.needs(node, source, start, start + 1)[0]

    def whole_needs(self, node: Node) -> Iterator[Need]:
        """What must be known of whole maps first."""
        return iter(())

    def streamed(self, node: Node) -> Sequence[Node]:
        """The sources that run through strips with it; others are there whole."""
        return node.sources

    # ------------------------------------------------------------ how it computes

    def run(self, node: Node, slabs: Sequence[Tensor], start: int, stop: int) -> Tensor:
        """Rows [start, stop) from the needed rows of each source, cut off at the map's borders."""
        raise NotImplementedError

    def in_place(self, slab: Tensor) -> Tensor | None:
        """The same on a slab that may be overwritten; None if it cannot be done in place."""
        return None

    def compute(self, node: Node, strips: Strips, start: int, stop: int) -> tuple[Any, bool]:
        """Rows [start, stop) in a strip, and whether they may be overwritten."""
        slabs, owned = [], False
        for index, source in enumerate(node.sources):
            slab, own = strips.rows(source, *node.needed(index, start, stop))
            slabs.append(slab)
            owned = own if index == 0 else owned
        if owned:
            overwritten = strips.kernels.in_place(self, node, slabs[0])
            if overwritten is not None:
                return overwritten, True
        out = strips.kernels.run(self, node, slabs, start, stop)
        return out, owned if self.is_view else True

    def fresh(self, node: Node, strips: Strips, start: int, stop: int) -> Any:
        """The same in memory of its own, contiguous."""
        slab, owned = self.compute(node, strips, start, stop)
        return slab if owned and strips.kernels.stands_alone(slab) else strips.kernels.clone(slab)

    def write(self, node: Node, strips: Strips, out: Any, start: int, stop: int) -> None:
        """The same into a given slab."""
        strips.kernels.copy(out, self.compute(node, strips, start, stop)[0])

    def whole(self, node: Node) -> Tensor | None:
        """The whole map, where it is there or can be made at once."""
        return None

    # ------------------------------------------------------------ what it takes

    def flops(self, node: Node) -> float:
        """Operations on numbers, for the whole map."""
        return float(math.prod(node.shape))

    def launches(self, node: Node) -> int:
        """Kernels for some rows."""
        return 1

    def temporaries(self, node: Node, start: int, stop: int) -> int:
        """Bytes of the tensors that :meth:`run` makes for rows [start, stop) and lets go, beyond slabs and result."""
        return 0

    def scratch(self, node: Node, rows: int) -> int:
        """Bytes that a CPU's kernels may take for so many rows, beyond all tensors."""
        return 0

    def convolutions(self, node: Node, rows: int) -> Iterator[SlabConvolution]:
        """The convolutions that so many rows call for, one after the other."""
        return iter(())

    def prepare(self, node: Node) -> None:
        """Makes what is kept from one strip to the next, before the first strip."""

    def kept_bytes(self) -> int:
        """Bytes kept from one strip to the next, until :meth:`release`."""
        return 0

    def release(self) -> None:
        """Drops what was kept from one strip to the next."""


class Leaf(Op):
    """A map that exists: a tensor, or a store of rows."""

    def read(self, start: int, stop: int) -> Tensor:
        """Rows [start, stop); may share memory."""
        raise NotImplementedError

    def pieces(self, start: int, stop: int) -> Iterator[tuple[int, int, Any]]:
        """The same rows as they lie, in one or more pieces: (first row, end, slab)."""
        yield start, stop, self.read(start, stop)

    def done_below(self, row: int, for_good: bool) -> None:
        """Rows before ``row`` will not be read again in this pass, or (``for_good``) never."""

    def rest(self) -> None:
        """The pass that wrote or read it is over."""

    def free(self) -> None:
        """Nobody reads it any more."""

    def flops(self, node: Node) -> float:
        return 0.0


class Node:
    """One map of the recorded computation.

    Attributes:
        op: how it is computed; replaced by a leaf once it is stored.
        sources: what it is computed from.
        shape, dtype, device: of the whole map.
        rows: where its rows are.
        row_elements, row_bytes, bytes: of a row, and of the whole map.
        order: nodes are numbered as they are recorded.
    """

    __slots__ = (
        "__weakref__",
        "bytes",
        "device",
        "dtype",
        "op",
        "order",
        "row_bytes",
        "row_elements",
        "rows",
        "shape",
        "sources",
    )

    def __init__(
        self,
        op: Op,
        sources: Sequence[Node],
        shape: Sequence[int],
        dtype: torch.dtype,
        device: torch.device,
        rows: Rows,
    ) -> None:
        self.op = op
        self.sources = tuple(sources)
        self.shape = tuple(shape)
        self.dtype = dtype
        self.device = device
        self.rows = rows
        self.order = next(_order)
        # Read thousands of times while a plan is searched for.
        self.row_elements = math.prod(self.shape) // rows.count
        self.row_bytes = self.row_elements * dtype.itemsize
        self.bytes = self.row_bytes * rows.count

    @property
    def is_leaf(self) -> bool:
        """Whether the map exists."""
        return isinstance(self.op, Leaf)

    @property
    def leaf(self) -> Leaf:
        """The map, which exists."""
        assert isinstance(self.op, Leaf)
        return self.op

    def slab_shape(self, rows: int) -> tuple[int, ...]:
        """The shape of some of its rows."""
        dim = self.rows.dim
        return (*self.shape[:dim], rows * self.rows.unit, *self.shape[dim + 1 :])

    def empty(self, rows: int) -> Tensor:
        """An uninitialised slab."""
        return torch.empty(self.slab_shape(rows), dtype=self.dtype, device=self.device)

    def cut(self, slab: Tensor, start: int, rows: int) -> Tensor:
        """A view of some rows of a slab, counted from the slab's first."""
        unit = self.rows.unit
        return slab.narrow(self.rows.dim, start * unit, rows * unit)

    def clamp(self, start: int, stop: int) -> tuple[int, int]:
        """Rows [start, stop) as far as the map has them."""
        return max(0, start), min(self.rows.count, stop)

    def needed(self, source: int, start: int, stop: int) -> tuple[int, int]:
        """Rows of a source needed for rows [start, stop), as far as the source has them."""
        return self.sources[source].clamp(*self.op.needs(self, source, start, stop))

    def become(self, leaf: Leaf) -> None:
        """From now on the map exists: it is read, and no longer computed."""
        self.op = leaf
        self.sources = ()


def ancestors(roots: Iterable[Node]) -> list[Node]:
    """All nodes the roots are computed from, themselves included, in the order of recording."""
    seen: dict[Node, Any] = {}
    pending = list(roots)
    while pending:
        node = pending.pop()
        if node not in seen:
            seen[node] = None
            pending.extend(node.sources)
    return sorted(seen, key=lambda node: node.order)
