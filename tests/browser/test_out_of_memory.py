"""At the moment memory runs out: Make It Fit is offered, put in with one click, and found in the right-click menus."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import psutil
import pytest

from headroom.tests.host.short_of_memory import short_of_memory
from headroom.tests.host.ui_workflows import OTHER_ID, graph, text_to_image, ui_node
from headroom.tests.host.workflows import text_to_image as small
from headroom.tools.templates.template import WORKFLOWS

from .graphs import ran
from .in_page import DROP, RUN, TITLE_OF
from .test_make_it_fit import EXECUTE, HAS_FIT, KINDS, opened, settled, toast

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

    from headroom.tools.server.client import Client

API = WORKFLOWS / "api"
OFFER, TITLE = "Headroom.OutOfMemory.Offer", "Out of memory: make it fit?"
SET = "([id, value]) => app.extensionManager.setting.set(id, value)"
SELECTED = "() => [...app.canvas.selectedItems].map(({ comfyClass }) => comfyClass)"
ITEM = "Make It Fit (Headroom)"


@pytest.fixture
def pid(client: Client) -> int:
    """The server's process: who listens there. It has the model."""
    ran(client, small())
    port = urlsplit(client.url).port
    listening = (one for one in psutil.net_connections("tcp") if one.status == psutil.CONN_LISTEN)
    return next(int(one.pid) for one in listening if one.laddr.port == port and one.pid)


def too_large() -> dict[str, Any]:
    workflow = text_to_image()
    latent = next(node for node in workflow["nodes"] if node["type"] == "EmptyLatentImage")
    latent["widgets_values"] = [512, 512, 32]
    return workflow


def dialog(page: Page) -> Locator:
    return page.get_by_role("dialog").filter(has_text=TITLE)


def offered(page: Page, pid: int) -> str:
    """What is said once the open workflow has run out of memory."""
    with short_of_memory(pid):
        assert "allocate memory" in page.evaluate(RUN)  # as torch or the system says it
    dialog(page).wait_for()
    return dialog(page).inner_text()


def put_in(page: Page) -> None:
    """One click, and what it puts in is there."""
    dialog(page).get_by_role("button", name="Confirm").click()
    toast(page, "1 node inserted").wait_for()
    settled(page)


def test_it_is_offered_and_put_in_with_one_click(page: Page, pid: int) -> None:
    opened(page, too_large())
    before = page.evaluate(KINDS)
    said = offered(page, pid)
    assert "Node 5 (KSampler) ran out of memory. Make It Fit picks settings that fit this card" in said
    assert "node 8, Make It Fit, for node 5 (KSampler)" in said
    put_in(page)
    assert "HeadroomFit" in page.evaluate(KINDS)
    assert page.evaluate(SELECTED) == ["HeadroomFit"]
    page.keyboard.press("ControlOrMeta+Z")
    page.wait_for_function(f"!{HAS_FIT}")
    assert sorted(page.evaluate(KINDS)) == sorted(before)


# Sees what fails as the pack does.
RECORD = """() => app.api.addEventListener("execution_error", ({ detail }) => { window.failed = detail; })"""
AGAIN = """() => void app.api.dispatchCustomEvent("execution_error", window.failed)"""


def test_a_queue_that_runs_out_of_memory_asks_once_and_in_its_own_tab(page: Page, pid: int) -> None:
    opened(page, too_large())
    page.evaluate(RECORD)
    questions: list[str] = []
    page.on("request", lambda request: questions.append(request.url) if "/headroom/fit" in request.url else None)
    offered(page, pid)
    page.evaluate(AGAIN)
    page.evaluate(AGAIN)
    dialog(page).get_by_role("button", name="Cancel").first.click()
    dialog(page).wait_for(state="detached")
    page.wait_for_timeout(1000)
    assert dialog(page).count() == 0
    assert len(questions) == 1
    page.evaluate(AGAIN)  # and the next time again
    dialog(page).get_by_role("button", name="Cancel").first.click()
    dialog(page).wait_for(state="detached")
    opened(page, too_large() | {"id": OTHER_ID})
    page.evaluate(AGAIN)
    page.wait_for_timeout(1500)
    assert dialog(page).count() == 0
    assert len(questions) == 2


LIMIT = """() => app.rootGraph.nodes.find(({ comfyClass }) => comfyClass === "HeadroomFit")
  .widgets.find(({ name }) => name === "limit").value"""


def test_what_is_behind_make_it_fit_gets_a_smaller_limit_with_one_click(page: Page, pid: int) -> None:
    opened(page, too_large())
    page.evaluate(EXECUTE)
    page.wait_for_function(HAS_FIT)
    settled(page)
    said = offered(page, pid)
    assert "Node 5 (KSampler) ran out of memory. Make It Fit (node 8) planned with 85 % of the card" in said
    assert "with 70 % it looks for settings that take less. Confirm to change:" in said
    assert "node 8, Make It Fit: limit 0.7 instead of 0.85" in said
    dialog(page).get_by_role("button", name="Confirm").click()
    page.wait_for_function(f"({LIMIT})() === 0.7")
    assert page.evaluate(SELECTED) == ["HeadroomFit"]
    sent = page.evaluate("app.graphToPrompt().then(({ output }) => output)")
    assert sent["8"]["inputs"]["limit"] == 0.7
    page.keyboard.press("ControlOrMeta+Z")
    page.wait_for_function(f"({LIMIT})() === 0.85")


def too_long() -> dict[str, Any]:
    """A text of 40,000 words, which CLIP takes 75 at a time, all at once."""
    workflow = text_to_image()
    workflow["nodes"][1]["widgets_values"] = ["lighthouse " * 40_000]
    return workflow


def test_a_text_encoder_is_cast_with_one_click(page: Page, pid: int) -> None:
    opened(page, too_long())
    said = offered(page, pid)
    assert "Node 2 (CLIPTextEncode) ran out of memory. Layerwise Casting (text encoder) keeps the text" in said
    assert "node 8, Layerwise Casting (text encoder), for node 2 (CLIPTextEncode)" in said
    put_in(page)
    assert page.evaluate(SELECTED) == ["HeadroomCastCLIP"]
    page.keyboard.press("ControlOrMeta+Z")
    page.wait_for_function("!app.rootGraph.nodes.some(({ comfyClass }) => comfyClass === 'HeadroomCastCLIP')")


def too_large_to_train() -> dict[str, Any]:
    """In the API format: node 7 trains, by the settings of the template."""
    prompt: dict[str, Any] = json.loads((API / "train_lora.json").read_text(encoding="utf-8"))
    train, text, loader = (prompt[number] for number in ("7", "5", "1"))
    train["inputs"] |= {"model": ["1", 0], "latents": ["4", 0], "positive": ["5", 0]}
    latent = {"class_type": "EmptyLatentImage", "inputs": {"width": 512, "height": 512, "batch_size": 4}}
    return {"1": loader, "4": latent, "5": text, "7": train, "8": prompt["8"]}


def test_a_training_gets_its_checkpoints_with_one_click(page: Page, pid: int) -> None:
    page.evaluate(DROP, json.dumps(too_large_to_train()))
    page.wait_for_function("app.rootGraph.nodes.length === 5")
    settled(page)
    said = offered(page, pid)
    assert "Node 7 (TrainLoraNode) ran out of memory. Training Memory computes each block of the model again" in said
    assert "node 9, Training Memory, for node 7 (TrainLoraNode)" in said
    put_in(page)
    assert page.evaluate(SELECTED) == ["HeadroomTraining"]
    sent = page.evaluate("app.graphToPrompt().then(({ output }) => output)")
    assert sent["7"]["inputs"]["model"] == ["9", 0]
    plan = {"plan": "every block", "blocks": "all", "checkpoints_in_ram": False}
    assert sent["9"]["inputs"] == {"model": ["1", 0]} | plan
    page.keyboard.press("ControlOrMeta+Z")
    page.wait_for_function("!app.rootGraph.nodes.some(({ comfyClass }) => comfyClass === 'HeadroomTraining')")


def too_large_to_decode() -> dict[str, Any]:
    """A decode alone: loader 1, latent 4, decode 6, save 7."""
    return graph(
        [
            ui_node(1, "CheckpointLoaderSimple", {}, "MODEL CLIP VAE", widgets_values=["tiny_sd15.safetensors"]),
            ui_node(4, "EmptyLatentImage", {}, "LATENT", widgets_values=[2048, 2048, 1]),
            ui_node(6, "VAEDecode", {"samples": "LATENT", "vae": "VAE"}, "IMAGE"),
            ui_node(7, "SaveImage", {"images": "IMAGE"}, widgets_values=["x"]),
        ],
        (4, 0, 6, "samples"), (1, 2, 6, "vae"), (6, 0, 7, "images"),
    )  # fmt: skip


@pytest.mark.parametrize("view", ["classic"])
def test_a_decode_is_offered_strips(page: Page, pid: int) -> None:
    opened(page, too_large_to_decode())
    assert "node 8, Low-Memory VAE (exact), for node 6 (VAEDecode)" in offered(page, pid)
    put_in(page)
    assert page.evaluate(SELECTED) == ["HeadroomVAE"]


def larger_than_planned() -> dict[str, Any]:
    """A decode behind a Make It Fit (8) that was given a smaller latent (5): its picture alone is 805 MB."""
    planned = {"model": "MODEL", "vae": "VAE", "samples": "LATENT", "cfg*": "FLOAT", "quality*": "COMBO"}
    return graph(
        [
            ui_node(1, "CheckpointLoaderSimple", {}, "MODEL CLIP VAE", widgets_values=["tiny_sd15.safetensors"]),
            ui_node(4, "EmptyLatentImage", {}, "LATENT", widgets_values=[8192, 8192, 1]),
            ui_node(5, "EmptyLatentImage", {}, "LATENT", widgets_values=[64, 64, 1]),
            ui_node(6, "VAEDecode", {"samples": "LATENT", "vae": "VAE"}, "IMAGE"),
            ui_node(7, "SaveImage", {"images": "IMAGE"}, widgets_values=["x"]),
            ui_node(8, "HeadroomFit", planned, "MODEL VAE STRING IMAGE", widgets_values=[8.0, "exact"]),
        ],
        (1, 0, 8, "model"), (1, 2, 8, "vae"), (5, 0, 8, "samples"), (4, 0, 6, "samples"), (8, 1, 6, "vae"),
        (6, 0, 7, "images"),
    )  # fmt: skip


@pytest.mark.parametrize("view", ["classic"])
def test_a_decode_behind_make_it_fit_gets_a_smaller_limit(page: Page, pid: int) -> None:
    opened(page, larger_than_planned())
    said = offered(page, pid)
    assert "Node 6 (VAEDecode) ran out of memory. Make It Fit (node 8) planned with 85 % of the card" in said
    dialog(page).get_by_role("button", name="Confirm").click()
    page.wait_for_function(f"({LIMIT})() === 0.7")


@pytest.mark.parametrize("view", ["classic"])
def test_nothing_is_offered_where_that_is_switched_off(page: Page, pid: int) -> None:
    opened(page, too_large())
    page.evaluate(SET, [OFFER, False])
    try:
        with short_of_memory(pid):
            assert "Headroom: Make It Fit" in page.evaluate(RUN)
        page.wait_for_timeout(1500)
        assert dialog(page).count() == 0
    finally:
        page.evaluate(SET, [OFFER, True])


MENU = """(kind) => {
  const node = app.rootGraph.nodes.find(({ comfyClass }) => comfyClass === kind);
  return app.collectNodeMenuItems(node).map((item) => item?.content);
}"""


def test_it_is_in_the_menus_of_what_takes_part_and_of_the_canvas(page: Page) -> None:
    opened(page, text_to_image())
    page.evaluate("app.canvas.ds.scale = 1; app.canvas.centerOnNode(app.rootGraph.getNodeById(5))")
    page.wait_for_timeout(500)
    for kind in ("CheckpointLoaderSimple", "KSampler", "VAEDecode"):
        assert ITEM in page.evaluate(MENU, kind), kind
    for kind in ("EmptyLatentImage", "SaveImage"):
        assert ITEM not in page.evaluate(MENU, kind), kind
    page.evaluate("app.canvas.deselectAll()")
    page.mouse.click(200, 700, button="right")
    page.get_by_text(ITEM).first.wait_for()
    page.keyboard.press("Escape")


def test_a_right_click_on_a_sampler_puts_it_in(page: Page, view: str) -> None:
    opened(page, text_to_image())
    page.evaluate("app.canvas.ds.scale = 1; app.canvas.centerOnNode(app.rootGraph.getNodeById(5))")
    page.wait_for_timeout(500)
    x, y = page.evaluate(TITLE_OF, 5)
    page.mouse.click(x, y, button="right")
    if view == "modern" and not page.get_by_text(ITEM).count():  # behind the items that fit into its menu
        page.get_by_text("More Options").or_(page.get_by_text("Extensions")).first.hover()
    page.get_by_text(ITEM).first.click()
    toast(page, "1 node inserted").wait_for()
    page.wait_for_function(HAS_FIT)
