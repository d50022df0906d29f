"""The inputs of a node as a workflow gives them: nothing has checked them, so what stages rely on is checked here."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from comfy import clip_vision, model_patcher, sd
from torch import Tensor

from ...graph.formats import as_number, shortened
from ...graph.to_api import entries_of
from ..core.given import NotTaken, check_given, is_conditioning, is_latent, out_of_range
from ..vae.settings import VAESettings

Given = TypeVar("Given")
BOX = "__value__"
NUMBERS: dict[str, Callable[[str], float]] = {"INT": int, "FLOAT": float}


class NotFollowed(Exception):
    """A node that a dry run does not follow; the message says why."""


class NotReached(NotFollowed):
    """It waits for a node that is not followed."""


class FileMissing(NotFollowed):
    """It loads a file that is not there, and that the catalogue does not have."""


@dataclass(frozen=True)
class Guided:
    """What a guider gives to a sampler.

    Attributes:
        model: the MODEL.
        positive, negative: CONDITIONING.
        cfg: 1 where guidance is off.
        middle: CONDITIONING of a second text that guides; None: there is none.
        other: the model that computes the negative, and its CONDITIONING; None: the same model does.
    """

    model: model_patcher.ModelPatcher
    positive: list[Any]
    negative: list[Any]
    cfg: float
    middle: list[Any] | None = None
    other: Guided | None = None


class Inputs(dict[str, Any]):
    """Values by the names of a node's inputs; one that is missing or of the wrong kind ends the node with a sentence.

    Args:
        kind: the node's class, for the sentences.
        values: its inputs, links replaced by what they give.
    """

    def __init__(self, kind: str, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.kind = kind

    def __missing__(self, name: str) -> Any:
        raise NotFollowed(f"{self.kind}: it has no {name}")

    def model(self, name: str = "model") -> model_patcher.ModelPatcher:
        """A MODEL."""
        return self._of(name, model_patcher.ModelPatcher, "model")

    def clip(self) -> sd.CLIP:
        """The CLIP at ``clip``."""
        return self._of("clip", sd.CLIP, "text encoder")

    def vae(self, name: str = "vae") -> sd.VAE:
        """The VAE of a name.

        Raises:
            RuntimeError: the host's own, for a checkpoint without one.
        """
        vae: sd.VAE = self._of(name, sd.VAE, "VAE")
        vae.throw_exception_if_invalid()
        return vae

    def vision(self) -> clip_vision.ClipVisionModel:
        """The CLIP_VISION at ``clip_vision``."""
        return self._of("clip_vision", clip_vision.ClipVisionModel, "vision model")

    def pixels(self) -> Tensor:
        """The IMAGE at ``pixels``, (B, H, W, C)."""
        return self._of("pixels", Tensor, "picture")

    def image(self) -> Tensor:
        """The IMAGE at ``image``, (B, H, W, C)."""
        return self._of("image", Tensor, "picture")

    def guided(self) -> Guided:
        """What a guider gave at ``guider``."""
        return self._of("guider", Guided, "guider")

    def guidance(self) -> Guided:
        """What guides a sampler that has the inputs itself."""
        return Guided(self.model(), self.conditioning("positive"), self.conditioning("negative"), self.number("cfg"))

    def latent(self, name: str) -> dict[str, Any]:
        """A LATENT: a dictionary with the tensor ``samples``."""
        found: dict[str, Any] = self._of(name, dict, "latent")
        if not is_latent(found):
            raise NotFollowed(f"{self.kind}: {name} gets no latent")
        return found

    def conditioning(self, name: str) -> list[Any]:
        """A CONDITIONING: pairs of an embedding and its options."""
        found: list[Any] = self._of(name, list, "conditioning")
        if not is_conditioning(found):
            raise NotFollowed(f"{self.kind}: {name} gets no conditioning")
        return found

    def number(self, name: str) -> float:
        """A number, of a widget or connected."""
        found = as_number(self[name])
        if found is None or not math.isfinite(found):
            raise NotFollowed(f"{self.kind}: {name} is {shortened(self[name])}, which is no number")
        return found

    def without(self, *names: str) -> dict[str, Any]:
        """All but the inputs of these names."""
        return {name: value for name, value in self.items() if name not in names}

    def cast(self, definition: Mapping[str, Any], names: Collection[str]) -> None:
        """Brings what a workflow itself gives to the types of a node's inputs, as the host does before it checks them:
        numbers may be written as words, and lists lie in boxes, since a list is a link.

        Args:
            definition: ``INPUT_TYPES()``.
            names: of the inputs that the workflow gives.

        Raises:
            NotFollowed: words that are no number.
        """
        for name in names:
            if isinstance(self[name], dict) and BOX in self[name]:
                self[name] = self[name][BOX]
        for name, kind, _ in entries_of(definition):
            if name in names and kind in NUMBERS and isinstance(self[name], str):
                try:
                    self[name] = NUMBERS[kind](self[name])
                except ValueError as error:
                    raise NotFollowed(f"{self.kind}: {name} is {shortened(self[name])}, which is no number") from error

    def check(self, definition: Mapping[str, Any]) -> None:
        """Checks values against a node's definition, ``INPUT_TYPES()``; what is missing may have a default.

        Raises:
            NotFollowed: a value of another type, or none of the choices.
        """
        try:
            check_given(definition, self)
        except NotTaken as error:
            raise NotFollowed(f"{self.kind}: {error}") from error

    def check_ranges(self, definition: Mapping[str, Any], names: Collection[str]) -> None:
        """Checks numbers against the range that a node's definition gives.

        Args:
            definition: ``INPUT_TYPES()``.
            names: of the inputs to check.

        Raises:
            NotFollowed: a number outside.
        """
        for name, kind, options in entries_of(definition):
            if name in names and kind in ("INT", "FLOAT") and as_number(self[name]) is not None:
                why = out_of_range(self[name], options)
                if why is not None:
                    raise NotFollowed(f"{self.kind}: {name} {why}")

    def _of(self, name: str, kind: type[Given], called: str) -> Given:
        value = self[name]
        if not isinstance(value, kind):
            raise NotFollowed(f"{self.kind}: {name} gets no {called}")
        return value


def vae_settings(kind: str, widgets: Mapping[str, Any]) -> VAESettings:
    """The settings of a low-memory VAE, from the widgets of its node.

    Raises:
        NotFollowed: names or values that it does not have.
        ValueError: settings that make no sense.
    """
    with of_the_workflow(kind):
        settings = VAESettings(**widgets)
        settings.check()
        return settings


@contextmanager
def of_the_workflow(kind: str) -> Iterator[None]:
    """Around what is made of the widgets of a workflow alone: names and values that it should not have are its own."""
    try:
        yield
    except (TypeError, ArithmeticError) as error:
        raise NotFollowed(f"{kind}: {error}") from error
