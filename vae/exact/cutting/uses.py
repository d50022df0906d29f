"""Which nodes of a pass keep rows from strip to strip, and when each of them is read last."""

from __future__ import annotations

from collections.abc import Sequence

from ..operations.graph import Node


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
        inside, leaves = set(computed), set(read)
        self.kept = _kept(computed, targets, leaves)
        self.order = [node for node in computed if node in self.kept]
        self.last_use = _last_use(self.order, self.kept, inside)
        self.last_read = _last_use(self.order, leaves, inside)


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


def _last_use(order: Sequence[Node], looked_for: set[Node], computed: set[Node]) -> dict[int, list[Node]]:
    """Per position in the order, the lines (or leaves) that no later position reads, itself or through other nodes."""
    last: dict[Node, int] = {node: position for position, node in enumerate(order) if node in looked_for}
    for position, node in enumerate(order):
        pending, seen = list(node.sources), set(node.sources)
        while pending:
            source = pending.pop()
            if source in looked_for:
                last[source] = position
            elif source in computed:
                # Each once: in a chain of sums every node is reached along twice as many ways as the one after it.
                pending += [one for one in source.sources if one not in seen]
                seen.update(source.sources)
    by_position: dict[int, list[Node]] = {}
    for node, position in last.items():
        by_position.setdefault(position, []).append(node)
    return by_position
