"""One step of a model, measured: its peak memory, its time, and its result."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import comfy.model_management
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ...memory import PeakMeter
from ...memory.accelerator import counts_peaks, synchronise
from ...memory.prediction import DOCUMENTED, THIS_MACHINE, LiveBytes
from ..prediction.stages import chosen_card
from ..sampling.one_step import model_call, velocity

if TYPE_CHECKING:
    from comfy.model_patcher import ModelPatcher

# A step is timed again, and the shortest counts, until these seconds are spent or it has run this often.
TIMED_SECONDS, MOST_TIMED = 1.0, 5


class StepMeter:
    """What the host calls in the place of a sampler: the same model call several times, with different instruments.

    Attributes:
        peak: bytes above what was there before.
        seconds: the shortest of the timed calls; none of them is the first.
        velocity: what the model took away from its input, (elements,), float64, on the CPU.
    """

    def __init__(self, model: ModelPatcher) -> None:
        self._device = model.load_device
        self.peak, self.seconds, self.velocity = 0, 0.0, torch.empty(0)

    def __call__(
        self, model: Any, x: Tensor, sigmas: Tensor, extra_args: dict[str, Any], callback: Any, disable: Any
    ) -> Tensor:
        guider = model.inner_model
        call = model_call(model, x, sigmas, extra_args)
        if counts_peaks(self._device):
            call()  # libraries load and reserve their workspaces, and a model that streams is in its usual state
            with PeakMeter(self._device) as meter:
                denoised, first = self._timed(call)
            assert meter.peak is not None
            self.peak = meter.peak.growth
        else:
            self.peak = _counted(call, self._device, [x, sigmas, *_given(guider, model)])
            denoised, first = self._timed(call)
        self.seconds = self._shortest(call, first)
        self.velocity = velocity(x, denoised)
        return denoised

    def _timed(self, call: Callable[[], Tensor]) -> tuple[Tensor, float]:
        comfy.model_management.throw_exception_if_processing_interrupted()
        synchronise(self._device)
        start = time.perf_counter()
        result = call()
        synchronise(self._device)
        return result, time.perf_counter() - start

    def _shortest(self, call: Callable[[], Tensor], first: float) -> float:
        times = [first]
        while sum(times) < TIMED_SECONDS and len(times) < MOST_TIMED:
            times.append(self._timed(call)[1])
        return min(times)


def _counted(call: Callable[[], Tensor], device: torch.device, given: list[Any]) -> int:
    """Most bytes alive at once of the tensors that a call makes, with what kernels allocate inside."""
    card = chosen_card(THIS_MACHINE, 0.0, device)
    tracker = LiveBytes(device.type, hidden=DOCUMENTED.hidden(card))
    tracker.leave_out(given)
    with tracker:
        call()
    return tracker.peak


def _given(guider: Any, model: Any) -> Iterator[Any]:
    """Tensors that exist before the step: latents, weights, buffers and conditioning."""
    yield from (model.noise, model.latent_image)
    network = guider.model_patcher.model
    yield from (*network.parameters(), *network.buffers())
    for conditioning in guider.conds.values():
        for one in conditioning or ():
            for condition in one.get("model_conds", {}).values():
                yield from tree_leaves(getattr(condition, "cond", None))
