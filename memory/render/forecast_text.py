"""A forecast as text, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator

from ..prediction.forecast import Forecast, Stage, Verdict
from ..units import format_bytes
from .time_text import all_seconds, stage_seconds

SENTENCES = {
    Verdict.RESIDENT: "fits, with all weights {place}",
    Verdict.STREAMS: "fits, with weights streamed from RAM at every step",
    Verdict.DOES_NOT_FIT: "does not fit, by this prediction",
}
OR_TILES = "; ComfyUI would run out of memory, and go on in tiles, which give another result"

MANY_FRAMES = 2**28  # bytes of decoded frames from which on they are told


def render_forecast(forecast: Forecast, notes: tuple[str, ...] = (), doubt: str = "") -> str:
    """Paragraphs: the verdict, behind what makes it doubtful, three numbers, a line per stage, advice, notes."""
    lines = [
        f"Will it fit? · {forecast.card.title} · {forecast.limit:.0%} of it: {format_bytes(forecast.allowed)}",
        *([f"! {doubt}"] if doubt else []),
        SENTENCES[forecast.verdict].format(place=forecast.card.place) + (OR_TILES if forecast.or_tiles else ""),
        f"everything resident {format_bytes(forecast.peak)} · least VRAM {format_bytes(forecast.least)} · activations"
        f" alone {format_bytes(forecast.activations)}",
        f"RAM for weights {format_bytes(forecast.ram_needed)}"
        + (f", for decoded frames {format_bytes(forecast.ram_frames)}" if forecast.ram_frames >= MANY_FRAMES else "")
        + (f" of {format_bytes(forecast.ram)}" if forecast.ram else ""),
        *_disk_line(forecast),
        *all_seconds(forecast),
        "",
        *(line for stage in forecast.stages for line in _stage_lines(forecast, stage)),
    ]
    advice = list(advise(forecast))
    if advice:
        lines += ["", *advice]
    lines += [f"! {note}" for note in notes]
    return "\n".join(lines)


def _disk_line(forecast: Forecast) -> Iterator[str]:
    if forecast.disk:
        free = f", {format_bytes(forecast.disk_free)} are free" if forecast.disk_free else ""
        yield f"disk: up to {format_bytes(forecast.disk)}{free}"


def _stage_lines(forecast: Forecast, stage: Stage) -> Iterator[str]:
    method = f" ({stage.method})" if stage.method else ""
    if stage.ram:
        yield f"{stage.work}{method}: on the CPU, {format_bytes(stage.ram)} of RAM and nothing of the card"
        return
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
    if stage.up_to:
        yield f"  it keeps to what there is: with the whole card free it takes {format_bytes(stage.up_to)}"
    streamed = forecast.streamed(stage)
    if streamed and stage.least <= forecast.allowed:
        yield f"  streams {format_bytes(streamed)} each time the model runs"
    seconds = stage_seconds(forecast, stage)
    if seconds:
        yield f"  {seconds}"


def too_many_frames(size: int) -> str:
    """What to do where decoded pictures of so many bytes do not fit into RAM beside the weights."""
    return (
        f"RAM: the decoded frames take {format_bytes(size)}, more than the weights leave: VAE Decode to Video writes"
        " each to its file as it is decoded, and VAE Decode (exact, low memory) with frames_on_disk keeps them on the"
        " disk"
    )


def advise(forecast: Forecast) -> Iterator[str]:
    """One line per thing that would help, the exact ones first."""
    for stage in forecast.too_big():
        over = f"{stage.work} needs {format_bytes(stage.least)} at least, {format_bytes(forecast.allowed)} are allowed"
        if stage.work in ("encode", "decode") and stage.method.startswith(("exact", "feathered")):
            yield (
                f"{over}: give its node a smaller vram_budget_gb or, where it has that, the method feathered"
                " (approximate), or make it smaller"
            )
        elif stage.work in ("encode", "decode"):
            tiles = "ComfyUI does it again in tiles there; " if stage.or_tiles else ""
            exact = "put Low-Memory VAE before it, which does it exactly in less"
            yield f"{over}: {tiles}{exact if stage.cuts else 'take the tiled node in its place, with smaller tiles'}"
        elif stage.work == "training":
            yield f"{over}: put Training Memory before Train LoRA; Will Training Fit? tells what each plan takes"
        elif stage.work == "sampling":
            yield f"{over}: make the picture, batch or video smaller, or sample guidance in turns (Make It Fit does)"
        elif stage.work in ("vision", "sound", "upscale"):
            yield f"{over}: take a smaller model for it, or the same in fewer bits"
        else:
            yield f"{over}: run the text encoder on the CPU (a device input of its loader)"
    if forecast.ram and forecast.ram_needed > forecast.ram:
        yield "RAM: the weights do not fit into it; Layerwise Casting with a cache_file keeps them on the disk"
    elif forecast.lacks_ram:
        yield too_many_frames(forecast.ram_frames)
    if forecast.disk_free and forecast.disk > forecast.disk_free:
        yield (
            f"disk: up to {format_bytes(forecast.disk)} are needed, {format_bytes(forecast.disk_free)} are free: free"
            " some, or take a format that needs less"
        )
    if forecast.verdict is Verdict.STREAMS:
        yield "faster: Layerwise Casting halves what is streamed (near-exact); a smaller picture leaves more room"
