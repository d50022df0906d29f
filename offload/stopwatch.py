"""How long layers compute and copies take in one call of a network, by the device's own events."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from .costs import Segment
from .staging import Moment, Staged, Staging

MILLISECOND = 1e-3


@dataclass(frozen=True)
class CallTimes:
    """What one call took.

    Attributes:
        segments: the layers in the order in which they ran, each with all that was computed up to the next one.
        bandwidth: of the link, in bytes per second.
    """

    segments: list[Segment]
    bandwidth: float


@dataclass
class Stopwatch:
    """Moments of one call of a network, which begins when the stopwatch is made.

    Attributes:
        staging: whose device is asked.
        layers: name, when its turn came and when its weights were there, in the order in which they ran.
        copies: bytes of each of those layers, and its timed copy.
    """

    staging: Staging
    layers: list[tuple[str, Moment, Moment]] = field(default_factory=list)
    copies: list[tuple[int, Staged]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._start = self.staging.now()

    def read(self, sizes: dict[str, int]) -> CallTimes | None:
        """What the call that ends now took; None where the device does not tell. Waits for the device.

        Args:
            sizes: bytes of each layer, by its name.
        """
        end = self.staging.now()
        if not isinstance(end, torch.Event) or not self.layers:
            return None
        end.synchronize()
        try:
            return self._read(sizes, end)
        except (RuntimeError, NotImplementedError):  # the device's events have no clock
            return None

    def _read(self, sizes: dict[str, int], end: Moment) -> CallTimes | None:
        turns = [turn for _, turn, _ in self.layers[1:]]
        lead = _seconds(self._start, self.layers[0][1])
        gaps = [_seconds(ready, turn) for (_, _, ready), turn in zip(self.layers, [*turns, end])]
        copying = sum(_seconds(staged.began, staged.copied) for _, staged in self.copies)
        if not copying:
            return None
        gaps[-1] += lead
        segments = [Segment(sizes[name], gap, 0.0) for (name, _, _), gap in zip(self.layers, gaps)]
        return CallTimes(segments, sum(size for size, _ in self.copies) / copying)


def _seconds(start: Moment | None, end: Moment) -> float:
    if isinstance(start, torch.Event) and isinstance(end, torch.Event):
        return max(0.0, start.elapsed_time(end) * MILLISECOND)
    return 0.0
