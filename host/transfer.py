"""How fast weights get to a device, measured once."""

from __future__ import annotations

from functools import cache

import torch
from torch._guards import detect_fake_mode

BYTES = 64 << 20
ROUNDS = 4


def bandwidth(device: torch.device) -> float | None:
    """Bytes per second from pinned memory; None where nothing is copied, as in a workflow gone through without data."""
    if device.type != "cuda" or detect_fake_mode() is not None:
        return None
    return _measured(device)


@cache
def _measured(device: torch.device) -> float:
    source = torch.empty(BYTES, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(BYTES, dtype=torch.uint8, device=device)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    target.copy_(source, non_blocking=True)
    start.record()
    for _ in range(ROUNDS):
        target.copy_(source, non_blocking=True)
    end.record()
    end.synchronize()
    return ROUNDS * BYTES / (start.elapsed_time(end) / 1000)
