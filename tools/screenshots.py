"""Takes the pictures of the README, the help pages and the templates' thumbnails, in the real frontend.

Started by `python3 -m tools screenshots`, which makes the environment that this needs.
"""

from __future__ import annotations

import io
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from .chromium import NoChromium, chromium, find_chromium, new_page, open_frontend
from .client import Client
from .environment import PACK, Environment
from .public_names import add_example, host_options
from .server import PACK_FOLDER, Server, ServerError, unwind_on_terminate
from .templates import WORKFLOWS

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

HELP, DOCS = PACK / "web" / "docs" / "pictures", PACK / "docs"
OURS, REPORT = "Headroom", "HeadroomReport"
# Nothing but the graph, and its texts also where it is small.
BARE = {
    "Comfy.Minimap.Visible": False,
    "Comfy.Graph.CanvasInfo": False,
    "Comfy.Graph.CanvasMenu": False,
    "LiteGraph.Canvas.MinFontSizeForLOD": 0,
}
THUMBNAIL, THUMBNAIL_SAVED = (1200, 900), (640, 480)
CLOSE_UP, CLOSE_UP_SAVED = (1400, 875), (960, 600)
WIDE = (1920, 840)
QUALITY = 82
MODEL, GENERATED, SIDE = "sd_xl_base_1.0.safetensors", "tiny_sd15.safetensors", 512
LOAD = "(graph) => app.loadGraphData(graph)"
# Brings nodes into view; with those that they are linked to, if asked.
FRAME = """([types, withNeighbours]) => {
  const chosen = new Set(app.rootGraph.nodes.filter(({ type }) => types.includes(type)));
  if (withNeighbours) {
    const ids = new Set([...chosen].map(({ id }) => String(id)));
    for (const link of app.rootGraph.links.values()) {
      const ends = [link.origin_id, link.target_id];
      if (ends.some((id) => ids.has(String(id)))) {
        for (const id of ends) chosen.add(app.rootGraph.getNodeById(id));
      }
    }
  }
  const boxes = [...chosen].map(({ pos, size }) => [pos[0], pos[1] - 40, pos[0] + size[0], pos[1] + size[1]]);
  const [left, top] = [0, 1].map((side) => Math.min(...boxes.map((box) => box[side])) - 30);
  const [right, bottom] = [2, 3].map((side) => Math.max(...boxes.map((box) => box[side])) + 30);
  const [width, height] = [app.canvasEl.clientWidth, app.canvasEl.clientHeight];
  const scale = Math.min(width / (right - left), height / (bottom - top), 1.25);
  app.canvas.ds.scale = scale;
  app.canvas.ds.offset[0] = (width / scale - left - right) / 2;
  app.canvas.ds.offset[1] = (height / scale - top - bottom) / 2;
  app.canvas.setDirty(true, true);
}"""
RUN = """() => new Promise((resolve) => {
  app.api.addEventListener("execution_success", () => resolve(null));
  app.api.addEventListener("execution_error", ({ detail }) => resolve(detail.exception_message));
  app.queuePrompt(0);
})"""


def main() -> int:
    """Take them all; 0 if it worked."""
    unwind_on_terminate()
    try:
        program = find_chromium()
        with (
            tempfile.TemporaryDirectory() as folder,
            chromium(program) as browser,
            Server(Environment.from_variables(), extra_args=host_options(Path(folder)), cpu=True) as server,
        ):
            add_example(server)
            for path in take_all(browser, Client(server.url)):
                print(path.relative_to(PACK), f"{path.stat().st_size / 1000:.0f} kB", flush=True)
    except (NoChromium, ServerError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def take_all(browser: Browser, client: Client) -> Iterator[Path]:
    """Every picture, as it is written."""
    yield from thumbnails(browser, client)
    yield template_browser(browser, client)  # shows them
    yield from close_ups(browser, client)
    yield run_picture(browser, client)


def thumbnails(browser: Browser, client: Client) -> Iterator[Path]:
    """Of each template what is ours in it, with what that is linked to."""
    with graph_page(browser, client, THUMBNAIL) as page:
        for template in templates():
            show(page, template)
            page.evaluate(FRAME, [ours(template), True])
            yield save(page, WORKFLOWS / f"{template['name']}.jpg", THUMBNAIL_SAVED)


def close_ups(browser: Browser, client: Client) -> Iterator[Path]:
    """Of each node, in the first template that holds it."""
    HELP.mkdir(exist_ok=True)
    found = {kind: template for template in reversed(list(templates())) for kind in (*ours(template), REPORT)}
    with graph_page(browser, client, CLOSE_UP) as page:
        for kind, template in sorted(found.items()):
            show(page, template)
            page.evaluate(FRAME, [[kind], True])
            yield save(page, HELP / f"{kind}.jpg", CLOSE_UP_SAVED)


def run_picture(browser: Browser, client: Client) -> Path:
    """The README's first: Make It Fit's template after it has run, on a small model."""
    content = (WORKFLOWS / "make_it_fit.json").read_text(encoding="utf-8").replace(MODEL, GENERATED)
    template = json.loads(content)
    for node in template["nodes"]:
        if node["type"] == "EmptyLatentImage":
            node["widgets_values"] = [SIDE, SIDE, 1]
    with graph_page(browser, client, WIDE) as page:
        show(page, template)
        if (wrong := page.evaluate(RUN)) is not None:
            raise ServerError(f"the prompt of the README's picture failed: {wrong}")
        kinds = [node["type"] for node in template["nodes"] if node["type"] not in ("MarkdownNote", "CLIPTextEncode")]
        page.evaluate(FRAME, [[kind for kind in kinds if kind != "CheckpointLoaderSimple"], False])
        return save(page, DOCS / "graph.png")


def template_browser(browser: Browser, client: Client) -> Path:
    """Our templates as the host offers them."""
    with new_page(browser, client) as page:
        open_frontend(page, client)
        page.evaluate("app.extensionManager.command.execute('Comfy.BrowseTemplates')")
        page.get_by_role("dialog").get_by_text(PACK_FOLDER).first.click()
        page.get_by_test_id("template-workflow-make_it_fit").wait_for()
        page.wait_for_load_state("networkidle")
        return save(page, DOCS / "templates.png")


# --------------------------------------------------------------------------------------------------------- the page


def templates() -> Iterator[dict[str, Any]]:
    """Their content by name."""
    for path in sorted(WORKFLOWS.glob("*.json")):
        yield {**json.loads(path.read_text(encoding="utf-8")), "name": path.stem}


def ours(template: dict[str, Any]) -> list[str]:
    """Types of our nodes in a template, the report apart, which is in nearly all."""
    return sorted({node["type"] for node in template["nodes"] if node["type"].startswith(OURS)} - {REPORT})


@contextmanager
def graph_page(browser: Browser, client: Client, size: tuple[int, int]) -> Iterator[Page]:
    """A page that shows a graph and nothing else."""
    with new_page(browser, client, size=size) as page:
        client.post("/settings", BARE)
        open_frontend(page, client)
        page.evaluate("app.extensionManager.command.execute('Workspace.ToggleFocusMode')")
        yield page


def show(page: Page, template: dict[str, Any]) -> None:
    page.evaluate(LOAD, template)
    page.wait_for_timeout(1000)


def save(page: Page, path: Path, size: tuple[int, int] | None = None) -> Path:
    """What the page shows, as the kind of file that its name says."""
    page.wait_for_timeout(1000)  # a drawn graph follows its data
    with Image.open(io.BytesIO(page.screenshot())) as picture:
        small = picture.convert("RGB")
        if size:
            small = small.resize(size, Image.Resampling.LANCZOS)
        small.save(path, **({"quality": QUALITY, "optimize": True} if path.suffix == ".jpg" else {"optimize": True}))
    return path


if __name__ == "__main__":
    sys.exit(main())
