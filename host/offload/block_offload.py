"""A VRAM budget for one MODEL, with weights prefetched where the host's own manager does not do that."""

from __future__ import annotations

from typing import TYPE_CHECKING

import comfy.model_management
import torch

from ...memory import file_backed_bytes
from ...memory.link import link_speed
from ...memory.units import format_bytes
from ...offload.whole import holds_whole
from ..core.compat import replays_steps
from ..core.device import GB
from ..core.wrapper_kinds import APPLY_MODEL, OUTER_SAMPLE
from ..measure.wrappers import measure_sampling, wrap
from .budget import Budget, loads_by_the_host, plan_budget, set_budget
from .host_internals import check_calls, check_model
from .layers import ALL_STREAMS, Layers, streams_everything, streams_nothing
from .offloaded_sampling import Offload, OffloadedSampling, streamed
from .watermark import cannot_limit

if TYPE_CHECKING:
    from comfy.model_patcher import ModelPatcher

GRANULARITIES = ("auto", "block", "leaf")
DEFAULT_AHEAD = 2  # blocks
WRAPPER_KEY = "headroom_offload"
ATTACHMENT = "headroom_offload"


def apply_offload(
    model: ModelPatcher, vram_budget_gb: float, granularity: str = "auto", prefetch: int = DEFAULT_AHEAD
) -> tuple[ModelPatcher, str]:
    """A MODEL whose weights keep to a budget, and a report; ``model`` is not changed.

    Args:
        vram_budget_gb: 0 lifts the budget of an earlier node.
        granularity: one of :data:`GRANULARITIES`.
        prefetch: blocks that may be copied ahead; 0: the host's own streaming.

    Raises:
        ValueError: less than the least that works, which it names.
        HostChangedError: this ComfyUI lacks something that is relied on.
    """
    if vram_budget_gb:
        check_model(model)
    result = model.clone()
    result.remove_wrappers_with_key(OUTER_SAMPLE, WRAPPER_KEY)
    result.remove_wrappers_with_key(APPLY_MODEL, WRAPPER_KEY)
    set_budget(result, None)
    if vram_budget_gb == 0:
        result.attachments.pop(ATTACHMENT, None)
        return result, "Block Offload: no budget; the host decides"
    layers = Layers(model)
    refusal = cannot_budget(model)
    notes = [refusal] if refusal else [ALL_STREAMS] * streams_everything()
    ahead = 0 if granularity == "leaf" else prefetch
    if ahead and (why := cannot_prefetch(layers)) is not None:
        ahead = 0
        notes.append(f"nothing is prefetched: {why}")
    wanted = int(vram_budget_gb * GB)
    if ahead and granularity == "auto" and wanted < layers.least(ahead):
        ahead = 0
        notes.append("nothing is prefetched: the budget leaves no room for it")
    budget = None if refusal else plan_budget(layers, wanted, ahead)
    offload = Offload(budget, ahead, model.model_size(), tuple(notes))
    set_budget(result, budget)
    result.attachments[ATTACHMENT] = offload
    measure_sampling(result)
    wrap(result, OUTER_SAMPLE, WRAPPER_KEY, OffloadedSampling(offload))
    if budget is not None:
        if budget.staging:
            check_calls(model)
        wrap(result, APPLY_MODEL, WRAPPER_KEY, streamed)
    return result, report(layers, offload)


def cannot_budget(model: ModelPatcher) -> str | None:
    """Why a budget would not be kept here."""
    state = comfy.model_management.vram_state
    if not loads_by_the_host(model):
        return "no budget: another node pack has put its own loading in the place of the host's"
    if model.load_device.type == "mps" or state is comfy.model_management.VRAMState.SHARED:
        return "no budget: this device shares its memory with the CPU"
    if streams_nothing():
        return "no budget: ComfyUI was started with --highvram or --gpu-only"
    return cannot_limit(model)


def cannot_prefetch(layers: Layers) -> str | None:
    """Why nothing is prefetched here."""
    model = layers.model
    if model.is_dynamic():
        return "dynamic VRAM streams and prefetches by itself what it does not keep"
    if replays_steps():
        return (
            "this ComfyUI may replay recorded steps, which would not copy weights anew; its own loader keeps the budget"
        )
    if not acts_on(model.load_device):
        return f"nothing is copied on {model.load_device.type}; the budget is kept, but no memory is gained"
    if model.get_additional_models_with_key("multigpu"):
        return "the model runs on several GPUs"
    if not all(map(holds_whole, model.model.diffusion_model.modules())):
        return "its weights are in another node pack's own format, which their layers alone bring over"
    if not layers.costs:
        return "this model has no layers that ComfyUI can stream"
    return None


def acts_on(device: torch.device) -> bool:
    """Whether weights are copied to a device to be computed with."""
    return device.type not in ("cpu", "mps")


def report(layers: Layers, offload: Offload) -> str:
    """What is resident and what is streamed, before anything runs."""
    lines = [f"Block Offload · {offload.summary()}"]
    if offload.budget is not None and not streams_everything():  # else what it would keep is not kept
        lines += _bytes_lines(layers, offload, offload.budget)
    return "\n".join([*lines, *(f"! {note}" for note in offload.notes)])


def _bytes_lines(layers: Layers, offload: Offload, budget: Budget) -> list[str]:
    model, costs = layers.model, layers.costs if budget.staging else {}
    held = min(budget.loadable, offload.whole)
    lines = [f"resident up to {format_bytes(held)}, streamed per step {format_bytes(budget.streamed)}"]
    if budget.staging:
        resident = sum(path in (budget.resident or ()) for path in costs)
        lines.append(
            f"{resident} of {len(costs)} layers resident, the streamed ones spread evenly between them; staging"
            f" {format_bytes(budget.staging)}"
        )
    lines.append(f"RAM holds {format_bytes(offload.whole)} of weights{_file_backed(model)}")
    if budget.streamed:
        speed = link_speed(model.load_device)
        if speed is not None:
            seconds = budget.streamed / speed
            lines.append(f"at {speed / 1e9:.1f} GB/s to this device a step takes {seconds:.2f} s at least")
        if _casting_would_halve(model):
            lines.append("Layerwise Casting first would halve what is streamed")
    lines.append(f"least budget that works: {format_bytes(layers.least(offload.ahead))}")
    return lines


def _file_backed(model: ModelPatcher) -> str:
    mapped = file_backed_bytes(parameter.data for parameter in model.model.parameters())
    if not mapped:
        return ""
    return f", {format_bytes(mapped)} of them as pages of a file, which the system may drop and read again"


def _casting_would_halve(model: ModelPatcher) -> bool:
    parameters = list(model.model.diffusion_model.parameters())
    weights = sum(parameter.numel() for parameter in parameters)
    return model.model_size() > 1.5 * weights
