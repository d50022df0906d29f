"""Sliced attention: a few query rows against all keys at a time."""

from __future__ import annotations

from torch import Tensor

from .products import key_operand, score_buffer, value_operand, weighted_sum
from .tiles import (
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

# Score bytes of one slice when the caller names no rows. On a CPU the smaller slice is the faster one, since it
# stays in cache; on an accelerator it must be large enough to fill the device.
CPU_SLICE_BYTES = 2 << 20
ACCELERATOR_SLICE_BYTES = 256 << 20


def sliced_attention(
    q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None = None, *, rows: int = 0, group: int = 0
) -> Tensor:
    """Exact attention that holds the scores of ``rows`` query rows at a time.

    Args:
        q: (B, H, Nq, D). k: (B, Hk, Nk, D). v: (B, Hk, Nk, Dv). Any strides; half dtypes are computed in float32.
        scale: factor of the scores.
        mask: None or (B|1, H|1, Nq|1, Nk|1), bool or additive.
        rows: query rows per slice; 0 chooses them so that a slice's scores take 2 MiB on a CPU, 256 MiB on an
            accelerator. Nq need not be a multiple of it.
        group: heads computed together; 0: by the device.

    Returns:
        (B, Nq, H, Dv), contiguous, in q's dtype. A row whose keys are all masked is zero, as in torch's SDPA.

    Memory beyond the output: 4 * G * rows * Nk bytes, with G = 1 head on a CPU and H on an accelerator; for half
    dtypes, and on a CPU, also a group's keys and values in float32.

    Source: Rabe & Staats, "Self-attention Does Not Need O(n^2) Memory" (arXiv 2112.05682), section 2, with the
    chunks along the queries only.
    """
    out = empty_output(q, v)
    keys = k.shape[2]
    if out.numel() == 0 or keys == 0:
        return out.zero_()
    together = sequences_together(q, k, v)
    if together > 1:
        for some in spans(q.shape[0], together):
            own, bias = [as_heads(x[some]) for x in (q, k, v)], mask_as_heads(mask, some, q)
            attended = sliced_attention(own[0], own[1], own[2], scale, bias, rows=rows, group=own[0].shape[1])
            out[some] = from_heads(attended, q.shape[1])
        return out
    group = group or group_size(q)
    rows = min(rows or _rows_for(q, keys, group), q.shape[2])
    dtype = score_dtype(q)
    buffer = score_buffer(q, group, rows, keys, dtype)
    safe = scores_are_safe(q, k, scale, mask)
    for part in head_groups(q, k, v, group):
        all_keys, values = key_operand(part.k, dtype), value_operand(part.v, dtype)
        for span in spans(q.shape[2], rows):
            bias = None if mask is None else mask_tile(mask, part, span, slice(0, keys))
            tile = score_tile(part.q[:, span].to(dtype), all_keys, scale, bias, buffer)
            if safe:
                tile.exp2_()
            else:
                exponentiate(tile, tile.amax(-1, keepdim=True), mask is not None)
            total = tile.sum(-1, keepdim=True)
            if mask is not None:
                total.masked_fill_(total == 0, 1.0)
            divide_into(out[part.batch, span, part.heads].transpose(0, 1), weighted_sum(tile, values), total)
            del tile  # before the next is made
    return out


def _rows_for(q: Tensor, keys: int, group: int) -> int:
    budget = CPU_SLICE_BYTES if q.device.type == "cpu" else ACCELERATOR_SLICE_BYTES
    return max(16, budget // (score_dtype(q).itemsize * group * keys))
