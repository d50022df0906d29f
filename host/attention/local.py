"""HeadroomLocalAttention on a MODEL: approximate self-attention over the picture, with its error measured."""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...attention import AttentionCall, BlockPlace
from ...attention.local import PATTERNS, Pattern, TokenGrid, unread_error
from ...memory import Row
from ..core.compat import outside_recording
from ..core.wrapper_kinds import APPLY_MODEL
from .grids import SHAPES, Shapes, find_grid
from .override import WRAPPER_KEY, Override, count, install, select

if TYPE_CHECKING:
    from comfy.model_patcher import ModelPatcher

ERRORS = "headroom_local_errors"
SAMPLED_ROWS = 64

CallPlace = tuple[BlockPlace | None, int]


class MeasuredErrors:
    """Errors of one sampling by (block, tokens). Safe from several threads: the host runs one per GPU.

    What is measured within a block stays on its device until the next step begins: reading it at once would stall it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._unread: defaultdict[CallPlace, list[Tensor]] = defaultdict(list)
        self._known: dict[CallPlace, float] = {}

    def add(self, key: CallPlace, error: Tensor) -> None:
        """Keeps a relative error, a scalar on its device, until :meth:`settle`."""
        with self._lock:
            self._unread[key].append(error)

    def settle(self) -> None:
        """Reads what was measured; the worst of a block's calls is its error, infinite where one is no number."""
        with self._lock:
            for key, errors in self._unread.items():
                read = [float(error) for error in errors]
                self._known[key] = max(
                    self._known.get(key, 0.0), *(math.inf if math.isnan(one) else one for one in read)
                )
            self._unread.clear()

    def of(self, key: CallPlace) -> float | None:
        """The error of a block; None while it is not known."""
        with self._lock:
            return self._known.get(key)

    def known(self) -> dict[CallPlace, float]:
        """A copy of all relative errors that were read so far."""
        with self._lock:
            return dict(self._known)


@dataclass(frozen=True)
class LocalAttentionOverride(Override):
    """Approximate attention by a pattern.

    Attributes:
        pattern: what a query sees.
        max_error: blocks whose measured relative error is larger run dense from the next step on.
    """

    pattern: Pattern = field(default_factory=PATTERNS["window"])
    max_error: float = 0.1

    def describe(self) -> str:
        """One line for the Memory Report."""
        return (
            f"asked for: local attention (approximate), {self.pattern.describe()}, dense above an error of"
            f" {self.max_error:g}, in blocks {self.selection.blocks.text}"
        )

    def take(self, func: Callable[..., Tensor], args: tuple[Any, ...], kwargs: Any, place: BlockPlace | None) -> Tensor:
        """Approximates a self-attention call over the picture; any other, and a block whose error is too large, runs
        dense. The first call of a block measures its error.
        """
        options = kwargs.get("transformer_options") or {}
        call = AttentionCall.bind(*args, **kwargs)
        grid = find_grid(call, options)
        if isinstance(grid, str):
            return self.leave(func, args, kwargs, place, f"local attention runs dense: {grid}")
        errors = self._errors(options)
        key = place, call.q.shape[2]
        error = None if errors is None else errors.of(key)
        if error is not None and error > self.max_error:
            return self.leave(func, args, kwargs, place, f"local attention runs dense: error above {self.max_error:g}")
        out = self.pattern.attend(call.q, call.k, call.v, call.scale, grid)
        if errors is not None and error is None:
            self._measure(out, call, grid, errors, key)
        count(kwargs, place, f"local {self.pattern.name} (approximate)", "chosen")
        return call.pack(out)

    def _measure(
        self, out: Tensor, call: AttentionCall, grid: TokenGrid, errors: MeasuredErrors, key: CallPlace
    ) -> None:
        with outside_recording(), torch.no_grad():  # in a training too: what is kept of it would keep the step's graph
            errors.add(key, unread_error(out, call.q, call.k, call.v, call.scale, grid, SAMPLED_ROWS))

    def begin(self, options: dict[str, Any]) -> None:
        """Starts a sampling without known errors."""
        # A new dict: the one that is there may be the model's own.
        options[ERRORS] = {**options.get(ERRORS, {}), self.identity: MeasuredErrors()}

    def between_steps(self, options: dict[str, Any]) -> None:
        """Reads the errors of the last step, which decide the next."""
        errors = self._errors(options)
        if errors is not None:
            errors.settle()

    def end(self, options: dict[str, Any], row: Row) -> None:
        """Writes the measured errors into the sampling's row."""
        errors = self._errors(options)
        if errors is not None:
            errors.settle()
            row.lines += error_lines(errors.known(), self.max_error)

    def _errors(self, options: dict[str, Any]) -> MeasuredErrors | None:
        """Those of the running sampling; None outside one."""
        errors: MeasuredErrors | None = options.get(ERRORS, {}).get(self.identity)
        return errors


def error_lines(errors: dict[CallPlace, float], most: float) -> list[str]:
    """What was measured, for people: the range, and which blocks went back to dense attention."""
    if not errors:
        return ["local attention: no call could be taken"]
    low, high = min(errors.values()), max(errors.values())
    lines = [f"local attention: relative error {low:.2g} to {high:.2g}, on {SAMPLED_ROWS} rows of the first calls"]
    for (place, tokens), error in errors.items():
        then = f"; dense after the first step (above {most:g})" if error > most else ""
        lines.append(f"  {place or 'unnamed blocks'}, {tokens} tokens: {error:.2g}{then}")
    return lines


def apply_local_attention(
    model: ModelPatcher,
    pattern: Pattern,
    *,
    max_error: float = 0.1,
    blocks: str = "all",
    start_percent: float = 0.0,
    end_percent: float = 1.0,
    min_tokens: int = 0,
) -> ModelPatcher:
    """A clone of ``model`` whose self-attention over the picture is approximated in the chosen blocks and steps.

    Cross attention, attention with a mask, and whatever is not clearly over the picture's grid stays as it was.

    Raises:
        ValueError: an input that does not make sense, named with what to write instead.
    """
    if max_error < 0:
        raise ValueError(f"max_error ({max_error}) must be 0 or more; 0.1 is a tenth of the attention's size")
    selection = select(model, blocks, start_percent, end_percent, min_tokens)
    clone = install(model, LocalAttentionOverride(selection, pattern=pattern, max_error=max_error))
    clone.remove_wrappers_with_key(APPLY_MODEL, WRAPPER_KEY)
    clone.add_wrapper_with_key(APPLY_MODEL, WRAPPER_KEY, say_shapes)
    return clone


def say_shapes(
    executor: Any,
    x: Tensor,
    t: Tensor,
    c_concat: Any = None,
    c_crossattn: Tensor | None = None,
    control: Any = None,
    transformer_options: Any = None,
    **kwargs: Any,
) -> Tensor:
    """Tells the blocks what they cannot see: the latent's shape, the length of the text, the model's class."""
    network = executor.class_obj.diffusion_model
    shapes = Shapes.of(network, x, c_crossattn, kwargs)
    options = dict(transformer_options or {}, **{SHAPES: shapes})
    result: Tensor = executor(x, t, c_concat, c_crossattn, control, options, **kwargs)
    return result


def make_pattern(name: str, **parameters: Any) -> Pattern:
    """A pattern of :data:`PATTERNS` by its name.

    Raises:
        ValueError: an unknown name, or a parameter that does not make sense.
    """
    if name not in PATTERNS:
        raise ValueError(f"pattern: '{name}' is unknown; choose one of {', '.join(PATTERNS)}")
    pattern: Pattern = PATTERNS[name](**parameters)
    return pattern
