"""Blocks whose forward keeps nothing for the backward but what goes into them: they are run again when it arrives.

As ``torch.utils.checkpoint`` does it without reentrance: the graph is the one that autograd makes of the first run, so
that gradients are added up in the same order and are the same bits; only what it saves is replaced, by places that are
filled when something of them is asked for. Beyond that, several blocks that a caller runs one by one lie behind one
checkpoint, and may be run again by a plan that has checkpoints of its own.

A block that is kept has its places filled from the start. What it or a later block writes to after autograd would have
saved it, which autograd refuses, is saved as a copy, or computed again the first time.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

from .block_input import BlockInput, ComputedOtherwise
from .chain import Checkpoints, first_and_last
from .in_ram import InRam, version_of
from .surroundings import Surroundings

#: Of a block's number and the shapes that go into it: which of the tensors that it saves are written to later.
WrittenPlaces = dict[tuple[int, tuple[torch.Size, ...]], set[int]]


class CheckpointedChain:
    """One forward of a chain of blocks, and the runs of them that its backward asks for; a new one for every forward.

    Args:
        plan: which blocks are kept, and which lie behind a checkpoint. A block that it does not name is kept.
        written: what is learnt of the chain and good for its next forward, see :class:`WrittenPlaces`.
        ram: where what goes into blocks behind checkpoints is kept; None: on its device.
    """

    def __init__(self, plan: Checkpoints, written: WrittenPlaces | None = None, ram: InRam | None = None) -> None:
        self._behind, self._segments = segments_of(plan), dict[Checkpoints, _Segment]()
        self._written, self._ram = {} if written is None else written, ram
        self._latest: _Segment | None = None

    def run(self, number: int, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls a block.

        Args:
            number: of the block in the chain.
            forward: it is called again with the same arguments, where the plan says so.

        Returns:
            What the block gives.
        """
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        behind = self._behind.get(number)
        if behind is None:
            key = (number, tuple(leaf.shape for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)))
            return _Segment((number,), self._written.setdefault(key, set())).run(number, forward, args, kwargs)
        if behind not in self._segments:
            self._latest = self._segments[behind] = _Segment(behind, ram=self._ram, before=self._latest)
        return self._segments[behind].run(number, forward, args, kwargs)


def run_alone(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls what lies behind a checkpoint of its own."""
    return CheckpointedChain(((0,),)).run(0, forward, *args, **kwargs)


def segments_of(plan: Checkpoints) -> dict[int, Checkpoints]:
    """The plan behind the checkpoint that a block lies behind, by the block's number; none for those that are kept."""
    found: dict[int, Checkpoints] = {}
    for part in plan:
        if isinstance(part, tuple):
            first, last = first_and_last(part)
            found |= dict.fromkeys(range(first, last + 1), part)
    return found


class _Place:
    """Of a tensor that autograd would have saved.

    Args:
        segment: computes it again.
        number: among what the block saves.
        value: of a block that is kept, the tensor or a copy.
    """

    def __init__(self, segment: _Segment, tensor: Tensor, number: int, value: Tensor | None = None) -> None:
        self.segment, self.like, self.number = segment, (tensor.shape, tensor.dtype), number
        self.value: Tensor | None = None
        if value is not None:
            self.fill(value)

    def fill(self, value: Tensor) -> None:
        self.value, self._version = value.detach(), version_of(value)

    @property
    def is_filled(self) -> bool:
        """With a tensor that nobody has written to since."""
        return self.value is not None and version_of(self.value) == self._version

    def taken(self) -> Tensor:
        """The tensor; of a block that is not kept once: it is let go here."""
        if self.segment.copied is not None and not self.is_filled:
            self.segment.copied.add(self.number)
        while not self.is_filled:
            self.segment.again()
        value: Tensor = self.value  # type: ignore[assignment]
        if self.segment.copied is None:
            self.value = None
        return value


@dataclass(frozen=True)
class _Earlier:
    """A tensor that a call before in the same segment gave."""

    call: int
    output: int


@dataclass
class _Call:
    """One block's call.

    Attributes:
        leaves: of its arguments, tensors among them as :class:`.BlockInput` or :class:`_Earlier`.
        places: of what autograd would have saved; one that nobody waits for is gone.
        written: numbers of places whose tensor the block wrote to after autograd would have saved it.
        outputs: the tensors that it gave, as long as somebody has them, and their versions.
    """

    number: int
    forward: Callable[..., Any]
    leaves: list[Any]
    spec: TreeSpec
    places: list[weakref.ref[_Place]] = field(default_factory=list)
    written: frozenset[int] = frozenset()
    outputs: list[tuple[weakref.ref[Tensor], int]] = field(default_factory=list)


class _Segment:
    """Blocks behind one checkpoint, or a block that is kept.

    Args:
        plan: of the blocks.
        copied: of a block that is kept, numbers of places that get copies; more are learnt.
        ram: where what goes in is kept; None: on its device.
        before: what comes back from there while this one runs again.
    """

    def __init__(
        self,
        plan: Checkpoints,
        copied: set[int] | None = None,
        ram: InRam | None = None,
        before: _Segment | None = None,
    ) -> None:
        self.plan, self.copied, self.ram, self._before = plan, copied, ram, before
        self.calls: list[_Call] = []
        self.around = Surroundings()

    def run(self, number: int, forward: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """For the first time."""
        leaves, spec = tree_flatten((tuple(args), kwargs))
        call = _Call(number, forward, [self._held(leaf) for leaf in leaves], spec)

        seen: list[tuple[Tensor, int]] = []

        def pack(tensor: Tensor) -> _Place:
            number, value = len(call.places), None
            if self.copied is not None:
                value = tensor.detach().clone() if number in self.copied else tensor
            place = _Place(self, tensor, number, value)
            call.places.append(weakref.ref(place))
            seen.append((tensor.detach(), version_of(tensor)))
            return place

        self.calls.append(call)
        with saved_tensors_hooks(pack, _Place.taken):
            result = forward(*args, **kwargs)
        call.written = frozenset(k for k, (tensor, version) in enumerate(seen) if version_of(tensor) != version)
        seen.clear()  # the graph keeps the hook
        self._ran(call, leaves, result)
        if self.copied is not None:
            self.copied |= call.written
        return result

    def _held(self, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if self.calls:
            for number, (output, version) in enumerate(self.calls[-1].outputs):
                if output() is leaf and version_of(leaf) == version:
                    return _Earlier(len(self.calls) - 1, number)
        return BlockInput(leaf, self.ram)

    def _ran(self, call: _Call, leaves: Sequence[Any], result: Any) -> None:
        if self.ram is not None:
            self.ram.turn()
        for held, leaf in zip(call.leaves, leaves):
            if isinstance(held, BlockInput):
                held.settle(leaf)
        outputs = (leaf for leaf in tree_flatten(result)[0] if isinstance(leaf, Tensor))
        call.outputs = [(weakref.ref(output), version_of(output)) for output in outputs]

    def again(self) -> None:
        """Runs all blocks once more; places then have their tensors, or wait for a checkpoint of the plan's own."""
        self._fetch()
        if self._before is not None:
            self._before._fetch()
        given: list[list[Tensor]] = []
        behind, inner = segments_of(self.plan), dict[Checkpoints, _Segment]()
        with self.around.restored(), torch.enable_grad():
            for call in self.calls:
                plan = behind.get(call.number)
                if plan is not None and plan not in inner:  # now: it is to know what random numbers come next
                    inner[plan] = _Segment(plan)
                result = self._once_more(call, given, None if plan is None else inner[plan])
                given.append([leaf for leaf in tree_flatten(result)[0] if isinstance(leaf, Tensor)])
                if len(given) > 1:
                    given[-2] = []  # nobody asks for it any more

    def _fetch(self) -> None:
        """Starts to bring back what goes in."""
        for given in (leaf for call in self.calls for leaf in call.leaves if isinstance(leaf, BlockInput)):
            given.fetch()

    def _once_more(self, call: _Call, given: list[list[Tensor]], inner: _Segment | None) -> Any:
        leaves = [self._brought(leaf, call.number, given) for leaf in call.leaves]
        args, kwargs = tree_unflatten(leaves, call.spec)
        waiting = enumerate(call.places)
        copy: _Call | None = None
        if inner is not None:
            held = [inner._held(leaf) for leaf in leaves]
            copy = _Call(call.number, call.forward, held, call.spec, written=call.written)
            inner.calls.append(copy)

        def fill(tensor: Tensor) -> None:
            number, reference = next(waiting, (0, None))
            place = None if reference is None else reference()
            if reference is None or (place is not None and place.like != (tensor.shape, tensor.dtype)):
                raise ComputedOtherwise(_otherwise(call))
            if copy is not None:
                copy.places.append(reference)
            if place is None:
                return
            if inner is None:
                if not place.is_filled:
                    place.fill(tensor.detach().clone() if number in call.written else tensor)
            else:
                place.segment = inner

        with saved_tensors_hooks(fill, _asked_for_nothing):
            result = call.forward(*args, **kwargs)
        if next(waiting, None) is not None:
            raise ComputedOtherwise(_otherwise(call))
        if copy is not None and inner is not None:
            inner._ran(copy, leaves, result)
        return result

    def _brought(self, leaf: Any, number: int, given: list[list[Tensor]]) -> Any:
        if isinstance(leaf, _Earlier):
            return given[leaf.call][leaf.output]
        return leaf.back(number) if isinstance(leaf, BlockInput) else leaf


def _asked_for_nothing(saved: Any) -> Tensor:
    raise RuntimeError("the graph of a second run has no backward")


def _otherwise(call: _Call) -> str:
    return (
        f"block {call.number} saved other tensors when it was computed again; something in it depends on more than its"
        " inputs, such as the memory that is free"
    )
