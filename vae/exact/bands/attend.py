"""Attention whose keys and values lie in bands on several workers: the parts of its running softmax, merged."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..cutting.share import Share
from ..running.banded import Parts

SCORES = 1 << 24  # of a tile of scores, at most


class AttendBands:
    """(query, key, value, scale) -> Tensor, as :class:`..engine.ExactRun` takes it, over whole maps or over
    :class:`..running.banded.Parts` of them.

    Args:
        attend: over whole maps.
        share: the worker's band.

    Source: Milakov and Gimelshein, "Online normalizer calculation for softmax" (arXiv 1805.02867), algorithm 4, over
    parts instead of values.
    """

    def __init__(self, attend: Callable[..., Tensor], share: Share) -> None:
        self.attend, self.share = attend, share

    def __call__(self, query: Tensor, key: Any, value: Any, scale: float | None) -> Tensor:
        if not isinstance(key, Parts):
            return self.attend(query, key, value, scale)
        if self.share.is_whole:
            return self.attend(query, key.gifts[0](query.device)[0], value.gifts[0](query.device)[0], scale)
        wide = _wide(query.dtype)
        factor = query.shape[-1] ** -0.5 if scale is None else scale
        queries = query.to(wide) * factor
        out: Tensor | None = None
        most = torch.full(queries.shape[:-1], -math.inf, dtype=wide, device=query.device)
        total = torch.zeros_like(most)
        for keys_of, values_of in zip(key.gifts, value.gifts):
            (keys,), (values,) = keys_of(query.device), values_of(query.device)
            if out is None:
                out = queries.new_zeros((*queries.shape[:-1], values.shape[-1]))
            _add_part(queries, keys.to(wide), values.to(wide), out, most, total)
            del keys, values  # before the next ones come
        assert out is not None, "a map has rows"
        return out.div_(total.unsqueeze(-1)).to(query.dtype)

    def beside(
        self, device: torch.device, dtype: torch.dtype, queries: int, keys: int, channels: int, of_values: int
    ) -> int:
        """Bytes beyond the result: queries and result in float32, a visiting band of keys and values in its dtype and
        in float32, and a tile of scores with its exponentials."""
        visiting = max(self._band_of(keys, rank) for rank in range(self.share.workers))
        wide = _wide(dtype).itemsize
        moved = (channels + of_values) * visiting * (dtype.itemsize + (wide if wide != dtype.itemsize else 0))
        tile = 2 * min(queries * visiting, SCORES) * wide
        return queries * (channels + of_values + 4) * wide + moved + tile

    def _band_of(self, tokens: int, rank: int) -> int:
        """Tokens of a worker, at most."""
        cuts, grain = self.share.cuts, self.share.grain
        return -(-tokens * (cuts[rank + 1] - cuts[rank]) // grain) + max(1, tokens // grain)


def _add_part(queries: Tensor, keys: Tensor, values: Tensor, out: Tensor, most: Tensor, total: Tensor) -> None:
    """Adds a part of the keys to the running softmax.

    Args:
        queries: scaled. keys, values: (..., tokens, C).
        out: sums of values so far, times exp(-most); most, total: the largest score so far, and the sum of
            exp(score - most).
    """
    others = math.prod(queries.shape[:-2]) or 1
    height = max(1, SCORES // max(1, keys.shape[-2] * others))
    for first in range(0, queries.shape[-2], height):
        tile = slice(first, first + height)
        scores = queries[..., tile, :] @ keys.transpose(-1, -2)
        high = torch.maximum(most[..., tile], scores.amax(-1))
        shrink = (most[..., tile] - high).exp_()
        scores = scores.sub_(high.unsqueeze(-1)).exp_()
        total[..., tile] = total[..., tile] * shrink + scores.sum(-1)
        rows = out[..., tile, :]
        rows.mul_(shrink.unsqueeze(-1)).add_(scores @ values)
        most[..., tile] = high


def _wide(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype.itemsize >= 4 else torch.float32
