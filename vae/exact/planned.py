"""Plans the strips of a module without computing them: for a module and a picture that have no data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .engine import ExactRun, zeros
from .operations.graph import Node
from .operations.leaves import Held
from .operations.purposes import OUTPUTS, groups_of
from .planning.schedule import Schedule
from .recording.value import CannotRecord
from .runner import Outlets, PassRunner, Target
from .running.stores import RowStore
from .running.sums import statistics_of

# No plan is further above the truth than this: a pass planned below this share of the highest peak has not the highest.
SHARE = 0.6
MOST_FOLLOWED = 500  # strips times the nodes of their pass: a second or two


class PlannedRun(ExactRun):
    """An :class:`ExactRun` that plans and does not run; :attr:`report` tells its peak.

    Maps that a run would leave for later passes are there without data and without memory, so that each later schedule
    is planned as in a run, also on a device that has no room for it. No random numbers are drawn, and no room is taken
    for the result, of which there may be no second one.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.recorder.draws = False
        self.new = without_room

    def stream(self, take: Callable[[Tensor], None], module: Callable[..., Any], x: Tensor, **kwargs: Any) -> None:
        """Nothing is handed on."""
        super().stream(lambda rows: None, module, x, **kwargs)

    def _run(self, schedule: Schedule, pairs: Sequence[tuple[Node, Target]], device: torch.device) -> None:
        for one in schedule.passes:
            for node, purpose in one.targets:
                if purpose in ("stored", "whole"):
                    map_ = torch.empty(node.shape, dtype=node.dtype, device="meta")
                    node.become(Held(map_, node.rows.dim, node.rows.unit))
                elif purpose not in OUTPUTS:
                    groups = groups_of(purpose)
                    self.remains.statistics[node, groups] = statistics_of(node, groups)
            for node in one.last_reads:
                self.remains.free(node)


def without_room(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor that has one value in the place of all, and is not written to."""
    return torch.empty((), dtype=dtype, device=device).expand(tuple(shape))


class UnbrokenRun(PlannedRun):
    """A :class:`PlannedRun` of what strips follow from end to end: a function that asks for a whole map ends it."""

    def _materialise(self, node: Node) -> Tensor:
        raise CannotRecord(f"{self.recorder.materialised[-1]} asks for a whole map")


class FollowedRun(PlannedRun):
    """An :class:`ExactRun` of the passes with the highest planned peaks; of the others only what they leave.

    For tensors without data, under a tracker. The highest that it sees is the peak of the whole run, if it is no lower
    than :attr:`left`.

    Attributes:
        left: the highest planned peak of the passes that were not run; None: there were too many to run.
    """

    left: int | None = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.new = zeros

    def _run(self, schedule: Schedule, pairs: Sequence[tuple[Node, Target]], device: torch.device) -> None:
        followed = _highest(schedule)
        if not followed or self.left is None:
            self.left = None
            super()._run(schedule, pairs, device)
            return
        self.left = max([self.left, *(peak for at, peak in enumerate(schedule.peaks) if at not in followed)])
        passes = PassRunner(self.remains, schedule, pairs, device)
        for at, (one, windows) in enumerate(zip(schedule.passes, schedule.windows)):
            if at in followed:
                passes.run(one, windows, lambda number: None)
                continue
            outlets = passes.outlets(one)
            for node in one.last_reads:
                self.remains.free(node)
            _leave(outlets)  # once what the pass read is gone: strip by strip, the two are never there at once
            passes.finish(one, outlets)


def _highest(schedule: Schedule) -> set[int]:
    """Passes whose peaks may be the highest in truth; none where they are too many to follow."""
    if schedule.choice.parked or schedule.choice.outside:
        return set()  # copies beside the computation have no place among tensors without data
    least = SHARE * schedule.peak
    found = {at for at, peak in enumerate(schedule.peaks) if peak >= least}
    work = sum(schedule.windows[at].count * len(schedule.passes[at].computed) for at in found)
    return found if work <= MOST_FOLLOWED else set()


def _leave(outlets: Outlets) -> None:
    """What a pass leaves: maps, and statistics of a row that takes no memory itself."""
    for store in outlets.leaves.values():
        if isinstance(store, RowStore):
            store.open([(0, store.node.rows.count)], partial(store.kernels.empty, store.node))
    for (node, _), moments in outlets.moments.items():
        shape = list(node.shape)
        shape[node.rows.dim] = node.rows.unit
        moments.add(torch.empty((), dtype=node.dtype, device=node.device).expand(shape))
