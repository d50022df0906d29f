"""Which layers are streamed when so many bytes have to be: those that follow the compute most evenly.

Layers to swap taken from one end of the network wait for the link there and leave it idle elsewhere. Streamed layers
that stand between resident ones have about as much compute as transfer before them at every place. Needs nothing but
the standard library.
"""

from __future__ import annotations

from collections.abc import Sequence

from .costs import LayerCost


def spread_streamed(
    costs: Sequence[LayerCost], movable: Sequence[int], room: int, phase: float
) -> frozenset[int] | None:
    """Indices of the layers to stream so that the others fit; None if they cannot.

    Args:
        costs: of the layers, in the order in which they run.
        movable: indices of those that may be streamed, all with bytes, more together than have to be.
        room: bytes for the layers that stay.
        phase: of the error diffusion, between 0 and 1: at 0.5 it begins with no remainder.
    """
    total = sum(cost.bytes for cost in costs)
    streamed = _diffused(costs, _shares(costs, movable, total - room), phase)
    resident = total - sum(costs[i].bytes for i in streamed)
    return _fitted(costs, movable, streamed, room - resident)


def _shares(costs: Sequence[LayerCost], movable: Sequence[int], wanted: float) -> dict[int, float]:
    """``wanted`` bytes shared out among the layers in proportion to their compute; none gets more than it has.

    Streaming in proportion to compute hides the most. A layer with few bytes for its compute is streamed whole, and
    the rest of its share goes to the others.
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
    """Error diffusion: rounds each share to none or all of the layer, and carries the remainder to the next."""
    carried = (phase - 0.5) * max(costs[i].bytes for i in shares)
    streamed = []
    for i in sorted(shares):
        carried += shares[i]
        if carried >= 0.5 * costs[i].bytes:
            streamed.append(i)
            carried -= costs[i].bytes
    return frozenset(streamed)


def _fitted(
    costs: Sequence[LayerCost], movable: Sequence[int], streamed: frozenset[int], room: int
) -> frozenset[int] | None:
    """The streamed layers, a few more or fewer of them, so that the resident ones use up their bytes.

    Args:
        room: bytes left beside the resident layers; negative: by so many they are too large.
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
    """Up to three times, swaps a streamed layer with a smaller resident one where the difference fits ``room`` best."""
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
