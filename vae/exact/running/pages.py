"""Maps kept in equal pages: for a C library's heap, which would not give slabs of many sizes back to the system."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from ..operations.graph import Node
from .kernels import Kernels
from .stores import RowStore, rows_of


class Pages:
    """Equal pieces of memory. A page that one map has done with is the next that another map gets.

    Only one page is held back for that, so that no more is held than the maps need.

    Args:
        page_bytes: of one page.
        kernels: where the memory comes from.
        outside: pages lie outside PyTorch's allocator, as host memory does for an accelerator, and are copied there
            and back, so that the device's share can be measured on a CPU.
    """

    def __init__(self, page_bytes: int, kernels: Kernels, outside: bool = False) -> None:
        self.page_bytes, self.kernels, self.outside = page_bytes, kernels, outside
        self.free: list[Any] = []
        self.is_over = False

    def take(self, size: int) -> Any:
        """Memory for ``size`` bytes."""
        if size <= self.page_bytes and self.free:
            return self.free.pop()
        # A map, or its rest, far smaller than a page gets memory of its own size.
        size = max(size, self.page_bytes) if size > self.page_bytes // 2 else size
        return self.kernels.outside(size) if self.outside else self.kernels.memory(size)

    def give(self, page: Any) -> None:
        """Takes memory back, for the next page."""
        if self.kernels.size_of(page) == self.page_bytes and (self.outside or not self.free) and not self.is_over:
            self.free.append(page)

    def close(self) -> None:
        """No further page is asked for: maps that are still there would hold back a free one."""
        self.is_over = True
        self.free.clear()


class Paged(RowStore):
    """One map in pages."""

    keeps_strips = False

    def __init__(self, node: Node, kernels: Kernels, dtype: torch.dtype, pages: Pages) -> None:
        super().__init__(node, kernels, dtype)
        self.row_bytes = node.row_elements * dtype.itemsize
        self.rows_of_page = max(1, min(node.rows.count, pages.page_bytes // self.row_bytes))
        self.pages = pages
        self.memory: dict[int, Any] = {}
        # Slabs: of every page, or of those outside, the ones that are being written or were read last.
        self.slabs: dict[int, Any] = {}
        self.first = 0

    def append(self, start: int, slab: Any, own: bool) -> None:
        node, kernels = self.node, self.kernels
        stop = start + rows_of(node, slab)
        self.look_at(slab)
        kernels.share(len(range(start // self.rows_of_page, (stop - 1) // self.rows_of_page + 1)))
        for page, low, high in self._pages(start, stop):
            if page not in self.slabs:
                self._open(page)
            into = kernels.cut(node, self.slabs[page], low - page * self.rows_of_page, high - low)
            kernels.copy(into, kernels.cut(node, slab, low - start, high - low))
            if self.pages.outside and high == page * self.rows_of_page + self._rows(page):
                there = kernels.shaped(node, self.memory[page], self._rows(page), self.kept)
                kernels.copy(there, self.slabs.pop(page))
        kernels.share(1)

    def open(self, layout: Iterable[tuple[int, int]], slab: Callable[[int], Any]) -> None:
        for page in range(math.ceil(self.node.rows.count / self.rows_of_page)):
            self._open(page)
            if self.pages.outside:  # as they are when all their rows have come
                del self.slabs[page]

    def pieces(self, start: int, stop: int) -> Iterator[tuple[int, int, Any]]:
        for page, low, high in self._pages(start, stop):
            slab = self._slab(page)
            yield low, high, self.kernels.cut(self.node, slab, low - page * self.rows_of_page, high - low)

    def done_below(self, row: int, for_good: bool) -> None:
        while for_good and self.first in self.memory and (self.first + 1) * self.rows_of_page <= row:
            self._close(self.first)
            self.first += 1

    def free(self) -> None:
        for page in list(self.memory):
            self._close(page)

    def _pages(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        rows = self.rows_of_page
        for page in range(start // rows, (stop - 1) // rows + 1):
            yield page, max(start, page * rows), min(stop, (page + 1) * rows)

    def _slab(self, page: int) -> Any:
        if page not in self.slabs:
            for other in [other for other in self.slabs if other < page - 1]:
                del self.slabs[other]
            there = self.kernels.shaped(self.node, self.memory[page], self._rows(page), self.kept)
            self.slabs[page] = self.kernels.clone(there)
        return self.slabs[page]

    def _open(self, page: int) -> None:
        rows = self._rows(page)
        self.memory[page] = self.pages.take(rows * self.row_bytes)
        self.slabs[page] = self.kernels.shaped(
            self.node, self.kernels.memory(rows * self.row_bytes) if self.pages.outside else self.memory[page],
            rows, self.kept,
        )  # fmt: skip

    def _close(self, page: int) -> None:
        self.slabs.pop(page, None)
        self.pages.give(self.memory.pop(page))

    def _rows(self, page: int) -> int:
        return min(self.rows_of_page, self.node.rows.count - page * self.rows_of_page)
