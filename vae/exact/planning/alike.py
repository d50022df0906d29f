"""Passes that are alike, whatever computation they are of, and what one of them was counted to take.

Counting a pass of a video takes longer than many a decode. The same one is asked for again and again: for another
budget or card, for another number of frames, for a model that was loaded anew.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, MethodType, ModuleType, WrapperDescriptorType
from typing import Any

import torch
from torch import Tensor

from ..cutting.passes import Pass
from ..cutting.windows import Windows
from ..operations.graph import Node, Op
from ..operations.row_by_row import Placeholder
from ..operations.whole import Attention
from .counted_pass import stored_by
from .schedule import PassCost, SlabRows

MOST = 200_000  # slabs of which the layout is kept, of all passes together: some 30 MB
PLAIN = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device, torch.memory_format, Placeholder)


class CannotDescribe(Exception):
    """An operation holds something of which nobody knows what it stands for."""


@dataclass(frozen=True)
class Taken:
    """What a pass takes, without its nodes: of one that is alike the same.

    Attributes:
        layouts: of the maps that it stores or sends, in their order.
        peak, host_peak, seconds, launches, counted: see :class:`.schedule.PassCost`.
    """

    peak: int
    host_peak: int
    seconds: float
    launches: int
    layouts: tuple[SlabRows, ...]
    counted: int

    @classmethod
    def by(cls, cost: PassCost) -> Taken:
        """Of a pass that was counted."""
        layouts = tuple(cost.layouts.values())
        return cls(cost.peak, cost.host_peak, cost.seconds, cost.launches, layouts, cost.counted)

    def cost(self, windows: Windows) -> PassCost:
        """Of a pass that is alike, in equal strips."""
        layouts = dict(zip(stored_by(windows.one), self.layouts))
        return PassCost(windows, self.peak, self.host_peak, self.seconds, self.launches, layouts, self.counted)


class Known:
    """The latest of what passes take, as many as :data:`MOST` permits. Safe from several threads."""

    def __init__(self) -> None:
        self._found: dict[Hashable, Taken] = {}
        self._slabs = 0
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> Taken | None:
        """Of an equal pass; None: none was counted, or it is forgotten."""
        with self._lock:
            found = self._found.pop(key, None)
            if found is not None:
                self._found[key] = found  # the latest
            return found

    def put(self, key: Hashable, taken: Taken) -> None:
        """Remembers it, and forgets what was asked for longest ago."""
        with self._lock:
            if key in self._found:
                return
            self._found[key] = taken
            self._slabs += _slabs(taken)
            while self._slabs > MOST:
                self._slabs -= _slabs(self._found.pop(next(iter(self._found))))


KNOWN = Known()


def _slabs(taken: Taken) -> int:
    return 1 + sum(map(len, taken.layouts))


def description(one: Pass, told: dict[tuple[Node, bool], str]) -> bytes | None:
    """Equal for passes that take the same in equal strips; None: it cannot be told.

    It has everything that counting looks at: of each map the shape, of each operation its numbers and the layout of its
    weights, how they hang together, and what comes out.

    Args:
        told: of nodes, read or computed, what was told before; added to, since most are in passes of many choices.
    """
    nodes = [*one.read, *one.computed]
    places = {node: place for place, node in enumerate(nodes)}
    shared: dict[int, int] = {}  # operations that several nodes have keep one thing for all of them
    found = blake2b(digest_size=32)
    try:
        for place, node in enumerate(nodes):
            is_read = place < len(one.read)
            if (node, is_read) not in told:
                told[node, is_read] = repr(_map(node) if is_read else (_map(node), _beside(node), plain(node.op)))
            found.update(told[node, is_read].encode())
            if not is_read:
                hangs = (shared.setdefault(id(node.op), place), _places(node.sources, places))
                found.update(repr(hangs).encode())
    except (CannotDescribe, RecursionError, ValueError):  # the last: a function's cell that is empty yet
        return None
    results = tuple((places[node], purpose) for node, purpose in one.results)
    ends = (results, _places(one.stored, places), _places(one.last_reads, places), len(one.read))
    found.update(repr(ends).encode())
    return found.digest()


def _map(node: Node) -> Any:
    """All of a map but how it is computed."""
    rows = node.rows
    return node.shape, node.dtype, node.device.type, (rows.dim, rows.count, rows.unit), node.is_leaf


def _beside(node: Node) -> Any:
    """What an attention takes beside its result, for one row and for all: its kernel is the device's choice."""
    op = node.op
    return (op.temporaries(node, 0, 1), op.temporaries(node, 0, node.rows.count)) if isinstance(op, Attention) else ()


def _places(nodes: Sequence[Node], places: dict[Node, int]) -> tuple[int, ...]:
    return tuple(places[node] for node in nodes)


def plain(value: Any) -> Any:
    """What an operation holds, in values whose ``repr`` tells them apart; of tensors the layout, not the numbers.

    Raises:
        CannotDescribe: it holds something else.
    """
    if isinstance(value, Tensor):
        return "tensor", tuple(value.shape), value.stride(), value.dtype, value.device.type
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, (list, tuple)):
        return tuple(map(plain, value))
    if isinstance(value, dict):
        return "dict", tuple((plain(key), plain(one)) for key, one in value.items())
    if isinstance(value, slice):
        return "slice", plain((value.start, value.stop, value.step))
    if isinstance(value, Attention):
        return "Attention", value.scale
    if isinstance(value, Op):
        return _named(type(value)), plain(vars(value))
    return "function", _function(value)


def _function(value: Any) -> Any:
    """A function by its name where it is found by that, else by its code and what it holds."""
    if isinstance(value, partial):
        return plain((value.func, value.args, value.keywords))
    if isinstance(value, MethodType):
        return value.__name__, plain(value.__self__)
    if isinstance(value, FunctionType) and not _is_found(value):
        code, cells = value.__code__, value.__closure__ or ()
        given = plain((value.__defaults__, value.__kwdefaults__))
        # One that calls itself has itself in a cell.
        held = tuple(plain(one.cell_contents) for one in cells if one.cell_contents is not value)
        return _named(value), code.co_code, code.co_names, repr(code.co_consts), given, held
    if isinstance(value, BuiltinFunctionType):
        return _named(value), _named(value.__self__) if isinstance(value.__self__, type) else plain(value.__self__)
    if isinstance(value, (FunctionType, MethodDescriptorType, WrapperDescriptorType, type)):
        return _named(value)
    if isinstance(value, ModuleType):
        return value.__name__
    raise CannotDescribe(type(value).__name__)


def _is_found(function: FunctionType) -> bool:
    """Whether its module has it by its name."""
    found: Any = sys.modules.get(function.__module__)
    for part in function.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is function


def _named(thing: Any) -> str:
    return f"{getattr(thing, '__module__', '')}.{thing.__qualname__}"
