"""Which layers stay on the device, which are streamed, and how large a ring they are staged in.

The ring takes bytes of the budget that resident layers could have: a small one leaves fewer bytes to stream, a large
one keeps the link busy where a layer computes for long, or where none is streamed. So plans with rings of several
sizes, and with the largest layers resident so that a small ring will do, are compared on the virtual clock. How fast a
card and its link are is not known before they work: plans are made to serve for several ratios of transfer to compute,
and what is measured during a sampling is used by :mod:`.kept_layers`. Needs nothing but the standard library.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from .costs import LayerCost, segments_of
from .spread import spread_streamed
from .virtual_clock import ring_waits, step_seconds

# Rings, in sums of the two largest layers that are streamed, beside one that holds the largest alone.
RINGS = (0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 9.0, 13.0)
MOST_CLASSES = 5  # sizes of layers above which all stay, beside no limit
PHASES = (0.5, 0.1, 0.9)  # of the error diffusion
# Transfer of what is streamed over compute, for which a plan should serve if the bandwidth is unknown; those that tell
# plans apart come first.
RATIOS = (1.0, 1.3, 0.75, 2.5, 0.4, 6.0)
STEPS = 3  # on the virtual clock for every plan compared
MOST_TRANSFERS = 250_000  # on the virtual clock: bounds the time of the search
GOOD_ENOUGH = 1.002  # times the bound that no plan surpasses: nothing worth while is left to improve
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


def spread_residents(costs: Sequence[LayerCost], budget: int, most_staging: int | None = None) -> Plan:
    """The fastest plan found whose peak is within the budget, for a link of unknown speed.

    It should serve for whatever link, most of all for one that takes about as long to transfer what is streamed as
    that takes to compute. Deterministic; about a quarter of a second for 600 layers.

    Args:
        costs: of the layers, in the order in which they run.
        budget: bytes for resident layers and the ring.
        most_staging: bytes that the ring may have; one layer always may be staged. None: as many as help.

    Raises:
        ValueError: a budget below :func:`least_budget`, which is named; no layers or negative costs.
    """
    least = least_budget(costs)
    if sum(cost.bytes for cost in costs) <= budget:
        return _plan(costs, frozenset(), 0)
    if budget < least:
        raise ValueError(f"a budget of {budget} bytes is too small: at least {least}")
    most = budget if most_staging is None else most_staging
    return PlanSearch(tuple(costs), budget, most, _usual_bandwidths(costs, budget)).best()


def least_budget(costs: Sequence[LayerCost]) -> int:
    """The smallest workable budget in bytes.

    That is a ring for the largest layer with every layer streamed, unless a few layers are so much larger than the rest
    that keeping them resident shrinks the ring by more than they take.

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
    unit = _unit(size)
    return -(-size // unit) * unit


# -------------------------------------------------------------------------------------------------------- search


@dataclass(frozen=True)
class _Candidate:
    """A ring, layers that may be streamed, and the phase of their error diffusion."""

    bound: float
    ring: int
    movable: tuple[int, ...]
    phase: float


@dataclass
class PlanSearch:
    """Plans for one budget, compared on the virtual clock.

    Attributes:
        costs: of the layers, in the order in which they run.
        budget: bytes for resident layers and the ring; at least :func:`least_budget`, less than all layers take.
        most_staging: bytes that the ring may have.
        bandwidths: of links that the plan should serve for, in bytes per second.
        transfers: put on the virtual clock so far.
    """

    costs: tuple[LayerCost, ...]
    budget: int
    most_staging: int
    bandwidths: tuple[float, ...]
    transfers: int = 0
    compute: float = field(init=False)
    total: int = field(init=False)

    def __post_init__(self) -> None:
        self.compute = sum(cost.seconds for cost in self.costs)
        self.total = sum(cost.bytes for cost in self.costs)

    def best(self) -> Plan:
        """The fastest; candidates that could not surpass it even with perfect overlap are not run.

        What the search gains over even spacing through a ring for two layers, by the virtual clock: that takes up to
        46 % longer on the models and cards of benchmarks/offload.md, 4 % in the mean, and up to 32 % on the ten models
        of tests/emulator/offload_grid.py, 6 % in the mean.
        """
        found: Plan | None = None
        least = math.inf
        for candidate in sorted(self._candidates(), key=lambda candidate: candidate.bound):
            if candidate.bound * GOOD_ENOUGH >= least or (found is not None and self.transfers > MOST_TRANSFERS):
                continue
            plan = self._spread(candidate)
            if plan is not None and (score := self._score(plan, least)) < least:
                found, least = plan, score
        assert found is not None  # at the least budget all that may be streamed fits
        return self._filled(found, least)

    def _candidates(self) -> Iterator[_Candidate]:
        for size in self._classes():
            movable = tuple(i for i, cost in enumerate(self.costs) if 0 < cost.bytes <= size)
            most = sum(self.costs[i].bytes for i in movable)
            for ring in self._rings(movable):
                wanted = self.total - (self.budget - ring)
                if 0 < wanted <= most:
                    for phase in PHASES:
                        yield _Candidate(self._bound(wanted), ring, movable, phase)

    def _classes(self) -> list[int]:
        """Sizes above which layers stay: all that leave enough to stream, thinned out."""
        sizes = [size for size in _sizes(self.costs) if self._larger(size) + ring_bytes(size) <= self.budget][::-1]
        if len(sizes) <= MOST_CLASSES:
            return sizes
        return [sizes[round(i * (len(sizes) - 1) / (MOST_CLASSES - 1))] for i in range(MOST_CLASSES)]

    def _rings(self, movable: Sequence[int]) -> list[int]:
        """Sizes of rings that are worth trying."""
        largest, *others = sorted((self.costs[i].bytes for i in movable), reverse=True)
        two = largest + (others[0] if others else 0)
        wanted = [max(largest, int(two * ring)) for ring in (0.0, *RINGS)]
        most = max(min(self.most_staging, self.budget, sum(self.costs[i].bytes for i in movable)), largest)
        return sorted({ring_bytes(min(ring, most)) for ring in wanted})

    def _spread(self, candidate: _Candidate) -> Plan | None:
        streamed = spread_streamed(self.costs, candidate.movable, self.budget - candidate.ring, candidate.phase)
        return _plan(self.costs, streamed, candidate.ring) if streamed else None

    def _filled(self, plan: Plan, score: float) -> Plan:
        """With the bytes that no layer fits into added to the ring, unless layers then lie in it less well."""
        room = min(self.budget - plan.peak, self.most_staging - plan.staging)
        unit = _unit(plan.staging)
        larger = replace(plan, staging=plan.staging + max(0, room) // unit * unit)
        return larger if self._score(larger) < score else plan

    def _bound(self, moved: int) -> float:
        """The score that no plan surpasses that streams so many bytes."""
        return sum(max(self.compute, moved / bandwidth) / self._scale(bandwidth) for bandwidth in self.bandwidths)

    def _score(self, plan: Plan, most: float = math.inf) -> float:
        """The plan's time over all bandwidths, less is better; not added up further once it is above ``most``."""
        segments = segments_of(self.costs, plan.streamed)
        before = ring_waits(segments, plan.staging, STEPS)
        score = self._bound(plan.streamed_bytes)
        for bandwidth in self.bandwidths:
            lost = step_seconds(segments, before, bandwidth) - max(self.compute, plan.streamed_bytes / bandwidth)
            score += max(0.0, lost) / self._scale(bandwidth)
            self.transfers += len(before)
            if score > most:
                break
        return score

    def _scale(self, bandwidth: float) -> float:
        """So that every bandwidth has the same weight, whatever the budget."""
        return max(self.compute, self.total / bandwidth)

    def _larger(self, size: int) -> int:
        return sum(cost.bytes for cost in self.costs if cost.bytes > size)


def _usual_bandwidths(costs: Sequence[LayerCost], budget: int) -> tuple[float, ...]:
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


def _unit(size: int) -> int:
    """What rings of about so many bytes are multiples of."""
    return PAGES if size >= LARGE else UNITS
