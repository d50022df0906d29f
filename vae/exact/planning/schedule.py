"""What a choice takes: bytes, kernels, seconds, pass after pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..cutting.passes import Pass
from ..cutting.share import WHOLE, Share
from ..cutting.windows import Windows
from ..operations.graph import Node
from .choice import Choice, is_parked, kept_dtype
from .device import Figures

SlabRows = tuple[tuple[int, int], ...]  # first row and end of each slab of a stored map


@dataclass(frozen=True)
class Schedule:
    """A choice with its passes and what they take.

    Attributes:
        peak: bytes on the device at most: strips, stored maps there, output there, what is beside. Not the weights.
        host_peak: bytes of stored maps in host memory.
        flops: operations on numbers, of all passes.
        seconds: that they take by the device's figures.
        launches: kernels of all passes.
        peaks: bytes on the device at most, of each pass.
        page_bytes: of a page, where stored maps lie in equal pages; else 0.
        sent: how the outputs lie that are sent to host memory.
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
    sent: Mapping[Node, SlabRows] = field(default_factory=dict)

    @property
    def strips(self) -> int:
        """Of all passes."""
        return sum(windows.count for windows in self.windows)


@dataclass(frozen=True)
class PassCost:
    """What one pass takes by itself.

    Attributes:
        peak: bytes on the device at most, the maps that it reads and stores among them.
        host_peak: bytes in host memory, the same.
        seconds, launches: of its kernels and copies.
        layouts: of the maps that it stores, and of outputs that it sends to host memory.
        counted: operations that were counted for it: of each strip that was looked at.
    """

    windows: Windows
    peak: int
    host_peak: int
    seconds: float
    launches: int
    layouts: Mapping[Node, SlabRows]
    counted: int


@dataclass
class Course:
    """Passes followed one after the other, with the maps that lie between them.

    Attributes:
        beside: bytes on the device all along.
        share: the rows of every map that are computed.
        costs, peaks: of the passes so far; a peak with all that is on the device then.
        host_peak: bytes in host memory at most so far.
        device, host: maps that are there now, with their bytes.
        layouts: how those of them that were stored lie.
    """

    figures: Figures
    choice: Choice
    beside: int
    share: Share = WHOLE
    costs: list[PassCost] = field(default_factory=list)
    peaks: list[int] = field(default_factory=list)
    host_peak: int = 0
    device: dict[Node, int] = field(default_factory=dict)
    host: dict[Node, int] = field(default_factory=dict)
    layouts: dict[Node, SlabRows] = field(default_factory=dict)

    def add(self, one: Pass, cost: PassCost) -> None:
        """Follows the next pass to its end."""
        touched = {*(node for node in one.read if node in self.layouts), *one.stored}
        wholes = [self.share.bytes_of(node) for node, purpose in one.results if purpose == "whole"]
        whole = sum(map(self.figures.block, wholes))
        self.peaks.append(self.beside + whole + _bytes_but(touched, self.device) + cost.peak)
        self.host_peak = max(self.host_peak, _bytes_but(touched, self.host) + cost.host_peak)
        self.costs.append(cost)
        self._leave(one, cost)

    def schedule(self, passes: Sequence[Pass], page_bytes: int) -> Schedule:
        """All of it, once every pass was followed."""
        return Schedule(
            self.choice,
            tuple(passes),
            tuple(cost.windows for cost in self.costs),
            max(self.peaks),
            self.host_peak,
            sum(flops_of(one) for one in passes),
            sum(cost.seconds for cost in self.costs),
            sum(cost.launches for cost in self.costs),
            tuple(self.peaks),
            page_bytes,
            {
                node: cost.layouts[node]
                for one, cost in zip(passes, self.costs)
                for node, purpose in one.results
                if purpose == "sent"
            },
        )

    def _leave(self, one: Pass, cost: PassCost) -> None:
        """The maps that a pass leaves behind."""
        block = self.figures.block
        for node in one.stored:
            self.layouts[node] = layout = cost.layouts[node]
            of_row = node.row_elements * kept_dtype(node, self.choice).itemsize
            whole = of_row * self.share.height(node)
            if is_parked(node, self.choice):
                self.host[node] = whole
            else:
                self.device[node] = sum(block(of_row * (stop - first)) for first, stop in layout) or whole
        self.device |= {node: block(self.share.bytes_of(node)) for node, purpose in one.results if purpose == "whole"}
        for node in one.last_reads:
            for where in (self.device, self.host, self.layouts):
                where.pop(node, None)


def _bytes_but(touched: set[Node], where: Mapping[Node, int]) -> int:
    """Bytes of the maps that a pass leaves alone: it does not count them itself."""
    return sum(size for node, size in where.items() if node not in touched)


def flops_of(one: Pass) -> float:
    """Operations on numbers of a pass."""
    return sum(node.op.flops(node) for node in one.computed)
