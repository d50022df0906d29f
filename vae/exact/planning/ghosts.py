"""Slabs without data: they have a size, an owner and an end, as tensors have, and a meter counts what is alive."""

from __future__ import annotations

import torch

from ..operations.graph import Node
from ..running.allocator import even
from ..running.memory import Memory
from .device import Figures


class Meter:
    """What is alive, the most that was, and what the work took.

    Attributes:
        strips: how many strips the one that runs stands for; a peak is taken only while it is one.
        launches, seconds: of all kernels; the seconds are the device's, without the host's.
        sent, fetched: bytes to and from host memory.
        stored: bytes of what is alive that are maps in pages: they are exact, and need no margin.
        host, host_peak: bytes in host memory, now and at most.
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
        """Bytes that are there until their owner goes."""
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


class Allocation:
    """Memory with an owner: gone with the last slab that lies in it."""

    __slots__ = ("meter", "size")

    def __init__(self, meter: Meter, size: int) -> None:
        self.meter, self.size = meter, meter.figures.block(size)
        meter.take(self.size)

    def __del__(self) -> None:
        self.meter.live -= self.size


class Page(Allocation):
    """Memory of a stored map that lies in pages."""

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
        block: its memory; None: its owner counts it.
        size: bytes.
        rows: how many of its node it holds.
        turned: its dims lie in another order than its elements.
        alone: it is all that its memory holds.
    """

    __slots__ = ("alone", "block", "rows", "size", "turned")

    def __init__(
        self, block: Allocation | None, size: int, rows: int, turned: bool = False, alone: bool = False
    ) -> None:
        self.block, self.size, self.rows, self.turned, self.alone = block, size, rows, turned, alone


class GhostMemory(Memory):
    """Of a device, in ghosts."""

    def __init__(self, device: torch.device, figures: Figures) -> None:
        super().__init__(device)
        self.figures, self.meter = figures, Meter(figures)

    @property
    def strips(self) -> int:
        """How many strips the one that runs stands for."""
        return self.meter.strips

    def elsewhere(self, node: Node, rows: int) -> Ghost:
        """A part of a tensor that its owner counts."""
        return Ghost(None, node.row_bytes * rows, rows)

    def slab(self, size: int, rows: int) -> Ghost:
        """A slab that is all that its memory holds."""
        return Ghost(Allocation(self.meter, size), size, rows, alone=True)

    def empty(self, node: Node, rows: int) -> Ghost:
        size = node.row_bytes * rows
        asked = even(size, self.device)
        return Ghost(Allocation(self.meter, asked), size, rows, alone=asked == size)

    def memory(self, size: int) -> Ghost:
        return Ghost(Page(self.meter, size), size, 0)

    def outside(self, size: int) -> Ghost:
        self.meter.host += size
        self.meter.host_peak = max(self.meter.host_peak, self.meter.host)
        return Ghost(None, size, 0)

    def size_of(self, memory: Ghost) -> int:
        return memory.size

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
