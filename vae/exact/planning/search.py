"""Looks for the fastest schedule within a byte budget: how tall strips are, what is stored, parked or recomputed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from itertools import product

import torch

from ..operations.graph import Node
from .choice import Choice
from .given_up import exchanged, given_up, without
from .planner import Planner
from .schedule import Schedule

FINER = 0.8  # the height of the next try's strips, as a share of the last's
LEAST_ROWS = 2.0  # of the widest map in a strip on an accelerator: lower strips cost many kernels and save few bytes
NUMBERS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32, 48, 64)  # of strips in a pass that are tried
WORTH = 0.995  # a change must bring the time below this share
NEAR = 1.07  # within this factor of the time without a budget the search ends
AS_GOOD = 1.02  # within this factor, on a slower host too, no taller strips are looked for
HOPELESS = 1.05  # of the budget: lower strips do not always take less, but hardly ever so much more
MOST_CHANGES = 12
# In how many strips of the widest map a way may end, before maps are given up instead. Few first: where the times are
# near each other, few kernels are worth more than the figures say, which are those of a fast host.
STARTS = (12, 24, 64)
REFINED = 2  # the fastest ways found, which are then tried in fewer strips
DISPATCH = 8e-6  # seconds that a slower host takes for a kernel, beyond the figures
SMALL = 300  # operations, as a picture has; for a video, with thousands, fewer ways are tried
COUNTED = 1.2e-5  # seconds for one operation of a strip that is counted, about, of one core of an AMD EPYC
VIDEO = 5  # dimensions of its maps, of which each schedule takes longer to count than a picture's
USES = 4  # decodes that a video's plan is expected to serve: what it may gain in them pays for what is tried
FULL = 0.85  # passes with this share of the fullest pass's bytes count as full too


class Search:
    """For one computation.

    Args:
        planner: makes schedules of choices.
        budget: bytes on the device.
        store: dtype of stored maps; None = their own.
        rows: rows of the output in a strip; 0 = as the budget permits.
        has_far: on a CPU, stored maps may lie in a file.
    """

    def __init__(
        self,
        planner: Planner,
        budget: float,
        store: torch.dtype | None = None,
        rows: int = 0,
        has_far: bool = False,
    ) -> None:
        self.planner, self.budget, self.has_far = planner, budget, has_far
        nodes = planner.analysis.nodes
        self.is_small = len(nodes) <= SMALL
        self.of_frames = any(len(node.shape) == VIDEO for node in nodes)
        self.start = Choice(planner.figures.strip_bytes, store=store, rows=rows)

    def run(self) -> tuple[Schedule, bool]:
        """The schedule found, else the one with the lowest peak; and whether it fits."""
        if self.planner.figures.strip_bytes:
            return self._first_that_fits()
        ideal = self.planner.schedule(replace(self.start, strip_bytes=self._heights()[0]))
        if ideal.peak <= self.budget:
            return ideal, True
        found = list(self._ways(ideal))
        fitting = [self._overlapped(one, ideal) for one in found if one.peak <= self.budget]
        if not fitting:
            return min(found, key=lambda one: one.peak), False
        best = sorted(fitting, key=lambda one: one.seconds)[: REFINED if self.is_small else 1]
        return min((self._refined(one, ideal) for one in best), key=_on_a_slower_host), True

    def outside(self) -> Schedule:
        """All stored maps outside the device's memory, in strips as low as they can be at no cost in time."""
        low = self.planner.figures.strip_bytes // 4 or 16 << 20
        choice = replace(self.start, strip_bytes=low, outside=True)
        schedule = self.planner.schedule(choice)
        return schedule if schedule.peak <= self.budget else self._tallest(choice)

    # ------------------------------------------------------------ where caches set the height

    def _first_that_fits(self) -> tuple[Schedule, bool]:
        least: Schedule | None = None
        for schedule in self._ladder():
            if schedule.peak <= self.budget:
                return schedule, True
            if least is None or schedule.peak < least.peak:
                least = schedule
        assert least is not None
        return least, False

    def _ladder(self) -> Iterator[Schedule]:
        """Ever slower schedules: lower strips, with maps in a file where that is allowed, then maps recomputed."""
        choice, tall = self.start, self.start.strip_bytes
        yield self.planner.schedule(choice)
        lower = [tall // 4] if choice.rows else [tall // 4, tall // 16, 0]
        if self.has_far:
            for strip_bytes, outside in product(lower, (False, True)):
                yield self.planner.schedule(replace(choice, strip_bytes=strip_bytes, outside=outside))
        for strip_bytes in lower:
            choice = replace(choice, strip_bytes=strip_bytes)
            schedule = self.planner.schedule(choice)
            yield schedule
            while schedule.peak > self.budget and (less := self._exchanged(schedule, self.planner.schedule)):
                schedule = less
                yield schedule
            choice = schedule.choice

    # ------------------------------------------------------------ where launches do

    def _heights(self) -> list[int]:
        """Bytes of a strip of the widest map, from the whole of it down to a few rows."""
        widest = max(self.planner.analysis.nodes, key=lambda node: node.bytes)
        sizes, size = [], float(widest.bytes)
        while size > widest.row_bytes * LEAST_ROWS:
            sizes.append(int(size))
            size *= FINER
        return [*sizes, int(widest.row_bytes * LEAST_ROWS)]

    def _tallest(self, choice: Choice, lowest: int = 0) -> Schedule:
        """The tallest strips that fit, else the lowest there are, of ``lowest`` bytes of the widest map or more."""
        if choice.rows:
            return self.planner.schedule(choice)
        heights = [size for size in self._heights() if size >= lowest]
        last = self.planner.schedule(replace(choice, strip_bytes=heights[-1]))
        if self._is_hopeless(last):
            return last
        low, high = 0, len(heights) - 1
        while low < high:
            middle = (low + high) // 2
            if self.planner.schedule(replace(choice, strip_bytes=heights[middle])).peak <= self.budget:
                high = middle
            else:
                low = middle + 1
        return self.planner.schedule(replace(choice, strip_bytes=heights[low]))

    def _fitting(self, choice: Choice, lowest: int) -> Schedule:
        """Maps given up one after the other: each the one that saves most bytes of the fullest pass for its time."""
        schedule = self._tallest(choice, lowest)
        while schedule.peak > self.budget:
            lower = self._exchanged(schedule, lambda choice: self._tallest(choice, lowest))
            if lower is None:
                return schedule
            schedule = lower
        return schedule

    def _ways(self, ideal: Schedule) -> Iterator[Schedule]:
        """Schedules that several descents end in. Each takes the best step every time, which need not lead to the best
        end: a descent whose strips stay tall may end in a better one."""
        heights = self._heights()
        starts = [heights[0] // number for number in STARTS] if self.is_small else []
        outside = replace(self.start, outside=True)
        before = self.planner.tried
        lowest_end = self._fitting(self.start, heights[-1]) if starts else None
        if lowest_end is not None and lowest_end.peak <= self.budget:
            starts = starts if self._is_worth(self.planner.tried - before, lowest_end, ideal) else []
        if lowest_end is not None and self._is_hopeless(lowest_end):
            yield lowest_end  # in taller strips even less fits
        elif lowest_end is not None and self.of_frames and self._is_near(lowest_end, ideal, _on_a_slower_host, AS_GOOD):
            yield lowest_end
            return
        else:
            for lowest in (*starts, 0):
                # A video's maps would be given up one after the other in vain.
                if self.of_frames and lowest and self._is_hopeless(self._tallest(outside, lowest)):
                    continue
                found = self._improved(self._fitting(self.start, max(lowest, heights[-1])), ideal)
                yield found
                if self._is_near(found, ideal):
                    return
        if self.planner.figures.link:
            yield self._tallest(outside)

    def _is_hopeless(self, schedule: Schedule) -> bool:
        """Whether one that should take as little as any like it is clearly above the budget."""
        return schedule.peak > HOPELESS * self.budget

    def _is_near(
        self,
        schedule: Schedule,
        ideal: Schedule,
        seconds: Callable[[Schedule], float] = lambda one: one.seconds,
        factor: float = NEAR,
    ) -> bool:
        return schedule.peak <= self.budget and seconds(schedule) <= factor * seconds(ideal)

    def _is_worth(self, tries: int, schedule: Schedule, ideal: Schedule) -> bool:
        """Whether so many tries, as long as those before, take less time than they can gain; a picture's are quick."""
        gain, planner = USES * (_on_a_slower_host(schedule) - _on_a_slower_host(ideal)), self.planner
        is_quick = self.is_small and not self.of_frames
        return is_quick or gain > tries * COUNTED * planner.counted / max(1, planner.tried)

    def _improved(self, schedule: Schedule, ideal: Schedule) -> Schedule:
        """Gives up maps, or keeps them after all, as long as that saves time."""
        if schedule.peak > self.budget:
            return schedule
        for _ in range(MOST_CHANGES if self.is_small else 1):
            if self._is_near(schedule, ideal):
                break
            choices = [*self._given_up(schedule), *self._kept_after_all(schedule)]
            if not self._is_worth(len(choices) * len(self._heights()).bit_length(), schedule, ideal):
                break
            tries = [self._tallest(one) for one in choices]
            tries = [one for one in tries if one.peak <= self.budget]
            best = min(tries, key=lambda one: one.seconds, default=schedule)
            if best.seconds > WORTH * schedule.seconds:
                break
            schedule = best
        return schedule

    def _overlapped(self, schedule: Schedule, ideal: Schedule) -> Schedule:
        """Lower strips, where copies that begin earlier gain more time than the further kernels cost."""
        choice = schedule.choice
        if choice.rows or not (choice.outside or choice.parked):
            return schedule
        lower = [size for size in self._heights() if size < choice.strip_bytes]
        if not self._is_worth(len(lower), schedule, ideal):
            return schedule
        tries = [self.planner.schedule(replace(choice, strip_bytes=size)) for size in lower]
        fitting = [one for one in tries if one.peak <= self.budget]
        return min([schedule, *fitting], key=lambda one: one.seconds)

    def _refined(self, schedule: Schedule, ideal: Schedule) -> Schedule:
        """Fewer strips where those still fit: first in all passes over maps of one size together, since slabs that are
        read as they lie need not be gathered; then in each pass by itself."""
        if schedule.choice.rows:
            return schedule
        places = sorted(range(len(schedule.windows)), key=lambda place: -schedule.windows[place].count)
        alike: dict[int, list[int]] = {}
        for place in places:
            alike.setdefault(schedule.passes[place].widest, []).append(place)
        for group in (*alike.values(), *([place] for place in places)):
            schedule = self._in_fewer(schedule, group, ideal)
        return schedule

    def _in_fewer(self, schedule: Schedule, places: list[int], ideal: Schedule) -> Schedule:
        best, most = schedule, max(schedule.windows[place].count for place in places)
        numbers = [number for number in NUMBERS if number < most]
        nothing_to_gain = WORTH * _on_a_slower_host(schedule) <= _on_a_slower_host(ideal)
        if nothing_to_gain or not self._is_worth(len(numbers), schedule, ideal):
            return schedule
        # A smaller number does not always take more memory: it depends on whether slabs are read as they lie.
        for number in numbers:
            fewer = {place: number for place in places if schedule.windows[place].count > number}
            choice = replace(schedule.choice, strips={**schedule.choice.strips, **fewer})
            found = self.planner.schedule(choice)
            if found.peak <= self.budget and _on_a_slower_host(found) < _on_a_slower_host(best):
                best = found
        return best

    # ------------------------------------------------------------ changes

    def _given_up(self, schedule: Schedule) -> Iterator[Choice]:
        """Choices with one map of the fullest pass, or of all nearly as full, recomputed or parked in host memory."""
        for way, node in given_up(self.planner, schedule, FULL):
            yield without(schedule.choice, way, [node])

    def _exchanged(self, schedule: Schedule, plan: Callable[[Choice], Schedule]) -> Schedule | None:
        """The next step of a descent; see :func:`exchanged`."""
        return exchanged(self.planner, schedule, self.budget, plan, not self.is_small, self.of_frames)

    def _kept_after_all(self, schedule: Schedule) -> Iterator[Choice]:
        """Choices with one map stored again that was parked or recomputed."""
        choice = schedule.choice
        if choice.outside:
            every = frozenset(node for one in schedule.passes for node in one.stored)
            choice = replace(choice, outside=False, parked=every)
        for node in self._in_order(choice.parked):
            yield replace(choice, parked=choice.parked - {node})
        for node in self._in_order(choice.recomputed):
            yield replace(choice, recomputed=choice.recomputed - {node})
            if self.planner.figures.link:
                yield replace(choice, recomputed=choice.recomputed - {node}, parked=choice.parked | {node})

    def _in_order(self, nodes: Collection[Node]) -> list[Node]:
        """Not as they lie in a set, which is another order in each process: equal runs find equal schedules."""
        return [node for node in self.planner.analysis.nodes if node in nodes]


def _on_a_slower_host(schedule: Schedule) -> float:
    """Seconds where the host takes longer for each kernel."""
    return schedule.seconds + DISPATCH * schedule.launches
