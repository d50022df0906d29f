"""Samplings of one model within a budget on the emulated card: ours, and the host's own streaming beside it.

The models are small and compute little, so the card is made slow in proportion: a step's transfer of all weights takes
0.1 s, and its compute that over a card's ratio of the two. What a kernel takes at least is then as small a share of a
step as it is for a real model.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass
from functools import cache
from typing import Any

import comfy.model_management
import torch
from comfy.patcher_extension import WrappersMP
from torch import Tensor

from headroom.host.offload.block_offload import apply_offload
from headroom.host.offload.budget import budget_of
from headroom.tools.card.step_clock import StepClock, within_peak

from ..host.drawn import drawn
from ..host.families import FAMILIES
from .conftest import Card

GB = 2**30
COPY_SECONDS = 0.1  # of all weights
TOKENS = 16  # of text
STEPS = 5


@dataclass(frozen=True)
class Case:
    """A family's model with so many blocks in each of its lists, where these can be repeated."""

    family: str
    depth: int = 0

    def __str__(self) -> str:
        return f"{self.family}-{self.depth}" if self.depth else self.family


@cache
def model_of(case: Case) -> Any:
    return drawn(case.family, 0.02, case.depth, dtype=torch.float32)


@dataclass(frozen=True)
class Ran:
    """What a sampling took.

    Attributes:
        seconds: of the virtual clock, with loading.
        step: seconds of a step when all is settled.
        copied, computed: seconds of a step in which the link and the processors were busy.
        peak: bytes allocated at most.
        weights: bytes that the host has loaded.
        latents: the result.
    """

    seconds: float
    step: float
    copied: float
    computed: float
    peak: int
    weights: int
    latents: Tensor

    @property
    def floor(self) -> float:
        """No step that copies and computes as much is faster."""
        return max(self.copied, self.computed)


def set_card(card: Card, case: Case, ratio: float, **settings: Any) -> None:
    """Transfer of all weights takes ``ratio`` times as long as a step's compute does when all are resident.

    Small models have too few tiles for the waves of a real one to be in proportion.
    """
    weights = model_of(case).model_size()
    card.set(
        h2d=weights / COPY_SECONDS / 1e9,
        d2h=25,
        hbm=1e3,
        tflops=operations(case) * ratio / COPY_SECONDS / 1e12,
        waves=0,
        **settings,
    )


@cache
def operations(case: Case) -> float:
    """Of a step, about."""
    return 2.0 * TOKENS * sum(p.numel() for p in model_of(case).model.diffusion_model.parameters() if p.ndim > 1)


def ran(card: Card, case: Case, model: Any, steps: int = STEPS) -> Ran:
    """Samples from nothing loaded."""
    forgotten()
    card.reset()
    before, start, clock = card.allocated, card.seconds, StepClock(lambda: card.stats)
    timed = model.clone()
    timed.add_wrapper_with_key(WrappersMP.APPLY_MODEL, "clock", clock)
    latents = sampled(case, timed, steps)
    torch.cuda.synchronize()
    return Ran(card.seconds - start, *clock.per_call(), card.peak - before, int(timed.loaded_size()), latents)


def sampled(case: Case, model: Any, steps: int = STEPS) -> Tensor:
    import nodes

    family = FAMILIES[case.family]
    text = [[states[:, :TOKENS], extra] for states, extra in family.conditioning(1)]
    latent = {"samples": family.latent(4 * family.reach, 4 * family.reach)}
    (result,) = nodes.KSampler().sample(model, 7, steps, 1.0, "euler", "normal", text, text, latent)
    return result["samples"]


def forgotten() -> None:
    """Nothing loaded, nothing cached, no buffer of the host's."""
    comfy.model_management.unload_all_models()
    comfy.model_management.reset_cast_buffers()
    gc.collect()
    torch.cuda.empty_cache()


def ours(model: Any, budget: float, **options: Any) -> Any:
    return apply_offload(model, budget / GB, **options)[0]


def ran_by_the_host(card: Card, case: Case, peak: int, steps: int = STEPS) -> Ran | None:
    """The host's own streaming with as many weights kept as a peak of allocated bytes permits; None: it needs more."""
    model = model_of(case)
    return within_peak(lambda budget: ran(card, case, ours(model, budget, granularity="leaf"), steps), peak)


def staging_of(model: Any) -> int:
    budget = budget_of(model)
    return 0 if budget is None else budget.staging
