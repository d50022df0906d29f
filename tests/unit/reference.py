"""What the unit tests compare with: attention in float64 by its formula, and errors."""

import torch
from torch import Tensor


def reference_attention(
    q: Tensor, k: Tensor, v: Tensor, scale: float | None = None, mask: Tensor | None = None
) -> Tensor:
    """softmax(scale q k^T + mask) v of (B, H, N, D) operands, in float64; fully masked rows are 0."""
    q, k, v = (x.double() for x in (q, k, v))
    groups = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(groups, 1) for x in (k, v))
    scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if mask is not None:
        additive = torch.zeros(mask.shape, dtype=torch.float64)
        scores = scores + (additive.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else mask.double())
    return torch.softmax(scores, -1).nan_to_num(0.0) @ v


def relative_error(result: Tensor, reference: Tensor) -> float:
    return float((result.double() - reference).norm() / reference.norm().clamp_min(1e-300))
