"""A forecast as text, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator

from ..prediction.forecast import Forecast, Stage, Verdict
from ..units import format_bytes
from .time_text import all_seconds, stage_seconds

SENTENCES = {
    Verdict.RESIDENT: "fits, with all weights on the card",
    Verdict.STREAMS: "fits, with weights streamed from RAM at every step",
    Verdict.DOES_NOT_FIT: "does not fit",
}


def render_forecast(forecast: Forecast, notes: tuple[str, ...] = (), doubt: str = "") -> str:
    """Paragraphs: the verdict, behind what makes it doubtful, three numbers, a line per stage, advice, notes."""
    lines = [
        f"Will it fit? · {forecast.card.title} · {forecast.limit:.0%} of it: {format_bytes(forecast.allowed)}",
        *([f"! {doubt}"] if doubt else []),
        f"{forecast.verdict.value}: {SENTENCES[forecast.verdict]}",
        f"everything resident {format_bytes(forecast.peak)} · least VRAM {format_bytes(forecast.least)} · activations"
        f" alone {format_bytes(forecast.activations)}",
        f"RAM for weights {format_bytes(forecast.ram_needed)}"
        + (f" of {format_bytes(forecast.ram)}" if forecast.ram else ""),
        *all_seconds(forecast),
        "",
        *(line for stage in forecast.stages for line in _stage_lines(forecast, stage)),
    ]
    advice = list(advise(forecast))
    if advice:
        lines += ["", *advice]
    lines += [f"! {note}" for note in notes]
    return "\n".join(lines)


def _stage_lines(forecast: Forecast, stage: Stage) -> Iterator[str]:
    method = f" ({stage.method})" if stage.method else ""
    low, high = stage.spread(forecast.card)
    yield (
        f"{stage.work}{method}: {format_bytes(stage.resident)} of weights + {format_bytes(stage.activations)}"
        f" ({format_bytes(low)} to {format_bytes(high)}) = {format_bytes(stage.peak)}"
    )
    found = stage.prediction
    if stage.doubt:
        yield f"  the host's own estimate, not a prediction: {stage.doubt}"
    elif found.module or found.operator:
        yield f"  most at {found.module or 'its end'}, {found.operator.removeprefix('aten.').partition('.')[0]}"
    streamed = forecast.streamed(stage)
    if streamed and stage.least <= forecast.allowed:
        yield f"  streams {format_bytes(streamed)} each time the model runs"
    seconds = stage_seconds(forecast, stage)
    if seconds:
        yield f"  {seconds}"


def advise(forecast: Forecast) -> Iterator[str]:
    """One line per thing that would help, the exact ones first."""
    for stage in forecast.too_big():
        over = f"{stage.work} needs {format_bytes(stage.least)} at least, {format_bytes(forecast.allowed)} are allowed"
        if stage.work in ("encode", "decode"):
            yield f"{over}: put Low-Memory VAE before it, which does it exactly in less"
        elif stage.work == "training":
            yield f"{over}: put Training Memory before Train LoRA; Will Training Fit? tells what each plan takes"
        elif stage.work == "sampling":
            yield f"{over}: make the picture or the batch smaller, or sample guidance in turns (Make It Fit does)"
        elif stage.work in ("vision", "sound", "upscale"):
            yield f"{over}: take a smaller model for it, or the same in fewer bits"
        else:
            yield f"{over}: run the text encoder on the CPU (a device input of its loader)"
    if forecast.ram and forecast.ram_needed > forecast.ram:
        yield "RAM: the weights do not fit into it; Layerwise Casting with a cache_file keeps them on the disk"
    if forecast.verdict is Verdict.STREAMS:
        yield "faster: Layerwise Casting halves what is streamed (near-exact); a smaller picture leaves more room"
