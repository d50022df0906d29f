"""CUDA's fused RMS norm, for tensors without data on a CPU that stand for a card's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional
from torch.overrides import TorchFunctionMode


class FusedRMSNorm(TorchFunctionMode):
    """A CPU computes an RMS norm in float32, operator by operator, and a gradient keeps these; CUDA has a kernel that
    keeps its input and a number per row.

    Source: aten/src/ATen/native/layer_norm.cpp of torch 2.11, rms_norm_symint, which takes the kernel where input and
    weight have the same type.
    """

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function in (functional.rms_norm, torch.rms_norm) and self._is_fused(*args, **kwargs):
            return self._run(*args, **kwargs)
        return function(*args, **kwargs)

    @staticmethod
    def _is_fused(
        input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
    ) -> bool:
        return weight is None or weight.dtype == input.dtype

    @staticmethod
    def _run(
        input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
    ) -> Tensor:
        result: Tensor = _WithoutData.apply(input, weight, len(normalized_shape))
        return result


class _WithoutData(Function):
    """What it allocates and keeps; nothing is computed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, dimensions: int) -> Tensor:
        per_row = x.new_empty(x.shape[:-dimensions], dtype=torch.float32)
        ctx.save_for_backward(x, weight, per_row)
        return torch.empty_like(x, memory_format=torch.contiguous_format)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, _ = ctx.saved_tensors
        of_weight = torch.empty_like(weight) if ctx.needs_input_grad[1] else None
        return torch.empty_like(x), of_weight, None
