"""Autoencoders for pictures, as the host has them: drawn encoders and decoders."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from .drawing import BINOMIAL, CENTRE, FIRST_TWO, Rules, Weights, around, convolution, fill, fixed, noise, relay
from .from_host import host
from .signals import LatentScale, latent_scale, read_latent, see, show, write_latent

IMAGE_BRANCH = 0.35
IMAGE_CONTRAST = 0.75  # below 1 leaves head-room, so that few pixels clip


def image_vae_rules(scale: LatentScale, decoder_channels: int) -> Rules:
    """GroupNorm autoencoders: every norm but the last sits on a branch; the last one sets the contrast."""
    wide, deep = (CENTRE, CENTRE), decoder_channels * 4
    picture = show(decoder_channels, IMAGE_CONTRAST)
    no_variance = torch.full_like(scale.mean, -10.0)
    return (
        (r"encoder\.conv_in\.weight", fixed(convolution(see(128), *wide), 0.1)),
        (r"encoder\.conv_out\.weight", fixed(convolution(write_latent(512, scale), *wide), 0.1)),
        (r"encoder\.conv_out\.bias", around(torch.cat([scale.mean, no_variance]), 0.0)),
        (r"decoder\.conv_in\.weight", fixed(convolution(read_latent(deep, scale), *wide), 0.1)),
        (r"decoder\.conv_in\.bias", around(-read_latent(deep, scale) @ scale.mean, 0.0)),
        (r"decoder\.conv_out\.weight", fixed(convolution(picture, *wide), 0.02)),
        (r"quant_conv\.weight", relay((1.0,), (1.0,), jitter=0.02)),
        (r"downsample\.conv\.weight", relay(FIRST_TWO, FIRST_TWO)),
        (r"upsample\.conv\.weight", relay(BINOMIAL, BINOMIAL)),
        (r"nin_shortcut\.weight", relay((1.0,), (1.0,))),
        (r"conv2\.weight", noise(IMAGE_BRANCH)),
        (r"attn_1\.[qk]\.weight", noise(1.5)),
        (r"attn_1\.proj_out\.weight", noise(0.5)),
        (r"bn\.running_mean", around(0.0, 0.0)),
        (r"bn\.running_var", around(1.0, 0.0)),
    )


def image_vae_module(channels: int, quantised: bool, patched: bool = False, narrow: int = 32) -> Any:
    """The host's module; the loader pins the encoder's width of 128 and, where it is old, the decoder's."""
    package, layers = "comfy.ldm.models.autoencoder", "comfy.ldm.modules.diffusionmodules.model"
    pins_decoder = "decoder_ddconfig" not in inspect.getsource(host(package))
    base = {
        "double_z": True, "z_channels": channels, "resolution": 256, "in_channels": 3, "out_ch": 3, "ch": 128,
        "ch_mult": [1, 2, 4, 4], "num_res_blocks": 2, "attn_resolutions": [], "dropout": 0.0,
    }  # fmt: skip
    base |= {"batch_norm_latent": True} if patched else {}
    decoder = base if pins_decoder else base | {"ch": narrow}
    if quantised:
        separate = {} if pins_decoder else {"decoder_ddconfig": decoder}
        return host(package).AutoencoderKL(ddconfig=base, embed_dim=channels, **separate)
    return host(package).AutoencodingEngine(
        regularizer_config={"target": f"{package}.DiagonalGaussianRegularizer"},
        encoder_config={"target": f"{layers}.Encoder", "params": base},
        decoder_config={"target": f"{layers}.Decoder", "params": decoder},
    )


def image_vae(latent: str, channels: int, quantised: bool, patched: bool = False) -> Weights:
    """A two-dimensional autoencoder."""
    module = image_vae_module(channels, quantised, patched)
    unit = LatentScale(torch.zeros(channels), torch.ones(channels))  # what the batch norm of Flux.2 makes of them
    scale = unit if patched else latent_scale(latent, channels)
    return fill(module, image_vae_rules(scale, module.decoder.conv_out.weight.shape[1]))
