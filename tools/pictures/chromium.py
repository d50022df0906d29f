"""The host's real frontend in a headless Chromium: what the browser tests look at, and where the pictures come from."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..server.client import Client
from ..server.server import ServerError

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

NAMES = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
MISSING = (
    "no Chromium: install it (on Debian or Ubuntu: sudo apt install chromium), or name its program in HEADROOM_CHROMIUM"
)
READY = "window.app?.vueAppReady && app.extensionManager.workflow.activeWorkflow && app.rootGraph.nodes.length"
# And waits for its tab, which comes after the nodes: a prompt that is queued before is another tab's.
DROP = """async (text) => {
  const { workflow } = app.extensionManager;
  const before = workflow.activeWorkflow;
  await app.handleFile(new File([text], "graph.json", { type: "application/json" }));
  for (let left = 200; left && workflow.activeWorkflow === before; left--) {
    await new Promise((done) => setTimeout(done, 50));
  }
}"""
LOOK_AT = "(id) => { app.canvas.ds.scale = 1; app.canvas.centerOnNode(app.rootGraph.getNodeById(id)); }"
# Where on the page the title of a node is, in both looks.
TITLE_OF = """(id) => {
  const shown = document.querySelector(`[data-node-id="${id}"]`)?.getBoundingClientRect();
  if (shown) return [shown.left + shown.width / 2, shown.top + 15];
  const { pos, size } = app.rootGraph.getNodeById(id);
  const { scale, offset } = app.canvas.ds;
  const { left, top } = app.canvasEl.getBoundingClientRect();
  return [left + (pos[0] + size[0] / 2 + offset[0]) * scale, top + (pos[1] - 15 + offset[1]) * scale];
}"""
# Resolves with what went wrong, or with null.
RUN = """() => new Promise((resolve) => {
  app.api.addEventListener("execution_success", () => resolve(null));
  app.api.addEventListener("execution_error", ({ detail }) => resolve(detail.exception_message));
  setTimeout(() => resolve("the prompt did not end"), 180_000);
  app.queuePrompt(0);
})"""
MILLISECONDS = 60_000  # a first page on a busy machine


class NoChromium(RuntimeError):
    """There is none on this machine; the message says how to get one."""


def find_chromium() -> str:
    """The program that HEADROOM_CHROMIUM names, else one on PATH.

    Raises:
        NoChromium: there is none.
    """
    program = os.environ.get("HEADROOM_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        raise NoChromium(MISSING)
    return program


@contextmanager
def chromium(program: str) -> Iterator[Browser]:
    """A browser without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=OPTIONS)
        try:
            yield browser
        finally:
            browser.close()


def new_context(browser: Browser, size: tuple[int, int] = (1600, 900)) -> BrowserContext:
    """What pages of a size, in pixels, share: the frontend's files, which the first one fetches and compiles."""
    return browser.new_context(viewport={"width": size[0], "height": size[1]})


@contextmanager
def new_page(
    context: BrowserContext, client: Client, *, modern: bool = False, locale: str = "en", theme: str = "dark"
) -> Iterator[Page]:
    """The page of a new user, before it is opened: the pages before it have left nothing.

    Args:
        modern: nodes made of DOM elements (Nodes 2.0), not drawn on the canvas.
        locale: the language of the frontend.
        theme: its colours, dark or light.
    """
    settings = {
        "Comfy.TutorialCompleted": True, "Comfy.VueNodes.Enabled": modern, "Comfy.Locale": locale,
        "Comfy.ColorPalette": theme,
    }  # fmt: skip
    client.post("/settings", settings)
    page = context.new_page()
    page.add_init_script("localStorage.clear(); sessionStorage.clear();")
    page.set_default_timeout(MILLISECONDS)
    try:
        yield page
    finally:
        page.close()


def open_frontend(page: Page, client: Client) -> None:
    """Goes to the host's page and waits until a graph is there."""
    page.goto(client.url)
    page.wait_for_function(READY)


def run_prompt(page: Page) -> None:
    """Runs what is open, to its end.

    Raises:
        ServerError: the prompt failed.
    """
    if (wrong := page.evaluate(RUN)) is not None:
        raise ServerError(f"the prompt failed: {wrong}")
