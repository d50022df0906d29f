"""A sampling whose weights are streamed: copies ahead of the layers that need them, and what was copied."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ...memory import Row
from ...memory.link import link_speed
from ...memory.units import format_bytes
from ...offload.brought import brought, layers_off
from ...offload.prefetch import LayerPrefetch, Learned
from ...offload.streamed import Traffic
from ...offload.whole import holds_whole
from ..core.wrapper_kinds import APPLY_MODEL
from ..measure.wrappers import COMPILED, OPTIMIZER, TRAINED, current_row
from .budget import Budget
from .own_weights import without_page

if TYPE_CHECKING:
    from comfy.model_patcher import ModelPatcher

KEPT = (
    "a training keeps the weights that it streams until its backward has read them; put Training Memory (plan: every"
    " block) before Train LoRA, and it holds one block's"
)
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


class OffloadedSampling:
    """Around one sampling: the prefetch's life, and what it did."""

    def __init__(self, offload: Offload) -> None:
        self.offload = offload

    def __call__(self, executor: Any, *args: Any, **kwargs: Any) -> Any:
        guider = executor.class_obj
        options = guider.model_options.setdefault("transformer_options", {})
        row = current_row(options)
        row.notices += self.offload.notes
        if self.offload.budget is not None and options.get(OPTIMIZER) and TRAINED not in _wrappers(options):
            row.notices.append(KEPT)
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
    def prefetches(self) -> bool:
        return self._offload.budget is not None and bool(self._offload.budget.staging)

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
    """Whether the host has left a layer off its device, and a copy of its weights is all of them."""
    # Host: layers that it can stream have `comfy_cast_weights`; those of them that it loaded, `comfy_patched_weights`.
    streams = hasattr(layer, "comfy_cast_weights") and not getattr(layer, "comfy_patched_weights", False)
    weights = streams and any(parameter is not None for parameter in layer._parameters.values())
    return weights and holds_whole(layer)


# What stands in for weights while they are not staged; None: the host's own, which a layer can bring over by itself.
hidden: Callable[[Tensor], Tensor] | None = None


def streamed(executor: Any, x: Tensor, *args: Any, **kwargs: Any) -> Any:
    """An apply-model wrapper: streamed layers have hooks for this call alone."""
    model = executor.class_obj
    options = _options(args, kwargs)
    if torch.is_grad_enabled() and not torch.is_inference_mode_enabled():
        # Training Memory brings them block by block, and in the backward as well.
        layers = [] if TRAINED in _wrappers(options) else layers_off(model.diffusion_model, x.device)
        with brought(layers, x.device, together=False, prepared=without_page):
            return executor(x, *args, **kwargs)
    engine: Engine | None = options.get(ENGINE)
    # torch.compile runs the model: hooks would break its graph, and the host drops its streams there too.
    if engine is None or not engine.prefetches or COMPILED in _wrappers(options):
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


def _wrappers(options: dict[str, Any]) -> dict[str, Any]:
    """Around the call, by their keys."""
    found: dict[str, Any] = options.get("wrappers", {}).get(APPLY_MODEL, {})
    return found
