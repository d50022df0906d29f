"""A graph with every node of ours, which runs on a CPU within a minute: what the survey and the help pages show."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ..demo.__main__ import PAINTER, WORKFLOWS, painted
from .chromium import DROP

if TYPE_CHECKING:
    from playwright.sync_api import Page

SENTENCE = "a red circle over a blue square"
STORED = {"storage": "float8_e4m3fn_scaled", "compute": "auto", "skip": "auto"}
EXACT = {
    "method": "exact", "vram_budget_gb": 0.0, "tile_size": 64, "overlap": 64, "feather": "cosine", "temporal_size": 0,
    "temporal_overlap": 16, "batch_slice": 0, "store": "same",
}  # fmt: skip
# Left, top, width and height of each: a row for pictures, one for 8 bits, one for training, one for video.
PLACES = {
    "1": (0, 0, 290, 98), "5": (0, 160, 290, 106), "2": (0, 330, 290, 130), "3": (0, 520, 290, 130),
    "4": (350, 0, 290, 190), "20": (700, 0, 560, 520), "21": (1320, 0, 560, 560), "6": (1940, 0, 290, 262),
    "7": (1940, 330, 290, 58), "8": (2290, 0, 320, 640), "9": (2670, 0, 560, 430), "10": (3290, 0, 320, 400),
    "40": (0, 900, 290, 98), "22": (350, 900, 560, 520), "23": (970, 900, 560, 400), "24": (1590, 900, 330, 240),
    "25": (350, 1500, 560, 520), "26": (970, 1500, 290, 130), "41": (1590, 1220, 290, 106), "27": (1980, 900, 640, 760),
    "42": (0, 2200, 290, 98), "43": (350, 2680, 290, 106), "44": (350, 2850, 290, 130), "28": (350, 2200, 560, 400),
    "29": (970, 2200, 560, 660), "45": (0, 3200, 290, 58), "35": (0, 3320, 290, 340), "30": (350, 3200, 320, 300),
    "31": (730, 3200, 320, 300), "32": (1110, 3200, 320, 640), "33": (1490, 3200, 320, 300),
    "34": (1870, 3200, 290, 58),
}  # fmt: skip
PLACE = """(places) => {
  for (const [id, [left, top, ...size]] of Object.entries(places)) {
    const node = app.rootGraph.getNodeById(id);
    node.pos = [left, top];
    node.setSize(size);
  }
}"""


def every_node() -> dict[str, Any]:
    """In the API format."""
    graph = painted(json.loads((WORKFLOWS / "sd15_text_to_image.json").read_text(encoding="utf-8")), SENTENCE)
    prompts = {"positive": ["2", 0], "negative": ["3", 0]}
    added = {
        "20": _node("HeadroomFit", model=["4", 0], vae=["1", 2], samples=["5", 0], cfg=3.0, quality="exact", **prompts),
        "21": _node(
            "HeadroomEstimate",
            **{"model": ["20", 0], "samples": ["5", 0], "vae": ["20", 1], "clip": ["1", 1], "cfg": 3.0},
            **{"if_too_big": "report", **prompts},
        ),
        "22": _node("HeadroomCast", model=["40", 0], **STORED),
        "23": _node("HeadroomOffload", model=["22", 0], vram_budget_gb=0.2, granularity="auto"),
        "24": _node(
            "HeadroomLocalAttention",
            **{"model": ["23", 0], "pattern": "kv_pool", "pattern.factor": 2, "max_error": 0.1, "blocks": "all"},
            **{"start_percent": 0.0, "end_percent": 1.0, "min_tokens": 256},
        ),
        "25": _node("HeadroomCastCLIP", clip=["40", 1], **STORED),
        "26": _node("CLIPTextEncode", clip=["25", 0], text=SENTENCE),
        "27": _node(
            "HeadroomCompare",
            **{"model": ["24", 0], "samples": ["41", 0], "positive": ["26", 0], "negative": ["26", 0], "cfg": 3.0},
            **{"dtypes": False, "slice_sizes": "64, 256", "backends": False, "casting": False},
        ),
        "28": _node("HeadroomTraining", **{"model": ["42", 0], "plan": "every block", "blocks": "all"}),
        "29": _node(
            "HeadroomTrainingEstimate",
            **{"model": ["28", 0], "latents": ["43", 0], "positive": ["44", 0], "batch_size": 1, "rank": 8},
            **{"algorithm": "LoRA", "optimizer": "AdamW", "training_dtype": "bf16", "lora_dtype": "bf16"},
            **{"gradient_checkpointing": True, "bypass_mode": False, "if_too_big": "report"},
        ),
        "30": _node("HeadroomVAE", vae=["45", 0], **EXACT),
        "31": _node("HeadroomVAEEncode", pixels=["35", 0], vae=["30", 0], **EXACT),
        "32": _node(
            "HeadroomVAEDecodeVideo",
            **{"samples": ["31", 0], "vae": ["45", 0], "fps": 8.0, "format": "mp4 h264", "filename_prefix": "star"},
        ),
        "33": _node(
            "HeadroomVAEEncodeVideo",
            **{"video": ["32", 0], "vae": ["45", 0], "width": 128, "height": 0, "upscale_method": "lanczos"},
            crop="center",
        ),
        "34": _node("SaveLatent", samples=["33", 0], filename_prefix="star"),
        "35": _node("LoadImage", image="star_in_flight.webp"),
        # Each row has its own of what all read: no wire crosses another row.
        "40": _node("CheckpointLoaderSimple", **PAINTER["CheckpointLoaderSimple"]),
        "41": _node("EmptyLatentImage", width=256, height=256, batch_size=1),
        "42": _node("CheckpointLoaderSimple", **PAINTER["CheckpointLoaderSimple"]),
        "43": _node("EmptyLatentImage", width=256, height=256, batch_size=1),
        "44": _node("CLIPTextEncode", clip=["42", 1], text=SENTENCE),
        "45": _node("VAELoader", vae_name="tiny_vae_sd.safetensors"),
    }
    graph["6"]["inputs"] |= {"model": ["20", 0], "latent_image": ["21", 0]}
    return graph | added


def _node(kind: str, **inputs: Any) -> dict[str, Any]:
    """Without a title of its own."""
    return {"class_type": kind, "inputs": inputs}


def show_every_node(page: Page) -> dict[str, str]:
    """Puts the graph on the page; ids of our nodes, and their types."""
    graph = every_node()
    page.evaluate(DROP, json.dumps(graph))
    page.evaluate(PLACE, PLACES)
    return {number: node["class_type"] for number, node in graph.items() if node["class_type"].startswith("Headroom")}
