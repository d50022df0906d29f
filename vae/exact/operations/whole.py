"""Operations that must know a whole map before their first row: group norm and attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from .graph import Need, Node, Op, Strips
from .purposes import moments_of


@dataclass
class GroupNorm(Op):
    """Group normalisation with statistics of the whole map: once those are known, a scale and a shift per channel."""

    groups: int
    weight: Tensor | None
    bias: Tensor | None
    eps: float

    def whole_needs(self, node: Node) -> Iterator[Need]:
        yield Need(node.sources[0], moments_of(self.groups))

    def compute(self, node: Node, strips: Strips, start: int, stop: int) -> tuple[Any, bool]:
        out = strips.kernels.empty(node, stop - start)
        self.write(node, strips, out, start, stop)
        return out, True

    def write(self, node: Node, strips: Strips, out: Any, start: int, stop: int) -> None:
        line, kernels = strips.line(node, self), strips.kernels
        for low, high, rows in strips.pieces(node.sources[0], start, stop):
            kernels.normalise(node, kernels.cut(node, out, low - start, high - low), rows, line)


@dataclass
class Attention(Op):
    """Scaled dot-product attention of (..., rows x unit, C) tokens: queries in strips, keys and values whole.

    Attributes:
        attend: (query, key, value, scale) -> Tensor; see :class:`..engine.ExactRun`.
    """

    attend: Callable[..., Tensor]
    scale: float | None

    def whole_needs(self, node: Node) -> Iterator[Need]:
        for source in node.sources[1:]:
            yield Need(source, "whole")

    def streamed(self, node: Node) -> Sequence[Node]:
        return node.sources[:1]

    def needs(self, node: Node, source: int, start: int, stop: int) -> tuple[int, int]:
        return (start, stop) if source == 0 else (0, node.sources[source].rows.count)

    def run(self, node: Node, slabs: Sequence[Tensor], start: int, stop: int) -> Tensor:
        query, key, value = slabs
        # The fused kernels want the channels of a token side by side.
        return self.attend(query.contiguous(), key, value, self.scale)

    def flops(self, node: Node) -> float:
        return 4.0 * math.prod(node.shape) * node.sources[1].shape[-2]

    def temporaries(self, node: Node, start: int, stop: int) -> int:
        query, key, value = node.sources
        aligned = (stop - start) * query.row_bytes  # the query's channels put side by side
        beside = getattr(self.attend, "beside", None)
        if beside is None:
            return aligned
        tokens = (stop - start) * query.rows.unit
        return aligned + int(beside(node.device, node.dtype, tokens, key.shape[-2], query.shape[-1], value.shape[-1]))

    def scratch(self, node: Node, rows: int) -> int:
        return 2 * rows * node.row_bytes
