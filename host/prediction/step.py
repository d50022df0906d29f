"""What one step of a sampling would take: the host's own batching of guidance, around its own module, without data."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import comfy.model_management as model_management
import comfy.samplers
import comfy.utils
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from ...attention import parse_blocks
from ...memory.prediction import (
    DOCUMENTED,
    CannotPredict,
    Card,
    LiveBytes,
    Prediction,
    Repeats,
    Workspaces,
    fake_copy,
    fake_mode,
    name_modules,
    plain_tensors,
    predict,
)
from ..attention.override import SIGMA, SIGMA_RANGES, overrides_of, sigma_ranges
from ..core.latents import mask_numbers, packed_shape, shapes_in_model, told_shapes
from ..core.wrapper_kinds import APPLY_MODEL, CALC_COND_BATCH, DIFFUSION_MODEL
from ..measure.wrappers import COMPILED
from ..offload.budget import budget_of
from ..sampling.autoregressive import first_and_last_block
from .conditions import fake_conditions, fake_processed, has_idle_mask, with_masks, without_idle_masks
from .encoders import resizing
from .host_answers import (
    answering,
    apply_by_exchange,
    attending,
    card_answers,
    few_experts,
    free_memory_answer,
    replaced,
)
from .networks import Beside, model_without_data, networks_beside, on_card

if TYPE_CHECKING:
    from comfy.model_patcher import ModelPatcher

# Beside the one that goes into the model: the noise and the start, both as they came and as the sampler scaled them,
# and the last estimate.
SAMPLER_LATENTS = 5
COUNTED = "headroom_counted"
LEVEL = 0.5  # of noise, where all are alike; a model that asks is told
BOUNDLESS = 2**62
READ_WRAPPERS = (APPLY_MODEL, DIFFUSION_MODEL, CALC_COND_BATCH)
ALL = parse_blocks("all")


@dataclass(frozen=True)
class Step:
    """A sampling step to predict.

    Attributes:
        model: the MODEL.
        latent: the LATENT's tensor, or several nested in one.
        positive, negative: CONDITIONING; without any, the model's text is taken from what its layers want.
        cfg: 1 leaves the negative out, as in the host.
        mask: of the noise, if the latent has one; nested or not.
        together: guidance is computed in one batch, even where the host would find no room for it.
        middle: CONDITIONING of a second text that guides.
        block: latent frames that are sampled at a time, each with those before it in sight; 0: all at once.
    """

    model: ModelPatcher
    latent: Any
    positive: Sequence[Any] = ()
    negative: Sequence[Any] = ()
    cfg: float = 8.0
    mask: Any = None
    together: bool = False
    middle: Sequence[Any] = ()
    block: int = 0

    @property
    def beside(self) -> list[ModelPatcher]:
        """The networks that run beside the model."""
        return networks_beside(self.model, self.positive, self.negative, self.middle)


def predict_step(step: Step, card: Card, workspaces: Workspaces = DOCUMENTED) -> Prediction:
    """Predicts one call of the sampler's model function; where nodes are for some steps, of the one that takes most.

    Raises:
        CannotPredict: the model looks at its data.
    """
    levels = noise_levels(step.model)
    return max((_with_or_without_masks(step, card, workspaces, sigma) for sigma in levels), key=lambda one: one.peak)


def noise_levels(model: ModelPatcher) -> list[float | None]:
    """A noise level for every set of overrides that is at work in some step; None: all are in every one."""
    ranges = sigma_ranges(model, overrides_of(model)).values()
    if not ranges:
        return [None]
    first = float(model.get_model_object("model_sampling").percent_to_sigma(0.0))
    ends = sorted({*(end for both in ranges for end in both), first, 0.0})
    return [(low + high) / 2 for low, high in pairwise(ends)]


def _with_or_without_masks(step: Step, card: Card, workspaces: Workspaces, sigma: float | None) -> Prediction:
    try:
        return _predicted(step, card, workspaces, sigma)
    except CannotPredict:
        texts = step.positive, step.negative, step.middle
        if not any(map(has_idle_mask, texts)):
            raise
        # Some models (Lumina 2, Z-Image) look at masks of their texts, and leave those out that hide nothing.
        positive, negative, middle = map(without_idle_masks, texts)
        unmasked = replace(step, positive=positive, negative=negative, middle=middle)
        return _predicted(unmasked, card, workspaces, sigma)


def _predicted(step: Step, card: Card, workspaces: Workspaces, sigma: float | None) -> Prediction:
    mode = fake_mode()
    # Some models move a layer while they run, which torch does in a way that tensors without data do not allow.
    moving = replaced(nn.Module, "_apply", apply_by_exchange)
    with answering(card_answers(card)), attending(card), few_experts(), resizing(), moving:
        stand_in = StandIn.of(step.model, mode, card)
        stand_in.sigma = sigma
        shapes = shapes_in_model(step.model, {"samples": step.latent})
        stand_in.beside.prepare(step.positive, step.negative, step.middle)
        with mode:
            asked = {"positive": step.positive, "negative": step.negative, "middle": step.middle}
            memo: dict[int, Tensor] = {}
            conditions = {
                name: fake_conditions(texts, stand_in.beside, memo)
                for name, texts in asked.items()
                if texts or name != "middle"
            }
            run = stand_in.prepared(step, shapes, conditions)
        weights = [*stand_in.model.parameters(), *stand_in.model.buffers(), *stand_in.beside.weights]
        stand_in.streamed = _streamed(step, packed_shape(shapes), card)
        given = [conditions, stand_in.beside.given, *plain_tensors(stand_in.model)]
        found = predict(mode, card, weights, run, workspaces, stand_in.repeats, given)
    return replace(found, calls=stand_in.calls)


@dataclass
class StandIn:
    """A copy of a MODEL without data.

    Attributes:
        model: the host's BaseModel, copied.
        patcher: stands where the host looks for the model's patcher.
        card: where it says it is.
        beside: what runs beside it.
        patches: of the model, without data.
        streamed: bytes of weights that the host leaves off the card.
        calls: of the model so far.
        sigma: the noise level, where it makes a difference.
        ranges: of noise levels, as :func:`sigma_ranges` gives them.
    """

    model: nn.Module
    patcher: ModelPatcher
    card: Card
    beside: Beside
    streamed: int = 0
    calls: int = 0
    sigma: float | None = None
    ranges: dict[Any, Any] = field(default_factory=dict)
    running: list[str] = field(default_factory=list)
    repeats: Repeats = field(default_factory=Repeats)
    patches: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, model: ModelPatcher, mode: FakeTensorMode, card: Card) -> StandIn:
        """A copy on the card of a MODEL with its object patches, in a fake mode."""
        copied = model_without_data(model.model, mode, card.device)
        for path, patch in model.object_patches.items():
            if isinstance(patch, nn.Module):
                comfy.utils.set_attr(copied, path, fake_copy(patch, mode, card.device))
            elif not callable(patch):
                comfy.utils.set_attr(copied, path, patch)
        stand_in = cls(copied, model.clone(), card, Beside(mode, card.device))
        stand_in.ranges = sigma_ranges(model, overrides_of(model))
        stand_in.patches = stand_in.beside.patches(model.model_options.get("transformer_options", {}))
        stand_in.patcher.model = copied
        stand_in.patcher.load_device = card.device
        copied.current_patcher = stand_in.patcher
        name_modules(copied.diffusion_model, stand_in.running)
        stand_in.repeats.install(copied.diffusion_model)
        stand_in.repeats.allowed = _treats_blocks_alike(model)
        return stand_in

    def prepared(
        self, step: Step, shapes: Sequence[torch.Size], conditions: dict[str, Any]
    ) -> Callable[[LiveBytes], Any]:
        """The step as a function of the tracker that follows it; ``shapes`` are those of the latent in the model."""
        card, shape = self.card, packed_shape(shapes)
        mask = None if step.mask is None else torch.empty(shape, device=card.device)
        numbers = None if step.mask is None else mask_numbers(step.mask, shapes)

        def run(tracker: LiveBytes) -> Any:
            tracker.modules = self.running
            if mask is not None and numbers is not None:  # some models ask whether it differs within a picture
                tracker.know(mask, numbers)
            free = self._free_memory(tracker)
            self.patcher.get_free_memory = (lambda *_, **__: BOUNDLESS) if step.together else free
            held = [torch.empty(shape, device=card.device) for _ in range(SAMPLER_LATENTS)]
            x = torch.empty(shape, device=card.device)
            with answering({"get_free_memory": free}):
                texts = {name: with_masks(conditioning) for name, conditioning in conditions.items()}
                conds = comfy.samplers.process_conds(
                    self.model, held[0], texts, card.device, held[1], mask, seed=0, **told_shapes(shapes)
                )
                fake_processed(conds)
                level = LEVEL if self.sigma is None else self.sigma
                sigma, options = torch.full((x.shape[0],), level, device=card.device), self.options()
                asked = [conds["positive"], conds["negative"]]
                if step.cfg == 1.0 and not options.get("disable_cfg1_optimization"):
                    asked[1] = None
                if "middle" in conds:
                    asked.append(conds["middle"])

                def call(part: Tensor, more: Mapping[str, Any] = MappingProxyType({})) -> Any:
                    options["transformer_options"] |= more
                    return comfy.samplers.calc_cond_batch(self.model, asked, part, sigma, options)

                try:
                    return first_and_last_block(self.model, step.block, x, call) if step.block else call(x)
                finally:  # patches of nodes that keep tensors from one step to the next
                    getattr(self.patcher, "model_patches_call_function", tuple)()

        return run

    def _free_memory(self, tracker: LiveBytes) -> Callable[..., Any]:
        answer = free_memory_answer(self.card, tracker, self.streamed)

        def ask(*args: Any, **kwargs: Any) -> Any:
            self.repeats.questions += 1
            return answer(*args, **kwargs)

        return ask

    def _counted(self, executor: Any, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return executor(*args, **kwargs)

    def options(self) -> dict[str, Any]:
        """The patcher's, as the sampler makes them; a compiler would read the data."""
        options = copy.copy(self.patcher.model_options)
        inner = options["transformer_options"] = copy.copy(options.get("transformer_options", {}))
        inner.update(on_card(self.patches, self.card.device))
        wrappers = {
            kind: {key: found for key, found in self.patcher.wrappers.get(kind, {}).items() if key != COMPILED}
            for kind in READ_WRAPPERS
        }
        wrappers[APPLY_MODEL] = {**wrappers[APPLY_MODEL], COUNTED: [self._counted]}
        inner["wrappers"] = {**inner.get("wrappers", {}), **wrappers}
        if self.sigma is not None:
            inner[SIGMA] = self.sigma
            inner[SIGMA_RANGES] = self.ranges
        inner["sample_sigmas"] = torch.empty(2, device=self.card.device)
        return options


def _streamed(step: Step, shape: torch.Size, card: Card) -> int:
    """Bytes of weights that the host leaves off a card: it keeps room for a batch of one conditioning."""
    model = step.model
    weights = int(model.model_size()) + sum(int(one.model_size()) for one in step.beside)
    if not card.has_own_memory:
        return 0
    if model.is_dynamic():
        return weights  # its pages count as free
    wanted = int(model.model.memory_required(list(shape))) + card.reserved
    room = card.seen - card.reserved - max(wanted, int(model_management.minimum_inference_memory()))
    budget = budget_of(model)
    room = room if budget is None else min(room, budget.weights)
    return weights - max(0, min(weights, room))


def _treats_blocks_alike(model: ModelPatcher) -> bool:
    """Whether nothing on a model makes one block take another course than its equal."""
    options = model.model_options.get("transformer_options", {})
    chosen = (override.selection.blocks for override in overrides_of(model))
    return not options.get("patches") and not options.get("patches_replace") and all(one == ALL for one in chosen)
