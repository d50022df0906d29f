"""Schedules for one computation: each choice is planned by counting what its passes take."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace

import torch

from ..cutting.passes import Analysis, Pass
from ..cutting.share import WHOLE, Share
from ..cutting.windows import Windows
from ..operations.graph import Node
from ..running.allocator import CUT_FROM, EVEN_BYTES
from ..running.carried import carried
from .alike import KNOWN, Taken, description
from .card import figures_of
from .choice import Choice, PlannedBefore, is_parked, kept_dtype
from .counted_pass import CountedPass
from .device import Figures
from .schedule import Course, PassCost, Schedule, SlabRows


class Planner:
    """Schedules for one computation.

    Args:
        analysis: its passes.
        device: where it runs.
        beside: bytes of each tensor that is there all along: outputs that the run makes, and what is the caller's.
        figures: of the device; None: :func:`figures_of` it.
        on_pass: called before each pass that is planned; may raise to stop.
        share: the rows of every map that are computed.

    Attributes:
        tried: schedules made so far.
        counted: operations counted for them, those too that were known: what is planned must not hang on those.
    """

    def __init__(
        self,
        analysis: Analysis,
        device: torch.device,
        beside: Sequence[int],
        figures: Figures | None = None,
        on_pass: Callable[[], None] = lambda: None,
        share: Share = WHOLE,
    ) -> None:
        self.analysis, self.device, self.on_pass, self.share = analysis, device, on_pass, share
        self.figures = figures or figures_of(device)
        self.beside = sum(map(self.figures.block, beside))
        self.tried = self.counted = 0
        self._costs: dict[Hashable, PassCost] = {}
        self._described: dict[Hashable, bytes | None] = {}
        self._told: dict[tuple[Node, bool], str] = {}
        self._passes: dict[frozenset[Node], list[Pass]] = {}

    def signature(self) -> Hashable:
        """Equal for computations that can share a plan: operations, shapes, dtypes, device."""
        nodes = self.analysis.nodes
        described = tuple((type(node.op).__name__, node.shape, node.dtype, node.rows.dim) for node in nodes)
        outside = tuple((at, found.layout) for at, node in enumerate(nodes) if (found := carried(node)))
        sent = tuple(at for at, node in enumerate(nodes) if node in self.analysis.sent)
        return (str(self.device), self.figures, self.beside, described, outside, sent, self.share)

    def remember(self, choice: Choice, fits: bool = True) -> PlannedBefore:
        """A choice for later computations of the same signature."""
        places = {node: place for place, node in enumerate(self.analysis.first)}
        bare = replace(choice, recomputed=frozenset(), parked=frozenset())
        recomputed, parked = (tuple(places[node] for node in nodes) for nodes in (choice.recomputed, choice.parked))
        return PlannedBefore(bare, recomputed, parked, fits)

    def again(self, planned: PlannedBefore) -> Schedule:
        """The schedule of a remembered choice."""
        nodes = list(self.analysis.first)
        recomputed, parked = (
            frozenset(nodes[place] for place in places) for places in (planned.recomputed, planned.parked)
        )
        return self.schedule(replace(planned.choice, recomputed=recomputed, parked=parked))

    def schedule(self, choice: Choice) -> Schedule:
        """The passes of a choice, and what they take."""
        self.tried += 1
        passes = self.passes(choice)
        page_bytes = self._page_bytes(passes, choice)
        course = Course(self.figures, choice, self.beside, self.share)
        for place, one in enumerate(passes):
            self.on_pass()
            course.add(one, self._cost(one, self.strip_rows(one, place, choice), page_bytes, course))
        return course.schedule(passes, page_bytes)

    def passes(self, choice: Choice) -> list[Pass]:
        """The passes of a choice."""
        if choice.recomputed not in self._passes:
            self._passes[choice.recomputed] = self.analysis.passes(choice.recomputed)
        return self._passes[choice.recomputed]

    def _page_bytes(self, passes: list[Pass], choice: Choice) -> int:
        """Bytes of a few rows of the widest stored map: narrower maps, of a half or a quarter, fill such pages too."""
        least = self.figures.page_bytes
        rows = (node.row_elements * kept_dtype(node, choice).itemsize for one in passes for node in one.stored)
        widest = max(rows, default=least) if least else 0
        return widest * max(1, least // widest) if least else 0

    def _cost(self, one: Pass, rows: int, page_bytes: int, course: Course) -> PassCost:
        """What a pass takes in strips of so many rows; counted once for all choices that are alike in it."""
        choice, layouts = course.choice, course.layouts
        nodes = (*map(id, one.computed), *map(id, one.stored), *map(id, one.last_reads))
        what = (nodes, len(one.computed), len(one.stored), len(one.results))
        read = tuple(self._lies(node, layouts, choice) for node in one.read)
        stored = tuple(is_parked(node, choice) for node in one.stored)
        how = (rows, read, stored, page_bytes, choice.store)
        if (what, how) not in self._costs:
            self._costs[what, how] = cost = self._counted(one, rows, page_bytes, course, what, how)
            self.counted += cost.counted
        return self._costs[what, how]

    def _counted(
        self, one: Pass, rows: int, page_bytes: int, course: Course, what: Hashable, how: Hashable
    ) -> PassCost:
        """What a pass takes, counted anew unless one that is alike was."""
        windows = Windows(one, rows, self.share)
        if what not in self._described:
            self._described[what] = description(one, self._told) if self.share.is_whole else None
        described = self._described[what]
        key = (described, how, self.device.type, self.figures)
        known = None if described is None else KNOWN.get(key)
        if known is not None:
            return known.cost(windows)
        cost = CountedPass(windows, course.choice, self.device, self.figures, page_bytes).cost(course.layouts)
        if described is not None:
            KNOWN.put(key, Taken.by(cost))
        return cost

    @staticmethod
    def _lies(node: Node, layouts: Mapping[Node, SlabRows], choice: Choice) -> Hashable:
        """How a map lies that a pass reads: None, where it is there whole."""
        found = carried(node)
        if found is not None:
            return found.layout, True
        return (layouts[node], is_parked(node, choice)) if node in layouts else None

    def strip_rows(self, one: Pass, place: int, choice: Choice) -> int:
        """Rows of the pass's clock in a strip."""
        count, height = one.clock.rows.count, max(1, self.share.height(one.clock))
        if place in choice.strips:
            rows = math.ceil(height / choice.strips[place])
        elif choice.rows:
            tallest = max(node.rows.count * node.rows.unit for node in self.analysis.outputs)
            rows = max(1, round(choice.rows * count / tallest))
        else:
            rows = max(1, choice.strip_bytes * count // one.widest)
        rows = min(rows + rows % 2 if rows > 1 else rows, height)
        rows = math.ceil(height / math.ceil(height / rows))
        if self.figures.page_bytes or choice.rows or rows == height:
            return rows
        return even_rows(rows, one.widest // count, height)


def even_rows(rows: int, of_row: int, count: int) -> int:
    """So many rows or a few more, of which the allocator keeps no remainder (:data:`EVEN_BYTES`).

    Neither does it in maps half as wide, and passes that hand slabs to each other get strips that are alike.

    Args:
        of_row: bytes of a row of the widest map.
        count: rows of the pass's clock that are computed.
    """
    grain = EVEN_BYTES // math.gcd(EVEN_BYTES, max(1, of_row // 2))
    if of_row * rows <= CUT_FROM or 2 * grain > count:
        return rows
    return min(count, -(-rows // grain) * grain)
