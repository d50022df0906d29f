"""One tiled axis of an autoencoder: tiles in latent cells, and where their pixels (or frames) lie."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Axis:
    """Tiles along one axis.

    Attributes:
        cells: the tiles, as slices of latent cells; they cover the axis, neighbours overlap.
        pixels: how many pixels (frames) n cells decode to.
        causal: a position depends on those before it only, so a tile is right at its end and wrong at its
            beginning: tiles are then joined where the earlier one ends, not faded into each other.
    """

    cells: tuple[slice, ...]
    pixels: Callable[[int], int]
    causal: bool = False

    def pixel_span(self, cells: slice) -> slice:
        """Where a tile's pixels lie among all pixels.

        Tile and whole are aligned at their ends: a causal video autoencoder decodes the first cell it sees to
        one frame and each later one to k, so a tile that starts inside the video lacks k - 1 frames at its
        beginning, not at its end.
        """
        stop = self.pixels(cells.stop)
        return slice(stop - self.pixels(cells.stop - cells.start), stop)


def cover(length: int, tile: int, overlap: int) -> tuple[slice, ...]:
    """Evenly spaced equal tiles over ``length`` cells, each sharing at least ``overlap`` with the next.

    Raises:
        ValueError: ``overlap`` is not smaller than ``tile``.
    """
    if tile >= length:
        return (slice(0, length),)
    if overlap >= tile:
        raise ValueError(f"overlap ({overlap} cells) must be smaller than the tile ({tile} cells)")
    count = -(-(length - overlap) // (tile - overlap))
    starts = [round(i * (length - tile) / (count - 1)) for i in range(count)]
    return tuple(slice(start, start + tile) for start in starts)


def pixels_per_cell(ratio: int) -> Callable[[int], int]:
    """Cells to pixels where each cell decodes to ``ratio`` pixels."""
    return lambda cells: cells * ratio


def causal_frames(ratio: int) -> Callable[[int], int]:
    """Cells to frames of a causal video autoencoder: the first cell is one frame, each later one ``ratio``."""
    return lambda cells: max(0, (cells - 1) * ratio + 1)
