"""A ring of bytes: regions are taken one behind the other, and the oldest memory is taken again.

Weights differ in size and run in a fixed order, so slots of one size would be as large as the largest of them, each. In
a ring a region takes what it needs, from the end of the one before; where it would reach beyond the end it begins at
the start, for a weight lies in one piece. Needs nothing but the standard library.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

Token = TypeVar("Token")


@dataclass(eq=False)
class Region(Generic[Token]):
    """Bytes ``start`` to ``end``; ``token`` tells when its last use ends, None while that is not known.

    ``before`` is where the ring stood before it.
    """

    start: int
    end: int
    before: int
    token: Token | None = None

    def overlaps(self, other: Region[Token]) -> bool:
        return self.start < other.end and other.start < self.end

    def covers(self, other: Region[Token]) -> bool:
        return self.start <= other.start and other.end <= self.end


class Ring(Generic[Token]):
    """Bookkeeping of ``size`` bytes."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._head = 0
        self._regions: list[Region[Token]] = []

    def take(self, size: int) -> tuple[Region[Token], list[Token]] | None:
        """The next region, and the tokens of what used its bytes before; None while some of that is in use."""
        start = following(self._head, size, self.size)
        region: Region[Token] = Region(start, start + size, self._head)
        overlapped = [other for other in self._regions if region.overlaps(other)]
        tokens = [other.token for other in overlapped if other.token is not None]
        if region.end > self.size or len(tokens) < len(overlapped):
            return None
        # One that is covered in part may have to be waited for again, for the rest.
        self._regions = [other for other in self._regions if not region.covers(other)]
        self._regions.append(region)
        self._head = region.end
        return region, tokens

    def give_back(self, region: Region[Token], token: Token) -> None:
        """Its bytes may be taken by whoever waits for the token."""
        region.token = token

    def drop(self, region: Region[Token]) -> None:
        """Undoes the latest :meth:`take`: nobody has read the region."""
        self._regions.remove(region)
        self._head = region.before


def following(head: int, size: int, ring: int) -> int:
    """Where a region of so many bytes begins if the one before ended at ``head``."""
    return head if head + size <= ring else 0


def waits(sizes: Iterable[int], ring: int) -> list[int]:
    """For each of a row of regions that are given back in order, the latest one before whose bytes it takes; -1: none.

    Raises:
        ValueError: a region is larger than the ring.
    """
    held: deque[tuple[int, int, int]] = deque()
    head, found = 0, []
    for index, size in enumerate(sizes):
        if size > ring:
            raise ValueError(f"a region of {size} bytes in a ring of {ring}")
        start = following(head, size, ring)
        head = start + size
        latest = max((number for begin, end, number in held if begin < head and start < end), default=-1)
        while held and held[0][2] <= latest:
            held.popleft()
        held.append((start, head, index))
        found.append(latest)
    return found
