"""Progress of an encode or decode on the node's face, with the picture as far as it is decoded."""

from __future__ import annotations

from typing import Any, Protocol

import comfy.model_management as model_management
import comfy.utils
import torch
from PIL import Image
from torch import Tensor

from ...vae import Direction

PREVIEW_SIDE = 384
STEPS = 100  # of the progress bar, per tile or slice
PICTURES = 8  # per slice, while its strips run


class Watch(Protocol):
    """What is told of work while it runs; each of these may raise to stop it."""

    def on_tile(self, blended: Tensor) -> None:
        """After each tile, with the blended (B, C, [T,] H, W) picture so far."""

    def on_strip(self, share: float, out: Tensor | None) -> None:
        """Before each strip, with the share of the slice's work that is done."""

    def slice_done(self, out: Tensor) -> None:
        """After each slice of the batch that ran in strips, with its (B, C, [T,] H, W) picture."""


class Cancelling:
    """Has a cancelled prompt stop before each strip and behind each tile, and shows nothing."""

    def on_tile(self, blended: Tensor) -> None:
        model_management.throw_exception_if_processing_interrupted()

    def on_strip(self, share: float, out: Tensor | None) -> None:
        model_management.throw_exception_if_processing_interrupted()

    def slice_done(self, out: Tensor) -> None:
        """Whoever takes the results tells of them."""


class PassPreview:
    """Moves the node's progress bar and, on a decode in several pieces, shows the picture so far.

    Args:
        total: tiles, or slices of the batch that each run in strips.
    """

    def __init__(self, vae: Any, total: int, direction: Direction) -> None:
        self.vae = vae
        self.bar = comfy.utils.ProgressBar(total * STEPS)
        self.shows_picture = direction is Direction.DECODE
        self.total, self.done = total, 0
        self.begun, self.shown = False, 0.0  # whether the slice has rows to show, and at which share it was shown

    def on_tile(self, blended: Tensor) -> None:
        """After each tile, with the blended (B, C, [T,] H, W) picture so far."""
        self.done += 1
        self._update(self.done * STEPS, blended if self.total > 1 else None)

    def on_strip(self, share: float, out: Tensor | None) -> None:
        """Before each strip; the place where a cancelled prompt stops.

        Args:
            share: of the slice's work that is done.
            out: in the last pass, the (B, C, [T,] H, W) picture so far, zero where no strip has been written.
        """
        model_management.throw_exception_if_processing_interrupted()
        picture = None
        if out is None or not self.begun:  # nothing to see before the last pass, nor before its first strip
            self.begun, self.shown = out is not None, 0.0
        elif share - self.shown > 1 / PICTURES:  # a picture costs a copy: a few show as much as hundreds
            picture, self.shown = out, share
        self._update(int((self.done + share) * STEPS), picture)

    def slice_done(self, out: Tensor) -> None:
        """After each slice of the batch that ran in strips, with its (B, C, [T,] H, W) picture."""
        self.done, self.begun, self.shown = self.done + 1, False, 0.0
        self._update(self.done * STEPS, out)

    def _update(self, steps: int, picture: Tensor | None) -> None:
        preview = None
        if picture is not None and self._wants_picture(picture):
            preview = ("JPEG", self._picture(picture), PREVIEW_SIDE)
        self.bar.update_absolute(steps, preview=preview)

    def _wants_picture(self, blended: Tensor) -> bool:
        return self.shows_picture and self.bar.hook is not None and blended.shape[1] == 3

    def _picture(self, blended: Tensor) -> Image.Image:
        """The first image (of a video its first frame), thinned out to preview size before anything is copied."""
        frame = blended[0, :, 0] if blended.ndim == 5 else blended[0]
        step = max(1, max(frame.shape[-2:]) // PREVIEW_SIDE)
        pixels = self.vae.process_output(frame[None, :, ::step, ::step].clone())[0]
        return Image.fromarray(pixels.movedim(0, -1).mul(255).to(torch.uint8).cpu().numpy())
