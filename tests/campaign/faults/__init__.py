"""Nodes pack of the campaign's server alone, with faults that can be asked for.

- ``POST /campaign/fault {"after": n}``: the n-th operator of the next prompt runs out of memory (0: they are counted
  only); ``GET /campaign/fault`` tells how many the last one had and whether one failed.
- ``POST /campaign/disk {"room": n}``: no file in a folder "headroom" becomes larger than n bytes (-1: as large as it
  likes); ``GET /campaign/disk`` tells which write failed last.
- ``POST /campaign/clock {"reach": s}``: the clock jumps by up to s seconds all the time (0: it does not).
"""

import builtins
import errno
import io
import os
import random
import time

import execution
import torch
from aiohttp import web
from server import PromptServer
from torch.utils._python_dispatch import TorchDispatchMode

NODE_CLASS_MAPPINGS: dict[str, type] = {}
STATE = {"after": 0, "operators": 0, "failed": ""}


class Failing(TorchDispatchMode):
    """Counts operators that make tensors, and fails at one of them."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.device.type != "meta" and not isinstance(result, Fake):
            STATE["operators"] += 1
            if STATE["operators"] == STATE["after"]:
                STATE["failed"] = str(func)
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB (by the campaign)")
        return result


Fake = torch._subclasses.FakeTensor
_execute = execution.PromptExecutor.execute


def execute(self, *args, **kwargs):
    """In the place of the host's, in the thread that runs prompts."""
    STATE.update(operators=0, failed="")
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
