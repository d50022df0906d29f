"""Streaming on a virtual clock: when each transfer and each layer runs, computed rather than measured.

Layers run one after the other, step after step. Resident ones run at once. A streamed layer's transfer starts when the
link is free and so are the bytes of the ring that it goes to, which is when the layers that had them before have run;
the layer runs when its transfer has ended. Same input, same result, on any machine, so that plans can be compared
without a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence

from .costs import Segment
from .ring import waits


def step_seconds(segments: Sequence[Segment], before: Sequence[int], bandwidth: float) -> float:
    """Seconds of a step, once the first, which starts with an empty ring, is over: the mean of all but the first.

    Args:
        segments: of one step.
        before: as :func:`ring_waits` has it, of as many steps as are to run, at least two.
        bandwidth: of the link, in bytes per second.
    """
    count = len(segments)
    steps = len(before) // count
    step = [(segment.bytes / bandwidth, segment.compute, segment.after) for segment in segments]
    finished: list[float] = []
    link = now = 0.0
    for number, (transfer, compute, after) in enumerate(step * steps):
        earlier = before[number]
        start = finished[earlier] if earlier >= 0 and finished[earlier] > link else link
        link = start + transfer
        now = (link if link > now else now) + compute
        finished.append(now)
        now += after
    return (finished[-1] - finished[count - 1]) / (steps - 1)


def ring_waits(segments: Sequence[Segment], staging: int, steps: int) -> list[int]:
    """For each transfer of some steps the one whose layer must have run before it starts; -1: none.

    Raises:
        ValueError: a streamed layer is larger than ``staging``, the bytes of the ring.
    """
    return waits([segment.bytes for segment in segments] * steps, staging)
