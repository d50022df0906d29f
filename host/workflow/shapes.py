"""Shapes of what a VAE makes, by its own ratios: tensors that later stages take, without coding anything."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


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
