"""How the frames of a video are brought to the size in which they are encoded."""

from __future__ import annotations

from dataclasses import dataclass

import comfy.utils
from torch import Tensor


@dataclass(frozen=True)
class Resizing:
    """How frames are brought to a size, as the host's *Upscale Image* does it.

    Attributes:
        width, height: in pixels; 0 = as the other asks for, or both as they are.
        method: of the host's.
        crop: "disabled" or "center".
    """

    width: int = 0
    height: int = 0
    method: str = "lanczos"
    crop: str = "center"

    def size(self, width: int, height: int) -> tuple[int, int]:
        """What frames of a size become."""
        if not self.width and not self.height:
            return width, height
        return (
            self.width or max(1, round(width * self.height / height)),
            self.height or max(1, round(height * self.width / width)),
        )

    def of(self, frames: Tensor) -> Tensor:
        """Frames (n, H, W, C) in their new size."""
        height, width = frames.shape[1:3]
        if self.size(width, height) == (width, height):
            return frames
        scaled = comfy.utils.common_upscale(frames.movedim(-1, 1), *self.size(width, height), self.method, self.crop)
        return scaled.movedim(1, -1)
