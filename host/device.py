"""How much memory a device can give, and how the report names it."""

from __future__ import annotations

import comfy.model_management as model_management
import torch

GB = 2**30


def memory_budget(device: torch.device, limit_gb: float = 0.0) -> int:
    """Bytes to plan with: ``limit_gb``, or if that is 0 the device's total minus the host's reserve.

    Never the momentary free memory: under dynamic VRAM that is a cache the host evicts on demand, and a plan made
    from it would differ from run to run.
    """
    if limit_gb > 0:
        return int(limit_gb * GB)
    total = model_management.get_total_memory(device)
    return int(total - model_management.extra_reserved_memory())


def describe_machine(device: torch.device) -> str:
    """One line: the device and its total memory."""
    total = model_management.get_total_memory(device) / GB
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, {total:.0f} GB, torch {torch.__version__}"
    return f"{device.type}, {total:.0f} GB RAM, torch {torch.__version__}"
