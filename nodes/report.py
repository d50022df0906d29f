"""Memory Report."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from ..host.core.compat import executing_node
from ..host.planning.report import memory_report
from .face import face
from .given import checked


class HeadroomReport(io.ComfyNode):
    """Says what ran in this prompt before this node: attention backend per block and why, how many calls reached
    Attention by Block and Step, VAE method and tiles, time, and measured peak memory. Passes its input through
    unchanged: put it last, behind the decode."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        anything = io.MatchType.Template("anything")
        return io.Schema(
            node_id="HeadroomReport",
            display_name="Memory Report",
            category="headroom",
            description=cls.__doc__,
            search_aliases=["vram usage", "peak memory", "profiler", "which attention"],
            inputs=[
                io.MatchType.Input("anything", anything, tooltip="Passed through; all nodes before it are reported."),
                io.Model.Input(
                    "model", optional=True, tooltip="Names this model's Headroom settings in the report's head."
                ),
            ],
            outputs=[
                io.MatchType.Output(anything, id="passed", display_name="anything", tooltip="What came in, unchanged."),
                io.String.Output(
                    "report",
                    display_name="report",
                    tooltip="Each node that was measured: what ran and why, time, peak; those reused or not measured.",
                ),
                io.Image.Output(
                    "chart", display_name="chart", tooltip="Time and peak memory of the nodes that were measured."
                ),
            ],
            hidden=[io.Hidden.unique_id, io.Hidden.dynprompt],
            is_output_node=True,
        )

    @classmethod
    @checked
    def execute(cls, anything: Any, model: Any = None) -> io.NodeOutput:
        prompt, node = executing_node()
        report = memory_report(prompt, node, cls.hidden.dynprompt, model)
        return io.NodeOutput(anything, report.text, report.chart, ui=face(report.text, report.bar))
