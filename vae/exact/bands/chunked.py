"""One worker's part of a video that goes chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..chunked import ChunkedRun
from ..operations.graph import Leaf, Node
from ..operations.leaves import Held
from ..recording.record import Recorded
from ..running.banded import Banded, own_rows
from ..running.carried import Carried
from ..running.kernels import Kernels
from ..running.stream import Taker
from .run import BandRun


class ChunkedBand(BandRun, ChunkedRun):
    """A :class:`.run.BandRun` of chunk after chunk: of what the module keeps from one chunk to the next a worker has
    its band, which stays with it.

    Args:
        share, peers: of :class:`.run.BandRun`; others: of :class:`..chunked.ChunkedRun`.

    Attributes:
        heights: rows of whole maps, by what holds the band of one: the id of a tensor.
    """

    height: int
    ways_of_all = ("rows",)

    def __init__(self, *others: Any, **named: Any) -> None:
        super().__init__(*others, **named)
        self.heights: dict[int, int] = {}

    def run(self, module: Callable[..., Any], x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The band of all chunks of a video, of which ``x`` is this worker's band."""
        return ChunkedRun.run(self, module, x, *args, **kwargs)

    def _each(self, take: Callable[[Tensor], None], x: Tensor) -> None:
        self.heights = {id(x): self.height}
        super()._each(take, x)

    def _of_chunk(self, part: Tensor, start: int, stop: int) -> Tensor:
        found = super()._of_chunk(part, start, stop)
        self.heights[id(found)] = self.heights[id(part)]
        return found

    def _opened(self, x: Tensor) -> Recorded:
        return self._leaf(x, self._height(x))

    def _height(self, x: Tensor) -> int:
        return self.heights[id(x)]

    def _leaf(self, x: Tensor, height: int) -> Recorded:
        return self._of_band(x.shape, x.dtype, height, Held(x, x.ndim - 2), x.device)

    def _arriving(self, tensor: Tensor, height: int, device: torch.device) -> Recorded:
        return self._of_band(tensor.shape, tensor.dtype, height, self._opened_outside(tensor, device), device)

    def _there(self, node: Node, leaf: Leaf) -> Node:
        made = super()._there(node, leaf)
        made.op = Banded(made, leaf, self.band, Kernels(node.device))
        return made

    def _store(self, node: Node) -> Carried:
        return Carried(own_rows(node, self.band), Kernels(node.device), node.dtype, self._parking(node.device))

    def _onto(self, store: Carried, node: Node) -> Taker:
        begin = self.band.of_node(node)[0]
        return lambda first, slab, own: store.append(first - begin, slab, own)

    def _aside(self, node: Node, shape: Sequence[int] = ()) -> Tensor:
        own = list(shape or node.shape)
        own[node.rows.dim] = self.band.height(node) * node.rows.unit
        out = super()._aside(node, own)
        self.heights[id(out)] = node.rows.count * node.rows.unit
        return out
