"""HunyuanVideo's autoencoders, 1.0 and 1.5: the middle, which attends over all frames, as a whole; the large maps
before or behind it some frames at a time.

The borders, and what is carried over them, are those of ``forward`` in the host's ``Encoder`` and ``Decoder`` of
``comfy/ldm/modules/diffusionmodules/model.py`` (1.0) and ``comfy/ldm/hunyuan_video/vae_refiner.py`` (1.5), the same in
ComfyUI 0.30.0 and 0.33.0; where an older one has another, :meth:`HunyuanChunks.knows` is to tell.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor
from torch.nn import functional

from .chunks import Borders, Chunks, by_step, in_steps

CARRY = "conv_carry_causal_3d"  # a convolution with the frames before it, by its name in the module's own file
AT_ONCE = 2  # latent frames, or what becomes of as many


class HunyuanChunks(Chunks):
    """Behind each convolution lie the last two frames that it saw, in the order of the convolutions."""

    comes_first = True

    #: The module's name of what changes the size between two stages.
    between: str

    @classmethod
    def knows(cls, model: Any) -> bool:
        part = getattr(model, cls.half)
        if not hasattr(sys.modules[type(part).__module__], CARRY):
            return False
        if is_refiner(part):
            return bool(getattr(part, "refiner_vae", False))
        return bool(getattr(part, "carried", False)) and not getattr(part, "tanh_out", False)

    def carried(self) -> tuple[list[Tensor] | None, list[Tensor] | None]:
        """What the convolutions of the next chunk take from the last one, and where they leave as much: None before
        the first and behind the last chunk."""
        left: list[Tensor] | None = [] if self.done < len(self.borders) - 1 else None
        found = list(self.cache or ()) if self.done else None
        self.cache = left
        return found, left

    def through(self, stages: Iterable[Any], x: Tensor, before: Any, after: Any) -> Tensor:
        """The stages of one half of the module."""
        for stage in stages:
            for block in stage.block:
                x = block(x, None, before, after)
            if hasattr(stage, self.between):
                x = getattr(stage, self.between)(x, before, after)
        return x

    def middle(self, x: Tensor) -> Tensor:
        """Over all frames."""
        found: Tensor = self.part.mid.block_2(self.part.mid.attn_1(self.part.mid.block_1(x)))
        return found

    def end(self, x: Tensor, before: Any = None, after: Any = None) -> Tensor:
        """The last convolution."""
        activated = [functional.silu(self.part.norm_out(x))]
        return self.carry(activated, self.part.conv_out, before, after)

    @property
    def carry(self) -> Callable[..., Tensor]:
        """The host's convolution that takes frames from the chunk before; it empties the list that it is given."""
        found: Callable[..., Tensor] = getattr(sys.modules[type(self.part).__module__], CARRY)
        return found


class HunyuanDecode(HunyuanChunks):
    """Two latent frames at a time, behind the middle."""

    has_head = True
    between = "upsample"

    half = "decoder"

    def cut(self, frames: int) -> Borders:
        return in_steps(AT_ONCE, frames)

    def frames_of(self, frames: int) -> int:
        return 4 * (frames - 1) + 1

    def held(self, shape: Sequence[int]) -> list[tuple[int, ...]]:
        return [(1, self.part.mid.block_2.out_channels, *shape[2:])]

    def head(self, x: Tensor) -> Sequence[Tensor]:
        part = self.part
        if is_refiner(part):
            again = part.block_out_channels[0] // part.z_channels
            return [self.middle(self.carry([x], part.conv_in) + x.repeat_interleave(again, 1))]
        return [self.middle(self.carry([self.model.post_quant_conv(x)], part.conv_in))]

    def compute(self, x: Tensor) -> Sequence[Tensor]:
        before, after = self.carried()
        stages = self.part.up if is_refiner(self.part) else reversed(self.part.up)
        return [self.end(self.through(stages, x, before, after), before, after)]


class HunyuanEncode(HunyuanChunks):
    """One frame, then as many at a time as two latent frames come of, before the middle."""

    has_tail = True
    between = "downsample"

    half = "encoder"

    @property
    def shrink(self) -> int:
        """Frames of a latent one, but of the first."""
        return int(self.part.ffactor_temporal if is_refiner(self.part) else self.part.time_compress)

    def cut(self, frames: int) -> Borders:
        return by_step(AT_ONCE * self.shrink, 1 + (frames - 1) // self.shrink * self.shrink)

    def frames_of(self, frames: int) -> int:
        return 1 + (frames - 1) // self.shrink

    def held(self, shape: Sequence[int]) -> list[tuple[int, ...]]:
        shrink = 2 ** sum(hasattr(stage, self.between) for stage in self.part.down)
        return [(1, self.part.mid.block_1.in_channels, self.given, *(size // shrink for size in shape[3:]))]

    def compute(self, x: Tensor) -> Sequence[Tensor]:
        before, after = self.carried()
        x = self.carry([x], self.part.conv_in, before, after)
        return [self.through(self.part.down, x, before, after)]

    def tail(self, x: Tensor) -> Tensor:
        x = self.middle(x)
        if is_refiner(self.part):
            groups = 2 * self.part.z_channels
            skipped = x.view(x.shape[0], groups, -1, *x.shape[2:]).mean(2)
            x = self.part.regul(self.end(x) + skipped)[0]
        else:
            x = self.model.quant_conv(self.end(x))
        found: Tensor = self.model.regularization(x)[0]
        return found


def is_refiner(part: Any) -> bool:
    """Whether one half of the module is 1.5's."""
    return type(part).__module__.endswith("vae_refiner")
