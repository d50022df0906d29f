"""Strategies measured beside each other, as a picture: a bar of memory and one of time for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from PIL import Image, ImageDraw, ImageFont

from .chart import (
    BACKGROUND,
    FAINT,
    INK,
    LABEL_SIZE,
    MARGIN,
    MEMORY_GROWTH,
    TIME,
    TITLE_SIZE,
    WIDTH,
    Font,
    cut,
)
from .comparison import Comparison, Measured, Outcome, ratio_text, size_text, time_text

ROW = 104  # a line with the name, and two bars
THICKNESS = 20
NUMBERS = 250  # pixels for the text behind the bars
BAND = "#262a33"
LEGEND = "blue: peak memory; orange: time; line across: the first; right: its error"


def draw_comparison(comparison: Comparison) -> Image.Image:
    """Each strategy from the top, bars against the longest of their kind; what did not run says why."""
    top = 2 * MARGIN + TITLE_SIZE + LABEL_SIZE
    image = Image.new("RGB", (WIDTH, top + ROW * len(comparison.outcomes) + MARGIN), BACKGROUND)
    canvas = ImageDraw.Draw(image)
    title, label = ImageFont.load_default(TITLE_SIZE), ImageFont.load_default(LABEL_SIZE)
    canvas.text((MARGIN, MARGIN - 8), "Strategies for one step", INK, title)
    canvas.text((MARGIN, MARGIN + TITLE_SIZE), LEGEND, FAINT, label)
    canvas.rectangle((0, top - 4, WIDTH, top + ROW - 5), BAND)  # the reference's
    for number, outcome in enumerate(comparison.outcomes):
        _draw_outcome(canvas, label, comparison, outcome, top + number * ROW)
    return image


def _draw_outcome(canvas: ImageDraw.ImageDraw, font: Font, comparison: Comparison, outcome: Outcome, top: int) -> None:
    right, second = WIDTH - MARGIN, top + LABEL_SIZE + 12
    if outcome.measured is None:
        canvas.text((MARGIN, top), cut(canvas, outcome.name, font, right - MARGIN), INK, font)
        canvas.text((MARGIN, second), cut(canvas, outcome.remark, font, right - MARGIN), FAINT, font)
        return
    words = " · ".join(filter(None, comparison.error_text(outcome)))
    far = right - canvas.textlength(words, font)
    canvas.text((MARGIN, top), cut(canvas, outcome.name, font, far - MARGIN - 16), INK, font)
    canvas.text((far, top), words, INK, font)
    memory, seconds = size_text(outcome.measured.peak), time_text(outcome.measured.seconds)
    _draw_bar(canvas, font, _Bar(comparison, outcome.measured, _peak, MEMORY_GROWTH, memory), second)
    _draw_bar(canvas, font, _Bar(comparison, outcome.measured, _seconds, TIME, seconds), second + THICKNESS + 6)


@dataclass(frozen=True)
class _Bar:
    """A value of a strategy, among those of the others."""

    comparison: Comparison
    measured: Measured
    value: Callable[[Measured], float]
    colour: str
    text: str


def _draw_bar(canvas: ImageDraw.ImageDraw, font: Font, bar: _Bar, top: int) -> None:
    done = (outcome.measured for outcome in bar.comparison.outcomes if outcome.measured is not None)
    left = MARGIN
    scale = (WIDTH - MARGIN - left - NUMBERS) / (max(map(bar.value, done)) or 1.0)
    end = behind = left + bar.value(bar.measured) * scale
    canvas.rectangle((left, top, end, top + THICKNESS), bar.colour)
    text, reference = bar.text, bar.comparison.reference
    if reference is not None:
        mark = left + bar.value(reference) * scale
        canvas.line((mark, top - 2, mark, top + THICKNESS + 2), INK, 2)
        behind = max(end, mark)
        text += f" {ratio_text(bar.value(bar.measured), bar.value(reference))}"
    canvas.text((behind + 8, top - 5), text, INK, font)


def _peak(measured: Measured) -> float:
    return measured.peak


def _seconds(measured: Measured) -> float:
    return measured.seconds
