"""torch's fused attention, called for what it can do in one kernel."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def sdpa_attention(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None = None) -> Tensor:
    """Attention by :func:`torch.nn.functional.scaled_dot_product_attention`, kernel of torch's choice.

    Args:
        q: (B, H, Nq, D). k: (B, Hk, Nk, D). v: (B, Hk, Nk, Dv).
        scale: factor of the scores.
        mask: None or (B|1, H|1, Nq|1, Nk|1), bool or additive. A float mask is cast to q's dtype where SDPA
            would refuse the pair; float16 turns finfo(float32).min into -inf, as the host's own cast does.

    Returns:
        (B, Nq, H, Dv); a view when the kernel wrote heads first.
    """
    if (mask is not None and mask.dtype not in (torch.bool, torch.float32, q.dtype)) or (
        mask is not None and mask.dtype == torch.float32 and q.dtype == torch.float64
    ):
        mask = mask.to(q.dtype)
    grouped = q.shape[1] != k.shape[1]
    # enable_gqa is passed only where it is needed: older torch does not know the keyword.
    extra = {"enable_gqa": True} if grouped else {}
    out = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, **extra)
    return out.transpose(1, 2)


def fused_kernel_refusal(q: Tensor, k: Tensor, v: Tensor) -> str | None:
    """Why SDPA would fall to its math kernel, which holds the whole Nq x Nk matrix; None if it would not."""
    if q.shape[-1] != v.shape[-1]:
        return f"keys of {q.shape[-1]} and values of {v.shape[-1]} channels have no fused kernel"
    if any(x.stride(-1) != 1 for x in (q, k, v)):
        return "channels that are not contiguous have no fused kernel"
    return None
