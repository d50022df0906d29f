"""Guidance in turns: positive and negative go through the model one after the other, in half the memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..core.wrapper_kinds import CALC_COND_BATCH
from ..measure.runs import notice
from ..measure.wrappers import ROW, measure_sampling, wrap

if TYPE_CHECKING:
    from comfy.model_patcher import ModelPatcher

WRAPPER_KEY = "headroom_in_turns"
OPTIONS = 3  # the model's, among the arguments of the host's batching behind the model
KEPT_TOGETHER = "guidance stays together: a patch of the model compares both texts in one call"


def compares_texts(model_options: Mapping[str, Any]) -> bool:
    """Whether a patch of the model looks at both texts in one call, as ComfyUI's Normalized Attention Guidance does,
    which would do nothing in turns: one of the attention's results, of a model whose negative counts even at cfg 1."""
    patches = model_options.get("transformer_options", {}).get("patches", {})
    return bool(patches.get("attn1_output_patch")) and bool(model_options.get("disable_cfg1_optimization"))


def guide_in_turns(model: ModelPatcher) -> ModelPatcher:
    """A clone of ``model`` that computes one conditioning per call; the same result up to float rounding."""
    clone = model.clone()
    measure_sampling(clone)
    wrap(clone, CALC_COND_BATCH, WRAPPER_KEY, in_turns)
    return clone


def in_turns(executor: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
    """A wrapper of the host's batching, which joins conditionings only where it finds the memory for them."""
    options = args[OPTIONS] if len(args) > OPTIONS else kwargs.get("model_options", {})
    if not compares_texts(options):
        return executor(OneAtATime(model), *args, **kwargs)
    row = options["transformer_options"].get(ROW)
    if row is not None and KEPT_TOGETHER not in row.notices:
        notice(row, KEPT_TOGETHER)
    return executor(model, *args, **kwargs)


class OneAtATime:
    """The host's model, except that no memory is enough for it.

    The host's batching asks ``memory_required`` only before it joins a further conditioning to the first. Nothing of
    the model or its patcher is changed, so that calls which overlap, in threads or nested, do not see each other.
    """

    def __init__(self, model: Any) -> None:
        object.__setattr__(self, "_model", model)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._model, name, value)

    @property  # type: ignore[misc]  # wrappers behind this one may ask what kind of model it is
    def __class__(self) -> type:
        return type(self._model)

    def memory_required(self, *args: Any, **kwargs: Any) -> float:
        """More bytes than there can be."""
        return math.inf
