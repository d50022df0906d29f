"""The real frontend of a real server, in a headless Chromium; without one, these tests are skipped.

What the page looked like at the end of each test is kept in `output/browser`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from headroom.tools.pictures.chromium import NoChromium, chromium, find_chromium, new_context, new_page, open_frontend
from headroom.tools.server.client import Client
from headroom.tools.server.server import Server
from headroom.tools.setup.environment import PACK, Environment
from headroom.tools.templates.public_names import add_example, host_options

from .in_page import unexpected

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page

PICTURES = PACK / "output" / "browser"


# Of the package and not of the session: while Playwright runs, no other test of this thread can start an event loop.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Chromium, or a skip that says how to get it."""
    pytest.importorskip("playwright.sync_api", reason="the Python package playwright is not installed")
    try:
        program = find_chromium()
    except NoChromium as error:
        pytest.skip(str(error))
    with chromium(program) as found:
        yield found


@pytest.fixture(scope="package")
def context(browser: Browser) -> Iterator[BrowserContext]:
    """One for all pages: each would fetch and compile the frontend again."""
    with new_context(browser) as shared:
        yield shared


@pytest.fixture(scope="package")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """One user of a host with the pack, which lists the files that the templates name."""
    options = host_options(tmp_path_factory.mktemp("public_names"))
    with Server(Environment.from_variables(), extra_args=options, cpu=True) as server:
        add_example(server)
        yield Client(server.url)


@pytest.fixture(params=["classic", "modern"])
def view(request: pytest.FixtureRequest) -> str:
    """Nodes drawn on the canvas (classic) or made of DOM elements (Nodes 2.0)."""
    return str(request.param)


@pytest.fixture
def locale() -> str:
    """The language of the frontend."""
    return "en"


@pytest.fixture
def theme() -> str:
    """The frontend's colours."""
    return "dark"


@pytest.fixture
def page(
    request: pytest.FixtureRequest,
    context: BrowserContext,
    client: Client,
    view: str,
    locale: str,
    theme: str,
    complaints: list[str],
) -> Iterator[Page]:
    """The page of a new user, whose console must stay clean."""
    with new_page(context, client, modern=view == "modern", locale=locale, theme=theme) as page:
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda message: complaints.extend(_complaint(message)))
        open_frontend(page, client)
        yield page
        PICTURES.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=PICTURES / f"{re.sub(r'[^a-z0-9]+', '_', request.node.name.lower())}.png")
    assert not unexpected(complaints)


@pytest.fixture
def complaints() -> list[str]:
    """What the page put on its console as an error, with the address it is about; a test removes what it expects."""
    return []


def _complaint(message: ConsoleMessage) -> list[str]:
    return [f"{message.text} ({message.location['url']})"] if message.type == "error" else []
