"""Block offload on a virtual clock: when each transfer and each block runs, computed rather than measured.

Blocks run one after the other, step after step. Resident blocks run at once. A streamed block's transfer starts when
the link is free and so is its staging slot, which is when the block that had the slot before has run; the block runs
when its transfer has ended. Same input, same result, on any machine: a plan can be judged, and tested, without a GPU.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .schedule import BlockCost


@dataclass(frozen=True)
class Timing:
    """What the virtual clock found.

    Attributes:
        step_seconds: of a step, once the first, which starts with empty slots, is over.
        peak_bytes: most bytes of resident and staged blocks at any time; a block is staged from the start of its
            transfer to the end of its compute.
        transfers: (block, start, end) in order, in seconds since the first step began.
    """

    step_seconds: float
    peak_bytes: int
    transfers: list[tuple[int, float, float]]


@dataclass(frozen=True)
class Stage:
    """A streamed block and the resident blocks that run between it and the next one, all in seconds.

    Attributes:
        transfer: of the block.
        compute: of the block.
        after: compute of the resident blocks after it, up to the next streamed block, be it the next step's.
    """

    transfer: float
    compute: float
    after: float


def simulate(
    costs: Sequence[BlockCost],
    resident: Collection[int],
    bandwidth: float,
    slots: int,
    steps: int = 6,
    latency: float = 0.0,
) -> Timing:
    """Runs some steps.

    Args:
        costs: of the blocks, in the order in which they run.
        resident: indices of the blocks that stay on the device.
        bandwidth: of the link, in bytes per second.
        slots: staging buffers; 0: synchronous copies, each started when the block before has run.
        steps: to run; the time of a step is the mean of all but the first.
        latency: seconds that each transfer takes beyond its bytes.

    Raises:
        ValueError: a bandwidth that is not positive, negative slots or latency, fewer than two steps, no blocks, or a
            resident block that does not exist.
    """
    _check(costs, resident, bandwidth, slots, steps, latency)
    streamed = [i for i in range(len(costs)) if i not in resident]
    kept = sum(costs[i].bytes for i in set(resident))
    if not streamed:
        return Timing(total_seconds(costs), kept, [])
    stages = stages_of(costs, streamed, bandwidth, latency)
    lead = sum(cost.seconds for cost in costs[: streamed[0]])
    starts, finished = run_stages(stages, slots, steps, lead)
    order = streamed * steps
    transfers = [(block, start, start + stage.transfer) for block, start, stage in zip(order, starts, stages * steps)]
    # At the same time a slot is given back before it is taken again.
    changes = [(start, 1, costs[block].bytes) for block, start in zip(order, starts)]
    changes += [(end, 0, -costs[block].bytes) for block, end in zip(order, finished)]
    return Timing(steady_step(finished, len(streamed), steps), kept + _highest(changes), transfers)


def ideal_seconds(costs: Sequence[BlockCost], resident: Collection[int], bandwidth: float) -> float:
    """Seconds of a step in which the shorter one of compute and transfers is hidden entirely; no plan is faster."""
    moved = sum(cost.bytes for i, cost in enumerate(costs) if i not in resident)
    return max(total_seconds(costs), moved / bandwidth)


def efficiency(costs: Sequence[BlockCost], resident: Collection[int], bandwidth: float, slots: int) -> float:
    """Ideal time of a step over its time on the virtual clock: 1.0 if every overlap that is possible takes place."""
    return ideal_seconds(costs, resident, bandwidth) / simulate(costs, resident, bandwidth, slots).step_seconds


def total_seconds(costs: Sequence[BlockCost]) -> float:
    """Compute of a step, in seconds."""
    return sum(cost.seconds for cost in costs)


def stages_of(
    costs: Sequence[BlockCost], streamed: Sequence[int], bandwidth: float, latency: float = 0.0
) -> list[Stage]:
    """A step's streamed blocks, each with what runs up to the next; at least one, in ascending order."""
    ends = [*streamed[1:], streamed[0] + len(costs)]
    twice = [cost.seconds for cost in costs] * 2
    return [
        Stage(latency + costs[block].bytes / bandwidth, costs[block].seconds, sum(twice[block + 1 : end]))
        for block, end in zip(streamed, ends)
    ]


def run_stages(stages: Sequence[Stage], slots: int, steps: int, lead: float = 0.0) -> tuple[list[float], list[float]]:
    """Starts of all transfers and ends of all streamed blocks' compute, in order, in seconds.

    Args:
        stages: of one step.
        slots: staging buffers; 0: synchronous copies.
        steps: how often the stages run.
        lead: compute of the resident blocks before the first stage.
    """
    step = [(stage.transfer, stage.compute, stage.after) for stage in stages]
    starts: list[float] = []
    finished: list[float] = []
    link, now = 0.0, lead
    for number, (transfer, compute, after) in enumerate(step * steps):
        if slots == 0:
            start = now
        elif number >= slots and finished[number - slots] > link:
            start = finished[number - slots]
        else:
            start = link
        starts.append(start)
        link = start + transfer
        now = (link if link > now else now) + compute
        finished.append(now)
        now += after
    return starts, finished


def steady_step(finished: Sequence[float], stages: int, steps: int) -> float:
    """Mean seconds of a step without the first: between the last streamed block's ends of the first and last step."""
    return (finished[-1] - finished[stages - 1]) / (steps - 1)


def _highest(changes: list[tuple[float, int, int]]) -> int:
    held = highest = 0
    for _, _, change in sorted(changes):
        held += change
        highest = max(highest, held)
    return highest


def _check(
    costs: Sequence[BlockCost], resident: Collection[int], bandwidth: float, slots: int, steps: int, latency: float
) -> None:
    if not costs:
        raise ValueError("no blocks")
    if not bandwidth > 0:
        raise ValueError(f"the bandwidth must be positive, not {bandwidth}")
    if slots < 0 or latency < 0 or steps < 2:
        raise ValueError(f"slots {slots}, latency {latency}, steps {steps}: at least 0, 0 and 2")
    if unknown := [i for i in resident if not 0 <= i < len(costs)]:
        raise ValueError(f"no such blocks: {sorted(unknown)} of {len(costs)}")
