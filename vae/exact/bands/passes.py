"""Runs the passes of a schedule on one worker's band: before a pass it takes the rows beside it, after it the
statistics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from ..cutting.exchange import Exchange, statistics_dtype, values_of_group
from ..cutting.passes import Pass
from ..cutting.share import Share
from ..cutting.windows import Windows
from ..operations.graph import Leaf, Node
from ..operations.leaves import Held
from ..planning.choice import make_store
from ..runner import PassRunner, into
from ..running.banded import Banded, Gift, Parts, banded, own_rows
from ..running.moments import Moments
from ..running.stream import Taker
from .peers import Peers

HOST = torch.device("cpu")


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
        self.band, self.peers, self.steps = share, peers, steps

    def prepare(self, one: Pass, windows: Windows) -> None:
        """Takes from the other workers the rows beside the band that the pass reads, and the bands of what it wants
        whole, and gives them theirs."""
        step = next(self.steps)
        exchange = Exchange(one, self.band, {node for node in _read(one) if banded(node)})
        for moved in exchange.gives:
            leaf = _leaf(moved.node)
            rows = leaf.held.read(moved.first - leaf.first, moved.stop - leaf.first)
            key = (step, exchange.maps.index(moved.node))
            self.peers.give(key, [rows.clone(memory_format=torch.contiguous_format)], [moved.rank])
        for node in exchange.maps:
            _leaf(node).held.rest()
        readers = [rank for rank in self.band.others if rank in exchange.busy]
        for place, node in enumerate(exchange.whole):
            if self.band.height(node) and readers:
                self.peers.give((step, "whole", place), [_tensor(node)], readers)
        for moved in exchange.takes:
            (rows,) = self.peers.take((step, exchange.maps.index(moved.node)), moved.rank)(moved.node.device)
            _leaf(moved.node).beside.append((moved.first, moved.stop, rows))
        if self.band.rank in exchange.busy:
            for place, node in enumerate(exchange.whole):
                _leaf(node).parts = Parts(list(self._bands(node, (step, "whole", place))))

    def merge(self, gathered: Mapping[tuple[Node, int], Moments]) -> None:
        step = next(self.steps)
        own = {key: torch.stack(moments.merge()).cpu() for key, moments in gathered.items() if self.band.height(key[0])}
        for place, key in enumerate(gathered):
            if key in own:
                self.peers.give((step, place), [own[key]], self.band.others)
        for place, ((node, groups), moments) in enumerate(gathered.items()):
            filled = [share for share in self.band.every() if share.height(node)]
            parts = [
                own[node, groups]
                if share.rank == self.band.rank
                else self.peers.take((step, place), share.rank)(HOST)[0]
                for share in filled
            ]
            counts = [values_of_group(node, groups, share.height(node)) for share in filled]
            moments.merge_bands(counts, parts, torch.empty(0, dtype=statistics_dtype(node), device=node.device))

    def _stored(self, node: Node) -> tuple[Leaf, Taker]:
        rows = own_rows(node, self.band)
        store = make_store(node, self.choice, self.kernels, self.pages, self.parking, rows)
        leaf = Banded(node, store, self.band, self.kernels)
        return leaf, lambda first, slab, own: store.append(first - leaf.first, slab, own)

    def _whole(self, node: Node) -> tuple[Leaf, Taker]:
        band = node.empty(self.band.height(node))
        leaf = Banded(node, Held(band, node.rows.dim, node.rows.unit), self.band, self.kernels)
        return leaf, into(band, node, leaf.first)

    def _bands(self, node: Node, key: Any) -> Iterator[Gift]:
        for share in self.band.every():
            if share.rank == self.band.rank:
                yield _here(_tensor(node))
            elif share.height(node):
                yield self.peers.take(key, share.rank)


def _read(one: Pass) -> Iterator[Node]:
    """What a pass reads, and what attention in it reads of all rows."""
    yield from one.read
    yield from (source for node in one.computed for source in node.sources)


def _leaf(node: Node) -> Banded:
    leaf = banded(node)
    assert leaf is not None, "the exchange is of maps in bands"
    return leaf


def _tensor(node: Node) -> Tensor:
    held = _leaf(node).held.whole(node)
    assert held is not None, "what is wanted whole is kept as a tensor"
    return held


def _here(band: Tensor) -> Gift:
    return lambda device: [band]
