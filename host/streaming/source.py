"""What a decode hands on: its frames in order, piece by piece, and where it may be gone on from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from ..chunks.chunks import State

#: Takes the next frames, (1, C, t, H, W) as the module makes them, on any device.
Take = Callable[[Tensor], None]
#: Told at each border, with what gives the state there.
Border = Callable[[Callable[[], State]], None]


class FrameSource(Protocol):
    """The frames of a latent, decoded one way.

    Attributes:
        count: frames in all.
        has_borders: it says where it may be gone on from while it runs; else only at the end.
    """

    @property
    def count(self) -> int: ...

    @property
    def has_borders(self) -> bool: ...

    def run(self, take: Take, border: Border, done: int, state: State | None) -> None:
        """Hands all frames on from a border.

        Args:
            take: called with each piece in order.
            border: called where the decode may be gone on from.
            done: frames before the border.
            state: of the border, empty where the next piece needs nothing of those before it; None = not known: the
                decode begins anew, and hands on only what comes after.
        """

    def lower(self) -> bool:
        """Memory ran out: from now on a way that needs less; False where there is none."""


class Onward:
    """Hands each frame on once, however often the work for it begins anew.

    Args:
        take, border: of the receiver.
        done: frames that it has already.
    """

    def __init__(self, take: Take, border: Border, done: int) -> None:
        self._take, self._border = take, border
        self.reached = self.at = done

    def begin(self, at: int) -> None:
        """The work begins at a frame, which it may have passed before."""
        self.at = at

    def take(self, piece: Tensor) -> None:
        """The next frames of the work; those that the receiver has are left out."""
        frames = piece.shape[2]
        known = min(frames, max(0, self.reached - self.at))
        self.at += frames
        if known < frames:
            self.reached = self.at
            self._take(piece[:, :, known:])

    def border(self, save: Callable[[], State]) -> None:
        """A border of the work; one that was passed before is none."""
        if self.at == self.reached:
            self._border(save)
