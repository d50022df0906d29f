"""HeadroomAttention on a MODEL: an override of the host's attention that chains, counts, and keeps to its place."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from comfy.model_patcher import ModelPatcher
from comfy.patcher_extension import WrappersMP
from torch import Tensor

from ..attention import BACKENDS, AttentionCall, BlockSelection, Place, compute, parse_blocks
from ..memory import AttentionCounts
from .blocks import current_place, model_ends
from .runs import measured

BACKEND_CHOICES = ("auto", "host", *BACKENDS)
OVERRIDE = "optimized_attention_override"
# Our entries in the host's transformer_options.
SIGMA, COUNTS = "headroom_sigma", "headroom_attention_counts"
WRAPPER_KEY = "headroom_attention"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AttentionSettings:
    """What the node asks for.

    Attributes:
        backend: one of :data:`BACKEND_CHOICES`.
        blocks: the selection.
        sigma_range: (largest, smallest) noise level at which it applies; None for all of them.
        slice_rows: query rows per slice of ``sliced``; 0 = automatic.
        min_tokens: calls with fewer query tokens are left alone.
    """

    backend: str
    blocks: BlockSelection
    sigma_range: tuple[float, float] | None
    slice_rows: int
    min_tokens: int

    def describe(self) -> str:
        rows = f", {self.slice_rows} rows" if self.backend == "sliced" and self.slice_rows else ""
        return f"asked for: {self.backend}{rows} in blocks {self.blocks.text}"


@dataclass(frozen=True)
class AttentionOverride:
    """What the host calls in place of its attention function.

    Keeps no state between calls that could change a result; counting goes to the run's own object in
    ``transformer_options``. What it does not handle goes to the override that was there before, if any.
    """

    settings: AttentionSettings
    ends: tuple[Place, Place] | None
    previous: Callable[..., Tensor] | None = field(default=None, repr=False)

    def __call__(self, func: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
        options = kwargs.get("transformer_options") or {}
        place = current_place(options)
        counts: AttentionCounts | None = options.get(COUNTS)
        skipped = self._reason_to_skip(place, options, args[0] if args else kwargs["q"], kwargs)
        if skipped is not None:
            return self._leave(func, args, kwargs, counts, place, skipped)
        if self.settings.backend == "host":
            return self._host(func, args, kwargs, counts, place)
        out, decision = compute(
            self.settings.backend, AttentionCall.bind(*args, **kwargs), slice_rows=self.settings.slice_rows
        )
        _count(counts, place, decision.backend.name, _prefix(self.settings.backend) + decision.reason)
        return out

    def _reason_to_skip(self, place: Place | None, options: dict, q: Tensor, kwargs: dict) -> str | None:
        if not self.settings.blocks.holds(place, self._ends_at(options)):
            return "block not selected"
        if self.settings.sigma_range is not None and not self._in_range(options.get(SIGMA)):
            return "outside the step range"
        tokens = q.shape[2] if kwargs.get("skip_reshape") else q.shape[1]
        if tokens < self.settings.min_tokens:
            return f"fewer than {self.settings.min_tokens} tokens"
        return None

    def _ends_at(self, options: dict) -> tuple[Place, Place] | None:
        """First and last block, from the model's structure, else from what the call says of its list."""
        kind, total = options.get("block_type"), options.get("total_blocks")
        if self.ends is not None or kind is None or total is None:
            return self.ends
        return Place(kind, 0), Place(kind, total - 1)

    def _in_range(self, sigma: float | None) -> bool:
        largest, smallest = self.settings.sigma_range or (0.0, 0.0)
        return sigma is not None and smallest <= sigma <= largest

    def _leave(
        self, func: Callable[..., Tensor], args: tuple, kwargs: dict, counts: Any, place: Place | None, why: str
    ) -> Tensor:
        if self.previous is None:
            _count(counts, place, "host", why)
            return func(*args, **kwargs)
        if not isinstance(self.previous, AttentionOverride):  # ours counts its own calls
            _count(counts, place, "earlier override", why)
        return self.previous(func, *args, **kwargs)

    def _host(self, func: Callable[..., Tensor], args: tuple, kwargs: dict, counts: Any, place: Place | None) -> Tensor:
        _count(counts, place, f"host ({getattr(func, '__name__', 'attention')})", "chosen")
        return func(*args, **kwargs)


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
    if start_percent >= end_percent:
        raise ValueError(
            f"start_percent ({start_percent}) must be smaller than end_percent ({end_percent}); 0 and 1 are all steps"
        )
    settings = AttentionSettings(
        backend, parse_blocks(blocks), _sigma_range(model, start_percent, end_percent), slice_rows, min_tokens
    )
    clone = model.clone()
    options = clone.model_options.setdefault("transformer_options", {})
    previous = options.get(OVERRIDE)
    if previous is not None and not isinstance(previous, AttentionOverride):
        log.info("Headroom: attention calls outside the selection go to the override that was there: %r", previous)
    options[OVERRIDE] = AttentionOverride(settings, model_ends(clone), previous)
    _wrap(clone, WrappersMP.OUTER_SAMPLE, _outer_sample)
    if settings.sigma_range is not None:
        _wrap(clone, WrappersMP.PREDICT_NOISE, _predict_noise)
    return clone


def attention_settings(model: ModelPatcher) -> list[AttentionSettings]:
    """The settings of every Headroom override on a MODEL, latest first."""
    override = model.model_options.get("transformer_options", {}).get(OVERRIDE)
    found = []
    while isinstance(override, AttentionOverride):
        found.append(override.settings)
        override = override.previous
    return found


def _sigma_range(model: ModelPatcher, start: float, end: float) -> tuple[float, float] | None:
    if start <= 0.0 and end >= 1.0:
        return None
    sampling = model.get_model_object("model_sampling")
    return float(sampling.percent_to_sigma(start)), float(sampling.percent_to_sigma(end))


def _wrap(model: ModelPatcher, kind: str, wrapper: Callable[..., Any]) -> None:
    """Adds our wrapper once, however often the node is applied."""
    model.remove_wrappers_with_key(kind, WRAPPER_KEY)
    model.add_wrapper_with_key(kind, WRAPPER_KEY, wrapper)


def _outer_sample(executor: Any, *args: Any, **kwargs: Any) -> Any:
    """Measures a sampling into the run log."""
    guider = executor.class_obj
    with measured("sampling", guider.model_patcher.load_device) as row:
        row.attention = AttentionCounts()
        row.lines = [settings.describe() for settings in attention_settings(guider.model_patcher)]
        # The guider works on a clone of its options while it samples, so this ends with the run.
        guider.model_options.setdefault("transformer_options", {})[COUNTS] = row.attention
        return executor(*args, **kwargs)


def _predict_noise(executor: Any, x: Tensor, timestep: Tensor, model_options: dict, seed: Any = None) -> Any:
    """Says the noise level once per step, as a float: reading it from a GPU within a block would stall it."""
    options = dict(model_options)
    options["transformer_options"] = dict(options.get("transformer_options", {}), **{SIGMA: float(timestep.max())})
    return executor(x, timestep, options, seed)


def _count(counts: AttentionCounts | None, place: Place | None, backend: str, reason: str) -> None:
    if counts is not None:
        counts.add((place.kind, place.index) if place else None, backend, reason)


def _prefix(backend: str) -> str:
    return "auto: " if backend == "auto" else ""
