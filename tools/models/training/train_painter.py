"""Train the small Stable Diffusion that paints scenes of coloured shapes, on pictures drawn as it goes.

    python3 -m tools train-painter [--steps 6000] [--minutes 60] [--bf16] [--threads 2]

Text model and UNet learn together, in the latents of the small autoencoder (`sd_vae`), whose encoder is an affine map
of what it sees. The noise is Stable Diffusion's, and so is what is predicted. What lies where is decided while nearly
all is noise, and three things make that be read from the sentence:

- Most times are drawn from the noisy end, and an error counts as it would in the velocity, v = alpha * noise - sigma *
  picture (Salimans and Ho 2022, section 4). With uniform times and at most ten times an error, colours and shapes were
  learned and relations were not.
- A sampler begins with noise alone, but the last of Stable Diffusion's times leave 7 % of a picture, enough to see
  where large things are. (Lin et al. 2024 mend the times instead, which the host fixes.) Half of the noisiest are given
  no picture at all, and asked for the same: without, a third of the relations was left to chance.
- One sentence in ten is left out, so that guidance has something to lead away from (Ho and Salimans 2022).

A tenth of all pairs is never shown.

How it is judged: pairs held out, each with a seed of its own, 20 steps of DPM++ 2M and a guidance of 3, through the
autoencoder and `painter.judge`.

The committed weights: 6,880 steps in 93 minutes, two threads, bfloat16, in stages, the recipe becoming what is above:
uniform times to step 2,231, the noisy end to 5,868, then pictures left out. It was not run from the start as it is.
98.2 % of 500 were obeyed.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from ..drawing import Weights
from ..from_host import host
from ..painter.networks import CHANNELS, TEXT, TRAINED, UNET, WIDTH, WORDS, TextModel, begin, unet_module
from ..painter.scenes import PAIRS, SINGLES, Scene
from ..painter.words import Words
from .loop import parse
from .painting import BATCH, SIDE, Painting

MOST_WEIGHT = 200.0
NOISY, NOISY_FROM = 0.7, 0.9  # the share of times drawn from the noisy end, and where that begins
NOTHING, NOTHING_FROM = 0.5, 0.96  # the share of pictures that are left out there
PLAIN_UP_TO = 1 << 15  # scores of a head
GUIDANCE, SAMPLER_STEPS = 3.0, 20


def attention(q: Tensor, k: Tensor, v: Tensor, heads: int, *_: Any, **__: Any) -> Tensor:
    """The host's signature. Heads as narrow as these are slow in a fused kernel on a CPU, least so in float32."""
    q, k, v = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (q, k, v))
    if q.shape[2] * k.shape[2] > PLAIN_UP_TO:
        mixed = F.scaled_dot_product_attention(q.float(), k.float(), v.float()).to(q.dtype)
    else:
        scores = torch.matmul(q * q.shape[-1] ** -0.5, k.transpose(2, 3))
        mixed = torch.matmul(scores.softmax(-1, dtype=q.dtype), v)
    return mixed.transpose(1, 2).flatten(-2)


class Painter(nn.Module):
    """Text model and UNet; predicts the noise in latents (scenes, 4, 32, 32)."""

    def __init__(self, words: int, rng: torch.Generator) -> None:
        super().__init__()
        self.text = TextModel(words)
        where = {"device": "cpu", "dtype": torch.float32, "operations": host("comfy.ops").disable_weight_init}
        self.unet = unet_module(CHANNELS, WIDTH, **where)
        begin(self.text, rng)
        begin(self.unet, rng)

    def forward(self, noisy: Tensor, time: Tensor, numbers: Tensor) -> Tensor:
        unique, back = torch.unique(numbers, dim=0, return_inverse=True)
        predicted: Tensor = self.unet(noisy, time, context=self.text(unique)[back])
        return predicted


class PainterTraining(Painting):
    """Scenes, the sentences that tell them, and noise."""

    def __init__(self, options: argparse.Namespace) -> None:
        layers = host("comfy.ldm.modules.attention")
        layers.optimized_attention = layers.optimized_attention_masked = attention
        rng = torch.Generator().manual_seed(options.seed)
        self.words = Words(sentences=["", *map(str, (*PAIRS, *SINGLES))])
        self.sampling = host("comfy.model_sampling").ModelSamplingDiscrete()
        self.alphas = 1 / (1 + self.sampling.sigmas**2)
        number = len(self.words.known)
        painter = Painter(number, rng)
        if options.begin:
            weights = load_file(options.begin)
            painter.load_state_dict({key: value.float() for key, value in weights.items() if key != WORDS})
        super().__init__(options, rng, painter, Painter(number, rng))

    def loss(self) -> Tensor:
        latents, sentences = self.batch()
        share = torch.rand(BATCH, generator=self.rng)
        noisy_end = torch.rand(BATCH, generator=self.rng) < NOISY
        share = torch.where(noisy_end, NOISY_FROM + (1 - NOISY_FROM) * share, share)
        time = (share * len(self.alphas)).long().clamp(max=len(self.alphas) - 1)
        alpha = self.alphas[time].view(-1, 1, 1, 1)
        noise = torch.randn(latents.shape, generator=self.rng)
        noisy = alpha.sqrt() * latents + (1 - alpha).sqrt() * noise
        # As a sampler begins: of nothing but noise the same is asked, that what is left without it is the picture.
        nothing = (torch.rand(BATCH, generator=self.rng) < NOTHING) & (time >= NOTHING_FROM * len(self.alphas))
        noisy = torch.where(nothing.view(-1, 1, 1, 1), noise, noisy)
        noise = (noisy - alpha.sqrt() * latents) / (1 - alpha).sqrt()
        with torch.autocast("cpu", torch.bfloat16, enabled=self.options.bf16):
            predicted = self.model(noisy, time.float(), self.words(sentences))
        error = (predicted.float() - noise).square().mean((1, 2, 3))
        return (error * (1 / alpha.flatten()).clamp(max=MOST_WEIGHT)).mean()

    @torch.no_grad()
    def paint(self, scenes: list[Scene], seeds: list[int]) -> Tensor:
        """Latents that the averaged networks sample: (scenes, 4, 32, 32)."""
        numbers = self.words([str(scene) for scene in scenes] + [""] * len(scenes))

        def denoise(x: Tensor, sigma: Tensor, **_: Any) -> Tensor:
            time = self.sampling.timestep(sigma).float()
            given = x / (sigma.view(-1, 1, 1, 1) ** 2 + 1).sqrt()
            with torch.autocast("cpu", torch.bfloat16, enabled=self.options.bf16):
                noise = self.average(torch.cat([given, given]), torch.cat([time, time]), numbers).float()
            told, untold = noise.chunk(2)
            return x - sigma.view(-1, 1, 1, 1) * (untold + GUIDANCE * (told - untold))

        sampler = host("comfy.k_diffusion.sampling")
        ends = float(self.sampling.sigma_min), float(self.sampling.sigma_max)
        sigmas = sampler.get_sigmas_karras(SAMPLER_STEPS, *ends)
        side = SIDE // 8
        noise = [torch.randn(4, side, side, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
        painted: Tensor = sampler.sample_dpmpp_2m(denoise, torch.stack(noise) * sigmas[0], sigmas, disable=True)
        return painted

    def weights(self) -> Weights:
        weights, average = {WORDS: torch.tensor(self.words.known)}, cast(Painter, self.average)
        for prefix, module in ((TEXT, average.text), (UNET, average.unet)):
            weights |= {prefix + key: value.half().contiguous() for key, value in module.state_dict().items()}
        return weights


def main() -> None:
    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--begin", type=Path, metavar="FILE", help="weights to begin with, where there is no state")

    PainterTraining(parse("train-painter", (__doc__ or "").partition("\n")[0], TRAINED, 6000, 1e-3, add)).run()


if __name__ == "__main__":
    main()
