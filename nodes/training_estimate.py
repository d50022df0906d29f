"""Will Training Fit?"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import torch
from comfy_api.latest import io

from ..host.core.device import GB
from ..host.core.latents import first_part
from ..host.prediction.stages import chosen_card
from ..host.sampling.conditioning import usual_conditioning
from ..host.training.estimate import forecast_training, notes_of
from ..host.training.settings import ALGORITHMS, LORA_DTYPES, OPTIMIZERS, TRAINING_DTYPES, TrainingSettings
from ..host.training.without_data import Training
from ..memory.prediction import GPU_CHOICES, CannotPredict
from ..memory.render import draw_training, render_training, training_bar, training_sentence
from .card import gpu_input, limit_input, vram_input
from .face import face
from .given import checked

ACTIONS = ("report", "stop")
log = logging.getLogger(__name__)
ASSUMED = "positive is not connected: a prompt of usual length is assumed"


class HeadroomTrainingEstimate(io.ComfyNode):
    """Predicts what Train LoRA behind it would take on the card: weights, adapter, gradients, optimizer, activations,
    by every plan of checkpoints, before it runs. Nothing is trained; each kind of block is followed once, forward and
    backward, without data.

    Put it between the model and Train LoRA, behind Training Memory if there is one, and give both the same settings.
    With if_too_big = stop it ends the prompt where the training would not fit, and says what would."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="HeadroomTrainingEstimate",
            display_name="Will Training Fit?",
            category="headroom",
            description=cls.__doc__,
            search_aliases=["training vram estimate", "lora training memory", "train lora out of memory", "zero stage"],
            inputs=[
                io.Model.Input("model", tooltip="As Train LoRA gets it: Training Memory before this node counts."),
                io.Latent.Input(
                    "latents", tooltip="The pictures, or an empty latent of their size. The largest decides."
                ),
                io.Int.Input(
                    "batch_size",
                    default=1,
                    min=1,
                    max=10000,
                    tooltip="Pictures per step, as in Train LoRA. All of them count, however few are connected.",
                ),
                io.Int.Input("rank", default=8, min=1, max=128, tooltip="The adapter's rank, as in Train LoRA."),
                io.Combo.Input("algorithm", options=list(ALGORITHMS), default=ALGORITHMS[0], tooltip="Of the adapter."),
                io.Combo.Input(
                    "optimizer",
                    options=list(OPTIMIZERS),
                    default=OPTIMIZERS[0],
                    tooltip="AdamW and Adam keep two tensors of each that is trained, RMSprop one, SGD none.",
                ),
                io.Combo.Input(
                    "training_dtype",
                    options=list(TRAINING_DTYPES),
                    default=TRAINING_DTYPES[0],
                    tooltip="Type that the training computes in. fp32 doubles the activations.",
                ),
                io.Combo.Input(
                    "lora_dtype",
                    options=list(LORA_DTYPES),
                    default=LORA_DTYPES[0],
                    tooltip="Type in which adapter, gradients and optimizer are kept. fp32 doubles them.",
                ),
                io.Boolean.Input(
                    "gradient_checkpointing",
                    default=True,
                    tooltip="Train LoRA's own, of the whole model. With Training Memory before, that counts instead.",
                ),
                io.Boolean.Input("bypass_mode", default=False, tooltip="The adapter runs beside the weights."),
                io.Combo.Input(
                    "if_too_big",
                    options=list(ACTIONS),
                    default="report",
                    tooltip="stop: ends the prompt before the training where it would not fit.",
                ),
                io.Conditioning.Input("positive", optional=True, tooltip="Its length counts. Unconnected: 256 tokens."),
                vram_input("GB (2^30 bytes) of the card. 0: this card's total."),
                gpu_input("Another card. Set vram_gb with it. The model's dtype stays as loaded here."),
                limit_input("Share of the card that may be used, 0.1 to 1: 0.85 of 8 GB are 6.8."),
            ],
            outputs=[
                io.Model.Output("passed", display_name="model", tooltip="The model, unchanged."),
                io.String.Output(
                    "report",
                    display_name="report",
                    tooltip="Every plan of checkpoints, every optimizer, and several devices by ZeRO's formulas.",
                ),
                io.Float.Output("peak_gb", display_name="peak_gb", tooltip="GB (2^30 bytes) by the chosen plan."),
                io.Float.Output("least_vram_gb", display_name="least_vram_gb", tooltip="GB by the least plan."),
                io.Float.Output("activations_gb", display_name="activations_gb", tooltip="GB of the blocks."),
                io.Float.Output(
                    "adapter_gb", display_name="adapter_gb", tooltip="GB of adapter, gradients, optimizer."
                ),
                io.Float.Output(
                    "operations", display_name="operations", tooltip="Ratio to none computed again; no time."
                ),
                io.String.Output("verdict", display_name="verdict", tooltip="fits or does_not_fit."),
                io.Image.Output("chart", display_name="chart", tooltip="A bar for each plan; dashed: the limit."),
            ],
            is_output_node=True,
            is_input_list=True,  # a dataset is one question
        )

    @classmethod
    @checked
    def execute(
        cls, model: list[Any], latents: list[Any], positive: list[Any] | None = None, **widgets: list[Any]
    ) -> io.NodeOutput:
        texts = [text for one in positive or () for text in one or ()]
        return _told(model[0], latents, texts, **{name: values[0] for name, values in widgets.items()})


def _told(
    model: Any,
    latents: list[Any],
    positive: list[Any],
    if_too_big: str = ACTIONS[0],
    vram_gb: float = 0.0,
    gpu: str = GPU_CHOICES[0],
    limit: float = 0.85,
    **widgets: Any,
) -> io.NodeOutput:
    card = chosen_card(gpu, vram_gb, model.load_device)
    samples = [first_part(one["samples"]) for one in latents]
    texts = positive or usual_conditioning(model)
    asked = Training.of_set(model, samples, texts, TrainingSettings.of(widgets))
    try:
        forecast = forecast_training(asked, card, limit)
    except CannotPredict as error:
        raise ValueError(
            f"model: what a training takes cannot be predicted, {error}; leave this node out, or take another model"
        ) from error
    notes = (*notes_of(asked, card), *([] if positive else [ASSUMED]))
    report = render_training(forecast, notes)
    if if_too_big == "stop" and not forecast.fits(forecast.way):
        log.info(report)
        raise ValueError(f"stopped before the training: {training_sentence(forecast)}")
    chart = torch.from_numpy(np.asarray(draw_training(forecast), dtype=np.float32) / 255.0)[None]
    learnt = forecast.adapter + forecast.gradients + forecast.states
    sizes = (forecast.peak(forecast.way), forecast.peak(forecast.least), forecast.way.activations, learnt)
    verdict = "fits" if forecast.fits(forecast.way) else "does_not_fit"
    shown = face(report, training_bar(forecast))
    return io.NodeOutput(
        model, report, *(size / GB for size in sizes), forecast.way.operations, verdict, chart, ui=shown
    )
