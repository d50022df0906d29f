"""Maps kept from one pass to a later one: as the strips that they were computed in."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from operator import itemgetter
from typing import Any

import torch

from ..operations.graph import Leaf, Node
from .kernels import Kernels

HALF_LIMIT = 65504.0


class StoreOverflow(Exception):
    """A value does not fit the float16 store."""


class RowStore(Leaf):
    """A map whose rows come from top to bottom and are given up in that order.

    Subclasses say where the rows lie. Slabs are tensors, or while a pass is planned slabs without data
    (:class:`..planning.counted.Ghost`).

    Args:
        node: the map.
        kernels: what is done with slabs.
        dtype: kept in; read back in the node's own.
    """

    #: Each strip stays a slab of its own, as it came.
    keeps_strips = True

    def __init__(self, node: Node, kernels: Kernels, dtype: torch.dtype) -> None:
        # Not the node itself, whose operation this will be.
        self.node = Node(self, (), node.shape, node.dtype, node.device, node.rows)
        self.kernels, self.kept = kernels, dtype
        self.highest: Any = None  # value that a narrower dtype has to hold
        self.parts: list[tuple[int, int, Any]] = []  # where strips stay as they come: first row, end, what holds them

    def append(self, start: int, slab: Any, own: bool) -> None:
        """Rows [start, ...) of the map; ``own``: the slab is exactly these rows, and nobody will write to it."""
        raise NotImplementedError

    def open(self, layout: Iterable[tuple[int, int]], slab: Callable[[int], Any]) -> None:
        """Takes the memory of all rows with nothing in it: for maps without data.

        Args:
            layout: first row and end of each slab.
            slab: makes one of so many rows.
        """
        raise NotImplementedError

    def rest(self) -> None:
        """The pass is over.

        Raises:
            StoreOverflow: a value was too large for float16. Asked once a pass, since the host waits for the answer.
        """
        highest, self.highest = self.highest, None
        if highest is not None and (value := self.kernels.number(highest)) > HALF_LIMIT:
            raise StoreOverflow(f"a value of {value:.3g} does not fit the float16 store")

    def free(self) -> None:
        """Gives all memory back."""
        raise NotImplementedError

    def first_behind(self, row: int) -> int:
        """The place of the first of the parts that ends behind a row: they come in order, and there may be many."""
        return bisect_right(self.parts, row, key=itemgetter(1))

    def read(self, start: int, stop: int) -> Any:
        pieces = list(self.pieces(start, stop))
        if len(pieces) == 1 and self.kept == self.node.dtype:
            return pieces[0][2]
        if len(pieces) == 1:
            return self.kernels.cast(pieces[0][2], self.node.dtype)
        out = self.kernels.empty(self.node, stop - start)
        self.kernels.share(len(pieces))
        for low, high, rows in pieces:
            self.kernels.copy(self.kernels.cut(self.node, out, low - start, high - low), rows)
        self.kernels.share(1)
        return out

    def to_keep(self, slab: Any, own: bool) -> Any:
        """A slab in the dtype kept, that holds nothing else."""
        if self.kept != self.node.dtype:
            self.look_at(slab)
            return self.kernels.cast(slab, self.kept)
        return slab if own and self.kernels.stands_alone(slab) else self.kernels.clone(slab)

    def look_at(self, slab: Any) -> None:
        """Remembers the largest value that has to fit."""
        if self.kept is torch.float16 and self.node.dtype is not torch.float16:
            self.highest = self.kernels.highest(slab, self.highest)


class Slabs(RowStore):
    """On the device: each strip stays where it was computed."""

    def append(self, start: int, slab: Any, own: bool) -> None:
        self.parts.append((start, start + rows_of(self.node, slab), self.to_keep(slab, own)))

    def open(self, layout: Iterable[tuple[int, int]], slab: Callable[[int], Any]) -> None:
        self.parts += [(first, stop, slab(stop - first)) for first, stop in layout]

    def pieces(self, start: int, stop: int) -> Iterator[tuple[int, int, Any]]:
        for first, end, slab in islice(self.parts, self.first_behind(start), None):
            if first >= stop:
                return
            low, high = max(first, start), min(end, stop)
            yield low, high, self.kernels.cut(self.node, slab, low - first, high - low)

    def done_below(self, row: int, for_good: bool) -> None:
        while for_good and self.parts and self.parts[0][1] <= row:
            del self.parts[0]

    def free(self) -> None:
        self.parts.clear()


class Parked(RowStore):
    """In host memory: each strip is sent there when it is computed, and fetched one ahead of its reader."""

    def __init__(self, node: Node, kernels: Kernels, dtype: torch.dtype, parking: Any) -> None:
        super().__init__(node, kernels, dtype)
        self.parking = parking
        self.leaving: Any = None  # on its way to host memory
        self.near: dict[int, Any] = {}  # by first row: on the device, or on its way

    def append(self, start: int, slab: Any, own: bool) -> None:
        kept = self.to_keep(slab, own)
        # The last strip left while this one was computed: it is hardly ever waited for.
        self.parking.left(self.leaving)
        self.leaving = self.parking.send(self.node, kept)
        self.parts.append((start, start + rows_of(self.node, slab), self.leaving))

    def open(self, layout: Iterable[tuple[int, int]], slab: Callable[[int], Any]) -> None:
        for first, stop in layout:
            ticket = self.parking.put(slab(stop - first))
            self.parking.left(ticket)
            self.parts.append((first, stop, ticket))

    def pieces(self, start: int, stop: int) -> Iterator[tuple[int, int, Any]]:
        for place in range(self.first_behind(start), len(self.parts)):
            first, end, ticket = self.parts[place]
            if first >= stop:
                return
            low, high = max(first, start), min(end, stop)
            arrival = self._near(first, ticket)
            if place + 1 < len(self.parts):
                following = self.parts[place + 1]
                self._near(following[0], following[2])
            yield low, high, self.kernels.cut(self.node, self.parking.arrived(arrival), low - first, high - low)

    def _near(self, first: int, ticket: Any) -> Any:
        if first not in self.near:
            self.near[first] = self.parking.fetch(ticket)
        return self.near[first]

    def done_below(self, row: int, for_good: bool) -> None:
        while self.parts and self.parts[0][1] <= row and for_good:
            first, _, ticket = self.parts.pop(0)
            self._let_go(first)
            self.parking.give_up(ticket)
        for first, end, _ in self.parts:
            if end <= row:
                self._let_go(first)

    def _let_go(self, first: int) -> None:
        if first in self.near:
            self.parking.arrived(self.near.pop(first))

    def rest(self) -> None:
        super().rest()
        self.parking.left(self.leaving)
        self.leaving = None
        for first in list(self.near):
            self._let_go(first)

    def free(self) -> None:
        self.highest = None
        self.rest()
        for _, _, ticket in self.parts:
            self.parking.give_up(ticket)
        self.parts.clear()


def rows_of(node: Node, slab: Any) -> int:
    """How many rows a slab has."""
    shape = getattr(slab, "shape", None)
    return int(slab.rows) if shape is None else int(shape[node.rows.dim]) // node.rows.unit
