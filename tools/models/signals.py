"""What the skeletons of autoencoders carry: the colours of a picture, and the latents they become."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from .drawing import CARRIERS, code, generator, read
from .from_host import host

COLOURS = 3  # the fourth carrier is constant
LATENT = 4  # channels of a Stable Diffusion latent, and carriers of its UNet

# Brightness and two colour differences: photographs vary mostly in the first, so the others are amplified.
OPPONENT = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, -1.0], [1.0, -2.0, 1.0]])
OPPONENT = OPPONENT / OPPONENT.norm(dim=1, keepdim=True)
OPPONENT_GAIN = torch.tensor([1.1, 3.0, 3.0])


class LatentScale(NamedTuple):
    """Mean and deviation, per channel, of the latents an autoencoder trades in."""

    mean: Tensor
    deviation: Tensor


def latent_scale(name: str, channels: int) -> LatentScale:
    """Ask the host's latent format what a unit latent looks like to the autoencoder."""
    latents = getattr(host("comfy.latent_formats"), name)()
    shape = (1, channels) + (1,) * latents.latent_dimensions
    mean = latents.process_out(torch.zeros(shape)).flatten()
    return LatentScale(mean, latents.process_out(torch.ones(shape)).flatten() - mean)


def mixing(channels: int, signals: int) -> Tensor:
    """Orthogonal directions in latent space, one per signal, long enough for latents of about unit size."""
    random = torch.randn(channels, signals, generator=generator(f"mixing {channels} {signals}"))
    directions: Tensor = torch.linalg.qr(random).Q
    length: float = (channels / signals) ** 0.25
    return directions * length


def unmixing(channels: int, signals: int) -> Tensor:
    inverse: Tensor = torch.linalg.pinv(mixing(channels, signals))
    return inverse


def see(channels: int) -> Tensor:
    """From the colours of a picture to carriers."""
    return code(channels, CARRIERS)[:, :COLOURS] @ (OPPONENT_GAIN[:, None] * OPPONENT)


def show(channels: int, contrast: float) -> Tensor:
    """From carriers, behind a SiLU that halves them, to the colours of a picture."""
    return 2 * contrast * (OPPONENT / OPPONENT_GAIN[:, None]).T @ read(channels, CARRIERS)[:COLOURS]


def write_latent(channels: int, scale: LatentScale) -> Tensor:
    """From carriers, behind a SiLU, to the means of the latents; the log variances are left alone."""
    size = len(scale.mean)
    means = scale.deviation[:, None] * mixing(size, COLOURS) @ (2 * read(channels, CARRIERS)[:COLOURS])
    return torch.cat([means, torch.zeros_like(means)])


def read_latent(channels: int, scale: LatentScale) -> Tensor:
    """From latents to carriers."""
    return code(channels, CARRIERS)[:, :COLOURS] @ unmixing(len(scale.mean), COLOURS) / scale.deviation


def corners(*axes: int) -> Iterable[tuple[int, ...]]:
    """Every position inside a patch, in the order in which channels are unfolded."""
    return ((t, y, x) for t in range(axes[0]) for y in range(axes[1]) for x in range(axes[2]))
