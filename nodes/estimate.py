"""Will It Fit?"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import torch
from comfy_api.latest import io

from ..host.core.compat import executing_node
from ..host.core.device import ram_total
from ..host.planning.decode_in_graph import decode_in_graph
from ..host.prediction.stages import Question, chosen_card, estimate
from ..host.workflow.running import around
from ..memory.prediction import GPU_CHOICES, Verdict
from ..memory.render import advise, draw_forecast, forecast_bar, render_forecast
from .card import cfg_input, gpu_input, limit_input, vram_input
from .face import face
from .given import checked

GB = 2**30
ACTIONS = ("report", "stop")
log = logging.getLogger(__name__)


class HeadroomEstimate(io.ComfyNode):
    """Predicts the peak memory of the sampling and decoding behind it, in about a second, without running them.

    Put it between the latent and the sampler: it passes the latent through, so it runs first. For this machine's card
    or for another one. With if_too_big = stop it ends the prompt before sampling where it would not fit, and says what
    would."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="HeadroomEstimate",
            display_name="Will It Fit?",
            category="headroom",
            description=cls.__doc__,
            search_aliases=["vram estimate", "predict memory", "out of memory", "how much vram"],
            inputs=[
                io.Model.Input("model", tooltip="As the sampler gets it: casting, budget and attention nodes count."),
                io.Latent.Input("samples", tooltip="What will be sampled; passed through."),
                io.Vae.Input("vae", optional=True, tooltip="Connect it to have the decode predicted too."),
                io.Clip.Input("clip", optional=True, tooltip="Connect it to have the text encoder counted too."),
                io.Conditioning.Input("positive", optional=True, tooltip="Its length counts. Unconnected: 256 tokens."),
                io.Conditioning.Input("negative", optional=True, tooltip="Unconnected: like the positive."),
                cfg_input(),
                io.Combo.Input(
                    "if_too_big",
                    options=list(ACTIONS),
                    default="report",
                    tooltip="stop: ends the prompt before sampling where it would not fit.",
                ),
                vram_input("GB (2^30 bytes) of the card. 0: this card's total."),
                io.Float.Input(
                    "ram_gb",
                    default=0.0,
                    min=0.0,
                    max=4096.0,
                    step=1.0,
                    optional=True,
                    advanced=True,
                    tooltip="GB of the machine's memory, which holds what is not on the card. 0: this machine's.",
                ),
                gpu_input(
                    "Another card's kernels: sm75 RTX 20, sm80 A100, sm86 RTX 30, sm89 RTX 40, sm90 H100, sm120"
                    " RTX 50. Set vram_gb with it. The model's dtype stays as loaded here."
                ),
                limit_input(
                    "Share of the card that may be used, 6.8 of 8 GB at 0.85; the rest is for the driver, the screen"
                    " and others."
                ),
            ],
            outputs=[
                io.Latent.Output("passed", display_name="samples", tooltip="The latent, unchanged."),
                io.String.Output(
                    "report",
                    display_name="report",
                    tooltip="Each stage as a range, the module and the operator at its peak, and what would help.",
                ),
                io.Float.Output(
                    "peak_gb",
                    display_name="peak_gb",
                    tooltip="GB (2^30 bytes) with all weights of a stage on the card.",
                ),
                io.Float.Output(
                    "least_vram_gb", display_name="least_vram_gb", tooltip="GB of activations and the largest layer."
                ),
                io.Float.Output("activations_gb", display_name="activations_gb", tooltip="GB without any weights."),
                io.Float.Output(
                    "streamed_gb_per_step",
                    display_name="streamed_gb_per_step",
                    tooltip="GB of weights that are copied from RAM at every step.",
                ),
                io.Float.Output("ram_gb_needed", display_name="ram_gb", tooltip="GB for the weights of all models."),
                io.String.Output("verdict", display_name="verdict", tooltip="resident, streams or does_not_fit."),
                io.Image.Output(
                    "chart",
                    display_name="chart",
                    tooltip="Each stage, its operators from left to right; the dashed line is the limit.",
                ),
            ],
            hidden=[io.Hidden.unique_id, io.Hidden.dynprompt],
            is_output_node=True,
        )

    @classmethod
    @checked
    def execute(
        cls,
        model: Any,
        samples: Any,
        cfg: float,
        if_too_big: str,
        vae: Any = None,
        clip: Any = None,
        positive: Any = None,
        negative: Any = None,
        vram_gb: float = 0.0,
        ram_gb: float = 0.0,
        gpu: str = GPU_CHOICES[0],
        limit: float = 0.85,
    ) -> io.NodeOutput:
        card = chosen_card(gpu, vram_gb, model.load_device)
        node = executing_node()[1]
        decode = None if vae is None else decode_in_graph(node, around(node, cls.hidden.dynprompt), vae, samples)
        question = Question(model, samples, vae, clip, positive, negative, cfg, decode)
        answer = estimate(question, card, limit, ram_total(ram_gb))
        forecast, report = answer.forecast, render_forecast(answer.forecast, answer.notes)
        if if_too_big == "stop" and forecast.verdict is Verdict.DOES_NOT_FIT:
            log.info(report)
            raise ValueError(f"stopped before sampling: {next(advise(forecast))}")
        chart = torch.from_numpy(np.asarray(draw_forecast(forecast), dtype=np.float32) / 255.0)[None]
        sizes = (forecast.peak, forecast.least, forecast.activations, forecast.streamed_per_step, forecast.ram_needed)
        shown = face(report, forecast_bar(forecast))
        return io.NodeOutput(samples, report, *(size / GB for size in sizes), forecast.verdict.value, chart, ui=shown)
