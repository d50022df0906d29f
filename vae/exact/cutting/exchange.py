"""What workers that share a picture in bands give each other for a pass, and after it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from ..operations.graph import Node
from ..operations.purposes import OUTPUTS, groups_of
from ..operations.whole import Attention
from .passes import Pass
from .share import Share
from .windows import Windows

RowSpan = tuple[int, int]


@dataclass(frozen=True)
class Moved:
    """Rows of a map that go from one worker to another: [first, stop)."""

    node: Node
    rank: int
    first: int
    stop: int

    @property
    def bytes(self) -> int:
        """Of the rows."""
        return self.node.row_bytes * (self.stop - self.first)


class Exchange:
    """Of one pass. Every worker finds the same of all of them, without asking.

    To be made before the pass runs: a map that was computed has no operation any more.

    Args:
        in_bands: maps of which each worker has its band when the pass begins.
    """

    def __init__(self, one: Pass, share: Share, in_bands: Collection[Node]) -> None:
        self.one, self.share = one, share
        self.maps = [node for node in one.read if node in in_bands]
        self.whole = list(_wanted_whole(one, in_bands))

    @cached_property
    def reach(self) -> Sequence[Mapping[Node, RowSpan]]:
        """What each worker reads of each map."""
        return [Windows(self.one, 1, share).reach() for share in self.share.every()]

    @property
    def gives(self) -> Iterator[Moved]:
        """Rows that this worker has and others read."""
        for node in self.maps:
            for rank in self.share.others:
                yield from _moved(node, rank, self.reach[rank].get(node), self.share.of_node(node))

    @property
    def takes(self) -> Iterator[Moved]:
        """Rows that others have and this worker reads."""
        for node in self.maps:
            for rank in self.share.others:
                yield from _moved(
                    node, rank, self.reach[self.share.rank].get(node), self.share.rows(node.rows.count, rank)
                )

    @property
    def busy(self) -> list[int]:
        """Workers that have rows to compute."""
        return [share.rank for share in self.share.every() if share.height(self.one.clock)]

    @property
    def received(self) -> int:
        """Bytes that this worker takes from others."""
        rows = sum(moved.bytes for moved in self.takes)
        whole = sum(node.bytes - self.share.bytes_of(node) for node in self.whole) if self._is_busy else 0
        return rows + whole + sum(self._of_statistics())

    @property
    def _is_busy(self) -> bool:
        return self.share.rank in self.busy

    def _of_statistics(self) -> Iterator[int]:
        """Bytes of the statistics of the others' bands."""
        for node, purpose in self.one.results:
            if purpose not in ("whole", *OUTPUTS):
                givers = [one for one in self.share.every() if one.rank != self.share.rank and one.height(node)]
                yield 2 * node.shape[0] * groups_of(purpose) * statistics_dtype(node).itemsize * len(givers)


def statistics_dtype(node: Node) -> torch.dtype:
    """Of a map's mean and variance: float64 on a CPU, on cards float32 as their own kernels have it."""
    return torch.float64 if node.device.type == "cpu" or node.dtype is torch.float64 else torch.float32


def exchanged(passes: Sequence[Pass], share: Share, in_bands: Collection[Node]) -> int:
    """Bytes that a worker takes from others in the passes of a schedule that has not run.

    Args:
        in_bands: maps of which each worker has its band before the first.
    """
    there, received = set(in_bands), 0
    for one in passes:
        received += Exchange(one, share, there).received
        there |= {*one.stored, *(node for node, purpose in one.results if purpose == "whole")}
    return received


def values_of_group(node: Node, groups: int, rows: int) -> int:
    """Values of which a group's statistics are made, in so many rows of an image."""
    return math.prod(node.slab_shape(1)[1:]) // groups * rows


def _wanted_whole(one: Pass, in_bands: Collection[Node]) -> Iterator[Node]:
    """Maps in bands that a pass wants all of."""
    sources = (source for node in one.computed if isinstance(node.op, Attention) for source in node.sources[1:])
    yield from (node for node in dict.fromkeys(sources) if node in in_bands)


def _moved(node: Node, rank: int, wanted: RowSpan | None, there: RowSpan) -> Iterator[Moved]:
    if wanted is not None:
        first, stop = max(wanted[0], there[0]), min(wanted[1], there[1])
        if first < stop:
            yield Moved(node, rank, first, stop)
