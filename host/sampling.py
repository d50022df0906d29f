"""Measures every sampling of a MODEL that went through a Headroom node, into the run log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from comfy.model_patcher import ModelPatcher
from comfy.patcher_extension import WrappersMP

from ..memory import Row
from .runs import measured

WRAPPER_KEY = "headroom_sampling"
ROW = "headroom_row"  # our entry in the host's transformer_options
ATTACHMENTS = "headroom"  # prefix of what our nodes attach to a model


def measure_sampling(model: ModelPatcher) -> None:
    """Has a model's samplings measured, however many of our nodes it goes through. First of our wrappers."""
    wrap(model, WrappersMP.OUTER_SAMPLE, WRAPPER_KEY, Measured())


def wrap(model: ModelPatcher, kind: str, key: str, wrapper: Callable[..., Any]) -> None:
    """Adds a wrapper, or puts it in the place of the one with its key."""
    wrappers = model.wrappers.setdefault(kind, {})
    wrappers[key] = [wrapper]


def settings_of(model: ModelPatcher) -> list[str]:
    """One line per node that changed how a model is stored."""
    return [
        attachment.summary()
        for name, attachment in model.attachments.items()
        if name.startswith(ATTACHMENTS) and hasattr(attachment, "summary")
    ]


class Measured:
    """An outer-sample wrapper."""

    def __call__(self, executor: Any, *args: Any, **kwargs: Any) -> Any:
        guider = executor.class_obj
        with measured("sampling", guider.model_patcher.load_device) as row:
            row.lines = settings_of(guider.model_patcher)
            # The guider works on a clone of its options while it samples, so this ends with the run.
            guider.model_options.setdefault("transformer_options", {})[ROW] = row
            return executor(*args, **kwargs)


def current_row(options: dict[str, Any]) -> Row:
    """The row of the running sampling."""
    row: Row = options[ROW]
    return row
