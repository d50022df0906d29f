"""Runs one pass: strips of rows through all its operations, from the top of the picture to the bottom."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..cutting.windows import Strip, Windows
from ..operations.graph import Node
from ..operations.whole import GroupNorm
from .kernels import Kernels
from .stores import rows_of

#: Takes rows of a map: (first row, slab, whether the slab is exactly these rows and stays as it is).
Taker = Callable[[int, Any, bool], None]


@dataclass
class Line:
    """The latest rows of a node."""

    first: int
    slab: Any


class Stream:
    """Computes the strips of a pass, or counts what that takes.

    Args:
        windows: the pass and its rows.
        leaves: what the pass reads.
        takers: what takes the rows of each target as they are computed.
        statistics: of earlier passes, by node and number of groups.
        kernels: what is done with slabs.
    """

    def __init__(
        self,
        windows: Windows,
        leaves: Mapping[Node, Any],
        takers: Mapping[Node, list[Taker]],
        statistics: Mapping[tuple[Node, int], Any],
        kernels: Kernels,
    ) -> None:
        self.windows, self.leaves, self.takers, self.statistics = windows, leaves, takers, statistics
        self.kernels = kernels
        self.for_good = set(windows.one.last_reads)
        self.lines: dict[Node, Line] = {}
        self.affine: dict[Node, Any] = {}

    def run(self, before_strip: Callable[[int], None]) -> None:
        """All strips.

        Args:
            before_strip: called with each strip's number; may raise to stop.
        """
        self.begin()
        strips = self.windows.strips()
        strip, number = next(strips, None), 0
        while strip is not None:
            following = next(strips, None)
            before_strip(number)
            self.strip(strip, following)
            strip, number = following, number + 1
        self.end()

    def begin(self) -> None:
        """Makes what the strips share."""
        for node in self.windows.one.computed:
            self.kernels.begin(node.op, node)

    def end(self) -> None:
        """Lets go of what the strips shared."""
        for node in self.windows.one.computed:
            self.kernels.end(node.op)
        self.lines.clear()
        self.affine.clear()

    def strip(self, strip: Strip, following: Strip | None) -> None:
        """One strip.

        Args:
            following: the next one, whose first rows are retained.
        """
        for node in self.windows.targets - self.windows.kept:
            first, stop, _ = strip.lines.get(node, (0, 0, 0))
            if first < stop:
                self._deliver(node, first, self.rows(node, first, stop)[0], own=False)
        for position, node in enumerate(self.windows.order):
            if node in strip.lines:
                first, stop, new = strip.lines[node]
                if new < stop:
                    self._extend(node, first, stop, new)
            for done in self.windows.last_use.get(position, ()):
                self._retain(done, following)
            for leaf in self.windows.last_read.get(position, ()):
                self._done_with(leaf, following)
        for leaf in self.windows.read_by_targets:
            self._done_with(leaf, following)

    def _done_with(self, node: Node, following: Strip | None) -> None:
        """Lets go of the rows of a map that no later strip reads."""
        if following is None:
            self.leaves[node].done_below(node.rows.count, node in self.for_good)
        elif node in following.reads:
            self.leaves[node].done_below(following.reads[node], node in self.for_good)

    def _extend(self, node: Node, first: int, stop: int, new: int) -> None:
        """Computes rows [new, stop) of a line, behind its rows [first, new), which earlier strips computed."""
        line, kernels = self.lines.get(node), self.kernels
        if line is None or first == new:
            self.lines.pop(node, None)
            del line
            slab = node.op.fresh(node, self, new, stop)
            self.lines[node] = Line(new, slab)
            self._deliver(node, new, slab, own=True)
            return
        slab = kernels.empty(node, stop - first)
        kernels.copy(
            kernels.cut(node, slab, 0, new - first),
            kernels.cut(node, line.slab, first - line.first, new - first),
        )
        del self.lines[node], line
        rows = kernels.cut(node, slab, new - first, stop - new)
        self.write(node, rows, new, stop)
        self.lines[node] = Line(first, slab)
        self._deliver(node, new, rows, own=False)

    def _deliver(self, node: Node, first: int, rows: Any, own: bool) -> None:
        takers = self.takers.get(node, ())
        if takers and not self.windows.share.is_whole:
            # A band computes what it reads beyond its borders too: that is another worker's.
            (low, high), end = self.windows.share.of_node(node), first + rows_of(node, rows)
            low, high = max(low, first), min(high, end)
            if low >= high:
                return
            if (low, high) != (first, end):
                first, rows, own = low, self.kernels.cut(node, rows, low - first, high - low), False
        for take in takers:
            take(first, rows, own)

    def _retain(self, node: Node, following: Strip | None) -> None:
        """Keeps of a line only the rows that the next strip reads again."""
        line = self.lines.pop(node, None)
        if line is None or following is None or node not in following.lines:
            return
        first = following.lines[node][0]
        end = line.first + rows_of(node, line.slab)
        if first < end:
            rows = self.kernels.cut(node, line.slab, first - line.first, end - first)
            keep = self.kernels.view if node in self.windows.viewed else self.kernels.clone
            self.lines[node] = Line(first, keep(rows))

    # ---------------------------------------------------------------- what operations ask

    def is_read(self, node: Node) -> bool:
        """Whether the pass reads a map rather than computing it."""
        return node in self.leaves

    def rows(self, node: Node, start: int, stop: int) -> tuple[Any, bool]:
        """Rows [start, stop), and whether they may be overwritten."""
        if node in self.leaves:
            return self.leaves[node].read(start, stop), False
        line = self.lines.get(node)
        if line is not None and node in self.windows.kept:
            return self.kernels.cut(node, line.slab, start - line.first, stop - start), False
        return node.op.compute(node, self, start, stop)

    def pieces(self, node: Node, start: int, stop: int) -> Iterator[tuple[int, int, Any]]:
        """The same rows as they lie: (first row, end, slab) of each piece. Kernels on one count as one of several."""
        if node in self.leaves:
            pieces = list(self.leaves[node].pieces(start, stop))
        else:
            pieces = [(start, stop, self.rows(node, start, stop)[0])]
        self.kernels.share(len(pieces))
        yield from pieces
        self.kernels.share(1)

    def write(self, node: Node, out: Any, start: int, stop: int) -> None:
        """Computes rows [start, stop) into a given slab, without another where the operation allows it."""
        kernels, line = self.kernels, self.lines.get(node)
        if node in self.leaves:
            for low, high, rows in self.pieces(node, start, stop):
                kernels.copy(kernels.cut(node, out, low - start, high - low), rows)
        elif line is not None:
            kernels.copy(out, kernels.cut(node, line.slab, start - line.first, stop - start))
        else:
            node.op.write(node, self, out, start, stop)

    def line(self, node: Node, norm: GroupNorm) -> Any:
        """What a norm does to each channel of its source, found once a pass."""
        if node not in self.affine:
            moments = self.statistics.get((node.sources[0], norm.groups))
            self.affine[node] = self.kernels.line(node, norm, moments)
        return self.affine[node]
