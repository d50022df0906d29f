"""Tensors in nested arguments of a block: others in their place, without data, or only what they look like."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from ...memory.prediction import fake_tensor


@dataclass(frozen=True)
class _Shape:
    """What a tensor looks like."""

    size: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    needs_gradient: bool


def like(shapes: Any) -> Any:
    """Tensors in the places of what :func:`looks_of` left, as if a block had given them. Call it in a fake mode."""

    def made(value: Any) -> Any:
        if not isinstance(value, _Shape):
            return value
        tensor = torch.empty_strided(value.size, value.stride, dtype=value.dtype, device=value.device)
        return tensor.requires_grad_().clone() if value.needs_gradient else tensor

    return tree_map(made, shapes)


def looks_of(tensor: Tensor) -> Any:
    """To be kept in its place."""
    return _Shape(tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad)


def without_data(values: Any, device: torch.device) -> Any:
    """The same structure with tensors without data on a device, leaves of a graph. Call it in a fake mode."""

    def fake(tensor: Tensor) -> Tensor:
        with torch.no_grad():
            return fake_tensor(tensor.detach(), device).requires_grad_(tensor.requires_grad)

    return with_tensors(fake, values)


def with_tensors(change: Callable[[Tensor], Tensor], values: Any) -> Any:
    """The same structure with other tensors; those in an object's attributes too, as Flux.2's modulation."""

    def changed(value: Any) -> Any:
        if isinstance(value, Tensor):
            return change(value)
        found = {name: one for name, one in getattr(value, "__dict__", {}).items() if isinstance(one, Tensor)}
        if not found or isinstance(value, nn.Module):
            return value
        value = copy.copy(value)
        for name, one in found.items():
            object.__setattr__(value, name, change(one))
        return value

    return tree_map(changed, values)


def tensors_in(values: Any) -> list[Tensor]:
    """All of a structure, those in an object's attributes among them."""
    found = list[Tensor]()

    def seen(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    with_tensors(seen, values)
    return found


def shapes_in(values: Any) -> tuple[Any, ...]:
    """By which two blocks' arguments are alike.

    Of one that lies otherwise, as Wan's first block gets it, a block may make a copy.
    """
    tensors = (leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor))
    return tuple((one.shape, one.stride(), one.dtype, one.requires_grad) for one in tensors)
