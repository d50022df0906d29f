"""Nodes that sample and train, what guides them, and the plan of Make It Fit."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from ....graph.kinds import GUIDED_SAMPLER, GUIDERS
from ....graph.settings import FitSettings
from ....memory.prediction import THIS_MACHINE, Stage, named_card
from ....memory.render import why_nothing_fits
from ...core.device import GB
from ...core.latents import first_part, joined, shapes_in_model
from ...planning.fit import apply_fit, find_fit
from ...prediction.header_loading import loading_headers
from ...prediction.stages import Question, notes_of, sampling_stage, sampling_stages
from ...training.estimate import training_stage
from ...training.settings import TrainingSettings
from ...training.without_data import Training
from ..calling import Outputs
from ..findings import NOTHING, Findings
from ..inputs import Guided, Inputs, NotFollowed, of_the_workflow
from ..steps import calls_of
from .seedvr import PARTS

NESTED = "nested"  # a style of guidance by two texts
MOST_FRAMES = 2**20  # of a block


@dataclass(frozen=True)
class BlockByBlock:
    """A SAMPLER that goes through a video block by block.

    Attributes:
        frames: of a latent, in a block.
    """

    frames: int


def sample_by_blocks(found: Findings, kind: str, inputs: Inputs) -> Outputs:
    """A sampler for models that look back on what they have sampled."""
    frames = inputs.number("num_frame_per_block")
    if not 1 <= frames <= MOST_FRAMES:
        raise NotFollowed(f"{kind}: num_frame_per_block is {frames:g}; a block has a frame at least")
    return (BlockByBlock(int(frames)),)


def guide(found: Findings, kind: str, inputs: Inputs) -> Outputs:
    """What a guider hands to a sampler."""
    asked = GUIDERS[kind]
    positive = inputs.conditioning(asked.positive)
    negative = inputs.conditioning(asked.negative) if asked.negative else positive
    return (Guided(inputs.model(), positive, negative, inputs.number("cfg") if asked.guided else 1.0),)


def guide_by_two(found: Findings, kind: str, inputs: Inputs) -> Outputs:
    """What a guider by two texts hands to a sampler: three conditionings, or two where the negative counts nothing."""
    texts = (inputs.conditioning(name) for name in ("cond1", "negative", "cond2"))
    cfg = inputs.number("cfg_cond2_negative")
    model, (positive, negative, middle) = inputs.model(), texts
    # In the nested style the negative is computed whatever it counts.
    return (Guided(model, positive, negative, math.inf if inputs.get("style") == NESTED else cfg, middle),)


def guide_by_two_models(found: Findings, kind: str, inputs: Inputs) -> Outputs:
    """What a guider hands to a sampler whose negative another model computes; without a text where it has none."""
    model, positive, cfg = inputs.model(), inputs.conditioning("positive"), inputs.number("cfg")
    negative = [[None, {}]] if inputs.get("negative") is None else inputs.conditioning("negative")
    if inputs.get("model_negative") is None:
        return (Guided(model, positive, negative, cfg),)
    other = None if cfg == 1.0 else Guided(inputs.model("model_negative"), negative, negative, 1.0)
    return (Guided(model, positive, positive, 1.0, other=other),)


def _by_turns(stage: Stage, other: Stage) -> Stage:
    """Two models that are called one after the other at each step: the weights of both are wanted all the time."""
    weights = stage.weights + other.weights
    budget = None if stage.budget is other.budget is None else stage.resident + other.resident
    larger = max(stage.prediction, other.prediction, key=lambda one: one.activations + one.constant)
    work = stage.prediction.work + other.prediction.work
    both = replace(larger, weights=stage.prediction.weights + other.prediction.weights, calls=2, work=work)
    beside = stage.beside + other.beside
    least, doubt = max(stage.least_weights, other.least_weights), stage.doubt or other.doubt
    return replace(
        stage,
        prediction=both,
        weights=weights,
        least_weights=least,
        budget=budget,
        method="two models",
        doubt=doubt,
        beside=beside,
    )


def sample(found: Findings, kind: str, inputs: Inputs) -> Outputs:
    """A step of a sampler, whose LATENT has the shape that the model gives it."""
    asked = inputs.guided() if kind == GUIDED_SAMPLER else inputs.guidance()
    latent, sampler = inputs.latent("latent_image"), inputs.get("sampler")
    question = Question(
        asked.model, latent, positive=asked.positive, negative=asked.negative, middle=asked.middle, cfg=asked.cfg,
        block=sampler.frames if isinstance(sampler, BlockByBlock) else 0,
    )  # fmt: skip
    found.notes += notes_of(question)
    *hints, stage = sampling_stages(question, found.card)
    for hint in hints:
        found.add(hint)
    if asked.other is not None:
        of_other = replace(question, model=asked.other.model, positive=asked.other.positive, negative=None)
        stage = _by_turns(stage, sampling_stage(of_other, found.card))
    shapes = shapes_in_model(asked.model, latent)  # a picture for a video's model comes back as a video of one frame
    times = calls_of(inputs) * _blocks(question.block, shapes[0]) * latent.get(PARTS, 1)
    found.add(replace(stage, times=times))
    with found.mode:
        result = {**latent, "samples": joined([torch.empty(shape) for shape in shapes])}
    return result, result


def _blocks(frames: int, shape: torch.Size) -> float:
    """How many times a prediction's work is done for each step: it is of the first and of the last block."""
    blocks = math.ceil(shape[2] / frames) if frames else 1
    return blocks / min(blocks, 2)


def train(found: Findings, kind: str, inputs: Inputs) -> Outputs:
    """A step of the host's training."""
    with of_the_workflow(kind):
        settings = TrainingSettings.of(inputs)
    latents, positive = first_part(inputs.latent("latents")["samples"]), inputs.conditioning("positive")
    stage, more = training_stage(Training(inputs.model(), latents, positive, settings), found.card)
    found.notes += more
    found.add(stage)
    return NOTHING


def fit(found: Findings, kind: str, inputs: Inputs) -> Outputs:
    """Make It Fit, for the card that is asked about, unless the node names one."""
    given = {name: inputs[name] for name in ("vram_gb", "gpu", "limit") if name in inputs}
    asked = FitSettings(inputs["quality"], **given)
    asked.check()
    card = found.card if not asked.vram_gb else replace(found.card, total=int(asked.vram_gb * GB))
    card = card if asked.gpu == THIS_MACHINE else named_card(asked.gpu, card.total / GB, card.reserved)
    model, vae = inputs.model(), inputs.vae()
    positive, negative = (
        None if inputs.get(name) is None else inputs.conditioning(name) for name in ("positive", "negative")
    )
    latent, cfg = inputs.latent("samples"), inputs.number("cfg")
    question = Question(model, latent, vae, positive=positive, negative=negative, cfg=cfg)
    question, lines = found.for_all_sizes(question)
    found.notes += [f"{kind}: {line}" for line in lines]
    answer = find_fit(question, card, asked.quality, asked.limit)
    if not answer.found:
        found.refused = True
        found.notes.append(f"{kind}: {why_nothing_fits(answer)}")
        return model, vae, *NOTHING
    found.notes.append(f"{kind}: {answer.summary}")
    with loading_headers(found.mode, found.card):
        return *apply_fit(model, vae, answer), *NOTHING
