"""Which of torch's attention kernels would run on a card, told without the card."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from .card import Card

aten = torch.ops.aten
HALF = (torch.float16, torch.bfloat16)
KERNELS = ("cudnn", "flash", "efficient", "math")  # the first that can takes the call
WIDEST_CUDNN, WIDEST_CUDNN_HOPPER, WIDEST_FLASH = 128, 256, 256


def kernel_refusal_on(card: Card, kernel: str, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> str | None:
    """Why a kernel of torch's would not take a call on a card; None if it would.

    Args:
        kernel: one of :data:`KERNELS`.
        q, k, v: (B, H, N, D).
        mask: None, or what broadcasts to the scores.

    Source: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp of torch 2.11, read; not run on each card.
    """
    capability = card.capability or (0, 0)
    width, values, half = q.shape[-1], v.shape[-1], q.dtype in HALF
    if kernel == "math":
        return None
    if q.ndim != 4:
        return "it takes four dimensions"
    if kernel in ("flash", "cudnn") and (not half or capability < (8, 0) or width != values):
        return "it takes half precision, keys as wide as values, and cards from sm80 on"
    if kernel == "flash":
        return "it takes no mask and 256 channels at most" if mask is not None or width > WIDEST_FLASH else None
    if kernel == "cudnn":
        widest = WIDEST_CUDNN_HOPPER if capability[0] == 9 else WIDEST_CUDNN
        return f"it takes multiples of 8 up to {widest} channels" if width % 8 or width > widest else None
    if q.dtype == torch.bfloat16 and capability < (8, 0):
        return "it takes bfloat16 on cards from sm80 on"
    step = 8 if half and capability >= (7, 5) else 4 if q.dtype == torch.float32 else 1
    return f"it takes multiples of {step} channels" if width % step or values % step else None


class FusedAttention(TorchFunctionMode):
    """Sends ``scaled_dot_product_attention`` of tensors without data to the kernel that a CUDA card would run.

    Without it a machine that has no such card takes the formula, with all scores at once. Kernels that are switched
    off, as :func:`torch.nn.attention.sdpa_kernel` does, are passed over.

    Attributes:
        taken: calls by kernel.
    """

    def __init__(self, card: Card, taken: Counter[str] | None = None) -> None:
        super().__init__()
        self.card = card
        self.taken: Counter[str] = Counter() if taken is None else taken
        self._inside = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not functional.scaled_dot_product_attention or self._inside:
            return func(*args, **(kwargs or {}))
        self._inside = True
        try:
            return self._attention(*args, **(kwargs or {}))
        finally:
            self._inside = False

    def _attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        kernel = next(
            name
            for name in KERNELS
            if (name == "math" or _is_on(name)) and kernel_refusal_on(self.card, name, q, k, v, attn_mask) is None
        )
        self.taken[kernel] += 1
        if kernel != "flash" and enable_gqa and q.shape[-3] != k.shape[-3]:
            k, v = (x.repeat_interleave(q.shape[-3] // k.shape[-3], -3) for x in (k, v))
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        if kernel == "flash":
            return self._flash(q, k, v, is_causal, scale)
        if kernel == "cudnn":
            return aten._scaled_dot_product_cudnn_attention(
                q, k, v, attn_mask, False, 0.0, is_causal, False, scale=scale
            )[0]
        if kernel == "efficient":
            bias = None if attn_mask is None else _efficient_bias(attn_mask, q, k)
            return aten._scaled_dot_product_efficient_attention(q, k, v, bias, False, 0.0, is_causal, scale=scale)[0]
        with sdpa_kernel(SDPBackend.MATH):
            return functional.scaled_dot_product_attention(q, k, v, attn_mask, 0.0, is_causal, scale=scale)

    def _flash(self, q: Tensor, k: Tensor, v: Tensor, is_causal: bool, scale: float) -> Tensor:
        """It works on multiples of eight channels."""
        width = q.shape[-1]
        if width % 8:
            q, k, v = (functional.pad(x, (0, 8 - width % 8)) for x in (q, k, v))
        out = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, is_causal, False, scale=scale)[0]
        return out[..., :width]


def _is_on(kernel: str) -> bool:
    switches = {
        "cudnn": "cudnn_sdp_enabled",
        "flash": "flash_sdp_enabled",
        "efficient": "mem_efficient_sdp_enabled",
    }
    return bool(getattr(torch.backends.cuda, switches[kernel], lambda: False)())


def _efficient_bias(mask: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """An additive mask of the scores' shape, its rows padded to sixteen as the kernel wants them."""
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill_(mask.logical_not(), float("-inf"))
    keys = mask.shape[-1]
    if keys % 16:
        mask = functional.pad(mask, (0, 16 - keys % 16))[..., :keys]
    return mask.expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
