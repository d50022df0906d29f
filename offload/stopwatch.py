"""How long layers compute and copies take in one call of a network, by the device's own events."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from .staging import Moment, Staged, Staging
from .virtual_clock import Stage

MILLISECOND = 1e-3


@dataclass
class Stopwatch:
    """What is noted of one call.

    Attributes:
        staging: whose device is asked.
        layers: name, when its turn came and when its weights were there, in order.
        copies: of those layers, with their bytes.
    """

    staging: Staging
    layers: list[tuple[str, Moment, Moment]] = field(default_factory=list)
    copies: list[tuple[int, Staged]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._start = self.staging.now()

    def stages(self, sizes: dict[str, int]) -> tuple[list[Stage], float] | None:
        """The layers that ran, with all that was computed from one to the next, and the link's bytes per second; None
        where nothing can be told. Waits for the device.

        Args:
            sizes: bytes of each layer.
        """
        end = self.staging.now()
        if not isinstance(end, torch.Event) or not self.layers:
            return None
        end.synchronize()
        try:
            return self._stages(sizes, end)
        except (RuntimeError, NotImplementedError):  # a device whose events tell no time
            return None

    def _stages(self, sizes: dict[str, int], end: Moment) -> tuple[list[Stage], float] | None:
        turns = [turn for _, turn, _ in self.layers[1:]]
        lead = _seconds(self._start, self.layers[0][1])
        gaps = [_seconds(ready, turn) for (_, _, ready), turn in zip(self.layers, [*turns, end])]
        copying = sum(_seconds(staged.began, staged.copied) for _, staged in self.copies)
        if not copying:
            return None
        gaps[-1] += lead
        stages = [Stage(sizes[name], gap, 0.0) for (name, _, _), gap in zip(self.layers, gaps)]
        return stages, sum(size for size, _ in self.copies) / copying


def _seconds(start: Moment | None, end: Moment) -> float:
    if isinstance(start, torch.Event) and isinstance(end, torch.Event):
        return max(0.0, start.elapsed_time(end) * MILLISECOND)
    return 0.0
