"""The process's run log, and how work is measured into it."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from ...memory import Allocated, PeakMeter, Row, RunLog
from ...memory.accelerator import counts_peaks
from ...memory.prediction import LiveBytes
from ..core.compat import executing_node, interruptions
from .readers import is_reported

LOG = RunLog()
log = logging.getLogger(__name__)


def notice(row: Row, text: str) -> None:
    """Adds what did not go as asked to a row, and to the host's console."""
    row.notices.append(text)
    log.warning("Headroom: %s", text)


class Following:
    """Measures what a stretch of work takes beyond the weights, from :meth:`begin` on, into its row.

    A context manager. On a CPU every tensor is followed, if a report will show it; elsewhere the device's allocator is
    asked, if it keeps its peak; if not, nothing is known.
    """

    def __init__(self, row: Row, device: torch.device) -> None:
        self._row, self._device = row, device
        self._tracker = LiveBytes("cpu") if device.type == "cpu" and is_reported(executing_node()[0]) else None
        self._allocated: Allocated | None = None
        self._stack = ExitStack()

    def begin(self, weights: nn.Module, given: Iterable[object] = (), held: Iterable[object] = ()) -> None:
        """Call it once, within the context, with the weights in their place.

        Args:
            weights: the model.
            given: other tensors that do not count.
            held: tensors that count from the start.
        """
        if self._tracker is not None:
            self._tracker.leave_out([*weights.parameters(), *weights.buffers(), *tree_leaves(given)])
            self._tracker.add(tree_leaves(held))
            self._stack.enter_context(self._tracker)
        elif counts_peaks(self._device) and self._row.meter is not None:
            self._weights = weights
            self._allocated = Allocated(self._device, self._row.meter.lap)

    @property
    def tracks(self) -> bool:
        """Whether every tensor is followed, which takes time."""
        return self._tracker is not None

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Within it the host brings weights, and takes others away: that is not the work's."""
        if self._allocated is None:
            yield
            return
        with self._allocated.aside():
            yield

    def __enter__(self) -> Following:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()
        if self._tracker is not None:
            self._row.live = self._tracker.live_peak
        elif self._allocated is not None:
            self._row.live = self._allocated.peak
            self._row.paged = _in_pages(self._weights, self._device)
            away = any(one.device.type != self._device.type for one in self._weights.parameters())
            self._row.streams = away and self._row.paged is None


def _in_pages(weights: nn.Module, device: torch.device) -> int | None:
    """Bytes of a model that dynamic VRAM has on a device, in memory of its own; None of what the host loads otherwise.
    Such a model's parameters stay in RAM, wherever it computes."""
    # Host: a module has its memory by device, which tells how much of it is there.
    memory = (getattr(weights, "dynamic_vbars", None) or {}).get(device)
    return None if memory is None else int(memory.loaded_size())


@contextmanager
def measured(work: str, device: torch.device) -> Iterator[Row]:
    """Measures a stretch of the executing node's work into the run log: seconds, peak memory, outcome."""
    row = LOG.start(*executing_node(), work)
    meter = row.meter = PeakMeter(device)
    start = time.perf_counter()
    row.outcome = "failed"
    try:
        with meter:
            yield row
        row.outcome = "done"
    except interruptions():
        row.outcome = "interrupted"
        raise
    finally:
        row.seconds = time.perf_counter() - start
        row.peak, row.meter = meter.peak, None
