"""The autoencoder of Stable Diffusion: a drawn encoder, and the decoder that train_decoder.py trained for it."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from .drawing import (
    CARRIERS,
    CENTRE,
    FIRST,
    FIRST_TWO,
    Rules,
    Weights,
    around,
    code,
    convolution,
    fill,
    fixed,
    noise,
    read,
    relay,
)
from .image_vae import image_vae_module
from .signals import COLOURS, LATENT, LatentScale, corners, latent_scale
from .widening import widened

TRAINED = Path(__file__).resolve().parent / "weights" / "sd_decoder.safetensors"

# What the four latents of the trained autoencoder say about eight pixels square, of which the colours of four
# quadrants are averaged: one quadrant is seen in red, one in blue, two in green, as a camera's sensor does it (no
# four linear measures that were tried keep more), and then brightness is told from colour and from detail.
SEEN_COLOUR = torch.tensor([1, 0, 2, 1])  # of the quadrants, row by row
SENSOR = torch.tensor([[0.5, 0.5, 0.5, 0.5], [0.0, 1.0, -1.0, 0.0], [0.5, -0.5, -0.5, 0.5], [1.0, 0.0, 0.0, -1.0]])
SENSOR_GAIN = torch.tensor([1.0, 2.5, 5.0, 4.0])  # makes latents of about unit size of photographs
SENSOR_FLOOR, SENSOR_BRANCH = 8.0, 0.15


def sensor_taps() -> Tensor:
    """From the colours of two by two quadrants to the latents: (latents, colours, rows, columns)."""
    taps = torch.zeros(LATENT, COLOURS, 4)
    taps[:, SEEN_COLOUR, torch.arange(4)] = SENSOR_GAIN[:, None] * SENSOR
    return taps.view(LATENT, COLOURS, 2, 2)


def sensor_fold(width: int) -> Tensor:
    """The last downsampling: the colours and the constant become the latents and the constant."""
    weight = torch.zeros(width, width, 3, 3)
    for _, y, x in corners(1, 2, 2):
        fold = torch.zeros(LATENT + 1, CARRIERS)
        fold[:LATENT, :COLOURS] = sensor_taps()[:, :, y, x]
        fold[-1, -1] = 0.25
        matrix = code(width, LATENT + 1) @ fold @ read(width, CARRIERS)
        weight += convolution(matrix, (FIRST, CENTRE)[y], (FIRST, CENTRE)[x])
    return weight


def sensor_rules(scale: LatentScale) -> Rules:
    """The encoder that the trained decoder inverts.

    The last norm divides by the size of what it sees. Beside a strong constant that is nearly the same for every
    picture, so that bright and pale pictures keep their contrast.
    """
    usual = math.sqrt((SENSOR_FLOOR**2 + LATENT) / (LATENT + 1))
    means = scale.deviation[:, None] * (2 * usual * read(512, LATENT + 1)[:LATENT])
    no_variance = torch.full_like(scale.mean, -10.0)
    return (
        (r"encoder\.conv_in\.weight", fixed(convolution(code(128, CARRIERS)[:, :COLOURS], CENTRE, CENTRE), 0.02)),
        (r"encoder\.conv_in\.bias", around(SENSOR_FLOOR * code(128, CARRIERS)[:, COLOURS], 0.02)),
        (r"encoder\.down\.2\.downsample\.conv\.weight", fixed(sensor_fold(512), 0.02)),
        (r"encoder\.conv_out\.weight", fixed(convolution(torch.cat([means, 0 * means]), CENTRE, CENTRE), 0.02)),
        (r"encoder\.conv_out\.bias", around(torch.cat([scale.mean, no_variance]), 0.0)),
        (r"^quant_conv\.weight", fixed(torch.eye(2 * LATENT))),
        (r"^quant_conv\.bias", around(0.0, 0.0)),
        (r"downsample\.conv\.weight", relay(FIRST_TWO, FIRST_TWO, jitter=0.02)),
        (r"nin_shortcut\.weight", relay((1.0,), (1.0,), jitter=0.02)),
        (r"conv2\.weight", noise(SENSOR_BRANCH)),
        (r"attn_1\.[qk]\.weight", noise(1.5)),
        (r"attn_1\.proj_out\.weight", noise(SENSOR_BRANCH)),
    )


def vae_sd() -> Weights:
    """The autoencoder of Stable Diffusion: a drawn encoder, and the decoder that train_decoder.py trained for it."""
    module = image_vae_module(LATENT, quantised=True, narrow=64)
    state, weights = module.state_dict(), fill(module, sensor_rules(latent_scale("SD15", LATENT)))
    trained = load_file(TRAINED)
    return weights | {key: widened(key, tensor, tuple(state[key].shape)) for key, tensor in trained.items()}
