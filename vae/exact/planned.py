"""Plans the strips of a module without computing them: for a module and a picture that have no data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from .engine import ExactRun, PassRunner
from .operations.graph import Leaf, Node, groups_of
from .operations.leaves import Held
from .planning.schedule import Schedule
from .running.moments import Moments
from .running.pages import Paged
from .running.stores import Slabs
from .running.sums import statistics_of

# Plans are at most so much above the truth: what is planned lower than this share of the highest is not it.
SHARE = 0.6
MOST_FOLLOWED = 500  # strips times the nodes of their pass: a second or two


class PlannedRun(ExactRun):
    """An :class:`ExactRun` that stops short of the work; :attr:`report` tells its peak.

    Maps that the work would leave for later are there without data, so that each later stretch is planned as it would
    be.
    """

    def _run(self, schedule: Schedule, pairs: Sequence[tuple[Node, Tensor]], device: torch.device) -> None:
        for one in schedule.passes:
            for node, purpose in one.targets:
                if purpose in ("stored", "whole"):
                    map_ = torch.empty(node.shape, dtype=node.dtype, device=node.device)
                    node.become(Held(map_, node.rows.dim, node.rows.unit))
                elif purpose != "output":
                    groups = groups_of(purpose)
                    self.statistics[node, groups] = statistics_of(node, groups)
            for node in one.last_reads:
                self._free(node)


class FollowedRun(PlannedRun):
    """An :class:`ExactRun` of the passes with the highest planned peaks, and of the others what they leave.

    For tensors without data, under a tracker: what it sees at most is the peak of the whole run, if that is at least
    :attr:`left`.

    Attributes:
        left: the highest planned peak of the passes that were not run; None: there were too many to run.
    """

    left: int | None = 0

    def _run(self, schedule: Schedule, pairs: Sequence[tuple[Node, Tensor]], device: torch.device) -> None:
        followed = _highest(schedule)
        if not followed or self.left is None:
            self.left = None
            super()._run(schedule, pairs, device)
            return
        self.left = max([self.left, *(peak for at, peak in enumerate(schedule.peaks) if at not in followed)])
        passes = PassRunner(self, schedule, pairs, device)
        for at, (one, windows) in enumerate(zip(schedule.passes, schedule.windows)):
            if at in followed:
                passes.run(one, windows, lambda number: None)
                continue
            _, leaves, moments = passes.takers(one)
            for node in one.last_reads:
                self._free(node)
            _leave(leaves, moments)  # once what they read is gone: a strip at a time, the two are never there at once
            passes.finish(one, leaves, moments)


def _highest(schedule: Schedule) -> set[int]:
    """Passes whose peaks may be the highest in truth; none where they are too many to follow."""
    if schedule.choice.parked or schedule.choice.outside:
        return set()  # copies beside the computation have no place among tensors without data
    least = SHARE * schedule.peak
    found = {at for at, peak in enumerate(schedule.peaks) if peak >= least}
    work = sum(schedule.windows[at].count * len(schedule.passes[at].computed) for at in found)
    return found if work <= MOST_FOLLOWED else set()


def _leave(leaves: Mapping[Node, Leaf], moments: Mapping[tuple[Node, int], Moments]) -> None:
    """What a pass leaves: maps, and statistics of a row that takes no memory itself."""
    for leaf in leaves.values():
        if isinstance(leaf, Paged):
            leaf.open_all()
        elif isinstance(leaf, Slabs):
            leaf.put(0, leaf.node.rows.count, leaf.kernels.empty(leaf.node, leaf.node.rows.count))
    for (node, _), gathered in moments.items():
        shape = list(node.shape)
        shape[node.rows.dim] = node.rows.unit
        gathered.add(torch.empty((), dtype=node.dtype, device=node.device).expand(shape))
