"""What arrives at a node, checked before any work: a prompt may hold anything, and links may carry anything.

The host checks the constants of a prompt, and lets NaN, plain values in the place of links and whatever a link gives
through.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Real
from typing import Any

from comfy import model_patcher, sd
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from ...graph.formats import PLAIN, shortened
from ...graph.to_api import DYNAMIC, Entry, chosen, entries_of

MOST_CHOICES = 12  # that a sentence lists


class NotTaken(ValueError):
    """A value that a node does not take; the message names the input and what it takes."""


def check_there(definition: Mapping[str, Any], needed: Sequence[str], values: Mapping[str, Any]) -> None:
    """Checks that a node gets what it cannot do without: of a dynamic list the host leaves out a choice that there is
    none of.

    Args:
        definition: what ``INPUT_TYPES()`` gives.
        needed: names of the inputs without a default.
        values: by the names of the inputs.

    Raises:
        NotTaken: one is not there; of a list with its choices.
    """
    for name in needed:
        if name not in values:
            entry = next((one for one in entries_of(definition) if one[0] == name), None)
            why = None if entry is None else _no_choice(None, entry[2])
            choices = "" if why is None else f"; choose one of {why.partition('choices: ')[2]}"
            raise NotTaken(f"{name} is missing, or none of its choices{choices}")


def check_given(definition: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Checks values against a node's definition; what is missing may have a default.

    Args:
        definition: what ``INPUT_TYPES()`` gives.
        values: by the names of the inputs.

    Raises:
        NotTaken: a value of another type, a number that is not finite or outside, or none of the choices.
    """
    required = definition.get("required") or {}
    for entry, value in _given(entries_of(definition), values):
        if value is None and entry[0] not in required:
            continue
        why = _why_not(entry, value)
        if why is not None:
            raise NotTaken(f"{entry[0]} {why}")


def _given(entries: Any, values: Mapping[str, Any]) -> Iterator[tuple[Entry, Any]]:
    """The inputs that have values, and those that the choice of a dynamic list brings."""
    for entry in entries:
        name, kind, _ = entry
        if name not in values:
            continue
        value = values[name]
        if kind == DYNAMIC and isinstance(value, Mapping):
            choice = value.get(name)
            yield entry, choice
            brought = {f"{name}.{key}": one for key, one in value.items() if key != name}
            yield from _given(chosen(entry, choice), brought)
        else:
            yield entry, value


def _why_not(entry: Entry, value: Any) -> str | None:
    _, kind, options = entry
    if kind in ("INT", "FLOAT"):
        return out_of_range(value, options)
    if kind in ("COMBO", DYNAMIC):
        return _no_choice(value, options)
    if kind in FORMS and not FORMS[kind][0](value):
        return f"gets {shortened(value)}; {FORMS[kind][1]}"
    return None


def out_of_range(value: Any, options: Mapping[str, Any]) -> str | None:
    """Why a node does not take a number; None if it does.

    Args:
        options: of the input, with or without ``min`` and ``max``.
    """
    if not isinstance(value, Real) or isinstance(value, bool) or not _is_finite(value):
        return f"is {shortened(value)}, which is no number"
    least, most = options.get("min", -math.inf), options.get("max", math.inf)
    return None if least <= value <= most else f"is {shortened(value)}; it takes {least:g} to {most:g}"


def _is_finite(value: Real) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number of hundreds of digits
        return True


def _no_choice(value: Any, options: Mapping[str, Any]) -> str | None:
    known = [one["key"] if isinstance(one, Mapping) else one for one in options.get("options") or ()]
    if not known or value in known:
        return None
    listed = ", ".join(map(str, known[:MOST_CHOICES])) + (" ..." if len(known) > MOST_CHOICES else "")
    return f"is {shortened(value)}, which is none of its choices: {listed}"


# --------------------------------------------------------------------------------------------------- what links carry


def is_latent(value: Any) -> bool:
    """Whether a value is a LATENT: a dictionary with the tensor ``samples``, or with several nested in it."""
    samples = value.get("samples") if isinstance(value, Mapping) else None
    return isinstance(samples, Tensor) or bool(getattr(samples, "is_nested", False))


def is_conditioning(value: Any) -> bool:
    """Whether a value is a CONDITIONING: a list of pairs of an embedding and its options."""
    return isinstance(value, list) and all(
        isinstance(one, (list, tuple)) and len(one) == 2 and isinstance(one[1], dict) for one in value
    )


def _is_model(value: Any) -> bool:
    return isinstance(value, model_patcher.ModelPatcher)


def _is_clip(value: Any) -> bool:
    return isinstance(value, sd.CLIP) or hasattr(value, "cond_stage_model")


def _is_vae(value: Any) -> bool:
    return isinstance(value, sd.VAE) or (hasattr(value, "decode") and not isinstance(value, PLAIN))


def _is_image(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim in (4, 5) and 0 not in value.shape


# By type of input: whether a value is one, and what to do where it is none. Packs bring text encoders and VAEs of their
# own that are no subclasses of the host's.
FORMS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "MODEL": (_is_model, "connect a MODEL, as loaders give it"),
    "CLIP": (_is_clip, "connect a CLIP, as loaders give it"),
    "VAE": (_is_vae, "connect a VAE, as loaders give it"),
    "LATENT": (is_latent, "connect a LATENT, from an empty latent, an encode or a sampler"),
    "CONDITIONING": (is_conditioning, "connect a CONDITIONING, as CLIP Text Encode gives it"),
    "IMAGE": (_is_image, "connect an IMAGE: pictures of (batch, height, width, channels)"),
    "STRING": (lambda value: isinstance(value, str), "it takes text"),
    "BOOLEAN": (lambda value: isinstance(value, (bool, int)), "it takes true or false"),
}


def check_latent(latent: Mapping[str, Any], model: Any, name: str = "samples") -> None:
    """Checks a LATENT against the format of the model that is to sample it.

    An empty one of another count of channels is taken: the host's samplers give it the model's. Of a nested one nothing
    says what its parts are like, but that there is something in each.

    Raises:
        NotTaken: another count of dimensions or of channels, or nothing in it.
    """
    samples = latent["samples"]
    if getattr(samples, "is_nested", False):
        if any(0 in part.shape for part in samples.unbind()):
            raise NotTaken(f"{name} has a part with nothing in it; connect latents of a video and of its sound")
        return
    form, kind = model.get_model_object("latent_format"), type(model.model).__name__
    wanted = form.latent_dimensions + 2
    if 0 in samples.shape or not (samples.ndim == wanted or (wanted == 5 and samples.ndim == 4)):
        raise NotTaken(
            f"{name} has the shape {_shape(samples)}, but {kind} samples latents of {wanted} dimensions"
            f" ({AXES.get(wanted, '')}); connect the empty latent that belongs to this model"
        )
    if samples.shape[1] != form.latent_channels and not _is_empty(samples):
        raise NotTaken(
            f"{name} has {samples.shape[1]} channels, but {kind} samples latents of {form.latent_channels};"
            " connect a latent that was made for this model"
        )


def _is_empty(samples: Tensor) -> bool:
    """As the host's samplers see it. Nobody knows of a tensor without data, which gets the benefit of the doubt."""
    return isinstance(samples, FakeTensor) or not samples.count_nonzero()


AXES = {
    3: "batch, channels, length",
    4: "batch, channels, height, width",
    5: "batch, channels, frames, height, width",
}


def check_latent_of(vae: Any, samples: Tensor, name: str = "samples") -> None:
    """Checks a latent against the VAE that is to decode it.

    Raises:
        NotTaken: another count of channels.
    """
    channels = getattr(vae, "latent_channels", None)
    if channels is not None and samples.ndim > 2 and samples.shape[1] != channels:
        raise NotTaken(
            f"{name} has {samples.shape[1]} channels, but this VAE decodes latents of {channels}; connect the VAE that"
            " belongs to the model"
        )


def _shape(tensor: Tensor) -> str:
    return " x ".join(map(str, tensor.shape))
