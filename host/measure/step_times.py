"""How long a sampling's steps take, without what comes before the first: loading, and what libraries do once."""

from __future__ import annotations

import time
from typing import Any

import torch

from ...memory.accelerator import synchronise

TIMES = "headroom_step_times"  # our entry in the host's transformer_options


class StepTimes:
    """Counts the calls of a sampler's model, and takes the time from the second on.

    Args:
        device: it is waited for once, at the second call.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.calls, self._since = 0, 0.0

    def called(self) -> None:
        """A call begins."""
        self.calls += 1
        if self.calls == 2:
            synchronise(self._device)
            self._since = time.perf_counter()

    def seconds(self) -> float | None:
        """Of a call, once the sampling is done; None where there was one alone."""
        if self.calls < 2:
            return None
        synchronise(self._device)
        return (time.perf_counter() - self._since) / (self.calls - 1)


def time_step(executor: Any, x: Any, timestep: Any, model_options: Any = None, *args: Any, **kwargs: Any) -> Any:
    """A wrapper of the host's call of a guider, which its sampler makes once or several times a step."""
    times = ((model_options or {}).get("transformer_options") or {}).get(TIMES)
    if times is not None:
        times.called()
    return executor(x, timestep, model_options, *args, **kwargs)
