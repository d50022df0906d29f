"""The transformer that paints: a Flux of four blocks, and its file.

A head of Flux is 128 wide by design, so it has two. Its text comes from the small Stable Diffusion's text model and its
latents from the same autoencoder, spread over Flux's sixteen channels. Its file has 8 bits a weight with a scale for
each row, and modulations as products of rank 16.
"""

from __future__ import annotations

import math
import re
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from ..drawing import Weights
from ..from_host import blank, host
from ..sd_vae import vae_sd
from ..signals import latent_scale
from ..widening import widened
from .networks import HOST_WIDTH, WIDTH

TRAINED = Path(__file__).resolve().parents[1] / "weights" / "flux_painter.safetensors"
SCALE = ".row_scale"  # beside a weight of 8 bits
SPREAD = "spread"  # directions of the latents
HIDDEN, HEAD, AXES, THETA = 256, 128, (16, 56, 56), 10000
DOUBLE, SINGLE, RANK, CHANNELS, PATCH = 1, 3, 16, 16, 2
FREQUENCIES = 256  # of the time


class Modulation(nn.Module):
    """``count`` shifts, scales and gates of a time: (prompts, 256) to as many times (prompts, 1, 256)."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count
        self.down, self.up = nn.Linear(HIDDEN, RANK, bias=False), nn.Linear(RANK, count * HIDDEN)

    def forward(self, time: Tensor) -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = self.up(self.down(F.silu(time)))[:, None].chunk(self.count, -1)
        return found


class Norm(nn.Module):
    """Of queries or keys, by the root of their mean square."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(HEAD))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (HEAD,), self.weight.to(x.dtype), 1e-6)


class Attended(nn.Module):
    """What becomes queries, keys and values of one kind of tokens, and what becomes of what they found."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.norm = nn.ModuleDict({"query_norm": Norm(), "key_norm": Norm()})


class Stream(nn.Module):
    """One of the two kinds of tokens in a double block."""

    def __init__(self) -> None:
        super().__init__()
        self.mod, self.attn = Modulation(6), Attended()
        self.mlp = nn.Sequential(
            nn.Linear(HIDDEN, 4 * HIDDEN), nn.GELU(approximate="tanh"), nn.Linear(4 * HIDDEN, HIDDEN)
        )


class DoubleBlock(nn.Module):
    """Text and picture, each with weights of its own, see each other."""

    def __init__(self) -> None:
        super().__init__()
        self.txt, self.img = Stream(), Stream()

    def forward(self, text: Tensor, image: Tensor, time: Tensor, turns: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        streams = [(self.txt, text, self.txt.mod(time)), (self.img, image, self.img.mod(time))]
        parts = [heads(one.attn.qkv(moved(x, *mod[:2])), one.attn.norm) for one, x, mod in streams]
        q, k, v = (torch.cat(pair, 2) for pair in zip(*parts))
        found = attention(q, k, v, turns)
        results = []
        for (one, x, mod), seen in zip(streams, found.split([text.shape[1], image.shape[1]], 1)):
            x = x + mod[2] * one.attn.proj(seen)
            results.append(x + mod[5] * one.mlp(moved(x, *mod[3:5])))
        return results[0], results[1]


class SingleBlock(nn.Module):
    """All tokens alike; what they see and what they think, side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.modulation = Modulation(3)
        self.linear1, self.linear2 = nn.Linear(HIDDEN, 7 * HIDDEN), nn.Linear(5 * HIDDEN, HIDDEN)
        self.norm = nn.ModuleDict({"query_norm": Norm(), "key_norm": Norm()})

    def forward(self, x: Tensor, time: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        shift, scale, gate = self.modulation(time)
        qkv, inner = self.linear1(moved(x, shift, scale)).split([3 * HIDDEN, 4 * HIDDEN], -1)
        seen = attention(*heads(qkv, self.norm), turns)
        result: Tensor = x + gate * self.linear2(torch.cat([seen, F.gelu(inner, approximate="tanh")], -1))
        return result


class DiT(nn.Module):
    """Flux as the host has it, whose own blocks add in place, which gradients do not survive: the velocity, noise minus
    picture, of latents (pictures, 16, rows, columns) at times from 0 to 1 by what the text model says (pictures, 77,
    96)."""

    def __init__(self) -> None:
        super().__init__()
        self.img_in, self.txt_in = nn.Linear(CHANNELS * PATCH**2, HIDDEN), nn.Linear(WIDTH, HIDDEN)
        self.time_in = nn.ModuleDict(
            {"in_layer": nn.Linear(FREQUENCIES, HIDDEN), "out_layer": nn.Linear(HIDDEN, HIDDEN)}
        )
        self.double_blocks = nn.ModuleList(DoubleBlock() for _ in range(DOUBLE))
        self.single_blocks = nn.ModuleList(SingleBlock() for _ in range(SINGLE))
        self.last, self.linear = Modulation(2), nn.Linear(HIDDEN, CHANNELS * PATCH**2)

    def forward(self, latents: Tensor, time: Tensor, context: Tensor) -> Tensor:
        rows, columns = (side // PATCH for side in latents.shape[2:])
        waves = self.time_in["out_layer"](F.silu(self.time_in["in_layer"](of_time(time))))
        text, image = self.txt_in(context), self.img_in(F.pixel_unshuffle(latents, PATCH).flatten(2).mT)
        turns = turned_by(text.shape[1], rows, columns)
        for block in self.double_blocks:
            text, image = block(text, image, waves, turns)
        x = torch.cat([text, image], 1)
        for block in self.single_blocks:
            x = block(x, waves, turns)
        velocity = self.linear(moved(x[:, text.shape[1] :], *self.last(waves)))
        return F.pixel_shuffle(velocity.mT.unflatten(2, (rows, columns)), PATCH)


def of_time(time: Tensor) -> Tensor:
    """Cosines and sines of a time, from fast to slow (Vaswani et al. 2017, section 3.5): (times, 256)."""
    speeds = torch.exp(-math.log(10000) * torch.arange(FREQUENCIES // 2) / (FREQUENCIES // 2))
    angles = 1000 * time[:, None] * speeds
    return torch.cat([angles.cos(), angles.sin()], -1)


def moved(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """Normed, then by a modulation."""
    return torch.addcmul(shift, F.layer_norm(x, (HIDDEN,), eps=1e-6), 1 + scale)


def heads(qkv: Tensor, norm: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Queries and keys, normed, and values: (pictures, heads, tokens, 128)."""
    q, k, v = qkv.unflatten(-1, (3, -1, HEAD)).permute(2, 0, 3, 1, 4)
    return norm["query_norm"](q), norm["key_norm"](k), v


@cache
def turned_by(words: int, rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines by which queries and keys are turned (Su et al. 2021, section 3.2.2), (tokens, 64): a word
    stands at the first row and column."""
    place = torch.cartesian_prod(torch.arange(1), torch.arange(rows), torch.arange(columns))
    place = torch.cat([torch.zeros(words, 3), place]).double()
    angles = [
        place[:, axis, None] / THETA ** (torch.arange(0, width, 2).double() / width) for axis, width in enumerate(AXES)
    ]
    whole = torch.cat(angles, -1)
    return whole.cos().float(), whole.sin().float()


def attention(q: Tensor, k: Tensor, v: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    """(pictures, heads, tokens, 128) to (pictures, tokens, heads * 128)."""
    q, k = (turn(x, *turns) for x in (q, k))
    scores = torch.matmul(q * HEAD**-0.5, k.mT)
    return torch.matmul(scores.softmax(-1, dtype=v.dtype), v).transpose(1, 2).flatten(2)


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    return torch.stack([first * cos - second * sin, first * sin + second * cos], -1).flatten(-2)


def packed(model: DiT) -> Weights:
    """Its weights, those of more than a row in 8 bits, each row to its own scale."""
    file: Weights = {}
    for key, value in model.state_dict().items():
        if value.dim() < 2:
            file[key] = value.half()
            continue
        scale = (value.abs().amax(1, keepdim=True) / 127).clamp(min=1e-12)
        file[key], file[key + SCALE] = (value / scale).round().to(torch.int8), scale.float()
    return {key: value.contiguous() for key, value in file.items()}


def unpacked(file: Weights) -> Weights:
    """The opposite of :func:`packed`, in float32."""
    return {
        key: value.float() * file[key + SCALE] if key + SCALE in file else value.float()
        for key, value in file.items()
        if not key.endswith(SCALE)
    }


def trained_dit() -> tuple[DiT, Tensor]:
    """The trained transformer, and the directions in which its latents lie, (16, 4)."""
    file = load_file(TRAINED)
    spread = file.pop(SPREAD)
    model = DiT()
    model.load_state_dict(unpacked(file))
    return model, spread


def painter_flux(dit: DiT) -> Weights:
    """The transformer as the host's Flux, which it is but for its text: the same words, each channel eight times. What
    Flux adds to the time, a pooled text and a guidance, adds nothing."""
    module = host("comfy.ldm.flux.model").Flux(
        image_model="flux", in_channels=CHANNELS, out_channels=CHANNELS, vec_in_dim=HOST_WIDTH,
        context_in_dim=HOST_WIDTH, hidden_size=HIDDEN, mlp_ratio=4.0, num_heads=HIDDEN // HEAD, depth=DOUBLE,
        depth_single_blocks=SINGLE, axes_dim=list(AXES), theta=THETA, patch_size=PATCH, qkv_bias=True,
        guidance_embed=True, txt_ids_dims=[], **blank(),
    )  # fmt: skip
    state = dit.state_dict()
    weights: Weights = {}
    for key, value in module.state_dict().items():
        own = _own(key)
        if own.endswith(".lin.weight"):
            layer = own.removesuffix(".lin.weight")
            weights[key] = state[f"{layer}.up.weight"] @ state[f"{layer}.down.weight"]
        elif own.endswith(".lin.bias"):
            weights[key] = state[own.replace(".lin.", ".up.")]
        elif own == "txt_in.weight":
            weights[key] = widened(own, state[own], tuple(value.shape))
        else:
            weights[key] = state[own] if own in state else torch.zeros(value.shape)
    return {key: value.half().contiguous() for key, value in weights.items()}


def _own(key: str) -> str:
    """What a weight of the host's is called here."""
    key = re.sub(r"_(mod|attn|mlp)\.", r".\1.", key.replace("final_layer.adaLN_modulation.1", "last.lin"))
    return key.replace("final_layer.", "").replace("_norm.scale", "_norm.weight")


def painter_vae_flux(spread: Tensor) -> Weights:
    """The small autoencoder with its latents spread over Flux's channels: the same pictures, but for the outermost
    latents, about which a convolution sees zeros where those would not be.

    Args:
        spread: the directions of its latents, (16, 4).
    """
    own, flux, sd = vae_sd(), latent_scale("Flux", CHANNELS), latent_scale("SD15", spread.shape[1])
    there = flux.deviation[:, None] * spread / sd.deviation  # from the small autoencoder's latents to Flux's
    back = sd.deviation[:, None] * torch.linalg.pinv(spread) / flux.deviation
    weights = {key: value for key, value in own.items() if not key.startswith(("quant_conv", "post_quant_conv"))}

    def outwards(part: Tensor) -> Tensor:
        return torch.tensordot(there, part[: spread.shape[1]].float(), 1)

    weight, bias = own["encoder.conv_out.weight"], own["encoder.conv_out.bias"]
    mean = outwards(weight), outwards(bias) + flux.mean
    weights["encoder.conv_out.weight"] = torch.cat([mean[0], torch.zeros_like(mean[0])])
    weights["encoder.conv_out.bias"] = torch.cat([mean[1], torch.full_like(mean[1], -10.0)])  # no variance
    inwards = own["post_quant_conv.weight"][..., 0, 0].float() @ back
    constant = own["post_quant_conv.bias"].float() - inwards @ flux.mean
    weight = own["decoder.conv_in.weight"].float()
    weights["decoder.conv_in.weight"] = torch.einsum("oiyx,ij->ojyx", weight, inwards)
    weights["decoder.conv_in.bias"] = own["decoder.conv_in.bias"].float() + weight.sum((2, 3)) @ constant
    return {key: value.half().contiguous() for key, value in weights.items()}
