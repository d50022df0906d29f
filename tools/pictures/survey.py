"""What a person sees, to be looked at: every template, faces before and after a run, and the dialogs, in both looks and
both themes at 1600 x 900. Nothing of it is committed: `python3 -m tools screenshots --only survey` writes it below
`output/survey`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain, product
from pathlib import Path
from typing import TYPE_CHECKING

from ..demo.__main__ import WORKFLOWS
from ..server.client import Client, Workflow
from ..setup.environment import PACK
from ..templates.template import WORKFLOWS as TEMPLATES
from .chromium import DROP, LOOK_AT, TITLE_OF, new_context, new_page, open_frontend, run_prompt
from .every_node import show_every_node

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

OUT = PACK / "output" / "survey"
LOOKS, THEMES = ("classic", "modern"), ("dark", "light")
LOAD = "(graph) => app.loadGraphData(graph)"
COMMAND = "(id) => app.extensionManager.command.execute(id)"
# As when a prompt ends so; whether one does is tested with a real one.
RAN_OUT = """([id, kind, advice]) => app.api.dispatchCustomEvent("execution_error", {
  node_id: id, node_type: kind, prompt_id: "", executed: [], exception_type: "torch.OutOfMemoryError", traceback: [],
  exception_message: `out of memory\\nHeadroom: ${advice}`,
})"""
OF_A_SAMPLER = "Make It Fit (Headroom) in the menu Edit would help."
OF_ONE_BEHIND = "node 6 is behind Make It Fit (node 11) already: give that a limit of 0.7 instead of 0.85."
OF_A_TEXT = "Layerwise Casting (text encoder) behind its loader stores it in half of the memory."
OF_A_TRAINING = "Training Memory in front of it computes each block again instead of keeping it."


def survey(browser: Browser, client: Client) -> Iterator[Path]:
    """Everything, by look and theme.

    Raises:
        ServerError: the prompt failed.
    """
    for look, theme in product(LOOKS, THEMES):
        folder = OUT / f"{look}-{theme}"
        folder.mkdir(parents=True, exist_ok=True)
        client.post("/free", {"free_memory": True})  # a node that need not run again is sent no picture
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
    page.evaluate("app.extensionManager.toast.removeAll?.()")
    page.mouse.move(1000, 895)
    page.wait_for_timeout(1200)
    return page.screenshot()


def _templates(page: Page) -> Iterator[tuple[str, bytes]]:
    """As large as they open."""
    for path in sorted(TEMPLATES.glob("*.json")):
        page.evaluate(LOAD, json.loads(path.read_text(encoding="utf-8")))
        page.evaluate(COMMAND, "Comfy.Canvas.FitView")
        yield f"template {path.stem}", _seen(page)


def _faces(page: Page) -> Iterator[tuple[str, bytes]]:
    shown = show_every_node(page)
    for moment in ("before", "after"):
        for number, kind in shown.items():
            page.evaluate(LOOK_AT, number)
            yield f"face {kind} {moment}", _seen(page)
        if moment == "before":
            run_prompt(page)


def _dialogs(page: Page) -> Iterator[tuple[str, bytes]]:
    """Of what is open, after a run: what it would take, the offer when memory ran out, an error on a face, settings."""
    page.evaluate(COMMAND, "Headroom.WillItRun")
    page.get_by_role("dialog").get_by_role("heading").first.wait_for()
    yield "dialog will it run", _seen(page)
    page.keyboard.press("Escape")
    page.get_by_role("dialog").wait_for(state="detached")
    page.evaluate(DROP, (WORKFLOWS / "sd15_text_to_image.json").read_text(encoding="utf-8"))
    yield "dialog out of memory", _offered(page, "6", "KSampler", OF_A_SAMPLER)
    page.get_by_role("button", name="Confirm").click()
    page.wait_for_timeout(1200)
    yield "toast make it fit", page.screenshot()
    yield "dialog out of memory behind Make It Fit", _offered(page, "6", "KSampler", OF_ONE_BEHIND)
    page.keyboard.press("Escape")
    page.get_by_role("dialog").wait_for(state="detached")
    yield "dialog out of memory in a text", _offered(page, "2", "CLIPTextEncode", OF_A_TEXT)
    page.keyboard.press("Escape")
    page.evaluate(LOOK_AT, "8")
    page.evaluate(RAN_OUT, ["8", "HeadroomVAEDecode", OF_A_SAMPLER])
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
    page.evaluate(DROP, json.dumps(_training()))
    yield "dialog out of memory in a training", _offered(page, "7", "TrainLoraNode", OF_A_TRAINING)
    page.get_by_role("button", name="Confirm").click()
    page.wait_for_timeout(1200)
    yield "toast training memory", page.screenshot()


def _offered(page: Page, node: str, kind: str, advice: str) -> bytes:
    """What is offered for a node that has run out of memory."""
    page.evaluate(RAN_OUT, [node, kind, advice])
    page.get_by_role("dialog").first.wait_for()
    return _seen(page)


def _training() -> Workflow:
    """One without our plan."""
    graph: Workflow = json.loads((WORKFLOWS / "train_lora.json").read_text(encoding="utf-8"))
    del graph["6"]
    graph["10"]["inputs"]["model"] = ["1", 0]
    del graph["8"]["inputs"]["model"]
    return graph
