"""What workers give each other: the others as one of them sees them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Protocol

from ..running.banded import Gift

ASKER = -1  # rank of whoever has the workers compute, and takes what they hand on


class PeerLost(Exception):
    """A worker is gone, or gave up: what was to come from it does not.

    Attributes:
        rank: which one.
    """

    def __init__(self, rank: int, why: str) -> None:
        super().__init__(f"worker {rank} {why}")
        self.rank = rank


class Peers(Protocol):
    """The other workers. All that is given is taken once; a gift's tensors are nobody's to write to."""

    def give(self, key: Hashable, things: Sequence[Any], to: Sequence[int]) -> None:
        """Leaves tensors, or plain values, for other workers, and does not wait for them."""

    def take(self, key: Hashable, of: int) -> Gift:
        """What a worker gave this one under this key, once it is there.

        Raises:
            PeerLost: it will not come.
        """
