"""A tiny video autoencoder (TAEHV) latent frame by latent frame: its memory blocks see the frame before and no more.

As the host's own loop in ``comfy/taesd/taehv.py`` does it one frame after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .chunks import Borders, Chunks, in_steps


class TinyChunks(Chunks):
    """What a memory block saw last is the cache, and in front of the first frame that is nothing."""

    #: What the module is to have.
    needed: tuple[str, ...]

    @classmethod
    def knows(cls, model: Any) -> bool:
        """MiniMax H3's takes frames apart in another way."""
        return all(hasattr(model, name) for name in cls.needed) and not getattr(model, "is_h3", False)

    def places(self) -> int:
        return len(self.part)

    def _remembered(self, at: int, frame: Tensor) -> Tensor:
        """What the memory block at a place gives for a frame."""
        assert self.cache is not None, "there always is one"
        before = frame * 0 if self.cache[at] is None else self.cache[at]
        self.cache[at] = frame.clone()
        found: Tensor = self.part[at](frame, before)
        return found


class TinyDecode(TinyChunks):
    """One latent frame at a time, by the module's own blocks."""

    half, needed = "decoder", ("decoder", "patch_size", "frames_to_trim", "t_upscale", "process_in")

    def cut(self, frames: int) -> Borders:
        return list(pairwise(range(frames + 1)))

    def frames_of(self, frames: int) -> int:
        """All but what comes before the first one's."""
        return int(self.model.t_upscale * frames - self.model.frames_to_trim)

    def compute(self, x: Tensor) -> Sequence[Tensor]:
        model = self.model
        made = list(self._through(model.process_in(x).movedim(2, 1)[0], 0))
        return [torch.stack(made[0 if self.done else model.frames_to_trim :], 2)]

    def _through(self, frame: Tensor, place: int) -> Iterator[Tensor]:
        """The frames (1, C, h, w) that one gives from a block on, each by itself and to the end before the next one."""
        for at in range(place, len(self.part)):
            block = self.part[at]
            if type(block).__name__ == "MemBlock":
                frame = self._remembered(at, frame)
                continue
            frame = block(frame)
            if frame.shape[0] > 1:
                for one in frame.split(1):
                    yield from self._through(one, at + 1)
                return
        yield functional.pixel_shuffle(frame, self.model.patch_size) if self.model.patch_size > 1 else frame


class TinyEncode(TinyChunks):
    """As many frames at a time as become a latent one; a last few are filled up with the last of them."""

    half, needed = "encoder", ("encoder", "patch_size", "t_downscale", "process_out")

    def cut(self, frames: int) -> Borders:
        return in_steps(self.model.t_downscale, frames)

    def frames_of(self, frames: int) -> int:
        return -(-frames // int(self.model.t_downscale))

    def compute(self, x: Tensor) -> Sequence[Tensor]:
        frames = list(x[0].split(1, 1))
        frames += [frames[-1]] * (self.model.t_downscale - len(frames))
        waiting: dict[int, list[Tensor]] = {}
        made = [found for frame in frames for found in self._through(frame.movedim(1, 0), waiting)]
        return [self.model.process_out(torch.stack(made, 2))]

    def _through(self, frame: Tensor, waiting: dict[int, list[Tensor]]) -> Iterator[Tensor]:
        """The latent frame (1, C, h, w) that a frame gives, or none: it waits at a place for those that it becomes one
        with."""
        if self.model.patch_size > 1:
            frame = functional.pixel_unshuffle(frame, self.model.patch_size)
        for at, block in enumerate(self.part):
            kind = type(block).__name__
            if kind == "TPool":
                together = waiting.setdefault(at, [])
                together.append(frame.clone())  # what follows may write into it
                if len(together) < block.stride:
                    return
                frame = block(torch.cat(waiting.pop(at)))
            else:
                frame = self._remembered(at, frame) if kind == "MemBlock" else block(frame)
        yield frame
