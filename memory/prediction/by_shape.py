"""Operators of tensors without data whose result follows from shapes alone, on a short way past torch's general one.

torch's own way (``FakeTensorMode``) asks for each operator what its devices, constants and symbols are, and knows many
results by a decomposition into other operators. That is most of a prediction's time. The operators here, of tensors on
one device without symbols or constants, are four of five of a model's, and get the same result in a quarter of it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

# Where a torch has it no longer, views go the general way.
in_kernel: Callable[[FakeTensorMode], AbstractContextManager[None]] | None = getattr(
    fake_tensor, "in_kernel_invocation_manager", None
)
aten = torch.ops.aten
VIEWS = (
    aten.view.default, aten._unsafe_view.default, aten.t.default, aten.transpose.int, aten.unsqueeze.default,
    aten.permute.default, aten.expand.default, aten.slice.Tensor, aten.select.int, aten.squeeze.dim,
    aten.split.Tensor, aten.split_with_sizes.default, aten.detach.default, aten.alias.default,
)  # fmt: skip
OF_ONE, OF_TWO = (aten.silu.default, aten.gelu.default), (aten.add.Tensor, aten.mul.Tensor, aten.sub.Tensor)


def by_shape(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An operator's result, of the shape, strides, dtype and device that torch's kernels give; ``NotImplemented`` for
    operators and arguments that go the general way, which also says what is wrong with them.

    Args:
        func: the operator, with all its arguments as a dispatch mode gets them.
    """
    rule = RULES.get(id(func))
    if rule is None:
        return NotImplemented
    try:
        _check(all(map(_is_plain, filter(_is_tensor, (*args, *kwargs.values())))))
        return rule(func, *args, **kwargs)
    except (RuntimeError, TypeError, ValueError, LookupError, AttributeError):  # also of a torch with other names
        return NotImplemented


def gives_a_view(func: Any) -> bool:
    """Whether an operator is one of those here that do nothing but give another view of a tensor."""
    return id(func) in VIEW_RULES


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def _is_plain(value: Any) -> bool:
    """Whether a tensor is without data and a constant's value."""
    return type(value) is FakeTensor and value.constant is None


def _run(like: FakeTensor, func: Any, *args: Any, **kwargs: Any) -> Any:
    """A kernel that torch has for tensors without data; its views share the storage."""
    if in_kernel is None:
        return NotImplemented
    with in_kernel(like.fake_mode):
        result = func(*args, **kwargs)
        if isinstance(result, Tensor):
            return FakeTensor(like.fake_mode, result, like.fake_device)
        return [FakeTensor(like.fake_mode, one, like.fake_device) for one in result]


def _made(mode: FakeTensorMode, device: Any, shape: Any, dtype: torch.dtype, strides: Any = None) -> FakeTensor:
    with torch._C._DisableTorchDispatch():  # the fake mode would go its own way with both
        if strides is None:
            made = torch.empty(shape, dtype=dtype, device="meta")
        else:
            made = torch.empty_strided(shape, strides, dtype=dtype, device="meta")
        return FakeTensor(mode, made, device)


def _new(like: FakeTensor, shape: Any, dtype: torch.dtype | None = None) -> FakeTensor:
    return _made(like.fake_mode, like.fake_device, shape, dtype or like.dtype)


def _new_like(x: FakeTensor, dtype: torch.dtype | None, device: torch.device | None = None) -> FakeTensor:
    """One with its numbers in the same order."""
    _check(x.is_contiguous())
    return _made(x.fake_mode, device or x.fake_device, x.shape, dtype or x.dtype, x.stride())


def _view(func: Any, x: FakeTensor, *args: Any, **kwargs: Any) -> Any:
    return _run(x, func, x, *args, **kwargs)


def _empty(
    func: Any,
    size: Any,
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: torch.device | None = None,
    pin_memory: Any = None,
    memory_format: Any = None,
) -> Any:
    mode = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
    _check(layout in (None, torch.strided) and memory_format in (None, torch.contiguous_format) and not pin_memory)
    _check(isinstance(mode, FakeTensorMode) and device is not None and torch.device(device).type != "meta")
    return _made(mode, device, size, dtype or torch.get_default_dtype())


def _copy(func: Any, x: FakeTensor, y: FakeTensor, non_blocking: bool = False) -> Any:
    _check(x.shape == y.shape)
    return x


def _to_dtype(
    func: Any,
    x: FakeTensor,
    dtype: torch.dtype,
    non_blocking: bool = False,
    copy: bool = False,
    memory_format: Any = None,
) -> Any:
    _check(memory_format is None)
    return x if x.dtype == dtype and not copy else _new_like(x, dtype)


def _to_copy(
    func: Any,
    x: FakeTensor,
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: torch.device | None = None,
    pin_memory: Any = None,
    non_blocking: bool = False,
    memory_format: Any = None,
) -> Any:
    _check(layout in (None, torch.strided) and memory_format is None and not pin_memory)
    _check(device is None or torch.device(device).type != "meta")
    return _new_like(x, dtype, device)


def _product(func: Any, x: FakeTensor, y: FakeTensor, **kwargs: Any) -> Any:
    _check(not kwargs and _on_one(x, y) and x.ndim == (3 if func is aten.bmm.default else 2))
    return _new(x, _sizes(x, y))


def _product_and_sum(
    func: Any, bias: FakeTensor, x: FakeTensor, y: FakeTensor, *, beta: Any = 1, alpha: Any = 1
) -> Any:
    shape = _sizes(x, y)
    _check(_on_one(x, y) and _on_one(bias, x) and x.ndim == 2 and tuple(bias.shape) in (shape, shape[-1:]))
    return _new(x, shape)


def _sizes(x: FakeTensor, y: FakeTensor) -> tuple[int, ...]:
    """Of a product of matrices, or of as many as both have."""
    _check(x.ndim == y.ndim and x.shape[:-2] == y.shape[:-2] and x.shape[-1] == y.shape[-2])
    return (*x.shape[:-1], y.shape[-1])


def _layer_norm(func: Any, x: FakeTensor, over: Any, weight: Any, bias: Any, eps: float) -> Any:
    # Tensors whose numbers are not in order come out in an order that is torch's to say; so below.
    _check(
        x.is_contiguous() and tuple(x.shape[-len(over) :]) == tuple(over) and x.numel() > 0 and x.is_floating_point()
    )
    factors = [one for one in (weight, bias) if one is not None]
    _check(all(one.fake_device == x.fake_device and tuple(one.shape) == tuple(over) for one in factors))
    halves = x.dtype in (torch.float16, torch.bfloat16) and x.fake_device.type != "cpu"
    of_each = (*x.shape[: -len(over)], *[1] * len(over))
    dtype = torch.float32 if halves else x.dtype
    return _new(x, x.shape), _new(x, of_each, dtype), _new(x, of_each, dtype)


def _group_norm(
    func: Any, x: FakeTensor, weight: Any, bias: Any, n: int, c: int, size: int, groups: int, eps: float
) -> Any:
    _check(x.is_contiguous() and x.ndim > 2 and x.numel() == n * c * size and c % groups == 0 and x.is_floating_point())
    _check(all(one is None or (_on_one(one, x) and tuple(one.shape) == (c,)) for one in (weight, bias)))
    return _new(x, x.shape), _new(x, (n, groups)), _new(x, (n, groups))


def _of_one(func: Any, x: FakeTensor, **kwargs: Any) -> Any:
    _check(x.is_contiguous() and x.is_floating_point())
    return _new(x, x.shape)


def _of_two(func: Any, x: FakeTensor, y: FakeTensor, *, alpha: Any = 1) -> Any:
    _check(_is_tensor(y) and _on_one(x, y) and x.shape == y.shape and x.is_contiguous() and y.is_contiguous())
    return _new(x, x.shape)


def _on_one(x: FakeTensor, y: FakeTensor) -> bool:
    """Whether both are of one dtype on one device."""
    return x.dtype == y.dtype and x.fake_device == y.fake_device


def _check(holds: bool) -> None:
    if not holds:
        raise ValueError


# By the operators' addresses: torch computes an operator's hash in Python, each time; operators are never freed.
VIEW_RULES: dict[int, Callable[..., Any]] = dict.fromkeys(map(id, VIEWS), _view)
RULES: dict[int, Callable[..., Any]] = {
    **VIEW_RULES,
    id(aten.empty.memory_format): _empty,
    id(aten.copy_.default): _copy,
    id(aten.to.dtype): _to_dtype,
    id(aten._to_copy.default): _to_copy,
    id(aten.mm.default): _product,
    id(aten.bmm.default): _product,
    id(aten.addmm.default): _product_and_sum,
    id(aten.native_layer_norm.default): _layer_norm,
    id(aten.native_group_norm.default): _group_norm,
    **dict.fromkeys(map(id, OF_ONE), _of_one),
    **dict.fromkeys(map(id, OF_TWO), _of_two),
}
