"""Writes into maps, and new tensors made like them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..operations.graph import Node, Rows
from ..operations.leaves import Filled
from ..recording.probe import row_by_row
from ..recording.record import Recorded, Recorder
from ..recording.value import CannotRecord
from .registry import Rule, apply, before_others, rule
from .slices import getitem

#: Functions that need only the shape of a map.
LIKE = frozenset(
    [
        "zeros_like",
        "ones_like",
        "empty_like",
        "full_like",
        "randn_like",
        "rand_like",
        "new_zeros",
        "new_ones",
        "new_empty",
    ]
)


def written(name: str, args: Any, kwargs: dict[str, Any]) -> str | None:
    """The out-of-place name of a function that overwrites its first argument."""
    if not args or not isinstance(args[0], Recorded):
        return None
    if kwargs.get("inplace"):
        return name.rstrip("_")
    if name.startswith("__i") and name.endswith("__") and name not in ("__invert__", "__index__", "__int__"):
        return name[3:-2].replace("truediv", "div")
    if name.endswith("_") and not name.startswith("_") and name not in ("copy_", "requires_grad_"):
        return name[:-1]
    return None


@before_others
def _in_place(recorder: Recorder, function: Rule, called: str, args: Any, kwargs: dict[str, Any]) -> Any:
    name = written(called, args, kwargs)
    if name is None:
        return NotImplemented
    if name in ("zero", "fill"):
        value = 0.0 if name == "zero" else float(args[1])
        args[0].assign(constant(args[0].node, value))
        return args[0]
    kwargs = {key: value for key, value in kwargs.items() if key != "inplace"}
    anew = getattr(functional, name, None) or getattr(Tensor, name, None)
    result = NotImplemented if anew is None else apply(recorder, anew, name, args, kwargs)
    if not isinstance(result, Recorded):
        raise CannotRecord(f"'{name}' overwrites a map in a way that is not known")
    if result is not args[0]:
        node = result.node
        if node.dtype != args[0].dtype:
            node = row_by_row(Tensor.to, (node, args[0].dtype), {}) or node
        args[0].assign(node)
    return args[0]


@rule(*sorted(LIKE))
def _like_a_map(recorder: Recorder, function: Rule, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    """New tensors of a map's shape: of one value, or random as the real function would draw them."""
    model = args[0]
    kwargs = {key: value for key, value in kwargs.items() if key not in ("memory_format", "requires_grad")}
    options = {"dtype": model.dtype, "device": model.device} | {k: v for k, v in kwargs.items() if v is not None}
    shape = model.shape
    if name.startswith("new_"):
        shape = args[1] if isinstance(args[1], (tuple, list)) else args[1:]
    if name in ("randn_like", "rand_like"):
        return recorder.random(name.removesuffix("_like"), tuple(shape), **options)
    fill = (
        args[1] if name == "full_like" and len(args) > 1 else options.pop("fill_value", 1.0 if "ones" in name else 0.0)
    )
    if tuple(shape) == tuple(model.shape) and isinstance(model, Recorded):
        leaf = constant(model.node, float(fill))
        return Recorded(like(leaf, model.node, options), recorder)
    return recorder.filled(torch.full, "full", (tuple(shape), float(fill)), options)


def constant(like: Node, value: float) -> Node:
    """A map of one value, of another map's shape, dtype and device."""
    leaf = Filled(like.shape, value, like.dtype, like.device, like.rows.dim)
    return Node(leaf, (), like.shape, like.dtype, like.device, Rows(like.rows.dim, like.shape[like.rows.dim]))


def like(node: Node, target: Node, options: dict[str, Any] | None = None) -> Node:
    """``node`` with the dtype and device of another, or with those given."""
    dtype = (options or {}).get("dtype", target.dtype)
    device = torch.device((options or {}).get("device", target.device))
    if node.dtype == dtype and node.device == device:
        return node
    return row_by_row(Tensor.to, (node, device, dtype), {}) or node


@rule("copy_")
def _copy(recorder: Recorder, function: Rule, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    target, source = args[:2]
    if isinstance(source, Recorded) and not isinstance(target, Recorded):
        if source.shape != target.shape:
            return NotImplemented
        recorder.defer(source.node, target)
        return target
    if isinstance(target, Recorded):
        value = (
            source if isinstance(source, Recorded) else recorder.leaf(source.expand(target.shape), target.node.rows.dim)
        )
        target.assign(like(value.node, target.node))
        return target
    return NotImplemented


@rule("__setitem__")
def _setitem(recorder: Recorder, function: Rule, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    target, index, value = args
    if not isinstance(target, Recorded):
        return NotImplemented
    view = getitem(recorder, Tensor.__getitem__, "__getitem__", (target, index), {})
    if not isinstance(view, Recorded):
        raise CannotRecord("a write to part of a map that is not a slice")
    if isinstance(value, (int, float)):
        view.assign(constant(view.node, float(value)))
    else:
        Tensor.copy_(view, value)
    return None
