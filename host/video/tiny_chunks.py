"""A tiny video autoencoder (TAEHV) latent frame by latent frame: its memory blocks see the frame before and no more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .chunks import Borders, Chunks

NEEDED = ("decoder", "patch_size", "frames_to_trim", "t_upscale", "process_in")


class TinyDecode(Chunks):
    """One latent frame at a time, by the module's own blocks, as in the host's own loop: what a memory block saw last
    is the cache, and in front of the first frame that is nothing."""

    def places(self) -> int:
        return len(self.part)

    @property
    def part(self) -> Any:
        return self.model.decoder

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
        assert self.cache is not None, "there always is one"
        for at in range(place, len(self.part)):
            block = self.part[at]
            if type(block).__name__ == "MemBlock":
                before = frame * 0 if self.cache[at] is None else self.cache[at]
                self.cache[at] = frame.clone()
                frame = block(frame, before)
                continue
            frame = block(frame)
            if frame.shape[0] > 1:
                for one in frame.split(1):
                    yield from self._through(one, at + 1)
                return
        yield functional.pixel_shuffle(frame, self.model.patch_size) if self.model.patch_size > 1 else frame


def is_known(model: Any) -> bool:
    """Whether its decoder is the one that is known here; MiniMax H3's takes frames apart in another way."""
    return all(hasattr(model, name) for name in NEEDED) and not getattr(model, "is_h3", False)
