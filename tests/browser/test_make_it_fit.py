"""The command Make It Fit: our nodes in the open workflow, out again with one undo, and what it says."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import TimeoutError as TookTooLong

from headroom.tests.host.ui_workflows import OTHER_ID, Workflow, graph, in_a_subgraph, text_to_image, ui_node

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page, Route

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


BEGIN = "() => void app.extensionManager.command.execute('Headroom.MakeItFit')"  # and waits for nothing
STEPS = """app.rootGraph.nodes.find(({ comfyClass }) => comfyClass === "KSampler")
  .widgets.find(({ name }) => name === "steps")"""


def held(page: Page) -> list[Route]:
    """The first question to the server waits in here until it is sent on; later ones do not."""
    waiting: list[Route] = []

    def meet(route: Route) -> None:
        if waiting:
            route.continue_()
        else:
            waiting.append(route)

    page.route("**/headroom/fit", meet)
    return waiting


def asked(page: Page, waiting: list[Route]) -> None:
    """The command, until its question is on the way."""
    with page.expect_request("**/headroom/fit"):
        page.evaluate(BEGIN)
    while not waiting:
        page.wait_for_timeout(50)


@pytest.mark.parametrize("view", ["classic"])
def test_an_answer_is_put_into_no_other_tab(page: Page) -> None:
    opened(page, text_to_image())
    waiting = held(page)
    asked(page, waiting)
    other = opened(page, text_to_image() | {"id": OTHER_ID})
    waiting[0].continue_()
    toast(page, "Another workflow was opened meanwhile: nothing was put into either.").wait_for()
    assert settled(page) == other


@pytest.mark.parametrize("view", ["classic"])
def test_what_is_changed_while_it_is_asked_stays(page: Page) -> None:
    opened(page, text_to_image())
    waiting = held(page)
    asked(page, waiting)
    page.evaluate(f"{STEPS}.value = 7")
    waiting[0].continue_()
    page.wait_for_function(HAS_FIT)
    assert page.evaluate(f"{STEPS}.value") == 7
    page.keyboard.press("ControlOrMeta+Z")
    page.wait_for_function(f"!{HAS_FIT}")
    assert page.evaluate(f"{STEPS}.value") == 7


def test_an_open_subgraph_stays_open_and_only_its_own_nodes_are_selected(page: Page) -> None:
    opened(page, in_a_subgraph(text_to_image()))
    page.evaluate("app.canvas.openSubgraph(app.rootGraph.nodes.find(({ subgraph }) => subgraph).subgraph)")
    page.wait_for_function("app.canvas.graph !== app.rootGraph")
    page.evaluate(EXECUTE)
    toast(page, "1 node inserted").wait_for()
    page.wait_for_function("app.canvas.graph !== app.rootGraph")
    selected = "[...app.canvas.selectedItems]"
    assert page.evaluate(f"{selected}.map(({{ comfyClass }}) => comfyClass)") == ["HeadroomFit"]
    assert page.evaluate(f"{selected}.every(({{ graph }}) => graph === app.canvas.graph)")


@pytest.mark.parametrize("view", ["classic"])
def test_nodes_of_another_graph_than_the_open_one_are_not_selected(page: Page) -> None:
    opened(page, text_to_image())
    page.evaluate("void app.rootGraph.convertToSubgraph(new Set([app.rootGraph.getNodeById('7')]))")
    page.evaluate("app.canvas.openSubgraph(app.rootGraph.nodes.find(({ subgraph }) => subgraph).subgraph)")
    page.wait_for_function("app.canvas.graph !== app.rootGraph")
    settled(page)
    page.evaluate(EXECUTE)
    page.wait_for_function(HAS_FIT)
    assert page.evaluate("app.canvas.graph !== app.rootGraph && app.canvas.selectedItems.size === 0")
