"""What to store, what to recompute and how tall strips are: the fastest way that fits a byte budget."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from .graph import Node
from .passes import Analysis, Pass
from .stores import RowStore, stored_bytes
from .windows import Windows

# Lines and results are counted; of what kernels allocate beside them only an estimate is known.
KERNEL_MARGIN = 1.35
LEAST_MARGIN = 2 << 20

# Of a map in host memory, pages that are on the device at a time.
NEAR_PAGES = 3

# Slabs of the widest map: larger ones are no faster.
STRIP_BYTES = {"cpu": 8 << 20, "cuda": 64 << 20}
PAGE_BYTES = 1 << 20


@dataclass(frozen=True)
class Choice:
    """How to run.

    Attributes:
        strip_bytes: of a strip of a pass's widest map; 0 = the lowest strips there are.
        recomputed: storable nodes that are computed anew by every pass that reads them.
        on_host: stored maps lie in host memory.
        store: dtype of stored maps; None = their own.
        rows: rows of the output in a strip, instead of ``strip_bytes``.
    """

    strip_bytes: int
    recomputed: frozenset[Node] = frozenset()
    on_host: bool = False
    store: torch.dtype | None = None
    rows: int = 0


@dataclass(frozen=True)
class PlannedBefore:
    """A choice without its nodes: ``recomputed`` as places among the storable ones."""

    choice: Choice
    recomputed: tuple[int, ...]


@dataclass(frozen=True)
class Schedule:
    """A choice with its passes and what they take.

    Attributes:
        peak: bytes on the device at most: strips, stored maps there, output there. Weights and input not counted.
        host_peak: bytes of stored maps in host memory.
        flops: of all passes.
        peaks: per pass.
    """

    choice: Choice
    passes: tuple[Pass, ...]
    windows: tuple[Windows, ...]
    page_bytes: int
    peak: int
    host_peak: int
    flops: float
    peaks: tuple[int, ...]

    @property
    def strips(self) -> int:
        return sum(windows.count for windows in self.windows)


class Planner:
    """Schedules for one computation.

    Args:
        analysis: its passes.
        device: where it runs.
        output_bytes: of the outputs, if they are on the device and made by the run.
    """

    def __init__(self, analysis: Analysis, device: torch.device, output_bytes: int) -> None:
        self.analysis, self.device, self.output_bytes = analysis, device, output_bytes
        self.default = STRIP_BYTES.get(device.type, STRIP_BYTES["cuda"])
        self._locals: dict[tuple, tuple[Windows, list[tuple[int, int]]]] = {}

    def signature(self) -> Hashable:
        """Equal for computations that can share a plan: operations, shapes, dtypes, device."""
        nodes = self.analysis.nodes
        return (str(self.device), tuple((type(node.op).__name__, node.shape, node.dtype) for node in nodes))

    def remember(self, choice: Choice) -> PlannedBefore:
        """A choice for later computations of the same signature."""
        places = {node: place for place, node in enumerate(self.analysis.storable)}
        bare = replace(choice, recomputed=frozenset())
        return PlannedBefore(bare, tuple(sorted(places[node] for node in choice.recomputed)))

    def again(self, planned: PlannedBefore) -> Schedule:
        """The schedule of a remembered choice."""
        nodes = frozenset(self.analysis.storable[place] for place in planned.recomputed)
        return self.schedule(replace(planned.choice, recomputed=nodes))

    def fastest_within(self, budget: float, store: torch.dtype | None = None, rows: int = 0) -> tuple[Schedule, bool]:
        """The first schedule that fits, else the one with the lowest peak, and whether it fits."""
        least: Schedule | None = None
        for schedule in self.ladder(budget, Choice(self.default, store=store, rows=rows)):
            if schedule.peak <= budget:
                return schedule, True
            if least is None or schedule.peak < least.peak:
                least = schedule
        assert least is not None
        return least, False

    def ladder(self, budget: float, choice: Choice) -> Iterator[Schedule]:
        """Ever slower schedules: lower strips, maps recomputed, maps in host memory."""
        places = (False,) if self.device.type == "cpu" and not choice.on_host else (False, True)
        for on_host in places:
            choice = replace(choice, on_host=on_host, recomputed=frozenset())
            yield self.schedule(choice)
            for part in (4,) if choice.rows else (4, 16, 0):
                choice = replace(choice, strip_bytes=self.default // part if part else 0)
                schedule = self.schedule(choice)
                yield schedule
                for schedule in self._recomputing(budget, choice):
                    yield schedule
                choice = schedule.choice

    def _recomputing(self, budget: float, choice: Choice) -> Iterator[Schedule]:
        """Stored maps given up one after the other, each the cheapest at the fullest pass."""
        schedule = self.schedule(choice)
        while schedule.peak > budget:
            fullest = max(range(len(schedule.peaks)), key=lambda index: schedule.peaks[index])
            tries = [
                self.schedule(replace(choice, recomputed=choice.recomputed | {node}))
                for node in self._stored_at(schedule, fullest)
                if node in self.analysis.storable
            ]
            tries = [one for one in tries if one.peaks[fullest] < schedule.peaks[fullest]]
            if not tries:
                return
            saved = schedule.peaks[fullest]
            schedule = min(tries, key=lambda one: (one.flops - schedule.flops + 1.0) / (saved - one.peaks[fullest]))
            choice = schedule.choice
            yield schedule

    def _stored_at(self, schedule: Schedule, index: int) -> list[Node]:
        born: list[Node] = []
        for at, one in enumerate(schedule.passes[: index + 1]):
            born += one.stored
            if at < index:
                born = [node for node in born if node not in one.last_reads]
        return born

    def schedule(self, choice: Choice) -> Schedule:
        """The passes of a choice, and their bytes."""
        passes = self.analysis.passes(choice.recomputed)
        page_bytes = self._page_bytes(passes, choice)
        alive: dict[Node, int] = {}
        host_alive: dict[Node, int] = {}
        windows, peaks, host_peak, flops = [], [], 0, 0.0
        gathered = {node for one in passes for node, purpose in one.results if purpose == "whole"}
        for one in passes:
            window, profile = self._local(one, choice, page_bytes, gathered)
            windows.append(window)
            growing = {*one.stored, *one.last_reads} - gathered
            fixed = sum(size for node, size in alive.items() if node not in growing)
            host_fixed = sum(size for node, size in host_alive.items() if node not in growing)
            # The output is there from the start: what is done of it is shown while the rest is made.
            whole = self.output_bytes + sum(node.bytes for node, purpose in one.results if purpose == "whole")
            at_strips = [
                (fixed + whole + working + (0 if choice.on_host else stored), host_fixed + stored * choice.on_host)
                for working, stored in profile
            ]
            peaks.append(max(device for device, _ in at_strips))
            host_peak = max(host_peak, *(host for _, host in at_strips))
            flops += flops_of(one)
            place = host_alive if choice.on_host else alive
            for node in one.stored:
                place[node] = self._stored(node, node.rows.count, page_bytes, choice)
            alive |= {node: node.bytes for node, purpose in one.results if purpose == "whole"}
            for node in one.last_reads:
                alive.pop(node, None)
                host_alive.pop(node, None)
        return Schedule(choice, tuple(passes), tuple(windows), page_bytes, max(peaks), host_peak, flops, tuple(peaks))

    def _page_bytes(self, passes: Sequence[Pass], choice: Choice) -> int:
        """A few rows of the widest stored map: maps of half and a quarter its width fill pages without a rest."""
        widest = max((self._row_bytes(node, choice) for one in passes for node in one.stored), default=PAGE_BYTES)
        return widest * max(1, PAGE_BYTES // widest)

    def _row_bytes(self, node: Node, choice: Choice) -> int:
        return node.row_elements * kept_dtype(node, choice).itemsize

    def _stored(self, node: Node, rows: int, page_bytes: int, choice: Choice) -> int:
        return stored_bytes(page_bytes, self._row_bytes(node, choice), node.rows.count, rows)

    def _local(
        self, one: Pass, choice: Choice, page_bytes: int, gathered: set[Node]
    ) -> tuple[Windows, list[tuple[int, int]]]:
        """Per strip, working bytes and bytes of the maps that grow or shrink; remembered for equal passes.

        Maps that were gathered whole neither grow nor shrink, and lie on the device wherever the others are.
        """
        rows = self.strip_rows(one, choice)
        dying = tuple(node for node in one.last_reads if node not in gathered)
        key = (
            tuple(id(node) for node in one.computed),
            tuple(id(node) for node in one.stored),
            tuple(id(node) for node in dying),
            len(one.results),
            rows,
            page_bytes,
            choice.store,
        )
        if key not in self._locals:
            windows = Windows(one, rows)
            self._locals[key] = windows, list(self._profile(windows, page_bytes, choice, dying))
        return self._locals[key]

    def _profile(
        self, windows: Windows, page_bytes: int, choice: Choice, last_reads: Sequence[Node]
    ) -> Iterator[tuple[int, int]]:
        retained: dict[Node, int] = {}
        written = dict.fromkeys(windows.one.stored, 0)
        dying = {node: 0 for node in last_reads if not node.is_leaf or isinstance(node.op, RowStore)}
        strips = list(windows.sampled())
        for index, (strip, is_one) in enumerate(strips):
            following = strips[index + 1][0] if index + 1 < len(strips) else None
            working = (
                windows.working_bytes(strip, following, retained)
                if is_one
                else windows.skip(strip, following, retained)
            )
            for node in written:
                written[node] = max(written[node], strip.lines[node][1] if node in strip.lines else 0)
            stored = sum(self._stored(node, rows, page_bytes, choice) for node, rows in written.items())
            for node, first in dying.items():
                stored += self._remaining(node, first, page_bytes, choice)
            if is_one:
                near = NEAR_PAGES * page_bytes * (len(written) + len(dying)) if choice.on_host else 0
                yield int(working * KERNEL_MARGIN) + LEAST_MARGIN + near, stored
            if following is not None:
                for node in dying:
                    dying[node] = following.reads.get(node, dying[node])

    def _remaining(self, node: Node, first: int, page_bytes: int, choice: Choice) -> int:
        all_rows = node.rows.count
        whole = self._stored(node, all_rows, page_bytes, choice)
        return whole - self._stored(node, first, page_bytes, choice) + (page_bytes if first else 0)

    def strip_rows(self, one: Pass, choice: Choice) -> int:
        """Rows of the pass's clock in a strip."""
        count = one.clock.rows.count
        if choice.rows:
            tallest = max(node.rows.count * node.rows.unit for node in self.analysis.outputs)
            rows = max(1, round(choice.rows * count / tallest))
        else:
            nodes = one.computed or [node for node, _ in one.targets]
            widest = max(node.bytes for node in nodes) / count
            rows = max(1, int(choice.strip_bytes / widest))
        rows = min(rows + rows % 2 if rows > 1 else rows, count)
        return math.ceil(count / math.ceil(count / rows))


def kept_dtype(node: Node, choice: Choice) -> torch.dtype:
    """The dtype a node is stored in: narrower than its own, if that is wished."""
    if choice.store is not None and node.dtype.is_floating_point and choice.store.itemsize < node.dtype.itemsize:
        return choice.store
    return node.dtype


def flops_of(one: Pass) -> float:
    """Operations of a pass."""
    return sum(node.op.flops(node) for node in one.computed)
