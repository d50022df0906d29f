"""Shapes of tensors without data: of what a VAE makes, by its own ratios, and which there can be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_iter

from .inputs import Inputs, NotFollowed

MOST_VALUES, MOST_FRAMES = 2**35, 2**20  # of a tensor that is followed: 128 GB in float32; a million frames

SIDE = 1024  # of a picture that is not on this machine
MISSING_SIZE = f"{SIDE} x {SIDE} px"


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


def size_of(kind: str, inputs: Inputs) -> tuple[int, int, int]:
    """What the host's GetImageSize gives: width, height, how many. The host's own writes to its face as well."""
    image = inputs["image"]
    if not isinstance(image, Tensor) or image.ndim != 4:
        raise NotFollowed(f"{kind}: image gets no picture")
    return image.shape[2], image.shape[1], image.shape[0]


def missing_picture() -> tuple[Tensor, Tensor]:
    """What the host's LoadImage gives, IMAGE (1, H, W, 3) and MASK, for a picture that is not on this machine."""
    return torch.empty(1, SIDE, SIDE, 3), torch.empty(1, 64, 64)


def sized(samples: Tensor, width: int, height: int) -> Tensor:
    """Stands for the host's ``lanczos``, which works on data: (B, C, H, W) in another size."""
    return samples.new_empty((*samples.shape[:2], height, width))


class CountingVAE:
    """A VAE for nodes that encode pictures within: it tells what it encodes, and gives latents without data.

    Args:
        vae: whose shapes they have; for all else it is asked.
        encoded: gets the pixels (B, H, W, C) of each encode.
    """

    def __init__(self, vae: Any, encoded: Callable[[Tensor], None]) -> None:
        self._vae, self._encoded = vae, encoded

    def __getattr__(self, name: str) -> Any:
        return getattr(self._vae, name)

    def encode(self, pixel_samples: Tensor) -> Tensor:
        """As the VAE's."""
        self._encoded(pixel_samples)
        return latent_like(self._vae, pixel_samples)


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
