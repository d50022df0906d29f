"""The model families of the small models, driven in process by the host's own loaders and sampler."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from . import diffusion_models

TOKENS = 40  # of text


@dataclass(frozen=True)
class Family:
    """A small model and what it wants: text width, pooled width, latent channels, a video's latent frames.

    ``file`` is a checkpoint of its own, or the name of a model ``built`` in this process. The last ``padding`` tokens
    of the text are masked. ``uneven`` texts differ in length: the host evaluates them one after the other. ``layers``
    are those of a text encoder whose states the model wants one by one, besides the text itself.
    """

    file: str
    context: int
    pooled: int | None
    channels: int
    frames: int = 0
    reach: int = 8
    names_blocks: bool = True
    built: bool = False
    padding: int = 0
    uneven: bool = False
    guidance: float | None = None
    layers: int = 0

    def load(self) -> Any:
        return diffusion_models.load(self.file) if self.built else _load_model(self.file)

    def latent(self, height: int = 128, width: int = 128, batch: int = 1) -> Tensor:
        in_time = (self.frames,) if self.frames else ()
        return torch.zeros(batch, self.channels, *in_time, height // self.reach, width // self.reach)

    def conditioning(self, seed: int) -> list:
        generator = torch.Generator().manual_seed(seed)
        extra: dict[str, Any] = {}
        if self.pooled:
            extra["pooled_output"] = torch.randn(1, self.pooled, generator=generator) * 0.5
        tokens = TOKENS + seed * self.uneven
        if self.padding:
            extra["attention_mask"] = (torch.arange(tokens) < tokens - self.padding).long()[None]
        if self.guidance is not None:
            extra["guidance"] = self.guidance
        text = torch.randn(1, tokens, self.context, generator=generator) * 0.5
        if self.layers:
            extra["conditioning_llama3"] = torch.randn(1, self.layers, tokens, self.context, generator=generator) * 0.5
        return [[text, extra]]


FAMILIES = {
    "sd15": Family("tiny_sd15_unet", 768, None, 4),
    "sdxl": Family("tiny_sdxl_unet", 2048, 1280, 4),
    "sd3": Family("tiny_sd3", 4096, 2048, 16, names_blocks=False),
    "flux": Family("tiny_flux", 768, 768, 16),
    "flux2": Family("tiny_flux2", 768, 768, 128, reach=16),
    "wan21": Family("tiny_wan21", 4096, None, 16, frames=2),
    "ltxv": Family("tiny_ltxv", 4096, None, 128, frames=2, reach=32, names_blocks=False, padding=10),
    # ignores the pooled text, which older hosts ask for all the same
    "chroma": Family("chroma", 256, 768, 16, built=True, guidance=0.0),
    "qwen_image": Family("qwen_image", 256, None, 16, frames=1, built=True, padding=10),
    "z_image": Family("z_image", 256, None, 16, built=True, uneven=True),
    "lumina2": Family("lumina2", 256, None, 16, built=True, uneven=True),
    "hunyuan_video": Family("hunyuan_video", 256, 768, 16, frames=2, built=True, padding=10, uneven=True, guidance=6.0),
    "hidream": Family("hidream", 256, 256, 16, names_blocks=False, built=True, layers=4),
    "aura_flow": Family("aura_flow", 2048, None, 4, names_blocks=False, built=True),
    "cosmos_predict2": Family("cosmos_predict2", 256, None, 16, frames=2, names_blocks=False, built=True),
}

VAES = {"sd": 4, "flux": 16, "flux2": 128, "wan21": 16, "ltx": 128}


@cache
def _load_model(file: str) -> Any:
    import nodes

    return nodes.UNETLoader().load_unet(f"{file}.safetensors", "default")[0]


@cache
def load_vae(name: str) -> Any:
    import nodes

    return nodes.VAELoader().load_vae(f"tiny_vae_{name}.safetensors")[0]


def sample(model: Any, family: Family, *, steps: int = 2, cfg: float = 3.0, latent: Tensor | None = None) -> Tensor:
    """Latents of the host's own KSampler."""
    import nodes

    start = {"samples": family.latent() if latent is None else latent}
    positive, negative = family.conditioning(1), family.conditioning(2)
    (result,) = nodes.KSampler().sample(model, 7, steps, cfg, "euler", "normal", positive, negative, start)
    return result["samples"]


@cache
def stock_latents(name: str) -> Tensor:
    """What :func:`sample` makes of a family without us."""
    return sample(FAMILIES[name].load(), FAMILIES[name])


def each_once(*choices: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Every choice with the first of the others: for what does not depend on how they are combined."""
    first = tuple(some[0] for some in choices)
    others = [(*first[:at], one, *first[at + 1 :]) for at, some in enumerate(choices) for one in some[1:]]
    return [first, *others]


def psnr(result: Tensor, reference: Tensor) -> float:
    """Peak signal to noise ratio in dB, the peak being the reference's range."""
    error = (result.double() - reference.double()).square().mean().item()
    span = (reference.max() - reference.min()).item()
    return math.inf if error == 0 else 10 * math.log10(span**2 / error)
