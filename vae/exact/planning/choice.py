"""What is chosen for a computation: how tall strips are, which maps are stored, and where those lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ..operations.graph import Node
from ..running.kernels import Kernels
from ..running.pages import Paged, Pages
from ..running.stores import Parked, RowStore, Slabs


@dataclass(frozen=True)
class Choice:
    """A way to run.

    Attributes:
        strip_bytes: bytes of a strip of a pass's widest map; 0 = the lowest strips there are.
        recomputed: storable nodes that every pass that reads them computes anew.
        parked: stored nodes that lie in host memory.
        outside: all stored maps lie outside the device's memory.
        store: dtype of stored maps; None = their own.
        rows: rows of the output in a strip, instead of ``strip_bytes``.
        strips: how many strips some passes have, by their place among the passes, instead of both.
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
    """A choice that knows its nodes by their places among those of the analysis, for another run's analysis.

    Attributes:
        fits: it keeps the budget; else it is what needs least, which is as long to find.
    """

    choice: Choice
    recomputed: tuple[int, ...]
    parked: tuple[int, ...]
    fits: bool = True


def make_store(
    node: Node, choice: Choice, kernels: Kernels, pages: Pages | None, parking: Any, rows: Node | None = None
) -> RowStore:
    """Where a choice keeps a map, or of it the rows of another node."""
    dtype, rows = kept_dtype(node, choice), rows or node
    if pages is not None:
        return Paged(rows, kernels, dtype, pages)
    if is_parked(node, choice):
        return Parked(rows, kernels, dtype, parking)
    return Slabs(rows, kernels, dtype)


def is_parked(node: Node, choice: Choice) -> bool:
    """Whether a stored map lies in host memory."""
    return choice.outside or node in choice.parked


def kept_dtype(node: Node, choice: Choice) -> torch.dtype:
    """The dtype that a node is stored in: the choice's where that is narrower than its own."""
    if choice.store is not None and node.dtype.is_floating_point and choice.store.itemsize < node.dtype.itemsize:
        return choice.store
    return node.dtype
