"""Seconds of work on a device, by the device's own events where it has them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch


class Clock:
    """Marks in the course of work, and the seconds between them.

    A device that works beside the CPU is asked for its own time: an event says when the work before it was done, so
    that nothing needs to wait. An emulated card answers by its virtual clock.
    """

    def __init__(self, device: torch.device) -> None:
        self._module: Any = getattr(torch, device.type, None) if device.type != "cpu" else None

    @property
    def by_events(self) -> bool:
        return hasattr(self._module, "Event")

    def mark(self) -> Any:
        """Now, in the order of the device's work."""
        if not self.by_events:
            self.wait()
            return time.perf_counter()
        event = self._module.Event(enable_timing=True)
        event.record()
        return event

    def between(self, start: Any, end: Any) -> float:
        """Seconds from a mark to a later one; waits for both."""
        if not self.by_events:
            return float(end - start)
        end.synchronize()
        return float(start.elapsed_time(end)) / 1000

    def wait(self) -> None:
        """Until the device has done everything."""
        if self._module is not None and hasattr(self._module, "synchronize"):
            self._module.synchronize()

    def seconds(self, work: Callable[[], object]) -> float:
        """Of one run."""
        start = self.mark()
        work()
        return self.between(start, self.mark())


def by_turns(
    clock: Clock, ways: Mapping[str, Callable[[], object]], rounds: int, is_over: Callable[[], bool]
) -> dict[str, list[float]]:
    """Seconds of each way, run one after the other, ``rounds`` times over, after one round to warm up.

    Args:
        is_over: no further round begins once it says so; if that is after the first, its seconds have to do.
    """
    first = {name: [clock.seconds(way)] for name, way in ways.items()}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        if is_over():
            break
        for name, way in ways.items():
            seconds[name].append(clock.seconds(way))
    return seconds if all(seconds.values()) else first


def medians(seconds: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Of each way."""
    return {name: statistics.median(found) for name, found in seconds.items()}
