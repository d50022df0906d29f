"""Nodes for functions that keep rows apart, their shapes found by calling the functions without data."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..operations.graph import Node, Rows
from ..operations.row_by_row import Placeholder, RowByRow
from .record import Recorded, Recorder, tensors_in

# Arguments that are equal where they have the same type and value.
PLAIN = (bool, int, float, str, Placeholder, torch.dtype, torch.device, torch.memory_format)


def template(tree: Any, sources: list[Node]) -> Any:
    """Arguments with every recorded map replaced by a placeholder, and added to the sources."""
    if isinstance(tree, Recorded):
        tree = tree.node
    if isinstance(tree, Node):
        if tree not in sources:
            sources.append(tree)
        return Placeholder(sources.index(tree))
    if isinstance(tree, (list, tuple)):
        return type(tree)(template(item, sources) for item in tree)
    return tree


def kept(recorder: Recorder, tree: Any) -> Any:
    """Arguments with every plain tensor as it is now, whatever its memory holds when the rows are computed."""
    if isinstance(tree, Tensor):
        return recorder.keep(tree)
    if isinstance(tree, (list, tuple)):
        return type(tree)(kept(recorder, item) for item in tree)
    if isinstance(tree, dict):
        return {name: kept(recorder, item) for name, item in tree.items()}
    return tree


def stand_in(node: Node, more_rows: int = 0) -> Tensor:
    """A tensor without data of a node's shape, perhaps with more rows."""
    return torch.empty(node.slab_shape(node.rows.count + more_rows), dtype=node.dtype, device="meta")


def without_data(tree: Any) -> Any:
    """Arguments with plain tensors moved to the meta device."""
    if isinstance(tree, Tensor):
        return tree.to("meta") if tree.device.type != "meta" else tree
    if isinstance(tree, (list, tuple)):
        return type(tree)(without_data(item) for item in tree)
    return tree


def row_by_row(function: Callable[..., Any], args: Any, kwargs: dict[str, Any], **options: Any) -> Node | None:
    """A node for a function known to keep rows apart; None if the shapes say that it does not after all.

    Shape, dtype and the rows' new place are found by calling the function without data, once with a row more.
    """
    sources: list[Node] = []
    recorded = template(args, sources)
    recorded_kwargs = {name: template(value, sources) for name, value in kwargs.items()}
    first = sources[0]
    op = RowByRow(function, recorded, recorded_kwargs, **options)
    found = _remembered(op, sources)
    if found is None:
        return None
    recorder = next((item.recorder for item in tensors_in((args, kwargs)) if isinstance(item, Recorded)), None)
    if recorder is not None:
        op.args, op.kwargs = kept(recorder, op.args), kept(recorder, op.kwargs)
    device = kwargs.get("device") or next((a for a in args if isinstance(a, torch.device)), None) or first.device
    rows = Rows(found.dim, first.rows.count, found.unit)
    return Node(op, sources, found.shape, found.dtype, torch.device(device), rows)


@dataclass(frozen=True)
class Shaped:
    """What a function makes of its sources.

    Attributes:
        dim, unit: where the result's rows are, and how many of its elements there are one row.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    dim: int
    unit: int


#: A video's modules call the same functions of the same shapes again and again; a call without data takes a
#: millisecond, and each operation two.
_found: OrderedDict[Hashable, Shaped] = OrderedDict()  # the oldest goes first
MOST_FOUND = 4096


def _remembered(op: RowByRow, sources: Sequence[Node]) -> Shaped | None:
    if getattr(op.function, "__closure__", None) or inspect.ismethod(op.function):
        return _find(op, sources)  # as good as new each time
    maps = tuple((node.shape, node.dtype, node.rows) for node in sources)
    try:
        given = _described(op.args), _described(tuple(op.kwargs.items()))
    except TypeError:
        return _find(op, sources)
    key = (op.function, maps, given, torch.get_default_dtype())
    found = _found.get(key)
    if found is None and (found := _find(op, sources)) is not None:  # what could not be found is tried again
        _found[key] = found
        if len(_found) > MOST_FOUND:
            _found.popitem(last=False)
    return found


def _described(tree: Any) -> Hashable:
    """Equal for arguments with which a function gives results of equal shapes and dtypes.

    Raises:
        TypeError: arguments that cannot be told apart.
    """
    if isinstance(tree, Tensor):
        return (type(tree), tuple(tree.shape), tree.stride(), tree.dtype)
    if isinstance(tree, (list, tuple)):
        return (type(tree), *(_described(item) for item in tree))
    if isinstance(tree, slice):
        return (slice, _described(tree.start), _described(tree.stop), _described(tree.step))
    if tree is None or isinstance(tree, PLAIN):
        return (type(tree), tree)  # 1, 1.0 and True are equal
    raise TypeError(f"a {type(tree).__name__}")


def _find(op: RowByRow, sources: Sequence[Node]) -> Shaped | None:
    try:
        shape, more = (_probe(op, sources, extra) for extra in (0, 1))
    except (RuntimeError, TypeError, ValueError, IndexError):
        return None
    if not isinstance(shape, Tensor) or not isinstance(more, Tensor) or shape.ndim != more.ndim:
        return None
    changed = [dim for dim in range(shape.ndim) if shape.shape[dim] != more.shape[dim]]
    if len(changed) != 1:
        return None
    dim = changed[0]
    unit = more.shape[dim] - shape.shape[dim]
    if shape.shape[dim] != unit * sources[0].rows.count:
        return None
    return Shaped(tuple(shape.shape), shape.dtype, dim, unit)


def _probe(op: RowByRow, sources: Sequence[Node], extra: int) -> Any:
    bare = RowByRow(
        op.function,
        without_data(op.args),
        {name: without_data(value) for name, value in op.kwargs.items() if name != "device"},
    )
    bare.args = tuple("meta" if isinstance(item, torch.device) else item for item in bare.args)
    return bare.run(sources[0], [stand_in(node, extra) for node in sources], 0, 0)
