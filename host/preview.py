"""Progress of a tiled pass, with the picture as far as it is decoded."""

from __future__ import annotations

from typing import Any

import comfy.utils
import torch
from PIL import Image
from torch import Tensor

from ..vae import Direction

PREVIEW_SIDE = 384


class TilePreview:
    """Called after each tile: moves the node's progress bar and, on a decode, shows the blended picture so far."""

    def __init__(self, vae: Any, total: int, direction: Direction) -> None:
        self.vae = vae
        self.bar = comfy.utils.ProgressBar(total)
        self.shows_picture = direction is Direction.DECODE and total > 1
        self.done = 0

    def __call__(self, blended: Tensor) -> None:
        self.done += 1
        preview = ("JPEG", self._picture(blended), PREVIEW_SIDE) if self._wants_picture(blended) else None
        self.bar.update_absolute(self.done, preview=preview)

    def _wants_picture(self, blended: Tensor) -> bool:
        return self.shows_picture and self.bar.hook is not None and blended.shape[1] == 3

    def _picture(self, blended: Tensor) -> Image.Image:
        """The first image (of a video its first frame), thinned out to preview size before anything is copied."""
        frame = blended[0, :, 0] if blended.ndim == 5 else blended[0]
        step = max(1, max(frame.shape[-2:]) // PREVIEW_SIDE)
        pixels = self.vae.process_output(frame[None, :, ::step, ::step].clone())[0]
        return Image.fromarray(pixels.movedim(0, -1).mul(255).to(torch.uint8).cpu().numpy())
