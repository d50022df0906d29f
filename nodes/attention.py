"""Attention by Block and Step."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from ..host.attention.backend import BACKEND_CHOICES, apply_attention, choices_tooltip
from .given import checked
from .where import blocks_input, step_inputs


class HeadroomAttention(io.ComfyNode):
    """Chooses how a model computes attention, in which blocks and in which steps. Every backend but sage and
    comfy_kitchen, which quantise, gives the same picture up to float rounding; they differ in memory and speed.

    An attention override of another node stays in force wherever this one does not apply. Put a Memory Report last
    to see what ran."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="HeadroomAttention",
            display_name="Attention by Block and Step",
            category="headroom",
            description=cls.__doc__,
            search_aliases=["sliced attention", "attention slicing", "low memory attention", "sdpa", "flash attention"],
            inputs=[
                io.Model.Input("model", tooltip="From any loader; what other nodes patched in it stays."),
                io.Combo.Input(
                    "backend",
                    options=list(BACKEND_CHOICES),
                    default="auto",
                    tooltip=f"{choices_tooltip()} What cannot run here falls back, and the report says to what.",
                ),
                blocks_input(),
                *step_inputs(),
                io.Int.Input(
                    "slice_rows",
                    default=0,
                    min=0,
                    max=65536,
                    step=16,
                    advanced=True,
                    tooltip="Query rows per slice of the sliced backend. 0: as many as make 2 MiB of scores on a CPU,"
                    " 256 MiB on a GPU.",
                ),
                io.Int.Input(
                    "min_tokens",
                    default=0,
                    min=0,
                    max=1048576,
                    advanced=True,
                    tooltip="Calls with fewer query tokens stay with the host. A 1024 px picture has 16384 tokens in a"
                    " UNet's first blocks and 4096 in Flux.",
                ),
            ],
            outputs=[io.Model.Output(tooltip="A copy of the model; the input is unchanged.")],
        )

    @classmethod
    @checked
    def execute(cls, model: Any, **settings: Any) -> io.NodeOutput:
        return io.NodeOutput(apply_attention(model, **settings))
