"""The templates' thumbnails: a picture, and what the template takes of the card that its name says.

The pictures are painted by the small models that the tests use, and say so, or are a photograph where a template
begins with one; the numbers are predicted from the names of the template's own files, whoever has them or not.
"""

from __future__ import annotations

import importlib
import io
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont, ImageOps

from ..demo.__main__ import WORKFLOWS, painted
from ..server.client import Client
from ..server.server import ServerError
from ..setup.environment import Environment
from ..templates.template import path_of
from ..templates_page import CARDS
from ..templates_table import card_of
from .artwork import colours

SIZE, PICTURE = (720, 456), 400  # below a painted picture is its caption
QUALITY = 88
GB, LIMIT = 2**30, 0.85
RAM = 64 * GB  # of a machine that has such a card
USUAL_CARD = 8  # of templates whose names say none
AROUND = ("over", "right of", "left of", "under")
TEXT = 25  # pixels of a letter: a card of the template browser shows a bit less than half of them
BETWEEN, MORE = 6, 1.05  # pixels between frames; by how much a peak is higher that is shown beside the other
PHOTOGRAPHS = ("astronaut.png", "coffee.png")
# What each shows: a sentence to paint, four of one scene as frames of a video, or the photograph.
SHOWN: dict[str, str | tuple[str, str]] = {
    "sd15_high_resolution": "a red star left of a blue circle",
    "sdxl_high_resolution": "a purple triangle under a yellow circle",
    "flux_8gb": "a blue star over a red circle",
    "flux_16bit": "a yellow star right of a green square",
    "flux_cast_lora": "a green triangle over a blue square",
    "sd35_text_to_image": "a yellow circle left of a purple star",
    "qwen_image_text_to_image": "a red triangle right of a yellow square",
    "z_image_text_to_image": "a purple star over a green circle",
    "train_lora": PHOTOGRAPHS[0],
    "wan_text_to_video": ("red star", "blue circle"),
    "wan_video_to_file": ("yellow star", "purple circle"),
    "video_to_video": ("green triangle", "red square"),
    "ltx_text_to_video": ("blue circle", "yellow triangle"),
    "upscale_4k": PHOTOGRAPHS[1],
    "will_it_fit": "a blue triangle right of a red star",
    "make_it_fit": "a red circle over a blue square",
    "compare_strategies": "a green circle left of a red triangle",
    "side_by_side": PHOTOGRAPHS[0],
}
BYPASSED = 4  # a node's mode
STOCK = {"HeadroomVAEDecode": "VAEDecode", "HeadroomVAEEncode": "VAEEncode"}


@dataclass(frozen=True)
class Figures:
    """What is predicted of a template.

    Attributes:
        card: its GB; peak: GB at most; alone: GB at most of the same graph without our nodes, with all weights on the
            card; 0: not the same work without them.
        seconds: of all of it on the card of :data:`CARDS`; 0: not known.
    """

    card: int
    peak: float
    alone: float
    seconds: float

    @property
    def time(self) -> str:
        """How long and where, if that is known."""
        if not self.seconds:
            return ""
        long = f"{self.seconds:.0f} s" if self.seconds < 100 else f"{self.seconds / 60:.0f} min"
        return f"{long} on an {CARDS[self.card]}"


def figures_of(name: str) -> Figures:
    """
    Raises:
        ServerError: the template is not predicted whole.
    """
    estimate, pack = (importlib.import_module(f"headroom.{part}") for part in ("host.workflow.estimate", "nodes"))
    ours = {node.GET_SCHEMA().node_id: node for node in pack.NODES}
    template = json.loads(path_of(name).read_text(encoding="utf-8"))
    named = re.search(r"(\d+)GB", path_of(name).stem)
    size = int(named.group(1)) if named else USUAL_CARD

    def forecast(graph: dict[str, Any]) -> Any:
        prompt = estimate.as_queued(graph, ours)
        with importlib.import_module("torch").inference_mode():
            answer = estimate.estimate_workflow(prompt, card_of(size), LIMIT, RAM, ours)
        if not answer.complete:
            raise ServerError(f"{name} is not predicted whole: {answer.unknown}")
        return answer.forecast

    found, stock = forecast(template), without_ours(template)
    alone = forecast(stock).peak / GB if stock else 0.0
    return Figures(size, found.peak / GB, alone, found.seconds if found.timed else 0.0)


def without_ours(template: dict[str, Any]) -> dict[str, Any] | None:
    """The same graph with stock nodes, where these do the same work."""
    kinds = {node["type"] for node in template["nodes"]}
    if kinds & {"HeadroomVAEDecodeVideo", "HeadroomVAEEncodeVideo"}:
        return None
    nodes = []
    for node in template["nodes"]:
        ours = node["type"].startswith("Headroom") and node["type"] not in STOCK
        nodes.append({**node, "type": STOCK.get(node["type"], node["type"])} | ({"mode": BYPASSED} if ours else {}))
    return {**template, "nodes": nodes}


def pictures_of(name: str, client: Client) -> list[Image.Image]:
    """One, or four frames."""
    shown = SHOWN[name]
    if shown in PHOTOGRAPHS:
        with Image.open(Environment.from_variables().models / "input" / str(shown)) as picture:
            return [ImageOps.fit(picture.convert("RGB"), (PICTURE, SIZE[1]))]
    sentences = [shown] if isinstance(shown, str) else [f"a {shown[0]} {way} a {shown[1]}" for way in AROUND]
    workflow = "flux_text_to_image" if name.startswith("flux") else "sd15_text_to_image"
    return [picture_of(sentence, workflow, list(SHOWN).index(name), client) for sentence in sentences]


def picture_of(sentence: str, workflow: str, seed: int, client: Client) -> Image.Image:
    """What a small model makes of a sentence, by one of the demo's workflows."""
    graph = painted(json.loads((WORKFLOWS / f"{workflow}.json").read_text(encoding="utf-8")), sentence)
    for node in graph.values():
        node["inputs"] |= {name: seed for name in ("seed", "noise_seed") if name in node["inputs"]}
    (saves,) = (node_id for node_id, node in graph.items() if node["class_type"] == "SaveImage")
    (entry,) = client.run(graph).outputs[saves]["images"]
    return Image.open(io.BytesIO(client.image(entry))).convert("RGB")


def drawn(name: str, pictures: Sequence[Image.Image], figures: Figures) -> Image.Image:
    """A thumbnail: the picture, or frames, and beside it the figures with a bar for each peak."""
    colour = colours()
    image = Image.new("RGB", SIZE, colour["BACKGROUND"])
    half = (PICTURE - BETWEEN) // 2
    for number, picture in enumerate(pictures):
        room = (PICTURE, SIZE[1]) if len(pictures) == 1 else (half, half)
        corner = number % 2 * (half + BETWEEN), number // 2 * (half + BETWEEN)
        image.paste(ImageOps.contain(picture, room, Image.Resampling.LANCZOS), corner)
    draw, left, right = ImageDraw.Draw(image), PICTURE + 24, SIZE[0] - 20
    bars = [("this template", "", figures.peak, "MEMORY_GROWTH")]
    if figures.alone > MORE * figures.peak:
        bars.append(("with stock nodes", f"{figures.alone:.1f} GB, all on the card", figures.alone, "MEMORY_BEFORE"))
    longest = max(figures.card, *(size for _, _, size, _ in bars))

    def text(top: float, words: str, name: str, size: int, at: float = left, anchor: str = "la") -> None:
        draw.text((at, top), words, colour[name], ImageFont.load_default(size), anchor)

    def end(size: float) -> float:
        return left + (right - left) * size / longest

    text(20, f"{figures.peak:.1f} GB", "INK", 64)
    text(98, f"of {figures.card} GB, predicted", "FAINT", TEXT)
    text(132, figures.time, "FAINT", TEXT)
    top, limit = 186, end(figures.card)
    for label, below, size, shade in bars:
        text(top, label, "INK", TEXT)
        draw.rounded_rectangle((left, top + 36, end(size), top + 64), 5, colour[shade])
        draw.rectangle((limit - 2, top + 30, limit + 1, top + 70), colour["TIME"])
        text(top + 72, below, "FAINT", TEXT)
        top += 106 if below else 80
    if SHOWN[name] not in PHOTOGRAPHS:
        text(PICTURE + 12, "painted by a small test model", "FAINT", TEXT, PICTURE / 2, "ma")
    text(top + 6, f"card {figures.card} GB", "TIME", TEXT, *_beside(limit, left, right))
    return image


def _beside(limit: float, left: float, right: float) -> tuple[float, str]:
    """Where the limit's words are, and which part of them: within the column."""
    return (limit + 2, "ra") if limit > (left + right) / 2 else (left, "la")


def thumbnails(client: Client) -> Iterator[Path]:
    """Of each template, its figures beside the picture in the file's comment."""
    host = importlib.import_module("cli.host")
    host.enter(host.find_comfyui())
    for name in SHOWN:
        figures = figures_of(name)
        path = path_of(name).with_suffix(".jpg")
        drawn(name, pictures_of(name, client), figures).save(
            path, quality=QUALITY, optimize=True, comment=json.dumps(asdict(figures))
        )
        yield path
