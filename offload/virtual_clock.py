"""Streaming on a virtual clock: when each transfer and each layer runs, computed rather than measured.

Layers run one after the other, step after step. Resident ones run at once. A streamed layer's transfer starts when the
link is free and so are the bytes of the ring that it goes to, which is when the layers that had them before have run;
the layer runs when its transfer has ended. Same input, same result, on any machine: a plan can be judged, and tested,
without a GPU.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from .ring import waits


@dataclass(frozen=True)
class LayerCost:
    """What a layer costs.

    Attributes:
        bytes: of its weights, as they are transferred.
        seconds: of its compute; any unit will do if bandwidths are in bytes per that unit.
    """

    bytes: int
    seconds: float


@dataclass(frozen=True)
class Timing:
    """What the virtual clock found.

    Attributes:
        step_seconds: of a step, once the first, which starts with an empty ring, is over.
        peak_bytes: most bytes of resident and staged layers at any time; a layer is staged from the start of its
            transfer to the end of its compute.
        transfers: (layer, start, end) in order, in seconds since the first step began.
    """

    step_seconds: float
    peak_bytes: int
    transfers: list[tuple[int, float, float]]


@dataclass(frozen=True)
class Stage:
    """A streamed layer and the resident layers that run between it and the next one.

    Attributes:
        bytes: of the layer.
        compute: seconds of the layer.
        after: seconds of the resident layers after it, up to the next streamed one, be it the next step's.
    """

    bytes: int
    compute: float
    after: float


def simulate(
    costs: Sequence[LayerCost],
    resident: Collection[int],
    bandwidth: float,
    staging: int,
    steps: int = 6,
    latency: float = 0.0,
) -> Timing:
    """Runs some steps.

    Args:
        costs: of the layers, in the order in which they run.
        resident: indices of the layers that stay on the device.
        bandwidth: of the link, in bytes per second.
        staging: bytes of the ring.
        steps: to run; the time of a step is the mean of all but the first.
        latency: seconds that each transfer takes beyond its bytes.

    Raises:
        ValueError: a bandwidth that is not positive, negative latency, fewer than two steps, no layers, a ring smaller
            than a streamed layer, or a resident layer that does not exist.
    """
    _check(costs, resident, bandwidth, steps, latency)
    streamed = [i for i in range(len(costs)) if i not in resident]
    kept = sum(costs[i].bytes for i in set(resident))
    if not streamed:
        return Timing(total_seconds(costs), kept, [])
    stages = stages_of(costs, streamed)
    lead = sum(cost.seconds for cost in costs[: streamed[0]])
    starts, finished = run_stages(stages, ring_waits(stages, staging, steps), bandwidth, lead, latency)
    transfers = [
        (layer, start, start + latency + costs[layer].bytes / bandwidth)
        for layer, start in zip(streamed * steps, starts)
    ]
    # At the same time bytes are given back before they are taken again.
    changes = [(start, 1, costs[layer].bytes) for layer, start in zip(streamed * steps, starts)]
    changes += [(end, 0, -costs[layer].bytes) for layer, end in zip(streamed * steps, finished)]
    return Timing(steady_step(finished, len(streamed)), kept + _highest(changes), transfers)


def ideal_seconds(costs: Sequence[LayerCost], resident: Collection[int], bandwidth: float) -> float:
    """Seconds of a step in which the shorter one of compute and transfers is hidden entirely; no plan is faster."""
    moved = sum(cost.bytes for i, cost in enumerate(costs) if i not in resident)
    return max(total_seconds(costs), moved / bandwidth)


def efficiency(costs: Sequence[LayerCost], resident: Collection[int], bandwidth: float, staging: int) -> float:
    """Ideal time of a step over its time on the virtual clock: 1.0 if every overlap that is possible takes place."""
    return ideal_seconds(costs, resident, bandwidth) / simulate(costs, resident, bandwidth, staging).step_seconds


def total_seconds(costs: Sequence[LayerCost]) -> float:
    """Compute of a step, in seconds."""
    return sum(cost.seconds for cost in costs)


def stages_of(costs: Sequence[LayerCost], streamed: Sequence[int]) -> list[Stage]:
    """A step's streamed layers, each with what runs up to the next; at least one, in ascending order."""
    ends = [*streamed[1:], streamed[0] + len(costs)]
    until = [0.0]
    for cost in (*costs, *costs):
        until.append(until[-1] + cost.seconds)
    return [
        Stage(costs[layer].bytes, costs[layer].seconds, until[end] - until[layer + 1])
        for layer, end in zip(streamed, ends)
    ]


def ring_waits(stages: Sequence[Stage], staging: int, steps: int) -> list[int]:
    """For each transfer of some steps the one whose layer must have run before it starts; -1: none."""
    return waits([stage.bytes for stage in stages] * steps, staging)


def run_stages(
    stages: Sequence[Stage],
    before: Sequence[int],
    bandwidth: float,
    lead: float = 0.0,
    latency: float = 0.0,
    behind: bool = False,
) -> tuple[list[float], list[float]]:
    """Starts of all transfers and ends of all streamed layers' compute, in order, in seconds.

    Args:
        stages: of one step.
        before: as :func:`ring_waits` has it, of as many steps as are to run.
        bandwidth: of the link, in bytes per second.
        lead: compute of the resident layers before the first stage.
        latency: of each transfer.
        behind: a transfer also waits for the resident layers behind the one that it waits for.
    """
    step = [(latency + stage.bytes / bandwidth, stage.compute, stage.after) for stage in stages]
    starts: list[float] = []
    finished: list[float] = []
    given_back: list[float] = []
    link, now = 0.0, lead
    for number, (transfer, compute, after) in enumerate(step * (len(before) // len(step))):
        start = link
        if before[number] >= 0 and given_back[before[number]] > link:
            start = given_back[before[number]]
        starts.append(start)
        link = start + transfer
        now = (link if link > now else now) + compute
        finished.append(now)
        given_back.append(now + after if behind else now)
        now += after
    return starts, finished


def steady_step(finished: Sequence[float], stages: int) -> float:
    """Mean seconds of a step without the first: between the last streamed layer's ends of the first and last step."""
    return (finished[-1] - finished[stages - 1]) / (len(finished) // stages - 1)


def _highest(changes: list[tuple[float, int, int]]) -> int:
    held = highest = 0
    for _, _, change in sorted(changes):
        held += change
        highest = max(highest, held)
    return highest


def _check(costs: Sequence[LayerCost], resident: Collection[int], bandwidth: float, steps: int, latency: float) -> None:
    if not costs:
        raise ValueError("no layers")
    if not bandwidth > 0:
        raise ValueError(f"the bandwidth must be positive, not {bandwidth}")
    if latency < 0 or steps < 2:
        raise ValueError(f"latency {latency}, steps {steps}: at least 0 and 2")
    if unknown := [i for i in resident if not 0 <= i < len(costs)]:
        raise ValueError(f"no such layers: {sorted(unknown)} of {len(costs)}")
