"""The command Make It Fit: our nodes in the open workflow, out again with one undo, and what it says."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from playwright.sync_api import TimeoutError as TookTooLong

from headroom.tests.host.ui_workflows import OTHER_ID, Workflow, graph, text_to_image, ui_node

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

DROP_AS = "([text, name]) => app.handleFile(new File([text], name, { type: 'application/json' }))"
ELSEWHERE = (700, 500)  # in the canvas, beside the menu
NAME, TITLE = "Make It Fit (Headroom)", "Make It Fit"
# The graph as the browser would save it, once what is open is its history's last state.
GRAPH = """() => {
  const tracker = app.extensionManager.workflow.activeWorkflow.changeTracker;
  (tracker.captureCanvasState ?? tracker.checkState).call(tracker);
  return JSON.parse(JSON.stringify(app.rootGraph.serialize()));
}"""
KINDS = "() => app.rootGraph.nodes.map(({ comfyClass }) => comfyClass)"
HAS_FIT = f"(({KINDS})().includes('HeadroomFit'))"
TABS = "app.extensionManager.workflow.openWorkflows.length"
HISTORY = """() => {
  const { undoQueue, redoQueue } = app.extensionManager.workflow.activeWorkflow.changeTracker;
  return [undoQueue.length, redoQueue.length];
}"""
EXECUTE = "() => app.extensionManager.command.execute('Headroom.MakeItFit')"


def opened(page: Page, workflow: Workflow) -> dict[str, Any]:
    """A workflow in a tab of its own (one with another id and name than the last), as the browser has it."""
    tabs = page.evaluate(TABS)
    page.evaluate(DROP_AS, [json.dumps(workflow), f"{workflow['id']}.json"])
    page.wait_for_function(f"{TABS} === {tabs + 1} && app.rootGraph.nodes.length === {len(workflow['nodes'])}")
    return settled(page)


def settled(page: Page) -> dict[str, Any]:
    """The graph, once nodes made of DOM elements have found their sizes."""
    found: dict[str, Any] | None = None
    while found != (found := page.evaluate(GRAPH)):
        page.wait_for_timeout(200)
    assert found is not None
    return found


def in_the_menu(page: Page, title: str, name: str) -> Locator:
    """An item of the frontend's menu under a title, which a pointer opens."""
    page.locator(".comfy-menu-button-wrapper").or_(page.get_by_test_id("comfy-menu-button")).first.click()
    item = page.get_by_text(name)
    for _ in range(10):
        page.get_by_role("menuitem", name=title, exact=True).hover()
        try:
            item.wait_for(timeout=3_000)
        except TookTooLong:
            # On a busy machine one in a hundred menus does not hear of the pointer that is there before it is ready.
            page.mouse.move(*ELSEWHERE)
        else:
            break
    return item


def toast(page: Page, sentence: str) -> Locator:
    # Newer frontends have an alert around all of them, for screen readers.
    return page.get_by_role("alert").filter(has_text=TITLE).filter(has_text=sentence).last


def test_it_is_in_the_menu_and_one_undo_brings_the_former_graph_back(page: Page) -> None:
    before, tabs = opened(page, text_to_image()), page.evaluate(TABS)
    undone, _ = page.evaluate(HISTORY)
    in_the_menu(page, "Edit", NAME).click()
    toast(page, "1 node inserted").filter(has_text="node 8, Make It Fit, for node 5 (KSampler)").wait_for()
    after = settled(page)
    assert sorted(page.evaluate(KINDS)) == sorted([*(node["type"] for node in before["nodes"]), "HeadroomFit"])
    assert page.evaluate(HISTORY) == [undone + 1, 0]
    page.keyboard.press("ControlOrMeta+Z")
    page.wait_for_function(f"!{HAS_FIT}")
    assert page.evaluate(GRAPH) == before
    page.keyboard.press("ControlOrMeta+Y")
    page.wait_for_function(HAS_FIT)
    assert page.evaluate(GRAPH) == after
    assert page.evaluate(HISTORY) == [undone + 1, 0]
    assert page.evaluate(TABS) == tabs


def test_it_says_what_it_does_not_do_and_changes_nothing(page: Page, complaints: list[str]) -> None:
    opened(page, text_to_image())
    page.evaluate(EXECUTE)
    fitted, history = settled(page), page.evaluate(HISTORY)
    page.evaluate(EXECUTE)
    toast(page, "nothing to insert: this workflow is fitted already").wait_for()
    assert settled(page) == fitted
    assert page.evaluate(HISTORY) == history
    circle, history = opened(page, in_a_circle()), page.evaluate(HISTORY)
    page.evaluate(EXECUTE)
    toast(page, "the workflow has a circle through node 1").wait_for()
    assert settled(page) == circle
    assert page.evaluate(HISTORY) == history
    (refused,) = (one for one in complaints if "400 (Bad Request)" in one and one.endswith("/api/headroom/fit)"))
    complaints.remove(refused)


def in_a_circle() -> Workflow:
    """Two nodes that wait for each other."""
    latent = ({"samples": "LATENT"}, "LATENT")
    nodes = [ui_node(number, "LatentFlip", *latent, widgets_values=["x-axis: vertically"]) for number in (1, 2)]
    return graph(nodes, (1, 0, 2, "samples"), (2, 0, 1, "samples"), id=OTHER_ID)
