"""Causal autoencoders for video: of Wan 2.1 and of LTX-Video."""

from __future__ import annotations

import torch
from torch import Tensor

from .drawing import (
    BINOMIAL,
    CARRIERS,
    CENTRE,
    FIRST_TWO,
    LAST,
    LAST_TWO,
    Rules,
    Shape,
    Weights,
    around,
    bridge,
    code,
    convolution,
    fill,
    fixed,
    noise,
    read,
    relay,
)
from .from_host import host
from .signals import COLOURS, corners, latent_scale, mixing, read_latent, see, show, unmixing, write_latent

WAN_BRANCH, WAN_CONTRAST = 0.35, 1.25
FLOOR = 1.5  # a per-pixel norm keeps only ratios of carriers; against a constant one, brightness survives


def same_frame_twice(shape: Shape, rng: torch.Generator) -> Tensor:
    """Doubling time: the layer's two halves are the two frames that a coarse one becomes."""
    half = relay(LAST, (1.0,), (1.0,))
    return torch.cat([half((shape[0] // 2, *shape[1:]), rng) for _ in range(2)])


def wan_vae() -> Weights:
    """The causal video autoencoder of Wan 2.1, Qwen-Image and others: in time, only the last tap carries."""
    width = 16
    module = host("comfy.ldm.wan.vae").WanVAE(
        dim=width, z_dim=16, dim_mult=[1, 2, 4, 4], num_res_blocks=2, attn_scales=[],
        temperal_downsample=[False, True, True], image_channels=3, conv_out_channels=3, dropout=0.0,
    )  # fmt: skip
    scale, deep, centre = latent_scale("Wan21", 16), width * 4, (LAST, CENTRE, CENTRE)
    latent_bias = FLOOR * code(deep, CARRIERS)[:, COLOURS] - read_latent(deep, scale) @ scale.mean
    rules: Rules = (
        (r"encoder\.conv1\.weight", fixed(convolution(see(width), *centre), 0.1)),
        (r"encoder\.conv1\.bias", around(FLOOR * code(width, CARRIERS)[:, COLOURS], 0.0)),
        (r"encoder\.head\.2\.weight", fixed(convolution(write_latent(deep, scale), *centre), 0.1)),
        (r"encoder\.head\.2\.bias", around(torch.cat([scale.mean, torch.zeros(16)]), 0.0)),
        (r"decoder\.conv1\.weight", fixed(convolution(read_latent(deep, scale), *centre), 0.1)),
        (r"decoder\.conv1\.bias", around(latent_bias, 0.0)),
        (r"decoder\.head\.2\.weight", fixed(convolution(show(width, WAN_CONTRAST), *centre), 0.02)),
        (r"^conv[12]\.weight|shortcut\.weight", relay((1.0,), (1.0,), (1.0,), jitter=0.02)),
        (r"encoder.*resample\.1\.weight", relay(FIRST_TWO, FIRST_TWO)),
        (r"decoder.*resample\.1\.weight", relay(BINOMIAL, BINOMIAL)),
        (r"encoder.*time_conv\.weight", relay(LAST_TWO, (1.0,), (1.0,))),
        (r"decoder.*time_conv\.weight", same_frame_twice),
        (r"residual\.6\.weight", noise(WAN_BRANCH)),
        (r"to_qkv\.weight", noise(1.5)),
        (r"middle\.1\.proj\.weight", noise(0.4)),
    )
    return fill(module, rules)


HALVES = ((0.25, 0.75, 0.0), (0.0, 0.75, 0.25))  # linear interpolation: the two pixels inside a coarse one
LTX_BRANCH, LTX_CONTRAST = 0.3, 1.1


def unfold_matrix(signals: int, y: int, x: int) -> Tensor:
    """Pick, of the carriers of a 2x2 patch and the constant one, those of the pixel at (y, x)."""
    pick = torch.zeros(signals + 1, 4 * signals + 1)
    pick[torch.arange(signals), torch.arange(signals) * 4 + y * 2 + x] = 1.0
    pick[-1, -1] = 1.0
    return pick


def ltx_shrink(out: int, into: int, signals: int, fold: bool) -> Tensor:
    """Halve time and space: average the pixels, or (``fold``) keep all four side by side."""
    if not fold:
        return convolution(bridge(out, into, signals + 1), LAST_TWO, LAST_TWO, LAST_TWO)
    taps = (LAST, CENTRE)
    weight = torch.zeros(out, into, 3, 3, 3)
    for _, y, x in corners(1, 2, 2):
        pick = unfold_matrix(signals, y, x).T
        pick[-1, -1] = 0.25  # each of the four corners contributes to the constant carrier
        matrix = code(out, 4 * signals + 1) @ pick @ read(into, signals + 1)
        weight += convolution(matrix, LAST_TWO, taps[1 - y], taps[1 - x])
    return weight


def ltx_grow(out: int, into: int, signals: int, fold: bool) -> Tensor:
    """Double time and space, and leave out what the layer's own shortcut already supplies."""
    target, source = code(out, signals + 1), read(into, (4 * signals if fold else signals) + 1)
    weight = torch.zeros(out, 8, into, 3, 3, 3)
    for corner, (t, y, x) in enumerate(corners(2, 2, 2)):
        matrix = target @ (unfold_matrix(signals, y, x) if fold else torch.eye(signals + 1)) @ source
        space = (CENTRE, CENTRE) if fold else (HALVES[y], HALVES[x])
        weight[:, corner] = convolution(matrix, HALVES[t], *space)
        weight[torch.arange(out), corner, torch.arange(out) * 8 % into + corner, 1, 1, 1] -= 1.0
    return weight.flatten(0, 1)


LTX_CONFIG = {
    "_class_name": "CausalVideoAutoencoder", "dims": 3, "latent_channels": 128,
    "in_channels": 3, "out_channels": 3,
    "encoder_blocks": [
        ["res_x", {"num_layers": 1}], ["compress_all", {}],
        ["res_x", {"num_layers": 1}], ["compress_all_x_y", {"multiplier": 2}],
        ["res_x", {"num_layers": 1}], ["compress_all_x_y", {"multiplier": 2}],
        ["res_x", {"num_layers": 1}],
    ],
    "decoder_blocks": [
        ["res_x", {"num_layers": 1}], ["compress_all", {"residual": True, "multiplier": 1}],
        ["res_x", {"num_layers": 1}], ["compress_all", {"residual": True, "multiplier": 2}],
        ["res_x", {"num_layers": 1}], ["compress_all", {"residual": True, "multiplier": 2}],
        ["res_x", {"num_layers": 1}],
    ],
    "encoder_base_channels": 32, "decoder_base_channels": 32, "norm_layer": "pixel_norm", "patch_size": 4,
    "latent_log_var": "uniform", "causal_decoder": False, "timestep_conditioning": False,
}  # fmt: skip


def ltx_vae() -> Weights:
    """The video autoencoder of LTX-Video: 32 pixels a latent, so a latent holds the colours of 4x4 cells."""
    module = host("comfy.ldm.lightricks.vae.causal_video_autoencoder").VideoVAE(version=0, config=LTX_CONFIG)
    width, deep, cells = 32, 128, 16 * COLOURS
    patch_mean = see(width).repeat_interleave(16, 1) / 16
    patch_fill = convolution(show(width, LTX_CONTRAST).repeat_interleave(16, 0), CENTRE, BINOMIAL, BINOMIAL)
    write = torch.cat([mixing(deep, cells) @ (2 * read(deep, cells + 1)[:cells]), torch.zeros(1, deep)])
    spread = code(deep, cells + 1)
    rules: Rules = (
        (r"encoder\.conv_in\.conv\.weight", fixed(convolution(patch_mean, LAST, CENTRE, CENTRE), 0.1)),
        (r"encoder\.conv_in\.conv\.bias", around(FLOOR * code(width, CARRIERS)[:, COLOURS], 0.0)),
        (r"down_blocks\.1\.conv\.weight", fixed(ltx_shrink(32, 32, 3, fold=False), 0.1)),
        (r"down_blocks\.3\.conv\.weight", fixed(ltx_shrink(64, 32, 3, fold=True), 0.1)),
        (r"down_blocks\.5\.conv\.weight", fixed(ltx_shrink(128, 64, 12, fold=True), 0.1)),
        (r"encoder\.conv_out\.conv\.weight", fixed(convolution(write, LAST, CENTRE, CENTRE), 0.1)),
        (r"decoder\.conv_in\.conv\.weight",
         fixed(convolution(spread[:, :cells] @ unmixing(deep, cells), CENTRE, CENTRE, CENTRE), 0.1)),
        (r"decoder\.conv_in\.conv\.bias", around(FLOOR * spread[:, cells], 0.0)),
        (r"up_blocks\.1\.conv\.conv\.weight", fixed(ltx_grow(64, 128, 12, fold=True), 0.1)),
        (r"up_blocks\.3\.conv\.conv\.weight", fixed(ltx_grow(32, 64, 3, fold=True), 0.1)),
        (r"up_blocks\.5\.conv\.conv\.weight", fixed(ltx_grow(32, 32, 3, fold=False), 0.1)),
        (r"decoder\.conv_out\.conv\.weight", fixed(patch_fill, 0.02)),
        (r"conv2\.conv\.weight", noise(LTX_BRANCH)),
        (r"std-of-means", around(1.0, 0.0)),
        (r"mean-of-means", around(0.0, 0.0)),
    )  # fmt: skip
    return fill(module, rules)
