"""What a check ran on, in words and for programs."""

from __future__ import annotations

import importlib
import platform
import re
from pathlib import Path
from typing import Any

import comfy.model_management as model_management
import torch

from ...graph.version import pack_version
from ...host.core.device import GB
from ...host.core.internals import missing

NVIDIA = Path("/proc/driver/nvidia/version")


def describe(device: torch.device) -> dict[str, Any]:
    """Names and versions; nothing of the user's."""
    return {
        "device": _name(device),
        "device_type": device.type,
        "device_bytes": int(model_management.get_total_memory(device)),
        "ram_bytes": int(model_management.get_total_memory(torch.device("cpu"))),
        "driver": _driver(device),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "comfyui": _comfyui(),
        "vram_state": model_management.vram_state.name,
        "dynamic_vram": _has_dynamic_vram(),
        "headroom": pack_version(),
        "missing": [internal.sentence for internal in missing()],
    }


def head(machine: dict[str, Any]) -> list[str]:
    """The same in lines."""
    driver = f" · driver {machine['driver']}" if machine["driver"] else ""
    memory, ram = (machine[key] / GB for key in ("device_bytes", "ram_bytes"))
    own = f", {memory:.1f} GB" if machine["device_type"] != "cpu" else ""
    loading = f" · {machine['vram_state']}, dynamic VRAM {'on' if machine['dynamic_vram'] else 'off'}" if own else ""
    return [
        f"Headroom {machine['headroom']} · ComfyUI {machine['comfyui']} · torch {machine['torch']}"
        f" · Python {machine['python']}",
        f"{machine['device']}{own}{driver} · {ram:.0f} GB RAM · {machine['system']}{loading}",
        *(f"! {sentence}" for sentence in machine["missing"]),
    ]


def _name(device: torch.device) -> str:
    module: Any = getattr(torch, device.type, None)
    if device.type != "cpu" and hasattr(module, "get_device_name"):
        return str(module.get_device_name(device))
    return f"CPU: {_cpu()}" if device.type == "cpu" else device.type


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE) if info.exists() else None
    name = found[1].strip() if found else platform.processor() or platform.machine()
    return f"{name}, {torch.get_num_threads()} threads"


def _driver(device: torch.device) -> str:
    """Its version, where it can be had without starting a program."""
    module: Any = getattr(torch, device.type, None)
    if device.type == "cpu" or not hasattr(module, "get_device_properties"):
        return ""
    own = getattr(module.get_device_properties(device), "driver_version", None)
    if own:
        return str(own)
    found = re.search(r"\s(\d+\.\d+[.\d]*)\s", NVIDIA.read_text()) if NVIDIA.exists() else None
    if found:
        return found[1]
    number = getattr(torch._C, "_cuda_getDriverVersion", lambda: 0)() if device.type == "cuda" else 0
    return f"for CUDA {number // 1000}.{number % 1000 // 10}" if number else ""


def _comfyui() -> str:
    try:
        return str(importlib.import_module("comfyui_version").__version__)
    except (ImportError, AttributeError):
        return "of unknown version"


def _has_dynamic_vram() -> bool:
    """The host's server turns it on when it starts, on NVIDIA's cards; in any other program it is off."""
    try:
        return bool(importlib.import_module("comfy.memory_management").aimdo_enabled)
    except (ImportError, AttributeError):
        return False
