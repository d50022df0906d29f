"""A step of the host's own *Train LoRA*, run on a copy of a MODEL without data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import comfy.model_management
import comfy.samplers
import torch
from comfy.utils import ProgressBar
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ...attention import parse_blocks
from ...memory.accelerator import is_here
from ...memory.prediction import CannotPredict, Card, ends_where_it_asks, explained, fake_mode
from ...training import BlockCost
from ..core.internals import TESTED, find
from ..core.latents import shapes_in_model
from ..core.wrapper_kinds import APPLY_MODEL
from ..measure.wrappers import PICTURES, TRAINED
from ..prediction.conditions import fake_conditions, fake_processed, with_masks
from ..prediction.host_answers import answering, apply_by_exchange, replaced, seen_here
from ..prediction.step import StandIn
from .budget import RunningStep
from .checkpointed import BehindCheckpoints, alone_in
from .costs import BlockCosts, kernels_of
from .first_step import FirstStep, HeldInTraining
from .plan import ATTENTION, EVERY_BLOCK, TrainedBlocks, TrainingPlan
from .settings import TrainingSettings

if TYPE_CHECKING:
    from comfy.model_patcher import ModelPatcher

NODE = "comfy_extras.nodes_train"
ALL = parse_blocks("all")
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
LEARNING_RATE = 1e-4  # which no memory depends on


@dataclass(frozen=True)
class Training:
    """A training to predict.

    Attributes:
        model: the MODEL.
        latents: (N, C, [T,] h, w), the pictures.
        positive: CONDITIONING.
        settings: of *Train LoRA*.
        count: of the pictures, where not all of them are among the latents; 0: N.
    """

    model: ModelPatcher
    latents: Tensor
    positive: Sequence[Any]
    settings: TrainingSettings
    count: int = 0

    @classmethod
    def of_set(
        cls, model: ModelPatcher, latents: Sequence[Tensor], positive: Sequence[Any], settings: TrainingSettings
    ) -> Training:
        """Of a set as far as it is known: the largest picture and the longest text stand for all, and there are as
        many as a batch takes, if not more.

        Args:
            latents: (N, C, [T,] h, w) each, of one size or of several.
        """
        largest = max(latents, key=lambda one: one.shape[1:].numel())
        longest = max(positive, key=lambda text: text[0].numel() if isinstance(text[0], Tensor) else 0)
        count = max(sum(map(len, latents)), settings.batch_size)
        return cls(model, largest[:1], [longest], settings, count)

    @property
    def pictures(self) -> int:
        """Of the whole set."""
        return self.count or len(self.latents)


@dataclass(frozen=True)
class TrainedStep:
    """What a step takes.

    Attributes:
        chain: of its blocks, in their order.
        held: beside them.
        parameters: that are trained.
        with_parts: the chain by each plan that lays checkpoints around parts of blocks; None where it is not known.
    """

    chain: tuple[BlockCost, ...]
    held: HeldInTraining
    parameters: int
    with_parts: dict[TrainingPlan, tuple[BlockCost, ...] | None]


class _Seen:
    """In the place of a budget: what each block takes, which is run alone; from one to the next go shapes.

    Args:
        card: whose kernels are followed.
        parts: plans with checkpoints around parts of blocks.
        texts_too, accumulates: as of :class:`FirstStep`.
    """

    def __init__(
        self, blocks: TrainedBlocks, card: Card, parts: Sequence[TrainingPlan], *, texts_too: bool, accumulates: bool
    ) -> None:
        self._blocks, self._card, self._texts_too, self._accumulates = blocks, card, texts_too, accumulates
        self._parts: dict[TrainingPlan, BlockCosts | None] = {}
        self._plans = parts
        self.written: dict[Any, Any] = {}
        self.optimizer: Any = None
        self.adapter: list[Tensor] = []
        self.held: tuple[Tensor, ...] = ()
        self.found: TrainedStep | None = None

    @contextmanager
    def step(self, base: nn.Module, x: Tensor, inputs: Any, options: dict[str, Any]) -> Iterator[RunningStep]:
        """As of :class:`TrainingBudget`."""
        first = FirstStep(
            base, x, inputs, self.optimizer, self._card, options[PICTURES], self.held, texts_too=self._texts_too,
            accumulates=self._accumulates,
        )  # fmt: skip
        self._parts = {plan: BlockCosts(self._card, self.held) for plan in self._plans}
        network: Any = base.diffusion_model
        alone = {plan: alone_in(network, self._blocks, plan) for plan in self._plans}
        count = len(self._blocks.paths)
        progress, alive = ProgressBar(count), list[Any]()  # with what leads to it, as the graph would keep it

        def before(number: int, block: nn.Module, run: Any, args: Any, kwargs: Any) -> None:
            alive.append((args, kwargs))
            progress.update(1)
            first.before(number, block, run, args, kwargs)
            for plan in self._plans:
                run_by_plan = partial(run.func, block, alone[plan][number], *run.args[2:])
                self._add(plan, number, block, run_by_plan, args, kwargs)

        def finish(result: Any, _: Any) -> Any:
            chain = first.chain(count)
            if chain is None:
                raise CannotPredict(first.why)
            parts = {
                plan: None if costs is None else tuple(first.whole(costs, count)) for plan, costs in self._parts.items()
            }
            parameters = sum(one.numel() for one in self.adapter)
            self.found = TrainedStep(tuple(chain), first.held(result), parameters, parts)
            return result

        self._step = RunningStep(tuple(range(count)), before, first.after, finish, first.result)
        with first.watched():
            yield self._step

    def _add(self, plan: TrainingPlan, number: int, block: nn.Module, run: Any, args: Any, kwargs: Any) -> None:
        costs, attention = self._parts[plan], self._step.attention
        if costs is None or attention is None:
            return
        attention.behind = plan.selection if plan.kind == ATTENTION else None
        try:
            costs.add(number, block, run, args, kwargs)
        except CannotPredict:
            self._parts[plan] = None
        finally:
            attention.behind = None


def predict_training_step(asked: Training, card: Card, parts: Sequence[TrainingPlan] = ()) -> TrainedStep:
    """The network's forward as *Train LoRA* runs it; each kind of block forward and backward.

    Args:
        card: that it would run on; where this machine has none such, a CPU's operators are followed, with what the
            card's kernels hold inside.
        parts: plans with checkpoints around the attention or the feed-forward of blocks, of which to tell too.

    Raises:
        CannotPredict: the model looks at its data.
        ValueError: the model has no blocks, or the host has no such adapter.
    """
    here = card if is_here(card.device) else replace(card, device=torch.device("cpu"), stands_for=card)
    blocks, mode = TrainedBlocks.of(asked.model.get_model_object("diffusion_model")), fake_mode()
    as_in_training = seen_here(comfy.model_management, "in_training", True)
    # Of the copy: a tensor that was made under inference mode cannot be saved for a backward.
    gradients = torch.enable_grad()
    with ends_where_it_asks(), torch.inference_mode(False), gradients, answering({}), as_in_training, explained():
        stand_in = StandIn.of(asked.model, mode, here)
        dtype = _computed_in(asked)
        if asked.settings.training_dtype != "none":
            stand_in.patcher.set_model_compute_dtype(dtype)
            vars(stand_in.model)["manual_cast_dtype"] = dtype
        accumulates = asked.settings.grad_accumulation_steps > 1
        seen = _Seen(blocks, here, parts, texts_too=not card.has_own_memory, accumulates=accumulates)
        (shape,) = shapes_in_model(asked.model, {"samples": asked.latents})
        with mode:
            stand_in.model.requires_grad_(False).train()
            seen.adapter = _adapted(asked, stand_in)
            seen.optimizer = _of_the_node("_create_optimizer")(asked.settings.optimizer, seen.adapter, LEARNING_RATE)
            seen.held = (*stand_in.model.parameters(), *stand_in.model.buffers(), *seen.adapter)
            with kernels_of(here):
                _run(asked, shape, stand_in, seen, BehindCheckpoints(TrainingPlan(EVERY_BLOCK, ALL), blocks, seen))
    assert seen.found is not None
    return seen.found


def _of_the_node(name: str) -> Any:
    """
    Raises:
        ValueError: this host's node is made otherwise.
    """
    found = find(f"{NODE}:{name}")
    if found is None:
        raise ValueError(f"model: this ComfyUI's Train LoRA has no {name}, a training cannot be predicted; {TESTED}")
    return found


def _computed_in(asked: Training) -> torch.dtype:
    """As the node has it: the model's own are computed in 16 bits."""
    if asked.settings.training_dtype != "none":
        return DTYPES[asked.settings.training_dtype]
    return torch.float16 if asked.model.model.get_dtype() == torch.float16 else torch.bfloat16


def _adapted(asked: Training, stand_in: StandIn) -> list[Tensor]:
    """The adapter's trainable tensors, at work in the copy as after the host's load."""
    patcher, settings, kept_in = stand_in.patcher, asked.settings, DTYPES[asked.settings.lora_dtype]
    patcher.weight_wrapper_patches = {}
    make = _of_the_node(f"_setup_lora_adapters{'_bypass' * settings.bypass_mode}")
    # On the card from the first, where the host brings them by its load.
    with stand_in.card.device, replaced(nn.Module, "_apply", apply_by_exchange):
        lora, adapters, *beside = make(patcher, {}, settings.algorithm, kept_in, settings.rank)
        for manager in beside:
            for injection in manager.create_injections(stand_in.model):
                injection.inject(patcher)
    for adapter in adapters:
        if hasattr(adapter, "constraint"):  # OFT bounds rotations that grow large: it would look at them
            adapter.constraint = 0
    around = patcher.weight_wrapper_patches
    for path, layer in stand_in.model.named_modules():
        if hasattr(layer, "comfy_cast_weights"):
            layer.comfy_force_cast_weights = patcher.force_cast_weights
            layer.comfy_cast_weights = layer.comfy_cast_weights or patcher.force_cast_weights
            layer.weight_function = [*layer.weight_function, *around.get(f"{path}.weight", ())]
            layer.bias_function = [*layer.bias_function, *around.get(f"{path}.bias", ())]
    return list(lora.values())


def _run(asked: Training, shape: torch.Size, stand_in: StandIn, seen: _Seen, behind: BehindCheckpoints) -> None:
    """The host's forward. Within the mode."""
    device = stand_in.card.device
    computed_in, count = _computed_in(asked), min(asked.settings.batch_size, asked.pictures)
    latents, noise = (torch.empty((count, *shape[1:]), dtype=computed_in, device=device) for _ in range(2))
    texts = _anew(with_masks(fake_conditions(asked.positive)))
    texts = (texts * count)[:count]
    conds = comfy.samplers.process_conds(stand_in.model, noise, {"positive": texts}, device, latents, None, seed=0)
    fake_processed(conds)
    options = stand_in.options()
    wrappers = options["transformer_options"]["wrappers"]
    ours = {key: found for key, found in wrappers[APPLY_MODEL].items() if key != TRAINED}
    wrappers[APPLY_MODEL] = {**ours, TRAINED: [behind]}
    options["transformer_options"] |= {"sample_sigmas": torch.empty(count, device=device), PICTURES: asked.pictures}
    guider = _of_the_node("TrainGuider")(stand_in.patcher)
    guider.inner_model, guider.conds = stand_in.model, _of_the_node("process_cond_list")(conds)
    loss = _of_the_node("_create_loss_function")("MSE")
    sampler = _of_the_node("TrainSampler")(loss, seen.optimizer, training_dtype=computed_in)
    given = {"model_options": options, "seed": 0}
    sigmas = torch.empty(count, device=device)
    # No list among the options is as long as this.
    sampler.fwd_bwd(
        guider, sigmas, noise, latents, guider.conds["positive"], list(range(count)), given, dataset_size=-1, bwd=False
    )


def _anew(values: Any) -> Any:
    """Other tensors in the same structure: what was made under inference mode is of no use to a gradient."""
    return tree_map(
        lambda one: (
            torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device=one.device)
            if isinstance(one, Tensor)
            else one
        ),
        values,
    )
