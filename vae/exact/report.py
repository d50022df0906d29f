"""What a run in strips did."""

from __future__ import annotations

from dataclasses import dataclass, field

from .planning.schedule import Schedule


@dataclass(frozen=True)
class Done:
    """What is left of schedules when they are let go: numbers, since a schedule holds a whole computation and the maps
    that it read.

    Attributes:
        peak, host_peak: bytes planned on the device and in host memory.
        strips, passes: of all of them.
        recomputed: maps of the one with the highest peak that were computed again instead of stored.
    """

    peak: int = 0
    host_peak: int = 0
    strips: int = 0
    passes: int = 0
    recomputed: int = 0


@dataclass
class Report:
    """What a run did.

    Attributes:
        schedules: one, and one more for each function that was given a whole map.
        materialised: names of those functions.
        before: of schedules that are no longer among them.
        carried: bytes in host memory of what chunks leave for the next ones, at most.
        in_file: the maps in host memory lie in a file.
        aside: bytes beside the device, in memory or in a file, of maps of all frames that are no result.
        received: bytes planned of what other workers give this one.
    """

    schedules: list[Schedule] = field(default_factory=list)
    materialised: list[str] = field(default_factory=list)
    before: Done = field(default_factory=Done)
    carried: int = 0
    in_file: bool = False
    aside: int = 0
    received: int = 0

    @property
    def done(self) -> Done:
        """Of all schedules."""
        highest = max(self.schedules, key=lambda one: one.peak, default=None)
        now = highest is not None and highest.peak >= self.before.peak
        return Done(
            max([self.before.peak, *(one.peak for one in self.schedules)]),
            max([self.before.host_peak, *(one.host_peak for one in self.schedules)]),
            self.before.strips + sum(one.strips for one in self.schedules),
            self.before.passes + sum(len(one.passes) for one in self.schedules),
            len(highest.choice.recomputed) if now and highest is not None else self.before.recomputed,
        )

    @property
    def peak(self) -> int:
        """Bytes planned on the device."""
        return self.done.peak

    @property
    def host_peak(self) -> int:
        """Bytes planned in host memory."""
        return self.done.host_peak

    @property
    def strips(self) -> int:
        """Of all passes of all schedules."""
        return self.done.strips

    @property
    def passes(self) -> int:
        """Of all schedules."""
        return self.done.passes

    def condense(self) -> None:
        """Lets go of the schedules."""
        self.before, self.schedules = self.done, []
