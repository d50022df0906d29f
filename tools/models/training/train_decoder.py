"""Train the decoder of the small Stable Diffusion autoencoder, on photographs that Python packages bring along.

    python3 -m tools train-decoder [--steps 4000] [--minutes 60] [--bf16]

Two of the photographs are in scikit-learn's package, which the environment lacks: put it on PYTHONPATH. Nothing is
downloaded. A run that was interrupted goes on where it wrote its state last.

The encoder stays the drawn one of sd_vae.py. Beside its small disturbances it is an affine map of known form, so
that is fitted once and training never runs the encoder; the figures are those of the host's own, though. The loss is
an L1 norm of pixels and of differences between neighbours: no network judges the pictures.

GroupNorm makes 32 groups and takes a mean from each. Of 32 channels nothing of a flat picture would be left, so the
decoder has 64 at full resolution, and learns with a larger epsilon there: two channels per group would still lose how
large they are. For the host, whose epsilon is 1e-6, what those norms see is made smaller by a factor when it is
written, which comes to the same. Below full resolution the host wants twice as many channels as are trained (and an
older host more throughout): each is repeated when a checkpoint is written (`sd_vae.widened`), to the same effect.

The committed weights: `--steps 4000 --minutes 38 --bf16`, one thread of a busy machine, out of time after 3443 steps.
Through the host's encoder, PSNR and SSIM are 27.84 dB and 0.775 for chelsea, which was held out; 24.84 dB and 0.691
for coffee and 24.22 dB and 0.762 for astronaut, which were not. Pictures are soft, as 4 numbers for 192 make them.

Photographs of scikit-image: CC0 or in the public domain (astronaut and hubble by NASA, rocket by SpaceX, coffee by
Rachel Michetti, chelsea by Stefan van der Walt, camera by Lav Varshney, retina by Mikael Häggström, brick, grass and
gravel of CC0Textures). Photographs of scikit-learn: CC BY 2.0, china by danielbuechele, flower by vultilion (both on
Flickr).
"""

from __future__ import annotations

import argparse
import json
import math
import re
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ..drawing import BINOMIAL, CENTRE, convolution, fill
from ..from_host import host
from ..image_vae import image_vae_module
from ..sd_vae import TRAINED, sensor_rules, sensor_taps
from ..signals import latent_scale
from .loop import Training, parse
from .photographs import HELD_OUT, SKIMAGE, SKLEARN, TEXTURES, Crops, load_photographs

JUDGED = (HELD_OUT, "coffee.png", "astronaut.png")
EMA = 0.998

LATENT_FACTOR = 0.18215
BEGIN_SMALL = re.compile(r"(conv2|proj_out|upsample\.conv)\.weight")
EPS, HOST_EPS = 0.25, 1e-6  # of the norms at full resolution
THEY_SEE = re.compile(r"decoder\.up\.(1\.upsample\.conv|0\.block\.\d\.conv2)\.")
SAME_WIDTH = "decoder.up.0.block.0.nin_shortcut"  # the host's widths differ there, those trained do not


def sensor(pictures: Tensor) -> Tensor:
    """What the encoder sees of a picture, without its disturbances."""
    return F.conv2d(F.avg_pool2d(pictures, 4), sensor_taps(), stride=2)


class Encoder:
    """The host's encoder for figures, and for training its fit as an affine map of what it sees."""

    def __init__(self, photographs: dict[str, Tensor]) -> None:
        self.module = image_vae_module(4, quantised=True)
        scale = latent_scale("SD15", 4)
        weights = fill(self.module, sensor_rules(scale))
        self.module.load_state_dict({key: value.float() for key, value in weights.items()})
        middles = [picture[..., :256, :256] for name, picture in photographs.items() if name not in TEXTURES]
        seen = torch.cat([F.pad(sensor(picture), (0, 0, 0, 0, 0, 1), value=1.0) for picture in middles])
        given = torch.cat([self.real(picture) for picture in middles])
        flat = [latents.movedim(1, 0).flatten(1).T for latents in (seen, given)]
        self.matrix = torch.linalg.lstsq(*flat).solution.T[..., None, None]

    @torch.no_grad()
    def real(self, picture: Tensor) -> Tensor:
        latents = self.module.encode(picture)
        return latents[0] if isinstance(latents, tuple) else latents

    def fitted(self, pictures: Tensor) -> Tensor:
        return F.conv2d(sensor(pictures), self.matrix[:, :-1], self.matrix[:, -1, 0, 0])


def paired_code(channels: int, rng: torch.Generator) -> Tensor:
    """Like `drawing.code`, each channel beside its negative."""
    basis = torch.linalg.qr(torch.randn(channels // 2, 4, generator=rng)).Q * math.sqrt(channels / 8)
    return torch.stack([basis, -basis], dim=1).flatten(0, 1)


def narrow_decoder() -> nn.ModuleDict:
    """The host's decoder at the widths 64, 64, 128 and 128."""
    decoder = host("comfy.ldm.modules.diffusionmodules.model").Decoder(
        ch=64, ch_mult=(1, 1, 2, 2), z_channels=4, resolution=256, in_channels=3, out_ch=3, num_res_blocks=2,
        attn_resolutions=[], dropout=0.0,
    )  # fmt: skip
    return nn.ModuleDict({"decoder": decoder, "post_quant_conv": nn.Conv2d(4, 4, 1)})


def trained_decoder() -> nn.ModuleDict:
    """The decoder in the file, as narrow as it was trained and with the host's norms."""
    model = narrow_decoder()
    weights = {key: tensor.float() for key, tensor in load_file(TRAINED).items() if not key.startswith(SAME_WIDTH)}
    model.load_state_dict(weights)
    return model


def new_decoder(rng: torch.Generator) -> nn.Module:
    """One to begin with, which blurs: branches do next to nothing.

    Latents are carried through, each channel's negative its neighbour in a group, so that no norm takes a mean away.
    """
    model = narrow_decoder()
    decoder: Any = model["decoder"]
    for key, value in model.state_dict().items():
        if value.dim() == 1:
            value.fill_(1.0 if "norm" in key and key.endswith("weight") else 0.0)
        else:
            value.copy_(torch.randn(value.shape, generator=rng) * (0.01 if BEGIN_SMALL.search(key) else 1.0))
            value /= math.sqrt(value[0].numel())
    codes = {width: paired_code(width, rng) for width in (64, 128)}
    colours = torch.linalg.pinv(sensor_taps().sum((2, 3)))
    flat, smooth = [CENTRE] * 2, [BINOMIAL] * 2
    given = {
        "post_quant_conv.weight": torch.eye(4)[..., None, None] * LATENT_FACTOR,
        "decoder.conv_in.weight": convolution(codes[128], *flat),
        "decoder.up.1.block.0.nin_shortcut.weight": (codes[64] @ codes[128].T * (4 / 128))[..., None, None],
        "decoder.conv_out.weight": convolution(2 * (4 / 64) * colours @ codes[64].T, *flat),
    } | {
        f"decoder.up.{level}.upsample.conv.weight": convolution(torch.eye(width), *smooth)
        for level, width in ((1, 64), (2, 128), (3, 128))
    }
    for key, value in given.items():
        drawn = model.state_dict()[key]
        drawn.copy_(drawn + value if "upsample" in key else value)
    for norm in (*(block.norm1 for block in decoder.up[0].block), decoder.norm_out):
        norm.eps = EPS
    return model


def decode(model: Any, latents: Tensor) -> Tensor:
    pictures: Tensor = model["decoder"](model["post_quant_conv"](latents))
    return pictures.float()


def loss_of(result: Tensor, target: Tensor) -> Tensor:
    """Of pixels, and of differences along rows and columns, which a blurred edge gets wrong."""
    error = result - target
    across, down = error.diff(dim=-1), error.diff(dim=-2)
    return error.abs().mean() + 0.5 * (across.abs().mean() + down.abs().mean())


def disturbed(latents: Tensor, crops: Crops) -> Tensor:
    """Latents that a sampler made are never as clean as the encoder's: most get some noise."""
    strength = (crops.uniform(-0.08, 0.12, len(latents), 1, 1, 1)).clamp(min=0)
    noise = torch.randn(latents.shape, generator=crops.rng)
    return (latents * crops.uniform(0.97, 1.03, len(latents), 1, 1, 1)) + strength * noise / LATENT_FACTOR


def judge(model: Any, judged: dict[str, tuple[Tensor, Tensor]]) -> dict[str, tuple[float, float]]:
    """PSNR in dB and SSIM of whole photographs through the host's encoder and this decoder."""
    from skimage.metrics import structural_similarity

    figures = {}
    for name, (picture, latents) in judged.items():
        with torch.no_grad():
            result = decode(model, latents).clamp(-1, 1)
        psnr = -10 * math.log10(((result - picture) / 2).square().mean().item())
        pair = [tensor[0].add(1).div(2).movedim(0, -1).numpy() for tensor in (result, picture)]
        figures[name] = (round(psnr, 2), round(float(structural_similarity(*pair, channel_axis=-1, data_range=1.0)), 3))
    return figures


def write_weights(target: Path, model: nn.Module, seed: int, steps: int, figures: Any) -> None:
    """The averaged weights in half precision, and where they come from."""
    about = {
        "script": "tools/models/training/train_decoder.py", "seed": seed, "steps": steps,
        "photographs": [*SKIMAGE, *TEXTURES, *SKLEARN], "held_out": HELD_OUT, "psnr_ssim": figures,
    }  # fmt: skip
    same = {f"{SAME_WIDTH}.weight": torch.eye(64)[..., None, None], f"{SAME_WIDTH}.bias": torch.zeros(64)}
    weights = {
        key: (value * math.sqrt(HOST_EPS / EPS) if THEY_SEE.match(key) else value).half().contiguous()
        for key, value in (model.state_dict() | same).items()
    }
    partial = target.with_name(target.name + ".partial")
    save_file(weights, partial, {key: v if isinstance(v, str) else json.dumps(v) for key, v in about.items()})
    partial.replace(target)


class DecoderTraining(Training):
    """Pieces of photographs, and the latents that the encoder makes of them."""

    def __init__(self, options: argparse.Namespace) -> None:
        rng = torch.Generator().manual_seed(options.seed)
        photographs = load_photographs()
        known = {name: picture for name, picture in photographs.items() if name != HELD_OUT}
        self.encoder = Encoder(known)
        self.judged = {name: (photographs[name], self.encoder.real(photographs[name])) for name in JUDGED}
        self.crops = Crops(known, rng)
        super().__init__(options, rng, new_decoder(rng), new_decoder(rng), EMA)

    def loss(self) -> Tensor:
        target = self.crops.batch()
        latents = disturbed(self.encoder.fitted(target), self.crops)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.options.bf16):
            result = decode(self.model, latents)
        return loss_of(result, target)

    def write(self) -> str:
        figures = judge(self.average, self.judged)
        write_weights(self.options.out, self.average, self.options.seed, self.steps, figures)
        return f"PSNR and SSIM {figures}"


def main() -> None:
    DecoderTraining(parse("train-decoder", (__doc__ or "").partition("\n")[0], TRAINED, 4000, 2.5e-4)).run()


if __name__ == "__main__":
    main()
