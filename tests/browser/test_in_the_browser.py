"""What a person sees: nodes found, added and run, the report on its node's face, an error in a sentence."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from headroom.tools.client import Client, Workflow

if TYPE_CHECKING:
    from playwright.sync_api import Page

WIDGET_TYPES = {"COMBO", "INT", "FLOAT", "STRING", "BOOLEAN"}
DYNAMIC_COMBO = "COMFY_DYNAMICCOMBO_V3"
SIDE = 128
REPORT, PREVIEW = "8", "9"

CLEAR = "app.rootGraph.clear()"
ADD = """(name) => {
  const node = LiteGraph.createNode(name);
  app.rootGraph.add(node);
  return [node.title, (node.widgets ?? []).map(({ name, value }) => [name, value])];
}"""
CHOOSE = """([name, value]) => {
  const [node] = app.rootGraph.nodes;
  const widget = node.widgets.find((widget) => widget.name === name);
  widget.value = value;
  widget.callback?.(value);
  return node.widgets.map(({ name }) => name);
}"""
SEARCH = "app.extensionManager.command.execute('Workspace.SearchBox.Toggle')"
DROP = "(text) => app.handleFile(new File([text], 'graph.json', { type: 'application/json' }))"
LOOK_AT = "(id) => { app.canvas.ds.scale = 1; app.canvas.centerOnNode(app.rootGraph.getNodeById(id)); }"
# Resolves with what went wrong, or with null.
RUN = """() => new Promise((resolve) => {
  app.api.addEventListener("execution_success", () => resolve(null));
  app.api.addEventListener("execution_error", ({ detail }) => resolve(detail.exception_message));
  setTimeout(() => resolve("the prompt did not end"), 180_000);
  app.queuePrompt(0);
})"""
REPORT_SHOWN = "[...document.querySelectorAll('textarea')].some(({ value }) => value.startsWith('Headroom'))"
PICTURE_SHOWN = """([id, side]) => {
  const onCanvas = app.rootGraph.getNodeById(id).imgs;
  const pictures = onCanvas ?? document.querySelectorAll(`[data-node-id="${id}"] img`);
  return pictures.length === 1 && pictures[0].naturalWidth === side && pictures[0].naturalHeight === side;
}"""


def node(class_type: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": class_type, "inputs": inputs}


def graph(*, blocks: str = "all") -> Workflow:
    sampler = {"steps": 1, "cfg": 4.0, "sampler_name": "euler", "scheduler": "normal", "denoise": 1.0}
    return {
        "1": node("CheckpointLoaderSimple", ckpt_name="tiny_sd15.safetensors"),
        "2": node("CLIPTextEncode", clip=["1", 1], text="a lighthouse at dusk"),
        "3": node("CLIPTextEncode", clip=["1", 1], text="blurry"),
        "4": node("EmptyLatentImage", width=SIDE, height=SIDE, batch_size=1),
        "5": node("HeadroomAttention", model=["10", 0], backend="sliced", blocks=blocks),
        "10": node("HeadroomLocalAttention", model=["1", 0], **{"pattern": "kv_pool", "pattern.factor": 3}),
        "6": node(
            "KSampler",
            model=["5", 0],
            positive=["2", 0],
            negative=["3", 0],
            latent_image=["4", 0],
            seed=1,
            **sampler,
        ),
        "7": node("HeadroomVAEDecode", samples=["6", 0], vae=["1", 2]),
        REPORT: node("HeadroomReport", anything=["7", 0]),
        PREVIEW: node("PreviewImage", images=[REPORT, 0]),
    }


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


def about_us(complaints: list[str]) -> list[str]:
    return [complaint for complaint in complaints if "headroom" in complaint.lower()]


def our_nodes(client: Client) -> dict[str, dict[str, Any]]:
    every = client.object_info()
    return {name: about for name, about in every.items() if about["category"].partition("/")[0] == "headroom"}


def test_nodes_are_added_with_their_names_widgets_and_defaults(
    page: Page, client: Client, complaints: list[str]
) -> None:
    nodes = our_nodes(client)
    assert "HeadroomReport" in nodes
    page.evaluate(CLEAR)  # once: the frontend keeps values by id and name, and a cleared graph counts ids from 1 again
    for name, about in nodes.items():
        title, widgets = page.evaluate(ADD, name)
        expected = defaults(about)
        assert title == about["display_name"]
        assert widgets[: len(expected)] == expected
    assert not about_us(complaints)


def test_nodes_are_found_by_name_and_by_what_people_call_them(page: Page, client: Client) -> None:
    page.evaluate(SEARCH)
    found = page.get_by_test_id("result-item")
    for about in our_nodes(client).values():
        # The name up to its explanation in brackets: the frontend's search finds nothing for some whole ones.
        for words in (about["display_name"].partition(" (")[0], *about["search_aliases"]):
            page.keyboard.press("ControlOrMeta+A")
            page.keyboard.type(words)
            found.filter(has_text=about["display_name"]).first.wait_for()


def test_the_choice_of_a_pattern_changes_the_widgets(page: Page) -> None:
    page.evaluate(CLEAR)
    _, widgets = page.evaluate(ADD, "HeadroomLocalAttention")
    names = [name for name, _ in widgets]
    assert names[:4] == ["pattern", "pattern.radius", "pattern.block", "pattern.frames"]
    assert page.evaluate(CHOOSE, ["pattern", "kmeans"])[:3] == ["pattern", "pattern.clusters", "pattern.top"]


@pytest.mark.parametrize("page", ["modern"], indirect=True)
def test_advanced_inputs_wait_until_asked_for(page: Page) -> None:
    page.evaluate(CLEAR)
    page.evaluate(ADD, "HeadroomVAE")
    face = page.locator("[data-node-id]")
    face.get_by_text("method").wait_for()
    assert not face.get_by_text("tile_size").is_visible()
    page.get_by_test_id("advanced-inputs-button").click()
    face.get_by_text("tile_size").wait_for()


def test_a_dropped_workflow_runs_and_shows_its_report_and_picture(page: Page, complaints: list[str]) -> None:
    page.evaluate(DROP, json.dumps(graph()))
    assert page.evaluate(RUN) is None
    page.evaluate(LOOK_AT, REPORT)
    page.wait_for_function(REPORT_SHOWN)
    texts = [box.input_value() for box in page.locator("textarea").all() if box.is_visible()]
    report = next(text for text in texts if text.startswith("Headroom memory report"))
    assert "sliced" in report
    assert "3 x 3" in report
    assert "VAE Decode (exact, low memory)" in report
    page.evaluate(LOOK_AT, PREVIEW)
    page.wait_for_function(PICTURE_SHOWN, arg=[PREVIEW, SIDE])
    assert not about_us(complaints)


def test_the_report_is_neither_saved_nor_sent(page: Page) -> None:
    page.evaluate(CLEAR)
    page.evaluate(ADD, "HeadroomReport")
    saved, sent = page.evaluate("app.graphToPrompt().then(({ workflow, output }) => [workflow.nodes[0], output])")
    assert not saved.get("widgets_values")
    assert [about["inputs"] for about in sent.values()] == [{}]


def test_an_error_of_ours_is_a_sentence_in_the_page(page: Page) -> None:
    page.evaluate(DROP, json.dumps(graph(blocks="double:x")))
    assert "cannot read 'double:x'" in page.evaluate(RUN)
    page.get_by_text("Attention by Block and Step failed").wait_for()
    page.get_by_role("button", name="View details").click()
    page.get_by_test_id("runtime-error-panel").get_by_text("cannot read 'double:x'; write all, inner, or").wait_for()
