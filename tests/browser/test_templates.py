"""The templates as a person opens them: from the template browser, with every file that they name in its place."""

from __future__ import annotations

import json
import re
from itertools import combinations
from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image

from headroom.tests.host.ui_workflows import LATER
from headroom.tools.pictures.every_node import every_node
from headroom.tools.server.server import PACK_FOLDER
from headroom.tools.setup.environment import Environment
from headroom.tools.templates.template import WORKFLOWS, path_of

from ..nightly import NIGHTLY
from .graphs import node, ran
from .in_page import execute, warnings

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from headroom.tools.server.client import Client

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
# What reaches out of its group, in either look.
STICKING_OUT = """app.rootGraph.nodes.flatMap((node) => {
  const shown = document.querySelector(`[data-node-id="${node.id}"]`)?.getBoundingClientRect();
  const { scale, offset } = app.canvas.ds;
  const canvas = app.canvasEl.getBoundingClientRect();
  const [[x, y], [width, height]] = [node.pos, node.size];
  const right = shown ? (shown.right - canvas.left) / scale - offset[0] : x + width;
  const bottom = shown ? (shown.bottom - canvas.top) / scale - offset[1] : y + height;
  return app.rootGraph.groups
    .filter(({ pos: [left, top], size: [w, h] }) => x >= left && x < left + w && y >= top && y < top + h)
    .filter(({ pos: [left, top], size: [w, h] }) => right > left + w + 1 || bottom > top + h + 1)
    .map(({ pos: [left, top], size: [w, h] }) => `${node.title}: ${right - left - w}, ${bottom - top - h}`);
})"""
# As at the end of a run.
TELL = """(told) => app.rootGraph.nodes.filter(({ type }) => told[type]).forEach(({ id, type }) => {
  const [node, output] = [`${id}`, told[type]];
  app.api.dispatchCustomEvent("executed", { node, display_node: node, prompt_id: "", output });
})"""
LEAST_TEXT = 40  # CSS pixels of a report on its node: three lines in the older look, in which they are smaller
CROWDED = f"""[...document.querySelectorAll("textarea[readonly]")]
  .filter((box) => box.checkVisibility() && box.value && box.clientHeight < {LEAST_TEXT})
  .map((box) => `${{box.clientHeight}}: ${{box.value}}`)"""
ONE_LOOK = {"ImageCompare"}  # the host's nodes that the older look cannot show
# The newest frontend makes a node taller for its chart, where others take of its text: out of its group, over no other.
NEWEST, GROWING = Environment.from_variables().frontend is not None, "Compare Strategies"
# Older frontends make nodes of elements a few pixels taller, and notes up to fifty (docs/hosts.md).
TALLER = tuple(map(int, re.findall(r"\d+", Environment.from_variables().version)[:2])) < (0, 30)
LACKED = {path_of(name).stem: lacked for name, lacked in LATER.items()}
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


@pytest.fixture(scope="module")
def told(client: Client) -> dict[str, Any]:
    """What nodes of each kind send to their faces: of ours all, and pictures and videos of those that show them."""
    prompt = every_node()
    prompt["35"] = node("EmptyImage", width=64, height=64, batch_size=5, color=0)  # a short film
    outputs = {prompt[number]["class_type"]: sent for number, sent in ran(client, prompt).items()}
    video = {name: outputs["HeadroomVAEDecodeVideo"][name] for name in ("images", "animated")}
    return outputs | {"PreviewImage": outputs["SaveImage"], "SaveVideo": video}


@pytest.mark.parametrize("view", ["classic", "modern"])
def test_each_opens_without_a_warning_and_is_read_there(
    page: Page, client: Client, view: str, told: dict[str, Any]
) -> None:
    """As large as the screen allows, all of it on the screen, and no node over another or out of its group; and so
    with what its nodes say after a run, for which there is room.
    """
    page.set_viewport_size({"width": 1600, "height": 900})
    wrong: list[str] = []
    for name in NAMES if NIGHTLY else NAMES[view == "modern" :: 2]:  # by day each in one of the two
        open_template(page, name)
        page.wait_for_timeout(700)  # the view moves there, and a warning would come after the nodes
        assert not page.evaluate(BROKEN), name
        assert not page.evaluate(LACKING) or not has_its_inputs(client, name), name
        assert not warnings(page).count(), name
        zoom = page.evaluate("app.canvas.ds.scale")
        wrong += [f"{name} opens at {zoom:.3f}"] if zoom < LEAST_ZOOM else []
        assert not ONE_LOOK.intersection(page.evaluate("app.rootGraph.nodes.map(({ type }) => type)")), name
        placed = not (TALLER and view == "modern")
        wrong += misplaced(page, name) if placed else []
        page.evaluate(TELL, told)
        page.wait_for_timeout(700)
        wrong += misplaced(page, f"{name}, after a run") if placed else []
        wrong += [f"{name}: {text}" for text in page.evaluate(CROWDED)]
    assert not wrong, "\n".join(wrong)


def has_its_inputs(client: Client, name: str) -> bool:
    """Whether this host's nodes have all inputs that a template gives values, by their place."""
    kind, entry = LACKED.get(name, ("", ""))
    return not kind or entry in client.object_info(kind)[kind]["input"]["required"]


def misplaced(page: Page, name: str) -> list[str]:
    """Of what is open: nodes over others, and out of their groups."""
    pairs = combinations(page.evaluate(PLACES), 2)
    lying = [f"{name}: {one} and {other}" for one, other in pairs if over(one, other)]
    sticking = [out for out in page.evaluate(STICKING_OUT) if not (NEWEST and out.startswith(GROWING))]
    return lying + [f"{name}: {out}" for out in sticking]


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
    for words, name, other in (
        ("low vram", "Flux on 8GB (low VRAM)", "Qwen-Image on 12GB"),
        ("out of memory", "Out of memory - make SDXL fit 6GB", "Qwen-Image on 12GB"),
        ("8gb", "Wan video on 8GB", "Compare ways to save VRAM"),
    ):
        search.fill(words)
        page.get_by_test_id(f"template-workflow-{other}").wait_for(state="detached")
        page.get_by_test_id(f"template-workflow-{name}").wait_for()
        search.fill("")
        page.get_by_test_id(f"template-workflow-{other}").wait_for()


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
