"""Which blocks stay on the device and which are streamed, so that the transfers hide behind the compute.

Blocks to swap taken from one end of the network wait for the link there and leave it idle elsewhere. Here the resident
blocks stand between the streamed ones, so that at every place about as much compute as transfer lies ahead. Blocks
differ in bytes and in compute; what is streamed follows the compute, and a few hundred spreads are compared on the
virtual clock. Needs nothing but the standard library.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, product, zip_longest

from .virtual_clock import run_stages, stages_of, steady_step

# Where a spread starts, in parts of its largest block, and from which part of a block on it is streamed.
PHASES = (-0.375, -0.125, 0.125, 0.375)
THRESHOLDS = (0.3, 0.5, 0.7)
MORE_STREAMED = 6  # how many of the largest blocks more than the budget asks for may be streamed, if that is faster
# Transfer of all blocks over compute of all of them, for which a plan should serve if the bandwidth is unknown; those
# first that tell plans apart.
RATIOS = (1.8, 1.3, 2.5, 1.0, 4.0, 0.8, 0.5)
STEPS = 4  # on the virtual clock for every spread compared
MOST_RUNS = 700  # on the virtual clock, half for the spreads and half for improving the best: bounds the time
GOOD_ENOUGH = 1.002  # of what no plan surpasses: then nothing is left to improve
SAME = 1e-9  # relative difference of times that is rounding


@dataclass(frozen=True)
class BlockCost:
    """What a block costs.

    Attributes:
        bytes: of its weights, as they are transferred.
        seconds: of its compute; any unit will do if bandwidths are in bytes per that unit.
    """

    bytes: int
    seconds: float


@dataclass(frozen=True)
class Plan:
    """Where the blocks live.

    Attributes:
        resident: indices of the blocks that stay on the device.
        streamed: indices of the others, in the order in which they run.
        staging: bytes of the staging slots, each as large as the largest streamed block; 0 if nothing is streamed.
            Synchronous copies (0 slots) need room for one block too.
        resident_bytes: of the resident blocks.
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


def spread_residents(costs: Sequence[BlockCost], budget: int, slots: int, bandwidth: float | None = None) -> Plan:
    """The fastest plan found whose peak is within the budget; of equally fast ones that with the most resident.

    Deterministic; less than 0.2 seconds for 60 blocks.

    Args:
        costs: of the blocks, in the order in which they run.
        budget: bytes for resident blocks and staging slots.
        slots: staging buffers; 0: synchronous copies.
        bandwidth: of the link, in bytes per second; None: the plan should serve for links that take from half as long
            to four times as long as the compute to transfer all blocks.

    Raises:
        ValueError: a budget below :func:`least_budget`, which is named; no blocks, negative costs or slots, or a
            bandwidth that is not positive.
    """
    least = least_budget(costs, slots)
    if bandwidth is not None and not bandwidth > 0:
        raise ValueError(f"the bandwidth must be positive, not {bandwidth}")
    if sum(cost.bytes for cost in costs) <= budget:
        return _plan(costs, (), slots)
    if budget < least:
        raise ValueError(f"a budget of {budget} bytes is too small: at least {least} with {slots} slots")
    task = _Task(tuple(costs), budget, slots, _bandwidths(costs, bandwidth))
    return _plan(costs, task.best().streamed, slots)


def least_budget(costs: Sequence[BlockCost], slots: int) -> int:
    """The smallest workable budget in bytes.

    That is the staging with every block streamed, unless a few blocks are so much larger than the rest that the slots
    become smaller by more than these take when they are resident.

    Raises:
        ValueError: no blocks, negative costs or slots.
    """
    if not costs or slots < 0 or any(cost.bytes < 0 or cost.seconds < 0 for cost in costs):
        raise ValueError(f"{len(costs)} blocks and {slots} slots: at least 1 and 0, and no negative costs")
    total = sum(cost.bytes for cost in costs)
    return min([total, *(_larger(costs, size) + _buffers(slots) * size for size in _sizes(costs))])


# ------------------------------------------------------------------------------------------------------- spreads


def _spreads(costs: Sequence[BlockCost], budget: int, slots: int) -> Iterator[tuple[int, ...]]:
    """Streamed blocks of many plans, for slots of every size; some exceed the budget, some occur more than once."""
    total = sum(cost.bytes for cost in costs)
    for size in _sizes(costs):
        movable = [i for i, cost in enumerate(costs) if 0 < cost.bytes <= size]
        asked = max(1, total - (budget - _buffers(slots) * size))
        most = sum(costs[i].bytes for i in movable)
        if asked > most:
            continue
        yield tuple(movable)
        yield _fewest(costs, movable, asked)
        yield tuple(sorted(_fewest(costs, movable[::-1], asked)))
        for part in range(1, len(movable)):
            wanted = most * part / len(movable)
            if asked - size <= wanted <= asked + MORE_STREAMED * size:
                shares = _shares(costs, movable, wanted)
                for phase, threshold in product(PHASES, THRESHOLDS):
                    yield _diffused(costs, shares, phase * size, threshold)


def _fewest(costs: Sequence[BlockCost], movable: Sequence[int], asked: int) -> tuple[int, ...]:
    """The first blocks that have the bytes asked for: rarely good, but then no plan is worse than blocks of one end."""
    moved = accumulate(costs[i].bytes for i in movable)
    return tuple(movable[: 1 + next(number for number, total in enumerate(moved) if total >= asked)])


def _shares(costs: Sequence[BlockCost], movable: Sequence[int], wanted: float) -> dict[int, float]:
    """Bytes to be streamed of every block: as its compute, at most all; ``wanted`` in all.

    Streaming in proportion to compute hides the most. A block that has few bytes for its compute is streamed whole,
    and what it leaves is shared among the others.
    """
    floor = max(1e-9 * sum(costs[i].seconds for i in movable), 1e-30)  # a block without compute has its turn last
    seconds = {i: max(costs[i].seconds, floor) for i in movable}
    left, time = wanted, sum(seconds.values())
    shares: dict[int, float] = {}
    for i in sorted(movable, key=lambda i: costs[i].bytes / seconds[i]):
        shares[i] = min(float(costs[i].bytes), seconds[i] * left / time)
        left, time = left - shares[i], max(time - seconds[i], floor)
    return shares


def _diffused(costs: Sequence[BlockCost], shares: dict[int, float], debt: float, threshold: float) -> tuple[int, ...]:
    """Whole blocks for the shares: a block is streamed when enough is owed, and what it is too much is owed less."""
    streamed = []
    for i in sorted(shares):
        debt += shares[i]
        if debt >= threshold * costs[i].bytes:
            streamed.append(i)
            debt -= costs[i].bytes
    return tuple(streamed)


# ---------------------------------------------------------------------------------------------------- comparison


@dataclass(frozen=True, order=True)
class _Scored:
    """A plan's streamed blocks; the less the better: time, then bytes streamed."""

    score: float
    bytes: int
    streamed: tuple[int, ...]

    def beats(self, other: _Scored) -> bool:
        if abs(self.score - other.score) > SAME * other.score:
            return self.score < other.score
        return self.bytes < other.bytes


@dataclass
class _Task:
    """Plans for one budget, compared on the virtual clock."""

    costs: tuple[BlockCost, ...]
    budget: int
    slots: int
    bandwidths: tuple[float, ...]
    runs: int = 0
    compute: float = field(init=False)
    total: int = field(init=False)

    def __post_init__(self) -> None:
        self.compute = sum(cost.seconds for cost in self.costs)
        self.total = sum(cost.bytes for cost in self.costs)

    def best(self) -> _Scored:
        """The best of the spreads, and what becomes of it by exchanging blocks."""
        best = self.best_spread()
        while best.score > GOOD_ENOUGH * self.bound(best.bytes):
            better = next(self._better(best), None)
            if better is None:
                break
            best = better
        return self._filled(best)

    def best_spread(self) -> _Scored:
        """The best of the spreads; those that could not surpass it even with perfect overlap are not run."""
        best: _Scored | None = None
        for bound, streamed in self._in_turn():
            if best is None or bound <= best.score:
                scored = self.scored(streamed, math.inf if best is None else best.score)
                best = scored if best is None or scored.beats(best) else best
            if self.runs > MOST_RUNS // 2:
                break
        assert best is not None  # at the least budget all that may be streamed fits
        return best

    def _in_turn(self) -> Iterator[tuple[float, tuple[int, ...]]]:
        """Bounds and streamed blocks of the spreads that fit: the most promising of every slot size, then the second.

        Small slots leave more room for resident blocks, but would be tried alone if only the bound decided.
        """
        found = {streamed for streamed in _spreads(self.costs, self.budget, self.slots) if self.fits(streamed)}
        sizes: dict[int, list[tuple[float, tuple[int, ...]]]] = {}
        for streamed in found:
            size = max(self.costs[i].bytes for i in streamed)
            sizes.setdefault(size, []).append((self.bound(self.moved(streamed)), streamed))
        ranked = [sorted(spreads) for _, spreads in sorted(sizes.items())]
        for turn in zip_longest(*ranked):
            yield from (spread for spread in turn if spread is not None)

    def _better(self, best: _Scored) -> Iterator[_Scored]:
        """Plans with a streamed and a resident block exchanged, the nearest first, that are faster."""
        resident = [i for i in range(len(self.costs)) if i not in best.streamed]
        pairs = sorted(product(best.streamed, resident), key=lambda pair: (abs(pair[0] - pair[1]), pair))
        for out, back in pairs:
            changed = tuple(sorted({*best.streamed, back} - {out}))
            if self.runs >= MOST_RUNS:
                return
            if self.fits(changed) and self.bound(self.moved(changed)) < best.score:
                scored = self.scored(changed, best.score)
                if scored.beats(best):
                    yield scored

    def _filled(self, best: _Scored) -> _Scored:
        """With every block resident that still fits, unless that is slower."""
        for block in sorted(best.streamed, key=lambda i: -self.costs[i].bytes):
            fewer = tuple(i for i in best.streamed if i != block)
            if fewer and self.fits(fewer):
                scored = self.scored(fewer, best.score)
                best = scored if scored.beats(best) else best
        return best

    def fits(self, streamed: tuple[int, ...]) -> bool:
        if not streamed:
            return False
        staging = _buffers(self.slots) * max(self.costs[i].bytes for i in streamed)
        return self.total - self.moved(streamed) + staging <= self.budget

    def moved(self, streamed: tuple[int, ...]) -> int:
        return sum(self.costs[i].bytes for i in streamed)

    def bound(self, moved: int) -> float:
        """The score that no plan surpasses that streams so many bytes."""
        return sum(max(self.compute, moved / bandwidth) / self._scale(bandwidth) for bandwidth in self.bandwidths)

    def scored(self, streamed: tuple[int, ...], most: float = math.inf) -> _Scored:
        """The plan's score; once it is above ``most``, something in between, for the plan is of no use."""
        moved = self.moved(streamed)
        score = self.bound(moved)
        for bandwidth in self.bandwidths:
            _, finished = run_stages(stages_of(self.costs, streamed, bandwidth), self.slots, STEPS)
            lost = steady_step(finished, len(streamed), STEPS) - max(self.compute, moved / bandwidth)
            score += max(0.0, lost) / self._scale(bandwidth)
            self.runs += 1
            if score > most * (1 + SAME):
                break
        return _Scored(score, moved, streamed)

    def _scale(self, bandwidth: float) -> float:
        """So that every bandwidth has the same weight, whatever the budget."""
        return max(self.compute, self.total / bandwidth)


def _bandwidths(costs: Sequence[BlockCost], bandwidth: float | None) -> tuple[float, ...]:
    if bandwidth is not None:
        return (bandwidth,)
    total = sum(cost.bytes for cost in costs)
    compute = sum(cost.seconds for cost in costs)
    return tuple(total / (compute * ratio) for ratio in RATIOS) if compute else (float(total),)


def _plan(costs: Sequence[BlockCost], streamed: tuple[int, ...], slots: int) -> Plan:
    resident = frozenset(range(len(costs))) - set(streamed)
    moved = [costs[i].bytes for i in streamed]
    kept = sum(costs[i].bytes for i in resident)
    return Plan(resident, streamed, _buffers(slots) * max(moved, default=0), kept, sum(moved))


def _buffers(slots: int) -> int:
    return max(1, slots)


def _sizes(costs: Sequence[BlockCost]) -> list[int]:
    return sorted({cost.bytes for cost in costs if cost.bytes})


def _larger(costs: Sequence[BlockCost], size: int) -> int:
    """Bytes of the blocks that are larger than a slot of this size and hence resident."""
    return sum(cost.bytes for cost in costs if cost.bytes > size)
