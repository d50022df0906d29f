"""What a stretch of work has a device's allocator hand out, beyond what lay there when it began."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from .accelerator import allocator_statistics


class Allocated:
    """Bytes at most beyond a base, from its making on.

    They are those that tensors asked for, where the allocator tells (torch's own does): the rest of a block that it
    does not split, up to 1 MB of each, is there for the next tensor and depends on what ran before. An allocator of the
    driver's own says only what it handed out.
    """

    def __init__(self, device: torch.device, lap: Callable[[], None]) -> None:
        """
        Args:
            device: whose allocator keeps its peaks.
            lap: has torch's peaks begin anew, and keeps those so far for whoever else measures.
        """
        self._device, self._lap = device, lap
        self._highest = 0
        lap()
        self._base = self._bytes("current")

    @property
    def peak(self) -> int:
        """Bytes beyond the base, so far."""
        return max(self._highest, self._bytes("peak") - self._base)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """What is allocated and freed within moves the base: it is somebody else's."""
        self._highest = self.peak
        before = self._bytes("current")
        try:
            yield
        finally:
            self._lap()
            self._base += self._bytes("current") - before

    def _bytes(self, which: str) -> int:
        statistics = allocator_statistics(self._device)
        asked = statistics.get(f"requested_bytes.all.{which}", 0)
        return int(asked or statistics.get(f"allocated_bytes.all.{which}", 0))
