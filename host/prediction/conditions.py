"""CONDITIONING without data: what a prediction keeps of it, and masks of texts that make no difference.

CONDITIONING is the host's list of [text, options].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import comfy.sampler_helpers
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from ...memory.prediction import fake_tree, has_stated_zeros, state_zeros
from .networks import CONTROL, Beside

# Options that bring a model of their own or depend on the noise level. Every conditioning counts at every level.
LEFT_OUT = ("gligen", "hooks", "start_percent", "end_percent", "timestep_start", "timestep_end")
MASK = "attention_mask"  # of a text's tokens
TEXT = "cross_attn"  # the text itself, as the host's sampler calls it


def fake_conditions(
    conditioning: Sequence[Any], beside: Beside | None = None, memo: dict[int, Tensor] | None = None
) -> list[dict[str, Any]]:
    """Conditions as the host's sampler wants them, without data, and where they are: it is the host that brings them to
    the card. Masks that hide nothing are left to :func:`with_masks`. Call it in a fake mode.

    Args:
        conditioning: CONDITIONING.
        beside: has copies of its ControlNets; None: they are left out.
        memo: as for :func:`...memory.prediction.fake_tree`: the host asks whether two texts have one thing beside them.
    """
    kept = comfy.sampler_helpers.convert_cond(list(conditioning))
    for one in kept:
        mask = one.get(MASK)
        if isinstance(mask, Tensor) and hides_nothing(mask):
            one[MASK] = IdleMask(mask.shape, mask.dtype, mask.device)
        control = one.pop(CONTROL, None)
        control = None if beside is None else beside.control(control)
        if control is not None:
            one[CONTROL] = control
    faked: list[dict[str, Any]] = fake_tree(
        [{key: value for key, value in one.items() if key not in LEFT_OUT} for one in kept], memo=memo
    )
    for before, after in zip(kept, faked):
        if isinstance(before.get(TEXT), Tensor) and is_empty(before[TEXT]):
            state_zeros(after[TEXT])
    return faked


def is_empty(text: Tensor) -> bool:
    """Whether a text was set to zeros; ACE-Step 1.5 asks, and computes such a one by itself."""
    with unset_fake_temporarily():
        return has_stated_zeros(text) if isinstance(text, FakeTensor) else not bool(text.any())


@dataclass(frozen=True)
class IdleMask:
    """A mask of a text that hides nothing, before it is made."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    def made(self) -> Tensor:
        """Of ones, which whoever follows the work without data can count."""
        return torch.ones(self.shape, dtype=self.dtype, device=self.device)


def with_masks(conditioning: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The conditions of :func:`fake_conditions`, with the masks that hide nothing."""
    return [
        {key: value.made() if isinstance(value, IdleMask) else value for key, value in one.items()}
        for one in conditioning
    ]


def fake_processed(conds: dict[str, list[dict[str, Any]]]) -> None:
    """Takes the data from processed conditions, in place: models make some of numbers, by constructors that no fake
    mode sees."""
    for conditioning in conds.values():
        for one in conditioning:
            for condition in one["model_conds"].values():
                if hasattr(condition, "cond"):
                    condition.cond = fake_tree(condition.cond)


def hides_nothing(mask: Tensor) -> bool:
    """A text that was encoded without data is taken to fill its mask: the host pads only what is encoded together."""
    with unset_fake_temporarily():
        return isinstance(mask, FakeTensor) or bool((mask != 0).all())


def has_idle_mask(conditioning: Sequence[Any]) -> bool:
    """Whether there is a text with a mask that hides nothing."""
    return any(MASK in options and hides_nothing(options[MASK]) for _, options in conditioning)


def without_idle_masks(conditioning: Sequence[Any]) -> list[Any]:
    """The conditioning without the masks that hide nothing."""
    return [
        [text, {key: value for key, value in options.items() if key != MASK or not hides_nothing(value)}]
        for text, options in conditioning
    ]
