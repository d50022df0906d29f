"""What differs between host versions, behind one name each. What a host may lack altogether is in ``internals``."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import comfy.model_management
import comfy.patcher_extension
import comfy.sample
import comfy.sd
import torch
from torch import Tensor

if TYPE_CHECKING:
    from comfy.model_patcher import ModelPatcher

RATIOS = ("downscale_ratio_spacial", "downscale_ratio_temporal")  # of an empty LATENT, in the host's spelling
OVERRIDE = "optimized_attention_override"  # of attention: the host's key in transformer_options
IN_THREAD = "multigpu_thread_device"  # the host's key there where several GPUs compute a step, a thread for each


def _executing_context() -> Callable[[], object] | None:
    try:
        from comfy_execution.utils import get_executing_context
    except ImportError:
        return None
    return get_executing_context


def executing_node() -> tuple[str, str]:
    """(prompt id, node id) of the node that runs in this thread; empty strings outside a prompt."""
    getter = _executing_context()
    context = getter() if getter else None
    return (str(context.prompt_id), str(context.node_id)) if context else ("", "")  # type: ignore[attr-defined]


def is_out_of_memory(error: Exception) -> bool:
    """Whether the host counts ``error`` as a failure to allocate."""
    check = getattr(comfy.model_management, "is_oom", None)
    if check is not None:
        return bool(check(error))
    return isinstance(error, out_of_memory_kind())


def out_of_memory_kind() -> type[Exception]:
    """What the host raises where an allocation failed; torch's own where it has none."""
    kind: type[Exception] = getattr(comfy.model_management, "OOM_EXCEPTION", torch.OutOfMemoryError)
    return kind


def comfyui_version() -> str:
    """Such as "0.33.0"."""
    return str(importlib.import_module("comfyui_version").__version__)


def interruptions() -> tuple[type[BaseException], ...]:
    """What the host raises in work that the user cancels, for an ``except``."""
    kind = getattr(comfy.model_management, "InterruptProcessingException", None)
    return () if kind is None else (kind,)


def device_context(device: torch.device) -> AbstractContextManager[object]:
    """Makes ``device`` the current one where the host does so (several GPUs); hosts before 0.24 do not."""
    context = getattr(comfy.model_management, "cuda_device_context", None)
    return context(device) if context is not None else contextlib.nullcontext()


def _recording_pause() -> Callable[[], AbstractContextManager[object]] | None:
    """Hosts from 0.35 on record the allocations of a supported model's blocks, and may replay them as a CUDA graph."""
    try:
        from comfy import model_prefetch
    except ImportError:
        return None
    pause: Callable[[], AbstractContextManager[object]] | None = getattr(model_prefetch, "pause_malloc_graph", None)
    return pause


def outside_recording() -> AbstractContextManager[object]:
    """Within it, what is allocated may outlive the block that runs; only newer hosts need to be told."""
    pause = _recording_pause()
    return pause() if pause is not None else contextlib.nullcontext()


def replays_steps() -> bool:
    """Whether the host may replay a block without running its Python, so that no choice by step is asked for again."""
    return _recording_pause() is not None


def latent_for(model: ModelPatcher, latent: Mapping[str, Any]) -> Tensor:
    """A LATENT's tensor with the channels and the size that a model wants, as in the host's samplers.

    Hosts before 0.24 know nothing of a ratio in time: theirs are left out, as their samplers do.
    """
    function = comfy.sample.fix_empty_latent_channels
    known = inspect.signature(function).parameters
    ratios = {name: latent[name] for name in RATIOS if name in known and name in latent}
    fixed: Tensor = function(model, latent["samples"], **ratios)
    return fixed


def unload_with_clones(model: ModelPatcher) -> None:
    """Takes a model and all clones of it off their device: what was patched into its weights is undone."""
    loaded = comfy.model_management.current_loaded_models
    others = [entry for entry in loaded if entry.model is None or entry.model.model is not model.model]
    comfy.model_management.free_memory(1e30, model.load_device, others)


def drop_cast_buffers() -> bool:
    """Has the host give up the memory by which it streams weights, as large as the largest it ever did: without dynamic
    VRAM it keeps that from one prompt to the next. Whether there was any; older hosts have none."""
    reset = getattr(comfy.model_management, "reset_cast_buffers", None)
    if reset is None or not getattr(comfy.model_management, "STREAM_CAST_BUFFERS", None):
        return False
    reset()
    return True


def has_own_kernels() -> bool:
    """Whether comfy-kitchen's operators are kernels for this machine's card. Before CUDA 13, and on other makers'
    cards, the host has them be made of torch's operators; older hosts have no such library."""
    kitchen = sys.modules.get("comfy_kitchen")
    if kitchen is None:
        return True
    backends = kitchen.list_backends()
    return any(found["available"] and not found["disabled"] for name, found in backends.items() if name != "eager")


def shown_when_reused() -> dict[str, Any]:
    """Schema options of a node with a report on its face that is no output node: the host sends the report again
    when it reuses the node's result. Older hosts (0.18.2) cannot: there a page opened since does not show it."""
    from comfy_api.latest import io

    name = "has_intermediate_output"
    return {name: True} if name in {field.name for field in fields(io.Schema)} else {}


def show_on_node(text: str) -> None:
    """A line on the face of the node that executes, where a server shows one."""
    module = sys.modules.get("server")  # there once the host serves; importing it would start one's parts
    server = getattr(getattr(module, "PromptServer", None), "instance", None)
    node = executing_node()[1]
    if server is not None and node and hasattr(server, "send_progress_text"):
        server.send_progress_text(text, node)


def saved_metadata(prompt: Any, extra: Mapping[str, Any] | None) -> dict[str, Any]:
    """What is written into a file so that its workflow can be opened from it; nothing under ``--disable-metadata``."""
    from comfy.cli_args import args

    if args.disable_metadata:
        return {}
    return {**(extra or {}), **({} if prompt is None else {"prompt": prompt})}
