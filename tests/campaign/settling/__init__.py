"""Nodes pack of the campaign's server alone, for the soak: what a server holds that it still needs.

- ``POST /campaign/settle``: the host lets all models and results go, Python collects its garbage, and the C library
  gives back what is free in its heaps, of which it otherwise keeps hundreds of megabytes in pieces, more or fewer by
  the order of the work. While no prompt runs.
"""

import asyncio
import ctypes
import gc
import sys

import comfy.model_management as model_management
import torch
from aiohttp import web
from server import PromptServer

LET_GO = 1.0  # seconds for the host to do what it was asked
NODE_CLASS_MAPPINGS: dict[str, type] = {}


@PromptServer.instance.routes.post("/campaign/settle")
async def settle(request):
    """Answers once that is done; the results go before, by the host's own ``/free``, which its other thread does."""
    while PromptServer.instance.prompt_queue.flags:
        await asyncio.sleep(0.1)
    await asyncio.sleep(LET_GO)
    with torch.inference_mode():
        model_management.unload_all_models()
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)
    return web.json_response({})
