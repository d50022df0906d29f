"""What a step of a sampling takes on the emulated card's clock, for its tests and benchmarks. Standard library only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

SETTLED = 3  # calls, in which the order is learned, the card measured, and the ring divided


class StepClock:
    """An apply-model wrapper that reads the card's clocks as each call begins.

    Args:
        stats: the card's counters.
    """

    def __init__(self, stats: Callable[[], Mapping[str, float]]) -> None:
        self._stats = stats
        self.read: list[tuple[float, float, float]] = []

    def __call__(self, executor: Any, *args: Any, **kwargs: Any) -> Any:
        stats = self._stats()
        self.read.append((stats["virtual_s"], stats["h2d_s"], stats["compute_s"]))
        return executor(*args, **kwargs)

    def per_call(self) -> list[float]:
        """Seconds, copying and computing, of the calls after which nothing changes any more, without the last."""
        calls = len(self.read) - 1 - SETTLED
        return [(last - first) / calls for first, last in zip(self.read[SETTLED], self.read[-1])]


class Peaked(Protocol):
    """What took so many bytes at most."""

    @property
    def peak(self) -> int: ...


R = TypeVar("R", bound=Peaked)


def within_peak(run: Callable[[int], R], peak: int) -> R | None:
    """The run with the largest budget for weights whose peak of allocated bytes is no higher; None: it needs more.

    Args:
        run: by a budget in bytes; raises ValueError where that is less than the largest layer.
    """
    budget = peak
    while budget > 0:
        try:
            found = run(budget)
        except ValueError:
            return None
        if found.peak <= peak:
            return found
        budget -= found.peak - peak
    return None
