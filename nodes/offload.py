"""Block Offload (VRAM budget per model)."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io, ui

from ..host.core.compat import shown_when_reused
from ..host.offload.block_offload import DEFAULT_AHEAD, GRANULARITIES, apply_offload
from .given import checked


class HeadroomOffload(io.ComfyNode):
    """Sets how much VRAM this model's weights may take; the rest is streamed from RAM at every step.

    ComfyUI's own loader keeps the budget. Where it does not prefetch (NVIDIA and AMD without dynamic VRAM), layers are
    copied while earlier ones compute, and what stays is spread evenly between them."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="HeadroomOffload",
            display_name="Block Offload (VRAM budget per model)",
            category="headroom",
            description=cls.__doc__,
            search_aliases=["block swap", "group offload", "vram limit", "sequential offload", "weight streaming"],
            inputs=[
                io.Model.Input("model", tooltip="From any loader. Another branch may have another budget, or none."),
                io.Float.Input(
                    "vram_budget_gb",
                    default=0.0,
                    min=0.0,
                    max=1024.0,
                    step=0.1,
                    round=0.001,
                    tooltip="GB (2^30 bytes) of VRAM for this model's weights, staging included; what the sampler needs"
                    " besides comes on top. 0: no limit, and an earlier node's is lifted. Flux has 22 GB of weights in"
                    " 16 bits and 11 in 8; SDXL 5 and 2.6.",
                ),
                io.Combo.Input(
                    "granularity",
                    options=list(GRANULARITIES),
                    default="auto",
                    tooltip="leaf: ComfyUI's own streaming, layer by layer. block: layers are copied ahead of their"
                    " use, as many blocks as prefetch allows. auto: block where that helps and fits.",
                ),
                io.Int.Input(
                    "prefetch",
                    default=DEFAULT_AHEAD,
                    min=0,
                    max=8,
                    optional=True,
                    advanced=True,
                    tooltip="How many blocks are copied ahead at most; fewer where fewer hide the copies as well."
                    " 0: ComfyUI's own streaming.",
                ),
            ],
            outputs=[
                io.Model.Output(tooltip="A copy of the model; the input is unchanged."),
                io.String.Output(
                    "report",
                    display_name="report",
                    tooltip="What stays on the card and what is streamed, how long a step's copies take at least, and"
                    " what would help.",
                ),
            ],
            **shown_when_reused(),
        )

    @classmethod
    @checked
    def execute(
        cls, model: Any, vram_budget_gb: float, granularity: str, prefetch: int = DEFAULT_AHEAD
    ) -> io.NodeOutput:
        result, report = apply_offload(model, vram_budget_gb, granularity, prefetch)
        return io.NodeOutput(result, report, ui=ui.PreviewText(report))
