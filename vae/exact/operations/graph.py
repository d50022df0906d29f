"""The recorded computation: nodes that know which of their dims holds the rows of the picture."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import Tensor

_order = count()


@dataclass(frozen=True)
class Rows:
    """Where a map keeps the rows of the picture: ``shape[dim] == count * unit``, the row the outer part.

    A (B, C, H, W) map has ``Rows(2, H)``; flattened to (B, C, H * W) tokens it has ``Rows(2, H, unit=W)``.
    """

    dim: int
    count: int
    unit: int = 1


class Op:
    """What a node does with its sources. Works on slabs: all of a map but only some of its rows."""

    #: Neighbouring strips read some of the same rows of the first source.
    overlaps = False
    #: The result shares memory with the first source.
    is_view = False

    def needs(self, node: Node, source: int, start: int, stop: int) -> tuple[int, int]:
        """Rows of a source needed for rows [start, stop) of the node; may reach beyond the map where it pads."""
        return start, stop

    def lowest(self, node: Node, source: int, start: int) -> int:
        """The first row of a source that row ``start`` or any later one needs."""
        return self.needs(node, source, start, start + 1)[0]

    def run(self, node: Node, slabs: Sequence[Tensor], start: int, stop: int) -> Tensor:
        """Rows [start, stop) from the needed rows of each source, cut off at the map's borders."""
        raise NotImplementedError

    def in_place(self, slab: Tensor) -> Tensor | None:
        """The same on a slab that may be overwritten; None if it cannot be done in place."""
        return None

    def flops(self, node: Node) -> float:
        """For the whole map."""
        return float(math.prod(node.shape))

    def launches(self, node: Node) -> int:
        """Kernels for some rows."""
        return 1

    def temporaries(self, node: Node, start: int, stop: int) -> int:
        """Bytes of the tensors that :meth:`run` makes for rows [start, stop) and lets go, beyond slabs and result."""
        return 0

    def scratch(self, node: Node, rows: int) -> int:
        """Bytes that kernels may take for so many rows, beyond all tensors."""
        return 0

    def prepare(self, node: Node) -> None:
        """Makes what is kept from one strip to the next, before the first."""

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
        """Rows before ``row`` will not be read again in this pass, or never."""

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
        # Asked for thousands of times while a plan is looked for.
        self.row_elements = math.prod(self.shape) // rows.count
        self.row_bytes = self.row_elements * dtype.itemsize
        self.bytes = self.row_bytes * rows.count

    @property
    def is_leaf(self) -> bool:
        return isinstance(self.op, Leaf)

    def slab_shape(self, rows: int) -> tuple[int, ...]:
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
        return max(0, start), min(self.rows.count, stop)

    def needed(self, source: int, start: int, stop: int) -> tuple[int, int]:
        """Rows of a source that exist among those needed for rows [start, stop)."""
        return self.sources[source].clamp(*self.op.needs(self, source, start, stop))

    def become(self, leaf: Leaf) -> None:
        """From now on the map is there."""
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
