"""A ring of bytes: regions are taken one behind the other, and the oldest ones are overwritten first.

Weights differ in size and run in a fixed order. Slots of one size would all have to hold the largest of them; in a ring
a region takes what it needs, from the end of the one before. A weight has to lie in one piece, so that a region which
would reach beyond the ring's end begins at its start. Needs nothing but the standard library.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

Token = TypeVar("Token")


@dataclass(eq=False)
class Region(Generic[Token]):
    """Bytes of a ring that are taken.

    Attributes:
        start, end: offsets in bytes; the end is exclusive.
        before: where the region before it ended.
        token: tells when its last use ends; None while that is not known.
    """

    start: int
    end: int
    before: int
    token: Token | None = None


class Ring(Generic[Token]):
    """Which of ``size`` bytes are taken; the memory itself is elsewhere."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._head = 0
        self._regions: list[Region[Token]] = []

    def take(self, size: int) -> tuple[Region[Token], list[Token]] | None:
        """The next region of ``size`` bytes, and the tokens of the regions that it overwrites.

        Returns:
            None while one of those is in use, or if the ring is too small.
        """
        start = following(self._head, size, self.size)
        end = start + size
        if end > self.size:
            return None
        tokens: list[Token] = []
        left: list[Region[Token]] = []
        # This runs for every copy of a step. The oldest come first: where there is no room, one of them says so.
        for other in self._regions:
            if start < other.end and other.start < end:
                if other.token is None:
                    return None
                tokens.append(other.token)
                if start <= other.start and other.end <= end:
                    continue
            left.append(other)  # or what is overwritten in part: the rest of its bytes has to wait for it too
        region: Region[Token] = Region(start, end, self._head)
        self._regions = [*left, region]
        self._head = end
        return region, tokens

    def give_back(self, region: Region[Token], token: Token) -> None:
        """Its bytes may be taken again, by a user that waits for the token."""
        region.token = token

    def drop(self, region: Region[Token]) -> None:
        """Undoes the latest :meth:`take`, of a region that nothing has read."""
        self._regions.remove(region)
        self._head = region.before


def following(head: int, size: int, ring: int) -> int:
    """Where a region of so many bytes begins if the one before ended at ``head``."""
    return head if head + size <= ring else 0


def waits(sizes: Iterable[int], ring: int) -> list[int]:
    """What each region has to wait for when regions are taken and given back in the same order.

    Args:
        sizes: bytes of each region.
        ring: bytes of the ring.

    Returns:
        For each the number of the latest region that it overwrites; -1: none.

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
