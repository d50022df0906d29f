"""Plans of earlier runs of a module: a video's takes seconds to find, on a fast card more than its decode."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from .choice import PlannedBefore

MOST = 32  # computations of one module: a video has a few in one decode


class Remembered(dict[Hashable, PlannedBefore]):
    """The latest plans, by everything that they depend on beside the module."""

    def __setitem__(self, key: Hashable, plan: PlannedBefore) -> None:
        self.pop(key, None)
        super().__setitem__(key, plan)
        while len(self) > MOST:
            del self[next(iter(self))]


_OF_MODULES: WeakKeyDictionary[Any, Remembered] = WeakKeyDictionary()


def remembered(module: nn.Module) -> Remembered:
    """A module's plans, which go with it."""
    return _OF_MODULES.setdefault(module, Remembered())


def share_plans(copy: nn.Module, module: nn.Module) -> None:
    """A copy, which a prediction is made with, uses the module's plans and adds to them."""
    _OF_MODULES[copy] = remembered(module)
