"""What a pass does with slabs. Here it is done; :mod:`..planning.counted` only counts what it takes.

:class:`.stream.Stream`, :mod:`.stores` and the operations know slabs by these methods alone, so that what is planned is
what runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..operations.graph import Node, Op
from ..operations.whole import GroupNorm
from .memory import Memory
from .moments import Moments


class Kernels(Memory):
    """On tensors."""

    @property
    def strips(self) -> int:
        """How many strips the one that runs stands for: more than one only where they are counted."""
        return 1

    def copy(self, into: Any, slab: Any) -> None:
        """Copies a slab into another one."""
        into.copy_(slab)

    def clone(self, slab: Any) -> Any:
        """A contiguous copy."""
        return slab.clone(memory_format=torch.contiguous_format)

    def view(self, slab: Any) -> Any:
        """Some rows as a view, which keeps all of the slab that they were cut from."""
        return slab

    def cast(self, slab: Any, dtype: torch.dtype) -> Any:
        """A slab in another dtype."""
        return slab.to(dtype)

    def highest(self, slab: Any, before: Any) -> Any:
        """The largest absolute value of a slab, or the one before."""
        value = torch.linalg.vector_norm(slab, float("inf"))
        return value if before is None else torch.maximum(value, before)

    def number(self, value: Any) -> float:
        """A value as a number of the host's, which waits for it."""
        return float(value)

    def zero(self, slab: Any) -> None:
        """Fills a slab with zeros."""
        slab.zero_()

    def add(self, into: Any, slab: Any) -> None:
        """Adds a slab to another one."""
        into.add_(slab)

    def sum(self, out: Any, first: Any, second: Any) -> None:
        """Writes the sum of two slabs into a third."""
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
        """Applies a norm's scale and shift of each channel."""
        scale, shift = line
        if out.device.type != "cpu" or (slab.dtype == out.dtype and out.dtype.itemsize >= 4):
            torch.addcmul(shift, slab, scale, out=out)
        elif out.dtype.itemsize < 4:
            out.copy_(torch.addcmul(shift, slab.float(), scale))
        else:
            out.copy_(slab).mul_(scale).add_(shift)

    def begin(self, op: Op, node: Node) -> None:
        """Has an operation make what it keeps from strip to strip, before the first."""
        op.prepare(node)

    def share(self, pieces: int) -> None:
        """What follows is done for each of so many pieces of a slab: of use where strips are counted."""

    def end(self, op: Op) -> None:
        """Has an operation drop what it kept from strip to strip."""
        op.release()
