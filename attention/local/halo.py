"""Blocks of queries against the patch of keys around them: what the windowed patterns share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..tiles import score_dtype
from .checks import whole
from .dense import dense
from .grid import TokenGrid

# Frames of one block of queries when the window is limited in time; longer blocks see ever more than they ask for.
MOST_FRAMES = 4


@dataclass(frozen=True)
class Box:
    """A cuboid of cells."""

    frames: slice
    rows: slice
    columns: slice

    @property
    def shape(self) -> tuple[int, int, int]:
        """Frames, rows and columns."""
        frames, rows, columns = (s.stop - s.start for s in (self.frames, self.rows, self.columns))
        return frames, rows, columns

    def of(self, x: Tensor) -> Tensor:
        """(B, H, F, Y, X, D) -> the view of its cells in the box."""
        return x[:, :, self.frames, self.rows, self.columns]

    def holds(self, cells: Tensor) -> Tensor:
        """(M, 3) frames, rows and columns -> (M,) bool: which are in the box."""
        low, high = (cells.new_tensor([getattr(s, end) for s in self._axes]) for end in ("start", "stop"))
        return ((cells >= low) & (cells < high)).all(1)

    @property
    def _axes(self) -> tuple[slice, slice, slice]:
        return self.frames, self.rows, self.columns


@dataclass(frozen=True)
class Block:
    """Queries, and the patch of keys they all see."""

    queries: Box
    patch: Box


@dataclass(frozen=True)
class FarKeys:
    """Keys that a block attends beside its patch: (B, Hk, M, D), (B, Hk, M, Dv), and their bias, (M,) or None."""

    k: Tensor
    v: Tensor
    bias: Tensor | None = None


@dataclass(frozen=True)
class Halo:
    """The window of every windowed pattern.

    Attributes:
        radius: cells seen around a block of queries, at least: at a border the patch is shifted inward.
        block: rows and columns of a block of queries, at most; more where one patch covers the axis anyway.
        frames: frames seen before and after a block, at least; 0 = all frames.

    Raises:
        ValueError: a parameter out of range.
    """

    radius: int = 8
    block: int = 16
    frames: int = 0

    def __post_init__(self) -> None:
        whole("radius", self.radius, 0)
        whole("block", self.block, 1)
        whole("frames", self.frames, 0)

    @property
    def around(self) -> str:
        """What is seen, in words."""
        time = f"{self.frames} frames before and after" if self.frames else "all frames"
        return f"{self.radius} tokens around blocks of {self.block} x {self.block}, {time}"

    def rows(self, grid: TokenGrid) -> Iterator[list[Block]]:
        """The blocks of a grid, a row of them at a time; all patches have one size."""
        in_time = self.frames or grid.frames
        for frames, seen_frames in axis_blocks(grid.frames, min(2 * in_time, MOST_FRAMES), in_time):
            for rows, seen_rows in axis_blocks(grid.height, self.block, self.radius):
                yield [
                    Block(Box(frames, rows, columns), Box(seen_frames, seen_rows, seen_columns))
                    for columns, seen_columns in axis_blocks(grid.width, self.block, self.radius)
                ]


def block_size(length: int, block: int) -> int:
    """The smallest size that covers ``length`` with as many blocks as ``block`` does."""
    return math.ceil(length / math.ceil(length / block))


def axis_blocks(length: int, block: int, radius: int) -> list[tuple[slice, slice]]:
    """Blocks along an axis and their patches; one block where its patch covers the axis anyway.

    The last block is shifted back where blocks do not divide the axis: it computes some cells again. Patches are
    shifted inward, so that all are full and none needs a mask.
    """
    size = block_size(length, block)
    seen = size + 2 * radius
    if seen >= length:
        return [(slice(0, length), slice(0, length))]
    blocks = []
    for start in range(0, length, size):
        start = min(start, length - size)
        first = min(max(start - radius, 0), length - seen)
        blocks.append((slice(start, start + size), slice(first, first + seen)))
    return blocks


def halo_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    grid: TokenGrid,
    halo: Halo,
    out: Tensor,
    far_keys: Callable[[Box], FarKeys],
) -> None:
    """Writes the picture rows of ``out`` (B, N, H, Dv): every block against its patch and ``far_keys(patch)``.

    The blocks of a row stand in the batch, so that a row is one call of the fused kernel. Holds the keys and values
    of one row of blocks at a time. ``far_keys`` gives as many keys for every patch.
    """
    queries, keys, values = (grid.picture(x) for x in (q, k, v))
    target = grid.picture_rows(out)
    for row in halo.rows(grid):
        far = [far_keys(block.patch) for block in row]
        result = dense(
            torch.stack([block.queries.of(queries) for block in row], 1).flatten(3, 5).flatten(0, 1),
            _gather(keys, row, [f.k for f in far]),
            _gather(values, row, [f.v for f in far]),
            scale,
            _bias(q, row, far),
        ).unflatten(0, (-1, len(row)))
        for i, block in enumerate(row):
            box = block.queries
            target[:, box.frames, box.rows, box.columns] = result[:, i].unflatten(1, box.shape)


def _gather(x: Tensor, row: list[Block], far: list[Tensor]) -> Tensor:
    """The (B * blocks, H, patch + M, D) of (B, H, F, Y, X, D) that a row of blocks sees."""
    shape = row[0].patch.shape
    near = math.prod(shape)
    gathered = x.new_empty(x.shape[0], len(row), x.shape[1], near + far[0].shape[2], x.shape[-1])
    for i, block in enumerate(row):
        gathered[:, i, :, :near].unflatten(2, shape).copy_(block.patch.of(x))
        gathered[:, i, :, near:] = far[i]
    return gathered.flatten(0, 1)


def _bias(q: Tensor, row: list[Block], far: list[FarKeys]) -> Tensor | None:
    """(B * blocks, 1, 1, patch + M); the patch, which comes first, is never hidden."""
    biases = [f.bias for f in far if f.bias is not None]
    if not biases:
        return None
    far_bias = torch.stack(biases).to(score_dtype(q))
    near = far_bias.new_zeros(len(row), math.prod(row[0].patch.shape))
    return torch.cat((near, far_bias), 1)[:, None, None].repeat(q.shape[0], 1, 1, 1)
