"""How torch's caching allocator for accelerators splits blocks: what it hands out is more than what is asked for.

By c10/cuda/CUDACachingAllocator.cpp of torch 2.11 (`get_allocation_size`, `should_split`); ROCm's and XPU's are alike.
vae/exact/running/allocator.py has the same constants; a unit test holds them equal.
"""

from __future__ import annotations

from collections.abc import Iterable

GRAIN = 512  # bytes that every size is rounded up to
SMALL = 1 << 20  # tensors up to this share blocks of 2 MiB; of larger ones' blocks no smaller remainder is split off
SHARED, SHARED_UP_TO = 20 << 20, 10 << 20  # larger tensors below the second size share blocks of the first
ALONE = 2 << 20  # still larger ones have a block each, rounded up to this


def uncut_bytes(sizes: Iterable[int]) -> int:
    """Bytes that tensors allocated one after the other take beyond their own, if no block was free before.

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
