"""What a training of the host's would take, by each plan of checkpoints, before it runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from math import isqrt

from torch import nn

from ...attention import parse_blocks
from ...memory.accelerator import is_here
from ...memory.prediction import CannotPredict, Card, Prediction, Stage, TrainingForecast, TrainingWay
from ...memory.render import training_sentence
from ...memory.units import format_bytes
from ...training import (
    BlockCost,
    Checkpoints,
    StepCost,
    StepDoesNotFit,
    every,
    least_recomputation,
    least_recomputation_in_ram,
    spent,
)
from ..measure.calibrated import workspaces_for
from ..measure.wrappers import TRAINED
from ..offload.budget import budget_of
from ..offload.layers import NETWORK, module_bytes
from .budget import too_small
from .plan import ATTENTION, BUDGET, EVERY_BLOCK, FEED_FORWARD, TrainedBlocks, TrainingPlan
from .without_data import TrainedStep, Training, predict_training_step

ALL = parse_blocks("all")
PARTS = (ATTENTION, FEED_FORWARD)
WITHOUT, OWN, BEST = "no checkpoints", "Train LoRA's own, depth 1", "budget: the least that fits"
IN_RAM = "every block, checkpoints in RAM"


def forecast_training(asked: Training, card: Card, limit: float = 0.85) -> TrainingForecast:
    """Predicts a step by each plan.

    Args:
        asked: with Training Memory's own plan, if its MODEL went through that.
        card: that it would run on.
        limit: share of the card's memory that may be used.

    Raises:
        CannotPredict: the model looks at its data.
        ValueError: the model has no blocks, this ComfyUI no such adapter, or Training Memory's budget is too small.
    """
    return forecast_step(predicted_step(asked, card), asked, card, limit)


def predicted_step(asked: Training, card: Card) -> TrainedStep:
    """What :func:`forecast_step` is told: the same for all cards of one kind.

    Raises:
        CannotPredict, ValueError: as :func:`forecast_training`.
    """
    ours = asked.model.attachments.get(TRAINED)
    plans = [TrainingPlan(kind, ALL) for kind in PARTS] + ([ours.plan] if ours and ours.plan.kind in PARTS else [])
    return predict_training_step(asked, card, plans)


def forecast_step(step: TrainedStep, asked: Training, card: Card, limit: float = 0.85) -> TrainingForecast:
    """As :func:`forecast_training`, of a step that is known."""
    ours = asked.model.attachments.get(TRAINED)
    step = replace(step, held=replace(step.held, weights=step.held.weights - weights_in_ram(asked, card)))
    held, constant = step.held, workspaces_for(card).constant(card)
    room = int(limit * card.total) - held.total - constant
    ways, chosen = list(_ways(step, card, room)), OWN if asked.settings.gradient_checkpointing else WITHOUT
    if ours is not None:
        chosen = f"Training Memory: {ours.plan}"
        way = _by_plan(ours.plan, ours.blocks, step, card)
        if way is None:
            raise CannotPredict("what the chosen parts of the blocks take is not known")
        ways.append(replace(way, name=chosen))
    number = [way.name for way in ways].index(chosen)
    return TrainingForecast(
        card, limit, held.weights, held.adapter, held.gradients, held.states, held.outside + held.given, constant,
        step.parameters, len(step.chain), asked.settings.optimizer, tuple(ways), number,
    )  # fmt: skip


def weights_in_ram(asked: Training, card: Card) -> int:
    """Bytes of weights that are not on the card while the largest block of those that come block by block is."""
    model = asked.model
    budget, all_of_them = budget_of(model), asked.settings.offloading
    if TRAINED not in model.attachments or not card.has_own_memory or (budget is None and not all_of_them):
        return 0
    network, kept = model.get_model_object("diffusion_model"), frozenset[str]()
    if not all_of_them and budget is not None and budget.resident is not None:
        kept = budget.resident
    largest = max(
        _comes(f"{NETWORK}{path}", network.get_submodule(path), kept) for path in TrainedBlocks.of(network).paths
    )
    stays = 0 if all_of_them or budget is None else budget.loadable
    return max(0, int(model.model_size()) - stays - largest)


def _comes(path: str, block: nn.Module, kept: frozenset[str]) -> int:
    """Bytes of a block's weights in layers that do not stay."""
    return sum(module_bytes(layer) for name, layer in block.named_modules() if f"{path}.{name}" not in kept)


def training_stage(asked: Training, card: Card) -> tuple[Stage, tuple[str, ...]]:
    """The plan that the training would take as a stage of a workflow, and what it leaves out.

    Raises:
        ValueError: the model has no blocks, or this ComfyUI no such adapter.
    """
    weights = int(asked.model.model_size())
    stage = Stage("training", Prediction(weights, 0), weights, weights, model=id(asked.model.model))
    try:
        found = forecast_training(asked, card)
    except CannotPredict as error:
        guess = int(asked.model.model.memory_required(list(asked.latents.shape)))
        return replace(stage, prediction=Prediction(weights, guess, live=guess), doubt=str(error)), ()
    beside = found.peak(found.way) - found.weights - found.constant
    prediction = Prediction(
        found.weights, beside, live=beside, constant=found.constant, operator="backward", timeline=(beside,)
    )
    stage = replace(
        stage, prediction=prediction, weights=found.weights, least_weights=found.weights, method=found.way.name
    )
    return stage, (training_sentence(found), *notes_of(asked, card))


def notes_of(asked: Training, card: Card) -> tuple[str, ...]:
    """What a prediction assumes or leaves out, for people."""
    settings, ours = asked.settings, TRAINED in asked.model.attachments
    notes = []
    if settings.gradient_checkpointing and settings.checkpoint_depth > 1 and not ours:
        notes.append("training: Train LoRA's own checkpoints are predicted at depth 1; deeper ones may take less")
    if (in_ram := weights_in_ram(asked, card)) > 0:
        notes.append(
            f"training: {format_bytes(in_ram)} of the weights wait in RAM and come block by block, forward and backward"
        )
    elif settings.offloading:
        notes.append("training: all weights are counted: Train LoRA's offloading keeps them for the backward")
    if card.device.type != "cpu" and not is_here(card.device):
        notes.append("training: a CPU stands for a card that this machine lacks, with the card's precision and kernels")
    return tuple(notes)


def _ways(step: TrainedStep, card: Card, room: int) -> Iterator[TrainingWay]:
    count = len(step.chain)
    yield _way(WITHOUT, step.chain, tuple(range(count)))
    yield _way(OWN, step.chain, every(count, count))
    yield from filter(None, (_of_parts(TrainingPlan(kind, ALL), step) for kind in PARTS))
    k = max(1, isqrt(count))
    if k > 1:
        yield _way(f"every {k} blocks", step.chain, every(count, k))
    yield _way(EVERY_BLOCK, step.chain, every(count, 1))
    if card.has_own_memory:
        yield _way(IN_RAM, step.chain, every(count, 1), in_ram=True)
    with suppress(StepDoesNotFit):
        yield _way(BEST, step.chain, least_recomputation(step.chain, room)[0])


def _by_plan(plan: TrainingPlan, blocks: TrainedBlocks, step: TrainedStep, card: Card) -> TrainingWay | None:
    if plan.kind in PARTS:
        return _of_parts(plan, step)
    in_ram = plan.in_ram and card.has_own_memory
    if plan.kind != BUDGET:
        return _way(plan.kind, step.chain, plan.checkpoints(blocks), in_ram)
    try:
        least = least_recomputation_in_ram if in_ram else least_recomputation
        found, _ = least(step.chain, plan.budget - step.held.total)
    except StepDoesNotFit as error:
        raise ValueError(too_small(plan.budget, error.least, step.held)) from None
    return _way(plan.kind, step.chain, found, in_ram)


def _of_parts(plan: TrainingPlan, step: TrainedStep) -> TrainingWay | None:
    chain = step.with_parts[plan]
    if chain is None:
        return None
    again = sum(block.backward for block in chain) - sum(block.backward for block in step.chain)
    return _named(plan.kind, step.chain, replace(spent(chain, tuple(range(len(chain)))), again=again))


def _way(name: str, chain: Sequence[BlockCost], plan: Checkpoints, in_ram: bool = False) -> TrainingWay:
    return _named(name, chain, spent(chain, plan, in_ram=in_ram))


def _named(name: str, chain: Sequence[BlockCost], cost: StepCost) -> TrainingWay:
    forward, backward = sum(block.forward for block in chain), sum(block.backward for block in chain)
    again = max(0.0, cost.again)
    return TrainingWay(name, cost.peak, again / max(1.0, forward), 1 + again / max(1.0, forward + backward))
