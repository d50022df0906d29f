"""What all checks share: the device, its clock and memory, and the generated models, made when first asked for."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import comfy.model_management as model_management
import comfy.sample
import torch
from torch import Tensor

from ...host.measure.runs import LOG
from ...memory import Row
from . import generated
from .clock import Clock
from .probe import convolution_speed, product_speed
from .sizes import Sizes, choose

SEED = 7


@dataclass
class Bench:
    """Attributes:
    seconds: for everything.
    say: is told what is being done.
    """

    seconds: float
    say: Callable[[str], None] = lambda text: None
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.device: torch.device = model_management.get_torch_device()
        self.clock = Clock(self.device)
        self.module: Any = getattr(torch, self.device.type, None)

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.started

    @property
    def is_over(self) -> bool:
        return self.elapsed > self.seconds

    # ------------------------------------------------------------------------------------------------- the models

    @cached_property
    def dtype(self) -> torch.dtype:
        """What the diffusion model is stored in."""
        if self.device.type == "cpu":
            return torch.float32
        return torch.bfloat16 if model_management.should_use_bf16(self.device) else torch.float16

    @cached_property
    def vae_dtype(self) -> torch.dtype:
        """What the host would decode in."""
        found: torch.dtype = model_management.vae_dtype(self.device, [torch.bfloat16, torch.float32])
        return found

    @cached_property
    def sizes(self) -> Sizes:
        self.say("how fast is it?")
        free = int(model_management.get_free_memory(self.device))
        try:
            products = product_speed(self.device, self.dtype, self.clock.wait)
            convolutions = convolution_speed(self.device, self.vae_dtype, self.clock.wait)
        except RuntimeError:  # whatever it cannot do, it will be said where it is needed
            products = convolutions = 0.0
        return choose(self.seconds, products, convolutions, free, self.dtype.itemsize, generated.takes_narrow())

    @property
    def known_sizes(self) -> dict[str, Any] | None:
        """As numbers; None before they are chosen."""
        return self.sizes.numbers() if "sizes" in self.__dict__ else None

    @cached_property
    def model(self) -> Any:
        """The diffusion model; nobody changes it."""
        self.say("generating a diffusion model")
        return generated.diffusion_model(self.sizes.model, self.dtype)

    @cached_property
    def vae_state(self) -> dict[str, Tensor]:
        self.say("generating an autoencoder")
        return generated.vae_state(self.sizes.vae)

    @cached_property
    def vae(self) -> Any:
        """In the dtype that the host chooses here."""
        return generated.vae(self.vae_state)

    @cached_property
    def vae32(self) -> Any:
        """The same in float32."""
        return self.vae if self.vae.vae_dtype == torch.float32 else generated.vae(self.vae_state, torch.float32)

    def sizes_line(self) -> str:
        """The generated models, for people."""
        model, vae = self.sizes.model, self.sizes.vae
        return (
            f"Random weights: like Flux, {model.double} + {model.single} blocks of {model.width} channels in"
            f" {str(self.dtype).removeprefix('torch.')}, {model.side} px; a VAE like SD's, {vae.width} channels,"
            f" {vae.side} px"
        )

    # -------------------------------------------------------------------------------------------------- the work

    def sample(self, model: Any, steps: int = 2, on_step: Callable[..., None] | None = None) -> Tensor:
        """Latents of the host's own sampler, less the noise they began with: what the model made of it."""
        latent = generated.empty_latent(self.sizes.model)
        noise = torch.randn(latent.shape, generator=torch.Generator().manual_seed(SEED))
        prompt = generated.conditioning()
        found: Tensor = comfy.sample.sample(
            model, noise, steps, 1.0, "euler", "simple", prompt, prompt, latent, callback=on_step, disable_pbar=True,
            seed=SEED,
        )  # fmt: skip
        return found.cpu() - noise

    def step_seconds(self, model: Any, steps: int = 4) -> list[float]:
        """Of each step of a sampling but the first, which waits for what is loaded."""
        marks: list[Any] = []
        self.sample(model, steps, lambda *_: marks.append(self.clock.mark()))
        return [self.clock.between(one, other) for one, other in pairwise(marks)]

    def median_step(self, model: Any) -> float:
        return statistics.median(self.step_seconds(model))

    def logged(self) -> Row:
        """The last row of the run log: what a Memory Report would show."""
        return LOG.rows("", "")[-1]

    # ------------------------------------------------------------------------------------------------- its memory

    @property
    def counts_bytes(self) -> bool:
        """Whether the device's allocator can be asked."""
        return hasattr(self.module, "max_memory_allocated") and self.device.type != "cpu"

    def allocated(self) -> int:
        return int(self.module.memory_allocated(self.device))

    def peak(self, work: Callable[[], object]) -> int:
        """Bytes allocated at most during work."""
        self.clock.wait()
        self.module.reset_peak_memory_stats(self.device)
        work()
        self.clock.wait()
        return int(self.module.max_memory_allocated(self.device))

    def empty(self) -> None:
        """Takes everything off the device."""
        model_management.unload_all_models()
        gc.collect()
        model_management.soft_empty_cache()


def noise_of(result: Tensor, reference: Tensor) -> float:
    """Power of the difference over the power of the reference; infinite where a result is not finite."""
    noise = float((result.double() - reference.double()).square().sum() / reference.double().square().sum())
    return noise if math.isfinite(noise) else math.inf


def decibels(noise: float) -> float:
    """Signal to noise; infinite where both are equal."""
    return math.inf if noise == 0 else -10 * math.log10(noise)


def said_bytes(count: float) -> str:
    """With three digits: the models of a small device are small."""
    for unit, size in (("GB", 2**30), ("MB", 2**20)):
        if count >= size:
            value = count / size
            return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"
    return f"{count / 1024:.0f} KB"


def said_db(db: float) -> str:
    return "bit for bit the same" if db == math.inf else f"{db:.0f} dB"
