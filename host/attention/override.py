"""What Headroom's attention nodes share: an override of the host's attention that chains and keeps to its place.

The host has one slot for an override. Ours calls the one that was there for whatever it does not take, counts into the
run's own object, and is put back at the start of a sampling if a later node has taken the slot.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor

from ...attention import BlockPlace, BlockSelection, parse_blocks
from ...memory import AttentionCounts, Row
from ..core.compat import OVERRIDE, replays_steps
from ..core.wrapper_kinds import OUTER_SAMPLE, PREDICT_NOISE
from ..measure.wrappers import current_row, measure_sampling, wrap
from .places import current_place, model_ends

if TYPE_CHECKING:
    from comfy.model_patcher import ModelPatcher

# Our entries in the host's transformer_options.
SIGMA, SIGMA_RANGES, COUNTS = "headroom_sigma", "headroom_sigma_ranges", "headroom_attention_counts"
WRAPPER_KEY = "headroom_attention"
REPLAYED = (
    "this ComfyUI may replay recorded steps without asking again: start_percent and end_percent cannot be kept, the"
    " node is not applied; set them to 0 and 1"
)
YIELDED = (
    "a node behind Make It Fit chose another attention, which runs: what it takes was not planned; put that node before"
    " Make It Fit to have it planned"
)

log = logging.getLogger(__name__)
Self = TypeVar("Self", bound="Override")
Range = tuple[float, float]


@dataclass(frozen=True)
class Selection:
    """Which calls a node takes.

    Attributes:
        blocks: of the model.
        steps: (start, end) part of sampling, from 0 to 1; None for all of it. The model that samples says which noise
            levels these are: a node behind ours may change its schedule.
        min_tokens: calls with fewer query tokens are left alone.
        ends: the model's first and last block, where its structure tells.
    """

    blocks: BlockSelection
    steps: Range | None = None
    min_tokens: int = 0
    ends: tuple[BlockPlace, BlockPlace] | None = None

    def reason_to_skip(self, place: BlockPlace | None, options: dict[str, Any], tokens: int) -> str | None:
        """Why a call is not taken; None if it is."""
        if not self.blocks.holds(place, self._ends_at(options)):
            return "block not selected"
        if self.steps is not None and replays_steps():
            return "step ranges cannot be kept"
        if self.steps is not None and not self._in_range(options):
            return "outside the step range"
        if tokens < self.min_tokens:
            return f"fewer than {self.min_tokens} tokens"
        return None

    def _ends_at(self, options: dict[str, Any]) -> tuple[BlockPlace, BlockPlace] | None:
        """First and last block, from the model's structure, else from what the call says of its list."""
        kind, total = options.get("block_type"), options.get("total_blocks")
        if self.ends is not None or kind is None or total is None:
            return self.ends
        return BlockPlace(kind, 0), BlockPlace(kind, total - 1)

    def _in_range(self, options: dict[str, Any]) -> bool:
        sigma, levels = options.get(SIGMA), options.get(SIGMA_RANGES, {}).get(self.steps)
        return sigma is not None and levels is not None and bool(levels[1] <= sigma <= levels[0])


def select(model: ModelPatcher, blocks: str, start_percent: float, end_percent: float, min_tokens: int) -> Selection:
    """A node's inputs as a selection for a model.

    Raises:
        ValueError: an input that does not make sense, named with what to write instead.
    """
    if start_percent >= end_percent:
        raise ValueError(
            f"start_percent ({start_percent}) must be smaller than end_percent ({end_percent}); 0 and 1 are all steps"
        )
    steps = None if start_percent <= 0.0 and end_percent >= 1.0 else (start_percent, end_percent)
    return Selection(parse_blocks(blocks), steps, min_tokens, model_ends(model))


@dataclass(frozen=True)
class Override:
    """What the host calls in place of its attention function.

    Keeps no state between calls that could change a result: what a run has to remember lies in ``transformer_options``.

    Attributes:
        previous: what was there before.
        identity: the same for copies that stand on another override; keys what a run remembers.
        yields: an override that a node behind sets takes the place of this one, which nobody asked for by name.
    """

    selection: Selection
    previous: Callable[..., Tensor] | None = field(default=None, repr=False, kw_only=True)
    identity: object = field(default_factory=object, repr=False, compare=False, kw_only=True)
    yields: bool = field(default=False, kw_only=True)

    def __call__(self, func: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
        options = kwargs.get("transformer_options") or {}
        place = current_place(options)
        q = args[0] if args else kwargs["q"]
        tokens = q.shape[2] if kwargs.get("skip_reshape") else q.shape[1]
        skipped = self.selection.reason_to_skip(place, options, tokens)
        if skipped is not None:
            return self.leave(func, args, kwargs, place, skipped)
        return self.take(func, args, kwargs, place)

    def take(self, func: Callable[..., Tensor], args: tuple[Any, ...], kwargs: Any, place: BlockPlace | None) -> Tensor:
        """Computes a call that was selected.

        Args:
            func: the host's attention function; ``args`` and ``kwargs`` are in its convention.
            place: the block that calls; None where the model does not say.

        Returns:
            What ``func`` would return.
        """
        raise NotImplementedError

    def describe(self) -> str:
        """One line on what the node asks for."""
        raise NotImplementedError

    def begin(self, options: dict[str, Any]) -> None:
        """Puts what a sampling needs into its ``transformer_options``."""

    def between_steps(self, options: dict[str, Any]) -> None:
        """Called before each step, outside all blocks: here a value may be read from the device."""

    def end(self, options: dict[str, Any], row: Row) -> None:
        """Called when a sampling ends, also by an error: writes what happened into its row."""

    def leave(
        self, func: Callable[..., Tensor], args: tuple[Any, ...], kwargs: Any, place: BlockPlace | None, why: str
    ) -> Tensor:
        """Hands a call to the override that was there before, else to the host."""
        if self.previous is None:
            count(kwargs, place, "host", why)
            return func(*args, **kwargs)
        if not isinstance(self.previous, Override):  # ours counts its own calls
            count(kwargs, place, "earlier override", why)
        return self.previous(func, *args, **kwargs)


def count(kwargs: dict[str, Any], place: BlockPlace | None, backend: str, reason: str) -> None:
    """Counts a call into the running sampling's row, if there is one."""
    counts: AttentionCounts | None = (kwargs.get("transformer_options") or {}).get(COUNTS)
    if counts is not None:
        counts.add((place.kind, place.index) if place else None, backend, reason)


def overrides(top: object) -> Iterator[Override]:
    """Headroom's overrides in a chain, latest first, down to the first of another pack."""
    while isinstance(top, Override):
        yield top
        top = top.previous


def overrides_of(model: ModelPatcher) -> list[Override]:
    """Every Headroom override on a MODEL, latest first."""
    return list(overrides(model.model_options.get("transformer_options", {}).get(OVERRIDE)))


def attention_is_set(model: ModelPatcher) -> bool:
    """Whether a node has set an override on a MODEL, be it ours, the host's ("Model Attention Backend") or a pack's."""
    return model.model_options.get("transformer_options", {}).get(OVERRIDE) is not None


def install(model: ModelPatcher, override: Override) -> ModelPatcher:
    """A clone of ``model`` with an override on top of what is there; ``model`` is not changed."""
    clone = model.clone()
    options = clone.model_options.setdefault("transformer_options", {})
    previous = options.get(OVERRIDE)
    if previous is not None and not isinstance(previous, Override):
        log.info("Headroom: attention calls outside the selection go to the override that was there: %r", previous)
        for earlier in clone.wrappers.get(OUTER_SAMPLE, {}).get(WRAPPER_KEY, []):
            if not earlier.override.yields:  # a node between took its slot: it comes first, as if that were the last
                previous = rebased(earlier.override, previous)
    chained = replace(override, previous=previous)
    options[OVERRIDE] = chained
    measure_sampling(clone)
    wrap(clone, OUTER_SAMPLE, WRAPPER_KEY, OverriddenSampling(chained))
    wrap(clone, PREDICT_NOISE, WRAPPER_KEY, OverriddenStep(chained))
    return clone


@dataclass(frozen=True)
class OverriddenSampling:
    """Counts a sampling's calls, and sees to it that our override is in its place."""

    override: Override

    def __call__(self, executor: Any, *args: Any, **kwargs: Any) -> Any:
        guider = executor.class_obj
        options = guider.model_options.setdefault("transformer_options", {})
        row = current_row(options)
        if self.override.yields and not isinstance(options.get(OVERRIDE), (Override, NoneType)):
            row.notices.append(YIELDED)
            return executor(*args, **kwargs)
        row.attention = options[COUNTS] = AttentionCounts()
        self._reinstall(options, row)
        ours = list(overrides(self.override))
        row.lines += [override.describe() for override in ours]
        options[SIGMA_RANGES] = sigma_ranges(guider.model_patcher, ours)
        if replays_steps() and options[SIGMA_RANGES]:
            row.notices.append(REPLAYED)
        for override in ours:
            override.begin(options)
        try:
            return executor(*args, **kwargs)
        finally:
            for override in ours:
                override.end(options, row)

    def _reinstall(self, options: dict[str, Any], row: Row) -> None:
        """A node behind ours may have taken the slot: ours comes first again, and that node's gets the rest."""
        top = options.get(OVERRIDE)
        if isinstance(top, Override):
            return
        options[OVERRIDE] = rebased(self.override, top)
        if top is not None:
            row.notices.append(
                "a node behind this one set another attention override: it gets only the calls that are not selected"
                " here; to have it take them all, remove this node or narrow its blocks"
            )


@dataclass(frozen=True)
class OverriddenStep:
    """Puts the noise level into ``transformer_options`` once per step, as a float: reading it from a GPU within a block
    would stall it."""

    override: Override

    def __call__(self, executor: Any, x: Tensor, timestep: Tensor, model_options: Any, seed: Any = None) -> Any:
        options = dict(model_options)
        inner = options["transformer_options"] = dict(options.get("transformer_options", {}))
        if any(override.selection.steps is not None for override in overrides(self.override)):
            inner[SIGMA] = float(timestep.max())
        for override in overrides(self.override):
            override.between_steps(inner)
        return executor(x, timestep, options, seed)


def rebased(override: Self, foreign: Callable[..., Tensor] | None) -> Self:
    """Our part of a chain of overrides, with ``foreign`` below it instead of what was there."""
    below = override.previous
    return replace(override, previous=rebased(below, foreign) if isinstance(below, Override) else foreign)


def sigma_ranges(model: ModelPatcher, ours: Iterable[Override]) -> dict[Range, Range]:
    """The (largest, smallest) noise level of each part of sampling that overrides name, by the schedule of a model."""
    named = {override.selection.steps for override in ours} - {None}
    if not named:
        return {}
    sigma = model.get_model_object("model_sampling").percent_to_sigma
    return {steps: (float(sigma(steps[0])), float(sigma(steps[1]))) for steps in named if steps is not None}
