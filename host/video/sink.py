"""In the place of the tensor that LTX-Video's module writes its frames into: they are handed on as they come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ...vae.exact import CannotRecord


class Sink:
    """In the place of the tensor that the module writes its frames into: each slice of them is handed on.

    Args:
        take: called with frames (B, C, t, H, W), in order.
    """

    def __init__(self, take: Callable[[Tensor], None]) -> None:
        self._take, self._reached = take, 0

    def __getitem__(self, place: Any) -> _Slice:
        return _Slice(self, place[2].start or 0)

    def __setitem__(self, place: Any, frames: Tensor) -> None:
        self.write(place[2].start or 0, frames)

    def write(self, start: int, frames: Tensor) -> None:
        """The next frames. Raises CannotRecord for others than the next: they cannot be handed on."""
        if start != self._reached:
            raise CannotRecord("the module does not write its frames in order")
        self._reached += frames.shape[2]
        self._take(frames)


class _Slice:
    """What a slice of a :class:`Sink` is written by."""

    def __init__(self, sink: Sink, start: int) -> None:
        self._sink, self._start = sink, start

    def copy_(self, frames: Tensor) -> None:
        """As of a tensor."""
        self._sink.write(self._start, frames)
