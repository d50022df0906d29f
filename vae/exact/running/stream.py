"""Runs one pass: strips of rows through all its operations, from the top of the picture to the bottom."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..cutting.windows import Strip, Windows
from ..operations.graph import Node
from ..operations.ops import Add, GroupNorm, Pad
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
        strip, number = next(strips), 0
        while True:
            following = next(strips, None)
            before_strip(number)
            self.strip(strip, following)
            if following is None:
                break
            strip, number = following, number + 1
        self.end()

    def begin(self) -> None:
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
        """Of what is read, rows that no later strip reads are let go."""
        if following is None:
            self.leaves[node].done_below(node.rows.count, node in self.for_good)
        elif node in following.reads:
            self.leaves[node].done_below(following.reads[node], node in self.for_good)

    def _extend(self, node: Node, first: int, stop: int, new: int) -> None:
        line, kernels = self.lines.get(node), self.kernels
        if line is None or first == new:
            self.lines.pop(node, None)
            del line
            slab = self._fresh(node, new, stop)
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

    def _fresh(self, node: Node, start: int, stop: int) -> Any:
        """Rows in memory that is the line's own, and contiguous."""
        if isinstance(node.op, Pad):
            slab = self.kernels.empty(node, stop - start)
            self.write(node, slab, start, stop)
            return slab
        slab, owned = self.run_op(node, start, stop)
        return slab if owned and self.kernels.stands_alone(slab) else self.kernels.clone(slab)

    def _deliver(self, node: Node, first: int, rows: Any, own: bool) -> None:
        for take in self.takers.get(node, ()):
            take(first, rows, own)

    def _retain(self, node: Node, following: Strip | None) -> None:
        """Keeps of a line only what the next strip reads again."""
        line = self.lines.pop(node, None)
        if line is None or following is None or node not in following.lines:
            return
        first = following.lines[node][0]
        end = line.first + rows_of(node, line.slab)
        if first < end:
            rows = self.kernels.cut(node, line.slab, first - line.first, end - first)
            self.lines[node] = Line(first, self._retained(node, rows))

    def _retained(self, node: Node, rows: Any) -> Any:
        return self.kernels.view(rows) if node in self.windows.viewed else self.kernels.clone(rows)

    # ---------------------------------------------------------------- rows of a node

    def rows(self, node: Node, start: int, stop: int) -> tuple[Any, bool]:
        """Rows [start, stop), and whether they may be overwritten."""
        if node in self.leaves:
            return self.leaves[node].read(start, stop), False
        line = self.lines.get(node)
        if line is not None and node in self.windows.kept:
            return self.kernels.cut(node, line.slab, start - line.first, stop - start), False
        return self.run_op(node, start, stop)

    def run_op(self, node: Node, start: int, stop: int) -> tuple[Any, bool]:
        """Computes rows [start, stop) from the sources."""
        op = node.op
        if isinstance(op, GroupNorm):
            out = self.kernels.empty(node, stop - start)
            self.write(node, out, start, stop)
            return out, True
        if isinstance(op, Add):
            return self._add(node, start, stop), True
        slabs, owned = [], False
        for index, source in enumerate(node.sources):
            slab, own = self.rows(source, *node.needed(index, start, stop))
            slabs.append(slab)
            owned = own if index == 0 else owned
        if owned:
            overwritten = self.kernels.in_place(op, node, slabs[0])
            if overwritten is not None:
                return overwritten, True
        out = self.kernels.run(op, node, slabs, start, stop)
        return out, owned if op.is_view else True

    def _add(self, node: Node, start: int, stop: int) -> Any:
        """A sum in the memory of one of its sources, the other piece by piece where it lies in pieces."""
        inner = [source for source in node.sources if source not in self.leaves]
        mine, other = (inner + [source for source in node.sources if source in self.leaves])[:2]
        slab, owned = self.rows(mine, start, stop)
        if not owned and other not in self.leaves:
            mine, other = other, mine
            slab, owned = self.rows(mine, start, stop)
        if not owned:
            return self.kernels.run(node.op, node, [slab, self.rows(other, start, stop)[0]], start, stop)
        if other not in self.leaves:
            self.kernels.add(slab, self.rows(other, start, stop)[0])
            return slab
        pieces = list(self.leaves[other].pieces(start, stop))
        self.kernels.share(len(pieces))
        for low, high, rows in pieces:
            self.kernels.add(self.kernels.cut(node, slab, low - start, high - low), rows)
        self.kernels.share(1)
        return slab

    def _write_sum(self, node: Node, out: Any, start: int, stop: int) -> None:
        mine, other = sorted(node.sources, key=lambda source: source in self.leaves)
        slab, kernels = self.rows(mine, start, stop)[0], self.kernels
        if other in self.leaves:
            pieces = list(self.leaves[other].pieces(start, stop))
        else:
            pieces = [(start, stop, self.rows(other, start, stop)[0])]
        kernels.share(len(pieces))
        for low, high, rows in pieces:
            into, part = (kernels.cut(node, whole, low - start, high - low) for whole in (out, slab))
            kernels.sum(into, part, rows)
        kernels.share(1)

    def write(self, node: Node, out: Any, start: int, stop: int) -> None:
        """Computes rows [start, stop) into a given slab, without another where the operation allows it."""
        op, kernels = node.op, self.kernels
        line = self.lines.get(node)
        if node in self.leaves:
            pieces = list(self.leaves[node].pieces(start, stop))
            kernels.share(len(pieces))
            for low, high, rows in pieces:
                kernels.copy(kernels.cut(node, out, low - start, high - low), rows)
            kernels.share(1)
        elif line is not None:
            kernels.copy(out, kernels.cut(node, line.slab, start - line.first, stop - start))
        elif isinstance(op, GroupNorm):
            self._normalise(node, out, start, stop)
        elif isinstance(op, Add):
            self._write_sum(node, out, start, stop)
        elif isinstance(op, Pad) and op.zeros:
            self._write_between_zeros(node, op, out, start, stop)
        elif len(node.sources) == 1 and node.sources[0].dtype == node.dtype and self._overwrites(node):
            self.write(node.sources[0], out, start, stop)
            kernels.in_place(op, node, out)
        else:
            kernels.copy(out, self.run_op(node, start, stop)[0])

    def _write_between_zeros(self, node: Node, pad: Pad, out: Any, start: int, stop: int) -> None:
        source, kernels = node.sources[0], self.kernels
        left, right, above = pad.pads[:3]
        first, last = source.clamp(start - above, stop - above)
        top = min(max(0, first + above - start), stop - start)
        if top:
            kernels.zero(kernels.cut(node, out, 0, top))
        if first < last:
            rows, width = kernels.cut(node, out, top, last - first), source.shape[-1]
            for edge, columns in ((0, left), (left + width, right)):
                if columns:
                    kernels.zero(kernels.columns(node, rows, edge, columns))
            self.write(source, kernels.columns(node, rows, left, width), first, last)
        done = top + max(0, last - first)
        if done < stop - start:
            kernels.zero(kernels.cut(node, out, done, stop - start - done))

    def _overwrites(self, node: Node) -> bool:
        return getattr(node.op, "overwrite", None) is not None

    def _normalise(self, node: Node, out: Any, start: int, stop: int) -> None:
        source, kernels, line = node.sources[0], self.kernels, self._line(node)
        if source in self.leaves:
            pieces = list(self.leaves[source].pieces(start, stop))
        else:
            pieces = [(start, stop, self.rows(source, start, stop)[0])]
        kernels.share(len(pieces))
        for low, high, rows in pieces:
            kernels.normalise(node, kernels.cut(node, out, low - start, high - low), rows, line)
        kernels.share(1)

    def _line(self, node: Node) -> Any:
        if node not in self.affine:
            assert isinstance(node.op, GroupNorm)
            moments = self.statistics.get((node.sources[0], node.op.groups))
            self.affine[node] = self.kernels.line(node, moments)
        return self.affine[node]
