"""Weights off the device that come as copies of their own, for a computation whose graph may keep them.

A ring of staging memory is written anew as soon as a layer has run. A backward reads the weight again, long after; and
where the copy was one of the program's own buffers, autograd refuses the gradient at best. Here each copy has memory
of its own, which lives as long as somebody holds it: a layer's call, or the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from .staging import Staged, Staging
from .streamed import Streamed
from .whole import holds_whole


def layers_off(module: nn.Module, device: torch.device) -> list[nn.Module]:
    """Modules within that have weights of their own, and not all of them on the device; without those whose weights
    are more than a copy of them."""
    return [
        layer
        for layer in module.modules()
        if any(one is not None and one.device != device for one in layer._parameters.values()) and holds_whole(layer)
    ]


def _nothing() -> None:
    pass


def _as_it_is(layer: nn.Module) -> Callable[[], None]:
    return _nothing


@contextmanager
def brought(
    layers: Iterable[nn.Module],
    device: torch.device,
    *,
    together: bool,
    running: nn.Module | None = None,
    prepared: Callable[[nn.Module], Callable[[], None]] = _as_it_is,
) -> Iterator[None]:
    """Within it, each layer's weights are on the device while the layer runs.

    Args:
        layers: with weights off the device; one whose weights are there when its turn comes is left as it is.
        device: to compute on.
        together: all copies start now and run beside the computation, in one piece of memory; else each when its layer
            is called.
        running: one of them, whose call is under way.
        prepared: called with a layer when its weights have come; gives what is called before they go.
    """
    found = [Streamed.of(layer) for layer in layers]
    groups = [_Copies(found if together else [each], device, prepared) for each in (found[:1] if together else found)]
    handles: list[Any] = []
    try:
        for group in groups:
            if together:
                group.start()
            for each in group.layers:
                handles.append(each.layer.register_forward_pre_hook(_before(group, each)))
                handles.append(each.layer.register_forward_hook(_after(group, each), always_call=True))
                if each.layer is running:
                    group.put_in(each)
        yield
    except BaseException:
        for group in groups:
            group.abandon()
        raise
    finally:
        for handle in handles:
            handle.remove()
        for group in groups:
            group.end()


class _Copies:
    """Of some layers, in one piece of memory."""

    def __init__(
        self, layers: list[Streamed], device: torch.device, prepared: Callable[[nn.Module], Callable[[], None]]
    ) -> None:
        self.layers, self._device, self._prepared = layers, device, prepared
        self._staging: Staging | None = None
        self._staged: dict[int, Staged] = {}
        self._undo: dict[int, Callable[[], None]] = {}

    def start(self) -> None:
        """Starts the copies."""
        staging, offset = Staging(self._device, sum(each.bytes for each in self.layers)), 0
        for each in self.layers:
            self._staged[id(each)] = staging.copy_to_stay(each.sources, offset)
            offset += each.bytes
        self._staging = staging

    def put_in(self, each: Streamed) -> None:
        """The layer's turn has come."""
        if not each.is_current() or all(source.device == self._device for source in each.sources):
            return  # somebody else has brought them
        if self._staging is None:
            self.start()
        assert self._staging is not None
        self._staging.ready(self._staged[id(each)])
        each.put_in(self._staged[id(each)].weights)
        self._undo[id(each)] = self._prepared(each.layer)

    def put_back(self, each: Streamed) -> None:
        """The layer's turn is over."""
        self._undo.pop(id(each), _nothing)()
        each.put_back()

    def end(self) -> None:
        """Nobody but the graph holds the copies any more."""
        for each in self.layers:
            self.put_back(each)
        self._staged.clear()
        if self._staging is not None:
            self._staging.leave()
        self._staging = None

    def abandon(self) -> None:
        """Waits for the copies: what they read may change hands."""
        self._staged.clear()
        if self._staging is not None:
            self._staging.close()


def _before(group: _Copies, each: Streamed) -> Callable[..., None]:
    def hook(module: nn.Module, args: Any) -> None:
        group.put_in(each)

    return hook


def _after(group: _Copies, each: Streamed) -> Callable[..., None]:
    def hook(module: nn.Module, args: Any, output: Any) -> None:
        group.put_back(each)
        if len(group.layers) == 1:
            group.end()

    return hook
