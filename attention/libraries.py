"""Attention kernels of other packages, used where they are installed; none is needed."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

Kernel = Callable[..., Any]
# By backend: the places a kernel is looked for, the best first.
PLACES = {
    "xformers": (("xformers.ops", "memory_efficient_attention"),),
    "flash_attn": (("flash_attn_interface", "flash_attn_func"), ("flash_attn", "flash_attn_func")),
    "sage": (("sageattention", "sageattn"),),
    "comfy_kitchen": (("comfy_kitchen.sage_attention", "int8_attention"),),
}
PACKAGES = {"flash_attn": "flash-attn", "sage": "sageattention", "comfy_kitchen": "comfy-kitchen"}


@cache
def kernel_of(library: str) -> Kernel | str:
    """The kernel of a library, or the reason why there is none."""
    package = PACKAGES.get(library, library)
    reason = f"{package} is not installed"
    for module, name in PLACES[library]:
        try:
            kernel = getattr(importlib.import_module(module), name, None)
        except ImportError as error:
            if not isinstance(error, ModuleNotFoundError):  # there, but built for another torch or driver
                reason = f"{package} cannot be loaded: {error}"
            elif error.name != module.partition(".")[0]:
                reason = f"this version of {package} has no {module}"
            continue
        except (OSError, RuntimeError) as error:
            reason = f"{package} cannot be loaded: {error}"
            continue
        if kernel is not None:
            return kernel
        reason = f"this version of {package} has no {name}"
    return reason


def library_refusal(library: str, device: torch.device) -> str | None:
    """Why a library cannot be used on a device; None if it can."""
    kernel = kernel_of(library)
    if isinstance(kernel, str):
        return kernel
    if library == "comfy_kitchen":
        available = importlib.import_module("comfy_kitchen.sage_attention").is_available(device)
        return None if available else "comfy-kitchen has no int8 attention for this GPU"
    return None


def xformers_attention(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None = None) -> Tensor:
    """xformers' memory-efficient attention of (B, H, N, D) operands; (B, Nq, H, Dv).

    A mask becomes an additive bias whose rows start at multiples of eight elements, as the kernel wants them.
    """
    bias = None if mask is None else _aligned_bias(mask, (q.shape[0], q.shape[1], q.shape[2], k.shape[2]), q.dtype)
    out: Tensor = _kernel("xformers")(*(x.transpose(1, 2) for x in (q, k, v)), attn_bias=bias, scale=scale)
    return out


def flash_attn_attention(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None = None) -> Tensor:
    """flash-attn 3, else 2, of (B, H, N, D) operands in half precision without a mask; (B, Nq, H, D)."""
    assert mask is None
    out = _kernel("flash_attn")(*(x.transpose(1, 2) for x in (q, k, v)), softmax_scale=scale)
    first: Tensor = out[0] if isinstance(out, tuple) else out  # some releases of 3 return row statistics too
    return first


def sage_attention(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None = None) -> Tensor:
    """SageAttention, 8-bit scores, of (B, H, N, D) operands in half precision without a mask; (B, Nq, H, D)."""
    assert mask is None
    out: Tensor = _kernel("sage")(q, k, v, tensor_layout="HND", is_causal=False, sm_scale=scale)
    return out.transpose(1, 2)


def comfy_kitchen_attention(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None = None) -> Tensor:
    """comfy-kitchen's int8 attention of (B, H, N, D) operands; (B, Nq, H, D)."""
    out: Tensor = _kernel("comfy_kitchen")(q, k, v, scale=scale, attn_mask=mask)
    return out.transpose(1, 2)


def _kernel(library: str) -> Kernel:
    kernel = kernel_of(library)
    if isinstance(kernel, str):
        raise RuntimeError(kernel)
    return kernel


def _aligned_bias(mask: Tensor, shape: tuple[int, int, int, int], dtype: torch.dtype) -> Tensor:
    """(B, H, Nq, Nk) additive, broadcast where the mask is, its memory padded to multiples of eight keys."""
    keys = shape[3]
    rows = (*mask.shape[:2], shape[2])
    bias = torch.zeros((*rows, -(-keys // 8) * 8), dtype=dtype, device=mask.device)[..., :keys]
    if mask.dtype == torch.bool:
        bias.masked_fill_(~mask, float("-inf"))
    else:
        bias.copy_(mask)
    return bias.expand(shape)
