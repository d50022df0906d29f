"""What layers cost, as schedules are computed from it. Needs nothing but the standard library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


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
class Segment:
    """A streamed layer and the resident layers that run between it and the next streamed one.

    Attributes:
        bytes: of the streamed layer.
        compute: seconds of the streamed layer.
        after: seconds of the resident layers after it, up to the next streamed one, which may be the next step's.
    """

    bytes: int
    compute: float
    after: float


def segments_of(costs: Sequence[LayerCost], streamed: Sequence[int]) -> list[Segment]:
    """A step cut at its streamed layers.

    Args:
        costs: of the layers, in the order in which they run.
        streamed: indices of the streamed ones, ascending; at least one. What runs before the first of them counts
            towards the last segment, since steps follow one another.
    """
    ends = [*streamed[1:], streamed[0] + len(costs)]
    until = [0.0]
    for cost in (*costs, *costs):
        until.append(until[-1] + cost.seconds)
    return [
        Segment(costs[layer].bytes, costs[layer].seconds, until[end] - until[layer + 1])
        for layer, end in zip(streamed, ends)
    ]
