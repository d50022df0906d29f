"""Counts what a pass takes, without data: bytes alive, kernels, seconds.

The pass's own code runs on :class:`Ghost` slabs, which have a size, an owner and an end, as tensors have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..operations.graph import Node, Op
from ..operations.whole import GroupNorm
from ..running.allocator import GRAIN, even
from ..running.kernels import Kernels
from .device import CASTS_INSIDE, Figures, tiles_of

# Kernels that make a norm's line of one strip's statistics, and more for those of several; and of sums.
OF_ONE, OF_MANY = 4, 7
OF_ONE_SUM, OF_MANY_SUMS = 7, 3
FOLDING = 7  # kernels per parity of rows


class Meter:
    """What is alive, what was most, and what it took.

    Attributes:
        strips: for how many strips the one that runs stands; while it is not one, no peak is taken.
        launches, seconds: of all kernels, the seconds without the host's.
        sent, fetched: bytes to and from host memory.
        stored: of what is alive, maps in pages, whose bytes are known.
        host, host_peak: bytes there, now and at most.
    """

    __slots__ = (
        "fetched", "figures", "host", "host_peak", "launches", "live", "peak", "seconds", "sent", "stored", "strips",
    )  # fmt: skip

    def __init__(self, figures: Figures) -> None:
        self.figures = figures
        self.live = self.stored = self.peak = self.launches = self.sent = self.fetched = self.host = self.host_peak = 0
        self.seconds = 0.0
        self.strips = 1

    def take(self, size: int) -> None:
        self.live += size
        self.passing(0)

    def passing(self, size: int) -> None:
        """Bytes that are there for a moment."""
        if self.strips > 1:
            return
        figures, of_strips = self.figures, self.live + size - self.stored
        level = self.stored + int(of_strips * figures.margin) + figures.least_margin
        if level > self.peak:
            self.peak = level


class Block:
    """Memory with an owner: gone with the last slab in it."""

    __slots__ = ("meter", "size")

    def __init__(self, meter: Meter, size: int) -> None:
        self.meter, self.size = meter, meter.figures.block(size)
        meter.take(self.size)

    def __del__(self) -> None:
        self.meter.live -= self.size


class Page(Block):
    """Of a stored map."""

    __slots__ = ()

    def __init__(self, meter: Meter, size: int) -> None:
        meter.stored += meter.figures.block(size)
        super().__init__(meter, size)

    def __del__(self) -> None:
        self.meter.stored -= self.size
        super().__del__()


class Ghost:
    """A slab without data.

    Attributes:
        block: its memory; None: it belongs to somebody who counts for himself.
        size: bytes.
        rows: of the node that it is of.
        turned: its dims lie in another order than its elements.
        alone: it is all that its memory holds.
    """

    __slots__ = ("alone", "block", "rows", "size", "turned")

    def __init__(self, block: Block | None, size: int, rows: int, turned: bool = False, alone: bool = False) -> None:
        self.block, self.size, self.rows, self.turned, self.alone = block, size, rows, turned, alone


class Counted(Kernels):
    """On ghosts."""

    def __init__(self, device: torch.device, figures: Figures, several: bool = True) -> None:
        super().__init__(device)
        self.figures, self.meter = figures, Meter(figures)
        self.several = several  # strips, which statistics are merged over
        self.kept: dict[int, Block] = {}
        self.pieces = 1

    def _kernel(
        self,
        moved: float,
        flops: float = 0.0,
        launches: int = 1,
        dtype: torch.dtype = torch.float32,
        tiles: float = 0.0,
    ) -> None:
        meter, figures = self.meter, self.figures
        if meter.strips > 1:
            launches *= (self.pieces + meter.strips - 1) // self.pieces
        meter.launches += launches
        each = max(1, launches)
        meter.seconds += each * figures.seconds(flops / each, moved / each, dtype, tiles)

    def _ghost(self, size: int, rows: int) -> Ghost:
        return Ghost(Block(self.meter, size), size, rows, alone=True)

    def elsewhere(self, node: Node, rows: int) -> Ghost:
        """A part of a tensor that is counted by its owner."""
        return Ghost(None, node.row_bytes * rows, rows)

    # ------------------------------------------------------------ slabs

    def empty(self, node: Node, rows: int) -> Ghost:
        size = node.row_bytes * rows
        asked = even(size, self.device)
        return Ghost(Block(self.meter, asked), size, rows, alone=asked == size)

    def memory(self, size: int) -> Ghost:
        return Ghost(Page(self.meter, size), size, 0)

    def outside(self, size: int) -> Ghost:
        self.meter.host += size
        self.meter.host_peak = max(self.meter.host_peak, self.meter.host)
        return Ghost(None, size, 0)

    def size_of(self, memory: Ghost) -> int:
        return memory.size

    def slab(self, size: int, rows: int) -> Ghost:
        """One that is there."""
        return self._ghost(size, rows)

    def shaped(self, node: Node, memory: Ghost, rows: int, dtype: torch.dtype) -> Ghost:
        return Ghost(memory.block, node.row_elements * rows * dtype.itemsize, rows)

    def cut(self, node: Node, slab: Ghost, start: int, rows: int) -> Ghost:
        if rows == slab.rows:
            return slab
        return Ghost(slab.block, slab.size * rows // slab.rows, rows, slab.turned)

    def columns(self, node: Node, slab: Ghost, first: int, count: int) -> Ghost:
        if count == node.shape[-1]:
            return slab
        return Ghost(slab.block, slab.size * count // node.shape[-1], slab.rows, slab.turned)

    def stands_alone(self, slab: Ghost) -> bool:
        return slab.block is not None and slab.alone and not slab.turned

    # ------------------------------------------------------------ work

    def copy(self, into: Ghost, slab: Ghost) -> None:
        self._kernel(into.size + slab.size)

    def clone(self, slab: Ghost) -> Ghost:
        self._kernel(2 * slab.size)
        return self._ghost(slab.size, slab.rows)

    def view(self, slab: Ghost) -> Ghost:
        if self.meter.strips == 1 or slab.block is None:
            return slab
        # What the last of the strips would hold.
        return Ghost(Block(self.meter, slab.block.size // self.meter.strips + slab.size), slab.size, slab.rows)

    def cast(self, slab: Ghost, dtype: torch.dtype) -> Ghost:
        size = slab.size // 2 if dtype.itemsize == 2 else slab.size * 2
        self._kernel(slab.size + size)
        return self._ghost(size, slab.rows)

    def highest(self, slab: Ghost, before: Any) -> None:
        self._kernel(slab.size)
        self._kernel(0)

    def zero(self, slab: Ghost) -> None:
        self._kernel(slab.size)

    def add(self, into: Ghost, slab: Ghost) -> None:
        self._kernel(2 * into.size + slab.size)

    def sum(self, out: Ghost, first: Ghost, second: Ghost) -> None:
        self._kernel(out.size + first.size + second.size)

    def run(self, op: Op, node: Node, slabs: Sequence[Ghost], start: int, stop: int) -> Ghost:
        rows = stop - start
        size = node.row_bytes * rows
        if op.is_view:
            return self._view(op, slabs[0], size, rows)
        inside = op.temporaries(node, start, stop)
        held = Block(self.meter, inside) if inside else None
        out = self._ghost(size, rows)
        scratch = int(op.scratch(node, rows) * self.figures.scratch)
        if scratch:
            self.meter.passing(scratch)
        moved = size + sum(slab.size for slab in slabs) + 2 * inside
        flops = op.flops(node) * rows / node.rows.count
        results = size // node.dtype.itemsize // self.meter.strips
        tiles = tiles_of(results, node.shape[1]) if flops > moved else 0.0
        self._kernel(moved, flops, op.launches(node), node.dtype, tiles)
        del held
        return out

    def _view(self, op: Op, slab: Ghost, size: int, rows: int) -> Ghost:
        if slab.turned and op.needs_order:
            self._kernel(2 * size)
            return self._ghost(size, rows)
        return Ghost(slab.block, size, rows, slab.turned != op.turns, slab.alone and size == slab.size)

    def in_place(self, op: Op, node: Node, slab: Ghost) -> Ghost | None:
        if not op.works_in_place:
            return None
        self._kernel(2 * slab.size)
        return slab

    def line(self, node: Node, norm: GroupNorm, moments: Any) -> None:
        """Small: only the kernels count."""
        strips, self.meter.strips = self.meter.strips, 1
        is_sum = self.device.type != "cpu" and node.dtype.itemsize < 4
        one, many = (OF_ONE_SUM, OF_MANY_SUMS) if is_sum else (OF_ONE, OF_MANY)
        self._kernel(0, 0, one + many * self.several)
        self.meter.strips = strips

    def normalise(self, node: Node, out: Ghost, slab: Ghost, line: Any) -> None:
        if node.dtype.itemsize < 4 and self.device.type not in CASTS_INSIDE:
            self.meter.passing(4 * out.size)  # the slab in float32, and the result
        self._kernel(out.size + slab.size)

    def statistics(self, node: Node, slab: Ghost) -> list[Block]:
        """What :meth:`Moments.add` takes, and what it keeps: two small tensors a strip."""
        half = node.dtype.itemsize < 4
        wide = slab.size * 2 if half else slab.size
        if self.device.type == "cpu":
            self.meter.passing(wide * (2 if half else 1))
            self._kernel(wide + slab.size)
        else:
            if half and self.device.type not in CASTS_INSIDE:
                self.meter.passing(wide)
            for _ in range(1 + half):
                self._kernel(slab.size)
        strips = -(-self.meter.strips // self.pieces)
        return [Block(self.meter, GRAIN * strips), Block(self.meter, GRAIN * strips)]

    def begin(self, op: Op, node: Node) -> None:
        size = op.kept_bytes()
        if size:
            self.meter.passing(size * 15 // 8)  # with the sums and stacks that it is made of
            self.kept[id(op)] = Block(self.meter, size)
            self._kernel(3 * size, 0, 2 * FOLDING)

    def share(self, pieces: int) -> None:
        self.pieces = pieces

    def end(self, op: Op) -> None:
        self.kept.pop(id(op), None)


class Sizes:
    """Statistics of a map, as far as they take memory."""

    def __init__(self, kernels: Counted, node: Node) -> None:
        self.kernels, self.node = kernels, node
        self.kept: list[Block] = []

    def add(self, slab: Ghost) -> None:
        self.kept += self.kernels.statistics(self.node, slab)


class There:
    """In a pass without data, a leaf that exists whole."""

    def __init__(self, kernels: Counted, node: Node) -> None:
        self.kernels, self.node = kernels, node

    def read(self, start: int, stop: int) -> Ghost:
        return self.kernels.elsewhere(self.node, stop - start)

    def pieces(self, start: int, stop: int) -> list[tuple[int, int, Ghost]]:
        return [(start, stop, self.read(start, stop))]

    def done_below(self, row: int, for_good: bool) -> None:
        """Others count it."""

    def rest(self) -> None:
        """Others count it."""


class CountedTicket:
    """A slab in host memory, as far as it takes memory."""

    __slots__ = ("rows", "size", "slab")

    def __init__(self, slab: Ghost) -> None:
        self.slab: Ghost | None = slab
        self.size, self.rows = slab.size, slab.rows


class CountedParking:
    """:class:`..running.parking.Parking` of ghosts."""

    def __init__(self, kernels: Counted) -> None:
        self.kernels = kernels

    def send(self, node: Node, slab: Ghost) -> CountedTicket:
        self.kernels.meter.sent += slab.size
        return self.put(slab)

    def put(self, slab: Ghost) -> CountedTicket:
        """One that is there already."""
        meter = self.kernels.meter
        meter.host += slab.size
        meter.host_peak = max(meter.host_peak, meter.host)
        return CountedTicket(slab)

    def left(self, ticket: CountedTicket | None) -> None:
        if ticket is not None:
            ticket.slab = None

    def fetch(self, ticket: CountedTicket) -> Ghost:
        self.kernels.meter.fetched += ticket.size
        return Ghost(Block(self.kernels.meter, ticket.size), ticket.size, ticket.rows)

    def arrived(self, arrival: Ghost) -> Ghost:
        return arrival

    def give_up(self, ticket: CountedTicket) -> None:
        ticket.slab = None
        self.kernels.meter.host -= ticket.size
