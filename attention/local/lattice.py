"""A lattice of global picture tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .dense import dense
from .grid import TokenGrid


@dataclass(frozen=True)
class Lattice:
    """Cells every so many rows and columns of every frame.

    Attributes:
        cells: (M, 3), frame, row and column.
        index: (M,), place among all tokens.
    """

    cells: Tensor
    index: Tensor

    @classmethod
    def of(cls, grid: TokenGrid, every: int, device: torch.device) -> Lattice:
        """Starts ``every // 2`` from the border, or in the middle of an axis shorter than ``every``."""
        rows, columns = (
            torch.arange(min(every // 2, n // 2), n, every, device=device) for n in (grid.height, grid.width)
        )
        cells = torch.cartesian_prod(torch.arange(grid.frames, device=device), rows, columns)
        return cls(cells, token_index(cells, grid))

    def attend_all(self, out: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float) -> None:
        """Writes the lattice's rows of ``out`` (B, N, H, Dv): they see every token."""
        out[:, self.index] = dense(q[:, :, self.index], k, v, scale).to(out.dtype)


def token_index(cells: Tensor, grid: TokenGrid) -> Tensor:
    """(M, 3) frames, rows and columns -> (M,) places among all tokens."""
    frame, row, column = cells.unbind(1)
    return grid.before + (frame * grid.height + row) * grid.width + column
