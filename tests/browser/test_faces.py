"""What our nodes show on their faces: texts, and bars of memory with the numbers of the run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from headroom.memory.units import format_bytes
from headroom.tools.server.client import Client, Workflow
from headroom.tools.setup.environment import Environment

from .graphs import forget, node, our_nodes, ran, tells_again
from .in_page import DROP, HARD_TO_READ, LOOK_AT, RUN, TEXT_SHOWN

if TYPE_CHECKING:
    from playwright.sync_api import Page

# By id, what the text begins with.
TEXTS = {
    "2": "Block Offload: no budget",
    "4": "Make it fit · ",
    "5": "Will it fit? · ",
    "7": "Headroom memory report · ",
}
BARS = {"4": ["sampling", "decode"], "5": ["sampling", "decode"], "7": ["#6 decode"]}


def graph() -> Workflow:
    """Nothing is sampled: Will It Fit? and Memory Report are ends of their own."""
    card = {"cfg": 4.0, "vram_gb": 0.5}
    return {
        "1": node("CheckpointLoaderSimple", ckpt_name="tiny_sd15.safetensors"),
        "2": node("HeadroomOffload", model=["1", 0], vram_budget_gb=0.0, granularity="auto"),
        "3": node("EmptyLatentImage", width=128, height=128, batch_size=1),
        "4": node("HeadroomFit", model=["2", 0], vae=["1", 2], samples=["3", 0], quality="exact", **card),
        "5": node("HeadroomEstimate", model=["4", 0], samples=["3", 0], vae=["4", 1], if_too_big="report", **card),
        "6": node("VAEDecode", samples=["5", 0], vae=["4", 1]),
        "7": node("HeadroomReport", anything=["6", 0]),
    }


SETTINGS_ALONE = ("HeadroomAttention", "HeadroomLocalAttention")  # which have no room
NOT_YET = "not yet"
SENT = "(id) => JSON.parse(app.nodeOutputs[id].headroom_bar[0])"
# Of the bar on a node's face: its words, and of each row the sizes of its parts, their shares of the track's width in
# pixels and the place of the limit in it.
DRAWN = """(id) => {
  const box = app.rootGraph.getNodeById(id).widgets.find(({ name }) => name === "memory").element;
  const wide = (one) => one.getBoundingClientRect().width;
  const rows = [...box.children].map((row) => {
    const [name, track, peak] = row.children;
    const [parts, line] = [[...track.querySelectorAll("[data-kind]")], track.querySelector("[data-limit]")];
    const left = line.getBoundingClientRect().left - track.getBoundingClientRect().left;
    return {
      name: name.textContent,
      peak: peak.textContent,
      parts: Object.fromEntries(parts.map(({ dataset }) => [dataset.kind, Number(dataset.bytes)])),
      shares: parts.map((part) => wide(part) / wide(track)),
      limit: left / wide(track),
    };
  });
  return { words: box.ariaLabel, role: box.role, visible: box.checkVisibility() && wide(box) > 100, rows };
}"""


@pytest.fixture
def faces(page: Page, client: Client) -> Page:
    """A page that has run the graph, of which the host had computed everything before (0.18.2 sends no text then)."""
    page.evaluate(DROP, json.dumps(graph()))
    if tells_again(client):
        ran(client, page.evaluate("app.graphToPrompt().then(({ output }) => output)"))
    else:
        forget(client)
    assert page.evaluate(RUN) is None
    return page


def test_texts_and_bars_of_results_that_are_reused(faces: Page) -> None:
    for number, start in TEXTS.items():
        faces.evaluate(LOOK_AT, number)
        faces.wait_for_function(TEXT_SHOWN, arg=[number, start])
        if number in BARS:
            check_bar(faces.evaluate(DRAWN, number), faces.evaluate(SENT, number), BARS[number])


@pytest.mark.parametrize("view", ["modern"])  # in the other its ground is drawn, and nowhere to be asked
@pytest.mark.parametrize("theme", ["dark", "light"])
def test_a_bar_is_read_in_either_theme(faces: Page) -> None:
    for number in BARS:
        faces.evaluate(LOOK_AT, number)
        faces.wait_for_function(TEXT_SHOWN, arg=[number, TEXTS[number]])
        bar = f"app.rootGraph.getNodeById('{number}').widgets.find(({{ name }}) => name === 'memory').element"
        assert faces.evaluate(f"{bar}.children.length") == len(BARS[number])
        assert faces.evaluate(f"({HARD_TO_READ})({bar})") == []


def check_bar(drawn: dict[str, Any], sent: dict[str, Any], names: list[str]) -> None:
    assert drawn["visible"]
    assert drawn["role"] == "img"
    assert drawn["words"] == sent["sentence"]
    assert [row["name"] for row in drawn["rows"]] == names
    for row, load in zip(drawn["rows"], sent["loads"], strict=True):
        assert row["parts"] == {kind: size for kind, size in load["parts"].items() if size}
        assert row["shares"] == pytest.approx([size / sent["total"] for size in row["parts"].values()], abs=0.005)
        assert row["limit"] == pytest.approx(sent["allowed"] / sent["total"], abs=0.005)
        assert row["peak"] == format_bytes(load["peak"])


def test_a_bar_is_neither_saved_nor_sent_and_says_that_it_has_no_numbers(page: Page) -> None:
    page.evaluate("app.rootGraph.clear()")
    page.evaluate("void app.rootGraph.add(LiteGraph.createNode('HeadroomReport'))")
    page.get_by_role("img", name="Memory: no numbers before a run").wait_for(state="attached")
    saved, sent = page.evaluate("app.graphToPrompt().then(({ workflow, output }) => [workflow.nodes[0], output])")
    assert not saved.get("widgets_values")
    assert [about["inputs"] for about in sent.values()] == [{}]


HEIGHTS = "['3', '4'].map((id) => app.rootGraph.getNodeById(id).size[1])"
REPORTS = {"3": "3 frames to face_", "4": "3 frames of 64 x 64 read"}


def test_what_a_video_became_is_told_once_it_is_written(page: Page, client: Client) -> None:
    """And again when the result is reused, in nodes of the same size; no file is shown that no browser plays."""
    video = {
        "1": node("CheckpointLoaderSimple", ckpt_name="tiny_sd15.safetensors"),
        "2": node("EmptyLatentImage", width=64, height=64, batch_size=3),
        "3": node(
            "HeadroomVAEDecodeVideo", samples=["2", 0], vae=["1", 2], fps=8.0, format="mkv ffv1", filename_prefix="face"
        ),
        "4": node(
            "HeadroomVAEEncodeVideo", video=["3", 0], vae=["1", 2], width=0, height=0, upscale_method="lanczos",
            crop="center",
        ),
        "5": node("SaveLatent", samples=["4", 0], filename_prefix="face"),
    }  # fmt: skip
    forget(client)
    for _ in range(1 + tells_again(client)):
        page.evaluate(DROP, json.dumps(video))
        assert page.evaluate(RUN) is None
        for number, told in REPORTS.items():
            page.evaluate(LOOK_AT, number)
            page.wait_for_function(TEXT_SHOWN, arg=[number, told])
    heights = []
    for _ in range(3):  # back to it as by its tab: its nodes are other objects, and the text comes anew
        page.evaluate(
            "app.loadGraphData(app.rootGraph.serialize(), true, true, app.extensionManager.workflow.activeWorkflow)"
        )
        page.wait_for_function(TEXT_SHOWN, arg=["4", REPORTS["4"]])
        page.wait_for_timeout(700)  # nodes made of elements find their heights
        heights.append(page.evaluate(HEIGHTS))
    assert heights[1:] == heights[:1] * 2
    assert not page.evaluate("'images' in app.nodeOutputs['3']")  # which no browser plays


PLAYED = """(name) =>
  [...document.querySelectorAll("video")].some(({ src, videoWidth }) => src.includes(name) && videoWidth)"""
LEFT = """[...document.querySelectorAll('[data-node-id] img')].filter(({ src }) => src.startsWith("blob:"))"""
# On a canvas.
ON_CANVAS = """app.rootGraph.nodes.some(({ imgs, widgets }) =>
  imgs?.length || widgets?.some(({ name }) => /image-preview/.test(name)))"""
SAID = "(words) => document.body.innerText.includes(words)"


def test_a_video_is_shown_and_what_was_told_of_its_frames_is_over(page: Page, view: str) -> None:
    """The last frame of the live preview is gone: the browser would take it for the video, and show neither."""
    page.evaluate(DROP, json.dumps({
        "1": node("CheckpointLoaderSimple", ckpt_name="tiny_sd15.safetensors"),
        "2": node("EmptyLatentImage", width=128, height=128, batch_size=40),
        "3": node(
            "HeadroomVAEDecodeVideo", samples=["2", 0], vae=["1", 2], fps=8.0, format="mp4 h264", filename_prefix=view
        ),
    }))  # fmt: skip
    page.evaluate(LOOK_AT, "3")
    page.evaluate(f"() => {{ window.ended = {NOT_YET!r}; ({RUN})().then((wrong) => {{ window.ended = wrong; }}); }}")
    page.wait_for_function(SAID, arg="of 40, ")
    page.wait_for_function(f"window.ended !== {NOT_YET!r}", timeout=180_000)
    assert page.evaluate("window.ended") is None
    page.wait_for_function(PLAYED, arg=f"{view}_")
    page.wait_for_function(f"() => !({SAID})('of 40, ')")
    if Environment.from_variables().frontend is None:  # the newest one lets what a node told go with the run
        page.wait_for_function(SAID, arg="40 frames in ")
    page.wait_for_function(f"!{LEFT}.length")
    page.wait_for_function(f"!{ON_CANVAS}")


@pytest.mark.parametrize("view", ["modern"])
def test_no_node_is_an_empty_box(page: Page, client: Client) -> None:
    """Where its advanced inputs are hidden: it says what it will do."""
    page.evaluate("app.rootGraph.clear()")
    page.evaluate("app.canvas.ds.scale = 1")
    for kind, about in our_nodes(client).items():
        number = page.evaluate(f"app.rootGraph.add(LiteGraph.createNode('{kind}')).id")
        page.evaluate(LOOK_AT, number)
        if kind not in SETTINGS_ALONE:
            page.wait_for_function(TEXT_SHOWN, arg=[number, about["description"][:20]])
