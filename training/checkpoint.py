"""Blocks whose forward keeps nothing for the backward but what goes into them: they are run again when it arrives.

As ``torch.utils.checkpoint`` does it without reentrance: the graph is the one that autograd makes of the first run, so
that gradients are added up in the same order and are the same bits; only what it saves is replaced, by places that are
filled when something of them is asked for. Beyond that, several blocks that a caller runs one by one lie behind one
checkpoint, and may be run again by a plan that has checkpoints of its own.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from .chain import Checkpoints, first_and_last


class ComputedOtherwise(RuntimeError):
    """A block that is run again saves other tensors than it did: what it does depends on more than its inputs."""


class CheckpointedChain:
    """One forward of a chain of blocks, and the runs of them that its backward asks for; a new one for every forward.

    Args:
        plan: which blocks are kept, and which lie behind a checkpoint. A block that it does not name is kept.
    """

    def __init__(self, plan: Checkpoints) -> None:
        self._behind, self._segments = segments_of(plan), dict[Checkpoints, _Segment]()

    def run(self, number: int, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls a block.

        Args:
            number: of the block in the chain.
            forward: it is called again with the same arguments, where the plan says so.

        Returns:
            What the block gives.
        """
        behind = self._behind.get(number)
        if behind is None or not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        if behind not in self._segments:
            self._segments[behind] = _Segment(behind)
        return self._segments[behind].run(number, forward, args, kwargs)


def segments_of(plan: Checkpoints) -> dict[int, Checkpoints]:
    """The plan behind the checkpoint that a block lies behind, by the block's number; none for those that are kept."""
    found: dict[int, Checkpoints] = {}
    for part in plan:
        if isinstance(part, tuple):
            first, last = first_and_last(part)
            found |= dict.fromkeys(range(first, last + 1), part)
    return found


class _Place:
    """Of a tensor that autograd would have saved."""

    def __init__(self, segment: _Segment, tensor: Tensor) -> None:
        self.segment, self.like = segment, (tensor.shape, tensor.dtype)
        self.value: Tensor | None = None

    def taken(self) -> Tensor:
        """The tensor, once: it is let go here."""
        while self.value is None:
            self.segment.again()
        value, self.value = self.value, None
        return value


@dataclass(frozen=True)
class _Earlier:
    """A tensor that a call before in the same segment gave."""

    call: int
    output: int


class _Kept:
    """A tensor that goes into a segment, as it was when it did.

    A block may write to what goes into it (Flux's do): a copy is kept then, and else the tensor itself.

    Args:
        tensor: before the block runs.
    """

    def __init__(self, tensor: Tensor) -> None:
        self.needs_gradient, self.version = tensor.requires_grad, tensor._version
        self.is_copy = tensor.requires_grad and not tensor.is_leaf
        self.tensor = tensor.detach().clone() if self.is_copy else tensor.detach()

    def settle(self, tensor: Tensor) -> None:
        """When the block has run on it."""
        if self.is_copy and tensor._version == self.version:
            self.tensor, self.is_copy = tensor.detach(), False

    def back(self, number: int) -> Tensor:
        """For a block that runs again."""
        if self.is_copy:
            return self.tensor.detach().requires_grad_(self.needs_gradient).clone()
        if self.tensor._version != self.version:
            raise ComputedOtherwise(f"block {number}: what goes into it was written to after it had run")
        return self.tensor.detach().requires_grad_(self.needs_gradient)


@dataclass
class _Call:
    """One block's call.

    Attributes:
        leaves: of its arguments, tensors among them as :class:`_Kept` or :class:`_Earlier`.
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
    """Blocks behind one checkpoint."""

    def __init__(self, plan: Checkpoints) -> None:
        self.plan = plan
        self.calls: list[_Call] = []
        self.around = _Surroundings()

    def run(self, number: int, forward: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """For the first time."""
        leaves, spec = tree_flatten((tuple(args), kwargs))
        call = _Call(number, forward, [self._held(leaf) for leaf in leaves], spec)

        seen: list[tuple[Tensor, int]] = []

        def pack(tensor: Tensor) -> _Place:
            place = _Place(self, tensor)
            call.places.append(weakref.ref(place))
            seen.append((tensor.detach(), tensor._version))
            return place

        self.calls.append(call)
        with saved_tensors_hooks(pack, _Place.taken):
            result = forward(*args, **kwargs)
        call.written = frozenset(k for k, (tensor, version) in enumerate(seen) if tensor._version != version)
        seen.clear()  # the graph keeps the hook
        self._ran(call, leaves, result)
        return result

    def _held(self, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if self.calls:
            for number, (output, version) in enumerate(self.calls[-1].outputs):
                if output() is leaf and leaf._version == version:
                    return _Earlier(len(self.calls) - 1, number)
        return _Kept(leaf)

    def _ran(self, call: _Call, leaves: Sequence[Any], result: Any) -> None:
        for held, leaf in zip(call.leaves, leaves):
            if isinstance(held, _Kept):
                held.settle(leaf)
        outputs = (leaf for leaf in tree_flatten(result)[0] if isinstance(leaf, Tensor))
        call.outputs = [(weakref.ref(output), output._version) for output in outputs]

    def again(self) -> None:
        """Runs all blocks once more; places then have their tensors, or wait for a checkpoint of the plan's own."""
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
                place.value = tensor.detach().clone() if number in call.written else tensor.detach()
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
        return leaf.back(number) if isinstance(leaf, _Kept) else leaf


class _Surroundings:
    """What a run depends on beside its arguments: automatic casts, and random numbers."""

    def __init__(self) -> None:
        self.cached = torch.is_autocast_cache_enabled()
        self.casts = {
            device: (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
            for device in ("cpu", *_accelerators())
        }
        self.random = torch.get_rng_state()
        self.on_device = {device: torch.get_device_module(device).get_rng_state() for device in _accelerators()}

    @contextmanager
    def restored(self) -> Iterator[None]:
        """As it was, for the time of a run."""
        with ExitStack() as stack:
            for device in _accelerators():
                stack.enter_context(torch.random.fork_rng(device_type=device))
            stack.enter_context(torch.random.fork_rng(devices=[]))
            torch.set_rng_state(self.random)
            for device, state in self.on_device.items():
                torch.get_device_module(device).set_rng_state(state)
            for device, (enabled, dtype) in self.casts.items():
                cast = torch.autocast(device, dtype=dtype, enabled=enabled, cache_enabled=self.cached)
                stack.enter_context(cast)
            yield


def _accelerators() -> list[str]:
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return [] if found is None else [found.type]


def _asked_for_nothing(saved: Any) -> Tensor:
    raise RuntimeError("the graph of a second run has no backward")


def _otherwise(call: _Call) -> str:
    return (
        f"block {call.number} saved other tensors when it was computed again; something in it depends on more than its"
        " inputs, such as the memory that is free"
    )
