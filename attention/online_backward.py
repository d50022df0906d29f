"""Gradients of online attention: tiles are computed again from each row's statistics, O(N) memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .online import KEY_TILE, QUERY_TILE, online_attention
from .products import key_operand, score_buffer, scores, value_operand, weighted_sum
from .tiles import LOG2E, HeadGroup, group_size, head_groups, mask_tile, part_of_mask, score_dtype, score_tile, spans


class OnlineAttention(torch.autograd.Function):
    """:func:`online_attention` with a backward, an additive mask's among them. None of second order.

    Saved for the backward: the operands, the output, and one number per row.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None, query_tile: int, key_tile: int
    ) -> Tensor:
        """As :func:`online_attention`."""
        log_sum = torch.empty(q.shape[:3], dtype=score_dtype(q), device=q.device)
        out = online_attention(q, k, v, scale, mask, query_tile=query_tile, key_tile=key_tile, log_sum=log_sum)
        ctx.save_for_backward(q, k, v, mask, out, log_sum)
        ctx.scale, ctx.tiles = scale, (query_tile, key_tile)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        """As :func:`attention_gradients`; None for what has no gradient."""
        q, k, v, mask, out, log_sum = ctx.saved_tensors
        d_mask = torch.zeros_like(mask, dtype=log_sum.dtype) if ctx.needs_input_grad[4] else None
        rows, cols = ctx.tiles
        gradients = attention_gradients(d_out, q, k, v, ctx.scale, mask, out, log_sum, rows, cols, d_mask)
        return (*gradients, None, None if d_mask is None else d_mask.to(mask.dtype), None, None)


def online_attention_with_gradients(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    mask: Tensor | None = None,
    *,
    query_tile: int = QUERY_TILE,
    key_tile: int = KEY_TILE,
) -> Tensor:
    """As :func:`online_attention`; where a gradient is wanted, in memory that does not grow with Nq * Nk either."""
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (q, k, v, mask)):
        out: Tensor = OnlineAttention.apply(q, k, v, scale, mask, query_tile, key_tile)
        return out
    return online_attention(q, k, v, scale, mask, query_tile=query_tile, key_tile=key_tile)


def attention_gradients(
    d_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    mask: Tensor | None,
    out: Tensor,
    log_sum: Tensor,
    query_tile: int = QUERY_TILE,
    key_tile: int = KEY_TILE,
    d_mask: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients by q, k and v.

    Args:
        d_out, out: (B, Nq, H, Dv), the output's gradient and the output.
        q, k, v, scale, mask: as in :func:`online_attention`.
        log_sum: (B, H, Nq) from its forward.
        d_mask: in the mask's shape and log_sum's dtype; if given, the gradient by the mask is added to it.

    Returns:
        In the shapes and dtypes of q, k and v.

    Memory beyond the results: two tiles of 4 * G * query_tile * key_tile bytes, a few of their rows and columns, and
    for half dtypes a group's gradients in float32.

    Source: Dao et al., "FlashAttention" (arXiv 2205.14135), algorithm 4: with P = exp(S - log_sum) and
    D = rowsum(dO * O), dV = P^T dO, dS = P * (dO V^T - D), dQ = scale dS K, dK = scale dS^T Q; by a mask that is
    added to the scores it is dS, summed where the mask is broadcast.
    """
    # Query heads that share a key head add to it, in the scores' precision.
    grouped = q.shape[1] != k.shape[1]
    d_q, d_k, d_v = (
        torch.zeros(x.shape, dtype=score_dtype(q) if grouped and x is not q else x.dtype, device=x.device)
        for x in (q, k, v)
    )
    if d_out.numel() == 0 or k.shape[2] == 0:
        return d_q, d_k, d_v
    for part in head_groups(q, k, v, group_size(q)):
        backward = _GroupBackward(part, scale, mask, query_tile, key_tile, d_mask)
        d_rows = d_out[part.batch, :, part.heads].transpose(0, 1)
        row_sums = (d_rows.to(log_sum.dtype) * out[part.batch, :, part.heads].transpose(0, 1)).sum(-1, keepdim=True)
        backward.run(d_rows, row_sums, log_sum[part.batch, part.heads].unsqueeze(-1))
        d_q[part.batch, part.heads] = backward.d_q
        for whole, of_group in ((d_k, backward.d_k), (d_v, backward.d_v)):
            into = whole[part.batch, part.key_heads]
            into += of_group if into.shape[0] == of_group.shape[0] else of_group.sum(0, keepdim=True)
    return d_q, d_k.to(k.dtype), d_v.to(v.dtype)


class _GroupBackward:
    """The gradients of one group of heads, (G, N, D) in the scores' dtype."""

    def __init__(
        self, part: HeadGroup, scale: float, mask: Tensor | None, query_tile: int, key_tile: int, d_mask: Tensor | None
    ) -> None:
        self.part, self.scale, self.mask, self.d_mask = part, scale, mask, d_mask
        self.dtype = score_dtype(part.q)
        self.rows, self.cols = min(query_tile, part.q.shape[1]), min(key_tile, part.k.shape[1])
        self.d_q, self.d_k, self.d_v = (
            torch.zeros(x.shape, dtype=self.dtype, device=x.device) for x in (part.q, part.k, part.v)
        )
        size = part.q.shape[0]
        self.buffers = [score_buffer(part.q, size, self.rows, self.cols, self.dtype) for _ in range(2)]

    def run(self, d_out: Tensor, row_sums: Tensor, log_sum: Tensor) -> None:
        """All tiles; d_out (G, Nq, Dv), row_sums and log_sum (G, Nq, 1)."""
        for keys in spans(self.part.k.shape[1], self.cols):
            k = self.part.k[:, keys].to(self.dtype)
            v = self.part.v[:, keys].to(self.dtype)
            for rows in spans(self.part.q.shape[1], self.rows):
                self._tile(rows, keys, k, v, d_out[:, rows].to(self.dtype), row_sums[:, rows], log_sum[:, rows])

    def _tile(
        self, rows: slice, keys: slice, k: Tensor, v: Tensor, d_out: Tensor, row_sums: Tensor, log_sum: Tensor
    ) -> None:
        q = self.part.q[:, rows].to(self.dtype)
        weights = self._weights(q, k, rows, keys, log_sum)
        self.d_v[:, keys].baddbmm_(weights.transpose(1, 2), d_out)
        d_scores = scores(d_out, key_operand(v, self.dtype), 1.0, self.buffers[1])
        d_scores.sub_(row_sums).mul_(weights)
        if self.d_mask is not None:
            into = part_of_mask(self.d_mask, self.part, rows, keys)
            into += d_scores.sum_to_size(into.shape)
        d_scores.mul_(self.scale)
        self.d_q[:, rows] += weighted_sum(d_scores, value_operand(k, self.dtype))
        self.d_k[:, keys].baddbmm_(d_scores.transpose(1, 2), q)

    def _weights(self, q: Tensor, k: Tensor, rows: slice, keys: slice, log_sum: Tensor) -> Tensor:
        """The softmax of a tile: exp(scores - log_sum)."""
        bias = None if self.mask is None else mask_tile(self.mask, self.part, rows, keys)
        tile = score_tile(q, key_operand(k, self.dtype), self.scale, bias, self.buffers[0])
        if bias is None:
            return tile.sub_(log_sum * LOG2E).exp2_()
        return tile.sub_(log_sum).mul_(LOG2E).exp2_()
