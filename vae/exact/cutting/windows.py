"""Which rows of each map every strip of a pass computes, keeps and reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ..operations.graph import Node
from .passes import Pass

# Strips that are looked at, of those at the ends; the others are alike.
AT_TOP, AT_BOTTOM = 3, 3


@dataclass
class Strip:
    """One step of a pass.

    Attributes:
        lines: per kept node, the rows that are there when it has run: (first, stop, first new row).
        reads: per leaf or stored node, the first row that is read.
    """

    lines: dict[Node, tuple[int, int, int]] = field(default_factory=dict)
    reads: dict[Node, int] = field(default_factory=dict)


class Uses:
    """What holds for strips of any height.

    Attributes:
        kept: nodes whose latest rows are kept in a line; ``order``: the same in the order of computation.
        last_use, last_read: per position in the order, the lines and the leaves that nothing behind it reads.
    """

    def __init__(self, one: Pass) -> None:
        computed = set(one.computed)
        self.kept = _kept(one)
        self.order = [node for node in one.computed if node in self.kept]
        self.last_use = _last_use(self.order, self.kept, computed)
        self.last_read = _last_use(self.order, set(one.read), computed)


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
        one.uses = one.uses or Uses(one)
        self.kept, self.order = one.uses.kept, one.uses.order
        self.last_use, self.last_read = one.uses.last_use, one.uses.last_read
        self.targets = {node for node, _ in one.targets}
        self.read = set(one.read)
        self.clock = one.clock.rows.count
        self.viewed = self._viewed()
        self.read_by_targets = (self.targets - self.kept) & self.read

    @property
    def count(self) -> int:
        return -(-self.clock // self.rows)

    def strips(self) -> Iterator[Strip]:
        """In order, top to bottom."""
        reached: dict[Node, int] = dict.fromkeys(self.targets, 0)
        for number in range(1, self.count + 1):
            yield self._strip(min(self.clock, number * self.rows), reached)

    def sampled(self, more: Iterable[int] = ()) -> Iterator[tuple[Strip, int]]:
        """The strips at the top, in the middle and at the bottom, and some more by their numbers, marked 1; between
        them one for all the rest, marked with their number."""
        reached: dict[Node, int] = dict.fromkeys(self.targets, 0)
        last, middle = self.count, self.count // 2
        if last <= AT_TOP + 1 + AT_BOTTOM:
            numbers = list(range(1, last + 1))
        else:
            further = (number for number in more if 1 <= number <= last)
            numbers = [*range(1, AT_TOP + 1), middle, *further, *range(last - AT_BOTTOM + 1, last + 1)]
        before = 0
        for number in sorted(set(numbers)):
            if number - 1 > before:
                yield self._strip((number - 1) * self.rows, reached), number - 1 - before
            yield self._strip(min(self.clock, number * self.rows), reached), 1
            before = number

    def edges(self, node: Node, start: int, stop: int) -> list[tuple[int, int]]:
        """Rows [start, stop) of a target as the strips compute them: (first row, end) of each."""
        rows = node.rows.count
        cuts = [rows * number * self.rows // self.clock for number in range(1, self.count)]
        inside = [start, *(cut for cut in cuts if start < cut < stop), stop]
        return list(pairwise(inside))

    def _viewed(self) -> set[Node]:
        """Lines of which the whole is kept till the next strip, for the few rows that it reads again.

        A copy of these rows is a kernel. Where the line is the last that a strip reads, and no wider than what the pass
        makes, keeping it takes no more at the peak: the next line is there before what is made from it.
        """
        overlapping = {node.sources[0] for node in self.one.computed if node.op.overlaps} & set(self.order)
        made = sum(node.bytes for node in self.targets)
        last = self.last_use.get(len(self.order) - 1, [])
        return {
            node
            for node in overlapping
            if len(overlapping) == 1 and node in last and node.bytes <= 1.1 * made and node.device.type != "cpu"
        }

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


def _last_use(order: Sequence[Node], looked_for: set[Node], computed: set[Node]) -> dict[int, list[Node]]:
    """Per position in the order, the lines (or leaves) that nothing behind it reads, itself or through others."""
    last: dict[Node, int] = {node: position for position, node in enumerate(order) if node in looked_for}
    for position, node in enumerate(order):
        pending, seen = list(node.sources), set(node.sources)
        while pending:
            source = pending.pop()
            if source in looked_for:
                last[source] = position
            elif source in computed:
                # Once: in a chain of sums every node is reached along twice as many ways as the one behind it.
                pending += [one for one in source.sources if one not in seen]
                seen.update(source.sources)
    by_position: dict[int, list[Node]] = {}
    for node, position in last.items():
        by_position.setdefault(position, []).append(node)
    return by_position
