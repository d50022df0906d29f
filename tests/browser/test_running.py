"""What a person sees of a run: the report on its node's face, pictures and the chart, an error in a sentence."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from headroom.tests.host.ui_workflows import OTHER_ID

from .graphs import CHART, PREVIEW, REPORT, SIDE, forget, graph, node
from .in_page import CLEAR, DROP, LOOK_AT, RUN, TEXT_SHOWN, execute
from .test_make_it_fit import opened

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from headroom.tools.server.client import Client, Workflow

REPORT_SHOWN = "[...document.querySelectorAll('textarea')].some(({ value }) => value.startsWith('Headroom'))"
# One picture on a node, of a width and height; 0: any above 100.
PICTURE_SHOWN = """([id, side]) => {
  const onCanvas = app.rootGraph.getNodeById(id).imgs;
  const pictures = onCanvas ?? document.querySelectorAll(`[data-node-id="${id}"] img`);
  const right = (length) => (side ? length === side : length > 100);
  return pictures.length === 1 && right(pictures[0].naturalWidth) && right(pictures[0].naturalHeight);
}"""

SET = "([id, name, to]) => (app.rootGraph.getNodeById(id).widgets.find((one) => one.name === name).value = to)"
# Puts a node into a subgraph of its own.
WRAP = "(id) => void app.rootGraph.convertToSubgraph(new Set([app.rootGraph.getNodeById(id)]))"
WRAPPED = "app.rootGraph.nodes.find(({ subgraph }) => subgraph).subgraph.nodes[0]"
SEEN = "(text) => [...document.querySelectorAll('textarea')].some((one) => one.value === text && one.checkVisibility())"
SIZE = "(id) => [...app.rootGraph.getNodeById(id).size]"


def will_it_fit() -> Workflow:
    """Nothing is sampled, for so small a card."""
    return {
        "1": node("CheckpointLoaderSimple", ckpt_name="tiny_sd15.safetensors"),
        "3": node("EmptyLatentImage", width=SIDE, height=SIDE, batch_size=1),
        "4": node("HeadroomEstimate", model=["1", 0], samples=["3", 0], cfg=4.0, if_too_big="report", vram_gb=0.1),
    }


def test_a_dropped_workflow_runs_and_shows_its_report_and_picture(page: Page) -> None:
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
    page.evaluate(LOOK_AT, CHART)
    page.wait_for_function(PICTURE_SHOWN, arg=[CHART, 0])


# How far what two nodes show is apart, of 255.
APART = """(ids) => {
  const shown = (id) => [...document.querySelectorAll(`[data-node-id="${id}"] img`)].at(-1);
  const pictures = ids.map((id) => shown(id) ?? app.rootGraph.getNodeById(id).imgs?.at(-1));
  if (!pictures.every((one) => one?.naturalWidth)) return 255;
  const [some, others] = pictures.map((one) => {
    const context = new OffscreenCanvas(64, 64).getContext("2d");
    context.drawImage(one, 0, 0, 64, 64);
    return context.getImageData(0, 0, 64, 64).data;
  });
  return some.reduce((sum, value, at) => sum + Math.abs(value - others[at]), 0) / some.length;
}"""


def test_a_decode_in_strips_ends_with_the_whole_picture_on_its_node(page: Page, view: str) -> None:
    """What it was sent last is what it made, but for JPEG's losses."""
    strips = graph()
    strips["6"]["inputs"]["seed"] = {"classic": 2, "modern": 3}[view]  # what has run is not sent again
    strips["7"]["inputs"] |= {"method": "exact", "tile_size": 32}
    page.evaluate(DROP, json.dumps(strips))
    assert page.evaluate(RUN) is None
    page.evaluate("() => app.extensionManager.command.execute('Comfy.Canvas.FitView')")
    page.wait_for_function(f"(ids) => ({APART})(ids) < 3", arg=["7", PREVIEW])


@pytest.mark.parametrize("view", ["classic"])
def test_the_report_is_neither_saved_nor_sent(page: Page, client: Client) -> None:
    page.evaluate(CLEAR)
    page.evaluate("void app.rootGraph.add(LiteGraph.createNode('HeadroomReport'))")
    saved, sent = page.evaluate("app.graphToPrompt().then(({ workflow, output }) => [workflow.nodes[0], output])")
    assert not saved.get("widgets_values")
    assert [about["inputs"] for about in sent.values()] == [{}]
    # Before it has run its face says what it will do, by the description that the server gives of it.
    promised = page.evaluate("app.rootGraph.nodes[0].widgets.find(({ name }) => name === 'text').value")
    about = client.object_info("HeadroomReport")["HeadroomReport"]["description"]
    assert promised == " ".join(about.partition("\n\n")[0].split()) != ""


def test_an_error_of_ours_is_a_sentence_in_the_page(page: Page) -> None:
    page.evaluate(DROP, json.dumps(graph(blocks="double:x")))
    assert "cannot read 'double:x'" in page.evaluate(RUN)
    said = page.get_by_text("cannot read 'double:x'; write all, inner, or")
    # The overlay of 0.18.2's frontend says it by itself, those since say which node failed.
    said.or_(page.get_by_text("Attention by Block and Step failed")).first.wait_for()
    page.get_by_role("button", name=re.compile("View details|See Errors")).click()
    panel = page.get_by_test_id("properties-panel")
    panel.get_by_text("Attention by Block and Step").first.wait_for()
    panel.locator(said).first.wait_for()


def test_make_it_fit_shows_what_its_plan_took(page: Page, client: Client) -> None:
    """A second run is measured anew, and stands there alone."""
    forget(client)  # a host that reuses a plan may not tell it again
    page.evaluate(DROP, json.dumps(fitted()))
    text = "app.rootGraph.getNodeById('20').widgets.find(({ name }) => name === 'text').value"
    expected = [("6", "sampling"), ("7", "decode")]
    for seed in (5, 6):
        page.evaluate(SET, ["6", "seed", seed])
        assert page.evaluate(RUN) is None
        page.wait_for_function(f"{text}.includes('It took:')")
        told = page.evaluate(text)
        assert re.findall(r"^#(\d+) (\w+): \d+\.\d s, peak \d", told, re.MULTILINE) == expected
        assert told.startswith("Make it fit · ")
        assert re.search(r"^#7 decode: .* of ComfyUI in all", told, re.MULTILINE)  # a CPU has no count of its own
        page.evaluate(f"{text} = 'Make it fit · '")


TEXT = "widgets.find(({ name }) => name === 'text').value"
RESULTS = "() => JSON.parse(JSON.stringify(app.nodeOutputs))"
COME_BACK = "(results) => { app.nodeOutputs = results; }"  # as with a tab that is opened again


def fitted() -> Workflow:
    """Make It Fit (20) before a sampler (6) and a decode (7)."""
    planned = graph()
    planned["20"] = node("HeadroomFit", model=["5", 0], vae=["1", 2], samples=["4", 0], cfg=4.0, quality="exact")
    planned["6"]["inputs"]["model"], planned["7"] = ["20", 0], node("VAEDecode", samples=["6", 0], vae=["20", 1])
    return planned


@pytest.mark.parametrize("view", ["classic"])
def test_what_a_run_took_is_told_in_its_own_tab(page: Page, client: Client) -> None:
    forget(client)
    page.evaluate(DROP, json.dumps(fitted()))
    page.evaluate(SET, ["6", "seed", 7])  # not reused
    assert page.evaluate(RUN) is None
    text = f"app.rootGraph.getNodeById('20')?.{TEXT}"
    page.wait_for_function(f"{text}.includes('It took:')")
    results = page.evaluate(RESULTS)
    opened(page, page.evaluate("() => JSON.parse(JSON.stringify(app.rootGraph.serialize()))") | {"id": OTHER_ID})
    page.evaluate(COME_BACK, results)
    page.wait_for_function(f"{text}?.startsWith('Make it fit')")
    assert "It took" not in page.evaluate(text)
    execute(page, "Workspace.PreviousOpenedWorkflow")
    page.wait_for_function(f"{text}?.includes('It took:')")


@pytest.mark.parametrize("view", ["classic"])
def test_a_plan_in_a_subgraph_is_told_with_what_it_took_and_comes_back(page: Page, client: Client) -> None:
    forget(client)
    page.evaluate(DROP, json.dumps(fitted()))
    page.evaluate(SET, ["6", "seed", 8])
    wrap = "(ids) => void app.rootGraph.convertToSubgraph(new Set(ids.map((id) => app.rootGraph.getNodeById(id))))"
    page.evaluate(wrap, ["20", "6"])
    assert page.evaluate(RUN) is None
    inside = "app.rootGraph.nodes.find(({ subgraph }) => subgraph).subgraph.nodes"
    text = f"{inside}.find(({{ comfyClass }}) => comfyClass === 'HeadroomFit').{TEXT}"
    page.wait_for_function(f"{text}.includes('It took:')")
    told = page.evaluate(text)
    works = re.findall(r"^#\d+(?::\d+)? (\w+): \d+\.\d s, peak \d", told, re.MULTILINE)
    assert works == ["sampling", "decode"]  # within the subgraph, and behind it
    results = page.evaluate(RESULTS)
    page.evaluate(f"{text} = ''")
    page.evaluate(COME_BACK, results)
    assert page.evaluate(text) == told


@pytest.mark.parametrize(
    ("failing", "number", "setting", "wrong", "right"),
    [(graph(), "5", "blocks", "double:x", "all"), (will_it_fit(), "4", "if_too_big", "stop", "report")],
    ids=["one without a text", "one with a report"],
)
def test_an_error_of_ours_is_on_its_node_until_the_next_run(
    page: Page, failing: Workflow, number: str, setting: str, wrong: str, right: str
) -> None:
    page.evaluate(DROP, json.dumps(failing))
    page.evaluate(LOOK_AT, number)
    size = page.evaluate(SIZE, number)
    page.evaluate(SET, [number, setting, wrong])
    sentence = page.evaluate(RUN).strip()
    assert sentence
    assert "\n" not in sentence
    page.wait_for_function(TEXT_SHOWN, arg=[number, sentence])
    page.evaluate(SET, [number, setting, right])
    assert page.evaluate(RUN) is None
    page.wait_for_function(f"(args) => !({TEXT_SHOWN})(args)", arg=[number, sentence])
    if setting == "if_too_big":
        page.wait_for_function(TEXT_SHOWN, arg=[number, "Will it fit? · "])
    assert page.evaluate(SIZE, number) == size


@pytest.mark.parametrize("view", ["modern"])
def test_an_error_in_a_subgraph_is_on_the_node_that_had_it(page: Page) -> None:
    page.evaluate(DROP, json.dumps(graph(blocks="double:x")))
    page.evaluate(WRAP, "5")
    sentence = page.evaluate(RUN).strip()
    assert "cannot read 'double:x'" in sentence
    told = f"{WRAPPED}.widgets.find(({{ name }}) => name === 'text')"
    page.wait_for_function(f"(sentence) => {told}?.value === sentence", arg=sentence)
    page.evaluate(f"app.canvas.openSubgraph({WRAPPED}.graph)")
    page.wait_for_function(SEEN, arg=sentence)
    page.evaluate(f"{WRAPPED}.widgets.find(({{ name }}) => name === 'blocks').value = 'all'")
    assert page.evaluate(RUN) is None
    assert page.evaluate(f"{told} === undefined")
