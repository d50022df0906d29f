"""Which nodes of a pass keep rows from strip to strip, and when each of them is read last."""

from __future__ import annotations

from collections.abc import Sequence

from ..operations.graph import Node

NEVER = -1


class Uses:
    """What holds for strips of any height.

    Args:
        computed: all nodes of the pass, in order.
        targets: nodes that must come out.
        read: leaves and stored nodes that are read.

    Attributes:
        kept: nodes whose latest rows are kept in a line; ``order``: the same in the order of computation.
        last_use, last_read: per position in the order, the lines and the leaves that no later position reads.
    """

    def __init__(self, computed: Sequence[Node], targets: set[Node], read: Sequence[Node]) -> None:
        leaves = set(read)
        self.kept = _kept(computed, targets, leaves)
        self.order = [node for node in computed if node in self.kept]
        self.last_use = _last_use(self.order, self.kept, computed)
        self.last_read = _last_use(self.order, leaves, computed)


def _kept(computed: Sequence[Node], targets: set[Node], read: set[Node]) -> set[Node]:
    """Nodes whose latest rows are kept in a line: targets, and what overlapping windows or several others read."""
    readers: dict[Node, int] = {}
    overlapping: set[Node] = set()
    for node in computed:
        for source in node.sources:
            readers[source] = readers.get(source, 0) + 1
        if node.op.overlaps:
            overlapping.add(node.sources[0])
    kept: set[Node] = set()
    for node in computed:
        of_kept = node.op.is_view and (node.sources[0] in kept or node.sources[0].is_leaf or node.sources[0] in read)
        if node in targets or node in overlapping or (readers.get(node, 0) > 1 and not of_kept):
            kept.add(node)
    return kept


def _last_use(order: Sequence[Node], looked_for: set[Node], computed: Sequence[Node]) -> dict[int, list[Node]]:
    """Per position in the order, the lines (or leaves) that no later position reads, itself or through other nodes."""
    places = {node: position for position, node in enumerate(order)}
    last = {node: position for node, position in places.items() if node in looked_for}
    reached: dict[Node, int] = {}  # the last position that a node is computed for
    for node in reversed(computed):
        position = places.get(node, NEVER)
        if node not in looked_for:
            position = max(position, reached.get(node, NEVER))
        for source in node.sources if position > NEVER else ():
            if source in looked_for:
                last[source] = max(position, last.get(source, NEVER))
            else:
                reached[source] = max(position, reached.get(source, NEVER))
    by_position: dict[int, list[Node]] = {}
    for node, position in last.items():
        by_position.setdefault(position, []).append(node)
    return by_position
