"""What a run in strips did."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter

from .planning.schedule import Schedule


@dataclass
class Report:
    """What a run did.

    Attributes:
        schedules: one, and one more for each function that was given a whole map.
        materialised: names of those functions.
        before: strips and passes of schedules that are no longer among them.
    """

    schedules: list[Schedule] = field(default_factory=list)
    materialised: list[str] = field(default_factory=list)
    before: tuple[int, int] = (0, 0)

    @property
    def peak(self) -> int:
        """Bytes planned on the device."""
        return max((schedule.peak for schedule in self.schedules), default=0)

    @property
    def host_peak(self) -> int:
        """Bytes planned in host memory."""
        return max((schedule.host_peak for schedule in self.schedules), default=0)

    @property
    def strips(self) -> int:
        """Of all passes of all schedules."""
        return self.before[0] + sum(schedule.strips for schedule in self.schedules)

    @property
    def passes(self) -> int:
        """Of all schedules."""
        return self.before[1] + sum(len(schedule.passes) for schedule in self.schedules)

    def condense(self) -> None:
        """Keeps of the schedules only those with the highest peaks: each holds a whole computation."""
        strips, passes = self.strips, self.passes
        highest = [max(self.schedules, key=attrgetter(peak), default=None) for peak in ("peak", "host_peak")]
        self.schedules = [one for one in self.schedules if any(one is other for other in highest)]
        self.before = (
            strips - sum(one.strips for one in self.schedules), passes - sum(len(one.passes) for one in self.schedules)
        )  # fmt: skip
