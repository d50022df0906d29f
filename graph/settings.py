"""The settings of Make It Fit, and what may stand in them: for commands, requests and whatever else names them.

A sentence that refuses a value begins with what its giver calls it: ``--limit`` on a command line, ``limit`` in a
request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from .formats import shortened

QUALITIES = ("exact", "near_exact", "any")
THIS_MACHINE = "this machine"
CARDS = ("sm75", "sm80", "sm86", "sm89", "sm90", "sm120")
GPUS = (THIS_MACHINE, *CARDS)
LEAST_LIMIT = 0.1  # as the node's widget has it
MOST_GB = 2**20


@dataclass(frozen=True)
class FitSettings:
    """The widgets of Make It Fit, but for ``cfg``, which is the sampler's.

    Attributes:
        quality: what may be lost, one of :data:`QUALITIES`.
        vram_gb: memory of the card in GB of 2^30 bytes; 0: all that it has.
        gpu: one of :data:`GPUS`.
        limit: share of the card's memory that may be used, from :data:`LEAST_LIMIT` to 1.
    """

    quality: str = QUALITIES[0]
    vram_gb: float = 0.0
    gpu: str = THIS_MACHINE
    limit: float = 0.85

    def check(self, names: Mapping[str, str] | None = None) -> None:
        """Checks the values, which may come from anywhere.

        Args:
            names: what their giver calls the settings, where that is not the attribute's name.

        Raises:
            ValueError: a value that makes no sense, named with what to give instead.
        """
        called = {field.name: field.name for field in fields(self)} | dict(names or {})
        check_choice(called["quality"], self.quality, QUALITIES)
        check_share(called["limit"], self.limit)
        check_size(called["vram_gb"], self.vram_gb)
        check_choice(called["gpu"], self.gpu, GPUS)
        if self.limit < LEAST_LIMIT:
            raise ValueError(
                f"{called['limit']}: {self.limit:g} is too small a share of a card; choose from {LEAST_LIMIT:g} to 1"
            )


SETTINGS = tuple(field.name for field in fields(FitSettings))
VERIFY = ("off", "first_step")  # whether Make It Fit measures a step before the rest runs


def check_share(name: str, value: Any) -> None:
    """
    Raises:
        ValueError: no share of a card's memory, above 0 and at most 1.
    """
    if not _is_number(value) or not 0 < value <= 1:
        raise ValueError(
            f"{name}: {shortened(value)} is no share of the card's memory; send a number above 0, 1 at most"
        )


def check_size(name: str, value: Any) -> None:
    """
    Raises:
        ValueError: no size in GB, from 0 to :data:`MOST_GB`.
    """
    if not _is_number(value) or not 0 <= value <= MOST_GB:
        raise ValueError(f"{name}: {shortened(value)} is no size; send GB as a number, 0 for this machine's own")


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """
    Raises:
        ValueError: none of the choices.
    """
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name}: {shortened(value)} is not known; choose one of {', '.join(choices)}")


def check_names(given: Mapping[str, Any], known: tuple[str, ...]) -> None:
    """
    Raises:
        ValueError: a name that is not known.
    """
    unknown = next((name for name in given if name not in known), None)
    if unknown is not None:
        raise ValueError(f"'{unknown}' is not known; choose from {', '.join(known)}")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
