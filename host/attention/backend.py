"""HeadroomAttention on a MODEL: the chosen backend computes the calls of the chosen blocks and steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from comfy.model_patcher import ModelPatcher
from torch import Tensor

from ...attention import BACKENDS, AttentionCall, Place, compute
from .override import Override, count, install, select

BACKEND_CHOICES = ("auto", "host", *BACKENDS)


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
        rows = f", {self.slice_rows} rows" if self.backend == "sliced" and self.slice_rows else ""
        return f"asked for: {self.backend}{rows} in blocks {self.selection.blocks.text}"

    def take(self, func: Callable[..., Tensor], args: tuple[Any, ...], kwargs: Any, place: Place | None) -> Tensor:
        if self.backend == "host":
            count(kwargs, place, f"host ({getattr(func, '__name__', 'attention')})", "chosen")
            return func(*args, **kwargs)
        out, decision = compute(self.backend, AttentionCall.bind(*args, **kwargs), slice_rows=self.slice_rows)
        prefix = "auto: " if self.backend == "auto" else ""
        count(kwargs, place, decision.backend.name, prefix + decision.reason)
        return out


def apply_attention(
    model: ModelPatcher,
    *,
    backend: str = "auto",
    blocks: str = "all",
    start_percent: float = 0.0,
    end_percent: float = 1.0,
    slice_rows: int = 0,
    min_tokens: int = 0,
) -> ModelPatcher:
    """A clone of ``model`` whose attention is computed by ``backend`` in the chosen blocks and steps.

    An override that is already there keeps every call this one does not handle. ``model`` is not changed.

    Raises:
        ValueError: an input that does not make sense, named with what to write instead.
    """
    if backend not in BACKEND_CHOICES:
        raise ValueError(f"backend: '{backend}' is unknown; choose one of {', '.join(BACKEND_CHOICES)}")
    selection = select(model, blocks, start_percent, end_percent, min_tokens)
    return install(model, AttentionOverride(selection, backend=backend, slice_rows=slice_rows))
