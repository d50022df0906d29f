"""A way to run a computation in passes, and what it takes: bytes, kernels, seconds."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ..cutting.passes import Analysis, Pass
from ..cutting.windows import Windows
from ..operations.graph import Node
from ..running.allocator import CUT_FROM, EVEN_BYTES
from ..running.pages import Paged, Pages
from ..running.stores import Parked, RowStore, Slabs
from ..running.stream import Stream, Taker
from .card import figures_of
from .counted import Counted, CountedParking, Ghost, Sizes, There
from .device import Figures

EDGES = 5  # of a parked map's slabs that are looked at: they may lie anyhow to the strips that read them
AT_END = 3  # and its last ones: with them the fetching ahead ends, while what the pass makes has nearly all its rows


@dataclass(frozen=True)
class Choice:
    """How to run.

    Attributes:
        strip_bytes: of a strip of a pass's widest map; 0 = the lowest strips there are.
        recomputed: storable nodes that are computed anew by every pass that reads them.
        parked: stored nodes that lie in host memory.
        outside: all stored maps lie outside the device's memory.
        store: dtype of stored maps; None = their own.
        rows: rows of the output in a strip, instead of ``strip_bytes``.
        strips: of some passes, by their place: how many, instead.
    """

    strip_bytes: int
    recomputed: frozenset[Node] = frozenset()
    parked: frozenset[Node] = frozenset()
    outside: bool = False
    store: torch.dtype | None = None
    rows: int = 0
    strips: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class PlannedBefore:
    """A choice without its nodes: places among the analysis's."""

    choice: Choice
    recomputed: tuple[int, ...]
    parked: tuple[int, ...]


@dataclass(frozen=True)
class Schedule:
    """A choice with its passes and what they take.

    Attributes:
        peak: bytes on the device at most: strips, stored maps there, output there, what is beside. Not the weights.
        host_peak: bytes of stored maps in host memory.
        flops: of all passes.
        seconds: by the device's figures.
        launches: kernels.
        peaks: per pass.
        page_bytes: of stored maps, where they lie in equal pages.
    """

    choice: Choice
    passes: tuple[Pass, ...]
    windows: tuple[Windows, ...]
    peak: int
    host_peak: int
    flops: float
    seconds: float
    launches: int
    peaks: tuple[int, ...]
    page_bytes: int = 0

    @property
    def strips(self) -> int:
        return sum(windows.count for windows in self.windows)


Layout = tuple[tuple[int, int], ...]  # first row and end of each slab of a stored map


@dataclass(frozen=True)
class Outcome:
    """What one pass takes by itself.

    Attributes:
        peak: bytes on the device at most, the maps that it reads and stores among them.
        host_peak: bytes in host memory, the same.
        seconds, launches: of its kernels and copies.
        layouts: of the maps that it stores.
    """

    windows: Windows
    peak: int
    host_peak: int
    seconds: float
    launches: int
    layouts: Mapping[Node, Layout]


class Planner:
    """Schedules for one computation.

    Args:
        analysis: its passes.
        device: where it runs.
        beside: sizes in bytes of tensors there all along: outputs that the run makes, and what is the caller's.
        figures: of the device; None: :func:`figures_of` it.
    """

    def __init__(
        self, analysis: Analysis, device: torch.device, beside: Sequence[int], figures: Figures | None = None
    ) -> None:
        self.analysis, self.device = analysis, device
        self.figures = figures or figures_of(device)
        self.beside = sum(map(self.figures.block, beside))
        self._outcomes: dict[Hashable, Outcome] = {}
        self._passes: dict[frozenset[Node], list[Pass]] = {}

    def signature(self) -> Hashable:
        """Equal for computations that can share a plan: operations, shapes, dtypes, device."""
        nodes = self.analysis.nodes
        described = tuple((type(node.op).__name__, node.shape, node.dtype) for node in nodes)
        return (str(self.device), self.figures, self.beside, described)

    def remember(self, choice: Choice) -> PlannedBefore:
        """A choice for later computations of the same signature."""
        places = {node: place for place, node in enumerate(self.analysis.first)}
        bare = replace(choice, recomputed=frozenset(), parked=frozenset())
        recomputed, parked = (tuple(places[node] for node in nodes) for nodes in (choice.recomputed, choice.parked))
        return PlannedBefore(bare, recomputed, parked)

    def again(self, planned: PlannedBefore) -> Schedule:
        """The schedule of a remembered choice."""
        nodes = list(self.analysis.first)
        recomputed, parked = (
            frozenset(nodes[place] for place in places) for places in (planned.recomputed, planned.parked)
        )
        return self.schedule(replace(planned.choice, recomputed=recomputed, parked=parked))

    def schedule(self, choice: Choice) -> Schedule:
        """The passes of a choice, and what they take."""
        passes = self.passes(choice)
        page_bytes = self._page_bytes(passes, choice)
        alive = Alive(self.figures)
        outcomes, peaks, host_peak = [], [], 0
        for place, one in enumerate(passes):
            outcome = self._outcome(one, place, choice, page_bytes, alive.layouts)
            touched = {*(node for node in one.read if node in alive.layouts), *one.stored}
            whole = sum(self.figures.block(node.bytes) for node, purpose in one.results if purpose == "whole")
            peaks.append(self.beside + whole + alive.beside(touched, alive.device) + outcome.peak)
            host_peak = max(host_peak, alive.beside(touched, alive.host) + outcome.host_peak)
            outcomes.append(outcome)
            alive.follow(one, outcome, choice)
        return Schedule(
            choice,
            tuple(passes),
            tuple(outcome.windows for outcome in outcomes),
            max(peaks),
            host_peak,
            sum(flops_of(one) for one in passes),
            sum(outcome.seconds for outcome in outcomes),
            sum(outcome.launches for outcome in outcomes),
            tuple(peaks),
            page_bytes,
        )

    def passes(self, choice: Choice) -> list[Pass]:
        """Those of a choice."""
        if choice.recomputed not in self._passes:
            self._passes[choice.recomputed] = self.analysis.passes(choice.recomputed)
        return self._passes[choice.recomputed]

    def _page_bytes(self, passes: list[Pass], choice: Choice) -> int:
        """A few rows of the widest stored map: maps of half and a quarter its width fill pages without a rest."""
        least = self.figures.page_bytes
        rows = (node.row_elements * kept_dtype(node, choice).itemsize for one in passes for node in one.stored)
        widest = max(rows, default=least) if least else 0
        return widest * max(1, least // widest) if least else 0

    def _outcome(
        self, one: Pass, place: int, choice: Choice, page_bytes: int, layouts: Mapping[Node, Layout]
    ) -> Outcome:
        rows = self.strip_rows(one, place, choice)
        read = tuple((id(node), layouts[node], is_parked(node, choice)) for node in one.read if node in layouts)
        key = (
            tuple(map(id, one.computed)),
            tuple((id(node), is_parked(node, choice)) for node in one.stored),
            tuple(map(id, one.last_reads)),
            len(one.results),
            rows,
            read,
            page_bytes,
            choice.store,
        )
        if key not in self._outcomes:
            self._outcomes[key] = CountedPass(self, Windows(one, rows), choice, page_bytes).outcome(layouts)
        return self._outcomes[key]

    def strip_rows(self, one: Pass, place: int, choice: Choice) -> int:
        """Rows of the pass's clock in a strip."""
        count = one.clock.rows.count
        if place in choice.strips:
            rows = math.ceil(count / choice.strips[place])
        elif choice.rows:
            tallest = max(node.rows.count * node.rows.unit for node in self.analysis.outputs)
            rows = max(1, round(choice.rows * count / tallest))
        else:
            rows = max(1, choice.strip_bytes * count // one.widest)
        rows = min(rows + rows % 2 if rows > 1 else rows, count)
        rows = math.ceil(count / math.ceil(count / rows))
        if self.figures.page_bytes or choice.rows or rows == count:
            return rows
        return even_rows(rows, one.widest // count, count)


def even_rows(rows: int, of_row: int, count: int) -> int:
    """Rows of which the allocator leaves no rest (:data:`EVEN_BYTES`), also in maps half as wide; alike in passes that
    hand slabs to each other."""
    grain = EVEN_BYTES // math.gcd(EVEN_BYTES, max(1, of_row // 2))
    if of_row * rows <= CUT_FROM or 2 * grain > count:
        return rows
    return min(count, -(-rows // grain) * grain)


class Alive:
    """Maps that are there from pass to pass.

    Attributes:
        device, host: bytes of each.
        layouts: how stored maps lie.
    """

    def __init__(self, figures: Figures) -> None:
        self.figures = figures
        self.device: dict[Node, int] = {}
        self.host: dict[Node, int] = {}
        self.layouts: dict[Node, Layout] = {}

    @staticmethod
    def beside(touched: set[Node], where: Mapping[Node, int]) -> int:
        """Bytes of the maps that a pass leaves alone, and so does not count."""
        return sum(size for node, size in where.items() if node not in touched)

    def follow(self, one: Pass, outcome: Outcome, choice: Choice) -> None:
        """To the end of a pass."""
        block = self.figures.block
        for node in one.stored:
            self.layouts[node] = layout = outcome.layouts[node]
            of_row = node.row_elements * kept_dtype(node, choice).itemsize
            whole = of_row * node.rows.count
            if is_parked(node, choice):
                self.host[node] = whole
            else:
                self.device[node] = sum(block(of_row * (stop - first)) for first, stop in layout) or whole
        self.device |= {node: block(node.bytes) for node, purpose in one.results if purpose == "whole"}
        for node in one.last_reads:
            for where in (self.device, self.host, self.layouts):
                where.pop(node, None)


class CountedPass:
    """One pass run on ghosts."""

    def __init__(self, planner: Planner, windows: Windows, choice: Choice, page_bytes: int) -> None:
        self.windows, self.choice = windows, choice
        self.figures = planner.figures
        self.kernels = Counted(planner.device, planner.figures, windows.count > 1)
        self.parking = CountedParking(self.kernels)
        self.pages = Pages(page_bytes, self.kernels, choice.outside) if page_bytes else None

    def outcome(self, layouts: Mapping[Node, Layout]) -> Outcome:
        one, kernels = self.windows.one, self.kernels
        leaves = {node: self._leaf(node, layouts.get(node)) for node in one.read}
        stored = {node: self._store(node) for node in one.stored}
        stream = Stream(self.windows, leaves, self._takers(stored), {}, kernels)
        self._run(stream, layouts)
        for store in (*leaves.values(), *stored.values()):
            store.rest()
        meter, link = kernels.meter, self.figures.link
        copies = max(meter.sent, meter.fetched) / link if link else 0.0
        alone = (meter.sent + meter.fetched) / link / self.windows.count if link else 0.0
        return Outcome(
            self.windows,
            meter.peak,
            meter.host_peak,
            max(self.figures.together(meter.seconds, meter.launches), copies) + alone,
            meter.launches,
            {node: _layout(store) for node, store in stored.items()},
        )

    def _run(self, stream: Stream, layouts: Mapping[Node, Layout]) -> None:
        stream.begin()
        strips = list(self.windows.sampled(self._crossing(layouts)))
        for index, (strip, number) in enumerate(strips):
            self.kernels.meter.strips = number
            following = strips[index + 1][0] if index + 1 < len(strips) else None
            stream.strip(strip, following)
        self.kernels.meter.strips = 1
        stream.end()

    def _crossing(self, layouts: Mapping[Node, Layout]) -> Iterator[int]:
        """Strips that go from one slab of a map to the next, where both are near: of parked maps a few."""
        windows = self.windows
        for node in windows.one.read:
            layout = layouts.get(node, ())
            few, last = (max(1, len(layout) // EDGES), AT_END) if is_parked(node, self.choice) else (1, 1)
            edges = {*layout[1::few], *layout[1:][-last:]}
            for first, _ in edges:
                number = first * windows.clock // (node.rows.count * windows.rows)
                yield from (number, number + 1)

    def _leaf(self, node: Node, layout: Layout | None) -> Any:
        """A map that is read: stored before, or there anyway."""
        if layout is None:
            return There(self.kernels, node)
        store = self._store(node)
        if isinstance(store, Paged):
            store.open_all()
        else:
            of_row = node.row_elements * store.kept.itemsize
            for first, stop in layout:
                size, rows = of_row * (stop - first), stop - first
                parked = isinstance(store, Parked)
                store.put(first, stop, Ghost(None, size, rows) if parked else self.kernels.slab(size, rows))
        return store

    def _store(self, node: Node) -> RowStore:
        return make_store(node, self.choice, self.kernels, self.pages, self.parking)

    def _takers(self, stored: Mapping[Node, RowStore]) -> dict[Node, list[Taker]]:
        takers: dict[Node, list[Taker]] = {}
        for node, purpose in self.windows.one.targets:
            of_node = takers.setdefault(node, [])
            if purpose == "stored":
                of_node.append(self._storing(node, stored[node]))
            elif purpose in ("whole", "output"):
                of_node.append(self._copying(node))
            else:
                of_node.append(_adding(Sizes(self.kernels, node)))
        return takers

    def _storing(self, node: Node, store: RowStore) -> Taker:
        """A strip that stands for several leaves as many slabs."""
        kernels = self.kernels

        def take(first: int, slab: Ghost, own: bool) -> None:
            if kernels.meter.strips == 1 or isinstance(store, Paged):
                store.append(first, slab, own)
                return
            edges = self.windows.edges(node, first, first + slab.rows)
            kernels.share(len(edges))
            for low, high in edges:
                part = kernels.slab(slab.size * (high - low) // slab.rows, high - low)
                store.append(low, part if own else kernels.cut(node, slab, 0, high - low), own)
            kernels.share(1)

        return take

    def _copying(self, node: Node) -> Taker:
        return lambda first, slab, own: self.kernels.copy(self.kernels.elsewhere(node, slab.rows), slab)


def _adding(sizes: Sizes) -> Taker:
    return lambda first, slab, own: sizes.add(slab)


def _layout(store: RowStore) -> Layout:
    return tuple((first, stop) for first, stop, _ in getattr(store, "parts", ()))


def make_store(node: Node, choice: Choice, kernels: Any, pages: Pages | None, parking: Any) -> RowStore:
    """Where a map is kept by a choice."""
    dtype = kept_dtype(node, choice)
    if pages is not None:
        return Paged(node, kernels, dtype, pages)
    if is_parked(node, choice):
        return Parked(node, kernels, dtype, parking)
    return Slabs(node, kernels, dtype)


def is_parked(node: Node, choice: Choice) -> bool:
    """Whether a stored map lies in host memory."""
    return choice.outside or node in choice.parked


def kept_dtype(node: Node, choice: Choice) -> torch.dtype:
    """The dtype a node is stored in: narrower than its own, if that is wished."""
    if choice.store is not None and node.dtype.is_floating_point and choice.store.itemsize < node.dtype.itemsize:
        return choice.store
    return node.dtype


def flops_of(one: Pass) -> float:
    """Operations of a pass."""
    return sum(node.op.flops(node) for node in one.computed)
