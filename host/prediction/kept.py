"""Predictions that were made before, each kept under everything that it reads."""

from __future__ import annotations

import threading
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from ...memory.prediction import Card
from ..core.latents import is_nested, parts_of, pattern_of
from ..measure.calibrated import workspaces_for
from ..measure.wrappers import COMPILED
from ..offload.budget import budget_of
from .conditions import LEFT_OUT, MASK, hides_nothing, is_empty
from .step import READ_WRAPPERS, Step
from .vae import Coding

if TYPE_CHECKING:
    from comfy.model_patcher import ModelPatcher

MOST_KEPT = 32  # predictions of one model
KEPT: weakref.WeakKeyDictionary[Any, OrderedDict[Any, Any]] = weakref.WeakKeyDictionary()
PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)
_LOCK = threading.Lock()
Kept = TypeVar("Kept")


def kept(owner: Any, key: Hashable, predict: Callable[[], Kept]) -> Kept:
    """A prediction made before, or a new one.

    Args:
        owner: the module it is of; with it the prediction goes.
        key: everything else that it depends on.
    """
    with _LOCK:
        of_owner = KEPT.setdefault(owner, OrderedDict())
        if key in of_owner:
            of_owner.move_to_end(key)
            known: Kept = of_owner[key]
            return known
    found = predict()
    with _LOCK:
        of_owner[key] = found
        while len(of_owner) > MOST_KEPT:
            of_owner.popitem(last=False)
    return found


# ------------------------------------------------------------------------------------------------------------ keys


def step_key(step: Step, card: Card) -> Hashable:
    """What the prediction of a step reads beside the module itself."""
    return (
        described(card), described(workspaces_for(card)), described(step.latent), described(step.mask),
        _conditions(step.positive), _conditions(step.negative), step.cfg == 1.0, step.together,
        _conditions(step.middle), step.block, patcher_key(step.model), pattern_of(step.mask),
    )  # fmt: skip


def text_key(clip: Any, card: Card) -> Hashable:
    """What the prediction of a text encoding reads beside the module itself."""
    return (
        "text", described(card), described(workspaces_for(card)), clip.layer_idx,
        described(getattr(clip, "tokenizer_options", None)), patcher_key(clip.patcher),
    )  # fmt: skip


def coding_key(coding: Coding, card: Card) -> Hashable:
    """What the prediction of an encode or decode reads beside the module itself."""
    vae = coding.vae
    return (
        coding.work, described(card), described(workspaces_for(card)), described(coding.x), described(coding.tiles),
        described(coding.options), coding.follow, coding.file_budget_gb,
        described(getattr(vae, "headroom_settings", None)), type(vae),
        vae.vae_dtype, described(vae.output_device), patcher_key(vae.patcher),
    )  # fmt: skip


def patcher_key(model: ModelPatcher) -> Hashable:
    """What nodes changed of a model: patches of its parts, options, the wrappers that are asked, the budget."""
    wrappers = {
        kind: {key: found for key, found in model.wrappers.get(kind, {}).items() if key != COMPILED}
        for kind in READ_WRAPPERS
    }
    return tuple(
        described(one) for one in (type(model), budget_of(model), model.object_patches, model.model_options, wrappers)
    )


def _conditions(conditioning: Sequence[Any]) -> Hashable:
    """Shapes, numbers, whether a text is all zeros and whether its mask hides anything: what a model computes depends
    on these data."""
    return tuple(
        (
            described(text),
            described({key: value for key, value in options.items() if key not in LEFT_OUT}),
            MASK in options and hides_nothing(options[MASK]),
            isinstance(text, Tensor) and is_empty(text),
        )
        for text, options in conditioning
    )


def described(value: Any) -> Hashable:
    """A value as a key of a dictionary: tensors by shape and dtype, containers and frozen dataclasses by what they
    hold, any other object by its identity, without keeping it alive."""
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, Tensor):
        return (Tensor, tuple(value.shape), value.dtype)
    if is_nested(value):
        return (type(value), tuple(map(described, parts_of(value))))
    if isinstance(value, Mapping):
        return (Mapping, frozenset((described(key), described(one)) for key, one in value.items()))
    if isinstance(value, (set, frozenset)):
        return (set, frozenset(map(described, value)))
    if isinstance(value, (list, tuple)):
        return (Sequence, tuple(map(described, value)))
    if is_dataclass(value) and not isinstance(value, type) and value.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        compared = (getattr(value, field.name) for field in fields(value) if field.compare)
        return (type(value), tuple(map(described, compared)))
    return _of_code(value)


def _of_code(value: Any) -> Hashable:
    if isinstance(value, partial):
        return (partial, described(value.func), described(value.args), described(value.keywords))
    if isinstance(value, types.MethodType):
        return (types.MethodType, described(value.__self__), described(value.__func__))
    return Same(value)


class Same:
    """Equal only to one of the same object, and to none once that object is gone: another may get its address."""

    __slots__ = ("_number", "_of")

    def __init__(self, value: object) -> None:
        self._number = id(value)
        try:
            self._of: Callable[[], object] = weakref.ref(value)
        except TypeError:  # of a kind that has no weak references
            self._of = lambda: value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Same):
            return False
        value = self._of()
        return value is not None and value is other._of()

    def __hash__(self) -> int:
        return self._number
