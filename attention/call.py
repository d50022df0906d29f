"""One attention call, whatever convention the caller used, as strided (B, H, N, D) views."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class AttentionCall:
    """A normalised attention call: ``softmax(scale * q k^T + mask) v``.

    Attributes:
        q: (B, H, Nq, D), any strides.
        k: (B, Hk, Nk, D); ``Hk`` divides ``H`` (grouped-query attention).
        v: (B, Hk, Nk, Dv).
        mask: None, or (B|1, H|1, Nq|1, Nk|1); bool (True = attend) or floating (added to the scores).
        scale: factor of the scores.
        heads_first_output: the caller wants (B, H, Nq, Dv) instead of (B, Nq, H * Dv).
        low_precision_refused: the caller asks not to use quantised kernels.
        others_compute: other threads of the process compute attention meanwhile, on other devices.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    scale: float
    heads_first_output: bool = False
    low_precision_refused: bool = False
    others_compute: bool = False

    @classmethod
    def bind(
        cls,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        heads: int,
        mask: Tensor | None = None,
        attn_precision: torch.dtype | None = None,
        skip_reshape: bool = False,
        skip_output_reshape: bool = False,
        **options: Any,
    ) -> AttentionCall:
        """Reads a call in the host's convention.

        Args:
            q, k, v: (B, N, H * D), or with ``skip_reshape`` (B, H, N, D). Each may also be 4-D in the first
                convention, as (B, N, H, D): SD3 passes its values so.
            heads: number of query heads.
            mask: 2-D (Nq, Nk), 3-D (B, Nq, Nk) or 4-D (B, H, Nq, Nk); every dim but the keys' may be 1.
            attn_precision: accepted and met by every exact backend: scores are float32 at least.
            skip_output_reshape: return (B, H, Nq, Dv).
            options: ``scale`` (None = 1 / sqrt(D)); ``low_precision_attention`` (False refuses quantised kernels);
                ``enable_gqa`` is implied by the shapes; the host's bookkeeping keywords are ignored.

        Raises:
            ValueError: shapes that do not fit, naming them.
        """
        q = _heads_first(q, heads, skip_reshape)
        k = _heads_first(k, k.shape[-1] // max(1, q.shape[-1]), skip_reshape)
        v = _heads_first(v, k.shape[1], skip_reshape)
        k, v = (x.expand(q.shape[0], -1, -1, -1) if x.shape[0] == 1 else x for x in (k, v))
        _check_shapes(q, k, v, heads)
        scale = options.get("scale")
        return cls(
            q=q,
            k=k,
            v=v,
            mask=None if mask is None else _four_dimensional(mask, q, k),
            scale=q.shape[-1] ** -0.5 if scale is None else float(scale),
            heads_first_output=skip_output_reshape,
            low_precision_refused=options.get("low_precision_attention") is False,
        )

    def pack(self, out: Tensor) -> Tensor:
        """Gives (B, Nq, H, Dv) back in the form the caller asked for, without a copy if it is contiguous."""
        if self.heads_first_output:
            return out.transpose(1, 2)
        return out.reshape(out.shape[0], out.shape[1], -1)

    @property
    def needs_grad(self) -> bool:
        """Whether a gradient will be asked for."""
        return torch.is_grad_enabled() and any(x.requires_grad for x in (self.q, self.k, self.v))


def _heads_first(x: Tensor, heads: int, heads_first: bool) -> Tensor:
    """A (B, H, N, D) view of (B, N, H * D), (B, N, H, D) or, with ``heads_first``, (B, H, N, D)."""
    if x.ndim == 4:
        return x if heads_first else x.transpose(1, 2)
    if x.ndim != 3 or heads == 0 or x.shape[-1] % heads:
        raise ValueError(f"attention input of shape {tuple(x.shape)} does not divide into {heads} heads")
    return x.unflatten(-1, (heads, x.shape[-1] // heads)).transpose(1, 2)


def _check_shapes(q: Tensor, k: Tensor, v: Tensor, heads: int) -> None:
    fits = (
        q.shape[1] == heads
        and k.shape[1] == v.shape[1]
        and heads % max(1, k.shape[1]) == 0
        and k.shape[2] == v.shape[2]
        and q.shape[0] == k.shape[0] == v.shape[0]
        and q.shape[3] == k.shape[3]
    )
    if not fits:
        raise ValueError(
            f"attention of {heads} heads does not fit q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
        )


def _four_dimensional(mask: Tensor, q: Tensor, k: Tensor) -> Tensor:
    if mask.ndim == 2:
        mask = mask[None, None]
    elif mask.ndim == 3:
        mask = mask[:, None]
    full = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    broadcasts = mask.ndim == 4 and all(m in (1, n) for m, n in zip(mask.shape, full))
    if not broadcasts or not (mask.dtype == torch.bool or mask.is_floating_point()):
        raise ValueError(
            f"attention mask of shape {tuple(mask.shape)} and {mask.dtype} does not fit scores of shape {full}; "
            "it must be boolean or floating and broadcast to them"
        )
    return mask
