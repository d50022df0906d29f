"""Keys and values merged over small cells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..tiles import score_dtype
from .checks import whole
from .dense import dense, with_text_rows
from .grid import TokenGrid
from .pool import cell_lengths, cell_sums


@dataclass(frozen=True)
class KVPool:
    """Every picture query attends the means of factor x factor keys, and the text.

    Attributes:
        factor: rows and columns of a cell; cells at the edge may be smaller. Frames are not merged.

    A mean weighs as many tokens as it stands for. Cost: 1 / factor^2 of dense attention; exact for 1.

    Source: Smith et al., "ToDo: Token Downsampling for Efficient Generation of High-Resolution Images" (arXiv
    2402.13573), there by the nearest key instead of the mean, and without the weights.

    Raises:
        ValueError: a factor below 1.
    """

    name: ClassVar[str] = "kv_pool"
    factor: int = 2

    def __post_init__(self) -> None:
        whole("factor", self.factor, 1)

    def describe(self) -> str:
        """See :class:`Pattern`."""
        return f"pooled keys: means of {self.factor} x {self.factor} keys and values"

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float, grid: TokenGrid) -> Tensor:
        """See :class:`Pattern`."""
        out = with_text_rows(q, k, v, scale, grid)
        counts = torch.outer(*(cell_lengths(n, self.factor, q.device) for n in (grid.height, grid.width)))
        keys, values = (self._pooled(x, counts, grid) for x in (k, v))
        out[:, grid.span] = dense(q[:, :, grid.span], keys, values, scale, self._bias(q, counts, grid))
        return out

    def _pooled(self, x: Tensor, counts: Tensor, grid: TokenGrid) -> Tensor:
        """(B, Hk, cells + text, D)."""
        means = cell_sums(grid.picture(x), self.factor).div_(counts[..., None]).to(x.dtype).flatten(2, 4)
        return torch.cat((means, grid.text(x)), 2) if grid.before + grid.after else means

    def _bias(self, q: Tensor, counts: Tensor, grid: TokenGrid) -> Tensor | None:
        """(1, 1, 1, cells + text), or None where all keys stand for as many tokens: a constant changes nothing."""
        text = grid.before + grid.after
        full = grid.height % self.factor == grid.width % self.factor == 0
        if self.factor == 1 or (full and not text):
            return None
        cells = counts.to(score_dtype(q)).log().flatten().repeat(grid.frames)
        return torch.cat((cells, cells.new_zeros(text)))[None, None, None]
