"""Chunks of autoencoders that the host runs as a whole, and whose convolutions look back in time alone: each goes on
behind the frames that it saw last, so that all chunks together are what the whole would have been."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from .chunks import Chunks


class ContinuedChunks(Chunks):
    """Behind each convolution lie the last frames that it saw, in the order of the convolutions."""

    by_module = "in chunks of frames, by the VAE's own layers, each going on where it was"

    _found: Iterator[Any]
    _left: list[Any]

    def compute(self, x: Tensor) -> Sequence[Tensor]:
        self._found, self._left = iter(self.cache or ()), []
        results = self.through(x)
        self.cache, self._left = self._left, []
        return results

    def through(self, x: Tensor) -> Sequence[Tensor]:
        """The next chunk, as :meth:`step`; every convolution in time is given :meth:`behind` of its map."""
        raise NotImplementedError

    def behind(self, x: Tensor, frames: int) -> Tensor:
        """A map with the frames in front of it that a convolution looks back at: those of the chunk before, or at the
        beginning the first one again, as these convolutions pad.

        Args:
            x: (1, C, t, H, W).
            frames: that it looks back.
        """
        front = next(self._found) if self.done else x[:, :, :1].repeat(1, 1, frames, 1, 1)
        x = torch.cat([front, x], 2)
        if self.done < len(self.borders) - 1:
            self._left.append(x[:, :, -frames:].clone())
        return x
