"""Strategies measured beside each other, as a picture: a bar of memory and one of time for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from PIL import Image, ImageDraw, ImageFont

from .chart import BACKGROUND, FAINT, INK, LABEL_SIZE, MARGIN, MEMORY_GROWTH, TIME, TITLE_SIZE, WIDTH
from .comparison import Comparison, Measured, Outcome, ratio_text, size_text, time_text

ROW = 44
THICKNESS = 14
NAMES, NUMBERS, ERRORS = 240, 150, 160  # pixels for the names, for the text behind the bars, and for the errors
BAND = "#262a33"
NO_ROOM = "..."
LEGEND = "blue: peak memory of the step, orange: time; the line across is the reference; right: error"

Font = ImageFont.ImageFont | ImageFont.FreeTypeFont


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
    middle = top + (ROW - LABEL_SIZE) // 2 - 4
    canvas.text((MARGIN, middle), _cut(canvas, outcome.name, font, NAMES - 8), INK, font)
    left, right = MARGIN + NAMES, WIDTH - MARGIN
    if outcome.measured is None:
        canvas.text((left, middle), _cut(canvas, outcome.remark, font, right - left), FAINT, font)
        return
    words = " · ".join(filter(None, comparison.error_text(outcome)))
    canvas.text((right - canvas.textlength(words, font), middle), words, INK, font)
    memory, seconds = size_text(outcome.measured.peak), time_text(outcome.measured.seconds)
    _draw_bar(canvas, font, _Bar(comparison, outcome.measured, _peak, MEMORY_GROWTH, memory), top)
    _draw_bar(canvas, font, _Bar(comparison, outcome.measured, _seconds, TIME, seconds), top + THICKNESS + 4)


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
    left = MARGIN + NAMES
    scale = (WIDTH - MARGIN - left - NUMBERS - ERRORS) / (max(map(bar.value, done)) or 1.0)
    end = behind = left + bar.value(bar.measured) * scale
    canvas.rectangle((left, top, end, top + THICKNESS), bar.colour)
    text, reference = bar.text, bar.comparison.reference
    if reference is not None:
        mark = left + bar.value(reference) * scale
        canvas.line((mark, top - 2, mark, top + THICKNESS + 2), INK, 2)
        behind = max(end, mark)
        text += f" {ratio_text(bar.value(bar.measured), bar.value(reference))}"
    canvas.text((behind + 8, top - 3), text, INK, font)


def _peak(measured: Measured) -> float:
    return measured.peak


def _seconds(measured: Measured) -> float:
    return measured.seconds


def _cut(canvas: ImageDraw.ImageDraw, words: str, font: Font, room: float) -> str:
    """As many words of the first line as there is room for."""
    words = words.partition("\n")[0]
    if canvas.textlength(words, font) <= room:
        return words
    while words and canvas.textlength(words + NO_ROOM, font) > room:
        words = words[:-1]
    return words + NO_ROOM
