"""Online attention: tiles of queries and keys with a running maximum and sum, O(N) memory."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .products import key_operand, score_buffer, value_operand, weighted_sum
from .tiles import (
    LOG2E,
    as_heads,
    divide_into,
    empty_output,
    exponentiate,
    from_heads,
    group_size,
    head_groups,
    mask_as_heads,
    mask_tile,
    score_dtype,
    score_tile,
    scores_are_safe,
    sequences_together,
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
    log_sum: Tensor | None = None,
    group: int = 0,
) -> Tensor:
    """Exact attention in memory that does not grow with Nq * Nk: the FlashAttention algorithm in plain torch.

    For CPUs, MPS, DirectML and old GPUs that have no fused kernel, and for calls the fused kernel refuses.

    Args:
        q: (B, H, Nq, D). k: (B, Hk, Nk, D). v: (B, Hk, Nk, Dv). Any strides; half dtypes are computed in float32.
        scale: factor of the scores.
        mask: None or (B|1, H|1, Nq|1, Nk|1), bool or additive.
        query_tile, key_tile: rows and columns of a score tile.
        log_sum: (B, H, Nq) of the scores' dtype; if given, it gets log(sum(exp(scores))) of each row, +inf where all
            keys are masked: what the backward needs.
        group: heads computed together; 0: by the device.

    Returns:
        (B, Nq, H, Dv), contiguous, in q's dtype. A row whose keys are all masked is zero, as in torch's SDPA.

    Memory beyond the output: :func:`online_bytes`, with G = 1 head on a CPU and H on an accelerator.

    Source: Dao et al., "FlashAttention" (arXiv 2205.14135), algorithm 1; the running softmax is Milakov &
    Gimelshein (arXiv 1805.02867), algorithm 3.
    """
    out = empty_output(q, v)
    if out.numel() == 0 or k.shape[2] == 0:
        if log_sum is not None:
            log_sum.fill_(math.inf)
        return out.zero_()
    together = sequences_together(q, k, v)
    if together > 1:
        for some in spans(q.shape[0], together):
            own, bias = [as_heads(x[some]) for x in (q, k, v)], mask_as_heads(mask, some, q)
            sums = None if log_sum is None else log_sum[some].view(1, -1, q.shape[2])
            attended = online_attention(
                own[0], own[1], own[2], scale, bias,
                query_tile=query_tile, key_tile=key_tile, log_sum=sums, group=own[0].shape[1],
            )  # fmt: skip
            out[some] = from_heads(attended, q.shape[1])
        return out
    group = group or group_size(q)
    rows, cols = min(query_tile, q.shape[2]), min(key_tile, k.shape[2])
    dtype = score_dtype(q)
    buffer = score_buffer(q, group, rows, cols, dtype)
    safe = scores_are_safe(q, k, scale, mask)
    for part in head_groups(q, k, v, group):
        for span in spans(q.shape[2], rows):
            q_rows = part.q[:, span].to(dtype)
            softmax = _RunningSoftmax(masked=mask is not None, safe=safe)
            for keys in spans(k.shape[2], cols):
                bias = None if mask is None else mask_tile(mask, part, span, keys)
                tile = score_tile(q_rows, key_operand(part.k[:, keys], dtype), scale, bias, buffer)
                softmax.add(tile, value_operand(part.v[:, keys], dtype))
                del tile  # before the next is made
            softmax.finish(out[part.batch, span, part.heads].transpose(0, 1))
            if log_sum is not None:
                log_sum[part.batch, part.heads, span] = softmax.log_sum()
    return out


def online_bytes(
    queries: int, keys: int, channels: int, values: int, heads: int = 1, dtype: torch.dtype = torch.float32
) -> int:
    """What :func:`online_attention` takes beyond its output, with the tiles of its defaults.

    Args:
        queries, keys: tokens.
        channels, values: of a head of queries and keys, and of values.
        heads: computed together.
        dtype: of the operands; float32 and float64 need no copy in the scores' dtype.
    """
    rows, cols = min(QUERY_TILE, queries), min(KEY_TILE, keys)
    copied = rows * channels + cols * max(channels, values) if dtype.itemsize < 4 else 0
    return max(4, dtype.itemsize) * heads * (rows * (cols + 2 * values) + copied)


class _RunningSoftmax:
    """softmax(scores) @ values, fed with one tile of keys after another."""

    def __init__(self, masked: bool, safe: bool) -> None:
        self.masked, self.safe = masked, safe
        self.values: Tensor | None = None
        self.row_max: Tensor | None = None
        self.row_sum: Tensor

    def add(self, tile: Tensor, v: Tensor) -> None:
        """Takes scores (G, rows, cols), which it overwrites, and their values (G, cols, Dv)."""
        decay = self._exponentiate(tile)
        tile_sum = tile.sum(-1, keepdim=True)
        if self.values is None:
            self.row_sum, self.values = tile_sum, weighted_sum(tile, v)
            return
        if decay is not None:
            self.row_sum.mul_(decay)
            self.values.mul_(decay)
        self.row_sum.add_(tile_sum)
        self.values.add_(weighted_sum(tile, v))

    def _exponentiate(self, tile: Tensor) -> Tensor | None:
        """Exponentiates in place; the factor by which everything before shrinks, if it does."""
        if self.safe:
            tile.exp2_()
            return None
        earlier, tile_max = self.row_max, tile.amax(-1, keepdim=True)
        self.row_max = tile_max if earlier is None else torch.maximum(earlier, tile_max)
        exponentiate(tile, self.row_max, self.masked)
        return None if earlier is None else exponentiate(earlier, self.row_max, self.masked)

    def finish(self, out: Tensor) -> None:
        """Writes the result into ``out``, (G, rows, Dv) of any dtype and strides."""
        assert self.values is not None, "there is at least one key"
        if self.masked:
            self.row_sum.masked_fill_(self.row_sum == 0, 1.0)
        divide_into(out, self.values, self.row_sum)

    def log_sum(self) -> Tensor:
        """(G, rows) log of the sum of exp(scores), natural units."""
        shift = self.row_max if self.row_max is not None else torch.zeros_like(self.row_sum)
        if not self.masked:  # scores are in units of log2
            return (self.row_sum.log2() + shift).squeeze(-1) / LOG2E
        log_sum = (self.row_sum.log() + shift).squeeze(-1)
        return log_sum.masked_fill(shift.squeeze(-1) == -math.inf, math.inf)
