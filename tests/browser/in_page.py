"""What tests have a page do, and what they make of its complaints."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from headroom.tools.pictures.chromium import DROP as DROP
from headroom.tools.pictures.chromium import LOOK_AT as LOOK_AT
from headroom.tools.pictures.chromium import RUN as RUN
from headroom.tools.pictures.chromium import TITLE_OF as TITLE_OF

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

CLEAR = "app.rootGraph.clear()"
# Whether a text with these words is seen on a node.
TEXT_SHOWN = """([id, words]) => {
  const { widgets } = app.rootGraph.getNodeById(id);
  const face = document.querySelector(`[data-node-id="${id}"]`); // made of DOM elements, or drawn with some above it
  const boxes = face ? face.querySelectorAll("textarea") : widgets.map(({ element }) => element);
  return [...boxes].some((box) => box?.value?.includes(words) && box.checkVisibility());
}"""
# Words within an element that are hard to read on what is behind them: a contrast below 4.5 (WCAG 2.1, 1.4.3).
HARD_TO_READ = """(root) => {
  const parts = (colour) => {
    const numbers = colour.match(/-?[\\d.]+(?:e-?\\d+)?/g).map(Number);
    const whole = numbers.slice(0, 3).map((one) => 255 * one);
    return colour.startsWith("color(srgb") ? [...whole, numbers[3] ?? 1] : numbers;
  };
  const linear = (one) => (one <= 10.31475 ? one / 3294.6 : ((one / 255 + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const ground = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const found = parts(getComputedStyle(one).backgroundColor);
      if ((found[3] ?? 1) > 0.99) return found;
    }
    return [255, 255, 255];
  };
  const contrast = (element) => {
    const both = [parts(getComputedStyle(element).color), ground(element)].map(light).sort((one, other) => one - other);
    return (both[1] + 0.05) / (both[0] + 0.05);
  };
  const hasWords = ({ childNodes }) => [...childNodes].some((one) => one.nodeType === 3 && one.textContent.trim());
  return [...root.querySelectorAll("*")]
    .filter((one) => hasWords(one) && one.checkVisibility() && contrast(one) < 4.5)
    .map((one) => `${one.textContent.trim()}: ${contrast(one).toFixed(2)}`);
}"""
# What it puts on the console as an error in a host without this pack too.
THE_FRONTENDS_OWN = (
    # Files that a new user does not have, an icon that some frontends do not bring.
    r"404 \(Not Found\) \(http://[^/]+/(api/userdata[/?].*|user\.css|favicon\.ico)\)$",
    r"404 \(Not Found\) \(http://[^/]+/extensions/[^/]+/docs/\w+/en\.md\)$",  # it goes on to docs/<node>.md
    r"^ComfyApp graph accessed before initialization",
    r"^getCanvas: canvas is null$",  # 0.18.2's, of a page that a busy machine draws late
    # The host forbids other addresses (--disable-api-nodes); it asks all the same.
    r"https://(api\.comfy\.org|huggingface\.co)/.*Content Security Policy",
)


def execute(page: Page, command: str) -> None:
    """A command of the frontend by its id."""
    page.evaluate("(id) => app.extensionManager.command.execute(id)", command)


def warnings(page: Page) -> Locator:
    """What a page says of a graph that it cannot run: an overlay, or a dialog of 0.18.2's frontend."""
    return page.get_by_test_id("error-overlay").or_(page.get_by_text("This workflow is missing"))


def unexpected(complaints: list[str]) -> list[str]:
    """Those on the console that are not the frontend's own."""
    return [one for one in complaints if not any(re.search(pattern, one) for pattern in THE_FRONTENDS_OWN)]
