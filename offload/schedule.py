"""Which layers stay on the device, which are streamed, and how large a ring they are staged in.

Layers to swap taken from one end of the network wait for the link there and leave it idle elsewhere. Here the streamed
layers stand between the resident ones, so that at every place about as much compute as transfer lies ahead. The ring
takes of the budget what resident layers could have: a small one streams fewer bytes, a large one lets the link run on
where a layer computes for long or none is needed. Plans with rings of several sizes, and with the largest layers
resident so that a small ring will do, are compared on the virtual clock. How fast a card computes is not known before
it does: where it turns out that the link is the limit and a smaller ring would do, layers that are streamed stay in a
part of the ring for the rest of the sampling (:func:`keep_in_ring`). Needs nothing but the standard library.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, product

from .virtual_clock import LayerCost, Stage, ring_waits, run_stages, stages_of, steady_step

# Rings, in sums of the two largest layers that are streamed, beside one that holds the largest alone.
RINGS = (0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 9.0, 13.0)
MOST_CLASSES = 5  # sizes of layers above which all stay, beside no limit
PHASES = (0.5, 0.1, 0.9)  # of a layer: how much is owed at the start
# Transfer of what is streamed over compute, for which a plan should serve if the bandwidth is unknown; those first that
# tell plans apart.
RATIOS = (1.0, 1.3, 0.75, 2.5, 0.4, 6.0)
STEPS = 3  # on the virtual clock for every plan compared
MOST_STAGES = 250_000  # on the virtual clock: bounds the time
PARTS = 16  # of a ring: how finely it is divided between what stays and what passes
GOLDEN = (5**0.5 - 1) / 2  # multiples of it lie evenly between whole numbers, however many there are
GOOD_ENOUGH = 1.002  # of what no plan surpasses: then nothing is left to improve
UNITS = 512  # bytes: rings are multiples of it
PAGES = 1 << 21  # and large ones of this, which torch's allocator rounds them to
LARGE = 10 << 20


@dataclass(frozen=True)
class Plan:
    """Where the layers live.

    Attributes:
        resident: indices of the layers that stay on the device.
        streamed: indices of the others, in the order in which they run.
        staging: bytes of the ring; 0 if nothing is streamed.
        resident_bytes: of the resident layers.
        streamed_bytes: transferred in every step.
    """

    resident: frozenset[int]
    streamed: tuple[int, ...]
    staging: int
    resident_bytes: int
    streamed_bytes: int

    @property
    def peak(self) -> int:
        """Bytes on the device at most."""
        return self.resident_bytes + self.staging


def spread_residents(
    costs: Sequence[LayerCost], budget: int, most_staging: int | None = None, bandwidth: float | None = None
) -> Plan:
    """The fastest plan found whose peak is within the budget.

    Deterministic; about a quarter of a second for 600 layers.

    Args:
        costs: of the layers, in the order in which they run.
        budget: bytes for resident layers and the ring.
        most_staging: bytes that the ring may have; one layer always may be staged. None: as many as help.
        bandwidth: of the link, in bytes per second; None: the plan should serve for whatever link, most of all for one
            that takes about as long to transfer what is streamed as that takes to compute.

    Raises:
        ValueError: a budget below :func:`least_budget`, which is named; no layers, negative costs, or a bandwidth that
            is not positive.
    """
    least = least_budget(costs)
    if bandwidth is not None and not bandwidth > 0:
        raise ValueError(f"the bandwidth must be positive, not {bandwidth}")
    if sum(cost.bytes for cost in costs) <= budget:
        return _plan(costs, frozenset(), 0)
    if budget < least:
        raise ValueError(f"a budget of {budget} bytes is too small: at least {least}")
    most = budget if most_staging is None else most_staging
    return _Search(tuple(costs), budget, most, _bandwidths(costs, budget, bandwidth)).best()


def least_budget(costs: Sequence[LayerCost]) -> int:
    """The smallest workable budget in bytes.

    That is a ring for the largest layer with every layer streamed, unless a few layers are so much larger than the rest
    that the ring becomes smaller by more than these take when they are resident.

    Raises:
        ValueError: no layers or negative costs.
    """
    if not costs or any(cost.bytes < 0 or cost.seconds < 0 for cost in costs):
        raise ValueError(f"{len(costs)} layers: at least 1, and no negative costs")
    total = sum(cost.bytes for cost in costs)
    larger = {size: sum(cost.bytes for cost in costs if cost.bytes > size) for size in _sizes(costs)}
    return min([total, *(kept + ring_bytes(size) for size, kept in larger.items())])


def ring_bytes(size: int) -> int:
    """A ring of at least so many bytes, as large as what is allocated for it."""
    unit = PAGES if size >= LARGE else UNITS
    return -(-size // unit) * unit


# -------------------------------------------------------------------------------------------------------- search


@dataclass(frozen=True)
class _Candidate:
    """A ring, layers that may be streamed, and where the spread begins."""

    bound: float
    ring: int
    movable: tuple[int, ...]
    phase: float


@dataclass
class _Search:
    """Plans for one budget, compared on the virtual clock."""

    costs: tuple[LayerCost, ...]
    budget: int
    most_staging: int
    bandwidths: tuple[float, ...]
    stages: int = 0
    compute: float = field(init=False)
    total: int = field(init=False)

    def __post_init__(self) -> None:
        self.compute = sum(cost.seconds for cost in self.costs)
        self.total = sum(cost.bytes for cost in self.costs)

    def best(self) -> Plan:
        """The fastest; candidates that could not surpass it even with perfect overlap are not run."""
        found: Plan | None = None
        least = math.inf
        for candidate in sorted(self.candidates(), key=lambda candidate: candidate.bound):
            if candidate.bound * GOOD_ENOUGH >= least or (found is not None and self.stages > MOST_STAGES):
                continue
            plan = self.spread(candidate)
            if plan is not None and (score := self.score(plan, least)) < least:
                found, least = plan, score
        assert found is not None  # at the least budget all that may be streamed fits
        return self.filled(found, least)

    def candidates(self) -> Iterator[_Candidate]:
        for size in self.classes():
            movable = tuple(i for i, cost in enumerate(self.costs) if 0 < cost.bytes <= size)
            most = sum(self.costs[i].bytes for i in movable)
            for ring in self.rings(movable):
                asked = self.total - (self.budget - ring)
                if 0 < asked <= most:
                    for phase in PHASES:
                        yield _Candidate(self.bound(asked), ring, movable, phase)

    def classes(self) -> list[int]:
        """Sizes above which layers stay: all that leave enough to stream, thinned out."""
        sizes = [size for size in _sizes(self.costs) if self._larger(size) + ring_bytes(size) <= self.budget][::-1]
        if len(sizes) <= MOST_CLASSES:
            return sizes
        return [sizes[round(i * (len(sizes) - 1) / (MOST_CLASSES - 1))] for i in range(MOST_CLASSES)]

    def rings(self, movable: Sequence[int]) -> list[int]:
        """Sizes of rings that are worth trying."""
        largest, *others = sorted((self.costs[i].bytes for i in movable), reverse=True)
        two = largest + (others[0] if others else 0)
        wanted = [max(largest, int(two * ring)) for ring in (0.0, *RINGS)]
        most = max(min(self.most_staging, self.budget, sum(self.costs[i].bytes for i in movable)), largest)
        return sorted({ring_bytes(min(ring, most)) for ring in wanted})

    def spread(self, candidate: _Candidate) -> Plan | None:
        """The streamed layers follow the compute; then the budget is used up."""
        costs, room = self.costs, self.budget - candidate.ring
        wanted = self.total - room
        shares = _shares(costs, candidate.movable, wanted)
        streamed = _diffused(costs, shares, candidate.phase)
        resident = self.total - sum(costs[i].bytes for i in streamed)
        fitted = _fitted(costs, candidate.movable, streamed, room - resident)
        return None if fitted is None or not fitted else _plan(costs, fitted, candidate.ring)

    def filled(self, plan: Plan, score: float) -> Plan:
        """With what no layer fits into added to the ring, unless layers then lie in it less well."""
        room = min(self.budget - plan.peak, self.most_staging - plan.staging)
        unit = PAGES if plan.staging >= LARGE else UNITS
        larger = replace(plan, staging=plan.staging + max(0, room) // unit * unit)
        return larger if self.score(larger) < score else plan

    def bound(self, moved: int) -> float:
        """The score that no plan surpasses that streams so many bytes."""
        return sum(max(self.compute, moved / bandwidth) / self._scale(bandwidth) for bandwidth in self.bandwidths)

    def score(self, plan: Plan, most: float = math.inf) -> float:
        """The plan's time; once it is above ``most``, something in between, for the plan is of no use."""
        stages = stages_of(self.costs, plan.streamed)
        before = ring_waits(stages, plan.staging, STEPS)
        score = self.bound(plan.streamed_bytes)
        for bandwidth in self.bandwidths:
            step = steady_step(run_stages(stages, before, bandwidth)[1], len(stages))
            lost = step - max(self.compute, plan.streamed_bytes / bandwidth)
            score += max(0.0, lost) / self._scale(bandwidth)
            self.stages += len(before)
            if score > most:
                break
        return score

    def _scale(self, bandwidth: float) -> float:
        """So that every bandwidth has the same weight, whatever the budget."""
        return max(self.compute, self.total / bandwidth)

    def _larger(self, size: int) -> int:
        return sum(cost.bytes for cost in self.costs if cost.bytes > size)


def keep_in_ring(stages: Sequence[Stage], ring: int, bandwidth: float) -> frozenset[int]:
    """Which streamed layers had better stay in the ring's memory, whose remainder is the ring of the others.

    Args:
        stages: as they were measured.
        ring: bytes.
        bandwidth: as it was measured, in bytes per second.

    Returns:
        Positions among the stages; none where the whole ring is of use.
    """
    chosen: frozenset[int] = frozenset()
    least = _step(stages, ring, bandwidth)
    compute, moved = sum(stage.compute + stage.after for stage in stages), sum(stage.bytes for stage in stages)
    for part, largest_first in product(range(1, PARTS), (True, False)):
        kept = _kept(stages, ring * part // PARTS, largest_first)
        saved = sum(stages[i].bytes for i in kept)
        if not kept or max(compute, (moved - saved) / bandwidth) >= least / GOOD_ENOUGH:
            continue
        rest = _merged(stages, kept)
        if max((stage.bytes for stage in rest), default=ring) > ring - saved:
            continue
        step = _step(rest, ring - saved, bandwidth)
        if step < least / GOOD_ENOUGH:
            chosen, least = kept, step
    return chosen


def _kept(stages: Sequence[Stage], room: int, largest_first: bool) -> frozenset[int]:
    """The largest stages that fit, or as they come at even distances."""
    count = len(stages)
    spread = sorted(range(count), key=lambda i: i * GOLDEN % 1)
    chosen = set()
    for i in sorted(spread, key=lambda i: -stages[i].bytes) if largest_first else spread:
        if stages[i].bytes <= room:
            chosen.add(i)
            room -= stages[i].bytes
    return frozenset(chosen)


def _merged(stages: Sequence[Stage], kept: frozenset[int]) -> list[Stage]:
    """The others; what stays only computes, after the one before it."""
    rest: list[Stage] = []
    lead = 0.0
    for i, stage in enumerate(stages):
        if i not in kept:
            rest.append(stage)
        elif rest:
            rest[-1] = replace(rest[-1], after=rest[-1].after + stage.compute + stage.after)
        else:
            lead += stage.compute + stage.after
    return [*rest[:-1], replace(rest[-1], after=rest[-1].after + lead)] if rest else []


def _step(stages: Sequence[Stage], ring: int, bandwidth: float) -> float:
    return steady_step(run_stages(stages, ring_waits(stages, ring, STEPS), bandwidth)[1], len(stages))


def plain_step(costs: Sequence[LayerCost], budget: int, bandwidth: float) -> float:
    """Seconds of a step of plain streaming within a budget: the largest layers stay, the others go through two buffers
    in turn, each copied when the one before the last and all before the last have run. Infinite if that needs more."""
    order = sorted(range(len(costs)), key=lambda i: (-costs[i].bytes, -i))
    kept = list(accumulate((costs[i].bytes for i in order), initial=0))
    buffers = [sum(costs[i].bytes for i in order[count : count + 2]) for count in range(len(costs) + 1)]
    count = max((n for n in range(len(costs) + 1) if kept[n] + buffers[n] <= budget), default=-1)
    if count < 0:
        return math.inf
    streamed = sorted(i for i in order[count:] if costs[i].bytes)
    if not streamed:
        return sum(cost.seconds for cost in costs)
    stages = stages_of(costs, streamed)
    before = [number - 2 if number > 1 else -1 for number in range(STEPS * len(stages))]
    return steady_step(run_stages(stages, before, bandwidth, behind=True)[1], len(stages))


def _shares(costs: Sequence[LayerCost], movable: Sequence[int], wanted: float) -> dict[int, float]:
    """Bytes to be streamed of every layer: as its compute, at most all; ``wanted`` in all.

    Streaming in proportion to compute hides the most. A layer that has few bytes for its compute is streamed whole,
    and what it leaves is shared among the others.
    """
    floor = max(1e-9 * sum(costs[i].seconds for i in movable), 1e-30)  # a layer without compute has its turn last
    seconds = {i: max(costs[i].seconds, floor) for i in movable}
    left, time = float(wanted), sum(seconds.values())
    shares: dict[int, float] = {}
    for i in sorted(movable, key=lambda i: costs[i].bytes / seconds[i]):
        shares[i] = min(float(costs[i].bytes), seconds[i] * left / time)
        left, time = left - shares[i], max(time - seconds[i], floor)
    return shares


def _diffused(costs: Sequence[LayerCost], shares: dict[int, float], phase: float) -> frozenset[int]:
    """Whole layers for the shares: a layer is streamed when half of it is owed; the remainder goes to the next."""
    owed = (phase - 0.5) * max(costs[i].bytes for i in shares)
    streamed = []
    for i in sorted(shares):
        owed += shares[i]
        if owed >= 0.5 * costs[i].bytes:
            streamed.append(i)
            owed -= costs[i].bytes
    return frozenset(streamed)


def _fitted(
    costs: Sequence[LayerCost], movable: Sequence[int], streamed: frozenset[int], room: int
) -> frozenset[int] | None:
    """The streamed layers, a few more or less of them, so that ``room`` bytes beside the resident ones are used up.

    Args:
        room: bytes to spare; negative: so many too many are resident.
    """
    chosen = set(streamed)
    while room < 0:
        others = [i for i in movable if i not in chosen]
        if not others:
            return None
        enough = [i for i in others if costs[i].bytes >= -room]
        moved = min(enough, key=lambda i: costs[i].bytes) if enough else max(others, key=lambda i: costs[i].bytes)
        chosen.add(moved)
        room += costs[moved].bytes
    for i in sorted(chosen, key=lambda i: -costs[i].bytes):
        if costs[i].bytes <= room:
            chosen.discard(i)
            room -= costs[i].bytes
    _exchange(costs, movable, chosen, room)
    return frozenset(chosen)


def _exchange(costs: Sequence[LayerCost], movable: Sequence[int], chosen: set[int], room: int) -> None:
    """A streamed layer for a resident one that is smaller by what there is room for, while that helps."""
    for _ in range(3):
        inside = {costs[i].bytes: i for i in movable if i in chosen}
        outside = {costs[i].bytes: i for i in movable if i not in chosen}
        gains = [(large - small, large, small) for large in inside for small in outside if 0 < large - small <= room]
        if not gains:
            return
        gain, large, small = max(gains)
        chosen.discard(inside[large])
        chosen.add(outside[small])
        room -= gain


def _bandwidths(costs: Sequence[LayerCost], budget: int, bandwidth: float | None) -> tuple[float, ...]:
    if bandwidth is not None:
        return (bandwidth,)
    streamed = sum(cost.bytes for cost in costs) - budget
    compute = sum(cost.seconds for cost in costs)
    return tuple(streamed / (compute * ratio) for ratio in RATIOS) if compute else (float(streamed),)


def _plan(costs: Sequence[LayerCost], streamed: frozenset[int], ring: int) -> Plan:
    resident = frozenset(range(len(costs))) - streamed
    moved = sum(costs[i].bytes for i in streamed)
    kept = sum(costs[i].bytes for i in resident)
    return Plan(resident, tuple(sorted(streamed)), ring, kept, moved)


def _sizes(costs: Sequence[LayerCost]) -> list[int]:
    return sorted({cost.bytes for cost in costs if cost.bytes})
