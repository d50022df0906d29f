"""Maps one behind the other along the rows, and one row again and again: how causal modules pad in time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from .graph import Node, Op, Strips


@dataclass
class Join(Op):
    """The rows of several maps, those of the first source first.

    Attributes:
        starts: per source, which row of the result is its first.
    """

    starts: tuple[int, ...]

    def needs(self, node: Node, source: int, start: int, stop: int) -> tuple[int, int]:
        return start - self.starts[source], stop - self.starts[source]

    def parts(self, node: Node, start: int, stop: int) -> Iterator[tuple[Node, int, int, int]]:
        """What rows [start, stop) are made of: (source, its first row, end, where that lies from ``start``)."""
        for index, source in enumerate(node.sources):
            first, last = node.needed(index, start, stop)
            if first < last:
                yield source, first, last, self.starts[index] + first - start

    def compute(self, node: Node, strips: Strips, start: int, stop: int) -> tuple[Any, bool]:
        parts = list(self.parts(node, start, stop))
        if len(parts) == 1:
            source, first, last, _ = parts[0]
            return strips.rows(source, first, last)
        out = strips.kernels.empty(node, stop - start)
        self.write(node, strips, out, start, stop)
        return out, True

    def write(self, node: Node, strips: Strips, out: Any, start: int, stop: int) -> None:
        for source, first, last, at in self.parts(node, start, stop):
            strips.write(source, strips.kernels.cut(node, out, at, last - first), first, last)

    def flops(self, node: Node) -> float:
        return 0.0


class Repeat(Op):
    """The source's only row, as often as the result has rows."""

    is_view = True

    def needs(self, node: Node, source: int, start: int, stop: int) -> tuple[int, int]:
        return 0, 1

    def run(self, node: Node, slabs: Sequence[Tensor], start: int, stop: int) -> Tensor:
        return slabs[0].expand(node.slab_shape(stop - start))

    def flops(self, node: Node) -> float:
        return 0.0
