"""A host that renamed something: at most the nodes that the table names are gone, and a sentence says so."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import comfy.model_management as model_management
import pytest
import torch

from headroom.host.core.compat import is_out_of_memory, out_of_memory_kind
from headroom.host.core.internals import INTERNALS, find, missing
from headroom.host.measure.runs import measured
from headroom.nodes import FILES, MISSING, NODES

from ..nightly import some_of
from .conftest import ENVIRONMENT

ROOT = Path(__file__).parents[2]
# comfy_api is what the host promises to packs.
HOST = {"comfy", "comfy_execution", "comfy_extras", "folder_paths", "nodes"}
# Imports the host once, and the pack in a child for each name that is taken away.
SCRIPT = """
import asyncio, importlib, importlib.util, json, logging, os, sys

sys.argv = ["main.py", "--cpu"]
sys.path.insert(0, sys.host)
import comfy.options

comfy.options.enable_args_parsing()
import nodes
import torch
import comfy_api.latest

torch.set_num_threads(1)
logging.disable(logging.NOTSET)


def without(path):
    module, _, names = path.partition(":")
    owner = importlib.import_module(module)
    *before, last = names.split(".")
    for name in before:
        owner = getattr(owner, name)
    # Of an Enum or a plain namespace alike; what a base class has shows through again, as it would for the host.
    type.__delattr__(owner, last) if isinstance(owner, type) else delattr(owner, last)


async def started():
    found = {"submodule_search_locations": [sys.pack]}
    spec = importlib.util.spec_from_file_location("headroom", f"{sys.pack}/__init__.py", **found)
    module = sys.modules["headroom"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    extension = await module.comfy_entrypoint()
    await extension.on_load()
    return [node.__name__ for node in await extension.get_node_list()]


class Heard(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


for path in json.loads(sys.stdin.read()):
    sys.stdout.flush()
    if os.fork():
        os.wait()
        continue
    heard = Heard()
    logging.getLogger("headroom").addHandler(heard)
    told = {"path": path, "nodes": None, "said": heard.lines}
    try:
        without(path)
        told["nodes"] = asyncio.run(started())
    except BaseException as error:
        told["error"] = f"{type(error).__name__}: {error}"
    print("told", json.dumps(told), flush=True)
    os._exit(0)
"""


def imported_without(paths: list[str], folder: Path) -> Iterator[dict[str, Any]]:
    places = f"import sys; sys.host, sys.pack = {[str(ENVIRONMENT.comfyui), str(ENVIRONMENT.pack)]}"
    done = subprocess.run(
        [sys.executable, "-c", f"{places}\n{SCRIPT}"],
        input=json.dumps(paths),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for line in done.stdout.splitlines():
        if line.startswith("told "):
            yield json.loads(line[5:])


def test_each_renamed_name_costs_the_nodes_of_its_line(tmp_path: Path) -> None:
    by_path = {internal.path: internal for internal in INTERNALS}
    paths = some_of(list(by_path), 3)
    told = {one["path"]: one for one in imported_without(paths, tmp_path)}
    assert list(told) == paths
    for path, found in told.items():
        internal = by_path[path]
        assert found["nodes"] is not None, f"without {path}: {found.get('error')}"
        assert set(FILES) - set(found["nodes"]) == set(internal.nodes), path
        assert f"Headroom: {internal.sentence}" in found["said"], path


def test_no_name_costs_all_nodes() -> None:
    for internal in INTERNALS:
        assert set(internal.nodes) <= set(FILES), internal.path
        assert bool(internal.lost) != bool(internal.nodes), internal.path
        assert len(internal.nodes) < len(FILES), internal.path


def test_this_host_has_them_all() -> None:
    assert missing() == []
    assert MISSING == []
    assert [node.__name__ for node in NODES] == list(FILES)


def test_errors_go_on_as_they_are_without_the_hosts_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    """An ``except`` that asks for a name which is gone would put its own error in the place of what happened."""
    for name in ("InterruptProcessingException", "OOM_EXCEPTION", "is_oom"):
        monkeypatch.delattr(model_management, name, raising=False)
    with pytest.raises(KeyError, match="of the work"), measured("decode", torch.device("cpu")) as row:
        raise KeyError("of the work")
    assert row.outcome == "failed"
    assert out_of_memory_kind() is torch.OutOfMemoryError
    assert is_out_of_memory(torch.OutOfMemoryError())
    assert not is_out_of_memory(KeyError())


def test_sentences() -> None:
    by_path = {internal.path: internal.sentence for internal in INTERNALS}
    said = "; Headroom is tested with ComfyUI 0.18.2 to "
    start, _, _ = by_path["comfy.samplers:KSAMPLER"].partition(said)
    needed = "without which HeadroomCast, HeadroomCompare cannot be offered"
    assert start == f"this ComfyUI has no comfy.samplers.KSAMPLER, {needed}"
    start, _, _ = by_path["nodes:NODE_DISPLAY_NAME_MAPPINGS"].partition(said)
    assert start == "this ComfyUI has no nodes.NODE_DISPLAY_NAME_MAPPINGS, so that reports call nodes by their ids"


@pytest.mark.parametrize("path", ["comfy.nowhere:name", "comfy.sd:Nothing", "comfy.sd:VAE.nothing.more"])
def test_what_is_not_there_is_not_found(path: str) -> None:
    assert find(path) is None


def used(file: Path) -> Iterator[str]:
    """Names of the host's that a file of ours reaches through imports, as ``module:name``."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    tried = {
        id(node) for one in ast.walk(tree) if isinstance(one, ast.Try) for part in one.body for node in ast.walk(part)
    }
    modules: dict[str, str] = {}
    for node in ast.walk(tree):
        if id(node) in tried:  # it is known that a host may lack it
            continue
        if isinstance(node, ast.Import):
            modules |= {alias.asname or alias.name: alias.name for alias in node.names if is_hosts(alias.name)}
        elif isinstance(node, ast.ImportFrom) and not node.level and is_hosts(node.module or ""):
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                if module_file(whole):
                    modules[alias.asname or alias.name] = whole
                else:
                    yield f"{node.module}:{alias.name}"
    for node in ast.walk(tree):
        owner = modules.get(ast.unparse(node.value)) if isinstance(node, ast.Attribute) else None
        if owner is not None and not node.attr.startswith("__") and not module_file(f"{owner}.{node.attr}"):
            yield f"{owner}:{node.attr}"


def is_hosts(module: str) -> bool:
    return module.partition(".")[0] in HOST


def module_file(dotted: str) -> bool:
    place = ENVIRONMENT.comfyui / dotted.replace(".", "/")
    return place.with_suffix(".py").is_file() or place.is_dir()


def test_the_table_has_every_name_that_is_used() -> None:
    """And by name only what is asked about with hasattr or getattr is left out: it is guarded where it is used."""
    listed = {internal.path for internal in INTERNALS}
    files = [path for part in ("host", "nodes") for path in (ROOT / part).rglob("*.py")]
    reached = {name: path.name for path in files for name in used(path)}
    unlisted = {name: file for name, file in reached.items() if name not in listed}
    assert unlisted == {}
