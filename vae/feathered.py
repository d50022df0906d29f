"""Feathered tiling: run an autoencoder on overlapping tiles and blend the results, in one pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from itertools import product
from typing import Any

import torch
from torch import Tensor

from .axis import Axis
from .feather import feather_windows


class Direction(Enum):
    """Which way the autoencoder runs: cells to pixels, or pixels to cells."""

    DECODE = "decode"
    ENCODE = "encode"


def feathered(
    x: Tensor,
    run: Callable[[Tensor], Tensor],
    axes: Sequence[Axis],
    direction: Direction,
    feather: str = "cosine",
    on_tile: Callable[[Tensor], None] = lambda blended: None,
) -> Tensor:
    """Applies ``run`` to each tile of ``x`` and blends the results.

    Every tile is run once. Weights of the tiles sum to 1 everywhere, so the result needs no second buffer: it is
    accumulated in float32 in the output itself. Approximate: what lies within the autoencoder's receptive field of
    a tile's border has seen padding, and global statistics or attention (group norm, a mid-block attention) see the
    tile alone. Farther from the borders a purely convolutional autoencoder's result is exact.

    Args:
        x: (B, C, *S), latent cells or pixels; the last ``len(axes)`` dims are tiled.
        run: decodes or encodes a (B, C, *tile) tensor, and returns it where the result shall live.
        axes: one per tiled dim.
        direction: whether ``x`` is cells or pixels.
        feather: cosine, linear or gaussian; a causal axis is joined instead.
        on_tile: called after each tile with the blended output so far (for progress, cancelling, previews).

    Returns:
        (B, C', *S'), float32 with several tiles; ``run``'s own result, untouched, with one.
    """
    decoding = direction is Direction.DECODE
    pixel_spans = [[axis.pixel_span(cells) for cells in axis.cells] for axis in axes]
    cell_spans = [list(axis.cells) for axis in axes]
    sources, targets = (cell_spans, pixel_spans) if decoding else (pixel_spans, cell_spans)
    if all(len(axis.cells) == 1 for axis in axes):
        result = run(x[_region(sources, [0] * len(axes))])
        on_tile(result)
        return result
    windows = [feather_windows(spans, feather, axis.causal) for spans, axis in zip(targets, axes)]
    out: Tensor | None = None
    for tile in product(*(range(len(axis.cells)) for axis in axes)):
        result = run(x[_region(sources, tile)])
        if out is None:
            size = [spans[-1].stop for spans in targets]
            out = torch.zeros((*result.shape[: -len(axes)], *size), dtype=torch.float32, device=result.device)
        out[_region(targets, tile)] += _weighted(result, [w[i] for w, i in zip(windows, tile)])
        on_tile(out)
    assert out is not None, "a cover has at least one tile"
    return out


def _region(spans: Sequence[Sequence[slice]], tile: Sequence[int]) -> tuple[Any, ...]:
    """The index of a tile: its slice of each tiled dim, behind whatever dims come before."""
    return (..., *(axis[i] for axis, i in zip(spans, tile)))


def _weighted(tile: Tensor, windows: Sequence[Tensor]) -> Tensor:
    tile = tile.float()
    for dim, window in enumerate(reversed(windows)):
        tile = tile * window.to(tile.device).view(-1, *(1,) * dim)
    return tile
