"""Feather windows: how much each of several overlapping tiles counts at each position."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

# Each maps a position in the overlap, 0 (the tile's border) to 1 (where the neighbour ends), to a weight.
FEATHERS: dict[str, Callable[[Tensor], Tensor]] = {
    "cosine": lambda t: 0.5 - 0.5 * torch.cos(math.pi * t),
    "linear": lambda t: t,
    # Half a bell: 3.5 standard deviations lie between the neighbour's end and the border.
    "gaussian": lambda t: torch.exp(-0.5 * (3.5 * (1.0 - t)) ** 2),
}


def feather_windows(spans: Sequence[slice], feather: str, causal: bool = False) -> list[Tensor]:
    """One weight vector per tile of an axis; at every position the weights of all tiles sum to 1.

    Weights are those of pixel centres, so the border pixel, which saw the most padding, counts little but not
    nothing. Nothing fades at the ends of the axis, and a lone tile has weights of exactly 1: its result is
    bit-identical to an untiled run.

    Args:
        spans: the tiles, in order, covering 0 to the last stop.
        feather: a key of :data:`FEATHERS`.
        causal: trust the earlier tile over the whole overlap; see :class:`~.axis.Axis`.

    Returns:
        float32 vectors, each as long as its tile.
    """
    windows = [_window(spans, i, feather, causal) for i in range(len(spans))]
    total = torch.zeros(spans[-1].stop, dtype=torch.float64)
    for span, window in zip(spans, windows):
        total[span] += window
    return [(window / total[span]).float() for span, window in zip(spans, windows)]


def _window(spans: Sequence[slice], i: int, feather: str, causal: bool) -> Tensor:
    """Weights of one tile before they are made to sum to 1 with its neighbours'."""
    span = spans[i]
    before = spans[i - 1].stop - span.start if i else 0
    if causal:
        return torch.cat((torch.zeros(before), torch.ones(span.stop - span.start - before))).double()
    after = span.stop - spans[i + 1].start if i + 1 < len(spans) else 0
    return _ramp(span, before, feather) * _ramp(span, after, feather).flip(0)


def _ramp(span: slice, overlap: int, feather: str) -> Tensor:
    """Weights rising over the first ``overlap`` positions of a tile, 1 afterwards."""
    weights = torch.ones(span.stop - span.start, dtype=torch.float64)
    positions = (torch.arange(overlap, dtype=torch.float64) + 0.5) / max(1, overlap)
    weights[:overlap] = FEATHERS[feather](positions)
    return weights
