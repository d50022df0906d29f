"""A VRAM budget for one MODEL, with weights prefetched where the host's own manager does not do that."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import comfy.model_management
import torch
from torch import Tensor, nn

from ...memory import Row, file_backed_bytes
from ...memory.link import link_speed
from ...memory.units import format_bytes
from ...offload.prefetch import LayerPrefetch, Learned
from ...offload.streamed import Traffic
from ..core.compat import replays_steps
from ..core.device import GB
from ..core.wrapper_kinds import APPLY_MODEL, OUTER_SAMPLE
from ..measure.wrappers import COMPILED, current_row, measure_sampling, wrap
from .budget import Budget, layer_costs, least_weights, loads_by_the_host, plan_budget, set_budget
from .host_internals import check_calls, check_model

if TYPE_CHECKING:
    from comfy.model_patcher import ModelPatcher

GRANULARITIES = ("auto", "block", "leaf")
DEFAULT_AHEAD = 2  # blocks
WRAPPER_KEY = "headroom_offload"
ATTACHMENT = "headroom_offload"
ENGINE = "headroom_prefetch"  # our entry in the host's transformer_options


@dataclass(frozen=True)
class Offload:
    """What a node has decided.

    Attributes:
        budget: of the weights; None: no limit.
        ahead: blocks that may be copied ahead; 0: the host's own streaming.
        whole: bytes of the model.
        notes: what was asked for and does not act here, and why.
        learned: in which order layers run and which are best kept, from the samplings so far.
    """

    budget: Budget | None
    ahead: int
    whole: int
    notes: tuple[str, ...] = ()
    learned: Learned = field(default_factory=Learned, compare=False)

    def summary(self) -> str:
        if self.budget is None:
            return "no VRAM budget"
        how = "layers copied ahead" if self.budget.staging else "the host's own streaming"
        return f"VRAM budget {format_bytes(self.budget.weights)} of {format_bytes(self.whole)} weights, {how}"


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
    refusal = cannot_budget(model)
    notes = [refusal] if refusal else []
    ahead = 0 if granularity == "leaf" else prefetch
    if ahead and (why := cannot_prefetch(model)) is not None:
        ahead = 0
        notes.append(f"nothing is prefetched: {why}")
    wanted = int(vram_budget_gb * GB)
    if ahead and granularity == "auto" and wanted < least_weights(model, ahead):
        ahead = 0
        notes.append("nothing is prefetched: the budget leaves no room for it")
    budget = None if refusal else plan_budget(model, wanted, ahead)
    offload = Offload(budget, ahead, model.model_size(), tuple(notes))
    set_budget(result, budget)
    result.attachments[ATTACHMENT] = offload
    measure_sampling(result)
    wrap(result, OUTER_SAMPLE, WRAPPER_KEY, OffloadedSampling(offload))
    if budget is not None and budget.staging:
        check_calls(model)
        wrap(result, APPLY_MODEL, WRAPPER_KEY, prefetched)
    return result, report(model, offload)


def cannot_budget(model: ModelPatcher) -> str | None:
    """Why a budget would not be kept here."""
    state = comfy.model_management.vram_state
    if not loads_by_the_host(model):
        return "no budget: another node pack has put its own loading in the place of the host's"
    if model.load_device.type == "mps" or state is comfy.model_management.VRAMState.SHARED:
        return "no budget: this device shares its memory with the CPU"
    if state is comfy.model_management.VRAMState.HIGH_VRAM:
        return "no budget: ComfyUI was started with --highvram or --gpu-only"
    return None


def cannot_prefetch(model: ModelPatcher) -> str | None:
    """Why nothing is prefetched here."""
    if model.is_dynamic():
        return "dynamic VRAM streams and prefetches by itself; the budget is its watermark limit"
    if replays_steps():
        return (
            "this ComfyUI may replay recorded steps, which would not copy weights anew; its own loader keeps the budget"
        )
    if not acts_on(model.load_device):
        return f"nothing is copied on {model.load_device.type}; the budget is kept, but no memory is gained"
    if model.get_additional_models_with_key("multigpu"):
        return "the model runs on several GPUs"
    if not layer_costs(model):
        return "this model has no layers that ComfyUI can stream"
    return None


def acts_on(device: torch.device) -> bool:
    """Whether weights are copied to a device to be computed with."""
    return device.type not in ("cpu", "mps")


def report(model: ModelPatcher, offload: Offload) -> str:
    """What is resident and what is streamed, before anything runs."""
    lines = [f"Block Offload · {offload.summary()}"]
    if offload.budget is not None:
        lines += _bytes_lines(model, offload, offload.budget)
    return "\n".join([*lines, *(f"! {note}" for note in offload.notes)])


def _bytes_lines(model: ModelPatcher, offload: Offload, budget: Budget) -> list[str]:
    held = min(budget.loadable, offload.whole)
    lines = [f"resident up to {format_bytes(held)}, streamed per step {format_bytes(budget.streamed)}"]
    if budget.staging:
        costs = layer_costs(model)
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
    lines.append(f"least budget that works: {format_bytes(least_weights(model, offload.ahead))}")
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


class OffloadedSampling:
    """Around one sampling: the prefetch's life, and what it did."""

    def __init__(self, offload: Offload) -> None:
        self.offload = offload

    def __call__(self, executor: Any, *args: Any, **kwargs: Any) -> Any:
        guider = executor.class_obj
        options = guider.model_options.setdefault("transformer_options", {})
        row = current_row(options)
        row.notices += self.offload.notes
        engine = options[ENGINE] = Engine(self.offload)
        start = time.perf_counter()
        try:
            return executor(*args, **kwargs)
        finally:
            seconds = time.perf_counter() - start
            engine.close()
            self._say(row, guider.model_patcher, engine, seconds)

    def _say(self, row: Row, model: ModelPatcher, engine: Engine, seconds: float) -> None:
        budget = self.offload.budget
        if budget is None:
            return
        loaded = model.loaded_size()
        row.lines.append(f"weights on the device: {format_bytes(loaded)} of {format_bytes(self.offload.whole)}")
        traffic = engine.traffic
        if traffic is not None and traffic.steps:
            row.lines.append(
                f"prefetched {len(traffic.copies)} layers, {format_bytes(traffic.bytes / traffic.steps)} per call,"
                f" through {format_bytes(engine.staging_bytes)} of staging, {traffic.late} copies not ahead"
            )
            row.lines += engine.notes
            speed = link_speed(model.load_device)
            if speed is not None:
                floor = traffic.bytes / traffic.steps / speed
                row.lines.append(f"a call took {seconds / traffic.steps:.2f} s; its copies alone {floor:.2f} s")


class Engine:
    """The prefetch of one sampling: made at its first call, and anew when the host has exchanged weights."""

    def __init__(self, offload: Offload) -> None:
        self._offload = offload
        self._prefetch: LayerPrefetch | None = None

    @property
    def traffic(self) -> Traffic | None:
        return None if self._prefetch is None else self._prefetch.traffic

    @property
    def staging_bytes(self) -> int:
        return 0 if self._prefetch is None else self._prefetch.staging_bytes

    @property
    def notes(self) -> list[str]:
        """What keeps copies from running beside the computation."""
        prefetch = self._prefetch
        if prefetch is None or (prefetch.overlaps and prefetch.pinned):
            return []
        why = "its weights in RAM are not pinned" if prefetch.overlaps else "this device has no streams"
        return [f"copies were made in order with the computation: {why}"]

    def of(self, network: nn.Module, device: torch.device) -> LayerPrefetch:
        """The prefetch for a network whose weights are loaded."""
        if self._prefetch is None or not self._prefetch.is_current():
            self.close()
            budget = self._offload.budget
            layers = {name: layer for name, layer in network.named_modules() if is_streamed(layer)}
            staging = 0 if budget is None else budget.staging
            self._prefetch = LayerPrefetch(layers, device, staging, self._offload.learned, hidden)
        return self._prefetch

    def close(self) -> None:
        """Ends the copies under way; what was done can still be asked for."""
        if self._prefetch is not None:
            self._prefetch.close()


def is_streamed(layer: nn.Module) -> bool:
    """Whether the host has left a layer off its device."""
    # Host: layers that it can stream have `comfy_cast_weights`; those of them that it loaded, `comfy_patched_weights`.
    streams = hasattr(layer, "comfy_cast_weights") and not getattr(layer, "comfy_patched_weights", False)
    return streams and any(parameter is not None for parameter in layer._parameters.values())


# What stands in for weights while they are not staged; None: the host's own, which a layer can bring over by itself.
hidden: Callable[[Tensor], Tensor] | None = None


def prefetched(executor: Any, x: Tensor, *args: Any, **kwargs: Any) -> Any:
    """An apply-model wrapper: streamed layers have hooks for this call alone."""
    model = executor.class_obj
    options = _options(args, kwargs)
    engine: Engine | None = options.get(ENGINE)
    trains = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
    if engine is None or trains or _is_compiled(options):
        return executor(x, *args, **kwargs)
    prefetch = engine.of(model.diffusion_model, x.device)
    if not prefetch.streamed:
        return executor(x, *args, **kwargs)
    with prefetch.installed():
        result = executor(x, *args, **kwargs)
    # Host: the patcher that samples with the model at the moment; with hooks, it writes into weights between calls.
    if model.current_patcher is not None and model.current_patcher.hook_patches:
        prefetch.forget()
    return result


def _options(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The transformer_options of an apply-model call."""
    position = 4  # Host: by name, or in this place after t, c_concat, c_crossattn, control
    found: dict[str, Any] | None = args[position] if len(args) > position else kwargs.get("transformer_options")
    return found or {}


def _is_compiled(options: dict[str, Any]) -> bool:
    """Whether torch.compile runs the model: hooks would break its graph, and the host drops its streams there too."""
    return COMPILED in options.get("wrappers", {}).get(APPLY_MODEL, {})
