"""The two matrix products of a tile of attention, by the fastest strict float32 kernel there is."""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

Linear = Callable[..., Tensor]


@torch.compiler.disable  # torch.compile cannot trace how it is found
def _find_onednn_linear() -> Linear | None:
    """oneDNN's ``x @ weight.T`` in strict float32, if this build of torch has it for this CPU.

    On AMD's processors oneDNN multiplies float32 matrices about twice as fast as MKL, which torch calls otherwise
    (measured on one EPYC core: 0.38 against 0.80 ms for 1024 x 40 times 40 x 1024). The operator is not public: where
    it is missing, or refuses, torch's own product is used. Both operands must be contiguous, else oneDNN takes a
    kernel that is a thousand times slower.
    """
    if platform.machine().lower() not in ("x86_64", "amd64") or not torch.backends.mkldnn.is_available():
        return None
    operator: Linear | None = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    if operator is None:
        return None
    try:
        with _disable_current_modes():  # the first product may be one of a prediction, which has no data
            operator(torch.ones(2, 2), torch.ones(2, 2), None, "none", [], "")
    except (RuntimeError, TypeError):
        return None
    return operator


_UNKNOWN = object()
_found: Any = _UNKNOWN


def onednn_linear() -> Linear | None:
    """What :func:`_find_onednn_linear` finds, asked for at the first product: an import computes nothing.

    A global instead of ``functools.cache``, through which torch.compile would trace at every call.
    """
    global _found
    if _found is _UNKNOWN:
        _found = _find_onednn_linear()
    found: Linear | None = _found
    return found


def linear_for(operand: Tensor) -> Linear | None:
    """oneDNN's product for operands like this (G, rows, channels) one: float32, on a CPU, one head at a time."""
    suits = operand.device.type == "cpu" and operand.dtype == torch.float32 and operand.shape[0] == 1
    return onednn_linear() if suits else None


def key_operand(k: Tensor, dtype: torch.dtype) -> Tensor:
    """Keys (G, cols, D) as :func:`scores` wants them; often a view."""
    k = k.to(dtype)
    return k.contiguous() if linear_for(k) else k


def value_operand(v: Tensor, dtype: torch.dtype) -> Tensor:
    """Values (G, cols, Dv) as :func:`weighted_sum` wants them, which is transposed for oneDNN; often a view."""
    v = v.to(dtype)
    return v.transpose(1, 2).contiguous().transpose(1, 2) if linear_for(v) else v


def scores(q: Tensor, k: Tensor, factor: float, buffer: Tensor | None = None) -> Tensor:
    """``factor * q k^T``.

    Args:
        q: (G, rows, D) of the scores' dtype.
        k: (G, cols, D), from :func:`key_operand`.
        buffer: G * rows * cols elements at least, for the kernels that can write into given memory.

    Returns:
        (G, rows, cols), to be overwritten.
    """
    linear = linear_for(q)
    if linear is not None:
        return linear((q[0] * factor).contiguous(), k[0], None, "none", [], "")[None]
    shape = (q.shape[0], q.shape[1], k.shape[1])
    if buffer is None:
        out = torch.empty(shape, dtype=q.dtype, device=q.device)
    else:
        out = buffer[: shape[0] * shape[1] * shape[2]].view(shape)
    return torch.baddbmm(out, q, k.transpose(1, 2), beta=0, alpha=factor, out=out)


def weighted_sum(weights: Tensor, v: Tensor) -> Tensor:
    """``weights v``: (G, rows, cols) times (G, cols, Dv) from :func:`value_operand`; (G, rows, Dv)."""
    linear = linear_for(weights)
    if linear is not None:
        return linear(weights[0], v[0].t(), None, "none", [], "")[None]
    return torch.bmm(weights, v)


def score_buffer(q: Tensor, group: int, rows: int, cols: int, dtype: torch.dtype) -> Tensor | None:
    """One tile's memory, where :func:`scores` can write into it: else each tile is allocated by the kernel."""
    if group == 1 and q.device.type == "cpu" and dtype == torch.float32 and onednn_linear() is not None:
        return None
    return torch.empty(group * rows * cols, dtype=dtype, device=q.device)
