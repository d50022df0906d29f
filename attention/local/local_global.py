"""Window attention with global tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .checks import whole
from .dense import with_text_rows
from .grid import TokenGrid
from .halo import Box, FarKeys, Halo, halo_attention
from .lattice import Lattice


@dataclass(frozen=True)
class LocalGlobal(Halo):
    """A window, and a lattice of picture tokens that all see and that see all.

    Attributes:
        radius, block, frames: the window, as in :class:`Window`.
        every: rows and columns from one global token to the next.

    A global token inside a block's patch counts once. Exact where the window covers the picture.

    Source: symmetric global attention of Beltagy et al., "Longformer" (arXiv 2004.05150), section 3.1.

    Raises:
        ValueError: a parameter out of range.
    """

    name: ClassVar[str] = "local_global"
    every: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        whole("every", self.every, 1)

    def describe(self) -> str:
        """See :class:`Pattern`."""
        return f"local and global: {self.around}; one token in {self.every} x {self.every} is global"

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float, grid: TokenGrid) -> Tensor:
        """See :class:`Pattern`."""
        out = with_text_rows(q, k, v, scale, grid)
        lattice = Lattice.of(grid, self.every, q.device)
        keys, values = (torch.cat((x[:, :, lattice.index], grid.text(x)), 2) for x in (k, v))

        def far_keys(patch: Box) -> FarKeys:
            bias = torch.zeros(keys.shape[2], device=q.device)
            bias[: len(lattice.index)].masked_fill_(patch.holds(lattice.cells), -torch.inf)
            return FarKeys(keys, values, bias)

        halo_attention(q, k, v, scale, grid, self, out, far_keys)
        lattice.attend_all(out, q, k, v, scale)
        return out
