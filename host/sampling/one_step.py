"""One step of sampling, driven by the host's guider: what Compare and the sensitivity of casting measure with.

The guider prepares the model and the conditioning as for any sampling and then calls, in the place of a sampler, a
function of ours that runs the model at one noise level in the middle of sampling.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import comfy.sample
import comfy.samplers
import torch
from torch import Tensor

if TYPE_CHECKING:
    from comfy.model_patcher import ModelPatcher

PART_OF_SAMPLING = 0.5
SEED = 1
# (model, x, sigmas, extra_args, callback, disable) -> latent: what the host takes for a sampler.
Sampler = Callable[[Any, Tensor, Tensor, dict[str, Any], Any, Any], Tensor]


def sample_one_step(
    model: ModelPatcher, sampler: Sampler, latent: Tensor, positive: Any, negative: Any, cfg: float
) -> None:
    """Has the host's guider load ``model`` and call ``sampler`` once, with noise of a fixed seed.

    Args:
        sampler: called with the guided model, the noisy latent (B, C, [T,] H, W) and ``sigmas`` =
            (:func:`middle_sigma`, 0); what it returns is not used.
        latent: of the channels and the size that the model wants; float32.
        positive, negative: CONDITIONING.
        cfg: guidance scale; at 1 the negative is not computed.
    """
    noise = torch.randn(latent.shape, generator=torch.Generator().manual_seed(SEED))
    comfy.sample.sample_custom(
        model, noise, cfg, comfy.samplers.KSAMPLER(sampler), torch.tensor([middle_sigma(model), 0.0]),
        positive, negative, latent, disable_pbar=True, seed=SEED,
    )  # fmt: skip


def middle_sigma(model: ModelPatcher) -> float:
    """The noise level at :data:`PART_OF_SAMPLING`, in the unit of the model's own schedule."""
    return float(model.get_model_object("model_sampling").percent_to_sigma(PART_OF_SAMPLING))


def model_call(model: Any, x: Tensor, sigmas: Tensor, extra_args: dict[str, Any]) -> Callable[[], Tensor]:
    """A call of the guided model at the first noise level: its estimate of the clean latent, shaped like ``x``."""
    return partial(model, x, sigmas[0] * x.new_ones(x.shape[0]), **extra_args)


def call_once(model: Any, x: Tensor, sigmas: Tensor, extra_args: dict[str, Any], callback: Any, disable: Any) -> Tensor:
    """A :data:`Sampler` that calls the model and does nothing else."""
    return model_call(model, x, sigmas, extra_args)()


def velocity(x: Tensor, denoised: Tensor) -> Tensor:
    """What a model takes away from its input: (elements,), float64, on the CPU.

    This is the part that the weights make. A good deal of the estimate of the clean latent is the input itself, beside
    which errors would look smaller than they are.
    """
    return (x.double() - denoised.double()).flatten().cpu()


def relative_noise(result: Tensor, reference: Tensor) -> float:
    """Energy of the difference over the energy of the reference; both from :func:`velocity`."""
    return float((result - reference).square().sum() / reference.square().sum())


class VelocityRecorder:
    """A wrapper of the host's ``apply_model`` that keeps the :func:`velocity` of every call."""

    def __init__(self) -> None:
        self._parts: list[Tensor] = []

    def __call__(self, executor: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        denoised: Tensor = executor(x, *args, **kwargs)
        self._parts.append(velocity(x, denoised))
        return denoised

    def take(self) -> Tensor:
        """All calls since the last time, one behind the other: (elements,), float64, on the CPU."""
        parts, self._parts = self._parts, []
        return torch.cat(parts)
