"""The inputs that say for which card a node plans or predicts, the same on every node that has them."""

from __future__ import annotations

from comfy_api.latest import io

from ..graph.fit.cfg_source import GRAPH, WIDGET
from ..memory.prediction import GPU_CHOICES


def cfg_input() -> io.Float.Input:
    return io.Float.Input(
        "cfg",
        default=8.0,
        min=0.0,
        max=100.0,
        step=0.1,
        tooltip="The sampler's. At 1 the negative is not computed, which halves the activations.",
    )


def cfg_source_input() -> io.Combo.Input:
    return io.Combo.Input(
        "cfg_source",
        options=[WIDGET, GRAPH],
        default=WIDGET,
        optional=True,
        advanced=True,
        tooltip="graph: cfg is what the sampler or guider behind this node says when the prompt is queued, 1 for a"
        " BasicGuider, the largest of several. widget: cfg as set here.",
    )


def vram_input(tooltip: str) -> io.Float.Input:
    return io.Float.Input(
        "vram_gb", default=0.0, min=0.0, max=1024.0, step=0.5, optional=True, advanced=True, tooltip=tooltip
    )


def gpu_input(tooltip: str) -> io.Combo.Input:
    return io.Combo.Input(
        "gpu", options=list(GPU_CHOICES), default=GPU_CHOICES[0], optional=True, advanced=True, tooltip=tooltip
    )


def limit_input(tooltip: str) -> io.Float.Input:
    return io.Float.Input(
        "limit", default=0.85, min=0.1, max=1.0, step=0.01, optional=True, advanced=True, tooltip=tooltip
    )
