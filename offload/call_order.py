"""In which order layers run, learned from the call of the network before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice


class CallOrder:
    """Which layers come next.

    Args:
        names: of the layers as they ran in an earlier call; a layer that ran twice stands there twice.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.names = tuple(names)
        self._next = 0  # of the names
        self._ran: list[str] = []

    def begin_call(self) -> None:
        """A call of the network begins."""
        self._next, self._ran = 0, []

    def end_call(self) -> None:
        """It went through: the next one is expected to run the same layers."""
        self.names, self._next = tuple(self._ran), 0

    def runs(self, name: str) -> None:
        """It is this layer's turn, whether or not it was expected."""
        self._ran.append(name)
        count = len(self.names)
        for ahead in range(count):
            if self.names[(self._next + ahead) % count] == name:
                self._next = (self._next + ahead + 1) % count
                return

    def coming(self) -> Iterator[str]:
        """Layers in the order in which they should run next; after the last of this call those of the next one."""
        yield from islice(self.names, self._next, None)
        yield from islice(self.names, self._next)
