"""What a training would take, as text: the verdict, a table of plans, optimizers, several devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..prediction.training import DEVICES, STAGES, TrainingForecast
from ..units import MB, format_bytes

OURS = "Training Memory"  # in the name of a plan that is its own


def render_training(forecast: TrainingForecast, notes: Sequence[str] = ()) -> str:
    """Paragraphs: the verdict and what to do, the parts, a line per plan, per optimizer, and per number of devices."""
    lines = [
        f"Will training fit? · {forecast.card.title} · {forecast.limit:.0%} of it: {format_bytes(forecast.allowed)}",
        training_sentence(forecast),
        " · ".join(f"{name} {format_bytes(size)}" for name, size in _parts(forecast)),
        "",
        *_table(["plan", "at most", "activations", "computed again", "operations"], list(_ways(forecast))),
        f"!: more than is allowed. operations: of the {forecast.blocks} blocks in a step, against no checkpoints; not a"
        " time",
        "",
        f"optimizers, beside the adapter and its gradients ({format_bytes(forecast.adapter + forecast.gradients)}): "
        + ", ".join(f"{name} {format_bytes(size)}" for name, size in forecast.optimizers())
        + " (not in Train LoRA)",
        "",
        "on each of several devices by ZeRO's formulas, with the same plan; ComfyUI trains on one",
        *_table(["devices", *(f"stage {stage}" for stage in STAGES)], list(_devices(forecast))),
    ]
    return "\n".join([*lines, *(f"! {note}" for note in notes)])


def training_sentence(forecast: TrainingForecast) -> str:
    """Whether it fits, and what would."""
    way, best, least = forecast.way, forecast.best, forecast.least
    needs = f"{format_bytes(forecast.peak(way))} at most ({way.name})"
    if forecast.fits(way):
        return f"fits: {needs}"
    if best is not None:
        change = (
            "let Training Memory's plan be another" if OURS in way.name else "put Training Memory before Train LoRA"
        )
        return (
            f"does not fit: {needs}; {change}: {best.name.partition(':')[0]} takes"
            f" {format_bytes(forecast.peak(best))} for {best.operations:.2f} times the operations"
        )
    return (
        f"does not fit: {needs}; no plan of checkpoints does, {least.name} takes {format_bytes(forecast.peak(least))}:"
        f" {_smaller(forecast)}"
    )


def _smaller(forecast: TrainingForecast) -> str:
    if forecast.weights > forecast.allowed / 2:
        return f"the weights alone are {format_bytes(forecast.weights)}; store them in 8 bits, or train a smaller model"
    return "train smaller pictures, fewer at once, or a lower rank"


def _parts(forecast: TrainingForecast) -> Iterator[tuple[str, int]]:
    yield from (
        (name, size)
        for name, size in {
            "weights": forecast.weights, "adapter": forecast.adapter, "its gradients": forecast.gradients,
            forecast.optimizer: forecast.states, "outside of the blocks": forecast.outside,
            "libraries": forecast.constant,
        }.items()
        if size >= MB / 2
    )  # fmt: skip


def _ways(forecast: TrainingForecast) -> Iterator[list[str]]:
    for way in forecast.ways:
        yield [
            f"{'>' if way is forecast.way else ' '} {way.name}",
            f"{format_bytes(forecast.peak(way))} {' ' if forecast.fits(way) else '!'}",
            format_bytes(way.activations), f"{way.again:.0%}", f"{way.operations:.2f}x",
        ]  # fmt: skip


def _devices(forecast: TrainingForecast) -> Iterator[list[str]]:
    for devices in DEVICES:
        yield [f"  {devices}", *(format_bytes(forecast.on_each(devices, stage)) for stage in STAGES)]


def _table(head: list[str], rows: list[list[str]]) -> Iterator[str]:
    """Its columns are as wide as they need to be; the first is flush left."""
    cells = [[f"  {head[0]}", *head[1:]], *rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    for first, *others in cells:
        yield "  ".join([first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(others, widths[1:]))])
