"""How far a picture or a latent is from another, and whether the difference shows where pieces meet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from skimage.metrics import peak_signal_noise_ratio
from torch import Tensor


def value_range(reference: Tensor) -> float:
    """Largest minus smallest value."""
    return float(reference.max() - reference.min())


def psnr(result: Tensor, reference: Tensor, span: float | None = None) -> float:
    """Peak signal to noise ratio in dB; infinite for equal tensors.

    Args:
        span: the peak; None = the range of the reference.
    """
    pair = [tensor.detach().cpu().double().numpy() for tensor in (reference, result)]
    with np.errstate(divide="ignore"):
        return float(peak_signal_noise_ratio(*pair, data_range=value_range(reference) if span is None else span))


def max_error(result: Tensor, reference: Tensor) -> float:
    """The largest absolute difference, taken in double precision."""
    return float((result.double() - reference.double()).abs().max())


def colour_shift(result: Tensor, reference: Tensor, dim: int = 1) -> list[float]:
    """Per channel, the mean of the result less that of the reference.

    Args:
        dim: where the channels are.
    """
    error = (result.double() - reference.double()).movedim(dim, 0).flatten(1)
    return [float(mean) for mean in error.mean(1)]


def seam_ratio(error: Tensor, rows: Iterable[int] = (), columns: Iterable[int] = ()) -> float:
    """The mean step of an error from a line to the next where pieces meet, over the mean step elsewhere.

    1 = no seams: the error does not know of the pieces. An error of zero everywhere has none either.

    Args:
        error: (..., H, W).
        rows: first rows of pieces, the top one's left out.
        columns: the same across.
    """
    return _steps_at([(error, -2, rows), (error, -1, columns)])


def flicker_ratio(error: Tensor, frames: Iterable[int], dim: int = 0) -> float:
    """The same in time: the mean step of an error into the frames that begin a piece, over that into the others.

    Args:
        error: frames along ``dim``.
        frames: first frames of pieces, the first one's left out.
    """
    return _steps_at([(error, dim, frames)])


def _steps_at(axes: Sequence[tuple[Tensor, int, Iterable[int]]]) -> float:
    inside = outside = 0.0
    count_inside = count_outside = 0
    for error, dim, borders in axes:
        steps = error.double().diff(dim=dim).abs().movedim(dim, 0).flatten(1)
        at = sorted({border - 1 for border in borders if 0 < border <= len(steps)})
        if not at:
            continue
        of_line = steps.sum(1)
        inside += float(of_line[at].sum())
        outside += float(of_line.sum()) - float(of_line[at].sum())
        count_inside += len(at) * steps.shape[1]
        count_outside += (len(steps) - len(at)) * steps.shape[1]
    if not count_inside or not count_outside:
        return 1.0  # one piece, or nothing but borders: nothing to compare
    mean_inside, mean_outside = inside / count_inside, max(0.0, outside) / count_outside
    if mean_outside == 0.0:
        return 1.0 if mean_inside == 0.0 else float("inf")
    return mean_inside / mean_outside


def tile_borders(length: int, tile: int, overlap: int) -> set[int]:
    """Where tiles of a length, each sharing ``overlap`` with the next, begin and end within the whole."""
    if length <= tile:
        return set()
    starts = range(0, length - overlap, tile - overlap)
    ends = {start + tile for start in starts}
    return {border for border in {*starts, *ends} if 0 < border < length}


__all__ = ["colour_shift", "flicker_ratio", "max_error", "psnr", "seam_ratio", "tile_borders", "value_range"]
