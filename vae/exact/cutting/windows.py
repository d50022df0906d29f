"""The strips of a pass: which rows of each map every one of them computes, keeps and reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

from ..operations.graph import Node
from .passes import Pass
from .strip import Demand, Strip

# Strips at either end that are looked at one by one; those between them are alike.
AT_TOP, AT_BOTTOM = 3, 3


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
        uses = one.uses
        self.kept, self.order = uses.kept, uses.order
        self.last_use, self.last_read = uses.last_use, uses.last_read
        self.targets = {node for node, _ in one.targets}
        self.read = set(one.read)
        self.clock = one.clock.rows.count
        self.viewed = self._viewed()
        self.read_by_targets = (self.targets - self.kept) & self.read

    @property
    def count(self) -> int:
        """How many strips there are."""
        return -(-self.clock // self.rows)

    def strips(self) -> Iterator[Strip]:
        """In order, top to bottom."""
        descent = Descent(self)
        for number in range(1, self.count + 1):
            yield descent.to(min(self.clock, number * self.rows))

    def sampled(self, more: Iterable[int] = ()) -> Iterator[tuple[Strip, int]]:
        """Strips that show what all take, each with how many it stands for.

        Those at the top, in the middle and at the bottom, and ``more`` by their numbers, stand for themselves; what
        lies between two of them is one strip that stands for several.
        """
        descent = Descent(self)
        last, middle = self.count, self.count // 2
        if last <= AT_TOP + 1 + AT_BOTTOM:
            numbers = list(range(1, last + 1))
        else:
            further = (number for number in more if 1 <= number <= last)
            numbers = [*range(1, AT_TOP + 1), middle, *further, *range(last - AT_BOTTOM + 1, last + 1)]
        before = 0
        for number in sorted(set(numbers)):
            if number - 1 > before:
                yield descent.to((number - 1) * self.rows), number - 1 - before
            yield descent.to(min(self.clock, number * self.rows)), 1
            before = number

    def edges(self, node: Node, start: int, stop: int) -> list[tuple[int, int]]:
        """Rows [start, stop) of a target as the strips compute them: (first row, end) of each."""
        rows = node.rows.count
        cuts = [rows * number * self.rows // self.clock for number in range(1, self.count)]
        inside = [start, *(cut for cut in cuts if start < cut < stop), stop]
        return list(pairwise(inside))

    def _viewed(self) -> set[Node]:
        """Lines kept whole until the next strip, which reads a few of their rows again.

        To copy these rows would take a kernel. Where the line is the last that a strip reads, and no wider than what
        the pass makes, keeping it whole takes no more at the peak: the next line is there before what is made from it.
        """
        overlapping = {node.sources[0] for node in self.one.computed if node.op.overlaps} & set(self.order)
        made = sum(node.bytes for node in self.targets)
        last = self.last_use.get(len(self.order) - 1, [])
        return {
            node
            for node in overlapping
            if len(overlapping) == 1 and node in last and node.bytes <= 1.1 * made and node.device.type != "cpu"
        }


class Descent:
    """Goes down a pass strip by strip, and remembers how far each line has come.

    Args:
        windows: the rows that strips have in common.
    """

    def __init__(self, windows: Windows) -> None:
        self.windows = windows
        self.reached: dict[Node, int] = dict.fromkeys(windows.targets, 0)

    def to(self, stop: int) -> Strip:
        """The strip that ends at row ``stop`` of the pass's clock."""
        windows, reached = self.windows, self.reached
        demand, strip = Demand(windows.kept, windows.read), Strip()
        for node in windows.targets:
            demand.wanted[node] = (reached[node], node.rows.count * stop // windows.clock)
        for node in reversed(windows.order):
            done = reached.get(node, 0)
            first, last = demand.wanted.get(node, (done, done))
            # Operations that wait in this strip still need the rows that they will go on from.
            waited_for = demand.waiting.get(node, first)
            new, last = max(min(first, waited_for), done), max(last, done)
            if node in demand.wanted or node in reached:
                strip.lines[node] = (min(first, new, waited_for), last, new)
                reached[node] = last
            demand.sources_of(node, new, last)
        strip.reads = demand.reads
        for node in windows.targets - windows.kept:
            first, last = demand.wanted[node]
            strip.reads[node] = first
            strip.lines[node] = (first, last, first)
            reached[node] = last
        return strip
