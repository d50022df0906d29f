"""A forecast as plain numbers, for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .card import GB
from .forecast import Forecast, Stage

SCHEMA = 1  # of the keys: another number where one of them goes or means something else


def forecast_numbers(forecast: Forecast, unknown: Sequence[str] = (), complete: bool = True) -> dict[str, Any]:
    """What can be written as JSON, as `docs/headless.md` tells its keys. Sizes are in GB of 2^30 bytes.

    Args:
        forecast: of a workflow.
        unknown: one line per node that was not followed.
        complete: whether all that takes memory was followed.
    """
    return {
        "schema": SCHEMA,
        "verdict": forecast.verdict.value,
        "or_tiles": forecast.or_tiles,
        "card": forecast.card.title,
        "card_gb": forecast.card.total / GB,
        "allowed_gb": forecast.allowed / GB,
        "peak_gb": forecast.peak / GB,
        "least_vram_gb": forecast.least / GB,
        "activations_gb": forecast.activations / GB,
        "streamed_gb_per_step": forecast.streamed_per_step / GB,
        "ram_gb": forecast.ram_needed / GB,
        "ram_frames_gb": forecast.ram_frames / GB,
        "disk_gb": forecast.disk / GB,
        "seconds": forecast.seconds if forecast.timed else None,
        "seconds_by": forecast.card.speed.source,
        "stages": [_stage_numbers(forecast, stage) for stage in forecast.stages],
        "unknown": list(unknown),
        "complete": complete,
    }


def _stage_numbers(forecast: Forecast, stage: Stage) -> dict[str, Any]:
    return {
        "node": stage.node,
        "work": stage.work,
        "method": stage.method,
        "weights_gb": stage.weights / GB,
        "activations_gb": stage.activations / GB,
        "peak_gb": stage.peak / GB,
        "up_to_gb": max(stage.up_to, stage.peak) / GB,
        "streamed_gb": forecast.streamed(stage) / GB,
        "seconds_each": forecast.seconds_each(stage) if stage.prediction.work else None,
        "times": stage.times or None,
        "module": stage.prediction.module,
        "predicted": not stage.doubt,
    }
