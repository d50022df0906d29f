"""CogVideoX's autoencoder: the parts that lengthen time as a whole, since their norms see all frames; the large maps
behind them four frames at a time. Its encoder runs eight frames at a time from end to end.

The borders, and what is carried over them, are those of ``encode`` and ``_decode_rolling`` in the host's
``comfy/ldm/cogvideo/vae.py``, the same in ComfyUI 0.30.0 and 0.33.0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .chunks import Borders, Chunks, in_steps

AT_ONCE = 4  # frames of the result


class CogVideoChunks(Chunks):
    """The cache is the module's own: dicts within dicts, of which only the tensors count."""

    comes_first = True

    tree: dict[str, Any] | None = None

    def kept(self) -> dict[str, Any]:
        return dict(_leaves(self.tree or {}))

    def keep(self, found: Mapping[str, Any]) -> None:
        self.tree = {}
        for path, value in found.items():
            *folders, name = path.split(".")
            place = self.tree
            for folder in folders:
                place = place.setdefault(folder, {})
            place[name] = value


class CogVideoDecode(CogVideoChunks):
    """Four frames at a time, behind the blocks that lengthen time."""

    has_head = True

    def __init__(self, model: Any, frames: int) -> None:
        doublings = int(math.log2(model.temporal_compression_ratio))
        self.first, self.rest = model.decoder.up_blocks[:doublings], model.decoder.up_blocks[doublings:]
        for _ in range(doublings):  # an odd number has a first frame that stays alone
            frames = 2 * frames - frames % 2
        super().__init__(model, frames)

    half = "decoder"

    def cut(self, frames: int) -> Borders:
        return in_steps(AT_ONCE, frames)

    def frames_of(self, frames: int) -> int:
        return frames

    def held(self, shape: Sequence[int]) -> list[tuple[int, ...]]:
        """Of the maps, and of the latent, as :meth:`head` gives them."""
        larger = 2 ** sum(block.upsamplers is not None for block in self.first)
        channels = self.first[-1].resnets[-1].out_channels
        maps = (1, channels, self.given, *(larger * size for size in shape[3:]))
        return [maps, (1, shape[1], self.given, *shape[3:])]

    def head(self, x: Tensor) -> Sequence[Tensor]:
        """Maps, and the latent as long as these."""
        part = self.part
        h, _ = part.conv_in(x)
        h, _ = part.mid_block(h, None, x)
        for block in self.first:
            h, _ = block(h, None, x)
        return [h, _lengthened(x, h.shape[2])]

    def compute(self, x: Tensor, z: Tensor) -> Sequence[Tensor]:
        part, tree, left = self.part, self.tree or {}, {}
        for number, block in enumerate(self.rest):
            name = f"up_{number}"
            x, left[name] = block(x, None, _as_large(z, x), conv_cache=tree.get(name))
        x, left["norm_out"] = part.norm_out(x, _as_large(z, x), conv_cache=tree.get("norm_out"))
        x, left["conv_out"] = part.conv_out(part.conv_act(x), conv_cache=tree.get("conv_out"))
        self.tree = left
        return [x]


class CogVideoEncode(CogVideoChunks):
    """What is left over of eights, then eight frames at a time."""

    half = "encoder"

    @property
    def step_frames(self) -> int:
        """Frames of a chunk but the first."""
        return int(self.model.num_sample_frames_batch_size)

    def cut(self, frames: int) -> Borders:
        step = self.step_frames
        starts = range(frames % step, frames, step)
        return list(pairwise([*([0] if frames % step else []), *starts, frames]))

    def frames_of(self, frames: int) -> int:
        """Each chunk is shortened by itself: of an odd number the first frame stays alone."""
        whole, found = divmod(frames, self.step_frames)
        each = self.step_frames
        for _ in range(int(math.log2(self.model.temporal_compression_ratio))):
            found, each = (found + 1) // 2, (each + 1) // 2
        return whole * each + found

    def compute(self, x: Tensor) -> Sequence[Tensor]:
        out, self.tree = self.part(x, conv_cache=self.tree)
        return [out.chunk(2, dim=1)[0]]


def _lengthened(z: Tensor, frames: int) -> Tensor:
    """A latent of as many frames: each several times, but the first of an odd number once."""
    size = z.shape[3:]
    if frames > 1 and frames % 2:
        first = functional.interpolate(z[:, :, :1], size=(1, *size))
        rest = functional.interpolate(z[:, :, 1:], size=(frames - 1, *size))
        return torch.cat([first, rest], 2)
    return functional.interpolate(z, size=(frames, *size))


def _as_large(z: Tensor, x: Tensor) -> Tensor:
    """Frames of the latent in the size of a map's."""
    return z if z.shape[3:] == x.shape[3:] else functional.interpolate(z, size=tuple(x.shape[2:]))


def _leaves(tree: Mapping[str, Any], path: str = "") -> Any:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{path}{name}.")
        elif value is not None:
            yield f"{path}{name}", value
