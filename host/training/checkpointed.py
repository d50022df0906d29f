"""A model's blocks behind checkpoints, for a training that samples through the host's model, as ``TrainLoraNode``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import comfy.model_management
import torch
from torch import nn

from ...memory.units import format_gb
from ...offload.brought import brought, layers_off
from ...training import CheckpointedChain, InRam, run_alone
from ..core.compat import OVERRIDE
from ..core.internals import find
from ..core.wrapper_kinds import APPLY_MODEL
from ..measure.wrappers import TRAINED, measure_sampling, wrap
from ..offload.block_offload import acts_on
from ..offload.own_weights import without_page
from .attention import BY_FREE_MEMORY, TrainedAttention
from .budget import RunningStep, TrainingBudget
from .plan import ATTENTION, BUDGET, EVERY_BLOCK, EVERY_KTH, FEED_FORWARD, TrainedBlocks, TrainingPlan, feed_forwards

if TYPE_CHECKING:
    from comfy.model_patcher import ModelPatcher

FORWARD = "forward"
OPTIONS = 5  # transformer_options among the arguments of the host's call
# Host: of a module that its own training runs behind a checkpoint, and of an adapter that runs beside a module.
HOSTS_FORWARD, ADAPTED = "org_forward", "original_forward"


def apply_checkpoints(model: ModelPatcher, plan: TrainingPlan) -> tuple[ModelPatcher, str]:
    """A MODEL whose blocks lie behind checkpoints whenever gradients are computed, and a report on them; ``model`` is
    not changed.

    Raises:
        ValueError: the model has no such blocks.
    """
    network = model.get_model_object("diffusion_model")
    blocks = TrainedBlocks.of(network)
    if not any(blocks.are_in(plan.selection)):
        raise ValueError(f"blocks: '{plan.selection.text}' names none of this model's blocks; it has {blocks.lists}")
    if plan.kind == BUDGET and plan.selection.text != "all":
        raise ValueError("blocks: a budget is planned over all blocks; write all, or choose another plan")
    if plan.kind == FEED_FORWARD and not any(BehindCheckpoints(plan, blocks).alone_in(network)):
        raise ValueError(
            "plan: the blocks of this model that were chosen have no feed-forward part of their own; choose every block"
        )
    result = model.clone()
    measure_sampling(result)
    behind = BehindCheckpoints(plan, blocks)
    wrap(result, APPLY_MODEL, TRAINED, behind)
    result.attachments[TRAINED] = behind
    return result, "\n".join(_report(network, plan, blocks))


def _report(network: nn.Module, plan: TrainingPlan, blocks: TrainedBlocks) -> Iterator[str]:
    yield f"Training Memory · {type(network).__name__}: blocks {blocks.lists} · {plan}"
    behind = [part for part in plan.checkpoints(blocks) if isinstance(part, tuple)]
    by_blocks = f"{len(behind)} checkpoints; a step computes what lies behind them twice, the rest once"
    yield {
        EVERY_BLOCK: by_blocks,
        EVERY_KTH: by_blocks,
        ATTENTION: "the attention of these blocks is computed twice, the rest once",
        FEED_FORWARD: "the feed-forward of these blocks is computed twice, the rest once",
        BUDGET: f"the first step of each size has {len(behind)} checkpoints; from the second on there are as few as fit"
        f" {format_gb(plan.budget)}",
    }[plan.kind]
    if plan.in_ram:
        yield (
            "checkpoints are kept in RAM beside a card, copied while blocks compute"
            if plan.kind in (EVERY_BLOCK, EVERY_KTH, BUDGET)
            else "checkpoints_in_ram: the checkpoints of parts of blocks stay on the card; choose every block"
        )
    yield "Train LoRA's own gradient_checkpointing is left out within the blocks, on or off"
    chosen = getattr(find("comfy.ldm.modules.attention:optimized_attention"), "__name__", "")
    if chosen in BY_FREE_MEMORY:
        yield (
            f"attention: torch's instead of ComfyUI's {chosen.removeprefix('attention_')}, which looks at the free"
            " memory and would not compute the same twice; another node's choice is kept"
        )
    yield "what a step takes: Memory Report behind Train LoRA"


class BehindCheckpoints:
    """A wrapper around a model's call: its blocks are run by a plan, in one forward and what its backward asks for.

    The blocks' forwards are other ones for the time of the call. The host's own checkpoints are left out meanwhile:
    that of the whole network would keep nothing of what lies within, and have all of it at once in the backward.
    """

    def __init__(self, plan: TrainingPlan, blocks: TrainedBlocks, budget: Any = None) -> None:
        self.plan, self.blocks = plan, blocks
        self._budget = budget or TrainingBudget(plan, blocks)

    def summary(self) -> str:
        """A line for reports."""
        return f"training: {self.plan}"

    def __call__(self, executor: Any, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return executor(*args, **kwargs)
        base, options = executor.class_obj, dict(args[OPTIONS] or {})
        network = base.diffusion_model
        with ExitStack() as stack:
            stack.enter_context(_plain(network))
            step = stack.enter_context(self._budget.step(base, args[0], (args[1:OPTIONS], kwargs), options))
            device = args[0].device
            step.ram = InRam(device) if self.plan.in_ram and acts_on(device) else None
            chain = CheckpointedChain(step.plan, self._budget.written, step.ram)
            outside = self._outside(network, device)
            stack.enter_context(brought(outside, device, together=False, prepared=without_page))
            for number, (path, alone) in enumerate(zip(self.blocks.paths, self.alone_in(network))):
                block = network.get_submodule(path)
                run = partial(run_own, block, alone, device)
                stack.enter_context(replaced_forward(block, partial(_run, chain, step, number, block, run)))
            behind = self.plan.selection if self.plan.kind == ATTENTION else None
            attention = TrainedAttention(options.get(OVERRIDE), behind, self.blocks.ends)
            options[OVERRIDE], step.attention = attention, attention
            return step.finish(executor(*args[:OPTIONS], options, *args[OPTIONS + 1 :], **kwargs), step.ram)

    def _outside(self, network: nn.Module, device: torch.device) -> list[nn.Module]:
        """Layers outside of the blocks whose weights the host has left off the device."""
        within = {module for path in self.blocks.paths for module in network.get_submodule(path).modules()}
        return [layer for layer in layers_off(network, device) if layer not in within]

    def alone_in(self, network: nn.Module) -> list[list[nn.Module]]:
        """Of each block, the parts that lie behind checkpoints of their own."""
        return alone_in(network, self.blocks, self.plan)


def alone_in(network: nn.Module, blocks: TrainedBlocks, plan: TrainingPlan) -> list[list[nn.Module]]:
    """By a plan."""
    return [
        list(feed_forwards(network.get_submodule(path))) if chosen and plan.kind == FEED_FORWARD else []
        for path, chosen in zip(blocks.paths, blocks.are_in(plan.selection))
    ]


def _run(
    chain: CheckpointedChain,
    step: RunningStep,
    number: int,
    block: nn.Module,
    own: Callable[..., Any],
    forward: Callable[..., Any],
    *args: Any,
    **kwargs: Any,
) -> Any:
    run = partial(own, forward)
    step.before(number, block, run, args, kwargs)
    result = chain.run(number, run, *args, **kwargs) if step.instead is None else step.instead()
    step.after(result)
    return result


def ask_whether_cancelled() -> None:
    comfy.model_management.throw_exception_if_processing_interrupted()


@contextmanager
def replaced_forward(module: nn.Module, run: Callable[..., Any]) -> Iterator[None]:
    """A module's forward is ``run`` with the forward that it had; whatever happens, it has that again afterwards."""
    before = vars(module).get(FORWARD)
    module.__dict__[FORWARD] = partial(run, module.forward)
    try:
        yield
    finally:
        module.__dict__.pop(FORWARD, None)
        module.__dict__ |= {} if before is None else {FORWARD: before}


def run_own(
    block: nn.Module,
    alone: Sequence[nn.Module],
    device: torch.device,
    forward: Callable[..., Any],
    *args: Any,
    **kwargs: Any,
) -> Any:
    """A block's own forward, as in the call around it when it is run again, unless the user has cancelled.

    Weights that are not on the device come with it. The host's buffers for such are written anew before a backward
    has read them.
    """
    ask_whether_cancelled()
    with ExitStack() as stack:
        stack.enter_context(_plain(block))
        off = layers_off(block, device)
        stack.enter_context(brought(off, device, together=True, running=block, prepared=without_page))
        for part in alone:
            stack.enter_context(replaced_forward(part, run_alone))
        return forward(*args, **kwargs)


@contextmanager
def _plain(network: nn.Module) -> Iterator[None]:
    """Without the host's checkpoints within."""
    found = [
        (*_checkpoint(module), vars(module)[HOSTS_FORWARD])
        for module in network.modules()
        if HOSTS_FORWARD in vars(module) and FORWARD in vars(module)
    ]
    before = [places[name] for places, name, _ in found]
    for places, name, own in found:
        places[name] = own
    try:
        yield
    finally:
        for (places, name, _), forward in zip(found, before):
            places[name] = forward


def _checkpoint(module: nn.Module) -> tuple[dict[str, Any], str]:
    """Where a module's checkpoint of the host's stands, or stood, and by which name.

    Adapters beside the weights come after it: the module's forward is one's then, which holds what it found there.
    """
    places, name = vars(module), FORWARD
    while places[name] != vars(module)[HOSTS_FORWARD]:
        adapter = getattr(getattr(places[name], "__self__", None), "__dict__", {})
        if adapter.get(ADAPTED) is None:
            break
        places, name = adapter, ADAPTED
    return places, name
