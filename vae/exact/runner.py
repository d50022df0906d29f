"""Runs the passes of a schedule: what takes the rows of each target, and what a pass leaves for later ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .cutting.passes import Pass
from .cutting.windows import Windows
from .operations.graph import Leaf, Node
from .operations.leaves import Held
from .operations.purposes import OUTPUTS, groups_of
from .planning.choice import make_store
from .planning.schedule import Schedule
from .running.kernels import Kernels
from .running.moments import Moments
from .running.pages import Pages
from .running.parking import Parking
from .running.stream import Stream, Taker
from .running.sums import statistics_of

#: Where an output goes: a tensor of its size, or what takes its rows.
Target = Tensor | Taker


class Remains:
    """What passes leave for later ones, also for those of later schedules.

    Attributes:
        statistics: by node and number of groups.
        kept: maps that are there.
    """

    def __init__(self) -> None:
        self.statistics: dict[tuple[Node, int], Moments] = {}
        self.kept: set[Node] = set()

    def free(self, node: Node) -> None:
        """Lets go of a map that a pass left; its node has no rows from now on, and a store of them no slabs."""
        if node not in self.kept:
            return
        self.kept.discard(node)
        node.leaf.free()
        node.op = Held(torch.empty(0), 0)

    def clear(self) -> None:
        """Lets go of everything."""
        self.statistics.clear()
        for node in list(self.kept):
            self.free(node)


@dataclass
class Outlets:
    """Where the targets of a pass go.

    Attributes:
        takers: what takes the rows of each target as they are computed.
        leaves: maps that are there afterwards.
        moments: statistics that are known afterwards, by node and number of groups.
    """

    takers: dict[Node, list[Taker]] = field(default_factory=dict)
    leaves: dict[Node, Leaf] = field(default_factory=dict)
    moments: dict[tuple[Node, int], Moments] = field(default_factory=dict)


class PassRunner:
    """Runs the passes of a schedule: what they store, and what takes it.

    Args:
        remains: what earlier passes left, and what these leave.
        pairs: outputs, and where they go.
        far: bytes -> memory for maps that are stored outside, instead of the system's.
    """

    def __init__(
        self,
        remains: Remains,
        schedule: Schedule,
        pairs: Sequence[tuple[Node, Target]],
        device: torch.device,
        far: Callable[[int], Tensor] | None = None,
    ) -> None:
        self.remains, self.pairs, self.choice = remains, pairs, schedule.choice
        self.kernels = Kernels(device, far)
        self.parking = Parking(device)
        page_bytes = schedule.page_bytes
        self.pages = Pages(page_bytes, self.kernels, self.choice.outside) if page_bytes else None

    def run(self, one: Pass, windows: Windows, before_strip: Callable[[int], None]) -> None:
        """One pass; its targets become leaves.

        Args:
            before_strip: called with each strip's number; may raise to stop.
        """
        outlets = self.outlets(one)
        self.prepare(one, windows)
        reads = {node: node.leaf for node in one.read}
        Stream(windows, reads, outlets.takers, self.remains.statistics, self.kernels).run(before_strip)
        self.finish(one, outlets)

    def prepare(self, one: Pass, windows: Windows) -> None:
        """Has ready what a pass reads."""

    def finish(self, one: Pass, outlets: Outlets) -> None:
        """What the pass made takes the place of what it read."""
        for leaf in (*(node.leaf for node in one.read), *outlets.leaves.values()):
            leaf.rest()
        self.merge(outlets.moments)
        self.remains.statistics |= outlets.moments
        for node, leaf in outlets.leaves.items():
            node.become(leaf)
        self.remains.kept |= set(outlets.leaves)
        for node in one.last_reads:
            self.remains.free(node)

    def close(self) -> None:
        """Ends what is on its way, also after a failure."""
        self.parking.close()
        self.kernels.far = None  # maps that are still there would hold back what is left of its file
        if self.pages is not None:
            self.pages.close()

    def outlets(self, one: Pass) -> Outlets:
        """Where the targets of a pass go."""
        made = Outlets()
        for node, purpose in one.targets:
            takers = made.takers.setdefault(node, [])
            if purpose in ("stored", "whole"):
                made.leaves[node], take = self._stored(node) if purpose == "stored" else self._whole(node)
                takers.append(take)
            elif purpose in OUTPUTS:
                given = [out for other, out in self.pairs if other is node]
                takers += [into(out, node) if isinstance(out, Tensor) else out for out in given]
            else:
                groups = groups_of(purpose)
                made.moments[node, groups] = moments = statistics_of(node, groups)
                takers.append(_adding(moments))
        return made

    def merge(self, gathered: Mapping[tuple[Node, int], Moments]) -> None:
        """Makes statistics of those of strips: of a thousand these take a MiB."""
        for moments in gathered.values():
            moments.merge()

    def _stored(self, node: Node) -> tuple[Leaf, Taker]:
        """Where a map is kept, and what takes its rows."""
        store = make_store(node, self.choice, self.kernels, self.pages, self.parking)
        return store, store.append

    def _whole(self, node: Node) -> tuple[Leaf, Taker]:
        """The same for a map that is wanted in one piece."""
        whole = torch.empty(node.shape, dtype=node.dtype, device=node.device)
        return Held(whole, node.rows.dim, node.rows.unit), into(whole, node)


def into(out: Tensor, node: Node, begin: int = 0) -> Taker:
    """Copies the rows of a map to where they belong in a tensor of its size, or of its rows from ``begin`` on."""

    def take(first: int, rows: Tensor, own: bool) -> None:
        node.cut(out, first - begin, rows.shape[node.rows.dim] // node.rows.unit).copy_(rows)

    return take


def _adding(moments: Moments) -> Taker:
    return lambda first, rows, own: moments.add(rows)
