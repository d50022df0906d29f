"""How much memory a device can give, and how the report names it."""

from __future__ import annotations

from typing import Any

import comfy.model_management as model_management
import torch

from ...memory.accelerator import device_name, is_here
from ...memory.prediction.card import Card, describe_device

GB = 2**30
CPU = torch.device("cpu")


def memory_budget(device: torch.device, limit_gb: float = 0.0) -> int:
    """Bytes to plan with: ``limit_gb``, or if that is 0 the device's total minus the host's reserve.

    Never the momentary free memory: under dynamic VRAM that is a cache the host evicts on demand, and a plan made
    from it would differ from run to run.
    """
    if limit_gb > 0:
        return int(limit_gb * GB)
    total = model_management.get_total_memory(device)
    return int(total - model_management.extra_reserved_memory())


def ram_total(ram_gb: float) -> int:
    """Bytes of the machine's memory, or those that are asked about."""
    return int(ram_gb * GB) if ram_gb else memory_budget(CPU)


def runs_on_the_cpu(patcher: Any, card: Card) -> bool:
    """Whether what a patcher loads runs on the CPU beside a card of this machine: its loader, or how the host was
    started, says so. Where there is no such card all that is loaded is on the CPU, which says nothing."""
    return card.has_own_memory and is_here(card.device) and bool(patcher.load_device == CPU)


def describe_machine(device: torch.device) -> str:
    """One line: the device, its total memory, torch."""
    total = int(model_management.get_total_memory(device))
    return f"{describe_device(device_name(device), device, total)}, torch {torch.__version__}"
