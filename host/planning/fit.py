"""Makes a model and a VAE fit a card: predicts the ways to run them, chooses one, applies it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ...graph.kinds import FIT, TITLES
from ...memory.prediction import (
    QUALITIES,
    CannotPredict,
    Card,
    Fit,
    Forecast,
    Loss,
    Prediction,
    SamplingPlan,
    Stage,
    VAEPlan,
    choose,
    fake_mode,
)
from ...memory.render import too_many_frames
from ...memory.units import format_bytes
from ...offload import STORAGES
from ..attention.backend import apply_attention
from ..attention.override import attention_is_set
from ..casting.bound import bound_to_original
from ..casting.cast import ATTACHMENT as CAST
from ..casting.cast import CastSettings, cast_model
from ..casting.quantised import why_not
from ..core.device import GB, ram_total
from ..measure.calibrated import workspaces_for
from ..measure.wrappers import measure_sampling
from ..offload.block_offload import apply_offload
from ..offload.budget import budget_of
from ..offload.layers import Layers, streams_everything
from ..prediction.host_answers import answering
from ..prediction.kept import kept, step_key
from ..prediction.networks import model_without_data
from ..prediction.stages import (
    Question,
    as_sampled,
    coding_stage,
    decode_of,
    notes_of,
    sampling_stage,
    step_of,
)
from ..prediction.streamed import taken_elsewhere
from ..prediction.vae import Coding
from ..sampling.guidance import KEPT_TOGETHER, compares_texts, guide_in_turns
from ..vae.fallback import BudgetTooSmall
from ..vae.settings import VAESettings
from ..vae.wrapper import LowMemoryVAE, fits_in_one_piece, is_tileable, planned_vae

if TYPE_CHECKING:
    from comfy.model_patcher import ModelPatcher

NEAR_EXACT_DB = 30.0  # signal to noise of a weight, from which on a cast changes a picture only a little
# What may be cast to, nearest to the original first.
PLANNED_CASTS = sorted(
    ((storage.weight_db or 0.0, name) for name, storage in STORAGES.items() if storage.planned), reverse=True
)
# How a VAE may work where one piece is too large, the exact way first.
METHODS: tuple[tuple[dict[str, Any], Loss], ...] = (
    ({"method": "exact"}, Loss.EXACT),
    ({"method": "exact", "store": "float16"}, Loss.NEAR_EXACT),
    ({"method": "feathered"}, Loss.APPROXIMATE),
)


def find_fit(question: Question, card: Card, quality: str = "exact", limit: float = 0.85, share: float = 1.0) -> Fit:
    """Predicts ways to sample and decode on a card and chooses the least lossy that fit.

    Args:
        question: with its VAE.
        quality: one of :data:`...memory.prediction.QUALITIES`.
        limit: share of the card that may be used.
        share: of the predicted activations of a step that it took when it was measured.

    Raises:
        ValueError: an unknown quality.
    """
    if quality not in QUALITIES:
        raise ValueError(f"quality: '{quality}' is not known; choose one of {', '.join(QUALITIES)}")
    question = as_sampled(question)
    most, allowed = QUALITIES[quality], int(limit * card.total)
    ways = SamplingWays(question, card, share)
    considered = list(_sampling_plans(ways, allowed, most))
    vaes = list(_vae_plans(question, card, allowed, most))
    vae = next((plan for plan in vaes if plan.fits(allowed)), None)
    sampling = choose(considered, card, allowed)
    vae_notes = ("the VAE stays as it is",) if _stays(question.vae) else ()
    of_frames = _frames_note(question, sampling, card)
    said = tuple(dict.fromkeys((*notes_of(question), *ways.notes, *vae_notes, *of_frames)))
    return Fit(card, limit, quality, sampling, vae, tuple(considered), tuple(vaes), said)


def apply_fit(model: ModelPatcher, vae: Any, fit: Fit) -> tuple[ModelPatcher, Any]:
    """Clones that run as planned; ``model`` and ``vae`` are not changed.

    Raises:
        ValueError: nothing fits.
    """
    if fit.sampling is None or fit.vae is None:
        raise ValueError("nothing fits: there is no plan to apply")
    plan, chosen = fit.sampling, fit.vae
    result = changed(model, plan.attention, plan.in_turns, plan.storage)
    measure_sampling(result)  # also where nothing was changed: the report says what it took
    budget = plan.budget(fit.allowed)
    if budget is not None:
        # Where networks beside the model alone take more, the host streams those too.
        room, least = budget - plan.stage.beside, plan.stage.least_weights
        copies = plan.prefetches(fit.card, fit.allowed) and room >= least + (plan.staging or 0)
        result, _ = apply_offload(result, max(room, least) / GB, "block" if copies else "auto")
    return result, vae if chosen.settings is None else planned_vae(vae, chosen.settings)


def changed(model: ModelPatcher, attention: str, in_turns: bool, storage: str = "") -> ModelPatcher:
    """A model with a plan's attention, guidance and storage; empty: as it is."""
    result = model
    if storage:
        result, _ = cast_model(result, CastSettings(storage))
    if attention:
        result = apply_attention(result, backend=attention, yields=True)
    return guide_in_turns(result) if in_turns else result.clone()


# --------------------------------------------------------------------------------------------------- ways to sample


def _sampling_plans(sampling: SamplingWays, allowed: int, most: Loss) -> Iterator[SamplingPlan]:
    """Ways to sample, as many as it takes: one that keeps everything as it is and on the card needs no other beside
    it, and none that loses something is considered where an exact one fits."""
    plain = sampling.plan()
    yield plain
    if plain.fits(allowed) and plain.budget(allowed) is None:
        return
    attentions, exact = [""], [plain]
    for backend in sampling.attentions(plain.stage):
        other = sampling.plan(backend)
        if other.stage.activations < plain.stage.activations:
            attentions.append(backend)
            exact.append(other)
            yield other
            break
    ways = [(backend, turns) for turns in sampling.guidance() for backend in attentions]
    for backend, turns in ways:
        if turns:
            exact.append(sampling.plan(backend, turns))
            yield exact[-1]
    fits = any(plan.fits(allowed) for plan in exact)
    for storage, loss in () if fits else sampling.storages(most):
        cast = [sampling.plan(backend, turns, storage, loss) for backend, turns in ways]
        yield from cast
        if any(plan.fits(allowed) for plan in cast):
            return  # what comes after loses more


@dataclass
class SamplingWays:
    """Predicts ways to sample one latent.

    Attributes:
        share: of predicted activations that were measured.
        notes: what was left as it is on the way, and why; may name the same twice.
    """

    question: Question
    card: Card
    share: float = 1.0
    notes: list[str] = field(default_factory=list)

    def attentions(self, plain: Stage) -> Sequence[str]:
        """Backends that may need less than what runs: a fused kernel needs least."""
        kernels = plain.prediction.kernels
        if kernels and "math" not in kernels:
            return ()
        if attention_is_set(self.question.model):
            self.notes.append("attention stays as its own node says")
            return ()
        return "auto", "online"

    def guidance(self) -> Sequence[bool]:
        """Whether guidance may be computed in turns: without a negative there is nothing to take in turns."""
        if compares_texts(self.question.model.model_options):
            self.notes.append(KEPT_TOGETHER)
            return (False,)
        return (False,) if self.question.cfg == 1.0 else (False, True)

    def storages(self, most: Loss) -> Iterator[tuple[str, Loss]]:
        """Storages that the weights may be cast to here, with their loss."""
        model = self.question.model
        if CAST in model.attachments:
            self.notes.append("weights stay as their own node has cast them")
            return
        if (bound := bound_to_original(model, TITLES[FIT])) is not None:
            self.notes.append(f"weights stay as they are: {bound}")
            return
        for decibels, storage in PLANNED_CASTS:
            loss = Loss.NEAR_EXACT if decibels >= NEAR_EXACT_DB else Loss.APPROXIMATE
            if loss <= most and (lacking := why_not(CastSettings(storage).format)) is None:
                yield storage, loss
            elif loss <= most:
                self.notes.append(str(lacking))

    def plan(
        self, attention: str = "", in_turns: bool = False, storage: str = "", loss: Loss = Loss.EXACT
    ) -> SamplingPlan:
        """One way to sample, with its predicted stage."""
        asked = replace(self.question, together=not in_turns)
        if storage:
            key = ("cast", storage, attention, self.share, step_key(step_of(asked), self.card))
            stage, staging = kept(asked.model.model, key, lambda: self._cast(asked, attention, storage))
        else:
            stage, staging = self._predict(asked, attention)
        fixed = budget_of(self.question.model) is not None
        if fixed:
            self.notes.append("the VRAM budget stays as its own node says")
        fixed |= streams_everything()  # no budget brings weights onto the card then
        return SamplingPlan(stage, attention, in_turns, storage, loss, staging=staging, fixed=fixed)

    def _predict(self, asked: Question, attention: str) -> tuple[Stage, int | None]:
        model = changed(asked.model, attention, in_turns=not asked.together)
        stage = sampling_stage(replace(asked, model=model), self.card)
        found = stage.prediction
        measured = replace(found, activations=int(self.share * found.activations), live=int(self.share * found.live))
        return replace(stage, prediction=measured), _staging(asked.model)

    def _cast(self, asked: Question, attention: str, storage: str) -> tuple[Stage, int | None]:
        """Predicts after casting a data-free copy: nothing is quantised."""
        model, mode = asked.model, fake_mode()
        bare = model_without_data(model.model, mode, model.offload_device)
        copy = model.clone(model_override=(bare, ({}, {}, {}, set())))
        copy.size = 0
        with mode, answering({"free_memory": lambda *_, **__: []}):  # nothing of a copy is loaded
            cast, _ = cast_model(copy, CastSettings(storage))
        return self._predict(replace(asked, model=cast), attention)


def _staging(model: ModelPatcher) -> int | None:
    """Bytes of staging memory for weights that are copied ahead; None where the device cannot copy ahead."""
    return kept(model.model, ("staging",), lambda: Layers(model).usual_staging)


# --------------------------------------------------------------------------------------------------- ways to decode


def _vae_plans(question: Question, card: Card, allowed: int, most: Loss) -> Iterator[VAEPlan]:
    """Ways to decode, up to the first that fits."""
    vae, latent = question.vae, decode_of(question).x
    if _stays(vae):
        yield VAEPlan(coding_stage(Coding(vae, latent), card, allowed), None, Loss.EXACT)
        return
    constant = workspaces_for(card).constant(card)
    budget = VAESettings(vram_budget_gb=max(1, allowed - constant) / GB, budget_name="limit of Make It Fit")
    if fits_in_one_piece(planned_vae(vae, budget), latent):
        whole = _vae_plan(vae, budget, latent, card, Loss.EXACT, constant)
        yield whole
        if whole.fits(allowed):
            return
    for changes, loss in METHODS:
        if loss > most:
            return
        plan = _vae_plan(vae, replace(budget, **changes), latent, card, loss, constant)
        yield plan
        if plan.fits(allowed):
            return


def _frames_note(question: Question, sampling: SamplingPlan | None, card: Card) -> Iterator[str]:
    """Where decoded frames do not fit into this machine's RAM beside the weights: what does not gather them there."""
    frames, _ = taken_elsewhere(decode_of(question))
    vae = int(question.vae.patcher.model_size())
    decode = Stage("decode", Prediction(vae, 0), vae, vae, frames=frames)
    forecast = Forecast(card, (decode,) if sampling is None else (sampling.stage, decode), ram=ram_total(0))
    if forecast.lacks_ram and forecast.ram_frames:
        yield too_many_frames(forecast.ram_frames)


def _stays(vae: Any) -> bool:
    """Whether a VAE stays as it is: it cannot be cut, or its own node has said how it works."""
    chosen = isinstance(vae, LowMemoryVAE) and not hasattr(vae, "headroom_plan")
    return not is_tileable(vae) or (chosen and vae.headroom_settings != VAESettings())


def _vae_plan(vae: Any, settings: VAESettings, latent: Any, card: Card, loss: Loss, constant: int) -> VAEPlan:
    try:
        return VAEPlan(coding_stage(Coding(planned_vae(vae, settings), latent), card), settings, loss)
    except BudgetTooSmall as error:
        least = error.least + constant  # what libraries keep is not in a VAE's budget
        return VAEPlan(None, settings, loss, f"exact strips need {format_bytes(least)} at least")
    except (ValueError, CannotPredict) as error:
        return VAEPlan(None, settings, loss, str(error))
