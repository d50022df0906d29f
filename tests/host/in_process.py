"""The example graphs with little to do, and the host's own executor for them in this process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import execution
import folder_paths
import pytest
import torch
from PIL import Image

import nodes
from headroom.nodes import NODES
from headroom.tools.server.client import Workflow

from .conftest import ENVIRONMENT

GRAPHS = {path.stem: path for path in sorted((Path(__file__).parents[2] / "workflows" / "api").glob("*.json"))}
MOST = {"width": 128, "height": 128, "steps": 2}


def small(name: str) -> Workflow:
    """A graph with little to do."""
    workflow: Workflow = json.loads(GRAPHS[name].read_text(encoding="utf-8"))
    for item in workflow.values():
        if item["class_type"] == "LoadImage":
            item["inputs"]["image"] = "small.png"
        given = item["inputs"]  # numbers, or links to them
        given |= {key: min(given[key], most) for key, most in MOST.items() if isinstance(given.get(key), int)}
    return workflow


def save_small(folder: Path) -> None:
    """The picture that such a graph loads."""
    with Image.open(ENVIRONMENT.models / "input" / "astronaut.png") as picture:
        picture.resize((MOST["width"], MOST["height"])).save(folder / "small.png")


@contextmanager
def prompt_executor(input_folder: Path, output: Path) -> Iterator[execution.PromptExecutor]:
    """The host's own with every node, which nobody listens to; its folders are these."""
    asyncio.run(nodes.init_extra_nodes(init_custom_nodes=False, init_api_nodes=False))
    (output / "latents").mkdir()
    save_small(input_folder)
    with pytest.MonkeyPatch.context() as patch:
        for node in NODES:
            patch.setitem(nodes.NODE_CLASS_MAPPINGS, node.GET_SCHEMA().node_id, node)
        patch.setattr(folder_paths, "input_directory", str(input_folder))
        for name in ("output", "temp"):
            patch.setattr(folder_paths, f"{name}_directory", str(output))
        nobody = SimpleNamespace(client_id=None, last_node_id=None, last_prompt_id=None, send_sync=lambda *_: None)
        limits = {"ram": 0.0, "ram_inactive": 0.0, "lru": 0}
        yield execution.PromptExecutor(nobody, execution.CacheType.CLASSIC, limits)


def execute(executor: execution.PromptExecutor, workflow: Workflow, prompt: str) -> None:
    """Runs a graph to its end; fails with what a node raised."""
    kinds = {number: nodes.NODE_CLASS_MAPPINGS[item["class_type"]] for number, item in workflow.items()}
    wanted = [number for number, kind in kinds.items() if getattr(kind, "OUTPUT_NODE", False)]
    with torch.inference_mode(False):
        executor.execute(workflow, prompt, {}, wanted)
    if not executor.success:
        said = dict(executor.status_messages).get("execution_error", {})
        print("\n".join(said.get("traceback", ())))
        pytest.fail(f"{said.get('node_type')}: {said.get('exception_type')}: {said.get('exception_message')}")
