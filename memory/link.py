"""How fast bytes get to a device and back, measured once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from .accelerator import has_own_memory, host_bytes, is_here, seconds_of

BYTES = 1 << 20  # few, since they are allocated on the device beside all else
COPIES, ROUNDS = 8, 5  # the best round counts: an idle link takes a moment to wake up
_known: dict[torch.device, float] = {}


def link_speed(device: torch.device) -> float | None:
    """Bytes a second between page-locked memory, where there is such, and a device, in the slower direction.

    None where nothing is copied, for a device that is not in this machine, and where it has no room at the moment: work
    that has gone well must not fail for want of a figure. Other traffic on the link lowers the figure.
    """
    if not (has_own_memory(device) and is_here(device)):
        return None
    if device not in _known:
        # A thread of its own is outside the caller's torch modes, under which tensors may have no data.
        with ThreadPoolExecutor(1) as alone:
            speed = alone.submit(_measured, device).result()
        if speed is None:
            return None
        _known[device] = speed
    return _known[device]


def _measured(device: torch.device) -> float | None:
    try:
        here, there = host_bytes(BYTES), torch.empty(BYTES, dtype=torch.uint8, device=device)
        module: Any = getattr(torch, device.type, None)
        # On another stream than the work that is under way.
        stream = module.stream(module.Stream(device=device)) if hasattr(module, "Stream") else nullcontext()
        with stream:
            return min(_best(device, there, here), _best(device, here, there))
    except RuntimeError:  # no room, or a device that cannot
        return None


def _best(device: torch.device, into: Tensor, out_of: Tensor) -> float:
    def copies() -> None:
        for _ in range(COPIES):
            into.copy_(out_of, non_blocking=True)

    return COPIES * BYTES / min(seconds_of(device, copies) for _ in range(ROUNDS))
