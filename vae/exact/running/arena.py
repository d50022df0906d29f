"""Memory in a file for many small pieces."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Hold = Callable[[Sequence[int], torch.dtype], Tensor]
ALIGNED = 64  # bytes: numbers of any dtype may begin there
LEAST = 1 << 24  # bytes of a file


class Arena:
    """Pieces cut from few files, of which a process cannot map more than some ten thousand.

    Args:
        hold: (shape, dtype) -> a tensor in a file. What it raises where the disk is too small is raised by the first
            piece.
        size: bytes that are expected; the first file has as many.
    """

    def __init__(self, hold: Hold, size: int) -> None:
        self.hold, self.size = hold, size
        self.rest: Tensor | None = None

    def take(self, size: int) -> Tensor:
        """Bytes (size,) of their own."""
        if self.rest is None or self.rest.numel() < size:
            whole, self.size = max(size, self.size, LEAST), LEAST
            self.rest = self.hold((whole,), torch.uint8)
        piece, self.rest = self.rest[:size], self.rest[-(-size // ALIGNED) * ALIGNED :]
        return piece
