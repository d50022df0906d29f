"""Copies the weights of coming layers while earlier ones compute.

Hooks stand on the streamed layers for the length of one call of the network. Before such a layer runs, its staged
weights take the place of its parameters; after it the parameters come back, and its bytes of the ring take the weights
of layers to come, as many as there is room for. A layer then finds its weight on the compute device, whatever it does
with it: LoRA, quantised layouts, casts. In which order layers run is learned from the call before; in a first call each
is copied when its turn comes, which is early enough where the program runs ahead of the device.

The first calls are timed. Where they show that a smaller ring would do, some layers are kept in the rest of its memory,
so that fewer are copied: the link's time is then the step's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from .schedule import keep_in_ring
from .staging import Staged, Staging, flat_bytes, is_pinned
from .stopwatch import Stopwatch
from .virtual_clock import Stage


@dataclass
class Streamed:
    """A layer whose weights are not on the device.

    Attributes:
        layer: that runs.
        weights: its parameters by name.
    """

    layer: nn.Module
    weights: dict[str, nn.Parameter]

    @property
    def bytes(self) -> int:
        return sum(flat_bytes(parameter.data) for parameter in self.weights.values())


@dataclass
class Traffic:
    """What was copied.

    Attributes:
        steps: calls of the network.
        copies: of each layer, by its name.
        bytes: of all copies.
        late: copies that began when their layer's turn came, not before.
        staged: largest number of bytes staged at a time.
    """

    steps: int = 0
    copies: Counter[str] = field(default_factory=Counter)
    bytes: int = 0
    late: int = 0
    staged: int = 0


@dataclass
class Learned:
    """What a sampling leaves to the next.

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
        layers: by name, whose weights are not on the device. One that is larger than the ring is left to itself.
        device: to compute on.
        staging: bytes of the ring.
        learned: from samplings before; it is kept up to date.
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
        found = {name: Streamed(layer, _weights(layer)) for name, layer in layers.items()}
        self.streamed = {name: each for name, each in found.items() if 0 < each.bytes <= staging}
        self.left = {name: each for name, each in found.items() if each.bytes > staging}
        self._hide = hide
        self._staging = Staging(device, staging if self.streamed else 0)
        self._staged: dict[str, Staged] = {}  # in the order of their copies
        self._kept: dict[str, Staged | None] = {}  # None: not copied yet
        self._offsets: dict[str, int] = {}
        self._running: set[str] = set()
        self._stopwatch: Stopwatch | None = None
        self._least: dict[str, float] = {}  # seconds, as measured
        self._keep([name for name in self.learned.kept if name in self.streamed])
        self._order = tuple(name for name in self.learned.order if name in self.streamed)
        self._next = 0  # of the order
        self._ran: list[str] = []

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
        return each is not None and all(is_pinned(parameter.data) for parameter in each.weights.values())

    @property
    def streamed_bytes(self) -> int:
        """Copied per call of the network."""
        return sum(each.bytes for each in self.streamed.values())

    def is_current(self) -> bool:
        """Whether the parameters are still those that were found: a baked LoRA or a reload exchanges them."""
        return all(
            each.layer._parameters.get(name) is parameter
            for each in (*self.streamed.values(), *self.left.values())
            for name, parameter in each.weights.items()
        )

    @contextmanager
    def installed(self) -> Iterator[None]:
        """For one call of the network: hooks on the streamed layers, gone again however it ends."""
        handles: list[Any] = []
        self._next, self._ran = 0, []
        try:
            for name, each in self.streamed.items():
                self._put_back(each)
                handles.append(each.layer.register_forward_pre_hook(self._before(name)))
                handles.append(each.layer.register_forward_hook(self._after(name), always_call=True))
            if self.traffic.steps < MEASURED_CALLS and self.overlaps:
                self._stopwatch = Stopwatch(self._staging)
            self._copy_ahead()
            yield
            self.traffic.steps += 1
            self._order = self.learned.order = tuple(self._ran)
            self._next = 0
            self._use_what_was_measured()
            self._copy_ahead()
        finally:
            for handle in handles:
                handle.remove()
            self._stopwatch = None
            for name in list(self._running):  # a hook behind ours failed before the layer ran
                self._end(name)
            for each in self.streamed.values():
                self._put_back(each, hidden=False)

    def forget(self) -> None:
        """Drops what is staged for the next call."""
        while self._drop_latest():
            pass
        self._kept = dict.fromkeys(self._kept)

    def close(self) -> None:
        """Waits for the copies under way and gives the memory back."""
        self._staged.clear()
        self._kept.clear()
        self._staging.close()

    def _before(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any) -> None:
            each = self.streamed[name]
            if name in self._running:
                return  # within itself
            turn = self._staging.now() if self._stopwatch is not None else None
            staged = self._kept.get(name) or self._staged.get(name) or self._copy_now(name)
            if staged is None:
                self._put_back(each, hidden=False)  # no room beside layers that run at the same time
                return
            self._staging.ready(staged)
            for (parameter, _), copy in zip(each.weights.items(), staged.weights):
                each.layer._parameters[parameter] = nn.Parameter(copy, requires_grad=False)
            if self._stopwatch is not None and turn is not None:
                self._stopwatch.layers.append((name, turn, self._staging.now()))
                if staged.began is not None:
                    self._stopwatch.copies.append((each.bytes, staged))
            self._running.add(name)
            self._ran.append(name)
            self._advance(name)
            self._copy_ahead()

        return hook

    def _after(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            self._put_back(self.streamed[name])
            if name in self._running:
                self._end(name)
                self._copy_ahead()

        return hook

    def _end(self, name: str) -> None:
        self._running.discard(name)
        if name in self._staged:
            self._staging.release(self._staged.pop(name))

    def _advance(self, name: str) -> None:
        """The order's next place is behind this layer."""
        count = len(self._order)
        for ahead in range(count):
            if self._order[(self._next + ahead) % count] == name:
                self._next = (self._next + ahead + 1) % count
                return

    def _copy_ahead(self) -> None:
        """Starts copies of the layers that run next, while there is room; after the last those of the next call."""
        for name in (*self._order[self._next :], *self._order[: self._next]):
            if self._kept.get(name) is not None:
                continue
            if name in self._running or (name not in self._staged and self._copy(name) is None):
                return

    def _copy_now(self, name: str) -> Staged | None:
        """Nobody expected it: what was to come later gives way, the latest first."""
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
        return True

    def _copy(self, name: str) -> Staged | None:
        each = self.streamed[name]
        sources = [parameter.data for parameter in each.weights.values()]
        staged: Staged | None
        if name in self._kept:
            staged = self._kept[name] = self._staging.copy_to_stay(sources, self._offsets[name])
        else:
            staged = self._staging.copy(sources, timed=self.traffic.steps < MEASURED_CALLS)
            if staged is not None:
                self._staged[name] = staged
        if staged is not None:
            self.traffic.copies[name] += 1
            self.traffic.bytes += each.bytes
            self.traffic.staged = max(self.traffic.staged, self._bytes_staged())
        return staged

    def _bytes_staged(self) -> int:
        kept = (name for name, staged in self._kept.items() if staged is not None)
        return sum(self.streamed[name].bytes for name in (*self._staged, *kept))

    def _use_what_was_measured(self) -> None:
        """Keeps layers where a smaller ring would do."""
        if self._stopwatch is None:
            return
        measured = self._stopwatch.stages({name: each.bytes for name, each in self.streamed.items()})
        if measured is None:
            return
        names = [name for name, _, _ in self._stopwatch.layers]
        stages = [self._at_best(name, stage) for name, stage in zip(names, measured[0])]
        kept = tuple(names[i] for i in sorted(keep_in_ring(stages, self._staging.bytes, measured[1])))
        if len(set(names)) == len(names) and kept != self.learned.kept:
            self.forget()
            self.learned.kept = kept
            self._keep(kept)

    def _at_best(self, name: str, stage: Stage) -> Stage:
        """With the least time of all calls: more is no compute, but a wait for something else."""
        least = self._least[name] = min(stage.compute, self._least.get(name, stage.compute))
        return replace(stage, compute=least)

    def _keep(self, names: Sequence[str]) -> None:
        """Sets these layers' bytes aside, at the end of the ring's memory."""
        self._offsets, offset = {}, self._staging.bytes
        for name in names:
            offset -= self.streamed[name].bytes
            self._offsets[name] = offset
        self._kept = dict.fromkeys(names)
        self._staging.split(self._staging.bytes - offset)

    def _put_back(self, each: Streamed, hidden: bool = True) -> None:
        for name, parameter in each.weights.items():
            if hidden and self._hide is not None:
                each.layer._parameters[name] = nn.Parameter(self._hide(parameter.data), requires_grad=False)
            else:
                each.layer._parameters[name] = parameter


def _weights(layer: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in layer._parameters.items() if parameter is not None}
