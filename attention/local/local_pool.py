"""A fine window and a coarse far field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..tiles import score_dtype
from .checks import whole
from .dense import with_text_rows
from .grid import TokenGrid
from .halo import Box, FarKeys, Halo, halo_attention
from .pool import cell_lengths, cell_sums


@dataclass(frozen=True)
class LocalPool(Halo):
    """A window, and beyond it the means of pool x pool keys, each weighing as many tokens as it stands for.

    Attributes:
        radius, block, frames: the window, as in :class:`Window`.
        pool: rows and columns of a far cell.

    A cell's key and value are the means over exactly its tokens outside the block's patch, so that every token is
    counted once, finely or coarsely. Exact where the window covers the picture, and for ``pool`` 1.

    Source: the near and far field of Nguyen et al., "FMMformer" (arXiv 2108.02347), the far field being pooled as
    in ToDo (arXiv 2402.13573).

    Raises:
        ValueError: a parameter out of range.
    """

    name: ClassVar[str] = "local_pool"
    pool: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        whole("pool", self.pool, 1)

    def describe(self) -> str:
        """See :class:`Pattern`."""
        return f"local and pooled: {self.around}; beyond, means of {self.pool} x {self.pool} keys"

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float, grid: TokenGrid) -> Tensor:
        """See :class:`Pattern`."""
        out = with_text_rows(q, k, v, scale, grid)
        keys, values = (_FarField(x, grid, self.pool) for x in (k, v))
        counts = _Counts(grid, self.pool, q.device)
        no_bias = torch.zeros(grid.before + grid.after, device=q.device, dtype=score_dtype(q))

        def far_keys(patch: Box) -> FarKeys:
            outside = counts.outside(patch).to(no_bias.dtype)
            bias = torch.cat((outside.log().flatten(), no_bias))
            cut = counts.cuts(patch)
            return FarKeys(keys.outside(patch, outside, cut), values.outside(patch, outside, cut), bias)

        halo_attention(q, k, v, scale, grid, self, out, far_keys)
        return out


class _Counts:
    """How many tokens of every cell, (F, cell rows, cell columns), lie outside a patch."""

    def __init__(self, grid: TokenGrid, pool: int, device: torch.device) -> None:
        self.frames = torch.arange(grid.frames, device=device)
        self.rows, self.columns = (cell_lengths(n, pool, device) for n in (grid.height, grid.width))
        self.pool = pool
        self.sizes = (grid.height, grid.width)

    def outside(self, patch: Box) -> Tensor:
        """Tokens of every cell outside a patch, (F, cell rows, cell columns)."""
        seen = (self.frames >= patch.frames.start) & (self.frames < patch.frames.stop)
        rows, columns = self._overlap(self.rows, patch.rows), self._overlap(self.columns, patch.columns)
        return torch.outer(self.rows, self.columns) - seen[:, None, None] * torch.outer(rows, columns)

    def cuts(self, patch: Box) -> bool:
        """Whether an edge of the patch runs through cells."""
        axes = zip((patch.rows, patch.columns), self.sizes)
        return any(s.start % self.pool or (s.stop % self.pool and s.stop < size) for s, size in axes)

    def _overlap(self, lengths: Tensor, seen: slice) -> Tensor:
        first = torch.arange(len(lengths), device=lengths.device) * self.pool
        return ((first + lengths).clamp_max(seen.stop) - first.clamp_min(seen.start)).clamp_min(0)


class _FarField:
    """Means of keys or values over the cells of a picture, without what lies in a patch; then the text."""

    def __init__(self, x: Tensor, grid: TokenGrid, pool: int) -> None:
        self.picture, self.text, self.pool = grid.picture(x), grid.text(x), pool
        self.sums = cell_sums(self.picture, pool)
        counts = torch.outer(*(cell_lengths(n, pool, x.device) for n in (grid.height, grid.width)))
        self.means = self._with_text(self.sums / counts[..., None])

    def outside(self, patch: Box, counts: Tensor, cut: bool) -> Tensor:
        """(B, Hk, cells + text, D); a cell with no token outside is meaningless, its bias hides it.

        Where no cell is cut, a cell is wholly outside or hidden: the means of whole cells serve.
        """
        if not cut:
            return self.means
        top, left = patch.rows.start, patch.columns.start
        inside = cell_sums(patch.of(self.picture), self.pool, top, left)
        sums = self.sums.clone()
        rows, columns = (slice(s // self.pool, s // self.pool + n) for s, n in zip((top, left), inside.shape[3:5]))
        sums[:, :, patch.frames, rows, columns] -= inside
        return self._with_text(sums / counts.clamp_min(1)[..., None])

    def _with_text(self, means: Tensor) -> Tensor:
        return torch.cat((means.to(self.text.dtype).flatten(2, 4), self.text), 2)
