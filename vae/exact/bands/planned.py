"""Plans a worker's part of an exact run over several, without computing it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..operations.graph import Node
from ..operations.leaves import Held
from ..operations.purposes import OUTPUTS, groups_of
from ..planned import PlannedRun
from ..planning.schedule import Schedule
from ..runner import Target
from ..running.banded import Banded
from ..running.kernels import Kernels
from ..running.sums import statistics_of
from .run import BandRun


class PlannedBand(PlannedRun, BandRun):
    """A :class:`.run.BandRun` that plans and does not run, in the same talk with the other workers; its report tells
    its peak and what it will receive."""

    def _run(self, schedule: Schedule, pairs: Sequence[tuple[Node, Target]], device: torch.device) -> None:
        for one in schedule.passes:
            for node, purpose in one.targets:
                if purpose in ("stored", "whole"):
                    band = torch.empty(node.slab_shape(self.band.height(node)), dtype=node.dtype, device="meta")
                    held = Held(band, node.rows.dim, node.rows.unit)
                    node.become(Banded(node, held, self.band, Kernels(device)))
                elif purpose not in OUTPUTS:
                    groups = groups_of(purpose)
                    self.remains.statistics[node, groups] = statistics_of(node, groups)
            for node in one.last_reads:
                self.remains.free(node)

    def _complete(self, pairs: Sequence[tuple[Node, Tensor]]) -> None:
        for node, _ in pairs:
            self.report.received += node.bytes - self.band.bytes_of(node)
