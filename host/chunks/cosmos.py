"""Cosmos's tokenizer: the middle, whose attention sees all frames before each, as a whole; the large maps before or
behind it two latent frames at a time, since there norms and attention see single frames.

After ``DecoderFactorized`` and ``EncoderFactorized`` of the host's ``comfy/ldm/cosmos/cosmos_tokenizer/layers3d.py``
and ``CausalContinuousVideoTokenizer`` of ``comfy/ldm/cosmos/vae.py``, the same in ComfyUI 0.30.0 and 0.33.0; where
another one has another, :meth:`CosmosChunks.knows` is to tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .chunks import Borders, by_step, in_steps
from .continued import ContinuedChunks

AT_ONCE = 2  # latent frames, or what becomes of as many


class CosmosChunks(ContinuedChunks):
    """What both halves do."""

    comes_first = True

    @classmethod
    def knows(cls, model: Any) -> bool:
        encoder, decoder = model.encoder, model.decoder
        attending = [stage for stages in (encoder.down, decoder.up) for stage in stages if len(stage.attn)]
        middles = [part.mid.attn_1 for part in (encoder, decoder)]
        causal = all(len(both) == 2 and type(both[1]).__name__ == "CausalTemporalAttnBlock" for both in middles)
        haar = encoder.patcher3d.patch_method == decoder.unpatcher3d.patch_method == "haar"
        return causal and haar and not attending and type(model.distribution).__name__ == "IdentityDistribution"

    def layers(self, layers: Iterable[Any], x: Tensor) -> Tensor:
        """Convolutions one after the other."""
        for layer in layers:
            x = self.convolved(layer, x)
        return x

    def convolved(self, layer: Any, x: Tensor) -> Tensor:
        """A convolution, behind the frames that it saw before."""
        if layer.time_pad == 0:
            return layer(x)
        x = functional.pad(self.behind(x, layer.time_pad), (*layer.spatial_pad, 0, 0), mode=layer.pad_mode)
        return layer.conv3d(x)

    def block(self, block: Any, x: Tensor) -> Tensor:
        """Two pairs of convolutions with a way around them."""
        h = self.layers(block.conv1, functional.silu(block.norm1(x)))
        h = self.layers(block.conv2, block.dropout(functional.silu(block.norm2(h))))
        return block.nin_shortcut(x) + h

    def stage(self, stage: Any, x: Tensor) -> Tensor:
        """Blocks of one size."""
        for block in stage.block:
            x = self.block(block, x)
        return x

    def middle(self, x: Tensor) -> Tensor:
        """Over all frames: each sees those before it."""
        middle = self.part.mid
        within, over = middle.attn_1
        x = within(middle.block_1(x))
        h = over.norm(x)
        q, k, v = (layer(h).permute(0, 3, 4, 2, 1).flatten(0, 2) for layer in (over.q, over.k, over.v))
        h = functional.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], is_causal=True)[:, 0]
        h = h.unflatten(0, (x.shape[0], *x.shape[3:])).permute(0, 4, 3, 1, 2)
        return middle.block_2(x + over.proj_out(h))

    def normal(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and deviation of the latent's channels, which the module has for some frames and repeats.

        Args:
            x: a latent (1, C, T, h, w).
        """
        channels, frames = x.shape[1:3]

        def of(kept: Tensor) -> Tensor:
            each = kept.view(channels, -1)
            each = each.repeat(1, -(-frames // each.shape[1]))[:, :frames]
            return each.reshape(1, channels, -1, 1, 1).to(dtype=x.dtype, device=x.device)

        return of(self.model.latent_mean), of(self.model.latent_std)


class CosmosDecode(CosmosChunks):
    """Two latent frames at a time, behind the middle."""

    half, has_head = "decoder", True

    def cut(self, frames: int) -> Borders:
        return in_steps(AT_ONCE, frames)

    def frames_of(self, frames: int) -> int:
        return 8 * (frames - 1) + 1

    def held(self, shape: Sequence[int]) -> list[tuple[int, ...]]:
        return [(1, self.part.mid.block_2.in_channels, *shape[2:])]

    def head(self, x: Tensor) -> Sequence[Tensor]:
        mean, deviation = self.normal(x)
        x = self.model.post_quant_conv(x / self.model.sigma_data * deviation + mean)
        return [self.middle(self.part.conv_in(x))]

    def through(self, x: Tensor) -> Sequence[Tensor]:
        part = self.part
        for number in reversed(range(part.num_resolutions)):
            x = self.stage(part.up[number], x)
            if number:
                x = self._larger(part.up[number].upsample, x)
        x = self.layers(part.conv_out, functional.silu(part.norm_out(x)))
        return [self._unpatched(x)]

    def _larger(self, layer: Any, x: Tensor) -> Tensor:
        """Each frame twice, but the video's first, and twice as large."""
        if not layer.spatial_up and not layer.temporal_up:
            return x
        if layer.temporal_up:
            if self.frames > 1:
                x = x.repeat_interleave(2, dim=2)[:, :, 0 if self.done else 1 :]
            x = self.convolved(layer.conv1, x) + x
        if layer.spatial_up:
            x = x.repeat_interleave(2, dim=3).repeat_interleave(2, dim=4)
            x = layer.conv2(x) + x
        return layer.conv3(x)

    def _unpatched(self, x: Tensor) -> Tensor:
        """Wavelets to frames, rows and columns; of the video's first map, the last frame only."""
        patches = self.part.unpatcher3d
        for _ in patches.range:
            x = _unfolded(functional.conv3d(x, _haar(x)))
        return x if self.done else x[:, :, patches.patch_size - 1 :]


class CosmosEncode(CosmosChunks):
    """One frame, then sixteen at a time, before the middle: four patches of four frames, of which two become a latent
    frame. A last patch that is not full is mirrored, as the module pads; one without another is left out."""

    half, has_tail = "encoder", True

    def cut(self, frames: int) -> Borders:
        return by_step(8 * AT_ONCE, min(frames, 1 + 8 * (self.frames_of(frames) - 1)))

    def frames_of(self, frames: int) -> int:
        patches = 1 - (1 - frames) // 4
        return (patches + 1) // 2

    def held(self, shape: Sequence[int]) -> list[tuple[int, ...]]:
        return [(1, self.part.mid.block_1.in_channels, self.given, *(size // 8 for size in shape[3:]))]

    def through(self, x: Tensor) -> Sequence[Tensor]:
        part = self.part
        x = self.layers(part.conv_in, self._patched(x))
        for number, stage in enumerate(part.down):
            x = self.stage(stage, x)
            if number < len(part.down) - 1:
                x = self._smaller(stage.downsample, x)
        return [x]

    def tail(self, x: Tensor) -> Tensor:
        part = self.part
        x = self.model.quant_conv(part.conv_out(functional.silu(part.norm_out(self.middle(x)))))
        mean, deviation = self.normal(x)
        return (x - mean) / deviation * self.model.sigma_data

    def _patched(self, x: Tensor) -> Tensor:
        """Frames, rows and columns to wavelets; the video's first frame is repeated to a whole patch."""
        patches = self.part.patcher3d
        if not self.done:
            x = torch.cat([x[:, :, :1].repeat_interleave(patches.patch_size, 2), x[:, :, 1:]], 2)
        for _ in patches.range:
            if x.shape[2] % 2:
                x = torch.cat([x, x[:, :, -2:-1]], 2)
            x = _folded(x)
            x = functional.conv3d(x, _haar(x) / 8)
        return x

    def _smaller(self, layer: Any, x: Tensor) -> Tensor:
        """Half as large, and half as many frames, the video's first one twice."""
        if not layer.spatial_down and not layer.temporal_down:
            return x
        if layer.spatial_down:
            x = functional.pad(x, (0, 1, 0, 1, 0, 0))
            x = layer.conv1(x) + functional.avg_pool3d(x, (1, 2, 2), (1, 2, 2))
        if layer.temporal_down:
            x = x if self.done else torch.cat([x[:, :, :1], x], 2)
            pooled = functional.avg_pool3d(x, (2, 1, 1), (2, 1, 1))
            x = layer.conv2.conv3d(self.behind(x, layer.conv2.time_pad)) + pooled
        return layer.conv3(x)


def _unfolded(x: Tensor) -> Tensor:
    """Eighths of the channels to two frames, rows and columns each."""
    batch, channels, frames, height, width = x.shape
    x = x.reshape(batch, 2, 2, 2, channels // 8, frames, height, width).permute(0, 4, 5, 1, 6, 2, 7, 3)
    return x.reshape(batch, channels // 8, 2 * frames, 2 * height, 2 * width)


def _folded(x: Tensor) -> Tensor:
    """Two frames, rows and columns each to eight times the channels."""
    batch, channels, frames, height, width = x.shape
    x = x.reshape(batch, channels, frames // 2, 2, height // 2, 2, width // 2, 2).permute(0, 3, 5, 7, 1, 2, 4, 6)
    return x.reshape(batch, 8 * channels, frames // 2, height // 2, width // 2)


def _haar(x: Tensor) -> Tensor:
    """The inverse Haar transform of eight bands as a convolution of one cell: what each band gives to each of the eight
    cells that it becomes, which is itself or its negative. The transform is an eighth of it, the other way round.

    Args:
        x: (1, C, T, H, W), channels by bands: low or high in time, then in rows, then in columns.
    """
    pair = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=x.dtype, device=x.device)
    bands = torch.kron(torch.kron(pair, pair), pair)  # symmetric
    return torch.kron(bands, torch.eye(x.shape[1] // 8, dtype=x.dtype, device=x.device))[:, :, None, None, None]
