"""How fast weights get to a device, measured once."""

from __future__ import annotations

from functools import cache

import torch
from torch._guards import detect_fake_mode

from ..memory.accelerator import has_own_memory, host_bytes, seconds_of

BYTES = 64 << 20
ROUNDS = 4


def bandwidth(device: torch.device) -> float | None:
    """Bytes per second, from page-locked memory where there is such.

    None where nothing is copied, as in a workflow gone through without data.
    """
    if not has_own_memory(device) or detect_fake_mode() is not None:
        return None
    return _measured(device)


@cache
def _measured(device: torch.device) -> float:
    source = host_bytes(BYTES)
    target = torch.empty(BYTES, dtype=torch.uint8, device=device)

    def copies() -> None:
        for _ in range(ROUNDS):
            target.copy_(source, non_blocking=True)

    target.copy_(source, non_blocking=True)
    return ROUNDS * BYTES / seconds_of(device, copies)
