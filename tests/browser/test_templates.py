"""The templates as a person opens them: from the template browser, with every file that they name in its place."""

from __future__ import annotations

import json
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
