"""Functions that only move, join or regroup dims."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..operations.graph import Node, Rows
from ..operations.join import Repeat
from ..operations.regroup import Reshape
from ..operations.row_by_row import TURNS, Finer, Placeholder
from ..recording.probe import row_by_row, stand_in
from ..recording.record import Recorded, Recorder, tensors_in
from ..recording.value import CannotRecord, Value
from .alignment import aligned, coarsened, join, joined, relabelled, single
from .registry import Rule, rule

#: Functions that only move, cut or join dims: the rows stay together, and calling without data finds them again.
SHAPES = frozenset(
    [
        "permute",
        "transpose",
        "swapaxes",
        "swapdims",
        "movedim",
        "moveaxis",
        "unsqueeze",
        "squeeze",
        "contiguous",
        "cat",
        "concat",
        "concatenate",
        "stack",
        "expand",
        "repeat",
        "repeat_interleave",
    ]
)


#: Those that give views.
VIEWS = TURNS | {"unsqueeze", "squeeze", "expand"}


@rule(*sorted(SHAPES))
def shape(recorder: Recorder, function: Rule, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    """Functions of :data:`SHAPES`: views where torch gives views."""
    if name in ("cat", "concat", "concatenate", "stack"):
        return _cat(recorder, function, name, args, kwargs)
    if len([item for item in tensors_in(args) if isinstance(item, Recorded)]) != 1:
        return NotImplemented
    if name == "repeat_interleave" and not _repeats_beside_rows(args, kwargs):
        return _rows_repeated(recorder, function, args, kwargs)
    base = args[0]
    if name == "squeeze":
        args, kwargs = (base, _squeezed_dims(base, args, kwargs)), {}
        if not args[1]:
            return base
    if name in ("expand", "repeat") and (again := _row_again(recorder, function, args)) is not None:
        return again
    if name in ("expand", "repeat"):
        args = _without_row_size(name, args)
    twin = function(base.value.twin, *args[1:], **kwargs)
    if name in VIEWS:
        undo = _undo_permutation(function, args, kwargs) if name in TURNS else _undo_unit_dim(name, args, kwargs)

        def look(node: Node) -> Node | None:
            if name == "squeeze":  # the only row may lie along the dim that goes
                node = relabelled(node, 0) if node.shape[0] == 1 else node
            return row_by_row(function, (node, *args[1:]), kwargs, is_view=True)

        return viewed(recorder, base, look if undo is None else Look(look, undo), twin)
    made = row_by_row(function, args, kwargs)
    return NotImplemented if made is None else Recorded(made, recorder)


class Look:
    """How a view sees its base, and what undoes it, so that it can be written through."""

    def __init__(self, look: Callable[[Node], Node | None], undo: Callable[[Node], Node | None]) -> None:
        self.look, self.undo = look, undo

    def __call__(self, node: Node) -> Node | None:
        return self.look(node)

    def put_back(self, base: Node, part: Node) -> Node:
        """The base after a write to the view."""
        node = self.undo(part)
        if node is None or node.shape != base.shape:
            raise CannotRecord("a write to a view that cannot be undone")
        return node


def _undo_permutation(function: Rule, args: Any, kwargs: dict[str, Any]) -> Callable[[Node], Node | None]:
    probe = function(torch.empty((2,) * args[0].ndim, device="meta"), *args[1:], **kwargs)
    order = sorted(range(probe.ndim), key=lambda dim: -probe.stride(dim))
    return lambda node: row_by_row(torch.permute, (node, order), {}, is_view=True)


def _undo_unit_dim(name: str, args: Any, kwargs: dict[str, Any]) -> Callable[[Node], Node | None] | None:
    if name == "squeeze" and len(args[1]) == 1:
        return lambda node: row_by_row(torch.unsqueeze, (node, *args[1]), {}, is_view=True)
    dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
    if name != "unsqueeze" or not isinstance(dim, int):
        return None
    dim %= args[0].ndim + 1
    return lambda node: row_by_row(torch.squeeze, (node, dim), {}, is_view=True)


def _squeezed_dims(base: Any, args: Any, kwargs: dict[str, Any]) -> tuple[int, ...]:
    """The dims that go: named one by one, since in a strip of one row the rows' dim is of one place, too."""
    dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
    asked = range(base.ndim) if dim is None else dim if isinstance(dim, (tuple, list)) else (dim,)
    return tuple(one % base.ndim for one in asked if base.shape[one] == 1)


def viewed(recorder: Recorder, base: Any, look: Callable[[Node], Node | None], twin: Tensor) -> Any:
    """A view of a recorded map, see :class:`..recording.value.Value`; NotImplemented where ``look`` gives none."""
    node = look(base.node)
    return NotImplemented if node is None else Recorded(Value(node, base.value, look, twin), recorder)


def _without_row_size(name: str, args: Any) -> Any:
    """Sizes of ``expand`` with -1 for that of the rows, so that they fit a strip too."""
    node, sizes = args[0].node, args[1:]
    flat = list(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], (tuple, list, torch.Size)) else list(sizes)
    place = node.rows.dim + len(flat) - len(node.shape)
    if name == "expand" and flat[place] == node.shape[node.rows.dim]:
        flat[place] = -1
    return (args[0], *flat)


def _repeats_beside_rows(args: Any, kwargs: dict[str, Any]) -> bool:
    repeats = kwargs.get("repeats", args[1] if len(args) > 1 else None)
    dim = kwargs.get("dim", args[2] if len(args) > 2 else None)
    return isinstance(dim, int) and dim % args[0].ndim != args[0].node.rows.dim and isinstance(repeats, int)


def _joins_rows(recorder: Recorder, parts: list[Any], dim: int) -> bool:
    """Whether ``dim`` is that of the rows: also of maps of one row each, where it is the one that all began with."""
    nodes = [part.node for part in parts if isinstance(part, Recorded)]
    dim %= len(nodes[0].shape)
    several = [node for node in nodes if node.rows.count > 1]
    if several:
        return all(node.rows.dim == dim for node in several)
    return len(parts) > 1 and dim == len(nodes[0].shape) - 1 - recorder.place


def _rows_repeated(recorder: Recorder, function: Rule, args: Any, kwargs: dict[str, Any]) -> Any:
    """``repeat_interleave`` along the rows, each as often."""
    repeats = kwargs.get("repeats", args[1] if len(args) > 1 else None)
    dim = kwargs.get("dim", args[2] if len(args) > 2 else None)
    if not isinstance(dim, int) or not isinstance(repeats, int) or repeats < 1:
        return NotImplemented
    node = single(args[0].node)
    dim, shape = dim % len(node.shape), list(node.shape)
    shape[dim] *= repeats
    op = Finer(function, (Placeholder(0), repeats, dim), {}, factor=repeats)
    return Recorded(Node(op, (node,), shape, node.dtype, node.device, Rows(dim, shape[dim])), recorder)


def _row_again(recorder: Recorder, function: Rule, args: Any) -> Recorded | None:
    """A map of one row repeated or expanded along the rows and nowhere else; None for all else."""
    node = args[0].node
    if node.shape[node.rows.dim] != 1:
        return None
    shape = tuple(function(stand_in(node), *args[1:]).shape)
    place = node.rows.dim + len(shape) - len(node.shape)
    if len(shape) != len(node.shape) or shape[place] < 2:
        return None
    if any(size != before for dim, (size, before) in enumerate(zip(shape, node.shape)) if dim != place):
        return None
    return Recorded(Node(Repeat(), (node,), shape, node.dtype, node.device, Rows(place, shape[place])), recorder)


def _cat(recorder: Recorder, function: Rule, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    dim = kwargs.get("dim", args[-1] if args and isinstance(args[-1], int) else 0)
    parts = list(args[0] if args else kwargs["tensors"])
    parts = [part for part in parts if part.numel() or name == "stack"]
    if name != "stack" and _joins_rows(recorder, parts, dim):
        return _joined_rows(recorder, parts, dim)
    parts = aligned(recorder, joined(recorder, parts))
    if not all(isinstance(part, Recorded) for part in parts):
        return NotImplemented
    nodes = [part.node for part in parts]
    if len({node.rows for node in nodes}) != 1:
        return NotImplemented
    made = row_by_row(function, (nodes,), {"dim": dim})
    return NotImplemented if made is None else Recorded(made, recorder)


def _joined_rows(recorder: Recorder, parts: list[Any], dim: int) -> Any:
    """Maps and plain tensors one behind the other along the rows."""
    dim %= parts[0].ndim
    nodes = [
        single(relabelled(part.node, dim)) if isinstance(part, Recorded) else recorder.leaf(part, dim).node
        for part in parts
    ]
    made = join(nodes)
    return NotImplemented if made is None else Recorded(made, recorder)


@rule("reshape", "view", "flatten", "unflatten", "view_as", "reshape_as")
def _reshape(recorder: Recorder, function: Rule, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    base = args[0]
    if len(args) > 1 and isinstance(args[1], torch.dtype):
        return NotImplemented
    like = [torch.empty(a.shape, device="meta") if isinstance(a, Tensor) else a for a in args[1:]]
    twin = function(base.value.twin, *like, **kwargs)
    shape, before = tuple(twin.shape), tuple(base.shape)
    if 0 in shape:
        return torch.empty(shape, dtype=base.dtype, device=base.device)
    if twin.untyped_storage()._cdata != base.value.twin.untyped_storage()._cdata:
        # With these strides it cannot be a view: the real function copies.
        made = reshaped(base.node, shape)
        return NotImplemented if made is None else Recorded(made, recorder)
    look = Look(lambda node: reshaped(node, shape), lambda node: reshaped(node, before))
    return viewed(recorder, base, look, twin)


def reshaped(node: Node, shape: tuple[int, ...]) -> Node | None:
    """``node`` in another shape, if that keeps each row's elements together; else None."""
    rows = node.rows
    before = math.prod(node.shape[: rows.dim])
    of_row = rows.unit * math.prod(node.shape[rows.dim + 1 :])
    for dim, size in enumerate(shape):
        if math.prod(shape[:dim]) != before or (size == 1 and rows.count * rows.unit > 1):
            continue
        inner = math.prod(shape[dim + 1 :])
        if of_row % inner == 0 and size * inner == rows.count * of_row:
            return _reshape_node(node, shape, Rows(dim, rows.count, of_row // inner))
        if inner % of_row == 0 and rows.count % (inner // of_row) == 0 and size * inner == rows.count * of_row:
            coarse = coarsened(node, inner // of_row)
            return _reshape_node(coarse, shape, Rows(dim, coarse.rows.count))
    return None


def _reshape_node(node: Node, shape: tuple[int, ...], rows: Rows) -> Node:
    return Node(Reshape(), (node,), shape, node.dtype, node.device, rows)
