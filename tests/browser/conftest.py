"""The real frontend of a real server, in a headless Chromium.

Chromium is the one that HEADROOM_CHROMIUM names, else one on PATH; without one, these tests are skipped.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from headroom.tools.client import Client
from headroom.tools.environment import Environment
from headroom.tools.server import Server

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page

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
READY = "window.app?.vueAppReady && app.extensionManager.workflow.activeWorkflow && app.rootGraph.nodes.length"
MILLISECONDS = 60_000  # a first page on a busy machine


# Of the package and not of the session: while Playwright runs, no other test of this thread can start an event loop.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Chromium, or a skip that says how to get it."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="the Python package playwright is not installed")
    program = os.environ.get("HEADROOM_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(
            "no Chromium: install it (on Debian or Ubuntu: sudo apt install chromium), or name its program in"
            " HEADROOM_CHROMIUM"
        )
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=OPTIONS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="package")
def client() -> Iterator[Client]:
    """One user of a host with the pack."""
    with Server(Environment.from_variables(), cpu=True) as server:
        yield Client(server.url)


@pytest.fixture(params=["classic", "modern"])
def page(request: pytest.FixtureRequest, browser: Browser, client: Client, complaints: list[str]) -> Iterator[Page]:
    """The page of a new user, its nodes drawn on the canvas (classic) or made of DOM elements (Nodes 2.0)."""
    settings = {"Comfy.TutorialCompleted": True, "Comfy.VueNodes.Enabled": request.param == "modern"}
    client.post("/settings", settings)
    with browser.new_context(viewport={"width": 1600, "height": 900}) as context:
        page = context.new_page()
        page.set_default_timeout(MILLISECONDS)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda message: complaints.extend(_complaint(message)))
        page.goto(client.url)
        page.wait_for_function(READY)
        yield page


@pytest.fixture
def complaints() -> list[str]:
    """What the page put on its console as an error, with the address it is about."""
    return []


def _complaint(message: ConsoleMessage) -> list[str]:
    return [f"{message.text} ({message.location['url']})"] if message.type == "error" else []
