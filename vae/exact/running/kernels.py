"""What a pass does with slabs. Here it is done; :mod:`..planning.counted` only counts what it takes.

:class:`.stream.Stream` and :mod:`.stores` know slabs by these methods alone, so that what is planned is what runs.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..operations.graph import Node, Op
from ..operations.whole import GroupNorm
from .allocator import even
from .moments import Moments

Line = tuple[Tensor, Tensor]  # scale and shift per channel


class Kernels:
    """On tensors."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    # ------------------------------------------------------------ slabs

    def empty(self, node: Node, rows: int) -> Any:
        """An uninitialised slab."""
        size = node.row_bytes * rows
        if size == (asked := even(size, self.device)):
            return node.empty(rows)
        return self.shaped(node, self.memory(asked), rows, node.dtype)

    def memory(self, size: int) -> Any:
        """Bytes without a shape."""
        return torch.empty(size, dtype=torch.uint8, device=self.device)

    def outside(self, size: int) -> Any:
        """Bytes of the system's, beside PyTorch's allocator."""
        return torch.frombuffer(mmap.mmap(-1, size), dtype=torch.uint8)

    def size_of(self, memory: Any) -> int:
        return int(memory.numel())

    def shaped(self, node: Node, memory: Any, rows: int, dtype: torch.dtype) -> Any:
        """The beginning of some bytes as a slab."""
        shape = node.slab_shape(rows)
        return memory[: node.row_elements * rows * dtype.itemsize].view(dtype).view(shape)

    def cut(self, node: Node, slab: Any, start: int, rows: int) -> Any:
        """A view of some rows of a slab, counted from its first."""
        return (
            slab if start == 0 and slab.shape[node.rows.dim] == rows * node.rows.unit else node.cut(slab, start, rows)
        )

    def columns(self, node: Node, slab: Any, first: int, count: int) -> Any:
        """A view of some columns of a slab."""
        return slab if count == node.shape[-1] else slab.narrow(-1, first, count)

    def stands_alone(self, slab: Any) -> bool:
        """Whether a slab is contiguous and holds no memory but its own."""
        return bool(slab.is_contiguous()) and slab.untyped_storage().nbytes() <= slab.numel() * slab.element_size()

    # ------------------------------------------------------------ work

    def copy(self, into: Any, slab: Any) -> None:
        into.copy_(slab)

    def clone(self, slab: Any) -> Any:
        return slab.clone(memory_format=torch.contiguous_format)

    def view(self, slab: Any) -> Any:
        """Rows that hold all of the slab that they were cut from."""
        return slab

    def cast(self, slab: Any, dtype: torch.dtype) -> Any:
        return slab.to(dtype)

    def highest(self, slab: Any, before: Any) -> Any:
        """The largest absolute value of a slab, or the one before."""
        value = torch.linalg.vector_norm(slab, float("inf"))
        return value if before is None else torch.maximum(value, before)

    def number(self, value: Any) -> float:
        """As the host's: it waits for it."""
        return float(value)

    def zero(self, slab: Any) -> None:
        slab.zero_()

    def add(self, into: Any, slab: Any) -> None:
        into.add_(slab)

    def sum(self, out: Any, first: Any, second: Any) -> None:
        torch.add(first, second, out=out)

    def run(self, op: Op, node: Node, slabs: Sequence[Any], start: int, stop: int) -> Any:
        """Rows [start, stop) of a node from those of its sources."""
        return op.run(node, slabs, start, stop)

    def in_place(self, op: Op, node: Node, slab: Any) -> Any:
        """An operation on a slab that may be overwritten; None where it cannot be done so."""
        return op.in_place(slab)

    def line(self, node: Node, norm: GroupNorm, moments: Any) -> Any:
        """What a norm does to each channel, from the statistics of its map."""
        gathered: Moments = moments
        dtype = torch.float64 if node.dtype is torch.float64 else torch.float32
        return gathered.line(norm, node.shape[1], len(node.shape), dtype)

    def normalise(self, node: Node, out: Any, slab: Any, line: Any) -> None:
        """Scale and shift of each channel."""
        scale, shift = line
        if out.device.type != "cpu" or (slab.dtype == out.dtype and out.dtype.itemsize >= 4):
            torch.addcmul(shift, slab, scale, out=out)
        elif out.dtype.itemsize < 4:
            out.copy_(torch.addcmul(shift, slab.float(), scale))
        else:
            out.copy_(slab).mul_(scale).add_(shift)

    def begin(self, op: Op, node: Node) -> None:
        """Before the first rows of a pass."""
        op.prepare(node)

    def share(self, pieces: int) -> None:
        """What follows is done for each of so many pieces."""

    def end(self, op: Op) -> None:
        """Drops what an operation kept from strip to strip."""
        op.release()
