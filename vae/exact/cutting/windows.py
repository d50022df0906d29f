"""The strips of a pass: which rows of each map every one of them computes, keeps and reads."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import pairwise

from ..operations.graph import Node
from .passes import Pass
from .share import WHOLE, Share
from .strip import Demand, Reach, Strip

# Strips at either end that are looked at one by one; those between them are alike.
AT_TOP, AT_BOTTOM = 3, 3


class Windows:
    """The rows of each strip of a pass.

    Nodes read through overlapping windows or by several others keep their latest rows in lines, so that no row is
    computed twice; all other nodes are computed for the rows that their one reader asks for.

    Args:
        one: the pass.
        rows: height of a strip, in rows of the pass's clock.
        share: the rows of every map that are computed: all of them, or one worker's.
    """

    def __init__(self, one: Pass, rows: int, share: Share = WHOLE) -> None:
        self.one, self.rows, self.share = one, rows, share
        uses = one.uses
        self.kept, self.order = uses.kept, uses.order
        self.last_use, self.last_read = uses.last_use, uses.last_read
        self.targets = {node for node, _ in one.targets}
        self.read = set(one.read)
        self.clock = one.clock.rows.count
        self.first, self.last = share.of_node(one.clock)
        self.viewed = self._viewed()
        self.read_by_targets = (self.targets - self.kept) & self.read

    @property
    def count(self) -> int:
        """How many strips there are."""
        return -(-(self.last - self.first) // self.rows)

    def end(self, number: int) -> int:
        """The row of the pass's clock that strip ``number``, counted from 1, ends at."""
        return min(self.last, self.first + number * self.rows)

    def done(self, node: Node, number: int) -> int:
        """The row of a target that strip ``number`` ends at."""
        first, last = self.share.of_node(node)
        return last if number >= self.count else min(max(first, node.rows.count * self.end(number) // self.clock), last)

    def strips(self) -> Iterator[Strip]:
        """In order, top to bottom."""
        descent = Descent(self)
        for number in range(1, self.count + 1):
            yield descent.to(number)

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
                yield descent.to(number - 1), number - 1 - before
            yield descent.to(number), 1
            before = number

    def reach(self) -> dict[Node, tuple[int, int]]:
        """What the band reads of each map, without what an operation wants whole: first row and end."""
        if not self.count:
            return {}
        band = Windows(self.one, max(1, self.last - self.first), self.share)
        strip = Descent(band, Reach).to(1)
        return {node: (first, strip.ends[node]) for node, first in strip.reads.items()}

    def edges(self, node: Node, start: int, stop: int) -> list[tuple[int, int]]:
        """Rows [start, stop) of a target as the strips compute them: (first row, end) of each."""
        numbers = range(1, self.count)

        def cut(number: int) -> int:
            return self.done(node, number)

        inside = numbers[bisect_right(numbers, start, key=cut) : bisect_left(numbers, stop, key=cut)]
        return list(pairwise([start, *map(cut, inside), stop]))

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
        demand: gathers what a strip wants.
    """

    def __init__(self, windows: Windows, demand: type[Demand] = Demand) -> None:
        self.windows, self.demand = windows, demand
        self.reached: dict[Node, int] = {}

    def to(self, number: int) -> Strip:
        """The strip of this number, counted from 1, or all from the last one on up to it."""
        windows, reached = self.windows, self.reached
        demand, strip = self.demand(windows.kept, windows.read), Strip()
        for node in windows.targets:
            first = reached.get(node, windows.share.of_node(node)[0])
            demand.wanted[node] = (first, windows.done(node, number))
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
        strip.reads, strip.ends = demand.reads, demand.ends
        for node in windows.targets - windows.kept:
            first, last = demand.wanted[node]
            strip.reads[node], strip.ends[node] = first, last
            strip.lines[node] = (first, last, first)
            reached[node] = last
        return strip
