"""Online attention: tiles of queries and keys with a running maximum and sum, O(N) memory."""

from __future__ import annotations

import torch
from torch import Tensor

from .tiles import (
    divide_into,
    empty_output,
    exponentiate,
    group_size,
    head_groups,
    score_dtype,
    score_tile,
    scores_are_safe,
    spans,
)

# Four MiB of float32 scores a head: larger tiles leave the caches, smaller ones cost more calls than they save.
QUERY_TILE = 1024
KEY_TILE = 1024


def online_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    mask: Tensor | None = None,
    *,
    query_tile: int = QUERY_TILE,
    key_tile: int = KEY_TILE,
) -> Tensor:
    """Exact attention in memory that does not grow with Nq * Nk: the FlashAttention algorithm in plain torch.

    For CPUs, MPS, DirectML and old GPUs that have no fused kernel, and for calls the fused kernel refuses.

    Args:
        q: (B, H, Nq, D). k: (B, Hk, Nk, D). v: (B, Hk, Nk, Dv). Any strides; half dtypes are computed in float32.
        scale: factor of the scores.
        mask: None or (B|1, H|1, Nq|1, Nk|1), bool or additive.
        query_tile, key_tile: rows and columns of a score tile.

    Returns:
        (B, Nq, H, Dv), contiguous, in q's dtype. A row whose keys are all masked is zero, as in torch's SDPA.

    Memory beyond the output: 4 * G * query_tile * (key_tile + Dv) bytes, with G = 1 head on a CPU and H on an
    accelerator; for half dtypes also one group's keys and values in float32.

    Source: Dao et al., "FlashAttention" (arXiv 2205.14135), algorithm 1; the running softmax is Milakov &
    Gimelshein (arXiv 1805.02867), algorithm 3.
    """
    out = empty_output(q, v)
    if out.numel() == 0 or k.shape[2] == 0:
        return out.zero_()
    group = group_size(q)
    rows, cols = min(query_tile, q.shape[2]), min(key_tile, k.shape[2])
    dtype = score_dtype(q)
    score_buffer = torch.empty(group * rows * cols, dtype=dtype, device=q.device)
    value_buffer = torch.empty(group * rows * v.shape[3], dtype=dtype, device=q.device)
    safe = scores_are_safe(q, k, scale, mask)
    for part in head_groups(q, k, v, group):
        for span in spans(q.shape[2], rows):
            q_rows = part.q[:, span].to(dtype)
            values = value_buffer[: q_rows.shape[0] * q_rows.shape[1] * v.shape[3]].view(*q_rows.shape[:2], v.shape[3])
            softmax = _RunningSoftmax(values, masked=mask is not None, safe=safe)
            for keys in spans(k.shape[2], cols):
                scores = score_tile(score_buffer, part, q_rows, span, keys, scale, mask)
                softmax.add(scores, part.v[:, keys])
            softmax.finish(out[part.batch, span, part.heads].transpose(0, 1))
    return out


class _RunningSoftmax:
    """softmax(scores) @ values, fed with one tile of keys after another; (G, rows, Dv) in ``values``."""

    def __init__(self, values: Tensor, masked: bool, safe: bool) -> None:
        self.values, self.masked, self.safe = values, masked, safe
        self.row_max: Tensor | None = None
        self.row_sum: Tensor | None = None

    def add(self, scores: Tensor, v: Tensor) -> None:
        """Takes scores (G, rows, cols), which it overwrites, and their values (G, cols, Dv)."""
        decay = self._exponentiate(scores)
        tile_sum = scores.sum(-1, keepdim=True)
        if self.row_sum is None:
            self.row_sum = tile_sum
            torch.bmm(scores, v, out=self.values)
            return
        if decay is not None:
            self.row_sum.mul_(decay)
            self.values.mul_(decay)
        self.row_sum.add_(tile_sum)
        self.values.baddbmm_(scores, v)

    def _exponentiate(self, scores: Tensor) -> Tensor | None:
        """Exponentiates in place; the factor by which everything before shrinks, if it does."""
        if self.safe:
            scores.exp2_()
            return None
        earlier, tile_max = self.row_max, scores.amax(-1, keepdim=True)
        self.row_max = tile_max if earlier is None else torch.maximum(earlier, tile_max)
        exponentiate(scores, self.row_max, self.masked)
        return None if earlier is None else exponentiate(earlier, self.row_max, self.masked)

    def finish(self, out: Tensor) -> None:
        """Writes the result into ``out``, (G, rows, Dv) of any dtype and strides."""
        assert self.row_sum is not None, "there is at least one key"
        if self.masked:
            self.row_sum.masked_fill_(self.row_sum == 0, 1.0)
        divide_into(out, self.values, self.row_sum)
