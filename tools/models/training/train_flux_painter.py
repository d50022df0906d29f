"""Train the small Flux that paints scenes of coloured shapes, on pictures drawn as it goes.

    python3 -m tools train-flux-painter [--steps 6000] [--minutes 60] [--bf16] [--threads 2]

Text comes from the text model of the small Stable Diffusion (`train-painter`), which stays as it is. What is learned
is the velocity of a straight path from picture to noise (Lipman et al. 2022; Liu et al. 2022), at times as Flux's
sampler takes them, a little nearer to the noise, and one in twenty at noise alone (Esser et al. 2024, section 3.1, on
why times are chosen so). Four of sixteen channels' directions hold a picture; their errors count twice.

How it is judged: pairs held out, each with a seed of its own, 20 steps of Euler, no second prompt, as a graph of Flux
runs; through the autoencoder and `painter.judge`.
"""

from __future__ import annotations

import argparse
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..drawing import Weights
from ..from_host import host
from ..painter.dit import SPREAD, TRAINED, DiT, packed
from ..painter.networks import trained_text
from ..painter.scenes import PAIRS, SINGLES, Scene
from ..painter.words import Words
from .loop import parse
from .painting import BATCH, SIDE, Painting

CONTRAST, LENGTH = 0.85, 2.0  # of previews, and of a latent of unit size
NEARER, NOTHING = 4.0, 0.05  # of times to the noise, and the share of times at noise alone
SAMPLER_STEPS = 20


def begin(module: nn.Module, rng: torch.Generator) -> None:
    """Weights to train from: unit variance is kept, and each branch begins with nothing to add."""
    for name, value in module.named_parameters():
        with torch.no_grad():
            if name.endswith(("up.weight", "bias")) or name == "linear.weight":
                value.zero_()
            elif value.dim() > 1:
                value.copy_(torch.randn(value.shape, generator=rng) * value.shape[1] ** -0.5)


def spread(seen: Tensor, colours: Tensor) -> Tensor:
    """Directions of Flux's latents for those of the small autoencoder, (16, 4), at right angles and of one length, in
    which Flux's quick preview shows the colours.

    Args:
        seen: latents of pictures, (pictures, 4, rows, columns).
        colours: what they show, (pictures, 3, rows, columns) from -1 to 1.
    """
    factors = torch.tensor(host("comfy.latent_formats").Flux().latent_rgb_factors)
    flat = [x.movedim(1, 0).flatten(1) for x in (seen, colours)]
    known = torch.cat([flat[0], torch.ones_like(flat[0][:1])])
    told = torch.linalg.lstsq(known.T, flat[1].T).solution[:-1]  # colours by latents, (4, 3)
    shown = CONTRAST * factors @ torch.linalg.inv(factors.T @ factors) @ told.T
    missing = LENGTH**2 * torch.eye(4) - shown.T @ shown
    values, directions = torch.linalg.eigh(missing)
    unseen = torch.linalg.svd(factors.T).Vh[3:7].T  # four that the preview does not look at
    spread_out: Tensor = shown + unseen @ (directions * values.clamp(min=0).sqrt() @ directions.T)
    return spread_out


class FluxPainterTraining(Painting):
    """Scenes, what the text model says of them, and noise."""

    told_nothing = 0.05

    def __init__(self, options: argparse.Namespace) -> None:
        rng = torch.Generator().manual_seed(options.seed)
        text, known = trained_text()
        words = Words(known)
        sentences = ["", *map(str, (*PAIRS, *SINGLES))]
        with torch.no_grad():
            contexts = torch.cat([text(words(sentences[at : at + 256])) for at in range(0, len(sentences), 256)])
        self.contexts = dict(zip(sentences, contexts))
        dit = DiT()
        begin(dit, rng)
        super().__init__(options, rng, dit, DiT())
        seen = self.latents(self.shown[::9], torch.Generator().manual_seed(0))
        pictures = self.drawn(self.shown[::9], torch.Generator().manual_seed(0), SIDE // 8)
        self.spread = spread(seen, pictures)

    def context(self, sentences: list[str]) -> Tensor:
        return torch.stack([self.contexts[sentence] for sentence in sentences])

    def loss(self) -> Tensor:
        latents, sentences = self.batch()
        picture = torch.einsum("oi,nihw->nohw", self.spread, latents)
        noise = torch.randn(picture.shape, generator=self.rng)
        share, alone = torch.rand(2, BATCH, generator=self.rng)
        time = torch.where(alone < NOTHING, 1.0, NEARER * share / (1 + (NEARER - 1) * share))
        noisy = torch.lerp(picture, noise, time.view(-1, 1, 1, 1))
        with torch.autocast("cpu", torch.bfloat16, enabled=self.options.bf16):
            velocity = self.model(noisy, time, self.context(sentences))
        error = velocity.float() - (noise - picture)
        told = torch.einsum("oi,nohw->nihw", self.spread / LENGTH, error)
        return error.square().mean() + told.square().mean()

    @torch.no_grad()
    def paint(self, scenes: list[Scene], seeds: list[int]) -> Tensor:
        context, side = self.context([str(scene) for scene in scenes]), SIDE // 8

        def denoise(x: Tensor, sigma: Tensor, **_: Any) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16, enabled=self.options.bf16):
                velocity = self.average(x, sigma, context).float()
            return x - sigma.view(-1, 1, 1, 1) * velocity

        sampling = host("comfy.model_sampling").ModelSamplingFlux()
        sigmas = host("comfy.samplers").simple_scheduler(sampling, SAMPLER_STEPS)
        noise = [torch.randn(16, side, side, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
        painted = host("comfy.k_diffusion.sampling").sample_euler(denoise, torch.stack(noise), sigmas, disable=True)
        return torch.einsum("oi,nohw->nihw", self.spread / LENGTH**2, painted)

    def weights(self) -> Weights:
        return packed(cast(DiT, self.average)) | {SPREAD: self.spread.contiguous()}


def main() -> None:
    FluxPainterTraining(parse("train-flux-painter", (__doc__ or "").partition("\n")[0], TRAINED, 6000, 1e-3)).run()


if __name__ == "__main__":
    main()
