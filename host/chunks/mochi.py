"""Mochi's decoder two latent frames at a time: its norms see single frames, and it has no attention.

After ``Decoder`` of the host's ``comfy/ldm/genmo/vae/model.py``, the same in ComfyUI 0.30.0 and 0.33.0; where another
one has another, :meth:`MochiDecode.knows` is to tell. Its encoder attends over all frames in the size of its maps, and
is not run in chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from torch import Tensor
from torch.nn import functional

from .chunks import Borders, in_steps
from .continued import ContinuedChunks

AT_ONCE = 2  # latent frames


class MochiDecode(ContinuedChunks):
    """From end to end."""

    half = "decoder"

    @classmethod
    def knows(cls, model: Any) -> bool:
        part, parts = model.decoder, ("blocks", "proj", "temporal_expansion", "spatial_expansion")
        growing = list(getattr(part, "blocks", ()))[1:-1]
        if not growing or not all(hasattr(block, name) for block in growing for name in parts):
            return False
        layers = list(part.modules())
        attending = (type(one.attn_block).__name__ != "Identity" for one in layers if hasattr(one, "stack"))
        causal = [one.causal for one in layers if hasattr(one, "context_parallel")]
        return part.output_nonlinearity == "silu" and not any(attending) and bool(causal) and all(causal)

    @property
    def stretch(self) -> int:
        """Frames of a latent one, but of the first."""
        return prod(block.temporal_expansion for block in self.part.blocks[1:-1])

    def cut(self, frames: int) -> Borders:
        return in_steps(AT_ONCE, frames)

    def frames_of(self, frames: int) -> int:
        return self.stretch * (frames - 1) + 1

    def through(self, x: Tensor) -> Sequence[Tensor]:
        first, *growing, last = self.part.blocks
        x = self._each(first, x)
        for block in growing:
            x = self._unfolded(block, block.proj(self._each(block.blocks, x)))
        x = functional.silu(self._each(last, x), inplace=True)
        return [self.part.output_proj(x).contiguous()]

    def _each(self, layers: Any, x: Tensor) -> Tensor:
        """Layers one after the other, blocks with a way around them among them."""
        for layer in layers:
            if hasattr(layer, "stack"):
                x = self._each(layer.stack, x) + x
            elif hasattr(layer, "context_parallel"):
                plain: Any = super(type(layer), layer)  # without the frames that it would put in front
                x = plain.forward(self.behind(x, layer.kernel_size[0] - 1))
            else:
                x = layer(x)
        return x

    def _unfolded(self, block: Any, x: Tensor) -> Tensor:
        """Channels to frames, rows and columns; of the first frame the last only, as its copies are none."""
        times, larger = block.temporal_expansion, block.spatial_expansion
        batch, _, frames, height, width = x.shape
        x = x.reshape(batch, -1, times, larger, larger, frames, height, width).permute(0, 1, 5, 2, 6, 3, 7, 4)
        x = x.reshape(batch, -1, frames * times, height * larger, width * larger)
        return x if self.done or times == 1 else x[:, :, times - 1 :]
