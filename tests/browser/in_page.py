"""What tests have a page do, and what they make of its complaints."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

CLEAR = "app.rootGraph.clear()"
DROP = "(text) => app.handleFile(new File([text], 'graph.json', { type: 'application/json' }))"
LOOK_AT = "(id) => { app.canvas.ds.scale = 1; app.canvas.centerOnNode(app.rootGraph.getNodeById(id)); }"
# Resolves with what went wrong, or with null.
RUN = """() => new Promise((resolve) => {
  app.api.addEventListener("execution_success", () => resolve(null));
  app.api.addEventListener("execution_error", ({ detail }) => resolve(detail.exception_message));
  setTimeout(() => resolve("the prompt did not end"), 180_000);
  app.queuePrompt(0);
})"""


def execute(page: Page, command: str) -> None:
    """A command of the frontend by its id."""
    page.evaluate("(id) => app.extensionManager.command.execute(id)", command)


def warnings(page: Page) -> Locator:
    """What a page says of a graph that it cannot run: an overlay, or a dialog of 0.18.2's frontend."""
    return page.get_by_test_id("error-overlay").or_(page.get_by_text("This workflow is missing"))


def about_us(complaints: list[str]) -> list[str]:
    """Those on the console that name the pack."""
    return [complaint for complaint in complaints if "headroom" in complaint.lower()]
