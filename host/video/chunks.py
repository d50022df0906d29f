"""The host's own chunks: the frames that Wan's autoencoders take at a time, with the cache between them.

The borders are those of the host's ``decode`` and ``encode`` (``comfy/ldm/wan/vae.py`` and ``vae2_2.py``, the same in
ComfyUI 0.18.2 to 0.33.0), so that each chunk is what the host would have computed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from torch import Tensor

Borders = list[tuple[int, int]]


class Chunks:
    """A video's way through an autoencoder of the host's, chunk by chunk; a new one for every video.

    Args:
        model: the autoencoder.
        frames: of the whole input, latent ones for a decode.

    Attributes:
        borders: first frame and end of each chunk.
        given: frames of the whole result.
    """

    #: Counts the places of the cache, by its name in the model's own file.
    counter: str
    #: How it runs by the module itself, for the report.
    by_module = "in the host's own chunks, by the VAE's own module: its result bit for bit"

    def __init__(self, model: Any, frames: int) -> None:
        self.model, self.frames = model, frames
        self.borders, self.given = self.cut(frames), self.frames_of(frames)
        self.done = 0
        self.cache: list[Any] | None = [None] * self.places()

    def places(self) -> int:
        """How many places the cache has."""
        return int(getattr(sys.modules[type(self.model).__module__], self.counter)(self.part))

    @property
    def part(self) -> Any:
        """The half of the autoencoder that has the cache."""
        raise NotImplementedError

    def cut(self, frames: int) -> Borders:
        """The borders of so many frames."""
        raise NotImplementedError

    def frames_of(self, frames: int) -> int:
        """Frames of the result: four to a latent one, but one to the first."""
        raise NotImplementedError

    def step(self, x: Tensor) -> Sequence[Tensor]:
        """The next chunk (1, C, t, H, W): the frames that it gives, in one or more pieces; none yet, sometimes."""
        results = self.compute(x)
        self.done += 1
        return results

    def compute(self, x: Tensor) -> Sequence[Tensor]:
        """As :meth:`step`, before the chunk is counted."""
        raise NotImplementedError


class Wan21Decode(Chunks):
    """One latent frame, then two at a time. One alone has no cache."""

    counter = "count_cache_layers"

    def __init__(self, model: Any, frames: int) -> None:
        super().__init__(model, frames)
        if len(self.borders) == 1:
            self.cache = None

    @property
    def part(self) -> Any:
        return self.model.decoder

    def cut(self, frames: int) -> Borders:
        return _by(2, frames)

    def frames_of(self, frames: int) -> int:
        return 4 * (frames - 1) + 1

    def compute(self, x: Tensor) -> Sequence[Tensor]:
        results: Sequence[Tensor] = self.part(self.model.conv2(x), feat_cache=self.cache, feat_idx=[0])
        return results


class Wan21Encode(Wan21Decode):
    """One frame, then two at a time, of 4 n + 1; a latent frame comes of every second chunk."""

    @property
    def part(self) -> Any:
        return self.model.encoder

    def cut(self, frames: int) -> Borders:
        return _by(2, 1 + (frames - 1) // 4 * 4)

    def frames_of(self, frames: int) -> int:
        return 1 + (frames - 1) // 4

    def compute(self, x: Tensor) -> Sequence[Tensor]:
        last = {"final": self.done == len(self.borders) - 1} if self.done else {}
        out = self.part(x, feat_cache=self.cache, feat_idx=[0], **last)
        return [] if out is None else [self.model.conv1(out).chunk(2, dim=1)[0]]


class Wan22Decode(Chunks):
    """One latent frame at a time."""

    counter = "count_conv3d"

    @property
    def part(self) -> Any:
        return self.model.decoder

    def cut(self, frames: int) -> Borders:
        return _by(1, frames)

    def frames_of(self, frames: int) -> int:
        return 4 * (frames - 1) + 1

    def compute(self, x: Tensor) -> Sequence[Tensor]:
        first = {} if self.done else {"first_chunk": True}
        out = self.part(self.model.conv2(x), feat_cache=self.cache, feat_idx=[0], **first)
        return [_own(self.model, "unpatchify")(out, patch_size=2)]


class Wan22Encode(Chunks):
    """One frame, then four at a time."""

    counter = "count_conv3d"

    @property
    def part(self) -> Any:
        return self.model.encoder

    def cut(self, frames: int) -> Borders:
        return _by(4, 1 + (frames - 1) // 4 * 4)

    def frames_of(self, frames: int) -> int:
        return 1 + (frames - 1) // 4

    def compute(self, x: Tensor) -> Sequence[Tensor]:
        out = self.part(_own(self.model, "patchify")(x, patch_size=2), feat_cache=self.cache, feat_idx=[0])
        return [self.model.conv1(out).chunk(2, dim=1)[0]]


def _by(step: int, frames: int) -> Borders:
    return list(pairwise([0, *range(1, frames, step), frames]))


def _own(model: Any, name: str) -> Callable[..., Tensor]:
    found: Callable[..., Tensor] = getattr(sys.modules[type(model).__module__], name)
    return found
