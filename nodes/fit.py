"""Make It Fit."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from comfy_api.latest import io

from ..graph.fit.cfg_source import WIDGET
from ..graph.settings import VERIFY
from ..host.core.compat import executing_node, shown_when_reused
from ..host.planning.behind import for_all_sizes
from ..host.planning.decode_in_graph import decode_in_graph
from ..host.planning.fit import apply_fit, find_fit
from ..host.planning.pilot import find_verified_fit
from ..host.prediction.stages import Question, chosen_card
from ..host.workflow.dry_run import outputs_of
from ..host.workflow.running import around
from ..memory.prediction import GPU_CHOICES, QUALITIES
from ..memory.render import draw_forecast, forecast_bar, render_fit, why_nothing_fits
from .card import cfg_input, cfg_source_input, gpu_input, limit_input, vram_input
from .face import face
from .given import checked


class HeadroomFit(io.ComfyNode):
    """Chooses what makes sampling and decoding fit this card and loses least: attention, guidance in turns, a VRAM
    budget with block prefetch, an exact VAE in strips; casting and tiles only where quality allows them. It predicts
    each way before anything runs, applies the best, and says why.

    Put it between the loader and the sampler, and use its VAE for the decode."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="HeadroomFit",
            display_name="Make It Fit",
            category="headroom",
            description=cls.__doc__,
            search_aliases=["low vram", "out of memory", "auto settings", "lowvram", "8 gb"],
            inputs=[
                io.Model.Input("model", tooltip="Nodes of ours before this one win: what they set stays."),
                io.Vae.Input("vae", tooltip="Its decode is planned too. A Low-Memory VAE before keeps its method."),
                io.Latent.Input(
                    "samples",
                    tooltip="What the sampler will get: its size counts. Where others behind this node sample another"
                    " size, as after an upscale, the plan is for the one that takes most.",
                ),
                io.Conditioning.Input("positive", optional=True, tooltip="Its length counts. Without: 256 tokens."),
                io.Conditioning.Input("negative", optional=True, tooltip="Without: like the positive."),
                cfg_input(),
                io.Combo.Input(
                    "quality",
                    options=list(QUALITIES),
                    default="exact",
                    tooltip="exact: the same picture up to float rounding. near_exact: also 8-bit weights (42 dB"
                    " int8_convrot, 31 dB float8) and 16-bit maps in the VAE (60 dB). any: also 4-bit weights (20 dB)"
                    " and feathered tiles. What loses less always comes first.",
                ),
                vram_input("GB (2^30 bytes) of the card. 0: this card's total, never what happens to be free."),
                gpu_input(
                    "Another card's kernels and speed: sm75 RTX 20, sm80 A100, sm86 RTX 30, sm89 RTX 40, sm90"
                    " H100, sm120 RTX 50. Set vram_gb with it."
                ),
                limit_input("Share of the card that may be used, 0.1 to 1: 0.85 of 8 GB are 6.8."),
                cfg_source_input(),
                io.Combo.Input(
                    "verify",
                    options=list(VERIFY),
                    default=VERIFY[0],
                    optional=True,
                    advanced=True,
                    tooltip="first_step: a step of the plan is measured before the rest runs. If its memory is off by"
                    " 5 % or more, the plan is made again from the measurement, which is kept for next time. Costs the"
                    " time of some steps. Works only for this machine's card.",
                ),
            ],
            outputs=[
                io.Model.Output(tooltip="A copy of the model that runs as planned; the input is unchanged."),
                io.Vae.Output(tooltip="A copy of the VAE that decodes as planned, behind any node."),
                io.String.Output("plan", display_name="plan", tooltip="What was chosen and why, and the other ways."),
                io.Image.Output("chart", display_name="chart", tooltip="Weights and activations against the limit."),
            ],
            hidden=[io.Hidden.dynprompt],
            **shown_when_reused(),
        )

    @classmethod
    @checked
    def execute(
        cls,
        model: Any,
        vae: Any,
        samples: Any,
        cfg: float,
        quality: str,
        positive: Any = None,
        negative: Any = None,
        vram_gb: float = 0.0,
        gpu: str = GPU_CHOICES[0],
        limit: float = 0.85,
        cfg_source: str = WIDGET,  # the server has set cfg by it before the prompt was queued
        verify: str = VERIFY[0],
    ) -> io.NodeOutput:
        card = chosen_card(gpu, vram_gb, model.load_device)
        node = executing_node()[1]
        running = around(node, getattr(cls.hidden, "dynprompt", None))
        decode = decode_in_graph(node, running, vae, samples)
        question = Question(model, samples, vae, positive=positive, negative=negative, cfg=cfg, decode=decode)
        sizes: tuple[str, ...] = ()
        if running is not None:
            question, sizes = for_all_sizes(question, card, running, node, partial(outputs_of, card=card))
        steps: tuple[str, ...] = ()
        if verify == VERIFY[0]:
            fit = find_fit(question, card, quality, limit)
        else:
            fit, steps = find_verified_fit(question, card, quality, limit)
        if not fit.found:
            raise ValueError(why_nothing_fits(fit))
        fitted, planned = apply_fit(model, vae, fit)
        text = "\n".join([render_fit(fit), *sizes, *(f"verified: {line}" for line in steps)])
        chart = torch.from_numpy(np.asarray(draw_forecast(fit.forecast, "Make it fit"), dtype=np.float32) / 255.0)[None]
        return io.NodeOutput(fitted, planned, text, chart, ui=face(text, forecast_bar(fit.forecast)))
