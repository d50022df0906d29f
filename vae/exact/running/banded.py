"""A map of which a worker holds its band, and for a pass the rows beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..cutting.share import Share
from ..operations.graph import Leaf, Node, Op, Rows

#: Brings what another worker gave to a device; may be called again.
Gift = Callable[[torch.device], list[Any]]


@dataclass
class Parts:
    """The bands of all workers, for what wants all of a map: as gifts, of which one at a time need be here."""

    gifts: Sequence[Gift]


class Banded(Leaf):
    """One worker's band.

    Args:
        node: the whole map.
        held: the band: its first row is row 0.
        kernels: what is done with slabs.

    Attributes:
        beside: rows of other workers, as long as a pass reads them: first row, end, slab.
        parts: all workers' bands, as long as a pass wants the whole map.
    """

    def __init__(self, node: Node, held: Leaf, share: Share, kernels: Any) -> None:
        # Not the node itself, whose operation this will be: what outlives it would be held by it.
        self.node = Node(Leaf(), (), node.shape, node.dtype, node.device, node.rows)
        self.held, self.kernels = held, kernels
        self.first, self.stop = share.of_node(node)
        self.beside: list[tuple[int, int, Any]] = []
        self.parts: Parts | None = None

    def read(self, start: int, stop: int) -> Any:
        if self.parts is not None and (start, stop) == (0, self.node.rows.count):
            return self.parts
        if self.first <= start and stop <= self.stop:
            return self.held.read(start - self.first, stop - self.first)
        out = self.kernels.empty(self.node, stop - start)
        for low, high, rows in self.pieces(start, stop):
            self.kernels.copy(self.kernels.cut(self.node, out, low - start, high - low), rows)
        return out

    def pieces(self, start: int, stop: int) -> Iterator[tuple[int, int, Any]]:
        found = [
            (low, high, self.kernels.cut(self.node, slab, low - first, high - low))
            for first, end, slab in self.beside
            if (low := max(first, start)) < (high := min(end, stop))
        ]
        low, high = max(start, self.first), min(stop, self.stop)
        if low < high:
            inside = self.held.pieces(low - self.first, high - self.first)
            found += [(first + self.first, end + self.first, slab) for first, end, slab in inside]
        found.sort(key=lambda piece: piece[0])
        assert sum(end - first for first, end, _ in found) == stop - start, "rows that no worker gave"
        yield from found

    def done_below(self, row: int, for_good: bool) -> None:
        if row > self.first:
            self.held.done_below(min(row, self.stop) - self.first, for_good)

    def rest(self) -> None:
        self.beside.clear()
        self.parts = None
        self.held.rest()

    def free(self) -> None:
        self.beside.clear()
        self.parts = None
        self.held.free()


def own_rows(node: Node, share: Share) -> Node:
    """A worker's band of a map as a map of its own; of an empty band one row, which never comes."""
    height = max(1, share.height(node))
    rows = Rows(node.rows.dim, height, node.rows.unit)
    return Node(node.op, (), node.slab_shape(height), node.dtype, node.device, rows)


def banded(node: Node) -> Banded | None:
    """A map of which this worker holds its band; None for any other."""
    return node.op if isinstance(node.op, Banded) else None


def here(node: Node) -> Op:
    """Where this worker's rows of a map lie: all of them, or its band."""
    return node.op.held if isinstance(node.op, Banded) else node.op
