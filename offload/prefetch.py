"""Copies the weights of coming blocks while earlier ones compute.

Hooks stand on the blocks for the length of one call of the network. Before a streamed block runs, its staged weights
take the place of its parameters; after it the parameters come back, and its slot takes the next block's weights. A
layer then finds its weight on the compute device, whatever it does with it: LoRA, quantised layouts, casts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from .staging import Slot, Staging, flat_bytes


@dataclass
class Streamed:
    """A block whose weights are not all on the device.

    Attributes:
        index: among all blocks.
        block: that runs.
        weights: (layer, name, parameter) of what is to be copied.
    """

    index: int
    block: nn.Module
    weights: list[tuple[nn.Module, str, nn.Parameter]]

    @property
    def bytes(self) -> int:
        return sum(flat_bytes(parameter.data) for _, _, parameter in self.weights)


@dataclass
class Traffic:
    """What was copied.

    Attributes:
        steps: calls of the network.
        copies: of each block, by its index.
        bytes: of all copies.
        misses: blocks that were not staged when they ran: out of order, or the first of all.
        staged: largest number of bytes staged at a time.
    """

    steps: int = 0
    copies: Counter[int] = field(default_factory=Counter)
    bytes: int = 0
    misses: int = 0
    staged: int = 0


class BlockPrefetch:
    """Streams a network's blocks through staging slots.

    Args:
        blocks: in the order in which they run.
        device: to compute on.
        slots: blocks that are staged at a time.
        streams: tells of a layer whether its weights are copied for each use.
        hide: what stands in a parameter's place outside its window; None: the parameter itself, which a layer that
            runs out of order can still bring over by itself.
    """

    def __init__(
        self,
        blocks: Sequence[nn.Module],
        device: torch.device,
        slots: int,
        streams: Callable[[nn.Module], bool],
        hide: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.traffic = Traffic()
        self.streamed = [
            Streamed(index, block, weights)
            for index, block in enumerate(blocks)
            if (weights := list(_weights(block, streams)))
        ]
        self._hide = hide
        self._device = device
        self._slots = min(slots, len(self.streamed))
        largest = max((each.bytes for each in self.streamed), default=0)
        self._staging = Staging(device, self._slots, largest)
        self._free: list[Slot] = list(self._staging.slots)
        self._staged: dict[int, tuple[Slot, list[Tensor]]] = {}  # by position among the streamed

    @property
    def staging_bytes(self) -> int:
        return self._staging.bytes

    @property
    def streamed_bytes(self) -> int:
        """Copied per call of the network."""
        return sum(each.bytes for each in self.streamed)

    def is_current(self) -> bool:
        """Whether the parameters are still those that were found: a baked LoRA or a reload exchanges them."""
        return all(
            layer._parameters[name] is parameter for each in self.streamed for layer, name, parameter in each.weights
        )

    @contextmanager
    def installed(self) -> Iterator[None]:
        """For one call of the network: hooks on the streamed blocks, gone again however it ends."""
        handles: list[Any] = []
        try:
            for position, each in enumerate(self.streamed):
                self._put_back(each, hidden=True)
                first, last = _ends(each.block)
                handles.append(first.register_forward_pre_hook(self._before(position)))
                handles.append(last.register_forward_hook(self._after(position), always_call=True))
            self._fill(0)
            yield
            self.traffic.steps += 1
        finally:
            for handle in handles:
                handle.remove()
            for each in self.streamed:
                self._put_back(each, hidden=False)

    def forget(self) -> None:
        """Drops what is staged for the next call."""
        for slot, _ in self._staged.values():
            self._free.append(slot)
        self._staged.clear()

    def _before(self, position: int) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any) -> None:
            if position not in self._staged:
                self.traffic.misses += 1
                self._stage(position)
            slot, copies = self._staged[position]
            slot.ready()
            for (layer, name, _), copy in zip(self.streamed[position].weights, copies):
                layer._parameters[name] = nn.Parameter(copy, requires_grad=False)
            self._fill(position + 1)

        return hook

    def _after(self, position: int) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            self._put_back(self.streamed[position], hidden=True)
            if position in self._staged:
                slot, _ = self._staged.pop(position)
                slot.release()
                self._free.append(slot)
            self._fill(position + 1)

        return hook

    def _fill(self, position: int) -> None:
        """Starts copies into free slots, of the blocks that run next; after the last those of the next call."""
        count = len(self.streamed)
        for ahead in range(count):
            if not self._free:
                return
            following = (position + ahead) % count
            if following not in self._staged:
                self._stage(following)

    def _stage(self, position: int) -> None:
        slot = self._free.pop() if self._free else self._take_from_the_last(position)
        each = self.streamed[position]
        copies = slot.copy([parameter.data for _, _, parameter in each.weights])
        self._staged[position] = slot, copies
        self.traffic.copies[each.index] += 1
        self.traffic.bytes += each.bytes
        self.traffic.staged = max(self.traffic.staged, sum(self.streamed[p].bytes for p in self._staged))

    def _take_from_the_last(self, position: int) -> Slot:
        """A block ran out of order: the staged one that would run latest gives way."""
        count = len(self.streamed)
        latest = max(self._staged, key=lambda other: (other - position) % count)
        return self._staged.pop(latest)[0]

    def _put_back(self, each: Streamed, hidden: bool) -> None:
        for layer, name, parameter in each.weights:
            if hidden and self._hide is not None:
                layer._parameters[name] = nn.Parameter(self._hide(parameter.data), requires_grad=False)
            else:
                layer._parameters[name] = parameter


def _ends(block: nn.Module) -> tuple[nn.Module, nn.Module]:
    """The modules whose calls begin and end a block: UNets call the entries of a sequence one by one."""
    if isinstance(block, nn.Sequential) and len(block):
        return block[0], block[-1]
    return block, block


def _weights(block: nn.Module, streams: Callable[[nn.Module], bool]) -> Iterator[tuple[nn.Module, str, nn.Parameter]]:
    for layer in block.modules():
        if streams(layer):
            for name, parameter in layer._parameters.items():
                if parameter is not None:
                    yield layer, name, parameter
