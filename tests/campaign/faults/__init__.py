"""Nodes pack of the campaign's server alone, with faults that can be asked for.

- ``POST /campaign/fault {"after": n}``: the n-th operator of the next prompt runs out of memory (0: they are counted
  only); ``GET /campaign/fault`` tells how many the last one had and whether one failed.
- ``POST /campaign/card {"after": n, "bytes": b, "share": s}``: from the n-th operator of the next prompt on the card,
  an emulated one, has so many bytes, or a share of those that it has given out by then, if that is not 0 (n 0: at no
  operator; what was taken away is given back at once); ``GET /campaign/card`` tells of the last prompt how many
  operators it had, how many bytes the card gave out at most and had left, how many operators failed for want of memory.
- ``POST /campaign/unload``: the host lets all models go; the answer has the bytes that are allocated after it.
- ``POST /campaign/disk {"room": n}``: no file in a folder "headroom" becomes larger than n bytes (-1: as large as it
  likes); ``GET /campaign/disk`` tells which write failed last.
- ``POST /campaign/clock {"reach": s}``: the clock jumps by up to s seconds all the time (0: it does not).
"""

import builtins
import errno
import gc
import io
import os
import random
import time

import comfy.model_management as model_management
import execution
import torch
from aiohttp import web
from server import PromptServer
from torch.utils._python_dispatch import TorchDispatchMode

NODE_CLASS_MAPPINGS: dict[str, type] = {}
STATE = {"after": 0, "operators": 0, "failed": ""}
CARD = {"after": 0, "bytes": 0.0, "share": 0.0, "room": 0.0, "failed": 0}
on_card = bool(os.environ.get("EMU_DEVICE"))
if on_card:
    import emulated_card


class Failing(TorchDispatchMode):
    """Counts operators that make tensors, and fails at one of them."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        try:
            result = func(*args, **(kwargs or {}))
        except torch.OutOfMemoryError:
            CARD["failed"] += 1
            raise
        if isinstance(result, torch.Tensor) and result.device.type != "meta" and not isinstance(result, Fake):
            STATE["operators"] += 1
            if STATE["operators"] == CARD["after"]:
                CARD["room"] = CARD["share"] * emulated_card.stats()["used"] or CARD["bytes"]
                emulated_card.set("vram_mb", CARD["room"] / 2**20)
            if STATE["operators"] == STATE["after"]:
                STATE["failed"] = str(func)
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB (by the campaign)")
        return result


Fake = torch._subclasses.FakeTensor
_execute = execution.PromptExecutor.execute


def execute(self, *args, **kwargs):
    """In the place of the host's, in the thread that runs prompts."""
    STATE.update(operators=0, failed="")
    CARD.update(room=0.0, failed=0)
    if on_card:
        emulated_card.reset()
    with Failing():
        return _execute(self, *args, **kwargs)


execution.PromptExecutor.execute = execute


@PromptServer.instance.routes.post("/campaign/fault")
async def arm(request):
    """Arms it."""
    STATE["after"] = int((await request.json())["after"])
    return web.json_response(STATE)


@PromptServer.instance.routes.get("/campaign/fault")
async def tell(request):
    """What the last prompt came to."""
    return web.json_response(STATE)


# -------------------------------------------------------------------------------------------------------------- card


@PromptServer.instance.routes.post("/campaign/card")
async def arm_card(request):
    """Arms it."""
    asked = await request.json()
    CARD.update(after=int(asked["after"]), bytes=float(asked["bytes"]), share=float(asked["share"]))
    emulated_card.default_settings()
    return web.json_response(CARD)


@PromptServer.instance.routes.get("/campaign/card")
async def tell_card(request):
    """What the last prompt came to."""
    return web.json_response(CARD | {"operators": STATE["operators"], "peak": emulated_card.stats()["peak"]})


@PromptServer.instance.routes.post("/campaign/unload")
async def unload(request):
    """While no prompt runs."""
    with torch.inference_mode():
        model_management.unload_all_models()
    gc.collect()
    model_management.soft_empty_cache()
    return web.json_response({"allocated": torch.cuda.memory_allocated()})


# -------------------------------------------------------------------------------------------------------------- disk

DISK = {"room": -1, "failed": ""}
_open = io.open


class Full(io.FileIO):
    """A file on a disk that has some room left, and then none."""

    def write(self, data):
        if self.tell() + len(data) > DISK["room"] >= 0:
            DISK["failed"] = f"{len(data)} bytes of {os.path.basename(self.name)}"
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.name)
        return super().write(data)


def open_full(file, mode="r", buffering=-1, encoding=None, errors=None, newline=None, closefd=True, opener=None):
    """In the place of Python's."""
    is_kept = isinstance(file, (str, os.PathLike)) and os.path.basename(os.path.dirname(os.fspath(file))) == "headroom"
    if DISK["room"] < 0 or not is_kept or "w" not in mode:
        return _open(file, mode, buffering, encoding, errors, newline, closefd, opener)
    raw = Full(os.fspath(file), "w")
    if buffering == 0:
        return raw
    buffered = io.BufferedWriter(raw)
    return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding, errors, newline)


io.open = builtins.open = open_full


@PromptServer.instance.routes.post("/campaign/disk")
async def set_disk(request):
    """Arms it."""
    DISK.update(room=int((await request.json())["room"]), failed="")
    return web.json_response(DISK)


@PromptServer.instance.routes.get("/campaign/disk")
async def tell_disk(request):
    """Which write failed."""
    return web.json_response(DISK)


# ------------------------------------------------------------------------------------------------------------- clock

CLOCK = {"reach": 0.0}
_time = time.time


def jumping():
    """In the place of Python's wall clock; the monotonic one is no machine's to set."""
    return _time() + random.uniform(-CLOCK["reach"], CLOCK["reach"])


time.time = jumping


@PromptServer.instance.routes.post("/campaign/clock")
async def set_clock(request):
    """Arms it."""
    CLOCK["reach"] = float((await request.json())["reach"])
    return web.json_response(CLOCK)
