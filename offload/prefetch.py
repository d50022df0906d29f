"""Copies the weights of coming layers while earlier ones compute.

Streamed layers have hooks for the length of one call of the network. Before such a layer runs, its staged weights take
the place of its parameters; after it the parameters come back, and its bytes of the ring go to as many of the coming
layers as there is room for. A layer then finds its weight on the compute device, whatever it does with it: LoRA,
quantised layouts, casts. The order in which layers run is learned from the call before; in a first call each layer is
copied when its turn comes, which is early enough where the program runs ahead of the device.

The first calls are timed. Where they show that a smaller ring would hide the copies as well, some layers are kept in
the rest of its memory, so that fewer are copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from .call_order import CallOrder
from .costs import Segment
from .kept_layers import layers_to_keep
from .staging import Staged, Staging
from .stopwatch import Stopwatch
from .streamed import Streamed, Traffic


@dataclass
class Learned:
    """What one sampling passes on to the next.

    Attributes:
        order: names of the layers in the order in which they run.
        kept: names of those that are kept in the ring's memory.
    """

    order: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()


MEASURED_CALLS = 2  # in the first, kernels may still have to be loaded


class LayerPrefetch:
    """Streams layers through a ring of staging memory.

    Args:
        layers: by name, whose weights are not on the device. One that is larger than the ring is not streamed here; its
            program brings it over by itself.
        device: to compute on.
        staging: bytes of the ring.
        learned: from earlier samplings; it is kept up to date.
        hide: what stands in a parameter's place outside its window; None: the parameter itself, which a layer that
            is used without being called can still bring over by itself.
    """

    def __init__(
        self,
        layers: Mapping[str, nn.Module],
        device: torch.device,
        staging: int,
        learned: Learned | None = None,
        hide: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.traffic = Traffic()
        self.learned = learned or Learned()
        found = {name: Streamed.of(layer) for name, layer in layers.items()}
        self.streamed = {name: each for name, each in found.items() if 0 < each.bytes <= staging}
        self.left = {name: each for name, each in found.items() if each.bytes > staging}
        self._hide = hide
        self._staging = Staging(device, staging if self.streamed else 0)
        self._staged: dict[str, Staged] = {}  # in the order of their copies
        self._kept: dict[str, Staged | None] = {}  # None: not copied yet
        self._bytes_staged = 0
        self._offsets: dict[str, int] = {}
        self._running: set[str] = set()
        self._is_full = False  # for the layer that comes next; asking again before bytes are given back is in vain
        self._stopwatch: Stopwatch | None = None
        self._least: dict[str, float] = {}  # seconds, as measured
        self._keep([name for name in self.learned.kept if name in self.streamed])
        self._order = CallOrder(name for name in self.learned.order if name in self.streamed)

    @property
    def staging_bytes(self) -> int:
        return self._staging.bytes

    @property
    def overlaps(self) -> bool:
        """Whether the device copies and computes at the same time."""
        return self._staging.overlaps

    @property
    def pinned(self) -> bool:
        """Whether copies can run by themselves: the first layer's weights tell."""
        each = next(iter(self.streamed.values()), None)
        return each is not None and each.pinned

    @property
    def streamed_bytes(self) -> int:
        """Copied per call of the network."""
        return sum(each.bytes for each in self.streamed.values())

    def is_current(self) -> bool:
        """Whether the parameters are still those that were found: a baked LoRA or a reload exchanges them."""
        return all(each.is_current() for each in (*self.streamed.values(), *self.left.values()))

    @contextmanager
    def installed(self) -> Iterator[None]:
        """For one call of the network: hooks on the streamed layers, which are removed however it ends."""
        handles: list[Any] = []
        self._order.begin_call()
        try:
            for name, each in self.streamed.items():
                each.put_back(self._hide)
                handles.append(each.layer.register_forward_pre_hook(self._before(name)))
                handles.append(each.layer.register_forward_hook(self._after(name), always_call=True))
            if self.traffic.steps < MEASURED_CALLS and self.overlaps:
                self._stopwatch = Stopwatch(self._staging)
            self._copy_ahead()
            yield
            self.traffic.steps += 1
            self._order.end_call()
            self.learned.order = self._order.names
            self._use_what_was_measured()
            self._copy_ahead()
        finally:
            for handle in handles:
                handle.remove()
            self._stopwatch = None
            for name in list(self._running):  # a hook behind ours failed before the layer ran
                self._end(name)
            for each in self.streamed.values():
                each.put_back()

    def forget(self) -> None:
        """Drops what is staged for the next call."""
        while self._drop_latest():
            pass
        self._kept = dict.fromkeys(self._kept)
        self._bytes_staged = sum(self.streamed[name].bytes for name in self._staged)  # of layers that run

    def close(self) -> None:
        """Waits for the copies under way and gives the memory back."""
        self._staged.clear()
        self._kept.clear()
        self._staging.close()

    def _before(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any) -> None:
            each = self.streamed[name]
            if name in self._running:
                return  # it calls itself
            turn = self._staging.now() if self._stopwatch is not None else None
            staged = self._kept.get(name) or self._staged.get(name) or self._copy_now(name)
            if staged is None:
                each.put_back()  # no room beside layers that run at the same time
                return
            self._staging.ready(staged)
            each.put_in(staged.weights)
            if self._stopwatch is not None and turn is not None:
                self._stopwatch.layers.append((name, turn, self._staging.now()))
                if staged.began is not None:
                    self._stopwatch.copies.append((each.bytes, staged))
            self._running.add(name)
            self._order.runs(name)
            self._copy_ahead()

        return hook

    def _after(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            self.streamed[name].put_back(self._hide)
            if name in self._running:
                self._end(name)
                self._copy_ahead()

        return hook

    def _end(self, name: str) -> None:
        self._running.discard(name)
        if name in self._staged:
            self._staging.release(self._staged.pop(name))
            self._gave_back(name)

    def _copy_ahead(self) -> None:
        """Starts copies of the coming layers, while there is room."""
        if self._is_full:
            return
        for name in self._order.coming():
            if self._kept.get(name) is not None:
                continue
            if name in self._running:
                return
            if name not in self._staged and self._copy(name) is None:
                self._is_full = True
                return

    def _copy_now(self, name: str) -> Staged | None:
        """A layer that was not expected; copies for later ones are dropped until it has room, the latest first."""
        self.traffic.late += 1
        staged = self._copy(name)
        while staged is None and self._drop_latest():
            staged = self._copy(name)
        return staged

    def _drop_latest(self) -> bool:
        latest = next(reversed(self._staged), None)
        if latest is None or latest in self._running:
            return False
        self._staging.drop(self._staged.pop(latest))
        self._gave_back(latest)
        return True

    def _gave_back(self, name: str) -> None:
        self._is_full = False
        self._bytes_staged -= self.streamed[name].bytes

    def _copy(self, name: str) -> Staged | None:
        each = self.streamed[name]
        staged: Staged | None
        if name in self._kept:
            staged = self._kept[name] = self._staging.copy_to_stay(each.sources, self._offsets[name])
        else:
            staged = self._staging.copy(each.sources, timed=self.traffic.steps < MEASURED_CALLS)
            if staged is not None:
                self._staged[name] = staged
        if staged is not None:
            self.traffic.copies[name] += 1
            self.traffic.bytes += each.bytes
            self._bytes_staged += each.bytes
            self.traffic.staged = max(self.traffic.staged, self._bytes_staged)
        return staged

    def _use_what_was_measured(self) -> None:
        """Keeps layers in the ring's memory where a smaller ring would hide the copies as well."""
        if self._stopwatch is None:
            return
        measured = self._stopwatch.read({name: each.bytes for name, each in self.streamed.items()})
        if measured is None:
            return
        names = [name for name, _, _ in self._stopwatch.layers]
        segments = [self._at_best(name, segment) for name, segment in zip(names, measured.segments)]
        kept = tuple(names[i] for i in sorted(layers_to_keep(segments, self._staging.bytes, measured.bandwidth)))
        if len(set(names)) == len(names) and kept != self.learned.kept:
            self.forget()
            self.learned.kept = kept
            self._keep(kept)

    def _at_best(self, name: str, segment: Segment) -> Segment:
        """With the least time of all calls: what another call took beyond it was spent waiting, not computing."""
        least = self._least[name] = min(segment.compute, self._least.get(name, segment.compute))
        return replace(segment, compute=least)

    def _keep(self, names: Sequence[str]) -> None:
        """Sets these layers' bytes aside, at the end of the ring's memory."""
        self._offsets, offset = {}, self._staging.bytes
        for name in names:
            offset -= self.streamed[name].bytes
            self._offsets[name] = offset
        self._kept, self._is_full = dict.fromkeys(names), False
        self._staging.split(self._staging.bytes - offset)
