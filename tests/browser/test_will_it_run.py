"""The command "Will this run here?": the forecast of the open workflow, with what is not downloaded yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headroom.tests.host.ui_workflows import graph, node_of, text_to_image, ui_node

from .in_page import HARD_TO_READ, execute
from .test_make_it_fit import EXECUTE, KINDS, opened, settled, toast
from .test_out_of_memory import SET

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page, Route

COMMAND, TITLE = "Headroom.WillItRun", "Will this run here?"
LIMIT = "Headroom.MakeItFit.Limit"
LANGUAGE = "Headroom.Language"
BARS = (
    """(box) => [...box.querySelectorAll("[data-kind]")].map(({ dataset }) => [dataset.kind, Number(dataset.bytes)])"""
)
IS_SEEN = """(id) => {
    const [left, top, width, height] = app.canvas.ds.visible_area;
    const [x, y] = app.rootGraph.getNodeById(id).pos;
    return left < x && x < left + width && top < y && y < top + height;
}"""


def dialog(page: Page) -> Locator:
    return page.get_by_role("dialog", name=TITLE)


def asked(page: Page) -> Locator:
    execute(page, COMMAND)
    dialog(page).get_by_role("heading").wait_for(timeout=60_000)
    return dialog(page)


def test_each_stage_has_a_bar_that_leads_to_its_node(page: Page) -> None:
    opened(page, text_to_image())
    shown = asked(page)
    assert "all weights fit" in shown.get_by_role("heading").inner_text()
    rows = shown.get_by_label("Memory of each stage")
    assert [kind for kind, _ in rows.evaluate(BARS)].count("activations") == 3
    assert all(size > 0 for _, size in rows.evaluate(BARS))
    for name in ("text · CLIP Text Encode", "sampling · KSampler", "decode · VAE Decode"):
        assert rows.get_by_text(name).count() == 1
    page.evaluate("app.canvas.ds.offset = [9999, 9999]")
    rows.get_by_text("sampling · KSampler").click()
    page.wait_for_function(IS_SEEN, arg=5)  # once the canvas is drawn again
    shown.get_by_text("All of the report").click()
    assert "RAM for weights" in shown.inner_text()
    shown.get_by_role("heading").click()  # the keys still go to the dialog
    page.keyboard.press("Escape")
    shown.wait_for(state="detached")


def test_what_would_run_in_tiles_is_told_from_what_would_not(page: Page) -> None:
    """Of the answer for a card; this machine may have none."""

    def of_a_card(route: Route) -> None:
        route.fulfill(json={**route.fetch().json(), "verdict": "does_not_fit", "or_tiles": True})

    opened(page, text_to_image())
    page.route("**/headroom/estimate", of_a_card)
    shown = asked(page)
    assert "go on in tiles, which give another result" in shown.get_by_role("heading").inner_text()
    assert shown.get_by_role("button", name="Make It Fit").count() == 1
    page.unroute("**/headroom/estimate")
    page.keyboard.press("Escape")
    shown.wait_for(state="detached")


@pytest.mark.parametrize("view", ["classic"])
def test_it_is_used_by_keys_alone_and_they_change_nothing_behind_it(page: Page) -> None:
    opened(page, text_to_image())
    page.evaluate(EXECUTE)
    toast(page, "1 node inserted").wait_for()
    fitted = settled(page)
    page.evaluate("void app.rootGraph.convertToSubgraph(new Set([app.rootGraph.getNodeById('7')]))")
    settled(page)
    page.evaluate("app.canvas.openSubgraph(app.rootGraph.nodes.find(({ subgraph }) => subgraph).subgraph)")
    page.wait_for_function("app.canvas.graph !== app.rootGraph")
    shown = asked(page)
    page.keyboard.press("ControlOrMeta+Z")
    page.keyboard.press("ControlOrMeta+Y")
    page.wait_for_timeout(500)
    assert len(page.evaluate(KINDS)) == len(fitted["nodes"])
    row = shown.get_by_role("button", name="sampling · KSampler")
    row.focus()
    page.keyboard.press("Enter")
    page.wait_for_function("app.canvas.graph === app.rootGraph")
    page.wait_for_function(IS_SEEN, arg=5)


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_it_is_read_in_either_theme_and_within_the_page(page: Page) -> None:
    page.set_viewport_size({"width": 1600, "height": 900})
    opened(page, text_to_image())
    page.evaluate(SET, [LIMIT, 0.1])  # so that numbers above the limit are shown too
    try:
        shown = asked(page)
    finally:
        page.evaluate(SET, [LIMIT, 0.85])
    shown.get_by_text("All of the report").click()
    assert shown.evaluate(HARD_TO_READ) == []
    place = shown.bounding_box()
    assert place is not None
    assert 0 <= place["x"] < place["x"] + place["width"] <= 1600
    assert 0 <= place["y"] < place["y"] + place["height"] <= 900
    assert shown.evaluate("(one) => one.scrollWidth <= one.clientWidth")


@pytest.mark.parametrize("view", ["classic"])
def test_before_the_download_and_what_helps_is_put_in(page: Page) -> None:
    """A file that is not there, and more pictures than fit into the share of the memory that the settings allow."""
    workflow = text_to_image()
    node_of(workflow, 1)["widgets_values"] = ["sd_xl_turbo_1.0_fp16.safetensors"]
    node_of(workflow, 4)["widgets_values"] = [512, 512, 4]
    opened(page, workflow)
    page.evaluate(SET, [LIMIT, 0.1])
    try:
        shown = asked(page)
    finally:
        page.evaluate(SET, [LIMIT, 0.85])
    said = shown.inner_text()
    assert "No: it needs more than may be used of the card, or of the RAM." in said
    assert "To download, 6.5 GB:" in said
    assert "models/checkpoints/sd_xl_turbo_1.0_fp16.safetensors: 6.5 GB" in said
    shown.get_by_role("button", name="Make It Fit").click()
    toast(page, "1 node inserted").wait_for()
    shown.wait_for(state="detached")
    assert "HeadroomFit" in page.evaluate(KINDS)


@pytest.mark.parametrize("view", ["classic"])
def test_what_cannot_be_predicted_is_a_sentence(page: Page, complaints: list[str]) -> None:
    opened(page, graph([ui_node(1, "EmptyLatentImage", {}, "LATENT", widgets_values=[64, 64, 1])]))
    execute(page, COMMAND)
    dialog(page).get_by_text("nothing to predict in this workflow").wait_for()
    dialog(page).get_by_role("button", name="Close").click()
    dialog(page).wait_for(state="detached")
    (refused,) = (one for one in complaints if "400 (Bad Request)" in one and one.endswith("/api/headroom/estimate)"))
    complaints.remove(refused)


LANGUAGES = {
    "zh": (
        "这里能运行吗？", "能：所有权重都放得下。", "采样 · ", "大约", "已插入节点：1 个", "用于节点 5（KSampler）",
    ),
    "ja": (
        "ここで動きますか？", "はい。すべての重みが載ります。", "サンプリング · ", "約",
        "ノードを 1 個入れました", "ノード 5（KSampler）のために",
    ),
}  # fmt: skip


@pytest.mark.parametrize("view", ["classic"])
@pytest.mark.parametrize("locale", LANGUAGES)
def test_it_speaks_the_language_of_the_page(page: Page, locale: str) -> None:
    title, verdict, stage, about, inserted, for_node = LANGUAGES[locale]
    opened(page, text_to_image())
    execute(page, COMMAND)
    shown = page.get_by_role("dialog", name=title)
    shown.get_by_role("heading").wait_for(timeout=60_000)
    said = shown.inner_text()
    assert shown.get_by_role("heading").inner_text() == f"{title} {verdict}"
    assert stage in said
    assert about in said
    assert "with all weights" not in said
    page.keyboard.press("Escape")
    page.evaluate(EXECUTE)
    alert = page.get_by_role("alert").filter(has_text=inserted).last
    alert.filter(has_text=for_node).wait_for()


@pytest.mark.parametrize("view", ["classic"])
@pytest.mark.parametrize("locale", ["zh"])
def test_another_language_is_a_setting(page: Page) -> None:
    opened(page, text_to_image())
    page.evaluate(SET, [LANGUAGE, "en"])
    try:
        assert "all weights fit" in asked(page).get_by_role("heading").inner_text()
    finally:
        page.evaluate(SET, [LANGUAGE, "page"])
    page.keyboard.press("Escape")
