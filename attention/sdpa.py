"""torch's fused attention, by the kernel of torch's choice or by a named one."""

from __future__ import annotations

import threading
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import _disable_current_modes

from .tiles import empty_output, spans

if TYPE_CHECKING:
    from .call import AttentionCall

KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
if hasattr(SDPBackend, "CUDNN_ATTENTION"):  # torch 2.5 and newer
    KERNELS["cudnn"] = SDPBackend.CUDNN_ATTENTION
EVERY_KERNEL = [kernel for name, kernel in SDPBackend.__members__.items() if name != "ERROR"]
ON_CPU = ("flash", "math")
# Devices for which torch itself ships fused kernels with O(N) memory; of others it has to say so.
FUSED_DEVICES = ("cpu", "cuda", "xpu")
PROBE_TOKENS = 64
MOST_SEQUENCES = 1 << 15  # in one call, as in ComfyUI: CUDA's kernels do not take any number of them
HALF = (torch.float16, torch.bfloat16)
# torch keeps the enabled kernels in flags of the process; two threads that set and restore them at once would leave
# them wrong for good. Threads that name no kernel are not kept from reading them meanwhile: see kernel_refusal.
_ONE_AT_A_TIME = threading.RLock()


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
    if q.shape[0] > MOST_SEQUENCES:
        return _in_parts(q, k, v, scale, mask)
    if q.dtype in HALF and fused_kernel_refusal(q, k, v):
        return _by_formula(q, k, v, scale, mask)
    shared = q.shape[1] // max(1, k.shape[1])
    if shared > 1 and _chosen(q.device, q.dtype, q.shape[-1], v.shape[-1], None, shared, mask is not None) == "math":
        # Grouped heads with a mask, or on an older card, would hold all scores; with a key head each they do not.
        k, v = (x.repeat_interleave(shared, 1) for x in (k, v))
    # enable_gqa is passed only where it is needed: older torch does not know the keyword.
    extra = {"enable_gqa": True} if q.shape[1] != k.shape[1] else {}
    out = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, **extra)
    return out.transpose(1, 2)


def _in_parts(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None) -> Tensor:
    out = empty_output(q, v)
    for part in spans(q.shape[0], MOST_SEQUENCES):
        own = mask if mask is None or mask.shape[0] == 1 else mask[part]
        out[part] = sdpa_attention(q[part], k[part], v[part], scale, own)
    return out


def sdpa_by_kernel(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None = None, *, kernel: str) -> Tensor:
    """As :func:`sdpa_attention`, by one kernel of :data:`KERNELS` and no other.

    Raises:
        RuntimeError: the kernel cannot take the call; :func:`kernel_refusal` says so before.
    """
    with _ONE_AT_A_TIME, sdpa_kernel(KERNELS[kernel]):
        return (_by_formula if kernel == "math" else sdpa_attention)(q, k, v, scale, mask)


def _by_formula(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None) -> Tensor:
    """The math kernel in float32 at least: ComfyUI lets torch compute it in half precision, whose scores overflow."""
    if q.dtype not in HALF:
        return sdpa_attention(q, k, v, scale, mask)
    return sdpa_attention(q.float(), k.float(), v.float(), scale, mask).to(q.dtype)


def fused_kernel_refusal(q: Tensor, k: Tensor, v: Tensor) -> str | None:
    """Why SDPA would fall to its math kernel, which holds the whole Nq x Nk matrix; None if it would not."""
    if q.shape[-1] != v.shape[-1]:
        return f"keys of {q.shape[-1]} and values of {v.shape[-1]} channels have no fused kernel"
    if any(x.stride(-1) != 1 for x in (q, k, v)):
        return "channels that are not contiguous have no fused kernel"
    return None


def memory_refusal(device: torch.device, dtype: torch.dtype, channels: int, values: int) -> str | None:
    """Why a device may hold the whole Nq x Nk matrix in SDPA; None where it has a fused kernel for such operands.

    Args:
        channels, values: of a head of queries and keys, and of values.
    """
    if device.type == "cpu":
        return None
    kernel = _chosen(device, dtype, channels, values, None)
    if kernel is None and device.type not in FUSED_DEVICES:
        return f"torch does not say whether {device.type} has a fused kernel with O(N) memory"
    # CUDA cards before compute capability 8.0, for one, have none for bfloat16.
    return f"{device.type} has no fused kernel with O(N) memory for {dtype}" if kernel == "math" else None


def chosen_kernel(q: Tensor, v: Tensor, only: str | None = None) -> str | None:
    """The kernel that torch's SDPA takes on a device for operands like these.

    Args:
        q, v: (B, H, N, D) on a device that is here, with or without data; only their dtype and widths are looked at.
        only: the one kernel of :data:`KERNELS` that is allowed; None: all are.

    Returns:
        A name as in :data:`KERNELS`, "fused" for another; None where torch does not say.
    """
    return _chosen(q.device, q.dtype, q.shape[-1], v.shape[-1], only)


@cache
def _chosen(
    device: torch.device,
    dtype: torch.dtype,
    channels: int,
    values: int,
    only: str | None,
    shared: int = 1,
    masked: bool = False,
) -> str | None:
    """Asked once, with operands of its own: for a prediction's, without data, torch chooses otherwise.

    Args:
        shared: query heads to a key head.
        masked: there is a mask.
    """
    kernels = EVERY_KERNEL if only is None else [KERNELS[only]]
    with _ONE_AT_A_TIME, _disable_current_modes(), sdpa_kernel(kernels):
        try:
            keys = torch.zeros(1, 1, PROBE_TOKENS, channels, dtype=dtype, device=device)
            wide = torch.zeros(1, 1, PROBE_TOKENS, values, dtype=dtype, device=device)
            mask = torch.zeros(1, 1, PROBE_TOKENS, PROBE_TOKENS, dtype=dtype, device=device) if masked else None
            grouped = {"enable_gqa": True} if shared > 1 else {}
            choice = torch._fused_sdp_choice(keys.repeat(1, shared, 1, 1), keys, wide, mask, **grouped)
        except (RuntimeError, NotImplementedError, AttributeError, AssertionError):
            return None  # none of them, a backend that brings no choice, or a device that is not here
    return next((name for name, kernel in KERNELS.items() if kernel.value == choice), "fused")


def kernel_refusal(kernel: str, call: AttentionCall) -> str | None:
    """Why a kernel of torch cannot take a call; None if it can."""
    device = call.q.device.type
    if kernel not in KERNELS:
        return f"torch {torch.__version__} has no {kernel} kernel"
    if call.others_compute:
        return "torch switches kernels for the whole process, in which other GPUs compute at the same time"
    if kernel == "math":
        return None
    if device == "cpu":
        return _cpu_refusal(kernel, call)
    if device == "cuda":
        return _cuda_refusal(kernel, call)
    found = chosen_kernel(call.q, call.v, kernel) == kernel
    return None if found else f"torch has no {kernel} kernel for {device}"


def _cpu_refusal(kernel: str, call: AttentionCall) -> str | None:
    if kernel not in ON_CPU:
        return f"torch has no {kernel} kernel for a CPU"
    if call.q.numel() == 0:
        return "there are no queries"
    return fused_kernel_refusal(call.q, call.k, call.v)


def _cuda_refusal(kernel: str, call: AttentionCall) -> str | None:
    """What torch itself says of the call."""
    asks = getattr(torch.backends.cuda, f"can_use_{kernel}_attention", None)
    if asks is None:
        return f"torch {torch.__version__} does not say what its {kernel} kernel can do"
    grouped = call.q.shape[1] != call.k.shape[1]
    parameters = torch.backends.cuda.SDPAParams(call.q, call.k, call.v, call.mask, 0.0, False, grouped)
    if asks(parameters, False):
        return None
    mask = "no mask" if call.mask is None else "a mask"
    return f"torch's {kernel} kernel does not take {call.q.dtype} with {call.q.shape[-1]} channels and {mask} here"
