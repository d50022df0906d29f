"""What a training would take by each plan, as a picture: bars of the parts, and the line they must stay below."""

from __future__ import annotations

from PIL import Image, ImageDraw, ImageFont

from ..prediction.training import TrainingForecast, TrainingWay
from ..units import format_bytes
from .chart import (
    BACKGROUND,
    FAINT,
    INK,
    LABEL_SIZE,
    MARGIN,
    MEMORY_BEFORE,
    MEMORY_GROWTH,
    TIME,
    TITLE_SIZE,
    WIDTH,
    cut,
)
from .forecast_chart import LIMIT
from .memory_bar import Load, MemoryBar

ROW, NAMES, VALUES = 48, 370, 240
LEARNT = "#7a5195"
COLOURS = {"weights": MEMORY_BEFORE, "adapter": LEARNT, "outside": TIME, "activations": MEMORY_GROWTH}
WORDS = {"adapter": "adapter, gradients, optimizer", "outside": "outside of the blocks"}


def draw_training(forecast: TrainingForecast) -> Image.Image:
    """A bar for each plan, weights first; the dashed line is the limit, the chosen plan is marked."""
    head = 2 * MARGIN + TITLE_SIZE + 2 * LABEL_SIZE + 8
    image = Image.new("RGB", (WIDTH, head + ROW * len(forecast.ways) + MARGIN), BACKGROUND)
    canvas = ImageDraw.Draw(image)
    heading, label = ImageFont.load_default(TITLE_SIZE), ImageFont.load_default(LABEL_SIZE)
    verdict = "fits" if forecast.fits(forecast.way) else "does not fit"
    canvas.text((MARGIN, MARGIN - 8), f"Will training fit? {verdict}", INK, heading)
    canvas.text((MARGIN, MARGIN + TITLE_SIZE), forecast.card.title, FAINT, label)
    _draw_legend(canvas, label, MARGIN + TITLE_SIZE + LABEL_SIZE + 8)
    most = max(*(forecast.peak(way) for way in forecast.ways), forecast.allowed)
    scale = (WIDTH - 2 * MARGIN - NAMES - VALUES) / most
    for number, way in enumerate(forecast.ways):
        _draw_way(canvas, label, forecast, way, head + number * ROW, scale)
    _draw_limit(canvas, MARGIN + NAMES + forecast.allowed * scale, head, head + ROW * len(forecast.ways))
    words = f"limit {format_bytes(forecast.allowed)}"
    canvas.text((WIDTH - MARGIN - canvas.textlength(words, label), MARGIN + TITLE_SIZE), words, LIMIT, label)
    return image


def training_bar(forecast: TrainingForecast) -> MemoryBar:
    """The chosen plan, and the one that takes least, as numbers for a bar on a node's face."""
    ways = dict.fromkeys((forecast.way, forecast.least))
    loads = (Load(way.name, dict(_sizes(forecast, way))) for way in ways)
    return MemoryBar(forecast.card.total, forecast.allowed, tuple(loads))


def _sizes(forecast: TrainingForecast, way: TrainingWay) -> list[tuple[str, int]]:
    return [
        ("weights", forecast.weights),
        ("adapter", forecast.adapter + forecast.gradients + forecast.states),
        ("outside", forecast.outside + forecast.constant),
        ("activations", way.activations),
    ]


def _draw_legend(canvas: ImageDraw.ImageDraw, font: ImageFont.ImageFont | ImageFont.FreeTypeFont, top: int) -> None:
    left = float(MARGIN)
    for part, colour in COLOURS.items():
        word = WORDS.get(part, part)
        canvas.rectangle((left, top + 8, left + 14, top + 22), colour)
        canvas.text((left + 20, top), word, FAINT, font)
        left += 20 + canvas.textlength(word, font) + 20


def _draw_way(
    canvas: ImageDraw.ImageDraw,
    font: ImageFont.ImageFont | ImageFont.FreeTypeFont,
    forecast: TrainingForecast,
    way: TrainingWay,
    top: int,
    scale: float,
) -> None:
    name = cut(canvas, way.name, font, NAMES - 8)
    canvas.text((MARGIN, top + 6), name, INK if way is forecast.way else FAINT, font)
    left = MARGIN + float(NAMES)
    for part, size in _sizes(forecast, way):
        canvas.rectangle((left, top + 4, left + size * scale, top + ROW - 12), COLOURS[part])
        left += size * scale
    if way is forecast.way:
        canvas.rectangle((MARGIN + NAMES - 2, top + 2, left + 2, top + ROW - 10), outline=INK)
    words = f"{format_bytes(forecast.peak(way))} · {way.operations:.2f}x"
    canvas.text((WIDTH - MARGIN - canvas.textlength(words, font), top + 6), words, INK, font)


def _draw_limit(canvas: ImageDraw.ImageDraw, x: float, top: int, bottom: int) -> None:
    for y in range(top, bottom, 12):
        canvas.line((x, y, x, y + 6), LIMIT, 2)
