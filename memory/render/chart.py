"""The memory report as a picture: one bar of peak memory and one of time per measured node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image, ImageDraw, ImageFont

from ..units import format_bytes
from .report import NodeReport

WIDTH = 960
MARGIN = 32
BAR_HEIGHT = 24
ROW_HEIGHT = 116
LABEL_SIZE, TITLE_SIZE = 24, 32  # read where a node shows the picture 400 pixels wide
VALUES = 300  # pixels for the numbers behind the bars
BACKGROUND, INK, FAINT = "#16181d", "#e8e8e8", "#8b919c"
NO_ROOM = "..."
MEMORY_BEFORE, MEMORY_GROWTH, TIME = "#3d5a80", "#4ea1ff", "#f4a259"

Font = ImageFont.ImageFont | ImageFont.FreeTypeFont


@dataclass(frozen=True)
class _Bar:
    label: str
    before: int
    highest: int
    seconds: float


def draw_report(nodes: Sequence[NodeReport], machine: str) -> Image.Image:
    """Draws the report; nodes without measurements are left out."""
    bars = [bar for node in nodes for bar in _bars(node)]
    image = Image.new("RGB", (WIDTH, 3 * MARGIN + TITLE_SIZE + LABEL_SIZE + ROW_HEIGHT * max(1, len(bars))), BACKGROUND)
    canvas = ImageDraw.Draw(image)
    title, label = ImageFont.load_default(TITLE_SIZE), ImageFont.load_default(LABEL_SIZE)
    canvas.text((MARGIN, MARGIN - 8), "Peak memory and time per node", INK, title)
    canvas.text((MARGIN, MARGIN + TITLE_SIZE), cut(canvas, machine, label, WIDTH - 2 * MARGIN), FAINT, label)
    top = 2 * MARGIN + TITLE_SIZE + LABEL_SIZE
    if not bars:
        canvas.text((MARGIN, top), "nothing measured before this node", FAINT, label)
    for i, bar in enumerate(bars):
        _draw_bar(canvas, label, bar, top + i * ROW_HEIGHT, bars)
    return image


def _bars(node: NodeReport) -> list[_Bar]:
    suffix = " (cached, earlier run)" if node.cached else ""
    return [
        _Bar(
            f"#{node.node} {node.title} · {row.work}{suffix}",
            row.peak.before + (row.paged or 0),
            row.peak.highest + (row.paged or 0),
            row.seconds,
        )
        for row in node.rows
        if row.peak is not None and row.seconds is not None
    ]


def _draw_bar(canvas: ImageDraw.ImageDraw, font: Font, bar: _Bar, y: int, bars: list[_Bar]) -> None:
    most_memory = max(other.highest for other in bars) or 1
    most_seconds = max(other.seconds for other in bars) or 1.0
    room = WIDTH - 2 * MARGIN - VALUES
    canvas.text((MARGIN, y), cut(canvas, bar.label, font, WIDTH - 2 * MARGIN), INK, font)
    memory_top, time_top = y + 34, y + 38 + BAR_HEIGHT
    before, highest = (MARGIN + room * value // most_memory for value in (bar.before, bar.highest))
    canvas.rectangle((MARGIN, memory_top, before, memory_top + BAR_HEIGHT - 2), MEMORY_BEFORE)
    canvas.rectangle((before, memory_top, highest, memory_top + BAR_HEIGHT - 2), MEMORY_GROWTH)
    growth = format_bytes(bar.highest - bar.before)
    canvas.text((highest + 8, memory_top - 5), f"{format_bytes(bar.highest)} (+{growth})", INK, font)
    end = MARGIN + int(room * bar.seconds / most_seconds)
    canvas.rectangle((MARGIN, time_top, end, time_top + BAR_HEIGHT - 8), TIME)
    canvas.text((end + 8, time_top - 8), f"{bar.seconds:.2f} s", INK, font)


def cut(canvas: ImageDraw.ImageDraw, words: str, font: Font, room: float) -> str:
    """As much of the first line as there is room for."""
    words = words.partition("\n")[0]
    if canvas.textlength(words, font) <= room:
        return words
    while words and canvas.textlength(words + NO_ROOM, font) > room:
        words = words[:-1]
    return words + NO_ROOM
