"""Nodes pack of the campaign's server alone: has the n-th operator of a prompt run out of memory.

``POST /campaign/fault {"after": n}`` arms it for the next prompt (0: counts only), ``GET /campaign/fault`` tells how
many operators the last one had and whether one failed.
"""

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
