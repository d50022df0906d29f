"""Training Memory: a diffusion model's blocks behind checkpoints while it is trained."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io, ui

from ..attention import parse_blocks
from ..host.core.compat import shown_when_reused
from ..host.core.device import GB
from ..host.training.checkpointed import apply_checkpoints
from ..host.training.plan import ATTENTION, BUDGET, EVERY_BLOCK, EVERY_KTH, FEED_FORWARD, TrainingPlan
from .given import checked
from .where import blocks_input


def _plans() -> list[io.DynamicCombo.Option]:
    option = io.DynamicCombo.Option
    k = io.Int.Input(
        "k",
        default=0,
        min=0,
        max=256,
        tooltip="Blocks behind one checkpoint, computed again together. 0: the root of their number, 7 for Flux's 57.",
    )
    budget = io.Float.Input(
        "vram_budget_gb",
        default=8.0,
        min=0.1,
        max=1024.0,
        step=0.1,
        round=0.001,
        tooltip="GB (2^30 bytes) for all that the training has on the card: weights, adapter, gradients, optimizer and"
        " activations. The first step of each size runs with every block; it tells what fits, and what too little"
        " would need.",
    )
    return [
        option(EVERY_BLOCK, []),
        option(EVERY_KTH, [k]),
        option(ATTENTION, []),
        option(FEED_FORWARD, []),
        option(BUDGET, [budget]),
    ]


class HeadroomTraining(io.ComfyNode):
    """Puts a model's blocks behind gradient checkpoints while a LoRA is trained on it: a step keeps what goes into each
    block and computes the block again in its backward, so that its memory holds one block instead of all.

    Connect it to Train LoRA. The gradients are the same bits as without checkpoints. Train LoRA's own
    gradient_checkpointing makes the whole model one checkpoint and saves next to nothing; inside these blocks it has
    no effect, on or off. Sampling is not changed."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="HeadroomTraining",
            display_name="Training Memory (checkpointing by block)",
            category="headroom",
            description=cls.__doc__,
            search_aliases=["gradient checkpointing", "train lora", "activation checkpointing", "lora training vram"],
            inputs=[
                io.Model.Input("model", tooltip="From any loader, on its way to Train LoRA; LoRAs may come before."),
                io.DynamicCombo.Input(
                    "plan",
                    options=_plans(),
                    tooltip="What is computed again. every block: least memory in most models, 1.2x to 1.5x of"
                    " a step's CPU time. every k-th block: fewer checkpoints, more blocks at once. attention or"
                    " feed-forward: only that part of each block. budget: as little as fits.",
                ),
                blocks_input(" Others are kept, and computed once."),
                io.Boolean.Input(
                    "checkpoints_in_ram",
                    default=False,
                    optional=True,
                    tooltip="Keeps what goes into each block in RAM until its backward, copied while blocks compute:"
                    " the card holds two of them, however many blocks there are. Plans every block, every k-th block"
                    " and budget; on a CPU it changes nothing.",
                ),
            ],
            outputs=[
                io.Model.Output(tooltip="A copy of the model; the input is unchanged."),
                io.String.Output(
                    "report",
                    display_name="report",
                    tooltip="Which blocks lie behind checkpoints. What a step takes is in the Memory Report after it.",
                ),
            ],
            **shown_when_reused(),
        )

    @classmethod
    @checked
    def execute(
        cls, model: Any, plan: dict[str, Any], blocks: str = "all", checkpoints_in_ram: bool = False
    ) -> io.NodeOutput:
        asked = TrainingPlan(
            plan["plan"], parse_blocks(blocks), plan.get("k", 0), int(plan.get("vram_budget_gb", 0) * GB),
            checkpoints_in_ram,
        )  # fmt: skip
        result, report = apply_checkpoints(model, asked)
        return io.NodeOutput(result, report, ui=ui.PreviewText(report))
