"""Latents of several parts, as a video's and its sound's: the host nests them, and its samplers pack them flat."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import comfy.sampler_helpers
import comfy.samplers
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from .compat import latent_for
from .internals import find

if TYPE_CHECKING:
    from comfy.model_patcher import ModelPatcher

MOST_NUMBERS = 2**26  # of a mask: those of a video of 2160p for half a minute


def is_nested(latent: Any) -> bool:
    """Whether it is of several parts."""
    return bool(getattr(latent, "is_nested", False))


def parts_of(latent: Any) -> list[Tensor]:
    """The parts, or the latent alone."""
    return list(latent.unbind()) if is_nested(latent) else [latent]


def first_part(latent: Any) -> Tensor:
    """The picture of a nested video-and-audio latent, or the latent."""
    return parts_of(latent)[0]


def joined(parts: Sequence[Tensor]) -> Any:
    """Parts as one latent: nested where there are several."""
    return find("comfy.nested_tensor:NestedTensor")(list(parts)) if len(parts) > 1 else parts[0]


def packed_shape(shapes: Sequence[torch.Size]) -> torch.Size:
    """Of a latent in a sampler: (B, 1, cells) where it has several parts."""
    if len(shapes) == 1:
        return shapes[0]
    return torch.Size((shapes[0][0], 1, sum(math.prod(shape[1:]) for shape in shapes)))


def told_shapes(shapes: Sequence[torch.Size]) -> dict[str, Any]:
    """What the host's ``process_conds`` is told of the parts; older hosts know of one alone."""
    known = "latent_shapes" in inspect.signature(comfy.samplers.process_conds).parameters
    return {"latent_shapes": list(shapes)} if known else {}


def shapes_in_model(model: ModelPatcher, latent: Mapping[str, Any]) -> list[torch.Size]:
    """Of a LATENT's parts. An empty one that has one part takes the channels and the scale that the model wants, as in
    the host's samplers, which of some models have several parts."""
    samples = latent["samples"]
    if is_nested(samples):
        return [part.shape for part in parts_of(samples)]
    if isinstance(samples, FakeTensor):
        samples = torch.zeros(()).expand(samples.shape)
    return [part.shape for part in parts_of(latent_for(model, {**latent, "samples": samples}))]


def mask_numbers(mask: Any, shapes: Sequence[torch.Size]) -> Tensor | None:
    """The numbers of a mask of the noise, on the CPU, in the form that the host's samplers give it; None of too many.

    A mask without data is taken to hide nothing, and to differ within each of its pictures if it has more than one
    number for them: models compute more then.

    Args:
        mask: of a LATENT, nested or not; parts that it leaves out are not masked.
        shapes: of the latent's parts in the model.
    """
    if packed_shape(shapes).numel() > MOST_NUMBERS:
        return None
    with unset_fake_temporarily():
        parts = [_numbers(part) for part in parts_of(mask)[: len(shapes)]]
        parts += [torch.ones(shape) for shape in shapes[len(parts) :]]
        cpu = torch.device("cpu")
        made = [comfy.sampler_helpers.prepare_mask(part, shape, cpu).float() for part, shape in zip(parts, shapes)]
        return made[0] if len(made) == 1 else torch.cat([one.reshape(one.shape[0], 1, -1) for one in made], dim=-1)


def pattern_of(mask: Any) -> tuple[Any, ...]:
    """What models ask of a mask's numbers, by its parts and pictures: how many are below zero, and whether all are one.
    Nothing of a mask without data."""
    return tuple(_pattern(part) for part in parts_of(mask)) if mask is not None else ()


def _pattern(mask: Tensor) -> tuple[tuple[int, bool], ...]:
    if isinstance(mask, FakeTensor):
        return ()
    pictures = mask.flatten(-2).reshape(-1, mask.shape[-2:].numel())
    below, one = (pictures < 0).sum(1), pictures.amin(1) == pictures.amax(1)
    return tuple(zip(below.tolist(), one.tolist()))


def _numbers(mask: Tensor) -> Tensor:
    if not isinstance(mask, FakeTensor):
        return mask.cpu()
    numbers = torch.ones(mask.shape)
    if numbers.shape[-2:].numel() > 1:
        numbers[..., 0, 0] = 0.5
    return numbers
