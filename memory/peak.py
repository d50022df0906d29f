"""Measured peak memory of a stretch of work: torch's CUDA peak on a GPU, sampled resident set size elsewhere."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType

import psutil
import torch

SAMPLE_SECONDS = 0.01
MB = 2**20


@dataclass(frozen=True)
class Peak:
    """Bytes before and at the highest point, and how they were measured.

    Attributes:
        history: what CUDA's allocator went through, for people; empty elsewhere.
    """

    before: int
    highest: int
    source: str
    history: str = ""

    @property
    def growth(self) -> int:
        return max(0, self.highest - self.before)


class PeakMeter:
    """Context manager; :attr:`peak` is set on leaving it.

    On CUDA it resets torch's own peak statistics of the device. Elsewhere a thread samples the process's resident
    set size every 10 ms, so a peak shorter than that can be missed, and memory that the allocator kept from
    earlier work hides the first bytes of growth.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.peak: Peak | None = None

    def __enter__(self) -> PeakMeter:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            self._before = torch.cuda.memory_allocated(self.device)
            self._statistics = torch.cuda.memory_stats(self.device)
        else:
            self._sampler = _ResidentSetSampler()
            self._before = self._sampler.highest
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.device.type == "cuda":
            highest = torch.cuda.max_memory_allocated(self.device)
            source = f"allocated on {torch.cuda.get_device_name(self.device)}"
            now = torch.cuda.memory_stats(self.device)
            self.peak = Peak(self._before, highest, source, allocator_history(self._statistics, now))
        else:
            self.peak = Peak(self._before, self._sampler.stop(), "RSS, sampled")


def allocator_history(before: Mapping[str, int], after: Mapping[str, int]) -> str:
    """A line on what CUDA's allocator went through between two of torch's statistics of it.

    Args:
        before, after: ``torch.cuda.memory_stats``; an allocator of the driver's own leaves most entries out.
    """
    reserved, allocated = (after.get(f"{kind}_bytes.all.peak", 0) for kind in ("reserved", "allocated"))
    retries, failures = (after.get(name, 0) - before.get(name, 0) for name in ("num_alloc_retries", "num_ooms"))
    parts = [f"reserved {reserved / MB:.0f} MB at most, {(reserved - allocated) / MB:.0f} MB more than was asked for"]
    if retries:
        parts.append(f"freed its cache {retries} times to go on")
    if failures:
        parts.append(f"out of memory {failures} times")
    return ", ".join(parts)


class _ResidentSetSampler:
    def __init__(self) -> None:
        self._process = psutil.Process(os.getpid())
        self._done = threading.Event()
        self.highest = self._process.memory_info().rss
        self._thread = threading.Thread(target=self._sample, name="headroom-rss", daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        while not self._done.wait(SAMPLE_SECONDS):
            self.highest = max(self.highest, self._process.memory_info().rss)

    def stop(self) -> int:
        self._done.set()
        self._thread.join()
        return max(self.highest, self._process.memory_info().rss)
