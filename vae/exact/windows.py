"""Which rows of each map every strip of a pass computes, keeps and reads; and the bytes that takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from .graph import Node
from .ops import Add, Attention, GroupNorm, Pad, RowByRow
from .passes import Pass
from .stores import RowStore


@dataclass
class Strip:
    """One step of a pass.

    Attributes:
        lines: per kept node, the rows that are there when it has run: (first, stop, first new row).
        reads: per leaf or stored node, the first row that is read.
    """

    lines: dict[Node, tuple[int, int, int]] = field(default_factory=dict)
    reads: dict[Node, int] = field(default_factory=dict)


class Windows:
    """The rows of each strip of a pass.

    Nodes read through overlapping windows or by several others keep their latest rows in lines, so that no row is
    computed twice; all other nodes are computed for the rows that their one reader asks for.

    Args:
        one: the pass.
        rows: height of a strip, in rows of the pass's clock.
    """

    def __init__(self, one: Pass, rows: int) -> None:
        self.one, self.rows = one, rows
        self.kept = _kept(one)
        self.order = [node for node in one.computed if node in self.kept]
        self.targets = {node for node, _ in one.targets}
        self.read = set(one.read)
        self.clock = one.clock.rows.count
        self.kept_bytes = sum(node.op.kept_bytes() for node in one.computed)
        self.last_use = _last_use(self.order, self.kept, set(one.computed))

    @property
    def count(self) -> int:
        return -(-self.clock // self.rows)

    def strips(self) -> Iterator[Strip]:
        """In order, top to bottom."""
        reached: dict[Node, int] = dict.fromkeys(self.targets, 0)
        for number in range(1, self.count + 1):
            yield self._strip(min(self.clock, number * self.rows), reached)

    def sampled(self) -> Iterator[tuple[Strip, bool]]:
        """The strips at the top, in the middle and at the bottom; between them one for all the rest, marked False."""
        reached: dict[Node, int] = dict.fromkeys(self.targets, 0)
        last, middle = self.count, self.count // 2
        numbers = sorted(
            {*range(1, min(3, last) + 1), *range(max(1, middle - 1), middle + 2), *range(max(1, last - 2), last + 1)}
        )
        before = 0
        for number in numbers:
            if number > last:
                break
            if number - 1 > before:
                yield self._strip((number - 1) * self.rows, reached), False
            yield self._strip(min(self.clock, number * self.rows), reached), True
            before = number

    def _strip(self, stop: int, reached: dict[Node, int]) -> Strip:
        strip = Strip()
        wanted: dict[Node, tuple[int, int]] = {}
        # Readers that wait in this strip still need the rows they will go on from.
        lowest: dict[Node, int] = {}
        for node in self.targets:
            wanted[node] = (reached[node], node.rows.count * stop // self.clock)
        for node in reversed(self.order):
            done = reached.get(node, 0)
            first, last = wanted.get(node, (done, done))
            last = max(last, done)
            new = max(first, done)
            if node in wanted or node in reached:
                strip.lines[node] = (min(first, new, lowest.get(node, new)), last, new)
                reached[node] = last
            for index in range(len(node.sources)):
                if new < last:
                    self._want(node, index, new, last, wanted, strip)
                else:
                    self._wait(node, index, last, lowest, strip)
        for node in self.targets - self.kept:
            first, last = wanted[node]
            strip.reads[node] = first
            strip.lines[node] = (first, last, first)
            reached[node] = last
        return strip

    def _wait(self, node: Node, index: int, row: int, lowest: dict[Node, int], strip: Strip) -> None:
        if row >= node.rows.count:
            return
        source = node.sources[index]
        first = max(0, node.op.lowest(node, index, row))
        if source in self.kept:
            lowest[source] = min(lowest.get(source, first), first)
        elif source in self.read:
            strip.reads[source] = min(strip.reads.get(source, first), first)
        else:
            for below in range(len(source.sources)):
                self._wait(source, below, first, lowest, strip)

    def _want(
        self, node: Node, index: int, start: int, stop: int, wanted: dict[Node, tuple[int, int]], strip: Strip
    ) -> None:
        source = node.sources[index]
        first, last = node.needed(index, start, stop)
        if first >= last:
            return
        first = min(first, max(0, node.op.lowest(node, index, start)))
        if source in self.kept:
            low, high = wanted.get(source, (first, last))
            wanted[source] = (min(low, first), max(high, last))
        elif source in self.read:
            strip.reads[source] = min(strip.reads.get(source, first), first)
        else:
            for below in range(len(source.sources)):
                self._want(source, below, first, last, wanted, strip)

    # ---------------------------------------------------------------- bytes

    def working_bytes(self, strip: Strip, following: Strip | None, retained: dict[Node, int]) -> int:
        """The most bytes that lines, results and kernels take during a strip.

        Args:
            following: the next strip, whose first rows are retained.
            retained: rows kept of each line, updated.
        """
        live = self.kept_bytes + sum(node.row_bytes * rows for node, rows in retained.items())
        highest = live
        for position, node in enumerate(self.order):
            if node not in strip.lines:
                continue
            first, last, new = strip.lines[node]
            if new < last:
                peak, held = self.cost(node, last - new)
                line = node.row_bytes * (last - first) if first < new or not held else held
                moments = self.moments_bytes(node, last - new)
                highest = max(highest, live + peak + (line if first < new else 0), live + line + moments)
                live += line - node.row_bytes * retained.get(node, 0)
                retained[node] = last - first
            for done in self.last_use.get(position, ()):
                keep = 0
                if following is not None and done in following.lines and done in strip.lines:
                    keep = max(0, strip.lines[done][1] - following.lines[done][0])
                live -= done.row_bytes * (retained.get(done, 0) - keep)
                retained[done] = keep
        return highest

    def moments_bytes(self, node: Node, rows: int) -> int:
        """What the kernel for the statistics of some rows allocates: a result of their size, in float32 at least."""
        if not any(node is other and purpose.startswith("moments") for other, purpose in self.one.results):
            return 0
        wide = max(4, node.dtype.itemsize)
        return node.row_elements * rows * wide * (1 if node.dtype.itemsize >= 4 else 2)

    def skip(self, strip: Strip, following: Strip | None, retained: dict[Node, int]) -> int:
        """Only updates what is retained."""
        for node, (_, last, _) in strip.lines.items():
            first = following.lines[node][0] if following is not None and node in following.lines else last
            retained[node] = max(0, last - first)
        return 0

    def cost(self, node: Node, rows: int) -> tuple[int, int]:
        """Bytes at the peak of computing some rows of a node, and of the result."""
        start = min(max(0, node.rows.count // 2), max(0, node.rows.count - rows))
        inputs, highest = 0, 0
        owned = 0
        sources = node.sources[:1] if isinstance(node.op, Attention) else node.sources
        for index, source in enumerate(sources):
            first, last = node.needed(index, start, start + rows)
            if source in self.kept:
                continue
            if source in self.read:
                # Rows that lie in two pages, or on the host, or in another dtype, are gathered.
                paged = not source.is_leaf or isinstance(source.op, RowStore)
                if paged and not isinstance(node.op, (GroupNorm, Add)):
                    inputs += source.row_bytes * (last - first)
                continue
            peak, held = self.cost(source, last - first)
            highest = max(highest, inputs + peak)
            inputs += held
            owned = max(owned, held)
        result = node.row_bytes * rows
        if node.op.is_view:
            return max(highest, inputs), inputs
        if isinstance(node.op, GroupNorm):
            wide = 0 if node.dtype.itemsize >= 4 else node.row_elements * rows * 8
            return max(highest, max(inputs, result) + wide), result
        if isinstance(node.op, Pad) and node.op.rows_only:
            return max(highest, inputs), result
        if isinstance(node.op, Add) or (isinstance(node.op, RowByRow) and node.op.overwrite):
            extra = 0 if owned >= result else result
            return max(highest, inputs + extra), result
        return max(highest, inputs + result + node.op.scratch(node, rows)), result


def _kept(one: Pass) -> set[Node]:
    """Nodes whose latest rows are kept in a line."""
    readers: dict[Node, int] = {}
    overlapping: set[Node] = set()
    for node in one.computed:
        for source in node.sources:
            readers[source] = readers.get(source, 0) + 1
        if node.op.overlaps:
            overlapping.add(node.sources[0])
    targets = {node for node, _ in one.targets}
    kept: set[Node] = set()
    for node in one.computed:
        of_kept = node.op.is_view and (
            node.sources[0] in kept or node.sources[0].is_leaf or node.sources[0] in one.read
        )
        if node in targets or node in overlapping or (readers.get(node, 0) > 1 and not of_kept):
            kept.add(node)
    return kept


def _last_use(order: Sequence[Node], kept: set[Node], computed: set[Node]) -> dict[int, list[Node]]:
    """Per position in the order, the lines that nothing behind it reads."""
    last: dict[Node, int] = {node: position for position, node in enumerate(order)}
    for position, node in enumerate(order):
        pending = list(node.sources)
        while pending:
            source = pending.pop()
            if source in kept:
                last[source] = position
            elif source in computed:
                pending.extend(source.sources)
    by_position: dict[int, list[Node]] = {}
    for node, position in last.items():
        by_position.setdefault(position, []).append(node)
    return by_position
