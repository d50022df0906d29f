"""A model's blocks behind checkpoints, for a training that samples through the host's model, as ``TrainLoraNode``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ...offload import block_lists
from ...training import CheckpointedChain, Checkpoints
from ..core.wrapper_kinds import APPLY_MODEL
from ..measure.wrappers import wrap

if TYPE_CHECKING:
    from comfy.model_patcher import ModelPatcher

WRAPPER_KEY = "headroom_training"
FORWARD = "forward"
HOSTS_FORWARD = "org_forward"  # of a module that the host's own training runs behind a checkpoint, by its name there


def apply_checkpoints(model: ModelPatcher, plan: Callable[[int], Checkpoints]) -> ModelPatcher:
    """A MODEL whose blocks lie behind checkpoints whenever gradients are computed; ``model`` is not changed.

    Args:
        plan: of so many blocks.
    """
    result = model.clone()
    wrap(result, APPLY_MODEL, WRAPPER_KEY, BehindCheckpoints(plan))
    return result


class BehindCheckpoints:
    """A wrapper around a model's call: its blocks are run by a plan, in one forward and what its backward asks for.

    The blocks' forwards are other ones for the time of the call. The host's own checkpoints are left out meanwhile:
    that of the whole network would keep nothing of what lies within, and have all of it at once in the backward.

    Args:
        plan: of so many blocks.
    """

    def __init__(self, plan: Callable[[int], Checkpoints]) -> None:
        self.plan = plan

    def __call__(self, executor: Any, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return executor(*args, **kwargs)
        network = executor.class_obj.diffusion_model
        blocks = [network.get_submodule(path) for path in block_lists(network).blocks]
        with _plain(network), _by_plan(blocks, CheckpointedChain(self.plan(len(blocks)))):
            return executor(*args, **kwargs)


@contextmanager
def _by_plan(blocks: Sequence[nn.Module], chain: CheckpointedChain) -> Iterator[None]:
    before = [vars(block).get(FORWARD) for block in blocks]
    for number, block in enumerate(blocks):
        block.__dict__[FORWARD] = partial(chain.run, number, partial(_run_plain, block, block.forward))
    try:
        yield
    finally:
        for block, own in zip(blocks, before):
            block.__dict__.pop(FORWARD, None)
            block.__dict__ |= {} if own is None else {FORWARD: own}


def _run_plain(block: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A block's own forward, as in the call around it when it is run again."""
    with _plain(block):
        return forward(*args, **kwargs)


@contextmanager
def _plain(network: nn.Module) -> Iterator[None]:
    """Without the host's checkpoints within."""
    found = {
        module: vars(module)[FORWARD]
        for module in network.modules()
        if HOSTS_FORWARD in vars(module) and FORWARD in vars(module)
    }
    for module in found:
        module.__dict__[FORWARD] = vars(module)[HOSTS_FORWARD]
    try:
        yield
    finally:
        for module, forward in found.items():
            module.__dict__[FORWARD] = forward
