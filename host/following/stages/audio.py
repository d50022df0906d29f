"""Nodes with a VAE for sound: what decodes and what encodes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...core.latents import parts_of
from ...prediction.vae import Coding
from ...vae.wrapper import STEREO
from ..calling import Outputs
from ..findings import Findings, Follow
from ..inputs import Inputs, NotFollowed
from ..sounds import resampled, sound_of

USUAL_RATE = 44100  # samples a second, of a VAE that does not tell


def decode_sound(found: Findings, kind: str, inputs: Inputs) -> Outputs:
    """AUDIO of a latent; of a video-and-audio latent the sound."""
    vae, latent = inputs.vae(), inputs.latent("samples")
    x = parts_of(latent["samples"])[-1]
    length = x.shape[-1] * _ratio(kind, vae.upscale_ratio)
    tiles = None
    if "tile_size" in inputs:
        side = int(inputs.number("tile_size"))
        tiles = {"tile_x": side, "tile_y": side, "overlap": int(inputs.number("overlap"))}
    found.add_coding(Coding(vae, x, tiles=tiles))
    rate = getattr(vae, "audio_sample_rate_output", getattr(vae, "audio_sample_rate", USUAL_RATE))
    with found.mode:
        waveform = torch.empty(x.shape[0], vae.output_channels, int(length))
    return ({"waveform": waveform, "sample_rate": int(latent.get("sample_rate", rate))},)


def encode_sound(found: Findings, kind: str, inputs: Inputs) -> Outputs:
    """LATENT of a sound, which the node brings to the VAE's rate first."""
    vae, (waveform, rate) = inputs.vae(), sound_of(inputs, "audio")
    length = resampled(waveform.shape[2], rate, getattr(vae, "audio_sample_rate", USUAL_RATE))
    with found.mode:
        x = torch.empty(waveform.shape[0], length, waveform.shape[1])
        latent = latent_of_sound(kind, vae, x)
    found.add_coding(Coding(vae, x, encodes=True))
    return ({"samples": latent},)


def latent_of_sound(kind: str, vae: Any, x: Tensor) -> Tensor:
    """The latent of a sound (B, L, C), without data. Call it in a fake mode.

    Raises:
        NotFollowed: the VAE is none for sound, or the sound is too short for it.
    """
    ratio = _ratio(kind, vae.downscale_ratio)
    if x.shape[1] < ratio:
        raise NotFollowed(f"{kind}: audio is shorter than one value of a latent, {int(ratio)} samples")
    return torch.empty(x.shape[0], *_latent_sizes(kind, vae), int(x.shape[1] // ratio))


def _ratio(kind: str, ratio: Any) -> float:
    """Samples to a value of a latent."""
    if not isinstance(ratio, (int, float)):
        raise NotFollowed(f"{kind}: vae is none for sound")
    return ratio


def _latent_sizes(kind: str, vae: Any) -> tuple[int, ...]:
    """Of a latent without its batch and its length."""
    if vae.latent_dim == 1:
        return (vae.latent_channels,)
    if vae.extra_1d_channel is None and vae.output_channels == STEREO:
        return vae.latent_channels, STEREO  # each of the two by itself
    if vae.extra_1d_channel is None:
        raise NotFollowed(f"{kind}: how this VAE lays out a sound is not known")
    return vae.latent_channels, vae.extra_1d_channel


OF_AUDIO: dict[str, Follow] = {
    "VAEDecodeAudio": decode_sound, "VAEDecodeAudioTiled": decode_sound, "VAEEncodeAudio": encode_sound,
}  # fmt: skip
