"""HeadroomAttention on a MODEL: the chosen backend computes the calls of the chosen blocks and steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ...attention import BACKENDS, AttentionCall, BlockPlace, compute
from ..core.compat import IN_THREAD
from .override import Override, count, install, select

if TYPE_CHECKING:
    from comfy.model_patcher import ModelPatcher

# What the node offers besides the backends, with its tooltip.
BESIDES = {
    "auto": "torch's fused kernel where it needs little memory, else online; never a quantised one",
    "host": "what ComfyUI would use",
}
BACKEND_CHOICES = (*BESIDES, *BACKENDS)
COUNTS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight")


@dataclass(frozen=True)
class AttentionOverride(Override):
    """Exact attention by a chosen backend.

    Attributes:
        backend: one of :data:`BACKEND_CHOICES`.
        slice_rows: query rows per slice of ``sliced``; 0 = automatic.
    """

    backend: str = "auto"
    slice_rows: int = 0

    def describe(self) -> str:
        """One line for the Memory Report."""
        rows = f", {self.slice_rows} rows" if self.backend == "sliced" and self.slice_rows else ""
        return f"asked for: {self.backend}{rows} in blocks {self.selection.blocks.text}"

    def take(self, func: Callable[..., Tensor], args: tuple[Any, ...], kwargs: Any, place: BlockPlace | None) -> Tensor:
        """Computes the call by the chosen backend, or an exact one that can; counts which and why."""
        if self.backend == "host":
            count(kwargs, place, f"host ({getattr(func, '__name__', 'attention')})", "chosen")
            return func(*args, **kwargs)
        call = AttentionCall.bind(*args, **kwargs)
        if IN_THREAD in (kwargs.get("transformer_options") or {}):
            call = replace(call, others_compute=True)
        out, decision = compute(self.backend, call, slice_rows=self.slice_rows)
        prefix = "auto: " if self.backend == "auto" else ""
        count(kwargs, place, decision.backend.name, prefix + decision.reason)
        return out


def choices_tooltip() -> str:
    """A sentence for each of :data:`BACKEND_CHOICES`; those with the same one share it."""
    names: dict[str, list[str]] = {}
    for name, tooltip in (*BESIDES.items(), *((backend.name, backend.tooltip) for backend in BACKENDS.values())):
        names.setdefault(tooltip, []).append(name)
    return " ".join(f"{_label(shared)}: {tooltip}." for tooltip, shared in names.items())


def _label(names: list[str]) -> str:
    """Names with commas; a backend and its kernels (``sdpa``, ``sdpa_flash``, …) by their number."""
    first, *others = names
    if others and all(name.startswith(f"{first}_") for name in others):
        return f"{first} and its {COUNTS[len(others)]} kernels"
    return ", ".join(names)


def apply_attention(
    model: ModelPatcher,
    *,
    backend: str = "auto",
    blocks: str = "all",
    start_percent: float = 0.0,
    end_percent: float = 1.0,
    slice_rows: int = 0,
    min_tokens: int = 0,
    yields: bool = False,
) -> ModelPatcher:
    """A clone of ``model`` whose attention is computed by ``backend`` in the chosen blocks and steps.

    An override that is already there keeps every call this one does not handle. ``model`` is not changed.

    Args:
        yields: as of :class:`Override`.

    Raises:
        ValueError: an input that does not make sense, named with what to write instead.
    """
    if backend not in BACKEND_CHOICES:
        raise ValueError(f"backend: '{backend}' is unknown; choose one of {', '.join(BACKEND_CHOICES)}")
    selection = select(model, blocks, start_percent, end_percent, min_tokens)
    return install(model, AttentionOverride(selection, backend=backend, slice_rows=slice_rows, yields=yields))
