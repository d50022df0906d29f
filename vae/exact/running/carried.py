"""What a chunk of frames leaves for the next one, in host memory: piece by piece, as stored maps that are parked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..operations.graph import Node, Rows
from ..operations.leaves import Held
from .banded import here
from .kernels import Kernels
from .parking import Parking
from .stores import Parked, rows_of

# That a map is cut into, however tall the strips: what a chunk reads must not depend on how the last one was planned.
PIECES = 64


class Carried(Parked):
    """A map that outlives the chunk that computed it."""

    def __init__(self, node: Node, kernels: Kernels, dtype: torch.dtype, parking: Any) -> None:
        super().__init__(node, kernels, dtype, parking)
        self.height = -(-node.rows.count // PIECES)
        self.begun: Any = None  # a piece of which not all rows have come
        self.on_their_way: list[Any] = []

    @classmethod
    def opened(cls, tensor: Tensor, rows: Rows, device: torch.device, parking: Parking | None) -> Carried:
        """Of a tensor in host memory, as if a chunk on the device had left it.

        Args:
            rows: of the tensor.
            parking: None: pieces without data, for a plan.
        """
        node = Node(Held(tensor, rows.dim, rows.unit), (), tensor.shape, tensor.dtype, device, rows)
        made = cls(node, Kernels(device), tensor.dtype, parking)
        for first, stop in made._pieces(0, rows.count):
            ticket = parking and parking.put(node.cut(tensor, first, stop - first))
            made.parts.append((first, stop, ticket))
        return made

    def append(self, start: int, slab: Any, own: bool) -> None:
        self._left()
        for first, stop in self._pieces(start, start + rows_of(self.node, slab)):
            piece = self._whole_piece(first, stop, self.kernels.cut(self.node, slab, first - start, stop - first), own)
            if piece is not None:
                ticket = self.parking.send(self.node, piece)
                self.on_their_way.append(ticket)
                self.parts.append((stop - rows_of(self.node, piece), stop, ticket))

    def _whole_piece(self, first: int, stop: int, rows: Any, own: bool) -> Any:
        """Rows [first, stop) with those of their piece that came before; None as long as some are missing."""
        begin = first // self.height * self.height
        end = min(self.node.rows.count, begin + self.height)
        if (first, stop) == (begin, end):
            return self.to_keep(rows, own)
        if self.begun is None:
            self.begun = self.kernels.empty(self.node, end - begin)
        self.kernels.copy(self.kernels.cut(self.node, self.begun, first - begin, stop - first), rows)
        if stop < end:
            return None
        piece, self.begun = self.begun, None
        return piece

    def pieces(self, start: int, stop: int) -> Iterator[tuple[int, int, Any]]:
        ahead = stop + (stop - start) // self.kernels.strips  # as much again is fetched for the next strip
        for first, end, ticket in self.parts:
            if end > start and first < ahead:
                self._near(first, ticket)
        for first, end, ticket in self.parts:
            low, high = max(first, start), min(end, stop)
            if low < high:
                slab = self.parking.arrived(self._near(first, ticket))
                yield low, high, self.kernels.cut(self.node, slab, low - first, high - low)

    def rest(self) -> None:
        self._left()
        super().rest()

    def _left(self) -> None:
        while self.on_their_way:
            self.parking.left(self.on_their_way.pop())

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Rows [start, stop) cut at multiples of the height."""
        while start < stop:
            end = min(stop, (start // self.height + 1) * self.height)
            yield start, end
            start = end

    @property
    def layout(self) -> tuple[tuple[int, int], ...]:
        """First row and end of each piece."""
        return tuple((first, stop) for first, stop, _ in self.parts)

    def lay(self, layout: tuple[tuple[int, int], ...]) -> None:
        """Pieces without data, as a plan leaves them."""
        self.parts = [(first, stop, None) for first, stop in layout]

    def gathered(self) -> Tensor:
        """The whole map in host memory, once it is there."""
        none = torch.empty(self.node.slab_shape(0), dtype=self.node.dtype)  # of a band without rows
        return torch.cat([none, *(self.parking.held(ticket) for _, _, ticket in self.parts)], self.node.rows.dim)


def carried(node: Node) -> Carried | None:
    """Where a map, or this worker's band of it, lies that a chunk left in host memory; None for any other."""
    found = here(node)
    return found if isinstance(found, Carried) else None
