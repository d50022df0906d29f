"""Answers what rows of the run log ask: the prediction of the work that they measured."""

from __future__ import annotations

import copy

from comfy import model_patcher

from ...memory import Row
from ...memory.prediction import Stage
from ..measure.questions import AskedCoding, AskedSampling
from ..measure.speeds import note_run, steps_as_predicted
from ..prediction.stages import Question, coding_stage, own_card, sampling_stage
from ..prediction.vae import Coding


def ask(row: Row) -> None:
    """Has a row's work predicted, once: strips, of which the row knows the plan, are followed to the byte.

    What was known stays where the model is gone or the answer is in doubt.

    Raises:
        CannotPredict, ValueError, RuntimeError: the prediction failed.
    """
    asked, row.question = row.question, None
    if asked is None:
        return
    if isinstance(asked, AskedSampling):
        _ask_of_sampling(row, asked)
    elif isinstance(asked, AskedCoding):
        stage = _coding(asked)
        if stage is not None and not stage.doubt:
            row.predicted = stage.prediction


def _ask_of_sampling(row: Row, asked: AskedSampling) -> None:
    """What a step takes, and how long; how long it took is kept, so that later predictions are nearer."""
    stage, model = _sampling(asked), asked.model()
    if stage is None or model is None or stage.doubt:
        return
    row.predicted = stage.prediction
    # Copies come on top, and the mean of steps that are not alike is of none of them.
    copies = row.streams or row.paged is not None
    if row.step_seconds is None or copies or asked.partly or not steps_as_predicted(model):
        return
    card = own_card(model.load_device)
    row.expected = card.speed.seconds(stage.prediction.work, stage.kind)
    note_run(card, stage.kind, stage.prediction.work, row.step_seconds)


def _sampling(asked: AskedSampling) -> Stage | None:
    model = asked.model()
    if model is None:
        return None
    latent = {"samples": asked.latent, **({} if asked.mask is None else {"noise_mask": asked.mask})}
    alone = asked.negative is None
    question = Question(
        model, latent, positive=asked.positive, negative=asked.positive if alone else asked.negative,
        cfg=1.0 if alone else asked.cfg,
    )  # fmt: skip
    return sampling_stage(question, own_card(model.load_device))


def _coding(asked: AskedCoding) -> Stage | None:
    module = asked.module()
    if module is None:
        return None
    vae = copy.copy(asked.bare)
    vae.first_stage_model, vae.patcher = module, model_patcher.ModelPatcher(module, *asked.devices)
    vae.patcher.object_patches.update(asked.patches)
    return coding_stage(Coding(vae, asked.x, asked.encodes, follow=True), own_card(vae.device))
