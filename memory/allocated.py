"""Bytes that a stretch of work has allocated on a device at most, beyond those at its beginning."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from .accelerator import allocator_statistics


class Allocated:
    """The peak above a base, which is what is allocated when the object is made.

    Where the allocator tells (torch's own does), the bytes that tensors asked for are counted. The remainder of a block
    that it does not split, up to 1 MB each, is left out: how much that is depends on what ran before. A driver's own
    allocator tells only what it handed out.
    """

    def __init__(self, device: torch.device, lap: Callable[[], None]) -> None:
        """
        Args:
            device: whose allocator keeps its peaks.
            lap: resets torch's peaks, and keeps those so far for others who measure at the same time.
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
        """Within it, the work is somebody else's: what it leaves allocated or frees moves the base."""
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
