"""Dense attention of the small operands that a pattern gathers, and the rows that every pattern keeps exact."""

from __future__ import annotations

from torch import Tensor

from ..backends import choose
from ..call import AttentionCall
from ..tiles import empty_output
from .grid import TokenGrid


def dense(q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Tensor | None = None) -> Tensor:
    """``softmax(scale * q k^T + bias) v`` by the exact backend that suits the device; O(Nq + Nk) memory.

    Args:
        q: (B, H, Nq, D). k: (B, Hk, Nk, D). v: (B, Hk, Nk, Dv); ``Hk`` divides ``H``.
        bias: None, or (B|1, Hk|1, 1, Nk) floating, added to the scores of every query; -inf hides a key.

    Returns:
        (B, Nq, H, Dv), perhaps a view.
    """
    group = q.shape[1] // max(1, k.shape[1])
    if group > 1:
        # A bias of keys alone lets the queries that share a key head stand as rows of one head, which every fused
        # kernel takes; grouped heads together with a mask only some do.
        q = q.unflatten(1, (-1, group)).flatten(2, 3)
    if bias is not None and q.device.type != "cpu":
        bias = bias.to(q.dtype)  # fused kernels of accelerators take no other
    call = AttentionCall(q, k, v, bias, scale)
    out = choose("auto", call).backend.run(call)
    if group > 1:
        out = out.unflatten(1, (group, -1)).permute(0, 2, 3, 1, 4).flatten(2, 3)
    return out


def with_text_rows(q: Tensor, k: Tensor, v: Tensor, scale: float, grid: TokenGrid) -> Tensor:
    """A pattern's output with the rows of text queries done, exactly; those of the picture are still to be written.

    Returns:
        (B, N, H, Dv), contiguous, in q's dtype.

    Raises:
        ValueError: operands that do not fit ``grid``.
    """
    grid.check(q, k, v)
    out = empty_output(q, v)
    if grid.before + grid.after:
        grid.put_text(out, dense(grid.text(q), k, v, scale))
    return out
