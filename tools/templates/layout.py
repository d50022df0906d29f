"""Places nodes on the browser's canvas: stages from left to right, in each its nodes in layers, by the links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Size = tuple[int, int]
Links = Sequence[tuple[str, str]]  # from a node to a node

TITLE, GAP, MARGIN, HEADING = 30, 40, 30, 50  # of a node, between nodes, of a group, above its nodes


def place(sizes: Mapping[str, Size], links: Links, stages: Sequence[Sequence[str]]) -> dict[str, tuple[int, int]]:
    """The corner of each node below its title, in the canvas's units.

    Args:
        sizes: width and height of each node with all that may become visible on it, without its title.
        links: which node leads to which.
        stages: the nodes of each, from left to right.
    """
    corners: dict[str, tuple[int, int]] = {}
    left = 0
    for stage in stages:
        for layer in _layers(stage, links):
            top = 0
            for node in sorted(layer, key=lambda one: _height(one, links, corners)):
                corners[node] = left, top
                top += sizes[node][1] + TITLE + GAP
            left += max(sizes[node][0] for node in layer) + GAP
        left += 2 * MARGIN
    return corners


def _layers(stage: Sequence[str], links: Links) -> list[list[str]]:
    """Nodes in columns: each right of those of this stage that lead to it."""
    inside = [(start, end) for start, end in links if start in stage and end in stage]
    rank = dict.fromkeys(stage, 0)
    for _ in stage:  # the longest path visits each node once
        for start, end in inside:
            rank[end] = max(rank[end], rank[start] + 1)
    return [[node for node in stage if rank[node] == layer] for layer in range(max(rank.values()) + 1)]


def _height(node: str, links: Links, corners: Mapping[str, tuple[int, int]]) -> float:
    """The mean height of what leads to a node, so that its links run level; nodes without any come last."""
    before = [corners[start][1] for start, end in links if end == node and start in corners]
    return sum(before) / len(before) if before else float("inf")


def around(corners: Sequence[tuple[int, int]], sizes: Sequence[Size]) -> list[int]:
    """The rectangle of a group about nodes: left, top, width, height."""
    left, top = min(x for x, _ in corners) - MARGIN, min(y for _, y in corners) - TITLE - HEADING
    right = max(x + width for (x, _), (width, _) in zip(corners, sizes))
    bottom = max(y + height for (_, y), (_, height) in zip(corners, sizes))
    return [left, top, right + MARGIN - left, bottom + MARGIN - top]
