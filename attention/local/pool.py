"""Means of square cells of a picture."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..tiles import score_dtype

ROWS, COLUMNS = 3, 4


def cell_sums(x: Tensor, factor: int, top: int = 0, left: int = 0) -> Tensor:
    """Sums over factor x factor cells of every frame, in float32 at least.

    Args:
        x: (B, H, F, Y, X, D), a part of a picture whose first row is ``top`` and whose first column is ``left``.

    Returns:
        (B, H, F, cell rows, cell columns, D), of the cells that the part touches.
    """
    return _sum_along(_sum_along(x, ROWS, factor, top), COLUMNS, factor, left)


def cell_lengths(length: int, factor: int, device: torch.device) -> Tensor:
    """(cells,) lengths of the cells along an axis; the last may be short."""
    edges = torch.arange(0, length, factor, device=device)
    return (length - edges).clamp_max(factor)


def _sum_along(x: Tensor, dim: int, factor: int, start: int) -> Tensor:
    length, first = x.shape[dim], start // factor
    shape = list(x.shape)
    shape[dim] = math.ceil((start + length) / factor) - first
    sums = x.new_zeros(shape, dtype=score_dtype(x))
    # Strided adds: no padding, no transposed copy, and the same order of summation on every device.
    for offset in range(min(factor, length)):
        part = x.narrow(dim, offset, length - offset)[(slice(None),) * dim + (slice(None, None, factor),)]
        sums.narrow(dim, (start + offset) // factor - first, part.shape[dim]).add_(part)
    return sums
