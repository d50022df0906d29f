"""What a training's steps take: CPU seconds, and floating-point operations by torch's own count."""

from __future__ import annotations

from itertools import pairwise
from time import process_time
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

_KERNEL = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class StepClock:
    """CPU seconds and floating-point operations from step to step.

    Without the first two steps: one predicts, and in the other what is kept learns what later blocks write to.
    """

    def __init__(self) -> None:
        formulas = {_KERNEL.default: _attention, _BACKWARD.default: _attention_backward}
        self.counter = FlopCounterMode(display=False, custom_mapping=formulas)
        self._stamps, self._forward = list[tuple[float, int]](), list[float]()
        register_optimizer_step_post_hook(self._step)

    def _step(self, *_: object) -> None:
        self._stamps.append((process_time(), self.counter.get_total_flops()))

    def forward(self, executor: Any, *args: Any, **kwargs: Any) -> Any:
        """A wrapper of the host's around the model's call."""
        start = process_time()
        result = executor(*args, **kwargs)
        self._forward.append(process_time() - start)
        return result

    def take(self) -> list[tuple[float, float, int]]:
        """Of the steps since the last call: seconds, those of the forward among them, and operations."""
        stamps, forward, self._stamps, self._forward = self._stamps, self._forward, [], []
        steps = pairwise(stamps[1:])
        return [(end[0] - one[0], alone, end[1] - one[1]) for (one, end), alone in zip(steps, forward[2:])]


def _attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    """Of shapes, as torch's own formulas; it has none for the kernel of a CPU."""
    return int(sdpa_flop_count(query, key, value))


def _attention_backward(gradient: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return int(sdpa_backward_flop_count(gradient, query, key, value))
