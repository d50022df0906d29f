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
from ..core.wrapper_kinds import APPLY_MODEL, CALC_COND_BATCH, DIFFUSION_MODEL, PREDICT_NOISE
from .wrappers import COMPILED, OURS

if TYPE_CHECKING:
    from comfy.model_patcher import ModelPatcher

AROUND_CALLS = (PREDICT_NOISE, CALC_COND_BATCH, APPLY_MODEL, DIFFUSION_MODEL)
# A MODEL's options by which other nodes guide, or call its network, in their own way.
GUIDING = (
    "model_function_wrapper", "sampler_calc_cond_batch_function", "sampler_cfg_function", "sampler_pre_cfg_function",
    "sampler_post_cfg_function",
)  # fmt: skip


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


def steps_as_predicted(model: ModelPatcher) -> bool:
    """Whether a step of a MODEL is all that is predicted of one and no more, so that its time says how fast such models
    are: others' wrappers may leave calls out, as those of the host's EasyCache do, and their guidance may add some."""
    options = model.model_options
    every = (model.wrappers, options.get("transformer_options", {}).get("wrappers", {}))
    around = {str(key) for some in every for kind in AROUND_CALLS for key in some.get(kind, {})}
    others = [key for key in around if key != COMPILED and not key.startswith(OURS)]
    return not others and not any(options.get(name) for name in GUIDING)


def note_run(card: Card, kind: str, work: KernelCosts, seconds: float) -> None:
    """Keeps how long work took on this machine's own device."""
    predicted = card.speed.by_figures(work)
    if kind and predicted > 0 and seconds > 0 and is_here(card.device):
        save_run(speed_path(), device_key(card.device), kind, TimedRun(predicted, seconds))
