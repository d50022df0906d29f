"""What all that paint are trained with: scenes, the sentences that tell them, and a judge."""

from __future__ import annotations

import argparse
import inspect
from abc import abstractmethod
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from ..drawing import Weights
from ..painter.judge import obeys
from ..painter.scenes import PAIRS, SINGLES, Scene, draw
from ..sd_vae import sensor_taps
from .loop import Training
from .train_decoder import LATENT_FACTOR, Encoder, decode, trained_decoder

BATCH, EMA = 32, 0.9985
ONE_OBJECT = 0.12
SIDE, DRAWN_SIDE = 256, 64
GLANCE, JUDGED = 32, 500


class Painting(Training):
    """Scenes that are drawn as they are needed, in the latents of the small autoencoder.

    Attributes:
        told_nothing: the share of scenes whose sentence is left out.
    """

    snapshot_seconds = 600.0
    told_nothing = 0.1

    def __init__(self, options: argparse.Namespace, rng: torch.Generator, model: nn.Module, average: nn.Module) -> None:
        self.shown, self.held_out = ([scene for scene in PAIRS if scene.held_out == out] for out in (False, True))
        pictures = draw(self.held_out[:8], SIDE, torch.Generator().manual_seed(0)) * 2 - 1
        self.encoder = Encoder({str(number): picture[None] for number, picture in enumerate(pictures)})
        self.decoder = trained_decoder()
        super().__init__(options, rng, model, average, EMA)

    def latents(self, scenes: list[Scene], rng: torch.Generator | None = None) -> Tensor:
        """What the autoencoder makes of the scenes, at the size at which it is sampled."""
        seen = F.conv2d(self.drawn(scenes, rng or self.rng, DRAWN_SIDE), sensor_taps(), stride=2)
        matrix = self.encoder.matrix
        return F.conv2d(seen, matrix[:, :-1], matrix[:, -1, 0, 0]) * LATENT_FACTOR

    @staticmethod
    def drawn(scenes: list[Scene], rng: torch.Generator, side: int) -> Tensor:
        """Pictures from -1 to 1."""
        return draw(scenes, side, rng) * 2 - 1

    def batch(self) -> tuple[Tensor, list[str]]:
        """Latents of scenes, (32, 4, 32, 32), and what is said of them."""
        chances = torch.rand(BATCH, 3, generator=self.rng).tolist()
        pools = [SINGLES if one < ONE_OBJECT else self.shown for one, _, _ in chances]
        scenes = [pool[int(which * len(pool))] for pool, (_, which, _) in zip(pools, chances)]
        left_out = [chance < self.told_nothing for _, _, chance in chances]
        return self.latents(scenes), ["" if left else str(scene) for scene, left in zip(scenes, left_out)]

    @abstractmethod
    def paint(self, scenes: list[Scene], seeds: list[int]) -> Tensor:
        """Latents that the averaged networks sample: (scenes, 4, 32, 32)."""

    @torch.no_grad()
    def obeyed(self, count: int) -> float:
        """The share of pairs held out that are painted as told; each ``count`` has the same sentences and seeds."""
        chosen = [self.held_out[number % len(self.held_out)] for number in range(count)]
        right = 0
        for start in range(0, count, GLANCE):
            scenes = chosen[start : start + GLANCE]
            latents = self.paint(scenes, list(range(start, start + len(scenes))))
            pictures = decode(self.decoder, latents / LATENT_FACTOR).clamp(-1, 1).add(1).div(2).movedim(1, -1).numpy()
            right += sum(obeys(picture, scene) for picture, scene in zip(pictures, scenes))
        return right / count

    def judged(self) -> float:
        """:meth:`obeyed` of a few while it learns, and of 500 in the end."""
        return self.obeyed(JUDGED if self.progress() >= 1 else GLANCE)

    @abstractmethod
    def weights(self) -> Weights:
        """The averaged ones, as they are committed."""

    def write(self) -> str:
        share = self.judged()
        about = {
            "script": f"tools/models/training/{Path(inspect.getfile(type(self))).name}", "seed": str(self.options.seed),
            "steps": str(self.steps), "minutes": f"{self.seconds / 60:.0f}", "obeyed": f"{share:.3f}",
        }  # fmt: skip
        partial = self.options.out.with_name(self.options.out.name + ".partial")
        save_file(self.weights(), partial, about)
        partial.replace(self.options.out)
        return f"{share:.1%} obeyed"
