"""Other dims, or another count of rows, for the same elements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from .graph import Node, Op


class Reshape(Op):
    """Other dims for the same elements, those of a row still together."""

    is_view = True
    needs_order = True

    def run(self, node: Node, slabs: Sequence[Tensor], start: int, stop: int) -> Tensor:
        return slabs[0].reshape(node.slab_shape(stop - start))


class Relabel(Op):
    """The only row of a map, which is all of it, as one along another dim."""

    is_view = True

    def run(self, node: Node, slabs: Sequence[Tensor], start: int, stop: int) -> Tensor:
        return slabs[0]


@dataclass
class Refine(Op):
    """Each row of the source is several: rows that lay together in units are counted one by one.

    Attributes:
        factor: rows that one row of the source becomes.
    """

    factor: int
    is_view = True

    def needs(self, node: Node, source: int, start: int, stop: int) -> tuple[int, int]:
        return start // self.factor, -(-stop // self.factor)

    def run(self, node: Node, slabs: Sequence[Tensor], start: int, stop: int) -> Tensor:
        return node.cut(slabs[0], start - start // self.factor * self.factor, stop - start)


@dataclass
class Coarsen(Op):
    """Several rows of the source are counted as one.

    Attributes:
        factor: rows of the source in one of the result.
    """

    factor: int
    is_view = True

    def needs(self, node: Node, source: int, start: int, stop: int) -> tuple[int, int]:
        return start * self.factor, stop * self.factor

    def run(self, node: Node, slabs: Sequence[Tensor], start: int, stop: int) -> Tensor:
        return slabs[0]


@dataclass
class Crop(Op):
    """The source without its first rows (and perhaps its last).

    Attributes:
        first: the row of the source that is row 0 of the result.
    """

    first: int
    is_view = True

    def needs(self, node: Node, source: int, start: int, stop: int) -> tuple[int, int]:
        return start + self.first, stop + self.first

    def run(self, node: Node, slabs: Sequence[Tensor], start: int, stop: int) -> Tensor:
        return slabs[0]
