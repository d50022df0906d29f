"""Compare Strategies."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io, ui

from ..attention import BACKENDS
from ..host.attention.backend import BACKEND_CHOICES
from ..host.planning.compare import Work, compare
from ..host.planning.strategies import Switches
from .given import checked


class HeadroomCompare(io.ComfyNode):
    """Runs one step of the model under several strategies and shows, for each, its peak memory, its time, and how far
    its result is from that of the model as it is.

    The step is the sampler's, with guidance, at the middle of sampling. The model is unchanged. What cannot run here
    is a line that says why."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        quantising = [name for name, backend in BACKENDS.items() if not backend.exact]
        return io.Schema(
            node_id="HeadroomCompare",
            display_name="Compare Strategies",
            category="headroom",
            description=cls.__doc__,
            search_aliases=[
                "benchmark",
                "compare attention",
                "which is fastest",
                "vram benchmark",
                "quantization error",
            ],
            inputs=[
                io.Model.Input("model", tooltip="As the sampler gets it. As it is, it is the first row: 1.00x."),
                io.Latent.Input(
                    "samples",
                    tooltip="Its size decides: attention scores grow with its fourth power, 16 times at twice the"
                    " side. A noise mask is ignored.",
                ),
                io.Conditioning.Input(
                    "positive", tooltip="The prompt. Its length counts: 77 tokens are 2 % beside the 4096 of a picture."
                ),
                io.Conditioning.Input("negative", tooltip="Not computed where cfg is 1."),
                io.Float.Input(
                    "cfg",
                    default=8.0,
                    min=0.0,
                    max=100.0,
                    step=0.1,
                    tooltip="The sampler's. At 1 the negative is not computed, which halves the work; above, guidance"
                    " makes errors larger, as in sampling.",
                ),
                io.Boolean.Input(
                    "dtypes",
                    default=True,
                    tooltip="Computing in float32, float16 and bfloat16, those that differ from the model's own: up to"
                    " 3 rows. A float32 model is stored in the 16 bits too, half its size.",
                ),
                io.String.Input(
                    "slice_sizes",
                    default="512, 2048",
                    tooltip="Query rows at a time of sliced attention, one row of the table each; 512 of 4096 hold 13 %"
                    " of the score matrix. Whole numbers with commas; empty: none.",
                ),
                io.Boolean.Input(
                    "backends",
                    default=True,
                    tooltip=f"Every attention of Attention by Block and Step, {len(BACKEND_CHOICES)} rows. Exact ones"
                    f" are 80 dB and more from the first in float32; {' and '.join(quantising)} quantise.",
                ),
                io.Boolean.Input(
                    "casting",
                    default=False,
                    tooltip="Weights in float8_e4m3fn_scaled, int8_convrot, mxfp8 (8 bits), nvfp4 and asym_w4a8_int8"
                    " (4.5 bits), as Layerwise Casting stores them: 5 rows. Each needs the memory of a second copy,"
                    " 0.28x to 0.52x of 16 bits, for as long as its row runs.",
                ),
            ],
            outputs=[
                io.String.Output(
                    "table",
                    display_name="table",
                    tooltip="A row for each strategy: peak, time, bytes of the weights, error and signal to noise"
                    " against the first row; what could not run, and why.",
                ),
                io.Image.Output(
                    "chart", display_name="chart", tooltip="The rows as bars, each against the longest of its kind."
                ),
            ],
            is_output_node=True,
        )

    @classmethod
    @checked
    def execute(
        cls, model: Any, samples: Any, positive: Any, negative: Any, cfg: float, **switches: Any
    ) -> io.NodeOutput:
        table, chart = compare(Work(model, samples, positive, negative, cfg), Switches(**switches))
        shown = ui.PreviewText(table).as_dict() | ui.PreviewImage(chart, cls=cls).as_dict()
        return io.NodeOutput(table, chart, ui=shown)
