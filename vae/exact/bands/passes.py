"""Runs the passes of a schedule on one worker's band: before a pass it takes the rows beside it, after it the
statistics."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

import torch
from torch import Tensor

from ..cutting.passes import Pass
from ..cutting.share import Share
from ..cutting.windows import Windows
from ..operations.graph import Leaf, Node
from ..operations.leaves import Held
from ..operations.whole import Attention
from ..planning.choice import make_store
from ..runner import PassRunner, into
from ..running.banded import Banded, Gift, Parts, banded, own_rows
from ..running.moments import Moments
from ..running.stream import Taker
from .peers import Peers


class BandPasses(PassRunner):
    """A :class:`..runner.PassRunner` of a band.

    Args:
        share: the band.
        peers: the other workers.
        steps: what is exchanged is numbered by, the same on all workers.
        others: of :class:`..runner.PassRunner`.
    """

    def __init__(self, share: Share, peers: Peers, steps: Iterator[int], *others: Any) -> None:
        super().__init__(*others)
        self.share, self.peers, self.steps = share, peers, steps

    def prepare(self, one: Pass, windows: Windows) -> None:
        """Takes from the other workers the rows beside the band that the pass reads, and the bands of what it wants
        whole, and gives them theirs."""
        step = next(self.steps)
        maps = [(node, leaf) for node in one.read if (leaf := banded(node))]
        reads = [Windows(one, windows.rows, share).reach() for share in self.share.every()]
        wholes = wanted_whole(one)
        busy = [share.rank for share in self.share.every() if share.height(one.clock)]
        for place, (node, leaf) in enumerate(maps):
            for rank in self.share.others:
                low, high = self._overlap(reads[rank].get(node), leaf.first, leaf.stop)
                if low < high:
                    rows = leaf.held.read(low - leaf.first, high - leaf.first)
                    self.peers.give((step, place), [rows.clone(memory_format=torch.contiguous_format)], [rank])
            leaf.held.rest()
        for place, leaf in enumerate(wholes):
            readers = [rank for rank in self.share.others if rank in busy]
            if leaf.first < leaf.stop and readers:
                self.peers.give((step, "whole", place), [_tensor(leaf)], readers)
        for place, (node, leaf) in enumerate(maps):
            for rank in self.share.others:
                low, high = self._overlap(reads[self.share.rank].get(node), *self.share.rows(node.rows.count, rank))
                if low < high:
                    (rows,) = self.peers.take((step, place), rank)(node.device)
                    leaf.beside.append((low, high, rows))
        for place, leaf in enumerate(wholes if self.share.rank in busy else ()):
            leaf.parts = Parts(list(self._bands(leaf, (step, "whole", place))))

    def merge(self, gathered: Mapping[tuple[Node, int], Moments]) -> None:
        step = next(self.steps)
        for place, ((node, groups), moments) in enumerate(gathered.items()):
            if self.share.height(node):
                self.peers.give((step, place), [torch.stack(moments.merge()).cpu()], self.share.others)
        for place, ((node, groups), moments) in enumerate(gathered.items()):
            values = math.prod(node.slab_shape(1)[1:]) // groups
            counts, parts = [], []
            for share in self.share.every():
                if not (height := share.height(node)):
                    continue
                counts.append(values * height)
                if share.rank == self.share.rank:
                    parts.append(torch.stack(moments.merge()).cpu())
                else:
                    parts += self.peers.take((step, place), share.rank)(torch.device("cpu"))
            wide = node.device.type == "cpu" or node.dtype is torch.float64
            like = torch.empty(0, dtype=torch.float64 if wide else torch.float32, device=node.device)
            moments.merge_bands(counts, parts, like)

    def _stored(self, node: Node) -> tuple[Leaf, Taker]:
        rows = own_rows(node, self.share)
        store = make_store(node, self.choice, self.kernels, self.pages, self.parking, rows)
        leaf = Banded(node, store, self.share, self.kernels)
        return leaf, lambda first, slab, own: store.append(first - leaf.first, slab, own)

    def _whole(self, node: Node) -> tuple[Leaf, Taker]:
        band = node.empty(self.share.height(node))
        leaf = Banded(node, Held(band, node.rows.dim, node.rows.unit), self.share, self.kernels)
        return leaf, into(band, node, leaf.first)

    def _bands(self, leaf: Banded, key: Any) -> Iterator[Gift]:
        for share in self.share.every():
            if share.rank == self.share.rank:
                band = _tensor(leaf)
                yield lambda device: [band]
            elif share.height(leaf.node):
                yield self.peers.take(key, share.rank)

    @staticmethod
    def _overlap(wanted: tuple[int, int] | None, first: int, stop: int) -> tuple[int, int]:
        """Rows that are wanted, as far as they are among [first, stop)."""
        return (0, 0) if wanted is None else (max(wanted[0], first), min(wanted[1], stop))


def wanted_whole(one: Pass) -> list[Banded]:
    """Maps in bands that a pass wants all of."""
    attending = (node for node in one.computed if isinstance(node.op, Attention))
    sources = dict.fromkeys(source for node in attending for source in node.sources[1:])
    return [leaf for source in sources if (leaf := banded(source))]


def _tensor(leaf: Banded) -> Tensor:
    held = leaf.held.whole(leaf.node)
    assert held is not None, "what is wanted whole is kept as a tensor"
    return held


def numbered() -> Iterator[int]:
    """Numbers for what is exchanged."""
    return count()
