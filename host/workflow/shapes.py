"""Shapes of tensors without data: of what a VAE makes, by its own ratios, and which there can be."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_iter

from .inputs import NotFollowed

MOST_VALUES, MOST_FRAMES = 2**35, 2**20  # of a tensor that is followed: 128 GB in float32; a million frames


def pixels_like(vae: Any, latent: Tensor) -> Tensor:
    """What a latent (B, C, [T,] h, w) decodes to: (B, H, W, C), frames in a row."""
    reach = vae.spacial_compression_decode()
    frames = 1
    if latent.ndim == 5:
        ratio = vae.upscale_ratio
        in_time = ratio[0] if isinstance(ratio, (tuple, list)) else 1
        frames = int(in_time(latent.shape[2]) if callable(in_time) else latent.shape[2] * in_time)
    height, width = (side * reach for side in latent.shape[-2:])
    return torch.empty(latent.shape[0] * frames, height, width, vae.output_channels)


def latent_like(vae: Any, pixels: Tensor) -> Tensor:
    """What pixels (B, H, W, C) encode to: (B, C, h, w), of a VAE for video (1, C, T, h, w)."""
    reach = vae.spacial_compression_encode()
    height, width = (side // reach for side in pixels.shape[1:3])
    if vae.latent_dim == 2:
        return torch.empty(pixels.shape[0], vae.latent_channels, height, width)
    ratio = vae.downscale_ratio
    in_time = ratio[0] if isinstance(ratio, (tuple, list)) else 1
    cells = int(in_time(pixels.shape[0]) if callable(in_time) else max(1, pixels.shape[0] // in_time))
    return torch.empty(1, vae.latent_channels, cells, height, width)


def of_this_world(kind: str, results: tuple[Any, ...]) -> tuple[Any, ...]:
    """The results of a node, if there can be a machine that holds them: what takes no data is made in any size.

    Raises:
        NotFollowed: there can be none.
    """
    for tensor in tree_iter(results):
        if isinstance(tensor, Tensor) and (
            tensor.numel() > MOST_VALUES or max(tensor.shape[:1], default=0) > MOST_FRAMES
        ):
            size = " x ".join(map(str, tensor.shape))
            raise NotFollowed(f"{kind}: it would give {size} values; check its width, height, length and batch size")
    return results
