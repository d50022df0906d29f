"""Wan's autoencoders, and Qwen-Image's, which is Wan 2.1's: one frame, then some at a time.

The borders are those of ``decode`` and ``encode`` in the host's ``comfy/ldm/wan/vae.py`` and ``vae2_2.py``, the same in
ComfyUI 0.18.2 to 0.33.0.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from .chunks import Borders, Chunks, by_step


class WanChunks(Chunks):
    """A cache of as many places as the module counts in itself."""

    #: Counts them, by its name in the model's own file.
    counter: str

    @classmethod
    def knows(cls, model: Any) -> bool:
        return hasattr(sys.modules[type(model).__module__], cls.counter)

    def places(self) -> int:
        return int(getattr(sys.modules[type(self.model).__module__], self.counter)(self.part))


class Wan21Decode(WanChunks):
    """One latent frame, then two at a time. One alone has no cache."""

    counter = "count_cache_layers"

    def __init__(self, model: Any, frames: int) -> None:
        super().__init__(model, frames)
        if len(self.borders) == 1:
            self.cache = None

    half = "decoder"

    def cut(self, frames: int) -> Borders:
        return by_step(2, frames)

    def frames_of(self, frames: int) -> int:
        return 4 * (frames - 1) + 1

    def compute(self, x: Tensor) -> Sequence[Tensor]:
        results: Sequence[Tensor] = self.part(self.model.conv2(x), feat_cache=self.cache, feat_idx=[0])
        return results


class Wan21Encode(Wan21Decode):
    """One frame, then two at a time, of 4 n + 1; a latent frame comes of every second chunk."""

    half = "encoder"

    def cut(self, frames: int) -> Borders:
        return by_step(2, 1 + (frames - 1) // 4 * 4)

    def frames_of(self, frames: int) -> int:
        return 1 + (frames - 1) // 4

    def compute(self, x: Tensor) -> Sequence[Tensor]:
        last = {"final": self.done == len(self.borders) - 1} if self.done else {}
        out = self.part(x, feat_cache=self.cache, feat_idx=[0], **last)
        return [] if out is None else [self.model.conv1(out).chunk(2, dim=1)[0]]


class Wan22Decode(WanChunks):
    """One latent frame at a time."""

    counter = "count_conv3d"

    half = "decoder"

    def cut(self, frames: int) -> Borders:
        return by_step(1, frames)

    def frames_of(self, frames: int) -> int:
        return 4 * (frames - 1) + 1

    def compute(self, x: Tensor) -> Sequence[Tensor]:
        first = {} if self.done else {"first_chunk": True}
        out = self.part(self.model.conv2(x), feat_cache=self.cache, feat_idx=[0], **first)
        return [_own(self.model, "unpatchify")(out, patch_size=2)]


class Wan22Encode(WanChunks):
    """One frame, then four at a time."""

    counter = "count_conv3d"

    half = "encoder"

    def cut(self, frames: int) -> Borders:
        return by_step(4, 1 + (frames - 1) // 4 * 4)

    def frames_of(self, frames: int) -> int:
        return 1 + (frames - 1) // 4

    def compute(self, x: Tensor) -> Sequence[Tensor]:
        out = self.part(_own(self.model, "patchify")(x, patch_size=2), feat_cache=self.cache, feat_idx=[0])
        return [self.model.conv1(out).chunk(2, dim=1)[0]]


def _own(model: Any, name: str) -> Callable[..., Tensor]:
    found: Callable[..., Tensor] = getattr(sys.modules[type(model).__module__], name)
    return found
