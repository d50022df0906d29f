"""A forecast as a picture: weights and activations over the course of the work, and the line they must stay below."""

from __future__ import annotations

from PIL import Image, ImageDraw, ImageFont

from ..prediction.forecast import Forecast, Stage
from ..units import format_bytes
from .chart import BACKGROUND, FAINT, INK, LABEL_SIZE, MARGIN, MEMORY_BEFORE, MEMORY_GROWTH, TITLE_SIZE, WIDTH, cut

HEIGHT = 500
GAP = 24
LIMIT = "#ff5d5d"


def draw_forecast(forecast: Forecast, title: str = "Will it fit?") -> Image.Image:
    """Each stage in a part of its own, its operators from left to right; the dashed line is the limit."""
    image = Image.new("RGB", (WIDTH, HEIGHT), BACKGROUND)
    canvas = ImageDraw.Draw(image)
    heading, label = ImageFont.load_default(TITLE_SIZE), ImageFont.load_default(LABEL_SIZE)
    canvas.text((MARGIN, MARGIN - 8), f"{title} {forecast.verdict.value.replace('_', ' ')}", INK, heading)
    canvas.text((MARGIN, MARGIN + TITLE_SIZE), forecast.card.title, FAINT, label)
    top, bottom = 2 * MARGIN + TITLE_SIZE + LABEL_SIZE, HEIGHT - MARGIN - 2 * (LABEL_SIZE + 6)
    most = max(forecast.peak, forecast.allowed, 1) * 1.05
    scale = (bottom - top) / most
    width = (WIDTH - 2 * MARGIN - GAP * (len(forecast.stages) - 1)) / max(1, len(forecast.stages))
    for number, stage in enumerate(forecast.stages):
        left = MARGIN + number * (width + GAP)
        _draw_stage(canvas, stage, (left, bottom), width, scale)
        canvas.text((left, bottom + 6), cut(canvas, stage.work, label, width), INK, label)
        canvas.text((left, bottom + LABEL_SIZE + 10), format_bytes(stage.peak), INK, label)
    _draw_limit(canvas, bottom - forecast.allowed * scale)
    words = f"limit {format_bytes(forecast.allowed)}"
    canvas.text((WIDTH - MARGIN - canvas.textlength(words, label), MARGIN + TITLE_SIZE), words, LIMIT, label)
    return image


def _draw_stage(
    canvas: ImageDraw.ImageDraw, stage: Stage, corner: tuple[float, float], width: float, scale: float
) -> None:
    left, bottom = corner
    weights = bottom - stage.resident * scale
    canvas.rectangle((left, weights, left + width, bottom), MEMORY_BEFORE)
    points = stage.prediction.timeline or (stage.prediction.activations,)
    step = width / len(points)
    for number, live in enumerate(points):
        height = (max(live, 0) + stage.prediction.constant) * scale
        canvas.rectangle((left + number * step, weights - height, left + (number + 1) * step, weights), MEMORY_GROWTH)
    peak = bottom - stage.peak * scale
    canvas.line((left, peak, left + width, peak), INK)


def _draw_limit(canvas: ImageDraw.ImageDraw, height: float) -> None:
    for x in range(MARGIN, WIDTH - MARGIN, 16):
        canvas.line((x, height, x + 8, height), LIMIT, 2)
