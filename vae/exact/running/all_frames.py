"""Maps of all frames that are no result, in host memory or in a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..operations.graph import Node


class AllFrames:
    """What chunks give, put together, for what is computed of all frames.

    Args:
        aside: (node, shape) -> room for all frames of it.
        frames: in all.
    """

    def __init__(self, aside: Callable[[Node, Sequence[int]], Tensor], frames: int) -> None:
        self.aside, self.frames, self.done = aside, frames, 0
        self.room: Tensor | None = None

    def place(self, node: Node) -> Tensor:
        """Of the next frames."""
        frames = node.shape[2]
        if self.room is None:
            self.room = self.aside(node, (*node.shape[:2], self.frames, *node.shape[3:]))
        self.done += frames
        return self.room[:, :, self.done - frames : self.done]

    def whole(self) -> Tensor:
        """All of it."""
        assert self.room is not None, "a video has a first frame"
        return self.room


def in_memory(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Room in host memory."""
    return torch.empty(tuple(shape), dtype=dtype)
