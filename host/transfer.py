"""How fast weights get to a device, measured once."""

from __future__ import annotations

from functools import cache

import torch
from torch._guards import detect_fake_mode

from ..memory.accelerator import has_own_memory, host_bytes, seconds_of
from .compat import is_out_of_memory

BYTES = 64 << 20
ROUNDS = 4


def bandwidth(device: torch.device) -> float | None:
    """Bytes per second, from page-locked memory where there is such.

    None where nothing is copied, as in a workflow gone through without data, and where the device is full just now:
    work that has gone well must not fail for want of a figure.
    """
    if not has_own_memory(device) or detect_fake_mode() is not None:
        return None
    try:
        return _measured(device)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return None


@cache
def _measured(device: torch.device) -> float:
    source = host_bytes(BYTES)
    target = torch.empty(BYTES, dtype=torch.uint8, device=device)

    def copies() -> None:
        for _ in range(ROUNDS):
            target.copy_(source, non_blocking=True)

    target.copy_(source, non_blocking=True)
    return ROUNDS * BYTES / seconds_of(device, copies)
