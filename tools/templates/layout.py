"""Places nodes on the browser's canvas: a note, then stages in one row or two, as large as the screen allows.

In a row, lower stages stand below each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

Size = tuple[int, int]
Corner = tuple[int, int]
Links = Sequence[tuple[str, str]]  # from a node to a node

TITLE, GAP, MARGIN, HEADING = 30, 16, 10, 36  # of a node, between nodes, of a group, above its nodes
VIEW, SHARE = (1600, 900), 0.75  # pixels of a screen that is not large; of which a template takes so much when it opens
HEIGHTS = range(300, 1200, 25)  # of a column of nodes at the most, that are tried


@dataclass(frozen=True)
class Layout:
    """Where everything is.

    Attributes:
        corners: of each node, below its title, in the canvas's units.
        note: of the note, below its title.
        size: of the whole.
    """

    corners: Mapping[str, Corner]
    note: Corner
    size: Size

    @property
    def zoom(self) -> float:
        """At which it opens."""
        return SHARE * min(VIEW[0] / self.size[0], VIEW[1] / self.size[1])


@dataclass(frozen=True)
class _Block:
    """A stage in columns: corners from that of its group, which is of this size."""

    corners: Mapping[str, Corner]
    size: Size


def place(sizes: Mapping[str, Size], links: Links, stages: Sequence[Sequence[str]], note: Size) -> Layout:
    """The largest of the ways to place them: columns of any height, the stages in one row or two, the note left of both
    or of the first, or with the first stage below it.

    Args:
        sizes: width and height of each node with all that may become visible on it, without its title.
        links: which node leads to which.
        stages: the nodes of each, from left to right.
        note: the size of the note.
    """
    return max(_ways(sizes, links, stages, note), key=lambda way: way.zoom)


def _ways(sizes: Mapping[str, Size], links: Links, stages: Sequence[Sequence[str]], note: Size) -> Iterator[Layout]:
    blocks = {height: [_block(stage, sizes, links, height) for stage in stages] for height in HEIGHTS}
    for above, below, cut in product(HEIGHTS, HEIGHTS, range(1, len(stages) + 1)):
        rows = [row for row in (blocks[above][:cut], blocks[below][cut:]) if row]
        for beside_both in (False, True):
            yield _in_rows(rows, note, beside_both)
    firsts = {block.size: block for (block, *_) in blocks.values()}
    for above, below, cut in product(HEIGHTS, HEIGHTS, range(2, len(stages) + 1)):
        rows = [row for row in (blocks[above][1:cut], blocks[below][cut:]) if row]
        for first in firsts.values():
            yield _in_rows(rows, note, True, first)


def _block(stage: Sequence[str], sizes: Mapping[str, Size], links: Links, most: int) -> _Block:
    """One below the other, each behind those of its stage that lead to it, in a column more where they get too high."""
    corners: dict[str, Corner] = {}
    left = width = bottom = 0
    top = HEADING
    for node in _in_order(stage, links):
        high = sizes[node][1] + TITLE
        if top > HEADING and top + high > most:
            left, width, top = left + width + GAP, 0, HEADING
        corners[node] = MARGIN + left, top + TITLE
        top += high + GAP
        width, bottom = max(width, sizes[node][0]), max(bottom, top - GAP)
    return _Block(corners, (left + width + 2 * MARGIN, bottom + MARGIN))


def _in_rows(rows: Sequence[Sequence[_Block]], note: Size, beside_both: bool, first: _Block | None = None) -> Layout:
    """Row below row; of two the second begins right of the note only if that reaches beside it. ``first`` stands below
    the note."""
    note_width, note_height = note[0] + GAP, note[1] + TITLE
    corners: dict[str, Corner] = {}
    if first is not None:
        corners = {node: (x, note_height + GAP + y) for node, (x, y) in first.corners.items()}
        note_width, note_height = max(note_width, first.size[0] + GAP), note_height + GAP + first.size[1]
    width = top = 0
    for number, row in enumerate(rows):
        left = note_width if beside_both or not number else 0
        high = max(block.size[1] for block in row)
        wide = below = 0  # of what stands in the column that is being filled
        for block in row:
            if below + block.size[1] > high:
                left, wide, below = left + wide + GAP, 0, 0
            corners |= {node: (left + x, top + below + y) for node, (x, y) in block.corners.items()}
            wide, below = max(wide, block.size[0]), below + block.size[1] + GAP
        top += max(high, 0 if beside_both or number else note_height) + GAP
        width = max(width, left + wide)
    return Layout(corners, (0, TITLE), (width, max(top - GAP, note_height)))


def _in_order(stage: Sequence[str], links: Links) -> list[str]:
    inside = [(start, end) for start, end in links if start in stage and end in stage]
    rank = dict.fromkeys(stage, 0)
    for _ in stage:  # the longest path visits each node once
        for start, end in inside:
            rank[end] = max(rank[end], rank[start] + 1)
    return sorted(stage, key=lambda node: rank[node])


def around(corners: Sequence[Corner], sizes: Sequence[Size]) -> list[int]:
    """The rectangle of a group about nodes: left, top, width, height."""
    left, top = min(x for x, _ in corners) - MARGIN, min(y for _, y in corners) - TITLE - HEADING
    right = max(x + width for (x, _), (width, _) in zip(corners, sizes))
    bottom = max(y + height for (_, y), (_, height) in zip(corners, sizes))
    return [left, top, right + MARGIN - left, bottom + MARGIN - top]
