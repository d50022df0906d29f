"""Takes the pictures of the README and the help pages in the real frontend, and draws the templates' thumbnails.

Started by `python3 -m tools screenshots`, which makes the environment that this needs.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from ..demo.__main__ import PAINTED, PAINTER
from ..server.client import Client, ClientError
from ..server.server import PACK_FOLDER, Server, ServerError, unwind_on_terminate
from ..setup.environment import PACK, Environment
from ..templates.public_names import add_example, host_options
from ..templates.template import path_of
from .chromium import RUN, NoChromium, chromium, find_chromium, new_context, new_page, open_frontend, run_prompt
from .every_node import show_every_node
from .survey import survey
from .thumbnails import thumbnails

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

HELP, DOCS = PACK / "web" / "docs" / "pictures", PACK / "docs"
# Nothing but the graph, and its texts also where it is small.
BARE = {
    "Comfy.Minimap.Visible": False,
    "Comfy.Graph.CanvasInfo": False,
    "Comfy.Graph.CanvasMenu": False,
    "LiteGraph.Canvas.MinFontSizeForLOD": 0,
}
CLOSE_UP, CLOSE_UP_SAVED, CLOSE_UP_SCALE = (1200, 680), (960, 544), 1.0
QUALITY = 82
FILM_SAVED, FRAME_MS, LAST_FRAME_MS, FILM_QUALITY = (1040, 688), 200, 4000, 70
NOT_YET = "not yet"
MODEL, GENERATED = "v1-5-pruned-emaonly-fp16.safetensors", "tiny_sd15.safetensors"
LOAD = "(graph) => app.loadGraphData(graph)"
# Brings nodes of these types into the middle, or as near to it as leaves nothing empty beside the graph; not larger
# than a scale, and all of them if they have room.
FRAME = """([types, most]) => {
  const room = ({ pos, size }) => [pos[0] - 30, pos[1] - 80, pos[0] + size[0] + 30, pos[1] + size[1] + 50];
  const around = (nodes) => [Math.min, Math.min, Math.max, Math.max]
    .map((most, side) => most(...nodes.map((node) => room(node)[side])));
  const every = around(app.rootGraph.nodes);
  const shown = around(app.rootGraph.nodes.filter(({ type }) => types.includes(type)));
  const view = [app.canvasEl.clientWidth, app.canvasEl.clientHeight];
  const scale = Math.min(view[0] / (shown[2] - shown[0]), view[1] / (shown[3] - shown[1]), most);
  app.canvas.ds.scale = scale;
  for (const side of [0, 1]) {
    const size = view[side] / scale;
    const [first, last] = [every[side], Math.max(every[side], every[side + 2] - size)];
    const middle = (shown[side] + shown[side + 2] - size) / 2;
    app.canvas.ds.offset[side] = -Math.min(Math.max(middle, first), last);
  }
  app.canvas.setDirty(true, true);
}"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Take them; 0 if it worked."""
    unwind_on_terminate()
    parser = argparse.ArgumentParser(
        prog="python3 -m tools screenshots", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--only", choices=(THUMBNAILS, *PARTS, SURVEY), help="one part of them")
    chosen = parser.parse_args(arguments).only
    try:
        for path in taken(chosen):
            print(path.relative_to(PACK), f"{path.stat().st_size / 1000:.0f} kB", flush=True)
    except (NoChromium, ServerError, ClientError, TimeoutError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def taken(only: str | None) -> Iterator[Path]:
    """Every picture, or those of one part, as it is written."""
    host = Environment.from_variables()
    if only in (None, THUMBNAILS):
        with Server(host, cpu=True) as server:
            yield from thumbnails(Client(server.url))
    parts = [survey] if only == SURVEY else [part for name, part in PARTS.items() if only in (None, name)]
    if not parts:
        return
    program = find_chromium()
    with (
        tempfile.TemporaryDirectory() as folder,
        chromium(program) as browser,
        Server(host, extra_args=host_options(Path(folder)), cpu=True) as server,
    ):
        add_example(server)
        for part in parts:
            yield from part(browser, Client(server.url))


def close_ups(browser: Browser, client: Client) -> Iterator[Path]:
    """Of each node, after a run."""
    HELP.mkdir(exist_ok=True)
    with graph_page(browser, client, CLOSE_UP) as page:
        kinds = show_every_node(page).values()
        run_prompt(page)
        for kind in sorted(kinds):
            page.evaluate(FRAME, [[kind], CLOSE_UP_SCALE])
            page.wait_for_timeout(500)
            yield save(page, HELP / f"{kind}.jpg", CLOSE_UP_SAVED)


@dataclass(frozen=True)
class Run:
    """A picture of a template that has run, on a small model.

    Attributes:
        template: its name.
        picture: the file in docs/.
        size: of the page.
        shown: types of the nodes that are in the picture.
        widgets: values by type or title, and index of the widget, which make it small enough for a CPU.
        places: left, top, width and height of the nodes that are left, by type or title; none: all, where they are.
    """

    template: str
    picture: str
    size: tuple[int, int]
    shown: Sequence[str]
    widgets: Mapping[tuple[str, int], Any]
    places: Mapping[str, tuple[int, int, int, int]] = field(default_factory=dict)


RUNS = (
    Run(
        "side_by_side",
        "graph.png",
        (1600, 1060),
        ("PreviewImage", "HeadroomReport", "SaveImage"),
        {("ImageScale", 1): 512, ("ImageScale", 2): 512, ("VAEDecodeTiled", 0): 256},
    ),
)
FILMED = Run(
    "make_it_fit",
    "make_it_fit.webp",
    (1300, 860),
    ("CheckpointLoaderSimple", "HeadroomFit", "KSampler", "HeadroomReport", "SaveImage"),
    {
        ("CheckpointLoaderSimple", 0): PAINTER["CheckpointLoaderSimple"]["ckpt_name"],
        ("Positive Prompt", 0): PAINTED["sd15_text_to_image"],
        ("Negative Prompt", 0): "",
        ("EmptyLatentImage", 0): PAINTER["EmptyLatentImage"]["width"],
        ("EmptyLatentImage", 1): PAINTER["EmptyLatentImage"]["height"],
        ("HeadroomFit", 0): PAINTER["KSampler"]["cfg"],
        ("KSampler", 2): PAINTER["KSampler"]["steps"],
        ("KSampler", 3): PAINTER["KSampler"]["cfg"],
        ("KSampler", 4): PAINTER["KSampler"]["sampler_name"],
        ("KSampler", 5): PAINTER["KSampler"]["scheduler"],
    },
    {
        "CheckpointLoaderSimple": (0, 0, 290, 98),
        "Positive Prompt": (0, 160, 290, 130),
        "Negative Prompt": (0, 350, 290, 110),
        "EmptyLatentImage": (0, 520, 290, 106),
        "HeadroomFit": (350, 0, 560, 480),
        "HeadroomReport": (350, 550, 560, 230),
        "KSampler": (970, 0, 280, 262),
        "VAEDecode": (970, 330, 280, 46),
        "SaveImage": (970, 440, 280, 340),
    },
)


def filled(run: Run) -> dict[str, Any]:
    """The template with the run's values."""
    template: dict[str, Any] = json.loads(path_of(run.template).read_text(encoding="utf-8"))
    for node in template["nodes"]:
        values = node.get("widgets_values") or []
        node["widgets_values"] = [GENERATED if value == MODEL else value for value in values]
        for (name, index), value in run.widgets.items():
            if name in (node["type"], node.get("title")):
                node["widgets_values"][index] = value
    return placed(template, run.places) if run.places else template


def placed(template: dict[str, Any], places: Mapping[str, tuple[int, int, int, int]]) -> dict[str, Any]:
    """Only these nodes, there, and the links between them."""
    nodes = []
    for node in template["nodes"]:
        if place := places.get(node.get("title", ""), places.get(node["type"])):
            nodes.append({**node, "pos": list(place[:2]), "size": list(place[2:])})
    left = {node["id"] for node in nodes}
    links = [link for link in template["links"] if {link[1], link[3]} <= left]
    kept = {link[0] for link in links}
    for node in nodes:
        for output in node.get("outputs", ()):
            output["links"] = [link for link in output.get("links") or () if link in kept]
    return {**template, "nodes": nodes, "links": links, "groups": []}


def run_picture(browser: Browser, client: Client, run: Run) -> Path:
    """
    Raises:
        ServerError: the prompt failed.
    """
    with graph_page(browser, client, run.size) as page:
        show(page, filled(run))
        run_prompt(page)
        page.evaluate(FRAME, [run.shown, 1.0])
        return save(page, DOCS / run.picture)


def runs(browser: Browser, client: Client) -> Iterator[Path]:
    """Templates after they have run."""
    for run in RUNS:
        yield run_picture(browser, client, run)


def film(browser: Browser, client: Client, run: Run = FILMED) -> Iterator[Path]:
    """A template while it runs: what changes is shown faster than it was, the end for a while.

    Raises:
        ServerError: the prompt failed.
    """
    with graph_page(browser, client, run.size) as page:
        show(page, filled(run))
        page.evaluate(FRAME, [run.shown, 1.0])
        frames = [frame_of(page)] * 3
        page.evaluate(
            f"() => {{ window.ended = {NOT_YET!r}; ({RUN})().then((wrong) => {{ window.ended = wrong; }}); }}"
        )
        while (wrong := page.evaluate("window.ended")) == NOT_YET:
            frames.append(frame_of(page))
        if wrong is not None:
            raise ServerError(f"the prompt of {run.picture} failed: {wrong}")
        page.wait_for_timeout(1500)
        frames.append(frame_of(page))
    kept = [frame for frame, before in zip(frames, [None, *frames]) if before is None or frame != before]
    seconds = [*[FRAME_MS] * (len(kept) - 1), LAST_FRAME_MS]
    path = DOCS / run.picture
    kept[0].save(path, save_all=True, append_images=kept[1:], duration=seconds, loop=0, quality=FILM_QUALITY, method=6)
    yield path


def frame_of(page: Page) -> Image.Image:
    with Image.open(io.BytesIO(page.screenshot())) as picture:
        return picture.convert("RGB").resize(FILM_SAVED, Image.Resampling.LANCZOS)


def template_browser(browser: Browser, client: Client) -> Iterator[Path]:
    """Our templates as the host offers them."""
    with new_context(browser) as context, new_page(context, client) as page:
        open_frontend(page, client)
        page.evaluate("app.extensionManager.command.execute('Comfy.BrowseTemplates')")
        page.get_by_role("dialog").get_by_text(PACK_FOLDER).first.click()
        page.get_by_test_id(f"template-workflow-{path_of('make_it_fit').stem}").wait_for()
        page.wait_for_load_state("networkidle")
        yield save(page, DOCS / "templates.png")


# The template browser shows the thumbnails, which come before all.
THUMBNAILS, SURVEY = "thumbnails", "survey"
PARTS = {"browser": template_browser, "help": close_ups, "runs": runs, "film": film}


# --------------------------------------------------------------------------------------------------------- the page


@contextmanager
def graph_page(browser: Browser, client: Client, size: tuple[int, int]) -> Iterator[Page]:
    """A page that shows a graph and nothing else."""
    with new_context(browser, size) as context, new_page(context, client) as page:
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
