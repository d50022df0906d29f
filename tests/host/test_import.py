"""What loading the pack does to a ComfyUI that starts: little, and nothing that reaches out."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from .conftest import ENVIRONMENT

MOST_CALLS = 300_000  # of functions: about a quarter of a second, on whatever machine
BACKENDS = {"xformers", "flash_attn", "sageattention"}
# Loads the host, then the pack as the host does, and tells what that did.
SCRIPT = """
import asyncio, compileall, importlib.util, json, sys

sys.argv = ["main.py", "--cpu"]
sys.path.insert(0, sys.host)
import comfy.options

comfy.options.enable_args_parsing()
import nodes
import torch
import comfy_api.latest

asked, events, touched, watching = [], [], [], False


class Noted:
    @staticmethod
    def find_spec(name, path=None, target=None):
        asked.append(name.partition(".")[0])


def hook(event, arguments):
    if watching and (event.partition(".")[0] in ("socket", "subprocess", "urllib", "http") or event == "os.system"):
        events.append(event)


def noted(name, function):
    def call(*arguments, **options):
        touched.append(name)
        return function(*arguments, **options)

    return call


for name in ("is_available", "device_count", "_lazy_init", "mem_get_info", "get_device_properties"):
    setattr(torch.cuda, name, noted(name, getattr(torch.cuda, name)))
sys.pycache_prefix = sys.kept
for part in ("attention", "graph", "host", "memory", "nodes", "offload", "vae"):
    compileall.compile_dir(f"{sys.pack}/{part}", quiet=1)
loop = asyncio.new_event_loop()
watching = True
sys.meta_path.insert(0, Noted)
sys.addaudithook(hook)
calls = 0


def count(frame, event, argument):
    global calls
    calls += event in ("call", "c_call")


sys.setprofile(count)
found = {"submodule_search_locations": [sys.pack]}
spec = importlib.util.spec_from_file_location("headroom", f"{sys.pack}/__init__.py", **found)
module = sys.modules["headroom"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
extension = loop.run_until_complete(module.comfy_entrypoint())
sys.setprofile(None)
watching = False
print(json.dumps({"calls": calls, "asked": sorted(set(asked)), "events": events, "touched": touched}))
"""


def loaded(folder: Path) -> dict[str, Any]:
    """What a start tells; ``folder`` takes the byte code, as if the pack had been started before."""
    places = (
        f"import sys; sys.host, sys.pack, sys.kept = {[str(ENVIRONMENT.comfyui), str(ENVIRONMENT.pack), str(folder)]}"
    )
    result = subprocess.run(
        [sys.executable, "-c", f"{places}\n{SCRIPT}"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        cwd=folder,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    told: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return told


def test_it_takes_little_and_touches_nothing(tmp_path: Path) -> None:
    told = loaded(tmp_path)
    assert told["calls"] < MOST_CALLS
    assert "headroom" in told["asked"]  # what was asked for is seen
    assert not BACKENDS & set(told["asked"]), "backends are looked for when they are first asked for"
    assert not told["events"], "no network and no other program"
    assert not told["touched"], "no GPU"
