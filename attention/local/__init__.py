"""Approximate attention over a picture or video grid, without training: what keys a query sees, or sees merged.

Knows nothing of ComfyUI::

    from headroom.attention.local import PATTERNS, TokenGrid, sampled_error
    grid = TokenGrid(height=64, width=64, before=77)
    out = PATTERNS["window"](radius=8).attend(q, k, v, scale, grid)
    print(sampled_error(out, q, k, v, scale, grid))
"""

from .bigbird import BigBird
from .block_sparse import BlockSparse
from .error import sampled_error, unread_error
from .grid import TokenGrid
from .kmeans import KMeans
from .kv_pool import KVPool
from .linear import LinearElu
from .local_global import LocalGlobal
from .local_pool import LocalPool
from .lsh import LSH
from .pattern import Pattern
from .performer import Performer
from .strided import Strided
from .window import Window

PATTERNS: dict[str, type] = {
    "window": Window,
    "kv_pool": KVPool,
    "strided": Strided,
    "local_pool": LocalPool,
    "block_sparse": BlockSparse,
    "local_global": LocalGlobal,
    "bigbird": BigBird,
    "kmeans": KMeans,
}

# For the benchmark and the documentation: they lose in time, in error or in both.
MEASURED_ONLY: dict[str, type] = {"lsh": LSH, "performer": Performer, "linear_elu": LinearElu}

__all__ = [
    "LSH",
    "MEASURED_ONLY",
    "PATTERNS",
    "BigBird",
    "BlockSparse",
    "KMeans",
    "KVPool",
    "LinearElu",
    "LocalGlobal",
    "LocalPool",
    "Pattern",
    "Performer",
    "Strided",
    "TokenGrid",
    "Window",
    "sampled_error",
    "unread_error",
]
