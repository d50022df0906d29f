"""Run the demo workflows on a real host, with stock nodes and with Headroom's, and show what that changes.

Started by `python3 -m tools demo`, which makes the environment that this needs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image
from tqdm import tqdm

from ..server.client import Client, ClientError, Progress, Workflow
from ..server.server import Server, ServerError, unwind_on_terminate
from ..setup.environment import PACK, Environment
from .measure import ALLOCATOR, Run, measure
from .sheet import contact_sheet, draw_chart
from .table import Comparison, as_json, describe_machine, format_db, format_table
from .twin import stock_twin

WORKFLOWS = PACK / "workflows" / "api"
DEMOS = {
    "sd15_text_to_image": "SD 1.5 text to image",
    "flux_text_to_image": "Flux text to image",
    "sd15_image_to_image": "SD 1.5 image to image",
    "wan_video_round_trip": "Wan 2.1 video VAE",
}
# What a model that paints is told, which takes the place of one of drawn weights.
PAINTED = {
    "sd15_text_to_image": "a red circle over a blue square",
    "flux_text_to_image": "a yellow star left of a purple circle",
    "sd15_image_to_image": "a green circle over a blue square",  # the picture's circle is red
}
PAINTER: dict[str, dict[str, Any]] = {
    "CheckpointLoaderSimple": {"ckpt_name": "painter_sd15.safetensors"},
    "EmptyLatentImage": {"width": 256, "height": 256},
    "KSampler": {"steps": 20, "cfg": 3.0, "sampler_name": "dpmpp_2m", "scheduler": "karras"},
    "UNETLoader": {"unet_name": "painter_flux.safetensors"},
    "CLIPLoader": {"clip_name": "painter_clip_l.safetensors"},
    "VAELoader": {"vae_name": "painter_vae_flux.safetensors"},
    "EmptySD3LatentImage": {"width": 256, "height": 256},
    "BasicScheduler": {"steps": 20},
    "LoadImage": {"image": "scene.png"},
    "ImageScale": {"width": 256, "height": 256},
}
REPAINTED = 0.8  # of the picture's noise: what lets a colour change and leaves things where they are
LEAST_LATENT_DB = 80.0
WARM_UP = {"steps": 1, "width": 64, "height": 64, "length": 5}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run everything; 0 if it worked and the latents are the same, else 1."""
    unwind_on_terminate()
    parser = argparse.ArgumentParser(prog="python3 -m tools demo", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the pictures, charts and tables")
    options = parser.parse_args(arguments)
    try:
        return run_demo(Environment.from_variables(), options.out)
    except (ClientError, ServerError, TimeoutError, OSError, ValueError) as error:
        print(f"The demo failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("The demo was stopped.", file=sys.stderr)
        return 128 + signal.SIGINT


def run_demo(environment: Environment, out: Path) -> int:
    """Measure, write the files, print the table, and check."""
    out.mkdir(parents=True, exist_ok=True)
    os.environ.update(ALLOCATOR)  # the server inherits it
    with Server(environment) as server:
        client = Client(server.url)
        machine = describe_machine(client.system_stats())
        comparisons = compare_all(server, client)
        version = host_version(server)
    write_files(comparisons, machine, out)
    print(f"\n{format_table(comparisons, machine)}\n\n{version}\nPictures, charts, reports and tables are in {out}")
    failed = failed_checks(comparisons)
    print("\n".join(failed), end="\n" if failed else "", file=sys.stderr)
    return 1 if failed else 0


def compare_all(server: Server, client: Client) -> list[Comparison]:
    """Each demo workflow: a small run that loads what loads once, then stock nodes, then Headroom's."""
    workflows = {name: json.loads((WORKFLOWS / f"{name}.json").read_text(encoding="utf-8")) for name in DEMOS}
    workflows |= {name: painted(workflows[name], sentence) for name, sentence in PAINTED.items()}
    for name, workflow in workflows.items():
        _run(server, client, shrunk(workflow), f"{DEMOS[name]} · warm-up")
    return [
        Comparison(
            name,
            title := DEMOS[name],
            _run(server, client, stock_twin(workflow), f"{title} · stock"),
            _run(server, client, workflow, f"{title} · Headroom"),
        )
        for name, workflow in workflows.items()
    ]


def painted(workflow: Workflow, sentence: str) -> Workflow:
    """The same workflow with a model that paints scenes, told one, at the size that it was trained for."""

    def given(node: dict[str, Any]) -> dict[str, Any]:
        if node["class_type"] == "CLIPTextEncode":
            return {"text": "" if node["_meta"]["title"] == "Negative Prompt" else sentence}
        partly = node["inputs"].get("denoise", 1.0) < 1
        return PAINTER.get(node["class_type"], {}) | ({"denoise": REPAINTED} if partly else {})

    return {node_id: {**node, "inputs": node["inputs"] | given(node)} for node_id, node in workflow.items()}


def shrunk(workflow: Workflow) -> Workflow:
    """The same workflow on a small latent, for one step."""

    def shrink(inputs: dict[str, Any]) -> dict[str, Any]:
        return {name: WARM_UP.get(name, value) for name, value in inputs.items()}

    return {node_id: {**node, "inputs": shrink(node["inputs"])} for node_id, node in workflow.items()}


def _run(server: Server, client: Client, workflow: Workflow, title: str) -> Run:
    """Measure one workflow: a bar on a terminal, and a line at the end elsewhere, where each refresh would be one."""
    live, shape = sys.stderr.isatty(), "{desc:<34} |{bar:24}| {elapsed}{postfix}"
    with tqdm(total=len(workflow), desc=title, bar_format=shape, disable=not live) as bar:
        run = measure(server, client, workflow, NodeProgress(bar, len(workflow)))
        bar.n = len(workflow)
        bar.set_postfix_str("")
    if not live:
        print(f"{title}: {run.seconds:.1f} s", file=sys.stderr, flush=True)
    return run


class NodeProgress:
    """Moves a bar by one per node, and within a node by its own steps."""

    def __init__(self, bar: tqdm[Any], nodes: int) -> None:
        self.bar, self.nodes, self.begun = bar, nodes, 0

    def __call__(self, progress: Progress) -> None:
        self.begun += not progress.maximum
        part = progress.value / progress.maximum if progress.maximum else 0
        self.bar.n = min(self.nodes, max(0, self.begun - 1) + part)
        steps = f" {progress.value}/{progress.maximum}" if progress.maximum else ""
        self.bar.set_postfix_str(progress.node_type + steps)


def host_version(server: Server) -> str:
    """The line of the host's log that says what it is."""
    match = re.search(r"ComfyUI version: \S+", server.log_path.read_text(encoding="utf-8", errors="replace"))
    return match[0] if match else f"ComfyUI version: {server.environment.version}"


def write_files(comparisons: Sequence[Comparison], machine: str, out: Path) -> None:
    """Pictures, reports, contact sheet, chart and tables."""
    for item in comparisons:
        write_pictures(item, out)
        (out / f"{item.name}_report.txt").write_text(item.headroom.report + "\n", encoding="utf-8")
    contact_sheet(comparisons, machine).save(out / "contact_sheet.png")
    draw_chart(comparisons, machine, out / "chart.png")
    (out / "table.md").write_text(format_table(comparisons, machine) + "\n", encoding="utf-8")
    (out / "table.json").write_text(json.dumps(as_json(comparisons, machine), indent=2) + "\n", encoding="utf-8")


def write_pictures(item: Comparison, out: Path) -> None:
    """What each of the two runs saved; of a video the first and last frame too."""
    for kind, run in (("stock", item.stock), ("headroom", item.headroom)):
        is_video = len(run.frames) > 1
        (out / f"{item.name}_{kind}.{'webp' if is_video else 'png'}").write_bytes(run.file)
        for place, frame in (("first", run.frames[0]), ("last", run.frames[-1])) if is_video else ():
            Image.fromarray(frame).save(out / f"{item.name}_{kind}_{place}.png")


def failed_checks(comparisons: Sequence[Comparison]) -> list[str]:
    """A sentence for each workflow whose latents differ by more than rounding, or whose memory was not foretold."""
    different = [
        f"Check failed: the latents of {item.title} are at {format_db(item.latent_db)} dB of the stock ones,"
        f" below {LEAST_LATENT_DB:g}."
        for item in comparisons
        if not item.latent_db >= LEAST_LATENT_DB  # a NaN fails too
    ]
    surprising = [
        f"Check failed: {work.name} of {item.title} took {work.measured} bytes, {work.predicted} were predicted."
        for item in comparisons
        for work in item.headroom.work
        if not work.foretold
    ]
    unforeseen = [
        f"Check failed: nothing was predicted of {item.title}." for item in comparisons if not item.headroom.work
    ]
    return different + surprising + unforeseen


if __name__ == "__main__":
    sys.exit(main())
