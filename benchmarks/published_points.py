"""Four published measurements of Stable Diffusion 1.5 in diffusers, predicted without a GPU.

    python benchmarks/published_points.py

It runs diffusers' own modules, without weights (the extra ``published`` of pyproject.toml); where they are missing it
says what to install. ComfyUI is not needed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from _harness import load_package, machine, publish
from _sections import Section
from torch import Tensor, nn

try:
    import diffusers
except ImportError as error:
    raise SystemExit(f"diffusers is missing ({error}): {sys.executable} -m pip install diffusers==0.42.1") from error

load_package()

from headroom.memory.prediction import (  # noqa: E402
    Card,
    Prediction,
    Workspaces,
    fake_copy,
    fake_mode,
    named_card,
    predict,
)

GB = 2**30
HALF = torch.float16
INTRODUCTION = """# Published points

Somebody else's measurements: <https://github.com/dheepakshakthi/vRam_estimation_for_diffusion_model> gives a formula
for the memory of Stable Diffusion 1.5, and beside it `torch.cuda.max_memory_allocated()` of diffusers' whole
image-to-image pipeline in float16, at four sizes. Three of the four are in its README; the fourth, 2048 x 2048, is in
the notebook's saved output. The notebook ran on Google Colab and does not say on which GPU: a T4 (sm75, 15 GB) is
assumed.

The predictions are those of `memory/prediction` on diffusers' own `UNet2DConditionModel` and `AutoencoderKL`, without
data and without a GPU: the encode, a step with guidance (batch 2), the decode; the most of the three counts. Beside
them lie the weights of all four models that the pipeline keeps on the card, and what cuBLAS keeps. **No constant was
fitted to these points**, but of the two rules for what a convolution holds inside one was chosen with them in sight:

* **rule 1, chosen before the points were seen**: cuDNN copies input, weight and result into another layout, so as many
  bytes again, for tensors whose channels are not last already (`Workspaces(channels_last=False)`);
* **rule 2, chosen after they were seen**: the same for every convolution. This is what Headroom predicts with, so these
  points are no independent test of it."""
CLOSING = """Sizes are cut to multiples of 8, as diffusers does. The step's scheduler, and the latents it keeps, are
left out: a few MB. cuDNN chooses a kernel per shape, and what that kernel holds is its own: only a measurement on the
card knows it, which is what `cli/calibrate.py` is for. Nothing here was measured on a GPU by us."""


@dataclass(frozen=True)
class Point:
    """A published measurement, in GiB, beside what the published formula said."""

    width: int
    height: int
    measured: float
    formula: float

    def off(self, predicted: float) -> float:
        return predicted / self.measured - 1


# As the notebook printed them.
POINTS = (
    Point(396, 380, 2.92, 2.29),
    Point(800, 534, 3.54, 3.61),
    Point(1800, 1200, 9.06, 39.96),
    Point(2048, 2048, 12.09, 143.94),
)
USED = "rule 2 (after)"
RULES = {"rule 1 (before)": Workspaces(channels_last=False), USED: Workspaces()}
# The configurations of stable-diffusion-v1-5, where they are not diffusers' defaults.
UNET = {
    "sample_size": 64, "cross_attention_dim": 768, "attention_head_dim": 8, "layers_per_block": 2,
    "block_out_channels": (320, 640, 1280, 1280),
    "down_block_types": (*["CrossAttnDownBlock2D"] * 3, "DownBlock2D"),
    "up_block_types": ("UpBlock2D", *["CrossAttnUpBlock2D"] * 3),
}  # fmt: skip
VAE = {
    "sample_size": 512, "latent_channels": 4, "layers_per_block": 2, "block_out_channels": (128, 256, 512, 512),
    "down_block_types": ("DownEncoderBlock2D",) * 4, "up_block_types": ("UpDecoderBlock2D",) * 4,
}  # fmt: skip
# Parameters of what else the pipeline keeps on the card: CLIP ViT-L/14's text model, and the safety checker, which is
# its vision model with a projection and the embeddings of 20 concepts.
IDLE = {"text encoder": 123_060_480, "safety checker": 303_981_588}
TOKENS, TEXT_WIDTH = 77, 768

Work = Callable[[nn.Module, Card, int, int], object]
Stages = dict[str, Prediction]
ByRule = dict[str, Stages]


def decode(vae: Any, card: Card, height: int, width: int) -> Tensor:
    pixels: Tensor = vae.decode(_half(card, 1, 4, height // 8, width // 8)).sample
    return pixels


def encode(vae: Any, card: Card, height: int, width: int) -> Tensor:
    latent: Tensor = vae.encode(_half(card, 1, 3, height, width)).latent_dist.sample()
    return latent


def step(unet: Any, card: Card, height: int, width: int) -> Tensor:
    """With guidance: two of each."""
    latent, text = _half(card, 2, 4, height // 8, width // 8), _half(card, 2, TOKENS, TEXT_WIDTH)
    noise: Tensor = unet(latent, torch.empty((), dtype=torch.int64, device=card.device), text).sample
    return noise


def _half(card: Card, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=HALF, device=card.device)


@dataclass(frozen=True)
class Pipeline:
    """The models of diffusers' pipeline, on the meta device."""

    unet: nn.Module
    vae: nn.Module

    @classmethod
    def without_weights(cls) -> Pipeline:
        with torch.device("meta"):
            made = diffusers.UNet2DConditionModel(**UNET), diffusers.AutoencoderKL(**VAE)
        return cls(*(module.half().eval() for module in made))

    def stages(self, card: Card, workspaces: Workspaces, height: int, width: int) -> Stages:
        works: Mapping[str, tuple[nn.Module, Work]] = {
            "encode": (self.vae, encode), "UNet step": (self.unet, step), "decode": (self.vae, decode),
        }  # fmt: skip
        return {
            name: self._stage(module, work, card, workspaces, height, width) for name, (module, work) in works.items()
        }

    def _stage(
        self, module: nn.Module, work: Work, card: Card, workspaces: Workspaces, height: int, width: int
    ) -> Prediction:
        """One of the models runs, and the weights of all are there."""
        mode = fake_mode()
        running = fake_copy(module, mode, card.device)
        resident = [fake_copy(other, mode, card.device) for other in (self.unet, self.vae) if other is not module]
        with mode:
            idle = [_half(card, count) for count in IDLE.values()]
        weights = [*idle, *(p for one in (running, *resident) for p in one.parameters())]
        return predict(mode, card, weights, lambda tracker: work(running, card, height, width), workspaces)


def cell(point: Point, gib: float) -> str:
    return f"{gib:.2f} ({point.off(gib):+.1%})"


def size(point: Point) -> str:
    return f"{point.width} x {point.height}"


def follow(pipeline: Pipeline, card: Card, point: Point) -> ByRule:
    """The stages by each rule; diffusers cuts a picture to multiples of 8."""
    height, width = point.height // 8 * 8, point.width // 8 * 8
    return {rule: pipeline.stages(card, workspaces, height, width) for rule, workspaces in RULES.items()}


def most(stages: Stages) -> str:
    """The stage that takes most."""
    return max(stages, key=lambda name: stages[name].peak)


def peak_gib(stages: Stages) -> float:
    return stages[most(stages)].peak / GB


def point_row(point: Point, found: ByRule) -> list[str]:
    live = max(stage.weights + stage.live + stage.constant for stage in found[USED].values()) / GB
    cells = [cell(point, gib) for gib in (live, *(peak_gib(stages) for stages in found.values()), point.formula)]
    return [size(point), f"{point.measured:.2f}", *cells, " / ".join(dict.fromkeys(map(most, found.values())))]


def measure(pipeline: Pipeline, card: Card) -> Section:
    found = {point: follow(pipeline, card, point) for point in POINTS}
    section, goal = Section(), f"{len(POINTS)} of {len(POINTS)}"
    for rule in RULES:
        errors = {point: point.off(peak_gib(stages[rule])) for point, stages in found.items()}
        nearer = sum(abs(error) < abs(point.off(point.formula)) for point, error in errors.items())
        section.goal(f"{rule}: nearer than the formula", goal, f"{nearer} of {len(POINTS)}", nearer == len(POINTS))
    head = ("size", "measured, GiB", "tensors alone", *RULES, "the published formula", "most in")
    section.table(head, [point_row(point, by_rule) for point, by_rule in found.items()])
    section.parts.append(said_of_the_worst(errors))
    used = {point: by_rule[USED] for point, by_rule in found.items()}
    rows = [[size(point), *(f"{stage.peak / GB:.2f}" for stage in stages.values())] for point, stages in used.items()]
    section.table((f"stages by {USED}, GiB", *used[POINTS[0]]), rows)
    one = used[POINTS[0]]["decode"]
    constant = f"{one.weights / GB:.3f} GiB of weights and {one.constant / 2**20:.3f} MiB of cuBLAS's"
    section.parts.append(f"In every prediction: {constant}.")
    return section


def said_of_the_worst(errors: Mapping[Point, float]) -> str:
    """Of the errors by the rule that Headroom uses, which is the last."""
    point = max(errors, key=lambda one: abs(errors[one]))
    missing = -errors[point] * point.measured
    others = max(abs(error) for one, error in errors.items() if one is not point)
    return (
        f"{size(point)} is met worst by {USED}: it took {abs(missing):.2f} GiB {'more' if missing > 0 else 'less'} than"
        f" predicted, and why is not known. The others are off by {others:.1%} at most."
    )


def main(arguments: Sequence[str] = ()) -> None:
    if arguments:
        raise SystemExit("published_points takes no arguments")
    start, card = time.time(), named_card("sm75", 15)
    body = measure(Pipeline.without_weights(), card).markdown()
    where = f"Predicted on: {machine()}, diffusers {diffusers.__version__}; {time.time() - start:.0f} s."
    publish("published_points", "\n\n".join([INTRODUCTION, body, CLOSING, where]))


if __name__ == "__main__":
    main(sys.argv[1:])
