"""Write small checkpoints that the stock ComfyUI loaders accept, so that nothing has to be downloaded.

    python tools/checkpoints.py --comfyui HOST --out DIR [names...]

The host's own classes supply key names and shapes; the numbers are drawn here, each tensor from a seed made
of its own key, so the same file comes out on every run and one tensor never depends on another.

Plain random weights would be useless: pictures of noise, attention that averages everything away. So every
network gets a *skeleton*, near-identity weights that carry a few signals from its first layer to its last
(the colours of a picture, the channels of a latent), and *branches*, random weights that disturb them by a
known amount. A photograph survives encoding and decoding, a sampler ends at latents of about unit size, and
a change in any layer shows in the result.

One network is trained: the decoder of the Stable Diffusion autoencoder (train_decoder.py).
"""

from __future__ import annotations

import argparse
import functools
import importlib
import importlib.util
import inspect
import json
import math
import re
import shutil
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

Shape = tuple[int, ...]
Draw = Callable[[Shape, torch.Generator], Tensor]
Rules = Sequence[tuple[str, Draw]]
Weights = dict[str, Tensor]

# What a kernel of three does along one axis.
FIRST, CENTRE, LAST = (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)
BINOMIAL = (0.25, 0.5, 0.25)
FIRST_TWO, LAST_TWO = (0.5, 0.5, 0.0), (0.0, 0.5, 0.5)

# Brightness and two colour differences: photographs vary mostly in the first, so the others are amplified.
OPPONENT = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, -1.0], [1.0, -2.0, 1.0]])
OPPONENT = OPPONENT / OPPONENT.norm(dim=1, keepdim=True)
OPPONENT_GAIN = torch.tensor([1.1, 3.0, 3.0])
COLOURS, CARRIERS = 3, 4  # the fourth carrier is constant

TRAINED = Path(__file__).resolve().parent / "weights" / "sd_decoder.safetensors"


# ------------------------------------------------------------------------------------------ drawing numbers


def generator(name: str) -> torch.Generator:
    """A random source that depends on the name alone."""
    return torch.Generator().manual_seed(zlib.crc32(name.encode()))


def noise(gain: float = 1.0) -> Draw:
    """Random weights that keep unit variance (times ``gain``), whatever the fan-in."""

    def draw(shape: Shape, rng: torch.Generator) -> Tensor:
        return torch.randn(shape, generator=rng) * (gain / math.sqrt(max(1, math.prod(shape[1:]))))

    return draw


def around(mean: float | Tensor, spread: float) -> Draw:
    """Values scattered about a mean: biases, norm gains, modulation tables, embeddings."""
    return lambda shape, rng: mean + spread * torch.randn(shape, generator=rng)


def fixed(weight: Tensor, jitter: float = 0.0) -> Draw:
    """A given weight plus random weights of relative size ``jitter``."""

    def draw(shape: Shape, rng: torch.Generator) -> Tensor:
        return weight.reshape(shape) + noise(jitter)(shape, rng)

    return draw


def draw_default(shape: Shape, rng: torch.Generator, key: str) -> Tensor:
    if key.endswith("bias"):
        return around(0.0, 0.05)(shape, rng)
    if len(shape) == 1 or key.endswith("gamma"):
        return around(1.0, 0.05)(shape, rng)
    return noise()(shape, rng)


def fill(module: torch.nn.Module, rules: Rules, prefix: str = "") -> Weights:
    """One half-precision tensor per entry of the module's state, drawn by the first rule to fit its key."""
    weights = {}
    for key, value in module.state_dict().items():
        shape = tuple(value.shape)
        if not value.is_floating_point():
            weights[prefix + key] = torch.zeros(shape, dtype=value.dtype)
            continue
        draw = next((draw for pattern, draw in rules if re.search(pattern, key)), None)
        tensor = draw(shape, generator(key)) if draw else draw_default(shape, generator(key), key)
        weights[prefix + key] = tensor.expand(shape).to(torch.float16).contiguous()
    return weights


# --------------------------------------------------------------------------------------------- the skeleton


@functools.cache
def code(channels: int, carriers: int) -> Tensor:
    """How ``carriers`` signals are spread over ``channels``: orthogonally, at unit size, each row twice.

    The second time it is negated, which makes SiLU harmless: silu(x) - silu(-x) = x.
    """
    half = torch.randn(channels // 2, carriers, generator=generator(f"code {channels} {carriers}"))
    basis: Tensor = torch.linalg.qr(half).Q * math.sqrt(channels / (2 * carriers))
    return torch.cat([basis, -basis])


def read(channels: int, carriers: int) -> Tensor:
    """The inverse of :func:`code`."""
    return code(channels, carriers).T * (carriers / channels)


def bridge(out: int, into: int, carriers: int = CARRIERS) -> Tensor:
    """Pass everything on where the width stays, the carriers where it changes."""
    return torch.eye(out) if out == into else code(out, carriers) @ read(into, carriers)


def stencil(*axes: Sequence[float]) -> Tensor:
    """The outer product of one row of taps per axis."""
    kernel = torch.ones(())
    for taps in axes:
        kernel = kernel[..., None] * torch.tensor(taps)
    return kernel


def convolution(matrix: Tensor, *axes: Sequence[float]) -> Tensor:
    """A convolution that applies ``matrix`` to the channels and the taps to each axis."""
    weight: Tensor = torch.tensordot(matrix, stencil(*axes), dims=0)
    return weight


def relay(*axes: Sequence[float], jitter: float = 0.1) -> Draw:
    """A skeleton layer: :func:`bridge` between the layer's own widths."""

    def draw(shape: Shape, rng: torch.Generator) -> Tensor:
        return fixed(convolution(bridge(shape[0], shape[1]), *axes), jitter)(shape, rng)

    return draw


# --------------------------------------------------------------------------------------------- autoencoders


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


def widened(key: str, tensor: Tensor, shape: Shape) -> Tensor:
    """A layer of the trained decoder with every channel several times in a row, as often as ``shape`` has room for.

    Groups keep their means and deviations, so the network computes what it did before. (Attention divides by the root
    of the width, which has grown.)
    """
    outputs = shape[0] // tensor.shape[0]
    wide = tensor.float().repeat_interleave(outputs, 0)
    if tensor.dim() > 1:
        inputs = shape[1] // tensor.shape[1]
        wide = wide.repeat_interleave(inputs, 1) / inputs
    if "attn_1.q." in key:
        wide = wide / math.sqrt(outputs)
    return wide.to(torch.float16)


def vae_sd() -> Weights:
    """The autoencoder of Stable Diffusion: a drawn encoder, and the decoder that train_decoder.py trained for it."""
    module = image_vae_module(LATENT, quantised=True, narrow=64)
    state, weights = module.state_dict(), fill(module, sensor_rules(latent_scale("SD15", LATENT)))
    trained = load_file(TRAINED)
    return weights | {key: widened(key, tensor, tuple(state[key].shape)) for key, tensor in trained.items()}


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


def corners(*axes: int) -> Iterable[tuple[int, ...]]:
    """Every position inside a patch, in the order in which channels are unfolded."""
    return ((t, y, x) for t in range(axes[0]) for y in range(axes[1]) for x in range(axes[2]))


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


# --------------------------------------------------------------------------------------------- text encoder


def clip_l() -> Weights:
    """CLIP-L at full size: the loader knows no smaller one."""
    package = host("comfy")
    config = json.loads((Path(package.__path__[0]) / "sd1_clip_config.json").read_text())
    module = host("comfy.clip_model").CLIPTextModel(config, **blank())
    rules: Rules = (
        (r"token_embedding", around(0.0, 0.5)),
        (r"position_embedding", around(0.0, 0.1)),
        (r"[qk]_proj\.weight", noise(1.5)),
    )
    return fill(module, rules)


# ------------------------------------------------------------------------------------------------ denoisers

LATENT = 4  # channels of a Stable Diffusion latent, and carriers of its UNet


def merge(coarse: float, skip: float) -> Draw:
    """Where coarse features meet a skip: how much of each goes on."""

    def draw(shape: Shape, rng: torch.Generator) -> Tensor:
        through = torch.eye(shape[0])
        return torch.cat([coarse * through, skip * through], dim=1).reshape(shape)

    return draw


def unet(coarse: float, **config: Any) -> Weights:
    """A UNet that predicts its input plus a disturbance: the sampler leaves only the latter."""
    module = host("comfy.ldm.modules.diffusionmodules.openaimodel").UNetModel(
        image_size=32, in_channels=LATENT, out_channels=LATENT, model_channels=320,
        use_spatial_transformer=True, legacy=False, **blank(), **config,
    )  # fmt: skip
    last = sum(config["num_res_blocks"]) + len(config["num_res_blocks"]) - 1
    rules: Rules = (
        (r"input_blocks\.0\.0\.weight", fixed(convolution(code(320, LATENT), CENTRE, CENTRE))),
        (r"^out\.2\.weight", fixed(convolution(2 * read(320, LATENT), CENTRE, CENTRE))),
        (r"^out\.2\.bias", around(0.0, 0.0)),
        # The last skip comes from the first layer and holds the noise: let little else in beside it.
        (rf"output_blocks\.{last}\.0\.skip_connection\.weight", merge(coarse, 1.0)),
        (r"skip_connection\.weight", merge(0.8, 0.6)),
        (r"\.op\.weight|\d\.conv\.weight", relay(BINOMIAL, BINOMIAL)),
        (r"out_layers\.3\.weight", noise(0.15)),
        (r"\d\.proj_out\.weight", noise(0.25)),
        (r"attn\d\.to_[qk]\.weight", noise(1.5)),
    )
    return fill(module, rules)


def sd15_unet() -> Weights:
    """Two levels; the loader pins 320 channels and a context of 768, neither depth nor multipliers."""
    return unet(
        coarse=0.12, num_res_blocks=[1, 1], channel_mult=[1, 1], transformer_depth=[1, 1],
        transformer_depth_output=[1, 1, 1, 1], transformer_depth_middle=1, context_dim=768,
        num_heads=8, num_head_channels=-1, use_linear_in_transformer=False,
    )  # fmt: skip


def sdxl_unet() -> Weights:
    """The transformer depths are those of Segmind Vega, which the loader takes for a kind of SDXL."""
    return unet(
        coarse=0.25, num_res_blocks=[2, 2, 2], channel_mult=[1, 1, 1], transformer_depth=[0, 0, 1, 1, 2, 2],
        transformer_depth_output=[0, 0, 0, 0, 0, 0, 1, 1, 1], transformer_depth_middle=1, context_dim=2048,
        adm_in_channels=2816, num_classes="sequential", num_heads=-1, num_head_channels=64,
        use_linear_in_transformer=True,
    )  # fmt: skip


def transformer_rules(entry: str, leaving: str, width: int, channels: int, last: bool = False) -> Rules:
    """The velocity is the noisy input plus a disturbance, which gates of about 0.4 keep worth having.

    ``last`` is for models that take patches of 2x2 channels-first and return them channels-last.
    """
    out = read(width, channels)
    if last:
        out = out.view(channels // 4, 4, width).transpose(0, 1).reshape(channels, width)
    modulation = r"(mod|modulation|adaLN_modulation\.1|adaln_single\.linear|time_projection\.1)(\.lin)?"
    query_key_norm = r"(query_norm|key_norm|norm_q|norm_k|q_norm|k_norm|ln_q|ln_k)"
    return (
        (rf"^{entry}\.weight", fixed(code(width, channels))),
        (rf"^{leaving}\.weight", fixed(0.8 * out, 0.3)),
        (rf"{modulation}\.bias", around(0.0, 0.4)),
        (rf"{modulation}\.weight", noise(0.3)),
        (r"modulation$|scale_shift_table$", around(0.0, 0.4)),
        (rf"{query_key_norm}\.weight", around(1.5, 0.05)),
    )


def flux() -> Weights:
    """Flux.1 with the width of CLIP-L as its context, so that CLIP-L alone can drive it."""
    module = host("comfy.ldm.flux.model").Flux(
        image_model="flux", in_channels=16, out_channels=16, vec_in_dim=768, context_in_dim=768,
        hidden_size=256, mlp_ratio=4.0, num_heads=2, depth=2, depth_single_blocks=4, axes_dim=[16, 56, 56],
        theta=10000, patch_size=2, qkv_bias=True, guidance_embed=True, txt_ids_dims=[], **blank(),
    )  # fmt: skip
    return fill(module, transformer_rules("img_in", r"final_layer\.linear", 256, 64))


def flux_lora() -> Weights:
    """A LoRA of rank 4 for the blocks of :func:`flux`, strong enough to be seen."""
    rank, lora = 4, {}
    for key, weight in flux().items():
        layer, is_weight = key.removesuffix(".weight"), key.endswith(".weight") and weight.ndim == 2
        if is_weight and "_blocks." in key and "mod" not in key:
            out, into = weight.shape
            name = f"diffusion_model.{layer}"
            lora[f"{name}.lora_up.weight"] = torch.randn(out, rank, generator=generator(f"{key} up")) * 0.1
            lora[f"{name}.lora_down.weight"] = torch.randn(rank, into, generator=generator(f"{key} down")) * 0.1
    return lora


def flux2() -> Weights:
    """Flux.2: modulation shared by all blocks, no biases, gated feed-forward layers."""
    module = host("comfy.ldm.flux.model").Flux(
        image_model="flux2", in_channels=128, out_channels=128, vec_in_dim=None, context_in_dim=768,
        hidden_size=256, mlp_ratio=3.0, num_heads=2, depth=2, depth_single_blocks=4,
        axes_dim=[32, 32, 32, 32], theta=2000, patch_size=1, qkv_bias=False, guidance_embed=True,
        global_modulation=True, mlp_silu_act=True, ops_bias=False,
        txt_ids_dims=[3], **blank(),
    )  # fmt: skip
    rules = transformer_rules("img_in", r"final_layer\.linear", 256, 128)
    return fill(module, ((r"modulation.*lin\.weight", noise(0.8)), *rules))


def sd3() -> Weights:
    """SD 3.5: 64 channels per block by design, and one block with a second self-attention."""
    depth, side = 3, 128
    module = host("comfy.ldm.modules.diffusionmodules.mmdit").MMDiT(
        input_size=None, patch_size=2, in_channels=16, out_channels=16, depth=depth, adm_in_channels=2048,
        num_patches=side * side, pos_embed_max_size=side, pos_embed_scaling_factor=None, qk_norm="rms",
        x_block_self_attn_layers=[0], **blank(),
        context_embedder_config={
            "target": "torch.nn.Linear", "params": {"in_features": 4096, "out_features": 64 * depth},
        },
    )  # fmt: skip
    rules = transformer_rules(r"x_embedder\.proj", r"final_layer\.linear", 192, 64, last=True)
    return fill(module, ((r"pos_embed", around(0.0, 0.3)), *rules))


def wan21() -> Weights:
    """Wan 2.1 text-to-video: heads are 128 wide by design."""
    module = host("comfy.ldm.wan.model").WanModel(
        model_type="t2v", patch_size=(1, 2, 2), in_dim=16, dim=256, ffn_dim=512, freq_dim=256, text_dim=4096,
        out_dim=16, num_heads=2, num_layers=4, qk_norm=True, cross_attn_norm=True, eps=1e-6,
        **blank(),
    )  # fmt: skip
    return fill(module, transformer_rules("patch_embedding", r"head\.head", 256, 64, last=True))


def ltxv() -> Weights:
    """LTX-Video: 32 heads by design, here 8 wide."""
    module = host("comfy.ldm.lightricks.model").LTXVModel(
        cross_attention_dim=256, attention_head_dim=8, num_attention_heads=32, caption_channels=4096,
        num_layers=4, **blank(),
    )  # fmt: skip
    return fill(module, transformer_rules("patchify_proj", "proj_out", 256, 128))


# ------------------------------------------------------------------------------------------------- the host


def host(module: str) -> Any:
    """A module of the host, imported when needed: this file must load where no host is."""
    return importlib.import_module(module)


def blank() -> dict[str, Any]:
    """Arguments for a network that is all shapes and no memory."""
    return {"device": "meta", "dtype": torch.float32, "operations": host("comfy.ops").disable_weight_init}


def enter_host(folder: Path) -> None:
    """Make the host importable, on the CPU.

    It takes the place of this script's folder: ``nodes`` and ``utils`` must mean the host's. It reads the
    command line on import, hence the argument.
    """
    if not (folder / "comfy" / "ops.py").is_file():
        raise FileNotFoundError(f"{folder} is not a ComfyUI folder: it has no comfy/ops.py")
    sys.path[0] = str(folder)
    sys.argv[1:] = ["--cpu"]
    host("comfy.options").enable_args_parsing()


# ---------------------------------------------------------------------------------------------------- files


class File(NamedTuple):
    """One thing to write: where to, relative to the output folder, and how."""

    path: str
    write: Callable[[Path], int]  # returns the number of parameters


def weights_file(name: str, build: Callable[[], Weights], metadata: dict[str, str] | None = None) -> File:
    """A safetensors file below ``models/``, built only when it is written."""

    def write(target: Path) -> int:
        weights = build()
        save_file(weights, target, metadata=metadata)
        return sum(tensor.numel() for tensor in weights.values())

    return File(f"models/{name}.safetensors", write)


def conditioning(name: str, tokens: int, width: int, pooled: int = 0, mask: bool = False) -> list[File]:
    """A data set for LoadTrainingDataset: what a text encoder too big to write here would have said."""

    def write_shard(target: Path) -> int:
        rng = generator(name)
        context = torch.randn(1, tokens, width, generator=rng) * 0.5
        extra: Weights = {"pooled_output": torch.randn(1, pooled, generator=rng) * 0.5} if pooled else {}
        extra |= {"attention_mask": torch.ones(1, tokens, dtype=torch.long)} if mask else {}
        latents = [{"samples": torch.zeros(1, 4, 8, 8)}]  # a data set must have some; nobody looks at them
        torch.save({"latents": latents, "conditioning": [[[context, extra]]]}, target)
        return context.numel()

    def write_metadata(target: Path) -> int:
        target.write_text(json.dumps({"num_samples": 1}))
        return 0

    return [
        File(f"datasets/{name}/shard_0000.pkl", write_shard),
        File(f"datasets/{name}/metadata.json", write_metadata),
    ]


def photograph(name: str) -> File:
    """A picture that comes inside scikit-image's package (found without importing it)."""

    def write(target: Path) -> int:
        package = importlib.util.find_spec("skimage")
        if package is None or not package.submodule_search_locations:
            raise FileNotFoundError("scikit-image is not installed: its pictures serve as photographs")
        shutil.copyfile(Path(package.submodule_search_locations[0]) / "data" / name, target)
        return 0

    return File(f"input/{name}", write)


def sd15() -> Weights:
    """A whole checkpoint: the networks that also have files of their own, under a checkpoint's names."""
    parts = {
        "model.diffusion_model.": sd15_unet(),
        "first_stage_model.": vae_sd(),
        "cond_stage_model.transformer.": clip_l(),
    }
    return {prefix + key: tensor for prefix, part in parts.items() for key, tensor in part.items()}


MODELS = (
    weights_file("checkpoints/tiny_sd15", sd15),
    weights_file("diffusion_models/tiny_sd15_unet", sd15_unet),
    weights_file("diffusion_models/tiny_sdxl_unet", sdxl_unet),
    weights_file("diffusion_models/tiny_sd3", sd3),
    weights_file("diffusion_models/tiny_flux", flux),
    weights_file("diffusion_models/tiny_flux2", flux2),
    weights_file("diffusion_models/tiny_wan21", wan21),
    weights_file("diffusion_models/tiny_ltxv", ltxv),
    weights_file("loras/tiny_flux_lora", flux_lora),
    weights_file("text_encoders/tiny_clip_l", clip_l),
    weights_file("vae/tiny_vae_sd", vae_sd),
    weights_file("vae/tiny_vae_flux", lambda: image_vae("Flux", 16, quantised=False)),
    weights_file("vae/tiny_vae_flux2", lambda: image_vae("Flux2", 32, quantised=True, patched=True)),
    weights_file("vae/tiny_vae_wan21", wan_vae),
    weights_file("vae/tiny_vae_ltx", ltx_vae, {"config": json.dumps({"vae": LTX_CONFIG})}),
)
FILES: dict[str, list[File]] = {Path(model.path).stem: [model] for model in MODELS} | {
    "cond_sdxl": conditioning("cond_sdxl", tokens=77, width=2048, pooled=1280),
    "cond_t5": conditioning("cond_t5", tokens=32, width=4096),
    "cond_ltx": conditioning("cond_ltx", tokens=32, width=4096, mask=True),
    "astronaut": [photograph("astronaut.png")],
    "coffee": [photograph("coffee.png")],
}
LARGE = {"tiny_sd15", "tiny_sd15_unet", "tiny_sdxl_unet", "tiny_clip_l", "tiny_vae_flux", "tiny_vae_flux2"}
GROUPS = {"all": list(FILES), "small": [name for name in FILES if name not in LARGE]}


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--comfyui", type=Path, metavar="HOST", help="the ComfyUI folder")
    parser.add_argument("--out", type=Path, metavar="DIR", help="gets models/, datasets/ and input/")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    parser.add_argument("names", nargs="*", default=["all"], help="files or groups (default: all)")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in FILES and name not in GROUPS]
    if unknown:
        parser.error(f"unknown name: {', '.join(unknown)} (--list prints those there are)")
    if not options.list and not (options.comfyui and options.out):
        parser.error("--comfyui and --out are both needed")
    return options


def expand(names: Iterable[str]) -> list[str]:
    """Groups replaced by their members, each file once."""
    return list(dict.fromkeys(member for name in names for member in GROUPS.get(name, [name])))


def write(file: File, folder: Path) -> None:
    """Write under another name first: a file that is there is whole."""
    started = time.perf_counter()
    target = folder / file.path
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".partial")
    parameters = file.write(partial)
    partial.replace(target)
    size, seconds = target.stat().st_size / 1e6, time.perf_counter() - started
    print(f"{file.path:52s} {parameters / 1e6:8.2f} M {size:8.1f} MB {seconds:6.1f} s", flush=True)


def main() -> int:
    options = parse()
    if options.list:
        print(*FILES, *(f"{group}: {' '.join(names)}" for group, names in GROUPS.items()), sep="\n")
        return 0
    name = "anything"
    try:
        enter_host(options.comfyui.resolve())
        for name in expand(options.names):
            for file in FILES[name]:
                write(file, options.out)
    except (OSError, ImportError, AttributeError, TypeError, RuntimeError) as error:
        print(f"{name} could not be written: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
