"""Choosing tiles: as few as fit a byte budget, or the size the user names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .axis import Axis, cover

# Below this a tile is mostly border: its pixels see more padding than picture.
SMALLEST_TILE = 16


@dataclass(frozen=True)
class TileRequest:
    """What is asked of one axis, in latent cells.

    Attributes:
        length: cells of the whole.
        tile: cells of a tile; 0 = as the budget allows.
        overlap: cells shared with the next tile, at least.
        pixels: how many pixels (frames) n cells decode to.
        smallest: the budget never makes a tile smaller than this.
        causal: see :class:`~.axis.Axis`.
    """

    length: int
    tile: int
    overlap: int
    pixels: Callable[[int], int]
    smallest: int = SMALLEST_TILE
    causal: bool = False


@dataclass(frozen=True)
class TilePlan:
    """Tiles for all axes, and what the largest tile is estimated to need.

    Attributes:
        axes: one per tiled dim.
        bytes: estimate for one tile.
        fits: whether that is within the budget.
    """

    axes: tuple[Axis, ...]
    bytes: int
    fits: bool

    @property
    def tiles(self) -> int:
        """How many there are."""
        count = 1
        for axis in self.axes:
            count *= len(axis.cells)
        return count

    @property
    def tile_cells(self) -> tuple[int, ...]:
        """Cells of a tile along each axis."""
        return tuple(axis.cells[0].stop - axis.cells[0].start for axis in self.axes)


def plan_tiles(
    requests: Sequence[TileRequest], estimate: Callable[[Sequence[int]], float], budget: float, least_tiles: int = 1
) -> TilePlan:
    """Tiles of the named sizes; axes without one are split, the longest tile first, until a tile fits.

    Args:
        requests: one per axis, slowest first.
        estimate: bytes needed for a tile of the given cells.
        budget: bytes one tile may need.
        least_tiles: split at least into so many (after a failure to allocate).

    Returns:
        The first plan that fits; if none does, the one with the smallest tiles, ``fits`` False.
    """
    counts = [1] * len(requests)
    while True:
        plan = _plan(requests, counts, estimate, budget)
        if plan.fits and plan.tiles >= least_tiles:
            return plan
        split = _axis_to_split(requests, plan.tile_cells)
        if split is None:
            return plan
        counts[split] += 1


def _plan(
    requests: Sequence[TileRequest], counts: Sequence[int], estimate: Callable[[Sequence[int]], float], budget: float
) -> TilePlan:
    axes = tuple(Axis(_cells(r, count), r.pixels, r.causal) for r, count in zip(requests, counts))
    tile = [axis.cells[0].stop - axis.cells[0].start for axis in axes]
    need = int(estimate(tile))
    return TilePlan(axes, need, need <= budget)


def _cells(request: TileRequest, count: int) -> tuple[slice, ...]:
    if request.tile:
        return cover(request.length, request.tile, request.overlap)
    tile = -(-(request.length + (count - 1) * request.overlap) // count)
    return cover(request.length, max(tile, request.overlap + 1), request.overlap)


def _axis_to_split(requests: Sequence[TileRequest], tile: Sequence[int]) -> int | None:
    """The axis whose tile is longest beyond its smallest; None when nothing can be split."""
    room = [
        0.0 if request.tile or size <= max(request.smallest, 2 * request.overlap) else size / request.smallest
        for request, size in zip(requests, tile)
    ]
    return room.index(max(room)) if max(room) > 0 else None
