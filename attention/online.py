"""Online attention: tiles of queries and keys with a running maximum and sum, O(N) memory."""

from __future__ import annotations

import torch
from torch import Tensor

from .tiles import HeadGroup, empty_output, exponentiate, group_size, head_groups, score_dtype, score_tile, spans

QUERY_TILE = 512
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
    for part in head_groups(q, k, v, group):
        for span in spans(q.shape[2], rows):
            q_rows = part.q[:, span].to(dtype)
            tile = _query_tile(part, q_rows, span, cols, scale, mask, score_buffer, value_buffer)
            out[part.batch, span, part.heads].transpose(0, 1).copy_(tile)
    return out


def _query_tile(
    part: HeadGroup,
    q_rows: Tensor,
    rows: slice,
    key_tile: int,
    scale: float,
    mask: Tensor | None,
    score_buffer: Tensor,
    value_buffer: Tensor,
) -> Tensor:
    """Attention of one tile of queries, (G, rows, Dv), in ``value_buffer``."""
    masked = mask is not None
    width = part.v.shape[2]
    values = value_buffer[: q_rows.shape[0] * q_rows.shape[1] * width].view(*q_rows.shape[:2], width)
    row_max: Tensor | None = None
    row_sum = torch.zeros((), dtype=values.dtype, device=values.device)
    for cols in spans(part.v.shape[1], key_tile):
        scores = score_tile(score_buffer, part, q_rows, rows, cols, scale, mask)
        tile_max = scores.amax(-1, keepdim=True)
        new_max = tile_max if row_max is None else torch.maximum(row_max, tile_max)
        exponentiate(scores, new_max, masked)
        tile_sum = scores.sum(-1, keepdim=True)
        if row_max is None:
            row_sum = tile_sum
            torch.bmm(scores, part.v[:, cols], out=values)
        else:
            decay = exponentiate(row_max, new_max, masked)
            row_sum = row_sum.mul_(decay).add_(tile_sum)
            values.mul_(decay).baddbmm_(scores, part.v[:, cols])
        row_max = new_max
    if masked:
        row_sum.masked_fill_(row_sum == 0, 1.0)
    return values.div_(row_sum)
