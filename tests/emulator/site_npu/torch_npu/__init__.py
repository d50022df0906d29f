"""The emulated accelerator under the name of an Ascend NPU: ComfyUI imports this module and asks torch.npu.

What the makers' own modules offer, as far as ComfyUI asks for it; everything is answered by `torch.accelerator`.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

NAME = "Emulated NPU"
MEMORY = (
    "memory_allocated",
    "memory_reserved",
    "max_memory_allocated",
    "max_memory_reserved",
    "reset_peak_memory_stats",
)

accelerator = torch.accelerator


def copies() -> dict[str, list[int]]:
    """Copies so far by direction (h2d, d2h, d2d): calls, bytes, calls with pinned memory, asynchronous calls."""
    core = ctypes.CDLL(str(Path(os.environ["EMU_BUILD"]) / "operators.so"))
    core.emu_npu_stats.restype = ctypes.c_char_p
    answer: dict[str, list[int]] = json.loads(core.emu_npu_stats())
    return answer


@contextlib.contextmanager
def _stream(stream: torch.Stream) -> Iterator[None]:
    before = accelerator.current_stream()
    accelerator.set_stream(stream)
    try:
        yield
    finally:
        accelerator.set_stream(before)


def _of_any_device(function: Callable[[], Any]) -> Callable[..., Any]:
    """There is one device, so whichever is named is meant."""
    return lambda device=None: function()


def _device_module() -> types.ModuleType:
    module: Any = types.ModuleType("torch.npu")
    module.is_available = module.is_initialized = lambda: True
    module._is_in_bad_fork = lambda: False
    module._lazy_init = module.empty_cache = lambda: None
    module.device_count, module.current_device = (lambda: 1), (lambda: 0)
    module.set_device = lambda device: None
    module.device = lambda device: contextlib.nullcontext()
    module.get_device_name = _of_any_device(lambda: NAME)
    module.get_amp_supported_dtype = lambda: [torch.float16, torch.bfloat16]
    module.synchronize = _of_any_device(accelerator.synchronize)
    module.memory_stats = _of_any_device(accelerator.memory_stats)
    module.mem_get_info = _of_any_device(accelerator.get_memory_info)
    for name in MEMORY:
        setattr(module, name, _of_any_device(getattr(accelerator, name)))
    module.Stream, module.Event, module.stream = torch.Stream, torch.Event, _stream
    module.current_stream = _of_any_device(accelerator.current_stream)
    return module


def _add_generator(module: Any) -> None:
    module.default_generators = (torch.Generator("npu"),)  # the first that is made is the default one
    first = module.default_generators[0]
    module.manual_seed = module.manual_seed_all = first.manual_seed
    module.get_rng_state = _of_any_device(first.get_state)
    module.set_rng_state = lambda state, device=None: first.set_state(state)


torch.version.cuda = None  # a torch built for CUDA makes ComfyUI ask torch.cuda about every card
_module = _device_module()
torch._register_device_module("npu", _module)
torch.utils.generate_methods_for_privateuse1_backend()
_add_generator(_module)
