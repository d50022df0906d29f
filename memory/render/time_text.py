"""How long a forecast's stages take, as text: by which figures, and how far they were off so far."""

from __future__ import annotations

from collections.abc import Iterator

from ..prediction.forecast import Forecast, Stage
from ..units import format_seconds

LEFT_OUT = "reading the files is not in it"


def stage_seconds(forecast: Forecast, stage: Stage) -> str:
    """Of one stage, as "about 1.2 s a step, 24 s for 20 steps; 0.5 s of each copies weights"; empty where its kernels
    are not known."""
    if not stage.prediction.work:
        return ""
    each, copying = forecast.seconds_each(stage), forecast.copying(stage)
    a_step = " a step" if stage.work in ("sampling", "training") else " each time" if stage.times != 1 else ""
    text = f"about {format_seconds(each)}{a_step}"
    if stage.times > 1:
        what = "steps" if stage.work == "sampling" else "times"
        text += f", {format_seconds(each * stage.times)} for {stage.times:g} {what}"
    if copying:
        partly = "in part while it computes" if forecast.card.is_cuda else "between"
        how = "while it computes" if stage.staging else partly
        text += f"; weights are copied {format_seconds(copying)} of each, {how}"
    return text + _so_far(forecast, stage)


def _so_far(forecast: Forecast, stage: Stage) -> str:
    """How well it was told before on this device."""
    history = forecast.card.speed.history
    error, runs = history.error(stage.kind), history.count(stage.kind)
    if error is None:
        return ""
    return f" (here in {runs} runs up to {error:.0%} off)"


def all_seconds(forecast: Forecast) -> Iterator[str]:
    """A line of the time that all stages take together, where that can be told of any."""
    if not any(stage.prediction.work for stage in forecast.stages):
        return
    speed = forecast.card.speed
    stages = [stage for stage in forecast.stages if stage.prediction.work and stage.times]
    unknown = [stage.work for stage in forecast.stages if stage not in stages]
    more = f" without {' and '.join(dict.fromkeys(unknown))}" if stages and unknown else ""
    total = f"about {format_seconds(forecast.seconds)}{more}" if stages else "by the step"
    measured = "" if speed.history.runs or speed.source.startswith("measured") else ", not measured here"
    yield f"time {total}, by {speed.source}{measured}; {LEFT_OUT}"
