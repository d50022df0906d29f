"""How maps count their rows, and bringing several to the same count."""

from __future__ import annotations

from typing import Any

from ..operations.graph import Node, Rows
from ..operations.regroup import Coarsen, Refine
from ..recording.record import Recorded, Recorder, is_plain, tensors_in


def single(node: Node) -> Node:
    """Rows that lie together in units counted one by one."""
    if node.rows.unit == 1:
        return node
    rows = Rows(node.rows.dim, node.rows.count * node.rows.unit)
    return Node(Refine(node.rows.unit), (node,), node.shape, node.dtype, node.device, rows)


def coarsened(node: Node, factor: int) -> Node:
    """Several rows counted as one."""
    rows = Rows(node.rows.dim, node.rows.count // factor, node.rows.unit * factor)
    return Node(Coarsen(factor), (node,), node.shape, node.dtype, node.device, rows)


def picture(node: Node) -> Node | None:
    """``node`` with rows counted one by one, if they are the second to last dim."""
    return single(node) if node.rows.dim == len(node.shape) - 2 and node.rows.dim >= 2 else None


def same_rows(args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether all maps have their rows in the same place, and other tensors are constant along them."""
    tensors = list(tensors_in((args, list(kwargs.values()))))
    maps = [item.node for item in tensors if isinstance(item, Recorded)]
    places = {(len(node.shape) - node.rows.dim, node.rows.count, node.rows.unit) for node in maps}
    if len(places) != 1:
        return False
    from_end = places.pop()[0]
    return all(
        isinstance(item, Recorded) or item.ndim < from_end or item.shape[item.ndim - from_end] == 1 for item in tensors
    )


def joined(recorder: Recorder, args: Any) -> Any:
    """Arguments in which plain tensors as large as the maps have become maps too."""
    node = next(item.node for item in tensors_in(args) if isinstance(item, Recorded))
    from_end = len(node.shape) - node.rows.dim

    return _joined(recorder, node, from_end, args)


def _joined(recorder: Recorder, node: Node, from_end: int, item: Any) -> Any:
    if isinstance(item, (list, tuple)):
        return type(item)(_joined(recorder, node, from_end, one) for one in item)
    if not is_plain(item) or item.ndim < from_end or node.rows.unit != 1:
        return item
    dim = item.ndim - from_end
    return recorder.leaf(item, dim) if item.shape[dim] == node.rows.count != 1 else item


def aligned(recorder: Recorder, args: Any) -> Any:
    """Maps whose rows were counted differently (a depth-to-space keeps them coarse) brought to the finest count."""
    nodes = [item.node for item in tensors_in(args) if isinstance(item, Recorded)]
    finest = max(node.rows.count for node in nodes)
    if all(node.rows.count == finest for node in nodes):
        return args

    return _refined(recorder, finest, args)


def _refined(recorder: Recorder, finest: int, item: Any) -> Any:
    if isinstance(item, (list, tuple)):
        return type(item)(_refined(recorder, finest, one) for one in item)
    if isinstance(item, Recorded) and item.node.rows.count * item.node.rows.unit == finest:
        return Recorded(single(item.node), recorder)
    return item
