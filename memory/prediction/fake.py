"""Copies of modules and tensors that have shapes, dtypes and a device, and no data."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_map

from .known_numbers import hand_on_numbers

Module = TypeVar("Module", bound=nn.Module)


def fake_mode() -> FakeTensorMode:
    """Within it, operators compute shapes only. Real tensors that meet fake ones are treated as fake too."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def fake_tensor(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor like another on some device, without data. Call it within :func:`fake_mode`.

    Quantised tensors are made anew of fake parts.
    """
    if is_traceable_wrapper_subclass(tensor):
        names, context = tensor.__tensor_flatten__()
        parts = {name: fake_tensor(getattr(tensor, name), device) for name in names}
        return type(tensor).__tensor_unflatten__(parts, context, tensor.shape, tensor.stride())
    # A fake tensor that knows its value is made anew: torch would compute with it, on a device that is not there.
    if isinstance(tensor, FakeTensor) and tensor.device.type == device.type and tensor.constant is None:
        return tensor
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)


def fake_tree(values: Any, device: torch.device | None = None, memo: dict[int, Tensor] | None = None) -> Any:
    """The same structure with every tensor faked, on a device or (None) on its own; whole numbers are kept beside it.

    Args:
        values: any structure of tensors and other values.
        device: of all tensors.
        memo: fakes by the ids of what they stand for, kept by the caller: a tensor that is in several structures is one
            in all of theirs.
    """
    known = {} if memo is None else memo

    def fake(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if id(value) not in known:
            known[id(value)] = fake_tensor(value, device or value.device)
            hand_on_numbers(value, known[id(value)])
        return known[id(value)]

    return tree_map(fake, values)


def fake_copy(module: Module, mode: FakeTensorMode, device: torch.device, memo: dict[int, Any] | None = None) -> Module:
    """A copy of a module whose parameters and buffers have no data; the module itself is only read.

    Args:
        module: any module; its weights are not touched, wherever they are.
        mode: of :func:`fake_mode`; not entered yet.
        device: where the copy's parameters and buffers say they are. Plain tensor attributes stay on theirs.
        memo: as for :func:`copy.deepcopy`: what stands in for objects by their ids.
    """
    memo = dict(memo or {})
    for parameter in module.parameters():
        memo[id(parameter)] = fake = _fake(parameter, mode, device)
        fake._is_param = True  # all that torch's Parameter would do here
    for buffer in module.buffers():
        memo[id(buffer)] = _fake(buffer, mode, device)
    for value in plain_tensors(module):
        memo.setdefault(id(value), _fake(value, mode, value.device))
    for empty in _without_hooks(module):
        memo[id(empty)] = OrderedDict()
    # Outside the mode: tensors in other places, which are not found here, are small and copied as they are.
    return copy.deepcopy(module, memo)


def _fake(tensor: Tensor, mode: FakeTensorMode, device: torch.device) -> Tensor:
    """As :func:`fake_tensor`, but without torch's dispatcher, which is slow for a model's thousands of tensors."""
    if is_traceable_wrapper_subclass(tensor):
        with mode:
            return fake_tensor(tensor.data, device)
    shape = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    return FakeTensor(mode, shape, device)


def plain_tensors(module: nn.Module) -> Iterator[Tensor]:
    """What a module and its parts keep as plain attributes: tables that are no parameters and no buffers."""
    for inner in module.modules():
        yield from (value for value in vars(inner).values() if isinstance(value, Tensor))


def _without_hooks(module: nn.Module) -> Iterator[OrderedDict[Any, Any]]:
    """The empty dictionaries of a module and its parts, ten to a part, of which a copy of each takes long to make."""
    for inner in module.modules():
        yield from (value for value in vars(inner).values() if type(value) is OrderedDict and not value)


def name_modules(module: nn.Module, running: list[str]) -> None:
    """Has a module keep the paths of its running parts in ``running``, outermost first. For a copy of our own."""
    for path, part in module.named_modules():
        part.register_forward_pre_hook(_entering(running, path))
        part.register_forward_hook(_leaving(running), always_call=True)


def _entering(running: list[str], path: str) -> Callable[..., None]:
    return lambda part, args: running.append(path)


def _leaving(running: list[str]) -> Callable[..., None]:
    def leave(part: nn.Module, args: Any, result: Any) -> None:
        running.pop()

    return leave
