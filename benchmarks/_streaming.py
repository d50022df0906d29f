"""Sampling on an emulated card with some of the weights on it: Block Offload beside the host's own streaming."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

GB = 2**30
SHARES = (0.75, 0.5, 0.25)  # of the weights
# A quarter of Flux's width and about that of its blocks: a step's compute and its copies, which go by tokens and bytes,
# keep their proportion, and the weights fit a build machine.
WIDTH, HEADS, DOUBLE, SINGLE, TEXT = 768, 6, 5, 10, 512
LATENT = 128  # rows: 1024 px
STEPS = 5
ABOUT = f"""A transformer as Flux's at a quarter of its width, with {DOUBLE} and {SINGLE} blocks, in bfloat16, for 1024
px with all its tokens, so that computing and copying keep Flux's proportion. Budgets of Block Offload, the last its
least; a cell: a settled step against one with all weights resident; the same by the host's own streaming with as much
on the card as the same peak of allocated bytes permits; the longer one of computing and copying over our step."""


@dataclass(frozen=True)
class Ran:
    """Seconds of a settled step on the card's clock, of these those in which the link and the processors were busy,
    and bytes allocated at most."""

    step: float
    copied: float
    computed: float
    peak: int


def rows() -> Iterator[dict[str, Any]]:
    """All weights on the card; then at each budget ours, and the host's own streaming within the same peak."""
    from headroom.host.offload.block_offload import apply_offload
    from headroom.host.offload.layers import least_weights
    from headroom.tools.card.step_clock import within_peak

    model = flux()
    weights = model.model_size()
    whole = ran(model)
    yield {"share": 1.0, "seconds": whole.step}
    least = least_weights(model, 2)
    for share in (*SHARES, least / weights):
        mine = ran(apply_offload(model, max(least, share * weights) / GB)[0])
        theirs = within_peak(lambda budget: ran(apply_offload(model, budget / GB, "leaf")[0]), mine.peak)
        yield {
            "share": share,
            "ours": mine.step / whole.step,
            "host": theirs.step / whole.step if theirs else None,
            "reached": max(mine.copied, mine.computed) / mine.step,
        }


def flux() -> Any:
    """A MODEL as the host's loader makes it; what its weights are does not matter here."""
    import comfy.ldm.flux.model
    import comfy.ops
    import comfy.sd

    with torch.device("meta"):
        module = comfy.ldm.flux.model.Flux(
            image_model="flux", in_channels=16, out_channels=16, vec_in_dim=768, context_in_dim=4096, hidden_size=WIDTH,
            mlp_ratio=4.0, num_heads=HEADS, depth=DOUBLE, depth_single_blocks=SINGLE, axes_dim=[16, 56, 56],
            theta=10000, patch_size=2, qkv_bias=True, guidance_embed=False, txt_ids_dims=[],
            dtype=torch.bfloat16, operations=comfy.ops.disable_weight_init,
        )  # fmt: skip
    state = {key: torch.zeros(value.shape, dtype=torch.bfloat16) for key, value in module.state_dict().items()}
    return comfy.sd.load_diffusion_model_state_dict(state, model_options={"dtype": torch.bfloat16})


def ran(model: Any) -> Ran:
    """Samples from nothing loaded."""
    import comfy.model_management
    import emulated_card
    from comfy.patcher_extension import WrappersMP

    import nodes
    from headroom.tools.card.step_clock import StepClock

    comfy.model_management.unload_all_models()
    comfy.model_management.reset_cast_buffers()
    gc.collect()
    torch.cuda.empty_cache()
    emulated_card.reset()
    torch.cuda.reset_peak_memory_stats()
    before, clock = torch.cuda.memory_allocated(), StepClock(emulated_card.stats)
    timed = model.clone()
    timed.add_wrapper_with_key(WrappersMP.APPLY_MODEL, "clock", clock)
    text = [[torch.zeros(1, TEXT, 4096), {"pooled_output": torch.zeros(1, 768)}]]
    latent = {"samples": torch.zeros(1, 16, LATENT, LATENT)}
    nodes.KSampler().sample(timed, 0, STEPS, 1.0, "euler", "normal", text, text, latent)
    torch.cuda.synchronize()
    return Ran(*clock.per_call(), torch.cuda.max_memory_allocated() - before)
