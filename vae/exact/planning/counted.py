"""Counts what a pass takes: bytes alive, kernels, seconds.

The pass's own code runs on slabs without data (:mod:`.ghosts`), with these kernels instead of
:class:`..running.kernels.Kernels`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..operations.graph import Node, Op
from ..operations.whole import GroupNorm
from ..running.allocator import GRAIN
from ..running.kernels import Kernels
from .device import CASTS_INSIDE, Figures, tiles_of
from .ghosts import Allocation, Ghost, GhostMemory

# Kernels that make a norm's line of one strip's statistics, and more for those of several; and of sums.
OF_ONE, OF_MANY = 4, 7
OF_ONE_SUM, OF_MANY_SUMS = 7, 3
FOLDING = 7  # kernels per parity of rows


class Counted(GhostMemory, Kernels):
    """On ghosts: each kernel adds to the meter what it takes.

    Args:
        several: the pass has several strips, whose statistics are merged.
    """

    def __init__(self, device: torch.device, figures: Figures, several: bool = True) -> None:
        super().__init__(device, figures)
        self.several = several
        self.kept: dict[int, Allocation] = {}
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

    def copy(self, into: Ghost, slab: Ghost) -> None:
        self._kernel(into.size + slab.size)

    def clone(self, slab: Ghost) -> Ghost:
        self._kernel(2 * slab.size)
        return self.slab(slab.size, slab.rows)

    def view(self, slab: Ghost) -> Ghost:
        if self.meter.strips == 1 or slab.block is None:
            return slab
        # What the last of the strips that this one stands for would hold.
        return Ghost(Allocation(self.meter, slab.block.size // self.meter.strips + slab.size), slab.size, slab.rows)

    def cast(self, slab: Ghost, dtype: torch.dtype) -> Ghost:
        size = slab.size // 2 if dtype.itemsize == 2 else slab.size * 2
        self._kernel(slab.size + size)
        return self.slab(size, slab.rows)

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
        held = Allocation(self.meter, inside) if inside else None
        out = self.slab(size, rows)
        hidden = self._hidden(op, node, rows)
        if hidden:
            self.meter.passing(hidden)
        moved = size + sum(slab.size for slab in slabs) + 2 * inside
        flops = op.flops(node) * rows / node.rows.count
        results = size // node.dtype.itemsize // self.meter.strips
        tiles = tiles_of(results, node.shape[1]) if flops > moved else 0.0
        self._kernel(moved, flops, op.launches(node), node.dtype, tiles)
        del held
        return out

    def _hidden(self, op: Op, node: Node, rows: int) -> int:
        """Bytes that kernels hold while they run, beside all tensors."""
        figures = self.figures
        hidden = int(op.scratch(node, rows) * figures.scratch) if figures.scratch else 0
        if figures.workspace is None or self.meter.strips > 1:  # a peak is taken of single strips
            return hidden
        # From the allocator too, and the last one's is given back before the next one asks.
        return max((figures.block(figures.workspace.of(call)) for call in op.convolutions(node, rows)), default=hidden)

    def _view(self, op: Op, slab: Ghost, size: int, rows: int) -> Ghost:
        if slab.turned and op.needs_order:
            self._kernel(2 * size)
            return self.slab(size, rows)
        return Ghost(slab.block, size, rows, slab.turned != op.turns, slab.alone and size == slab.size)

    def in_place(self, op: Op, node: Node, slab: Ghost) -> Ghost | None:
        if not op.works_in_place:
            return None
        self._kernel(2 * slab.size)
        return slab

    def line(self, node: Node, norm: GroupNorm, moments: Any) -> None:
        """Of it only the kernels count: it is small."""
        strips, self.meter.strips = self.meter.strips, 1
        is_sum = self.device.type != "cpu" and node.dtype.itemsize < 4
        one, many = (OF_ONE_SUM, OF_MANY_SUMS) if is_sum else (OF_ONE, OF_MANY)
        self._kernel(0, 0, one + many * self.several)
        self.meter.strips = strips

    def normalise(self, node: Node, out: Ghost, slab: Ghost, line: Any) -> None:
        if node.dtype.itemsize < 4 and self.device.type not in CASTS_INSIDE:
            self.meter.passing(4 * out.size)  # the slab in float32, and the result
        self._kernel(out.size + slab.size)

    def statistics(self, node: Node, slab: Ghost) -> list[Allocation]:
        """What :meth:`..running.moments.Moments.add` takes, and what it keeps: two small tensors a strip."""
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
        return [Allocation(self.meter, GRAIN * strips), Allocation(self.meter, GRAIN * strips)]

    def begin(self, op: Op, node: Node) -> None:
        size = op.kept_bytes()
        if size:
            self.meter.passing(size * 15 // 8)  # and the sums and stacks that it is made of
            self.kept[id(op)] = Allocation(self.meter, size)
            self._kernel(3 * size, 0, 2 * FOLDING)

    def share(self, pieces: int) -> None:
        self.pieces = pieces

    def end(self, op: Op) -> None:
        self.kept.pop(id(op), None)


class CountedMoments:
    """Statistics of a map without data: the memory that they take."""

    def __init__(self, kernels: Counted, node: Node) -> None:
        self.kernels, self.node = kernels, node
        self.kept: list[Allocation] = []

    def add(self, slab: Ghost) -> None:
        """Takes a strip into account."""
        self.kept += self.kernels.statistics(self.node, slab)


class There:
    """A leaf that is there whole, in a pass without data."""

    def __init__(self, kernels: Counted, node: Node) -> None:
        self.kernels, self.node = kernels, node

    def read(self, start: int, stop: int) -> Ghost:
        """Rows [start, stop)."""
        return self.kernels.elsewhere(self.node, stop - start)

    def pieces(self, start: int, stop: int) -> list[tuple[int, int, Ghost]]:
        """The same rows in one piece."""
        return [(start, stop, self.read(start, stop))]

    def done_below(self, row: int, for_good: bool) -> None:
        """Nothing: its owner counts it."""

    def rest(self) -> None:
        """Nothing: its owner counts it."""
