"""Runs one pass: strips of rows through all its operations, from the top of the picture to the bottom."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .graph import Leaf, Node
from .moments import Moments
from .ops import Add, GroupNorm, Pad
from .windows import Strip, Windows


@dataclass
class Line:
    """The latest rows of a node."""

    first: int
    slab: Tensor


class Stream:
    """Computes the strips of a pass.

    Args:
        windows: the pass and its rows.
        kept: store, tensor or statistics that take the rows of each target as they are computed.
        statistics: of earlier passes, by node and number of groups.
    """

    def __init__(
        self,
        windows: Windows,
        kept: dict[Node, list[Callable[[int, Tensor], None]]],
        statistics: dict[tuple[Node, int], Moments],
    ) -> None:
        self.windows, self.kept, self.statistics = windows, kept, statistics
        self.lines: dict[Node, Line] = {}
        self.affine: dict[Node, tuple[Tensor, Tensor]] = {}

    def run(self, before_strip: Callable[[int], None]) -> None:
        """All strips.

        Args:
            before_strip: called with each strip's number; may raise to stop.
        """
        strips = self.windows.strips()
        strip = next(strips)
        number = 0
        while True:
            following = next(strips, None)
            before_strip(number)
            self._strip(strip, following)
            if following is None:
                break
            for node in self.windows.one.last_reads:
                if node in following.reads and isinstance(node.op, Leaf):
                    node.op.free_below(following.reads[node])
            strip, number = following, number + 1
        for node in self.windows.one.computed:
            node.op.release()

    def _strip(self, strip: Strip, following: Strip | None) -> None:
        for node in self.windows.targets - self.windows.kept:
            first, stop, _ = strip.lines.get(node, (0, 0, 0))
            if first < stop:
                self._deliver(node, first, self.rows(node, first, stop)[0])
        for position, node in enumerate(self.windows.order):
            if node in strip.lines:
                first, stop, new = strip.lines[node]
                if new < stop:
                    self._extend(node, first, stop, new)
            for done in self.windows.last_use.get(position, ()):
                self._retain(done, following)

    def _extend(self, node: Node, first: int, stop: int, new: int) -> None:
        line = self.lines.get(node)
        if line is None or first == new:
            slab = self._fresh(node, new, stop)
            self.lines[node] = Line(new, slab)
            self._deliver(node, new, slab)
            return
        slab = node.empty(stop - first)
        node.cut(slab, 0, new - first).copy_(node.cut(line.slab, first - line.first, new - first))
        del self.lines[node], line
        rows = node.cut(slab, new - first, stop - new)
        self.write(node, rows, new, stop)
        self.lines[node] = Line(first, slab)
        self._deliver(node, new, rows)

    def _fresh(self, node: Node, start: int, stop: int) -> Tensor:
        """Rows in memory that is the line's own, and contiguous."""
        if isinstance(node.op, Pad):
            slab = node.empty(stop - start)
            self.write(node, slab, start, stop)
            return slab
        slab, owned = self.run_op(node, start, stop)
        return slab if owned and slab.is_contiguous() else slab.clone(memory_format=torch.contiguous_format)

    def _deliver(self, node: Node, first: int, rows: Tensor) -> None:
        for take in self.kept.get(node, ()):
            take(first, rows)

    def _retain(self, node: Node, following: Strip | None) -> None:
        """Keeps of a line only what the next strip reads again."""
        line = self.lines.pop(node, None)
        if line is None or following is None or node not in following.lines:
            return
        first = following.lines[node][0]
        end = line.first + line.slab.shape[node.rows.dim] // node.rows.unit
        if first < end:
            self.lines[node] = Line(first, node.cut(line.slab, first - line.first, end - first).clone())

    # ---------------------------------------------------------------- rows of a node

    def rows(self, node: Node, start: int, stop: int) -> tuple[Tensor, bool]:
        """Rows [start, stop), and whether they may be overwritten."""
        if isinstance(node.op, Leaf):
            return node.op.read(start, stop), False
        line = self.lines.get(node)
        if line is not None and node in self.windows.kept:
            return node.cut(line.slab, start - line.first, stop - start), False
        return self.run_op(node, start, stop)

    def run_op(self, node: Node, start: int, stop: int) -> tuple[Tensor, bool]:
        """Computes rows [start, stop) from the sources."""
        op = node.op
        if isinstance(op, GroupNorm):
            out = node.empty(stop - start)
            self.write(node, out, start, stop)
            return out, True
        slabs, owned = [], []
        for index, source in enumerate(node.sources):
            slab, own = self.rows(source, *node.needed(index, start, stop))
            slabs.append(slab)
            owned.append(own)
        if isinstance(op, Add) and True in owned:
            mine = owned.index(True)
            return slabs[mine].add_(slabs[1 - mine]), True
        if owned and owned[0]:
            overwritten = op.in_place(slabs[0])
            if overwritten is not None:
                return overwritten, True
        out = op.run(node, slabs, start, stop)
        return out, owned[0] if op.is_view else True

    def write(self, node: Node, out: Tensor, start: int, stop: int) -> None:
        """Computes rows [start, stop) into a given slab, without another where the operation allows it."""
        op = node.op
        line = self.lines.get(node)
        if isinstance(op, Leaf):
            op.write_to(out, start, stop)
        elif line is not None:
            out.copy_(node.cut(line.slab, start - line.first, stop - start))
        elif isinstance(op, GroupNorm):
            self._normalise(node, out, start, stop)
        elif isinstance(op, Pad) and op.rows_only:
            self._write_between_zeros(node, op.pads[2], out, start, stop)
        elif len(node.sources) == 1 and node.sources[0].dtype == out.dtype and self._overwrites(node):
            self.write(node.sources[0], out, start, stop)
            op.in_place(out)
        else:
            out.copy_(self.run_op(node, start, stop)[0])

    def _write_between_zeros(self, node: Node, above: int, out: Tensor, start: int, stop: int) -> None:
        source = node.sources[0]
        first, last = source.clamp(start - above, stop - above)
        top = first + above - start
        node.cut(out, 0, min(top, stop - start)).zero_()
        if first < last:
            self.write(source, node.cut(out, top, last - first), first, last)
        done = top + max(0, last - first)
        if done < stop - start:
            node.cut(out, done, stop - start - done).zero_()

    def _overwrites(self, node: Node) -> bool:
        return getattr(node.op, "overwrite", None) is not None

    def _normalise(self, node: Node, out: Tensor, start: int, stop: int) -> None:
        source = node.sources[0]
        scale, shift = self._line(node)
        if out.dtype.itemsize < 4:
            rows = self.rows(source, start, stop)[0]
            out.copy_(torch.addcmul(shift, rows.float(), scale))
        elif isinstance(source.op, Leaf):
            for first, last, piece in source.op.pieces(start, stop):
                into = node.cut(out, first - start, last - first)
                if piece.dtype == out.dtype:
                    torch.addcmul(shift, piece, scale, out=into)
                else:
                    into.copy_(piece).mul_(scale).add_(shift)
        else:
            rows = self.rows(source, start, stop)[0]
            torch.addcmul(shift, rows, scale, out=out)

    def _line(self, node: Node) -> tuple[Tensor, Tensor]:
        if node not in self.affine:
            op, source = node.op, node.sources[0]
            assert isinstance(op, GroupNorm)
            moments = self.statistics[source, op.groups]
            dtype = torch.float64 if node.dtype is torch.float64 else torch.float32
            scale, shift = moments.line(op, node.shape[1], len(node.shape))
            self.affine[node] = scale.to(dtype), shift.to(dtype)
        return self.affine[node]
