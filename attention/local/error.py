"""How far a pattern's output is from dense attention, from a few rows of it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..tiles import score_dtype
from .dense import dense
from .grid import TokenGrid

GOLDEN_RATIO = (math.sqrt(5) - 1) / 2


def sampled_error(out: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float, grid: TokenGrid, rows: int = 64) -> float:
    """Relative error ``||out - dense|| / ||dense||`` over some picture queries, all heads and the whole batch.

    Args:
        out: (B, N, H, Dv), a pattern's output for q (B, H, N, D), k (B, Hk, N, D), v (B, Hk, N, Dv).
        rows: picture queries compared, spread evenly; all where there are fewer.

    Returns:
        0 for exact attention; about 1 for an output that has nothing to do with it. Dense rows are computed in
        float32 at least, in O(N) memory.

    Raises:
        ValueError: operands that do not fit ``grid``, or no rows.
    """
    return float(unread_error(out, q, k, v, scale, grid, rows))


def unread_error(out: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float, grid: TokenGrid, rows: int = 64) -> Tensor:
    """:func:`sampled_error` as a tensor of no dimensions on the operands' device, which it does not stall."""
    grid.check(q, k, v)
    if rows < 1:
        raise ValueError(f"rows is {rows}: write 1 or more")
    index = sample_rows(grid, rows).to(q.device)
    dtype = score_dtype(q)
    expected = dense(q[:, :, index].to(dtype), k.to(dtype), v.to(dtype), scale)
    difference = out[:, index].to(dtype) - expected
    return difference.norm() / expected.norm().clamp_min(torch.finfo(dtype).tiny)


def sample_rows(grid: TokenGrid, rows: int) -> Tensor:
    """(rows,) places of picture tokens: one of every stretch of cells / rows of them.

    Where in its stretch goes by the golden ratio: a fixed place would be the same column in every stretch that is as
    long as a row of the picture, and so always the same place in a block.
    """
    rows = min(rows, grid.cells)
    stretch = torch.arange(rows, dtype=torch.float64)
    inside = (stretch * GOLDEN_RATIO).frac()
    return grid.before + ((stretch + inside) * grid.cells / rows).long().clamp_max(grid.cells - 1)
