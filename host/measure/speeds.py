"""How fast this machine's devices are, as they were measured, and what models took on them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import folder_paths

from ...memory.accelerator import is_here
from ...memory.prediction import Card
from ...memory.speed import KernelCosts, TimedRun
from ...memory.speed.kept import device_key, load_speed, save_run

if TYPE_CHECKING:
    from comfy.model_patcher import ModelPatcher


def speed_path() -> Path:
    """The file, in the host's user folder."""
    return Path(folder_paths.get_user_directory()) / "headroom" / "speed.json"


def with_speed(card: Card) -> Card:
    """A card of this machine, with what was measured of it; the file is read each time."""
    if not is_here(card.device):
        return card
    return replace(card, measured=load_speed(speed_path(), device_key(card.device), card.speed))


def kind_of(work: str, model: Any, dtype: Any) -> str:
    """By what is known how long such a model took here: its class, what it does, and the dtype that it computes in."""
    return f"{type(model).__name__}, {work}, {str(dtype).removeprefix('torch.')}"


def kind_of_sampling(model: ModelPatcher) -> str:
    """The same of a MODEL's step."""
    inner = model.model
    return kind_of("sampling", inner, getattr(inner, "manual_cast_dtype", None) or inner.get_dtype())


def note_run(card: Card, kind: str, work: KernelCosts, seconds: float) -> None:
    """Keeps how long work took on this machine's own device."""
    predicted = card.speed.by_figures(work)
    if kind and predicted > 0 and seconds > 0 and is_here(card.device):
        save_run(speed_path(), device_key(card.device), kind, TimedRun(predicted, seconds))
