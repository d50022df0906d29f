"""The inputs of a node as a workflow gives them: nothing has checked them, so what stages rely on is checked here."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from comfy import model_patcher, sd
from torch import Tensor

from ...graph.formats import as_number
from ...graph.to_api import entries_of

Given = TypeVar("Given")
# What the host gives or lets through, by the type of an input.
TYPES: dict[str, type[Any] | tuple[type[Any], ...]] = {
    "MODEL": model_patcher.ModelPatcher, "CLIP": sd.CLIP, "VAE": sd.VAE, "LATENT": dict, "CONDITIONING": list,
    "INT": (int, float), "FLOAT": (int, float), "STRING": str, "BOOLEAN": bool,
}  # fmt: skip


class NotFollowed(Exception):
    """A node that a dry run does not follow; the message says why."""


@dataclass(frozen=True)
class Guided:
    """What a guider gives to a sampler.

    Attributes:
        model: the MODEL.
        positive, negative: CONDITIONING.
        cfg: 1 where guidance is off.
    """

    model: model_patcher.ModelPatcher
    positive: list[Any]
    negative: list[Any]
    cfg: float


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

    def model(self) -> model_patcher.ModelPatcher:
        """The MODEL at ``model``."""
        return self._of("model", model_patcher.ModelPatcher, "model")

    def clip(self) -> sd.CLIP:
        """The CLIP at ``clip``."""
        return self._of("clip", sd.CLIP, "text encoder")

    def vae(self) -> sd.VAE:
        """The VAE at ``vae``.

        Raises:
            RuntimeError: the host's own, for a checkpoint without one.
        """
        vae: sd.VAE = self._of("vae", sd.VAE, "VAE")
        vae.throw_exception_if_invalid()
        return vae

    def pixels(self) -> Tensor:
        """The IMAGE at ``pixels``, (B, H, W, C)."""
        return self._of("pixels", Tensor, "picture")

    def guided(self) -> Guided:
        """What a guider gave at ``guider``."""
        return self._of("guider", Guided, "guider")

    def latent(self, name: str) -> dict[str, Any]:
        """A LATENT: a dictionary with the tensor ``samples``."""
        found: dict[str, Any] = self._of(name, dict, "latent")
        if not (isinstance(found.get("samples"), Tensor) or getattr(found.get("samples"), "is_nested", False)):
            raise NotFollowed(f"{self.kind}: {name} gets no latent")
        return found

    def conditioning(self, name: str) -> list[Any]:
        """A CONDITIONING: pairs of an embedding and its options."""
        found: list[Any] = self._of(name, list, "conditioning")
        if not all(isinstance(one, (list, tuple)) and len(one) == 2 and isinstance(one[1], dict) for one in found):
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

    def check(self, definition: Mapping[str, Any]) -> None:
        """Checks values against a node's definition, ``INPUT_TYPES()``; what is missing may have a default.

        Raises:
            NotFollowed: a value of another type, or none of the choices.
        """
        required = definition.get("required") or {}
        for name, kind, options in entries_of(definition):
            if name not in self or (self[name] is None and name not in required):
                continue
            if not isinstance(self[name], TYPES.get(kind, object)):
                raise NotFollowed(f"{self.kind}: {name} gets no {kind}")
            if kind == "COMBO" and options.get("options") and self[name] not in options["options"]:
                raise NotFollowed(f"{self.kind}: {name} is {self[name]!r}, which is none of its choices")

    def check_ranges(self, definition: Mapping[str, Any], names: Collection[str]) -> None:
        """Checks numbers against the range that a node's definition gives.

        Args:
            definition: ``INPUT_TYPES()``.
            names: of the inputs to check.

        Raises:
            NotFollowed: a number outside.
        """
        for name, kind, options in entries_of(definition):
            value = as_number(self.get(name)) if name in names and kind in ("INT", "FLOAT") else None
            least, most = options.get("min", -math.inf), options.get("max", math.inf)
            if value is not None and not least <= value <= most:
                raise NotFollowed(f"{self.kind}: {name} is {shortened(self[name])}; it takes {least:g} to {most:g}")

    def _of(self, name: str, kind: type[Given], called: str) -> Given:
        value = self[name]
        if not isinstance(value, kind):
            raise NotFollowed(f"{self.kind}: {name} gets no {called}")
        return value


def shortened(value: Any) -> str:
    """A value of a workflow for a sentence: it may have thousands of digits."""
    try:
        return reprlib.repr(value)
    except ValueError:  # Python writes no whole number of more than 4,300 digits
        return "a number of thousands of digits"
