"""Plans the strips of a video that goes chunk by chunk, without computing them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .chunked import ALIKE, ChunkedRun, Portion
from .engine import PLACES, DoesNotFit
from .operations.graph import Node
from .operations.leaves import Held
from .parts import ModulePart, PlaceOf
from .planned import PlannedRun
from .planning.schedule import Schedule, SlabRows
from .running.carried import Carried


class PlannedChunks(PlannedRun, ChunkedRun):
    """A :class:`ChunkedRun` that plans the first chunks, after which they are alike, and does not run."""

    most = ALIKE
    least = 0  # bytes of the chunk that needs most, where that is more than the budget

    def __init__(self, *others: Any, **named: Any) -> None:
        super().__init__(*others, **named)
        self.hold = lambda shape, dtype: torch.empty((), dtype=dtype).expand(shape)

    def _each(self, take: Callable[[Tensor], None], x: Tensor) -> None:
        super()._each(take, x)
        if self.least:
            raise DoesNotFit(self.least)

    def _of_all(self, work: ModulePart, x: Tensor, share: Portion, result: PlaceOf | None = None) -> list[Tensor]:
        before, tried, there = self.least, list[int](), self._beside()
        self.far = self.hold if self.holds_on_disk else None
        for place in PLACES.values():
            self.recorder.place, self.least = place, 0
            self.beside, self.held, self.report.aside = list(there[0]), list(there[1]), there[2]
            outs = self.chunk(work, result=result, opened=partial(self.opened, x))
            tried.append(self.least)
            if not self.least:
                break
        self.recorder.place, self.least, self.far = PLACES["rows"], max(before, min(tried)), None
        return outs

    def _put(self, place: Tensor, frames: Tensor) -> None:
        """There is no result."""

    def _empty(self, node: Node) -> Tensor:
        return torch.empty(node.shape, dtype=node.dtype, device="meta")

    def _stays(self, node: Node) -> bool:
        # In a run, what an earlier pass left is a store of rows, and here a tensor without data.
        planned = self.outside and isinstance(node.op, Held) and node.op.tensor.device.type == "meta"
        return super()._stays(node) and not planned

    def _parking(self, device: torch.device) -> None:
        """Nothing is copied."""

    def _end(self, store: Carried, layout: SlabRows) -> None:
        store.lay(layout)

    def _too_large(self, schedule: Schedule) -> None:
        self.least = max(self.least, schedule.peak)
