"""Cutting the computation into passes over the picture's rows.

Group norm needs statistics of a whole map before its first row, attention all keys and values: each such need ends a
pass. Within a pass strips of rows run through all operations. What a later pass needs again is stored or recomputed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ..operations.graph import Need, Node, ancestors
from ..operations.purposes import OUTPUTS
from .uses import Uses

# A map that takes at most this many operations per element to recompute is cheap, and is never stored: a 3 x 3
# convolution of the three channels of a picture takes 54, one of 128 channels 2304.
CHEAP = 100.0


@dataclass
class Pass:
    """One run over the rows.

    Attributes:
        results: what must come out: (node, purpose), purpose "moments:<groups>", "whole", "output",
            or "sent": an output whose strips are sent to host memory.
        stored: nodes computed here and kept for later passes.
        computed: all nodes computed here, in order.
        read: leaves and stored nodes that are read.
        last_reads: of these, the ones no later pass reads.
    """

    results: list[tuple[Node, str]]
    stored: list[Node] = field(default_factory=list)
    computed: list[Node] = field(default_factory=list)
    read: list[Node] = field(default_factory=list)
    last_reads: list[Node] = field(default_factory=list)

    @cached_property
    def uses(self) -> Uses:
        """Which nodes are kept in lines and when each is read last, whatever the height of strips."""
        return Uses(self.computed, {node for node, _ in self.targets}, self.read)

    @cached_property
    def clock(self) -> Node:
        """The target with the fewest rows: strips are counted in them."""
        return min((node for node, _ in self.targets), key=lambda node: node.rows.count)

    @cached_property
    def widest(self) -> int:
        """Bytes of the largest map that is computed, without padding."""
        nodes = [node for node in self.computed if not node.op.is_padding] or [node for node, _ in self.targets]
        return max(node.bytes for node in nodes)

    @property
    def targets(self) -> Iterator[tuple[Node, str]]:
        """What comes out: results and what is stored, each with its purpose."""
        yield from self.results
        for node in self.stored:
            yield node, "stored"


def needs_of(nodes: Iterable[Node]) -> Iterator[Need]:
    """What must be known of whole maps before these nodes can run in strips."""
    for node in nodes:
        yield from node.op.whole_needs(node)


class Analysis:
    """Which passes there are, whatever is stored: the order of needs, and in which pass each node is first computed.

    Args:
        outputs: the maps wanted.
        later: maps that may be wanted after that.
        known: needs met already.
        sent: outputs that are sent to host memory.
    """

    def __init__(
        self,
        outputs: Sequence[Node],
        later: Sequence[Node],
        known: Iterable[Need] = (),
        sent: Collection[Node] = (),
    ) -> None:
        self.outputs, self.sent = list(outputs), frozenset(sent)
        self.nodes = ancestors(outputs)
        met = set(known)
        self.steps = self._steps(met)
        self.first: dict[Node, int] = {}
        for index, step in enumerate(self.steps):
            for node in _unassigned([node for node, _ in step], self.first):
                self.first[node] = index
        for node in _unassigned(later, self.first):
            self.first[node] = len(self.steps)
        self.consumers: dict[Node, list[Node]] = {}
        for node in self.first:
            for source in node.sources:
                self.consumers.setdefault(source, []).append(node)
        self.later = list(later)
        self.storable = self._storable()

    def _steps(self, met: set[Need]) -> list[list[tuple[Node, str]]]:
        steps: list[list[tuple[Node, str]]] = []
        inside: set[Node] = set()
        assigned: set[Node] = set()
        open_needs: set[Need] = set()
        for need in needs_of(self.nodes):
            if need in met:
                continue
            met.add(need)
            if need.purpose == "whole" and need.node.op.is_tensor:
                continue
            below = {node for node in _unassigned([need.node], assigned) if not node.is_leaf}
            waits = any(other in open_needs for other in needs_of(below))
            if steps and not waits and below & inside and _same_height(need.node, steps[-1][0][0]):
                steps[-1].append((need.node, need.purpose))
            else:
                assigned |= inside
                inside, open_needs = set(), set()
                steps.append([(need.node, need.purpose)])
                below = {node for node in _unassigned([need.node], assigned) if not node.is_leaf}
            inside |= below
            open_needs.add(need)
        steps.append([(node, "sent" if node in self.sent else "output") for node in self.outputs])
        return steps

    def _storable(self) -> list[Node]:
        """Nodes that a later pass uses again and that are not cheap to compute anew."""
        cost: dict[Node, float] = {}
        storable = []
        wanted_later = set(self.later)
        for node in sorted(self.first, key=lambda node: node.order):
            index = self.first[node]
            if node.is_leaf:
                cost[node] = 0.0
                continue
            streamed = (source for source in node.op.streamed(node) if self.first[source] == index)
            of_sources = sum(cost[source] * _elements(source) for source in streamed)
            cost[node] = (node.op.flops(node) + of_sources) / _elements(node)
            again = node in wanted_later or any(self.first[user] > index for user in self.consumers.get(node, ()))
            if again and cost[node] > CHEAP and index < len(self.steps):
                storable.append(node)
                cost[node] = 0.0
        return storable

    def passes(self, recomputed: frozenset[Node] = frozenset()) -> list[Pass]:
        """The passes when all storable nodes but ``recomputed`` are stored."""
        keep = [(node, self.first[node]) for node in self.storable if node not in recomputed]
        passes = self._passes(keep)
        for node, index in self._shortcuts({node for node, _ in keep}):
            if node.sources[0] not in passes[index].last_reads:
                continue
            earlier = self._passes([*keep, (node, index - 1)])
            if node.sources[0] in earlier[index - 1].last_reads:
                keep.append((node, index - 1))
                passes = earlier
        return passes

    def _passes(self, keep: Sequence[tuple[Node, int]]) -> list[Pass]:
        done: set[Node] = set()
        passes = []
        for index, step in enumerate(self.steps):
            whole = {node for node, purpose in step if purpose in ("whole", *OUTPUTS)}
            one = Pass(list(step), [node for node, at in keep if at == index and node not in whole])
            _walk(one, done)
            done |= {*one.stored, *whole}
            passes.append(one)
        _last_reads(passes, self.later, done)
        return passes

    def _shortcuts(self, stored: set[Node]) -> list[tuple[Node, int]]:
        """Pointwise convolutions to fewer channels of a stored map, each with the pass that wants it.

        The shortcut of a residual block is wanted one pass after the other reader of its map. Computed in the pass of
        that reader, it takes the place of the wider map.
        """
        return [
            (node, index)
            for node, index in self.first.items()
            if node.op.is_pointwise
            and node.sources[0] in stored
            and node.bytes < node.sources[0].bytes
            and self.first[node.sources[0]] < index - 1
            and index < len(self.steps)
        ]


def _unassigned(roots: Iterable[Node], assigned: Iterable[Node]) -> list[Node]:
    """The roots and what they are computed from, down to nodes that have a pass already."""
    seen: set[Node] = set()
    pending = list(roots)
    while pending:
        node = pending.pop()
        if node not in seen and node not in assigned:
            seen.add(node)
            pending.extend(node.sources)
    return sorted(seen, key=lambda node: node.order)


def _walk(one: Pass, stored: set[Node]) -> None:
    """Fills in what the pass computes and reads."""
    seen: set[Node] = set()
    pending = [node for node, _ in one.targets]
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.is_leaf or node in stored:
            one.read.append(node)
        else:
            one.computed.append(node)
            pending.extend(node.sources)
    one.computed.sort(key=lambda node: node.order)
    one.read.sort(key=lambda node: node.order)


def _last_reads(passes: list[Pass], later: Sequence[Node], stored: set[Node]) -> None:
    """Fills in which of the maps that a pass reads no later pass reads."""
    final = Pass([(node, "later") for node in later])
    _walk(final, stored)
    still = set(final.read)
    for one in reversed(passes):
        one.last_reads = [node for node in one.read if node not in still]
        still.update(one.read)


def _same_height(node: Node, other: Node) -> bool:
    return node.rows.count == other.rows.count


def _elements(node: Node) -> int:
    return node.row_elements * node.rows.count
