"""A picture of named values as bars, some of them marked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image, ImageDraw, ImageFont

from .chart import BACKGROUND, FAINT, INK, LABEL_SIZE, MARGIN, TITLE_SIZE, WIDTH, cut

ROW = 36
LABELS = 480  # pixels for the names
VALUES = 170  # and for the numbers behind the bars
PLAIN, MARKED = "#4ea1ff", "#f4a259"


@dataclass(frozen=True)
class Bar:
    """One bar: its name, length, the text behind it, and whether it is marked."""

    label: str
    value: float
    text: str
    marked: bool = False


def draw_bars(title: str, subtitle: str, bars: Sequence[Bar]) -> Image.Image:
    """Draws bars from the top, each against the longest.

    Args:
        title: the first line.
        subtitle: the second, fainter one: what the marks mean.
        bars: in the order to draw them.
    """
    head = 2 * MARGIN + TITLE_SIZE + LABEL_SIZE
    image = Image.new("RGB", (WIDTH, head + ROW * max(1, len(bars)) + MARGIN), BACKGROUND)
    canvas = ImageDraw.Draw(image)
    heading, label = ImageFont.load_default(TITLE_SIZE), ImageFont.load_default(LABEL_SIZE)
    canvas.text((MARGIN, MARGIN - 8), title, INK, heading)
    canvas.text((MARGIN, MARGIN + TITLE_SIZE), subtitle, FAINT, label)
    longest = max((bar.value for bar in bars), default=0.0) or 1.0
    room = WIDTH - 2 * MARGIN - LABELS - VALUES
    for number, bar in enumerate(bars):
        top, left = head + number * ROW, MARGIN + LABELS
        end = left + int(room * bar.value / longest)
        canvas.text((MARGIN, top), cut(canvas, bar.label, label, LABELS - 8), INK, label)
        canvas.rectangle((left, top + 4, end, top + ROW - 8), MARKED if bar.marked else PLAIN)
        canvas.text((end + 8, top), bar.text, INK, label)
    return image
