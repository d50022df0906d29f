"""What a network's blocks take in a training step, found by running each kind of them once without data."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from ...memory.prediction import DOCUMENTED, Card, LiveBytes, fake_mode, fake_tensor, predict
from ...training import BlockCost, CheckpointedChain, WrittenPlaces
from ..prediction.host_answers import answering


class BlockCosts:
    """Of one forward of a network, by the numbers of its blocks. Blocks that are alike are run once.

    Args:
        card: that the training runs on.

    Attributes:
        chain: a block's cost by its number.
        given: bytes of what goes into the first block or into several, and of the gradients of the latter: they are
            there until the last of them is done.
    """

    def __init__(self, card: Card) -> None:
        self.chain: dict[int, BlockCost] = {}
        self.given, self._readers, self._first = 0, dict[Hashable, int](), set[Hashable]()
        self._card, self._known = card, dict[Hashable, BlockCost]()

    def add(self, number: int, block: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> None:
        """Before a block's call.

        Args:
            forward: its own, with whatever is patched into it.

        Raises:
            CannotPredict: it looks at its data.
        """
        kind = (type(block), _shapes((args, kwargs)), _shapes(list(block.parameters())))
        if kind not in self._known:
            self._known[kind] = cost_of(forward, args, kwargs, self._card)
        cost = self._known[kind]
        # The plan counts the gradient of what goes in for itself.
        into = self.chain[number - 1].given if number - 1 in self.chain else 0
        self.chain[number] = replace(cost, backward_work=max(0, cost.backward_work - into))
        for tensor in tensors_in((args, kwargs)):
            key = (tensor.untyped_storage()._cdata, tensor._version)
            turn = self._readers[key] = self._readers.get(key, 0) + 1
            size = tensor.untyped_storage().nbytes()
            if turn == 1 and not number:
                self._first.add(key)
                self.given += size
            if turn == 2:
                self.given += size * (key not in self._first) + tensor.nbytes * tensor.requires_grad


def cost_of(forward: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], card: Card) -> BlockCost:
    """Of a call with a gradient, that of its trainable weights among it; ``backward_work`` with that of what goes in.

    Raises:
        CannotPredict: it looks at its data.
    """
    mode, found = fake_mode(), list[BlockCost]()
    with mode:
        given_args, given_kwargs = _without_data((args, kwargs), card.device)

    def run(tracker: LiveBytes) -> None:
        written: WrittenPlaces = {}
        with torch.enable_grad():
            _measured(tracker, forward, given_args, given_kwargs, written)  # learns what the block writes to
            found.append(_measured(tracker, forward, given_args, given_kwargs, written))

    # A report follows the training's own tensors meanwhile, and these are not among them.
    with answering({}), _disable_current_modes():
        predict(mode, card, (), run, DOCUMENTED, given=(given_args, given_kwargs))
    return found[0]


def _measured(
    tracker: LiveBytes, forward: Callable[..., Any], args: Any, kwargs: Any, written: WrittenPlaces
) -> BlockCost:
    into = list[Tensor]()

    def as_given(tensor: Tensor) -> Tensor:
        if not tensor.requires_grad:
            return tensor
        into.append(tensor)
        return tensor.clone()  # as the block before gave it: nobody may write to a leaf

    args, kwargs = _with_tensors(as_given, (args, kwargs))
    start, flops = tracker.live, tracker.flops
    so_far = tracker.begin_stretch()
    result = CheckpointedChain((), written).run(0, forward, *args, **kwargs)
    given = [one for one in tree_leaves(result) if isinstance(one, Tensor) and one.requires_grad]
    saved, most, forward_flops = tracker.live - start, tracker.peak - start, tracker.flops - flops
    tracker.end_stretch(so_far)
    gradients = [torch.empty_like(one) for one in given]
    sizes = sum(one.nbytes for one in given)
    flops, so_far = tracker.flops, tracker.begin_stretch()
    leaves = [*into, *trainable(given)]
    del result
    kept = torch.autograd.grad(given, leaves, gradients, allow_unused=True)
    back, backward_flops = tracker.peak - start, tracker.flops - flops
    tracker.end_stretch(so_far)
    del kept
    return BlockCost(
        given=sizes,
        saved=max(saved, sizes),
        forward=forward_flops,
        backward=backward_flops,
        forward_work=max(0, most - max(saved, sizes)),
        backward_work=max(0, back - max(saved, sizes) - sizes),
    )


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


def _without_data(values: Any, device: torch.device) -> Any:
    def fake(tensor: Tensor) -> Tensor:
        with torch.no_grad():
            return fake_tensor(tensor.detach(), device).requires_grad_(tensor.requires_grad)

    return _with_tensors(fake, values)


def _with_tensors(change: Callable[[Tensor], Tensor], values: Any) -> Any:
    """The same structure with other tensors; those in an object's attributes too, as Flux.2's modulation."""

    def changed(value: Any) -> Any:
        if isinstance(value, Tensor):
            return change(value)
        found = {name: one for name, one in getattr(value, "__dict__", {}).items() if isinstance(one, Tensor)}
        if not found or isinstance(value, nn.Module):
            return value
        value = copy.copy(value)
        for name, one in found.items():
            object.__setattr__(value, name, change(one))
        return value

    return tree_map(changed, values)


def tensors_in(values: Any) -> list[Tensor]:
    """All of a structure, those in an object's attributes among them."""
    found = list[Tensor]()

    def seen(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    _with_tensors(seen, values)
    return found


def _shapes(values: Any) -> tuple[Any, ...]:
    return tuple(
        (leaf.shape, leaf.dtype, leaf.requires_grad) for leaf in tree_leaves(values) if isinstance(leaf, Tensor)
    )
