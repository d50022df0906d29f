"""Guidance in turns: positive and negative go through the model one after the other, in half the memory."""

from __future__ import annotations

from typing import Any

from comfy.model_patcher import ModelPatcher
from comfy.patcher_extension import WrappersMP

from ..measure.wrappers import measure_sampling, wrap

WRAPPER_KEY = "headroom_in_turns"


def guide_in_turns(model: ModelPatcher) -> ModelPatcher:
    """A clone of ``model`` that computes one conditioning per call; the same result up to float rounding."""
    clone = model.clone()
    measure_sampling(clone)
    wrap(clone, WrappersMP.CALC_COND_BATCH, WRAPPER_KEY, in_turns)
    return clone


def guides_in_turns(model: ModelPatcher) -> bool:
    return bool(model.wrappers.get(WrappersMP.CALC_COND_BATCH, {}).get(WRAPPER_KEY))


def in_turns(executor: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
    """A wrapper of the host's batching: while it asks for room for a second conditioning, there is none."""
    patcher = model.current_patcher
    before = vars(patcher).get("get_free_memory")
    patcher.get_free_memory = lambda *_, **__: 0
    try:
        return executor(model, *args, **kwargs)
    finally:
        del patcher.get_free_memory
        if before is not None:
            patcher.get_free_memory = before
