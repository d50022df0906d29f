"""Places on the browser's canvas for nodes that are put into a graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..formats import as_number
from ..litegraph import NodeData

TITLE_HEIGHT, GAP = 30.0, 30.0  # of the browser's nodes, in its units; pos is the corner below the title


def free_place(data: Mapping[str, Any], beside: NodeData, size: tuple[float, float]) -> tuple[float, float]:
    """A free place left of a node or above or below that, so that nothing else has to move.

    Args:
        data: the graph, as the browser saves it.
        beside: a node of it.
        size: width and height of what is to stand there, without its title.
    """
    left, top = _pair(beside.get("pos"), (0.0, 0.0))
    taken = [_box(node) for node in data["nodes"]]
    step = size[1] + TITLE_HEIGHT + GAP
    for column in range(1, 50):
        for row in (0, -1, 1, -2, 2, -3, 3):
            place = left - column * (size[0] + GAP), top + row * step
            if not any(_overlap((*place, *size), other) for other in taken):
                return place
    return left - size[0] - GAP, top


def _box(node: NodeData) -> tuple[float, float, float, float]:
    return *_pair(node.get("pos"), (0.0, 0.0)), *_pair(node.get("size"), (200.0, 100.0))


def _pair(value: Any, default: tuple[float, float]) -> tuple[float, float]:
    """Two numbers, which old files save as {"0": …, "1": …}."""
    if isinstance(value, dict):
        value = [value.get("0"), value.get("1")]
    if not isinstance(value, list) or len(value) < 2 or None in map(as_number, value[:2]):
        return default
    return float(value[0]), float(value[1])


def _overlap(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    """Whether two nodes, (left, top, width, height) with the title above, touch."""
    return (
        one[0] < other[0] + other[2]
        and other[0] < one[0] + one[2]
        and one[1] - TITLE_HEIGHT < other[1] + other[3]
        and other[1] - TITLE_HEIGHT < one[1] + one[3]
    )
