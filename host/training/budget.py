"""What a training step takes, learnt in the first one of each size, and the plan of checkpoints that keeps a budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ...memory import Row
from ...memory.prediction import Prediction
from ...memory.units import format_bytes, format_gb
from ...training import (
    Checkpoints,
    InRam,
    StepCost,
    StepDoesNotFit,
    WrittenPlaces,
    least_recomputation,
    least_recomputation_in_ram,
    spent,
)
from ..measure.runs import notice
from ..measure.wrappers import ACCUMULATES, OPTIMIZER, PICTURES, ROW, TOGETHER
from ..prediction.stages import own_card
from .attention import TrainedAttention
from .first_step import FirstStep, HeldInTraining
from .plan import ATTENTION, BUDGET, FEED_FORWARD, TrainedBlocks, TrainingPlan


@dataclass
class RunningStep:
    """One forward.

    Attributes:
        plan: of the blocks.
        before: called before each block with its number, module, forward and arguments.
        after: called with what each block gave.
        finish: called with what the network gave, which it returns, and with :attr:`ram`.
        instead: gives what a block would, which is not run then.
        attention: that is at work in it.
        ram: where its checkpoints are kept; None: on the device.
    """

    plan: Checkpoints
    before: Callable[..., None] = field(default=lambda *_: None)
    after: Callable[[Any], None] = field(default=lambda _: None)
    finish: Callable[[Any, InRam | None], Any] = field(default=lambda result, _: result)
    instead: Callable[[], Any] | None = None
    attention: TrainedAttention | None = None
    ram: InRam | None = None


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
        if (count := options.get(TOGETHER, 1)) > 1:
            self._plans[key] = self._side_by_side(plan, count)
            yield RunningStep(plan)
            return
        card, optimizer = own_card(x.device), options.get(OPTIMIZER)
        first = FirstStep(
            base, x, inputs, optimizer, card, options.get(PICTURES, 0), texts_too=not card.has_own_memory,
            accumulates=options.get(ACCUMULATES, True),
        )  # fmt: skip

        def finish(result: Any, ram: InRam | None) -> Any:
            self._plans[key] = self._learnt(first, plan, result, ram)
            return result

        with first.watched():
            yield RunningStep(plan, first.before, first.after, finish)

    def _side_by_side(self, plan: Checkpoints, count: int) -> Checkpoints:
        """Of pictures that go through the model one by one: what is learnt of one says nothing of a step."""
        if not self._plans:
            instead = ": a checkpoint at every block instead of a budget" if self._asked.kind == BUDGET else ""
            self._notice(
                f"the pictures have several sizes, so that a step keeps {count} of them until one backward, and what it"
                f" takes is not predicted{instead}"
            )
        return plan

    def _learnt(self, first: FirstStep, plan: Checkpoints, result: Any, ram: InRam | None) -> Checkpoints:
        chain = first.chain(len(self._blocks.paths))
        held = first.held(result)
        if chain is None:
            if self._asked.kind == BUDGET:
                self._notice(
                    f"what a block takes cannot be predicted ({first.why}): a checkpoint at every block instead"
                )
            return plan
        if self._asked.kind == BUDGET:
            try:
                least = least_recomputation if ram is None else least_recomputation_in_ram
                plan, _ = least(chain, self._asked.budget - held.total)
            except StepDoesNotFit as error:
                raise ValueError(too_small(self._asked.budget, error.least, held)) from None
        cost = spent(chain, plan, in_ram=ram is not None)
        if ram is not None:
            self._line(f"checkpoints of a step {format_bytes(ram.sent)}, copied to RAM and back once")
        self._predicted(held, cost)
        if self._asked.kind in (ATTENTION, FEED_FORWARD):
            self._line(
                f"activations of the {len(chain)} blocks {format_bytes(cost.peak)} at most by the plan ({self._asked})"
            )
            self._line(f"{held}")
            return plan
        without = spent(chain, tuple(range(len(chain))))
        share = cost.again / max(1.0, sum(block.forward for block in chain))
        self._line(
            f"activations of the {len(chain)} blocks {format_bytes(cost.peak)} at most by the plan"
            f" ({self._asked}), {format_bytes(without.peak)} without checkpoints; {share:.0%} of their forward computed"
            " again"
        )
        self._line(f"{held}")
        return plan

    def _predicted(self, held: HeldInTraining, cost: StepCost) -> None:
        if self._run is not None:
            peak = held.beside_weights + cost.peak
            self._run.predicted = Prediction(held.weights, peak, peak, operator="backward")

    def _line(self, text: str) -> None:
        if self._run is not None:
            self._run.lines.append(text)

    def _notice(self, text: str) -> None:
        if self._run is not None:
            notice(self._run, text)


def too_small(budget: int, least: int, held: HeldInTraining) -> str:
    """What to say of a budget that no plan keeps."""
    needed = held.total + least
    return (
        f"vram_budget_gb: this training needs {format_gb(needed)} at least, {format_gb(budget)} are allowed"
        f" ({held}, activations {format_bytes(least)} with as many checkpoints as help); write"
        f" {-(-needed * 10 // 2**30) / 10:g} or more, or take smaller pictures, a smaller batch, or weights stored in 8"
        " bits (Layerwise Casting)"
    )
