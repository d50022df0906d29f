"""Draws the pack's icon and banner: `python3 -m tools artwork`.

Memory as bars, a card's limit as a line above them, and what is left between the two.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator

from PIL import Image, ImageDraw, ImageFont

from ..setup.environment import PACK

DOCS = PACK / "docs"
ICON, BANNER = (400, 400), (1260, 540)
FINER = 4  # drawn larger, then reduced: Pillow's shapes have hard edges
TITLE = "Headroom"
PROMISE = ("Run it in the memory you have, get the same picture,", "and know before you press Queue whether it fits.")
BARS = 50
Box = tuple[float, float, float, float]


def colours() -> dict[str, str]:
    """The colours of the Memory Report's chart, read from its text: importing it would import the whole pack."""
    tree = ast.parse((PACK / "memory" / "render" / "chart.py").read_text(encoding="utf-8"))
    found: dict[str, str] = {}
    for line in tree.body:
        if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Tuple):
            for name, value in zip(line.targets[0].elts, ast.literal_eval(line.value)):
                if isinstance(name, ast.Name) and isinstance(value, str):
                    found[name.id] = value
    return found


class Canvas:
    """A picture that is drawn in its own pixels and kept finer until it is done."""

    def __init__(self, size: tuple[int, int], background: str) -> None:
        self.size = size
        self.image = Image.new("RGB", (size[0] * FINER, size[1] * FINER), background)
        self.draw = ImageDraw.Draw(self.image)

    def bar(self, box: Box, colour: str, radius: float = 0, top_only: bool = False) -> None:
        """A rectangle (left, top, right, bottom) with round corners, below square ones if ``top_only``."""
        corners = (True, True, not top_only, not top_only)
        scaled = tuple(round(edge * FINER) for edge in box)
        edges = (scaled[0], scaled[1], scaled[2] - 1, scaled[3] - 1)
        self.draw.rounded_rectangle(edges, round(radius * FINER), colour, corners=corners)

    def text(self, left: float, baseline: float, words: str, colour: str, size: float) -> None:
        font = ImageFont.load_default(size * FINER)
        self.draw.text((left * FINER, baseline * FINER), words, colour, font, anchor="ls")

    def done(self) -> Image.Image:
        return self.image.resize(self.size, Image.Resampling.LANCZOS)


def draw_icon(colour: dict[str, str]) -> Image.Image:
    """An H of two memory bars: filled to its crossbar, free above it, under the line of the limit."""
    canvas = Canvas(ICON, colour["BACKGROUND"])
    ceiling, crossbar, bottom, width = 62, 214, 346, 76
    left, right = 76, 324
    canvas.bar((left - 18, ceiling, right + 18, ceiling + 14), colour["TIME"], 7)
    free = mixed(colour["BACKGROUND"], colour["MEMORY_BEFORE"], 0.42)
    for stem in (left, right - width):
        canvas.bar((stem, ceiling + 36, stem + width, bottom), free, 16)
        canvas.bar((stem, crossbar - 30, stem + width, bottom), colour["MEMORY_BEFORE"], 16)
        canvas.bar((stem, crossbar - 30, stem + width, crossbar + 22), colour["MEMORY_BEFORE"])
    canvas.bar((left, crossbar - 30, right, crossbar + 30), colour["MEMORY_GROWTH"])
    return canvas.done()


def draw_banner(colour: dict[str, str]) -> Image.Image:
    """A prompt's memory over time, its weights and what grows above them; the name stands in what is left."""
    canvas = Canvas(BANNER, colour["BACKGROUND"])
    margin, ceiling, floor = 70, 64, 500
    tallest = floor - ceiling
    canvas.bar((margin, ceiling, BANNER[0] - margin, ceiling + 6), colour["TIME"], 3)
    canvas.text(margin - 9, 196, TITLE, colour["INK"], 108)
    for line, words in enumerate(PROMISE):
        canvas.text(margin, 252 + 38 * line, words, colour["FAINT"], 28)
    gap = 6
    pitch = (BANNER[0] - 2 * margin + gap) / BARS
    for i, (weights, growth) in enumerate(memory_over_time(BARS)):
        left = margin + i * pitch
        top, middle = floor - tallest * (weights + growth), floor - tallest * weights
        canvas.bar((left, top, left + pitch - gap, floor), colour["MEMORY_GROWTH"], 4, top_only=True)
        canvas.bar((left, middle, left + pitch - gap, floor), colour["MEMORY_BEFORE"])
    return canvas.done()


def memory_over_time(count: int) -> Iterator[tuple[float, float]]:
    """(weights, growth) at ``count`` moments of a prompt, as shares of the limit: text, loading, steps, decoding."""
    for i in range(count):
        moment = i / count
        if moment < 0.12:
            yield 0.12, 0.01 + 0.04 * math.sin(math.pi * moment / 0.12)
        elif moment < 0.24:
            yield 0.12 + 0.12 * (moment - 0.12) / 0.12, 0.01
        elif moment < 0.76:
            yield 0.24, (0.06, 0.10, 0.11)[i % 3]  # a step in three bars
        else:
            yield 0.06, 0.25 + 0.48 * math.sin(math.pi * (moment - 0.76) / 0.24)


def mixed(first: str, second: str, share: float) -> str:
    """The colour at a share of the way from one ``#rrggbb`` to another."""
    pairs = zip(*(bytes.fromhex(text.removeprefix("#")) for text in (first, second)))
    return "#" + bytes(round(a + (b - a) * share) for a, b in pairs).hex()


def main() -> None:
    """Write both pictures into ``docs``."""
    colour = colours()
    for name, picture in (("icon", draw_icon(colour)), ("banner", draw_banner(colour))):
        picture.save(DOCS / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main()
