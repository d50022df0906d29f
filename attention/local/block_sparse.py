"""Tiles of queries against the tiles of keys that look most alike."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from ..tiles import score_dtype
from .checks import whole
from .dense import dense, with_text_rows
from .grid import TokenGrid
from .halo import block_size


@dataclass(frozen=True)
class BlockSparse:
    """Every tile of queries attends the tiles of keys whose mean scores best with its own mean, and the text.

    Attributes:
        block: rows and columns of a tile, at most.
        keep: share of the tiles of keys that a tile of queries attends, rounded up; its own is always among them.

    Every head and every picture of a batch chooses for itself. Exact for ``keep`` 1.

    Source: the estimate by mean-pooled tiles of Jiang et al., "MInference 1.0" (arXiv 2407.02490), section 3.2, and
    Zhang et al., "SpargeAttn" (arXiv 2502.18137), section 3.3.

    Raises:
        ValueError: a parameter out of range.
    """

    name: ClassVar[str] = "block_sparse"
    block: int = 16
    keep: float = 0.25

    def __post_init__(self) -> None:
        whole("block", self.block, 1)
        if not 0 < self.keep <= 1:
            raise ValueError(f"keep is {self.keep!r}: write a share above 0 and up to 1, such as 0.25")

    def describe(self) -> str:
        """See :class:`Pattern`."""
        return f"block sparse: the best {self.keep:.0%} of tiles of {self.block} x {self.block}"

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float, grid: TokenGrid) -> Tensor:
        """See :class:`Pattern`."""
        out = with_text_rows(q, k, v, scale, grid)
        tiles = _Tiles.of(grid, self.block)
        queries, keys, values = (tiles.cut(grid.picture(x)) for x in (q, k, v))
        chosen = self._choose(tiles.means(queries), tiles.means(keys), scale)
        padding = tiles.padding(q.device).to(score_dtype(q)) if tiles.padded else None
        key_text, value_text = (_per_query_head(grid.text(x), q.shape[1]) for x in (k, v))
        for tile in range(tiles.count):
            best = chosen[:, :, tile]
            bias = None
            if padding is not None:
                bias = functional.pad(padding[best].flatten(2), (0, key_text.shape[2]))[:, :, None]
            picked_keys, picked_values = _pick(keys, best, key_text), _pick(values, best, value_text)
            result = dense(queries[:, :, tile], picked_keys, picked_values, scale, bias)
            tiles.put(grid.picture_rows(out), tile, result)
        return out

    def _choose(self, queries: Tensor, keys: Tensor, scale: float) -> Tensor:
        """(B, H, T, D) and (B, Hk, T, D) means -> (B, H, T, kept) tiles of keys."""
        tiles = keys.shape[2]
        likeness = queries @ _per_query_head(keys, queries.shape[1]).transpose(2, 3) * scale
        likeness.diagonal(dim1=2, dim2=3).fill_(torch.inf)
        # The product may lie a rounding error above a whole number.
        kept = min(tiles, math.ceil(self.keep * tiles - 1e-9))
        return likeness.topk(kept, dim=-1).indices


@dataclass(frozen=True)
class _Tiles:
    """A grid cut into equal tiles; those at the edge are padded."""

    grid: TokenGrid
    height: int
    width: int

    @classmethod
    def of(cls, grid: TokenGrid, block: int) -> _Tiles:
        """Tiles of at most ``block`` rows and columns."""
        return cls(grid, block_size(grid.height, block), block_size(grid.width, block))

    @property
    def per_frame(self) -> tuple[int, int]:
        """How many lie below each other, and how many side by side."""
        return math.ceil(self.grid.height / self.height), math.ceil(self.grid.width / self.width)

    @property
    def count(self) -> int:
        """How many there are in all frames."""
        return self.grid.frames * math.prod(self.per_frame)

    @property
    def padded(self) -> bool:
        """Whether tiles reach beyond the grid."""
        return bool(self.grid.height % self.height or self.grid.width % self.width)

    def cut(self, x: Tensor) -> Tensor:
        """(B, H, F, Y, X, D) -> (B, H, T, height * width, D), zeros where it is padded."""
        down, across = self.per_frame
        missing = (down * self.height - x.shape[3], across * self.width - x.shape[4])
        x = functional.pad(x, (0, 0, 0, missing[1], 0, missing[0]))
        x = x.unflatten(4, (across, self.width)).unflatten(3, (down, self.height))
        return x.transpose(4, 5).flatten(5, 6).flatten(2, 4)

    def padding(self, device: torch.device) -> Tensor:
        """(T, height * width): 0 for a cell of the picture, -inf for padding."""
        real = self.cut(torch.ones(1, 1, *self.grid.shape, 1, device=device))[0, 0, :, :, 0]
        return real.log()

    def means(self, x: Tensor) -> Tensor:
        """(B, H, T, n, D) -> the means (B, H, T, D) over real cells, in float32 at least."""
        real = self.padding(x.device).exp().sum(1)
        return x.sum(3, dtype=score_dtype(x)) / real[:, None]

    def put(self, target: Tensor, tile: int, result: Tensor) -> None:
        """Writes one tile's (B, n, H, Dv) into (B, F, Y, X, H, Dv)."""
        down, across = self.per_frame
        frame, place = divmod(tile, down * across)
        top, left = place // across * self.height, place % across * self.width
        part = target[:, frame, top : top + self.height, left : left + self.width]
        part.copy_(result.unflatten(1, (self.height, self.width))[:, : part.shape[1], : part.shape[2]])


def _per_query_head(x: Tensor, heads: int) -> Tensor:
    """(B, Hk, ...) -> (B, H, ...)."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1)


def _pick(x: Tensor, best: Tensor, text: Tensor) -> Tensor:
    """Tiles ``best`` (B, H, kept) of (B, Hk, T, n, D), then the text (B, H, M, D): (B, H, kept * n + M, D)."""
    batch, heads, _ = best.shape
    batches = torch.arange(batch, device=x.device)[:, None, None]
    key_heads = torch.arange(heads, device=x.device)[None, :, None] // (heads // x.shape[1])
    picked = x[batches, key_heads, best].flatten(2, 3)
    return torch.cat((picked, text), 2) if text.shape[2] else picked
