"""Whether what comes after a node fits on a card: the stages of its graph, predicted and put together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import comfy.model_management as model_management
import folder_paths
import torch

from ...memory.accelerator import device_name, is_here
from ...memory.on_disk import free_in
from ...memory.prediction import THIS_MACHINE, CannotPredict, Card, Forecast, Prediction, Stage, named_card
from ..core.compat import has_own_kernels
from ..core.device import CPU, GB, runs_on_the_cpu
from ..core.given import check_latent, check_latent_of
from ..core.latents import first_part, is_nested, packed_shape, shapes_in_model
from ..measure.calibrated import workspaces_for
from ..measure.speeds import kind_of, kind_of_sampling, with_speed
from ..offload.budget import budget_of
from ..offload.layers import least_on_card, said_of_streaming, streams_everything, streams_nothing
from ..sampling.conditioning import usual_conditioning
from ..vae.fallback import BudgetTooSmall
from ..vae.wrapper import is_tileable, works_in_less
from .encoders import predict_text
from .host_answers import SAME_EXPERTS, has_experts
from .kept import coding_key, kept, step_key, text_key
from .networks import every_control, hints_encoded, is_followed, shape_of_pixels
from .step import Step, predict_step
from .streamed import kept_to, predict_from_file, predict_to_file, taken_elsewhere
from .vae import Coding, CodingPrediction, predict_coding

if TYPE_CHECKING:
    from comfy.model_patcher import ModelPatcher


@dataclass(frozen=True)
class Question:
    """What is asked.

    Attributes:
        model: the MODEL to sample with.
        latent: the LATENT.
        vae, clip: where given, decoding with one and encoding with the other are stages too.
        positive, negative: CONDITIONING; a usual prompt's shape where missing.
        cfg: 1: the negative is left out.
        decode: how the latent will be decoded; None: in one piece, or as the VAE's own settings say.
        together: guidance in one batch, even where the host would find no room for it.
        middle: CONDITIONING of a second text that guides; None: there is none.
        block: latent frames that are sampled at a time; 0: all at once.
    """

    model: ModelPatcher
    latent: dict[str, Any]
    vae: Any = None
    clip: Any = None
    positive: Sequence[Any] | None = None
    negative: Sequence[Any] | None = None
    cfg: float = 8.0
    decode: Coding | None = None
    together: bool = False
    middle: Sequence[Any] | None = None
    block: int = 0


@dataclass(frozen=True)
class Answer:
    """A forecast, and what it leaves out."""

    forecast: Forecast
    notes: tuple[str, ...] = ()


def chosen_card(gpu: str, vram_gb: float, device: torch.device) -> Card:
    """The card that a node's widgets mean.

    Args:
        gpu: one of :data:`...memory.prediction.GPU_CHOICES`.
        vram_gb: its memory; 0: all of this machine's device.
        device: of this machine.

    Raises:
        ValueError: a card by name without its memory, on a machine that is not like it.
    """
    reserved = int(model_management.extra_reserved_memory())
    if gpu != THIS_MACHINE:
        if not vram_gb and device.type == "cuda":  # the named cards are NVIDIA's
            vram_gb = model_management.get_total_memory(device) / GB
        return named_card(gpu, vram_gb, reserved)
    found = int(model_management.get_total_memory(device))
    total = int(vram_gb * GB) if vram_gb else found
    # The compute capability says which of CUDA's kernels there are; other makers' generations are counted otherwise.
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    plain = device.type == "cuda" and not has_own_kernels()
    threads = torch.get_num_threads()
    return with_speed(Card(device_name(device), device, total, capability, reserved, threads, found, plain=plain))


def own_card(device: torch.device) -> Card:
    """A device of this machine with all its memory."""
    return chosen_card(THIS_MACHINE, 0.0, device)


def estimate(question: Question, card: Card, limit: float = 0.85, ram: int = 0) -> Answer:
    """Predicts the stages of a question.

    Raises:
        ValueError: a latent that this model does not sample, or this VAE does not decode.
    """
    question = as_sampled(question)
    stages = tuple(_stages(question, card, int(limit * card.total)))
    return Answer(Forecast(card, stages, limit, ram, disk_free(card)), notes_of(question))


def as_sampled(question: Question) -> Question:
    """The question with the latent that sampler and decode get: an empty one takes the model's channels and scale.

    Raises:
        ValueError: a latent that this model does not sample, or this VAE does not decode.
    """
    latent = question.latent
    samples = latent["samples"]
    check_latent(latent, question.model)
    if is_nested(samples):
        if question.vae is not None:
            check_latent_of(question.vae, first_part(samples))
        return question
    shape, *others = shapes_in_model(question.model, latent)
    fixed = samples if shape == samples.shape else samples.new_zeros(()).expand(shape)
    if question.vae is not None:
        check_latent_of(question.vae, fixed)
    if fixed is samples:
        return question
    decode = question.decode and replace(question.decode, x=fixed)
    if others:  # its sampler makes more of it than the latent has, and the VAE gets the first part of that
        return replace(question, decode=decode or (question.vae and Coding(question.vae, fixed)))
    return replace(question, latent={**latent, "samples": fixed}, decode=decode)


def decode_of(question: Question) -> Coding:
    """How the VAE of a question :func:`as_sampled` decodes what its sampler gives."""
    return question.decode or Coding(question.vae, first_part(question.latent["samples"]))


def _stages(question: Question, card: Card, allowed: int) -> Iterator[Stage]:
    if question.clip is not None:
        yield text_stage(question.clip, card)
    yield from sampling_stages(question, card)
    if question.vae is not None:
        yield coding_stage(decode_of(question), card, allowed)


# ------------------------------------------------------------------------------------------------------ the stages


def sampling_stages(question: Question, card: Card) -> Iterator[Stage]:
    """A step of the sampler, before it what its ControlNets encode."""
    step = step_of(question)
    shapes = shapes_in_model(step.model, {"samples": step.latent})
    for vae, pixels in hints_encoded(shapes[0], step.positive, step.negative, step.middle):
        yield coding_stage(Coding(vae, pixels, encodes=True), card)
    yield sampling_stage(question, card)


def sampling_stage(question: Question, card: Card) -> Stage:
    """A step of the sampler, with the model's budget if a node gave it one."""
    model, step = question.model, step_of(question)
    budget, beside = budget_of(model), step.beside
    staging = 0 if budget is None else budget.staging
    more = sum(int(one.model_size()) for one in beside)
    weights = int(model.model_size()) + more
    least = kept(model.model, ("least", streams_nothing()), lambda: least_on_card(model))
    least += sum(map(least_on_card, beside))
    stage = Stage(
        "sampling",
        Prediction(0, 0),
        weights,
        least if card.has_own_memory else weights,  # a CPU has nothing to stream from
        staging if streams_everything() else None if budget is None else budget.weights + more,
        model=id(model.model),
        beside=more,
        kind=kind_of_sampling(model),
        times=0.0,
        staging=staging,
    )
    try:
        return replace(
            stage,
            prediction=kept(model.model, step_key(step, card), lambda: predict_step(step, card, workspaces_for(card))),
        )
    except CannotPredict as error:
        batch, *rest = packed_shape(shapes_in_model(model, {"samples": step.latent}))
        shape = [batch * 2, *rest]
        guess = int(model.model.memory_required(shape))
        return replace(stage, prediction=Prediction(stage.weights, guess, live=guess), doubt=str(error))


def notes_of(question: Question) -> tuple[str, ...]:
    """What the prediction of a step assumes or leaves out, for people."""
    assumed = (*((SAME_EXPERTS,) if has_experts(question.model.model) else ()), *said_of_streaming())
    if question.positive is None:
        return ("positive is not connected: a prompt of usual length is assumed", *assumed)
    if not all(map(is_followed, every_control(question.positive, question.negative or ()))):
        return ("a ControlNet of another pack is not counted", *assumed)
    return assumed


def step_of(question: Question) -> Step:
    """The step that is asked about; :func:`notes_of` says what is assumed of it or left out."""
    positive = usual_conditioning(question.model) if question.positive is None else question.positive
    negative = question.negative if question.negative is not None else positive
    latent, mask = question.latent["samples"], question.latent.get("noise_mask")
    middle = question.middle or ()
    return Step(
        question.model, latent, positive, negative, question.cfg, mask, question.together, middle, question.block
    )


def text_stage(clip: Any, card: Card) -> Stage:
    """The text encoder, with a prompt of usual length."""
    if runs_on_the_cpu(clip.patcher, card):
        return text_stage(clip, own_card(CPU)).on_the_cpu()
    weights = int(clip.patcher.model_size())
    stage = Stage(
        "text", Prediction(weights, 0), weights, least_on_card(clip.patcher), model=id(clip.cond_stage_model),
        kind=kind_of("text", clip.cond_stage_model, min(map(str, clip.cond_stage_model.dtypes), default="")),
    )  # fmt: skip
    try:
        found = kept(
            clip.cond_stage_model,
            text_key(clip, card),
            lambda: predict_text(clip, card, workspaces=workspaces_for(card)),
        )
        return replace(stage, prediction=found)
    except CannotPredict as error:
        return replace(stage, doubt=str(error))


def coding_stage(coding: Coding, card: Card, allowed: int = 0) -> Stage:
    """A VAE's work. Its weights are loaded whole.

    Args:
        allowed: bytes that may be used; 0: all of the card. A low-memory VAE without a budget of its own takes what
            the card has: where that is more, it is predicted as it is done with these.
    """
    if runs_on_the_cpu(coding.vae.patcher, card):
        return coding_stage(coding, own_card(CPU)).on_the_cpu()
    stage = _coding_stage(coding, card)
    if not allowed or stage.peak <= allowed or stage.doubt:
        return stage
    room = (allowed - workspaces_for(card).constant(card)) / GB
    smaller = kept_to(coding, room) if room > 0 else None
    if smaller is None:
        return stage
    with suppress(BudgetTooSmall):
        found = _coding_stage(smaller, card)
        if found.peak <= allowed:
            return replace(found, up_to=stage.peak)
    return stage


def _coding_stage(coding: Coding, card: Card) -> Stage:
    vae, file_budget = coding.vae, coding.file_budget_gb

    def predicted() -> CodingPrediction:
        if file_budget is not None:
            by_file = predict_from_file if coding.encodes else predict_to_file
            return by_file(vae, coding.x, card, file_budget)
        return predict_coding(coding, card, workspaces_for(card))

    weights, (frames, disk) = int(vae.patcher.model_size()), taken_elsewhere(coding)
    stage = Stage(
        coding.work, Prediction(weights, 0), weights, weights, model=id(vae.first_stage_model),
        kind=kind_of(coding.work, vae.first_stage_model, vae.vae_dtype), frames=frames, disk=disk,
        or_tiles=card.has_own_memory and coding.tiles is None and file_budget is None and not works_in_less(vae),
        cuts=is_tileable(vae),
    )  # fmt: skip
    try:
        found = kept(vae.first_stage_model, coding_key(coding, card), predicted)
        return replace(stage, prediction=found.prediction, method=found.method)
    except CannotPredict as error:
        if coding.encodes:
            guess = int(vae.memory_used_encode(shape_of_pixels(vae, coding.x), vae.vae_dtype))
        else:
            guess = int(vae.memory_used_decode(coding.x.shape, vae.vae_dtype))
        return replace(stage, prediction=Prediction(weights, guess, live=guess), doubt=str(error))


def disk_free(card: Card) -> int:
    """Bytes that may be written where decoded videos and frames go; 0: the card is not this machine's."""
    if not is_here(card.device) or card.stands_for is not None:
        return 0
    folders = folder_paths.get_output_directory(), folder_paths.get_temp_directory()
    return max(1, min(free_in(Path(folder)) for folder in folders))
