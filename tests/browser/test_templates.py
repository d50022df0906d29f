"""The templates as a person opens them: from the template browser, with every file that they name in its place."""

from __future__ import annotations

import json
from itertools import combinations
from typing import TYPE_CHECKING

import pytest
from PIL import Image

from headroom.tools.server.server import PACK_FOLDER
from headroom.tools.templates.template import WORKFLOWS

from .in_page import execute, warnings

if TYPE_CHECKING:
    from playwright.sync_api import Page

NAMES = sorted(path.stem for path in WORKFLOWS.glob("*.json"))
OPENED = """([name, ids]) => {
  const known = app.rootGraph.nodes.map(({ id }) => Number(id)).sort((one, other) => one - other);
  const open = app.extensionManager.workflow.activeWorkflow.path.includes(name);
  return open && JSON.stringify(known) === JSON.stringify(ids);
}"""
PICTURED = """([name, width, height]) => {
  const picture = document.querySelector(`[data-testid="template-workflow-${name}"] img`);
  return picture?.naturalWidth === width && picture.naturalHeight === height;
}"""
# What is red, or not known to the page.
BROKEN = """app.rootGraph.nodes
  .filter((node) => node.has_errors || !LiteGraph.registered_node_types[node.type])
  .map(({ type, title }) => `${title} (${type})`)"""
# Widgets whose value is none of their choices.
LACKING = """app.rootGraph.nodes.flatMap((node) => (node.widgets ?? [])
  .filter(({ type, value, options }) => {
    const choices = typeof options?.values === "function" ? options.values() : options?.values;
    return type === "combo" && Array.isArray(choices) && !choices.includes(value);
  })
  .map(({ name, value }) => `${node.title}: ${name} = ${value}`))"""

# Where each node is: on the screen in the newer look, which is made of elements; else on the canvas.
PLACES = """app.rootGraph.nodes.map((node) => {
  const shown = document.querySelector(`[data-node-id="${node.id}"]`)?.getBoundingClientRect();
  const [[x, y], [width, height]] = [node.pos, node.size];
  return shown ? [node.title, shown.left, shown.top, shown.right, shown.bottom]
    : [node.title, x, y - LiteGraph.NODE_TITLE_HEIGHT, x + width, y + height];
})"""
ONE_LOOK = {"ImageCompare"}  # the host's nodes that the older look cannot show
LEAST_ZOOM = 0.6  # below 0.572 a canvas draws no texts: they would be smaller than 8 pixels


def open_template(page: Page, name: str) -> None:
    """Through the template browser, until its nodes are there."""
    execute(page, "Comfy.BrowseTemplates")
    page.get_by_role("dialog").get_by_text(PACK_FOLDER).first.click()
    card = page.get_by_test_id(f"template-workflow-{name}")
    card.wait_for()
    card.scroll_into_view_if_needed()  # its picture is fetched when it is seen
    with Image.open(WORKFLOWS / f"{name}.jpg") as thumbnail:
        page.wait_for_function(PICTURED, arg=[name, *thumbnail.size])
    card.click()
    saved = json.loads((WORKFLOWS / f"{name}.json").read_text(encoding="utf-8"))
    page.wait_for_function(OPENED, arg=[name, sorted(node["id"] for node in saved["nodes"])])


@pytest.mark.parametrize("view", ["modern"])
def test_each_opens_without_a_warning(page: Page) -> None:
    for name in NAMES:
        open_template(page, name)
        page.wait_for_timeout(300)  # a warning would come after the nodes
        assert not page.evaluate(BROKEN), name
        assert not page.evaluate(LACKING), name
        assert not warnings(page).count(), name


@pytest.mark.parametrize("view", ["classic", "modern"])
def test_each_is_read_where_it_opens(page: Page) -> None:
    """As large as the screen allows, all of it on the screen, and no node over another."""
    page.set_viewport_size({"width": 1600, "height": 900})
    for name in NAMES:
        open_template(page, name)
        page.wait_for_timeout(700)  # the view moves there
        assert page.evaluate("app.canvas.ds.scale") >= LEAST_ZOOM, name
        assert not ONE_LOOK.intersection(page.evaluate("app.rootGraph.nodes.map(({ type }) => type)")), name
        for one, other in combinations(page.evaluate(PLACES), 2):
            assert not over(one, other), (name, one, other)


def over(one: list, other: list) -> bool:
    """Whether two nodes share more than an edge."""
    (_, left, top, right, bottom), (_, x, y, end, floor) = one, other
    return left < end - 1 and x < right - 1 and top < floor - 1 and y < bottom - 1


@pytest.mark.parametrize("view", ["modern"])
def test_they_are_found_by_what_people_look_for(page: Page) -> None:
    """All of the pack's are shown first, and then those that match."""
    execute(page, "Comfy.BrowseTemplates")
    dialog = page.get_by_role("dialog")
    dialog.get_by_text(PACK_FOLDER).first.click()
    page.get_by_test_id(f"template-workflow-{NAMES[0]}").wait_for()
    search = dialog.get_by_role("textbox").or_(dialog.get_by_role("combobox")).first
    for words, name in (
        ("low vram", "Flux on 8GB (low VRAM)"),
        ("out of memory", "Out of memory - make SDXL fit 6GB"),
        ("8gb", "Wan video on 8GB"),
    ):
        search.fill(words)
        page.get_by_test_id("template-workflow-Compare ways to save VRAM").wait_for(state="detached")
        page.get_by_test_id(f"template-workflow-{name}").wait_for()
        search.fill("")
        page.get_by_test_id("template-workflow-Compare ways to save VRAM").wait_for()


@pytest.mark.parametrize("view", ["classic"])
def test_a_file_that_is_missing_is_said(page: Page) -> None:
    """What the test above looks for does appear."""
    content = (WORKFLOWS / f"{NAMES[0]}.json").read_text(encoding="utf-8")
    changed = content.replace(".safetensors", "_of_another_name.safetensors")
    assert changed != content
    page.evaluate("(text) => app.loadGraphData(JSON.parse(text))", changed)
    warnings(page).first.wait_for()
    assert page.evaluate(LACKING)
    if page.get_by_test_id("error-overlay").count():  # beside its dialog, the frontend of 0.18.2 marks no node
        assert page.evaluate(BROKEN)
