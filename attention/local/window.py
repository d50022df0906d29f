"""Window attention: every query sees the cells around it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from .dense import with_text_rows
from .grid import TokenGrid
from .halo import FarKeys, Halo, halo_attention


@dataclass(frozen=True)
class Window(Halo):
    """Blocks of queries attend the patch around them, and the text.

    Attributes:
        radius: cells seen around a block, at least; at a border the patch is shifted inward.
        block: rows and columns of a block of queries, at most.
        frames: frames seen before and after a block; 0 = all frames.

    Cost: (block + 2 radius)^2 / (rows * columns) of dense attention. Exact where the window covers the picture.

    Source: the halo of Vaswani et al., "Scaling Local Self-Attention" (arXiv 2103.12731), section 2; with full
    patches at borders as in Neighborhood Attention (arXiv 2204.07143).

    Raises:
        ValueError: a parameter out of range.
    """

    name: ClassVar[str] = "window"

    def describe(self) -> str:
        """See :class:`Pattern`."""
        return f"window: {self.around}"

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float, grid: TokenGrid) -> Tensor:
        """See :class:`Pattern`."""
        out = with_text_rows(q, k, v, scale, grid)
        text = FarKeys(grid.text(k), grid.text(v))
        halo_attention(q, k, v, scale, grid, self, out, lambda patch: text)
        return out
