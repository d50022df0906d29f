"""The demo's pictures: a contact sheet of what came out, and a chart of what it took."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from .measure import MB
from .table import Comparison, format_db

matplotlib.use("Agg")
import matplotlib.pyplot as plt

MARGIN, CELL, CAPTION, HEAD = 28, 320, 34, 64
TEXT, TITLE = 15, 20
BACKGROUND, INK, FAINT = "#16181d", "#e8e8e8", "#8b919c"
STOCK, HEADROOM = "#6b7280", "#4ea1ff"
AMPLIFIED = 8


def contact_sheet(comparisons: Sequence[Comparison], machine: str) -> Image.Image:
    """A row per workflow: stock, Headroom, and their difference, amplified."""
    rows = [_row(item) for item in comparisons]
    width = 4 * MARGIN + 3 * CELL
    sheet = Image.new("RGB", (width, HEAD + MARGIN + sum(row.height + MARGIN for row in rows)), BACKGROUND)
    canvas = ImageDraw.Draw(sheet)
    canvas.text(
        (MARGIN, MARGIN - 6),
        "What stock nodes and Headroom make of the same workflow",
        INK,
        ImageFont.load_default(TITLE),
    )
    canvas.text((MARGIN, MARGIN + 22), machine, FAINT, ImageFont.load_default(TEXT - 2))
    top = HEAD + MARGIN
    for row in rows:
        sheet.paste(row, (MARGIN, top))
        top += row.height + MARGIN
    return sheet


def _row(item: Comparison) -> Image.Image:
    # The last frame: in a video, errors have had the most time to grow.
    stock, headroom = item.stock.frames[-1], item.headroom.frames[-1]
    panels = [_fitted(pixels) for pixels in (stock, headroom, _difference(stock, headroom))]
    suffix = ", last frame" if len(item.stock.frames) > 1 else ""
    captions = (
        f"{item.title}{suffix} · stock",
        f"Headroom · {format_db(item.picture_db, unit=' dB')}",
        f"difference x {AMPLIFIED}",
    )
    row = Image.new("RGB", (3 * CELL + 2 * MARGIN, panels[0].height + CAPTION), BACKGROUND)
    canvas, font = ImageDraw.Draw(row), ImageFont.load_default(TEXT)
    for column, (panel, caption) in enumerate(zip(panels, captions)):
        left = column * (CELL + MARGIN)
        row.paste(panel, (left, 0))
        canvas.text((left, panel.height + 8), caption, INK, font)
    return row


def _fitted(pixels: NDArray[np.uint8]) -> Image.Image:
    """As wide as a cell."""
    image = Image.fromarray(pixels)
    return image.resize((CELL, round(CELL * image.height / image.width)), Image.Resampling.LANCZOS)


def _difference(stock: NDArray[np.uint8], headroom: NDArray[np.uint8]) -> NDArray[np.uint8]:
    error = np.abs(stock.astype(np.int16) - headroom.astype(np.int16))
    return np.clip(AMPLIFIED * error, 0, 255).astype(np.uint8)


def draw_chart(comparisons: Sequence[Comparison], machine: str, path: Path) -> None:
    """Two panels of paired bars: peak memory and seconds."""
    memory = [(item.stock.peak / MB, item.headroom.peak / MB) for item in comparisons]
    seconds = [(item.stock.seconds, item.headroom.seconds) for item in comparisons]
    with plt.rc_context(_style()):
        figure, (left, right) = plt.subplots(1, 2, figsize=(12, 1.6 + 0.8 * len(comparisons)), sharey=True)
        _paired_bars(left, memory, "Peak memory over the prompt's start, MB", "{:,.0f}")
        _paired_bars(right, seconds, "Time, s", "{:.1f}")
        left.set_yticks(range(len(comparisons)), [item.title for item in comparisons])
        left.invert_yaxis()
        figure.legend(*left.get_legend_handles_labels(), loc="upper right", ncols=2, frameon=False)
        figure.suptitle("Stock and Headroom", x=0.012, ha="left", fontsize=15)
        figure.supxlabel(machine, x=0.012, ha="left", fontsize=9, color=FAINT)
        figure.tight_layout()
        figure.savefig(path, dpi=110)
        plt.close(figure)


def _paired_bars(axes: plt.Axes, pairs: Sequence[tuple[float, float]], title: str, number: str) -> None:
    for offset, (name, colour, values) in zip(
        (-0.19, 0.19), (("stock", STOCK, [a for a, _ in pairs]), ("Headroom", HEADROOM, [b for _, b in pairs]))
    ):
        places = [i + offset for i in range(len(values))]
        bars = axes.barh(places, values, height=0.34, color=colour, label=name)
        axes.bar_label(bars, [number.format(value) for value in values], padding=4, fontsize=9)
    axes.set_title(title, loc="left", fontsize=11, color=FAINT)
    axes.margins(x=0.14)
    axes.tick_params(left=False, bottom=False, labelbottom=False)
    axes.spines[:].set_visible(False)


def _style() -> dict[Any, Any]:
    inks = dict.fromkeys(("text.color", "xtick.color", "ytick.color", "axes.labelcolor"), INK)
    return {**inks, "figure.facecolor": BACKGROUND, "axes.facecolor": BACKGROUND, "savefig.facecolor": BACKGROUND}
