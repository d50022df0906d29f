"""What a network's blocks take in a training step, found by running each kind of them once without data."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._guards import detect_fake_mode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from ...memory.prediction import DOCUMENTED, Card, LiveBytes, fake_mode, predict
from ...memory.prediction.autocast import CudaAutocast
from ...memory.prediction.fused_attention import FusedAttention
from ...memory.prediction.fused_norm import FusedRMSNorm
from ...memory.speed.kernels import flops_of
from ...training import BlockCost, CheckpointedChain, WrittenPlaces
from ..prediction.host_answers import answering
from .nested import looks_of, shapes_in, tensors_in, with_tensors, without_data


class BlockCosts:
    """Of one forward of a network, by the numbers of its blocks. Blocks that are alike are run once.

    Args:
        card: that the training runs on.
        held: tensors without data that are there anyway, such as the weights; they are not counted.

    Attributes:
        chain: a block's cost by its number.
        result: without data, what the last block gave that was added.
        given: bytes of what goes into the first block or into several, and of the gradients of the latter: they are
            there until the last of them is done.
    """

    def __init__(self, card: Card, held: Sequence[Tensor] = ()) -> None:
        self.chain: dict[int, BlockCost] = {}
        self.result: Any = None
        self.given, self._first = 0, set[Hashable]()
        self._readers: dict[Hashable, tuple[weakref.ref[Any] | None, int]] = {}
        self._card, self._held, self._known = card, held, dict[Hashable, tuple[BlockCost, Any]]()

    def add(self, number: int, block: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> None:
        """Before a block's call.

        Args:
            forward: its own, with whatever is patched into it.

        Raises:
            CannotPredict: it looks at its data.
        """
        weights = list(block.parameters())
        kind = (type(block), shapes_in((args, kwargs)), shapes_in(weights), tuple(one.device for one in weights))
        if kind not in self._known:
            self._known[kind] = cost_of(
                forward, args, kwargs, self._card, self._held, (*block.parameters(), *block.buffers())
            )
        (cost, self.result), into = self._known[kind], 0
        for tensor in tensors_in((args, kwargs)):
            key, turn, size = *self._turn(tensor), tensor.untyped_storage().nbytes()
            if turn == 1 and not number:
                self._first.add(key)
                self.given += size
            elif turn == 1 and tensor.requires_grad:
                into += tensor.nbytes
            if turn == 2:
                # Of a part of a tensor autograd makes a gradient as large as the whole, and adds it to the one that
                # is there.
                gradient = tensor.nbytes if tensor.nbytes == size else 2 * size
                self.given += size * (key not in self._first) + gradient * tensor.requires_grad
        if number - 1 in self.chain:
            into = self._hands_on(number - 1, into)
        # The plan counts the gradient of what goes in for itself.
        self.chain[number] = replace(cost, backward_work=max(0, cost.backward_work - into))

    def _turn(self, tensor: Tensor) -> tuple[Hashable, int]:
        """A storage as it is written now, and how many blocks have read it."""
        storage = tensor.untyped_storage()
        key = (storage._cdata, tensor._version)
        known, turn = self._readers.get(key, (None, 0))
        turn = turn + 1 if known is not None and known() is not None else 1  # else it was another one in this place
        self._readers[key] = weakref.ref(storage), turn
        return key, turn

    def _hands_on(self, number: int, into: int) -> int:
        """Between two blocks more may come to what the first gives, as a UNet's output blocks get its input blocks'.

        That is not there yet while the first runs, and not made again when it runs again.
        """
        before = self.chain[number]
        more = max(0, into - before.given)
        self.chain[number] = replace(
            before, given=before.given + more, saved=before.saved + more, released=before.released + more,
            forward_work=before.forward_work - more,
        )  # fmt: skip
        return before.given + more


def cost_of(
    forward: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    card: Card,
    held: Sequence[Tensor] = (),
    weights: Sequence[Tensor] = (),
) -> tuple[BlockCost, Any]:
    """Of a call with a gradient, that of its trainable weights among it; ``backward_work`` with that of what goes in.
    And what it gives, without data.

    Args:
        held: as for :class:`BlockCosts`.
        weights: of the block.

    Raises:
        CannotPredict: it looks at its data.
    """
    # Of a model without data, its weights are in a mode already.
    mode, found = detect_fake_mode((args, kwargs)) or fake_mode(), list[tuple[BlockCost, Any]]()
    with mode:
        given_args, given_kwargs = without_data((args, kwargs), card.device)
    there = [*tensors_in((given_args, given_kwargs)), *held]
    run_forward = partial(_by_its_kernels, card, forward)
    most = _of_tensors if (card.stands_for or card).device.type == "cpu" else _with_inside

    def run(tracker: LiveBytes) -> None:
        written: WrittenPlaces = {}
        with torch.enable_grad():
            cost, shapes, learnt = _measured(tracker, most, run_forward, given_args, given_kwargs, written)
            real = [one for one in (*weights, *learnt) if type(one) in (Tensor, nn.Parameter)]
            if real or any(written.values()):  # what is there, and what the block writes to, is known from now on
                tracker.leave_out([*there, *map(mode.from_tensor, real)])
                cost, shapes, _ = _measured(tracker, most, run_forward, given_args, given_kwargs, written)
            found.append((cost, shapes))

    # A report follows the training's own tensors meanwhile, and these are not among them. A card's backward has a
    # thread of its own, where nothing of what is set for this one holds.
    in_this_thread = torch.autograd.set_multithreading_enabled(False)
    with answering({}), _disable_current_modes(), _no_casts_kept(), in_this_thread:
        predict(mode, card, (), run, DOCUMENTED, given=there)
    return found[0]


@contextmanager
def _no_casts_kept() -> Iterator[None]:
    """torch keeps an automatic cast of what is trained for its next use: the training would compute with one that has
    no data."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


def _by_its_kernels(card: Card, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Again in a backward too, where what has been chosen around a forward is gone."""
    with kernels_of(card):
        return forward(*args, **kwargs)


@contextmanager
def kernels_of(card: Card) -> Iterator[None]:
    """A card's attention where tensors say that they are on one; what differs on a CPU that stands for it."""
    with ExitStack() as stack:
        if card.device.type == "cuda":
            stack.enter_context(FusedAttention(card))
        elif card.stands_for is not None and card.stands_for.is_cuda:
            stack.enter_context(FusedRMSNorm())
            stack.enter_context(CudaAutocast())
        yield


def _measured(
    tracker: LiveBytes,
    most: Callable[[LiveBytes], int],
    forward: Callable[..., Any],
    args: Any,
    kwargs: Any,
    written: WrittenPlaces,
) -> tuple[BlockCost, Any, list[Tensor]]:
    into = list[Tensor]()

    def as_given(tensor: Tensor) -> Tensor:
        if not tensor.requires_grad:
            return tensor
        into.append(tensor)
        return tensor.clone()  # as the block before gave it: nobody may write to a leaf

    args, kwargs = with_tensors(as_given, (args, kwargs))
    start, before = tracker.live, flops_of(tracker.work)
    so_far = tracker.begin_stretch()
    result = CheckpointedChain((), written).run(0, forward, *args, **kwargs)
    given = [one for one in tree_leaves(result) if isinstance(one, Tensor) and one.requires_grad]
    saved, forwards, forward_flops = tracker.live - start, most(tracker) - start, flops_of(tracker.work) - before
    tracker.end_stretch(so_far)
    sizes = sum(one.nbytes for one in given)
    before = flops_of(tracker.work)
    learnt = [one for one in trainable(given) if all(one is not other for other in into)]
    end = _End.apply(*given)
    shapes = with_tensors(looks_of, result)
    del result, given
    released = start + saved - tracker.live
    del args, kwargs
    copied = start + saved - released - tracker.live
    so_far = tracker.begin_stretch()
    entering = max(0, sum(one.nbytes for one in into) - copied)
    kept = torch.autograd.grad(end, [*into, *learnt], allow_unused=True)
    back, backward_flops = most(tracker) - start, flops_of(tracker.work) - before
    tracker.end_stretch(so_far)
    del kept
    cost = BlockCost(
        given=sizes,
        saved=max(saved, sizes),
        released=released,
        copied=copied,
        forward=forward_flops,
        backward=backward_flops,
        forward_work=max(0, forwards - max(saved, sizes) - entering),
        backward_work=max(0, back - saved + released + copied - sizes),
        learnt=sum(one.nbytes for one in learnt),
        entering=entering,
    )
    return cost, shapes, learnt


def _of_tensors(tracker: LiveBytes) -> int:
    """The most bytes of tensors alone, which is what is measured on a CPU."""
    return tracker.live_peak


def _with_inside(tracker: LiveBytes) -> int:
    """The most bytes with what kernels hold inside, which a card's allocator counts."""
    return tracker.peak


class _End(torch.autograd.Function):
    """Has the gradients of what a block gives come from the block behind it: nobody else holds them."""

    @staticmethod
    def forward(ctx: Any, *given: Tensor) -> Tensor:
        ctx.shapes = [(one.shape, one.dtype, one.device) for one in given]
        return torch.empty((), device=given[0].device)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> tuple[Tensor, ...]:
        return tuple(torch.empty(shape, dtype=dtype, device=device) for shape, dtype, device in ctx.shapes)


def trainable(results: Sequence[Tensor]) -> list[Tensor]:
    """The leaves that a graph adds gradients to."""
    found, seen, waiting = list[Tensor](), set[Any](), [one.grad_fn for one in results if one.grad_fn is not None]
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            found.append(leaf)
        waiting += [following for following, _ in node.next_functions if following is not None]
    return found
