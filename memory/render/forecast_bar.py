"""A forecast as the numbers of a bar: what is on the card at each stage's peak, and what comes over the bus."""

from __future__ import annotations

from ..prediction.forecast import Forecast, Stage
from .memory_bar import STREAMED, Load, MemoryBar


def forecast_bar(forecast: Forecast) -> MemoryBar:
    """Each stage on the card with the weights that stay, as many as are allowed."""
    loads = (_load(forecast, stage) for stage in forecast.stages if not stage.ram)
    return MemoryBar(forecast.card.total, forecast.allowed, tuple(loads))


def _load(forecast: Forecast, stage: Stage) -> Load:
    streamed = forecast.streamed(stage)
    parts = {"weights": stage.weights - streamed, "activations": stage.activations, STREAMED: streamed}
    return Load(stage.work, parts)
