"""Parts of a map, which are views that can be written to."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..operations.graph import Node, Rows
from ..operations.regroup import Crop
from ..recording.probe import row_by_row, stand_in
from ..recording.record import Recorded, Recorder
from ..recording.value import CannotRecord
from .alignment import join, relabelled, single
from .registry import Rule, rule
from .shapes import shape, viewed


class Slice:
    """A slice along one dim: a view, which can be written to where the dim is not the rows'."""

    def __init__(self, dim: int, start: int, stop: int) -> None:
        self.dim, self.start, self.stop = dim, start, stop

    def __call__(self, node: Node) -> Node:
        if self.dim == node.rows.dim:
            rows = Rows(self.dim, self.stop - self.start)
            shape = (*node.shape[: self.dim], self.stop - self.start, *node.shape[self.dim + 1 :])
            return Node(Crop(self.start), (node,), shape, node.dtype, node.device, rows)
        made = row_by_row(torch.narrow, (node, self.dim, self.start, self.stop - self.start), {}, is_view=True)
        assert made is not None, "a slice beside the rows keeps them"
        return made

    def put_back(self, base: Node, part: Node) -> Node:
        """The base after a write to the slice."""
        if self.start == 0 and self.stop == base.shape[self.dim]:
            return part
        if self.dim == base.rows.dim:
            return self._among_rows(single(base), part)
        if part.rows != base.rows:
            part, base = single(part), single(base)
            if part.rows != base.rows:
                raise CannotRecord("a write of a map whose rows lie elsewhere")
        made = row_by_row(torch.slice_scatter, (base, part, self.dim, self.start, self.stop), {})
        if made is None:
            raise CannotRecord("a write to part of a map")
        return made

    def _among_rows(self, base: Node, part: Node) -> Node:
        """Some rows of a map, with others in their place."""
        part = single(relabelled(part, self.dim))
        if part.rows.dim != base.rows.dim:
            raise CannotRecord("a write of a map whose rows lie elsewhere")
        above, below = Slice(self.dim, 0, self.start), Slice(self.dim, self.stop, base.rows.count)
        nodes = [above(base)] if self.start else []
        nodes += [part, *([below(base)] if self.stop < base.rows.count else [])]
        joined = join(nodes)
        if joined is None:
            raise CannotRecord("a write of a map in another dtype")
        return joined


def sliced(recorder: Recorder, base: Recorded, dim: int, start: int, stop: int) -> Any:
    """A slice; of the rows only where they are counted one by one."""
    node = base.node
    if start == 0 and stop == base.shape[dim]:
        return viewed(recorder, base, Slice(dim, start, stop), base.value.twin) if dim != node.rows.dim else base
    if stop <= start:
        return torch.empty((*base.shape[:dim], 0, *base.shape[dim + 1 :]), dtype=base.dtype, device=base.device)
    if dim == node.rows.dim and node.rows.unit != 1:
        base = Recorded(single(node), recorder)
    return viewed(recorder, base, Slice(dim, start, stop), base.value.twin.narrow(dim, start, stop - start))


@rule("narrow")
def _narrow(recorder: Recorder, function: Rule, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    base, dim, start, length = (list(args) + [kwargs[key] for key in ("dim", "start", "length") if key in kwargs])[:4]
    dim %= base.ndim
    start = start % base.shape[dim] if start < 0 else start
    return sliced(recorder, base, dim, start, start + length)


@rule("select")
def _select(recorder: Recorder, function: Rule, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    base, dim, index = (list(args) + [kwargs[key] for key in ("dim", "index") if key in kwargs])[:3]
    return picked(recorder, base, dim % base.ndim, index)


def picked(recorder: Recorder, base: Any, dim: int, index: int) -> Any:
    """One place along a dim, which goes; NotImplemented along the rows, unless another dim can be the row's."""
    if dim == base.node.rows.dim and base.shape[0] != 1:
        return NotImplemented
    index %= base.shape[dim]
    part = sliced(recorder, base, dim, index, index + 1)
    return shape(recorder, torch.squeeze, "squeeze", (part, dim), {})


@rule("split", "chunk", "tensor_split", "unbind", "split_with_sizes")
def _split(recorder: Recorder, function: Rule, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    base = args[0]
    dim = kwargs.get("dim", args[-1] if len(args) > (1 if name == "unbind" else 2) else 0) % base.ndim
    pieces = function(stand_in(base.node), *args[1:], **kwargs)
    if name == "unbind":
        return tuple(picked(recorder, base, dim, index) for index in range(len(pieces)))
    parts, start = [], 0
    for piece in pieces:
        parts.append(sliced(recorder, base, dim, start, start + piece.shape[dim]))
        start += piece.shape[dim]
    return type(pieces)(parts)


@rule("__getitem__")
def getitem(recorder: Recorder, function: Rule, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    """Indexing by numbers, slices, None and Ellipsis; lists and tensors get the whole map."""
    result, index = args
    if not isinstance(result, Recorded):
        return NotImplemented
    index = index if isinstance(index, tuple) else (index,)
    if any(isinstance(item, (Tensor, list, bool)) for item in index):
        return NotImplemented
    named = sum(item is not None and item is not Ellipsis for item in index)
    dim = 0
    for item in index:
        if item is Ellipsis:
            dim += result.ndim - dim - sum(1 for later in index[index.index(Ellipsis) + 1 :] if later is not None)
        elif item is None:
            result = shape(recorder, torch.unsqueeze, "unsqueeze", (result, dim), {})
            dim += 1
        elif isinstance(item, slice):
            start, stop, step = item.indices(result.shape[dim])
            if step != 1:
                result = _strided(recorder, result, dim, start, stop, step)
            elif (start, stop) != (0, result.shape[dim]):
                result = sliced(recorder, result, dim, start, stop)
            dim += 1
        else:
            result = picked(recorder, result, dim, int(item))
        if not isinstance(result, Recorded):
            return result if isinstance(result, Tensor) else NotImplemented
    return result if named or len(index) else NotImplemented


def _strided(recorder: Recorder, base: Recorded, dim: int, start: int, stop: int, step: int) -> Any:
    if dim == base.node.rows.dim:
        return NotImplemented
    index = (slice(None),) * dim + (slice(start, stop, step),)

    def look(node: Node) -> Node | None:
        return row_by_row(Tensor.__getitem__, (node, index), {}, is_view=True)

    return viewed(recorder, base, look, base.value.twin[index])
