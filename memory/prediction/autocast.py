"""CUDA's automatic mixed precision, for tensors on a CPU that stand for a card's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from .workspace import HALF

# Computed in float32 on CUDA and not on a CPU (torch 2.11, aten/src/ATen/autocast_mode.h, AT_FORALL_FP32).
NAMES = (
    "acos", "asin", "cosh", "cosine_similarity", "dist", "erfinv", "exp", "expm1", "group_norm", "interpolate",
    "layer_norm", "log", "log10", "log1p", "log2", "logsumexp", "native_layer_norm", "norm", "pow", "__pow__",
    "__rpow__", "reciprocal", "renorm", "rsqrt", "sinh", "softplus", "tan",
)  # fmt: skip
# The same, and only the result is made in float32 (AT_FORALL_FP32_SET_OPT_DTYPE).
RESULTS = ("cumprod", "cumsum", "log_softmax", "softmax", "sum")


def _called(names: tuple[str, ...]) -> frozenset[Any]:
    places = (torch, Tensor, functional)
    return frozenset(getattr(place, name) for place in places for name in names if hasattr(place, name))


IN_FLOAT32, WITH_FLOAT32_RESULT = _called(NAMES), _called(RESULTS)


class CudaAutocast(TorchFunctionMode):
    """Where a CPU's ``torch.autocast`` is on, casts what CUDA's would cast to float32 beside that.

    A training's tensors in float32 instead of 16 bits are kept for its backward: norms, powers, upsampling.
    """

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.is_autocast_enabled("cpu"):
            if function in IN_FLOAT32:
                args, kwargs = tree_map(_widened, (args, kwargs))
            elif function in WITH_FLOAT32_RESULT and _is_half(args[0] if args else None):
                kwargs = {**kwargs, "dtype": kwargs.get("dtype") or torch.float32}
        return function(*args, **kwargs)


def _is_half(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype in HALF


def _widened(value: Any) -> Any:
    return value.float() if _is_half(value) else value
