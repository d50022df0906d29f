"""What a training step takes, learnt in the first one of each size, and the plan of checkpoints that keeps a budget."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_leaves

from ...memory import Row
from ...memory.prediction import CannotPredict, Prediction
from ...memory.prediction.live_bytes import inner_tensors
from ...memory.units import MB, format_bytes, format_gb
from ...training import Checkpoints, StepCost, StepDoesNotFit, WrittenPlaces, least_recomputation, spent
from ..measure.runs import notice
from ..measure.wrappers import OPTIMIZER, ROW
from ..prediction.stages import own_card
from .costs import BlockCosts, tensors_in, trainable
from .plan import ATTENTION, BUDGET, FEED_FORWARD, TrainedBlocks, TrainingPlan

# Tensors of a parameter's size that an optimizer keeps of each, by the names of the host's choices.
STATES = {"Adam": 2, "AdamW": 2, "RMSprop": 1, "SGD": 0}
MOST_STATES = 2
LATENTS = 10  # that the host's training holds in a step: noise and pictures, of all and of the batch, mixed, as goal


@dataclass
class HeldInTraining:
    """Bytes on the device throughout a step, activations of the blocks not among them.

    Attributes:
        weights: of the model.
        adapter: trainable tensors.
        gradients: of these.
        states: of the optimizer.
        outside: what the network saves outside of its blocks.
        given: pictures and texts of the step.
    """

    weights: int
    adapter: int
    gradients: int
    states: int
    outside: int
    given: int

    @property
    def beside_weights(self) -> int:
        """What a training allocates itself."""
        return self.gradients + self.states + self.outside + self.given

    @property
    def total(self) -> int:
        return self.weights + self.adapter + self.beside_weights

    def __str__(self) -> str:
        parts = {
            "weights": self.weights, "adapter": self.adapter, "its gradients": self.gradients,
            "optimizer": self.states,
            "outside of the blocks": self.outside, "pictures and texts": self.given,
        }  # fmt: skip
        return ", ".join(f"{name} {format_bytes(size)}" for name, size in parts.items() if size >= MB / 2)


@dataclass
class RunningStep:
    """One forward.

    Attributes:
        plan: of the blocks.
        before: called before each block with its number, module, forward and arguments.
        after: called with what each block gave.
        finish: called with what the network gave, which it returns.
    """

    plan: Checkpoints
    before: Callable[..., None] = field(default=lambda *_: None)
    after: Callable[[Any], None] = field(default=lambda _: None)
    finish: Callable[[Any], Any] = field(default=lambda result: result)


class TrainingBudget:
    """Of one MODEL: what the steps of a training take, by the shapes that go into it.

    The first step of a size runs as if there was no budget, with a checkpoint around every block; it tells what the
    rest of the network keeps, and what the blocks would by a plan.

    Attributes:
        written: what the blocks write to that autograd has saved, as far as the training has shown.
    """

    def __init__(self, plan: TrainingPlan, blocks: TrainedBlocks) -> None:
        self._asked, self._blocks = plan, blocks
        self._forget(None)

    def _forget(self, run: Row | None) -> None:
        """Another training may have another adapter and optimizer."""
        self._run, self._plans = run, dict[tuple[torch.Size, torch.dtype], Checkpoints]()
        self.written: WrittenPlaces = {}

    @contextmanager
    def step(self, base: nn.Module, x: Tensor, inputs: Any, options: dict[str, Any]) -> Iterator[RunningStep]:
        """Within it, the network runs.

        Args:
            base: the host's model.
            x: the latents that go into it.
            inputs: whatever else does.
            options: of the host's, for the blocks.
        """
        if options.get(ROW) is not self._run:
            self._forget(options.get(ROW))
        key = (x.shape, x.dtype)
        if key in self._plans:
            yield RunningStep(self._plans[key])
            return
        plan = self._asked.checkpoints(self._blocks)
        first = _FirstStep(base, x, inputs, options)

        def finish(result: Any) -> Any:
            self._plans[key] = self._learnt(first, plan, result)
            return result

        with saved_tensors_hooks(first.saves, lambda tensor: tensor):
            yield RunningStep(plan, first.before, first.after, finish)

    def _learnt(self, first: _FirstStep, plan: Checkpoints, result: Any) -> Checkpoints:
        chain = first.chain(len(self._blocks.paths))
        held = first.held(result)
        if chain is None:
            if self._asked.kind == BUDGET:
                first.notice(
                    f"what a block takes cannot be predicted ({first.why}): a checkpoint at every block instead"
                )
            return plan
        if self._asked.kind == BUDGET:
            try:
                plan, _ = least_recomputation(chain, self._asked.budget - held.total)
            except StepDoesNotFit as error:
                raise ValueError(_too_small(self._asked.budget, error.least, held)) from None
        if self._asked.kind in (ATTENTION, FEED_FORWARD):
            first.line(f"{held}")
            return plan
        cost, without = spent(chain, plan), spent(chain, tuple(range(len(chain))))
        share = cost.again / max(1.0, sum(block.forward for block in chain))
        first.line(
            f"activations of the {len(chain)} blocks {format_bytes(cost.peak)} at most by the plan"
            f" ({self._asked}), {format_bytes(without.peak)} without checkpoints; {share:.0%} of their forward computed"
            " again"
        )
        first.line(f"{held}")
        first.predicted(held, cost)
        return plan


class _FirstStep:
    """What is seen of one."""

    def __init__(self, base: nn.Module, x: Tensor, inputs: Any, options: dict[str, Any]) -> None:
        self.base, self.x, self.device, self._inputs = base, x, x.device, tensors_in(inputs)
        self.row: Row | None = options.get(ROW)
        self.optimizer = options.get(OPTIMIZER)
        self.why = ""
        self._costs: BlockCosts | None = BlockCosts(own_card(x.device))
        # Outside of the blocks, by storage; what comes behind the last block is gone again when its backward begins.
        self._saved, self._behind = dict[int, int](), dict[int, int]()
        self._left_out = set(_sizes((*base.parameters(), *base.buffers(), *self._inputs)))

    def before(self, number: int, block: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> None:
        self._saved |= self._behind
        self.after((args, kwargs))
        if self._costs is None:
            return
        try:
            self._costs.add(number, block, forward, args, kwargs)
        except CannotPredict as error:
            self._costs, self.why = None, str(error)

    def after(self, result: Any) -> None:
        """Leaves out what goes from block to block."""
        self._left_out |= set(_sizes(tensors_in(result)))
        self._behind = {}

    def saves(self, tensor: Tensor) -> Tensor:
        """Outside of the blocks."""
        self._behind |= _sizes((tensor,))
        return tensor

    def chain(self, count: int) -> list[Any] | None:
        if self._costs is None or len(self._costs.chain) != count:
            self.why = self.why or "not every block was called once"
            return None
        return [self._costs.chain[number] for number in range(count)]

    def held(self, result: Any) -> HeldInTraining:
        learnt, weights = self._learnt(result), (*self.base.parameters(), *self.base.buffers())
        adapter = sum(one.nbytes for one in learnt)
        states = STATES.get(type(self.optimizer).__name__, MOST_STATES)
        return HeldInTraining(
            weights=sum(_sizes(one for one in weights if one.device == self.device).values()),
            adapter=adapter,
            gradients=adapter,
            states=states * adapter,
            outside=sum(size for key, size in self._saved.items() if key not in self._left_out)
            + (0 if self._costs is None else self._costs.given),
            given=LATENTS * self.x.nbytes + sum(_sizes(self._inputs).values()),
        )

    def _learnt(self, result: Any) -> list[Tensor]:
        """From the optimizer where the host's training shows it, else what the graph leads to."""
        if self.optimizer is not None:
            return [one for group in self.optimizer.param_groups for one in group["params"]]
        found = trainable([one for one in tree_leaves(result) if isinstance(one, Tensor)])
        return [one for one in found if one is not self.x]

    def predicted(self, held: HeldInTraining, cost: StepCost) -> None:
        if self.row is not None:
            peak = held.beside_weights + cost.peak
            self.row.predicted = Prediction(held.weights, peak, peak, operator="backward")

    def line(self, text: str) -> None:
        if self.row is not None:
            self.row.lines.append(text)

    def notice(self, text: str) -> None:
        if self.row is not None:
            notice(self.row, text)


def _sizes(tensors: Iterable[Tensor]) -> dict[int, int]:
    """Bytes of the storages, each once."""
    return {
        int(inner.untyped_storage()._cdata): inner.untyped_storage().nbytes()
        for one in tensors
        for inner in inner_tensors(one)
    }


def _too_small(budget: int, least: int, held: HeldInTraining) -> str:
    needed = held.total + least
    return (
        f"vram_budget_gb: this training needs {format_gb(needed)} at least, {format_gb(budget)} are allowed"
        f" ({held}, activations {format_bytes(least)} with as many checkpoints as help); write"
        f" {-(-needed * 10 // 2**30) / 10:g} or more, or take smaller pictures, a smaller batch, or weights stored in 8"
        " bits (Layerwise Casting)"
    )
