"""Plans the strips of a module without computing them: for a module and a picture that have no data."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .engine import ExactRun
from .graph import Node
from .moments import Moments
from .ops import Held
from .schedule import Schedule


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
                    groups = int(purpose.partition(":")[2])
                    self.statistics[node, groups] = Moments(groups)
            for node in one.last_reads:
                self._free(node)
