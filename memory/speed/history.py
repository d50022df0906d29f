"""What predictions of time were off by on a device so far: by model, and over all of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

MOST_RUNS = 8  # of a model: what is older may be of other drivers
# A run counts by how near its seconds are, squared on a logarithmic scale. A model's own: one that is equal as much as
# a hundred that are e times as long, or as what the others teach. Among those nearness says less, and the device's own
# figures count as one that is far away.
NEAR, OTHERS = 0.01, 1.0
WIDE, FIGURES = 1.0, 0.3
FAR = 2.0  # what of a run is further off its figures than this is its model's own affair, and teaches no other


@dataclass(frozen=True)
class TimedRun:
    """Seconds of one step, decode or encode.

    Attributes:
        predicted: by the device's figures alone.
        measured: when it ran.
    """

    predicted: float
    measured: float

    @property
    def ratio(self) -> float:
        return self.measured / self.predicted

    def within(self, most: float) -> TimedRun:
        """The same, at most so many times as long as was predicted, and at least so small a share of it."""
        return replace(self, measured=self.predicted * min(max(self.ratio, 1 / most), most))


@dataclass(frozen=True)
class History:
    """Runs by model: its class, what it did, and in which dtype."""

    runs: Mapping[str, tuple[TimedRun, ...]] = field(default_factory=dict)

    def factor(self, model: str, seconds: float) -> float:
        """By how much longer a model takes here than the device's figures say: the mean of its runs' ratios on a
        logarithmic scale, where those that took about as long count most; as little as they say about it, it goes by
        the runs of all other models. Without any it is 1.

        Args:
            seconds: by the device's figures alone.
        """
        return self._after(self.runs.get(model, ()), model, seconds)

    def error(self, model: str) -> float | None:
        """How far a model's runs were off what those before them taught, at most, as a share; None where it has not run
        twice."""
        own = self.runs.get(model, ())
        told = [run.predicted * self._after(own[:at], model, run.predicted) for at, run in enumerate(own)]
        return max((abs(one / run.measured - 1) for one, run in zip(told[1:], own[1:])), default=None)

    def count(self, model: str) -> int:
        """How often it has run."""
        return len(self.runs.get(model, ()))

    def with_run(self, model: str, run: TimedRun) -> History:
        """The same and one more; of a model the latest count."""
        return replace(self, runs={**self.runs, model: (*self.runs.get(model, ()), run)[-MOST_RUNS:]})

    def _after(self, own: Sequence[TimedRun], model: str, seconds: float) -> float:
        if seconds <= 0:
            return 1.0
        others = [run.within(FAR) for name, some in self.runs.items() if name != model for run in some]
        return math.exp(_mean(own, seconds, NEAR, _mean(others, seconds, WIDE, 0.0, FIGURES), OTHERS))


def _mean(runs: Sequence[TimedRun], seconds: float, near: float, otherwise: float, weight: float) -> float:
    """The weighted mean of the logarithms of ratios; ``otherwise`` counts with a ``weight`` of its own."""
    weights = [1 / (near + math.log(seconds / run.predicted) ** 2) for run in runs]
    logs = (one * math.log(run.ratio) for one, run in zip(weights, runs))
    return (sum(logs) + weight * otherwise) / (sum(weights) + weight)
