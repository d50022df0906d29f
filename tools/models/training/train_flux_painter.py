"""Train the small Flux that paints scenes of coloured shapes, on pictures drawn as it goes.

    python3 -m tools train-flux-painter [--steps 7500] [--minutes 70] [--bf16] [--threads 2] [--compile]

Text comes from the text model of the small Stable Diffusion (`train-painter`), which stays as it is. What is learned
is the velocity of a straight path from picture to noise (Lipman et al. 2022; Liu et al. 2022), at times as Flux's
sampler takes them, and one in twenty at noise alone (Esser et al. 2024, section 3.1, on why times are chosen so).

- Four of the sixteen channels' directions hold a picture. The others are neither seen nor moved, and keep the noise
  that they begin with, which no autoencoder and no preview looks at: to learn them too took much of a network this
  narrow, and after 3,363 steps one sentence in twelve was obeyed.
- The matrices of the blocks are moved by Muon (Jordan et al. 2024, scaled as by Liu et al. 2025), all else by AdamW:
  after 150 steps the error is 0.61 to 0.70, where by AdamW alone it is 0.83.

Without guidance every third shape was another than told, with a guidance of 2 (Ho and Salimans 2022) every tenth. A
graph of Flux has no second prompt, and Flux.1-dev was taught to do without (Meng et al. 2023): so is this one, in a
second training (`--teacher`) that begins with the first one's weights and learns what those say with guidance.

How it is judged: pairs held out, each with a seed of its own, 20 steps of Euler, no second prompt, as a graph of Flux
runs; through the autoencoder and `painter.judge`.

The committed weights: 4,855 steps in 50 minutes, two threads, bfloat16, compiled, in two pieces (the rate fell by 70
minutes in the first 30); 70.8 % of 500 were obeyed. Then 431 steps in 8 minutes with those as teacher, at a rate of
1e-3: 94.2 %.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..drawing import Weights
from ..from_host import host
from ..painter.dit import PATCH, SPREAD, TRAINED, DiT, packed
from ..painter.networks import trained_text
from ..painter.scenes import PAIRS, SINGLES, Scene
from ..painter.words import Words
from .loop import adamw, parse
from .painting import BATCH, SIDE, Painting

GUIDANCE = 2.0
CONTRAST, FOURTH = 0.85, 1.2  # of previews, and the length of the direction that they do not show
NEARER, NOTHING = 3.0, 0.05  # of times to the noise, and the share of times at noise alone
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
    """Directions of Flux's latents for those of the small autoencoder, (16, 4): all that Flux's quick preview looks at,
    in which it shows the colours, and one to which it is blind.

    Args:
        seen: latents of pictures, (pictures, 4, rows, columns).
        colours: what they show, (pictures, 3, rows, columns) from -1 to 1.
    """
    factors = torch.tensor(host("comfy.latent_formats").Flux().latent_rgb_factors)
    flat = [x.movedim(1, 0).flatten(1) for x in (seen, colours)]
    known = torch.cat([flat[0], torch.ones_like(flat[0][:1])])
    told = torch.linalg.lstsq(known.T, flat[1].T).solution[:-1]  # colours by latents, (4, 3)
    shown = CONTRAST * factors @ torch.linalg.inv(factors.T @ factors) @ told.T
    blind, unshown = torch.linalg.svd(factors.T).Vh[3], torch.linalg.svd(shown).Vh[3]
    spread_out: Tensor = shown + FOURTH * torch.outer(blind, unshown)
    return spread_out


def taught_by(state: Path) -> DiT:
    """The averaged weights of an earlier training's state."""
    teacher = DiT()
    teacher.load_state_dict(torch.load(state)["average"])
    return teacher


def kept_within(model: DiT, basis: Tensor) -> DiT:
    """The same of latents that lie in some directions, at right angles, (16, 4); others it neither sees nor moves."""
    within = torch.kron(basis @ basis.T, torch.eye(PATCH**2))
    kept = DiT()
    kept.load_state_dict(model.state_dict())
    with torch.no_grad():
        kept.img_in.weight.copy_(model.img_in.weight @ within)
        kept.linear.weight.copy_(within @ model.linear.weight)
        kept.linear.bias.copy_(within @ model.linear.bias)
    return kept


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
        self.velocity: Callable[..., Tensor] = torch.compile(dit) if options.compile else dit
        self.teacher = taught_by(options.teacher) if options.teacher else None
        if self.teacher:
            dit.load_state_dict(self.teacher.state_dict())
        super().__init__(options, rng, dit, DiT())
        seen = self.latents(self.shown[::9], torch.Generator().manual_seed(0))
        pictures = self.drawn(self.shown[::9], torch.Generator().manual_seed(0), SIDE // 8)
        self.spread = spread(seen, pictures)
        self.basis = torch.linalg.qr(self.spread).Q

    def optimized(self) -> dict[str, torch.optim.Optimizer]:
        inner: list[nn.Parameter] = []
        others: list[nn.Parameter] = []
        for name, value in self.model.named_parameters():
            (inner if value.dim() == 2 and "_blocks." in name and "mod" not in name else others).append(value)
        muon = torch.optim.Muon(inner, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
        return {"muon": muon, "adamw": adamw(others)}

    def context(self, sentences: list[str]) -> Tensor:
        return torch.stack([self.contexts[sentence] for sentence in sentences])

    def loss(self) -> Tensor:
        latents, sentences = self.batch()
        picture = torch.einsum("oi,nihw->nohw", self.spread, latents)
        noise = torch.einsum("oi,nihw->nohw", self.basis, torch.randn(latents.shape, generator=self.rng))
        share, alone = torch.rand(2, BATCH, generator=self.rng)
        time = torch.where(alone < NOTHING, 1.0, NEARER * share / (1 + (NEARER - 1) * share))
        noisy = torch.lerp(picture, noise, time.view(-1, 1, 1, 1))
        with torch.autocast("cpu", torch.bfloat16, enabled=self.options.bf16):
            velocity = self.velocity(noisy, time, self.context(sentences))
            goal = noise - picture if self.teacher is None else self.guided(noisy, time, sentences)
        error = velocity.float() - goal
        return torch.einsum("oi,nohw->nihw", self.basis, error).square().mean()

    @torch.no_grad()
    def guided(self, noisy: Tensor, time: Tensor, sentences: list[str]) -> Tensor:
        """What the teacher says, led away from what it says without a sentence."""
        assert self.teacher is not None
        told, untold = (
            self.teacher(noisy, time, self.context(said)).float() for said in (sentences, [""] * len(sentences))
        )
        return untold + GUIDANCE * (told - untold)

    @torch.no_grad()
    def paint(self, scenes: list[Scene], seeds: list[int]) -> Tensor:
        context, side = self.context([str(scene) for scene in scenes]), SIDE // 8
        network = kept_within(cast(DiT, self.average), self.basis)

        def denoise(x: Tensor, sigma: Tensor, **_: Any) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16, enabled=self.options.bf16):
                velocity = network(x, sigma, context).float()
            return x - sigma.view(-1, 1, 1, 1) * velocity

        sampling = host("comfy.model_sampling").ModelSamplingFlux()
        sigmas = host("comfy.samplers").simple_scheduler(sampling, SAMPLER_STEPS)
        noise = [torch.randn(16, side, side, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
        painted = host("comfy.k_diffusion.sampling").sample_euler(denoise, torch.stack(noise), sigmas, disable=True)
        return torch.einsum("io,nohw->nihw", torch.linalg.pinv(self.spread), painted)

    def weights(self) -> Weights:
        return packed(kept_within(cast(DiT, self.average), self.basis)) | {SPREAD: self.spread.contiguous()}


def options_of_flux(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--teacher", type=Path, help="state of a training, whose guided velocity is learned")
    parser.add_argument("--compile", action="store_true", help="a fifth faster, where there is a C++ compiler")


def main() -> None:
    summary = (__doc__ or "").partition("\n")[0]
    FluxPainterTraining(parse("train-flux-painter", summary, TRAINED, 7500, 6e-3, options_of_flux)).run()


if __name__ == "__main__":
    main()
