"""What the tiled attentions share: head groups, score tiles, masks on a tile, and the exponential.

Scores are float32 (float64 for float64 inputs) whatever the inputs' dtype, so half-precision logits beyond
65504 stay finite.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from .products import scores

LOG2E = math.log2(math.e)
# Scores known to stay within this (natural units) are exponentiated without subtracting the row's maximum: their
# exponentials lie within 2^-58 and 2^58, so sums over 2^20 keys and values up to 2^48 stay far from float32's ends.
SAFE_SCORE = 40.0
# Short sequences that are computed as one: how many at least, and the elements of their scores, or queries, at most.
FEWEST_TOGETHER, CPU_TOGETHER, ACCELERATOR_TOGETHER = 4, 1 << 19, 1 << 23


@dataclass(frozen=True)
class HeadGroup:
    """Heads computed together: their index ranges and (G, N, D) operands, which are views in their own dtype."""

    batch: int
    heads: slice
    key_heads: slice
    q: Tensor
    k: Tensor
    v: Tensor


def score_dtype(q: Tensor) -> torch.dtype:
    """float64 for float64 inputs, else float32."""
    return torch.float64 if q.dtype == torch.float64 else torch.float32


def head_groups(q: Tensor, k: Tensor, v: Tensor, group: int) -> Iterator[HeadGroup]:
    """Splits (B, H, N, D) operands into groups of at most ``group`` query heads over the same key heads.

    Grouped-query heads are indexed, never repeated in memory.
    """
    queries_per_key = q.shape[1] // k.shape[1]
    step = group if queries_per_key == 1 else math.gcd(group, queries_per_key)
    for batch in range(q.shape[0]):
        for first in range(0, q.shape[1], step):
            heads = slice(first, min(first + step, q.shape[1]))
            key_heads = slice(first // queries_per_key, (heads.stop - 1) // queries_per_key + 1)
            size = heads.stop - first
            keys, values = (x[batch, key_heads].expand(size, -1, -1) for x in (k, v))
            yield HeadGroup(batch, heads, key_heads, q[batch, heads], keys, values)


def part_of_mask(mask: Tensor, group: HeadGroup, rows: slice, cols: slice) -> Tensor:
    """A view of a (B|1, H|1, Nq|1, Nk|1) mask over one tile, still broadcast where it was."""
    tile = mask[group.batch if mask.shape[0] > 1 else 0]
    tile = tile[group.heads] if tile.shape[0] > 1 else tile
    tile = tile[:, rows] if tile.shape[1] > 1 else tile
    return tile[:, :, cols] if tile.shape[2] > 1 else tile


def mask_tile(mask: Tensor, group: HeadGroup, rows: slice, cols: slice) -> Tensor:
    """As :func:`part_of_mask`, additive."""
    tile = part_of_mask(mask, group, rows, cols)
    if tile.dtype == torch.bool:
        # 1 - 1/m maps {1, 0} to {0, -inf}; on a CPU five times cheaper than masked_fill_ on the scores.
        return tile.to(torch.float32).reciprocal_().neg_().add_(1.0)
    return tile


def score_tile(
    q_rows: Tensor,
    keys: Tensor,
    scale: float,
    mask: Tensor | None,
    buffer: Tensor | None,
) -> Tensor:
    """Scores of query rows against key columns, (G, rows, cols), which the caller may overwrite.

    In units of log2 without a mask (the factor is folded into the matrix product), natural units with one: a
    mask of finfo.min times log2(e) would overflow to -inf and lose its rows.

    Args:
        q_rows: (G, rows, D) in the score dtype.
        keys: (G, cols, D), from :func:`.products.key_operand`.
        mask: additive, of :func:`mask_tile`.
    """
    tile = scores(q_rows, keys, scale * LOG2E if mask is None else scale, buffer)
    return tile if mask is None else tile.add_(mask)


def exponentiate(tile: Tensor, row_max: Tensor, masked: bool) -> Tensor:
    """``exp(tile - row_max)`` in place.

    By exp2: torch's CPU exp is several times slower than its exp2. A row that is masked out entirely has a
    maximum of -inf and becomes all zeros.
    """
    if masked:
        tile.sub_(row_max.masked_fill(row_max == -math.inf, 0.0)).mul_(LOG2E)
    else:
        tile.sub_(row_max)
    return tile.exp2_()


def scores_are_safe(q: Tensor, k: Tensor, scale: float, mask: Tensor | None) -> bool:
    """Whether |q| |k| proves (Cauchy-Schwarz) that no score of any head leaves :data:`SAFE_SCORE`.

    Only asked on a CPU: elsewhere reading the answer would stall the device. NaN answers no.
    """
    if mask is not None or q.device.type != "cpu" or isinstance(q, FakeTensor):  # a prediction has no data to ask
        return False
    longest_q, longest_k = (torch.linalg.vector_norm(x, dim=3, dtype=score_dtype(x)).amax(2) for x in (q, k))
    grouped_q = longest_q.unflatten(1, (k.shape[1], -1))
    return bool((grouped_q * longest_k.unsqueeze(2)).amax() * abs(scale) <= SAFE_SCORE)


def spans(length: int, step: int) -> Iterator[slice]:
    """Consecutive slices of ``step``, the last perhaps shorter."""
    for start in range(0, length, step):
        yield slice(start, min(start + step, length))


def group_size(q: Tensor) -> int:
    """Heads computed together: one on a CPU, where a small tile stays in cache; all of them on an accelerator,
    where one head alone would leave most of the device idle."""
    return 1 if q.device.type == "cpu" else q.shape[1]


def sequences_together(q: Tensor, k: Tensor, v: Tensor) -> int:
    """How many of a batch are computed as one. A video's attention over time has thousands, of a few tokens each: one
    after the other they would take many times as long."""
    most = CPU_TOGETHER if q.device.type == "cpu" else ACCELERATOR_TOGETHER
    of_one = q.shape[1] * max(q.shape[2], k.shape[2]) * max(k.shape[2], q.shape[3], v.shape[3])
    together = min(q.shape[0], most // max(1, of_one))
    return together if together >= FEWEST_TOGETHER else 1


def as_heads(x: Tensor) -> Tensor:
    """(B, H, N, D) -> (1, B * H, N, D)."""
    return x.flatten(0, 1)[None]


def mask_as_heads(mask: Tensor | None, part: slice, q: Tensor) -> Tensor | None:
    """The mask of some sequences of q (B, H, Nq, D) that are computed as one."""
    if mask is None or mask.shape[0] == mask.shape[1] == 1:
        return mask
    own = mask if mask.shape[0] == 1 else mask[part]
    return as_heads(own.expand(part.stop - part.start, q.shape[1], -1, -1))


def from_heads(out: Tensor, heads: int) -> Tensor:
    """(1, N, B * H, D) -> (B, N, H, D)."""
    return out[0].unflatten(1, (-1, heads)).transpose(0, 1)


def empty_output(q: Tensor, v: Tensor) -> Tensor:
    """An uninitialised (B, Nq, H, Dv) in q's dtype."""
    return torch.empty((q.shape[0], q.shape[2], q.shape[1], v.shape[3]), dtype=q.dtype, device=q.device)


def divide_into(out: Tensor, values: Tensor, total: Tensor) -> None:
    """``out = values / total``, rounded to out's dtype once."""
    if out.dtype == values.dtype:
        torch.div(values, total, out=out)
    else:
        out.copy_(values.div_(total))
