"""The sum of two maps, in the memory of one of them where that may be overwritten."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from .graph import Node, Op, Strips


class Add(Op):
    """The sum of two maps of one shape and dtype."""

    def run(self, node: Node, slabs: Sequence[Tensor], start: int, stop: int) -> Tensor:
        return slabs[0] + slabs[1]

    def compute(self, node: Node, strips: Strips, start: int, stop: int) -> tuple[Any, bool]:
        # A map that is computed here may be overwritten; one that is read may not.
        mine, other = sorted(node.sources, key=strips.is_read)
        kernels = strips.kernels
        slab, owned = strips.rows(mine, start, stop)
        if not owned and not strips.is_read(other):
            mine, other = other, mine
            slab, owned = strips.rows(mine, start, stop)
        if not owned:
            return kernels.run(self, node, [slab, strips.rows(other, start, stop)[0]], start, stop), True
        for low, high, rows in strips.pieces(other, start, stop):
            kernels.add(kernels.cut(node, slab, low - start, high - low), rows)
        return slab, True

    def write(self, node: Node, strips: Strips, out: Any, start: int, stop: int) -> None:
        mine, other = sorted(node.sources, key=strips.is_read)
        kernels, slab = strips.kernels, strips.rows(mine, start, stop)[0]
        for low, high, rows in strips.pieces(other, start, stop):
            into, part = (kernels.cut(node, whole, low - start, high - low) for whole in (out, slab))
            kernels.sum(into, part, rows)
