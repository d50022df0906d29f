"""A plan in words: what was recorded, how it was cut into passes, and what each of them takes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator

from .cutting.passes import Pass
from .cutting.windows import Windows
from .operations.graph import Node
from .operations.purposes import groups_of
from .planning.choice import is_parked, kept_dtype
from .planning.schedule import Schedule
from .running.allocator import MIB


def explanation(schedule: Schedule, budget: float) -> str:
    """A schedule in lines of text.

    To be made before the schedule runs: a map that was computed has no operation any more.

    Args:
        budget: bytes that the schedule was looked for within; infinite where there was none.
    """
    return "\n".join(_Words(schedule, budget).lines())


class _Words:
    """A schedule's lines. Maps have numbers, in the order in which they were recorded."""

    def __init__(self, schedule: Schedule, budget: float) -> None:
        self.schedule, self.budget = schedule, budget
        nodes = {node for one in schedule.passes for node in (*one.computed, *one.read)}
        self.numbers = {node: number for number, node in enumerate(sorted(nodes, key=lambda node: node.order))}

    def lines(self) -> Iterator[str]:
        """All of them, in order."""
        schedule = self.schedule
        yield from self._summary()
        for number, (one, windows) in enumerate(zip(schedule.passes, schedule.windows)):
            yield from self._of_pass(number, one, windows)
        for node in sorted(schedule.choice.recomputed, key=lambda node: node.order):
            times = sum(node in one.computed for one in schedule.passes)
            yield f"recomputed instead of stored: {self._map(node)}, computed in {times} passes"

    def _summary(self) -> Iterator[str]:
        schedule = self.schedule
        computed = {node for one in schedule.passes for node in one.computed}
        device = schedule.passes[-1].results[0][0].device
        yield f"exact strips on {device}, {len(schedule.passes)} passes, {schedule.strips} strips"
        yield f"recorded: {_kinds(computed)}"
        within = "no budget" if math.isinf(self.budget) else f"a budget of {_size(self.budget)}"
        fits = "" if schedule.peak <= self.budget else ", which nothing fits"
        host = f" and {_size(schedule.host_peak)} in host memory" if schedule.host_peak else ""
        yield f"predicted: {_size(schedule.peak)} at the peak{host}, with {within}{fits}"
        yield f"predicted: {schedule.seconds:.3g} s, {schedule.launches} kernels, {schedule.flops / 1e9:.3g} GFLOP"

    def _of_pass(self, number: int, one: Pass, windows: Windows) -> Iterator[str]:
        strips = "in one piece" if windows.count == 1 else f"in {windows.count} strips of {windows.rows}"
        peak = self.schedule.peaks[number]
        yield f"pass {number + 1}: {one.clock.rows.count} rows {strips}, {_size(peak)} at its peak"
        yield f"  computes {_kinds(one.computed)}"
        for node in one.read:
            yield f"  reads {self._map(node)}{', for the last time' if node in one.last_reads else ''}"
        for node, purpose in one.results:
            yield f"  gives {_purpose(purpose)} {self._map(node)}"
        for node in one.stored:
            yield f"  stores {self._map(node)}, {self._kept(node)}"

    def _kept(self, node: Node) -> str:
        """Where a stored map lies, and as what."""
        choice = self.schedule.choice
        where = "in host memory" if is_parked(node, choice) else "on the device"
        dtype = kept_dtype(node, choice)
        return where if dtype == node.dtype else f"{where} in {str(dtype).removeprefix('torch.')}"

    def _map(self, node: Node) -> str:
        dtype = str(node.dtype).removeprefix("torch.")
        return f"#{self.numbers[node]} {type(node.op).__name__} {node.shape} {dtype} {_size(node.bytes)}"


def _purpose(purpose: str) -> str:
    words = {"output": "the output", "sent": "to host memory", "whole": "the whole of"}
    if purpose in words:
        return words[purpose]
    return f"statistics of {groups_of(purpose)} groups of"


def _kinds(nodes: Iterable[Node]) -> str:
    """How many operations there are of each kind."""
    counted = Counter(type(node.op).__name__ for node in sorted(nodes, key=lambda node: node.order))
    return ", ".join(f"{count} {name}" for name, count in counted.most_common()) or "nothing"


def _size(size: float) -> str:
    return f"{size / MIB:.2f} MiB"
