"""What one pass takes, counted by running it on slabs without data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ..cutting.exchange import Exchange
from ..cutting.passes import Pass
from ..cutting.windows import Windows
from ..operations.graph import Node
from ..running.banded import Banded, banded, own_rows
from ..running.carried import Carried, carried
from ..running.pages import Pages
from ..running.stores import RowStore
from ..running.stream import Stream, Taker
from .choice import Choice, is_parked, kept_dtype, make_store
from .counted import Counted, CountedMoments, There
from .counted_parking import CountedParking
from .device import Figures
from .ghosts import Ghost
from .schedule import PassCost, SlabRows

EDGES = 5  # between slabs of a parked map that are looked at: strips that read them may begin anywhere in a slab
AT_END = 3  # and the last ones: there fetching ahead ends, while what the pass makes has nearly all its rows


class CountedPass:
    """One pass run on ghosts.

    Args:
        windows: the pass in strips of some height.
        page_bytes: of a page, where stored maps lie in equal pages; else 0.
    """

    def __init__(
        self, windows: Windows, choice: Choice, device: torch.device, figures: Figures, page_bytes: int
    ) -> None:
        self.windows, self.choice, self.figures = windows, choice, figures
        self.kernels = Counted(device, figures, windows.count > 1)
        self.parking = CountedParking(self.kernels)
        self.beyond = CountedParking(self.kernels, counts=False)  # for what outlives the computation
        self.pages = Pages(page_bytes, self.kernels, choice.outside) if page_bytes else None
        self.given: list[Ghost] = []  # rows that other workers may not have taken yet

    def cost(self, layouts: Mapping[Node, SlabRows]) -> PassCost:
        """What the pass takes.

        Args:
            layouts: of the stored maps that it reads.
        """
        one, kernels = self.windows.one, self.kernels
        layouts = {**layouts, **{node: found.layout for node in one.read if (found := carried(node))}}
        leaves = {node: self._leaf(node, layouts.get(node)) for node in one.read}
        if not self.windows.share.is_whole:
            leaves = self._in_bands(leaves, layouts)
        stored = {node: self._carried(node) if node in sent_by(one) else self._store(node) for node in stored_by(one)}
        stream = Stream(self.windows, leaves, self._takers(stored), {}, kernels)
        strips = self._run(stream, layouts)
        for store in (*leaves.values(), *stored.values()):
            store.rest()
        meter, link = kernels.meter, self.figures.link
        copies = max(meter.sent, meter.fetched) / link if link else 0.0
        alone = (meter.sent + meter.fetched) / link / max(1, self.windows.count) if link else 0.0
        return PassCost(
            self.windows,
            meter.peak,
            meter.host_peak,
            max(self.figures.together(meter.seconds, meter.launches), copies) + alone,
            meter.launches,
            {node: tuple((first, stop) for first, stop, _ in store.parts) for node, store in stored.items()},
            strips * len(one.computed),
        )

    def _run(self, stream: Stream, layouts: Mapping[Node, SlabRows]) -> int:
        """Returns how many strips were looked at."""
        stream.begin()
        strips = list(self.windows.sampled(self._crossing(layouts)))
        for index, (strip, number) in enumerate(strips):
            self.kernels.meter.strips = number
            following = strips[index + 1][0] if index + 1 < len(strips) else None
            stream.strip(strip, following)
        self.kernels.meter.strips = 1
        stream.end()
        return len(strips)

    def _crossing(self, layouts: Mapping[Node, SlabRows]) -> Iterator[int]:
        """Numbers of the strips that read across an edge between two slabs of a map, when both are on the device."""
        windows = self.windows
        for node in windows.one.read:
            layout = layouts.get(node, ())
            few, last = (max(1, len(layout) // EDGES), AT_END) if self._is_parked(node) else (1, 1)
            edges = {*layout[1::few], *layout[1:][-last:]}
            begin, _ = windows.share.of_node(node)
            for first, _ in edges:
                row = (begin + first) * windows.clock // node.rows.count
                number = (row - windows.first) // windows.rows
                yield from (number, number + 1)

    def _leaf(self, node: Node, layout: SlabRows | None) -> Any:
        """A map that is read: one that an earlier pass or chunk stored, or one that is there whole."""
        if layout is None:
            return There(self.kernels, node)
        if carried(node):
            store: RowStore = self._carried(node)
            of_row = node.row_bytes
        else:
            store, of_row = self._store(node), node.row_elements * kept_dtype(node, self.choice).itemsize
        on_device = not self._is_parked(node)

        def slab(rows: int) -> Ghost:
            return self.kernels.slab(of_row * rows, rows) if on_device else Ghost(None, of_row * rows, rows)

        store.open(layout, slab)
        return store

    def _in_bands(self, leaves: Mapping[Node, Any], layouts: Mapping[Node, SlabRows]) -> dict[Node, Any]:
        """Maps that the workers hold in bands, with what other workers give of them for this pass."""
        share, one = self.windows.share, self.windows.one
        held = {node for node in one.read if node in layouts or banded(node)}
        exchange = Exchange(one, share, held)
        self.given = [self.kernels.slab(moved.bytes, 1) for moved in exchange.gives]
        made = dict(leaves) | {node: Banded(node, leaves[node], share, self.kernels) for node in held}
        for moved in exchange.takes:
            rows = self.kernels.slab(moved.bytes, moved.stop - moved.first)
            made[moved.node].beside.append((moved.first, moved.stop, rows))
        return made

    def _is_parked(self, node: Node) -> bool:
        return is_parked(node, self.choice) or carried(node) is not None

    def _store(self, node: Node) -> RowStore:
        return make_store(node, self.choice, self.kernels, self.pages, self.parking, self._own(node))

    def _carried(self, node: Node) -> Carried:
        return Carried(self._own(node), self.kernels, node.dtype, self.beyond)

    def _own(self, node: Node) -> Node:
        share = self.windows.share
        return node if share.is_whole else own_rows(node, share)

    def _takers(self, stored: Mapping[Node, RowStore]) -> dict[Node, list[Taker]]:
        takers: dict[Node, list[Taker]] = {}
        for node, purpose in self.windows.one.targets:
            of_node = takers.setdefault(node, [])
            if purpose in ("stored", "sent"):
                of_node.append(self._storing(node, stored[node]))
            elif purpose in ("whole", "output"):
                of_node.append(self._copying(node))
            else:
                of_node.append(_adding(CountedMoments(self.kernels, node)))
        return takers

    def _storing(self, node: Node, store: RowStore) -> Taker:
        """Stores a strip; one that stands for several leaves as many slabs."""
        kernels, begin = self.kernels, self.windows.share.of_node(node)[0]

        def take(first: int, slab: Ghost, own: bool) -> None:
            if kernels.meter.strips == 1 or not store.keeps_strips:
                store.append(first - begin, slab, own)
                return
            edges = self.windows.edges(node, first, first + slab.rows)
            kernels.share(len(edges))
            for low, high in edges:
                part = kernels.slab(slab.size * (high - low) // slab.rows, high - low)
                store.append(low - begin, part if own else kernels.cut(node, slab, 0, high - low), own)
            kernels.share(1)

        return take

    def _copying(self, node: Node) -> Taker:
        return lambda first, slab, own: self.kernels.copy(self.kernels.elsewhere(node, slab.rows), slab)


def stored_by(one: Pass) -> list[Node]:
    """The maps whose layouts a pass leaves: those that it stores, then the outputs that it sends to host memory."""
    return [*one.stored, *sent_by(one)]


def sent_by(one: Pass) -> list[Node]:
    """The outputs that a pass sends to host memory."""
    return [node for node, purpose in one.results if purpose == "sent"]


def _adding(moments: CountedMoments) -> Taker:
    return lambda first, slab, own: moments.add(slab)
