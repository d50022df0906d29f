"""Block Offload's plans on a clock of their own, layer by layer, and what they are compared with.

`offload/virtual_clock.py` computes nothing but the time of a step, from segments. This one follows every layer and
every transfer, and unit tests hold the other to it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate

from headroom.offload.costs import LayerCost
from headroom.offload.ring import waits
from headroom.offload.schedule import Plan, ring_bytes
from headroom.offload.spread import spread_streamed

STEPS = 6


@dataclass(frozen=True)
class Timing:
    """What the clock found.

    Attributes:
        step_seconds: of a step, once the first, which starts with an empty ring, is over.
        peak_bytes: most bytes of resident and staged layers at any time; a layer is staged from the start of its
            transfer to the end of its compute.
        transfers: (layer, start, end) in order, in seconds since the first step began.
    """

    step_seconds: float
    peak_bytes: int
    transfers: list[tuple[int, float, float]]


def simulate(
    costs: Sequence[LayerCost], resident: Collection[int], bandwidth: float, staging: int, steps: int = STEPS
) -> Timing:
    """Runs some steps, at least two.

    Args:
        costs: of the layers, in the order in which they run.
        resident: indices of the layers that stay on the device.
        bandwidth: of the link, in bytes per second.
        staging: bytes of the ring.
        steps: to run; the time of a step is the mean of all but the first.

    Raises:
        ValueError: a ring smaller than a streamed layer.
    """
    kept = sum(costs[i].bytes for i in set(resident))
    streamed = [i for i in range(len(costs)) if i not in resident]
    if not streamed:
        return Timing(total_seconds(costs), kept, [])
    before = waits([costs[i].bytes for i in streamed] * steps, staging)
    return _run(costs, frozenset(resident), bandwidth, before, kept)


def _run(
    costs: Sequence[LayerCost],
    resident: frozenset[int],
    bandwidth: float,
    before: Sequence[int],
    kept: int = 0,
    behind: bool = False,
) -> Timing:
    """
    Args:
        before: for each transfer the one whose layer must have run before it starts; -1: none.
        behind: it also waits for the resident layers right behind that one.
    """
    count = len(costs) - len(resident)
    steps = len(before) // count
    link = now = 0.0
    transfers: list[tuple[int, float, float]] = []
    finished: list[float] = []
    free: list[float] = []  # when what a layer was staged in may be overwritten
    for i, cost in list(enumerate(costs)) * steps:
        if i in resident:
            now += cost.seconds
            if behind and free:
                free[-1] = now
            continue
        earlier = before[len(transfers)]
        start = max(link, free[earlier]) if earlier >= 0 else link
        link = start + cost.bytes / bandwidth
        transfers.append((i, start, link))
        now = max(now, link) + cost.seconds
        finished.append(now)
        free.append(now)
    step = (finished[-1] - finished[count - 1]) / (steps - 1)
    return Timing(step, kept + _most_staged(costs, transfers, finished), transfers)


def _most_staged(
    costs: Sequence[LayerCost], transfers: Sequence[tuple[int, float, float]], finished: Sequence[float]
) -> int:
    # At the same time bytes are given back before they are taken again.
    changes = [(start, 1, costs[layer].bytes) for layer, start, _ in transfers]
    changes += [(end, 0, -costs[layer].bytes) for (layer, _, _), end in zip(transfers, finished)]
    return max(accumulate(change for _, _, change in sorted(changes)))


def total_seconds(costs: Sequence[LayerCost]) -> float:
    """Compute of a step, in seconds."""
    return sum(cost.seconds for cost in costs)


def total_bytes(costs: Sequence[LayerCost]) -> int:
    """Of all layers."""
    return sum(cost.bytes for cost in costs)


def ideal_seconds(costs: Sequence[LayerCost], resident: Collection[int], bandwidth: float) -> float:
    """Seconds of a step in which the shorter one of compute and transfers is hidden entirely; no plan is faster."""
    moved = sum(cost.bytes for i, cost in enumerate(costs) if i not in resident)
    return max(total_seconds(costs), moved / bandwidth)


def efficiency(costs: Sequence[LayerCost], resident: Collection[int], bandwidth: float, staging: int) -> float:
    """Ideal time of a step over its time on the clock: 1.0 if every overlap that is possible takes place."""
    return ideal_seconds(costs, resident, bandwidth) / simulate(costs, resident, bandwidth, staging).step_seconds


def plain_step(costs: Sequence[LayerCost], budget: int, bandwidth: float) -> float:
    """Seconds of a step of plain streaming within a budget: the largest layers stay, the others go through two buffers
    in turn, each copied when the one before the last and all before the last have run. Infinite if that needs more."""
    order = sorted(range(len(costs)), key=lambda i: (-costs[i].bytes, -i))
    kept = list(accumulate((costs[i].bytes for i in order), initial=0))
    buffers = [sum(costs[i].bytes for i in order[count : count + 2]) for count in range(len(costs) + 1)]
    count = max((n for n in range(len(costs) + 1) if kept[n] + buffers[n] <= budget), default=-1)
    if count < 0:
        return math.inf
    streamed = [i for i in order[count:] if costs[i].bytes]
    if not streamed:
        return total_seconds(costs)
    before = [number - 2 if number > 1 else -1 for number in range(STEPS * len(streamed))]
    return _run(costs, frozenset(range(len(costs))).difference(streamed), bandwidth, before, behind=True).step_seconds


def evenly_spaced(costs: Sequence[LayerCost], budget: int) -> Plan | None:
    """The simple plan: as many bytes as have to be are streamed at even distances, through a ring for two layers.

    None where the budget is too small for that.
    """
    sizes = sorted((cost.bytes for cost in costs), reverse=True)
    ring = ring_bytes(sum(sizes[:2]))
    movable = [i for i, cost in enumerate(costs) if cost.bytes]
    if not 0 <= budget - ring < total_bytes(costs):
        return None
    by_bytes = [LayerCost(cost.bytes, cost.bytes) for cost in costs]
    streamed = spread_streamed(by_bytes, movable, budget - ring, phase=0.5)
    if not streamed:
        return None
    moved = sum(costs[i].bytes for i in streamed)
    resident = frozenset(range(len(costs))) - streamed
    return Plan(resident, tuple(sorted(streamed)), ring, total_bytes(costs) - moved, moved)
