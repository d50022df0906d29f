"""Torch functions whose rows come from the same rows of their sources, and functions that change the number of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from .graph import Node, Op, Strips

#: Functions that give a view with its dims in another order.
TURNS = frozenset(["permute", "transpose", "swapaxes", "swapdims", "movedim", "moveaxis"])


@dataclass(frozen=True)
class Placeholder:
    """Stands in recorded arguments for the slab of a source.

    Attributes:
        index: of the source.
    """

    index: int


def substitute(tree: Any, slabs: Sequence[Tensor]) -> Any:
    """Recorded arguments with the slabs in place of the placeholders."""
    if isinstance(tree, Placeholder):
        return slabs[tree.index]
    if isinstance(tree, (list, tuple)):
        return type(tree)(substitute(item, slabs) for item in tree)
    return tree


@dataclass
class RowByRow(Op):
    """A torch function whose rows come from the same rows of its sources.

    Attributes:
        args, kwargs: of the function, with a :class:`Placeholder` for every source.
        overwrite: the same function in place, where there is one.
        is_view: the result shares memory with the first source.
    """

    function: Callable[..., Tensor]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    overwrite: Callable[[Tensor], Tensor] | None = None
    is_view: bool = False

    @property
    def turns(self) -> bool:  # type: ignore[override]
        return getattr(self.function, "__name__", "") in TURNS

    @property
    def works_in_place(self) -> bool:  # type: ignore[override]
        return self.overwrite is not None

    def run(self, node: Node, slabs: Sequence[Tensor], start: int, stop: int) -> Tensor:
        kwargs = {name: substitute(value, slabs) for name, value in self.kwargs.items()}
        return self.function(*substitute(self.args, slabs), **kwargs)

    def in_place(self, slab: Tensor) -> Tensor | None:
        return None if self.overwrite is None else self.overwrite(slab)

    def write(self, node: Node, strips: Strips, out: Any, start: int, stop: int) -> None:
        if self.works_in_place and len(node.sources) == 1 and node.sources[0].dtype == node.dtype:
            strips.write(node.sources[0], out, start, stop)
            strips.kernels.in_place(self, node, out)
        else:
            super().write(node, strips, out, start, stop)


@dataclass
class Finer(RowByRow):
    """A function that makes ``factor`` rows of each: nearest-neighbour upsampling, pixel shuffle.

    Attributes:
        nearest: nearest-neighbour doubling of rows and columns, which a convolution behind it may take in.
    """

    factor: int = 2
    nearest: bool = False

    def needs(self, node: Node, source: int, start: int, stop: int) -> tuple[int, int]:
        return start // self.factor, -(-stop // self.factor)

    def run(self, node: Node, slabs: Sequence[Tensor], start: int, stop: int) -> Tensor:
        rows = super().run(node, slabs, start, stop)
        return node.cut(rows, start - start // self.factor * self.factor, stop - start)


@dataclass
class Coarser(RowByRow):
    """A function that makes one row of each ``factor``: pooling whose windows do not overlap, pixel unshuffle."""

    factor: int = 2

    def needs(self, node: Node, source: int, start: int, stop: int) -> tuple[int, int]:
        return start * self.factor, stop * self.factor
