"""Padding, of rows and of the dims beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .graph import Node, Op, Strips


@dataclass
class Pad(Op):
    """``torch.nn.functional.pad`` of the last dims, rows among them.

    Attributes:
        pads: as the function takes them, (left, right, top, bottom, ...).
        mode: constant, replicate or reflect.
        value: for constant.
        place: of the rows among the dims, counted from the last one, which is 0.
    """

    pads: tuple[int, ...]
    mode: str
    value: float | None
    place: int = 1
    is_padding = True

    @property
    def zeros(self) -> bool:
        """It adds rows and columns of zeros and nothing else."""
        return self.mode == "constant" and not self.value and not any(self._beside[2:])

    @property
    def _rows(self) -> tuple[int, int]:
        """Rows added before the first and behind the last."""
        return self.pads[2 * self.place], self.pads[2 * self.place + 1]

    @property
    def _beside(self) -> tuple[int, ...]:
        """What is added to the other dims."""
        return (*self.pads[: 2 * self.place], 0, 0, *self.pads[2 * self.place + 2 :])

    def needs(self, node: Node, source: int, start: int, stop: int) -> tuple[int, int]:
        # At least one row: a strip that lies in the padding alone still repeats a row of the map.
        rows = self._rows_of(node, start, stop)
        return min(rows), max(rows) + 1

    def run(self, node: Node, slabs: Sequence[Tensor], start: int, stop: int) -> Tensor:
        rows = self._rows_of(node, start, stop)
        first, dim = min(rows), node.rows.dim
        if rows[0] == first and rows[-1] - rows[0] == len(rows) - 1:
            inside = slabs[0].narrow(dim, 0, len(rows))
        else:
            inside = slabs[0].index_select(dim, self._places(node, start, stop, slabs[0].device) - first)
        top, _ = self._rows
        above, below = max(0, top - start), max(0, stop - top - node.sources[0].rows.count)
        if self.mode == "constant" and (above or below):
            inside = inside.clone()
            inside.narrow(dim, 0, min(above, len(rows))).fill_(self.value or 0.0)
            inside.narrow(dim, max(0, len(rows) - below), min(below, len(rows))).fill_(self.value or 0.0)
        return functional.pad(inside, self._beside, self.mode, self.value) if any(self._beside) else inside

    def lowest(self, node: Node, source: int, start: int) -> int:
        first = self.needs(node, source, start, start + 1)[0]
        if self.mode != "reflect":
            return first
        # The bottom border reflects rows that were passed long ago, the top border row 0 after others.
        top, bottom = self._rows
        return min(first if start >= top else 0, node.sources[0].rows.count - 1 - bottom)

    def _rows_of(self, node: Node, start: int, stop: int) -> list[int]:
        """For each row of the result the row of the source that it repeats."""
        top, _ = self._rows
        count, rows = node.sources[0].rows.count, range(start - top, stop - top)
        if self.mode == "reflect":
            return [count - 1 - abs(count - 1 - abs(row)) for row in rows]
        return [min(max(row, 0), count - 1) for row in rows]

    def _places(self, node: Node, start: int, stop: int, device: torch.device) -> Tensor:
        """:meth:`_rows_of` as a tensor, made on the device: the device would wait for a list of the host's."""
        top, last = self._rows[0], node.sources[0].rows.count - 1
        rows = torch.arange(start - top, stop - top, device=device)
        return last - (last - rows.abs()).abs() if self.mode == "reflect" else rows.clamp_(0, last)

    def temporaries(self, node: Node, start: int, stop: int) -> int:
        return (stop - start) * node.sources[0].row_bytes

    def fresh(self, node: Node, strips: Strips, start: int, stop: int) -> Any:
        slab = strips.kernels.empty(node, stop - start)
        self.write(node, strips, slab, start, stop)
        return slab

    def write(self, node: Node, strips: Strips, out: Any, start: int, stop: int) -> None:
        if not self.zeros:
            super().write(node, strips, out, start, stop)
            return
        source, kernels = node.sources[0], strips.kernels
        (left, right), (above, _) = self.pads[:2], self._rows
        first, last = source.clamp(start - above, stop - above)
        top = min(max(0, first + above - start), stop - start)
        if top:
            kernels.zero(kernels.cut(node, out, 0, top))
        if first < last:
            rows, width = kernels.cut(node, out, top, last - first), source.shape[-1]
            for edge, columns in ((0, left), (left + width, right)):
                if columns:
                    kernels.zero(kernels.columns(node, rows, edge, columns))
            strips.write(source, kernels.columns(node, rows, left, width), first, last)
        done = top + max(0, last - first)
        if done < stop - start:
            kernels.zero(kernels.cut(node, out, done, stop - start - done))
