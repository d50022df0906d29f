"""What a person sees, to be looked at: every template, faces before and after a run, and the dialogs, in both looks and
both themes at 1600 x 900. Nothing of it is committed: `python3 -m tools screenshots --only survey` writes it below
`output/survey`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..demo.__main__ import WORKFLOWS, painted
from ..server.client import Client
from ..server.server import ServerError
from ..setup.environment import PACK
from ..templates.template import WORKFLOWS as TEMPLATES
from .chromium import DROP, LOOK_AT, RUN, TITLE_OF, new_context, new_page, open_frontend

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

OUT = PACK / "output" / "survey"
LOOKS, THEMES = ("classic", "modern"), ("dark", "light")
LOAD = "(graph) => app.loadGraphData(graph)"
COMMAND = "(id) => app.extensionManager.command.execute(id)"
# As when a prompt ends so; whether one does is tested with a real one.
RAN_OUT = """([id, kind]) => app.api.dispatchCustomEvent("execution_error", {
  node_id: id, node_type: kind, prompt_id: "", executed: [], exception_type: "torch.OutOfMemoryError", traceback: [],
  exception_message: "out of memory\\nHeadroom: Make It Fit (Headroom) in the menu Edit would help.",
})"""
SENTENCE = "a red circle over a blue square"
STORED = {"storage": "float8_e4m3fn_scaled", "compute": "auto", "skip": "auto"}
EXACT = {
    "method": "exact", "vram_budget_gb": 0.0, "tile_size": 64, "overlap": 64, "feather": "cosine", "temporal_size": 0,
    "temporal_overlap": 16, "batch_slice": 0, "store": "same",
}  # fmt: skip


def survey(browser: Browser, client: Client) -> Iterator[Path]:
    """Everything, by look and theme.

    Raises:
        ServerError: the prompt failed.
    """
    for look, theme in product(LOOKS, THEMES):
        folder = OUT / f"{look}-{theme}"
        folder.mkdir(parents=True, exist_ok=True)
        with (
            new_context(browser) as context,
            new_page(context, client, modern=look == "modern", theme=theme) as page,
        ):
            open_frontend(page, client)
            for name, taken in chain(_faces(page), _dialogs(page), _templates(page)):
                path = folder / f"{name}.png"
                path.write_bytes(taken)
                yield path


def _seen(page: Page) -> bytes:
    """As it stays: without the toasts, and nothing under the pointer."""
    page.mouse.move(0, 899)
    page.wait_for_timeout(1200)
    return page.screenshot()


def _templates(page: Page) -> Iterator[tuple[str, bytes]]:
    """As large as they open."""
    for path in sorted(TEMPLATES.glob("*.json")):
        page.evaluate(LOAD, json.loads(path.read_text(encoding="utf-8")))
        page.evaluate(COMMAND, "Comfy.Canvas.FitView")
        yield f"template {path.stem}", _seen(page)


def with_our_faces() -> dict[str, Any]:
    """A small graph with every node of ours."""
    graph = painted(json.loads((WORKFLOWS / "sd15_text_to_image.json").read_text(encoding="utf-8")), SENTENCE)
    added = {
        "20": _node("HeadroomFit", model=["4", 0], vae=["1", 2], samples=["5", 0], cfg=3.0, quality="exact"),
        "21": _node(
            "HeadroomEstimate",
            **{"model": ["20", 0], "samples": ["5", 0], "vae": ["20", 1], "clip": ["1", 1], "cfg": 3.0},
            if_too_big="report",
        ),
        "22": _node("HeadroomCast", model=["1", 0], **STORED),
        "23": _node("HeadroomOffload", model=["22", 0], vram_budget_gb=0.2, granularity="auto"),
        "24": _node(
            "HeadroomLocalAttention",
            **{"model": ["23", 0], "pattern": "kv_pool", "pattern.factor": 2, "max_error": 0.1, "blocks": "all"},
            **{"start_percent": 0.0, "end_percent": 1.0, "min_tokens": 256},
        ),
        "25": _node("HeadroomCastCLIP", clip=["1", 1], **STORED),
        "26": _node("CLIPTextEncode", clip=["25", 0], text=SENTENCE),
        "27": _node(
            "HeadroomCompare",
            **{"model": ["24", 0], "samples": ["5", 0], "positive": ["26", 0], "negative": ["3", 0], "cfg": 3.0},
            **{"dtypes": False, "slice_sizes": "64, 256", "backends": False, "casting": False},
        ),
        "28": _node("HeadroomTraining", **{"model": ["1", 0], "plan": "every block", "blocks": "all"}),
        "29": _node(
            "HeadroomTrainingEstimate",
            **{"model": ["28", 0], "latents": ["5", 0], "positive": ["2", 0], "batch_size": 1, "rank": 8},
            **{"algorithm": "LoRA", "optimizer": "AdamW", "training_dtype": "bf16", "lora_dtype": "bf16"},
            **{"gradient_checkpointing": True, "bypass_mode": False, "if_too_big": "report"},
        ),
        "30": _node("HeadroomVAE", vae=["1", 2], **EXACT),
        "31": _node("HeadroomVAEEncode", pixels=["8", 0], vae=["30", 0], **EXACT),
        "32": _node(
            "HeadroomVAEDecodeVideo",
            **{"samples": ["31", 0], "vae": ["1", 2], "fps": 8.0, "format": "mkv ffv1", "filename_prefix": "survey"},
        ),
        "33": _node(
            "HeadroomVAEEncodeVideo",
            **{"video": ["32", 0], "vae": ["1", 2], "width": 128, "height": 0, "upscale_method": "lanczos"},
            crop="center",
        ),
        "34": _node("SaveLatent", samples=["33", 0], filename_prefix="survey"),
    }
    graph["6"]["inputs"] |= {"model": ["20", 0], "latent_image": ["21", 0]}
    return graph | added


def _node(kind: str, **inputs: Any) -> dict[str, Any]:
    """Without a title of its own."""
    return {"class_type": kind, "inputs": inputs}


def _faces(page: Page) -> Iterator[tuple[str, bytes]]:
    graph = with_our_faces()
    page.evaluate(DROP, json.dumps(graph))
    shown = [number for number, node in graph.items() if node["class_type"].startswith("Headroom")]
    for moment in ("before", "after"):
        for number in shown:
            page.evaluate(LOOK_AT, number)
            yield f"face {graph[number]['class_type']} {moment}", _seen(page)
        if moment == "before" and (wrong := page.evaluate(RUN)) is not None:
            raise ServerError(f"the prompt failed: {wrong}")


def _dialogs(page: Page) -> Iterator[tuple[str, bytes]]:
    """Of what is open, after a run: what it would take, the offer when memory ran out, an error on a face, settings."""
    page.evaluate(COMMAND, "Headroom.WillItRun")
    page.get_by_role("dialog").get_by_role("heading").first.wait_for()
    yield "dialog will it run", _seen(page)
    page.keyboard.press("Escape")
    page.get_by_role("dialog").wait_for(state="detached")
    page.evaluate(DROP, (WORKFLOWS / "sd15_text_to_image.json").read_text(encoding="utf-8"))
    page.evaluate(RAN_OUT, ["6", "KSampler"])
    page.get_by_role("dialog").first.wait_for()
    yield "dialog out of memory", _seen(page)
    page.get_by_role("button", name="Confirm").click()
    yield "toast make it fit", _seen(page)
    page.evaluate(LOOK_AT, "8")
    page.evaluate(RAN_OUT, ["8", "HeadroomVAEDecode"])
    yield "error on a face", _seen(page)
    page.keyboard.press("Escape")
    page.evaluate(LOOK_AT, "6")
    page.wait_for_timeout(500)
    page.mouse.click(*page.evaluate(TITLE_OF, "6"), button="right")
    page.wait_for_timeout(1200)
    yield "menu of a sampler", page.screenshot()
    page.keyboard.press("Escape")
    page.evaluate(COMMAND, "Comfy.ShowSettingsDialog")
    page.get_by_role("dialog").get_by_text("Headroom", exact=True).first.click()
    yield "dialog settings", _seen(page)
    page.keyboard.press("Escape")
