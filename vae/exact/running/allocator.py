"""How PyTorch's caching allocator rounds and cuts memory, so that slabs are asked for in sizes that leave no remainder.

memory/blocks.py knows the same allocator by the same constants; engines do not import each other, and a unit test
(tests/unit/test_card_figures.py) holds them equal.
"""

from __future__ import annotations

import torch

MIB = 1 << 20
# A block is cut only where more than 1 MiB would remain (c10/cuda/CUDACachingAllocator.cpp: should_split); a smaller
# remainder stays with the block and counts as allocated. Slabs and buffers that differ by a multiple of 2 MiB leave
# none.
EVEN_BYTES, CUT_FROM = 2 * MIB, 1 * MIB
GRAIN = 512  # every size is rounded up to a multiple of this


def even(size: int, device: torch.device) -> int:
    """Bytes to ask for, so that another slab can have exactly what is left of a block."""
    return -(-size // EVEN_BYTES) * EVEN_BYTES if size > CUT_FROM and device.type != "cpu" else size
