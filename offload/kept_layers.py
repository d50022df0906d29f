"""Which streamed layers to keep in a part of the ring, once it is known how fast the card and its link are.

Where the link is the limit, a smaller ring often hides as much; then the rest of its memory serves better as a place
for some layers, which need not be copied again. Needs nothing but the standard library.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from .costs import Segment
from .schedule import GOOD_ENOUGH, STEPS
from .virtual_clock import ring_waits, step_seconds

PARTS = 16  # of a ring: how finely it is divided between what stays and what passes
GOLDEN = (5**0.5 - 1) / 2  # its multiples, modulo 1, are spread evenly, however many there are


def layers_to_keep(segments: Sequence[Segment], ring: int, bandwidth: float) -> frozenset[int]:
    """The streamed layers that had better stay in the ring's memory, whose remainder is the ring of the others.

    Args:
        segments: of a step, as measured.
        ring: bytes.
        bandwidth: of the link as measured, in bytes per second.

    Returns:
        Positions among the segments; none where the whole ring is of use.
    """
    chosen: frozenset[int] = frozenset()
    least = _step(segments, ring, bandwidth)
    compute = sum(segment.compute + segment.after for segment in segments)
    moved = sum(segment.bytes for segment in segments)
    for part, largest_first in product(range(1, PARTS), (True, False)):
        kept = _fitting(segments, ring * part // PARTS, largest_first)
        saved = sum(segments[i].bytes for i in kept)
        if not kept or max(compute, (moved - saved) / bandwidth) >= least / GOOD_ENOUGH:
            continue
        rest = _merged(segments, kept)
        if max((segment.bytes for segment in rest), default=ring) > ring - saved:
            continue
        step = _step(rest, ring - saved, bandwidth)
        if step < least / GOOD_ENOUGH:
            chosen, least = kept, step
    return chosen


def _fitting(segments: Sequence[Segment], room: int, largest_first: bool) -> frozenset[int]:
    """Layers that fit into ``room`` bytes: the largest first, or spread evenly over the step."""
    count = len(segments)
    spread = sorted(range(count), key=lambda i: i * GOLDEN % 1)
    chosen = set()
    for i in sorted(spread, key=lambda i: -segments[i].bytes) if largest_first else spread:
        if segments[i].bytes <= room:
            chosen.add(i)
            room -= segments[i].bytes
    return frozenset(chosen)


def _merged(segments: Sequence[Segment], kept: frozenset[int]) -> list[Segment]:
    """The segments of the layers that are still streamed; kept ones add to the compute after the one before them."""
    rest: list[Segment] = []
    lead = 0.0
    for i, segment in enumerate(segments):
        if i not in kept:
            rest.append(segment)
        elif rest:
            rest[-1] = replace(rest[-1], after=rest[-1].after + segment.compute + segment.after)
        else:
            lead += segment.compute + segment.after
    return [*rest[:-1], replace(rest[-1], after=rest[-1].after + lead)] if rest else []


def _step(segments: Sequence[Segment], ring: int, bandwidth: float) -> float:
    return step_seconds(segments, ring_waits(segments, ring, STEPS), bandwidth)
