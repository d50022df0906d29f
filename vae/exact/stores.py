"""Maps kept as pages of rows, whose pages are given back as the rows above are done with."""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .graph import Leaf, Node

HALF_LIMIT = 65504.0


class StoreOverflow(Exception):
    """A value does not fit the float16 store."""


class Pages:
    """Equal pieces of memory. One that a map has done with is the next that another gets.

    Of memory on the device only one page waits for that, so that no more is held than the maps need; page-locked
    memory takes long to get and is all kept until the end.

    Args:
        page_bytes: of one page.
        device: where the computation runs.
        on_host: pages lie in host memory, page-locked for a CUDA device, and are copied beside the computation.
    """

    def __init__(self, page_bytes: int, device: torch.device, on_host: bool = False) -> None:
        self.page_bytes, self.device, self.on_host = page_bytes, device, on_host
        self.free: list[Tensor] = []
        self.copies = torch.cuda.Stream(device) if on_host and device.type == "cuda" else None

    def take(self, size: int) -> Tensor:
        """Memory for ``size`` bytes."""
        if size <= self.page_bytes and self.free:
            return self.free.pop()
        size = allocated(self.page_bytes, size)
        if not self.on_host:
            return torch.empty(size, dtype=torch.uint8, device=self.device)
        if self.device.type == "cuda":
            return torch.empty(size, dtype=torch.uint8, pin_memory=True)
        # Outside PyTorch's allocator, as host memory is for a GPU: so the device's share can be measured on a CPU.
        return torch.frombuffer(mmap.mmap(-1, size), dtype=torch.uint8)

    def give(self, page: Tensor) -> None:
        """Takes memory back, for the next page."""
        if page.numel() == self.page_bytes and (self.on_host or not self.free):
            self.free.append(page)

    def to_host(self, page: Tensor, slab: Tensor) -> None:
        """Copies a slab into a page of host memory while the computation goes on."""
        into = page[: slab.numel() * slab.element_size()].view(slab.dtype).view(slab.shape)
        if self.copies is None:
            into.copy_(slab)
            return
        self.copies.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.copies):
            into.copy_(slab, non_blocking=True)
        slab.record_stream(self.copies)

    def to_device(self, page: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> tuple[Tensor, Any]:
        """Starts to copy a page back; the slab, and the event after which it is there."""
        there = page[: math.prod(shape) * dtype.itemsize].view(dtype).view(shape)
        if self.copies is None:
            return there.clone(), None
        # One stream for both ways: a page is read after it was written, and written anew after it was read.
        with torch.cuda.stream(self.copies):
            return there.to(self.device, non_blocking=True), self.copies.record_event()

    def wait_for(self, slab: Tensor, event: Any) -> None:
        """The computation goes on when a copied slab is there."""
        if event is not None:
            current = torch.cuda.current_stream(self.device)
            current.wait_event(event)
            slab.record_stream(current)


class RowStore(Leaf):
    """One map in pages.

    Args:
        node: the map.
        pages: where the memory comes from.
        dtype: kept in; read back in the node's own.
    """

    def __init__(self, node: Node, pages: Pages, dtype: torch.dtype) -> None:
        self.shape, self.dim, self.unit = node.shape, node.rows.dim, node.rows.unit
        self.count, self.dtype, self.kept = node.rows.count, node.dtype, dtype
        self.device = node.device
        self.row_bytes = node.row_elements * dtype.itemsize
        self.rows_of_page = rows_of_page(pages.page_bytes, self.row_bytes, self.count)
        self.pages = pages
        self.memory: dict[int, Tensor] = {}
        # Slabs on the device: of every page, or of those that are being written or were read last.
        self.slabs: dict[int, Tensor] = {}
        self.events: dict[int, Any] = {}
        self.first = 0

    def append(self, start: int, slab: Tensor) -> None:
        """Rows [start, ...) of the map.

        Raises:
            StoreOverflow: a value too large for float16.
        """
        stop = start + slab.shape[self.dim] // self.unit
        if self.kept is torch.float16 and self.dtype is not torch.float16 and slab.abs().amax() > HALF_LIMIT:
            raise StoreOverflow(f"a value of {slab.abs().amax():.3g} does not fit the float16 store")
        for page, low, high in self._pages(start, stop):
            if page not in self.slabs:
                self._open(page)
            into = self._cut(self.slabs[page], low - page * self.rows_of_page, high - low)
            into.copy_(self._cut(slab, low - start, high - low))
            if self.pages.on_host and high == page * self.rows_of_page + self._rows(page):
                self.pages.to_host(self.memory[page], self.slabs.pop(page))

    def open_all(self) -> None:
        """Takes the memory of all rows, with nothing in it: for maps without data."""
        for page in range(-(-self.count // self.rows_of_page)):
            self._open(page)

    def read(self, start: int, stop: int) -> Tensor:
        parts = list(self._parts(start, stop))
        if len(parts) == 1:
            return parts[0][2].to(self.dtype)
        shape = (*self.shape[: self.dim], (stop - start) * self.unit, *self.shape[self.dim + 1 :])
        out = torch.empty(shape, dtype=self.dtype, device=self.device)
        for low, high, rows in parts:
            self._cut(out, low - start, high - low).copy_(rows)
        return out

    def write_to(self, out: Tensor, start: int, stop: int) -> None:
        for low, high, rows in self._parts(start, stop):
            self._cut(out, low - start, high - low).copy_(rows)

    def pieces(self, start: int, stop: int) -> Iterator[tuple[int, int, Tensor]]:
        return self._parts(start, stop)

    def free_below(self, row: int) -> None:
        while self.first in self.memory and (self.first + 1) * self.rows_of_page <= row:
            self._close(self.first)
            self.first += 1

    def free(self) -> None:
        """Gives all memory back."""
        for page in list(self.memory):
            self._close(page)

    def _parts(self, start: int, stop: int) -> Iterator[tuple[int, int, Tensor]]:
        for page, low, high in self._pages(start, stop):
            yield low, high, self._cut(self._slab(page), low - page * self.rows_of_page, high - low)

    def _pages(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        rows = self.rows_of_page
        for page in range(start // rows, (stop - 1) // rows + 1):
            yield page, max(start, page * rows), min(stop, (page + 1) * rows)

    def _slab(self, page: int) -> Tensor:
        """A page on the device; the next one is on its way."""
        if self.pages.on_host:
            self._fetch(page)
            for other in [other for other in self.slabs if other < page - 1]:
                del self.slabs[other]
            if self.pages.copies is not None and page + 1 in self.memory:
                self._fetch(page + 1)
            self.pages.wait_for(self.slabs[page], self.events.pop(page, None))
        return self.slabs[page]

    def _fetch(self, page: int) -> None:
        if page not in self.slabs:
            self.slabs[page], self.events[page] = self.pages.to_device(
                self.memory[page], self.kept, self._slab_shape(page)
            )

    def _open(self, page: int) -> None:
        shape = self._slab_shape(page)
        size = self._rows(page) * self.row_bytes
        self.memory[page] = memory = self.pages.take(size)
        if self.pages.on_host:
            self.slabs[page] = torch.empty(shape, dtype=self.kept, device=self.device)
        else:
            self.slabs[page] = memory[:size].view(self.kept).view(shape)

    def _close(self, page: int) -> None:
        self.slabs.pop(page, None)
        self.events.pop(page, None)
        self.pages.give(self.memory.pop(page))

    def _rows(self, page: int) -> int:
        return min(self.rows_of_page, self.count - page * self.rows_of_page)

    def _slab_shape(self, page: int) -> tuple[int, ...]:
        return (*self.shape[: self.dim], self._rows(page) * self.unit, *self.shape[self.dim + 1 :])

    def _cut(self, slab: Tensor, start: int, rows: int) -> Tensor:
        return slab.narrow(self.dim, start * self.unit, rows * self.unit)


def allocated(page_bytes: int, size: int) -> int:
    """A map, or its rest, far smaller than a page gets memory of its own size."""
    return max(size, page_bytes) if size > page_bytes // 2 else size


def rows_of_page(page_bytes: int, row_bytes: int, count: int) -> int:
    """How many rows of a map lie in a page: at least one, and no more than there are."""
    return max(1, min(count, page_bytes // row_bytes))


def stored_bytes(page_bytes: int, row_bytes: int, count: int, rows: int) -> int:
    """What ``rows`` of a map's ``count`` rows take in pages."""
    of_page = rows_of_page(page_bytes, row_bytes, count)
    return -(-rows // of_page) * allocated(page_bytes, of_page * row_bytes)
