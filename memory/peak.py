"""Measured peak memory of a stretch of work: the allocator's own on an accelerator, sampled elsewhere."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType

import psutil
import torch

from .accelerator import (
    allocated_bytes,
    allocator_statistics,
    counts_peaks,
    device_name,
    peak_bytes,
    reset_peak,
)

SAMPLE_SECONDS = 0.01
MB = 2**20
ALLOCATED = "allocated"  # prefix of a source that counts tensors, and not the process as a whole
PROCESS = "the whole process, sampled"  # source of work on a CPU, and prefix of one on a device that tells nothing


@dataclass(frozen=True)
class Peak:
    """Measured memory.

    Attributes:
        before: bytes when the measurement began.
        highest: bytes at most.
        source: what was measured and how, for people.
        history: what the device's allocator went through, for people; empty where it does not say.
    """

    before: int
    highest: int
    source: str
    history: str = ""

    @property
    def growth(self) -> int:
        return max(0, self.highest - self.before)


class PeakMeter:
    """Context manager; :attr:`peak` is set on leaving it, and covers all laps, and what others measured meanwhile.

    Where a device's allocator keeps its peak, torch's statistics of it are reset and read. Elsewhere a thread samples
    every 10 ms, so a peak shorter than that can be missed. It samples the bytes allocated on the device where that is
    known, else the process's resident set size, in which memory kept from earlier work hides the first bytes of growth.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.peak: Peak | None = None
        self._highest = 0  # of what was before the allocator's peaks were reset

    def lap(self) -> None:
        """Resets the allocator's own peaks, for others who measure the stretch that follows."""
        if counts_peaks(self.device):
            _reset(self.device)

    def __enter__(self) -> PeakMeter:
        self._sampler: _Sampler | None = None
        if counts_peaks(self.device):
            _reset(self.device)
            self._before = allocated_bytes(self.device) or 0
            self._statistics = allocator_statistics(self.device)
            _measuring.append(self)
        else:
            self._sampler = _Sampler(_allocated_on(self.device) or _resident_set())
            self._before = self._sampler.highest
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._sampler is not None:
            self.peak = Peak(self._before, self._sampler.stop(), _sampled(self.device))
            return
        _measuring.remove(self)
        highest = max(self._highest, peak_bytes(self.device) or 0)
        history = allocator_history(self._statistics, allocator_statistics(self.device))
        self.peak = Peak(self._before, highest, f"{ALLOCATED} on {device_name(self.device)}", history)


# Those that read an allocator's peaks. One may begin within another: a VAE that codes a ControlNet's picture does so in
# the middle of a sampling.
_measuring: list[PeakMeter] = []


def _reset(device: torch.device) -> None:
    """Begins an allocator's peaks anew; whoever measures there keeps what they were."""
    for meter in tuple(_measuring):
        if meter.device == device:
            meter._highest = max(meter._highest, peak_bytes(device) or 0)
    reset_peak(device)


def allocator_history(before: Mapping[str, int], after: Mapping[str, int]) -> str:
    """A line on what a device's allocator went through between two of torch's statistics of it.

    Args:
        before, after: as of ``torch.cuda.memory_stats``; an allocator of the driver's own leaves most entries out.
    """
    reserved, allocated = (after.get(f"{kind}_bytes.all.peak", 0) for kind in ("reserved", "allocated"))
    retries, failures = (after.get(name, 0) - before.get(name, 0) for name in ("num_alloc_retries", "num_ooms"))
    parts = [f"reserved {reserved / MB:.0f} MB at most, {(reserved - allocated) / MB:.0f} MB more than was asked for"]
    if retries:
        parts.append(f"freed its cache {retries} times to go on")
    if failures:
        parts.append(f"out of memory {failures} times")
    return ", ".join(parts)


def _allocated_on(device: torch.device) -> Callable[[], int] | None:
    return None if allocated_bytes(device) is None else lambda: allocated_bytes(device) or 0


def _resident_set() -> Callable[[], int]:
    process = psutil.Process(os.getpid())
    return lambda: int(process.memory_info().rss)


def _sampled(device: torch.device) -> str:
    if allocated_bytes(device) is not None:
        return f"{ALLOCATED} on {device_name(device)}, sampled"
    unknown = "" if device.type == "cpu" else f": {device_name(device)} does not say what is allocated on it"
    return f"{PROCESS}{unknown}"


class _Sampler:
    """The highest value of a function that a thread calls again and again."""

    def __init__(self, read: Callable[[], int]) -> None:
        self._read = read
        self._done = threading.Event()
        self.highest = read()
        self._thread = threading.Thread(target=self._sample, name="headroom-memory", daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        while not self._done.wait(SAMPLE_SECONDS):
            self.highest = max(self.highest, self._read())

    def stop(self) -> int:
        self._done.set()
        self._thread.join()
        return max(self.highest, self._read())
