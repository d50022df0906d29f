"""How maps count their rows, and bringing several to the same count."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from ..operations.graph import Node, Rows
from ..operations.join import Join
from ..operations.regroup import Coarsen, Refine, Relabel
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


def relabelled(node: Node, dim: int) -> Node:
    """The only row of a map, which is all of it, as one along ``dim``; maps of several rows as they are."""
    if node.rows.count != 1 or dim == node.rows.dim:
        return node
    return Node(Relabel(), (node,), node.shape, node.dtype, node.device, Rows(dim, 1, node.shape[dim]))


def join(nodes: Sequence[Node]) -> Node | None:
    """Maps one behind the other along the rows, which are counted one by one; None where they do not fit together."""
    first, dim = nodes[0], nodes[0].rows.dim
    if any(node.rows.dim != dim or (node.dtype, node.device) != (first.dtype, first.device) for node in nodes):
        return None
    ends = list(accumulate(node.rows.count for node in nodes))
    shape = (*first.shape[:dim], ends[-1], *first.shape[dim + 1 :])
    return Node(Join((0, *ends[:-1])), nodes, shape, first.dtype, first.device, Rows(dim, ends[-1]))


def picture(node: Node) -> Node | None:
    """``node`` with rows counted one by one, if they are one of the dims behind the channels, but the last."""
    return single(node) if 2 <= node.rows.dim <= len(node.shape) - 2 else None


def place_of(node: Node) -> int:
    """Of the rows among a map's dims, counted from the last one, which is 0."""
    return len(node.shape) - 1 - node.rows.dim


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
    """Maps whose rows were counted differently (a depth-to-space keeps them coarse) brought to the finest count; those
    of one row with it in the same place."""
    nodes = [item.node for item in tensors_in(args) if isinstance(item, Recorded)]
    if len({len(node.shape) - node.rows.dim for node in nodes}) > 1:
        most = max(nodes, key=lambda node: node.rows.count)
        args = _relabelled(recorder, most.rows.dim - len(most.shape), args)
    finest = max(node.rows.count for node in nodes)
    if all(node.rows.count == finest for node in nodes):
        return args

    return _refined(recorder, finest, args)


def _relabelled(recorder: Recorder, place: int, item: Any) -> Any:
    if isinstance(item, (list, tuple)):
        return type(item)(_relabelled(recorder, place, one) for one in item)
    if not isinstance(item, Recorded) or len(item.shape) < -place:
        return item
    node = relabelled(item.node, place % len(item.shape))
    return item if node is item.node else Recorded(node, recorder)


def _refined(recorder: Recorder, finest: int, item: Any) -> Any:
    if isinstance(item, (list, tuple)):
        return type(item)(_refined(recorder, finest, one) for one in item)
    if isinstance(item, Recorded) and item.node.rows.count * item.node.rows.unit == finest:
        return Recorded(single(item.node), recorder)
    return item
