"""Nodes as a person gets them into a graph: found, dragged, connected, set, and their help read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from headroom.tools.server.client import Client

from .graphs import our_nodes
from .in_page import CLEAR, execute

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

WIDGET_TYPES = {"COMBO", "INT", "FLOAT", "STRING", "BOOLEAN"}
DYNAMIC_COMBO = "COMFY_DYNAMICCOMBO_V3"
CATEGORY = "headroom"
CENTRE = {"x": 900, "y": 400}  # where nodes are put, in pixels of the page

# Whether a node is in the graph, and no other.
ONLY = "(type) => app.rootGraph.nodes.length === 1 && app.rootGraph.nodes[0].type === type"
ADD = """(name) => {
  const node = LiteGraph.createNode(name);
  app.rootGraph.add(node);
  return [node.title, (node.widgets ?? []).map(({ name, value }) => [name, value])];
}"""
# Nodes beside each other at the scale 1; their ids are 1, 2 ...
PLACE = """(names) => {
  app.rootGraph.clear();
  app.canvas.ds.scale = 1;
  app.canvas.ds.offset = [0, 0];
  for (const [index, name] of names.entries()) {
    const node = LiteGraph.createNode(name);
    node.pos = [200 + 420 * index, 150];
    app.rootGraph.add(node);
  }
}"""
CHOOSE = """([name, value]) => {
  const [node] = app.rootGraph.nodes;
  const widget = node.widgets.find((widget) => widget.name === name);
  widget.value = value;
  widget.callback?.(value);
  return node.widgets.map(({ name }) => name);
}"""
# Where on the page an output and an input are.
SLOTS = """([from, output, to, input]) => {
  const corner = app.canvasEl.getBoundingClientRect();
  const onPage = (position) => {
    const [x, y] = app.canvas.ds.convertOffsetToCanvas([...position]);
    return [x + corner.left, y + corner.top];
  };
  const node = (id) => app.rootGraph.getNodeById(id);
  return [onPage(node(from).getOutputPos(output)), onPage(node(to).getInputPos(input))];
}"""
LINKS = (
    "[...app.rootGraph.links.values()].map((link) => [link.origin_id, link.target_id, link.target_slot].map(Number))"
)
# Where on the page the middle of a widget's right half is, for nodes drawn on the canvas.
WIDGET = """([id, name]) => {
  const node = app.rootGraph.getNodeById(id);
  const widget = node.widgets.find((widget) => widget.name === name);
  const corner = app.canvasEl.getBoundingClientRect();
  const [x, y] = app.canvas.ds.convertOffsetToCanvas([node.pos[0] + node.size[0] * 0.6, node.pos[1] + widget.y + 10]);
  return [x + corner.left, y + corner.top];
}"""
VALUE = "([id, name]) => app.rootGraph.getNodeById(id).widgets.find((widget) => widget.name === name).value"
# The page of another node than those before, with its picture.
HELP_SHOWN = """(before) => {
  const help = document.querySelector(".node-help-content");
  const heading = help?.querySelector("h1")?.innerText;
  return heading && !before.includes(heading) && help.querySelector("img")?.naturalWidth > 100;
}"""
SELECT = "(id) => { app.canvas.deselectAll(); app.canvas.selectNode(app.rootGraph.getNodeById(id)); }"


def defaults(definition: dict[str, Any]) -> list[list[Any]]:
    """Names and defaults of a node's widgets, in order, as the host states them."""
    inputs = [item for group in definition["input"].values() for item in group.items() if group]
    found: list[list[Any]] = []
    for name, spec in inputs:
        if spec[0] in WIDGET_TYPES:
            found.append([name, spec[1]["default"]])
        elif spec[0] == DYNAMIC_COMBO:  # its first choice, with the inputs that come with it
            first = spec[1]["options"][0]
            below = defaults({"input": first["inputs"]})
            found += [[name, first["key"]], *([f"{name}.{inner}", value] for inner, value in below)]
    return found


def library(page: Page) -> Locator:
    """The entries of the sidebar's node library, our category opened."""
    execute(page, "Workspace.ToggleSidebarTab.node-library")
    entries = page.get_by_role("treeitem")
    entries.filter(has_text=CATEGORY).last.click()
    return entries


@pytest.mark.parametrize("view", ["classic"])  # the library is the same in both
def test_every_node_is_in_the_library_and_dragged_into_the_graph(page: Page, client: Client) -> None:
    entries = library(page)
    entries.filter(has_text="Memory Report").scroll_into_view_if_needed()  # our last: now all are in sight
    page.wait_for_timeout(500)
    for name, about in our_nodes(client).items():
        page.evaluate(CLEAR)
        entry = entries.filter(has=page.get_by_text(about["display_name"], exact=True)).first
        entry.drag_to(page.locator("#graph-canvas"), target_position=CENTRE)
        page.wait_for_function(ONLY, arg=name)


def test_nodes_are_added_with_their_names_widgets_and_defaults(page: Page, client: Client) -> None:
    nodes = our_nodes(client)
    assert "HeadroomReport" in nodes
    page.evaluate(CLEAR)  # once: the frontend keeps values by id and name, and a cleared graph counts ids from 1 again
    for name, about in nodes.items():
        title, widgets = page.evaluate(ADD, name)
        expected = defaults(about)
        assert title == about["display_name"]
        assert widgets[: len(expected)] == expected


@pytest.mark.parametrize("view", ["modern"])  # the search is the same in both
def test_nodes_are_found_by_what_people_call_them_and_added_by_their_name(page: Page, client: Client) -> None:
    found = page.get_by_test_id("result-item")
    for name, about in our_nodes(client).items():
        page.evaluate(CLEAR)
        execute(page, "Workspace.SearchBox.Toggle")
        ours = found.filter(has_text=about["display_name"]).first
        # The name up to its explanation in brackets: the frontend's search finds nothing for some whole ones.
        for words in (*about["search_aliases"], about["display_name"].partition(" (")[0]):
            page.keyboard.press("ControlOrMeta+A")
            page.keyboard.insert_text(words)
            ours.wait_for()
        ours.click()
        page.mouse.move(CENTRE["x"], CENTRE["y"], steps=4)  # it hangs on the mouse until it is put down
        page.wait_for_timeout(200)
        page.mouse.click(CENTRE["x"], CENTRE["y"])
        page.wait_for_function(ONLY, arg=name)


def test_nodes_are_connected_by_the_mouse(page: Page) -> None:
    page.evaluate(PLACE, ["VAELoader", "HeadroomVAE", "VAEDecode"])
    page.wait_for_timeout(500)  # until the nodes are drawn, where they are made of DOM elements
    for source, target, socket in ((1, 2, 0), (2, 3, 1)):
        start, end = page.evaluate(SLOTS, [source, 0, target, socket])
        page.mouse.move(*start)
        page.mouse.down()
        page.mouse.move(*end, steps=8)
        page.mouse.up()
    page.wait_for_function(f"{LINKS}.length === 2")
    assert page.evaluate(LINKS) == [[1, 2, 0], [2, 3, 1]]


def test_a_widget_is_edited(page: Page, view: str) -> None:
    page.evaluate(PLACE, ["HeadroomOffload"])
    before = page.evaluate(VALUE, [1, "vram_budget_gb"])
    if view == "modern":
        field = page.locator("[data-node-id='1'] input").first
        field.fill("3.5")
        field.press("Enter")
    else:
        page.wait_for_timeout(500)  # until the node is drawn: before, the mouse meets nothing
        page.mouse.dblclick(*page.evaluate(WIDGET, [1, "vram_budget_gb"]))
        page.locator(".graphdialog input").fill("3.5")
        page.keyboard.press("Enter")
    page.wait_for_function(f"({VALUE})([1, 'vram_budget_gb']) === 3.5")
    assert before != 3.5


@pytest.mark.parametrize("view", ["classic"])
def test_the_choice_of_a_pattern_changes_the_widgets(page: Page) -> None:
    page.evaluate(CLEAR)
    _, widgets = page.evaluate(ADD, "HeadroomLocalAttention")
    names = [name for name, _ in widgets]
    assert names[:4] == ["pattern", "pattern.radius", "pattern.block", "pattern.frames"]
    assert page.evaluate(CHOOSE, ["pattern", "kmeans"])[:3] == ["pattern", "pattern.clusters", "pattern.top"]


@pytest.mark.parametrize("view", ["modern"])
def test_advanced_inputs_wait_until_asked_for(page: Page) -> None:
    page.evaluate(PLACE, ["HeadroomVAE"])
    face = page.locator("[data-node-id]")
    face.get_by_text("method").wait_for()
    assert not face.get_by_text("tile_size").is_visible()
    face.get_by_text("Show advanced inputs").click()
    face.get_by_text("tile_size").wait_for()


@pytest.mark.parametrize("view", ["classic"])
@pytest.mark.parametrize("locale", ["en", "zh", "ja"])
def test_the_help_of_every_node_is_opened(page: Page, client: Client, locale: str) -> None:
    nodes = our_nodes(client)
    page.evaluate(PLACE, list(nodes))
    headings: list[str] = []
    for number in range(1, len(nodes) + 1):
        page.evaluate(SELECT, number)
        if number == 1:
            page.get_by_test_id("info-button").click()
        page.wait_for_function(HELP_SHOWN, arg=headings)
        headings.append(page.locator(".node-help-content h1").first.inner_text())
    assert len(set(headings)) == len(nodes)
    assert all(any(ord(sign) > 0x2E80 for sign in heading) for heading in headings) == (locale != "en")
