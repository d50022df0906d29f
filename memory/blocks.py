"""How torch's caching allocator for accelerators cuts memory: what it gives out is more than what is asked for.

By c10/cuda/CUDACachingAllocator.cpp of torch 2.11 (`get_allocation_size`, `should_split`); ROCm's and XPU's are alike.
vae/exact/running/allocator.py has the same constants; a unit test holds them equal.
"""

from __future__ import annotations

from collections.abc import Iterable

GRAIN = 512  # bytes that every size is rounded up to
SMALL = 1 << 20  # from 2 MiB at a time, and cut without a rest; larger blocks keep a rest of up to as much
SHARED, SHARED_UP_TO = 20 << 20, 10 << 20  # larger ones up to the second come from so much at a time
ALONE = 2 << 20  # and others from what they need, rounded up to this


def uncut_bytes(sizes: Iterable[int]) -> int:
    """Bytes that tensors allocated one after the other take beyond their own, where nothing was free before.

    Args:
        sizes: bytes of each tensor.
    """
    free: list[int] = []
    uncut = 0
    for asked in sizes:
        size = -(-asked // GRAIN) * GRAIN
        uncut += size - asked
        if size <= SMALL:
            continue
        block = min((one for one in free if one >= size), default=0)
        if block:
            free.remove(block)
        else:
            block = SHARED if size < SHARED_UP_TO else -(-size // ALONE) * ALONE
        if block - size > SMALL:
            free.append(block - size)
        else:
            uncut += block - size
    return uncut
