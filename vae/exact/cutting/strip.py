"""The rows that one strip of a pass computes, keeps and reads, found from the last operation up to the first."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..operations.graph import Node


@dataclass
class Strip:
    """One step of a pass.

    Attributes:
        lines: per kept node, the rows that are there when it has run: (first, stop, first new row).
        reads, ends: per leaf or stored node, the first row that is read, and the row that reading ends at.
    """

    lines: dict[Node, tuple[int, int, int]] = field(default_factory=dict)
    reads: dict[Node, int] = field(default_factory=dict)
    ends: dict[Node, int] = field(default_factory=dict)


class Demand:
    """What the operations of a strip want of lines and leaves, asked one after the other from the last to the first.

    Args:
        kept: nodes whose rows are kept in lines; others are computed for the rows that their one reader asks for.
        read: leaves and stored nodes.

    Attributes:
        wanted: per line, the rows that the strip computes from: (first, stop).
        waiting: per line, the first row from which operations that have nothing to do in this strip will go on.
        reads, ends: per leaf or stored node, the first row that is read, and the row that reading ends at.
    """

    def __init__(self, kept: set[Node], read: set[Node]) -> None:
        self.kept, self.read = kept, read
        self.wanted: dict[Node, tuple[int, int]] = {}
        self.waiting: dict[Node, int] = {}
        self.reads: dict[Node, int] = {}
        self.ends: dict[Node, int] = {}

    def sources_of(self, node: Node, start: int, stop: int) -> None:
        """What rows [start, stop) of a node are computed from; of a node without new rows, what they will be."""
        for index in range(len(node.sources)):
            if start < stop:
                self._want(node, index, start, stop)
            else:
                self._wait(node, index, stop)

    def _want(self, node: Node, index: int, start: int, stop: int) -> None:
        source = node.sources[index]
        first, last = node.needed(index, start, stop)
        if first >= last:  # nothing of this source yet, or no more
            self._wait(node, index, start)
            return
        first = min(first, max(0, node.op.lowest(node, index, start)))
        if source in self.kept:
            low, high = self.wanted.get(source, (first, last))
            self.wanted[source] = (min(low, first), max(high, last))
        elif source in self.read:
            self._read(source, first, last)
        else:
            for below in range(len(source.sources)):
                self._want(source, below, first, last)

    def _wait(self, node: Node, index: int, row: int) -> None:
        if row >= node.rows.count:
            return
        source = node.sources[index]
        first = max(0, node.op.lowest(node, index, row))
        if source in self.kept:
            self.waiting[source] = min(self.waiting.get(source, first), first)
        elif source in self.read:
            self._read(source, first, first)
        else:
            for below in range(len(source.sources)):
                self._wait(source, below, first)

    def _read(self, leaf: Node, first: int, end: int) -> None:
        self.reads[leaf] = min(self.reads.get(leaf, first), first)
        self.ends[leaf] = max(self.ends.get(leaf, end), end)


class Reach(Demand):
    """The same for all rows of a band, without what an operation wants whole."""

    def _want(self, node: Node, index: int, start: int, stop: int) -> None:
        if node.sources[index] in node.op.streamed(node):
            super()._want(node, index, start, stop)

    def _wait(self, node: Node, index: int, row: int) -> None:
        if node.sources[index] in node.op.streamed(node):
            super()._wait(node, index, row)
